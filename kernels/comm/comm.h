/* Communication between ranks: it moves bytes and never adds, but for ox_comm_reduce_scatter, where a user asks for the
 * library's own sums. Ranks are threads of one process, of several, or both; every rank has one endpoint, a struct
 * ox_comm.
 *
 * Calls block until they are done or aborted. When a call returns, also after a failure, no peer reads its source and
 * nothing writes its target any more. A rank makes its link calls (gather, exchange, send, recv, reduce_scatter) one
 * at a time, in an order that matches its peers'; `meet` has channels, each with an order of its own, and may run
 * beside a link call and beside a meeting on another channel. A group of ranks may have endpoints of its own
 * (ox_comm_split), whose calls have an order apart from all others.
 *
 * Where ox_comm_queues says so, a call with memory of the device may be given a lane of that device instead, and
 * returns at once: "calls on a device" below.
 *
 * The first failure of any rank ends all calls of all ranks, now and later, until ox_comm_revive: every one returns
 * that status, with a text that begins with "rank K: ". Ranks that disagree about a call (its kind, order, sizes or
 * `what`) fail in this way too. A call that waits long warns with rank, `what` and the ranks that are missing, and
 * fails with the same names at its time limit. */
#ifndef OX_KERNELS_COMM_COMM_H
#define OX_KERNELS_COMM_COMM_H

#include "base/status.h"
#include "kernels/device.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    OX_COMM_RANKS_MAX = 64,
    OX_COMM_CHANNELS = 8,          /* for `meet`; users number them from 0 */
    OX_COMM_SPLITS = 8,            /* ways in which ranks are divided into groups */
    OX_COMM_MEET_BYTES = 64 << 10, /* the largest payload of a rank */
    OX_COMM_GROUP_MEET_BYTES = 256, /* and in a meeting of a group */
    OX_COMM_WHAT_BYTES = 80        /* longer names are cut in messages and comparisons */
};

struct ox_comm;

/* ---- calls on a device: over NCCL --------------------------------------------------------------------
 * A gather, exchange, reduce-scatter, send or receipt whose `lane` is not NULL is only put on that lane, which is one
 * of the endpoint's device: it begins when the device comes to it, so behind all that the lane waits for, and the next
 * mark of the lane is behind it. Its memory is the device's and stays until that mark is done. Hosts neither wait for
 * each other nor for the device.
 *
 * A caller that puts calls on lanes keeps to two rules. All ranks put the same calls on an endpoint, in the same
 * order: nothing is compared before bytes move. And all calls of a rank, on whatever endpoints, are on one lane, or
 * wait for it and it for them: the device never works on two calls at a time, so two endpoints cannot hold it against
 * each other, and what can still be a circle is one in the order of the lists, which a proof of all lists excludes
 * (offload/proof/joint.c).
 *
 * A second thread, one at a time, follows with ox_comm_watch: it compares the calls with those of the other ranks,
 * gives up at the time limit and names who is late. */

/* When a waiting call warns, and when it fails; 0 stands for 10 s and 10 minutes. */
struct ox_comm_limits {
    uint32_t warn_ms, fail_ms;
};

/* Every rank gives its piece and receives all of them. In place where source == target + cuts[rank] - cuts[0]; the two
 * must not overlap otherwise. */
struct ox_comm_gather {
    const void *source;   /* this rank's piece */
    void *target;         /* all pieces: cuts[count] - cuts[0] bytes */
    const uint64_t *cuts; /* count + 1 ascending offsets in bytes, equal on all ranks: rank r has [cuts[r], cuts[r+1]),
                             which may be empty */
    bool on_host;         /* all memory of this call is host memory; otherwise the device's. Equal on all ranks */
    struct ox_lane *lane; /* NULL: the call returns when it is done; otherwise it is put on this lane of the device */
    const char *what;     /* for messages, equal on all ranks: "weights of unit 3" */
};

/* Every giver divides a whole vector among all ranks; every rank receives its slice of each giver's vector. */
struct ox_comm_exchange {
    const void *source;   /* a giver's whole vector by `cuts`, whose piece s goes to rank s; otherwise not read */
    void *target;         /* this rank's piece from each giver, one behind another in order of ranks */
    const uint64_t *cuts; /* as in a gather */
    const bool *gives;    /* count entries, equal on all ranks: whether a rank is a giver */
    bool on_host;
    struct ox_lane *lane; /* as in a gather, as below */
    const char *what;
};

