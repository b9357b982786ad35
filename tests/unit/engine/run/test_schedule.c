/* The learning rate of every step: equal to that of transformers' schedules (tests/golden/schedules.json), beyond the
 * end of a run, and of runs that older versions began. Also which options a schedule takes. */
#include "engine/run/schedule.h"

#include "base/json.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set(struct ox_config *config, const char *name, const char *text) {
    REQUIRE_OK(ox_config_set(config, ox_option_find(name), text, name));
}

static void begin(struct ox_config *config) {
    ox_config_init(config);
    set(config, "model", "m");
}

/* Compares a case with transformers; the rates may differ by roundings of doubles. */
static void check_case(const json_t *json) {
    struct ox_config config;
    const char *name;
    json_t *value;
    begin(&config);
    json_object_foreach(json_object_get(json, "options"), name, value) {
        set(&config, name, json_string_value(value));
    }
    REQUIRE_OK(ox_config_validate(&config, OX_CMD_PLAN));
    const uint64_t steps = (uint64_t)json_integer_value(json_object_get(json, "steps"));
    const struct ox_rate_schedule schedule = ox_schedule_of(&config, steps);
    const json_t *const rates = json_object_get(json, "rates");
    CHECK(steps > 0 && json_array_size(rates) == steps);
    for (uint64_t step = 0; step < steps; step++) {
        const double expected = json_real_value(json_array_get(rates, step));
        const double rate = ox_schedule_rate(&schedule, step);
        if (!(fabs(rate - expected) <= 1e-14 * config.optim.learning_rate)) {
            char *const text = json_dumps(json_object_get(json, "options"), 0);
            printf("%s: step %llu has %.17g, transformers has %.17g\n", text, (unsigned long long)step, rate, expected);
            free(text);
            test_failure_count++;
            return;
        }
    }
}

static void check_golden(void) {
    json_t *json = NULL;
    const json_t *value;
    size_t idx;
    REQUIRE_OK(ox_json_load("tests/golden/schedules.json", 1 << 20, &json));
    const json_t *const cases = json_object_get(json, "cases");
    CHECK(json_array_size(cases) >= 20);
    json_array_foreach(cases, idx, value) {
        check_case(value);
    }
    json_decref(json);
}

/* Schedules and floors that transformers does not have: wsd decays linearly, and any decay may end at a floor. */
static void check_own(void) {
    struct ox_config config;
    begin(&config);
    set(&config, "learning-rate", "1");
    set(&config, "lr-scheduler-type", "wsd");
    set(&config, "warmup-steps", "2");
    set(&config, "min-lr", "0.5");
    struct ox_rate_schedule schedule = ox_schedule_of(&config, 20); /* the last two steps decay */
    CHECK(ox_schedule_rate(&schedule, 0) == 0 && ox_schedule_rate(&schedule, 1) == 0.5);
    CHECK(ox_schedule_rate(&schedule, 2) == 1 && ox_schedule_rate(&schedule, 18) == 1);
    CHECK(ox_schedule_rate(&schedule, 19) == 0.75 && ox_schedule_rate(&schedule, 20) == 0.5);
    CHECK(ox_schedule_rate(&schedule, 1000) == 0.5);
    set(&config, "lr-scheduler-type", "linear");
    set(&config, "min-lr", "0");
    set(&config, "min-lr-ratio", "0.25");
    schedule = ox_schedule_of(&config, 4);
    CHECK(ox_schedule_rate(&schedule, 3) == 0.625 && ox_schedule_rate(&schedule, 9) == 0.25);
    set(&config, "learning-rate", "0");
    set(&config, "min-lr-ratio", "0");
    set(&config, "lr-scheduler-type", "polynomial");
    schedule = ox_schedule_of(&config, 4);
    CHECK(ox_schedule_rate(&schedule, 0) == 0 && ox_schedule_rate(&schedule, 3) == 0);
}

/* A run that began when the warmup began at peak / warmup goes on with that. */
static void check_old(void) {
    struct ox_config config;
    begin(&config);
    set(&config, "learning-rate", "1");
    set(&config, "warmup-steps", "4");
    struct ox_rate_schedule schedule = ox_schedule_of(&config, 8);
    CHECK(ox_schedule_rate(&schedule, 0) == 0 && ox_schedule_rate(&schedule, 3) == 0.75);
    schedule.from_one = true;
    CHECK(ox_schedule_rate(&schedule, 0) == 0.25 && ox_schedule_rate(&schedule, 3) == 1);
    CHECK(ox_schedule_rate(&schedule, 4) == 1 && ox_schedule_rate(&schedule, 6) == 0.5);
}

static void check_refused(const char *type, const char *name, const char *text, const char *words) {
    struct ox_config config;
    begin(&config);
    set(&config, "lr-scheduler-type", type);
    set(&config, name, text);
    if (ox_config_validate(&config, OX_CMD_PLAN) != OX_E_CONFIG || strstr(ox_error_text(), words) == NULL) {
        printf("%s --%s %s: expected '%s', got %s\n", type, name, text, words, ox_error_text());
        test_failure_count++;
    }
}

/* Takes rows step by step, as a run does that changes the size of its steps after so many steps: whole epochs are
 * trained exactly, and the count of what is left is right at each step. */
