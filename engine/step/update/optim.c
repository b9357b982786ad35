/* Updates a unit: where each plane comes from and goes to, which elements decay, what is counted. The stream
 * (engine/step/stream/optim_stream.h) moves the chunks; without a store everything is in memory and updated in place.
 *
 * Planes that live in memory are updated there; the slot then only has the copy that goes to the store, so that memory
 * may change again while the write is in flight. Writes may end after the unit's task; the commit waits for them. Of a
 * step that stays uncommitted, planes that live in memory are neither copied nor written; the stream still reads
 * gradients from the drives, if they are there, and shows chunks to the tee. */
#include "engine/step/update/update.h"
#include "engine/step/pending/overlap.h"
#include "engine/step/planes/routing.h"
#include "engine/step/rank/recorder.h"
#include "engine/step/update/ops_optim.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* A chunk and its part of a slot; pointers are NULL without a slot. */
struct chunk_run {
    struct ox_rank *rank;
    const struct ox_unit_run *unit;
    struct ox_chunk chunk;
    struct ox_chunk_layout layout;
    uint16_t *hi;
    unsigned char *state, *grad;
};

static uint64_t grad_width(const struct ox_rank *rank) {
    return rank->config.grad_bf16 ? sizeof(uint16_t) : sizeof(float);
}

static struct chunk_run chunk_run(struct ox_rank *rank, const struct ox_unit_run *unit, uint32_t chunk_idx,
                                  unsigned char *slot) {
    const struct ox_shard_table *const table = &rank->plan->table;
    struct chunk_run run = {
        .rank = rank, .unit = unit, .chunk = ox_shard_chunk(table, unit->unit_idx, chunk_idx)};
    run.layout = ox_shard_chunk_layout(&table->shards[unit->unit_idx].sizes, run.chunk.count,
                                       (uint32_t)grad_width(rank));
    if (slot != NULL) {
        run.hi = (uint16_t *)slot;
        run.state = slot + run.layout.state_offset;
        run.grad = slot + run.layout.numbers_offset;
    }
    return run;
}

static struct chunk_run run_of(void *rank, const struct ox_stream_chunk *chunk) {
    return chunk_run(rank, &chunk->run, chunk->chunk_idx, chunk->slot);
}

/* The state of a chunk from element `begin` of the unit on, where it is updated. */
static struct ox_state_planes state_at(const struct chunk_run *run, uint64_t begin) {
    const struct ox_state_format format = ox_rank_state_format(run->rank, run->unit->unit_idx);
    const uint64_t elems = run->rank->plan->table.shards[run->unit->unit_idx].elem_count;
    return run->unit->source.state != NULL
               ? ox_state_planes_at(format, run->unit->source.state, elems, begin)
               : ox_state_planes_at(format, run->state, run->chunk.count, begin - run->chunk.first);
}

/* ---- what the stream asks: reader's thread ------------------------------------------------------------ */

static uint32_t chunk_reads(void *owner, const struct ox_stream_chunk *at, struct ox_store_op *ops) {
    const struct chunk_run run = run_of(owner, at);
    struct ox_rank *const rank = owner;
    uint32_t count = 0;
    /* A plane without a place in memory is on the drives, as of the step that the update begins from. */
    if (run.unit->source.state == NULL) {
        ops[count++] = (struct ox_store_op){
            .kind = OX_STORE_READ, .extent_idx = run.chunk.state_extent_idx, .buffer = run.state,
            .step = at->run.base_step};
        ox_rank_count(rank, OX_LINK_NVME_READ, OX_TRAFFIC_STATE, run.layout.state_bytes);
    }
    if (run.unit->source.hi == NULL) {
        ops[count++] = (struct ox_store_op){
            .kind = OX_STORE_READ, .extent_idx = run.chunk.hi_extent_idx, .buffer = run.hi,
            .step = at->run.base_step};
        ox_rank_count(rank, OX_LINK_NVME_READ, OX_TRAFFIC_WEIGHTS, run.layout.hi_bytes);
    }
    /* The gradient lies in a spool, not in an extent: it is of this step and belongs to no generation. */
    if (run.unit->source.grad == NULL) {
        ops[count++] = (struct ox_store_op){
            .kind = OX_STORE_SPOOL_READ,
            .extent_idx = rank->spool_first +
                          ox_plan_spool_grad(rank->plan->train, ox_unit_grad_idx(rank, run.unit->unit_idx)),
            .buffer = run.grad,
            .spool_from = run.chunk.first * grad_width(rank),
            .spool_len = run.layout.numbers_bytes,
        };
        ox_rank_count(rank, OX_LINK_NVME_READ, OX_TRAFFIC_GRADS, run.layout.numbers_bytes);
    }
    return count;
}

