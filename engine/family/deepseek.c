/* glm4_moe, deepseek_v3 and deepseek_v2: mixtures behind some layers with an MLP, whose router has groups of experts,
 * and sigmoids with a bias that chooses without weighing or a softmax, beside an expert that every token gets; the last
 * two with latent attention. */
#include "base/json.h"
#include "engine/family/mixture.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- the mixture ---- */

static const char *const routed_keys[] = {
    "n_routed_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
    "n_group", "topk_group", "routed_scaling_factor", "first_k_dense_replace",
    "num_nextn_predict_layers", /* layers behind the last, which predict more tokens: not read */
    "router_aux_loss_coef",
    "aux_loss_alpha", "seq_aux", "ep_size", /* of what DeepSeek trained with, which transformers does not compute */
    NULL};

/* Published folders name the one way to route that their transformers' class has. */
#define SIGMOID_FIXED_KEYS                                                                                             \
    {.key = "scoring_func", .kind = OX_FIXED_TEXT, .texts = {"sigmoid"}},                                              \
    {.key = "topk_method", .kind = OX_FIXED_TEXT, .texts = {"noaux_tc"}}, OX_MIXTURE_FIXED_KEYS

/* What the keys mean where they are missing; and how the family routes. */
struct routed_defaults {
    struct ox_mixture_keys mixture;
    uint32_t dense, groups, groups_kept, shared;
    float scale;
    enum ox_router_scores scores;
    enum ox_group_rank group_rank;
};

static enum ox_status read_routed(const char *where, const json_t *json, const struct routed_defaults *missing,
                                  struct ox_model_config *out) {
    struct ox_router *const router = &out->mixture.router;
    uint32_t dense = missing->dense, shared = missing->shared;
    const struct ox_size_key sizes[] = {{"first_k_dense_replace", false, &dense},
                                        {"n_shared_experts", false, &shared},
                                        {"n_group", false, &router->groups},
                                        {"topk_group", false, &router->groups_kept}};
    enum ox_status status = ox_read_mixture(where, json, &missing->mixture, out);
    router->groups = missing->groups;
    router->groups_kept = missing->groups_kept;
    router->scores = missing->scores;
    router->group_rank = missing->group_rank;
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
    .dense = 1, .groups = 1, .groups_kept = 1, .shared = 1, .scale = 1.0f, .scores = OX_SCORES_SIGMOID,
    .group_rank = OX_GROUP_BY_BEST_TWO};

static const struct ox_fixed_key glm4_moe_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    SIGMOID_FIXED_KEYS,
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
    .expert_names = ox_expert_names,
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

/* ---- latent attention ---- */

static const char *const latent_keys[] = {"kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim",
                                          "v_head_dim", "qk_head_dim", NULL};

/* Every layer rotates all of the part for it, and there are no other layers. */
#define LATENT_FIXED_KEYS                                                                                              \
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},                                          \
    {.key = "partial_rotary_factor", .kind = OX_FIXED_NUMBER, .number = 1.0},                                          \
    {.key = "moe_layer_freq", .kind = OX_FIXED_NUMBER, .number = 1.0},                                                 \
    {.key = "pretraining_tp", .kind = OX_FIXED_NUMBER, .number = 1.0}

static bool when_queries_narrow(const struct ox_model_config *config) {
    return config->latent.q_rank != 0;
}

static bool when_queries_whole(const struct ox_model_config *config) {
    return config->latent.q_rank == 0;
}

static bool when_attention_bias(const struct ox_model_config *config) {
    return config->attention_bias;
}

