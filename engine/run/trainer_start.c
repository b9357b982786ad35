/* The start of a run: its folder and identity, then fresh weights, a checkpoint, or the store's last commit.
 *
 * run.json names the run (its id seeds the store's checksums) and its branch. A user who resumes from a named
 * checkpoint begins a new branch, and `latest` never leads back to a branch that was left. Nothing of an earlier run is
 * deleted unless the user requests it, and then only after the plan is known to fit. */
#include "engine/run/trainer_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- before anything is touched --------------------------------------------------------------------- */

static enum ox_status check_drives(const struct ox_trainer *trainer) {
    for (uint32_t i = 0; i < trainer->config.memory.nvme_count; i++) {
        const char *const folder = trainer->config.memory.nvme[i].path;
        if (!ox_path_is_folder(folder)) {
            return ox_fail(OX_E_CONFIG, "--nvme %s: is not a folder; create it, or mount the drive", folder);
        }
        if (!ox_folder_takes_files(folder)) {
            return ox_fail(OX_E_CONFIG, "--nvme %s: nothing can be written there (read-only, or of another user); give "
                           "another folder", folder);
        }
        enum ox_status status = ox_run_check_beside_model(trainer, "--nvme", trainer->drives.folders[i]);
        OX_THEN(status, trainer->team != NULL ? ox_path_refuse_link(trainer->drives.folders[i]) : OX_OK);
        if (status != OX_OK) {
            return status;
        }
    }
    return OX_OK;
}

static enum ox_status check_output(const struct ox_trainer *trainer) {
    const char *const folder = trainer->config.files.output_dir;
    if (access(folder, F_OK) == 0 && !ox_path_is_folder(folder)) {
        return ox_fail(OX_E_CONFIG, "--output %s: is a file, not a folder; give another name", folder);
    }
    const enum ox_status place = folder[0] != '\0' ? ox_folder_check_place(folder) : OX_OK;
    if (place != OX_OK) {
        return place;
    }
    if (folder[0] != '\0' && !ox_folder_takes_files(folder)) {
        return ox_fail(OX_E_CONFIG, "--output %s: nothing can be written there (read-only, or of another user); give "
                       "another folder", folder);
    }
    if (!ox_path_is_folder(folder)) {
        return OX_OK;
    }
    if (ox_folder_has(folder, "trainer_state.json")) {
        return ox_fail(OX_E_CONFIG, "--output %s: is a checkpoint of a run; give the folder of a run, or one that is "
                       "not there yet", folder);
    }
    const enum ox_status status = ox_run_check_names(folder);
    return status == OX_OK && !trainer->config.files.overwrite_output_dir ? ox_metrics_check(folder) : status;
}

/* Warns of drives without direct I/O, which work through the page cache, slower and outside every budget, and of those
 * that may run out of room within a step. */
static void announce_drives(const struct ox_trainer *trainer) {
    const struct ox_store *const store = ox_engine_store(trainer->engine);
    if (store != NULL && trainer->config.memory.store_generations == 1) {
        ox_log(OX_LOG_WARN, "--store-generations 1: the store is rewritten in place; after a crash within a step the "
               "run goes back to its last checkpoint (--save-steps %.0f)", trainer->config.save.save_steps);
    }
    if (trainer->config.save.save_only_model && (store == NULL || trainer->config.memory.store_generations == 1)) {
        ox_log(OX_LOG_WARN, "--save-only-model: without a store (--nvme) of two generations this run cannot be resumed "
               "once it has ended");
    }
    for (uint32_t i = 0; store != NULL && i < trainer->config.memory.nvme_count; i++) {
        struct ox_drive_info info;
        if (ox_store_drive_info(store, i, &info) != OX_OK) {
            continue;
        }
        if (!info.direct) {
            ox_log(OX_LOG_WARN, "%s: degraded: goes through the page cache, which no budget counts (%s)", info.path,
                   info.note);
        }
        if (info.copies_on_write) {
            ox_log(OX_LOG_WARN, "%s: its file system copies on write, so a step fails if that becomes full, and the "
                   "run goes back to its last commit; keep room there, or use a drive with ext4 or xfs", info.path);
        }
    }
}

/* ---- fresh ------------------------------------------------------------------------------------------ */

static enum ox_status load_all(struct ox_trainer *trainer, const char *checkpoint) {
    enum ox_status status = ox_engine_load_begin(trainer->engine, trainer->state.step);
    if (status == OX_OK && checkpoint != NULL) {
        status = ox_checkpoint_load_on(trainer->engine, checkpoint, ox_trainer_has_adapters(trainer)
                                                                        ? ox_hf_base_path(trainer->folder) : NULL);
    } else if (status == OX_OK && ox_hf_has_weights(trainer->folder)) {
        status = ox_engine_load_weights(trainer->engine, trainer->folder);
    } else if (status == OX_OK) {
        status = ox_engine_init_weights(trainer->engine, trainer->config.train.seed);
    }
    trainer->note = (struct ox_commit_note){.state = trainer->state};
    trainer->may_be_committed = status == OX_OK;
    return status == OX_OK ? ox_engine_load_commit(trainer->engine, &trainer->note, sizeof trainer->note) : status;
}

