/* The file format of a profile: one table of keys for each of its objects, which reader, writer and check follow
 * alike. */
#include "offload/sim/machine_profile.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 2, WHERE_BYTES = OX_PATH_BYTES + 64 };

enum kind { TEXT, BYTES, COUNT, RATE, FLOPS, SECONDS, SECONDS_PER_PARAM, SECONDS_PER_BYTE, BYTES_PER_FLOP, SHARE };

/* Limits that catch a value in the wrong unit: GB/s and TFLOP/s lie below, milliseconds and nanoseconds above. */
static const struct {
    double least, most;
    const char *unit;
} limits[] = {
    [BYTES] = {0x1p20, 0x1p53, "bytes"},
    [COUNT] = {1.0, 65536.0, "a whole number"},
    [RATE] = {1e4, 1e16, "bytes per second"},
    [FLOPS] = {1e4, 1e20, "operations per second"},
    [SECONDS] = {1e-10, 100.0, "seconds"},
    [SECONDS_PER_PARAM] = {1e-15, 1e-4, "seconds"},
    [SECONDS_PER_BYTE] = {1e-15, 1e-7, "seconds"},
    [BYTES_PER_FLOP] = {1e-6, 100.0, "bytes"},
    [SHARE] = {1e-3, 1.0, "parts of one"},
};

struct field {
    const char *key;
    size_t offset;
    enum kind kind;
    bool optional;
    size_t room; /* bytes of the array that holds a TEXT */
};

static const struct field gpu_fields[] = {
    {"name", offsetof(struct ox_machine_gpu, name), TEXT, false, OX_MACHINE_NAME_BYTES},
    {"memory_bytes", offsetof(struct ox_machine_gpu, memory_bytes), BYTES, false, 0},
    {"bf16_flops_per_second", offsetof(struct ox_machine_gpu, bf16_flops), FLOPS, false, 0},
    {"fp32_flops_per_second", offsetof(struct ox_machine_gpu, fp32_flops), FLOPS, false, 0},
    {"attention_flops_per_second", offsetof(struct ox_machine_gpu, attention_flops), FLOPS, true, 0},
    {"attention_backward_flops_per_second", offsetof(struct ox_machine_gpu, attention_backward_flops), FLOPS, true, 0},
    {"mha_attention_flops_per_second", offsetof(struct ox_machine_gpu, mha_attention_flops), FLOPS, true, 0},
    {"mha_attention_backward_flops_per_second", offsetof(struct ox_machine_gpu, mha_attention_backward_flops), FLOPS,
     true, 0},
    {"h2d_bytes_per_second", offsetof(struct ox_machine_gpu, h2d_rate), RATE, false, 0},
    {"d2h_bytes_per_second", offsetof(struct ox_machine_gpu, d2h_rate), RATE, false, 0},
    {"duplex_bytes_per_second", offsetof(struct ox_machine_gpu, duplex_rate), RATE, false, 0},
    {"count", offsetof(struct ox_machine_gpu, count), COUNT, true, 0},
    {"links_bytes_per_second", offsetof(struct ox_machine_gpu, links_rate), RATE, true, 0},
    {"peer_bytes_per_second", offsetof(struct ox_machine_gpu, peer_rate), RATE, true, 0},
    {"peer_share_of_links", offsetof(struct ox_machine_gpu, peer_of_links), SHARE, true, 0},
    {"memory_bytes_per_second", offsetof(struct ox_machine_gpu, memory_rate), RATE, true, 0},
    {"machines", offsetof(struct ox_machine_gpu, machines), COUNT, true, 0},
    {"net_bytes_per_second", offsetof(struct ox_machine_gpu, net_rate), RATE, true, 0},
    {"net_latency_seconds", offsetof(struct ox_machine_gpu, net_latency), SECONDS, true, 0},
    {0},
};

