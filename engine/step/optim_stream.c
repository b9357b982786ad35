/* The optimizer's stream: slots, the reader's and the writer's thread, and what they pass on to each other. Chunks are
 * numbered from 0 in the order in which they are asked for; how far each thread has come is one such number. */
#include "engine/step/optim_stream.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/lane.h"

#include <pthread.h>
#include <stdlib.h>

struct slot {
    struct ox_stream_chunk chunk;
    uint64_t unit_seq;
    uint32_t reading, writing; /* operations in flight */
    bool used;
};

/* A unit that is ordered; ended when all its chunks were asked for. */
struct order {
    struct ox_unit_run run;
    uint32_t asked; /* chunks */
};

enum { ORDERS_MAX = 2 };
/* While transfers are in flight a thread looks this often for other work: a chunk should not wait for the end of
 * another one's transfer. */
static const uint64_t LOOK_NS = 300000;

/* The lock guards all but the ports, each its thread's own, and what a slot holds, which belongs to the thread that the
 * counters say. */
struct ox_stream {
    struct ox_stream_config config;
    struct ox_store_port *read_port, *write_port;
    pthread_t reader, writer;
    bool has_reader, has_writer;
    pthread_mutex_t lock;
    pthread_cond_t to_read, to_write; /* there is something to do for the thread */
    pthread_cond_t progress;          /* for the lane, and for who drains        */

    unsigned char *base;
    uint64_t slot_bytes;
    uint32_t slot_count;
    struct slot slots[OX_STREAM_SLOTS_MAX];
    uint8_t slot_of[OX_STREAM_SLOTS_MAX]; /* of chunk number n that has not left: at n % OX_STREAM_SLOTS_MAX */

    struct order orders[ORDERS_MAX]; /* of unit number n: at n % ORDERS_MAX */
    uint64_t ordered, asking, begun; /* units: ordered; whose chunks are being asked for; begun */
    uint64_t asked, arrived, taken, put, left; /* chunks; each is at most the one before it, and asked - left at most
                                                  slot_count */
    uint32_t reads, writes; /* operations in flight */
    bool reader_works, writer_works, draining, closing;
    struct ox_first_failure first;
    struct ox_stream_stats stats;
    uint64_t starved_since_ns; /* 0: not waiting for a slot */
    uint64_t blocked_since_ns, blocked_ns; /* the same, while nothing was being read either */
    struct ox_stream_waits waits;          /* the lane's own */
    uint64_t busy_since_ns[2]; /* of reads and writes: since when some have been in flight */
    ox_stream_observer *observer;
    void *observer_context;
    uint64_t read_turns, write_turns; /* for chaos */
};

static struct slot *slot_at(struct ox_stream *stream, uint64_t chunk_seq) {
    return &stream->slots[stream->slot_of[chunk_seq % OX_STREAM_SLOTS_MAX]];
}

/* Keeps a failure that this thread has just recorded; whoever waits learns of it. The caller holds the lock. */
static void note(struct ox_stream *stream, enum ox_status status) {
    ox_first_failure_note(&stream->first, status);
    if (status != OX_OK) {
        pthread_cond_broadcast(&stream->progress);
        pthread_cond_signal(&stream->to_read);
        pthread_cond_signal(&stream->to_write);
    }
}

/* Lets go of the lock for a moment, when chaos is on. */
static void chaos(struct ox_stream *stream, const char *label, uint64_t *turns) {
    if (stream->config.chaos_seed != 0) {
        const uint64_t turn = (*turns)++;
        pthread_mutex_unlock(&stream->lock);
        ox_chaos_delay(stream->config.chaos_seed, label, turn, stream->config.chaos_ns_max);
        pthread_mutex_lock(&stream->lock);
    }
}

/* Submits operations of a slot, on the port's own thread and without the lock; *count becomes how many were taken. */
static enum ox_status submit(struct ox_store_port *port, uint32_t slot_idx, struct ox_store_op *ops, uint32_t *count) {
    const uint32_t asked = *count;
    enum ox_status status = OX_OK;
    OX_ASSERT(asked <= OX_STREAM_OPS_MAX);
    for (*count = 0; *count < asked && status == OX_OK; *count += status == OX_OK) {
        ops[*count].tag = slot_idx;
        status = ox_store_submit(port, &ops[*count]);
    }
    return status;
}

