/* A decorator that injects one rule's faults into another backend. Owns only its counters and, per request
 * it alters, a copy of the data. */
#include "base/assert.h"
#include "base/bytes.h"
#include "nvme/io_drive.h"
#include "nvme/io_sim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POINT_COUNT = OX_FAULT_ON_OPEN + 1, STALL_NS = 20 * 1000 * 1000, SECTOR_BYTES = 512 };

struct fault {
    struct ox_io_backend backend;
    const struct ox_io_backend *inner;
    pthread_mutex_t mutex; /* guards what follows */
    bool has_rule;
    struct ox_fault_rule rule;
    uint64_t calls[POINT_COUNT], hits[POINT_COUNT];
};

struct ox_drive {
    struct fault *fault;
    struct ox_drive *inner;
};

/* A request under way; the inner backend knows it by its index. */
struct slot {
    uint64_t tag;
    bool live, hit;
    enum ox_fault_kind kind;
    struct ox_io_req req;
    void *copy; /* what was written or read in place of the caller's buffer, or NULL */
};

struct ox_io_queue {
    struct fault *fault;
    struct ox_drive **drives;
    struct ox_io_queue *inner;
    uint32_t drive_count, depth, ended_count;
    struct slot *slots;
    uint32_t *ended; /* slots that never reached the inner backend */
};

/* Counts a call of `point`; true when the rule hits it. */
static bool hits(struct fault *fault, enum ox_fault_point point, enum ox_fault_kind *kind) {
    pthread_mutex_lock(&fault->mutex);
    const uint64_t idx = fault->calls[point]++;
    const struct ox_fault_rule *const rule = &fault->rule;
    const bool hit = fault->has_rule && rule->point == point &&
                     (idx == rule->first_idx || (rule->persistent && idx > rule->first_idx));
    fault->hits[point] += hit;
    *kind = rule->kind;
    pthread_mutex_unlock(&fault->mutex);
    return hit;
}

static void stall(void) {
    nanosleep(&(struct timespec){.tv_nsec = STALL_NS}, NULL);
}

/* What a hit call that moves no data returns; OX_OK with *skip unset means that it goes on after all. */
static enum ox_status call_fault(enum ox_fault_kind kind, const char *what, bool *skip) {
    *skip = true;
    switch (kind) {
    case OX_FAULT_ENOSPC:
        return ox_fail(OX_E_CONFIG, "injected fault: %s: no space left on device", what);
    case OX_FAULT_EIO:
    case OX_FAULT_SHORT:
        return ox_fail(OX_E_IO, "injected fault: %s: input/output error", what);
    case OX_FAULT_STALL:
        stall();
        *skip = false;
        return OX_OK;
    case OX_FAULT_TORN:
    case OX_FAULT_LOST:
    case OX_FAULT_MISDIRECT:
        return OX_OK;
    }
    return OX_OK;
}

