/* What a trace says: steps, where their time went, who waited for whom, and what the arenas held. Pure functions of
 * what was recorded. */
#ifndef OX_OFFLOAD_TRACE_STATS_H
#define OX_OFFLOAD_TRACE_STATS_H

#include "offload/trace/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Why nothing went on: a lane that others waited for, by its number, what a task of the optimizer waited for, by its
 * part, or one of these behind them. */
enum ox_trace_cause {
    OX_TRACE_CAUSE_PART = OX_TRACE_LANES_MAX, /* and the number of the part */
    OX_TRACE_CAUSE_ISSUE = OX_TRACE_CAUSE_PART + OX_TRACE_PARTS_MAX, /* the next task had not been issued yet */
    OX_TRACE_CAUSE_START,                      /* it had, and nothing held it: threads waking up, the loop */
    OX_TRACE_CAUSE_DONE,                       /* the lane had no more to do in this step                  */
    OX_TRACE_CAUSE_COUNT
};
/* "h2d", "drive reads", or "issue", "start", "done". */
const char *ox_trace_cause_name(const struct ox_trace_header *head, uint32_t cause);

/* A span: a step, an evaluation of a batch, or something else. Times are of the run's clock. */
struct ox_trace_step {
    uint64_t step, begin_ns, end_ns;
    uint8_t plan, span;
    bool failed;
    bool whole;       /* every task that it has was recorded */
    uint32_t task_count; /* that were */
    const struct ox_trace_record **tasks; /* by index in the plan; NULL: not recorded */
    const struct ox_trace_record **parts; /* likewise: what its time was; NULL: not known, or one thing */
    const struct ox_trace_record **flows; /* in the order they ended */
    uint32_t flow_count;
    uint64_t dropped; /* records, until its end */
    uint64_t bytes[OX_TRACE_LINKS_MAX][OX_TRACE_KINDS_MAX];   /* that crossed links */
    uint64_t planned[OX_TRACE_LINKS_MAX][OX_TRACE_KINDS_MAX]; /* that should have   */
};

struct ox_trace_steps {
    struct ox_trace_step *steps; /* in the order they ended; they point into the trace, which outlives them */
    uint32_t count;
    uint32_t whole_count; /* whole steps of training, and which of them is of median length; UINT32_MAX: none */
    uint32_t typical_idx;
};
OX_MUST enum ox_status ox_trace_steps_open(const struct ox_trace *trace, struct ox_trace_steps **out);
void ox_trace_steps_close(struct ox_trace_steps **steps);

struct ox_trace_analysis {
    uint64_t wall_ns;
    uint64_t busy_ns[OX_TRACE_LANES_MAX]; /* waits within tasks are held_ns */
    /* What a lane was held up by. A lane that waited for another one that itself waited is held up by what that one
     * waited for. Together with busy_ns each row is the step. */
    uint64_t held_ns[OX_TRACE_LANES_MAX][OX_TRACE_CAUSE_COUNT];
    /* The longest chain: from the end of the step back through whatever each task waited for last. Its parts are the
     * step: by lane or cause, and by kind of task. */
    uint64_t chain_ns[OX_TRACE_CAUSE_COUNT];
    uint64_t chain_kind_ns[OX_TRACE_NAMES_MAX]; /* without what tasks waited for within */
    uint64_t kind_ns[OX_TRACE_NAMES_MAX], kind_bytes[OX_TRACE_NAMES_MAX];
    uint64_t kind_part_ns[OX_TRACE_NAMES_MAX][OX_TRACE_PARTS_MAX]; /* of kind_ns, where it is known */
    uint32_t kind_count[OX_TRACE_NAMES_MAX];
    double kind_predicted[OX_TRACE_NAMES_MAX]; /* seconds */
    double predicted_seconds;                  /* of the step; 0: nothing was predicted */
};
OX_MUST enum ox_status ox_trace_analyze(const struct ox_trace_header *head, const struct ox_trace_step *step,
                                        struct ox_trace_analysis *out);

/* What buffers of the plan hold of a tier from `ns` of the step on, by kind; resident ones always. */
struct ox_trace_moment {
    uint64_t ns;
    uint64_t bytes[OX_TRACE_BUFS_MAX];
};
/* free() the moments. */
OX_MUST enum ox_status ox_trace_memory(const struct ox_trace_header *head, const struct ox_trace_step *step,
                                       uint32_t tier, struct ox_trace_moment **moments, uint32_t *count);

#ifdef __cplusplus
}
#endif
#endif
