/* Options of steps, which may be shares of all. */
#include "engine/config/config.h"

#include <math.h>

uint64_t ox_config_steps(double given, uint64_t total_steps) {
    return (uint64_t)(given < 1 ? ceil(given * (double)total_steps) : given);
}

void ox_config_count_steps(struct ox_config *config, uint64_t total_steps) {
    uint32_t count = 0;
    const struct ox_option *const options = ox_options(&count);
    for (uint32_t i = 0; total_steps > 0 && i < count; i++) {
        const bool steps = options[i].type == OX_OPT_STEPS;
        double *const value = steps ? (double *)(void *)((char *)config + options[i].offset) : NULL;
        if (steps && *value > 0 && *value < 1) {
            *value = (double)ox_config_steps(*value, total_steps);
        }
    }
}
