/* The run's folder: its lock, its identity (run.json and a copy of it), its drives, and what a fresh start may delete.
 *
 * The lock is on the folder itself, so it leaves nothing behind and ends with the process. */
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"
#include "base/hash/seal.h"
#include "base/json.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { IDENTITY_BYTES_MAX = 1 << 18, IDENTITY_VERSION = 5, IDENTITY_SEALED = 5, IDENTITY_COPIES = 2,
       LOCK_TRIES = 5, LOCK_PAUSE_NS = 10 * 1000 * 1000 };

static const char *const identity_names[IDENTITY_COPIES] = {"run.json", "run-copy.json"};
/* What ox_run_clear leaves comes first. */
static const char *const run_files[] = {"run-copy.json", "run.json", "metrics.jsonl", "plan.txt",
                                        "config.resolved.yaml", "latest", "best", "trace.bin", "metrics.prom",
                                        OX_GEMMS_NAME, OX_REFERENCE_NAME};
enum { RUN_FILE_COUNT = sizeof run_files / sizeof *run_files };

/* ---- lock ------------------------------------------------------------------------------------------- */

/* That another process has the folder, whose descriptor this is. */
static enum ox_status fail_busy(const char *folder, int fd) {
    const long pid = ox_file_lock_holder(fd);
    char who[32] = "another process";
    if (pid > 0) {
        snprintf(who, sizeof who, "process %ld", pid);
    }
    return ox_fail(OX_E_BUSY, "%s: %s is training there; wait for its end, or give another --output", folder, who);
}

enum ox_status ox_run_check_unlocked(const struct ox_trainer *trainer) {
    const char *const folder = trainer->config.files.output_dir;
    const int fd = trainer->lock_fd < 0 ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    enum ox_status status = OX_OK;
    if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        status = fail_busy(folder, fd);
    }
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

enum ox_status ox_run_lock(struct ox_trainer *trainer) {
    const char *const folder = trainer->config.files.output_dir;
    trainer->lock_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (trainer->lock_fd < 0) {
        return ox_fail_errno(OX_E_IO, errno, "%s: cannot open the folder", folder);
    }
    for (int i = 0; i < LOCK_TRIES; i++) { /* `offload top` holds it for a moment to see whether it is free */
        if (flock(trainer->lock_fd, LOCK_EX | LOCK_NB) == 0) {
            return OX_OK;
        }
        if (errno != EWOULDBLOCK && errno != EINTR) {
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
        errno = EWOULDBLOCK;
    }
    if (errno == EWOULDBLOCK) {
        return fail_busy(folder, trainer->lock_fd);
    }
    ox_log(OX_LOG_WARN, "%s: its file system has no locks for folders; let no two processes train there at once",
           folder);
    return OX_OK;
}

/* Makes the folder anew, as that of the same run, if nothing is in its place. */
static bool make_again(struct ox_trainer *trainer) {
    const char *const folder = trainer->config.files.output_dir;
    enum ox_status status = ox_path_exists(folder) ? OX_E_CONFIG : ox_folder_make(folder);
    if (status == OX_OK) {
        close(trainer->lock_fd);
        status = ox_run_lock(trainer);
    }
    OX_THEN(status, ox_run_write_identity(folder, &trainer->identity));
    OX_THEN(status, ox_trainer_record_options(trainer));
    return status == OX_OK;
}

enum ox_status ox_run_check_folder(struct ox_trainer *trainer) {
    static const char deleted_mark[] = " (deleted)";
    char *const folder = trainer->config.files.output_dir;
    char link[64], now[OX_CONFIG_TEXT_BYTES], before[OX_CONFIG_TEXT_BYTES];
    struct stat locked, named;
    if (trainer->lock_fd < 0 || fstat(trainer->lock_fd, &locked) != 0) {
        return OX_OK;
    }
    const bool found = stat(folder, &named) == 0;
    if (found ? named.st_dev == locked.st_dev && named.st_ino == locked.st_ino : errno != ENOENT && errno != ENOTDIR) {
        return OX_OK;
    }
    snprintf(before, sizeof before, "%s", folder);
    snprintf(link, sizeof link, "/proc/self/fd/%d", trainer->lock_fd);
    const ssize_t bytes = readlink(link, now, sizeof now - 1);
    now[bytes > 0 ? bytes : 0] = '\0';
    const size_t mark = strlen(deleted_mark), length = strlen(now);
    const bool deleted = length < mark || strcmp(now + length - mark, deleted_mark) == 0;
    if (!deleted) {
        memcpy(folder, now, length + 1);
        return ox_fail(OX_E_IO, "%s: the run's folder was moved to %s while the run was going on; --output %s "
                       "--resume-from-checkpoint latest goes on", before, now, now);
    }
    if (make_again(trainer)) {
        return ox_fail(OX_E_IO, "%s: the run's folder was deleted while the run was going on, and is made again; "
                       "--resume-from-checkpoint latest goes on", before);
    }
    trainer->saving.failed = trainer->saving.taken = true;
    return ox_fail(OX_E_IO, "%s: the run's folder was deleted while the run was going on, and its place is taken: "
                   "nothing more is saved there", before);
}

void ox_run_clear_triggers(const char *output_dir) {
    static const char *const names[] = {"offload.stop", "offload.save"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        char path[OX_PATH_BYTES];
        if (ox_path_join(output_dir, names[i], path) == OX_OK && unlink(path) == 0) {
            ox_log(OX_LOG_WARN, "%s: existed before the run began and is removed", path);
        }
    }
}

/* ---- identity ---------------------------------------------------------------------------------------- */

static bool has_file(const char *output_dir, const char *name) {
    char path[OX_PATH_BYTES];
    return ox_path_join(output_dir, name, path) == OX_OK && ox_path_is_file(path);
}

bool ox_run_exists(const char *output_dir) {
    return has_file(output_dir, identity_names[0]) || has_file(output_dir, identity_names[1]);
}

enum ox_status ox_run_check_traces(const char *output_dir) {
    char path[OX_PATH_BYTES];
    return ox_run_exists(output_dir) || has_file(output_dir, "config.resolved.yaml") ||
                   has_file(output_dir, "metrics.jsonl") || ox_checkpoint_find_latest(output_dir, path) == OX_OK
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "%s: holds no run to go on with; leave out --resume-from-checkpoint to start "
                         "one, or name the run's folder with --output if it was moved", output_dir);
}

