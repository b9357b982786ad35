/* Adapters that PEFT made: the weights that merging them gives are PEFT's, in float32 and with a base in bfloat16, and
 * what a run saves of them is what PEFT reads. Losses, gradients and ten steps beside PEFT are cases of test_golden. */
#include "base/file.h"
#include "base/json.h"
#include "base/planes.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/hf/hf.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const cases[] = {"lora_llama", "lora_qwen2", "lora_gpt2", "lora_phi3",
                                    "lora_saved", "lora_head", "lora_biases", "lora_mixtral",
                                    "lora_olmoe", "lora_qwen2_moe", "lora_gpt_oss", "lora_dora", "lora_dora_gpt2",
                                    "lora_tables", "lora_tables_gemma2", "lora_table_gpt2"};
enum { CASES = sizeof cases / sizeof *cases };

static struct ox_hf_folder *open_case(const struct golden *golden) {
    struct ox_hf_folder *folder = NULL;
    char path[600];
    snprintf(path, sizeof path, "%s/adapter", golden->folder);
    REQUIRE_OK(ox_hf_open_adapter(golden->folder, path, true, &folder));
    return folder;
}

static void check_merged(const struct golden *golden) {
    struct ox_hf_folder *folder = open_case(golden);
    uint32_t adapted = 0;
    double worst = 0.0;
    REQUIRE_OK(ox_hf_merge(folder));
    const struct ox_model *const model = ox_hf_model(folder);
    CHECK(model->config.lora.r == 0);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        uint64_t count = 0;
        bool is = false;
        for (uint32_t k = 0; k < ox_st_count(golden->tensors); k++) {
            const char *const name = ox_st_entry(golden->tensors, k)->name;
            is |= strncmp(name, "merged.", 7) == 0 && strcmp(name + 7, tensor->name) == 0;
        }
        if (!is) {
            continue;
        }
        float *const want = golden_tensor(golden, "merged", tensor->name, &count);
        float *const got = malloc(count * sizeof *got);
        CHECK(count == tensor->count && got != NULL);
        adapted++;
        REQUIRE_OK(ox_hf_read(folder, i, 1, count - 1, got + 1)); /* in pieces, as an export does */
        REQUIRE_OK(ox_hf_read(folder, i, 0, 1, got));
        for (uint64_t k = 0; k < count; k++) {
            worst = fmax(worst, fabs((double)got[k] - (double)want[k]));
        }
        free(want);
        free(got);
    }
    printf("%s: %u matrices merged, within %.1e of PEFT's\n", golden->folder, adapted, worst);
    CHECK(adapted > 0 && worst < 1e-6);
    ox_hf_close(&folder);
}

/* Writes the base of a case with weights in bfloat16. */
static void write_bf16(const struct golden *golden, const char *path) {
    REQUIRE_OK(ox_export_folder(golden->folder, NULL, false, path, OX_DTYPE_BF16, UINT64_MAX));
}

/* PEFT adds in float32 and rounds the sum once to what the base is stored in. The order of its sums is its library's,
 * so that a sum beside the border of two bfloat16 may go to the other: one of many thousands. */
static void check_merged_bf16(const struct golden *golden, int idx) {
    char base[256], whole[256], adapter[600];
    struct ox_hf_folder *folder = NULL;
    uint64_t other = 0, all = 0;
    snprintf(base, sizeof base, "%s/base-%d", test_folder(), idx);
    snprintf(whole, sizeof whole, "%s/whole-%d", test_folder(), idx);
    snprintf(adapter, sizeof adapter, "%s/adapter", golden->folder);
    write_bf16(golden, base);
    REQUIRE_OK(ox_export_folder(base, adapter, false, whole, OX_DTYPE_BF16, UINT64_MAX));
    REQUIRE_OK(ox_hf_open(whole, true, &folder));
    const struct ox_model *const model = ox_hf_model(folder);
    for (uint32_t k = 0; k < ox_st_count(golden->tensors); k++) {
        const char *const name = ox_st_entry(golden->tensors, k)->name;
        if (strncmp(name, "merged_bf16.", 12) != 0) {
            continue;
        }
        uint64_t count = 0;
        const int64_t tensor_idx = ox_model_find_tensor(model, name + 12);
        CHECK(tensor_idx >= 0);
        float *const want = golden_tensor(golden, "merged_bf16", name + 12, &count);
        float *const got = malloc(count * sizeof *got);
        REQUIRE_OK(ox_hf_read(folder, (uint32_t)tensor_idx, 0, count, got));
        for (uint64_t i = 0; i < count; i++) {
            other += got[i] != want[i];
            CHECK(fabs((double)got[i] - (double)want[i]) <= fabs((double)want[i]) / 128);
        }
        all += count;
        free(want);
        free(got);
    }
    printf("  in bfloat16: %llu of %llu differ from PEFT's\n", (unsigned long long)other, (unsigned long long)all);
    CHECK(all > 1000 && other <= all / 5000);
    ox_hf_close(&folder);
}

