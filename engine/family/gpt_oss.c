/* gpt_oss: attention with sinks, of which every second layer has a window, and mixtures whose routers and experts have
 * biases. In files the matrices of all experts are one tensor, transposed, with gate and up by turns; published folders
 * have them in MXFP4, which engine/hf reads. */
#include "base/json.h"
#include "engine/family/mixture.h"

#include <string.h>

/* clang-format off */
static const struct ox_family_row gpt_oss_experts[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_SINKS, .name = "layers.%u.self_attn.sinks",
     .shape = {OX_DIM_HEADS}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_ROUTER, .name = "layers.%u.mlp.router.weight",
     .shape = {OX_DIM_EXPERTS, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_ROUTER_BIAS, .name = "layers.%u.mlp.router.bias",
     .shape = {OX_DIM_EXPERTS}, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_GATE_UP, .name = "layers.%u.mlp.experts.gate_up_proj",
     .shape = {OX_DIM_EXPERTS, OX_DIM_HIDDEN, OX_DIM_EXPERT_GATE_UP}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_GATE_UP_BIAS, .name = "layers.%u.mlp.experts.gate_up_proj_bias",
     .shape = {OX_DIM_EXPERTS, OX_DIM_EXPERT_GATE_UP}, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_DOWN, .name = "layers.%u.mlp.experts.down_proj",
     .shape = {OX_DIM_EXPERTS, OX_DIM_EXPERT_WIDTH, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_DOWN_BIAS, .name = "layers.%u.mlp.experts.down_proj_bias",
     .shape = {OX_DIM_EXPERTS, OX_DIM_HIDDEN}, .init = OX_INIT_ZERO},
    {.name = NULL},
};
/* clang-format on */

static const struct ox_family_row *const gpt_oss_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, ox_rows_out, ox_rows_norm2, gpt_oss_experts,
    ox_rows_final_norm, ox_rows_table, NULL};

static const struct ox_mixture_keys gpt_oss_mixture = {
    .experts = "num_local_experts", .experts_missing = 128, .chosen_missing = 4, .width = "intermediate_size",
    .balance_missing = 0.9};

static const struct ox_gate gpt_oss_gate = {.alpha = 1.702f, .limit = 7.0f, .shift = 1.0f, .interleaved = true};

static const struct ox_fixed_key gpt_oss_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = "swiglu_alpha", .kind = OX_FIXED_NUMBER, .number = 1.702},
    {.key = "swiglu_limit", .kind = OX_FIXED_NUMBER, .number = 7.0},
    OX_MIXTURE_FIXED_KEYS,
    {.key = NULL},
};

static const struct ox_value_key gpt_oss_values[] = {
    {"attention_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 1.0},
    {.key = NULL},
};

/* What transformers takes where a file has no window, or neither key of the rotary embedding. */
static json_t *with_defaults(const json_t *json) {
    static const char *const ropes[] = {"rope_parameters", "rope_scaling"};
    json_t *const full = json_copy((json_t *)json);
    bool has_rope = false;
    for (size_t i = 0; i < sizeof ropes / sizeof *ropes; i++) {
        has_rope |= json_object_size(json_object_get(json, ropes[i])) > 0;
    }
    json_t *const window = json_pack("{s:i}", "sliding_window", 128);
    json_t *const rope = json_pack("{s:{s:s, s:f, s:f, s:f, s:b, s:i}}", "rope_parameters", "rope_type", "yarn",
                                   "factor", 32.0, "beta_fast", 32.0, "beta_slow", 1.0, "truncate", false,
                                   "original_max_position_embeddings", 4096);
    const bool done = json_object_update_missing(full, window) == 0 &&
                      (has_rope || json_object_update(full, rope) == 0);
    json_decref(window);
    json_decref(rope);
    if (!done) {
        json_decref(full);
        return NULL;
    }
    return full;
}

/* Refuses quantised weights in other formats than MXFP4. */
static enum ox_status check_quantised(const char *where, const json_t *json) {
    const json_t *const quantised = json_object_get(json, "quantization_config");
    const char *const method = json_string_value(json_object_get(quantised, "quant_method"));
    char text[OX_JSON_EXCERPT_BYTES];
    return quantised == NULL || json_is_null(quantised) || (method != NULL && strcmp(method, "mxfp4") == 0)
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "%s: \"quantization_config\" is %s; of a gpt_oss the \"quant_method\" \"mxfp4\" "
                         "alone is read: use the published folder, or one that is not quantised", where,
                         ox_json_excerpt(quantised, text));
}

static enum ox_status gpt_oss_parse(const char *where, const json_t *json, const struct ox_family *family,
                                    struct ox_model_config *out) {
    json_t *const full = with_defaults(json);
    enum ox_status status = full != NULL ? check_quantised(where, json)
                                         : ox_fail(OX_E_NOMEM, "%s: no memory to read it", where);
    OX_THEN(status, ox_decoder_parse(where, full, family, out));
    OX_THEN(status, ox_read_mixture(where, full, &gpt_oss_mixture, out));
    OX_THEN(status, ox_read_turns(where, full, NULL, 2, out));
    out->mixture.router.scores = OX_SCORES_SOFTMAX_CHOSEN;
    out->mixture.gate = gpt_oss_gate;
    out->mixture.layout = OX_WEIGHT_IN_OUT;
    out->mixture.mxfp4 = true;
    ox_settle_windows(out);
    json_decref(full);
    return status;
}

static bool gpt_oss_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                          json_t *out) {
    json_object_del(out, "quantization_config"); /* what is written is not quantised */
    return ox_decoder_write(family, config, has_original, out) && ox_write_mixture(&gpt_oss_mixture, config, out) &&
           ox_write_window(config, out) && ox_write_layer_types(config, out);
}

static const char *const gpt_oss_keys[] = {"quantization_config", "experts_per_token", "initial_context_length", NULL};

const struct ox_family ox_family_gpt_oss = {
    .model_type = "gpt_oss",
    .architecture = "GptOssForCausalLM",
    .base_model = "GptOssModel",
    .prefix = "model.",
    .rows = gpt_oss_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.vocab = 201088, .heads = 64, .contexts = 131072, .kv_heads = 8, .head_dim = 64, .norm_eps = 1e-5f,
                 .rope_theta = 150000.0},
    .fixed_keys = gpt_oss_fixed_keys,
    .keys = {ox_decoder_keys, ox_window_keys, ox_mixture_key_names, gpt_oss_keys},
    .values = gpt_oss_values,
    .parse = gpt_oss_parse,
    .write = gpt_oss_write,
};
