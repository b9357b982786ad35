/* Ranks as threads of one process. Ranks meet, state their calls and where their memory lies, and each pulls what it
 * needs from its peers: by its own thread, or by a lane of its device. Other backends are compared with this one. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/lane.h"
#include "kernels/comm/comm_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHANNEL_LINK = OX_COMM_CHANNELS, CHANNEL_REVIVE, CHANNEL_COUNT };

/* Where the ranks meet for one kind of call after another. Posts and payloads of a round stay while the next round
 * gathers: nobody ends the next one before all have begun it, which they do after reading this one. */
struct channel {
    pthread_cond_t moved;
    uint64_t round;   /* rounds that have ended */
    uint64_t arrived; /* ranks that wait in the present round */
    struct ox_comm_post *posts[2];
    unsigned char *payloads[2]; /* of meetings: OX_COMM_MEET_BYTES per rank */
};

enum link_state { LINK_IDLE, LINK_WAITING, LINK_COPYING, LINK_DONE };

struct group;
struct endpoint {
    struct ox_comm base;
    struct group *group;
    struct ox_device *device;
    struct ox_lane *lane; /* of the device; NULL: the thread copies */
    /* Guarded by the group's lock: */
    uint32_t inside;       /* calls that run */
    enum link_state state; /* of a send or recv */
    struct ox_comm_post post;
    const void *source; /* of the link call: valid until it returns */
};

struct group {
    pthread_mutex_t lock; /* guards what follows */
    uint32_t count, open_count;
    struct ox_comm_limits limits;
    struct channel channels[CHANNEL_COUNT];
    uint64_t copying; /* ranks that have yet to read, or to leave, the link call that all have come to */
    uint64_t gone;    /* ranks that have closed their endpoint */
    uint64_t abort_count;
    enum ox_status cause;
    char cause_text[OX_ERROR_TEXT_BYTES];
    struct endpoint *endpoints[OX_COMM_RANKS_MAX];
};

static struct endpoint *endpoint_of(struct ox_comm *comm) {
    return (struct endpoint *)comm;
}

/* ---- waiting and aborting: the caller holds the lock ------------------------------------------------ */

static enum ox_status cause_of(const struct group *group) {
    return group->cause == OX_OK ? OX_OK : ox_fail(group->cause, "%s", group->cause_text);
}

/* A failure during a revival replaces the one before it and ends the revival. */
static void abort_with(struct group *group, uint32_t rank, enum ox_status status, const char *text) {
    struct channel *const revival = &group->channels[CHANNEL_REVIVE];
    if (group->cause != OX_OK && revival->arrived == 0) {
        return;
    }
    group->cause = status;
    snprintf(group->cause_text, sizeof group->cause_text, "rank %u: %s", rank, text);
    group->abort_count++;
    revival->arrived = 0;
    for (uint32_t i = 0; i < CHANNEL_COUNT; i++) {
        pthread_cond_broadcast(&group->channels[i].moved);
    }
}

/* Waits for a signal of the channel, at most until the call has to warn or fail. `missing`: ranks it waits for now. */
static enum ox_status wait_for(struct endpoint *self, struct channel *channel, struct ox_comm_patience *patience,
                               const struct ox_comm_post *post, uint64_t missing) {
    struct group *const group = self->group;
    if ((missing & group->gone) != 0) {
        char names[OX_COMM_RANKS_TEXT_BYTES];
        return ox_fail(OX_E_COMM, "%s \"%s\": %s ended before it", ox_comm_call_name((enum ox_comm_call)post->call),
                       post->what, ox_comm_ranks_text(missing & group->gone, names));
    }
    const enum ox_status status = ox_comm_patience_check(patience, &self->base, post, missing);
    if (status != OX_OK) {
        return status;
    }
    const uint64_t until = patience->warn_ns < patience->fail_ns ? patience->warn_ns : patience->fail_ns;
    const struct timespec at = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
    pthread_cond_timedwait(&channel->moved, &group->lock, &at);
    return OX_OK;
}

/* ---- rendezvous ------------------------------------------------------------------------------------- */

/* Two ranks wait for each other in calls that can never match: a send or recv whose peer waits for all ranks, or for
 * the same side of a transfer. */
