/* `offload inspect`: describes a model folder, a safetensors file, a checkpoint or a store and verifies it. The report
 * is built as JSON; the text form is printed from that. */
#include "tools/command/cmd.h"
#include "tools/command/inspect_other.h"

#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/report/curves.h"
#include "engine/run/trainer.h"
#include "nvme/store.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_WIDTH_MAX = 64, QUEUE_DEPTH = 8 };

/* Damage is part of the report: it is listed under "damaged" and makes the exit status 1. */
struct inspection {
    json_t *report;
    json_t *damaged; /* strings; owned by `report` at the end */
    bool short_of_memory;
    uint64_t trained_count; /* elements of tensors of which a checkpoint has moments */
};

/* Takes over `value`; a NULL is noted as lack of memory. */
static void put(struct inspection *in, json_t *object, const char *key, json_t *value) {
    in->short_of_memory |= json_object_set_new(object, key, value) != 0;
}

static void append(struct inspection *in, json_t *list, json_t *value) {
    in->short_of_memory |= json_array_append_new(list, value) != 0;
}

static void put_text(struct inspection *in, json_t *object, const char *key, const char *text) {
    put(in, object, key, ox_json_text(text));
}

static void put_count(struct inspection *in, json_t *object, const char *key, uint64_t value) {
    put(in, object, key, json_integer((json_int_t)value));
}

/* Lists the last error text as damage. */
static void add_damage(struct inspection *in) {
    append(in, in->damaged, ox_json_text(ox_error_text()));
}

static json_t *put_list(struct inspection *in, const char *key) {
    json_t *const list = json_array();
    put(in, in->report, key, list);
    return list;
}

static void put_state(struct inspection *in, const struct ox_run_state *state) {
    put(in, in->report, "run_id", ox_json_hex(state->run_id, 2));
    put_text(in, in->report, "optimizer", ox_optim_kind_name((enum ox_optim_kind)state->optimizer));
    put_text(in, in->report, "moments", ox_moments_name((enum ox_moments)state->moments));
    put_count(in, in->report, "step", state->step);
    put_count(in, in->report, "optimizer_steps", state->optimizer_steps);
    put_count(in, in->report, "windows_drawn", state->cursor);
    put_count(in, in->report, "tokens_seen", state->tokens_seen);
    put_count(in, in->report, "nonfinite_steps", state->nonfinite_steps);
    if (state->scale_code > 0) {
        put_count(in, in->report, "overflow_steps", state->overflow_steps);
        put(in, in->report, "loss_scale", ox_json_number(ox_run_state_scale(state)));
    }
    put(in, in->report, "seed", ox_json_hex(&state->seed, 1));
}

/* ---- tensors ------------------------------------------------------------------------------------- */

static void add_tensors(struct inspection *in, const struct ox_st_file *file, const char *name) {
    json_t *const list = json_object_get(in->report, "tensors");
    for (uint32_t i = 0; i < ox_st_count(file); i++) {
        const struct ox_st_entry *const entry = ox_st_entry(file, i);
        json_t *const object = json_object(), *const shape = json_array();
        for (uint32_t k = 0; k < entry->rank; k++) {
            append(in, shape, json_integer((json_int_t)entry->shape[k]));
        }
        put_text(in, object, "name", entry->name);
        put_text(in, object, "dtype", entry->dtype_text);
        put(in, object, "shape", shape);
        put_count(in, object, "bytes", entry->bytes);
        put_text(in, object, "file", name);
        append(in, list, object);
        const char *const end = strrchr(entry->name, '.');
        in->trained_count += end != NULL && strcmp(end, ".exp_avg") == 0 ? entry->count : 0;
    }
}

static enum ox_status add_file(struct inspection *in, const char *path, const char *name) {
    struct ox_st_file *file = NULL;
    const enum ox_status status = ox_st_open(path, &file);
    if (status == OX_OK) {
        add_tensors(in, file, name);
        ox_st_close(&file);
    }
    return status;
}

static int select_safetensors(const struct dirent *entry) {
    const size_t bytes = strlen(entry->d_name);
    return bytes > 12 && strcmp(entry->d_name + bytes - 12, ".safetensors") == 0;
}

