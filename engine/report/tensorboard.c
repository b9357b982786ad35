/* Writes the events file of TensorBoard: Event messages in TFRecord frames (length, CRC of the length, data, CRC of the
 * data). */
#include "engine/report/experts.h"
#include "engine/report/scalars.h"

#include "base/file.h"
#include "base/log.h"
#include "base/protobuf.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char prefix[] = "events.out.tfevents.", suffix[] = ".offload";

/* Field numbers of tensorflow.Event, Summary and SessionLog. */
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_HISTOGRAM = 5, SESSION_STATUS = 1, SESSION_START = 1 };
/* And of HistogramProto; the count of a bucket is of values above the limit before its own. */
enum { HISTO_MIN = 1, HISTO_MAX, HISTO_COUNT, HISTO_SUM, HISTO_SQUARES, HISTO_LIMIT, HISTO_BUCKET };

enum { FRAME_BYTES = 16, LENGTH_BYTES = 8 };

struct ox_tensorboard {
    int fd;
    char path[OX_PATH_BYTES];
    uint32_t crc_table[256];
    struct ox_protobuf event, summary, value, histogram;
    bool broken;
};

/* ---- frames ------------------------------------------------------------------------------------------ */

/* Fills the table of CRC-32C, reflected. */
static void fill_table(uint32_t table[256]) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (UINT32_C(0x82f63b78) & (0u - (crc & 1)));
        }
        table[i] = crc;
    }
}

/* The CRC masked as TFRecord demands, because a CRC over data that contains CRCs is weak. */
static uint32_t masked_crc(const uint32_t table[256], const unsigned char *data, size_t bytes) {
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc = table[(crc ^ data[i]) & 0xff] ^ (crc >> 8);
    }
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + UINT32_C(0xa282ead8);
}

static void store32(unsigned char *at, uint32_t value) {
    for (unsigned i = 0; i < 4; i++) {
        at[i] = (unsigned char)(value >> (8 * i));
    }
}

static void give_up(struct ox_tensorboard *board, const char *why) {
    if (!board->broken) {
        board->broken = true;
        ox_log(OX_LOG_WARN, "%s: cannot be written: %s; the run goes on without it", board->path, why);
    }
}

/* Writes the event with one call, so that a crash leaves at most the last frame unfinished, which readers skip. */
static void write_event(struct ox_tensorboard *board) {
    const struct ox_protobuf *const event = &board->event;
    unsigned char *const frame = event->failed ? NULL : malloc(event->bytes + FRAME_BYTES);
    if (frame == NULL) {
        give_up(board, "no memory");
        return;
    }
    for (unsigned i = 0; i < LENGTH_BYTES; i++) {
        frame[i] = (unsigned char)((uint64_t)event->bytes >> (8 * i));
    }
    store32(frame + LENGTH_BYTES, masked_crc(board->crc_table, frame, LENGTH_BYTES));
    memcpy(frame + LENGTH_BYTES + 4, event->data, event->bytes);
    store32(frame + LENGTH_BYTES + 4 + event->bytes, masked_crc(board->crc_table, event->data, event->bytes));
    const size_t bytes = event->bytes + FRAME_BYTES;
    ssize_t written;
    int interrupts = 0;
    do {
        written = write(board->fd, frame, bytes);
    } while (ox_interrupted(written, &interrupts));
    if (written != (ssize_t)bytes) {
        give_up(board, strerror(written < 0 ? errno : ENOSPC));
    }
    free(frame);
}

/* ---- events ------------------------------------------------------------------------------------------ */

static void begin(struct ox_tensorboard *board, uint64_t step) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    ox_protobuf_clear(&board->event);
    ox_protobuf_double(&board->event, EVENT_WALL_TIME, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    ox_protobuf_varint(&board->event, EVENT_STEP, step);
}

