/* The units of a stage, where their tensors lie, and what follows from which of them are trained. */
#include "engine/model/model.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <string.h>

/* A unit has what is frozen of it beside it from this part on; below, such as norms, it would not be worth a unit. */
enum { PARTED_SHARE = 8 };

const struct ox_tensor *ox_unit_next_tensor(const struct ox_model *model, const struct ox_unit *unit,
                                            const struct ox_tensor *tensor) {
    const uint32_t unit_idx = (uint32_t)(unit - model->units);
    const struct ox_tensor *const past = &model->tensors[unit->tensor_first + unit->tensor_count];
    tensor = tensor == NULL ? &model->tensors[unit->tensor_first] : tensor + 1;
    while (tensor < past && tensor->unit_idx != unit_idx) {
        tensor++;
    }
    return tensor < past ? tensor : NULL;
}

/* Experts begin and end with whole OX_GROUP_ELEMS, also where they are elsewhere: behind them comes the expert
 * of all tokens. */
uint64_t ox_unit_role_begin(uint64_t end, enum ox_role role, enum ox_role before) {
    const bool of_expert = ox_role_is_of_expert(role);
    const bool behind = role >= OX_ROLE_SHARED_GATE_UP && role <= OX_ROLE_SHARED_GATE_BIAS;
    const bool goes_on = before >= OX_ROLE_SHARED_GATE_UP && before <= OX_ROLE_SHARED_GATE_BIAS;
    OX_ASSERT(of_expert || behind || !ox_role_is_of_expert(before));
    return ox_align_up(end, of_expert || (behind && !goes_on) ? OX_GROUP_ELEMS : OX_TENSOR_ALIGN_ELEMS);
}

void ox_unit_lay_out(const struct ox_model *model, struct ox_unit *unit) {
    uint64_t end = 0;
    struct ox_tensor *before = NULL;
    memset(unit->role_offset, 0xff, sizeof unit->role_offset);
    unit->param_count = 0;
    for (const struct ox_tensor *at = NULL; (at = ox_unit_next_tensor(model, unit, at)) != NULL;) {
        struct ox_tensor *const tensor = &model->tensors[at - model->tensors];
        if (unit->role_offset[tensor->role] == UINT64_MAX) {
            end = ox_unit_role_begin(end, tensor->role, before == NULL ? OX_ROLE_COUNT : before->role);
            unit->role_offset[tensor->role] = end;
        } else {
            OX_ASSERT(before->role == tensor->role); /* tensors of one role are neighbours */
        }
        tensor->offset = end;
        end += tensor->count;
        unit->param_count += tensor->limbs ? 0 : tensor->count;
        before = tensor;
    }
    unit->elem_count = ox_align_up(end, OX_GROUP_ELEMS);
}

bool ox_tensor_is_hidden(const struct ox_tensor *tensor) {
    switch (tensor->role) {
    case OX_ROLE_EMBED:
    case OX_ROLE_POSITION:
    case OX_ROLE_HEAD:
    case OX_ROLE_HEAD_A: /* AdamW updates what is beside tables, as the tables */
    case OX_ROLE_HEAD_B:
    case OX_ROLE_EMBED_A:
    case OX_ROLE_EMBED_B:
    case OX_ROLE_ROUTER:
    case OX_ROLE_SHARED_GATE:
    case OX_ROLE_CHOICE_BIAS:
    case OX_ROLE_EXPERT_GATE_UP_BIAS:
    case OX_ROLE_EXPERT_DOWN_BIAS:
    case OX_ROLE_EXPERT_GATE_UP_A: /* adapters of all experts, which are no matrix */
    case OX_ROLE_EXPERT_GATE_UP_B:
    case OX_ROLE_EXPERT_DOWN_A:
    case OX_ROLE_EXPERT_DOWN_B:
    case OX_ROLE_ROUTER_A:
    case OX_ROLE_ROUTER_B:
    case OX_ROLE_SHARED_GATE_A:
    case OX_ROLE_SHARED_GATE_B:
        return false;
    default:
        return tensor->rank >= 2;
    }
}

void ox_tensor_matrix(const struct ox_tensor *tensor, uint64_t *rows, uint64_t *cols) {
    *rows = tensor->shape[tensor->rank - 2];
    *cols = tensor->shape[tensor->rank - 1];
}

/* Whether the head's use of the table trains it. */
static bool table_is_trained(const struct ox_model *model) {
    const struct ox_unit *const owner = &model->units[model->table.unit_idx];
    return owner->role_trained[model->config.tied ? OX_ROLE_EMBED : OX_ROLE_HEAD];
}

const struct ox_unit *ox_model_stage_unit(const struct ox_model *model, uint32_t stage_idx) {
    return model->faces != NULL ? &model->faces[stage_idx] : &model->units[model->stages[stage_idx]];
}

