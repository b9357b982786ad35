#include "engine/run/schedule.h"

#include <math.h>

struct ox_schedule ox_schedule_of(const struct ox_config *config, uint64_t total_steps) {
    const uint64_t by_ratio = (uint64_t)ceil(config->warmup_ratio * (double)total_steps);
    return (struct ox_schedule){
        .type = config->lr_scheduler_type,
        .peak = config->learning_rate,
        .min_ratio = config->min_lr_ratio,
        .warmup = config->warmup_steps > 0 ? config->warmup_steps : by_ratio,
        .total = total_steps,
        .decay = config->decay_steps > 0 ? config->decay_steps : (total_steps + 9) / 10,
    };
}

/* Share of [begin, end) that lies before `step`, in [0, 1]. */
static double progress(uint64_t step, uint64_t begin, uint64_t end) {
    if (step <= begin) {
        return 0;
    }
    return step >= end ? 1 : (double)(step - begin) / (double)(end - begin);
}

double ox_schedule_rate(const struct ox_schedule *schedule, uint64_t step) {
    if (step < schedule->warmup) {
        return schedule->peak * (double)(step + 1) / (double)schedule->warmup;
    }
    const double floor = schedule->min_ratio, span = 1 - floor;
    const double over = progress(step, schedule->warmup, schedule->total);
    const uint64_t decay_begin = schedule->total > schedule->decay ? schedule->total - schedule->decay : 0;
    switch (schedule->type) {
    case OX_LR_CONSTANT:
        return schedule->peak;
    case OX_LR_LINEAR:
        return schedule->peak * (floor + span * (1 - over));
    case OX_LR_COSINE:
        return schedule->peak * (floor + span * 0.5 * (1 + cos(M_PI * over)));
    case OX_LR_WSD:
        return schedule->peak * (1 - span * progress(step, decay_begin, schedule->total));
    }
    return schedule->peak;
}
