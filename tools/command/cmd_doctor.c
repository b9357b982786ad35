/* `offload doctor`: collects what this machine offers, prints it as text or JSON. A warning never makes it fail,
 * because the report is the result; with --strict, something that a run cannot use does. */
#include "tools/doctor/doctor.h"

#include "base/json.h"
#include "tools/command/cmd.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void print_text(const struct ox_doctor *doctor) {
    const char *group = "";
    uint32_t warning_count = 0;
    for (uint32_t i = 0; i < doctor->count; i++) {
        const struct ox_doctor_item *const item = &doctor->items[i];
        if (strcmp(group, item->group) != 0) {
            printf("%s%s\n", i == 0 ? "" : "\n", item->group);
            group = item->group;
        }
        printf("  %-18s %s\n", item->name, item->value);
        warning_count += item->warning[0] != '\0';
    }
    printf("\n%s\n", warning_count == 0 ? "No warnings" : "Warnings");
    for (uint32_t i = 0; i < doctor->count; i++) {
        const struct ox_doctor_item *const item = &doctor->items[i];
        if (item->warning[0] != '\0') {
            printf("  %s%s: %s\n      remedy: %s\n", item->unusable ? "UNUSABLE " : "", item->name, item->warning,
                   item->remedy);
        }
    }
}

static enum ox_status print_json(const struct ox_doctor *doctor) {
    json_t *const list = json_array();
    int failed = list == NULL;
    for (uint32_t i = 0; i < doctor->count; i++) {
        const struct ox_doctor_item *const item = &doctor->items[i];
        json_t *const object = json_object();
        failed |= json_object_set_new(object, "group", ox_json_text(item->group));
        failed |= json_object_set_new(object, "name", ox_json_text(item->name));
        failed |= json_object_set_new(object, "value", ox_json_text(item->value));
        if (item->warning[0] != '\0') {
            failed |= json_object_set_new(object, "warning", ox_json_text(item->warning));
            failed |= json_object_set_new(object, "remedy", ox_json_text(item->remedy));
            failed |= json_object_set_new(object, "unusable", json_boolean(item->unusable));
        }
        failed |= json_array_append_new(list, object);
    }
    if (failed) {
        json_decref(list);
        return ox_fail(OX_E_NOMEM, "no memory to write the report");
    }
    return ox_print_json(stdout, list, JSON_INDENT(2), "the report");
}

/* Fails if a run could not use something, and names it. */
static enum ox_status check_usable(const struct ox_doctor *doctor) {
    const struct ox_doctor_item *first = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < doctor->count; i++) {
        first = first == NULL && doctor->items[i].unusable ? &doctor->items[i] : first;
        count += doctor->items[i].unusable;
    }
    if (first == NULL) {
        return OX_OK;
    }
    return ox_fail(OX_E_DEVICE, "--strict: %" PRIu32 " thing%s unusable for a run: %s: %s; %s%s", count,
                   count == 1 ? " is" : "s are", first->name, first->warning, first->remedy,
                   count == 1 ? "" : " (the others are listed above)");
}

int ox_cmd_doctor(const struct ox_config *config) {
    struct ox_doctor *const doctor = calloc(1, sizeof *doctor);
    if (doctor == NULL) {
        return ox_cmd_exit(ox_fail(OX_E_NOMEM, "no memory for the report"));
    }
    ox_doctor_machine(doctor);
    ox_doctor_drives(doctor, config);
    ox_doctor_gpu(doctor, &(struct ox_doctor_gpu_paths){0});
    enum ox_status status = OX_OK;
    if (strcmp(config->tool.format, "json") == 0) {
        status = print_json(doctor);
    } else {
        print_text(doctor);
    }
    if (config->bench.strict) {
        OX_THEN(status, check_usable(doctor));
    }
    free(doctor);
    return ox_cmd_exit(status);
}
