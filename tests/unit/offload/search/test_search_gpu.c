/* The planner's choice on machines with a GPU against what it makes of narrower requests, by the profiles of
 * docs/profiles: none of these is more than 0.5 % faster with
 * drives, 2 % without. Cases that were lost once are the test. With two numbers as
 * arguments, a list of models and budgets is compared instead: from the case of the first number on, every so many. */
#include "base/bytes.h"
#include "tests/kit/plan/plan_choice.h"
#include "tests/kit/plan/step_case.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>
#include <time.h>

/* Without drives every unit may live on the device, and choices depend on each other more. */
static double limit_of(const struct step_case *c) {
    return c->drives > 0 ? 1.005 : 1.02;
}

/* What is asked for; 0 stands for what the planner may choose, else one more than the value. */
struct narrow {
    uint32_t tiles, depth, kept_quarters, device_quarters, overlap, act_tier, weights_tier, spread, turns;
};
static const struct narrow narrows[] = {
    {.device_quarters = 5}, {.device_quarters = 4}, {.device_quarters = 3}, {.device_quarters = 2},
    {.kept_quarters = 1}, {.kept_quarters = 2}, {.kept_quarters = 3}, {.kept_quarters = 5},
    {.tiles = 2}, {.tiles = 3}, {.tiles = 5}, {.overlap = 1}, {.overlap = 2}, {.depth = 1}, {.depth = 2}, {.depth = 3},
    {.act_tier = 1}, {.act_tier = 2}, {.weights_tier = 1}, {.weights_tier = 2},
    {.device_quarters = 5, .kept_quarters = 1}, {.device_quarters = 4, .kept_quarters = 1},
    {.device_quarters = 3, .kept_quarters = 1}, {.device_quarters = 3, .kept_quarters = 5},
    {.device_quarters = 5, .tiles = 2}, {.device_quarters = 5, .tiles = 5}, {.device_quarters = 3, .tiles = 2},
    {.weights_tier = 1, .tiles = 2}, {.weights_tier = 1, .kept_quarters = 1}, {.act_tier = 2, .tiles = 2},
    {.act_tier = 2, .kept_quarters = 1}, {.act_tier = 1, .kept_quarters = 3}, {.overlap = 1, .kept_quarters = 1},
    {.spread = 1}, {.spread = 2}, {.turns = 1}, {.turns = 2}, {.spread = 2, .turns = 2}, {.spread = 2, .turns = 1},
    {.spread = 1, .turns = 2}, {.act_tier = 1, .turns = 2}, {.act_tier = 1, .turns = 1}, {.act_tier = 2, .spread = 2},
    {.weights_tier = 3}, {.act_tier = 3},
};
enum { NARROW_COUNT = sizeof narrows / sizeof *narrows };

static void open_run(const struct step_case *c, struct step_run *run) {
    step_case_open(c, run);
    run->config.device = OX_DEVICE_CUDA;
    run->config.budget.device_bytes -= OX_CUDA_PROCESS_BYTES;
}

/* False where the case does not allow the request: more tiles than micro-batches, or updates in backward beside units
 * on the device, for which the drives lack a slot. */
static bool request_of(const struct step_case *c, const struct narrow *narrow, struct ox_placement_request *request) {
    const uint32_t units = c->layers + 2;
    *request = plan_choice_automatic;
    request->tiles = narrow->tiles > 0 ? narrow->tiles - 1 : 0;
    request->prefetch_depth = (int32_t)narrow->depth - 1;
    request->overlap = (int32_t)narrow->overlap - 1;
    request->kept_units = narrow->kept_quarters > 0 ? (int32_t)(c->layers * (narrow->kept_quarters - 1) / 4) : -1;
    request->act_tier = narrow->act_tier > 0 ? (enum ox_tier)(narrow->act_tier - 1) : OX_TIER_COUNT;
    request->weights_tier = narrow->weights_tier > 0 ? (enum ox_tier)(narrow->weights_tier - 1) : OX_TIER_COUNT;
    request->speculative_spread = (int32_t)narrow->spread - 1;
    request->grads_alternate = (int32_t)narrow->turns - 1;
    if (narrow->device_quarters == 5) {
        request->state_tier = OX_TIER_DEVICE;
    } else if (narrow->device_quarters > 1) {
        request->device_units = units * (narrow->device_quarters - 1) / 4;
    }
    return request->tiles <= c->micro_batches &&
           (narrow->device_quarters == 0 || c->drives == 0 || narrow->overlap < 2);
}

/* Returns the largest ratio of the choice's seconds to those of `count` narrower requests; 0 where nothing fits. */
static double compare(const struct step_case *c, uint32_t first, uint32_t count) {
    struct step_run run;
    double worst = 0;
    open_run(c, &run);
    const clock_t begin = clock();
    const double chosen = step_case_seconds(&run, &plan_choice_automatic, false);
    const double planning = (double)(clock() - begin) / CLOCKS_PER_SEC;
    uint32_t worst_at = 0;
    for (uint32_t i = first; i < first + count && chosen > 0; i++) {
        struct ox_placement_request request;
        if (request_of(c, &narrows[i], &request)) {
            const double seconds = step_case_seconds(&run, &request, false);
            worst_at = seconds > 0 && chosen / seconds > worst ? i : worst_at;
            worst = seconds > 0 ? fmax(worst, chosen / seconds) : worst;
        }
    }
    printf("%s %u x %u, batch %u x %u x %u, %s, moments %d, %llu GiB, host %llu, %u drives: %.4g s, %.3f, planning "
           "%.3f s\n", c->profile, c->layers, c->hidden, c->batch, c->seq, c->micro_batches, c->fp32 ? "fp32" : "bf16",
           (int)c->moments, (unsigned long long)c->device_gib, (unsigned long long)c->host_gib, c->drives, chosen,
           worst, planning);
    if (worst > limit_of(c)) {
        struct ox_placement_request request;
        CHECK(request_of(c, &narrows[worst_at], &request));
        printf("  %u:\n", worst_at);
        (void)step_case_seconds(&run, &plan_choice_automatic, true);
        (void)step_case_seconds(&run, &request, true);
    }
    ox_model_close(&run.model);
    CHECK(worst <= limit_of(c));
    fflush(stdout);
    return worst;
}