/* The names and shapes in a file of adapters. PEFT's has copies of adapted tables too. */
static void check_same_tensors(const char *a, const char *b) {
    struct ox_st_file *files[2] = {NULL, NULL};
    REQUIRE_OK(ox_st_open(a, &files[0]));
    REQUIRE_OK(ox_st_open(b, &files[1]));
    uint32_t copies = 0;
    for (uint32_t i = 0; i < ox_st_count(files[0]); i++) {
        const struct ox_st_entry *const entry = ox_st_entry(files[0], i);
        bool found = strstr(entry->name, ".base_layer.weight") != NULL && entry->rank == 2 &&
                     (strstr(entry->name, "lm_head") != NULL || strstr(entry->name, "embed_tokens") != NULL);
        copies += found;
        for (uint32_t k = 0; k < ox_st_count(files[1]); k++) {
            const struct ox_st_entry *const other = ox_st_entry(files[1], k);
            found |= strcmp(entry->name, other->name) == 0 && entry->rank == other->rank &&
                     entry->shape[0] == other->shape[0] && entry->shape[1] == other->shape[1] &&
                     entry->dtype == other->dtype;
        }
        CHECK(found);
    }
    CHECK(ox_st_count(files[0]) == ox_st_count(files[1]) + copies);
    ox_st_close(&files[0]);
    ox_st_close(&files[1]);
}

/* Two steps, a checkpoint, and two more; loaded from the checkpoint they have the same bits. A base that is not the one
 * beside which the adapter was trained is refused. */
static void check_saved(const struct golden *golden, int idx) {
    const struct harness_run run = golden_run(golden);
    struct harness harness, again;
    struct outcome whole, outcome;
    struct ox_hf_folder *folder = NULL;
    char output[256], path[300], file[400], adapter[600];
    uint64_t hash = 0;
    snprintf(output, sizeof output, "%s/run-%d", test_folder(), idx);
    snprintf(path, sizeof path, "%s/checkpoint-2", output);
    REQUIRE_OK(ox_folder_make(output));
    harness_open(&run, &harness_in_memory, &harness);
    golden_steps(&harness, golden, 0, 2, &whole);
    REQUIRE_OK(ox_engine_finish_update(harness.engine));
    const struct ox_run_state state = {.version = OX_RUN_STATE_VERSION, .step = 2, .optimizer_steps = 2};
    REQUIRE_OK(ox_hf_base_hash(harness.folder, &hash));
    const struct ox_checkpoint_save save = {.output_dir = output, .source_model = "", .weights_dtype = OX_DTYPE_F32,
                                            .shard_bytes_max = UINT64_MAX, .base_model = golden->folder,
                                            .base_hash = hash, .source_config = ox_hf_config(harness.folder)};
    REQUIRE_OK(ox_checkpoint_write(harness.engine, &state, &save));
    golden_steps(&harness, golden, 2, 4, &whole);
    outcome_read_weights(&harness, &whole);
    harness_close(&harness);

    snprintf(file, sizeof file, "%s/adapter_model.safetensors", path);
    snprintf(adapter, sizeof adapter, "%s/adapter/adapter_model.safetensors", golden->folder);
    check_same_tensors(adapter, file);
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    CHECK(!ox_path_exists(file));
    REQUIRE_OK(ox_hf_open(path, true, &folder)); /* by the base that it names */
    CHECK(ox_hf_model(folder)->config.lora.r > 0);
    ox_hf_close(&folder);

    harness_open(&run, &harness_in_memory, &again);
    golden_steps(&again, golden, 0, 2, &outcome); /* for its losses */
    REQUIRE_OK(ox_engine_finish_update(again.engine));
    REQUIRE_OK(ox_engine_load_begin(again.engine, 2));
    REQUIRE_OK(ox_checkpoint_load_on(again.engine, path, golden->folder));
    REQUIRE_OK(ox_engine_load_commit(again.engine, NULL, 0));
    golden_steps(&again, golden, 2, 4, &outcome);
    golden_end(&again, "from a checkpoint of adapters", &whole, &outcome);
    outcome_close(&whole);

    char other[256];
    snprintf(other, sizeof other, "%s/other-%d", test_folder(), idx);
    write_bf16(golden, other); /* other weights of the same shapes */
    CHECK(ox_hf_open_adapter(other, path, true, &folder) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "beside other weights") != NULL);
}

