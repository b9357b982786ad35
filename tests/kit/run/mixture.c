#include "tests/kit/run/mixture.h"

#include "base/assert.h"
#include "base/json.h"
#include "base/prng/prng.h"
#include "engine/hf/hf.h"
#include "engine/hf/safetensors.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 5, CONFIG_BYTES_MAX = 1 << 16 };

/* Bytes of a file in the making: the header's entries, and what they are of. */
struct file {
    json_t *header;
    unsigned char *bytes;
    size_t count;
};

static unsigned char *add_entry(struct file *file, const char *name, const char *dtype, json_t *shape, size_t bytes) {
    json_t *const info = json_pack("{s:s,s:o,s:[I,I]}", "dtype", dtype, "shape", shape, "data_offsets",
                                   (json_int_t)file->count, (json_int_t)(file->count + bytes));
    OX_ASSERT(json_object_set_new(file->header, name, info) == 0);
    file->bytes = realloc(file->bytes, file->count + bytes);
    OX_ASSERT(file->bytes != NULL);
    file->count += bytes;
    return file->bytes + file->count - bytes;
}

/* Blocks and scales of experts (experts, in, out), at random: values of at most 6 * 2^-4. */
static void add_mxfp4(struct file *file, const struct ox_tensor *tensor) {
    const uint64_t experts = tensor->shape[0], in = tensor->shape[1], out = tensor->shape[2], groups = in / 32;
    char name[OX_TENSOR_NAME_BYTES + 16];
    snprintf(name, sizeof name, "%s_blocks", tensor->name);
    json_t *const shape = json_pack("[I,I,I,i]", experts, out, groups, 16);
    unsigned char *at = add_entry(file, name, "U8", shape, tensor->count / 2);
    for (uint64_t i = 0; i < tensor->count / 2; i++) {
        at[i] = (unsigned char)(ox_uniform(SEED, 1, i) * 256.0);
    }
    snprintf(name, sizeof name, "%s_scales", tensor->name);
    at = add_entry(file, name, "U8", json_pack("[I,I,I]", experts, out, groups), tensor->count / 32);
    for (uint64_t i = 0; i < tensor->count / 32; i++) {
        at[i] = (unsigned char)(120.0 + ox_uniform(SEED, 2, i) * 4.0);
    }
}

static void add_values(struct file *file, const struct ox_model *model, const struct ox_tensor *tensor) {
    json_t *const shape = json_array();
    for (uint32_t i = 0; i < tensor->rank; i++) {
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    }
    float *const values = malloc(tensor->count * sizeof *values);
    OX_ASSERT(values != NULL);
    ox_model_init_values(model, tensor, SEED, 0, tensor->count, values);
    const size_t bytes = tensor->count * sizeof *values;
    memcpy(add_entry(file, tensor->name, "F32", shape, bytes), values, bytes);
    free(values);
}

const char *mixture_write(const char *name, const char *config_path, bool mxfp4) {
    struct ox_model_config config;
    struct ox_model *model;
    struct file file = {.header = json_object()};
    char path[256];
    json_t *json;
    REQUIRE_OK(ox_json_load(config_path, CONFIG_BYTES_MAX, &json));
    REQUIRE_OK(ox_model_config_parse(config_path, json, &config));
    json_decref(json);
    config.mixture.packed = true;
    REQUIRE_OK(ox_model_build(&config, &model));
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        const bool decoded = mxfp4 && (tensor->role == OX_ROLE_EXPERT_GATE_UP || tensor->role == OX_ROLE_EXPERT_DOWN);
        if (decoded) {
            add_mxfp4(&file, tensor);
        } else {
            add_values(&file, model, tensor);
        }
    }
    ox_model_close(&model);
    char *const header = json_dumps(file.header, JSON_COMPACT);
    const uint64_t length = strlen(header);
    unsigned char *const whole = malloc(sizeof length + length + file.count);
    OX_ASSERT(whole != NULL);
    memcpy(whole, &length, sizeof length);
    memcpy(whole + sizeof length, header, length);
    memcpy(whole + sizeof length + length, file.bytes, file.count);
    const char *const folder = files_make_folder(name);
    snprintf(path, sizeof path, "%s/model.safetensors", name);
    files_write(path, whole, sizeof length + length + file.count);
    snprintf(path, sizeof path, "%s/config.json", name);
    char *const text = files_read(config_path, NULL);
    files_write_text(path, text);
    free(text);
    free(whole);
    free(header);
    free(file.bytes);
    json_decref(file.header);
    return folder;
}

