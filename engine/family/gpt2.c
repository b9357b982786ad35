/* gpt2: learned positions, norms and matrices with biases, matrices transposed. */
#include "base/json.h"
#include "base/log.h"
#include "engine/family/rows.h"

/* clang-format off */
static const struct ox_family_row gpt2_rows[] = {
    {.unit = OX_UNIT_EMBED, .role = OX_ROLE_EMBED, .name = "wte.weight",
     .shape = {OX_DIM_VOCAB, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_EMBED, .role = OX_ROLE_POSITION, .name = "wpe.weight",
     .shape = {OX_DIM_CONTEXTS, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_NORM1, .name = "h.%u.ln_1.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_NORM1_BIAS, .name = "h.%u.ln_1.bias",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV, .name = "h.%u.attn.c_attn.weight",
     .shape = {OX_DIM_HIDDEN, OX_DIM_QKV}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV_BIAS, .name = "h.%u.attn.c_attn.bias",
     .shape = {OX_DIM_QKV}, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_OUT, .name = "h.%u.attn.c_proj.weight",
     .shape = {OX_DIM_Q, OX_DIM_HIDDEN}, .init = OX_INIT_NORMAL_RESIDUAL},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_OUT_BIAS, .name = "h.%u.attn.c_proj.bias",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_NORM2, .name = "h.%u.ln_2.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_NORM2_BIAS, .name = "h.%u.ln_2.bias",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_GATE_UP, .name = "h.%u.mlp.c_fc.weight",
     .shape = {OX_DIM_HIDDEN, OX_DIM_WIDTH}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_GATE_UP_BIAS, .name = "h.%u.mlp.c_fc.bias",
     .shape = {OX_DIM_WIDTH}, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_DOWN, .name = "h.%u.mlp.c_proj.weight",
     .shape = {OX_DIM_WIDTH, OX_DIM_HIDDEN}, .init = OX_INIT_NORMAL_RESIDUAL},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_DOWN_BIAS, .name = "h.%u.mlp.c_proj.bias",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_HEAD, .role = OX_ROLE_FINAL_NORM, .name = "ln_f.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_HEAD, .role = OX_ROLE_FINAL_NORM_BIAS, .name = "ln_f.bias",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ZERO},
    {.name = NULL},
};
/* clang-format on */

static const struct ox_family_row *const gpt2_groups[] = {gpt2_rows, ox_rows_table, NULL};

/* Older files carry causal masks. */
static const char *const gpt2_ignored[] = {"h.%u.attn.bias", "h.%u.attn.masked_bias", NULL};

static const char *const gpt2_dropouts[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};

static const struct ox_fixed_key gpt2_fixed_keys[] = {
    {.key = "activation_function", .kind = OX_FIXED_TEXT, .texts = {"gelu_new", "gelu_pytorch_tanh"}},
    {.key = "scale_attn_weights", .kind = OX_FIXED_TRUE},
    {.key = "scale_attn_by_inverse_layer_idx", .kind = OX_FIXED_FALSE},
    {.key = "reorder_and_upcast_attn", .kind = OX_FIXED_FALSE},
    {.key = NULL},
};

static const char *const gpt2_keys[] = {"n_embd",
                                        "n_layer",
                                        "n_head",
                                        "n_inner",
                                        "n_positions",
                                        "n_ctx",
                                        "layer_norm_epsilon",
                                        "attn_pdrop",
                                        "embd_pdrop",
                                        "resid_pdrop",
                                        "summary_type",
                                        "summary_use_proj",
                                        "summary_activation",
                                        "summary_proj_to_labels",
                                        "summary_first_dropout",
                                        NULL};

/* A warning, not a refusal: the published GPT-2 folders all ask for dropout. */
static enum ox_status gpt2_check_dropout(const char *where, const json_t *json) {
    for (size_t i = 0; i < sizeof gpt2_dropouts / sizeof *gpt2_dropouts; i++) {
        double share = 0.0;
        const enum ox_status status = ox_json_get_double(where, json, gpt2_dropouts[i], false, &share);
        if (status != OX_OK) {
            return status;
        }
        if (share != 0.0) {
            ox_log(OX_LOG_WARN, "%s: \"%s\" is %g, but training runs without dropout", where,
                   gpt2_dropouts[i], share);
        }
    }
    return OX_OK;
}

enum { GPT2_SIZES = 4 };

static void gpt2_size_keys(struct ox_model_config *config, struct ox_size_key keys[GPT2_SIZES]) {
    keys[0] = (struct ox_size_key){"n_embd", true, &config->hidden};
    keys[1] = (struct ox_size_key){"n_layer", true, &config->layers};
    keys[2] = (struct ox_size_key){"n_head", true, &config->heads};
    keys[3] = (struct ox_size_key){"n_positions", true, &config->contexts};
}

static enum ox_status gpt2_parse(const char *where, const json_t *json, const struct ox_family *family,
                                 struct ox_model_config *out) {
    struct ox_size_key sizes[GPT2_SIZES];
    const struct ox_size_key inner = {"n_inner", false, &out->width};
    gpt2_size_keys(out, sizes);
    out->norm_eps = family->defaults.norm_eps;
    enum ox_status status = gpt2_check_dropout(where, json);
    OX_THEN(status, ox_config_read_sizes(where, json, sizes, GPT2_SIZES));
    OX_THEN(status, ox_config_read_sizes(where, json, &inner, 1));
    OX_THEN(status, ox_config_read_float(where, json, "layer_norm_epsilon", &out->norm_eps));
    if (status != OX_OK) {
        return status;
    }
    if (out->heads == 0 || out->hidden % out->heads != 0) {
        return ox_fail(OX_E_CONFIG, "%s: \"n_embd\" %u is not a multiple of \"n_head\" %u", where,
                       out->hidden, out->heads);
    }
    if (out->width == 0) {
        out->width = out->hidden <= UINT32_MAX / 4 ? 4 * out->hidden : UINT32_MAX;
    }
    out->kv_heads = out->heads;
    out->head_dim = out->hidden / out->heads;
    out->attention_bias = out->mlp_bias = out->norm_bias = out->out_bias = true;
    out->layout = OX_WEIGHT_IN_OUT;
    return OX_OK;
}

static bool gpt2_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                       json_t *out) {
    (void)family;
    struct ox_model_config copy = *config;
    struct ox_size_key sizes[GPT2_SIZES];
    gpt2_size_keys(&copy, sizes);
    json_t *const inner = config->width == 4 * config->hidden ? json_null() : json_integer(config->width);
    bool done = ox_config_write_sizes(out, sizes, GPT2_SIZES) && ox_config_put(out, "n_inner", inner) &&
                ox_config_put(out, "activation_function", json_string("gelu_new")) &&
                ox_config_put(out, "layer_norm_epsilon", json_real(ox_shortest_double(config->norm_eps)));
    for (size_t i = 0; !has_original && i < sizeof gpt2_dropouts / sizeof *gpt2_dropouts; i++) {
        done = done && ox_config_put(out, gpt2_dropouts[i], json_real(0.0)); /* a missing key would mean 0.1 */
    }
    return done;
}

const struct ox_family ox_family_gpt2 = {
    .model_type = "gpt2",
    .lora_targets = "c_attn",
    .architecture = "GPT2LMHeadModel",
    .base_model = "GPT2Model",
    .prefix = "transformer.",
    .rows = gpt2_groups,
    .ignored = gpt2_ignored,
    .tied_by_default = true,
    .norm = OX_NORM_LAYER,
    .act = OX_ACTIVATION_GELU_TANH,
    .defaults = {.norm_eps = 1e-5f},
    .fixed_keys = gpt2_fixed_keys,
    .keys = {gpt2_keys},
    .parse = gpt2_parse,
    .write = gpt2_write,
};
