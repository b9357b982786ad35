/* How many ranks do a step together and what they divide, checked before anything is reserved. */
#include "engine/run/trainer_internal.h"

#include "engine/config/mesh_words.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/pool.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ranks that have the same micro-batches, whatever rows of them. */
static uint32_t apart(const struct ox_engine_config *engine) {
    return engine->pipe * engine->tensors;
}

uint32_t ox_trainer_machines(const struct ox_trainer *trainer) {
    return (uint32_t)ox_div_up(ox_team_count(trainer->team), ox_team_per_machine(trainer->team));
}

uint32_t ox_trainer_planned_machines(const struct ox_trainer *trainer) {
    const uint32_t ranks = (uint32_t)ox_max_u64(trainer->engine_config.ranks, 1);
    return (uint32_t)ox_div_up(ranks, ox_machine_ranks(&trainer->machine, ranks));
}

/* How many devices there are for ranks: GPUs, or parts of the CPU, which is cut up only if the user asks for it. A plan
 * for a GPU that is not here may count on any number. */
static enum ox_status device_count(const struct ox_trainer *trainer, uint32_t *out) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    struct ox_cuda_plugin_info plugin;
    *out = OX_PLAN_RANKS_MAX;
    if (engine->device == OX_DEVICE_CPU) {
        *out = trainer->config.place.compute_threads == 0 ? ox_processor_count() * ox_trainer_machines(trainer)
                                                          : OX_PLAN_RANKS_MAX;
        return OX_OK;
    }
    if (trainer->gpu.memory_bytes == 0) {
        return OX_OK;
    }
    const enum ox_status status = ox_cuda_plugin_query(engine->cuda.plugin_path, &plugin);
    *out = status == OX_OK ? plugin.device_count * ox_trainer_machines(trainer) : 0;
    return status;
}

static enum ox_status check_count(const struct ox_trainer *trainer, uint32_t ranks, uint32_t devices) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    if (ranks > (trainer->config.tool.plan_only ? (uint32_t)OX_PLAN_RANKS_MAX : (uint32_t)OX_RANKS_MAX)) {
        return ox_fail(OX_E_CONFIG, "--ranks %u: a run has at most %d ranks; `offload plan` goes to %d", ranks,
                       OX_RANKS_MAX, OX_PLAN_RANKS_MAX);
    }
    const bool on_cpu = engine->device == OX_DEVICE_CPU;
    return ranks <= devices
               ? OX_OK : ox_fail(OX_E_CONFIG, "--ranks %u: there %s %u %s%s; take at most %u rank%s%s", ranks,
                                 devices == 1 ? "is" : "are", devices, on_cpu ? "processor" : "GPU",
                                 ox_plural(devices), devices, ox_plural(devices), on_cpu ? ", each of which computes "
                                 "on one at least, or give --compute-threads 1 to let ranks take turns" : "");
}

/* Ranks that gather or exchange something together are at most OX_RANKS_MAX, whatever a plan has. */
static enum ox_status check_groups(const struct ox_trainer *trainer, uint32_t of_data) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const bool copied = engine->sharding == OX_SHARDING_NONE;
    const uint32_t copies = copied ? of_data : (uint32_t)ox_max_u64(engine->copies, 1), holders = of_data / copies;
    const uint32_t of_axes = (uint32_t)ox_max_u64(engine->pipe, engine->tensors);
    const uint32_t largest = (uint32_t)ox_max_u64(ox_max_u64(copies, holders), of_axes);
    if (largest <= OX_RANKS_MAX) {
        return OX_OK;
    }
    uint32_t size = (uint32_t)ox_min_u64(of_data, OX_RANKS_MAX);
    while (size > 1 && of_data % size != 0) {
        size--;
    }
    return ox_fail(OX_E_CONFIG, "--ranks %u: %u ranks would %s, and at most %d do that together; give --sharding "
                   "hybrid_shard --shard-size %u, or --mesh with a pipeline", engine->ranks, largest,
                   largest == copies ? "have a copy of the model each" : "divide the same layers", OX_RANKS_MAX, size);
}

/* Each rank that shares its stages with others needs a micro-batch and a sum group. */
static enum ox_status check_work(const struct ox_trainer *trainer, uint32_t ranks) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const uint32_t processes = ox_team_count(trainer->team);
    const uint64_t groups = trainer->config.train.sum_groups > 0 ? trainer->config.train.sum_groups : UINT64_MAX;
    const uint64_t most = ox_min_u64(engine->micro_batches, groups);
    const uint64_t all = most * (engine->ranks / ranks) / processes * processes; /* which that many are of */
    struct ox_mesh_sizes said;
    char who[64], remedy[64];
    OX_TRY(ox_mesh_read(&trainer->config.ranks, &said));
    snprintf(who, sizeof who, said.data > 0 ? "--data-parallel-size %u" : ranks < engine->ranks ? "%u data ranks"
                                                                                             : "--ranks %u", ranks);
    snprintf(remedy, sizeof remedy, "give --ranks %" PRIu64, all);
    if (said.data > 0) {
        snprintf(remedy, sizeof remedy, "give --data-parallel-size %" PRIu64, most);
    } else if (all == 0) { /* each of which has a rank at least */
        snprintf(who, sizeof who, "%u ranks in %u processes", ranks, processes);
        snprintf(remedy, sizeof remedy, "start fewer processes");
    }
    if (ranks > engine->micro_batches) {
        return ox_fail(OX_E_CONFIG, "%s: a step has %u micro-batch%s, which leaves ranks without work; %s, or "
                       "--gradient-accumulation-steps %u", who, engine->micro_batches,
                       ox_plural_es(engine->micro_batches), remedy, ranks);
    }
    if (ranks > groups) {
        return ox_fail(OX_E_CONFIG, "%s: each rank sums at least one of the --sum-groups %" PRIu64 "; %s, or for a new "
                       "run --sum-groups %u", who, groups, remedy, ranks);
    }
    return OX_OK;
}