/* ---- who looks on ------------------------------------------------------------------------------------ */

enum { READS, WRITES };

/* `count` operations join those in flight. */
static void begin_transfers(struct ox_stream *stream, int way, uint32_t in_flight, uint32_t count) {
    if (stream->observer != NULL && in_flight == 0 && count > 0) {
        stream->busy_since_ns[way] = ox_clock_ns();
    }
}

/* One of a chunk's has ended; `left` are in flight. */
static void tell_transfer(struct ox_stream *stream, int way, const struct slot *slot, uint32_t left) {
    if (stream->observer != NULL && left == 0) {
        const struct ox_stream_transfer transfer = {.chunk = &slot->chunk, .write = way == WRITES,
                                                    .busy_since_ns = stream->busy_since_ns[way],
                                                    .end_ns = ox_clock_ns()};
        stream->observer(stream->observer_context, &transfer);
    }
}

/* ---- the reader: each function is called with the lock, and may let go of it meanwhile -------------- */

static bool free_slot(const struct ox_stream *stream, uint32_t *slot_idx) {
    for (uint32_t i = 0; i < stream->slot_count; i++) {
        if (!stream->slots[i].used) {
            *slot_idx = i;
            return true;
        }
    }
    return false;
}

/* While all slots hold chunks that are being written, nothing can be asked for. */
static void note_blocked(struct ox_stream *stream, bool blocked) {
    if (blocked && stream->blocked_since_ns == 0) {
        stream->blocked_since_ns = ox_clock_ns();
    } else if (!blocked && stream->blocked_since_ns != 0) {
        stream->blocked_ns += ox_clock_ns() - stream->blocked_since_ns;
        stream->blocked_since_ns = 0;
    }
}

static uint64_t blocked_until(const struct ox_stream *stream, uint64_t now_ns) {
    return stream->blocked_ns + (stream->blocked_since_ns != 0 ? now_ns - stream->blocked_since_ns : 0);
}

static bool may_ask(struct ox_stream *stream, uint32_t *slot_idx) {
    if (stream->asking == stream->ordered || stream->draining || stream->first.status != OX_OK) {
        return false;
    }
    const bool found = free_slot(stream, slot_idx);
    note_blocked(stream, !found && stream->reads == 0 && stream->arrived == stream->asked);
    if (!found && stream->starved_since_ns == 0) {
        stream->starved_since_ns = ox_clock_ns();
    } else if (found && stream->starved_since_ns != 0) {
        stream->stats.slot_wait_ns += ox_clock_ns() - stream->starved_since_ns;
        stream->starved_since_ns = 0;
    }
    return found;
}

static void ask(struct ox_stream *stream, uint32_t slot_idx) {
    struct slot *const slot = &stream->slots[slot_idx];
    struct order *const order = &stream->orders[stream->asking % ORDERS_MAX];
    *slot = (struct slot){
        .chunk = {.run = order->run,
                  .chunk_idx = order->asked,
                  .slot = stream->base + slot_idx * stream->slot_bytes},
        .unit_seq = stream->asking,
        .used = true,
    };
    order->asked++;
    stream->asking += order->asked == order->run.chunk_count;
    stream->slot_of[stream->asked % OX_STREAM_SLOTS_MAX] = (uint8_t)slot_idx;
    pthread_mutex_unlock(&stream->lock);

    struct ox_store_op ops[OX_STREAM_OPS_MAX];
    uint32_t count = stream->config.calls->reads(stream->config.owner, &slot->chunk, ops);
    const enum ox_status status = submit(stream->read_port, slot_idx, ops, &count);

    pthread_mutex_lock(&stream->lock);
    begin_transfers(stream, READS, stream->reads, count);
    slot->reading = count;
    stream->reads += count;
    stream->asked++;
    note(stream, status);
}

static bool may_arrive(struct ox_stream *stream) {
    if (stream->arrived == stream->asked || stream->draining || stream->first.status != OX_OK) {
        return false;
    }
    const struct slot *const slot = slot_at(stream, stream->arrived);
    return slot->reading == 0 && slot->unit_seq < stream->begun;
}

static void arrive(struct ox_stream *stream) {
    const struct ox_stream_chunk *const chunk = &slot_at(stream, stream->arrived)->chunk;
    pthread_mutex_unlock(&stream->lock);
    stream->config.calls->arrived(stream->config.owner, chunk);
    pthread_mutex_lock(&stream->lock);
    stream->arrived++;
    pthread_cond_broadcast(&stream->progress);
}

