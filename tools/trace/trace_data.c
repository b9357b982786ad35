/* The data of the report's page, from which tools/trace/trace_page.js draws the timeline and the memory. */
#include "tools/trace/trace_page.h"

#include "base/bytes.h"

#include <inttypes.h>
#include <stdlib.h>

enum { TASKS_SHOWN_MAX = 40000 };

static void put_names(struct ox_page *p, const char *key, enum ox_trace_table table, const char *(*map)(const char *)) {
    const struct ox_trace_names *const names = &p->head->names[table];
    fprintf(p->out, "\"%s\":[", key);
    for (uint32_t i = 0; i < names->count; i++) {
        fprintf(p->out, "%s\"%s\"", i > 0 ? "," : "", map != NULL ? map(names->text[i]) : names->text[i]);
    }
    fputs("],\n", p->out);
}

enum column { COLUMN_KIND, COLUMN_LANE, COLUMN_UNIT, COLUMN_MB, COLUMN_BYTES, COLUMN_BEGIN, COLUMN_SECONDS, COLUMNS };

static const struct ox_trace_plan *plan_of(const struct ox_page *p, uint32_t rank) {
    return &p->report->ranks.ranks[rank].trace->head->plans[OX_TRACE_TRAIN];
}

static uint32_t all_task_count(const struct ox_page *p) {
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < p->report->ranks.count; rank++) {
        count += plan_of(p, rank)->task_count;
    }
    return count;
}

static void put_column(struct ox_page *p, enum column column) {
    const char *comma = "";
    for (uint32_t rank = 0; rank < p->report->ranks.count; rank++) {
        const struct ox_trace_plan *const plan = plan_of(p, rank);
        const uint32_t lane = rank * p->head->names[OX_TRACE_LANES].count;
        for (uint32_t i = 0; i < plan->task_count; i++) {
            const struct ox_trace_task *const task = &plan->tasks[i];
            const double values[COLUMNS] = {task->kind, lane + task->lane, task->unit_idx, task->mb_idx,
                                            (double)task->bytes, task->predicted_begin * 1e9,
                                            task->predicted_seconds * 1e9};
            fprintf(p->out, "%s%.0f", comma, values[column]);
            comma = ",";
        }
    }
}

/* Writes what the tasks of a rank depend on; its first task is number `first`. */
static void put_deps(struct ox_page *p, const struct ox_trace_plan *plan, uint32_t first) {
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const char *comma = "";
        fputs(first + i > 0 ? ",[" : "[", p->out);
        for (uint32_t lane = 0; lane < p->head->names[OX_TRACE_LANES].count; lane++) {
            if (plan->tasks[i].deps[lane] > 0) {
                fprintf(p->out, "%s%u", comma, first + plan->tasks[i].deps[lane] - 1);
                comma = ",";
            }
        }
        fputc(']', p->out);
    }
}

/* Writes the tasks of all ranks, one rank behind the other; each has lanes of its own. */
static void put_plan(struct ox_page *p) {
    static const char *const keys[COLUMNS] = {"kind", "lane", "unit", "mb", "bytes", "pb", "ps"};
    uint32_t first = 0;
    fputs("\"plan\":{", p->out);
    for (int column = 0; column < COLUMNS; column++) {
        fprintf(p->out, "\"%s\":[", keys[column]);
        put_column(p, (enum column)column);
        fputs("],\n", p->out);
    }
    fputs("\"deps\":[", p->out);
    for (uint32_t rank = 0; rank < p->report->ranks.count; rank++) {
        put_deps(p, plan_of(p, rank), first);
        first += plan_of(p, rank)->task_count;
    }
    fputs("],\n\"first\":[", p->out);
    for (uint32_t rank = 0, at = 0; rank < p->report->ranks.count; at += plan_of(p, rank++)->task_count) {
        fprintf(p->out, "%s%u", rank > 0 ? "," : "", at);
    }
    fputs("]},\n\"ranks\":[", p->out);
    for (uint32_t rank = 0; rank < p->report->ranks.count; rank++) {
        fprintf(p->out, "%s%u", rank > 0 ? "," : "", p->report->ranks.ranks[rank].idx);
    }
    fprintf(p->out, "],\n\"linkLane\":%u,\"shown\":%u,\n", ox_trace_link_lane(p->head), p->report->ranks.shown);
}