/* What the update of a unit writes: all of it if it is committed, else what the drives must have; nothing where another
 * rank does. */
static struct ox_on_drives written_planes(const struct ox_rank *rank, const struct ox_unit_run *unit) {
    const struct ox_unit_rules *const rules = ox_rank_rules(rank, unit->unit_idx);
    return !rules->stored ? (struct ox_on_drives){.hi = false}
           : unit->stays  ? rules->on_drives : (struct ox_on_drives){.hi = true, .state = true};
}

/* Bytes that a chunk reads from the drives, or writes. */
static uint64_t transfer_bytes(const struct ox_rank *rank, const struct ox_stream_chunk *at, bool write) {
    const struct ox_shard_table *const table = &rank->plan->table;
    const struct ox_chunk chunk = ox_shard_chunk(table, at->run.unit_idx, at->chunk_idx);
    const struct ox_chunk_layout layout =
        ox_shard_chunk_layout(&table->shards[at->run.unit_idx].sizes, chunk.count, (uint32_t)grad_width(rank));
    if (write) {
        const struct ox_on_drives written = written_planes(rank, &at->run);
        return (written.state ? layout.state_bytes : 0) + (written.hi ? layout.hi_bytes : 0);
    }
    return (at->run.source.state == NULL ? layout.state_bytes : 0) + (at->run.source.hi == NULL ? layout.hi_bytes : 0) +
           (at->run.source.grad == NULL ? layout.numbers_bytes : 0);
}

/* Called on the stream's threads. */
static void observe_transfer(void *owner, const struct ox_stream_transfer *transfer) {
    const struct ox_rank *const rank = owner;
    ox_tracing_transfer(rank->tracing, &(struct ox_tracing_transfer){
        .unit_idx = transfer->chunk->run.unit_idx, .write = transfer->write,
        .bytes = transfer_bytes(rank, transfer->chunk, transfer->write), .busy_since_ns = transfer->busy_since_ns,
        .end_ns = transfer->end_ns});
}

/* Copies planes that live in memory into the slot: those that are to be written. */
static void gather(const struct chunk_run *run, struct ox_on_drives written) {
    if (written.state && run->unit->source.state != NULL) {
        ox_state_copy(run->rank, run->unit->unit_idx, &run->chunk, run->state, OX_STATE_TO_CHUNK);
    }
    if (written.hi && run->unit->source.hi != NULL) {
        memcpy(run->hi, run->unit->source.hi + run->chunk.first, run->chunk.count * OX_HI_BYTES);
    }
}

/* Called before the update, so that the tee sees the planes of the last commit. It is not shown memory that changed,
 * for which the update will fail. */
static void chunk_arrived(void *owner, const struct ox_stream_chunk *at) {
    struct ox_rank *const rank = owner;
    if (rank->tee.to.chunk == NULL || at->run.base_step != rank->tee.step) {
        return;
    }
    /* One step exactly: a save behind the run copies the commit that it was asked for, while later ones pass. */
    const struct chunk_run run = run_of(owner, at);
    gather(&run, (struct ox_on_drives){.hi = true, .state = true});
    const struct ox_state_format format = ox_rank_state_format(rank, run.unit->unit_idx);
    const struct ox_chunk_view view = {
        .first = run.chunk.first,
        .count = run.chunk.count,
        .format = format,
        .hi = run.hi,
        .state = ox_state_planes_at(format, run.state, run.chunk.count, 0),
        .state_bytes = run.layout.state_bytes,
        .values = rank->tee.values,
    };
    if (!ox_unit_from_store(&at->run) &&
        ox_guard_get(rank, run.unit->unit_idx, at->chunk_idx, &view) != OX_OK) {
        return;
    }
    rank->tee.to.chunk(rank->tee.to.context, run.unit->unit_idx, at->chunk_idx, &view);
}

