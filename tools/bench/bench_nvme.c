/* `offload bench nvme`: compares the engine's speed on each drive with fio's, with the same file, block sizes and
 * depth. It measures sequential writes, reads, the optimizer's mix (per chunk of 256 Ki parameters, the 10 bytes of lo,
 * m and v and the 2 of hi are read and written) and whole steps of the store.
 *
 * Both backends and fio take turns, so that other use of the drive slows all; medians count, of the rates and of each
 * round's ratios. The size should exceed the drive's caches. Latency of a small read and of a flush come last. */
#include "tools/bench/bench_nvme.h"
#include "tools/bench/bench.h"

#include "base/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_BYTES = OX_PROBE_STATE_BYTES + OX_PROBE_HI_BYTES, UNIT_BYTES = 2 * CHUNK_BYTES,
    STORE_EXTRA_BYTES = 16 << 20, /* the store's tables */
    SPARE_BYTES = 64 << 20,       /* left free for others */
};
#define RATIO_LIMIT 0.95

enum driver { DRIVER_URING, DRIVER_THREADS, DRIVER_FIO, DRIVER_COUNT };
static const char *const driver_names[DRIVER_COUNT] = {"uring", "threads", "fio"};
static const char *const work_names[OX_BENCH_WORK_COUNT] = {"write", "read", "mix", "step"};

struct measuring {
    struct ox_bench *bench;
    struct ox_bench_target target;
    uint32_t drive_idx, rounds;
    bool with_store, uring_here;
    bool present[DRIVER_COUNT];
    double rates[OX_BENCH_WORK_COUNT][DRIVER_COUNT][OX_BENCH_ROUNDS_MAX]; /* bytes/s */
    double cores[OX_BENCH_WORK_STEP][DRIVER_FIO][OX_BENCH_ROUNDS_MAX];    /* core seconds per byte */
};

static const struct ox_io_backend *backend_of(enum driver driver) {
    return driver == DRIVER_URING ? ox_io_uring() : ox_io_threads();
}

/* ---- rounds ---------------------------------------------------------------------------------------------- */

/* Runs fio; when that fails, fio is left out from then on. */
static void run_fio(struct measuring *m, enum ox_probe_work work, uint32_t round) {
    const enum ox_status status =
        ox_bench_fio_run(&m->target, work, m->uring_here, &m->rates[work][DRIVER_FIO][round]);
    if (status != OX_OK) {
        ox_bench_note(m->bench, "nvme: no more comparison with fio: %s", ox_error_text());
        m->present[DRIVER_FIO] = false;
    }
}

/* Runs every work once with every driver. */
static enum ox_status round_run(struct measuring *m, uint32_t round) {
    enum ox_status status = OX_OK;
    for (unsigned work = 0; work < OX_BENCH_WORK_STEP; work++) {
        /* Rotate the order, because a drive may be slower after many writes. */
        for (uint32_t turn = 0; turn < DRIVER_COUNT && status == OX_OK; turn++) {
            const enum driver driver = (turn + round) % DRIVER_COUNT;
            if (driver == DRIVER_FIO && m->present[driver]) {
                run_fio(m, work, round);
            } else if (m->present[driver]) {
                struct ox_probe_speed speed = {.rate = 0.0};
                status = ox_bench_file_run(backend_of(driver), &m->target, work, &speed);
                m->rates[work][driver][round] = speed.rate;
                m->cores[work][driver][round] = speed.core_seconds;
            }
        }
    }
    for (unsigned driver = 0; driver < DRIVER_FIO && m->with_store && status == OX_OK; driver++) {
        if (m->present[driver]) {
            status = ox_bench_store_run(backend_of(driver), &m->target, &m->rates[OX_BENCH_WORK_STEP][driver][round]);
        }
    }
    return status;
}

/* ---- records --------------------------------------------------------------------------------------------- */

/* Adds a rate. A step is compared with fio's mix, without a limit. */
static void add_record(struct measuring *m, unsigned work, enum driver driver) {
    const double *const references = m->rates[work == OX_BENCH_WORK_STEP ? OX_PROBE_MIX : work][DRIVER_FIO];
    struct ox_bench_figure figure = {.value = ox_probe_median(m->rates[work][driver], m->rounds), .unit = "B/s"};
    const bool compared = driver != DRIVER_FIO && m->present[DRIVER_FIO];
    if (compared) {
        figure.limit = ox_probe_median(references, m->rounds);
        figure.ratio = ox_bench_median_ratio(m->rates[work][driver], references, m->rounds);
    }
    ox_bench_add(m->bench, &figure, "nvme%" PRIu32 ".%s.%s", m->drive_idx, work_names[work], driver_names[driver]);
    if (compared && work != OX_BENCH_WORK_STEP) {
        const struct ox_bench_figure share = {.value = figure.ratio, .unit = OX_BENCH_SHARE, .limit = RATIO_LIMIT,
                                              .ratio = figure.ratio / RATIO_LIMIT};
        ox_bench_add(m->bench, &share, "nvme%" PRIu32 ".%s.%s.of_fio", m->drive_idx, work_names[work],
                     driver_names[driver]);
    }
}

