/* --dtype fp16 on the CPU against PyTorch (tests/golden/scaler.json): 200 steps under autocast to float16 with
 * torch.amp.GradScaler, in some of which gradients are made to overflow. Before every step the loss scales are the
 * same; losses and norms differ by what PyTorch rounds to float16 and the engine does not, outputs of linear layers and
 * gradients of weights. */
#include "engine/run/schedule.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>

static const char path[] = "tests/golden/scaler.json";

/* Of the losses, absolute, and of the norms, relative: in the first steps and in all. About twice what was measured. */
enum { FIRST = 20 };
static const double first_limits[2] = {1e-3, 1e-3}, all_limits[2] = {9e-3, 3.5e-2};

static double number(const json_t *object, const char *key) {
    const json_t *const value = json_object_get(object, key);
    CHECK(json_is_number(value));
    return json_number_value(value);
}

static bool is_forced(const json_t *json, uint64_t step) {
    size_t idx;
    const json_t *value;
    json_array_foreach(json_object_get(json, "forced"), idx, value) {
        if ((uint64_t)json_integer_value(value) == step) {
            return true;
        }
    }
    return false;
}

struct apart {
    double loss, norm;
};

static void note(struct apart *apart, const struct ox_step_result *result, const json_t *reference, uint64_t step) {
    const double loss = json_number_value(json_array_get(json_object_get(reference, "losses"), step));
    const double norm = json_number_value(json_array_get(json_object_get(reference, "grad_norms"), step));
    apart->loss = fmax(apart->loss, fabs(result->loss - loss));
    apart->norm = fmax(apart->norm, result->overflow ? 0 : fabs(result->grad_norm / norm - 1));
}

static void check_run(const json_t *json, const json_t *reference, const struct harness_place *place) {
    const uint64_t steps = (uint64_t)number(json, "steps"), window = (uint64_t)number(json, "window");
    const json_t *const scales = json_object_get(reference, "scales");
    struct golden golden;
    struct harness harness;
    struct apart first = {0}, all = {0};
    uint16_t code = (uint16_t)(1 + (int)log2(json_number_value(json_array_get(scales, 0))));
    uint32_t tracker = 0;
    uint64_t updates = 0, skipped = 0;
    golden_open(json_string_value(json_object_get(reference, "model")), &golden);
    golden.micro_batches = (uint64_t)number(json, "micro_batches");
    struct harness_run run = golden_run(&golden);
    run.dtype = OX_COMPUTE_FP16;
    harness_open(&run, place, &harness);
    for (uint64_t i = 0; i < steps; i++) {
        struct ox_step_result result;
        struct ox_step_input input = golden_input(&golden, 0, golden_fill(harness.engine, &golden, i));
        const double scale = ldexp(1, code - 1);
        CHECK(scale == json_number_value(json_array_get(scales, i)));
        input.step = i + 1;
        input.adam.step = updates + 1;
        input.adam.learning_rate = number(json, "learning_rate");
        input.loss_scale = scale * (is_forced(json, i) ? number(json, "forced_by") : 1);
        REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
        CHECK(result.overflow == is_forced(json, i) && result.finite == !result.overflow);
        CHECK(ox_loss_scale_step(&code, &tracker, window, result.overflow));
        updates += result.finite;
        skipped += !result.finite;
        note(i < FIRST ? &first : &all, &result, reference, i);
    }
    printf("%s, %s: %llu steps skipped\n", json_string_value(json_object_get(reference, "model")), place->name,
           (unsigned long long)skipped);
    CHECK(skipped == json_array_size(json_object_get(json, "forced")));
    golden_report("losses of the first steps", first.loss, first_limits[0]);
    golden_report("gradient norms, relative", first.norm, first_limits[1]);
    golden_report("losses of all steps", all.loss, all_limits[0]);
    golden_report("gradient norms, relative", all.norm, all_limits[1]);
    harness_close(&harness);
    golden_close(&golden);
}

int main(void) {
    json_t *json = NULL;
    const json_t *reference;
    size_t idx;
    REQUIRE_OK(ox_json_load(path, 1 << 20, &json));
    json_array_foreach(json_object_get(json, "runs"), idx, reference) {
        check_run(json, reference, &harness_in_memory);
    }
    CHECK(idx == 2);
    json_decref(json);
    return test_end();
}
