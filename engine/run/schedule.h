/* The learning rate as a function of the step. */
#ifndef OX_ENGINE_SCHEDULE_H
#define OX_ENGINE_SCHEDULE_H

#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_schedule {
    enum ox_lr_schedule type;
    double peak;       /* learning rate after the warmup                    */
    double min_ratio;  /* end of the decay, as a share of the peak           */
    uint64_t warmup;   /* steps: step s has peak * (s + 1) / warmup          */
    uint64_t total;    /* steps of the run                                   */
    uint64_t decay;    /* wsd: steps of the final, linear decay              */
};

/* The schedule of a validated configuration for a known number of steps. */
struct ox_schedule ox_schedule_of(const struct ox_config *config, uint64_t total_steps);

/* Learning rate of step `step`, from 0. With p the share of the steps after the warmup that is over:
 *   linear  min + (1 - min) (1 - p)        cosine  min + (1 - min) (1 + cos(pi p)) / 2
 *   wsd     1, then linear to min over the last `decay` steps   (Hu et al., arXiv 2404.06395)
 * After `total` steps it stays at the end value. */
double ox_schedule_rate(const struct ox_schedule *schedule, uint64_t step);

#ifdef __cplusplus
}
#endif
#endif