static const struct field host_fields[] = {
    {"memory_bytes", offsetof(struct ox_machine_host, memory_bytes), BYTES, false, 0},
    {"cores", offsetof(struct ox_machine_host, cores), COUNT, false, 0},
    {"dram_bytes_per_second", offsetof(struct ox_machine_host, dram_rate), RATE, false, 0},
    {"core_flops_per_second", offsetof(struct ox_machine_host, core_flops), FLOPS, false, 0},
    {"flops_per_second", offsetof(struct ox_machine_host, flops), FLOPS, false, 0},
    {"bf16_flops_per_second", offsetof(struct ox_machine_host, bf16_flops), FLOPS, true, 0},
    {"packed_bytes_per_flop", offsetof(struct ox_machine_host, packed_bytes_per_flop), BYTES_PER_FLOP, true, 0},
    {"attention_flops_per_second", offsetof(struct ox_machine_host, attention_flops), FLOPS, true, 0},
    {0},
};

static const struct field adam_fields[] = {
    {"threads", offsetof(struct ox_machine_adam, threads), COUNT, false, 0},
    {"f32_seconds_per_param", offsetof(struct ox_machine_adam, seconds[OX_MOMENTS_F32]), SECONDS_PER_PARAM, true, 0},
    {"bf16_seconds_per_param", offsetof(struct ox_machine_adam, seconds[OX_MOMENTS_BF16]), SECONDS_PER_PARAM, true, 0},
    {"q8_seconds_per_param", offsetof(struct ox_machine_adam, seconds[OX_MOMENTS_Q8]), SECONDS_PER_PARAM, true, 0},
    {0},
};

static const struct field drive_fields[] = {
    {"name", offsetof(struct ox_machine_drive, name), TEXT, false, OX_MACHINE_NAME_BYTES},
    {"read_bytes_per_second", offsetof(struct ox_machine_drive, read_rate), RATE, false, 0},
    {"write_bytes_per_second", offsetof(struct ox_machine_drive, write_rate), RATE, false, 0},
    {"mix_bytes_per_second", offsetof(struct ox_machine_drive, mix_rate), RATE, false, 0},
    {"latency_seconds", offsetof(struct ox_machine_drive, latency_seconds), SECONDS, false, 0},
    {"flush_seconds", offsetof(struct ox_machine_drive, flush_seconds), SECONDS, false, 0},
    {"read_core_seconds_per_byte", offsetof(struct ox_machine_drive, read_core_seconds), SECONDS_PER_BYTE, true, 0},
    {"write_core_seconds_per_byte", offsetof(struct ox_machine_drive, write_core_seconds), SECONDS_PER_BYTE, true, 0},
    {"capacity_bytes", offsetof(struct ox_machine_drive, capacity_bytes), BYTES, true, 0},
    {"endurance_bytes", offsetof(struct ox_machine_drive, endurance_bytes), BYTES, true, 0},
    {0},
};

static const struct field comm_fields[] = {
    {"ranks", offsetof(struct ox_machine_comm, ranks), COUNT, false, 0},
    {"gather_bytes_per_second", offsetof(struct ox_machine_comm, gather_rate), RATE, false, 0},
    {"exchange_bytes_per_second", offsetof(struct ox_machine_comm, exchange_rate), RATE, false, 0},
    {"pair_bytes_per_second", offsetof(struct ox_machine_comm, pair_rate), RATE, true, 0},
    {"meet_seconds", offsetof(struct ox_machine_comm, meet_seconds), SECONDS, false, 0},
    {0},
};

static const struct field top_fields[] = {
    {"name", offsetof(struct ox_machine, name), TEXT, false, OX_MACHINE_NAME_BYTES},
    {"source", offsetof(struct ox_machine, source), TEXT, false, OX_MACHINE_SOURCE_BYTES},
    {"task_seconds", offsetof(struct ox_machine, task_seconds), SECONDS, false, 0},
    {0},
};

/* Keys of an object that are not in its table of fields. */
static const char *const no_others[] = {NULL};
static const char *const top_others[] = {"offload_profile", "gpu", "host", "drives", "comm", "sources", "measured",
                                         NULL};
static const char *const host_others[] = {"adam", NULL};

