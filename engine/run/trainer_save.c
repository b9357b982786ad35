/* Decides when a run saves, what the folder says of its tokenizer, and what a failed save means for the run; and how
 * often a step is committed. */
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/step/tracing.h"
#include "engine/text/chat.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* ---- what saved folders say of the tokenizer --------------------------------------------------------- */

/* Adds a token that ends a text, if the model has it. */
static void add_end(struct ox_trainer *trainer, int64_t id) {
    struct ox_hf_tokens *const tokens = &trainer->input.tokens;
    bool known = false;
    for (uint32_t i = 0; i < tokens->end_count && !known; i++) {
        known = tokens->ends[i] == id;
    }
    if (id >= 0 && id < (int64_t)trainer->input.vocab && !known && tokens->end_count < OX_HF_ENDS_MAX) {
        tokens->ends[tokens->end_count++] = id;
    }
}

/* Takes the texts of the template, and the tokens at which turns of the assistant end. */
static enum ox_status take_template(struct ox_trainer *trainer, const struct ox_tokenizer *tokenizer) {
    const struct ox_config *const config = &trainer->config;
    struct ox_template *chat_template = NULL;
    struct ox_chat_renderer *renderer = NULL;
    json_t *kwargs = NULL;
    struct ox_ids ends = {0};
    enum ox_status status = ox_template_open(trainer->input.tokenizer_path, config->rows.chat_template, &chat_template);
    if (status == OX_E_CONFIG && config->rows.chat_template[0] == '\0' && !ox_trainer_has_conversations(trainer)) {
        return OX_OK; /* rows that are texts need none */
    }
    OX_THEN(status, ox_chat_kwargs(config->rows.chat_template_kwargs, &kwargs));
    const struct ox_chat_options options = {
        .chat_template = chat_template, .kwargs = kwargs, .now = ox_chat_date(trainer->input.clock_s)};
    OX_THEN(status, ox_chat_open(tokenizer, &options, &renderer));
    OX_THEN(status, ox_chat_ends_of_turn(renderer, &ends));
    OX_THEN(status, ox_template_texts(chat_template, &trainer->input.tokens.templates));
    /* Generation stops at each of these, and so does transformers where it reads the saved folder. */
    for (size_t i = 0; i < ends.count && status == OX_OK; i++) {
        add_end(trainer, ends.ids[i]);
    }
    ox_ids_free(&ends);
    ox_chat_close(&renderer);
    ox_template_close(&chat_template);
    json_decref(kwargs);
    return status;
}

/* An id that the model has, else -1. */
static int64_t known_id(const struct ox_trainer *trainer, int64_t id) {
    return id < (int64_t)trainer->input.vocab ? id : -1;
}

static enum ox_status find_tokens(struct ox_trainer *trainer) {
    struct ox_hf_tokens *const tokens = &trainer->input.tokens;
    struct ox_tokenizer *tokenizer = NULL;
    enum ox_status status = ox_tokenizer_open(trainer->input.tokenizer_path, &tokenizer);
    if (status == OX_OK) {
        *tokens = (struct ox_hf_tokens){.bos = known_id(trainer, ox_tokenizer_bos(tokenizer)),
                                        .pad = known_id(trainer, ox_tokenizer_pad(tokenizer)),
                                        .replaces = !trainer->begins_given || trainer->config.files.from_scratch};
        add_end(trainer, ox_tokenizer_eos(tokenizer));
    }
    char further[OX_PATH_BYTES];
    OX_THEN(status, ox_path_join(trainer->input.tokenizer_path, OX_HF_TEMPLATES, further));
    if (ox_trainer_has_conversations(trainer) || trainer->config.rows.chat_template[0] != '\0' ||
        (status == OX_OK && ox_path_is_folder(further))) {
        OX_THEN(status, take_template(trainer, tokenizer));
    }
    ox_tokenizer_close(&tokenizer);
    OX_THEN(status, ox_hf_config_with(ox_hf_config(trainer->folder), tokens, &trainer->input.saved_config));
    return status;
}

/* A model is saved with the tokenizer that it was trained with. */
static const char *source_model(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const char *const own = trainer->input.tokenizer_path;
    return config->files.tokenizer[0] != '\0'                     ? config->files.tokenizer
           : config->parts.adapter[0] != '\0' && own[0] != '\0'   ? own
           : ox_path_is_folder(config->files.model)               ? config->files.model
                                                                  : "";
}

