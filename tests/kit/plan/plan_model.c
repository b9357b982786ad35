#include "tests/kit/plan/plan_model.h"

#include "base/assert.h"
#include "base/prng/prng.h"

static enum ox_plan_stage_kind kind_of(const struct plan_model_sizes *sizes, uint32_t unit_idx, uint32_t unit_count) {
    if (unit_idx == 0 && !sizes->without_embedding) {
        return OX_PLAN_EMBEDDING;
    }
    return unit_idx + 1 == unit_count && !sizes->without_head ? OX_PLAN_HEAD : OX_PLAN_BLOCK;
}

static struct ox_plan_stage make_stage(const struct plan_model_sizes *sizes, enum ox_plan_stage_kind kind,
                                       uint32_t unit_idx) {
    const bool block = kind == OX_PLAN_BLOCK, is_head = kind == OX_PLAN_HEAD;
    return (struct ox_plan_stage){
        .kind = kind,
        .unit_count = 1,
        .units[0] = {.unit_idx = unit_idx},
        .input_bytes = kind == OX_PLAN_EMBEDDING ? 0 : sizes->act_bytes,
        .output_bytes = is_head ? 0 : sizes->act_bytes,
        .kept_bytes = block ? sizes->kept_bytes : 0,
        .saves_input = block,
        .forward.scratch_bytes = block ? sizes->forward_bytes : is_head ? sizes->head_eval_bytes : 0,
        .backward.scratch_bytes = block ? sizes->backward_bytes : is_head ? sizes->head_bytes : 0,
        .forward_kept.scratch_bytes = block ? sizes->forward_kept_bytes : 0,
        .backward_kept.scratch_bytes = block ? sizes->backward_kept_bytes : 0,
    };
}

static uint32_t make_stages(struct plan_model *m, const struct plan_model_sizes *sizes, uint32_t unit_count) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < unit_count; i++) {
        const enum ox_plan_stage_kind kind = kind_of(sizes, i, unit_count);
        struct ox_plan_stage *const before = count == 0 ? NULL : &m->stages[count - 1];
        if (sizes->pairs && kind == OX_PLAN_BLOCK && before != NULL && before->kind == OX_PLAN_BLOCK &&
            before->unit_count == 1) {
            before->units[before->unit_count++].unit_idx = i;
            continue;
        }
        if (sizes->adapts && kind == OX_PLAN_BLOCK && before != NULL && before->kind == OX_PLAN_EMBEDDING &&
            before->unit_count == 1) {
            before->units[before->unit_count++] = (struct ox_plan_stage_unit){.unit_idx = i, .read_back = true};
            before->forward.scratch_bytes = sizes->forward_bytes;
            before->backward.scratch_bytes = sizes->backward_bytes;
            continue;
        }
        const bool follows = sizes->chains && kind == OX_PLAN_BLOCK && before != NULL &&
                             before->kind == OX_PLAN_BLOCK && before->starts_back < 2;
        m->stages[count] = make_stage(sizes, kind, i);
        m->stages[count].starts_back = follows ? before->starts_back + 1 : 0;
        m->stages[count++].saves_input &= !follows;
        for (uint32_t k = 0; k < sizes->shares && kind == OX_PLAN_BLOCK; k++) {
            m->stages[count++] = make_stage(sizes, kind, i);
        }
    }
    if (sizes->tied_elems > 0) {
        struct ox_plan_stage *const head = &m->stages[count - 1];
        head->units[head->unit_count++].unit_idx = 0;
    }
    return count;
}

/* A gradient for each use of a trained unit: those of first uses come first, in the order of units. The list of those
 * that are added begins with the last stage's. */
static uint32_t make_grads(struct plan_model *m, const struct plan_model_sizes *sizes, uint32_t unit_count,
                           uint32_t stage_count) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < unit_count; i++) {
        m->units[i].grad_idx = m->units[i].trained ? count++ : OX_NONE;
    }
    for (uint32_t i = 0; i < stage_count; i++) {
        for (uint32_t k = 0; k < m->stages[i].unit_count; k++) {
            struct ox_plan_stage_unit *const use = &m->stages[i].units[k];
            const struct ox_plan_unit *const unit = &m->units[use->unit_idx];
            const bool is_table = m->stages[i].kind == OX_PLAN_HEAD && k > 0, first = unit->stage_idx == i;
            use->grad_idx = !unit->trained ? OX_NONE : first ? unit->grad_idx : count++;
            if (!unit->trained) {
                continue;
            }
            struct ox_plan_grad *const grad = &m->grads[use->grad_idx];
            *grad = (struct ox_plan_grad){.unit_idx = use->unit_idx, .added_to = OX_NONE, .addend = OX_NONE,
                                          .elem_count = is_table ? sizes->tied_elems : unit->elem_count};
            grad->in_turn = sizes->in_turn && kind_of(sizes, use->unit_idx, unit_count) == OX_PLAN_BLOCK;
            if (!first && grad->in_turn) { /* the stages that finish later are further up the list */
                uint32_t end = unit->grad_idx;
                for (; m->grads[end].addend != OX_NONE; end = m->grads[end].addend) {
                }
                grad->added_to = end;
                m->grads[end].addend = use->grad_idx;
            } else if (!first) {
                grad->added_to = unit->grad_idx;
                grad->addend = m->grads[unit->grad_idx].addend;
                m->grads[unit->grad_idx].addend = use->grad_idx;
            }
        }
    }
    return count;
}