static const struct {
    const char *prefix;
    const struct field *fields;
} objects[] = {{"", top_fields}, {"gpu.", gpu_fields}, {"host.adam.", adam_fields}, {"host.", host_fields},
               {"drives.", drive_fields}, {"comm.", comm_fields}};

static const struct field *find(const struct field *fields, const char *key) {
    for (; fields->key != NULL; fields++) {
        if (strcmp(fields->key, key) == 0) {
            return fields;
        }
    }
    return NULL;
}

/* ---- values --------------------------------------------------------------------------------------------- */

static double number_of(const struct field *field, const void *object) {
    const unsigned char *const at = (const unsigned char *)object + field->offset;
    double real;
    uint64_t wide;
    uint32_t narrow;
    switch (field->kind) {
    case BYTES:
        memcpy(&wide, at, sizeof wide);
        return (double)wide;
    case COUNT:
        memcpy(&narrow, at, sizeof narrow);
        return narrow;
    default:
        memcpy(&real, at, sizeof real);
        return real;
    }
}

static void set_number(const struct field *field, void *object, double value) {
    unsigned char *const at = (unsigned char *)object + field->offset;
    const uint64_t wide = (uint64_t)value;
    const uint32_t narrow = (uint32_t)wide;
    switch (field->kind) {
    case BYTES:
        memcpy(at, &wide, sizeof wide);
        break;
    case COUNT:
        memcpy(at, &narrow, sizeof narrow);
        break;
    default:
        memcpy(at, &value, sizeof value);
    }
}

static enum ox_status check_number(const char *where, const struct field *field, double value) {
    if (!(value > 0.0)) {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" must be positive, but is %g; give it in %s", where, field->key, value,
                       limits[field->kind].unit);
    }
    if (value < limits[field->kind].least || value > limits[field->kind].most) {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" is %g, which lies outside %g to %g; give it in %s", where, field->key,
                       value, limits[field->kind].least, limits[field->kind].most, limits[field->kind].unit);
    }
    return OX_OK;
}

static enum ox_status check_text(const char *where, const struct field *field, const char *text) {
    if (text[0] == '\0') {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" is empty; say what it is", where, field->key);
    }
    return OX_OK;
}

/* ---- reading -------------------------------------------------------------------------------------------- */

static enum ox_status read_field(const char *where, const json_t *object, const struct field *field, void *out) {
    if (field->kind == TEXT) {
        const char *text = "";
        const enum ox_status status = ox_json_get_string(where, object, field->key, !field->optional, &text);
        if (status != OX_OK) {
            return status;
        }
        if (strlen(text) >= field->room) {
            return ox_fail(OX_E_CONFIG, "%s: \"%s\" has %zu bytes; at most %zu are taken", where, field->key,
                           strlen(text), field->room - 1);
        }
        memcpy((char *)out + field->offset, text, strlen(text) + 1);
        return check_text(where, field, text);
    }
    if (field->optional && json_object_get(object, field->key) == NULL) {
        return OX_OK;
    }
    double value = 0.0;
    enum ox_status status = ox_json_get_double(where, object, field->key, true, &value);
    OX_THEN(status, check_number(where, field, value));
    if (status == OX_OK && (field->kind == BYTES || field->kind == COUNT) && value != floor(value)) {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" must be a whole number, but is %.17g", where, field->key, value);
    }
    if (status == OX_OK) {
        set_number(field, out, value);
    }
    return status;
}

static enum ox_status check_keys(const char *where, json_t *object, const struct field *fields,
                                 const char *const *others) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        bool known = find(fields, key) != NULL;
        for (const char *const *other = others; *other != NULL && !known; other++) {
            known = strcmp(*other, key) == 0;
        }
        if (!known) {
            return ox_fail(OX_E_CONFIG, "%s: the key \"%s\" is not known; remove it, or see docs/planning.md for those "
                           "that are", where, key);
        }
    }
    return OX_OK;
}