/* ---- writer's thread ------------------------------------------------------------------------------------ */

/* Copies new planes from the slot to memory that keeps them too. */
static void scatter(const struct chunk_run *run) {
    const struct ox_unit_run *const unit = run->unit;
    const uint64_t first = run->chunk.first, hi_bytes = run->layout.hi_bytes;
    const uint64_t lo_bytes = run->chunk.count * OX_LO_BYTES;
    if (unit->target.hi != NULL) {
        memcpy(unit->target.hi + first, run->hi, hi_bytes);
    }
    if (unit->target.state != NULL) {
        ox_state_copy(run->rank, unit->unit_idx, &run->chunk, run->state, OX_STATE_TO_UNIT);
    }
    if (unit->target.lo != NULL) {
        memcpy(unit->target.lo + first, state_at(run, first).lo, lo_bytes);
    }
    /* What forward reads is one piece, all of hi and then all of lo, while chunks come as hi and lo of a part. */
    if (unit->target.planes != NULL) {
        const uint64_t elems = run->rank->plan->table.shards[unit->unit_idx].elem_count;
        memcpy(unit->target.planes + first * OX_HI_BYTES, run->hi, hi_bytes);
        if (ox_rank_rules(run->rank, unit->unit_idx)->lo_travels) {
            unsigned char *const lo = unit->target.planes + elems * OX_HI_BYTES;
            memcpy(lo + first * OX_LO_BYTES, state_at(run, first).lo, lo_bytes);
        }
    }
}

static void chunk_leaves(void *owner, const struct ox_stream_chunk *at) {
    const struct chunk_run run = run_of(owner, at);
    const struct ox_on_drives written = written_planes(owner, &at->run);
    gather(&run, written);
    scatter(&run);
}

static uint32_t chunk_writes(void *owner, const struct ox_stream_chunk *at, struct ox_store_op *ops) {
    const struct chunk_run run = run_of(owner, at);
    struct ox_rank *const rank = owner;
    const struct ox_on_drives written = written_planes(rank, &at->run);
    uint32_t count = 0;
    if (written.state) {
        ops[count++] = (struct ox_store_op){
            .kind = OX_STORE_WRITE, .extent_idx = run.chunk.state_extent_idx, .buffer = run.state};
        ox_rank_count(rank, OX_LINK_NVME_WRITE, OX_TRAFFIC_STATE, run.layout.state_bytes);
    }
    if (written.hi) {
        ops[count++] =
            (struct ox_store_op){.kind = OX_STORE_WRITE, .extent_idx = run.chunk.hi_extent_idx, .buffer = run.hi};
        ox_rank_count(rank, OX_LINK_NVME_WRITE, OX_TRAFFIC_WEIGHTS, run.layout.hi_bytes);
    }
    return count;
}

/* ---- the update: the lane's thread -------------------------------------------------------------------- */

/* The numbers of the step for what a walk is at. */
static struct ox_optim_hyper hyper_at(const struct ox_optim_hyper *hyper, const struct ox_role_walk *walk) {
    return walk->group.given ? ox_optim_hyper_own(hyper, walk->group.rate_share, walk->group.weight_decay) : *hyper;
}

/* Where hi is updated, `begin` elements into the slice. */
static uint16_t *hi_at(const struct chunk_run *run, uint64_t begin) {
    return run->unit->source.hi != NULL ? run->unit->source.hi + begin : run->hi + (begin - run->chunk.first);
}

/* The place of a range's first element, which names it for random roundings and in sums. */
static uint64_t place_of(const struct ox_role_walk *walk, struct ox_range range) {
    return walk->place + (range.begin - walk->range.begin);
}

static void take_sums(const struct chunk_run *run, const struct ox_role_walk *walk, struct ox_range range,
                      struct ox_plane_sums *sums) {
    const uint64_t begin = range.begin - ox_slice_first(run->rank, run->unit->unit_idx);
    const struct ox_state_planes state = state_at(run, begin);
    ox_plane_sums_take(run->rank->config.state.moments, hi_at(run, begin), &state, place_of(walk, range),
                       range.end - range.begin, sums);
}

