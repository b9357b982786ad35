/* Makes units and tensors from a configuration. */
#include "engine/model/adapter.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/hash/hash.h"
#include "base/prng/prng.h"
#include "engine/family/families.h"
#include "engine/model/groups.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Far above every existing model. */
static const uint64_t param_count_max = UINT64_C(1) << 44;

static uint64_t extent_of(const struct ox_model_config *config, enum ox_dim extent) {
    switch (extent) {
    case OX_DIM_NONE:
        return 1;
    case OX_DIM_VOCAB:
        return config->vocab;
    case OX_DIM_CONTEXTS:
        return config->contexts;
    case OX_DIM_HIDDEN:
        return config->hidden;
    case OX_DIM_WIDTH:
        return config->width;
    case OX_DIM_GATE_UP:
        return 2 * (uint64_t)config->width;
    case OX_DIM_Q:
        return (uint64_t)config->heads * config->head_dim;
    case OX_DIM_HEAD:
        return config->head_dim;
    case OX_DIM_HEADS:
        return config->heads;
    case OX_DIM_KV:
        return (uint64_t)config->kv_heads * config->head_dim;
    case OX_DIM_QKV:
        return ((uint64_t)config->heads + 2 * (uint64_t)config->kv_heads) * config->head_dim;
    case OX_DIM_QUERIES:
        return (uint64_t)config->heads * ox_latent_query(&config->latent);
    case OX_DIM_KEYS_VALUES:
        return (uint64_t)config->heads * (config->latent.rest + config->latent.value);
    case OX_DIM_VALUES:
        return (uint64_t)config->heads * config->latent.value;
    case OX_DIM_Q_RANK:
        return config->latent.q_rank;
    case OX_DIM_KV_RANK:
        return config->latent.kv_rank;
    case OX_DIM_KV_RANK_ROTATED:
        return (uint64_t)config->latent.kv_rank + config->latent.rotated;
    case OX_DIM_ONE:
        return 1;
    case OX_DIM_EXPERTS:
        return config->mixture.router.experts;
    case OX_DIM_EXPERT_WIDTH:
        return config->mixture.width;
    case OX_DIM_EXPERT_GATE_UP:
        return 2 * (uint64_t)config->mixture.width;
    case OX_DIM_LIMBS:
        return OX_LIMBS;
    case OX_DIM_SHARED_WIDTH:
        return config->mixture.shared_width;
    }
    return 1;
}

/* Whether an embedding, a block or a head has the row, a block with all its experts. `layer` is that of a block. */
static bool has_row(const struct ox_model_config *config, const struct ox_family_row *row, enum ox_unit_kind kind,
                    uint32_t layer) {
    const bool sparse = ox_layer_is_sparse(config, layer);
    const bool of_mlp = row->role >= OX_ROLE_GATE_UP && row->role <= OX_ROLE_DOWN_BIAS;
    const bool of_mixture = row->role >= OX_ROLE_ROUTER && row->role <= OX_ROLE_SHARED_GATE_BIAS;
    return row->unit == kind && (row->when == NULL || row->when(config)) && !(sparse && of_mlp) &&
           !(!sparse && of_mixture);
}

static uint32_t repeats(const struct ox_model_config *config, const struct ox_family_row *row) {
    return row->each_expert ? config->mixture.router.experts : 1;
}

/* The stages of experts that are units of their own: each has a unit, or one of every group of features. */
static uint32_t groups_in(const struct ox_model_config *config, uint32_t layer) {
    const bool apart = config->mixture.per_unit != 0 && ox_layer_is_sparse(config, layer);
    const uint32_t experts = config->mixture.router.experts / ox_model_groups(config);
    return apart ? (uint32_t)ox_div_up(experts, config->mixture.per_unit) : 0;
}

/* The parts that units have of a row's tensor in a block: of one of all experts each group has one. */
static uint32_t parts_of(const struct ox_model_config *config, const struct ox_family_row *row, uint32_t layer) {
    const bool parted = ox_role_is_of_expert(row->role) && !row->each_expert && groups_in(config, layer) > 0;
    return parted ? groups_in(config, layer) : 1;
}

/* With groups of features the most that can be: of a tensor that is cut each group has a part of up to three pieces, or
 * of one of all experts one for each of its units. */
static uint64_t count_tensors(const struct ox_family *family, const struct ox_model_config *config,
                              enum ox_unit_kind kind, uint32_t layer) {
    const uint32_t groups = ox_model_groups(config);
    uint64_t count = 0;
    const struct ox_family_row *row;
    for (uint32_t i = 0; (row = ox_family_row_at(family, i)) != NULL; i++) {
        const uint64_t cut = groups * ox_max_u64(3, groups_in(config, layer));
        const uint64_t parts = groups > 1 && !row->each_expert ? cut : parts_of(config, row, layer);
        count += has_row(config, row, kind, layer) ? repeats(config, row) * parts : 0;
    }
    return count;
}

