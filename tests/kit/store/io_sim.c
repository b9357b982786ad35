/* A disk in memory with a volatile cache. It owns the drive files by path; each write keeps what it replaced until a
 * flush, so that a power cut can undo it. */
#include "tests/kit/store/io_sim.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/prng/prng.h"
#include "nvme/io_drive.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECTOR_BYTES = 512 };

/* The data that one write replaced; the list is newest first. */
struct undo {
    struct undo *older;
    uint64_t offset;
    uint32_t bytes;
    unsigned char data[];
};

struct sim_file {
    struct sim_file *next;
    unsigned char *data;
    uint64_t bytes;
    bool open;
    struct undo *undo;
    char path[];
};

struct sim {
    struct ox_io_backend backend;
    pthread_mutex_t mutex; /* guards everything below and the contents of files */
    uint64_t seed, draw_count;
    struct sim_file *files;
};

struct ox_drive {
    struct sim *sim;
    struct sim_file *file;
};

struct pending {
    struct ox_io_req req;
    uint32_t drive_idx;
};

struct ox_io_queue {
    struct sim *sim;
    struct ox_drive **drives;
    uint32_t drive_count, depth, pending_count;
    uint32_t *live_counts; /* per drive */
    struct pending *pending;
};

static uint32_t draw(struct sim *sim) {
    uint32_t words[4];
    ox_philox(sim->seed, 0x51d, sim->draw_count++, words);
    return words[0];
}

static struct sim_file *file_find(struct sim *sim, const char *path) {
    struct sim_file *file = sim->files;
    while (file != NULL && strcmp(file->path, path) != 0) {
        file = file->next;
    }
    return file;
}

static void undo_free(struct sim_file *file) {
    while (file->undo != NULL) {
        struct undo *const older = file->undo->older;
        free(file->undo);
        file->undo = older;
    }
}

static void file_free(struct sim_file *file) {
    undo_free(file);
    free(file->data);
    free(file);
}

static enum ox_status file_create(struct sim *sim, const char *path, struct sim_file **out) {
    const size_t path_bytes = strlen(path) + 1;
    struct sim_file *const file = calloc(1, sizeof *file + path_bytes);
    if (file == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for a simulated drive", path);
    }
    memcpy(file->path, path, path_bytes);
    file->next = sim->files;
    sim->files = file;
    *out = file;
    return OX_OK;
}

static enum ox_status file_open(struct sim *sim, const char *path, enum ox_drive_mode mode,
                                struct sim_file **out) {
    struct sim_file *file = file_find(sim, path);
    if (file == NULL && mode == OX_DRIVE_OPEN) {
        return ox_fail(OX_E_CONFIG, "%s: cannot open it: no such simulated file", path);
    }
    if (file != NULL && file->open) {
        return ox_fail(OX_E_BUSY, "%s: in use by another queue of this simulation", path);
    }
    if (file != NULL && mode == OX_DRIVE_CREATE && file->bytes > 0) {
        return ox_fail(OX_E_CONFIG, "%s: exists already; resume from it, or remove it for a fresh start",
                       path);
    }
    enum ox_status status = OX_OK;
    if (file == NULL) {
        status = file_create(sim, path, &file);
    }
    if (status == OX_OK) {
        file->open = true;
        *out = file;
    }
    return status;
}

static enum ox_status drive_open(const struct ox_io_backend *backend, const char *path,
                                 enum ox_drive_mode mode, struct ox_drive **out) {
    struct sim *const sim = backend->context;
    *out = NULL;
    struct ox_drive *const drive = calloc(1, sizeof *drive);
    if (drive == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to open it", path);
    }
    drive->sim = sim;
    pthread_mutex_lock(&sim->mutex);
    const enum ox_status status = file_open(sim, path, mode, &drive->file);
    pthread_mutex_unlock(&sim->mutex);
    if (status != OX_OK) {
        free(drive);
        return status;
    }
    *out = drive;
    return OX_OK;
}

