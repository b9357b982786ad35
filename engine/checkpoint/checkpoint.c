/* Owns the folders of checkpoints: writes each under a temporary name until every byte is on the drive, finds the
 * newest complete one, and deletes old ones. */
#include "engine/checkpoint/checkpoint.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/log.h"
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

#define FOLDER_PREFIX "checkpoint-"
#define LATEST_NAME   "latest"
#define BEST_NAME     "best"
#define TMP_SUFFIX    ".tmp"

enum { STEP_DIGITS_MAX = 18, NAME_BYTES = 64, LATEST_BYTES_MAX = 4096, ASIDE_MAX = 1000 };

/* ---- names -------------------------------------------------------------------------------------- */

/* Whether `name` is checkpoint-<step><suffix>, exactly as this program writes it. */
static bool parse_name(const char *name, const char *suffix, uint64_t *step) {
    const size_t prefix_bytes = strlen(FOLDER_PREFIX);
    if (strncmp(name, FOLDER_PREFIX, prefix_bytes) != 0) {
        return false;
    }
    const char *const digits = name + prefix_bytes;
    const size_t count = strspn(digits, "0123456789");
    if (count == 0 || count > STEP_DIGITS_MAX || (digits[0] == '0' && count > 1) ||
        strcmp(digits + count, suffix) != 0) {
        return false;
    }
    *step = strtoull(digits, NULL, 10);
    return true;
}

static enum ox_status make_path(const char *output_dir, uint64_t step, const char *suffix, char *path) {
    char name[NAME_BYTES];
    snprintf(name, sizeof name, FOLDER_PREFIX "%" PRIu64 "%s", step, suffix);
    return ox_path_join(output_dir, name, path);
}

static int compare_steps(const void *a, const void *b) {
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left > right ? -1 : left < right;
}

/* Lists the steps of the folders checkpoint-<step><suffix>, the highest first; the caller frees *steps. */
static enum ox_status list_steps(const char *output_dir, const char *suffix, uint64_t **steps,
                                 uint32_t *count) {
    *steps = NULL;
    *count = 0;
    DIR *const folder = opendir(output_dir);
    if (folder == NULL) {
        const bool is_choice = errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP;
        return ox_fail_errno(is_choice ? OX_E_CONFIG : OX_E_IO, errno, "%s: cannot open the folder", output_dir);
    }
    enum ox_status status = OX_OK;
    for (const char *name = "";;) {
        uint64_t step = 0;
        status = ox_folder_next(folder, output_dir, &name);
        if (status != OX_OK || name == NULL) {
            break;
        }
        if (!parse_name(name, suffix, &step)) {
            continue;
        }
        uint64_t *const longer = realloc(*steps, (*count + (size_t)1) * sizeof **steps);
        if (longer == NULL) {
            status = ox_fail(OX_E_NOMEM, "%s: no memory to list its checkpoints", output_dir);
            break;
        }
        *steps = longer;
        longer[(*count)++] = step;
    }
    closedir(folder);
    if (*count > 0) {
        qsort(*steps, *count, sizeof **steps, compare_steps);
    }
    return status;
}

/* ---- the folder --------------------------------------------------------------------------------- */

static enum ox_status set_latest(const char *output_dir, uint64_t step) {
    char path[OX_PATH_BYTES], text[NAME_BYTES];
    const int bytes = snprintf(text, sizeof text, FOLDER_PREFIX "%" PRIu64 "\n", step);
    const enum ox_status status = ox_path_join(output_dir, LATEST_NAME, path);
    return status == OX_OK ? ox_file_replace(path, text, (size_t)bytes) : status;
}

/* Removes the folder of a failed save, and returns `failure` with its error text. */
static enum ox_status remove_failed(const char *folder, enum ox_status failure) {
    char text[OX_ERROR_TEXT_BYTES];
    memcpy(text, ox_error_text(), sizeof text);
    if (ox_folder_remove(folder) != OX_OK) {
        ox_log(OX_LOG_WARN, "%s: could not be removed: %s", folder, ox_error_text());
    }
    return ox_fail(failure, "%s", text);
}

