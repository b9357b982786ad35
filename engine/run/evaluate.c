/* Evaluates, within a run or a model folder alone. */
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash/hash.h"
#include "base/log.h"
#include "engine/config/reword.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- windows ------------------------------------------------------------------------------------------ */

/* Loss over the first rows of an epoch, as a sum over the targets that count, or over pairs. */
struct eval_sum {
    double loss, values[OX_PAIR_VALUES]; /* values: of pairs */
    uint64_t targets, batches, counted;  /* counted: what the loss is a mean over */
    bool with_update; /* the pending update of the step before ran within */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
};

/* Losses are added in groups of so many micro-batches as are configured. Ranks that evaluate alone take more of them at
 * a time, but must not change the sum. */
static void add_losses(struct eval_sum *sum, const struct ox_trainer *trainer, const struct ox_eval_result *result) {
    const uint32_t group = (uint32_t)trainer->config.train.gradient_accumulation_steps;
    for (uint32_t first = 0; first < trainer->engine_config.micro_batches; first += group) {
        double part = 0;
        for (uint32_t i = 0; i < group; i++) {
            const double *const values = &result->losses[(uint64_t)(first + i) * result->loss_values];
            part += values[0];
            for (int k = 0; k < OX_PAIR_VALUES && trainer->engine_config.objective.pairs; k++) {
                sum->values[k] += values[k];
            }
        }
        sum->loss += part;
    }
}

/* Adds what was measured of other rows. */
static void add_sum(struct eval_sum *sum, const struct eval_sum *more) {
    sum->loss += more->loss;
    for (int i = 0; i < OX_PAIR_VALUES; i++) {
        sum->values[i] += more->values[i];
    }
    sum->counted += more->counted;
    sum->targets += more->targets;
    sum->batches += more->batches;
    sum->with_update |= more->with_update;
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            sum->traffic[link][kind] += more->traffic[link][kind];
        }
    }
}

/* Adds what an evaluation has measured; its losses are added apart. */
static void add_batch(struct eval_sum *sum, const struct ox_eval_result *result, uint64_t targets,
                      uint64_t counted) {
    struct eval_sum batch = {.targets = targets, .batches = 1, .counted = counted, .with_update = result->with_update};
    memcpy(batch.traffic, result->traffic, sizeof batch.traffic);
    add_sum(sum, &batch);
}

/* The hooks that follow an evaluation, the source that is measured, and when that began. */
struct watch {
    const struct ox_eval_hooks *hooks;
    struct ox_eval_source *source;
    uint64_t begin_ns;
};

/* The means of what is measured of pairs beside their loss; returns how many parts there are. */
static uint32_t eval_parts(const struct ox_trainer *trainer, const struct eval_sum *sum, struct ox_report_part *parts) {
    double means[OX_PAIR_VALUES];
    if (!trainer->engine_config.objective.pairs) {
        return 0;
    }
    for (int i = 0; i < OX_PAIR_VALUES; i++) {
        means[i] = sum->values[i] / (double)sum->counted;
    }
    return ox_trainer_parts(trainer, means, parts);
}

/* Takes a sum as its mean: over tokens, or pairs. */
static void finish(const struct ox_trainer *trainer, struct ox_eval_report *report, const struct eval_sum *sum,
                   uint64_t begin_ns) {
    report->tokens = sum->targets;
    report->loss = sum->counted > 0 ? sum->loss / (double)sum->counted : NAN;
    report->part_count = eval_parts(trainer, sum, report->parts);
    report->perplexity = report->part_count > 0 ? NAN : exp(report->loss);
    report->seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9;
}

static void note(const struct ox_trainer *trainer, const struct watch *watch, const struct eval_sum *sum,
                 uint64_t done) {
    watch->source->windows_done = done;
    finish(trainer, &watch->source->report, sum, watch->begin_ns);
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
        uint64_t targets = 0;
        enum ox_status status = ox_trainer_fill(trainer, windows, done, rows - done, &targets);
        if (status != OX_OK) {
            return status;
        }
        if (targets == 0) {
            continue;
        }
        input.target_count =
            trainer->engine_config.objective.pairs ? ox_min_u64(at_once, rows - done) / 2 : targets;
        struct ox_eval_result result;
        status = ox_engine_eval(trainer->engine, &input, &result);
        if (status != OX_OK) {
            return status;
        }
        add_losses(out, trainer, &result);
        add_batch(out, &result, targets, input.target_count);
        if (watch != NULL) {
            note(trainer, watch, out, ox_min_u64(done + at_once, rows) / ox_trainer_unit(&trainer->config));
        }
    }
    return OX_OK;
}

