/* Proves schedules: follows what every memory holds from step to step. It takes the list, the nodes' rows and the
 * schedule as data, and calls nothing of schedule.c. */
#include "engine/model/schedule.h"

#include "base/bytes.h"
#include "engine/model/pieces.h"

#include <string.h>

enum { ALIGN_BYTES = 64 };

struct checker {
    const struct ox_schedule *schedule;
    const struct ox_list *list;
    uint32_t step_idx;
    uint32_t content[OX_LIST_VALUES_MAX]; /* of a home: the value that lies there; 0: nothing, or not any more */
    uint32_t grads[OX_LIST_VALUES_MAX];   /* of a value: its gradient so far; 0: none yet */
    uint32_t made[OX_LIST_NODES_MAX];     /* how often forward of a node has run */
    uint32_t done[OX_LIST_NODES_MAX];     /* and its backward */
    uint32_t written[OX_LIST_VALUES_MAX]; /* of a value: the phase behind that in which it was written; 0: before all */
    uint32_t used[OX_LIST_VALUES_MAX];    /* of a home: the phase behind that in which a step read or wrote it last */
    bool at_once[OX_LIST_VALUES_MAX];     /* of a value: a step for all row groups has written it */
    uint32_t phase;
    uint32_t adds[OX_ROLE_COUNT + 1];     /* additions to the gradient of a tensor */
    enum ox_status status;
};

/* Keeps the first failure. */
static void refuse(struct checker *c, const char *what, uint32_t value) {
    if (c->status == OX_OK) {
        c->status = ox_fail(OX_E_CONFIG, "pass %d of a stage, step %u of %u: %s (value %u)", (int)c->schedule->pass,
                            c->step_idx, c->schedule->step_count, what, value);
    }
}

static void demand(struct checker *c, bool holds, const char *what, uint32_t value) {
    if (!holds) {
        refuse(c, what, value);
    }
}

static bool is_value(const struct checker *c, uint32_t value) {
    return value < c->list->value_count;
}

static uint32_t home_of(const struct checker *c, uint32_t value) {
    return c->list->values[value].home;
}

static const struct ox_node *node_of(const struct checker *c, const struct ox_schedule_step *step) {
    return &c->list->nodes[step->node_idx];
}

/* Whether backward of a node has something to do, by the definition: it has a trained weight, or its output depends on
 * one, or on the input of a stage that has some before it. */
static bool matters(const struct checker *c, const struct ox_node *node) {
    bool is = ox_node_is_trained(c->list, node) || (c->list->unit->gives_dx && node->in == c->list->in);
    is |= c->list->unit->gives_dx && node->residual == c->list->in;
    for (uint32_t i = 0; !is && i < c->list->node_count && &c->list->nodes[i] != node; i++) {
        const struct ox_node *const other = &c->list->nodes[i];
        is = (other->out == node->in || (node->residual != OX_NO_VALUE && other->out == node->residual) ||
              (node->weights != OX_NO_VALUE && other->out == node->weights)) &&
             matters(c, other);
    }
    return is;
}

/* Whether the gradient of a value is wanted. */
static bool is_wanted(const struct checker *c, uint32_t value) {
    bool is = value == c->list->in && c->list->unit->gives_dx;
    for (uint32_t i = 0; !is && i < c->list->node_count; i++) {
        is = value != OX_NO_VALUE && c->list->nodes[i].out == value && matters(c, &c->list->nodes[i]);
    }
    return is;
}

static unsigned reads_of(const struct checker *c, const struct ox_node *node) {
    const struct ox_node_row *const row = ox_node_row_of(node);
    return ox_node_reads_of(node, ox_node_is_trained(c->list, node) ? row->reads
                                                                    : row->reads & ~row->reads_for_weights);
}

static bool works_in_place(const struct ox_node *node) {
    return ox_node_row_of(node)->over == OX_OVER_DOUT;
}

/* ---- places ---- */