enum ox_status ox_run_draw(uint64_t *words, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (getrandom(&words[i], sizeof words[i], 0) != (ssize_t)sizeof words[i]) {
            return ox_fail(OX_E_IO, "the kernel gave no random numbers for the run's identity");
        }
        words[i] |= words[i] == 0;
    }
    return OX_OK;
}

static enum ox_status get_drives(const char *path, const json_t *json, struct ox_run_identity *identity) {
    const json_t *const drives = json_object_get(json, "nvme");
    if (!json_is_array(drives) || json_array_size(drives) > OX_CONFIG_NVME_MAX) {
        return ox_fail(OX_E_CORRUPT, "%s: nvme is not a list of at most %d folders", path, OX_CONFIG_NVME_MAX);
    }
    for (size_t i = 0; i < json_array_size(drives); i++) {
        const char *const text = json_string_value(json_array_get(drives, i));
        if (text == NULL || strlen(text) >= OX_CONFIG_TEXT_BYTES) {
            return ox_fail(OX_E_CORRUPT, "%s: nvme is not a list of folders", path);
        }
        snprintf(identity->nvme[identity->nvme_count++], OX_CONFIG_TEXT_BYTES, "%s", text);
    }
    return OX_OK;
}

/* Compares the object with its checksum. */
static enum ox_status check_seal(const char *path, json_t *json) {
    return ox_seal_check(path, json, json_integer_value(json_object_get(json, "version")) >= IDENTITY_SEALED);
}

static enum ox_status read_copy(const char *output_dir, const char *name, struct ox_run_identity *identity) {
    char path[OX_PATH_BYTES];
    json_t *json = NULL;
    const char *from = "";
    memset(identity, 0, sizeof *identity);
    enum ox_status status = ox_path_join(output_dir, name, path);
    OX_THEN(status, ox_json_load(path, IDENTITY_BYTES_MAX, &json));
    OX_THEN(status, check_seal(path, json));
    OX_THEN(status, ox_json_get_hex(path, json, "run_id", 2, identity->run_id));
    OX_THEN(status, ox_json_get_hex(path, json, "branch", 1, &identity->branch));
    OX_THEN(status, ox_json_get_hex(path, json, "parent", 2, identity->parent));
    OX_THEN(status, ox_json_get_string(path, json, "from", true, &from));
    if (status == OX_OK) {
        snprintf(identity->from, sizeof identity->from, "%s", from);
        status = get_drives(path, json, identity);
        identity->has_clock = json_is_integer(json_object_get(json, "clock_s"));
        identity->clock_s = json_integer_value(json_object_get(json, "clock_s"));
        identity->holds_whole = json_is_true(json_object_get(json, "holds_whole_documents"));
        const char *const arithmetic = json_string_value(json_object_get(json, "arithmetic"));
        snprintf(identity->arithmetic, sizeof identity->arithmetic, "%s", arithmetic != NULL ? arithmetic : "");
        const char *const formats = json_string_value(json_object_get(json, "unit_formats"));
        snprintf(identity->formats, sizeof identity->formats, "%s", formats != NULL ? formats : "");
        identity->starting = json_is_true(json_object_get(json, "starting"));
        identity->clearing = json_is_true(json_object_get(json, "clearing"));
        identity->finished = json_is_true(json_object_get(json, "finished"));
        identity->knows_origin = json_is_boolean(json_object_get(json, "from_scratch"));
        identity->from_scratch = json_is_true(json_object_get(json, "from_scratch"));
    }
    json_decref(json);
    return status;
}

