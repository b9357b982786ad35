/* Which modules of a model get adapters, and the units that hold them. */
#include "engine/model/adapter.h"

#include "base/assert.h"
#include "engine/family/families.h"
#include "engine/model/groups.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = OX_TENSOR_NAME_BYTES };

/* The rank of a role's adapters. */
static uint64_t rank_of(const struct ox_lora *lora, enum ox_role adapter) {
    const bool gate_up = adapter == OX_ROLE_EXPERT_GATE_UP_A || adapter == OX_ROLE_EXPERT_GATE_UP_B;
    return lora->doubled && gate_up ? 2 * (uint64_t)lora->r : lora->r;
}

float ox_lora_scale(const struct ox_lora *lora, enum ox_role adapter) {
    const double times = (double)rank_of(lora, adapter) / lora->r, r = times * lora->r, alpha = times * lora->alpha;
    return (float)(alpha / (lora->rslora ? sqrt(r) : r));
}

float ox_adapter_init_value(const struct ox_tensor *tensor, double uniform) {
    return (float)((2.0 * uniform - 1.0) / sqrt((double)tensor->whole[1]));
}

/* A matrix, and the A of its adapters. */
static const enum ox_role adapted_roles[][2] = {
    {OX_ROLE_QKV, OX_ROLE_QKV_A},
    {OX_ROLE_Q_B, OX_ROLE_Q_B_A},
    {OX_ROLE_KV_B, OX_ROLE_KV_B_A},
    {OX_ROLE_OUT, OX_ROLE_OUT_A},
    {OX_ROLE_GATE_UP, OX_ROLE_GATE_UP_A},
    {OX_ROLE_DOWN, OX_ROLE_DOWN_A},
    {OX_ROLE_SHARED_GATE_UP, OX_ROLE_SHARED_GATE_UP_A},
    {OX_ROLE_SHARED_DOWN, OX_ROLE_SHARED_DOWN_A},
    {OX_ROLE_ROUTER, OX_ROLE_ROUTER_A},
    {OX_ROLE_SHARED_GATE, OX_ROLE_SHARED_GATE_A},
    {OX_ROLE_EXPERT_GATE_UP, OX_ROLE_EXPERT_GATE_UP_A},
    {OX_ROLE_EXPERT_DOWN, OX_ROLE_EXPERT_DOWN_A},
    {OX_ROLE_EMBED, OX_ROLE_EMBED_A},
    {OX_ROLE_HEAD, OX_ROLE_HEAD_A},
};

static enum ox_role partner(enum ox_role role, int from) {
    for (size_t i = 0; i < sizeof adapted_roles / sizeof *adapted_roles; i++) {
        if (adapted_roles[i][from] == role) {
            return adapted_roles[i][1 - from];
        }
    }
    return OX_ROLE_COUNT;
}

enum ox_role ox_adapter_role(enum ox_role matrix) {
    return partner(matrix, 0);
}

enum ox_role ox_adapted_role(enum ox_role a) {
    return partner(a, 1);
}

enum ox_role ox_magnitude_role(enum ox_role a) {
    const bool has = a >= OX_ROLE_QKV_A && a <= OX_ROLE_SHARED_DOWN_A;
    return has ? (enum ox_role)(OX_ROLE_QKV_M + (a - OX_ROLE_QKV_A) / 2) : OX_ROLE_COUNT;
}

/* Whether a bias is that of a module with an adapter. */
static bool is_beside_adapter(const struct ox_model *model, const struct ox_tensor *bias) {
    bool is = false;
    for (uint32_t i = model->adapter_first; i < model->tensor_count && !is; i++) {
        const struct ox_tensor *const base = &model->tensors[model->tensors[i].base_idx];
        const size_t length = strlen(base->name) - strlen("weight");
        is = !ox_role_is_of_expert(base->role) &&
             model->units[base->unit_idx].own == model->units[bias->unit_idx].own &&
             strncmp(base->name, bias->name, length) == 0 && strcmp(bias->name + length, "bias") == 0;
    }
    return is;
}

/* Whether a tensor of the base is trained beside adapters. */
static bool is_trained_beside(const struct ox_model *model, const struct ox_tensor *tensor) {
    const struct ox_lora *const lora = &model->config.lora;
    const size_t length = strlen(tensor->name);
    const bool is_bias = length > 5 && strcmp(tensor->name + length - 5, ".bias") == 0;
    return tensor->trained && (ox_lora_is_saved(&model->config, lora->modules_to_save, tensor->name) ||
                               (is_bias && lora->bias == OX_LORA_BIAS_ALL) ||
                               (is_bias && lora->bias == OX_LORA_BIAS_LORA_ONLY && is_beside_adapter(model, tensor)));
}

