/* The io_uring backend, with one ring per drive and no polling thread, and the choice of a backend. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/bytes.h"
#include "nvme/io_drive.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    BUSY_WAIT_NS = 1000 * 1000,
    BUSY_TRIES_MAX = 10 * 1000, /* about ten seconds without progress in the kernel */
    PIECES_MAX = 256,           /* registered buffers of a ring */
    BATCH_MAX = 8,              /* requests held back at most */
    PROBED_OPS = 256,           /* as many as the kernel is asked about */
};
#define PIECE_BYTES_MAX (UINT64_C(1) << 30) /* the kernel's limit for a registered buffer */
#define REAP_WAIT_NS    (UINT64_C(1000000000) * 3600)

struct slot {
    struct ox_io_progress progress;
    uint32_t nonce; /* tells completions of this use of the slot from stray ones */
    bool live;
};

struct ring {
    struct io_uring uring;
    const struct ox_drive *drive;
    uint32_t live_count, free_count, held_count; /* held: in the ring, not submitted to the kernel yet */
    struct slot *slots;
    uint32_t *free_slots;
    bool is_open, fixed_file;
};

struct ox_io_queue {
    struct ring *rings; /* one per drive */
    struct pollfd *polls;
    struct ox_io_region pieces[PIECES_MAX]; /* registered with every ring, each at most PIECE_BYTES_MAX */
    uint32_t drive_count, depth, batch, live_count, piece_count;
    uint32_t ring_next; /* where the next search for a completion starts */
    bool registered_buffers;
    char note[160];
};

/* Sets up a ring; fails when the kernel lacks an operation that is needed. */
static enum ox_status ring_init(struct io_uring *ring, uint32_t depth) {
    const int err = io_uring_queue_init(depth, ring, 0);
    if (err < 0) {
        return ox_fail_errno(OX_E_IO, -err, "io_uring cannot be used on this system");
    }
    struct io_uring_probe *const probe = calloc(1, sizeof *probe + PROBED_OPS * sizeof *probe->ops);
    const bool able = probe != NULL && io_uring_register_probe(ring, probe, PROBED_OPS) == 0 &&
                      io_uring_opcode_supported(probe, IORING_OP_READ) &&
                      io_uring_opcode_supported(probe, IORING_OP_WRITE) && (ring->features & IORING_FEAT_EXT_ARG) != 0;
    const enum ox_status status =
        probe == NULL ? ox_fail(OX_E_NOMEM, "no memory to ask what io_uring can do")
        : able        ? OX_OK
               : ox_fail(OX_E_IO, "this kernel's io_uring lacks plain reads and writes, or waiting with a timeout");
    free(probe);
    if (status != OX_OK) {
        io_uring_queue_exit(ring);
    }
    return status;
}

static void queue_close(struct ox_io_queue *queue) {
    OX_ASSERT(queue->live_count == 0);
    for (uint32_t i = 0; queue->rings != NULL && i < queue->drive_count; i++) {
        struct ring *const ring = &queue->rings[i];
        if (ring->is_open) {
            io_uring_queue_exit(&ring->uring);
        }
        free(ring->slots);
        free(ring->free_slots);
    }
    free(queue->rings);
    free(queue->polls);
    free(queue);
}

static enum ox_status ring_open(struct ox_io_queue *queue, struct ring *ring, const struct ox_drive *drive) {
    const uint32_t depth = queue->depth;
    ring->drive = drive;
    ring->slots = calloc(depth, sizeof *ring->slots);
    ring->free_slots = calloc(depth, sizeof *ring->free_slots);
    if (ring->slots == NULL || ring->free_slots == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for an I/O queue of depth %u", depth);
    }
    for (uint32_t i = 0; i < depth; i++) {
        ring->free_slots[i] = depth - 1 - i;
    }
    ring->free_count = depth;
    const enum ox_status status = ring_init(&ring->uring, depth);
    ring->is_open = status == OX_OK;
    if (status != OX_OK) {
        return status;
    }
    const int fd = ox_drive_file_fd(drive);
    const int err = io_uring_register_files(&ring->uring, &fd, 1);
    ring->fixed_file = err == 0;
    if (err < 0) {
        snprintf(queue->note, sizeof queue->note, "files not registered: %s", strerror(-err));
    }
    return OX_OK;
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
    queue->drive_count = drive_count;
    queue->depth = depth;
    queue->batch = (uint32_t)ox_min_u64(BATCH_MAX, ox_div_up(depth, 4));
    queue->rings = calloc(drive_count, sizeof *queue->rings);
    queue->polls = calloc(drive_count, sizeof *queue->polls);
    enum ox_status status = OX_OK;
    if (queue->rings == NULL || queue->polls == NULL) {
        status = ox_fail(OX_E_NOMEM, "no memory for an I/O queue of depth %u", depth);
    }
    for (uint32_t i = 0; i < drive_count && status == OX_OK; i++) {
        status = ring_open(queue, &queue->rings[i], drives[i]);
    }
    if (status != OX_OK) {
        queue_close(queue);
        return status;
    }
    *out = queue;
    return OX_OK;
}

