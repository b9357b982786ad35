/* Reads and writes what all families share of config.json. */
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/family/families.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits far above every existing model, and low enough that neither products of sizes nor their sum over all units can
 * overflow. */
enum {
    VOCAB_MAX = 1 << 24,
    HIDDEN_MAX = 1 << 20,
    WIDTH_MAX = 1 << 22,
    HEADS_MAX = 1 << 14,
    HEAD_DIM_MAX = 1 << 12,
    CONTEXTS_MAX = 1 << 28,
};
static const struct ox_fixed_key common_fixed_keys[] = {
    {.key = "quantization_config", .kind = OX_FIXED_MISSING,
     .remedy = "quantised weights are not read, and they stay so without the key; use the model that is not quantised"},
    {.key = "auto_map", .kind = OX_FIXED_MISSING}, /* the model is Python code of its own */
    {.key = "add_cross_attention", .kind = OX_FIXED_FALSE},
    {.key = "is_encoder_decoder", .kind = OX_FIXED_FALSE},
    {.key = "tie_encoder_decoder", .kind = OX_FIXED_FALSE},
    {.key = NULL},
};

/* Keys by which families of transformers compute something else. A folder that has one asks for that, also where its
 * model_type does not read it; a family that reads one lists it in its own keys. */
static const struct ox_fixed_key changing_keys[] = {
    /* scales */
    {.key = "embedding_multiplier", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "residual_multiplier", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "logits_scaling", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "logit_scale", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "lm_head_multiplier", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "key_multiplier", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "attention_in_multiplier", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "attention_out_multiplier", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "scale_emb", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "scale_depth", .kind = OX_FIXED_MISSING},
    {.key = "dim_model_base", .kind = OX_FIXED_MISSING},
    {.key = "scale_embedding", .kind = OX_FIXED_FALSE},
    {.key = "scale_attn_weights", .kind = OX_FIXED_TRUE},
    {.key = "scale_attn_by_inverse_layer_idx", .kind = OX_FIXED_FALSE},
    /* caps */
    {.key = "attn_logit_softcapping", .kind = OX_FIXED_MISSING},
    {.key = "final_logit_softcapping", .kind = OX_FIXED_MISSING},
    {.key = "clip_qkv", .kind = OX_FIXED_MISSING},
    /* norms, biases and the order of a block's halves */
    {.key = "qk_layernorm", .kind = OX_FIXED_FALSE},
    {.key = "use_qk_norm", .kind = OX_FIXED_FALSE},
    {.key = "use_parallel_residual", .kind = OX_FIXED_FALSE},
    {.key = "parallel_attn", .kind = OX_FIXED_FALSE},
    {.key = "new_decoder_architecture", .kind = OX_FIXED_FALSE},
    {.key = "attention_bias", .kind = OX_FIXED_FALSE},
    {.key = "mlp_bias", .kind = OX_FIXED_FALSE},
    {.key = "apply_residual_connection_post_layernorm", .kind = OX_FIXED_FALSE},
    {.key = "do_layer_norm_before", .kind = OX_FIXED_TRUE},
    {.key = "use_bias", .kind = OX_FIXED_FALSE},
    {.key = "use_qkv_bias", .kind = OX_FIXED_FALSE},
    /* positions */
    {.key = "rope_interleaved", .kind = OX_FIXED_FALSE},
    {.key = "no_rope_layers", .kind = OX_FIXED_NUMBERS, .number = 1.0}, /* 1: the layer has them */
    {.key = "no_rope_layer_interval", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "partial_rotary_factor", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "original_max_position_embeddings", .kind = OX_FIXED_MISSING},
    {.key = "rotary_pct", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "rotary_dim", .kind = OX_FIXED_MISSING},
    {.key = "rope_local_base_freq", .kind = OX_FIXED_MISSING},
    {.key = "alibi", .kind = OX_FIXED_FALSE},
    /* what a token attends to */
    {.key = "layer_types", .kind = OX_FIXED_MISSING},
    {.key = "sliding_window", .kind = OX_FIXED_MISSING},
    {.key = "use_sliding_window", .kind = OX_FIXED_FALSE},
    {.key = "sliding_window_pattern", .kind = OX_FIXED_MISSING},
    {.key = "_sliding_window_pattern", .kind = OX_FIXED_MISSING},
    {.key = "attention_chunk_size", .kind = OX_FIXED_MISSING},
    {.key = "attn_temperature_tuning", .kind = OX_FIXED_FALSE},
    {.key = "use_bidirectional_attention", .kind = OX_FIXED_FALSE},
    {.key = "is_causal", .kind = OX_FIXED_TRUE},
    {.key = "multi_query", .kind = OX_FIXED_FALSE},
    {.key = "q_lora_rank", .kind = OX_FIXED_MISSING},
    {.key = "kv_lora_rank", .kind = OX_FIXED_MISSING},
    {.key = "attention_dropout", .kind = OX_FIXED_NUMBER, .number = 0.0},
    /* mixtures of experts */
    {.key = "num_experts", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "num_local_experts", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "n_routed_experts", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "n_shared_experts", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "shared_expert_intermediate_size", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "scoring_func", .kind = OX_FIXED_TEXT, .texts = {"softmax"}},
    {.key = "topk_method", .kind = OX_FIXED_TEXT, .texts = {"greedy"}},
    {.key = "n_group", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "topk_group", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "routed_scaling_factor", .kind = OX_FIXED_NUMBER, .number = 1.0},
    {.key = "first_k_dense_replace", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "router_jitter_noise", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = "input_jitter_noise", .kind = OX_FIXED_NUMBER, .number = 0.0},
    {.key = NULL},
};

