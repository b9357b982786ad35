/* The optimizer's stream: slots, the reader's and the writer's thread, and what they pass on to each other. Chunks are
 * numbered from 0 in the order in which their reads start; one such number says how far each thread has come. */
#include "engine/step/stream/optim_stream.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/lane.h"
#include "nvme/transfers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct slot {
    struct ox_stream_chunk chunk;
    uint64_t unit_seq;
    bool used;
};

/* A unit that is ordered. The order ends when the reads of all its chunks have started. */
struct order {
    struct ox_unit_run run;
    uint32_t asked; /* chunks whose reads have started */
};

enum { ORDERS_MAX = 2 };
/* While transfers are in flight a thread looks for other work this often, so that no chunk waits for the end of another
 * one's transfer. */
static const uint64_t LOOK_NS = 300000;

/* The reader or the writer. While its thread works, it alone uses the transfers, one group per slot. */
struct side {
    struct ox_transfers transfers;
    pthread_t thread;
    bool has_thread, works;
    pthread_cond_t wake;    /* there is something to do */
    uint64_t busy_since_ns; /* since when transfers have been in flight without a gap; kept for the observer */
    uint64_t turns;         /* how often it has paused, for chaos */
};

/* How far the units have come: each number counts units, and is at most the one before it. */
struct units {
    struct order orders[ORDERS_MAX]; /* the order of unit number n is at n % ORDERS_MAX */
    uint64_t ordered, asking, begun; /* asking: the unit whose reads are being started */
};

/* How far the chunks have come: each number is at most the one before it, and asked - left at most slot_count. */
struct chunks {
    uint64_t asked, arrived, taken, put, left;
};

struct slots {
    unsigned char *base;
    uint64_t bytes; /* bytes of one slot */
    uint32_t count;
    struct slot all[OX_STREAM_SLOTS_MAX];
    uint8_t of[OX_STREAM_SLOTS_MAX]; /* the slot of chunk n, until it has left, is at n % OX_STREAM_SLOTS_MAX */
};

/* Time without a free slot. */
struct starvation {
    uint64_t since_ns;                     /* when it began; 0: a slot is free, or none is needed */
    uint64_t blocked_since_ns, blocked_ns; /* the part of that time in which no read was in flight */
};

/* The lock guards everything except the transfers of reader and writer, and the content of slots, which belongs to the
 * thread that the counters of `chunks` say. */
struct ox_stream {
    struct ox_stream_config config;
    pthread_mutex_t lock;
    pthread_cond_t progress; /* wakes the lane, and a thread that drains */
    struct side reader, writer;
    struct slots slots;
    struct units units;
    struct chunks chunks;
    struct starvation starvation;
    bool draining, closing;
    struct ox_first_failure first;
    struct ox_stream_stats stats;
    struct ox_stream_waits waits; /* written by the lane alone */
    ox_stream_observer *observer;
    void *observer_context;
};

static uint32_t slot_idx_at(const struct ox_stream *stream, uint64_t chunk_seq) {
    return stream->slots.of[chunk_seq % OX_STREAM_SLOTS_MAX];
}

static struct slot *slot_at(struct ox_stream *stream, uint64_t chunk_seq) {
    return &stream->slots.all[slot_idx_at(stream, chunk_seq)];
}

/* Keeps a failure that this thread has just recorded, and wakes all that wait. The caller holds the lock. */
static void note(struct ox_stream *stream, enum ox_status status) {
    ox_first_failure_note(&stream->first, status);
    if (status != OX_OK) {
        pthread_cond_broadcast(&stream->progress);
        pthread_cond_signal(&stream->reader.wake);
        pthread_cond_signal(&stream->writer.wake);
    }
}

/* With chaos on, releases the lock and pauses for a moment. */
static void chaos(struct ox_stream *stream, struct side *side) {
    if (stream->config.chaos_seed != 0) {
        const char *const label = side == &stream->reader ? "adam.read" : "adam.write";
        const uint64_t turn = side->turns++;
        pthread_mutex_unlock(&stream->lock);
        ox_chaos_delay(stream->config.chaos_seed, label, turn, stream->config.chaos_ns_max);
        pthread_mutex_lock(&stream->lock);
    }
}

