/* The thread of a process that serves its wire: it sends and orders events, and moves transfers along. Nobody else
 * calls the wire. It sleeps longer the longer nothing happens, so that waiting costs no core. */
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "kernels/comm/comm_group.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define US_NS UINT64_C(1000)
#define MS_NS UINT64_C(1000000)
enum { TO_ALL = UINT32_MAX };
enum { CHECK_NS = 200 * 1000 * 1000 };
enum { SUM_ELEMS = 256 << 10 }; /* of all ranks together, that are added at a time */

struct message {
    struct message *next;
    uint32_t process; /* or TO_ALL others */
    uint32_t bytes;
    unsigned char data[];
};

struct ox_comm_remote {
    struct ox_wire *wire;
    pthread_t thread;
    /* Guarded by the group's lock: */
    pthread_cond_t work;
    struct message *first, *last; /* to be sent */
    struct ox_comm_remote_job *jobs;
    bool stop;
    uint64_t lost; /* processes that have ended */
    /* The thread's own: */
    struct ox_comm_remote_job *active;
    uint64_t progress_ns, lost_check_ns;
    uint64_t silent_max_ns, live_ns;       /* 0: others may be silent for ever; when to say that this process lives */
    uint64_t silent_ns[OX_COMM_RANKS_MAX]; /* by process: for how long this one has not heard of it */
    bool dropped; /* a transfer was given up, whose bytes may still come: no other begins that could take them */
    float *sums;  /* of the process: all slices, SUM_ELEMS, and behind them what it gets, as much at most */
    unsigned char buffer[OX_WIRE_MESSAGE_BYTES];
};

static uint32_t process_of(const struct ox_comm_group *group, uint32_t rank) {
    return rank / group->local;
}

/* ---- events: the caller holds the lock -------------------------------------------------------------- */

static void enqueue(struct ox_comm_group *group, uint32_t process, const struct ox_comm_event *event,
                    const void *payload) {
    struct ox_comm_remote *const remote = group->remote;
    struct message *const message = malloc(sizeof *message + sizeof *event + event->payload_bytes);
    OX_ASSERT(message != NULL); /* at most 66 KiB; without it no other process could be told of the failure either */
    message->next = NULL;
    message->process = process;
    message->bytes = (uint32_t)(sizeof *event + event->payload_bytes);
    memcpy(message->data, event, sizeof *event);
    if (event->payload_bytes > 0) {
        memcpy(message->data + sizeof *event, payload, event->payload_bytes);
    }
    if (remote->last != NULL) {
        remote->last->next = message;
    } else {
        remote->first = message;
    }
    remote->last = message;
    pthread_cond_signal(&remote->work);
}

/* The first process orders events: it applies them and tells all others, which apply them when they are told. */
static void order(struct ox_comm_group *group, const struct ox_comm_event *event, const void *payload) {
    ox_comm_group_apply(group, event, payload);
    enqueue(group, TO_ALL, event, payload);
}

void ox_comm_remote_submit(struct ox_comm_group *group, const struct ox_comm_event *event, const void *payload) {
    if (group->remote->wire->process == 0) {
        order(group, event, payload);
    } else if ((group->remote->lost & 1) != 0) {
        ox_comm_group_apply(group, event, payload);
    } else {
        enqueue(group, 0, event, payload);
    }
}

static bool is_event(const struct ox_comm_group *group, const struct ox_comm_event *event, uint32_t bytes) {
    return bytes >= sizeof *event && event->payload_bytes == bytes - sizeof *event &&
           event->payload_bytes <= OX_COMM_MEET_BYTES && event->rank < group->count &&
           event->channel < OX_COMM_CHANNEL_COUNT && event->post.peer < group->count &&
           group->members[event->rank].groups[ox_comm_endpoint_of_channel(event->channel)] != 0 &&
           (event->kind != OX_COMM_ARRIVES || event->payload_bytes == event->post.payload_bytes) &&
           (event->kind == OX_COMM_ABORTS ||
            event->payload_bytes <= group->channels[event->channel].payload_bytes);
}

static void wire_failed(struct ox_comm_group *group, const char *text) {
    const struct ox_comm_event event = {.kind = OX_COMM_ABORTS, .rank = group->first, .status = OX_E_COMM,
                                        .aborts = group->abort_count,
                                        .payload_bytes = (uint32_t)strnlen(text, OX_ERROR_TEXT_BYTES - 1)};
    ox_comm_group_apply(group, &event, text);
}