/* ---- units ---- */

/* Whether both parameters of a block's experts have adapters: PEFT wraps the module twice then. */
static bool wraps_twice(const struct ox_model *model, const struct ox_unit *block) {
    uint32_t count = 0;
    for (int role = OX_ROLE_EXPERT_GATE_UP; role <= OX_ROLE_EXPERT_DOWN; role += 2) {
        const struct ox_tensor *tensor = NULL;
        do {
            tensor = ox_unit_next_tensor(model, block, tensor);
        } while (tensor != NULL && tensor->role != (enum ox_role)role);
        count += tensor != NULL && ox_lora_is_target(&model->config, &model->config.lora, tensor);
    }
    return count == 2;
}

/* The tensors of an adapter. */
enum part { PART_A, PART_B, PART_MAGNITUDE };

/* The name of one in PEFT's files, without the front that all have. */
static void name_of(const struct ox_model *model, const struct ox_tensor *base, enum part part, char out[NAME_BYTES]) {
    static const char *const ends[] = {".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"};
    static const char *const of_table[] = {".lora_embedding_A", ".lora_embedding_B"};
    char name[NAME_BYTES], module[NAME_BYTES];
    const bool is_parameter = ox_lora_parameter(&model->config, base, name);
    if (is_parameter) {
        const char *const last = strrchr(name, '.'); /* behind the module, which has a second one or "weight" alone */
        const bool twice = strcmp(last, ".gate_up_proj") == 0 && wraps_twice(model, &model->units[base->unit_idx]);
        snprintf(module, sizeof module, "%.*s%s", (int)(last - name), name, twice ? ".base_layer" : "");
    } else {
        ox_lora_module(&model->config, base, module);
    }
    const char *const end = base->role == OX_ROLE_EMBED ? of_table[part] : ends[part];
    const int bytes = snprintf(out, NAME_BYTES, "%s%s", module, end);
    OX_ASSERT(bytes > 0 && bytes < NAME_BYTES);
}

/* Inputs and outputs of a matrix, and of how many experts it is. */
struct sizes {
    uint64_t in, out, experts;
};

static struct sizes sizes_of(const struct ox_model *model, const struct ox_tensor *base) {
    const struct ox_mixture *const mixture = &model->config.mixture;
    const bool out_in = model->config.layout == OX_WEIGHT_OUT_IN || base->role >= OX_ROLE_ROUTER;
    const uint64_t hidden = model->config.hidden;
    if (base->role == OX_ROLE_EXPERT_GATE_UP) {
        return (struct sizes){hidden, 2 * (uint64_t)mixture->width, mixture->router.experts};
    }
    if (base->role == OX_ROLE_EXPERT_DOWN) {
        return (struct sizes){mixture->width, hidden, mixture->router.experts};
    }
    if (base->role == OX_ROLE_EMBED) {
        return (struct sizes){base->whole[0], base->whole[1], 1};
    }
    return (struct sizes){base->whole[out_in ? 1 : 0], base->whole[out_in ? 0 : 1], 1};
}

/* Adds a part of a matrix's adapter, or of all experts'. */
static void add_tensor(struct ox_model *model, struct ox_unit *unit, uint32_t base_idx, enum part part) {
    static const enum ox_init_kind inits[] = {OX_INIT_UNIFORM, OX_INIT_ZERO, OX_INIT_ONE};
    static const enum ox_init_kind of_table[] = {OX_INIT_ZERO, OX_INIT_NORMAL_ONE};
    const struct ox_tensor *const base = &model->tensors[base_idx];
    const struct sizes sizes = sizes_of(model, base);
    struct ox_tensor *const tensor = &model->tensors[model->tensor_count++];
    tensor->unit_idx = (uint32_t)(unit - model->units);
    const enum ox_role a = ox_adapter_role(base->role);
    tensor->role = part == PART_A ? a : part == PART_B ? (enum ox_role)(a + 1) : ox_magnitude_role(a);
    const uint64_t r = rank_of(&model->config.lora, tensor->role) * sizes.experts;
    name_of(model, base, part, tensor->name);
    tensor->rank = part == PART_MAGNITUDE ? 1 : 2;
    tensor->shape[0] = part == PART_A ? r : sizes.out;
    tensor->shape[1] = part == PART_A ? sizes.in : part == PART_B ? r : 1;
    tensor->shape[2] = 1;
    tensor->count = tensor->shape[0] * tensor->shape[1];
    tensor->decay = tensor->trained = true;
    tensor->init = base->role == OX_ROLE_EMBED ? of_table[part] : inits[part];
    tensor->base_idx = base_idx;
    memcpy(tensor->whole, tensor->shape, sizeof tensor->whole);
    tensor->next_part = tensor->shares_idx = tensor->next_sharing = OX_NO_TENSOR;
    tensor->layer = unit->layer;
    unit->tensor_count++;
}

