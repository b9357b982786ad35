/* Makes the schedule of a pass: which nodes run, the gradients that flow back, how long each value is needed, and where
 * it lies. */
#include "engine/model/schedule.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "engine/model/pieces.h"

#include <string.h>

enum { VALUE_ALIGN_BYTES = 64, TOUCHES_MAX = 16 };

static const struct ox_node_row *row_of(const struct ox_node *node) {
    return ox_node_row_of(node);
}

/* What backward of a node reads: less where no weight of it is trained, nothing where it does not run. */
static unsigned reads_of(const struct ox_schedule *schedule, const struct ox_node *node) {
    const struct ox_node_row *const row = row_of(node);
    const bool trained = ox_node_is_trained(&schedule->list, node);
    return !schedule->flows[node->out] ? 0
                                       : ox_node_reads_of(node, row->reads & ~(trained ? 0 : row->reads_for_weights));
}

static uint32_t home_of(const struct ox_schedule *schedule, uint32_t value) {
    return schedule->list.values[value].home;
}

static uint32_t add_value(struct ox_schedule *schedule, uint64_t bytes) {
    const uint32_t id = schedule->list.value_count++;
    OX_ASSERT(id < OX_LIST_VALUES_MAX);
    schedule->list.values[id] = (struct ox_value){.bytes = bytes, .home = id};
    return id;
}

/* ---- what runs ---- */

/* The values whose gradient is wanted: the input's, if a stage before has something trained, and those that depend on
 * a trained weight of the unit or on such a value. */
static void mark_flows(struct ox_schedule *schedule) {
    const struct ox_list *const list = &schedule->list;
    bool *const flows = schedule->flows;
    flows[list->in] = list->unit->gives_dx;
    for (uint32_t i = 0; i < list->node_count; i++) {
        const struct ox_node *const node = &list->nodes[i];
        flows[node->out] = ox_node_is_trained(list, node) || flows[node->in] || flows[node->residual] ||
                           flows[node->weights];
    }
}

static void mark_needed(struct ox_schedule *schedule) {
    bool *const needed = schedule->needed;
    for (uint32_t i = 0; i < schedule->list.node_count; i++) {
        const struct ox_node *const node = &schedule->list.nodes[i];
        const unsigned reads = reads_of(schedule, node);
        needed[node->in] |= (reads & OX_READS_IN) != 0;
        needed[node->out] |= (reads & OX_READS_OUT) != 0;
        needed[node->order] |= (reads & OX_READS_ORDER) != 0;
        needed[node->weights] |= (reads & OX_READS_WEIGHTS) != 0;
        for (uint32_t k = 0; k < OX_NODE_SAVED_MAX; k++) {
            needed[node->saved[k]] |= (reads & OX_READS_SAVED) != 0;
        }
    }
    needed[OX_NO_VALUE] = needed[schedule->list.in] = false; /* the caller has the input */
}

/* A forward pass alone leaves out what is saved for backward and made for nothing else. */
static void mark_absent(struct ox_schedule *schedule) {
    for (uint32_t i = 0; i < schedule->list.node_count; i++) {
        const struct ox_node *const node = &schedule->list.nodes[i];
        for (uint32_t k = 0; k < OX_NODE_SAVED_MAX; k++) {
            schedule->absent[node->saved[k]] = (row_of(node)->saved_optional >> k & 1) != 0;
        }
    }
}

/* The value that the node at `idx` works on in place is wanted wherever a later version of it is. */
static bool is_wanted(const bool *wanted, const struct ox_node *node) {
    bool is = wanted[node->out];
    for (uint32_t k = 0; k < OX_NODE_SAVED_MAX; k++) {
        is |= node->saved[k] != OX_NO_VALUE && wanted[node->saved[k]];
    }
    return is;
}

