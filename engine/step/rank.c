/* Opens and closes a rank: its device, memory, lanes and threads. */
#include "engine/step/engine_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/pool.h"
#include "engine/step/link/link.h"
#include "engine/step/planes/routing.h"
#include "engine/step/rank/recorder.h"
#include "engine/step/update/ops_optim.h"
#include "engine/step/update/update.h"

#include <stdlib.h>
#include <string.h>

/* The issuing thread is never that far ahead, so that it waits for no queue, of which the proof knows nothing. */
enum { HOST_QUEUE_LEN = 256 };
_Static_assert((int)HOST_QUEUE_LEN > 2 * (int)OX_RUN_AHEAD_TASKS, "a task and a check of what it gathered");

/* Whether some plan has a task for a lane. */
static bool is_used(const struct ox_rank *rank, uint32_t lane) {
    const struct ox_plan *const plans[] = {rank->plan->train, rank->plan->eval, rank->plan->eval_after_step};
    for (unsigned k = 0; k < sizeof plans / sizeof *plans; k++) {
        for (uint32_t i = 0; plans[k] != NULL && i < plans[k]->task_count; i++) {
            if (plans[k]->tasks[i].lane == lane) {
                return true;
            }
        }
    }
    return false;
}

/* A failure ends what others wait for from this rank, also where a lane finds it in what it waits for itself: what the
 * rank would receive meanwhile may wait for what it does not send any more. */
static void end_waits(void *rank, enum ox_status status) {
    struct ox_first_failure failure = {0};
    ox_first_failure_note(&failure, status); /* the lane takes its text when this returns */
    ox_link_abort(rank, status);
    ox_link_stop(rank);
    const enum ox_status said = ox_first_failure_result(&failure);
    (void)said;
}

/* Each lane of the host is a thread, so only those are opened that have tasks; those of the device are used between
 * steps too. */
static enum ox_status open_lanes(struct ox_rank *rank) {
    enum ox_status status = OX_OK;
    rank->lane_count = (uint32_t)ox_plan_lane_count(&rank->plan->input);
    for (uint32_t i = 0; i < rank->lane_count && status == OX_OK; i++) {
        const bool of_device = i == OX_LANE_COMPUTE || i == OX_LANE_H2D || i == OX_LANE_D2H;
        const struct ox_host_lane_config host = {
            .label = ox_lane_name((enum ox_lane_id)i),
            .owner = rank,
            .failed = end_waits,
            .queue_len = rank->config.window > 0 ? 2 * rank->config.window + 1 : HOST_QUEUE_LEN,
            .chaos_seed = rank->config.chaos_seed,
            .chaos_ns_max = OX_CHAOS_NS_MAX,
        };
        status = of_device           ? ox_device_lane_open(rank->device, host.label, &rank->lanes[i])
                 : is_used(rank, i) ? ox_host_lane_open(&host, &rank->lanes[i]) : OX_OK;
    }
    return status;
}

static enum ox_status make_constants(struct ox_rank *rank) {
    const uint64_t count = ox_engine_rope_floats(&rank->config);
    if (count == 0) {
        return OX_OK;
    }
    const struct ox_plan *const plan = rank->plan->train;
    float *const tables = ox_tiers_resident(&rank->tiers, plan, plan->const_buf).ptr;
    struct ox_run run = {.ops = &rank->ops, .lane = rank->lanes[OX_LANE_COMPUTE]};
    return ox_angles_make(&run, &rank->config.model->config, rank->config.seq, tables, tables + count);
}

