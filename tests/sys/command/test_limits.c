/* The program within limits of the process (ulimit): it ends, and an error names the limit. */
#include "base/bytes.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LIMITS_MEMORY = 0 }; /* they reserve terabytes of addresses */
#else
enum { LIMITS_MEMORY = 1 };
#endif
enum { HANG_SECONDS = 600 };
enum { CPU_SECONDS_MAX = 20 }; /* a process that spins is ended by a signal, which no check takes */

static const char *model_path, *text_path;
static struct sys_process process;

static void run_within(int resource, uint64_t bytes, const char *command, const char *more) {
    struct sys_args args;
    if (strcmp(command, "train") == 0) {
        files_remove_folder("run");
        sys_args_train(&args, model_path, text_path, "run");
        sys_args_add(&args, "--max-seq-length 16 --max-steps 2 --eval-windows 0 --compute-threads 2 "
                            "--optimizer-threads 1 --host-mem 32MiB");
    } else {
        sys_args_begin(&args, command);
    }
    sys_args_add(&args, more);
    sys_args_limit(&args, RLIMIT_CPU, CPU_SECONDS_MAX);
    sys_args_limit(&args, resource, bytes);
    sys_run(&args, &process);
}

/* Whatever the limit, the run is refused, fails or succeeds. */
static void test_memory(int resource, const char *flag) {
    static const unsigned limits_mib[] = {60, 100, 200, 300, 340, 380, 400, 450, 700};
    unsigned done = 0;
    for (unsigned i = 0; i < sizeof limits_mib / sizeof *limits_mib; i++) {
        run_within(resource, limits_mib[i] * OX_MIB, "train", "");
        const struct sys_outcome *const outcome = &process.outcome;
        const bool told = strstr(outcome->err, "\noffload: ") != NULL || strncmp(outcome->err, "offload: ", 9) == 0;
        if (outcome->exit_status < 0 || (outcome->exit_status > 0 && (!told || strstr(outcome->err, flag) == NULL))) {
            printf("%s %u MiB: exit status %d, signal %d\n%s\n", flag, limits_mib[i], outcome->exit_status,
                   outcome->signal_number, outcome->err);
            test_failure_count++;
        }
        done += outcome->exit_status == 0;
    }
    CHECK(done > 0 && done < sizeof limits_mib / sizeof *limits_mib);
    run_within(resource, 100 * OX_MIB, "version", "");
    CHECK(process.outcome.exit_status == 0);
}

/* The limit that a refusal names is enough, for each command that takes a budget. */
static void test_named_limit(int resource, const char *names) {
    char words[3][SYS_PATH_BYTES];
    static const char *const commands[] = {"train", "eval", "generate"};
    snprintf(words[0], sizeof *words, "%s", "");
    snprintf(words[1], sizeof *words, "--model %s --data %s --max-seq-length 16 --host-mem 32MiB",
             test_path("run/checkpoint-2"), text_path);
    snprintf(words[2], sizeof *words, "--model %s --prompt the --max-new-tokens 2 --host-mem 32MiB",
             test_path("run/checkpoint-2"));
    for (int i = 0; i < 3; i++) {
        run_within(resource, 200 * OX_MIB, commands[i], words[i]);
        const char *const named = strstr(process.outcome.err, names);
        const uint64_t kib = named != NULL ? strtoull(named + strlen(names), NULL, 10) : 0;
        if (process.outcome.exit_status != 2 || kib * OX_KIB <= 200 * OX_MIB) {
            sys_complain(&process, commands[i]);
            continue;
        }
        run_within(resource, kib * OX_KIB, commands[i], words[i]);
        if (process.outcome.exit_status != 0) {
            sys_complain(&process, commands[i]);
        }
    }
}

