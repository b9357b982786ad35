/* Records when each task was queued, started and ended, into a trace (offload/trace/trace.h).
 *
 * Lanes report their jobs as these end (base/lane.h); the issuing thread reports to which task the next jobs belong. A
 * task is a series of neighbouring jobs on one lane, of which the last is its mark. */
#ifndef OX_ENGINE_TRACING_H
#define OX_ENGINE_TRACING_H

#include "base/lane.h"
#include "engine/step/engine.h"
#include "offload/trace/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_tracing_config {
    const char *path;
    const char *title;    /* one line for users */
    uint64_t bytes_max;   /* largest size of the file */
    uint64_t steps_max;   /* how many steps of this process are recorded; 0 = all */
    uint64_t max_steps;   /* last step of the run */
    uint64_t rated_bytes; /* endurance of each drive; 0 = not known */
    const struct ox_sim *predicted; /* its last run was the training plan; NULL: no predictions */
};

/* Begins to record, between steps, until ox_engine_close. Each rank after the first has a file of its own beside
 * `path`, "trace-1.bin" for "trace.bin"; bytes_max is for all together. */
OX_MUST enum ox_status ox_engine_trace(struct ox_engine *engine, const struct ox_tracing_config *config);

/* Pauses the recording between steps, or continues it. */
void ox_engine_trace_pause(struct ox_engine *engine, bool pause);

/* Records work of the calling thread that has no tasks, such as a save of the state of `step`: it lasted from begin_ns
 * (of ox_clock_ns) until now. Does nothing without a trace. */
void ox_engine_trace_span(struct ox_engine *engine, enum ox_trace_span span, uint64_t step, uint64_t begin_ns);

#ifdef __cplusplus
}
#endif
#endif
