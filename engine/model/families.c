/* The table of model families. */
#include "engine/model/families.h"

#include "base/assert.h"
#include "base/json.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

static bool set(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value) == 0;
}

/* ---- conditions of tensors ------------------------------------------------------------------- */

static bool when_untied(const struct ox_model_config *config) {
    return !config->tied;
}

static bool when_attention_bias(const struct ox_model_config *config) {
    return config->attention_bias;
}

static bool when_out_bias(const struct ox_model_config *config) {
    return config->out_bias;
}

static bool when_qk_norm(const struct ox_model_config *config) {
    return config->qk_norm;
}

static bool when_mlp_bias(const struct ox_model_config *config) {
    return config->mlp_bias;
}

/* ---- llama and the families whose tensors have its names ------------------------------------------ */

/* clang-format off */
static const struct ox_family_row llama_rows[] = {
    {.unit = OX_UNIT_EMBED, .role = OX_ROLE_EMBED, .name = "embed_tokens.weight",
     .shape = {OX_DIM_VOCAB, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_NORM1, .name = "layers.%u.input_layernorm.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
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
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_Q_NORM, .name = "layers.%u.self_attn.q_norm.weight",
     .shape = {OX_DIM_HEAD}, .when = when_qk_norm, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_K_NORM, .name = "layers.%u.self_attn.k_norm.weight",
     .shape = {OX_DIM_HEAD}, .when = when_qk_norm, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_OUT, .name = "layers.%u.self_attn.o_proj.weight",
     .shape = {OX_DIM_HIDDEN, OX_DIM_Q}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_OUT_BIAS, .name = "layers.%u.self_attn.o_proj.bias",
     .shape = {OX_DIM_HIDDEN}, .when = when_out_bias, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_NORM2, .name = "layers.%u.post_attention_layernorm.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_GATE_UP, .name = "layers.%u.mlp.gate_proj.weight",
     .shape = {OX_DIM_WIDTH, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_GATE_UP, .name = "layers.%u.mlp.up_proj.weight",
     .shape = {OX_DIM_WIDTH, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_GATE_UP_BIAS, .name = "layers.%u.mlp.gate_proj.bias",
     .shape = {OX_DIM_WIDTH}, .when = when_mlp_bias, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_GATE_UP_BIAS, .name = "layers.%u.mlp.up_proj.bias",
     .shape = {OX_DIM_WIDTH}, .when = when_mlp_bias, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_DOWN, .name = "layers.%u.mlp.down_proj.weight",
     .shape = {OX_DIM_HIDDEN, OX_DIM_WIDTH}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_DOWN_BIAS, .name = "layers.%u.mlp.down_proj.bias",
     .shape = {OX_DIM_HIDDEN}, .when = when_mlp_bias, .init = OX_INIT_ZERO},
    {.unit = OX_UNIT_HEAD, .role = OX_ROLE_FINAL_NORM, .name = "norm.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_HEAD, .role = OX_ROLE_HEAD, .name = "lm_head.weight", .bare = true,
     .shape = {OX_DIM_VOCAB, OX_DIM_HIDDEN}, .when = when_untied},
    {.name = NULL},
};
/* clang-format on */

/* Older files carry frequencies; they follow from rope_theta. */
static const char *const llama_ignored[] = {"layers.%u.self_attn.rotary_emb.inv_freq", NULL};

static const struct ox_fixed_key llama_fixed_keys[] = {
    {.key = "sliding_window", .kind = OX_FIXED_MISSING},
    {.key = "use_sliding_window", .kind = OX_FIXED_FALSE},
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = "attention_dropout", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "pretraining_tp", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "partial_rotary_factor", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "original_max_position_embeddings", .kind = OX_FIXED_MISSING},
    {.key = NULL},
};

static const struct ox_fixed_key mistral_fixed_keys[] = {
    {.key = "use_sliding_window", .kind = OX_FIXED_MISSING},
    {.key = "layer_types", .kind = OX_FIXED_MISSING},
    {.key = "attention_bias", .kind = OX_FIXED_FALSE},
    {.key = "mlp_bias", .kind = OX_FIXED_FALSE},
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = "attention_dropout", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "partial_rotary_factor", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "original_max_position_embeddings", .kind = OX_FIXED_MISSING},
    {.key = NULL},
};

static const struct ox_fixed_key qwen2_fixed_keys[] = {
    {.key = "attention_bias", .kind = OX_FIXED_TRUE},
    {.key = "mlp_bias", .kind = OX_FIXED_FALSE},
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = "attention_dropout", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "partial_rotary_factor", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "original_max_position_embeddings", .kind = OX_FIXED_MISSING},
    {.key = NULL},
};

