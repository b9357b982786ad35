/* Overlapping steps give the bits of steps that wait for each other, whatever the norms are and wherever the run is
 * interrupted. Clipping repeats speculative updates, and a step that is not finite undoes them; stops, evaluations
 * and a new engine on the same store come between. `make test` takes one of some places for each story, at others each
 * time. */
#include "engine/step/engine_internal.h"
#include "engine/step/engine_internal.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 6 };

/* In runs whose steps may stay uncommitted, every so many are committed. */
enum { PERSIST_STEPS = 4 };

/* What happens to a run, step by step. It is compared with a run in memory to which only `max_grad_norms` apply. */
struct story {
    const char *name;
    bool sparing; /* tested at every third placement only */
    double max_grad_norms[STEPS];
    bool finishes[STEPS], evaluates[STEPS], stops[STEPS], reopens[STEPS]; /* after the step; stops: before it */
    bool cuts[STEPS]; /* an evaluation after the step, or after its update was finished, is stopped */
};

#define LOOSE 1e9
#define TIGHT 1e-2
static const struct story stories[] = {
    {.name = "no clipping", .sparing = true},
    {.name = "never clipped", .sparing = true, .max_grad_norms = {LOOSE, LOOSE, LOOSE, LOOSE, LOOSE, LOOSE}},
    {.name = "clipped at once", .sparing = true, .max_grad_norms = {TIGHT, TIGHT, TIGHT, TIGHT, TIGHT, TIGHT}},
    {.name = "clipped late", .max_grad_norms = {0, LOOSE, TIGHT, 0, 0, LOOSE}},
    {.name = "finished and evaluated", .sparing = true, .max_grad_norms = {LOOSE, TIGHT, 0, 0, 0, 0},
     .finishes = {true, true, false, true, false, true}, .evaluates = {false, true, false, false, true}},
    {.name = "evaluated", .max_grad_norms = {LOOSE, TIGHT, 0, 0, TIGHT, 0},
     .evaluates = {true, true, false, true, true, true}},
    {.name = "evaluations stopped", .sparing = true, .max_grad_norms = {LOOSE, TIGHT, 0, LOOSE, 0, 0},
     .finishes = {false, false, false, false, true}, .evaluates = {false, true, false, true},
     .stops = {false, false, false, false, true}, .cuts = {true, true, true, true, true, true}},
    {.name = "stopped", .sparing = true,
     .max_grad_norms = {LOOSE, LOOSE, TIGHT, 0, 0, 0},
     .stops = {false, true, true, true, false, true}},
    {.name = "begun anew", .sparing = true, .max_grad_norms = {LOOSE, 0, TIGHT, 0, 0, 0},
     .finishes = {false, true, true, false, true}, .reopens = {false, true, true, false, true}},
};

struct tally {
    uint32_t steps, clipped, again;
    double evals[STEPS]; /* losses, 0 where there was no evaluation */
};

static void stop_once(struct harness *harness, struct ox_step_input input) {
    const volatile sig_atomic_t stop = 1;
    struct ox_step_result result;
    input.stop = &stop;
    CHECK(ox_engine_step(harness->engine, &input, &result) == OX_E_ABORTED);
}

/* The first evaluation after a step carries its update, unless that was finished: by a call, or by the commit of a step
 * that is committed between steps. Both move the planned bytes, and both see the weights that the step leads to. */
static void evaluate(const struct story *story, struct harness *harness, struct ox_step_input input, size_t step,
                     struct tally *tally) {
    const volatile sig_atomic_t stop = 1;
    const struct ox_plan_input *const in = &ox_engine_plan_of(harness->engine)->input;
    const bool finished = story->finishes[step] || (!input.stays && ox_plan_commits_between(in));
    struct ox_eval_result results[2];
    if (story->cuts[step]) {
        input.stop = &stop;
        CHECK(ox_engine_eval(harness->engine, &input, &results[0]) == OX_E_ABORTED);
        input.stop = NULL;
    }
    for (int i = 0; i < 2 && story->evaluates[step]; i++) {
        REQUIRE_OK(ox_engine_eval(harness->engine, &input, &results[i]));
        CHECK(results[i].with_update == (in->placement.overlap && i == 0 && !finished));
        CHECK(memcmp(results[i].traffic, results[i].planned, sizeof results[i].traffic) == 0);
        CHECK(results[i].loss_sum == results[0].loss_sum);
        tally->evals[step] = results[0].loss_sum;
    }
}