/* ---- a list of models and budgets ------------------------------------------------------------------- */

static void compare_all(uint32_t first, uint32_t step) {
    static const struct {
        const char *name;
        uint64_t host_gib, most_gib;
    } machines[] = {{"h200-4-drives", 104, 115}, {"a100-4-drives", 104, 66}, {"rtx4090-4-drives", 104, 20},
                    {"rtx5090-1-drive", 48, 27}};
    static const struct {
        uint32_t hidden, layers, width, vocab, kv_heads;
    } models[] = {{768, 12, 2048, 32000, 0}, {1024, 24, 4096, 151936, 4}, {2048, 22, 5632, 32000, 4},
                  {3072, 28, 8192, 128256, 8}, {4096, 32, 11008, 32000, 0}, {5120, 40, 13824, 32000, 0},
                  {6656, 60, 17920, 32000, 0}, {8192, 80, 28672, 32000, 8}};
    static const uint32_t shapes[][3] = {{4, 2048, 4}, {1, 1024, 16}, {8, 512, 1}, {2, 4096, 8}};
    static const uint64_t sizes[] = {8, 16, 24, 40, 80, 0};
    const uint32_t model_count = sizeof models / sizeof *models, size_count = sizeof sizes / sizeof *sizes;
    const uint32_t count = 4 * model_count * 4 * size_count * 3 * 2;
    for (uint32_t i = first; i < count; i += step) {
        const uint32_t machine = i % 4, model = i / 4 % model_count, at = i / 4 / model_count;
        const uint32_t shape = at % 4, size = at / 4 % size_count, moments = at / 4 / size_count % 3;
        const uint64_t gib = sizes[size] > 0 ? sizes[size] : machines[machine].most_gib;
        const struct step_case c = {
            machines[machine].name, models[model].hidden, models[model].layers, models[model].width,
            models[model].vocab, models[model].kv_heads, shapes[shape][0], shapes[shape][1], shapes[shape][2],
            (i * 7 + at) % 5 == 0, (enum ox_moments)moments, gib, machines[machine].host_gib,
            at / 4 / size_count / 3 % 2 == 0 ? 0 : 4};
        if (gib <= machines[machine].most_gib && !(c.fp32 && c.moments == OX_MOMENTS_Q8)) {
            (void)compare(&c, 0, NARROW_COUNT);
        }
    }
}

/* Cases in which a narrower request was once faster by more than the limit, and which one. */
static const struct lost {
    struct step_case of;
    uint32_t narrow;
} lost[] = {
    {{"rtx4090-4-drives", 4096, 32, 14336, 128256, 8, 1, 2048, 16, false, OX_MOMENTS_F32, 19, 64, 4}, 16},
    {{"rtx4090-4-drives", 5120, 48, 13824, 152064, 8, 1, 2048, 16, false, OX_MOMENTS_F32, 19, 64, 4}, 34},
    {{"rtx4090-4-drives", 5120, 64, 27648, 151936, 8, 1, 2048, 16, false, OX_MOMENTS_F32, 19, 96, 4}, 34},
    {{"rtx4090-4-drives", 4096, 32, 14336, 128256, 8, 1, 2048, 16, true, OX_MOMENTS_F32, 19, 64, 4}, 43},
    {{"h200-4-drives", 4096, 32, 11008, 32000, 0, 4, 2048, 4, false, OX_MOMENTS_F32, 115, 104, 0}, 0},
    {{"a100-4-drives", 2048, 22, 5632, 32000, 4, 2, 4096, 8, false, OX_MOMENTS_F32, 16, 104, 0}, 7},
    {{"rtx4090-4-drives", 2048, 22, 5632, 32000, 4, 8, 512, 1, true, OX_MOMENTS_F32, 20, 104, 0}, 6},
    {{"h200-4-drives", 2048, 22, 5632, 32000, 4, 1, 1024, 16, false, OX_MOMENTS_BF16, 16, 104, 0}, 0},
    {{"h200-4-drives", 5120, 40, 13824, 32000, 0, 1, 2048, 16, false, OX_MOMENTS_F32, 115, 104, 0}, 2},
    {{"h200-4-drives", 4096, 32, 11008, 32000, 0, 8, 512, 1, false, OX_MOMENTS_BF16, 40, 104, 0}, 13},
    {{"h200-4-drives", 4096, 32, 11008, 32000, 0, 1, 1024, 16, false, OX_MOMENTS_BF16, 24, 104, 0}, 34},
};

int main(int argc, char **argv) {
    if (argc > 2) {
        compare_all((uint32_t)strtoul(argv[1], NULL, 10), (uint32_t)strtoul(argv[2], NULL, 10));
        return test_end();
    }
    for (unsigned i = 0; i < sizeof lost / sizeof *lost; i++) {
        CHECK(!test_takes(i, 6) || compare(&lost[i].of, lost[i].narrow, 1) > 0);
    }
    return test_end();
}
