/* The calls of an endpoint: checks, counters, and the abort after a failure, for every backend. */
#include "base/assert.h"
#include "base/clock.h"
#include "kernels/comm/comm_impl.h"

#include <string.h>

void ox_comm_init(struct ox_comm *comm, const struct ox_comm_ops *ops, uint32_t rank, uint32_t count) {
    OX_ASSERT(count > 0 && count <= OX_COMM_RANKS_MAX && rank < count);
    comm->ops = ops;
    comm->rank = rank;
    comm->count = count;
    comm->members = NULL;
    comm->inner = NULL;
    comm->queues = false;
    comm->queued = 0;
    pthread_mutex_init(&comm->lock, NULL);
    memset(comm->stats, 0, sizeof comm->stats);
}

void ox_comm_init_over(struct ox_comm *comm, const struct ox_comm_ops *ops, struct ox_comm *inner) {
    ox_comm_init(comm, ops, inner->rank, inner->count);
    comm->members = inner->members;
    comm->inner = inner;
    comm->queues = inner->queues;
}

void ox_comm_waited(struct ox_comm *comm, uint32_t call, uint64_t begin_ns) {
    pthread_mutex_lock(&comm->lock);
    comm->stats[call].wait_ns += ox_clock_ns() - begin_ns;
    pthread_mutex_unlock(&comm->lock);
}

static void check_cuts(const struct ox_comm *comm, const uint64_t *cuts) {
    for (uint32_t r = 0; r < comm->count; r++) {
        OX_ASSERT(cuts[r] <= cuts[r + 1]);
    }
}

/* After a failure aborts all ranks, and returns their common cause. */
static enum ox_status fail_all(struct ox_comm *comm, enum ox_status status) {
    enum ox_status cause = comm->ops->cause(comm);
    if (cause == OX_OK) {
        comm->ops->abort(comm, status, ox_error_text());
        cause = comm->ops->cause(comm);
    }
    return cause != OX_OK ? cause : status;
}

/* Counts a call that ended well, or was put on a lane. */
static enum ox_status end(struct ox_comm *comm, enum ox_status status, const struct ox_comm_stats *add,
                          enum ox_comm_call call) {
    if (status != OX_OK) {
        return fail_all(comm, status);
    }
    pthread_mutex_lock(&comm->lock);
    struct ox_comm_stats *const stats = &comm->stats[call];
    stats->calls++;
    stats->in_bytes += add->in_bytes;
    stats->out_bytes += add->out_bytes;
    stats->call_ns += ox_clock_ns() - add->call_ns;
    pthread_mutex_unlock(&comm->lock);
    return OX_OK;
}

/* Counts a call that is put on a lane, which one thread does. Calls of several threads, which send and receive, leave
 * the count alone: even adding nothing to it would be a race. */
static void check_lane(struct ox_comm *comm, const struct ox_lane *lane, bool on_host) {
    OX_ASSERT(lane == NULL || (comm->queues && !on_host));
    if (lane != NULL) {
        comm->queued++;
    }
}

enum ox_status ox_comm_gather(struct ox_comm *comm, const struct ox_comm_gather *call) {
    check_cuts(comm, call->cuts);
    const uint64_t own = call->cuts[comm->rank + 1] - call->cuts[comm->rank];
    const struct ox_comm_stats add = {
        .call_ns = ox_clock_ns(),
        .in_bytes = call->cuts[comm->count] - call->cuts[0] - own,
        .out_bytes = own * (comm->count - 1),
    };
    check_lane(comm, call->lane, call->on_host);
    return end(comm, comm->ops->gather(comm, call), &add, OX_COMM_GATHER);
}

enum ox_status ox_comm_exchange(struct ox_comm *comm, const struct ox_comm_exchange *call) {
    check_cuts(comm, call->cuts);
    const uint64_t own = call->cuts[comm->rank + 1] - call->cuts[comm->rank];
    struct ox_comm_stats add = {.call_ns = ox_clock_ns()};
    for (uint32_t r = 0; r < comm->count; r++) {
        add.in_bytes += call->gives[r] && r != comm->rank ? own : 0;
    }
    add.out_bytes = call->gives[comm->rank] ? call->cuts[comm->count] - call->cuts[0] - own : 0;
    check_lane(comm, call->lane, call->on_host);
    return end(comm, comm->ops->exchange(comm, call), &add, OX_COMM_EXCHANGE);
}