/* Weights go ahead of their state only in bf16, so places that ask for it are tested there too, and alone. */
enum only { ALL_PLACES, AHEAD_PLACES };

static struct harness_run run_of(const struct golden *golden, bool fp32) {
    struct harness_run run = golden_run(golden);
    run.dtype = fp32 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16;
    run.grad_bf16 = !fp32;
    return run;
}

static bool is_left_out(const struct harness_place *place, enum only only) {
    return place->request.overlap <= 0 || (only == AHEAD_PLACES && place->request.weights_ahead != 1);
}

/* Whether the next one is taken: each, or one of `quick`. */
static bool takes(unsigned quick) {
    static unsigned asked;
    return test_takes(asked++, quick);
}

/* Opens a place, and checks that weights go ahead there if they are asked to. */
static void open_place(const struct harness_run *run, const struct harness_place *place, struct harness *harness) {
    harness_open(run, place, harness);
    const struct ox_plan_input *const in = &ox_engine_plan_of(harness->engine)->input;
    bool ahead = false;
    for (uint32_t i = 0; i < in->model.unit_count; i++) {
        ahead = ahead || ox_plan_unit_rules(in, i).goes_ahead;
    }
    const bool may = run->dtype == OX_COMPUTE_BF16;
    CHECK(ahead == (place->request.weights_ahead == 1 && may) || place->request.weights_ahead < 0);
}

static void tell(const struct story *story, const struct harness_run *run, const struct golden *golden,
                 const struct harness_place *place, struct outcome *out, struct tally *tally) {
    struct harness harness;
    open_place(run, place, &harness);
    const bool stays = place->generations > 0;
    CHECK(!stays || ox_plan_may_stay(&ox_engine_plan_of(harness.engine)->input));
    golden_steps(&harness, golden, 0, 0, out);
    for (size_t i = 0; i < STEPS; i++) {
        struct ox_step_input input = golden_input(golden, i, golden_fill(harness.engine, golden, i));
        struct ox_step_result result;
        input.max_grad_norm = story->max_grad_norms[i];
        input.stays = stays && input.step % PERSIST_STEPS != 0;
        input.logits = i == 0 ? out->logits : NULL;
        if (story->stops[i] && place->request.overlap > 0) {
            stop_once(&harness, input);
            (void)golden_fill(harness.engine, golden, i);
        }
        REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
        CHECK(result.finite);
        CHECK(memcmp(result.traffic, result.planned, sizeof result.traffic) == 0);
        out->losses[i] = result.loss;
        out->norms[i] = result.grad_norm;
        const bool usual =
            memcmp(result.planned, ox_engine_plan_of(harness.engine)->train->traffic, sizeof result.planned) == 0;
        tally->steps++;
        tally->clipped += result.grad_scale < 1;
        tally->again += i > 0 && !usual;
        if (story->finishes[i]) {
            REQUIRE_OK(ox_engine_finish_update(harness.engine));
        }
        evaluate(story, &harness, input, i, tally);
        if (story->reopens[i] && place->store) {
            REQUIRE_OK(ox_engine_persist(harness.engine, NULL, 0));
            harness_reopen(run, place, &harness);
        }
    }
    outcome_read_weights(&harness, out);
    harness_close(&harness);
}