/* Keys that do not influence training. Older versions wrote most of them for every model. */
static const char *const common_keys[] = {"model_type",
                                          "vocab_size",
                                          "initializer_range",
                                          "tie_word_embeddings",
                                          "bos_token_id",
                                          "eos_token_id",
                                          "pad_token_id",
                                          "unk_token_id",
                                          "sep_token_id",
                                          "cls_token_id",
                                          "mask_token_id",
                                          "decoder_start_token_id",
                                          "architectures",
                                          "torch_dtype",
                                          "dtype",
                                          "transformers_version",
                                          "use_cache",
                                          "_name_or_path",
                                          "_commit_hash",
                                          "_attn_implementation_autoset",
                                          "name_or_path",
                                          "id2label",
                                          "label2id",
                                          "num_labels",
                                          "problem_type",
                                          "finetuning_task",
                                          "task_specific_params",
                                          "tokenizer_class",
                                          "prefix",
                                          "is_decoder",
                                          "return_dict",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "output_past",
                                          "return_dict_in_generate",
                                          "output_scores",
                                          "torchscript",
                                          "use_bfloat16",
                                          "tf_legacy_loss",
                                          "chunk_size_feed_forward",
                                          "cross_attention_hidden_size",
                                          "max_length",
                                          "min_length",
                                          "do_sample",
                                          "early_stopping",
                                          "num_beams",
                                          "num_beam_groups",
                                          "temperature",
                                          "top_k",
                                          "top_p",
                                          "typical_p",
                                          "repetition_penalty",
                                          "diversity_penalty",
                                          "length_penalty",
                                          "no_repeat_ngram_size",
                                          "encoder_no_repeat_ngram_size",
                                          "bad_words_ids",
                                          "num_return_sequences",
                                          "forced_bos_token_id",
                                          "forced_eos_token_id",
                                          "remove_invalid_values",
                                          "exponential_decay_length_penalty",
                                          "suppress_tokens",
                                          "begin_suppress_tokens",
                                          "gradient_checkpointing",
                                          NULL};

