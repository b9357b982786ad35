/* Adapters with A and B of each expert's modules, as PEFT saved them for transformers 4, read as those of all experts:
 * the A of gate and up lie one behind the other, and their B beside each other, with zeros between, as PEFT puts them
 * together on transformers 5. */
#include "engine/hf/hf_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The modules of an expert, as families of transformers 4 named them. */
enum { GATE, UP, DOWN, MODULES };
static const char *const modules[][MODULES] = {{"gate_proj", "up_proj", "down_proj"}, {"w1", "w3", "w2"}};

/* What an entry of a file is: A or B of a module of an expert. */
struct named {
    uint32_t expert;
    int module;
    bool is_b;
    char front[OX_HF_NAME_BYTES]; /* of the experts of its layer: "model.layers.0.mlp.experts" */
};

/* Takes the end of a name apart: "3.w1.lora_A.weight". */
static bool parse_end(const char *end, struct named *out) {
    char *rest = NULL;
    const unsigned long expert = strtoul(end, &rest, 10);
    bool found = false;
    for (int i = 0; i < 2 * MODULES && rest != end && !found; i++) {
        for (int is_b = 0; is_b < 2 && !found; is_b++) {
            char whole[64];
            snprintf(whole, sizeof whole, ".%s.lora_%c.weight", modules[i / MODULES][i % MODULES], is_b ? 'B' : 'A');
            found = strcmp(rest, whole) == 0;
            out->module = i % MODULES;
            out->is_b = is_b;
        }
    }
    out->expert = expert < UINT32_MAX ? (uint32_t)expert : UINT32_MAX;
    return found;
}

static bool parse(const struct ox_model *model, const char *name, struct named *out) {
    static const char before[] = "base_model.model.", experts[] = ".experts.";
    const char *const at = strstr(name, experts);
    char front[OX_HF_NAME_BYTES];
    if (at == NULL || strncmp(name, before, sizeof before - 1) != 0 || strlen(name) >= sizeof front ||
        !parse_end(at + sizeof experts - 1, out)) {
        return false;
    }
    name += sizeof before - 1;
    snprintf(front, sizeof front, "%.*s.experts", (int)(at - name), name);
    ox_lora_name(&model->config, front, out->front, sizeof out->front);
    return out->expert < model->config.mixture.router.experts;
}

/* The tensor of all experts that has an entry as a part; negative: there is none. */
static int64_t find_whole(const struct ox_model *model, const struct named *of) {
    const enum ox_role a = of->module == DOWN ? OX_ROLE_EXPERT_DOWN_A : OX_ROLE_EXPERT_GATE_UP_A;
    int64_t found = -1;
    for (int wraps = 0; wraps < 2 && found < 0; wraps++) {
        char name[2 * OX_HF_NAME_BYTES];
        snprintf(name, sizeof name, "%s%s.lora_%c.weight", of->front, wraps ? ".base_layer" : "", of->is_b ? 'B' : 'A');
        found = ox_model_find_tensor(model, name);
        found = found >= 0 && model->tensors[found].role == (enum ox_role)(a + of->is_b) ? found : -1;
    }
    return found;
}

/* Entries of a tensor: for each expert gate and up, or down and none. */
static const struct ox_st_entry **parts_of(const struct ox_hf_adapter *adapter, const struct ox_model *model,
                                           uint32_t saved_idx) {
    return adapter->parts + (size_t)saved_idx * 2 * model->config.mixture.router.experts;
}

