#include "engine/report/curves.h"

#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { LINE_BYTES_MAX = 1 << 16 };

static const char *const names[OX_CURVE_COUNT] = {"loss", "grad_norm", "learning_rate", "tokens_per_second",
                                                  "experts_idle_share", "experts_busiest"};

const char *ox_curve_name(enum ox_curve curve) {
    return names[curve];
}

/* Adds the steps of `from` to those of a point before them. */
static void merge(struct ox_curve_point *into, const struct ox_curve_point *from) {
    for (int i = 0; i < OX_CURVE_COUNT; i++) {
        const uint32_t count = into->counts[i] + from->counts[i];
        if (from->counts[i] > 0) {
            into->values[i] = into->counts[i] == 0 ? from->values[i]
                                                   : into->values[i] + (from->values[i] - into->values[i]) *
                                                                           from->counts[i] / count;
        }
        into->counts[i] = count;
    }
    into->step = from->step;
    into->tokens = from->tokens;
    into->seconds = from->seconds;
}

static void add_point(struct ox_curves *curves, const struct ox_curve_point *point) {
    const bool full = curves->count == OX_CURVE_POINTS_MAX && curves->steps_in_last == curves->steps_each;
    if (full) { /* half as many points, of twice as many steps */
        for (uint32_t i = 0; i < OX_CURVE_POINTS_MAX / 2; i++) {
            struct ox_curve_point pair = curves->points[2 * (size_t)i];
            merge(&pair, &curves->points[2 * (size_t)i + 1]);
            curves->points[i] = pair;
        }
        curves->count = OX_CURVE_POINTS_MAX / 2;
        curves->steps_each *= 2;
        curves->steps_in_last = curves->steps_each;
    }
    if (curves->count > 0 && curves->steps_in_last < curves->steps_each) {
        merge(&curves->points[curves->count - 1], point);
        curves->steps_in_last++;
    } else {
        curves->points[curves->count++] = *point;
        curves->steps_in_last = 1;
    }
}

static void add_eval(struct ox_curves *curves, const struct ox_curve_eval *eval) {
    if (curves->eval_count == OX_CURVE_POINTS_MAX) { /* every other one */
        for (uint32_t i = 0; i < OX_CURVE_POINTS_MAX / 2; i++) {
            curves->evals[i] = curves->evals[2 * (size_t)i + 1];
        }
        curves->eval_count = OX_CURVE_POINTS_MAX / 2;
    }
    curves->evals[curves->eval_count++] = *eval;
    if (isnan(curves->best.loss) || eval->loss < curves->best.loss) {
        curves->best = *eval;
    }
}

