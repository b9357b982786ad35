/* The calls of a rank. Ranks meet and state their calls, and then each pulls what it needs from its peers in this
 * process: by its own thread, or by a lane of its device; what lies in other processes comes over the wire. */
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/lane.h"
#include "kernels/comm/comm_group.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How long an own failure may be on its way to the process that orders events, before this process ends by itself. */
enum { RAISE_MS = 5000 };

static const struct ox_comm_ops group_ops;

static struct ox_comm_endpoint *endpoint_of(struct ox_comm *comm) {
    return (struct ox_comm_endpoint *)comm;
}

struct ox_comm_endpoint *ox_comm_endpoint_peer(const struct ox_comm_endpoint *self, uint32_t rank) {
    struct ox_comm_endpoint *const whole = self->group->endpoints[ox_comm_member(&self->base, rank)];
    return whole == NULL || self->number == 0 ? whole : whole->splits[self->number - 1];
}

/* Where the rank makes its link calls, and the ranks that it makes them with. */
static struct ox_comm_channel *link_of(const struct ox_comm_endpoint *self) {
    return &self->group->channels[OX_COMM_CHANNEL_LINK + self->number];
}

static uint64_t ranks_of(const struct ox_comm_endpoint *self) {
    return self->group->members[self->rank].groups[self->number];
}

/* ---- waiting and failing: the caller holds the lock ------------------------------------------------- */

static enum ox_status cause_of(const struct ox_comm_group *group) {
    return group->cause == OX_OK ? OX_OK : ox_fail(group->cause, "%s", group->cause_text);
}

static uint64_t raise_limit_ns(const struct ox_comm_group *group) {
    const uint32_t fail_ms = group->limits.fail_ms;
    return ox_clock_ns() + (fail_ms > 0 && fail_ms < RAISE_MS ? fail_ms : RAISE_MS) * UINT64_C(1000000);
}

static void wait_until(struct ox_comm_group *group, struct ox_comm_channel *channel, uint64_t until_ns) {
    const struct timespec at = {.tv_sec = (time_t)(until_ns / 1000000000), .tv_nsec = (long)(until_ns % 1000000000)};
    group->waiting++;
    pthread_cond_timedwait(&channel->moved, &group->lock, &at);
    group->waiting--;
}

/* Waits for a signal of the channel, at most until the call has to warn or fail. `missing`: ranks it waits for now;
 * none: all have come, and the process of rank 0 has not said so yet, which it does also when rank 0 has ended. */
static enum ox_status wait_for(struct ox_comm_endpoint *self, struct ox_comm_channel *channel,
                               struct ox_comm_patience *patience, const struct ox_comm_post *post, uint64_t missing) {
    struct ox_comm_group *const group = self->group;
    if ((missing & group->gone) != 0) {
        char names[OX_COMM_RANKS_TEXT_BYTES];
        return ox_fail(OX_E_COMM, "%s \"%s\": %s ended before it", ox_comm_call_name((enum ox_comm_call)post->call),
                       post->what, ox_comm_ranks_text(missing & group->gone, names));
    }
    const enum ox_status status = ox_comm_patience_check(patience, &self->base, post, missing != 0 ? missing : 1);
    if (status == OX_OK) {
        const uint64_t until_ns = ox_min_u64(patience->warn_ns, patience->fail_ns);
        wait_until(group, channel, ox_min_u64(until_ns, patience->seen_ns + OX_COMM_LOOK_NS));
    }
    return status;
}

/* Aborts all ranks, and waits until this is decided: another failure may come first. */
static void raise_failure(struct ox_comm_endpoint *self, enum ox_status status, const char *text) {
    struct ox_comm_group *const group = self->group;
    const uint64_t limit_ns = raise_limit_ns(group);
    const uint32_t aborts = group->abort_count;
    char kept[OX_ERROR_TEXT_BYTES];
    memcpy(kept, text, strnlen(text, sizeof kept - 1) + 1);
    kept[sizeof kept - 1] = '\0';
    const bool revival = group->channels[OX_COMM_CHANNEL_REVIVE].arrived != 0;
    ox_comm_group_abort(group, self->rank, status, kept);
    bool decided = false;
    while (!decided && ox_clock_ns() < limit_ns) {
        decided = revival ? group->abort_count != aborts : group->cause != OX_OK;
        if (!decided) {
            wait_until(group, &group->channels[OX_COMM_CHANNEL_LINK], limit_ns);
        }
    }
    if (!decided) {
        struct ox_comm_event event = {.kind = OX_COMM_ABORTS, .rank = self->rank, .status = status,
                                      .aborts = aborts};
        event.payload_bytes = (uint32_t)strlen(kept);
        ox_comm_group_apply(group, &event, kept);
    }
}

