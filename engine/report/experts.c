#include "engine/report/experts.h"

#include "base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static const double *layer_load(const struct ox_router_report *report, uint32_t layer) {
    return report->loads + (size_t)layer * report->stride;
}

double ox_expert_even_load(const struct ox_router_report *report, uint32_t layer) {
    return layer_load(report, layer)[report->rows_at] * report->chosen / report->experts;
}

double ox_expert_load(const struct ox_router_report *report, uint32_t layer, uint32_t expert) {
    double load = 0;
    for (uint32_t i = 0; i < report->layers; i++) {
        load += layer == i || layer == OX_ALL_LAYERS ? layer_load(report, i)[expert] : 0;
    }
    return load;
}

void ox_expert_use_of(const struct ox_router_report *report, struct ox_expert_use *out) {
    *out = (struct ox_expert_use){0};
    for (uint32_t layer = 0; layer < report->layers; layer++) {
        const double *const counts = layer_load(report, layer), even = ox_expert_even_load(report, layer);
        for (uint32_t e = 0; e < report->experts; e++) {
            out->idle_share += counts[e] == 0;
            if (counts[e] > out->busiest * even) {
                *out = (struct ox_expert_use){out->idle_share, counts[e] / even, layer, e};
            }
        }
    }
    out->idle_share /= (double)report->layers * report->experts;
}

/* ---- warnings ---- */

struct expert {
    double missed;  /* tokens of an even share since it has had one */
    uint32_t taken; /* steps in a row in which it had too many */
};

struct ox_expert_watch {
    uint32_t count; /* layers * experts */
    uint32_t dead, taken, told_dead, told_taken;
    struct expert experts[];
};

static void open_watch(struct ox_expert_watch **watch, const struct ox_router_report *report) {
    const uint32_t count = report->layers * report->experts;
    *watch = calloc(1, sizeof **watch + count * sizeof *(*watch)->experts);
    if (*watch != NULL) {
        (*watch)->count = count;
    }
}

static void follow(struct ox_expert_watch *watch, const struct ox_router_report *report, uint32_t first[2]) {
    watch->dead = watch->taken = 0;
    for (uint32_t i = 0; i < watch->count; i++) {
        const uint32_t layer = i / report->experts;
        const double *const loads = layer_load(report, layer);
        const double load = loads[i % report->experts], even = ox_expert_even_load(report, layer);
        struct expert *const expert = &watch->experts[i];
        const double too_many = fmin(OX_TAKEN_EVEN * even, OX_TAKEN_SHARE * loads[report->rows_at]);
        expert->missed = load > 0 ? 0 : expert->missed + even;
        expert->taken = load > even && load >= too_many ? expert->taken + 1 : 0;
        const bool is[] = {expert->missed >= OX_DEAD_TOKENS, expert->taken >= OX_TAKEN_STEPS};
        first[0] = is[0] && watch->dead == 0 ? i : first[0];
        first[1] = is[1] && watch->taken == 0 ? i : first[1];
        watch->dead += is[0];
        watch->taken += is[1];
    }
}

void ox_expert_watch_step(struct ox_expert_watch **watch_ptr, uint64_t step, const struct ox_router_report *report,
                          double balance) {
    const char *const remedy = balance > 0 ? "a larger --router-aux-loss-coef balances them more"
                                           : "--router-aux-loss-coef balances them";
    uint32_t first[2] = {0};
    if (report->layers == 0) {
        return;
    }
    if (*watch_ptr == NULL) {
        open_watch(watch_ptr, report);
    }
    struct ox_expert_watch *const watch = *watch_ptr;
    if (watch == NULL) {
        return;
    }
    follow(watch, report, first);
    if (watch->dead > 0 && watch->dead >= 2 * watch->told_dead) {
        watch->told_dead = watch->dead;
        ox_log(OX_LOG_WARN, "step %" PRIu64 ": %u of %u experts get no tokens, of which an even share were %d or more; "
               "the first is expert %u of the mixture %u; %s", step, watch->dead, watch->count, OX_DEAD_TOKENS,
               first[0] % report->experts, first[0] / report->experts, remedy);
    }
    if (watch->taken > 0 && watch->taken >= 2 * watch->told_taken) {
        watch->told_taken = watch->taken;
        ox_log(OX_LOG_WARN, "step %" PRIu64 ": expert %u of the mixture %u takes over: for %d steps it has had %.0f "
               "times an even share of tokens, or nearly all; %u such expert%s; %s",
               step, first[1] % report->experts, first[1] / report->experts, OX_TAKEN_STEPS,
               ox_expert_load(report, first[1] / report->experts, first[1] % report->experts) /
                   ox_expert_even_load(report, first[1] / report->experts),
               watch->taken, watch->taken == 1 ? "" : "s", remedy);
    }
}

uint32_t ox_expert_watch_dead(const struct ox_expert_watch *watch) {
    return watch->dead;
}

uint32_t ox_expert_watch_taken(const struct ox_expert_watch *watch) {
    return watch->taken;
}

void ox_expert_watch_close(struct ox_expert_watch **watch) {
    free(*watch);
    *watch = NULL;
}
