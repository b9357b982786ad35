/* Computes the numbers of a report, and writes them as text and as JSON. */
#include "tools/trace/trace_report.h"

#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/report/curves.h"
#include "nvme/wear.h"
#include "tools/trace/trace_page.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- numbers --------------------------------------------------------------------------------------- */

static enum ox_status analyze_all(struct ox_trace_report *report) {
    const struct ox_trace_steps *const steps = report->steps;
    report->shown = calloc(steps->whole_count + 1u, sizeof *report->shown);
    report->analyses = calloc(steps->whole_count + 1u, sizeof *report->analyses);
    if (report->shown == NULL || report->analyses == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for its %u steps", report->path, steps->whole_count);
    }
    for (uint32_t i = 0; i < steps->count; i++) {
        if (!steps->steps[i].whole || steps->steps[i].span != OX_TRACE_SPAN_STEP) {
            continue;
        }
        const enum ox_status status =
            ox_trace_analyze(report->head, &steps->steps[i], &report->analyses[report->shown_count]);
        if (status != OX_OK) {
            return status;
        }
        report->typical = i == steps->typical_idx ? report->shown_count : report->typical;
        report->shown[report->shown_count++] = i;
    }
    return OX_OK;
}

/* Puts the typical step of all ranks together; takes the newest one that all have, if some rank lacks it. */
static enum ox_status join_ranks(struct ox_trace_report *report) {
    enum ox_status status = OX_OK;
    ox_trace_joint_of(&report->ranks, ox_trace_report_step(report, report->typical), &report->joint);
    for (uint32_t i = report->shown_count; !report->joint.whole && i > 0; i--) {
        struct ox_trace_joint joint;
        ox_trace_joint_of(&report->ranks, ox_trace_report_step(report, i - 1), &joint);
        if (joint.whole) {
            report->joint = joint;
            report->typical = i - 1;
        }
    }
    report->rank_analyses = calloc(report->ranks.count, sizeof *report->rank_analyses);
    if (report->rank_analyses == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for its ranks", report->path);
    }
    for (uint32_t i = 0; i < report->ranks.count && status == OX_OK; i++) {
        if (report->joint.steps[i] != NULL) {
            status = ox_trace_analyze(report->ranks.ranks[i].trace->head, report->joint.steps[i],
                                      &report->rank_analyses[i]);
        }
    }
    ox_trace_joint_waits(&report->ranks, &report->joint, report->waits);
    OX_THEN(status, ox_trace_joint_follow(&report->ranks, &report->joint, &report->chain));
    return status;
}

/* Counts what the run's metrics.jsonl tells of clipped steps; a recording without it is of use too. */
static void count_late(struct ox_trace_report *report) {
    struct ox_curves *curves = NULL;
    if (ox_curves_read(report->path, &curves) == OX_OK) {
        report->early_steps = curves->early_steps;
        report->late_steps = curves->repeated_steps + curves->held_steps;
    }
    free(curves);
}

enum ox_status ox_trace_report_open(const char *path, struct ox_trace_report *out) {
    *out = (struct ox_trace_report){.path = path};
    enum ox_status status = ox_trace_ranks_open(path, &out->ranks);
    if (status == OX_OK) {
        out->trace = out->ranks.ranks[out->ranks.shown].trace;
        out->steps = out->ranks.ranks[out->ranks.shown].steps;
        out->head = out->trace->head;
        snprintf(out->title, sizeof out->title, "%.*s", (int)ox_trace_title_bytes(out->head->title), out->head->title);
    }
    if (status == OX_OK && out->steps->whole_count == 0) {
        status = ox_fail(OX_E_CONFIG, "%s: holds no whole step yet; wait for the run, or record it with more "
                         "--trace-bytes", path);
    }
    OX_THEN(status, analyze_all(out));
    OX_THEN(status, join_ranks(out));
    if (status == OX_OK) {
        count_late(out);
    } else {
        ox_trace_report_close(out);
    }
    return status;
}

void ox_trace_report_close(struct ox_trace_report *report) {
    free(report->shown);
    free(report->analyses);
    free(report->rank_analyses);
    ox_trace_ranks_close(&report->ranks);
    *report = (struct ox_trace_report){0};
}

const struct ox_trace_step *ox_trace_report_step(const struct ox_trace_report *report, uint32_t idx) {
    return &report->steps->steps[report->shown[idx]];
}

