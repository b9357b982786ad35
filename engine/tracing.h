/* Recording a run: when each task was queued, started and ended, into the trace of offload/trace.h.
 *
 * Lanes tell of their jobs as they end (base/lane.h); the issuing thread tells which task the jobs that follow belong
 * to. A task is a row of neighbouring jobs on one lane, the last of which is its mark. */
#ifndef OX_ENGINE_TRACING_H
#define OX_ENGINE_TRACING_H

#include "engine/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_tracing_config {
    const char *path;
    const char *title;    /* one line for people */
    uint64_t bytes_max;   /* of the file */
    uint64_t steps_max;   /* of this process that are recorded; 0 = all */
    uint64_t max_steps;   /* of the run */
    uint64_t rated_bytes; /* of each drive; 0 = not known */
    const struct ox_sim *predicted; /* which has run the plan of training last; NULL: no predictions */
};

/* Between steps. ox_engine_close ends it. */
OX_MUST enum ox_status ox_engine_trace(struct ox_engine *engine, const struct ox_tracing_config *config);

/* ---- told by the executor: step.c --------------------------------------------------------------------- */

struct ox_tracing;

/* A task is about to be issued; its mark will be in *mark. Takes NULL, as the rest does. */
void ox_tracing_issue(struct ox_tracing *tracing, const struct ox_plan *plan, uint32_t task_idx,
                      const struct ox_mark *mark);
/* The step or evaluation is over, its lanes are drained. */
void ox_tracing_end(struct ox_tracing *tracing, const struct ox_plan *plan, enum ox_status status);
/* The lanes are still open. */
void ox_tracing_close(struct ox_tracing **tracing);

#ifdef __cplusplus
}
#endif
#endif