static void add_forward(struct ox_schedule *schedule) {
    const struct ox_list *const list = &schedule->list;
    const bool whole = !ox_pass_is_backward(schedule->pass);
    bool wanted[OX_LIST_VALUES_MAX], runs[OX_LIST_NODES_MAX];
    memcpy(wanted, schedule->needed, sizeof wanted);
    wanted[list->out] |= whole;
    for (uint32_t i = list->node_count; i-- > 0;) { /* what nothing reads is not recomputed */
        const struct ox_node *const node = &list->nodes[i];
        runs[i] = whole || is_wanted(wanted, node);
        wanted[node->in] |= runs[i];
        wanted[node->residual] |= runs[i];
        wanted[node->order] |= runs[i];
        wanted[node->weights] |= runs[i];
    }
    for (uint32_t i = 0; i < list->node_count; i++) {
        if (runs[i]) {
            schedule->steps[schedule->step_count++] = (struct ox_schedule_step){.node_idx = i};
        }
    }
}

/* ---- gradients ---- */

/* Whether backward of a node before `node_idx`, which runs later, reads what lies in `home`. */
static bool is_read_later(const struct ox_schedule *schedule, uint32_t home, uint32_t node_idx) {
    for (uint32_t i = 0; i < node_idx; i++) {
        const struct ox_node *const node = &schedule->list.nodes[i];
        const unsigned reads = reads_of(schedule, node);
        if (((reads & OX_READS_IN) != 0 && home_of(schedule, node->in) == home) ||
            ((reads & OX_READS_OUT) != 0 && home_of(schedule, node->out) == home) ||
            ((reads & OX_READS_WEIGHTS) != 0 && home_of(schedule, node->weights) == home)) {
            return true;
        }
    }
    return false;
}

/* The home of a gradient: in the memory of what it may replace, or of its own. */
static uint32_t home_of_din(const struct ox_schedule *schedule, const struct ox_schedule_step *step, uint32_t din) {
    const struct ox_node *const node = &schedule->list.nodes[step->node_idx];
    const uint32_t in_home = home_of(schedule, node->in);
    if (step->dresidual != OX_NO_VALUE) {
        return home_of(schedule, step->dresidual);
    }
    switch (row_of(node)->over) {
    case OX_OVER_DOUT:
        return home_of(schedule, step->dout);
    case OX_OVER_IN:
        return is_read_later(schedule, in_home, step->node_idx) ? din : in_home;
    case OX_OVER_NOTHING:
        break;
    }
    /* A residual has the gradient of `out` too. */
    return row_of(node)->may_replace_dout && node->residual == OX_NO_VALUE ? home_of(schedule, step->dout) : din;
}

/* The gradient of a mixture's weights: the first step that has a part of it sets it, the others add. */
static void add_weights(struct ox_schedule *schedule, const struct ox_node *node, uint32_t *grads,
                        struct ox_schedule_step *step) {
    if (node->weights != OX_NO_VALUE) {
        step->adds_weights = grads[node->weights] != OX_NO_VALUE;
        if (!step->adds_weights) {
            const struct ox_value *const weights = &schedule->list.values[node->weights];
            const uint64_t bytes = weights->shared ? ox_all_rows_grad_bytes(schedule->list.shape, weights->bytes)
                                                   : weights->bytes;
            grads[node->weights] = add_value(schedule, bytes);
            schedule->list.values[grads[node->weights]].shared = schedule->list.values[node->weights].shared;
        }
        step->dweights = grads[node->weights];
    }
}

/* Backward of the nodes in reverse. A residual passes its gradient on as it is; a second gradient of a value is added
 * by the node that makes it. */