/* Keys that check_attention_scale reads. */
static const char *const scale_keys[] = {"attention_multiplier", "query_pre_attn_scalar", NULL};

/* Whether a value, or each one of a list, is the one that the rule allows. */
static bool fits_rule(const json_t *value, const struct ox_fixed_key *rule) {
    bool fits = value == NULL || json_is_null(value);
    switch (rule->kind) {
    case OX_FIXED_MISSING:
        break;
    case OX_FIXED_FALSE:
        fits = fits || json_is_false(value);
        break;
    case OX_FIXED_TRUE:
        fits = fits || json_is_true(value);
        break;
    case OX_FIXED_NUMBER:
    case OX_FIXED_NUMBERS:
        fits = fits || (json_is_number(value) && json_number_value(value) == rule->number);
        break;
    case OX_FIXED_TEXT:
        for (int i = 0; i < 2 && rule->texts[i] != NULL; i++) {
            fits = fits || (json_is_string(value) && strcmp(json_string_value(value), rule->texts[i]) == 0);
        }
        break;
    }
    return fits;
}

/* Says what a value must be, in front of "left out". */
static void name_allowed(const struct ox_fixed_key *rule, char *text, size_t bytes) {
    const bool is_list = rule->kind == OX_FIXED_NUMBERS;
    text[0] = '\0';
    if (rule->kind == OX_FIXED_FALSE || rule->kind == OX_FIXED_TRUE) {
        snprintf(text, bytes, "%s or ", rule->kind == OX_FIXED_TRUE ? "true" : "false");
    } else if (rule->kind == OX_FIXED_NUMBER || rule->kind == OX_FIXED_NUMBERS) {
        snprintf(text, bytes, "%s%g or ", is_list ? "a list of " : "", rule->number);
    } else if (rule->kind != OX_FIXED_MISSING) {
        snprintf(text, bytes, "\"%s\" or ", rule->texts[0]);
    }
}

static enum ox_status check_fixed_key(const char *where, const json_t *json, const struct ox_fixed_key *rule) {
    const json_t *const value = json_object_get(json, rule->key);
    const bool is_list = json_is_array(value) && rule->kind == OX_FIXED_NUMBERS;
    bool fits = is_list || fits_rule(value, rule);
    for (size_t i = 0; is_list && i < json_array_size(value); i++) {
        fits = fits && fits_rule(json_array_get(value, i), rule);
    }
    if (fits) {
        return OX_OK;
    }
    char text[OX_JSON_EXCERPT_BYTES], wanted[64];
    if (rule->remedy != NULL) {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" is %s, which is not supported: %s", where, rule->key,
                       ox_json_excerpt(value, text), rule->remedy);
    }
    name_allowed(rule, wanted, sizeof wanted);
    return ox_fail(OX_E_CONFIG, "%s: \"%s\" is %s, which is not supported; it must be %sleft out", where, rule->key,
                   ox_json_excerpt(value, text), wanted);
}

static enum ox_status check_fixed_keys(const char *where, const json_t *json, const struct ox_fixed_key *rule) {
    enum ox_status status = OX_OK;
    for (; status == OX_OK && rule != NULL && rule->key != NULL; rule++) {
        status = check_fixed_key(where, json, rule);
    }
    return status;
}

static bool is_fixed(const struct ox_fixed_key *rule, const char *key) {
    while (rule != NULL && rule->key != NULL && strcmp(rule->key, key) != 0) {
        rule++;
    }
    return rule != NULL && rule->key != NULL;
}

static bool is_listed(const char *const *keys, const char *key) {
    while (*keys != NULL && strcmp(*keys, key) != 0) {
        keys++;
    }
    return *keys != NULL;
}