enum ox_status ox_model_check_shared(const struct ox_model *model, const char *option) {
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        const struct ox_tensor *const first = tensor->shares_idx == OX_NO_TENSOR ? tensor
                                                                                  : &model->tensors[tensor->shares_idx];
        if (tensor->trained != first->trained || !ox_tensor_same_group(tensor, first)) {
            return ox_fail(OX_E_CONFIG, "%s: %s and %s share their weights (--share-layers); mean both or neither",
                           option, first->name, tensor->name);
        }
    }
    return OX_OK;
}

uint32_t ox_model_stage_units(const struct ox_model *model, const struct ox_unit *unit,
                              const struct ox_unit *out[OX_MODEL_STAGE_UNITS_MAX]) {
    uint32_t count = 0;
    unit = &model->units[unit->own]; /* it may be a face of it */
    for (out[count++] = unit; unit->next != OX_NO_UNIT; out[count++] = unit) {
        OX_ASSERT(count < OX_MODEL_STAGE_UNITS_MAX);
        unit = &model->units[unit->next];
    }
    return count;
}

bool ox_model_stage_has(const struct ox_model *model, const struct ox_unit *unit, enum ox_role role) {
    const struct ox_unit *units[OX_MODEL_STAGE_UNITS_MAX];
    bool has = false;
    for (uint32_t i = ox_model_stage_units(model, unit, units); i-- > 0;) {
        has |= units[i]->role_offset[role] != UINT64_MAX;
    }
    return has;
}

bool ox_model_stage_is_trained(const struct ox_model *model, uint32_t stage_idx) {
    const uint32_t unit_idx = model->stages[stage_idx];
    const struct ox_unit *units[OX_MODEL_STAGE_UNITS_MAX];
    bool is = unit_idx == model->head_idx && table_is_trained(model);
    for (uint32_t i = ox_model_stage_units(model, &model->units[unit_idx], units); i-- > 0;) {
        is |= units[i]->trained;
    }
    return is;
}

/* Whether a unit's tensor is no matrix that Muon updates. */
static bool is_no_matrix(const struct ox_unit *unit, const struct ox_tensor *tensor) {
    (void)unit;
    return !ox_tensor_is_hidden(tensor);
}

/* Whether a unit's tensor leaves it for one beside it. A matrix of which a part is trained stays whole, as its gradient
 * is one; a head gives its table away alone, as it does to an embedding that it is tied to. A bias of limbs may move
 * with the unit's update. */
static bool goes(const struct ox_unit *unit, const struct ox_tensor *tensor) {
    return !unit->role_trained[tensor->role] && !tensor->limbs &&
           (unit->kind != OX_UNIT_HEAD || tensor->role == OX_ROLE_HEAD);
}

/* Adds a block's experts in other units: how a block is parted does not depend on where they are, because the sums of
 * its gradient's squares follow from where its tensors lie. */
static void add_experts_of(const struct ox_model *model, const struct ox_unit *block, uint64_t *elems,
                           uint64_t *frozen) {
    uint32_t first = 0;
    const uint32_t count = ox_model_expert_units(model, block->own, &first);
    for (uint32_t role = OX_ROLE_EXPERT_GATE_UP; role <= OX_ROLE_EXPERT_DOWN_BIAS; role++) {
        bool trained = false;
        uint64_t sum = 0;
        for (uint32_t i = 0; i < count; i++) {
            const struct ox_unit *const unit = &model->units[model->stages[first + i]];
            trained |= unit->role_trained[role];
            for (uint32_t k = 0; k < unit->tensor_count; k++) {
                const struct ox_tensor *const tensor = &model->tensors[unit->tensor_first + k];
                sum += tensor->role == (enum ox_role)role ? tensor->count : 0;
            }
        }
        *elems += sum;
        *frozen += trained ? 0 : sum;
    }
}

static void note_trained(const struct ox_model *model, struct ox_unit *unit) {
    unit->trained = false;
    memset(unit->role_trained, 0, sizeof unit->role_trained);
    for (const struct ox_tensor *tensor = NULL; (tensor = ox_unit_next_tensor(model, unit, tensor)) != NULL;) {
        unit->trained |= tensor->trained;
        unit->role_trained[tensor->role] |= tensor->trained;
    }
}

/* Moves tensors of a stage's own unit to a new one beside it. */
static struct ox_unit *move_beside(struct ox_model *model, struct ox_unit *unit,
                                   bool (*moves)(const struct ox_unit *unit, const struct ox_tensor *tensor)) {
    const uint32_t beside_idx = model->unit_count++;
    struct ox_unit *const beside = &model->units[beside_idx];
    *beside = *unit;
    beside->kind = OX_UNIT_BESIDE;
    for (uint32_t i = unit->tensor_first; i < unit->tensor_first + unit->tensor_count; i++) {
        struct ox_tensor *const tensor = &model->tensors[i];
        const bool is_own = tensor->unit_idx == beside->own;
        tensor->unit_idx = is_own && moves(unit, tensor) ? beside_idx : tensor->unit_idx;
    }
    ox_unit_lay_out(model, unit);
    ox_unit_lay_out(model, beside);
    note_trained(model, unit);
    note_trained(model, beside);
    if (unit->kind == OX_UNIT_HEAD) {
        model->table = (struct ox_table){.unit_idx = beside_idx, .offset = beside->role_offset[OX_ROLE_HEAD]};
    } else {
        unit->next = beside_idx;
    }
    return beside;
}