/* ---- with groups of features ---- */

enum { ROW_FIRST = 1 << 16 }; /* behind all rows of a family */

/* How a part of a matrix's adapter is cut, which is as the matrix: a B as its outputs, an A as its inputs. */
static struct ox_row_cut cut_of(const struct ox_model *model, const struct ox_tensor *base, enum part part) {
    const struct ox_family_row *const row = ox_family_row_at(ox_family_find(model->config.family), base->row);
    const bool out_in = model->config.layout == OX_WEIGHT_OUT_IN || base->role >= OX_ROLE_ROUTER;
    struct ox_row_cut cut = ox_row_cut_of(&model->config, row);
    const bool of_outputs = (cut.axis == 0) == out_in;
    if (of_outputs != (part == PART_B)) {
        cut.count = 0;
    }
    cut.axis = part == PART_B ? 0 : 1;
    return cut;
}

/* Where files have a part: all A of a role before all B, roles in the order of the family's rows. */
static uint32_t row_of(const struct ox_model *model, const struct ox_tensor *base, enum part part) {
    const struct ox_family *const family = ox_family_find(model->config.family);
    uint32_t first = 0;
    while (ox_family_row_at(family, first)->role != base->role) {
        first++;
    }
    return ROW_FIRST + 2 * first + (part == PART_B);
}

/* Adds to a unit what it has of a matrix's A or B: to that of a group its parts, to another one what is not cut. */
static void add_cut(struct ox_model *model, struct ox_unit *unit, uint32_t base_idx, enum part part) {
    const struct ox_tensor *const base = &model->tensors[base_idx];
    const struct ox_row_cut cut = cut_of(model, base, part);
    const bool again = base_idx > 0 && base[-1].unit_idx == base->unit_idx && strcmp(base[-1].name, base->name) == 0;
    for (uint32_t i = 0; !again && i < ox_row_cut_tensors(&cut, unit); i++) { /* all pieces with the first */
        add_tensor(model, unit, base_idx, part);
        struct ox_tensor *const tensor = &model->tensors[model->tensor_count - 1];
        tensor->row = row_of(model, base, part);
        ox_row_cut_take(&cut, ox_model_groups(&model->config), unit->group, i, tensor);
    }
}

/* The first matrix whose adapter cannot be cut; NULL: there is none. */
static const struct ox_tensor *not_cut(const struct ox_model *model) {
    static const enum ox_role can[] = {OX_ROLE_QKV, OX_ROLE_OUT, OX_ROLE_GATE_UP, OX_ROLE_DOWN, OX_ROLE_SHARED_GATE_UP,
                                       OX_ROLE_SHARED_DOWN};
    for (uint32_t i = 0; i < model->adapter_first && ox_model_groups(&model->config) > 1; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        bool is = !ox_lora_is_target(&model->config, &model->config.lora, tensor) ||
                  ox_lora_is_saved(&model->config, model->config.lora.modules_to_save, tensor->name);
        for (size_t k = 0; k < sizeof can / sizeof *can; k++) {
            is |= tensor->role == can[k];
        }
        if (!is) {
            return tensor;
        }
    }
    return NULL;
}

/* ---- all of a model ---- */

/* Adds a unit beside a stage's own, if `from`, a unit of the stage, has something to adapt that belongs there. */
static void add_unit(struct ox_model *model, const struct ox_unit *from, uint32_t adapter_idx, uint32_t group) {
    const struct ox_lora *const lora = &model->config.lora;
    const uint32_t groups = ox_model_groups(&model->config), sets = groups > 1 ? 1 + groups : 1;
    struct ox_unit *const unit = &model->units[model->unit_count];
    *unit = (struct ox_unit){.kind = OX_UNIT_BESIDE, .own = from->own, .layer = from->layer,
                             .stream = sets * (model->block_count + 2) + adapter_idx,
                             .tensor_first = model->tensor_count, .next = OX_NO_UNIT, .group = group};
    for (uint32_t first = 0, count; first < from->tensor_count; first += count) { /* of one role: all A, all B */
        const struct ox_tensor *const tensors = &model->tensors[from->tensor_first];
        for (count = 1; first + count < from->tensor_count && tensors[first + count].role == tensors[first].role;) {
            count++;
        }
        for (enum part part = PART_A; part <= (lora->dora ? PART_MAGNITUDE : PART_B); part++) {
            const bool as_one = ox_role_is_of_expert(tensors[first].role);
            for (uint32_t i = first; i < first + (as_one ? 1 : count); i++) {
                if (ox_lora_is_target(&model->config, lora, &tensors[i]) &&
                    !ox_lora_is_saved(&model->config, lora->modules_to_save, tensors[i].name)) {
                    (groups > 1 ? add_cut : add_tensor)(model, unit, from->tensor_first + i, part);
                }
            }
        }
    }
    if (unit->tensor_count > 0) {
        ox_unit_lay_out(model, unit);
        for (uint32_t i = 0; i < unit->tensor_count; i++) {
            model->tensors[unit->tensor_first + i].place = model->tensors[unit->tensor_first + i].offset;
        }
        model->param_count += unit->param_count;
        uint32_t last = from->own;
        while (model->units[last].next != OX_NO_UNIT) {
            last = model->units[last].next;
        }
        model->units[last].next = model->unit_count++;
    }
}

