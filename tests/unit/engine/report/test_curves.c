/* Curves of a run from its metrics.jsonl: every step counts once, however many there are, and lines of other kinds or
 * that are damaged do not. */
#include "engine/report/curves.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct ox_curves *read_run(const char *text) {
    struct ox_curves *curves = NULL;
    files_write(test_path("metrics.jsonl"), text, strlen(text));
    REQUIRE_OK(ox_curves_read(test_folder(), &curves));
    return curves;
}

static void test_lines(void) {
    struct ox_curves *const curves = read_run(
        "{\"type\":\"eval\",\"step\":0,\"eval_loss\":6.5,\"seconds\":1}\n"
        "{\"type\":\"step\",\"step\":1,\"loss\":5,\"grad_norm\":2,\"learning_rate\":0.1,\"tokens_per_second\":10,"
        "\"tokens_seen\":100,\"seconds\":2,\"steps_per_epoch\":7}\n"
        "{\"type\":\"step\",\"step\":2,\"loss\":null,\"grad_norm\":null,\"skipped\":true,\"tokens_seen\":200,"
        "\"seconds\":2}\n"
        "not JSON\n{\"type\":\"end\",\"step\":2}\n{\"loss\":1}\n"
        "{\"type\":\"eval\",\"step\":2,\"eval_loss\":4.5,\"seconds\":1}\n"
        "{\"type\":\"eval\",\"step\":3,\"eval_loss\":4.5,\"seconds\":1}\n{\"type\":\"step\",\"step\":3,\"lo");
    CHECK(curves->count == 2 && curves->steps_each == 1 && curves->skipped_steps == 1 && curves->steps_per_epoch == 7);
    CHECK(curves->points[0].step == 1 && curves->points[0].seconds == 3 && curves->points[0].tokens == 100);
    CHECK(curves->points[0].values[OX_CURVE_LOSS] == 5 && curves->points[0].values[OX_CURVE_LEARNING_RATE] == 0.1);
    CHECK(isnan(curves->points[1].values[OX_CURVE_LOSS]) && curves->points[1].counts[OX_CURVE_LOSS] == 0);
    CHECK(curves->eval_count == 3 && curves->evals[1].seconds == 6 && curves->evals[1].tokens == 200);
    CHECK(curves->best.step == 2 && curves->best.loss == 4.5); /* of equal ones the first */
    free(curves);
}

/* A run of `steps` steps whose loss is its step: means of points are known. */
static void check_long(unsigned steps) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *const out = open_memstream(&text, &bytes);
    for (unsigned step = 1; step <= steps; step++) {
        fprintf(out, "{\"type\":\"step\",\"step\":%u,\"loss\":%u,\"tokens_seen\":%u,\"seconds\":1}\n", step, step,
                10 * step);
        fprintf(out, "{\"type\":\"eval\",\"step\":%u,\"eval_loss\":%u,\"seconds\":0}\n", step, 2 * steps - step);
    }
    CHECK(fclose(out) == 0);
    struct ox_curves *const curves = read_run(text);
    double sum = 0, count = 0, step = 0;
    for (uint32_t i = 0; i < curves->count; i++) {
        const struct ox_curve_point *const point = &curves->points[i];
        CHECK(point->step > step && point->seconds == point->step && point->tokens == 10 * point->step);
        CHECK(fabs(point->values[OX_CURVE_LOSS] - (step + 1 + point->step) / 2) < 1e-9);
        CHECK(point->counts[OX_CURVE_LOSS] == (uint32_t)(point->step - step));
        sum += point->counts[OX_CURVE_LOSS] * point->values[OX_CURVE_LOSS];
        count += point->counts[OX_CURVE_LOSS];
        step = point->step;
    }
    CHECK(step == steps && count == steps && fabs(sum - 0.5 * steps * (steps + 1.0)) < 1e-6 * sum);
    CHECK(curves->count <= OX_CURVE_POINTS_MAX && (steps < 600 || curves->count > OX_CURVE_POINTS_MAX / 2 - 2));
    CHECK(curves->evals[curves->eval_count - 1].step == steps && curves->best.step == steps);
    free(curves);
    free(text);
}

int main(void) {
    struct ox_curves *curves = NULL;
    CHECK(ox_curves_read(test_path("none"), &curves) == OX_E_CONFIG && curves == NULL);
    test_lines();
    static const unsigned lengths[] = {1, 2, 599, 600, 601, 1200, 1201, 5000};
    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        check_long(lengths[i]);
    }
    return test_end();
}