/* Lists the tensors of every safetensors file of a folder, in name order. */
static enum ox_status add_files(struct inspection *in, const char *folder) {
    struct dirent **names = NULL;
    const int count = scandir(folder, &names, select_safetensors, alphasort);
    if (count < 0) {
        return ox_fail_errno(OX_E_IO, errno, "%s: cannot list the folder", folder);
    }
    enum ox_status status = OX_OK;
    put_list(in, "tensors");
    for (int i = 0; i < count; i++) {
        char path[OX_PATH_BYTES];
        status = ox_path_join(folder, names[i]->d_name, path);
        OX_THEN(status, add_file(in, path, names[i]->d_name));
        if (status != OX_OK) {
            add_damage(in);
        }
        free(names[i]);
    }
    free(names);
    return OX_OK;
}

/* ---- model folders and checkpoints ---------------------------------------------------------------- */

static void put_model(struct inspection *in, const struct ox_model *model) {
    const struct ox_model_config *const config = &model->config;
    put_text(in, in->report, "family", config->family);
    put_count(in, in->report, "parameters", model->param_count);
    put_count(in, in->report, "units", model->unit_count);
    put_count(in, in->report, "layers", config->layers);
    put_count(in, in->report, "hidden", config->hidden);
    put_count(in, in->report, "heads", config->heads);
    put_count(in, in->report, "kv_heads", config->kv_heads);
    put_count(in, in->report, "vocabulary", config->vocab);
    put_count(in, in->report, "positions", config->contexts);
    put(in, in->report, "tied", json_boolean(config->tied));
}

/* Checks that config.json and the weights are one model. A folder without weights is only a description. */
static enum ox_status inspect_model(struct inspection *in, const char *path) {
    struct ox_hf_folder *folder = NULL;
    enum ox_status status = ox_hf_open(path, false, &folder);
    if (status != OX_OK) {
        return status;
    }
    put_model(in, ox_hf_model(folder));
    ox_hf_close(&folder);
    if (!ox_path_is_folder(path)) {
        return OX_OK;
    }
    char index[OX_PATH_BYTES];
    status = add_files(in, path);
    OX_THEN(status, ox_path_join(path, "model.safetensors.index.json", index));
    if (status == OX_OK && (json_array_size(json_object_get(in->report, "tensors")) > 0 || ox_path_exists(index))) {
        if (ox_hf_open(path, true, &folder) != OX_OK) {
            add_damage(in);
        }
        ox_hf_close(&folder);
    }
    return status;
}

static void add_verified_file(void *context, const char *name, uint64_t bytes, enum ox_status status) {
    struct inspection *const in = context;
    json_t *const object = json_object();
    put_text(in, object, "name", name);
    put_count(in, object, "bytes", bytes);
    put_text(in, object, "hash", status == OX_OK ? "verified" : "DAMAGED");
    append(in, json_object_get(in->report, "files"), object);
    if (status != OX_OK) {
        add_damage(in);
    }
}

/* Verifies a checkpoint. Failures of the model count only when no file is damaged, because damaged files cause them. */
static enum ox_status inspect_checkpoint(struct inspection *in, const char *path) {
    struct ox_run_state state;
    enum ox_status status = ox_checkpoint_read_state(path, &state);
    if (status != OX_OK) {
        return status;
    }
    put_state(in, &state);
    put_list(in, "files");
    status = ox_checkpoint_verify_each(path, add_verified_file, in);
    if (status != OX_OK && json_array_size(in->damaged) == 0) {
        return status;
    }
    const size_t damaged = json_array_size(in->damaged);
    status = inspect_model(in, path);
    if (in->trained_count > 0) {
        put_count(in, in->report, "trained_parameters", in->trained_count);
    }
    if (status != OX_OK && damaged == 0) {
        return status;
    }
    for (size_t i = json_array_size(in->damaged); damaged > 0 && i > damaged; i--) {
        in->short_of_memory |= json_array_remove(in->damaged, i - 1) != 0;
    }
    return OX_OK;
}

/* ---- stores --------------------------------------------------------------------------------------- */