static void begin_call(struct ox_comm_endpoint *self) {
    pthread_mutex_lock(&self->group->lock);
    self->inside++;
}

/* A failure of this rank reaches all before the call returns, and the call returns the first failure of all. */
static enum ox_status end_call(struct ox_comm_endpoint *self, enum ox_status status) {
    if (status != OX_OK && self->group->cause == OX_OK) {
        raise_failure(self, status, ox_error_text());
    }
    if (status != OX_OK) {
        status = cause_of(self->group);
    }
    self->inside--;
    pthread_mutex_unlock(&self->group->lock);
    return status;
}

/* Comes to the present round and waits until all have, within `limits`. On failure all ranks are aborted already. */
static enum ox_status arrive(struct ox_comm_endpoint *self, uint32_t channel_idx, const struct ox_comm_post *post,
                             const void *payload, const struct ox_comm_limits *limits) {
    struct ox_comm_group *const group = self->group;
    struct ox_comm_channel *const channel = &group->channels[channel_idx];
    const uint64_t all = ranks_of(self), *const ended = &channel->rounds[__builtin_ctzll(all)], round = *ended;
    const uint32_t aborts = group->abort_count;
    const bool revival = channel_idx == OX_COMM_CHANNEL_REVIVE;
    if (!revival && group->cause != OX_OK) {
        return cause_of(group);
    }
    const struct ox_comm_event event = {.kind = OX_COMM_ARRIVES, .rank = self->rank, .channel = channel_idx,
                                        .payload_bytes = post->payload_bytes, .post = *post};
    struct ox_comm_patience patience;
    ox_comm_patience_begin(&patience, limits);
    ox_comm_group_submit(group, &event, payload);
    while (*ended == round) {
        if (revival ? group->abort_count != aborts : group->cause != OX_OK) {
            return cause_of(group);
        }
        const uint64_t others = all & ~channel->arrived & ~(UINT64_C(1) << self->rank);
        const enum ox_status status = wait_for(self, channel, &patience, post, others);
        if (status != OX_OK) {
            raise_failure(self, status, ox_error_text());
        }
    }
    if (!revival) {
        ox_comm_waited(&self->base, post->call, patience.begin_ns);
    }
    return OX_OK;
}

/* ---- copies: without the lock ----------------------------------------------------------------------- */

static enum ox_status copy(struct ox_comm_endpoint *self, bool on_host, const struct ox_copy *one,
                           struct ox_mark *done) {
    if (one->bytes == 0 || one->target == one->source) {
        return OX_OK;
    }
    if (on_host || self->lane == NULL) {
        memcpy(one->target, one->source, one->bytes);
        return OX_OK;
    }
    return ox_device_lane_copy(self->device, self->lane, one, done);
}

/* After a failure nothing may be left on the lane either: peers reuse their memory when this rank is done. */
static enum ox_status copies_end(struct ox_comm_endpoint *self, enum ox_status status, struct ox_mark done) {
    if (done.lane == NULL) {
        return status;
    }
    OX_THEN(status, ox_mark_join(done));
    if (status != OX_OK) {
        struct ox_first_failure first = {0};
        ox_first_failure_note(&first, status);
        ox_first_failure_note(&first, ox_lane_drain(self->lane));
        ox_lane_reset(self->lane);
        status = ox_first_failure_result(&first);
    }
    return status;
}

static enum ox_status pull_gather(struct ox_comm_endpoint *self, const struct ox_comm_gather *call,
                                  struct ox_comm_remote_job *job) {
    const uint32_t rank = self->base.rank, count = self->base.count;
    unsigned char *const target = call->target;
    for (uint32_t r = 0; r < count && job != NULL; r++) {
        ox_comm_remote_add(self, job, r, rank, target + (call->cuts[r] - call->cuts[0]),
                           call->cuts[r + 1] - call->cuts[r]);
        ox_comm_remote_add(self, job, rank, r, (void *)(uintptr_t)call->source,
                           call->cuts[rank + 1] - call->cuts[rank]);
    }
    ox_comm_remote_begin(self->group, job);
    struct ox_mark done = {0};
    enum ox_status status = OX_OK;
    /* Each rank begins behind itself, so that not all read the same peer at once. */
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        const uint32_t from = (rank + 1 + i) % count;
        const struct ox_comm_endpoint *const peer = ox_comm_endpoint_peer(self, from);
        if (peer != NULL) {
            const struct ox_copy one = {.target = target + (call->cuts[from] - call->cuts[0]),
                                        .source = peer->source,
                                        .bytes = call->cuts[from + 1] - call->cuts[from]};
            status = copy(self, call->on_host, &one, &done);
        }
    }
    return copies_end(self, status, done);
}

