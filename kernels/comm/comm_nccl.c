/* NCCL as a backend for memory of GPUs. Ranks agree about a call as other backends do, so that a difference is an error
 * instead of a hang; then the library moves the bytes, while this rank looks for its errors and for an abort. What lies
 * in host memory, and meetings, go the way of the endpoints below. */
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "kernels/comm/comm_group.h"
#include "kernels/comm/nccl/nccl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* For the identifier, while no call runs: the last channel, or the only one of a group. */
static uint32_t channel_of(const struct ox_comm *comm) {
    return comm->members == NULL ? OX_COMM_CHANNELS - 1 : 0;
}

struct endpoint {
    struct ox_comm base;
    struct ox_device *device;
    const struct ox_nccl_ops *library;
    struct ox_comm_limits limits;
    struct ox_nccl *rank; /* NULL: after a failure, until a revival */
};

static struct endpoint *endpoint_of(struct ox_comm *comm) {
    return (struct endpoint *)comm;
}

static void drop(const struct endpoint *self, struct ox_nccl **rank) {
    if (*rank != NULL) {
        self->library->close(*rank);
        *rank = NULL;
    }
}

/* Polls what has begun on a communicator, ever more rarely. A failure, of this rank or of another, ends the library's
 * work there. `others`: whom it works with. */
static enum ox_status finish(struct endpoint *self, struct ox_nccl **rank, const struct ox_comm_post *post,
                             uint64_t others) {
    struct ox_comm_patience patience;
    ox_comm_patience_begin(&patience, &self->limits);
    enum ox_status status = OX_OK;
    for (bool done = false; status == OX_OK;) {
        status = self->library->poll(*rank, &done);
        if (done) {
            break;
        }
        OX_THEN(status, ox_comm_cause(self->base.inner));
        OX_THEN(status, ox_comm_patience_check(&patience, &self->base, post, others));
        const uint64_t ns = ox_min_u64(ox_max_u64((ox_clock_ns() - patience.begin_ns) / 16, 2000), 200000);
        nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
    }
    if (status != OX_OK) {
        struct ox_first_failure first = {0};
        ox_first_failure_note(&first, status);
        drop(self, rank);
        status = ox_first_failure_result(&first);
    }
    return status;
}

static uint64_t others_of(const struct endpoint *self) {
    return ox_comm_ranks_of(&self->base) & ~(UINT64_C(1) << ox_comm_member(&self->base, self->base.rank));
}

static enum ox_status work(struct endpoint *self, const struct ox_comm_post *post, const struct ox_nccl_work *work) {
    if (work->equal_bytes == 0 && work->part_count == 0) {
        return OX_OK;
    }
    enum ox_status status = self->rank != NULL ? OX_OK : ox_fail(OX_E_COMM, "NCCL: not open after a failure");
    OX_THEN(status, self->library->begin(self->rank, work));
    OX_THEN(status, finish(self, &self->rank, post, others_of(self)));
    return status;
}

/* The size of all pieces; 0 where they differ. */
static uint64_t equal_bytes(const struct ox_comm *comm, const uint64_t *cuts) {
    for (uint32_t r = 1; r < comm->count; r++) {
        if (cuts[r + 1] - cuts[r] != cuts[1] - cuts[0]) {
            return 0;
        }
    }
    return cuts[1] - cuts[0];
}

static void add_part(struct ox_nccl_part *parts, struct ox_nccl_work *work, const struct ox_nccl_part *part) {
    if (part->bytes > 0) {
        parts[work->part_count++] = *part;
    }
}

static enum ox_status nccl_gather(struct ox_comm *comm, const struct ox_comm_gather *call) {
    struct endpoint *const self = endpoint_of(comm);
    if (call->on_host) {
        return ox_comm_gather(comm->inner, call);
    }
    struct ox_comm_post post;
    struct ox_nccl_part parts[2 * OX_COMM_RANKS_MAX];
    struct ox_nccl_work job = {.parts = parts, .equal_bytes = equal_bytes(comm, call->cuts), .source = call->source,
                               .target = call->target};
    const uint64_t own = call->cuts[comm->rank + 1] - call->cuts[comm->rank];
    for (uint32_t r = 0; r < comm->count && job.equal_bytes == 0; r++) {
        unsigned char *const at = (unsigned char *)call->target + (call->cuts[r] - call->cuts[0]);
        if (r != comm->rank || at != call->source) {
            add_part(parts, &job, &(struct ox_nccl_part){.kind = OX_NCCL_SENDS, .peer = r, .source = call->source,
                                                         .bytes = own});
            add_part(parts, &job, &(struct ox_nccl_part){.kind = OX_NCCL_RECEIVES, .peer = r, .target = at,
                                                         .bytes = call->cuts[r + 1] - call->cuts[r]});
        }
    }
    ox_comm_post_gather(comm, call, &post);
    enum ox_status status = ox_comm_endpoint_agree(comm->inner, &post);
    OX_THEN(status, work(self, &post, &job));
    return status;
}