static enum ox_status create_store(struct ox_trainer *trainer) {
    if (trainer->config.memory.nvme_count == 0) {
        return OX_OK;
    }
    trainer->made_store = !ox_run_has_store(trainer); /* also if that of another process cannot be made */
    return ox_engine_store_create(trainer->engine, trainer->state.run_id);
}

static enum ox_status check_room(const struct ox_trainer *trainer) {
    return ox_trainer_leads(trainer) ? ox_trainer_check_room(trainer) : OX_OK;
}

static enum ox_status refuse_existing(const struct ox_trainer *trainer) {
    const char *const folder = trainer->config.files.output_dir;
    bool remains = false;
    const enum ox_status status = ox_run_find_remains(trainer, &remains);
    if (status != OX_OK || remains) {
        return status;
    }
    if (ox_trainer_leads(trainer) && folder[0] != '\0' && ox_run_exists(folder)) {
        OX_TRY(ox_run_check_unlocked(trainer));
        return ox_run_saved_nothing(folder)
                   ? ox_fail(OX_E_CONFIG, "%s: already holds a run, which ended before it saved anything; add "
                             "--resume-from-checkpoint latest to start it over", folder)
                   : ox_fail(OX_E_CONFIG, "%s: already holds a run; add --resume-from-checkpoint latest to go on with "
                             "it, or --overwrite-output-dir to start over", folder);
    }
    for (uint32_t i = 0; i < trainer->config.memory.nvme_count; i++) {
        const char *const drive = trainer->drives.folders[i];
        if (ox_store_exists(drive) && !ox_run_store_is_finished(drive)) {
            return ox_run_refuse_store(drive);
        }
    }
    return OX_OK;
}

enum ox_status ox_trainer_check_places(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const bool fresh = config->files.resume_from_checkpoint[0] == '\0' && !config->files.overwrite_output_dir;
    enum ox_status status = check_drives(trainer);
    OX_THEN(status, ox_trainer_leads(trainer) ? check_output(trainer) : OX_OK);
    return status == OX_OK && fresh ? refuse_existing(trainer) : status;
}

/* Removes what the run of trainer->identity has left: its stores, and with the mark `clearing` the rest. */
static enum ox_status clear_away(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    enum ox_status status = OX_OK;
    if (ox_run_has_store(trainer)) {
        status = ox_store_remove(trainer->drives.folders, config->memory.nvme_count);
    }
    OX_THEN(status, ox_run_remove_others(trainer));
    if (status == OX_OK && trainer->identity.clearing && ox_trainer_leads(trainer)) {
        status = ox_run_clear(config->files.output_dir);
    }
    trainer->identity = (struct ox_run_identity){0};
    return ox_trainer_agree(trainer, status, "the removal of an earlier run");
}

/* Deletes an earlier run. If another process uses a store of it, nothing is deleted; once something is, run.json says
 * that the rest goes too, so that a resume does not take it for a run. */
static enum ox_status clear_run(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    struct ox_run_identity *const identity = &trainer->identity;
    enum ox_status status = ox_run_check_inputs(trainer);
    OX_THEN(status, ox_store_check_unused(trainer->drives.folders, config->memory.nvme_count));
    status = ox_trainer_agree(trainer, status, "whether an earlier run is in use");
    if (status == OX_OK && (!ox_run_exists(config->files.output_dir) ||
                            ox_run_read_identity(config->files.output_dir, identity) != OX_OK)) {
        *identity = (struct ox_run_identity){0};
    }
    if (status == OX_OK) {
        identity->from[0] = '\0';
        identity->starting = identity->clearing = true;
        identity->from_scratch = config->files.from_scratch;
        status = ox_trainer_leads(trainer) ? ox_run_write_identity(config->files.output_dir, identity) : OX_OK;
        status = ox_trainer_agree(trainer, status, "the end of an earlier run");
    }
    return status == OX_OK ? clear_away(trainer) : status;
}

/* Removes what a start has left that was cut off; the rest of it is written over. */
static enum ox_status clear_remains(struct ox_trainer *trainer) {
    enum ox_status status = ox_run_read_identity(trainer->config.files.output_dir, &trainer->identity);
    OX_THEN(status, ox_run_check_stores(trainer));
    OX_THEN(status, ox_store_check_unused(trainer->drives.folders, trainer->config.memory.nvme_count));
    status = ox_trainer_agree(trainer, status, "what an earlier start has left");
    return status == OX_OK ? clear_away(trainer) : status;
}

/* Clears away what is in the place of a fresh start, as far as that is allowed. The run's folder is locked. */
static enum ox_status make_way(struct ox_trainer *trainer) {
    if (trainer->config.files.overwrite_output_dir) {
        return clear_run(trainer);
    }
    bool remains = false;
    enum ox_status status = ox_run_find_remains(trainer, &remains);
    if (status == OX_OK) {
        status = remains ? clear_remains(trainer) : refuse_existing(trainer);
    }
    return status == OX_OK ? ox_run_take_places(trainer) : status;
}

