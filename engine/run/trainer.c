/* Opens a run: model, device, budget, plan. */
#include "engine/run/trainer_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/pool.h"
#include "engine/config/reword.h"
#include "engine/text/tokenizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Cores that the optimizer of each rank leaves free where a GPU computes: for the thread that issues tasks and for
 * those that feed and watch the lanes of its GPU. */
enum { LANE_CORES = 2 };

/* ---- the device --------------------------------------------------------------------------------------- */

static enum ox_status set_memory(struct ox_trainer *trainer) {
    struct ox_plan_budget *const budget = &trainer->engine_config.budget;
    const struct ox_cuda_memory memory = {.gpu = &trainer->gpu, .process_bytes = trainer->gpu_process_bytes};
    const enum ox_status status = ox_cuda_memory_check(&memory, trainer->config.memory.device_mem_bytes);
    if (status == OX_OK) {
        budget->unified = false;
        budget->device_bytes = trainer->config.memory.device_mem_bytes - memory.process_bytes;
        budget->device_beside_bytes = memory.process_bytes;
    }
    return status;
}

/* Decides what `auto` leaves open, in trainer->config too, and sets the device's budget. Returns OX_E_DEVICE if a GPU
 * is requested and there is none; a plan alone needs no GPU if the options name one and its memory. */
static enum ox_status pick_device(struct ox_trainer *trainer) {
    struct ox_config *const config = &trainer->config;
    struct ox_engine_config *const engine = &trainer->engine_config;
    const bool planned_elsewhere = config->tool.plan_only && config->memory.device == OX_DEVICE_CHOICE_CUDA &&
                                   config->memory.device_mem_bytes > 0;
    enum ox_status status = OX_OK;
    /* What was measured on a GPU that is there replaces it. */
    trainer->gpu_process_bytes = OX_CUDA_PROCESS_BYTES;
    if (config->memory.device != OX_DEVICE_CHOICE_CPU && !planned_elsewhere) {
        status = ox_cuda_device_look(&engine->cuda, &trainer->gpu, &trainer->gpu_process_bytes);
        if (status == OX_OK && config->memory.device_mem_bytes == 0) {
            const struct ox_cuda_memory memory = {.gpu = &trainer->gpu, .process_bytes = trainer->gpu_process_bytes};
            status = ox_cuda_memory_free(&memory, &config->memory.device_mem_bytes);
        }
    }
    if (config->memory.device == OX_DEVICE_CHOICE_AUTO) {
        if (status != OX_OK) {
            snprintf(trainer->no_gpu, sizeof trainer->no_gpu, "%s", ox_error_text());
            trainer->gpu = (struct ox_cuda_device_info){0};
        }
        config->memory.device = status == OX_OK ? OX_DEVICE_CHOICE_CUDA : OX_DEVICE_CHOICE_CPU;
        status = OX_OK;
    }
    if (status != OX_OK || config->memory.device == OX_DEVICE_CHOICE_CPU) {
        return status;
    }
    engine->device = OX_DEVICE_CUDA;
    engine->lane_cores = config->place.optimizer_threads == 0 ? LANE_CORES : 0;
    return set_memory(trainer);
}

/* Makes trainer->machine a machine that computes on that device. */
static void fit_machine(struct ox_trainer *trainer) {
    struct ox_machine *const machine = &trainer->machine;
    const bool on_gpu = trainer->engine_config.device == OX_DEVICE_CUDA;
    if (on_gpu && !machine->has_gpu) {
        const bool known = trainer->gpu.memory_bytes > 0;
        ox_machine_nominal_gpu(machine, &(struct ox_machine_gpu_facts){
            .name = known ? trainer->gpu.name : "nominal",
            .memory_bytes = known ? trainer->gpu.memory_bytes : trainer->config.memory.device_mem_bytes,
            .capability = trainer->gpu.capability, .processor_count = trainer->gpu.processor_count});
    }
    machine->has_gpu = on_gpu;
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
    budget->unified = config->memory.device_mem_bytes == 0;
    budget->device_bytes = config->memory.device_mem_bytes;
    for (uint32_t i = 0; i < config->memory.nvme_count; i++) {
        const uint64_t bytes = config->memory.nvme[i].bytes / ox_team_per_machine(trainer->team);
        trainer->drives.folders[i] = trainer->drives.own != NULL ? trainer->drives.own[i] : config->memory.nvme[i].path;
        trainer->drives.bytes[i] = bytes;
        trainer->drives.all_bytes[i] = bytes * ox_team_count(trainer->team);
        budget->nvme_bytes += trainer->drives.all_bytes[i];
    }
    budget->drive_bytes = config->memory.nvme_count > 0 ? trainer->drives.all_bytes : NULL;
    for (uint32_t i = 0; i < config->memory.nvme_count; i++) {
        trainer->drives.paths[i] = config->memory.nvme[i].path;
    }
    budget->drive_paths = trainer->drives.paths;
    budget->drive_count = config->memory.nvme_count;
    budget->generations = (uint32_t)config->memory.store_generations;
}