static void reap_read(struct ox_stream *stream) {
    uint64_t slot_idx = 0;
    pthread_mutex_unlock(&stream->lock);
    const bool there = ox_store_wait(stream->read_port, LOOK_NS);
    const enum ox_status status = there ? ox_store_reap(stream->read_port, &slot_idx) : OX_OK;
    pthread_mutex_lock(&stream->lock);
    if (!there) {
        return;
    }
    struct slot *const slot = &stream->slots[slot_idx];
    OX_ASSERT(slot->reading > 0);
    slot->reading--;
    stream->reads--;
    tell_transfer(stream, READS, slot, slot->reading);
    note(stream, status);
}

/* What was found to do stays to be done while the lock is let go: no one else asks, or passes on. */
static void *reader_main(void *context) {
    struct ox_stream *const stream = context;
    uint32_t slot_idx = 0;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        const bool arrives = may_arrive(stream), asks = may_ask(stream, &slot_idx);
        if (!arrives && !asks && stream->reads == 0) {
            if (stream->closing) {
                break;
            }
            stream->reader_works = false;
            pthread_cond_broadcast(&stream->progress);
            pthread_cond_wait(&stream->to_read, &stream->lock);
            continue;
        }
        stream->reader_works = true;
        chaos(stream, "adam.read", &stream->read_turns);
        /* Reads before what is passed on: who is shown it may be slow, the drive shall not wait for him. */
        if (asks) {
            ask(stream, slot_idx);
        } else if (arrives) {
            arrive(stream);
        } else {
            reap_read(stream);
        }
    }
    stream->reader_works = false;
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

/* ---- the writer, likewise -------------------------------------------------------------------------- */

static void free_if_written(struct ox_stream *stream, struct slot *slot) {
    if (slot->writing == 0) {
        slot->used = false;
        pthread_cond_signal(&stream->to_read);
    }
}

static void leave(struct ox_stream *stream) {
    const uint32_t slot_idx = stream->slot_of[stream->left % OX_STREAM_SLOTS_MAX];
    struct slot *const slot = &stream->slots[slot_idx];
    const bool failed = stream->first.status != OX_OK;
    enum ox_status status = OX_OK;
    uint32_t count = 0;
    pthread_mutex_unlock(&stream->lock);
    if (!failed) {
        stream->config.calls->leaves(stream->config.owner, &slot->chunk);
    }
    pthread_mutex_lock(&stream->lock);
    stream->left++;
    pthread_cond_broadcast(&stream->progress);
    if (!failed) {
        struct ox_store_op ops[OX_STREAM_OPS_MAX];
        pthread_mutex_unlock(&stream->lock);
        count = stream->config.calls->writes(stream->config.owner, &slot->chunk, ops);
        status = submit(stream->write_port, slot_idx, ops, &count);
        pthread_mutex_lock(&stream->lock);
    }
    begin_transfers(stream, WRITES, stream->writes, count);
    slot->writing = count;
    stream->writes += count;
    free_if_written(stream, slot);
    note(stream, status);
}

static void reap_write(struct ox_stream *stream) {
    uint64_t slot_idx = 0;
    pthread_mutex_unlock(&stream->lock);
    const bool there = ox_store_wait(stream->write_port, LOOK_NS);
    const enum ox_status status = there ? ox_store_reap(stream->write_port, &slot_idx) : OX_OK;
    pthread_mutex_lock(&stream->lock);
    if (!there) {
        return;
    }
    struct slot *const slot = &stream->slots[slot_idx];
    OX_ASSERT(slot->writing > 0);
    slot->writing--;
    stream->writes--;
    tell_transfer(stream, WRITES, slot, slot->writing);
    free_if_written(stream, slot);
    note(stream, status);
}

static void *writer_main(void *context) {
    struct ox_stream *const stream = context;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        if (stream->left == stream->put && stream->writes == 0) {
            if (stream->closing) {
                break;
            }
            stream->writer_works = false;
            pthread_cond_broadcast(&stream->progress);
            pthread_cond_wait(&stream->to_write, &stream->lock);
            continue;
        }
        stream->writer_works = true;
        chaos(stream, "adam.write", &stream->write_turns);
        if (stream->left < stream->put) {
            leave(stream);
        } else {
            reap_write(stream);
        }
    }
    stream->writer_works = false;
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

