/* How often a state that lives in memory is persisted: as rarely as its cost asks for, and no rarer. A pure function of
 * measured times; no bit depends on what it says. */
#ifndef OX_ENGINE_PERSIST_H
#define OX_ENGINE_PERSIST_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_PERSIST_STEPS_MAX = 100, OX_PERSIST_TIMES = 7, OX_PERSIST_TIMES_LEAST = 3 };

/* The least number of steps, at most OX_PERSIST_STEPS_MAX, over which `extra` seconds once are 2 % of steps of
 * `seconds` each. */
uint64_t ox_persist_interval(double extra, double seconds);

/* The latest of each sort; zero: none yet. */
struct ox_persist_times {
    double seconds[OX_PERSIST_TIMES]; /* of steps that persist nothing */
    double extra[OX_PERSIST_TIMES];   /* what one that does took beyond their median then */
    uint32_t seconds_count, extra_count; /* so far, in a ring */
};
/* A step that took so long; `persisted`: the writes of a commit were within it. */
void ox_persist_note(struct ox_persist_times *times, bool persisted, double seconds);
/* By the medians; every second step while there are fewer than OX_PERSIST_TIMES_LEAST of either sort. */
uint64_t ox_persist_auto(const struct ox_persist_times *times);

#ifdef __cplusplus
}
#endif
#endif
