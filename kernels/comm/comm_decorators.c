/* Decorators of an endpoint: random delays, and one call that fails. Tests put them around any backend. */
#include "base/lane.h"
#include "kernels/comm/comm_impl.h"

#include <stdlib.h>

/* Both are one struct: chaos has a seed, fault has a rule. */
struct decorated {
    struct ox_comm base;
    uint64_t seed, ns_max;
    struct ox_comm_fault fault;
    uint64_t turn; /* calls so far; guarded by base.lock */
};

static struct decorated *decorated_of(struct ox_comm *comm) {
    return (struct decorated *)comm;
}

static uint64_t next_turn(struct decorated *self) {
    pthread_mutex_lock(&self->base.lock);
    const uint64_t turn = self->turn++;
    pthread_mutex_unlock(&self->base.lock);
    return turn;
}

static void delay(const struct decorated *self, uint64_t turn) {
    ox_chaos_delay(self->seed + ox_comm_member(&self->base, self->base.rank), "comm", turn, self->ns_max);
}

static enum ox_status injected(const struct decorated *self, bool after, uint64_t turn) {
    const bool hit = self->fault.status != OX_OK && turn == self->fault.call_idx && after == self->fault.after;
    return hit ? ox_fail(self->fault.status, "injected fault %s call %llu", after ? "after" : "before",
                         (unsigned long long)turn) : OX_OK;
}

/* Begins a call: its turn, and the failure that it has instead of reaching the endpoint inside. */
static enum ox_status begin(struct ox_comm *comm, uint64_t *turn) {
    struct decorated *const self = decorated_of(comm);
    *turn = next_turn(self);
    delay(self, 2 * *turn);
    return injected(self, false, *turn);
}

static enum ox_status end(struct ox_comm *comm, uint64_t turn, enum ox_status status) {
    struct decorated *const self = decorated_of(comm);
    delay(self, 2 * turn + 1);
    OX_THEN(status, injected(self, true, turn));
    return status;
}

static enum ox_status decorated_gather(struct ox_comm *comm, const struct ox_comm_gather *call) {
    uint64_t turn = 0;
    enum ox_status status = begin(comm, &turn);
    OX_THEN(status, ox_comm_gather(comm->inner, call));
    return end(comm, turn, status);
}

static enum ox_status decorated_exchange(struct ox_comm *comm, const struct ox_comm_exchange *call) {
    uint64_t turn = 0;
    enum ox_status status = begin(comm, &turn);
    OX_THEN(status, ox_comm_exchange(comm->inner, call));
    return end(comm, turn, status);
}

static enum ox_status decorated_reduce_scatter(struct ox_comm *comm, const struct ox_comm_reduce_scatter *call) {
    uint64_t turn = 0;
    enum ox_status status = begin(comm, &turn);
    OX_THEN(status, ox_comm_reduce_scatter(comm->inner, call));
    return end(comm, turn, status);
}

static enum ox_status decorated_send(struct ox_comm *comm, const struct ox_comm_send *call) {
    uint64_t turn = 0;
    enum ox_status status = begin(comm, &turn);
    OX_THEN(status, ox_comm_send(comm->inner, call));
    return end(comm, turn, status);
}

static enum ox_status decorated_recv(struct ox_comm *comm, const struct ox_comm_recv *call) {
    uint64_t turn = 0;
    enum ox_status status = begin(comm, &turn);
    OX_THEN(status, ox_comm_recv(comm->inner, call));
    return end(comm, turn, status);
}

static enum ox_status decorated_meet(struct ox_comm *comm, const struct ox_comm_meet *call) {
    uint64_t turn = 0;
    enum ox_status status = begin(comm, &turn);
    OX_THEN(status, ox_comm_meet(comm->inner, call));
    return end(comm, turn, status);
}

static enum ox_status decorated_watch(struct ox_comm *comm, uint64_t calls, struct ox_mark done) {
    return ox_comm_watch(comm->inner, calls, done);
}

static void decorated_stop(struct ox_comm *comm) {
    ox_comm_stop(comm->inner);
}

static void decorated_abort(struct ox_comm *comm, enum ox_status status, const char *text) {
    ox_comm_abort(comm->inner, status, text);
}

static enum ox_status decorated_cause(struct ox_comm *comm) {
    return ox_comm_cause(comm->inner);
}

static enum ox_status decorated_revive(struct ox_comm *comm) {
    return ox_comm_revive(comm->inner);
}

static void decorated_close(struct ox_comm *comm) {
    ox_comm_close(&comm->inner);
    free(comm);
}

static const struct ox_comm_ops decorated_ops = {
    .name = "decorator",
    .gather = decorated_gather,
    .exchange = decorated_exchange,
    .reduce_scatter = decorated_reduce_scatter,
    .send = decorated_send,
    .recv = decorated_recv,
    .meet = decorated_meet,
    .watch = decorated_watch,
    .stop = decorated_stop,
    .abort = decorated_abort,
    .cause = decorated_cause,
    .revive = decorated_revive,
    .close = decorated_close,
};

static enum ox_status decorate(struct ox_comm *inner, const struct decorated *with, struct ox_comm **out) {
    struct decorated *const self = calloc(1, sizeof *self);
    *out = NULL;
    if (self == NULL) {
        return ox_fail(OX_E_NOMEM, "communication: no memory for a decorator");
    }
    *self = *with;
    ox_comm_init_over(&self->base, &decorated_ops, inner);
    *out = &self->base;
    return OX_OK;
}

enum ox_status ox_comm_chaos_open(struct ox_comm *inner, uint64_t seed, uint64_t ns_max, struct ox_comm **out) {
    return decorate(inner, &(struct decorated){.seed = seed, .ns_max = ns_max}, out);
}

enum ox_status ox_comm_fault_open(struct ox_comm *inner, const struct ox_comm_fault *fault, struct ox_comm **out) {
    return decorate(inner, &(struct decorated){.fault = *fault}, out);
}
