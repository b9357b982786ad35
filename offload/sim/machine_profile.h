/* A machine as data: what it has and how fast that is. The planner and the simulator know a machine by nothing else,
 * so a plan can be judged for a machine that is not there.
 *
 * The form is JSON; docs/planning.md lists its keys, docs/profiles/ has examples, and `offload bench all` writes one.
 * Reader and writer follow the same tables of keys. Rates are bytes or floating point operations per second, sustained
 * and not peak. */
#ifndef OX_OFFLOAD_MACHINE_PROFILE_H
#define OX_OFFLOAD_MACHINE_PROFILE_H

#include "base/optim_format.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    OX_MACHINE_NAME_BYTES = 128,
    OX_MACHINE_SOURCE_BYTES = 512,
    OX_MACHINE_DRIVES_MAX = 64,
    OX_MACHINE_FILE_BYTES_MAX = 4 << 20,
};

struct ox_machine_gpu {
    char name[OX_MACHINE_NAME_BYTES];
    uint64_t memory_bytes;
    double bf16_flops, fp32_flops; /* of GEMMs */
    double attention_flops;        /* of attention's in bfloat16; 0: not known */
    double h2d_rate, d2h_rate;     /* one direction alone, from and to pinned memory */
    double duplex_rate;            /* both directions at a time, their bytes added */
    double memory_rate;            /* of its own memory, reads and writes added; 0: not known */
};

/* The update alone on `threads` threads, from and to memory: seconds per parameter with fp32 gradients for each format
 * of the moments, 0 where unknown. */
struct ox_machine_adam {
    uint32_t threads;
    double seconds[OX_MOMENTS_COUNT];
};

struct ox_machine_host {
    uint64_t memory_bytes;
    uint32_t cores;           /* that compute and the optimizer share */
    double dram_rate;         /* reads and writes added; copies, optimizer and compute share it */
    double core_flops, flops; /* fp32 GEMMs of the CPU device: one core, all cores */
    struct ox_machine_adam adam;
};

struct ox_machine_drive {
    char name[OX_MACHINE_NAME_BYTES];
    double read_rate, write_rate; /* alone */
    double mix_rate;              /* the optimizer's mix, as many bytes read as written, added */
    double latency_seconds;       /* of a small read while nothing else runs */
    double flush_seconds;
    double read_core_seconds, write_core_seconds; /* that the kernel takes of a core for a byte; 0: not known */
    uint64_t capacity_bytes;  /* 0: not known */
    uint64_t endurance_bytes; /* that may be written in its life; 0: not known */
};

struct ox_machine {
    char name[OX_MACHINE_NAME_BYTES];
    char source[OX_MACHINE_SOURCE_BYTES]; /* where the values come from, in words */
    bool has_gpu;                         /* else the CPU is the device and copies cost nothing */
    struct ox_machine_gpu gpu;
    struct ox_machine_host host;
    struct ox_machine_drive drives[OX_MACHINE_DRIVES_MAX];
    uint32_t drive_count;
    double task_seconds; /* to hand one task to a lane and hear that it is done */
};

/* Reads a profile. A key that is unknown or missing, a wrong type, and a value that is not positive or far from what
 * its unit allows are OX_E_CONFIG; the text names `where` and the key. `out` is unspecified on failure. */
OX_MUST enum ox_status ox_machine_parse(const char *where, const char *text, size_t bytes, struct ox_machine *out);
OX_MUST enum ox_status ox_machine_load(const char *path, struct ox_machine *out);


/* A machine of which nothing is known but its number of cores, with one drive: nominal rates. Whoever shows what
 * follows from them says so. */
void ox_machine_nominal(uint32_t cores, struct ox_machine *out);
/* The same with a GPU, of which no rate is measured either: nominal ones of its generation, by what it says of itself.
 * A `name` that is too long is cut; 0 stands for what is not known. */
struct ox_machine_gpu_facts {
    const char *name;
    uint64_t memory_bytes;
    uint32_t capability; /* 90 stands for 9.0 */
    uint32_t processor_count;
};
void ox_machine_nominal_gpu(struct ox_machine *machine, const struct ox_machine_gpu_facts *facts);
/* One drive for each that a run has: those of the machine in their order, the last of them again for what is more; a
 * nominal one where it has none. May be asked again with another number. */
void ox_machine_fit_drives(struct ox_machine *machine, uint32_t drive_count);

/* The machine as a profile (json_t of jansson, the caller's), which the reader gives back bit by bit. `measured` (may
 * be NULL; one reference is taken over) is carried under the key of that name, which the reader passes over. NULL
 * without memory, or when a name is not UTF-8. */
struct json_t;
struct json_t *ox_machine_json(const struct ox_machine *machine, struct json_t *measured);
/* Writes it, after the same checks. */
OX_MUST enum ox_status ox_machine_save(const char *path, const struct ox_machine *machine, struct json_t *measured);

/* What drives get of a store, as speeds against each other: their rates of the optimizer's mix. Fills drive_count of
 * them; false where all are alike. */
bool ox_machine_drive_speeds(const struct ox_machine *machine, uint64_t *speeds);

/* All drives together, each with its share by speed: the first to be at its limit holds all of them back. Of sizes the
 * sum (0 when one is not known), of times the longest, of core seconds the mean by shares (0 when one is not known);
 * zeros where there is no drive. */
struct ox_machine_drive ox_machine_drives(const struct ox_machine *machine);

#ifdef __cplusplus
}
#endif
#endif