/* ---- the thread's work: without the lock ------------------------------------------------------------ */

static bool send_messages(struct ox_comm_group *group) {
    struct ox_comm_remote *const remote = group->remote;
    pthread_mutex_lock(&group->lock);
    struct message *message = remote->first;
    remote->first = remote->last = NULL;
    pthread_mutex_unlock(&group->lock);
    const bool any = message != NULL;
    while (message != NULL) {
        struct message *const next = message->next;
        for (uint32_t p = 0; p < remote->wire->process_count; p++) {
            const bool meant = message->process == TO_ALL ? p != remote->wire->process : p == message->process;
            if (meant && (remote->lost >> p & 1) == 0 &&
                remote->wire->ops->post(remote->wire, p, message->data, message->bytes) != OX_OK) {
                pthread_mutex_lock(&group->lock);
                wire_failed(group, ox_error_text());
                pthread_mutex_unlock(&group->lock);
            }
        }
        free(message);
        message = next;
    }
    return any;
}

static bool receive_messages(struct ox_comm_group *group) {
    struct ox_comm_remote *const remote = group->remote;
    bool any = false;
    for (;;) {
        uint32_t process = 0, bytes = 0;
        const enum ox_status status = remote->wire->ops->poll(remote->wire, &process, remote->buffer, &bytes);
        if (status == OX_OK && bytes == 0) {
            return any;
        }
        any = true;
        struct ox_comm_event event;
        memset(&event, 0, sizeof event);
        remote->silent_ns[process] = 0;
        memcpy(&event, remote->buffer, bytes < sizeof event ? bytes : sizeof event);
        event.post.what[OX_COMM_WHAT_BYTES - 1] = '\0';
        pthread_mutex_lock(&group->lock);
        if (status != OX_OK) {
            wire_failed(group, ox_error_text());
        } else if (!is_event(group, &event, bytes)) {
            wire_failed(group, "another process sent a message of another version; start all with the same program");
        } else if (remote->wire->process == 0 && event.kind != OX_COMM_LIVES) {
            order(group, &event, remote->buffer + sizeof event);
        } else {
            ox_comm_group_apply(group, &event, remote->buffer + sizeof event);
        }
        pthread_mutex_unlock(&group->lock);
        if (status != OX_OK) {
            return any;
        }
    }
}

static void job_fail(struct ox_comm_remote_job *job, const char *text) {
    if (job->status == OX_OK) {
        job->status = OX_E_COMM;
        snprintf(job->text, sizeof job->text, "%s", text);
    }
}

/* Fails a job whose transfer, or sum, cannot end. */
static void job_drop(struct ox_comm_remote *remote, struct ox_comm_remote_job *job, uint32_t i) {
    char text[OX_WIRE_NAME_BYTES + 64];
    remote->dropped = true;
    if (job->sum != NULL) {
        snprintf(text, sizeof text, "a sum over all processes did not end; resume from the last commit");
    } else {
        snprintf(text, sizeof text, "bytes %s %s did not arrive; resume from the last commit",
                 job->transfers[i].sends ? "to" : "from",
                 remote->wire->ops->name(remote->wire, job->transfers[i].process));
    }
    job_fail(job, text);
    remote->wire->ops->drop(remote->wire, job->requests[i]);
}

/* Tests the transfers of a job; returns how many have ended by this call. */
static uint32_t job_move(struct ox_comm_remote *remote, struct ox_comm_remote_job *job, bool given_up) {
    uint32_t ended = 0;
    for (uint32_t i = 0; i < job->count; i++) {
        const uint64_t needed = job->sum != NULL ? UINT64_MAX : UINT64_C(1) << job->transfers[i].process;
        bool done = false;
        if (job->requests[i] == NULL) {
            continue;
        }
        if (given_up || (remote->lost & needed) != 0) {
            job_drop(remote, job, i);
            done = true;
        } else if (remote->wire->ops->test(remote->wire, job->requests[i], &done) != OX_OK) {
            job_fail(job, ox_error_text());
            done = true;
        }
        if (done) {
            job->requests[i] = NULL;
            ended++;
        }
    }
    return ended;
}

static bool job_has_ended(const struct ox_comm_remote_job *job) {
    for (uint32_t i = 0; i < job->count; i++) {
        if (job->requests[i] != NULL) {
            return false;
        }
    }
    return true;
}

