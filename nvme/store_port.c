/* Ports: operations of any size on extents, cut into requests, hashed or verified. A port owns its operations in flight
 * and allocates nothing after it is opened. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/hash/hash.h"
#include "nvme/store_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REREADS_MAX = 3, NONE = UINT32_MAX };

/* The lists of operations to be sent to a drive. Reads go first, because compute waits for them, but at most
 * READS_IN_ROW_MAX requests in a row while a write waits. */
enum lane { LANE_READ, LANE_WRITE, LANE_COUNT };
enum { READS_IN_ROW_MAX = 16 };

/* The part that a checksum covers; it seeds the checksum besides the run. */
enum part { PART_HEAD, PART_REST, PART_SPOOL };

struct slot {
    struct ox_store_op op;
    uint32_t next; /* next slot on the same list */
    uint32_t drive_idx;
    uint64_t offset, bytes; /* in the drive file */
    uint64_t sent_bytes;
    uint32_t in_flight; /* requests */
    uint32_t rereads;
    uint64_t since_ns; /* when the drive last accepted or returned a request of it */
    bool live, corrupt;
    bool sending; /* on a list of operations to be sent */
    enum ox_status status;
    uint64_t step, attempt; /* step and attempt of the data */
    uint32_t generation;    /* reads of state */
    struct ox_extent_sum want;
    char text[sizeof((struct ox_io_done *)0)->text];
};

/* A FIFO of slot indices. */
struct list {
    uint32_t head, tail;
};

struct port_drive {
    struct list sending[LANE_COUNT];
    uint32_t request_count, reads_in_row;
    struct ox_stall stall;
};

struct ox_store_port {
    struct ox_store *store;
    struct ox_io_queue *queue;
    uint32_t depth, request_count, sending_count, op_count;
    bool broken; /* the queue returns no more requests */
    uint64_t check_ns; /* when to check for stalls next */
    struct ox_store_port *given_up_next;
    struct port_drive drives[OX_STORE_DRIVES_MAX];
    struct list free, ended;
    struct slot slots[OX_STORE_OPS_MAX];
};

static void list_push(struct ox_store_port *port, struct list *list, uint32_t slot_idx) {
    port->slots[slot_idx].next = NONE;
    if (list->head == NONE) {
        list->head = slot_idx;
    } else {
        port->slots[list->tail].next = slot_idx;
    }
    list->tail = slot_idx;
}

static uint32_t list_pop(struct ox_store_port *port, struct list *list) {
    const uint32_t slot_idx = list->head;
    OX_ASSERT(slot_idx != NONE);
    list->head = port->slots[slot_idx].next;
    return slot_idx;
}

static uint64_t hash_part(const struct ox_store *store, const struct slot *slot, enum part part,
                          const void *data, uint64_t bytes) {
    if (bytes == 0) {
        return 0;
    }
    /* What is fixed is the same in every step. */
    const bool fixed = part != PART_SPOOL && ox_extent_is_fixed(&store->layout.extents[slot->op.extent_idx]);
    const uint64_t words[6] = {
        store->run_id[0], store->run_id[1], slot->op.extent_idx, part, fixed ? 0 : slot->step,
        fixed ? 0 : slot->attempt,
    };
    return ox_hash64(data, bytes, ox_hash_seed(words, sizeof words / sizeof *words));
}

static struct ox_extent_sum hash_extent(const struct ox_store *store, const struct slot *slot) {
    const struct ox_extent_spec *const spec = &store->layout.extents[slot->op.extent_idx];
    const unsigned char *const data = slot->op.buffer;
    return (struct ox_extent_sum){
        .head = hash_part(store, slot, PART_HEAD, data, ox_extent_head_bytes(spec)),
        .rest = hash_part(store, slot, PART_REST, data + ox_extent_head_bytes(spec),
                          spec->bytes - ox_extent_head_bytes(spec)),
    };
}