/* Names the folders of this process's store: processes of one machine share its drives. */
static enum ox_status name_drives(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    enum ox_status status = OX_OK;
    if (trainer->team == NULL) {
        return OX_OK;
    }
    trainer->drives.own = calloc(OX_CONFIG_NVME_MAX, sizeof *trainer->drives.own);
    if (trainer->drives.own == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the names of drives");
    }
    for (uint32_t i = 0; i < config->memory.nvme_count && status == OX_OK; i++) {
        char name[64];
        snprintf(name, sizeof name, "process-%u-of-%u", ox_team_idx(trainer->team), ox_team_count(trainer->team));
        status = ox_path_join(config->memory.nvme[i].path, name, trainer->drives.own[i]);
    }
    return status;
}

/* Sets the budget of host memory, once the device is known: the CPU's device memory, which each rank has, is host
 * memory too. */
static enum ox_status set_host_budget(struct ox_trainer *trainer) {
    struct ox_config *const config = &trainer->config;
    struct ox_engine_config *const engine = &trainer->engine_config;
    const bool on_cpu = engine->device == OX_DEVICE_CPU;
    const uint32_t machines = ox_trainer_machines(trainer);
    /* Folders in memory count with the budgets: what they take is memory that the run cannot have. */
    const uint64_t file_bytes = ox_trainer_memory_files(trainer);
    const struct ox_host_claim claim = {
        .host_bytes = config->memory.host_mem_bytes,
        .device_bytes = on_cpu ? config->memory.device_mem_bytes : 0,
        .ranks = engine->ranks / machines,
        .address_bytes = on_cpu ? engine->compute_threads / machines * OX_CPU_THREAD_ADDRESS_BYTES : 0,
        .beside_bytes = ox_trainer_beside_bytes(engine, engine->ranks / machines),
        .file_bytes = file_bytes,
        .files = trainer->memory_files};
    enum ox_status status = config->tool.plan_only ? OX_OK : ox_host_claim_check(&claim); /* maybe another machine's */
    if (config->memory.host_mem_bytes == 0) {
        config->memory.host_mem_bytes = ox_default_host_bytes(&claim);
    }
    uint64_t words[] = {config->memory.host_mem_bytes, engine->compute_threads, engine->optimizer_threads};
    /* The first process measured what is free; plans are compared among processes, so that all must have its
     * numbers. */
    OX_THEN(status, ox_team_share(trainer->team, words, sizeof words, "the budget of a machine"));
    config->memory.host_mem_bytes = words[0];
    engine->compute_threads = (uint32_t)words[1];
    engine->optimizer_threads = (uint32_t)words[2];
    engine->budget.host_bytes = config->memory.host_mem_bytes * machines;
    trainer->claim = claim;
    trainer->claim.host_bytes = config->memory.host_mem_bytes;
    return status;
}