/* The moments of the memory of the rank shown, whose time 0 is `later_ns` behind that of the step. */
static enum ox_status put_step_memory(struct ox_page *p, const struct ox_trace_step *step, uint32_t tier,
                                      uint64_t later_ns) {
    struct ox_trace_moment *moments = NULL;
    uint32_t count = 0;
    const enum ox_status status = ox_trace_memory(p->head, step, tier, &moments, &count);
    fputs("{\"ns\":[", p->out);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(p->out, "%s%" PRIu64, i > 0 ? "," : "", moments[i].ns + (i > 0 ? later_ns : 0));
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

/* Writes when each task of a rank was issued, began and ended: -1 for a rank that did not record the step. */
static void put_times(struct ox_page *p, const struct ox_trace_joint *joint, uint32_t rank) {
    const struct ox_trace_step *const step = joint->steps[rank];
    const int64_t shift_ns = joint->shift_ns[rank] - joint->begin_ns;
    for (uint32_t i = 0; i < plan_of(p, rank)->task_count; i++) {
        fputs(rank > 0 || i > 0 ? "," : "", p->out);
        if (step == NULL) {
            fputs("-1,-1,-1", p->out);
        } else {
            fprintf(p->out, "%" PRId64 ",%" PRId64 ",%" PRId64, (int64_t)step->tasks[i]->queued_ns + shift_ns,
                    (int64_t)step->tasks[i]->started_ns + shift_ns, (int64_t)step->tasks[i]->ended_ns + shift_ns);
        }
    }
}

/* Writes the parts of each task of a rank, whose first task is number `first`. */
static void put_parts(struct ox_page *p, const struct ox_trace_joint *joint, uint32_t rank, uint32_t first,
                      const char **comma) {
    const struct ox_trace_step *const step = joint->steps[rank];
    for (uint32_t i = 0; i < plan_of(p, rank)->task_count; i++) {
        if (step->parts[i] != NULL) {
            fprintf(p->out, "%s\"%u\":[", *comma, first + i);
            for (int part = 0; part < OX_TRACE_PARTS_MAX; part++) {
                fprintf(p->out, "%s%" PRIu64, part > 0 ? "," : "", step->parts[i]->parts_ns[part]);
            }
            fputc(']', p->out);
            *comma = ",";
        }
    }
}

/* Writes the flows of a rank; each rank has links of its own. */
static void put_flows(struct ox_page *p, const struct ox_trace_joint *joint, uint32_t rank, const char **comma) {
    const struct ox_trace_step *const step = joint->steps[rank];
    const uint32_t link = rank * p->head->names[OX_TRACE_LINKS].count;
    const int64_t shift_ns = joint->shift_ns[rank] - joint->begin_ns;
    for (uint32_t i = 0; i < step->flow_count; i++) {
        const struct ox_trace_record *const flow = step->flows[i];
        fprintf(p->out, "%s[%u,%" PRId64 ",%" PRId64 ",%u,%" PRIu64 ",%" PRIu64 "]", *comma, link + flow->link,
                (int64_t)flow->started_ns + shift_ns, (int64_t)flow->ended_ns + shift_ns, flow->unit_idx, flow->bytes,
                flow->waited_ns);
        *comma = ",";
    }
}

static enum ox_status put_step(struct ox_page *p, const struct ox_trace_step *step) {
    const struct ox_trace_ranks *const ranks = &p->report->ranks;
    struct ox_trace_joint joint;
    const char *parts_comma = "", *flows_comma = "";
    enum ox_status status = OX_OK;
    ox_trace_joint_of(ranks, step, &joint);
    fprintf(p->out, "{\"n\":%" PRIu64 ",\"wall\":%" PRId64 ",\"t\":[", step->step, joint.end_ns - joint.begin_ns);
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        put_times(p, &joint, rank);
    }
    fputs("],\"parts\":{", p->out);
    for (uint32_t rank = 0, first = 0; rank < ranks->count; first += plan_of(p, rank++)->task_count) {
        if (joint.steps[rank] != NULL) {
            put_parts(p, &joint, rank, first, &parts_comma);
        }
    }
    fputs("},\"flows\":[", p->out);
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        if (joint.steps[rank] != NULL) {
            put_flows(p, &joint, rank, &flows_comma);
        }
    }
    fputs("],\"mem\":[", p->out);
    for (uint32_t tier = 0; tier < p->head->names[OX_TRACE_TIERS].count && status == OX_OK; tier++) {
        fputs(tier > 0 ? "," : "", p->out);
        status = put_step_memory(p, step, tier, (uint64_t)((int64_t)step->begin_ns - joint.begin_ns));
    }
    fputs("]}", p->out);
    return status;
}

/* Writes the data of the newest steps that fit, and of the typical one. */
enum ox_status ox_page_data(struct ox_page *p) {
    const struct ox_trace_report *const report = p->report;
    const uint32_t room = (uint32_t)ox_max_u64(TASKS_SHOWN_MAX / (all_task_count(p) + 1u), 2);
    uint32_t shown = 0, typical = 0;
    enum ox_status status = OX_OK;
    fputs("<script type=\"application/json\" id=\"data\">{", p->out);
    put_names(p, "lanes", OX_TRACE_LANES, NULL);
    put_names(p, "kinds", OX_TRACE_TASKS, NULL);
    put_names(p, "kindColors", OX_TRACE_TASKS, ox_page_kind_color);
    put_names(p, "bufs", OX_TRACE_BUFS, NULL);
    put_names(p, "bufColors", OX_TRACE_BUFS, ox_page_buf_color);
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