static enum ox_status read_object(const char *where, json_t *object, const struct field *fields,
                                  const char *const *others, void *out) {
    char text[OX_JSON_EXCERPT_BYTES];
    if (!json_is_object(object)) {
        return object == NULL ? ox_fail(OX_E_CONFIG, "%s: the key is missing", where)
                              : ox_fail(OX_E_CONFIG, "%s: must be an object, but is %s", where,
                                        ox_json_excerpt(object, text));
    }
    enum ox_status status = check_keys(where, object, fields, others);
    for (const struct field *field = fields; field->key != NULL && status == OX_OK; field++) {
        status = read_field(where, object, field, out);
    }
    return status;
}

/* Reads the object under a key of the profile. */
static enum ox_status read_part(const char *where, const char *name, json_t *object, const struct field *fields,
                                void *out) {
    char place[WHERE_BYTES];
    snprintf(place, sizeof place, "%s: %s", where, name);
    return read_object(place, object, fields, fields == host_fields ? host_others : no_others, out);
}

/* A list of the profile whose objects follow a table of keys. */
struct list {
    const char *key;
    const struct field *fields;
    uint32_t most;
    size_t item_bytes;
};
static const struct list drive_list = {"drives", drive_fields, OX_MACHINE_DRIVES_MAX, sizeof(struct ox_machine_drive)};
static const struct list comm_list = {"comm", comm_fields, OX_MACHINE_COMM_MAX, sizeof(struct ox_machine_comm)};

static enum ox_status read_list(const char *where, const json_t *top, const struct list *list, void *items,
                                uint32_t *count) {
    char text[OX_JSON_EXCERPT_BYTES];
    const json_t *const given = json_object_get(top, list->key);
    if (!json_is_array(given)) {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" must be a list of objects, which may be empty, but is %s", where,
                       list->key, given == NULL ? "missing" : ox_json_excerpt(given, text));
    }
    if (json_array_size(given) > list->most) {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" has %zu objects; at most %" PRIu32 " are taken", where, list->key,
                       json_array_size(given), list->most);
    }
    enum ox_status status = OX_OK;
    for (*count = 0; *count < json_array_size(given) && status == OX_OK; (*count)++) {
        char name[32];
        snprintf(name, sizeof name, "%s[%" PRIu32 "]", list->key, *count);
        status = read_part(where, name, json_array_get(given, *count), list->fields,
                           (unsigned char *)items + *count * list->item_bytes);
    }
    return status;
}

static bool has_source_place(const char *key) {
    for (unsigned i = 0; i < sizeof objects / sizeof *objects; i++) {
        const size_t length = strlen(objects[i].prefix);
        if (strncmp(key, objects[i].prefix, length) == 0 && find(objects[i].fields, key + length) != NULL) {
            return true;
        }
    }
    return false;
}

/* Sources are for people, so only this is checked: each is a text and belongs to a value. */
static enum ox_status check_sources(const char *where, json_t *sources) {
    const char *key;
    json_t *value;
    if (sources != NULL && !json_is_object(sources)) {
        return ox_fail(OX_E_CONFIG, "%s: \"sources\" must be an object of texts, such as \"gpu.memory_bytes\"", where);
    }
    json_object_foreach(sources, key, value) {
        if (!has_source_place(key)) {
            return ox_fail(OX_E_CONFIG, "%s: sources: \"%s\" is no value of a profile; write it as in "
                           "\"gpu.memory_bytes\"", where, key);
        }
        if (!json_is_string(value) || json_string_length(value) == 0) {
            return ox_fail(OX_E_CONFIG, "%s: sources: \"%s\" must be a text that is not empty", where, key);
        }
    }
    return OX_OK;
}

static enum ox_status check_formats(const char *where, const struct ox_machine_adam *adam) {
    for (unsigned i = 0; i < OX_MOMENTS_COUNT; i++) {
        if (adam->seconds[i] > 0.0) {
            return OX_OK;
        }
    }
    return ox_fail(OX_E_CONFIG, "%s: host.adam: not one format has a time; give \"f32_seconds_per_param\"", where);
}