static void add_backward(struct ox_schedule *schedule) {
    struct ox_list *const list = &schedule->list;
    uint32_t grads[OX_LIST_VALUES_MAX] = {0};
    schedule->dx = add_value(schedule, ox_max_u64(list->values[list->in].bytes, list->values[list->out].bytes));
    grads[list->out] = schedule->dx;
    /* Against the order of the list, so that a value's gradient is whole before the node that made it is reached. */
    for (uint32_t i = list->node_count; i-- > 0;) {
        const struct ox_node *const node = &list->nodes[i];
        struct ox_schedule_step step = {.node_idx = i, .backward = true, .dout = grads[node->out]};
        if (!schedule->flows[node->out]) {
            continue;
        }
        OX_ASSERT(step.dout != OX_NO_VALUE);
        /* The gradient of a sum is that of both its terms: the residual's is the same memory, and costs nothing. */
        if (schedule->flows[node->residual]) {
            OX_ASSERT(grads[node->residual] == OX_NO_VALUE);
            grads[node->residual] = step.dout;
        }
        /* A value that was read twice has a gradient already, to which this node's operation adds its own. */
        step.dresidual = grads[node->in];
        OX_ASSERT(step.dresidual == OX_NO_VALUE || row_of(node)->adds);
        if (schedule->flows[node->in] || !row_of(node)->may_skip_din) {
            step.din = add_value(schedule, list->values[node->in].bytes);
            list->values[step.din].shared = list->values[node->in].shared;
            list->values[step.din].home = home_of_din(schedule, &step, step.din);
        }
        grads[node->in] = schedule->flows[node->in] ? step.din : OX_NO_VALUE;
        add_weights(schedule, node, grads, &step);
        schedule->steps[schedule->step_count++] = step;
    }
}

static void add_scratch(struct ox_schedule *schedule) {
    for (uint32_t i = 0; i < schedule->step_count; i++) {
        struct ox_schedule_step *const step = &schedule->steps[i];
        const struct ox_node *const node = &schedule->list.nodes[step->node_idx];
        const struct ox_node_row *const row = row_of(node);
        const uint64_t bytes = row->scratch == NULL ? 0 : row->scratch(schedule->list.shape, node, step->backward);
        step->scratch = bytes == 0 ? OX_NO_VALUE : add_value(schedule, bytes);
        if (ox_node_cut_count(schedule->list.shape, node) > 0 && step->scratch != OX_NO_VALUE) {
            schedule->list.values[step->scratch].shared = true; /* other ranks read or write it */
        }
    }
}

static void add_phases(struct ox_schedule *schedule) {
    uint32_t phase = 0;
    for (uint32_t i = 0; i < schedule->step_count; i++) {
        struct ox_schedule_step *const step = &schedule->steps[i];
        const struct ox_node *const node = &schedule->list.nodes[step->node_idx];
        const uint32_t cuts = ox_node_cut_count(schedule->list.shape, node);
        const bool before = ox_node_cuts_before(node, step->backward);
        phase += before ? cuts : 0;
        step->phase = phase;
        step->parts = ox_schedule_crossings(schedule, step, NULL);
        phase += step->parts + (before ? 0 : cuts);
    }
}

uint32_t ox_schedule_crossings(const struct ox_schedule *schedule, const struct ox_schedule_step *step,
                               struct ox_node_cut_at *out) {
    struct ox_node_cut_at room[OX_NODE_CUTS_MAX];
    const struct ox_node *const node = &schedule->list.nodes[step->node_idx];
    const uint32_t tensors = ox_shape_tensors(schedule->list.shape);
    const uint32_t ranks = node->kind == OX_NODE_EXPERTS ? ox_shape_experts(schedule->list.shape) * tensors
                           : node->kind == OX_NODE_RING  ? ox_shape_groups(schedule->list.shape)
                                                         : tensors;
    const bool apart = ranks > 1 && row_of(node)->parts != NULL;
    return apart ? row_of(node)->parts(&schedule->list, node, step->backward, step->din != OX_NO_VALUE,
                                       out != NULL ? out : room) : 0;
}

uint32_t ox_schedule_phases(const struct ox_schedule *schedule) {
    if (schedule->step_count == 0) {
        return 1;
    }
    const struct ox_schedule_step *const last = &schedule->steps[schedule->step_count - 1];
    return last->phase + last->parts + 1;
}

/* ---- lives ---- */

static void push(const struct ox_schedule *schedule, uint32_t *values, uint32_t *count, uint32_t value) {
    if (value != OX_NO_VALUE && !schedule->absent[value]) {
        OX_ASSERT(*count < TOUCHES_MAX);
        values[(*count)++] = value;
    }
}