/* An adapter with A and B of each expert is what PEFT makes of it. */
static void test_each_expert(void) {
    struct ox_hf_folder *each = NULL, *joined = NULL;
    REQUIRE_OK(ox_hf_open_adapter("tests/golden/lora_mixtral", "tests/golden/lora_mixtral/each", true, &each));
    REQUIRE_OK(ox_hf_open_adapter("tests/golden/lora_mixtral", "tests/golden/lora_mixtral/joined", true, &joined));
    const struct ox_model *const model = ox_hf_model(each), *const other = ox_hf_model(joined);
    CHECK(model->tensor_count == other->tensor_count && model->saved_count == 2 * 8);
    for (uint32_t i = model->adapter_first; i < model->tensor_count; i++) {
        const uint64_t count = model->tensors[i].count;
        float *const a = malloc(count * sizeof *a), *const b = malloc(count * sizeof *b);
        CHECK(strcmp(model->tensors[i].name, other->tensors[i].name) == 0 && count == other->tensors[i].count);
        REQUIRE_OK(ox_hf_read(each, i, 1, count - 1, a + 1));
        REQUIRE_OK(ox_hf_read(each, i, 0, 1, a));
        REQUIRE_OK(ox_hf_read(joined, i, 0, count, b));
        CHECK(memcmp(a, b, count * sizeof *a) == 0);
        free(a);
        free(b);
    }
    ox_hf_close(&each);
    ox_hf_close(&joined);
}

/* ---- what is refused ---- */

static void refuse(const char *targets, const char *text) {
    struct ox_hf_folder *folder = NULL;
    struct ox_lora lora = {.r = 4, .alpha = 8};
    snprintf(lora.targets, sizeof lora.targets, "%s", targets);
    REQUIRE_OK(ox_hf_open("tests/golden/lora_llama", true, &folder));
    CHECK(ox_hf_adapt(folder, &lora, 1) == OX_E_CONFIG);
    if (strstr(ox_error_text(), text) == NULL) {
        printf("%s: %s\n", targets, ox_error_text());
        CHECK(!"another text");
    }
    ox_hf_close(&folder);
}

/* An adapter whose configuration has one key more. */
static void refuse_key(const char *key, json_t *value, const char *text) {
    static int made;
    char path[256], name[300];
    struct ox_hf_folder *folder = NULL;
    json_t *json = NULL;
    snprintf(path, sizeof path, "%s/key-%d", test_folder(), made++);
    REQUIRE_OK(ox_folder_make(path));
    REQUIRE_OK(ox_json_load("tests/golden/lora_llama/adapter/adapter_config.json", 1 << 20, &json));
    CHECK(json_object_set_new(json, key, value) == 0);
    snprintf(name, sizeof name, "%s/adapter_config.json", path);
    CHECK(json_dump_file(json, name, 0) == 0);
    json_decref(json);
    snprintf(name, sizeof name, "%s/adapter_model.safetensors", path);
    REQUIRE_OK(ox_file_copy("tests/golden/lora_llama/adapter/adapter_model.safetensors", name));
    CHECK(ox_hf_open_adapter("tests/golden/lora_llama", path, true, &folder) == OX_E_CONFIG);
    if (strstr(ox_error_text(), text) == NULL) {
        printf("%s: %s\n", key, ox_error_text());
        CHECK(!"another text");
    }
}

static void test_refused(void) {
    struct ox_hf_folder *folder = NULL;
    refuse("q_prj", "did you mean q_proj?");
    refuse("q_proj,mlp.q_proj", "no such module");
    refuse("lm_hed", "did you mean lm_head?");
    refuse_key("use_dora", json_true(),
               "lacks \"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector\"");
    refuse_key("bias", json_string("vera_only"), "\"bias\" is \"vera_only\"; it must be none, all or lora_only");
    refuse_key("modules_to_save", json_pack("[s]", "lm_head"), "lacks \"base_model.model.lm_head.weight\"");
    refuse_key("modules_to_save", json_pack("[s]", "lm_hed"), "no module whose name ends so");
    refuse_key("modules_to_save", json_pack("[i]", 3), "\"modules_to_save\" has 3");
    refuse_key("modules_to_save", json_string("norm"), "it must be a list of names");
    refuse_key("rank_pattern", json_pack("{s:i}", "q_proj", 2), "\"rank_pattern\"");
    refuse_key("init_lora_weights", json_string("pissa"), "\"init_lora_weights\"");
    refuse_key("peft_type", json_string("IA3"), "only LORA adapters can be read");
    refuse_key("r", json_integer(0), "ranks are 1 to");
    refuse_key("r", json_integer(5), "has the shape");
    refuse_key("use_qalora", json_true(), "\"use_qalora\" is true, which does not exist here");
    refuse_key("something_new", json_integer(1), "\"something_new\" is 1");
    /* of another model */
    CHECK(ox_hf_open_adapter("tests/golden/llama_tied_gqa", "tests/golden/lora_llama/adapter", true, &folder) ==
          OX_E_CONFIG);
    CHECK(ox_hf_open_adapter("tests/golden/gpt2_small", "tests/golden/lora_llama/adapter", true, &folder) ==
          OX_E_CONFIG);
    /* its base is nowhere */
    CHECK(ox_hf_open("tests/golden/lora_llama/adapter", true, &folder) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "--adapter tests/golden/lora_llama/adapter") != NULL);
}

int main(void) {
    for (int i = 0; i < CASES; i++) {
        struct golden golden;
        golden_open(cases[i], &golden);
        check_merged(&golden);
        check_merged_bf16(&golden, i);
        check_saved(&golden, i);
        golden_close(&golden);
    }
    test_each_expert();
    test_refused();
    return test_end();
}