/* Whether both copies are there and equal. Only the first may be newer: a process was killed between the two. */
static bool are_equal(const char *output_dir) {
    char *texts[IDENTITY_COPIES] = {NULL, NULL};
    size_t bytes[IDENTITY_COPIES] = {0, 0};
    bool done = true;
    for (int i = 0; i < IDENTITY_COPIES; i++) {
        char path[OX_PATH_BYTES];
        done = done && has_file(output_dir, identity_names[i]) &&
               ox_path_join(output_dir, identity_names[i], path) == OX_OK &&
               ox_file_read(path, IDENTITY_BYTES_MAX, &texts[i], &bytes[i]) == OX_OK;
    }
    done = done && bytes[0] == bytes[1] && memcmp(texts[0], texts[1], bytes[0]) == 0;
    free(texts[0]);
    free(texts[1]);
    return done;
}

enum ox_status ox_run_read_identity(const char *output_dir, struct ox_run_identity *identity) {
    char text[OX_ERROR_TEXT_BYTES];
    const enum ox_status status = read_copy(output_dir, identity_names[0], identity);
    memcpy(text, ox_error_text(), sizeof text);
    if (status == OX_OK || read_copy(output_dir, identity_names[1], identity) == OX_OK) {
        identity->is_from_copy = status != OX_OK;
        identity->is_outdated = !are_equal(output_dir);
        return OX_OK;
    }
    return ox_fail(status, "%s", text);
}

/* Takes run and branch from the newest checkpoint. */
static bool find_in_checkpoint(const struct ox_trainer *trainer, struct ox_run_identity *identity) {
    char path[OX_PATH_BYTES];
    struct ox_run_state state;
    const bool found = ox_checkpoint_find_latest(trainer->config.files.output_dir, path) == OX_OK &&
                       ox_checkpoint_read_state(path, &state) == OX_OK;
    if (found) {
        memcpy(identity->run_id, state.run_id, sizeof identity->run_id);
        identity->branch = state.branch;
    }
    return found;
}

/* Reads what the last commit of the store keeps; false if there is none. */
static bool read_commit(const struct ox_trainer *trainer, struct ox_commit_note *note) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    struct ox_store *store = NULL;
    struct ox_store_info info;
    const struct ox_store_config config = {.backend = engine->io, .folders = engine->nvme_folders,
                                           .drive_count = engine->nvme_count, .queue_depth = engine->queue_depth};
    if (!ox_run_has_store(trainer) || ox_store_open(&config, &store) != OX_OK) {
        return false;
    }
    ox_store_info(store, &info);
    ox_store_close(&store);
    const bool found = info.committed && info.meta_bytes == sizeof *note;
    memcpy(note, info.meta, found ? sizeof *note : 0);
    return found;
}

/* Takes run and branch from the last commit of the store, which is of the newest branch. Of another run than the
 * checkpoints are (`known`) it says nothing. With several processes each has a store of its own, all of one branch. */
static bool find_in_store(const struct ox_trainer *trainer, bool known, struct ox_run_identity *identity) {
    struct ox_commit_note note;
    if (!read_commit(trainer, &note) ||
        (known && memcmp(note.state.run_id, identity->run_id, sizeof identity->run_id) != 0)) {
        return false;
    }
    memcpy(identity->run_id, note.state.run_id, sizeof identity->run_id);
    identity->branch = note.state.branch;
    return true;
}

/* Reads the state of the checkpoint that the file `latest` names. */
static bool read_latest(const char *output_dir, struct ox_run_state *state) {
    char file[OX_PATH_BYTES], path[OX_PATH_BYTES], name[64] = "";
    uint64_t bytes = 0;
    if (ox_path_join(output_dir, "latest", file) != OX_OK || !ox_path_is_file(file) ||
        ox_file_read_start(file, name, sizeof name - 1, &bytes) != OX_OK) {
        return false;
    }
    name[strcspn(name, "\n")] = '\0';
    return ox_path_join(output_dir, name, path) == OX_OK && ox_path_is_folder(path) &&
           ox_checkpoint_read_state(path, state) == OX_OK;
}

