/* The loop of a run: data, step, metrics, evaluation, saving, signals. */
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/step/order.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert((int)OX_TRAINER_FEW_STEPS == (int)OX_ORDER_STEPS, "a run is short where an order is not decided yet");

/* ---- asked from outside -------------------------------------------------------------------------- */

/* Returns whether the trigger file exists, and removes it, so that it acts once. One that cannot be removed would act
 * at every step, so it does not act; *told says that the user knows. */
static bool take_trigger(const struct ox_trainer *trainer, const char *name, bool *told) {
    char path[OX_PATH_BYTES];
    struct stat info;
    if (ox_path_join(trainer->config.files.output_dir, name, path) != OX_OK) {
        return false;
    }
    if (unlink(path) == 0) {
        return true;
    }
    const int cause = errno;
    if (!*told && lstat(path, &info) == 0) {
        *told = true;
        ox_log(OX_LOG_WARN, "%s: is not acted upon, because it cannot be removed: %s; remove it and create a file of "
               "this name, or send USR1 to save, USR2 to end", path, strerror(cause));
    }
    return false;
}

static enum ox_status look_outside(struct ox_trainer *trainer, sig_atomic_t *saves_seen, struct ox_asked *out) {
    const struct ox_trainer_events *const events = trainer->events;
    *out = (struct ox_asked){.stop = events->stop, .finish = events->finish != 0};
    if (events->save != *saves_seen) {
        *saves_seen = events->save;
        out->save = true;
    }
    if (ox_trainer_leads(trainer)) {
        out->save = take_trigger(trainer, "offload.save", &trainer->told_of_save) || out->save;
        out->finish = take_trigger(trainer, "offload.stop", &trainer->told_of_stop) || out->finish;
        out->finish = ox_trainer_is_out_of_time(trainer) || out->finish;
    }
    return ox_trainer_agree_asked(trainer, out);
}

/* ---- batches ---------------------------------------------------------------------------------------- */

static void clear_row(struct ox_window_row row, uint32_t seq) {
    for (uint32_t i = 0; i < seq; i++) {
        row.ids[i] = 0;
        row.positions[i] = (int32_t)i;
        row.targets[i] = OX_TARGET_PADDING;
    }
}

/* Rows of other processes are filled too, because all count the targets of the whole step. */
static struct ox_batch batch_or_scratch(const struct ox_trainer *trainer, uint32_t mb_idx) {
    const struct ox_batch batch = ox_engine_batch(trainer->engine, mb_idx);
    const size_t tokens = (size_t)trainer->engine_config.batch * trainer->engine_config.seq;
    int32_t *const scratch = trainer->foreign_rows;
    return batch.ids != NULL ? batch
                             : (struct ox_batch){.ids = scratch, .targets = scratch + tokens,
                                                 .positions = scratch + 2 * tokens};
}

/* What the reference says of the rows of these windows; NULL where there is none. */
static const double *reference_of(const struct ox_trainer *trainer, const struct ox_windows *windows) {
    const struct ox_trainer_input *const input = &trainer->input;
    uint32_t part = windows == input->train ? 0 : 1;
    for (uint32_t i = 1; i < OX_EVAL_SETS_MAX; i++) {
        part = windows == input->eval_more[i] ? 1 + i : part;
    }
    return part < trainer->reference.part_count ? trainer->reference.parts[part].values : NULL;
}

enum ox_status ox_trainer_fill(struct ox_trainer *trainer, struct ox_windows *windows, uint64_t cursor,
                               uint64_t window_max, uint64_t *target_count) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const double *const reference = reference_of(trainer, windows);
    enum ox_status status = OX_OK;
    uint64_t filled = 0;
    *target_count = 0;
    for (uint32_t mb_idx = 0; mb_idx < engine->micro_batches; mb_idx++) {
        const struct ox_batch batch = batch_or_scratch(trainer, mb_idx);
        for (uint32_t i = 0; i < engine->batch && status == OX_OK; i++, filled++) {
            const size_t first = (size_t)i * engine->seq;
            const struct ox_window_row row = {
                .ids = batch.ids + first, .positions = batch.positions + first, .targets = batch.targets + first};
            if (batch.reference != NULL) {
                const bool known = filled < window_max && reference != NULL;
                batch.reference[i] = known ? reference[ox_windows_place(windows, cursor + filled)] : 0;
            }
            if (filled >= window_max) {
                clear_row(row, engine->seq);
            } else {
                status = ox_windows_fill(windows, cursor + filled, row, target_count);
            }
        }
    }
    return status;
}