static void add_cores(struct measuring *m, enum ox_probe_work work, enum driver driver) {
    const struct ox_bench_figure figure = {.value = 1e9 * ox_probe_median(m->cores[work][driver], m->rounds),
                                           .unit = "ns/B"};
    ox_bench_add(m->bench, &figure, "nvme%" PRIu32 ".%s.%s.core", m->drive_idx, work_names[work], driver_names[driver]);
}

static enum ox_status add_latencies(struct measuring *m, enum driver driver) {
    struct ox_probe_latencies latencies = {.read = 0.0};
    const enum ox_status status = ox_bench_file_latencies(backend_of(driver), &m->target, &latencies);
    if (status == OX_OK) {
        ox_bench_add(m->bench, &(struct ox_bench_figure){.value = latencies.read, .unit = "s"},
                     "nvme%" PRIu32 ".latency.%s", m->drive_idx, driver_names[driver]);
        ox_bench_add(m->bench, &(struct ox_bench_figure){.value = latencies.flush, .unit = "s"},
                     "nvme%" PRIu32 ".flush.%s", m->drive_idx, driver_names[driver]);
    }
    return status;
}

static void add_records(struct measuring *m) {
    for (unsigned work = 0; work < OX_BENCH_WORK_COUNT; work++) {
        for (unsigned driver = 0; driver < DRIVER_COUNT; driver++) {
            const bool step = work == OX_BENCH_WORK_STEP;
            if (m->present[driver] && (!step || (m->with_store && driver != DRIVER_FIO))) {
                add_record(m, work, driver);
            }
            if (m->present[driver] && !step && driver != DRIVER_FIO) {
                add_cores(m, work, driver);
            }
        }
    }
}

/* ---- size and drivers ------------------------------------------------------------------------------------ */

static uint64_t needed_bytes(const struct measuring *m, uint64_t bytes) {
    return m->with_store ? 2 * bytes + STORE_EXTRA_BYTES : bytes;
}

/* Takes --size; without it, shrinks the default to the drive's allowance. */
static enum ox_status choose_size(struct measuring *m, const struct ox_nvme_budget *drive) {
    const uint64_t requested = m->bench->config->bench.size_bytes;
    uint64_t bytes = requested != 0 ? requested : m->bench->brief ? OX_GIB : 4 * OX_GIB;
    char text[OX_SIZE_TEXT_BYTES], allowed[OX_SIZE_TEXT_BYTES];
    if (requested == 0 && drive->bytes != 0 && needed_bytes(m, bytes) > drive->bytes) {
        const uint64_t extra = needed_bytes(m, 0);
        bytes = drive->bytes > extra ? (drive->bytes - extra) / (m->with_store ? 2 : 1) : 0;
    }
    bytes -= bytes % UNIT_BYTES;
    if (bytes == 0 && requested != 0) {
        return ox_fail(OX_E_CONFIG, "--size: %" PRIu64 " bytes are too few to measure a drive; give at least %s",
                       requested, ox_size_text(UNIT_BYTES, text));
    }
    if (bytes == 0 || (drive->bytes != 0 && needed_bytes(m, bytes) > drive->bytes)) {
        return ox_fail(OX_E_CONFIG, "--nvme: the measurement needs %s of %s but is allowed only %s; allow more, or "
                       "give a smaller --size", ox_size_text(needed_bytes(m, bytes != 0 ? bytes : UNIT_BYTES), text),
                       drive->path, ox_size_text(drive->bytes, allowed));
    }
    m->target.bytes = bytes;
    return OX_OK;
}

static enum ox_status check_space(const struct measuring *m, const struct ox_nvme_budget *drive) {
    char needed[OX_SIZE_TEXT_BYTES], available[OX_SIZE_TEXT_BYTES];
    uint64_t free_bytes = 0;
    const enum ox_status status = ox_folder_free_bytes(drive->path, &free_bytes);
    if (status == OX_OK && free_bytes < needed_bytes(m, m->target.bytes) + SPARE_BYTES) {
        return ox_fail(OX_E_CONFIG,
                       "--nvme: the measurement needs %s of %s, but only %s are free; give a smaller --size",
                       ox_size_text(needed_bytes(m, m->target.bytes) + SPARE_BYTES, needed), drive->path,
                       ox_size_text(free_bytes, available));
    }
    return status;
}