static enum ox_status check_deadlock(const struct group *group) {
    const struct channel *const link = &group->channels[CHANNEL_LINK];
    for (uint32_t r = 0; r < group->count; r++) {
        const struct endpoint *const one = group->endpoints[r];
        if (one->state != LINK_WAITING) {
            continue;
        }
        const uint32_t peer = one->post.peer;
        const struct endpoint *const other = group->endpoints[peer];
        if ((link->arrived >> peer & 1) != 0) {
            return ox_comm_posts_clash(r, &one->post, peer, &link->posts[link->round % 2][peer]);
        }
        if (other->state == LINK_WAITING && other->post.peer == r && other->post.call == one->post.call) {
            return ox_comm_posts_clash(r, &one->post, peer, &other->post);
        }
    }
    return OX_OK;
}

/* Comes to the present round and waits until all have. *posts are the posts of all ranks. The caller holds the lock. */
static enum ox_status arrive(struct endpoint *self, struct channel *channel, const struct ox_comm_post *post,
                             const struct ox_comm_post **posts) {
    struct group *const group = self->group;
    const uint64_t round = channel->round, all = ox_comm_ranks_all(group->count), aborts = group->abort_count;
    const bool revival = channel == &group->channels[CHANNEL_REVIVE];
    const uint32_t parity = (uint32_t)(round % 2);
    enum ox_status status = revival ? OX_OK : cause_of(group);
    if (status != OX_OK) {
        return status;
    }
    channel->posts[parity][self->base.rank] = *post;
    channel->arrived |= UINT64_C(1) << self->base.rank;
    *posts = channel->posts[parity];
    if (channel->arrived == all) {
        channel->arrived = 0;
        channel->round++;
        if (channel == &group->channels[CHANNEL_LINK]) {
            group->copying = all;
        }
        pthread_cond_broadcast(&channel->moved);
        return OX_OK;
    }
    if (channel == &group->channels[CHANNEL_LINK]) {
        status = check_deadlock(group);
    }
    struct ox_comm_patience patience;
    ox_comm_patience_begin(&patience, &group->limits);
    while (status == OX_OK && channel->round == round) {
        if (group->abort_count != aborts) {
            return cause_of(group);
        }
        status = wait_for(self, channel, &patience, post, all & ~channel->arrived);
    }
    if (!revival) {
        ox_comm_waited(&self->base, post->call, patience.begin_ns);
    }
    return channel->round != round ? OX_OK : status;
}

static void enter(struct endpoint *self) {
    pthread_mutex_lock(&self->group->lock);
    self->inside++;
}

/* A failure aborts at once, so that no peer finds this rank missing without a cause. */
static enum ox_status leave(struct endpoint *self, enum ox_status status) {
    if (status != OX_OK) {
        abort_with(self->group, self->base.rank, status, ox_error_text());
    }
    self->inside--;
    pthread_mutex_unlock(&self->group->lock);
    return status;
}

/* ---- copies: without the lock ----------------------------------------------------------------------- */