/* NCCL moves memory of GPUs alone, each of which is one rank's. */
static enum ox_status check_nccl(const struct ox_trainer *trainer, uint32_t ranks) {
    const struct ox_config *const config = &trainer->config;
    if (config->ranks.comm != OX_COMM_CHOICE_NCCL || ranks == 1) {
        return OX_OK;
    }
    if (trainer->engine_config.device == OX_DEVICE_CPU) {
        return ox_fail(OX_E_CONFIG, "--comm nccl: it moves memory of GPUs, and this run is on the CPU; leave it out");
    }
    return config->ranks.sharding != OX_SHARDING_CHOICE_SHARED
               ? OX_OK : ox_fail(OX_E_CONFIG, "--comm nccl: it takes nothing from host memory, where --sharding shared "
                                 "has the weights; leave it out, or choose another sharding");
}

/* Refuses what the engine cannot do yet; plans are made for any number of ranks. */
static enum ox_status check_supported(const struct ox_trainer *trainer, uint32_t ranks) {
    const struct ox_config *const config = &trainer->config;
    const uint32_t processes = ox_team_count(trainer->team);
    if (ranks % processes != 0) {
        return ox_fail(OX_E_CONFIG, "--ranks %u: are the ranks of all %u processes, each of which has as many; give a "
                       "multiple of %u", ranks, processes, processes);
    }
    if (processes > 1 && trainer->engine_config.device == OX_DEVICE_CUDA &&
        config->ranks.comm == OX_COMM_CHOICE_LOCAL) {
        return ox_fail(OX_E_CONFIG, "--comm local: GPUs copy to each other within one process, and NCCL alone connects "
                       "those of several; leave it out, or start one process with --ranks %u", ranks);
    }
    if (processes > 1 && config->ranks.sharding == OX_SHARDING_CHOICE_SHARED) {
        return ox_fail(OX_E_CONFIG, "--sharding shared: the ranks of several processes share no memory; choose another "
                       "sharding, or start one process with --ranks %u", ranks);
    }
    if (processes > 1 && config->memory.nvme_count > 0 && config->memory.store_generations == 1) {
        return ox_fail(OX_E_CONFIG, "--store-generations 1: several processes commit together, and a store with one "
                       "generation cannot go back if one of them fails; use 2");
    }
    if (ranks > 1 && config->ranks.sharding == OX_SHARDING_CHOICE_NO_SHARD && config->memory.nvme_count > 0) {
        return ox_fail(OX_E_CONFIG, "--sharding no_shard: every rank keeps all state in memory, so there is nothing to "
                       "keep on a drive; leave out --nvme, or choose another sharding");
    }
    return OX_OK;
}

/* The library that adds is MPI between processes on the CPU, and NCCL between GPUs. */
static enum ox_status check_reduction(const struct ox_trainer *trainer, uint32_t ranks) {
    const struct ox_config *const config = &trainer->config;
    if (config->ranks.reduction != OX_REDUCTION_LIBRARY || ranks == 1 || trainer->input.eval_alone) {
        return OX_OK;
    }
    if (trainer->engine_config.pipe > 1 || trainer->engine_config.tensors > 1) {
        return ox_fail(OX_E_CONFIG, "--reduction library: adds over all ranks at once, and those of %s have other "
                       "weights; use --reduction fixed", trainer->engine_config.pipe > 1
                       ? "a pipeline" : "--tensor-parallel-size");
    }
    if (trainer->engine_config.device == OX_DEVICE_CPU && trainer->team == NULL) {
        return ox_fail(OX_E_CONFIG, "--reduction library: ranks of one process on the CPU have no library that adds; "
                       "use fixed, or start processes with mpirun -np %u", ranks);
    }
    if (trainer->engine_config.device != OX_DEVICE_CPU &&
        (config->ranks.comm == OX_COMM_CHOICE_LOCAL || config->ranks.sharding == OX_SHARDING_CHOICE_SHARED)) {
        return ox_fail(OX_E_CONFIG, "--reduction library: NCCL adds, which %s leaves out; use fixed, or leave that out",
                       config->ranks.comm == OX_COMM_CHOICE_LOCAL ? "--comm local" : "--sharding shared");
    }
    if (config->train.sum_groups > 0 && config->train.sum_groups != ranks) {
        return ox_fail(OX_E_CONFIG, "--sum-groups %" PRIu64 ": --reduction library adds the sums of %u ranks in an "
                       "order of its own, so groups decide nothing; leave it out, or use --reduction fixed",
                       config->train.sum_groups, ranks);
    }
    ox_log(OX_LOG_INFO, "--reduction library: %s adds the gradients of ranks, so the run is not reproducible",
           trainer->team != NULL ? "MPI" : "NCCL");
    return OX_OK;
}

/* Narrow sums are added in float32 by the ranks themselves. */
static enum ox_status check_exchange(const struct ox_trainer *trainer, uint32_t ranks) {
    const struct ox_config *const config = &trainer->config;
    const char *const name = ox_exchange_dtype_name(config->ranks.exchange_dtype);
    if (config->ranks.exchange_dtype == OX_EXCHANGE_FP32 || trainer->input.eval_alone) {
        return OX_OK;
    }
    if (ranks == 1) {
        ox_log(OX_LOG_INFO, "--exchange-dtype %s: one rank exchanges no gradients, so nothing is rounded", name);
        return OX_OK;
    }
    if (config->ranks.reduction == OX_REDUCTION_LIBRARY) {
        return ox_fail(OX_E_CONFIG, "--exchange-dtype %s: --reduction library adds what it carries, in float32; leave "
                       "one of both out", name);
    }
    ox_log(OX_LOG_INFO, "--exchange-dtype %s: inexact; each sum of gradients is rounded once before it travels, so "
           "another number of ranks has other bits", name);
    return OX_OK;
}

/* ---- hybrid sharding ------------------------------------------------------------------------------------ */

