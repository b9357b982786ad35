/* Mixtures of experts: what config.json may say of them, and folders in both layouts of their tensors. */
#include "base/file.h"
#include "base/json.h"
#include "engine/hf/hf.h"
#include "tests/kit/files.h"
#include "tests/kit/log.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- config.json ---- */

static json_t *config_of(const char *name) {
    json_t *json = NULL;
    char path[OX_PATH_BYTES];
    snprintf(path, sizeof path, "tests/golden/%s/config.json", name);
    REQUIRE_OK(ox_json_load(path, 1 << 20, &json));
    return json;
}

/* The configuration of a golden case with a key set to `value`, a JSON text; "": without the key. */
static enum ox_status parse_with(const char *name, const char *key, const char *value, struct ox_model_config *out) {
    json_t *const json = config_of(name);
    json_t *const set = value[0] != '\0' ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    CHECK(set != NULL ? json_object_set_new(json, key, set) == 0 : json_object_del(json, key) == 0);
    const enum ox_status status = ox_model_config_parse("config.json", json, out);
    json_decref(json);
    return status;
}

/* Cases whose config.json is refused with a key set to a value. */
static const struct {
    const char *name, *key, *value, *words;
} refusals[] = {
    {"mixtral", "router_jitter_noise", "0.1", "\"router_jitter_noise\" is 0.1"},
    {"mixtral", "router_aux_loss_coef", "-0.1", "\"router_aux_loss_coef\" is -0.1"},
    {"mixtral", "num_experts_per_tok", "6", "of 5 it can have 1 to 5"},
    {"mixtral", "num_experts_per_tok", "0", "1 to 5"},
    {"mixtral", "num_experts", "8", "\"num_local_experts\" is 5, but \"num_experts\" is 8"},
    {"mixtral", "num_local_experts", "0", "have experts"},
    {"mixtral", "num_local_experts", "5000", "number of experts is 5000"},
    {"mixtral", "quantization_config", "{\"quant_method\":\"mxfp4\"}", "quantization_config"},
    {"mixtral", "n_shared_experts", "1", "n_shared_experts"},
    {"mixtral", "clip_qkv", "1.5", "clip_qkv"},
    {"qwen2_moe_windows", "layer_types", "", "without \"layer_types\""},
    {"qwen3_moe", "layer_types", "[\"sliding_attention\",\"full_attention\",\"full_attention\"]",
     "there is no window"},
    {"granitemoe", "num_local_experts", "1", "of 1 it can have 1 to 1"},
    {"granitemoe", "router_jitter_noise", "0.2", "\"router_jitter_noise\" is 0.2"},
    {"qwen3_moe", "decoder_sparse_step", "0", "decoder_sparse_step"},
    {"qwen3_moe", "mlp_only_layers", "[3]", "0 to 2"},
    {"qwen3_moe", "mlp_only_layers", "1", "mlp_only_layers"},
    {"qwen3_moe", "moe_intermediate_size", "0", "width of an expert is 0"},
    {"qwen3_moe", "output_router_logits", "1", "output_router_logits"},
    {"qwen2_moe", "shared_expert_intermediate_size", "0", "shared expert"},
    {"qwen2_moe", "norm_topk_prob", "1", "norm_topk_prob"},
    {"olmoe", "clip_qkv", "-1", "clip_qkv"},
    {"llama_bias", "num_local_experts", "8", "num_local_experts"},
    {"glm4_moe", "model_type", "\"kimi_k2\"", "is a deepseek_v3 whose folders bring code"},
    {"glm4_moe", "model_type", "\"glm4_moe_lite\"", "(mlp_layer_types) is not read; supported are"},
    {"qwen3_moe", "input_jitter_noise", "0.01", "\"input_jitter_noise\" is 0.01"},
    {"qwen3_moe", "scoring_func", "\"sigmoid\"", "\"scoring_func\" is \"sigmoid\""},
    {"olmoe", "topk_method", "\"noaux_tc\"", "\"topk_method\" is \"noaux_tc\""},
    {"mixtral", "n_group", "4", "\"n_group\" is 4"},
    {"mixtral", "topk_group", "2", "\"topk_group\" is 2"},
    {"gpt_oss", "routed_scaling_factor", "2.5", "\"routed_scaling_factor\" is 2.5"},
    {"granitemoe", "first_k_dense_replace", "1", "\"first_k_dense_replace\" is 1"},
    {"olmoe", "shared_expert_intermediate_size", "64", "\"shared_expert_intermediate_size\" is 64"},
    {"deepseek_v3", "kv_lora_rank", "0", "one of \"kv_lora_rank\""},
    {"deepseek_v3", "num_key_value_heads", "1", "\"num_key_value_heads\" is 1"},
    {"deepseek_v3", "q_lora_rank", "null", "without a \"q_lora_rank\""},
    {"deepseek_v3", "qk_head_dim", "24", "\"qk_head_dim\" is 24, but"},
    {"deepseek_v3", "v_head_dim", "70000", "70000 elements"},
    {"deepseek_v3", "moe_layer_freq", "2", "\"moe_layer_freq\" is 2"},
    {"deepseek_v3", "topk_method", "\"greedy\"", "\"topk_method\" is \"greedy\""},
    {"deepseek_v3", "quantization_config", "{\"quant_method\":\"fp8\"}", "quantization_config"},
    {"deepseek_v2", "topk_method", "\"noaux_tc\"", "\"topk_method\" is \"noaux_tc\""},
    {"deepseek_v2", "norm_topk_prob", "true", "\"norm_topk_prob\" is true"},
    {"deepseek_v2", "num_experts_per_tok", "", "a token has 0 experts"},
    {"mixtral", "model_type", "\"phimoe\"", "draws experts at random in training; supported"},
    {"glm4_moe", "n_group", "3", "of 3 groups (\"n_group\"); groups are equal"},
    {"glm4_moe", "n_group", "8", "at least 2 experts each"},
    {"glm4_moe", "topk_group", "5", "out of 5 (\"topk_group\") of 4 groups"},
    {"glm4_moe", "topk_group", "0", "out of 0"},
    {"glm4_moe", "topk_group", "1", "those that are kept must have enough"},
    {"glm4_moe", "n_group", "0", "\"n_group\" is 0"},
    {"glm4_moe", "num_experts_per_tok", "9", "a token gets 9 of 8 experts"},
    {"glm4_moe", "n_shared_experts", "0", "\"n_shared_experts\" is 0"},
    {"glm4_moe", "routed_scaling_factor", "0.0", "\"routed_scaling_factor\" is 0"},
    {"glm4_moe", "num_local_experts", "4", "\"n_routed_experts\" is 8, but \"num_local_experts\" is 4"},
    {"glm4_moe", "scoring_func", "\"softmax\"", "\"scoring_func\" is \"softmax\""},
    {"glm4_moe", "topk_method", "\"greedy\"", "\"topk_method\" is \"greedy\""},
    {"gpt_oss", "swiglu_limit", "6.0", "\"swiglu_limit\" is 6.0"},
    {"gpt_oss", "num_experts_per_tok", "7", "of 6 it can have 1 to 6"},
    {"gpt_oss", "num_experts", "8", "\"num_local_experts\" is 6, but \"num_experts\" is 8"},
    {"gpt_oss", "sliding_window", "null", "\"sliding_window\" is missing or 0"},
    {"gpt_oss", "quantization_config", "{\"quant_method\":\"gptq\"}", "\"mxfp4\" alone is read"},
    {"gpt_oss", "quantization_config", "{}", "\"mxfp4\" alone is read"},
};