/* The rows of an evaluation within a run; 0: all. */
static uint64_t eval_limit(const struct ox_trainer *trainer) {
    return trainer->config.save.eval_windows * ox_trainer_unit(&trainer->config);
}

/* By how much, in nats, weights must be worse than guessing to be called so. Those that were just made are a little
 * worse, since their logits are not equal. */
static const double WORSE_THAN_GUESSING = 0.5;

void ox_trainer_warn_loss(const struct ox_trainer *trainer, const char *what, double loss) {
    const uint32_t vocab = trainer->input.vocab;
    const double guessing = log((double)vocab);
    if (loss > guessing + WORSE_THAN_GUESSING) {
        ox_log(OX_LOG_WARN, "%s is %.2f, but guessing among %" PRIu32 " tokens would make it %.2f, so these weights "
               "know nothing of this text: the likely causes are a tokenizer that is not the model's (%s), weights "
               "that are damaged or were never trained, %sand data that is not what it seems (`offload tokenize "
               "--show` prints it)", what, loss, vocab, guessing,
               trainer->input.tokenizer_path[0] != '\0' ? trainer->input.tokenizer_path : "its bytes are the tokens",
               ox_trainer_has_conversations(trainer) ? "a chat template that the model was not trained with, " : "");
    }
}

/* Evaluates all sets one after another; those that have names are reported each by itself too. */
static enum ox_status eval_sets(struct ox_trainer *trainer, struct eval_sum *sum, struct ox_eval_report *out) {
    const struct ox_eval_sets *const sets = &trainer->input.eval_sets;
    const uint64_t limit = eval_limit(trainer);
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
        report->loss = one.counted > 0 ? one.loss / (double)one.counted : NAN;
        eval_parts(trainer, &one, report->parts);
    }
    return status;
}

/* Evaluates all sets with the averages of the weights in their place; what is sent and read counts with the rest. */
static enum ox_status eval_averages(struct ox_trainer *trainer, struct eval_sum *all, struct ox_eval_report *out) {
    const struct ox_eval_sets *const sets = &trainer->input.eval_sets;
    const uint64_t limit = eval_limit(trainer);
    struct eval_sum sum = {0};
    if (ox_engine_swaps_from_commit(trainer->engine)) {
        ox_trainer_persist(trainer);
    }
    OX_TRY(ox_engine_swap_averages(trainer->engine));
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < ox_max_u64(sets->count, 1) && status == OX_OK; i++) {
        struct eval_sum one;
        status = eval_rows(trainer, i == 0 ? trainer->input.eval : trainer->input.eval_more[i], limit, NULL, &one);
        add_sum(&sum, &one);
    }
    if (status != OX_OK) { /* as the weights are needed whatever comes */
        char text[OX_ERROR_TEXT_BYTES];
        snprintf(text, sizeof text, "%s", ox_error_text());
        return ox_engine_swap_averages(trainer->engine) == OX_OK ? ox_fail(status, "%s", text) : status;
    }
    struct ox_eval_set_report *const report = &out->sets[out->set_count++];
    snprintf(report->name, sizeof report->name, "%s", OX_EMA_SET);
    report->tokens = sum.targets;
    report->loss = sum.counted > 0 ? sum.loss / (double)sum.counted : NAN;
    eval_parts(trainer, &sum, report->parts);
    all->batches += sum.batches;
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            all->traffic[link][kind] += sum.traffic[link][kind];
        }
    }
    return ox_engine_swap_averages(trainer->engine);
}

