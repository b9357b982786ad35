/* cohere2: both halves read one norm, which has no bias; layers with a window alone rotate, pairs of neighbours. */
#include "engine/family/decoder.h"

static const struct ox_family_row *const cohere_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, ox_rows_out, ox_rows_gate_up, ox_rows_down,
    ox_rows_final_norm, ox_rows_table, NULL};

/* Published folders name what transformers takes for granted. */
static const struct ox_fixed_key cohere_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    {.key = "use_parallel_block", .kind = OX_FIXED_TRUE},
    {.key = "use_gated_activation", .kind = OX_FIXED_TRUE},
    {.key = "position_embedding_type", .kind = OX_FIXED_TEXT, .texts = {"rope_gptj"}},
    {.key = "order_of_interleaved_layers", .kind = OX_FIXED_TEXT, .texts = {"local_attn_first"}},
    {.key = NULL},
};

static const char *const cohere_keys[] = {"layer_norm_eps",       "layer_switch",           "sliding_window_pattern",
                                          "cache_implementation", "use_embedding_sharing", "use_parallel_embedding",
                                          NULL};

static const struct ox_value_key cohere_values[] = {
    {"attention_bias", OX_KEY_FLAG, offsetof(struct ox_model_config, attention_bias), 0.0},
    {"logit_scale", OX_KEY_NUMBER, offsetof(struct ox_model_config, logit_scale), 0.0625},
    {.key = NULL},
};

static enum ox_status cohere2_parse(const char *where, const json_t *json, const struct ox_family *family,
                                    struct ox_model_config *out) {
    enum ox_status status = ox_decoder_parse(where, json, family, out);
    OX_THEN(status, ox_read_turns(where, json, "sliding_window_pattern", 4, out));
    if (status == OX_OK && (uint64_t)out->head_dim * out->heads != out->hidden) {
        return ox_fail(OX_E_CONFIG, "%s: \"head_dim\" is %u, which is not supported; it must be \"hidden_size\" %u "
                       "divided by \"num_attention_heads\" %u, or left out", where, out->head_dim, out->hidden,
                       out->heads);
    }
    for (uint32_t i = 0; status == OX_OK && i < out->layers; i++) {
        ox_layers_add(&out->unrotated, i, ox_layers_has(&out->windowed, i) ? i : i + 1);
    }
    return status;
}

static bool cohere2_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                          json_t *out) {
    return ox_decoder_write(family, config, has_original, out) && ox_write_turns(config, out);
}

const struct ox_family ox_family_cohere2 = {
    .model_type = "cohere2",
    .architecture = "Cohere2ForCausalLM",
    .base_model = "Cohere2Model",
    .prefix = "model.",
    .rows = cohere_rows,
    .ignored = ox_decoder_ignored,
    .tied_by_default = true,
    .norm = OX_NORM_LAYER,
    .act = OX_ACTIVATION_SWIGLU,
    .parallel = true,
    .rope_neighbours = true,
    .defaults = {.contexts = 8192, .norm_eps = 1e-5f},
    .fixed_keys = cohere_fixed_keys,
    .keys = {ox_decoder_keys, ox_window_keys, cohere_keys},
    .values = cohere_values,
    .parse = cohere2_parse,
    .write = cohere2_write,
};