/* The engine's view of the configuration. */
static enum ox_status set_engine_config(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const struct ox_model *const model = ox_hf_model(trainer->folder);
    OX_TRY(ox_trainer_check_routers(config, model));
    OX_TRY(ox_trainer_check_pairs(config));
    trainer->engine_config = (struct ox_engine_config){
        .team = trainer->team,
        .model = model,
        .batch = (uint32_t)config->train.per_device_train_batch_size * ox_trainer_unit(config),
        .seq = (uint32_t)config->rows.max_seq_length,
        .micro_batches = (uint32_t)config->train.gradient_accumulation_steps,
        .dtype = config->train.dtype,
        .grad_bf16 = config->train.grad_dtype == OX_COMPUTE_BF16,
        .state = {.kind = config->optim.optimizer,
                  .moments = config->optim.moments,
                  .averages = config->optim.ema_decay > 0},
        .router_balance = ox_trainer_balance(config, &model->config),
        .router_z = config->loss.router_z_loss_coef,
        .router_bias_rate = config->optim.router_bias_update_rate,
        .skips_idle = config->optim.idle_experts == OX_IDLE_SKIP,
        .router_rounds = config->loss.router_dtype == OX_ROUTER_MODEL && config->train.dtype == OX_COMPUTE_BF16,
        .decay_embeddings = config->optim.decay_embeddings,
        .decay_all = config->optim.decay_all,
        .objective = ox_trainer_objective(config),
        .cuda.own_attention = config->place.own_attention,
        .compute_threads = threads_of(config->place.compute_threads),
        .optimizer_threads = threads_of(config->place.optimizer_threads),
        .request = {.tiles = (uint32_t)config->place.tiles,
                    .prefetch_depth = (int32_t)config->place.prefetch_depth,
                    .act_tier = tier_request(config->place.activation_tier),
                    .weights_tier = tier_request(config->place.weights_tier),
                    .state_tier = tier_request(config->place.state_tier),
                    .grad_tier = tier_request(config->place.grads_tier),
                    .overlap = strcmp(config->place.optimizer_overlap, "auto") == 0  ? -1
                               : strcmp(config->place.optimizer_overlap, "off") == 0 ? 0
                                                                                     : 1,
                    .speculative_units =
                        strcmp(config->place.optimizer_overlap, "held") == 0 || ox_trainer_routes(config) != NULL
                            ? 0
                            : (int32_t)config->place.speculative_units,
                    OX_SWITCH_ROWS(OX_SWITCH_AUTOMATIC)
                    .kept_units = ox_trainer_kept_stages(config, model),
                    .may_stay = strcmp(config->memory.persist_steps, "1") != 0,
                    .persist_steps = strtoull(config->memory.persist_steps, NULL, 10),
                    .steps = config->train.max_steps,
                    .device_units = (uint32_t)config->place.device_state_units,
                    .device_first = config->place.device_state_first},
        .chunk_elems = config->place.chunk_elems,
        .nvme_folders = trainer->drives.folders,
        .nvme_bytes = trainer->drives.bytes,
        .nvme_count = config->memory.nvme_count,
        .queue_depth = (uint32_t)config->memory.queue_depth,
        .verify_memory = config->memory.verify_memory,
        .chaos_seed = config->place.chaos_seed,
    };
    enum ox_status status = ox_trainer_check_counts(config, model);
    /* Each needs what is decided before it: ranks the device, the budget of host memory the ranks of a machine. */
    OX_THEN(status, name_drives(trainer));
    set_budget(trainer);
    OX_THEN(status, pick_device(trainer));
    OX_THEN(status, ox_trainer_set_ranks(trainer));
    OX_THEN(status, set_host_budget(trainer));
    OX_THEN(status, ox_isa_pick(config->place.isa, &trainer->engine_config.isa));
    if (status == OX_OK && config->memory.nvme_count > 0) {
        status = pick_io(config->memory.io_backend, &trainer->engine_config.io);
    }
    return status;
}

/* ---- opening ----------------------------------------------------------------------------------------- */

/* Limits the sequence to what the model can attend to, with a warning where a longer one was asked for. */
static void cap_sequence(struct ox_trainer *trainer) {
    const uint32_t contexts = ox_hf_model(trainer->folder)->config.contexts;
    if (trainer->config.rows.max_seq_length > contexts) {
        if (trainer->config.rows.seq_given) {
            ox_log(OX_LOG_WARN, "--max-seq-length %llu: the model has %u positions; using %u",
                   (unsigned long long)trainer->config.rows.max_seq_length, contexts, contexts);
        }
        trainer->config.rows.max_seq_length = contexts;
    }
}

bool ox_trainer_has_adapters(const struct ox_trainer *trainer) {
    return ox_hf_model(trainer->folder)->config.lora.r > 0;
}

/* Refuses options of adapters without adapters, and those that do not go together. */
static enum ox_status check_adapters(const struct ox_config *config, bool adapted) {
    if (config->parts.lora_r > 0 && config->parts.adapter[0] != '\0') {
        return ox_fail(OX_E_CONFIG, "--lora-r begins a fresh adapter, and --adapter %s goes on with another; give one "
                       "of them", config->parts.adapter);
    }
    const bool modules = config->parts.lora_target_modules[0] != '\0';
    if (config->parts.lora_r == 0 && (modules || config->parts.lora_target_parameters[0] != '\0')) {
        return ox_fail(OX_E_CONFIG, "--lora-target-%s: there is no adapter without a rank; add --lora-r N, such as 16",
                       modules ? "modules" : "parameters");
    }
    const struct ox_config_parts *const parts = &config->parts;
    if (parts->lora_r == 0 && parts->use_dora) {
        return ox_fail(OX_E_CONFIG, "--use-dora: %s", parts->adapter[0] != '\0'
                       ? "the folder of --adapter says it; leave it out"
                       : "there is no adapter without a rank; add --lora-r N, such as 16");
    }
    const bool bias = parts->lora_bias != OX_LORA_BIAS_NONE;
    if (parts->lora_r == 0 && (bias || parts->lora_modules_to_save[0] != '\0')) {
        return ox_fail(OX_E_CONFIG, "%s: %s", bias ? "--lora-bias" : "--lora-modules-to-save", parts->adapter[0] != '\0'
                       ? "the folder of --adapter says it; leave it out"
                       : "there is no adapter without a rank; add --lora-r N, such as 16");
    }
    if (config->parts.lora_r == 0 && config->parts.lora_dropout != 0.0) {
        return ox_fail(OX_E_CONFIG, "--lora-dropout: %s", config->parts.adapter[0] != '\0'
                       ? "the folder of --adapter says it (lora_dropout in adapter_config.json); leave it out"
                       : "there is no adapter without a rank; add --lora-r N, such as 16");
    }
    if (config->parts.lora_r == 0 && (config->parts.use_rslora || config->parts.lora_alpha != OX_LORA_ALPHA)) {
        const bool told = config->parts.adapter[0] != '\0';
        return ox_fail(OX_E_CONFIG, "%s: %s", config->parts.use_rslora ? "--use-rslora" : "--lora-alpha",
                       told ? "the folder of --adapter says it; leave it out"
                            : "there is no adapter without a rank; add --lora-r N, such as 16");
    }
    if (adapted && config->parts.freeze[0] != '\0') {
        return ox_fail(OX_E_CONFIG, "--freeze: with adapters nothing else is trained; leave it out");
    }
    return adapted && config->files.resize_embeddings != OX_RESIZE_OFF
               ? ox_fail(OX_E_CONFIG, "--resize-embeddings: with adapters the embeddings are not trained, nor saved; "
                         "resize and train the model first, or leave it out")
               : OX_OK;
}

