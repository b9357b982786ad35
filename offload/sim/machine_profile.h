/* A machine as data: its parts, their sizes and their rates. Planner and simulator know a machine by nothing else, so a
 * plan can be judged for a machine that is not at hand.
 *
 * The file format is JSON; docs/planning.md lists its keys, docs/profiles/ has examples, and `offload bench all` writes
 * one. Reader and writer follow the same tables of keys. Rates are bytes or floating point operations per second,
 * sustained and not peak. */
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
    OX_MACHINE_COMM_MAX = 16,
    OX_MACHINE_FILE_BYTES_MAX = 4 << 20,
};

struct ox_machine_gpu {
    char name[OX_MACHINE_NAME_BYTES];
    uint32_t count;                /* GPUs like this one; 0: one */
    uint64_t memory_bytes;
    double bf16_flops, fp32_flops; /* rates of GEMMs */
    /* Rates of attention in bfloat16, forward and backward, first where several heads of queries share one of keys and
     * values, then where each has its own. Forward 0: not known; backward 0: as forward. */
    double attention_flops, attention_backward_flops;
    double mha_attention_flops, mha_attention_backward_flops;
    double h2d_rate, d2h_rate;     /* one direction at a time, pinned memory */
    double duplex_rate;            /* both directions at a time, added */
    double links_rate;             /* the links of all GPUs at a time, both directions added; 0: each as alone */
    double peer_rate;              /* from one GPU to another, one direction; 0: no peer access, through host memory */
    double peer_of_links;          /* of such a copy's time, what the links to the host cannot use: 0 with links between
                                    * GPUs, 1 where peers meet on the same PCIe links */
    /* Machines like this one, of `count` GPUs each (0: one), and what a GPU reaches to one of another machine while all
     * do, in one direction, beside the time until a byte arrives. */
    uint32_t machines;
    double net_rate, net_latency;
    double memory_rate;            /* GPU memory, reads and writes added; 0: not known */
};

/* The optimizer's update on `threads` threads, with all planes in memory: seconds per parameter with fp32 gradients for
 * each format of the moments, 0 where unknown. */
struct ox_machine_adam {
    uint32_t threads;
    double seconds[OX_MOMENTS_COUNT];
};

struct ox_machine_host {
    uint64_t memory_bytes;
    uint32_t cores;           /* compute and the optimizer share them */
    double dram_rate;         /* reads and writes added; copies, optimizer and compute share it */
    double core_flops, flops; /* fp32 GEMMs of the CPU device: one core, all cores */
    double bf16_flops; /* GEMMs of the CPU device with --dtype bf16, all cores; 0: as in fp32 */
    double packed_bytes_per_flop; /* what these GEMMs packed; 0: those of `offload bench gemm` */
    double attention_flops; /* the CPU device with all cores; 0: not known */
    struct ox_machine_adam adam;
};

struct ox_machine_drive {
    char name[OX_MACHINE_NAME_BYTES];
    double read_rate, write_rate; /* one direction at a time */
    double mix_rate;              /* the optimizer's mix: as many bytes read as written, added */
    double latency_seconds;       /* a small read on an idle drive */
    double flush_seconds;
    double read_core_seconds, write_core_seconds; /* core time that the kernel takes per byte; 0: not known */
    uint64_t capacity_bytes;  /* 0: not known */
    uint64_t endurance_bytes; /* bytes that may be written in its life; 0: not known */
};

/* What so many ranks that compute on the CPU reach when all of them communicate at once, as `offload bench comm`
 * measures it: bytes that a rank receives from the others. */
struct ox_machine_comm {
    uint32_t ranks;
    double gather_rate, exchange_rate;
    double pair_rate;    /* from one neighbour, while each gives to the other one; 0: not known */
    double meet_seconds; /* until all have come; a call has two meetings */
};

