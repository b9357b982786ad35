/* A decorator that injects the faults of one rule into another backend. It owns only its counters and copies of the
 * data it alters. */
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "nvme/io_drive.h"
#include "tests/kit/store/io_sim.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    POINT_COUNT = OX_FAULT_ON_OPEN + 1,
    STALL_NS = 20 * 1000 * 1000,
    WAIT_SLICE_NS = 5 * 1000 * 1000, /* longest wait for the inner backend while stalls may end */
    SECTOR_BYTES = 512,
};

struct fault {
    struct ox_io_backend backend;
    const struct ox_io_backend *inner;
    pthread_mutex_t mutex; /* guards what follows */
    uint64_t stall_ns;
    bool has_rule;
    struct ox_fault_rule rule;
    uint64_t calls[POINT_COUNT], hits[POINT_COUNT];
};

struct ox_drive {
    struct fault *fault;
    struct ox_drive *inner;
};

/* A request in flight; its tag in the inner backend is its index. */
struct slot {
    struct ox_io_progress progress;
    bool live, hit;
    enum ox_fault_kind kind;
    uint32_t inner_bytes; /* requested from the inner backend */
    void *copy;           /* altered data written instead of the caller's, or NULL */
    uint64_t stalled_until_ns;
    struct ox_io_done done; /* valid once it has ended */
};

struct ox_io_queue {
    struct fault *fault;
    struct ox_drive **drives; /* drives of the inner backend */
    struct ox_io_queue *inner;
    uint32_t drive_count, depth, slot_count, live_count, inner_count, ended_count;
    struct slot *slots;
    uint32_t *ended; /* slots to be reaped once their stall is over */
};

/* Counts a call of `point`; returns true when the rule hits it. */
static bool hits(struct fault *fault, enum ox_fault_point point, enum ox_fault_kind *kind, uint64_t *stall_ns) {
    pthread_mutex_lock(&fault->mutex);
    const uint64_t idx = fault->calls[point]++;
    const struct ox_fault_rule *const rule = &fault->rule;
    const bool hit = fault->has_rule && rule->point == point &&
                     (idx == rule->first_idx || (rule->persistent && idx > rule->first_idx));
    fault->hits[point] += hit;
    *kind = rule->kind;
    *stall_ns = fault->stall_ns;
    pthread_mutex_unlock(&fault->mutex);
    return hit;
}

static void stall(uint64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)}, NULL);
}

static int kind_errno(enum ox_fault_kind kind) {
    return kind == OX_FAULT_ENOSPC ? ENOSPC : kind == OX_FAULT_EAGAIN ? EAGAIN : kind == OX_FAULT_EINTR ? EINTR : EIO;
}

/* Counts a call that moves no data, and applies the rule to it. With *skip the call returns this status at once. */
static enum ox_status call_fault(struct fault *fault, enum ox_fault_point point, const char *what, bool *skip) {
    enum ox_fault_kind kind = OX_FAULT_EIO;
    uint64_t stall_ns = 0;
    *skip = hits(fault, point, &kind, &stall_ns);
    if (!*skip) {
        return OX_OK;
    }
    /* An allocation must not be lost silently: later requests must lie inside the file. */
    const bool silent = kind == OX_FAULT_TORN || kind == OX_FAULT_LOST || kind == OX_FAULT_MISDIRECT;
    if (silent && point != OX_FAULT_ON_ALLOCATE) {
        return OX_OK;
    }
    if (kind == OX_FAULT_STALL) {
        stall(stall_ns);
        *skip = false;
        return OX_OK;
    }
    return ox_fail_errno(kind == OX_FAULT_ENOSPC ? OX_E_CONFIG : OX_E_IO, kind_errno(kind), "injected fault: %s", what);
}

static enum ox_status drive_open(const struct ox_io_backend *backend, const char *path,
                                 enum ox_drive_mode mode, struct ox_drive **out) {
    struct fault *const fault = backend->context;
    *out = NULL;
    enum ox_fault_kind kind = OX_FAULT_EIO;
    uint64_t stall_ns = 0;
    if (hits(fault, OX_FAULT_ON_OPEN, &kind, &stall_ns)) {
        if (kind != OX_FAULT_STALL) {
            return ox_fail_errno(OX_E_IO, kind_errno(kind), "%s: injected fault: cannot be opened", path);
        }
        stall(stall_ns);
    }
    struct ox_drive *const drive = calloc(1, sizeof *drive);
    if (drive == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to open it", path);
    }
    drive->fault = fault;
    const enum ox_status status = fault->inner->drive_open(fault->inner, path, mode, &drive->inner);
    if (status != OX_OK) {
        free(drive);
        return status;
    }
    *out = drive;
    return OX_OK;
}

