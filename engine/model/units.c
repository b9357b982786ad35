/* What a unit does, whatever its kind: its list of nodes, and what follows from it. */
#include "engine/model/pieces.h"
#include "engine/model/schedule.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <stdlib.h>

void ox_unit_list(const struct ox_shape *shape, const struct ox_unit *unit, struct ox_list *out) {
    switch (unit->kind) {
    case OX_UNIT_EMBED:
        ox_embed_list(shape, unit, out);
        break;
    case OX_UNIT_BLOCK:
        ox_block_list(shape, unit, out);
        break;
    case OX_UNIT_HEAD:
        ox_head_list(shape, unit, out);
        break;
    case OX_UNIT_EXPERTS:
        ox_experts_list(shape, unit, out);
        break;
    case OX_UNIT_BESIDE: /* in the list of its stage */
        OX_ASSERT(false);
    }
}

static void make(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass,
                 struct ox_schedule *out) {
    struct ox_list list;
    ox_unit_list(shape, unit, &list);
    ox_schedule_make(&list, pass, out);
}

/* What row groups have in common, and what each has for itself, which a pass of one phase uses for one after the
 * other. */
static uint64_t work_of_groups(const struct ox_schedule *schedule) {
    const uint32_t groups = ox_schedule_phases(schedule) > 1 ? ox_shape_own_groups(schedule->list.shape) : 1;
    return schedule->shared_work_bytes + groups * schedule->work_bytes;
}

uint64_t ox_unit_work_bytes(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass) {
    struct ox_schedule schedule;
    if (unit->kind == OX_UNIT_BESIDE) { /* counted with its stage */
        return 0;
    }
    make(shape, unit, pass, &schedule);
    /* A plan gives each pass of a block room, also where kept values leave enough. */
    return ox_max_u64(work_of_groups(&schedule), unit->kind == OX_UNIT_BLOCK || unit->kind == OX_UNIT_EXPERTS ? 1 : 0);
}

struct ox_unit_ends ox_unit_ends(const struct ox_shape *shape, const struct ox_unit *unit) {
    struct ox_list list;
    ox_unit_list(shape, unit, &list);
    const uint64_t groups = ox_shape_own_groups(shape);
    return (struct ox_unit_ends){.in_bytes = list.values[list.in].bytes * groups,
                                 .out_bytes = list.values[list.out].bytes * groups};
}

struct ox_unit_routes ox_unit_routes(const struct ox_shape *shape, const struct ox_unit *unit) {
    const struct ox_mixture *const mixture = &shape->model->config.mixture;
    if (unit->kind != OX_UNIT_BLOCK || mixture->per_unit == 0 ||
        !ox_model_stage_has(shape->model, unit, OX_ROLE_ROUTER)) {
        return (struct ox_unit_routes){0};
    }
    const uint64_t bytes = (mixture->router.experts + 1) * sizeof(int32_t); /* the last part of the order of pairs */
    return (struct ox_unit_routes){.offset = ox_handed_of(shape).order + ox_pair_order_bytes(shape) - bytes,
                                   .bytes = bytes};
}

uint32_t ox_unit_rows(const struct ox_unit *unit, const void *routes) {
    const int32_t *const offsets = routes; /* where an expert's rows begin, and behind the last one where they end */
    return (uint32_t)(offsets[unit->expert_first + unit->expert_count] - offsets[unit->expert_first]);
}

uint64_t ox_unit_kept_bytes(const struct ox_shape *shape, const struct ox_unit *unit) {
    struct ox_schedule schedule;
    if (unit->kind != OX_UNIT_BLOCK) {
        return 0;
    }
    make(shape, unit, OX_PASS_BACKWARD_KEPT, &schedule);
    return schedule.shared_kept_bytes + ox_shape_own_groups(shape) * schedule.kept_bytes;
}

