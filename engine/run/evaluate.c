/* Evaluates, within a run or a model folder alone. */
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- windows ------------------------------------------------------------------------------------------ */

/* Loss over the first rows of an epoch, as a sum over the targets that count. */
struct eval_sum {
    double loss;
    uint64_t targets, batches;
    bool with_update; /* the pending update of the step before ran within */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
};

/* Losses are added in groups of so many micro-batches as are configured. Ranks that evaluate alone take more of them at
 * a time, but must not change the sum. */
static void add_losses(struct eval_sum *sum, const struct ox_trainer *trainer, const struct ox_eval_result *result) {
    const uint32_t group = (uint32_t)trainer->config.gradient_accumulation_steps;
    for (uint32_t first = 0; first < trainer->engine_config.micro_batches; first += group) {
        double part = 0;
        for (uint32_t i = 0; i < group; i++) {
            part += result->losses[(uint64_t)(first + i) * result->loss_values];
        }
        sum->loss += part;
    }
}

static void add_batch(struct eval_sum *sum, const struct ox_eval_result *result, uint64_t targets) {
    sum->targets += targets;
    sum->batches++;
    sum->with_update |= result->with_update;
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            sum->traffic[link][kind] += result->traffic[link][kind];
        }
    }
}

/* The hooks that follow an evaluation, the source that is measured, and when that began. */
struct watch {
    const struct ox_eval_hooks *hooks;
    struct ox_eval_source *source;
    uint64_t begin_ns;
};

static void finish(struct ox_eval_report *report, double sum, uint64_t begin_ns) {
    report->loss = report->tokens > 0 ? sum / (double)report->tokens : NAN;
    report->perplexity = exp(report->loss);
    report->seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9;
}

static void note(const struct watch *watch, const struct eval_sum *sum, uint64_t done) {
    watch->source->windows_done = done;
    watch->source->report.tokens = sum->targets;
    finish(&watch->source->report, sum->loss, watch->begin_ns);
    if (watch->hooks->went != NULL) {
        watch->hooks->went(watch->hooks->context, watch->source);
    }
}

/* Takes the first `limit` rows, or all for 0; `watch` may be NULL. */
static enum ox_status eval_rows(struct ox_trainer *trainer, struct ox_windows *windows, uint64_t limit,
                                const struct watch *watch, struct eval_sum *out) {
    struct ox_windows_counts counts;
    ox_windows_counts(windows, &counts);
    const uint64_t rows = limit > 0 ? ox_min_u64(counts.rows, limit) : counts.rows;
    const uint64_t at_once = (uint64_t)trainer->engine_config.batch * trainer->engine_config.micro_batches;
    *out = (struct eval_sum){0};
    for (uint64_t done = 0; done < rows; done += at_once) {
        struct ox_step_input input = {.stop = trainer->events != NULL ? &trainer->events->stop : NULL};
        enum ox_status status = ox_trainer_fill(trainer, windows, done, rows - done, &input.target_count);
        if (status != OX_OK) {
            return status;
        }
        if (input.target_count == 0) {
            continue;
        }
        struct ox_eval_result result;
        status = ox_engine_eval(trainer->engine, &input, &result);
        if (status != OX_OK) {
            return status;
        }
        add_losses(out, trainer, &result);
        add_batch(out, &result, input.target_count);
        if (watch != NULL) {
            note(watch, out, ox_min_u64(done + at_once, rows));
        }
    }
    return OX_OK;
}

void ox_trainer_warn_loss(const struct ox_trainer *trainer, const char *what, double loss) {
    const uint32_t vocab = trainer->input.vocab;
    const double guessing = log((double)vocab);
    if (loss > guessing) {
        ox_log(OX_LOG_WARN, "%s is %.2f, but guessing among %" PRIu32 " tokens would make it %.2f, so these weights "
               "know nothing of this text: the likely causes are a tokenizer that is not the model's (%s), weights "
               "that are damaged or were never trained, %sand data that is not what it seems (`offload tokenize "
               "--show` prints it)", what, loss, vocab, guessing,
               trainer->input.tokenizer_path[0] != '\0' ? trainer->input.tokenizer_path : "its bytes are the tokens",
               ox_trainer_has_conversations(trainer) ? "a chat template that the model was not trained with, " : "");
    }
}

static void add_sum(struct eval_sum *sum, const struct eval_sum *more) {
    sum->loss += more->loss;
    sum->targets += more->targets;
    sum->batches += more->batches;
    sum->with_update |= more->with_update;
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            sum->traffic[link][kind] += more->traffic[link][kind];
        }
    }
}

