/* llama and mistral, and qwen2 and qwen3, which add biases or norms of queries and keys and windows. */
#include "base/json.h"
#include "engine/family/decoder.h"

static const struct ox_family_row *const llama_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, ox_rows_out, ox_rows_norm2, ox_rows_gate_up,
    ox_rows_down, ox_rows_final_norm, ox_rows_table, NULL};

/* ---- llama ---- */

static const struct ox_fixed_key llama_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = "pretraining_tp", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "sliding_window", .kind = OX_FIXED_MISSING},
    {.key = NULL},
};

/* There is no window, so that layer_types can name full attention alone. */
static enum ox_status llama_parse(const char *where, const json_t *json, const struct ox_family *family,
                                  struct ox_model_config *out) {
    enum ox_status status = ox_decoder_parse(where, json, family, out);
    OX_THEN(status, ox_read_layer_types(where, json, out));
    return status;
}

const struct ox_family ox_family_llama = {
    .model_type = "llama",
    .lora_targets = "q_proj,v_proj",
    .architecture = "LlamaForCausalLM",
    .base_model = "LlamaModel",
    .prefix = "model.",
    .rows = llama_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.contexts = 2048},
    .fixed_keys = llama_fixed_keys,
    .keys = {ox_decoder_keys, ox_window_keys},
    .values = ox_decoder_biases,
    .parse = llama_parse,
    .write = ox_decoder_write,
};

/* ---- mistral ---- */

static const struct ox_fixed_key mistral_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = "use_sliding_window", .kind = OX_FIXED_MISSING},
    {.key = "layer_types", .kind = OX_FIXED_MISSING},
    {.key = NULL},
};

static enum ox_status mistral_parse(const char *where, const json_t *json, const struct ox_family *family,
                                    struct ox_model_config *out) {
    enum ox_status status = ox_decoder_parse(where, json, family, out);
    OX_THEN(status, ox_read_window(where, json, &out->window));
    ox_layers_add(&out->windowed, 0, out->layers);
    ox_settle_windows(out);
    return status;
}

static bool mistral_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                          json_t *out) {
    return ox_decoder_write(family, config, has_original, out) && ox_write_window(config, out);
}

const struct ox_family ox_family_mistral = {
    .model_type = "mistral",
    .lora_targets = "q_proj,v_proj",
    .architecture = "MistralForCausalLM",
    .base_model = "MistralModel",
    .prefix = "model.",
    .rows = llama_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.contexts = 4096 * 32, .kv_heads = 8},
    .fixed_keys = mistral_fixed_keys,
    .keys = {ox_decoder_keys, ox_window_keys},
    .parse = mistral_parse,
    .write = mistral_write,
};

/* ---- qwen2 and qwen3: windows from one layer on, or as layer_types says ---- */

static const char *const qwen_keys[] = {"use_sliding_window", "max_window_layers", NULL};

static enum ox_status read_windows(const char *where, const json_t *json, struct ox_model_config *out) {
    uint32_t first_layer = ox_when_missing(json, "max_window_layers", 28);
    const struct ox_size_key first = {"max_window_layers", false, &first_layer};
    bool wanted = false;
    enum ox_status status = ox_json_get_bool(where, json, "use_sliding_window", false, &wanted);
    if (status == OX_OK && wanted) {
        status = ox_read_window(where, json, &out->window);
    }
    OX_THEN(status, ox_config_read_sizes(where, json, &first, 1));
    ox_layers_add(&out->windowed, first_layer, out->layers);
    OX_THEN(status, ox_read_layer_types(where, json, out));
    ox_settle_windows(out);
    return status;
}

/* Without a window the other window keys, which `out` may hold from a file, have no effect. */
static bool qwen_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                       json_t *out) {
    const bool done = ox_decoder_write(family, config, has_original, out) &&
                      ox_config_put(out, "use_sliding_window", json_boolean(config->window != 0));
    if (!done || config->window == 0) {
        return done;
    }
    return ox_write_window(config, out) &&
           ox_config_put(out, "max_window_layers",
                         json_integer(ox_layers_first(&config->windowed, config->layers))) &&
           (ox_layers_are_last(&config->windowed, config->layers) || ox_write_layer_types(config, out));
}

static const struct ox_fixed_key qwen2_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = "attention_bias", .kind = OX_FIXED_TRUE},
    {.key = NULL},
};

static enum ox_status qwen2_parse(const char *where, const json_t *json, const struct ox_family *family,
                                  struct ox_model_config *out) {
    out->attention_bias = true;
    enum ox_status status = ox_decoder_parse(where, json, family, out);
    OX_THEN(status, read_windows(where, json, out));
    return status;
}

const struct ox_family ox_family_qwen2 = {
    .model_type = "qwen2",
    .lora_targets = "q_proj,v_proj",
    .architecture = "Qwen2ForCausalLM",
    .base_model = "Qwen2Model",
    .prefix = "model.",
    .rows = llama_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .head_dim_is_derived = true,
    .defaults = {.contexts = 32768, .kv_heads = 32},
    .fixed_keys = qwen2_fixed_keys,
    .keys = {ox_decoder_keys, ox_window_keys, qwen_keys},
    .parse = qwen2_parse,
    .write = qwen_write,
};

static const struct ox_family_row *const qwen3_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, ox_rows_qk_norm, ox_rows_out, ox_rows_norm2, ox_rows_gate_up,
    ox_rows_down, ox_rows_final_norm, ox_rows_table, NULL};

static enum ox_status qwen3_parse(const char *where, const json_t *json, const struct ox_family *family,
                                  struct ox_model_config *out) {
    enum ox_status status = ox_decoder_parse(where, json, family, out);
    OX_THEN(status, read_windows(where, json, out));
    return status;
}

static const struct ox_fixed_key qwen3_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = "mlp_bias", .kind = OX_FIXED_FALSE},
    {.key = NULL},
};

static const struct ox_value_key qwen3_values[] = {
    {"attention_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 0.0},
    {.key = NULL},
};

const struct ox_family ox_family_qwen3 = {
    .model_type = "qwen3",
    .lora_targets = "q_proj,v_proj",
    .architecture = "Qwen3ForCausalLM",
    .base_model = "Qwen3Model",
    .prefix = "model.",
    .rows = qwen3_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.contexts = 32768, .kv_heads = 32, .head_dim = 128},
    .fixed_keys = qwen3_fixed_keys,
    .keys = {ox_decoder_keys, ox_window_keys, qwen_keys},
    .values = qwen3_values,
    .parse = qwen3_parse,
    .write = qwen_write,
};
