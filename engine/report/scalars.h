/* The numbers of a run for other programs, beside metrics.jsonl: an events file for TensorBoard and a text file that
 * Prometheus' node exporter collects. A file that the disk refuses is given up with one warning; the run goes on. */
#ifndef OX_ENGINE_SCALARS_H
#define OX_ENGINE_SCALARS_H

#include "engine/report/metrics.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- TensorBoard: events.out.tfevents.<seconds>.offload ------------------------------------------------ */

struct ox_tensorboard;
/* A new file in the folder, as a process of its own: what an earlier one told of steps after `step` is void. */
OX_MUST enum ox_status ox_tensorboard_open(const char *folder, uint64_t step, struct ox_tensorboard **out);
/* These two take NULL. */
void ox_tensorboard_step(struct ox_tensorboard *board, const struct ox_step_report *report);
void ox_tensorboard_eval(struct ox_tensorboard *board, const struct ox_eval_report *report);
void ox_tensorboard_close(struct ox_tensorboard **board);
/* Whether a file of the folder is one that ox_tensorboard_open made. */
bool ox_tensorboard_is_ours(const char *name);

/* ---- Prometheus: metrics.prom --------------------------------------------------------------------------- */

struct ox_prometheus;
OX_MUST enum ox_status ox_prometheus_open(const char *folder, struct ox_prometheus **out);
/* Replaces the file. Takes NULL, as the next one. */
void ox_prometheus_step(struct ox_prometheus *prometheus, const struct ox_step_report *report);
void ox_prometheus_eval(struct ox_prometheus *prometheus, const struct ox_eval_report *report);
void ox_prometheus_close(struct ox_prometheus **prometheus);

#ifdef __cplusplus
}
#endif
#endif
