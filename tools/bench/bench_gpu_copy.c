/* `offload bench copy` on a GPU: measures the link in each direction and in both at once, with host memory pinned as
 * the engine pins it, and copies within GPU memory. Times are the device's. Copies in both directions start together
 * and count until the later one ends. */
#include "tools/bench/bench_device.h"

#include "base/bytes.h"

#include <inttypes.h>

enum { SIZE_COUNT = 3, SIZE_STEP = 16, PIECES_MAX = 64, LINKS = 2, PAGE = 4096 };

struct link {
    struct ox_lane *lane;
    struct ox_bench_watch watch;
    unsigned char *to;
    const unsigned char *from;
};

struct crossing {
    struct ox_bench_device *gpu;
    struct ox_arena host; /* one half to send from, one to receive into */
    bool pinned;
    unsigned char *memory; /* GPU memory, with the same halves */
    uint64_t half;
    struct link links[LINKS]; /* up, down */
};

static void close_all(struct crossing *crossing) {
    for (unsigned i = 0; i < LINKS; i++) {
        if (crossing->links[i].lane != NULL) {
            ox_lane_close(&crossing->links[i].lane);
        }
    }
    if (crossing->memory != NULL) {
        ox_device_mem_close(crossing->gpu->device, crossing->memory, 2 * crossing->half);
    }
    if (crossing->pinned) {
        const enum ox_status status =
            ox_device_host_unpin(crossing->gpu->device, crossing->host.base, crossing->host.bytes);
        (void)status; /* the memory is freed next */
    }
    if (crossing->host.base != NULL) {
        ox_arena_close(&crossing->host);
    }
}

static enum ox_status open_all(struct crossing *crossing) {
    static const char *const labels[LINKS] = {"h2d", "d2h"};
    struct ox_device *const device = crossing->gpu->device;
    void *memory = NULL;
    enum ox_status status = ox_bench_arena_open("copy", 2 * crossing->half, &crossing->host);
    if (status == OX_OK) {
        status = ox_device_host_pin(device, crossing->host.base, crossing->host.bytes);
        crossing->pinned = status == OX_OK;
    }
    if (status == OX_OK) {
        status = ox_bench_device_numbers(crossing->gpu, 2 * crossing->half, &memory);
        crossing->memory = memory;
    }
    for (unsigned i = 0; i < LINKS && status == OX_OK; i++) {
        status = ox_device_lane_open(device, labels[i], &crossing->links[i].lane);
        if (status == OX_OK) {
            ox_bench_watch_lane(crossing->links[i].lane, &crossing->links[i].watch);
        }
    }
    crossing->links[0].to = crossing->memory;
    crossing->links[0].from = crossing->host.base;
    crossing->links[1].to = crossing->host.base + crossing->half;
    crossing->links[1].from = crossing->memory + crossing->half;
    return status;
}

/* Queues `pieces` copies, cycling through the halves; `done` marks the last. */
static enum ox_status queue(const struct crossing *crossing, const struct link *link, uint64_t bytes, uint32_t pieces,
                            struct ox_mark *done) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < pieces && status == OX_OK; i++) {
        const uint64_t at = (uint64_t)i * bytes % (crossing->half / bytes * bytes);
        const struct ox_copy copy = {.target = link->to + at, .source = link->from + at, .bytes = bytes};
        status = ox_device_lane_copy(crossing->gpu->device, link->lane, &copy, i + 1 == pieces ? done : NULL);
    }
    return status;
}

/* Measures seconds of `pieces` copies on the links [first, end). The first copy is not timed: it keeps the link busy
 * while the rest is queued. */
static enum ox_status run_once(struct crossing *crossing, unsigned first, unsigned end, uint64_t bytes,
                               uint32_t pieces, double *seconds) {
    struct ox_mark ignored, done[LINKS];
    enum ox_status status = OX_OK;
    for (unsigned i = first; i < end && status == OX_OK; i++) {
        status = queue(crossing, &crossing->links[i], ox_max_u64(crossing->half / 4 / PAGE * PAGE, PAGE), 1, &ignored);
    }
    for (unsigned i = first; i < end && status == OX_OK; i++) {
        status = queue(crossing, &crossing->links[i], bytes, pieces, &done[i]);
    }
    uint64_t longest_ns = 1;
    for (unsigned i = first; i < end && status == OX_OK; i++) {
        status = ox_mark_join(done[i]);
        longest_ns = ox_max_u64(longest_ns, crossing->links[i].watch.device_ns);
    }
    *seconds = status == OX_OK ? (double)longest_ns * 1e-9 : 0.0;
    return status;
}

static enum ox_status measure(struct ox_bench *bench, struct crossing *crossing, uint64_t bytes) {
    static const struct {
        const char *name;
        unsigned first, end;
    } ways[] = {{"h2d", 0, 1}, {"d2h", 1, 2}, {"duplex", 0, LINKS}};
    const uint32_t rounds = ox_bench_rounds(bench, 9, 3);
    const uint32_t pieces = (uint32_t)ox_min_u64(ox_max_u64(4 * crossing->half / bytes, 1), PIECES_MAX);
    double seconds[OX_BENCH_ROUNDS_MAX];
    for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++) {
        enum ox_status status = run_once(crossing, ways[way].first, ways[way].end, bytes, pieces, seconds);
        for (uint32_t i = 0; i < rounds && status == OX_OK; i++) {
            status = run_once(crossing, ways[way].first, ways[way].end, bytes, pieces, &seconds[i]);
        }
        if (status != OX_OK) {
            return status;
        }
        const double moved = (double)bytes * pieces * (ways[way].end - ways[way].first);
        ox_bench_add(bench, &(struct ox_bench_figure){.value = moved / ox_probe_median(seconds, rounds), .unit = "B/s"},
                     "copy.%s.kib_%" PRIu64, ways[way].name, bytes / OX_KIB);
    }
    return OX_OK;
}

/* Adds the rate of the largest pieces under the names that the profile reads. */
static void summarize(struct ox_bench *bench, uint64_t bytes) {
    static const char *const names[] = {"h2d", "d2h", "duplex"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        const double rate = ox_bench_value(bench, "copy.%s.kib_%" PRIu64, names[i], bytes / OX_KIB);
        ox_bench_add(bench, &(struct ox_bench_figure){.value = rate, .unit = "B/s"}, "copy.gpu.%s", names[i]);
    }
}

enum ox_status ox_bench_gpu_copy(struct ox_bench *bench, uint64_t bytes) {
    struct crossing crossing = {.gpu = bench->gpu, .half = ox_max_u64(bytes / PAGE * PAGE, PAGE)};
    char size[OX_SIZE_TEXT_BYTES];
    double rate = 0.0;
    ox_bench_note(bench, "copy: GPU, pinned memory, pieces of up to %s", ox_size_text(crossing.half, size));
    enum ox_status status = open_all(&crossing);
    for (unsigned i = 0, down = SIZE_STEP * SIZE_STEP; i < SIZE_COUNT && status == OX_OK; i++, down /= SIZE_STEP) {
        if (crossing.half / down >= PAGE) {
            status = measure(bench, &crossing, crossing.half / down / PAGE * PAGE);
        }
    }
    close_all(&crossing);
    if (status == OX_OK) {
        summarize(bench, crossing.half);
        status = ox_bench_device_copy_rate(bench->gpu, crossing.half, ox_bench_rounds(bench, 9, 3), &rate);
    }
    if (status == OX_OK) {
        ox_bench_add(bench, &(struct ox_bench_figure){.value = rate, .unit = "B/s"}, "copy.gpu.memory");
    }
    return status;
}
