/* The traces of a run with several ranks, put together: a file for each rank, one axis of time, who waited for whom.
 *
 * Every file has times of its own. They are joined by the wall clock at which each began, which is exact within one
 * machine. Between machines wall clocks differ, so a step's times are moved until no rank leaves a meeting before all
 * have come to it: transfers between ranks end on none before all have begun them. */
#ifndef OX_OFFLOAD_TRACE_RANKS_H
#define OX_OFFLOAD_TRACE_RANKS_H

#include "offload/trace/trace_stats.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_TRACE_RANKS_MAX = 64 };

struct ox_trace_rank {
    uint32_t idx; /* in the run */
    struct ox_trace *trace;
    struct ox_trace_steps *steps;
};

struct ox_trace_ranks {
    uint32_t count;     /* ranks that were read */
    uint32_t run_count; /* ranks of the run */
    uint32_t shown;     /* index in `ranks` of the file that was named */
    struct ox_trace_rank ranks[OX_TRACE_RANKS_MAX]; /* in the order of their numbers */
};

/* Opens the trace at `path` as ox_trace_open does. Where it is of one rank of several, "trace.bin" or "trace-N.bin",
 * opens those of the other ranks beside it too; a file that is missing, unreadable or of another run is left out with a
 * warning. The caller closes *out with ox_trace_ranks_close(). */
OX_MUST enum ox_status ox_trace_ranks_open(const char *path, struct ox_trace_ranks *out);
void ox_trace_ranks_close(struct ox_trace_ranks *ranks);

/* A training step as the ranks took it together. Times are of the clock of the rank shown. */
struct ox_trace_joint {
    const struct ox_trace_step *steps[OX_TRACE_RANKS_MAX]; /* NULL: the rank recorded no whole step of that number */
    int64_t shift_ns[OX_TRACE_RANKS_MAX]; /* added to the rank's times */
    int64_t begin_ns, end_ns;             /* the first begin and the last end */
    uint64_t moved_ns; /* by how much a clock had to be moved, beyond the wall clocks, so that the meetings agree */
    bool whole;        /* all ranks that were read have the step */
};
/* `step` is a step of the rank shown. */
void ox_trace_joint_of(const struct ox_trace_ranks *ranks, const struct ox_trace_step *step,
                       struct ox_trace_joint *out);

/* waits[r][s] is the time that rank r spent in transfers between ranks before rank s, the last one, came to them. */
void ox_trace_joint_waits(const struct ox_trace_ranks *ranks, const struct ox_trace_joint *joint,
                          uint64_t waits[OX_TRACE_RANKS_MAX][OX_TRACE_RANKS_MAX]);

/* The critical path of a joint step: as chain_ns and chain_kind_ns of struct ox_trace_analysis, but through all ranks.
 * At a transfer between ranks it goes on with the rank that came to it last. It adds up to wall_ns, the time that the
 * step took all of them; rank_ns is the part that went by on each. */
struct ox_trace_joint_chain {
    uint64_t wall_ns;
    uint64_t chain_ns[OX_TRACE_CAUSE_COUNT], chain_kind_ns[OX_TRACE_NAMES_MAX];
    uint64_t rank_ns[OX_TRACE_RANKS_MAX];
};
OX_MUST enum ox_status ox_trace_joint_follow(const struct ox_trace_ranks *ranks, const struct ox_trace_joint *joint,
                                             struct ox_trace_joint_chain *out);

/* The bytes of a header's title before the machine. */
size_t ox_trace_title_bytes(const char *title);
/* The lane of transfers between ranks, on which all ranks have the same sequence of tasks; the number of lanes where
 * there is none. */
uint32_t ox_trace_link_lane(const struct ox_trace_header *head);

#ifdef __cplusplus
}
#endif
#endif
