/* Drives a drive as the engine does: requests as fast as they complete. */
#include "engine/measure/probe.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/prng/prng.h"

#include <string.h>
#include <time.h>

enum { SMALL_READS = 64, FLUSHES = 16 };

/* ---- requests ------------------------------------------------------------------------------------------ */

/* Generates the requests of a work. */
struct sequence {
    enum ox_probe_work work;
    uint64_t bytes;
    uint64_t at[2]; /* next offsets of reads and writes; in the mix each has half of the file */
    uint64_t count, sent_bytes;
};

static bool sequence_next(struct sequence *sequence, struct ox_io_req *req) {
    const bool mix = sequence->work == OX_PROBE_MIX;
    if (sequence->sent_bytes >= sequence->bytes) {
        return false;
    }
    uint64_t bytes = OX_PROBE_HI_BYTES, end = sequence->bytes;
    req->kind = sequence->work == OX_PROBE_READ ? OX_IO_READ : OX_IO_WRITE;
    if (mix) {
        req->kind = sequence->count % 4 < 2 ? OX_IO_READ : OX_IO_WRITE;
        bytes = sequence->count % 2 == 0 ? OX_PROBE_STATE_BYTES : OX_PROBE_HI_BYTES;
        end = sequence->bytes / 2;
    }
    uint64_t *const at = &sequence->at[req->kind];
    *at = *at + bytes <= end ? *at : 0;
    req->offset = *at + (mix && req->kind == OX_IO_WRITE ? end : 0);
    req->bytes = (uint32_t)bytes;
    *at += bytes;
    sequence->sent_bytes += bytes;
    sequence->count++;
    return true;
}

void ox_probe_file_close(struct ox_probe_file *file) {
    if (file->queue != NULL) {
        file->backend->queue_close(file->queue);
    }
    if (file->drive != NULL) {
        file->backend->drive_close(file->drive);
    }
    ox_arena_close(&file->arena);
}

enum ox_status ox_probe_file_open(const struct ox_io_backend *backend, const struct ox_probe_place *place,
                                  struct ox_probe_file *out) {
    memset(out, 0, sizeof *out);
    out->backend = backend;
    out->depth = out->free_count = place->depth;
    out->buffer_bytes = place->largest == OX_PROBE_MIX ? OX_PROBE_STATE_BYTES : OX_PROBE_HI_BYTES;
    for (uint32_t i = 0; i < out->depth; i++) {
        out->free_buffers[i] = i;
    }
    enum ox_status status =
        place->end_ns > 0
            ? ox_probe_arena_until(&(struct ox_probe_room){.bytes = out->depth * out->buffer_bytes,
                                                           .least = out->buffer_bytes, .end_ns = place->end_ns},
                                   &out->arena)
            : ox_probe_arena_open("nvme", out->depth * out->buffer_bytes, place->remedy, &out->arena);
    if (status != OX_OK) {
        return status;
    }
    out->depth = out->free_count = (uint32_t)(out->arena.bytes / out->buffer_bytes);
    if (place->end_ns == 0) {
        memset(out->arena.base, 0x5a, out->arena.bytes);
    }
    status = backend->drive_open(backend, place->path, place->mode, &out->drive);
    OX_THEN(status, backend->queue_open(backend, &out->drive, 1, out->depth, &out->queue));
    if (status != OX_OK) {
        ox_probe_file_close(out);
        return status;
    }
    backend->queue_register(out->queue, &(struct ox_io_region){out->arena.base, out->arena.bytes}, 1);
    return OX_OK;
}

static enum ox_status reap_one(struct ox_probe_file *file) {
    struct ox_io_done done;
    const enum ox_status status = file->backend->queue_reap(file->queue, &done);
    if (status != OX_OK) {
        file->in_flight = 0; /* a broken queue returns no request */
        return status;
    }
    file->in_flight--;
    file->free_buffers[file->free_count++] = (uint32_t)done.tag;
    return done.status == OX_OK ? OX_OK : ox_fail(done.status, "%s", done.text);
}

/* Reaps all completed requests, so that as many can be submitted together. */
static enum ox_status reap_ready(struct ox_probe_file *file) {
    enum ox_status status = OX_OK;
    for (bool ready = true; ready && file->in_flight > 0 && status == OX_OK;) {
        status = reap_one(file);
        if (status == OX_OK && file->in_flight > 0) {
            status = file->backend->queue_wait(file->queue, 0, &ready);
        }
    }
    return status;
}

