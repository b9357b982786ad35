#include "tests/kit/plan/plan_model.h"

#include "base/assert.h"
#include "base/prng/prng.h"

static enum ox_plan_unit_kind kind_of(const struct plan_model_sizes *sizes, uint32_t unit_idx, uint32_t unit_count) {
    if (unit_idx == 0 && !sizes->without_embedding) {
        return OX_PLAN_EMBEDDING;
    }
    return unit_idx + 1 == unit_count && !sizes->without_head ? OX_PLAN_HEAD : OX_PLAN_BLOCK;
}

void plan_model_make(struct plan_model *m, const uint64_t *elems, uint32_t unit_count,
                     const struct plan_model_sizes *sizes, struct ox_plan_model *out) {
    const uint32_t head = unit_count - 1;
    const bool tied = sizes->tied_elems > 0;
    const bool whole = !sizes->without_embedding && !sizes->without_head;
    OX_ASSERT(unit_count >= (whole ? 2 : 1) && unit_count <= PLAN_MODEL_UNITS_MAX && (whole || !tied));
    for (uint32_t i = 0; i < unit_count; i++) {
        const enum ox_plan_unit_kind kind = kind_of(sizes, i, unit_count);
        const bool block = kind == OX_PLAN_BLOCK, is_head = kind == OX_PLAN_HEAD;
        m->stages[i] = i;
        m->grads[i] = (struct ox_plan_grad){
            .unit_idx = i, .added_to = OX_NONE, .addend = OX_NONE, .elem_count = elems[i]};
        m->units[i] = (struct ox_plan_unit){
            .kind = kind,
            .stage_idx = i,
            .elem_count = elems[i],
            .input_bytes = kind == OX_PLAN_EMBEDDING ? 0 : sizes->act_bytes,
            .output_bytes = is_head ? 0 : sizes->act_bytes,
            .kept_bytes = block ? sizes->kept_bytes : 0,
            .forward.scratch_bytes = block ? sizes->forward_bytes : is_head ? sizes->head_eval_bytes : 0,
            .backward.scratch_bytes = block ? sizes->backward_bytes : is_head ? sizes->head_bytes : 0,
            .forward_kept.scratch_bytes = block ? sizes->forward_kept_bytes : 0,
            .backward_kept.scratch_bytes = block ? sizes->backward_kept_bytes : 0,
            .grad_idx = i,
            .table_unit_idx = OX_NONE,
            .table_grad_idx = OX_NONE,
        };
    }
    if (tied) {
        m->units[head].table_unit_idx = 0;
        m->units[head].table_grad_idx = unit_count;
        m->grads[0].addend = unit_count;
        m->grads[unit_count] = (struct ox_plan_grad){
            .unit_idx = 0, .added_to = 0, .addend = OX_NONE, .elem_count = sizes->tied_elems};
    }
    out->units = m->units;
    out->grads = m->grads;
    out->stages = m->stages;
    out->unit_count = out->stage_count = unit_count;
    out->grad_count = unit_count + tied;
}

/* ---- units that differ ---------------------------------------------------------------------------- */

struct drawing {
    uint64_t seed, counter;
};

static double uniform(struct drawing *d) {
    return ox_uniform(d->seed, 17, d->counter++);
}

/* Draws between a quarter of `bytes` and twice as much; 0 stays 0. */
static uint64_t about(struct drawing *d, uint64_t bytes) {
    return bytes == 0 ? 0 : 1 + (uint64_t)((double)bytes * (0.25 + 1.75 * uniform(d)));
}

static void vary_work(struct drawing *d, struct ox_plan_work *work) {
    const double scale = 0.25 + 1.75 * uniform(d);
    work->gemm_flops *= scale;
    work->attention_flops *= 0.25 + 1.75 * uniform(d);
    work->attention_backward_flops *= 0.25 + 1.75 * uniform(d);
    work->bytes *= scale;
    work->gemm_bytes *= scale;
}

