/* --dtype bf16 on the CPU against PyTorch (tests/golden/autocast.json): 20 steps in float32 and under autocast to
 * bfloat16. PyTorch keeps outputs of linear layers in bfloat16 and computes attention so, the engine does neither; so
 * its losses must lie as near to those in float32 as autocast's do, and near autocast's. With GEMMs in fp32, where the
 * machine has no others, that holds too. */
#include "base/file.h"
#include "kernels/device.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char path[] = "tests/golden/autocast.json";
static const char stories[] = "stories260K";

enum { STORIES_BATCH = 8, STORIES_SEQ = 127, STORIES_BOS = 1 };

/* Losses may be so many times as far from float32 as autocast's are. From autocast's, absolute; norms, relative: about
 * twice what was measured. */
static const struct {
    double as_autocast, loss_autocast, norms_float32;
} limits = {1.25, 8e-3, 1.4e-2};

static double number(const json_t *object, const char *key) {
    const json_t *const value = json_object_get(object, key);
    CHECK(json_is_number(value));
    return json_number_value(value);
}

static double at(const json_t *run, const char *way, const char *key, size_t idx) {
    const json_t *const value = json_array_get(json_object_get(json_object_get(run, way), key), idx);
    CHECK(json_is_number(value));
    return json_number_value(value);
}

/* Row b of step s is BOS and the next 127 ids, as in test_stories.c. */
static uint64_t fill_stories(struct ox_engine *engine, const unsigned char *ids, size_t step) {
    const struct ox_batch batch = ox_engine_batch(engine, 0);
    for (size_t row = 0; row < STORIES_BATCH; row++) {
        const unsigned char *const next = ids + 2 * (step * STORIES_BATCH + row) * STORIES_SEQ;
        for (size_t i = 0; i < STORIES_SEQ; i++) {
            batch.targets[row * STORIES_SEQ + i] = next[2 * i] | next[2 * i + 1] << 8;
            batch.ids[row * STORIES_SEQ + i] = i == 0 ? STORIES_BOS : batch.targets[row * STORIES_SEQ + i - 1];
        }
    }
    return STORIES_BATCH * STORIES_SEQ;
}

/* The largest distances of the losses, of the norms from float32, and of autocast's losses from float32. */
struct apart {
    double loss_float32, loss_autocast, norms_float32, autocast;
};

static struct apart train(const json_t *json, const json_t *reference, const struct golden *golden,
                          const struct harness_run *run, const unsigned char *ids) {
    struct harness harness;
    struct apart apart = {0};
    const size_t steps = (size_t)number(json, "steps");
    harness_open(run, &harness_in_memory, &harness);
    for (size_t i = 0; i < steps; i++) {
        struct ox_step_result result;
        const uint64_t targets =
            ids != NULL ? fill_stories(harness.engine, ids, i) : golden_fill(harness.engine, golden, i);
        struct ox_step_input input = golden_input(golden, 0, targets);
        input.step = input.adam.step = i + 1;
        input.adam.learning_rate = number(json, ids != NULL ? "stories_learning_rate" : "learning_rate");
        input.max_grad_norm = ids != NULL ? 1.0 : input.max_grad_norm;
        REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
        apart.loss_float32 = fmax(apart.loss_float32, fabs(result.loss - at(reference, "float32", "losses", i)));
        apart.loss_autocast = fmax(apart.loss_autocast, fabs(result.loss - at(reference, "autocast", "losses", i)));
        apart.norms_float32 =
            fmax(apart.norms_float32, fabs(result.grad_norm / at(reference, "float32", "grad_norms", i) - 1));
        apart.autocast = fmax(apart.autocast, fabs(at(reference, "autocast", "losses", i) -
                                                   at(reference, "float32", "losses", i)));
    }
    harness_close(&harness);
    return apart;
}

static void check(const struct apart *apart) {
    golden_report("losses, from float32", apart->loss_float32, limits.as_autocast * apart->autocast);
    golden_report("losses, from autocast", apart->loss_autocast, limits.loss_autocast);
    golden_report("gradient norms, from float32", apart->norms_float32, limits.norms_float32);
}

/* The trained model is not part of the project; its AdamW is that of the model that `golden` is. */
static void check_stories(const json_t *json, const json_t *reference, const struct golden *golden) {
    char folder[OX_PATH_BYTES];
    char *ids = NULL;
    size_t bytes = 0;
    if (test_data_folder() == NULL) {
        printf("%s is not here: skipped\n", stories);
        return;
    }
    char name[64];
    snprintf(name, sizeof name, "models/%s", stories);
    REQUIRE_OK(ox_path_join(test_data_folder(), name, folder));
    REQUIRE_OK(ox_file_read("tests/golden/stories/finetune_ids.bin", 1 << 20, &ids, &bytes));
    const struct harness_run run = {.model_folder = folder, .batch = STORIES_BATCH, .seq = STORIES_SEQ,
                                    .micro_batches = 1, .dtype = OX_COMPUTE_BF16, .decay_all = true};
    CHECK(bytes >= 2 * (size_t)number(json, "steps") * STORIES_BATCH * STORIES_SEQ);
    const struct apart apart = train(json, reference, golden, &run, (const unsigned char *)ids);
    printf("%s\n", stories);
    check(&apart);
    free(ids);
}

int main(void) {
    json_t *json = NULL;
    const json_t *reference;
    const char *library;
    size_t idx;
    const bool in_bf16 = ox_cpu_has_products(OX_REAL_BF16, &library);
    printf("GEMMs in %s: %s\n", in_bf16 ? "bf16" : "fp32", library);
    REQUIRE_OK(ox_json_load(path, 1 << 20, &json));
    json_array_foreach(json_object_get(json, "runs"), idx, reference) {
        struct golden golden;
        const char *const name = json_string_value(json_object_get(reference, "model"));
        const bool is_stories = strcmp(name, stories) == 0;
        golden_open(is_stories ? "llama_tied_gqa" : name, &golden);
        golden.micro_batches = (uint64_t)number(json, "micro_batches");
        struct harness_run run = golden_run(&golden);
        run.dtype = OX_COMPUTE_BF16;
        if (is_stories) {
            check_stories(json, reference, &golden);
        } else {
            const struct apart apart = train(json, reference, &golden, &run, NULL);
            printf("%s\n", name);
            check(&apart);
            run.dtype = OX_COMPUTE_FP32; /* the comparison sees whether bf16 is used */
            CHECK(!in_bf16 || train(json, reference, &golden, &run, NULL).loss_float32 < 0.1 * apart.loss_float32);
        }
        golden_close(&golden);
    }
    CHECK(idx == 3);
    json_decref(json);
    return test_end();
}
