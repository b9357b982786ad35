/* What a start leaves that was cut off before the run had committed anything.
 *
 * A start writes run.json first, with the mark `starting`, and only then makes the stores, loads the weights and
 * commits them; the mark goes when that is done, and steps come after it. So a marked run without checkpoints has lost
 * nothing if it begins anew. A run without drives keeps its state in checkpoints alone: without one it has committed
 * nothing, however many steps it took. A run that --overwrite-output-dir has begun to delete has the mark `clearing`
 * and counts as gone, whatever is left of it. */
#include "engine/run/trainer_internal.h"

#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool ends_with(const char *name, const char *suffix) {
    const size_t bytes = strlen(name), suffix_bytes = strlen(suffix);
    return bytes >= suffix_bytes && strcmp(name + bytes - suffix_bytes, suffix) == 0;
}

/* Whether the name is one of a checkpoint that may be complete, also of one that was renamed. */
static bool is_checkpoint(const char *name) {
    return strcmp(name, "latest") == 0 || strcmp(name, "best") == 0 ||
           (strncmp(name, "checkpoint-", 11) == 0 && !ends_with(name, ".tmp"));
}

/* Whether a start that did not get as far as run.json may have left this: tokens, and files it was writing. */
static bool is_of_beginning(const char *name) {
    return strcmp(name, "cache") == 0 || strstr(name, ".tmp") != NULL;
}

/* Whether all names in the folder are such; false if it cannot be listed. */
static bool all_names(const char *path, bool (*fits)(const char *name)) {
    DIR *const folder = opendir(path);
    bool all = folder != NULL;
    for (const char *name = ""; all && name != NULL;) {
        all = ox_folder_next(folder, path, &name) == OX_OK && (name == NULL || fits(name));
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return all;
}

static bool is_no_checkpoint(const char *name) {
    return !is_checkpoint(name);
}

/* Whether metrics.jsonl has a line, which tells of a step. */
static bool has_told_steps(const char *output_dir) {
    char path[OX_PATH_BYTES], start = 0;
    uint64_t bytes = 0;
    return ox_path_join(output_dir, "metrics.jsonl", path) == OX_OK && ox_path_exists(path) &&
           (ox_file_read_start(path, &start, 1, &bytes) != OX_OK || bytes > 0);
}

/* Whether it is certain that the run in the folder has committed nothing. With `told`, it may have told of steps that
 * were in memory alone. *found is its identity. */
static bool has_no_commit(const char *output_dir, bool told, struct ox_run_identity *found) {
    return ox_run_exists(output_dir) && ox_run_read_identity(output_dir, found) == OX_OK && found->knows_origin &&
           (found->clearing ||
            ((found->starting || found->nvme_count == 0) && all_names(output_dir, is_no_checkpoint) &&
             ((told && found->nvme_count == 0) || !has_told_steps(output_dir))));
}

enum ox_status ox_run_find_remains(const struct ox_trainer *trainer, bool *out) {
    struct ox_run_identity *const found = calloc(1, sizeof *found); /* too large for the stack */
    if (found == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the identity of a run");
    }
    *out = ox_trainer_leads(trainer) && has_no_commit(trainer->config.files.output_dir, trainer->starts_over, found);
    free(found);
    return ox_team_share(trainer->team, out, sizeof *out, "what an earlier start has left");
}

bool ox_run_saved_nothing(const char *output_dir) {
    struct ox_run_identity *const found = calloc(1, sizeof *found);
    const bool nothing = found != NULL && has_no_commit(output_dir, true, found);
    free(found);
    return nothing;
}

/* Whether `latest` finds nothing that was committed. A run that began with a checkpoint goes on from that one. */
static bool has_nothing_to_resume(const struct ox_trainer *trainer, struct ox_run_identity *found) {
    const char *const folder = trainer->config.files.output_dir;
    return ox_run_exists(folder) ? has_no_commit(folder, true, found) && found->from[0] == '\0'
                                 : all_names(folder, is_of_beginning);
}

enum ox_status ox_trainer_start_over(struct ox_trainer *trainer) {
    struct ox_config *const config = &trainer->config;
    if (strcmp(config->files.resume_from_checkpoint, "latest") != 0 || config->tool.plan_only) {
        return OX_OK;
    }
    struct ox_run_identity *const found = calloc(1, sizeof *found);
    struct {
        bool over, known, from_scratch, cleared;
    } view = {false, false, false, false};
    enum ox_status status = found != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "no memory for the identity of a run");
    if (status == OX_OK && ox_trainer_leads(trainer)) {
        view.over = has_nothing_to_resume(trainer, found);
        view.known = found->knows_origin;
        view.from_scratch = found->from_scratch;
        view.cleared = found->clearing;
    }
    free(found);
    OX_THEN(status, ox_team_share(trainer->team, &view, sizeof view, "whether there is anything to resume"));
    if (status == OX_OK && view.over) {
        trainer->starts_over = true;
        config->files.resume_from_checkpoint[0] = '\0';
        config->files.from_scratch = view.from_scratch;
    }
    if (trainer->starts_over && ox_trainer_leads(trainer)) {
        ox_log(OX_LOG_INFO, "%s: %s, so there is nothing to resume: the run starts over%s%s", config->files.output_dir,
               view.cleared ? "its run was being deleted for a new one (--overwrite-output-dir)"
                            : "nothing was committed yet",
               view.known ? "" : " with what --model gives: ", view.known ? "" : config->files.model);
    }
    return status;
}