/* A file that may not grow ends a save, not the run. */
static void test_files(void) {
    run_within(RLIMIT_FSIZE, 64 << 10, "train", "--save-steps 1 --save-wait-seconds 0");
    CHECK(process.outcome.exit_status == 1);
    CHECK(strstr(process.outcome.err, "warning: no checkpoint at step 1: ") != NULL);
    CHECK(strstr(process.outcome.err, "step 2/2") != NULL);
    CHECK(strstr(process.outcome.err, "checkpoint-2.tmp/model.safetensors: cannot write: File too large (the file "
                                      "system's limit, or that of `ulimit -f`)") != NULL);
    CHECK(!files_exist("run/checkpoint-1.tmp") && !files_exist("run/checkpoint-2.tmp"));
}

static void limit_files(rlim_t bytes) {
    CHECK(prlimit(process.pid, RLIMIT_FSIZE, &(struct rlimit){bytes, RLIM_INFINITY}, NULL) == 0);
}

/* What ends the training of a run whose last save fails; END_STORE: its steps, and the store has an earlier commit. */
enum end { END_STEPS, END_SIGNAL, END_DATA, END_STORE, END_COUNT };

/* Starts a run whose files may not grow from its first step on. */
static void begin_unsaved(enum end end) {
    struct sys_args args;
    text_path = sys_write_text(20000);
    files_remove_folder("run");
    sys_args_train(&args, model_path, text_path, "run");
    sys_args_add(&args, "--max-seq-length 16 --eval-windows 0 --compute-threads 1 --optimizer-threads 1 "
                        "--host-mem 32MiB --lr-scheduler-type constant --data-format bytes");
    sys_args_word(&args, "--max-steps=%d", end == END_STEPS || end == END_STORE ? 200 : 100000);
    if (end == END_STORE) {
        files_remove_folder("store");
        sys_args_add(&args, "--persist-steps 1000");
        sys_args_drive(&args, "store", "32MiB");
    }
    sys_args_leash(&args);
    sys_start(&args, &process);
    CHECK(sys_await(&process, "step 1/"));
    CHECK(kill(process.pid, SIGSTOP) == 0);
    limit_files(16 << 10);
    CHECK(end != END_DATA || truncate(text_path, 1) == 0);
    CHECK(kill(process.pid, SIGCONT) == 0 && (end != END_SIGNAL || kill(process.pid, SIGTERM) == 0));
    CHECK(sys_await(&process, "warning: only memory has the state of step ") &&
          sys_await(&process, ".safetensors: cannot write: File too large "));
    CHECK(sys_said(&process, "warning: the run ends by a failure after its last save: ") == (end == END_DATA));
}

/* A last save that fails is tried again until its cause is mended, or a signal ends the run without it. */
static void test_last_save(enum end end, bool mended) {
    begin_unsaved(end);
    if (mended) {
        limit_files(RLIM_INFINITY);
    } else {
        CHECK(kill(process.pid, SIGTERM) == 0);
    }
    sys_wait(&process);
    const bool saved = sys_said(&process, "\nsaved "), told = sys_said(&process, " is not saved: there is no store ");
    const int expected = end == END_SIGNAL ? 128 + SIGTERM : mended && end != END_DATA ? 0 : 1;
    CHECK(sys_said(&process, "warning: step 200 is not in the store: ") == (end == END_STORE));
    if (process.outcome.exit_status != expected || saved != mended || (!mended && end != END_SIGNAL && !told)) {
        sys_complain(&process, mended ? "a mended save" : "a save that a signal ends");
    }
}

int main(void) {
    alarm(HANG_SECONDS); /* a program that does not say what is waited for */
    model_path = sys_write_model("llama");
    text_path = sys_write_text(20000);
    if (LIMITS_MEMORY) {
        test_memory(RLIMIT_AS, "ulimit -v");
        test_named_limit(RLIMIT_AS, "ulimit -v ");
        test_memory(RLIMIT_DATA, "ulimit -d");
        test_named_limit(RLIMIT_DATA, "ulimit -d ");
    }
    test_files();
    for (int i = 0; i < 2 * END_COUNT; i++) {
        test_last_save((enum end)(i % END_COUNT), i < END_COUNT);
    }
    return test_end();
}
