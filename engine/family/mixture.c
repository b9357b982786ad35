/* What families with a mixture of experts share: keys of config.json and groups of tensors. */
#include "engine/family/mixture.h"

#include "base/json.h"

#include <inttypes.h>
#include <string.h>

/* The name that transformers reads, or has written, beside a family's own. */
static const char *other_name(const char *experts) {
    return strcmp(experts, "num_local_experts") == 0 ? "num_experts" : "num_local_experts";
}

const char *const ox_mixture_key_names[] = {
    "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step",
    "mlp_only_layers", "router_aux_loss_coef", "output_router_logits", NULL};

const char *const ox_expert_names[] = {"gate", "gate_proj", "up_proj", "down_proj"};

/* ---- keys ---- */

/* transformers has written either name for the same families; a file with both must mean one number. */
static enum ox_status read_count(const char *where, const json_t *json, const struct ox_mixture_keys *own,
                                 uint32_t *out) {
    const char *const count_names[] = {own->experts, other_name(own->experts)};
    uint32_t counts[] = {own->experts_missing, own->experts_missing};
    const struct ox_size_key keys[] = {{count_names[0], false, &counts[0]}, {count_names[1], false, &counts[1]}};
    const enum ox_status status = ox_config_read_sizes(where, json, keys, 2);
    const bool has[] = {json_object_get(json, count_names[0]) != NULL, json_object_get(json, count_names[1]) != NULL};
    if (status == OX_OK && has[0] && has[1] && counts[0] != counts[1]) {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" is %" PRIu32 ", but \"%s\" is %" PRIu32
                       "; both name the number of experts: leave one out", where, count_names[0], counts[0],
                       count_names[1], counts[1]);
    }
    *out = counts[has[1] && !has[0]];
    if (status == OX_OK && *out == 0) {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" is 0, but models of this model_type have experts", where,
                       count_names[has[1] && !has[0]]);
    }
    return status;
}

/* output_router_logits asks transformers' trainers for the loss. */
static enum ox_status read_balance(const char *where, const json_t *json, double missing, struct ox_mixture *out) {
    out->balance = missing;
    OX_TRY(ox_json_get_bool(where, json, "output_router_logits", false, &out->asks_balance));
    OX_TRY(ox_json_get_double(where, json, "router_aux_loss_coef", false, &out->balance));
    return out->balance >= 0 ? OX_OK : ox_fail(OX_E_CONFIG, "%s: \"router_aux_loss_coef\" is %g; the factor of a loss "
                                               "must be 0 or more", where, out->balance);
}

enum ox_status ox_read_mixture(const char *where, const json_t *json, const struct ox_mixture_keys *keys,
                               struct ox_model_config *out) {
    struct ox_mixture *const mixture = &out->mixture;
    const struct ox_size_key sizes[] = {{"num_experts_per_tok", false, &mixture->router.chosen},
                                        {keys->width, keys->width_missing == 0, &mixture->width}};
    mixture->router.scores = OX_SCORES_SOFTMAX;
    mixture->router.scale = 1.0f;
    mixture->router.chosen = keys->chosen_missing;
    mixture->gate = ox_gate_swiglu();
    mixture->layout = out->layout;
    mixture->width = keys->width_missing;
    enum ox_status status = read_count(where, json, keys, &mixture->router.experts);
    OX_THEN(status, ox_config_read_sizes(where, json, sizes, sizeof sizes / sizeof *sizes));
    OX_THEN(status, read_balance(where, json, keys->balance_missing, mixture));
    return status;
}

bool ox_write_mixture(const struct ox_mixture_keys *keys, const struct ox_model_config *config, json_t *out) {
    const struct ox_mixture *const mixture = &config->mixture;
    const char *const count_names[] = {keys->experts, other_name(keys->experts)};
    bool done = true, named = false;
    for (int i = 0; done && i < 2; i++) {
        if (json_object_get(out, count_names[i]) != NULL) {
            named = true;
            done = ox_config_put(out, count_names[i], json_integer(mixture->router.experts));
        }
    }
    return done && (named || ox_config_put(out, keys->experts, json_integer(mixture->router.experts))) &&
           ox_config_put(out, "num_experts_per_tok", json_integer(mixture->router.chosen)) &&
           ox_config_put(out, keys->width, json_integer(mixture->width)) &&
           (keys->balance_missing == 0 || /* the family has no such loss */
            (ox_config_put(out, "output_router_logits", json_boolean(mixture->asks_balance)) &&
             ox_config_put(out, "router_aux_loss_coef", json_real(mixture->balance))));
}