static bool is_hybrid(const struct ox_config *config) {
    return config->ranks.sharding == OX_SHARDING_CHOICE_HYBRID_SHARD ||
           config->ranks.sharding == OX_SHARDING_CHOICE_HYBRID_SHARD_ZERO2;
}

static const char *name_of(const struct ox_config *config) {
    return config->ranks.sharding == OX_SHARDING_CHOICE_HYBRID_SHARD ? "hybrid_shard" : "hybrid_shard_zero2";
}

/* Writes the divisors of a number: "1, 2 or 4". */
static void list_divisors(uint32_t number, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 1; i <= number && used < bytes; i++) {
        if (number % i == 0) {
            used += (size_t)snprintf(text + used, bytes - used, "%s%u", i == 1 ? "" : i == number ? " or " : ", ", i);
        }
    }
}

static enum ox_status check_shard_size(const struct ox_trainer *trainer, uint32_t ranks, uint32_t size) {
    const struct ox_config *const config = &trainer->config;
    if (size > 0 && ranks % size == 0) {
        return OX_OK;
    }
    char sizes[256];
    list_divisors(ranks, sizes, sizeof sizes);
    return ox_fail(OX_E_CONFIG, "%s %u: %u rank%s cannot be divided into groups of as many; %s %s",
                   config->ranks.shard_size > 0 ? "--shard-size" : "--sharding hybrid_shard: ranks of a machine", size,
                   ranks, ox_plural(ranks), config->ranks.shard_size > 0 ? "use" : "give --shard-size", sizes);
}

/* The ranks of a process share a store, which has one copy of the state: that of theirs, or their part of it. */
static enum ox_status check_copy_store(const struct ox_trainer *trainer, uint32_t ranks, uint32_t size) {
    const uint32_t of_process = ranks * apart(&trainer->engine_config) / ox_team_count(trainer->team);
    const uint32_t here = of_process < ranks ? of_process : ranks; /* with the same layers and features */
    if (trainer->config.memory.nvme_count == 0 || trainer->input.eval_alone || size % here == 0) {
        return OX_OK;
    }
    if (trainer->config.tool.plan_only && trainer->team == NULL) {
        ox_log(OX_LOG_INFO, "--sharding %s with --nvme: planned for a process for each copy, as mpirun -np %u starts "
               "them", name_of(&trainer->config), ranks / size * apart(&trainer->engine_config));
        return OX_OK;
    }
    return ox_fail(OX_E_CONFIG, "--sharding %s: the %u ranks of a process would have %s copies of the state in one "
                   "store; leave out --nvme, give --shard-size %u, or start a process for each copy",
                   name_of(&trainer->config), here, here % size == 0 ? "several" : "parts of several", here);
}

/* Sets how many copies of the model the ranks make. */
static enum ox_status set_copies(struct ox_trainer *trainer, uint32_t ranks) {
    const struct ox_config *const config = &trainer->config;
    const uint32_t machines = ox_trainer_machines(trainer);
    trainer->engine_config.copies = 0;
    if (!is_hybrid(config)) {
        const uint64_t size = config->ranks.shard_size;
        return size == 0 ? OX_OK
                         : ox_fail(OX_E_CONFIG, "--shard-size %" PRIu64 ": says how many ranks divide a copy, and "
                                   "without --sharding hybrid_shard all of them do; add that, or leave it out", size);
    }
    if (strcmp(config->ranks.count, "auto") == 0) {
        return ox_fail(OX_E_CONFIG, "--ranks auto: how many copies --sharding %s makes follows from the number of "
                       "ranks; give --ranks N", name_of(config));
    }
    if (config->ranks.shard_size == 0 && machines == 1 && ranks > 1) {
        return ox_fail(OX_E_CONFIG, "--sharding %s: keeps a copy on each machine, and this is one; give --shard-size, "
                       "the ranks that divide a copy, or use %s", name_of(config),
                       config->ranks.sharding == OX_SHARDING_CHOICE_HYBRID_SHARD ? "full_shard" : "shard_grad_op");
    }
    if (config->ranks.reduction == OX_REDUCTION_LIBRARY && ranks > 1) {
        return ox_fail(OX_E_CONFIG, "--reduction library: adds over all ranks at once, and --sharding %s over those of "
                       "a copy first; use --reduction fixed", name_of(config));
    }
    const uint32_t size = config->ranks.shard_size > 0 ? (uint32_t)config->ranks.shard_size : ranks / machines;
    OX_TRY(check_shard_size(trainer, ranks, size));
    OX_TRY(check_copy_store(trainer, ranks, size));
    trainer->engine_config.copies = ranks / size;
    const bool planned = config->tool.plan_only && config->memory.nvme_count > 0;
    trainer->engine_config.store_ranks = planned ? size : 0;
    return OX_OK;
}

/* ---- the choice ------------------------------------------------------------------------------------------- */

static enum ox_sharding sharding_of(enum ox_sharding_choice choice) {
    static const enum ox_sharding shardings[] = {
        [OX_SHARDING_CHOICE_AUTO] = OX_SHARDING_COUNT,
        [OX_SHARDING_CHOICE_FULL_SHARD] = OX_SHARDING_FULL,
        [OX_SHARDING_CHOICE_SHARD_GRAD_OP] = OX_SHARDING_STEP,
        [OX_SHARDING_CHOICE_ZERO1] = OX_SHARDING_STATE,
        [OX_SHARDING_CHOICE_ZERO2] = OX_SHARDING_GRAD,
        [OX_SHARDING_CHOICE_ZERO3] = OX_SHARDING_FULL,
        [OX_SHARDING_CHOICE_NO_SHARD] = OX_SHARDING_NONE,
        [OX_SHARDING_CHOICE_SHARED] = OX_SHARDING_SHARED,
        [OX_SHARDING_CHOICE_HYBRID_SHARD] = OX_SHARDING_FULL,
        [OX_SHARDING_CHOICE_HYBRID_SHARD_ZERO2] = OX_SHARDING_STEP,
    };
    return shardings[choice];
}

