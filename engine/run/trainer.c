/* Opens a run: model, budget, plan. */
#include "engine/run/trainer_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/pool.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t ox_fixed_overhead_bytes(uint64_t compute_threads, uint64_t optimizer_threads) {
    /* Measured: docs/measurements/2026-11-20-two-cores.md, "Resident memory beside the arenas". What the BLAS library
     * packs, at most 4096 rows at a time, grows with the device's threads. */
    return 20 * OX_MIB + compute_threads * 12 * OX_MIB + optimizer_threads * OX_MIB;
}

uint64_t ox_default_host_bytes(void) {
    struct ox_memory memory;
    ox_memory_read("", &memory);
    return memory.usable - memory.usable / 8; /* the rest is for the system and the page cache */
}

/* ---- configuration -------------------------------------------------------------------------------- */

/* The number of threads to use; a request of 0 means all processors. */
static uint32_t threads_of(uint64_t request) {
    return request > 0 ? (uint32_t)request : ox_processor_count();
}

static enum ox_tier tier_request(enum ox_tier_choice choice) {
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
    if (config->host_mem_bytes == 0) { /* recorded with the run, so that a resumed run has the same budget */
        trainer->config.host_mem_bytes = ox_default_host_bytes();
    }
    budget->host_bytes = config->host_mem_bytes;
    for (uint32_t i = 0; i < config->nvme_count; i++) {
        trainer->drives.folders[i] = config->nvme[i].path;
        trainer->drives.bytes[i] = config->nvme[i].bytes;
        budget->nvme_bytes += config->nvme[i].bytes;
    }
    budget->drive_bytes = config->nvme_count > 0 ? trainer->drives.bytes : NULL;
    budget->drive_count = config->nvme_count;
    budget->generations = (uint32_t)config->store_generations;
}

static int32_t kept_units(const struct ox_config *config) {
    const uint64_t count = strtoull(config->kept_blocks, NULL, 10);
    return strcmp(config->kept_blocks, "auto") == 0 ? -1 : (int32_t)ox_min_u64(count, INT32_MAX);
}

/* Checks options whose range depends on the model. */
static enum ox_status check_counts(const struct ox_config *config, const struct ox_model *model) {
    const uint32_t block_count = model->config.layers;
    if (kept_units(config) > 0 && (uint32_t)kept_units(config) > block_count) {
        return ox_fail(OX_E_CONFIG, "--kept-blocks %s: the model has %u blocks; give 0 to %u, or auto",
                       config->kept_blocks, block_count, block_count);
    }
    if (config->device_state_units > model->unit_count) {
        return ox_fail(OX_E_CONFIG, "--device-state-units %" PRIu64 ": the model has %u units, which are the "
                       "embedding, its blocks and the head; give 1 to %u, or 0 to leave it to the planner",
                       config->device_state_units, model->unit_count, model->unit_count);
    }
    return OX_OK;
}

/* Whether steps may stay in memory; not if the user requests speculative updates, which need every step on
 * the drives. */
static bool may_stay_in_memory(const struct ox_config *config) {
    return strcmp(config->persist_steps, "1") != 0 && strcmp(config->optimizer_overlap, "speculative") != 0 &&
           config->speculative_units <= 0;
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
        .state = {.kind = config->optimizer, .moments = config->moments},
        .decay_embeddings = config->decay_embeddings,
        .decay_all = config->decay_all,
        .compute_threads = threads_of(config->compute_threads),
        .optimizer_threads = threads_of(config->optimizer_threads),
        .request = {.tiles = (uint32_t)config->tiles,
                 .prefetch_depth = (int32_t)config->prefetch_depth,
                 .act_tier = tier_request(config->activation_tier),
                 .weights_tier = tier_request(config->weights_tier),
                 .state_tier = tier_request(config->state_tier),
                 .grad_tier = tier_request(config->grads_tier),
                 .overlap = strcmp(config->optimizer_overlap, "auto") == 0 ? -1
                            : strcmp(config->optimizer_overlap, "off") == 0 ? 0 : 1,
                 .speculative_units = strcmp(config->optimizer_overlap, "held") == 0 ? 0
                                                                               : (int32_t)config->speculative_units,
                 .kept_units = kept_units(config),
                 .may_stay_in_memory = may_stay_in_memory(config),
                 .persist_steps = strtoull(config->persist_steps, NULL, 10),
                 .device_units = (uint32_t)config->device_state_units},
        .chunk_elems = config->chunk_elems,
        .nvme_folders = trainer->drives.folders,
        .nvme_bytes = trainer->drives.bytes,
        .nvme_count = config->nvme_count,
        .queue_depth = (uint32_t)config->queue_depth,
        .chaos_seed = config->chaos_seed,
    };
    set_budget(trainer);
    enum ox_status status = check_counts(config, model);
    OX_TRY(status, ox_trainer_pick_device(trainer));
    OX_TRY(status, pick_isa(config->isa, &trainer->engine_config.isa));
    if (status == OX_OK && config->nvme_count > 0) {
        status = pick_io(config->io_backend, &trainer->engine_config.io);
    }
    return status;
}