static const char *const llama_keys[] = {"hidden_size",
                                         "num_hidden_layers",
                                         "num_attention_heads",
                                         "num_key_value_heads",
                                         "head_dim",
                                         "intermediate_size",
                                         "max_position_embeddings",
                                         "rms_norm_eps",
                                         "attention_bias",
                                         "mlp_bias",
                                         "rope_theta",
                                         "rope_scaling",
                                         "rope_parameters",
                                         "sliding_window",
                                         "use_sliding_window",
                                         "max_window_layers",
                                         "layer_types",
                                         NULL};

enum { LLAMA_SIZES = 6 };

static void llama_size_keys(struct ox_model_config *config, struct ox_size_key keys[LLAMA_SIZES]) {
    keys[0] = (struct ox_size_key){"hidden_size", true, &config->hidden};
    keys[1] = (struct ox_size_key){"num_hidden_layers", true, &config->layers};
    keys[2] = (struct ox_size_key){"num_attention_heads", true, &config->heads};
    keys[3] = (struct ox_size_key){"num_key_value_heads", false, &config->kv_heads};
    keys[4] = (struct ox_size_key){"intermediate_size", true, &config->width};
    keys[5] = (struct ox_size_key){"max_position_embeddings", false, &config->contexts};
}

/* The value that transformers takes for a missing key. For null it derives the size, which 0 stands for here. */
static uint32_t when_missing(const json_t *json, const char *key, uint32_t value) {
    return json_object_get(json, key) == NULL ? value : 0;
}

/* Reads what the llama-like families share. The caller sets beforehand what missing sizes mean. */
static enum ox_status parse_shared(const char *where, const json_t *json, struct ox_model_config *out) {
    struct ox_size_key sizes[LLAMA_SIZES];
    const struct ox_size_key head_dim = {"head_dim", false, &out->head_dim};
    llama_size_keys(out, sizes);
    out->norm_eps = out->norm_eps > 0.0f ? out->norm_eps : 1e-6f;
    out->rope_theta = out->rope_theta > 0.0 ? out->rope_theta : 10000.0;
    out->rotary_part = out->rotary_part > 0.0 ? out->rotary_part : 1.0;
    enum ox_status status = ox_config_read_sizes(where, json, sizes, LLAMA_SIZES);
    OX_TRY(status, ox_config_read_sizes(where, json, &head_dim, 1));
    OX_TRY(status, ox_config_read_float(where, json, "rms_norm_eps", &out->norm_eps));
    OX_TRY(status, ox_config_read_rope(where, json, out));
    if (status != OX_OK) {
        return status;
    }
    if (out->head_dim == 0 && (out->heads == 0 || out->hidden % out->heads != 0)) {
        return ox_fail(OX_E_CONFIG, "%s: \"hidden_size\" %u is not a multiple of \"num_attention_heads\" %u",
                       where, out->hidden, out->heads);
    }
    out->kv_heads = out->kv_heads != 0 ? out->kv_heads : out->heads;
    out->head_dim = out->head_dim != 0 ? out->head_dim : out->hidden / out->heads;
    out->rotary_dim = (uint32_t)(out->head_dim * out->rotary_part);
    out->norm = OX_NORM_RMS;
    out->act = OX_ACTIVATION_SWIGLU;
    out->layout = OX_WEIGHT_OUT_IN;
    out->rope = true;
    return OX_OK;
}