static void check_left(uint64_t rows, uint64_t epochs, uint64_t before, uint64_t changed_at, uint64_t after) {
    uint64_t cursor = 0, step = 0, left = 0;
    for (;;) {
        const uint64_t size = step < changed_at ? before : after;
        const uint64_t now = ox_schedule_steps_left((double)epochs, rows, size, cursor);
        CHECK(step == 0 || step == changed_at || now + 1 == left);
        left = now;
        if (left == 0) {
            break;
        }
        const uint64_t of_epoch = rows - cursor % rows;
        cursor += size < of_epoch ? size : of_epoch;
        step++;
    }
    if (cursor != epochs * rows) {
        printf("%d rows, %d epochs, %d and from step %d on %d a step: ends at %d\n", (int)rows, (int)epochs,
               (int)before, (int)changed_at, (int)after, (int)cursor);
        test_failure_count++;
    }
}

static void check_all_left(void) {
    for (uint64_t rows = 1; rows <= 41; rows += 5) {
        for (uint64_t before = 1; before <= 9; before++) {
            for (uint64_t after = 1; after <= 9; after++) {
                check_left(rows, 2, before, 7, after);
            }
        }
    }
    CHECK(ox_schedule_steps_left(0.5, 40, 3, 0) == 7 && ox_schedule_steps_left(0.5, 40, 3, 18) == 1);
    CHECK(ox_schedule_steps_left(2.5, 40, 16, 80) == 2 && ox_schedule_steps_left(2.5, 40, 8, 80) == 3);
    CHECK(ox_schedule_steps_left(0.001, 40, 16, 0) == 1 && ox_schedule_steps_left(1, 40, 16, 200) == 0);
}

/* After the size of steps has changed the rate goes on from its place in the data, and falls to the end of the run. A
 * warmup of so many steps is counted in these; one that is a share of all is a share of the data. Neither begins
 * again. */
static void check_offset(void) {
    struct ox_config config;
    begin(&config);
    set(&config, "learning-rate", "1");
    struct ox_rate_schedule schedule = ox_schedule_of(&config, 20); /* 80 rows, 4 a step; 10 steps had 2 */
    schedule.offset = 5;
    CHECK(ox_schedule_rate(&schedule, 10) == 0.75 && ox_schedule_rate(&schedule, 20) == 0.25);
    CHECK(ox_schedule_rate(&schedule, 25) == 0);
    set(&config, "warmup-steps", "8");
    schedule = ox_schedule_of(&config, 20);
    schedule.offset = 5;
    CHECK(ox_schedule_rate(&schedule, 4) == 0.5 && ox_schedule_rate(&schedule, 10) == 1);
    CHECK(ox_schedule_rate(&schedule, 19) == 0.5);
    schedule.offset = -5;
    CHECK(ox_schedule_rate(&schedule, 9) == 0.5 && ox_schedule_rate(&schedule, 15) == 0);
    static const char *const types[] = {"linear", "inverse_sqrt"};
    for (int i = 0; i < 2; i++) {
        begin(&config);
        set(&config, "learning-rate", "1");
        set(&config, "lr-scheduler-type", types[i]);
        set(&config, "warmup-ratio", "0.2"); /* of 20 steps 4, of 40 steps 8: 3 of 20 are taken, and then halves */
        const struct ox_rate_schedule whole = ox_schedule_of(&config, 20);
        schedule = ox_schedule_of(&config, 40);
        schedule.offset = -3;
        CHECK(ox_schedule_rate(&whole, 3) == 0.75 && ox_schedule_rate(&schedule, 3) == 0.75);
        CHECK(ox_schedule_rate(&schedule, 4) == 0.875 && ox_schedule_rate(&schedule, 5) == 1);
        CHECK(ox_schedule_rate(&schedule, 6) < 1 && ox_schedule_rate(&schedule, 6) > 0.9);
    }
}

/* As torch.amp.GradScaler: its ends are 2^127, the largest power of two of fp32, and 1, where ours ends. */
static void test_loss_scale(void) {
    uint16_t code = 128;
    uint32_t tracker = 1;
    CHECK(ox_loss_scale_step(&code, &tracker, 2, false) && code == 128 && tracker == 0);
    CHECK(ox_loss_scale_step(&code, &tracker, 2, false) && code == 128 && tracker == 1);
    CHECK(ox_loss_scale_step(&code, &tracker, 2, true) && code == 127 && tracker == 0);
    code = 2;
    CHECK(ox_loss_scale_step(&code, &tracker, 1, true) && code == 1);
    CHECK(!ox_loss_scale_step(&code, &tracker, 1, true) && code == 1 && tracker == 0);
    CHECK(ox_loss_scale_step(&code, &tracker, 1, false) && code == 2 && tracker == 0);
    for (int i = 0; i < 1999; i++) {
        CHECK(ox_loss_scale_step(&code, &tracker, 2000, false) && code == 2);
    }
    CHECK(ox_loss_scale_step(&code, &tracker, 2000, false) && code == 3 && tracker == 0);
}

int main(void) {
    check_golden();
    check_all_left();
    check_offset();
    check_own();
    check_old();
    check_refused("constant", "warmup-steps", "1", "remove it, or use constant_with_warmup");
    check_refused("constant", "warmup-ratio", "0.1", "remove it, or use constant_with_warmup");
    check_refused("constant", "min-lr-ratio", "0.1", "--min-lr-ratio does not apply to --lr-scheduler-type constant");
    check_refused("inverse_sqrt", "min-lr", "1e-6", "--min-lr does not apply to --lr-scheduler-type inverse_sqrt");
    check_refused("linear", "lr-num-cycles", "2", "use cosine_with_restarts");
    check_refused("cosine", "lr-power", "2", "use polynomial");
    check_refused("cosine", "lr-timescale", "2", "use inverse_sqrt");
    check_refused("cosine", "lr-decay-type", "linear", "use wsd");
    check_refused("cosine_with_min_lr", "seed", "1", "add --min-lr or --min-lr-ratio");
    test_loss_scale();
    return test_end();
}
