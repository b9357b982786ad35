/* trainer_state.json: the progress of the run, and the size and hash of every other file of the checkpoint. It is
 * written last, so a folder with a valid one is complete. */
#include "base/assert.h"
#include "base/bytes.h"
#include "base/hash/seal.h"
#include "base/json.h"
#include "engine/checkpoint/checkpoint_internal.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { HASH_BYTES = 1 << 20 };
static const uint64_t COUNT_MAX = UINT64_C(1) << 53; /* sums of counts cannot overflow */

static enum ox_status fail_memory(const char *path) {
    return ox_fail(OX_E_NOMEM, "%s: no memory to describe the checkpoint", path);
}

/* ---- hashing ----------------------------------------------------------------------------------- */

/* Hashes `bytes` bytes of an open file, and passes them to `read_back` unless that is NULL. */
static enum ox_status hash_open_file(int fd, const char *path, uint64_t bytes, const struct ox_readback *read_back,
                                     struct ox_hash128 *hash) {
    void *buffer = NULL;
    if (posix_memalign(&buffer, OX_IO_ALIGN_BYTES, HASH_BYTES) != 0) {
        return fail_memory(path);
    }
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    enum ox_status status = OX_OK;
    for (uint64_t offset = 0; status == OX_OK && offset < bytes; offset += HASH_BYTES) {
        const size_t part = (size_t)ox_min_u64(HASH_BYTES, bytes - offset);
        status = ox_file_read_direct(fd, path, buffer, part, offset);
        if (status == OX_OK) {
            XXH3_128bits_update(&state, buffer, part);
        }
        if (status == OX_OK && read_back != NULL) {
            read_back->bytes(read_back->context, buffer, part);
        }
    }
    const XXH128_hash_t result = XXH3_128bits_digest(&state);
    *hash = (struct ox_hash128){.low = result.low64, .high = result.high64};
    free(buffer);
    return status;
}

static enum ox_status hash_file(const char *folder, struct ox_listed_file *file) {
    char path[OX_PATH_BYTES];
    enum ox_status status = ox_path_join(folder, file->name, path);
    if (status != OX_OK) {
        return status;
    }
    int fd = -1;
    status = ox_file_open_input(path, &fd, &file->bytes);
    if (status != OX_OK) { /* a listed file that is missing is damage, not a wrong request */
        return status == OX_E_CONFIG ? ox_fail(OX_E_CORRUPT, "%s", ox_error_text()) : status;
    }
    status = hash_open_file(fd, path, file->bytes, NULL, &file->hash);
    close(fd);
    return status;
}

static bool is_same_hash(struct ox_hash128 a, struct ox_hash128 b) {
    return a.low == b.low && a.high == b.high;
}

/* Hashes a file that was just written, as it is on the drive. The content must be what `read_back` knows of it, or else
 * equal the copy in the page cache. */
static enum ox_status hash_from_drive(const char *folder, const struct ox_readback *read_back,
                                      struct ox_listed_file *file) {
    char path[OX_PATH_BYTES];
    int fd = -1;
    bool known = false;
    struct ox_listed_file in_memory = {.name = file->name};
    enum ox_status status = ox_path_join(folder, file->name, path);
    if (status == OX_OK && read_back != NULL) {
        status = read_back->begin(read_back->context, path, &known);
    }
    if (status == OX_OK && !known) {
        status = hash_file(folder, &in_memory);
    }
    OX_THEN(status, ox_file_open_direct(path, &fd, &file->bytes));
    if (status != OX_OK) {
        return status;
    }
    status = hash_open_file(fd, path, file->bytes, known ? read_back : NULL, &file->hash);
    close(fd);
    if (status == OX_OK && known) {
        return read_back->end(read_back->context, path);
    }
    return status != OX_OK || is_same_hash(in_memory.hash, file->hash)
               ? status
               : ox_fail(OX_E_CORRUPT, "%s: the drive returns other bytes than were written; replace it or use "
                          "another", path);
}

/* ---- JSON --------------------------------------------------------------------------------------- */