/* Writes the file name of `row` in `layer`, for an expert where the pattern holds a second %u. */
static void format_name(const struct ox_family *family, const struct ox_family_row *row, uint32_t layer,
                        uint32_t expert, char *out) {
    const char *rest = row->name, *mark;
    int end = snprintf(out, OX_TENSOR_NAME_BYTES, "%s", row->bare ? "" : family->prefix);
    for (uint32_t number = layer; (mark = strstr(rest, "%u")) != NULL; number = expert) {
        end += snprintf(out + end, (size_t)(OX_TENSOR_NAME_BYTES - end), "%.*s%" PRIu32, (int)(mark - rest), rest,
                        number);
        OX_ASSERT(end < OX_TENSOR_NAME_BYTES);
        rest = mark + 2;
    }
    end += snprintf(out + end, (size_t)(OX_TENSOR_NAME_BYTES - end), "%s", rest);
    OX_ASSERT(end > 0 && end < OX_TENSOR_NAME_BYTES);
}

/* As transformers' Trainer decides by names: matrices decay, and sinks; biases do not, also those of all experts. */
static bool decays(const struct ox_tensor *tensor) {
    const bool is_bias = tensor->role == OX_ROLE_EXPERT_GATE_UP_BIAS || tensor->role == OX_ROLE_EXPERT_DOWN_BIAS;
    return (tensor->rank >= 2 && !is_bias) || tensor->role == OX_ROLE_SINKS;
}

static void add_tensor(struct ox_model *model, const struct ox_family *family, struct ox_unit *unit,
                       const struct ox_family_row *row, uint32_t layer, uint32_t expert) {
    struct ox_tensor *const tensor = &model->tensors[model->tensor_count++];
    format_name(family, row, layer, expert, tensor->name);
    tensor->unit_idx = (uint32_t)(unit - model->units);
    tensor->layer = layer;
    tensor->role = row->role;
    tensor->count = 1;
    for (uint32_t i = 0; i < sizeof row->shape / sizeof *row->shape; i++) {
        tensor->rank += row->shape[i] != OX_DIM_NONE;
        tensor->shape[i] = extent_of(&model->config, row->shape[i]);
        tensor->count *= tensor->shape[i];
    }
    memcpy(tensor->whole, tensor->shape, sizeof tensor->whole);
    tensor->next_part = OX_NO_TENSOR;
    tensor->trained = !row->fixed;
    tensor->fp32 = row->fp32;
    tensor->limbs = row->shape[tensor->rank - 1] == OX_DIM_LIMBS;
    tensor->decay = tensor->trained && decays(tensor);
    tensor->init = row->init;
    tensor->base_idx = tensor->saved_idx = tensor->shares_idx = tensor->next_sharing = OX_NO_TENSOR;
    unit->tensor_count++;
}

void ox_tensor_take(struct ox_tensor *to, const struct ox_tensor *from) {
    to->trained = from->trained;
    to->group = from->group;
    to->fp32 = from->fp32;
}

bool ox_tensor_same_group(const struct ox_tensor *a, const struct ox_tensor *b) {
    const struct ox_tensor_group *const p = &a->group, *const q = &b->group;
    const bool same_decay = p->weight_decay == q->weight_decay || (isnan(p->weight_decay) && isnan(q->weight_decay));
    return p->given == q->given && (!p->given || (p->rate_share == q->rate_share && same_decay));
}

/* The neighbours from row `first` on that are repeated together for every expert; else 1. */
static uint32_t group_of(const struct ox_family *family, uint32_t first) {
    const struct ox_family_row *const row = ox_family_row_at(family, first), *next;
    uint32_t count = 1;
    while (row->each_expert && (next = ox_family_row_at(family, first + count)) != NULL && next->each_expert &&
           next->role == row->role) {
        count++;
    }
    return count;
}

/* Where a unit's tensors would end with all experts in their block's unit, and the row before. */
struct building {
    struct ox_unit *unit;
    uint64_t place;
    enum ox_role role;
};

/* Leaves of a tensor of all experts what a unit has of it. */
static void keep_part(struct ox_tensor *tensor, const struct ox_unit *unit) {
    const uint64_t expert_elems = tensor->count / tensor->shape[0];
    OX_ASSERT(unit->expert_first + unit->expert_count <= tensor->whole[0]);
    tensor->shape[0] = unit->expert_count;
    tensor->count = unit->expert_count * expert_elems;
    tensor->part_first = unit->expert_first * expert_elems;
}