static bool overlap(const struct checker *c, uint32_t a, uint32_t b) {
    const struct ox_place *const x = &c->schedule->places[a], *const y = &c->schedule->places[b];
    /* the caller's y may be its x, where both are rows of the same size */
    const bool same_rows = x->memory + y->memory == OX_MEMORY_X + OX_MEMORY_Y && x->memory != y->memory &&
                           (x->memory == OX_MEMORY_X || x->memory == OX_MEMORY_Y) &&
                           c->list->values[c->list->in].bytes == c->list->values[c->list->out].bytes;
    return (x->memory == y->memory || same_rows) && x->offset < y->offset + c->list->values[b].bytes &&
           y->offset < x->offset + c->list->values[a].bytes;
}

/* Bytes that the pass has there. */
static uint64_t room_of(const struct checker *c, enum ox_pass_memory memory) {
    const bool backward = ox_pass_is_backward(c->schedule->pass);
    const uint64_t in = c->list->values[c->list->in].bytes, out = c->list->values[c->list->out].bytes;
    switch (memory) {
    case OX_MEMORY_NONE:
        return 0;
    case OX_MEMORY_X:
        return in;
    case OX_MEMORY_Y:
        return backward ? 0 : out;
    case OX_MEMORY_DX:
        return backward ? ox_max_u64(in, out) : 0;
    case OX_MEMORY_WORK:
        return c->schedule->work_bytes;
    case OX_MEMORY_KEPT:
        return ox_pass_is_kept(c->schedule->pass) ? c->schedule->kept_bytes : 0;
    case OX_MEMORY_SHARED_WORK:
        return c->schedule->shared_work_bytes;
    case OX_MEMORY_SHARED_KEPT:
        return ox_pass_is_kept(c->schedule->pass) ? c->schedule->shared_kept_bytes : 0;
    case OX_MEMORY_COUNT:
        break;
    }
    return 0;
}

/* The memory for what forward keeps of a value. */
static enum ox_pass_memory memory_of_kept(const struct checker *c, uint32_t value) {
    return c->list->values[value].shared ? OX_MEMORY_SHARED_KEPT : OX_MEMORY_KEPT;
}

static void check_place(struct checker *c, uint32_t value) {
    const uint32_t home = home_of(c, value);
    demand(c, is_value(c, home) && home != OX_NO_VALUE && home_of(c, home) == home, "a home has another home", value);
    if (c->status != OX_OK) {
        return;
    }
    const struct ox_place *const place = &c->schedule->places[home];
    const uint64_t bytes = c->list->values[value].bytes, room = room_of(c, place->memory);
    const bool in_common = place->memory == OX_MEMORY_SHARED_WORK || place->memory == OX_MEMORY_SHARED_KEPT;
    demand(c, bytes <= c->list->values[home].bytes, "a value is larger than its home", value);
    demand(c, in_common == c->list->values[value].shared, "a value lies where those of other row groups do", value);
    demand(c, place->memory != OX_MEMORY_X || value == c->list->in, "a value lies where the input does", value);
    demand(c, place->offset % ALIGN_BYTES == 0, "a value is not aligned", value);
    demand(c, bytes <= room && place->offset <= room - bytes, "a value lies outside its memory", value);
}

/* ---- reading and writing ---- */

/* Whether a step is for all row groups: of attention and of its keys and values, where ranks divide heads. */
static bool is_whole(const struct checker *c) {
    const struct ox_row_groups *const groups = &c->list->shape->groups;
    const enum ox_node_kind kind = node_of(c, &c->schedule->steps[c->step_idx])->kind;
    return groups->contexts > 1 && groups->mode == OX_CONTEXT_ULYSSES &&
           (kind == OX_NODE_ATTEND || kind == OX_NODE_ALL_ROWS);
}

static void read_value(struct checker *c, uint32_t value) {
    if (value == OX_NO_VALUE) {
        return;
    }
    demand(c, is_value(c, value) && c->content[home_of(c, value)] == value, "what is read is not there", value);
    if (c->status == OX_OK && c->list->values[value].shared) {
        const bool at_once = c->at_once[value] && is_whole(c);
        demand(c, at_once || c->written[value] <= c->schedule->steps[c->step_idx].phase,
               "what row groups have in common is read before all of them have made it", value);
        c->used[home_of(c, value)] = c->schedule->steps[c->step_idx].phase + 1;
    }
}

