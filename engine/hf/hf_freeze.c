/* --freeze: which tensors a run does not train, and how it keeps the units of which it trains none. */
#include "base/bytes.h"
#include "base/planes.h"
#include "engine/config/config.h"
#include "engine/hf/hf_pattern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Counts, per tensor, patterns that mean it: bit 0 frozen, bit 1 an exception. Tells which kinds of patterns there
 * are. */
struct marks {
    uint8_t *bits;
    bool plain, exceptions;
};

static enum ox_status mark(const struct ox_model *model, const char *pattern, struct marks *marks) {
    const bool is_exception = ox_hf_excepts(&pattern);
    bool found = false;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        if (ox_hf_means(model, pattern, &model->tensors[i])) {
            marks->bits[i] |= is_exception ? 2 : 1;
            found = true;
        }
    }
    *(is_exception ? &marks->exceptions : &marks->plain) = true;
    return found ? OX_OK : ox_hf_refuse_pattern(model, "--freeze", pattern);
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

enum ox_status ox_hf_freeze(struct ox_model *model, const char *patterns) {
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
        model->tensors[i].trained &= (marks.bits[i] & 1) == 0 && !rest_frozen; /* some are never trained */
    }
    free(marks.bits);
    ox_model_settle_trained(model);
    if (status == OX_OK && model->trained_count == 0) {
        return ox_fail(OX_E_CONFIG, "--freeze %s: leaves nothing to train; freeze less, or use `offload eval`",
                       patterns);
    }
    return status == OX_OK ? ox_hf_check_blocks(model, "--freeze") : status;
}

/* ---- how they are kept ------------------------------------------------------------------------------------------ */

/* Whether a tensor that is stored as F32 has bfloat16 numbers, as routers have that transformers widened. What is
 * stored so of a unit, `stored`, is read to tell only where it is a small part. */
static bool is_widened(const struct ox_hf_folder *folder, const struct ox_unit *unit, const struct ox_tensor *tensor,
                       uint64_t *stored) {
    enum { READ_ELEMS = 4096, SMALL_SHARE = 8 };
    const uint32_t idx = (uint32_t)(tensor - ox_hf_model(folder)->tensors);
    *stored += tensor->count;
    bool is = ox_hf_dtype(folder, idx) == OX_DTYPE_F32 && *stored <= unit->elem_count / SMALL_SHARE;
    for (uint64_t first = 0; is && first < tensor->count; first += READ_ELEMS) {
        float values[READ_ELEMS];
        const uint64_t count = ox_min_u64(READ_ELEMS, tensor->count - first);
        is = ox_hf_read(folder, idx, first, count, values) == OX_OK; /* who loads it tells of a failure */
        for (uint64_t i = 0; is && i < count; i++) {
            is = ox_bf16_to_f32(ox_plane_hi(values[i])) == values[i];
        }
    }
    return is;
}

/* Whether all weights of a unit are of a format. Limbs of an F32 are bfloat16 numbers. */
static bool all_are(const struct ox_hf_folder *folder, const struct ox_unit *unit, enum ox_dtype dtype) {
    const struct ox_model *const model = ox_hf_model(folder);
    const bool open = ox_hf_has_weights(folder), narrow = dtype == OX_DTYPE_BF16;
    uint64_t stored = 0;
    bool are = open || ox_hf_config_dtype(ox_hf_config(folder)) == dtype;
    for (const struct ox_tensor *tensor = NULL;
         open && are && (tensor = ox_unit_next_tensor(model, unit, tensor)) != NULL;) {
        are = ox_hf_dtype(folder, (uint32_t)(tensor - model->tensors)) == dtype || (tensor->limbs && narrow) ||
              (narrow && is_widened(folder, unit, tensor, &stored));
    }
    return are;
}

void ox_hf_choose_formats(struct ox_hf_folder *folder, bool halves) {
    struct ox_model *const model = ox_hf_own_model(folder);
    for (uint32_t i = 0; i < model->unit_count; i++) {
        struct ox_unit *const unit = &model->units[i];
        const bool may = halves && model->units[unit->own].kind == OX_UNIT_BLOCK; /* CAST reads them */
        unit->format = unit->trained                                   ? OX_FORMAT_MASTER
                       : all_are(folder, unit, OX_DTYPE_BF16)          ? OX_FORMAT_BF16
                       : may && all_are(folder, unit, OX_DTYPE_F16)    ? OX_FORMAT_FP16
                                                                       : OX_FORMAT_MASTER;
    }
}

enum ox_status ox_hf_choose_bytes(struct ox_model *model) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        struct ox_unit *const unit = &model->units[i];
        const enum ox_unit_kind kind = model->units[unit->own].kind;
        const bool is = !unit->trained && (kind == OX_UNIT_BLOCK || kind == OX_UNIT_EXPERTS); /* CAST reads it */
        for (const struct ox_tensor *tensor = NULL;
             is && (tensor = ox_unit_next_tensor(model, unit, tensor)) != NULL;) {
            if (tensor->limbs) {
                return ox_fail(OX_E_CONFIG, "--base-dtype q8: %s is kept in float32 exactly, which 8 bits cannot; "
                               "leave the option out", tensor->name);
            }
        }
        unit->format = is ? OX_FORMAT_Q8 : unit->format;
        count += is;
    }
    return count > 0 ? OX_OK
                     : ox_fail(OX_E_CONFIG, "--base-dtype q8: no block is frozen whole, and what is trained keeps its "
                               "float32 master; leave it out, or train adapters (`offload train --lora-r N`) or freeze "
                               "blocks (`offload train --freeze PATTERN`)");
}