/* clang-format off */
static const struct ox_family_row latent_rows[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV, .name = "layers.%u.self_attn.q_proj.weight",
     .shape = {OX_DIM_QUERIES, OX_DIM_HIDDEN}, .when = when_queries_whole},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV, .name = "layers.%u.self_attn.q_a_proj.weight",
     .shape = {OX_DIM_Q_RANK, OX_DIM_HIDDEN}, .when = when_queries_narrow},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV, .name = "layers.%u.self_attn.kv_a_proj_with_mqa.weight",
     .shape = {OX_DIM_KV_RANK_ROTATED, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV_BIAS, .name = "layers.%u.self_attn.q_a_proj.bias",
     .shape = {OX_DIM_Q_RANK}, .when = when_attention_bias, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV_BIAS, .name = "layers.%u.self_attn.kv_a_proj_with_mqa.bias",
     .shape = {OX_DIM_KV_RANK_ROTATED}, .when = when_attention_bias, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_Q_A_NORM, .name = "layers.%u.self_attn.q_a_layernorm.weight",
     .shape = {OX_DIM_Q_RANK}, .when = when_queries_narrow, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_Q_B, .name = "layers.%u.self_attn.q_b_proj.weight",
     .shape = {OX_DIM_QUERIES, OX_DIM_Q_RANK}, .when = when_queries_narrow},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_KV_A_NORM, .name = "layers.%u.self_attn.kv_a_layernorm.weight",
     .shape = {OX_DIM_KV_RANK}, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_KV_B, .name = "layers.%u.self_attn.kv_b_proj.weight",
     .shape = {OX_DIM_KEYS_VALUES, OX_DIM_KV_RANK}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_OUT, .name = "layers.%u.self_attn.o_proj.weight",
     .shape = {OX_DIM_HIDDEN, OX_DIM_VALUES}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_OUT_BIAS, .name = "layers.%u.self_attn.o_proj.bias",
     .shape = {OX_DIM_HIDDEN}, .when = when_attention_bias, .init = OX_INIT_ZERO},
    {.name = NULL},
};
/* clang-format on */

static enum ox_status check_latent(const char *where, const struct ox_model_config *config) {
    const struct ox_latent *const latent = &config->latent;
    if (latent->kv_rank == 0 || latent->rotated == 0 || latent->rest == 0 || latent->value == 0) {
        return ox_fail(OX_E_CONFIG, "%s: one of \"kv_lora_rank\", \"qk_rope_head_dim\", \"qk_nope_head_dim\" and "
                       "\"v_head_dim\" is 0, which no model of this model_type has", where);
    }
    if (config->kv_heads != config->heads) {
        return ox_fail(OX_E_CONFIG, "%s: \"num_key_value_heads\" is %" PRIu32 ", but latent attention has as many as "
                       "\"num_attention_heads\", %" PRIu32, where, config->kv_heads, config->heads);
    }
    if (config->attention_bias && latent->q_rank == 0) {
        return ox_fail(OX_E_CONFIG, "%s: \"attention_bias\" is true without a \"q_lora_rank\", which is not "
                       "supported", where);
    }
    return OX_OK;
}

/* Reads what all decoders share, and the parts of heads. A file's "head_dim" is that of the rotated part. */
static enum ox_status read_latent(const char *where, const json_t *json, const struct ox_family *family,
                                  struct ox_model_config *out) {
    struct ox_latent *const latent = &out->latent;
    *latent = (struct ox_latent){.kv_rank = 512, .q_rank = ox_when_missing(json, "q_lora_rank", 1536), .rotated = 64,
                                 .rest = 128, .value = 128};
    const struct ox_size_key sizes[] = {{"kv_lora_rank", false, &latent->kv_rank},
                                        {"q_lora_rank", false, &latent->q_rank},
                                        {"qk_rope_head_dim", false, &latent->rotated},
                                        {"qk_nope_head_dim", false, &latent->rest},
                                        {"v_head_dim", false, &latent->value}};
    enum ox_status status = ox_config_read_sizes(where, json, sizes, sizeof sizes / sizeof *sizes);
    OX_THEN(status, ox_decoder_parse(where, json, family, out));
    OX_THEN(status, check_latent(where, out));
    const uint64_t query = (uint64_t)latent->rotated + latent->rest;
    uint32_t named = query > UINT16_MAX ? 0 : (uint32_t)query;
    const struct ox_size_key whole = {"qk_head_dim", false, &named};
    OX_THEN(status, ox_config_read_sizes(where, json, &whole, 1));
    if (status == OX_OK && named != query && named != 0) {
        return ox_fail(OX_E_CONFIG, "%s: \"qk_head_dim\" is %" PRIu32 ", but \"qk_rope_head_dim\" and "
                       "\"qk_nope_head_dim\" make %" PRIu64, where, named, query);
    }
    if (status == OX_OK && (query > UINT16_MAX || latent->value > UINT16_MAX)) {
        return ox_fail(OX_E_CONFIG, "%s: heads have %" PRIu64 " and %" PRIu32 " elements, which no model has", where,
                       query, latent->value);
    }
    out->head_dim = query > latent->value ? (uint32_t)query : latent->value;
    out->rotary_dim = latent->rotated;
    out->attention_scale = ox_config_rope_score_scale(&out->rope_scaling) / sqrt((double)query);
    return status;
}