/* `over`: a value that the step reads and may write over; 0: none. */
static void write_value(struct checker *c, uint32_t value, uint32_t over, const uint32_t *reads, uint32_t count) {
    if (value == OX_NO_VALUE) {
        return;
    }
    demand(c, is_value(c, value) && !c->schedule->absent[value], "what is written has no place", value);
    if (c->status == OX_OK) {
        check_place(c, value);
    }
    if (c->status != OX_OK) {
        return;
    }
    const uint32_t home = home_of(c, value);
    demand(c, home != home_of(c, c->list->in), "the input is written over", value);
    for (uint32_t i = 0; i < count; i++) {
        const bool may = reads[i] == over && (home_of(c, over) == home || over == c->list->in);
        demand(c, reads[i] == OX_NO_VALUE || may || !overlap(c, home_of(c, reads[i]), home),
               "a step writes over what it reads", value);
    }
    const uint32_t phase = c->schedule->steps[c->step_idx].phase;
    for (uint32_t h = 1; h < c->list->value_count; h++) {
        if (c->content[h] != OX_NO_VALUE && overlap(c, h, home)) {
            demand(c, !c->list->values[h].shared || h == home || c->used[h] <= phase,
                   "what row groups have in common is written over while one of them may need it", value);
            c->content[h] = OX_NO_VALUE;
        }
    }
    c->content[home] = value;
    c->written[value] = phase + 1;
    c->used[home] = phase + 1;
    c->at_once[value] = is_whole(c);
}

/* ---- steps ---- */

/* How many parts of a node's work follow the first, each in a phase of its own; what crosses lies in its scratch. */
static uint32_t parts_of(struct checker *c, const struct ox_schedule_step *step) {
    const struct ox_node_row *const row = ox_node_row_of(node_of(c, step));
    struct ox_node_cut_at cuts[OX_NODE_CUTS_MAX];
    const enum ox_node_kind kind = node_of(c, step)->kind;
    const uint32_t tensors = c->list->shape->features.ranks, experts = c->list->shape->experts.ranks;
    const uint32_t ranks = kind == OX_NODE_EXPERTS ? tensors > experts ? tensors : experts
                           : kind == OX_NODE_RING  ? c->list->shape->groups.all : tensors;
    const bool crosses = kind != OX_NODE_RING || c->list->shape->groups.contexts > 1;
    if (row->parts == NULL || ranks <= 1) {
        return 0;
    }
    const uint32_t count = row->parts(c->list, node_of(c, step), step->backward, step->din != OX_NO_VALUE, cuts);
    for (uint32_t i = 0; i < count && crosses; i++) {
        const uint64_t end = ox_max_u64(cuts[i].source, cuts[i].target) + cuts[i].bytes;
        const uint32_t value = cuts[i].saved ? node_of(c, step)->saved[0] : step->scratch;
        demand(c, value != OX_NO_VALUE && end <= c->list->values[value].bytes,
               "what crosses lies outside the scratch of its step, or what it saves", value);
    }
    return count;
}

/* A phase ends behind the forward of a node that cuts, and before its backward, or the other way round; and behind each
 * part of a step. */
static void check_phase(struct checker *c, const struct ox_schedule_step *step) {
    const uint32_t cuts = ox_node_cut_count(c->list->shape, node_of(c, step)), parts = parts_of(c, step);
    const bool before = step->backward == (ox_node_row_of(node_of(c, step))->ends == OX_ENDS_BEHIND);
    c->phase += before ? cuts : 0;
    demand(c, step->phase == c->phase, "a step belongs to another phase; its phase is the value", step->phase);
    demand(c, step->parts == parts, "a step has another number of parts, which is the value", step->parts);
    c->phase += parts + (before ? 0 : cuts);
}