/* ---- registered buffers ---------------------------------------------------------------------------- */

/* Cuts regions into buffers that the kernel accepts; false when there are too many. */
static bool pieces_cut(struct ox_io_queue *queue, const struct ox_io_region *regions, uint32_t region_count) {
    for (uint32_t i = 0; i < region_count; i++) {
        for (uint64_t at = 0; at < regions[i].bytes; at += PIECE_BYTES_MAX) {
            if (queue->piece_count == PIECES_MAX) {
                return false;
            }
            queue->pieces[queue->piece_count++] = (struct ox_io_region){
                .base = (unsigned char *)regions[i].base + at,
                .bytes = ox_min_u64(PIECE_BYTES_MAX, regions[i].bytes - at),
            };
        }
    }
    return true;
}

/* Notes why registration failed; usually the limit of locked memory. */
static void register_refused(struct ox_io_queue *queue, int err) {
    if (err == ENOMEM) {
        snprintf(
            queue->note, sizeof queue->note,
            "buffers not registered: they exceed the limit of locked memory; raise `ulimit -l` for faster transfers");
    } else {
        snprintf(queue->note, sizeof queue->note, "buffers not registered: %s", strerror(err));
    }
}

static void queue_register(struct ox_io_queue *queue, const struct ox_io_region *regions, uint32_t region_count) {
    OX_ASSERT(queue->piece_count == 0 && queue->live_count == 0);
    if (!pieces_cut(queue, regions, region_count)) {
        queue->piece_count = 0;
        snprintf(queue->note, sizeof queue->note, "buffers not registered: more than %d GiB", PIECES_MAX);
        return;
    }
    struct iovec vecs[PIECES_MAX];
    for (uint32_t i = 0; i < queue->piece_count; i++) {
        vecs[i] = (struct iovec){.iov_base = queue->pieces[i].base, .iov_len = queue->pieces[i].bytes};
    }
    int err = 0;
    uint32_t done = 0;
    while (done < queue->drive_count && queue->piece_count > 0 && err == 0) {
        err = io_uring_register_buffers(&queue->rings[done].uring, vecs, queue->piece_count);
        done += err == 0;
    }
    queue->registered_buffers = err == 0 && queue->piece_count > 0;
    if (err != 0) {
        while (done > 0) {
            io_uring_unregister_buffers(&queue->rings[--done].uring);
        }
        queue->piece_count = 0;
        register_refused(queue, -err);
    }
}

/* Returns the index of the registered buffer that holds the whole range, or -1. */
static int piece_of(const struct ox_io_queue *queue, const unsigned char *from, uint32_t bytes) {
    for (uint32_t i = 0; i < queue->piece_count; i++) {
        const unsigned char *const base = queue->pieces[i].base;
        if (from >= base && from + bytes <= base + queue->pieces[i].bytes) {
            return (int)i;
        }
    }
    return -1;
}

/* ---- requests -------------------------------------------------------------------------------------- */