static void check_story(const struct golden *golden, const struct story *story, bool fp32, uint64_t chaos_seed,
                        enum only only) {
    const struct harness_run run = run_of(golden, fp32);
    struct outcome expected, outcome;
    struct tally alone = {0};
    uint32_t nth = fp32; /* so that stories use different placements */
    printf("%s, %s%s\n", golden->folder, story->name, chaos_seed != 0 ? ", with chaos" : "");
    tell(story, &run, golden, &harness_in_memory, &expected, &alone);
    for (const struct harness_place *place = harness_places; place->name != NULL; place++) {
        if (is_left_out(place, only) || (only == ALL_PLACES && story->sparing && nth++ % 3 != 0) || !takes(9)) {
            continue;
        }
        struct harness_place chosen = *place;
        chosen.chaos_seed = chaos_seed;
        const bool both = place->store && (!story->sparing || nth % 2 == 0);
        for (uint32_t stays = 0; stays <= both; stays++) {
            struct tally tally = {0};
            char name[96];
            chosen.generations = !stays ? 0 : place->request.saves_replaced == 1 ? 2 : 3;
            tell(story, &run, golden, &chosen, &outcome, &tally);
            snprintf(name, sizeof name, "%s%s", place->name, stays ? ", uncommitted" : "");
            outcome_check_same(name, &expected, &outcome);
            CHECK(memcmp(alone.evals, tally.evals, sizeof alone.evals) == 0);
            outcome_close(&outcome);
            const bool clips = story->max_grad_norms[2] == TIGHT;
            CHECK((tally.clipped > 0) == (clips || story->max_grad_norms[1] == TIGHT));
            const bool shows = place->store && place->request.speculative_units != 0; /* in the bytes of a step */
            CHECK(tally.again > 0 || !shows || !clips || story->sparing);
        }
    }
    outcome_close(&expected);
}

/* ---- a step that is not finite -------------------------------------------------------------------------- */

/* A skipped step leaves planes as the step before did; those of speculative units are read back. An infinity that only
 * memory had is gone then, unless memory saved it. */
static void check_nonfinite(const struct golden *golden, uint32_t generations, enum only only) {
    const struct harness_run run = run_of(golden, only == ALL_PLACES);
    const struct story plain = {.name = "", .max_grad_norms = {0, 0, 0}};
    struct outcome expected, outcome;
    struct tally ignored = {0};
    printf("%s, with a step that is not finite\n", golden->folder);
    tell(&plain, &run, golden, &harness_in_memory, &expected, &ignored);
    for (const struct harness_place *of = harness_places; of->name != NULL; of++) {
        struct harness_place at = *of, *const place = &at;
        const bool in_memory = place->request.weights_tier != OX_TIER_NVME;
        at.generations = generations;
        if (is_left_out(place, only) || !in_memory || (generations == 3 && !place->store) || !takes(7)) {
            continue;
        }
        struct harness harness;
        uint16_t hi = 0x7f80; /* infinity */
        open_place(&run, place, &harness);
        golden_steps(&harness, golden, 0, 0, &outcome);
        for (size_t i = 0; i < STEPS; i++) {
            struct ox_step_input input = golden_input(golden, i, golden_fill(harness.engine, golden, i));
            struct ox_step_result result;
            input.max_grad_norm = 0;
            input.stays = generations == 3 && input.step % PERSIST_STEPS != 0;
            if (i == 3) {
                input.stays = generations == 3;
                harness_exchange(&harness, 1, &hi);
                REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
                CHECK(!result.finite);
                const struct ox_plan_input *const in = &ox_engine_plan_of(harness.engine)->input;
                const struct ox_unit_rules rules = ox_plan_unit_rules(in, 1);
                const bool read_back = rules.speculative && !rules.saves_replaced;
                uint16_t now = hi;
                harness_exchange(&harness, 1, &now);
                CHECK(now == (read_back ? hi : 0x7f80));
                (void)golden_fill(harness.engine, golden, i);
            }
            input.logits = i == 0 ? outcome.logits : NULL;
            REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
            CHECK(result.finite);
            outcome.losses[i] = result.loss;
            outcome.norms[i] = result.grad_norm;
        }
        golden_end(&harness, place->name, &expected, &outcome);
    }
    outcome_close(&expected);
}

enum { OVERFLOWS = 5 }; /* a place of so many is taken */

