/* What changes from step to step: the learning rate and the loss scale, equal to those of transformers and PyTorch.
 *
 * The learning rate as a function of the step, equal to that of transformers' schedules of the same names. */
#ifndef OX_ENGINE_SCHEDULE_H
#define OX_ENGINE_SCHEDULE_H

#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_rate_schedule {
    enum ox_lr_schedule type;
    enum ox_lr_decay decay_type; /* shape of the final decay */
    double peak;                 /* learning rate after the warmup */
    double floor;                /* end of the decay, as a share of the peak */
    double cycles, power;
    uint64_t warmup;    /* steps: step s has peak * s / warmup */
    uint64_t total;     /* steps of the run */
    uint64_t decay;     /* steps of the final decay */
    uint64_t timescale; /* inverse_sqrt: steps */
    int64_t offset;     /* of a run that changed the size of its steps: after the warmup, step s of the run has the rate
                           that step s - offset of `total` has, where the same share of the data is over */
    bool warms_by_share; /* the warmup is a share of all steps, so its steps are shifted alike; else it is so many */
    bool from_one;      /* an old run: step s of the warmup has peak * (s + 1) / warmup */
};

/* How many steps of `step_rows` rows take what is left of `epochs` of `rows` rows, both above 0, when `cursor` rows are
 * taken. The last step of an epoch has what is left of it. A run of a part of an epoch takes that part of its steps,
 * rounded up, and at least one, as in the Trainer. */
uint64_t ox_schedule_steps_left(double epochs, uint64_t rows, uint64_t step_rows, uint64_t cursor);

/* How much of the data is taken with `cursor` rows, as the Trainer counts it: whole epochs, and of the next one the
 * share of its micro-batches of `batch` rows, the last of which may be partial. */
double ox_schedule_epoch(uint64_t rows, uint64_t batch, uint64_t cursor);

/* The schedule of a validated configuration for a known number of steps. */
struct ox_rate_schedule ox_schedule_of(const struct ox_config *config, uint64_t total_steps);

/* Learning rate of step `step`, from 0. With p the share of the steps after the warmup that is over, m the floor and
 * F(x) = m + (1 - m) x, the peak is multiplied by:
 *   linear                     F(1 - p)
 *   cosine, cosine_with_min_lr F((1 + cos(2 pi cycles p)) / 2)
 *   cosine_warmup_with_min_lr  the same one step ahead, in the warmup too
 *   cosine_with_restarts       F((1 + cos(pi frac(cycles p))) / 2)
 *   polynomial                 F((1 - p)^power)
 *   inverse_sqrt               F(1 / sqrt(1 + (step - warmup) / timescale)), in steps of the run, however many it has
 *   wsd, warmup_stable_decay   1, then F of the decay over the last `decay` steps (Hu et al., arXiv 2404.06395); the
 *                              warmup of the latter begins at m
 * After `total` steps it stays at the end value. */
double ox_schedule_rate(const struct ox_rate_schedule *schedule, uint64_t step);

/* Moves the loss scale as torch.amp.GradScaler does at the end of a step: an overflow halves it; `window` steps in a
 * row without one double it, unless it would be infinite in fp32. Returns false, and leaves it, where it would fall
 * below 1. `scale_code` and `growth_tracker` are those of struct ox_run_state, and the scale is not 0. */
bool ox_loss_scale_step(uint16_t *scale_code, uint32_t *growth_tracker, uint64_t window, bool overflow);

#ifdef __cplusplus
}
#endif
#endif