/* Evaluates all sets one after another; those that have names are reported each by itself too. */
static enum ox_status eval_sets(struct ox_trainer *trainer, struct eval_sum *sum, struct ox_eval_report *out) {
    const struct ox_eval_sets *const sets = &trainer->input.eval_sets;
    const uint64_t limit = trainer->config.eval_windows;
    enum ox_status status = eval_rows(trainer, trainer->input.eval, limit, NULL, sum);
    for (uint32_t i = 0; i < sets->count && sets->sets[0].name[0] != '\0' && status == OX_OK; i++) {
        struct eval_sum one = *sum;
        if (i > 0) {
            status = eval_rows(trainer, trainer->input.eval_more[i], limit, NULL, &one);
            add_sum(sum, &one);
        }
        struct ox_eval_set_report *const report = &out->sets[out->set_count++];
        memcpy(report->name, sets->sets[i].name, sizeof report->name);
        report->tokens = one.targets;
        report->loss = one.targets > 0 ? one.loss / (double)one.targets : NAN;
    }
    return status;
}

enum ox_status ox_trainer_eval(struct ox_trainer *trainer, struct ox_eval_report *out) {
    const uint64_t begin_ns = ox_clock_ns();
    const struct ox_prediction *const prediction = &trainer->prediction;
    struct eval_sum sum;
    *out = (struct ox_eval_report){.step = trainer->state.step, .epoch = ox_trainer_epoch(trainer)};
    const enum ox_status status = eval_sets(trainer, &sum, out);
    out->tokens = sum.targets;
    out->with_update = sum.with_update;
    memcpy(out->traffic, sum.traffic, sizeof out->traffic);
    out->predicted_seconds = (double)sum.batches * prediction->eval_seconds;
    if (sum.with_update) {
        out->predicted_seconds += prediction->eval_after_step_seconds - prediction->eval_seconds;
    }
    finish(out, sum.loss, begin_ns);
    return status;
}

/* ---- alone -------------------------------------------------------------------------------------------- */

/* Takes a configuration for weights alone, in memory: settings of drives and of training are ignored. */
static void take_config(struct ox_trainer *trainer, const struct ox_config *config) {
    trainer->config = *config;
    trainer->lock_fd = -1;
    trainer->input.eval_alone = trainer->input.holds_whole = true;
    if (config->nvme_count > 0) {
        ox_log(OX_LOG_INFO, "evaluation uses memory alone; the drives of the configuration are not touched");
    }
    trainer->config.nvme_count = 0;
    trainer->config.weights_tier = config->weights_tier == OX_TIER_CHOICE_NVME ? OX_TIER_CHOICE_AUTO
                                                                               : config->weights_tier;
    trainer->config.state_tier = trainer->config.grads_tier = trainer->config.activation_tier = OX_TIER_CHOICE_AUTO;
    trainer->config.tiles = 0;
    trainer->config.eval_data[0] = '\0';
    trainer->config.output_dir[0] = '\0';
}

/* Left to choose, each rank has a copy of the weights, because nothing crosses between ranks then; or its slices, where
 * copies do not fit. */
static enum ox_status open_plan(struct ox_trainer *trainer) {
    struct ox_engine_config *const engine = &trainer->engine_config;
    const bool chosen = engine->sharding != OX_SHARDING_COUNT;
    enum ox_status status = OX_E_CONFIG;
    if (!chosen && engine->ranks > 1) {
        engine->sharding = OX_SHARDING_NONE;
        status = ox_engine_plan_open(engine, &trainer->plan);
    }
    if (status == OX_E_CONFIG) {
        engine->sharding = chosen ? engine->sharding : OX_SHARDING_FULL;
        status = ox_engine_plan_open(engine, &trainer->plan);
    }
    return status;
}

static enum ox_status open_engine(struct ox_trainer *trainer) {
    trainer->engine_config.eval_only = true;
    trainer->engine_config.state = (struct ox_state_format){0}; /* there is no state, so any --dtype works */
    enum ox_status status = open_plan(trainer);
    OX_THEN(status, ox_engine_open(&trainer->engine_config, &trainer->plan, &trainer->engine));
    OX_THEN(status, ox_engine_load_begin(trainer->engine, 0));
    OX_THEN(status, ox_engine_load_weights(trainer->engine, trainer->folder));
    return status == OX_OK ? ox_engine_load_commit(trainer->engine, NULL, 0) : status;
}

static enum ox_status open_parts(struct ox_trainer *trainer) {
    enum ox_status status = ox_trainer_prepare(trainer, true);
    OX_THEN(status, ox_trainer_open_sources(trainer));
    return status == OX_OK ? open_engine(trainer) : status;
}

