/* Signals that come before a run is open: while arguments are read, while the model is opened, while the text is. None
 * of them kills the process; each does what it does later, as soon as there is something to do it to. The process is
 * stopped where it opens a file, so no clock decides when the signal comes. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 3 };

static const struct row {
    int signal_number;
    int exit_status;
    const char *checkpoint; /* the last one that the run leaves */
    const char *also;       /* another one, or NULL */
    const char *told;
} rows[] = {
    {SIGUSR1, 0, "checkpoint-3", "checkpoint-1", "step 3/3 | "},
    {SIGUSR2, 0, "checkpoint-1", NULL, "stopped after step 1 of 3"},
    {SIGINT, 128 + SIGINT, NULL, NULL, ""},
    {SIGTERM, 128 + SIGTERM, NULL, NULL, ""},
    {SIGHUP, 128 + SIGHUP, NULL, NULL, ""},
    {SIGABRT, -1, NULL, NULL, "offload: ended by SIGABRT: "}, /* as abort() sends it */
};

/* Files that the program opens one after another. */
static const char *const places[] = {"/options.yaml", "/llama.json", "/text.txt"};

static struct sys_args args, wrapped;
static struct sys_process process;

/* Makes a shell stop before it becomes the program. */
static void wrap(void) {
    sys_args_begin(&wrapped, "");
    wrapped.program = "sh";
    sys_args_word(&wrapped, "-c");
    sys_args_word(&wrapped, "kill -STOP $$; exec \"$0\" \"$@\"");
    sys_args_word(&wrapped, "%s", sys_program());
    for (int i = 1; i < args.count; i++) {
        sys_args_word(&wrapped, "%s", args.words[i]);
    }
}

/* Whether the stopped process is about to open a file whose path ends in `end`. */
static bool opens(pid_t pid, const char *end) {
    struct __ptrace_syscall_info info;
    char path[512] = "";
    if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) <= 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY || info.entry.nr != SYS_openat) {
        return false;
    }
    /* Word by word, because the path may lie at the end of a page. */
    for (size_t at = 0; at + 1 < sizeof path; at++) {
        const struct iovec here = {path + at, 1}, there = {(void *)(uintptr_t)(info.entry.args[1] + at), 1};
        if (process_vm_readv(pid, &here, 1, &there, 1, 0) != 1 || path[at] == '\0') {
            break;
        }
    }
    const size_t bytes = strlen(path), end_bytes = strlen(end);
    return bytes >= end_bytes && strcmp(path + bytes - end_bytes, end) == 0;
}

/* Sends the signal when the process is about to open the file, and lets it go on alone. */
static bool send_at(pid_t pid, const char *end, int signal_number) {
    int status = 0;
    if (waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status) ||
        ptrace(PTRACE_SEIZE, pid, NULL, (void *)(long)PTRACE_O_TRACESYSGOOD) != 0) {
        printf("the process cannot be traced: %s\n", strerror(errno));
        return false;
    }
    kill(pid, SIGCONT);
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        if (WSTOPSIG(status) == (SIGTRAP | 0x80) && opens(pid, end)) {
            kill(pid, signal_number);
            return ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0;
        }
        ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
    }
    printf("the process ended before it opened %s\n", end);
    return false;
}

static void test_row(const struct row *row, const char *place) {
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--config=%s", test_path("options.yaml"));
    sys_args_word(&args, "--output=%s", test_path("run"));
    wrap();
    sys_start(&wrapped, &process);
    CHECK(send_at(process.pid, place, row->signal_number));
    sys_wait(&process);
    const bool saved = row->checkpoint == NULL ? files_count("run", "checkpoint-", "") == 0
                                               : files_exist(test_pathf("run/%s", row->checkpoint));
    const bool also = row->also == NULL || files_exist(test_pathf("run/%s", row->also));
    if (process.outcome.exit_status != row->exit_status || !saved || !also || !sys_said(&process, row->told)) {
        sys_complain(&process, test_pathf("signal %d at %s", row->signal_number, place));
    }
    files_remove_folder("run");
}

int main(void) {
    char options[2 * SYS_PATH_BYTES];
    const char *const model_path = sys_write_model("llama");
    const char *const text_path = sys_write_text(4096);
    snprintf(options, sizeof options, "model: %s\ndata: %s\nmax_steps: %d\nmax_seq_length: 16\nbatch_size: 1\n"
             "eval_windows: 0\nsave_steps: 0\ncompute_threads: 1\noptimizer_threads: 1\n", model_path, text_path,
             STEPS);
    files_write_text("options.yaml", options);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t j = 0; j < sizeof places / sizeof *places; j++) {
            test_row(&rows[i], places[j]);
        }
    }
    return test_end();
}