/* Gives the model adapters, where they are asked for. */
static enum ox_status adapt(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const bool eval = trainer->input.eval_alone; /* of what was trained: the run's file says how it was begun */
    struct ox_lora lora = {.r = eval ? 0 : (uint32_t)config->parts.lora_r, .alpha = config->parts.lora_alpha,
                           .rslora = config->parts.use_rslora, .dora = config->parts.use_dora,
                           .dropout = config->parts.lora_dropout,
                           .bias = (enum ox_lora_bias)config->parts.lora_bias};
    char adapter[OX_CONFIG_TEXT_BYTES];
    enum ox_status status = check_adapters(config, false);
    if (status == OX_OK && config->parts.adapter[0] != '\0' && !(eval && ox_trainer_has_adapters(trainer))) {
        status = ox_run_find_adapter(config->parts.adapter, adapter); /* of a run its newest checkpoint */
        OX_THEN(status, ox_hf_load_adapter(trainer->folder, adapter));
    } else if (status == OX_OK && lora.r > 0) {
        snprintf(lora.targets, sizeof lora.targets, "%s", config->parts.lora_target_modules);
        snprintf(lora.parameters, sizeof lora.parameters, "%s", config->parts.lora_target_parameters);
        snprintf(lora.modules_to_save, sizeof lora.modules_to_save, "%s", config->parts.lora_modules_to_save);
        status = ox_hf_adapt(trainer->folder, &lora, config->train.seed);
    }
    if (status == OX_OK && !eval && ox_hf_model(trainer->folder)->config.lora.one_for_both) {
        return ox_fail(OX_E_CONFIG, "--adapter %s: by its \"ensure_weight_tying\" PEFT trains one adapter for the "
                       "table and the head, which cannot be done here; set it to false in adapter_config.json, and "
                       "each has its own", adapter);
    }
    if (status == OX_OK && ox_trainer_has_adapters(trainer)) {
        status = ox_trainer_check_dropout(trainer);
        OX_THEN(status, check_adapters(config, true));
        if (status == OX_OK && !ox_hf_has_weights(trainer->folder) && !config->tool.plan_only &&
            config->files.resume_from_checkpoint[0] == '\0') {
            status = ox_fail(OX_E_CONFIG, "%s: has no weights for adapters to be trained beside; give a model folder "
                             "with weights, without --from-scratch", config->files.model);
        }
        OX_THEN(status, ox_hf_base_hash(trainer->folder, &trainer->base_hash));
    }
    return status;
}

enum ox_status ox_trainer_open_model(struct ox_trainer *trainer, bool weights) {
    char path[OX_CONFIG_TEXT_BYTES] = "";
    const char *const model = trainer->config.files.model;
    const bool is_shape = trainer->config.tool.plan_only && !ox_path_exists(model) && ox_hf_is_shape(model);
    enum ox_status status = !is_shape ? ox_run_find_model(trainer->config.files.model, path) : OX_OK;
    if (status == OX_OK && !is_shape && strcmp(path, trainer->config.files.model) != 0) {
        ox_log(OX_LOG_INFO, "--model %s: a run, of which %s is the newest checkpoint", trainer->config.files.model,
               path);
        memcpy(trainer->config.files.model, path, sizeof path);
    }
    const bool adapted = trainer->config.parts.lora_r > 0 || trainer->config.parts.adapter[0] != '\0';
    /* the base is told by its weights */
    weights |= adapted && !trainer->config.files.from_scratch && ox_hf_has_weight_files(path);
    OX_THEN(status, is_shape ? ox_hf_open_shape(model, &trainer->folder)
                             : ox_hf_open(path, weights && ox_path_is_folder(path), &trainer->folder));
    OX_THEN(status, ox_trainer_take_layout(trainer));
    OX_THEN(status, ox_trainer_group(trainer));
    OX_THEN(status, ox_trainer_share_layers(trainer));
    OX_THEN(status, adapt(trainer));
    OX_THEN(status, trainer->config.optim.use_ema ? ox_hf_use_averages(trainer->folder) : OX_OK);
    if (status != OX_OK) {
        return status;
    }
    if (trainer->input.eval_alone && !ox_hf_has_weights(trainer->folder)) {
        return ox_fail(OX_E_CONFIG, "%s: has no weights to evaluate", path);
    }
    ox_trainer_mark_matrices(trainer);
    trainer->input.vocab = ox_hf_model(trainer->folder)->config.vocab;
    cap_sequence(trainer);
    return trainer->input.eval_alone || ox_trainer_has_adapters(trainer) ? OX_OK
                                     : ox_hf_freeze(ox_hf_own_model(trainer->folder), trainer->config.parts.freeze);
}

