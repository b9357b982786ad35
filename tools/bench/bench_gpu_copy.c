/* `offload bench copy` on GPUs: measures the link in each direction and in both at once, with host memory pinned as the
 * engine pins it, and copies within GPU memory; where there are several GPUs, the links of all at once, copies from GPU
 * to GPU, and both together. Times are the devices'. Copies that run at once start together and count until the last
 * one ends. */
#include "tools/bench/bench_device.h"

#include "base/bytes.h"
#include "kernels/comm/comm.h"

#include <inttypes.h>
#include <math.h>

enum { SIZE_COUNT = 3, SIZE_STEP = 16, PIECES_MAX = 64, PAGE = 4096 };
enum { UP, DOWN, PEER, LINKS };

struct link {
    struct ox_lane *lane;
    struct ox_bench_watch watch;
    unsigned char *to;
    const unsigned char *from;
};

struct crossing {
    struct ox_bench_device *gpu;
    struct ox_arena host; /* one part to send from, one to receive into */
    bool pinned;
    unsigned char *memory; /* GPU memory, with the same parts, and one that receives from another GPU */
    uint64_t part;
    struct link links[LINKS];
};

/* All GPUs that are measured; the first is the bench's own. */
struct crossings {
    struct crossing of[OX_COMM_RANKS_MAX];
    uint32_t count;
    bool reaches; /* each may take from the memory of the next */
};

static void close_crossing(struct crossing *crossing) {
    for (unsigned i = 0; i < LINKS; i++) {
        if (crossing->links[i].lane != NULL) {
            ox_lane_close(&crossing->links[i].lane);
        }
    }
    if (crossing->memory != NULL) {
        ox_device_mem_close(crossing->gpu->device, crossing->memory, LINKS * crossing->part);
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

static enum ox_status open_crossing(struct crossing *crossing) {
    static const char *const labels[LINKS] = {"h2d", "d2h", "peer"};
    struct ox_device *const device = crossing->gpu->device;
    void *memory = NULL;
    enum ox_status status = ox_bench_arena_open("copy", 2 * crossing->part, &crossing->host);
    if (status == OX_OK) {
        status = ox_device_host_pin(device, crossing->host.base, crossing->host.bytes);
        crossing->pinned = status == OX_OK;
    }
    if (status == OX_OK) {
        status = ox_bench_device_numbers(crossing->gpu, LINKS * crossing->part, &memory);
        crossing->memory = memory;
    }
    for (unsigned i = 0; i < LINKS && status == OX_OK; i++) {
        status = ox_device_lane_open(device, labels[i], &crossing->links[i].lane);
        if (status == OX_OK) {
            ox_bench_watch_lane(crossing->links[i].lane, &crossing->links[i].watch);
        }
    }
    crossing->links[UP].to = crossing->memory;
    crossing->links[UP].from = crossing->host.base;
    crossing->links[DOWN].to = crossing->host.base + crossing->part;
    crossing->links[DOWN].from = crossing->memory + crossing->part;
    crossing->links[PEER].to = crossing->memory + 2 * crossing->part;
    return status;
}

static void close_all(struct crossings *all) {
    for (uint32_t i = 0; i < all->count; i++) {
        close_crossing(&all->of[i]);
        if (i > 0) {
            ox_bench_device_close(&all->of[i].gpu);
        }
    }
}

/* Opens all GPUs, each with the next one as its peer. */
static enum ox_status open_all(const struct ox_bench *bench, uint64_t part, struct crossings *all) {
    enum ox_status status = OX_OK;
    all->count = (uint32_t)ox_min_u64(ox_max_u64(ox_bench_gpu_count(), 1), OX_COMM_RANKS_MAX);
    all->reaches = all->count > 1;
    all->of[0].gpu = bench->gpu;
    for (uint32_t i = 0; i < all->count && status == OX_OK; i++) {
        all->of[i].part = part;
        status = i == 0 ? OX_OK : ox_bench_gpu_open_at(bench->gpu, i, &all->of[i].gpu);
        OX_THEN(status, open_crossing(&all->of[i]));
    }
    for (uint32_t i = 0; i < all->count && all->count > 1 && status == OX_OK; i++) {
        const struct crossing *const next = &all->of[(i + 1) % all->count];
        bool reaches = false;
        all->of[i].links[PEER].from = next->memory + next->part;
        status = ox_cuda_device_reach(all->of[i].gpu->device, next->gpu->device, &reaches);
        all->reaches &= reaches;
    }
    return status;
}

/* Queues `pieces` copies, cycling through the part; `done` marks the last. */
static enum ox_status queue(const struct crossing *crossing, const struct link *link, uint64_t bytes, uint32_t pieces,
                            struct ox_mark *done) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < pieces && status == OX_OK; i++) {
        const uint64_t at = (uint64_t)i * bytes % (crossing->part / bytes * bytes);
        const struct ox_copy copy = {.target = link->to + at, .source = link->from + at, .bytes = bytes};
        status = ox_device_lane_copy(crossing->gpu->device, link->lane, &copy, i + 1 == pieces ? done : NULL);
    }
    return status;
}

/* What is measured at once: the links [first, end) of the first `gpus` GPUs. */
struct way {
    const char *name;
    unsigned first, end;
    uint32_t gpus;
};