enum ox_status ox_trainer_find_tokens(struct ox_trainer *trainer) {
    const struct ox_trainer_input *const input = &trainer->input;
    if (input->eval_alone || input->tokenizer_path[0] == '\0' || trainer->folder == NULL ||
        trainer->config.files.output_dir[0] == '\0') {
        return OX_OK;
    }
    ox_trainer_drop_tokens(trainer);
    const enum ox_status status = find_tokens(trainer);
    if (status == OX_E_CONFIG || status == OX_E_CORRUPT) { /* data that needs it has been refused */
        ox_log(OX_LOG_WARN, "what is saved says nothing of the tokenizer: %s", ox_error_text());
        ox_trainer_drop_tokens(trainer);
        return OX_OK;
    }
    trainer->input.has_tokens = status == OX_OK;
    if (status == OX_OK && ox_trainer_leads(trainer)) {
        ox_hf_warn_tokens(source_model(trainer), &input->tokens);
    }
    return status;
}

void ox_trainer_drop_tokens(struct ox_trainer *trainer) {
    json_decref(trainer->input.tokens.templates);
    json_decref(trainer->input.saved_config);
    trainer->input.tokens = (struct ox_hf_tokens){0};
    trainer->input.saved_config = NULL;
    trainer->input.has_tokens = false;
}

/* ---- saving ------------------------------------------------------------------------------------------ */

static const uint64_t SHARD_BYTES_MAX = UINT64_C(5000000000); /* as huggingface_hub writes them */
static const uint64_t TELL_NS = UINT64_C(60000000000);

static struct ox_checkpoint_save how_to_save(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    return (struct ox_checkpoint_save){
        .output_dir = config->files.output_dir,
        .source_model = source_model(trainer),
        .tokenizer_file = config->files.tokenizer[0] != '\0' && !ox_path_is_folder(config->files.tokenizer)
                              ? config->files.tokenizer
                              : NULL,
        .original_config =
            trainer->input.saved_config != NULL ? trainer->input.saved_config : ox_hf_config(trainer->folder),
        .tokens = trainer->input.has_tokens ? &trainer->input.tokens : NULL,
        .base_model = ox_hf_base_path(trainer->folder),
        .base_hash = trainer->base_hash,
        .source_config = ox_hf_config(trainer->folder),
        .eval = trainer->last_eval.step <= trainer->state.step ? trainer->last_eval : (struct ox_last_eval){0},
        .weights_dtype = ox_dtype_of_word(config->save.save_dtype),
        .shard_bytes_max = SHARD_BYTES_MAX,
        .total_limit = config->save.save_total_limit,
        .state_limit = config->save.save_optimizer_limit,
        .weights_alone = config->save.save_only_model,
    };
}

static double seconds_since(uint64_t begin_ns) {
    return (double)(ox_clock_ns() - begin_ns) * 1e-9;
}

static bool is_saved(const struct ox_trainer *trainer) {
    return trainer->saving.last_step == trainer->state.step + 1;
}

/* A checkpoint that began at `begin_ns`, and for which training has waited. */
static void report_saved(struct ox_trainer *trainer, uint64_t step, uint64_t begin_ns, double stall_seconds) {
    const struct ox_save_report report = {.step = trainer->state.step, .checkpoint_step = step,
                                          .seconds = seconds_since(begin_ns), .stall_seconds = stall_seconds};
    char name[64];
    trainer->saving.last_step = step + 1;
    trainer->saving.count++;
    trainer->saving.stall_seconds += stall_seconds;
    snprintf(name, sizeof name, "checkpoint-%" PRIu64, step);
    if (ox_path_join(trainer->config.files.output_dir, name, trainer->result) != OX_OK) {
        trainer->result[0] = '\0';
    }
    ox_trainer_report_save(trainer, &report);
    ox_trainer_sync_reports(trainer); /* the lines up to a checkpoint are as safe as it is */
    if (trainer->hooks->saved != NULL) {
        trainer->hooks->saved(trainer->hooks->context, trainer->result, &report);
    }
}

static void report_not_saved(uint64_t step) {
    ox_log(OX_LOG_WARN, "no checkpoint at step %" PRIu64 ": %s", step, ox_error_text());
}