static enum ox_status pull_exchange(struct ox_comm_endpoint *self, const struct ox_comm_exchange *call,
                                    struct ox_comm_remote_job *job) {
    const uint32_t rank = self->base.rank, count = self->base.count;
    const uint64_t first = call->cuts[rank] - call->cuts[0], bytes = call->cuts[rank + 1] - call->cuts[rank];
    unsigned char *target = call->target;
    for (uint32_t r = 0; r < count && job != NULL; r++) {
        if (call->gives[rank]) {
            ox_comm_remote_add(self, job, rank, r,
                               (unsigned char *)(uintptr_t)call->source + (call->cuts[r] - call->cuts[0]),
                               call->cuts[r + 1] - call->cuts[r]);
        }
        if (call->gives[r]) {
            ox_comm_remote_add(self, job, r, rank, target, bytes);
            target += bytes;
        }
    }
    ox_comm_remote_begin(self->group, job);
    struct ox_mark done = {0};
    enum ox_status status = OX_OK;
    target = call->target;
    for (uint32_t from = 0; from < count && status == OX_OK; from++) {
        if (call->gives[from]) {
            const struct ox_comm_endpoint *const peer = ox_comm_endpoint_peer(self, from);
            if (peer != NULL) {
                const unsigned char *const source = peer->source;
                const struct ox_copy one = {.target = target, .source = source + first, .bytes = bytes};
                status = copy(self, call->on_host, &one, &done);
            }
            target += bytes;
        }
    }
    return copies_end(self, status, done);
}

/* ---- the calls -------------------------------------------------------------------------------------- */

/* The call itself is one of the three. */
struct link_call {
    const struct ox_comm_gather *gather;
    const struct ox_comm_exchange *exchange;
    const struct ox_comm_reduce_scatter *reduce_scatter;
    bool on_host;
};

/* A wire reads and writes memory of the host; that of the CPU device is. */
static enum ox_status check_memory(const struct ox_comm_endpoint *self, bool on_host, const char *what) {
    if (self->group->remote == NULL || on_host || self->device == NULL || strcmp(self->device->ops->name, "cpu") == 0) {
        return OX_OK;
    }
    return ox_fail(OX_E_CONFIG, "\"%s\": memory of a GPU does not go between processes over MPI; start one process "
                   "with all ranks", what);
}

/* Moves the bytes of a gather or exchange that all ranks have come to. */
static enum ox_status pull(struct ox_comm_endpoint *self, const struct link_call *call) {
    struct ox_comm_group *const group = self->group;
    struct ox_comm_remote_job job, *const wired = group->remote != NULL ? &job : NULL;
    job.sum = NULL;
    job.count = 0;
    enum ox_status status =
        call->gather != NULL ? pull_gather(self, call->gather, wired) : pull_exchange(self, call->exchange, wired);
    struct ox_first_failure first = {0};
    ox_first_failure_note(&first, status);
    if (wired != NULL) {
        ox_first_failure_note(&first, ox_comm_remote_join(group, &job));
    }
    return ox_first_failure_result(&first);
}

