/* The interval at which a state in memory is persisted, as a function of measured times: cases by hand, and noise that
 * must not change it. */
#include "engine/run/predict.h"
#include "tests/kit/test.h"

#include <math.h>

static void intervals(void) {
    CHECK(ox_persist_interval(0.02, 1) == 1 && ox_persist_interval(0.021, 1) == 2);
    CHECK(ox_persist_interval(0.5, 1) == 25 && ox_persist_interval(0.501, 1) == 26);
    CHECK(ox_persist_interval(2, 1) == 100 && ox_persist_interval(1e9, 1) == 100);
    CHECK(ox_persist_interval(0, 1) == 1 && ox_persist_interval(-3, 1) == 1);
    CHECK(ox_persist_interval(1, 0) == 100 && ox_persist_interval(0, 0) == 1 && ox_persist_interval(NAN, 1) == 1);
}

/* Pairs of steps, the second of which persists. */
static void note(struct ox_persist_times *times, uint32_t pairs, double seconds, double extra) {
    for (uint32_t i = 0; i < pairs; i++) {
        ox_persist_note(times, false, seconds);
        ox_persist_note(times, true, seconds + extra);
    }
}

static void decisions(void) {
    struct ox_persist_times times = {0};
    CHECK(ox_persist_auto(&times) == 2);
    ox_persist_note(&times, true, 9); /* with nothing to compare it with */
    CHECK(times.extra_count == 0);
    note(&times, 2, 1, 0.25);
    CHECK(ox_persist_auto(&times) == 2);
    note(&times, 1, 1, 0.25);
    CHECK(ox_persist_auto(&times) == 13);
    for (uint32_t i = 0; i < 3; i++) { /* outliers of either sort, less than half of those that are held */
        ox_persist_note(&times, false, 30);
        ox_persist_note(&times, true, 50);
        note(&times, 1, 1, 0.25);
    }
    CHECK(ox_persist_auto(&times) == 13);
    note(&times, OX_PERSIST_TIMES, 2, 0.01); /* what was before is forgotten */
    CHECK(ox_persist_auto(&times) == 1);
    for (uint32_t i = 0; i < OX_PERSIST_TIMES; i++) { /* when every step persists, a slower drive shows all the same */
        ox_persist_note(&times, true, 3);
    }
    CHECK(ox_persist_auto(&times) == 25);
}

/* Twelve lines were printed by a run whose measured times went up and down. */
static void news(void) {
    static const uint64_t found[] = {2, 71, 33, 90, 20, 71, 100, 12, 60, 1, 99, 40};
    uint64_t told = 0;
    unsigned lines = 0;
    for (unsigned i = 0; i < sizeof found / sizeof *found; i++) {
        const bool is_news = ox_persist_is_news(found[i], told);
        lines += is_news;
        told = is_news ? found[i] : told;
    }
    CHECK(lines == 2 && told == 71);
}

int main(void) {
    intervals();
    news();
    decisions();
    return test_end();
}