static enum ox_status check_order(const char *where, const struct ox_machine *machine) {
    if (machine->gpu.machines > 1 && machine->gpu.net_rate <= 0) {
        return ox_fail(OX_E_CONFIG, "%s: gpu: \"machines\" is %" PRIu32 ", so \"net_bytes_per_second\" between them "
                       "is needed", where, machine->gpu.machines);
    }
    for (uint32_t i = 1; i < machine->comm_count; i++) {
        if (machine->comm[i].ranks <= machine->comm[i - 1].ranks) {
            return ox_fail(OX_E_CONFIG, "%s: comm[%" PRIu32 "]: \"ranks\" must grow from object to object, but is %"
                           PRIu32 " after %" PRIu32, where, i, machine->comm[i].ranks, machine->comm[i - 1].ranks);
        }
    }
    return OX_OK;
}

static enum ox_status read_machine(const char *where, json_t *top, struct ox_machine *out) {
    uint64_t version = 0;
    memset(out, 0, sizeof *out);
    enum ox_status status = ox_json_get_u64(where, top, "offload_profile", true, &version);
    if (status == OX_OK && version != VERSION) {
        return ox_fail(OX_E_CONFIG, "%s: is a profile of format %" PRIu64 ", and this program reads format %d; make "
                       "it again with `offload bench all --output`", where, version, VERSION);
    }
    OX_THEN(status, read_object(where, top, top_fields, top_others, out));
    json_t *const gpu = json_object_get(top, "gpu"), *const host = json_object_get(top, "host");
    out->has_gpu = gpu != NULL && !json_is_null(gpu);
    if (status == OX_OK && out->has_gpu) {
        status = read_part(where, "gpu", gpu, gpu_fields, &out->gpu);
    }
    OX_THEN(status, read_part(where, "host", host, host_fields, &out->host));
    OX_THEN(status, read_part(where, "host.adam", json_object_get(host, "adam"), adam_fields, &out->host.adam));
    OX_THEN(status, check_formats(where, &out->host.adam));
    OX_THEN(status, read_list(where, top, &drive_list, out->drives, &out->drive_count));
    if (status == OX_OK && json_object_get(top, comm_list.key) != NULL) {
        status = read_list(where, top, &comm_list, out->comm, &out->comm_count);
    }
    OX_THEN(status, check_order(where, out));
    OX_THEN(status, check_sources(where, json_object_get(top, "sources")));
    return status;
}

enum ox_status ox_machine_parse(const char *where, const char *text, size_t bytes, struct ox_machine *out) {
    json_t *top = NULL;
    enum ox_status status = ox_json_parse(where, text, bytes, &top);
    if (status == OX_OK) {
        status = json_is_object(top)
                     ? read_machine(where, top, out)
                     : ox_fail(OX_E_CONFIG, "%s: is no profile of a machine, which is an object", where);
        json_decref(top);
    }
    return status;
}

enum ox_status ox_machine_load(const char *path, struct ox_machine *out) {
    char *text = NULL;
    size_t bytes = 0;
    enum ox_status status = ox_file_read(path, OX_MACHINE_FILE_BYTES_MAX, &text, &bytes);
    if (status == OX_OK) {
        status = ox_machine_parse(path, text, bytes, out);
        free(text);
    }
    return status;
}

/* ---- checking and writing ------------------------------------------------------------------------------- */

static enum ox_status check_object(const char *where, const char *name, const struct field *fields,
                                   const void *object) {
    char place[WHERE_BYTES];
    snprintf(place, sizeof place, "%s%s%s", where, name[0] != '\0' ? ": " : "", name);
    enum ox_status status = OX_OK;
    for (const struct field *field = fields; field->key != NULL && status == OX_OK; field++) {
        if (field->kind == TEXT) {
            status = check_text(place, field, (const char *)object + field->offset);
        } else if (!field->optional || number_of(field, object) != 0.0) {
            status = check_number(place, field, number_of(field, object));
        }
    }
    return status;
}

static enum ox_status check_list(const char *where, const struct list *list, const void *items, uint32_t count) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s[%" PRIu32 "]", list->key, i);
        status = check_object(where, name, list->fields, (const unsigned char *)items + i * list->item_bytes);
    }
    return status;
}

