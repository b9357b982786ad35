/* NCCL as a backend for memory of GPUs. Ranks agree about a call as other backends do, so that a difference is an error
 * instead of a hang; then the library moves the bytes, while this rank looks for its errors and for an abort. Calls
 * that are put on a lane move their bytes first, and whoever watches them agrees about them meanwhile. What lies in
 * host memory, and meetings, go the way of the endpoints below. */
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "kernels/comm/comm_group.h"
#include "kernels/comm/nccl/nccl.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* For the identifier, while no call runs: the last channel, or the only one of a group. */
static uint32_t channel_of(const struct ox_comm *comm) {
    return comm->members == NULL ? OX_COMM_CHANNELS - 1 : 0;
}

/* A call on a lane: as the others have to make it, and the library's work, which the lane's feeder reads. */
struct queued {
    struct ox_comm_post post;
    struct ox_nccl_work work;
    struct ox_nccl_part parts[];
};

/* The room of an endpoint for calls that are on lanes and not yet watched. A call beyond these waits for the second
 * thread, which at that point follows what the device has long done. */
enum { QUEUED_MAX = 4 * 64 };

struct endpoint {
    struct ox_comm base;
    struct ox_device *device;
    const struct ox_nccl_ops *library;
    struct ox_comm_limits limits;
    struct ox_nccl *rank; /* NULL: not open; stopped after a failure, until a revival */
    unsigned char *queued; /* QUEUED_MAX calls, `queued_bytes` apart; NULL: none is put on a lane */
    size_t queued_bytes;
    uint64_t put, watched; /* calls ever put on lanes; under base.lock */
    pthread_cond_t moved;  /* `watched` has changed, or `is_stopped` */
    bool is_stopped;       /* under base.lock */
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
    if (status != OX_OK) { /* what it has on lanes still refers to it */
        struct ox_first_failure first = {0};
        ox_first_failure_note(&first, status);
        self->library->stop(*rank);
        status = ox_first_failure_result(&first);
    }
    return status;
}

static uint64_t others_of(const struct endpoint *self) {
    return ox_comm_ranks_of(&self->base) & ~(UINT64_C(1) << ox_comm_member(&self->base, self->base.rank));
}

static bool moves(const struct ox_nccl_work *work) {
    return work->equal_bytes > 0 || work->part_count > 0;
}

static enum ox_status work(struct endpoint *self, const struct ox_comm_post *post, const struct ox_nccl_work *work) {
    if (!moves(work)) {
        return OX_OK;
    }
    enum ox_status status = self->rank != NULL ? OX_OK : ox_fail(OX_E_COMM, "NCCL: not open after a failure");
    OX_THEN(status, self->library->begin(self->rank, work));
    OX_THEN(status, finish(self, &self->rank, post, others_of(self)));
    return status;
}

/* ---- on lanes ------------------------------------------------------------------------------------------ */

static struct queued *queued_at(const struct endpoint *self, uint64_t turn) {
    return (struct queued *)(void *)(self->queued + turn % QUEUED_MAX * self->queued_bytes);
}

/* Puts a call on the lane, with all that the feeder and the watching thread need of it. */
static enum ox_status put(struct endpoint *self, struct ox_lane *lane, const struct ox_comm_post *post,
                          const struct ox_nccl_work *work) {
    pthread_mutex_lock(&self->base.lock);
    while (self->put - self->watched == QUEUED_MAX && !self->is_stopped) {
        pthread_cond_wait(&self->moved, &self->base.lock);
    }
    const bool is_stopped = self->is_stopped;
    pthread_mutex_unlock(&self->base.lock);
    if (is_stopped) {
        return ox_fail(OX_E_ABORTED, "NCCL: stopped after a failure");
    }
    struct queued *const slot = queued_at(self, self->put);
    slot->post = *post;
    slot->work = *work;
    if (work->part_count > 0) {
        memcpy(slot->parts, work->parts, work->part_count * sizeof *work->parts);
    }
    slot->work.parts = slot->parts;
    pthread_mutex_lock(&self->base.lock);
    self->put++;
    pthread_mutex_unlock(&self->base.lock);
    return moves(work) ? self->library->queue(self->rank, lane, &slot->work) : OX_OK;
}

