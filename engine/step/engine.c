/* Opens and closes the engine, and reserves everything that a step needs. */
#include "engine/step/engine_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/hash/hash.h"
#include "base/pool.h"
#include "engine/step/ops_optim.h"
#include "offload/sim/sim.h"

#include <stdlib.h>
#include <string.h>

/* ---- the plan ------------------------------------------------------------------------------------ */

static bool on_cpu(const struct ox_engine_config *config) {
    return config->device == OX_DEVICE_CPU;
}

/* The shape and type of compute. The CPU always computes with float32; a GPU with bfloat16, unless fp32
 * is requested. */
static struct ox_shape shape_of(const struct ox_engine_config *config) {
    const enum ox_real real = on_cpu(config) || config->fp32 ? OX_REAL_F32 : OX_REAL_BF16;
    return (struct ox_shape){.model = config->model, .batch = config->batch, .seq = config->seq,
                             .rows = config->batch * config->seq,
                             .compute = {.device = config->device, .real = real, .threads = config->compute_threads}};
}

static uint64_t rope_floats(const struct ox_engine_config *config) {
    const struct ox_model_config *const model = &config->model->config;
    return model->rope ? (uint64_t)config->seq * (model->head_dim / 2) : 0;
}

static struct ox_plan_pass describe_pass(const struct ox_shape *shape, uint32_t unit_idx, enum ox_pass pass) {
    return (struct ox_plan_pass){.scratch_bytes = ox_unit_work_bytes(shape, unit_idx, pass),
                                 .work = ox_unit_cost(shape, unit_idx, pass)};
}

/* Describes the unit of a stage to the planner, with the gradient of its weights. The embedding takes tokens, the head
 * gives the loss; activations between units have one row of `hidden` per token. */
static struct ox_plan_unit describe_unit(const struct ox_shape *shape, uint32_t stage_idx, uint32_t grad_idx) {
    static const enum ox_plan_unit_kind kinds[] = {[OX_UNIT_EMBED] = OX_PLAN_EMBEDDING, [OX_UNIT_BLOCK] = OX_PLAN_BLOCK,
                                                   [OX_UNIT_HEAD] = OX_PLAN_HEAD};
    const uint32_t unit_idx = shape->model->stages[stage_idx];
    const struct ox_unit *const unit = &shape->model->units[unit_idx];
    const uint64_t act_bytes =
        (uint64_t)shape->rows * shape->model->config.hidden * ox_real_bytes(shape->compute.real);
    return (struct ox_plan_unit){
        .kind = kinds[unit->kind],
        .stage_idx = stage_idx,
        .elem_count = unit->elem_count,
        .input_bytes = unit->kind == OX_UNIT_EMBED ? 0 : act_bytes,
        .output_bytes = unit->kind == OX_UNIT_HEAD ? 0 : act_bytes,
        .kept_bytes = ox_unit_kept_bytes(shape, unit_idx),
        .forward = describe_pass(shape, unit_idx, OX_PASS_FORWARD),
        .backward = describe_pass(shape, unit_idx, OX_PASS_BACKWARD),
        .forward_kept = describe_pass(shape, unit_idx, OX_PASS_FORWARD_KEPT),
        .backward_kept = describe_pass(shape, unit_idx, OX_PASS_BACKWARD_KEPT),
        .grad_idx = grad_idx,
        .table_unit_idx = OX_NONE,
        .table_grad_idx = OX_NONE,
    };
}

/* Lets the head use another unit's table, with a gradient of its own for this use. */
static void tie_head(const struct ox_model *model, struct ox_engine_plan *plan, uint32_t grad_idx) {
    const uint32_t owner_idx = model->table.unit_idx, added_to = plan->units[owner_idx].grad_idx;
    const uint64_t table = (uint64_t)model->config.vocab * model->config.hidden;
    OX_ASSERT(model->table.offset == 0); /* the two gradients are added from their first elements on */
    plan->units[model->head_idx].table_unit_idx = owner_idx;
    plan->units[model->head_idx].table_grad_idx = grad_idx;
    plan->grads[added_to].addend = grad_idx;
    plan->grads[grad_idx] = (struct ox_plan_grad){.unit_idx = owner_idx, .added_to = added_to, .addend = OX_NONE,
                                                  .elem_count = ox_align_up(table, OX_GROUP_ELEMS)};
}