/* Whether the run began, or begins, with weights of --model. A resumed run does not open them. */
static bool begins_with_weights(const struct ox_trainer *trainer) {
    const bool resumed = trainer->config.files.resume_from_checkpoint[0] != '\0';
    return (resumed && ox_hf_has_weight_files(trainer->config.files.model)) || ox_hf_has_weights(trainer->folder);
}

/* Chooses the rate that is not given, and whether to choose the warmup: steps that fresh weights need make trained ones
 * forget. A schedule without a warmup keeps none. The values are recorded with the run. */
static enum ox_status choose_rate(struct ox_trainer *trainer) {
    struct ox_config *const config = &trainer->config;
    const bool given = begins_with_weights(trainer);
    const bool own_rate = config->optim.learning_rate == 0;
    config->optim.learning_rate = !own_rate          ? config->optim.learning_rate
                                  : config->loss.dpo ? 1e-6
                                  : given            ? 2e-5
                                                     : 1e-4;
    trainer->chose_rate = own_rate;
    trainer->chose_warmup = config->optim.warmup_steps < 0 && config->optim.warmup_ratio == 0 && given &&
                            config->optim.lr_scheduler_type != OX_LR_CONSTANT;
    trainer->begins_given = given;
    trainer->chosen_for = given ? "given" : "fresh";
    config->optim.warmup_steps = config->optim.warmup_steps < 0 ? 0 : config->optim.warmup_steps;
    if (config->optim.min_lr > config->optim.learning_rate) { /* the configuration checks a rate that is given */
        return ox_fail(OX_E_CONFIG, "--min-lr %g is above the learning rate %g, which is chosen because weights are "
                       "%s; give a smaller one, or --learning-rate", config->optim.min_lr, config->optim.learning_rate,
                       given ? "given" : "fresh");
    }
    return OX_OK;
}

/* Refuses a resume from nothing, before texts are tokenized into a new folder. */
static enum ox_status check_resume(const struct ox_config *config) {
    const char *const path = config->files.resume_from_checkpoint;
    if (path[0] == '\0' || config->tool.plan_only) {
        return OX_OK;
    }
    char record[OX_PATH_BYTES];
    if (strcmp(path, "latest") != 0 && ox_path_join(path, "run.json", record) == OX_OK && ox_path_is_file(record)) {
        return ox_fail(OX_E_CONFIG, "--resume-from-checkpoint %.300s: is the folder of a run; to go on with it, give "
                       "--config %.300s/config.resolved.yaml --resume-from-checkpoint latest, else one of its "
                       "checkpoint-N folders", path, path);
    }
    if (strcmp(path, "latest") != 0) {
        return ox_path_is_folder(path) ? OX_OK
               : ox_path_exists(path) && !ox_path_is_file(path)
                   ? ox_hf_check_path("--resume-from-checkpoint", path) /* a link to nothing */
                   : ox_path_is_file(path)
                   ? ox_fail(OX_E_CONFIG, "--resume-from-checkpoint %s: is a file; give latest, or a checkpoint-N "
                             "folder", path)
                   : ox_hf_fail_missing("--resume-from-checkpoint", path, "latest, or a checkpoint-N folder");
    }
    return ox_run_check_traces(config->files.output_dir);
}

/* Gives the model rows for the tokens that its tokenizer has and it has not, where that is asked for. */
static enum ox_status resize_embeddings(struct ox_trainer *trainer) {
    const enum ox_resize_choice choice = trainer->config.files.resize_embeddings;
    const uint32_t vocab = trainer->input.vocab;
    struct ox_tokenizer *tokenizer = NULL;
    if (choice == OX_RESIZE_OFF) {
        return OX_OK;
    }
    if (trainer->input.tokenizer_path[0] == '\0') {
        return ox_fail(OX_E_CONFIG, "--resize-embeddings: the model has no tokenizer, whose tokens it would be resized "
                       "for; name one with --tokenizer, or leave the option out");
    }
    enum ox_status status = ox_tokenizer_open(trainer->input.tokenizer_path, &tokenizer);
    if (status != OX_OK) {
        return status;
    }
    const uint32_t count = ox_tokenizer_vocab_count(tokenizer);
    ox_tokenizer_close(&tokenizer);
    if (count <= vocab) {
        ox_log(OX_LOG_INFO, "embeddings: the %" PRIu32 " tokens of the tokenizer are among the model's %" PRIu32
               " rows; nothing is resized", count, vocab);
        return OX_OK;
    }
    status = ox_hf_resize(trainer->folder, count, choice == OX_RESIZE_MEAN, trainer->config.train.seed);
    if (status == OX_OK) {
        ox_log(OX_LOG_INFO, "embeddings: %" PRIu32 " rows are added to %" PRIu32 ", %s", count - vocab, vocab,
               choice == OX_RESIZE_MEAN && ox_hf_has_weights(trainer->folder) ? "each the mean of all rows"
                                                                             : "with fresh values");
        trainer->input.vocab = count;
    }
    return status;
}

