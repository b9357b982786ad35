/* Runs beside each other as one HTML file. The program writes the tables, which need no scripts;
 * tools/compare/compare_page.js draws the curves from the data at the end of the file. */
#include "tools/compare/compare.h"

#include "base/bytes.h"
#include "tools/trace/trace_report.h"

#include <math.h>
#include <stdlib.h>

/* Embeds the script and the style sheet from the source tree. */
__asm__(".pushsection .rodata\n"
        ".globl ox_compare_page_css\nox_compare_page_css:\n.incbin \"tools/compare/compare_page.css\"\n.byte 0\n"
        ".globl ox_compare_page_js\nox_compare_page_js:\n.incbin \"tools/compare/compare_page.js\"\n.byte 0\n"
        ".popsection\n");
extern const char ox_compare_page_css[], ox_compare_page_js[];

static void put_number(FILE *out, const char *format, double value) {
    fputs("<td>", out);
    if (!isnan(value)) {
        fprintf(out, format, value); /* NOLINT: the callers below give literals */
    }
    fputs("</td>", out);
}

static void put_run(FILE *out, const struct ox_compared_run *run, uint32_t idx) {
    const struct ox_curves *const curves = run->curves;
    const struct ox_curve_point *const last = curves->count > 0 ? &curves->points[curves->count - 1] : NULL;
    char tokens[OX_SIZE_TEXT_BYTES], time[OX_SIZE_TEXT_BYTES];
    fprintf(out, "<tr data-run=\"%u\"><th title=\"", idx);
    ox_html_put(out, run->path);
    fprintf(out, "\"><label><input type=\"checkbox\" checked data-run=\"%u\"><i></i>", idx);
    ox_html_put(out, run->label);
    fputs("</label></th>", out);
    put_number(out, "%.0f", last != NULL ? last->step : 0);
    fprintf(out, "<td>%s</td><td>%s</td>", ox_comparison_tokens(last != NULL ? last->tokens : 0, tokens),
            ox_seconds_text(last != NULL ? last->seconds : 0, time));
    put_number(out, "%.4f", run->loss);
    put_number(out, "%.4f", curves->eval_count > 0 ? curves->evals[curves->eval_count - 1].loss : NAN);
    put_number(out, "%.4f", curves->best.loss);
    put_number(out, "%.0f", isnan(curves->best.loss) ? NAN : curves->best.step);
    put_number(out, "%.0f", run->tokens_per_second);
    fprintf(out, "<td>%llu</td><td>%s</td></tr>\n", (unsigned long long)curves->skipped_steps, run->state);
}

static void put_runs(const struct ox_comparison *comparison, FILE *out) {
    fputs("<section><h2>Runs</h2>\n<div class=\"scroll\"><table class=\"runs\"><thead><tr><th>run</th><th>steps</th>"
          "<th>tokens</th><th>time</th><th>loss</th><th>last eval</th><th>best eval</th><th>at step</th>"
          "<th>tokens/s</th><th>skipped</th><th>state</th></tr></thead><tbody>\n", out);
    for (uint32_t i = 0; i < comparison->count; i++) {
        put_run(out, &comparison->runs[i], i);
    }
    fputs("</tbody></table></div>\n<p class=\"note\">Loss: the mean of the last tenth of the steps. Time: of all steps "
          "and evaluations, resumes included. The boxes show and hide curves.</p></section>\n", out);
}

static void put_options(const struct ox_comparison *comparison, FILE *out) {
    uint32_t count = 0, differing = 0;
    const struct ox_option *const options = ox_options(&count);
    if (comparison->count < 2) {
        return;
    }
    fputs("<section><h2>Options that differ</h2>\n<div class=\"scroll\"><table class=\"options\"><thead><tr><th>option"
          "</th>", out);
    for (uint32_t run = 0; run < comparison->count; run++) {
        fputs("<th>", out);
        ox_html_put(out, comparison->runs[run].label);
        fputs("</th>", out);
    }
    fputs("</tr></thead><tbody>\n", out);
    for (uint32_t i = 0; i < count; i++) {
        if (!ox_comparison_differs(comparison, i)) {
            continue;
        }
        differing++;
        fprintf(out, "<tr><th>%s</th>", options[i].name);
        for (uint32_t run = 0; run < comparison->count; run++) {
            char **const texts = comparison->runs[run].options;
            fputs("<td>", out);
            ox_html_put(out, texts != NULL && texts[i] != NULL ? texts[i] : "not recorded");
            fputs("</td>", out);
        }
        fputs("</tr>\n", out);
    }
    fprintf(out, "</tbody></table></div>\n%s</section>\n",
            differing > 0 ? "" : "<p class=\"note\">None, of those that are recorded.</p>\n");
}

static enum ox_status put_data(const struct ox_comparison *comparison, FILE *out) {
    json_t *const data = ox_comparison_json(comparison);
    char *const text = data == NULL ? NULL : json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(data);
    if (text == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the data of the page");
    }
    fputs("<script type=\"application/json\" id=\"data\">", out);
    for (const char *at = text; *at != '\0'; at++) { /* what could end the element */
        if (*at == '<') {
            fputs("\\u003c", out);
        } else {
            fputc(*at, out);
        }
    }
    fputs("</script>\n", out);
    free(text);
    return OX_OK;
}

enum ox_status ox_comparison_page(const struct ox_comparison *comparison, FILE *out) {
    fprintf(out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>");
    for (uint32_t i = 0; i < comparison->count; i++) {
        fputs(i > 0 ? ", " : "", out);
        ox_html_put(out, comparison->runs[i].label);
    }
    fprintf(out, "</title>\n<style>\n%s</style></head>\n<body><main>\n<header><h1>%s</h1></header>\n",
            ox_compare_page_css, comparison->count == 1 ? "A run" : "Runs beside each other");
    put_runs(comparison, out);
    fputs("<section><h2>Curves</h2>\n<form id=\"controls\">"
          "<fieldset><legend>along</legend><label><input type=\"radio\" name=\"along\" value=\"step\" checked>steps"
          "</label><label><input type=\"radio\" name=\"along\" value=\"tokens\">tokens</label>"
          "<label><input type=\"radio\" name=\"along\" value=\"seconds\">time</label></fieldset>"
          "<label>smoothing <input type=\"range\" id=\"smoothing\" min=\"0\" max=\"0.99\" step=\"0.01\" value=\"0.6\">"
          "</label><label><input type=\"checkbox\" id=\"log\">logarithmic loss</label></form>\n"
          "<div id=\"charts\"><noscript><p class=\"note\">The curves need scripts; the tables do not.</p></noscript>"
          "</div></section>\n", out);
    put_options(comparison, out);
    fputs("</main>\n", out);
    const enum ox_status status = put_data(comparison, out);
    fprintf(out, "<script>\n%s</script>\n</body></html>\n", ox_compare_page_js);
    return status;
}