static void scalar(struct ox_tensorboard *board, const char *tag, double value) {
    ox_protobuf_text(&board->value, VALUE_TAG, tag);
    ox_protobuf_float(&board->value, VALUE_SIMPLE, (float)value);
    ox_protobuf_message(&board->summary, SUMMARY_VALUE, &board->value);
}

/* How many experts have how much of the step, each of each layer, in even loads: the first bucket has the idle ones. */
static void expert_loads(struct ox_tensorboard *board, const struct ox_router_report *report) {
    static const double limits[] = {0, 0.125, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 6, 8, 16, 32, 64, 128, DBL_MAX};
    enum { BUCKETS = sizeof limits / sizeof *limits };
    double buckets[BUCKETS] = {0}, least = DBL_MAX, most = 0, sum = 0, squares = 0;
    for (uint32_t layer = 0; layer < report->layers; layer++) {
        for (uint32_t e = 0; e < report->experts; e++) {
            const double load = ox_expert_load(report, layer, e) / ox_expert_even_load(report, layer);
            unsigned bucket = 0;
            while (load > limits[bucket]) {
                bucket++;
            }
            buckets[bucket]++;
            least = fmin(least, load);
            most = fmax(most, load);
            sum += load;
            squares += load * load;
        }
    }
    const double numbers[] = {least, most, (double)report->layers * report->experts, sum, squares};
    for (uint32_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        ox_protobuf_double(&board->histogram, HISTO_MIN + i, numbers[i]);
    }
    for (uint32_t i = 0; i < BUCKETS; i++) {
        ox_protobuf_double(&board->histogram, HISTO_LIMIT, limits[i]);
    }
    for (uint32_t i = 0; i < BUCKETS; i++) {
        ox_protobuf_double(&board->histogram, HISTO_BUCKET, buckets[i]);
    }
    ox_protobuf_text(&board->value, VALUE_TAG, "experts/load");
    ox_protobuf_message(&board->value, VALUE_HISTOGRAM, &board->histogram);
    ox_protobuf_message(&board->summary, SUMMARY_VALUE, &board->value);
}

static void end(struct ox_tensorboard *board) {
    ox_protobuf_message(&board->event, EVENT_SUMMARY, &board->summary);
    write_event(board);
}

static uint64_t link_bytes(const struct ox_step_result *result, int link) {
    uint64_t bytes = 0;
    for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
        bytes += result->traffic[link][kind];
    }
    return bytes;
}

static void scalar_parts(struct ox_tensorboard *board, const char *front, const struct ox_report_part *parts,
                         uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        char tag[96];
        snprintf(tag, sizeof tag, "%s%s", front, parts[i].name);
        scalar(board, tag, parts[i].value);
    }
}

void ox_tensorboard_step(struct ox_tensorboard *board, const struct ox_step_report *report) {
    if (board == NULL || board->broken || report->tokens == 0) {
        return;
    }
    const struct ox_step_result *const result = &report->result;
    begin(board, report->step);
    scalar(board, "train/loss", result->loss);
    scalar(board, "train/grad_norm", result->grad_norm);
    scalar(board, "train/learning_rate", report->learning_rate);
    scalar(board, "train/epoch", report->epoch);
    if (report->loss_scale > 0) {
        scalar(board, "train/loss_scale", report->loss_scale);
    }
    scalar_parts(board, "train/", report->parts, report->part_count);
    if (result->routers.layers > 0) {
        struct ox_expert_use use;
        ox_expert_use_of(&result->routers, &use);
        scalar(board, "train/router_aux_loss", result->routers.balance);
        scalar(board, "train/router_z_loss", result->routers.z);
        scalar(board, "experts/idle_share", use.idle_share);
        scalar(board, "experts/busiest", use.busiest);
        expert_loads(board, &result->routers);
    }
    scalar(board, "speed/seconds_per_step", report->wall_seconds);
    if (report->wall_seconds > 0) {
        scalar(board, "speed/tokens_per_second", (double)report->batch_tokens / report->wall_seconds);
    }
    for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
        char tag[64];
        snprintf(tag, sizeof tag, "busy_seconds/%s", ox_lane_name((enum ox_lane_id)lane));
        if (lane < OX_LANE_OF_ONE_COUNT || result->lane_busy_seconds[lane] > 0) {
            scalar(board, tag, result->lane_busy_seconds[lane]);
        }
    }
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        const uint64_t bytes = link_bytes(result, link);
        char tag[64];
        snprintf(tag, sizeof tag, "bytes_per_step/%s", ox_link_name((enum ox_link)link));
        if (bytes > 0) {
            scalar(board, tag, (double)bytes);
        }
    }
    end(board);
}

