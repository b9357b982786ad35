/* Files for other programs: TensorBoard's events are read back frame by frame with their checks, and metrics.prom is
 * whole at every moment and line by line what Prometheus takes. */
#include "base/file.h"
#include "engine/report/scalars.h"
#include "tests/kit/log.h"
#include "tests/kit/protobuf.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { BYTES_MAX = 1 << 20 };

static struct ox_step_report report_of(uint64_t step) {
    struct ox_step_report report = {.step = step, .max_steps = 10, .epoch = 0.5, .epoch_steps = 4,
                                    .learning_rate = 1e-3, .tokens = 80, .batch_tokens = 100,
                                    .tokens_seen = 100 * step, .wall_seconds = 0.5};
    report.result.loss = 3.0 - 0.25 * (double)step;
    report.result.grad_norm = 1.5;
    report.result.finite = true;
    report.result.lane_busy_seconds[OX_LANE_COMPUTE] = 0.25;
    report.result.traffic[OX_LINK_H2D][OX_TRAFFIC_WEIGHTS] = 1000;
    report.result.traffic[OX_LINK_H2D][OX_TRAFFIC_GRADS] = 24;
    return report;
}

/* ---- TensorBoard ---------------------------------------------------------------------------------------- */

/* CRC-32C bit by bit, masked as in TFRecord files. */
static uint32_t masked_crc(const unsigned char *data, size_t bytes) {
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
        }
    }
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

static uint64_t word(const unsigned char *at, unsigned bytes) {
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}

/* The next frame's data; false at the end. */
static bool next_event(const unsigned char **at, const unsigned char *end, struct test_field *event) {
    if (*at == end) {
        return false;
    }
    CHECK(end - *at >= 16);
    const uint64_t bytes = word(*at, 8);
    CHECK(word(*at + 8, 4) == masked_crc(*at, 8) && bytes <= (uint64_t)(end - *at) - 16);
    *event = (struct test_field){.wire = 2, .data = *at + 12, .bytes = bytes};
    CHECK(word(*at + 12 + bytes, 4) == masked_crc(event->data, bytes));
    *at += bytes + 16;
    return true;
}

/* The value of a scalar in an event, NAN without. */
static double scalar(const struct test_field *event, const char *tag) {
    const struct test_field summary = test_field_get(event->data, event->bytes, 5);
    const unsigned char *at = summary.data;
    for (struct test_field value; test_field_next(&at, summary.data + summary.bytes, &value);) {
        const struct test_field name = test_field_get(value.data, value.bytes, 1);
        const struct test_field number = test_field_get(value.data, value.bytes, 2);
        if (test_field_is(&name, tag)) {
            return (double)test_field_float(&number);
        }
    }
    return (double)NAN;
}

static void find_events(char *path) {
    DIR *const folder = opendir(test_folder());
    unsigned count = 0;
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (ox_tensorboard_is_ours(entry->d_name)) {
            REQUIRE_OK(ox_path_join(test_folder(), entry->d_name, path));
            count++;
        }
    }
    closedir(folder);
    CHECK(count == 1);
}

static void test_tensorboard(void) {
    struct ox_tensorboard *board = NULL;
    char path[OX_PATH_BYTES] = "", *data = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_tensorboard_open(test_folder(), 4, &board));
    for (uint64_t step = 5; step <= 6; step++) {
        const struct ox_step_report report = report_of(step);
        ox_tensorboard_step(board, &report);
    }
    ox_tensorboard_eval(board, &(struct ox_eval_report){.step = 6, .loss = 1.25, .perplexity = 3.5, .tokens = 1});
    ox_tensorboard_close(&board);
    find_events(path);
    REQUIRE_OK(ox_file_read(path, BYTES_MAX, &data, &bytes));
    const unsigned char *at = (const unsigned char *)data, *const end = at + bytes;
    struct test_field event, field;
    CHECK(next_event(&at, end, &event));
    field = test_field_get(event.data, event.bytes, 3);
    CHECK(test_field_is(&field, "brain.Event:2"));
    CHECK(next_event(&at, end, &event)); /* the start of a session: later steps of other files are void */
    field = test_field_get(event.data, event.bytes, 7);
    CHECK(test_field_get(event.data, event.bytes, 2).value == 5);
    CHECK(test_field_get(field.data, field.bytes, 1).value == 1);
    for (uint64_t step = 5; step <= 6; step++) {
        CHECK(next_event(&at, end, &event) && test_field_get(event.data, event.bytes, 2).value == step);
        field = test_field_get(event.data, event.bytes, 1);
        CHECK(test_field_double(&field) > 1.6e9);
        CHECK(scalar(&event, "train/loss") == 3.0 - 0.25 * (double)step && scalar(&event, "train/epoch") == 0.5);
        CHECK(scalar(&event, "speed/tokens_per_second") == 200 && scalar(&event, "busy_seconds/compute") == 0.25);
        CHECK(scalar(&event, "bytes_per_step/h2d") == 1024 && isnan(scalar(&event, "bytes_per_step/d2h")));
    }
    CHECK(next_event(&at, end, &event) && scalar(&event, "eval/loss") == 1.25);
    CHECK(scalar(&event, "eval/perplexity") == 3.5);
    CHECK(!next_event(&at, end, &event));
    free(data);
}