/* Measures seconds of `pieces` copies. The first copy is not timed: it keeps the link busy while the rest is queued. */
static enum ox_status run_once(struct crossings *all, const struct way *way, uint64_t bytes, uint32_t pieces,
                               double *seconds) {
    const uint32_t width = way->end - way->first, count = way->gpus * width;
    struct ox_mark ignored, done[OX_COMM_RANKS_MAX * LINKS];
    uint64_t longest_ns = 1;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < 2 * count && status == OX_OK; i++) {
        struct crossing *const crossing = &all->of[i % count / width];
        const struct link *const link = &crossing->links[way->first + i % width];
        status = i < count ? queue(crossing, link, ox_max_u64(crossing->part / 4 / PAGE * PAGE, PAGE), 1, &ignored)
                           : queue(crossing, link, bytes, pieces, &done[i - count]);
    }
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        status = ox_mark_join(done[i]);
        longest_ns = ox_max_u64(longest_ns, all->of[i / width].links[way->first + i % width].watch.device_ns);
    }
    *seconds = status == OX_OK ? (double)longest_ns * 1e-9 : 0.0;
    return status;
}

/* Measures the median seconds of the rounds, and the bytes that all links together move. */
static enum ox_status measure(const struct ox_bench *bench, struct crossings *all, const struct way *way,
                              uint64_t bytes, double *moved, double *median) {
    const uint32_t rounds = ox_bench_rounds(bench, 9, 3);
    const uint32_t pieces = (uint32_t)ox_min_u64(ox_max_u64(4 * all->of[0].part / bytes, 1), PIECES_MAX);
    double seconds[OX_BENCH_ROUNDS_MAX];
    enum ox_status status = run_once(all, way, bytes, pieces, seconds);
    for (uint32_t i = 0; i < rounds && status == OX_OK; i++) {
        status = run_once(all, way, bytes, pieces, &seconds[i]);
    }
    *moved = (double)bytes * pieces * way->gpus * (way->end - way->first);
    *median = status == OX_OK ? ox_probe_median(seconds, rounds) : 0.0;
    return status;
}

/* Measures the first GPU's link with pieces of several sizes; the rate of the largest ones gets the name that the
 * profile reads. */
static enum ox_status measure_link(struct ox_bench *bench, struct crossings *all) {
    static const struct way ways[] = {{"h2d", UP, DOWN, 1}, {"d2h", DOWN, PEER, 1}, {"duplex", UP, PEER, 1}};
    const uint64_t part = all->of[0].part;
    enum ox_status status = OX_OK;
    double moved = 0, median = 0;
    for (unsigned i = 0, down = SIZE_STEP * SIZE_STEP; i < SIZE_COUNT; i++, down /= SIZE_STEP) {
        const uint64_t bytes = part / down / PAGE * PAGE;
        for (unsigned way = 0; way < sizeof ways / sizeof *ways && bytes > 0 && status == OX_OK; way++) {
            status = measure(bench, all, &ways[way], bytes, &moved, &median);
            const struct ox_bench_figure figure = {.value = moved / fmax(median, 1e-9), .unit = "B/s"};
            ox_bench_add(bench, &figure, "copy.%s.kib_%" PRIu64, ways[way].name, bytes / OX_KIB);
            if (down == 1) {
                ox_bench_add(bench, &figure, "copy.gpu.%s", ways[way].name);
            }
        }
    }
    return status;
}

/* Where all GPUs are measured at once: what their links move in both directions together, what each takes from the
 * next, and how much of the link's time a byte from GPU to GPU takes away from copies to and from the host: 0 where
 * both have ways of their own (NVLink), 1 where they share one. */
static enum ox_status measure_all(struct ox_bench *bench, struct crossings *all) {
    const struct way ways[] = {{"links", UP, PEER, all->count}, {"peers", PEER, LINKS, all->count},
                               {"both", UP, LINKS, all->count}};
    const uint64_t bytes = all->of[0].part;
    double moved[3], seconds[3];
    for (unsigned way = 0; way < 3; way++) {
        OX_TRY(measure(bench, all, &ways[way], bytes, &moved[way], &seconds[way]));
    }
    const double longer = fmax(seconds[0], seconds[1]), shorter = fmin(seconds[0], seconds[1]);
    const double share = fmin(fmax((seconds[2] - longer) / fmax(shorter, 1e-9), 0), 1);
    const struct ox_bench_figure links = {.value = moved[0] / seconds[0], .unit = "B/s"},
                                 peers = {.value = moved[1] / seconds[1] / all->count, .unit = "B/s"},
                                 shares = {.value = share, .unit = OX_BENCH_SHARE};
    ox_bench_add(bench, &links, "copy.gpus.links");
    ox_bench_add(bench, &peers, all->reaches ? "copy.gpus.peer" : "copy.gpus.through_host");
    ox_bench_add(bench, &shares, all->reaches ? "copy.gpus.peer_of_links" : "copy.gpus.through_host_of_links");
    return OX_OK;
}

enum ox_status ox_bench_gpu_copy(struct ox_bench *bench, uint64_t bytes) {
    struct crossings all = {0};
    const uint64_t part = ox_max_u64(bytes / PAGE * PAGE, PAGE);
    char size[OX_SIZE_TEXT_BYTES];
    double rate = 0.0;
    enum ox_status status = open_all(bench, part, &all);
    ox_bench_note(bench, "copy: %" PRIu32 " GPU%s, pinned memory, pieces of up to %s", all.count,
                  all.count == 1 ? "" : "s", ox_size_text(part, size));
    OX_THEN(status, measure_link(bench, &all));
    OX_THEN(status, all.count > 1 ? measure_all(bench, &all) : OX_OK);
    close_all(&all);
    OX_THEN(status, ox_bench_device_copy_rate(bench->gpu, part, ox_bench_rounds(bench, 9, 3), &rate));
    if (status == OX_OK) {
        ox_bench_add(bench, &(struct ox_bench_figure){.value = rate, .unit = "B/s"}, "copy.gpu.memory");
    }
    return status;
}