/* Adds the units with a stage's adapters: with groups of features one with what is not cut, and one of each group. All
 * groups have parts of the same matrices. */
static void add_units(struct ox_model *model, uint32_t own, uint32_t unit_count) {
    const uint32_t groups = ox_model_groups(&model->config);
    const struct ox_unit *stage[OX_MODEL_STAGE_UNITS_MAX];
    const uint32_t count = ox_model_stage_units(model, &model->units[own], stage);
    if (groups == 1) {
        add_unit(model, stage[0], model->unit_count - unit_count, OX_NO_GROUP);
        return;
    }
    for (uint32_t k = 0; k <= groups && count >= groups; k++) { /* a head may have no table */
        add_unit(model, stage[count - groups + (k == 0 ? 0 : k - 1)], model->unit_count - unit_count,
                 k == 0 ? OX_NO_GROUP : k - 1);
    }
}

/* Whether experts have adapters that are units of their own: their adapters are of all. */
static bool lack_experts(const struct ox_model *model, const struct ox_lora *lora) {
    bool any = false;
    for (uint32_t i = 0; i < model->adapter_first && model->config.mixture.per_unit > 0; i++) {
        any |= ox_role_is_of_expert(model->tensors[i].role) &&
               ox_lora_is_target(&model->config, lora, &model->tensors[i]);
    }
    return any;
}

enum ox_status ox_model_add_adapters(struct ox_model *model, const char *usual) {
    struct ox_lora *const lora = &model->config.lora;
    const bool names_some = lora->targets[0] != '\0' || lora->parameters[0] != '\0';
    const uint32_t unit_count = model->unit_count;
    if (!names_some && usual == NULL) {
        return ox_fail(OX_E_CONFIG, "PEFT names no modules to adapt for the family %s: name some by "
                       "--lora-target-modules%s", model->config.family,
                       model->config.mixture.router.experts > 0 ? ", such as q_proj,v_proj" : ", or say all-linear");
    }
    if (!names_some) {
        snprintf(lora->targets, sizeof lora->targets, "%s", usual);
    }
    const struct ox_tensor *const whole = not_cut(model);
    if (lora->dora && ox_model_groups(&model->config) > 1) {
        return ox_fail(OX_E_CONFIG, "--use-dora: adapters with magnitudes cannot be cut into %" PRIu32 " groups of "
                       "features yet (--tensor-groups, --tensor-parallel-size); use 1 group, or adapters without "
                       "(\"use_dora\" of adapter_config.json)", ox_model_groups(&model->config));
    }
    if (whole != NULL) {
        return ox_fail(OX_E_CONFIG, "the adapter of \"%s\" cannot be cut into %" PRIu32 " groups of features yet "
                       "(--tensor-groups, --tensor-parallel-size); adapt matrices of attention, of the MLP or of a "
                       "shared expert alone, by --lora-target-modules such as q_proj,v_proj, or use 1 group",
                       whole->name, ox_model_groups(&model->config));
    }
    if (lack_experts(model, lora)) {
        return ox_fail(OX_E_CONFIG, "adapters of experts are of all experts of a block, and units have %" PRIu32
                       " of them (--experts-per-unit, --expert-parallel-size); give --experts-per-unit all, and no "
                       "--expert-parallel-size, or adapt other modules (--lora-target-modules)",
                       model->config.mixture.per_unit);
    }
    for (uint32_t i = 0; i < model->block_count; i++) {
        add_units(model, model->blocks[i], unit_count);
    }
    add_units(model, model->embed_idx, unit_count);
    add_units(model, model->head_idx, unit_count);
    for (uint32_t i = 0; i < model->adapter_first; i++) {
        model->tensors[i].trained = is_trained_beside(model, &model->tensors[i]);
    }
    return model->unit_count > unit_count ? OX_OK
                                          : ox_fail(OX_E_CONFIG, "--lora-target-modules %s: the model has no such "
                                                    "module that can be adapted", lora->targets);
}
