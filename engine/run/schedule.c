#include "engine/run/schedule.h"

#include "base/bytes.h"

#include <math.h>

static uint64_t steps_for(uint64_t rows, uint64_t step_rows) {
    return (rows + step_rows - 1) / step_rows;
}

uint64_t ox_schedule_steps_left(double epochs, uint64_t rows, uint64_t step_rows, uint64_t cursor) {
    const uint64_t each = steps_for(rows, step_rows), epoch = cursor / rows, taken = cursor % rows;
    const double wanted = ceil(epochs * (double)each);
    const uint64_t total = wanted > 1 ? (uint64_t)wanted : 1;
    const uint64_t last = total / each, of_last = total % each; /* the epoch that is not whole, and its steps */
    if (epoch < last) {
        return steps_for(rows - taken, step_rows) + (last - epoch - 1) * each + of_last;
    }
    const uint64_t end = ox_min_u64(rows, of_last * step_rows);
    return epoch > last || taken >= end ? 0 : steps_for(end - taken, step_rows);
}

double ox_schedule_epoch(uint64_t rows, uint64_t batch, uint64_t cursor) {
    return (double)(cursor / rows) + (double)steps_for(cursor % rows, batch) / (double)steps_for(rows, batch);
}

/* The end of the decay as a share of the peak. */
static double floor_of(const struct ox_config *config) {
    const double polynomial_end = 1e-7; /* lr_end of transformers */
    if (config->optim.min_lr_ratio > 0 || config->optim.learning_rate == 0) {
        return config->optim.min_lr_ratio;
    }
    const bool own = config->optim.min_lr == 0 && config->optim.lr_scheduler_type == OX_LR_POLYNOMIAL;
    return fmin(1, (own ? polynomial_end : config->optim.min_lr) / config->optim.learning_rate);
}

struct ox_rate_schedule ox_schedule_of(const struct ox_config *config, uint64_t total_steps) {
    const enum ox_lr_schedule type = config->optim.lr_scheduler_type;
    const uint64_t by_ratio = (uint64_t)ceil(config->optim.warmup_ratio * (double)total_steps);
    const uint64_t warmup = config->optim.warmup_steps > 0 ? (uint64_t)config->optim.warmup_steps : by_ratio;
    return (struct ox_rate_schedule){
        .type = type,
        .decay_type = config->optim.lr_decay_type != OX_DECAY_AUTO ? config->optim.lr_decay_type
                      : type == OX_LR_WSD                          ? OX_DECAY_LINEAR
                                                                   : OX_DECAY_COSINE,
        .peak = config->optim.learning_rate,
        .floor = floor_of(config),
        .cycles = config->optim.lr_num_cycles > 0      ? config->optim.lr_num_cycles
                  : type == OX_LR_COSINE_WITH_RESTARTS ? 1
                                                       : 0.5,
        .power = config->optim.lr_power,
        .warmup = type == OX_LR_CONSTANT ? 0 : warmup,
        .warms_by_share = config->optim.warmup_steps <= 0,
        .total = total_steps,
        .decay = config->optim.decay_steps > 0 ? config->optim.decay_steps : (total_steps + 9) / 10,
        .timescale = config->optim.lr_timescale > 0 ? config->optim.lr_timescale
                     : warmup > 0                   ? warmup
                                                    : 10000,
    };
}

/* Share of [begin, end) that lies before `step`, in [0, 1]. */
static double progress(uint64_t step, uint64_t begin, uint64_t end) {
    if (step <= begin) {
        return 0;
    }
    return step >= end ? 1 : (double)(step - begin) / (double)(end - begin);
}

static double wave(double turns) {
    return 0.5 * (1 + cos(M_PI * turns));
}

/* What is left of the peak above the floor, in [0, 1], when the share `over` of a final decay is over. */
static double left_of_decay(const struct ox_rate_schedule *schedule, double over) {
    return schedule->decay_type == OX_DECAY_LINEAR   ? 1 - over
           : schedule->decay_type == OX_DECAY_COSINE ? wave(2 * schedule->cycles * over)
                                                     : 1 - sqrt(over);
}

/* The step of `total` where the same share of the data is over. */
static uint64_t place_of(const struct ox_rate_schedule *schedule, uint64_t step) {
    const int64_t shifted = (int64_t)step - schedule->offset;
    return shifted > 0 ? (uint64_t)shifted : 0;
}

/* What is left of the peak above the floor, in [0, 1], `past` steps after the warmup. */
static double left(const struct ox_rate_schedule *schedule, uint64_t step, uint64_t past) {
    const uint64_t at = place_of(schedule, step);
    const double over = progress(at, schedule->warmup, schedule->total);
    const uint64_t decay_begin = schedule->total > schedule->decay ? schedule->total - schedule->decay : 0;
    switch (schedule->type) {
    case OX_LR_LINEAR:
        return 1 - over;
    case OX_LR_COSINE:
    case OX_LR_COSINE_WITH_MIN_LR:
        return wave(2 * schedule->cycles * over);
    case OX_LR_COSINE_WARMUP_WITH_MIN_LR:
        return wave(2 * schedule->cycles * progress(at + 1, schedule->warmup, schedule->total));
    case OX_LR_COSINE_WITH_RESTARTS:
        return over < 1 ? wave(fmod(schedule->cycles * over, 1)) : 0;
    case OX_LR_POLYNOMIAL:
        return pow(1 - over, schedule->power);
    case OX_LR_WSD:
    case OX_LR_WARMUP_STABLE_DECAY:
        return at < schedule->total ? left_of_decay(schedule, progress(at, decay_begin, schedule->total)) : 0;
    case OX_LR_INVERSE_SQRT:
        return 1 / sqrt(1 + (double)past / (double)schedule->timescale);
    case OX_LR_CONSTANT:
    case OX_LR_CONSTANT_WITH_WARMUP:
        break;
    }
    return 1;
}

double ox_schedule_rate(const struct ox_rate_schedule *schedule, uint64_t step) {
    const double floor = schedule->floor, span = 1 - floor;
    const uint64_t warm = schedule->warms_by_share ? place_of(schedule, step) : step;
    if (warm < schedule->warmup) {
        const bool ahead = schedule->from_one || schedule->type == OX_LR_COSINE_WARMUP_WITH_MIN_LR;
        const double begin = schedule->type == OX_LR_WARMUP_STABLE_DECAY ? floor : 0;
        return schedule->peak * (begin + (1 - begin) * (double)(warm + ahead) / (double)schedule->warmup);
    }
    return schedule->peak * (floor + span * left(schedule, step, warm - schedule->warmup));
}

bool ox_loss_scale_step(uint16_t *scale_code, uint32_t *growth_tracker, uint64_t window, bool overflow) {
    enum { CODE_LEAST = 1, CODE_MOST = 128 }; /* 1 and 2^127 */
    if (overflow) {
        *growth_tracker = 0;
        if (*scale_code == CODE_LEAST) {
            return false;
        }
        (*scale_code)--;
    } else if (++*growth_tracker >= window) {
        *growth_tracker = 0;
        *scale_code += *scale_code < CODE_MOST;
    }
    return true;
}
