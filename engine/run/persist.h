/* How often a state that lives in memory is persisted: so rarely that it costs a small share of the time, and no rarer.
 * A pure function of measured times; no bit of a result depends on it. */
#ifndef OX_ENGINE_PERSIST_H
#define OX_ENGINE_PERSIST_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_PERSIST_STEPS_MAX = 100, OX_PERSIST_TIMES = 7, OX_PERSIST_TIMES_LEAST = 3 };

/* The smallest interval, at most OX_PERSIST_STEPS_MAX steps of `seconds` each, of whose time `extra` seconds are at
 * most
 * 2 %. */
uint64_t ox_persist_interval(double extra, double seconds);

/* The latest measured times; all zero at first. */
struct ox_persist_times {
    double seconds[OX_PERSIST_TIMES]; /* times of steps that persist nothing */
    double extra[OX_PERSIST_TIMES];   /* what steps that persist took beyond the median of the others */
    uint32_t seconds_count, extra_count; /* numbers noted so far; both lists are rings */
};
/* Notes the time of a step; `persisted`: a commit was written within it. */
void ox_persist_note(struct ox_persist_times *times, bool persisted, double seconds);
/* The interval by the medians; 2 steps while either list has fewer than OX_PERSIST_TIMES_LEAST times. */
uint64_t ox_persist_auto(const struct ox_persist_times *times);

/* Whether a commit every `steps` steps is to be told, when every `told` (0: none) was told last: at first, and where a
 * crash may lose twice as much as was said. */
bool ox_persist_is_news(uint64_t steps, uint64_t told);

#ifdef __cplusplus
}
#endif
#endif