/* Experts that no row of the step chose stay as they are, and so do their sums. */
static void pass_idle(const struct chunk_run *run, const struct ox_role_walk *walk, struct ox_range range,
                      struct ox_update_sums *sums) {
    OX_ASSERT(run->unit->replaced.hi == NULL);
    take_sums(run, walk, range, &sums->read);
    take_sums(run, walk, range, &sums->written);
}

/* Moves the biases of choices in a chunk, whose low halves are zeros. */
static void shift_biases(const struct chunk_run *run, struct ox_range within) {
    struct ox_routed_shift at = {.next = 0};
    while (ox_routing_shift(run->rank, run->unit->unit_idx, run->unit->routed, within, &at)) {
        at.shift.plane = hi_at(run, at.first - ox_slice_first(run->rank, run->unit->unit_idx));
        for (uint32_t i = 0; i < at.shift.count; i++) {
            ox_limbs_shift(&at.shift, i);
        }
    }
}

/* The update of elements of what a walk is at, which count from the unit's first element. */
static struct ox_update_span span_of(const struct chunk_run *run, const struct ox_role_walk *walk,
                                     struct ox_range range, struct ox_update_sums *sums) {
    struct ox_rank *const rank = run->rank;
    const struct ox_unit_run *const unit = run->unit;
    const uint64_t begin = range.begin - ox_slice_first(rank, unit->unit_idx); /* in the slice */
    const uint64_t in_slot = begin - run->chunk.first, width = grad_width(rank);
    uint16_t *const hi = hi_at(run, begin);
    struct ox_update_span span = {
        .hi = hi,
        .hi_out = hi,
        .state = state_at(run, begin),
        .grad = unit->source.grad != NULL ? unit->source.grad + begin * width : run->grad + in_slot * width,
        .grad_dtype = rank->config.grad_bf16 ? OX_GRAD_BF16 : OX_GRAD_F32,
        .decay = walk->decay,
        .stream = rank->config.model->units[unit->unit_idx].stream,
        .first = place_of(walk, range),
        .count = range.end - range.begin,
        .sums = sums,
        .weights_only = unit->weights_only,
    };
    if (unit->replaced.hi != NULL) {
        span.replaced_hi = unit->replaced.hi + begin;
    }
    if (unit->replaced.state != NULL) {
        span.replaced_state = ox_state_planes_at(ox_rank_state_format(rank, unit->unit_idx), unit->replaced.state,
                                                 ox_slice_elems(rank, unit->unit_idx), begin);
    }
    return span;
}

static uint64_t update_span(const struct chunk_run *run, const struct ox_role_walk *walk, struct ox_range range,
                            struct ox_update_sums *sums) {
    const struct ox_optim_hyper hyper = hyper_at(run->unit->hyper, walk);
    const struct ox_rank *const rank = run->rank;
    const struct ox_update_span span = span_of(run, walk, range, sums);
    return ox_update_run_pool(rank->optim_pool, rank->config.isa, rank->config.state, &span, &hyper);
}

/* Updates what a walk is at matrix by matrix: the range has them whole, because a chunk is a unit. */
static enum ox_status update_matrices(const struct chunk_run *run, const struct ox_role_walk *walk,
                                      struct ox_range range, struct ox_update_sums *sums, uint64_t *bad_count) {
    struct ox_rank *const rank = run->rank;
    const struct ox_model *const model = rank->config.model;
    const struct ox_unit *const unit = &model->units[run->unit->unit_idx];
    const struct ox_optim_hyper hyper = hyper_at(run->unit->hyper, walk);
    enum ox_status status = OX_OK;
    if (sums != NULL) {
        take_sums(run, walk, range, &sums->read);
    }
    for (const struct ox_tensor *tensor = NULL; (tensor = ox_unit_next_tensor(model, unit, tensor)) != NULL;) {
        if (!ox_tensor_is_hidden(tensor)) {
            continue;
        }
        struct ox_matrix matrix;
        ox_tensor_matrix(tensor, &matrix.rows, &matrix.cols);
        for (uint64_t at = 0; at < tensor->count; at += matrix.rows * matrix.cols) {
            const uint64_t begin = tensor->offset + at, end = begin + matrix.rows * matrix.cols;
            if (end <= range.begin || begin >= range.end) {
                continue;
            }
            OX_ASSERT(begin >= range.begin && end <= range.end);
            const struct ox_update_span span = span_of(run, walk, (struct ox_range){begin, end}, NULL);
            OX_THEN(status, ox_optim_matrix(rank, matrix, &span, &hyper, bad_count));
        }
    }
    if (sums != NULL) {
        take_sums(run, walk, range, &sums->written);
    }
    return status;
}