static enum ox_status drive_allocate(struct ox_drive *drive, uint64_t bytes) {
    bool skip = false;
    const enum ox_status status = call_fault(drive->fault, OX_FAULT_ON_ALLOCATE, "allocate", &skip);
    return skip ? status : drive->fault->inner->drive_allocate(drive->inner, bytes);
}

static enum ox_status drive_flush(struct ox_drive *drive) {
    bool skip = false;
    const enum ox_status status = call_fault(drive->fault, OX_FAULT_ON_FLUSH, "flush", &skip);
    return skip ? status : drive->fault->inner->drive_flush(drive->inner);
}

static void drive_info(const struct ox_drive *drive, struct ox_drive_info *out) {
    drive->fault->inner->drive_info(drive->inner, out);
}

static void drive_close(struct ox_drive *drive) {
    drive->fault->inner->drive_close(drive->inner);
    free(drive);
}

static enum ox_status drive_remove(const struct ox_io_backend *backend, const char *path) {
    const struct fault *const fault = backend->context;
    return fault->inner->drive_remove(fault->inner, path);
}

static void queue_close(struct ox_io_queue *queue) {
    if (queue->inner != NULL) {
        queue->fault->inner->queue_close(queue->inner);
    }
    free(queue->drives);
    free(queue->slots);
    free(queue->ended);
    free(queue);
}

static enum ox_status queue_open(const struct ox_io_backend *backend, struct ox_drive *const *drives,
                                 uint32_t drive_count, uint32_t depth, struct ox_io_queue **out) {
    struct fault *const fault = backend->context;
    *out = NULL;
    struct ox_io_queue *const queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for an I/O queue of depth %u", depth);
    }
    queue->fault = fault;
    queue->drive_count = drive_count;
    queue->depth = depth;
    queue->slot_count = drive_count * depth;
    queue->drives = calloc(drive_count, sizeof *queue->drives);
    queue->slots = calloc(queue->slot_count, sizeof *queue->slots);
    queue->ended = calloc(queue->slot_count, sizeof *queue->ended);
    const bool room = queue->drives != NULL && queue->slots != NULL && queue->ended != NULL;
    enum ox_status status = room ? OX_OK : ox_fail(OX_E_NOMEM, "no memory for an I/O queue of depth %u", depth);
    for (uint32_t i = 0; i < drive_count && status == OX_OK; i++) {
        queue->drives[i] = drives[i]->inner;
    }
    OX_THEN(status, fault->inner->queue_open(fault->inner, queue->drives, drive_count, depth, &queue->inner));
    if (status != OX_OK) {
        queue_close(queue);
        return status;
    }
    *out = queue;
    return OX_OK;
}

static struct ox_drive_info info_of(const struct ox_io_queue *queue, uint32_t drive_idx) {
    struct ox_drive_info info;
    queue->fault->inner->drive_info(queue->drives[drive_idx], &info);
    return info;
}

/* Moves the request to a neighbouring place, if the file has one. */
static void request_misdirect(const struct ox_io_queue *queue, uint32_t drive_idx, struct ox_io_req *req) {
    const struct ox_drive_info info = info_of(queue, drive_idx);
    if (req->offset + 2 * (uint64_t)req->bytes <= info.bytes) {
        req->offset += req->bytes;
    } else if (req->offset >= req->bytes) {
        req->offset -= req->bytes;
    }
}

/* Zeroes every other sector. */
static void sectors_tear(unsigned char *data, uint32_t bytes) {
    for (uint32_t at = SECTOR_BYTES; at < bytes; at += 2 * SECTOR_BYTES) {
        memset(data + at, 0, SECTOR_BYTES);
    }
}

/* Alters the request as the rule says. Returns false when it must not reach the inner backend; *result is then the
 * kernel's result. */
static bool request_alter(struct ox_io_queue *queue, struct slot *slot, struct ox_io_req *req, int64_t *result) {
    *result = 0;
    switch (slot->kind) {
    case OX_FAULT_EIO:
    case OX_FAULT_ENOSPC:
    case OX_FAULT_EAGAIN:
    case OX_FAULT_EINTR:
        *result = -(int64_t)kind_errno(slot->kind);
        return false;
    case OX_FAULT_LOST:
        *result = req->bytes;
        return false;
    case OX_FAULT_SHORT:
        req->bytes = req->bytes / 2 / OX_IO_ALIGN_BYTES * OX_IO_ALIGN_BYTES;
        return req->bytes > 0;
    case OX_FAULT_TORN:
        if (req->kind == OX_IO_WRITE) {
            if (posix_memalign(&slot->copy, OX_IO_ALIGN_BYTES, req->bytes) != 0) {
                slot->copy = NULL;
                *result = -ENOMEM;
                return false;
            }
            memcpy(slot->copy, req->buffer, req->bytes);
            sectors_tear(slot->copy, req->bytes);
            req->buffer = slot->copy;
        }
        return true;
    case OX_FAULT_MISDIRECT:
        request_misdirect(queue, slot->progress.drive_idx, req);
        return true;
    case OX_FAULT_STALL:
        return true;
    }
    return true;
}

