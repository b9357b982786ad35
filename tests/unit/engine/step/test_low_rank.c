/* Copies of a model that exchange gradients as products of thin matrices (PowerSGD). In full rank the sums are those of
 * whole exchanges, to float32; in any rank what is sent and what is left add up to what all copies had; and 16 steps
 * are those of PyTorch's hook under DistributedDataParallel over gloo (tests/golden/powersgd.json). */
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS = 8 };
static const char path[] = "tests/golden/powersgd.json";

struct way {
    uint32_t ranks, copies; /* copies: 0: each rank is one */
};
static const struct way ways[] = {{2, 0}, {4, 0}, {4, 2}, {3, 0}, {6, 2}};

static struct harness_run run_of(const struct golden *golden, const struct way *way, uint32_t columns,
                                 double min_rate) {
    struct harness_run run = golden_run(golden);
    run.ranks = way->ranks;
    run.copies = way->copies;
    run.sharding = way->copies > 0 ? OX_SHARDING_FULL : OX_SHARDING_NONE;
    run.sum_groups = GROUPS;
    run.low_rank = (struct ox_low_rank_config){.rank = columns, .min_rate = min_rate, .warm_start = true};
    return run;
}

/* Takes step `nth`; without an update, so that the next one has the same gradients. */
static void step(struct harness *harness, const struct golden *golden, size_t nth, double rate) {
    struct ox_step_result result;
    struct ox_step_input input = golden_input(golden, 0, golden_fill(harness->engine, golden, 0));
    input.step = input.adam.step = nth + 1;
    input.adam.learning_rate = rate;
    input.adam.weight_decay = 0;
    REQUIRE_OK(ox_engine_step(harness->engine, &input, &result));
    CHECK(memcmp(result.traffic, result.planned, sizeof result.traffic) == 0);
}

static float *gradient(struct harness *harness, uint32_t unit_idx) {
    const uint64_t count = harness->model->units[unit_idx].elem_count;
    float *const out = calloc(count, sizeof *out);
    ox_engine_grad_read(harness->engine, unit_idx, 0, count, out);
    return out;
}

/* ---- what is left --------------------------------------------------------------------------------------- */

/* The sum over copies of what is left of each unit's gradient. */
struct left {
    const struct ox_model *model;
    double *of_unit[GOLDEN_UNITS_MAX];
    double square_sum;
    uint64_t blocks, elems;
};

static enum ox_status add_left(void *context, const struct ox_residual *of) {
    struct left *const left = context;
    const struct ox_tensor *const tensor = &left->model->tensors[of->tensor_idx];
    double *const at = left->of_unit[tensor->unit_idx] + tensor->offset + (uint64_t)of->row_first * of->cols;
    for (uint64_t i = 0; i < (uint64_t)of->rows * of->cols; i++) {
        at[i] += (double)of->rest[i];
        left->square_sum += (double)of->rest[i] * (double)of->rest[i];
    }
    left->blocks++;
    left->elems += (uint64_t)of->rows * of->cols;
    return OX_OK;
}

static void read_left(struct harness *harness, struct left *left) {
    *left = (struct left){.model = harness->model};
    for (uint32_t i = 0; i < harness->model->unit_count; i++) {
        left->of_unit[i] = calloc(harness->model->units[i].elem_count, sizeof(double));
    }
    REQUIRE_OK(ox_engine_each_residual(harness->engine, false, add_left, left));
}

static void free_left(struct left *left) {
    for (uint32_t i = 0; i < GOLDEN_UNITS_MAX; i++) {
        free(left->of_unit[i]);
    }
}

/* Over several steps with the same gradients: what all steps sent, and what is left of all copies, is as many times the
 * exact gradient. */