static void close_tee(struct ox_trainer *trainer, uint64_t begin_ns) {
    double written = 0;
    const enum ox_status status = ox_checkpoint_tee_close(&trainer->saving.tee, &written);
    ox_engine_trace_span(trainer->engine, OX_TRACE_SPAN_SAVE, trainer->saving.tee_state.step,
                         trainer->saving.tee_begin_ns);
    if (status == OX_OK) {
        report_saved(trainer, trainer->saving.tee_state.step, trainer->saving.tee_begin_ns,
                     trainer->saving.tee_seconds + written + seconds_since(begin_ns));
    } else {
        report_not_saved(trainer->saving.tee_state.step);
    }
}

void ox_trainer_save_poll(struct ox_trainer *trainer) {
    if (trainer->saving.tee != NULL && ox_checkpoint_tee_ready(trainer->saving.tee)) {
        close_tee(trainer, ox_clock_ns());
    }
}

enum ox_status ox_trainer_finish_update(struct ox_trainer *trainer) {
    const enum ox_status status = ox_engine_finish_update(trainer->engine);
    trainer->is_torn = trainer->is_torn || status != OX_OK;
    return status;
}

bool ox_trainer_save_waits(const struct ox_trainer *trainer) {
    return trainer->saving.tee != NULL || ox_engine_store(trainer->engine) == NULL ||
           trainer->config.memory.store_generations == 1 ||
           ox_engine_has_residuals(trainer->engine); /* of which all copies take the mean */
}

/* Finishes a checkpoint that is being written: waits for the drive, or abandons it if chunks are missing that the
 * engine no longer has. No step is in flight. */
static void finish_checkpoint(struct ox_trainer *trainer) {
    if (trainer->saving.tee == NULL) {
        return;
    }
    const uint64_t begin_ns = ox_clock_ns();
    /* If steps overlap, the update that shows the planes to the checkpoint may still be pending. */
    const bool finished = !trainer->is_torn && ox_trainer_finish_update(trainer) == OX_OK;
    if (finished && trainer->state.optimizer_steps == trainer->saving.tee_state.optimizer_steps) {
        ox_checkpoint_tee_fill(trainer->saving.tee); /* no step has changed the state since then */
    }
    close_tee(trainer, begin_ns);
}

static enum ox_status save(struct ox_trainer *trainer) {
    const uint64_t begin_ns = ox_clock_ns();
    /* If this fails, the engine is at an earlier step than trainer->state. */
    enum ox_status status = ox_trainer_finish_update(trainer);
    if (status != OX_OK) {
        return status;
    }
    finish_checkpoint(trainer);
    if (is_saved(trainer)) {
        return OX_OK;
    }
    const struct ox_checkpoint_save how = how_to_save(trainer);
    status = ox_checkpoint_write(trainer->engine, &trainer->state, &how);
    trainer->saving.failed = status != OX_OK;
    ox_engine_trace_span(trainer->engine, OX_TRACE_SPAN_SAVE, trainer->state.step, begin_ns);
    if (status == OX_OK) {
        ox_trainer_note_saved(trainer, &how.eval, trainer->state.step);
        report_saved(trainer, trainer->state.step, begin_ns, seconds_since(begin_ns));
    }
    return status;
}

/* ---- the last save ----------------------------------------------------------------------------------- */

/* Whether the stores of all processes have the state that the run is at. All ask at once and get the same answer; one
 * that does not reach the others gets its own. */
static bool stores_have_it(const struct ox_trainer *trainer) {
    const struct ox_store *const store = ox_engine_store(trainer->engine);
    struct ox_store_info info = {.committed = false};
    if (store != NULL) {
        ox_store_info(store, &info);
    }
    const bool lacks = !info.committed || info.step != trainer->state.step || ox_store_has_vanished(store);
    bool any = lacks;
    return ox_trainer_any(trainer, lacks, "whether the stores have the state", &any) == OX_OK ? !any : !lacks;
}

struct last_save {
    uint64_t begin_ns, try_ns; /* of the first try, and of the newest */
    uint64_t told_ns;          /* when a warning last named the failure */
    int stop;                  /* the signal that had come before it */
    const char *cause;         /* the failure that ends the run; NULL: it ends well */
    char told[OX_ERROR_TEXT_BYTES];
};

