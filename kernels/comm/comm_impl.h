/* What backends share: a call as data, which ranks compare; the patience of a waiting call; names of ranks in messages.
 * Private to kernels/comm/. */
#ifndef OX_KERNELS_COMM_COMM_IMPL_H
#define OX_KERNELS_COMM_COMM_IMPL_H

#include "kernels/comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A call as its rank states it to the others, in a form that crosses processes. */
struct ox_comm_post {
    uint32_t call;          /* enum ox_comm_call */
    uint32_t peer;          /* of a send or recv */
    uint32_t payload_bytes; /* of a meeting */
    uint32_t on_host;
    uint64_t bytes;  /* of the vector, the transfer, the slot of a meeting */
    uint64_t digest; /* of cuts and givers */
    char what[OX_COMM_WHAT_BYTES];
};

void ox_comm_post_gather(const struct ox_comm *comm, const struct ox_comm_gather *call, struct ox_comm_post *out);
void ox_comm_post_exchange(const struct ox_comm *comm, const struct ox_comm_exchange *call, struct ox_comm_post *out);
void ox_comm_post_reduce_scatter(const struct ox_comm *comm, const struct ox_comm_reduce_scatter *call,
                                 struct ox_comm_post *out);
void ox_comm_post_send(const struct ox_comm *comm, const struct ox_comm_send *call, struct ox_comm_post *out);
void ox_comm_post_recv(const struct ox_comm *comm, const struct ox_comm_recv *call, struct ox_comm_post *out);
void ox_comm_post_meet(const struct ox_comm_meet *call, struct ox_comm_post *out);

/* OX_E_COMM with a text that names two ranks, unless all ranks of a set make the same call; `posts` is by rank. Every
 * rank finds the same. */
OX_MUST enum ox_status ox_comm_posts_check(const struct ox_comm_post *posts, uint64_t ranks);
/* Two ranks whose calls can never match; returns OX_E_COMM with a text that names both. */
enum ox_status ox_comm_posts_clash(uint32_t a_rank, const struct ox_comm_post *a, uint32_t b_rank,
                                   const struct ox_comm_post *b);
/* True when one is the send that the other is the recv of, between these two ranks. */
bool ox_comm_posts_pair(uint32_t a_rank, const struct ox_comm_post *a, uint32_t b_rank, const struct ox_comm_post *b);
/* OX_E_COMM unless the two sides of a transfer agree. */
OX_MUST enum ox_status ox_comm_transfer_check(uint32_t send_rank, const struct ox_comm_post *send, uint32_t recv_rank,
                                              const struct ox_comm_post *recv);

/* A set of ranks: bit r is rank r. */
static inline uint64_t ox_comm_ranks_all(uint32_t count) {
    return count >= 64 ? UINT64_MAX : (UINT64_C(1) << count) - 1;
}
enum { OX_COMM_RANKS_TEXT_BYTES = 256 };
/* Writes "rank 3" or "ranks 1, 2 and 5" into text (OX_COMM_RANKS_TEXT_BYTES) and returns text. */
const char *ox_comm_ranks_text(uint64_t ranks, char *text);

/* The ranks of an endpoint, as numbers among all. */
uint64_t ox_comm_ranks_of(const struct ox_comm *comm);

/* The patience of one waiting call. Time in which this process itself was stopped does not count: the others may have
 * been stopped with it. */
struct ox_comm_patience {
    uint64_t begin_ns, warn_ns, fail_ns; /* by ox_clock_ns; when to warn next and when to fail */
    uint64_t seen_ns;                    /* when the call looked last */
};
enum { OX_COMM_LOOK_NS = 1000 * 1000 * 1000 }; /* a waiting call looks at least this often */
/* Leaves out what has passed without a look; returns the time. */
uint64_t ox_comm_patience_look(struct ox_comm_patience *patience);
void ox_comm_patience_begin(struct ox_comm_patience *patience, const struct ox_comm_limits *limits);
/* Warns where it is time to, of a call of all ranks on the lowest of those that have come alone; OX_E_COMM at the
 * limit. `missing` are the ranks that it waits for. */
OX_MUST enum ox_status ox_comm_patience_check(struct ox_comm_patience *patience, const struct ox_comm *comm,
                                              const struct ox_comm_post *post, uint64_t missing);

/* Adds to the time that this rank has waited for its peers. */
void ox_comm_waited(struct ox_comm *comm, uint32_t call, uint64_t begin_ns);

void ox_comm_init(struct ox_comm *comm, const struct ox_comm_ops *ops, uint32_t rank, uint32_t count);
/* Begins an endpoint that lies over another one, whose ranks it has. */
void ox_comm_init_over(struct ox_comm *comm, const struct ox_comm_ops *ops, struct ox_comm *inner);

#ifdef __cplusplus
}
#endif
#endif
