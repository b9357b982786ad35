/* Known shapes have the numbers of parameters that their publishers give, and a shape chosen for a number has about so
 * many, in every family; what leaves no choice is refused. */
#include "base/file.h"
#include "engine/family/families.h"
#include "engine/hf/hf.h"
#include "engine/hf/shapes.h"
#include "tests/kit/test.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* By the model cards, and by transformers on a device without memory. */
static const struct {
    const char *name;
    uint64_t param_count;
} known[] = {
    {"gpt2", 124439808},           {"gpt2-medium", 354823168},     {"gpt2-large", 774030080},
    {"gpt2-xl", 1557611200},       {"llama-2-7b", 6738415616},     {"llama-2-13b", 13015864320},
    {"llama-2-70b", 68976648192},  {"llama-3-8b", 8030261248},     {"LLAMA-8B", 8030261248},
    {"llama-3.1-70b", 70553706496}, {"llama-3.1-405b", 405853388800}, {"llama-3.2-1b", 1235814400},
    {"llama-3.2-3b", 3212749824},  {"tinyllama", 1100048384},      {"smollm2-135m", 134515008},
    {"smollm2-360m", 361821120},   {"smollm2-1.7b", 1711376384},   {"mistral-7b", 7248023552},
    {"mistral-12b", 12247782400},  {"qwen2.5-0.5b", 494032768},    {"qwen2.5-1.5b", 1543714304},
    {"qwen2.5-3b", 3085938688},    {"qwen2.5-7b", 7615616512},     {"qwen2.5-14b", 14770033664},
    {"qwen2.5-32b", 32763876352},  {"qwen2.5-72b", 72706203648},   {"qwen3-0.6b", 596049920},
    {"qwen3-1.7b", 1720574976},    {"qwen3-4b", 4022468096},       {"qwen3-8b", 8190735360},
    {"qwen3-14b", 14768307200},    {"qwen3-32b", 32762123264},     {"phi-3-mini", 3821079552},
    {"phi-4", 14659507200},        {"smollm3-3b", 3075098624},
    {"mixtral-8x7b", 46702792704}, {"mixtral-8x22b", 140620634112}, {"olmoe-1b-7b", 6919161856},
    {"qwen1.5-moe-a2.7b", 14315784192}, {"qwen3-30b-a3b", 30532122624}, {"qwen3-235b-a22b", 235093634560},
    {"glm-4.5-air", 106852245504}, {"glm-4.5", 352797814784},
    {"gpt-oss-20b", 20914757184}, {"gpt-oss-120b", 116829156672},
};

static void test_known(void) {
    uint32_t count = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct ox_hf_folder *folder = NULL;
        CHECK(ox_hf_is_shape(known[i].name));
        REQUIRE_OK(ox_hf_open_shape(known[i].name, &folder));
        const uint64_t found = ox_hf_model(folder)->param_count;
        CHECK(found == known[i].param_count);
        if (found != known[i].param_count) {
            printf("%s: %" PRIu64 "\n", known[i].name, found);
        }
        ox_hf_close(&folder);
    }
    while (ox_shape_at(count) != NULL) {
        count++;
    }
    char names[OX_SHAPE_NAMES_BYTES];
    CHECK(count == sizeof known / sizeof *known);
    CHECK(strlen(ox_shape_names(names)) + 1 < sizeof names);
    CHECK(ox_shape_find("llama-9b") == NULL);
}

/* The file of a chosen shape is one that is read again, as the same model. */
static void check_written(const struct ox_model_config *config) {
    json_t *json = NULL;
    struct ox_model_config again;
    REQUIRE_OK(ox_model_config_json(config, NULL, "float32", &json));
    if (ox_model_config_parse(config->family, json, &again) != OX_OK) {
        printf("%s: %s\n", config->family, ox_error_text());
        test_failure_count++;
    } else {
        CHECK(again.hidden == config->hidden && again.layers == config->layers && again.window == config->window);
    }
    json_decref(json);
}