static void describe_model(const struct ox_engine_config *config, struct ox_engine_plan *plan) {
    const struct ox_model *const model = config->model;
    const struct ox_shape shape = shape_of(config);
    uint32_t grad_count = 0;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        const uint32_t unit_idx = model->stages[i], grad_idx = grad_count++;
        const uint64_t elems = model->units[unit_idx].elem_count;
        plan->unit_elems[unit_idx] = elems;
        plan->stages[i] = unit_idx;
        plan->units[unit_idx] = describe_unit(&shape, i, grad_idx);
        plan->grads[grad_idx] = (struct ox_plan_grad){
            .unit_idx = unit_idx, .added_to = OX_NONE, .addend = OX_NONE, .elem_count = elems};
    }
    if (model->table.unit_idx != model->head_idx) {
        tie_head(model, plan, grad_count++);
    }
    plan->input.budget = config->budget;
    plan->input.model = (struct ox_plan_model){
        .units = plan->units,
        .grads = plan->grads,
        .stages = plan->stages,
        .unit_count = model->unit_count,
        .grad_count = grad_count,
        .stage_count = model->unit_count,
        .micro_batches = config->micro_batches,
        .batch_bytes = ox_align_up((uint64_t)shape.rows * 3 * sizeof(int32_t), 64),
        .const_bytes = rope_floats(config) * 2 * sizeof(float),
        .fp32 = config->fp32,
        .joins = shape.compute.real == OX_REAL_F32,
        .grad_bf16 = config->grad_bf16,
        .eval_only = config->eval_only,
    };
}

/* Sizes of the state, which are all that the planner needs of its format. */
static struct ox_state_sizes state_sizes(const struct ox_engine_config *config) {
    const struct ox_state_layout group = ox_state_layout_of(config->state, OX_GROUP_ELEMS);
    return (struct ox_state_sizes){
        .lo_per_group = (uint32_t)(OX_GROUP_ELEMS * ox_lo_bytes(config->state.moments)),
        .rest_per_group = (uint32_t)(group.end - group.m_offset),
    };
}

static void check_sizes(const struct ox_engine_config *config, const struct ox_shard_table *table, uint64_t elems) {
    const struct ox_state_layout layout = ox_state_layout_of(config->state, elems);
    OX_ASSERT(layout.lo_bytes == ox_shard_lo_bytes(table, elems) && layout.m_offset == layout.lo_bytes);
    OX_ASSERT(layout.bytes == ox_shard_state_bytes(table, elems));
}

static enum ox_status open_table(const struct ox_engine_config *config, struct ox_engine_plan *plan) {
    const uint32_t unit_count = config->model->unit_count;
    const enum ox_status status =
        ox_shard_table_open(plan->unit_elems, unit_count, config->chunk_elems, state_sizes(config), &plan->table);
    for (uint32_t i = 0; i < unit_count && status == OX_OK; i++) {
        check_sizes(config, &plan->table, plan->unit_elems[i]);
        for (uint32_t k = 0; k < plan->table.shards[i].chunk_count; k++) {
            check_sizes(config, &plan->table, ox_shard_chunk(&plan->table, i, k).count);
        }
    }
    return status;
}

static enum ox_status check_shape(const struct ox_engine_config *config) {
    const struct ox_model_config *const model = &config->model->config;
    if (config->seq > model->contexts) {
        return ox_fail(OX_E_CONFIG, "--max-seq-length %u: the model has %u positions "
                       "(max_position_embeddings); use at most that", config->seq, model->contexts);
    }
    uint64_t rows = 0;
    if (!ox_mul_u64(config->batch, config->seq, &rows) || rows > (UINT32_C(1) << 24)) {
        return ox_fail(OX_E_CONFIG, "--per-device-train-batch-size %u of %u tokens: a micro-batch has at most 16777216 "
                       "tokens; use more --gradient-accumulation-steps instead", config->batch, config->seq);
    }
    return OX_OK;
}