/* What one of the options of a pipeline needs beside the number of ranks. */
static enum ox_status check_pipe(const struct ox_trainer *trainer) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const struct ox_config_ranks *const words = &trainer->config.ranks;
    if (engine->pipe <= 1) {
        return words->pipeline_schedule == OX_PIPELINE_CHOICE_AUTO || strcmp(words->mesh, "auto") == 0
                   ? OX_OK : ox_fail(OX_E_CONFIG, "--pipeline-schedule: there is no pipeline; add "
                                     "--pipeline-parallel-size N, or leave it out");
    }
    if (engine->schedule != OX_PIPE_VERTICAL && trainer->config.place.tiles > 1) {
        return ox_fail(OX_E_CONFIG, "--tiles %" PRIu64 ": --pipeline-schedule %s passes each micro-batch on by itself; "
                       "leave out --tiles, or use vertical", trainer->config.place.tiles,
                       ox_pipe_schedule_name(engine->schedule));
    }
    if (words->sharding == OX_SHARDING_CHOICE_SHARED) {
        return ox_fail(OX_E_CONFIG, "--sharding shared: devices take the slices of all ranks, and those of a pipeline "
                       "have other layers; choose another sharding, or leave out the pipeline");
    }
    return OX_OK;
}

static enum ox_pipe_schedule schedule_of(const struct ox_config *config) {
    return config->ranks.pipeline_schedule == OX_PIPELINE_CHOICE_AUTO
               ? OX_PIPE_VERTICAL : (enum ox_pipe_schedule)(config->ranks.pipeline_schedule - 1);
}

/* Whether the mesh is to be chosen: some of its sizes are not said. An evaluation has data ranks in place of these. */
static bool any_mesh(const struct ox_trainer *trainer) {
    const struct ox_config_ranks *const words = &trainer->config.ranks;
    return strcmp(words->mesh, "auto") == 0 && !trainer->input.eval_alone &&
           (words->pipeline_parallel_size == 0 || words->tensor_parallel_size == 0 ||
            words->context_parallel_size == 0 || words->expert_parallel_size == 0);
}

/* Sets the mesh, where options say one, and records it; *ranks: how many ranks it has, 0: as --ranks says. */
static enum ox_status set_mesh(struct ox_trainer *trainer, uint32_t *ranks) {
    struct ox_config *const config = &trainer->config;
    struct ox_engine_config *const engine = &trainer->engine_config;
    struct ox_mesh_sizes sizes;
    engine->pipe = engine->contexts = engine->tensors = engine->experts = 1;
    engine->schedule = schedule_of(config);
    engine->pipe_chunks = engine->schedule == OX_PIPE_INTERLEAVED ? (uint32_t)config->ranks.virtual_pipeline_size : 1;
    OX_TRY(ox_mesh_read(&config->ranks, &sizes));
    sizes.chosen = sizes.chosen && !trainer->input.eval_alone;
    OX_TRY(ox_mesh_complete(&config->ranks, ox_team_count(trainer->team), &sizes, ranks));
    if (*ranks > 0) {
        snprintf(config->ranks.count, sizeof config->ranks.count, "%u", *ranks);
    }
    if (any_mesh(trainer)) {
        return OX_OK; /* chosen when the plan is made */
    }
    engine->pipe = (uint32_t)ox_max_u64(sizes.pipe, 1);
    engine->contexts = (uint32_t)ox_max_u64(sizes.context, 1);
    engine->tensors = (uint32_t)ox_max_u64(sizes.tensor, 1);
    engine->experts = (uint32_t)ox_max_u64(sizes.expert, 1);
    if (*ranks > 0) {
        config->ranks.pipeline_parallel_size = engine->pipe;
        config->ranks.context_parallel_size = engine->contexts;
        config->ranks.tensor_parallel_size = engine->tensors;
        config->ranks.expert_parallel_size = engine->experts * (sizes.by_features ? engine->tensors : 1);
    }
    return OX_OK;
}

/* The groups of micro-batches that are summed apart: as many as there are ranks, unless the user says, and where the
 * library adds. */
static uint32_t groups_of(const struct ox_trainer *trainer, uint32_t ranks) {
    const bool library = trainer->config.ranks.reduction == OX_REDUCTION_LIBRARY && ranks > 1;
    return trainer->config.train.sum_groups > 0 && !library ? (uint32_t)trainer->config.train.sum_groups : ranks;
}

/* `of_mesh`: how many ranks the mesh has; 0: options say none. */
static enum ox_status pick_count(struct ox_trainer *trainer, uint32_t of_mesh, uint32_t *out) {
    const struct ox_config *const config = &trainer->config;
    struct ox_engine_config *const engine = &trainer->engine_config;
    const bool here = engine->device == OX_DEVICE_CUDA && trainer->gpu.memory_bytes > 0;
    const uint64_t most = config->train.sum_groups > 0 ? config->train.sum_groups : engine->micro_batches;
    const uint64_t given = strtoull(config->ranks.count, NULL, 10);
    const uint32_t processes = ox_team_count(trainer->team);
    uint32_t devices = 1;
    enum ox_status status = processes == 1 && given == 1 ? OX_OK : device_count(trainer, &devices);
    *out = of_mesh > 0 ? of_mesh
           : strcmp(config->ranks.count, "auto") != 0 ? (uint32_t)(given > 1 ? given : processes)
           : processes > 1 ? processes
           : here ? (uint32_t)ox_min_u64(ox_min_u64(devices, OX_RANKS_MAX), most) : 1;
    engine->cuda_count = here ? devices / ox_trainer_machines(trainer) : 0;
    OX_THEN(status, check_count(trainer, *out, devices));
    const uint32_t of_data = *out / apart(engine);
    OX_THEN(status, check_pipe(trainer));
    OX_THEN(status, any_mesh(trainer) ? OX_OK : ox_trainer_check_tensors(trainer));
    OX_THEN(status, ox_trainer_set_experts(trainer, of_data));
    OX_THEN(status, any_mesh(trainer) ? OX_OK : check_work(trainer, of_data / engine->contexts));
    if (!any_mesh(trainer) || *out == 1) { /* else each mesh is asked for its own */
        OX_THEN(status, ox_trainer_set_context_groups(trainer, of_data / engine->contexts,
                                                      groups_of(trainer, of_data / engine->contexts)));
    }
    OX_THEN(status, check_supported(trainer, *out));
    OX_THEN(status, check_nccl(trainer, *out));
    OX_THEN(status, check_reduction(trainer, of_data));
    OX_THEN(status, check_exchange(trainer, of_data));
    OX_THEN(status, ox_trainer_divide_low_rank(trainer, of_data));
    engine->sharding = sharding_of(config->ranks.sharding);
    OX_THEN(status, set_copies(trainer, of_data));
    OX_THEN(status, ox_trainer_set_low_rank(trainer, of_data));
    OX_THEN(status, any_mesh(trainer) ? OX_OK : check_groups(trainer, of_data));
    return status;
}