static enum ox_status copy(struct endpoint *self, bool on_host, const struct ox_copy *one, struct ox_mark *done) {
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
static enum ox_status copies_end(struct endpoint *self, enum ox_status status, struct ox_mark done) {
    if (done.lane == NULL) {
        return status;
    }
    OX_TRY(status, ox_mark_join(done));
    if (status != OX_OK) {
        struct ox_first_failure first = {0};
        ox_first_failure_note(&first, status);
        ox_first_failure_note(&first, ox_lane_drain(self->lane));
        ox_lane_reset(self->lane);
        status = ox_first_failure_result(&first);
    }
    return status;
}

static enum ox_status pull_gather(struct endpoint *self, const struct ox_comm_gather *call) {
    struct ox_mark done = {0};
    enum ox_status status = OX_OK;
    /* Each rank begins behind itself, so that not all read the same peer at once. */
    for (uint32_t i = 0; i < self->base.count && status == OX_OK; i++) {
        const uint32_t from = (self->base.rank + 1 + i) % self->base.count;
        const struct ox_copy one = {
            .target = (unsigned char *)call->target + (call->cuts[from] - call->cuts[0]),
            .source = self->group->endpoints[from]->source,
            .bytes = call->cuts[from + 1] - call->cuts[from],
        };
        status = copy(self, call->on_host, &one, &done);
    }
    return copies_end(self, status, done);
}

static enum ox_status pull_exchange(struct endpoint *self, const struct ox_comm_exchange *call) {
    const uint64_t first = call->cuts[self->base.rank] - call->cuts[0];
    const uint64_t bytes = call->cuts[self->base.rank + 1] - call->cuts[self->base.rank];
    struct ox_mark done = {0};
    enum ox_status status = OX_OK;
    unsigned char *target = call->target;
    for (uint32_t from = 0; from < self->base.count && status == OX_OK; from++) {
        if (call->gives[from]) {
            const unsigned char *const source = self->group->endpoints[from]->source;
            const struct ox_copy one = {.target = target, .source = source + first, .bytes = bytes};
            status = copy(self, call->on_host, &one, &done);
            target += bytes;
        }
    }
    return copies_end(self, status, done);
}

/* ---- the calls -------------------------------------------------------------------------------------- */

/* The call itself is one of the two. */
struct link_call {
    const struct ox_comm_gather *gather;
    const struct ox_comm_exchange *exchange;
};

static enum ox_status link_run(struct endpoint *self, const struct ox_comm_post *post, const void *source,
                               const struct link_call *call) {
    struct group *const group = self->group;
    struct channel *const link = &group->channels[CHANNEL_LINK];
    const struct ox_comm_post *posts = NULL;
    enter(self);
    self->source = source;
    const enum ox_status came = arrive(self, link, post, &posts);
    if (came != OX_OK) {
        return leave(self, came);
    }
    pthread_mutex_unlock(&group->lock);
    enum ox_status status = ox_comm_posts_check(posts, group->count);
    if (status == OX_OK) {
        status = call->gather != NULL ? pull_gather(self, call->gather) : pull_exchange(self, call->exchange);
    }
    pthread_mutex_lock(&group->lock);
    group->copying &= ~(UINT64_C(1) << self->base.rank);
    if (group->copying == 0) {
        pthread_cond_broadcast(&link->moved);
    }
    if (status != OX_OK) {
        abort_with(group, self->base.rank, status, ox_error_text());
    }
    /* Peers read the source until they are done, whatever has failed; copies end by themselves. */
    struct ox_comm_patience patience;
    ox_comm_patience_begin(&patience, &group->limits);
    enum ox_status waited = OX_OK;
    while (group->copying != 0 && waited == OX_OK) {
        waited = wait_for(self, link, &patience, post, group->copying);
    }
    OX_TRY(status, waited);
    return leave(self, status);
}

static enum ox_status local_gather(struct ox_comm *comm, const struct ox_comm_gather *call) {
    struct ox_comm_post post;
    ox_comm_post_gather(comm, call, &post);
    return link_run(endpoint_of(comm), &post, call->source, &(struct link_call){.gather = call});
}

static enum ox_status local_exchange(struct ox_comm *comm, const struct ox_comm_exchange *call) {
    struct ox_comm_post post;
    ox_comm_post_exchange(comm, call, &post);
    return link_run(endpoint_of(comm), &post, call->source, &(struct link_call){.exchange = call});
}

static enum ox_status local_reduce_scatter(struct ox_comm *comm, const struct ox_comm_reduce_scatter *call) {
    (void)comm;
    return ox_fail(OX_E_CONFIG, "reduce-scatter \"%s\": threads of one process have no library whose sums could be "
                   "used; use the fixed sums", call->what);
}

/* Waits until the transfer that this rank has posted reaches `state`, or the ranks are aborted before it has begun. The
 * caller holds the lock. */
static enum ox_status transfer_wait(struct endpoint *self, bool is_send) {
    struct group *const group = self->group;
    struct endpoint *const peer = group->endpoints[self->post.peer];
    struct channel *const link = &group->channels[CHANNEL_LINK];
    struct ox_comm_patience patience;
    ox_comm_patience_begin(&patience, &group->limits);
    enum ox_status status = check_deadlock(group);
    for (;;) {
        const bool matched = is_send ? self->state == LINK_DONE
                                     : peer->state == LINK_WAITING && peer->post.call == OX_COMM_SEND &&
                                           peer->post.peer == self->base.rank;
        if (matched) {
            break;
        }
        if (self->state == LINK_WAITING) {
            OX_TRY(status, cause_of(group));
        }
        if (status != OX_OK) {
            break;
        }
        status = wait_for(self, link, &patience, &self->post, UINT64_C(1) << self->post.peer);
    }
    ox_comm_waited(&self->base, self->post.call, patience.begin_ns);
    return status;
}

static enum ox_status transfer_begin(struct endpoint *self, const struct ox_comm_post *post, const void *source) {
    enter(self);
    const enum ox_status status = cause_of(self->group);
    if (status == OX_OK) {
        self->post = *post;
        self->source = source;
        self->state = LINK_WAITING;
        pthread_cond_broadcast(&self->group->channels[CHANNEL_LINK].moved);
    }
    return status;
}

static enum ox_status transfer_end(struct endpoint *self, enum ox_status status) {
    self->state = LINK_IDLE;
    return leave(self, status);
}

static enum ox_status local_send(struct ox_comm *comm, const struct ox_comm_send *call) {
    struct endpoint *const self = endpoint_of(comm);
    struct ox_comm_post post;
    ox_comm_post_send(call, &post);
    enum ox_status status = transfer_begin(self, &post, call->source);
    OX_TRY(status, transfer_wait(self, true));
    return transfer_end(self, status);
}

/* The receiver copies. While it does, both states say so, and the sender stays in its call. */
static enum ox_status local_recv(struct ox_comm *comm, const struct ox_comm_recv *call) {
    struct endpoint *const self = endpoint_of(comm);
    struct group *const group = self->group;
    struct endpoint *const peer = group->endpoints[call->peer];
    struct ox_comm_post post;
    ox_comm_post_recv(call, &post);
    enum ox_status status = transfer_begin(self, &post, NULL);
    OX_TRY(status, transfer_wait(self, false));
    OX_TRY(status, ox_comm_transfer_check(call->peer, &peer->post, comm->rank, &post));
    if (status == OX_OK) {
        const struct ox_copy one = {.target = call->target, .source = peer->source, .bytes = call->bytes};
        self->state = peer->state = LINK_COPYING;
        pthread_mutex_unlock(&group->lock);
        struct ox_mark done = {0};
        status = copies_end(self, copy(self, call->on_host, &one, &done), done);
        pthread_mutex_lock(&group->lock);
        peer->state = LINK_DONE;
        if (status != OX_OK) {
            abort_with(group, comm->rank, status, ox_error_text());
        }
        pthread_cond_broadcast(&group->channels[CHANNEL_LINK].moved);
    }
    return transfer_end(self, status);
}

static enum ox_status local_meet(struct ox_comm *comm, const struct ox_comm_meet *call) {
    struct endpoint *const self = endpoint_of(comm);
    struct channel *const channel = &self->group->channels[call->channel];
    struct ox_comm_post post;
    const struct ox_comm_post *posts = NULL;
    ox_comm_post_meet(call, &post);
    enter(self);
    const uint32_t parity = (uint32_t)(channel->round % 2);
    if (call->mine_bytes > 0) {
        memcpy(channel->payloads[parity] + (size_t)comm->rank * OX_COMM_MEET_BYTES, call->mine, call->mine_bytes);
    }
    enum ox_status status = arrive(self, channel, &post, &posts);
    OX_TRY(status, ox_comm_posts_check(posts, comm->count));
    for (uint32_t r = 0; r < comm->count && status == OX_OK; r++) {
        if (posts[r].payload_bytes > 0) {
            memcpy((unsigned char *)call->all + (size_t)r * call->slot_bytes,
                   channel->payloads[parity] + (size_t)r * OX_COMM_MEET_BYTES, posts[r].payload_bytes);
        }
        if (call->all_bytes != NULL) {
            call->all_bytes[r] = posts[r].payload_bytes;
        }
    }
    return leave(self, status);
}

static void local_abort(struct ox_comm *comm, enum ox_status status, const char *text) {
    struct group *const group = endpoint_of(comm)->group;
    pthread_mutex_lock(&group->lock);
    abort_with(group, comm->rank, status, text);
    pthread_mutex_unlock(&group->lock);
}

static enum ox_status local_cause(struct ox_comm *comm) {
    struct group *const group = endpoint_of(comm)->group;
    pthread_mutex_lock(&group->lock);
    const enum ox_status cause = cause_of(group);
    pthread_mutex_unlock(&group->lock);
    return cause;
}

/* The last rank to come forgets the failure for all, before any of them returns. */
static enum ox_status local_revive(struct ox_comm *comm) {
    struct endpoint *const self = endpoint_of(comm);
    struct group *const group = self->group;
    struct ox_comm_post post = {.call = OX_COMM_MEET, .what = "revive", .on_host = true};
    const struct ox_comm_post *posts = NULL;
    enter(self);
    OX_ASSERT(self->inside == 1);
    struct channel *const revival = &group->channels[CHANNEL_REVIVE];
    if ((revival->arrived | UINT64_C(1) << comm->rank) == ox_comm_ranks_all(group->count)) {
        for (uint32_t i = 0; i < CHANNEL_REVIVE; i++) {
            group->channels[i].arrived = 0;
        }
        group->cause = OX_OK;
    }
    return leave(self, arrive(self, revival, &post, &posts));
}

/* ---- open and close --------------------------------------------------------------------------------- */

static void channel_close(struct channel *channel) {
    for (int parity = 0; parity < 2; parity++) {
        free(channel->posts[parity]);
        free(channel->payloads[parity]);
    }
    pthread_cond_destroy(&channel->moved);
}

static bool channel_open(struct channel *channel, uint32_t count, bool carries) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&channel->moved, &attr);
    pthread_condattr_destroy(&attr);
    bool room = true;
    for (int parity = 0; parity < 2; parity++) {
        channel->posts[parity] = calloc(count, sizeof *channel->posts[parity]);
        channel->payloads[parity] = carries ? calloc(count, OX_COMM_MEET_BYTES) : NULL;
        room = room && channel->posts[parity] != NULL && (!carries || channel->payloads[parity] != NULL);
    }
    return room;
}