/* Whether a family reads the key, or knows that it has no effect. */
static bool is_known(const struct ox_family *family, const char *key) {
    const struct ox_value_key *value = family->values;
    for (size_t i = 0; i < sizeof family->keys / sizeof *family->keys && family->keys[i] != NULL; i++) {
        if (is_listed(family->keys[i], key)) {
            return true;
        }
    }
    while (value != NULL && value->key != NULL && strcmp(value->key, key) != 0) {
        value++;
    }
    return value != NULL && value->key != NULL;
}

/* A family may list a key that the others must not have. */
static enum ox_status check_common_keys(const char *where, const json_t *json, const struct ox_family *family) {
    enum ox_status status = OX_OK;
    for (const struct ox_fixed_key *rule = common_fixed_keys; status == OX_OK && rule->key != NULL; rule++) {
        status = is_known(family, rule->key) ? OX_OK : check_fixed_key(where, json, rule);
    }
    return status;
}

/* Refuses what changes the model and is not among the family's own keys. */
static enum ox_status check_changing_keys(const char *where, const json_t *json, const struct ox_family *family) {
    enum ox_status status = OX_OK;
    for (const struct ox_fixed_key *rule = changing_keys; status == OX_OK && rule->key != NULL; rule++) {
        if (!is_fixed(family->fixed_keys, rule->key) && !is_known(family, rule->key)) {
            status = check_fixed_key(where, json, rule);
        }
    }
    return status;
}

/* Refuses a scale of attention other than that of the head dimension, which `config` has. */
static enum ox_status check_attention_scale(const char *where, const json_t *json, const struct ox_family *family,
                                            const struct ox_model_config *config) {
    double multiplier = 1.0 / sqrt((double)config->head_dim), scalar = config->head_dim;
    const double neutral = multiplier;
    enum ox_status status = OX_OK;
    if (!is_known(family, scale_keys[0])) {
        status = ox_json_get_double(where, json, scale_keys[0], false, &multiplier);
    }
    if (!is_known(family, scale_keys[1])) {
        OX_THEN(status, ox_json_get_double(where, json, scale_keys[1], false, &scalar));
    }
    if (status == OX_OK && (fabs(multiplier - neutral) > 1e-6 * neutral || scalar != config->head_dim)) {
        const bool by_key = scalar != config->head_dim;
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" is %g, which is not supported; it must be %g, which the head dimension "
                       "%u gives, or left out", where, by_key ? "query_pre_attn_scalar" : "attention_multiplier",
                       by_key ? scalar : multiplier, by_key ? (double)config->head_dim : neutral, config->head_dim);
    }
    return status;
}

/* An unknown key may or may not change the model: it is named in a warning, not refused. */
static void warn_unknown_keys(const char *where, const json_t *json, const struct ox_family *family) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)json, key, value) {
        if (!json_is_null(value) && !is_listed(common_keys, key) && !is_known(family, key) &&
            !is_fixed(common_fixed_keys, key) && !is_fixed(family->fixed_keys, key) && !is_fixed(changing_keys, key) &&
            !is_listed(scale_keys, key)) {
            char text[OX_JSON_EXCERPT_BYTES];
            ox_log(OX_LOG_WARN, "%s: the key \"%s\" (%s) is not known and has no effect", where, key,
                   ox_json_excerpt(value, text));
        }
    }
}

static enum ox_status check_architecture(const char *where, const json_t *json,
                                         const struct ox_family *family) {
    const json_t *const name = json_array_get(json_object_get(json, "architectures"), 0);
    if (!json_is_string(name) || strcmp(json_string_value(name), family->architecture) == 0 ||
        strcmp(json_string_value(name), family->base_model) == 0) {
        return OX_OK;
    }
    return ox_fail(OX_E_CONFIG,
                   "%s: \"architectures\" names %s, but of the model_type \"%s\" only %s can be trained",
                   where, json_string_value(name), family->model_type, family->architecture);
}

/* ---- keys with one value each ---- */

static double *number_at(struct ox_model_config *config, const struct ox_value_key *key) {
    return (double *)(void *)((unsigned char *)config + key->offset);
}

