#include "engine/run/persist.h"

#include <math.h>

/* The share of all time that persisting may take. */
static const double SHARE_MAX = 0.02;

uint64_t ox_persist_interval(double extra, double seconds) {
    const double steps = ceil(extra / (SHARE_MAX * seconds));
    if (!(steps > 1)) { /* true for NaN as well */
        return 1;
    }
    return steps < OX_PERSIST_STEPS_MAX ? (uint64_t)steps : OX_PERSIST_STEPS_MAX;
}

/* The median of the `count` latest times in a ring, at least one; the lower one if there are two in the middle. */
static double median(const double ring[OX_PERSIST_TIMES], uint32_t count) {
    double sorted[OX_PERSIST_TIMES];
    const uint32_t held = count < OX_PERSIST_TIMES ? count : OX_PERSIST_TIMES;
    for (uint32_t i = 0; i < held; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > ring[i]; at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = ring[i];
    }
    return sorted[(held - 1) / 2];
}

void ox_persist_note(struct ox_persist_times *times, bool persisted, double seconds) {
    if (!persisted) {
        times->seconds[times->seconds_count++ % OX_PERSIST_TIMES] = seconds;
    } else if (times->seconds_count > 0) {
        times->extra[times->extra_count++ % OX_PERSIST_TIMES] = seconds - median(times->seconds, times->seconds_count);
    }
}

uint64_t ox_persist_auto(const struct ox_persist_times *times) {
    if (times->seconds_count < OX_PERSIST_TIMES_LEAST || times->extra_count < OX_PERSIST_TIMES_LEAST) {
        return 2;
    }
    return ox_persist_interval(median(times->extra, times->extra_count), median(times->seconds, times->seconds_count));
}