static enum ox_status link_run(struct ox_comm_endpoint *self, const struct ox_comm_post *post, const void *source,
                               const struct link_call *call) {
    struct ox_comm_group *const group = self->group;
    struct ox_comm_channel *const link = link_of(self);
    const uint64_t ranks = ranks_of(self);
    begin_call(self);
    self->source = source;
    self->target = call->reduce_scatter != NULL ? call->reduce_scatter->target : NULL;
    enum ox_status status = check_memory(self, call->on_host, post->what);
    OX_THEN(status, arrive(self, OX_COMM_CHANNEL_LINK + self->number, post, "", &group->limits));
    if (status != OX_OK) {
        return end_call(self, status);
    }
    pthread_mutex_unlock(&group->lock);
    /* The first rank of a process adds for all of them; the others have to learn whether it could. */
    const bool adds = call->reduce_scatter != NULL;
    status = !adds                             ? pull(self, call)
             : self->rank == group->first ? ox_comm_remote_sum(group, call->reduce_scatter->cuts)
                                               : OX_OK;
    struct ox_first_failure first = {0};
    ox_first_failure_note(&first, status);
    pthread_mutex_lock(&group->lock);
    if (adds && status != OX_OK && group->cause == OX_OK) {
        raise_failure(self, status, first.text);
    }
    link->copying &= ~(UINT64_C(1) << self->rank);
    if ((link->copying & ranks) == 0) {
        pthread_cond_broadcast(&link->moved);
    }
    /* Peers read the source until they are done, whatever has failed; copies end by themselves. */
    struct ox_comm_patience patience;
    ox_comm_patience_begin(&patience, &group->limits);
    enum ox_status waited = OX_OK;
    while ((link->copying & ranks) != 0 && waited == OX_OK) {
        waited = wait_for(self, link, &patience, post, link->copying & ranks);
    }
    ox_first_failure_note(&first, waited);
    if (adds) {
        ox_first_failure_note(&first, cause_of(group));
    }
    return end_call(self, ox_first_failure_result(&first));
}

static enum ox_status group_gather(struct ox_comm *comm, const struct ox_comm_gather *call) {
    struct ox_comm_post post;
    ox_comm_post_gather(comm, call, &post);
    return link_run(endpoint_of(comm), &post, call->source,
                    &(struct link_call){.gather = call, .on_host = call->on_host});
}

static enum ox_status group_exchange(struct ox_comm *comm, const struct ox_comm_exchange *call) {
    struct ox_comm_post post;
    ox_comm_post_exchange(comm, call, &post);
    return link_run(endpoint_of(comm), &post, call->source,
                    &(struct link_call){.exchange = call, .on_host = call->on_host});
}

static enum ox_status group_reduce_scatter(struct ox_comm *comm, const struct ox_comm_reduce_scatter *call) {
    struct ox_comm_endpoint *const self = endpoint_of(comm);
    struct ox_comm_post post;
    if (self->group->remote == NULL || self->number > 0) {
        return ox_fail(OX_E_CONFIG, "reduce-scatter \"%s\": there is no library here whose sums could be used; use the "
                       "fixed sums", call->what);
    }
    ox_comm_post_reduce_scatter(comm, call, &post);
    return link_run(self, &post, call->source,
                    &(struct link_call){.reduce_scatter = call, .on_host = call->on_host});
}

/* States the transfer and waits until its other side has, and both agree. On failure all ranks are aborted already. */
static enum ox_status match(struct ox_comm_endpoint *self, const struct ox_comm_post *post, const void *source) {
    struct ox_comm_group *const group = self->group;
    struct ox_comm_transfer *const transfer = &group->members[self->rank].transfers[self->number][ox_comm_side(post)];
    if (group->cause != OX_OK) {
        return cause_of(group);
    }
    if (post->call == OX_COMM_SEND) { /* a receipt may run beside it */
        self->source = source;
        self->source_on_host = post->on_host;
        self->released = false;
    }
    const struct ox_comm_event event = {.kind = OX_COMM_TRANSFERS, .rank = self->rank, .post = *post,
                                        .channel = OX_COMM_CHANNEL_LINK + self->number};
    struct ox_comm_patience patience;
    ox_comm_patience_begin(&patience, &group->limits);
    transfer->state = OX_COMM_IDLE;
    ox_comm_group_submit(group, &event, "");
    while (transfer->state != OX_COMM_MATCHED) {
        if (group->cause != OX_OK) {
            return cause_of(group);
        }
        const enum ox_status status = wait_for(self, link_of(self), &patience, post, UINT64_C(1) << post->peer);
        if (status != OX_OK) {
            raise_failure(self, status, ox_error_text());
        }
    }
    ox_comm_waited(&self->base, post->call, patience.begin_ns);
    return OX_OK;
}