/* The cost of the phases before this one. */
static struct ox_plan_work cost_before(const struct ox_schedule *schedule, uint32_t phase) {
    const struct ox_shape *const shape = schedule->list.shape;
    const uint32_t groups = ox_shape_own_groups(shape);
    struct ox_cost cost = ox_cost_begin(shape, schedule->list.unit);
    for (uint32_t i = 0; i < schedule->step_count && schedule->steps[i].phase < phase; i++) {
        const struct ox_node *const node = &schedule->list.nodes[schedule->steps[i].node_idx];
        cost.skips_din = schedule->steps[i].din == OX_NO_VALUE;
        ox_node_row_of(node)->cost(&cost, node, schedule->steps[i].backward);
    }
    const struct ox_plan_work *const one = &cost.work;
    return (struct ox_plan_work){.gemm_flops = one->gemm_flops * groups, .bytes = one->bytes * groups,
                                 .attention_flops = one->attention_flops * groups,
                                 .attention_backward_flops = one->attention_backward_flops * groups,
                                 .gemm_bytes = one->gemm_bytes * groups, .ops = one->ops * groups};
}

struct ox_plan_work ox_unit_cost(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass) {
    struct ox_schedule schedule;
    make(shape, unit, pass, &schedule);
    return cost_before(&schedule, UINT32_MAX);
}

static uint8_t role_of(struct ox_place place) {
    return place.memory == OX_MEMORY_SHARED_KEPT ? OX_USE_KEPT : OX_USE_SCRATCH;
}

/* The value that all row groups have in common, or its gradient, to which a step brings pieces or from which it takes
 * them. */
static uint32_t in_common(const struct ox_schedule_step *step, const struct ox_node *node) {
    const bool takes = ox_node_row_of(node)->ends == OX_ENDS_BEFORE;
    return step->backward ? (takes ? step->din : step->dout) : takes ? node->in : node->out;
}

/* The cuts at a step: of a gather the whole, in place; of an exchange from the whole, or its gradient, to the step's
 * scratch, which it reads, or the other way round. Of each group of features its own part. Returns how many. */
static uint32_t cuts_at(const struct ox_schedule *schedule, const struct ox_schedule_step *step,
                        struct ox_plan_cut *out) {
    const struct ox_list *const list = &schedule->list;
    const struct ox_node *const node = &list->nodes[step->node_idx];
    const uint32_t count = ox_node_cut_count(list->shape, node);
    if (count == 0) {
        return 0;
    }
    const bool gathers = !step->backward && step->scratch == OX_NO_VALUE;
    const bool gives = ox_node_cuts_before(node, step->backward);
    const struct ox_place whole = schedule->places[list->values[in_common(step, node)].home];
    const struct ox_place pieces = gathers ? whole : schedule->places[list->values[step->scratch].home];
    const struct ox_place from = gives ? whole : pieces, to = gives ? pieces : whole;
    const uint64_t each = list->values[gathers ? node->out : step->scratch].bytes / count;
    for (uint32_t i = 0; i < count; i++) {
        out[i] = (struct ox_plan_cut){.kind = gathers ? OX_CUT_GATHER : OX_CUT_EXCHANGE, .axis = OX_AXIS_CONTEXT,
                                      .role = role_of(to), .across = from.memory != to.memory,
                                      .source = from.offset + i * each, .target = to.offset + i * each,
                                      .bytes = each};
    }
    return count;
}

static double flops_of(struct ox_plan_work work) {
    return work.gemm_flops + work.attention_flops + work.attention_backward_flops;
}