/* ---- one step -------------------------------------------------------------------------------------- */

/* Completes the note of the commit that follows, with the line that metrics.jsonl will get. */
static void on_decided(void *context, const struct ox_step_result *result) {
    struct ox_commit_note *const note = context;
    note->loss = result->loss;
    note->grad_norm = result->grad_norm;
    note->grad_scale = result->grad_scale;
}

static struct ox_step_input step_input(struct ox_trainer *trainer, const struct ox_run_state *next, uint64_t windows) {
    const struct ox_config *const config = &trainer->config;
    return (struct ox_step_input){
        .step = next->step,
        .target_count = config->loss.dpo ? windows / 2 : next->tokens_seen - trainer->state.tokens_seen,
        /* steps that overflowed do not advance the schedule */
        .adam = {.learning_rate =
                     ox_schedule_rate(&trainer->schedule, trainer->state.step - trainer->state.overflow_steps),
                 .beta1 = config->optim.adam_beta1,
                 .beta2 = config->optim.adam_beta2,
                 .eps = config->optim.adam_epsilon,
                 .weight_decay = config->optim.weight_decay,
                 .grad_scale = 1,
                 .average_decay = config->optim.ema_decay,
                 .step = trainer->state.optimizer_steps + 1,
                 .seed = config->train.seed},
        .max_grad_norm = config->optim.max_grad_norm,
        .loss_scale = config->loss.loss_scale > 0 ? config->loss.loss_scale : ox_run_state_scale(&trainer->state),
        .meta = &trainer->note,
        .meta_bytes = sizeof trainer->note,
        .stays = ox_trainer_leaves_uncommitted(trainer, next),
        .decided = on_decided,
        .context = &trainer->note,
        /* `stop` aborts only steps that may last longer than the grace time; the time of the first one is not known. */
        .stop = config->train.stop_grace_seconds == 0 || trainer->step_seconds > config->train.stop_grace_seconds
                    ? &trainer->events->stop : NULL,
    };
}

static enum ox_status count_nonfinite(struct ox_trainer *trainer, const struct ox_step_result *result) {
    struct ox_run_state *const state = &trainer->state;
    state->nonfinite_steps++;
    state->nonfinite_in_row++;
    ox_log(OX_LOG_WARN, "step %" PRIu64 " is skipped: loss %g, gradient norm %g; nothing was changed", state->step,
           result->loss, result->grad_norm);
    if (state->nonfinite_in_row >= trainer->config.train.max_nonfinite_steps) {
        /* The state in memory is good, because skipped steps have not changed it. */
        const bool saved = ox_trainer_save(trainer) == OX_OK;
        if (!saved) {
            ox_log(OX_LOG_WARN, "no checkpoint at step %" PRIu64 ": %s", state->step, ox_error_text());
        }
        return ox_fail(OX_E_CORRUPT, "%u step%s in a row had a loss or gradient that is not finite "
                       "(--max-nonfinite-steps); what was before them is in %s; lower --learning-rate or check the "
                       "data", state->nonfinite_in_row, ox_plural(state->nonfinite_in_row),
                       saved ? trainer->result : "the last checkpoint and the store");
    }
    return OX_OK;
}