enum ox_status ox_trainer_prepare(struct ox_trainer *trainer, bool weights) {
    enum ox_status status = check_resume(&trainer->config);
    OX_THEN(status, ox_trainer_open_model(trainer, weights));
    OX_THEN(status, ox_trainer_check_data(trainer));
    OX_THEN(status, resize_embeddings(trainer));
    OX_THEN(status, ox_trainer_choose_formats(trainer));
    OX_THEN(status, choose_rate(trainer));
    OX_THEN(status, ox_hf_group(ox_hf_own_model(trainer->folder), trainer->config.parts.group,
                                trainer->config.optim.learning_rate));
    return status == OX_OK ? set_engine_config(trainer) : status;
}

/* Before the state of a run is known, its version is 0. */
bool ox_trainer_is_old(const struct ox_trainer *trainer) {
    return trainer->state.version != 0 && trainer->state.version < OX_RUN_STATE_EPOCHS;
}

/* How many steps are left of the epochs when `cursor` rows are taken. In an old run a step may take rows of two. */
static uint64_t steps_left(const struct ox_trainer *trainer, double epochs, bool old, uint64_t cursor) {
    const uint64_t step_rows = (uint64_t)trainer->engine_config.batch * trainer->engine_config.micro_batches;
    struct ox_windows_counts counts;
    ox_windows_counts(trainer->input.train, &counts);
    if (!old) {
        return ox_schedule_steps_left(epochs, counts.rows, step_rows, cursor);
    }
    const double left = floor((epochs * (double)counts.rows - (double)cursor) / (double)step_rows);
    return left > 1 ? (uint64_t)left : cursor == 0;
}

void ox_trainer_set_steps(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const bool old = ox_trainer_is_old(trainer);
    uint64_t total = config->train.max_steps; /* of a run whose steps always had this size */
    trainer->max_steps = total;
    if (total == 0 && trainer->input.train != NULL) {
        const double epochs = config->train.num_train_epochs;
        const uint64_t cursor = trainer->state.cursor;
        total = steps_left(trainer, epochs, old, 0);
        trainer->max_steps = trainer->state.step + steps_left(trainer, epochs, old, cursor);
    }
    if (trainer->chose_warmup) { /* rounded down, because the first step of a warmup has the rate 0 */
        const uint64_t room = total - ox_min_u64(config->optim.decay_steps, total);
        trainer->config.optim.warmup_steps = (double)ox_min_u64(total * 3 / 100, room);
    }
    trainer->schedule = ox_schedule_of(config, total);
    trainer->schedule.offset = (int64_t)(trainer->max_steps - total);
    trainer->schedule.warms_by_share |= trainer->chose_warmup;
    trainer->schedule.from_one = old;
}

struct ox_trainer_left ox_trainer_left(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const bool started = trainer->state.run_id[0] != 0;
    const struct ox_run_state *const state = started ? &trainer->state : &trainer->left_off;
    struct ox_trainer_left left = {.from = state->step, .end = trainer->max_steps, .seen = state->step > 0};
    if (!started && config->train.max_steps == 0 && trainer->input.train != NULL) {
        const bool old = state->version != 0 && state->version < OX_RUN_STATE_EPOCHS;
        left.end = state->step + steps_left(trainer, config->train.num_train_epochs, old, state->cursor);
    }
    left.steps = left.end - ox_min_u64(left.from, left.end);
    return left;
}

double ox_trainer_epoch(const struct ox_trainer *trainer) {
    struct ox_windows_counts counts;
    ox_windows_counts(trainer->input.train, &counts);
    return ox_schedule_epoch(counts.rows, trainer->engine_config.batch, trainer->state.cursor);
}

uint64_t ox_trainer_epoch_steps(const struct ox_trainer *trainer) {
    const uint64_t whole = (uint64_t)trainer->engine_config.batch * trainer->engine_config.micro_batches;
    struct ox_windows_counts counts = {.rows = 0};
    if (trainer->input.train != NULL) {
        ox_windows_counts(trainer->input.train, &counts);
    }
    return (counts.rows + whole - 1) / whole;
}

