/* Runs beside each other as text: a table, the options that differ, and a plot of the losses. */
#include "tools/compare/compare.h"

#include "base/bytes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PLOT_WIDTH = 64, PLOT_HEIGHT = 14, LABEL_BYTES_MAX = 40 };

/* ---- tables --------------------------------------------------------------------------------------------- */

static int label_width(const struct ox_comparison *comparison) {
    size_t width = strlen("run");
    for (uint32_t i = 0; i < comparison->count; i++) {
        const size_t bytes = strlen(comparison->runs[i].label);
        width = bytes > width ? bytes : width;
    }
    return width > LABEL_BYTES_MAX ? LABEL_BYTES_MAX : (int)width;
}

static const char *loss_text(double loss, char text[32]) {
    snprintf(text, 32, isnan(loss) ? "-" : "%.4f", loss);
    return text;
}

static void put_runs(const struct ox_comparison *comparison, FILE *out) {
    const int width = label_width(comparison);
    fprintf(out, "   %-*s %9s %9s %9s %9s %10s %17s %9s  %s\n", width, "run", "steps", "tokens", "time", "loss",
            "eval loss", "best (at step)", "tokens/s", "state");
    for (uint32_t i = 0; i < comparison->count; i++) {
        const struct ox_compared_run *const run = &comparison->runs[i];
        const struct ox_curves *const curves = run->curves;
        const struct ox_curve_point *const last = curves->count > 0 ? &curves->points[curves->count - 1] : NULL;
        char tokens[OX_SIZE_TEXT_BYTES], time[OX_SIZE_TEXT_BYTES], loss[32], eval[32], best[64] = "-", speed[32] = "-";
        if (!isnan(curves->best.loss)) {
            snprintf(best, sizeof best, "%.4f (%.0f)", curves->best.loss, curves->best.step);
        }
        if (!isnan(run->tokens_per_second)) {
            snprintf(speed, sizeof speed, "%.0f", run->tokens_per_second);
        }
        const double newest = curves->eval_count > 0 ? curves->evals[curves->eval_count - 1].loss : NAN;
        const double step = last != NULL ? last->step : 0;
        fprintf(out, "%c  %-*.*s %9.0f %9s %9s %9s %10s %17s %9s  %s", ox_comparison_letter(i), width, width,
                run->label, step, ox_comparison_tokens(last != NULL ? last->tokens : 0, tokens),
                ox_seconds_text(last != NULL ? last->seconds : 0, time), loss_text(run->loss, loss),
                loss_text(newest, eval), best, speed, run->state);
        if (run->max_steps > 0 && strcmp(run->state, "ended") != 0) {
            fprintf(out, " at %.0f of %llu", step, (unsigned long long)run->max_steps);
        }
        fputc('\n', out);
    }
    fputs("loss: the mean of the last tenth of the steps\n", out);
    for (uint32_t i = 0; i < comparison->count; i++) {
        const uint64_t skipped = comparison->runs[i].curves->skipped_steps;
        if (skipped > 0) {
            fprintf(out, "%c: %llu step%s skipped, because loss or gradient was not finite\n", ox_comparison_letter(i),
                    (unsigned long long)skipped, skipped == 1 ? " was" : "s were");
        }
    }
}

static void put_options(const struct ox_comparison *comparison, FILE *out) {
    uint32_t count = 0, differing = 0;
    const struct ox_option *const options = ox_options(&count);
    for (uint32_t i = 0; i < count; i++) {
        if (!ox_comparison_differs(comparison, i)) {
            continue;
        }
        if (differing++ == 0) {
            fputs("\noptions that differ\n", out);
        }
        fprintf(out, "  %s\n", options[i].name);
        for (uint32_t run = 0; run < comparison->count; run++) {
            const char *const text = comparison->runs[run].options != NULL ? comparison->runs[run].options[i] : NULL;
            fprintf(out, "    %c  %s\n", ox_comparison_letter(run),
                    text == NULL ? "not recorded" : text[0] == '\0' ? "(empty)" : text);
        }
    }
    if (differing == 0 && comparison->count > 1) {
        fputs("\nno option differs, of those that are recorded\n", out);
    }
}