/* Lowers the loss scale after a step that it made overflow, which is no bad step. */
static enum ox_status lower_scale(struct ox_trainer *trainer) {
    struct ox_run_state *const state = &trainer->state;
    const double before = ox_run_state_scale(state);
    state->overflow_steps++;
    if (ox_loss_scale_step(&state->scale_code, &state->growth_tracker, trainer->config.loss.loss_scale_window, true)) {
        ox_log(OX_LOG_INFO, "step %" PRIu64 " is skipped: gradients overflow at a loss scale of %.0f, which is %.0f "
               "from here on", state->step, before, ox_run_state_scale(state));
        return OX_OK;
    }
    const bool saved = ox_trainer_save(trainer) == OX_OK; /* skipped steps have changed no weights */
    if (!saved) {
        ox_log(OX_LOG_WARN, "no checkpoint at step %" PRIu64 ": %s", state->step, ox_error_text());
    }
    return ox_fail(OX_E_CORRUPT, "gradients overflow in fp16 even at a loss scale of 1; what was before is in %s; use "
                   "--dtype bf16, lower --learning-rate, or check the data",
                   saved ? trainer->result : "the last checkpoint and the store");
}

/* Reports a step that trainer->state has. */
static void report_step(struct ox_trainer *trainer, struct ox_step_report *report) {
    trainer->stepped = true;
    report->max_steps = trainer->max_steps;
    report->epoch = ox_trainer_epoch(trainer);
    report->epoch_steps = ox_trainer_epoch_steps(trainer);
    ox_trainer_report_step(trainer, report);
    if (trainer->hooks->step != NULL) {
        trainer->hooks->step(trainer->hooks->context, report);
    }
}

/* Skips a step whose windows have no target that counts; the schedule goes on. */
static void pass_over(struct ox_trainer *trainer, uint64_t windows, uint64_t begin_ns) {
    struct ox_run_state *const state = &trainer->state;
    state->step++;
    state->cursor += windows;
    ox_log(OX_LOG_WARN, "step %" PRIu64 " is skipped: its windows of %s have no token to be trained on", state->step,
           trainer->config.files.data[0].path);
    report_step(trainer, &(struct ox_step_report){.step = state->step,
                                                .tokens_seen = state->tokens_seen,
                                                .wall_seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9,
                                                .predicted_seconds = NAN,
                                                .result = {.loss = NAN, .grad_norm = NAN, .grad_scale = NAN}});
}

/* Says once when the run goes over to the held order, and once when it goes back; not where too few steps are left for
 * the order to matter. */
static void note_order(struct ox_trainer *trainer, uint64_t step, const struct ox_step_result *result) {
    const uint32_t units = ox_trainer_plan(trainer)->input.placement.speculative_units;
    const enum ox_update_order before = trainer->last_order;
    const unsigned told = 1u << result->order;
    trainer->last_order = result->order;
    const bool matters = units > 0 && trainer->max_steps >= step + OX_TRAINER_FEW_STEPS - 1;
    if (!matters || result->order == before || before == OX_UPDATES_AFTER || (trainer->told_of_orders & told) != 0) {
        return;
    }
    trainer->told_of_orders |= told;
    if (result->order == OX_UPDATES_SPECULATIVE) {
        ox_log(OX_LOG_INFO, "from step %" PRIu64 " on %u unit%s updated early again, while gradients are still "
               "computed, because few gradients are clipped now", step, units, units == 1 ? " is" : "s are");
    } else {
        ox_log(OX_LOG_INFO, "from step %" PRIu64 " on weights are updated in the next forward pass, none of them "
               "early: most gradients were clipped lately (--max-grad-norm %g), and an early update would be made "
               "twice then; the results are the same", step, trainer->config.optim.max_grad_norm);
    }
}

/* The prediction for a step of this kind. */
static double predicted_seconds(const struct ox_trainer *trainer, const struct ox_step_result *result) {
    const struct ox_prediction *const prediction = &trainer->prediction;
    const bool held = result->order == OX_UPDATES_HELD && !isnan(prediction->held_seconds);
    return (result->committed ? prediction->persist_seconds : prediction->step.seconds) +
           (held ? prediction->held_seconds - prediction->step.seconds : 0);
}