enum ox_status ox_checkpoint_sweep(const char *output_dir) {
    uint64_t *steps = NULL;
    uint32_t count = 0;
    enum ox_status status = list_steps(output_dir, TMP_SUFFIX, &steps, &count);
    for (uint32_t i = 0; status == OX_OK && i < count; i++) {
        char path[OX_PATH_BYTES];
        struct stat info;
        status = make_path(output_dir, steps[i], TMP_SUFFIX, path);
        if (status == OX_OK && lstat(path, &info) == 0 && S_ISLNK(info.st_mode) && unlink(path) == 0) {
            ox_log(OX_LOG_WARN, "%s: the link was removed, because checkpoints are not written through links", path);
        } else if (status == OX_OK) {
            status = ox_folder_remove(path);
        }
    }
    free(steps);
    return status;
}

enum ox_status ox_checkpoint_check_places(const char *output_dir) {
    static const char *const suffixes[] = {"", TMP_SUFFIX};
    enum ox_status status = OX_OK;
    for (int k = 0; k < 2 && status == OX_OK; k++) {
        uint64_t *steps = NULL;
        uint32_t count = 0;
        status = list_steps(output_dir, suffixes[k], &steps, &count);
        for (uint32_t i = 0; status == OX_OK && i < count; i++) {
            char path[OX_PATH_BYTES];
            status = make_path(output_dir, steps[i], suffixes[k], path);
            if (status == OX_OK && !ox_path_is_folder(path)) {
                status = ox_fail(OX_E_CONFIG, "%s: is no folder, and a checkpoint has that name; move it away, or give "
                                 "another --output", path);
            }
        }
        free(steps);
    }
    return status;
}

static bool is_same_branch(const struct ox_run_state *a, const struct ox_run_state *b) {
    return memcmp(a->run_id, b->run_id, sizeof a->run_id) == 0 && a->branch == b->branch;
}

static bool is_same_moment(const struct ox_run_state *a, const struct ox_run_state *b) {
    return is_same_branch(a, b) && a->step == b->step &&
           a->optimizer_steps == b->optimizer_steps && a->cursor == b->cursor && a->seed == b->seed &&
           a->data_fingerprint == b->data_fingerprint && a->tokens_seen == b->tokens_seen &&
           a->numerics_hash == b->numerics_hash && a->optimizer == b->optimizer && a->moments == b->moments;
}

enum ox_status ox_checkpoint_check_complete(const char *path, struct ox_run_state *state) {
    struct ox_manifest manifest;
    enum ox_status status = ox_manifest_read(path, &manifest);
    if (status != OX_OK) {
        return status;
    }
    *state = manifest.state;
    status = ox_manifest_check_sizes(path, &manifest);
    ox_manifest_close(&manifest);
    return status;
}

/* What is in the place of a checkpoint of this state, which it is not. */
static const char *what_else(const char *path, const struct ox_run_state *state) {
    struct ox_run_state there;
    return ox_checkpoint_check_complete(path, &there) != OX_OK ? "is not a complete checkpoint"
           : memcmp(there.run_id, state->run_id, sizeof there.run_id) != 0 ? "is of another run"
           : there.branch != state->branch ? "is of another branch of this run"
                                           : "is of this run, with another state";
}

/* Renames what has the name of this checkpoint but is another one, or none. It is never deleted, because it may be all
 * that is left of another run. */
static enum ox_status set_aside(const char *path, const struct ox_run_state *state) {
    const char *const what = what_else(path, state);
    for (int i = 1; i <= ASIDE_MAX; i++) {
        char to[OX_PATH_BYTES], suffix[NAME_BYTES];
        struct stat info;
        snprintf(suffix, sizeof suffix, ".old-%d", i);
        if (strlen(path) + strlen(suffix) >= sizeof to) {
            break;
        }
        memcpy(to, path, strlen(path));
        memcpy(to + strlen(path), suffix, strlen(suffix) + 1);
        if (lstat(to, &info) != 0 && errno == ENOENT) {
            const enum ox_status status = ox_folder_commit(path, to);
            if (status == OX_OK) {
                ox_log(OX_LOG_WARN, "%s: %s; it was renamed to %s", path, what, to);
            }
            return status == OX_OK ? OX_OK : ox_fail_in(status, "%s, and its place is needed", what);
        }
    }
    return ox_fail(OX_E_CONFIG, "%s: %s, and its place is needed; move it away", path, what);
}

/* Renames a checkpoint to an unfinished one before it is removed: if a crash interrupts that, a sweep removes the
 * rest. */
