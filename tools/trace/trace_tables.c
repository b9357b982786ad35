/* The tables of the report's page, which need no scripts. */
#include "tools/trace/trace_page.h"

#include "base/bytes.h"
#include "nvme/wear.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { STEPS_LISTED_MAX = 200, SPANS_DRAWN_MAX = 2000 };

static void put_buf_legend(struct ox_page *p) {
    const struct ox_trace_names *const bufs = &p->head->names[OX_TRACE_BUFS];
    const char *pairs[OX_TRACE_BUFS_MAX + 1][2] = {{NULL, NULL}};
    const struct ox_trace_plan *const plan = &p->head->plans[OX_TRACE_TRAIN];
    bool used[OX_TRACE_BUFS_MAX] = {0};
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        used[plan->bufs[i].kind] = true;
    }
    for (uint32_t i = 0, count = 0; i < bufs->count; i++) {
        if (used[i]) {
            pairs[count][0] = bufs->text[i];
            pairs[count++][1] = ox_page_buf_color(bufs->text[i]);
        }
    }
    ox_page_legend(p, pairs);
}

static enum ox_status put_memory(struct ox_page *p) {
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
        /* Bytes on drives are not in buffers. */
        ox_page_size_cell(p, strcmp(tiers->text[tier], "nvme") != 0 ? peak : 0);
        ox_page_size_cell(p, plan->peak_bytes[tier]);
        ox_page_size_cell(p, p->head->budget_bytes[tier]);
        fputs("</tr>\n", p->out);
    }
    fputs("</tbody></table></div></section>\n", p->out);
    return OX_OK;
}

/* Links that moved something, or should have. */
static bool is_used(const struct ox_page *p, uint32_t link) {
    uint64_t planned = 0;
    return ox_trace_report_bytes(p->report, link, &planned) + planned > 0;
}

static void put_bytes_row(struct ox_page *p, uint32_t kind) {
    bool same = true;
    uint64_t all = 0;
    for (uint32_t link = 0; link < p->head->names[OX_TRACE_LINKS].count; link++) {
        all += p->step->bytes[link][kind] + p->step->planned[link][kind];
        same = same && p->step->bytes[link][kind] == p->step->planned[link][kind];
    }
    if (all == 0) {
        return;
    }
    fprintf(p->out, "<tr><th>%s</th>", p->head->names[OX_TRACE_TRAFFIC].text[kind]);
    for (uint32_t link = 0; link < p->head->names[OX_TRACE_LINKS].count; link++) {
        if (is_used(p, link)) {
            ox_page_size_cell(p, p->step->bytes[link][kind]);
            ox_page_size_cell(p, p->step->planned[link][kind]);
        }
    }
    fprintf(p->out, "<td class=\"%s\">%s</td></tr>\n", same ? "good" : "bad", same ? "equal" : "differs");
}

/* Prints the transfers of the optimizer's chunks: bytes, and the time while any was in flight. */
static void put_flows(struct ox_page *p) {
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
        ox_page_size_cell(p, bytes[link]);
        ox_page_time_cell(p, ns[link]);
        fprintf(p->out, "<td>%.1f&nbsp;%%</td><td>%.2f</td></tr>\n", ox_page_share(ns[link], p->typical->wall_ns),
                (double)bytes[link] / (double)ns[link]);
    }
    fputs("</tbody></table></div>\n", p->out);
}

