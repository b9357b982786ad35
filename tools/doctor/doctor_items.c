/* Items of the report, and helpers that its parts share. */
#include "tools/doctor/doctor.h"

#include "base/assert.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ox_doctor_add(struct ox_doctor *doctor, const char *name, const char *fmt, ...) {
    OX_ASSERT(doctor->count < OX_DOCTOR_ITEMS_MAX);
    struct ox_doctor_item *const item = &doctor->items[doctor->count++];
    item->group = doctor->group;
    item->name = name;
    va_list args;
    va_start(args, fmt);
    vsnprintf(item->value, sizeof item->value, fmt, args);
    va_end(args);
}

/* Returns the item added last if it has no warning yet: the first warning names the cause. */
static struct ox_doctor_item *item_without_warning(struct ox_doctor *doctor, const char *remedy) {
    OX_ASSERT(doctor->count > 0);
    struct ox_doctor_item *const item = &doctor->items[doctor->count - 1];
    if (item->warning[0] != '\0') {
        return NULL;
    }
    snprintf(item->remedy, sizeof item->remedy, "%s", remedy);
    return item;
}

void ox_doctor_warn(struct ox_doctor *doctor, const char *remedy, const char *fmt, ...) {
    struct ox_doctor_item *const item = item_without_warning(doctor, remedy);
    va_list args;
    va_start(args, fmt);
    if (item != NULL) {
        vsnprintf(item->warning, sizeof item->warning, fmt, args);
    }
    va_end(args);
}

void ox_doctor_refuse(struct ox_doctor *doctor, const char *remedy, const char *fmt, ...) {
    struct ox_doctor_item *const item = item_without_warning(doctor, remedy);
    va_list args;
    va_start(args, fmt);
    if (item != NULL) {
        vsnprintf(item->warning, sizeof item->warning, fmt, args);
        item->unusable = true;
    }
    va_end(args);
}

bool ox_doctor_read(const char *path, char *text, size_t text_bytes) {
    FILE *const file = fopen(path, "r");
    if (file == NULL) {
        return false;
    }
    const bool read = fgets(text, (int)text_bytes, file) != NULL;
    fclose(file);
    if (read) {
        text[strcspn(text, "\n")] = '\0';
    }
    return read;
}

void ox_doctor_cpus_text(const cpu_set_t *set, char *text, size_t text_bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (int first = 0; first < CPU_SETSIZE; first++) {
        if (!CPU_ISSET(first, set)) {
            continue;
        }
        int last = first;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set)) {
            last++;
        }
        char range[32];
        const int len = last > first ? snprintf(range, sizeof range, "%d-%d", first, last)
                                     : snprintf(range, sizeof range, "%d", first);
        if (used + (size_t)len + 2 < text_bytes) {
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used > 0 ? "," : "", range);
        }
        first = last;
    }
}
