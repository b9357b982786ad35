/* Groups of tensors that families are put together of, with the names of llama and its kin. */
#include "engine/family/rows.h"

static bool when_untied(const struct ox_model_config *config) {
    return !config->tied;
}

static bool when_attention_bias(const struct ox_model_config *config) {
    return config->attention_bias;
}

static bool when_out_bias(const struct ox_model_config *config) {
    return config->out_bias;
}

static bool when_mlp_bias(const struct ox_model_config *config) {
    return config->mlp_bias;
}

/* clang-format off */
const struct ox_family_row ox_rows_embedding[] = {
    {.unit = OX_UNIT_EMBED, .role = OX_ROLE_EMBED, .name = "embed_tokens.weight",
     .shape = {OX_DIM_VOCAB, OX_DIM_HIDDEN}},
    {.name = NULL},
};

const struct ox_family_row ox_rows_norm1[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_NORM1, .name = "layers.%u.input_layernorm.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
    {.name = NULL},
};

const struct ox_family_row ox_rows_qkv[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV, .name = "layers.%u.self_attn.q_proj.weight",
     .shape = {OX_DIM_Q, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV, .name = "layers.%u.self_attn.k_proj.weight",
     .shape = {OX_DIM_KV, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV, .name = "layers.%u.self_attn.v_proj.weight",
     .shape = {OX_DIM_KV, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV_BIAS, .name = "layers.%u.self_attn.q_proj.bias",
     .shape = {OX_DIM_Q}, .when = when_attention_bias, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV_BIAS, .name = "layers.%u.self_attn.k_proj.bias",
     .shape = {OX_DIM_KV}, .when = when_attention_bias, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV_BIAS, .name = "layers.%u.self_attn.v_proj.bias",
     .shape = {OX_DIM_KV}, .when = when_attention_bias, .init = OX_INIT_ZERO},
    {.name = NULL},
};

const struct ox_family_row ox_rows_qkv_one[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV, .name = "layers.%u.self_attn.qkv_proj.weight",
     .shape = {OX_DIM_QKV, OX_DIM_HIDDEN}},
    {.name = NULL},
};

const struct ox_family_row ox_rows_qk_norm[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_Q_NORM, .name = "layers.%u.self_attn.q_norm.weight",
     .shape = {OX_DIM_HEAD}, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_K_NORM, .name = "layers.%u.self_attn.k_norm.weight",
     .shape = {OX_DIM_HEAD}, .init = OX_INIT_ONE},
    {.name = NULL},
};

const struct ox_family_row ox_rows_qk_norm_all[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_Q_NORM, .name = "layers.%u.self_attn.q_norm.weight",
     .shape = {OX_DIM_Q}, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_K_NORM, .name = "layers.%u.self_attn.k_norm.weight",
     .shape = {OX_DIM_KV}, .init = OX_INIT_ONE},
    {.name = NULL},
};

const struct ox_family_row ox_rows_out[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_OUT, .name = "layers.%u.self_attn.o_proj.weight",
     .shape = {OX_DIM_HIDDEN, OX_DIM_Q}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_OUT_BIAS, .name = "layers.%u.self_attn.o_proj.bias",
     .shape = {OX_DIM_HIDDEN}, .when = when_out_bias, .init = OX_INIT_ZERO},
    {.name = NULL},
};

const struct ox_family_row ox_rows_post1[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_POST1, .name = "layers.%u.post_attention_layernorm.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
    {.name = NULL},
};

const struct ox_family_row ox_rows_norm2_own[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_NORM2, .name = "layers.%u.pre_feedforward_layernorm.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
    {.name = NULL},
};

const struct ox_family_row ox_rows_post2[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_POST2, .name = "layers.%u.post_feedforward_layernorm.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
    {.name = NULL},
};

const struct ox_family_row ox_rows_norm2[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_NORM2, .name = "layers.%u.post_attention_layernorm.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
    {.name = NULL},
};

const struct ox_family_row ox_rows_gate_up[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_GATE_UP, .name = "layers.%u.mlp.gate_proj.weight",
     .shape = {OX_DIM_WIDTH, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_GATE_UP, .name = "layers.%u.mlp.up_proj.weight",
     .shape = {OX_DIM_WIDTH, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_GATE_UP_BIAS, .name = "layers.%u.mlp.gate_proj.bias",
     .shape = {OX_DIM_WIDTH}, .when = when_mlp_bias, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_GATE_UP_BIAS, .name = "layers.%u.mlp.up_proj.bias",
     .shape = {OX_DIM_WIDTH}, .when = when_mlp_bias, .init = OX_INIT_ZERO},
    {.name = NULL},
};

const struct ox_family_row ox_rows_gate_up_one[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_GATE_UP, .name = "layers.%u.mlp.gate_up_proj.weight",
     .shape = {OX_DIM_GATE_UP, OX_DIM_HIDDEN}},
    {.name = NULL},
};

const struct ox_family_row ox_rows_down[] = {
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_DOWN, .name = "layers.%u.mlp.down_proj.weight",
     .shape = {OX_DIM_HIDDEN, OX_DIM_WIDTH}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_DOWN_BIAS, .name = "layers.%u.mlp.down_proj.bias",
     .shape = {OX_DIM_HIDDEN}, .when = when_mlp_bias, .init = OX_INIT_ZERO},
    {.name = NULL},
};

const struct ox_family_row ox_rows_final_norm[] = {
    {.unit = OX_UNIT_HEAD, .role = OX_ROLE_FINAL_NORM, .name = "norm.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
    {.name = NULL},
};

const struct ox_family_row ox_rows_table[] = {
    {.unit = OX_UNIT_HEAD, .role = OX_ROLE_HEAD, .name = OX_HEAD_NAME, .bare = true,
     .shape = {OX_DIM_VOCAB, OX_DIM_HIDDEN}, .when = when_untied},
    {.name = NULL},
};
/* clang-format on */