static bool *flag_at(struct ox_model_config *config, const struct ox_value_key *key) {
    return (bool *)((unsigned char *)config + key->offset);
}

/* What a number of the file is in the configuration. */
static double kept_as(const struct ox_value_key *key, double number) {
    switch (key->kind) {
    case OX_KEY_FLAG:
    case OX_KEY_NUMBER:
        break;
    case OX_KEY_INVERSE:
        return number == 0.0 ? 0.0 : 1.0 / number;
    case OX_KEY_INVERSE_ROOT:
        return number == 0.0 ? 0.0 : 1.0 / sqrt(number);
    }
    return number;
}

static enum ox_status read_values(const char *where, const json_t *json, const struct ox_value_key *key,
                                  struct ox_model_config *out) {
    enum ox_status status = OX_OK;
    for (; status == OX_OK && key != NULL && key->key != NULL; key++) {
        double number = json_is_null(json_object_get(json, key->key)) ? 0.0 : key->missing;
        if (key->kind == OX_KEY_FLAG) {
            *flag_at(out, key) = number != 0.0;
            status = ox_json_get_bool(where, json, key->key, false, flag_at(out, key));
            continue;
        }
        status = ox_json_get_double(where, json, key->key, false, &number);
        *number_at(out, key) = kept_as(key, number);
        const json_t *const given = json_object_get(json, key->key);
        const bool is_none = given == NULL || json_is_null(given);
        const bool is_whole = key->kind != OX_KEY_INVERSE_ROOT || (number == floor(number) && number <= HIDDEN_MAX);
        if (status == OX_OK && !((is_none || number > 0.0) && is_whole && isfinite((float)*number_at(out, key)))) {
            status = ox_fail(OX_E_CONFIG, "%s: \"%s\" is %g, which no model has", where, key->key, number);
        }
    }
    return status;
}

/* A number that a file already has is not written anew, so that none is rounded. */
static bool write_values(const struct ox_model_config *config, const struct ox_value_key *key, json_t *out) {
    struct ox_model_config copy = *config;
    bool done = true;
    for (; done && key != NULL && key->key != NULL; key++) {
        const double value = key->kind == OX_KEY_FLAG ? 0.0 : *number_at(&copy, key);
        const json_t *const there = json_object_get(out, key->key);
        const bool is_there = there != NULL && kept_as(key, json_number_value(there)) == value;
        if (key->kind == OX_KEY_FLAG) {
            done = ox_config_put(out, key->key, json_boolean(*flag_at(&copy, key)));
        } else if (!is_there && value == 0.0) {
            done = ox_config_put(out, key->key, json_null());
        } else if (!is_there && key->kind == OX_KEY_INVERSE_ROOT) {
            done = ox_config_put(out, key->key, json_integer((json_int_t)round(1.0 / (value * value))));
        } else if (!is_there) {
            done = ox_config_put(out, key->key, json_real(key->kind == OX_KEY_INVERSE ? 1.0 / value : value));
        }
    }
    return done;
}

/* A token id may be a list, as in Llama 3: the first counts. */
static enum ox_status read_token_id(const char *where, const json_t *json, const char *key, int64_t *id) {
    const json_t *value = json_object_get(json, key);
    value = json_is_array(value) ? json_array_get(value, 0) : value;
    *id = -1;
    if (value == NULL || json_is_null(value)) {
        return OX_OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < -1) {
        char text[OX_JSON_EXCERPT_BYTES];
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" must be a token id, but is %s", where, key,
                       ox_json_excerpt(value, text));
    }
    *id = json_integer_value(value);
    return OX_OK;
}

bool ox_config_put(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value) == 0;
}

static bool set_token_id(json_t *object, const char *key, int64_t id) {
    if (json_object_get(object, key) != NULL) {
        return true; /* the original may have a list */
    }
    return ox_config_put(object, key, id >= 0 ? json_integer(id) : json_null());
}