/* What crosses within a step, of which ranks do parts: regions of its scratch or of what it saves. Returns how many. */
static uint32_t cuts_within(const struct ox_schedule *schedule, const struct ox_schedule_step *step,
                            struct ox_plan_cut *out) {
    struct ox_node_cut_at cuts[OX_NODE_CUTS_MAX];
    const uint32_t count = ox_schedule_crossings(schedule, step, cuts);
    const struct ox_node *const node = &schedule->list.nodes[step->node_idx];
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t value = cuts[i].saved ? node->saved[0] : step->scratch;
        const struct ox_place place = schedule->places[schedule->list.values[value].home];
        const bool kept = place.memory == OX_MEMORY_KEPT;
        const uint64_t first = place.offset + (kept ? schedule->shared_kept_bytes : schedule->shared_work_bytes);
        OX_ASSERT(kept || place.memory == OX_MEMORY_WORK);
        out[i] = (struct ox_plan_cut){.kind = (uint8_t)cuts[i].kind, .round = cuts[i].round,
                                      .axis = node->kind == OX_NODE_EXPERTS && !cuts[i].features ? OX_AXIS_EXPERT
                                              : node->kind == OX_NODE_RING ? OX_AXIS_CONTEXT : OX_AXIS_TENSOR,
                                      .role = kept ? OX_USE_KEPT : OX_USE_SCRATCH, .source = first + cuts[i].source,
                                      .target = first + cuts[i].target, .bytes = cuts[i].bytes};
    }
    return count;
}

/* What is computed up to the cut number `nth`, which a step has. A ring does as much in each of its turns. */
static double flops_behind(const struct ox_schedule *schedule, const struct ox_schedule_step *step, uint32_t nth) {
    const double groups = ox_shape_groups(schedule->list.shape), done = nth + 1 - step->phase;
    if (schedule->list.nodes[step->node_idx].kind != OX_NODE_RING) {
        return flops_of(cost_before(schedule, nth + 1));
    }
    const double before = flops_of(cost_before(schedule, step->phase));
    const double of_step = flops_of(cost_before(schedule, step->phase + 1)) - before;
    return before + of_step * (done < groups ? done / groups : 1);
}

/* Experts take the rows of one rank after the other, and nothing before the first and behind the last: what comes
 * together before that is in place. */
static double share_of_experts(const struct ox_shape *shape, const struct ox_plan_cut *cuts, uint32_t nth) {
    const bool before = cuts[nth].kind == OX_CUT_GATHER;
    return cuts[nth].kind == OX_CUT_ROUND ? cuts[nth].round / (double)ox_shape_experts(shape) : before ? 0 : 1;
}

uint32_t ox_unit_cuts(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass,
                      struct ox_plan_cut *out) {
    struct ox_schedule schedule;
    uint32_t count = 0;
    const bool by_rows = shape->groups.contexts > 1 && unit->kind == OX_UNIT_BLOCK;
    const bool by_experts = unit->kind == OX_UNIT_EXPERTS;
    if ((!by_rows && (!by_experts || ox_shape_experts(shape) == 1) && ox_shape_tensors(shape) == 1) ||
        unit->kind == OX_UNIT_BESIDE) {
        return 0;
    }
    make(shape, unit, pass, &schedule);
    const double all = flops_of(cost_before(&schedule, UINT32_MAX));
    for (uint32_t i = 0; i < schedule.step_count; i++) {
        const struct ox_schedule_step *const step = &schedule.steps[i];
        const uint32_t cuts = ox_node_cut_count(shape, &schedule.list.nodes[step->node_idx]), before = count;
        OX_ASSERT(count + cuts + step->parts <= OX_PLAN_CUTS_MAX);
        count += by_rows ? cuts_at(&schedule, step, &out[count]) : 0;
        count += cuts_within(&schedule, step, &out[count]);
        for (uint32_t k = before; k < count; k++) {
            out[k].share = by_experts ? share_of_experts(shape, out, k)
                           : all > 0  ? flops_behind(&schedule, step, k) / all : 0;
        }
    }
    return count;
}

struct ox_plan_rounds ox_unit_rounds(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass) {
    struct ox_plan_rounds rounds = {0};
    struct ox_schedule schedule;
    if (ox_shape_experts(shape) == 1 || unit->kind != OX_UNIT_EXPERTS) {
        return rounds;
    }
    make(shape, unit, pass, &schedule);
    /* The last step is the pass of the one node that has rounds. */
    const struct ox_schedule_step *const step = &schedule.steps[schedule.step_count - 1];
    const struct ox_place place = schedule.places[schedule.list.values[step->scratch].home];
    const uint64_t first = place.offset + schedule.shared_work_bytes;
    OX_ASSERT(place.memory == OX_MEMORY_WORK && schedule.list.nodes[step->node_idx].kind == OX_NODE_EXPERTS);
    rounds = ox_experts_rounds(shape, &schedule.list.nodes[step->node_idx], step->backward, step->din != OX_NO_VALUE);
    rounds.routes += first;
    for (uint32_t i = 0; i < OX_PLAN_ROUND_PLANES; i++) {
        rounds.own[i] += first;
        rounds.other[i] += first;
    }
    return rounds;
}