static void check_forward(struct checker *c, const struct ox_schedule_step *step) {
    const struct ox_node *const node = node_of(c, step);
    const uint32_t reads[] = {node->in, node->residual, node->order, node->weights};
    const uint32_t writes[] = {node->saved[0], node->saved[1], step->scratch, node->out};
    const uint32_t over = works_in_place(node) ? node->in : node->residual;
    const bool goes_back = step->dout != OX_NO_VALUE || step->din != OX_NO_VALUE || step->dresidual != OX_NO_VALUE ||
                           step->dweights != OX_NO_VALUE;
    demand(c, !goes_back, "a forward step has gradients", node->out);
    demand(c, c->made[step->node_idx]++ == 0, "a node runs twice; its index is the value", step->node_idx);
    for (uint32_t i = 0; i < 4 && c->status == OX_OK; i++) {
        read_value(c, reads[i]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        if (!c->schedule->absent[writes[i]] || writes[i] == node->out) {
            write_value(c, writes[i], writes[i] == node->out ? over : OX_NO_VALUE, reads, 4);
        }
    }
    for (uint32_t i = 0; c->status == OX_OK && i < 4; i++) { /* what a step writes lies apart */
        const bool is_there = writes[i] != OX_NO_VALUE && !c->schedule->absent[writes[i]];
        demand(c, !is_there || c->content[home_of(c, writes[i])] == writes[i], "a step writes twice to one place",
               writes[i]);
    }
    demand(c, !works_in_place(node) || home_of(c, node->out) == home_of(c, node->in),
           "an in-place node moves its input", node->out);
    demand(c, !ox_node_row_of(node)->in_residual || home_of(c, node->out) == home_of(c, node->residual),
           "a node that adds in place moves its residual", node->out);
    /* In bfloat16 cuBLASLt rounds otherwise there than beside it (on an H200), and which of the two a pass needs
     * follows from what is kept: bits would follow from the budget. */
    demand(c, node->kind != OX_NODE_LINEAR || node->residual == OX_NO_VALUE ||
                  home_of(c, node->out) != home_of(c, node->residual),
           "a product adds over its residual", node->out);
}

/* Every node that reads `value` has handed back its gradient. */
static bool is_complete(const struct checker *c, uint32_t value) {
    for (uint32_t i = 0; i < c->list->node_count; i++) {
        const struct ox_node *const node = &c->list->nodes[i];
        if ((node->in == value || node->residual == value || node->weights == value) && c->done[i] == 0 &&
            matters(c, node)) {
            return false;
        }
    }
    return true;
}

/* The gradient of a mixture's weights: one value, which the first step sets. */
static void check_weights(struct checker *c, const struct ox_schedule_step *step) {
    const uint32_t weights = node_of(c, step)->weights, before = c->grads[weights];
    demand(c, (step->dweights != OX_NO_VALUE) == (weights != OX_NO_VALUE), "a gradient of weights is lost", weights);
    demand(c, weights != OX_NO_VALUE || !step->adds_weights, "a node adds to a gradient of no weights", step->dweights);
    if (weights == OX_NO_VALUE || c->status != OX_OK) {
        return;
    }
    demand(c, step->adds_weights == (before != OX_NO_VALUE), "a gradient of weights begins twice", step->dweights);
    demand(c, before == OX_NO_VALUE || before == step->dweights, "a gradient of weights is lost", step->dweights);
    const bool shared = c->list->values[weights].shared; /* then it has several, to add those of groups in a tree */
    const uint64_t own = c->list->values[weights].bytes;
    const uint64_t bytes = shared ? ox_all_rows_grad_bytes(c->list->shape, own) : own;
    demand(c, is_value(c, step->dweights) && c->list->values[step->dweights].bytes == bytes &&
                  c->list->values[step->dweights].shared == shared,
           "a gradient has not the size of its value", step->dweights);
    c->grads[weights] = step->dweights;
}

static void check_gradients(struct checker *c, const struct ox_schedule_step *step) {
    const struct ox_node *const node = node_of(c, step);
    demand(c, step->dout != OX_NO_VALUE && step->dout == c->grads[node->out] && is_complete(c, node->out),
           "backward begins with what is not the gradient", step->dout);
    if (is_wanted(c, node->residual)) {
        demand(c, c->grads[node->residual] == OX_NO_VALUE, "a gradient of a residual is lost", node->residual);
        c->grads[node->residual] = step->dout;
    }
    demand(c, step->dresidual == c->grads[node->in], "a gradient is lost, or added twice", step->dresidual);
    demand(c, step->dresidual == OX_NO_VALUE || ox_node_row_of(node)->adds, "a node cannot add", step->dresidual);
    demand(c, step->din != OX_NO_VALUE || (!is_wanted(c, node->in) && ox_node_row_of(node)->may_skip_din),
           "a gradient is left out that is wanted", node->in);
    demand(c, is_value(c, step->din) && (step->din == OX_NO_VALUE ||
                                         c->list->values[step->din].bytes == c->list->values[node->in].bytes),
           "a gradient has not the size of its value", step->din);
    demand(c, step->din == OX_NO_VALUE || c->list->values[step->din].shared == c->list->values[node->in].shared,
           "a gradient is not as much in common as its value", step->din);
    c->grads[node->in] = is_wanted(c, node->in) ? step->din : OX_NO_VALUE;
    check_weights(c, step);
    for (uint32_t k = 0; k < ox_node_row_of(node)->weight_count; k++) {
        c->adds[node->role + k] += ox_list_trains(c->list, (enum ox_role)(node->role + k));
    }
}

static void check_backward(struct checker *c, const struct ox_schedule_step *step) {
    const struct ox_node *const node = node_of(c, step);
    const struct ox_node_row *const row = ox_node_row_of(node);
    const unsigned read = reads_of(c, node);
    const bool saved = (read & OX_READS_SAVED) != 0;
    const uint32_t reads[] = {(read & OX_READS_IN) != 0 ? node->in : OX_NO_VALUE,
                              (read & OX_READS_OUT) != 0 ? node->out : OX_NO_VALUE,
                              saved ? node->saved[0] : OX_NO_VALUE, saved ? node->saved[1] : OX_NO_VALUE,
                              (read & OX_READS_ORDER) != 0 ? node->order : OX_NO_VALUE,
                              (read & OX_READS_WEIGHTS) != 0 ? node->weights : OX_NO_VALUE,
                              step->dout, step->dresidual, step->adds_weights ? step->dweights : OX_NO_VALUE};
    const uint32_t count = sizeof reads / sizeof *reads;
    check_gradients(c, step);
    for (uint32_t i = 0; i < count && c->status == OX_OK; i++) {
        read_value(c, reads[i]);
    }
    if (c->status != OX_OK) {
        return;
    }
    const uint32_t over = step->dresidual != OX_NO_VALUE ? step->dresidual
                          : works_in_place(node)         ? step->dout
                          : row->over == OX_OVER_IN      ? node->in
                          : row->may_replace_dout        ? step->dout
                                                         : OX_NO_VALUE;
    write_value(c, step->scratch, OX_NO_VALUE, reads, count);
    write_value(c, step->dweights, step->adds_weights ? step->dweights : OX_NO_VALUE, reads, count);
    write_value(c, step->din, over, reads, count);
    demand(c, step->dweights == OX_NO_VALUE || c->content[home_of(c, step->dweights)] == step->dweights,
           "a step writes its result over another", step->dweights);
    demand(c, step->scratch == OX_NO_VALUE || c->content[home_of(c, step->scratch)] == step->scratch,
           "a step writes its result over its scratch", step->scratch);
    demand(c, !works_in_place(node) || home_of(c, step->din) == home_of(c, step->dout),
           "an in-place node moves its gradient", step->din);
    demand(c, node->stride == 0 || works_in_place(node) || step->din == OX_NO_VALUE ||
                  home_of(c, step->din) == home_of(c, step->dresidual),
           "a node that takes a part of its input moves the gradient of the rest", step->din);
    c->done[step->node_idx]++;
}

/* The scratch of a step is as large as its node asks for. */
static void check_scratch(struct checker *c, const struct ox_schedule_step *step) {
    const struct ox_node *const node = node_of(c, step);
    const struct ox_node_row *const row = ox_node_row_of(node);
    const uint64_t bytes = row->scratch == NULL ? 0 : row->scratch(c->list->shape, node, step->backward);
    demand(c, is_value(c, step->scratch) && c->list->values[step->scratch].bytes == bytes, "scratch of another size",
           step->scratch);
}

/* ---- beginning and end ---- */

/* What a pass finds: its input, the gradient of its output, what the forward pass has kept. */
static void begin(struct checker *c) {
    const struct ox_schedule *const s = c->schedule;
    const bool backward = ox_pass_is_backward(s->pass);
    check_place(c, c->list->in);
    c->content[home_of(c, c->list->in)] = c->list->in;
    demand(c, s->places[home_of(c, c->list->in)].memory == OX_MEMORY_X, "the input is elsewhere", c->list->in);
    if (backward) {
        demand(c, is_value(c, s->dx) && s->dx != OX_NO_VALUE, "there is no gradient to begin with", s->dx);
    }
    if (backward && c->status == OX_OK) {
        check_place(c, s->dx);
        c->content[home_of(c, s->dx)] = c->grads[c->list->out] = s->dx;
        demand(c, s->places[home_of(c, s->dx)].memory == OX_MEMORY_DX, "the gradient is elsewhere", s->dx);
    }
    for (uint32_t v = 1; s->pass == OX_PASS_BACKWARD_KEPT && v < c->list->value_count && c->status == OX_OK; v++) {
        if (s->needed[v]) {
            check_place(c, v);
            demand(c, s->places[home_of(c, v)].memory == memory_of_kept(c, v), "a kept value is elsewhere", v);
            for (uint32_t h = 1; h < c->list->value_count; h++) {
                demand(c, c->content[h] == OX_NO_VALUE || !overlap(c, h, home_of(c, v)), "kept values overlap", v);
            }
            c->content[home_of(c, v)] = v;
        }
    }
}

static void check_tensors(struct checker *c) {
    for (uint32_t role = 0; role < OX_ROLE_COUNT; role++) {
        const bool trained = ox_list_trains(c->list, (enum ox_role)role);
        demand(c, !trained || c->adds[role] == 1, "a tensor's gradient has not one addition; its role is the value",
               role);
    }
}

static void end(struct checker *c) {
    const struct ox_schedule *const s = c->schedule;
    if (ox_pass_is_backward(s->pass)) {
        const uint32_t dx_in = c->grads[c->list->in];
        demand(c, !c->list->unit->gives_dx ||
                      (dx_in != OX_NO_VALUE && is_complete(c, c->list->in) && c->content[home_of(c, dx_in)] == dx_in &&
                      s->places[home_of(c, dx_in)].memory == OX_MEMORY_DX),
               "the gradient of the input is not where the caller looks", dx_in);
        for (uint32_t i = 0; i < c->list->node_count; i++) {
            demand(c, c->done[i] == matters(c, &c->list->nodes[i]),
                   "a node's backward has not run once, or without need; its index is the value", i);
        }
        check_tensors(c);
        return;
    }
    const uint32_t out_home = home_of(c, c->list->out);
    demand(c, c->content[out_home] == c->list->out && s->places[out_home].memory == OX_MEMORY_Y,
           "the output is not where the caller looks", c->list->out);
    for (uint32_t v = 1; s->pass == OX_PASS_FORWARD_KEPT && v < c->list->value_count; v++) {
        demand(c, !s->needed[v] || (c->content[home_of(c, v)] == v &&
                                    s->places[home_of(c, v)].memory == memory_of_kept(c, v)), "a value is not kept", v);
    }
}

enum ox_status ox_schedule_check(const struct ox_schedule *schedule) {
    struct checker c = {.schedule = schedule, .list = &schedule->list};
    demand(&c, schedule->step_count <= OX_SCHEDULE_STEPS_MAX, "there are too many steps", schedule->step_count);
    if (c.status == OX_OK) {
        begin(&c);
    }
    for (; c.status == OX_OK && c.step_idx < schedule->step_count; c.step_idx++) {
        const struct ox_schedule_step *const step = &schedule->steps[c.step_idx];
        demand(&c, step->node_idx < c.list->node_count, "there is no such node", step->node_idx);
        if (c.status == OX_OK) {
            check_scratch(&c, step);
        }
        if (c.status == OX_OK) {
            check_phase(&c, step);
            (step->backward ? check_backward : check_forward)(&c, step);
        }
    }
    if (c.status == OX_OK) {
        end(&c);
    }
    return c.status;
}