enum ox_status ox_config_read_sizes(const char *where, const json_t *json, const struct ox_size_key *keys,
                                    uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint64_t value = *keys[i].value;
        const enum ox_status status = ox_json_get_u64(where, json, keys[i].key, keys[i].required, &value);
        if (status != OX_OK) {
            return status;
        }
        if (value > UINT32_MAX) {
            return ox_fail(OX_E_CONFIG, "%s: \"%s\" is %llu, more than any model has", where, keys[i].key,
                           (unsigned long long)value);
        }
        *keys[i].value = (uint32_t)value;
    }
    return OX_OK;
}

bool ox_config_write_sizes(json_t *object, const struct ox_size_key *keys, uint32_t count) {
    bool done = true;
    for (uint32_t i = 0; i < count; i++) {
        done = done && ox_config_put(object, keys[i].key, json_integer(*keys[i].value));
    }
    return done;
}

enum ox_status ox_config_read_float(const char *where, const json_t *json, const char *key, float *value) {
    double real = *value;
    const enum ox_status status = ox_json_get_double(where, json, key, false, &real);
    *value = (float)real;
    return status;
}

double ox_shortest_double(float value) {
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) {
            return strtod(text, NULL);
        }
    }
    return value;
}

/* ---- sizes ---- */

static enum ox_status check_size(const char *where, const char *what, uint32_t value, uint32_t limit) {
    if (value >= 1 && value <= limit) {
        return OX_OK;
    }
    return ox_fail(OX_E_CONFIG, "%s: the model's %s is %" PRIu32 "; it must lie in 1 to %" PRIu32, where,
                   what, value, limit);
}

void ox_layers_add(struct ox_layers *layers, uint32_t first, uint32_t last) {
    for (uint32_t i = first; i < last && i < OX_LAYERS_MAX; i++) {
        layers->bits[i / 64] |= UINT64_C(1) << i % 64;
    }
}

uint32_t ox_layers_first(const struct ox_layers *layers, uint32_t count) {
    uint32_t first = 0;
    while (first < count && !ox_layers_has(layers, first)) {
        first++;
    }
    return first;
}

bool ox_layers_are_last(const struct ox_layers *layers, uint32_t count) {
    uint32_t layer = ox_layers_first(layers, count);
    while (layer < count && ox_layers_has(layers, layer)) {
        layer++;
    }
    return layer == count;
}

static enum ox_status check_groups(const char *where, const struct ox_router *router) {
    const uint32_t groups = router->groups, kept = router->groups_kept;
    const uint32_t least = router->group_rank == OX_GROUP_BY_BEST_TWO ? 2 : 1; /* experts of a group */
    return router->experts % groups == 0 && router->experts / groups >= least && kept > 0 && kept <= groups &&
                   router->chosen <= router->experts / groups * kept
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "%s: a token gets %" PRIu32 " of %" PRIu32 " experts, out of %" PRIu32
                         " (\"topk_group\") of %" PRIu32 " groups (\"n_group\"); groups are equal, with at least %"
                         PRIu32 " experts each, and those that are kept must have enough", where, router->chosen,
                         router->experts, kept, groups, least);
}