enum ox_status ox_read_dense_layers(const char *where, const json_t *json, struct ox_model_config *out) {
    const json_t *const list = json_object_get(json, "mlp_only_layers");
    const bool has_list = list != NULL && !json_is_null(list);
    uint32_t step = 1;
    const struct ox_size_key key = {"decoder_sparse_step", false, &step};
    OX_TRY(ox_config_read_sizes(where, json, &key, 1));
    if (step == 0) {
        return ox_fail(OX_E_CONFIG, "%s: \"decoder_sparse_step\" is 0; it must be at least 1: every so many-th layer "
                       "has experts", where);
    }
    for (uint32_t i = 0; i < out->layers; i++) {
        ox_layers_add(&out->mixture.dense, i, (i + 1) % step != 0 ? i + 1 : i);
    }
    bool known = !has_list || json_is_array(list);
    for (size_t i = 0; known && has_list && i < json_array_size(list); i++) {
        const json_t *const layer = json_array_get(list, i);
        known = json_is_integer(layer) && json_integer_value(layer) >= 0 && json_integer_value(layer) < out->layers;
        if (known) {
            const uint32_t idx = (uint32_t)json_integer_value(layer);
            ox_layers_add(&out->mixture.dense, idx, idx + 1);
        }
    }
    char text[OX_JSON_EXCERPT_BYTES];
    return known ? OX_OK : ox_fail(OX_E_CONFIG, "%s: \"mlp_only_layers\" is %s; it must be a list of layers, 0 to %u",
                                   where, ox_json_excerpt(list, text), out->layers - 1);
}

/* What a file has already says the same. */
bool ox_write_dense_layers(const struct ox_model_config *config, json_t *out) {
    if (json_object_get(out, "decoder_sparse_step") != NULL || json_object_get(out, "mlp_only_layers") != NULL) {
        return true;
    }
    json_t *const list = json_array();
    bool done = list != NULL;
    for (uint32_t i = 0; done && i < config->layers; i++) {
        done = !ox_layers_has(&config->mixture.dense, i) || json_array_append_new(list, json_integer(i)) == 0;
    }
    return ox_config_put(out, "mlp_only_layers", list) && ox_config_put(out, "decoder_sparse_step", json_integer(1)) &&
           done;
}

/* ---- tensors ---- */

static bool when_packed(const struct ox_model_config *config) {
    return config->mixture.packed;
}

static bool when_each(const struct ox_model_config *config) {
    return !config->mixture.packed;
}

/* clang-format off */
#define PACKED_ROWS                                                                                                    \
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_GATE_UP, .name = "layers.%u.mlp.experts.gate_up_proj",              \
     .shape = {OX_DIM_EXPERTS, OX_DIM_EXPERT_GATE_UP, OX_DIM_HIDDEN}, .when = when_packed},                            \
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_DOWN, .name = "layers.%u.mlp.experts.down_proj",                    \
     .shape = {OX_DIM_EXPERTS, OX_DIM_HIDDEN, OX_DIM_EXPERT_WIDTH}, .when = when_packed}

#define EACH_ROWS                                                                                                      \
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_GATE_UP, .name = "layers.%u.mlp.experts.%u.gate_proj.weight",       \
     .shape = {OX_DIM_EXPERT_WIDTH, OX_DIM_HIDDEN}, .each_expert = true, .when = when_each},                           \
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_GATE_UP, .name = "layers.%u.mlp.experts.%u.up_proj.weight",         \
     .shape = {OX_DIM_EXPERT_WIDTH, OX_DIM_HIDDEN}, .each_expert = true, .when = when_each},                           \
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_DOWN, .name = "layers.%u.mlp.experts.%u.down_proj.weight",          \
     .shape = {OX_DIM_HIDDEN, OX_DIM_EXPERT_WIDTH}, .each_expert = true, .when = when_each}