/* Finds the newest state of the run's branch. */
static bool find_left_off(const struct ox_trainer *trainer, struct ox_run_identity *identity,
                          struct ox_run_state *out) {
    const char *const folder = trainer->config.files.output_dir;
    struct ox_commit_note note;
    if (!ox_run_exists(folder) || ox_run_read_identity(folder, identity) != OX_OK) {
        return false;
    }
    bool found = read_latest(folder, out) && out->branch == identity->branch;
    if (read_commit(trainer, &note) && note.state.branch == identity->branch &&
        (!found || note.state.step >= out->step)) {
        *out = note.state;
        found = true;
    }
    return found;
}

enum ox_status ox_run_look_ahead(struct ox_trainer *trainer) {
    const char *const resume = trainer->config.files.resume_from_checkpoint;
    struct ox_run_state found = {0};
    if (resume[0] == '\0') {
        return OX_OK;
    }
    struct ox_run_identity *const identity = calloc(1, sizeof *identity); /* too large for the stack */
    if (identity == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the identity of a run");
    }
    const bool seen = ox_trainer_leads(trainer) &&
                      (strcmp(resume, "latest") == 0 ? find_left_off(trainer, identity, &found)
                                                     : ox_checkpoint_read_state(resume, &found) == OX_OK);
    free(identity);
    trainer->left_off = seen ? found : (struct ox_run_state){0};
    return ox_team_share(trainer->team, &trainer->left_off, sizeof trainer->left_off, "where the run goes on");
}

/* What the first process finds of a run whose run.json is lost. */
struct found_run {
    uint64_t run_id[2], branch;
    bool in_checkpoint, in_store;
};

static void find_run(const struct ox_trainer *trainer, struct ox_run_identity *identity, struct found_run *out) {
    out->in_checkpoint = find_in_checkpoint(trainer, identity);
    out->in_store = find_in_store(trainer, out->in_checkpoint, identity);
    memcpy(out->run_id, identity->run_id, sizeof out->run_id);
    out->branch = identity->branch;
}

/* Takes run and branch from what else the first process has of the run; all processes take the same. */
static enum ox_status recover_identity(const struct ox_trainer *trainer, struct ox_run_identity *identity) {
    const char *const folder = trainer->config.files.output_dir;
    struct found_run found = {.in_store = false};
    memset(identity, 0, sizeof *identity);
    identity->is_outdated = identity->holds_whole = true;
    if (ox_trainer_leads(trainer)) {
        find_run(trainer, identity, &found);
    }
    OX_TRY(ox_team_share(trainer->team, &found, sizeof found, "which run this is"));
    if (found.in_checkpoint || found.in_store) {
        memcpy(identity->run_id, found.run_id, sizeof identity->run_id);
        identity->branch = found.branch;
        ox_log(OX_LOG_WARN, "%s: %s and its copy are damaged or missing; the run is known from its %s, and both are "
               "written again%s", folder, identity_names[0], found.in_store ? "store" : "newest checkpoint",
               trainer->config.memory.nvme_count == 0 ? "; if it had drives, stop it and give them with --nvme" : "");
        return OX_OK;
    }
    return ox_run_exists(folder)
               ? ox_fail(OX_E_CORRUPT, "%s: %s and its copy are damaged, and no checkpoint and no store says which run "
                         "this is; restore one of the two, give the run's drives with --nvme, or start over with "
                         "--overwrite-output-dir", folder, identity_names[0])
               : ox_fail(OX_E_CONFIG, "%s: holds no run to go on with: %s, checkpoints and store are missing; give the "
                         "run's drives with --nvme if it had some, or start over with --overwrite-output-dir", folder,
                         identity_names[0]);
}

enum ox_status ox_run_find_identity(const struct ox_trainer *trainer, struct ox_run_identity *identity) {
    const enum ox_status status = ox_run_read_identity(trainer->config.files.output_dir, identity);
    if (status == OX_OK && identity->is_from_copy) {
        ox_log(OX_LOG_WARN, "%s/%s: is damaged or missing; its copy %s is used, and it is written again",
               trainer->config.files.output_dir, identity_names[0], identity_names[1]);
    }
    bool lost = status == OX_E_CORRUPT || status == OX_E_CONFIG;
    if (status == OX_OK || lost) {
        const enum ox_status met = ox_trainer_any(trainer, lost, "whether run.json is lost", &lost);
        return met == OX_OK && lost ? recover_identity(trainer, identity) : met;
    }
    return status;
}