static enum ox_status nccl_exchange(struct ox_comm *comm, const struct ox_comm_exchange *call) {
    struct endpoint *const self = endpoint_of(comm);
    if (call->on_host) {
        return ox_comm_exchange(comm->inner, call);
    }
    struct ox_comm_post post;
    struct ox_nccl_part parts[2 * OX_COMM_RANKS_MAX];
    struct ox_nccl_work job = {.parts = parts};
    const uint64_t own = call->cuts[comm->rank + 1] - call->cuts[comm->rank];
    unsigned char *target = call->target;
    for (uint32_t r = 0; r < comm->count; r++) {
        if (call->gives[comm->rank]) {
            add_part(parts, &job, &(struct ox_nccl_part){
                .kind = OX_NCCL_SENDS, .peer = r, .bytes = call->cuts[r + 1] - call->cuts[r],
                .source = (const unsigned char *)call->source + (call->cuts[r] - call->cuts[0])});
        }
        if (call->gives[r]) {
            add_part(parts, &job, &(struct ox_nccl_part){.kind = OX_NCCL_RECEIVES, .peer = r, .target = target,
                                                         .bytes = own});
            target += own;
        }
    }
    ox_comm_post_exchange(comm, call, &post);
    enum ox_status status = ox_comm_endpoint_agree(comm->inner, &post);
    OX_THEN(status, work(self, &post, &job));
    return status;
}

static enum ox_status nccl_reduce_scatter(struct ox_comm *comm, const struct ox_comm_reduce_scatter *call) {
    struct endpoint *const self = endpoint_of(comm);
    if (call->on_host) {
        return ox_comm_reduce_scatter(comm->inner, call);
    }
    struct ox_comm_post post;
    struct ox_nccl_part parts[OX_COMM_RANKS_MAX];
    struct ox_nccl_work job = {.parts = parts, .equal_bytes = equal_bytes(comm, call->cuts), .reduces = true,
                               .source = call->source, .target = call->target};
    for (uint32_t r = 0; r < comm->count && job.equal_bytes == 0; r++) {
        add_part(parts, &job, &(struct ox_nccl_part){
            .kind = OX_NCCL_REDUCES, .peer = r, .target = call->target, .bytes = call->cuts[r + 1] - call->cuts[r],
            .source = (const unsigned char *)call->source + (call->cuts[r] - call->cuts[0])});
    }
    ox_comm_post_reduce_scatter(comm, call, &post);
    enum ox_status status = ox_comm_endpoint_agree(comm->inner, &post);
    OX_THEN(status, work(self, &post, &job));
    return status;
}

static enum ox_status transfer(struct endpoint *self, const struct ox_comm_post *post,
                               const struct ox_nccl_part *part) {
    struct ox_nccl_part parts[1];
    struct ox_nccl_work job = {.parts = parts};
    add_part(parts, &job, part);
    enum ox_status status = ox_comm_endpoint_match(self->base.inner, post);
    OX_THEN(status, work(self, post, &job));
    return status;
}

static enum ox_status nccl_send(struct ox_comm *comm, const struct ox_comm_send *call) {
    if (call->on_host) {
        return ox_comm_send(comm->inner, call);
    }
    struct ox_comm_post post;
    ox_comm_post_send(comm, call, &post);
    return transfer(endpoint_of(comm), &post, &(struct ox_nccl_part){.kind = OX_NCCL_SENDS, .peer = call->peer,
                                                                     .source = call->source, .bytes = call->bytes});
}

static enum ox_status nccl_recv(struct ox_comm *comm, const struct ox_comm_recv *call) {
    if (call->on_host) {
        return ox_comm_recv(comm->inner, call);
    }
    struct ox_comm_post post;
    ox_comm_post_recv(comm, call, &post);
    return transfer(endpoint_of(comm), &post, &(struct ox_nccl_part){.kind = OX_NCCL_RECEIVES, .peer = call->peer,
                                                                     .target = call->target, .bytes = call->bytes});
}