/* What a step reads and writes. */
static uint32_t touched(const struct ox_schedule *schedule, const struct ox_schedule_step *step,
                        uint32_t values[TOUCHES_MAX]) {
    const struct ox_node *const node = &schedule->list.nodes[step->node_idx];
    const unsigned reads = step->backward ? reads_of(schedule, node) : OX_READS_IN;
    uint32_t count = 0;
    push(schedule, values, &count, (reads & OX_READS_IN) != 0 ? node->in : OX_NO_VALUE);
    push(schedule, values, &count, (reads & OX_READS_OUT) != 0 || !step->backward ? node->out : OX_NO_VALUE);
    for (uint32_t k = 0; k < OX_NODE_SAVED_MAX; k++) {
        push(schedule, values, &count, (reads & OX_READS_SAVED) != 0 || !step->backward ? node->saved[k] : OX_NO_VALUE);
    }
    push(schedule, values, &count, (reads & OX_READS_ORDER) != 0 || !step->backward ? node->order : OX_NO_VALUE);
    push(schedule, values, &count, (reads & OX_READS_WEIGHTS) != 0 || !step->backward ? node->weights : OX_NO_VALUE);
    push(schedule, values, &count, step->backward ? OX_NO_VALUE : node->residual);
    push(schedule, values, &count, step->dweights);
    push(schedule, values, &count, step->dout);
    push(schedule, values, &count, step->dresidual);
    push(schedule, values, &count, step->din);
    push(schedule, values, &count, step->scratch);
    return count;
}

static void live(struct ox_schedule *schedule, uint32_t value, uint32_t step_idx) {
    struct ox_life *const life = &schedule->lives[home_of(schedule, value)];
    life->first = step_idx < life->first ? step_idx : life->first;
    life->last = step_idx > life->last ? step_idx : life->last;
}

static void find_lives(struct ox_schedule *schedule) {
    uint32_t values[TOUCHES_MAX];
    for (uint32_t v = 0; v < schedule->list.value_count; v++) {
        schedule->lives[v] = (struct ox_life){.first = UINT32_MAX};
    }
    for (uint32_t i = 0; i < schedule->step_count; i++) {
        const uint32_t count = touched(schedule, &schedule->steps[i], values);
        for (uint32_t k = 0; k < count; k++) {
            live(schedule, values[k], i);
        }
    }
    for (uint32_t v = 1; ox_pass_is_kept(schedule->pass) && v < schedule->list.value_count; v++) {
        if (schedule->needed[v]) {
            live(schedule, v, ox_pass_is_backward(schedule->pass) ? 0 : schedule->step_count - 1);
        }
    }
}

/* ---- places ---- */

/* Lays out what is kept, in the same way for the pass that leaves it and the one that finds it. */
static void place_kept(struct ox_schedule *schedule) {
    for (uint32_t v = 1; v < schedule->list.value_count; v++) {
        struct ox_place *const place = &schedule->places[home_of(schedule, v)];
        if (schedule->needed[v] && place->memory == OX_MEMORY_NONE && schedule->list.values[v].shared) {
            *place = (struct ox_place){.memory = OX_MEMORY_SHARED_KEPT, .offset = schedule->shared_kept_bytes};
            schedule->shared_kept_bytes += ox_align_up(schedule->list.values[v].bytes, VALUE_ALIGN_BYTES);
        } else if (schedule->needed[v] && place->memory == OX_MEMORY_NONE) {
            *place = (struct ox_place){.memory = OX_MEMORY_KEPT, .offset = schedule->kept_bytes};
            schedule->kept_bytes +=
                ox_align_up(schedule->list.values[home_of(schedule, v)].bytes, VALUE_ALIGN_BYTES);
        }
    }
}

static bool overlaps(struct ox_life a, struct ox_life b) {
    return a.first <= b.last && b.first <= a.last;
}

