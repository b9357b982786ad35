/* How a run uses its experts: the numbers of a step, the lines that tell them, and when a warning is due. */
#include "base/file.h"
#include "base/json.h"
#include "engine/report/curves.h"
#include "engine/report/experts.h"
#include "engine/report/metrics.h"
#include "engine/report/scalars.h"
#include "kernels/ops_moe.h"
#include "tests/kit/files.h"
#include "tests/kit/log.h"
#include "tests/kit/protobuf.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

enum { LAYERS = 2, EXPERTS = 16, CHOSEN = 1, STRIDE = 2 * EXPERTS + 2, ROWS = 64 };

static double loads[LAYERS * STRIDE];

/* Layer 0 is even; in layer 1 expert 3 has `share` of the rows, expert 5 none, the others the rest. */
static struct ox_router_report make(double share) {
    const struct ox_route_load_layout at = ox_route_load_layout_of(EXPERTS);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        loads[at.counts + e] = (double)ROWS / EXPERTS;
        loads[STRIDE + at.counts + e] = e == 3 ? share * ROWS : e == 5 ? 0 : (1 - share) * ROWS / (EXPERTS - 2);
    }
    loads[at.rows] = loads[STRIDE + at.rows] = ROWS;
    return (struct ox_router_report){.layers = LAYERS, .experts = EXPERTS, .chosen = CHOSEN, .loads = loads,
                                     .stride = STRIDE, .rows_at = at.rows, .balance = 1.25, .z = 3.5};
}

static void test_use(void) {
    const struct ox_router_report report = make(0.75);
    struct ox_expert_use use;
    ox_expert_use_of(&report, &use);
    CHECK(use.idle_share == 1.0 / (LAYERS * EXPERTS));
    CHECK(use.busiest == 0.75 * EXPERTS && use.layer == 1 && use.expert == 3);
    CHECK(ox_expert_load(&report, 0, 5) == 4 && ox_expert_load(&report, 1, 5) == 0);
    CHECK(ox_expert_load(&report, OX_ALL_LAYERS, 3) == 4 + 0.75 * ROWS);
}

/* An even share of a step is four tokens. */
static void test_warnings(void) {
    struct ox_expert_watch *watch = NULL;
    const struct ox_router_report none = {0};
    log_count_warnings(NULL);
    ox_expert_watch_step(&watch, 1, &none, 0);
    CHECK(watch == NULL);
    for (uint64_t step = 1; step <= OX_DEAD_TOKENS / 4; step++) {
        const struct ox_router_report report = make(step % OX_TAKEN_STEPS == 0 ? 0.1 : 0.75);
        CHECK(log_warnings == 0);
        ox_expert_watch_step(&watch, step, &report, 0);
    }
    CHECK(log_warnings == 1 && ox_expert_watch_dead(watch) == 1 && ox_expert_watch_taken(watch) == 0);
    log_count_warnings("; a larger --router-aux-loss-coef balances them more");
    for (uint64_t step = 0; step < OX_TAKEN_STEPS; step++) {
        const struct ox_router_report report = make(0.75);
        ox_expert_watch_step(&watch, step, &report, 0.01);
    }
    CHECK(log_warnings == 2 && ox_expert_watch_taken(watch) == 1);
    struct ox_router_report report = make(0.1);
    loads[STRIDE + 5] = 1;
    ox_expert_watch_step(&watch, 1, &report, 0);
    CHECK(ox_expert_watch_dead(watch) == 0 && ox_expert_watch_taken(watch) == 0);
    ox_expert_watch_close(&watch);
    CHECK(watch == NULL);
}

static void test_line(void) {
    struct ox_metrics *metrics = NULL;
    struct ox_step_report report = {.step = 1, .wall_seconds = 1, .result = {.loss = 2, .routers = make(0.75)}};
    char path[OX_PATH_BYTES];
    json_t *line = NULL;
    REQUIRE_OK(ox_metrics_open(test_folder(), 0, &metrics));
    ox_metrics_step(metrics, &report);
    ox_metrics_close(&metrics);
    REQUIRE_OK(ox_path_join(test_folder(), "metrics.jsonl", path));
    REQUIRE_OK(ox_json_load(path, 1 << 16, &line));
    const json_t *const experts = json_object_get(line, "experts"), *const tokens = json_object_get(experts, "tokens");
    CHECK(json_number_value(json_object_get(line, "router_aux_loss")) == 1.25);
    CHECK(json_number_value(json_object_get(line, "router_z_loss")) == 3.5);
    CHECK(json_number_value(json_object_get(line, "experts_busiest")) == 0.75 * EXPERTS);
    CHECK(json_number_value(json_object_get(line, "experts_idle_share")) == 1.0 / (LAYERS * EXPERTS));
    CHECK(json_array_size(tokens) == EXPERTS && json_integer_value(json_array_get(tokens, 3)) == 4 + 48);
    CHECK(json_integer_value(json_array_get(json_object_get(experts, "idle"), 1)) == 1);
    json_decref(line);
    struct ox_curves *curves = NULL;
    REQUIRE_OK(ox_curves_read(test_folder(), &curves));
    CHECK(curves->expert_count == EXPERTS && curves->expert_tokens[3] == 4 + 48 && curves->expert_tokens[5] == 4);
    free(curves);
}

/* Counts of experts by load: of the even layer all have 1; in the other one has 12, one none, the others 0.29. */
static void test_board(void) {
    struct ox_tensorboard *board = NULL;
    const struct ox_step_report report = {.step = 1, .tokens = ROWS, .result = {.loss = 2, .routers = make(0.75)}};
    REQUIRE_OK(ox_tensorboard_open(test_folder(), 0, &board));
    ox_tensorboard_step(board, &report);
    ox_tensorboard_close(&board);
    size_t bytes = 0;
    char *const data = files_read(files_find(test_folder(), "events.out.tfevents.", ".offload"), &bytes);
    const char *const tag = memmem(data, bytes, "experts/load", strlen("experts/load"));
    CHECK(tag != NULL);
    const unsigned char *at = (const unsigned char *)tag + strlen("experts/load");
    struct test_field histogram, field;
    CHECK(test_field_next(&at, (const unsigned char *)data + bytes, &histogram) && histogram.number == 5);
    double limits[32], counts[32], numbers[8] = {0};
    unsigned limit_count = 0, count = 0;
    for (at = histogram.data; test_field_next(&at, histogram.data + histogram.bytes, &field);) {
        const double value = test_field_double(&field);
        if (field.number == 6) {
            limits[limit_count++ % 32] = value;
        } else if (field.number == 7) {
            counts[count++ % 32] = value;
        } else {
            numbers[field.number % 8] = value;
        }
    }
    CHECK(numbers[1] == 0 && numbers[2] == 12 && numbers[3] == LAYERS * EXPERTS);
    CHECK(fabs(numbers[4] - LAYERS * EXPERTS) < 1e-9);
    CHECK(limit_count == count && count > 8 && count < 32);
    for (unsigned i = 0; i < count; i++) {
        const double below = i == 0 ? -1 : limits[i - 1];
        CHECK(counts[i] == (limits[i] == 0) + (below < 12 && limits[i] >= 12) +
                               (below < 1 && limits[i] >= 1) * EXPERTS +
                               (below < 0.285 && limits[i] >= 0.286) * (EXPERTS - 2));
    }
    free(data);
}

int main(void) {
    test_use();
    test_warnings();
    test_line();
    test_board();
    return test_end();
}