static const struct {
    const char *key;
    size_t offset, bytes;
} counts[] = {
    {"step", offsetof(struct ox_run_state, step), 8},
    {"optimizer_steps", offsetof(struct ox_run_state, optimizer_steps), 8},
    {"cursor", offsetof(struct ox_run_state, cursor), 8},
    {"tokens_seen", offsetof(struct ox_run_state, tokens_seen), 8},
    {"nonfinite_steps", offsetof(struct ox_run_state, nonfinite_steps), 4},
    {"nonfinite_in_row", offsetof(struct ox_run_state, nonfinite_in_row), 4},
};

/* Members that may use all 64 bits, which JSON numbers cannot represent; they are written as hexadecimal text. */
static const struct {
    const char *key;
    size_t offset;
    uint32_t words;
} codes[] = {
    {"run_id", offsetof(struct ox_run_state, run_id), 2},
    {"branch", offsetof(struct ox_run_state, branch), 1},
    {"seed", offsetof(struct ox_run_state, seed), 1},
    {"data_fingerprint", offsetof(struct ox_run_state, data_fingerprint), 1},
    {"numerics_hash", offsetof(struct ox_run_state, numerics_hash), 1},
};

enum { COUNT_COUNT = sizeof counts / sizeof *counts, CODE_COUNT = sizeof codes / sizeof *codes };

/* Reads a text that is one of the names that `name` gives, as its index; another one is OX_E_CORRUPT. */
static enum ox_status get_choice(const char *path, const json_t *object, const char *key,
                                 const char *(*name)(uint32_t), uint32_t count, uint16_t *value) {
    const char *text = NULL;
    const enum ox_status status = ox_json_get_string(path, object, key, true, &text);
    for (uint32_t i = 0; status == OX_OK && i < count; i++) {
        if (strcmp(name(i), text) == 0) {
            *value = (uint16_t)i;
            return OX_OK;
        }
    }
    return status != OX_OK ? status
                           : ox_fail(OX_E_CORRUPT, "%s: \"%s\" is \"%.40s\", which this program does not know", path,
                                     key, text);
}

static const char *kind_name(uint32_t value) {
    return ox_optim_kind_name((enum ox_optim_kind)value);
}

static const char *moments_name(uint32_t value) {
    return ox_moments_name((enum ox_moments)value);
}

/* Reads optimizer and moments. Version 2 had only one of each, with value 0, and did not write them. */
static enum ox_status get_format(const char *path, const json_t *object, uint64_t version,
                                 struct ox_run_state *state) {
    if (version < OX_RUN_STATE_NAMES_FORMAT) {
        return OX_OK;
    }
    const enum ox_status status =
        get_choice(path, object, "optimizer", kind_name, OX_OPTIM_KIND_COUNT, &state->optimizer);
    return status == OX_OK ? get_choice(path, object, "moments", moments_name, OX_MOMENTS_COUNT, &state->moments)
                           : status;
}

double ox_run_state_scale(const struct ox_run_state *state) {
    return state->scale_code == 0 ? 0 : ldexp(1, state->scale_code - 1);
}

/* The loss scale, by the keys of torch.amp.GradScaler.state_dict, and the steps that it has skipped. */
static bool put_scale(json_t *object, const struct ox_run_state *state) {
    int failed = 0;
    if (state->scale_code > 0) {
        failed |= json_object_set_new(object, "scaler", json_pack(
            "{s:f, s:f, s:f, s:I}", "scale", ox_run_state_scale(state), "growth_factor", 2.0, "backoff_factor", 0.5,
            "_growth_tracker", (json_int_t)state->growth_tracker));
    }
    if (state->overflow_steps > 0) {
        failed |= json_object_set_new(object, "overflow_steps", json_integer(state->overflow_steps));
    }
    return failed == 0;
}

static enum ox_status get_scale(const char *path, const json_t *object, struct ox_run_state *state) {
    const json_t *const scaler = json_object_get(object, "scaler");
    uint64_t skipped = 0, tracker = 0;
    double scale = 0;
    int power = 0;
    enum ox_status status = ox_json_get_u64(path, object, "overflow_steps", false, &skipped);
    if (scaler != NULL) {
        OX_THEN(status, ox_json_get_double(path, scaler, "scale", true, &scale));
        OX_THEN(status, ox_json_get_u64(path, scaler, "_growth_tracker", true, &tracker));
    }
    const bool good = scaler == NULL || (scale >= 1 && scale <= 0x1p127 && frexp(scale, &power) == 0.5);
    if (status == OX_OK && (!good || skipped > UINT32_MAX || tracker > UINT32_MAX)) {
        return ox_fail(OX_E_CORRUPT, "%s: \"scaler\" has no power of two from 1 on; use another checkpoint", path);
    }
    state->scale_code = (uint16_t)(scaler == NULL ? 0 : power); /* frexp's power is one more than log2 */
    state->growth_tracker = (uint32_t)tracker;
    state->overflow_steps = (uint32_t)skipped;
    return status;
}