/* The end of a value that is in the way of `bytes` at `offset` of a memory while `life` lasts; 0: nothing is. */
static uint64_t in_the_way(const struct ox_schedule *schedule, enum ox_pass_memory memory, uint64_t offset,
                           uint64_t bytes, struct ox_life life) {
    for (uint32_t v = 1; v < schedule->list.value_count; v++) {
        const struct ox_place *const place = &schedule->places[v];
        const uint64_t end = place->offset + ox_align_up(schedule->list.values[v].bytes, VALUE_ALIGN_BYTES);
        if (place->memory == memory && place->offset < offset + bytes && offset < end &&
            overlaps(schedule->lives[v], life)) {
            return end;
        }
    }
    return 0;
}

/* The lowest offset at which a value fits beside what is placed already. It is 0 or the end of another value. */
static uint64_t lowest(const struct ox_schedule *schedule, enum ox_pass_memory memory, uint32_t home) {
    const uint64_t bytes = ox_align_up(schedule->list.values[home].bytes, VALUE_ALIGN_BYTES);
    const struct ox_life life = schedule->lives[home];
    uint64_t best = UINT64_MAX;
    for (uint32_t v = 0; v < schedule->list.value_count; v++) {
        const struct ox_place *const place = &schedule->places[v];
        const uint64_t end = ox_align_up(schedule->list.values[v].bytes, VALUE_ALIGN_BYTES) + place->offset;
        const uint64_t offset = v == 0 ? 0 : end;
        if ((v == 0 || place->memory == memory) && offset < best &&
            in_the_way(schedule, memory, offset, bytes, life) == 0) {
            best = offset;
        }
    }
    return best;
}

/* What row groups have in common is needed in whole phases, because groups come to a phase one after the other. */
static void widen_lives(struct ox_schedule *schedule) {
    const struct ox_schedule_step *const steps = schedule->steps;
    for (uint32_t v = 1; v < schedule->list.value_count; v++) {
        struct ox_life *const life = &schedule->lives[v];
        if (!schedule->list.values[v].shared || life->first == UINT32_MAX) {
            continue;
        }
        const uint32_t begin = steps[life->first].phase, end = steps[life->last].phase + steps[life->last].parts;
        while (life->first > 0 && steps[life->first - 1].phase + steps[life->first - 1].parts >= begin) {
            life->first--;
        }
        while (life->last + 1 < schedule->step_count && steps[life->last + 1].phase <= end) {
            life->last++;
        }
    }
}

/* The largest value that has no place yet, of those that row groups have in common, or of the others; 0: none. */
static uint32_t largest_open(const struct ox_schedule *schedule, bool shared) {
    uint32_t next = 0;
    for (uint32_t v = 1; v < schedule->list.value_count; v++) {
        const bool is_open = home_of(schedule, v) == v && schedule->lives[v].first != UINT32_MAX &&
                             schedule->places[v].memory == OX_MEMORY_NONE && schedule->list.values[v].shared == shared;
        next = is_open && (next == 0 || schedule->list.values[v].bytes > schedule->list.values[next].bytes) ? v : next;
    }
    return next;
}

/* Gives what row groups have in common places of its own. */
static void place_shared(struct ox_schedule *schedule) {
    for (uint32_t next; (next = largest_open(schedule, true)) != 0;) {
        const uint64_t offset = lowest(schedule, OX_MEMORY_SHARED_WORK, next);
        schedule->places[next] = (struct ox_place){.memory = OX_MEMORY_SHARED_WORK, .offset = offset};
        schedule->shared_work_bytes =
            ox_max_u64(schedule->shared_work_bytes,
                       offset + ox_align_up(schedule->list.values[next].bytes, VALUE_ALIGN_BYTES));
    }
}