void ox_engine_sim_setup(const struct ox_engine_config *config, const struct ox_plan_input *input,
                         struct ox_sim_setup *out) {
    *out = (struct ox_sim_setup){.machine = config->machine, .input = input,
                                 .compute_threads = config->machine_compute_threads,
                                 .optimizer_threads = config->machine_optimizer_threads,
                                 .run_ahead_tasks = OX_RUN_AHEAD_TASKS};
}

static enum ox_status choose(const struct ox_engine_config *config, struct ox_engine_plan *plan) {
    struct ox_sim_setup setup;
    struct ox_machine nominal;
    ox_engine_sim_setup(config, &plan->input, &setup);
    if (setup.machine == NULL) {
        ox_machine_nominal(ox_processor_count(), &nominal);
        setup.machine = &nominal;
    }
    struct ox_plans plans;
    const enum ox_status status = ox_placement_choose(&plan->input, &plan->table, &config->request, &setup, &plans);
    plan->train = plans.train;
    plan->eval = plans.eval;
    plan->eval_after_step = plans.eval_after_step;
    return status;
}

enum ox_status ox_engine_plan_open(const struct ox_engine_config *config, struct ox_engine_plan **out) {
    *out = NULL;
    OX_ASSERT(config->batch > 0 && config->seq > 0 && config->micro_batches > 0 && config->compute_threads > 0);
    OX_ASSERT(!config->fp32 || config->state.moments != OX_MOMENTS_Q8); /* compute needs the whole master */
    OX_ASSERT(on_cpu(config) || !config->budget.unified);
    enum ox_status status = check_shape(config);
    if (status != OX_OK) {
        return status;
    }
    const size_t unit_count = config->model->unit_count;
    struct ox_engine_plan *plan = calloc(1, sizeof *plan);
    if (plan != NULL) {
        plan->unit_elems = calloc(unit_count, sizeof *plan->unit_elems);
        plan->units = calloc(unit_count, sizeof *plan->units);
        plan->grads = calloc(unit_count + 1, sizeof *plan->grads);
        plan->stages = calloc(unit_count, sizeof *plan->stages);
    }
    if (plan == NULL || plan->unit_elems == NULL || plan->units == NULL || plan->grads == NULL ||
        plan->stages == NULL) {
        ox_engine_plan_close(&plan);
        return ox_fail(OX_E_NOMEM, "plan: no memory for its model");
    }
    describe_model(config, plan);
    status = open_table(config, plan);
    if (status == OX_OK) {
        plan->input.budget.nvme_fixed_bytes = config->nvme_count * ox_store_fixed_bytes(2 * plan->table.chunk_count);
        status = choose(config, plan);
    }
    if (status != OX_OK && (plan->train == NULL || plan->train->task_count == 0)) {
        ox_engine_plan_close(&plan);
        return status;
    }
    *out = plan; /* on failure too: the nearest plan, for its ledger */
    return status;
}

void ox_engine_plan_close(struct ox_engine_plan **plan_ptr) {
    struct ox_engine_plan *const plan = *plan_ptr;
    if (plan == NULL) {
        return;
    }
    ox_plan_close(&plan->eval_after_step);
    ox_plan_close(&plan->eval);
    ox_plan_close(&plan->train);
    ox_shard_table_close(&plan->table);
    free(plan->stages);
    free(plan->grads);
    free(plan->units);
    free(plan->unit_elems);
    free(plan);
    *plan_ptr = NULL;
}

uint64_t ox_engine_plan_peak_bytes(const struct ox_engine_plan *plan, enum ox_tier tier) {
    const struct ox_plan *const plans[] = {plan->train, plan->eval, plan->eval_after_step};
    uint64_t bytes = 0;
    for (unsigned i = 0; i < sizeof plans / sizeof *plans; i++) {
        bytes = plans[i] == NULL ? bytes : ox_max_u64(bytes, plans[i]->peak_bytes[tier]);
    }
    return bytes;
}

/* ---- lanes and memory -------------------------------------------------------------------------- */

enum { HOST_QUEUE_LEN = 256 };