static enum ox_status remove_whole(const char *output_dir, uint64_t step) {
    char path[OX_PATH_BYTES], tmp[OX_PATH_BYTES];
    enum ox_status status = make_path(output_dir, step, "", path);
    OX_THEN(status, make_path(output_dir, step, TMP_SUFFIX, tmp));
    OX_THEN(status, ox_folder_commit(path, tmp));
    OX_THEN(status, ox_folder_remove(tmp));
    return status;
}

/* ---- which are kept ----------------------------------------------------------------------------------- */

/* Whether the checkpoint is complete, of the branch, and evaluated at its own step. */
static bool is_candidate(const char *path, const struct ox_run_state *branch, double *loss) {
    struct ox_manifest manifest;
    if (ox_manifest_read(path, &manifest) != OX_OK) {
        return false;
    }
    *loss = manifest.eval.loss;
    const bool evaluated = manifest.eval.step > 0 && manifest.eval.step == manifest.state.step && !isnan(*loss);
    const bool good = evaluated && is_same_branch(&manifest.state, branch) &&
                      ox_manifest_check_sizes(path, &manifest) == OX_OK;
    ox_manifest_close(&manifest);
    return good;
}

bool ox_checkpoint_find_best(const char *output_dir, const struct ox_run_state *branch, char *path, double *loss) {
    uint64_t *steps = NULL;
    uint32_t count = 0;
    bool found = false;
    if (list_steps(output_dir, "", &steps, &count) != OX_OK) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) { /* the newest first, so that of equal ones the first stays */
        char each[OX_PATH_BYTES];
        double value = NAN;
        if (make_path(output_dir, steps[i], "", each) == OX_OK && is_candidate(each, branch, &value) &&
            (!found || value <= *loss)) {
            found = true;
            *loss = value;
            memcpy(path, each, sizeof each);
        }
    }
    free(steps);
    return found;
}

/* Lets the link `best` lead to the checkpoint. What else has that name is left as it is. */
static enum ox_status set_best(const char *output_dir, const char *checkpoint) {
    const char *const name = strrchr(checkpoint, '/') + 1;
    char path[OX_PATH_BYTES], tmp[OX_PATH_BYTES], there[NAME_BYTES] = "";
    struct stat info;
    enum ox_status status = ox_path_join(output_dir, BEST_NAME, path);
    OX_THEN(status, ox_path_join(output_dir, BEST_NAME TMP_SUFFIX, tmp));
    if (status != OX_OK) {
        return status;
    }
    if (lstat(path, &info) == 0 && !S_ISLNK(info.st_mode)) {
        return ox_fail(OX_E_CONFIG, "%s: is no link; move it away", path);
    }
    if (readlink(path, there, sizeof there - 1) > 0 && strcmp(there, name) == 0) {
        return OX_OK;
    }
    if ((unlink(tmp) != 0 && errno != ENOENT) || symlink(name, tmp) != 0 || rename(tmp, path) != 0) {
        return ox_fail_errno(OX_E_IO, errno, "%s: cannot link it to %s", path, name);
    }
    return ox_folder_sync(output_dir);
}

/* Whether the folder is a complete checkpoint of the branch. A link leads to one that someone has moved, and which is
 * not deleted. */
static bool is_of_branch(const char *path, const struct ox_run_state *branch) {
    struct ox_run_state state;
    struct stat info;
    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode) && ox_checkpoint_check_complete(path, &state) == OX_OK &&
           is_same_branch(&state, branch);
}

/* Lets the checkpoints of the branch behind the newest `limit` ones have their weights alone. */
static enum ox_status keep_states(const char *output_dir, const struct ox_run_state *newest, uint64_t limit) {
    uint64_t *steps = NULL, kept = 0;
    uint32_t count = 0;
    char path[OX_PATH_BYTES];
    enum ox_status status = limit > 0 ? list_steps(output_dir, "", &steps, &count) : OX_OK;
    for (uint32_t i = 0; status == OX_OK && i < count; i++) {
        status = make_path(output_dir, steps[i], "", path);
        if (status == OX_OK && steps[i] <= newest->step && is_of_branch(path, newest) && kept++ >= limit) {
            status = ox_checkpoint_drop_state(path);
        }
    }
    free(steps);
    return status;
}