enum ox_status ox_machine_check(const char *where, const struct ox_machine *machine) {
    OX_ASSERT(machine->drive_count <= OX_MACHINE_DRIVES_MAX);
    enum ox_status status = check_object(where, "", top_fields, machine);
    if (status == OX_OK && machine->has_gpu) {
        status = check_object(where, "gpu", gpu_fields, &machine->gpu);
    }
    OX_THEN(status, check_object(where, "host", host_fields, &machine->host));
    OX_THEN(status, check_object(where, "host.adam", adam_fields, &machine->host.adam));
    OX_THEN(status, check_formats(where, &machine->host.adam));
    OX_THEN(status, check_list(where, &drive_list, machine->drives, machine->drive_count));
    OX_THEN(status, check_list(where, &comm_list, machine->comm, machine->comm_count));
    OX_THEN(status, check_order(where, machine));
    return status;
}

/* Adds all fields, except optional ones that are 0. */
static int add_fields(json_t *to, const struct field *fields, const void *object) {
    int failed = 0;
    for (const struct field *field = fields; field->key != NULL; field++) {
        if (field->kind == TEXT) {
            failed |= json_object_set_new(to, field->key, json_string((const char *)object + field->offset));
            continue;
        }
        const double value = number_of(field, object);
        if (value != 0.0 || !field->optional) {
            const bool whole = field->kind == BYTES || field->kind == COUNT;
            failed |= json_object_set_new(to, field->key, whole ? json_integer((json_int_t)value) : json_real(value));
        }
    }
    return failed;
}

static int add_object(json_t *to, const char *key, const struct field *fields, const void *object) {
    json_t *const made = json_object();
    const int failed = add_fields(made, fields, object);
    return (key == NULL ? json_array_append_new(to, made) : json_object_set_new(to, key, made)) | failed;
}

static int add_list(json_t *to, const struct list *list, const void *items, uint32_t count) {
    json_t *const made = json_array();
    int failed = 0;
    for (uint32_t i = 0; i < count; i++) {
        failed |= add_object(made, NULL, list->fields, (const unsigned char *)items + i * list->item_bytes);
    }
    return json_object_set_new(to, list->key, made) | failed;
}

struct json_t *ox_machine_json(const struct ox_machine *machine, struct json_t *measured) {
    json_t *const top = json_object();
    int failed = json_object_set_new(top, "offload_profile", json_integer(VERSION));
    failed |= add_fields(top, top_fields, machine);
    failed |= machine->has_gpu ? add_object(top, "gpu", gpu_fields, &machine->gpu)
                               : json_object_set_new(top, "gpu", json_null());
    failed |= add_object(top, "host", host_fields, &machine->host);
    failed |= add_object(json_object_get(top, "host"), "adam", adam_fields, &machine->host.adam);
    failed |= add_list(top, &drive_list, machine->drives, machine->drive_count);
    if (machine->comm_count > 0) {
        failed |= add_list(top, &comm_list, machine->comm, machine->comm_count);
    }
    if (measured != NULL) {
        failed |= json_object_set_new(top, "measured", measured);
    }
    if (failed) {
        json_decref(top);
        return NULL;
    }
    return top;
}

enum ox_status ox_machine_save(const char *path, const struct ox_machine *machine, struct json_t *measured) {
    const enum ox_status checked = ox_machine_check(path, machine);
    if (checked != OX_OK) {
        json_decref(measured);
        return checked;
    }
    json_t *const top = ox_machine_json(machine, measured);
    char *const text = top == NULL ? NULL : json_dumps(top, JSON_INDENT(2));
    json_decref(top);
    if (text == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: the profile could not be put together: no memory, or a name in it is not UTF-8",
                       path);
    }
    const enum ox_status status = ox_file_replace(path, text, strlen(text));
    free(text);
    return status;
}

/* ---- small questions -------------------------------------------------------------------------------------- */

bool ox_machine_drive_speeds(const struct ox_machine *machine, uint64_t *speeds) {
    bool differ = false;
    for (uint32_t i = 0; i < machine->drive_count; i++) {
        speeds[i] = (uint64_t)machine->drives[i].mix_rate;
        differ = differ || speeds[i] != speeds[0];
    }
    return differ;
}

