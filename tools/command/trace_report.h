/* What `offload trace` says of a recording: the numbers of every step, gathered once and told as text, as JSON and as
 * a page. */
#ifndef OX_TOOLS_TRACE_REPORT_H
#define OX_TOOLS_TRACE_REPORT_H

#include "offload/trace/trace_stats.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_trace_report {
    const char *path;
    struct ox_trace *trace;
    const struct ox_trace_head *head;
    struct ox_trace_steps *steps;
    uint32_t *shown; /* whole steps of training, by index, in order */
    struct ox_trace_analysis *analyses; /* of them */
    uint32_t shown_count;
    uint32_t typical; /* among the shown: of median length; all figures of "a step" are its */
};

/* OX_E_CONFIG when no whole step was recorded. */
OX_MUST enum ox_status ox_trace_report_open(const char *path, struct ox_trace_report *out);
void ox_trace_report_close(struct ox_trace_report *report);

const struct ox_trace_step *ox_trace_report_step(const struct ox_trace_report *report, uint32_t idx);
/* Bytes of the typical step over a link, all kinds: as measured, and as the plan has it. */
uint64_t ox_trace_report_bytes(const struct ox_trace_report *report, uint32_t link, uint64_t *planned);
/* Most that the plan's buffers of a tier held together in the typical step. */
OX_MUST enum ox_status ox_trace_report_peak(const struct ox_trace_report *report, uint32_t tier, uint64_t *bytes);
/* Seconds of all spans of a kind, and how many there are. */
double ox_trace_report_span(const struct ox_trace_report *report, uint32_t span, uint32_t *count);
/* A line on what the drives take; "" without drives. `text` has OX_WEAR_TEXT_BYTES. */
const char *ox_trace_report_wear(const struct ox_trace_report *report, char *text);
/* "312 ms", "4.2 s"; `text` has OX_TRACE_TIME_BYTES. */
enum { OX_TRACE_TIME_BYTES = 32 };
const char *ox_trace_time_text(double seconds, char *text);

OX_MUST enum ox_status ox_trace_report_text(const struct ox_trace_report *report, FILE *out);
OX_MUST enum ox_status ox_trace_report_json(const struct ox_trace_report *report, FILE *out);
/* One file: no network, no library, tables that are there without scripts. */
OX_MUST enum ox_status ox_trace_report_page(const struct ox_trace_report *report, FILE *out);

#ifdef __cplusplus
}
#endif
#endif