static bool put_state(json_t *object, const struct ox_run_state *state) {
    int failed = json_object_set_new(object, "global_step", json_integer((json_int_t)state->step));
    failed |= json_object_set_new(object, "format_version", json_integer(state->version));
    failed |= json_object_set_new(object, "optimizer", json_string(kind_name(state->optimizer)));
    failed |= json_object_set_new(object, "moments", json_string(moments_name(state->moments)));
    for (uint32_t i = 0; i < COUNT_COUNT; i++) {
        uint64_t value = 0;
        memcpy(&value, (const char *)state + counts[i].offset, counts[i].bytes);
        OX_ASSERT(value <= INT64_MAX);
        failed |= json_object_set_new(object, counts[i].key, json_integer((json_int_t)value));
    }
    for (uint32_t i = 0; i < CODE_COUNT; i++) {
        uint64_t words[2];
        memcpy(words, (const char *)state + codes[i].offset, codes[i].words * sizeof *words);
        failed |= json_object_set_new(object, codes[i].key, ox_json_hex(words, codes[i].words));
    }
    failed |= !put_scale(object, state);
    /* null for infinity, which JSON cannot represent */
    failed |= json_object_set_new(object, "best_eval_loss", ox_json_number(state->best_eval_loss));
    return failed == 0;
}

/* Checks what is known of the counts, since files of earlier versions have no checksum. Every step is an update, or it
 * is skipped. */
static enum ox_status check_counts(const char *path, const json_t *object, const struct ox_run_state *state) {
    uint64_t global_step = state->step;
    const enum ox_status status = ox_json_get_u64(path, object, "global_step", false, &global_step);
    const uint64_t skipped = (uint64_t)state->nonfinite_steps + state->overflow_steps;
    const bool good = global_step == state->step && state->optimizer_steps <= state->step &&
                      skipped <= state->step - state->optimizer_steps &&
                      state->nonfinite_in_row <= state->nonfinite_steps;
    return status != OX_OK || good
               ? status : ox_fail(OX_E_CORRUPT, "%s: its counts of steps contradict each other; use another checkpoint",
                                  path);
}

static enum ox_status get_version(const char *path, const json_t *object, uint64_t *version) {
    const enum ox_status status = ox_json_get_u64(path, object, "format_version", true, version);
    if (status == OX_OK && (*version < OX_RUN_STATE_OLDEST || *version > OX_RUN_STATE_VERSION)) {
        return ox_fail(OX_E_CONFIG, "%s: has the format version %" PRIu64 ", but this program reads %d to %d; use the "
                       "program that saved it", path, *version, OX_RUN_STATE_OLDEST, OX_RUN_STATE_VERSION);
    }
    return status;
}

static enum ox_status get_state(const char *path, const json_t *object, uint64_t version, struct ox_run_state *state) {
    /* What is written next names its format, whatever it was read from. */
    const uint64_t named = ox_max_u64(version, OX_RUN_STATE_NAMES_FORMAT);
    *state = (struct ox_run_state){.version = (uint16_t)named, .best_eval_loss = (double)INFINITY};
    enum ox_status status = get_format(path, object, version, state);
    for (uint32_t i = 0; status == OX_OK && i < COUNT_COUNT; i++) {
        uint64_t value = 0;
        status = ox_json_get_u64(path, object, counts[i].key, true, &value);
        if (status == OX_OK && value > (counts[i].bytes < sizeof value ? (uint64_t)UINT32_MAX : COUNT_MAX)) {
            status = ox_fail(OX_E_CORRUPT, "%s: \"%s\" is %" PRIu64 ", which no run comes to; use another checkpoint",
                             path, counts[i].key, value);
        }
        memcpy((char *)state + counts[i].offset, &value, counts[i].bytes);
    }
    OX_THEN(status, get_scale(path, object, state));
    OX_THEN(status, check_counts(path, object, state));
    for (uint32_t i = 0; status == OX_OK && i < CODE_COUNT; i++) {
        uint64_t words[2] = {0, 0};
        status = ox_json_get_hex(path, object, codes[i].key, codes[i].words, words);
        memcpy((char *)state + codes[i].offset, words, codes[i].words * sizeof *words);
    }
    return status == OX_OK ? ox_json_get_double(path, object, "best_eval_loss", false, &state->best_eval_loss)
                           : status;
}