/* Adds the fp32 vectors of all ranks in whatever order the library likes, so the result is not reproducible. Over MPI
 * the ranks of a process are added first. */
struct ox_comm_reduce_scatter {
    const float *source;  /* a whole vector by `cuts` */
    float *target;        /* this rank's slice of the sum; in place where it lies in `source` */
    const uint64_t *cuts; /* as in a gather; multiples of 4 */
    bool on_host;
    struct ox_lane *lane;
    const char *what;
};

/* One side of a transfer between two ranks. It returns when the other side has called too and the bytes have moved.
 * `on_host` says where the memory of this side is: bytes may go from a device to host memory and back. */
struct ox_comm_send {
    uint32_t peer; /* another rank */
    const void *source;
    uint64_t bytes;
    bool on_host;
    struct ox_lane *lane;
    const char *what;
};
struct ox_comm_recv {
    uint32_t peer;
    void *target;
    uint64_t bytes;
    bool on_host;
    struct ox_lane *lane;
    const char *what;
};

/* A rendezvous of all ranks on the host, which carries a payload of each to all. */
struct ox_comm_meet {
    uint32_t channel;    /* below OX_COMM_CHANNELS */
    const void *mine;    /* this rank's payload */
    uint32_t mine_bytes; /* at most slot_bytes; ranks may differ */
    uint32_t slot_bytes; /* at most OX_COMM_MEET_BYTES, equal on all ranks */
    void *all;           /* receives rank r's payload at all + r * slot_bytes; NULL where slot_bytes is 0 */
    uint32_t *all_bytes; /* count entries: the payload bytes of each rank; or NULL */
    const char *what;
    const struct ox_comm_limits *limits; /* of this call; NULL: those of the endpoint */
};

enum ox_comm_call {
    OX_COMM_GATHER,
    OX_COMM_EXCHANGE,
    OX_COMM_REDUCE_SCATTER,
    OX_COMM_SEND,
    OX_COMM_RECV,
    OX_COMM_MEET,
    OX_COMM_CALL_COUNT
};

/* Sums since the endpoint was opened, over the calls that ended well or were put on a lane. Bytes that a rank keeps for
 * itself do not count: a gather brings in the pieces of the others and takes the rank's piece out to each of them. */
struct ox_comm_stats {
    uint64_t calls, in_bytes, out_bytes;
    uint64_t call_ns; /* within the call */
    uint64_t wait_ns; /* of these, or of who watches a call on a lane, until all peers had come */
};

/* No entry may be NULL. Called through the wrappers below, which check arguments, count, and abort after a failure. */
struct ox_comm_ops {
    const char *name; /* "local", "mpi", "nccl", "decorator" */
    enum ox_status (*gather)(struct ox_comm *, const struct ox_comm_gather *);
    enum ox_status (*exchange)(struct ox_comm *, const struct ox_comm_exchange *);
    enum ox_status (*reduce_scatter)(struct ox_comm *, const struct ox_comm_reduce_scatter *);
    enum ox_status (*send)(struct ox_comm *, const struct ox_comm_send *);
    enum ox_status (*recv)(struct ox_comm *, const struct ox_comm_recv *);
    enum ox_status (*meet)(struct ox_comm *, const struct ox_comm_meet *);
    enum ox_status (*watch)(struct ox_comm *, uint64_t calls, struct ox_mark done);
    void (*stop)(struct ox_comm *);
    void (*abort)(struct ox_comm *, enum ox_status, const char *text);
    enum ox_status (*cause)(struct ox_comm *);
    enum ox_status (*revive)(struct ox_comm *);
    void (*close)(struct ox_comm *);
};

struct ox_comm {
    const struct ox_comm_ops *ops;
    uint32_t rank, count;
    const uint32_t *members; /* of a group: which ranks of all it consists of; NULL: all ranks */
    struct ox_comm *inner; /* of a decorator; otherwise NULL */
    bool queues;           /* takes calls on a lane of its device; before the first call */
    uint64_t queued;       /* calls that it has put on a lane; for the thread that makes these calls */
    pthread_mutex_t lock;  /* guards what follows */
    struct ox_comm_stats stats[OX_COMM_CALL_COUNT];
};