/* Makes the folder if it does not exist, and locks it. With several processes the first one does. */
static enum ox_status claim_folder(struct ox_trainer *trainer, bool *made) {
    *made = false;
    if (!ox_trainer_leads(trainer)) {
        return OX_OK;
    }
    *made = !ox_path_is_folder(trainer->config.files.output_dir);
    enum ox_status status = ox_folder_make(trainer->config.files.output_dir);
    OX_THEN(status, ox_run_lock(trainer));
    if (status == OX_OK) {
        ox_run_clear_triggers(trainer->config.files.output_dir);
        ox_folder_sweep(trainer->config.files.output_dir);
        status = ox_checkpoint_sweep(trainer->config.files.output_dir);
    }
    return status;
}

/* Cleans up after a start that failed before the run had anything committed. run.json goes after the store, for which
 * it vouches. Of several processes none knows what the others still have, so with drives run.json stays, with its mark
 * of a start that was cut off; and once a commit has begun, the others may have come to its end, so the store stays
 * too. Keeps the text of the first failure. */
static enum ox_status undo_start(struct ox_trainer *trainer, bool made_folder, enum ox_status failure) {
    char text[OX_ERROR_TEXT_BYTES];
    const bool alone = trainer->team == NULL;
    const bool keeps_run = trainer->made_run && !alone && trainer->config.memory.nvme_count > 0 &&
                           ox_run_exists(trainer->config.files.output_dir);
    snprintf(text, sizeof text, "%s", ox_error_text());
    ox_engine_close(&trainer->engine);
    if (trainer->made_store && (alone || !trainer->may_be_committed) &&
        ox_store_remove(trainer->drives.folders, trainer->config.memory.nvme_count) != OX_OK) {
        ox_log(OX_LOG_WARN, "%s", ox_error_text());
    }
    if (trainer->made_run && !keeps_run && ox_trainer_leads(trainer)) {
        ox_run_forget_identity(trainer->config.files.output_dir);
    }
    for (uint32_t i = 0; i < trainer->config.memory.nvme_count && !alone; i++) {
        rmdir(trainer->drives.folders[i]); /* "process-I-of-P", if it is empty */
    }
    if (made_folder && !keeps_run && rmdir(trainer->config.files.output_dir) != 0) {
        ox_log(OX_LOG_WARN, "%s: the new folder stays behind", trainer->config.files.output_dir);
    }
    return ox_fail(failure, "%s", text);
}

static enum ox_status draw_run(struct ox_trainer *trainer) {
    struct ox_run_identity *const identity = &trainer->identity;
    uint64_t words[3] = {0};
    enum ox_status status = ox_run_draw(words, 3);
    OX_THEN(status, ox_team_share(trainer->team, words, sizeof words, "the identity of the run"));
    memcpy(identity->run_id, words, sizeof identity->run_id);
    identity->branch = words[2];
    return status;
}

static void take_identity(struct ox_trainer *trainer) {
    memcpy(trainer->state.run_id, trainer->identity.run_id, sizeof trainer->state.run_id);
    trainer->state.branch = trainer->identity.branch;
}

/* Returns whether the identity had no clock yet. */
static bool record_clock(struct ox_trainer *trainer) {
    const bool is_new = !trainer->identity.has_clock;
    trainer->identity.has_clock = true;
    trainer->identity.clock_s = trainer->input.clock_s;
    return is_new;
}

static enum ox_status write_identity(struct ox_trainer *trainer) {
    ox_run_record_drives(&trainer->identity, trainer);
    record_clock(trainer);
    ox_trainer_record_arithmetic(trainer);
    ox_trainer_record_formats(trainer);
    trainer->identity.holds_whole = trainer->input.holds_whole;
    const enum ox_status status =
        ox_trainer_leads(trainer) ? ox_run_write_identity(trainer->config.files.output_dir, &trainer->identity) : OX_OK;
    return ox_trainer_agree(trainer, status, "the identity of the run");
}

/* Writes run.json with the mark that stores may now be made and removed, because all that is committed is elsewhere. */
static enum ox_status mark_starting(struct ox_trainer *trainer) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < trainer->config.memory.nvme_count && status == OX_OK; i++) {
        status = ox_folder_make(trainer->drives.folders[i]); /* run.json has their real paths */
    }
    status = ox_trainer_agree(trainer, status, "the folders of the stores");
    trainer->identity.starting = true;
    trainer->identity.clearing = trainer->identity.finished = false;
    return status == OX_OK ? write_identity(trainer) : status;
}

/* Takes the mark away: the run has committed what it begins with. */
static enum ox_status mark_started(struct ox_trainer *trainer) {
    trainer->identity.starting = false;
    return write_identity(trainer);
}

/* Writes the first run.json, with which the run exists; a start that fails from here on removes it. */
static enum ox_status begin_run(struct ox_trainer *trainer) {
    trainer->made_run = true;
    trainer->identity.from_scratch = trainer->config.files.from_scratch;
    const enum ox_status status = mark_starting(trainer);
    return status == OX_OK ? ox_trainer_check_shared(trainer) : status;
}