const struct ox_family_row ox_rows_mixture[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_ROUTER, .name = "layers.%u.mlp.gate.weight",
     .shape = {OX_DIM_EXPERTS, OX_DIM_HIDDEN}},
    EACH_ROWS,
    PACKED_ROWS,
    {.name = NULL},
};

const struct ox_family_row ox_rows_mixture_fp32[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_ROUTER, .name = "layers.%u.mlp.gate.weight",
     .shape = {OX_DIM_EXPERTS, OX_DIM_HIDDEN}, .fp32 = true},
    EACH_ROWS,
    PACKED_ROWS,
    {.name = NULL},
};

const struct ox_family_row ox_rows_mixture_chosen[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_ROUTER, .name = "layers.%u.mlp.gate.weight",
     .shape = {OX_DIM_EXPERTS, OX_DIM_HIDDEN}, .fp32 = true},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_CHOICE_BIAS, .name = "layers.%u.mlp.gate.e_score_correction_bias",
     .shape = {OX_DIM_EXPERTS, OX_DIM_LIMBS}, .fp32 = true, .fixed = true, .init = OX_INIT_ZERO},
    EACH_ROWS,
    PACKED_ROWS,
    {.name = NULL},
};

const struct ox_family_row ox_rows_mixture_w123[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_ROUTER, .name = "layers.%u.block_sparse_moe.gate.weight",
     .shape = {OX_DIM_EXPERTS, OX_DIM_HIDDEN}, .when = when_each},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_ROUTER, .name = "layers.%u.mlp.gate.weight",
     .shape = {OX_DIM_EXPERTS, OX_DIM_HIDDEN}, .when = when_packed},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_GATE_UP, .name = "layers.%u.block_sparse_moe.experts.%u.w1.weight",
     .shape = {OX_DIM_EXPERT_WIDTH, OX_DIM_HIDDEN}, .each_expert = true, .when = when_each},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_GATE_UP, .name = "layers.%u.block_sparse_moe.experts.%u.w3.weight",
     .shape = {OX_DIM_EXPERT_WIDTH, OX_DIM_HIDDEN}, .each_expert = true, .when = when_each},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_DOWN, .name = "layers.%u.block_sparse_moe.experts.%u.w2.weight",
     .shape = {OX_DIM_HIDDEN, OX_DIM_EXPERT_WIDTH}, .each_expert = true, .when = when_each},
    PACKED_ROWS,
    {.name = NULL},
};

const struct ox_family_row ox_rows_shared_expert[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_SHARED_GATE_UP, .name = "layers.%u.mlp.shared_expert.gate_proj.weight",
     .shape = {OX_DIM_SHARED_WIDTH, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_SHARED_GATE_UP, .name = "layers.%u.mlp.shared_expert.up_proj.weight",
     .shape = {OX_DIM_SHARED_WIDTH, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_SHARED_DOWN, .name = "layers.%u.mlp.shared_expert.down_proj.weight",
     .shape = {OX_DIM_HIDDEN, OX_DIM_SHARED_WIDTH}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_SHARED_GATE, .name = "layers.%u.mlp.shared_expert_gate.weight",
     .shape = {OX_DIM_ONE, OX_DIM_HIDDEN}},
    {.name = NULL},
};

const struct ox_family_row ox_rows_shared_experts[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_SHARED_GATE_UP, .name = "layers.%u.mlp.shared_experts.gate_proj.weight",
     .shape = {OX_DIM_SHARED_WIDTH, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_SHARED_GATE_UP, .name = "layers.%u.mlp.shared_experts.up_proj.weight",
     .shape = {OX_DIM_SHARED_WIDTH, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_SHARED_DOWN, .name = "layers.%u.mlp.shared_experts.down_proj.weight",
     .shape = {OX_DIM_HIDDEN, OX_DIM_SHARED_WIDTH}},
    {.name = NULL},
};
/* clang-format on */
