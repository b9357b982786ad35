/* The metrics of a run for other programs: an events file for TensorBoard, and a text file that Prometheus' node
 * exporter collects. The trainer writes them next to metrics.jsonl. If a file cannot be written, it is given up with
 * one warning and the run goes on. */
#ifndef OX_ENGINE_SCALARS_H
#define OX_ENGINE_SCALARS_H

#include "engine/report/metrics.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- TensorBoard: events.out.tfevents.<seconds>.offload ------------------------------------------------ */

struct ox_tensorboard;
/* Starts a new file in the folder, one per process. Its first event tells TensorBoard to discard what earlier files say
 * of steps after `step`. */
OX_MUST enum ox_status ox_tensorboard_open(const char *folder, uint64_t step, struct ox_tensorboard **out);
/* Append the numbers of a step or an evaluation. Both do nothing if `board` is NULL. */
void ox_tensorboard_step(struct ox_tensorboard *board, const struct ox_step_report *report);
void ox_tensorboard_eval(struct ox_tensorboard *board, const struct ox_eval_report *report);
void ox_tensorboard_close(struct ox_tensorboard **board);
/* Whether `name` is the name of a file that ox_tensorboard_open makes. */
bool ox_tensorboard_is_ours(const char *name);

/* ---- Prometheus: metrics.prom --------------------------------------------------------------------------- */

struct ox_prometheus;
OX_MUST enum ox_status ox_prometheus_open(const char *folder, struct ox_prometheus **out);
/* Replace the file with the latest numbers. Both do nothing if `prometheus` is NULL. */
void ox_prometheus_step(struct ox_prometheus *prometheus, const struct ox_step_report *report);
void ox_prometheus_eval(struct ox_prometheus *prometheus, const struct ox_eval_report *report);
void ox_prometheus_close(struct ox_prometheus **prometheus);

#ifdef __cplusplus
}
#endif
#endif
