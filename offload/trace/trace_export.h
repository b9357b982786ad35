/* Writes a trace in the formats of other viewers: Chrome's JSON (chrome://tracing, speedscope) and Perfetto's protocol
 * buffers (ui.perfetto.dev). Lanes become threads and tasks become slices; memory and steps have tracks of their own.
 * tools/command calls it. */
#ifndef OX_OFFLOAD_TRACE_EXPORT_H
#define OX_OFFLOAD_TRACE_EXPORT_H

#include "offload/trace/trace_stats.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

OX_MUST enum ox_status ox_trace_write_chrome(const struct ox_trace *trace, const struct ox_trace_steps *steps,
                                             FILE *out);
OX_MUST enum ox_status ox_trace_write_perfetto(const struct ox_trace *trace, const struct ox_trace_steps *steps,
                                               FILE *out);

#ifdef __cplusplus
}
#endif
#endif
