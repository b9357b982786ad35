/* Drives a drive as the engine does: requests as fast as they complete, and whole steps of the store. */
#include "tools/bench/bench.h"
#include "tools/bench/bench_nvme.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "nvme/transfers.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 8, CHUNK_BYTES = OX_PROBE_STATE_BYTES + OX_PROBE_HI_BYTES };

/* ---- requests ------------------------------------------------------------------------------------------ */

static enum ox_status file_open(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                enum ox_drive_mode mode, enum ox_probe_work work, struct ox_probe_file *out) {
    return ox_probe_file_open(backend, &(struct ox_probe_place){.path = target->path, .mode = mode,
                                                                .depth = target->depth, .largest = work,
                                                                .remedy = OX_BENCH_SMALLER}, out);
}

enum ox_status ox_bench_file_make(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                  struct ox_drive_info *drive, struct ox_io_queue_info *queue) {
    struct ox_probe_file file;
    struct ox_probe_speed speed;
    enum ox_status status = file_open(backend, target, OX_DRIVE_CREATE, OX_PROBE_WRITE, &file);
    if (status == OX_OK) {
        backend->drive_info(file.drive, drive);
        backend->queue_info(file.queue, queue);
        status = backend->drive_allocate(file.drive, target->bytes);
        OX_THEN(status, ox_probe_file_run(&file, OX_PROBE_WRITE, target->bytes, 0, &speed));
        ox_probe_file_close(&file);
    }
    return status;
}

enum ox_status ox_bench_file_run(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                 enum ox_probe_work work, struct ox_probe_speed *out) {
    struct ox_probe_file file;
    enum ox_status status = file_open(backend, target, OX_DRIVE_OPEN, work, &file);
    if (status == OX_OK) {
        status = ox_probe_file_run(&file, work, target->bytes, 0, out);
        ox_probe_file_close(&file);
    }
    return status;
}

enum ox_status ox_bench_file_latencies(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                       struct ox_probe_latencies *out) {
    struct ox_probe_file file;
    enum ox_status status = file_open(backend, target, OX_DRIVE_OPEN, OX_PROBE_READ, &file);
    if (status == OX_OK) {
        status = ox_probe_file_latencies(&file, target->bytes, 0, out);
        ox_probe_file_close(&file);
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
        extents[i].bytes = i % 2 == 0 ? OX_PROBE_STATE_BYTES : OX_PROBE_HI_BYTES;
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
    OX_THEN(status, ox_store_port_open(step->store, &step->transfers.port));
    OX_THEN(status, ox_bench_arena_open("nvme", (uint64_t)SLOTS * CHUNK_BYTES, &step->slots));
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
        {.kind = kind, .extent_idx = 2 * chunk + 1, .buffer = base + OX_PROBE_STATE_BYTES},
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
    OX_THEN(status, step_stream(&step));
    OX_THEN(status, ox_store_commit(step.store, NULL, 0));
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
        OX_THEN(status, ox_store_commit(step.store, NULL, 0));
    }
    step_close(&step);
    return status;
}