/* ---- the lane ---------------------------------------------------------------------------------------- */

static void order(struct ox_stream *stream, const struct ox_unit_run *run) {
    OX_ASSERT(run->chunk_count > 0 && stream->slot_count > 0 && stream->ordered - stream->asking < ORDERS_MAX);
    stream->orders[stream->ordered % ORDERS_MAX] = (struct order){.run = *run};
    stream->ordered++;
}

void ox_stream_begin(struct ox_stream *stream, const struct ox_unit_run *run) {
    pthread_mutex_lock(&stream->lock);
    if (stream->begun == stream->ordered) {
        order(stream, run);
    }
    OX_ASSERT(stream->orders[stream->begun % ORDERS_MAX].run.unit_idx == run->unit_idx);
    stream->begun++;
    pthread_cond_signal(&stream->to_read);
    pthread_mutex_unlock(&stream->lock);
}

void ox_stream_order_ahead(struct ox_stream *stream, const struct ox_unit_run *run) {
    pthread_mutex_lock(&stream->lock);
    OX_ASSERT(stream->begun > 0 && stream->begun == stream->ordered);
    order(stream, run);
    pthread_cond_signal(&stream->to_read);
    pthread_mutex_unlock(&stream->lock);
}

enum ox_status ox_stream_take(struct ox_stream *stream, struct ox_stream_chunk *out) {
    pthread_mutex_lock(&stream->lock);
    OX_ASSERT(stream->taken == stream->put);
    if (stream->arrived == stream->taken && stream->first.status == OX_OK) {
        const uint64_t begin_ns = ox_clock_ns(), blocked_ns = blocked_until(stream, begin_ns);
        while (stream->arrived == stream->taken && stream->first.status == OX_OK) {
            pthread_cond_wait(&stream->progress, &stream->lock);
        }
        const uint64_t end_ns = ox_clock_ns(), waited_ns = end_ns - begin_ns;
        const uint64_t for_writes_ns = ox_min_u64(blocked_until(stream, end_ns) - blocked_ns, waited_ns);
        stream->stats.read_wait_ns += waited_ns;
        stream->waits.write_ns += for_writes_ns;
        stream->waits.read_ns += waited_ns - for_writes_ns;
    }
    const enum ox_status status = ox_first_failure_result(&stream->first);
    if (status == OX_OK) {
        *out = slot_at(stream, stream->taken)->chunk;
        stream->taken++;
        stream->stats.chunk_count++;
    }
    pthread_mutex_unlock(&stream->lock);
    return status;
}

void ox_stream_put(struct ox_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    OX_ASSERT(stream->put + 1 == stream->taken);
    stream->put++;
    pthread_cond_signal(&stream->to_write);
    pthread_mutex_unlock(&stream->lock);
}

