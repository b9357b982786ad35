/* The start of a run: its folder and identity, then fresh weights, a checkpoint, or the store's last commit.
 *
 * run.json names the run (its id seeds the store's checksums). Nothing of an earlier run is deleted unless the user
 * asked for it, and then only after the plan is known to fit. */
#include "engine/trainer_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

uint64_t ox_trainer_numerics_hash(const struct ox_trainer *trainer) {
    const struct ox_config *const c = &trainer->config;
    const struct ox_engine_config *const e = &trainer->engine_config;
    const struct ox_model_config *const m = &e->model->config;
    char text[1024];
    const int bytes = snprintf(text, sizeof text,
        "%s %u %u %u %u %u %u %u|%u %u %u %d %d %d|%.17g %.17g %.17g %.17g %.17g %.17g|%d %" PRIu64
        " %.17g %.17g %" PRIu64 " %" PRIu64 "|%" PRIu64 " %s %u",
        m->family, m->vocab, m->hidden, m->layers, m->heads, m->kv_heads, m->head_dim, m->width, e->batch, e->seq,
        e->micro_batches, e->fp32, e->grad_bf16, e->decay_embeddings, c->learning_rate, c->weight_decay, c->adam_beta1,
        c->adam_beta2, c->adam_epsilon, c->max_grad_norm, (int)c->lr_scheduler_type, c->warmup_steps, c->warmup_ratio,
        c->min_lr_ratio, c->decay_steps, trainer->max_steps, c->seed, c->data_order, e->compute_threads);
    OX_ASSERT(bytes > 0 && (size_t)bytes < sizeof text);
    return ox_hash64(text, (size_t)bytes, 0);
}

/* ---- the run's folder ----------------------------------------------------------------------------- */

static enum ox_status write_identity(const struct ox_trainer *trainer) {
    char path[OX_PATH_BYTES], text[160];
    const enum ox_status status = ox_path_join(trainer->config.output_dir, "run.json", path);
    if (status != OX_OK) {
        return status;
    }
    const int bytes = snprintf(text, sizeof text, "{\"version\": 1, \"run_id\": \"%016" PRIx64 "%016" PRIx64 "\"}\n",
                               trainer->state.run_id[0], trainer->state.run_id[1]);
    return ox_file_replace(path, text, (size_t)bytes);
}

static enum ox_status read_identity(const char *output_dir, uint64_t run_id[2]) {
    char path[OX_PATH_BYTES];
    json_t *json = NULL;
    const char *text = NULL;
    enum ox_status status = ox_path_join(output_dir, "run.json", path);
    if (status == OX_OK) {
        status = ox_json_load(path, 1 << 16, &json);
    }
    if (status == OX_OK) {
        status = ox_json_get_string(path, json, "run_id", true, &text);
    }
    if (status == OX_OK &&
        (strlen(text) != 32 || sscanf(text, "%16" SCNx64 "%16" SCNx64, &run_id[0], &run_id[1]) != 2)) {
        status = ox_fail(OX_E_CORRUPT, "%s: run_id is not 32 hexadecimal digits", path);
    }
    json_decref(json);
    return status;
}

static bool has_run(const char *output_dir) {
    char path[OX_PATH_BYTES];
    return ox_path_join(output_dir, "run.json", path) == OX_OK && ox_path_is_file(path);
}

static bool has_store(const struct ox_trainer *trainer) {
    for (uint32_t i = 0; i < trainer->config.nvme_count; i++) {
        if (ox_store_exists(trainer->nvme_folders[i])) {
            return true;
        }
    }
    return false;
}