void ox_tensorboard_eval(struct ox_tensorboard *board, const struct ox_eval_report *report) {
    if (board == NULL || board->broken) {
        return;
    }
    begin(board, report->step);
    scalar(board, "eval/loss", report->loss);
    if (!isnan(report->perplexity)) {
        scalar(board, "eval/perplexity", report->perplexity);
    }
    scalar_parts(board, "eval/", report->parts, report->part_count);
    for (uint32_t i = 0; i < report->set_count; i++) {
        char tag[64];
        snprintf(tag, sizeof tag, "eval/%s_loss", report->sets[i].name);
        scalar(board, tag, report->sets[i].loss);
        snprintf(tag, sizeof tag, "eval/%s_", report->sets[i].name);
        scalar_parts(board, tag, report->sets[i].parts, report->part_count);
    }
    end(board);
}

/* ---- the file ---------------------------------------------------------------------------------------- */

bool ox_tensorboard_is_ours(const char *name) {
    const size_t bytes = strlen(name), front = sizeof prefix - 1, back = sizeof suffix - 1;
    return bytes > front + back && strncmp(name, prefix, front) == 0 && strcmp(name + bytes - back, suffix) == 0 &&
           strspn(name + front, "0123456789") == bytes - front - back;
}

/* Creates a file with a new name that sorts after the others, because readers read the files in that order. */
static enum ox_status create(struct ox_tensorboard *board, const char *folder) {
    const uint64_t now = (uint64_t)time(NULL);
    for (uint64_t i = 0; i < 1000; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%" PRIu64 "%s", prefix, now + i, suffix);
        const enum ox_status status = ox_path_join(folder, name, board->path);
        if (status != OX_OK) {
            return status;
        }
        board->fd = open(board->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
        if (board->fd >= 0) {
            return OX_OK;
        }
        if (errno != EEXIST) {
            break;
        }
    }
    return ox_fail_errno(OX_E_IO, errno, "%s: cannot be created", board->path);
}

enum ox_status ox_tensorboard_open(const char *folder, uint64_t step, struct ox_tensorboard **out) {
    *out = NULL;
    struct ox_tensorboard *board = calloc(1, sizeof *board);
    if (board == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for its events file", folder);
    }
    board->fd = -1;
    fill_table(board->crc_table);
    const enum ox_status status = create(board, folder);
    if (status != OX_OK) {
        ox_tensorboard_close(&board);
        return status;
    }
    begin(board, 0);
    ox_protobuf_text(&board->event, EVENT_FILE_VERSION, "brain.Event:2");
    write_event(board);
    begin(board, step + 1); /* discards the steps from here on in earlier files: they were undone */
    ox_protobuf_varint(&board->value, SESSION_STATUS, SESSION_START);
    ox_protobuf_message(&board->event, EVENT_SESSION_LOG, &board->value);
    write_event(board);
    *out = board;
    return OX_OK;
}

void ox_tensorboard_close(struct ox_tensorboard **board_ptr) {
    struct ox_tensorboard *const board = *board_ptr;
    if (board == NULL) {
        return;
    }
    if (board->fd >= 0) {
        close(board->fd);
    }
    ox_protobuf_free(&board->event);
    ox_protobuf_free(&board->summary);
    ox_protobuf_free(&board->value);
    ox_protobuf_free(&board->histogram);
    free(board);
    *board_ptr = NULL;
}