bool ox_shape_begins_stage(const struct ox_shape *shape, const struct ox_unit *unit) {
    return unit->kind != OX_UNIT_EXPERTS || ox_shape_experts(shape) == 1 ||
           unit->expert_first / shape->model->config.mixture.per_unit % ox_shape_experts(shape) == 0;
}

enum ox_status ox_units_check(const struct ox_shape *shape) {
    static const enum ox_pass passes[] = {OX_PASS_FORWARD, OX_PASS_BACKWARD, OX_PASS_FORWARD_KEPT,
                                          OX_PASS_BACKWARD_KEPT};
    for (uint32_t i = 0; i < shape->model->stage_count; i++) {
        const struct ox_unit *const unit = ox_model_stage_unit(shape->model, i);
        for (uint32_t k = 0; k < (unit->kind == OX_UNIT_BLOCK ? 4 : 2) && ox_shape_begins_stage(shape, unit); k++) {
            struct ox_schedule schedule;
            make(shape, unit, passes[k], &schedule);
            OX_TRY(ox_schedule_check(&schedule));
        }
    }
    return OX_OK;
}

/* ---- running ---- */

/* Where the pass of a rank begins in what its caller gives, for all row groups. */
struct rooms {
    unsigned char *x, *y, *dx;
};

static void *behind(void *base, uint64_t bytes) {
    return base == NULL ? NULL : (unsigned char *)base + bytes;
}

/* Sets where the memories of one row group begin: those in common in front, then group by group. */
static void set_bases(const struct ox_schedule *schedule, const struct ox_unit_job *job, const struct rooms *rooms,
                      uint32_t group, void *bases[OX_MEMORY_COUNT]) {
    const struct ox_value *const values = schedule->list.values;
    const uint32_t in_work = ox_schedule_phases(schedule) > 1 ? group : 0;
    bases[OX_MEMORY_NONE] = NULL;
    bases[OX_MEMORY_X] = behind(rooms->x, group * values[schedule->list.in].bytes);
    bases[OX_MEMORY_Y] = behind(rooms->y, group * values[schedule->list.out].bytes);
    bases[OX_MEMORY_DX] = behind(rooms->dx, group * values[schedule->dx].bytes);
    bases[OX_MEMORY_SHARED_WORK] = job->work;
    bases[OX_MEMORY_SHARED_KEPT] = job->kept;
    bases[OX_MEMORY_WORK] = behind(job->work, schedule->shared_work_bytes + in_work * schedule->work_bytes);
    bases[OX_MEMORY_KEPT] = behind(job->kept, schedule->shared_kept_bytes + group * schedule->kept_bytes);
}

static const int32_t *rows_of(const int32_t *all, const struct ox_shape *shape, uint32_t group) {
    return all == NULL ? NULL : all + (uint64_t)group * shape->rows;
}