OX_MUST enum ox_status ox_comm_gather(struct ox_comm *comm, const struct ox_comm_gather *call);
OX_MUST enum ox_status ox_comm_exchange(struct ox_comm *comm, const struct ox_comm_exchange *call);
/* OX_E_CONFIG where the backend has no sums of its own (local). */
OX_MUST enum ox_status ox_comm_reduce_scatter(struct ox_comm *comm, const struct ox_comm_reduce_scatter *call);
OX_MUST enum ox_status ox_comm_send(struct ox_comm *comm, const struct ox_comm_send *call);
OX_MUST enum ox_status ox_comm_recv(struct ox_comm *comm, const struct ox_comm_recv *call);
OX_MUST enum ox_status ox_comm_meet(struct ox_comm *comm, const struct ox_comm_meet *call);

/* Whether calls may be put on a lane of the endpoint's device. */
static inline bool ox_comm_queues(const struct ox_comm *comm) {
    return comm->queues;
}
/* Calls that the calling thread has put on lanes so far. */
static inline uint64_t ox_comm_queued(const struct ox_comm *comm) {
    return comm->queued;
}

/* Waits until the next `calls` calls that were put on a lane are done, of which `done` is a mark behind them: first for
 * the other ranks, as a call that blocks does, with its warnings, time limit and texts, then for the device. The caller
 * has joined a mark before them, so that time which the rank itself takes does not count. Fails as calls fail, and then
 * leaves work on the lane, which ox_comm_stop ends. Any one thread at a time, beside calls that are put on lanes and
 * not beside those that block. */
OX_MUST enum ox_status ox_comm_watch(struct ox_comm *comm, uint64_t calls, struct ox_mark done);

/* After a failure: ends what the endpoint has on lanes of the device, so that these can be drained, until a revival.
 * Targets have undefined contents. From any thread; nothing where all calls block. */
void ox_comm_stop(struct ox_comm *comm);

/* Ends all calls of all ranks, from any thread, with this failure; the first one counts. It does not wait. */
void ox_comm_abort(struct ox_comm *comm, enum ox_status status, const char *text);

/* Returns the failure that ended the calls, with its text; OX_OK while there is none. */
OX_MUST enum ox_status ox_comm_cause(struct ox_comm *comm);

/* Makes the endpoints usable again after a failure. All ranks call it, each when its own calls have returned and lanes
 * with calls are drained; an abort in the meantime ends it. Without a failure it is a rendezvous. */
OX_MUST enum ox_status ox_comm_revive(struct ox_comm *comm);

void ox_comm_stats(struct ox_comm *comm, enum ox_comm_call call, struct ox_comm_stats *out);

/* "gather", "meet" */
const char *ox_comm_call_name(enum ox_comm_call call);

/* Closes one endpoint, in which no call runs, and sets *comm to NULL; accepts NULL. A peer that waits for this rank
 * then fails with its name. */
void ox_comm_close(struct ox_comm **comm);

/* ---- local: threads of one process ------------------------------------------------------------------ */

struct ox_comm_local_config {
    uint32_t count;                   /* 1 to OX_COMM_RANKS_MAX */
    struct ox_device *const *devices; /* one per rank: its memory is copied by a lane of that device; NULL as an entry
                                         or altogether: by the calling thread. They are closed after the endpoints */
    struct ox_comm_limits limits;
    /* With several processes, one that says nothing for so long counts as ended. Each says at times that it lives,
     * whatever its ranks do, unless it is stopped or its machine is gone. 0: it may be silent for ever. */
    uint32_t silent_ms;
};

/* Opens the endpoints of all ranks, each to be used and closed by its own rank. */
OX_MUST enum ox_status ox_comm_local_open(const struct ox_comm_local_config *config, struct ox_comm **out);

/* ---- groups of ranks -------------------------------------------------------------------------------- */

