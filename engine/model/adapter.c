/* Which modules of a model get adapters, and the units that hold them. */
#include "engine/model/adapter.h"

#include "base/assert.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = OX_TENSOR_NAME_BYTES };

float ox_lora_scale(const struct ox_lora *lora) {
    return (float)(lora->alpha / (lora->rslora ? sqrt(lora->r) : (double)lora->r));
}

float ox_adapter_init_value(const struct ox_tensor *tensor, double uniform) {
    return (float)((2.0 * uniform - 1.0) / sqrt((double)tensor->shape[1]));
}

enum ox_role ox_adapter_role(enum ox_role matrix) {
    switch (matrix) {
    case OX_ROLE_QKV:
        return OX_ROLE_QKV_A;
    case OX_ROLE_Q_B:
        return OX_ROLE_Q_B_A;
    case OX_ROLE_KV_B:
        return OX_ROLE_KV_B_A;
    case OX_ROLE_OUT:
        return OX_ROLE_OUT_A;
    case OX_ROLE_GATE_UP:
        return OX_ROLE_GATE_UP_A;
    case OX_ROLE_DOWN:
        return OX_ROLE_DOWN_A;
    default:
        return OX_ROLE_COUNT;
    }
}

/* ---- names of modules ---- */

bool ox_tensor_module(const struct ox_tensor *tensor, char out[NAME_BYTES]) {
    static const char end[] = ".weight";
    const size_t length = strlen(tensor->name), tail = sizeof end - 1;
    if (tensor->rank != 2 || length <= tail || strcmp(tensor->name + length - tail, end) != 0) {
        return false;
    }
    snprintf(out, NAME_BYTES, "%.*s", (int)(length - tail), tensor->name);
    return true;
}

/* As PEFT compares: the name itself, or its last parts. */
static bool names(const char *entry, size_t length, const char *module) {
    const size_t whole = strlen(module);
    return whole >= length && strncmp(module + whole - length, entry, length) == 0 &&
           (whole == length || module[whole - length - 1] == '.');
}

static bool is_all(const char *targets) {
    return strcmp(targets, "all-linear") == 0;
}

const char *ox_lora_next_target(const char **at, size_t *length) {
    const char *entry = *at + strspn(*at, ", ");
    *length = strcspn(entry, ",");
    *at = entry + *length;
    while (*length > 0 && entry[*length - 1] == ' ') {
        (*length)--;
    }
    return *length > 0 ? entry : NULL;
}

bool ox_lora_is_target(const char *targets, const struct ox_tensor *tensor) {
    char module[NAME_BYTES];
    bool is = false;
    size_t length;
    if (ox_adapter_role(tensor->role) == OX_ROLE_COUNT || !ox_tensor_module(tensor, module)) {
        return false;
    }
    for (const char *at = targets, *entry; !is && (entry = ox_lora_next_target(&at, &length)) != NULL;) {
        is = names(entry, length, module);
    }
    return is || is_all(targets);
}

bool ox_lora_is_saved(const char *modules, const char *tensor_name) {
    size_t length;
    for (const char *at = modules, *entry; (entry = ox_lora_next_target(&at, &length)) != NULL;) {
        for (const char *end = strchr(tensor_name, '.'); end != NULL; end = strchr(end + 1, '.')) {
            if ((size_t)(end - tensor_name) >= length && strncmp(end - length, entry, length) == 0) {
                return true;
            }
        }
    }
    return false;
}

bool ox_lora_unties(const struct ox_model *model, const char *modules) {
    const struct ox_unit *const embed = &model->units[model->embed_idx];
    bool means = false;
    for (const struct ox_tensor *at = NULL; (at = ox_unit_next_tensor(model, embed, at)) != NULL;) {
        means |= at->role == OX_ROLE_EMBED && ox_lora_is_saved(modules, at->name);
    }
    return model->config.tied && (means || ox_lora_is_saved(modules, OX_HEAD_NAME));
}

/* Whether a bias is that of a module with an adapter. */
static bool is_beside_adapter(const struct ox_model *model, const struct ox_tensor *bias) {
    bool is = false;
    for (uint32_t i = model->adapter_first; i < model->tensor_count && !is; i++) {
        const struct ox_tensor *const base = &model->tensors[model->tensors[i].base_idx];
        const size_t length = strlen(base->name) - strlen("weight");
        is = base->unit_idx == bias->unit_idx && strncmp(base->name, bias->name, length) == 0 &&
             strcmp(bias->name + length, "bias") == 0;
    }
    return is;
}

