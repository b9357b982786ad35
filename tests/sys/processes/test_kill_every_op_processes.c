/* A tiny run of two processes of which one is killed at an operation of its drives: each of both in turn, at three
 * moments of the operation. The other one ends too. The next start of both goes on at a commit that both have, loses at
 * most one step and ends with the bits of the undisturbed run of one process. With OX_TEST_ALL=2 it takes every
 * operation. Sanitizers make each start take seconds, so a build with them draws a backend and moment for each process.
 *
 *     test_kill_every_op_processes [STRIDE [BACKEND]]
 *     test_kill_every_op_processes --seed N              what is drawn */
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/run/kill_at.inc"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SAMPLED = 1 };
#else
enum { IS_SAMPLED = 0 };
#endif
enum { PROCESSES = 2, STRIDE = 90, QUICK = 24 };

static const char *const options[][2] = {{"sum-groups", "2"}, {"host-mem", "16MiB"}, {NULL, NULL}};

static struct tiny_told *told; /* shared */
static uint64_t kill_count;

static bool names_lost(const char *text) {
    return text[0] == '\0' || strstr(text, " has ended; resume from the last commit") != NULL;
}

/* Returns false if the process ends before that operation. */
static bool kill_at(const char *io_backend, unsigned process, enum moment moment, uint64_t idx) {
    char what[96];
    target->process = process;
    target->moment = moment;
    target->idx = idx;
    target->killed = false;
    memset(target->passed, 0, sizeof target->passed);
    const enum tiny_end end = tiny_run(io_backend, TINY_FRESH, &seam, told);
    snprintf(what, sizeof what, "%s, %s, operation %llu of process %u", io_backend, moment_names[moment],
             (unsigned long long)idx, process);
    if ((end == TINY_DONE) == target->killed || !names_lost(told->text) || !names_lost(told->warning)) {
        printf("%s: ended as %d: %s; %s\n", what, (int)end, told->text, told->warning);
        test_failure_count++;
    }
    kill_count += target->killed;
    told->warnings = 0;   /* those of a process that is left are about the other one's end */
    told->status = OX_OK; /* nor can it take back what the other one had begun */
    tiny_end_well(io_backend, told, what);
    return target->killed;
}

static void sweep_moment(const char *io_backend, unsigned process, unsigned moment, uint64_t stride, uint64_t first) {
    uint64_t idx = first;
    while (test_failure_count < 5 && kill_at(io_backend, process, (enum moment)moment, idx)) {
        idx += stride;
    }
    const uint64_t passed = target->passed[process][moment];
    CHECK(passed > 40 || test_failure_count > 0);
    printf("%s, process %u, %s: %llu operations\n", io_backend, process, moment_names[moment],
           (unsigned long long)passed);
}

static void sweep(const char *io_backend, uint64_t stride) {
    for (unsigned process = 0; process < PROCESSES; process++) {
        for (unsigned moment = 0; moment < MOMENT_COUNT; moment++) {
            sweep_moment(io_backend, process, moment, stride,
                         (process * MOMENT_COUNT + moment) * stride / (PROCESSES * MOMENT_COUNT));
        }
    }
}

/* Six days take each process with each backend at each moment; the operations differ from one day to the next. */
static void sweep_sample(unsigned seed, bool has_uring) {
    for (unsigned process = 0; process < PROCESSES; process++) {
        sweep_moment(has_uring && (seed + process) % 2 == 0 ? "uring" : "threads", process,
                     (seed / 2 + process) % MOMENT_COUNT, STRIDE, seed * 7 % STRIDE);
    }
}

static void sweep_all(uint64_t stride, const char *only, bool has_uring) {
    if (strcmp(only, "uring") != 0) {
        sweep("threads", stride);
    }
    if (strcmp(only, "threads") != 0 && has_uring) {
        sweep("uring", stride);
    }
}

int main(int argc, char **argv) {
    char why[160];
    tiny_single_thread(argv);
    tiny_set_processes(PROCESSES);
    target = tiny_shared(sizeof *target);
    told = tiny_shared(sizeof *told);
    tiny_set_options(options);
    tiny_process(&seam);
    sys_mpi_require();
    setvbuf(stdout, NULL, _IOLBF, 0);
    tiny_begin(TINY_IN_MEMORY);
    const bool seeded = argc == 3 && strcmp(argv[1], "--seed") == 0, has_uring = ox_io_probe(why) == ox_io_uring();
    const bool all = test_deep();
    const uint64_t stride = argc > 1 && !seeded ? strtoull(argv[1], NULL, 10) : all ? 1 : STRIDE * test_stride(QUICK);
    if (seeded || (IS_SAMPLED && argc == 1 && !all)) {
        sweep_sample(test_seed(argc, argv), has_uring);
    } else {
        sweep_all(stride, argc > 2 ? argv[2] : "", has_uring);
    }
    if (!has_uring) {
        printf("uring: skipped: %s\n", why);
    }
    printf("every %llu: %llu kills, %llu resumed, %llu started over; went on %llu times behind the last step told, "
           "%llu times ahead of it\n", (unsigned long long)stride, (unsigned long long)kill_count,
           (unsigned long long)tiny_counts.resumed, (unsigned long long)tiny_counts.started_over,
           (unsigned long long)tiny_counts.steps_lost, (unsigned long long)tiny_counts.commits_untold);
    return test_end();
}
