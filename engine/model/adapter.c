/* Which modules of a model get adapters, and the units that hold them. */
#include "engine/model/adapter.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/distance.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAMES_BYTES = 512, NAME_BYTES = OX_TENSOR_NAME_BYTES };

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

/* A tensor's module: its name without ".weight"; false for what is no matrix's weight. */
static bool module_of(const struct ox_tensor *tensor, char out[NAME_BYTES]) {
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

/* The next of the names, from *at on, or NULL; *length without the spaces around it. */
static const char *next_entry(const char **at, size_t *length) {
    const char *entry = *at + strspn(*at, ", ");
    *length = strcspn(entry, ",");
    *at = entry + *length;
    while (*length > 0 && entry[*length - 1] == ' ') {
        (*length)--;
    }
    return *length > 0 ? entry : NULL;
}

static bool is_target(const char *targets, const struct ox_tensor *tensor) {
    char module[NAME_BYTES];
    bool is = false;
    size_t length;
    if (ox_adapter_role(tensor->role) == OX_ROLE_COUNT || !module_of(tensor, module)) {
        return false;
    }
    for (const char *at = targets, *entry; !is && (entry = next_entry(&at, &length)) != NULL;) {
        is = names(entry, length, module);
    }
    return is || is_all(targets);
}

/* ---- what is refused ---- */

/* The last part of a module's name: "q_proj". */
static const char *last_part(const char *module) {
    const char *const dot = strrchr(module, '.');
    return dot == NULL ? module : dot + 1;
}

/* Lists what can be adapted, and finds the nearest to a name. */
static const char *list_modules(const struct ox_model *model, const char *wanted, char text[NAMES_BYTES],
                                char nearest[NAME_BYTES]) {
    const struct ox_unit *const block = &model->units[model->blocks[0]];
    uint32_t best = UINT32_MAX;
    size_t end = 0;
    text[0] = nearest[0] = '\0';
    for (uint32_t i = 0; i < block->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[block->tensor_first + i];
        char module[NAME_BYTES];
        if (ox_adapter_role(tensor->role) == OX_ROLE_COUNT || !module_of(tensor, module) || end >= NAMES_BYTES) {
            continue;
        }
        const uint32_t distance = ox_name_distance(wanted, last_part(module));
        end += (size_t)snprintf(text + end, NAMES_BYTES - end, "%s%s", end == 0 ? "" : ", ", last_part(module));
        if (distance < best) {
            best = distance;
            snprintf(nearest, NAME_BYTES, "%s", last_part(module));
        }
    }
    return text;
}

/* Says why an entry of the names adapts nothing. */
static enum ox_status refuse_entry(const struct ox_model *model, const char *entry, size_t length) {
    char wanted[NAME_BYTES], listed[NAMES_BYTES], nearest[NAME_BYTES], module[NAME_BYTES];
    snprintf(wanted, sizeof wanted, "%.*s", (int)ox_min_u64(length, sizeof wanted - 1), entry);
    list_modules(model, wanted, listed, nearest);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        if (module_of(&model->tensors[i], module) && names(wanted, strlen(wanted), module)) {
            return ox_fail(OX_E_CONFIG, "--lora-target-modules %s: adapters of embeddings, heads, routers and experts "
                           "do not exist; this model has %s, or train it whole with --lora-modules-to-save", wanted,
                           listed);
        }
    }
    return ox_fail(OX_E_CONFIG, "--lora-target-modules %s: the model has no such module; did you mean %s? It has %s, or "
                   "say all-linear", wanted, nearest, listed);
}

static enum ox_status check_entries(const struct ox_model *model, const char *targets) {
    size_t length;
    const char *entry;
    if (is_all(targets)) {
        return OX_OK;
    }
    for (const char *at = targets; (entry = next_entry(&at, &length)) != NULL;) {
        char one[OX_LORA_TARGETS_BYTES];
        bool found = false;
        snprintf(one, sizeof one, "%.*s", (int)length, entry);
        for (uint32_t i = 0; i < model->tensor_count && !found; i++) {
            found = is_target(one, &model->tensors[i]);
        }
        if (!found) {
            return refuse_entry(model, entry, length);
        }
    }
    return OX_OK;
}