static void test_refusals(void) {
    struct ox_model_config config;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const enum ox_status status = parse_with(refusals[i].name, refusals[i].key, refusals[i].value, &config);
        const bool right = status == OX_E_CONFIG && strstr(ox_error_text(), refusals[i].words) != NULL;
        if (!right) {
            printf("%s, %s %s: %s\n", refusals[i].name, refusals[i].key, refusals[i].value, ox_error_text());
        }
        CHECK(right);
    }
}

/* What is missing means what transformers takes for it. */
static void test_missing(void) {
    struct ox_model_config config;
    REQUIRE_OK(parse_with("mixtral", "num_local_experts", "", &config));
    CHECK(config.mixture.router.experts == 8 && config.mixture.router.renormalise);
    CHECK(config.mixture.balance == 0.001 && !config.mixture.asks_balance);
    REQUIRE_OK(parse_with("olmoe", "router_aux_loss_coef", "", &config));
    CHECK(config.mixture.balance == 0.01);
    REQUIRE_OK(parse_with("olmoe", "output_router_logits", "true", &config));
    CHECK(config.mixture.asks_balance);
    REQUIRE_OK(parse_with("mixtral", "sliding_window", "", &config));
    CHECK(config.window == 0);
    REQUIRE_OK(parse_with("qwen3_moe", "norm_topk_prob", "", &config));
    CHECK(!config.mixture.router.renormalise);
    REQUIRE_OK(parse_with("qwen3_moe", "mlp_only_layers", "null", &config));
    CHECK(ox_layers_first(&config.mixture.dense, 3) == 3);
    REQUIRE_OK(parse_with("qwen2_moe", "qkv_bias", "", &config));
    CHECK(config.attention_bias && !config.out_bias);
    CHECK(ox_layer_is_sparse(&config, 1) && !ox_layer_is_sparse(&config, 2));
    REQUIRE_OK(parse_with("olmoe", "clip_qkv", "null", &config));
    CHECK(config.clip_qkv == 0.0);
    REQUIRE_OK(parse_with("qwen3_moe", "use_sliding_window", "true", &config));
    CHECK(config.window == 0); /* its "sliding_window" is null */
    REQUIRE_OK(parse_with("qwen2_moe_windows", "use_sliding_window", "true", &config));
    CHECK(config.window == 5 && ox_layers_has(&config.windowed, 0) && !ox_layers_has(&config.windowed, 1));
    REQUIRE_OK(parse_with("granitemoe", "num_local_experts", "", &config));
    CHECK(config.mixture.router.experts == 8 && config.mixture.router.scores == OX_SCORES_SOFTMAX_CHOSEN);
    REQUIRE_OK(parse_with("deepseek_v3_packed", "q_lora_rank", "", &config));
    CHECK(config.latent.q_rank == 1536 && config.head_dim == 24 && config.rotary_dim == 8);
    REQUIRE_OK(parse_with("deepseek_v3", "rope_interleave", "", &config));
    CHECK(config.rope_neighbours && config.head_dim == 20);
    REQUIRE_OK(parse_with("deepseek_v2", "topk_method", "", &config));
    CHECK(config.mixture.router.groups == 1 && config.mixture.shared_width == 24);
    REQUIRE_OK(parse_with("glm4_moe", "first_k_dense_replace", "", &config));
    CHECK(!ox_layer_is_sparse(&config, 0) && ox_layer_is_sparse(&config, 1) && ox_layer_is_sparse(&config, 2));
    REQUIRE_OK(parse_with("glm4_moe", "norm_topk_prob", "", &config));
    CHECK(config.mixture.router.renormalise && config.mixture.router.scale == 1.5f && config.rotary_dim == 6);
    REQUIRE_OK(parse_with("gpt_oss", "layer_types", "", &config));
    CHECK(ox_layers_has(&config.windowed, 0) && !ox_layers_has(&config.windowed, 1) && config.window == 5);
    REQUIRE_OK(parse_with("gpt_oss", "sliding_window", "", &config));
    CHECK(config.window == 128);
    REQUIRE_OK(parse_with("gpt_oss", "rope_parameters", "", &config));
    CHECK(config.rope_scaling.kind == OX_ROPE_YARN && config.rope_scaling.factor == 32.0 &&
          config.rope_scaling.original == 4096 && !config.rope_scaling.truncate && config.rope_theta == 150000.0);
    REQUIRE_OK(parse_with("gpt_oss", "quantization_config", "{\"quant_method\":\"mxfp4\"}", &config));
}