/* Whether a tensor of the base is trained beside adapters. */
static bool is_trained_beside(const struct ox_model *model, const struct ox_tensor *tensor) {
    const struct ox_lora *const lora = &model->config.lora;
    const size_t length = strlen(tensor->name);
    const bool is_bias = length > 5 && strcmp(tensor->name + length - 5, ".bias") == 0;
    return tensor->trained && (ox_lora_is_saved(lora->modules_to_save, tensor->name) ||
                               (is_bias && lora->bias == OX_LORA_BIAS_ALL) ||
                               (is_bias && lora->bias == OX_LORA_BIAS_LORA_ONLY && is_beside_adapter(model, tensor)));
}

/* ---- units ---- */

/* Adds A or B of a matrix. */
static void add_tensor(struct ox_model *model, struct ox_unit *unit, uint32_t base_idx, bool is_b) {
    const struct ox_tensor *const base = &model->tensors[base_idx];
    const bool out_in = model->config.layout == OX_WEIGHT_OUT_IN;
    const uint64_t r = model->config.lora.r;
    struct ox_tensor *const tensor = &model->tensors[model->tensor_count++];
    char module[NAME_BYTES];
    const bool is_matrix = ox_tensor_module(base, module);
    OX_ASSERT(is_matrix);
    const int bytes = snprintf(tensor->name, sizeof tensor->name, "%s.lora_%c.weight", module, is_b ? 'B' : 'A');
    OX_ASSERT(bytes > 0 && (size_t)bytes < sizeof tensor->name);
    tensor->unit_idx = (uint32_t)(unit - model->units);
    tensor->role = (enum ox_role)(ox_adapter_role(base->role) + (is_b ? 1 : 0));
    tensor->rank = 2;
    tensor->shape[0] = is_b ? base->shape[out_in ? 0 : 1] : r;
    tensor->shape[1] = is_b ? r : base->shape[out_in ? 1 : 0];
    tensor->shape[2] = 1;
    tensor->count = tensor->shape[0] * tensor->shape[1];
    tensor->decay = tensor->trained = true;
    tensor->init = is_b ? OX_INIT_ZERO : OX_INIT_UNIFORM;
    tensor->base_idx = base_idx;
    tensor->whole = tensor->shape[0];
    tensor->next_part = tensor->shares_idx = tensor->next_sharing = OX_NO_TENSOR;
    tensor->layer = unit->layer;
    unit->tensor_count++;
}

/* Adds the unit beside a block's own, if the block has something to adapt. */
static void add_unit(struct ox_model *model, struct ox_unit *block, uint32_t adapter_idx, const char *targets) {
    struct ox_unit *const unit = &model->units[model->unit_count];
    *unit = (struct ox_unit){.kind = OX_UNIT_BESIDE, .own = (uint32_t)(block - model->units), .layer = block->layer,
                             .stream = model->block_count + 2 + adapter_idx,
                             .tensor_first = model->tensor_count, .next = OX_NO_UNIT};
    for (uint32_t first = 0, count; first < block->tensor_count; first += count) { /* of one role: all A, then all B */
        const struct ox_tensor *const tensors = &model->tensors[block->tensor_first];
        for (count = 1; first + count < block->tensor_count && tensors[first + count].role == tensors[first].role;) {
            count++;
        }
        for (int is_b = 0; is_b < 2; is_b++) {
            for (uint32_t i = first; i < first + count; i++) {
                if (ox_lora_is_target(targets, &tensors[i]) &&
                    !ox_lora_is_saved(model->config.lora.modules_to_save, tensors[i].name)) {
                    add_tensor(model, unit, block->tensor_first + i, is_b == 1);
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
        block->next = model->unit_count++;
    }
}

enum ox_status ox_model_add_adapters(struct ox_model *model, const char *usual) {
    const char *const targets = model->config.lora.targets[0] != '\0' ? model->config.lora.targets : usual;
    const uint32_t unit_count = model->unit_count;
    if (targets == NULL) {
        return ox_fail(OX_E_CONFIG, "PEFT names no modules to adapt for the family %s: name some by "
                       "--lora-target-modules%s", model->config.family,
                       model->config.mixture.router.experts > 0 ? ", such as q_proj,v_proj" : ", or say all-linear");
    }
    for (uint32_t i = 0; i < model->block_count; i++) {
        add_unit(model, &model->units[model->blocks[i]], model->unit_count - unit_count, targets);
    }
    for (uint32_t i = 0; i < model->adapter_first; i++) {
        model->tensors[i].trained = is_trained_beside(model, &model->tensors[i]);
    }
    return model->unit_count > unit_count ? OX_OK
                                          : ox_fail(OX_E_CONFIG, "--lora-target-modules %s: the model has no such "
                                                    "module that can be adapted", targets);
}
