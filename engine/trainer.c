/* Opening a run: model, data, plan; and evaluation. */
#include "engine/trainer_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t ox_fixed_overhead_bytes(uint64_t compute_threads, uint64_t optimizer_threads) {
    /* Measured: docs/benchmarks.md, "Resident memory beside the arenas". What grows with a thread of the device is what
     * the BLAS library packs, at most 4096 rows at a time. */
    return 20 * OX_MIB + compute_threads * 12 * OX_MIB + optimizer_threads * OX_MIB;
}

uint64_t ox_default_host_bytes(void) {
    struct ox_memory memory;
    ox_memory_read("", &memory);
    return memory.usable - memory.usable / 8; /* the rest is for the system and the page cache */
}

/* ---- configuration -------------------------------------------------------------------------------- */

static uint64_t cores(void) {
    const long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (uint64_t)count : 1;
}

static enum ox_tier tier_wish(enum ox_tier_choice choice) {
    static const enum ox_tier tiers[] = {[OX_TIER_CHOICE_AUTO] = OX_TIER_COUNT,
                                         [OX_TIER_CHOICE_DEVICE] = OX_TIER_DEVICE,
                                         [OX_TIER_CHOICE_HOST] = OX_TIER_HOST,
                                         [OX_TIER_CHOICE_NVME] = OX_TIER_NVME};
    return tiers[choice];
}

static enum ox_status pick_isa(const char *name, enum ox_isa *out) {
    if (strcmp(name, "auto") == 0) {
        *out = ox_isa_best();
        return OX_OK;
    }
    for (int isa = 0; isa < OX_ISA_COUNT; isa++) {
        if (strcmp(name, ox_isa_name((enum ox_isa)isa)) == 0 && ox_isa_available((enum ox_isa)isa)) {
            *out = (enum ox_isa)isa;
            return OX_OK;
        }
    }
    return ox_fail(OX_E_CONFIG, "--isa %s: this processor does not have it; use auto", name);
}

static enum ox_status pick_io(const char *name, const struct ox_io_backend **out) {
    char why[160] = "";
    *out = strcmp(name, "auto") == 0 ? ox_io_probe(why) : ox_io_by_name(name);
    if (*out == NULL) {
        return ox_fail(OX_E_CONFIG, "--io-backend %s: use auto, uring or threads", name);
    }
    if (strcmp(name, "auto") == 0 && strcmp((*out)->name, "uring") != 0) {
        ox_log(OX_LOG_WARN, "drives are used through threads, not io_uring: %s", why);
    }
    return OX_OK;
}

static void set_budget(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    struct ox_plan_budget *const budget = &trainer->engine_config.budget;
    budget->unified = config->device_mem_bytes == 0;
    budget->device_bytes = config->device_mem_bytes;
    if (config->host_mem_bytes == 0) { /* recorded with the run, so that going on has the same budget */
        trainer->config.host_mem_bytes = ox_default_host_bytes();
    }
    budget->host_bytes = config->host_mem_bytes;
    for (uint32_t i = 0; i < config->nvme_count; i++) {
        trainer->nvme_folders[i] = config->nvme[i].path;
        trainer->nvme_bytes[i] = config->nvme[i].bytes;
        budget->nvme_bytes += config->nvme[i].bytes;
    }
    budget->drive_bytes = config->nvme_count > 0 ? trainer->nvme_bytes : NULL;
    budget->drive_count = config->nvme_count;
}