enum ox_status ox_trainer_set_ranks(struct ox_trainer *trainer) {
    struct ox_config *const config = &trainer->config;
    struct ox_engine_config *const engine = &trainer->engine_config;
    uint32_t of_mesh = 0;
    engine->ranks = 1;
    engine->sharding = sharding_of(config->ranks.sharding);
    enum ox_status status = set_mesh(trainer, &of_mesh);
    const struct ox_recorded recorded = ox_trainer_recorded(trainer);
    engine->chunk_elems = config->place.chunk_elems > 0 ? config->place.chunk_elems : recorded.chunk_elems;
    if (config->memory.store_generations == 0 && !trainer->input.eval_alone) {
        config->memory.store_generations = recorded.store_generations; /* a store keeps them */
        engine->budget.generations = (uint32_t)recorded.store_generations;
    }
    engine->request.may_keep_three = config->memory.store_generations == 0;
    /* A resumed run keeps its groups, and with them its bits, if they are enough. */
    const bool library = config->ranks.reduction == OX_REDUCTION_LIBRARY && !trainer->input.eval_alone;
    if (config->train.sum_groups == 0 && !trainer->input.eval_alone && !library) {
        const uint64_t groups = recorded.sum_groups;
        const uint64_t of_one = (uint64_t)apart(engine) * engine->contexts;
        const bool enough = strcmp(config->ranks.count, "auto") == 0 ? groups > 1 : any_mesh(trainer)
                                ? groups > 0 : strtoull(config->ranks.count, NULL, 10) / of_one <= groups;
        config->train.sum_groups = enough && groups <= engine->micro_batches ? groups : 0;
    }
    engine->comm = (enum ox_rank_comm)config->ranks.comm; /* the same words in the same order */
    engine->comm_timeout_ns = config->ranks.comm_timeout_ns;
    engine->comm_debug = config->ranks.comm_debug;
    if (trainer->input.eval_alone) { /* nothing is summed over micro-batches, so each rank may take as many */
        config->train.sum_groups = 0;
        engine->micro_batches = OX_RANKS_MAX;
    }
    ox_trainer_set_context_mode(trainer, recorded.context_groups > 1 ? recorded.context_mode : 0);
    if (config->train.context_groups == 0 && recorded.context_groups >= engine->contexts) {
        config->train.context_groups = recorded.context_groups; /* a resumed run keeps these too */
    }
    OX_THEN(status, pick_count(trainer, of_mesh, &engine->ranks));
    const uint32_t of_data = engine->ranks / apart(engine), of_batch = of_data / engine->contexts;
    engine->sum_groups = groups_of(trainer, of_batch);
    if (trainer->input.eval_alone) {
        const uint64_t configured = config->train.gradient_accumulation_steps;
        engine->micro_batches = (uint32_t)(ox_div_up(of_batch, configured) * configured);
        if (engine->experts > 1) { /* which do as many each */
            engine->micro_batches = (uint32_t)(ox_div_up(configured, of_batch) * of_batch);
        }
    }
    engine->library_sums = library && of_data > 1;
    engine->exchange = trainer->input.eval_alone || of_data == 1 ? OX_EXCHANGE_FP32 : config->ranks.exchange_dtype;
    engine->comm = engine->library_sums ? OX_RANK_COMM_NCCL : engine->comm; /* of GPUs */
    engine->compute_threads *= ox_trainer_machines(trainer);
    engine->optimizer_threads *= ox_trainer_machines(trainer);
    if (engine->device == OX_DEVICE_CPU) { /* ranks divide the threads; each has at least one */
        engine->compute_threads = (uint32_t)ox_max_u64(engine->compute_threads, engine->ranks);
    }
    return status == OX_OK ? ox_trainer_set_muon(trainer) : status;
}

/* ---- the plan ------------------------------------------------------------------------------------------- */

/* Makes the model of a run, and all that was chosen for its units, with its experts grouped otherwise; OX_E_CONFIG
 * where that cannot be. */
static enum ox_status regroup(struct ox_trainer *trainer, uint32_t per_unit) {
    enum ox_status status = ox_hf_regroup(trainer->folder, per_unit, (uint32_t)trainer->config.train.tensor_groups);
    const struct ox_model *const model = ox_hf_model(trainer->folder);
    trainer->engine_config.model = model;
    trainer->engine_config.request.kept_units = ox_trainer_kept_stages(&trainer->config, model);
    if (status == OX_OK && model->unit_count + 17 >= OX_FORMATS_BYTES) {
        status = ox_fail(OX_E_CONFIG, "too many units");
    }
    OX_THEN(status, ox_trainer_check_hosts(model));
    OX_THEN(status, ox_trainer_check_bias(&trainer->config, model));
    OX_THEN(status, ox_trainer_choose_formats(trainer));
    return status;
}