/* What no update changes is saved too: what was saved is put back, and written, as a whole. */
static void save_untrained(const struct chunk_run *run, struct ox_range within) {
    const struct ox_unit_run *const unit = run->unit;
    const struct ox_rank *const rank = run->rank;
    const struct ox_model *const model = rank->config.model;
    const struct ox_unit *const of = &model->units[unit->unit_idx];
    const struct ox_state_format format = ox_rank_state_format(rank, unit->unit_idx);
    const uint64_t elems = ox_slice_elems(rank, unit->unit_idx);
    for (const struct ox_tensor *tensor = NULL; (tensor = ox_unit_next_tensor(model, of, tensor)) != NULL;) {
        const uint64_t begin = ox_max_u64(tensor->offset, within.begin);
        const uint64_t end = ox_min_u64(tensor->offset + tensor->count, within.end);
        if (tensor->trained || begin >= end) {
            continue;
        }
        const uint64_t at = begin - ox_slice_first(rank, unit->unit_idx);
        memcpy(unit->replaced.hi + at, unit->source.hi + at, (end - begin) * OX_HI_BYTES);
        if (unit->replaced.state != NULL) {
            const struct ox_state_planes to = ox_state_planes_at(format, unit->replaced.state, elems, at);
            memcpy(to.lo, state_at(run, at).lo, (end - begin) * ox_lo_bytes(format.moments));
            if (format.averages) {
                memcpy(to.average, state_at(run, at).average, (end - begin) * sizeof *to.average);
            }
        }
    }
}

/* Updates a chunk, and adds how many of its parameters are no longer finite. */
static enum ox_status update_chunk(const struct chunk_run *run, uint32_t chunk_idx, uint64_t *nonfinite_count) {
    const uint64_t first = ox_slice_first(run->rank, run->unit->unit_idx) + run->chunk.first;
    const struct ox_range within = {.begin = first, .end = first + run->chunk.count};
    struct ox_role_walk walk = {.last = NULL};
    const bool sums_up = ox_guard_covers(run->rank, run->unit->unit_idx);
    const bool is_muon = run->rank->config.state.kind == OX_OPTIM_MUON;
    struct ox_update_sums sums = {0};
    enum ox_status status = OX_OK;
    /* Saved before the first write: a chunk that is updated in part could be neither repeated nor taken back. */
    if (run->unit->replaced.hi != NULL) {
        ox_overlap_saves(run->rank, run->unit->unit_idx, chunk_idx);
        save_untrained(run, within);
    }
    /* Tensors differ in rate and decay, and experts in whether a token reached them: hence span by span. */
    while (ox_next_role(run->rank, run->unit->unit_idx, within, &walk)) {
        struct ox_routed_part part = {.idle = false};
        while (ox_routing_next(run->rank, run->unit->unit_idx, run->unit->routed, &walk, &part)) {
            if (!part.idle && is_muon && ox_tensor_is_hidden(walk.last)) {
                OX_THEN(status, update_matrices(run, &walk, part.range, sums_up ? &sums : NULL, nonfinite_count));
            } else if (!part.idle) {
                *nonfinite_count += update_span(run, &walk, part.range, sums_up ? &sums : NULL);
            } else if (sums_up) {
                pass_idle(run, &walk, part.range, &sums);
            }
        }
    }
    /* Biases of choice follow the load of their experts, not a gradient. */
    shift_biases(run, within);
    OX_THEN(status, sums_up ? ox_guard_updated(run->rank, run->unit, chunk_idx, &sums) : OX_OK);
    return status;
}

/* ---- units ------------------------------------------------------------------------------------------------ */