/* The router's own limits, which its operations assert. */
static enum ox_status check_mixture(const char *where, const struct ox_mixture *mixture) {
    const struct ox_router *const router = &mixture->router;
    const uint32_t chosen_max = router->experts < OX_CHOSEN_MAX ? router->experts : OX_CHOSEN_MAX;
    if (router->experts == 0) {
        return OX_OK;
    }
    enum ox_status status = check_size(where, "number of experts", router->experts, OX_EXPERTS_MAX);
    OX_THEN(status, check_size(where, "width of an expert", mixture->width, WIDTH_MAX));
    if (status == OX_OK && mixture->shared_width > WIDTH_MAX) {
        status = check_size(where, "width of the shared expert", mixture->shared_width, WIDTH_MAX);
    }
    if (status == OX_OK && router->groups > 1) {
        status = check_groups(where, router);
    }
    if (status == OX_OK && !(router->scale > 0.0f && router->scale < INFINITY)) {
        return ox_fail(OX_E_CONFIG, "%s: \"routed_scaling_factor\" is %g, which no model has", where,
                       (double)router->scale);
    }
    if (status == OX_OK && (router->chosen == 0 || router->chosen > chosen_max)) {
        return ox_fail(OX_E_CONFIG, "%s: a token has %" PRIu32 " experts (\"num_experts_per_tok\"); of %" PRIu32
                       " it can have 1 to %" PRIu32, where, router->chosen, router->experts, chosen_max);
    }
    return status;
}

enum ox_status ox_model_config_check(const char *where, const struct ox_model_config *config) {
    const struct {
        const char *what;
        uint32_t value, limit;
    } sizes[] = {
        {"vocabulary", config->vocab, VOCAB_MAX},
        {"hidden size", config->hidden, HIDDEN_MAX},
        {"number of layers", config->layers, OX_LAYERS_MAX},
        {"number of attention heads", config->heads, HEADS_MAX},
        {"number of key/value heads", config->kv_heads, HEADS_MAX},
        {"head dimension", config->head_dim, HEAD_DIM_MAX},
        {"MLP width", config->width, WIDTH_MAX},
        {"number of positions", config->contexts, CONTEXTS_MAX},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const enum ox_status status = check_size(where, sizes[i].what, sizes[i].value, sizes[i].limit);
        if (status != OX_OK) {
            return status;
        }
    }
    const enum ox_status mixture = check_mixture(where, &config->mixture);
    if (mixture != OX_OK) {
        return mixture;
    }
    if (config->heads % config->kv_heads != 0) {
        return ox_fail(OX_E_CONFIG,
                       "%s: %" PRIu32 " attention heads cannot share %" PRIu32 " key/value heads evenly",
                       where, config->heads, config->kv_heads);
    }
    if (config->rope) {
        const enum ox_status status = ox_config_check_rope(where, config);
        if (status != OX_OK) {
            return status;
        }
    }
    if (!(config->norm_eps > 0.0f && config->norm_eps < 1.0f)) {
        return ox_fail(OX_E_CONFIG, "%s: the epsilon of the norms is %g; it must lie between 0 and 1", where,
                       (double)config->norm_eps);
    }
    if (!(config->init_range >= 0.0 && config->init_range <= 1.0)) {
        return ox_fail(OX_E_CONFIG, "%s: initializer_range is %g; it must lie in 0 to 1", where,
                       config->init_range);
    }
    return OX_OK;
}

/* Families that people ask for, and what of them is missing. */
static const char delta[] = "the gated delta rule of three layers of four is not computed";
static const struct {
    const char *model_type, *missing;
} refused_families[] = {
    {"glm4_moe_lite", "its list of the layers with a mixture (mlp_layer_types) is not read"},
    {"kimi_k2", "it is a deepseek_v3 whose folders bring code of their own, with which this was not compared"},
    {"qwen3_next", delta},
    {"qwen3_5_moe", delta},
    {"phimoe", "its router draws experts at random in training"},
    {"llama4_text", "a router that weighs what an expert reads, and attention in chunks, are not computed"},
    {"minimax_m2", "a part of a head that is rotated behind a norm of all heads is not computed"},
};

static enum ox_status refuse_family(const char *where, const char *model_type) {
    char names[OX_FAMILY_NAMES_BYTES];
    ox_family_names(names);
    for (size_t i = 0; i < sizeof refused_families / sizeof *refused_families; i++) {
        if (strcmp(model_type, refused_families[i].model_type) == 0) {
            return ox_fail(OX_E_CONFIG, "%s: the \"model_type\" \"%s\" is not supported: %s; supported are %s", where,
                           model_type, refused_families[i].missing, names);
        }
    }
    return ox_fail(OX_E_CONFIG, "%s: the \"model_type\" \"%.40s\" is not supported; supported are %s", where,
                   model_type, names);
}

