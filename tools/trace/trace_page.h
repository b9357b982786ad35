/* What the files that write the report's page share: the page being written, cells of its tables, names and colours. */
#ifndef OX_TOOLS_TRACE_PAGE_H
#define OX_TOOLS_TRACE_PAGE_H

#include "tools/trace/trace_report.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_page {
    FILE *out;
    const struct ox_trace_report *report;
    const struct ox_trace_header *head;
    const struct ox_trace_analysis *typical;
    const struct ox_trace_step *step; /* the typical step */
};

/* Writes text as ox_html_put does. */
void ox_page_put(struct ox_page *p, const char *text);
void ox_page_size_cell(struct ox_page *p, uint64_t bytes);
void ox_page_time_cell(struct ox_page *p, uint64_t ns);
/* Writes pairs of a name and a colour, up to a NULL name. */
void ox_page_legend(struct ox_page *p, const char *const pairs[][2]);

/* Names of the style sheet's colours. */
const char *ox_page_kind_color(const char *kind);
const char *ox_page_buf_color(const char *kind);
const char *ox_page_part_color(uint32_t part);

const char *ox_page_cause(const struct ox_trace_header *head, uint32_t cause);
/* Returns what a lane waits for most, apart from its own end; OX_TRACE_CAUSE_COUNT: nothing. */
uint32_t ox_page_worst_cause(const struct ox_trace_analysis *a, uint32_t lane);
double ox_page_share(uint64_t part, uint64_t whole); /* percent */
/* Writes a duration to `text` (OX_SIZE_TEXT_BYTES) and returns it. */
const char *ox_page_time(uint64_t ns, char *text);

/* What the tasks of a kind do, for people who do not know the plan's words. */
const char *ox_page_kind_text(const char *kind);
/* tools/trace/trace_loss.c: the loss over the run; nothing where the run's metrics.jsonl is not beside it. */
void ox_page_loss(struct ox_page *p);
/* tools/trace/trace_joint.c: the ranks beside each other; nothing for one. */
void ox_page_ranks(struct ox_page *p);
/* tools/trace/trace_tables.c: everything below the timeline. */
OX_MUST enum ox_status ox_page_tables(struct ox_page *p);
/* tools/trace/trace_data.c: the element `data`, as JSON. */
OX_MUST enum ox_status ox_page_data(struct ox_page *p);

#ifdef __cplusplus
}
#endif
#endif