/* Opens the windows of a source from token `first` on. */
static enum ox_status open_windows(struct ox_trainer *trainer, uint32_t idx, uint64_t first, struct ox_windows **out) {
    const struct ox_config *const config = &trainer->config;
    const struct ox_window_source source = {
        .data = trainer->input.data[idx], .weight = 1, .token_first = first,
        .token_count = ox_data_token_count(trainer->input.data[idx]) - first};
    struct ox_windows_config windows;
    /* The figures of a file do not depend on what else is evaluated. */
    const enum ox_status status =
        ox_trainer_windows_config(trainer, ox_data_is_chat(trainer->input.data[idx]), &windows);
    if (status != OX_OK) {
        return status;
    }
    windows.sources = &source;
    windows.source_count = 1;
    /* The last token of a window is the first of the next one, unless --stride says otherwise. */
    windows.stride = (uint32_t)(config->stride > 0 ? config->stride : config->max_seq_length);
    windows.tail = true;
    windows.order = OX_WINDOWS_SEQUENTIAL;
    if (windows.packing != OX_PACK_STREAM && config->stride > 0) {
        return ox_fail(OX_E_CONFIG, "%s: --stride works on a stream of tokens; add --packing stream",
                       config->data[idx].path);
    }
    const bool apart = windows.bos < 0; /* windows may share no token: the first of each is not predicted */
    if (config->stride > config->max_seq_length + apart) {
        return ox_fail(OX_E_CONFIG, "--stride %" PRIu64 ": exceeds --max-seq-length %" PRIu64 "%s, so that tokens "
                       "between windows would be in none", config->stride, config->max_seq_length, apart ? " + 1" : "");
    }
    return ox_windows_open(&windows, out);
}

static enum ox_status evaluate_source(struct ox_trainer *trainer, uint32_t idx, uint64_t first,
                                      const struct ox_eval_hooks *hooks, struct eval_sum *sum,
                                      struct ox_eval_source *out) {
    const uint64_t limit = trainer->config.max_windows;
    const struct watch watch = {.hooks = hooks, .source = out, .begin_ns = ox_clock_ns()};
    struct ox_windows_counts counts;
    *out = (struct ox_eval_source){.path = trainer->config.data[idx].path,
                                   .data_tokens = ox_data_token_count(trainer->input.data[idx]) - first};
    if (first > 0) {
        ox_log(OX_LOG_INFO, "%s: what the run held out is measured, the last %" PRIu64 " token%s (--eval-fraction %g)",
               out->path, out->data_tokens, ox_plural(out->data_tokens), trainer->config.held_share);
    }
    enum ox_status status = open_windows(trainer, idx, first, &trainer->input.eval);
    if (status == OX_OK) {
        ox_windows_counts(trainer->input.eval, &counts);
        out->windows = limit > 0 && limit < counts.rows ? limit : counts.rows;
        ox_trainer_log_rows(trainer->input.eval, out->path, (uint32_t)trainer->config.max_seq_length);
        status = eval_rows(trainer, trainer->input.eval, limit, &watch, sum);
    }
    out->report.tokens = sum->targets;
    finish(&out->report, sum->loss, watch.begin_ns);
    ox_windows_close(&trainer->input.eval);
    return status;
}

static enum ox_status evaluate(struct ox_trainer *trainer, const struct ox_eval_hooks *hooks,
                               struct ox_eval_source *out) {
    const uint64_t begin_ns = ox_clock_ns();
    double total = 0;
    *out = (struct ox_eval_source){.path = "total"};
    uint64_t firsts[OX_CONFIG_DATA_MAX] = {0};
    enum ox_status status = open_parts(trainer);
    OX_THEN(status, trainer->config.held_share > 0 ? ox_trainer_find_held(trainer, firsts) : OX_OK);
    for (uint32_t i = 0; i < trainer->input.data_count && status == OX_OK; i++) {
        struct ox_eval_source source;
        struct eval_sum sum = {0};
        status = evaluate_source(trainer, i, firsts[i], hooks, &sum, &source);
        if (status == OX_OK && source.report.tokens == 0) {
            status = ox_fail(OX_E_CONFIG, "%s: no token to be predicted; give text of two tokens or more, or rows "
                             "with something to train on", source.path);
        }
        if (status == OX_OK && hooks->seen != NULL) {
            hooks->seen(hooks->context, &source);
        }
        total += sum.loss;
        out->windows += source.windows;
        out->data_tokens += source.data_tokens;
        out->report.tokens += source.report.tokens;
    }
    finish(&out->report, total, begin_ns);
    if (status == OX_OK) {
        ox_trainer_warn_loss(trainer, "the loss", out->report.loss);
    }
    return status;
}

enum ox_status ox_evaluate(const struct ox_config *config, const struct ox_eval_hooks *hooks,
                           struct ox_eval_source *out) {
    struct ox_trainer *trainer = calloc(1, sizeof *trainer);
    if (trainer == NULL) {
        return ox_fail(OX_E_NOMEM, "evaluation: no memory");
    }
    take_config(trainer, config);
    const enum ox_status status = evaluate(trainer, hooks, out);
    ox_trainer_close(&trainer);
    return status;
}