/* Places the rest by size, largest first; in a pass with kept values where those have left room, if it fits there. */
static void place_rest(struct ox_schedule *schedule) {
    for (uint32_t next; (next = largest_open(schedule, false)) != 0;) {
        const uint64_t bytes = ox_align_up(schedule->list.values[next].bytes, VALUE_ALIGN_BYTES);
        struct ox_place place = {.memory = OX_MEMORY_KEPT, .offset = lowest(schedule, OX_MEMORY_KEPT, next)};
        if (place.offset > schedule->kept_bytes || bytes > schedule->kept_bytes - place.offset) {
            place = (struct ox_place){.memory = OX_MEMORY_WORK, .offset = lowest(schedule, OX_MEMORY_WORK, next)};
            schedule->work_bytes = ox_max_u64(schedule->work_bytes, place.offset + bytes);
        }
        schedule->places[next] = place;
    }
}

void ox_schedule_make(const struct ox_list *list, enum ox_pass pass, struct ox_schedule *out) {
    const bool backward = ox_pass_is_backward(pass);
    memset(out, 0, sizeof *out);
    out->list = *list;
    out->pass = pass;
    /* Which steps there are, then how long each value lives, and only then where it lies: a place needs the whole
     * life. */
    mark_flows(out);
    if (pass == OX_PASS_FORWARD) {
        mark_absent(out);
    } else {
        mark_needed(out);
    }
    if (pass != OX_PASS_BACKWARD_KEPT) {
        add_forward(out);
    }
    if (backward) {
        add_backward(out);
    }
    add_scratch(out);
    add_phases(out);
    find_lives(out);
    widen_lives(out);
    /* What the caller lends is placed first: ends of the stage, then what is kept for backward; the rest by size in
     * what is left. */
    out->places[home_of(out, list->in)].memory = OX_MEMORY_X;
    if (backward) {
        out->places[home_of(out, out->dx)].memory = OX_MEMORY_DX;
    } else {
        out->places[home_of(out, list->out)].memory = OX_MEMORY_Y;
    }
    if (ox_pass_is_kept(pass)) {
        place_kept(out);
    }
    place_shared(out);
    place_rest(out);
}

/* ---- running ---- */

static void *at(const struct ox_schedule *schedule, uint32_t value, void *const bases[OX_MEMORY_COUNT]) {
    const struct ox_place place = schedule->places[home_of(schedule, value)];
    if (value == OX_NO_VALUE || schedule->absent[value] || place.memory == OX_MEMORY_NONE) {
        return NULL;
    }
    return (unsigned char *)bases[place.memory] + place.offset;
}

/* Sums of a gradient side by side: with experts of which other ranks have some, one for each of them. */
static uint32_t sums_of(const struct ox_schedule *schedule) {
    return schedule->list.unit->kind == OX_UNIT_EXPERTS ? ox_shape_experts(schedule->list.shape) : 1;
}

static float *nth_sum(const struct ox_schedule *schedule, const struct ox_stage_weights *weights, uint32_t unit,
                      uint32_t nth) {
    float *const grads = weights->grads[unit];
    return grads == NULL ? NULL : grads + nth * schedule->list.units[unit]->elem_count;
}

void ox_clear_range(struct ox_unit_job *job, float *grads, uint64_t begin, uint64_t end) {
    if (begin < end) {
        OX_RUN(&job->run, zero, .target = grads + begin, .bytes = (end - begin) * sizeof *grads);
    }
}

void ox_clear_gaps(struct ox_unit_job *job, const struct ox_unit *unit, float *grads) {
    const struct ox_model *const model = job->shape->model;
    uint64_t end = 0;
    for (const struct ox_tensor *tensor = NULL; (tensor = ox_unit_next_tensor(model, unit, tensor)) != NULL;) {
        if (unit->role_trained[tensor->role]) {
            ox_clear_range(job, grads, end, tensor->offset);
            end = tensor->offset + tensor->count;
        }
    }
    ox_clear_range(job, grads, end, unit->elem_count);
}

