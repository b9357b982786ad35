/* When a run evaluates and saves, which of its checkpoints is the best, and when it ends early. */
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- when --------------------------------------------------------------------------------------------- */

static bool every(uint64_t step, double steps) {
    return steps > 0 && step % (uint64_t)steps == 0;
}

static uint64_t rows_of(const struct ox_trainer *trainer) {
    struct ox_windows_counts counts;
    ox_windows_counts(trainer->input.train, &counts);
    return counts.rows;
}

/* Steps end where epochs do. */
static bool ends_epoch(const struct ox_trainer *trainer, const struct ox_run_state *state) {
    const uint64_t rows = rows_of(trainer);
    return rows > 0 && state->cursor > 0 && state->cursor % rows == 0;
}

bool ox_trainer_evaluates(const struct ox_trainer *trainer) {
    return trainer->input.eval != NULL && trainer->config.save.eval_strategy != OX_EVAL_NEVER;
}

bool ox_trainer_evaluates_at(const struct ox_trainer *trainer, const struct ox_run_state *state) {
    const struct ox_config *const config = &trainer->config;
    if (!ox_trainer_evaluates(trainer)) {
        return false;
    }
    if (config->save.eval_strategy == OX_EVAL_BY_EPOCH) {
        return ends_epoch(trainer, state) && (double)(state->cursor / rows_of(trainer)) >= config->save.eval_delay;
    }
    return every(state->step, config->save.eval_steps) && (double)state->step >= config->save.eval_delay;
}

bool ox_trainer_saves_at(const struct ox_trainer *trainer, const struct ox_run_state *state) {
    switch (trainer->config.save.save_strategy) {
    case OX_SAVE_BY_STEPS: return every(state->step, trainer->config.save.save_steps);
    case OX_SAVE_BY_EPOCH: return ends_epoch(trainer, state);
    case OX_SAVE_BEST:     return ox_trainer_evaluates_at(trainer, state);
    case OX_SAVE_LAST:     break;
    }
    return false;
}

uint64_t ox_trainer_eval_every(const struct ox_trainer *trainer, uint64_t end) {
    const struct ox_config *const config = &trainer->config;
    return config->save.eval_strategy == OX_EVAL_BY_EPOCH ? ox_trainer_epoch_steps(trainer)
           : config->save.eval_strategy == OX_EVAL_NEVER  ? 0 : ox_config_steps(config->save.eval_steps, end);
}

uint64_t ox_trainer_save_every(const struct ox_trainer *trainer, uint64_t end) {
    const struct ox_config *const config = &trainer->config;
    switch (config->save.save_strategy) {
    case OX_SAVE_BY_STEPS: return ox_config_steps(config->save.save_steps, end);
    case OX_SAVE_BY_EPOCH: return ox_trainer_epoch_steps(trainer);
    case OX_SAVE_BEST:     return ox_trainer_eval_every(trainer, end);
    case OX_SAVE_LAST:     break;
    }
    return 0;
}

/* ---- what contradicts ----------------------------------------------------------------------------------- */

/* Which option needs evaluations; NULL: none. */
static const char *needs_evaluations(const struct ox_config *config) {
    return config->save.save_strategy == OX_SAVE_BEST          ? "--save-strategy best"
           : config->save.load_best_model_at_end               ? "--load-best-model-at-end"
           : config->save.early_stopping_patience > 0          ? "--early-stopping-patience"
           : config->save.eval_on_start                        ? "--eval-on-start" : NULL;
}

/* Whether checkpoints beside the last one are saved right after evaluations. */
static bool meet(const struct ox_config *config) {
    const bool by_epoch = config->save.save_strategy == OX_SAVE_BY_EPOCH;
    const bool by_steps = config->save.save_strategy == OX_SAVE_BY_STEPS;
    const double times =
        config->save.eval_steps > 0 ? config->save.save_steps / config->save.eval_steps : 0; /* shares of steps too */
    return config->save.save_strategy == OX_SAVE_BEST || (by_epoch && config->save.eval_strategy == OX_EVAL_BY_EPOCH) ||
           (by_steps && config->save.eval_strategy == OX_EVAL_BY_STEPS && times >= 1 &&
            fabs(times - round(times)) < 1e-9);
}

static const char prefix[] = "eval_";

