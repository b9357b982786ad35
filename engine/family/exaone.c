/* exaone4: norms behind the halves, norms of queries and keys; where layers have windows, these alone rotate. */
#include "base/json.h"
#include "engine/family/decoder.h"

static const struct ox_family_row *const exaone_rows[] = {
    ox_rows_embedding, ox_rows_qkv, ox_rows_qk_norm, ox_rows_out, ox_rows_post1, ox_rows_gate_up,
    ox_rows_down, ox_rows_post2, ox_rows_final_norm, ox_rows_table, NULL};

static const struct ox_fixed_key exaone_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = NULL},
};

static const char *const exaone_keys[] = {"sliding_window_pattern", "cache_implementation", NULL};

static enum ox_status exaone4_parse(const char *where, const json_t *json, const struct ox_family *family,
                                    struct ox_model_config *out) {
    enum ox_status status = ox_decoder_parse(where, json, family, out);
    if (json_is_null(json_object_get(json, "sliding_window"))) { /* all layers see all, and rotate */
        OX_THEN(status, ox_read_layer_types(where, json, out));
        return status;
    }
    OX_THEN(status, ox_read_turns(where, json, "sliding_window_pattern", 4, out));
    for (uint32_t i = 0; status == OX_OK && i < out->layers; i++) {
        ox_layers_add(&out->unrotated, i, ox_layers_has(&out->windowed, i) ? i : i + 1);
    }
    return status;
}

static bool exaone4_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                          json_t *out) {
    return ox_decoder_write(family, config, has_original, out) && ox_write_window(config, out) &&
           ox_write_layer_types(config, out);
}

const struct ox_family ox_family_exaone4 = {
    .model_type = "exaone4",
    .architecture = "Exaone4ForCausalLM",
    .base_model = "Exaone4Model",
    .prefix = "model.",
    .rows = exaone_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.contexts = 2048, .kv_heads = 32, .norm_eps = 1e-5f},
    .fixed_keys = exaone_fixed_keys,
    .keys = {ox_decoder_keys, ox_window_keys, exaone_keys},
    .parse = exaone4_parse,
    .write = exaone4_write,
};