/* Removes what a run has written into its folder, and nothing else. */
static enum ox_status clear_folder(const char *output_dir) {
    static const char *const files[] = {"run.json", "metrics.jsonl", "plan.txt", "config.resolved.yaml", "latest"};
    char path[OX_PATH_BYTES];
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
        if (ox_path_join(output_dir, files[i], path) == OX_OK && unlink(path) == 0) {
            continue; /* a file that is not there needs no removal */
        }
    }
    DIR *const folder = opendir(output_dir);
    if (folder == NULL) {
        return ox_fail(OX_E_IO, "%s: cannot list the folder", output_dir);
    }
    enum ox_status status = OX_OK;
    for (struct dirent *entry = readdir(folder); entry != NULL && status == OX_OK; entry = readdir(folder)) {
        unsigned long long step = 0;
        int used = 0;
        const bool ours = sscanf(entry->d_name, "checkpoint-%llu%n", &step, &used) == 1 &&
                          (entry->d_name[used] == '\0' || strcmp(entry->d_name + used, ".tmp") == 0);
        if (ours) {
            status = ox_path_join(output_dir, entry->d_name, path);
            status = status == OX_OK ? ox_folder_remove(path) : status;
        }
    }
    closedir(folder);
    return status;
}

static enum ox_status check_drives(const struct ox_trainer *trainer) {
    for (uint32_t i = 0; i < trainer->config.nvme_count; i++) {
        if (!ox_path_is_folder(trainer->nvme_folders[i])) {
            return ox_fail(OX_E_CONFIG, "--nvme %s: is not a folder; create it, or mount the drive",
                           trainer->nvme_folders[i]);
        }
        if (access(trainer->nvme_folders[i], W_OK | X_OK) != 0) {
            return ox_fail(OX_E_CONFIG, "--nvme %s: this user may not write there; change its owner or give another "
                           "folder", trainer->nvme_folders[i]);
        }
    }
    return OX_OK;
}

static enum ox_status check_output(const struct ox_trainer *trainer) {
    const char *const folder = trainer->config.output_dir;
    if (access(folder, F_OK) == 0 && !ox_path_is_folder(folder)) {
        return ox_fail(OX_E_CONFIG, "--output %s: is a file, not a folder; give another name", folder);
    }
    if (ox_path_is_folder(folder) && access(folder, W_OK | X_OK) != 0) {
        return ox_fail(OX_E_CONFIG, "--output %s: nothing can be written there (read-only, or of another user); give "
                       "another folder", folder);
    }
    return OX_OK;
}

/* Drives without direct I/O work, but through the page cache: slower, and outside every budget. */
static void announce_drives(const struct ox_trainer *trainer) {
    const struct ox_store *const store = ox_engine_store(trainer->engine);
    for (uint32_t i = 0; store != NULL && i < trainer->config.nvme_count; i++) {
        struct ox_drive_info info;
        if (ox_store_drive_info(store, i, &info) == OX_OK && !info.direct) {
            ox_log(OX_LOG_WARN, "%s: degraded: goes through the page cache, which no budget counts (%s)", info.path,
                   info.note);
        }
    }
}

/* ---- fresh ------------------------------------------------------------------------------------------ */

static enum ox_status load_all(struct ox_trainer *trainer, const char *checkpoint) {
    enum ox_status status = ox_engine_load_begin(trainer->engine, trainer->state.step);
    if (status == OX_OK && checkpoint != NULL) {
        status = ox_checkpoint_load(trainer->engine, checkpoint);
    } else if (status == OX_OK && ox_hf_has_weights(trainer->folder)) {
        status = ox_engine_load_weights(trainer->engine, trainer->folder);
    } else if (status == OX_OK) {
        status = ox_engine_init_weights(trainer->engine, trainer->config.seed);
    }
    trainer->note = (struct ox_commit_note){.state = trainer->state};
    return status == OX_OK ? ox_engine_load_commit(trainer->engine, &trainer->note, sizeof trainer->note) : status;
}

static enum ox_status create_store(struct ox_trainer *trainer) {
    if (trainer->config.nvme_count == 0) {
        return OX_OK;
    }
    return ox_engine_store_create(trainer->engine, trainer->state.run_id);
}

static enum ox_status refuse_existing(const struct ox_trainer *trainer) {
    const char *const folder = trainer->config.output_dir;
    if (has_run(folder)) {
        return ox_fail(OX_E_CONFIG, "%s: already holds a run; add --resume-from-checkpoint latest to go on with it, or "
                       "--overwrite-output-dir to start over", folder);
    }
    if (has_store(trainer)) {
        return ox_fail(OX_E_CONFIG, "--nvme %s: holds the store of another run; use another folder, or "
                       "--overwrite-output-dir to delete it", trainer->nvme_folders[0]);
    }
    return OX_OK;
}

