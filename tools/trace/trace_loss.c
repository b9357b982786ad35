/* The loss of a run, and how it used the experts of its mixtures, drawn from the metrics.jsonl beside its recording. */
#include "tools/trace/trace_page.h"

#include "engine/report/curves.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 1000, HEIGHT = 180, LEFT = 56, BELOW = 22 };

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

static void widen(struct axes *axes, double step, double loss) {
    axes->first = fmin(axes->first, step);
    axes->last = fmax(axes->last, step);
    axes->low = fmin(axes->low, loss); /* which leaves out NaN */
    axes->high = fmax(axes->high, loss);
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

static struct axes axes_of(const struct ox_curves *curves, enum ox_curve curve) {
    struct axes axes = {INFINITY, -INFINITY, INFINITY, -INFINITY};
    for (uint32_t i = 0; i < curves->count; i++) {
        widen(&axes, curves->points[i].step, curves->points[i].values[curve]);
    }
    for (uint32_t i = 0; i < curves->eval_count && curve == OX_CURVE_LOSS; i++) {
        widen(&axes, curves->evals[i].step, curves->evals[i].loss);
    }
    return axes;
}

static void put_line(struct ox_page *p, const struct ox_curves *curves, const struct axes *axes, enum ox_curve curve) {
    fputs("<polyline points=\"", p->out);
    for (uint32_t i = 0; i < curves->count; i++) {
        const double value = curves->points[i].values[curve];
        if (!isnan(value)) {
            fprintf(p->out, "%s%.1f,%.1f", i > 0 ? " " : "", x_of(axes, curves->points[i].step), y_of(axes, value));
        }
    }
    fputs("\"/>\n", p->out);
}

/* Draws another value than the loss, where the run has it. */
static void put_other(struct ox_page *p, const struct ox_curves *curves, enum ox_curve curve, const char *title,
                      const char *note) {
    const struct axes axes = axes_of(curves, curve);
    if (!isfinite(axes.low)) {
        return;
    }
    fprintf(p->out, "<section><h2>%s</h2>\n<p class=\"note\">%s</p>\n"
            "<svg class=\"loss\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s from %.4g to %.4g\">\n", title,
            note, WIDTH, HEIGHT, title, axes.low, axes.high);
    put_axes(p, &axes);
    put_line(p, curves, &axes, curve);
    fputs("</svg></section>\n", p->out);
}

/* Draws a bar for each expert: its tokens of the last step, over all layers, in even loads. */
static void put_loads(struct ox_page *p, const struct ox_curves *curves) {
    const uint32_t count = curves->expert_count;
    double sum = 0, most = 1;
    for (uint32_t e = 0; e < count; e++) {
        sum += curves->expert_tokens[e];
    }
    for (uint32_t e = 0; e < count && sum > 0; e++) {
        most = fmax(most, curves->expert_tokens[e] * count / sum);
    }
    if (sum <= 0) {
        return;
    }
    const struct axes axes = {.first = 0, .last = count, .low = 0, .high = most};
    fprintf(p->out, "<section><h2>Load of experts</h2>\n<p class=\"note\">Tokens of step %.0f by expert, over all "
            "layers with a mixture; the line is an even share.</p>\n<svg class=\"loss loads\" viewBox=\"0 0 %d %d\" "
            "role=\"img\" aria-label=\"Load of %u experts\">\n", curves->points[curves->count - 1].step, WIDTH, HEIGHT,
            count);
    for (uint32_t e = 0; e < count; e++) {
        const double load = curves->expert_tokens[e] * count / sum, left = x_of(&axes, e);
        fprintf(p->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>expert %u: %.0f tokens, "
                "%.2f even shares</title></rect>\n", left, y_of(&axes, load), 0.8 * (x_of(&axes, e + 1) - left),
                y_of(&axes, 0) - y_of(&axes, load), e, curves->expert_tokens[e], load);
    }
    fprintf(p->out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" "
            "text-anchor=\"end\">1</text><text x=\"%d\" y=\"%d\">expert 0</text><text x=\"%d\" y=\"%d\" "
            "text-anchor=\"end\">expert %u</text>\n</svg></section>\n", LEFT, WIDTH - 8, y_of(&axes, 1), y_of(&axes, 1),
            LEFT - 8, y_of(&axes, 1) + 4, LEFT, HEIGHT - 4, WIDTH - 8, HEIGHT - 4, count - 1);
}

static void put_curve(struct ox_page *p, const struct ox_curves *curves) {
    const struct axes axes = axes_of(curves, OX_CURVE_LOSS);
    fprintf(p->out, "<section><h2>Loss</h2>\n<p class=\"note\">Of training%s, from the run's metrics.jsonl%s.</p>\n"
            "<svg class=\"loss\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"Loss from %.4g to %.4g\">\n",
            curves->eval_count > 0 ? " (line) and of evaluations (points)" : "",
            curves->steps_each > 1 ? "; a point of the line is the mean of several steps" : "", WIDTH, HEIGHT,
            curves->points[0].values[OX_CURVE_LOSS], curves->points[curves->count - 1].values[OX_CURVE_LOSS]);
    put_axes(p, &axes);
    put_line(p, curves, &axes, OX_CURVE_LOSS);
    for (uint32_t i = 0; i < curves->eval_count; i++) {
        fprintf(p->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>evaluation at step %.0f: %.4f</title>"
                "</circle>\n", x_of(&axes, curves->evals[i].step), y_of(&axes, curves->evals[i].loss),
                curves->evals[i].step, curves->evals[i].loss);
    }
    fputs("</svg></section>\n", p->out);
}

void ox_page_loss(struct ox_page *p) {
    struct ox_curves *curves = NULL;
    /* The recording is of use without the losses, so a file that is missing or has other lines gives none. */
    if (ox_curves_read(p->report->path, &curves) == OX_OK && curves->count > 1) {
        put_curve(p, curves);
        put_other(p, curves, OX_CURVE_EXPERTS_BUSIEST, "Busiest expert",
                  "The highest load of an expert of a mixture in a step, in even loads of its layer: 1 is as even as "
                  "it can be.");
        put_other(p, curves, OX_CURVE_EXPERTS_IDLE, "Idle experts",
                  "The share of experts that no token of a step chose.");
        put_loads(p, curves);
    }
    free(curves);
}