static enum ox_status open_memory(struct ox_rank *rank) {
    const struct ox_plan *const train = rank->plan->train;
    const struct ox_plan *const plans[] = {train, rank->plan->eval, rank->plan->eval_after_step};
    uint64_t bytes[OX_TIER_COUNT];
    uint32_t task_max = 0;
    /* All plans share one set of arenas, so the largest decides; evaluation and training never run at a time. */
    for (int tier = 0; tier < OX_TIER_COUNT; tier++) {
        bytes[tier] = ox_engine_plan_peak_bytes(rank->plan, (enum ox_tier)tier);
    }
    for (unsigned i = 0; i < sizeof plans / sizeof *plans; i++) {
        task_max = plans[i] != NULL && plans[i]->task_count > task_max ? plans[i]->task_count : task_max;
    }
    rank->marks = calloc(task_max + 1u, sizeof *rank->marks);
    rank->due.pending = calloc(2 * (size_t)train->unit_count, 1);
    rank->due.now = rank->due.pending == NULL ? NULL : rank->due.pending + train->unit_count;
    rank->due.saved_chunks = calloc(train->unit_count, sizeof *rank->due.saved_chunks);
    rank->packed = calloc(rank->config.micro_batches, sizeof *rank->packed);
    rank->totals = calloc(train->unit_count, sizeof *rank->totals);
    rank->reports = calloc(1, ox_plan_reports_bytes(&rank->plan->input) + sizeof *rank->reports);
    rank->order = ox_order_at_start();
    if (rank->marks == NULL || rank->due.pending == NULL || rank->due.saved_chunks == NULL || rank->packed == NULL ||
        rank->totals == NULL || rank->reports == NULL) {
        return ox_fail(OX_E_NOMEM, "engine: no memory for %u marks", task_max);
    }
    const enum ox_status status = ox_tiers_open(rank->device, rank->optim_pool, bytes, &rank->tiers);
    for (uint32_t i = 0; i < train->buf_count && status == OX_OK; i++) { /* nothing is left to be sent */
        if (train->bufs[i].kind == OX_BUF_RESIDUAL) {
            memset(ox_rank_resident_ptr(rank, i), 0, train->bufs[i].bytes);
        }
    }
    return status;
}

static enum ox_status open_device(struct ox_rank *rank) {
    if (!ox_engine_on_cpu(&rank->config)) {
        const enum ox_status status = ox_cuda_device_open(&rank->config.cuda, &rank->device);
        if (status == OX_OK) {
            ox_ops_init_cuda(rank->device, &rank->ops);
        }
        return status;
    }
    const struct ox_cpu_device_config device = {.thread_count = rank->config.compute_threads,
                                                .products = ox_engine_precision(&rank->config)->products,
                                                .chaos_seed = rank->config.chaos_seed,
                                                .chaos_ns_max = OX_CHAOS_NS_MAX};
    ox_ops_init_cpu(&rank->ops);
    ox_ops_optim_init_cpu(&rank->ops);
    return ox_cpu_device_open(&device, &rank->device);
}

/* Refuses a part of a model, whose activations would have to cross to an engine that has the next part. */
static enum ox_status check_whole(const struct ox_plan_model *model) {
    const bool is_part = ox_plan_has_outside_input(model) || ox_plan_has_outside_output(model);
    return !is_part ? OX_OK
                    : ox_fail(OX_E_CONFIG, "the model begins without an embedding or ends without a head: a part of a "
                              "model can be planned, but not run; give the whole model");
}

static enum ox_status open_parts(struct ox_rank *rank) {
    enum ox_status status = check_whole(&rank->plan->input.model);
    OX_THEN(status, open_device(rank));
    OX_THEN(status, ox_pool_open(rank->config.optimizer_threads, &rank->optim_pool));
    OX_THEN(status, ox_optim_open_muon(rank));
    OX_THEN(status, open_memory(rank));
    OX_THEN(status, ox_guard_open(rank));
    OX_THEN(status, ox_routing_open(rank));
    OX_THEN(status, ox_pool_open(1, &rank->reduce_pool));
    OX_THEN(status, open_lanes(rank));
    OX_THEN(status, ox_link_open_routes(rank));
    return status == OX_OK ? make_constants(rank) : status;
}