void ox_checkpoint_keep(const char *output_dir, const struct ox_run_state *newest, uint64_t total_limit,
                        uint64_t state_limit) {
    uint64_t *steps = NULL;
    uint32_t count = 0;
    char path[OX_PATH_BYTES], best[OX_PATH_BYTES] = "";
    double loss = NAN;
    if (ox_checkpoint_find_best(output_dir, newest, best, &loss) && set_best(output_dir, best) != OX_OK) {
        ox_log(OX_LOG_WARN, "the best checkpoint is %s, but `best` does not name it: %s", best, ox_error_text());
    }
    enum ox_status status = total_limit > 0 ? list_steps(output_dir, "", &steps, &count) : OX_OK;
    OX_THEN(status, make_path(output_dir, newest->step, "", path));
    uint64_t kept = best[0] != '\0' && strcmp(best, path) != 0 ? 2 : 1; /* the best one and the newest */
    for (uint32_t i = 0; status == OX_OK && i < count; i++) {
        status = make_path(output_dir, steps[i], "", path);
        if (status == OX_OK && steps[i] < newest->step && strcmp(path, best) != 0 && is_of_branch(path, newest) &&
            kept++ >= total_limit) {
            status = remove_whole(output_dir, steps[i]);
        }
    }
    OX_THEN(status, keep_states(output_dir, newest, state_limit));
    if (status != OX_OK) {
        ox_log(OX_LOG_WARN, "old checkpoints could not be deleted: %s", ox_error_text());
    }
    free(steps);
}

/* Renames the filled folder to its final name. */
static enum ox_status commit(const struct ox_checkpoint_job *job) {
    struct stat info;
    enum ox_status status = OX_OK;
    if (lstat(job->path, &info) == 0) {
        status = set_aside(job->path, &job->state);
    }
    if (status == OX_OK) {
        status = ox_folder_commit(job->tmp, job->path);
        if (status != OX_OK && !ox_path_is_folder(job->tmp)) { /* renamed, but the rename may not be durable */
            return remove_failed(job->path, status);
        }
    }
    return status == OX_OK ? OX_OK : remove_failed(job->tmp, status);
}

/* ---- in parts: checkpoint_internal.h ---------------------------------------------------------------- */

/* Makes room on the first process, and creates the files unless the checkpoint exists. */
static enum ox_status begin_first(struct ox_engine *engine, struct ox_checkpoint_job *job, bool *exists) {
    struct ox_run_state there;
    enum ox_status status = ox_folder_make(job->save.output_dir);
    OX_THEN(status, ox_checkpoint_sweep(job->save.output_dir));
    if (status != OX_OK) {
        return status;
    }
    *exists = ox_checkpoint_check_complete(job->path, &there) == OX_OK && is_same_moment(&job->state, &there);
    if (*exists) {
        return OX_OK;
    }
    status = ox_checkpoint_files_open(engine, &job->save, job->tmp, &job->files);
    return status == OX_OK ? OX_OK : remove_failed(job->tmp, status);
}

/* Opens the files on all processes when the first has created them. */
static enum ox_status join_first(struct ox_engine *engine, struct ox_checkpoint_job *job) {
    enum ox_status status = job->files != NULL ? OX_OK
                            : ox_checkpoint_files_open(engine, &job->save, job->tmp, &job->files);
    status = ox_team_agree(job->team, OX_TEAM_RUN, status, "the files of a checkpoint");
    if (status == OX_OK) {
        return OX_OK;
    }
    ox_checkpoint_files_discard(&job->files);
    status = ox_team_agree(job->team, OX_TEAM_RUN, status, "giving up a checkpoint"); /* all have closed the files */
    return ox_team_leads(job->team) ? remove_failed(job->tmp, status) : status;
}

enum ox_status ox_checkpoint_begin(struct ox_engine *engine, const struct ox_run_state *state,
                                   const struct ox_checkpoint_save *save, struct ox_checkpoint_job *job) {
    OX_ASSERT(save->weights_dtype < OX_DTYPE_OTHER);
    const struct ox_state_format format = ox_engine_config_of(engine)->state;
    OX_ASSERT(state->version >= OX_RUN_STATE_NAMES_FORMAT && state->optimizer == (uint16_t)format.kind &&
              state->moments == (uint16_t)format.moments);
    bool exists = false;
    *job = (struct ox_checkpoint_job){.team = ox_engine_config_of(engine)->team, .state = *state, .save = *save};
    enum ox_status status = make_path(save->output_dir, state->step, "", job->path);
    OX_THEN(status, make_path(save->output_dir, state->step, TMP_SUFFIX, job->tmp));
    if (ox_team_leads(job->team)) {
        OX_THEN(status, begin_first(engine, job, &exists));
    }
    status = ox_team_agree(job->team, OX_TEAM_RUN, status, "the start of a checkpoint");
    OX_THEN(status, ox_team_share(job->team, &exists, sizeof exists, "whether a checkpoint exists"));
    return status == OX_OK && !exists ? join_first(engine, job) : status;
}