/* Puts the rest of the slot's request into the ring. */
static void slot_issue(struct ox_io_queue *queue, struct ring *ring, uint32_t slot_idx) {
    struct slot *const slot = &ring->slots[slot_idx];
    const struct ox_io_progress *const progress = &slot->progress;
    const struct ox_io_req *const req = &progress->req;
    struct io_uring_sqe *const sqe = io_uring_get_sqe(&ring->uring);
    OX_ASSERT(sqe != NULL); /* the ring has as many entries as there are slots */
    const int fd = ring->fixed_file ? 0 : ox_drive_file_fd(ring->drive);
    unsigned char *const buffer = (unsigned char *)req->buffer + progress->done_bytes;
    const uint32_t bytes = req->bytes - progress->done_bytes;
    const uint64_t offset = req->offset + progress->done_bytes;
    const int piece = piece_of(queue, buffer, bytes);
    if (req->kind == OX_IO_READ && piece >= 0) {
        io_uring_prep_read_fixed(sqe, fd, buffer, bytes, offset, piece);
    } else if (req->kind == OX_IO_READ) {
        io_uring_prep_read(sqe, fd, buffer, bytes, offset);
    } else if (piece >= 0) {
        io_uring_prep_write_fixed(sqe, fd, buffer, bytes, offset, piece);
    } else {
        io_uring_prep_write(sqe, fd, buffer, bytes, offset);
    }
    if (ring->fixed_file) {
        sqe->flags |= IOSQE_FIXED_FILE;
    }
    sqe->user_data = (uint64_t)slot->nonce << 32 | slot_idx;
    ring->held_count++;
}

/* Submits held requests. Those that the kernel does not accept stay in the ring; wait_ready submits them again and
 * reports errors. */
static int ring_kick(struct ring *ring) {
    if (ring->held_count == 0) {
        return 0;
    }
    const int sent = io_uring_submit(&ring->uring);
    ring->held_count = io_uring_sq_ready(&ring->uring);
    return sent < 0 ? sent : 0;
}

static void queue_kick(struct ox_io_queue *queue) {
    for (uint32_t i = 0; i < queue->drive_count; i++) {
        (void)ring_kick(&queue->rings[i]);
    }
}

static enum ox_status queue_submit(struct ox_io_queue *queue, uint32_t drive_idx, const struct ox_io_req *req) {
    OX_ASSERT(drive_idx < queue->drive_count && queue->rings[drive_idx].free_count > 0);
    struct ring *const ring = &queue->rings[drive_idx];
    ox_drive_file_check(ring->drive, req);
    const uint32_t slot_idx = ring->free_slots[--ring->free_count];
    struct slot *const slot = &ring->slots[slot_idx];
    slot->progress = (struct ox_io_progress){.req = *req, .drive_idx = drive_idx};
    slot->nonce++;
    slot->live = true;
    ring->live_count++;
    queue->live_count++;
    slot_issue(queue, ring, slot_idx);
    if (ring->held_count >= queue->batch) {
        (void)ring_kick(ring);
    }
    return OX_OK;
}

/* Finds a ring with a completion, starting after the ring that gave the last one, so that no drive starves. */
static struct ring *ring_ready(struct ox_io_queue *queue) {
    for (uint32_t i = 0; i < queue->drive_count; i++) {
        const uint32_t idx = (queue->ring_next + i) % queue->drive_count;
        struct io_uring_cqe *cqe = NULL;
        if (queue->rings[idx].live_count > 0 && io_uring_peek_cqe(&queue->rings[idx].uring, &cqe) == 0) {
            return &queue->rings[idx];
        }
    }
    return NULL;
}

/* Submits held requests and waits on one ring in a single system call. Returns a negative errno on failure. */
static int wait_one(struct ring *ring, uint64_t timeout_ns) {
    struct __kernel_timespec limit = {.tv_sec = (long long)(timeout_ns / 1000000000),
                                      .tv_nsec = (long long)(timeout_ns % 1000000000)};
    struct io_uring_cqe *cqe = NULL;
    const int err = io_uring_submit_and_wait_timeout(&ring->uring, &cqe, 1, &limit, NULL);
    ring->held_count = io_uring_sq_ready(&ring->uring);
    return err < 0 ? err : 0;
}