/* ---- opening ----------------------------------------------------------------------------------------- */

void ox_trainer_cap_sequence(struct ox_trainer *trainer) {
    const uint32_t contexts = ox_hf_model(trainer->folder)->config.contexts;
    if (trainer->config.max_seq_length > contexts) {
        ox_log(OX_LOG_WARN, "--max-seq-length %llu: the model has %u positions; using %u",
               (unsigned long long)trainer->config.max_seq_length, contexts, contexts);
        trainer->config.max_seq_length = contexts;
    }
}

enum ox_status ox_trainer_open_model(struct ox_trainer *trainer, bool weights) {
    const char *const path = trainer->config.model;
    if (access(path, F_OK) != 0) {
        return ox_fail(OX_E_CONFIG, "--model %s: there is no such file or folder; give a folder of Hugging Face files, "
                       "or a config.json for a fresh start", path);
    }
    const enum ox_status status = ox_hf_open(path, weights, &trainer->folder);
    trainer->input.vocab = status == OX_OK ? ox_hf_model(trainer->folder)->config.vocab : 0;
    return status;
}

void ox_trainer_set_steps(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const uint64_t per_step = config->per_device_train_batch_size * config->gradient_accumulation_steps;
    trainer->max_steps = config->max_steps;
    if (trainer->max_steps == 0 && trainer->input.train != NULL) {
        struct ox_windows_counts counts;
        ox_windows_counts(trainer->input.train, &counts);
        const double epochs = config->num_train_epochs * (double)counts.rows;
        trainer->max_steps = (uint64_t)(epochs / (double)per_step);
        trainer->max_steps = trainer->max_steps > 0 ? trainer->max_steps : 1;
    }
    trainer->schedule = ox_schedule_of(config, trainer->max_steps);
}

struct ox_predict_input ox_trainer_predict_input(const struct ox_trainer *trainer) {
    return (struct ox_predict_input){.config = &trainer->engine_config, .plan = ox_trainer_plan(trainer),
                                     .profiled = trainer->config.profile[0] != '\0',
                                     .persist_steps = strtoull(trainer->config.persist_steps, NULL, 10)};
}

