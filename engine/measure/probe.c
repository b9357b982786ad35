/* Medians, the load by other processes, the cost of a task, and memory that is there. */
#include "engine/measure/probe.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/lane.h"
#include "base/memory.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double ox_probe_median(const double *values, uint32_t count) {
    double sorted[OX_PROBE_ROUNDS_MAX];
    OX_ASSERT(count > 0 && count <= OX_PROBE_ROUNDS_MAX);
    memcpy(sorted, values, count * sizeof *values);
    qsort(sorted, count, sizeof *sorted, by_value);
    return 0.5 * (sorted[(count - 1) / 2] + sorted[count / 2]);
}

/* ---- load by others ------------------------------------------------------------------------------------- */

/* Processor seconds of this process and of the programs it ran. */
static double own_seconds(void) {
    double seconds = 0.0;
    for (int i = 0; i < 2; i++) {
        struct rusage usage;
        getrusage(i == 0 ? RUSAGE_SELF : RUSAGE_CHILDREN, &usage);
        seconds += (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                   1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    }
    return seconds;
}

/* Busy processor seconds of the machine without interrupts; 0 when the kernel does not report them. */
static double machine_seconds(void) {
    unsigned long long user = 0, nice_time = 0, system_time = 0;
    FILE *const stat = fopen("/proc/stat", "re");
    if (stat == NULL || fscanf(stat, "cpu %llu %llu %llu", &user, &nice_time, &system_time) != 3) {
        user = nice_time = system_time = 0;
    }
    if (stat != NULL) {
        fclose(stat);
    }
    return (double)(user + nice_time + system_time) / (double)sysconf(_SC_CLK_TCK);
}

void ox_probe_load_begin(struct ox_probe_load *load) {
    load->own_seconds = own_seconds();
    load->machine_seconds = machine_seconds();
    load->begin_ns = ox_clock_ns();
}

double ox_probe_load_end(const struct ox_probe_load *load) {
    const double seconds = (double)(ox_clock_ns() - load->begin_ns) * 1e-9;
    const double busy = machine_seconds() - load->machine_seconds, own = own_seconds() - load->own_seconds;
    const double others = (busy - own) / (seconds * (double)sysconf(_SC_NPROCESSORS_ONLN));
    /* The kernel counts in ticks, so a short measurement may seem to exceed the whole. */
    return fmin(fmax(others, 0.0), 1.0);
}

/* ---- a task, memory ------------------------------------------------------------------------------------- */

static enum ox_status nothing(void *owner, const void *args) {
    (void)owner;
    (void)args;
    return OX_OK;
}

/* Measures seconds per task. */
static enum ox_status run_tasks(struct ox_lane *lane, uint32_t tasks, double *seconds) {
    enum ox_status status = OX_OK;
    const uint64_t begin_ns = ox_clock_ns();
    for (uint32_t i = 0; i < tasks && status == OX_OK; i++) {
        struct ox_mark done;
        status = ox_host_lane_submit(lane, nothing, NULL, 0, &done);
        OX_THEN(status, ox_mark_join(done));
    }
    *seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9 / tasks;
    return status;
}

enum ox_status ox_probe_task_seconds(uint32_t tasks, uint32_t rounds, double *seconds) {
    double all[OX_PROBE_ROUNDS_MAX];
    struct ox_lane *lane = NULL;
    enum ox_status status = ox_host_lane_open(&(struct ox_host_lane_config){.label = "bench", .queue_len = 4}, &lane);
    for (uint32_t i = 0; i < rounds && status == OX_OK; i++) {
        status = run_tasks(lane, tasks, &all[i]);
    }
    ox_lane_close(&lane);
    if (status == OX_OK) {
        *seconds = ox_probe_median(all, rounds);
    }
    return status;
}

static enum ox_status check_room(const char *label, uint64_t bytes, const char *remedy) {
    char wanted[OX_SIZE_TEXT_BYTES], given[OX_SIZE_TEXT_BYTES];
    struct ox_memory memory;
    ox_memory_read("", &memory);
    if (memory.usable != 0 && bytes > memory.usable) {
        return ox_fail(OX_E_NOMEM, "%s: the measurement needs %s of memory, but only %s is available; %s", label,
                       ox_size_text(bytes, wanted), ox_size_text(memory.usable, given), remedy);
    }
    return OX_OK;
}

enum ox_status ox_probe_arena_open(const char *label, uint64_t bytes, const char *remedy, struct ox_arena *out) {
    const enum ox_status status = check_room(label, bytes, remedy);
    return status == OX_OK ? ox_arena_open(label, bytes, NULL, out) : status;
}

enum ox_status ox_probe_arena_until(const struct ox_probe_room *room, struct ox_arena *out) {
    enum { PIECE_BYTES = 1 << 20, PATTERN = 251 };
    const uint64_t bytes = ox_align_up(room->bytes, OX_IO_ALIGN_BYTES);
    *out = (struct ox_arena){0};
    OX_TRY(check_room("measurement", bytes, "end programs that use memory"));
    void *const base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        return ox_fail_errno(OX_E_NOMEM, errno, "measurement: cannot reserve memory");
    }
    (void)madvise(base, bytes, MADV_HUGEPAGE);
    float *const values = base;
    uint64_t at = 0;
    while (at < bytes && (at < room->least || ox_clock_ns() < room->end_ns)) {
        const uint64_t end = ox_min_u64(at + PIECE_BYTES, bytes);
        for (; at < end; at += sizeof *values) {
            values[at / sizeof *values] = (float)(at / sizeof *values % PATTERN) * 0x1p-12f - 0x1p-5f;
        }
    }
    if (at < bytes) {
        munmap((unsigned char *)base + at, bytes - at);
    }
    *out = (struct ox_arena){.base = base, .bytes = at};
    return OX_OK;
}
