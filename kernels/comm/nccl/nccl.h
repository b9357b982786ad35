/* What communication over NCCL takes from the CUDA plugin, which opens the library at run time: one rank's
 * communicator, none of whose calls blocks. One thread at a time calls it, but for `queue`, `check` and `stop`, which
 * any may. */
#ifndef OX_KERNELS_COMM_NCCL_NCCL_H
#define OX_KERNELS_COMM_NCCL_NCCL_H

#include "kernels/device.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_NCCL_ID_BYTES = 128 };

struct ox_nccl;

enum ox_nccl_kind { OX_NCCL_SENDS, OX_NCCL_RECEIVES, OX_NCCL_REDUCES };

/* One of the operations that run as a group. */
struct ox_nccl_part {
    enum ox_nccl_kind kind;
    uint32_t peer;      /* that the bytes go to or come from; of a reduction, the rank that gets the sum */
    const void *source; /* of a send or reduction */
    void *target;       /* of a receive; of a reduction on the rank that gets it */
    uint64_t bytes;
};

/* The group is all that this rank does at once; with `equal_bytes` not 0 it is instead one operation of the library for
 * pieces of this size: a gather, or a reduce-scatter of fp32. */
struct ox_nccl_work {
    const struct ox_nccl_part *parts;
    uint32_t part_count;
    uint64_t equal_bytes;
    bool reduces; /* of `equal_bytes` */
    const void *source;
    void *target;
};

struct ox_nccl_ops {
    /* Makes an identifier for all ranks. OX_E_COMM with what to install where there is no fitting library. */
    enum ox_status (*id)(unsigned char out[OX_NCCL_ID_BYTES]);
    /* Begins to open a rank, which `poll` finds done when all ranks have. */
    enum ox_status (*open)(struct ox_device *, const unsigned char id[OX_NCCL_ID_BYTES], uint32_t rank,
                           uint32_t count, struct ox_nccl **out);
    /* Queues work; at most one is under way. */
    enum ox_status (*begin)(struct ox_nccl *, const struct ox_nccl_work *);
    enum ox_status (*poll)(struct ox_nccl *, bool *done);
    /* Puts work on a lane of the device. It and its parts stay until a later mark of the lane is done. The lane fails
     * where the library does. */
    enum ox_status (*queue)(struct ox_nccl *, struct ox_lane *, const struct ox_nccl_work *);
    /* Errors that the library has met since. */
    enum ox_status (*check)(struct ox_nccl *);
    /* Ends whatever runs, on lanes too; all that comes later fails with OX_E_ABORTED. */
    void (*stop)(struct ox_nccl *);
    /* Frees it, when lanes with its work are drained; ends whatever else runs. */
    void (*close)(struct ox_nccl *);
};

#ifdef __cplusplus
}
#endif
#endif