enum ox_status ox_trainer_engine_config(struct ox_trainer *trainer, const struct ox_model *model) {
    const struct ox_config *const config = &trainer->config;
    trainer->engine_config = (struct ox_engine_config){
        .model = model,
        .batch = (uint32_t)config->per_device_train_batch_size,
        .seq = (uint32_t)config->max_seq_length,
        .micro_batches = (uint32_t)config->gradient_accumulation_steps,
        .fp32 = config->dtype == OX_COMPUTE_FP32,
        .grad_bf16 = config->grad_dtype == OX_COMPUTE_BF16,
        .decay_embeddings = config->decay_embeddings,
        .compute_threads = (uint32_t)(config->compute_threads > 0 ? config->compute_threads : cores()),
        .optimizer_threads = (uint32_t)(config->optimizer_threads > 0 ? config->optimizer_threads : cores()),
        .wish = {.tiles = (uint32_t)config->tiles,
                 .prefetch_depth = (int32_t)config->prefetch_depth,
                 .act_tier = tier_wish(config->activation_tier),
                 .weights_tier = tier_wish(config->weights_tier),
                 .state_tier = tier_wish(config->state_tier),
                 .grad_tier = tier_wish(config->grads_tier)},
        .chunk_elems = config->chunk_elems,
        .nvme_folders = trainer->nvme_folders,
        .nvme_bytes = trainer->nvme_bytes,
        .nvme_count = config->nvme_count,
        .queue_depth = (uint32_t)config->queue_depth,
        .chaos_seed = config->chaos_seed,
    };
    set_budget(trainer);
    enum ox_status status = pick_isa(config->isa, &trainer->engine_config.isa);
    if (status == OX_OK && config->nvme_count > 0) {
        status = pick_io(config->io_backend, &trainer->engine_config.io);
    }
    return status;
}

/* ---- data ------------------------------------------------------------------------------------------ */

static enum ox_data_kind data_kind(enum ox_data_format format) {
    return format == OX_FORMAT_BYTES ? OX_DATA_BYTES : OX_DATA_AUTO;
}

static enum ox_status check_input(const char *flag, const char *path) {
    if (access(path, F_OK) != 0) {
        return ox_fail(OX_E_CONFIG, "%s %s: there is no such file or folder; give a text or token file, or a folder of "
                       "them", flag, path);
    }
    return OX_OK;
}

static enum ox_status open_eval_data(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    trainer->eval = trainer->train;
    trainer->eval.order = OX_ORDER_SEQUENTIAL;
    if (config->eval_data[0] != '\0') {
        enum ox_status status = check_input("--eval-data", config->eval_data);
        if (status == OX_OK) {
            status = ox_data_open(config->eval_data, data_kind(config->data_format), &trainer->eval_data);
        }
        if (status != OX_OK) {
            return status;
        }
        trainer->eval.first_token = 0;
        trainer->eval.token_count = ox_data_token_count(trainer->eval_data);
        if (ox_sampler_window_count(&trainer->eval) == 0) {
            return ox_fail(OX_E_CONFIG, "--eval-data %s: %llu tokens are not one window of --max-seq-length %llu + 1; "
                           "give more text, or leave it away", config->eval_data,
                           (unsigned long long)trainer->eval.token_count, (unsigned long long)config->max_seq_length);
        }
        return OX_OK;
    }
    trainer->eval_data = trainer->data;
    const uint64_t held = (uint64_t)((double)trainer->train.token_count * config->eval_fraction);
    trainer->train.token_count -= held;
    trainer->eval.first_token = trainer->train.token_count;
    trainer->eval.token_count = held;
    if (config->eval_fraction > 0 && ox_sampler_window_count(&trainer->eval) == 0) {
        trainer->train.token_count += held;
        trainer->eval.token_count = 0;
        if (ox_sampler_window_count(&trainer->train) > 0) {
            ox_log(OX_LOG_WARN, "nothing is evaluated: --eval-fraction %g of %s is less than one window of "
                   "--max-seq-length %llu + 1 tokens; all of it is trained on", config->eval_fraction, config->data[0].path,
                   (unsigned long long)config->max_seq_length);
        }
    }
    return OX_OK;
}

static enum ox_status open_data(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    enum ox_status status = check_input("--data", config->data[0].path);
    if (status == OX_OK) {
        status = ox_data_open(config->data[0].path, data_kind(config->data_format), &trainer->data);
    }
    if (status != OX_OK) {
        return status;
    }
    trainer->train = (struct ox_sampler){
        .token_count = ox_data_token_count(trainer->data),
        .seq = config->max_seq_length,
        .seed = config->seed,
        .order = strcmp(config->data_order, "sequential") == 0 ? OX_ORDER_SEQUENTIAL : OX_ORDER_SHUFFLE,
    };
    status = open_eval_data(trainer);
    if (status == OX_OK && ox_sampler_window_count(&trainer->train) == 0) {
        status = ox_fail(OX_E_CONFIG, "%s: %llu tokens are not one window of --max-seq-length %llu + 1; use a shorter "
                         "length or more text", config->data[0].path, (unsigned long long)trainer->train.token_count,
                         (unsigned long long)config->max_seq_length);
    }
    return status;
}