struct ox_machine_drive ox_machine_drives(const struct ox_machine *machine) {
    struct ox_machine_drive all = {.read_rate = machine->drive_count > 0 ? INFINITY : 0.0};
    bool sized = true, enduring = true, reading = true, writing = true;
    all.write_rate = all.read_rate;
    for (uint32_t i = 0; i < machine->drive_count; i++) {
        all.mix_rate += machine->drives[i].mix_rate;
    }
    for (uint32_t i = 0; i < machine->drive_count; i++) {
        const struct ox_machine_drive *const drive = &machine->drives[i];
        const double parts = all.mix_rate / drive->mix_rate; /* 1 / share of this drive */
        all.read_rate = fmin(all.read_rate, drive->read_rate * parts);
        all.write_rate = fmin(all.write_rate, drive->write_rate * parts);
        all.latency_seconds = fmax(all.latency_seconds, drive->latency_seconds);
        all.flush_seconds = fmax(all.flush_seconds, drive->flush_seconds);
        all.capacity_bytes += drive->capacity_bytes;
        all.endurance_bytes += drive->endurance_bytes;
        all.read_core_seconds += drive->read_core_seconds / parts;
        all.write_core_seconds += drive->write_core_seconds / parts;
        reading = reading && drive->read_core_seconds > 0;
        writing = writing && drive->write_core_seconds > 0;
        sized = sized && drive->capacity_bytes > 0;
        enduring = enduring && drive->endurance_bytes > 0;
    }
    all.read_core_seconds = reading ? all.read_core_seconds : 0;
    all.write_core_seconds = writing ? all.write_core_seconds : 0;
    all.capacity_bytes = sized ? all.capacity_bytes : 0;
    all.endurance_bytes = enduring ? all.endurance_bytes : 0;
    return all;
}

uint32_t ox_machine_ranks(const struct ox_machine *machine, uint32_t rank_count) {
    const uint64_t machines = machine->has_gpu && machine->gpu.machines > 1 ? machine->gpu.machines : 1;
    const uint64_t each = ox_div_up(rank_count, machines); /* of more ranks than GPUs, as if there were more */
    return (uint32_t)ox_min_u64(rank_count, machines > 1 ? ox_max_u64(machine->gpu.count, each) : rank_count);
}

void ox_machine_of_rank(const struct ox_machine *machine, uint32_t rank_count, struct ox_machine *out) {
    ox_machine_divide(machine, ox_machine_ranks(machine, rank_count), out);
}

void ox_machine_divide(const struct ox_machine *machine, double parts, struct ox_machine *out) {
    const double ranks = parts > 1 ? parts : 1;
    *out = *machine;
    struct ox_machine_host *const host = &out->host;
    host->cores = (uint32_t)ox_max_u64(host->cores / (uint32_t)ranks, 1);
    host->memory_bytes /= (uint64_t)ranks;
    host->dram_rate /= ranks;
    host->flops /= ranks;
    host->bf16_flops /= ranks;
    host->attention_flops /= ranks;
    for (uint32_t i = 0; i < out->drive_count; i++) {
        struct ox_machine_drive *const drive = &out->drives[i];
        drive->read_rate /= ranks;
        drive->write_rate /= ranks;
        drive->mix_rate /= ranks;
        drive->capacity_bytes /= (uint64_t)ranks;
        drive->endurance_bytes /= (uint64_t)ranks;
    }
    struct ox_machine_gpu *const gpu = &out->gpu;
    if (gpu->links_rate > 0) {
        gpu->links_rate /= ranks;
        gpu->h2d_rate = fmin(gpu->h2d_rate, gpu->links_rate);
        gpu->d2h_rate = fmin(gpu->d2h_rate, gpu->links_rate);
        gpu->duplex_rate = fmin(gpu->duplex_rate, gpu->links_rate);
    }
}

