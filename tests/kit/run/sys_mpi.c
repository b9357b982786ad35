#include "tests/kit/run/sys_mpi.h"

#include "base/clock.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- what is started --------------------------------------------------------------------------------- */

static bool is_in_path(const char *name) {
    const char *const path = getenv("PATH");
    for (const char *at = path != NULL ? path : ""; *at != '\0';) {
        const int length = (int)strcspn(at, ":");
        if (access(test_pathf("%.*s/%s", length, at, name), X_OK) == 0) {
            return true;
        }
        at += length + (at[length] == ':');
    }
    return false;
}

const char *sys_mpi_missing(void) {
    char plugin[PATH_MAX];
    test_build_path("liboffload_mpi.so", plugin);
    return access(plugin, R_OK) != 0 ? "this build has no MPI plugin"
           : !is_in_path("mpirun")   ? "there is no mpirun"
                                     : NULL;
}

void sys_mpi_require(void) {
    const char *const missing = sys_mpi_missing();
    if (missing != NULL) {
        test_skip(missing);
    }
}

static void add_program(struct sys_args *out, unsigned processes, const struct sys_args *each) {
    const char *const named = each->program != NULL ? each->program : sys_program();
    char program[PATH_MAX];
    sys_args_word(out, "-np");
    sys_args_word(out, "%u", processes);
    sys_args_word(out, "%s", realpath(named, program) != NULL ? program : named);
    for (int i = 1; i < each->count; i++) {
        sys_args_word(out, "%s", each->words[i]);
    }
}

static const char *const loss_words[] = {
    [SYS_MPI_END_OTHERS] = "",
    [SYS_MPI_END_AT_ONCE] = "--mca odls_base_sigkill_timeout 0",
    [SYS_MPI_KEEP_OTHERS] = "--enable-recovery",
};

/* AddressSanitizer is told of them by the library's name, which is in the stack of each allocation if stacks are walked
 * in full; the parts that allocate are unloaded by then. The library's threads are in a loop of libevent. */
void sys_mpi_allow_leaks(void) {
#if defined(__SANITIZE_ADDRESS__)
    static const char leaks[] = "leak:libmpi.so\nleak:libevent\n";
    const char *const options =
        plain_pathf("print_suppressions=0:suppressions=%s", files_write_text("leaks-of-mpi", leaks));
    CHECK(setenv("LSAN_OPTIONS", options, 1) == 0 && setenv("ASAN_OPTIONS", "fast_unwind_on_malloc=0", 1) == 0);
#endif
}

/* What Open MPI keeps while a run lives goes into the test's folder, because a killed mpirun leaves it there. */
void sys_mpi_begin(struct sys_args *out, unsigned processes, const struct sys_args *each, enum sys_mpi_loss loss) {
    out->used = 0;
    out->count = 0;
    out->leashed = false;
    out->limit_count = 0;
    out->out_path = each->out_path;
    out->program = "mpirun";
    sys_args_add(out, "mpirun -q --oversubscribe --bind-to none --allow-run-as-root");
    sys_args_add(out, loss_words[loss]);
    sys_args_add(out, "--mca orte_tmpdir_base");
    sys_args_word(out, "%s", test_folder());
    sys_args_add(out, "--mca btl_vader_backing_directory");
    sys_args_word(out, "%s", test_folder());
    sys_mpi_allow_leaks();
    if (each->program != NULL) { /* the plugin lies beside offload */
        char plugin[PATH_MAX];
        test_build_path("", plugin);
        sys_args_word(out, "-x");
        sys_args_word(out, "LD_LIBRARY_PATH=%s", plugin);
    }
    add_program(out, processes, each);
}

void sys_mpi_also(struct sys_args *out, unsigned processes, const struct sys_args *each) {
    sys_args_word(out, ":");
    add_program(out, processes, each);
}

enum { LAUNCHER_SECONDS = 20 };

/* ---- its processes ----------------------------------------------------------------------------------- */

static void pause_ms(unsigned milliseconds) {
    nanosleep(&(struct timespec){.tv_nsec = (long)milliseconds * 1000000}, NULL);
}