uint64_t ox_trainer_step_rows(const struct ox_trainer *trainer, uint64_t cursor) {
    const uint64_t whole = (uint64_t)trainer->engine_config.batch * trainer->engine_config.micro_batches;
    struct ox_windows_counts counts;
    ox_windows_counts(trainer->input.train, &counts);
    return ox_trainer_is_old(trainer) ? whole : ox_min_u64(whole, counts.rows - cursor % counts.rows);
}

struct ox_predict_input ox_trainer_predict_input(const struct ox_trainer *trainer) {
    return (struct ox_predict_input){.config = &trainer->engine_config, .plan = ox_trainer_plan(trainer),
                                     .profiled = trainer->config.files.profile[0] != '\0',
                                     .measured = trainer->measured.day[0] != '\0' ? &trainer->measured : NULL,
                                     .persist_steps = strtoull(trainer->config.memory.persist_steps, NULL, 10)};
}

/* Predicts the plan, also the nearest one after a refusal; returns the refusal then. */
static enum ox_status predict(struct ox_trainer *trainer, enum ox_status planned) {
    if (trainer->plan == NULL) {
        return planned;
    }
    char text[OX_ERROR_TEXT_BYTES];
    planned = ox_advise_without(&trainer->engine_config, planned);
    snprintf(text, sizeof text, "%s", planned == OX_OK ? "" : ox_error_text());
    trainer->is_over = planned != OX_OK;
    const char *const nearest = trainer->is_over ? strstr(text, "nearest that fits:") : NULL;
    snprintf(trainer->nearest, sizeof trainer->nearest, "%s", nearest != NULL ? nearest : text);
    const struct ox_predict_input input = ox_trainer_predict_input(trainer);
    const enum ox_status status = ox_predict(&input, &trainer->prediction);
    if (status != OX_OK) {
        ox_engine_plan_close(&trainer->plan);
        return status;
    }
    return planned == OX_OK ? OX_OK : ox_fail(planned, "%s", text);
}

/* Logs each line of `lines`. */
static void warn_lines(const char *lines) {
    for (const char *line = lines; line[0] != '\0';) {
        const int length = (int)strcspn(line, "\n");
        ox_log(OX_LOG_WARN, "%.*s", length, line);
        line += length + (line[length] == '\n');
    }
}

/* Measures this machine, unless there is a profile, or the plan is for a GPU that is not here. */
static void measure_machine(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const bool on_gpu = engine->device == OX_DEVICE_CUDA;
    const char *folders[OX_CONFIG_NVME_MAX];
    for (uint32_t i = 0; i < config->memory.nvme_count; i++) {
        folders[i] = config->memory.nvme[i].path;
    }
    if (!config->files.measure || config->files.profile[0] != '\0' || (on_gpu && trainer->gpu.memory_bytes == 0)) {
        return;
    }
    ox_measure_machine(&(struct ox_measure_input){
        .model = &engine->model->config, .batch = engine->batch, .seq = engine->seq, .on_gpu = on_gpu,
        .products = ox_engine_precision(engine)->products,
        .compute_threads = engine->compute_threads,
        .optimizer_threads =
            engine->ranks * ox_engine_optimizer_share(engine, engine->optimizer_threads, engine->ranks),
        .state = engine->state, .isa = engine->isa, .drive_folders = folders,
        .drive_bytes = engine->nvme_bytes, .drive_count = engine->nvme_count, .io = engine->io,
        .queue_depth = engine->queue_depth, .folder = config->files.measure_folder, .limit_ns = OX_MEASURE_LIMIT_NS,
        .others_most = OX_MEASURE_OTHERS_MOST},
        &trainer->machine, &trainer->measured);
    warn_lines(trainer->measured.notes);
}

/* Makes the plan for the machine that the configuration names, and its prediction. */
static enum ox_status make_plan(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    struct ox_engine_config *const engine = &trainer->engine_config;
    enum ox_status status = OX_OK;
    if (ox_trainer_leads(trainer)) {
        status = ox_predict_machine(config->files.profile, config->memory.nvme_count, &trainer->machine);
        if (status != OX_OK) {
            return status;
        }
        measure_machine(trainer);
        fit_machine(trainer);
    }
    OX_THEN(status, ox_trainer_share_machine(trainer));
    if (status != OX_OK) {
        return status;
    }
    engine->machine = &trainer->machine;
    engine->budget.drive_speeds =
        ox_machine_drive_speeds(&trainer->machine, trainer->drives.speeds) ? trainer->drives.speeds : NULL;
    engine->machine_compute_threads = (uint32_t)config->place.compute_threads;
    engine->machine_optimizer_threads =
        config->place.optimizer_threads > 0 ? (uint32_t)config->place.optimizer_threads : trainer->machine.host.cores;
    const uint32_t planned = trainer->team == NULL && config->tool.plan_only ? ox_trainer_planned_machines(trainer) : 1;
    engine->machine_optimizer_threads *= planned; /* budgets and threads are those of a machine */
    engine->budget.host_bytes *= planned;
    return predict(trainer, ox_trainer_open_plan(trainer));
}