/* What is said of the model and of the newest evaluation, which need not be there. */
static bool put_notes(json_t *object, const struct ox_manifest *manifest) {
    int failed = 0;
    if (manifest->eval.step > 0) {
        failed |= json_object_set_new(object, "last_eval_step", json_integer((json_int_t)manifest->eval.step));
        failed |= json_object_set_new(object, "last_eval_loss", ox_json_number(manifest->eval.loss));
    }
    if (manifest->result[0] != '\0') {
        failed |= json_object_set_new(object, "result", json_string(manifest->result));
    }
    if (manifest->shared_layers > 1) {
        failed |= json_object_set_new(object, OX_SHARED_LAYERS_KEY, json_integer(manifest->shared_layers));
    }
    if (manifest->model_dtype != OX_DTYPE_F32) {
        failed |= json_object_set_new(object, "model_dtype", json_string(ox_dtype_name(manifest->model_dtype)));
    }
    return failed == 0;
}

/* OTHER if it is none that a checkpoint may have. */
static enum ox_dtype dtype_named(const char *name) {
    uint32_t dtype = 0;
    while (dtype < OX_DTYPE_OTHER && strcmp(name, ox_dtype_name((enum ox_dtype)dtype)) != 0) {
        dtype++;
    }
    return (enum ox_dtype)dtype;
}

static enum ox_status get_notes(const char *path, const json_t *object, struct ox_manifest *manifest) {
    const char *const dtype = json_string_value(json_object_get(object, "model_dtype"));
    const char *const result = json_string_value(json_object_get(object, "result"));
    manifest->eval = (struct ox_last_eval){.loss = (double)NAN};
    snprintf(manifest->result, sizeof manifest->result, "%s", result != NULL ? result : "");
    manifest->model_dtype = dtype == NULL ? OX_DTYPE_F32 : dtype_named(dtype);
    if (manifest->model_dtype == OX_DTYPE_OTHER) { /* only told */
        manifest->model_dtype = OX_DTYPE_F32;
    }
    uint64_t shared = 0;
    enum ox_status status = ox_json_get_u64(path, object, OX_SHARED_LAYERS_KEY, false, &shared);
    manifest->shared_layers = shared > 1 ? (uint32_t)ox_min_u64(shared, UINT32_MAX) : 0;
    OX_THEN(status, ox_json_get_u64(path, object, "last_eval_step", false, &manifest->eval.step));
    return status == OX_OK ? ox_json_get_double(path, object, "last_eval_loss", false, &manifest->eval.loss) : status;
}

static bool put_files(json_t *object, const struct ox_manifest *manifest) {
    json_t *const files = json_object();
    int failed = files == NULL;
    for (uint32_t i = 0; i < manifest->list.count; i++) {
        const struct ox_listed_file *const file = &manifest->list.files[i];
        const uint64_t words[] = {file->hash.high, file->hash.low};
        failed |= json_object_set_new(files, file->name, json_pack("{s:I, s:o}", "bytes", (json_int_t)file->bytes,
                                                                   "xxh3_128", ox_json_hex(words, 2)));
    }
    failed |= json_object_set_new(object, "files", files);
    return failed == 0;
}

static enum ox_status get_dtype(const char *path, const json_t *object, enum ox_dtype *dtype) {
    const char *text = NULL;
    OX_TRY(ox_json_get_string(path, object, "weights_dtype", true, &text));
    *dtype = dtype_named(text);
    return *dtype != OX_DTYPE_OTHER
               ? OX_OK
               : ox_fail(OX_E_CORRUPT, "%s: \"weights_dtype\" is not F32, F16 or BF16; use another checkpoint", path);
}

static int compare_names(const void *a, const void *b) {
    const struct ox_listed_file *const left = a, *const right = b;
    return strcmp(left->name, right->name);
}

/* ---- the whole ---------------------------------------------------------------------------------- */