/* The object that run.json holds, with its checksum; NULL without memory, or if a path is not UTF-8. */
static json_t *identity_json(const struct ox_run_identity *identity) {
    json_t *const drives = json_array();
    int failed = drives == NULL;
    for (uint32_t i = 0; i < identity->nvme_count; i++) {
        failed |= json_array_append_new(drives, json_string(identity->nvme[i]));
    }
    json_t *const json = json_pack("{s:i, s:o, s:o, s:o, s:s, s:o, s:I, s:b, s:b}", "version", IDENTITY_VERSION,
                                   "run_id", ox_json_hex(identity->run_id, 2), "branch",
                                   ox_json_hex(&identity->branch, 1), "parent", ox_json_hex(identity->parent, 2),
                                   "from", identity->from, "nvme", drives, "clock_s",
                                   (json_int_t)identity->clock_s, "holds_whole_documents",
                                   (int)identity->holds_whole, "from_scratch", (int)identity->from_scratch);
    failed |= json != NULL && identity->arithmetic[0] != '\0' &&
              json_object_set_new(json, "arithmetic", json_string(identity->arithmetic)) != 0;
    failed |= json != NULL && identity->formats[0] != '\0' &&
              json_object_set_new(json, "unit_formats", json_string(identity->formats)) != 0;
    failed |= json != NULL && identity->clearing && json_object_set_new(json, "clearing", json_true()) != 0;
    failed |= json != NULL && identity->finished && json_object_set_new(json, "finished", json_true()) != 0;
    failed |= json == NULL || (identity->starting && json_object_set_new(json, "starting", json_true()) != 0) ||
              !ox_seal_add(json);
    if (failed != 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

enum ox_status ox_run_write_identity(const char *output_dir, const struct ox_run_identity *identity) {
    json_t *const json = identity_json(identity);
    char *const text = json != NULL ? json_dumps(json, JSON_INDENT(1)) : NULL;
    json_decref(json);
    if (text == NULL) {
        return ox_fail(OX_E_CONFIG, "%s: run.json cannot be written: is every path of --nvme and "
                       "--resume-from-checkpoint UTF-8?", output_dir);
    }
    enum ox_status status = OX_OK;
    for (int i = 0; i < IDENTITY_COPIES && status == OX_OK; i++) {
        char path[OX_PATH_BYTES];
        status = ox_path_join(output_dir, identity_names[i], path);
        OX_THEN(status, ox_file_replace(path, text, strlen(text)));
    }
    free(text);
    return status;
}

void ox_run_forget_identity(const char *output_dir) {
    for (int i = IDENTITY_COPIES - 1; i >= 0; i--) {
        char path[OX_PATH_BYTES];
        if (ox_path_join(output_dir, identity_names[i], path) == OX_OK && unlink(path) != 0 && errno != ENOENT) {
            ox_log(OX_LOG_WARN, "%s: cannot be removed: %s; without it the folder holds no run", path,
                   strerror(errno));
        }
    }
}

/* ---- as a model --------------------------------------------------------------------------------------- */

enum ox_status ox_run_find_model(const char *model, char *path) {
    char config[OX_PATH_BYTES], newest[OX_PATH_BYTES];
    enum ox_status status = ox_hf_check_path("--model", model);
    OX_THEN(status, ox_path_join(model, "config.json", config));
    if (status != OX_OK) {
        return status;
    }
    const bool is_model = ox_path_exists(config) || !ox_path_is_folder(model) || ox_hf_is_adapter(model);
    const enum ox_status newer = is_model ? OX_E_CONFIG : ox_checkpoint_find_newest(model, newest);
    if (newer != OX_OK && newer != OX_E_CONFIG) {
        return ox_fail_in(newer, "--model %s", model);
    }
    if (!is_model && newer != OX_OK && ox_run_exists(model)) {
        return ox_fail(OX_E_CONFIG, "--model %s: is a run without a complete checkpoint; let it save one, or name a "
                       "model folder", model);
    }
    const int bytes = snprintf(path, OX_CONFIG_TEXT_BYTES, "%s", newer == OX_OK ? newest : model);
    return bytes < OX_CONFIG_TEXT_BYTES ? OX_OK : ox_fail(OX_E_CONFIG, "--model %s: the path is too long", model);
}

enum ox_status ox_run_find_adapter(const char *adapter, char *path) {
    return ox_path_exists(adapter) ? ox_run_find_model(adapter, path)
                                   : ox_hf_fail_missing("--adapter", adapter,
                                                        "the folder of an adapter (adapter_config.json and "
                                                        "adapter_model.safetensors), or a run that has trained one");
}

enum ox_status ox_run_find_tokenizer(const char *model, const char *adapter, char *path) {
    static const char chat_template[] = "chat_template.jinja";
    char found[OX_CONFIG_TEXT_BYTES] = "";
    enum ox_status status = adapter[0] != '\0' ? ox_run_find_adapter(adapter, found) : OX_OK;
    const bool own = found[0] != '\0' && ox_folder_has(found, "tokenizer.json");
    OX_THEN(status, ox_hf_tokenizer_folder(own ? found : model, path));
    if (status == OX_OK && !own && found[0] != '\0' && ox_folder_has(found, chat_template)) {
        ox_log(OX_LOG_WARN, "--adapter %s: has a chat template, which is not used, because it has no tokenizer.json; "
               "conversations take that of %s; copy its tokenizer.json there, or give --chat-template %s/%s",
               found, path, found, chat_template);
    }
    return status;
}

/* ---- drives ------------------------------------------------------------------------------------------ */

static void real_drive(const char *folder, char *out) {
    char *const real = realpath(folder, NULL);
    snprintf(out, OX_CONFIG_TEXT_BYTES, "%s", real != NULL && strlen(real) < OX_CONFIG_TEXT_BYTES ? real : folder);
    free(real);
}

bool ox_run_record_drives(struct ox_run_identity *identity, const struct ox_trainer *trainer) {
    bool changed = identity->nvme_count != trainer->config.memory.nvme_count;
    identity->nvme_count = trainer->config.memory.nvme_count;
    for (uint32_t i = 0; i < identity->nvme_count; i++) {
        char folder[OX_CONFIG_TEXT_BYTES];
        real_drive(trainer->drives.folders[i], folder);
        changed = changed || strcmp(folder, identity->nvme[i]) != 0;
        memcpy(identity->nvme[i], folder, sizeof folder);
    }
    return changed;
}

bool ox_run_has_store(const struct ox_trainer *trainer) {
    for (uint32_t i = 0; i < trainer->config.memory.nvme_count; i++) {
        if (ox_store_exists(trainer->drives.folders[i])) {
            return true;
        }
    }
    return false;
}

/* A drive that the run has recorded, as this process has it: the first one records its own folder. */
static void recorded_drive(const struct ox_trainer *trainer, uint32_t idx, char *out) {
    static const char first[] = "/process-0-of-";
    snprintf(out, OX_CONFIG_TEXT_BYTES, "%s", trainer->identity.nvme[idx]);
    char *const name = strrchr(out, '/');
    if (trainer->team != NULL && name != NULL && strncmp(name, first, sizeof first - 1) == 0) {
        snprintf(name, (size_t)(out + OX_CONFIG_TEXT_BYTES - name), "/process-%u-of-%u", ox_team_idx(trainer->team),
                 ox_team_count(trainer->team));
    }
}

static bool is_recorded(const struct ox_trainer *trainer, const char *folder) {
    char real[OX_CONFIG_TEXT_BYTES], recorded[OX_CONFIG_TEXT_BYTES];
    real_drive(folder, real);
    for (uint32_t i = 0; i < trainer->identity.nvme_count; i++) {
        recorded_drive(trainer, i, recorded);
        if (strcmp(recorded, real) == 0) {
            return true;
        }
    }
    return false;
}

enum ox_status ox_run_refuse_store(const char *folder) {
    const enum ox_status status = ox_store_check_unused(&folder, 1);
    return status == OX_E_BUSY
               ? status
               : ox_fail(OX_E_CONFIG, "--nvme %s: holds the store of another run; use another folder, or "
                         "--overwrite-output-dir to delete it, or `offload store remove`", folder);
}

enum ox_status ox_run_check_stores(const struct ox_trainer *trainer) {
    for (uint32_t i = 0; i < trainer->config.memory.nvme_count; i++) {
        const char *const folder = trainer->drives.folders[i];
        const enum ox_store_owner owner = ox_store_owner(folder, trainer->identity.run_id);
        if (owner == OX_STORE_OWNER_OTHER && !ox_run_store_is_finished(folder)) {
            return ox_run_refuse_store(folder);
        }
        /* A damaged header names no owner; in a folder that the run has recorded, the store is the run's. */
        if (owner == OX_STORE_OWNER_UNKNOWN && !is_recorded(trainer, folder)) {
            return ox_fail(OX_E_CONFIG, "--nvme %s: holds a store whose header cannot be read, and the run has no "
                           "record of this folder; remove its offload-store files, or use another folder", folder);
        }
    }
    return OX_OK;
}

/* Names the newest checkpoint to go on from, "--resume-from-checkpoint RUN/checkpoint-5"; that of any N without one. */
static const char *newest_choice(const struct ox_trainer *trainer, char text[OX_PATH_BYTES]) {
    char path[OX_PATH_BYTES];
    const bool found = ox_checkpoint_find_latest(trainer->config.files.output_dir, path) == OX_OK;
    if (found) {
        snprintf(text, OX_PATH_BYTES, "--resume-from-checkpoint %.300s", path);
    } else {
        snprintf(text, OX_PATH_BYTES, "--resume-from-checkpoint %.290s/checkpoint-N", trainer->config.files.output_dir);
    }
    return text;
}

/* Refuses ranks that divide the stores of several processes in another way. */
static enum ox_status check_ranks(const struct ox_trainer *trainer) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const uint32_t processes = ox_team_count(trainer->team), ranks = ox_trainer_recorded_ranks(trainer, processes);
    const struct ox_mesh_sizes recorded = ox_trainer_recorded_mesh(trainer);
    const struct {
        const char *option, *before, *behind;
        uint32_t own, recorded;
    } sizes[] = {{"--pipeline-parallel-size", "by a pipeline of ", "", engine->pipe, recorded.pipe},
                 {"--tensor-parallel-size", "by ", " tensor ranks", engine->tensors, recorded.tensor},
                 {"--expert-parallel-size", "by ", " expert ranks", engine->experts * engine->tensors,
                  recorded.expert * recorded.tensor},
                 {"--ranks", "among ", " ranks", engine->ranks, ranks}};
    char choice[OX_PATH_BYTES];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && processes > 1; i++) {
        if (sizes[i].own != sizes[i].recorded) {
            return ox_fail(OX_E_CONFIG, "%s %u: the stores of the run's %u processes are divided %s%u%s; give %s %u, "
                           "or name a checkpoint to go on from: %s", sizes[i].option, sizes[i].own, processes,
                           sizes[i].before, sizes[i].recorded, sizes[i].behind, sizes[i].option, sizes[i].recorded,
                           newest_choice(trainer, choice));
        }
    }
    return OX_OK;
}