static enum ox_status job_begin(struct ox_comm_remote *remote, struct ox_comm_remote_job *job, uint32_t i) {
    const struct ox_wire_ops *const ops = remote->wire->ops;
    if (remote->dropped) {
        return ox_fail(OX_E_COMM, "an earlier transfer between processes did not end; resume from the last commit");
    }
    return job->sum != NULL ? ops->sum(remote->wire, job->sum, &job->requests[i])
                            : ops->begin(remote->wire, &job->transfers[i], &job->requests[i]);
}

static bool move_jobs(struct ox_comm_group *group) {
    struct ox_comm_remote *const remote = group->remote;
    bool any = false;
    pthread_mutex_lock(&group->lock);
    struct ox_comm_remote_job *fresh = remote->jobs;
    remote->jobs = NULL;
    pthread_mutex_unlock(&group->lock);
    while (fresh != NULL) {
        struct ox_comm_remote_job *const job = fresh;
        fresh = job->next;
        for (uint32_t i = 0; i < job->count; i++) {
            job->requests[i] = NULL;
            if (job_begin(remote, job, i) != OX_OK) {
                job_fail(job, ox_error_text());
            }
        }
        job->next = remote->active;
        remote->active = job;
        any = true;
    }
    for (struct ox_comm_remote_job **at = &remote->active; *at != NULL;) {
        struct ox_comm_remote_job *const job = *at;
        pthread_mutex_lock(&group->lock);
        const bool given_up = job->given_up;
        pthread_mutex_unlock(&group->lock);
        any = job_move(remote, job, given_up) > 0 || any;
        if (job_has_ended(job)) {
            *at = job->next;
            any = true;
            pthread_mutex_lock(&group->lock);
            job->done = true; /* from here on it belongs to its caller */
            pthread_cond_broadcast(&group->channels[OX_COMM_CHANNEL_LINK].moved);
            pthread_mutex_unlock(&group->lock);
        } else {
            at = &job->next;
        }
    }
    return any;
}

/* A process that is lost leaves with all its ranks. Process 0 says so to all; each finds out by itself that process 0
 * is lost, and drops messages pending for it. */
static void lose(struct ox_comm_group *group, uint32_t process, const char *how) {
    struct ox_comm_remote *const remote = group->remote;
    char text[OX_WIRE_NAME_BYTES + 128];
    snprintf(text, sizeof text, "%s %s", remote->wire->ops->name(remote->wire, process), how);
    struct ox_comm_event event = {.kind = OX_COMM_ABORTS, .rank = process * group->local, .status = OX_E_COMM};
    event.payload_bytes = (uint32_t)strlen(text);
    pthread_mutex_lock(&group->lock);
    event.aborts = group->abort_count;
    remote->lost |= UINT64_C(1) << process;
    for (uint32_t r = group->first; r < group->first + group->local && process == 0; r++) {
        group->members[r].applied = group->members[r].raised;
    }
    if (process == 0 || remote->wire->process == 0) {
        ox_comm_remote_submit(group, &event, text);
        for (uint32_t i = 0; i < group->local; i++) {
            event = (struct ox_comm_event){.kind = OX_COMM_LEAVES, .rank = process * group->local + i};
            ox_comm_remote_submit(group, &event, "");
        }
    }
    pthread_mutex_unlock(&group->lock);
}

/* Whether a process has said nothing for too long. Process 0 hears of all, the others of process 0 alone. */
static bool is_silent(const struct ox_comm_remote *remote, uint32_t process) {
    const bool hears = process == 0 || remote->wire->process == 0;
    return hears && remote->silent_max_ns > 0 && remote->silent_ns[process] >= remote->silent_max_ns;
}

