/* metrics.jsonl: one JSON object per line, flushed at once; floats are printed so that they read back to the same
 * bits. A line that the disk refuses is dropped and counted, and a warning tells of the first and of the total:
 * logging never stops a run, and the file holds whole lines alone. */
#ifndef OX_ENGINE_METRICS_H
#define OX_ENGINE_METRICS_H

#include "engine/step/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_step_report {
    uint64_t step, max_steps;
    double learning_rate;
    uint64_t tokens;          /* counted targets of this step                              */
    uint64_t tokens_seen;
    double wall_seconds;      /* data and step; the step's own seconds are in the result    */
    double predicted_seconds; /* of the step; null when it is not a number                  */
    struct ox_step_result result;
};

struct ox_eval_report {
    uint64_t step;
    double loss;       /* mean negative log-likelihood per token, natural logarithm */
    double perplexity;
    uint64_t tokens;
    double seconds;           /* data and batches, with the update of the step before where that was pending */
    double predicted_seconds; /* of the same; null when it is not a number */
    bool with_update;
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
};

/* What no step's line has. */
struct ox_end_report {
    uint64_t step;
    uint64_t retry_count;            /* steps taken again after a drive failed */
    uint64_t store_read_bytes, store_write_bytes; /* all that crossed the drives' links since the store was opened */
    uint32_t store_reread_count;     /* reads repeated after a bad checksum */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]; /* of an update settled after the last step */
};

/* Share of the step in which the compute lane waited for other lanes or for nothing to do. */
double ox_step_stall_share(const struct ox_step_report *report);

struct ox_metrics;
/* Opens <folder>/metrics.jsonl for appending; lines of steps after `step` (an earlier run that got further than
 * its last commit) and an unfinished last line are cut off first, in bounded memory whatever the file's size. */
OX_MUST enum ox_status ox_metrics_open(const char *folder, uint64_t step, struct ox_metrics **out);
/* What the file ends with: the last step, and the last evaluation if it stands after that step; 0 = none. */
struct ox_metrics_last {
    uint64_t step, eval_step;
    double eval_loss;
};
void ox_metrics_last(const struct ox_metrics *metrics, struct ox_metrics_last *out);
/* `seconds` is null when wall_seconds is not a number. */
void ox_metrics_step(struct ox_metrics *metrics, const struct ox_step_report *report);
void ox_metrics_eval(struct ox_metrics *metrics, const struct ox_eval_report *report);
void ox_metrics_end(struct ox_metrics *metrics, const struct ox_end_report *report);
uint64_t ox_metrics_dropped(const struct ox_metrics *metrics);
void ox_metrics_close(struct ox_metrics **metrics);

#ifdef __cplusplus
}
#endif
#endif
