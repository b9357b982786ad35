/* mixtral: mistral whose MLPs are mixtures of experts. */
#include "engine/family/mixture.h"

static const struct ox_family_row *const mixtral_rows[] = {
    ox_rows_embedding, ox_rows_norm1, ox_rows_qkv, ox_rows_out, ox_rows_norm2, ox_rows_mixture_w123,
    ox_rows_final_norm, ox_rows_table, NULL};

static const struct ox_mixture_keys mixtral_mixture = {
    .experts = "num_local_experts", .experts_missing = 8, .chosen_missing = 2, .width = "intermediate_size",
    .balance_missing = 0.001};

static const struct ox_fixed_key mixtral_fixed_keys[] = {
    {.key = "hidden_act", .kind = OX_FIXED_TEXT, .texts = {"silu", "swish"}},
    OX_MIXTURE_FIXED_KEYS,
    {.key = NULL},
};

/* A missing sliding_window means none. */
static enum ox_status mixtral_parse(const char *where, const json_t *json, const struct ox_family *family,
                                    struct ox_model_config *out) {
    enum ox_status status = ox_decoder_parse(where, json, family, out);
    OX_THEN(status, ox_read_mixture(where, json, &mixtral_mixture, out));
    out->mixture.router.renormalise = true;
    if (status == OX_OK && json_object_get(json, "sliding_window") != NULL) {
        status = ox_read_window(where, json, &out->window);
        ox_layers_add(&out->windowed, 0, out->layers);
        ox_settle_windows(out);
    }
    return status;
}

static bool mixtral_write(const struct ox_family *family, const struct ox_model_config *config, bool has_original,
                          json_t *out) {
    return ox_decoder_write(family, config, has_original, out) && ox_write_window(config, out) &&
           ox_write_mixture(&mixtral_mixture, config, out);
}

static const char *const mixtral_names[] = {"gate", "w1", "w3", "w2"};
static const char *const mixtral_keys[] = {"sliding_window", NULL};

const struct ox_family ox_family_mixtral = {
    .model_type = "mixtral",
    .lora_targets = "q_proj,v_proj",
    .module_names = {"block_sparse_moe.", "mlp."},
    .expert_names = mixtral_names,
    .architecture = "MixtralForCausalLM",
    .base_model = "MixtralModel",
    .prefix = "model.",
    .rows = mixtral_rows,
    .ignored = ox_decoder_ignored,
    .act = OX_ACTIVATION_SWIGLU,
    .defaults = {.contexts = 4096 * 32, .kv_heads = 8, .norm_eps = 1e-5f, .rope_theta = 1e6},
    .fixed_keys = mixtral_fixed_keys,
    .keys = {ox_decoder_keys, mixtral_keys, ox_mixture_key_names},
    .parse = mixtral_parse,
    .write = mixtral_write,
};
