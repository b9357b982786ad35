/* Drives a drive as the engine does: requests as fast as they complete, and whole steps of the store. */
#include "tools/bench/bench.h"
#include "tools/bench/bench_nvme.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/prng/prng.h"
#include "nvme/transfers.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SLOTS = 8, CHUNK_BYTES = OX_BENCH_STATE_BYTES + OX_BENCH_HI_BYTES, SMALL_READS = 64, FLUSHES = 16 };

/* ---- requests ------------------------------------------------------------------------------------------ */

/* Generates the requests of a work. */
struct sequence {
    enum ox_bench_work work;
    uint64_t bytes;
    uint64_t at[2]; /* next offsets of reads and writes; in the mix each has half of the file */
    uint64_t count, sent_bytes;
};

static bool sequence_next(struct sequence *sequence, struct ox_io_req *req) {
    const bool mix = sequence->work == OX_BENCH_WORK_MIX;
    if (sequence->sent_bytes >= sequence->bytes) {
        return false;
    }
    uint64_t bytes = OX_BENCH_HI_BYTES, end = sequence->bytes;
    req->kind = sequence->work == OX_BENCH_WORK_READ ? OX_IO_READ : OX_IO_WRITE;
    if (mix) {
        req->kind = sequence->count % 4 < 2 ? OX_IO_READ : OX_IO_WRITE;
        bytes = sequence->count % 2 == 0 ? OX_BENCH_STATE_BYTES : OX_BENCH_HI_BYTES;
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

struct rig {
    const struct ox_io_backend *backend;
    struct ox_drive *drive;
    struct ox_io_queue *queue;
    struct ox_arena arena; /* depth buffers */
    uint64_t buffer_bytes;
    uint32_t depth, in_flight, free_count;
    uint32_t free_buffers[OX_BENCH_DEPTH_MAX];
};

static void rig_close(struct rig *rig) {
    if (rig->queue != NULL) {
        rig->backend->queue_close(rig->queue);
    }
    if (rig->drive != NULL) {
        rig->backend->drive_close(rig->drive);
    }
    ox_arena_close(&rig->arena);
}

static enum ox_status rig_open(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                               enum ox_bench_work work, enum ox_drive_mode mode, struct rig *rig) {
    memset(rig, 0, sizeof *rig);
    rig->backend = backend;
    rig->depth = rig->free_count = target->depth;
    rig->buffer_bytes = work == OX_BENCH_WORK_MIX ? OX_BENCH_STATE_BYTES : OX_BENCH_HI_BYTES;
    for (uint32_t i = 0; i < rig->depth; i++) {
        rig->free_buffers[i] = i;
    }
    enum ox_status status = ox_bench_arena_open("nvme", rig->depth * rig->buffer_bytes, &rig->arena);
    if (status != OX_OK) {
        return status;
    }
    memset(rig->arena.base, 0x5a, rig->arena.bytes);
    status = backend->drive_open(backend, target->path, mode, &rig->drive);
    if (status == OX_OK && mode == OX_DRIVE_CREATE) {
        status = backend->drive_allocate(rig->drive, target->bytes);
    }
    OX_TRY(status, backend->queue_open(backend, &rig->drive, 1, rig->depth, &rig->queue));
    if (status != OX_OK) {
        rig_close(rig);
        return status;
    }
    backend->queue_register(rig->queue, &(struct ox_io_region){rig->arena.base, rig->arena.bytes}, 1);
    return OX_OK;
}

static enum ox_status reap_one(struct rig *rig) {
    struct ox_io_done done;
    const enum ox_status status = rig->backend->queue_reap(rig->queue, &done);
    if (status != OX_OK) {
        rig->in_flight = 0; /* a broken queue returns no request */
        return status;
    }
    rig->in_flight--;
    rig->free_buffers[rig->free_count++] = (uint32_t)done.tag;
    return done.status == OX_OK ? OX_OK : ox_fail(done.status, "%s", done.text);
}

/* Reaps all completed requests, so that as many can be submitted together. */
static enum ox_status reap_ready(struct rig *rig) {
    enum ox_status status = OX_OK;
    for (bool ready = true; ready && rig->in_flight > 0 && status == OX_OK;) {
        status = reap_one(rig);
        if (status == OX_OK && rig->in_flight > 0) {
            status = rig->backend->queue_wait(rig->queue, 0, &ready);
        }
    }
    return status;
}

static double own_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Keeps the queue full until all requests of the work are done, and measures that. */
static enum ox_status rig_run(struct rig *rig, enum ox_bench_work work, uint64_t bytes, struct ox_bench_speed *out) {
    struct sequence sequence = {.work = work, .bytes = bytes};
    struct ox_first_failure first = {.status = OX_OK};
    const double own = own_seconds();
    const uint64_t begin_ns = ox_clock_ns();
    for (bool more = true; (more || rig->in_flight > 0) && first.status == OX_OK;) {
        struct ox_io_req req;
        while (rig->free_count > 0 && first.status == OX_OK && (more = sequence_next(&sequence, &req))) {
            req.tag = rig->free_buffers[rig->free_count - 1];
            req.buffer = rig->arena.base + req.tag * rig->buffer_bytes;
            const enum ox_status status = rig->backend->queue_submit(rig->queue, 0, &req);
            ox_first_failure_note(&first, status);
            rig->free_count -= status == OX_OK;
            rig->in_flight += status == OX_OK;
        }
        ox_first_failure_note(&first, reap_ready(rig));
    }
    while (rig->in_flight > 0) { /* after a failure: the queue owns buffers until it returns them */
        ox_first_failure_note(&first, reap_one(rig));
    }
    const double bytes_sent = (double)sequence.sent_bytes;
    *out = (struct ox_bench_speed){.rate = bytes_sent / ((double)(ox_clock_ns() - begin_ns) * 1e-9),
                                   .core_seconds = (own_seconds() - own) / bytes_sent};
    return ox_first_failure_result(&first);
}

enum ox_status ox_bench_file_make(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                  struct ox_drive_info *drive, struct ox_io_queue_info *queue) {
    struct rig rig;
    struct ox_bench_speed speed;
    enum ox_status status = rig_open(backend, target, OX_BENCH_WORK_WRITE, OX_DRIVE_CREATE, &rig);
    if (status == OX_OK) {
        backend->drive_info(rig.drive, drive);
        backend->queue_info(rig.queue, queue);
        status = rig_run(&rig, OX_BENCH_WORK_WRITE, target->bytes, &speed);
        rig_close(&rig);
    }
    return status;
}

enum ox_status ox_bench_file_run(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                 enum ox_bench_work work, struct ox_bench_speed *out) {
    struct rig rig;
    enum ox_status status = rig_open(backend, target, work, OX_DRIVE_OPEN, &rig);
    if (status == OX_OK) {
        status = rig_run(&rig, work, target->bytes, out);
        rig_close(&rig);
    }
    return status;
}

/* Runs a single request. */
static enum ox_status rig_one(struct rig *rig, enum ox_io_kind kind, uint64_t offset, uint32_t bytes) {
    const enum ox_status status = rig->backend->queue_submit(rig->queue, 0, &(struct ox_io_req){
        .kind = kind, .buffer = rig->arena.base, .offset = offset, .bytes = bytes, .tag = 0});
    if (status != OX_OK) {
        return status;
    }
    rig->in_flight++;
    rig->free_count--;
    return reap_one(rig);
}

static enum ox_status time_reads(struct rig *rig, uint64_t bytes, double *median) {
    double seconds[SMALL_READS];
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < SMALL_READS && status == OX_OK; i++) {
        const uint64_t offset = ox_permute(1, 0, bytes / OX_IO_ALIGN_BYTES, i) * OX_IO_ALIGN_BYTES;
        const uint64_t begin_ns = ox_clock_ns();
        status = rig_one(rig, OX_IO_READ, offset, OX_IO_ALIGN_BYTES);
        seconds[i] = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    }
    *median = status == OX_OK ? ox_bench_median(seconds, SMALL_READS) : 0.0;
    return status;
}

static enum ox_status time_flushes(struct rig *rig, double *median) {
    double seconds[FLUSHES];
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < FLUSHES && status == OX_OK; i++) {
        status = rig_one(rig, OX_IO_WRITE, (uint64_t)(i % 4) * OX_BENCH_HI_BYTES, OX_BENCH_HI_BYTES);
        const uint64_t begin_ns = ox_clock_ns();
        OX_TRY(status, rig->backend->drive_flush(rig->drive));
        seconds[i] = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    }
    *median = status == OX_OK ? ox_bench_median(seconds, FLUSHES) : 0.0;
    return status;
}