/* Lets the update save what it replaces, or begin with what was saved, if the plan says so. */
static void use_replaced(const struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task,
                         struct ox_unit_run *run) {
    unsigned char *const replaced = ox_tiers_view_if(&rank->tiers, plan, task, OX_USE_REPLACED).ptr;
    const bool ahead = ox_rank_rules(rank, run->unit_idx)->goes_ahead;
    if (replaced == NULL) {
        return;
    }
    OX_ASSERT(run->source.hi != NULL && run->source.state != NULL);
    run->follows = task->carried;
    if (run->follows) {
        run->source.hi = (uint16_t *)replaced;
        return;
    }
    run->weights_only = ahead;
    run->replaced.hi = (uint16_t *)replaced;
    run->replaced.state =
        ahead ? NULL : replaced + ox_rank_rules(rank, run->unit_idx)->replaced_state_offset;
}

/* Lets the update work on the downloaded copy, [hi | lo], of a unit that lives on the device; it is uploaded later. */
static void update_downloaded(const struct ox_rank *rank, unsigned char *downloaded, struct ox_unit_run *run) {
    const uint64_t elems = rank->plan->table.shards[run->unit_idx].elem_count;
    run->source.hi = (uint16_t *)downloaded;
    if (ox_rank_rules(rank, run->unit_idx)->lo_travels) {
        run->target.lo = (uint16_t *)(downloaded + elems * OX_HI_BYTES);
    }
}

static struct ox_unit_run unit_run(const struct ox_rank *rank, const struct ox_plan *plan,
                                   const struct ox_task *task) {
    const struct ox_shard *const shard = &rank->plan->table.shards[task->unit_idx];
    const struct ox_resident at = ox_rank_resident(rank, task->unit_idx);
    const struct ox_update_args order = ox_overlap_update_args(rank, task);
    struct ox_unit_run run = {
        .unit_idx = task->unit_idx,
        .chunk_count = shard->chunk_count,
        .hyper = order.hyper,
        .routed = order.routed,
        .base_step = order.base_step,
        .stays = order.stays,
        .source = {.hi = at.hi,
                   .state = at.state,
                   .grad = ox_tiers_view_if(&rank->tiers, plan, task, OX_USE_GRAD).ptr},
        .target = {.lo = at.weights_lo,
                   .planes = ox_tiers_view_if(&rank->tiers, plan, task, OX_USE_TARGET).ptr},
    };
    if (shard->homes.weights == OX_TIER_DEVICE) {
        update_downloaded(rank, ox_tiers_view(&rank->tiers, plan, task, OX_USE_WEIGHTS).ptr, &run);
    }
    if (order.from_store) {
        run.target.hi = run.source.hi;
        run.target.state = run.source.state;
        run.source.hi = NULL;
        run.source.state = NULL;
    }
    use_replaced(rank, plan, task, &run);
    return run;
}

/* The optimizer's next task, if all that it reads is on the drives by now; else NULL. State and weights are, unless a
 * commit comes in between. The gradient is, if the task waits for no later write of the spool than this one does. */
static const struct ox_task *task_ahead(const struct ox_rank *rank, const struct ox_plan *plan,
                                        const struct ox_task *task) {
    const struct ox_task *const past = &plan->tasks[plan->task_count];
    for (const struct ox_task *next = task + 1; next < past && next->kind != OX_TASK_WRITTEN; next++) {
        const bool empty = ox_task_updates_on_host(next) && ox_slice_elems(rank, next->unit_idx) == 0;
        if (ox_task_updates_on_host(next) && !empty && ox_rank_works(rank, next)) {
            const bool there = next->deps[OX_LANE_NVME_WRITE] <= task->deps[OX_LANE_NVME_WRITE];
            return there && ox_overlap_update_args(rank, next).hyper != NULL ? next : NULL;
        }
    }
    return NULL;
}

static enum ox_status stream_unit(struct ox_rank *rank, const struct ox_unit_run *run, uint64_t *nonfinite_count) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < run->chunk_count && status == OX_OK; i++) {
        struct ox_stream_chunk at;
        status = ox_stream_take(rank->stream, &at);
        if (status == OX_OK) {
            OX_ASSERT(at.run.unit_idx == run->unit_idx && at.chunk_idx == i);
            const struct chunk_run chunk = run_of(rank, &at);
            status = update_chunk(&chunk, i, nonfinite_count);
            ox_stream_put(rank->stream);
        }
    }
    const bool in_memory = run->source.hi != NULL || run->source.state != NULL || run->target.hi != NULL ||
                           run->target.state != NULL || run->target.lo != NULL || run->target.planes != NULL;
    return status == OX_OK && in_memory ? ox_stream_wait_copies(rank->stream) : status;
}