void plan_model_make(struct plan_model *m, const uint64_t *elems, uint32_t unit_count,
                     const struct plan_model_sizes *sizes, struct ox_plan_model *out) {
    const bool whole = !sizes->without_embedding && !sizes->without_head;
    OX_ASSERT(unit_count >= (whole ? 2 : 1) && unit_count <= PLAN_MODEL_UNITS_MAX);
    OX_ASSERT(whole || sizes->tied_elems == 0);
    for (uint32_t i = 0; i < unit_count; i++) {
        const bool trained = (sizes->frozen >> (i % 64) & 1) == 0;
        m->units[i] = (struct ox_plan_unit){.elem_count = elems[i], .trained = trained};
    }
    const uint32_t stage_count = make_stages(m, sizes, unit_count);
    out->update_count = ox_plan_order_units(m->stages, stage_count, m->units, m->order);
    out->units = m->units;
    out->grads = m->grads;
    out->stages = m->stages;
    out->order = m->order;
    out->unit_count = unit_count;
    out->stage_count = stage_count;
    out->grad_count = make_grads(m, sizes, unit_count, stage_count);
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

static void vary_stage(struct drawing *d, struct ox_plan_stage *stage) {
    struct ox_plan_pass *const passes[] = {&stage->forward, &stage->backward, &stage->forward_kept,
                                           &stage->backward_kept};
    for (unsigned i = 0; i < sizeof passes / sizeof *passes; i++) {
        passes[i]->scratch_bytes = about(d, passes[i]->scratch_bytes);
        vary_work(d, &passes[i]->work);
    }
    stage->kept_bytes = uniform(d) < 0.25 ? 0 : about(d, stage->kept_bytes);
}

/* Where one of two numbers stands, the other one will. */
static void swap_numbers(uint32_t *number, uint32_t a, uint32_t b) {
    *number = *number == a ? b : *number == b ? a : *number;
}

static void swap_grads(const struct ox_plan_model *model, uint32_t a, uint32_t b) {
    struct ox_plan_grad *const grads = (struct ox_plan_grad *)model->grads, kept = grads[a];
    struct ox_plan_unit *const units = (struct ox_plan_unit *)model->units;
    struct ox_plan_stage *const stages = (struct ox_plan_stage *)model->stages;
    grads[a] = grads[b];
    grads[b] = kept;
    for (uint32_t i = 0; i < model->grad_count; i++) {
        swap_numbers(&grads[i].added_to, a, b);
        swap_numbers(&grads[i].addend, a, b);
    }
    for (uint32_t i = 0; i < model->unit_count; i++) {
        swap_numbers(&units[i].grad_idx, a, b);
    }
    for (uint32_t i = 0; i < model->stage_count; i++) {
        for (uint32_t k = 0; k < stages[i].unit_count; k++) {
            swap_numbers(&stages[i].units[k].grad_idx, a, b);
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
    for (uint32_t i = 0; i < model->grad_count; i++) {
        swap_numbers(&m->grads[i].unit_idx, a, b);
    }
    for (uint32_t i = 0; i < model->unit_count; i++) {
        swap_numbers(&m->order[i], a, b);
    }
    for (uint32_t i = 0; i < model->stage_count; i++) {
        for (uint32_t k = 0; k < m->stages[i].unit_count; k++) {
            swap_numbers(&m->stages[i].units[k].unit_idx, a, b);
        }
    }
}

void plan_model_vary(struct plan_model *m, const struct ox_plan_model *model, uint64_t *elems, uint64_t seed) {
    struct drawing d = {.seed = seed};
    for (uint32_t i = 0; i < model->stage_count; i++) {
        vary_stage(&d, &m->stages[i]);
    }
    struct ox_plan_stage *const first = &m->stages[0], *const last = &m->stages[model->stage_count - 1];
    first->input_bytes = about(&d, first->input_bytes);
    last->output_bytes = about(&d, last->output_bytes);
    for (uint32_t i = 1; i < model->stage_count; i++) {
        struct ox_plan_stage *const from = &m->stages[i - 1], *const to = &m->stages[i];
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