struct ox_machine {
    char name[OX_MACHINE_NAME_BYTES];
    char source[OX_MACHINE_SOURCE_BYTES]; /* where the values come from, in words */
    bool has_gpu;                         /* else the CPU is the device and copies cost nothing */
    struct ox_machine_gpu gpu;
    struct ox_machine_host host;
    struct ox_machine_drive drives[OX_MACHINE_DRIVES_MAX];
    uint32_t drive_count;
    struct ox_machine_comm comm[OX_MACHINE_COMM_MAX]; /* in the order of their ranks */
    uint32_t comm_count;                              /* 0: not measured */
    double task_seconds; /* to submit one task to a lane and see that it is done */
};

/* Reads a profile. OX_E_CONFIG if a key is unknown or missing, a type is wrong, or a value is not positive or far from
 * what its unit allows; the text names `where` and the key. `out` is unspecified on failure. */
OX_MUST enum ox_status ox_machine_parse(const char *where, const char *text, size_t bytes, struct ox_machine *out);
OX_MUST enum ox_status ox_machine_load(const char *path, struct ox_machine *out);
/* Checks a machine that the program put together as the reader checks a file. */
OX_MUST enum ox_status ox_machine_check(const char *where, const struct ox_machine *machine);

/* A machine of which only the number of cores is known, with nominal rates and one drive. A caller that shows results
 * from it has to say that they are nominal. */
void ox_machine_nominal(uint32_t cores, struct ox_machine *out);
/* Adds a GPU with nominal rates of its generation; `facts` are what the GPU reports about itself. A `name` that is too
 * long is cut; 0 stands for a fact that is not known. */
struct ox_machine_gpu_facts {
    const char *name;
    uint64_t memory_bytes;
    uint32_t capability; /* 90 stands for 9.0 */
    uint32_t processor_count;
};
void ox_machine_nominal_gpu(struct ox_machine *machine, const struct ox_machine_gpu_facts *facts);
/* Makes the machine have one drive for each drive of a run: its own drives in their order, then copies of the last one,
 * or of a nominal drive if it has none. May be called again with another number. */
void ox_machine_fit_drives(struct ox_machine *machine, uint32_t drive_count);

/* How many of so many ranks are on a machine: where there are several, each is filled first. */
uint32_t ox_machine_ranks(const struct ox_machine *machine, uint32_t rank_count);
/* A part of the machine, of so many even ones. */
void ox_machine_divide(const struct ox_machine *machine, double parts, struct ox_machine *out);
/* What one of several ranks has of the machine: its own GPU, and its part of the cores, the memory, the drives and, if
 * GPUs share it, the link. */
void ox_machine_of_rank(const struct ox_machine *machine, uint32_t rank_count, struct ox_machine *out);

/* What is known of communication between so many ranks: the figures of as many, else of the next number above, else of
 * the largest; NULL if none are known. */
const struct ox_machine_comm *ox_machine_comm_of(const struct ox_machine *machine, uint32_t rank_count);

/* The machine as a profile (json_t of jansson), which the caller owns and from which the reader restores every bit.
 * `measured` (may be NULL; one reference is taken over) is stored under the key "measured", which the reader ignores.
 * Returns NULL without memory, or if a name is not UTF-8. */
struct json_t;
struct json_t *ox_machine_json(const struct ox_machine *machine, struct json_t *measured);
/* Checks the machine as the reader does and writes its profile to `path`; takes over a reference of `measured`. */
OX_MUST enum ox_status ox_machine_save(const char *path, const struct ox_machine *machine, struct json_t *measured);

/* The relative speeds by which drives share a store: their rates of the optimizer's mix. Fills machine->drive_count of
 * `speeds`; false if all are equal. */
bool ox_machine_drive_speeds(const struct ox_machine *machine, uint64_t *speeds);

/* All drives as one, each used in proportion to its speed, so that the first drive at its limit holds back all. Sizes
 * are added (0 if one is not known), the longest time counts, and core seconds are the mean by shares (0 if one is not
 * known). All fields are 0 if there is no drive. */
struct ox_machine_drive ox_machine_drives(const struct ox_machine *machine);

#ifdef __cplusplus
}
#endif
#endif
