/* Ranks of one process: no bit depends on how many there are, nor on what they divide, nor on where planes live. */
#include "base/assert.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>

enum { GROUPS = 8 };

static struct harness_run run_of(const struct golden *golden) {
    struct harness_run run = golden_run(golden);
    run.compute_threads = 1;
    return run;
}

/* The losses of an evaluation. */
static double evaluate(const struct golden *golden, const struct harness_run *run, const struct harness_place *place) {
    struct harness harness;
    struct ox_eval_result result;
    harness_open(run, place, &harness);
    const struct ox_step_input input = golden_input(golden, 0, golden_fill(harness.engine, golden, 0));
    REQUIRE_OK(ox_engine_eval(harness.engine, &input, &result));
    harness_close(&harness);
    return result.loss_sum;
}

static void check_eval(const struct golden *golden) {
    struct harness_run run = run_of(golden);
    const double expected = evaluate(golden, &run, &harness_in_memory);
    for (run.ranks = 2; run.ranks <= 4; run.ranks++) {
        run.sum_groups = run.ranks;
        const double loss = evaluate(golden, &run, &harness_in_memory);
        printf("%s, evaluated by %u ranks: %.17g, %.17g\n", golden->folder, run.ranks, loss, expected);
        CHECK(loss == expected);
    }
}

static void check(const char *name) {
    struct golden golden;
    golden_open(name, &golden);
    golden.micro_batches = GROUPS;
    check_eval(&golden);
    golden_close(&golden);
}

int main(void) {
    check("llama_tied_gqa");
    check("llama_untied_odd");
    check("gpt2_small");
    return test_end();
}