enum ox_status ox_hf_take_expert(struct ox_hf_folder *folder, const struct ox_st_entry *entry, bool *taken) {
    struct ox_hf_adapter *const adapter = folder->adapter;
    const struct ox_model *const model = folder->model;
    const uint64_t r = model->config.lora.r;
    struct named of = {0};
    const int64_t idx = parse(model, entry->name, &of) ? find_whole(model, &of) : -1;
    *taken = idx >= 0;
    if (idx < 0) {
        return OX_OK;
    }
    const struct ox_tensor *const whole = &model->tensors[idx];
    const uint64_t out = of.is_b ? whole->shape[0] / (of.module == DOWN ? 1 : 2) : r;
    const uint64_t in = of.is_b ? r : whole->shape[1];
    if (entry->rank != 2 || entry->shape[0] != out || entry->shape[1] != in) {
        return ox_fail(OX_E_CONFIG, "%s: tensor \"%s\" is not [%" PRIu64 ", %" PRIu64 "], as the model %s and \"r\" "
                       "say; use the files that were saved with the adapter", ox_st_path(adapter->file), entry->name,
                       out, in, folder->path);
    }
    if (adapter->parts == NULL) {
        adapter->parts = calloc((size_t)model->saved_count * 2 * model->config.mixture.router.experts,
                                sizeof *adapter->parts);
    }
    if (adapter->parts == NULL) {
        return ox_hf_fail_memory(folder->path);
    }
    parts_of(adapter, model, whole->saved_idx)[2 * of.expert + (of.module == UP)] = entry;
    return OX_OK;
}

bool ox_hf_has_experts(const struct ox_hf_adapter *adapter, const struct ox_model *model, uint32_t tensor_idx) {
    const struct ox_tensor *const tensor = &model->tensors[tensor_idx];
    const uint32_t step = tensor->role == OX_ROLE_EXPERT_DOWN_A || tensor->role == OX_ROLE_EXPERT_DOWN_B ? 2 : 1;
    bool has = adapter->parts != NULL && tensor->role >= OX_ROLE_EXPERT_GATE_UP_A &&
               tensor->role <= OX_ROLE_EXPERT_DOWN_B;
    for (uint32_t i = 0; has && i < 2 * model->config.mixture.router.experts; i += step) {
        has = parts_of(adapter, model, tensor->saved_idx)[i] != NULL;
    }
    return has;
}

/* Puts one part into the whole tensor. */
static void put(const struct ox_model *model, const struct ox_tensor *whole, uint32_t nth, const float *part,
                float *out) {
    const uint64_t experts = model->config.mixture.router.experts, r = model->config.lora.r;
    const bool down = whole->role == OX_ROLE_EXPERT_DOWN_A || whole->role == OX_ROLE_EXPERT_DOWN_B;
    const bool is_b = whole->role == OX_ROLE_EXPERT_GATE_UP_B || whole->role == OX_ROLE_EXPERT_DOWN_B;
    const uint64_t expert = nth / 2, side = nth % 2, ranks = down ? r : 2 * r;
    if (!is_b) {
        const uint64_t in = whole->shape[1];
        memcpy(out + (expert * ranks + side * r) * in, part, r * in * sizeof *out);
        return;
    }
    const uint64_t rows = whole->shape[0] / (down ? 1 : 2);
    for (uint64_t o = 0; o < rows; o++) {
        for (uint64_t j = 0; j < r; j++) {
            out[((side * rows + o) * ranks + side * r + j) * experts + expert] = part[o * r + j];
        }
    }
}

enum ox_status ox_hf_read_experts(struct ox_hf_adapter *adapter, const struct ox_model *model, uint32_t tensor_idx,
                                  uint64_t first, uint64_t count, float *out) {
    const struct ox_tensor *const tensor = &model->tensors[tensor_idx];
    const struct ox_st_entry *const *const parts = parts_of(adapter, model, tensor->saved_idx);
    enum ox_status status = OX_OK;
    if (adapter->joined == NULL || adapter->joined_idx != tensor_idx) {
        float *const part = malloc(tensor->count * sizeof *part);
        free(adapter->joined);
        adapter->joined = calloc(tensor->count, sizeof *adapter->joined);
        adapter->joined_idx = tensor_idx;
        status = part != NULL && adapter->joined != NULL ? OX_OK : ox_hf_fail_memory(ox_st_path(adapter->file));
        for (uint32_t i = 0; i < 2 * model->config.mixture.router.experts && status == OX_OK; i++) {
            if (parts[i] != NULL) {
                status = ox_st_read_f32(adapter->file, parts[i], 0, parts[i]->count, part);
                put(model, tensor, i, part, adapter->joined);
            }
        }
        free(part);
    }
    if (status == OX_OK) {
        memcpy(out, adapter->joined + first, count * sizeof *out);
    }
    return status;
}
