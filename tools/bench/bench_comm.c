/* `offload bench comm`: measures communication between ranks that are threads of this process, in turn with plain
 * copies of as many bytes by as many threads at once. Bytes are those that a rank receives. */
#include "tools/bench/bench.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "kernels/comm/comm.h"
#include "offload/sim/machine_profile.h"

#include <inttypes.h>
#include <string.h>

enum { SIZES = 3, KIND_COUNT = 3, MEETINGS = 200, CALL_BYTES = 32 << 20 };

/* A pair is a send and a receive between two neighbours. */
enum kind { GATHER, EXCHANGE, PAIR };
static const char *const kind_names[KIND_COUNT] = {"gather", "exchange", "pair"};

struct talking {
    struct ox_comm *comms[OX_COMM_RANKS_MAX];
    uint32_t ranks;
    struct ox_arena arena;
    uint64_t bytes;      /* of a whole vector */
    uint64_t part_bytes; /* of the arena, for each rank */
    uint32_t calls;      /* per round */
    enum kind kind;
    bool plain; /* copies instead of calls */
    double seconds;
    enum ox_status statuses[OX_COMM_RANKS_MAX];
};

static enum ox_status meet(struct ox_comm *comm) {
    return ox_comm_meet(comm, &(struct ox_comm_meet){.what = "measurement"});
}

static uint64_t received_bytes(const struct talking *talking) {
    const uint64_t slice = talking->bytes / talking->ranks;
    return talking->kind == PAIR ? slice : slice * (talking->ranks - 1);
}

static enum ox_status call(const struct talking *talking, uint32_t rank) {
    struct ox_comm *const comm = talking->comms[rank];
    unsigned char *const target = talking->arena.base + rank * talking->part_bytes;
    unsigned char *const source = target + talking->bytes;
    const uint64_t slice = talking->bytes / talking->ranks;
    uint64_t cuts[OX_COMM_RANKS_MAX + 1];
    bool gives[OX_COMM_RANKS_MAX];
    for (uint32_t r = 0; r <= talking->ranks; r++) {
        cuts[r] = r * slice;
        gives[r < talking->ranks ? r : 0] = true;
    }
    if (talking->plain) {
        memcpy(target, source, received_bytes(talking));
        return OX_OK;
    }
    if (talking->kind == GATHER) {
        return ox_comm_gather(comm, &(struct ox_comm_gather){.source = target + rank * slice, .target = target,
                                                             .cuts = cuts, .on_host = true, .what = "measurement"});
    }
    if (talking->kind == EXCHANGE) {
        return ox_comm_exchange(comm, &(struct ox_comm_exchange){.source = source, .target = target, .cuts = cuts,
                                                                 .gives = gives, .on_host = true,
                                                                 .what = "measurement"});
    }
    const struct ox_comm_send send = {.peer = rank ^ 1, .source = source, .bytes = slice, .on_host = true,
                                      .what = "measurement"};
    const struct ox_comm_recv recv = {.peer = rank ^ 1, .target = target, .bytes = slice, .on_host = true,
                                      .what = "measurement"};
    enum ox_status status = rank % 2 == 0 ? ox_comm_send(comm, &send) : ox_comm_recv(comm, &recv);
    OX_THEN(status, rank % 2 == 0 ? ox_comm_recv(comm, &recv) : ox_comm_send(comm, &send));
    return status;
}

static void round_of(void *context, uint32_t rank, uint32_t count) {
    struct talking *const talking = context;
    OX_ASSERT(count == talking->ranks);
    enum ox_status status = meet(talking->comms[rank]);
    const uint64_t begin_ns = ox_clock_ns();
    for (uint32_t i = 0; i < talking->calls; i++) {
        OX_THEN(status, call(talking, rank));
    }
    OX_THEN(status, meet(talking->comms[rank]));
    if (rank == 0) {
        talking->seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    }
    talking->statuses[rank] = status;
}

static void meetings_of(void *context, uint32_t rank, uint32_t count) {
    struct talking *const talking = context;
    (void)count;
    enum ox_status status = meet(talking->comms[rank]);
    const uint64_t begin_ns = ox_clock_ns();
    for (uint32_t i = 0; i < MEETINGS; i++) {
        OX_THEN(status, meet(talking->comms[rank]));
    }
    if (rank == 0) {
        talking->seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9 / MEETINGS;
    }
    talking->statuses[rank] = status;
}

static enum ox_status run_once(struct talking *talking, struct ox_pool *pool, ox_pool_fn *fn) {
    ox_pool_run(pool, fn, talking);
    for (uint32_t r = 0; r < talking->ranks; r++) {
        if (talking->statuses[r] != OX_OK) {
            return ox_comm_cause(talking->comms[r]);
        }
    }
    return OX_OK;
}

/* Adds the rate of a rank, and that of plain copies by all ranks at once as its limit. */
static enum ox_status measure(struct ox_bench *bench, struct talking *talking, struct ox_pool *pool, uint32_t rounds) {
    double rates[2][OX_BENCH_ROUNDS_MAX];
    enum ox_status status = OX_OK;
    talking->calls = (uint32_t)ox_max_u64(1, CALL_BYTES / talking->bytes);
    for (uint32_t i = 0; i < 2 * (rounds + 1) && status == OX_OK; i++) {
        talking->plain = i % 2 == 1;
        status = run_once(talking, pool, round_of);
        /* The first round of each warms up. */
        rates[i % 2][i / 2 > 0 ? i / 2 - 1 : 0] =
            (double)(received_bytes(talking) * talking->calls) / talking->seconds;
    }
    if (status == OX_OK) {
        ox_bench_add(bench, &(struct ox_bench_figure){.value = ox_probe_median(rates[0], rounds), .unit = "B/s",
                                                      .ratio = ox_bench_median_ratio(rates[0], rates[1], rounds),
                                                      .limit = ox_probe_median(rates[1], rounds)},
                     "comm.%s.ranks_%" PRIu32 ".%" PRIu64 "KiB", kind_names[talking->kind], talking->ranks,
                     talking->bytes / OX_KIB);
    }
    return status;
}

