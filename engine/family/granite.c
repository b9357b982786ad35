/* granite: llama with factors of embeddings, scores, what halves add, and logits; granitemoe, with mixtures of
 * experts. */
#include "engine/family/mixture.h"

static const struct ox_family_row *const granite_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, ox_rows_out, ox_rows_norm2, ox_rows_gate_up,
    ox_rows_down, ox_rows_final_norm, ox_rows_table, NULL};

static const struct ox_fixed_key granite_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = NULL},
};

#define GRANITE_VALUES                                                                                                 \
    {"attention_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 0.0},                            \
    {"embedding_multiplier", OX_KEY_NUMBER, offsetof(struct ox_model_config, embed_scale), 1.0},                       \
    {"attention_multiplier", OX_KEY_NUMBER, offsetof(struct ox_model_config, attention_scale), 1.0},                   \
    {"residual_multiplier", OX_KEY_NUMBER, offsetof(struct ox_model_config, residual_scale), 1.0},                     \
    {"logits_scaling", OX_KEY_INVERSE, offsetof(struct ox_model_config, logit_scale), 1.0}

static const struct ox_value_key granite_values[] = {
    {"mlp_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, mlp_bias), 0.0},
    GRANITE_VALUES,
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

/* ---- granitemoe ---- */

static bool when_first_names(const struct ox_model_config *config) {
    return !config->mixture.packed;
}

static bool when_later_names(const struct ox_model_config *config) {
    return config->mixture.packed;
}

/* Files have one tensor of all experts under either names: those of published folders, and those that later versions of
 * transformers hold in memory. */
/* clang-format off */
static const struct ox_family_row granitemoe_mixture_rows[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_ROUTER, .name = "layers.%u.block_sparse_moe.router.layer.weight",
     .shape = {OX_DIM_EXPERTS, OX_DIM_HIDDEN}, .when = when_first_names},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_ROUTER, .name = "layers.%u.block_sparse_moe.router.weight",
     .shape = {OX_DIM_EXPERTS, OX_DIM_HIDDEN}, .when = when_later_names},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_GATE_UP, .name = "layers.%u.block_sparse_moe.input_linear.weight",
     .shape = {OX_DIM_EXPERTS, OX_DIM_EXPERT_GATE_UP, OX_DIM_HIDDEN}, .when = when_first_names},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_GATE_UP, .name = "layers.%u.block_sparse_moe.experts.gate_up_proj",
     .shape = {OX_DIM_EXPERTS, OX_DIM_EXPERT_GATE_UP, OX_DIM_HIDDEN}, .when = when_later_names},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_DOWN, .name = "layers.%u.block_sparse_moe.output_linear.weight",
     .shape = {OX_DIM_EXPERTS, OX_DIM_HIDDEN, OX_DIM_EXPERT_WIDTH}, .when = when_first_names},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_EXPERT_DOWN, .name = "layers.%u.block_sparse_moe.experts.down_proj",
     .shape = {OX_DIM_EXPERTS, OX_DIM_HIDDEN, OX_DIM_EXPERT_WIDTH}, .when = when_later_names},
    {.name = NULL},
};
/* clang-format on */

static const struct ox_family_row *const granitemoe_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, ox_rows_out, ox_rows_norm2, granitemoe_mixture_rows,
    ox_rows_final_norm, ox_rows_table, NULL};

static const struct ox_mixture_keys granitemoe_mixture = {
    .experts = "num_local_experts", .experts_missing = 8, .chosen_missing = 2, .width = "intermediate_size",
    .balance_missing = 0.001};

static const struct ox_fixed_key granitemoe_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    OX_MIXTURE_FIXED_KEYS,
    {.key = NULL},
};

static const struct ox_value_key granitemoe_values[] = {GRANITE_VALUES, {.key = NULL}};

static enum ox_status granitemoe_parse(const char *where, const json_t *json, const struct ox_family *family,
                                       struct ox_model_config *out) {
    enum ox_status status = ox_decoder_parse(where, json, family, out);
    OX_THEN(status, ox_read_mixture(where, json, &granitemoe_mixture, out));
    out->mixture.router.scores = OX_SCORES_SOFTMAX_CHOSEN;
    return status;
}

static bool granitemoe_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                             json_t *out) {
    return ox_decoder_write(family, config, has_original, out) && ox_write_mixture(&granitemoe_mixture, config, out);
}

const struct ox_family ox_family_granitemoe = {
    .model_type = "granitemoe",
    .architecture = "GraniteMoeForCausalLM",
    .base_model = "GraniteMoeModel",
    .prefix = "model.",
    .rows = granitemoe_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.contexts = 2048},
    .fixed_keys = granitemoe_fixed_keys,
    .keys = {ox_decoder_keys, ox_mixture_key_names},
    .values = granitemoe_values,
    .parse = granitemoe_parse,
    .write = granitemoe_write,
};