/* Reads and verifies every extent of the state, and lists damaged ones. */
static enum ox_status verify_extents(struct inspection *in, struct ox_store *store, uint32_t extent_count) {
    const struct ox_extent_spec *const extents = ox_store_extents(store);
    struct ox_store_port *port = NULL;
    uint64_t bytes_max = OX_IO_ALIGN_BYTES, verified = 0;
    void *buffer = NULL;
    for (uint32_t i = 0; i < extent_count; i++) {
        bytes_max = ox_max_u64(bytes_max, extents[i].bytes);
    }
    if (posix_memalign(&buffer, OX_IO_ALIGN_BYTES, bytes_max) != 0) {
        return ox_fail(OX_E_NOMEM, "no memory for an extent of %" PRIu64 " bytes", bytes_max);
    }
    const enum ox_status status = ox_store_port_open(store, &port);
    for (uint32_t i = 0; status == OX_OK && i < extent_count; i++) {
        if (extents[i].bytes == 0) { /* of weights that are not trained, without a lo */
            verified++;
            continue;
        }
        const struct ox_store_op op = {.kind = OX_STORE_READ, .extent_idx = i, .buffer = buffer};
        if (ox_store_run(port, &op, 1) == OX_OK) {
            verified++;
        } else {
            add_damage(in);
        }
    }
    put_count(in, in->report, "extents_verified", verified);
    ox_store_port_close(&port);
    free(buffer);
    return status;
}

static enum ox_status put_drives(struct inspection *in, const struct ox_store *store, uint32_t drive_count) {
    json_t *const list = put_list(in, "drives");
    for (uint32_t i = 0; i < drive_count; i++) {
        struct ox_drive_info drive;
        const enum ox_status status = ox_store_drive_info(store, i, &drive);
        if (status != OX_OK) {
            return status;
        }
        json_t *const object = json_object();
        put_text(in, object, "name", drive.path);
        put_count(in, object, "bytes", drive.bytes);
        put(in, object, "direct_io", json_boolean(drive.direct));
        append(in, list, object);
    }
    return OX_OK;
}

static enum ox_status inspect_store(struct inspection *in, const char *const *folders, uint32_t drive_count) {
    char why[160];
    struct ox_store *store = NULL;
    const struct ox_store_config config = {.backend = ox_io_probe(why),
                                           .folders = folders,
                                           .drive_count = drive_count,
                                           .queue_depth = QUEUE_DEPTH};
    struct ox_store_offer offer;
    enum ox_status status = ox_store_look(&config, &offer);
    OX_THEN(status, ox_store_open(&config, &store));
    if (status != OX_OK) {
        return status == OX_E_CONFIG
                   ? ox_fail_in(status, "name a store on several drives as FOLDER,FOLDER,...")
                   : status;
    }
    struct ox_store_info info;
    struct ox_run_state state;
    ox_store_info(store, &info);
    if (info.meta_bytes >= sizeof state) {
        memcpy(&state, info.meta, sizeof state);
        put_state(in, &state);
    }
    put(in, in->report, "run_id", ox_json_hex(info.run_id, 2));
    put_count(in, in->report, "step", info.step);
    put(in, in->report, "committed", json_boolean(info.committed));
    if (offer.point_count > 1 && offer.points[1].committed) {
        put_count(in, in->report, "step_before", offer.points[1].step);
    }
    put_count(in, in->report, "generation", info.generation);
    put_count(in, in->report, "state_bytes", info.state_bytes);
    put_count(in, in->report, "file_bytes", info.file_bytes);
    put_count(in, in->report, "extents", info.extent_count);
    status = put_drives(in, store, drive_count);
    if (status == OX_OK && info.committed) {
        status = verify_extents(in, store, info.extent_count);
    }
    ox_store_close(&store);
    return status;
}

/* Splits a list of store folders at commas. One folder may hold the files of several drives; it is then listed once per
 * drive. */
static uint32_t split_folders(char *list, const char **folders) {
    char path[OX_PATH_BYTES], name[32];
    uint32_t count = 0;
    if (ox_path_is_folder(list)) {
        for (; count < OX_STORE_DRIVES_MAX; count++) {
            snprintf(name, sizeof name, "offload-store-%u.ox", count);
            if (ox_path_join(list, name, path) != OX_OK || !ox_path_is_file(path)) {
                break;
            }
            folders[count] = list;
        }
        folders[0] = list;
        return count > 0 ? count : 1;
    }
    for (char *part = list; part != NULL && count < OX_STORE_DRIVES_MAX; count++) {
        folders[count] = part;
        part = strchr(part, ',');
        if (part != NULL) {
            *part++ = '\0';
        }
    }
    return count;
}