enum ox_status ox_bench_file_latencies(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                    struct ox_bench_latencies *out) {
    struct rig rig;
    enum ox_status status = rig_open(backend, target, OX_BENCH_WORK_READ, OX_DRIVE_OPEN, &rig);
    if (status == OX_OK) {
        status = time_reads(&rig, target->bytes, &out->read);
        OX_TRY(status, time_flushes(&rig, &out->flush));
        rig_close(&rig);
    }
    return status;
}

/* ---- steps of the store ------------------------------------------------------------------------------------ */

struct step {
    struct ox_store *store;
    struct ox_transfers transfers; /* a group for each slot */
    struct ox_arena slots;
    uint32_t chunk_count;
    uint64_t number;
    uint32_t chunk_of[SLOTS];
    bool writes[SLOTS];
};

static void step_close(struct step *step) {
    ox_store_port_close(&step->transfers.port);
    ox_store_close(&step->store);
    ox_arena_close(&step->slots);
}

static enum ox_status store_open(const struct ox_io_backend *backend, const struct ox_bench_target *target, bool create,
                                 struct step *step) {
    const char *const folder = target->folder;
    const uint64_t bytes_max = target->bytes + 16 * OX_MIB;
    const uint32_t extent_count = 2 * step->chunk_count;
    struct ox_extent_spec *const extents = calloc(extent_count, sizeof *extents);
    if (extents == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the list of extents");
    }
    for (uint32_t i = 0; i < extent_count; i++) {
        extents[i].bytes = i % 2 == 0 ? OX_BENCH_STATE_BYTES : OX_BENCH_HI_BYTES;
    }
    const struct ox_store_config config = {.backend = backend, .folders = &folder, .bytes_max = &bytes_max,
                                           .drive_count = 1, .extents = extents, .extent_count = extent_count,
                                           .run_id = {1, 2}, .queue_depth = target->depth};
    const enum ox_status status =
        create ? ox_store_create(&config, &step->store) : ox_store_open(&config, &step->store);
    free(extents);
    return status;
}