static void check_lost(struct ox_comm_group *group) {
    struct ox_comm_remote *const remote = group->remote;
    const uint64_t now = ox_clock_ns();
    if (now < remote->lost_check_ns) {
        return;
    }
    /* While this process itself was stopped it could not hear the others. */
    const uint64_t passed = ox_min_u64(now - remote->lost_check_ns, CHECK_NS) + CHECK_NS;
    remote->lost_check_ns = now + CHECK_NS;
    for (uint32_t p = 0; p < remote->wire->process_count; p++) {
        const uint64_t ranks = ox_comm_ranks_all(group->local) << (p * group->local);
        pthread_mutex_lock(&group->lock);
        const bool known = (remote->lost >> p & 1) != 0 || (group->gone & ranks) == ranks;
        pthread_mutex_unlock(&group->lock);
        remote->silent_ns[p] += passed;
        if (p == remote->wire->process || known) {
            continue;
        }
        if (remote->wire->ops->lost(remote->wire, p)) {
            lose(group, p, "has ended; resume from the last commit");
        } else if (is_silent(remote, p)) {
            char how[96];
            snprintf(how, sizeof how, "has not answered for %.1f s: it is stopped, or its machine is; resume from the "
                     "last commit", (double)remote->silent_ns[p] * 1e-9);
            lose(group, p, how);
        }
    }
}

/* Says to the others that this process lives; process 0 hears of all, and all of process 0. A process that is stopped
 * does not take its messages, so there are never more than the wire holds. */
static void live(struct ox_comm_group *group) {
    enum { IN_TIME = 64 };
    struct ox_comm_remote *const remote = group->remote;
    const uint64_t now = ox_clock_ns();
    if (remote->silent_max_ns == 0 || now < remote->live_ns) {
        return;
    }
    remote->live_ns = now + remote->silent_max_ns / IN_TIME;
    pthread_mutex_lock(&group->lock);
    enqueue(group, remote->wire->process == 0 ? TO_ALL : 0,
            &(struct ox_comm_event){.kind = OX_COMM_LIVES, .rank = group->first}, "");
    pthread_mutex_unlock(&group->lock);
}

/* How long to sleep when nothing has happened for this long. */
static uint64_t sleep_ns(const struct ox_comm_remote *remote, uint32_t waiting, uint64_t idle_ns) {
    if (remote->active != NULL && idle_ns < 50 * US_NS) {
        return 0;
    }
    const uint64_t most = remote->active != NULL ? 200 * US_NS : waiting > 0 ? MS_NS : 2 * MS_NS;
    return ox_min_u64(ox_max_u64(idle_ns / 16, 20 * US_NS), most);
}

static void *serve(void *context) {
    struct ox_comm_group *const group = context;
    struct ox_comm_remote *const remote = group->remote;
    uint64_t stop_ns = 0;
    for (;;) {
        const bool sent = send_messages(group), received = receive_messages(group), moved = move_jobs(group);
        check_lost(group);
        live(group);
        const uint64_t now = ox_clock_ns();
        if (sent || received || moved) {
            remote->progress_ns = now;
            continue;
        }
        pthread_mutex_lock(&group->lock);
        stop_ns = remote->stop && stop_ns == 0 ? now + 2000 * MS_NS : stop_ns;
        const bool left = remote->first != NULL || remote->wire->ops->sending(remote->wire);
        const uint64_t ns = sleep_ns(remote, group->waiting, now - remote->progress_ns);
        if (stop_ns == 0 && ns > 0 && remote->first == NULL && remote->jobs == NULL) {
            const uint64_t until = now + ns;
            const struct timespec at = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
            pthread_cond_timedwait(&remote->work, &group->lock, &at);
        }
        pthread_mutex_unlock(&group->lock);
        if (stop_ns != 0 && (!left || now >= stop_ns)) {
            return NULL;
        }
        if (ns == 0 || stop_ns != 0) {
            sched_yield();
        }
    }
}

/* ---- jobs ------------------------------------------------------------------------------------------- */

void ox_comm_remote_add(const struct ox_comm_endpoint *self, struct ox_comm_remote_job *job, uint32_t sender,
                        uint32_t receiver, void *at, uint64_t bytes) {
    enum { LOCAL_MAX = OX_COMM_RANKS_MAX / 2 }; /* of a process that is not alone */
    OX_STATIC_ASSERT(OX_COMM_ENDPOINTS * LOCAL_MAX * LOCAL_MAX <= 1 << 15, "tags of transfers");
    const struct ox_comm_group *const group = self->group;
    const uint32_t one = ox_comm_member(&self->base, sender), other = ox_comm_member(&self->base, receiver);
    const uint32_t from = process_of(group, one), to = process_of(group, other);
    if (from == to || bytes == 0) {
        return;
    }
    const bool sends = from == group->remote->wire->process;
    OX_ASSERT(group->local <= LOCAL_MAX);
    job->transfers[job->count++] = (struct ox_wire_transfer){
        .process = sends ? to : from, .sends = sends, .at = at, .bytes = bytes,
        .tag = (self->number * LOCAL_MAX + one % group->local) * LOCAL_MAX + other % group->local};
}