enum ox_status ox_comm_reduce_scatter(struct ox_comm *comm, const struct ox_comm_reduce_scatter *call) {
    check_cuts(comm, call->cuts);
    const uint64_t own = call->cuts[comm->rank + 1] - call->cuts[comm->rank];
    for (uint32_t r = 0; r < comm->count; r++) {
        OX_ASSERT((call->cuts[r + 1] - call->cuts[r]) % sizeof(float) == 0);
    }
    const struct ox_comm_stats add = {
        .call_ns = ox_clock_ns(),
        .in_bytes = own * (comm->count - 1),
        .out_bytes = call->cuts[comm->count] - call->cuts[0] - own,
    };
    check_lane(comm, call->lane, call->on_host);
    return end(comm, comm->ops->reduce_scatter(comm, call), &add, OX_COMM_REDUCE_SCATTER);
}

enum ox_status ox_comm_send(struct ox_comm *comm, const struct ox_comm_send *call) {
    OX_ASSERT(call->peer < comm->count && call->peer != comm->rank);
    const struct ox_comm_stats add = {.call_ns = ox_clock_ns(), .out_bytes = call->bytes};
    check_lane(comm, call->lane, call->on_host);
    return end(comm, comm->ops->send(comm, call), &add, OX_COMM_SEND);
}

enum ox_status ox_comm_recv(struct ox_comm *comm, const struct ox_comm_recv *call) {
    OX_ASSERT(call->peer < comm->count && call->peer != comm->rank);
    const struct ox_comm_stats add = {.call_ns = ox_clock_ns(), .in_bytes = call->bytes};
    check_lane(comm, call->lane, call->on_host);
    return end(comm, comm->ops->recv(comm, call), &add, OX_COMM_RECV);
}

enum ox_status ox_comm_meet(struct ox_comm *comm, const struct ox_comm_meet *call) {
    OX_ASSERT(call->channel < OX_COMM_CHANNELS && call->mine_bytes <= call->slot_bytes);
    OX_ASSERT(call->slot_bytes <= OX_COMM_MEET_BYTES && (call->all != NULL || call->slot_bytes == 0));
    const struct ox_comm_stats add = {
        .call_ns = ox_clock_ns(),
        .in_bytes = (uint64_t)call->slot_bytes * (comm->count - 1),
        .out_bytes = (uint64_t)call->mine_bytes * (comm->count - 1),
    };
    return end(comm, comm->ops->meet(comm, call), &add, OX_COMM_MEET);
}

enum ox_status ox_comm_watch(struct ox_comm *comm, uint64_t calls, struct ox_mark done) {
    OX_ASSERT(comm->queues);
    const enum ox_status status = comm->ops->watch(comm, calls, done);
    return status == OX_OK ? OX_OK : fail_all(comm, status);
}

void ox_comm_stop(struct ox_comm *comm) {
    comm->ops->stop(comm);
}

void ox_comm_abort(struct ox_comm *comm, enum ox_status status, const char *text) {
    OX_ASSERT(status != OX_OK);
    comm->ops->abort(comm, status, text);
}

enum ox_status ox_comm_cause(struct ox_comm *comm) {
    return comm->ops->cause(comm);
}

enum ox_status ox_comm_revive(struct ox_comm *comm) {
    return comm->ops->revive(comm);
}

/* A decorator counts what is asked of it; only the backend inside knows how long it waited. */
void ox_comm_stats(struct ox_comm *comm, enum ox_comm_call call, struct ox_comm_stats *out) {
    pthread_mutex_lock(&comm->lock);
    *out = comm->stats[call];
    pthread_mutex_unlock(&comm->lock);
    if (comm->inner != NULL) {
        struct ox_comm_stats inner;
        ox_comm_stats(comm->inner, call, &inner);
        out->wait_ns = inner.wait_ns;
    }
}

const char *ox_comm_call_name(enum ox_comm_call call) {
    static const char *const names[] = {"gather", "exchange", "reduce-scatter", "send", "recv", "meet"};
    OX_ASSERT((uint32_t)call < OX_COMM_CALL_COUNT);
    return names[call];
}

void ox_comm_close(struct ox_comm **comm) {
    if (*comm != NULL) {
        pthread_mutex_destroy(&(*comm)->lock);
        (*comm)->ops->close(*comm);
        *comm = NULL;
    }
}
