/* --freeze: which tensors a run does not train. */
#include "base/optim_format.h"
#include "engine/config/config.h"
#include "engine/hf/hf.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char all_but[] = "all-but ";

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

/* Whether a pattern means a tensor. A table that embedding and head share is one tensor, by both names. */
static bool means(const struct ox_model *model, const char *pattern, const struct ox_tensor *tensor) {
    const enum ox_unit_kind kind = model->units[tensor->unit_idx].kind;
    const bool shared = model->config.tied && tensor->role == OX_ROLE_EMBED;
    uint64_t first = 0, last = 0;
    if (strcmp(pattern, "embed") == 0) {
        return kind == OX_UNIT_EMBED;
    }
    if (strcmp(pattern, "head") == 0) {
        return kind == OX_UNIT_HEAD || shared;
    }
    if (layers_of(pattern, &first, &last)) {
        uint64_t layer = 0;
        while (layer < model->block_count && model->blocks[layer] != tensor->unit_idx) {
            layer++;
        }
        return kind == OX_UNIT_BLOCK && layer >= first && layer <= last;
    }
    return fnmatch(pattern, tensor->name, 0) == 0 || (shared && fnmatch(pattern, "lm_head.weight", 0) == 0);
}

/* Refuses a pattern that means nothing, with the nearest name that it may mean. */
static enum ox_status refuse(const struct ox_model *model, const char *pattern) {
    const char *nearest = "embed";
    unsigned least = ox_name_distance(pattern, nearest);
    uint64_t first = 0, last = 0;
    if (layers_of(pattern, &first, &last)) {
        return ox_fail(OX_E_CONFIG, "--freeze %s: the model has layers 0 to %u", pattern, model->block_count - 1);
    }
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const unsigned distance = ox_name_distance(pattern, model->tensors[i].name);
        nearest = distance < least ? model->tensors[i].name : nearest;
        least = distance < least ? distance : least;
    }
    return ox_fail(OX_E_CONFIG, "--freeze %s: no tensor of the model has this name; the nearest is %s; embed, head, "
                   "layers.N-M and * work too, and `offload inspect` lists all names", pattern, nearest);
}

/* Counts, per tensor, patterns that mean it: bit 0 frozen, bit 1 an exception. Tells which kinds of patterns there
 * are. */
struct marks {
    uint8_t *bits;
    bool plain, exceptions;
};

static enum ox_status mark(const struct ox_model *model, const char *pattern, struct marks *marks) {
    const bool is_exception = strncmp(pattern, all_but, sizeof all_but - 1) == 0;
    const char *const name = pattern + (is_exception ? sizeof all_but - 1 : 0);
    bool found = false;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        if (means(model, name, &model->tensors[i])) {
            marks->bits[i] |= is_exception ? 2 : 1;
            found = true;
        }
    }
    *(is_exception ? &marks->exceptions : &marks->plain) = true;
    return found ? OX_OK : refuse(model, name);
}

/* Eight-bit moments share a scale within a block, so no block may hold tensors of both kinds. */
static enum ox_status check_blocks(const struct ox_model *model) {
    for (uint32_t i = 1; i < model->tensor_count; i++) {
        const struct ox_tensor *const before = &model->tensors[i - 1], *const at = &model->tensors[i];
        const bool together = before->unit_idx == at->unit_idx && before->role == at->role;
        if (together && before->trained != at->trained && at->offset % OX_Q8_BLOCK != 0) {
            return ox_fail(OX_E_CONFIG, "--freeze: %s and %s share a block of --moments q8; freeze both or none, or "
                           "use --moments bf16", before->name, at->name);
        }
    }
    return OX_OK;
}

/* Marks what each of the patterns means. */
static enum ox_status mark_all(const struct ox_model *model, const char *patterns, struct marks *marks) {
    enum ox_status status = OX_OK;
    for (const char *at = patterns; *at != '\0' && status == OX_OK; at += *at == ',') {
        char pattern[OX_CONFIG_TEXT_BYTES];
        at += strspn(at, " ");
        const size_t len = strcspn(at, ",");
        snprintf(pattern, sizeof pattern, "%.*s", (int)len, at);
        status = len > 0 ? mark(model, pattern, marks) : OX_OK;
        at += len;
    }
    return status;
}

enum ox_status ox_hf_freeze(struct ox_model *model, const char *patterns, bool eight_bits) {
    if (patterns[0] == '\0') {
        return OX_OK;
    }
    struct marks marks = {.bits = calloc(model->tensor_count, 1)};
    if (marks.bits == NULL) {
        return ox_fail(OX_E_NOMEM, "--freeze: no memory for the list of tensors");
    }
    enum ox_status status = mark_all(model, patterns, &marks);
    for (uint32_t i = 0; i < model->tensor_count && status == OX_OK; i++) {
        const bool rest_frozen = marks.exceptions && (marks.bits[i] & 2) == 0;
        model->tensors[i].trained = (marks.bits[i] & 1) == 0 && !rest_frozen;
    }
    free(marks.bits);
    ox_model_settle_trained(model);
    if (status == OX_OK && model->trained_count == 0) {
        return ox_fail(OX_E_CONFIG, "--freeze %s: leaves nothing to train; freeze less, or use `offload eval`",
                       patterns);
    }
    OX_THEN(status, eight_bits ? check_blocks(model) : OX_OK);
    return status;
}