static void test_chosen(void) {
    static const char *const families[] = {"llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3", "gpt2", "mixtral",
                                           "granitemoe", "olmoe", "qwen2_moe", "qwen3_moe", "gpt_oss", "glm4_moe",
                                           "deepseek_v3", "gemma2", "gemma3_text", "olmo2", "olmo3", "granite",
                                           "cohere2", "exaone4"};
    static const double counts[] = {3e6, 1e7, 3e7, 1e8, 3.5e8, 1e9, 3e9, 7e9, 1.3e10, 7e10, 4e11};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const bool is_deepseek = strcmp(families[i], "deepseek_v3") == 0; /* 256 experts, each at least 32 wide */
        for (size_t k = is_deepseek ? 1 : 0; k < sizeof counts / sizeof *counts; k++) {
            const struct ox_shape_request request = {.param_count = (uint64_t)counts[k], .family = families[i],
                                               .vocab = counts[k] < 1e8 ? 8000 : 32000, .contexts = 2048,
                                               .bos_id = -1, .eos_id = 5};
            struct ox_model_config config;
            struct ox_model *model = NULL;
            char reasons[OX_SHAPE_REASONS_BYTES];
            REQUIRE_OK(ox_shape_choose(&request, &config, reasons));
            REQUIRE_OK(ox_model_build(&config, &model));
            const double off = (double)model->param_count / counts[k] - 1;
            CHECK(fabs(off) < 0.1);
            CHECK(config.hidden == config.heads * (config.latent.kv_rank > 0 ? config.latent.value : config.head_dim));
            CHECK(config.heads % config.kv_heads == 0);
            CHECK(config.eos_id == 5 && config.contexts == 2048 && strcmp(config.family, families[i]) == 0);
            CHECK(counts[k] < 3e7 || (config.hidden / config.layers >= 32 && config.hidden / config.layers <= 176));
            CHECK(strlen(reasons) > 200 && strlen(reasons) + 1 < sizeof reasons);
            if (fabs(off) >= 0.1) {
                printf("%s %g: off by %.3f\n%s", families[i], counts[k], off, reasons);
            }
            check_written(&config);
            ox_model_close(&model);
        }
    }
}

static void test_refused(void) {
    struct ox_shape_request request = {.param_count = 1000000, .family = "llama", .vocab = 128000, .contexts = 64,
                                 .bos_id = -1, .eos_id = -1};
    struct ox_model_config config;
    char reasons[OX_SHAPE_REASONS_BYTES];
    CHECK(ox_shape_choose(&request, &config, reasons) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "or a smaller vocabulary") != NULL);
    request.vocab = 256;
    request.family = "bert";
    CHECK(ox_shape_choose(&request, &config, reasons) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "bert") != NULL);
    request.param_count = 50000000;
    request.family = "deepseek_v2"; /* whose own defaults are refused, before anything is chosen */
    CHECK(ox_shape_choose(&request, &config, reasons) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "give mixtral") != NULL);
    request.family = "qwen-3";
    CHECK(ox_shape_choose(&request, &config, reasons) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "did you mean qwen3?") != NULL);
    request.family = "mixtral-8x7b";
    CHECK(ox_shape_choose(&request, &config, reasons) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "leave --params out, or give --like mixtral") != NULL);
}

/* docs/from-scratch.md lists every name; one without its dashes is the same, before one that only has its letters. */
static void test_names(void) {
    char *page = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read("docs/from-scratch.md", 1 << 20, &page, &bytes));
    for (uint32_t i = 0; ox_shape_at(i) != NULL; i++) {
        const struct ox_known_shape *const shape = ox_shape_at(i);
        const char *const names[] = {shape->name, shape->alias};
        for (int k = 0; k < 2 && names[k] != NULL; k++) {
            char cell[64];
            snprintf(cell, sizeof cell, "`%s`", names[k]);
            if (strstr(page, cell) == NULL) {
                printf("docs/from-scratch.md does not name %s\n", names[k]);
                test_failure_count++;
            }
        }
    }
    char families[OX_FAMILY_NAMES_BYTES];
    ox_family_names(families);
    for (char *name = strtok(families, ", "); name != NULL; name = strtok(NULL, ", ")) {
        if (strstr(page, name) == NULL && strcmp(name, "deepseek_v2") != 0) { /* of which no shape is chosen */
            printf("docs/from-scratch.md does not name %s\n", name);
            test_failure_count++;
        }
    }
    free(page);
    static const char *const near[][2] = {
        {"llama8b", "llama-3.1-8b"}, {"LLaMA_2_7B", "llama-2-7b"}, {"qwen7b", "qwen2.5-7b"}, {"gpt2xl", "gpt2-xl"}};
    for (unsigned i = 0; i < sizeof near / sizeof *near; i++) {
        const struct ox_known_shape *const shape = ox_shape_near(near[i][0]);
        CHECK(shape != NULL && strcmp(shape->name, near[i][1]) == 0);
    }
    CHECK(ox_shape_near("bert-base") == NULL);
}

int main(void) {
    test_known();
    test_names();
    test_chosen();
    test_refused();
    return test_end();
}