static bool write_shared(const struct ox_model_config *config, json_t *out) {
    struct ox_model_config copy = *config;
    struct ox_size_key sizes[LLAMA_SIZES];
    llama_size_keys(&copy, sizes);
    /* qwen2 has the key only if the head dimension does not follow from the other sizes */
    const bool derived =
        strcmp(config->family, "qwen2") == 0 && (uint64_t)config->heads * config->head_dim == config->hidden;
    return ox_config_write_sizes(out, sizes, LLAMA_SIZES) &&
           (derived || set(out, "head_dim", json_integer(config->head_dim))) &&
           set(out, "hidden_act", json_string("silu")) &&
           set(out, "rms_norm_eps", json_real(ox_shortest_double(config->norm_eps))) &&
           set(out, "attention_dropout", json_real(0.0)) && ox_config_write_rope(out, config);
}

/* ---- attention within a window ------------------------------------------------------------------ */

/* Reads sliding_window. A missing key means 4096 in transformers, null means no window. */
static enum ox_status read_window(const char *where, const json_t *json, uint32_t *window) {
    const json_t *const value = json_object_get(json, "sliding_window");
    const struct ox_size_key key = {"sliding_window", false, window};
    *window = when_missing(json, "sliding_window", 4096);
    const enum ox_status status = ox_config_read_sizes(where, json, &key, 1);
    if (status == OX_OK && *window == 0 && !json_is_null(value)) {
        return ox_fail(OX_E_CONFIG, "%s: \"sliding_window\" is 0, so that no token would see any; null means none",
                       where);
    }
    return status;
}

/* Reads layer_types, which says per layer whether it has the window. */
static enum ox_status read_layer_types(const char *where, const json_t *types, struct ox_model_config *out) {
    char text[OX_JSON_EXCERPT_BYTES];
    bool known = json_is_array(types) && json_array_size(types) == out->layers && out->layers <= OX_LAYERS_MAX;
    out->windowed = (struct ox_layers){{0}};
    for (uint32_t i = 0; known && i < out->layers; i++) {
        const char *const type = json_string_value(json_array_get(types, i));
        const bool sliding = type != NULL && strcmp(type, "sliding_attention") == 0;
        ox_layers_add(&out->windowed, i, sliding ? i + 1 : i);
        known = sliding || (type != NULL && strcmp(type, "full_attention") == 0);
    }
    if (!known) {
        return ox_fail(OX_E_CONFIG,
                       "%s: \"layer_types\" is %s, which is not supported; it must be left out or name, for each "
                       "of the %u layers, \"full_attention\" or \"sliding_attention\"",
                       where, ox_json_excerpt(types, text), out->layers);
    }
    if (ox_layers_first(&out->windowed, out->layers) < out->layers && out->window == 0) {
        return ox_fail(OX_E_CONFIG, "%s: \"layer_types\" has \"sliding_attention\", but there is no window: set "
                       "\"use_sliding_window\" and \"sliding_window\"", where);
    }
    return OX_OK;
}

/* A window that no layer has is none, and the other way round. */
static void settle_windows(struct ox_model_config *out) {
    if (out->window == 0 || ox_layers_first(&out->windowed, out->layers) == out->layers) {
        out->windowed = (struct ox_layers){{0}};
        out->window = 0;
    }
}