static enum ox_status update_in_place(struct ox_rank *rank, const struct ox_unit_run *run, uint64_t *nonfinite_count) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < run->chunk_count && status == OX_OK; i++) {
        const struct chunk_run chunk = chunk_run(rank, run, i, NULL);
        status = update_chunk(&chunk, i, nonfinite_count);
        scatter(&chunk);
    }
    return status;
}

static enum ox_status run_unit(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task,
                               const struct ox_unit_run *run) {
    uint64_t nonfinite_count = 0;
    enum ox_status status = OX_OK;
    if (rank->stream != NULL && run->chunk_count > 0) { /* a slice may be empty */
        const struct ox_task *const next = task_ahead(rank, plan, task);
        ox_stream_begin(rank->stream, run);
        if (next != NULL) {
            const struct ox_unit_run ahead = unit_run(rank, plan, next);
            ox_stream_order_ahead(rank->stream, &ahead);
        }
        status = stream_unit(rank, run, &nonfinite_count);
    } else {
        status = update_in_place(rank, run, &nonfinite_count);
    }
    return status == OX_OK ? ox_overlap_updated(rank, task, nonfinite_count) : status;
}

/* Reads the planes for forward of a unit that needs no update. */
static enum ox_status read_unit(struct ox_rank *rank, const struct ox_unit_run *run, uint32_t task_idx) {
    const uint64_t begin_ns = ox_clock_ns();
    const enum ox_status status =
        ox_rank_read_planes(rank, rank->chunk_slots.transfers.port, run->unit_idx, run->target.planes);
    const uint64_t parts_ns[OX_TRACE_PART_COUNT] = {[OX_TRACE_PART_READS] = ox_clock_ns() - begin_ns};
    const uint64_t bytes = rank->plan->table.shards[run->unit_idx].elem_count *
                           ox_wire_bytes(rank->plan->input.model.precision);
    ox_tracing_parts(rank->tracing, task_idx, parts_ns);
    ox_tracing_read(rank->tracing, run->unit_idx, begin_ns, bytes);
    return status;
}

/* ---- public ----------------------------------------------------------------------------------------------- */

enum ox_status ox_optim_open(struct ox_rank *rank) {
    static const struct ox_stream_calls calls = {
        .reads = chunk_reads, .arrived = chunk_arrived, .leaves = chunk_leaves, .writes = chunk_writes};
    const struct ox_stream_config config = {
        .store = rank->store,
        .calls = &calls,
        .owner = rank,
        .chaos_seed = rank->config.chaos_seed,
        .chaos_ns_max = OX_CHAOS_NS_MAX,
    };
    const enum ox_status status = ox_stream_open(&config, &rank->stream);
    if (status == OX_OK) {
        ox_stream_observe(rank->stream, observe_transfer, rank);
    }
    return status;
}

enum ox_status ox_optim_drain(struct ox_rank *rank) {
    return rank->stream == NULL ? OX_OK : ox_stream_drain(rank->stream);
}

void ox_optim_set_slots(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task) {
    unsigned char *const base = ox_tiers_view(&rank->tiers, plan, task, OX_USE_STREAM).ptr;
    const uint64_t slot_bytes = ox_plan_stream_slot_bytes(&rank->plan->input);
    const uint32_t slot_count = rank->plan->input.placement.stream_slots;
    ox_stream_set_slots(rank->stream, base, slot_bytes, slot_count);
    rank->tee.values = (float *)(base + slot_count * slot_bytes);
}

void ox_rank_tee(struct ox_rank *rank, const struct ox_tee *tee) {
    rank->tee.to = tee == NULL ? (struct ox_tee){0} : *tee;
    rank->tee.step = rank->planes.step;
}