static enum ox_status measure_ranks(struct ox_bench *bench, uint32_t ranks, const uint64_t *sizes,
                                    uint32_t size_count) {
    const uint32_t rounds = ox_bench_rounds(bench, 9, 3);
    struct talking talking = {.ranks = ranks, .part_bytes = 2 * sizes[size_count - 1]};
    struct ox_pool *pool = NULL;
    double seconds[OX_BENCH_ROUNDS_MAX];
    enum ox_status status = ox_bench_arena_open("comm", ranks * talking.part_bytes, &talking.arena);
    if (status != OX_OK) {
        return status;
    }
    memset(talking.arena.base, 1, ranks * talking.part_bytes);
    OX_THEN(status, ox_pool_open(ranks, &pool));
    OX_THEN(status, ox_comm_local_open(&(struct ox_comm_local_config){.count = ranks}, talking.comms));
    for (uint32_t i = 0; i < rounds && status == OX_OK; i++) {
        status = run_once(&talking, pool, meetings_of);
        seconds[i] = talking.seconds;
    }
    if (status == OX_OK) {
        ox_bench_add(bench, &(struct ox_bench_figure){.value = ox_probe_median(seconds, rounds), .unit = "s"},
                     "comm.meet.ranks_%" PRIu32, ranks);
    }
    for (uint32_t i = 0; i < KIND_COUNT * size_count && status == OX_OK; i++) {
        talking.kind = (enum kind)(i / size_count);
        talking.bytes = sizes[i % size_count] / ranks * ranks;
        const bool skipped = talking.kind == PAIR && (ranks % 2 == 1 || bench->brief);
        status = skipped ? OX_OK : measure(bench, &talking, pool, rounds);
    }
    for (uint32_t r = 0; r < ranks; r++) {
        ox_comm_close(&talking.comms[r]);
    }
    ox_pool_close(&pool);
    ox_arena_close(&talking.arena);
    return status;
}

static const uint64_t usual_sizes[SIZES] = {64 << 10, 1 << 20, 16 << 20};

/* Lists the numbers of ranks that are measured, from 2 on; returns how many. */
static uint32_t rank_counts(const struct ox_bench *bench, uint32_t out[OX_BENCH_THREAD_COUNTS_MAX]) {
    uint32_t counts[OX_BENCH_THREAD_COUNTS_MAX];
    const uint32_t all = ox_bench_threads(bench->config->place.compute_threads);
    const uint32_t most = all < 2 ? 2 : all < OX_COMM_RANKS_MAX ? all : OX_COMM_RANKS_MAX;
    const uint32_t count = ox_bench_thread_counts(most, counts);
    memcpy(out, counts + 1, (count - 1) * sizeof *out);
    return count - 1;
}

void ox_bench_comm_fill(const struct ox_bench *bench, struct ox_machine *out) {
    const uint64_t requested = bench->config->bench.size_bytes;
    uint32_t counts[OX_BENCH_THREAD_COUNTS_MAX];
    const uint32_t count = rank_counts(bench, counts);
    out->comm_count = 0;
    for (uint32_t i = 0; i < count && out->comm_count < OX_MACHINE_COMM_MAX; i++) {
        const uint32_t ranks = counts[i];
        const uint64_t size = (requested != 0 ? requested : usual_sizes[SIZES - 1]) / ranks * ranks / OX_KIB;
        const struct ox_machine_comm comm = {
            .ranks = ranks,
            .gather_rate = ox_bench_value(bench, "comm.gather.ranks_%" PRIu32 ".%" PRIu64 "KiB", ranks, size),
            .exchange_rate = ox_bench_value(bench, "comm.exchange.ranks_%" PRIu32 ".%" PRIu64 "KiB", ranks, size),
            .pair_rate = ox_bench_value(bench, "comm.pair.ranks_%" PRIu32 ".%" PRIu64 "KiB", ranks, size),
            .meet_seconds = ox_bench_value(bench, "comm.meet.ranks_%" PRIu32, ranks)};
        if (comm.gather_rate > 0 && comm.exchange_rate > 0 && comm.meet_seconds > 0) {
            out->comm[out->comm_count++] = comm;
        }
    }
}

enum ox_status ox_bench_comm(struct ox_bench *bench) {
    const uint64_t requested = bench->config->bench.size_bytes, least = 64 * OX_COMM_RANKS_MAX;
    if (requested != 0 && requested < least) {
        return ox_fail(OX_E_CONFIG, "--size: %" PRIu64 " bytes are too few; give at least %" PRIu64 "B", requested,
                       least);
    }
    uint32_t counts[OX_BENCH_THREAD_COUNTS_MAX];
    const uint32_t count = rank_counts(bench, counts);
    const uint32_t first = bench->brief ? SIZES - 1 : 0; /* the profile needs the largest alone */
    ox_bench_note(bench, "comm: ranks are threads of this process; limits are plain copies by as many threads at once");
    struct ox_probe_load meter;
    ox_probe_load_begin(&meter);
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        status = measure_ranks(bench, counts[i], requested != 0 ? &requested : usual_sizes + first,
                               requested != 0 ? 1 : SIZES - first);
    }
    if (status == OX_OK) {
        ox_bench_add_load(&meter, bench, "comm");
    }
    return status;
}