/* Reads the window keys of the qwen families. */
static enum ox_status read_layer_windows(const char *where, const json_t *json, struct ox_model_config *out) {
    uint32_t first_layer = when_missing(json, "max_window_layers", 28);
    const struct ox_size_key first = {"max_window_layers", false, &first_layer};
    const json_t *const types = json_object_get(json, "layer_types");
    bool wanted = false;
    enum ox_status status = ox_json_get_bool(where, json, "use_sliding_window", false, &wanted);
    if (status == OX_OK && wanted) {
        status = read_window(where, json, &out->window);
    }
    OX_TRY(status, ox_config_read_sizes(where, json, &first, 1));
    ox_layers_add(&out->windowed, first_layer, out->layers);
    if (status == OX_OK && types != NULL && !json_is_null(types)) {
        status = read_layer_types(where, types, out);
    }
    settle_windows(out);
    return status;
}

static bool write_layer_types(const struct ox_model_config *config, json_t *out) {
    json_t *const types = json_array();
    bool done = types != NULL;
    for (uint32_t i = 0; done && i < config->layers; i++) {
        const bool sliding = ox_layers_has(&config->windowed, i);
        done = json_array_append_new(types, json_string(sliding ? "sliding_attention" : "full_attention")) == 0;
    }
    return set(out, "layer_types", types) && done;
}

/* Without a window the other window keys, which `out` may hold from a file, have no effect. */
static bool write_layer_windows(const struct ox_model_config *config, json_t *out) {
    if (config->window == 0) {
        return set(out, "use_sliding_window", json_false());
    }
    return set(out, "use_sliding_window", json_true()) &&
           set(out, "sliding_window", json_integer(config->window)) &&
           set(out, "max_window_layers", json_integer(ox_layers_first(&config->windowed, config->layers))) &&
           (ox_layers_are_last(&config->windowed, config->layers) || write_layer_types(config, out));
}

/* ---- llama, mistral, qwen2, qwen3 ---------------------------------------------------------------------- */

static enum ox_status llama_parse(const char *where, const json_t *json, struct ox_model_config *out) {
    out->contexts = 2048;
    enum ox_status status = ox_json_get_bool(where, json, "attention_bias", false, &out->attention_bias);
    OX_TRY(status, ox_json_get_bool(where, json, "mlp_bias", false, &out->mlp_bias));
    out->out_bias = out->attention_bias;
    OX_TRY(status, parse_shared(where, json, out));
    const json_t *const types = json_object_get(json, "layer_types");
    if (status == OX_OK && types != NULL && !json_is_null(types)) {
        status = read_layer_types(where, types, out); /* there is no window, so every layer has full attention */
    }
    return status;
}

static bool llama_write(const struct ox_model_config *config, bool has_original, json_t *out) {
    (void)has_original;
    return write_shared(config, out) && set(out, "attention_bias", json_boolean(config->attention_bias)) &&
           set(out, "mlp_bias", json_boolean(config->mlp_bias));
}

static enum ox_status mistral_parse(const char *where, const json_t *json, struct ox_model_config *out) {
    out->contexts = 4096 * 32;
    out->kv_heads = when_missing(json, "num_key_value_heads", 8);
    enum ox_status status = parse_shared(where, json, out);
    OX_TRY(status, read_window(where, json, &out->window));
    ox_layers_add(&out->windowed, 0, out->layers);
    settle_windows(out);
    return status;
}

static bool mistral_write(const struct ox_model_config *config, bool has_original, json_t *out) {
    (void)has_original;
    return write_shared(config, out) &&
           set(out, "sliding_window", config->window != 0 ? json_integer(config->window) : json_null());
}

static enum ox_status qwen2_parse(const char *where, const json_t *json, struct ox_model_config *out) {
    out->contexts = 32768;
    out->kv_heads = when_missing(json, "num_key_value_heads", 32);
    out->attention_bias = true;
    const enum ox_status status = parse_shared(where, json, out);
    return status == OX_OK ? read_layer_windows(where, json, out) : status;
}

static bool qwen2_write(const struct ox_model_config *config, bool has_original, json_t *out) {
    (void)has_original;
    return write_shared(config, out) && write_layer_windows(config, out);
}