static enum ox_status open_buffers(struct ox_trainer *trainer) {
    trainer->tokens = calloc(trainer->config.max_seq_length + 1, sizeof *trainer->tokens);
    trainer->marks = calloc(trainer->config.max_seq_length + 1, sizeof *trainer->marks);
    if (trainer->tokens == NULL || trainer->marks == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for a window of %llu tokens",
                       (unsigned long long)trainer->config.max_seq_length);
    }
    return OX_OK;
}

/* A longer window than the model can attend to is the common surprise of the default; say so and go on. */
static void cap_sequence(struct ox_trainer *trainer) {
    const uint32_t contexts = ox_hf_model(trainer->folder)->config.contexts;
    if (trainer->config.max_seq_length > contexts) {
        ox_log(OX_LOG_WARN, "--max-seq-length %llu: the model has %u positions; using %u",
               (unsigned long long)trainer->config.max_seq_length, contexts, contexts);
        trainer->config.max_seq_length = contexts;
    }
}

static enum ox_status open_model(struct ox_trainer *trainer, bool weights) {
    const char *const path = trainer->config.model;
    if (access(path, F_OK) != 0) {
        return ox_fail(OX_E_CONFIG, "--model %s: there is no such file or folder; give a folder of Hugging Face files, "
                       "or a config.json for a fresh start", path);
    }
    return ox_hf_open(path, weights, &trainer->folder);
}

static void set_steps(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const uint64_t per_step = config->per_device_train_batch_size * config->gradient_accumulation_steps;
    const uint64_t windows = trainer->data != NULL ? ox_sampler_window_count(&trainer->train) : 0;
    const double epochs = config->num_train_epochs * (double)windows;
    trainer->max_steps = config->max_steps > 0 ? config->max_steps : (uint64_t)(epochs / (double)per_step);
    trainer->max_steps = trainer->max_steps > 0 ? trainer->max_steps : 1;
    trainer->schedule = ox_schedule_of(config, trainer->max_steps);
}

static enum ox_status open_parts(struct ox_trainer *trainer) {
    enum ox_status status = open_model(trainer, !trainer->config.from_scratch);
    if (status != OX_OK) {
        return status;
    }
    cap_sequence(trainer);
    /* A plan needs no data; without it the number of steps is what the user says. */
    if (trainer->config.data_count > 0) {
        status = open_data(trainer);
    }
    if (status == OX_OK) {
        status = open_buffers(trainer);
    }
    if (status == OX_OK) {
        set_steps(trainer);
        status = ox_trainer_engine_config(trainer, ox_hf_model(trainer->folder));
    }
    return status == OX_OK ? ox_engine_plan_open(&trainer->engine_config, &trainer->plan) : status;
}

enum ox_status ox_trainer_open(const struct ox_config *config, struct ox_trainer **out) {
    *out = NULL;
    struct ox_trainer *trainer = calloc(1, sizeof *trainer);
    if (trainer == NULL) {
        return ox_fail(OX_E_NOMEM, "trainer: no memory");
    }
    trainer->config = *config;
    trainer->lock_fd = -1;
    const enum ox_status status = open_parts(trainer);
    if (status != OX_OK && trainer->plan == NULL) {
        ox_trainer_close(&trainer);
        return status;
    }
    *out = trainer;
    return status;
}

void ox_trainer_close(struct ox_trainer **trainer_ptr) {
    struct ox_trainer *const trainer = *trainer_ptr;
    if (trainer == NULL) {
        return;
    }
    ox_metrics_close(&trainer->metrics);
    ox_engine_close(&trainer->engine);
    ox_engine_plan_close(&trainer->plan);
    if (trainer->eval_data != trainer->data) {
        ox_data_close(&trainer->eval_data);
    }
    ox_data_close(&trainer->data);
    ox_hf_close(&trainer->folder);
    if (trainer->lock_fd >= 0) {
        close(trainer->lock_fd); /* last: with it goes the run's lock */
    }
    free(trainer->marks);
    free(trainer->tokens);
    free(trainer);
    *trainer_ptr = NULL;
}