enum ox_status ox_checkpoint_end(struct ox_checkpoint_job *job, enum ox_team_channel channel,
                                 enum ox_status written) {
    const bool leads = ox_team_leads(job->team);
    enum ox_status status = written;
    if (job->files != NULL) {
        status = ox_checkpoint_files_finish(&job->files, &job->state, channel, written);
        if (leads) {
            status = status == OX_OK ? commit(job) : remove_failed(job->tmp, status);
        }
    }
    if (status == OX_OK && leads) {
        if (set_latest(job->save.output_dir, job->state.step) != OX_OK) {
            ox_log(OX_LOG_WARN, "%s: is complete, but `latest` does not name it: %s", job->path, ox_error_text());
        }
        ox_checkpoint_keep(job->save.output_dir, &job->state, job->save.total_limit, job->save.state_limit);
    }
    return ox_team_agree(job->team, channel, status, "the end of a checkpoint");
}

/* ---- public ------------------------------------------------------------------------------------ */

enum ox_status ox_checkpoint_check_space(const char *folder, uint64_t file_bytes) {
    uint64_t available = 0, bytes = 0;
    if (!ox_add_u64(file_bytes, OX_CHECKPOINT_BESIDE_BYTES, &bytes)) {
        bytes = UINT64_MAX;
    }
    const enum ox_status status = ox_folder_free_bytes(folder, &available);
    if (status != OX_OK || available >= bytes) {
        return status;
    }
    char needed_text[OX_SIZE_TEXT_BYTES], available_text[OX_SIZE_TEXT_BYTES];
    return ox_fail(OX_E_IO,
                   "%s: the files to be written need %s (%" PRIu64 " bytes), but only %s (%" PRIu64
                   " bytes) are free; make room or choose another folder",
                   folder, ox_size_text(bytes, needed_text), bytes, ox_size_text(available, available_text),
                   available);
}

enum ox_status ox_checkpoint_write(struct ox_engine *engine, const struct ox_run_state *state,
                                   const struct ox_checkpoint_save *save) {
    struct ox_checkpoint_job job;
    enum ox_status status = ox_engine_finish_update(engine);
    OX_THEN(status, ox_engine_average_residuals(engine)); /* this run goes on with it, too, as one from here would */
    OX_THEN(status, ox_checkpoint_begin(engine, state, save, &job));
    if (status != OX_OK) {
        return status;
    }
    if (job.files != NULL) {
        status = ox_checkpoint_files_fill(job.files, engine, false);
    }
    if (ox_engine_has_residuals(engine) && job.files != NULL && !save->weights_alone) {
        status = ox_team_agree(job.team, OX_TEAM_RUN, status, "the planes of a checkpoint");
        OX_THEN(status, ox_checkpoint_write_residuals(engine, job.tmp));
    }
    return ox_checkpoint_end(&job, OX_TEAM_RUN, status);
}

/* Reads the path of the checkpoint that `latest` names; false if it names none of this folder's checkpoints. */
static bool read_latest(const char *output_dir, char *path) {
    char *text = NULL;
    size_t bytes = 0;
    uint64_t step = 0;
    bool good = ox_path_join(output_dir, LATEST_NAME, path) == OX_OK && ox_path_is_file(path) &&
                ox_file_read(path, LATEST_BYTES_MAX, &text, &bytes) == OX_OK;
    if (good) {
        text[strcspn(text, "\r\n")] = '\0';
        good = parse_name(text, "", &step) && make_path(output_dir, step, "", path) == OX_OK;
    }
    free(text);
    return good;
}

static bool is_usable(const char *path) {
    struct ox_run_state state;
    if (ox_checkpoint_check_complete(path, &state) == OX_OK) {
        return true;
    }
    ox_log(OX_LOG_WARN, "%s: is not a complete checkpoint and is skipped: %s", path, ox_error_text());
    return false;
}

