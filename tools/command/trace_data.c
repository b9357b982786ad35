/* The data of the report's page, from which tools/command/trace_page.js draws the timeline and the memory. */
#include "tools/command/trace_page.h"

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

static void put_plan(struct ox_page *p) {
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

static enum ox_status put_step_memory(struct ox_page *p, const struct ox_trace_step *step, uint32_t tier) {
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
static void put_step_insides(struct ox_page *p, const struct ox_trace_step *step) {
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

static enum ox_status put_step(struct ox_page *p, const struct ox_trace_step *step) {
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
enum ox_status ox_page_data(struct ox_page *p) {
    const struct ox_trace_report *const report = p->report;
    const uint32_t task_count = p->head->plans[OX_TRACE_TRAIN].task_count;
    const uint32_t room = (uint32_t)ox_max_u64(TASKS_SHOWN_MAX / (task_count + 1u), 2);
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
