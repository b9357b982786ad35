/* A whole tiny run killed at every operation of its drive, at three moments of each: before the backend sees it, while
 * it is under way, and when it is complete but not yet reported. The next process loses at most one step, or as many as
 * were left uncommitted, and ends with the bits of the undisturbed run, also when it is killed in turn.
 *
 * Runs have all state on the drive and commit each step; or they have that of one unit, or all but the weights, in
 * memory, leave steps uncommitted, and update in backward beside the last commit (--store-generations 3) or not (2); or
 * a part of them is frozen, whose extents the first commit alone writes, in fp16 with its loss scale; or the model is a
 * mixture, whose experts are units, idle ones of which keep their state, and whose bias of the choice moves; or two
 * ranks are a pipeline.
 *
 * In memory all operations are taken, of the latter runs every fourth; on a drive, where requests outlive a process,
 * every STRIDE-th, at another offset for each moment and backend. `make test` takes fewer of both.
 *
 *     test_kill_every_op [STRIDE IN MEMORY] [STRIDE ON A DRIVE] */
#include "tests/kit/run/kill_at.inc"
#include "tests/kit/run/sys_run.h"

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE_IN_MEMORY = 16, STRIDE_ON_DRIVE = 96, QUICK_IN_MEMORY = 1, QUICK_ON_DRIVE = 1 };
#else
enum { STRIDE_IN_MEMORY = 1, STRIDE_ON_DRIVE = 24, QUICK_IN_MEMORY = 80, QUICK_ON_DRIVE = 20 };
#endif

/* Every home is asked for, so that none depends on what the planner finds fastest. */
#define UNCOMMITTED {"weights-tier", "nvme"}, {"grads-tier", "nvme"}, {"persist-steps", "3"}
static const char *const speculative[][2] = {UNCOMMITTED, {"state-tier", "nvme"}, {"device-state-units", "1"},
    {"store-generations", "3"}, {"optimizer-overlap", "speculative"}, {"max-grad-norm", "1000"}, {NULL, NULL}};
static const char *const held[][2] = {UNCOMMITTED, {"state-tier", "host"}, {"optimizer-overlap", "held"}, {NULL, NULL}};
static const char *const frozen[][2] = {{"freeze", "embed,model.layers.0.mlp.up_proj.weight"}, {"dtype", "fp16"},
    {"initial-scale-power", "4"}, {NULL, NULL}};
static const char *const mixture[][2] = {{"experts-per-unit", "8"}, {"router-bias-update-rate", "0.05"},
    {"idle-experts", "skip"}, {"optimizer-overlap", "held"}, {NULL, NULL}};
/* Each input of the block that arrives from the other rank goes to the drive, so that a kill comes behind every
 * transfer. */
static const char *const pipeline[][2] = {{"ranks", "2"}, {"pipeline-parallel-size", "2"}, {"activation-tier", "nvme"},
    {"host-mem", "8MiB"}, {"device-mem", "8MiB"}, {NULL, NULL}};
static const struct plan {
    const char *name;
    const char *const (*options)[2];
    unsigned lost_max;
    unsigned rarer;      /* its strides are so many times as long */
    unsigned operations; /* so many at least */
} plans[] = {{"all on the drive", NULL, 1, 1, 100},
             {"the last unit in memory, updates in backward", speculative, TINY_SAVED_STEP, 4, 50},
             {"the state in memory, the weights on the drive", held, TINY_SAVED_STEP, 4, 50},
             {"a part frozen, in fp16", frozen, 1, 8, 50},
             {"a mixture, its experts in units", mixture, 1, 8, 100},
             {"a pipeline, activations on the drive", pipeline, 1, 8, 100}};
enum { PLANS = sizeof plans / sizeof *plans };

enum { AGAIN = 6 }; /* a resumed process is killed at every AGAIN-th operation only */

static struct tiny_told *told; /* shared */
static uint64_t kill_count;

static bool is_killed(const char *io_backend, enum tiny_start start, enum moment moment, uint64_t idx) {
    target->moment = moment;
    target->idx = idx;
    memset(target->passed, 0, sizeof target->passed);
    const enum tiny_end end = tiny_run(io_backend, start, &seam, told);
    CHECK(end != TINY_FAILED && told->warnings == 0);
    kill_count += end == TINY_KILLED;
    return end == TINY_KILLED;
}

/* Returns false if the run ends before that operation. */
static bool kill_at(const char *io_backend, enum moment moment, uint64_t idx) {
    char what[96];
    const bool killed = is_killed(io_backend, TINY_FRESH, moment, idx);
    snprintf(what, sizeof what, "%s, %s, operation %llu", io_backend, moment_names[moment], (unsigned long long)idx);
    tiny_end_well(io_backend, told, what);
    return killed;
}