static bool write_latent(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                         json_t *out) {
    const struct ox_latent *const latent = &config->latent;
    return ox_decoder_write(family, config, has_original, out) &&
           ox_config_put(out, "head_dim", json_integer(latent->rotated)) &&
           ox_config_put(out, "kv_lora_rank", json_integer(latent->kv_rank)) &&
           ox_config_put(out, "q_lora_rank", latent->q_rank != 0 ? json_integer(latent->q_rank) : json_null()) &&
           ox_config_put(out, "qk_rope_head_dim", json_integer(latent->rotated)) &&
           ox_config_put(out, "qk_nope_head_dim", json_integer(latent->rest)) &&
           ox_config_put(out, "qk_head_dim", json_integer(ox_latent_query(latent))) &&
           ox_config_put(out, "v_head_dim", json_integer(latent->value));
}

/* ---- deepseek_v3 ---- */

static const struct ox_family_row *const deepseek_v3_rows[] = {
    ox_rows_embedding, ox_rows_norm1, latent_rows, ox_rows_norm2, ox_rows_gate_up, ox_rows_down,
    ox_rows_mixture_chosen, ox_rows_shared_experts, ox_rows_final_norm, ox_rows_table, NULL};

static const struct routed_defaults deepseek_v3_routed = {
    .mixture = {.experts = "n_routed_experts", .experts_missing = 256, .chosen_missing = 8,
                .width = "moe_intermediate_size", .width_missing = 2048},
    .dense = 3, .groups = 8, .groups_kept = 4, .shared = 1, .scale = 2.5f, .scores = OX_SCORES_SIGMOID,
    .group_rank = OX_GROUP_BY_BEST_TWO};

static const struct ox_fixed_key deepseek_v3_fixed_keys[] = {LATENT_FIXED_KEYS, SIGMOID_FIXED_KEYS, {.key = NULL}};

static const struct ox_value_key deepseek_v3_values[] = {
    {"attention_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 0.0},
    {"norm_topk_prob", OX_KEY_FLAG, offsetof(struct ox_model_config, mixture.router.renormalise), 1.0},
    {"rope_interleave", OX_KEY_FLAG, offsetof(struct ox_model_config, rope_neighbours), 1.0},
    {.key = NULL},
};

static enum ox_status deepseek_v3_parse(const char *where, const json_t *json, const struct ox_family *family,
                                        struct ox_model_config *out) {
    enum ox_status status = read_latent(where, json, family, out);
    OX_THEN(status, read_routed(where, json, &deepseek_v3_routed, out));
    return status;
}

static bool deepseek_v3_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                              json_t *out) {
    return write_latent(family, config, has_original, out) && write_routed(&deepseek_v3_routed, config, out);
}