/* Waits for a completion on any ring; returns a negative errno on failure, -ETIME on timeout. */
static int wait_any(struct ox_io_queue *queue, uint64_t timeout_ns) {
    uint32_t live = 0, last = 0;
    for (uint32_t i = 0; i < queue->drive_count; i++) {
        live += queue->rings[i].live_count > 0;
        last = queue->rings[i].live_count > 0 ? i : last;
    }
    if (live == 1) {
        return wait_one(&queue->rings[last], timeout_ns);
    }
    for (uint32_t i = 0; i < queue->drive_count; i++) {
        const int err = ring_kick(&queue->rings[i]);
        if (err < 0) {
            return err;
        }
        const bool waits = queue->rings[i].live_count > 0;
        queue->polls[i] = (struct pollfd){.fd = waits ? queue->rings[i].uring.ring_fd : -1, .events = POLLIN};
    }
    const struct timespec limit = {.tv_sec = (time_t)(timeout_ns / 1000000000),
                                   .tv_nsec = (long)(timeout_ns % 1000000000)};
    const int count = ppoll(queue->polls, queue->drive_count, &limit, NULL);
    return count > 0 ? 0 : count == 0 ? -ETIME : -errno;
}

/* Waits for a ring with a completion; *ring is NULL on timeout. */
static enum ox_status wait_ready(struct ox_io_queue *queue, uint64_t timeout_ns, struct ring **ring) {
    const uint64_t deadline_ns = ox_clock_ns() + timeout_ns;
    for (int tries = 0; (*ring = ring_ready(queue)) == NULL;) {
        const uint64_t now_ns = ox_clock_ns();
        if (now_ns >= deadline_ns) {
            queue_kick(queue);
            return OX_OK;
        }
        const int err = wait_any(queue, deadline_ns - now_ns);
        if (err == 0 || err == -EINTR || err == -ETIME) {
            continue;
        }
        /* The kernel is short of memory or a completion ring is full, which the next search empties. */
        if ((err != -EAGAIN && err != -EBUSY) || ++tries > BUSY_TRIES_MAX) {
            queue->live_count = 0; /* no request returns any more; the queue can only be closed */
            return ox_fail_errno(OX_E_IO, -err, "io_uring returns no more completions; end the process and resume");
        }
        nanosleep(&(struct timespec){.tv_nsec = BUSY_WAIT_NS}, NULL);
    }
    queue_kick(queue); /* submit now: the caller may be busy with the completion for long */
    return OX_OK;
}

static enum ox_status queue_wait(struct ox_io_queue *queue, uint64_t timeout_ns, bool *ready) {
    OX_ASSERT(queue->live_count > 0);
    struct ring *ring = NULL;
    const enum ox_status status = wait_ready(queue, timeout_ns, &ring);
    *ready = ring != NULL;
    return status;
}

static enum ox_status queue_reap(struct ox_io_queue *queue, struct ox_io_done *out) {
    OX_ASSERT(queue->live_count > 0);
    for (;;) {
        struct ring *ring = NULL;
        const enum ox_status status = wait_ready(queue, REAP_WAIT_NS, &ring);
        if (status != OX_OK) {
            return status;
        }
        struct io_uring_cqe *cqe = NULL;
        if (ring == NULL || io_uring_peek_cqe(&ring->uring, &cqe) != 0) {
            continue;
        }
        const uint32_t slot_idx = (uint32_t)cqe->user_data;
        const uint32_t nonce = (uint32_t)(cqe->user_data >> 32);
        const int result = cqe->res;
        io_uring_cqe_seen(&ring->uring, cqe);
        OX_ASSERT(slot_idx < queue->depth);
        struct slot *const slot = &ring->slots[slot_idx];
        OX_ASSERT(slot->live && slot->nonce == nonce);
        if (ox_io_advance(&slot->progress, ox_drive_file_path(ring->drive), result, out)) {
            slot->live = false;
            ring->live_count--;
            queue->live_count--;
            ring->free_slots[ring->free_count++] = slot_idx;
            queue->ring_next = (slot->progress.drive_idx + 1) % queue->drive_count;
            return OX_OK;
        }
        slot_issue(queue, ring, slot_idx);
    }
}

static void queue_info(const struct ox_io_queue *queue, struct ox_io_queue_info *out) {
    memset(out, 0, sizeof *out);
    out->registered_files = true;
    for (uint32_t i = 0; i < queue->drive_count; i++) {
        out->registered_files = out->registered_files && queue->rings[i].fixed_file;
    }
    out->registered_buffers = queue->registered_buffers;
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
    .queue_register = queue_register,
    .queue_submit = queue_submit,
    .queue_kick = queue_kick,
    .queue_wait = queue_wait,
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
    snprintf(why, 160, "io_uring works here");
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
