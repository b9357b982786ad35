/* Forecasts wear in doubles: they are precise enough, and nothing overflows. */
#include "nvme/wear.h"

#include "base/bytes.h"

#include <stdio.h>
#include <string.h>

#define DAY_SECONDS 86400.0

void ox_wear_forecast(const struct ox_wear *wear, struct ox_wear_forecast *out) {
    memset(out, 0, sizeof *out);
    const double step = (double)wear->step_bytes, rated = (double)wear->rated_bytes;
    const double left = wear->rated_bytes > wear->gone_bytes ? rated - (double)wear->gone_bytes : 0.0;
    out->run_bytes = step * (double)wear->step_count;
    out->day_bytes = wear->step_seconds > 0.0 ? step * (DAY_SECONDS / wear->step_seconds) : 0.0;
    if (wear->rated_bytes == 0 || wear->step_bytes == 0) {
        return;
    }
    out->step_share = step / rated;
    out->run_share = out->run_bytes / rated;
    out->day_share = out->day_bytes / rated;
    out->steps_left = left / step;
    out->days_left = out->day_bytes > 0.0 ? left / out->day_bytes : 0.0;
}

bool ox_wear_exceeds(const struct ox_wear *wear, double share_max) {
    struct ox_wear_forecast forecast;
    ox_wear_forecast(wear, &forecast);
    return wear->rated_bytes > 0 && forecast.run_share > share_max;
}

/* Writes bytes in decimal units, as makers rate drives. */
static const char *amount(double bytes, char *text, size_t text_bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    unsigned unit = 0;
    while (bytes >= 1000.0 && unit + 1 < sizeof units / sizeof *units) {
        bytes /= 1000.0;
        unit++;
    }
    snprintf(text, text_bytes, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return text;
}

const char *ox_wear_text(const struct ox_wear *wear, char *text) {
    struct ox_wear_forecast forecast;
    char step[32], run[32], rated[32];
    ox_wear_forecast(wear, &forecast);
    size_t len = (size_t)snprintf(text, OX_WEAR_TEXT_BYTES, "writes %s per step, %s in %llu step%s",
                                  amount((double)wear->step_bytes, step, sizeof step),
                                  amount(forecast.run_bytes, run, sizeof run), (unsigned long long)wear->step_count,
                                  ox_plural(wear->step_count));
    if (wear->rated_bytes > 0) {
        len += (size_t)snprintf(text + len, OX_WEAR_TEXT_BYTES - len, ": %.3g %% of its rated %s",
                                100.0 * forecast.run_share, amount((double)wear->rated_bytes, rated, sizeof rated));
    }
    if (forecast.days_left > 0.0) {
        snprintf(text + len, OX_WEAR_TEXT_BYTES - len, ", %.3g %% per day, used up in %.0f days at this rate",
                 100.0 * forecast.day_share, forecast.days_left);
    }
    return text;
}
