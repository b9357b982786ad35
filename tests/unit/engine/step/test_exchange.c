/* Sums that travel between ranks in fewer bits: each part of a gradient is rounded once, the parts are added in
 * float32, and among copies the sum is rounded once more. The parts come from runs of one rank whose other
 * micro-batches have no targets, and are rounded here by other code than the engine's. */
#include "base/planes.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS = 8 };

struct way {
    uint32_t ranks, copies; /* copies: 0: slices among all ranks */
    enum ox_sharding sharding;
};
static const struct way ways[] = {
    {2, 0, OX_SHARDING_FULL}, {4, 0, OX_SHARDING_GRAD}, {2, 0, OX_SHARDING_NONE}, {4, 2, OX_SHARDING_FULL},
    {4, 2, OX_SHARDING_STATE}, {3, 0, OX_SHARDING_STEP},
};

static double nearest_even(double x) {
    const double floor_of = floor(x), rest = x - floor_of;
    return rest > 0.5 || (rest == 0.5 && fmod(floor_of, 2) != 0) ? floor_of + 1 : floor_of;
}

/* Rounds a whole gradient as its ranks send it: slices begin at multiples of 64. */
static void round_all(enum ox_exchange_dtype dtype, float *x, uint64_t count) {
    for (uint64_t first = 0; first < count && dtype == OX_EXCHANGE_Q8; first += 64) {
        const uint64_t past = first + 64 < count ? first + 64 : count;
        float most = 0;
        for (uint64_t i = first; i < past; i++) {
            most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        }
        const float scale = most / 127.0f < 1.17549435e-38f ? 0.0f : most / 127.0f;
        for (uint64_t i = first; i < past; i++) {
            x[i] = scale == 0.0f ? 0.0f : (float)nearest_even((double)(x[i] * (1.0f / scale))) * scale;
        }
    }
    for (uint64_t i = 0; i < count && dtype == OX_EXCHANGE_BF16; i++) {
        x[i] = ox_bf16_to_f32(ox_bf16_from_f32(x[i]));
    }
}

/* The gradients of a step of which micro-batches [first, past) alone have targets. */
static void gradients(const struct golden *golden, const struct harness_run *run, uint32_t first, uint32_t past,
                      float *out[GOLDEN_UNITS_MAX], uint64_t elems[GOLDEN_UNITS_MAX]) {
    struct harness harness;
    struct ox_step_result result;
    harness_open(run, &harness_in_memory, &harness);
    const uint64_t targets = golden_fill(harness.engine, golden, 0);
    for (uint32_t mb_idx = 0; mb_idx < golden->micro_batches; mb_idx++) {
        const struct ox_batch batch = ox_engine_batch(harness.engine, mb_idx);
        for (size_t i = 0; i < golden->batch * golden->seq && (mb_idx < first || mb_idx >= past); i++) {
            batch.targets[i] = OX_TARGET_MASKED;
        }
    }
    struct ox_step_input input = golden_input(golden, 0, targets); /* divided by all targets of the step */
    REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
    CHECK(memcmp(result.traffic, result.planned, sizeof result.traffic) == 0);
    for (uint32_t i = 0; i < harness.model->unit_count; i++) {
        elems[i] = harness.model->units[i].elem_count;
        out[i] = calloc(elems[i], sizeof(float));
        ox_engine_grad_read(harness.engine, i, 0, elems[i], out[i]);
    }
    harness_close(&harness);
}

static void free_all(float *grads[GOLDEN_UNITS_MAX]) {
    for (size_t i = 0; i < GOLDEN_UNITS_MAX; i++) {
        free(grads[i]);
        grads[i] = NULL;
    }
}

/* The parts of equal shares of eight leaves; three ranks have 3, 3 and 2 of these, whose trees have the parts 0-1 2,
 * 3 4-5, 6-7. */