enum ox_status ox_stream_settle(struct ox_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    const uint64_t begin_ns = ox_clock_ns();
    while (stream->left < stream->put) {
        pthread_cond_wait(&stream->progress, &stream->lock);
    }
    const uint64_t waited_ns = ox_clock_ns() - begin_ns;
    stream->stats.settle_wait_ns += waited_ns;
    stream->waits.settle_ns += waited_ns;
    const enum ox_status status = ox_first_failure_result(&stream->first);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

static bool is_empty(const struct ox_stream *stream) {
    return !stream->reader_works && !stream->writer_works && stream->reads == 0 && stream->writes == 0 &&
           stream->left == stream->put;
}

enum ox_status ox_stream_drain(struct ox_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    OX_ASSERT(stream->taken == stream->put);
    stream->draining = true;
    pthread_cond_signal(&stream->to_read);
    pthread_cond_signal(&stream->to_write);
    while (!is_empty(stream)) {
        pthread_cond_wait(&stream->progress, &stream->lock);
    }
    const enum ox_status status = ox_first_failure_result(&stream->first);
    for (uint32_t i = 0; i < OX_STREAM_SLOTS_MAX; i++) {
        stream->slots[i] = (struct slot){0};
    }
    stream->ordered = stream->asking = stream->begun = 0;
    stream->asked = stream->arrived = stream->taken = stream->put = stream->left = 0;
    stream->first = (struct ox_first_failure){0};
    stream->starved_since_ns = stream->blocked_since_ns = 0;
    stream->draining = false;
    pthread_mutex_unlock(&stream->lock);
    return status;
}

/* ---- opening and closing --------------------------------------------------------------------------- */

void ox_stream_register(struct ox_stream *stream, const struct ox_io_region *region) {
    ox_store_port_register(stream->read_port, region, 1);
    ox_store_port_register(stream->write_port, region, 1);
}

void ox_stream_set_slots(struct ox_stream *stream, unsigned char *base, uint64_t slot_bytes, uint32_t slot_count) {
    OX_ASSERT(base != NULL && slot_count > 0 && slot_count <= OX_STREAM_SLOTS_MAX);
    pthread_mutex_lock(&stream->lock);
    OX_ASSERT(stream->ordered == 0 && is_empty(stream));
    stream->base = base;
    stream->slot_bytes = slot_bytes;
    stream->slot_count = slot_count;
    pthread_mutex_unlock(&stream->lock);
}

void ox_stream_waits(const struct ox_stream *stream, struct ox_stream_waits *out) {
    *out = stream->waits;
}

void ox_stream_observe(struct ox_stream *stream, ox_stream_observer *observer, void *context) {
    pthread_mutex_lock(&stream->lock);
    OX_ASSERT(is_empty(stream));
    stream->observer = observer;
    stream->observer_context = context;
    pthread_mutex_unlock(&stream->lock);
}

static uint64_t processor_ns(pthread_t thread) {
    clockid_t clock = 0;
    struct timespec now = {0};
    if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &now) != 0) {
        return 0;
    }
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void ox_stream_stats(struct ox_stream *stream, struct ox_stream_stats *out) {
    pthread_mutex_lock(&stream->lock);
    *out = stream->stats;
    pthread_mutex_unlock(&stream->lock);
    out->reader_busy_ns = processor_ns(stream->reader);
    out->writer_busy_ns = processor_ns(stream->writer);
}

static enum ox_status start(struct ox_stream *stream, const char *what, void *(*main)(void *), pthread_t *thread) {
    const int err = pthread_create(thread, NULL, main, stream);
    return err == 0 ? OX_OK : ox_fail_errno(OX_E_NOMEM, err, "optimizer: cannot start the thread of its %s", what);
}

static enum ox_status open_parts(struct ox_stream *stream) {
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->to_read, NULL);
    pthread_cond_init(&stream->to_write, NULL);
    pthread_cond_init(&stream->progress, NULL);
    enum ox_status status = ox_store_port_open(stream->config.store, &stream->read_port);
    if (status == OX_OK) {
        status = ox_store_port_open(stream->config.store, &stream->write_port);
    }
    if (status == OX_OK) {
        status = start(stream, "reads", reader_main, &stream->reader);
        stream->has_reader = status == OX_OK;
    }
    if (status == OX_OK) {
        status = start(stream, "writes", writer_main, &stream->writer);
        stream->has_writer = status == OX_OK;
    }
    return status;
}

enum ox_status ox_stream_open(const struct ox_stream_config *config, struct ox_stream **out) {
    *out = NULL;
    struct ox_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return ox_fail(OX_E_NOMEM, "optimizer: no memory for its stream");
    }
    stream->config = *config;
    const enum ox_status status = open_parts(stream);
    if (status != OX_OK) {
        ox_stream_close(&stream);
        return status;
    }
    *out = stream;
    return OX_OK;
}

void ox_stream_close(struct ox_stream **stream_ptr) {
    struct ox_stream *const stream = *stream_ptr;
    if (stream == NULL) {
        return;
    }
    pthread_mutex_lock(&stream->lock);
    stream->draining = stream->closing = true;
    pthread_cond_signal(&stream->to_read);
    pthread_cond_signal(&stream->to_write);
    pthread_mutex_unlock(&stream->lock);
    if (stream->has_reader) {
        pthread_join(stream->reader, NULL);
    }
    if (stream->has_writer) {
        pthread_join(stream->writer, NULL);
    }
    ox_store_port_close(&stream->write_port);
    ox_store_port_close(&stream->read_port);
    pthread_cond_destroy(&stream->progress);
    pthread_cond_destroy(&stream->to_write);
    pthread_cond_destroy(&stream->to_read);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
    *stream_ptr = NULL;
}
