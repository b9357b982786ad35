/* Recording a run: when each task was queued, started and ended, into the trace of offload/trace/trace.h.
 *
 * Lanes tell of their jobs as they end (base/lane.h); the issuing thread tells which task the jobs that follow belong
 * to. A task is a row of neighbouring jobs on one lane, the last of which is its mark. */
#ifndef OX_ENGINE_TRACING_H
#define OX_ENGINE_TRACING_H

#include "engine/step/engine.h"
#include "offload/trace/trace.h"

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

/* Between steps: stops recording, as if there were no trace, or goes on with it. */
void ox_engine_trace_pause(struct ox_engine *engine, bool pause);

/* On the calling thread: what has no tasks, as a save of the state of `step`, has lasted from begin_ns (of
 * ox_clock_ns) until now. Nothing happens where nothing is recorded. */
void ox_engine_trace_span(struct ox_engine *engine, enum ox_trace_span span, uint64_t step, uint64_t begin_ns);

/* ---- told by the executor: step.c --------------------------------------------------------------------- */

struct ox_tracing;

/* A step, an evaluation or the update of a step begins: tasks of `plan` are issued. Takes NULL, as the rest does. */
void ox_tracing_begin(struct ox_tracing *tracing, const struct ox_plan *plan, enum ox_trace_span span, uint64_t step);
/* A task is about to be issued; its mark will be in *mark. `idle`: it has nothing to do this time. */
void ox_tracing_issue(struct ox_tracing *tracing, uint32_t task_idx, bool idle, const struct ox_mark *mark);
/* It is over, its lanes are drained. */
void ox_tracing_end(struct ox_tracing *tracing, enum ox_status status);

/* ---- told by the optimizer's lane ----------------------------------------------------------------------- */

/* Nanoseconds by enum ox_trace_part of the task that runs now, of which only the work is not known: it is the rest. */
void ox_tracing_parts(struct ox_tracing *tracing, uint32_t task_idx, const uint64_t parts_ns[OX_TRACE_PART_COUNT]);
/* Planes of a unit were read without the stream, which is not reading, from begin_ns until now. */
void ox_tracing_read(struct ox_tracing *tracing, uint32_t unit_idx, uint64_t begin_ns, uint64_t bytes);

/* The lanes are still open. */
void ox_tracing_close(struct ox_tracing **tracing);

#ifdef __cplusplus
}
#endif
#endif
