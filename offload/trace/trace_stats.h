/* Statistics of a trace: its steps, where their time went, what each lane waited for, and what the arenas held. All are
 * pure functions of the recording; tools/command prints them. */
#ifndef OX_OFFLOAD_TRACE_STATS_H
#define OX_OFFLOAD_TRACE_STATS_H

#include "offload/trace/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Why a lane did nothing. Values below OX_TRACE_CAUSE_PART are the index of the lane that it waited for; then follow
 * the parts of an optimizer task, and the causes below. */
enum ox_trace_cause {
    OX_TRACE_CAUSE_PART = OX_TRACE_LANES_MAX, /* plus enum ox_trace_part */
    OX_TRACE_CAUSE_ISSUE = OX_TRACE_CAUSE_PART + OX_TRACE_PARTS_MAX, /* the next task had not been issued yet */
    OX_TRACE_CAUSE_START,                      /* issued and not held up: threads wake up, the issue loop runs */
    OX_TRACE_CAUSE_DONE,                       /* the lane had nothing left to do in this step */
    OX_TRACE_CAUSE_COUNT
};
/* "h2d", "drive reads", or "issue", "start", "done". */
const char *ox_trace_cause_name(const struct ox_trace_header *head, uint32_t cause);

/* A span: a step, an evaluation of a batch, or another one. Times are by the run's clock. */
struct ox_trace_step {
    uint64_t step, begin_ns, end_ns;
    uint8_t plan, span;
    bool failed;
    bool whole;       /* all of its tasks were recorded */
    uint32_t task_count; /* tasks that were recorded */
    const struct ox_trace_record **tasks; /* by task index in the plan; NULL: not recorded */
    /* By task index: what its time was spent on; NULL: not known, or on one thing. */
    const struct ox_trace_record **parts;
    const struct ox_trace_record **flows; /* in the order in which they ended */
    uint32_t flow_count;
    uint64_t dropped; /* records dropped from the start of the run to the span's end */
    uint64_t bytes[OX_TRACE_LINKS_MAX][OX_TRACE_KINDS_MAX];   /* that crossed links */
    uint64_t planned[OX_TRACE_LINKS_MAX][OX_TRACE_KINDS_MAX]; /* that the plan expects there */
};

struct ox_trace_steps {
    /* In the order in which they ended; they point into the trace, which must outlive them. */
    struct ox_trace_step *steps;
    uint32_t count;
    /* Number of whole training steps, and the index of the one of median length among those that should have moved the
     * same bytes as most; UINT32_MAX: none. */
    uint32_t whole_count;
    uint32_t typical_idx;
};
OX_MUST enum ox_status ox_trace_steps_open(const struct ox_trace *trace, struct ox_trace_steps **out);
void ox_trace_steps_close(struct ox_trace_steps **steps);

struct ox_trace_analysis {
    uint64_t wall_ns;
    uint64_t busy_ns[OX_TRACE_LANES_MAX]; /* without waits within tasks, which are in held_ns */
    /* What held each lane up. If a lane waited for another one that itself waited, the cause is what the other one
     * waited for. Each row together with busy_ns adds up to the step. */
    uint64_t held_ns[OX_TRACE_LANES_MAX][OX_TRACE_CAUSE_COUNT];
    /* The critical path: from the end of the step back through whatever each task waited for last. It adds up to the
     * step, by lane or cause; chain_kind_ns has its tasks' time by kind. */
    uint64_t chain_ns[OX_TRACE_CAUSE_COUNT];
    uint64_t chain_kind_ns[OX_TRACE_NAMES_MAX]; /* without waits within tasks */
    uint64_t kind_ns[OX_TRACE_NAMES_MAX], kind_bytes[OX_TRACE_NAMES_MAX];
    uint64_t kind_part_ns[OX_TRACE_NAMES_MAX][OX_TRACE_PARTS_MAX]; /* parts of kind_ns, if known */
    uint32_t kind_count[OX_TRACE_NAMES_MAX];
    double kind_predicted[OX_TRACE_NAMES_MAX]; /* seconds */
    double predicted_seconds;                  /* time of the step; 0: nothing was predicted */
};
OX_MUST enum ox_status ox_trace_analyze(const struct ox_trace_header *head, const struct ox_trace_step *step,
                                        struct ox_trace_analysis *out);

/* Bytes of a tier that the plan's buffers hold from `ns` of the step on, by kind of buffer; resident buffers always
 * count. */
struct ox_trace_moment {
    uint64_t ns;
    uint64_t bytes[OX_TRACE_BUFS_MAX];
};
/* Lists the moments of a step at which the memory in use changes. The caller frees *moments with free(). */
OX_MUST enum ox_status ox_trace_memory(const struct ox_trace_header *head, const struct ox_trace_step *step,
                                       uint32_t tier, struct ox_trace_moment **moments, uint32_t *count);

#ifdef __cplusplus
}
#endif
#endif