enum ox_status ox_model_config_parse(const char *where, const json_t *json, struct ox_model_config *out) {
    const char *model_type = NULL;
    memset(out, 0, sizeof *out);
    if (!json_is_object(json)) {
        return ox_fail(OX_E_CONFIG, "%s: is not a JSON object, so it is no config.json of a model", where);
    }
    enum ox_status status = ox_json_get_string(where, json, "model_type", true, &model_type);
    if (status != OX_OK) {
        return status;
    }
    const struct ox_family *const family = ox_family_find(model_type);
    if (family == NULL) {
        return refuse_family(where, model_type);
    }
    snprintf(out->family, sizeof out->family, "%s", family->model_type);
    out->init_range = 0.02;
    out->tied = family->tied_by_default;
    out->norm = family->norm;
    out->act = family->act;
    out->gain_offset = family->gain_offset;
    out->parallel = family->parallel;
    out->rope_neighbours = family->rope_neighbours;
    out->vocab = family->defaults.vocab;
    const struct ox_size_key vocab = {"vocab_size", out->vocab == 0, &out->vocab};
    status = check_common_keys(where, json, family);
    OX_THEN(status, check_fixed_keys(where, json, family->fixed_keys));
    OX_THEN(status, check_changing_keys(where, json, family));
    OX_THEN(status, check_architecture(where, json, family));
    OX_THEN(status, ox_config_read_sizes(where, json, &vocab, 1));
    OX_THEN(status, ox_json_get_bool(where, json, "tie_word_embeddings", false, &out->tied));
    OX_THEN(status, ox_json_get_double(where, json, "initializer_range", false, &out->init_range));
    OX_THEN(status, read_token_id(where, json, "bos_token_id", &out->bos_id));
    OX_THEN(status, read_token_id(where, json, "eos_token_id", &out->eos_id));
    OX_THEN(status, read_values(where, json, family->values, out));
    OX_THEN(status, family->parse(where, json, family, out));
    OX_THEN(status, ox_model_config_check(where, out));
    OX_THEN(status, check_attention_scale(where, json, family, out));
    if (status == OX_OK) {
        warn_unknown_keys(where, json, family);
    }
    return status;
}

enum ox_status ox_model_config_json(const struct ox_model_config *config, const json_t *original,
                                    const char *dtype, json_t **out) {
    const struct ox_family *const family = ox_family_find(config->family);
    if (family == NULL) {
        char names[OX_FAMILY_NAMES_BYTES];
        return ox_fail(OX_E_CONFIG, "the model_type \"%s\" is not supported; supported are %s",
                       config->family, ox_family_names(names));
    }
    json_t *const json = original != NULL ? json_deep_copy(original) : json_object();
    if (json == NULL || !ox_config_put(json, "architectures", json_pack("[s]", family->architecture)) ||
        !ox_config_put(json, "model_type", json_string(family->model_type)) ||
        !ox_config_put(json, "vocab_size", json_integer(config->vocab)) ||
        !family->write(family, config, original != NULL, json) || !write_values(config, family->values, json) ||
        !ox_config_put(json, "tie_word_embeddings", json_boolean(config->tied)) ||
        !ox_config_put(json, "initializer_range", json_real(config->init_range)) ||
        !set_token_id(json, "bos_token_id", config->bos_id) ||
        !set_token_id(json, "eos_token_id", config->eos_id) || !ox_config_put(json, "dtype", json_string(dtype)) ||
        !ox_config_put(json, "torch_dtype", json_string(dtype))) {
        json_decref(json);
        return ox_fail(OX_E_NOMEM, "no memory for a config.json");
    }
    *out = json;
    return OX_OK;
}
