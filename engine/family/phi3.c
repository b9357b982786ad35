/* phi3: one tensor for q, k and v, one for gate and up; a part of a head may be rotated. */
#include "base/json.h"
#include "engine/family/decoder.h"

static const struct ox_family_row *const phi3_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv_one, ox_rows_out, ox_rows_norm2, ox_rows_gate_up_one,
    ox_rows_down, ox_rows_final_norm, ox_rows_table, NULL};

static const struct ox_fixed_key phi3_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = "embd_pdrop", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "resid_pdrop", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "use_sliding_window", .kind = OX_FIXED_MISSING},
    {.key = "layer_types", .kind = OX_FIXED_MISSING},
    {.key = NULL},
};

/* auto_map: published folders name code of their own, which transformers does not run unless it is told to. */
static const char *const phi3_keys[] = {"original_max_position_embeddings", "partial_rotary_factor", "auto_map", NULL};

static enum ox_status phi3_parse(const char *where, const json_t *json, const struct ox_family *family,
                                 struct ox_model_config *out) {
    uint32_t original = 4096;
    const struct ox_size_key window = {"sliding_window", false, &out->window};
    const struct ox_size_key first = {"original_max_position_embeddings", false, &original};
    out->rotary_part = 1.0;
    enum ox_status status = ox_config_read_sizes(where, json, &first, 1);
    out->rope_scaling.original = original;
    OX_THEN(status, ox_json_get_double(where, json, "partial_rotary_factor", false, &out->rotary_part));
    OX_THEN(status, ox_decoder_parse(where, json, family, out));
    OX_THEN(status, ox_config_read_sizes(where, json, &window, 1));
    if (status == OX_OK && out->rope_scaling.original != original) {
        return ox_fail(OX_E_CONFIG, "%s: \"original_max_position_embeddings\" is %u, but %u where the scaling is "
                       "described; remove the wrong one", where, original, out->rope_scaling.original);
    }
    ox_layers_add(&out->windowed, 0, out->layers);
    ox_settle_windows(out);
    return status;
}

static bool phi3_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                       json_t *out) {
    return ox_decoder_write(family, config, has_original, out) &&
           ox_config_put(out, "original_max_position_embeddings", json_integer(config->rope_scaling.original)) &&
           ox_write_window(config, out);
}

const struct ox_family ox_family_phi3 = {
    .model_type = "phi3",
    .architecture = "Phi3ForCausalLM",
    .base_model = "Phi3Model",
    .prefix = "model.",
    .rows = phi3_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.contexts = 4096, .norm_eps = 1e-5f},
    .fixed_keys = phi3_fixed_keys,
    .keys = {ox_decoder_keys, ox_window_keys, phi3_keys},
    .parse = phi3_parse,
    .write = phi3_write,
};