/* The other side is in another process. */
static enum ox_status transfer_over_wire(struct ox_comm_endpoint *self, const struct ox_comm_post *post, uint32_t peer,
                                         void *at) {
    const bool sends = post->call == OX_COMM_SEND;
    struct ox_comm_remote_job job;
    job.sum = NULL;
    job.count = 0;
    pthread_mutex_unlock(&self->group->lock);
    ox_comm_remote_add(self, &job, sends ? self->base.rank : peer, sends ? peer : self->base.rank, at, post->bytes);
    ox_comm_remote_begin(self->group, &job);
    const enum ox_status status = ox_comm_remote_join(self->group, &job);
    pthread_mutex_lock(&self->group->lock);
    return status;
}

static enum ox_status group_send(struct ox_comm *comm, const struct ox_comm_send *call) {
    struct ox_comm_endpoint *const self = endpoint_of(comm);
    struct ox_comm_group *const group = self->group;
    struct ox_comm_post post;
    ox_comm_post_send(comm, call, &post);
    begin_call(self);
    const bool wired = ox_comm_endpoint_peer(self, call->peer) == NULL;
    enum ox_status status = wired ? check_memory(self, call->on_host, call->what) : OX_OK;
    OX_THEN(status, match(self, &post, call->source));
    if (wired) {
        OX_THEN(status, transfer_over_wire(self, &post, call->peer, (void *)(uintptr_t)call->source));
        return end_call(self, status);
    }
    struct ox_comm_patience patience;
    ox_comm_patience_begin(&patience, &group->limits);
    while (status == OX_OK && !self->released) {
        status = wait_for(self, link_of(self), &patience, &post, UINT64_C(1) << post.peer);
    }
    return end_call(self, status);
}

/* The receiver copies, and releases the sender. */
static enum ox_status group_recv(struct ox_comm *comm, const struct ox_comm_recv *call) {
    struct ox_comm_endpoint *const self = endpoint_of(comm);
    struct ox_comm_group *const group = self->group;
    struct ox_comm_endpoint *const peer = ox_comm_endpoint_peer(self, call->peer);
    struct ox_comm_post post;
    ox_comm_post_recv(comm, call, &post);
    begin_call(self);
    enum ox_status status = peer == NULL ? check_memory(self, call->on_host, call->what) : OX_OK;
    OX_THEN(status, match(self, &post, NULL));
    if (status == OX_OK && peer == NULL) {
        status = transfer_over_wire(self, &post, call->peer, call->target);
    } else if (status == OX_OK) {
        const struct ox_copy one = {.target = call->target, .source = peer->source, .bytes = call->bytes};
        pthread_mutex_unlock(&group->lock);
        struct ox_mark done = {0};
        status = copies_end(self, copy(self, call->on_host && peer->source_on_host, &one, &done), done);
        pthread_mutex_lock(&group->lock);
        peer->released = true;
        pthread_cond_broadcast(&link_of(self)->moved);
    }
    return end_call(self, status);
}

enum ox_status ox_comm_endpoint_agree(struct ox_comm *comm, const struct ox_comm_post *post) {
    struct ox_comm_endpoint *const self = endpoint_of(comm);
    OX_ASSERT(comm->ops == &group_ops);
    begin_call(self);
    const enum ox_status status =
        arrive(self, OX_COMM_CHANNEL_LINK + self->number, post, "", &self->group->limits);
    if (status == OX_OK) {
        link_of(self)->copying &= ~(UINT64_C(1) << self->rank);
    }
    return end_call(self, status);
}

enum ox_status ox_comm_endpoint_match(struct ox_comm *comm, const struct ox_comm_post *post) {
    struct ox_comm_endpoint *const self = endpoint_of(comm);
    OX_ASSERT(comm->ops == &group_ops);
    begin_call(self);
    return end_call(self, match(self, post, NULL));
}

static enum ox_status group_meet(struct ox_comm *comm, const struct ox_comm_meet *call) {
    struct ox_comm_endpoint *const self = endpoint_of(comm);
    OX_ASSERT(self->number == 0 || (call->channel == 0 && call->slot_bytes <= OX_COMM_GROUP_MEET_BYTES));
    const uint32_t channel_idx = self->number == 0 ? call->channel : OX_COMM_CHANNEL_MEET + self->number;
    struct ox_comm_channel *const channel = &self->group->channels[channel_idx];
    struct ox_comm_post post;
    ox_comm_post_meet(call, &post);
    begin_call(self);
    const uint32_t parity = (uint32_t)(channel->rounds[__builtin_ctzll(ranks_of(self))] % 2);
    const struct ox_comm_limits *const limits = call->limits != NULL ? call->limits : &self->group->limits;
    const enum ox_status status = arrive(self, channel_idx, &post, call->mine, limits);
    for (uint32_t r = 0; r < comm->count && status == OX_OK; r++) {
        const uint32_t member = ox_comm_member(comm, r), bytes = channel->posts[parity][member].payload_bytes;
        if (bytes > 0) {
            memcpy((unsigned char *)call->all + (size_t)r * call->slot_bytes,
                   channel->payloads[parity] + (size_t)member * channel->payload_bytes, bytes);
        }
        if (call->all_bytes != NULL) {
            call->all_bytes[r] = bytes;
        }
    }
    return end_call(self, status);
}

