/* Writes the report as one HTML file. The program writes the tables, which need no scripts; tools/trace/trace_page.js
 * draws the timeline from the data at the end of the file. */
#include "tools/trace/trace_page.h"

#include "base/bytes.h"
#include "nvme/wear.h"

#include <inttypes.h>
#include <string.h>

/* Embeds the script and the style sheet from the source tree. */
__asm__(".pushsection .rodata\n"
        ".globl ox_trace_page_css\nox_trace_page_css:\n.incbin \"tools/trace/trace_page.css\"\n.byte 0\n"
        ".globl ox_trace_page_js\nox_trace_page_js:\n.incbin \"tools/trace/trace_page.js\"\n.byte 0\n"
        ".popsection\n");
extern const char ox_trace_page_css[], ox_trace_page_js[];
/* ---- small things ---------------------------------------------------------------------------------- */

void ox_html_put(FILE *out, const char *text) {
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        case '"': fputs("&quot;", out); break;
        default:  fputc(*text, out);
        }
    }
}

void ox_page_put(struct ox_page *p, const char *text) {
    ox_html_put(p->out, text);
}

/* Matches names by prefix, so that a new kind of task gets the colour of its family. */
static const char *color_of(const char *const pairs[][2], const char *name) {
    for (; (*pairs)[0] != NULL; pairs++) {
        if (strncmp((*pairs)[0], name, strlen((*pairs)[0])) == 0) {
            return (*pairs)[1];
        }
    }
    return "other";
}

const char *ox_page_kind_color(const char *kind) {
    static const char *const pairs[][2] = {
        {"forward", "forward"}, {"backward", "backward"}, {"head", "head"},       {"read", "weights"},
        {"upload", "weights"},  {"download", "weights"},  {"refresh", "weights"}, {"act-", "activations"},
        {"gather", "gathered"}, {"exchange", "gathered"}, {"sum-parts", "gradients"},
        {"reduce-scatter", "gathered"}, {"low-rank", "gathered"},
        {"grad-", "gradients"}, {"reduce", "norm"},       {"norm", "norm"},       {"adam", "adam"},
        {"begin", "commit"},    {"written", "commit"},    {"commit", "commit"},   {NULL, NULL}};
    return color_of(pairs, kind);
}