/* Returns true when the path names a store: one of its files, its folder, or several folders with commas between.
 * `list` (OX_PATH_BYTES) becomes the folder or folders. */
static bool is_store(const char *path, char *list) {
    memcpy(list, path, strlen(path) + 1);
    const char *const slash = strrchr(path, '/'), *const file = slash != NULL ? slash + 1 : path;
    if (ox_path_is_folder(path)) {
        return ox_store_exists(path);
    }
    if (ox_path_is_file(path)) {
        memcpy(list + (file - path), file == path ? "." : "", file == path ? 2 : 1);
        return strncmp(file, "offload-store-", 14) == 0;
    }
    list[strcspn(list, ",")] = '\0';
    const bool found = strchr(path, ',') != NULL && ox_path_is_folder(list) && ox_store_exists(list);
    memcpy(list, path, strlen(path) + 1);
    return found;
}

/* ---- kinds of input -------------------------------------------------------------------------------- */

/* Tells run folders, checkpoints and plain model folders apart. */
static enum ox_status inspect_folder(struct inspection *in, const char *path) {
    char file[OX_PATH_BYTES], newest[OX_PATH_BYTES];
    enum ox_status status = ox_path_join(path, "config.json", file);
    if (status != OX_OK) {
        return status;
    }
    const enum ox_status newer = ox_path_is_file(file) ? OX_E_CONFIG : ox_checkpoint_find_newest(path, newest);
    const bool is_run = newer == OX_OK || newer == OX_E_CORRUPT;
    if (newer == OX_E_CONFIG && !ox_path_is_file(file) && ox_run_exists(path)) {
        const bool goes_on = ox_run_lock_of(path) == OX_RUN_HELD;
        return ox_fail(OX_E_CONFIG, "%s: is a run %s, so nothing in it can be verified; %s (signal USR1, or a file "
                       "%s/offload.save), or name a folder of the run's --nvme, whose store has what it committed",
                       path, goes_on ? "that goes on and has saved no checkpoint yet" : "without a complete checkpoint",
                       goes_on ? "wait, or have it save one now" : "let it save one", path);
    }
    if (is_run && !ox_path_is_folder(newest)) {
        return ox_fail(OX_E_CORRUPT, "%s: its newest checkpoint, %s, is gone; restore it, or name another one", path,
                       newest);
    }
    if (is_run) {
        put_text(in, in->report, "path", newest); /* a run folder: take its newest checkpoint */
        path = newest;
    }
    /* transformers also writes a trainer_state.json; such a folder is a plain model folder. */
    struct ox_run_state state;
    status = ox_checkpoint_read_state(path, &state);
    if (status == OX_OK) {
        put_text(in, in->report, "kind", "checkpoint");
        return inspect_checkpoint(in, path);
    }
    if (is_run && status == OX_E_CONFIG) {
        status = OX_E_CORRUPT; /* it has lost that file */
    }
    put_text(in, in->report, "kind", status == OX_E_CORRUPT ? "checkpoint" : "model folder");
    if (status == OX_E_CORRUPT) {
        add_damage(in);
    }
    status = inspect_model(in, path);
    return is_run && status == OX_E_CONFIG ? OX_OK : status; /* what is missing is listed as damage */
}

static enum ox_status inspect(struct inspection *in, const char *path) {
    char list[OX_PATH_BYTES];
    put_text(in, in->report, "kind", "");
    put_text(in, in->report, "path", path);
    if (is_store(path, list)) {
        const char *folders[OX_STORE_DRIVES_MAX];
        put_text(in, in->report, "kind", "store");
        const uint32_t drive_count = split_folders(list, folders);
        return inspect_store(in, folders, drive_count);
    }
    if (ox_path_is_folder(path)) {
        return inspect_folder(in, path);
    }
    const enum ox_status status = ox_inspect_refuse_other(path);
    const size_t bytes = strlen(path);
    if (status != OX_OK) {
        return status;
    }
    if (bytes > 5 && strcmp(path + bytes - 5, ".json") == 0) {
        put_text(in, in->report, "kind", "model description");
        return inspect_model(in, path);
    }
    const char *const slash = strrchr(path, '/');
    put_text(in, in->report, "kind", "safetensors file");
    put_list(in, "tensors");
    return add_file(in, path, slash != NULL ? slash + 1 : path);
}