static bool is_over(uint64_t end_ns) {
    return end_ns > 0 && ox_clock_ns() >= end_ns;
}

static double own_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

enum ox_status ox_probe_file_run(struct ox_probe_file *file, enum ox_probe_work work, uint64_t bytes, uint64_t end_ns,
                                 struct ox_probe_speed *out) {
    struct sequence sequence = {.work = work, .bytes = bytes};
    struct ox_first_failure first = {.status = OX_OK};
    const double own = own_seconds();
    const uint64_t begin_ns = ox_clock_ns();
    for (bool more = true; (more || file->in_flight > 0) && first.status == OX_OK;) {
        struct ox_io_req req;
        while (file->free_count > 0 && first.status == OX_OK &&
               (more = !is_over(end_ns) && sequence_next(&sequence, &req))) {
            req.tag = file->free_buffers[file->free_count - 1];
            req.buffer = file->arena.base + req.tag * file->buffer_bytes;
            const enum ox_status status = file->backend->queue_submit(file->queue, 0, &req);
            ox_first_failure_note(&first, status);
            file->free_count -= status == OX_OK;
            file->in_flight += status == OX_OK;
        }
        ox_first_failure_note(&first, reap_ready(file));
    }
    while (file->in_flight > 0) { /* after a failure: the queue owns buffers until it returns them */
        ox_first_failure_note(&first, reap_one(file));
    }
    const double sent = (double)sequence.sent_bytes, seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    *out = (struct ox_probe_speed){.rate = sent / seconds,
                                   .core_seconds = sent > 0 ? (own_seconds() - own) / sent : 0,
                                   .bytes = sequence.sent_bytes};
    return ox_first_failure_result(&first);
}

/* Runs a single request. */
static enum ox_status run_one(struct ox_probe_file *file, enum ox_io_kind kind, uint64_t offset, uint32_t bytes) {
    const enum ox_status status = file->backend->queue_submit(file->queue, 0, &(struct ox_io_req){
        .kind = kind, .buffer = file->arena.base, .offset = offset, .bytes = bytes, .tag = 0});
    if (status != OX_OK) {
        return status;
    }
    file->in_flight++;
    file->free_count--;
    return reap_one(file);
}

enum ox_status ox_probe_file_write_one(struct ox_probe_file *file, double *seconds) {
    const uint64_t begin_ns = ox_clock_ns();
    const enum ox_status status = run_one(file, OX_IO_WRITE, 0, OX_PROBE_HI_BYTES);
    *seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    return status;
}

static enum ox_status time_reads(struct ox_probe_file *file, uint64_t bytes, uint64_t end_ns, double *median) {
    double seconds[SMALL_READS];
    enum ox_status status = OX_OK;
    uint32_t count = 0;
    while (count < SMALL_READS && status == OX_OK && (count == 0 || !is_over(end_ns))) {
        const uint64_t offset = ox_permute(1, 0, bytes / OX_IO_ALIGN_BYTES, count) * OX_IO_ALIGN_BYTES;
        const uint64_t begin_ns = ox_clock_ns();
        status = run_one(file, OX_IO_READ, offset, OX_IO_ALIGN_BYTES);
        seconds[count++] = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    }
    *median = status == OX_OK ? ox_probe_median(seconds, count) : 0.0;
    return status;
}

static enum ox_status time_flushes(struct ox_probe_file *file, uint64_t end_ns, double *median) {
    double seconds[FLUSHES];
    enum ox_status status = OX_OK;
    uint32_t count = 0;
    while (count < FLUSHES && status == OX_OK && (count == 0 || !is_over(end_ns))) {
        status = run_one(file, OX_IO_WRITE, (uint64_t)(count % 4) * OX_PROBE_HI_BYTES, OX_PROBE_HI_BYTES);
        const uint64_t begin_ns = ox_clock_ns();
        OX_THEN(status, file->backend->drive_flush(file->drive));
        seconds[count++] = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    }
    *median = status == OX_OK ? ox_probe_median(seconds, count) : 0.0;
    return status;
}

enum ox_status ox_probe_file_latencies(struct ox_probe_file *file, uint64_t bytes, uint64_t end_ns,
                                       struct ox_probe_latencies *out) {
    const enum ox_status status = time_reads(file, bytes, end_ns, &out->read);
    return status == OX_OK ? time_flushes(file, end_ns, &out->flush) : status;
}
