/* The ranks of a process and what it knows of all others: a state that changes by events alone. Where there are several
 * processes, the first one puts the events of all into one order, in which each applies them, so all come to the same
 * decisions: whether a call has all its ranks, or a failure came first, and which. Private to kernels/comm/. */
#ifndef OX_KERNELS_COMM_COMM_GROUP_H
#define OX_KERNELS_COMM_COMM_GROUP_H

#include "kernels/comm/comm_impl.h"
#include "kernels/comm/comm_wire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Endpoints of a rank: 0 is that with all ranks, 1 + s that with its group of split s. Each has a channel for link
 * calls; groups have one for meetings besides. */
enum {
    OX_COMM_ENDPOINTS = 1 + OX_COMM_SPLITS,
    OX_COMM_CHANNEL_LINK = OX_COMM_CHANNELS,
    OX_COMM_CHANNEL_MEET = OX_COMM_CHANNEL_LINK + OX_COMM_SPLITS, /* + number of the endpoint, from 1 on */
    OX_COMM_CHANNEL_REVIVE = OX_COMM_CHANNEL_MEET + OX_COMM_ENDPOINTS,
    OX_COMM_CHANNEL_COUNT
};

/* The endpoint whose channel it is. */
static inline uint32_t ox_comm_endpoint_of_channel(uint32_t channel) {
    return channel < OX_COMM_CHANNEL_LINK || channel >= OX_COMM_CHANNEL_REVIVE ? 0
           : channel > OX_COMM_CHANNEL_MEET ? channel - OX_COMM_CHANNEL_MEET : channel - OX_COMM_CHANNEL_LINK;
}

/* Where ranks meet for one call after another: all, or those of each group. Posts and payloads of a round stay while
 * the next round gathers: nobody ends the next one before all have begun it, which they do after reading this one. */
struct ox_comm_channel {
    pthread_cond_t moved;
    uint64_t rounds[OX_COMM_RANKS_MAX]; /* by the first rank of a group: rounds that have ended */
    uint64_t arrived; /* ranks that have come to the present round of their group */
    uint64_t copying; /* ranks of this process that have yet to read, in a link call that their group has come to */
    struct ox_comm_post *posts[2];
    unsigned char *payloads[2]; /* of meetings */
    uint32_t payload_bytes;     /* of a rank, at most */
};

enum ox_comm_event_kind {
    OX_COMM_ARRIVES,
    OX_COMM_TRANSFERS,
    OX_COMM_ABORTS,
    OX_COMM_LEAVES,
    OX_COMM_LIVES /* says that its process does; it changes nothing */
};

/* Crosses processes, followed by a payload: of a meeting, or the text of an abort. */
struct ox_comm_event {
    uint32_t kind, rank, channel, status, payload_bytes;
    uint32_t aborts; /* failures that the rank knew of when it aborted: what it did not know had made its own void */
    struct ox_comm_post post;
};

enum ox_comm_transfer_state { OX_COMM_IDLE, OX_COMM_WAITING, OX_COMM_MATCHED };

/* A send or recv of a rank. */
struct ox_comm_transfer {
    enum ox_comm_transfer_state state;
    struct ox_comm_post post;
};

/* What is known of a rank. */
struct ox_comm_member {
    struct ox_comm_transfer transfers[OX_COMM_ENDPOINTS][2]; /* sends, receipts */
    uint64_t groups[OX_COMM_ENDPOINTS]; /* the ranks of its endpoints; 0: not opened */
    uint32_t raised, applied; /* aborts; `raised` only of ranks of this process */
};

/* The side of a transfer that a call is. */
static inline uint32_t ox_comm_side(const struct ox_comm_post *post) {
    return post->call == OX_COMM_RECV;
}

struct ox_comm_group;
struct ox_comm_remote;

/* An endpoint of a rank of this process. */
struct ox_comm_endpoint {
    struct ox_comm base;
    struct ox_comm_group *group;
    uint32_t rank;   /* among all */
    uint32_t number; /* of the endpoint among those of its rank */
    uint32_t members[OX_COMM_RANKS_MAX]; /* of a group */
    struct ox_comm_endpoint *splits[OX_COMM_SPLITS]; /* of the endpoint with all ranks: those of the rank's groups */
    struct ox_device *device;
    struct ox_lane *lane; /* of the device; NULL: the thread copies */
    /* Guarded by the group's lock: */
    uint32_t inside;    /* calls that run */
    bool released;      /* of a send: the receiver has its bytes */
    bool source_on_host; /* of a send */
    const void *source; /* of the link call: valid until it returns */
    float *target;      /* of a reduce-scatter: as long */
};

