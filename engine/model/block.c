/* A block: its halves one after the other, and backward in reverse. */
#include "engine/model/half.h"

#include "base/assert.h"
#include "base/bytes.h"

static const struct ox_half_ops *const half_ops[OX_HALF_KIND_COUNT] = {
    [OX_HALF_ATTENTION] = &ox_half_attention,
    [OX_HALF_MLP] = &ox_half_mlp,
};

static const struct ox_half_ops *ops_of(const struct ox_unit *unit, uint32_t half_idx) {
    return half_ops[unit->halves[half_idx].kind];
}

/* ---- memory ---- */

struct room {
    struct ox_half_room halves[OX_HALVES_MAX];
    void *inputs[OX_HALVES_MAX]; /* (rows, hidden): what the half before computed, where backward reads it */
};

static void carve_scratch(const struct ox_half_sizes *sizes, uint32_t count, struct ox_bump *work, struct room *out) {
    for (uint32_t k = 0; k < OX_SCRATCH_COUNT; k++) {
        uint64_t most = 0;
        for (uint32_t i = 0; i < count; i++) {
            most = ox_max_u64(most, sizes[i].scratch[k]);
        }
        void *const scratch = ox_bump_alloc(work, most);
        for (uint32_t i = 0; i < count; i++) {
            out->halves[i].scratch[k] = scratch;
        }
    }
    for (uint32_t k = 0; k < OX_LENT_COUNT; k++) { /* no half lends to the last one */
        out->halves[count - 1].borrowed[k] = ox_bump_alloc(work, sizes[count - 1].borrowed[k]);
    }
}

/* A half's backward runs right after that of the half behind it, so it works in what that one lends. */
static void carve_block(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass,
                        struct ox_bump *saved, struct ox_bump *work, struct room *out) {
    struct ox_half_sizes sizes[OX_HALVES_MAX];
    const uint32_t count = unit->half_count;
    for (uint32_t i = 0; i < count; i++) {
        ops_of(unit, i)->sizes(shape, &unit->halves[i], pass, &sizes[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        out->halves[i].saved = ox_bump_alloc(saved, sizes[i].saved);
        if (i > 0 && pass != OX_PASS_FORWARD) {
            out->inputs[i] = ox_bump_alloc(saved, ox_rows_bytes(shape, shape->model->config.hidden));
        }
        for (uint32_t k = 0; k < OX_LENT_COUNT; k++) {
            const uint64_t borrowed = i > 0 ? sizes[i - 1].borrowed[k] : 0;
            out->halves[i].lent[k] = ox_bump_alloc(saved, ox_max_u64(sizes[i].lent[k], borrowed));
            if (i > 0) {
                out->halves[i - 1].borrowed[k] = out->halves[i].lent[k];
            }
        }
    }
    carve_scratch(sizes, count, work, out);
}

static bool is_kept(enum ox_pass pass) {
    return pass == OX_PASS_FORWARD_KEPT || pass == OX_PASS_BACKWARD_KEPT;
}

uint64_t ox_block_work_bytes(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass) {
    struct ox_bump kept = {.base = NULL}, work = {.base = NULL};
    struct room room;
    carve_block(shape, unit, pass, is_kept(pass) ? &kept : &work, &work, &room);
    return work.bytes;
}

uint64_t ox_block_kept_bytes(const struct ox_shape *shape, const struct ox_unit *unit) {
    struct ox_bump kept = {.base = NULL}, work = {.base = NULL};
    struct room room;
    carve_block(shape, unit, OX_PASS_BACKWARD_KEPT, &kept, &work, &room);
    return kept.bytes;
}

/* ---- passes ---- */

static void begin(struct ox_unit_job *job, enum ox_pass pass, struct ox_half_call *call, struct room *room) {
    struct ox_bump kept = {.base = job->kept}, work = {.base = job->work};
    OX_ASSERT(is_kept(pass) == (job->kept != NULL));
    *room = (struct room){0};
    carve_block(job->shape, job->unit, pass, is_kept(pass) ? &kept : &work, &work, room);
    call->job = job;
    call->pass = pass;
}

static void at_half(struct ox_half_call *call, const struct room *room, uint32_t half_idx) {
    call->half = &call->job->unit->halves[half_idx];
    call->room = room->halves[half_idx];
}

/* y = NULL: the last half makes only what its backward reads. */
static void forward(struct ox_half_call *call, const struct room *room, const void *x, void *y) {
    const struct ox_unit *const unit = call->job->unit;
    for (uint32_t i = 0; i < unit->half_count; i++) {
        const bool is_last = i + 1 == unit->half_count;
        void *const out = is_last || call->pass == OX_PASS_FORWARD ? y : room->inputs[i + 1];
        at_half(call, room, i);
        ops_of(unit, i)->forward(call, x, out);
        x = out;
    }
}

enum ox_status ox_block_forward(struct ox_unit_job *job, const void *weights, const void *x, void *y) {
    struct ox_half_call call = {.weights = weights};
    struct room room;
    begin(job, job->kept != NULL ? OX_PASS_FORWARD_KEPT : OX_PASS_FORWARD, &call, &room);
    forward(&call, &room, x, y);
    return job->run.status;
}

enum ox_status ox_block_backward(struct ox_unit_job *job, const void *weights, float *grads, const void *x, void *dx) {
    struct ox_half_call call = {.weights = weights, .grads = grads};
    struct room room;
    begin(job, job->kept != NULL ? OX_PASS_BACKWARD_KEPT : OX_PASS_BACKWARD, &call, &room);
    if (job->kept == NULL) {
        forward(&call, &room, x, NULL);
    }
    if (job->begins) {
        ox_clear_gaps(job, grads);
    }
    for (uint32_t i = job->unit->half_count; i-- > 0;) {
        at_half(&call, &room, i);
        ops_of(job->unit, i)->backward(&call, i > 0 ? room.inputs[i] : x, dx);
    }
    return job->run.status;
}

/* ---- cost ---- */

void ox_block_cost(struct ox_cost *cost, enum ox_pass pass) {
    const struct ox_unit *const unit = cost->unit;
    for (uint32_t i = 0; pass != OX_PASS_BACKWARD_KEPT && i < unit->half_count; i++) {
        const bool is_last = i + 1 == unit->half_count;
        ops_of(unit, i)->forward_cost(cost, &unit->halves[i], !is_last || !ox_pass_is_backward(pass));
    }
    for (uint32_t i = unit->half_count; ox_pass_is_backward(pass) && i-- > 0;) {
        ops_of(unit, i)->backward_cost(cost, &unit->halves[i]);
    }
}
