/* Measures a drive through a file without a name. */
#include "engine/measure/measure_internal.h"
#include "engine/measure/probe.h"

#include "base/bytes.h"
#include "base/clock.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { ROUNDS_MAX = 9, DEPTH_MAX = 16 };
static const uint64_t BYTES_MOST = UINT64_C(128) << 20;
/* A drive on which one block takes longer than this is known well enough by that block. */
static const double SLOW_SECONDS = 0.05;
/* When parts end, as shares of the time: buffers; filling the file, whose first writes are slower than later ones;
 * rounds. The rest is for latencies. */
static const double BUFFERS_SHARE = 0.2, FILL_SHARE = 0.4, ROUNDS_SHARE = 0.85;

struct drive {
    struct ox_probe_file file;
    uint64_t bytes; /* how long the file is */
    uint64_t begin_ns, end_ns;
    double rates[OX_PROBE_WORK_COUNT][ROUNDS_MAX], cores[OX_PROBE_WORK_COUNT][ROUNDS_MAX];
    uint32_t rounds;
};

static enum ox_status choose_size(const char *folder, uint64_t allowed, uint64_t *bytes) {
    uint64_t free_bytes = 0;
    char size[OX_SIZE_TEXT_BYTES];
    OX_TRY(ox_folder_free_bytes(folder, &free_bytes));
    const uint64_t room = ox_min_u64(allowed, free_bytes) / 4;
    *bytes = ox_min_u64(room, BYTES_MOST) / OX_PROBE_UNIT_BYTES * OX_PROBE_UNIT_BYTES;
    return *bytes > 0 ? OX_OK : ox_fail(OX_E_CONFIG, "%s: a quarter of its room, %s, is too little to measure it",
                                        folder, ox_size_text(room, size));
}

/* The time at which so much of the drive's time is over. */
static uint64_t after(const struct drive *drive, double share) {
    return drive->begin_ns + (uint64_t)(share * (double)(drive->end_ns - drive->begin_ns));
}

/* Writes the file once. What fits in the time becomes its size. */
static enum ox_status fill(struct drive *drive) {
    struct ox_probe_speed speed = {.bytes = 0};
    const enum ox_status status = ox_probe_file_run(&drive->file, OX_PROBE_WRITE, drive->bytes,
                                                    after(drive, FILL_SHARE), &speed);
    drive->bytes = ox_max_u64(speed.bytes / OX_PROBE_UNIT_BYTES, 1) * OX_PROBE_UNIT_BYTES;
    return status;
}

/* Runs the works in turn, so that what disturbs the drive for a while slows all of them. */
static enum ox_status run_rounds(struct drive *drive) {
    enum ox_status status = OX_OK;
    const uint64_t end_ns = after(drive, ROUNDS_SHARE);
    while (drive->rounds < ROUNDS_MAX && status == OX_OK && (drive->rounds == 0 || ox_clock_ns() < end_ns)) {
        for (unsigned work = 0; work < OX_PROBE_WORK_COUNT && status == OX_OK; work++) {
            const uint64_t now_ns = ox_clock_ns(), left_ns = end_ns > now_ns ? end_ns - now_ns : 1;
            struct ox_probe_speed speed = {.rate = 0};
            status = ox_probe_file_run(&drive->file, work, drive->bytes,
                                       now_ns + left_ns / (OX_PROBE_WORK_COUNT - work), &speed);
            drive->rates[work][drive->rounds] = speed.rate;
            drive->cores[work][drive->rounds] = speed.core_seconds;
        }
        drive->rounds++;
    }
    return status;
}

static enum ox_status measure(struct drive *drive, struct ox_machine_drive *out) {
    struct ox_probe_latencies latencies = {.read = 0};
    enum ox_status status = fill(drive);
    OX_THEN(status, run_rounds(drive));
    OX_THEN(status, ox_probe_file_latencies(&drive->file, drive->bytes, drive->end_ns, &latencies));
    if (status == OX_OK) {
        out->write_rate = ox_probe_median(drive->rates[OX_PROBE_WRITE], drive->rounds);
        out->read_rate = ox_probe_median(drive->rates[OX_PROBE_READ], drive->rounds);
        out->mix_rate = ox_probe_median(drive->rates[OX_PROBE_MIX], drive->rounds);
        out->write_core_seconds = ox_probe_median(drive->cores[OX_PROBE_WRITE], drive->rounds);
        out->read_core_seconds = ox_probe_median(drive->cores[OX_PROBE_READ], drive->rounds);
        out->latency_seconds = latencies.read;
        out->flush_seconds = latencies.flush;
        if (!(fmin(fmin(out->write_rate, out->read_rate), out->mix_rate) > 0)) {
            return ox_fail(OX_E_BUSY, "the time was over before each of writes, reads and both had a turn");
        }
    }
    return status;
}

enum ox_status ox_measure_drive(const struct ox_measure_input *input, uint32_t drive_idx, uint64_t end_ns,
                                struct ox_machine_drive *out) {
    const char *const folder = input->drive_folders[drive_idx];
    struct drive drive = {.begin_ns = ox_clock_ns(), .end_ns = end_ns};
    double seconds = 0;
    enum ox_status status = choose_size(folder, input->drive_bytes[drive_idx], &drive.bytes);
    if (status != OX_OK) {
        return status;
    }
    status = ox_probe_file_open(input->io, &(struct ox_probe_place){
        .path = folder, .mode = OX_DRIVE_UNNAMED, .depth = (uint32_t)ox_min_u64(input->queue_depth, DEPTH_MAX),
        .largest = OX_PROBE_MIX, .end_ns = after(&drive, BUFFERS_SHARE)}, &drive.file);
    if (status != OX_OK) {
        return status;
    }
    status = input->io->drive_allocate(drive.file.drive, drive.bytes);
    OX_THEN(status, ox_probe_file_write_one(&drive.file, &seconds));
    if (status == OX_OK && seconds > SLOW_SECONDS) {
        out->read_rate = out->write_rate = out->mix_rate = OX_PROBE_HI_BYTES / seconds;
        out->latency_seconds = out->flush_seconds = seconds;
    } else {
        OX_THEN(status, measure(&drive, out));
    }
    ox_probe_file_close(&drive.file);
    return status;
}