static enum ox_status qwen3_parse(const char *where, const json_t *json, struct ox_model_config *out) {
    out->contexts = 32768;
    out->kv_heads = when_missing(json, "num_key_value_heads", 32);
    out->head_dim = when_missing(json, "head_dim", 128);
    out->qk_norm = true;
    enum ox_status status = ox_json_get_bool(where, json, "attention_bias", false, &out->attention_bias);
    out->out_bias = out->attention_bias;
    OX_TRY(status, parse_shared(where, json, out));
    return status == OX_OK ? read_layer_windows(where, json, out) : status;
}

static bool qwen3_write(const struct ox_model_config *config, bool has_original, json_t *out) {
    return qwen2_write(config, has_original, out) &&
           set(out, "attention_bias", json_boolean(config->attention_bias));
}

/* ---- smollm3: some layers without rotary embedding ----------------------------------------------- */

static const struct ox_fixed_key smollm3_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = "attention_dropout", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "partial_rotary_factor", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "original_max_position_embeddings", .kind = OX_FIXED_MISSING},
    {.key = NULL},
};

static const char *const smollm3_keys[] = {"hidden_size",
                                           "num_hidden_layers",
                                           "num_attention_heads",
                                           "num_key_value_heads",
                                           "head_dim",
                                           "intermediate_size",
                                           "max_position_embeddings",
                                           "rms_norm_eps",
                                           "attention_bias",
                                           "mlp_bias",
                                           "rope_theta",
                                           "rope_scaling",
                                           "rope_parameters",
                                           "sliding_window",
                                           "use_sliding_window",
                                           "layer_types",
                                           "no_rope_layers",
                                           "no_rope_layer_interval",
                                           NULL};

/* Reads no_rope_layers, in which 0 is a layer without rotary embedding; without it every no_rope_layer_interval-th is
 * one. */
static enum ox_status read_unrotated(const char *where, const json_t *json, struct ox_model_config *out) {
    const json_t *const list = json_object_get(json, "no_rope_layers");
    const bool given = list != NULL && !json_is_null(list);
    uint32_t interval = when_missing(json, "no_rope_layer_interval", 4);
    const struct ox_size_key key = {"no_rope_layer_interval", false, &interval};
    char text[OX_JSON_EXCERPT_BYTES];
    const enum ox_status status = ox_config_read_sizes(where, json, &key, 1);
    if (status != OX_OK) {
        return status;
    }
    if (!given && interval == 0) {
        return ox_fail(OX_E_CONFIG, "%s: \"no_rope_layer_interval\" is not a number from 1 on", where);
    }
    bool known = !given || (json_is_array(list) && json_array_size(list) >= out->layers);
    for (uint32_t i = 0; i < out->layers && known; i++) {
        const json_t *const item = given ? json_array_get(list, i) : NULL;
        const bool rotates = given ? json_integer_value(item) == 1 : (i + 1) % interval != 0;
        known = !given || (json_is_integer(item) && (rotates || json_integer_value(item) == 0));
        ox_layers_add(&out->unrotated, i, rotates ? i : i + 1);
    }
    return known ? OX_OK
                 : ox_fail(OX_E_CONFIG, "%s: \"no_rope_layers\" is %s; it must have a 1 or a 0 for each of the %u "
                           "layers", where, ox_json_excerpt(list, text), out->layers);
}