enum ox_status ox_rank_open(const struct ox_engine_config *config, const struct ox_engine_plan *plan,
                            const struct ox_shard_table *whole, struct ox_rank **out) {
    *out = NULL;
    OX_ASSERT(plan->train != NULL && plan->eval != NULL && config->optimizer_threads > 0);
    struct ox_rank *rank = calloc(1, sizeof *rank);
    if (rank == NULL) {
        return ox_fail(OX_E_NOMEM, "engine: no memory");
    }
    rank->idx = plan->input.ranks.idx;
    rank->leads = rank->idx == 0;
    rank->config = *config;
    rank->plan = plan;
    rank->whole = whole;
    rank->shape = ox_engine_shape(config);
    rank->shape.groups.first = ox_plan_group(&plan->input, OX_AXIS_CONTEXT).idx * rank->shape.groups.count;
    rank->shape.features.first = ox_plan_tensor_at(&plan->input) * rank->shape.features.count;
    rank->shape.experts.at = ox_plan_group(&plan->input, OX_AXIS_EXPERT).idx;
    rank->batch_bytes = plan->input.model.batch_bytes;
    const struct ox_sums sums = ox_plan_sums(&plan->input);
    rank->loss_first = ox_sums_first(&sums);
    const enum ox_status status = open_parts(rank);
    if (status != OX_OK) {
        ox_rank_close(&rank);
        return status;
    }
    *out = rank;
    return OX_OK;
}

void ox_rank_close(struct ox_rank **rank_ptr) {
    struct ox_rank *const rank = *rank_ptr;
    if (rank == NULL) {
        return;
    }
    ox_tracing_close(&rank->tracing);
    /* Against the order of opening: lanes end their work first, while stores, pools and memory that they use are
     * still there. */
    for (uint32_t i = 0; i < rank->lane_count; i++) {
        ox_lane_close(&rank->lanes[i]);
    }
    ox_lane_close(&rank->link_host);
    ox_rank_disconnect_store(rank);
    ox_pool_close(&rank->reduce_pool);
    ox_optim_close_muon(rank);
    ox_pool_close(&rank->optim_pool);
    ox_link_close(rank); /* it reads memory of the tiers and copies by lanes of the device */
    ox_tiers_close(&rank->tiers);
    ox_device_close(&rank->device);
    ox_routing_close(rank);
    free(rank->sums);
    free(rank->gathered);
    free(rank->packed);
    free(rank->totals);
    free(rank->reports);
    free(rank->due.pending);
    free(rank->due.saved_chunks);
    free(rank->marks);
    free(rank);
    *rank_ptr = NULL;
}

/* ---- the store ----------------------------------------------------------------------------------- */

/* Pins the optimizer's slots for the drives, if the kernel allows it: most transfers go through them. */
static void register_slots(struct ox_rank *rank) {
    const struct ox_plan *const plan = rank->plan->train;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        if (ox_task_updates_on_host(&plan->tasks[i])) {
            const struct ox_view slots = ox_tiers_view_if(&rank->tiers, plan, &plan->tasks[i], OX_USE_STREAM);
            if (slots.ptr != NULL) {
                ox_stream_register(rank->stream, &(struct ox_io_region){slots.ptr, slots.bytes});
            }
            return;
        }
    }
}

bool ox_rank_of_first_copy(const struct ox_plan_input *input) {
    return ox_plan_group(input, OX_AXIS_COPY).idx == 0;
}

void ox_rank_disconnect_store(struct ox_rank *rank) {
    ox_stream_close(&rank->stream);
    ox_store_port_close(&rank->chunk_slots.transfers.port);
    ox_store_port_close(&rank->write_port);
    ox_store_port_close(&rank->read_port);
    rank->store = NULL;
}

enum ox_status ox_rank_connect_store(struct ox_rank *rank, struct ox_store *store) {
    rank->store = store;
    enum ox_status status = ox_store_port_open(rank->store, &rank->read_port);
    OX_THEN(status, ox_store_port_open(rank->store, &rank->write_port));
    OX_THEN(status, ox_store_port_open(rank->store, &rank->chunk_slots.transfers.port));
    OX_THEN(status, ox_optim_open(rank));
    if (status == OX_OK) {
        register_slots(rank);
    }
    return status;
}