static void slot_end(struct ox_io_queue *queue, uint32_t slot_idx) {
    queue->ended[queue->ended_count++] = slot_idx;
}

/* Applies a result to the request, and marks the text of an injected failure. */
static void result_take(struct ox_io_queue *queue, struct slot *slot, int64_t result, bool *ended) {
    const struct ox_drive_info info = info_of(queue, slot->progress.drive_idx);
    *ended = ox_io_advance(&slot->progress, info.path, result, &slot->done);
    if (*ended && slot->hit && slot->done.status != OX_OK) {
        char text[sizeof slot->done.text];
        memcpy(text, slot->done.text, sizeof text);
        snprintf(slot->done.text, sizeof slot->done.text, "injected fault: %.140s", text);
    }
}

/* Sends the rest of the request, or ends it. */
static enum ox_status slot_issue(struct ox_io_queue *queue, uint32_t slot_idx) {
    struct slot *const slot = &queue->slots[slot_idx];
    for (bool ended = false; !ended;) {
        const struct ox_io_req *const req = &slot->progress.req;
        const uint32_t done_bytes = slot->progress.done_bytes;
        uint64_t stall_ns = 0;
        int64_t result = 0;
        slot->hit = hits(queue->fault, req->kind == OX_IO_READ ? OX_FAULT_ON_READ : OX_FAULT_ON_WRITE, &slot->kind,
                         &stall_ns);
        if (slot->hit && slot->kind == OX_FAULT_STALL) {
            slot->stalled_until_ns = ox_clock_ns() + stall_ns;
        }
        struct ox_io_req inner = {.kind = req->kind,
                                  .buffer = (unsigned char *)req->buffer + done_bytes,
                                  .offset = req->offset + done_bytes,
                                  .bytes = req->bytes - done_bytes,
                                  .tag = slot_idx};
        if (!slot->hit || request_alter(queue, slot, &inner, &result)) {
            slot->inner_bytes = inner.bytes;
            const enum ox_status status =
                queue->fault->inner->queue_submit(queue->inner, slot->progress.drive_idx, &inner);
            queue->inner_count += status == OX_OK;
            return status;
        }
        result_take(queue, slot, result, &ended);
    }
    slot_end(queue, slot_idx);
    return OX_OK;
}

static void queue_register(struct ox_io_queue *queue, const struct ox_io_region *regions, uint32_t region_count) {
    queue->fault->inner->queue_register(queue->inner, regions, region_count);
}

static enum ox_status queue_submit(struct ox_io_queue *queue, uint32_t drive_idx, const struct ox_io_req *req) {
    OX_ASSERT(drive_idx < queue->drive_count);
    ox_io_req_check(req, info_of(queue, drive_idx).bytes);
    uint32_t slot_idx = 0;
    while (slot_idx < queue->slot_count && queue->slots[slot_idx].live) {
        slot_idx++;
    }
    OX_ASSERT(slot_idx < queue->slot_count);
    struct slot *const slot = &queue->slots[slot_idx];
    *slot = (struct slot){.progress = {.req = *req, .drive_idx = drive_idx}, .live = true};
    const enum ox_status status = slot_issue(queue, slot_idx);
    if (status != OX_OK) {
        free(slot->copy);
        slot->live = false;
    }
    queue->live_count += status == OX_OK;
    return status;
}

static void queue_kick(struct ox_io_queue *queue) {
    queue->fault->inner->queue_kick(queue->inner);
}

/* Handles one completion of the inner backend: ends the request, or sends its rest. */
static enum ox_status inner_reap(struct ox_io_queue *queue) {
    struct ox_io_done done;
    const enum ox_status status = queue->fault->inner->queue_reap(queue->inner, &done);
    if (status != OX_OK) {
        return status;
    }
    OX_ASSERT(done.tag < queue->slot_count && queue->slots[done.tag].live);
    const uint32_t slot_idx = (uint32_t)done.tag;
    struct slot *const slot = &queue->slots[slot_idx];
    queue->inner_count--;
    free(slot->copy);
    slot->copy = NULL;
    bool ended = true;
    if (done.status != OX_OK) {
        slot->done = done;
        slot->done.tag = slot->progress.req.tag;
    } else {
        if (slot->hit && slot->kind == OX_FAULT_TORN && slot->progress.req.kind == OX_IO_READ) {
            sectors_tear((unsigned char *)slot->progress.req.buffer + slot->progress.done_bytes, slot->inner_bytes);
        }
        result_take(queue, slot, slot->inner_bytes, &ended);
    }
    if (ended) {
        slot_end(queue, slot_idx);
        return OX_OK;
    }
    return slot_issue(queue, slot_idx);
}

