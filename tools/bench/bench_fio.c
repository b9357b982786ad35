/* Runs fio as the reference for drives, and reads its report from a pipe. */
#include "tools/bench/bench_nvme.h"

#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REPORT_BYTES_MAX = 1 << 20 };

/* Replaces the child by fio, which ends when this process does. */
static _Noreturn void become_fio(const char *const *args, int out_fd, pid_t parent) {
    const int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    dup2(out_fd, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1); /* huge pages, as the engine uses */
    signal(SIGPIPE, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == parent) {
        execvp("fio", (char *const *)args);
    }
    _exit(127);
}

/* Reads up to `bytes_max` from `fd` and discards the rest, so that the writer never blocks. */
static size_t read_all(int fd, char *text, size_t bytes_max) {
    size_t bytes = 0;
    char rest[4096];
    for (int interrupts = 0;;) {
        const bool full = bytes == bytes_max;
        const ssize_t got = read(fd, full ? rest : text + bytes, full ? sizeof rest : bytes_max - bytes);
        if (ox_interrupted(got, &interrupts)) {
            continue;
        }
        if (got <= 0) {
            return bytes;
        }
        bytes += full ? 0 : (size_t)got;
    }
}

/* Runs fio; *text becomes its output, which the caller frees. */
static enum ox_status run_program(const char *const *args, char **text) {
    int pipe_fds[2] = {-1, -1};
    char *const report = calloc(1, REPORT_BYTES_MAX + 1);
    if (report == NULL || pipe2(pipe_fds, O_CLOEXEC) != 0) {
        free(report);
        return ox_fail(OX_E_NOMEM, "fio cannot be started: out of memory or file descriptors");
    }
    fflush(NULL); /* the child must not write this process's buffers again */
    const pid_t parent = getpid(), child = fork();
    if (child == 0) {
        become_fio(args, pipe_fds[1], parent);
    }
    close(pipe_fds[1]);
    if (child > 0) {
        (void)read_all(pipe_fds[0], report, REPORT_BYTES_MAX);
    }
    close(pipe_fds[0]);
    int wait_status = 0;
    while (child > 0 && waitpid(child, &wait_status, 0) < 0 && errno == EINTR) {
    }
    if (child < 0 || !WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0) {
        const int number = child < 0 ? -1 : WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : WTERMSIG(wait_status);
        report[strcspn(report, "\n")] = '\0';
        const enum ox_status status = ox_fail(OX_E_IO, "fio %s %d: %.200s", child < 0 ? "could not be started:" :
                                              WIFEXITED(wait_status) ? "ended with status" : "was ended by signal",
                                              number, report);
        free(report);
        return status;
    }
    *text = report;
    return OX_OK;
}

bool ox_bench_fio_present(void) {
    char *text = NULL;
    const bool present = run_program((const char *const[]){"fio", "--version", NULL}, &text) == OX_OK;
    free(text);
    return present;
}

/* Escapes ':', which separates file names for fio. */
static void escape(const char *path, char *out, size_t out_bytes) {
    size_t used = 0;
    for (; *path != '\0' && used + 2 < out_bytes; path++) {
        if (*path == ':' || *path == '\\') {
            out[used++] = '\\';
        }
        out[used++] = *path;
    }
    out[used] = '\0';
}

static double sum_read_write(const json_t *job, const char *key) {
    double sum = 0.0;
    for (int i = 0; i < 2; i++) {
        sum += json_number_value(json_object_get(json_object_get(job, i == 0 ? "read" : "write"), key));
    }
    return sum;
}

/* Reads the rate from a report; notes may precede the JSON. */
static enum ox_status read_report(const char *text, double *rate) {
    const char *const begin = strchr(text, '{');
    json_t *root = NULL;
    const enum ox_status status = begin == NULL ? ox_fail(OX_E_CORRUPT, "fio printed no JSON report")
                                                : ox_json_parse("fio's report", begin, strlen(begin), &root);
    if (status != OX_OK) {
        return status;
    }
    const json_t *const job = json_array_get(json_object_get(root, "jobs"), 0);
    const double bytes = sum_read_write(job, "io_bytes"), ms = json_number_value(json_object_get(job, "job_runtime"));
    json_decref(root);
    if (!(bytes > 0.0)) {
        return ox_fail(OX_E_CORRUPT, "fio's report names no bytes");
    }
    *rate = bytes / ((ms > 0.0 ? ms : 1.0) * 1e-3); /* fio counts whole milliseconds */
    return OX_OK;
}

enum ox_status ox_bench_fio_run(const struct ox_bench_target *target, enum ox_probe_work work, bool uring,
                                double *rate) {
    char path[2 * OX_PATH_BYTES + 16] = "--filename=", size[48], depth[48], block[96];
    escape(target->path, path + strlen(path), sizeof path - strlen(path));
    snprintf(size, sizeof size, "--size=%" PRIu64, target->bytes);
    snprintf(depth, sizeof depth, "--iodepth=%" PRIu32, target->depth);
    snprintf(block, sizeof block, "--bs=%d", OX_PROBE_HI_BYTES);
    if (work == OX_PROBE_MIX) {
        snprintf(block, sizeof block, "--bssplit=%dk/50:%dk/50", OX_PROBE_STATE_BYTES >> 10, OX_PROBE_HI_BYTES >> 10);
    }
    const char *const way = work == OX_PROBE_READ ? "--rw=read" : work == OX_PROBE_WRITE ? "--rw=write"
                                                                                                   : "--rw=rw";
    /* Only io_uring has the last two. */
    const char *const args[] = {"fio", "--name=bench", path, size, depth, block, way, "--output-format=json",
                                "--direct=1", "--scramble_buffers=0", "--fallocate=none", "--allow_file_create=0",
                                uring ? "--ioengine=io_uring" : "--ioengine=libaio",
                                uring ? "--fixedbufs=1" : NULL, "--registerfiles=1", NULL};
    char *text = NULL;
    enum ox_status status = run_program(args, &text);
    OX_THEN(status, read_report(text, rate));
    free(text);
    return status;
}