static enum ox_status check(const struct ox_model *model, const char *targets) {
    const struct ox_lora *const lora = &model->config.lora;
    char listed[NAMES_BYTES], nearest[NAME_BYTES];
    if (targets == NULL || targets[strspn(targets, ", ")] == '\0') {
        return ox_fail(OX_E_CONFIG, "--lora-target-modules: of the family %s PEFT adapts no module unless some are "
                       "named; it has %s, or say all-linear", model->config.family,
                       list_modules(model, "", listed, nearest));
    }
    if (is_all(targets) && model->config.mixture.router.experts > 0) {
        return ox_fail(OX_E_CONFIG, "--lora-target-modules all-linear: adapters of routers and experts do not exist; "
                       "name modules of attention: %s", list_modules(model, "", listed, nearest));
    }
    if (lora->r > model->config.hidden) {
        return ox_fail(OX_E_CONFIG, "--lora-r %" PRIu32 ": the rank is more than the model's hidden size %" PRIu32
                       "; use 4 to 256", lora->r, model->config.hidden);
    }
    return check_entries(model, targets);
}

/* ---- units ---- */

/* Adds A or B of a matrix; returns where the unit's tensors end now. */
static uint64_t add_tensor(struct ox_model *model, struct ox_unit *unit, uint32_t base_idx, bool is_b, uint64_t end) {
    const struct ox_tensor *const base = &model->tensors[base_idx];
    const bool out_in = model->config.layout == OX_WEIGHT_OUT_IN;
    const uint64_t r = model->config.lora.r;
    const enum ox_role role = (enum ox_role)(ox_adapter_role(base->role) + (is_b ? 1 : 0));
    struct ox_tensor *const tensor = &model->tensors[model->tensor_count++];
    char module[NAME_BYTES];
    const bool is_matrix = module_of(base, module);
    OX_ASSERT(is_matrix);
    const int bytes = snprintf(tensor->name, sizeof tensor->name, "%s.lora_%c.weight", module, is_b ? 'B' : 'A');
    OX_ASSERT(bytes > 0 && (size_t)bytes < sizeof tensor->name);
    tensor->unit_idx = (uint32_t)(unit - model->units);
    tensor->role = role;
    tensor->rank = 2;
    tensor->shape[0] = is_b ? base->shape[out_in ? 0 : 1] : r;
    tensor->shape[1] = is_b ? r : base->shape[out_in ? 1 : 0];
    tensor->shape[2] = 1;
    tensor->count = tensor->shape[0] * tensor->shape[1];
    tensor->decay = tensor->trained = true;
    tensor->init = is_b ? OX_INIT_ZERO : OX_INIT_UNIFORM;
    tensor->base_idx = base_idx;
    if (unit->role_offset[role] == UINT64_MAX) {
        end = ox_align_up(end, OX_TENSOR_ALIGN_ELEMS);
        unit->role_offset[role] = end;
    }
    tensor->offset = end;
    unit->param_count += tensor->count;
    unit->tensor_count++;
    return end + tensor->count;
}

/* Adds the unit beside a block's own, if the block has something to adapt. */
static void add_unit(struct ox_model *model, struct ox_unit *block, const char *targets) {
    struct ox_unit *const unit = &model->units[model->unit_count];
    uint64_t end = 0;
    *unit = (struct ox_unit){.kind = OX_UNIT_ADAPTER, .tensor_first = model->tensor_count, .next = OX_NO_UNIT};
    memset(unit->role_offset, 0xff, sizeof unit->role_offset);
    for (uint32_t first = 0, count; first < block->tensor_count; first += count) { /* of one role: all A, then all B */
        const struct ox_tensor *const tensors = &model->tensors[block->tensor_first];
        for (count = 1; first + count < block->tensor_count && tensors[first + count].role == tensors[first].role;) {
            count++;
        }
        for (int is_b = 0; is_b < 2; is_b++) {
            for (uint32_t i = first; i < first + count; i++) {
                if (is_target(targets, &tensors[i])) {
                    end = add_tensor(model, unit, block->tensor_first + i, is_b == 1, end);
                }
            }
        }
    }
    if (unit->tensor_count > 0) {
        unit->elem_count = ox_align_up(end, OX_GROUP_ELEMS);
        model->param_count += unit->param_count;
        block->next = model->unit_count++;
    }
}

enum ox_status ox_model_add_adapters(struct ox_model *model, const char *usual) {
    const char *const targets = model->config.lora.targets[0] != '\0' ? model->config.lora.targets : usual;
    OX_TRY(check(model, targets));
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        model->tensors[i].trained = false;
    }
    for (uint32_t i = 0; i < model->block_count; i++) {
        add_unit(model, &model->units[model->blocks[i]], targets);
    }
    return OX_OK;
}