static enum ox_status start_fresh(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    bool made = false;
    enum ox_status status = config->files.overwrite_output_dir ? OX_OK : refuse_existing(trainer);
    OX_THEN(status, claim_folder(trainer, &made));
    status = ox_trainer_agree(trainer, status, "the claim of the run's folder"); /* before anything is deleted */
    if (status != OX_OK) {
        return status;
    }
    /* Checked again, now that the lock keeps others from starting a run there. */
    status = make_way(trainer);
    OX_THEN(status, draw_run(trainer));
    OX_THEN(status, begin_run(trainer));
    if (status == OX_OK) {
        take_identity(trainer);
        status = create_store(trainer);
    }
    OX_THEN(status, check_room(trainer)); /* an earlier run is deleted by now, and the store has its room */
    OX_THEN(status, load_all(trainer, NULL));
    OX_THEN(status, mark_started(trainer));
    return status == OX_OK ? OX_OK : undo_start(trainer, made, status);
}

/* ---- resumed ---------------------------------------------------------------------------------------- */

/* Counts the steps that are left, of the size that they have now. */
static void set_steps_left(struct ox_trainer *trainer) {
    ox_trainer_set_steps(trainer);
    const uint64_t step = trainer->state.step, left = trainer->max_steps - ox_min_u64(step, trainer->max_steps);
    if (trainer->schedule.offset != 0) {
        ox_log(OX_LOG_INFO, "the size of a step has changed: %" PRIu64 " sequence%s were taken in %" PRIu64 " step%s, "
               "and what is left of --num-train-epochs %g takes %" PRIu64 " step%s of %" PRIu64 "; the learning rate "
               "goes on from its place in the data", trainer->state.cursor, ox_plural(trainer->state.cursor), step,
               ox_plural(step), trainer->config.train.num_train_epochs, left, ox_plural(left),
               ox_trainer_step_rows(trainer, 0));
    }
}

static enum ox_status take_state(struct ox_trainer *trainer, const struct ox_run_state *found, const char *origin) {
    if (found->version < OX_RUN_STATE_OLDEST || found->version > OX_RUN_STATE_VERSION) {
        return ox_fail(OX_E_CORRUPT, "%s: state of version %u, this program reads %d to %d", origin, found->version,
                       OX_RUN_STATE_OLDEST, OX_RUN_STATE_VERSION);
    }
    /* The place in the run is the record's; what this program computes with is ours, and a difference is told below. */
    const struct ox_run_state expected = trainer->state;
    trainer->state = *found;
    trainer->state.version = (uint16_t)ox_max_u64(found->version, OX_RUN_STATE_NAMES_FORMAT);
    trainer->state.optimizer = expected.optimizer;
    trainer->state.moments = expected.moments;
    if (expected.scale_code == 0 || found->scale_code == 0) { /* another --dtype or --loss-scale */
        trainer->state.scale_code = expected.scale_code;
        trainer->state.growth_tracker = 0;
    }
    if (found->version < OX_RUN_STATE_EPOCHS) {
        ox_log(OX_LOG_INFO, "%s: the run began with an earlier version, and keeps its warmup and its epochs: the first "
               "step has a rate above 0, and a step may take rows of two epochs; --config with its "
               "config.resolved.yaml keeps its other defaults, which have changed too", origin);
    }
    set_steps_left(trainer);
    OX_TRY(ox_trainer_look_at_model(trainer, origin));
    char differences[OX_OPTIONS_LINE_BYTES];
    if (found->numerics_hash != expected.numerics_hash) {
        ox_trainer_options_text(trainer, origin, false, differences);
        ox_log(OX_LOG_WARN, "%s: was made with other training options%s%s%s; from here on the run differs from one "
               "that was never interrupted", origin, differences[0] != '\0' ? ": " : "", differences,
               differences[0] != '\0' ? "" : ", which are not recorded beside it, on another device, with other "
               "libraries of it, with data that gives another number of steps, or by an earlier version, which adds in "
               "another order");
        trainer->state.numerics_hash = expected.numerics_hash;
    }
    if (found->data_fingerprint != expected.data_fingerprint) {
        ox_trainer_options_text(trainer, origin, true, differences);
        ox_log(OX_LOG_WARN, "%s: the data has changed since%s%s; the run goes on at window %" PRIu64 " of the new data",
               origin, differences[0] != '\0' ? ": " : "", differences, found->cursor);
        trainer->state.data_fingerprint = expected.data_fingerprint;
    }
    return OX_OK;
}

/* Resumes from the store, if it belongs to this branch of the run and is not older than the branch's newest checkpoint,
 * of step `step_min`. Else *resumed stays false. */
