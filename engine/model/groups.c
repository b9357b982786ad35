/* The cut into groups of features: which tensors have a part for each group, and where these lie in files. */
#include "engine/model/groups.h"

#include "base/assert.h"
#include "engine/family/families.h"

#include <inttypes.h>
#include <stdio.h>

uint64_t ox_groups_begin(uint64_t extent, uint32_t groups, uint32_t group) {
    return extent * group / groups;
}

uint32_t ox_model_part_at(const struct ox_model *model, uint32_t part_idx, uint64_t at, uint64_t *idx,
                          uint64_t *count) {
    for (; part_idx != OX_NO_TENSOR; part_idx = model->tensors[part_idx].next_part) {
        const struct ox_tensor *const part = &model->tensors[part_idx];
        const uint64_t run = part->run > 0 ? part->run : part->count;
        const uint64_t within = at - part->part_first; /* of an element before the part: beyond its end */
        const uint64_t nth = part->run > 0 ? within / part->run_stride : 0;
        const uint64_t in_run = part->run > 0 ? within % part->run_stride : within;
        if (at >= part->part_first && in_run < run && nth * run + in_run < part->count) {
            *idx = nth * run + in_run;
            *count = run - in_run;
            return part_idx;
        }
    }
    return OX_NO_TENSOR;
}

/* The pieces that a dimension of a role is made of, each of which is cut by itself; 0: it is not cut. Experts stay
 * whole, and each group has some of them; a router, which chooses among all, is not cut. */
static uint32_t pieces_of(const struct ox_model_config *config, enum ox_role role, enum ox_dim dim, uint64_t out[3]) {
    const uint64_t q = (uint64_t)config->heads * config->head_dim, kv = (uint64_t)config->kv_heads * config->head_dim;
    switch (dim) {
    case OX_DIM_VOCAB:
        out[0] = config->vocab;
        return 1;
    case OX_DIM_Q:
        out[0] = q;
        return 1;
    case OX_DIM_KV:
        out[0] = kv;
        return 1;
    case OX_DIM_QKV:
        out[0] = q;
        out[1] = out[2] = kv;
        return 3;
    case OX_DIM_WIDTH:
        out[0] = config->width;
        return 1;
    case OX_DIM_GATE_UP:
        out[0] = out[1] = config->width;
        return 2;
    case OX_DIM_HEADS:
        out[0] = config->heads;
        return 1;
    case OX_DIM_SHARED_WIDTH:
        out[0] = config->mixture.shared_width;
        return 1;
    case OX_DIM_EXPERTS:
        out[0] = config->mixture.router.experts;
        return ox_role_is_of_expert(role) ? 1 : 0;
    default:
        return 0;
    }
}

struct ox_row_cut ox_row_cut_of(const struct ox_model_config *config, const struct ox_family_row *row) {
    struct ox_row_cut cut = {.count = 0};
    for (uint32_t i = 0; i < sizeof row->shape / sizeof *row->shape && cut.count == 0; i++) {
        cut.axis = i;
        cut.count = pieces_of(config, row->role, row->shape[i], cut.pieces);
    }
    return cut;
}

uint32_t ox_row_cut_tensors(const struct ox_row_cut *cut, const struct ox_unit *unit) {
    const bool is_here = (cut->count > 0) == (unit->group != OX_NO_GROUP);
    return !is_here ? 0 : cut->count > 0 && cut->axis == 0 ? cut->count : 1;
}

void ox_row_cut_take(const struct ox_row_cut *cut, uint32_t groups, uint32_t group, uint32_t nth,
                     struct ox_tensor *tensor) {
    if (cut->count == 0) {
        return;
    }
    const uint64_t piece = cut->pieces[nth], begin = ox_groups_begin(piece, groups, group);
    const uint64_t width = ox_groups_begin(piece, groups, group + 1) - begin;
    if (cut->axis == 0) { /* rows: of each piece a range */
        const uint64_t row_elems = tensor->count / tensor->shape[0];
        uint64_t before = 0;
        for (uint32_t i = 0; i < nth; i++) {
            before += cut->pieces[i];
        }
        tensor->shape[0] = width;
        tensor->count = width * row_elems;
        tensor->part_first = (before + begin) * row_elems;
        return;
    }
    /* columns: of every row a range of each piece, and pieces are alike */
    OX_ASSERT(nth == 0 && cut->axis + 1 == tensor->rank && cut->pieces[cut->count - 1] == piece);
    tensor->count = tensor->count / tensor->shape[cut->axis] * cut->count * width;
    tensor->shape[cut->axis] = cut->count * width;
    tensor->part_first = begin;
    tensor->run = width;
    tensor->run_stride = piece;
}