/* Adds the tensors of neighbouring rows that are repeated together: of the unit's experts, of those that are elsewhere
 * none. */
static void add_rows(struct ox_model *model, const struct ox_family *family, struct building *at, uint32_t first,
                     uint32_t count) {
    const struct ox_family_row *const row = ox_family_row_at(family, first);
    struct ox_unit *const unit = at->unit;
    const bool apart = unit->kind == OX_UNIT_EXPERTS || (unit->kind == OX_UNIT_BLOCK &&
                                                         groups_in(&model->config, unit->layer) > 0);
    const bool is_here = !apart || ox_role_is_of_expert(row->role) == (unit->kind == OX_UNIT_EXPERTS);
    const uint32_t all = repeats(&model->config, row);
    const uint32_t expert_first = unit->expert_first, here = unit->expert_count > 0 ? unit->expert_count : all;
    uint64_t each = 0; /* elements of an expert, or of the row */
    for (uint32_t j = 0; j < count; j++) {
        uint64_t elems = 1;
        for (uint32_t k = 0; k < sizeof row->shape / sizeof *row->shape; k++) {
            elems *= extent_of(&model->config, ox_family_row_at(family, first + j)->shape[k]);
        }
        each += elems;
    }
    at->place = row->role == at->role ? at->place : ox_unit_role_begin(at->place, row->role, at->role);
    const bool parted = unit->expert_count > 0 && !row->each_expert;
    uint64_t place = at->place + expert_first * (parted ? each / model->config.mixture.router.experts : each);
    for (uint32_t j = 0; is_here && j < (parted ? 1 : here * count); j++) {
        add_tensor(model, family, unit, ox_family_row_at(family, first + j % count), unit->layer,
                   expert_first + j / count);
        if (parted) {
            keep_part(&model->tensors[model->tensor_count - 1], unit);
        }
        model->tensors[model->tensor_count - 1].place = place;
        place += model->tensors[model->tensor_count - 1].count;
    }
    at->place += all * each;
    at->role = row->role;
}

/* Adds the tensors of neighbouring rows that are repeated together, of a group's experts. */
static void add_cut_experts(struct ox_model *model, const struct ox_family *family, struct ox_unit *unit,
                            uint32_t row_idx, uint32_t count) {
    for (uint32_t i = 0; i < unit->expert_count * count; i++) {
        add_tensor(model, family, unit, ox_family_row_at(family, row_idx + i % count), unit->layer,
                   unit->expert_first + i / count);
        model->tensors[model->tensor_count - 1].row = row_idx; /* files have them in this order */
    }
}

/* Adds a group's parts of a tensor to its unit; what is not cut to the one of no group. `count`: of neighbouring rows
 * that are repeated together. */
static void add_cut_row(struct ox_model *model, const struct ox_family *family, struct ox_unit *unit,
                        uint32_t row_idx, uint32_t count) {
    const struct ox_family_row *const row = ox_family_row_at(family, row_idx);
    const struct ox_row_cut cut = ox_row_cut_of(&model->config, row);
    if (row->each_expert) {
        if (unit->group != OX_NO_GROUP) {
            add_cut_experts(model, family, unit, row_idx, count);
        }
        return;
    }
    const bool of_expert = ox_role_is_of_expert(row->role); /* a part for each unit that will have some */
    const uint32_t units = of_expert ? (uint32_t)ox_max_u64(1, groups_in(&model->config, unit->layer)) : 1;
    for (uint32_t i = 0; i < units * ox_row_cut_tensors(&cut, unit); i++) {
        add_tensor(model, family, unit, row, unit->layer, 0);
        struct ox_tensor *const tensor = &model->tensors[model->tensor_count - 1];
        tensor->row = row_idx;
        ox_row_cut_take(&cut, ox_model_groups(&model->config) * units, unit->group * units + i % units, i / units,
                        tensor);
    }
}

/* Adds a unit of a stage, of which kind, layer, stream, experts and group are given, with its tensors among those of
 * `of` in the family's rows. Returns its index. */