static enum ox_status resume_store(struct ox_trainer *trainer, uint64_t step_min, const char *checkpoint,
                                   bool *resumed) {
    const struct ox_run_identity *const identity = &trainer->identity;
    bool any = false;
    enum ox_status status = ox_trainer_any(trainer, ox_run_has_store(trainer), "whether there are stores", &any);
    if (status != OX_OK || !any) {
        return status;
    }
    status = ox_engine_store_open(trainer->engine, identity->run_id);
    if (identity->starting && (status == OX_E_CORRUPT || status == OX_E_CONFIG)) {
        ox_log(OX_LOG_INFO, "the store was not finished when an earlier process ended: %s", ox_error_text());
        return OX_OK;
    }
    if (status == OX_E_CORRUPT) {
        ox_log(OX_LOG_WARN, "the store is not used: %s", ox_error_text());
        return OX_OK;
    }
    if (status != OX_OK) {
        /* an intact store is never discarded for a passing fault or another setting */
        return ox_trainer_explain_store(trainer, checkpoint, status);
    }
    struct ox_store_info info;
    struct ox_commit_note note;
    ox_store_info(ox_engine_store(trainer->engine), &info);
    if (!info.committed || info.meta_bytes != sizeof note) {
        ox_log(identity->starting ? OX_LOG_INFO : OX_LOG_WARN, "the store holds no commit and is rewritten");
        return OX_OK;
    }
    memcpy(&note, info.meta, sizeof note);
    if (note.state.branch != identity->branch) {
        ox_log(identity->starting ? OX_LOG_INFO : OX_LOG_WARN, "the store belongs to a branch that the run has left, "
               "and is rewritten");
        return OX_OK;
    }
    if (info.step < step_min) {
        /* This happens if the last steps before a save had stayed uncommitted. */
        ox_log(OX_LOG_INFO, "the store is older than the newest checkpoint, and is rewritten");
        return OX_OK;
    }
    trainer->note = note;
    *resumed = true;
    status = take_state(trainer, &note.state, "the store");
    /* A run goes on with the mean that a checkpoint has. */
    return status == OX_OK && info.step == step_min && checkpoint[0] != '\0'
               ? ox_engine_average_residuals(trainer->engine) : status;
}

/* Opens a second engine with the same plan, because an engine cannot change its store; at the start this is cheap. */
static enum ox_status reopen_engine(struct ox_trainer *trainer) {
    ox_engine_close(&trainer->engine);
    enum ox_status status = ox_engine_plan_open(&trainer->engine_config, &trainer->plan);
    OX_THEN(status, ox_engine_open(&trainer->engine_config, &trainer->plan, &trainer->engine));
    return status;
}

static enum ox_status read_checkpoint(struct ox_trainer *trainer, const char *path) {
    struct ox_run_state found = {0};
    enum ox_status status = ox_trainer_leads(trainer) ? ox_checkpoint_verify(path) : OX_OK;
    if (status == OX_OK && ox_trainer_leads(trainer)) { /* before a store is removed for it */
        status = ox_checkpoint_check_trained(path, ox_hf_model(trainer->folder));
    }
    status = ox_trainer_agree(trainer, status, "the checkpoint");
    OX_THEN(status, ox_checkpoint_read_state(path, &found));
    return status == OX_OK ? take_state(trainer, &found, path) : status;
}

/* Creates the store again and loads a checkpoint into it, after read_checkpoint. */
static enum ox_status load_checkpoint(struct ox_trainer *trainer, const char *path) {
    const bool has_store = ox_run_has_store(trainer);
    bool any = false;
    enum ox_status status = ox_trainer_any(trainer, has_store, "whether there are stores", &any);
    take_identity(trainer);
    if (status == OX_OK && any) {
        ox_log(OX_LOG_INFO, "the store is rebuilt from %s", path);
        status = reopen_engine(trainer);
        OX_THEN(status,
                has_store ? ox_store_remove(trainer->drives.folders, trainer->config.memory.nvme_count) : OX_OK);
    }
    OX_THEN(status, create_store(trainer));
    OX_THEN(status, load_all(trainer, path));
    OX_THEN(status, ox_run_remove_others(trainer));
    if (status == OX_OK && ox_checkpoint_is_in(trainer->config.files.output_dir, path)) {
        trainer->saving.last_step = trainer->state.step + 1;
        snprintf(trainer->result, sizeof trainer->result, "%s", path);
    }
    return status;
}

/* Finds the newest checkpoint of the branch, or what the branch began with; "" if there is neither. */
static uint64_t find_checkpoint(const struct ox_trainer *trainer, char *path) {
    const char *const folder = trainer->config.files.output_dir;
    const struct ox_run_identity *const identity = &trainer->identity;
    struct ox_run_state state;
    if (ox_checkpoint_find_branch(folder, identity->run_id, identity->branch, path) == OX_OK &&
        ox_checkpoint_read_state(path, &state) == OX_OK) {
        return state.step;
    }
    const bool inside = identity->from[0] != '/';
    snprintf(path, OX_PATH_BYTES, "%s", identity->from);
    const bool good = identity->from[0] != '\0' && (!inside || ox_path_join(folder, identity->from, path) == OX_OK) &&
                      ox_checkpoint_read_state(path, &state) == OX_OK;
    path[0] = good ? path[0] : '\0';
    return good ? state.step : 0;
}

static enum ox_status open_run(struct ox_trainer *trainer) {
    bool made = false;
    const enum ox_status status =
        ox_trainer_agree(trainer, claim_folder(trainer, &made), "the claim of the run's folder");
    return status == OX_OK ? ox_run_find_identity(trainer, &trainer->identity) : status;
}