/* Returns the index of the first ended slot that may be reaped, or their count when there is none yet. */
static uint32_t ended_find(const struct ox_io_queue *queue, uint64_t now_ns) {
    uint32_t at = 0;
    while (at < queue->ended_count && queue->slots[queue->ended[at]].stalled_until_ns > now_ns) {
        at++;
    }
    return at;
}

static enum ox_status queue_wait(struct ox_io_queue *queue, uint64_t timeout_ns, bool *ready) {
    OX_ASSERT(queue->live_count > 0);
    const uint64_t deadline_ns = ox_clock_ns() + timeout_ns;
    for (bool polled = false;; polled = true) {
        const uint64_t now_ns = ox_clock_ns();
        *ready = ended_find(queue, now_ns) < queue->ended_count;
        if (*ready || (polled && now_ns >= deadline_ns)) {
            return OX_OK;
        }
        const uint64_t slice_ns = now_ns < deadline_ns ? ox_min_u64(deadline_ns - now_ns, WAIT_SLICE_NS) : 0;
        bool inner_ready = false;
        if (queue->inner_count == 0) {
            stall(slice_ns);
            continue;
        }
        enum ox_status status = queue->fault->inner->queue_wait(queue->inner, slice_ns, &inner_ready);
        if (status == OX_OK && inner_ready) {
            status = inner_reap(queue);
        }
        if (status != OX_OK) {
            return status;
        }
    }
}

static enum ox_status queue_reap(struct ox_io_queue *queue, struct ox_io_done *out) {
    for (bool ready = false; !ready;) {
        const enum ox_status status = queue_wait(queue, WAIT_SLICE_NS, &ready);
        if (status != OX_OK) {
            return status;
        }
    }
    const uint32_t at = ended_find(queue, ox_clock_ns());
    const uint32_t slot_idx = queue->ended[at];
    queue->ended[at] = queue->ended[--queue->ended_count];
    queue->live_count--;
    struct slot *const slot = &queue->slots[slot_idx];
    *out = slot->done;
    slot->live = false;
    return OX_OK;
}

static void queue_info(const struct ox_io_queue *queue, struct ox_io_queue_info *out) {
    queue->fault->inner->queue_info(queue->inner, out);
}

enum ox_status ox_io_fault_open(const struct ox_io_backend *inner, struct ox_io_backend **out) {
    *out = NULL;
    struct fault *const fault = calloc(1, sizeof *fault);
    if (fault == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for a fault injector");
    }
    pthread_mutex_init(&fault->mutex, NULL);
    fault->inner = inner;
    fault->stall_ns = STALL_NS;
    fault->backend = (struct ox_io_backend){
        .name = "fault",
        .context = fault,
        .drive_open = drive_open,
        .drive_allocate = drive_allocate,
        .drive_flush = drive_flush,
        .drive_info = drive_info,
        .drive_close = drive_close,
        .drive_remove = drive_remove,
        .queue_open = queue_open,
        .queue_register = queue_register,
        .queue_submit = queue_submit,
        .queue_kick = queue_kick,
        .queue_wait = queue_wait,
        .queue_reap = queue_reap,
        .queue_info = queue_info,
        .queue_close = queue_close,
    };
    *out = &fault->backend;
    return OX_OK;
}

void ox_io_fault_close(struct ox_io_backend **backend) {
    if (*backend == NULL) {
        return;
    }
    struct fault *const fault = (*backend)->context;
    pthread_mutex_destroy(&fault->mutex);
    free(fault);
    *backend = NULL;
}

void ox_io_fault_set(struct ox_io_backend *backend, const struct ox_fault_rule *rule) {
    struct fault *const fault = backend->context;
    pthread_mutex_lock(&fault->mutex);
    fault->has_rule = rule != NULL;
    if (rule != NULL) {
        fault->rule = *rule;
    }
    memset(fault->calls, 0, sizeof fault->calls);
    memset(fault->hits, 0, sizeof fault->hits);
    pthread_mutex_unlock(&fault->mutex);
}

void ox_io_fault_set_stall(struct ox_io_backend *backend, uint64_t ns) {
    struct fault *const fault = backend->context;
    pthread_mutex_lock(&fault->mutex);
    fault->stall_ns = ns;
    pthread_mutex_unlock(&fault->mutex);
}

void ox_io_fault_counts(const struct ox_io_backend *backend, enum ox_fault_point point, uint64_t *calls,
                        uint64_t *hit_count) {
    struct fault *const fault = backend->context;
    pthread_mutex_lock(&fault->mutex);
    *calls = fault->calls[point];
    *hit_count = fault->hits[point];
    pthread_mutex_unlock(&fault->mutex);
}