static void put_bytes(struct ox_page *p) {
    const struct ox_trace_names *const links = &p->head->names[OX_TRACE_LINKS];
    bool same = true, any = false;
    for (uint32_t link = 0; link < links->count; link++) {
        any = any || is_used(p, link);
    }
    if (!any) {
        return;
    }
    fputs("<section><h2>Bytes by link and kind</h2>\n<p class=\"note\">Bytes that crossed each link in the step, "
          "counted at the link, beside the plan's figure.</p>\n<div class=\"scroll\"><table><thead><tr><th></th>",
          p->out);
    for (uint32_t link = 0; link < links->count; link++) {
        if (is_used(p, link)) {
            fprintf(p->out, "<th>%s</th><th>planned</th>", links->text[link]);
        }
    }
    fputs("<th></th></tr></thead><tbody>\n", p->out);
    for (uint32_t kind = 0; kind < p->head->names[OX_TRACE_TRAFFIC].count; kind++) {
        put_bytes_row(p, kind);
    }
    fputs("<tr class=\"sum\"><th>total</th>", p->out);
    for (uint32_t link = 0; link < links->count; link++) {
        uint64_t planned = 0;
        const uint64_t measured = ox_trace_report_bytes(p->report, link, &planned);
        same = same && measured == planned;
        if (is_used(p, link)) {
            ox_page_size_cell(p, measured);
            ox_page_size_cell(p, planned);
        }
    }
    fprintf(p->out, "<td class=\"%s\">%s</td></tr>\n<tr><th>GB/s over the step</th>", same ? "good" : "bad",
            same ? "equal" : "differs");
    for (uint32_t link = 0; link < links->count; link++) {
        uint64_t planned = 0;
        const uint64_t measured = ox_trace_report_bytes(p->report, link, &planned);
        if (is_used(p, link)) {
            fprintf(p->out, "<td>%.3f</td><td></td>", (double)measured / (double)p->typical->wall_ns);
        }
    }
    fputs("<td></td></tr></tbody></table></div>\n", p->out);
    put_flows(p);
    fputs("</section>\n", p->out);
}

