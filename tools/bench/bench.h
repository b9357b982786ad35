/* Shared by the parts of `offload bench`: records, medians, thread counts, scratch files and plain loops. Each part
 * measures and adds records; tools/command/cmd_bench.c prints them and writes the machine profile from them. */
#ifndef OX_TOOLS_BENCH_H
#define OX_TOOLS_BENCH_H

#include "base/arena.h"
#include "base/pool.h"
#include "cpu_optim/optim.h"
#include "engine/config/config.h"
#include "engine/measure/probe.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    OX_BENCH_ROUNDS_MAX = OX_PROBE_ROUNDS_MAX, OX_BENCH_NAME_BYTES = 64, OX_BENCH_RECORDS_MAX = 640,
    OX_BENCH_THREAD_COUNTS_MAX = 16,
    OX_BENCH_HEAD_DIM_MAX = 512, /* of a model's heads */
};

/* ---- records ------------------------------------------------------------------------------------------- */

/* `limit` is what the machine itself reaches, `ratio` the value divided by it, which ox_bench_add computes unless it is
 * given, as the median of ratios. With the unit OX_BENCH_SHARE the value
 * is already such a ratio and the limit is its target, so a ratio below 1 is a missed limit. */
struct ox_bench_figure {
    double value;
    const char *unit;    /* static storage */
    double limit, ratio; /* 0: no limit */
};
#define OX_BENCH_SHARE "1"

struct ox_bench_record {
    char name[OX_BENCH_NAME_BYTES];
    struct ox_bench_figure figure;
};

/* A measured drive. */
struct ox_bench_drive {
    const char *path;
    const char *backend; /* its rates go into the profile */
    bool direct;
    uint64_t bytes;
};

/* The sizes of a step that GEMMs and operations are measured at. */
struct ox_bench_shape {
    uint32_t rows, seq; /* tokens of a micro-batch, and of one sequence */
    uint32_t hidden, width, vocab;
    uint32_t heads, kv_heads, head_dim; /* of a named model; 0: a measurement has heads of its own */
    bool gated;      /* the MLP's first product makes gate and up side by side */
    bool transposed; /* weights of a block are stored as (in, out) */
};

struct ox_bench {
    const struct ox_config *config;
    struct ox_bench_shape model; /* of --model, `seq` its context length; hidden 0: fixed sizes are measured */
    bool json;  /* print records at the end as JSON, and notes to stderr */
    struct ox_bench_device *gpu; /* bench_device.h; NULL: no GPU is measured */
    bool brief; /* for `bench all`: fewer rounds, and only what the profile needs */
    struct ox_bench_record records[OX_BENCH_RECORDS_MAX];
    uint32_t record_count, missed_count;
    struct ox_bench_drive drives[OX_CONFIG_NVME_MAX];
    uint32_t drive_count;
};

/* Adds a record with a printf-style name, and prints it unless JSON is wanted. */
void ox_bench_add(struct ox_bench *bench, const struct ox_bench_figure *figure, const char *fmt, ...) OX_PRINTF(3, 4);
/* Returns the value of a record, 0 when there is none. */
double ox_bench_value(const struct ox_bench *bench, const char *fmt, ...) OX_PRINTF(2, 3);
/* Prints one line about the measurement. */
void ox_bench_note(const struct ox_bench *bench, const char *fmt, ...) OX_PRINTF(2, 3);
/* Returns the records as a new JSON array of {name, value, unit, limit, ratio}; NULL without memory. */
struct json_t;
struct json_t *ox_bench_records_json(const struct ox_bench *bench);

/* ---- helpers of a measurement -------------------------------------------------------------------------- */

/* Returns the median of a[i] / b[i], taking 0 where b[i] is 0. Pairing the rounds cancels what slows the machine for a
 * while. */
double ox_bench_median_ratio(const double *a, const double *b, uint32_t count);