enum ox_status ox_trainer_eval(struct ox_trainer *trainer, struct ox_eval_report *out) {
    const uint64_t begin_ns = ox_clock_ns();
    const struct ox_prediction *const prediction = &trainer->prediction;
    struct eval_sum sum;
    *out = (struct ox_eval_report){.step = trainer->state.step, .epoch = ox_trainer_epoch(trainer)};
    enum ox_status status = eval_sets(trainer, &sum, out);
    if (status == OX_OK && trainer->config.save.eval_ema && trainer->state.step > 0) { /* the first step makes them */
        status = eval_averages(trainer, &sum, out);
    }
    out->with_update = sum.with_update;
    memcpy(out->traffic, sum.traffic, sizeof out->traffic);
    out->predicted_seconds = (double)sum.batches * prediction->eval_seconds;
    if (sum.with_update) {
        out->predicted_seconds += prediction->eval_after_step_seconds - prediction->eval_seconds;
    }
    finish(trainer, out, &sum, begin_ns);
    return status;
}

/* ---- the reference of preferences --------------------------------------------------------------------- */

/* A pass of the reference over rows whose log-probabilities are not known yet. */
struct pass {
    struct ox_trainer *trainer;
    char path[OX_PATH_BYTES];
    uint64_t done, begin_ns, logged_ns, saved_ns; /* done: sequences */
};
static const uint64_t log_pause_ns = UINT64_C(10000000000), save_pause_ns = UINT64_C(20000000000);

static enum ox_status save_pass(struct pass *pass) {
    pass->saved_ns = ox_clock_ns();
    return ox_trainer_leads(pass->trainer) ? ox_reference_save(&pass->trainer->reference, pass->path) : OX_OK;
}

/* Saves what is known so far. The other processes do not hear of a failure, so it is none yet: at the end of the pass
 * all of them do. */
static void save_so_far(struct pass *pass) {
    if (save_pass(pass) != OX_OK) {
        ox_log(OX_LOG_WARN, "reference: %s; it is tried again", ox_error_text());
    }
}

static enum ox_status fail_moved(const struct pass *pass, uint32_t part) {
    return ox_fail(OX_E_CONFIG, "%s: lacks the reference's log-probabilities of rows that are needed%s, and the "
                   "weights have moved on from those that the run began with; give the data, --max-seq-length, "
                   "--max-steps and --eval-windows that it began with, or begin anew", pass->path,
                   part == 0 ? "" : " for evaluation");
}

/* Asks for the log-probabilities of rows at a cursor, a batch at most; those that are known stay, so that an
 * interrupted pass has the same bits. `values`: by ox_windows_place. */
static enum ox_status ask_rows(struct ox_trainer *trainer, struct ox_windows *windows, uint64_t cursor, uint64_t rows,
                               double *values) {
    const uint32_t batch = trainer->engine_config.batch;
    struct ox_step_input input = {.stop = trainer->events != NULL ? &trainer->events->stop : NULL,
                                  .target_count = rows / 2};
    struct ox_eval_result result;
    uint64_t targets = 0;
    OX_TRY(ox_trainer_fill(trainer, windows, cursor, rows, &targets));
    OX_TRY(ox_engine_eval(trainer->engine, &input, &result));
    for (uint64_t i = 0; i < rows; i++) {
        const uint64_t place = ox_windows_place(windows, cursor + i);
        const double logp = result.losses[i / batch * result.loss_values + OX_PAIR_VALUES + i % batch];
        if (!isfinite(logp)) {
            return ox_fail(OX_E_CONFIG, "%s: the weights of the reference give a sequence the log-probability %g; they "
                           "are damaged, or do not fit --dtype", trainer->config.files.model, logp);
        }
        values[place] = isnan(values[place]) ? logp : values[place];
    }
    return OX_OK;
}

/* Computes those of the rows at a cursor, if one of them is not known. */
static enum ox_status pass_rows(struct pass *pass, uint32_t part, struct ox_windows *windows, uint64_t cursor,
                                uint64_t rows) {
    const struct ox_trainer *const trainer = pass->trainer;
    const double *const values = trainer->reference.parts[part].values;
    bool known = true;
    for (uint64_t i = 0; i < rows && known; i++) {
        known = !isnan(values[ox_windows_place(windows, cursor + i)]);
    }
    if (known || trainer->state.step > 0) {
        return known ? OX_OK : fail_moved(pass, part);
    }
    enum ox_status status =
        ask_rows(pass->trainer, windows, cursor, rows, pass->trainer->reference.parts[part].values);
    pass->done += status == OX_OK ? rows : 0;
    const uint64_t now = ox_clock_ns();
    if (status == OX_OK && now - pass->logged_ns >= log_pause_ns) {
        pass->logged_ns = now;
        ox_log(OX_LOG_INFO, "reference: log-probabilities of %" PRIu64 " sequences so far, %.1f a second", pass->done,
               (double)pass->done * 1e9 / (double)(now - pass->begin_ns));
    }
    if (status == OX_OK && now - pass->saved_ns >= save_pause_ns) {
        save_so_far(pass);
    }
    return status;
}

