/* Ranks for tests of communication: endpoints of any backend, a thread for each rank of this process, memory with
 * guards around it on the host or on the rank's device, and a call of each kind that shows what it moved. */
#ifndef OX_TESTS_COMM_WORLD_H
#define OX_TESTS_COMM_WORLD_H

#include "kernels/comm/comm.h"

#include <pthread.h>

struct comm_rank;
struct comm_world {
    const char *name;
    uint32_t count, first, local; /* ranks in all; of this process, from `first` on */
    bool adds, adds_on_host; /* whether the backend has sums of its own: of memory of devices, and of the host */
    struct ox_device *devices[OX_COMM_RANKS_MAX]; /* of local ranks; NULL: memory of the host */
    struct ox_comm *comms[OX_COMM_RANKS_MAX];     /* of local ranks */
    struct ox_lane *lanes[OX_COMM_RANKS_MAX]; /* of local ranks' devices, for calls on them; NULL: all calls block */
    /* Opens comms[]; the other processes do the same. */
    void (*open)(struct comm_world *world, const struct ox_comm_limits *limits);
    /* Puts what comms[] have over their inner endpoint over that of a group; NULL: nothing. Then one thread makes all
     * calls of a rank. */
    void (*over)(struct comm_rank *rank, struct ox_comm **group);
    void (*over_transfers)(struct comm_rank *rank, struct ox_comm **group); /* that of a group for transfers */
    const void *context; /* for `open` */
    /* Waits until all processes of the world have come, not by what is tested; NULL: this process has all ranks. */
    void (*together)(void);
};

/* A rank's thread. */
struct comm_rank {
    struct comm_world *world;
    struct ox_comm *comm;
    uint32_t rank, count;
    const void *arg;
    enum ox_status status; /* what the last call returned, for the thread that joins */
    char text[OX_ERROR_TEXT_BYTES];
};
typedef void comm_fn(struct comm_rank *rank);

/* Opens the endpoints of this process. Limits of 0 are the defaults. */
void comm_world_open(struct comm_world *world, uint32_t warn_ms, uint32_t fail_ms);
void comm_world_close(struct comm_world *world);
/* Waits for the other processes, so that none begins a revival, say, while a rank still aborts. Runs the function in a
 * thread for each rank of this process and joins them; `out`, an entry per rank of this process, may be NULL. */
void comm_each(struct comm_world *world, comm_fn *fn, const void *arg, struct comm_rank *out);

/* Memory of a rank between guards. */
struct comm_block {
    struct ox_device *device;
    unsigned char *at, *base;
    uint64_t bytes;
};
void comm_block_open(struct comm_rank *rank, bool on_host, uint64_t bytes, struct comm_block *out);
/* Checks the guards too. */
void comm_block_close(struct comm_block *block);
void comm_block_write(struct comm_block *block, uint64_t at, const void *data, uint64_t bytes);
void comm_block_read(struct comm_block *block, uint64_t at, void *data, uint64_t bytes);

/* Cuts of every form; a variant beyond the last is none. False there. */
bool comm_cuts(uint32_t variant, uint32_t count, uint64_t *cuts);

/* What a rank does otherwise than its peers, and how the call is made. */
struct comm_try {
    /* REDUCE_SCATTER: a meeting where the backend has no sums. SEND: even ranks send to the next and then receive from
     * it; a last one alone meets. */
    enum ox_comm_call kind;
    uint32_t variant;       /* of the cuts; scales the bytes of a transfer or payload */
    uint32_t givers;        /* 0 all, 1 none, 2 the first, 3 the last, 4 every other */
    bool in_place, on_host;
    uint64_t seed;    /* of the contents */
    uint32_t channel; /* of a meeting */
    const char *what; /* NULL: "test" */
};
/* Makes the call and checks every byte that it moved. */
enum ox_status comm_try(struct comm_rank *rank, const struct comm_try *call);

#endif