/* The store first: when another process has it, nothing is deleted. */
static enum ox_status clear_run(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    enum ox_status status = OX_OK;
    if (has_store(trainer)) {
        status = ox_store_remove(trainer->nvme_folders, config->nvme_count);
    }
    return status == OX_OK && ox_path_is_folder(config->output_dir) ? clear_folder(config->output_dir) : status;
}

/* After a start that failed before the run had an identity: without this its store would stand in the way of the next
 * attempt. Keeps the text of the first failure. */
static enum ox_status undo_start(struct ox_trainer *trainer, bool made_folder, enum ox_status failure) {
    char text[OX_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", ox_error_text());
    const bool made_store = trainer->engine != NULL && ox_engine_store(trainer->engine) != NULL;
    ox_engine_close(&trainer->engine);
    if (made_store && ox_store_remove(trainer->nvme_folders, trainer->config.nvme_count) != OX_OK) {
        ox_log(OX_LOG_WARN, "%s", ox_error_text());
    }
    if (made_folder && rmdir(trainer->config.output_dir) != 0) {
        ox_log(OX_LOG_WARN, "%s: the new folder stays behind", trainer->config.output_dir);
    }
    return ox_fail(failure, "%s", text);
}

static enum ox_status start_fresh(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    enum ox_status status = config->overwrite_output_dir ? clear_run(trainer) : refuse_existing(trainer);
    if (status != OX_OK) {
        return status;
    }
    const bool makes_folder = !ox_path_is_folder(config->output_dir);
    status = ox_folder_make(config->output_dir);
    if (status != OX_OK) {
        return status;
    }
    if (getrandom(trainer->state.run_id, sizeof trainer->state.run_id, 0) != (ssize_t)sizeof trainer->state.run_id) {
        status = ox_fail(OX_E_IO, "the kernel gave no random numbers for the run's identity");
    }
    if (status == OX_OK) {
        status = create_store(trainer);
    }
    if (status == OX_OK) {
        status = load_all(trainer, NULL);
    }
    if (status == OX_OK) {
        status = write_identity(trainer);
    }
    return status == OX_OK ? OX_OK : undo_start(trainer, makes_folder, status);
}

/* ---- resumed ---------------------------------------------------------------------------------------- */

static enum ox_status take_state(struct ox_trainer *trainer, const struct ox_run_state *found, const char *origin) {
    if (found->version != OX_RUN_STATE_VERSION) {
        return ox_fail(OX_E_CORRUPT, "%s: state of version %u, this program reads %d", origin, found->version,
                       OX_RUN_STATE_VERSION);
    }
    const struct ox_run_state expected = trainer->state;
    trainer->state = *found;
    if (found->numerics_hash != expected.numerics_hash) {
        ox_log(OX_LOG_WARN, "%s: was made with other training options; from here on the run differs from one that was "
               "never interrupted", origin);
        trainer->state.numerics_hash = expected.numerics_hash;
    }
    if (found->data_fingerprint != expected.data_fingerprint) {
        ox_log(OX_LOG_WARN, "%s: the data has changed since; the run goes on at window %" PRIu64 " of the new data",
               origin, found->cursor);
        trainer->state.data_fingerprint = expected.data_fingerprint;
    }
    return OX_OK;
}

/* The store, when it is this run's and not behind the newest checkpoint. *resumed stays false when it is of no use. */
static enum ox_status resume_store(struct ox_trainer *trainer, const uint64_t run_id[2], uint64_t step_min,
                                   bool *resumed) {
    if (!has_store(trainer)) {
        return OX_OK;
    }
    enum ox_status status = ox_engine_store_open(trainer->engine, run_id);
    if (status == OX_E_BUSY) {
        return status;
    }
    struct ox_store_info info = {0};
    if (status == OX_OK) {
        ox_store_info(ox_engine_store(trainer->engine), &info);
    }
    if (status == OX_OK && info.committed && info.meta_bytes == sizeof trainer->note && info.step >= step_min) {
        memcpy(&trainer->note, info.meta, sizeof trainer->note);
        *resumed = true;
        return take_state(trainer, &trainer->note.state, "the store");
    }
    if (status != OX_OK && status != OX_E_CORRUPT) {
        return status; /* a store that is whole is never given up for a passing fault or another setting */
    }
    if (status == OX_E_CORRUPT) {
        ox_log(OX_LOG_WARN, "the store is not used: %s", ox_error_text());
    } else {
        ox_log(OX_LOG_WARN, "the store is behind the newest checkpoint and is written anew");
    }
    return OX_OK;
}

/* The engine cannot change stores once one is open: a second engine with the same plan is cheap at start. */
static enum ox_status reopen_engine(struct ox_trainer *trainer) {
    ox_engine_close(&trainer->engine);
    enum ox_status status = ox_engine_plan_open(&trainer->engine_config, &trainer->plan);
    if (status == OX_OK) {
        status = ox_engine_open(&trainer->engine_config, &trainer->plan, &trainer->engine);
    }
    return status;
}

static enum ox_status resume_folder(struct ox_trainer *trainer, const char *path) {
    struct ox_run_state found = {0};
    enum ox_status status = ox_checkpoint_verify(path);
    if (status == OX_OK) {
        status = ox_checkpoint_read_state(path, &found);
    }
    if (status == OX_OK) {
        status = take_state(trainer, &found, path);
    }
    if (status == OX_OK && has_store(trainer)) {
        ox_log(OX_LOG_INFO, "the store is rebuilt from %s", path);
        status = reopen_engine(trainer);
        if (status == OX_OK) {
            status = ox_store_remove(trainer->nvme_folders, trainer->config.nvme_count);
        }
    }
    if (status == OX_OK) {
        status = create_store(trainer);
    }
    return status == OX_OK ? load_all(trainer, path) : status;
}

static enum ox_status resume_latest(struct ox_trainer *trainer, char *origin) {
    const char *const folder = trainer->config.output_dir;
    uint64_t run_id[2];
    if (!has_run(folder)) {
        return ox_fail(OX_E_CONFIG, "%s: holds no run to go on with; leave --resume-from-checkpoint away to start one",
                       folder);
    }
    enum ox_status status = read_identity(folder, run_id);
    if (status != OX_OK) {
        return status;
    }
    struct ox_run_state newest = {0};
    char path[OX_PATH_BYTES] = "";
    const bool has_checkpoint = ox_checkpoint_find_latest(folder, path) == OX_OK &&
                                ox_checkpoint_read_state(path, &newest) == OX_OK;
    bool resumed = false;
    status = resume_store(trainer, run_id, has_checkpoint ? newest.step : 0, &resumed);
    if (status != OX_OK || resumed) {
        snprintf(origin, OX_PATH_BYTES, "the store's last commit");
        return status;
    }
    if (!has_checkpoint) {
        return ox_fail(OX_E_CONFIG, "%s: has neither a complete checkpoint nor a usable store%s", folder,
                       trainer->config.nvme_count == 0 ? " (was the run started with --nvme? give the same folders)"
                                                       : "");
    }
    snprintf(origin, OX_PATH_BYTES, "%s", path);
    return resume_folder(trainer, path);
}

/* From a folder the user names; into this output folder, under this run's identity or a new one. */
static enum ox_status resume_named(struct ox_trainer *trainer, char *origin) {
    const char *const output_dir = trainer->config.output_dir;
    const char *const path = trainer->config.resume_from_checkpoint;
    snprintf(origin, OX_PATH_BYTES, "%s", path);
    if (!ox_path_is_folder(path)) {
        return ox_fail(OX_E_CONFIG, "--resume-from-checkpoint %s: there is no such folder; give latest, or a "
                       "checkpoint-N folder", path);
    }
    const bool fresh = !has_run(output_dir);
    if (fresh && has_store(trainer) && !trainer->config.overwrite_output_dir) {
        return refuse_existing(trainer);
    }
    const bool makes_folder = !ox_path_is_folder(output_dir);
    enum ox_status status = ox_folder_make(output_dir);
    if (status != OX_OK) {
        return status;
    }
    status = resume_folder(trainer, path);
    if (status == OX_OK) {
        status = write_identity(trainer);
    }
    return status == OX_OK || !fresh ? status : undo_start(trainer, makes_folder, status);
}

/* ---- both ------------------------------------------------------------------------------------------- */

static enum ox_status write_descriptions(struct ox_trainer *trainer) {
    char path[OX_PATH_BYTES];
    char *yaml = NULL, *plan = NULL;
    enum ox_status status = ox_config_to_yaml(&trainer->config, OX_CMD_TRAIN, &yaml);
    if (status == OX_OK) {
        status = ox_path_join(trainer->config.output_dir, "config.resolved.yaml", path);
    }
    if (status == OX_OK) {
        status = ox_file_replace(path, yaml, strlen(yaml));
    }
    if (status == OX_OK) {
        status = ox_trainer_plan_text(trainer, true, &plan);
    }
    if (status == OX_OK) {
        status = ox_path_join(trainer->config.output_dir, "plan.txt", path);
    }
    if (status == OX_OK) {
        status = ox_file_replace(path, plan, strlen(plan));
    }
    free(plan);
    free(yaml);
    return status;
}

/* A process that ended between a commit and its line in metrics.jsonl owes that line; its timings are lost. */
static void restore_line(struct ox_trainer *trainer) {
    const struct ox_commit_note *const note = &trainer->note;
    struct ox_metrics_last last;
    ox_metrics_last(trainer->metrics, &last);
    if (note->tokens > 0 && note->state.step == trainer->state.step && last.step < note->state.step) {
        const struct ox_step_report report = {
            .step = note->state.step, .max_steps = trainer->max_steps, .learning_rate = note->learning_rate,
            .tokens = note->tokens, .tokens_seen = note->state.tokens_seen, .wall_seconds = NAN,
            .result = {.loss = note->loss, .grad_norm = note->grad_norm, .grad_scale = note->grad_scale,
                       .finite = true}};
        ox_metrics_step(trainer->metrics, &report);
    }
    if (last.eval_step == trainer->state.step && last.eval_loss < trainer->state.best_eval_loss) {
        trainer->state.best_eval_loss = last.eval_loss; /* measured after the commit */
    }
}

enum ox_status ox_trainer_start(struct ox_trainer *trainer) {
    char origin[OX_PATH_BYTES];
    snprintf(origin, sizeof origin, "%s", ox_hf_has_weights(trainer->folder) ? trainer->config.model : "fresh weights");
    trainer->state = (struct ox_run_state){
        .version = OX_RUN_STATE_VERSION,
        .seed = trainer->config.seed,
        .data_fingerprint = ox_data_fingerprint(trainer->data),
        .numerics_hash = ox_trainer_numerics_hash(trainer),
        .best_eval_loss = INFINITY,
    };
    const char *const resume = trainer->config.resume_from_checkpoint;
    enum ox_status status = check_drives(trainer);
    if (status == OX_OK) {
        status = check_output(trainer);
    }
    if (status == OX_OK) {
        status = ox_engine_open(&trainer->engine_config, &trainer->plan, &trainer->engine);
    }
    if (status == OX_OK) {
        status = resume[0] == '\0'                ? start_fresh(trainer)
                 : strcmp(resume, "latest") == 0 ? resume_latest(trainer, origin) : resume_named(trainer, origin);
    }
    if (status == OX_OK) {
        announce_drives(trainer);
        status = write_descriptions(trainer);
    }
    if (status == OX_OK) {
        status = ox_metrics_open(trainer->config.output_dir, trainer->state.step, &trainer->metrics);
    }
    if (status == OX_OK && trainer->state.step > 0) {
        restore_line(trainer);
    }
    if (status == OX_OK && trainer->hooks->start != NULL) {
        trainer->hooks->start(trainer->hooks->context, &trainer->state, trainer->max_steps, origin);
    }
    return status;
}