static uint32_t add_unit(struct ox_model *model, const struct ox_family *family, struct ox_unit given,
                         enum ox_unit_kind of) {
    const struct ox_model_config *const config = &model->config;
    const bool is_block = given.kind == OX_UNIT_BLOCK, is_cut = ox_model_groups(config) > 1;
    const uint32_t unit_idx = model->unit_count++, layer = given.layer;
    struct ox_unit *const unit = &model->units[unit_idx];
    *unit = given;
    unit->own = unit_idx;
    unit->next = OX_NO_UNIT;
    unit->tensor_first = model->tensor_count;
    unit->window = is_block && ox_layers_has(&config->windowed, layer) ? config->window : 0;
    unit->rope = is_block && config->rope && !ox_layers_has(&config->unrotated, layer);
    unit->rotation = unit->window != 0 && config->local_theta != 0.0 ? 1 : 0;
    struct building at = {.unit = unit, .role = OX_ROLE_COUNT};
    const struct ox_family_row *row;
    for (uint32_t i = 0, group; (row = ox_family_row_at(family, i)) != NULL; i += group) {
        group = group_of(family, i);
        if (has_row(config, row, of, layer) && is_cut) {
            add_cut_row(model, family, unit, i, group);
        } else if (has_row(config, row, of, layer)) {
            add_rows(model, family, &at, i, group);
        }
    }
    ox_unit_lay_out(model, unit);
    for (uint32_t i = unit->tensor_first; is_cut && i < model->tensor_count; i++) {
        model->tensors[i].place = model->tensors[i].offset;
    }
    model->param_count += unit->param_count;
    model->own_count++;
    return unit_idx;
}

/* Adds the stage that comes next in forward; with groups of features a unit of each behind what is not cut. Returns its
 * own unit, the first that has a tensor. */
static uint32_t add_stage(struct ox_model *model, const struct ox_family *family, struct ox_unit given) {
    const enum ox_unit_kind of = given.kind == OX_UNIT_EXPERTS ? OX_UNIT_BLOCK : given.kind;
    const uint32_t groups = ox_model_groups(&model->config), stream = given.stream;
    const bool sparse = of == OX_UNIT_BLOCK && ox_layer_is_sparse(&model->config, given.layer);
    const uint32_t experts = sparse && groups > 1 ? model->config.mixture.router.experts / groups : 0; /* of a group */
    uint32_t own = OX_NO_UNIT, before = OX_NO_UNIT;
    for (uint32_t k = 0; k <= (groups > 1 ? groups : 0); k++) {
        given.kind = own == OX_NO_UNIT ? given.kind : OX_UNIT_BESIDE;
        given.group = k == 0 ? OX_NO_GROUP : k - 1;
        if (k > 0) {
            given.expert_first = (k - 1) * experts;
            given.expert_count = experts;
        }
        given.stream = stream + k * (model->config.layers + 2);
        const uint32_t unit_idx = add_unit(model, family, given, of);
        if (model->units[unit_idx].tensor_count == 0) { /* an embedding may have nothing but its table */
            model->unit_count--;
            continue;
        }
        own = own == OX_NO_UNIT ? unit_idx : own;
        model->units[unit_idx].own = own;
        if (before != OX_NO_UNIT) {
            model->units[before].next = unit_idx;
        }
        before = unit_idx;
    }
    model->stages[model->stage_count++] = own;
    return own;
}

/* Gives some experts of a group of features, which lie in the group's unit of their block, a unit of their own: that
 * shares the range of tensors, whose places stay those with all experts. Returns its index. */
static uint32_t move_experts(struct ox_model *model, const struct ox_unit *from, uint32_t first, uint32_t count) {
    const uint32_t unit_idx = model->unit_count++, from_idx = (uint32_t)(from - model->units);
    struct ox_unit *const unit = &model->units[unit_idx];
    *unit = *from;
    unit->expert_first = first;
    unit->expert_count = count;
    for (uint32_t i = from->tensor_first; i < from->tensor_first + from->tensor_count; i++) {
        struct ox_tensor *const tensor = &model->tensors[i];
        if (tensor->unit_idx == from_idx && ox_role_is_of_expert(tensor->role)) {
            const uint64_t each = ox_expert_elems(&model->config, tensor->role);
            const uint64_t at = (tensor->place - from->role_offset[tensor->role]) / each + from->expert_first;
            tensor->unit_idx = at >= first && at < first + count ? unit_idx : from_idx;
        }
    }
    ox_unit_lay_out(model, unit);
    model->own_count++;
    return unit_idx;
}

/* Adds the stages of experts apart from a block that is cut into groups of features: each has as many of every group,
 * in units that follow each other. */
static void add_cut_stages(struct ox_model *model, uint32_t layer) {
    const uint32_t groups = ox_model_groups(&model->config), stages = groups_in(&model->config, layer);
    const uint32_t per_unit = model->config.mixture.per_unit;
    struct ox_unit *const block = &model->units[model->blocks[layer]];
    for (uint32_t i = 0; i < stages; i++) {
        const uint32_t own = model->unit_count;
        for (uint32_t at = block->own; at != OX_NO_UNIT; at = model->units[at].next) {
            if (model->units[at].group != OX_NO_GROUP) {
                const uint32_t first = model->units[at].expert_first + i * per_unit;
                struct ox_unit *const unit = &model->units[move_experts(model, &model->units[at], first, per_unit)];
                unit->kind = unit->group == 0 ? OX_UNIT_EXPERTS : OX_UNIT_BESIDE;
                unit->own = own;
                unit->next = unit->group + 1 == groups ? OX_NO_UNIT : own + unit->group + 1;
            }
        }
        model->stages[model->stage_count++] = own;
    }
    for (uint32_t at = block->own; at != OX_NO_UNIT && stages > 0; at = model->units[at].next) {
        ox_unit_lay_out(model, &model->units[at]);
        model->units[at].expert_first = model->units[at].expert_count = 0;
    }
}