const struct ox_engine_plan *ox_trainer_plan(const struct ox_trainer *trainer) {
    return trainer->engine != NULL ? ox_engine_plan_of(trainer->engine) : trainer->plan;
}

const struct ox_model *ox_trainer_model(const struct ox_trainer *trainer) {
    return ox_hf_model(trainer->folder);
}

uint64_t ox_trainer_max_steps(const struct ox_trainer *trainer) {
    return trainer->max_steps;
}

const char *ox_trainer_result(const struct ox_trainer *trainer) {
    return trainer->result;
}

enum ox_status ox_trainer_plan_text(const struct ox_trainer *trainer, bool tasks, char **text) {
    const struct ox_engine_plan *const plan = ox_trainer_plan(trainer);
    const struct ox_model *const model = ox_trainer_model(trainer);
    const struct ox_engine_config *const engine = &trainer->engine_config;
    char *body = NULL;
    *text = NULL;
    const enum ox_status status = ox_plan_text(plan->train, &plan->input, tasks, &body);
    if (status != OX_OK) {
        return status;
    }
    char overhead[OX_SIZE_TEXT_BYTES], tables[OX_SIZE_TEXT_BYTES];
    ox_size_text(ox_fixed_overhead_bytes(engine->compute_threads, engine->optimizer_threads), overhead);
    ox_size_text(ox_plan_memory_bytes(plan->train) + (plan->eval != NULL ? ox_plan_memory_bytes(plan->eval) : 0),
                 tables);
    const int length = asprintf(text,
        "model: %s, %.2f M parameters, %u layers, hidden %u, vocabulary %u; compute in %s\n"
        "batch: %u x %u tokens, %u micro-batch%s a step, %llu steps\n%s"
        "beside the arenas the process takes up to %s (code, libraries, packing buffers) and %s for the plan\n",
        model->config.family, (double)model->param_count * 1e-6, model->config.layers, model->config.hidden,
        model->config.vocab, engine->fp32 ? "fp32" : "bf16 weights, fp32 sums", engine->batch, engine->seq,
        engine->micro_batches, engine->micro_batches == 1 ? "" : "es", (unsigned long long)trainer->max_steps, body,
        overhead, tables);
    free(body);
    return length < 0 ? ox_fail(OX_E_NOMEM, "plan: no memory for its text") : OX_OK;
}

/* ---- batches and evaluation ----------------------------------------------------------------------- */

static void clear_row(struct ox_batch batch, uint64_t first, uint64_t seq) {
    for (uint64_t i = first; i < first + seq; i++) {
        batch.ids[i] = 0;
        batch.targets[i] = -1;
    }
}

enum ox_status ox_trainer_fill(struct ox_trainer *trainer, const struct ox_data *data,
                               const struct ox_sampler *sampler, uint64_t cursor, uint64_t window_max,
                               uint64_t *target_count) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    uint64_t filled = 0;
    *target_count = 0;
    for (uint32_t mb_idx = 0; mb_idx < engine->micro_batches; mb_idx++) {
        const struct ox_batch batch = ox_engine_batch(trainer->engine, mb_idx);
        for (uint32_t row = 0; row < engine->batch; row++, filled++) {
            const uint64_t first = (uint64_t)row * engine->seq;
            if (filled >= window_max) {
                clear_row(batch, first, engine->seq);
                continue;
            }
            const uint64_t window = ox_sampler_window(sampler, cursor + filled);
            const enum ox_status status = ox_data_read(data, window, engine->seq + 1u, engine->model->config.vocab,
                                                       trainer->tokens, trainer->marks);
            if (status != OX_OK) {
                return status;
            }
            for (uint32_t i = 0; i < engine->seq; i++) {
                batch.ids[first + i] = trainer->tokens[i];
                const bool trained = (trainer->marks[i + 1] & OX_TOKEN_TRAINED) != 0;
                batch.targets[first + i] = trained ? trainer->tokens[i + 1] : -1;
                *target_count += trained;
            }
        }
    }
    return OX_OK;
}

