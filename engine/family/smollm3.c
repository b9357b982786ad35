/* smollm3: some layers without rotary embedding. */
#include "base/file.h"
#include "base/json.h"
#include "engine/family/decoder.h"

static const struct ox_family_row *const smollm3_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, ox_rows_out, ox_rows_norm2, ox_rows_gate_up,
    ox_rows_down, ox_rows_final_norm, ox_rows_table, NULL};

static const struct ox_fixed_key smollm3_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = NULL},
};

static const char *const smollm3_keys[] = {"use_sliding_window", "no_rope_layers", "no_rope_layer_interval", NULL};

/* Reads no_rope_layers, in which 0 is a layer without rotary embedding; without it every no_rope_layer_interval-th is
 * one. */
static enum ox_status read_unrotated(const char *where, const json_t *json, struct ox_model_config *out) {
    const json_t *const list = json_object_get(json, "no_rope_layers");
    const bool given = list != NULL && !json_is_null(list);
    uint32_t interval = ox_when_missing(json, "no_rope_layer_interval", 4);
    const struct ox_size_key key = {"no_rope_layer_interval", false, &interval};
    char text[OX_JSON_EXCERPT_BYTES];
    OX_TRY(ox_config_read_sizes(where, json, &key, 1));
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
static enum ox_status smollm3_parse(const char *where, const json_t *json, const struct ox_family *family,
                                    struct ox_model_config *out) {
    const struct ox_size_key window = {"sliding_window", false, &out->window};
    bool windows = false;
    enum ox_status status = ox_decoder_parse(where, json, family, out);
    OX_THEN(status, ox_json_get_bool(where, json, "use_sliding_window", false, &windows));
    OX_THEN(status, read_unrotated(where, json, out));
    if (windows) {
        OX_THEN(status, ox_config_read_sizes(where, json, &window, 1));
        out->windowed = out->unrotated;
    }
    OX_THEN(status, ox_read_layer_types(where, json, out));
    ox_settle_windows(out);
    return status;
}

static bool smollm3_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                          json_t *out) {
    json_t *const list = json_array();
    bool done = list != NULL;
    for (uint32_t i = 0; done && i < config->layers; i++) {
        done = json_array_append_new(list, json_integer(!ox_layers_has(&config->unrotated, i))) == 0;
    }
    return ox_config_put(out, "no_rope_layers", list) && done &&
           ox_decoder_write(family, config, has_original, out) &&
           ox_config_put(out, "use_sliding_window", json_boolean(config->window != 0)) &&
           ox_write_window(config, out) && ox_write_layer_types(config, out);
}

const struct ox_family ox_family_smollm3 = {
    .model_type = "smollm3",
    .architecture = "SmolLM3ForCausalLM",
    .base_model = "SmolLM3Model",
    .prefix = "model.",
    .rows = smollm3_rows,
    .ignored = ox_decoder_ignored,
    .tied_by_default = true,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.contexts = 32768, .kv_heads = 4, .rope_theta = 2000000.0},
    .fixed_keys = smollm3_fixed_keys,
    .keys = {ox_decoder_keys, ox_window_keys, smollm3_keys},
    .values = ox_decoder_biases,
    .parse = smollm3_parse,
    .write = smollm3_write,
};