void ox_comm_remote_begin(struct ox_comm_group *group, struct ox_comm_remote_job *job) {
    if (job == NULL) {
        return;
    }
    job->status = OX_OK;
    job->given_up = false;
    job->done = job->count == 0;
    if (!job->done) {
        pthread_mutex_lock(&group->lock);
        job->next = group->remote->jobs;
        group->remote->jobs = job;
        pthread_cond_signal(&group->remote->work);
        pthread_mutex_unlock(&group->lock);
    }
}

/* All ranks are in the call, so its transfers end, unless a process ends or the wire fails. */
enum ox_status ox_comm_remote_join(struct ox_comm_group *group, struct ox_comm_remote_job *job) {
    struct ox_comm_patience patience;
    ox_comm_patience_begin(&patience, &group->limits);
    pthread_mutex_lock(&group->lock);
    while (!job->done) {
        const uint64_t now = ox_comm_patience_look(&patience);
        job->given_up = now >= patience.fail_ns;
        const uint64_t until = job->given_up ? now + 100 * MS_NS : ox_min_u64(patience.fail_ns, now + OX_COMM_LOOK_NS);
        const struct timespec at = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
        group->waiting++;
        pthread_cond_timedwait(&group->channels[OX_COMM_CHANNEL_LINK].moved, &group->lock, &at);
        group->waiting--;
    }
    pthread_mutex_unlock(&group->lock);
    return job->status == OX_OK ? OX_OK : ox_fail(job->status, "%s", job->text);
}

/* ---- sums ------------------------------------------------------------------------------------------- */

/* A part of every rank's slice: elements [first, first + most) of it, as far as it has them. */
struct sum_part {
    const uint64_t *cuts;
    uint64_t first, most;
};

static uint64_t part_elems(const struct sum_part *part, uint32_t rank) {
    const uint64_t elems = (part->cuts[rank + 1] - part->cuts[rank]) / sizeof(float);
    return elems <= part->first ? 0 : ox_min_u64(elems - part->first, part->most);
}

/* Writes the part of all slices, added over the ranks of this process, and counts what each process gets of it. */
static void add_own_ranks(struct ox_comm_group *group, const struct sum_part *part, uint64_t *counts) {
    float *to = group->remote->sums;
    for (uint32_t r = 0; r < group->count; r++) {
        const uint64_t elems = part_elems(part, r);
        const uint64_t at = (part->cuts[r] - part->cuts[0]) / sizeof(float) + part->first;
        memcpy(to, (const float *)group->endpoints[group->first]->source + at, elems * sizeof(float));
        for (uint32_t i = 1; i < group->local; i++) {
            const float *const from = (const float *)group->endpoints[group->first + i]->source + at;
            for (uint64_t k = 0; k < elems; k++) {
                to[k] += from[k];
            }
        }
        to += elems;
        counts[process_of(group, r)] += elems;
    }
}

static enum ox_status add_processes(struct ox_comm_group *group, const uint64_t *counts) {
    struct ox_comm_remote *const remote = group->remote;
    const struct ox_wire_sum sum = {.source = remote->sums, .target = remote->sums + SUM_ELEMS, .counts = counts};
    struct ox_comm_remote_job job;
    job.sum = &sum;
    job.count = 1;
    ox_comm_remote_begin(group, &job);
    return ox_comm_remote_join(group, &job);
}

enum ox_status ox_comm_remote_sum(struct ox_comm_group *group, const uint64_t *cuts) {
    struct sum_part part = {.cuts = cuts, .most = SUM_ELEMS / group->count};
    uint64_t longest = 0;
    for (uint32_t r = 0; r < group->count; r++) {
        longest = ox_max_u64(longest, (cuts[r + 1] - cuts[r]) / sizeof(float));
    }
    enum ox_status status = OX_OK;
    for (; part.first < longest && status == OX_OK; part.first += part.most) {
        uint64_t counts[OX_COMM_RANKS_MAX] = {0};
        add_own_ranks(group, &part, counts);
        status = add_processes(group, counts);
        const float *from = group->remote->sums + SUM_ELEMS;
        for (uint32_t r = group->first; r < group->first + group->local && status == OX_OK; r++) {
            const uint64_t elems = part_elems(&part, r);
            memcpy(group->endpoints[r]->target + part.first, from, elems * sizeof(float));
            from += elems;
        }
    }
    return status;
}

