/* What `train` says while it goes on, and its summary. */
#ifndef OX_TOOLS_PROGRESS_H
#define OX_TOOLS_PROGRESS_H

#include "engine/run/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sums over steps. */
struct ox_progress_sums {
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    uint64_t steps, tokens, batch_tokens, skipped, overflowed, empty, speculated, undone;
    double loss, parts[OX_REPORT_PARTS_MAX]; /* sums over steps neither skipped nor empty */
    double loss_scale; /* of the last step; 0: none */
    double seconds, busy_seconds, peer_wait_seconds; /* the last two: means of the ranks */
    uint32_t rank_count;
};

struct ox_progress {
    uint64_t begin_ns, begin_step, logging_steps;
    double given_logging_steps; /* as --logging-steps says, perhaps a share */
    uint64_t step, max_steps; /* where the run is; 0 of 0 before it starts */
    bool quiet;
    struct ox_progress_sums all;       /* this process, with the traffic of updates done by evaluations */
    struct ox_progress_sums since;     /* steps since the last line */
    uint64_t eval_updates; /* steps whose update ran within an evaluation */
    struct ox_eval_report last_eval;
};

/* Hooks that print to stderr, for a progress whose given_logging_steps and quiet are set and which outlives them. */
struct ox_trainer_hooks ox_progress_hooks(struct ox_progress *progress);
/* Prints the summary of a run that has ended to stdout. */
void ox_progress_summary(const struct ox_progress *progress, const struct ox_trainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