/* Finds the usable checkpoint of the highest step other than `skipped`; with `branch`, in that branch alone. */
static enum ox_status find_highest(const char *output_dir, const struct ox_run_state *branch, const char *skipped,
                                   char *path) {
    uint64_t *steps = NULL;
    uint32_t count = 0;
    bool found = false;
    enum ox_status status = list_steps(output_dir, "", &steps, &count);
    for (uint32_t i = 0; status == OX_OK && !found && i < count; i++) {
        struct ox_run_state state;
        status = make_path(output_dir, steps[i], "", path);
        const bool left_out = status != OX_OK || strcmp(path, skipped) == 0 ||
                              (branch != NULL && ox_checkpoint_read_state(path, &state) == OX_OK &&
                               !is_same_branch(&state, branch));
        found = !left_out && is_usable(path);
    }
    free(steps);
    if (status == OX_OK && !found) {
        status = ox_fail(OX_E_CONFIG, "%s: holds no complete checkpoint%s", output_dir,
                         branch != NULL ? " of this run" : "");
    }
    return status;
}

enum ox_status ox_checkpoint_find_latest(const char *output_dir, char *path) {
    char named[OX_PATH_BYTES] = "";
    if (!read_latest(output_dir, named)) {
        named[0] = '\0';
    } else if (is_usable(named)) {
        memcpy(path, named, sizeof named);
        return OX_OK;
    }
    return find_highest(output_dir, NULL, named, path);
}

/* The newest checkpoint of the branch in the folder that has the optimizer's state; "" if there is none. */
static void find_with_state(const char *output_dir, const struct ox_run_state *branch, char *path) {
    uint64_t *steps = NULL;
    uint32_t count = 0;
    bool found = false;
    if (list_steps(output_dir, "", &steps, &count) != OX_OK) {
        count = 0;
    }
    for (uint32_t i = 0; !found && i < count; i++) { /* the newest first */
        struct ox_manifest manifest;
        if (make_path(output_dir, steps[i], "", path) == OX_OK && is_of_branch(path, branch) &&
            ox_manifest_read(path, &manifest) == OX_OK) {
            found = ox_manifest_has_state(&manifest);
            ox_manifest_close(&manifest);
        }
    }
    path[0] = found ? path[0] : '\0';
    free(steps);
}

enum ox_status ox_checkpoint_check_state(const char *path) {
    struct ox_manifest manifest;
    char folder[OX_PATH_BYTES], other[OX_PATH_BYTES];
    enum ox_status status = ox_manifest_read(path, &manifest);
    OX_THEN(status, ox_path_join(path, "..", folder));
    if (status == OX_OK && !ox_manifest_has_state(&manifest)) {
        char *const real = realpath(folder, NULL);
        find_with_state(real != NULL ? real : folder, &manifest.state, other);
        free(real);
        const bool found = other[0] != '\0';
        status = ox_fail(OX_E_CONFIG, "%.300s: holds the model alone (--save-only-model, or --save-optimizer-limit), "
                         "so there is no optimizer state to go on with; %s%.300s%sbegin a new run with this folder as "
                         "--model", path, found ? "resume from " : "", other, found ? ", or " : "");
    }
    ox_manifest_close(&manifest);
    return status;
}

/* Finds the checkpoint of the highest step, complete or not. */
static bool find_last(const char *output_dir, char *path) {
    uint64_t *steps = NULL;
    uint32_t count = 0;
    const bool found = list_steps(output_dir, "", &steps, &count) == OX_OK && count > 0 &&
                       make_path(output_dir, steps[0], "", path) == OX_OK;
    free(steps);
    return found;
}

/* Whether another program has put its own trainer_state.json there. */
static bool is_foreign(const char *path, enum ox_status status) {
    char file[OX_PATH_BYTES];
    return status == OX_E_CONFIG && ox_path_join(path, OX_LISTED_IN, file) == OX_OK && ox_path_is_file(file);
}