static uint32_t parts_of(uint32_t ranks, uint32_t copies, uint32_t first[], uint32_t past[]) {
    static const uint32_t of_three[][2] = {{0, 2}, {2, 3}, {3, 4}, {4, 6}, {6, 8}};
    const uint32_t shares = copies > 0 ? copies : ranks, count = shares == 3 ? 5 : shares;
    for (uint32_t i = 0; i < count; i++) {
        first[i] = shares == 3 ? of_three[i][0] : i * GROUPS / shares;
        past[i] = shares == 3 ? of_three[i][1] : (i + 1) * GROUPS / shares;
    }
    return count;
}

/* Adds parts [from, to) of leaves as the tree does, which splits at the largest power of two below their number. */
static void add_tree(float *const *parts, const uint32_t *first, const uint32_t *past, uint32_t from, uint32_t to,
                     uint64_t count, float *out) {
    if (to - from == 1) {
        memcpy(out, parts[from], count * sizeof *out);
        return;
    }
    const uint32_t leaves = past[to - 1] - first[from];
    uint32_t half = 1, at = from;
    while (2 * half < leaves) {
        half *= 2;
    }
    while (first[at] < first[from] + half) {
        at++;
    }
    float *const right = calloc(count, sizeof *right);
    add_tree(parts, first, past, from, at, count, out);
    add_tree(parts, first, past, at, to, count, right);
    for (uint64_t i = 0; i < count; i++) {
        out[i] += right[i];
    }
    free(right);
}

static void check_way(const struct golden *golden, const struct way *way, enum ox_exchange_dtype dtype) {
    enum { MOST = 8 };
    float *parts[MOST][GOLDEN_UNITS_MAX] = {{NULL}}, *measured[GOLDEN_UNITS_MAX] = {NULL};
    uint64_t elems[GOLDEN_UNITS_MAX] = {0};
    uint32_t first[MOST], past[MOST];
    const uint32_t copies = way->sharding == OX_SHARDING_NONE ? way->ranks : way->copies;
    const uint32_t count = parts_of(way->ranks, copies, first, past);
    struct harness_run run = golden_run(golden);
    run.sum_groups = GROUPS;
    for (uint32_t i = 0; i < count; i++) {
        gradients(golden, &run, first[i], past[i], parts[i], elems);
    }
    run.ranks = way->ranks;
    run.copies = way->copies;
    run.sharding = way->sharding;
    run.exchange = dtype;
    gradients(golden, &run, 0, GROUPS, measured, elems);
    uint64_t wrong = 0, compared = 0, moved = 0;
    for (size_t unit = 0; unit < GOLDEN_UNITS_MAX && measured[unit] != NULL; unit++) {
        float *of_unit[MOST];
        float *const sum = calloc(elems[unit], sizeof *sum), *const exact = calloc(elems[unit], sizeof *sum);
        for (uint32_t i = 0; i < count; i++) {
            of_unit[i] = parts[i][unit];
        }
        add_tree(of_unit, first, past, 0, count, elems[unit], exact);
        for (uint32_t i = 0; i < count; i++) {
            round_all(dtype, of_unit[i], elems[unit]);
        }
        add_tree(of_unit, first, past, 0, count, elems[unit], sum);
        if (copies > 1) {
            round_all(dtype, sum, elems[unit]);
        }
        for (uint64_t i = 0; i < elems[unit]; i++) {
            wrong += sum[i] != measured[unit][i];
            moved += sum[i] != exact[i];
            compared++;
        }
        free(sum);
        free(exact);
    }
    printf("%u ranks, %s, %u copies, %s: %llu of %llu elements differ from the rounded sums, %llu from the exact "
           "ones\n", way->ranks, ox_sharding_name(way->sharding), copies, ox_exchange_dtype_name(dtype),
           (unsigned long long)wrong, (unsigned long long)compared, (unsigned long long)moved);
    CHECK(wrong == 0 && moved > compared / 4);
    for (uint32_t i = 0; i < count; i++) {
        free_all(parts[i]);
    }
    free_all(measured);
}

int main(void) {
    struct golden golden;
    golden_open("llama_untied_odd", &golden);
    golden.micro_batches = GROUPS;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        check_way(&golden, &ways[i], OX_EXCHANGE_BF16);
        check_way(&golden, &ways[i], OX_EXCHANGE_Q8);
    }
    golden_close(&golden);
    return test_end();
}
