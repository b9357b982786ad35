/* Runs the tasks of host lanes: drive reads and writes, reductions, norm, update, commit. Each runs on its
 * lane's thread; the plan has ordered everything it touches. */
#include "engine/step/executor/executor.h"
#include "engine/step/link/link.h"
#include "engine/step/pending/overlap.h"
#include "engine/step/planes/routing.h"
#include "engine/step/rank/recorder.h"
#include "engine/step/update/update.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "cpu_optim/norm.h"
#include "base/clock.h"

#include <math.h>
#include <string.h>

struct task_run {
    struct ox_rank *rank;
    const struct ox_plan *plan;
    const struct ox_task *task;
};

static struct ox_view view(const struct task_run *run, enum ox_use_role role) {
    return ox_tiers_view(&run->rank->tiers, run->plan, run->task, role);
}

/* ---- drives --------------------------------------------------------------------------------------- */

static enum ox_status read_weights(const struct task_run *run) {
    return ox_rank_read_planes(run->rank, run->rank->read_port, run->task->unit_idx,
                               view(run, OX_USE_TARGET).ptr);
}

/* Moves an activation checkpoint as a whole, or a gradient in pieces of a chunk, so that several are in flight. */
static enum ox_status move_spooled(const struct task_run *run) {
    struct ox_rank *const rank = run->rank;
    const struct ox_task *const task = run->task;
    const bool write = task->lane == OX_LANE_NVME_WRITE, grad = task->move == OX_MOVE_GRAD;
    const uint64_t bytes = ox_plan_move_bytes(&rank->plan->input, task);
    const uint64_t elems = !grad ? bytes : task->last ? ox_plan_grad_slice(&rank->plan->input, task->grad_idx)
                                                      : ox_grad_elems(rank, task->grad_idx) * (task->slot + 1);
    const uint64_t width = bytes / ox_max_u64(elems, 1);
    const uint64_t piece_bytes = grad ? rank->plan->table.shards[task->unit_idx].chunk_elems * width : bytes;
    struct ox_transfers transfers = {.port = write ? rank->write_port : rank->read_port};
    unsigned char *const buffer = view(run, write ? OX_USE_SOURCE : OX_USE_TARGET).ptr;
    enum ox_status status = OX_OK;
    for (uint64_t from = 0; from < bytes && status == OX_OK; from += piece_bytes) {
        const uint64_t len = ox_min_u64(piece_bytes, bytes - from);
        status = ox_transfers_submit(&transfers, 0, &(struct ox_store_op){
            .kind = write ? OX_STORE_SPOOL_WRITE : OX_STORE_SPOOL_READ,
            .extent_idx = rank->spool_first + (grad ? ox_plan_spool_grad(run->plan, task->grad_idx)
                                                    : ox_plan_spool_act(run->plan, task->stage_idx, task->mb_idx)),
            .buffer = buffer + from,
            .spool_from = from,
            .spool_len = len,
        }, 1);
        ox_rank_count(rank, ox_lane_link((enum ox_lane_id)task->lane), ox_task_traffic(task), len);
    }
    return ox_transfers_drain(&transfers);
}

/* ---- reductions ------------------------------------------------------------------------------------ */


static void reduce(const struct task_run *run) {
    struct ox_rank *const rank = run->rank;
    const uint32_t unit_idx = run->task->unit_idx;
    const struct ox_plan_grad *const grads = rank->plan->input.model.grads;
    const struct ox_plan_grad *const first_use = &grads[ox_unit_grad_idx(rank, unit_idx)];
    const bool is_sum = ox_plan_adds_at_rest(first_use);
    uint32_t addend = is_sum ? first_use->addend : OX_NONE;
    const uint64_t elems = ox_slice_elems(rank, unit_idx), first = ox_slice_first(rank, unit_idx);
    void *const grad = view(run, OX_USE_GRAD).ptr;
    double *const partials = view(run, OX_USE_NORM).ptr;
    for (uint32_t nth = 1; addend != OX_NONE; nth++, addend = grads[addend].addend) {
        const struct ox_view other =
            ox_tiers_nth_view_if(&rank->tiers, run->plan, run->task, OX_USE_GRAD, nth);
        const uint64_t past = ox_max_u64(first, ox_grad_elems(rank, addend)); /* it may end within the slice */
        ox_grad_add(rank->reduce_pool, grad, other.ptr, ox_min_u64(elems, past - first));
    }
    if (is_sum && rank->config.grad_bf16) {
        ox_grad_to_bf16(rank->reduce_pool, grad, grad, elems);
    }
    ox_sumsq_partials(rank->reduce_pool, grad, rank->config.grad_bf16 ? OX_GRAD_BF16 : OX_GRAD_F32, elems,
                      partials + ox_norm_partials_first(rank, unit_idx) + first / OX_GROUP_ELEMS);
}

