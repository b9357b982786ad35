/* Models: tensors and units of every family, their order and names, initial values, and what a config may not say. */
#include "base/file.h"
#include "base/hash/hash.h"
#include "base/json.h"
#include "engine/model/model.h"
#include "tests/kit/log.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char llama_json[] =
    "{\"model_type\":\"llama\",\"vocab_size\":96,\"hidden_size\":48,\"intermediate_size\":100,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":6,\"num_key_value_heads\":2,\"max_position_embeddings\":"
    "64,"
    "\"rms_norm_eps\":1e-05,\"bos_token_id\":1,\"eos_token_id\":[7,8]%s}";
static const char gpt2_json[] = "{\"model_type\":\"gpt2\",\"vocab_size\":96,\"n_embd\":32,\"n_layer\":2,\"n_"
                                "head\":4,\"n_positions\":40%s}";

static const char decoder_json[] =
    "{\"vocab_size\":96,\"hidden_size\":48,\"intermediate_size\":100,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-05%s}";
static const char llama3_rope[] = "\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
                                  "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64";

/* The configuration in `format` with `extra` keys. */
static enum ox_status parse(const char *format, const char *extra, struct ox_model_config *out) {
    char text[2048];
    json_t *json = NULL;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, format, extra);
#pragma GCC diagnostic pop
    REQUIRE_OK(ox_json_parse("test", text, strlen(text), &json));
    const enum ox_status status = ox_model_config_parse("config.json", json, out);
    json_decref(json);
    return status;
}

static void check_layout(const struct ox_model *model) {
    uint32_t tensor_idx = 0;
    uint64_t param_count = 0;
    for (uint32_t u = 0; u < model->unit_count; u++) {
        const struct ox_unit *const unit = &model->units[u];
        uint64_t end = 0, unit_params = 0;
        CHECK(unit->tensor_first == tensor_idx);
        CHECK(unit->elem_count % OX_GROUP_ELEMS == 0);
        for (uint32_t i = 0; i < unit->tensor_count; i++, tensor_idx++) {
            const struct ox_tensor *const tensor = &model->tensors[tensor_idx];
            const bool packed = i > 0 && tensor[-1].role == tensor->role;
            CHECK(tensor->unit_idx == u);
            CHECK(packed ? tensor->offset == end
                         : tensor->offset >= end && tensor->offset % OX_TENSOR_ALIGN_ELEMS == 0);
            CHECK(packed || unit->role_offset[tensor->role] == tensor->offset);
            CHECK(tensor->count == tensor->shape[0] * tensor->shape[1] * tensor->shape[2]);
            CHECK(tensor->decay == (tensor->rank == 2));
            CHECK(ox_model_find_tensor(model, tensor->name) == tensor_idx);
            end = tensor->offset + tensor->count;
            unit_params += tensor->count;
        }
        CHECK(end <= unit->elem_count && unit->elem_count - end < OX_GROUP_ELEMS);
        CHECK(unit->param_count == unit_params);
        param_count += unit_params;
    }
    CHECK(tensor_idx == model->tensor_count);
    CHECK(param_count == model->param_count);
}