/* Waits for the device, while it looks for errors of the library and for an abort. */
static enum ox_status await(struct endpoint *self, const struct ox_comm_post *post, struct ox_mark done) {
    struct ox_comm_patience patience;
    ox_comm_patience_begin(&patience, &self->limits);
    bool ended = false;
    enum ox_status status = ox_mark_poll(done, &ended);
    while (status == OX_OK && !ended) {
        status = self->library->check(self->rank);
        OX_THEN(status, ox_comm_cause(self->base.inner));
        OX_THEN(status, ox_comm_patience_check(&patience, &self->base, post, others_of(self)));
        const uint64_t ns = ox_min_u64(ox_max_u64((ox_clock_ns() - patience.begin_ns) / 16, 2000), 200000);
        nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
        OX_THEN(status, ox_mark_poll(done, &ended));
    }
    return status;
}

static enum ox_status nccl_watch(struct ox_comm *comm, uint64_t calls, struct ox_mark done) {
    struct endpoint *const self = endpoint_of(comm);
    enum ox_status status = OX_OK;
    pthread_mutex_lock(&self->base.lock);
    const uint64_t first = self->watched;
    OX_ASSERT(calls > 0 && calls <= self->put - first);
    pthread_mutex_unlock(&self->base.lock);
    for (uint64_t i = 0; i < calls && status == OX_OK; i++) {
        const struct ox_comm_post *const post = &queued_at(self, first + i)->post;
        const bool passes = post->call == OX_COMM_SEND || post->call == OX_COMM_RECV;
        status = passes ? ox_comm_endpoint_match(comm->inner, post) : ox_comm_endpoint_agree(comm->inner, post);
    }
    OX_THEN(status, await(self, &queued_at(self, first + calls - 1)->post, done));
    if (status == OX_OK) {
        pthread_mutex_lock(&self->base.lock);
        self->watched += calls;
        pthread_cond_signal(&self->moved);
        pthread_mutex_unlock(&self->base.lock);
    }
    return status;
}

static void nccl_stop(struct ox_comm *comm) {
    struct endpoint *const self = endpoint_of(comm);
    pthread_mutex_lock(&self->base.lock);
    self->is_stopped = true;
    pthread_cond_signal(&self->moved);
    pthread_mutex_unlock(&self->base.lock);
    if (self->rank != NULL) {
        self->library->stop(self->rank);
    }
}

/* Makes the call after all ranks agree on it, or puts it on its lane. */
static enum ox_status make(struct endpoint *self, struct ox_lane *lane, const struct ox_comm_post *post,
                           const struct ox_nccl_work *job) {
    if (lane != NULL) {
        return put(self, lane, post, job);
    }
    const bool passes = post->call == OX_COMM_SEND || post->call == OX_COMM_RECV;
    enum ox_status status = passes ? ox_comm_endpoint_match(self->base.inner, post)
                                   : ox_comm_endpoint_agree(self->base.inner, post);
    OX_THEN(status, work(self, post, job));
    return status;
}

/* ---- calls --------------------------------------------------------------------------------------------- */

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
    return make(self, call->lane, &post, &job);
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
    return make(self, call->lane, &post, &job);
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
    return make(self, call->lane, &post, &job);
}

static enum ox_status transfer(struct endpoint *self, struct ox_lane *lane, const struct ox_comm_post *post,
                               const struct ox_nccl_part *part) {
    struct ox_nccl_part parts[1];
    struct ox_nccl_work job = {.parts = parts};
    add_part(parts, &job, part);
    return make(self, lane, post, &job);
}

static enum ox_status nccl_send(struct ox_comm *comm, const struct ox_comm_send *call) {
    if (call->on_host) {
        return ox_comm_send(comm->inner, call);
    }
    struct ox_comm_post post;
    ox_comm_post_send(comm, call, &post);
    return transfer(endpoint_of(comm), call->lane, &post, &(struct ox_nccl_part){
        .kind = OX_NCCL_SENDS, .peer = call->peer, .source = call->source, .bytes = call->bytes});
}