/* All rows that the run will take, in the batches in which it takes them. */
static enum ox_status pass_all(struct pass *pass) {
    struct ox_trainer *const trainer = pass->trainer;
    const uint64_t at_once = (uint64_t)trainer->engine_config.batch * trainer->engine_config.micro_batches;
    const uint64_t limit = eval_limit(trainer);
    enum ox_status status = OX_OK;
    struct ox_windows_counts counts;
    uint64_t cursor = trainer->state.cursor;
    for (uint64_t step = trainer->state.step; step < trainer->max_steps && status == OX_OK; step++) {
        const uint64_t rows = ox_trainer_step_rows(trainer, cursor);
        status = pass_rows(pass, 0, trainer->input.train, cursor, rows);
        cursor += rows;
    }
    for (uint32_t part = 1; part < trainer->reference.part_count && status == OX_OK; part++) {
        struct ox_windows *const windows = part == 1 ? trainer->input.eval : trainer->input.eval_more[part - 1];
        ox_windows_counts(windows, &counts);
        const uint64_t all = limit > 0 ? ox_min_u64(counts.rows, limit) : counts.rows;
        for (cursor = 0; cursor < all && status == OX_OK; cursor += at_once) {
            status = pass_rows(pass, part, windows, cursor, ox_min_u64(at_once, all - cursor));
        }
    }
    return status;
}

static void add_part(struct ox_reference *reference, const struct ox_windows *windows) {
    struct ox_windows_counts counts;
    ox_windows_counts(windows, &counts);
    reference->parts[reference->part_count++] =
        (struct ox_reference_part){.fingerprint = ox_windows_fingerprint(windows), .rows = counts.all_rows};
}

_Static_assert((int)OX_REFERENCE_PARTS_MAX > (int)OX_EVAL_SETS_MAX, "the rows for training, and those of each set");

/* Opens the reference with what files know of it: that of the run, or of the run whose checkpoint it begins with. */
static enum ox_status open_reference(struct pass *pass) {
    struct ox_trainer *const trainer = pass->trainer;
    struct ox_reference *const reference = &trainer->reference;
    const char *const resume = trainer->config.files.resume_from_checkpoint;
    char folder[OX_PATH_BYTES], path[OX_PATH_BYTES];
    bool found = false;
    const bool is_base = resume[0] == '\0' && trainer->config.parts.adapter[0] == '\0';
    *reference = (struct ox_reference){0};
    memcpy(reference->run_id, trainer->identity.run_id, sizeof reference->run_id);
    /* Before the first step what other numerics have said is said anew; later the run goes on with it. */
    const uint64_t numerics[] = {trainer->engine_config.dtype, trainer->engine_config.device,
                                 trainer->engine_config.router_rounds, trainer->config.parts.base_dtype};
    reference->numerics = trainer->state.step == 0 ? ox_hash_seed(numerics, sizeof numerics / sizeof *numerics) : 0;
    enum ox_status status = is_base ? ox_hf_base_hash(trainer->folder, &reference->weights) : OX_OK;
    add_part(reference, trainer->input.train);
    for (uint32_t i = 0; trainer->input.eval != NULL && i < ox_max_u64(trainer->input.eval_sets.count, 1); i++) {
        add_part(reference, i == 0 ? trainer->input.eval : trainer->input.eval_more[i]);
    }
    OX_THEN(status, ox_reference_open(reference));
    OX_THEN(status, ox_path_join(trainer->config.files.output_dir, OX_REFERENCE_NAME, pass->path));
    OX_THEN(status, ox_reference_load(reference, pass->path, &found));
    if (status == OX_OK && !found && resume[0] != '\0' && strcmp(resume, "latest") != 0) {
        ox_run_of_checkpoint(resume, folder);
        memcpy(reference->run_id, trainer->identity.parent, sizeof reference->run_id);
        status = ox_path_join(folder, OX_REFERENCE_NAME, path);
        OX_THEN(status, ox_reference_load(reference, path, &found));
        memcpy(reference->run_id, trainer->identity.run_id, sizeof reference->run_id);
        OX_THEN(status, found ? save_pass(pass) : OX_OK);
    }
    return ox_trainer_agree(trainer, status, "what the reference says");
}