/* Replaces the path of the newest checkpoint, which is complete, by the one that it names as the run's result. */
static enum ox_status take_result(const char *output_dir, char *path) {
    struct ox_manifest manifest;
    struct ox_run_state state;
    uint64_t step = 0;
    enum ox_status status = ox_manifest_read(path, &manifest);
    if (status != OX_OK) {
        return status;
    }
    const bool other = parse_name(manifest.result, "", &step);
    ox_manifest_close(&manifest);
    if (other) {
        status = make_path(output_dir, step, "", path);
        OX_THEN(status, ox_checkpoint_check_complete(path, &state));
    }
    return status;
}

enum ox_status ox_checkpoint_find_newest(const char *output_dir, char *path) {
    char older[OX_PATH_BYTES], why[OX_ERROR_TEXT_BYTES / 2];
    struct ox_run_state state;
    const bool named = read_latest(output_dir, path);
    if (!named && !find_last(output_dir, path)) {
        return ox_fail(OX_E_CONFIG, "%s: holds no checkpoint", output_dir);
    }
    enum ox_status status = ox_checkpoint_check_complete(path, &state);
    if (status == OX_OK) {
        status = take_result(output_dir, path);
    }
    if (status == OX_OK || status == OX_E_NOMEM || status == OX_E_IO) {
        return status;
    }
    if (!named && is_foreign(path, status)) {
        return ox_checkpoint_find_latest(output_dir, path);
    }
    snprintf(why, sizeof why, "%s", ox_error_text());
    return find_highest(output_dir, NULL, path, older) == OX_OK
               ? ox_fail(OX_E_CORRUPT, "the newest checkpoint is not whole: %s; to take an older one, name it: %.300s",
                         why, older)
               : ox_fail(OX_E_CORRUPT, "the newest checkpoint is not whole, and there is no other: %s", why);
}

enum ox_status ox_checkpoint_find_branch(const char *output_dir, const uint64_t run_id[2], uint64_t branch,
                                         char *path) {
    const struct ox_run_state wanted = {.run_id = {run_id[0], run_id[1]}, .branch = branch};
    return find_highest(output_dir, &wanted, "", path);
}

enum ox_status ox_checkpoint_list(const char *output_dir, char (**paths)[OX_PATH_BYTES], uint32_t *count) {
    uint64_t *steps = NULL;
    uint32_t found = 0;
    *paths = NULL;
    *count = 0;
    enum ox_status status = list_steps(output_dir, "", &steps, &found);
    if (status == OX_OK) {
        *paths = malloc((found + (size_t)1) * sizeof **paths);
        status = *paths != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "%s: no memory to list its checkpoints", output_dir);
    }
    for (uint32_t i = found; status == OX_OK && i-- > 0;) { /* the highest step comes first there */
        status = make_path(output_dir, steps[i], "", (*paths)[*count]);
        *count += status == OX_OK && is_usable((*paths)[*count]);
    }
    free(steps);
    return status;
}

bool ox_checkpoint_is_in(const char *output_dir, const char *path) {
    char *const folder = realpath(output_dir, NULL), *const inner = realpath(path, NULL);
    bool is_in = false;
    if (folder != NULL && inner != NULL) {
        char *const slash = strrchr(inner, '/');
        *slash = '\0';
        is_in = strcmp(folder, inner) == 0;
    }
    free(inner);
    free(folder);
    return is_in;
}

enum ox_status ox_checkpoint_make_latest(const char *output_dir, const char *path) {
    char *const real = realpath(path, NULL);
    uint64_t step = 0;
    const bool named = real != NULL && parse_name(strrchr(real, '/') + 1, "", &step);
    free(real);
    return named ? set_latest(output_dir, step) : OX_OK;
}

bool ox_checkpoint_is_ours(const char *output_dir, const char *name) {
    char path[OX_PATH_BYTES];
    uint64_t step = 0;
    struct stat info;
    struct ox_run_state state;
    if (ox_path_join(output_dir, name, path) != OX_OK || lstat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        return false;
    }
    return parse_name(name, TMP_SUFFIX, &step) ||
           (parse_name(name, "", &step) && ox_checkpoint_read_state(path, &state) != OX_E_CONFIG);
}

enum ox_status ox_checkpoint_remove(const char *output_dir, const char *name) {
    char path[OX_PATH_BYTES];
    uint64_t step = 0;
    if (parse_name(name, "", &step)) {
        return remove_whole(output_dir, step);
    }
    const enum ox_status status = ox_path_join(output_dir, name, path);
    return status == OX_OK ? ox_folder_remove(path) : status;
}