static void test_llama(void) {
    struct ox_model_config config;
    struct ox_model *model = NULL;
    REQUIRE_OK(parse(llama_json, "", &config));
    CHECK(config.head_dim == 8 && config.kv_heads == 2 && config.width == 100 && config.contexts == 64);
    CHECK(!config.tied && config.rope && config.rope_theta == 10000.0 && config.norm_eps == 1e-5f);
    CHECK(config.bos_id == 1 && config.eos_id == 7 && config.init_range == 0.02);
    CHECK(!config.attention_bias && !config.mlp_bias && !config.out_bias && !config.norm_bias);
    CHECK(config.norm == OX_NORM_RMS && config.act == OX_ACTIVATION_SWIGLU && config.layout == OX_WEIGHT_OUT_IN);
    REQUIRE_OK(ox_model_build(&config, &model));
    check_layout(model);
    CHECK(model->unit_count == 5 && model->tensor_count == 1 + 3 * 9 + 2);
    const struct ox_unit *const block = &model->units[2];
    const struct ox_tensor *const first = &model->tensors[block->tensor_first];
    CHECK(strcmp(first[1].name, "model.layers.1.self_attn.q_proj.weight") == 0);
    CHECK(first[1].shape[0] == 48 && first[2].shape[0] == 16 && first[2].shape[1] == 48);
    CHECK(first[2].offset == first[1].offset + 48 * 48 && first[3].offset == first[2].offset + 16 * 48);
    CHECK(block->role_offset[OX_ROLE_QKV] == first[1].offset);
    CHECK(block->role_offset[OX_ROLE_QKV_BIAS] == UINT64_MAX &&
          block->role_offset[OX_ROLE_HEAD] == UINT64_MAX);
    CHECK(model->units[4].role_offset[OX_ROLE_HEAD] != UINT64_MAX);
    CHECK(ox_model_find_tensor(model, "layers.0.mlp.up_proj.weight") >= 0);
    CHECK(ox_model_find_tensor(model, "lm_head.weight") == model->tensor_count - 1);
    CHECK(ox_model_find_tensor(model, "model.layers.3.mlp.up_proj.weight") == -1);
    CHECK(ox_model_find_tensor(model, "model.layers.0.self_attn.q_proj.bias") == -1);
    CHECK(ox_model_find_tensor(model, "model.layers.0.self_attn.rotary_emb.inv_freq") == -2);
    CHECK(ox_model_find_tensor(model, "") == -1);
    ox_model_close(&model);

    REQUIRE_OK(parse(llama_json,
                     ",\"attention_bias\":true,\"mlp_bias\":true,\"tie_word_embeddings\":true,"
                     "\"head_dim\":12",
                     &config));
    REQUIRE_OK(ox_model_build(&config, &model));
    check_layout(model);
    CHECK(model->tensor_count == 1 + 3 * 16 + 1);
    CHECK(model->units[1].role_offset[OX_ROLE_QKV_BIAS] != UINT64_MAX);
    CHECK(ox_model_find_tensor(model, "lm_head.weight") == -2);
    CHECK(model->tensors[2].shape[0] == 72);
    ox_model_close(&model);
    ox_model_close(&model);
}

static void test_gpt2(void) {
    struct ox_model_config config;
    struct ox_model *model = NULL;
    log_warnings = 0;
    REQUIRE_OK(parse(gpt2_json, "", &config));
    CHECK(log_warnings == 0);
    REQUIRE_OK(
        parse(gpt2_json, ",\"attn_pdrop\":0.1,\"embd_pdrop\":0.1,\"resid_pdrop\":0.1,\"n_ctx\":40", &config));
    CHECK(log_warnings == 3);
    REQUIRE_OK(parse(gpt2_json, ",\"frobnicate\":0.1", &config));
    CHECK(log_warnings == 4);
    CHECK(config.width == 128 && config.kv_heads == 4 && config.head_dim == 8 && config.tied && !config.rope);
    CHECK(config.norm == OX_NORM_LAYER && config.act == OX_ACTIVATION_GELU_TANH &&
          config.layout == OX_WEIGHT_IN_OUT);
    CHECK(config.norm_bias && config.attention_bias && config.out_bias && config.mlp_bias &&
          config.bos_id == -1);
    REQUIRE_OK(ox_model_build(&config, &model));
    check_layout(model);
    CHECK(model->unit_count == 4 && model->tensor_count == 2 + 2 * 12 + 2);
    const int64_t qkv = ox_model_find_tensor(model, "h.1.attn.c_attn.weight");
    CHECK(qkv >= 0 && model->tensors[qkv].shape[0] == 32 && model->tensors[qkv].shape[1] == 96);
    CHECK(strcmp(model->tensors[qkv].name, "transformer.h.1.attn.c_attn.weight") == 0);
    CHECK(ox_model_find_tensor(model, "h.1.attn.bias") == -2);
    CHECK(ox_model_find_tensor(model, "transformer.h.0.attn.masked_bias") == -2);
    CHECK(ox_model_find_tensor(model, "h.x.attn.bias") == -1);
    CHECK(ox_model_find_tensor(model, "lm_head.weight") == -2);
    ox_model_close(&model);
    REQUIRE_OK(parse(gpt2_json, ",\"n_inner\":50,\"tie_word_embeddings\":false", &config));
    CHECK(config.width == 50 && !config.tied);
}

