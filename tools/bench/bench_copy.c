/* `offload bench copy`: measures reading, writing and copying memory by plain loops with ordinary loads and stores.
 * Bytes are those the program moves: a copy counts twice, cache lines fetched before a write do not count. */
#include "tools/bench/bench_device.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"

#include <inttypes.h>
#include <string.h>

enum { LINE = 64, GRAIN = 64, SUMS = 64, WORK_COUNT = 3 };

struct copying {
    struct ox_arena arena;
    struct ox_bench_loop loop;
    uint64_t lines; /* in each half */
    uint32_t rounds;
    uint64_t sums[SUMS];
};

static const struct {
    const char *name;
    enum ox_bench_loop_kind kind;
    unsigned directions;
} works[WORK_COUNT] = {{"read", OX_BENCH_LOOP_READ, 1}, {"write", OX_BENCH_LOOP_WRITE, 1},
                       {"copy", OX_BENCH_LOOP_COPY, 2}};

static void share(void *context, uint32_t idx, uint32_t count) {
    struct copying *const copying = context;
    const uint64_t sum = ox_bench_loop_run(&copying->loop, ox_pool_range(copying->lines, GRAIN, idx, count));
    if (idx < SUMS) {
        copying->sums[idx] += sum;
    }
}

/* Returns bytes per second. */
static double run_once(struct copying *copying, struct ox_pool *pool, unsigned work) {
    copying->loop.kind = works[work].kind;
    const uint64_t begin_ns = ox_clock_ns();
    ox_pool_run(pool, share, copying);
    const double seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    return (double)(copying->lines * LINE * works[work].directions) / seconds;
}

static enum ox_status measure(struct ox_bench *bench, struct copying *copying, uint32_t threads) {
    double rates[WORK_COUNT][OX_BENCH_ROUNDS_MAX];
    struct ox_pool *pool = NULL;
    OX_TRY(ox_pool_open(threads, &pool));
    for (unsigned work = 0; work < WORK_COUNT; work++) {
        run_once(copying, pool, work);
    }
    for (uint32_t i = 0; i < copying->rounds; i++) {
        for (unsigned work = 0; work < WORK_COUNT; work++) {
            rates[work][i] = run_once(copying, pool, work);
        }
    }
    for (unsigned work = 0; work < WORK_COUNT; work++) {
        const double rate = ox_probe_median(rates[work], copying->rounds);
        ox_bench_add(bench, &(struct ox_bench_figure){.value = rate, .unit = "B/s"}, "copy.%s.threads_%" PRIu32,
                     works[work].name, threads);
    }
    ox_pool_close(&pool);
    return OX_OK;
}

enum ox_status ox_bench_copy(struct ox_bench *bench) {
    const uint64_t least = 2 * LINE * GRAIN, requested = bench->config->bench.size_bytes;
    const uint64_t bytes = requested != 0 ? requested / least * least : bench->brief ? OX_GIB / 2 : OX_GIB;
    struct copying copying = {.lines = bytes / 2 / LINE, .rounds = ox_bench_rounds(bench, 9, 3)};
    if (bytes == 0) {
        return ox_fail(OX_E_CONFIG, "--size: %" PRIu64 " bytes are too few; give at least %" PRIu64 "B", requested,
                       least);
    }
    enum ox_status status = ox_bench_arena_open("copy", bytes, &copying.arena);
    if (status != OX_OK) {
        return status;
    }
    copying.loop.to = copying.arena.base;
    copying.loop.from = copying.arena.base + bytes / 2;
    memset(copying.arena.base, 1, bytes);
    uint32_t counts[OX_BENCH_THREAD_COUNTS_MAX];
    const uint32_t count = ox_bench_thread_counts(ox_bench_threads(bench->config->place.compute_threads), counts);
    char size[OX_SIZE_TEXT_BYTES];
    ox_bench_note(bench, "copy: two halves of %s, median of %" PRIu32 " rounds", ox_size_text(bytes / 2, size),
                  copying.rounds);
    struct ox_probe_load meter;
    ox_probe_load_begin(&meter);
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        status = measure(bench, &copying, counts[i]);
    }
    if (status == OX_OK) {
        ox_bench_add_load(&meter, bench, "copy");
    }
    ox_arena_close(&copying.arena);
    return status == OX_OK && bench->gpu != NULL ? ox_bench_gpu_copy(bench, bytes / 4) : status;
}