/* Kills a process at operation `idx` that resumes after one killed at operation `first_idx`. */
static bool kill_again_at(const char *io_backend, uint64_t first_idx, enum moment moment, uint64_t idx) {
    char what[96];
    CHECK(is_killed(io_backend, TINY_FRESH, UNDER_WAY, first_idx));
    const uint64_t step = told->step, saved_step = told->saved_step;
    CHECK(told->began);
    const bool killed = is_killed(io_backend, TINY_RESUME, moment, idx);
    if (!told->began) { /* the process has reported nothing */
        told->step = step;
        told->began = 1;
    }
    told->saved_step = told->saved_step > saved_step ? told->saved_step : saved_step;
    snprintf(what, sizeof what, "%s, operation %llu, then %s, operation %llu", io_backend,
             (unsigned long long)first_idx, moment_names[moment], (unsigned long long)idx);
    tiny_end_well(io_backend, told, what);
    return killed;
}

/* Each of these kills takes three runs, so `make test` has one moment of three. */
static bool takes_again(void) {
    static unsigned asked;
    return test_takes(asked++, MOMENT_COUNT);
}

static void sweep_backend(const struct plan *plan, const char *io_backend, uint64_t stride, uint64_t offset) {
    for (int moment = 0; moment < MOMENT_COUNT; moment++) {
        uint64_t idx = (offset + (uint64_t)moment * stride / MOMENT_COUNT) % stride;
        while (test_failure_count < 5 && kill_at(io_backend, (enum moment)moment, idx)) {
            idx += stride;
        }
        CHECK(target->passed[0][moment] > plan->operations || test_failure_count > 0);
        printf("%s, %s: %llu operations\n", io_backend, moment_names[moment],
               (unsigned long long)target->passed[0][moment]);
    }
    const uint64_t first_idx = target->passed[0][UNDER_WAY] * 2 / 3;
    for (int moment = 0; moment < MOMENT_COUNT; moment++) {
        uint64_t idx = (offset + (uint64_t)moment) % (AGAIN * stride);
        if (!takes_again()) {
            continue;
        }
        while (test_failure_count < 5 && kill_again_at(io_backend, first_idx, (enum moment)moment, idx)) {
            idx += AGAIN * stride;
        }
        printf("%s, %s: %llu operations after a kill at operation %llu\n", io_backend, moment_names[moment],
               (unsigned long long)target->passed[0][moment], (unsigned long long)first_idx);
    }
}

static void sweep(const struct plan *plan, enum tiny_place place, uint64_t stride) {
    char why[160];
    kill_count = 0;
    tiny_counts = (struct tiny_counts){0};
    tiny_set_options(plan->options);
    tiny_set_lost_max(plan->lost_max);
    tiny_set_mixture(plan->options == mixture);
    tiny_begin(place);
    CHECK((plan->options == speculative) == sys_splits_state(tiny_undisturbed()));
    const uint64_t first = test_first((unsigned)stride);
    sweep_backend(plan, "threads", stride, first);
    if (ox_io_probe(why) == ox_io_uring()) {
        sweep_backend(plan, "uring", stride, first + stride / (2 * MOMENT_COUNT));
    } else {
        printf("uring: skipped: %s\n", why);
    }
    printf("%s, %s, every %llu: %llu kills, %llu resumed, %llu started over; went on %llu times behind the last step "
           "told, %llu times ahead of it\n", plan->name, place == TINY_IN_MEMORY ? "in memory" : "on a drive",
           (unsigned long long)stride, (unsigned long long)kill_count, (unsigned long long)tiny_counts.resumed,
           (unsigned long long)tiny_counts.started_over, (unsigned long long)tiny_counts.steps_lost,
           (unsigned long long)tiny_counts.commits_untold);
}

/* The nth argument, or `usual`. */
static uint64_t number(int argc, char **argv, int nth, uint64_t usual) {
    const uint64_t given = argc > nth ? strtoull(argv[nth], NULL, 10) : 0;
    return given > 0 ? given : usual;
}

int main(int argc, char **argv) {
    tiny_single_thread(argv);
    target = tiny_shared(sizeof *target);
    told = tiny_shared(sizeof *told);
    for (const struct plan *plan = plans; plan < plans + PLANS; plan++) {
        const unsigned nth = (unsigned)(plan - plans); /* `make test`: the first plan at both places, others at one */
        if (nth == 0 || argc > 1 || test_takes(nth, 2)) {
            sweep(plan, TINY_IN_MEMORY,
                  plan->rarer * number(argc, argv, 1, STRIDE_IN_MEMORY * test_stride(QUICK_IN_MEMORY)));
        }
        if (nth == 0 || argc > 1 || test_takes(nth + 1, 2)) {
            sweep(plan, TINY_ON_DRIVE,
                  plan->rarer * number(argc, argv, 2, STRIDE_ON_DRIVE * test_stride(QUICK_ON_DRIVE)));
        }
    }
    return test_end();
}