/* Predicts the plan, also the nearest one after a refusal; returns the refusal then. */
static enum ox_status predict(struct ox_trainer *trainer, enum ox_status planned) {
    if (trainer->plan == NULL) {
        return planned;
    }
    char text[OX_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", planned == OX_OK ? "" : ox_error_text());
    const struct ox_predict_input input = ox_trainer_predict_input(trainer);
    const enum ox_status status = ox_predict(&input, &trainer->prediction);
    if (status != OX_OK) {
        ox_engine_plan_close(&trainer->plan);
        return status;
    }
    return planned == OX_OK ? OX_OK : ox_fail(planned, "%s", text);
}

/* Makes the plan for the machine that the configuration names, and its prediction. */
static enum ox_status make_plan(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    struct ox_engine_config *const engine = &trainer->engine_config;
    const enum ox_status status = ox_predict_machine(config->profile, config->nvme_count, &trainer->machine);
    if (status != OX_OK) {
        return status;
    }
    ox_trainer_fit_machine(trainer);
    engine->machine = &trainer->machine;
    engine->budget.drive_speeds =
        ox_machine_drive_speeds(&trainer->machine, trainer->drives.speeds) ? trainer->drives.speeds : NULL;
    engine->machine_compute_threads = (uint32_t)config->compute_threads;
    engine->machine_optimizer_threads = (uint32_t)config->optimizer_threads;
    return predict(trainer, ox_engine_plan_open(engine, &trainer->plan));
}

static enum ox_status open_parts(struct ox_trainer *trainer) {
    /* A resumed run has its own weights; those that it began with may be gone. */
    const struct ox_config *const config = &trainer->config;
    const bool weights = !config->from_scratch && config->resume_from_checkpoint[0] == '\0';
    enum ox_status status = ox_trainer_open_model(trainer, weights);
    if (status != OX_OK) {
        return status;
    }
    ox_trainer_cap_sequence(trainer);
    status = ox_trainer_check_data(trainer);
    OX_TRY(status, ox_trainer_engine_config(trainer, ox_hf_model(trainer->folder)));
    bool ready = false;
    if (status == OX_OK && trainer->config.data_count > 0) {
        status = ox_trainer_data_ready(trainer, &ready);
    }
    /* Data that is ready is opened first, so that its errors show before the search for a plan. */
    if (status == OX_OK && ready) {
        status = ox_trainer_open_data(trainer);
    }
    if (status == OX_OK) {
        ox_trainer_set_steps(trainer);
        status = make_plan(trainer);
    }
    return status;
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
    ox_trainer_close_reports(trainer);
    OX_ASSERT(trainer->saving.tee == NULL); /* a run finishes its checkpoints */
    ox_engine_close(&trainer->engine);
    ox_engine_plan_close(&trainer->plan);
    ox_trainer_close_data(trainer);
    ox_hf_close(&trainer->folder);
    if (trainer->lock_fd >= 0) {
        close(trainer->lock_fd); /* last, because it releases the run's lock */
    }
    free(trainer);
    *trainer_ptr = NULL;
}

const struct ox_engine_plan *ox_trainer_plan(const struct ox_trainer *trainer) {
    return trainer->engine != NULL ? ox_engine_plan_of(trainer->engine) : trainer->plan;
}

const struct ox_prediction *ox_trainer_prediction(const struct ox_trainer *trainer) {
    return &trainer->prediction;
}

enum ox_status ox_trainer_advise(const struct ox_trainer *trainer, struct ox_advice out[OX_ADVICE_COUNT]) {
    const struct ox_predict_input input = ox_trainer_predict_input(trainer);
    return ox_advise(&input, &trainer->prediction, out);
}

const struct ox_model *ox_trainer_model(const struct ox_trainer *trainer) {
    return ox_hf_model(trainer->folder);
}

const char *ox_trainer_result(const struct ox_trainer *trainer) {
    return trainer->result;
}

static uint64_t plans_memory_bytes(const struct ox_engine_plan *plan) {
    const struct ox_plan *const plans[] = {plan->train, plan->eval, plan->eval_after_step};
    uint64_t bytes = 0;
    for (unsigned i = 0; i < sizeof plans / sizeof *plans; i++) {
        bytes += plans[i] == NULL ? 0 : ox_plan_memory_bytes(plans[i]);
    }
    return bytes;
}

enum { EVAL_LINE_BYTES = 160 };

/* Says what evaluation needs beyond the ledger, which is for a step; seldom anything. */
static const char *eval_memory_text(const struct ox_engine_plan *plan, char text[EVAL_LINE_BYTES]) {
    int used = 0;
    text[0] = '\0';
    for (int tier = 0; tier < OX_TIER_NVME; tier++) {
        const uint64_t bytes = ox_engine_plan_peak_bytes(plan, (enum ox_tier)tier);
        char size[OX_SIZE_TEXT_BYTES];
        if (bytes > plan->train->peak_bytes[tier]) {
            used += snprintf(text + used, EVAL_LINE_BYTES - (size_t)used, "evaluation takes up to %s of %s memory\n",
                             ox_size_text(bytes, size), ox_tier_name((enum ox_tier)tier));
        }
    }
    return text;
}

static const char *compute_text(const struct ox_engine_config *engine) {
    return engine->fp32 ? "fp32" : engine->device == OX_DEVICE_CPU ? "bf16 weights, fp32 sums" : "bf16, fp32 sums";
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
    char prediction[OX_PREDICTION_TEXT_BYTES];
    ox_prediction_text(&trainer->prediction, (uint64_t)engine->batch * engine->seq * engine->micro_batches, prediction);
    char overhead[OX_SIZE_TEXT_BYTES], tables[OX_SIZE_TEXT_BYTES], wear[OX_WEAR_LINE_BYTES];
    char persist[OX_PERSIST_LINE_BYTES], eval_memory[EVAL_LINE_BYTES];
    const bool on_cpu = engine->device == OX_DEVICE_CPU;
    ox_size_text(ox_fixed_overhead_bytes(on_cpu ? engine->compute_threads : 0, engine->optimizer_threads) +
                     (on_cpu ? 0 : OX_CUDA_HOST_BYTES), overhead);
    ox_size_text(plans_memory_bytes(plan), tables);
    char device[OX_DEVICE_LINE_BYTES], steps[48] = "as many steps as the text gives";
    if (trainer->max_steps > 0) {
        snprintf(steps, sizeof steps, "%llu steps", (unsigned long long)trainer->max_steps);
    }
    const int length = asprintf(text,
        "model: %s, %.2f M parameters, %u layers, hidden %u, vocabulary %u; compute in %s\n"
        "device: %s\n"
        "optimizer: %s, moments in %s, %.4g bytes per parameter with the weight\n"
        "batch: %u x %u tokens, %u micro-batch%s a step, %s\n%s"
        "%sbeside the arenas the process takes up to %s (code, libraries, packing buffers) and %s for the plan\n%s%s%s",
        model->config.family, (double)model->param_count * 1e-6, model->config.layers, model->config.hidden,
        model->config.vocab, compute_text(engine),
        ox_trainer_device_text(trainer, device),
        ox_optim_kind_name(engine->state.kind), ox_moments_name(engine->state.moments),
        ox_shard_bytes_per_elem(&plan->table), engine->batch, engine->seq,
        engine->micro_batches, engine->micro_batches == 1 ? "" : "es", steps, body,
        eval_memory_text(plan, eval_memory), overhead, tables, prediction, ox_trainer_persist_text(trainer, persist),
        ox_trainer_wear_text(trainer, wear));
    free(body);
    return length < 0 ? ox_fail(OX_E_NOMEM, "plan: no memory for its text") : OX_OK;
}

/* ---- evaluation ------------------------------------------------------------------------------------- */

static void add_batch(struct ox_eval_sum *sum, const struct ox_eval_result *result, uint64_t targets) {
    sum->loss += result->loss_sum;
    sum->targets += targets;
    sum->batches++;
    sum->with_update |= result->with_update;
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            sum->traffic[link][kind] += result->traffic[link][kind];
        }
    }
}

