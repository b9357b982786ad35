/* granite: llama with factors of embeddings, scores, what halves add, and logits. */
#include "engine/family/decoder.h"

static const struct ox_family_row *const granite_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, ox_rows_out, ox_rows_norm2, ox_rows_gate_up,
    ox_rows_down, ox_rows_final_norm, ox_rows_table, NULL};

static const struct ox_fixed_key granite_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = NULL},
};

static const struct ox_value_key granite_values[] = {
    {"attention_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 0.0},
    {"mlp_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, mlp_bias), 0.0},
    {"embedding_multiplier", OX_KEY_NUMBER, offsetof(struct ox_model_config, embed_scale), 1.0},
    {"attention_multiplier", OX_KEY_NUMBER, offsetof(struct ox_model_config, attention_scale), 1.0},
    {"residual_multiplier", OX_KEY_NUMBER, offsetof(struct ox_model_config, residual_scale), 1.0},
    {"logits_scaling", OX_KEY_INVERSE, offsetof(struct ox_model_config, logit_scale), 1.0},
    {.key = NULL},
};

const struct ox_family ox_family_granite = {
    .model_type = "granite",
    .architecture = "GraniteForCausalLM",
    .base_model = "GraniteModel",
    .prefix = "model.",
    .rows = granite_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.contexts = 2048},
    .fixed_keys = granite_fixed_keys,
    .keys = {ox_decoder_keys},
    .values = granite_values,
    .parse = ox_decoder_parse,
    .write = ox_decoder_write,
};