const char *ox_trace_report_late(const struct ox_trace_report *report, char *text) {
    text[0] = '\0';
    if (report->early_steps > 0 && report->late_steps > 0) { /* of a plan that has updates in backward */
        snprintf(text, OX_TRACE_LATE_BYTES, " for a step whose updates in backward hold; in %" PRIu64 " step%s they "
                 "did not, or waited, because norms are clipped", report->late_steps, ox_plural(report->late_steps));
    }
    return text;
}

static const struct ox_trace_step *typical_step(const struct ox_trace_report *report) {
    return ox_trace_report_step(report, report->typical);
}

uint64_t ox_trace_report_bytes(const struct ox_trace_report *report, uint32_t link, uint64_t *planned) {
    uint64_t bytes = 0;
    *planned = 0;
    for (uint32_t kind = 0; kind < report->head->names[OX_TRACE_TRAFFIC].count; kind++) {
        bytes += typical_step(report)->bytes[link][kind];
        *planned += typical_step(report)->planned[link][kind];
    }
    return bytes;
}

enum ox_status ox_trace_report_peak(const struct ox_trace_report *report, uint32_t tier, uint64_t *bytes) {
    struct ox_trace_moment *moments = NULL;
    uint32_t count = 0;
    const enum ox_status status = ox_trace_memory(report->head, typical_step(report), tier, &moments, &count);
    *bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t sum = 0;
        for (uint32_t kind = 0; kind < report->head->names[OX_TRACE_BUFS].count; kind++) {
            sum += moments[i].bytes[kind];
        }
        *bytes = ox_max_u64(*bytes, sum);
    }
    free(moments);
    return status;
}

struct ox_trace_span_sum ox_trace_report_spans(const struct ox_trace_report *report, uint32_t span) {
    struct ox_trace_span_sum sum = {0};
    const struct ox_trace_step *last = NULL;
    for (uint32_t i = 0; i < report->steps->count; i++) {
        const struct ox_trace_step *const step = &report->steps->steps[i];
        if (step->span == span) {
            sum.count += span != OX_TRACE_SPAN_EVAL || last == NULL || last->step != step->step;
            sum.parts++;
            sum.ns += step->end_ns - step->begin_ns;
            last = step;
        }
    }
    return sum;
}

/* Bytes that all recorded spans of all ranks wrote to drives. */
static uint64_t drive_bytes_written(const struct ox_trace_report *report) {
    const struct ox_trace_names *const links = &report->head->names[OX_TRACE_LINKS];
    uint64_t bytes = 0;
    for (uint32_t link = 0; link < links->count; link++) {
        for (uint32_t rank = 0; rank < report->ranks.count && strcmp(links->text[link], "nvme_write") == 0; rank++) {
            const struct ox_trace_steps *const steps = report->ranks.ranks[rank].steps;
            for (uint32_t i = 0; i < steps->count; i++) {
                for (uint32_t kind = 0; kind < report->head->names[OX_TRACE_TRAFFIC].count; kind++) {
                    bytes += steps->steps[i].bytes[link][kind];
                }
            }
        }
    }
    return bytes;
}

/* Bytes that a step of the run writes to each drive, on average of the recorded ones: some persist the state, and
 * others do not. */
static uint64_t wear_of_step(const struct ox_trace_report *report) {
    const uint32_t steps = ox_trace_report_spans(report, OX_TRACE_SPAN_STEP).count, drives = report->head->drive_count;
    return drives > 0 && steps > 0 ? drive_bytes_written(report) / steps / drives : 0;
}

const char *ox_trace_report_wear(const struct ox_trace_report *report, char *text) {
    const struct ox_trace_header *const head = report->head;
    const struct ox_trace_span_sum steps = ox_trace_report_spans(report, OX_TRACE_SPAN_STEP);
    text[0] = '\0';
    if (head->drive_count == 0) {
        return text;
    }
    const struct ox_wear wear = {
        .step_bytes = wear_of_step(report),
        .step_count = head->max_steps,
        .step_seconds = (double)steps.ns * 1e-9 / steps.count,
        .rated_bytes = head->rated_bytes,
    };
    return ox_wear_text(&wear, text);
}

const char *ox_trace_report_about(const struct ox_trace_report *report, char *text) {
    char real[PATH_MAX] = "", date[32] = "";
    const time_t epoch = (time_t)(report->head->epoch_unix_ns / 1000000000);
    struct tm parts;
    if (realpath(report->path, real) != NULL && !ox_path_is_folder(real) && strrchr(real, '/') != NULL) {
        *strrchr(real, '/') = '\0';
    }
    const char *const slash = strrchr(real, '/'), *const machine = strstr(report->head->title, "; on ");
    if (gmtime_r(&epoch, &parts) != NULL) {
        strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &parts);
    }
    snprintf(text, OX_TRACE_ABOUT_BYTES, "%.200s, recorded %s%s", slash != NULL ? slash + 1 : report->path, date,
             machine != NULL ? machine + 1 : "");
    return text;
}