static enum ox_status take_step(struct ox_trainer *trainer) {
    const uint64_t begin_ns = ox_clock_ns();
    const uint64_t windows = ox_trainer_step_rows(trainer, trainer->state.cursor);
    uint64_t targets = 0;
    enum ox_status status = ox_trainer_fill(trainer, trainer->input.train, trainer->state.cursor, windows, &targets);
    if (status != OX_OK) {
        return status;
    }
    if (targets == 0) {
        pass_over(trainer, windows, begin_ns);
        return OX_OK;
    }
    struct ox_run_state next = trainer->state;
    next.step++;
    next.optimizer_steps++;
    next.cursor += windows;
    next.tokens_seen += targets;
    next.nonfinite_in_row = 0;
    if (next.scale_code > 0) { /* what a commit of the step keeps: one that overflows has none */
        ox_loss_scale_step(&next.scale_code, &next.growth_tracker, trainer->config.loss.loss_scale_window, false);
    }
    const struct ox_step_input input = step_input(trainer, &next, windows);
    const bool usual = trainer->stepped && trainer->saving.tee == NULL; /* others take longer */
    struct ox_step_report report = {.step = next.step, .tokens = targets,
                                    .batch_tokens = windows * trainer->engine_config.seq,
                                    .tokens_seen = next.tokens_seen, .learning_rate = input.adam.learning_rate,
                                    .loss_scale = input.loss_scale};
    trainer->note = (struct ox_commit_note){
        .state = next, .tokens = targets, .learning_rate = input.adam.learning_rate};
    status = ox_engine_step(trainer->engine, &input, &report.result);
    if (status != OX_OK) {
        trainer->is_torn = status != OX_E_ABORTED;
        return status;
    }
    if (!report.result.finite) {
        next.optimizer_steps--;
        next.nonfinite_in_row = trainer->state.nonfinite_in_row;
        next.scale_code = trainer->state.scale_code;
        next.growth_tracker = trainer->state.growth_tracker;
    }
    trainer->state = next;
    note_order(trainer, next.step, &report.result);
    if (report.result.finite && !input.stays) {
        trainer->persist.last_step = next.step;
    }
    report.part_count = ox_trainer_parts(trainer, report.result.values, report.parts);
    report.predicted_seconds = predicted_seconds(trainer, &report.result);
    report.wall_seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    if (usual && report.result.finite) {
        ox_trainer_persist_note(trainer, &report.result, report.wall_seconds);
    }
    trainer->step_seconds = report.wall_seconds;
    report_step(trainer, &report);
    ox_expert_watch_step(&trainer->experts, next.step, &report.result.routers,
                         ox_engine_config_of(trainer->engine)->router_balance);
    if (next.step == 1 && trainer->begins_given && !trainer->config.loss.dpo) {
        ox_trainer_warn_loss(trainer, "the first loss",
                             report.part_count > 0 ? report.result.values[OX_LOSS_NLL] : report.result.loss);
    }
    if (!report.result.finite && report.result.overflow && next.scale_code > 0) {
        return lower_scale(trainer);
    }
    return report.result.finite ? OX_OK : count_nonfinite(trainer, &report.result);
}

/* Takes the newest evaluation for the best one if it is. */
static void note_best(struct ox_trainer *trainer) {
    if (trainer->last_eval.step > 0 && trainer->last_eval.loss < trainer->state.best_eval_loss) {
        trainer->state.best_eval_loss = trainer->last_eval.loss;
    }
}

static enum ox_status evaluate(struct ox_trainer *trainer) {
    if (!ox_trainer_evaluates(trainer)) {
        return OX_OK;
    }
    struct ox_eval_report report;
    OX_TRY(ox_trainer_eval(trainer, &report));
    report.judged = ox_trainer_judged(trainer, &report);
    trainer->last_eval = (struct ox_last_eval){.step = report.step, .loss = report.judged};
    note_best(trainer);
    if (report.step > 0) { /* what the run begins with is no result of it */
        ox_trainer_judge(trainer, report.judged);
    }
    report.stop = trainer->best.stop;
    ox_trainer_report_eval(trainer, &report);
    if (trainer->hooks->eval != NULL) {
        trainer->hooks->eval(trainer->hooks->context, &report);
    }
    return OX_OK;
}