/* ---- runs that have finished ----------------------------------------------------------------------------------- */

static const char FINISHED_NAME[] = "offload-store.finished";

/* The note of a finished run names it and the checkpoint that has the last commit of its store. */
static const char FINISHED_FORMAT[] = "run %016" PRIx64 " %016" PRIx64 " step %" PRIu64 " checkpoint %s\n";

void ox_run_note_finished(struct ox_trainer *trainer) {
    struct ox_run_identity *const identity = &trainer->identity;
    char note[OX_PATH_BYTES + 128], path[OX_PATH_BYTES];
    char *const checkpoint = realpath(trainer->result, NULL);
    enum ox_status status = checkpoint != NULL ? OX_OK : ox_fail(OX_E_IO, "%s: has no real path", trainer->result);
    if (status == OX_OK) {
        snprintf(note, sizeof note, FINISHED_FORMAT, identity->run_id[0], identity->run_id[1], trainer->state.step,
                 checkpoint);
        identity->finished = true;
        status = ox_trainer_leads(trainer) ? ox_run_write_identity(trainer->config.files.output_dir, identity) : OX_OK;
    }
    free(checkpoint);
    for (uint32_t i = 0; i < trainer->config.memory.nvme_count && status == OX_OK; i++) {
        status = ox_path_join(trainer->drives.folders[i], FINISHED_NAME, path);
        OX_THEN(status, ox_file_replace(path, note, strlen(note)));
    }
    if (status != OX_OK) {
        ox_log(OX_LOG_WARN, "the store stays that of this run, and no other run takes its place: %s", ox_error_text());
    }
}

bool ox_run_store_is_finished(const char *folder) {
    char path[OX_PATH_BYTES], checkpoint[OX_PATH_BYTES] = "", *text = NULL;
    size_t bytes = 0;
    uint64_t run_id[2] = {0}, step = 0;
    struct ox_run_state state;
    if (ox_path_join(folder, FINISHED_NAME, path) != OX_OK || !ox_path_is_file(path) ||
        ox_file_read(path, sizeof path + 128, &text, &bytes) != OX_OK) {
        return false;
    }
    const bool read = sscanf(text, "run %" SCNx64 " %" SCNx64 " step %" SCNu64 " checkpoint %4095[^\n]", &run_id[0],
                             &run_id[1], &step, checkpoint) == 4;
    free(text);
    return read && ox_store_owner(folder, run_id) == OX_STORE_OWNER_SAME &&
           ox_checkpoint_check_complete(checkpoint, &state) == OX_OK && state.step == step &&
           memcmp(state.run_id, run_id, sizeof run_id) == 0;
}

enum ox_status ox_run_forget_finished(const char *folder) {
    char path[OX_PATH_BYTES];
    OX_TRY(ox_path_join(folder, FINISHED_NAME, path));
    if (unlink(path) != 0) {
        return errno == ENOENT || errno == ENOTDIR
                   ? OX_OK : ox_fail_errno(OX_E_IO, errno, "%s: says that the run has finished, and cannot be removed",
                                           path);
    }
    return ox_folder_sync(folder); /* a note that comes back after a power cut would give up what the store got since */
}

enum ox_status ox_run_take_places(const struct ox_trainer *trainer) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < trainer->config.memory.nvme_count && status == OX_OK; i++) {
        const char *const folder = trainer->drives.folders[i];
        if (!ox_store_exists(folder) || ox_store_owner(folder, trainer->identity.run_id) != OX_STORE_OWNER_OTHER ||
            !ox_run_store_is_finished(folder)) {
            continue;
        }
        status = ox_store_check_unused(&folder, 1);
        OX_THEN(status, ox_store_remove(&folder, 1));
        OX_THEN(status, ox_run_forget_finished(folder));
        if (status == OX_OK) {
            ox_log(OX_LOG_INFO, "--nvme %s: the store of a run that has finished is replaced; its checkpoint has "
                   "all of it", folder);
        }
    }
    return status;
}