bool ox_run_is_released(const struct ox_trainer *trainer) {
    const struct ox_run_identity *const identity = &trainer->identity;
    bool released = identity->finished;
    for (uint32_t i = 0; i < identity->nvme_count && released; i++) { /* of the first process */
        released = ox_store_owner(identity->nvme[i], identity->run_id) != OX_STORE_OWNER_SAME;
    }
    return released;
}

enum ox_status ox_run_check_drives_given(const struct ox_trainer *trainer) {
    const struct ox_run_identity *const identity = &trainer->identity;
    const bool has_none =
        identity->starting && trainer->config.memory.nvme_count > 0; /* or what is left holds nothing */
    if (identity->nvme_count == 0 || has_none || ox_run_is_released(trainer)) {
        return OX_OK;
    }
    if (ox_run_has_store(trainer)) {
        return check_ranks(trainer);
    }
    const uint32_t processes = ox_run_other_processes(trainer);
    char choice[OX_PATH_BYTES];
    if (processes > 0) {
        return ox_fail(OX_E_CONFIG, "the run's last commit is in the stores of %u process%s, which only as many can "
                       "open; start %u, or name a checkpoint to go on from: %s", processes, ox_plural_es(processes),
                       processes, newest_choice(trainer, choice));
    }
    char list[600] = "", recorded[OX_CONFIG_TEXT_BYTES];
    size_t used = 0;
    for (uint32_t i = 0; i < identity->nvme_count && used < sizeof list; i++) {
        recorded_drive(trainer, i, recorded);
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", recorded);
    }
    return ox_fail(OX_E_CONFIG, "the run's last commit is on its drives (%s), but %s; give them with --nvme, or name "
                   "a checkpoint to go on from: %s", list,
                   trainer->config.memory.nvme_count == 0 ? "no --nvme is given" : "the given ones hold no store",
                   newest_choice(trainer, choice));
}