/* A norm beyond this would overflow the squares of Adam's second moment in fp32. */
static const double NORM_MAX = 1e18;

/* Computes the global norm over all units in order, and the clip factor as torch.nn.utils.clip_grad_norm_ does. */
static void decide(const struct task_run *run) {
    struct ox_rank *const rank = run->rank;
    struct ox_step_state *const step = &rank->step;
    const double *const partials = view(run, OX_USE_NORM).ptr;
    const double *const losses = view(run, OX_USE_LOSS).ptr;
    const uint32_t left = rank->plan->input.model.loss_values, shown = left < OX_PAIR_VALUES ? left : OX_PAIR_VALUES;
    const uint64_t stride = ox_plan_report_bytes(&rank->plan->input.model) / sizeof(double);
    double loss = 0;
    for (uint32_t i = 0; i < ox_plan_sums(&rank->plan->input).micro_batches; i++) {
        const double *const values = losses + i * stride;
        loss += values[0];
        for (uint32_t k = 0; k < shown; k++) {
            step->values[k] += values[k] / (double)step->input->target_count;
        }
    }
    const double scaled = sqrt(ox_norm_square_sum(rank, partials));
    const double norm = isnan(scaled) ? (double)NAN : scaled * step->unscale; /* of one sign */
    double scale = 1.0;
    if (step->input->max_grad_norm > 0 && norm > 0) {
        const double wanted = step->input->max_grad_norm / (norm + 1e-6);
        scale = wanted < 1.0 ? wanted : 1.0;
    }
    ox_routing_decide(rank, losses);
    step->loss = loss / (double)step->input->target_count;
    step->grad_norm = norm;
    step->grad_scale = scale;
    step->overflow = !isfinite(scaled); /* squares of finite gradients do not overflow: the sums are double */
    step->finite = isfinite(step->loss) && isfinite(norm) && norm * scale < NORM_MAX;
    struct ox_optim_settings settings = step->input->adam;
    settings.grad_scale = scale * step->unscale;
    ox_optim_hyper_init(&settings, &step->hyper);
}

/* Waits until all that the optimizer wrote is on the drives. */
static enum ox_status drain_writes(const struct task_run *run) {
    const uint64_t begin_ns = ox_clock_ns();
    const enum ox_status status = ox_optim_drain(run->rank);
    const uint64_t parts_ns[OX_TRACE_PART_COUNT] = {[OX_TRACE_PART_WRITES] = ox_clock_ns() - begin_ns};
    ox_tracing_parts(run->rank->tracing, (uint32_t)(run->task - run->plan->tasks), parts_ns);
    return status;
}

static enum ox_status commit(const struct task_run *run) {
    struct ox_rank *const rank = run->rank;
    const enum ox_status status = drain_writes(run);
    return status == OX_OK ? ox_overlap_commit(rank, run->task) : status;
}

static enum ox_status run_task(const struct task_run *run) {
    if (run->task->lane >= OX_LANE_LINK) {
        return ox_link_run(run->rank, run->plan, run->task);
    }
    switch ((enum ox_task_kind)run->task->kind) {
    case OX_TASK_MOVE:
        return run->task->move == OX_MOVE_WEIGHTS ? read_weights(run) : move_spooled(run);
    case OX_TASK_REDUCE:
        reduce(run);
        return OX_OK;
    case OX_TASK_NORM:
        decide(run);
        return ox_link_agree(run->rank);
    case OX_TASK_BEGIN:
        return ox_overlap_begin_transaction(run->rank, run->task);
    case OX_TASK_UPDATE:
        return ox_optim_run(run->rank, run->plan, run->task);
    case OX_TASK_WRITTEN:
        return drain_writes(run);
    case OX_TASK_COMMIT:
        return commit(run);
    default:
        OX_ASSERT(!"a task of this kind has no host lane");
        return OX_E_CONFIG;
    }
}

/* With chaos on, leaves NaN where a read is left out. */
static enum ox_status leave_out(const struct task_run *run) {
    if (run->task->asks != 0 && run->rank->config.chaos_seed != 0) {
        const struct ox_view target = view(run, OX_USE_TARGET);
        memset(target.ptr, 0xff, target.bytes);
    }
    return OX_OK;
}

enum ox_status ox_host_task_run(void *rank, const void *host_task) {
    const struct ox_host_task *const given = host_task;
    const struct task_run run = {
        .rank = rank, .plan = given->plan, .task = &given->plan->tasks[given->task_idx]};
    char label[OX_RANGE_BYTES] = "";
    if (ox_ranges_used()) {
        ox_tracing_label(run.task, label);
    }
    ox_range_begin(label);
    const enum ox_status status = given->idle ? leave_out(&run) : run_task(&run);
    ox_range_end();
    ox_link_abort(rank, status); /* no rank may wait for this one any more */
    return status;
}