static void group_close(struct group *group) {
    for (uint32_t i = 0; i < CHANNEL_COUNT; i++) {
        channel_close(&group->channels[i]);
    }
    for (uint32_t r = 0; r < group->count; r++) {
        free(group->endpoints[r]);
    }
    pthread_mutex_destroy(&group->lock);
    free(group);
}

/* The endpoint itself stays until the last one is closed, because peers look at it. */
static void local_close(struct ox_comm *comm) {
    struct endpoint *const self = endpoint_of(comm);
    struct group *const group = self->group;
    ox_lane_close(&self->lane);
    pthread_mutex_lock(&group->lock);
    OX_ASSERT(self->inside == 0);
    group->gone |= UINT64_C(1) << comm->rank;
    for (uint32_t i = 0; i < CHANNEL_COUNT; i++) {
        pthread_cond_broadcast(&group->channels[i].moved);
    }
    const bool last = --group->open_count == 0;
    pthread_mutex_unlock(&group->lock);
    if (last) {
        group_close(group);
    }
}

static const struct ox_comm_ops local_ops = {
    .name = "local",
    .gather = local_gather,
    .exchange = local_exchange,
    .reduce_scatter = local_reduce_scatter,
    .send = local_send,
    .recv = local_recv,
    .meet = local_meet,
    .abort = local_abort,
    .cause = local_cause,
    .revive = local_revive,
    .close = local_close,
};