/* Reads a file of a process; returns its length, 0 where there is none. */
static size_t read_of(long pid, const char *name, char *out, size_t bytes) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/%s", pid, name);
    FILE *const file = fopen(path, "re");
    const size_t got = file != NULL ? fread(out, 1, bytes - 1, file) : 0;
    out[got] = '\0';
    if (file != NULL) {
        fclose(file);
    }
    return got;
}

/* The state of a process and who has started it; false if there is none. */
static bool read_stat(long pid, char *state, long *parent) {
    char text[1024];
    const char *const end = read_of(pid, "stat", text, sizeof text) > 0 ? strrchr(text, ')') : NULL;
    return end != NULL && sscanf(end + 1, " %c %ld", state, parent) == 2;
}

static bool is_gone(pid_t pid) {
    char state = 0;
    long parent = 0;
    return !read_stat(pid, &state, &parent) || state == 'Z' || state == 'X';
}

/* The number that mpirun has given to a process; -1 as long as it has none. */
static long rank_of(long pid) {
    static const char name[] = "OMPI_COMM_WORLD_RANK=";
    static char text[1 << 17];
    const size_t bytes = read_of(pid, "environ", text, sizeof text);
    for (const char *at = text; at < text + bytes; at += strlen(at) + 1) {
        if (strncmp(at, name, sizeof name - 1) == 0) {
            return strtol(at + sizeof name - 1, NULL, 10);
        }
    }
    return -1;
}

static unsigned find_children(struct sys_mpi_run *run) {
    unsigned found = 0;
    DIR *const folder = opendir("/proc");
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        const long pid = strtol(entry->d_name, NULL, 10);
        char state = 0;
        long parent = 0;
        if (pid > 0 && read_stat(pid, &state, &parent) && parent == run->launcher) {
            const long rank = rank_of(pid);
            found += rank >= 0 && rank < run->count && run->pids[rank] == 0;
            if (rank >= 0 && rank < run->count) {
                run->pids[rank] = (pid_t)pid;
            }
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return found;
}

bool sys_mpi_find(const struct sys_process *process, unsigned count, struct sys_mpi_run *out) {
    memset(out, 0, sizeof *out);
    out->launcher = process->pid;
    out->count = count;
    for (unsigned found = find_children(out); found < count; found += find_children(out)) {
        if (is_gone(process->pid)) {
            return false;
        }
        pause_ms(2);
    }
    return true;
}

/* Lets 2 ms pass, and reads what is said, so that nobody waits for room in the pipe. */
static void read_a_while(struct sys_process *process) {
    struct pollfd said = {.fd = process->err_fd, .events = POLLIN}; /* a closed one is passed over */
    if (poll(&said, 1, 2) > 0) {
        sys_read(process);
    }
}

/* Open MPI 4.1 may wait for itself when all its processes have ended, in PMIx_server_finalize; then it is killed. */
static void end_launcher(struct sys_process *process) {
    const uint64_t limit_ns = ox_clock_ns() + LAUNCHER_SECONDS * UINT64_C(1000000000);
    while (!is_gone(process->pid)) {
        if (ox_clock_ns() > limit_ns) {
            printf("mpirun is still there %d s after its processes have ended, and is killed\n", LAUNCHER_SECONDS);
            kill(process->pid, SIGKILL);
            return;
        }
        read_a_while(process);
    }
}

double sys_mpi_wait(struct sys_process *process, const struct sys_mpi_run *run, uint64_t begin_ns) {
    for (unsigned i = 0; i < run->count; i++) {
        while (run->pids[i] != 0 && !is_gone(run->pids[i])) {
            read_a_while(process);
        }
    }
    const double seconds = (double)(ox_clock_ns() - begin_ns) / 1e9;
    end_launcher(process);
    sys_wait(process);
    return seconds;
}

void sys_mpi_end(const struct sys_mpi_run *run) {
    for (unsigned i = 0; i < run->count; i++) {
        if (run->pids[i] != 0) {
            kill(run->pids[i], SIGKILL);
        }
    }
    kill(run->launcher, SIGKILL);
}