enum ox_status ox_manifest_collect(const char *folder, struct ox_manifest *manifest) {
    DIR *const list = opendir(folder);
    if (list == NULL) {
        return ox_fail_errno(OX_E_IO, errno, "%s: cannot list the folder", folder);
    }
    enum ox_status status = OX_OK;
    for (const char *name = ""; status == OX_OK && name != NULL;) {
        status = ox_folder_next(list, folder, &name);
        if (status == OX_OK && name != NULL && name[0] != '.') {
            status = ox_listed_add(folder, name, &manifest->list);
        }
    }
    closedir(list);
    if (manifest->list.count > 0) {
        qsort(manifest->list.files, manifest->list.count, sizeof *manifest->list.files, compare_names);
    }
    for (uint32_t i = 0; status == OX_OK && i < manifest->list.count; i++) {
        status = hash_from_drive(folder, manifest->read_back, &manifest->list.files[i]);
    }
    return status;
}

enum ox_status ox_manifest_write(const char *folder, const struct ox_manifest *manifest) {
    char path[OX_PATH_BYTES];
    enum ox_status status = ox_path_join(folder, OX_LISTED_IN, path);
    if (status != OX_OK) {
        return status;
    }
    json_t *const object = json_object();
    const bool done = object != NULL && put_state(object, &manifest->state) &&
                      json_object_set_new(object, "weights_dtype",
                                          json_string(ox_dtype_name(manifest->weights_dtype))) == 0 &&
                      put_notes(object, manifest) && put_files(object, manifest) && ox_seal_add(object);
    char *const text = done ? json_dumps(object, JSON_INDENT(2)) : NULL;
    json_decref(object);
    if (text == NULL) {
        return fail_memory(path);
    }
    const size_t bytes = strlen(text);
    text[bytes] = '\n'; /* replaces the NUL */
    status = ox_file_replace(path, text, bytes + 1);
    free(text);
    return status;
}

enum ox_status ox_manifest_read(const char *folder, struct ox_manifest *manifest) {
    char path[OX_PATH_BYTES];
    json_t *object = NULL;
    memset(manifest, 0, sizeof *manifest);
    enum ox_status status = ox_path_join(folder, OX_LISTED_IN, path);
    if (status == OX_OK && ox_path_is_folder(folder) && !ox_path_exists(path)) {
        status = ox_fail(OX_E_CONFIG,
                         "%s: there is no such file, so the folder is not a checkpoint; give a checkpoint-N "
                         "folder of a run",
                         path);
    }
    OX_THEN(status, ox_json_load(path, OX_LISTED_IN_BYTES_MAX, &object));
    if (status == OX_OK && json_object_get(object, "run_id") == NULL) {
        status = ox_fail(OX_E_CONFIG, "%s: has no \"run_id\", so another program wrote it; give a checkpoint of this "
                         "program", path);
        json_decref(object);
        return status;
    }
    /* Another version may seal in another way. Earlier ones did not, and a run that is older keeps its version. */
    uint64_t version = 0;
    OX_THEN(status, get_version(path, object, &version));
    OX_THEN(status, ox_seal_check(path, object, false));
    if (status == OX_OK) {
        status = get_state(path, object, version, &manifest->state);
        OX_THEN(status, get_dtype(path, object, &manifest->weights_dtype));
        OX_THEN(status, get_notes(path, object, manifest));
        OX_THEN(status, ox_listed_parse(path, object, &manifest->list));
        if (status == OX_E_CONFIG && manifest->state.version != 0) {
            status = ox_fail_in(OX_E_CORRUPT, "the checkpoint is damaged");
        }
    }
    json_decref(object);
    if (status != OX_OK) {
        ox_manifest_close(manifest);
    }
    return status;
}

enum ox_status ox_manifest_check_sizes(const char *folder, const struct ox_manifest *manifest) {
    for (uint32_t i = 0; i < manifest->list.count; i++) {
        const struct ox_listed_file *const file = &manifest->list.files[i];
        char path[OX_PATH_BYTES];
        struct stat info;
        const enum ox_status status = ox_path_join(folder, file->name, path);
        if (status != OX_OK) {
            return status;
        }
        if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) {
            return ox_fail(OX_E_CORRUPT, "%s: is missing", path);
        }
        if ((uint64_t)info.st_size != file->bytes) {
            return ox_fail(OX_E_CORRUPT, "%s: has %" PRIu64 " bytes instead of %" PRIu64, path,
                           (uint64_t)info.st_size, file->bytes);
        }
    }
    return OX_OK;
}