static enum ox_status resume_latest(struct ox_trainer *trainer, char *origin) {
    char path[OX_PATH_BYTES] = "";
    bool resumed = false;
    enum ox_status status = open_run(trainer);
    /* Drives before checkpoints: the store's last commit is mostly newer, and only an open store says so. */
    OX_THEN(status, ox_run_check_drives_given(trainer));
    OX_THEN(status, ox_run_is_released(trainer) ? ox_run_take_places(trainer) : OX_OK);
    /* From here on every process does the same: one with a refused drive must not leave the others waiting in a
     * store. */
    status = ox_trainer_agree(trainer, status, "the drives of the run");
    const uint64_t newest_step = status == OX_OK ? find_checkpoint(trainer, path) : 0;
    OX_THEN(status, resume_store(trainer, newest_step, path, &resumed));
    snprintf(origin, OX_PATH_BYTES, "%s", resumed ? "the store's last commit" : path);
    if (status == OX_OK && !resumed && path[0] == '\0') {
        return ox_fail(OX_E_CONFIG, "%s: has neither a complete checkpoint nor a usable store%s",
                       trainer->config.files.output_dir,
                       trainer->config.memory.nvme_count == 0
                           ? "; give the --nvme folders of the run if it had some, or start over with "
                             "--overwrite-output-dir"
                           : "; start over with --overwrite-output-dir");
    }
    if (status == OX_OK && !resumed) {
        /* Checked and read before anything on the drives is touched; the mark then tells a later start that what it
         * finds there was begun for this checkpoint and may be written over. */
        status = ox_run_check_stores(trainer);
        OX_THEN(status, read_checkpoint(trainer, path));
        OX_THEN(status, trainer->config.memory.nvme_count > 0 ? mark_starting(trainer) : OX_OK);
        OX_THEN(status, load_checkpoint(trainer, path));
    }
    /* Not `||`: each of them records something. */
    const bool changed = status == OX_OK && (ox_run_record_drives(&trainer->identity, trainer) |
                                             record_clock(trainer) | ox_trainer_record_arithmetic(trainer) |
                                             ox_trainer_record_formats(trainer) |
                                             trainer->identity.starting | trainer->identity.finished);
    trainer->identity.starting = trainer->identity.finished = false;
    if ((changed || (status == OX_OK && trainer->identity.is_outdated)) && ox_trainer_leads(trainer)) {
        status = ox_run_write_identity(trainer->config.files.output_dir, &trainer->identity);
    }
    return status;
}

/* Records where the branch begins, so that a crash before its first checkpoint does not lead back to another branch. */
static enum ox_status set_origin(struct ox_trainer *trainer, const char *path, const uint64_t source_id[2]) {
    struct ox_run_identity *const identity = &trainer->identity;
    char *const real = realpath(path, NULL);
    if (real == NULL || strlen(real) >= sizeof identity->from) {
        free(real);
        return ox_fail(OX_E_CONFIG, "%s: is too long a path", path);
    }
    const bool inside = ox_checkpoint_is_in(trainer->config.files.output_dir, path);
    snprintf(identity->from, sizeof identity->from, "%s", inside ? strrchr(real, '/') + 1 : real);
    free(real);
    if (memcmp(source_id, identity->run_id, sizeof identity->run_id) != 0) {
        memcpy(identity->parent, source_id, sizeof identity->parent);
    }
    return OX_OK;
}

/* Turns the run to the new branch, before anything of an old branch is given up. */
static enum ox_status turn_to(struct ox_trainer *trainer, const char *path) {
    enum ox_status status = mark_starting(trainer);
    if (status == OX_OK && ox_trainer_leads(trainer) && ox_checkpoint_is_in(trainer->config.files.output_dir, path)) {
        status = ox_checkpoint_make_latest(trainer->config.files.output_dir, path);
    }
    return status;
}

static enum ox_status begin_branch(struct ox_trainer *trainer, const char *path, bool fresh) {
    struct ox_run_identity *const identity = &trainer->identity;
    enum ox_status status = fresh ? draw_run(trainer) : ox_run_find_identity(trainer, identity);
    OX_THEN(status, ox_run_draw(&identity->branch, 1));
    OX_THEN(status, ox_team_share(trainer->team, &identity->branch, sizeof identity->branch, "the branch of the run"));
    if (status == OX_OK && !trainer->config.files.overwrite_output_dir) {
        status = ox_run_check_stores(trainer);
    }
    OX_THEN(status, read_checkpoint(trainer, path));
    OX_THEN(status, set_origin(trainer, path, trainer->state.run_id));
    if (status == OX_OK) {
        trainer->made_run = fresh;
        status = turn_to(trainer, path);
    }
    OX_THEN(status, load_checkpoint(trainer, path));
    return status == OX_OK ? mark_started(trainer) : status;
}

/* Resumes from a folder that the user names, on a new branch, in this output folder, as the run that is there or as a
 * new run. */