static enum ox_status nccl_recv(struct ox_comm *comm, const struct ox_comm_recv *call) {
    if (call->on_host) {
        return ox_comm_recv(comm->inner, call);
    }
    struct ox_comm_post post;
    ox_comm_post_recv(comm, call, &post);
    return transfer(endpoint_of(comm), call->lane, &post, &(struct ox_nccl_part){
        .kind = OX_NCCL_RECEIVES, .peer = call->peer, .target = call->target, .bytes = call->bytes});
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
    self->put = self->watched = 0;
    self->is_stopped = false;
    enum ox_status status = ox_comm_revive(comm->inner);
    OX_THEN(status, open_rank(self));
    return status;
}

static void free_endpoint(struct endpoint *self) {
    pthread_cond_destroy(&self->moved);
    free(self->queued);
    free(self);
}

static void nccl_close(struct ox_comm *comm) {
    drop(endpoint_of(comm), &endpoint_of(comm)->rank);
    ox_comm_close(&comm->inner);
    free_endpoint(endpoint_of(comm));
}

static const struct ox_comm_ops nccl_ops = {
    .name = "nccl",
    .gather = nccl_gather,
    .exchange = nccl_exchange,
    .reduce_scatter = nccl_reduce_scatter,
    .send = nccl_send,
    .recv = nccl_recv,
    .meet = nccl_meet,
    .watch = nccl_watch,
    .stop = nccl_stop,
    .abort = nccl_abort,
    .cause = nccl_cause,
    .revive = nccl_revive,
    .close = nccl_close,
};

/* Begins an endpoint of `bytes` bytes, of which a struct endpoint is the first part; NULL without memory. */
static struct endpoint *begin_over(struct ox_comm *control, const struct ox_comm_ops *ops, size_t bytes,
                                   const struct ox_comm_nccl_config *config) {
    struct endpoint *const self = calloc(1, bytes);
    if (self == NULL) {
        ox_fail(OX_E_NOMEM, "NCCL: no memory for the state of a rank");
        return NULL;
    }
    ox_comm_init_over(&self->base, ops, control);
    pthread_cond_init(&self->moved, NULL);
    self->device = config->device;
    self->library = config->library;
    self->limits = config->limits;
    return self;
}

enum ox_status ox_comm_nccl_open(struct ox_comm *control, const struct ox_comm_nccl_config *config,
                                 struct ox_comm **out) {
    struct endpoint *const self = begin_over(control, &nccl_ops, sizeof *self, config);
    *out = NULL;
    if (self == NULL) {
        return OX_E_NOMEM;
    }
    self->queued_bytes = ox_align_up(sizeof(struct queued) + 2 * control->count * sizeof(struct ox_nccl_part),
                                     _Alignof(max_align_t));
    self->queued = config->agrees ? NULL : calloc(QUEUED_MAX, self->queued_bytes);
    self->base.queues = self->queued != NULL;
    const enum ox_status status = open_rank(self);
    if (status != OX_OK) {
        struct ox_first_failure first = {0};
        ox_first_failure_note(&first, status);
        drop(self, &self->rank);
        pthread_mutex_destroy(&self->base.lock);
        free_endpoint(self);
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
    free_endpoint(endpoint_of(comm));
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
    .watch = nccl_watch,
    .stop = nccl_stop,
    .abort = nccl_abort,
    .cause = nccl_cause,
    .revive = pairs_revive,
    .close = pairs_close,
};

enum ox_status ox_comm_nccl_pairs_open(struct ox_comm *control, const struct ox_comm_nccl_config *config,
                                       struct ox_comm **out) {
    struct endpoint *const self = begin_over(control, &pairs_ops, sizeof(struct pairs), config);
    *out = self == NULL ? NULL : &self->base;
    return self == NULL ? OX_E_NOMEM : OX_OK;
}
