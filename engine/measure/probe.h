/* What quick measurements and `offload bench` share: the load by other processes, the cost of a task, medians, and a
 * file on a drive that is read and written as the engine does it. */
#ifndef OX_ENGINE_PROBE_H
#define OX_ENGINE_PROBE_H

#include "base/arena.h"
#include "nvme/io.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- numbers: engine/measure/probe.c ----------------------------------------------------------------- */

enum { OX_PROBE_ROUNDS_MAX = 99 };
double ox_probe_median(const double *values, uint32_t count);

/* Measures the share of processor time that other processes take. */
struct ox_probe_load {
    double own_seconds, machine_seconds;
    uint64_t begin_ns;
};
void ox_probe_load_begin(struct ox_probe_load *load);
double ox_probe_load_end(const struct ox_probe_load *load);

/* Measures seconds to submit one of `tasks` to a host lane and join its mark: the median of `rounds`. */
OX_MUST enum ox_status ox_probe_task_seconds(uint32_t tasks, uint32_t rounds, double *seconds);

/* As ox_arena_open, but refuses a size that the machine cannot provide before touching memory. `remedy` ends the
 * error. */
OX_MUST enum ox_status ox_probe_arena_open(const char *label, uint64_t bytes, const char *remedy,
                                           struct ox_arena *out);
/* Reserves memory filled with small numbers: as much of `bytes` as can be touched until `end_ns`, but at least `least`,
 * because a busy machine or its host may give pages slowly. */
struct ox_probe_room {
    uint64_t bytes, least, end_ns;
};
OX_MUST enum ox_status ox_probe_arena_until(const struct ox_probe_room *room, struct ox_arena *out);

/* ---- a file on a drive: engine/measure/probe_file.c -------------------------------------------------- */

enum {
    OX_PROBE_DEPTH_MAX = 1024,
    /* Sizes of the optimizer's requests for a chunk of 256 Ki parameters: lo, m and v; and hi. */
    OX_PROBE_STATE_BYTES = 2560 << 10, OX_PROBE_HI_BYTES = 512 << 10,
    OX_PROBE_UNIT_BYTES = 2 * (OX_PROBE_STATE_BYTES + OX_PROBE_HI_BYTES), /* a file's size is a multiple */
};

/* MIX reads and writes in turn what the optimizer does for a chunk, each in its half of the file. */
enum ox_probe_work { OX_PROBE_WRITE, OX_PROBE_READ, OX_PROBE_MIX, OX_PROBE_WORK_COUNT };

struct ox_probe_file {
    const struct ox_io_backend *backend;
    struct ox_drive *drive;
    struct ox_io_queue *queue;
    struct ox_arena arena; /* depth buffers */
    uint64_t buffer_bytes;
    uint32_t depth, in_flight, free_count;
    uint32_t free_buffers[OX_PROBE_DEPTH_MAX];
};

/* Opens the file and a queue with `depth` requests; `largest` is the work with the largest requests. */
struct ox_probe_place {
    const char *path; /* OX_DRIVE_UNNAMED: the folder */
    enum ox_drive_mode mode;
    uint32_t depth;
    enum ox_probe_work largest;
    const char *remedy; /* if memory is short */
    uint64_t end_ns;    /* by when the buffers are there, else the depth is smaller; 0: any time */
};
OX_MUST enum ox_status ox_probe_file_open(const struct ox_io_backend *backend, const struct ox_probe_place *place,
                                          struct ox_probe_file *out);
void ox_probe_file_close(struct ox_probe_file *file);

/* Bytes per second, and core seconds of this process per byte, kernel threads and interrupts included. */
struct ox_probe_speed {
    double rate, core_seconds;
    uint64_t bytes; /* that were moved */
};
/* Keeps the queue full until `bytes` are moved, or no further request is sent because it is `end_ns` (0: never). */
OX_MUST enum ox_status ox_probe_file_run(struct ox_probe_file *file, enum ox_probe_work work, uint64_t bytes,
                                         uint64_t end_ns, struct ox_probe_speed *out);
/* Takes the seconds of one write of OX_PROBE_HI_BYTES at the file's start. */
OX_MUST enum ox_status ox_probe_file_write_one(struct ox_probe_file *file, double *seconds);

/* Latencies in seconds: of a small read on an idle drive, and of a flush after one written block; both as medians of
 * fewer trials if it becomes `end_ns` (0: never). */
struct ox_probe_latencies {
    double read, flush;
};
OX_MUST enum ox_status ox_probe_file_latencies(struct ox_probe_file *file, uint64_t bytes, uint64_t end_ns,
                                               struct ox_probe_latencies *out);

#ifdef __cplusplus
}
#endif
#endif
