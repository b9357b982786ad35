/* The io_uring backend, and the choice of a backend. One ring per queue, without a polling thread. */
#include "base/assert.h"
#include "nvme/io_drive.h"

#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    BUSY_WAIT_NS = 1000 * 1000,
    BUSY_TRIES_MAX = 10 * 1000, /* about ten seconds without one completion */
};

struct slot {
    struct ox_io_progress progress;
    uint32_t nonce; /* tells a completion of this use of the slot from a stray one */
    bool live;
};

struct ox_io_queue {
    struct io_uring ring;
    const struct ox_drive **drives;
    uint32_t drive_count, depth, live_count, free_count;
    struct slot *slots;
    uint32_t *free_slots;
    bool registered_files;
    char note[160];
};

/* Without an entry in the kernel's table of a needed operation the ring is of no use. */
static enum ox_status ring_init(struct io_uring *ring, uint32_t depth) {
    const int err = io_uring_queue_init(depth, ring, 0);
    if (err < 0) {
        return ox_fail_errno(OX_E_IO, -err, "io_uring is denied or missing here");
    }
    struct io_uring_probe *const probe = io_uring_get_probe_ring(ring);
    const bool able = probe != NULL && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                      io_uring_opcode_supported(probe, IORING_OP_WRITE);
    io_uring_free_probe(probe);
    if (!able) {
        io_uring_queue_exit(ring);
        return ox_fail(OX_E_IO, "io_uring of this kernel lacks plain reads and writes");
    }
    return OX_OK;
}

static void queue_close(struct ox_io_queue *queue) {
    OX_ASSERT(queue->live_count == 0);
    io_uring_queue_exit(&queue->ring);
    free(queue->drives);
    free(queue->slots);
    free(queue->free_slots);
    free(queue);
}

static void register_files(struct ox_io_queue *queue) {
    int *const fds = calloc(queue->drive_count, sizeof *fds);
    if (fds == NULL) {
        snprintf(queue->note, sizeof queue->note, "files not registered: no memory");
        return;
    }
    for (uint32_t i = 0; i < queue->drive_count; i++) {
        fds[i] = ox_drive_file_fd(queue->drives[i]);
    }
    const int err = io_uring_register_files(&queue->ring, fds, queue->drive_count);
    free(fds);
    queue->registered_files = err == 0;
    if (err < 0) {
        snprintf(queue->note, sizeof queue->note, "files not registered: %s", strerror(-err));
    }
}

static enum ox_status queue_open(const struct ox_io_backend *backend, struct ox_drive *const *drives,
                                 uint32_t drive_count, uint32_t depth, struct ox_io_queue **out) {
    (void)backend;
    OX_ASSERT(depth > 0 && drive_count > 0);
    *out = NULL;
    struct ox_io_queue *const queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for an I/O queue of depth %u", depth);
    }
    enum ox_status status = ring_init(&queue->ring, depth);
    if (status != OX_OK) {
        free(queue);
        return status;
    }
    queue->drives = calloc(drive_count, sizeof *queue->drives);
    queue->slots = calloc(depth, sizeof *queue->slots);
    queue->free_slots = calloc(depth, sizeof *queue->free_slots);
    if (queue->drives == NULL || queue->slots == NULL || queue->free_slots == NULL) {
        queue_close(queue);
        return ox_fail(OX_E_NOMEM, "no memory for an I/O queue of depth %u", depth);
    }
    for (uint32_t i = 0; i < drive_count; i++) {
        queue->drives[i] = drives[i];
    }
    for (uint32_t i = 0; i < depth; i++) {
        queue->free_slots[i] = depth - 1 - i;
    }
    queue->drive_count = drive_count;
    queue->depth = queue->free_count = depth;
    register_files(queue);
    *out = queue;
    return OX_OK;
}

/* Puts what is left of the slot's request into the ring. */
static void slot_issue(struct ox_io_queue *queue, uint32_t slot_idx) {
    struct slot *const slot = &queue->slots[slot_idx];
    const struct ox_io_progress *const progress = &slot->progress;
    const struct ox_io_req *const req = &progress->req;
    struct io_uring_sqe *const sqe = io_uring_get_sqe(&queue->ring);
    OX_ASSERT(sqe != NULL); /* the ring has as many entries as there are slots */
    const uint32_t drive_idx = progress->drive_idx;
    const int fd = queue->registered_files ? (int)drive_idx : ox_drive_file_fd(queue->drives[drive_idx]);
    unsigned char *const buffer = (unsigned char *)req->buffer + progress->done_bytes;
    const uint32_t bytes = req->bytes - progress->done_bytes;
    if (req->kind == OX_IO_READ) {
        io_uring_prep_read(sqe, fd, buffer, bytes, req->offset + progress->done_bytes);
    } else {
        io_uring_prep_write(sqe, fd, buffer, bytes, req->offset + progress->done_bytes);
    }
    if (queue->registered_files) {
        sqe->flags |= IOSQE_FIXED_FILE;
    }
    sqe->user_data = (uint64_t)slot->nonce << 32 | slot_idx;
}