/* ---- transfers: on the side's own thread ------------------------------------------------------------- */

/* Submits operations of a slot. Releases the lock meanwhile. */
static enum ox_status submit(struct ox_stream *stream, struct side *side, uint32_t slot_idx,
                             const struct ox_store_op *ops, uint32_t count) {
    OX_ASSERT(count <= OX_STREAM_OPS_MAX);
    const bool idle = ox_store_in_flight(side->transfers.port) == 0;
    pthread_mutex_unlock(&stream->lock);
    const enum ox_status status = ox_transfers_submit(&side->transfers, slot_idx, ops, count);
    pthread_mutex_lock(&stream->lock);
    if (idle && stream->observer != NULL) {
        side->busy_since_ns = ox_clock_ns();
    }
    return status;
}

/* Takes one operation that has ended, and shows the observer a chunk whose operations have all ended. Returns false if
 * none ended within LOOK_NS. Releases the lock meanwhile. */
static bool take(struct ox_stream *stream, struct side *side, uint32_t *slot_idx) {
    pthread_mutex_unlock(&stream->lock);
    const bool there = ox_transfers_take(&side->transfers, LOOK_NS, slot_idx);
    const enum ox_status status = ox_transfers_status(&side->transfers);
    pthread_mutex_lock(&stream->lock);
    if (there && stream->observer != NULL && side->transfers.in_flight[*slot_idx] == 0) {
        const struct ox_stream_transfer transfer = {
            .chunk = &stream->slots.all[*slot_idx].chunk, .write = side == &stream->writer,
            .busy_since_ns = side->busy_since_ns, .end_ns = ox_clock_ns()};
        stream->observer(stream->observer_context, &transfer);
    }
    note(stream, status);
    return there;
}

/* Waits until the side is woken; returns false when the stream closes. */
static bool rest(struct ox_stream *stream, struct side *side) {
    side->works = false;
    pthread_cond_broadcast(&stream->progress);
    if (!stream->closing) {
        pthread_cond_wait(&side->wake, &stream->lock);
        return true;
    }
    return false;
}

/* ---- the reader: each function is called with the lock, and may let go of it meanwhile -------------- */

static bool free_slot(const struct ox_stream *stream, uint32_t *slot_idx) {
    for (uint32_t i = 0; i < stream->slots.count; i++) {
        if (!stream->slots.all[i].used) {
            *slot_idx = i;
            return true;
        }
    }
    return false;
}

/* Measures the time in which no read can start because all slots hold chunks that are being written. */
static void note_blocked(struct starvation *s, bool blocked) {
    if (blocked && s->blocked_since_ns == 0) {
        s->blocked_since_ns = ox_clock_ns();
    } else if (!blocked && s->blocked_since_ns != 0) {
        s->blocked_ns += ox_clock_ns() - s->blocked_since_ns;
        s->blocked_since_ns = 0;
    }
}

static uint64_t blocked_until(const struct starvation *s, uint64_t now_ns) {
    return s->blocked_ns + (s->blocked_since_ns != 0 ? now_ns - s->blocked_since_ns : 0);
}

static bool may_ask(struct ox_stream *stream, uint32_t *slot_idx) {
    struct starvation *const s = &stream->starvation;
    if (stream->units.asking == stream->units.ordered || stream->draining || stream->first.status != OX_OK) {
        return false;
    }
    const bool found = free_slot(stream, slot_idx);
    /* Only writes are to blame where nothing is being read and the lane has had all that was. */
    note_blocked(s, !found && ox_store_in_flight(stream->reader.transfers.port) == 0 &&
                        stream->chunks.arrived == stream->chunks.asked);
    if (!found && s->since_ns == 0) {
        s->since_ns = ox_clock_ns();
    } else if (found && s->since_ns != 0) {
        stream->stats.slot_wait_ns += ox_clock_ns() - s->since_ns;
        s->since_ns = 0;
    }
    return found;
}