static enum ox_status endpoint_open(struct group *group, uint32_t rank, struct ox_device *device,
                                    struct endpoint **out) {
    struct endpoint *const self = calloc(1, sizeof *self);
    if (self == NULL) {
        return ox_fail(OX_E_NOMEM, "communication of %u ranks: no memory for its state", group->count);
    }
    *out = self;
    self->group = group;
    self->device = device;
    ox_comm_init(&self->base, &local_ops, rank, group->count);
    return device == NULL ? OX_OK : ox_device_lane_open(device, "link.copy", &self->lane);
}

enum ox_status ox_comm_local_open(const struct ox_comm_local_config *config, struct ox_comm **out) {
    OX_ASSERT(config->count > 0 && config->count <= OX_COMM_RANKS_MAX);
    struct group *const group = calloc(1, sizeof *group);
    memset(out, 0, config->count * sizeof *out);
    if (group == NULL) {
        return ox_fail(OX_E_NOMEM, "communication of %u ranks: no memory for its state", config->count);
    }
    group->count = config->count;
    group->limits = config->limits;
    pthread_mutex_init(&group->lock, NULL);
    bool room = true;
    for (uint32_t i = 0; i < CHANNEL_COUNT; i++) {
        room = channel_open(&group->channels[i], config->count, i < OX_COMM_CHANNELS) && room;
    }
    enum ox_status status = room ? OX_OK : ox_fail(OX_E_NOMEM, "communication of %u ranks: no memory for its state",
                                                   config->count);
    for (uint32_t r = 0; r < config->count && status == OX_OK; r++) {
        status = endpoint_open(group, r, config->devices != NULL ? config->devices[r] : NULL, &group->endpoints[r]);
    }
    if (status != OX_OK) {
        for (uint32_t r = 0; r < config->count && group->endpoints[r] != NULL; r++) {
            ox_lane_close(&group->endpoints[r]->lane);
            pthread_mutex_destroy(&group->endpoints[r]->base.lock);
        }
        group_close(group);
        return status;
    }
    group->open_count = config->count;
    for (uint32_t r = 0; r < config->count; r++) {
        out[r] = &group->endpoints[r]->base;
    }
    return OX_OK;
}
