/* glm4_moe: mixtures behind some layers with an MLP, whose router has sigmoids, groups of experts and a bias that
 * chooses without weighing, beside an expert that every token gets. */
#include "base/json.h"
#include "engine/family/mixture.h"

#include <inttypes.h>

/* ---- the mixture ---- */

static const char *const routed_keys[] = {
    "n_routed_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
    "n_group", "topk_group", "routed_scaling_factor", "first_k_dense_replace",
    "num_nextn_predict_layers", /* layers behind the last, which predict more tokens: not read */
    "router_aux_loss_coef", NULL};

/* Published folders name the one way to route that their transformers' class has. */
#define ROUTED_FIXED_KEYS                                                                                              \
    {.key = "scoring_func", .kind = OX_FIXED_TEXT, .texts = {"sigmoid"}},                                              \
    {.key = "topk_method", .kind = OX_FIXED_TEXT, .texts = {"noaux_tc"}}, OX_MIXTURE_FIXED_KEYS

/* What the keys mean where they are missing. */
struct routed_defaults {
    struct ox_mixture_keys mixture;
    uint32_t dense, groups, groups_kept;
    float scale;
};

static enum ox_status read_routed(const char *where, const json_t *json, const struct routed_defaults *missing,
                                  struct ox_model_config *out) {
    struct ox_router *const router = &out->mixture.router;
    uint32_t dense = missing->dense, shared = 1;
    const struct ox_size_key sizes[] = {{"first_k_dense_replace", false, &dense},
                                        {"n_shared_experts", false, &shared},
                                        {"n_group", false, &router->groups},
                                        {"topk_group", false, &router->groups_kept}};
    enum ox_status status = ox_read_mixture(where, json, &missing->mixture, out);
    router->groups = missing->groups;
    router->groups_kept = missing->groups_kept;
    router->scores = OX_SCORES_SIGMOID;
    router->group_rank = OX_GROUP_BY_BEST_TWO;
    router->eps = 1e-20f;
    router->scale = missing->scale;
    OX_THEN(status, ox_config_read_sizes(where, json, sizes, sizeof sizes / sizeof *sizes));
    OX_THEN(status, ox_config_read_float(where, json, "routed_scaling_factor", &router->scale));
    ox_layers_add(&out->mixture.dense, 0, dense < out->layers ? dense : out->layers);
    if (status == OX_OK && router->groups == 0) {
        return ox_fail(OX_E_CONFIG, "%s: \"n_group\" is 0; 1 means that experts have no groups", where);
    }
    if (status == OX_OK && (shared == 0 || shared > UINT32_MAX / out->mixture.width)) {
        return ox_fail(OX_E_CONFIG, "%s: \"n_shared_experts\" is %" PRIu32 ", which no model of this model_type has",
                       where, shared);
    }
    out->mixture.shared_width = shared * out->mixture.width;
    return status;
}

static bool write_routed(const struct routed_defaults *missing, const struct ox_model_config *config, json_t *out) {
    const struct ox_mixture *const mixture = &config->mixture;
    uint32_t dense = 0;
    while (dense < config->layers && ox_layers_has(&mixture->dense, dense)) {
        dense++;
    }
    return ox_write_mixture(&missing->mixture, config, out) &&
           (dense == config->layers || ox_config_put(out, "first_k_dense_replace", json_integer(dense))) &&
           ox_config_put(out, "n_shared_experts", json_integer(mixture->shared_width / mixture->width)) &&
           ox_config_put(out, "n_group", json_integer(mixture->router.groups)) &&
           ox_config_put(out, "topk_group", json_integer(mixture->router.groups_kept)) &&
           ox_config_put(out, "routed_scaling_factor", json_real(ox_shortest_double(mixture->router.scale)));
}

/* ---- glm4_moe ---- */

static bool when_qk_norm(const struct ox_model_config *config) {
    return config->qk_norm;
}

/* clang-format off */
static const struct ox_family_row glm4_moe_qk_norm[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_Q_NORM, .name = "layers.%u.self_attn.q_norm.weight",
     .shape = {OX_DIM_HEAD}, .when = when_qk_norm, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_K_NORM, .name = "layers.%u.self_attn.k_norm.weight",
     .shape = {OX_DIM_HEAD}, .when = when_qk_norm, .init = OX_INIT_ONE},
    {.name = NULL},
};
/* clang-format on */

static const struct ox_family_row *const glm4_moe_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, glm4_moe_qk_norm, ox_rows_out, ox_rows_norm2, ox_rows_gate_up,
    ox_rows_down, ox_rows_mixture_chosen, ox_rows_shared_experts, ox_rows_final_norm, ox_rows_table, NULL};

static const struct routed_defaults glm4_moe_routed = {
    .mixture = {.experts = "n_routed_experts", .experts_missing = 128, .chosen_missing = 8,
                .width = "moe_intermediate_size", .width_missing = 1408},
    .dense = 1, .groups = 1, .groups_kept = 1, .scale = 1.0f};

static const struct ox_fixed_key glm4_moe_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    ROUTED_FIXED_KEYS,
    {.key = NULL},
};

static const struct ox_value_key glm4_moe_values[] = {
    {"attention_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 0.0},
    {"norm_topk_prob", OX_KEY_FLAG, offsetof(struct ox_model_config, mixture.router.renormalise), 1.0},
    {"use_qk_norm", OX_KEY_FLAG, offsetof(struct ox_model_config, qk_norm), 0.0},
    {"partial_rotary_factor", OX_KEY_NUMBER, offsetof(struct ox_model_config, rotary_part), 0.5},
    {.key = NULL},
};

static enum ox_status glm4_moe_parse(const char *where, const json_t *json, const struct ox_family *family,
                                     struct ox_model_config *out) {
    enum ox_status status = ox_decoder_parse(where, json, family, out);
    OX_THEN(status, read_routed(where, json, &glm4_moe_routed, out));
    out->out_bias = false;
    return status;
}

static bool glm4_moe_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                           json_t *out) {
    return ox_decoder_write(family, config, has_original, out) && write_routed(&glm4_moe_routed, config, out);
}

const struct ox_family ox_family_glm4_moe = {
    .model_type = "glm4_moe",
    .architecture = "Glm4MoeForCausalLM",
    .base_model = "Glm4MoeModel",
    .prefix = "model.",
    .rows = glm4_moe_rows,
    .ignored = ox_decoder_ignored,
    .layers_beyond = true,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.vocab = 151552, .heads = 96, .contexts = 131072, .kv_heads = 8, .norm_eps = 1e-5f},
    .fixed_keys = glm4_moe_fixed_keys,
    .keys = {ox_decoder_keys, routed_keys},
    .values = glm4_moe_values,
    .parse = glm4_moe_parse,
    .write = glm4_moe_write,
};