static enum ox_status group_watch(struct ox_comm *comm, uint64_t calls, struct ox_mark done) {
    (void)comm, (void)calls, (void)done;
    OX_ASSERT(!"all calls block");
    return OX_E_CONFIG;
}

static void group_stop(struct ox_comm *comm) {
    (void)comm;
}

static void group_abort(struct ox_comm *comm, enum ox_status status, const char *text) {
    struct ox_comm_endpoint *const self = endpoint_of(comm);
    pthread_mutex_lock(&self->group->lock);
    ox_comm_group_abort(self->group, self->rank, status, text);
    pthread_mutex_unlock(&self->group->lock);
}

/* Waits until what this rank has raised is decided: another failure may come before it, and a revival after it. */
static void await_decision(struct ox_comm_endpoint *self) {
    struct ox_comm_group *const group = self->group;
    const struct ox_comm_member *const member = &group->members[self->rank];
    const uint64_t limit_ns = raise_limit_ns(group);
    while (member->applied < member->raised && ox_clock_ns() < limit_ns) {
        wait_until(group, &group->channels[OX_COMM_CHANNEL_LINK], limit_ns);
    }
}

static enum ox_status group_cause(struct ox_comm *comm) {
    struct ox_comm_endpoint *const self = endpoint_of(comm);
    struct ox_comm_group *const group = self->group;
    pthread_mutex_lock(&group->lock);
    await_decision(self);
    const enum ox_status cause = cause_of(group);
    pthread_mutex_unlock(&group->lock);
    return cause;
}

static enum ox_status group_revive(struct ox_comm *comm) {
    struct ox_comm_endpoint *const self = endpoint_of(comm);
    const struct ox_comm_post post = {.call = OX_COMM_MEET, .what = "revive", .on_host = true};
    begin_call(self);
    OX_ASSERT(self->inside == 1);
    await_decision(self);
    if (self->number > 0) { /* the endpoint with all ranks has revived it */
        return end_call(self, cause_of(self->group));
    }
    return end_call(self, arrive(self, OX_COMM_CHANNEL_REVIVE, &post, "", &self->group->limits));
}

/* ---- open and close --------------------------------------------------------------------------------- */

/* The endpoint itself stays until the last one of the process is closed, because peers look at it. */
static void group_close(struct ox_comm *comm) {
    struct ox_comm_endpoint *const self = endpoint_of(comm);
    struct ox_comm_group *const group = self->group;
    ox_lane_close(&self->lane);
    pthread_mutex_lock(&group->lock);
    OX_ASSERT(self->inside == 0);
    if (self->number > 0) {
        pthread_mutex_unlock(&group->lock);
        return;
    }
    ox_comm_group_submit(group, &(struct ox_comm_event){.kind = OX_COMM_LEAVES, .rank = comm->rank}, "");
    const bool last = --group->open_count == 0;
    pthread_mutex_unlock(&group->lock);
    if (last) {
        if (group->remote != NULL) {
            ox_comm_remote_close(group);
        }
        ox_comm_group_close(group);
    }
}

static const struct ox_comm_ops group_ops = {
    .name = "local",
    .gather = group_gather,
    .exchange = group_exchange,
    .reduce_scatter = group_reduce_scatter,
    .send = group_send,
    .recv = group_recv,
    .meet = group_meet,
    .watch = group_watch,
    .stop = group_stop,
    .abort = group_abort,
    .cause = group_cause,
    .revive = group_revive,
    .close = group_close,
};