static enum ox_status resume_named(struct ox_trainer *trainer, char *origin) {
    const char *const path = trainer->config.files.resume_from_checkpoint;
    bool made = false;
    snprintf(origin, OX_PATH_BYTES, "%s", path);
    enum ox_status status = claim_folder(trainer, &made);
    if (status != OX_OK) {
        return status;
    }
    bool fresh = !ox_run_exists(trainer->config.files.output_dir);
    status = ox_team_share(trainer->team, &fresh, sizeof fresh, "whether the folder holds a run");
    OX_THEN(status, begin_branch(trainer, path, fresh));
    return status == OX_OK || !fresh ? status : undo_start(trainer, made, status);
}

/* ---- both ------------------------------------------------------------------------------------------- */

static enum ox_status write_descriptions(struct ox_trainer *trainer) {
    char path[OX_PATH_BYTES];
    char *plan = NULL;
    if (!ox_trainer_leads(trainer)) {
        return OX_OK;
    }
    enum ox_status status = ox_trainer_plan_text(trainer, OX_PLAN_TASKS, NULL, &plan);
    OX_THEN(status, ox_path_join(trainer->config.files.output_dir, "plan.txt", path));
    OX_THEN(status, ox_file_replace(path, plan, strlen(plan)));
    OX_THEN(status, ox_trainer_record_options(trainer));
    free(plan);
    return status;
}

/* The loss scale of the step that led to a state: half of the state's where that step made it grow. */
static double committed_scale(const struct ox_trainer *trainer, const struct ox_run_state *state) {
    return trainer->config.loss.loss_scale > 0 ? trainer->config.loss.loss_scale
                                               : ox_run_state_scale(state) / (state->growth_tracker == 0 ? 2 : 1);
}

/* Writes the line of metrics.jsonl that a process left out if it ended right after the commit; its timings are lost. */
static void restore_line(struct ox_trainer *trainer) {
    const struct ox_commit_note *const note = &trainer->note;
    struct ox_metrics_last last;
    ox_metrics_last(trainer->reports.metrics, &last);
    if (note->tokens > 0 && note->state.step == trainer->state.step && last.step < note->state.step) {
        const struct ox_step_report report = {
            .step = note->state.step, .max_steps = trainer->max_steps, .learning_rate = note->learning_rate,
            .epoch = ox_trainer_epoch(trainer), .epoch_steps = ox_trainer_epoch_steps(trainer),
            .tokens = note->tokens, .tokens_seen = note->state.tokens_seen, .wall_seconds = NAN,
            .energy = {.cpu = NAN, .gpu = NAN},
            .loss_scale = committed_scale(trainer, &note->state),
            .result = {.loss = note->loss, .grad_norm = note->grad_norm, .grad_scale = note->grad_scale,
                       .finite = true}};
        ox_metrics_step(trainer->reports.metrics, &report);
    }
    if (last.eval_step == trainer->state.step && last.eval_loss < trainer->state.best_eval_loss) {
        trainer->state.best_eval_loss = last.eval_loss; /* measured after the commit */
    }
}

static enum ox_status tell_text(const struct ox_trainer *trainer, char **text) {
    const enum ox_plan_detail detail = trainer->config.tool.verbose ? OX_PLAN_LANES : OX_PLAN_BRIEF;
    return ox_trainer_plan_text(trainer, detail, NULL, text);
}

/* Hands out the plan's text. */
static enum ox_status tell_plan(const struct ox_trainer *trainer) {
    char *text = NULL;
    const bool told = trainer->hooks->planned != NULL;
    const enum ox_status status = told ? tell_text(trainer, &text) : OX_OK;
    if (told && status == OX_OK) {
        trainer->hooks->planned(trainer->hooks->context, text);
    }
    free(text);
    return status;
}

/* Tokenizes texts, before memory is reserved and after everything that can be refused without them. The plan is told
 * then, because texts that train nothing are refused without it. */
static enum ox_status prepare_data(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    enum ox_status status = OX_OK;
    if (trainer->input.data_count == 0) {
        if (config->files.resume_from_checkpoint[0] == '\0' && !config->files.overwrite_output_dir) {
            status = refuse_existing(trainer);
        }
        OX_THEN(status, ox_trainer_in_turn(trainer, ox_trainer_open_data, "the data"));
        OX_THEN(status, ox_trainer_fit_steps(trainer));
        if (status != OX_OK) {
            return status;
        }
        status = tell_plan(trainer);
    }
    /* After the data, whose fingerprint and number of steps are part of it. A resume replaces this by what it finds. */
    const bool scales = ox_engine_precision(&trainer->engine_config)->scales && config->loss.loss_scale == 0;
    trainer->state = (struct ox_run_state){
        .version = OX_RUN_STATE_VERSION,
        .scale_code = (uint16_t)(scales ? config->loss.initial_scale_power + 1 : 0),
        .optimizer = (uint16_t)trainer->engine_config.state.kind,
        .moments = (uint16_t)trainer->engine_config.state.moments,
        .seed = config->train.seed,
        .data_fingerprint = ox_trainer_data_fingerprint(trainer),
        .numerics_hash = ox_trainer_numerics_hash(trainer),
        .best_eval_loss = INFINITY,
    };
    return status;
}