/* Whether groups of experts are worth comparing: those of a block take a part of memory that shows. A block that is
 * smaller loses by more stages what it gains. */
enum { OX_EXPERTS_SHOW_BYTES = 256 << 20 };
static bool may_group(const struct ox_trainer *trainer) {
    const struct ox_model *const model = ox_hf_model(trainer->folder);
    const struct ox_engine_config *const engine = &trainer->engine_config;
    uint64_t most = 0;
    for (uint32_t i = 0; i < model->block_count; i++) {
        uint64_t elems = 0; /* with those of all groups of features, of which a rank has some */
        for (uint32_t at = model->blocks[i]; at != OX_NO_UNIT; at = model->units[at].next) {
            elems += model->units[at].elem_count;
        }
        most = ox_max_u64(most, elems / engine->tensors);
    }
    return strcmp(trainer->config.place.experts_per_unit, "auto") == 0 && !trainer->input.eval_alone &&
           engine->context_groups <= engine->contexts && /* a rank with several groups of rows has none */
           model->config.mixture.router.experts > 1 && most * OX_HI_BYTES >= OX_EXPERTS_SHOW_BYTES;
}

/* The bytes that the nearest plan of those groups lacks in all tiers; UINT64_MAX without a plan. */
static uint64_t lacking_bytes(const struct ox_trainer *trainer) {
    const struct ox_plan_budget *const budget = &trainer->engine_config.budget;
    const uint64_t have[OX_TIER_COUNT] = {[OX_TIER_DEVICE] = budget->unified ? UINT64_MAX : budget->device_bytes,
                                          [OX_TIER_HOST] = budget->host_bytes, [OX_TIER_NVME] = budget->nvme_bytes};
    uint64_t bytes = trainer->plan != NULL ? 0 : UINT64_MAX;
    for (enum ox_tier tier = 0; tier < OX_TIER_COUNT && trainer->plan != NULL; tier++) {
        const uint64_t need = ox_engine_plan_peak_bytes(trainer->plan, tier);
        bytes += need > have[tier] ? need - have[tier] : 0;
    }
    return bytes;
}

/* For --experts-per-unit auto: compares groups by the simulator, from all experts in their block's unit on, halving
 * them as long as that gains 1 %, or nothing fits, down to a sixteenth of them. If nothing fits, the refusal is that of
 * the groups that lack least. */
static enum ox_status choose_experts(struct ox_trainer *trainer) {
    enum { LEAST_SHARE = 16 };
    const struct ox_model_config *const config = &ox_hf_model(trainer->folder)->config;
    const uint32_t experts = config->mixture.router.experts / ox_model_groups(config); /* of a group of features */
    const enum ox_sharding given = trainer->engine_config.sharding;
    uint32_t best = 0;
    double best_seconds = INFINITY, seconds = 0;
    uint64_t least = UINT64_MAX;
    for (uint32_t of_unit = experts, last = experts; of_unit > 0; last = of_unit, of_unit /= 2) {
        const uint32_t per_unit = of_unit == experts ? 0 : of_unit;
        if (isinf(best_seconds) && last * LEAST_SHARE <= experts) {
            break; /* what still lacks room lacks it elsewhere, and searches take longer the more units there are */
        }
        enum ox_status status = regroup(trainer, per_unit);
        if (status == OX_E_CONFIG) {
            break; /* cannot be cut so */
        }
        OX_THEN(status, ox_trainer_time_sharding(trainer, given == OX_SHARDING_COUNT ? OX_SHARDING_FULL : given,
                                                 &seconds));
        const uint64_t lacking = status == OX_OK ? 0 : lacking_bytes(trainer);
        ox_engine_plan_close(&trainer->plan);
        if (status != OX_OK && status != OX_E_CONFIG) {
            return status;
        }
        if (status == OX_OK && seconds >= 0.99 * best_seconds) {
            break;
        }
        best = status == OX_OK || (isinf(best_seconds) && lacking < least) ? per_unit : best;
        least = lacking < least ? lacking : least;
        best_seconds = status == OX_OK ? seconds : best_seconds;
    }
    trainer->engine_config.sharding = given;
    return regroup(trainer, best);
}

/* For --ranks auto: halves the number of ranks as long as a step takes as long, within 2 %, because devices that gain
 * nothing are better left to others. A number that does not fit is passed over. */
static enum ox_status choose_count(struct ox_trainer *trainer) {
    struct ox_engine_config *const engine = &trainer->engine_config;
    const enum ox_sharding given = engine->sharding;
    const uint32_t most = engine->ranks;
    double fastest = INFINITY, seconds = 0;
    uint32_t best = most;
    for (uint32_t ranks = most; ranks > 0; ranks /= 2) {
        engine->ranks = ranks;
        engine->sum_groups = groups_of(trainer, ranks);
        const enum ox_status status =
            ox_trainer_time_sharding(trainer, given == OX_SHARDING_COUNT ? OX_SHARDING_FULL : given, &seconds);
        ox_engine_plan_close(&trainer->plan);
        if (status != OX_OK && status != OX_E_CONFIG) {
            return status;
        }
        if (status == OX_OK && seconds < 1.02 * fastest) {
            best = ranks;
            fastest = seconds < fastest ? seconds : fastest;
        }
    }
    engine->ranks = best;
    engine->sum_groups = groups_of(trainer, best);
    engine->sharding = given;
    return OX_OK;
}

/* ---- the mesh ------------------------------------------------------------------------------------------- */

/* What the choice of a mesh begins with, and goes back to for each. */
struct mesh_start {
    struct ox_trainer *trainer;
    struct ox_engine_config engine;
    struct ox_config_ranks words;
    uint64_t context_groups;
    uint32_t experts_per_unit;
    bool any_experts; /* how many experts are a unit follows from the ranks that divide them */
};