enum ox_status ox_comm_endpoints_open(struct ox_comm_group *group, const struct ox_comm_local_config *config,
                                      struct ox_comm **out) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < group->local; i++) {
        struct ox_comm_endpoint *const self = group->endpoints[group->first + i];
        self->group = group;
        self->rank = group->first + i;
        self->device = config->devices != NULL ? config->devices[i] : NULL;
        ox_comm_init(&self->base, &group_ops, group->first + i, group->count);
        out[i] = &self->base;
        if (self->device != NULL) {
            OX_THEN(status, ox_device_lane_open(self->device, "link.copy", &self->lane));
        }
    }
    for (uint32_t i = 0; i < group->local && status != OX_OK; i++) {
        struct ox_comm_endpoint *const self = group->endpoints[group->first + i];
        ox_lane_close(&self->lane);
        pthread_mutex_destroy(&self->base.lock);
        out[i] = NULL;
    }
    return status;
}

/* ---- groups of ranks -------------------------------------------------------------------------------- */

/* All ranks say who is in their group, and each writes down what all have said, which is the same. */
static enum ox_status agree_on_groups(struct ox_comm_endpoint *self, const struct ox_comm_group_of *group) {
    uint64_t own = 0, all[OX_COMM_RANKS_MAX];
    for (uint32_t i = 0; i < group->count; i++) {
        OX_ASSERT(group->members[i] < self->base.count && (i == 0 || group->members[i] > group->members[i - 1]));
        own |= UINT64_C(1) << group->members[i];
    }
    OX_ASSERT((own >> self->rank & 1) != 0);
    OX_TRY(ox_comm_meet(&self->base, &(struct ox_comm_meet){
        .mine = &own, .mine_bytes = sizeof own, .slot_bytes = sizeof own, .all = all, .what = "groups of ranks"}));
    for (uint32_t r = 0; r < self->base.count; r++) {
        if ((own >> r & 1) != 0 && all[r] != own) {
            return ox_fail(OX_E_COMM, "rank %u: it takes itself for one of another group than rank %u does; start them "
                           "with the same program and options", r, self->rank);
        }
    }
    pthread_mutex_lock(&self->group->lock);
    for (uint32_t r = 0; r < self->base.count; r++) {
        self->group->members[r].groups[1 + group->split] = all[r];
    }
    self->group->duplex[1 + group->split] = group->duplex;
    pthread_mutex_unlock(&self->group->lock);
    return OX_OK;
}

enum ox_status ox_comm_split(struct ox_comm *comm, const struct ox_comm_group_of *group, struct ox_comm **out) {
    struct ox_comm_endpoint *const self = endpoint_of(comm), *const split = calloc(1, sizeof *split);
    OX_ASSERT(comm->ops == &group_ops && self->number == 0 && group->split < OX_COMM_SPLITS);
    OX_ASSERT(self->splits[group->split] == NULL);
    *out = NULL;
    enum ox_status status = split != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "no memory for a group of ranks");
    if (status == OX_OK) {
        split->group = self->group;
        split->rank = self->rank;
        split->number = 1 + group->split;
        split->device = self->device;
        uint32_t rank = 0;
        for (uint32_t i = 0; i < group->count; i++) {
            split->members[i] = group->members[i];
            rank = group->members[i] == self->rank ? i : rank;
        }
        ox_comm_init(&split->base, &group_ops, rank, group->count);
        split->base.members = split->members;
        self->splits[group->split] = split;
        status = self->device == NULL ? OX_OK : ox_device_lane_open(self->device, "link.copy", &split->lane);
    }
    OX_THEN(status, agree_on_groups(self, group));
    /* Nobody calls in a group before every process knows the groups. */
    OX_THEN(status, ox_comm_meet(comm, &(struct ox_comm_meet){.what = "groups of ranks are open"}));
    if (status != OX_OK) {
        char text[OX_ERROR_TEXT_BYTES];
        memcpy(text, ox_error_text(), sizeof text);
        ox_comm_abort(comm, status, text);
        if (split != NULL) {
            ox_lane_close(&split->lane);
            pthread_mutex_destroy(&split->base.lock);
        }
        return ox_fail(status, "%s", text);
    }
    *out = &split->base;
    return OX_OK;
}

enum ox_status ox_comm_local_open(const struct ox_comm_local_config *config, struct ox_comm **out) {
    struct ox_comm_group *group = NULL;
    memset(out, 0, config->count * sizeof *out);
    enum ox_status status = ox_comm_group_open(config, 0, config->count, &group);
    OX_THEN(status, ox_comm_endpoints_open(group, config, out));
    if (status != OX_OK && group != NULL) {
        ox_comm_group_close(group);
    }
    return status;
}