/* ---- the loop -------------------------------------------------------------------------------------- */

/* What a process left out that ended right after a step, and its newest evaluation, which the commit of that step
 * precedes. */
struct left_out {
    bool evaluates, saves;
    struct ox_last_eval eval;
};

/* Finds it in the folder of the run; a new folder has nothing to make up for. */
static enum ox_status find_left_out(const struct ox_trainer *trainer, struct left_out *out) {
    const uint64_t step = trainer->state.step;
    char name[64], path[OX_PATH_BYTES];
    struct ox_metrics_last last;
    *out = (struct left_out){.eval = {.loss = (double)NAN}};
    if (!ox_trainer_leads(trainer)) {
        return OX_OK;
    }
    ox_metrics_last(trainer->reports.metrics, &last);
    out->eval = (struct ox_last_eval){.step = last.eval_step, .loss = last.eval_loss};
    if (step == 0) {
        out->evaluates = trainer->config.save.eval_on_start && !last.has_eval && ox_trainer_evaluates(trainer);
        return OX_OK;
    }
    if (step == trainer->max_steps || last.step != step) {
        return OX_OK;
    }
    snprintf(name, sizeof name, "checkpoint-%" PRIu64, step);
    const enum ox_status status = ox_path_join(trainer->config.files.output_dir, name, path);
    out->evaluates = ox_trainer_evaluates_at(trainer, &trainer->state) && last.eval_step != step;
    out->saves = status == OX_OK && ox_trainer_saves_at(trainer, &trainer->state) && !ox_path_is_folder(path);
    return status;
}

/* Whether a checkpoint of this step that is due is saved: by --save-strategy best only the best one is. */
static bool is_wanted(const struct ox_trainer *trainer) {
    return trainer->config.save.save_strategy != OX_SAVE_BEST || ox_trainer_is_best(trainer);
}

static enum ox_status catch_up(struct ox_trainer *trainer) {
    struct left_out left_out;
    enum ox_status status = find_left_out(trainer, &left_out);
    OX_THEN(status, ox_team_share(trainer->team, &left_out, sizeof left_out, "what was left out"));
    OX_THEN(status, ox_trainer_find_best(trainer));
    trainer->last_eval = left_out.eval;
    note_best(trainer);
    if (status == OX_OK && left_out.evaluates) {
        status = evaluate(trainer);
    }
    if (status == OX_OK && left_out.saves && is_wanted(trainer)) {
        ox_trainer_save_or_warn(trainer);
    }
    return status;
}

/* Whether the store's last commit can be read, and the run can go back to it. */
static bool has_last_commit(const struct ox_trainer *trainer) {
    const struct ox_store *const store = ox_engine_store(trainer->engine);
    struct ox_store_info info;
    if (store == NULL) {
        return false;
    }
    ox_store_info(store, &info);
    return info.committed && info.generations > 1 && info.meta_bytes == sizeof trainer->note;
}

/* Whether only this process still reaches the store, because its files were deleted or moved. Several processes would
 * have to find that out together; they fail at their next try. */
static bool is_lost(const struct ox_trainer *trainer) {
    const struct ox_store *const store = ox_engine_store(trainer->engine);
    return store != NULL && trainer->team == NULL && ox_store_has_vanished(store);
}

/* Whether the run may go back to the last commit and repeat steps, because a drive that failed once may work the next
 * time, and memory that changed may keep what is written next. It may not before it has passed the step where it last
 * did so. The commit may be two steps back if steps overlap, or as many steps as stay uncommitted. */
static bool may_retry(const struct ox_trainer *trainer, enum ox_status status) {
    const struct ox_store *const store = ox_engine_store(trainer->engine);
    return (status == OX_E_IO || status == OX_E_MEMORY) && store != NULL &&
           trainer->retried_step <= trainer->state.step && !is_lost(trainer) && has_last_commit(trainer);
}