static enum ox_status drive_allocate(struct ox_drive *drive, uint64_t bytes) {
    struct sim_file *const file = drive->file;
    pthread_mutex_lock(&drive->sim->mutex);
    undo_free(file);
    unsigned char *const data = bytes > 0 ? realloc(file->data, bytes) : NULL;
    const bool fits = bytes == 0 || data != NULL;
    if (fits) {
        if (bytes == 0) {
            free(file->data);
        } else if (bytes > file->bytes) {
            memset(data + file->bytes, 0, bytes - file->bytes);
        }
        file->data = data;
        file->bytes = bytes;
    }
    pthread_mutex_unlock(&drive->sim->mutex);
    return fits ? OX_OK : ox_fail(OX_E_CONFIG, "%s: no memory for a simulated drive", file->path);
}

static enum ox_status drive_flush(struct ox_drive *drive) {
    pthread_mutex_lock(&drive->sim->mutex);
    undo_free(drive->file);
    pthread_mutex_unlock(&drive->sim->mutex);
    return OX_OK;
}

static void drive_info(const struct ox_drive *drive, struct ox_drive_info *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->path, sizeof out->path, "%.*s", (int)sizeof out->path - 1, drive->file->path);
    out->bytes = drive->file->bytes;
    out->align_bytes = OX_IO_ALIGN_BYTES;
    out->direct = true;
}

static void drive_close(struct ox_drive *drive) {
    pthread_mutex_lock(&drive->sim->mutex);
    drive->file->open = false;
    pthread_mutex_unlock(&drive->sim->mutex);
    free(drive);
}

static enum ox_status drive_remove(const struct ox_io_backend *backend, const char *path) {
    struct sim *const sim = backend->context;
    enum ox_status status = OX_OK;
    pthread_mutex_lock(&sim->mutex);
    for (struct sim_file **at = &sim->files; *at != NULL; at = &(*at)->next) {
        if (strcmp((*at)->path, path) != 0) {
            continue;
        }
        struct sim_file *const file = *at;
        if (file->open) {
            status = ox_fail(OX_E_BUSY, "%s: in use by another queue of this simulation", path);
        } else {
            *at = file->next;
            file_free(file);
        }
        break;
    }
    pthread_mutex_unlock(&sim->mutex);
    return status;
}

static void queue_close(struct ox_io_queue *queue) {
    OX_ASSERT(queue->pending_count == 0);
    free(queue->drives);
    free(queue->live_counts);
    free(queue->pending);
    free(queue);
}

static enum ox_status queue_open(const struct ox_io_backend *backend, struct ox_drive *const *drives,
                                 uint32_t drive_count, uint32_t depth, struct ox_io_queue **out) {
    OX_ASSERT(depth > 0 && drive_count > 0);
    *out = NULL;
    struct ox_io_queue *const queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for an I/O queue of depth %u", depth);
    }
    queue->sim = backend->context;
    queue->drive_count = drive_count;
    queue->depth = depth;
    queue->drives = calloc(drive_count, sizeof *queue->drives);
    queue->live_counts = calloc(drive_count, sizeof *queue->live_counts);
    queue->pending = calloc((size_t)drive_count * depth, sizeof *queue->pending);
    if (queue->drives == NULL || queue->live_counts == NULL || queue->pending == NULL) {
        queue_close(queue);
        return ox_fail(OX_E_NOMEM, "no memory for an I/O queue of depth %u", depth);
    }
    memcpy(queue->drives, drives, drive_count * sizeof *drives);
    *out = queue;
    return OX_OK;
}

static void queue_register(struct ox_io_queue *queue, const struct ox_io_region *regions, uint32_t region_count) {
    (void)queue;
    (void)regions;
    (void)region_count;
}

static enum ox_status queue_submit(struct ox_io_queue *queue, uint32_t drive_idx, const struct ox_io_req *req) {
    OX_ASSERT(drive_idx < queue->drive_count && queue->live_counts[drive_idx] < queue->depth);
    ox_io_req_check(req, queue->drives[drive_idx]->file->bytes);
    queue->live_counts[drive_idx]++;
    queue->pending[queue->pending_count++] = (struct pending){.req = *req, .drive_idx = drive_idx};
    return OX_OK;
}

static void queue_kick(struct ox_io_queue *queue) {
    (void)queue;
}

static enum ox_status queue_wait(struct ox_io_queue *queue, uint64_t timeout_ns, bool *ready) {
    (void)timeout_ns;
    OX_ASSERT(queue->pending_count > 0);
    *ready = true;
    return OX_OK;
}