enum ox_status ox_trainer_find_reference(struct ox_trainer *trainer) {
    if (!trainer->config.loss.dpo) {
        return OX_OK;
    }
    struct pass *const pass = malloc(sizeof *pass); /* a path is large for the stack */
    if (pass == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for a path");
    }
    *pass = (struct pass){.trainer = trainer, .begin_ns = ox_clock_ns()};
    pass->logged_ns = pass->saved_ns = pass->begin_ns;
    enum ox_status status = open_reference(pass);
    OX_THEN(status, pass_all(pass));
    if (pass->done > 0) { /* also what was done before it was stopped */
        char text[OX_ERROR_TEXT_BYTES];
        snprintf(text, sizeof text, "%s", status != OX_OK ? ox_error_text() : "");
        enum ox_status saved = save_pass(pass);
        saved = status == OX_OK ? ox_trainer_agree(trainer, saved, "saving what the reference says") : saved;
        status = status == OX_OK ? saved : ox_fail(status, "%s", text);
    }
    if (status == OX_OK && pass->done > 0) {
        ox_log(OX_LOG_INFO, "reference: log-probabilities of %" PRIu64 " sequences by the weights that the run begins "
               "with, in %.1f s; kept in %s", pass->done, (double)(ox_clock_ns() - pass->begin_ns) * 1e-9, pass->path);
    }
    free(pass);
    return status;
}

/* ---- alone -------------------------------------------------------------------------------------------- */

/* Takes a configuration for weights alone, in memory: settings of drives and of training are ignored. */
static void take_config(struct ox_trainer *trainer, const struct ox_config *config) {
    trainer->config = *config;
    trainer->lock_fd = -1;
    trainer->input.eval_alone = trainer->input.holds_whole = true;
    if (config->memory.nvme_count > 0) {
        ox_log(OX_LOG_INFO, "evaluation uses memory alone; the drives of the configuration are not touched");
    }
    trainer->config.memory.nvme_count = 0;
    trainer->config.place.weights_tier = config->place.weights_tier == OX_TIER_CHOICE_NVME ? OX_TIER_CHOICE_AUTO
                                                                                           : config->place.weights_tier;
    trainer->config.place.state_tier = trainer->config.place.grads_tier = trainer->config.place.activation_tier =
        OX_TIER_CHOICE_AUTO;
    trainer->config.place.tiles = 0;
    trainer->config.files.eval_data[0] = '\0';
    trainer->config.files.output_dir[0] = '\0';
}

/* Left to choose, each rank has a copy of the weights, because nothing crosses between ranks then; or its slices, where
 * copies do not fit. */
