/* gemma2 and the text model of gemma3: norms before and behind both halves, whose gains are stored less 1; embeddings
 * scaled by the root of their width; caps of scores and logits (gemma2), or norms of queries and keys and a rotation of
 * its own for the layers with a window (gemma3). */
#include "base/file.h"
#include "base/json.h"
#include "engine/family/decoder.h"

#include <math.h>
#include <string.h>

static const struct ox_fixed_key gemma_fixed_keys[] = {
    {.key = "hidden_activation", .kind = OX_FIXED_TEXT, .texts = {"gelu_pytorch_tanh", "gelu_new"}},
    {.key = NULL},
};

/* transformers reads hidden_activation instead of hidden_act. */
static const char *const gemma2_keys[] = {"hidden_act", "cache_implementation", NULL};

static const struct ox_value_key gemma2_values[] = {
    {"attention_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 0.0},
    {"query_pre_attn_scalar", OX_KEY_INVERSE_ROOT, offsetof(struct ox_model_config, attention_scale), 256.0},
    {"final_logit_softcapping", OX_KEY_NUMBER, offsetof(struct ox_model_config, logit_cap), 30.0},
    {"attn_logit_softcapping", OX_KEY_NUMBER, offsetof(struct ox_model_config, attention_cap), 50.0},
    {.key = NULL},
};

static void scale_embeddings(struct ox_model_config *out) {
    out->embed_scale = sqrt((double)out->hidden);
    out->embed_scale_rounds = true;
}

static enum ox_status gemma2_parse(const char *where, const json_t *json, const struct ox_family *family,
                                   struct ox_model_config *out) {
    enum ox_status status = ox_decoder_parse(where, json, family, out);
    OX_THEN(status, ox_read_turns(where, json, NULL, 2, out));
    scale_embeddings(out);
    return status;
}

static bool gemma2_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                         json_t *out) {
    return ox_decoder_write(family, config, has_original, out) && ox_write_turns(config, out);
}

static const struct ox_family_row *const gemma2_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, ox_rows_out, ox_rows_post1, ox_rows_norm2_own,
    ox_rows_gate_up, ox_rows_down, ox_rows_post2, ox_rows_final_norm, ox_rows_table, NULL};

const struct ox_family ox_family_gemma2 = {
    .model_type = "gemma2",
    .lora_targets = "q_proj,v_proj",
    .architecture = "Gemma2ForCausalLM",
    .base_model = "Gemma2Model",
    .prefix = "model.",
    .rows = gemma2_rows,
    .ignored = ox_decoder_ignored,
    .tied_by_default = true,
    .act = OX_ACTIVATION_GEGLU_TANH,
    .gain_offset = 1.0f,
    .defaults = {.contexts = 8192, .kv_heads = 4, .head_dim = 256},
    .fixed_keys = gemma_fixed_keys,
    .keys = {ox_decoder_keys, ox_window_keys, gemma2_keys},
    .values = gemma2_values,
    .parse = gemma2_parse,
    .write = gemma2_write,
};

/* ---- gemma3 ---- */

static const char *const gemma3_keys[] = {"hidden_act",           "sliding_window_pattern", "_sliding_window_pattern",
                                          "cache_implementation", "rope_local_base_freq",   NULL};