/* A written file is read as the same model, also under the other name of the number of experts. */
static void test_written(void) {
    static const struct {
        const char *name, *count, *other; /* how a file has the number of experts */
    } cases[] = {{"mixtral", "num_local_experts", "num_experts"}, {"qwen3_moe", "num_experts", "num_local_experts"},
                 {"qwen2_moe", "num_experts", "num_local_experts"}, {"olmoe", "num_experts", "num_local_experts"},
                 {"gpt_oss", "num_local_experts", "num_experts"}, {"gpt_oss_mxfp4", "num_local_experts", "num_experts"},
                 {"glm4_moe", "n_routed_experts", "num_local_experts"},
                 {"glm4_moe_packed", "n_routed_experts", "num_local_experts"},
                 {"granitemoe", "num_local_experts", "num_experts"},
                 {"qwen2_moe_windows", "num_experts", "num_local_experts"},
                 {"deepseek_v3", "n_routed_experts", "num_local_experts"},
                 {"deepseek_v3_packed", "n_routed_experts", "num_local_experts"},
                 {"deepseek_v2", "n_routed_experts", "num_local_experts"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct ox_model_config config, again;
        json_t *const json = config_of(cases[i].name);
        json_t *fresh = NULL, *kept = NULL;
        REQUIRE_OK(ox_model_config_parse(cases[i].name, json, &config));
        REQUIRE_OK(ox_model_config_json(&config, NULL, "float32", &fresh));
        log_count_warnings(NULL);
        log_warnings = 0;
        REQUIRE_OK(ox_model_config_parse("written", fresh, &again));
        CHECK(log_warnings == 0 && memcmp(&config.mixture, &again.mixture, sizeof config.mixture) == 0);
        CHECK(config.clip_qkv == again.clip_qkv && config.width == again.width && config.qk_norm == again.qk_norm);
        CHECK(config.rotary_dim == again.rotary_dim && config.attention_scale == again.attention_scale);
        CHECK(config.window == again.window && config.head_dim == again.head_dim);
        CHECK(memcmp(&config.latent, &again.latent, sizeof config.latent) == 0);
        CHECK(json_object_get(fresh, cases[i].other) == NULL);
        json_t *const count = json_incref(json_object_get(fresh, cases[i].count));
        CHECK(json_object_del(fresh, cases[i].count) == 0 && json_object_set_new(fresh, cases[i].other, count) == 0);
        REQUIRE_OK(ox_model_config_parse("renamed", fresh, &again));
        CHECK(memcmp(&config.mixture, &again.mixture, sizeof config.mixture) == 0);
        REQUIRE_OK(ox_model_config_json(&config, fresh, "float32", &kept));
        CHECK(json_object_get(kept, cases[i].other) != NULL && json_object_get(kept, cases[i].count) == NULL);
        json_decref(kept);
        REQUIRE_OK(ox_model_config_json(&config, json, "bfloat16", &kept));
        CHECK(json_object_get(kept, "quantization_config") == NULL);
        json_decref(kept);
        json_decref(fresh);
        json_decref(json);
    }
}

/* ---- folders ---- */

/* What a copy of a model's file has otherwise. */
struct change {
    const char *left_out, *renamed, *name; /* a tensor; a tensor with another name */
    const char *added;                     /* a tensor beside it, of three elements */
    const char *turned;                    /* a tensor whose shape is turned around */
};

static void copy_changed(const char *from, const char *to, struct change change) {
    struct ox_st_file *file = NULL;
    struct ox_st_writer *writer = NULL;
    static struct ox_st_spec specs[256];
    uint32_t idx[256], count = 0;
    char path[OX_PATH_BYTES];
    snprintf(path, sizeof path, "tests/golden/%s/model.safetensors", from);
    REQUIRE_OK(ox_st_open(path, &file));
    for (uint32_t i = 0; i < ox_st_count(file); i++) {
        const struct ox_st_entry *const entry = ox_st_entry(file, i);
        if (change.left_out == NULL || strcmp(entry->name, change.left_out) != 0) {
            const bool renamed = change.renamed != NULL && strcmp(entry->name, change.renamed) == 0;
            specs[count] = (struct ox_st_spec){.name = renamed ? change.name : entry->name, .dtype = entry->dtype,
                                               .rank = entry->rank};
            memcpy(specs[count].shape, entry->shape, sizeof entry->shape);
            if (change.turned != NULL && strcmp(entry->name, change.turned) == 0) {
                specs[count].shape[entry->rank - 1] = entry->shape[entry->rank - 2];
                specs[count].shape[entry->rank - 2] = entry->shape[entry->rank - 1];
            }
            idx[count++] = i;
        }
    }
    const uint32_t stored = count;
    if (change.added != NULL) {
        specs[count++] = (struct ox_st_spec){.name = change.added, .dtype = OX_DTYPE_F32, .rank = 1, .shape = {3}};
    }
    REQUIRE_OK(ox_st_create(test_pathf("%s/model.safetensors", to), specs, count, &writer));
    for (uint32_t i = 0; i < count; i++) {
        const struct ox_st_entry *const entry = i < stored ? ox_st_entry(file, idx[i]) : NULL;
        const uint64_t elems = entry != NULL ? entry->count : 3;
        float *const values = calloc(elems, sizeof *values);
        CHECK(values != NULL);
        if (entry != NULL) {
            REQUIRE_OK(ox_st_read_f32(file, entry, 0, elems, values));
        }
        REQUIRE_OK(ox_st_write(writer, i, 0, values, elems * sizeof *values));
        free(values);
    }
    REQUIRE_OK(ox_st_finish(&writer));
    ox_st_close(&file);
    json_t *const json = config_of(from);
    REQUIRE_OK(ox_hf_write_json(test_path(to), "config.json", json));
    json_decref(json);
}

static void test_bad_folders(void) {
    static const struct {
        const char *from;
        struct change change;
        const char *words;
    } cases[] = {
        {"mixtral", {.left_out = "model.layers.1.block_sparse_moe.experts.3.w2.weight"},
         "tensor \"model.layers.1.block_sparse_moe.experts.3.w2.weight\" is missing (1 in all)"},
        {"mixtral", {.added = "model.layers.0.block_sparse_moe.experts.5.w1.weight"}, "experts.5.w1.weight"},
        {"mixtral", {.added = "model.layers.0.mlp.experts.gate_up_proj"}, "one layout or the other"},
        {"mixtral_packed", {.added = "model.layers.0.block_sparse_moe.experts.0.w1.weight"}, "one layout or the other"},
        {"qwen3_moe", {.renamed = "model.layers.0.mlp.experts.0.gate_proj.weight",
                       .name = "model.layers.0.mlp.switch_mlp.gate_proj.weight"},
         "whose experts have tensors such as \"model.layers.0.mlp.experts.0.gate_proj.weight\" [16, 40]"},
        {"mixtral_packed", {.left_out = "model.layers.1.mlp.experts.down_proj"}, "is missing (1 in all)"},
        {"glm4_moe", {.left_out = "model.layers.1.mlp.gate.e_score_correction_bias"},
         "e_score_correction_bias\" is missing (1 in all)"},
        {"deepseek_v3", {.left_out = "model.layers.1.self_attn.kv_b_proj.weight"}, "kv_b_proj.weight\" is missing (1"},
        {"glm4_moe", {.left_out = "model.layers.2.mlp.shared_experts.up_proj.weight"}, "is missing (1 in all)"},
        {"glm4_moe", {.renamed = "model.layers.2.mlp.shared_experts.up_proj.weight",
                      .name = "model.layers.2.mlp.shared_expert.up_proj.weight"}, "does not belong to the glm4_moe"},
        {"glm4_moe", {.added = "model.layers.2.mlp.experts.gate_up_proj"}, "one layout or the other"},
        {"mixtral_packed", {.turned = "model.layers.0.mlp.experts.gate_up_proj"},
         "has the shape [4, 32, 40], but config.json expects [4, 40, 32]; it is transposed: save it"},
        {"gpt_oss", {.turned = "model.layers.0.mlp.experts.gate_up_proj"},
         "has the shape [6, 64, 32], but config.json expects [6, 32, 64]; it is transposed"},
        {"gpt_oss", {.left_out = "model.layers.2.mlp.router.bias"}, "router.bias\" is missing (1 in all)"},
        {"gpt_oss", {.left_out = "model.layers.0.self_attn.sinks"}, "sinks\" is missing (1 in all)"},
        {"gpt_oss", {.renamed = "model.layers.1.mlp.experts.down_proj",
                     .name = "model.layers.1.mlp.experts.down_proj_blocks"}, "is not the U8 [6, 32, 1, 16]"},
        {"gpt_oss", {.renamed = "model.layers.1.mlp.experts.gate_up_proj",
                     .name = "model.layers.1.mlp.experts.gate_proj.weight"},
         "whose experts have tensors such as \"model.layers.0.mlp.experts.gate_up_proj\" [6, 32, 64]"},
        {"mixtral", {.renamed = "model.layers.0.block_sparse_moe.experts.0.w1.weight",
                     .name = "model.layers.0.block_sparse_moe.experts.0.w1_blocks"}, "does not belong to the mixtral"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ox_hf_folder *folder = NULL;
        char name[32];
        snprintf(name, sizeof name, "bad-%zu", i);
        REQUIRE_OK(ox_folder_make(test_path(name)));
        copy_changed(cases[i].from, name, cases[i].change);
        const enum ox_status status = ox_hf_open(test_path(name), true, &folder);
        const bool right = status == OX_E_CONFIG && strstr(ox_error_text(), cases[i].words) != NULL;
        if (!right) {
            printf("%s %zu: %s\n", cases[i].from, i, ox_error_text());
        }
        CHECK(right);
    }
}

/* Both files have the same tensors, with the same bytes. */
static void check_same_file(const char *first, const char *second) {
    struct ox_st_file *files[2] = {NULL, NULL};
    REQUIRE_OK(ox_st_open(first, &files[0]));
    REQUIRE_OK(ox_st_open(second, &files[1]));
    CHECK(ox_st_count(files[0]) == ox_st_count(files[1]));
    for (uint32_t i = 0; i < ox_st_count(files[0]); i++) {
        const struct ox_st_entry *const entry = ox_st_entry(files[0], i);
        const struct ox_st_entry *const other = ox_st_find(files[1], entry->name);
        const bool alike = other != NULL && other->dtype == entry->dtype && other->rank == entry->rank &&
                           memcmp(other->shape, entry->shape, sizeof entry->shape) == 0;
        if (!alike) {
            printf("%s: %s is missing, or has another shape or type\n", second, entry->name);
        }
        CHECK(alike);
        if (!alike) {
            continue;
        }
        float *const values = calloc(2 * entry->count, sizeof *values), *const others = values + entry->count;
        CHECK(values != NULL);
        REQUIRE_OK(ox_st_read_f32(files[0], entry, 0, entry->count, values));
        REQUIRE_OK(ox_st_read_f32(files[1], other, 0, entry->count, others));
        CHECK(memcmp(values, others, entry->count * sizeof *values) == 0);
        free(values);
    }
    ox_st_close(&files[1]);
    ox_st_close(&files[0]);
}

/* A folder is written with the layout that was read, and its tensors are the bytes that were there. The layout is known
 * without reading weights. */
static void test_layouts(void) {
    static const char *const names[] = {"mixtral", "qwen3_moe", "qwen2_moe", "olmoe", "gpt_oss", "glm4_moe",
                                        "deepseek_v3", "deepseek_v2", "granitemoe", "mixtral_packed",
                                        "glm4_moe_packed", "deepseek_v3_packed", "gpt_oss_mxfp4"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct ox_hf_folder *folder = NULL, *again = NULL;
        struct ox_hf_writer *writer = NULL;
        char path[OX_PATH_BYTES];
        snprintf(path, sizeof path, "tests/golden/%s", names[i]);
        REQUIRE_OK(ox_hf_open(path, false, &folder));
        CHECK(!ox_hf_has_weights(folder));
        const bool packed = i >= 9 && i <= 11;
        CHECK(ox_hf_model(folder)->config.mixture.packed == packed);
        ox_hf_close(&folder);
        REQUIRE_OK(ox_hf_open(path, true, &folder));
        const struct ox_model *const model = ox_hf_model(folder);
        REQUIRE_OK(ox_folder_make(test_path(names[i])));
        REQUIRE_OK(ox_hf_create(test_path(names[i]), model, ox_hf_config(folder), OX_DTYPE_F32, UINT64_MAX, &writer));
        for (uint32_t t = 0; t < model->tensor_count; t++) {
            float *const values = malloc(model->tensors[t].count * sizeof *values);
            CHECK(values != NULL);
            REQUIRE_OK(ox_hf_read(folder, t, 0, model->tensors[t].count, values));
            if (model->tensors[t].limbs) {
                ox_hf_join_limbs(values, model->tensors[t].count, values);
            }
            REQUIRE_OK(ox_hf_write(writer, t, 0, model->tensors[t].count, values));
            free(values);
        }
        REQUIRE_OK(ox_hf_finish(&writer));
        REQUIRE_OK(ox_hf_open(test_path(names[i]), true, &again));
        CHECK(ox_hf_model(again)->config.mixture.packed == packed);
        CHECK(ox_hf_model(again)->tensor_count == model->tensor_count);
        if (i < 12) { /* MXFP4 is saved as what it stands for */
            snprintf(path, sizeof path, "tests/golden/%s/model.safetensors", names[i]);
            check_same_file(path, test_pathf("%s/model.safetensors", names[i]));
        }
        ox_hf_close(&again);
        ox_hf_close(&folder);
    }
}

/* Where element `idx` of a tensor lies in its unit. */
static uint64_t place_of(const struct ox_model *model, const json_t *name, const json_t *idx) {
    const int64_t tensor = ox_model_find_tensor(model, json_string_value(name));
    CHECK(tensor >= 0);
    return tensor < 0 ? UINT64_MAX : model->tensors[tensor].offset + (uint64_t)json_integer_value(idx);
}

/* The model's tensors are those of `layout`, an object of shapes by name. */
static void check_tensors(const char *name, const struct ox_model *model, const json_t *layout) {
    CHECK(model->tensor_count == json_object_size(layout));
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const struct ox_tensor *const tensor = &model->tensors[t];
        const json_t *const shape = json_object_get(layout, tensor->name);
        bool alike = json_array_size(shape) == tensor->rank - tensor->limbs;
        for (uint32_t d = 0; d < tensor->rank - tensor->limbs && alike; d++) {
            alike = (uint64_t)json_integer_value(json_array_get(shape, d)) == tensor->shape[d];
        }
        if (!alike) {
            printf("%s: %s is not as transformers saves it\n", name, tensor->name);
        }
        CHECK(alike);
    }
}

/* Names and shapes of both layouts are those that transformers saves, and elements that it moves from one to the other
 * have one place in memory (layouts.json, made by make/golden_layouts.py). */
static void test_as_saved(void) {
    json_t *json = NULL;
    REQUIRE_OK(ox_json_load("tests/golden/layouts.json", 1 << 20, &json));
    const json_t *const cases = json_object_get(json, "cases");
    CHECK(json_array_size(cases) == 9);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *const one = json_array_get(cases, i), *const layouts = json_object_get(one, "layouts");
        const char *const name = json_string_value(json_object_get(one, "name"));
        const json_t *const places = json_object_get(one, "places");
        struct ox_model *models[2] = {NULL, NULL};
        struct ox_model_config config;
        REQUIRE_OK(parse_with(name, "use_cache", "true", &config));
        for (size_t of = 0; of < json_array_size(layouts); of++) {
            config.mixture.packed = of == 1;
            REQUIRE_OK(ox_model_build(&config, &models[of]));
            check_tensors(name, models[of], json_array_get(layouts, of));
        }
        CHECK(json_array_size(places) == (models[1] != NULL ? 6 : 0));
        for (size_t p = 0; p < json_array_size(places); p++) {
            const json_t *const place = json_array_get(places, p);
            CHECK(place_of(models[1], json_array_get(place, 0), json_array_get(place, 1)) ==
                  place_of(models[0], json_array_get(place, 2), json_array_get(place, 3)));
        }
        ox_model_close(&models[1]);
        ox_model_close(&models[0]);
    }
    json_decref(json);
}