/* The endpoint of a peer, by its number among those of `self`; NULL: it is in another process. */
struct ox_comm_endpoint *ox_comm_endpoint_peer(const struct ox_comm_endpoint *self, uint32_t rank);

struct ox_comm_group {
    pthread_mutex_t lock; /* guards what follows */
    uint32_t count, first, local, open_count;
    struct ox_comm_limits limits;
    struct ox_comm_channel channels[OX_COMM_CHANNEL_COUNT];
    struct ox_comm_member members[OX_COMM_RANKS_MAX];
    bool duplex[OX_COMM_ENDPOINTS]; /* a rank of this endpoint may send and receive at the same time */
    uint64_t gone;    /* ranks that have closed their endpoint */
    uint32_t abort_count;
    uint32_t waiting; /* threads of this process that wait */
    enum ox_status cause;
    char cause_text[OX_ERROR_TEXT_BYTES];
    struct ox_comm_endpoint *endpoints[OX_COMM_RANKS_MAX]; /* by rank; NULL: of another process */
    struct ox_comm_remote *remote;                         /* NULL: one process */
};

/* Opens the ranks [first, first + config->count) of `count`. On failure nothing stays. */
OX_MUST enum ox_status ox_comm_group_open(const struct ox_comm_local_config *config, uint32_t first, uint32_t count,
                                          struct ox_comm_group **out);
void ox_comm_group_close(struct ox_comm_group *group);
/* Makes the endpoints of this process usable, with lanes of their devices: comm_endpoint.c. */
OX_MUST enum ox_status ox_comm_endpoints_open(struct ox_comm_group *group, const struct ox_comm_local_config *config,
                                              struct ox_comm **out);

/* What a backend needs that moves the bytes itself: all ranks come to a call of all, or both sides to a transfer, and
 * agree about it; control endpoints only, no decorators. */
OX_MUST enum ox_status ox_comm_endpoint_agree(struct ox_comm *comm, const struct ox_comm_post *post);
OX_MUST enum ox_status ox_comm_endpoint_match(struct ox_comm *comm, const struct ox_comm_post *post);

/* The caller of these holds the lock. */
void ox_comm_group_apply(struct ox_comm_group *group, const struct ox_comm_event *event, const void *payload);
void ox_comm_group_submit(struct ox_comm_group *group, const struct ox_comm_event *event, const void *payload);
void ox_comm_group_abort(struct ox_comm_group *group, uint32_t rank, enum ox_status status, const char *text);

/* ---- what a group with several processes adds: comm_remote.c --------------------------------------- */

/* Transfers of one call, or a sum; in memory of the caller. */
struct ox_comm_remote_job {
    const struct ox_wire_sum *sum; /* NULL: transfers */
    struct ox_wire_transfer transfers[2 * OX_COMM_RANKS_MAX];
    struct ox_wire_request *requests[2 * OX_COMM_RANKS_MAX];
    uint32_t count;
    bool given_up, done;
    enum ox_status status;
    char text[OX_ERROR_TEXT_BYTES];
    struct ox_comm_remote_job *next;
};

/* Hands an event to the process that orders them. The caller holds the group's lock. */
void ox_comm_remote_submit(struct ox_comm_group *group, const struct ox_comm_event *event, const void *payload);
/* Adds a transfer between ranks of two processes, by their numbers in the endpoint, to a job; none for 0 bytes. */
void ox_comm_remote_add(const struct ox_comm_endpoint *self, struct ox_comm_remote_job *job, uint32_t sender,
                        uint32_t receiver, void *at, uint64_t bytes);
/* Adds the vectors of all ranks. The first rank of each process calls it, for all of its process: their endpoints say
 * where the vectors are and where the sums go. */
OX_MUST enum ox_status ox_comm_remote_sum(struct ox_comm_group *group, const uint64_t *cuts);
void ox_comm_remote_begin(struct ox_comm_group *group, struct ox_comm_remote_job *job);
OX_MUST enum ox_status ox_comm_remote_join(struct ox_comm_group *group, struct ox_comm_remote_job *job);
/* The last endpoint of this process is closed. */
void ox_comm_remote_close(struct ox_comm_group *group);

#ifdef __cplusplus
}
#endif
#endif
