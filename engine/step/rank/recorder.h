/* Records when each task was queued, started and ended, into a trace (offload/trace/trace.h).
 *
 * Lanes report their jobs as these end (base/lane.h); the issuing thread reports to which task the next jobs belong. A
 * task is a series of neighbouring jobs on one lane, of which the last is its mark. */
#ifndef OX_ENGINE_STEP_RECORDER_H
#define OX_ENGINE_STEP_RECORDER_H

#include "engine/step/rank/rank.h"
#include "engine/step/tracing.h"

#ifdef __cplusplus
extern "C" {
#endif

OX_MUST enum ox_status ox_rank_trace(struct ox_rank *rank, const struct ox_tracing_config *config);
void ox_rank_trace_pause(struct ox_rank *rank, bool pause);
void ox_rank_trace_span(struct ox_rank *rank, enum ox_trace_span span, uint64_t step, uint64_t begin_ns);

/* Writes a task's label for profilers, as the trace's export has it: "forward unit 3, batch 1". */
void ox_tracing_label(const struct ox_task *task, char text[OX_RANGE_BYTES]);

/* ---- told by the executor: step.c --------------------------------------------------------------------- */

struct ox_tracing;

/* Begins a step, an evaluation or an update that is finished alone, with tasks of `plan`. `tracing` may be NULL, here
 * and below. */
void ox_tracing_begin(struct ox_tracing *tracing, const struct ox_plan *plan, enum ox_trace_span span, uint64_t step);
/* Called before a task is issued; its mark will be in *mark. `idle`: it does not work in this step. */
void ox_tracing_issue(struct ox_tracing *tracing, uint32_t task_idx, bool idle, const struct ox_mark *mark);
/* Ends what ox_tracing_begin began; all lanes are drained. */
void ox_tracing_end(struct ox_tracing *tracing, enum ox_status status);

/* ---- told by the optimizer's lane ----------------------------------------------------------------------- */

/* Records how long each enum ox_trace_part of the running task took; the part that is work is what remains. */
void ox_tracing_parts(struct ox_tracing *tracing, uint32_t task_idx, const uint64_t parts_ns[OX_TRACE_PART_COUNT]);
/* Records that planes of a unit were read from begin_ns until now, not by the stream, which is idle. */
void ox_tracing_read(struct ox_tracing *tracing, uint32_t unit_idx, uint64_t begin_ns, uint64_t bytes);

/* ---- told by the threads of the optimizer's stream, its reader's or its writer's ---- */

struct ox_tracing_transfer {
    uint32_t unit_idx;
    bool write;
    uint64_t bytes, busy_since_ns, end_ns; /* since when the drives have had requests of the thread; now */
};
/* Records that all reads of a chunk have ended, or all its writes. */
void ox_tracing_transfer(struct ox_tracing *tracing, const struct ox_tracing_transfer *transfer);

/* Closes the recording, while the lanes are still open. */
void ox_tracing_close(struct ox_tracing **tracing);

#ifdef __cplusplus
}
#endif
#endif