void ox_clear_frozen(struct ox_unit_job *job, const struct ox_unit *unit, float *grads, enum ox_role role) {
    const struct ox_model *const model = job->shape->model;
    const struct ox_tensor *tensor = NULL;
    while (unit->role_trained[role] && (tensor = ox_unit_next_tensor(model, unit, tensor)) != NULL) {
        if (tensor->role == role && !tensor->trained) {
            ox_clear_range(job, grads, tensor->offset, tensor->offset + tensor->count);
        }
    }
}

/* Before backward: what no operation writes in the gradients of the stage's units, or all where a node adds to some
 * elements alone. */
static void clear_gaps(const struct ox_schedule *schedule, struct ox_unit_job *job,
                       const struct ox_stage_weights *weights) {
    const struct ox_list *const list = &schedule->list;
    bool only_adds = false;
    for (uint32_t i = 0; i < list->node_count; i++) {
        only_adds |= row_of(&list->nodes[i])->only_adds;
    }
    for (uint32_t at = 0; job->begins && at < list->unit_count * sums_of(schedule); at++) {
        const uint32_t i = at % list->unit_count;
        float *const grads = nth_sum(schedule, weights, i, at / list->unit_count);
        if (grads != NULL && only_adds) {
            ox_clear_range(job, grads, 0, list->units[i]->elem_count);
        } else if (grads != NULL) {
            ox_clear_gaps(job, list->units[i], grads);
        }
    }
}

/* After backward of a node: what it has added for tensors that are not trained. */
static void clear_frozen(const struct ox_schedule *schedule, struct ox_unit_job *job,
                         const struct ox_stage_weights *weights, const struct ox_node *node) {
    for (uint32_t k = 0; k < row_of(node)->weight_count; k++) {
        const enum ox_role role = (enum ox_role)(node->role + k);
        for (uint32_t group = 0; group < schedule->list.groups; group++) {
            const uint32_t owner = ox_list_owner_of(&schedule->list, role, group);
            for (uint32_t nth = 0; owner != UINT32_MAX && weights->grads[owner] != NULL && nth < sums_of(schedule);
                 nth++) {
                ox_clear_frozen(job, schedule->list.units[owner], nth_sum(schedule, weights, owner, nth), role);
            }
        }
    }
}

void ox_schedule_run(const struct ox_schedule *schedule, struct ox_unit_job *job,
                     const struct ox_stage_weights *weights, void *const bases[OX_MEMORY_COUNT], uint32_t phase) {
    bool gaps_are_clear = false;
    for (uint32_t i = 0; i < schedule->step_count; i++) {
        const struct ox_schedule_step *const step = &schedule->steps[i];
        const bool all = phase == OX_SCHEDULE_ALL_PHASES;
        gaps_are_clear |= step->backward && !all && step->phase < phase;
        const struct ox_node *const node = &schedule->list.nodes[step->node_idx];
        const bool done = job->group > 0 && ox_node_is_whole(job->shape, node); /* with the first group */
        if (done || (!all && (step->phase > phase || step->phase + step->parts < phase))) {
            continue;
        }
        OX_ASSERT(!all || step->parts == 0);
        const struct ox_node_call call = {
            .job = job, .list = &schedule->list, .node = node, .weights = weights,
            .part = all ? 0 : phase - step->phase,
            .in = at(schedule, node->in, bases), .residual = at(schedule, node->residual, bases),
            .out = at(schedule, node->out, bases),
            .saved = {at(schedule, node->saved[0], bases), at(schedule, node->saved[1], bases)},
            .scratch = at(schedule, step->scratch, bases), .dout = at(schedule, step->dout, bases),
            .din = at(schedule, step->din, bases), .dresidual = at(schedule, step->dresidual, bases),
            .order = at(schedule, node->order, bases), .pair_weights = at(schedule, node->weights, bases),
            .dweights = at(schedule, step->dweights, bases), .adds_weights = step->adds_weights};
        if (step->backward && !gaps_are_clear) {
            clear_gaps(schedule, job, weights);
            gaps_are_clear = true;
        }
        (step->backward ? row_of(node)->backward : row_of(node)->forward)(&call);
        if (step->backward) {
            clear_frozen(schedule, job, weights, node);
        }
    }
}