/* ---- MXFP4 ---- */

/* A copy of the folder in MXFP4 whose file has `old` replaced by `new`, which is as long, once. */
static const char *edited_mxfp4(const char *name, const char *old, const char *new) {
    static const char from[] = "tests/golden/gpt_oss_mxfp4/model.safetensors";
    char *bytes = NULL;
    size_t size = 0;
    REQUIRE_OK(ox_folder_make(test_path(name)));
    REQUIRE_OK(ox_file_read(from, 1 << 20, &bytes, &size));
    char *const at = memmem(bytes, size, old, strlen(old));
    CHECK(at != NULL && strlen(old) == strlen(new));
    memcpy(at, new, strlen(new));
    REQUIRE_OK(ox_file_replace(test_pathf("%s/model.safetensors", name), bytes, size));
    free(bytes);
    json_t *const json = config_of("gpt_oss_mxfp4");
    REQUIRE_OK(ox_hf_write_json(test_path(name), "config.json", json));
    json_decref(json);
    return test_path(name);
}

static void test_bad_mxfp4(void) {
    static const struct {
        const char *old, *new, *words;
    } cases[] = {
        {"0.mlp.experts.down_proj_scales", "0.mlp.experts.down_proj_scalez", "does not belong to the gpt_oss"},
        {"0.mlp.experts.down_proj_scales", "0.self_attn.sinks_______scales", "does not belong to the gpt_oss"},
        {"1.mlp.experts.down_proj_blocks", "0.mlp.experts.down_proj_blocks", "duplicate"},
        {"1.mlp.experts.gate_up_proj_scales\":", "1.self_attn.rotary_emb.inv_freq\"  :",
         "model.layers.1.mlp.experts.gate_up_proj_scales\" is missing (1 in all)"},
        {"\"U8\"", "\"I8\"", "is not the U8"},
        {"[4,32,1]", "[4,1,32]", "is not the U8 [4, 32, 1] that MXFP4 has for a matrix of 32 inputs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ox_hf_folder *folder = NULL;
        char name[32];
        snprintf(name, sizeof name, "mxfp4-%zu", i);
        const enum ox_status status = ox_hf_open(edited_mxfp4(name, cases[i].old, cases[i].new), true, &folder);
        const bool right = status != OX_OK && strstr(ox_error_text(), cases[i].words) != NULL;
        if (!right) {
            printf("mxfp4 %zu: %s\n", i, ox_error_text());
        }
        CHECK(right);
    }
}

/* Pieces of any length, in any order, are those of the whole; one word says what is saved; a scale that is no number is
 * found when it is read. */
static void test_mxfp4(void) {
    struct ox_hf_folder *folder = NULL;
    log_count_warnings("are MXFP4");
    log_warnings = 0;
    REQUIRE_OK(ox_hf_open("tests/golden/gpt_oss_mxfp4", true, &folder));
    const struct ox_model *const model = ox_hf_model(folder);
    const int64_t idx = ox_model_find_tensor(model, "model.layers.1.mlp.experts.gate_up_proj");
    CHECK(idx >= 0 && ox_hf_dtype(folder, (uint32_t)idx) == OX_DTYPE_BF16);
    const uint64_t count = model->tensors[idx].count;
    float *const whole = malloc(2 * count * sizeof *whole), *const parts = whole + count;
    CHECK(whole != NULL);
    REQUIRE_OK(ox_hf_read(folder, (uint32_t)idx, 0, count, whole));
    for (uint64_t end = count, piece = 1; end > 0; end -= piece) {
        piece = (piece * 7 + 13) % 3001 % end + 1;
        REQUIRE_OK(ox_hf_read(folder, (uint32_t)idx, end - piece, piece, parts + end - piece));
    }
    CHECK(memcmp(whole, parts, count * sizeof *whole) == 0 && log_warnings == 1);
    free(whole);
    ox_hf_close(&folder);
    struct ox_st_file *file = NULL;
    REQUIRE_OK(ox_st_open("tests/golden/gpt_oss_mxfp4/model.safetensors", &file));
    uint64_t at = 0;
    for (uint32_t i = 0; i < ox_st_count(file); i++) {
        const struct ox_st_entry *const entry = ox_st_entry(file, i);
        at = strcmp(entry->name, "model.layers.1.mlp.experts.gate_up_proj_scales") == 0 ? entry->offset + 200 : at;
    }
    ox_st_close(&file);
    char *bytes = NULL;
    size_t size = 0;
    REQUIRE_OK(ox_file_read("tests/golden/gpt_oss_mxfp4/model.safetensors", 1 << 20, &bytes, &size));
    bytes[at] = (char)255;
    edited_mxfp4("scale", "pt", "pt");
    REQUIRE_OK(ox_file_replace(test_path("scale/model.safetensors"), bytes, size));
    free(bytes);
    REQUIRE_OK(ox_hf_open(test_path("scale"), true, &folder));
    float value;
    CHECK(ox_hf_read(folder, (uint32_t)idx, 0, 1, &value) == OX_OK);
    CHECK(ox_hf_read(folder, (uint32_t)idx, count - 1, 1, &value) == OX_E_CORRUPT);
    CHECK(strstr(ox_error_text(), "in expert 3") != NULL);
    ox_hf_close(&folder);
}

/* ---- the bias of the choice ---- */

/* A config.json alone says nothing of the layout; a folder with weights does. */
static void test_taken(void) {
    static const char all[] = "model.layers.0.mlp.experts.gate_up_proj";
    struct ox_hf_folder *folder = NULL;
    REQUIRE_OK(ox_hf_open("tests/golden/mixtral_packed/config.json", false, &folder));
    CHECK(ox_model_find_tensor(ox_hf_model(folder), all) < 0);
    REQUIRE_OK(ox_hf_take_layout(folder, "tests/golden/mixtral_packed"));
    CHECK(ox_model_find_tensor(ox_hf_model(folder), all) >= 0);
    ox_hf_close(&folder);
}

/* It has the bits of the file in every type of weights, from its limbs and back, whatever else is rounded; layers
 * behind the last are left out with a word. */
static void test_choice_bias(void) {
    struct ox_hf_folder *folder = NULL, *again = NULL;
    struct ox_hf_writer *writer = NULL;
    REQUIRE_OK(ox_folder_make(test_path("beyond")));
    copy_changed("glm4_moe", "beyond", (struct change){.added = "model.layers.3.eh_proj.weight"});
    log_count_warnings("layers behind the last");
    log_warnings = 0;
    REQUIRE_OK(ox_hf_open(test_path("beyond"), true, &folder));
    CHECK(log_warnings == 1);
    struct ox_model *const model = ox_hf_own_model(folder);
    for (uint32_t t = 0; t < model->tensor_count; t++) { /* as older versions of transformers save it, but for a norm */
        const bool widened = model->tensors[t].role == OX_ROLE_ROUTER; /* as transformers leaves bf16 routers */
        model->tensors[t].fp32 = model->tensors[t].limbs || model->tensors[t].role == OX_ROLE_FINAL_NORM || widened;
    }
    REQUIRE_OK(ox_folder_make(test_path("rounded")));
    REQUIRE_OK(ox_hf_create(test_path("rounded"), model, ox_hf_config(folder), OX_DTYPE_BF16, 9000, &writer));
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const struct ox_tensor *const tensor = &model->tensors[t];
        float *const values = malloc(tensor->count * sizeof *values);
        uint16_t *const rounded = malloc(tensor->count * sizeof *rounded);
        CHECK(values != NULL && rounded != NULL);
        REQUIRE_OK(ox_hf_read(folder, t, 0, tensor->count, values));
        for (uint64_t i = 0; i < tensor->count; i++) {
            rounded[i] = ox_bf16_from_f32(values[i]);
            values[i] = tensor->role == OX_ROLE_ROUTER ? ox_bf16_to_f32(rounded[i]) : values[i];
            CHECK(!tensor->limbs || ox_bf16_to_f32(rounded[i]) == values[i]);
        }
        if (tensor->limbs) {
            CHECK(!tensor->trained && !tensor->decay && tensor->fp32);
            ox_hf_join_limbs(values, tensor->count, values);
        }
        REQUIRE_OK(ox_hf_write(writer, t, 0, tensor->count, tensor->fp32 ? (const void *)values : rounded));
        free(rounded);
        free(values);
    }
    REQUIRE_OK(ox_hf_finish(&writer));
    REQUIRE_OK(ox_hf_open(test_path("rounded"), true, &again));
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const uint64_t count = model->tensors[t].count;
        CHECK(ox_hf_dtype(again, t) == (model->tensors[t].fp32 ? OX_DTYPE_F32 : OX_DTYPE_BF16));
        CHECK(ox_hf_model(again)->tensors[t].fp32 == model->tensors[t].fp32); /* what is saved of it is so too */
        float *const before = malloc(2 * count * sizeof *before), *const after = before + count;
        CHECK(before != NULL);
        REQUIRE_OK(ox_hf_read(folder, t, 0, count, before));
        REQUIRE_OK(ox_hf_read(again, t, 0, count, after));
        CHECK(!model->tensors[t].fp32 || model->tensors[t].role == OX_ROLE_ROUTER ||
              memcmp(before, after, count * sizeof *before) == 0);
        free(before);
    }
    struct ox_model *const frozen = ox_hf_own_model(again);
    REQUIRE_OK(ox_hf_freeze(frozen, "layers.0-2"));
    ox_hf_choose_formats(again, false);
    for (uint32_t i = 0; i < frozen->block_count; i++) { /* the bias takes no second half of all weights */
        CHECK(frozen->units[frozen->blocks[i]].format == OX_FORMAT_BF16);
    }
    uint64_t hash = 0, regrouped = 0;
    REQUIRE_OK(ox_hf_base_hash(again, &hash));
    REQUIRE_OK(ox_hf_regroup(again, 8, 0)); /* all that was known of tensors goes with them */
    REQUIRE_OK(ox_hf_base_hash(again, &regrouped));
    CHECK(hash != 0 && hash == regrouped);
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const int64_t idx = ox_model_find_tensor(ox_hf_model(again), model->tensors[t].name);
        CHECK(idx >= 0 && ox_hf_model(again)->tensors[idx].fp32 == model->tensors[t].fp32);
    }
    ox_hf_close(&again);
    ox_hf_close(&folder);
}