/* ---- text ------------------------------------------------------------------------------------------ */

static double share(uint64_t part, uint64_t whole) {
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

static void text_causes(const struct ox_trace_report *report, const uint64_t *ns, uint64_t whole_ns, FILE *out) {
    const char *before = " ";
    for (uint32_t cause = 0; cause < OX_TRACE_CAUSE_COUNT; cause++) {
        const double part = share(ns[cause], whole_ns);
        if (part >= 0.1) {
            fprintf(out, "%s%s %.1f", before, ox_page_cause(report->head, cause), part);
            before = ", ";
        }
    }
    fprintf(out, "\n");
}

static void text_lanes(const struct ox_trace_report *report, FILE *out) {
    const struct ox_trace_analysis *const a = &report->analyses[report->typical];
    const struct ox_trace_names *const lanes = &report->head->names[OX_TRACE_LANES];
    fprintf(out, "\nlanes, %% of the step     busy   waits for\n");
    for (uint32_t lane = 0; lane < lanes->count; lane++) {
        if (a->busy_ns[lane] == 0) {
            continue;
        }
        fprintf(out, "  %-20s %6.1f  ", lanes->text[lane], share(a->busy_ns[lane], a->wall_ns));
        text_causes(report, a->held_ns[lane], a->wall_ns, out);
    }
}

static void text_chain(const struct ox_trace_report *report, FILE *out) {
    const struct ox_trace_joint_chain *const chain = &report->chain;
    fprintf(out, "\nlongest chain of tasks%s, %% of the step:", report->ranks.count > 1 ? " through all ranks" : "");
    text_causes(report, chain->chain_ns, chain->wall_ns, out);
}

static void text_bytes(const struct ox_trace_report *report, FILE *out) {
    const char *heading = "\nbytes of the step        measured     planned\n"; /* before the first row */
    for (uint32_t link = 0; link < report->head->names[OX_TRACE_LINKS].count; link++) {
        uint64_t planned = 0;
        char a[OX_SIZE_TEXT_BYTES], b[OX_SIZE_TEXT_BYTES];
        const uint64_t bytes = ox_trace_report_bytes(report, link, &planned);
        if (bytes + planned > 0) {
            fprintf(out, "%s  %-18s %12s%12s%s\n", heading, report->head->names[OX_TRACE_LINKS].text[link],
                    ox_size_text(bytes, a), ox_size_text(planned, b), bytes == planned ? "" : "  differs");
            heading = "";
        }
    }
}

static void text_spans(const struct ox_trace_report *report, FILE *out) {
    const struct ox_trace_names *const spans = &report->head->names[OX_TRACE_SPANS];
    char all[OX_SIZE_TEXT_BYTES], each[OX_SIZE_TEXT_BYTES];
    fprintf(out, "\nrecorded             count       total        each\n");
    for (uint32_t span = 0; span < spans->count; span++) {
        const struct ox_trace_span_sum sum = ox_trace_report_spans(report, span);
        const double seconds = (double)sum.ns * 1e-9;
        if (sum.count > 0) {
            fprintf(out, "  %-18s %5u  %10s  %10s", spans->text[span], sum.count, ox_seconds_text(seconds, all),
                    ox_seconds_text(seconds / sum.count, each));
            if (sum.parts > sum.count) {
                fprintf(out, "  of %u batches in all", sum.parts);
            }
            fputc('\n', out);
        }
    }
}

enum ox_status ox_trace_report_text(const struct ox_trace_report *report, FILE *out) {
    const struct ox_trace_analysis *const a = &report->analyses[report->typical];
    char time[OX_SIZE_TEXT_BYTES], wear[OX_WEAR_TEXT_BYTES], about[OX_TRACE_ABOUT_BYTES];
    char late[OX_TRACE_LATE_BYTES];
    const uint64_t dropped = report->steps->steps[report->steps->count - 1].dropped;
    fprintf(out, "%s\n%s\n%u whole step%s of %u recorded; %" PRIu64 " record%s dropped, %" PRIu64 " torn\n",
            ox_trace_report_about(report, about), report->title, report->shown_count,
            ox_plural(report->shown_count), ox_trace_report_spans(report, OX_TRACE_SPAN_STEP).count, dropped,
            ox_plural(dropped), report->trace->torn);
    fprintf(out, "step %" PRIu64 ", the one of median length: %s", typical_step(report)->step,
            ox_seconds_text((double)a->wall_ns * 1e-9, time));
    if (a->predicted_seconds > 0) {
        fprintf(out, ", predicted %s%s", ox_seconds_text(a->predicted_seconds, time),
                ox_trace_report_late(report, late));
    }
    fprintf(out, "\n");
    text_chain(report, out);
    text_lanes(report, out);
    text_bytes(report, out);
    ox_trace_joint_text(report, out);
    text_spans(report, out);
    ox_trace_report_wear(report, wear);
    if (wear[0] != '\0') {
        fprintf(out, "\n%s %s\n", report->head->drive_count == 1 ? "the drive" : "each drive", wear);
    }
    return ferror(out) ? ox_fail(OX_E_IO, "the report could not be written") : OX_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------------ */

static json_t *seconds_json(uint64_t ns) {
    return json_real((double)ns * 1e-9);
}

static json_t *causes_json(const struct ox_trace_header *head, const uint64_t ns[OX_TRACE_CAUSE_COUNT]) {
    json_t *const object = json_object();
    for (uint32_t cause = 0; cause < OX_TRACE_CAUSE_COUNT; cause++) {
        if (ns[cause] > 0) {
            json_object_set_new(object, ox_trace_cause_name(head, cause), seconds_json(ns[cause]));
        }
    }
    return object;
}

static json_t *step_json(const struct ox_trace_report *report, uint32_t idx) {
    const struct ox_trace_header *const head = report->head;
    const struct ox_trace_analysis *const a = &report->analyses[idx];
    json_t *const lanes = json_object();
    json_t *const links = json_object();
    for (uint32_t lane = 0; lane < head->names[OX_TRACE_LANES].count; lane++) {
        json_object_set_new(lanes, head->names[OX_TRACE_LANES].text[lane],
                            json_pack("{s:o, s:o}", "busy_seconds", seconds_json(a->busy_ns[lane]), "held_seconds",
                                      causes_json(head, a->held_ns[lane])));
    }
    for (uint32_t link = 0; link < head->names[OX_TRACE_LINKS].count; link++) {
        json_t *const kinds = json_object();
        for (uint32_t kind = 0; kind < head->names[OX_TRACE_TRAFFIC].count; kind++) {
            json_object_set_new(kinds, head->names[OX_TRACE_TRAFFIC].text[kind],
                                json_integer((json_int_t)ox_trace_report_step(report, idx)->bytes[link][kind]));
        }
        json_object_set_new(links, head->names[OX_TRACE_LINKS].text[link], kinds);
    }
    return json_pack("{s:I, s:o, s:f, s:o, s:o, s:o}", "step", (json_int_t)ox_trace_report_step(report, idx)->step,
                     "seconds", seconds_json(a->wall_ns), "predicted_seconds", a->predicted_seconds, "chain_seconds",
                     causes_json(head, a->chain_ns), "lanes", lanes, "bytes", links);
}

static json_t *spans_json(const struct ox_trace_report *report) {
    const struct ox_trace_names *const spans = &report->head->names[OX_TRACE_SPANS];
    json_t *const object = json_object();
    for (uint32_t span = 0; span < spans->count; span++) {
        const struct ox_trace_span_sum sum = ox_trace_report_spans(report, span);
        if (sum.count > 0) {
            json_object_set_new(object, spans->text[span],
                                json_pack("{s:I, s:I, s:o}", "count", (json_int_t)sum.count, "parts",
                                          (json_int_t)sum.parts, "seconds", seconds_json(sum.ns)));
        }
    }
    return object;
}

json_t *ox_trace_report_json(const struct ox_trace_report *report) {
    json_t *const steps = json_array();
    char about[OX_TRACE_ABOUT_BYTES];
    for (uint32_t i = 0; i < report->shown_count; i++) {
        json_array_append_new(steps, step_json(report, i));
    }
    return json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o*, s:o, s:o}", "title", report->title, "about",
        ox_trace_report_about(report, about), "typical_step", (json_int_t)typical_step(report)->step, "records",
        (json_int_t)report->trace->count, "dropped",
        (json_int_t)report->steps->steps[report->steps->count - 1].dropped, "torn", (json_int_t)report->trace->torn,
        "drive_bytes_per_step", (json_int_t)wear_of_step(report), "spans", spans_json(report), "ranks",
        ox_trace_joint_json(report), "chain_seconds", causes_json(report->head, report->chain.chain_ns), "steps",
        steps);
}