/* A step fails whose update in backward makes parameters infinite although its gradient is finite. It leaves no trace:
 * with a lower learning rate it is taken again. */
static void check_overflow(const struct golden *golden, enum only only) {
    struct harness_run run = run_of(golden, only == ALL_PLACES);
    const struct story plain = {.name = "", .max_grad_norms = {0, 0, 0}};
    struct outcome expected, outcome;
    struct tally ignored = {0};
    uint32_t failed = 0, candidates = 0;
    run.state.moments = OX_MOMENTS_BF16; /* they hold values up to 2^127 */
    printf("%s, with an update that overflows\n", golden->folder);
    tell(&plain, &run, golden, &harness_in_memory, &expected, &ignored);
    for (const struct harness_place *place = harness_places; place->name != NULL; place++) {
        if (is_left_out(place, only) || place->request.speculative_units == 0) {
            continue;
        }
        candidates++;
        if (!takes(OVERFLOWS)) {
            continue;
        }
        struct harness harness;
        open_place(&run, place, &harness);
        golden_steps(&harness, golden, 0, 0, &outcome);
        for (size_t i = 0; i < STEPS; i++) {
            struct ox_step_input input = golden_input(golden, i, golden_fill(harness.engine, golden, i));
            struct ox_step_result result;
            input.max_grad_norm = 0;
            input.logits = i == 0 ? outcome.logits : NULL;
            if (i == 2) {
                struct ox_step_input bad = input;
                bad.adam.learning_rate = 3e38;
                CHECK(ox_engine_step(harness.engine, &bad, &result) == OX_E_CORRUPT &&
                      strstr(ox_error_text(), "parameters became infinite") != NULL);
                (void)golden_fill(harness.engine, golden, i);
                failed++;
            }
            REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
            outcome.losses[i] = result.loss;
            outcome.norms[i] = result.grad_norm;
        }
        golden_end(&harness, place->name, &expected, &outcome);
    }
    CHECK(failed > 0 || candidates < OVERFLOWS);
    outcome_close(&expected);
}

#if !defined(__SANITIZE_THREAD__) /* which rejects a look at what a lane writes */
/* ---- a stop within a step's own updates ----------------------------------------------------------------- */

static volatile sig_atomic_t stop_now;
static _Atomic bool watches;

/* Asks for a stop as soon as a speculative update has saved what it replaces. */
static void *watch(void *engine) {
    const struct ox_rank *const rank = ox_engine_rank(engine, 0);
    const volatile uint32_t *const saved = rank->due.saved_chunks;
    while (watches && stop_now == 0) {
        for (uint32_t i = 0; i < rank->plan->table.unit_count; i++) {
            stop_now = stop_now != 0 || saved[i] > 0;
        }
    }
    return NULL;
}

/* Takes a step that is asked to stop within its own updates; returns whether it did. */
static bool stop_within(struct harness *harness, struct ox_step_input input, struct ox_step_result *result) {
    pthread_t thread;
    stop_now = 0;
    watches = true;
    input.stop = &stop_now;
    CHECK(pthread_create(&thread, NULL, watch, harness->engine) == 0);
    const enum ox_status status = ox_engine_step(harness->engine, &input, result);
    watches = false;
    pthread_join(thread, NULL);
    CHECK(status == OX_E_ABORTED || status == OX_OK);
    return status == OX_E_ABORTED;
}

static uint32_t flips;

/* Flips a bit of what the stopped step has saved; returns whether it has saved something. */
static bool flip_saved(const struct harness *harness) {
    const struct ox_rank *const rank = ox_engine_rank(harness->engine, 0);
    const struct ox_plan *const plan = rank->plan->train;
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        if (rank->due.saved_chunks[i] > 0) {
            *(unsigned char *)ox_tiers_resident(&rank->tiers, plan, ox_plan_replaced(plan, i)).ptr ^= 1;
            flips++;
            return true;
        }
    }
    return false;
}