static void check_sum(const struct golden *golden, const struct way *way, uint32_t columns) {
    enum { STEPS = 4 };
    struct harness exact, harness;
    struct left left;
    double worst = 0, largest = 0;
    struct harness_run whole = run_of(golden, way, 0, 0), low = run_of(golden, way, columns, 1.01);
    double *sent[GOLDEN_UNITS_MAX] = {NULL};
    harness_open(&whole, &harness_in_memory, &exact);
    step(&exact, golden, 0, 0);
    harness_open(&low, &harness_in_memory, &harness);
    for (size_t n = 0; n < STEPS; n++) {
        step(&harness, golden, n, 0);
        for (uint32_t i = 0; i < harness.model->unit_count; i++) {
            const uint64_t count = harness.model->units[i].elem_count;
            float *const grad = gradient(&harness, i);
            sent[i] = n == 0 ? calloc(count, sizeof(double)) : sent[i];
            for (uint64_t k = 0; k < count; k++) {
                sent[i][k] += (double)grad[k];
            }
            free(grad);
        }
    }
    read_left(&harness, &left);
    for (uint32_t i = 0; i < harness.model->unit_count; i++) {
        float *const grad = gradient(&exact, i);
        for (uint64_t k = 0; k < harness.model->units[i].elem_count; k++) {
            worst = fmax(worst, fabs(sent[i][k] + left.of_unit[i][k] - STEPS * (double)grad[k]));
            largest = fmax(largest, fabs(STEPS * (double)grad[k]));
        }
        free(grad);
        free(sent[i]);
    }
    printf("%u ranks, %u copies, rank %u: %llu blocks; sent and left are the gradients to %.1e of the largest\n",
           way->ranks, way->copies, columns, (unsigned long long)left.blocks, worst / largest);
    CHECK(left.blocks > 0 && left.square_sum > 0 && worst < 2e-6 * largest);
    free_left(&left);
    harness_close(&exact);
    harness_close(&harness);
}

/* In full rank nothing is left, and the sums are those of whole exchanges. */
static void check_full_rank(const struct golden *golden, const struct way *way) {
    struct harness exact, harness;
    double worst = 0, largest = 0;
    uint64_t moved = 0;
    struct harness_run whole = run_of(golden, way, 0, 0), full = run_of(golden, way, 4096, 1e-3);
    harness_open(&whole, &harness_in_memory, &exact);
    harness_open(&full, &harness_in_memory, &harness);
    step(&exact, golden, 0, 0);
    step(&harness, golden, 0, 0);
    for (uint32_t i = 0; i < harness.model->unit_count; i++) {
        float *const expected = gradient(&exact, i), *const found = gradient(&harness, i);
        for (uint64_t k = 0; k < harness.model->units[i].elem_count; k++) {
            worst = fmax(worst, fabs((double)found[k] - (double)expected[k]));
            largest = fmax(largest, fabs((double)expected[k]));
            moved += found[k] != expected[k];
        }
        free(expected);
        free(found);
    }
    printf("%u ranks, %u copies, full rank: gradients to %.1e of the largest\n", way->ranks, way->copies,
           worst / largest);
    CHECK(worst < 2e-6 * largest && moved > 0);
    harness_close(&exact);
    harness_close(&harness);
}

/* ---- bits ------------------------------------------------------------------------------------------------- */

/* The bits of so many copies depend on no placement, on no delay, and on nothing that a save does. */
static void check_bits(const struct golden *golden, const struct way *way) {
    struct outcome expected;
    struct harness_run run = run_of(golden, way, 2, 1.01);
    run.low_rank.start_step = 2;
    golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    for (const struct harness_place *place = harness_places; place->name != NULL; place++) {
        struct outcome outcome;
        if (place->store) {
            continue; /* which has one copy, that of a process (tests/sys/processes/test_powersgd.c) */
        }
        golden_train(golden, &run, place, FEW_STEPS, &outcome);
        outcome_check_same(place->name, &expected, &outcome);
        outcome_close(&outcome);
    }
    outcome_close(&expected);
}

/* A step that is not taken leaves what the last one left. */
static void check_skipped(const struct golden *golden, const struct way *way) {
    struct harness harness;
    struct left before, after;
    struct ox_step_result result;
    struct harness_run run = run_of(golden, way, 2, 1.01);
    run.trusts_memory = true; /* a weight changes */
    harness_open(&run, &harness_in_memory, &harness);
    step(&harness, golden, 0, 1e-3);
    step(&harness, golden, 1, 1e-3);
    read_left(&harness, &before);
    struct ox_step_input input = golden_input(golden, 0, golden_fill(harness.engine, golden, 0));
    input.step = input.adam.step = 3;
    uint16_t infinity = 0x7f80;
    harness_exchange(&harness, harness.model->unit_count - 1, &infinity);
    REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
    harness_exchange(&harness, harness.model->unit_count - 1, &infinity);
    read_left(&harness, &after);
    CHECK(!result.finite && before.square_sum == after.square_sum && isfinite(after.square_sum));
    REQUIRE_OK(ox_engine_average_residuals(harness.engine));
    free_left(&after);
    read_left(&harness, &after);
    double worst = 0; /* the mean times the copies is the sum */
    for (uint32_t i = 0; i < harness.model->unit_count; i++) {
        for (uint64_t k = 0; k < harness.model->units[i].elem_count; k++) {
            worst = fmax(worst, fabs(before.of_unit[i][k] - after.of_unit[i][k]));
        }
    }
    CHECK(worst < 1e-6 * sqrt(before.square_sum) && after.square_sum < before.square_sum);
    free_left(&before);
    free_left(&after);
    harness_close(&harness);
}