static bool data_is_right(const struct ox_store *store, const struct slot *slot) {
    const void *const data = slot->op.buffer;
    if (slot->op.kind == OX_STORE_READ) {
        const struct ox_extent_sum have = hash_extent(store, slot);
        return have.head == slot->want.head && have.rest == slot->want.rest;
    }
    const enum part part = slot->op.kind == OX_STORE_READ_HEAD ? PART_HEAD : PART_SPOOL;
    return hash_part(store, slot, part, data, slot->bytes) == slot->want.head;
}

static bool is_spool(enum ox_store_op_kind kind) {
    return kind == OX_STORE_SPOOL_READ || kind == OX_STORE_SPOOL_WRITE;
}

static bool is_read(enum ox_store_op_kind kind) {
    return kind == OX_STORE_READ || kind == OX_STORE_READ_HEAD || kind == OX_STORE_SPOOL_READ;
}

static void sending_push(struct ox_store_port *port, uint32_t slot_idx) {
    struct slot *const slot = &port->slots[slot_idx];
    const enum lane lane = is_read(slot->op.kind) ? LANE_READ : LANE_WRITE;
    slot->sending = true;
    port->sending_count++;
    list_push(port, &port->drives[slot->drive_idx].sending[lane], slot_idx);
}

/* A fixed extent is of no generation: a transaction that begins to overwrite one leaves it alone. */
static void count_reader(struct ox_store *store, const struct slot *slot, int change) {
    if (!ox_extent_is_fixed(&store->layout.extents[slot->op.extent_idx])) {
        __atomic_fetch_add(&store->reads_in_flight[slot->generation], (unsigned)change, __ATOMIC_SEQ_CST);
    }
    __atomic_fetch_add(&store->extent_readers[slot->op.extent_idx], (unsigned)change, __ATOMIC_SEQ_CST);
}

/* Ends an operation that has no request in flight or to send: verifies a read, and repeats it when the checksum is
 * wrong. */
static void slot_end(struct ox_store_port *port, uint32_t slot_idx) {
    struct ox_store *const store = port->store;
    struct slot *const slot = &port->slots[slot_idx];
    const enum ox_store_op_kind kind = slot->op.kind;
    if (slot->status == OX_OK && is_read(kind) && !data_is_right(store, slot)) {
        if (slot->rereads < REREADS_MAX) {
            slot->rereads++;
            slot->sent_bytes = 0;
            __atomic_fetch_add(&store->retry_count, 1, __ATOMIC_RELAXED);
            sending_push(port, slot_idx);
            return;
        }
        slot->status = OX_E_CORRUPT;
        slot->corrupt = true;
    }
    if (kind == OX_STORE_WRITE) {
        const bool written = slot->status == OX_OK;
        const enum ox_extent_state failed = ox_store_is_single(store) ? OX_EXTENT_TORN : OX_EXTENT_IDLE;
        store->extent_states[slot->op.extent_idx] = written ? OX_EXTENT_WRITTEN : failed;
        __atomic_fetch_add(&store->written_count, written, __ATOMIC_SEQ_CST);
    }
    if (!is_spool(kind) && is_read(kind)) {
        count_reader(store, slot, -1);
    }
    if (kind == OX_STORE_WRITE) {
        __atomic_fetch_sub(&store->writes_in_flight, 1, __ATOMIC_SEQ_CST);
    }
    list_push(port, &port->ended, slot_idx);
}

static void slot_fail(struct slot *slot, enum ox_status status, const char *text) {
    if (slot->status == OX_OK) {
        slot->status = status;
        snprintf(slot->text, sizeof slot->text, "%.*s", (int)sizeof slot->text - 1, text);
    }
}

