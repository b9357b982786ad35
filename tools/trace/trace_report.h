/* Owns the numbers behind `offload trace report`: computed once per recording, then written as text, as JSON and as an
 * HTML page. cmd_trace.c calls it. */
#ifndef OX_TOOLS_TRACE_REPORT_H
#define OX_TOOLS_TRACE_REPORT_H

#include "offload/trace/trace_ranks.h"

#include <jansson.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_trace_report {
    const char *path;
    char title[OX_TRACE_TITLE_BYTES]; /* model and step */
    struct ox_trace_ranks ranks; /* all of the run; the figures below are of the one shown */
    const struct ox_trace *trace;
    const struct ox_trace_header *head;
    const struct ox_trace_steps *steps;
    uint32_t *shown; /* indices of whole training steps, in order */
    struct ox_trace_analysis *analyses; /* one for each of `shown` */
    uint32_t shown_count;
    uint64_t early_steps, late_steps; /* of the run: begun with updates in backward; without any that held */
    uint32_t typical; /* index in `shown` of the step of median length, which all figures of "a step" describe */
    /* That step as all ranks took it; in a run of several it is one that all have recorded whole, if there is any. */
    struct ox_trace_joint joint;
    struct ox_trace_analysis *rank_analyses; /* for each of `ranks`; zeros where it has no such step */
    struct ox_trace_joint_chain chain; /* of that step, through all ranks */
    uint64_t waits[OX_TRACE_RANKS_MAX][OX_TRACE_RANKS_MAX]; /* as ox_trace_joint_waits */
};

/* Reads and analyzes a recording; OX_E_CONFIG when it holds no whole step. */
OX_MUST enum ox_status ox_trace_report_open(const char *path, struct ox_trace_report *out);
void ox_trace_report_close(struct ox_trace_report *report);

const struct ox_trace_step *ox_trace_report_step(const struct ox_trace_report *report, uint32_t idx);
/* Bytes that the typical step moved over a link, all kinds together; *planned is the plan's figure. */
uint64_t ox_trace_report_bytes(const struct ox_trace_report *report, uint32_t link, uint64_t *planned);
/* Peak of the plan's buffers in a tier during the typical step. */
OX_MUST enum ox_status ox_trace_report_peak(const struct ox_trace_report *report, uint32_t tier, uint64_t *bytes);
/* Spans of a kind, and how long they took. Spans of an evaluation are its batches: `count` is that of evaluations. */
struct ox_trace_span_sum {
    uint32_t count, parts;
    uint64_t ns;
};
struct ox_trace_span_sum ox_trace_report_spans(const struct ox_trace_report *report, uint32_t span);
/* Writes what the recording is of, "run1, recorded 2026-11-28 10:39 UTC on ...", to `text` (OX_TRACE_ABOUT_BYTES). */
enum { OX_TRACE_ABOUT_BYTES = 512 };
const char *ox_trace_report_about(const struct ox_trace_report *report, char *text);
/* Writes " for a step ..." to `text` (OX_TRACE_LATE_BYTES) where steps clipped, so that they made their updates in
 * backward again or had none there, which the prediction has; else "". */
enum { OX_TRACE_LATE_BYTES = 160 };
const char *ox_trace_report_late(const struct ox_trace_report *report, char *text);
/* Writes a line on drive wear to `text` (OX_WEAR_TEXT_BYTES), "" without drives, and returns it. */
const char *ox_trace_report_wear(const struct ox_trace_report *report, char *text);

/* tools/trace/trace_joint.c: the ranks of a run beside each other. Nothing is written, and NULL returned, for one. */
void ox_trace_joint_text(const struct ox_trace_report *report, FILE *out);
json_t *ox_trace_joint_json(const struct ox_trace_report *report);

OX_MUST enum ox_status ox_trace_report_text(const struct ox_trace_report *report, FILE *out);
/* NULL without memory; the caller owns it. */
json_t *ox_trace_report_json(const struct ox_trace_report *report);
/* Writes one self-contained HTML file: no network, no library, and tables that need no scripts. */
OX_MUST enum ox_status ox_trace_report_page(const struct ox_trace_report *report, FILE *out);

/* Writes text with HTML's own characters escaped, for this page and others. */
void ox_html_put(FILE *out, const char *text);

#ifdef __cplusplus
}
#endif
#endif