/* The number of a line, or NaN: null stands for one that is not finite. */
static double number(const json_t *line, const char *key) {
    const json_t *const value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* Keeps how many tokens each expert had. */
static void add_experts(struct ox_curves *curves, const json_t *line) {
    const json_t *const tokens = json_object_get(json_object_get(line, "experts"), "tokens");
    const size_t count = json_array_size(tokens);
    curves->expert_count = count <= OX_CURVE_EXPERTS_MAX ? (uint32_t)count : 0;
    for (uint32_t i = 0; i < curves->expert_count; i++) {
        curves->expert_tokens[i] = json_number_value(json_array_get(tokens, i));
    }
}

/* Where the run is after the line before. */
struct now {
    double tokens, seconds;
};

static void add_line(struct ox_curves *curves, const json_t *line, struct now *now) {
    const char *const type = json_string_value(json_object_get(line, "type"));
    const double step = number(line, "step"), seconds = number(line, "seconds");
    const bool is_step = type != NULL && strcmp(type, "step") == 0;
    const bool is_eval = type != NULL && strcmp(type, "eval") == 0;
    curves->ended = type != NULL && strcmp(type, "end") == 0;
    curves->max_steps = curves->ended ? number(line, "max_steps") : curves->max_steps;
    if ((!is_step && !is_eval) || isnan(step)) {
        return;
    }
    now->seconds += isnan(seconds) ? 0 : seconds;
    if (is_eval) {
        const struct ox_curve_eval eval = {step, now->tokens, now->seconds, number(line, "eval_loss")};
        if (!isnan(eval.loss)) {
            add_eval(curves, &eval);
        }
        return;
    }
    const double tokens = number(line, "tokens_seen"), each = number(line, "steps_per_epoch");
    now->tokens = isnan(tokens) ? now->tokens : tokens;
    curves->steps_per_epoch = isnan(each) ? curves->steps_per_epoch : each;
    const char *const order = json_string_value(json_object_get(line, "order"));
    const bool skipped = json_is_true(json_object_get(line, "skipped"));
    const bool early = order != NULL && strcmp(order, "speculative") == 0 && !skipped;
    curves->skipped_steps += skipped;
    curves->early_steps += early;
    curves->held_steps += order != NULL && strcmp(order, "held") == 0 && !skipped;
    curves->repeated_steps += early && json_is_false(json_object_get(line, "speculated"));
    struct ox_curve_point point = {.step = step, .tokens = now->tokens, .seconds = now->seconds};
    for (int i = 0; i < OX_CURVE_COUNT; i++) {
        point.values[i] = number(line, names[i]);
        point.counts[i] = !isnan(point.values[i]);
    }
    add_point(curves, &point);
    add_experts(curves, line);
}

static enum ox_status read_lines(FILE *file, const char *path, struct ox_curves *curves) {
    char *const text = malloc(LINE_BYTES_MAX);
    struct now now = {0, 0};
    if (text == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it", path);
    }
    while (fgets(text, LINE_BYTES_MAX, file) != NULL) {
        json_t *line = NULL;
        if (ox_json_parse_line("metrics.jsonl", text, strcspn(text, "\n"), &line) == OX_OK) {
            add_line(curves, line, &now);
        }
        json_decref(line);
    }
    free(text);
    return ferror(file) != 0 ? ox_fail_errno(OX_E_IO, errno, "%s: cannot be read", path) : OX_OK;
}

enum ox_run_lock ox_run_lock_of(const char *folder) {
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return OX_RUN_UNKNOWN;
    }
    const bool is_free = flock(fd, LOCK_SH | LOCK_NB) == 0;
    const enum ox_run_lock lock = is_free ? OX_RUN_FREE : errno == EWOULDBLOCK ? OX_RUN_HELD : OX_RUN_UNKNOWN;
    close(fd);
    return lock;
}

enum ox_status ox_curves_read(const char *folder, struct ox_curves **out) {
    char run[OX_PATH_BYTES], path[OX_PATH_BYTES];
    *out = NULL;
    snprintf(run, sizeof run, "%s", folder);
    if (!ox_path_exists(folder)) {
        return ox_fail(OX_E_CONFIG, "%s: does not exist; name the folder of a run", folder);
    }
    enum ox_status status = ox_path_is_folder(folder) ? OX_OK : ox_path_parent(folder, run);
    OX_THEN(status, ox_path_join(run, "metrics.jsonl", path));
    if (status != OX_OK) {
        return status;
    }
    FILE *const file = fopen(path, "re");
    if (file == NULL) {
        return errno == ENOENT ? ox_fail(OX_E_CONFIG, "%s: holds no metrics.jsonl; name the folder of a run", run)
                               : ox_fail_errno(OX_E_IO, errno, "%s: cannot open it", path);
    }
    struct ox_curves *curves = calloc(1, sizeof *curves);
    if (curves == NULL) {
        status = ox_fail(OX_E_NOMEM, "%s: no memory to read it", path);
    } else {
        curves->steps_each = 1;
        curves->best.loss = (double)NAN;
        status = read_lines(file, path, curves);
    }
    fclose(file);
    if (status != OX_OK) {
        free(curves);
        return status;
    }
    *out = curves;
    return OX_OK;
}