static const struct ox_value_key gemma3_values[] = {
    {"attention_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 0.0},
    {"query_pre_attn_scalar", OX_KEY_INVERSE_ROOT, offsetof(struct ox_model_config, attention_scale), 256.0},
    {"final_logit_softcapping", OX_KEY_NUMBER, offsetof(struct ox_model_config, logit_cap), 0.0},
    {.key = NULL},
};

/* The rotation of layers with a window: version 5 has an object for each kind of layer, version 4 a key. */
static enum ox_status read_local(const char *where, const json_t *json, const json_t *rope,
                                 struct ox_model_config *out) {
    const json_t *const local = json_object_get(rope, "sliding_attention");
    const json_t *const type = json_object_get(local, "rope_type");
    char text[OX_JSON_EXCERPT_BYTES];
    out->local_theta = 10000.0;
    enum ox_status status = ox_json_get_double(where, json, "rope_local_base_freq", false, &out->local_theta);
    if (json_is_object(local)) {
        OX_THEN(status, ox_json_get_double(where, local, "rope_theta", false, &out->local_theta));
    }
    const bool is_plain = type == NULL || (json_is_string(type) && strcmp(json_string_value(type), "default") == 0);
    if (status == OX_OK && (!is_plain || json_object_size(local) > 2 || !(out->local_theta > 1.0))) {
        status = ox_fail(OX_E_CONFIG, "%s: the rotation of layers with a window is %s, which is not supported; it has "
                         "a \"rope_theta\" above 1 and is not scaled", where, ox_json_excerpt(local, text));
    }
    return status;
}

/* What the other layers have, as a family without two rotations says it. */
static enum ox_status gemma3_parse(const char *where, const json_t *json, const struct ox_family *family,
                                   struct ox_model_config *out) {
    json_t *const plain = json_copy((json_t *)json);
    const json_t *const rope = json_object_get(json, "rope_parameters");
    json_t *const full = json_object_get(rope, "full_attention");
    enum ox_status status = plain == NULL ? ox_fail(OX_E_NOMEM, "%s: no memory to read it", where) : OX_OK;
    OX_THEN(status, read_local(where, json, rope, out));
    if (status == OX_OK && json_object_size(rope) > 0) {
        for (const char *const *kind = (const char *const[]){"full_attention", "sliding_attention", NULL};
             status == OX_OK && *kind != NULL; kind++) {
            status = json_is_object(json_object_get(rope, *kind))
                         ? OX_OK
                         : ox_fail(OX_E_CONFIG, "%s: \"rope_parameters\" lacks an object \"%s\"", where, *kind);
        }
        if (status == OX_OK && json_object_set(plain, "rope_parameters", full) != 0) {
            status = ox_fail(OX_E_NOMEM, "%s: no memory to read it", where);
        }
    }
    OX_THEN(status, ox_decoder_parse(where, plain, family, out));
    OX_THEN(status, ox_read_turns(where, json, "sliding_window_pattern", 6, out));
    scale_embeddings(out);
    json_decref(plain);
    return status;
}

static bool gemma3_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                         json_t *out) {
    if (!gemma2_write(family, config, has_original, out)) {
        return false;
    }
    return ox_config_put(out, "rope_local_base_freq", json_real(config->local_theta)) &&
           ox_config_put(out, "rope_parameters",
                         json_pack("{s:O, s:{s:s, s:f}}", "full_attention", json_object_get(out, "rope_parameters"),
                                   "sliding_attention", "rope_type", "default", "rope_theta", config->local_theta));
}

static const struct ox_family_row *const gemma3_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, ox_rows_qk_norm, ox_rows_out, ox_rows_post1, ox_rows_norm2_own,
    ox_rows_gate_up, ox_rows_down, ox_rows_post2, ox_rows_final_norm, ox_rows_table, NULL};

const struct ox_family ox_family_gemma3 = {
    .model_type = "gemma3_text",
    .lora_targets = "q_proj,v_proj",
    .architecture = "Gemma3ForCausalLM",
    .base_model = "Gemma3TextModel",
    .prefix = "model.",
    .rows = gemma3_rows,
    .ignored = ox_decoder_ignored,
    .tied_by_default = true,
    .act = OX_ACTIVATION_GEGLU_TANH,
    .gain_offset = 1.0f,
    .defaults = {.vocab = 262208, .heads = 8, .contexts = 131072, .kv_heads = 4, .head_dim = 256, .rope_theta = 1e6},
    .fixed_keys = gemma_fixed_keys,
    .keys = {ox_decoder_keys, ox_window_keys, gemma3_keys},
    .values = gemma3_values,
    .parse = gemma3_parse,
    .write = gemma3_write,
};