static void test_names(void) {
    CHECK(ox_tensorboard_is_ours("events.out.tfevents.1700000000.offload"));
    CHECK(!ox_tensorboard_is_ours("events.out.tfevents.1700000000.host"));
    CHECK(!ox_tensorboard_is_ours("events.out.tfevents..offload") && !ox_tensorboard_is_ours("events.offload"));
    CHECK(!ox_tensorboard_is_ours("events.out.tfevents.12.host.offload"));
}

/* ---- Prometheus ----------------------------------------------------------------------------------------- */

static double value_of(const char *text, const char *name) {
    char start[128];
    const int bytes = snprintf(start, sizeof start, "\n%s ", name);
    const char *const found = strstr(text, start);
    return found != NULL ? strtod(found + bytes, NULL) : (double)NAN;
}

/* Every line is a comment, or a name with labels and a number. */
static void check_lines(char *text) {
    unsigned count = 0;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        char *end = NULL;
        if (strncmp(line, "# HELP offload_", 15) == 0 || strncmp(line, "# TYPE offload_", 15) == 0) {
            continue;
        }
        char *const space = strrchr(line, ' ');
        CHECK(strncmp(line, "offload_", 8) == 0 && space != NULL);
        strtod(space + 1, &end);
        CHECK(end != space + 1 && *end == '\0');
        count++;
    }
    CHECK(count > 20);
}

static void test_prometheus(void) {
    struct ox_prometheus *prometheus = NULL;
    char path[OX_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_prometheus_open(test_folder(), &prometheus));
    struct ox_eval_report eval = {.step = 1, .loss = 1.25, .tokens = 1};
    eval.traffic[OX_LINK_H2D][OX_TRAFFIC_WEIGHTS] = 5;
    ox_prometheus_eval(prometheus, &eval);
    REQUIRE_OK(ox_path_join(test_folder(), "metrics.prom", path));
    CHECK(!ox_path_exists(path));
    for (uint64_t step = 1; step <= 3; step++) {
        struct ox_step_report report = report_of(step);
        report.result.finite = step != 2;
        report.result.grad_norm = step == 3 ? (double)INFINITY : 1;
        ox_prometheus_step(prometheus, &report);
    }
    REQUIRE_OK(ox_file_read(path, BYTES_MAX, &text, &bytes));
    CHECK(strstr(text, "rank") == NULL); /* there is one */
    CHECK(value_of(text, "offload_steps_total") == 3 && value_of(text, "offload_tokens_total") == 300);
    CHECK(value_of(text, "offload_epoch") == 0.5 && value_of(text, "offload_steps_per_epoch") == 4);
    CHECK(value_of(text, "offload_steps_skipped_total") == 1 && value_of(text, "offload_loss") == 2.25);
    CHECK(isinf(value_of(text, "offload_grad_norm")) && value_of(text, "offload_eval_loss") == 1.25);
    CHECK(value_of(text, "offload_link_bytes_total{link=\"h2d\",kind=\"weights\"}") == 3005);
    CHECK(value_of(text, "offload_lane_busy_seconds_total{lane=\"compute\"}") == 0.75);
    check_lines(text);
    free(text);
    static const struct ox_rank_times times[] = {{3, 0.5, 0.25, 0.125, 0, 0}, {2, 0.75, 0, 0.0625, 0, 0}};
    struct ox_step_report several = report_of(4);
    several.result.rank_count = 2;
    several.result.ranks = times;
    ox_prometheus_step(prometheus, &several);
    REQUIRE_OK(ox_file_read(path, BYTES_MAX, &text, &bytes));
    CHECK(value_of(text, "offload_rank_busy_seconds{rank=\"1\"}") == 0.75);
    CHECK(value_of(text, "offload_rank_stall_seconds{rank=\"0\"}") == 0.25);
    CHECK(value_of(text, "offload_rank_peer_wait_seconds{rank=\"1\"}") == 0.0625);
    check_lines(text);
    free(text);
    ox_prometheus_close(&prometheus);
    ox_prometheus_close(&prometheus);
}


/* A folder that vanishes: one warning, and the run is not bothered again. */
static void test_refusal(void) {
    char folder[OX_PATH_BYTES];
    struct ox_prometheus *prometheus = NULL;
    REQUIRE_OK(ox_path_join(test_folder(), "gone", folder));
    REQUIRE_OK(ox_prometheus_open(folder, &prometheus));
    for (uint64_t step = 1; step <= 3; step++) {
        const struct ox_step_report report = report_of(step);
        ox_prometheus_step(prometheus, &report);
    }
    CHECK(log_warnings == 1);
    ox_prometheus_close(&prometheus);
    struct ox_tensorboard *board = NULL;
    CHECK(ox_tensorboard_open(folder, 0, &board) == OX_E_IO && board == NULL);
}

int main(void) {
    log_count_warnings(NULL);
    test_tensorboard();
    test_names();
    test_prometheus();
    test_refusal();
    return test_end();
}