/* Steps whose losses have other factors, powers of two, leave the same. */
static void check_scaled(const struct golden *golden, const struct way *way) {
    static const double scales[2][3] = {{1, 1, 1}, {0x1p16, 0x1p10, 0x1p-3}};
    struct left left[2];
    for (int i = 0; i < 2; i++) {
        struct harness harness;
        struct harness_run run = run_of(golden, way, 2, 1.01);
        harness_open(&run, &harness_in_memory, &harness);
        for (size_t n = 0; n < 3; n++) {
            struct ox_step_result result;
            struct ox_step_input input = golden_input(golden, 0, golden_fill(harness.engine, golden, n));
            input.step = input.adam.step = 1 + n;
            input.loss_scale = scales[i][n];
            REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
        }
        read_left(&harness, &left[i]);
        harness_close(&harness);
    }
    CHECK(left[0].square_sum > 0 && left[0].square_sum == left[1].square_sum);
    free_left(&left[0]);
    free_left(&left[1]);
}

/* ---- PyTorch ------------------------------------------------------------------------------------------------ */

static double number(const json_t *json, const char *key, size_t idx) {
    const json_t *const value = json_array_get(json_object_get(json, key), idx);
    CHECK(json_is_number(value));
    return json_number_value(value);
}

static uint64_t count_of(const json_t *json, const char *key) {
    uint64_t value = 0;
    REQUIRE_OK(ox_json_get_u64(path, json, key, true, &value));
    return value;
}

/* Both number the matrices in the same order, from which the first Q follows. */
static void check_order(const struct ox_model *model, const json_t *names) {
    size_t idx = 0;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        const struct ox_tensor *tensor = NULL;
        while ((tensor = ox_unit_next_tensor(model, &model->units[i], tensor)) != NULL) {
            if (tensor->rank > 1) {
                const char *const name = json_string_value(json_array_get(names, idx++));
                CHECK(name != NULL && strcmp(name, tensor->name) == 0);
            }
        }
    }
    CHECK(idx == json_array_size(names));
}

static void check_torch(const json_t *json, const json_t *reference) {
    struct golden golden;
    struct harness harness;
    double losses = 0, norms = 0;
    golden_open(json_string_value(json_object_get(reference, "model")), &golden);
    golden.micro_batches = count_of(json, "micro_batches");
    const struct way way = {(uint32_t)count_of(reference, "ranks"), 0};
    struct harness_run run = run_of(&golden, &way, (uint32_t)count_of(reference, "columns"),
                                    json_number_value(json_object_get(json, "min_rate")));
    run.sum_groups = way.ranks;
    run.low_rank.start_step = count_of(json, "start");
    harness_open(&run, &harness_in_memory, &harness);
    check_order(harness.model, json_object_get(reference, "matrices"));
    for (uint64_t i = 0; i < count_of(json, "steps"); i++) {
        struct ox_step_result result;
        struct ox_step_input input = golden_input(&golden, 0, golden_fill(harness.engine, &golden, i));
        input.step = input.adam.step = i + 1;
        input.adam.learning_rate = json_number_value(json_object_get(json, "learning_rate"));
        REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
        CHECK(memcmp(result.traffic, result.planned, sizeof result.traffic) == 0);
        losses = fmax(losses, fabs(result.loss / number(reference, "losses", i) - 1));
        norms = fmax(norms, fabs(result.grad_norm / number(reference, "grad_norms", i) - 1));
    }
    printf("%s, %u copies, rank %u beside PyTorch: losses within %.1e, norms within %.1e\n", golden.folder, way.ranks,
           run.low_rank.rank, losses, norms);
    CHECK(losses < 1e-5 && norms < 1e-3);
    harness_close(&harness);
    golden_close(&golden);
}

int main(void) {
    json_t *json = NULL;
    const json_t *reference;
    size_t idx;
    struct golden golden;
    REQUIRE_OK(ox_json_load(path, 1 << 20, &json));
    json_array_foreach(json_object_get(json, "runs"), idx, reference) {
        check_torch(json, reference);
    }
    json_decref(json);
    golden_open("llama_untied_odd", &golden);
    golden.micro_batches = GROUPS;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        check_sum(&golden, &ways[i], 1 + (uint32_t)i % 3);
        check_full_rank(&golden, &ways[i]);
    }
    check_skipped(&golden, &ways[1]);
    check_scaled(&golden, &ways[1]);
    check_bits(&golden, &ways[0]);
    check_bits(&golden, &ways[2]);
    golden_close(&golden);
    return test_end();
}