/* What `train` would refuse of the mesh that is set. */
static enum ox_status check_mesh(struct ox_trainer *trainer) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const uint32_t of_data = engine->ranks / apart(engine), of_batch = of_data / engine->contexts;
    OX_TRY(check_pipe(trainer));
    OX_TRY(ox_trainer_check_tensors(trainer));
    OX_TRY(ox_trainer_check_muon_groups(trainer));
    OX_TRY(ox_trainer_set_experts(trainer, of_data));
    OX_TRY(check_work(trainer, of_batch));
    OX_TRY(ox_trainer_set_context_groups(trainer, of_batch, groups_of(trainer, of_batch)));
    OX_TRY(is_hybrid(&trainer->config) ? set_copies(trainer, of_data) : OX_OK);
    return check_groups(trainer, of_data);
}

/* Sets a mesh. A new run has as many groups of rows and features as ranks that divide them, unless it is told; one
 * that is resumed keeps its own. */
static enum ox_status set_candidate(void *context, const struct ox_mesh_tried *mesh,
                                    const struct ox_engine_config **out) {
    const struct mesh_start *const start = context;
    struct ox_trainer *const trainer = start->trainer;
    struct ox_engine_config *const engine = &trainer->engine_config;
    const bool resumes = trainer->config.files.resume_from_checkpoint[0] != '\0';
    uint32_t per_unit = start->any_experts && mesh->expert > 1 ? OX_EXPERTS_AUTO : start->experts_per_unit;
    *engine = start->engine;
    *out = engine;
    trainer->config.ranks = start->words;
    trainer->config.train.context_groups = ox_max_u64(start->context_groups, resumes);
    trainer->config.train.tensor_groups =
        trainer->any_tensor_groups ? mesh->tensor : trainer->config.train.tensor_groups;
    engine->pipe = mesh->pipe;
    engine->schedule = mesh->schedule;
    engine->pipe_chunks = mesh->chunks;
    engine->contexts = mesh->context;
    engine->context_groups = 0;
    engine->tensors = mesh->tensor;
    engine->experts = mesh->expert;
    engine->sum_groups = groups_of(trainer, mesh->data);
    enum ox_status status = ox_trainer_group_experts(&ox_hf_model(trainer->folder)->config, mesh->expert, mesh->tensor,
                                                     trainer->config.train.tensor_groups, &per_unit);
    if (status == OX_OK) {
        status = regroup(trainer, per_unit);
    } else {
        engine->model = ox_hf_model(trainer->folder);
    }
    OX_THEN(status, check_mesh(trainer));
    return status;
}

/* The sharding that is given, or else those of which one is usually the fastest. */
static uint32_t list_shardings(void *context, enum ox_sharding *out) {
    const struct ox_trainer *const trainer = ((const struct mesh_start *)context)->trainer;
    const struct ox_engine_config *const engine = &trainer->engine_config;
    struct ox_division divisions[OX_DIVISIONS_MAX];
    uint32_t count = 0;
    out[0] = engine->sharding;
    if (engine->sharding != OX_SHARDING_COUNT) {
        return 1;
    }
    const uint32_t all = ox_trainer_divisions(trainer, divisions);
    const bool alone = engine->ranks == apart(engine); /* each rank has its units to itself */
    for (uint32_t i = 0; i < all && (count == 0 || !alone); i++) {
        out[count] = divisions[i].sharding;
        count += divisions[i].usual;
    }
    return count;
}

static enum ox_status time_candidate(void *context, struct ox_mesh_tried *mesh, double beats) {
    return ox_trainer_time_mesh(((const struct mesh_start *)context)->trainer, mesh, beats);
}

/* What may be: sizes that are given stay, and so do the order of stages and what one reduction by a library needs. */
static enum ox_status ask_for(struct mesh_start *start, struct ox_mesh_ask *ask) {
    const struct ox_config_ranks *const words = &start->words;
    const struct ox_mixture *const mixture = &start->engine.model->config.mixture;
    const bool library = words->reduction == OX_REDUCTION_LIBRARY;
    struct ox_mesh_sizes said;
    OX_TRY(ox_mesh_read(words, &said));
    *ask = (struct ox_mesh_ask){
        .context = start, .set = set_candidate, .shardings = list_shardings, .time = time_candidate,
        .ranks = start->engine.ranks, .data = said.data, .pipe = library ? 1 : said.pipe,
        .tensor = library ? 1 : said.tensor, .context_ranks = said.context,
        .expert = mixture->router.experts == 0 && said.expert == 0 ? 1 : said.expert,
        .chunks = words->virtual_pipeline_size >= 2 ? (uint32_t)words->virtual_pipeline_size : 0};
    for (int i = 0; i < OX_PIPE_COUNT; i++) {
        ask->orders[i] = words->pipeline_schedule == OX_PIPELINE_CHOICE_AUTO ||
                         (int)words->pipeline_schedule == 1 + i;
    }
    return OX_OK;
}

/* Sets the mesh that was taken, and records it. */
static enum ox_status take_mesh(struct mesh_start *start, const struct ox_mesh_tried *mesh) {
    struct ox_trainer *const trainer = start->trainer;
    struct ox_config_ranks *const words = &trainer->config.ranks;
    const struct ox_engine_config *engine = NULL;
    const enum ox_status status = set_candidate(start, mesh, &engine);
    uint64_t *const groups = &trainer->config.train.context_groups;
    *groups = mesh->context == 1 && *groups == 1 ? start->context_groups : *groups;
    trainer->engine_config.request.rough = trainer->engine_config.compares = false;
    words->pipeline_parallel_size = mesh->pipe;
    words->context_parallel_size = mesh->context;
    if (trainer->any_context_mode) {
        trainer->engine_config.context_mode = mesh->context_mode;
        words->context_parallel_mode = 1 + (int)mesh->context_mode;
    }
    words->tensor_parallel_size = mesh->tensor;
    words->expert_parallel_size = ox_mesh_expert_ranks(mesh->expert, mesh->tensor);
    words->pipeline_schedule =
        mesh->pipe > 1 ? (enum ox_pipeline_choice)(1 + mesh->schedule) : OX_PIPELINE_CHOICE_AUTO;
    words->virtual_pipeline_size = mesh->chunks > 1 ? mesh->chunks : start->words.virtual_pipeline_size;
    if (mesh->expert > 1) {
        snprintf(trainer->config.place.experts_per_unit, sizeof trainer->config.place.experts_per_unit, "%u",
                 trainer->engine_config.model->config.mixture.per_unit);
    }
    return status;
}