/* The window, if one is used, is that of the layers without rotary embedding, unless layer_types says otherwise. */
static enum ox_status smollm3_parse(const char *where, const json_t *json, struct ox_model_config *out) {
    const json_t *const types = json_object_get(json, "layer_types");
    const struct ox_size_key window = {"sliding_window", false, &out->window};
    bool windows = false;
    out->contexts = 32768;
    out->kv_heads = when_missing(json, "num_key_value_heads", 4);
    out->rope_theta = 2000000.0;
    enum ox_status status = ox_json_get_bool(where, json, "attention_bias", false, &out->attention_bias);
    OX_TRY(status, ox_json_get_bool(where, json, "mlp_bias", false, &out->mlp_bias));
    OX_TRY(status, ox_json_get_bool(where, json, "use_sliding_window", false, &windows));
    out->out_bias = out->attention_bias;
    OX_TRY(status, parse_shared(where, json, out));
    OX_TRY(status, read_unrotated(where, json, out));
    if (windows) {
        OX_TRY(status, ox_config_read_sizes(where, json, &window, 1));
        out->windowed = out->unrotated;
    }
    if (status == OX_OK && types != NULL && !json_is_null(types)) {
        status = read_layer_types(where, types, out);
    }
    settle_windows(out);
    return status;
}

static bool smollm3_write(const struct ox_model_config *config, bool has_original, json_t *out) {
    json_t *const list = json_array();
    bool done = list != NULL;
    (void)has_original;
    for (uint32_t i = 0; done && i < config->layers; i++) {
        done = json_array_append_new(list, json_integer(!ox_layers_has(&config->unrotated, i))) == 0;
    }
    return set(out, "no_rope_layers", list) && done && write_shared(config, out) &&
           set(out, "attention_bias", json_boolean(config->attention_bias)) &&
           set(out, "mlp_bias", json_boolean(config->mlp_bias)) &&
           set(out, "use_sliding_window", json_boolean(config->window != 0)) &&
           set(out, "sliding_window", config->window != 0 ? json_integer(config->window) : json_null()) &&
           write_layer_types(config, out);
}

/* ---- phi3: one tensor for q, k and v, one for gate and up; a part of a head may be rotated ----------- */

