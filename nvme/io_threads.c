/* The threads backend: pread and pwrite on a few threads per drive, for systems that deny io_uring. */
#include "base/assert.h"
#include "base/bytes.h"
#include "nvme/io_drive.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS_MAX = 64, DRIVE_WORKERS_MAX = 16, WORKER_STACK_BYTES = 128 << 10 };

/* A FIFO of slot indices, with room for all slots. */
struct fifo {
    uint32_t *slots;
    uint32_t head, count;
};

struct slot {
    struct ox_io_progress progress;
    struct ox_io_done done;
};

/* Each drive has its own threads, so that a slow drive does not delay the others. */
struct drive_work {
    struct ox_io_queue *queue;
    const struct ox_drive *drive;
    uint32_t live_count; /* used only by the queue's owner */
    struct fifo work;    /* guarded by the queue's mutex */
    pthread_cond_t has_work;
};

struct ox_io_queue {
    struct drive_work *drives;
    uint32_t drive_count, depth, slot_count, live_count;
    struct slot *slots;

    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t has_done;
    struct fifo free, done;
    bool stopping;

    uint32_t worker_count;
    pthread_t workers[WORKERS_MAX];
};

static void fifo_push(struct fifo *fifo, uint32_t slot_count, uint32_t slot_idx) {
    OX_ASSERT(fifo->count < slot_count);
    fifo->slots[(fifo->head + fifo->count) % slot_count] = slot_idx;
    fifo->count++;
}

static uint32_t fifo_pop(struct fifo *fifo, uint32_t slot_count) {
    OX_ASSERT(fifo->count > 0);
    const uint32_t slot_idx = fifo->slots[fifo->head];
    fifo->head = (fifo->head + 1) % slot_count;
    fifo->count--;
    return slot_idx;
}

/* Transfers a whole request, resuming short results. */
static void slot_run(const struct ox_drive *drive, struct slot *slot) {
    struct ox_io_progress *const progress = &slot->progress;
    const struct ox_io_req *const req = &progress->req;
    const int fd = ox_drive_file_fd(drive);
    ssize_t result = 0;
    do {
        unsigned char *const buffer = (unsigned char *)req->buffer + progress->done_bytes;
        const size_t bytes = req->bytes - progress->done_bytes;
        const off_t offset = (off_t)(req->offset + progress->done_bytes);
        result = req->kind == OX_IO_READ ? pread(fd, buffer, bytes, offset) : pwrite(fd, buffer, bytes, offset);
    } while (!ox_io_advance(progress, ox_drive_file_path(drive), result < 0 ? -errno : result, &slot->done));
}

/* A thread of one drive: runs its requests until the queue closes. */
static void *worker_main(void *arg) {
    struct drive_work *const drive = arg;
    struct ox_io_queue *const queue = drive->queue;
    pthread_mutex_lock(&queue->mutex);
    for (;;) {
        while (drive->work.count == 0 && !queue->stopping) {
            pthread_cond_wait(&drive->has_work, &queue->mutex);
        }
        if (drive->work.count == 0) {
            break;
        }
        const uint32_t slot_idx = fifo_pop(&drive->work, queue->slot_count);
        pthread_mutex_unlock(&queue->mutex);
        slot_run(drive->drive, &queue->slots[slot_idx]);
        pthread_mutex_lock(&queue->mutex);
        fifo_push(&queue->done, queue->slot_count, slot_idx);
        pthread_mutex_unlock(&queue->mutex);
        /* Without the lock, for which the thread that wakes up would only sleep again. */
        pthread_cond_signal(&queue->has_done);
        pthread_mutex_lock(&queue->mutex);
    }
    pthread_mutex_unlock(&queue->mutex);
    return NULL;
}

static void queue_close(struct ox_io_queue *queue) {
    OX_ASSERT(queue->live_count == 0);
    pthread_mutex_lock(&queue->mutex);
    queue->stopping = true;
    for (uint32_t i = 0; queue->drives != NULL && i < queue->drive_count; i++) {
        pthread_cond_broadcast(&queue->drives[i].has_work);
    }
    pthread_mutex_unlock(&queue->mutex);
    for (uint32_t i = 0; i < queue->worker_count; i++) {
        pthread_join(queue->workers[i], NULL);
    }
    for (uint32_t i = 0; queue->drives != NULL && i < queue->drive_count; i++) {
        pthread_cond_destroy(&queue->drives[i].has_work);
        free(queue->drives[i].work.slots);
    }
    pthread_cond_destroy(&queue->has_done);
    pthread_mutex_destroy(&queue->mutex);
    free(queue->drives);
    free(queue->slots);
    free(queue->free.slots);
    free(queue->done.slots);
    free(queue);
}

/* Starts the threads of all drives, together at most WORKERS_MAX; returns an errno. */
static int workers_start(struct ox_io_queue *queue) {
    pthread_attr_t attr;
    int err = pthread_attr_init(&attr);
    if (err != 0) {
        return err;
    }
    err = pthread_attr_setstacksize(&attr, WORKER_STACK_BYTES);
    const uint32_t share = WORKERS_MAX / queue->drive_count > 0 ? WORKERS_MAX / queue->drive_count : 1;
    const uint64_t each = ox_min_u64(queue->depth, ox_min_u64(DRIVE_WORKERS_MAX, share));
    for (uint64_t i = 0; i < each * queue->drive_count && err == 0; i++) {
        err = pthread_create(&queue->workers[queue->worker_count], &attr, worker_main, &queue->drives[i / each]);
        queue->worker_count += err == 0;
    }
    pthread_attr_destroy(&attr);
    return err;
}