static void add_block(struct ox_model *model, const struct ox_family *family) {
    const uint32_t layer = model->block_count, per_unit = model->config.mixture.per_unit;
    const uint32_t experts = model->config.mixture.router.experts;
    struct ox_unit unit = {.kind = OX_UNIT_BLOCK, .layer = layer, .stream = layer + 1};
    model->blocks[model->block_count++] = add_stage(model, family, unit);
    if (ox_model_groups(&model->config) > 1) {
        add_cut_stages(model, layer);
        return;
    }
    unit.kind = OX_UNIT_EXPERTS;
    for (uint32_t i = 0; i < groups_in(&model->config, layer); i++) {
        unit.expert_first = i * per_unit;
        unit.expert_count = (uint32_t)ox_min_u64(per_unit, experts - unit.expert_first);
        add_stage(model, family, unit);
    }
}

/* The first unit of a stage that has a role; OX_NO_UNIT: none has. */
static uint32_t unit_with(const struct ox_model *model, uint32_t unit_idx, enum ox_role role) {
    while (unit_idx != OX_NO_UNIT && model->units[unit_idx].role_offset[role] == UINT64_MAX) {
        unit_idx = model->units[unit_idx].next;
    }
    return unit_idx;
}

uint32_t ox_model_table_unit(const struct ox_model *model, uint32_t group) {
    uint32_t unit_idx = model->table.unit_idx;
    for (; group > 0; group--) {
        unit_idx = model->units[unit_idx].next;
    }
    return unit_idx;
}

/* Makes the block that was added last share the units of the one with which its run of blocks begins: their stages have
 * the same units, and its tensors are theirs under other names. `from`: what the model had before it. */
static enum ox_status share_block(struct ox_model *model, const struct ox_model *from) {
    const uint32_t layer = from->block_count, first_layer = layer - layer % model->config.shared_layers;
    const uint32_t stages = model->stage_count - from->stage_count, tensors = model->tensor_count - from->tensor_count;
    const uint32_t tensor_idx = model->units[model->blocks[first_layer]].tensor_first;
    uint32_t stage_idx = 0;
    while (model->stages[stage_idx] != model->blocks[first_layer]) {
        stage_idx++;
    }
    bool alike = from->tensor_count - tensor_idx == (layer - first_layer) * tensors;
    for (uint32_t i = 0; i < tensors && alike; i++) {
        struct ox_tensor *const own = &model->tensors[from->tensor_count + i];
        struct ox_tensor *const first = &model->tensors[tensor_idx + i];
        alike = first->role == own->role && first->rank == own->rank &&
                memcmp(first->shape, own->shape, sizeof own->shape) == 0 && first->part_first == own->part_first;
        own->shares_idx = tensor_idx + i;
        own->next_sharing = first->next_sharing;
        first->next_sharing = from->tensor_count + i;
    }
    if (!alike) {
        return ox_fail(OX_E_CONFIG, "--share-layers: layers %" PRIu32 " and %" PRIu32 " of the model_type \"%s\" "
                       "differ in shape; give a number that parts them, or leave it out", first_layer, layer,
                       model->config.family);
    }
    for (uint32_t i = 0; i < stages; i++) {
        model->faces[from->stage_count + i] = model->units[model->stages[from->stage_count + i]];
        model->stages[from->stage_count + i] = model->stages[stage_idx + i];
    }
    model->blocks[layer] = model->blocks[first_layer];
    model->unit_count = from->unit_count;
    model->own_count = from->own_count;
    model->param_count = from->param_count;
    return OX_OK;
}