/* clang-format off */
static const struct ox_family_row phi3_rows[] = {
    {.unit = OX_UNIT_EMBED, .role = OX_ROLE_EMBED, .name = "embed_tokens.weight",
     .shape = {OX_DIM_VOCAB, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_NORM1, .name = "layers.%u.input_layernorm.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_QKV, .name = "layers.%u.self_attn.qkv_proj.weight",
     .shape = {OX_DIM_QKV, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_OUT, .name = "layers.%u.self_attn.o_proj.weight",
     .shape = {OX_DIM_HIDDEN, OX_DIM_Q}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_NORM2, .name = "layers.%u.post_attention_layernorm.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_GATE_UP, .name = "layers.%u.mlp.gate_up_proj.weight",
     .shape = {OX_DIM_GATE_UP, OX_DIM_HIDDEN}},
    {.unit = OX_UNIT_BLOCK, .role = OX_ROLE_DOWN, .name = "layers.%u.mlp.down_proj.weight",
     .shape = {OX_DIM_HIDDEN, OX_DIM_WIDTH}},
    {.unit = OX_UNIT_HEAD, .role = OX_ROLE_FINAL_NORM, .name = "norm.weight",
     .shape = {OX_DIM_HIDDEN}, .init = OX_INIT_ONE},
    {.unit = OX_UNIT_HEAD, .role = OX_ROLE_HEAD, .name = "lm_head.weight", .bare = true,
     .shape = {OX_DIM_VOCAB, OX_DIM_HIDDEN}, .when = when_untied},
    {.name = NULL},
};
/* clang-format on */

static const struct ox_fixed_key phi3_fixed_keys[] = {
    {.key = "use_sliding_window", .kind = OX_FIXED_MISSING},
    {.key = "layer_types", .kind = OX_FIXED_MISSING},
    {.key = "attention_bias", .kind = OX_FIXED_FALSE},
    {.key = "mlp_bias", .kind = OX_FIXED_FALSE},
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = "attention_dropout", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "embd_pdrop", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "resid_pdrop", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = NULL},
};

/* auto_map: published folders name code of their own, which transformers does not run unless it is told to. */
static const char *const phi3_keys[] = {"hidden_size",
                                        "num_hidden_layers",
                                        "num_attention_heads",
                                        "num_key_value_heads",
                                        "head_dim",
                                        "intermediate_size",
                                        "max_position_embeddings",
                                        "original_max_position_embeddings",
                                        "partial_rotary_factor",
                                        "rms_norm_eps",
                                        "rope_theta",
                                        "rope_scaling",
                                        "rope_parameters",
                                        "sliding_window",
                                        "auto_map",
                                        NULL};

static enum ox_status phi3_parse(const char *where, const json_t *json, struct ox_model_config *out) {
    uint32_t original = 4096;
    const struct ox_size_key window = {"sliding_window", false, &out->window};
    const struct ox_size_key first = {"original_max_position_embeddings", false, &original};
    out->contexts = 4096;
    out->norm_eps = 1e-5f;
    out->rotary_part = 1.0;
    enum ox_status status = ox_config_read_sizes(where, json, &first, 1);
    out->rope_scaling.original = original;
    OX_TRY(status, ox_json_get_double(where, json, "partial_rotary_factor", false, &out->rotary_part));
    OX_TRY(status, parse_shared(where, json, out));
    OX_TRY(status, ox_config_read_sizes(where, json, &window, 1));
    if (status == OX_OK && out->rope_scaling.original != original) {
        return ox_fail(OX_E_CONFIG, "%s: \"original_max_position_embeddings\" is %u, but %u where the scaling is "
                       "described; remove the wrong one", where, original, out->rope_scaling.original);
    }
    ox_layers_add(&out->windowed, 0, out->layers);
    settle_windows(out);
    return status;
}

static bool phi3_write(const struct ox_model_config *config, bool has_original, json_t *out) {
    (void)has_original;
    return write_shared(config, out) &&
           set(out, "original_max_position_embeddings", json_integer(config->rope_scaling.original)) &&
           set(out, "sliding_window", config->window != 0 ? json_integer(config->window) : json_null());
}

/* ---- gpt2 ------------------------------------------------------------------------------------- */

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
    {.unit = OX_UNIT_HEAD, .role = OX_ROLE_HEAD, .name = "lm_head.weight", .bare = true,
     .shape = {OX_DIM_VOCAB, OX_DIM_HIDDEN}, .when = when_untied},
    {.name = NULL},
};
/* clang-format on */

/* Older files carry causal masks. */
static const char *const gpt2_ignored[] = {"h.%u.attn.bias", "h.%u.attn.masked_bias", NULL};

static const char *const gpt2_dropouts[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};