static enum ox_status open_lanes(struct ox_engine *engine) {
    enum ox_status status = OX_OK;
    for (int i = 0; i < OX_LANE_COUNT && status == OX_OK; i++) {
        const bool of_device = i == OX_LANE_COMPUTE || i == OX_LANE_H2D || i == OX_LANE_D2H;
        const struct ox_host_lane_config host = {
            .label = ox_lane_name((enum ox_lane_id)i),
            .owner = engine,
            .queue_len = HOST_QUEUE_LEN,
            .chaos_seed = engine->config.chaos_seed,
            .chaos_ns_max = OX_CHAOS_NS_MAX,
        };
        status = of_device ? ox_device_lane_open(engine->device, host.label, &engine->lanes[i])
                           : ox_host_lane_open(&host, &engine->lanes[i]);
    }
    return status;
}

static enum ox_status make_constants(struct ox_engine *engine) {
    const uint64_t count = rope_floats(&engine->config);
    if (count == 0) {
        return OX_OK;
    }
    const struct ox_model_config *const model = &engine->config.model->config;
    double *const inv_freq = calloc(model->head_dim / 2, sizeof *inv_freq);
    if (inv_freq == NULL) {
        return ox_fail(OX_E_NOMEM, "rotary tables: no memory");
    }
    ox_model_rope_inv_freq(model, inv_freq);
    const struct ox_plan *const plan = engine->plan->train;
    float *const tables = ox_tiers_resident(&engine->tiers, plan, plan->const_buf).ptr;
    struct ox_run run = {.ops = &engine->ops, .lane = engine->lanes[OX_LANE_COMPUTE]};
    OX_RUN(&run, rope_table, .cos_table = tables, .sin_table = tables + count, .inv_freq = inv_freq,
           .contexts = engine->config.seq, .half_dim = model->head_dim / 2);
    OX_TRY(run.status, ox_lane_drain(run.lane));
    free(inv_freq);
    return run.status;
}

static enum ox_status open_memory(struct ox_engine *engine) {
    const struct ox_plan *const train = engine->plan->train;
    const struct ox_plan *const plans[] = {train, engine->plan->eval, engine->plan->eval_after_step};
    uint64_t bytes[OX_TIER_COUNT];
    uint32_t task_max = 0;
    for (int tier = 0; tier < OX_TIER_COUNT; tier++) {
        bytes[tier] = ox_engine_plan_peak_bytes(engine->plan, (enum ox_tier)tier);
    }
    for (unsigned i = 0; i < sizeof plans / sizeof *plans; i++) {
        task_max = plans[i] != NULL && plans[i]->task_count > task_max ? plans[i]->task_count : task_max;
    }
    engine->marks = calloc(task_max + 1u, sizeof *engine->marks);
    engine->due.pending = calloc(2 * (size_t)train->unit_count, 1);
    engine->due.now = engine->due.pending == NULL ? NULL : engine->due.pending + train->unit_count;
    engine->packed = calloc(engine->config.micro_batches, sizeof *engine->packed);
    engine->unclipped_steps = UINT32_MAX / 2; /* so the first step speculates */
    if (engine->marks == NULL || engine->due.pending == NULL || engine->packed == NULL) {
        return ox_fail(OX_E_NOMEM, "engine: no memory for %u marks", task_max);
    }
    return ox_tiers_open(engine->device, bytes, &engine->tiers);
}

static enum ox_status open_device(struct ox_engine *engine) {
    if (!on_cpu(&engine->config)) {
        const enum ox_status status = ox_cuda_device_open(&engine->config.cuda, &engine->device);
        if (status == OX_OK) {
            ox_ops_init_cuda(engine->device, &engine->ops);
        }
        return status;
    }
    const struct ox_cpu_device_config device = {.thread_count = engine->config.compute_threads,
                                                .chaos_seed = engine->config.chaos_seed,
                                                .chaos_ns_max = OX_CHAOS_NS_MAX};
    ox_ops_init_cpu(&engine->ops);
    ox_ops_optim_init_cpu(&engine->ops);
    return ox_cpu_device_open(&device, &engine->device);
}