/* ---- output ----------------------------------------------------------------------------------------- */

/* Replaces control characters in names, which would reach the terminal. */
static void print_plain(const char *text) {
    for (; *text != '\0'; text++) {
        putchar((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text);
    }
}

static void print_value(const char *key, const json_t *value) {
    char text[OX_SIZE_TEXT_BYTES];
    const size_t bytes = strlen(key);
    if (json_is_string(value)) {
        print_plain(json_string_value(value));
    } else if (json_is_boolean(value)) {
        fputs(json_is_true(value) ? "yes" : "no", stdout);
    } else if (json_is_integer(value) && bytes >= 5 && strcmp(key + bytes - 5, "bytes") == 0) {
        fputs(ox_size_text((uint64_t)json_integer_value(value), text), stdout);
    } else if (json_is_integer(value)) {
        printf("%" JSON_INTEGER_FORMAT, json_integer_value(value));
    } else if (json_is_array(value)) {
        putchar('[');
        for (size_t i = 0; i < json_array_size(value); i++) {
            printf("%s%" JSON_INTEGER_FORMAT, i > 0 ? ", " : "",
                   json_integer_value(json_array_get(value, i)));
        }
        putchar(']');
    }
}

/* Prints one line per object, with the names in a column. */
static void print_table(const char *title, const json_t *list) {
    size_t width = 0;
    if (json_array_size(list) == 0) {
        return;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *const name = json_string_value(json_object_get(json_array_get(list, i), "name"));
        width = name != NULL && strlen(name) > width ? strlen(name) : width;
    }
    width = width > NAME_WIDTH_MAX ? NAME_WIDTH_MAX : width;
    printf("%s\n", title);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *key;
        json_t *value;
        json_object_foreach(json_array_get(list, i), key, value) {
            const bool is_name = strcmp(key, "name") == 0;
            fputs(strcmp(key, "direct_io") == 0 ? "  direct I/O: " : "  ", stdout);
            print_value(key, value);
            const size_t used = is_name ? strlen(json_string_value(value)) : width;
            printf("%*s", (int)(used < width ? width - used : 0), "");
        }
        putchar('\n');
    }
}

static void print_text(const struct inspection *in) {
    const char *key;
    json_t *value;
    json_object_foreach(in->report, key, value) {
        if (!json_is_array(value)) {
            printf("%-16s  ", key);
            print_value(key, value);
            putchar('\n');
        }
    }
    json_object_foreach(in->report, key, value) {
        if (json_is_array(value) && value != in->damaged) {
            print_table(key, value);
        }
    }
    for (size_t i = 0; i < json_array_size(in->damaged); i++) {
        fputs("DAMAGED  ", stdout);
        print_plain(json_string_value(json_array_get(in->damaged, i)));
        putchar('\n');
    }
}

static enum ox_status print_report(const struct inspection *in, bool json) {
    if (!json) {
        print_text(in);
        return OX_OK;
    }
    return ox_print_json(stdout, json_incref(in->report), JSON_INDENT(2), "the report");
}

int ox_cmd_inspect(const struct ox_config *config) {
    struct inspection in = {.report = json_object(), .damaged = json_array()};
    in.short_of_memory = in.report == NULL || in.damaged == NULL;
    enum ox_status status = in.short_of_memory ? OX_OK : inspect(&in, config->files.model);
    const size_t damaged = json_array_size(in.damaged);
    put(&in, in.report, "damaged", in.damaged);
    if (status == OX_OK && in.short_of_memory) {
        status = ox_fail(OX_E_NOMEM, "no memory to describe %s", config->files.model);
    }
    OX_THEN(status, print_report(&in, strcmp(config->tool.format, "json") == 0));
    if (status == OX_OK && damaged > 0) {
        status = ox_fail(OX_E_CORRUPT, "%s: %zu damaged, as listed above", config->files.model, damaged);
    }
    json_decref(in.report);
    return ox_cmd_exit(status);
}