/* In memory all experts of a role lie as a packed tensor has them: gate and up of one, then of the next. */
static void test_memory(void) {
    struct ox_model_config config;
    struct ox_model *each = NULL, *packed = NULL;
    REQUIRE_OK(parse_with("qwen3_moe", "use_cache", "true", &config));
    REQUIRE_OK(ox_model_build(&config, &each));
    config.mixture.packed = true;
    REQUIRE_OK(ox_model_build(&config, &packed));
    CHECK(each->param_count == packed->param_count);
    for (uint32_t i = 0; i < each->unit_count; i++) {
        CHECK(memcmp(each->units[i].role_offset, packed->units[i].role_offset, sizeof each->units[i].role_offset) == 0);
        CHECK(each->units[i].elem_count == packed->units[i].elem_count);
    }
    const int64_t all = ox_model_find_tensor(packed, "model.layers.2.mlp.experts.gate_up_proj");
    const int64_t up = ox_model_find_tensor(each, "model.layers.2.mlp.experts.3.up_proj.weight");
    CHECK(all >= 0 && up >= 0 && packed->tensors[all].rank == 3 && packed->tensors[all].decay);
    CHECK(each->tensors[up].offset == packed->tensors[all].offset + 7 * (uint64_t)config.mixture.width * config.hidden);
    CHECK(ox_model_find_tensor(each, "model.layers.1.mlp.up_proj.weight") >= 0); /* an MLP between them */
    CHECK(ox_model_find_tensor(each, "model.layers.1.mlp.gate.weight") == -1);
    ox_model_close(&packed);
    ox_model_close(&each);
}

int main(void) {
    test_refusals();
    test_missing();
    test_written();
    test_bad_folders();
    test_layouts();
    test_as_saved();
    test_bad_mxfp4();
    test_taken();
    test_choice_bias();
    test_mxfp4();
    test_memory();
    return test_end();
}
