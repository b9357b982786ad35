/* Writes the report as one HTML file. The program writes the tables, which need no scripts; tools/command/trace_page.js
 * draws the timeline from the data at the end of the file. */
#include "tools/command/trace_report.h"

#include "base/bytes.h"
#include "nvme/wear.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Embeds the script and the style sheet from the source tree. */
__asm__(".pushsection .rodata\n"
        ".globl ox_trace_page_css\nox_trace_page_css:\n.incbin \"tools/command/trace_page.css\"\n.byte 0\n"
        ".globl ox_trace_page_js\nox_trace_page_js:\n.incbin \"tools/command/trace_page.js\"\n.byte 0\n"
        ".popsection\n");
extern const char ox_trace_page_css[], ox_trace_page_js[];

enum { TASKS_SHOWN_MAX = 40000, STEPS_LISTED_MAX = 200 };

struct page {
    FILE *out;
    const struct ox_trace_report *report;
    const struct ox_trace_header *head;
    const struct ox_trace_analysis *typical;
    const struct ox_trace_step *step; /* the typical step */
};

/* ---- small things ---------------------------------------------------------------------------------- */

static void put(struct page *p, const char *text) {
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", p->out);
            break;
        case '>':
            fputs("&gt;", p->out);
            break;
        case '&':
            fputs("&amp;", p->out);
            break;
        case '"':
            fputs("&quot;", p->out);
            break;
        default:
            fputc(*text, p->out);
        }
    }
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

static const char *kind_color(const char *kind) {
    static const char *const pairs[][2] = {
        {"forward", "forward"}, {"backward", "backward"}, {"head", "head"},       {"read", "weights"},
        {"upload", "weights"},  {"download", "weights"},  {"refresh", "weights"}, {"act-", "activations"},
        {"grad-", "gradients"}, {"reduce", "norm"},       {"norm", "norm"},       {"adam", "adam"},
        {"begin", "commit"},    {"written", "commit"},    {"commit", "commit"},   {NULL, NULL}};
    return color_of(pairs, kind);
}

static const char *buf_color(const char *kind) {
    static const char *const pairs[][2] = {
        {"weights", "weights"},         {"optimizer state", "state"},   {"gradients", "gradients"},
        {"activations", "activations"}, {"kept", "kept"},               {"fp32 weights", "joined"},
        {"workspace", "work"},          {"tokens", "tokens"},           {"optimizer stream", "stage"},
        {"gathered", "gathered"},       {NULL, NULL}};
    return color_of(pairs, kind);
}

