/* qwen2_moe and qwen3_moe: layers with a mixture of experts between ones with an MLP; qwen2_moe's mixtures have an
 * expert that every token gets, behind a gate. */
#include "base/json.h"
#include "engine/family/mixture.h"

#include <inttypes.h>

/* ---- what both share ---- */

#define QWEN_FIXED_KEYS                                                                                                \
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}}, OX_MIXTURE_FIXED_KEYS

/* Keys that are read or do nothing here: those of windows, and the width of the shared expert. */
static const char *const qwen_keys[] = {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types",
                                        "shared_expert_intermediate_size", NULL};

/* Windows are off in all that was published. Where they are on, every one of transformers' versions gives them to other
 * layers by max_window_layers; so layer_types must say which, or for qwen3_moe, which does not read that, all have
 * one. */
static enum ox_status read_windows(const char *where, const json_t *json, bool by_types, struct ox_model_config *out) {
    const json_t *const types = json_object_get(json, "layer_types");
    const bool has_types = types != NULL && !json_is_null(types);
    bool uses = false;
    enum ox_status status = ox_json_get_bool(where, json, "use_sliding_window", false, &uses);
    if (uses) {
        OX_THEN(status, ox_read_window(where, json, &out->window));
        ox_layers_add(&out->windowed, 0, out->layers);
    }
    if (status == OX_OK && uses && out->window != 0 && by_types && !has_types) {
        return ox_fail(OX_E_CONFIG, "%s: \"use_sliding_window\" is true without \"layer_types\"; transformers' "
                       "versions give windows to other layers: name the type of each", where);
    }
    OX_THEN(status, ox_read_layer_types(where, json, out));
    for (uint32_t i = 0; status == OX_OK && uses && !by_types && i < out->layers; i++) {
        if (!ox_layers_has(&out->windowed, i)) {
            return ox_fail(OX_E_CONFIG, "%s: \"layer_types\" leaves layer %" PRIu32 " without a window, but with "
                           "\"use_sliding_window\" every layer of this model_type has one", where, i);
        }
    }
    ox_settle_windows(out);
    return status;
}

static enum ox_status parse(const char *where, const json_t *json, const struct ox_family *family,
                            const struct ox_mixture_keys *keys, struct ox_model_config *out) {
    enum ox_status status = ox_decoder_parse(where, json, family, out);
    OX_THEN(status, ox_read_mixture(where, json, keys, out));
    OX_THEN(status, ox_read_dense_layers(where, json, out));
    return status;
}

static bool write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                  const struct ox_mixture_keys *keys, json_t *out) {
    return ox_decoder_write(family, config, has_original, out) && ox_write_mixture(keys, config, out) &&
           ox_write_dense_layers(config, out) &&
           ox_config_put(out, "use_sliding_window", json_boolean(config->window != 0)) &&
           (config->window == 0 || ox_write_turns(config, out));
}

/* ---- qwen2_moe ---- */

static const struct ox_family_row *const qwen2_moe_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, ox_rows_out, ox_rows_norm2, ox_rows_gate_up, ox_rows_down,
    ox_rows_mixture, ox_rows_shared_expert, ox_rows_final_norm, ox_rows_table, NULL};

static const struct ox_mixture_keys qwen2_moe_mixture = {
    .experts = "num_experts", .experts_missing = 60, .chosen_missing = 4, .width = "moe_intermediate_size",
    .width_missing = 1408, .balance_missing = 0.001};

static const struct ox_fixed_key qwen2_moe_fixed_keys[] = {
    {.key = "attention_bias", .kind = OX_FIXED_TRUE},
    QWEN_FIXED_KEYS,
    {.key = NULL},
};

static const struct ox_value_key qwen2_moe_values[] = {
    {"norm_topk_prob", OX_KEY_FLAG, offsetof(struct ox_model_config, mixture.router.renormalise), 0.0},
    {"qkv_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 1.0},
    {.key = NULL},
};

static enum ox_status qwen2_moe_parse(const char *where, const json_t *json, const struct ox_family *family,
                                      struct ox_model_config *out) {
    const struct ox_size_key shared = {"shared_expert_intermediate_size", false, &out->mixture.shared_width};
    out->mixture.shared_width = 5632;
    enum ox_status status = ox_config_read_sizes(where, json, &shared, 1);
    OX_THEN(status, parse(where, json, family, &qwen2_moe_mixture, out));
    OX_THEN(status, read_windows(where, json, true, out));
    out->out_bias = false;
    if (status == OX_OK && out->mixture.shared_width == 0) {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" is 0, but every qwen2_moe has a shared expert", where, shared.key);
    }
    return status;
}

static bool qwen2_moe_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                            json_t *out) {
    return write(family, config, has_original, &qwen2_moe_mixture, out) &&
           ox_config_put(out, "shared_expert_intermediate_size", json_integer(config->mixture.shared_width));
}

const struct ox_family ox_family_qwen2_moe = {
    .model_type = "qwen2_moe",
    .architecture = "Qwen2MoeForCausalLM",
    .base_model = "Qwen2MoeModel",
    .prefix = "model.",
    .rows = qwen2_moe_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .head_dim_is_derived = true,
    .defaults = {.contexts = 32768, .kv_heads = 16},
    .fixed_keys = qwen2_moe_fixed_keys,
    .keys = {ox_decoder_keys, qwen_keys, ox_mixture_key_names},
    .values = qwen2_moe_values,
    .parse = qwen2_moe_parse,
    .write = qwen2_moe_write,
};

/* ---- qwen3_moe ---- */

static const struct ox_family_row *const qwen3_moe_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, ox_rows_qk_norm, ox_rows_out, ox_rows_norm2, ox_rows_gate_up,
    ox_rows_down, ox_rows_mixture, ox_rows_final_norm, ox_rows_table, NULL};

static const struct ox_mixture_keys qwen3_moe_mixture = {
    .experts = "num_experts", .experts_missing = 128, .chosen_missing = 8, .width = "moe_intermediate_size",
    .width_missing = 768, .balance_missing = 0.001};

static const struct ox_fixed_key qwen3_moe_fixed_keys[] = {
    {.key = "mlp_bias", .kind = OX_FIXED_FALSE},
    QWEN_FIXED_KEYS,
    {.key = NULL},
};

static const struct ox_value_key qwen3_moe_values[] = {
    {"attention_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 0.0},
    {"norm_topk_prob", OX_KEY_FLAG, offsetof(struct ox_model_config, mixture.router.renormalise), 0.0},
    {.key = NULL},
};

static enum ox_status qwen3_moe_parse(const char *where, const json_t *json, const struct ox_family *family,
                                      struct ox_model_config *out) {
    enum ox_status status = parse(where, json, family, &qwen3_moe_mixture, out);
    OX_THEN(status, read_windows(where, json, false, out));
    return status;
}

static bool qwen3_moe_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                            json_t *out) {
    return write(family, config, has_original, &qwen3_moe_mixture, out);
}

const struct ox_family ox_family_qwen3_moe = {
    .model_type = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .base_model = "Qwen3MoeModel",
    .prefix = "model.",
    .expert_names = ox_expert_names,
    .rows = qwen3_moe_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.contexts = 32768, .kv_heads = 4},
    .fixed_keys = qwen3_moe_fixed_keys,
    .keys = {ox_decoder_keys, qwen_keys, ox_mixture_key_names},
    .values = qwen3_moe_values,
    .parse = qwen3_moe_parse,
    .write = qwen3_moe_write,
};