static enum ox_status open_plan(struct ox_trainer *trainer) {
    struct ox_engine_config *const engine = &trainer->engine_config;
    const bool chosen = engine->sharding != OX_SHARDING_COUNT;
    enum ox_status status = OX_E_CONFIG;
    if (!chosen && engine->experts <= 1 && engine->ranks > engine->pipe * engine->tensors) {
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
    windows.stride = (uint32_t)(config->eval.stride > 0 ? config->eval.stride : config->rows.max_seq_length);
    /* What a run is evaluated on is measured as it does: without the tail. */
    windows.tail = !config->rows.as_run || (config->rows.held_share > 0 && first == 0);
    windows.order = OX_WINDOWS_SEQUENTIAL;
    if (windows.packing != OX_PACK_STREAM && config->eval.stride > 0) {
        return ox_fail(OX_E_CONFIG, "%s: --stride works on a stream of tokens; add --packing stream",
                       config->files.data[idx].path);
    }
    const bool apart = windows.bos < 0; /* windows may share no token: the first of each is not predicted */
    if (config->eval.stride > config->rows.max_seq_length + apart) {
        return ox_fail(OX_E_CONFIG,
                       "--stride %" PRIu64 ": exceeds --max-seq-length %" PRIu64 "%s, so that tokens "
                       "between windows would be in none",
                       config->eval.stride, config->rows.max_seq_length, apart ? " + 1" : "");
    }
    return ox_windows_open(&windows, out);
}

/* What a reference says of the pairs of each source, and by which rows. */
struct answers {
    double *values[OX_CONFIG_DATA_MAX];
    uint64_t fingerprints[OX_CONFIG_DATA_MAX];
};

static void close_answers(struct answers *answers) {
    for (uint32_t i = 0; i < OX_CONFIG_DATA_MAX; i++) {
        free(answers->values[i]);
        answers->values[i] = NULL;
    }
}

/* How many rows of the source's windows are measured. */
static uint64_t rows_measured(const struct ox_trainer *trainer) {
    const uint64_t limit = trainer->config.eval.max_windows * ox_trainer_unit(&trainer->config);
    struct ox_windows_counts counts;
    ox_windows_counts(trainer->input.eval, &counts);
    return limit > 0 && limit < counts.rows ? limit : counts.rows;
}

static enum ox_status ask_source(struct ox_trainer *trainer, uint32_t idx, uint64_t first, struct answers *answers) {
    const uint64_t at_once = (uint64_t)trainer->engine_config.batch * trainer->engine_config.micro_batches;
    struct ox_windows_counts counts;
    OX_TRY(open_windows(trainer, idx, first, &trainer->input.eval));
    ox_windows_counts(trainer->input.eval, &counts);
    const uint64_t rows = rows_measured(trainer);
    double *const values = calloc(counts.all_rows + 1, sizeof *values);
    enum ox_status status = values != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "no memory for what the reference says");
    for (uint64_t i = 0; values != NULL && i < counts.all_rows; i++) {
        values[i] = NAN;
    }
    for (uint64_t at = 0; at < rows && status == OX_OK; at += at_once) {
        status = ask_rows(trainer, trainer->input.eval, at, ox_min_u64(at_once, rows - at), values);
    }
    answers->values[idx] = values;
    answers->fingerprints[idx] = ox_windows_fingerprint(trainer->input.eval);
    ox_windows_close(&trainer->input.eval);
    return status;
}

/* Asks the reference about all sources, in the batches that follow, and closes it. */
static enum ox_status ask_reference(const struct ox_config *config, struct answers *answers) {
    const uint64_t begin_ns = ox_clock_ns();
    struct ox_trainer *trainer = calloc(1, sizeof *trainer);
    uint64_t firsts[OX_CONFIG_DATA_MAX] = {0};
    if (trainer == NULL) {
        return ox_fail(OX_E_NOMEM, "evaluation: no memory");
    }
    take_config(trainer, config);
    snprintf(trainer->config.files.model, sizeof trainer->config.files.model, "%s", config->eval.reference);
    trainer->config.parts.adapter[0] = '\0';
    trainer->config.optim.use_ema = false;
    enum ox_status status = open_parts(trainer);
    OX_THEN(status, trainer->config.rows.held_share > 0 ? ox_trainer_find_held(trainer, firsts) : OX_OK);
    for (uint32_t i = 0; status == OX_OK && i < trainer->input.data_count; i++) {
        status = ask_source(trainer, i, firsts[i], answers);
    }
    if (status == OX_OK) {
        ox_log(OX_LOG_INFO, "reference: log-probabilities by %s, in %.1f s", config->eval.reference,
               (double)(ox_clock_ns() - begin_ns) * 1e-9);
    }
    ox_trainer_close(&trainer);
    return status == OX_OK ? OX_OK : ox_fail_in(status, "--reference %s", config->eval.reference);
}

/* Lets the source's windows, which are open, have what the reference says. */
static enum ox_status take_answers(struct ox_trainer *trainer, uint32_t idx, const struct answers *answers) {
    if (!trainer->config.loss.dpo) {
        return OX_OK;
    }
    if (ox_windows_fingerprint(trainer->input.eval) != answers->fingerprints[idx]) {
        return ox_fail(OX_E_CONFIG, "%s: has other tokens by the tokenizer or the chat template of --reference %s than "
                       "by those of --model; give a reference of the same tokenizer",
                       trainer->config.files.data[idx].path, trainer->config.eval.reference);
    }
    trainer->reference.part_count = 2; /* the windows of an evaluation are the second part */
    trainer->reference.parts[1].values = answers->values[idx];
    return OX_OK;
}