enum ox_status ox_trainer_eval_rows(struct ox_trainer *trainer, struct ox_windows *windows, uint64_t limit,
                                    struct ox_eval_sum *out) {
    struct ox_windows_counts counts;
    ox_windows_counts(windows, &counts);
    const uint64_t rows = limit > 0 ? ox_min_u64(counts.rows, limit) : counts.rows;
    const uint64_t at_once = (uint64_t)trainer->engine_config.batch * trainer->engine_config.micro_batches;
    *out = (struct ox_eval_sum){0};
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
        add_batch(out, &result, input.target_count);
    }
    return OX_OK;
}

enum ox_status ox_trainer_eval(struct ox_trainer *trainer, struct ox_eval_report *out) {
    const uint64_t begin_ns = ox_clock_ns();
    const struct ox_prediction *const prediction = &trainer->prediction;
    struct ox_eval_sum sum;
    *out = (struct ox_eval_report){.step = trainer->state.step};
    const enum ox_status status =
        ox_trainer_eval_rows(trainer, trainer->input.eval, trainer->config.eval_windows, &sum);
    out->tokens = sum.targets;
    out->loss = sum.targets > 0 ? sum.loss / (double)sum.targets : NAN;
    out->perplexity = exp(out->loss);
    out->with_update = sum.with_update;
    memcpy(out->traffic, sum.traffic, sizeof out->traffic);
    out->predicted_seconds = (double)sum.batches * prediction->eval_seconds;
    if (sum.with_update) {
        out->predicted_seconds += prediction->eval_after_step_seconds - prediction->eval_seconds;
    }
    out->seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    return status;
}
