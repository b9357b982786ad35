/* The loss of a run, drawn from the metrics.jsonl beside its recording. */
#include "tools/trace/trace_page.h"

#include "base/file.h"
#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS_MAX = 600, LINE_BYTES_MAX = 1 << 16, WIDTH = 1000, HEIGHT = 180, LEFT = 56, BELOW = 22 };

struct point {
    double step, loss;
};

/* Losses of steps, of which many become one point, their mean; and those of evaluations. */
struct curve {
    struct point points[POINTS_MAX], evals[POINTS_MAX];
    uint32_t count, eval_count;
    uint64_t each, in_last; /* steps a point has; those that the last one has so far */
};

/* Halves the number of points. */
static void thin(struct curve *curve) {
    for (uint32_t i = 0; i < POINTS_MAX / 2; i++) {
        const struct point *const pair = &curve->points[2 * (size_t)i];
        curve->points[i] = (struct point){pair[1].step, (pair[0].loss + pair[1].loss) / 2};
    }
    curve->count = POINTS_MAX / 2;
    curve->each *= 2;
}

static void add_step(struct curve *curve, struct point point) {
    if (curve->count == POINTS_MAX && curve->in_last == curve->each) {
        thin(curve);
        curve->in_last = curve->each;
    }
    if (curve->count == 0 || curve->in_last == curve->each) {
        curve->points[curve->count++] = point;
        curve->in_last = 1;
        return;
    }
    struct point *const last = &curve->points[curve->count - 1];
    last->loss += (point.loss - last->loss) / (double)++curve->in_last;
    last->step = point.step;
}

static void add_eval(struct curve *curve, struct point point) {
    for (uint32_t i = 0; curve->eval_count == POINTS_MAX && i < POINTS_MAX / 2; i++) { /* every other one */
        curve->evals[i] = curve->evals[2 * (size_t)i + 1];
    }
    curve->eval_count = curve->eval_count == POINTS_MAX ? POINTS_MAX / 2 : curve->eval_count;
    curve->evals[curve->eval_count++] = point;
}

static void add_line(struct curve *curve, const json_t *line) {
    const char *const type = json_string_value(json_object_get(line, "type"));
    const bool is_eval = type != NULL && strcmp(type, "eval") == 0;
    const json_t *const loss = json_object_get(line, is_eval ? "eval_loss" : "loss");
    const struct point point = {json_number_value(json_object_get(line, "step")), json_number_value(loss)};
    if (json_is_number(loss) && is_eval) {
        add_eval(curve, point);
    } else if (json_is_number(loss)) {
        add_step(curve, point);
    }
}

/* A file that is missing or has other lines gives no points: the recording is of use without it. */
static void read_curve(const char *path, struct curve *curve) {
    char folder[OX_PATH_BYTES], metrics[OX_PATH_BYTES];
    enum ox_status status = OX_OK;
    if (ox_path_is_folder(path)) {
        snprintf(folder, sizeof folder, "%s", path);
    } else {
        status = ox_path_parent(path, folder);
    }
    OX_TRY(status, ox_path_join(folder, "metrics.jsonl", metrics));
    FILE *const file = status == OX_OK ? fopen(metrics, "re") : NULL;
    char *const text = malloc(LINE_BYTES_MAX);
    while (file != NULL && text != NULL && fgets(text, LINE_BYTES_MAX, file) != NULL) {
        json_t *line = NULL;
        if (ox_json_parse_line("metrics.jsonl", text, strcspn(text, "\n"), &line) == OX_OK) {
            add_line(curve, line);
        }
        json_decref(line);
    }
    free(text);
    if (file != NULL) {
        fclose(file);
    }
}

struct axes {
    double first, last, low, high;
};

static double x_of(const struct axes *axes, double step) {
    const double span = fmax(axes->last - axes->first, 1);
    return LEFT + (step - axes->first) / span * (WIDTH - LEFT - 8);
}

static double y_of(const struct axes *axes, double loss) {
    const double span = axes->high > axes->low ? axes->high - axes->low : 1;
    return 8 + (axes->high - loss) / span * (HEIGHT - 8 - BELOW);
}

static void widen(struct axes *axes, const struct point *points, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        axes->first = fmin(axes->first, points[i].step);
        axes->last = fmax(axes->last, points[i].step);
        axes->low = fmin(axes->low, points[i].loss);
        axes->high = fmax(axes->high, points[i].loss);
    }
}

static void put_axes(struct ox_page *p, const struct axes *axes) {
    for (int i = 0; i <= 2; i++) {
        const double loss = axes->low + (axes->high - axes->low) * i / 2;
        fprintf(p->out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%.4g</text>\n", LEFT, WIDTH - 8, y_of(axes, loss), y_of(axes, loss), LEFT - 8,
                y_of(axes, loss) + 4, loss);
    }
    fprintf(p->out, "<text x=\"%d\" y=\"%d\">step %.0f</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">step %.0f"
            "</text>\n", LEFT, HEIGHT - 4, axes->first, WIDTH - 8, HEIGHT - 4, axes->last);
}

void ox_page_loss(struct ox_page *p) {
    struct axes axes = {INFINITY, -INFINITY, INFINITY, -INFINITY};
    struct curve *const curve = calloc(1, sizeof *curve);
    if (curve == NULL) {
        return;
    }
    curve->each = 1;
    read_curve(p->report->path, curve);
    widen(&axes, curve->points, curve->count);
    widen(&axes, curve->evals, curve->eval_count);
    if (curve->count > 1) {
        fprintf(p->out, "<section><h2>Loss</h2>\n<p class=\"note\">Of training%s, from the run's metrics.jsonl%s.</p>\n"
                "<svg class=\"loss\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"Loss from %.4g to %.4g\">\n",
                curve->eval_count > 0 ? " (line) and of evaluations (points)" : "",
                curve->each > 1 ? "; a point of the line is the mean of several steps" : "", WIDTH, HEIGHT,
                curve->points[0].loss, curve->points[curve->count - 1].loss);
        put_axes(p, &axes);
        fputs("<polyline points=\"", p->out);
        for (uint32_t i = 0; i < curve->count; i++) {
            fprintf(p->out, "%s%.1f,%.1f", i > 0 ? " " : "", x_of(&axes, curve->points[i].step),
                    y_of(&axes, curve->points[i].loss));
        }
        fputs("\"/>\n", p->out);
        for (uint32_t i = 0; i < curve->eval_count; i++) {
            fprintf(p->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>evaluation at step %.0f: %.4f</title>"
                    "</circle>\n", x_of(&axes, curve->evals[i].step), y_of(&axes, curve->evals[i].loss),
                    curve->evals[i].step, curve->evals[i].loss);
        }
        fputs("</svg></section>\n", p->out);
    }
    free(curve);
}
