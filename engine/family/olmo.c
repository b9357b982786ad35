/* olmo2 and olmo3: norms behind the halves, and of all queries and all keys as one; olmoe: that with norms before the
 * halves, and mixtures of experts. */
#include "engine/family/mixture.h"

static const struct ox_family_row *const olmo_rows[] = {
    ox_rows_embedding, ox_rows_qkv, ox_rows_qk_norm_all, ox_rows_out, ox_rows_post1, ox_rows_gate_up,
    ox_rows_down, ox_rows_post2, ox_rows_final_norm, ox_rows_table, NULL};

static const struct ox_fixed_key olmo_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = NULL},
};

static const struct ox_value_key olmo_values[] = {
    {"attention_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 0.0},
    {.key = NULL},
};

const struct ox_family ox_family_olmo2 = {
    .model_type = "olmo2",
    .architecture = "Olmo2ForCausalLM",
    .base_model = "Olmo2Model",
    .prefix = "model.",
    .rows = olmo_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.contexts = 2048, .norm_eps = 1e-5f},
    .fixed_keys = olmo_fixed_keys,
    .keys = {ox_decoder_keys},
    .values = olmo_values,
    .parse = ox_decoder_parse,
    .write = ox_decoder_write,
};

/* ---- olmo3: all layers but every fourth have a window ---- */

static enum ox_status olmo3_parse(const char *where, const json_t *json, const struct ox_family *family,
                                  struct ox_model_config *out) {
    enum ox_status status = ox_decoder_parse(where, json, family, out);
    OX_THEN(status, ox_read_turns(where, json, NULL, 4, out));
    return status;
}

static bool olmo3_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                        json_t *out) {
    return ox_decoder_write(family, config, has_original, out) && ox_write_turns(config, out);
}

const struct ox_family ox_family_olmo3 = {
    .model_type = "olmo3",
    .architecture = "Olmo3ForCausalLM",
    .base_model = "Olmo3Model",
    .prefix = "model.",
    .rows = olmo_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.contexts = 2048, .norm_eps = 1e-5f},
    .fixed_keys = olmo_fixed_keys,
    .keys = {ox_decoder_keys, ox_window_keys},
    .values = olmo_values,
    .parse = olmo3_parse,
    .write = olmo3_write,
};

/* ---- olmoe ---- */

static const struct ox_family_row *const olmoe_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, ox_rows_qk_norm_all, ox_rows_out, ox_rows_norm2, ox_rows_mixture,
    ox_rows_final_norm, ox_rows_table, NULL};

static const struct ox_mixture_keys olmoe_mixture = {
    .experts = "num_experts", .experts_missing = 64, .chosen_missing = 8, .width = "intermediate_size",
    .balance_missing = 0.01};

static const struct ox_fixed_key olmoe_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    OX_MIXTURE_FIXED_KEYS,
    {.key = NULL},
};

static const struct ox_value_key olmoe_values[] = {
    {"attention_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 0.0},
    {"norm_topk_prob", OX_KEY_FLAG, offsetof(struct ox_model_config, mixture.router.renormalise), 0.0},
    {"clip_qkv", OX_KEY_NUMBER, offsetof(struct ox_model_config, clip_qkv), 0.0},
    {.key = NULL},
};

static enum ox_status olmoe_parse(const char *where, const json_t *json, const struct ox_family *family,
                                  struct ox_model_config *out) {
    enum ox_status status = ox_decoder_parse(where, json, family, out);
    OX_THEN(status, ox_read_mixture(where, json, &olmoe_mixture, out));
    return status;
}

static bool olmoe_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                        json_t *out) {
    return ox_decoder_write(family, config, has_original, out) && ox_write_mixture(&olmoe_mixture, config, out);
}

const struct ox_family ox_family_olmoe = {
    .model_type = "olmoe",
    .architecture = "OlmoeForCausalLM",
    .base_model = "OlmoeModel",
    .prefix = "model.",
    .expert_names = ox_expert_names,
    .rows = olmoe_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .head_dim_is_derived = true,
    .defaults = {.contexts = 4096, .norm_eps = 1e-5f},
    .fixed_keys = olmoe_fixed_keys,
    .keys = {ox_decoder_keys, ox_mixture_key_names},
    .values = olmoe_values,
    .parse = olmoe_parse,
    .write = olmoe_write,
};