/* ---- open and close --------------------------------------------------------------------------------- */

static void remote_free(struct ox_comm_group *group, bool clean) {
    struct ox_comm_remote *const remote = group->remote;
    remote->wire->ops->close(remote->wire, clean);
    pthread_cond_destroy(&remote->work);
    while (remote->first != NULL) {
        struct message *const next = remote->first->next;
        free(remote->first);
        remote->first = next;
    }
    if (!remote->dropped) {
        free(remote->sums); /* otherwise the wire may still read and write them */
    }
    free(remote);
    group->remote = NULL;
}

/* Serves the other processes until their ranks have left too: the first one orders their events. Where that one has
 * ended nobody learns any more who leaves. */
void ox_comm_remote_close(struct ox_comm_group *group) {
    struct ox_comm_remote *const remote = group->remote;
    struct ox_comm_limits limits = group->limits;
    limits.fail_ms = limits.fail_ms == 0 || limits.fail_ms > 10000 ? 10000 : limits.fail_ms;
    struct ox_comm_patience patience;
    ox_comm_patience_begin(&patience, &limits);
    pthread_mutex_lock(&group->lock);
    while (group->gone != ox_comm_ranks_all(group->count) && (remote->lost & 1) == 0 &&
           ox_clock_ns() < patience.fail_ns) {
        const struct timespec at = {.tv_sec = (time_t)(patience.fail_ns / 1000000000),
                                    .tv_nsec = (long)(patience.fail_ns % 1000000000)};
        group->waiting++;
        pthread_cond_timedwait(&group->channels[OX_COMM_CHANNEL_LINK].moved, &group->lock, &at);
        group->waiting--;
    }
    const bool clean = group->gone == ox_comm_ranks_all(group->count) && remote->lost == 0;
    remote->stop = true;
    pthread_cond_signal(&remote->work);
    pthread_mutex_unlock(&group->lock);
    pthread_join(remote->thread, NULL);
    remote_free(group, clean);
}

static enum ox_status remote_open(struct ox_comm_group *group, struct ox_wire *wire, uint32_t silent_ms) {
    struct ox_comm_remote *const remote = calloc(1, sizeof *remote);
    float *const sums = malloc(2 * sizeof(float) * SUM_ELEMS); /* touched where the wire adds alone */
    if (remote == NULL || sums == NULL) {
        free(remote);
        free(sums);
        return ox_fail(OX_E_NOMEM, "communication of %u processes: no memory for its state", wire->process_count);
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&remote->work, &attr);
    pthread_condattr_destroy(&attr);
    remote->wire = wire;
    remote->sums = sums;
    remote->progress_ns = remote->lost_check_ns = ox_clock_ns();
    remote->silent_max_ns = silent_ms * MS_NS;
    group->remote = remote;
    return OX_OK;
}

enum ox_status ox_comm_wire_open(struct ox_wire *wire, const struct ox_comm_local_config *config,
                                 struct ox_comm **out) {
    OX_STATIC_ASSERT(sizeof(struct ox_comm_event) + OX_COMM_MEET_BYTES <= OX_WIRE_MESSAGE_BYTES, "an event fits");
    struct ox_comm_group *group = NULL;
    memset(out, 0, config->count * sizeof *out);
    enum ox_status status = ox_comm_group_open(config, wire->process * config->count,
                                               wire->process_count * config->count, &group);
    OX_THEN(status, remote_open(group, wire, config->silent_ms));
    OX_THEN(status, ox_comm_endpoints_open(group, config, out));
    if (status == OX_OK && pthread_create(&group->remote->thread, NULL, serve, group) != 0) {
        status = ox_fail(OX_E_NOMEM, "communication of %u processes: no thread for it", wire->process_count);
        for (uint32_t i = 0; i < config->count; i++) {
            ox_lane_close(&group->endpoints[group->first + i]->lane);
            out[i] = NULL;
        }
    }
    if (status != OX_OK) {
        if (group != NULL && group->remote != NULL) {
            remote_free(group, false);
        } else {
            wire->ops->close(wire, false);
        }
        if (group != NULL) {
            ox_comm_group_close(group);
        }
    }
    return status;
}
