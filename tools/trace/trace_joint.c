/* The ranks of a run beside each other: what each did in a step that all took together, and for whom it waited. */
#include "base/bytes.h"
#include "tools/trace/trace_page.h"

#include <inttypes.h>
#include <string.h>

/* What a rank did in the joint step, or all of them on average. */
struct row {
    uint64_t compute_ns;
    uint64_t transfer_ns; /* on the lane of transfers between ranks, without waits for others */
    uint64_t waited_ns;   /* for others to come to a transfer                                 */
    uint64_t bytes;       /* received from other ranks; of all ranks: the sum                 */
};

static uint64_t bytes_received(const struct ox_trace_report *report, uint32_t rank) {
    const struct ox_trace_names *const links = &report->head->names[OX_TRACE_LINKS];
    const struct ox_trace_step *const step = report->joint.steps[rank];
    uint64_t bytes = 0;
    for (uint32_t link = 0; link < links->count && step != NULL; link++) {
        for (uint32_t kind = 0; strcmp(links->text[link], "peer_in") == 0 && kind < OX_TRACE_KINDS_MAX; kind++) {
            bytes += step->bytes[link][kind];
        }
    }
    return bytes;
}

static struct row row_of(const struct ox_trace_report *report, uint32_t rank) {
    const struct ox_trace_analysis *const a = &report->rank_analyses[rank];
    const uint32_t link = ox_trace_link_lane(report->head);
    struct row row = {.compute_ns = a->busy_ns[0], .bytes = bytes_received(report, rank)};
    for (uint32_t other = 0; other < report->ranks.count; other++) {
        row.waited_ns += report->waits[rank][other];
    }
    if (link < OX_TRACE_LANES_MAX) {
        row.transfer_ns = a->busy_ns[link] - ox_min_u64(row.waited_ns, a->busy_ns[link]);
    }
    return row;
}

static struct row row_of_all(const struct ox_trace_report *report) {
    const uint32_t count = report->ranks.count;
    struct row all = {0};
    for (uint32_t i = 0; i < count; i++) {
        const struct row row = row_of(report, i);
        all.compute_ns += row.compute_ns;
        all.transfer_ns += row.transfer_ns;
        all.waited_ns += row.waited_ns;
        all.bytes += row.bytes;
    }
    return (struct row){.compute_ns = all.compute_ns / count, .transfer_ns = all.transfer_ns / count,
                        .waited_ns = all.waited_ns / count, .bytes = all.bytes};
}

static uint64_t wall_of(const struct ox_trace_report *report) {
    return (uint64_t)(report->joint.end_ns - report->joint.begin_ns);
}

/* Time that others spent waiting for this rank. */
static uint64_t awaited_ns(const struct ox_trace_report *report, uint32_t rank) {
    uint64_t ns = 0;
    for (uint32_t i = 0; i < report->ranks.count; i++) {
        ns += report->waits[i][rank];
    }
    return ns;
}

/* ---- text and JSON ------------------------------------------------------------------------------------ */

static void text_row(const struct ox_trace_report *report, const char *name, const struct row *row, FILE *out) {
    const uint64_t wall_ns = wall_of(report);
    char size[OX_SIZE_TEXT_BYTES];
    fprintf(out, "  %-19s %7.1f %9.1f %9.1f  %10s ", name, ox_page_share(row->compute_ns, wall_ns),
            ox_page_share(row->transfer_ns, wall_ns), ox_page_share(row->waited_ns, wall_ns),
            ox_size_text(row->bytes, size));
}

void ox_trace_joint_text(const struct ox_trace_report *report, FILE *out) {
    const struct ox_trace_ranks *const ranks = &report->ranks;
    char time[OX_SIZE_TEXT_BYTES], name[24];
    if (ranks->count < 2) {
        return;
    }
    fprintf(out, "\nranks, %% of the step  compute transfers    waited    received  waited for\n");
    for (uint32_t i = 0; i < ranks->count; i++) {
        const struct row row = row_of(report, i);
        snprintf(name, sizeof name, "rank %" PRIu32, ranks->ranks[i].idx);
        text_row(report, name, &row, out);
        for (uint32_t other = 0; other < ranks->count; other++) {
            const double part = ox_page_share(report->waits[i][other], wall_of(report));
            if (part >= 0.1) {
                fprintf(out, " rank %" PRIu32 " %.1f", ranks->ranks[other].idx, part);
            }
        }
        fprintf(out, "\n");
    }
    const struct row all = row_of_all(report);
    text_row(report, "together", &all, out);
    fprintf(out, " step %" PRIu64 " took all of them %s\n", report->joint.steps[ranks->shown]->step,
            ox_page_time(wall_of(report), time));
    if (report->joint.moved_ns > 0) {
        fprintf(out, "clocks of the ranks' machines differ: times were moved by up to %s, so that meetings agree\n",
                ox_page_time(report->joint.moved_ns, time));
    }
}

static json_t *seconds(uint64_t ns) {
    return json_real((double)ns * 1e-9);
}