/* Refuses a part of a model, whose activations would have to cross to an engine that has the next part. */
static enum ox_status check_whole(const struct ox_plan_model *model) {
    const bool is_part = ox_plan_has_outside_input(model) || ox_plan_has_outside_output(model);
    return !is_part ? OX_OK
                    : ox_fail(OX_E_CONFIG, "the model begins without an embedding or ends without a head: a part of a "
                              "model can be planned, but not run; give the whole model");
}

static enum ox_status open_parts(struct ox_engine *engine) {
    enum ox_status status = check_whole(&engine->plan->input.model);
    OX_TRY(status, open_device(engine));
    OX_TRY(status, open_memory(engine));
    OX_TRY(status, ox_pool_open(engine->config.optimizer_threads, &engine->optim_pool));
    OX_TRY(status, ox_pool_open(1, &engine->reduce_pool));
    OX_TRY(status, open_lanes(engine));
    return status == OX_OK ? make_constants(engine) : status;
}

enum ox_status ox_engine_open(const struct ox_engine_config *config, struct ox_engine_plan **plan,
                              struct ox_engine **out) {
    *out = NULL;
    OX_ASSERT((*plan)->train != NULL && (*plan)->eval != NULL && config->optimizer_threads > 0);
    struct ox_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL) {
        ox_engine_plan_close(plan);
        return ox_fail(OX_E_NOMEM, "engine: no memory");
    }
    engine->config = *config;
    engine->plan = *plan;
    *plan = NULL;
    engine->shape = shape_of(config);
    engine->batch_bytes = engine->plan->input.model.batch_bytes;
    const enum ox_status status = open_parts(engine);
    if (status != OX_OK) {
        ox_engine_close(&engine);
        return status;
    }
    *out = engine;
    return OX_OK;
}

void ox_engine_close(struct ox_engine **engine_ptr) {
    struct ox_engine *const engine = *engine_ptr;
    if (engine == NULL) {
        return;
    }
    ox_tracing_close(&engine->tracing);
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        ox_lane_close(&engine->lanes[i]);
    }
    ox_stream_close(&engine->stream);
    ox_store_port_close(&engine->chunk_slots.transfers.port);
    ox_store_port_close(&engine->write_port);
    ox_store_port_close(&engine->read_port);
    ox_store_close(&engine->store);
    ox_pool_close(&engine->reduce_pool);
    ox_pool_close(&engine->optim_pool);
    ox_tiers_close(&engine->tiers);
    ox_device_close(&engine->device);
    free(engine->packed);
    free(engine->due.pending);
    free(engine->marks);
    ox_engine_plan_close(&engine->plan);
    free(engine);
    *engine_ptr = NULL;
}

const struct ox_engine_plan *ox_engine_plan_of(const struct ox_engine *engine) {
    return engine->plan;
}

const struct ox_engine_config *ox_engine_config_of(const struct ox_engine *engine) {
    return &engine->config;
}

struct ox_pool *ox_engine_pool(const struct ox_engine *engine) {
    return engine->optim_pool;
}

const struct ox_store *ox_engine_store(const struct ox_engine *engine) {
    return engine->store;
}

void ox_engine_take_op_seconds(struct ox_engine *engine, struct ox_ops_seconds *out) {
    *out = (struct ox_ops_seconds){0};
    if (on_cpu(&engine->config)) {
        ox_ops_cpu_take_seconds(engine->device, out);
    }
}

void ox_engine_count(struct ox_engine *engine, enum ox_link link, enum ox_traffic_kind kind, uint64_t bytes) {
    if (engine->config.budget.unified && (link == OX_LINK_H2D || link == OX_LINK_D2H)) {
        return;
    }
    __atomic_fetch_add(&engine->traffic.crossed[link][kind], bytes, __ATOMIC_RELAXED);
}

/* ---- the store ----------------------------------------------------------------------------------- */

/* Hash of all that the content of extents depends on, by which a store of another model or format, or with other
 * chunks, is refused. AdamW in fp32 adds nothing to the hash, because older stores have no format recorded. */
