/* Folders of several parts: the text model in them has the weights of the case that they were made of
 * (tests/golden/make/golden_parts.py), whatever its tensors are called; others are refused with a remedy. */
#include "base/file.h"
#include "base/json.h"
#include "engine/hf/hf.h"
#include "tests/kit/log.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

static void check_same(const char *parts, const char *alone) {
    struct ox_hf_folder *folder = NULL, *other = NULL;
    log_warnings = 0;
    log_count_warnings("several parts");
    REQUIRE_OK(ox_hf_open(parts, true, &folder));
    CHECK(log_warnings == 1); /* that the rest is left out */
    REQUIRE_OK(ox_hf_open(alone, true, &other));
    const struct ox_model *const model = ox_hf_model(folder), *const wanted = ox_hf_model(other);
    CHECK(strcmp(model->config.family, wanted->config.family) == 0 && model->config.tied == wanted->config.tied);
    CHECK(model->tensor_count == wanted->tensor_count);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const uint64_t count = wanted->tensors[i].count;
        float *const got = malloc(count * sizeof *got), *const want = malloc(count * sizeof *want);
        CHECK(got != NULL && want != NULL && model->tensors[i].count == count);
        REQUIRE_OK(ox_hf_read(folder, i, 0, count, got));
        REQUIRE_OK(ox_hf_read(other, i, 0, count, want));
        CHECK(memcmp(got, want, count * sizeof *got) == 0);
        free(got);
        free(want);
    }
    /* what is saved describes the text model alone */
    CHECK(json_object_get(ox_hf_config(folder), "text_config") == NULL);
    ox_hf_close(&folder);
    ox_hf_close(&other);
}

static void check_refused(const char *text, const char *named) {
    json_t *json = NULL, *part = NULL;
    REQUIRE_OK(ox_json_parse("test", text, strlen(text), &json));
    const bool right = ox_text_config("config.json", json, &part) == OX_E_CONFIG && part == NULL &&
                       strstr(ox_error_text(), named) != NULL;
    if (!right) {
        printf("%s: %s\n", text, ox_error_text());
    }
    CHECK(right);
    json_decref(json);
}

/* Published folders of gemma3 leave out of the text model's object what its family takes for granted. */
static void test_published(void) {
    static const char text[] =
        "{\"model_type\":\"gemma3\",\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"eos_token_id\":[1,106],"
        "\"text_config\":{\"hidden_size\":2560,\"intermediate_size\":10240,\"model_type\":\"gemma3_text\","
        "\"num_hidden_layers\":34,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024},"
        "\"vision_config\":{\"hidden_size\":1152}}";
    static struct ox_model_config config;
    json_t *json = NULL, *part = NULL;
    REQUIRE_OK(ox_json_parse("test", text, strlen(text), &json));
    REQUIRE_OK(ox_text_config("config.json", json, &part));
    REQUIRE_OK(ox_model_config_parse("config.json", part, &config));
    CHECK(config.heads == 8 && config.kv_heads == 4 && config.head_dim == 256 && config.vocab == 262208);
    CHECK(config.tied && config.eos_id == 1 && config.window == 1024 && config.rope_scaling.factor == 8.0);
    json_decref(part);
    json_decref(json);
}

int main(void) {
    check_same("tests/golden/parts/gemma3", "tests/golden/gemma3");
    check_same("tests/golden/parts/mistral3", "tests/golden/mistral_window");
    check_refused("{\"model_type\":\"llama4\",\"text_config\":{\"model_type\":\"llama4_text\"}}", "\"llama4_text\"");
    check_refused("{\"model_type\":\"llava\",\"text_config\":{\"model_type\":\"llama\"}}", "save that model alone");
    check_refused("{\"model_type\":\"gemma3\",\"text_config\":{}}", "model_type");
    test_published();
    return test_end();
}