const struct ox_family ox_family_deepseek_v3 = {
    .model_type = "deepseek_v3",
    .architecture = "DeepseekV3ForCausalLM",
    .base_model = "DeepseekV3Model",
    .prefix = "model.",
    .expert_names = ox_expert_names,
    .rows = deepseek_v3_rows,
    .ignored = ox_decoder_ignored,
    .layers_beyond = true,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.vocab = 129280, .heads = 128, .contexts = 4096, .kv_heads = 128, .head_dim = 64},
    .fixed_keys = deepseek_v3_fixed_keys,
    .keys = {ox_decoder_keys, routed_keys, latent_keys},
    .values = deepseek_v3_values,
    .parse = deepseek_v3_parse,
    .write = deepseek_v3_write,
};

/* ---- deepseek_v2 ---- */

static const struct ox_family_row *const deepseek_v2_rows[] = {
    ox_rows_embedding, ox_rows_norm1, latent_rows, ox_rows_norm2, ox_rows_gate_up, ox_rows_down,
    ox_rows_mixture_fp32, ox_rows_shared_experts, ox_rows_final_norm, ox_rows_table, NULL};

static const struct routed_defaults deepseek_v2_routed = {
    .mixture = {.experts = "n_routed_experts", .experts_missing = 64, .width = "moe_intermediate_size",
                .width_missing = 1407},
    .groups = 1, .groups_kept = 1, .shared = 2, .scale = 1.0f, .scores = OX_SCORES_SOFTMAX,
    .group_rank = OX_GROUP_BY_BEST};

static const char by_groups[] = "group_limited_greedy";

/* Weights stay as the softmax over all experts has them: transformers ignores norm_topk_prob, DeepSeek's own code does
 * not, and published folders have false. */
static const struct ox_fixed_key deepseek_v2_fixed_keys[] = {
    LATENT_FIXED_KEYS,
    {.key = "mlp_bias", .kind = OX_FIXED_FALSE},
    {.key = "norm_topk_prob", .kind = OX_FIXED_FALSE},
    {.key = "scoring_func", .kind = OX_FIXED_TEXT, .texts = {"softmax"}},
    {.key = "topk_method", .kind = OX_FIXED_TEXT, .texts = {"greedy", by_groups}},
    OX_MIXTURE_FIXED_KEYS,
    {.key = NULL},
};

static const struct ox_value_key deepseek_v2_values[] = {
    {"attention_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 0.0},
    {.key = NULL},
};

static enum ox_status deepseek_v2_parse(const char *where, const json_t *json, const struct ox_family *family,
                                        struct ox_model_config *out) {
    const char *method = NULL;
    enum ox_status status = read_latent(where, json, family, out);
    OX_THEN(status, read_routed(where, json, &deepseek_v2_routed, out));
    OX_THEN(status, ox_json_get_string(where, json, "topk_method", false, &method));
    if (method == NULL || strcmp(method, by_groups) != 0) { /* the best of all */
        out->mixture.router.groups = out->mixture.router.groups_kept = 1;
    }
    return status;
}

static bool deepseek_v2_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                              json_t *out) {
    const bool grouped = config->mixture.router.groups > 1;
    return write_latent(family, config, has_original, out) && write_routed(&deepseek_v2_routed, config, out) &&
           ox_config_put(out, "topk_method", json_string(grouped ? by_groups : "greedy"));
}

const struct ox_family ox_family_deepseek_v2 = {
    .model_type = "deepseek_v2",
    .architecture = "DeepseekV2ForCausalLM",
    .base_model = "DeepseekV2Model",
    .prefix = "model.",
    .expert_names = ox_expert_names,
    .rows = deepseek_v2_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .rope_neighbours = true,
    .defaults = {.vocab = 32000, .heads = 32, .contexts = 2048, .head_dim = 64},
    .fixed_keys = deepseek_v2_fixed_keys,
    .keys = {ox_decoder_keys, routed_keys, latent_keys},
    .values = deepseek_v2_values,
    .parse = deepseek_v2_parse,
    .write = deepseek_v2_write,
};