/* The job of one row group, and the sums that it adds to. */
static void run_group(const struct ox_schedule *schedule, struct ox_unit_job *job,
                      const struct ox_stage_weights *weights, const struct rooms *rooms, uint32_t group,
                      uint32_t phase) {
    struct ox_unit_job of = *job;
    struct ox_stage_weights all = {{NULL}, {NULL}};
    void *bases[OX_MEMORY_COUNT];
    of.group = group;
    of.ids = rows_of(job->ids, job->shape, group);
    of.positions = rows_of(job->positions, job->shape, group);
    of.targets = rows_of(job->targets, job->shape, group);
    of.documents = rows_of(job->documents, job->shape, group); /* but all_documents are in common */
    struct ox_route_losses losses;
    if (job->losses != NULL) {
        losses = *job->losses;
        losses.counted = rows_of(losses.counted, job->shape, group);
        losses.load += losses.sums ? group * losses.apart : 0;
        of.losses = &losses;
    }
    for (uint32_t i = 0; weights != NULL && i < schedule->list.unit_count; i++) {
        all.weights[i] = weights->weights[i];
        all.grads[i] = weights->grads[i] == NULL ? NULL
                                                 : weights->grads[i] + group * schedule->list.units[i]->elem_count;
    }
    set_bases(schedule, job, rooms, group, bases);
    ox_schedule_run(schedule, &of, &all, bases, phase);
    job->run = of.run;
}

/* Every phase of all row groups before the next one. */
static enum ox_status run(const struct ox_schedule *schedule, struct ox_unit_job *job,
                          const struct ox_stage_weights *weights, struct rooms rooms) {
    const uint32_t phases = ox_schedule_phases(schedule), past = job->in_phases ? job->phase + 1 : phases;
    OX_ASSERT(past <= phases);
    for (uint32_t phase = job->in_phases ? job->phase : 0; phase < past; phase++) {
        for (uint32_t group = 0; group < ox_shape_own_groups(job->shape); group++) {
            run_group(schedule, job, weights, &rooms, group, phase);
        }
    }
    return job->run.status;
}

enum ox_status ox_unit_forward(struct ox_unit_job *job, const struct ox_stage_weights *weights, const void *x,
                               void *y) {
    struct ox_schedule schedule;
    make(job->shape, job->unit, job->kept != NULL ? OX_PASS_FORWARD_KEPT : OX_PASS_FORWARD, &schedule);
    return run(&schedule, job, weights, (struct rooms){.x = (void *)x, .y = y});
}

enum ox_status ox_unit_backward(struct ox_unit_job *job, const struct ox_stage_weights *weights, const void *x,
                                void *dx) {
    struct ox_schedule schedule;
    make(job->shape, job->unit, job->kept != NULL ? OX_PASS_BACKWARD_KEPT : OX_PASS_BACKWARD, &schedule);
    return run(&schedule, job, weights, (struct rooms){.x = (void *)x, .dx = dx});
}

/* ---- the angles of rotations, as tables that stay in memory ---- */

uint64_t ox_angles_floats(const struct ox_model_config *config, uint32_t contexts) {
    return ox_model_rotations(config) * (uint64_t)contexts * (config->rotary_dim / 2);
}

enum ox_status ox_angles_make(struct ox_run *run, const struct ox_model_config *config, uint32_t contexts,
                              float *cos_tables, float *sin_tables) {
    const uint32_t count = ox_model_rotations(config), half_dim = config->rotary_dim / 2;
    double *const inv_freq = calloc(half_dim + (size_t)1, sizeof *inv_freq);
    if (inv_freq == NULL) {
        return ox_fail(OX_E_NOMEM, "rotary tables: no memory");
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t at = (uint64_t)i * contexts * half_dim;
        const double scale = ox_model_rope_inv_freq(config, i, contexts, inv_freq);
        OX_RUN(run, rope_table, .cos_table = cos_tables + at, .sin_table = sin_tables + at, .inv_freq = inv_freq,
               .contexts = contexts, .half_dim = half_dim, .scale = scale);
        OX_THEN(run->status, ox_lane_drain(run->lane)); /* it reads the frequencies */
    }
    free(inv_freq);
    return run->status;
}

void ox_angles_take(struct ox_unit_job *job, uint32_t contexts, const float *cos_tables, const float *sin_tables) {
    const uint64_t at =
        (uint64_t)job->unit->rotation * contexts * (job->shape->model->config.rotary_dim / 2);
    job->cos_table = cos_tables == NULL ? NULL : cos_tables + at;
    job->sin_table = sin_tables == NULL ? NULL : sin_tables + at;
}