const char *ox_page_kind_text(const char *kind) {
    static const char *const texts[][2] = {
        {"batch", "tokens of a micro-batch to the device"},
        {"read", "weights from a drive"},
        {"upload", "weights to the device"},
        {"cast", "makes weights in the format of compute, of their planes"},
        {"forward", "forward pass of a block"},
        {"head", "the output layer and the loss, both ways"},
        {"backward", "backward pass of a block, with its forward again where activations were not kept"},
        {"act-save", "activation checkpoint to the host"},
        {"act-write", "activation checkpoint to a drive"},
        {"act-read", "activation checkpoint from a drive"},
        {"act-load", "activation checkpoint to the device"},
        {"act-arrive", "activations from another part of the model"},
        {"act-leave", "activations to another part of the model"},
        {"dx-arrive", "gradients of activations from another part"},
        {"dx-leave", "gradients of activations to another part"},
        {"loan-arrive", "the embedding's table, from its rank to that of the head"},
        {"loan-leave", "the same, where it is sent"},
        {"grad-arrive", "what the head has summed of the table's gradient, back"},
        {"grad-leave", "the same, where it is sent"},
        {"grad-zero", "clears the sum of a unit's gradients"},
        {"grad-add", "adds the two gradients of tied weights"},
        {"grad-pack", "rounds a finished sum to bf16"},
        {"grad-save", "gradients to the host"},
        {"grad-write", "gradients to a drive, where they wait for the optimizer"},
        {"grad-read", "gradients from a drive"},
        {"grad-load", "gradients to the device"},
        {"grad-fold", "adds groups of gradients in their fixed order"},
        {"grad-gather", "gradients of other ranks"},
        {"reduce-scatter", "the library adds gradients of all ranks"},
        {"reduce", "sums the squares of a unit's gradients, for the norm"},
        {"dev-reduce", "the same on the device"},
        {"norm-save", "the device's sum of squares to the host"},
        {"norm-gather", "sums of squares of other ranks"},
        {"norm", "gradient norm, and whether the step counts"},
        {"begin", "begins the store's transaction"},
        {"download", "weights that live on the device, for the update on the host"},
        {"adam-ahead", "update in backward, before the norm is known"},
        {"adam-state", "the moments and low halves of such a unit"},
        {"load-return", "loads of all routers back to the device"},
        {"rows", "what a phase of a pass leaves for those of other ranks"},
        {"routes", "which experts have rows, to the host"},
        {"adam", "the optimizer's update of a unit"},
        {"dev-adam", "the update on the device"},
        {"refresh", "updated weights back to the device"},
        {"nonfinite", "how many values of the device's update are not finite"},
        {"loss-gather", "losses of other ranks"},
        {"loss", "losses to the host"},
        {"written", "waits until the drives have what was written"},
        {"commit", "makes the step durable"},
        {"gather", "weights of other ranks"},
        {"exchange", "gradients with other ranks"},
        {"sum-parts", "adds the parts that ranks have sent"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (strcmp(texts[i][0], kind) == 0) {
            return texts[i][1];
        }
    }
    return "";
}

const char *ox_page_buf_color(const char *kind) {
    static const char *const pairs[][2] = {
        {"weights", "weights"},         {"optimizer state", "state"},   {"gradients", "gradients"},
        {"activations", "activations"}, {"kept", "kept"},               {"cast weights", "joined"},
        {"fp32 weights", "joined"}, /* in traces of before */
        {"workspace", "work"},          {"tokens", "tokens"},           {"optimizer stream", "stage"},
        {"gathered", "gathered"},       {"replaced", "replaced"},       {"residuals", "residuals"},
        {NULL, NULL}};
    return color_of(pairs, kind);
}

const char *ox_page_cause(const struct ox_trace_header *head, uint32_t cause) {
    switch (cause) {
    case OX_TRACE_CAUSE_ISSUE:
        return "not issued yet";
    case OX_TRACE_CAUSE_START:
        return "starting";
    case OX_TRACE_CAUSE_DONE:
        return "nothing left to do";
    default:
        return ox_trace_cause_name(head, cause);
    }
}

/* The colour of a part of an optimizer task: working or waiting. */
const char *ox_page_part_color(uint32_t part) {
    static const char *const colors[OX_TRACE_PARTS_MAX] = {"reads", "adam", "writes", "copies"};
    return colors[part];
}

double ox_page_share(uint64_t part, uint64_t whole) {
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

const char *ox_page_time(uint64_t ns, char *text) {
    return ox_seconds_text((double)ns * 1e-9, text);
}

void ox_page_size_cell(struct ox_page *p, uint64_t bytes) {
    char text[OX_SIZE_TEXT_BYTES];
    fprintf(p->out, "<td>%s</td>", bytes > 0 ? ox_size_text(bytes, text) : "");
}

void ox_page_time_cell(struct ox_page *p, uint64_t ns) {
    char text[OX_SIZE_TEXT_BYTES];
    fprintf(p->out, "<td>%s</td>", ns > 0 ? ox_page_time(ns, text) : "");
}
/* Returns what a lane waits for most, apart from its own end; OX_TRACE_CAUSE_COUNT: nothing. */
uint32_t ox_page_worst_cause(const struct ox_trace_analysis *a, uint32_t lane) {
    uint32_t worst = OX_TRACE_CAUSE_COUNT;
    uint64_t most = 0;
    for (uint32_t cause = 0; cause < OX_TRACE_CAUSE_DONE; cause++) {
        if (a->held_ns[lane][cause] > most) {
            most = a->held_ns[lane][cause];
            worst = cause;
        }
    }
    return worst;
}

void ox_page_legend(struct ox_page *p, const char *const pairs[][2]) {
    fputs("<ul class=\"legend\">", p->out);
    for (; (*pairs)[0] != NULL; pairs++) {
        fprintf(p->out, "<li><i style=\"background:var(--%s)\"></i>%s</li>", (*pairs)[1], (*pairs)[0]);
    }
    fputs("</ul>\n", p->out);
}

/* ---- summary --------------------------------------------------------------------------------------- */

static void fact(struct ox_page *p, const char *value, const char *name) {
    fputs("<div class=\"fact\"><b>", p->out);
    ox_page_put(p, value);
    fputs("</b><span>", p->out);
    ox_page_put(p, name);
    fputs("</span></div>\n", p->out);
}

/* A part of the longest chain. */
struct part {
    const char *name, *color;
    uint64_t ns;
};

enum { PARTS_MAX = OX_TRACE_NAMES_MAX + OX_TRACE_CAUSE_COUNT };

/* Inserts a part in order, largest first; returns the new count. */
static uint32_t add_part(struct part *parts, uint32_t count, struct part part) {
    uint32_t at = count;
    if (part.ns == 0) {
        return count;
    }
    for (; at > 0 && parts[at - 1].ns < part.ns; at--) {
        parts[at] = parts[at - 1];
    }
    parts[at] = part;
    return count + 1;
}

/* Lists the longest chain by lane, largest part first. */
static uint32_t chain_by_lane(const struct ox_page *p, struct part parts[PARTS_MAX]) {
    uint32_t count = 0;
    for (uint32_t cause = 0; cause < OX_TRACE_CAUSE_COUNT; cause++) {
        count = add_part(parts, count, (struct part){.name = ox_page_cause(p->head, cause),
                                                     .ns = p->report->chain.chain_ns[cause]});
    }
    return count;
}

/* Lists the longest chain by kind of task and of wait, largest part first. */
static uint32_t chain_by_kind(const struct ox_page *p, struct part parts[PARTS_MAX]) {
    static const char *const colors[] = {"issue", "start", "done"};
    const struct ox_trace_names *const kinds = &p->head->names[OX_TRACE_TASKS];
    uint32_t count = 0;
    for (uint32_t kind = 0; kind < kinds->count; kind++) {
        count = add_part(parts, count, (struct part){.name = kinds->text[kind],
                                                     .color = ox_page_kind_color(kinds->text[kind]),
                                                     .ns = p->report->chain.chain_kind_ns[kind]});
    }
    for (uint32_t i = 0; i < p->head->names[OX_TRACE_PART_NAMES].count; i++) {
        const uint32_t cause = OX_TRACE_CAUSE_PART + i;
        count = add_part(parts, count, (struct part){.name = ox_page_cause(p->head, cause),
                                                     .color = ox_page_part_color(i),
                                                     .ns = p->report->chain.chain_ns[cause]});
    }
    for (uint32_t cause = OX_TRACE_CAUSE_ISSUE; cause < OX_TRACE_CAUSE_COUNT; cause++) {
        count = add_part(parts, count, (struct part){.name = ox_page_cause(p->head, cause),
                                                     .color = colors[cause - OX_TRACE_CAUSE_ISSUE],
                                                     .ns = p->report->chain.chain_ns[cause]});
    }
    return count;
}

/* Writes the summary sentence: what bounds a step, and what compute waits for. */
static void put_lead(struct ox_page *p) {
    struct part parts[PARTS_MAX];
    char time[OX_SIZE_TEXT_BYTES];
    const struct ox_trace_analysis *const a = p->typical;
    const struct ox_trace_names *const lanes = &p->head->names[OX_TRACE_LANES];
    const uint32_t count = chain_by_lane(p, parts), worst = ox_page_worst_cause(a, 0);
    const uint64_t wall_ns = p->report->chain.wall_ns;
    const bool several = p->report->ranks.count > 1;
    fprintf(p->out, "<p class=\"lead\">A step takes <b>%s</b>", ox_page_time(wall_ns, time));
    if (count > 0) {
        fprintf(p->out, " and is bound by <b class=\"mark\">%s</b>: %.0f&nbsp;%% of its longest chain of tasks%s",
                parts[0].name, ox_page_share(parts[0].ns, wall_ns), several ? " through all ranks" : "");
    }
    for (uint32_t i = 1; i < count && i < 3 && ox_page_share(parts[i].ns, wall_ns) >= 1; i++) {
        fprintf(p->out, "%s%s %.0f&nbsp;%%", i == 1 ? "; then " : " and ", parts[i].name,
                ox_page_share(parts[i].ns, wall_ns));
    }
    fprintf(p->out, several ? ". On rank %u the lane %s is busy" : ".%.0u The lane %s is busy",
            several ? p->report->ranks.ranks[p->report->ranks.shown].idx : 0, lanes->text[0]);
    fprintf(p->out, " <b>%.0f&nbsp;%%</b> of the time",
            ox_page_share(a->busy_ns[0], a->wall_ns));
    if (worst < OX_TRACE_CAUSE_COUNT && ox_page_share(a->held_ns[0][worst], a->wall_ns) >= 1) {
        fprintf(p->out, " and mostly waits for %s, %.0f&nbsp;%%", ox_page_cause(p->head, worst),
                ox_page_share(a->held_ns[0][worst], a->wall_ns));
    }
    fputs(".</p>\n", p->out);
}

static void put_facts(struct ox_page *p) {
    const struct ox_trace_report *const report = p->report;
    char time[OX_SIZE_TEXT_BYTES], text[96 + OX_TRACE_LATE_BYTES], size[OX_SIZE_TEXT_BYTES];
    char late[OX_TRACE_LATE_BYTES];
    fputs("<div class=\"facts\">\n", p->out);
    fact(p, ox_page_time(report->chain.wall_ns, time), "per step, median");
    if (p->typical->predicted_seconds > 0) {
        const double measured = (double)p->typical->wall_ns * 1e-9;
        snprintf(text, sizeof text, "predicted, %+.0f %%%s", 100 * (p->typical->predicted_seconds / measured - 1),
                 ox_trace_report_late(report, late));
        fact(p, ox_seconds_text(p->typical->predicted_seconds, time), text);
    }
    snprintf(text, sizeof text, "%u", report->shown_count);
    fact(p, text, report->shown_count == 1 ? "whole step recorded" : "whole steps recorded");
    for (uint32_t link = 0; link < p->head->names[OX_TRACE_LINKS].count; link++) {
        uint64_t planned = 0;
        const uint64_t bytes = ox_trace_report_bytes(report, link, &planned);
        if (bytes > 0) {
            snprintf(text, sizeof text, "per step over %s", p->head->names[OX_TRACE_LINKS].text[link]);
            fact(p, ox_size_text(bytes, size), text);
        }
    }
    const uint64_t dropped = report->steps->steps[report->steps->count - 1].dropped + report->trace->torn;
    if (dropped > 0) {
        snprintf(text, sizeof text, "%" PRIu64, dropped);
        fact(p, text, "records dropped or torn");
    }
    fputs("</div>\n", p->out);
}

static void put_chain(struct ox_page *p) {
    struct part parts[PARTS_MAX];
    char time[OX_SIZE_TEXT_BYTES];
    const uint32_t count = chain_by_kind(p, parts);
    const uint64_t wall_ns = p->report->chain.wall_ns;
    fprintf(p->out,
            "<section><h2>Where a step's time goes</h2>\n<p class=\"note\">From the end of step %" PRIu64
            ", traced back through the task that each one waited for last%s. Only a shorter part of this chain makes "
            "the step shorter.</p>\n<div class=\"bar\" role=\"img\" aria-label=\"Shares of the longest chain\">",
            p->step->step, p->report->ranks.count > 1 ? ", from rank to rank" : "");
    for (uint32_t i = 0; i < count; i++) {
        fprintf(p->out, "<i style=\"width:%.3f%%;background:var(--%s)\" title=\"%s %.1f %%\"></i>",
                ox_page_share(parts[i].ns, wall_ns), parts[i].color, parts[i].name,
                ox_page_share(parts[i].ns, wall_ns));
    }
    fputs("</div>\n<ul class=\"legend\">", p->out);
    for (uint32_t i = 0; i < count && (i < 12 || ox_page_share(parts[i].ns, wall_ns) >= 0.05); i++) {
        fprintf(p->out, "<li title=\"%s\"><i style=\"background:var(--%s)\"></i>%s <b>%.1f&nbsp;%%</b> "
                "<span class=\"soft\">%s</span></li>\n", ox_page_kind_text(parts[i].name), parts[i].color,
                parts[i].name,
                ox_page_share(parts[i].ns, wall_ns), ox_page_time(parts[i].ns, time));
    }
    fputs("</ul></section>\n", p->out);
}

/* ---- the timeline ---------------------------------------------------------------------------------- */

static void put_timeline(struct ox_page *p) {
    static const char *const kinds[][2] = {
        {"forward", "forward"}, {"backward", "backward"}, {"head and loss", "head"}, {"weights", "weights"},
        {"activations", "activations"}, {"gradients", "gradients"}, {"norm", "norm"}, {"optimizer", "adam"},
        {"commit", "commit"}, {"between ranks", "gathered"}, {"other", "other"}, {"optimizer reads", "reads"},
        {"optimizer writes", "writes"}, {NULL, NULL}};
    fputs("<section class=\"script\"><h2>A step, task by task</h2>\n"
          "<p class=\"note\">Click a bar to choose a step. Each row is a lane, whose tasks run one after another. "
          "Underlined tasks form the longest chain. Lines lead from a selected task to what it depends on; the solid "
          "line leads to what it waited for last. The bar on top of an optimizer task divides its time: waiting for "
          "reads, working, waiting for writes. The rows at the bottom show the transfers of the optimizer's chunks.",
          p->out);
    if (p->report->ranks.count > 1) {
        fputs(" Each rank has its own lanes, over the same time. On the lane link a rank does what it does with the "
              "others; the longest chain goes on with the rank for which they waited.", p->out);
    }
    if (ox_trace_is_predicted(p->head)) {
        fputs(" The thin row below a lane shows the prediction.", p->out);
    }
    fputs("</p>\n<div id=\"steps\" class=\"steps\" role=\"group\" aria-label=\"Steps\"></div>\n<div class=\"tools\">"
          "<button type=\"button\" data-key=\"-\" aria-label=\"Zoom out\">&minus;</button>"
          "<button type=\"button\" data-key=\"+\" aria-label=\"Zoom in\">+</button>"
          "<button type=\"button\" data-key=\"0\">whole step</button>"
          "<button type=\"button\" data-key=\"p\" aria-label=\"Previous task\">&lsaquo; task</button>"
          "<button type=\"button\" data-key=\"n\" aria-label=\"Next task\">task &rsaquo;</button>"
          "<span id=\"range\" class=\"soft\"></span></div>\n"
          "<canvas id=\"lanes\" tabindex=\"0\" role=\"application\" aria-label=\"Timeline of lanes. Arrow keys move "
          "and change lanes, plus and minus zoom, n and p go from task to task.\" "
          "aria-describedby=\"keys\"></canvas>\n",
          p->out);
    ox_page_legend(p, kinds);
    fputs("<div id=\"task\" aria-live=\"polite\"></div>\n"
          "<p id=\"keys\" class=\"note\">Drag to move, Ctrl + wheel or double click to zoom. With the timeline in "
          "focus: <kbd>&larr;</kbd> <kbd>&rarr;</kbd> move, <kbd>+</kbd> <kbd>-</kbd> zoom, <kbd>0</kbd> whole step, "
          "<kbd>n</kbd> <kbd>p</kbd> next and previous task, <kbd>&uarr;</kbd> <kbd>&darr;</kbd> another lane, "
          "<kbd>Enter</kbd> to the task, <kbd>[</kbd> <kbd>]</kbd> another step, <kbd>Esc</kbd> none.</p>\n"
          "<div id=\"tip\"></div></section>\n", p->out);
}

/* ---- page ------------------------------------------------------------------------------------------- */

enum ox_status ox_trace_report_page(const struct ox_trace_report *report, FILE *out) {
    struct ox_page page = {.out = out, .report = report, .head = report->head,
                        .typical = &report->analyses[report->typical],
                        .step = ox_trace_report_step(report, report->typical)};
    char about[OX_TRACE_ABOUT_BYTES];
    fputs("<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
          "content=\"width=device-width, initial-scale=1\">\n<title>", out);
    ox_page_put(&page, ox_trace_report_about(report, about));
    fprintf(out, "</title>\n<style>\n%s</style></head>\n<body><main>\n<h1>", ox_trace_page_css);
    ox_page_put(&page, about);
    fputs("</h1>\n<p class=\"soft\">", out);
    ox_page_put(&page, report->title);
    fputs("</p>\n", out);
    put_lead(&page);
    put_facts(&page);
    ox_page_loss(&page);
    put_chain(&page);
    put_timeline(&page);
    ox_page_ranks(&page);
    enum ox_status status = ox_page_tables(&page);
    fputs("<footer>Written by <code>offload trace report</code>. Figures that name no step are of the step of "
          "median length.</footer>\n</main>\n", out);
    OX_THEN(status, ox_page_data(&page));
    fprintf(out, "<script>\n%s</script>\n</body></html>\n", ox_trace_page_js);
    return status == OX_OK && ferror(out) ? ox_fail(OX_E_IO, "the page could not be written") : status;
}