static enum ox_status add_units(struct ox_model *model, const struct ox_family *family) {
    enum ox_status status = OX_OK;
    model->embed_idx = add_stage(model, family, (struct ox_unit){.kind = OX_UNIT_EMBED});
    while (model->block_count < model->config.layers && status == OX_OK) {
        const struct ox_model before = *model;
        add_block(model, family);
        if (model->faces != NULL && before.block_count % model->config.shared_layers != 0) {
            status = share_block(model, &before);
        }
    }
    if (status != OX_OK) {
        return status;
    }
    model->head_idx = add_stage(model, family, (struct ox_unit){.kind = OX_UNIT_HEAD,
                                                                .stream = model->block_count + 1});
    const enum ox_role role = model->config.tied ? OX_ROLE_EMBED : OX_ROLE_HEAD;
    model->table.unit_idx = unit_with(model, model->config.tied ? model->embed_idx : model->head_idx, role);
    model->table.offset = model->units[model->table.unit_idx].role_offset[role];
    for (uint32_t i = 0; i < model->stage_count && model->faces != NULL; i++) {
        struct ox_unit *const face = &model->faces[i];
        *face = face->kind == OX_UNIT_BLOCK || face->kind == OX_UNIT_EXPERTS ? *face : model->units[model->stages[i]];
    }
    return OX_OK;
}

uint32_t ox_model_expert_units(const struct ox_model *model, uint32_t block_unit_idx, uint32_t *first) {
    uint32_t at = 0, count = 0;
    while (at < model->stage_count && model->stages[at] != block_unit_idx) {
        at++;
    }
    for (*first = ++at; at < model->stage_count && model->units[model->stages[at]].kind == OX_UNIT_EXPERTS; at++) {
        count++;
    }
    return count;
}

enum ox_status ox_model_check_grouping(const struct ox_model_config *config) {
    const struct ox_family *const family = ox_family_find(config->family);
    const uint32_t per_unit = config->mixture.per_unit, experts = config->mixture.router.experts;
    const struct ox_family_row *row;
    uint64_t least = 1; /* experts that fill whole OX_GROUP_ELEMS */
    if (per_unit == 0) {
        return OX_OK;
    }
    if (experts == 0) {
        return ox_fail(OX_E_CONFIG, "--experts-per-unit %" PRIu32 ": the model's model_type \"%s\" has no mixture of "
                       "experts; leave it out", per_unit, config->family);
    }
    if (per_unit > experts) {
        return ox_fail(OX_E_CONFIG, "--experts-per-unit %" PRIu32 ": a layer has %" PRIu32 " experts; give 1 to %"
                       PRIu32 ", or all to keep them in their block's unit", per_unit, experts, experts);
    }
    for (uint32_t i = 0; (row = ox_family_row_at(family, i)) != NULL; i++) {
        if (ox_role_is_of_expert(row->role) && (row->when == NULL || row->when(config))) {
            while (least * ox_expert_elems(config, row->role) % OX_GROUP_ELEMS != 0) {
                least *= 2;
            }
        }
    }
    char several[48] = "";
    if (least < experts) {
        snprintf(several, sizeof several, "a multiple of %" PRIu64 ", or ", least);
    }
    return per_unit % least == 0 || per_unit == experts / ox_model_groups(config)
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "--experts-per-unit %" PRIu32 ": so many experts of this model have no whole "
                         "number of %d elements in each tensor, which is what checksums and norms are over; give %sall "
                         "to keep them in their block's unit", per_unit, OX_GROUP_ELEMS, several);
}

/* Returns whether `name` matches `pattern`, in which %u stands for digits. */
static bool matches(const char *pattern, const char *name) {
    const char *const mark = strstr(pattern, "%u");
    if (mark == NULL) {
        return strcmp(pattern, name) == 0;
    }
    const size_t head = (size_t)(mark - pattern);
    if (strncmp(pattern, name, head) != 0) {
        return false;
    }
    const size_t digits = strspn(name + head, "0123456789");
    return digits > 0 && strcmp(mark + 2, name + head + digits) == 0;
}

/* The slot of a name, or the free one where it would be. A mixture has tens of thousands of tensors, and a file names
 * each of them. */
static uint32_t *slot_of(const struct ox_model *model, const char *name) {
    uint64_t at = ox_hash64(name, strlen(name), 0) % model->name_slots;
    while (model->by_name[at] != 0 && strcmp(model->tensors[model->by_name[at] - 1].name, name) != 0) {
        at = (at + 1) % model->name_slots;
    }
    return &model->by_name[at];
}

static void list_names(struct ox_model *model) {
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        uint32_t *const slot = slot_of(model, model->tensors[i].name);
        if (model->tensors[i].part_first > 0) {
            struct ox_tensor *part = &model->tensors[*slot - 1];
            while (part->next_part != OX_NO_TENSOR) {
                part = &model->tensors[part->next_part];
            }
            part->next_part = i;
            continue;
        }
        OX_ASSERT(*slot == 0);
        *slot = i + 1;
    }
}

/* The own unit of a tensor's stage, or of the block whose expert it is of. */
static uint32_t block_of(const struct ox_model *model, const struct ox_tensor *tensor) {
    const struct ox_unit *const own = &model->units[model->units[tensor->unit_idx].own];
    return own->kind == OX_UNIT_EXPERTS ? model->blocks[own->layer] : own->own;
}