/* Takes the state of the last commit. */
static enum ox_status go_back_to_commit(struct ox_trainer *trainer) {
    struct ox_store_info info;
    ox_store_info(ox_engine_store(trainer->engine), &info);
    memcpy(&trainer->note, info.meta, sizeof trainer->note);
    trainer->state = trainer->note.state;
    if (trainer->last_eval.step <= trainer->state.step) {
        note_best(trainer); /* it may have come after the commit */
    }
    trainer->persist.last_step = trainer->state.step;
    trainer->is_torn = false;
    enum ox_status status = ox_trainer_rewind_reports(trainer);
    OX_THEN(status, ox_trainer_find_best(trainer));
    return status == OX_OK ? ox_engine_roll_back(trainer->engine) : status;
}

/* Goes back to the last commit to repeat what follows; `failed` is the step that the engine's error is about. */
static enum ox_status go_back(struct ox_trainer *trainer, uint64_t failed) {
    char text[OX_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", ox_error_text());
    trainer->retried_step = trainer->state.step + 1;
    trainer->retry_count++;
    const enum ox_status status = go_back_to_commit(trainer);
    ox_log(OX_LOG_WARN, "step %" PRIu64 " failed: %s; going on from step %" PRIu64 ", which is committed "
           "(retry %" PRIu64 " of this run)", failed, text, trainer->state.step, trainer->retry_count);
    return status;
}

/* Commits a pending update, so that planes can be read. If a drive fails once, the run may be at an earlier step
 * afterwards. */
static enum ox_status finish_update(struct ox_trainer *trainer) {
    const enum ox_status status = ox_trainer_finish_update(trainer);
    return may_retry(trainer, status) ? go_back(trainer, trainer->state.step) : status;
}

/* Evaluates, which carries a pending update. If a drive fails once, the evaluation is repeated, unless the run went
 * back to an earlier step, whose repetition will then evaluate. */
static enum ox_status evaluate_or_roll_back(struct ox_trainer *trainer) {
    const uint64_t step = trainer->state.step;
    enum ox_status status = evaluate(trainer);
    if (!may_retry(trainer, status)) {
        return status;
    }
    status = go_back(trainer, step);
    return status == OX_OK && trainer->state.step == step ? evaluate(trainer) : status;
}

/* What is due after a step. */
struct owed {
    struct ox_asked asked;
    bool last, evaluates, saves_now, saves_behind;
};

static enum ox_status look_at_step(struct ox_trainer *trainer, sig_atomic_t *saves_seen, struct owed *out) {
    *out = (struct owed){.last = trainer->state.step == trainer->max_steps};
    enum ox_status status = look_outside(trainer, saves_seen, &out->asked);
    OX_THEN(status, ox_run_check_folder(trainer));
    out->evaluates = ox_trainer_evaluates_at(trainer, &trainer->state) && !out->last;
    out->saves_now = out->asked.save && !out->last;
    out->saves_behind = ox_trainer_saves_at(trainer, &trainer->state) && !out->last && !out->saves_now;
    return status;
}

static bool reads_planes(const struct ox_trainer *trainer, const struct owed *owed) {
    return owed->last || owed->asked.stop != 0 || owed->asked.finish || owed->saves_now ||
           (owed->saves_behind && ox_trainer_save_waits(trainer));
}

/* Does what is due after a step; sets *ends if the run is to end with it. */
static enum ox_status after_step(struct ox_trainer *trainer, const struct owed *owed, bool *ends) {
    const uint64_t step = trainer->state.step;
    enum ox_status status = reads_planes(trainer, owed) ? finish_update(trainer) : OX_OK;
    *ends = owed->asked.stop != 0 || owed->asked.finish;
    if (status != OX_OK || *ends) {
        return status;
    }
    if (owed->evaluates && trainer->state.step == step) {
        status = evaluate_or_roll_back(trainer);
    }
    const bool went_back = trainer->state.step != step; /* the repeated step will have the same due */
    *ends = status == OX_OK && ox_trainer_ends_early(trainer); /* and the end saves */
    if (status != OX_OK || *ends) {
        return status;
    }
    if (owed->saves_now) {
        ox_trainer_save_or_warn(trainer);
    } else if (owed->saves_behind && !went_back && is_wanted(trainer)) {
        ox_trainer_save_behind(trainer);
    }
    return status;
}

/* Runs steps to the end. `stop` is read before every step; a step or evaluation that it aborts is OX_E_ABORTED. */
static enum ox_status loop(struct ox_trainer *trainer, int *ended_by) {
    sig_atomic_t saves_seen = 0; /* what was asked for before the first step is due after it */
    while (trainer->state.step < trainer->max_steps && !ox_trainer_ends_early(trainer)) {
        if (trainer->events->stop != 0 && trainer->team == NULL) { /* several processes stop where they meet */
            return ox_fail(OX_E_ABORTED, "stopped between two steps");
        }
        enum ox_status status = take_step(trainer);
        if (trainer->is_torn && may_retry(trainer, status)) {
            status = go_back(trainer, trainer->state.step + 1);
            if (status == OX_OK) {
                continue;
            }
        }
        if (status != OX_OK) {
            return status;
        }
        struct owed owed;
        bool ends = false;
        status = look_at_step(trainer, &saves_seen, &owed);
        if (status != OX_OK) {
            return status;
        }
        ox_trainer_save_poll(trainer);
        *ended_by = owed.asked.stop;
        status = after_step(trainer, &owed, &ends);
        if (status != OX_OK || ends) {
            return status;
        }
    }
    return OX_OK;
}

/* Whether the state is saved already: a process that was stopped before its first step has changed nothing. */
static bool is_kept(const struct ox_trainer *trainer) {
    return !trainer->stepped && (ox_engine_store(trainer->engine) != NULL || trainer->result[0] != '\0');
}

/* Adds the evaluation of the last step to its checkpoint, which was saved before. */
static void record_eval(const struct ox_trainer *trainer) {
    if (trainer->last_eval.step == trainer->state.step && ox_trainer_leads(trainer) && trainer->result[0] != '\0' &&
        ox_checkpoint_record_eval(trainer->result, trainer->state.best_eval_loss, &trainer->last_eval) != OX_OK) {
        ox_log(OX_LOG_WARN, "the checkpoint lacks the last evaluation: %s", ox_error_text());
    }
}

bool ox_trainer_lacks_eval(const struct ox_trainer *trainer) {
    return trainer->state.step == trainer->max_steps && ox_trainer_evaluates(trainer) &&
           trainer->last_eval.step != trainer->state.step;
}

static enum ox_status run_on(struct ox_trainer *trainer, int *ended_by) {
    enum ox_status status = catch_up(trainer);
    OX_THEN(status, loop(trainer, ended_by));
    const bool complete = status == OX_OK && *ended_by == 0 && trainer->state.step == trainer->max_steps;
    if (complete) {
        status = ox_trainer_save(trainer); /* before the evaluation, which may fail or be stopped */
    }
    OX_THEN(status, complete ? evaluate(trainer) : OX_OK);
    if (complete && status == OX_OK) {
        record_eval(trainer);
    }
    return status;
}

/* Starts the run; *stop is the signal that stopped it while weights were loaded, so that there is nothing to save. */
static enum ox_status start(struct ox_trainer *trainer, int *stop) {
    const enum ox_status status = ox_trainer_start(trainer);
    ox_team_abort(trainer->team, status); /* processes begin alike or not at all */
    *stop = trainer->events->stop != 0 ? trainer->events->stop : SIGTERM; /* or that of another process */
    if (status != OX_E_ABORTED || (trainer->events->stop == 0 && trainer->team == NULL)) {
        *stop = 0;
        return status;
    }
    return OX_OK;
}

static bool is_saved(const struct ox_trainer *trainer) {
    return trainer->saving.last_step == trainer->state.step + 1;
}

/* Saves as a checkpoint the last commit of a store that was deleted or moved. Returns the failure that told of it. */
static enum ox_status rescue(struct ox_trainer *trainer, enum ox_status failure) {
    char text[OX_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", ox_error_text());
    if (ox_run_check_folder(trainer) != OX_OK) {
        ox_log(OX_LOG_WARN, "%s", ox_error_text());
    }
    if (trainer->is_torn && (!has_last_commit(trainer) || go_back_to_commit(trainer) != OX_OK)) {
        return ox_fail(failure, "%s; its last commit cannot be saved either", text);
    }
    trainer->stepped = true; /* what was loaded from the store is not saved either */
    return ox_trainer_save_and_fail(trainer, ox_fail(failure, "%s", text));
}

/* Lets `latest` do without a store that was deleted or moved, now that a checkpoint has the state. */
static enum ox_status give_up_store(struct ox_trainer *trainer, enum ox_status failure) {
    char text[OX_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", ox_error_text());
    trainer->identity.starting = true;
    const bool marked = ox_run_write_identity(trainer->config.files.output_dir, &trainer->identity) == OX_OK;
    return failure == OX_OK ? OX_OK
                            : ox_fail(failure, "%s; step %" PRIu64 " is saved, and --resume-from-checkpoint %s goes on "
                                      "from it", text, trainer->state.step, marked ? "latest" : trainer->result);
}

/* Says how to go on after memory has changed. */
static enum ox_status fail_changed(const struct ox_trainer *trainer, enum ox_status failure) {
    char text[OX_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", ox_error_text());
    const bool can_resume = ox_engine_store(trainer->engine) != NULL || trainer->result[0] != '\0';
    return ox_fail(failure, "%s; %s", text,
                   can_resume ? "then go on from what is committed or saved, with --resume-from-checkpoint latest"
                              : "then start again, since nothing is saved yet");
}

/* Whether the run has come to its end, and not only this process. */
static bool is_over(struct ox_trainer *trainer) {
    return trainer->state.step >= trainer->max_steps || ox_trainer_ends_early(trainer);
}

static enum ox_status run_to_end(struct ox_trainer *trainer, int *ended_by) {
    enum ox_status status = run_on(trainer, ended_by);
    int stop = trainer->events->stop;
    if (status == OX_E_ABORTED && ox_trainer_agree_stop(trainer, &stop) == OX_OK && stop != 0) {
        *ended_by = stop;
        status = is_kept(trainer) ? OX_OK : finish_update(trainer);
    }
    if (status == OX_OK) {
        status = *ended_by != 0 && is_kept(trainer) ? OX_OK : ox_trainer_save(trainer);
        if (status == OX_OK) {
            ox_trainer_take_best(trainer, *ended_by == 0 && is_over(trainer));
        }
        return status;
    }
    if (status == OX_E_MEMORY) { /* of a step, or of a save, whose text has the remedy already */
        status = trainer->is_torn ? fail_changed(trainer, status) : status;
        trainer->is_torn = true;
    }
    return is_lost(trainer) ? status : ox_trainer_save_and_fail(trainer, status);
}

/* Runs a started run to its end, and saves it. */
static enum ox_status run_and_save(struct ox_trainer *trainer, int *ended_by) {
    enum ox_status status = run_to_end(trainer, ended_by);
    if (status != OX_OK && is_lost(trainer) && !is_saved(trainer)) {
        status = rescue(trainer, status);
    }
    return is_lost(trainer) && is_saved(trainer) ? give_up_store(trainer, status) : status;
}

enum ox_status ox_trainer_run(struct ox_trainer *trainer, const struct ox_trainer_events *events,
                              const struct ox_trainer_hooks *hooks, int *ended_by) {
    trainer->events = events;
    trainer->hooks = hooks;
    enum ox_status status = start(trainer, ended_by);
    if (status == OX_OK && *ended_by == 0) {
        status = run_and_save(trainer, ended_by);
        ox_team_abort(trainer->team, status);
        if (status == OX_OK && *ended_by == 0 && is_over(trainer) && trainer->result[0] != '\0' &&
            ox_engine_store(trainer->engine) != NULL) {
            ox_run_note_finished(trainer);
        }
    }
    return status;
}