static enum ox_status evaluate_source(struct ox_trainer *trainer, uint32_t idx, uint64_t first,
                                      const struct answers *answers, const struct ox_eval_hooks *hooks,
                                      struct eval_sum *sum, struct ox_eval_source *out) {
    const struct watch watch = {.hooks = hooks, .source = out, .begin_ns = ox_clock_ns()};
    *out = (struct ox_eval_source){.path = trainer->config.files.data[idx].path,
                                   .data_tokens = ox_data_token_count(trainer->input.data[idx]) - first};
    if (first > 0) {
        ox_log(OX_LOG_INFO, "%s: what the run held out is measured, the last %" PRIu64 " token%s (the run's "
               "--eval-fraction %g)",
               out->path, out->data_tokens, ox_plural(out->data_tokens), trainer->config.rows.held_share);
    }
    enum ox_status status = open_windows(trainer, idx, first, &trainer->input.eval);
    if (status == OX_OK) {
        const uint64_t rows = rows_measured(trainer);
        out->windows = rows / ox_trainer_unit(&trainer->config);
        ox_trainer_log_rows(trainer->input.eval, out->path, (uint32_t)trainer->config.rows.max_seq_length);
        status = take_answers(trainer, idx, answers);
        OX_THEN(status, eval_rows(trainer, trainer->input.eval, rows, &watch, sum));
    }
    finish(trainer, &out->report, sum, watch.begin_ns);
    ox_windows_close(&trainer->input.eval);
    trainer->reference.part_count = 0;
    return status;
}

static enum ox_status evaluate(struct ox_trainer *trainer, const struct answers *answers,
                               const struct ox_eval_hooks *hooks, struct ox_eval_source *out) {
    const uint64_t begin_ns = ox_clock_ns();
    struct eval_sum all = {0};
    *out = (struct ox_eval_source){.path = "total"};
    uint64_t firsts[OX_CONFIG_DATA_MAX] = {0};
    enum ox_status status = open_parts(trainer);
    OX_THEN(status, trainer->config.rows.held_share > 0 ? ox_trainer_find_held(trainer, firsts) : OX_OK);
    for (uint32_t i = 0; i < trainer->input.data_count && status == OX_OK; i++) {
        struct ox_eval_source source;
        struct eval_sum sum = {0};
        status = evaluate_source(trainer, i, firsts[i], answers, hooks, &sum, &source);
        if (status == OX_OK && source.report.tokens == 0) {
            status = ox_fail(OX_E_CONFIG, "%s: no token to be predicted; give text of two tokens or more, or rows "
                             "with something to train on", source.path);
        }
        if (status == OX_OK && hooks->seen != NULL) {
            hooks->seen(hooks->context, &source);
        }
        add_sum(&all, &sum);
        out->windows += source.windows;
        out->data_tokens += source.data_tokens;
    }
    finish(trainer, &out->report, &all, begin_ns);
    if (status == OX_OK && !trainer->config.loss.dpo) {
        ox_trainer_warn_loss(trainer, "the loss", out->report.loss);
    }
    return status;
}

enum ox_status ox_evaluate(const struct ox_config *config, const struct ox_eval_hooks *hooks,
                           struct ox_eval_source *out) {
    struct answers answers = {.values = {NULL}};
    enum ox_status status = config->loss.dpo ? ask_reference(config, &answers) : OX_OK;
    struct ox_trainer *trainer = status == OX_OK ? calloc(1, sizeof *trainer) : NULL;
    if (status == OX_OK && trainer == NULL) {
        status = ox_fail(OX_E_NOMEM, "evaluation: no memory");
    }
    if (status == OX_OK) {
        take_config(trainer, config);
        status = ox_config_reword(config, evaluate(trainer, &answers, hooks, out));
        ox_trainer_close(&trainer);
    }
    close_answers(&answers);
    return status;
}