static const struct ox_fixed_key gpt2_fixed_keys[] = {
    {.key = "use_sliding_window", .kind = OX_FIXED_FALSE},
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

static enum ox_status gpt2_parse(const char *where, const json_t *json, struct ox_model_config *out) {
    struct ox_size_key sizes[GPT2_SIZES];
    const struct ox_size_key inner = {"n_inner", false, &out->width};
    gpt2_size_keys(out, sizes);
    out->norm_eps = 1e-5f;
    enum ox_status status = gpt2_check_dropout(where, json);
    OX_TRY(status, ox_config_read_sizes(where, json, sizes, GPT2_SIZES));
    OX_TRY(status, ox_config_read_sizes(where, json, &inner, 1));
    OX_TRY(status, ox_config_read_float(where, json, "layer_norm_epsilon", &out->norm_eps));
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
    out->norm = OX_NORM_LAYER;
    out->act = OX_ACTIVATION_GELU_TANH;
    out->layout = OX_WEIGHT_IN_OUT;
    return OX_OK;
}

static bool gpt2_write(const struct ox_model_config *config, bool has_original, json_t *out) {
    struct ox_model_config copy = *config;
    struct ox_size_key sizes[GPT2_SIZES];
    gpt2_size_keys(&copy, sizes);
    json_t *const inner = config->width == 4 * config->hidden ? json_null() : json_integer(config->width);
    bool done = ox_config_write_sizes(out, sizes, GPT2_SIZES) && set(out, "n_inner", inner) &&
                set(out, "activation_function", json_string("gelu_new")) &&
                set(out, "layer_norm_epsilon", json_real(ox_shortest_double(config->norm_eps)));
    for (size_t i = 0; !has_original && i < sizeof gpt2_dropouts / sizeof *gpt2_dropouts; i++) {
        done = done && set(out, gpt2_dropouts[i], json_real(0.0)); /* a missing key would mean 0.1 */
    }
    return done;
}

/* ---- the table -------------------------------------------------------------------------------- */

static const struct ox_family families[] = {
    {
        .model_type = "gpt2",
        .architecture = "GPT2LMHeadModel",
        .base_model = "GPT2Model",
        .prefix = "transformer.",
        .rows = gpt2_rows,
        .ignored = gpt2_ignored,
        .tied_by_default = true,
        .fixed_keys = gpt2_fixed_keys,
        .keys = gpt2_keys,
        .parse = gpt2_parse,
        .write = gpt2_write,
    },
    {
        .model_type = "llama",
        .architecture = "LlamaForCausalLM",
        .base_model = "LlamaModel",
        .prefix = "model.",
        .rows = llama_rows,
        .ignored = llama_ignored,
        .fixed_keys = llama_fixed_keys,
        .keys = llama_keys,
        .parse = llama_parse,
        .write = llama_write,
    },
    {
        .model_type = "mistral",
        .architecture = "MistralForCausalLM",
        .base_model = "MistralModel",
        .prefix = "model.",
        .rows = llama_rows,
        .ignored = llama_ignored,
        .fixed_keys = mistral_fixed_keys,
        .keys = llama_keys,
        .parse = mistral_parse,
        .write = mistral_write,
    },
    {
        .model_type = "phi3",
        .architecture = "Phi3ForCausalLM",
        .base_model = "Phi3Model",
        .prefix = "model.",
        .rows = phi3_rows,
        .ignored = llama_ignored,
        .fixed_keys = phi3_fixed_keys,
        .keys = phi3_keys,
        .parse = phi3_parse,
        .write = phi3_write,
    },
    {
        .model_type = "qwen2",
        .architecture = "Qwen2ForCausalLM",
        .base_model = "Qwen2Model",
        .prefix = "model.",
        .rows = llama_rows,
        .ignored = llama_ignored,
        .fixed_keys = qwen2_fixed_keys,
        .keys = llama_keys,
        .parse = qwen2_parse,
        .write = qwen2_write,
    },
    {
        .model_type = "qwen3",
        .architecture = "Qwen3ForCausalLM",
        .base_model = "Qwen3Model",
        .prefix = "model.",
        .rows = llama_rows,
        .ignored = llama_ignored,
        .fixed_keys = qwen2_fixed_keys + 1, /* attention_bias, the first, is a choice here */
        .keys = llama_keys,
        .parse = qwen3_parse,
        .write = qwen3_write,
    },
    {
        .model_type = "smollm3",
        .architecture = "SmolLM3ForCausalLM",
        .base_model = "SmolLM3Model",
        .prefix = "model.",
        .rows = llama_rows,
        .ignored = llama_ignored,
        .tied_by_default = true,
        .fixed_keys = smollm3_fixed_keys,
        .keys = smollm3_keys,
        .parse = smollm3_parse,
        .write = smollm3_write,
    },
};

const struct ox_family *ox_family_find(const char *model_type) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i].model_type, model_type) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

const char *ox_family_names(char text[OX_FAMILY_NAMES_BYTES]) {
    size_t end = 0;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const size_t room = OX_FAMILY_NAMES_BYTES - end;
        const int count = snprintf(text + end, room, "%s%s", i == 0 ? "" : ", ", families[i].model_type);
        OX_ASSERT(count > 0 && (size_t)count < room);
        end += (size_t)count;
    }
    return text;
}