static uint64_t geometry_hash(const struct ox_engine *engine) {
    const struct ox_model *const model = engine->config.model;
    uint64_t hash = ox_hash_seed(&engine->config.chunk_elems, 1);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        const uint64_t words[] = {hash, tensor->unit_idx, tensor->offset, tensor->shape[0], tensor->shape[1],
                                  ox_hash64(tensor->name, strlen(tensor->name), 0)};
        hash = ox_hash_seed(words, sizeof words / sizeof *words);
    }
    const struct ox_state_format state = engine->config.state;
    const uint64_t words[] = {hash, state.kind, state.moments};
    return state.kind == OX_OPTIM_ADAMW && state.moments == OX_MOMENTS_F32
               ? hash : ox_hash_seed(words, sizeof words / sizeof *words);
}

/* Pins the optimizer's slots for the drives, if the kernel allows it: most transfers go through them. */
static void register_slots(struct ox_engine *engine) {
    const struct ox_plan *const plan = engine->plan->train;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        if (ox_task_updates_on_host(&plan->tasks[i])) {
            const struct ox_view slots = ox_tiers_view_if(&engine->tiers, plan, &plan->tasks[i], OX_USE_STREAM);
            if (slots.ptr != NULL) {
                ox_stream_register(engine->stream, &(struct ox_io_region){slots.ptr, slots.bytes});
            }
            return;
        }
    }
}

static enum ox_status open_ports(struct ox_engine *engine) {
    enum ox_status status = ox_store_port_open(engine->store, &engine->read_port);
    OX_TRY(status, ox_store_port_open(engine->store, &engine->write_port));
    OX_TRY(status, ox_store_port_open(engine->store, &engine->chunk_slots.transfers.port));
    OX_TRY(status, ox_optim_open(engine));
    if (status == OX_OK) {
        register_slots(engine);
    }
    return status;
}

static enum ox_status open_store(struct ox_engine *engine, const uint64_t run_id[2], bool create) {
    OX_ASSERT(engine->store == NULL && engine->config.nvme_count > 0 && engine->config.io != NULL);
    const struct ox_shard_table *const table = &engine->plan->table;
    struct ox_extent_spec *const extents = calloc(2 * (size_t)table->chunk_count, sizeof *extents);
    if (extents == NULL) {
        return ox_fail(OX_E_NOMEM, "store: no memory for %u extents", 2 * table->chunk_count);
    }
    ox_shard_extents(table, extents);
    const struct ox_store_config config = {
        .backend = engine->config.io,
        .folders = engine->config.nvme_folders,
        .bytes_max = engine->config.nvme_bytes,
        .speeds = engine->config.budget.drive_speeds,
        .drive_count = engine->config.nvme_count,
        .extents = extents,
        .extent_count = 2 * table->chunk_count,
        .spool_bytes = engine->plan->train->spool_bytes,
        .spool_count = engine->plan->train->spool_count,
        .run_id = {run_id[0], run_id[1]},
        .config_hash = geometry_hash(engine),
        .queue_depth = engine->config.queue_depth,
        .generations = ox_plan_generations(&engine->config.budget),
    };
    enum ox_status status = create ? ox_store_create(&config, &engine->store)
                                   : ox_store_open(&config, &engine->store);
    free(extents);
    return status == OX_OK ? open_ports(engine) : status;
}

enum ox_status ox_engine_store_create(struct ox_engine *engine, const uint64_t run_id[2]) {
    return open_store(engine, run_id, true);
}

/* Loads planes that live in memory from the last commit. It reads those that stay on the drives too, to verify their
 * checksums: damage is then found while the run can still use a checkpoint. This reads as much as one step does. */
static enum ox_status load_and_verify(struct ox_engine *engine) {
    enum ox_status status = OX_OK;
    for (uint32_t unit_idx = 0; unit_idx < engine->plan->table.unit_count && status == OX_OK; unit_idx++) {
        status = ox_engine_load_unit(engine, unit_idx, engine->config.stop);
    }
    return status;
}

enum ox_status ox_engine_store_open(struct ox_engine *engine, const uint64_t run_id[2]) {
    const enum ox_status status = open_store(engine, run_id, false);
    if (status != OX_OK) {
        return status;
    }
    struct ox_store_info info;
    ox_store_info(engine->store, &info);
    engine->planes.step = info.step;
    return info.committed ? load_and_verify(engine) : OX_OK;
}