static bool queue_alloc(struct ox_io_queue *queue, struct ox_drive *const *drives) {
    const uint32_t count = queue->slot_count;
    queue->drives = calloc(queue->drive_count, sizeof *queue->drives);
    queue->slots = calloc(count, sizeof *queue->slots);
    queue->free.slots = calloc(count, sizeof *queue->free.slots);
    queue->done.slots = calloc(count, sizeof *queue->done.slots);
    bool all = queue->drives != NULL && queue->slots != NULL && queue->free.slots != NULL && queue->done.slots != NULL;
    for (uint32_t i = 0; queue->drives != NULL && i < queue->drive_count; i++) {
        struct drive_work *const drive = &queue->drives[i];
        drive->queue = queue;
        drive->drive = drives[i];
        pthread_cond_init(&drive->has_work, NULL);
        drive->work.slots = calloc(count, sizeof *drive->work.slots);
        all = all && drive->work.slots != NULL;
    }
    for (uint32_t i = 0; all && i < count; i++) {
        fifo_push(&queue->free, count, i);
    }
    return all;
}

/* Lets timed waits use the monotonic clock. */
static void done_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

static enum ox_status queue_open(const struct ox_io_backend *backend, struct ox_drive *const *drives,
                                 uint32_t drive_count, uint32_t depth, struct ox_io_queue **out) {
    (void)backend;
    OX_ASSERT(depth > 0 && drive_count > 0 && drive_count <= WORKERS_MAX && depth <= UINT32_MAX / drive_count);
    *out = NULL;
    struct ox_io_queue *const queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for an I/O queue of depth %u", depth);
    }
    pthread_mutex_init(&queue->mutex, NULL);
    done_cond_init(&queue->has_done);
    queue->drive_count = drive_count;
    queue->depth = depth;
    queue->slot_count = drive_count * depth;
    if (!queue_alloc(queue, drives)) {
        queue_close(queue);
        return ox_fail(OX_E_NOMEM, "no memory for an I/O queue of depth %u", depth);
    }
    const int err = workers_start(queue);
    if (err != 0) {
        queue_close(queue);
        return ox_fail_errno(OX_E_NOMEM, err, "cannot start the threads of an I/O queue");
    }
    *out = queue;
    return OX_OK;
}

static void queue_register(struct ox_io_queue *queue, const struct ox_io_region *regions, uint32_t region_count) {
    (void)queue;
    (void)regions;
    (void)region_count;
}

static enum ox_status queue_submit(struct ox_io_queue *queue, uint32_t drive_idx, const struct ox_io_req *req) {
    OX_ASSERT(drive_idx < queue->drive_count && queue->drives[drive_idx].live_count < queue->depth);
    struct drive_work *const drive = &queue->drives[drive_idx];
    ox_drive_file_check(drive->drive, req);
    queue->live_count++;
    drive->live_count++;
    pthread_mutex_lock(&queue->mutex);
    const uint32_t slot_idx = fifo_pop(&queue->free, queue->slot_count);
    queue->slots[slot_idx].progress = (struct ox_io_progress){.req = *req, .drive_idx = drive_idx};
    fifo_push(&drive->work, queue->slot_count, slot_idx);
    pthread_mutex_unlock(&queue->mutex);
    pthread_cond_signal(&drive->has_work);
    return OX_OK;
}

static void queue_kick(struct ox_io_queue *queue) {
    (void)queue;
}

static enum ox_status queue_wait(struct ox_io_queue *queue, uint64_t timeout_ns, bool *ready) {
    OX_ASSERT(queue->live_count > 0);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t ns = (uint64_t)until.tv_nsec + timeout_ns;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&queue->mutex);
    int err = 0;
    while (queue->done.count == 0 && err == 0) {
        err = pthread_cond_timedwait(&queue->has_done, &queue->mutex, &until);
    }
    *ready = queue->done.count > 0;
    pthread_mutex_unlock(&queue->mutex);
    return OX_OK;
}

static enum ox_status queue_reap(struct ox_io_queue *queue, struct ox_io_done *out) {
    OX_ASSERT(queue->live_count > 0);
    pthread_mutex_lock(&queue->mutex);
    while (queue->done.count == 0) {
        pthread_cond_wait(&queue->has_done, &queue->mutex);
    }
    const uint32_t slot_idx = fifo_pop(&queue->done, queue->slot_count);
    const struct slot *const slot = &queue->slots[slot_idx];
    *out = slot->done;
    queue->drives[slot->progress.drive_idx].live_count--;
    fifo_push(&queue->free, queue->slot_count, slot_idx);
    pthread_mutex_unlock(&queue->mutex);
    queue->live_count--;
    return OX_OK;
}

static void queue_info(const struct ox_io_queue *queue, struct ox_io_queue_info *out) {
    (void)queue;
    memset(out, 0, sizeof *out);
    snprintf(out->note, sizeof out->note, "pread and pwrite need no registration");
}

static const struct ox_io_backend threads = {
    .name = "threads",
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

const struct ox_io_backend *ox_io_threads(void) {
    return &threads;
}
