/* The benchmarks of tests/bench still run, at sizes that say nothing about a machine: each prints its figure and ends
 * as a benchmark does, with 1 where the figure misses its limit. bench_step has no size small enough; it is built. */
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

static struct sys_args args;
static struct sys_process process;

/* Runs a benchmark, which lies in tests/bench beside the program, with an option that may hold spaces and other words;
 * true if it printed `figure`. */
static bool prints(const char *name, const char *option, const char *value, const char *words, const char *figure) {
    static char program[2 * SYS_PATH_BYTES];
    const char *const slash = strrchr(sys_program(), '/');
    snprintf(program, sizeof program, "%.*s/tests/bench/%s", slash == NULL ? 1 : (int)(slash - sys_program()),
             slash == NULL ? "." : sys_program(), name);
    sys_args_begin(&args, "");
    args.program = program;
    sys_args_word(&args, "%s", option);
    sys_args_word(&args, "%s", value);
    sys_args_add(&args, words);
    sys_run(&args, &process);
    const bool ended = process.outcome.exit_status == 0 || process.outcome.exit_status == 1;
    const bool well = ended && process.outcome.err[0] == '\0' && strstr(process.outcome.out, figure) != NULL;
    if (!well) {
        printf("%s %s '%s' %s ended with %d:\n%s%s\n", name, option, value, words, process.outcome.exit_status,
               process.outcome.out, process.outcome.err);
    }
    return well;
}

int main(void) {
    CHECK(prints("bench_optim", "--folder", test_folder(), "--rounds 1 --layers 1", "optimizer phase: "));
    CHECK(prints("bench_sim", "--case", "10 M, memory, 4 x 128 x 2",
                 "--profile docs/profiles/cpu-2-cores.json --rounds 1", "\n1 cases: median error "));
    CHECK(prints("bench_search", "--case", "1B", "--plans 2", "best drawn: "));
    CHECK(prints("bench_trace", "--case", "small", "--seconds 0.5", "a record: "));
    return test_end();
}