void ox_manifest_close(struct ox_manifest *manifest) {
    ox_listed_close(&manifest->list);
    memset(manifest, 0, sizeof *manifest);
}

/* ---- what the header promises of it ---------------------------------------------------------------- */

enum ox_status ox_checkpoint_read_state(const char *path, struct ox_run_state *state) {
    struct ox_manifest manifest;
    const enum ox_status status = ox_manifest_read(path, &manifest);
    if (status == OX_OK) {
        *state = manifest.state;
        ox_manifest_close(&manifest);
    }
    return status;
}

/* The place of a file in the list; its length if it is not there. */
static uint32_t find_file(const struct ox_manifest *manifest, const char *name) {
    uint32_t at = 0;
    while (at < manifest->list.count && strcmp(manifest->list.files[at].name, name) != 0) {
        at++;
    }
    return at;
}

bool ox_manifest_has_state(const struct ox_manifest *manifest) {
    return find_file(manifest, OX_OPTIM_FILE) < manifest->list.count;
}

static enum ox_status drop_file(const char *path, struct ox_manifest *manifest, const char *name) {
    const uint32_t at = find_file(manifest, name);
    char file[OX_PATH_BYTES];
    enum ox_status status = OX_OK;
    if (at < manifest->list.count) { /* first, so that what is listed is always there */
        struct ox_listed_file *const files = manifest->list.files;
        free(files[at].name);
        memmove(files + at, files + at + 1, (manifest->list.count - at - 1) * sizeof *files);
        manifest->list.count--;
        status = ox_manifest_write(path, manifest);
    }
    OX_THEN(status, ox_path_join(path, name, file));
    if (status == OX_OK && unlink(file) != 0 && errno != ENOENT) { /* also what an interrupted call has left */
        status = ox_fail_errno(OX_E_IO, errno, "%s: cannot be deleted", file);
    }
    return status;
}

enum ox_status ox_checkpoint_drop_state(const char *path) {
    struct ox_manifest manifest;
    enum ox_status status = ox_manifest_read(path, &manifest);
    OX_THEN(status, drop_file(path, &manifest, OX_RESIDUALS_FILE)); /* of no use without the other */
    OX_THEN(status, drop_file(path, &manifest, OX_OPTIM_FILE));
    ox_manifest_close(&manifest);
    return status;
}

enum ox_status ox_checkpoint_record_eval(const char *path, double best_eval_loss, const struct ox_last_eval *eval) {
    struct ox_manifest manifest;
    enum ox_status status = ox_manifest_read(path, &manifest);
    if (status == OX_OK) {
        manifest.state.best_eval_loss = best_eval_loss;
        manifest.eval = *eval;
        status = ox_manifest_write(path, &manifest);
        ox_manifest_close(&manifest);
    }
    return status;
}

enum ox_status ox_checkpoint_record_result(const char *newest, const char *result) {
    const char *const slash = strrchr(result, '/');
    struct ox_manifest manifest;
    enum ox_status status = ox_manifest_read(newest, &manifest);
    if (status == OX_OK) {
        snprintf(manifest.result, sizeof manifest.result, "%s", slash != NULL ? slash + 1 : result);
        status = ox_manifest_write(newest, &manifest);
        ox_manifest_close(&manifest);
    }
    return status;
}

enum ox_status ox_checkpoint_verify_each(const char *path, ox_checkpoint_seen *seen, void *context) {
    struct ox_manifest manifest;
    const enum ox_status status = ox_manifest_read(path, &manifest);
    if (status != OX_OK) {
        return status;
    }
    struct ox_first_failure first = {0};
    for (uint32_t i = 0; i < manifest.list.count && (first.status == OX_OK || seen != NULL); i++) {
        const enum ox_status file_status = ox_listed_verify(path, &manifest.list.files[i]);
        ox_first_failure_note(&first, file_status);
        if (seen != NULL) {
            seen(context, manifest.list.files[i].name, manifest.list.files[i].bytes, file_status);
        }
    }
    ox_manifest_close(&manifest);
    return ox_first_failure_result(&first);
}

enum ox_status ox_checkpoint_verify(const char *path) {
    return ox_checkpoint_verify_each(path, NULL, NULL);
}