/* Sends the slot's next request; returns false on failure. */
static bool slot_send(struct ox_store_port *port, uint32_t slot_idx) {
    struct ox_store *const store = port->store;
    struct slot *const slot = &port->slots[slot_idx];
    const bool read = is_read(slot->op.kind);
    const struct ox_io_req req = {
        .kind = read ? OX_IO_READ : OX_IO_WRITE,
        .buffer = (unsigned char *)slot->op.buffer + slot->sent_bytes,
        .offset = slot->offset + slot->sent_bytes,
        .bytes = (uint32_t)ox_min_u64(OX_IO_REQ_BYTES_MAX, slot->bytes - slot->sent_bytes),
        .tag = slot_idx,
    };
    const enum ox_status status = store->backend->queue_submit(port->queue, slot->drive_idx, &req);
    if (status != OX_OK) {
        slot_fail(slot, status, ox_error_text());
        return false;
    }
    slot->sent_bytes += req.bytes;
    slot->in_flight++;
    slot->since_ns = ox_clock_ns();
    port->request_count++;
    port->drives[slot->drive_idx].request_count++;
    __atomic_fetch_add(read ? &store->read_bytes : &store->write_bytes, req.bytes, __ATOMIC_RELAXED);
    return true;
}

/* Picks the list to send from next; NULL when both are empty. */
static struct list *lane_pick(struct port_drive *drive) {
    struct list *const reads = &drive->sending[LANE_READ];
    struct list *const writes = &drive->sending[LANE_WRITE];
    const bool read = reads->head != NONE && (writes->head == NONE || drive->reads_in_row < READS_IN_ROW_MAX);
    drive->reads_in_row = read ? drive->reads_in_row + 1 : 0;
    return read ? reads : writes->head != NONE ? writes : NULL;
}

static void send_queued_to(struct ox_store_port *port, struct port_drive *drive) {
    while (drive->request_count < port->depth) {
        struct list *const list = lane_pick(drive);
        if (list == NULL) {
            return;
        }
        const uint32_t slot_idx = list->head;
        struct slot *const slot = &port->slots[slot_idx];
        const bool going = slot->status == OX_OK && slot_send(port, slot_idx);
        if (going && slot->sent_bytes < slot->bytes) {
            continue;
        }
        list_pop(port, list);
        slot->sending = false;
        port->sending_count--;
        if (slot->in_flight == 0) {
            slot_end(port, slot_idx);
        }
    }
}

/* Sends requests up to the depth of each drive. */
static void send_queued(struct ox_store_port *port) {
    for (uint32_t i = 0; i < port->store->drive_count && port->sending_count > 0; i++) {
        send_queued_to(port, &port->drives[i]);
    }
}

/* Fails all operations in flight. The kernel may still write to their buffers, so with a broken queue the process can
 * only end. */
static void port_break(struct ox_store_port *port) {
    char text[OX_ERROR_TEXT_BYTES];
    memcpy(text, ox_error_text(), sizeof text);
    port->broken = true;
    port->request_count = port->sending_count = 0;
    for (uint32_t i = 0; i < port->store->drive_count; i++) {
        port->drives[i].sending[LANE_READ].head = port->drives[i].sending[LANE_WRITE].head = NONE;
        port->drives[i].request_count = 0;
    }
    for (uint32_t i = 0; i < OX_STORE_OPS_MAX; i++) {
        struct slot *const slot = &port->slots[i];
        if (slot->live && (slot->in_flight > 0 || slot->sending)) {
            slot_fail(slot, OX_E_IO, text);
            slot->sending = false;
            slot->in_flight = 0;
            slot_end(port, i);
        }
    }
}

/* ---- waiting ---------------------------------------------------------------------------------------- */