enum ox_status ox_trainer_eval(struct ox_trainer *trainer, struct ox_eval_report *out) {
    const uint64_t begin_ns = ox_clock_ns();
    const uint64_t limit = trainer->config.eval_windows;
    uint64_t windows = ox_sampler_window_count(&trainer->eval);
    windows = limit > 0 ? ox_min_u64(windows, limit) : windows;
    const uint64_t at_once = (uint64_t)trainer->engine_config.batch * trainer->engine_config.micro_batches;
    double sum = 0;
    *out = (struct ox_eval_report){.step = trainer->state.step};
    for (uint64_t done = 0; done < windows; done += at_once) {
        if (trainer->events != NULL && trainer->events->stop != 0) {
            return ox_fail(OX_E_ABORTED, "stopped within an evaluation");
        }
        struct ox_step_input input = {0};
        enum ox_status status = ox_trainer_fill(trainer, trainer->eval_data, &trainer->eval, done, windows - done,
                                                &input.target_count);
        if (status != OX_OK) {
            return status;
        }
        if (input.target_count == 0) {
            continue;
        }
        double loss_sum = 0;
        status = ox_engine_eval(trainer->engine, &input, &loss_sum);
        if (status != OX_OK) {
            return status;
        }
        sum += loss_sum;
        out->tokens += input.target_count;
    }
    out->loss = out->tokens > 0 ? sum / (double)out->tokens : NAN;
    out->perplexity = exp(out->loss);
    out->seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    return OX_OK;
}

/* ---- evaluation alone ------------------------------------------------------------------------------ */

static enum ox_status evaluate(struct ox_trainer *trainer, struct ox_eval_report *out) {
    const struct ox_config *const config = &trainer->config;
    enum ox_status status = open_model(trainer, true);
    if (status != OX_OK) {
        return status;
    }
    if (!ox_hf_has_weights(trainer->folder)) {
        return ox_fail(OX_E_CONFIG, "%s: has no weights to evaluate", config->model);
    }
    cap_sequence(trainer);
    status = open_data(trainer);
    if (status == OX_OK) {
        status = open_buffers(trainer);
    }
    if (status == OX_OK) {
        trainer->eval = trainer->train;
        trainer->eval.order = OX_ORDER_SEQUENTIAL;
        trainer->eval_data = trainer->data;
        status = ox_trainer_engine_config(trainer, ox_hf_model(trainer->folder));
    }
    trainer->engine_config.eval_only = true;
    if (status == OX_OK) {
        status = ox_engine_plan_open(&trainer->engine_config, &trainer->plan);
    }
    if (status == OX_OK) {
        status = ox_engine_open(&trainer->engine_config, &trainer->plan, &trainer->engine);
    }
    if (status == OX_OK) {
        status = ox_engine_load_begin(trainer->engine, 0);
    }
    if (status == OX_OK) {
        status = ox_engine_load_weights(trainer->engine, trainer->folder);
    }
    if (status == OX_OK) {
        status = ox_engine_load_commit(trainer->engine, NULL, 0);
    }
    return status == OX_OK ? ox_trainer_eval(trainer, out) : status;
}

enum ox_status ox_evaluate(const struct ox_config *config, struct ox_eval_report *out) {
    struct ox_trainer *trainer = calloc(1, sizeof *trainer);
    if (trainer == NULL) {
        return ox_fail(OX_E_NOMEM, "evaluation: no memory");
    }
    trainer->config = *config;
    trainer->lock_fd = -1;
    /* Weights alone, and memory holds them: what a run's file says of drives and of training is for that run. */
    if (config->nvme_count > 0) {
        ox_log(OX_LOG_INFO, "evaluation uses memory alone; the drives of the configuration are not touched");
    }
    trainer->config.nvme_count = 0;
    trainer->config.weights_tier = config->weights_tier == OX_TIER_CHOICE_NVME ? OX_TIER_CHOICE_AUTO
                                                                               : config->weights_tier;
    trainer->config.state_tier = trainer->config.grads_tier = trainer->config.activation_tier = OX_TIER_CHOICE_AUTO;
    trainer->config.tiles = 0;
    trainer->config.eval_fraction = 0;
    trainer->config.eval_data[0] = '\0';
    const enum ox_status status = evaluate(trainer, out);
    ox_trainer_close(&trainer);
    return status;
}