/* ---- deletion ---------------------------------------------------------------------------------------- */

/* Whether this is the trace of a rank after the first, "trace-1.bin". */
static bool is_rank_trace(const char *name) {
    const size_t digits = strncmp(name, "trace-", 6) == 0 ? strspn(name + 6, "0123456789") : 0;
    return digits > 0 && strcmp(name + 6 + digits, ".bin") == 0;
}

static bool is_run_file(const char *name) {
    for (unsigned i = 0; i < RUN_FILE_COUNT; i++) {
        if (strcmp(name, run_files[i]) == 0) {
            return true;
        }
    }
    return is_rank_trace(name);
}

/* Whether the path lies in what ox_run_clear removes. */
static bool is_doomed(const char *output_dir, const char *path) {
    char *const folder = realpath(output_dir, NULL), *const inner = realpath(path, NULL);
    const size_t length = folder != NULL ? strlen(folder) : 0;
    bool doomed = false;
    if (folder != NULL && inner != NULL && strncmp(inner, folder, length) == 0 && inner[length] == '/') {
        char *const name = inner + length + 1;
        char *const slash = strchr(name, '/');
        if (slash != NULL) {
            *slash = '\0';
        }
        doomed = (slash == NULL && (is_run_file(name) || ox_tensorboard_is_ours(name))) ||
                 ox_checkpoint_is_ours(output_dir, name);
    }
    free(inner);
    free(folder);
    return doomed;
}