/* Queues the moves of the biases of choices, on the device that has them. */
static enum ox_status issue_shifts(struct ox_rank *rank, uint32_t unit_idx, const uint8_t *routed, uint16_t *hi,
                                   struct ox_lane *lane) {
    const uint64_t origin = ox_slice_first(rank, unit_idx);
    const struct ox_range within = {.begin = origin, .end = origin + ox_slice_elems(rank, unit_idx)};
    enum ox_status status = OX_OK;
    struct ox_routed_shift at = {.next = 0};
    while (status == OX_OK && ox_routing_shift(rank, unit_idx, routed, within, &at)) {
        at.shift.plane = hi + (at.first - origin);
        status = OX_QUEUE(&rank->ops, lane, limbs_shift, &at.shift);
    }
    return status;
}

/* Queues a unit's update on the device. Its count of values that are not finite is checked after the step. */
enum ox_status ox_optim_issue(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task,
                              struct ox_lane *lane) {
    const struct ox_tiers *const tiers = &rank->tiers;
    const struct ox_update_args order = ox_overlap_update_args(rank, task);
    const struct ox_engine_config *const config = &rank->config;
    struct ox_op_adam op = {
        .hi = ox_tiers_view(tiers, plan, task, OX_USE_WEIGHTS).ptr,
        .state = ox_tiers_view(tiers, plan, task, OX_USE_STATE).ptr,
        .grad = ox_tiers_view(tiers, plan, task, OX_USE_GRAD).ptr,
        .nonfinite = (uint64_t *)ox_tiers_view(tiers, plan, task, OX_USE_COUNTS).ptr + task->unit_idx,
        .elem_count = ox_slice_elems(rank, task->unit_idx),
        .format = config->state,
        .isa = config->isa,
        .stream = config->model->units[task->unit_idx].stream,
        .grad_bf16 = config->grad_bf16,
        .hyper = *order.hyper,
    };
    const uint64_t slice = ox_slice_first(rank, task->unit_idx);
    const struct ox_range within = {.begin = slice, .end = slice + op.elem_count};
    struct ox_role_walk walk = {.last = NULL};
    enum ox_status status =
        OX_QUEUE(&rank->ops, lane, zero, &(struct ox_op_zero){.target = op.nonfinite, .bytes = sizeof *op.nonfinite});
    while (status == OX_OK && ox_next_role(rank, task->unit_idx, within, &walk)) {
        struct ox_routed_part part = {.idle = false};
        op.decay = walk.decay;
        op.hyper = hyper_at(order.hyper, &walk);
        while (status == OX_OK && ox_routing_next(rank, task->unit_idx, order.routed, &walk, &part)) {
            op.first = part.range.begin - within.begin;
            op.origin = place_of(&walk, part.range) - op.first;
            op.count = part.range.end - part.range.begin;
            status = part.idle ? OX_OK : OX_QUEUE(&rank->ops, lane, adam, &op);
        }
    }
    OX_THEN(status, issue_shifts(rank, task->unit_idx, order.routed, op.hi, lane));
    if (task->carried) { /* a queued operation is done, unless the lane and with it the step fails */
        rank->due.pending[task->unit_idx] = OX_DUE_NOTHING;
    }
    return status;
}

/* Runs an update on the host, and reports to the trace what the lane waited for. */
enum ox_status ox_optim_run(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task) {
    struct ox_stream_waits before = {0}, after = {0};
    const struct ox_unit_run run = unit_run(rank, plan, task);
    const uint32_t task_idx = (uint32_t)(task - plan->tasks);
    if (run.hyper == NULL) {
        return read_unit(rank, &run, task_idx);
    }
    if (rank->stream != NULL) {
        ox_stream_waits(rank->stream, &before);
    }
    const enum ox_status status = run_unit(rank, plan, task, &run);
    if (rank->stream != NULL) {
        ox_stream_waits(rank->stream, &after);
        const uint64_t parts_ns[OX_TRACE_PART_COUNT] = {
            [OX_TRACE_PART_READS] = after.read_ns - before.read_ns,
            [OX_TRACE_PART_WRITES] = after.write_ns - before.write_ns,
            [OX_TRACE_PART_COPIES] = after.copy_ns - before.copy_ns};
        ox_tracing_parts(rank->tracing, task_idx, parts_ns);
    }
    return status;
}