static enum ox_status drive_open(const struct ox_io_backend *backend, const char *path,
                                 enum ox_drive_mode mode, struct ox_drive **out) {
    struct fault *const fault = backend->context;
    *out = NULL;
    enum ox_fault_kind kind = OX_FAULT_EIO;
    if (hits(fault, OX_FAULT_ON_OPEN, &kind)) {
        if (kind != OX_FAULT_STALL) {
            return ox_fail(OX_E_IO, "%s: injected fault: cannot be opened", path);
        }
        stall();
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
    enum ox_fault_kind kind = OX_FAULT_EIO;
    if (hits(drive->fault, OX_FAULT_ON_ALLOCATE, &kind)) {
        bool skip = false;
        /* A size cannot be lost in silence: the requests that follow must lie inside the file. */
        const bool fails = kind == OX_FAULT_STALL || kind == OX_FAULT_ENOSPC;
        const enum ox_status status = call_fault(fails ? kind : OX_FAULT_EIO, "allocate", &skip);
        if (skip) {
            return status;
        }
    }
    return drive->fault->inner->drive_allocate(drive->inner, bytes);
}

static enum ox_status drive_flush(struct ox_drive *drive) {
    enum ox_fault_kind kind = OX_FAULT_EIO;
    if (hits(drive->fault, OX_FAULT_ON_FLUSH, &kind)) {
        bool skip = false;
        const enum ox_status status = call_fault(kind, "flush", &skip);
        if (skip) {
            return status;
        }
    }
    return drive->fault->inner->drive_flush(drive->inner);
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
    struct ox_drive **const inner = calloc(drive_count, sizeof(struct ox_drive *));
    struct ox_io_queue *const queue = calloc(1, sizeof *queue);
    enum ox_status status = ox_fail(OX_E_NOMEM, "no memory for an I/O queue of depth %u", depth);
    if (inner == NULL || queue == NULL) {
        goto fail;
    }
    queue->fault = fault;
    queue->drive_count = drive_count;
    queue->depth = depth;
    queue->drives = calloc(drive_count, sizeof *queue->drives);
    queue->slots = calloc(depth, sizeof *queue->slots);
    queue->ended = calloc(depth, sizeof *queue->ended);
    if (queue->drives == NULL || queue->slots == NULL || queue->ended == NULL) {
        goto fail;
    }
    for (uint32_t i = 0; i < drive_count; i++) {
        queue->drives[i] = drives[i];
        inner[i] = drives[i]->inner;
    }
    status = fault->inner->queue_open(fault->inner, inner, drive_count, depth, &queue->inner);
    if (status != OX_OK) {
        goto fail;
    }
    free(inner);
    *out = queue;
    return OX_OK;
fail:
    if (queue != NULL) {
        queue_close(queue);
    }
    free(inner);
    return status;
}

static void request_misdirect(const struct ox_io_queue *queue, uint32_t drive_idx, struct ox_io_req *req) {
    struct ox_drive_info info;
    drive_info(queue->drives[drive_idx], &info);
    if (req->offset + 2 * (uint64_t)req->bytes <= info.bytes) {
        req->offset += req->bytes;
    } else if (req->offset >= req->bytes) {
        req->offset -= req->bytes;
    }
}

/* Every other sector is not what was sent. */
static void sectors_tear(unsigned char *data, uint32_t bytes) {
    for (uint32_t at = SECTOR_BYTES; at < bytes; at += 2 * SECTOR_BYTES) {
        memset(data + at, 0, SECTOR_BYTES);
    }
}

/* Changes the request as the rule wants; false when it must not reach the inner backend at all. */
static bool request_alter(struct ox_io_queue *queue, uint32_t drive_idx, struct slot *slot,
                          struct ox_io_req *req) {
    switch (slot->kind) {
    case OX_FAULT_EIO:
    case OX_FAULT_ENOSPC:
    case OX_FAULT_LOST:
        return false;
    case OX_FAULT_SHORT:
        req->bytes = req->bytes / 2 / OX_IO_ALIGN_BYTES * OX_IO_ALIGN_BYTES;
        return req->bytes > 0;
    case OX_FAULT_TORN:
        if (req->kind == OX_IO_WRITE) {
            if (posix_memalign(&slot->copy, OX_IO_ALIGN_BYTES, req->bytes) != 0) {
                slot->copy = NULL;
                return false;
            }
            memcpy(slot->copy, req->buffer, req->bytes);
            sectors_tear(slot->copy, req->bytes);
            req->buffer = slot->copy;
        }
        return true;
    case OX_FAULT_MISDIRECT:
        request_misdirect(queue, drive_idx, req);
        return true;
    case OX_FAULT_STALL:
        return true;
    }
    return true;
}

static enum ox_status queue_submit(struct ox_io_queue *queue, uint32_t drive_idx,
                                   const struct ox_io_req *req) {
    OX_ASSERT(drive_idx < queue->drive_count);
    struct ox_drive_info info;
    drive_info(queue->drives[drive_idx], &info);
    ox_io_req_check(req, info.bytes);
    uint32_t slot_idx = 0;
    while (slot_idx < queue->depth && queue->slots[slot_idx].live) {
        slot_idx++;
    }
    OX_ASSERT(slot_idx < queue->depth);
    struct slot *const slot = &queue->slots[slot_idx];
    *slot = (struct slot){.tag = req->tag, .live = true, .req = *req};
    slot->hit =
        hits(queue->fault, req->kind == OX_IO_READ ? OX_FAULT_ON_READ : OX_FAULT_ON_WRITE, &slot->kind);
    struct ox_io_req inner = *req;
    inner.tag = slot_idx;
    if (slot->hit && !request_alter(queue, drive_idx, slot, &inner)) {
        queue->ended[queue->ended_count++] = slot_idx;
        return OX_OK;
    }
    const enum ox_status status = queue->fault->inner->queue_submit(queue->inner, drive_idx, &inner);
    if (status != OX_OK) {
        slot->live = false;
        free(slot->copy);
    }
    return status;
}

static void slot_end(struct slot *slot, struct ox_io_done *out) {
    out->tag = slot->tag;
    if (slot->hit && out->status == OX_OK) {
        switch (slot->kind) {
        case OX_FAULT_EIO:
        case OX_FAULT_ENOSPC:
        case OX_FAULT_SHORT:
            out->status = OX_E_IO;
            snprintf(out->text, sizeof out->text, "injected fault: %s",
                     slot->kind == OX_FAULT_EIO      ? "input/output error"
                     : slot->kind == OX_FAULT_ENOSPC ? "no space left on device"
                                                     : "transfer stays short");
            break;
        case OX_FAULT_TORN:
            if (slot->req.kind == OX_IO_READ) {
                sectors_tear(slot->req.buffer, slot->req.bytes);
            }
            break;
        case OX_FAULT_STALL:
            stall();
            break;
        case OX_FAULT_LOST:
        case OX_FAULT_MISDIRECT:
            break;
        }
    }
    free(slot->copy);
    slot->copy = NULL;
    slot->live = false;
}

static enum ox_status queue_reap(struct ox_io_queue *queue, struct ox_io_done *out) {
    memset(out, 0, sizeof *out);
    uint32_t slot_idx = 0;
    if (queue->ended_count > 0) {
        slot_idx = queue->ended[--queue->ended_count];
    } else {
        const enum ox_status status = queue->fault->inner->queue_reap(queue->inner, out);
        if (status != OX_OK) {
            return status;
        }
        slot_idx = (uint32_t)out->tag;
    }
    OX_ASSERT(slot_idx < queue->depth && queue->slots[slot_idx].live);
    slot_end(&queue->slots[slot_idx], out);
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
        .queue_submit = queue_submit,
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

void ox_io_fault_counts(const struct ox_io_backend *backend, enum ox_fault_point point, uint64_t *calls,
                        uint64_t *hit_count) {
    struct fault *const fault = backend->context;
    pthread_mutex_lock(&fault->mutex);
    *calls = fault->calls[point];
    *hit_count = fault->hits[point];
    pthread_mutex_unlock(&fault->mutex);
}