static void put_waits(struct ox_page *p) {
    const struct ox_trace_names *const lanes = &p->head->names[OX_TRACE_LANES];
    fputs("<section><h2>Which lane waited for which</h2>\n<p class=\"note\">Each row is a lane and adds up to the "
          "step: the share in which it was busy, then the shares by what it waited for. A lane that waits for a "
          "waiting lane is counted under what that one waits for.</p>\n<div "
          "class=\"scroll\"><table><thead><tr><th>lane</th><th>busy</th>",
          p->out);
    bool used[OX_TRACE_CAUSE_COUNT] = {0};
    for (uint32_t cause = 0; cause < OX_TRACE_CAUSE_COUNT; cause++) {
        for (uint32_t lane = 0; lane < lanes->count; lane++) {
            used[cause] = used[cause] || (p->typical->busy_ns[lane] > 0 &&
                                          ox_page_share(p->typical->held_ns[lane][cause], p->typical->wall_ns) >= 0.05);
        }
        if (used[cause]) {
            fprintf(p->out, "<th>%s</th>", ox_page_cause(p->head, cause));
        }
    }
    fputs("</tr></thead><tbody>\n", p->out);
    for (uint32_t lane = 0; lane < lanes->count; lane++) {
        if (p->typical->busy_ns[lane] == 0) {
            continue;
        }
        fprintf(p->out, "<tr><th>%s</th><td><b>%.1f&nbsp;%%</b></td>", lanes->text[lane],
                ox_page_share(p->typical->busy_ns[lane], p->typical->wall_ns));
        for (uint32_t cause = 0; cause < OX_TRACE_CAUSE_COUNT; cause++) {
            const double part = ox_page_share(p->typical->held_ns[lane][cause], p->typical->wall_ns);
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

/* The columns of the table of kinds that have something in them. */
struct kind_columns {
    bool chain, bytes, predicted;
    uint32_t behind_time; /* columns behind that of the time */
};

static struct kind_columns find_columns(const struct ox_page *p) {
    struct kind_columns columns = {.predicted = ox_trace_is_predicted(p->head)};
    for (uint32_t kind = 0; kind < p->head->names[OX_TRACE_TASKS].count; kind++) {
        columns.chain = columns.chain || (p->typical->kind_count[kind] > 0 && p->report->chain.chain_kind_ns[kind] > 0);
        columns.bytes = columns.bytes || p->typical->kind_bytes[kind] > 0;
    }
    columns.behind_time = 2u + columns.chain + 2u * columns.bytes + 2u * columns.predicted;
    return columns;
}

/* Prints how the time of the optimizer's tasks divides into parts. */
static void put_part_rows(struct ox_page *p, uint32_t kind, const struct kind_columns *columns) {
    const struct ox_trace_names *const names = &p->head->names[OX_TRACE_PART_NAMES];
    for (uint32_t i = 0; i < names->count; i++) {
        if (p->typical->kind_part_ns[kind][i] > 0) {
            fprintf(p->out, "<tr class=\"part\"><th><i style=\"background:var(--%s)\"></i>%s</th><td></td>",
                    ox_page_part_color(i), names->text[i]);
            ox_page_time_cell(p, p->typical->kind_part_ns[kind][i]);
            fprintf(p->out, "<td colspan=\"%u\"></td></tr>\n", columns->behind_time);
        }
    }
}

/* The prediction beside the measured time; an error of less than a hundredth of the step is dimmed. */
static void put_error_cells(struct ox_page *p, uint32_t kind) {
    const double predicted_ns = p->typical->kind_predicted[kind] * 1e9, ns = (double)p->typical->kind_ns[kind];
    const bool matters = fabs(predicted_ns - ns) >= 0.01 * (double)p->typical->wall_ns;
    ox_page_time_cell(p, (uint64_t)predicted_ns);
    if (ns > 0) {
        fprintf(p->out, "<td%s>%+.0f&nbsp;%%</td>", matters ? "" : " class=\"dim\"", 100 * (predicted_ns / ns - 1));
    } else {
        fputs("<td></td>", p->out);
    }
}

static void put_kind_row(struct ox_page *p, uint32_t kind, const struct kind_columns *columns) {
    const char *const name = p->head->names[OX_TRACE_TASKS].text[kind];
    const uint64_t ns = p->typical->kind_ns[kind], bytes = p->typical->kind_bytes[kind];
    const uint32_t count = p->typical->kind_count[kind];
    fprintf(p->out, "<tr><th>%s</th><td>%u</td>", name, count);
    ox_page_time_cell(p, ns);
    ox_page_time_cell(p, ns / count);
    if (columns->chain) {
        ox_page_time_cell(p, p->report->chain.chain_kind_ns[kind]);
    }
    if (columns->bytes) {
        ox_page_size_cell(p, bytes);
        fprintf(p->out, bytes > 0 && ns > 0 ? "<td>%.2f</td>" : "<td></td>", (double)bytes / (double)ns);
    }
    if (columns->predicted) {
        put_error_cells(p, kind);
    }
    fprintf(p->out, "<td class=\"text soft\">%s</td></tr>\n", ox_page_kind_text(name));
    put_part_rows(p, kind, columns);
}

static void put_kinds(struct ox_page *p) {
    const struct kind_columns columns = find_columns(p);
    fprintf(p->out, "<section><h2>Tasks by kind%s</h2>\n", columns.predicted ? ", predicted beside measured" : "");
    fputs(columns.predicted ? "<p class=\"note\">Errors of less than 1&nbsp;% of the step are grey.</p>\n"
                            : "<p class=\"note\">No prediction was recorded: measure the machine with <code>offload "
                              "bench all</code>, and train with its --profile.</p>\n", p->out);
    fprintf(p->out, "<div class=\"scroll\"><table><thead><tr><th>kind</th><th>tasks</th><th>time</th><th>each</th>"
            "%s%s%s<th class=\"text\">what it does</th></tr></thead><tbody>\n",
            columns.chain ? "<th>on the chain</th>" : "", columns.bytes ? "<th>bytes</th><th>GB/s</th>" : "",
            columns.predicted ? "<th>predicted</th><th>error</th>" : "");
    for (uint32_t kind = 0; kind < p->head->names[OX_TRACE_TASKS].count; kind++) {
        if (p->typical->kind_count[kind] > 0) {
            put_kind_row(p, kind, &columns);
        }
    }
    fputs("</tbody></table></div></section>\n", p->out);
}

static void put_step_row(struct ox_page *p, uint32_t idx) {
    const struct ox_trace_analysis *const a = &p->report->analyses[idx];
    const struct ox_trace_step *const step = ox_trace_report_step(p->report, idx);
    const uint32_t worst = ox_page_worst_cause(a, 0); /* lane 0 is compute */
    fprintf(p->out, "<tr%s><th>%" PRIu64 "</th>", idx == p->report->typical ? " class=\"typical\"" : "", step->step);
    ox_page_time_cell(p, a->wall_ns);
    if (ox_trace_is_predicted(p->head)) {
        ox_page_time_cell(p, (uint64_t)(a->predicted_seconds * 1e9));
    }
    fprintf(p->out, "<td>%.1f&nbsp;%%</td>", ox_page_share(a->busy_ns[0], a->wall_ns));
    if (worst < OX_TRACE_CAUSE_COUNT) {
        fprintf(p->out, "<td class=\"text\">%s, %.1f&nbsp;%%</td>", ox_page_cause(p->head, worst),
                ox_page_share(a->held_ns[0][worst], a->wall_ns));
    } else {
        fputs("<td></td>", p->out);
    }
    fputs("</tr>\n", p->out);
}

static void put_steps(struct ox_page *p) {
    const uint32_t count = p->report->shown_count;
    const uint32_t first = count > STEPS_LISTED_MAX ? count - STEPS_LISTED_MAX : 0;
    fprintf(p->out, "<section><h2>Steps</h2>\n<details%s><summary>%s%u step%s: time, busy share and longest wait of %s"
            "</summary>\n<div class=\"scroll\"><table><thead><tr><th>step</th><th>time</th>%s<th>%s busy</th>"
            "<th class=\"text\">longest wait for</th></tr></thead><tbody>\n", count <= 12 ? " open" : "",
            first > 0 ? "the last " : "", count - first, ox_plural(count - first),
            p->head->names[OX_TRACE_LANES].text[0], ox_trace_is_predicted(p->head) ? "<th>predicted</th>" : "",
            p->head->names[OX_TRACE_LANES].text[0]);
    for (uint32_t i = first; i < count; i++) {
        put_step_row(p, i);
    }
    fputs("</tbody></table></div></details></section>\n", p->out);
}

/* Prints a row with all spans of a kind over the run's time, and their total. */
static void put_span_row(struct ox_page *p, uint32_t span, uint64_t begin_ns, uint64_t all_ns) {
    const struct ox_trace_steps *const steps = p->report->steps;
    const struct ox_trace_span_sum sum = ox_trace_report_spans(p->report, span);
    uint32_t drawn = 0;
    fprintf(p->out, "<tr><th>%s</th><td class=\"strip\"><div>", p->head->names[OX_TRACE_SPANS].text[span]);
    for (uint32_t i = 0; i < steps->count && drawn < SPANS_DRAWN_MAX; i++) {
        const struct ox_trace_step *const step = &steps->steps[i];
        if (step->span == span) {
            drawn++;
            fprintf(p->out, "<i style=\"left:%.3f%%;width:%.3f%%;background:var(--span-%u)\"></i>",
                    ox_page_share(step->begin_ns - begin_ns, all_ns),
                    ox_page_share(step->end_ns - step->begin_ns, all_ns), span % 5);
        }
    }
    fprintf(p->out, "</div></td><td>%u</td>", sum.count);
    ox_page_time_cell(p, sum.ns);
    ox_page_time_cell(p, sum.count > 0 ? sum.ns / sum.count : 0);
    fprintf(p->out, "<td>%.1f&nbsp;%%</td></tr>\n", ox_page_share(sum.ns, all_ns));
}

static void put_spans(struct ox_page *p) {
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
            "class=\"run\"><thead><tr><th></th><th class=\"text\">when</th><th>count</th><th>total</th><th>each</th>"
            "<th>of the time</th></tr></thead><tbody>\n",
            ox_page_time(end_ns - begin_ns, time));
    for (uint32_t span = 0; span < p->head->names[OX_TRACE_SPANS].count; span++) {
        if (used[span]) {
            put_span_row(p, span, begin_ns, end_ns - begin_ns);
        }
    }
    fputs("</tbody></table></div></section>\n", p->out);
}

static void put_wear(struct ox_page *p) {
    char text[OX_WEAR_TEXT_BYTES];
    ox_trace_report_wear(p->report, text);
    if (text[0] != '\0') {
        fprintf(p->out, "<section><h2>Drive wear</h2>\n<p>%s ",
                p->head->drive_count == 1 ? "The drive" : "Each drive");
        ox_page_put(p, text);
        fprintf(p->out, ".</p>\n%s</section>\n", p->head->rated_bytes > 0 ? ""
                : "<p class=\"note\">Give --drive-endurance to see the share of the drive's life.</p>\n");
    }
}

enum ox_status ox_page_tables(struct ox_page *p) {
    const enum ox_status status = put_memory(p);
    put_waits(p);
    put_bytes(p);
    put_kinds(p);
    put_spans(p);
    put_steps(p);
    put_wear(p);
    return status;
}