/* Checks the oldest operation of each drive; fails when a drive must be given up. */
static enum ox_status stalls_check(struct ox_store_port *port, uint64_t now_ns) {
    struct ox_store *const store = port->store;
    const struct slot *oldest[OX_STORE_DRIVES_MAX] = {NULL};
    for (uint32_t i = 0; i < OX_STORE_OPS_MAX; i++) {
        const struct slot *const slot = &port->slots[i];
        if (slot->live && slot->in_flight > 0) {
            const struct slot **const first = &oldest[slot->drive_idx];
            *first = *first == NULL || slot->since_ns < (*first)->since_ns ? slot : *first;
        }
    }
    port->check_ns = now_ns + ox_stall_tick_ns(&store->stall_limits);
    for (uint32_t i = 0; i < store->drive_count; i++) {
        const struct slot *const slot = oldest[i];
        if (slot == NULL) {
            continue;
        }
        const struct ox_drive_info info = ox_store_info_of(store, i);
        char what[128];
        snprintf(what, sizeof what, "a %s of %" PRIu64 " bytes at %" PRIu64 " (%s %u)",
                 is_read(slot->op.kind) ? "read" : "write", slot->bytes, slot->offset,
                 is_spool(slot->op.kind) ? "spool extent" : "extent", slot->op.extent_idx);
        const struct ox_stall_op op = {
            .path = info.path, .what = what, .age_ns = now_ns > slot->since_ns ? now_ns - slot->since_ns : 0};
        const enum ox_status status = ox_stall_check(&port->drives[i].stall, &store->stall_limits, &op);
        if (status != OX_OK) {
            __atomic_store_n(&store->hung, true, __ATOMIC_SEQ_CST);
            return status;
        }
    }
    return OX_OK;
}

enum { POLL = 0 };
static const uint64_t FOREVER = UINT64_MAX;

/* Reaps one request within `max_ns`; returns false when none came. */
static bool reap_request(struct ox_store_port *port, uint64_t max_ns) {
    const struct ox_io_backend *const backend = port->store->backend;
    const uint64_t begin_ns = max_ns == POLL || max_ns == FOREVER ? 0 : ox_clock_ns();
    const uint64_t tick_ns = ox_min_u64(max_ns, ox_stall_tick_ns(&port->store->stall_limits));
    struct ox_io_done done;
    bool ready = false;
    enum ox_status status = OX_OK;
    while (status == OX_OK && !ready) {
        status = backend->queue_wait(port->queue, tick_ns, &ready);
        const uint64_t now_ns = ox_clock_ns();
        if (status == OX_OK && now_ns >= port->check_ns) {
            status = stalls_check(port, now_ns);
        }
        if (status == OX_OK && !ready && max_ns != FOREVER && now_ns - begin_ns >= max_ns) {
            return false;
        }
    }
    OX_THEN(status, backend->queue_reap(port->queue, &done));
    if (status != OX_OK) {
        port_break(port);
        return true;
    }
    OX_ASSERT(done.tag < OX_STORE_OPS_MAX);
    const uint32_t slot_idx = (uint32_t)done.tag;
    struct slot *const slot = &port->slots[slot_idx];
    OX_ASSERT(slot->live && slot->in_flight > 0);
    slot->in_flight--;
    slot->since_ns = ox_clock_ns();
    port->request_count--;
    port->drives[slot->drive_idx].request_count--;
    if (done.status != OX_OK) {
        slot_fail(slot, done.status, done.text);
    }
    /* An operation that still has requests to send, or failed meanwhile, is ended by send_queued. */
    if (slot->in_flight == 0 && !slot->sending) {
        slot_end(port, slot_idx);
    }
    send_queued(port);
    return true;
}

/* Nothing is held back in the queue when a call returns to the user of the port, who may compute for long. */
void ox_store_kick(struct ox_store_port *port) {
    if (port->request_count > 0) {
        port->store->backend->queue_kick(port->queue);
    }
}

/* ---- placing an operation ------------------------------------------------------------------------ */

/* With one generation a transaction must read an extent before it writes it; fails for an extent that was
 * overwritten. */
static enum ox_status single_read_check(struct ox_store *store, uint32_t extent_idx) {
    const bool known = store->in_transaction || store->torn;
    const enum ox_extent_state state = known ? store->extent_states[extent_idx] : OX_EXTENT_IDLE;
    OX_ASSERT(!store->in_transaction || state == OX_EXTENT_IDLE || state == OX_EXTENT_TORN);
    if (state == OX_EXTENT_IDLE) {
        return OX_OK;
    }
    const struct ox_drive_info info = ox_store_info_of(store, store->layout.places[extent_idx].drive_idx);
    return ox_fail(OX_E_CORRUPT,
                   "%s: extent %u was overwritten by step %" PRIu64 ", which failed, and the store has only "
                   "one generation; resume from a checkpoint", info.path, extent_idx, store->step);
}

