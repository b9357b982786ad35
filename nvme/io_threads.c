/* The threads backend: pread and pwrite on a few threads, where io_uring is denied. */
#include "base/assert.h"
#include "nvme/io_drive.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORKERS_MAX = 16, WORKER_STACK_BYTES = 128 << 10 };

/* Slot indices, first in, first out; holds at most as many as there are slots. */
struct fifo {
    uint32_t *slots;
    uint32_t head, count;
};

struct slot {
    struct ox_io_progress progress;
    struct ox_io_done done;
};

struct ox_io_queue {
    const struct ox_drive **drives;
    uint32_t drive_count, depth, live_count;
    struct slot *slots;

    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t has_work, has_done;
    struct fifo free, work, done;
    bool stopping;

    uint32_t worker_count;
    pthread_t workers[WORKERS_MAX];
};

static void fifo_push(struct fifo *fifo, uint32_t depth, uint32_t slot_idx) {
    OX_ASSERT(fifo->count < depth);
    fifo->slots[(fifo->head + fifo->count) % depth] = slot_idx;
    fifo->count++;
}

static uint32_t fifo_pop(struct fifo *fifo, uint32_t depth) {
    OX_ASSERT(fifo->count > 0);
    const uint32_t slot_idx = fifo->slots[fifo->head];
    fifo->head = (fifo->head + 1) % depth;
    fifo->count--;
    return slot_idx;
}

static void slot_run(struct ox_io_queue *queue, struct slot *slot) {
    struct ox_io_progress *const progress = &slot->progress;
    const struct ox_io_req *const req = &progress->req;
    const struct ox_drive *const drive = queue->drives[progress->drive_idx];
    const int fd = ox_drive_file_fd(drive);
    ssize_t result = 0;
    do {
        unsigned char *const buffer = (unsigned char *)req->buffer + progress->done_bytes;
        const size_t bytes = req->bytes - progress->done_bytes;
        const off_t offset = (off_t)(req->offset + progress->done_bytes);
        result =
            req->kind == OX_IO_READ ? pread(fd, buffer, bytes, offset) : pwrite(fd, buffer, bytes, offset);
    } while (!ox_io_advance(progress, drive, result < 0 ? -errno : result, &slot->done));
}

static void *worker_main(void *arg) {
    struct ox_io_queue *const queue = arg;
    pthread_mutex_lock(&queue->mutex);
    for (;;) {
        while (queue->work.count == 0 && !queue->stopping) {
            pthread_cond_wait(&queue->has_work, &queue->mutex);
        }
        if (queue->work.count == 0) {
            break;
        }
        const uint32_t slot_idx = fifo_pop(&queue->work, queue->depth);
        pthread_mutex_unlock(&queue->mutex);
        slot_run(queue, &queue->slots[slot_idx]);
        pthread_mutex_lock(&queue->mutex);
        fifo_push(&queue->done, queue->depth, slot_idx);
        pthread_cond_signal(&queue->has_done);
    }
    pthread_mutex_unlock(&queue->mutex);
    return NULL;
}

static void queue_close(struct ox_io_queue *queue) {
    OX_ASSERT(queue->live_count == 0);
    pthread_mutex_lock(&queue->mutex);
    queue->stopping = true;
    pthread_cond_broadcast(&queue->has_work);
    pthread_mutex_unlock(&queue->mutex);
    for (uint32_t i = 0; i < queue->worker_count; i++) {
        pthread_join(queue->workers[i], NULL);
    }
    pthread_cond_destroy(&queue->has_work);
    pthread_cond_destroy(&queue->has_done);
    pthread_mutex_destroy(&queue->mutex);
    free(queue->drives);
    free(queue->slots);
    free(queue->free.slots);
    free(queue->work.slots);
    free(queue->done.slots);
    free(queue);
}

static int workers_start(struct ox_io_queue *queue) {
    pthread_attr_t attr;
    int err = pthread_attr_init(&attr);
    if (err != 0) {
        return err;
    }
    err = pthread_attr_setstacksize(&attr, WORKER_STACK_BYTES);
    const uint32_t count = queue->depth < WORKERS_MAX ? queue->depth : WORKERS_MAX;
    while (err == 0 && queue->worker_count < count) {
        err = pthread_create(&queue->workers[queue->worker_count], &attr, worker_main, queue);
        queue->worker_count += err == 0;
    }
    pthread_attr_destroy(&attr);
    return err;
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
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->has_work, NULL);
    pthread_cond_init(&queue->has_done, NULL);
    queue->drives = calloc(drive_count, sizeof *queue->drives);
    queue->slots = calloc(depth, sizeof *queue->slots);
    queue->free.slots = calloc(depth, sizeof *queue->free.slots);
    queue->work.slots = calloc(depth, sizeof *queue->work.slots);
    queue->done.slots = calloc(depth, sizeof *queue->done.slots);
    if (queue->drives == NULL || queue->slots == NULL || queue->free.slots == NULL ||
        queue->work.slots == NULL || queue->done.slots == NULL) {
        queue_close(queue);
        return ox_fail(OX_E_NOMEM, "no memory for an I/O queue of depth %u", depth);
    }
    queue->drive_count = drive_count;
    queue->depth = depth;
    for (uint32_t i = 0; i < drive_count; i++) {
        queue->drives[i] = drives[i];
    }
    for (uint32_t i = 0; i < depth; i++) {
        fifo_push(&queue->free, depth, i);
    }
    const int err = workers_start(queue);
    if (err != 0) {
        queue_close(queue);
        return ox_fail_errno(OX_E_NOMEM, err, "cannot start the threads of an I/O queue");
    }
    *out = queue;
    return OX_OK;
}

static enum ox_status queue_submit(struct ox_io_queue *queue, uint32_t drive_idx,
                                   const struct ox_io_req *req) {
    OX_ASSERT(drive_idx < queue->drive_count && queue->live_count < queue->depth);
    ox_drive_file_check(queue->drives[drive_idx], req);
    queue->live_count++;
    pthread_mutex_lock(&queue->mutex);
    const uint32_t slot_idx = fifo_pop(&queue->free, queue->depth);
    queue->slots[slot_idx].progress = (struct ox_io_progress){.req = *req, .drive_idx = drive_idx};
    fifo_push(&queue->work, queue->depth, slot_idx);
    pthread_cond_signal(&queue->has_work);
    pthread_mutex_unlock(&queue->mutex);
    return OX_OK;
}

static enum ox_status queue_reap(struct ox_io_queue *queue, struct ox_io_done *out) {
    OX_ASSERT(queue->live_count > 0);
    pthread_mutex_lock(&queue->mutex);
    while (queue->done.count == 0) {
        pthread_cond_wait(&queue->has_done, &queue->mutex);
    }
    const uint32_t slot_idx = fifo_pop(&queue->done, queue->depth);
    *out = queue->slots[slot_idx].done;
    fifo_push(&queue->free, queue->depth, slot_idx);
    pthread_mutex_unlock(&queue->mutex);
    queue->live_count--;
    return OX_OK;
}

static void queue_info(const struct ox_io_queue *queue, struct ox_io_queue_info *out) {
    (void)queue;
    memset(out, 0, sizeof *out);
    snprintf(out->note, sizeof out->note, "pread and pwrite register nothing");
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
    .queue_submit = queue_submit,
    .queue_reap = queue_reap,
    .queue_info = queue_info,
    .queue_close = queue_close,
};

const struct ox_io_backend *ox_io_threads(void) {
    return &threads;
}