/* Leaves a stopped step. What it has saved is not used while a bit of it is flipped. */
static void leave_stopped(const struct harness *harness, bool persists) {
    for (int tries = flip_saved(harness) ? 2 : 1; tries > 0; tries--) {
        const enum ox_status status = persists ? ox_engine_persist(harness->engine, NULL, 0)
                                               : ox_engine_finish_update(harness->engine);
        CHECK(status == (tries == 2 ? OX_E_MEMORY : OX_OK));
        CHECK(tries == 1 || flip_saved(harness));
    }
}

/* A run at this place whose step after `before` others is stopped so, left whole, and taken again. Where it `stays`,
 * every second step is committed. Returns whether the step was stopped. */
static bool run_stopped(const struct golden *golden, const struct harness_run *run, const struct harness_place *place,
                        size_t before, bool stays, const struct outcome *expected) {
    struct harness harness;
    struct outcome outcome, *const out = &outcome;
    bool stopped = false;
    open_place(run, place, &harness);
    golden_steps(&harness, golden, 0, 0, out);
    for (size_t i = 0; i < STEPS; i++) {
        struct ox_step_input input = golden_input(golden, i, golden_fill(harness.engine, golden, i));
        struct ox_step_result result;
        input.max_grad_norm = 0;
        input.stays = stays && input.step % 2 != 0;
        input.logits = i == 0 ? out->logits : NULL;
        const bool again = i == before && stop_within(&harness, input, &result);
        if (again) {
            stopped = true;
            leave_stopped(&harness, i % 2 == 0);
            (void)golden_fill(harness.engine, golden, i);
        }
        if (again || i != before) {
            REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
        }
        out->losses[i] = result.loss;
        out->norms[i] = result.grad_norm;
    }
    golden_end(&harness, place->name, expected, out);
    return stopped;
}

/* Steps that are stopped within their own updates leave no trace, where memory saves what these replace: without a
 * store, with one, and beside steps that stay uncommitted. When the stop comes too late, the step ends. */
static void check_stopped_within(const struct golden *golden, enum only only) {
    const struct harness_run run = run_of(golden, only == ALL_PLACES);
    const struct story plain = {.name = ""};
    struct outcome expected;
    struct tally ignored = {0};
    uint32_t stopped = 0;
    flips = 0;
    tell(&plain, &run, golden, &harness_in_memory, &expected, &ignored);
    for (const struct harness_place *of = harness_places; of->name != NULL; of++) {
        const bool saves = of->request.saves_replaced == 1 && !is_left_out(of, only);
        for (size_t i = 0; i < (of->store ? 4 : 2) && saves; i++) {
            if (!takes(4)) {
                continue;
            }
            struct harness_place place = *of;
            place.chaos_seed = 3; /* which slows the lanes down */
            stopped += run_stopped(golden, &run, &place, 2 + i % 2, i >= 2, &expected);
        }
    }
    printf("%u steps stopped within their own updates, %u of them with a flipped bit\n", stopped, flips / 2);
    CHECK(stopped > 0 && flips > 0);
    outcome_close(&expected);
}
#endif

int main(void) {
    struct golden tied, untied;
    golden_open("llama_tied_gqa", &tied);
    golden_open("llama_untied_odd", &untied);
    for (size_t i = 0; i < sizeof stories / sizeof *stories; i++) {
        const struct golden *const golden = i % 2 == 0 ? &tied : &untied;
        check_story(golden, &stories[i], i % 3 != 1, 0, ALL_PLACES);
        check_story(golden, &stories[i], false, i == 3 ? 5 : 0, AHEAD_PLACES);
    }
    check_story(&tied, &stories[3], true, 3, ALL_PLACES);
    check_story(&untied, &stories[5], true, 4, ALL_PLACES);
    for (int only = ALL_PLACES; only <= AHEAD_PLACES; only++) {
#if !defined(__SANITIZE_THREAD__)
        check_stopped_within(&tied, (enum only)only);
#endif
        check_nonfinite(&tied, 0, (enum only)only);
        check_overflow(&tied, (enum only)only);
    }
    check_nonfinite(&tied, 3, ALL_PLACES);
    golden_close(&untied);
    golden_close(&tied);
    return test_end();
}