static enum ox_status nccl_meet(struct ox_comm *comm, const struct ox_comm_meet *call) {
    return ox_comm_meet(comm->inner, call);
}

static void nccl_abort(struct ox_comm *comm, enum ox_status status, const char *text) {
    ox_comm_abort(comm->inner, status, text);
}

static enum ox_status nccl_cause(struct ox_comm *comm) {
    return ox_comm_cause(comm->inner);
}

/* Rank 0 makes the identifier; all open with it, and meet again, so that either all are open or none is. */
static enum ox_status open_rank(struct endpoint *self) {
    struct ox_comm *const inner = self->base.inner;
    unsigned char id[OX_NCCL_ID_BYTES], ids[OX_COMM_RANKS_MAX * OX_NCCL_ID_BYTES];
    memset(id, 0, sizeof id);
    const struct ox_comm_meet meet = {.channel = channel_of(inner), .mine = id, .mine_bytes = sizeof id,
                                      .slot_bytes = sizeof id, .all = ids, .what = "NCCL"};
    const struct ox_comm_meet open = {.channel = channel_of(inner), .what = "NCCL is open"};
    struct ox_comm_post post;
    ox_comm_post_meet(&meet, &post);
    enum ox_status status = inner->rank == 0 ? self->library->id(id) : OX_OK;
    OX_THEN(status, ox_comm_meet(inner, &meet));
    OX_THEN(status, self->library->open(self->device, ids, inner->rank, inner->count, &self->rank));
    OX_THEN(status, finish(self, &self->rank, &post, others_of(self)));
    OX_THEN(status, ox_comm_meet(inner, &open));
    if (status != OX_OK && ox_comm_cause(inner) == OX_OK) {
        ox_comm_abort(inner, status, ox_error_text());
        status = ox_comm_cause(inner);
    }
    return status;
}

/* What a failure has left of the library's state on any rank is not used again. */
static enum ox_status nccl_revive(struct ox_comm *comm) {
    struct endpoint *const self = endpoint_of(comm);
    drop(self, &self->rank);
    enum ox_status status = ox_comm_revive(comm->inner);
    OX_THEN(status, open_rank(self));
    return status;
}

static void nccl_close(struct ox_comm *comm) {
    drop(endpoint_of(comm), &endpoint_of(comm)->rank);
    ox_comm_close(&comm->inner);
    free(comm);
}

static const struct ox_comm_ops nccl_ops = {
    .name = "nccl",
    .gather = nccl_gather,
    .exchange = nccl_exchange,
    .reduce_scatter = nccl_reduce_scatter,
    .send = nccl_send,
    .recv = nccl_recv,
    .meet = nccl_meet,
    .abort = nccl_abort,
    .cause = nccl_cause,
    .revive = nccl_revive,
    .close = nccl_close,
};

enum ox_status ox_comm_nccl_open(struct ox_comm *control, const struct ox_comm_nccl_config *config,
                                 struct ox_comm **out) {
    struct endpoint *const self = calloc(1, sizeof *self);
    *out = NULL;
    if (self == NULL) {
        return ox_fail(OX_E_NOMEM, "NCCL: no memory for the state of a rank");
    }
    ox_comm_init_over(&self->base, &nccl_ops, control);
    self->device = config->device;
    self->library = config->library;
    self->limits = config->limits;
    const enum ox_status status = open_rank(self);
    if (status != OX_OK) {
        struct ox_first_failure first = {0};
        ox_first_failure_note(&first, status);
        drop(self, &self->rank);
        pthread_mutex_destroy(&self->base.lock);
        free(self);
        return ox_first_failure_result(&first);
    }
    *out = &self->base;
    return OX_OK;
}

/* ---- transfers --------------------------------------------------------------------------------------- */

/* Between two ranks a communicator for each direction, so that what one sends never waits for what it receives; it is
 * opened by the first transfer. The library takes memory of the device, and of the host where it is registered with
 * the device. */
struct pairs {
    struct endpoint endpoint;
    struct ox_nccl *ranks[2][OX_COMM_RANKS_MAX]; /* of sends, of receipts; by peer */
};

static struct pairs *pairs_of(struct ox_comm *comm) {
    return (struct pairs *)comm;
}

