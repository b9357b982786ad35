/* What llama and its kin share: keys of config.json, and how they are read and written. */
#include "engine/family/decoder.h"

/* Older files carry frequencies; they follow from rope_theta. */
const char *const ox_decoder_ignored[] = {"layers.%u.self_attn.rotary_emb.inv_freq", NULL};

const char *const ox_decoder_keys[] = {"hidden_size",
                                       "num_hidden_layers",
                                       "num_attention_heads",
                                       "num_key_value_heads",
                                       "head_dim",
                                       "intermediate_size",
                                       "max_position_embeddings",
                                       "rms_norm_eps",
                                       "rope_theta",
                                       "rope_scaling",
                                       "rope_parameters",
                                       NULL};

const struct ox_value_key ox_decoder_biases[] = {
    {"attention_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 0.0},
    {"mlp_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, mlp_bias), 0.0},
    {.key = NULL},
};

enum { SIZES = 6 };

static void size_keys(struct ox_model_config *config, struct ox_size_key keys[SIZES]) {
    keys[0] = (struct ox_size_key){"hidden_size", true, &config->hidden};
    keys[1] = (struct ox_size_key){"num_hidden_layers", true, &config->layers};
    keys[2] = (struct ox_size_key){"num_attention_heads", true, &config->heads};
    keys[3] = (struct ox_size_key){"num_key_value_heads", false, &config->kv_heads};
    keys[4] = (struct ox_size_key){"intermediate_size", true, &config->width};
    keys[5] = (struct ox_size_key){"max_position_embeddings", false, &config->contexts};
}

uint32_t ox_when_missing(const json_t *json, const char *key, uint32_t value) {
    return json_object_get(json, key) == NULL ? value : 0;
}

static const char *eps_key(const struct ox_family *family) {
    return family->norm == OX_NORM_LAYER ? "layer_norm_eps" : "rms_norm_eps";
}

/* gelu's families name it by another key than silu's. */
static const char *act_key(const struct ox_family *family) {
    return family->act == OX_ACTIVATION_SWIGLU ? "hidden_act" : "hidden_activation";
}

/* What follows from other keys where it is missing. */
static enum ox_status derive(const char *where, const struct ox_family *family, struct ox_model_config *out) {
    if (out->head_dim == 0 && (out->heads == 0 || out->hidden % out->heads != 0)) {
        return ox_fail(OX_E_CONFIG, "%s: \"hidden_size\" %u is not a multiple of \"num_attention_heads\" %u",
                       where, out->hidden, out->heads);
    }
    out->kv_heads = out->kv_heads != 0 ? out->kv_heads : out->heads;
    out->head_dim = out->head_dim != 0 ? out->head_dim : out->hidden / out->heads;
    out->rotary_dim = (uint32_t)(out->head_dim * out->rotary_part);
    /* a family that does not choose about biases of q, k and v has none behind attention */
    out->out_bias = family->values != NULL && out->attention_bias;
    out->layout = OX_WEIGHT_OUT_IN;
    out->rope = true;
    return OX_OK;
}

enum ox_status ox_decoder_parse(const char *where, const json_t *json, const struct ox_family *family,
                                struct ox_model_config *out) {
    const struct ox_family_defaults *const missing = &family->defaults;
    struct ox_size_key sizes[SIZES];
    const struct ox_size_key head_dim = {"head_dim", false, &out->head_dim};
    size_keys(out, sizes);
    out->heads = missing->heads;
    sizes[2].required = missing->heads == 0;
    out->contexts = missing->contexts;
    out->kv_heads = ox_when_missing(json, "num_key_value_heads", missing->kv_heads);
    out->head_dim = ox_when_missing(json, "head_dim", missing->head_dim);
    out->norm_eps = missing->norm_eps > 0.0f ? missing->norm_eps : 1e-6f;
    out->rope_theta = missing->rope_theta > 0.0 ? missing->rope_theta : 10000.0;
    out->rotary_part = out->rotary_part > 0.0 ? out->rotary_part : 1.0;
    enum ox_status status = ox_config_read_sizes(where, json, sizes, SIZES);
    OX_THEN(status, ox_config_read_sizes(where, json, &head_dim, 1));
    OX_THEN(status, ox_config_read_float(where, json, eps_key(family), &out->norm_eps));
    OX_THEN(status, ox_config_read_rope(where, json, out));
    OX_THEN(status, derive(where, family, out));
    return status;
}

bool ox_decoder_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                      json_t *out) {
    struct ox_model_config copy = *config;
    struct ox_size_key sizes[SIZES];
    (void)has_original;
    size_keys(&copy, sizes);
    const bool derived = family->head_dim_is_derived && (uint64_t)config->heads * config->head_dim == config->hidden;
    const char *const act = family->act == OX_ACTIVATION_SWIGLU ? "silu" : "gelu_pytorch_tanh";
    return ox_config_write_sizes(out, sizes, SIZES) &&
           (derived || ox_config_put(out, "head_dim", json_integer(config->head_dim))) &&
           ox_config_put(out, act_key(family), json_string(act)) &&
           ox_config_put(out, eps_key(family), json_real(ox_shortest_double(config->norm_eps))) &&
           ox_config_put(out, "attention_dropout", json_real(0.0)) && ox_config_write_rope(out, config);
}
