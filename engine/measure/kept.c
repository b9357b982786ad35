/* The file that keeps measurements of this machine. */
#include "engine/measure/measure_internal.h"

#include "base/file.h"
#include "base/hash/hash.h"
#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, FILE_BYTES_MAX = 1 << 20, PARTS_MAX = 256 };

static const char busy_key[] = "others";

/* Takes over the parts of a file that is of this machine. */
static enum ox_status take_parts(struct ox_measure_kept *kept, const json_t *top) {
    uint64_t version = 0;
    const char *machine = "";
    enum ox_status status = ox_json_get_u64(kept->path, top, "offload_measurement", true, &version);
    OX_THEN(status, ox_json_get_string(kept->path, top, "machine", true, &machine));
    if (status == OX_OK && (version != VERSION || strcmp(machine, kept->machine) != 0)) {
        return ox_fail(OX_E_CONFIG, "%s: is of another machine or version (%.80s)", kept->path, machine);
    }
    json_t *const parts = json_object_get(top, "parts");
    if (status == OX_OK && !json_is_object(parts)) {
        return ox_fail(OX_E_CONFIG, "%s: has no \"parts\"", kept->path);
    }
    if (status == OX_OK) {
        json_decref(kept->parts);
        kept->parts = json_incref(parts);
    }
    return status;
}

static enum ox_status read_file(struct ox_measure_kept *kept) {
    json_t *top = NULL;
    enum ox_status status = ox_json_load(kept->path, FILE_BYTES_MAX, &top);
    if (status == OX_OK) {
        status = json_is_object(top) ? take_parts(kept, top) : ox_fail(OX_E_CONFIG, "%s: is no object", kept->path);
        json_decref(top);
    }
    return status;
}

void ox_measure_kept_open(const char *folder, const char *machine, struct ox_measure_kept *out, char *note,
                          size_t note_bytes) {
    char name[48];
    *out = (struct ox_measure_kept){.parts = json_object(), .put = json_object()};
    note[0] = '\0';
    ox_folder_sweep_shared(folder);
    snprintf(out->machine, sizeof out->machine, "%s", machine);
    snprintf(name, sizeof name, "machine-%016" PRIx64 ".json", ox_hash64(machine, strlen(machine), 0));
    if (folder[0] == '\0' || ox_path_join(folder, name, out->path) != OX_OK) {
        out->path[0] = '\0';
    } else if (ox_path_exists(out->path) && read_file(out) != OX_OK) {
        snprintf(note, note_bytes, "%s; it is written anew", ox_error_text());
    }
}

bool ox_measure_kept_get(const struct ox_measure_kept *kept, const char *key, struct ox_measure_value *values,
                         uint32_t count, char *day, double *others) {
    const json_t *const part = json_object_get(kept->parts, key);
    const char *const text = json_string_value(json_object_get(part, "day"));
    if (text == NULL || strlen(text) != strlen("2026-11-22")) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        values[i].value = json_number_value(json_object_get(part, values[i].name));
        if (!(values[i].value > 0)) {
            return false;
        }
    }
    snprintf(day, OX_MEASURE_DAY_BYTES, "%s", text);
    *others = json_number_value(json_object_get(part, busy_key));
    return true;
}

void ox_measure_kept_put(struct ox_measure_kept *kept, const char *key, const struct ox_measure_value *values,
                         uint32_t count, const char *day) {
    json_t *const part = json_object();
    if (json_object_size(kept->parts) >= PARTS_MAX) { /* shapes of years: begin again */
        json_object_clear(kept->parts);
    }
    for (uint32_t i = 0; i < count; i++) {
        json_object_set_new(part, values[i].name, json_real(values[i].value));
    }
    json_object_set_new(part, "day", json_string(day));
    json_object_set(kept->put, key, part);
    json_object_set_new(kept->parts, key, part);
}

void ox_measure_kept_mark(struct ox_measure_kept *kept, double others) {
    const char *key;
    json_t *part;
    json_object_foreach(kept->put, key, part) {
        json_object_set_new(part, busy_key, json_real(others));
    }
}

enum ox_status ox_measure_kept_save(struct ox_measure_kept *kept) {
    char folder[OX_PATH_BYTES];
    if (json_object_size(kept->put) == 0 || kept->path[0] == '\0') {
        return OX_OK;
    }
    json_t *const top = json_pack("{s:i, s:s, s:O}", "offload_measurement", VERSION, "machine", kept->machine, "parts",
                                  kept->parts);
    char *const text = top == NULL ? NULL : json_dumps(top, JSON_INDENT(2));
    json_decref(top);
    if (text == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to write it", kept->path);
    }
    snprintf(folder, sizeof folder, "%s", kept->path);
    *strrchr(folder, '/') = '\0';
    enum ox_status status = ox_folder_make(folder);
    OX_THEN(status, ox_file_replace(kept->path, text, strlen(text)));
    free(text);
    return status;
}

void ox_measure_kept_close(struct ox_measure_kept *kept) {
    json_decref(kept->parts);
    json_decref(kept->put);
    kept->parts = kept->put = NULL;
}