/* ---- what can be cut ---- */

/* What groups have to divide. */
struct shares {
    const char *what;
    uint32_t count;
};
enum { SHARES = 5 };

/* 0 where no layer has any. */
static void shares_of(const struct ox_model_config *config, struct shares out[SHARES]) {
    bool dense = false;
    for (uint32_t i = 0; i < config->layers; i++) {
        dense |= !ox_layer_is_sparse(config, i);
    }
    out[0] = (struct shares){"attention heads", config->heads};
    out[1] = (struct shares){"key/value heads", config->kv_heads};
    out[2] = (struct shares){"columns of the MLP", dense ? config->width : 0};
    out[3] = (struct shares){"experts of a layer", config->mixture.router.experts};
    out[4] = (struct shares){"columns of the shared expert", config->mixture.shared_width};
}

/* Writes the numbers of groups that can be: "1, 2 or 4". */
static void list_possible(const struct shares shares[SHARES], char *text, size_t bytes) {
    uint32_t possible[OX_TENSOR_GROUPS_MAX], count = 0;
    for (uint32_t groups = 1; groups <= OX_TENSOR_GROUPS_MAX; groups++) {
        bool can = true;
        for (int i = 0; i < SHARES; i++) {
            can &= shares[i].count % groups == 0;
        }
        possible[count] = groups;
        count += can;
    }
    size_t end = 0;
    for (uint32_t i = 0; i < count; i++) {
        end += (size_t)snprintf(text + end, bytes - end, "%s%" PRIu32, i == 0 ? "" : i + 1 == count ? " or " : ", ",
                                possible[i]);
        OX_ASSERT(end < bytes);
    }
}

/* Why a model is not cut, whatever into; NULL: it can be. */
static const char *obstacle(const struct ox_model_config *config) {
    const struct ox_family *const family = ox_family_find(config->family);
    const struct ox_family_row *row;
    if (config->latent.kv_rank > 0) {
        return "latent attention";
    }
    if (config->shared_layers > 1) {
        return "layers that share their weights";
    }
    for (uint32_t i = 0; (row = ox_family_row_at(family, i)) != NULL; i++) {
        if (row->role == OX_ROLE_Q_NORM && row->shape[0] != OX_DIM_HEAD) {
            return "norms over all heads of queries and of keys";
        }
    }
    return NULL;
}

enum ox_status ox_model_check_groups(const struct ox_model_config *config) {
    const uint32_t groups = ox_model_groups(config);
    struct shares shares[SHARES];
    char possible[64];
    if (groups == 1) {
        return OX_OK;
    }
    const char *const why = obstacle(config);
    if (why != NULL) {
        return ox_fail(OX_E_CONFIG, "the model (model_type \"%s\") has %s, which cannot be cut into %" PRIu32
                       " groups of features; use 1", config->family, why, groups);
    }
    shares_of(config, shares);
    list_possible(shares, possible, sizeof possible);
    if (groups > OX_TENSOR_GROUPS_MAX || config->vocab < groups) {
        return ox_fail(OX_E_CONFIG, "%" PRIu32 " groups of features: at most %d; use %s", groups, OX_TENSOR_GROUPS_MAX,
                       possible);
    }
    for (int i = 0; i < SHARES; i++) {
        if (shares[i].count % groups != 0) {
            return ox_fail(OX_E_CONFIG, "%" PRIu32 " %s cannot be cut into %" PRIu32 " groups of features; use %s",
                           shares[i].count, shares[i].what, groups, possible);
        }
    }
    const uint32_t per_unit = config->mixture.per_unit, each = config->mixture.router.experts / groups;
    return per_unit == 0 || each % per_unit == 0
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "--experts-per-unit %" PRIu32 ": each of %" PRIu32 " groups of features has %"
                         PRIu32 " experts of a layer; give a divisor of these, or all to keep them in their block's "
                         "unit", per_unit, groups, each);
}