static enum ox_status open_pair(struct endpoint *self, struct ox_nccl **rank, const struct ox_comm_post *post,
                                uint32_t peer) {
    struct ox_comm *const inner = self->base.inner;
    const bool sends = post->call == OX_COMM_SEND;
    unsigned char id[OX_NCCL_ID_BYTES] = {0};
    enum ox_status status = sends ? self->library->id(id) : OX_OK;
    OX_THEN(status, sends ? ox_comm_send(inner, &(struct ox_comm_send){
                                .peer = peer, .source = id, .bytes = sizeof id, .on_host = true, .what = "NCCL"})
                          : ox_comm_recv(inner, &(struct ox_comm_recv){
                                .peer = peer, .target = id, .bytes = sizeof id, .on_host = true, .what = "NCCL"}));
    OX_THEN(status, self->library->open(self->device, id, sends ? 0 : 1, 2, rank));
    OX_THEN(status, finish(self, rank, post, UINT64_C(1) << post->peer));
    return status;
}

/* Where one side is does not matter to the other, so all transfers go this way. */
static enum ox_status pair_transfer(struct ox_comm *comm, const struct ox_comm_post *post, uint32_t peer,
                                    const struct ox_nccl_part *part) {
    struct endpoint *const self = endpoint_of(comm);
    struct ox_nccl **const rank = &pairs_of(comm)->ranks[ox_comm_side(post)][peer];
    const struct ox_nccl_work job = {.parts = part, .part_count = part->bytes > 0};
    enum ox_status status = *rank != NULL ? OX_OK : open_pair(self, rank, post, peer);
    OX_THEN(status, ox_comm_endpoint_match(comm->inner, post));
    if (status == OX_OK && job.part_count > 0) {
        status = self->library->begin(*rank, &job);
        OX_THEN(status, finish(self, rank, post, UINT64_C(1) << post->peer));
    }
    return status;
}

static enum ox_status pairs_send(struct ox_comm *comm, const struct ox_comm_send *call) {
    struct ox_comm_post post;
    ox_comm_post_send(comm, call, &post);
    return pair_transfer(comm, &post, call->peer, &(struct ox_nccl_part){
        .kind = OX_NCCL_SENDS, .peer = 1, .source = call->source, .bytes = call->bytes});
}

static enum ox_status pairs_recv(struct ox_comm *comm, const struct ox_comm_recv *call) {
    struct ox_comm_post post;
    ox_comm_post_recv(comm, call, &post);
    return pair_transfer(comm, &post, call->peer, &(struct ox_nccl_part){
        .kind = OX_NCCL_RECEIVES, .peer = 0, .target = call->target, .bytes = call->bytes});
}

static void drop_pairs(struct ox_comm *comm) {
    for (uint32_t i = 0; i < 2 * comm->count; i++) {
        drop(endpoint_of(comm), &pairs_of(comm)->ranks[i % 2][i / 2]);
    }
}

static enum ox_status pairs_revive(struct ox_comm *comm) {
    drop_pairs(comm);
    return ox_comm_revive(comm->inner);
}

static void pairs_close(struct ox_comm *comm) {
    drop_pairs(comm);
    ox_comm_close(&comm->inner);
    free(comm);
}

static enum ox_status no_gather(struct ox_comm *comm, const struct ox_comm_gather *call) {
    return ox_comm_gather(comm->inner, call);
}

static enum ox_status no_exchange(struct ox_comm *comm, const struct ox_comm_exchange *call) {
    return ox_comm_exchange(comm->inner, call);
}

static enum ox_status no_reduce_scatter(struct ox_comm *comm, const struct ox_comm_reduce_scatter *call) {
    return ox_comm_reduce_scatter(comm->inner, call);
}

static const struct ox_comm_ops pairs_ops = {
    .name = "nccl",
    .gather = no_gather, /* a group for transfers has none of these three */
    .exchange = no_exchange,
    .reduce_scatter = no_reduce_scatter,
    .send = pairs_send,
    .recv = pairs_recv,
    .meet = nccl_meet,
    .abort = nccl_abort,
    .cause = nccl_cause,
    .revive = pairs_revive,
    .close = pairs_close,
};

enum ox_status ox_comm_nccl_pairs_open(struct ox_comm *control, const struct ox_comm_nccl_config *config,
                                       struct ox_comm **out) {
    struct pairs *const self = calloc(1, sizeof *self);
    *out = NULL;
    if (self == NULL) {
        return ox_fail(OX_E_NOMEM, "NCCL: no memory for the state of a rank");
    }
    ox_comm_init_over(&self->endpoint.base, &pairs_ops, control);
    self->endpoint.device = config->device;
    self->endpoint.library = config->library;
    self->endpoint.limits = config->limits;
    *out = &self->endpoint.base;
    return OX_OK;
}