static const char *cause_text(const struct ox_trace_header *head, uint32_t cause) {
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
static const char *part_color(uint32_t part) {
    static const char *const colors[OX_TRACE_PARTS_MAX] = {"reads", "adam", "writes", "copies"};
    return colors[part];
}

static double share(uint64_t part, uint64_t whole) {
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

static const char *time_of(uint64_t ns, char *text) {
    return ox_seconds_text((double)ns * 1e-9, text);
}

static void size_cell(struct page *p, uint64_t bytes) {
    char text[OX_SIZE_TEXT_BYTES];
    fprintf(p->out, "<td>%s</td>", bytes > 0 ? ox_size_text(bytes, text) : "");
}

static void time_cell(struct page *p, uint64_t ns) {
    char text[OX_SIZE_TEXT_BYTES];
    fprintf(p->out, "<td>%s</td>", ns > 0 ? time_of(ns, text) : "");
}

/* ---- summary --------------------------------------------------------------------------------------- */

static void fact(struct page *p, const char *value, const char *name) {
    fputs("<div class=\"fact\"><b>", p->out);
    put(p, value);
    fputs("</b><span>", p->out);
    put(p, name);
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
static uint32_t chain_by_lane(const struct page *p, struct part parts[PARTS_MAX]) {
    uint32_t count = 0;
    for (uint32_t cause = 0; cause < OX_TRACE_CAUSE_COUNT; cause++) {
        count = add_part(parts, count, (struct part){.name = cause_text(p->head, cause),
                                                     .ns = p->typical->chain_ns[cause]});
    }
    return count;
}

/* Lists the longest chain by kind of task and of wait, largest part first. */
static uint32_t chain_by_kind(const struct page *p, struct part parts[PARTS_MAX]) {
    static const char *const colors[] = {"issue", "start", "done"};
    const struct ox_trace_names *const kinds = &p->head->names[OX_TRACE_TASKS];
    uint32_t count = 0;
    for (uint32_t kind = 0; kind < kinds->count; kind++) {
        count = add_part(parts, count, (struct part){.name = kinds->text[kind], .color = kind_color(kinds->text[kind]),
                                                     .ns = p->typical->chain_kind_ns[kind]});
    }
    for (uint32_t i = 0; i < p->head->names[OX_TRACE_PART_NAMES].count; i++) {
        const uint32_t cause = OX_TRACE_CAUSE_PART + i;
        count = add_part(parts, count, (struct part){.name = cause_text(p->head, cause), .color = part_color(i),
                                                     .ns = p->typical->chain_ns[cause]});
    }
    for (uint32_t cause = OX_TRACE_CAUSE_ISSUE; cause < OX_TRACE_CAUSE_COUNT; cause++) {
        count = add_part(parts, count, (struct part){.name = cause_text(p->head, cause),
                                                     .color = colors[cause - OX_TRACE_CAUSE_ISSUE],
                                                     .ns = p->typical->chain_ns[cause]});
    }
    return count;
}

/* Returns what a lane waits for most, apart from its own end; OX_TRACE_CAUSE_COUNT: nothing. */
static uint32_t worst_cause(const struct ox_trace_analysis *a, uint32_t lane) {
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

/* Writes the summary sentence: what bounds a step, and what compute waits for. */
static void put_lead(struct page *p) {
    struct part parts[PARTS_MAX];
    char time[OX_SIZE_TEXT_BYTES];
    const struct ox_trace_analysis *const a = p->typical;
    const struct ox_trace_names *const lanes = &p->head->names[OX_TRACE_LANES];
    const uint32_t count = chain_by_lane(p, parts), worst = worst_cause(a, 0);
    fprintf(p->out, "<p class=\"lead\">A step takes <b>%s</b>", time_of(a->wall_ns, time));
    if (count > 0) {
        fprintf(p->out, " and is bound by <b class=\"mark\">%s</b>: %.0f&nbsp;%% of its longest chain of tasks",
                parts[0].name, share(parts[0].ns, a->wall_ns));
    }
    for (uint32_t i = 1; i < count && i < 3 && share(parts[i].ns, a->wall_ns) >= 1; i++) {
        fprintf(p->out, "%s%s %.0f&nbsp;%%", i == 1 ? "; then " : " and ", parts[i].name,
                share(parts[i].ns, a->wall_ns));
    }
    fprintf(p->out, ". The lane %s is busy <b>%.0f&nbsp;%%</b> of the time", lanes->text[0],
            share(a->busy_ns[0], a->wall_ns));
    if (worst < OX_TRACE_CAUSE_COUNT && share(a->held_ns[0][worst], a->wall_ns) >= 1) {
        fprintf(p->out, " and mostly waits for %s, %.0f&nbsp;%%", cause_text(p->head, worst),
                share(a->held_ns[0][worst], a->wall_ns));
    }
    fputs(".</p>\n", p->out);
}

static void put_facts(struct page *p) {
    const struct ox_trace_report *const report = p->report;
    char time[OX_SIZE_TEXT_BYTES], text[96], size[OX_SIZE_TEXT_BYTES];
    fputs("<div class=\"facts\">\n", p->out);
    fact(p, time_of(p->typical->wall_ns, time), "per step, median");
    if (p->typical->predicted_seconds > 0) {
        const double measured = (double)p->typical->wall_ns * 1e-9;
        snprintf(text, sizeof text, "predicted, %+.0f %%", 100 * (p->typical->predicted_seconds / measured - 1));
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

static void put_chain(struct page *p) {
    struct part parts[PARTS_MAX];
    char time[OX_SIZE_TEXT_BYTES];
    const uint32_t count = chain_by_kind(p, parts);
    const uint64_t wall_ns = p->typical->wall_ns;
    fprintf(p->out,
            "<section><h2>Where a step's time goes</h2>\n<p class=\"note\">From the end of step %" PRIu64
            ", traced back through the task that each one waited for last. Only a shorter part of this chain makes the "
            "step shorter.</p>\n<div class=\"bar\" role=\"img\" aria-label=\"Shares of the longest chain\">",
            p->step->step);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(p->out, "<i style=\"width:%.3f%%;background:var(--%s)\" title=\"%s %.1f %%\"></i>",
                share(parts[i].ns, wall_ns), parts[i].color, parts[i].name, share(parts[i].ns, wall_ns));
    }
    fputs("</div>\n<ul class=\"legend\">", p->out);
    for (uint32_t i = 0; i < count && (i < 12 || share(parts[i].ns, wall_ns) >= 0.05); i++) {
        fprintf(p->out, "<li><i style=\"background:var(--%s)\"></i>%s <b>%.1f&nbsp;%%</b> "
                "<span class=\"soft\">%s</span></li>\n", parts[i].color, parts[i].name, share(parts[i].ns, wall_ns),
                time_of(parts[i].ns, time));
    }
    fputs("</ul></section>\n", p->out);
}

/* ---- the timeline ---------------------------------------------------------------------------------- */

static void put_legend(struct page *p, const char *const pairs[][2]) {
    fputs("<ul class=\"legend\">", p->out);
    for (; (*pairs)[0] != NULL; pairs++) {
        fprintf(p->out, "<li><i style=\"background:var(--%s)\"></i>%s</li>", (*pairs)[1], (*pairs)[0]);
    }
    fputs("</ul>\n", p->out);
}

static void put_buf_legend(struct page *p) {
    const struct ox_trace_names *const bufs = &p->head->names[OX_TRACE_BUFS];
    const char *pairs[OX_TRACE_BUFS_MAX + 1][2] = {{NULL, NULL}};
    for (uint32_t i = 0; i < bufs->count; i++) {
        pairs[i][0] = bufs->text[i];
        pairs[i][1] = buf_color(bufs->text[i]);
    }
    put_legend(p, pairs);
}

static void put_timeline(struct page *p) {
    static const char *const kinds[][2] = {
        {"forward", "forward"}, {"backward", "backward"}, {"head and loss", "head"}, {"weights", "weights"},
        {"activations", "activations"}, {"gradients", "gradients"}, {"norm", "norm"}, {"optimizer", "adam"},
        {"commit", "commit"}, {"other", "other"}, {"optimizer reads", "reads"},
        {"optimizer writes", "writes"}, {NULL, NULL}};
    fputs("<section class=\"script\"><h2>A step, task by task</h2>\n"
          "<p class=\"note\">Click a bar to choose a step. Each row is a lane, whose tasks run one after another. "
          "Underlined tasks form the longest chain. Lines lead from a selected task to what it depends on; the solid "
          "line leads to what it waited for last. The bar on top of an optimizer task divides its time: waiting for "
          "reads, working, waiting for writes. The rows at the bottom show the transfers of the optimizer's chunks.",
          p->out);
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
    put_legend(p, kinds);
    fputs("<div id=\"task\" aria-live=\"polite\"></div>\n"
          "<p id=\"keys\" class=\"note\">Drag to move, Ctrl + wheel or double click to zoom. With the timeline in "
          "focus: <kbd>&larr;</kbd> <kbd>&rarr;</kbd> move, <kbd>+</kbd> <kbd>-</kbd> zoom, <kbd>0</kbd> whole step, "
          "<kbd>n</kbd> <kbd>p</kbd> next and previous task, <kbd>&uarr;</kbd> <kbd>&darr;</kbd> another lane, "
          "<kbd>Enter</kbd> to the task, <kbd>[</kbd> <kbd>]</kbd> another step, <kbd>Esc</kbd> none.</p>\n"
          "<div id=\"tip\"></div></section>\n", p->out);
}

static enum ox_status put_memory(struct page *p) {
    const struct ox_trace_names *const tiers = &p->head->names[OX_TRACE_TIERS];
    const struct ox_trace_plan *const plan = &p->head->plans[OX_TRACE_TRAIN];
    fputs(
        "<section><h2>Memory use</h2>\n<p class=\"note\">Each buffer of the plan, from the start of its first task to "
        "the end of its last, over the same time as the lanes. The dashed line is the arena, which is reserved for "
        "the whole run; the space below it is alignment and gaps.</p>\n"
        "<div class=\"script\">",
        p->out);
    for (uint32_t tier = 0; tier < tiers->count; tier++) {
        if (strcmp(tiers->text[tier], "nvme") != 0 && plan->peak_bytes[tier] > 0) {
            fprintf(p->out, "<canvas data-tier=\"%u\" role=\"img\" aria-label=\"Memory of the %s over the step\">"
                    "</canvas>\n", tier, tiers->text[tier]);
        }
    }
    put_buf_legend(p);
    fputs("</div>\n<div class=\"scroll\"><table><thead><tr><th>tier</th><th>peak</th><th>arena</th><th>budget</th>"
          "</tr></thead><tbody>\n", p->out);
    for (uint32_t tier = 0; tier < tiers->count; tier++) {
        uint64_t peak = 0;
        const enum ox_status status = ox_trace_report_peak(p->report, tier, &peak);
        if (status != OX_OK) {
            return status;
        }
        if (plan->peak_bytes[tier] == 0) {
            continue;
        }
        fprintf(p->out, "<tr><th>%s</th>", tiers->text[tier]);
        size_cell(p, strcmp(tiers->text[tier], "nvme") != 0 ? peak : 0); /* bytes on drives are not in buffers */
        size_cell(p, plan->peak_bytes[tier]);
        size_cell(p, p->head->budget_bytes[tier]);
        fputs("</tr>\n", p->out);
    }
    fputs("</tbody></table></div></section>\n", p->out);
    return OX_OK;
}

/* ---- tables ---------------------------------------------------------------------------------------- */

static void put_bytes_row(struct page *p, uint32_t kind, uint64_t measured[], uint64_t planned[]) {
    bool same = true;
    fprintf(p->out, "<tr><th>%s</th>", p->head->names[OX_TRACE_TRAFFIC].text[kind]);
    for (uint32_t link = 0; link < p->head->names[OX_TRACE_LINKS].count; link++) {
        size_cell(p, p->step->bytes[link][kind]);
        size_cell(p, p->step->planned[link][kind]);
        measured[link] += p->step->bytes[link][kind];
        planned[link] += p->step->planned[link][kind];
        same = same && p->step->bytes[link][kind] == p->step->planned[link][kind];
    }
    fprintf(p->out, "<td class=\"%s\">%s</td></tr>\n", same ? "good" : "bad", same ? "equal" : "differs");
}

/* Prints the transfers of the optimizer's chunks: bytes, and the time while any was in flight. */
static void put_flows(struct page *p) {
    const struct ox_trace_names *const links = &p->head->names[OX_TRACE_LINKS];
    uint64_t bytes[OX_TRACE_LINKS_MAX] = {0}, ns[OX_TRACE_LINKS_MAX] = {0};
    for (uint32_t i = 0; i < p->step->flow_count; i++) {
        const struct ox_trace_record *const flow = p->step->flows[i];
        const uint64_t span_ns = flow->ended_ns - flow->started_ns;
        bytes[flow->link] += flow->bytes;
        ns[flow->link] += span_ns - ox_min_u64(flow->waited_ns, span_ns);
    }
    if (p->step->flow_count == 0) {
        return;
    }
    fputs(
        "<h3>Transfers of the optimizer's chunks</h3>\n<div class=\"scroll\"><table><thead><tr><th></th><th>bytes</th>"
        "<th>in flight</th><th>of the step</th><th>GB/s in flight</th></tr></thead><tbody>\n",
        p->out);
    for (uint32_t link = 0; link < links->count; link++) {
        if (ns[link] == 0) {
            continue;
        }
        fprintf(p->out, "<tr><th>%s</th>", links->text[link]);
        size_cell(p, bytes[link]);
        time_cell(p, ns[link]);
        fprintf(p->out, "<td>%.1f&nbsp;%%</td><td>%.2f</td></tr>\n", share(ns[link], p->typical->wall_ns),
                (double)bytes[link] / (double)ns[link]);
    }
    fputs("</tbody></table></div>\n", p->out);
}

static void put_bytes(struct page *p) {
    const struct ox_trace_names *const links = &p->head->names[OX_TRACE_LINKS];
    uint64_t measured[OX_TRACE_LINKS_MAX] = {0}, planned[OX_TRACE_LINKS_MAX] = {0};
    bool same = true;
    fputs("<section><h2>Bytes by link and kind</h2>\n<p class=\"note\">Bytes that crossed each link in the step, "
          "counted at the link, beside the plan's figure.</p>\n<div class=\"scroll\"><table><thead><tr><th></th>",
          p->out);
    for (uint32_t link = 0; link < links->count; link++) {
        fprintf(p->out, "<th>%s</th><th>planned</th>", links->text[link]);
    }
    fputs("<th></th></tr></thead><tbody>\n", p->out);
    for (uint32_t kind = 0; kind < p->head->names[OX_TRACE_TRAFFIC].count; kind++) {
        put_bytes_row(p, kind, measured, planned);
    }
    fputs("<tr class=\"sum\"><th>total</th>", p->out);
    for (uint32_t link = 0; link < links->count; link++) {
        size_cell(p, measured[link]);
        size_cell(p, planned[link]);
        same = same && measured[link] == planned[link];
    }
    fprintf(p->out, "<td class=\"%s\">%s</td></tr>\n<tr><th>GB/s over the step</th>", same ? "good" : "bad",
            same ? "equal" : "differs");
    for (uint32_t link = 0; link < links->count; link++) {
        fprintf(p->out, "<td>%.3f</td><td></td>", (double)measured[link] / (double)p->typical->wall_ns);
    }
    fputs("<td></td></tr></tbody></table></div>\n", p->out);
    put_flows(p);
    fputs("</section>\n", p->out);
}

static void put_waits(struct page *p) {
    const struct ox_trace_names *const lanes = &p->head->names[OX_TRACE_LANES];
    fputs("<section><h2>Which lane waited for which</h2>\n<p class=\"note\">Each row is a lane and adds up to the "
          "step: the share in which it was busy, then the shares by what it waited for. A lane that waits for a "
          "waiting lane is counted under what that one waits for.</p>\n<div "
          "class=\"scroll\"><table><thead><tr><th>lane</th><th>busy</th>",
          p->out);
    bool used[OX_TRACE_CAUSE_COUNT] = {0};
    for (uint32_t cause = 0; cause < OX_TRACE_CAUSE_COUNT; cause++) {
        for (uint32_t lane = 0; lane < lanes->count; lane++) {
            used[cause] = used[cause] || p->typical->held_ns[lane][cause] > 0;
        }
        if (used[cause]) {
            fprintf(p->out, "<th>%s</th>", cause_text(p->head, cause));
        }
    }
    fputs("</tr></thead><tbody>\n", p->out);
    for (uint32_t lane = 0; lane < lanes->count; lane++) {
        if (p->typical->busy_ns[lane] == 0) {
            continue;
        }
        fprintf(p->out, "<tr><th>%s</th><td><b>%.1f&nbsp;%%</b></td>", lanes->text[lane],
                share(p->typical->busy_ns[lane], p->typical->wall_ns));
        for (uint32_t cause = 0; cause < OX_TRACE_CAUSE_COUNT; cause++) {
            const double part = share(p->typical->held_ns[lane][cause], p->typical->wall_ns);
            if (used[cause] && part < 0.05) {
                fputs("<td></td>", p->out);
            } else if (used[cause]) {
                fprintf(p->out, "<td style=\"background:rgba(var(--heat),%.3f)\">%.1f</td>",
                        cause == OX_TRACE_CAUSE_DONE ? 0 : part / 140, part);
            }
        }
        fputs("</tr>\n", p->out);
    }
    fputs("</tbody></table></div></section>\n", p->out);
}

/* Prints how the time of the optimizer's tasks divides into parts. */
static void put_part_rows(struct page *p, uint32_t kind) {
    const struct ox_trace_names *const names = &p->head->names[OX_TRACE_PART_NAMES];
    for (uint32_t i = 0; i < names->count; i++) {
        if (p->typical->kind_part_ns[kind][i] > 0) {
            fprintf(p->out, "<tr class=\"part\"><th><i style=\"background:var(--%s)\"></i>%s</th><td></td>",
                    part_color(i), names->text[i]);
            time_cell(p, p->typical->kind_part_ns[kind][i]);
            fputs("</tr>\n", p->out);
        }
    }
}

static void put_kinds(struct page *p) {
    const bool predicted = ox_trace_is_predicted(p->head);
    fprintf(p->out, "<section><h2>Tasks by kind%s</h2>\n", predicted ? ", predicted beside measured" : "");
    if (!predicted) {
        fputs("<p class=\"note\">No prediction was recorded: measure the machine with <code>offload bench all</code>, "
              "and train with its --profile.</p>\n", p->out);
    }
    fprintf(p->out, "<div class=\"scroll\"><table><thead><tr><th>kind</th><th>tasks</th><th>time</th><th>each</th>"
            "<th>on the chain</th><th>bytes</th><th>GB/s</th>%s</tr></thead><tbody>\n",
            predicted ? "<th>predicted</th><th>error</th>" : "");
    for (uint32_t kind = 0; kind < p->head->names[OX_TRACE_TASKS].count; kind++) {
        const uint64_t ns = p->typical->kind_ns[kind], bytes = p->typical->kind_bytes[kind];
        const uint32_t count = p->typical->kind_count[kind];
        if (count == 0) {
            continue;
        }
        fprintf(p->out, "<tr><th>%s</th><td>%u</td>", p->head->names[OX_TRACE_TASKS].text[kind], count);
        time_cell(p, ns);
        time_cell(p, ns / count);
        time_cell(p, p->typical->chain_kind_ns[kind]);
        size_cell(p, bytes);
        if (bytes > 0 && ns > 0) {
            fprintf(p->out, "<td>%.2f</td>", (double)bytes / (double)ns);
        } else {
            fputs("<td></td>", p->out);
        }
        if (predicted) {
            const double seconds = p->typical->kind_predicted[kind];
            time_cell(p, (uint64_t)(seconds * 1e9));
            fprintf(p->out, ns > 0 ? "<td>%+.0f&nbsp;%%</td>" : "<td></td>", 100 * (seconds * 1e9 / (double)ns - 1));
        }
        fputs("</tr>\n", p->out);
        put_part_rows(p, kind);
    }
    fputs("</tbody></table></div></section>\n", p->out);
}

static void put_step_row(struct page *p, uint32_t idx) {
    const struct ox_trace_analysis *const a = &p->report->analyses[idx];
    const struct ox_trace_step *const step = ox_trace_report_step(p->report, idx);
    const uint32_t worst = worst_cause(a, 0); /* lane 0 is compute */
    fprintf(p->out, "<tr%s><th>%" PRIu64 "</th>", idx == p->report->typical ? " class=\"typical\"" : "", step->step);
    time_cell(p, a->wall_ns);
    if (ox_trace_is_predicted(p->head)) {
        time_cell(p, (uint64_t)(a->predicted_seconds * 1e9));
    }
    fprintf(p->out, "<td>%.1f&nbsp;%%</td>", share(a->busy_ns[0], a->wall_ns));
    if (worst < OX_TRACE_CAUSE_COUNT) {
        fprintf(p->out, "<td>%s, %.1f&nbsp;%%</td>", cause_text(p->head, worst),
                share(a->held_ns[0][worst], a->wall_ns));
    } else {
        fputs("<td></td>", p->out);
    }
    fputs("</tr>\n", p->out);
}

static void put_steps(struct page *p) {
    const uint32_t count = p->report->shown_count;
    const uint32_t first = count > STEPS_LISTED_MAX ? count - STEPS_LISTED_MAX : 0;
    fprintf(p->out, "<section><h2>Steps</h2>\n<details%s><summary>%s%u step%s: time, busy share and longest wait of %s"
            "</summary>\n<div class=\"scroll\"><table><thead><tr><th>step</th><th>time</th>%s<th>%s busy</th>"
            "<th>longest wait for</th></tr></thead><tbody>\n", count <= 12 ? " open" : "",
            first > 0 ? "the last " : "", count - first, count - first == 1 ? "" : "s",
            p->head->names[OX_TRACE_LANES].text[0], ox_trace_is_predicted(p->head) ? "<th>predicted</th>" : "",
            p->head->names[OX_TRACE_LANES].text[0]);
    for (uint32_t i = first; i < count; i++) {
        put_step_row(p, i);
    }
    fputs("</tbody></table></div></details></section>\n", p->out);
}

enum { SPANS_DRAWN_MAX = 2000 };

/* Prints a row with all spans of a kind over the run's time, and their total. */
static void put_span_row(struct page *p, uint32_t span, uint64_t begin_ns, uint64_t all_ns) {
    const struct ox_trace_steps *const steps = p->report->steps;
    uint64_t ns = 0;
    uint32_t count = 0;
    fprintf(p->out, "<tr><th>%s</th><td class=\"strip\"><div>", p->head->names[OX_TRACE_SPANS].text[span]);
    for (uint32_t i = 0; i < steps->count; i++) {
        const struct ox_trace_step *const step = &steps->steps[i];
        if (step->span != span) {
            continue;
        }
        ns += step->end_ns - step->begin_ns;
        if (count++ < SPANS_DRAWN_MAX) {
            fprintf(p->out, "<i style=\"left:%.3f%%;width:%.3f%%;background:var(--span-%u)\"></i>",
                    share(step->begin_ns - begin_ns, all_ns), share(step->end_ns - step->begin_ns, all_ns), span % 5);
        }
    }
    fprintf(p->out, "</div></td><td>%u</td>", count);
    time_cell(p, ns);
    time_cell(p, count > 0 ? ns / count : 0);
    fprintf(p->out, "<td>%.1f&nbsp;%%</td></tr>\n", share(ns, all_ns));
}

static void put_spans(struct page *p) {
    const struct ox_trace_steps *const steps = p->report->steps;
    bool used[OX_TRACE_SPANS_MAX] = {0};
    uint64_t begin_ns = UINT64_MAX, end_ns = 0;
    char time[OX_SIZE_TEXT_BYTES];
    for (uint32_t i = 0; i < steps->count; i++) {
        used[steps->steps[i].span] = true;
        begin_ns = ox_min_u64(begin_ns, steps->steps[i].begin_ns);
        end_ns = ox_max_u64(end_ns, steps->steps[i].end_ns);
    }
    fprintf(p->out,
            "<section><h2>The run between its steps</h2>\n<p class=\"note\">%s were recorded. The row of updates "
            "counts those that no step follows, as before a save; saves may overlap with steps. Time in no row went to "
            "data, reports and loading.</p>\n<div class=\"scroll\"><table "
            "class=\"run\"><thead><tr><th></th><th>when</th><th>count</th><th>total</th><th>each</th><th>of the time"
            "</th></tr></thead><tbody>\n",
            time_of(end_ns - begin_ns, time));
    for (uint32_t span = 0; span < p->head->names[OX_TRACE_SPANS].count; span++) {
        if (used[span]) {
            put_span_row(p, span, begin_ns, end_ns - begin_ns);
        }
    }
    fputs("</tbody></table></div></section>\n", p->out);
}

static void put_wear(struct page *p) {
    char text[OX_WEAR_TEXT_BYTES];
    ox_trace_report_wear(p->report, text);
    if (text[0] != '\0') {
        fprintf(p->out, "<section><h2>Drive wear</h2>\n<p>%s ",
                p->head->drive_count == 1 ? "The drive" : "Each drive");
        put(p, text);
        fprintf(p->out, ".</p>\n%s</section>\n", p->head->rated_bytes > 0 ? ""
                : "<p class=\"note\">Give --drive-endurance to see the share of the drive's life.</p>\n");
    }
}

/* ---- data for the script --------------------------------------------------------------------------- */

static void put_names(struct page *p, const char *key, enum ox_trace_table table, const char *(*map)(const char *)) {
    const struct ox_trace_names *const names = &p->head->names[table];
    fprintf(p->out, "\"%s\":[", key);
    for (uint32_t i = 0; i < names->count; i++) {
        fprintf(p->out, "%s\"%s\"", i > 0 ? "," : "", map != NULL ? map(names->text[i]) : names->text[i]);
    }
    fputs("],\n", p->out);
}

enum column { COLUMN_KIND, COLUMN_LANE, COLUMN_UNIT, COLUMN_MB, COLUMN_BYTES, COLUMN_BEGIN, COLUMN_SECONDS, COLUMNS };

static void put_plan(struct page *p) {
    static const char *const keys[COLUMNS] = {"kind", "lane", "unit", "mb", "bytes", "pb", "ps"};
    const struct ox_trace_plan *const plan = &p->head->plans[OX_TRACE_TRAIN];
    fputs("\"plan\":{", p->out);
    for (int column = 0; column < COLUMNS; column++) {
        fprintf(p->out, "\"%s\":[", keys[column]);
        for (uint32_t i = 0; i < plan->task_count; i++) {
            const struct ox_trace_task *const task = &plan->tasks[i];
            const double values[COLUMNS] = {task->kind, task->lane, task->unit_idx, task->mb_idx, (double)task->bytes,
                                            task->predicted_begin * 1e9, task->predicted_seconds * 1e9};
            fprintf(p->out, "%s%.0f", i > 0 ? "," : "", values[column]);
        }
        fputs("],\n", p->out);
    }
    fputs("\"deps\":[", p->out);
    for (uint32_t i = 0; i < plan->task_count; i++) {
        fputs(i > 0 ? ",[" : "[", p->out);
        bool first = true;
        for (uint32_t lane = 0; lane < p->head->names[OX_TRACE_LANES].count; lane++) {
            if (plan->tasks[i].deps[lane] > 0) {
                fprintf(p->out, "%s%u", first ? "" : ",", plan->tasks[i].deps[lane] - 1);
                first = false;
            }
        }
        fputc(']', p->out);
    }
    fputs("]},\n", p->out);
}

static enum ox_status put_step_memory(struct page *p, const struct ox_trace_step *step, uint32_t tier) {
    struct ox_trace_moment *moments = NULL;
    uint32_t count = 0;
    const enum ox_status status = ox_trace_memory(p->head, step, tier, &moments, &count);
    fputs("{\"ns\":[", p->out);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(p->out, "%s%" PRIu64, i > 0 ? "," : "", moments[i].ns);
    }
    fputs("],\"v\":[", p->out);
    for (uint32_t i = 0; i < count; i++) {
        fputs(i > 0 ? ",[" : "[", p->out);
        for (uint32_t kind = 0; kind < p->head->names[OX_TRACE_BUFS].count; kind++) {
            fprintf(p->out, "%s%" PRIu64, kind > 0 ? "," : "", moments[i].bytes[kind]);
        }
        fputc(']', p->out);
    }
    fputs("]}", p->out);
    free(moments);
    return status;
}

/* Writes the parts of each task, and the flows of the step. */
static void put_step_insides(struct page *p, const struct ox_trace_step *step) {
    const char *comma = "";
    fputs("],\"parts\":{", p->out);
    for (uint32_t i = 0; i < p->head->plans[step->plan].task_count; i++) {
        if (step->parts[i] != NULL) {
            fprintf(p->out, "%s\"%u\":[", comma, i);
            for (int part = 0; part < OX_TRACE_PARTS_MAX; part++) {
                fprintf(p->out, "%s%" PRIu64, part > 0 ? "," : "", step->parts[i]->parts_ns[part]);
            }
            fputc(']', p->out);
            comma = ",";
        }
    }
    fputs("},\"flows\":[", p->out);
    for (uint32_t i = 0; i < step->flow_count; i++) {
        const struct ox_trace_record *const flow = step->flows[i];
        const int64_t begin = (int64_t)step->begin_ns;
        fprintf(p->out, "%s[%u,%" PRId64 ",%" PRId64 ",%u,%" PRIu64 ",%" PRIu64 "]", i > 0 ? "," : "", flow->link,
                (int64_t)flow->started_ns - begin, (int64_t)flow->ended_ns - begin, flow->unit_idx, flow->bytes,
                flow->waited_ns);
    }
}

static enum ox_status put_step(struct page *p, const struct ox_trace_step *step) {
    const uint32_t task_count = p->head->plans[OX_TRACE_TRAIN].task_count;
    enum ox_status status = OX_OK;
    fprintf(p->out, "{\"n\":%" PRIu64 ",\"wall\":%" PRIu64 ",\"t\":[", step->step, step->end_ns - step->begin_ns);
    for (uint32_t i = 0; i < task_count; i++) {
        const struct ox_trace_record *const task = step->tasks[i];
        const int64_t begin = (int64_t)step->begin_ns;
        fprintf(p->out, "%s%" PRId64 ",%" PRId64 ",%" PRId64, i > 0 ? "," : "", (int64_t)task->queued_ns - begin,
                (int64_t)task->started_ns - begin, (int64_t)task->ended_ns - begin);
    }
    put_step_insides(p, step);
    fputs("],\"mem\":[", p->out);
    for (uint32_t tier = 0; tier < p->head->names[OX_TRACE_TIERS].count && status == OX_OK; tier++) {
        fputs(tier > 0 ? "," : "", p->out);
        status = put_step_memory(p, step, tier);
    }
    fputs("]}", p->out);
    return status;
}

/* Writes the data of the newest steps that fit, and of the typical one. */
static enum ox_status put_data(struct page *p) {
    const struct ox_trace_report *const report = p->report;
    const uint32_t task_count = p->head->plans[OX_TRACE_TRAIN].task_count;
    const uint32_t room = (uint32_t)ox_max_u64(TASKS_SHOWN_MAX / (task_count + 1u), 2);
    uint32_t shown = 0, typical = 0;
    enum ox_status status = OX_OK;
    fputs("<script type=\"application/json\" id=\"data\">{", p->out);
    put_names(p, "lanes", OX_TRACE_LANES, NULL);
    put_names(p, "kinds", OX_TRACE_TASKS, NULL);
    put_names(p, "kindColors", OX_TRACE_TASKS, kind_color);
    put_names(p, "bufs", OX_TRACE_BUFS, NULL);
    put_names(p, "bufColors", OX_TRACE_BUFS, buf_color);
    put_names(p, "tiers", OX_TRACE_TIERS, NULL);
    put_names(p, "links", OX_TRACE_LINKS, NULL);
    put_names(p, "parts", OX_TRACE_PART_NAMES, NULL);
    fputs("\"peak\":[", p->out);
    for (uint32_t tier = 0; tier < p->head->names[OX_TRACE_TIERS].count; tier++) {
        fprintf(p->out, "%s%" PRIu64, tier > 0 ? "," : "", p->head->plans[OX_TRACE_TRAIN].peak_bytes[tier]);
    }
    fprintf(p->out, "],\"runAhead\":%" PRIu32 ",\n", p->head->run_ahead);
    put_plan(p);
    fputs("\"steps\":[", p->out);
    for (uint32_t i = 0; i < report->shown_count && status == OX_OK; i++) {
        if (i == report->typical || report->shown_count - i < room) {
            typical = i == report->typical ? shown : typical;
            fputs(shown++ > 0 ? ",\n" : "\n", p->out);
            status = put_step(p, ox_trace_report_step(report, i));
        }
    }
    fprintf(p->out, "],\"typical\":%u}</script>\n", typical);
    return status;
}

/* ---- page ------------------------------------------------------------------------------------------- */

enum ox_status ox_trace_report_page(const struct ox_trace_report *report, FILE *out) {
    struct page page = {.out = out, .report = report, .head = report->head,
                        .typical = &report->analyses[report->typical],
                        .step = ox_trace_report_step(report, report->typical)};
    fputs("<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
          "content=\"width=device-width, initial-scale=1\">\n<title>Trace: ", out);
    put(&page, report->head->title);
    fprintf(out, "</title>\n<style>\n%s</style></head>\n<body><main>\n<h1>", ox_trace_page_css);
    put(&page, report->head->title);
    fputs("</h1>\n", out);
    put_lead(&page);
    put_facts(&page);
    put_chain(&page);
    put_timeline(&page);
    enum ox_status status = put_memory(&page);
    put_waits(&page);
    put_bytes(&page);
    put_kinds(&page);
    put_spans(&page);
    put_steps(&page);
    put_wear(&page);
    fputs("<footer>Written by <code>offload trace report</code>. Figures that name no step are of the step of "
          "median length.</footer>\n</main>\n", out);
    OX_TRY(status, put_data(&page));
    fprintf(out, "<script>\n%s</script>\n</body></html>\n", ox_trace_page_js);
    return status == OX_OK && ferror(out) ? ox_fail(OX_E_IO, "the page could not be written") : status;
}