/* Waits until the next try is due; false if the time is over, or if any process is asked to stop. */
static bool await_try(const struct ox_trainer *trainer, const struct last_save *last, uint64_t pause_ns) {
    enum { GO_ON, TRY, END };
    const uint64_t begin_ns = ox_clock_ns(), limit_ns = (uint64_t)(trainer->config.train.save_wait_seconds * 1e9);
    for (;;) {
        const uint64_t now_ns = ox_clock_ns();
        const bool leads = ox_trainer_leads(trainer); /* its clock counts */
        const int mine = trainer->events->stop != last->stop || (leads && now_ns - last->begin_ns >= limit_ns) ? END
                         : leads && now_ns - begin_ns >= pause_ns ? TRY : GO_ON;
        int all[OX_TEAM_MAX] = {0}, next = GO_ON;
        if (ox_team_gather(trainer->team, OX_TEAM_RUN, &mine, sizeof mine, all, "whether to save again") != OX_OK) {
            ox_log(OX_LOG_WARN, "the save is not tried again: %s", ox_error_text());
            return false;
        }
        for (uint32_t i = 0; i < ox_team_count(trainer->team); i++) {
            next = all[i] > next ? all[i] : next;
        }
        if (next != GO_ON) {
            return next == TRY;
        }
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}

/* Whether no place could take the state. */
static bool is_final(enum ox_status failure) {
    return failure == OX_E_ABORTED || failure == OX_E_COMM || failure == OX_E_DEVICE || failure == OX_E_MEMORY;
}

/* Whether a failed save fails again until somebody changes a name, a permission or a mount (base/file.c gives those
 * OX_E_CONFIG), for which it is not waited where another place takes the state: a disk may get room by itself. */
static bool is_lasting(enum ox_status failure) {
    return failure == OX_E_CONFIG;
}

/* Says what is wrong and how to end it. A text that changes with each try, as one that tells the free bytes of a disk
 * in use, is told once a minute. */
static void tell_unsaved(const struct ox_trainer *trainer, struct last_save *last, const char *text) {
    const uint64_t now_ns = ox_clock_ns();
    char limit[OX_SIZE_TEXT_BYTES], elsewhere[OX_PATH_BYTES], end[OX_PATH_BYTES + 64] = "ends the run without it";
    if (strcmp(text, last->told) == 0 || (last->told_ns > 0 && now_ns - last->told_ns < TELL_NS)) {
        return;
    }
    if (last->told_ns == 0 && last->cause != NULL) {
        ox_log(OX_LOG_WARN, "the run ends by a failure after its last save: %s", last->cause);
    }
    last->told_ns = now_ns;
    snprintf(last->told, sizeof last->told, "%s", text);
    if (ox_trainer_find_elsewhere(trainer, elsewhere)) {
        snprintf(end, sizeof end, "saves it in %s and ends the run", elsewhere);
    }
    ox_log(OX_LOG_WARN, "only memory has the state of step %" PRIu64 ", and its checkpoint cannot be saved: %s; mend "
           "that: the save is tried again for %s (--save-wait-seconds), or until Ctrl-C (SIGINT) or SIGTERM %s",
           trainer->state.step, text,
           ox_duration_flag_text((uint64_t)(trainer->config.train.save_wait_seconds * 1e9), limit), end);
}

/* Whether the run's folder is where it was; if not, the next try may find it or make it again. */
static bool folder_is_there(const struct ox_trainer *trainer) {
    struct stat locked, named;
    return trainer->lock_fd >= 0 && fstat(trainer->lock_fd, &locked) == 0 &&
           stat(trainer->config.files.output_dir, &named) == 0 && named.st_dev == locked.st_dev &&
           named.st_ino == locked.st_ino;
}

/* After a failed last save: if only memory has the state, and somebody may mend the cause, says so and waits for the
 * next try. Returns the failure if there is none. */
static enum ox_status await_mended(struct ox_trainer *trainer, struct last_save *last, enum ox_status failure) {
    const uint64_t second_ns = UINT64_C(1000000000);
    const uint64_t pause_ns = ox_min_u64(ox_max_u64(ox_clock_ns() - last->try_ns, second_ns), 60 * second_ns);
    char text[OX_ERROR_TEXT_BYTES], elsewhere[OX_PATH_BYTES];
    if (is_final(failure) || trainer->config.train.save_wait_seconds == 0 || trainer->is_torn ||
        stores_have_it(trainer)) {
        return failure;
    }
    snprintf(text, sizeof text, "%s", ox_error_text());
    if (is_lasting(failure) && folder_is_there(trainer) && ox_trainer_find_elsewhere(trainer, elsewhere)) {
        return ox_fail(failure, "%s", text);
    }
    if (ox_trainer_leads(trainer)) {
        tell_unsaved(trainer, last, text);
    }
    bool again = await_try(trainer, last, pause_ns);
    if (again && trainer->team == NULL && ox_run_check_folder(trainer) != OX_OK) {
        ox_log(OX_LOG_WARN, "%s", ox_error_text());
        again = !trainer->saving.failed;
    }
    last->try_ns = ox_clock_ns();
    return again ? OX_OK : ox_fail(failure, "%s", text);
}

/* Adds to the error of a last save where the state is now: it is saved elsewhere if only memory has it. */
static enum ox_status fail_unsaved(struct ox_trainer *trainer, enum ox_status failure) {
    struct ox_checkpoint_save how = how_to_save(trainer);
    const enum ox_status as = failure == OX_E_CONFIG ? OX_E_IO : failure; /* what was asked for was right */
    char text[OX_ERROR_TEXT_BYTES], elsewhere[OX_PATH_BYTES];
    snprintf(text, sizeof text, "%s", ox_error_text());
    how.weights_alone = false; /* a run is to go on from it */
    if (stores_have_it(trainer)) {
        return ox_fail(as, "%s; nothing is lost: the store has step %" PRIu64 ", and the same command with "
                       "--resume-from-checkpoint latest saves it", text, trainer->state.step);
    }
    if (!is_final(failure) && ox_trainer_save_elsewhere(trainer, &how, elsewhere) == OX_OK) {
        return ox_fail(as, "%s; step %" PRIu64 " is saved in %s instead, and --resume-from-checkpoint with that "
                       "folder goes on", text, trainer->state.step, elsewhere);
    }
    const char *const saved = trainer->result;
    return ox_fail(as, "%s; step %" PRIu64 " is not saved: there is no store (--nvme) that has it, and the newest "
                   "checkpoint is %s", text, trainer->state.step, saved[0] != '\0' ? saved : "none");
}

/* Saves as ox_trainer_save does; `cause` is the failure that ends the run, or NULL. */
static enum ox_status save_last(struct ox_trainer *trainer, const char *cause) {
    ox_trainer_persist(trainer);
    const uint64_t begin_ns = ox_clock_ns();
    struct last_save last = {.begin_ns = begin_ns, .try_ns = begin_ns, .stop = trainer->events->stop, .cause = cause};
    for (;;) {
        enum ox_status status = save(trainer);
        if (status == OX_OK) {
            return OX_OK;
        }
        status = await_mended(trainer, &last, status);
        if (status != OX_OK) {
            return trainer->is_torn ? status : fail_unsaved(trainer, status);
        }
    }
}

enum ox_status ox_trainer_save(struct ox_trainer *trainer) {
    return save_last(trainer, NULL);
}

/* ---- the other saves --------------------------------------------------------------------------------- */

void ox_trainer_save_or_warn(struct ox_trainer *trainer) {
    if (save(trainer) != OX_OK) {
        report_not_saved(trainer->state.step);
        trainer->saving.failed = false; /* the end of the run tries again */
    }
}

void ox_trainer_save_behind(struct ox_trainer *trainer) {
    /* An interrupted step destroys a store of one generation, so a checkpoint must be complete before it. And no update
     * passes on the chunks of what lives on the device. */
    if (ox_engine_store(trainer->engine) == NULL || trainer->config.memory.store_generations == 1 ||
        ox_engine_has_residuals(trainer->engine) || ox_plan_commits_between(&ox_trainer_plan(trainer)->input)) {
        ox_trainer_save_or_warn(trainer);
        return;
    }
    finish_checkpoint(trainer);
    if (is_saved(trainer)) {
        return;
    }
    const uint64_t begin_ns = ox_clock_ns();
    const struct ox_checkpoint_save how = how_to_save(trainer);
    trainer->saving.tee_state = trainer->state;
    trainer->saving.tee_begin_ns = begin_ns;
    if (ox_checkpoint_tee_open(trainer->engine, &trainer->state, &how, &trainer->saving.tee) != OX_OK) {
        report_not_saved(trainer->state.step);
    } else {
        ox_trainer_note_saved(trainer, &how.eval, trainer->state.step);
    }
    trainer->saving.tee_seconds = seconds_since(begin_ns);
}

enum ox_status ox_trainer_save_and_fail(struct ox_trainer *trainer, enum ox_status failure) {
    char text[OX_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", ox_error_text());
    if (trainer->team != NULL) { /* the others may not know yet, and cannot save without this process */
        ox_team_abort(trainer->team, failure);
        trainer->is_torn = true;
    }
    if (trainer->stepped) {
        ox_trainer_persist(trainer);
    }
    finish_checkpoint(trainer);
    if (trainer->stepped && !trainer->is_torn) {
        const enum ox_status status = trainer->saving.taken    ? fail_unsaved(trainer, failure)
                                      : trainer->saving.failed ? OX_OK : save_last(trainer, text);
        if (status != OX_OK) {
            report_not_saved(trainer->state.step);
        }
    }
    return ox_fail(failure, "%s", text);
}

/* ---- how often a step is committed ------------------------------------------------------------------------- */

/* Where it need not be every one: as the user says, or by measured times. The end of a run commits in any case. */

/* The share of all time that persisting may take. */
static const double SHARE_MAX = 0.02;

uint64_t ox_persist_interval(double extra, double seconds) {
    const double steps = ceil(extra / (SHARE_MAX * seconds));
    if (!(steps > 1)) { /* true for NaN as well */
        return 1;
    }
    return steps < OX_PERSIST_STEPS_MAX ? (uint64_t)steps : OX_PERSIST_STEPS_MAX;
}

/* The median of the `count` latest times in a ring, at least one; the lower one if there are two in the middle. */
static double median(const double ring[OX_PERSIST_TIMES], uint32_t count) {
    double sorted[OX_PERSIST_TIMES];
    const uint32_t held = count < OX_PERSIST_TIMES ? count : OX_PERSIST_TIMES;
    for (uint32_t i = 0; i < held; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > ring[i]; at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = ring[i];
    }
    return sorted[(held - 1) / 2];
}

void ox_persist_note(struct ox_persist_times *times, bool persisted, double seconds) {
    if (!persisted) {
        times->seconds[times->seconds_count++ % OX_PERSIST_TIMES] = seconds;
    } else if (times->seconds_count > 0) {
        times->extra[times->extra_count++ % OX_PERSIST_TIMES] = seconds - median(times->seconds, times->seconds_count);
    }
}

uint64_t ox_persist_auto(const struct ox_persist_times *times) {
    if (times->seconds_count < OX_PERSIST_TIMES_LEAST || times->extra_count < OX_PERSIST_TIMES_LEAST) {
        return 2;
    }
    return ox_persist_interval(median(times->extra, times->extra_count), median(times->seconds, times->seconds_count));
}

bool ox_persist_is_news(uint64_t steps, uint64_t told) {
    return told == 0 || steps >= 2 * told;
}

/* ---- of a run -------------------------------------------------------------------------------------------------- */

/* --persist-steps as a number; 0: auto. */
static uint64_t requested(const struct ox_trainer *trainer) {
    return strtoull(trainer->config.memory.persist_steps, NULL, 10);
}

static bool may_stay(const struct ox_trainer *trainer) {
    return ox_plan_stays(&ox_trainer_plan(trainer)->input, requested(trainer));
}

/* Why every step is committed although --persist-steps asks for less. */
static const char *why_every_step(const struct ox_trainer *trainer) {
    return trainer->config.memory.nvme_count == 0 ? "there is no store without --nvme"
           : ox_trainer_plan(trainer)->input.placement.speculative_units > 0
               ? "updates in backward, without which no plan fits or for which an option asks, need a third slot on "
                 "the drives in a step that is not committed, unless memory keeps what they replace; give "
                 "--store-generations 3"
               : "part of the state lives on the drives, which have one slot for it (--store-generations 1)";
}

const char *ox_trainer_persist_text(const struct ox_trainer *trainer, char *text) {
    const uint64_t request = requested(trainer), steps = trainer->prediction.persist_steps;
    const uint64_t beside_bytes = ox_trainer_kept_bytes(trainer);
    char bytes[OX_SIZE_TEXT_BYTES], beside[128] = "";
    text[0] = '\0';
    if (may_stay(trainer)) {
        if (beside_bytes > 0 && steps > 1) {
            snprintf(beside, sizeof beside, "; the steps between write %s of the state, beside the last commit",
                     ox_size_text(beside_bytes, bytes));
        }
        snprintf(text, OX_PERSIST_LINE_BYTES, "persist: %s every %" PRIu64 " step%s%s: a crash loses at most as "
                 "many%s\n",
                 beside_bytes > 0 ? "a step is committed" : "the state lives in memory and is written to the drives",
                 steps, ox_plural(steps),
                 request > 0 ? "" : ", by prediction, then as often as costs 2 % of the measured time", beside);
    } else if (request > 1) {
        snprintf(text, OX_PERSIST_LINE_BYTES, "persist: --persist-steps %" PRIu64 " has no effect: %s\n", request,
                 why_every_step(trainer));
    }
    return text;
}

/* Says it once, and again only where a crash may lose twice as much as was said. */
static void tell(struct ox_trainer *trainer) {
    const uint64_t steps = trainer->persist.steps;
    if (!ox_persist_is_news(steps, trainer->persist.logged_steps)) {
        return;
    }
    trainer->persist.logged_steps = steps;
    if (steps == 1) {
        ox_log(OX_LOG_INFO, "the state is persisted every step: a crash loses at most one");
        return;
    }
    ox_log(OX_LOG_INFO, "the state is persisted every %" PRIu64 " steps%s: a crash loses at most %" PRIu64, steps,
           requested(trainer) > 0 ? "" : ", or more often, as its measured time allows", steps);
}

void ox_trainer_persist_start(struct ox_trainer *trainer) {
    const uint64_t request = requested(trainer);
    trainer->persist.last_step = trainer->state.step;
    if (may_stay(trainer)) {
        trainer->persist.steps = request > 0 ? request : ox_persist_auto(&trainer->persist.times);
        if (request > 0) {
            tell(trainer);
        }
        return;
    }
    char text[OX_PERSIST_LINE_BYTES];
    trainer->persist.steps = 1;
    ox_trainer_persist_text(trainer, text);
    text[strcspn(text, "\n")] = '\0';
    if (text[0] != '\0') {
        ox_log(OX_LOG_WARN, "%s", text + strlen("persist: "));
    }
}

bool ox_trainer_leaves_uncommitted(const struct ox_trainer *trainer, const struct ox_run_state *next) {
    const bool saved = ox_trainer_saves_at(trainer, next); /* the store may not be older than a checkpoint */
    return next->step < trainer->persist.last_step + trainer->persist.steps && !saved;
}

void ox_trainer_persist_note(struct ox_trainer *trainer, const struct ox_step_result *result, double seconds) {
    if (requested(trainer) > 0 || !may_stay(trainer)) {
        return;
    }
    ox_persist_note(&trainer->persist.times, result->committed, seconds);
    if (!result->committed || trainer->persist.times.extra_count < OX_PERSIST_TIMES_LEAST) {
        return;
    }
    trainer->persist.steps = ox_persist_auto(&trainer->persist.times);
    tell(trainer);
}

void ox_trainer_persist(struct ox_trainer *trainer) {
    if (trainer->is_torn || ox_engine_store(trainer->engine) == NULL || ox_trainer_finish_update(trainer) != OX_OK) {
        return; /* the save that follows reports the failure */
    }
    struct ox_commit_note note = {.state = trainer->state};
    const struct ox_commit_note *const last = &trainer->note;
    if (last->state.step == note.state.step && last->state.optimizer_steps == note.state.optimizer_steps) {
        note = *last; /* it has the line for metrics.jsonl */
        note.state = trainer->state;
    }
    if (ox_engine_persist(trainer->engine, &note, sizeof note) != OX_OK) {
        ox_log(OX_LOG_WARN, "step %" PRIu64 " is not in the store: %s", trainer->state.step, ox_error_text());
    }
}