/* Says which of learning rate and warmup the run chose itself. */
static void announce_choices(const struct ox_trainer *trainer) {
    char rate[64] = "", warmup[64] = "";
    const uint64_t steps = trainer->schedule.warmup;
    if (trainer->chose_rate) {
        snprintf(rate, sizeof rate, "learning rate %g%s", trainer->schedule.peak,
                 trainer->config.loss.dpo ? ", which TRL's DPOConfig has" : "");
    }
    if (trainer->chose_warmup) {
        snprintf(warmup, sizeof warmup, "warmup over %" PRIu64 " step%s", steps, ox_plural(steps));
    }
    if (trainer->chose_rate || trainer->chose_warmup) {
        const char *const comma = trainer->chose_rate && trainer->chose_warmup ? ", " : "";
        ox_log(OX_LOG_INFO, "%s%s%s: chosen because weights are %s (%s%s%s)", rate, comma, warmup, trainer->chosen_for,
               trainer->chose_rate ? "--learning-rate" : "", comma, trainer->chose_warmup ? "--warmup-steps" : "");
    }
    if (trainer->chose_rate && ox_trainer_has_adapters(trainer)) {
        ox_log(OX_LOG_WARN, "learning rate %g is that of whole models; adapters usually need %s: give "
               "--learning-rate", trainer->schedule.peak,
               trainer->config.loss.dpo ? "5e-6, as in TRL's example" : "1e-4 to 2e-4");
    }
}

static enum ox_status make_foreign_rows(struct ox_trainer *trainer) {
    const size_t tokens = (size_t)trainer->engine_config.batch * trainer->engine_config.seq;
    trainer->foreign_rows = trainer->team == NULL ? NULL : calloc(3 * tokens, sizeof *trainer->foreign_rows);
    return trainer->team == NULL || trainer->foreign_rows != NULL ? OX_OK
                                                                  : ox_fail(OX_E_NOMEM, "no memory for a micro-batch");
}

enum ox_status ox_trainer_start(struct ox_trainer *trainer) {
    char origin[OX_PATH_BYTES];
    snprintf(origin, sizeof origin, "%s",
             ox_hf_has_weights(trainer->folder) ? trainer->config.files.model : "fresh weights");
    const char *const resume = trainer->config.files.resume_from_checkpoint;
    enum ox_status status = trainer->input.data_count > 0 ? tell_plan(trainer) : OX_OK;
    if (status == OX_OK && resume[0] == '\0' && !trainer->config.files.overwrite_output_dir) {
        status = check_room(trainer); /* before texts are tokenized */
    }
    OX_THEN(status, ox_trainer_check_drive_space(trainer));
    OX_THEN(status, prepare_data(trainer));
    OX_THEN(status, ox_trainer_compare(trainer));
    OX_THEN(status, ox_trainer_check_wear(trainer));
    OX_THEN(status, ox_trainer_check_trace(trainer));
    if (status == OX_OK) {
        trainer->engine_config.stop = &trainer->events->stop;
        status = make_foreign_rows(trainer);
    }
    if (status == OX_OK) {
        status = ox_engine_open(&trainer->engine_config, &trainer->plan, &trainer->engine);
    }
    OX_THEN(status, resume[0] == '\0'                ? start_fresh(trainer)
                    : strcmp(resume, "latest") == 0 ? resume_latest(trainer, origin) : resume_named(trainer, origin));
    OX_THEN(status, resume[0] == '\0' ? OX_OK : ox_trainer_check_shared(trainer));
    if (status == OX_OK && resume[0] != '\0' && trainer->state.step < trainer->max_steps) {
        status = check_room(trainer);
    }
    for (uint32_t i = 0; i < trainer->config.memory.nvme_count && status == OX_OK; i++) {
        status = ox_run_forget_finished(trainer->drives.folders[i]); /* it may get more than a checkpoint has */
    }
    if (status == OX_OK) {
        ox_config_count_steps(&trainer->config, trainer->max_steps); /* which a resumed run did not know before */
        announce_drives(trainer);
        ox_trainer_persist_start(trainer);
    }
    /* A new run has its options from its first commit on; an older one keeps those that it had until it goes on. */
    OX_THEN(status, trainer->made_run ? write_descriptions(trainer) : OX_OK);
    OX_THEN(status, ox_trainer_open_reports(trainer));
    OX_THEN(status, trainer->made_run ? OX_OK : write_descriptions(trainer));
    if (status == OX_OK && trainer->state.step > 0 && ox_trainer_leads(trainer)) {
        restore_line(trainer);
    }
    OX_THEN(status, ox_team_share(trainer->team, &trainer->state, sizeof trainer->state, "the state of the run"));
    if (status == OX_OK) {
        announce_choices(trainer);
    }
    if (status == OX_OK && trainer->hooks->start != NULL) {
        trainer->hooks->start(trainer->hooks->context, &(struct ox_run_start){
            .state = &trainer->state, .max_steps = trainer->max_steps, .epoch_steps = ox_trainer_epoch_steps(trainer),
            .epoch = ox_trainer_epoch(trainer), .origin = origin});
    }
    return status == OX_OK ? ox_trainer_find_reference(trainer) : status;
}