/* Selects the requested backend, or both; a brief bench takes the one that a run would use. */
static void choose_drivers(struct measuring *m, char why[160]) {
    const char *const request = m->bench->config->memory.io_backend;
    const bool any = strcmp(request, "auto") == 0;
    m->uring_here = ox_io_probe(why) == ox_io_uring();
    m->present[DRIVER_URING] = any ? m->uring_here : strcmp(request, "uring") == 0;
    m->present[DRIVER_THREADS] = any ? !m->uring_here || !m->bench->brief : strcmp(request, "threads") == 0;
    m->present[DRIVER_FIO] = ox_bench_fio_present();
}

/* Prints what is measured and what cannot be. */
static void announce(const struct measuring *m, const char *why, const struct ox_drive_info *drive,
                     const struct ox_io_queue_info *queue) {
    char size[OX_SIZE_TEXT_BYTES];
    ox_bench_note(m->bench, "nvme%" PRIu32 ": %s, %s in blocks of %d KiB, depth %" PRIu32 ", median of %" PRIu32
                  " rounds; %s%s; %s; buffers %sregistered%s%s", m->drive_idx,
                  m->bench->config->memory.nvme[m->drive_idx].path, ox_size_text(m->target.bytes, size),
                  OX_PROBE_HI_BYTES >> 10, m->target.depth, m->rounds,
                  drive->direct ? "direct I/O" : "NOT direct I/O: ", drive->note, why,
                  queue->registered_buffers ? "" : "not ", queue->note[0] != '\0' ? ": " : "", queue->note);
    if (!m->present[DRIVER_FIO]) {
        ox_bench_note(m->bench, "nvme%" PRIu32 ": fio is not installed, so nothing is compared; install it: "
                      "apt-get install -y fio", m->drive_idx);
    }
}

/* ---- the part -------------------------------------------------------------------------------------------- */

static void record_drive(struct measuring *m, const struct ox_drive_info *drive) {
    m->bench->drives[m->bench->drive_count++] = (struct ox_bench_drive){
        .path = m->bench->config->memory.nvme[m->drive_idx].path,
        .backend = driver_names[m->present[DRIVER_URING] ? DRIVER_URING : DRIVER_THREADS],
        .direct = drive->direct, .bytes = m->target.bytes};
}

static enum ox_status measure(struct measuring *m) {
    char why[160];
    struct ox_drive_info drive;
    struct ox_io_queue_info queue;
    struct ox_probe_load meter;
    choose_drivers(m, why);
    const struct ox_io_backend *const backend = backend_of(m->present[DRIVER_URING] ? DRIVER_URING : DRIVER_THREADS);
    enum ox_status status = ox_bench_file_make(backend, &m->target, &drive, &queue);
    if (status != OX_OK) {
        return status;
    }
    announce(m, why, &drive, &queue);
    if (m->with_store) {
        status = ox_bench_store_make(backend, &m->target);
    }
    ox_probe_load_begin(&meter);
    for (uint32_t i = 0; i < m->rounds && status == OX_OK; i++) {
        status = round_run(m, i);
    }
    if (status == OX_OK) {
        add_records(m);
        for (unsigned driver = 0; driver < DRIVER_FIO && status == OX_OK; driver++) {
            status = m->present[driver] ? add_latencies(m, driver) : OX_OK;
        }
    }
    if (status == OX_OK) {
        char part[16];
        snprintf(part, sizeof part, "nvme%" PRIu32, m->drive_idx);
        ox_bench_add_load(&meter, m->bench, part);
        record_drive(m, &drive);
    }
    return status;
}

static enum ox_status measure_drive(struct measuring *m, const struct ox_nvme_budget *drive) {
    enum ox_status status = choose_size(m, drive);
    OX_THEN(status, ox_bench_scratch_open(drive->path, m->target.folder));
    OX_THEN(status, check_space(m, drive));
    OX_THEN(status, ox_path_join(m->target.folder, OX_BENCH_DRIVE_FILE, m->target.path));
    OX_THEN(status, measure(m));
    ox_bench_scratch_close();
    return status;
}

enum ox_status ox_bench_nvme(struct ox_bench *bench) {
    const struct ox_config *const config = bench->config;
    if (config->memory.nvme_count == 0) {
        return ox_fail(OX_E_CONFIG, "--nvme is missing; name a folder on the drive to measure");
    }
    struct measuring *const m = calloc(1, sizeof *m);
    enum ox_status status = m != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "no memory to measure with");
    for (uint32_t i = 0; i < config->memory.nvme_count && status == OX_OK; i++) {
        memset(m, 0, sizeof *m);
        m->bench = bench;
        m->drive_idx = i;
        m->rounds = ox_bench_rounds(bench, 3, 2);
        m->with_store = !bench->brief;
        m->target.depth = (uint32_t)config->memory.queue_depth;
        status = measure_drive(m, &config->memory.nvme[i]);
    }
    free(m);
    return status;
}