enum ox_status ox_run_check_beside_model(const struct ox_trainer *trainer, const char *flag, const char *path) {
    const struct ox_config *const config = &trainer->config;
    char existing[OX_PATH_BYTES];
    snprintf(existing, sizeof existing, "%.*s", (int)ox_path_existing(path), path);
    char *const folder = ox_path_is_folder(config->files.model) ? realpath(config->files.model, NULL) : NULL;
    char *const inner = realpath(existing[0] != '\0' ? existing : ".", NULL);
    const size_t length = folder != NULL ? strlen(folder) : 0;
    const bool inside = folder != NULL && inner != NULL && strncmp(inner, folder, length) == 0 &&
                        (inner[length] == '/' || inner[length] == '\0');
    free(inner);
    free(folder);
    return inside && config->files.resume_from_checkpoint[0] == '\0'
               ? ox_fail(OX_E_CONFIG, "%s %s: lies in the model folder %s, which is only read; give a folder elsewhere",
                         flag, path, config->files.model)
               : OX_OK;
}

static enum ox_status check_input(const struct ox_config *config, const char *flag, const char *path) {
    if (path[0] != '\0' && is_doomed(config->files.output_dir, path)) {
        return ox_fail(OX_E_CONFIG, "%s %s: lies in what --overwrite-output-dir would delete of %s; give another "
                       "--output", flag, path, config->files.output_dir);
    }
    return OX_OK;
}

enum ox_status ox_run_check_inputs(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    enum ox_status status = check_input(config, "--model", config->files.model);
    for (uint32_t i = 0; i < config->files.data_count && status == OX_OK; i++) {
        status = check_input(config, "--data", config->files.data[i].path);
    }
    OX_THEN(status, check_input(config, "--tokenizer", config->files.tokenizer));
    for (uint32_t i = 0; i < trainer->input.eval_sets.count && status == OX_OK; i++) {
        status = check_input(config, "--eval-data", trainer->input.eval_sets.sets[i].path);
    }
    return status;
}

enum ox_status ox_run_check_names(const char *output_dir) {
    enum ox_status status = OX_OK;
    for (unsigned i = 0; i < RUN_FILE_COUNT && status == OX_OK; i++) {
        char path[OX_PATH_BYTES];
        struct stat info;
        status = ox_path_join(output_dir, run_files[i], path);
        if (status == OX_OK && lstat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
            status = ox_fail(OX_E_CONFIG, "%s: is a folder, and a run has a file of that name; move it away, or give "
                             "another --output", path);
        }
    }
    OX_THEN(status, ox_checkpoint_check_places(output_dir));
    return status;
}

enum ox_status ox_run_clear(const char *output_dir) {
    char path[OX_PATH_BYTES];
    for (unsigned i = IDENTITY_COPIES; i < RUN_FILE_COUNT; i++) {
        if (ox_path_join(output_dir, run_files[i], path) == OX_OK && unlink(path) == 0) {
            continue; /* it does not exist */
        }
    }
    DIR *const folder = opendir(output_dir);
    if (folder == NULL) {
        return ox_fail(OX_E_IO, "%s: cannot list the folder", output_dir);
    }
    enum ox_status status = OX_OK;
    for (const char *name = ""; status == OX_OK && name != NULL;) {
        status = ox_folder_next(folder, output_dir, &name);
        const bool file = status == OX_OK && name != NULL && (ox_tensorboard_is_ours(name) || is_rank_trace(name));
        if (status == OX_OK && name != NULL && (file || ox_checkpoint_is_ours(output_dir, name))) {
            status = file ? ox_path_join(output_dir, name, path) : ox_checkpoint_remove(output_dir, name);
            if (status == OX_OK && file) {
                unlink(path);
            }
        }
    }
    closedir(folder);
    return status;
}