/* Compares a file of two checkpoints tensor by tensor. */
static bool same_tensors(const char *a, const char *b) {
    struct ox_st_file *files[2];
    REQUIRE_OK(ox_st_open(a, &files[0]));
    REQUIRE_OK(ox_st_open(b, &files[1]));
    bool same = ox_st_count(files[0]) == ox_st_count(files[1]);
    for (uint32_t i = 0; same && i < ox_st_count(files[0]); i++) {
        const struct ox_st_entry *const left = ox_st_entry(files[0], i);
        const struct ox_st_entry *const right = ox_st_find(files[1], left->name);
        same = right != NULL && right->count == left->count;
        float *const values = same ? malloc(2 * left->count * sizeof *values) : NULL;
        if (same) {
            REQUIRE_OK(ox_st_read_f32(files[0], left, 0, left->count, values));
            REQUIRE_OK(ox_st_read_f32(files[1], right, 0, left->count, values + left->count));
            same = memcmp(values, values + left->count, left->count * sizeof *values) == 0;
        }
        if (!same) {
            printf("%s differs in %s and %s\n", left->name, a, b);
        }
        free(values);
    }
    ox_st_close(&files[0]);
    ox_st_close(&files[1]);
    return same;
}

bool mixture_same_runs(const char *a, const char *b, unsigned steps) {
    static const char *const names[] = {"model.safetensors", "adapter_model.safetensors", "optimizer.safetensors"};
    char *const left = sys_curve(test_path(a), "step"), *const right = sys_curve(test_path(b), "step");
    bool same = left[0] != '\0' && sys_same_text("step", left, right);
    unsigned found = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && same; i++) {
        const char *const path = test_pathf("%s/checkpoint-%u/%s", a, steps, names[i]);
        if (files_exist(path)) {
            found++;
            same = same_tensors(path, test_pathf("%s/checkpoint-%u/%s", b, steps, names[i]));
        }
    }
    free(left);
    free(right);
    return same && found == 2;
}

#define MIXTURE                                                                                                  \
    "\"vocab_size\":96,\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4,"                    \
    "\"num_key_value_heads\":4,\"max_position_embeddings\":64,\"tie_word_embeddings\":false,\"initializer_range\":0.3,"
const struct mixture_case mixture_cases[MIXTURE_CASES] = {
    {"balance.json", "{\"model_type\":\"qwen3_moe\"," MIXTURE "\"head_dim\":16,\"num_experts\":8,"
                     "\"num_experts_per_tok\":2,"
                     "\"moe_intermediate_size\":32,\"intermediate_size\":48,\"norm_topk_prob\":true}",
     0.01, 0.001, 0, true, 0},
    {"bias.json", "{\"model_type\":\"deepseek_v3\"," MIXTURE "\"n_routed_experts\":16,\"num_experts_per_tok\":1,"
                  "\"moe_intermediate_size\":32,\"intermediate_size\":48,\"first_k_dense_replace\":1,\"n_group\":2,"
                  "\"topk_group\":1,\"kv_lora_rank\":16,\"q_lora_rank\":null,\"qk_rope_head_dim\":8,"
                  "\"qk_nope_head_dim\":8,"
                  "\"v_head_dim\":16}", 0, 0, 0.01, false, 8},
    {"plain.json", "{\"model_type\":\"mixtral\"," MIXTURE "\"num_local_experts\":6,\"num_experts_per_tok\":2,"
                   "\"intermediate_size\":32}", 0, 0, 0, false, 3}};

void mixture_set(const struct mixture_case *mixture, struct harness_run *run) {
    run->router_balance = mixture->balance;
    run->router_z = mixture->z;
    run->router_bias_rate = mixture->bias_rate;
    run->skips_idle = mixture->skips_idle;
    run->experts_per_unit = mixture->per_unit;
}