static void ask(struct ox_stream *stream, uint32_t slot_idx) {
    struct units *const units = &stream->units;
    struct slot *const slot = &stream->slots.all[slot_idx];
    struct order *const order = &units->orders[units->asking % ORDERS_MAX];
    *slot = (struct slot){
        .chunk = {.run = order->run,
                  .chunk_idx = order->asked,
                  .slot = stream->slots.base + slot_idx * stream->slots.bytes},
        .unit_seq = units->asking,
        .used = true,
    };
    order->asked++;
    units->asking += order->asked == order->run.chunk_count;
    stream->slots.of[stream->chunks.asked % OX_STREAM_SLOTS_MAX] = (uint8_t)slot_idx;

    /* The slot is taken, so the lock can go while the owner says what to read; the chunk counts as asked for only when
     * its reads are in flight, or it would arrive without them. */
    struct ox_store_op ops[OX_STREAM_OPS_MAX];
    pthread_mutex_unlock(&stream->lock);
    const uint32_t count = stream->config.calls->reads(stream->config.owner, &slot->chunk, ops);
    pthread_mutex_lock(&stream->lock);
    const enum ox_status status = submit(stream, &stream->reader, slot_idx, ops, count);
    stream->chunks.asked++;
    note(stream, status);
}

static bool may_arrive(struct ox_stream *stream) {
    if (stream->chunks.arrived == stream->chunks.asked || stream->draining || stream->first.status != OX_OK) {
        return false;
    }
    const uint32_t slot_idx = slot_idx_at(stream, stream->chunks.arrived);
    /* A chunk of a unit that was ordered ahead waits until its unit begins: its planes in memory may still change. */
    return stream->reader.transfers.in_flight[slot_idx] == 0 &&
           stream->slots.all[slot_idx].unit_seq < stream->units.begun;
}

static void arrive(struct ox_stream *stream) {
    const struct ox_stream_chunk *const chunk = &slot_at(stream, stream->chunks.arrived)->chunk;
    pthread_mutex_unlock(&stream->lock);
    stream->config.calls->arrived(stream->config.owner, chunk);
    pthread_mutex_lock(&stream->lock);
    stream->chunks.arrived++;
    pthread_cond_broadcast(&stream->progress);
}

/* The reader's thread. Work that it has found stays to be done while the lock is released, because no other thread
 * starts reads or passes chunks on. */
