/* Patterns by which options name tensors. */
#include "engine/hf/hf_pattern.h"

#include "base/optim_format.h"
#include "engine/config/config.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

/* Whether `pattern` names a range of layers, as in layers.0-15 or layers.3. */
static bool layers_of(const char *pattern, uint64_t *first, uint64_t *last) {
    static const char prefix[] = "layers.";
    char *end = NULL;
    if (strncmp(pattern, prefix, sizeof prefix - 1) != 0 || !isdigit((unsigned char)pattern[sizeof prefix - 1])) {
        return false;
    }
    *first = *last = strtoull(pattern + sizeof prefix - 1, &end, 10);
    if (*end == '-' && isdigit((unsigned char)end[1])) {
        *last = strtoull(end + 1, &end, 10);
    }
    return *end == '\0' && *first <= *last;
}

bool ox_hf_means(const struct ox_model *model, const char *pattern, const struct ox_tensor *tensor) {
    const uint32_t own_idx = model->units[tensor->unit_idx].own;
    const enum ox_unit_kind kind = model->units[own_idx].kind;
    const bool shared = model->config.tied && tensor->role == OX_ROLE_EMBED;
    uint64_t first = 0, last = 0;
    if (strcmp(pattern, "embed") == 0) {
        return kind == OX_UNIT_EMBED;
    }
    if (strcmp(pattern, "head") == 0) {
        return kind == OX_UNIT_HEAD || shared;
    }
    if (layers_of(pattern, &first, &last)) {
        const uint32_t layer = model->units[own_idx].layer;
        return (kind == OX_UNIT_BLOCK || kind == OX_UNIT_EXPERTS) && last < model->block_count && layer >= first &&
               layer <= last;
    }
    return fnmatch(pattern, tensor->name, 0) == 0 || (shared && fnmatch(pattern, "lm_head.weight", 0) == 0);
}

enum ox_status ox_hf_refuse_pattern(const struct ox_model *model, const char *option, const char *pattern) {
    const char *nearest = "embed";
    unsigned least = ox_name_distance(pattern, nearest);
    uint64_t first = 0, last = 0;
    if (layers_of(pattern, &first, &last)) {
        return ox_fail(OX_E_CONFIG, "%s %s: the model has layers 0 to %u", option, pattern, model->block_count - 1);
    }
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const unsigned distance = ox_name_distance(pattern, model->tensors[i].name);
        nearest = distance < least ? model->tensors[i].name : nearest;
        least = distance < least ? distance : least;
    }
    return ox_fail(OX_E_CONFIG, "%s %s: no tensor of the model has this name; the nearest is %s; embed, head, "
                   "layers.N-M and * work too, and `offload inspect` lists all names", option, pattern, nearest);
}

enum ox_status ox_hf_check_blocks(const struct ox_model *model, const char *option) {
    for (uint32_t i = 1; i < model->tensor_count; i++) {
        const struct ox_tensor *const before = &model->tensors[i - 1], *const at = &model->tensors[i];
        const bool together = before->unit_idx == at->unit_idx && before->role == at->role;
        const bool alike = before->trained == at->trained && ox_tensor_same_group(before, at);
        if (together && !alike && at->offset % OX_Q8_BLOCK != 0) {
            return ox_fail(OX_E_CONFIG, "%s: %s and %s share a block of %d weights that is updated at once; mean both "
                           "or neither", option, before->name, at->name, (int)OX_Q8_BLOCK);
        }
    }
    return OX_OK;
}