/* ---- plot ------------------------------------------------------------------------------------------------ */

struct plot {
    double last, low, high; /* steps from 0 to `last`; losses */
    char cells[PLOT_HEIGHT][PLOT_WIDTH + 1];
};

/* The mean loss of each column of a run; NaN: no step is in it. A point of several steps fills the columns up to it. */
static void columns_of(const struct ox_curves *curves, double last, double means[PLOT_WIDTH]) {
    double sums[PLOT_WIDTH] = {0}, counts[PLOT_WIDTH] = {0};
    for (uint32_t i = 0; i < curves->count; i++) {
        const struct ox_curve_point *const point = &curves->points[i];
        const int at = (int)fmin(PLOT_WIDTH - 1, point->step / last * PLOT_WIDTH);
        if (point->counts[OX_CURVE_LOSS] > 0) {
            sums[at] += point->values[OX_CURVE_LOSS] * point->counts[OX_CURVE_LOSS];
            counts[at] += point->counts[OX_CURVE_LOSS];
        }
    }
    for (int i = 0; i < PLOT_WIDTH; i++) {
        means[i] = counts[i] > 0 ? sums[i] / counts[i] : NAN;
    }
}

static void draw(struct plot *plot, const struct ox_comparison *comparison) {
    memset(plot->cells, ' ', sizeof plot->cells);
    for (uint32_t run = 0; run < comparison->count; run++) {
        double means[PLOT_WIDTH];
        columns_of(comparison->runs[run].curves, plot->last, means);
        for (int x = 0; x < PLOT_WIDTH; x++) {
            if (isnan(means[x])) {
                continue;
            }
            const double share = (plot->high - means[x]) / (plot->high - plot->low);
            char *const cell = &plot->cells[(int)lround(share * (PLOT_HEIGHT - 1))][x];
            *cell = *cell == ' ' ? ox_comparison_letter(run) : '*';
        }
    }
}

static void put_plot(const struct ox_comparison *comparison, FILE *out) {
    struct plot plot = {.low = INFINITY, .high = -INFINITY};
    for (uint32_t run = 0; run < comparison->count; run++) {
        const struct ox_curves *const curves = comparison->runs[run].curves;
        plot.last = fmax(plot.last, curves->count > 0 ? curves->points[curves->count - 1].step : 0);
    }
    for (uint32_t run = 0; run < comparison->count && plot.last > 0; run++) {
        double means[PLOT_WIDTH];
        columns_of(comparison->runs[run].curves, plot.last, means);
        for (int x = 0; x < PLOT_WIDTH; x++) {
            plot.low = fmin(plot.low, means[x]);
            plot.high = fmax(plot.high, means[x]);
        }
    }
    if (!(plot.high > plot.low)) {
        return; /* a line, or nothing */
    }
    draw(&plot, comparison);
    fprintf(out, "\nloss of training, mean of each column%s\n", comparison->count > 1 ? "; * of several runs" : "");
    for (int y = 0; y < PLOT_HEIGHT; y++) {
        int used = PLOT_WIDTH;
        while (used > 0 && plot.cells[y][used - 1] == ' ') {
            used--;
        }
        if (y % (PLOT_HEIGHT / 2) == 0 || y == PLOT_HEIGHT - 1) {
            fprintf(out, "%9.4g |", plot.high - (plot.high - plot.low) * y / (PLOT_HEIGHT - 1));
        } else {
            fprintf(out, "%9s |", "");
        }
        fprintf(out, "%.*s\n", used, plot.cells[y]);
    }
    fprintf(out, "%9s +%.*s\n%9s  0%*s%.0f steps\n", "", PLOT_WIDTH,
            "----------------------------------------------------------------", "", PLOT_WIDTH - 16, "", plot.last);
}

enum ox_status ox_comparison_text(const struct ox_comparison *comparison, FILE *out) {
    put_runs(comparison, out);
    put_options(comparison, out);
    put_plot(comparison, out);
    return OX_OK;
}