/* Puts saved tensors in the order of files, which is that of the family's rows in every stage: those of a stage that is
 * cut are in that of its units. */
static void order_saved(struct ox_model *model) {
    for (uint32_t i = 1; i < model->saved_count; i++) {
        for (uint32_t k = i; k > 0; k--) {
            const uint32_t idx = model->saved[k];
            const struct ox_tensor *const before = &model->tensors[model->saved[k - 1]];
            const struct ox_tensor *const at = &model->tensors[idx];
            if (block_of(model, before) != block_of(model, at) || before->row <= at->row) {
                break;
            }
            model->saved[k] = model->saved[k - 1];
            model->saved[k - 1] = idx;
        }
    }
}

/* Numbers the tensors that are saved. */
static void list_saved(struct ox_model *model) {
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const bool is = model->config.lora.r == 0 || model->tensors[i].trained;
        if (model->tensors[i].part_first == 0 && is) { /* else the first part has added it */
            model->saved[model->saved_count++] = i;
        }
        model->tensors[i].saved_idx = OX_NO_TENSOR;
    }
    if (ox_model_groups(&model->config) > 1) {
        order_saved(model);
    }
    for (uint32_t i = 0; i < model->saved_count; i++) {
        for (uint32_t part = model->saved[i]; part != OX_NO_TENSOR; part = model->tensors[part].next_part) {
            model->tensors[part].saved_idx = i;
        }
    }
}

static int64_t find_exact(const struct ox_model *model, const char *name) {
    return (int64_t)*slot_of(model, name) - 1;
}

enum ox_status ox_model_build(const struct ox_model_config *config, struct ox_model **out) {
    const struct ox_family *const family = ox_family_find(config->family);
    if (family == NULL) {
        char names[OX_FAMILY_NAMES_BYTES];
        return ox_fail(OX_E_CONFIG, "the model_type \"%s\" is not supported; supported are %s",
                       config->family, ox_family_names(names));
    }
    enum ox_status status = ox_model_config_check(config->family, config);
    OX_THEN(status, ox_model_check_grouping(config));
    OX_THEN(status, ox_model_check_groups(config));
    if (status != OX_OK) {
        return status;
    }
    uint64_t tensor_count = count_tensors(family, config, OX_UNIT_EMBED, 0) +
                            count_tensors(family, config, OX_UNIT_HEAD, 0);
    uint32_t group_count = 0;
    for (uint32_t i = 0; i < config->layers; i++) {
        tensor_count += count_tensors(family, config, OX_UNIT_BLOCK, i);
        group_count += groups_in(config, i);
    }
    const bool adapted = config->lora.r > 0;
    const uint32_t groups = ox_model_groups(config), each = groups > 1 ? 2 * (1 + groups) : 3; /* of a stage */
    const uint64_t tensors_most = (adapted ? 4 : 1) * tensor_count + 1;
    const bool shares = config->shared_layers > 1;
    OX_ASSERT(!shares || !adapted);
    struct ox_model *model = calloc(1, sizeof *model);
    if (model != NULL) {
        model->config = *config;
        model->units = calloc(each * ((size_t)config->layers + group_count + 2), sizeof *model->units);
        model->stages = calloc(config->layers + (size_t)group_count + 2, sizeof *model->stages);
        model->blocks = calloc(config->layers, sizeof *model->blocks);
        model->faces = shares ? calloc(config->layers + (size_t)group_count + 2, sizeof *model->faces) : NULL;
        model->tensors = calloc(tensors_most, sizeof *model->tensors);
        model->saved = calloc(tensors_most + 1, sizeof *model->saved);
        model->name_slots = (uint32_t)(2 * tensors_most + 1);
        model->by_name = calloc(model->name_slots, sizeof *model->by_name);
    }
    if (model == NULL || model->units == NULL || model->stages == NULL || model->blocks == NULL ||
        model->tensors == NULL || model->saved == NULL || model->by_name == NULL || (shares && model->faces == NULL)) {
        ox_model_close(&model);
        return ox_fail(OX_E_NOMEM, "no memory for the table of %" PRIu64 " tensors", tensor_count);
    }
    if ((status = add_units(model, family)) != OX_OK) {
        ox_model_close(&model);
        return status;
    }
    OX_ASSERT(groups > 1 ? model->tensor_count <= tensors_most : model->tensor_count == tensor_count);
    model->adapter_first = model->tensor_count;
    if (adapted && (status = ox_model_add_adapters(model, family->lora_targets)) != OX_OK) {
        ox_model_close(&model);
        return status;
    }
    ox_model_settle_trained(model);
    list_names(model);
    list_saved(model);
    if (model->param_count > param_count_max) {
        ox_model_close(&model);
        return ox_fail(OX_E_CONFIG, "the model has more than %" PRIu64 " parameters; its sizes are wrong",
                       param_count_max);
    }
    *out = model;
    return OX_OK;
}