static enum ox_status step_open(const struct ox_io_backend *backend, const struct ox_bench_target *target, bool create,
                                struct step *step) {
    memset(step, 0, sizeof *step);
    step->chunk_count = (uint32_t)(target->bytes / 2 / CHUNK_BYTES);
    enum ox_status status = store_open(backend, target, create, step);
    OX_TRY(status, ox_store_port_open(step->store, &step->transfers.port));
    OX_TRY(status, ox_bench_arena_open("nvme", (uint64_t)SLOTS * CHUNK_BYTES, &step->slots));
    if (status != OX_OK) {
        step_close(step);
        return status;
    }
    memset(step->slots.base, 0x5a, step->slots.bytes);
    ox_store_port_register(step->transfers.port, &(struct ox_io_region){step->slots.base, step->slots.bytes}, 1);
    struct ox_store_info info;
    ox_store_info(step->store, &info);
    step->number = info.step;
    return OX_OK;
}

static enum ox_status slot_submit(struct step *step, uint32_t slot, uint32_t chunk, bool write) {
    unsigned char *const base = step->slots.base + (uint64_t)slot * CHUNK_BYTES;
    const enum ox_store_op_kind kind = write ? OX_STORE_WRITE : OX_STORE_READ;
    const struct ox_store_op ops[] = {
        {.kind = kind, .extent_idx = 2 * chunk, .buffer = base},
        {.kind = kind, .extent_idx = 2 * chunk + 1, .buffer = base + OX_BENCH_STATE_BYTES},
    };
    step->chunk_of[slot] = chunk;
    step->writes[slot] = write;
    return ox_transfers_submit(&step->transfers, slot, ops, 2);
}

/* Streams chunks through the slots as the optimizer does, without its arithmetic. */
static enum ox_status step_stream(struct step *step) {
    uint32_t begun = 0, ended = 0, slot = 0;
    enum ox_status status = OX_OK;
    for (; begun < SLOTS && begun < step->chunk_count && status == OX_OK; begun++) {
        status = slot_submit(step, begun, begun, false);
    }
    while (ended < step->chunk_count && status == OX_OK) {
        ox_transfers_take(&step->transfers, UINT64_MAX, &slot);
        status = ox_transfers_status(&step->transfers);
        if (status != OX_OK || step->transfers.in_flight[slot] > 0) {
            continue;
        }
        if (!step->writes[slot]) {
            status = slot_submit(step, slot, step->chunk_of[slot], true);
            continue;
        }
        ended++;
        if (begun < step->chunk_count) {
            status = slot_submit(step, slot, begun++, false);
        }
    }
    return status;
}

/* Closing the port waits for requests that a failure left in flight. */
enum ox_status ox_bench_store_run(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                  double *rate) {
    struct step step;
    enum ox_status status = step_open(backend, target, false, &step);
    if (status != OX_OK) {
        return status;
    }
    const uint64_t begin_ns = ox_clock_ns();
    status = ox_store_begin(step.store, step.number + 1);
    OX_TRY(status, step_stream(&step));
    OX_TRY(status, ox_store_commit(step.store, NULL, 0));
    *rate = 2.0 * step.chunk_count * CHUNK_BYTES / ((double)(ox_clock_ns() - begin_ns) * 1e-9);
    step_close(&step);
    return status;
}

enum ox_status ox_bench_store_make(const struct ox_io_backend *backend, const struct ox_bench_target *target) {
    struct step step;
    enum ox_status status = step_open(backend, target, true, &step);
    if (status != OX_OK) {
        return status;
    }
    for (uint32_t pass = 0; pass < 2 && status == OX_OK; pass++) {
        status = ox_store_begin(step.store, ++step.number);
        for (uint32_t i = 0; i < 2 * step.chunk_count && status == OX_OK; i++) {
            const struct ox_store_op op = {.kind = OX_STORE_WRITE, .extent_idx = i, .buffer = step.slots.base};
            status = ox_store_run(step.transfers.port, &op, 1);
        }
        OX_TRY(status, ox_store_commit(step.store, NULL, 0));
    }
    step_close(&step);
    return status;
}