/* Gives what is frozen of a unit one of its own, where that is worth it. */
static void part(struct ox_model *model, struct ox_unit *unit) {
    uint64_t frozen = 0;
    for (const struct ox_tensor *tensor = NULL; (tensor = ox_unit_next_tensor(model, unit, tensor)) != NULL;) {
        frozen += goes(unit, tensor) ? tensor->count : 0;
    }
    const bool any_goes = frozen > 0; /* of the unit itself: its experts may be in others */
    uint64_t elems = unit->elem_count;
    if (unit->kind == OX_UNIT_BLOCK && model->config.mixture.per_unit > 0) {
        add_experts_of(model, unit, &elems, &frozen);
    }
    if (!unit->trained || !any_goes || unit->kind == OX_UNIT_EMBED || frozen * PARTED_SHARE < elems) {
        return;
    }
    move_beside(model, unit, goes);
}

/* Leaves a unit the matrices that Muon updates, alone: norms, routers and biases keep both moments in a unit beside it.
 * A unit without such matrices stays as it is, and so does one of whose other tensors none is trained but a bias of
 * limbs moves. */
static void part_matrices(struct ox_model *model, struct ox_unit *unit) {
    bool any = false, others = false, others_trained = false, limbs = false;
    for (const struct ox_tensor *tensor = NULL; (tensor = ox_unit_next_tensor(model, unit, tensor)) != NULL;) {
        const bool hidden = ox_tensor_is_hidden(tensor);
        any |= hidden && tensor->trained;
        others |= !hidden;
        others_trained |= !hidden && tensor->trained;
        limbs |= tensor->limbs;
    }
    unit->whole = any && model->config.whole_matrices;
    unit->one_moment = unit->whole && (!others || others_trained || !limbs);
    if (unit->one_moment && others) {
        struct ox_unit *const beside = move_beside(model, unit, is_no_matrix);
        beside->whole = beside->one_moment = false;
    }
}

/* Undoes what an earlier call has parted: the last units. */
static void join_parts(struct ox_model *model) {
    for (; model->unit_count > model->own_count; model->unit_count--) {
        const struct ox_unit *const last = &model->units[model->unit_count - 1];
        struct ox_unit *const own = &model->units[last->own];
        if (own->tensor_first != last->tensor_first) { /* adapters */
            return;
        }
        for (uint32_t i = own->tensor_first; i < own->tensor_first + own->tensor_count; i++) {
            model->tensors[i].unit_idx = last->own;
        }
        ox_unit_lay_out(model, own);
        own->next = own->kind == OX_UNIT_HEAD ? own->next : last->next; /* adapters */
        if (own->kind == OX_UNIT_HEAD) {
            model->table = (struct ox_table){.unit_idx = last->own, .offset = own->role_offset[OX_ROLE_HEAD]};
        }
    }
}

/* Gives a stage's face what has changed of the unit. */
static void show_face(struct ox_model *model, uint32_t stage_idx, bool gives_dx) {
    if (model->faces != NULL) {
        struct ox_unit *const face = &model->faces[stage_idx], as = *face;
        *face = model->units[model->stages[stage_idx]];
        face->layer = as.layer;
        face->window = as.window;
        face->rope = as.rope;
        face->rotation = as.rotation;
        face->gives_dx = gives_dx;
    }
}

void ox_model_settle_trained(struct ox_model *model) {
    const bool is_cut = ox_model_groups(&model->config) > 1; /* what is frozen stays with its group */
    bool before = false;
    if (!is_cut) {
        join_parts(model);
    }
    model->trained_count = 0;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        struct ox_unit *const unit = &model->units[i];
        unit->format = OX_FORMAT_MASTER;
        note_trained(model, unit);
        for (const struct ox_tensor *tensor = NULL; (tensor = ox_unit_next_tensor(model, unit, tensor)) != NULL;) {
            model->trained_count += tensor->trained ? tensor->count : 0;
        }
    }
    for (uint32_t i = 0; i < model->own_count && !is_cut; i++) {
        part(model, &model->units[i]);
    }
    for (uint32_t i = 0; i < model->own_count && !is_cut; i++) {
        part_matrices(model, &model->units[i]);
    }
    for (uint32_t i = 0; i < model->stage_count; i++) {
        model->units[model->stages[i]].gives_dx = before;
        show_face(model, i, before);
        before |= ox_model_stage_is_trained(model, i);
    }
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        struct ox_tensor *const tensor = &model->tensors[i];
        if (tensor->shares_idx != OX_NO_TENSOR) {
            tensor->unit_idx = model->tensors[tensor->shares_idx].unit_idx;
            tensor->offset = model->tensors[tensor->shares_idx].offset;
        }
    }
}