const struct ox_machine_comm *ox_machine_comm_of(const struct ox_machine *machine, uint32_t rank_count) {
    uint32_t idx = 0;
    while (idx + 1 < machine->comm_count && machine->comm[idx].ranks < rank_count) {
        idx++;
    }
    return machine->comm_count > 0 ? &machine->comm[idx] : NULL;
}

/* ---- nominal rates -------------------------------------------------------------------------------- */

/* A consumer drive on PCIe 4. */
static const struct ox_machine_drive nominal_drive = {
    .name = "nominal", .read_rate = 5e9, .write_rate = 3e9, .mix_rate = 4e9, .latency_seconds = 1e-4,
    .flush_seconds = 5e-3};

/* Nominal rates by generation. The FLOP rates are of one multiprocessor at the usual clock, times the share that
 * libraries reach: what makers publish times 0.75 to 0.85, and 0.97 for 8.9, where runs were published
 * (docs/profiles/rtx4090-1-drive.json); memory is that of the generation's fastest usual card, the link is PCIe with 16
 * lanes. A GPU between two generations takes the earlier one. */
static const struct generation {
    uint32_t capability, processor_count; /* processor_count: used if the GPU does not report one */
    double bf16_flops, fp32_flops;        /* per multiprocessor */
    double memory_rate, link_rate;
} generations[] = {
    {0, 100, 2e12, 0.3e12, 1.5e12, 20e9},   {80, 108, 2e12, 0.13e12, 1.5e12, 25e9},
    {86, 82, 0.6e12, 0.3e12, 0.8e12, 25e9}, {89, 128, 1.25e12, 0.5e12, 0.85e12, 25e9},
    {90, 132, 4.5e12, 0.37e12, 3e12, 50e9}, {100, 148, 10e12, 0.4e12, 6.5e12, 50e9},
    {120, 170, 1.05e12, 0.5e12, 1.5e12, 50e9},
};

void ox_machine_nominal_gpu(struct ox_machine *machine, const struct ox_machine_gpu_facts *facts) {
    const struct generation *of = &generations[0];
    for (unsigned i = 1; i < sizeof generations / sizeof *generations; i++) {
        of = facts->capability >= generations[i].capability ? &generations[i] : of;
    }
    const double count = facts->processor_count > 0 ? facts->processor_count : of->processor_count;
    machine->has_gpu = true;
    machine->gpu = (struct ox_machine_gpu){
        .memory_bytes = facts->memory_bytes, .bf16_flops = count * of->bf16_flops, .fp32_flops = count * of->fp32_flops,
        .h2d_rate = of->link_rate, .d2h_rate = of->link_rate, .duplex_rate = 1.5 * of->link_rate,
        .memory_rate = of->memory_rate};
    snprintf(machine->gpu.name, sizeof machine->gpu.name, "%s", facts->name);
}

/* Nominal rates of cores with wide vectors that share two channels of memory. */
void ox_machine_nominal(uint32_t cores, struct ox_machine *out) {
    *out = (struct ox_machine){
        .name = "nominal", .source = "no profile: nominal rates for this number of cores",
        .host = {.memory_bytes = OX_GIB, .cores = cores, .dram_rate = cores < 4 ? cores * 12e9 : 48e9,
                 .core_flops = 60e9, .flops = cores * 60e9},
        .drives = {nominal_drive}, .drive_count = 1, .task_seconds = 2e-5};
    out->host.adam = (struct ox_machine_adam){.threads = cores, .seconds = {28 / out->host.dram_rate}};
}

void ox_machine_fit_drives(struct ox_machine *machine, uint32_t drive_count) {
    if (machine->drives[0].read_rate <= 0) {
        machine->drives[0] = nominal_drive;
    }
    const uint32_t known = machine->drive_count > 0 ? machine->drive_count : 1;
    for (uint32_t i = known; i < drive_count && i < OX_MACHINE_DRIVES_MAX; i++) {
        machine->drives[i] = machine->drives[i - 1];
    }
    machine->drive_count = (uint32_t)ox_min_u64(drive_count, OX_MACHINE_DRIVES_MAX);
}