/* For --mesh auto: the fastest mesh of all that the ranks can have. Sum groups that the run has, given or recorded, are
 * those of each; so are groups of rows and features. */
static enum ox_status choose_mesh(struct ox_trainer *trainer) {
    struct mesh_start start = {.trainer = trainer, .engine = trainer->engine_config, .words = trainer->config.ranks,
                               .context_groups = trainer->config.train.context_groups,
                               .experts_per_unit = trainer->engine_config.model->config.mixture.per_unit,
                               .any_experts = strcmp(trainer->config.place.experts_per_unit, "auto") == 0};
    struct ox_mesh_choice *const choice = &trainer->mesh_choice;
    struct ox_mesh_ask ask;
    start.engine.request.rough = start.engine.compares = true;
    enum ox_status status = ask_for(&start, &ask);
    OX_THEN(status, ox_mesh_choose(&ask, choice));
    OX_THEN(status, take_mesh(&start, &choice->best[choice->taken]));
    if (status == OX_OK && isfinite(choice->best[choice->taken].seconds)) { /* else the plan's own refusal follows */
        char text[OX_MESH_LINE_BYTES];
        ox_mesh_line(choice, text);
        ox_log(OX_LOG_INFO, "%s", text);
    }
    return status;
}

enum ox_context_mode ox_trainer_context_mode(const struct ox_trainer *trainer) {
    return trainer->engine_config.context_mode;
}

/* For --ranks auto on a machine that is not here: as many as its profile has GPUs. */
static void count_elsewhere(struct ox_trainer *trainer) {
    struct ox_engine_config *const engine = &trainer->engine_config;
    const uint64_t groups = trainer->config.train.sum_groups;
    if (engine->device == OX_DEVICE_CUDA && trainer->gpu.memory_bytes == 0 && !trainer->input.eval_alone) {
        const uint64_t gpus = ox_min_u64(ox_max_u64(trainer->machine.gpu.count, 1), OX_RANKS_MAX);
        engine->ranks = (uint32_t)ox_min_u64(gpus, groups > 0 ? groups : engine->micro_batches);
        engine->sum_groups = groups_of(trainer, engine->ranks);
        if (engine->ranks < gpus && groups == 0) {
            ox_log(OX_LOG_INFO, "--ranks auto: at most %" PRIu32 " of the %" PRIu64 " GPUs, because a step has %" PRIu32
                   " micro-batch%s; --gradient-accumulation-steps %" PRIu64 " has work for all", engine->ranks, gpus,
                   engine->micro_batches, ox_plural_es(engine->micro_batches), gpus);
        }
    }
}

/* Recorded, because a store keeps its units. */
static void record_experts(struct ox_trainer *trainer) {
    const struct ox_mixture *const mixture = &trainer->engine_config.model->config.mixture;
    char *const text = trainer->config.place.experts_per_unit;
    if (mixture->per_unit > 0) {
        snprintf(text, sizeof trainer->config.place.experts_per_unit, "%" PRIu32, mixture->per_unit);
    } else if (mixture->router.experts > 0) {
        snprintf(text, sizeof trainer->config.place.experts_per_unit, "all");
    }
}

enum ox_status ox_trainer_open_plan(struct ox_trainer *trainer) {
    struct ox_engine_config *const engine = &trainer->engine_config;
    const bool any_count = strcmp(trainer->config.ranks.count, "auto") == 0 && trainer->team == NULL;
    if (any_count) {
        count_elsewhere(trainer);
    }
    const bool mesh = any_mesh(trainer) && engine->ranks > 1; /* with which ranks begin that choose groups of experts */
    enum ox_status status = !mesh && may_group(trainer) ? choose_experts(trainer) : OX_OK;
    OX_THEN(status, any_count && engine->ranks > 1 ? choose_count(trainer) : OX_OK);
    OX_THEN(status, mesh ? choose_mesh(trainer) : OX_OK);
    OX_THEN(status, mesh && may_group(trainer) ? choose_experts(trainer) : OX_OK);
    if (status == OX_OK && !trainer->input.eval_alone) {
        trainer->config.train.sum_groups = engine->sum_groups; /* recorded, because other groups give other bits */
    }
    const bool choose = engine->sharding == OX_SHARDING_COUNT && engine->ranks > apart(engine);
    engine->sharding = engine->sharding == OX_SHARDING_COUNT ? OX_SHARDING_FULL : engine->sharding;
    OX_THEN(status, choose ? ox_trainer_choose_sharding(trainer) : ox_engine_plan_open(engine, &trainer->plan));
    status = ox_mesh_refuse(&trainer->mesh_choice, status);
    if (status == OX_OK && !trainer->input.eval_alone) { /* recorded, because a store keeps its chunks */
        trainer->config.place.chunk_elems = trainer->plan->whole.chunk_elems;
        record_experts(trainer);
        trainer->config.memory.store_generations = ox_plan_generations(&trainer->plan->input.budget);
        engine->budget.generations = (uint32_t)trainer->config.memory.store_generations;
    }
    if (status == OX_OK && trainer->config.save.eval_ema && !ox_engine_plan_swaps(trainer->plan)) {
        status = ox_fail(OX_E_CONFIG, "--eval-ema: averages are evaluated in the place of the weights, which come "
                         "back from the store, and it has one generation; give --store-generations 2, or measure "
                         "checkpoints by `offload eval --ema`");
    }
    return status;
}
