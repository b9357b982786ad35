/* Mixtures of experts beside transformers (tests/golden/accumulate.json): 20 steps whose four rows are one
 * micro-batch, two or four. */
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>

static const char path[] = "tests/golden/accumulate.json";

static double number(const json_t *reference, const char *key, size_t idx) {
    const json_t *const value = json_array_get(json_object_get(reference, key), idx);
    CHECK(json_is_number(value));
    return json_number_value(value);
}

/* Rows of the case in a circle; each is one of its micro-batches. */
static void fill(struct ox_engine *engine, const struct golden *golden, const struct harness_run *run, size_t step) {
    static const char *const keys[] = {"inputs", "targets"};
    for (uint32_t row = 0; row < run->batch * run->micro_batches; row++) {
        const struct ox_batch batch = ox_engine_batch(engine, row / run->batch);
        const size_t first = row % run->batch * golden->seq;
        int32_t *const to[] = {batch.ids + first, batch.targets + first};
        const size_t at = (step * run->batch * run->micro_batches + row) % (GOLDEN_STEPS * golden->micro_batches);
        for (int k = 0; k < 2; k++) {
            const json_t *const from = json_array_get(
                json_array_get(json_object_get(golden->json, keys[k]), at / golden->micro_batches),
                at % golden->micro_batches);
            CHECK(json_array_size(from) == golden->seq);
            for (size_t i = 0; i < golden->seq; i++) {
                to[k][i] = (int32_t)json_integer_value(json_array_get(from, i));
            }
        }
    }
}

static void check(const json_t *json, const json_t *reference) {
    struct golden golden;
    struct harness harness;
    double losses = 0, norms = 0;
    uint64_t rows = 0, step_rows = 0, steps = 0;
    golden_open(json_string_value(json_object_get(reference, "model")), &golden);
    REQUIRE_OK(ox_json_get_u64(path, json, "step_rows", true, &step_rows));
    REQUIRE_OK(ox_json_get_u64(path, json, "steps", true, &steps));
    REQUIRE_OK(ox_json_get_u64(path, reference, "rows", true, &rows));
    struct harness_run run = golden_run(&golden);
    run.batch = (uint32_t)rows;
    run.micro_batches = (uint32_t)(step_rows / rows);
    harness_open(&run, &harness_in_memory, &harness);
    for (size_t i = 0; i < steps; i++) {
        struct ox_step_result result;
        struct ox_step_input input = golden_input(&golden, 0, step_rows * golden.seq);
        fill(harness.engine, &golden, &run, i);
        input.step = input.adam.step = i + 1;
        input.adam.learning_rate = json_number_value(json_object_get(reference, "learning_rate"));
        REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
        losses = fmax(losses, fabs(result.loss - number(reference, "losses", i)));
        norms = fmax(norms, fabs(result.grad_norm / number(reference, "grad_norms", i) - 1));
    }
    harness_close(&harness);
    printf("%s, %u micro-batches of %u rows\n", golden.folder, run.micro_batches, run.batch);
    golden_report("losses", losses, 3e-6);
    golden_report("gradient norms, relative", norms, 1e-5);
    golden_close(&golden);
}

int main(void) {
    json_t *json = NULL;
    const json_t *reference;
    size_t idx;
    REQUIRE_OK(ox_json_load(path, 1 << 20, &json));
    json_array_foreach(json_object_get(json, "runs"), idx, reference) {
        check(json, reference);
    }
    json_decref(json);
    return test_end();
}