/* Finds the generation of the requested step: the last commit's, the running transaction's, or that of the one that was
 * kept. A commit on another thread meanwhile moves no data, so both answers name the same place. */
static enum ox_status find_generation(struct ox_store *store, struct slot *slot) {
    const struct ox_store_root *const root = store->root;
    const uint32_t extent_idx = slot->op.extent_idx;
    const uint64_t wanted = slot->op.step;
    const bool fixed = ox_extent_is_fixed(&store->layout.extents[extent_idx]); /* the same in every step */
    enum ox_status status = OX_OK;
    pthread_mutex_lock(&store->mutex);
    if (wanted == 0 || (root->committed && (fixed || wanted == root->step))) {
        OX_ASSERT(root->committed);
        slot->generation = root->generation;
        slot->step = root->step;
        slot->attempt = root->attempt;
        status = ox_store_is_single(store) && !fixed ? single_read_check(store, extent_idx) : OX_OK;
    } else if (store->in_transaction && wanted == store->step) {
        OX_ASSERT(store->extent_states[extent_idx] == OX_EXTENT_WRITTEN);
        slot->generation = store->target;
        slot->step = store->step;
        slot->attempt = store->attempt;
    } else if (store->kept.exists && wanted == store->kept.step) {
        OX_ASSERT(store->kept.extents[extent_idx]);
        slot->generation = store->kept.generation;
        slot->step = store->kept.step;
        slot->attempt = store->kept.attempt;
    } else {
        status = ox_fail(OX_E_ABORTED, "extent %u of step %" PRIu64 " does not exist: the step was aborted", extent_idx,
                         wanted);
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}

static enum ox_status locate_read(struct ox_store *store, struct slot *slot) {
    const uint32_t extent_idx = slot->op.extent_idx;
    OX_ASSERT(extent_idx < store->layout.extent_count);
    const struct ox_extent_spec *const spec = &store->layout.extents[extent_idx];
    const bool head = slot->op.kind == OX_STORE_READ_HEAD;
    OX_ASSERT(spec->bytes > 0 && (!head || ox_extent_head_bytes(spec) > 0));
    OX_TRY(find_generation(store, slot));
    slot->drive_idx = store->layout.places[extent_idx].drive_idx;
    slot->offset = ox_store_slot_offset(store, extent_idx, slot->generation);
    slot->bytes = head ? spec->head_bytes : spec->bytes;
    slot->want = store->tables[slot->generation][extent_idx];
    count_reader(store, slot, 1);
    return OX_OK;
}

static void locate_write(struct ox_store *store, struct slot *slot) {
    const uint32_t extent_idx = slot->op.extent_idx;
    OX_ASSERT(store->in_transaction && !store->prepared && store->root_is_newest);
    OX_ASSERT(extent_idx < store->layout.extent_count);
    OX_ASSERT(store->extent_states[extent_idx] != OX_EXTENT_IN_FLIGHT);
    const uint32_t generation = store->target;
    slot->drive_idx = store->layout.places[extent_idx].drive_idx;
    slot->offset = ox_store_slot_offset(store, extent_idx, generation);
    slot->bytes = store->layout.extents[extent_idx].bytes;
    /* Never write to the committed generation. With a single one, only after its root is marked open. Never write under
     * a reader. */
    const uint64_t held = ox_store_slot_offset(store, extent_idx, store->root->generation);
    if (ox_extent_is_fixed(&store->layout.extents[extent_idx])) {
        OX_ASSERT(!store->root->committed); /* the only slot, which later transactions take over */
    } else if (ox_store_is_single(store)) {
        OX_ASSERT(store->root->open != 0 || !store->root->committed);
    } else {
        OX_ASSERT(slot->offset + slot->bytes <= held || held + slot->bytes <= slot->offset);
    }
    if (ox_store_is_single(store) || (store->kept.exists && store->kept.generation == generation)) {
        OX_ASSERT(__atomic_load_n(&store->extent_readers[extent_idx], __ATOMIC_SEQ_CST) == 0);
        store->kept.extents[extent_idx] = false;
    }
    slot->step = store->step;
    slot->attempt = store->attempt;
    if (store->extent_states[extent_idx] == OX_EXTENT_WRITTEN) {
        __atomic_fetch_sub(&store->written_count, 1, __ATOMIC_SEQ_CST);
    }
    store->extent_states[extent_idx] = OX_EXTENT_IN_FLIGHT;
    store->tables[generation][extent_idx] = hash_extent(store, slot);
}

static enum ox_status locate_spool(struct ox_store *store, struct slot *slot) {
    const struct ox_store_op *const op = &slot->op;
    OX_ASSERT(op->extent_idx < store->layout.spool_count);
    const uint64_t bytes = store->layout.spool_bytes[op->extent_idx];
    OX_ASSERT(op->spool_from % OX_IO_ALIGN_BYTES == 0 && op->spool_len % OX_IO_ALIGN_BYTES == 0);
    OX_ASSERT(op->spool_len > 0 && op->spool_from <= bytes && op->spool_len <= bytes - op->spool_from);
    const struct ox_store_place *const place = &store->layout.spools[op->extent_idx];
    slot->drive_idx = place->drive_idx;
    slot->offset = place->offset + op->spool_from;
    slot->bytes = op->spool_len;
    slot->step = op->spool_from;
    struct ox_spool_piece piece = {
        .extent_idx = op->extent_idx, .from = op->spool_from, .len = op->spool_len};
    if (op->kind == OX_STORE_SPOOL_WRITE) {
        piece.hash = hash_part(store, slot, PART_SPOOL, op->buffer, slot->bytes);
        return ox_spool_map_set(&store->spool_map, &piece);
    }
    OX_ASSERT(ox_spool_map_get(&store->spool_map, &piece) && piece.len == op->spool_len);
    slot->want.head = piece.hash;
    return OX_OK;
}

static enum ox_status locate(struct ox_store *store, struct slot *slot) {
    OX_ASSERT((uintptr_t)slot->op.buffer % OX_IO_ALIGN_BYTES == 0);
    if (is_spool(slot->op.kind)) {
        return locate_spool(store, slot);
    }
    if (slot->op.kind != OX_STORE_WRITE) {
        return locate_read(store, slot);
    }
    locate_write(store, slot);
    __atomic_fetch_add(&store->writes_in_flight, 1, __ATOMIC_SEQ_CST);
    return OX_OK;
}

/* ---- public ----------------------------------------------------------------------------------------- */

enum ox_status ox_store_port_open(struct ox_store *store, struct ox_store_port **out) {
    *out = NULL;
    struct ox_store_port *const port = calloc(1, sizeof *port);
    if (port == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for a port of the store");
    }
    port->store = store;
    port->depth = store->queue_depth;
    const enum ox_status status = store->backend->queue_open(store->backend, store->drives,
                                                             store->drive_count, port->depth, &port->queue);
    if (status != OX_OK) {
        free(port);
        return status;
    }
    port->free = port->ended = (struct list){.head = NONE, .tail = NONE};
    for (uint32_t i = 0; i < store->drive_count; i++) {
        port->drives[i].sending[LANE_READ] = port->drives[i].sending[LANE_WRITE] = port->free;
    }
    for (uint32_t i = 0; i < OX_STORE_OPS_MAX; i++) {
        list_push(port, &port->free, i);
    }
    __atomic_fetch_add(&store->port_count, 1, __ATOMIC_SEQ_CST);
    *out = port;
    return OX_OK;
}

void ox_store_port_close(struct ox_store_port **port_ptr) {
    struct ox_store_port *const port = *port_ptr;
    if (port == NULL) {
        return;
    }
    while (port->request_count > 0) {
        (void)reap_request(port, FOREVER);
    }
    struct ox_store *const store = port->store;
    __atomic_fetch_sub(&store->port_count, 1, __ATOMIC_SEQ_CST);
    *port_ptr = NULL;
    if (port->broken && __atomic_load_n(&store->hung, __ATOMIC_SEQ_CST)) {
        port->given_up_next = __atomic_exchange_n(&store->given_up_ports, port, __ATOMIC_SEQ_CST);
        return; /* the kernel or a thread still uses its requests */
    }
    store->backend->queue_close(port->queue);
    free(port);
}

void ox_store_port_register(struct ox_store_port *port, const struct ox_io_region *regions, uint32_t region_count) {
    OX_ASSERT(port->op_count == 0);
    port->store->backend->queue_register(port->queue, regions, region_count);
}

void ox_store_port_info(const struct ox_store_port *port, struct ox_io_queue_info *out) {
    port->store->backend->queue_info(port->queue, out);
}

enum ox_status ox_store_queue(struct ox_store_port *port, const struct ox_store_op *op) {
    OX_ASSERT(port->op_count < OX_STORE_OPS_MAX);
    if (port->broken) {
        return ox_fail(OX_E_IO, "this port of the store failed earlier; end the process and resume");
    }
    struct slot *const slot = &port->slots[port->free.head];
    const uint32_t next = slot->next;
    *slot = (struct slot){.op = *op, .next = next};
    OX_TRY(locate(port->store, slot));
    const uint32_t slot_idx = list_pop(port, &port->free);
    slot->live = true;
    port->op_count++;
    sending_push(port, slot_idx);
    send_queued(port);
    while (port->sending_count > 0 && port->request_count > 0 && reap_request(port, POLL)) {
    }
    return OX_OK;
}

enum ox_status ox_store_submit(struct ox_store_port *port, const struct ox_store_op *op) {
    const enum ox_status status = ox_store_queue(port, op);
    ox_store_kick(port);
    return status;
}

enum ox_status ox_store_reap(struct ox_store_port *port, uint64_t *tag) {
    OX_ASSERT(port->op_count > 0);
    while (port->ended.head == NONE) {
        (void)reap_request(port, FOREVER);
    }
    ox_store_kick(port);
    const uint32_t slot_idx = list_pop(port, &port->ended);
    struct slot *const slot = &port->slots[slot_idx];
    slot->live = false;
    port->op_count--;
    *tag = slot->op.tag;
    enum ox_status status = slot->status;
    const char *const what = is_spool(slot->op.kind) ? "spool extent" : "extent";
    if (slot->corrupt) {
        const struct ox_drive_info info = ox_store_info_of(port->store, slot->drive_idx);
        status = is_spool(slot->op.kind)
                     ? ox_fail(status,
                               "%s: spool extent %u at %" PRIu64 " differs from what was written, after %d reads",
                               info.path, slot->op.extent_idx, slot->op.spool_from, 1 + REREADS_MAX)
                     : ox_fail(status,
                               "%s: extent %u of step %" PRIu64
                               " does not match its checksum after %d reads; resume from a checkpoint",
                               info.path, slot->op.extent_idx, slot->step, 1 + REREADS_MAX);
    } else if (status != OX_OK) {
        status = ox_fail(status, "%s (%s %u)", slot->text, what, slot->op.extent_idx);
    }
    list_push(port, &port->free, slot_idx);
    return status;
}

bool ox_store_wait(struct ox_store_port *port, uint64_t max_ns) {
    OX_ASSERT(port->op_count > 0);
    while (port->ended.head == NONE && reap_request(port, max_ns)) {
        continue;
    }
    ox_store_kick(port);
    return port->ended.head != NONE;
}

uint32_t ox_store_in_flight(const struct ox_store_port *port) {
    return port->op_count;
}