json_t *ox_trace_joint_json(const struct ox_trace_report *report) {
    const struct ox_trace_ranks *const ranks = &report->ranks;
    if (ranks->count < 2) {
        return NULL;
    }
    json_t *const rows = json_array();
    for (uint32_t i = 0; i < ranks->count; i++) {
        const struct row row = row_of(report, i);
        json_t *const waited = json_object();
        for (uint32_t other = 0; other < ranks->count; other++) {
            char key[16];
            snprintf(key, sizeof key, "%" PRIu32, ranks->ranks[other].idx);
            json_object_set_new(waited, key, seconds(report->waits[i][other]));
        }
        json_array_append_new(rows, json_pack("{s:I, s:o, s:o, s:o, s:I}", "rank", (json_int_t)ranks->ranks[i].idx,
                                              "compute_seconds", seconds(row.compute_ns), "transfer_seconds",
                                              seconds(row.transfer_ns), "waited_seconds", waited, "received_bytes",
                                              (json_int_t)row.bytes));
    }
    return json_pack("{s:I, s:I, s:o, s:o, s:o}", "step", (json_int_t)report->joint.steps[ranks->shown]->step, "count",
                     (json_int_t)ranks->run_count, "seconds", seconds(wall_of(report)), "clocks_moved_seconds",
                     seconds(report->joint.moved_ns), "each", rows);
}

/* ---- page ------------------------------------------------------------------------------------------- */

static void put_row(struct ox_page *p, const char *name, const struct row *row) {
    const uint64_t parts_ns[] = {row->compute_ns, row->transfer_ns, row->waited_ns};
    fprintf(p->out, "<th>%s</th>", name);
    for (size_t i = 0; i < sizeof parts_ns / sizeof *parts_ns; i++) {
        fprintf(p->out, "<td>%.1f&nbsp;%%</td>", ox_page_share(parts_ns[i], wall_of(p->report)));
    }
    ox_page_size_cell(p, row->bytes);
}

/* Whether anyone waited for this rank, long enough to be told. */
static bool is_awaited(const struct ox_trace_report *report, uint32_t other) {
    bool awaited = false;
    for (uint32_t rank = 0; rank < report->ranks.count; rank++) {
        awaited = awaited || ox_page_share(report->waits[rank][other], wall_of(report)) >= 0.05;
    }
    return awaited;
}

static void put_rank(struct ox_page *p, uint32_t rank) {
    const struct ox_trace_ranks *const ranks = &p->report->ranks;
    const struct row row = row_of(p->report, rank);
    char name[24];
    snprintf(name, sizeof name, "rank %" PRIu32, ranks->ranks[rank].idx);
    fprintf(p->out, "<tr%s>", rank == ranks->shown ? " class=\"typical\"" : "");
    put_row(p, name, &row);
    for (uint32_t other = 0; other < ranks->count; other++) {
        const double part = ox_page_share(p->report->waits[rank][other], wall_of(p->report));
        if (!is_awaited(p->report, other)) {
            continue;
        }
        if (part < 0.05) {
            fputs("<td></td>", p->out);
        } else {
            fprintf(p->out, "<td style=\"background:rgba(var(--heat),%.3f)\">%.1f</td>", part / 140, part);
        }
    }
    fputs("</tr>\n", p->out);
}

void ox_page_ranks(struct ox_page *p) {
    const struct ox_trace_report *const report = p->report;
    const struct ox_trace_ranks *const ranks = &report->ranks;
    char time[OX_SIZE_TEXT_BYTES];
    if (ranks->count < 2) {
        return;
    }
    fprintf(p->out, "<section><h2>Which rank waited for which</h2>\n<p class=\"note\">%" PRIu32 " of the run's %" PRIu32
            " ranks in step %" PRIu64 ", which took all of them %s, as shares of that time. A rank waits in a transfer "
            "until the last one has come to it: columns on the right name that one. The other tables of this page are "
            "of rank %" PRIu32 ".", ranks->count, ranks->run_count, report->joint.steps[ranks->shown]->step,
            ox_page_time(wall_of(report), time), ranks->ranks[ranks->shown].idx);
    if (report->joint.moved_ns > 0) {
        fprintf(p->out, " The clocks of their machines differ: times were moved by up to %s, so that meetings agree.",
                ox_page_time(report->joint.moved_ns, time));
    }
    fputs("</p>\n<div class=\"scroll\"><table class=\"ranks\"><thead><tr><th></th><th>compute</th><th>transfers</th>"
          "<th>waited</th><th>received</th>", p->out);
    for (uint32_t i = 0; i < ranks->count; i++) {
        if (is_awaited(report, i)) {
            fprintf(p->out, "<th>for rank %" PRIu32 "</th>", ranks->ranks[i].idx);
        }
    }
    fputs("</tr></thead><tbody>\n", p->out);
    for (uint32_t i = 0; i < ranks->count; i++) {
        put_rank(p, i);
    }
    const struct row all = row_of_all(report);
    fputs("<tr class=\"sum\">", p->out);
    put_row(p, "together", &all);
    for (uint32_t i = 0; i < ranks->count; i++) {
        if (is_awaited(report, i)) {
            fprintf(p->out, "<td>%.1f</td>", ox_page_share(awaited_ns(report, i), wall_of(report) * ranks->count));
        }
    }
    fputs("</tr></tbody></table></div></section>\n", p->out);
}