static void *reader_main(void *context) {
    struct ox_stream *const stream = context;
    struct side *const reader = &stream->reader;
    uint32_t slot_idx = 0;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        const bool arrives = may_arrive(stream), asks = may_ask(stream, &slot_idx);
        /* Nothing to do and nothing on its way: only then may the thread sleep, for completions wake nobody. */
        if (!arrives && !asks && ox_store_in_flight(reader->transfers.port) == 0) {
            if (!rest(stream, reader)) {
                break;
            }
            continue;
        }
        reader->works = true;
        chaos(stream, reader);
        /* Reads start before chunks are passed on: `arrived` may be slow, and the drive should not wait for it. */
        if (asks) {
            ask(stream, slot_idx);
        } else if (arrives) {
            arrive(stream);
        } else {
            (void)take(stream, reader, &slot_idx);
        }
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

/* ---- the writer, likewise -------------------------------------------------------------------------- */

static void free_if_written(struct ox_stream *stream, uint32_t slot_idx) {
    if (stream->writer.transfers.in_flight[slot_idx] == 0) {
        stream->slots.all[slot_idx].used = false;
        pthread_cond_signal(&stream->reader.wake);
    }
}

static void write_back(struct ox_stream *stream) {
    const uint32_t slot_idx = slot_idx_at(stream, stream->chunks.left);
    const struct ox_stream_chunk *const chunk = &stream->slots.all[slot_idx].chunk;
    /* After a failure chunks still pass, so that the lane which put them is not left waiting; nothing is copied or
     * written. */
    const bool failed = stream->first.status != OX_OK;
    enum ox_status status = OX_OK;
    pthread_mutex_unlock(&stream->lock);
    if (!failed) {
        stream->config.calls->leaves(stream->config.owner, chunk);
    }
    pthread_mutex_lock(&stream->lock);
    /* Memory may change from here on: the copies are made, and the lane does not wait for the writes. */
    stream->chunks.left++;
    pthread_cond_broadcast(&stream->progress);
    if (!failed) {
        struct ox_store_op ops[OX_STREAM_OPS_MAX];
        pthread_mutex_unlock(&stream->lock);
        const uint32_t count = stream->config.calls->writes(stream->config.owner, chunk, ops);
        pthread_mutex_lock(&stream->lock);
        status = submit(stream, &stream->writer, slot_idx, ops, count);
    }
    /* The last of the two frees the slot: its writes, or this turn where there was nothing to write. */
    free_if_written(stream, slot_idx);
    note(stream, status);
}

static void *writer_main(void *context) {
    struct ox_stream *const stream = context;
    struct side *const writer = &stream->writer;
    uint32_t slot_idx = 0;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        const bool leaves = stream->chunks.left < stream->chunks.put;
        if (!leaves && ox_store_in_flight(writer->transfers.port) == 0) {
            if (!rest(stream, writer)) {
                break;
            }
            continue;
        }
        writer->works = true;
        chaos(stream, writer);
        if (leaves) {
            write_back(stream);
        } else if (take(stream, writer, &slot_idx)) {
            free_if_written(stream, slot_idx);
        }
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

/* ---- the lane ---------------------------------------------------------------------------------------- */

static void order(struct ox_stream *stream, const struct ox_unit_run *run) {
    OX_ASSERT(run->chunk_count > 0 && stream->slots.count > 0 &&
              stream->units.ordered - stream->units.asking < ORDERS_MAX);
    stream->units.orders[stream->units.ordered % ORDERS_MAX] = (struct order){.run = *run};
    stream->units.ordered++;
}

void ox_stream_begin(struct ox_stream *stream, const struct ox_unit_run *run) {
    pthread_mutex_lock(&stream->lock);
    if (stream->units.begun == stream->units.ordered) {
        order(stream, run);
    }
    OX_ASSERT(stream->units.orders[stream->units.begun % ORDERS_MAX].run.unit_idx == run->unit_idx);
    stream->units.begun++;
    pthread_mutex_unlock(&stream->lock);
    pthread_cond_signal(&stream->reader.wake);
}

void ox_stream_order_ahead(struct ox_stream *stream, const struct ox_unit_run *run) {
    pthread_mutex_lock(&stream->lock);
    OX_ASSERT(stream->units.begun > 0 && stream->units.begun == stream->units.ordered);
    order(stream, run);
    pthread_mutex_unlock(&stream->lock);
    pthread_cond_signal(&stream->reader.wake);
}

enum ox_status ox_stream_take(struct ox_stream *stream, struct ox_stream_chunk *out) {
    pthread_mutex_lock(&stream->lock);
    OX_ASSERT(stream->chunks.taken == stream->chunks.put);
    if (stream->chunks.arrived == stream->chunks.taken && stream->first.status == OX_OK) {
        const uint64_t begin_ns = ox_clock_ns(), blocked_ns = blocked_until(&stream->starvation, begin_ns);
        while (stream->chunks.arrived == stream->chunks.taken && stream->first.status == OX_OK) {
            pthread_cond_wait(&stream->progress, &stream->lock);
        }
        const uint64_t end_ns = ox_clock_ns(), waited_ns = end_ns - begin_ns;
        const uint64_t for_writes_ns = ox_min_u64(blocked_until(&stream->starvation, end_ns) - blocked_ns, waited_ns);
        stream->stats.read_wait_ns += waited_ns;
        stream->waits.write_ns += for_writes_ns;
        stream->waits.read_ns += waited_ns - for_writes_ns;
    }
    const enum ox_status status = ox_first_failure_result(&stream->first);
    if (status == OX_OK) {
        *out = slot_at(stream, stream->chunks.taken)->chunk;
        stream->chunks.taken++;
        stream->stats.chunk_count++;
    }
    pthread_mutex_unlock(&stream->lock);
    return status;
}

void ox_stream_put(struct ox_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    OX_ASSERT(stream->chunks.put + 1 == stream->chunks.taken);
    stream->chunks.put++;
    pthread_mutex_unlock(&stream->lock);
    pthread_cond_signal(&stream->writer.wake);
}

enum ox_status ox_stream_wait_copies(struct ox_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    const uint64_t begin_ns = ox_clock_ns();
    while (stream->chunks.left < stream->chunks.put) {
        pthread_cond_wait(&stream->progress, &stream->lock);
    }
    const uint64_t waited_ns = ox_clock_ns() - begin_ns;
    stream->stats.copy_wait_ns += waited_ns;
    stream->waits.copy_ns += waited_ns;
    const enum ox_status status = ox_first_failure_result(&stream->first);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

static bool is_empty(const struct ox_stream *stream) {
    return !stream->reader.works && !stream->writer.works && stream->chunks.left == stream->chunks.put;
}

enum ox_status ox_stream_drain(struct ox_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    OX_ASSERT(stream->chunks.taken == stream->chunks.put);
    stream->draining = true;
    pthread_cond_signal(&stream->reader.wake);
    pthread_cond_signal(&stream->writer.wake);
    while (!is_empty(stream)) {
        pthread_cond_wait(&stream->progress, &stream->lock);
    }
    const enum ox_status status = ox_first_failure_result(&stream->first);
    memset(stream->slots.all, 0, sizeof stream->slots.all);
    stream->units = (struct units){.ordered = 0};
    stream->chunks = (struct chunks){.asked = 0};
    stream->first = (struct ox_first_failure){0};
    stream->reader.transfers.first = stream->writer.transfers.first = (struct ox_first_failure){0};
    stream->starvation.since_ns = stream->starvation.blocked_since_ns = 0;
    stream->draining = false;
    pthread_mutex_unlock(&stream->lock);
    return status;
}

/* ---- opening and closing --------------------------------------------------------------------------- */

void ox_stream_register(struct ox_stream *stream, const struct ox_io_region *region) {
    ox_store_port_register(stream->reader.transfers.port, region, 1);
    ox_store_port_register(stream->writer.transfers.port, region, 1);
}

void ox_stream_set_slots(struct ox_stream *stream, unsigned char *base, uint64_t slot_bytes, uint32_t slot_count) {
    OX_ASSERT(base != NULL && slot_count > 0 && slot_count <= OX_STREAM_SLOTS_MAX);
    pthread_mutex_lock(&stream->lock);
    OX_ASSERT(stream->units.ordered == 0 && is_empty(stream));
    stream->slots.base = base;
    stream->slots.bytes = slot_bytes;
    stream->slots.count = slot_count;
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
    out->reader_busy_ns = processor_ns(stream->reader.thread);
    out->writer_busy_ns = processor_ns(stream->writer.thread);
}

static enum ox_status side_open(struct ox_stream *stream, const char *what, void *(*main)(void *), struct side *side) {
    enum ox_status status = ox_store_port_open(stream->config.store, &side->transfers.port);
    if (status != OX_OK) {
        return status;
    }
    const int err = pthread_create(&side->thread, NULL, main, stream);
    side->has_thread = err == 0;
    return err == 0 ? OX_OK : ox_fail_errno(OX_E_NOMEM, err, "optimizer: cannot start the thread of its %s", what);
}

static void side_close(struct side *side) {
    if (side->has_thread) {
        pthread_join(side->thread, NULL);
    }
    ox_store_port_close(&side->transfers.port);
    pthread_cond_destroy(&side->wake);
}

enum ox_status ox_stream_open(const struct ox_stream_config *config, struct ox_stream **out) {
    *out = NULL;
    struct ox_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return ox_fail(OX_E_NOMEM, "optimizer: no memory for its stream");
    }
    stream->config = *config;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->progress, NULL);
    pthread_cond_init(&stream->reader.wake, NULL);
    pthread_cond_init(&stream->writer.wake, NULL);
    enum ox_status status = side_open(stream, "reads", reader_main, &stream->reader);
    OX_THEN(status, side_open(stream, "writes", writer_main, &stream->writer));
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
    pthread_cond_signal(&stream->reader.wake);
    pthread_cond_signal(&stream->writer.wake);
    pthread_mutex_unlock(&stream->lock);
    side_close(&stream->writer);
    side_close(&stream->reader);
    pthread_cond_destroy(&stream->progress);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
    *stream_ptr = NULL;
}
