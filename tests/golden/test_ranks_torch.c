/* Ranks against PyTorch (tests/golden/ranks.json): 20 steps of DistributedDataParallel and of FSDP2 in 2 and 4
 * processes over gloo, and of FSDP2 with two copies in 4, with gradient accumulation and clipping, beside as many ranks
 * here with the same batches; and 12 steps of processes that divide features, rows of sequences, both, layers, or
 * experts (strategies.json): by transformers' plan of a model, a gather of keys and values, PyTorch's pipelines, and
 * rows that go to their experts by an all-to-all. */
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char ranks_path[] = "tests/golden/ranks.json", strategies_path[] = "tests/golden/strategies.json";

/* The largest differences from the reference. */
struct apart {
    double losses, norms, weights;
};

static uint64_t count_of(const json_t *json, const char *key) {
    uint64_t value = 0;
    REQUIRE_OK(ox_json_get_u64("the reference", json, key, true, &value));
    return value;
}

static double number(const json_t *reference, const char *key, size_t idx) {
    const json_t *const value = json_array_get(json_object_get(reference, key), idx);
    CHECK(json_is_number(value));
    return json_number_value(value);
}

/* The reference has some elements of each tensor; null where arithmetic does not determine an element. */
static double weights_apart(struct harness *harness, const json_t *reference, uint64_t stride) {
    struct harness_error error = {0};
    const json_t *const tensors = json_object_get(reference, "final");
    CHECK(json_object_size(tensors) == harness->model->tensor_count);
    for (uint32_t i = 0; i < harness->model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &harness->model->tensors[i];
        const json_t *const values = json_object_get(tensors, tensor->name);
        float *const unit = harness_read_unit(harness, tensor->unit_idx, OX_PLANE_MASTER);
        CHECK(json_array_size(values) == (tensor->count + stride - 1) / stride);
        for (size_t k = 0; k < json_array_size(values); k++) {
            const json_t *const value = json_array_get(values, k);
            const float expected = json_is_null(value) ? NAN : (float)json_number_value(value);
            harness_compare(&error, unit + tensor->offset + k * stride, 1, &expected, 1);
        }
        free(unit);
    }
    CHECK(error.compared > 400);
    return error.largest;
}

/* Ranks that divide micro-batches. Returns where planes live. */
static const struct harness_place *set_data(const json_t *reference, struct harness_run *run) {
    const char *const way = json_string_value(json_object_get(reference, "way"));
    const bool whole = strcmp(way, "ddp") == 0, hybrid = strcmp(way, "hybrid") == 0;
    run->ranks = run->sum_groups = (uint32_t)count_of(reference, "ranks");
    run->sharding = whole ? OX_SHARDING_NONE : OX_SHARDING_FULL;
    run->copies = hybrid ? 2 : 0;
    return whole || hybrid ? &harness_in_memory : &harness_places[0];
}

/* Ranks that divide something else. */
static const struct harness_place *set_mesh(const json_t *reference, struct harness_run *run) {
    run->tensors = run->tensor_groups = (uint32_t)count_of(reference, "tensors");
    run->contexts = run->context_groups = (uint32_t)count_of(reference, "contexts");
    run->pipe = (uint32_t)count_of(reference, "pipe");
    run->schedule = run->pipe > 1 ? OX_PIPE_1F1B : OX_PIPE_VERTICAL;
    run->experts = (uint32_t)count_of(reference, "experts");
    run->experts_per_unit = run->experts > 1 ? 1 : 0;
    run->sum_groups = (uint32_t)count_of(reference, "data");
    run->ranks = run->tensors * run->contexts * run->pipe * run->sum_groups;
    return &harness_in_memory;
}

static struct apart train(const json_t *json, const json_t *reference, const struct golden *golden) {
    const uint64_t steps = count_of(json, "steps");
    struct harness harness;
    struct harness_run run = golden_run(golden);
    struct apart apart = {0};
    const bool of_data = json_object_get(reference, "way") != NULL;
    harness_open(&run, of_data ? set_data(reference, &run) : set_mesh(reference, &run), &harness);
    for (uint64_t i = 0; i < steps; i++) {
        struct ox_step_result result;
        struct ox_step_input input = golden_input(golden, 0, golden_fill(harness.engine, golden, i));
        CHECK(!of_data || input.target_count == golden->micro_batches * golden->batch * golden->seq);
        input.step = input.adam.step = i + 1;
        input.adam.learning_rate = json_number_value(json_object_get(json, "learning_rate"));
        REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
        CHECK(memcmp(result.traffic, result.planned, sizeof result.traffic) == 0);
        apart.losses = fmax(apart.losses, fabs(result.loss - number(reference, "losses", i)));
        apart.norms = fmax(apart.norms, fabs(result.grad_norm / number(reference, "grad_norms", i) - 1));
    }
    apart.weights = of_data ? weights_apart(&harness, reference, count_of(json, "sample_stride")) : 0;
    harness_close(&harness);
    return apart;
}

static void check(const char *path, const char *what, size_t count, double limit) {
    json_t *json = NULL;
    const json_t *reference;
    size_t idx;
    REQUIRE_OK(ox_json_load(path, 1 << 20, &json));
    json_array_foreach(json_object_get(json, "runs"), idx, reference) {
        struct golden golden;
        golden_open(json_string_value(json_object_get(reference, "model")), &golden);
        golden.micro_batches = count_of(json, "micro_batches");
        const json_t *const contexts = json_object_get(reference, "contexts");
        const uint64_t parts = contexts == NULL ? 1 : 2 * (uint64_t)json_integer_value(contexts);
        golden.padding = (parts - golden.seq % parts) % parts;
        const struct apart apart = train(json, reference, &golden);
        printf("%s, %s %zu of PyTorch\n", golden.folder, what, idx);
        golden_report("losses", apart.losses, limit);
        golden_report("gradient norms, relative", apart.norms, limit);
        if (json_object_get(reference, "final") != NULL) {
            golden_report("final weights", apart.weights, 5e-6);
        }
        if (idx % 5 == 0) { /* the comparison would see a fault */
            golden.max_grad_norm = 0;
            CHECK(train(json, reference, &golden).losses > 1e-3);
        }
        golden_close(&golden);
    }
    CHECK(idx == count);
    json_decref(json);
}

int main(void) {
    check(ranks_path, "way", 10, 2e-6);
    check(strategies_path, "mesh", 13, 1e-5);
    return test_end();
}