/* Returns --rounds, else `full`, or `brief` for a brief bench. */
uint32_t ox_bench_rounds(const struct ox_bench *bench, uint32_t full, uint32_t brief);
/* Returns `request`, or the number of processors for 0. */
uint32_t ox_bench_threads(uint64_t request);
/* Writes 1, 2, 4 ... below `all`, then `all`; returns how many. */
uint32_t ox_bench_thread_counts(uint32_t all, uint32_t counts[OX_BENCH_THREAD_COUNTS_MAX]);

/* As ox_probe_arena_open. */
#define OX_BENCH_SMALLER "give a smaller --size"
OX_MUST enum ox_status ox_bench_arena_open(const char *label, uint64_t bytes, struct ox_arena *out);

/* Adds the record "<part>.other_processes". */
void ox_bench_add_load(const struct ox_probe_load *load, struct ox_bench *bench, const char *part);

/* ---- a folder for temporary files ---------------------------------------------------------------------- */

/* The files in the folder. */
#define OX_BENCH_DRIVE_FILE "drive.dat"
#define OX_BENCH_STORE_FILE "offload-store-0.ox"

/* Makes a private folder in `parent`, which must exist, and writes its path to `path` (OX_PATH_BYTES). Removes what an
 * earlier run left; OX_E_BUSY when another bench uses it. Until it is closed, INT, TERM and HUP remove the files and
 * the folder and end the process with 128 + the signal. One folder at a time. */
OX_MUST enum ox_status ox_bench_scratch_open(const char *parent, char *path);
void ox_bench_scratch_close(void);

/* ---- plain loops, compiled for the widest vectors of this machine --------------------------------------- */

enum ox_bench_loop_kind {
    OX_BENCH_LOOP_STREAM,                  /* reads and writes a parameter's planes as an update does */
    OX_BENCH_LOOP_SCALE,                   /* gradient times a number                                       */
    OX_BENCH_LOOP_UPDATE,                  /* AdamW on fp32 copies                                          */
    OX_BENCH_LOOP_ROUND,                   /* fp32 copies to bf16 weights                                   */
    OX_BENCH_LOOP_READ, OX_BENCH_LOOP_WRITE, OX_BENCH_LOOP_COPY,
};

/* Sizes in cache lines of 64 bytes per 64 parameters, such as `lo_lines` of lo. */
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
    const struct ox_optim_hyper *hyper;
    unsigned char *to;             /* WRITE, COPY */
    const unsigned char *from;     /* READ, COPY */
    uint64_t zero; /* always 0, unknown to the compiler: loops add it so that they are not optimized away */
};

/* Runs over parameters, or over lines for READ, WRITE and COPY; begin and end are multiples of 64. The returned sum
 * keeps the compiler from dropping reads. */
uint64_t ox_bench_loop_run(const struct ox_bench_loop *loop, struct ox_range range);

/* ---- the parts ------------------------------------------------------------------------------------------- */

OX_MUST enum ox_status ox_bench_adam(struct ox_bench *bench);
OX_MUST enum ox_status ox_bench_nvme(struct ox_bench *bench);
OX_MUST enum ox_status ox_bench_gemm(struct ox_bench *bench);
OX_MUST enum ox_status ox_bench_copy(struct ox_bench *bench);
OX_MUST enum ox_status ox_bench_lane(struct ox_bench *bench);
OX_MUST enum ox_status ox_bench_ops(struct ox_bench *bench);
OX_MUST enum ox_status ox_bench_comm(struct ox_bench *bench);
/* Puts what ox_bench_comm measured into the machine of a profile: the rates of the largest vectors. */
struct ox_machine;
void ox_bench_comm_fill(const struct ox_bench *bench, struct ox_machine *out);

/* Writes a profile of this machine (offload/sim/machine_profile.h) from the records to `path`. */
OX_MUST enum ox_status ox_bench_profile_write(const struct ox_bench *bench, const char *path);

#ifdef __cplusplus
}
#endif
#endif