/* The metric without "eval_", which may be missing, as in the Trainer. */
static const char *metric_of(const struct ox_config *config) {
    const char *const metric = config->save.metric_for_best_model;
    return metric + (strncmp(metric, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0);
}

/* Whether the metric is the loss of a set with this name. */
static bool is_of_set(const char *metric, const char *name) {
    const size_t bytes = strlen(name);
    return bytes > 0 && strncmp(metric, name, bytes) == 0 && strcmp(metric + bytes, "_loss") == 0;
}

/* A loss and its perplexity order checkpoints alike. */
static bool is_of_all(const char *metric) {
    return strcmp(metric, "loss") == 0 || strcmp(metric, "perplexity") == 0;
}

double ox_trainer_judged(const struct ox_trainer *trainer, const struct ox_eval_report *report) {
    const char *const metric = metric_of(&trainer->config);
    double judged = report->loss;
    for (uint32_t i = 0; i < report->set_count && !is_of_all(metric); i++) {
        judged = is_of_set(metric, report->sets[i].name) ? report->sets[i].loss : judged;
    }
    return judged;
}

static enum ox_status check_metric(const struct ox_config *config) {
    struct ox_eval_sets sets;
    char names[256] = "";
    const char *const metric = metric_of(config);
    OX_TRY(ox_config_eval_sets(config->files.eval_data, &sets));
    bool known = is_of_all(metric) || (config->save.eval_ema && is_of_set(metric, OX_EMA_SET));
    size_t used = 0;
    for (uint32_t i = 0; i < sets.count && sets.sets[i].name[0] != '\0'; i++) {
        known = known || is_of_set(metric, sets.sets[i].name);
        used += used < sizeof names ? (size_t)snprintf(names + used, sizeof names - used, ", eval_%s_loss",
                                                       sets.sets[i].name) : 0;
    }
    return known ? OX_OK
                 : ox_fail(OX_E_CONFIG, "--metric-for-best-model: '%s' is not one of eval_loss, eval_perplexity%s%s",
                           config->save.metric_for_best_model, names,
                           used > 0 ? ""
                                    : "; sets of --eval-data with names, "
                                      "such as dev=PATH, have an eval_dev_loss too");
}

enum ox_status ox_trainer_check_best(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const char *const needs = needs_evaluations(config);
    OX_TRY(check_metric(config));
    if (config->save.greater_is_better == OX_CHOICE_ON) {
        return ox_fail(OX_E_CONFIG, "--greater-is-better true: a smaller eval_%s is better; leave it out",
                       metric_of(config));
    }
    if (config->save.early_stopping_threshold > 0 && config->save.early_stopping_patience == 0) {
        return ox_fail(OX_E_CONFIG, "--early-stopping-threshold: nothing stops a run early; give "
                       "--early-stopping-patience too, or leave it out");
    }
    if (config->save.early_stopping_patience > 0 && config->save.eval_strategy == OX_EVAL_BY_STEPS &&
        config->save.eval_steps <= 0) {
        return ox_fail(OX_E_CONFIG, "--early-stopping-patience: with --eval-steps 0 the run is evaluated at its end "
                       "alone; give --eval-steps, or --eval-strategy epoch");
    }
    if (needs != NULL && config->save.eval_strategy == OX_EVAL_NEVER) {
        return ox_fail(OX_E_CONFIG, "%s: nothing is evaluated with --eval-strategy no; leave that out", needs);
    }
    if (needs != NULL && config->files.eval_data[0] == '\0' && config->rows.eval_fraction == 0) {
        return ox_fail(OX_E_CONFIG, "%s: nothing is evaluated; give --eval-data, or --eval-fraction 0.05 to hold out a "
                       "part of the data", needs);
    }
    if (config->save.load_best_model_at_end && !meet(config)) {
        return ox_fail(OX_E_CONFIG, "--load-best-model-at-end: checkpoints are not saved right after evaluations, so "
                       "that none is known to be the best; give --save-strategy best, or --save-steps a multiple of "
                       "--eval-steps");
    }
    return OX_OK;
}

/* ---- the best, and an early end ------------------------------------------------------------------------- */

enum { LOSS_NAME_BYTES = 80 };

/* The name of the loss by which evaluations are judged. */
static const char *loss_name(const struct ox_config *config, char text[LOSS_NAME_BYTES]) {
    const char *const metric = metric_of(config);
    snprintf(text, LOSS_NAME_BYTES, "eval_%s", is_of_all(metric) ? "loss" : metric);
    return text;
}

static bool is_better(double loss, double than) {
    return !isnan(loss) && (isnan(than) || loss < than);
}

void ox_trainer_judge(struct ox_trainer *trainer, double loss) {
    struct ox_early_stop *const stop = &trainer->best.stop;
    const double threshold = trainer->config.save.early_stopping_threshold;
    const bool improved = isnan(stop->best_loss) ? !isnan(loss) : stop->best_loss - loss > threshold;
    if (improved) {
        *stop = (struct ox_early_stop){.best_loss = loss};
    } else if (!isnan(stop->best_loss)) {
        stop->stale_count++;
    }
}

bool ox_trainer_ends_early(struct ox_trainer *trainer) {
    const struct ox_early_stop *const stop = &trainer->best.stop;
    const uint64_t patience = trainer->config.save.early_stopping_patience;
    const bool ends = patience > 0 && stop->stale_count >= patience;
    if (ends && !trainer->best.told) {
        char than[64] = "", name[LOSS_NAME_BYTES];
        if (trainer->config.save.early_stopping_threshold > 0) {
            snprintf(than, sizeof than, " by more than %g", trainer->config.save.early_stopping_threshold);
        }
        trainer->best.told = true;
        ox_log(OX_LOG_INFO, "the run ends early, at step %" PRIu64 ": its last %" PRIu64 " evaluation%s did not "
               "improve on %s %.6g%s (--early-stopping-patience)", trainer->state.step, stop->stale_count,
               ox_plural(stop->stale_count), loss_name(&trainer->config, name), stop->best_loss, than);
    }
    return ends;
}

bool ox_trainer_is_best(const struct ox_trainer *trainer) {
    return trainer->last_eval.step == trainer->state.step &&
           is_better(trainer->last_eval.loss, trainer->best.saved_loss);
}

bool ox_trainer_ended_early(const struct ox_trainer *trainer) {
    return trainer->best.told;
}

void ox_trainer_note_saved(struct ox_trainer *trainer, const struct ox_last_eval *eval, uint64_t step) {
    if (eval->step == step && is_better(eval->loss, trainer->best.saved_loss)) {
        trainer->best.saved_loss = eval->loss;
    }
}

enum ox_status ox_trainer_find_best(struct ox_trainer *trainer) {
    struct {
        struct ox_early_stop stop;
        double saved_loss;
    } found = {.stop = {.best_loss = (double)NAN}, .saved_loss = (double)NAN};
    if (ox_trainer_leads(trainer)) {
        struct ox_metrics_last last;
        char path[OX_PATH_BYTES];
        ox_metrics_last(trainer->reports.metrics, &last);
        found.stop = last.stop;
        if (!ox_checkpoint_find_best(trainer->config.files.output_dir, &trainer->state, path, &found.saved_loss)) {
            found.saved_loss = NAN;
        }
    }
    const enum ox_status status = ox_team_share(trainer->team, &found, sizeof found, "the best evaluation so far");
    trainer->best.stop = found.stop;
    trainer->best.saved_loss = found.saved_loss;
    return status;
}

void ox_trainer_take_best(struct ox_trainer *trainer, bool complete) {
    char path[OX_PATH_BYTES], name[LOSS_NAME_BYTES];
    double loss = NAN;
    if (!ox_trainer_leads(trainer) || trainer->result[0] == '\0') {
        return;
    }
    ox_checkpoint_keep(trainer->config.files.output_dir, &trainer->state, trainer->config.save.save_total_limit,
                       trainer->config.save.save_optimizer_limit);
    if (!complete || !trainer->config.save.load_best_model_at_end ||
        !ox_checkpoint_find_best(trainer->config.files.output_dir, &trainer->state, path, &loss) ||
        strcmp(path, trainer->result) == 0) {
        return;
    }
    if (ox_checkpoint_record_result(trainer->result, path) != OX_OK) {
        ox_log(OX_LOG_WARN, "%s is the best checkpoint, but the newest one does not name it: %s", path,
               ox_error_text());
        return;
    }
    ox_log(OX_LOG_INFO, "the result is the best checkpoint, with %s %.6g (--load-best-model-at-end); the last step is "
           "in %s", loss_name(&trainer->config, name), loss, trainer->result);
    memcpy(trainer->result, path, sizeof path);
}

/* ---- time ----------------------------------------------------------------------------------------------- */

bool ox_trainer_is_out_of_time(struct ox_trainer *trainer) {
    const uint64_t limit_ns = trainer->config.train.max_time_ns;
    const bool over = limit_ns > 0 && ox_clock_ns() - trainer->opened_ns >= limit_ns;
    if (over && !trainer->told_of_time) {
        char text[OX_SIZE_TEXT_BYTES];
        trainer->told_of_time = true;
        ox_log(OX_LOG_INFO, "the run is to end after step %" PRIu64 ", because it has run for %s (--max-time)",
               trainer->state.step, ox_duration_flag_text(limit_ns, text));
    }
    return over;
}
