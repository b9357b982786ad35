/* `offload bench`: what its parts share. A part measures and adds records; the command prints them, and writes the
 * profile of the machine from them. */
#ifndef OX_TOOLS_BENCH_H
#define OX_TOOLS_BENCH_H

#include "base/arena.h"
#include "base/pool.h"
#include "cpu_optim/adam.h"
#include "engine/config/config.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    OX_BENCH_ROUNDS_MAX = 99, OX_BENCH_NAME_BYTES = 64, OX_BENCH_RECORDS_MAX = 640,
    OX_BENCH_THREAD_COUNTS_MAX = 16,
};

/* ---- records ------------------------------------------------------------------------------------------- */

/* `limit` is what the machine itself reaches and `ratio` the value against it; where the unit is OX_BENCH_SHARE the
 * value is such a ratio and the limit what it should be, so that a ratio below 1 is a limit that was missed. */
struct ox_bench_figure {
    double value;
    const char *unit;    /* static storage */
    double limit, ratio; /* 0: none */
};
#define OX_BENCH_SHARE "1"

struct ox_bench_record {
    char name[OX_BENCH_NAME_BYTES];
    struct ox_bench_figure figure;
};

/* A drive that was measured. */
struct ox_bench_drive {
    const char *path;
    const char *backend; /* the one whose rates count */
    bool direct;
    uint64_t bytes;
};

struct ox_bench {
    const struct ox_config *config;
    bool json;  /* records are printed at the end, as JSON; notes go to stderr */
    struct ox_bench_device *gpu; /* bench_device.h; NULL: none is measured */
    bool brief; /* a probe of the machine: fewer rounds, and only what the profile takes */
    struct ox_bench_record records[OX_BENCH_RECORDS_MAX];
    uint32_t record_count, missed_count;
    struct ox_bench_drive drives[OX_CONFIG_NVME_MAX];
    uint32_t drive_count;
};

/* Adds a record whose name is `fmt` filled in, and prints it where text is wanted. */
void ox_bench_add(struct ox_bench *bench, const struct ox_bench_figure *figure, const char *fmt, ...) OX_PRINTF(3, 4);
/* The value of a record, 0 when there is none. */
double ox_bench_value(const struct ox_bench *bench, const char *fmt, ...) OX_PRINTF(2, 3);
/* One line about what is measured. */
void ox_bench_note(const struct ox_bench *bench, const char *fmt, ...) OX_PRINTF(2, 3);
/* The records as a JSON array of {name, value, unit, limit, ratio}, json_t of jansson; NULL without memory. */
struct json_t;
struct json_t *ox_bench_records_json(const struct ox_bench *bench);

/* ---- the frame of a measurement ------------------------------------------------------------------------ */

double ox_bench_median(const double *values, uint32_t count);
/* The median of a[i] / b[i], 0 where a b[i] is: what slows the machine for a while slows both of a round. */
double ox_bench_median_ratio(const double *a, const double *b, uint32_t count);

/* --rounds, or one of these. */
uint32_t ox_bench_rounds(const struct ox_bench *bench, uint32_t full, uint32_t brief);
/* A number of threads, 0 for all processors. */
uint32_t ox_bench_threads(uint64_t request);
/* 1, 2, 4 ... and `all` itself. Returns how many. */
uint32_t ox_bench_thread_counts(uint32_t all, uint32_t counts[OX_BENCH_THREAD_COUNTS_MAX]);

/* As ox_arena_open, but what the machine cannot give is refused before it is touched. */
OX_MUST enum ox_status ox_bench_arena_open(const char *label, uint64_t bytes, struct ox_arena *out);

/* What share of the processors' time other processes took since the meter began. */
struct ox_bench_meter {
    double own_seconds, machine_seconds;
    uint64_t begin_ns;
};
void ox_bench_meter_begin(struct ox_bench_meter *meter);
/* Adds the record "<part>.other_processes". */
void ox_bench_meter_end(const struct ox_bench_meter *meter, struct ox_bench *bench, const char *part);

/* ---- a folder for files that must not stay ------------------------------------------------------------- */

/* The files that may lie in it. */
#define OX_BENCH_DRIVE_FILE "drive.dat"
#define OX_BENCH_STORE_FILE "offload-store-0.ox"

/* Makes a folder of our own in `parent`, which must exist, and writes its path to `path` (OX_PATH_BYTES); what an
 * earlier run left is removed, and one that still runs is OX_E_BUSY. Until it is closed, INT, TERM and HUP remove the
 * files and the folder and end the process with 128 + the signal. One at a time. */
OX_MUST enum ox_status ox_bench_scratch_open(const char *parent, char *path);
void ox_bench_scratch_close(void);

/* ---- plain loops, compiled for the widest vectors of this machine --------------------------------------- */

enum ox_bench_loop_kind {
    OX_BENCH_LOOP_STREAM,                  /* reads and writes the planes of a parameter as an update does */
    OX_BENCH_LOOP_SCALE,                   /* gradient times a number                                       */
    OX_BENCH_LOOP_UPDATE,                  /* AdamW on fp32 copies                                          */
    OX_BENCH_LOOP_ROUND,                   /* fp32 copies to bf16 weights                                   */
    OX_BENCH_LOOP_READ, OX_BENCH_LOOP_WRITE, OX_BENCH_LOOP_COPY,
};

/* Lines are cache lines of 64 bytes: 64 parameters have `lo_lines` of lo, and so on. */
struct ox_bench_planes {
    unsigned char *hi, *lo, *m, *v, *m_scale, *v_scale; /* v and the scales may be NULL */
    const unsigned char *grad;
    unsigned lo_lines, moment_lines, grad_lines;
};

struct ox_bench_loop {
    enum ox_bench_loop_kind kind;
    struct ox_bench_planes planes; /* STREAM */
    float *p, *grad, *m, *v;       /* SCALE, UPDATE, ROUND */
    uint16_t *weights;
    const struct ox_adam_hyper *hyper;
    unsigned char *to;             /* WRITE, COPY */
    const unsigned char *from;     /* READ, COPY */
    uint64_t zero;                 /* what the loops add; the compiler does not know its value */
};

/* Over parameters, or for READ, WRITE and COPY over lines; begin and end are multiples of 64. What it returns keeps the
 * compiler from leaving reads out. */
uint64_t ox_bench_loop_run(const struct ox_bench_loop *loop, struct ox_range range);

/* ---- the parts ------------------------------------------------------------------------------------------- */

OX_MUST enum ox_status ox_bench_adam(struct ox_bench *bench);
OX_MUST enum ox_status ox_bench_nvme(struct ox_bench *bench);
OX_MUST enum ox_status ox_bench_gemm(struct ox_bench *bench);
OX_MUST enum ox_status ox_bench_copy(struct ox_bench *bench);
OX_MUST enum ox_status ox_bench_lane(struct ox_bench *bench);
OX_MUST enum ox_status ox_bench_ops(struct ox_bench *bench);

/* --isa, or the widest of the machine. */
OX_MUST enum ox_status ox_bench_isa(const struct ox_config *config, enum ox_isa *out);

/* Writes what was measured to `path` as a profile of this machine (offload/sim/machine_profile.h). */
OX_MUST enum ox_status ox_bench_profile_write(const struct ox_bench *bench, const char *path);

#ifdef __cplusplus
}
#endif
#endif