/* Writes, and keeps what was replaced; false without memory. */
static bool write_run(struct sim_file *file, const struct ox_io_req *req) {
    struct undo *const undo = malloc(sizeof *undo + req->bytes);
    if (undo == NULL) {
        return false;
    }
    undo->older = file->undo;
    undo->offset = req->offset;
    undo->bytes = req->bytes;
    memcpy(undo->data, file->data + req->offset, req->bytes);
    file->undo = undo;
    memcpy(file->data + req->offset, req->buffer, req->bytes);
    return true;
}

/* Runs requests when they are reaped, in random order by seed, because a drive may reorder them. */
static enum ox_status queue_reap(struct ox_io_queue *queue, struct ox_io_done *out) {
    OX_ASSERT(queue->pending_count > 0);
    struct sim *const sim = queue->sim;
    pthread_mutex_lock(&sim->mutex);
    const uint32_t idx = draw(sim) % queue->pending_count;
    const struct pending pending = queue->pending[idx];
    queue->pending[idx] = queue->pending[--queue->pending_count];
    queue->live_counts[pending.drive_idx]--;
    struct sim_file *const file = queue->drives[pending.drive_idx]->file;
    const struct ox_io_req *const req = &pending.req;
    bool ok = true;
    if (req->kind == OX_IO_READ) {
        memcpy(req->buffer, file->data + req->offset, req->bytes);
    } else {
        ok = write_run(file, req);
    }
    pthread_mutex_unlock(&sim->mutex);
    out->tag = req->tag;
    out->status = ok ? OX_OK : OX_E_IO;
    snprintf(out->text, sizeof out->text, "%s", ok ? "" : "no memory for the cache of a simulated drive");
    return OX_OK;
}

static void queue_info(const struct ox_io_queue *queue, struct ox_io_queue_info *out) {
    (void)queue;
    memset(out, 0, sizeof *out);
}

/* Decides an unflushed write's fate: one in four survives whole, one in four by sectors, the others are lost. */
static void undo_apply(struct sim *sim, struct sim_file *file, const struct undo *undo) {
    const uint32_t fate = draw(sim) % 4;
    if (fate == 0) {
        return;
    }
    for (uint32_t at = 0; at < undo->bytes; at += SECTOR_BYTES) {
        if (fate != 1 || draw(sim) % 2 == 0) {
            memcpy(file->data + undo->offset + at, undo->data + at, SECTOR_BYTES);
        }
    }
}

enum ox_status ox_io_sim_open(uint64_t seed, struct ox_io_backend **out) {
    *out = NULL;
    struct sim *const sim = calloc(1, sizeof *sim);
    if (sim == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for a simulated disk");
    }
    pthread_mutex_init(&sim->mutex, NULL);
    sim->seed = seed;
    sim->backend = (struct ox_io_backend){
        .name = "sim",
        .context = sim,
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
    *out = &sim->backend;
    return OX_OK;
}

void ox_io_sim_close(struct ox_io_backend **backend) {
    if (*backend == NULL) {
        return;
    }
    struct sim *const sim = (*backend)->context;
    while (sim->files != NULL) {
        struct sim_file *const file = sim->files;
        OX_ASSERT(!file->open);
        sim->files = file->next;
        file_free(file);
    }
    pthread_mutex_destroy(&sim->mutex);
    free(sim);
    *backend = NULL;
}

void ox_io_sim_power_cut(struct ox_io_backend *backend) {
    struct sim *const sim = backend->context;
    pthread_mutex_lock(&sim->mutex);
    for (struct sim_file *file = sim->files; file != NULL; file = file->next) {
        OX_ASSERT(!file->open);
        for (const struct undo *undo = file->undo; undo != NULL; undo = undo->older) {
            undo_apply(sim, file, undo);
        }
        undo_free(file);
    }
    pthread_mutex_unlock(&sim->mutex);
}

bool ox_io_sim_flip_bit(struct ox_io_backend *backend, const char *path, uint64_t byte, unsigned bit) {
    struct sim *const sim = backend->context;
    pthread_mutex_lock(&sim->mutex);
    struct sim_file *const file = file_find(sim, path);
    const bool inside = file != NULL && byte < file->bytes && bit < 8;
    if (inside) {
        file->data[byte] ^= (unsigned char)(1u << bit);
    }
    pthread_mutex_unlock(&sim->mutex);
    return inside;
}