/* The group of the calling rank: `count` ranks of all in ascending order, with itself. */
struct ox_comm_group_of {
    uint32_t split; /* below OX_COMM_SPLITS: the groups of one split have no rank in common */
    bool duplex;    /* equal on all ranks: a rank's sends and its receipts have an order each, and one of either may run
                       at a time; there are no other link calls */
    uint32_t count;
    const uint32_t *members;
};

/* Opens an endpoint for a group, in which ranks are numbered by their place among the members; it has channel 0 of
 * `meet` with OX_COMM_GROUP_MEET_BYTES, and no sums of the library. `comm` is a local or mpi endpoint, and all of its
 * ranks call this at the same time, once for each split. A failure in a group ends the calls of all ranks, and a
 * revival of `comm` revives it; messages have the numbers of all ranks. It is closed before `comm`. */
OX_MUST enum ox_status ox_comm_split(struct ox_comm *comm, const struct ox_comm_group_of *group, struct ox_comm **out);

/* The number among all ranks of a rank of the endpoint. */
static inline uint32_t ox_comm_member(const struct ox_comm *comm, uint32_t rank) {
    return comm->members == NULL ? rank : comm->members[rank];
}

/* ---- mpi: processes, each with ranks as threads, started by mpirun or Slurm --------------------------- */

/* Names of variables, ended by NULL, one of which launchers set in the environment of every process that they start. */
extern const char *const ox_comm_mpi_variables[];

/* Which process this is, and of how many. `plugin_path` NULL: beside the program, then in ../lib/offload, then where
 * the loader looks. OX_E_COMM with what to install where there is no plugin or no fitting library. */
OX_MUST enum ox_status ox_comm_mpi_world(const char *plugin_path, uint32_t *process, uint32_t *process_count);

/* Opens the endpoints of this process's config->count ranks; all processes call it, with the same count. Ranks are
 * numbered process by process. Memory on a GPU does not go between processes. */
OX_MUST enum ox_status ox_comm_mpi_open(const char *plugin_path, const struct ox_comm_local_config *config,
                                        struct ox_comm **out);

/* ---- nccl: memory of GPUs, one rank on each ---------------------------------------------------------- */

struct ox_nccl_ops;
struct ox_comm_nccl_config {
    struct ox_device *device;          /* of this rank, closed after the endpoint */
    const struct ox_nccl_ops *library; /* ox_cuda_nccl of that device (kernels/cuda.h) */
    bool agrees; /* no call may be put on a lane: ranks agree about each before it begins */
    struct ox_comm_limits limits;
};

/* Puts NCCL over a local or mpi endpoint, or that of a group, which it takes over unless it fails: calls with memory of
 * the device go through the library, all others as before. All ranks call it, each from a thread of its own; either all
 * succeed, or all fail and may go on with `control` after a revival. OX_E_COMM with what to install where there is no
 * fitting library. The last channel of `meet`, of a group its only one, is used while ranks open and revive. */
OX_MUST enum ox_status ox_comm_nccl_open(struct ox_comm *control, const struct ox_comm_nccl_config *config,
                                         struct ox_comm **out);

/* Puts NCCL over the endpoint of a group that is `duplex`, which it takes over unless it fails: transfers go through
 * the library, from memory of the device or of the host that is registered with the device (ox_device_host_pin), to
 * either. Each pair of ranks opens a communicator with its first transfer in either direction, and again after a
 * failure. Only this rank's state changes here. */
OX_MUST enum ox_status ox_comm_nccl_pairs_open(struct ox_comm *control, const struct ox_comm_nccl_config *config,
                                               struct ox_comm **out);

/* ---- decorators, for tests: each takes an endpoint over, unless it fails, and closes it -------------------------- */

/* Sleeps at random before and after every call, by seed, rank and turn. */
OX_MUST enum ox_status ox_comm_chaos_open(struct ox_comm *inner, uint64_t seed, uint64_t ns_max, struct ox_comm **out);

/* Fails the call number `call_idx` of this rank, counted over all kinds of calls, before it reaches the backend or
 * after it has succeeded there. */
struct ox_comm_fault {
    uint64_t call_idx;
    bool after;
    enum ox_status status;
};
OX_MUST enum ox_status ox_comm_fault_open(struct ox_comm *inner, const struct ox_comm_fault *fault,
                                          struct ox_comm **out);

#ifdef __cplusplus
}
#endif
#endif
