/* The thread pool: every share and item once per run, ranges that cover the whole, data that crosses between runs. */
#include "base/pool.h"
#include "tests/kit/test.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { THREADS_MAX = 4, SIZE = 4096 };

struct work {
    uint32_t calls[THREADS_MAX];
    uint32_t count_seen[THREADS_MAX];
    uint32_t values[SIZE]; /* plain, so that ThreadSanitizer sees a run that does not order its threads */
    uint32_t round;
    uint32_t bad_count[THREADS_MAX];
};

static void step(void *context, uint32_t idx, uint32_t count) {
    struct work *const work = context;
    work->calls[idx]++;
    work->count_seen[idx] = count;
    /* Each share reads in this round what another one wrote in the round before. */
    const struct ox_range range = ox_pool_range(SIZE, 64, (idx + work->round) % count, count);
    for (uint64_t i = range.begin; i < range.end; i++) {
        work->bad_count[idx] += work->values[i] != work->round;
        work->values[i]++;
    }
}

static void test_rounds(uint32_t thread_count) {
    enum { ROUNDS = 300 };
    struct ox_pool *pool = NULL;
    REQUIRE_OK(ox_pool_open(thread_count, &pool));
    CHECK(ox_pool_size(pool) == thread_count);
    static struct work work;
    memset(&work, 0, sizeof work);
    for (work.round = 0; work.round < ROUNDS; work.round++) {
        ox_pool_run(pool, step, &work);
    }
    for (uint32_t i = 0; i < thread_count; i++) {
        CHECK(work.calls[i] == ROUNDS && work.count_seen[i] == thread_count && work.bad_count[i] == 0);
    }
    for (uint32_t i = 0; i < SIZE; i++) {
        CHECK(work.values[i] == ROUNDS);
    }
    ox_pool_close(&pool);
    CHECK(pool == NULL);
    ox_pool_close(&pool);
}

enum { ITEMS = 61 };

struct list {
    uint32_t done[ITEMS]; /* plain: ThreadSanitizer sees an item that the caller does not wait for */
    uint32_t scratch[THREADS_MAX];
    uint32_t thread_count, bad_count[THREADS_MAX];
};

static void do_item(void *context, uint32_t item, uint32_t thread) {
    struct list *const list = context;
    if (item >= ITEMS || thread >= list->thread_count) {
        list->bad_count[0]++;
        return;
    }
    list->scratch[thread] = item;
    list->done[item]++;
    list->bad_count[thread] += list->scratch[thread] != item;
}

/* Rounds of items of all lengths, some too short for each thread to come in time, some after all have gone to sleep,
 * between rounds of shares. */
static void test_items(uint32_t thread_count) {
    enum { ROUNDS = 2000 };
    struct ox_pool *pool = NULL;
    REQUIRE_OK(ox_pool_open(thread_count, &pool));
    static struct list list;
    static struct work work;
    memset(&list, 0, sizeof list);
    memset(&work, 0, sizeof work);
    list.thread_count = thread_count;
    uint32_t expected[ITEMS] = {0};
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t count = round % (ITEMS + 1);
        ox_pool_items(pool, count, do_item, &list);
        for (uint32_t i = 0; i < ITEMS; i++) {
            expected[i] += i < count;
            CHECK(list.done[i] == expected[i]);
        }
        if (round % 16 == 0) {
            ox_pool_run(pool, step, &work);
            work.round++;
        }
        if (round % 200 == 0) {
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        }
    }
    for (uint32_t i = 0; i < thread_count; i++) {
        CHECK(list.bad_count[i] == 0 && work.bad_count[i] == 0 && work.calls[i] == work.round);
    }
    ox_pool_close(&pool);
}

static void test_range(void) {
    static const uint64_t totals[] = {0, 1, 63, 64, 65, 1000, 4096, 1000003};
    static const uint64_t grains[] = {1, 7, 64, 5000};
    for (unsigned t = 0; t < sizeof totals / sizeof *totals; t++) {
        for (unsigned g = 0; g < sizeof grains / sizeof *grains; g++) {
            for (uint32_t count = 1; count <= 9; count++) {
                uint64_t at = 0, largest = 0, smallest = UINT64_MAX;
                for (uint32_t idx = 0; idx < count; idx++) {
                    const struct ox_range range = ox_pool_range(totals[t], grains[g], idx, count);
                    CHECK(range.begin == at && range.end >= range.begin);
                    CHECK(range.end == totals[t] || range.end % grains[g] == 0);
                    at = range.end;
                    const uint64_t size = range.end - range.begin;
                    largest = size > largest ? size : largest;
                    smallest = size < smallest ? size : smallest;
                }
                CHECK(at == totals[t]);
                CHECK(largest - smallest < 2 * grains[g]); /* even, but for the grain and a short end */
            }
        }
    }
}

static void count_up(void *context, uint32_t idx, uint32_t count) {
    (void)idx;
    (void)count;
    atomic_fetch_add((_Atomic uint32_t *)context, 1);
}

/* Opening and closing, with and without a run between. */
static void test_lifetime(void) {
    for (uint32_t i = 0; i < 20; i++) {
        struct ox_pool *pool = NULL;
        _Atomic uint32_t calls = 0;
        REQUIRE_OK(ox_pool_open(1 + i % THREADS_MAX, &pool));
        if (i % 2 == 0) {
            ox_pool_run(pool, count_up, &calls);
            CHECK(calls == 1 + i % THREADS_MAX);
        }
        ox_pool_close(&pool);
    }
}

int main(void) {
    for (uint32_t threads = 1; threads <= THREADS_MAX; threads++) {
        test_rounds(threads);
        test_items(threads);
    }
    test_range();
    test_lifetime();
    return test_end();
}