static enum ox_status queue_submit(struct ox_io_queue *queue, uint32_t drive_idx,
                                   const struct ox_io_req *req) {
    OX_ASSERT(drive_idx < queue->drive_count && queue->free_count > 0);
    ox_drive_file_check(queue->drives[drive_idx], req);
    const uint32_t slot_idx = queue->free_slots[--queue->free_count];
    struct slot *const slot = &queue->slots[slot_idx];
    slot->progress = (struct ox_io_progress){.req = *req, .drive_idx = drive_idx};
    slot->nonce++;
    slot->live = true;
    queue->live_count++;
    slot_issue(queue, slot_idx);
    /* What the kernel does not take now stays in the ring; queue_reap submits it again and reports. */
    (void)io_uring_submit(&queue->ring);
    return OX_OK;
}

/* Submits what is pending and waits for a completion. */
static enum ox_status wait_cqe(struct ox_io_queue *queue, struct io_uring_cqe **cqe) {
    for (int tries = 0; io_uring_peek_cqe(&queue->ring, cqe) != 0;) {
        const int err = io_uring_submit_and_wait(&queue->ring, 1);
        if (err >= 0 || err == -EINTR) {
            continue;
        }
        /* The kernel is short of memory or its completion ring is full; the next peek empties that. */
        if ((err != -EAGAIN && err != -EBUSY) || ++tries > BUSY_TRIES_MAX) {
            return ox_fail_errno(OX_E_IO, -err, "io_uring gives no completions any more");
        }
        nanosleep(&(struct timespec){.tv_nsec = BUSY_WAIT_NS}, NULL);
    }
    return OX_OK;
}

static enum ox_status queue_reap(struct ox_io_queue *queue, struct ox_io_done *out) {
    OX_ASSERT(queue->live_count > 0);
    for (;;) {
        struct io_uring_cqe *cqe = NULL;
        const enum ox_status status = wait_cqe(queue, &cqe);
        if (status != OX_OK) {
            queue->live_count = 0; /* nothing comes back any more; the queue can only be closed */
            return status;
        }
        const uint32_t slot_idx = (uint32_t)cqe->user_data;
        const uint32_t nonce = (uint32_t)(cqe->user_data >> 32);
        const int result = cqe->res;
        io_uring_cqe_seen(&queue->ring, cqe);
        OX_ASSERT(slot_idx < queue->depth);
        struct slot *const slot = &queue->slots[slot_idx];
        OX_ASSERT(slot->live && slot->nonce == nonce);
        if (ox_io_advance(&slot->progress, queue->drives[slot->progress.drive_idx], result, out)) {
            slot->live = false;
            queue->live_count--;
            queue->free_slots[queue->free_count++] = slot_idx;
            return OX_OK;
        }
        slot_issue(queue, slot_idx);
    }
}

static void queue_info(const struct ox_io_queue *queue, struct ox_io_queue_info *out) {
    memset(out, 0, sizeof *out);
    out->registered_files = queue->registered_files;
    memcpy(out->note, queue->note, sizeof out->note);
}

static const struct ox_io_backend uring = {
    .name = "uring",
    .drive_open = ox_drive_file_open,
    .drive_allocate = ox_drive_file_allocate,
    .drive_flush = ox_drive_file_flush,
    .drive_info = ox_drive_file_info,
    .drive_close = ox_drive_file_close,
    .drive_remove = ox_drive_file_remove,
    .queue_open = queue_open,
    .queue_submit = queue_submit,
    .queue_reap = queue_reap,
    .queue_info = queue_info,
    .queue_close = queue_close,
};

const struct ox_io_backend *ox_io_uring(void) {
    return &uring;
}

const struct ox_io_backend *ox_io_probe(char *why) {
    struct io_uring ring;
    if (ring_init(&ring, 2) != OX_OK) {
        snprintf(why, 160, "threads, because %.120s", ox_error_text());
        return ox_io_threads();
    }
    io_uring_queue_exit(&ring);
    snprintf(why, 160, "io_uring can be set up here");
    return &uring;
}

const struct ox_io_backend *ox_io_by_name(const char *name) {
    char why[160];
    if (strcmp(name, "auto") == 0) {
        return ox_io_probe(why);
    }
    if (strcmp(name, "uring") == 0) {
        return &uring;
    }
    return strcmp(name, "threads") == 0 ? ox_io_threads() : NULL;
}