static void vary_unit(struct drawing *d, struct ox_plan_unit *unit) {
    struct ox_plan_pass *const passes[] = {&unit->forward, &unit->backward, &unit->forward_kept, &unit->backward_kept};
    for (unsigned i = 0; i < sizeof passes / sizeof *passes; i++) {
        passes[i]->scratch_bytes = about(d, passes[i]->scratch_bytes);
        vary_work(d, &passes[i]->work);
    }
    unit->kept_bytes = uniform(d) < 0.25 ? 0 : about(d, unit->kept_bytes);
}

static void swap_grads(const struct ox_plan_model *model, uint32_t a, uint32_t b) {
    struct ox_plan_grad *const grads = (struct ox_plan_grad *)model->grads, kept = grads[a];
    struct ox_plan_unit *const units = (struct ox_plan_unit *)model->units;
    grads[a] = grads[b];
    grads[b] = kept;
    for (uint32_t i = 0; i < model->grad_count; i++) {
        uint32_t *const names[] = {&grads[i].added_to, &grads[i].addend};
        for (unsigned k = 0; k < 2; k++) {
            *names[k] = *names[k] == a ? b : *names[k] == b ? a : *names[k];
        }
    }
    for (uint32_t i = 0; i < model->unit_count; i++) {
        uint32_t *const names[] = {&units[i].grad_idx, &units[i].table_grad_idx};
        for (unsigned k = 0; k < 2; k++) {
            *names[k] = *names[k] == a ? b : *names[k] == b ? a : *names[k];
        }
    }
}

static void shuffle_grads(struct drawing *d, const struct ox_plan_model *model) {
    for (uint32_t i = model->grad_count - 1; i > 0; i--) {
        swap_grads(model, i, (uint32_t)(uniform(d) * (i + 1)));
    }
}

static void swap_units(struct plan_model *m, const struct ox_plan_model *model, uint64_t *elems, uint32_t a,
                       uint32_t b) {
    const struct ox_plan_unit kept = m->units[a];
    const uint64_t kept_elems = elems[a];
    m->units[a] = m->units[b];
    m->units[b] = kept;
    elems[a] = elems[b];
    elems[b] = kept_elems;
    m->stages[m->units[a].stage_idx] = a;
    m->stages[m->units[b].stage_idx] = b;
    for (uint32_t i = 0; i < model->grad_count; i++) {
        uint32_t *const unit_idx = &m->grads[i].unit_idx;
        *unit_idx = *unit_idx == a ? b : *unit_idx == b ? a : *unit_idx;
    }
    for (uint32_t i = 0; i < model->unit_count; i++) {
        uint32_t *const unit_idx = &m->units[i].table_unit_idx;
        *unit_idx = *unit_idx == a ? b : *unit_idx == b ? a : *unit_idx;
    }
}

void plan_model_vary(struct plan_model *m, const struct ox_plan_model *model, uint64_t *elems, uint64_t seed) {
    struct drawing d = {.seed = seed};
    for (uint32_t i = 0; i < model->stage_count; i++) {
        vary_unit(&d, &m->units[m->stages[i]]);
    }
    struct ox_plan_unit *const first = &m->units[m->stages[0]];
    struct ox_plan_unit *const last = &m->units[m->stages[model->stage_count - 1]];
    first->input_bytes = about(&d, first->input_bytes);
    last->output_bytes = about(&d, last->output_bytes);
    for (uint32_t i = 1; i < model->stage_count; i++) {
        struct ox_plan_unit *const from = &m->units[m->stages[i - 1]], *const to = &m->units[m->stages[i]];
        from->output_bytes = to->input_bytes = about(&d, to->input_bytes);
    }
    for (uint32_t i = model->unit_count - 1; i > 0; i--) {
        swap_units(m, model, elems, i, (uint32_t)(uniform(&d) * (i + 1)));
    }
    shuffle_grads(&d, model);
}

void plan_model_shuffle_grads(const struct ox_plan_model *model, uint64_t seed) {
    struct drawing d = {.seed = seed};
    shuffle_grads(&d, model);
}
