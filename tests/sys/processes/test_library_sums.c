/* Sums of several processes that are not exact. `--reduction library`: MPI adds the gradients. Losses are those of
 * fixed sums to 1e-5, the run says that it is not reproducible and records how it adds, and a resume with the other
 * reduction warns. `--exchange-dtype`: sums are rounded as between the ranks of one process. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 20, STEPS_MORE = 24 };

static struct sys_args args, launched;
static struct sys_process process;
static const char *text_path;

/* A run with these words, in the test's folder under this name. */
static void begin(const char *output, unsigned steps, const char *words) {
    sys_args_train(&args, sys_write_model("llama"), text_path, output);
    sys_args_add(&args, "--global-batch-size 8 --batch-size 1 --max-seq-length 16 --learning-rate 3e-3 --dtype fp32"
                 " --save-steps 0 --eval-windows 12 --compute-threads 1 --chunk-elems 2048 --seed 11"
                 " --lr-scheduler-type constant");
    sys_args_word(&args, "--max-steps=%u", steps);
    sys_args_add(&args, words);
}

static void run(unsigned processes, const char *output, unsigned steps, const char *words) {
    begin(output, steps, words);
    if (processes > 1) {
        sys_mpi_begin(&launched, processes, &args, SYS_MPI_END_OTHERS);
    }
    sys_run_well(processes > 1 ? &launched : &args, &process);
}

static void check_near(const char *what, const char *expected, const char *found) {
    double worst = 0;
    for (unsigned step = 1; step <= STEPS; step++) {
        const double loss = sys_metric(expected, step, "loss");
        worst = fmax(worst, fabs(sys_metric(found, step, "loss") - loss) / loss);
        CHECK(isfinite(loss) && isfinite(sys_metric(found, step, "loss")));
    }
    printf("%s: losses of %d steps within %.1e\n", what, STEPS, worst);
    CHECK(worst < 1e-5);
}

static void check_file(const char *path, const char *words) {
    char *const text = files_read(path, NULL);
    CHECK(strstr(text, words) != NULL);
    free(text);
}

static void try_library(unsigned processes, const char *words, const char *expected) {
    char what[160];
    snprintf(what, sizeof what, "%u processes,%s", processes, words);
    files_remove_folder(test_path("library"));
    run(processes, "library", STEPS, words);
    char *const found = sys_curve(test_path("library"), "step");
    check_near(what, expected, found);
    free(found);
    CHECK(strstr(process.outcome.err, "MPI adds the gradients of ranks, so the run is not reproducible") != NULL);
}

/* Sums that travel in bfloat16 are rounded the same way between processes as between the ranks of one. */
static void try_narrow(void) {
    static const char words[] = "--from-scratch --ranks 2 --exchange-dtype bf16";
    run(1, "threads", STEPS, words);
    run(2, "apart", STEPS, words);
    char *const threads = sys_curve(test_path("threads"), "step"), *const apart = sys_curve(test_path("apart"), "step");
    CHECK(sys_same_text("losses of threads and processes", threads, apart));
    check_near("sums in bfloat16, two processes", threads, apart);
    free(threads);
    free(apart);
}

int main(void) {
    static const char library[] = "--from-scratch --reduction library";
    sys_mpi_require();
    text_path = sys_write_text(40000);
    run(2, "fixed", STEPS, "--from-scratch --sum-groups 8");
    char *const expected = sys_curve(test_path("fixed"), "step");
    char words[256];
    files_make_folder(test_path("library"));
    snprintf(words, sizeof words, "%s --ranks 4 --sharding no_shard", library);
    try_library(2, words, expected);
    snprintf(words, sizeof words, "%s --device-mem 8MiB --host-mem 64MiB --sharding zero2", library);
    try_library(3, words, expected);
    snprintf(words, sizeof words, "%s --sharding full_shard", library);
    try_library(2, words, expected);
    free(expected);
    check_file("library/config.resolved.yaml", "reduction: library");
    check_file("library/plan.txt", "the library adds those of ranks: not reproducible");
    check_file("library/plan.txt", "reduce-scatter");
    files_remove_folder(test_path("refused"));
    begin("refused", STEPS, "--from-scratch --reduction library --exchange-dtype bf16");
    sys_mpi_begin(&launched, 2, &args, SYS_MPI_END_OTHERS);
    sys_run(&launched, &process);
    CHECK(process.outcome.exit_status != 0 && strstr(process.outcome.err, "leave one of both out") != NULL);
    run(2, "library", STEPS_MORE, "--resume latest --reduction fixed");
    CHECK(strstr(process.outcome.err, "--reduction library, now fixed") != NULL);
    try_narrow();
    return test_end();
}
