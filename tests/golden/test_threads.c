/* No bit depends on how many threads compute: runs of every model of tests/golden/ with two and three threads are
 * compared with the run with one. */
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>

static void check_threads(const struct golden *golden, bool fp32) {
    struct harness_run run = golden_run(golden);
    struct outcome expected, outcome;
    run.dtype = fp32 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16;
    run.compute_threads = 1;
    golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    for (run.compute_threads = 2; run.compute_threads <= 3; run.compute_threads++) {
        char what[64];
        snprintf(what, sizeof what, "%s, %u threads", fp32 ? "fp32" : "bf16", run.compute_threads);
        golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &outcome);
        outcome_check_same(what, &expected, &outcome);
        outcome_close(&outcome);
    }
    outcome_close(&expected);
}

int main(void) {
    for (size_t i = 0; i < golden_taken_count(); i++) {
        struct golden golden;
        golden_open(golden_cases[i], &golden);
        printf("%s\n", golden.folder);
        check_threads(&golden, true);
        check_threads(&golden, false);
        golden_close(&golden);
    }
    return test_end();
}