enum ox_status ox_trainer_fit_steps(struct ox_trainer *trainer) {
    const uint64_t before = trainer->claim.file_bytes;
    ox_trainer_set_steps(trainer);
    bool more = ox_trainer_memory_files(trainer) > before;
    enum ox_status status = ox_team_share(trainer->team, &more, sizeof more, "what files in memory take");
    if (status != OX_OK || !more) {
        return status;
    }
    trainer->config.memory.host_mem_bytes = trainer->given_host_bytes;
    status = set_host_budget(trainer);
    OX_THEN(status, trainer->config.tool.plan_only ? ox_trainer_note_refusals(trainer) : OX_OK);
    if (status == OX_OK && trainer->plan != NULL && trainer->given_host_bytes == 0) {
        ox_engine_plan_close(&trainer->plan);
        status = predict(trainer, ox_trainer_open_plan(trainer));
    }
    return status;
}

/* What `train` would find wrong after its plan: an error of a dry run, told by a plan. Nothing is left behind: texts
 * are tokenized as they are for training, into a file without a name unless there is a --data-cache. */
static enum ox_status look_on(struct ox_trainer *trainer, bool ready) {
    enum ox_status status = OX_OK;
    if (!ready && trainer->config.files.data_count > 0) {
        trainer->input.leaves_nothing = true;
        status = ox_trainer_open_data(trainer);
    }
    OX_THEN(status, ox_trainer_fit_steps(trainer));
    OX_THEN(status, ox_trainer_check_later(trainer));
    if (status != OX_OK) {
        ox_engine_plan_close(&trainer->plan); /* which fits: it is not what is wrong */
    }
    return status;
}

static enum ox_status open_parts(struct ox_trainer *trainer) {
    /* A resumed run has its own weights; those that it began with may be gone. */
    const struct ox_config *const config = &trainer->config;
    const bool weights = !config->files.from_scratch && config->files.resume_from_checkpoint[0] == '\0';
    enum ox_status status = ox_trainer_check_best(trainer);
    OX_THEN(status, ox_trainer_prepare(trainer, weights));
    bool ready = false;
    if (status == OX_OK) {
        status = config->tool.plan_only ? ox_trainer_note_refusals(trainer) : ox_trainer_check_places(trainer);
        if (!config->tool.plan_only && !config->tool.dry_run) {
            ox_trainer_warn_open_folders(trainer);
        }
    }
    OX_THEN(status, ox_run_look_ahead(trainer));
    if (status == OX_OK && (config->train.max_steps == 0 || trainer->left_off.step < config->train.max_steps)) {
        status = ox_config_check_warmup(config); /* a resumed run may be beyond its end, and does nothing then */
    }
    if (status == OX_OK && trainer->config.files.data_count > 0) {
        status = ox_trainer_data_ready(trainer, &ready);
        OX_THEN(status, ox_team_share(trainer->team, &ready, sizeof ready, "whether the data is ready"));
    }
    /* Data that is ready is opened first, so that its errors show before the search for a plan. */
    if (status == OX_OK && ready) {
        status = ox_trainer_in_turn(trainer, ox_trainer_open_data, "the data");
    }
    OX_THEN(status, ox_trainer_fit_steps(trainer));
    OX_THEN(status, make_plan(trainer));
    if (status == OX_OK && (config->tool.plan_only || config->tool.dry_run)) {
        status = look_on(trainer, ready);
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
    trainer->given_host_bytes = config->memory.host_mem_bytes;
    trainer->given_device_bytes = config->memory.device_mem_bytes;
    trainer->lock_fd = -1;
    trainer->opened_ns = ox_clock_ns();
    enum ox_status status = ox_trainer_join(trainer);
    OX_THEN(status, ox_trainer_start_over(trainer));
    OX_THEN(status, open_parts(trainer));
    status = ox_config_reword(config, status);
    ox_team_abort(trainer->team, status);
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
    ox_expert_watch_close(&trainer->experts);
    OX_ASSERT(trainer->saving.tee == NULL); /* a run finishes its checkpoints */
    ox_engine_close(&trainer->engine);
    ox_engine_plan_close(&trainer->plan);
    ox_trainer_close_data(trainer);
    ox_reference_close(&trainer->reference);
    ox_hf_close(&trainer->folder);
    ox_team_close(&trainer->team);
    free(trainer->drives.own);
    free(trainer->foreign_rows);
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

uint64_t ox_trainer_bad_rows(const struct ox_trainer *trainer) {
    return trainer->input.bad_rows;
}

const struct ox_model *ox_trainer_model(const struct ox_trainer *trainer) {
    return ox_hf_model(trainer->folder);
}

const char *ox_trainer_result(const struct ox_trainer *trainer) {
    return trainer->result;
}