void ox_model_close(struct ox_model **model) {
    if (*model != NULL) {
        free((*model)->by_name);
        free((*model)->saved);
        free((*model)->tensors);
        free((*model)->blocks);
        free((*model)->faces);
        free((*model)->stages);
        free((*model)->units);
        free(*model);
        *model = NULL;
    }
}

/* Whether a name is of a layer behind the last. */
static bool is_beyond(const struct ox_model *model, const char *name) {
    static const char front[] = "layers.";
    char *end = NULL;
    const bool is_layer = strncmp(name, front, sizeof front - 1) == 0;
    const unsigned long long layer = is_layer ? strtoull(name + sizeof front - 1, &end, 10) : 0;
    return is_layer && *end == '.' && layer >= model->config.layers;
}

int64_t ox_model_find_tensor(const struct ox_model *model, const char *name) {
    const struct ox_family *const family = ox_family_find(model->config.family);
    OX_ASSERT(family != NULL);
    int64_t found = find_exact(model, name);
    const size_t prefix_bytes = strlen(family->prefix);
    const bool prefixed = strncmp(name, family->prefix, prefix_bytes) == 0;
    if (found < 0 && !prefixed) {
        char longer[2 * OX_TENSOR_NAME_BYTES];
        const int bytes = snprintf(longer, sizeof longer, "%s%s", family->prefix, name);
        found = bytes < (int)sizeof longer ? find_exact(model, longer) : -1;
    }
    if (found >= 0) {
        return found;
    }
    const char *const bare = prefixed ? name + prefix_bytes : name;
    if (family->layers_beyond && is_beyond(model, bare)) {
        return -2;
    }
    for (const char *const *ignored = family->ignored; *ignored != NULL; ignored++) {
        if (matches(*ignored, bare)) {
            return -2;
        }
    }
    const struct ox_family_row *row;
    for (uint32_t i = 0; (row = ox_family_row_at(family, i)) != NULL; i++) {
        if (row->role == OX_ROLE_HEAD && strcmp(row->name, name) == 0) {
            return -2; /* not among the tensors, so it is tied */
        }
    }
    return -1;
}

/* Standard deviation of a normal tensor. */
static double init_deviation(const struct ox_model *model, const struct ox_tensor *tensor) {
    const double range = model->config.init_range;
    return tensor->init == OX_INIT_NORMAL_ONE        ? 1.0
           : tensor->init == OX_INIT_NORMAL_RESIDUAL ? range / sqrt(2.0 * model->config.layers) : range;
}

static uint64_t init_stream(const struct ox_tensor *tensor) {
    return ox_hash64(tensor->name, strlen(tensor->name), 0);
}

static bool is_constant(const struct ox_tensor *tensor) {
    return tensor->init == OX_INIT_ZERO || tensor->init == OX_INIT_ONE;
}

/* A gain of 1 is stored less its offset. */
static float constant_of(const struct ox_model *model, const struct ox_tensor *tensor) {
    return tensor->init == OX_INIT_ONE ? 1.0f - model->config.gain_offset : 0.0f;
}

float ox_model_init_value(const struct ox_model *model, const struct ox_tensor *tensor, uint64_t seed,
                          uint64_t idx) {
    OX_ASSERT(idx < tensor->count);
    idx = ox_tensor_in_files(tensor, idx);
    if (is_constant(tensor)) {
        return constant_of(model, tensor);
    }
    if (tensor->init == OX_INIT_UNIFORM) {
        return ox_adapter_init_value(tensor, ox_uniform(seed, init_stream(tensor), idx));
    }
    return (float)(init_deviation(model, tensor) * ox_normal(seed, init_stream(tensor), idx));
}

void ox_model_init_values(const struct ox_model *model, const struct ox_tensor *tensor, uint64_t seed, uint64_t first,
                          uint64_t count, float *out) {
    OX_ASSERT(first <= tensor->count && count <= tensor->count - first);
    if (!is_constant(tensor) && tensor->init != OX_INIT_UNIFORM) {
        for (uint64_t there; count > 0; first += there, out += there, count -= there) {
            there = ox_tensor_together(tensor, first, count);
            ox_normals(seed, init_stream(tensor), ox_tensor_in_files(tensor, first), there,
                       init_deviation(model, tensor), out);
        }
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        out[i] = ox_model_init_value(model, tensor, seed, first + i);
    }
}