static void test_windows(void) {
    static const struct {
        const char *extra;
        uint32_t window, layer;
    } cases[] = {
        {",\"model_type\":\"mistral\"", 4096, 0},
        {",\"model_type\":\"mistral\",\"sliding_window\":null", 0, 0},
        {",\"model_type\":\"mistral\",\"sliding_window\":5", 5, 0},
        {",\"model_type\":\"qwen2\",\"sliding_window\":5,\"max_window_layers\":1", 0, 0},
        {",\"model_type\":\"qwen2\",\"sliding_window\":5,\"max_window_layers\":1,\"use_sliding_window\":true", 5, 1},
        {",\"model_type\":\"qwen2\",\"sliding_window\":5,\"use_sliding_window\":true", 0, 0},
        {",\"model_type\":\"qwen2\",\"sliding_window\":null,\"max_window_layers\":0,\"use_sliding_window\":true", 0,
         0},
        {",\"model_type\":\"qwen3\",\"sliding_window\":5,\"max_window_layers\":3,\"use_sliding_window\":true", 0, 0},
        {",\"model_type\":\"qwen3\",\"sliding_window\":5,\"max_window_layers\":1,\"use_sliding_window\":true,"
         "\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\"]",
         5, 2},
        {",\"model_type\":\"qwen3\",\"sliding_window\":5,\"max_window_layers\":1,\"use_sliding_window\":true,"
         "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\"]",
         5, 0},
        {",\"model_type\":\"qwen3\",\"sliding_window\":5,\"use_sliding_window\":false,"
         "\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\"]",
         0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ox_model_config config, again;
        json_t *json = NULL;
        REQUIRE_OK(parse(decoder_json, cases[i].extra, &config));
        CHECK(config.window == cases[i].window);
        const uint32_t first = cases[i].window == 0 ? config.layers : cases[i].layer;
        CHECK(ox_layers_first(&config.windowed, config.layers) == first);
        REQUIRE_OK(ox_model_config_json(&config, NULL, "float32", &json));
        REQUIRE_OK(ox_model_config_parse("written", json, &again));
        CHECK(config.window == again.window);
        CHECK(memcmp(&config.windowed, &again.windowed, sizeof again.windowed) == 0);
        json_decref(json);
    }
}

static void test_qwen(void) {
    struct ox_model_config config;
    struct ox_model *model = NULL;
    REQUIRE_OK(parse(decoder_json, ",\"model_type\":\"qwen2\"", &config));
    CHECK(config.attention_bias && !config.out_bias && config.head_dim == 8);
    REQUIRE_OK(ox_model_build(&config, &model));
    check_layout(model);
    CHECK(model->tensor_count == 1 + 3 * 12 + 2);
    CHECK(ox_model_find_tensor(model, "model.layers.2.self_attn.v_proj.bias") >= 0);
    CHECK(ox_model_find_tensor(model, "model.layers.2.self_attn.o_proj.bias") == -1);
    ox_model_close(&model);

    REQUIRE_OK(parse(decoder_json, ",\"model_type\":\"qwen3\"", &config));
    CHECK(config.head_dim == 128 && config.kv_heads == 2);
    REQUIRE_OK(parse(decoder_json, ",\"model_type\":\"qwen3\",\"head_dim\":10", &config));
    CHECK(!config.attention_bias && !config.out_bias && config.head_dim == 10);
    REQUIRE_OK(ox_model_build(&config, &model));
    check_layout(model);
    CHECK(model->tensor_count == 1 + 3 * 11 + 2);
    const int64_t norm = ox_model_find_tensor(model, "model.layers.1.self_attn.k_norm.weight");
    CHECK(norm >= 0 && model->tensors[norm].count == 10 && model->tensors[norm].init == OX_INIT_ONE);
    CHECK(model->tensors[norm].offset == model->units[2].role_offset[OX_ROLE_K_NORM]);
    ox_model_close(&model);
}

/* The waves of the eight frequencies are 6, 20, 63, 199 ... of 64 positions: kept, mixed twice, stretched. */
static void test_llama3_rope(void) {
    struct ox_model_config plain, scaled, again;
    char extra[512];
    double before[8], after[8];
    json_t *json = NULL;
    REQUIRE_OK(parse(llama_json, ",\"head_dim\":16", &plain));
    snprintf(extra, sizeof extra, ",\"head_dim\":16,\"rope_scaling\":{%s}", llama3_rope);
    REQUIRE_OK(parse(llama_json, extra, &scaled));
    CHECK(ox_model_rope_inv_freq(&plain, 0, 64, before) == 1.0);
    CHECK(ox_model_rope_inv_freq(&scaled, 0, 64, after) == 1.0);
    for (int i = 0; i < 8; i++) {
        const double waves = 64.0 * before[i] / (2.0 * 3.14159265358979323846);
        const double kept = fmin(1.0, fmax(0.0, (waves - 1.0) / 3.0));
        CHECK((i == 0) == (kept == 1.0) && (i >= 3) == (kept == 0.0));
        CHECK(fabs(after[i] / before[i] - (kept + (1.0 - kept) / 8.0)) < 1e-14);
    }
    REQUIRE_OK(ox_model_config_json(&scaled, NULL, "float32", &json));
    REQUIRE_OK(ox_model_config_parse("written", json, &again));
    CHECK(memcmp(&scaled.rope_scaling, &again.rope_scaling, sizeof again.rope_scaling) == 0);
    json_decref(json);
    snprintf(extra, sizeof extra, ",\"head_dim\":16,\"rope_parameters\":{%s,\"rope_theta\":5e5}", llama3_rope);
    REQUIRE_OK(parse(llama_json, extra, &again));
    CHECK(memcmp(&scaled.rope_scaling, &again.rope_scaling, sizeof again.rope_scaling) == 0 &&
          again.rope_theta == 5e5);
}

static void check_refused(const char *format, const char *extra, const char *named) {
    struct ox_model_config config;
    const bool right = parse(format, extra, &config) == OX_E_CONFIG && strstr(ox_error_text(), named) != NULL &&
                       strstr(ox_error_text(), "config.json") != NULL;
    if (!right) {
        printf("%s: %s\n", extra, ox_error_text());
    }
    CHECK(right);
}

static void test_family_refusals(void) {
    static const struct {
        const char *extra, *named;
    } cases[] = {
        {",\"model_type\":\"mistral\",\"sliding_window\":0", "sliding_window"},
        {",\"model_type\":\"mistral\",\"sliding_window\":\"x\"", "sliding_window"},
        {",\"model_type\":\"mistral\",\"attention_dropout\":0.1", "attention_dropout"},
        {",\"model_type\":\"mistral\",\"attention_bias\":true", "attention_bias"},
        {",\"model_type\":\"mistral\",\"layer_types\":[\"sliding_attention\"]", "layer_types"},
        {",\"model_type\":\"mistral\",\"architectures\":[\"LlamaForCausalLM\"]", "LlamaForCausalLM"},
        {",\"model_type\":\"qwen2\",\"attention_bias\":false", "attention_bias"},
        {",\"model_type\":\"qwen2\",\"attention_dropout\":0.1", "attention_dropout"},
        {",\"model_type\":\"qwen2\",\"use_sliding_window\":1", "use_sliding_window"},
        {",\"model_type\":\"qwen3\",\"hidden_act\":\"relu\"", "relu"},
        {",\"model_type\":\"qwen3\",\"rope_scaling\":{\"rope_type\":\"proportional\",\"factor\":4.0}", "proportional"},
        {",\"model_type\":\"qwen3\",\"layer_types\":[\"full_attention\",\"full_attention\"]", "layer_types"},
        {",\"model_type\":\"qwen3\",\"layer_types\":[\"full_attention\",\"full_attention\",\"chunked_attention\"]",
         "chunked_attention"},
        {",\"model_type\":\"qwen3\",\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\"]",
         "use_sliding_window"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_refused(decoder_json, cases[i].extra, cases[i].named);
    }
}

/* Keys by which other families compute something else: refused by name and value, unless the value changes nothing. */
static void test_changing_keys(void) {
    static const struct {
        const char *key, *changing, *neutral;
    } cases[] = {
        {"embedding_multiplier", "12.0", "1.0"},
        {"residual_multiplier", "0.22", "1.0"},
        {"attention_multiplier", "0.015625", "0.35355339059327373"},
        {"logits_scaling", "8.0", "1.0"},
        {"logit_scale", "0.0625", "1"},
        {"scale_emb", "12", "1"},
        {"scale_depth", "1.4", "null"},
        {"query_pre_attn_scalar", "256", "8"},
        {"attn_logit_softcapping", "50.0", "null"},
        {"final_logit_softcapping", "30.0", "null"},
        {"clip_qkv", "8.0", "null"},
        {"qk_layernorm", "true", "false"},
        {"use_qk_norm", "true", "false"},
        {"use_parallel_residual", "true", "false"},
        {"parallel_attn", "true", "false"},
        {"rope_interleaved", "true", "false"},
        {"no_rope_layers", "[1, 0, 1]", "[1, 1, 1]"},
        {"no_rope_layer_interval", "4", "0"},
        {"partial_rotary_factor", "0.5", "1.0"},
        {"alibi", "true", "false"},
        {"sliding_window_pattern", "6", "null"},
        {"num_local_experts", "8", "0"},
        {"is_causal", "false", "true"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ox_model_config config;
        char extra[128], named[128];
        snprintf(extra, sizeof extra, ",\"%s\":%s", cases[i].key, cases[i].changing);
        snprintf(named, sizeof named, "\"%s\" is %s, which is not supported", cases[i].key, cases[i].changing);
        check_refused(llama_json, extra, strpbrk(cases[i].changing, ".[") != NULL ? cases[i].key : named);
        if (strcmp(cases[i].key, "attention_multiplier") != 0 && strcmp(cases[i].key, "partial_rotary_factor") != 0) {
            check_refused(gpt2_json, extra, cases[i].key);
        }
        snprintf(extra, sizeof extra, ",\"%s\":%s", cases[i].key, cases[i].neutral);
        if (parse(llama_json, extra, &config) != OX_OK) {
            printf("%s: %s\n", extra, ox_error_text());
            test_failure_count++;
        }
    }
    struct ox_model_config config;
    REQUIRE_OK(parse(llama_json, ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\"]",
                     &config));
    CHECK(config.window == 0 && ox_layers_first(&config.windowed, config.layers) == config.layers);
    check_refused(llama_json, ",\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\"]",
                  "layer_types");
}

static void test_rope_refusals(void) {
    static const char *const cases[][2] = {
        {",\"rope_scaling\":{\"type\":\"linear\"}", "factor"},
        {",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}", "factor 0.5"},
        {",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0,\"beta_fast\":3}", "beta_fast"},
        {",\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e4}", "factor"},
        {",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2.0,\"beta_fast\":1,\"beta_slow\":2}", "beta_slow 2"},
        {",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[0]}", "long_factor"},
        {",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[2]}", "pairs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_refused(llama_json, cases[i][0], cases[i][1]);
    }
}

static void test_refusals(void) {
    static const struct {
        bool gpt2;
        const char *extra, *named;
    } cases[] = {
        {false, ",\"attention_dropout\":0.1", "attention_dropout"},
        {false, ",\"hidden_act\":\"gelu\"", "\"gelu\""},
        {false, ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}", "low_freq_factor"},
        {false,
         ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":4.0,"
         "\"high_freq_factor\":1.0,\"original_max_position_embeddings\":64}",
         "high_freq_factor 1"},
        {false, ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"attention_factor\":8.0}", "attention_factor"},
        {false, ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"type\":\"linear\"}", "linear"},
        {false, ",\"rope_scaling\":[1]", "rope_scaling"},
        {false, ",\"layer_types\":[\"full_attention\"]", "layer_types"},
        {false, ",\"use_sliding_window\":true", "use_sliding_window"},
        {true, ",\"use_sliding_window\":true", "use_sliding_window"},
        {false, ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}", "rope_parameters"},
        {false, ",\"rope_theta\":1e4,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5e5}",
         "500000"},
        {false, ",\"pretraining_tp\":2", "pretraining_tp"},
        {false, ",\"quantization_config\":{\"bits\":4}", "quantization_config"},
        {false, ",\"sliding_window\":4096", "sliding_window"},
        {false, ",\"architectures\":[\"LlamaForSequenceClassification\"]", "LlamaForSequenceClassification"},
        {false, ",\"head_dim\":7", "even number"},
        {false, ",\"rope_theta\":0", "rope_theta"},
        {false, ",\"initializer_range\":-1", "initializer_range"},
        {false, ",\"tie_word_embeddings\":1", "tie_word_embeddings"},
        {false, ",\"head_dim\":100000000", "head dimension"},
        {true, ",\"activation_function\":\"relu\"", "relu"},
        {true, ",\"scale_attn_by_inverse_layer_idx\":true", "scale_attn_by_inverse_layer_idx"},
        {true, ",\"reorder_and_upcast_attn\":true", "reorder_and_upcast_attn"},
        {true, ",\"scale_attn_weights\":false", "scale_attn_weights"},
        {true, ",\"add_cross_attention\":true", "add_cross_attention"},
        {true, ",\"layer_norm_epsilon\":0", "epsilon"},
        {true, ",\"bos_token_id\":\"x\"", "bos_token_id"},
    };
    struct ox_model_config config;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_refused(cases[i].gpt2 ? gpt2_json : llama_json, cases[i].extra, cases[i].named);
    }
    static const char *const whole[] = {
        "[]",
        "{}",
        "{\"model_type\":\"bert\"}",
        "{\"model_type\":\"llama\"}",
        "{\"model_type\":\"gpt2\",\"vocab_size\":5000000000,\"n_embd\":32,\"n_layer\":2,\"n_head\":4,\"n_"
        "positions\":40}",
        "{\"model_type\":\"gpt2\",\"vocab_size\":50,\"n_embd\":32,\"n_layer\":0,\"n_head\":4,\"n_positions\":"
        "40}",
        "{\"model_type\":\"gpt2\",\"vocab_size\":50,\"n_embd\":32,\"n_layer\":2,\"n_head\":5,\"n_positions\":"
        "40}",
        "{\"model_type\":\"gpt2\",\"vocab_size\":50,\"n_embd\":32,\"n_layer\":2,\"n_head\":0,\"n_positions\":"
        "40}",
    };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        CHECK(parse("%s", whole[i], &config) == OX_E_CONFIG);
    }
    /* Sizes within each limit whose product is absurd. */
    struct ox_model *model = NULL;
    REQUIRE_OK(parse(llama_json, "", &config));
    config.hidden = 1 << 20;
    config.width = 1 << 22;
    config.layers = 1 << 14;
    CHECK(ox_model_build(&config, &model) == OX_E_CONFIG && model == NULL);
}

static bool same_config(const struct ox_model_config *a, const struct ox_model_config *b) {
    return strcmp(a->family, b->family) == 0 && a->vocab == b->vocab && a->hidden == b->hidden &&
           a->layers == b->layers && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_dim == b->head_dim && a->width == b->width && a->contexts == b->contexts &&
           a->norm_eps == b->norm_eps && a->rope_theta == b->rope_theta && a->tied == b->tied &&
           a->attention_bias == b->attention_bias && a->mlp_bias == b->mlp_bias &&
           a->out_bias == b->out_bias && a->init_range == b->init_range && a->bos_id == b->bos_id &&
           a->eos_id == b->eos_id;
}

static void test_written_config(void) {
    static const struct {
        bool gpt2;
        const char *extra;
    } cases[] = {
        {false, ""},
        {false,
         ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5e5},\"tie_word_embeddings\":true"},
        {false, ",\"rope_theta\":1e6,\"rope_scaling\":null,\"attention_bias\":true,\"head_dim\":10"},
        {true, ",\"layer_norm_epsilon\":1e-6"},
        {true, ",\"n_inner\":50,\"tie_word_embeddings\":false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ox_model_config config, again;
        json_t *json = NULL, *second = NULL;
        REQUIRE_OK(parse(cases[i].gpt2 ? gpt2_json : llama_json, cases[i].extra, &config));
        REQUIRE_OK(ox_model_config_json(&config, NULL, "bfloat16", &json));
        log_warnings = 0;
        REQUIRE_OK(ox_model_config_parse("written", json, &again));
        CHECK(log_warnings == 0);
        CHECK(same_config(&config, &again));
        CHECK(strcmp(json_string_value(json_object_get(json, "torch_dtype")), "bfloat16") == 0);
        CHECK(json_real_value(json_object_get(json, cases[i].gpt2 ? "layer_norm_epsilon" : "rms_norm_eps")) ==
              (i == 3 ? 1e-6 : 1e-5));
        /* Unknown keys and lists of ids are carried over. */
        json_object_set_new(json, "frobnicate", json_integer(5));
        json_object_set_new(json, "eos_token_id", json_pack("[i,i]", 7, 9));
        REQUIRE_OK(ox_model_config_json(&config, json, "float32", &second));
        CHECK(json_integer_value(json_object_get(second, "frobnicate")) == 5);
        CHECK(json_array_size(json_object_get(second, "eos_token_id")) == 2);
        CHECK(strcmp(json_string_value(json_object_get(second, "dtype")), "float32") == 0);
        json_decref(json);
        json_decref(second);
    }
}

/* Every value of a fresh model, whole tensors and parts of them. */
static void test_init_bits(const char *text, uint64_t hash) {
    struct ox_model_config config;
    struct ox_model *model = NULL;
    REQUIRE_OK(parse(text, "", &config));
    REQUIRE_OK(ox_model_build(&config, &model));
    uint64_t sum = 0;
    unsigned wrong = 0;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const struct ox_tensor *const tensor = &model->tensors[t];
        float *const values = calloc(tensor->count, sizeof *values);
        CHECK(values != NULL);
        const uint64_t first = tensor->count / 3;
        ox_model_init_values(model, tensor, 42, 0, first, values);
        ox_model_init_values(model, tensor, 42, first, tensor->count - first, values + first);
        for (uint64_t i = 0; i < tensor->count; i++) {
            const float one = ox_model_init_value(model, tensor, 42, i);
            wrong += memcmp(&one, &values[i], sizeof one) != 0;
        }
        sum = ox_hash64(values, tensor->count * sizeof *values, sum);
        free(values);
    }
    CHECK(wrong == 0);
    CHECK(sum == hash);
    ox_model_close(&model);
}

static void test_init(void) {
    struct ox_model_config config;
    struct ox_model *model = NULL;
    REQUIRE_OK(parse(gpt2_json, "", &config));
    REQUIRE_OK(ox_model_build(&config, &model));
    const struct ox_tensor *const norm = &model->tensors[ox_model_find_tensor(model, "h.0.ln_1.weight")];
    const struct ox_tensor *const bias = &model->tensors[ox_model_find_tensor(model, "h.0.ln_1.bias")];
    const struct ox_tensor *const in = &model->tensors[ox_model_find_tensor(model, "h.0.mlp.c_fc.weight")];
    const struct ox_tensor *const out = &model->tensors[ox_model_find_tensor(model, "h.0.mlp.c_proj.weight")];
    CHECK(ox_model_init_value(model, norm, 1, 3) == 1.0f && ox_model_init_value(model, bias, 1, 3) == 0.0f);
    double in_squares = 0.0, out_squares = 0.0, sum = 0.0;
    for (uint64_t i = 0; i < in->count; i++) {
        const double a = ox_model_init_value(model, in, 1, i), b = ox_model_init_value(model, out, 1, i);
        in_squares += a * a;
        out_squares += b * b;
        sum += a;
    }
    const double deviation = sqrt(in_squares / (double)in->count);
    CHECK(fabs(deviation / 0.02 - 1.0) < 0.05); /* 4096 draws: one standard error is 1.1 % */
    CHECK(fabs(sqrt(out_squares / (double)in->count) / 0.01 - 1.0) < 0.05); /* 0.02 / sqrt(2 * 2 layers) */
    CHECK(fabs(sum / (double)in->count) < 5 * 0.02 / 64);
    CHECK(ox_model_init_value(model, in, 1, 5) == ox_model_init_value(model, in, 1, 5));
    CHECK(ox_model_init_value(model, in, 1, 5) != ox_model_init_value(model, in, 2, 5));
    ox_model_close(&model);

    test_init_bits(gpt2_json, UINT64_C(0x806615553cf56faf));
    test_init_bits(llama_json, UINT64_C(0x85b21d8ada6d536f));

    double inv_freq[4];
    REQUIRE_OK(parse(llama_json, "", &config));
    ox_model_rope_inv_freq(&config, 0, 64, inv_freq);
    CHECK(inv_freq[0] == 1.0 && fabs(inv_freq[1] - 0.1) < 1e-15 && fabs(inv_freq[3] - 0.001) < 1e-17);
}

static void test_real(void) {
    char path[OX_PATH_BYTES];
    json_t *json = NULL;
    struct ox_model_config config;
    struct ox_model *model = NULL;
    if (test_data_folder() == NULL) {
        return;
    }
    REQUIRE_OK(ox_path_join(test_data_folder(), "models/stories260K/config.json", path));
    REQUIRE_OK(ox_json_load(path, 1 << 20, &json));
    REQUIRE_OK(ox_model_config_parse(path, json, &config));
    REQUIRE_OK(ox_model_build(&config, &model));
    CHECK(model->param_count == 260032);
    check_layout(model);
    ox_model_close(&model);
    json_decref(json);
}

int main(void) {
    log_count_warnings(NULL);
    test_llama();
    test_gpt2();
    test_windows();
    test_qwen();
    test_llama3_rope();
    test_family_refusals();
    test_rope_refusals();
    test_refusals();
    test_changing_keys();
    test_written_config();
    test_init();
    test_real();
    return test_end();
}
