/* How near to the speed of memory the optimizer runs: each optimizer and format of state over planes far larger than
 * the caches, against a plain loop that reads and writes the same bytes of the same planes and computes nothing; and
 * AdamW in one pass against the three passes of an engine that scales the gradient, updates fp32 copies and rounds
 * the weights in turn.
 *
 *     bench_adam [--json] [--threads N] [--rounds N] [--params MILLIONS] [--only WORD]
 *
 * --only leaves out what has not the word in its name, "adamw.q8" or "three_passes".
 * Both of a pair are timed in turn, so that what else runs on the machine slows both, and the median of the rounds'
 * ratios counts. Bytes are counted by the formats: what a parameter's planes hold, read and written once. All stores
 * are ordinary ones. `work` is the ratio in processor time, which other processes disturb less. Exits 1 when a ratio
 * is below its limit. */
#include "base/arena.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/planes.h"
#include "cpu_optim/optim.h"
#include "tests/test.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS_MAX = 99, GRAIN = 4096, LINE = 64 };

#define STREAM_LIMIT 0.92
#define PASSES_LIMIT 1.5

/* The comparisons are compiled for the vectors that the optimizer itself uses here. */
#if defined(__x86_64__)
#define WIDE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")))
#else
#define WIDE
#endif

struct options {
    bool json;
    uint32_t threads, rounds;
    uint64_t params;
    const char *only;
};

/* ---- the planes of all contestants --------------------------------------------------------------------- */

struct planes {
    uint16_t *hi;
    void *grad;
    struct ox_state_planes state;
    /* of the three passes */
    float *p, *wide_grad, *m, *v;
    uint16_t *weights;
};

struct bench {
    struct options options;
    struct ox_pool *pool;
    struct ox_arena arena;
    struct planes planes;
    struct ox_state_format format;
    enum ox_grad_dtype grad_dtype;
    struct ox_adam_hyper hyper;
    uint64_t zero;         /* what the plain loop adds: the compiler does not know */
    _Atomic uint64_t work; /* nanoseconds of processor time that the threads took */
    uint64_t sums[64];     /* what the threads read, so that no read is left out */
};

static uint64_t thread_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Planes begin on huge pages of their own, each a little further into them, so that they do not meet in one set of the
 * caches. */
static unsigned char *carve(struct bench *bench, uint64_t *at, uint64_t bytes) {
    enum { HUGE_PAGE = 2 << 20, SKEW = 4096 + 5 * LINE };
    const uint64_t skew = *at / HUGE_PAGE % 13 * SKEW / LINE * LINE;
    unsigned char *const plane = bench->arena.base + *at + skew;
    *at = ox_align_up(*at + skew + bytes, HUGE_PAGE);
    if (*at > bench->arena.bytes) {
        printf("the arena is too small\n");
        exit(1);
    }
    return plane;
}

static void lay_out(struct bench *bench) {
    const uint64_t n = bench->options.params;
    const bool q8 = bench->format.moments == OX_MOMENTS_Q8;
    const uint64_t moment = q8 ? 1 : bench->format.moments == OX_MOMENTS_BF16 ? 2 : 4;
    struct planes *const planes = &bench->planes;
    uint64_t at = 0;
    planes->hi = (uint16_t *)carve(bench, &at, n * 2);
    planes->grad = carve(bench, &at, n * 4);
    planes->state.lo = carve(bench, &at, n * (q8 ? 1 : 2));
    planes->state.m = carve(bench, &at, n * moment);
    planes->state.v = ox_optim_has_v(bench->format.kind) ? carve(bench, &at, n * moment) : NULL;
    planes->state.m_scale = q8 ? carve(bench, &at, n / OX_Q8_BLOCK) : NULL;
    planes->state.v_scale = q8 && planes->state.v != NULL ? carve(bench, &at, n / OX_Q8_BLOCK) : NULL;
    planes->p = (float *)carve(bench, &at, n * 4);
    planes->wide_grad = (float *)carve(bench, &at, n * 4);
    planes->m = (float *)carve(bench, &at, n * 4);
    planes->v = (float *)carve(bench, &at, n * 4);
    planes->weights = (uint16_t *)carve(bench, &at, n * 2);
}

static float gradient(uint64_t idx) {
    uint32_t word = (uint32_t)idx * 2654435761u;
    word = (word ^ word >> 15) * 2246822519u;
    word ^= word >> 13;
    return ((float)word * 0x1p-32f - 0.5f) * 1e-3f;
}

static void fill_share(void *context, uint32_t idx, uint32_t count) {
    struct bench *const bench = context;
    struct planes *const planes = &bench->planes;
    const struct ox_range range = ox_pool_range(bench->options.params, GRAIN, idx, count);
    for (uint64_t i = range.begin; i < range.end; i++) {
        const float grad = gradient(i);
        if (bench->grad_dtype == OX_GRAD_BF16) {
            ((uint16_t *)planes->grad)[i] = ox_bf16_from_f32(grad);
        } else {
            ((float *)planes->grad)[i] = grad;
        }
        planes->wide_grad[i] = grad;
        planes->p[i] = 50.0f * gradient(i + 12345);
        planes->hi[i] = ox_plane_hi(planes->p[i]);
        planes->m[i] = planes->v[i] = 0.0f;
    }
}

/* Weights, gradients and zero moments; the first update makes moments of them. */
static void begin(struct bench *bench, struct ox_state_format format, enum ox_grad_dtype grad_dtype) {
    bench->format = format;
    bench->grad_dtype = grad_dtype;
    memset(bench->arena.base, 0, bench->arena.bytes);
    lay_out(bench);
    ox_pool_run(bench->pool, fill_share, bench);
}

/* ---- the optimizer ------------------------------------------------------------------------------------ */

static void *at(void *plane, uint64_t bytes) {
    return plane == NULL ? NULL : (unsigned char *)plane + bytes;
}

static void fused_share(void *context, uint32_t idx, uint32_t count) {
    struct bench *const bench = context;
    const struct planes *const planes = &bench->planes;
    const struct ox_range range = ox_pool_range(bench->options.params, GRAIN, idx, count);
    const bool q8 = bench->format.moments == OX_MOMENTS_Q8;
    const uint64_t moment = q8 ? 1 : bench->format.moments == OX_MOMENTS_BF16 ? 2 : 4, lo = q8 ? 1 : 2;
    const struct ox_update_span span = {
        .hi = planes->hi + range.begin,
        .hi_out = planes->hi + range.begin,
        .state = {
            .lo = at(planes->state.lo, range.begin * lo),
            .m = at(planes->state.m, range.begin * moment),
            .v = at(planes->state.v, range.begin * moment),
            .m_scale = at(planes->state.m_scale, range.begin / OX_Q8_BLOCK),
            .v_scale = at(planes->state.v_scale, range.begin / OX_Q8_BLOCK),
        },
        .grad = at(planes->grad, range.begin * (bench->grad_dtype == OX_GRAD_BF16 ? 2 : 4)),
        .grad_dtype = bench->grad_dtype,
        .decay = true,
        .first = range.begin,
        .count = range.end - range.begin,
    };
    const uint64_t begin_ns = thread_ns();
    if (ox_update_run(ox_isa_best(), bench->format, &span, &bench->hyper) != 0) {
        printf("the optimizer met values that are not finite\n");
        exit(1);
    }
    bench->work += thread_ns() - begin_ns;
}

/* ---- the plain loop ----------------------------------------------------------------------------------- */

typedef uint64_t line_of_words __attribute__((vector_size(LINE), aligned(1), may_alias));

/* `lines` cache lines of a plane, read and written. */
static inline __attribute__((always_inline)) void touch(unsigned char *plane, uint64_t block, unsigned lines,
                                                        uint64_t zero) {
    line_of_words *const words = (line_of_words *)(plane + block * lines * LINE);
    for (unsigned i = 0; i < lines; i++) {
        words[i] = words[i] + zero;
    }
}

/* Sixty-four parameters at a time: each plane has whole lines of them. `hi`, `lo` and so on: lines of each. */
static inline __attribute__((always_inline)) uint64_t stream_blocks(const struct bench *bench, struct ox_range range,
                                                                    unsigned lo, unsigned moment, unsigned grad) {
    const struct planes planes = bench->planes;
    const uint64_t zero = bench->zero;
    const bool has_v = planes.state.v != NULL, scales = planes.state.m_scale != NULL;
    line_of_words sum = {0};
    for (uint64_t block = range.begin / 64; block < range.end / 64; block++) {
        const line_of_words *const grads = (const void *)((unsigned char *)planes.grad + block * grad * LINE);
        for (unsigned i = 0; i < grad; i++) {
            sum += grads[i];
        }
        touch((unsigned char *)planes.hi, block, 2, zero);
        touch(planes.state.lo, block, lo, zero);
        touch(planes.state.m, block, moment, zero);
        if (has_v) {
            touch(planes.state.v, block, moment, zero);
        }
        if (scales) {
            planes.state.m_scale[block] = (uint8_t)(planes.state.m_scale[block] + zero);
        }
        if (scales && has_v) {
            planes.state.v_scale[block] = (uint8_t)(planes.state.v_scale[block] + zero);
        }
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

static WIDE uint64_t stream_range(const struct bench *bench, struct ox_range range) {
    if (bench->format.moments == OX_MOMENTS_F32) {
        return bench->grad_dtype == OX_GRAD_F32 ? stream_blocks(bench, range, 2, 4, 4)
                                                : stream_blocks(bench, range, 2, 4, 2);
    }
    if (bench->format.moments == OX_MOMENTS_BF16) {
        return bench->grad_dtype == OX_GRAD_F32 ? stream_blocks(bench, range, 2, 2, 4)
                                                : stream_blocks(bench, range, 2, 2, 2);
    }
    return bench->grad_dtype == OX_GRAD_F32 ? stream_blocks(bench, range, 1, 1, 4)
                                            : stream_blocks(bench, range, 1, 1, 2);
}

static void stream_share(void *context, uint32_t idx, uint32_t count) {
    struct bench *const bench = context;
    const uint64_t begin_ns = thread_ns();
    bench->sums[idx % 64] += stream_range(bench, ox_pool_range(bench->options.params, GRAIN, idx, count));
    bench->work += thread_ns() - begin_ns;
}

/* ---- three passes -------------------------------------------------------------------------------------- */

static WIDE void scale_range(float *restrict grad, float scale, struct ox_range range) {
    for (uint64_t i = range.begin; i < range.end; i++) {
        grad[i] *= scale;
    }
}

static WIDE void update_range(const struct bench *bench, struct ox_range range) {
    const struct ox_adam_hyper hyper = bench->hyper;
    float *restrict const p = bench->planes.p, *restrict const m = bench->planes.m, *restrict const v = bench->planes.v;
    const float *restrict const grad = bench->planes.wide_grad;
    for (uint64_t i = range.begin; i < range.end; i++) {
        const float g = grad[i];
        m[i] = fmaf(hyper.beta1, m[i], hyper.one_minus_beta1 * g);
        v[i] = fmaf(hyper.beta2, v[i], hyper.one_minus_beta2 * (g * g));
        const float u = m[i] * hyper.m_scale / (sqrtf(v[i] * hyper.v_scale) + hyper.eps);
        p[i] = fmaf(-hyper.learning_rate, u, p[i] * hyper.decay_factor);
    }
}

static WIDE void round_range(uint16_t *restrict weights, const float *restrict p, struct ox_range range) {
    for (uint64_t i = range.begin; i < range.end; i++) {
        uint32_t bits;
        memcpy(&bits, &p[i], sizeof bits);
        weights[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
}

static void scale_share(void *context, uint32_t idx, uint32_t count) {
    struct bench *const bench = context;
    const uint64_t begin_ns = thread_ns();
    scale_range(bench->planes.wide_grad, bench->zero == 0 ? 1.0f : 0.5f,
                ox_pool_range(bench->options.params, GRAIN, idx, count));
    bench->work += thread_ns() - begin_ns;
}

static void update_share(void *context, uint32_t idx, uint32_t count) {
    struct bench *const bench = context;
    const uint64_t begin_ns = thread_ns();
    update_range(bench, ox_pool_range(bench->options.params, GRAIN, idx, count));
    bench->work += thread_ns() - begin_ns;
}

static void round_share(void *context, uint32_t idx, uint32_t count) {
    struct bench *const bench = context;
    const uint64_t begin_ns = thread_ns();
    round_range(bench->planes.weights, bench->planes.p, ox_pool_range(bench->options.params, GRAIN, idx, count));
    bench->work += thread_ns() - begin_ns;
}

/* ---- timing -------------------------------------------------------------------------------------------- */

struct duration {
    double wall, work; /* seconds; of the clock, and of processors */
};

static struct duration timed(struct bench *bench, ox_pool_fn *const *shares, unsigned share_count) {
    bench->work = 0;
    const uint64_t begin_ns = ox_clock_ns();
    for (unsigned i = 0; i < share_count; i++) {
        ox_pool_run(bench->pool, shares[i], bench);
    }
    return (struct duration){.wall = (double)(ox_clock_ns() - begin_ns) * 1e-9, .work = (double)bench->work * 1e-9};
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, uint32_t count) {
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, count * sizeof *values);
    qsort(sorted, count, sizeof *sorted, compare_doubles);
    return 0.5 * (sorted[(count - 1) / 2] + sorted[count / 2]);
}

/* One contestant beside the fused update. */
struct pair {
    double fused_seconds, other_seconds;
    double ratio, ratio_of_work; /* the other's time by the update's */
};

static struct pair race(struct bench *bench, ox_pool_fn *const *shares, unsigned share_count) {
    static ox_pool_fn *const fused[] = {fused_share};
    double fused_seconds[ROUNDS_MAX], other_seconds[ROUNDS_MAX], ratios[ROUNDS_MAX], works[ROUNDS_MAX];
    timed(bench, fused, 1);
    timed(bench, shares, share_count);
    for (uint32_t i = 0; i < bench->options.rounds; i++) {
        const struct duration other = timed(bench, shares, share_count);
        const struct duration own = timed(bench, fused, 1);
        fused_seconds[i] = own.wall;
        other_seconds[i] = other.wall;
        ratios[i] = other.wall / own.wall;
        works[i] = other.work / own.work;
    }
    const uint32_t count = bench->options.rounds;
    return (struct pair){median(fused_seconds, count), median(other_seconds, count), median(ratios, count),
                         median(works, count)};
}

/* ---- report ---------------------------------------------------------------------------------------------- */

struct report {
    bool json, begun, below;
};

/* A `limit` of 0 is none. */
static void record(struct report *report, const char *name, double value, const char *unit, double limit) {
    if (!report->json) {
        printf(limit > 0.0 ? "%-38s %9.3f %-9s limit %6.3f  ratio %.3f\n" : "%-38s %9.3f %s\n", name, value, unit,
               limit, value / limit);
    } else {
        printf("%s{\"name\":\"%s\",\"value\":%.4f,\"unit\":\"%s\",", report->begun ? ",\n " : "[", name, value, unit);
        printf(limit > 0.0 ? "\"limit\":%.4f,\"ratio\":%.4f}" : "\"limit\":null,\"ratio\":null}", limit, value / limit);
    }
    report->begun = true;
}

static void record_limit(struct report *report, const char *name, double value, double limit) {
    record(report, name, value, "1", limit);
    report->below = report->below || value < limit;
}

/* Against the plain loop. The limit is on AdamW with fp32 moments; the others are told. */
static void measure_stream(struct bench *bench, struct report *report, struct ox_state_format format,
                           enum ox_grad_dtype grad_dtype) {
    static ox_pool_fn *const stream[] = {stream_share};
    char base[64], name[96];
    snprintf(base, sizeof base, "%s.%s.grad_%s", ox_optim_kind_name(format.kind), ox_moments_name(format.moments),
             grad_dtype == OX_GRAD_BF16 ? "bf16" : "f32");
    if (strstr(base, bench->options.only) == NULL) {
        return;
    }
    begin(bench, format, grad_dtype);
    const struct pair pair = race(bench, stream, 1);
    const struct ox_update_traffic traffic = ox_update_traffic_of(format, grad_dtype);
    const double gigabytes = (traffic.read + traffic.written) * (double)bench->options.params * 1e-9;
    snprintf(name, sizeof name, "%s.bytes", base);
    record(report, name, traffic.read + traffic.written, "B/param", 0.0);
    snprintf(name, sizeof name, "%s.time", base);
    record(report, name, pair.fused_seconds * 1e9 / (double)bench->options.params, "ns/param", 0.0);
    snprintf(name, sizeof name, "%s.rate", base);
    record(report, name, gigabytes / pair.fused_seconds, "GB/s", gigabytes / pair.other_seconds);
    snprintf(name, sizeof name, "%s.stream_ratio", base);
    if (format.kind == OX_OPTIM_ADAMW && format.moments == OX_MOMENTS_F32) {
        record_limit(report, name, pair.ratio, STREAM_LIMIT);
    } else {
        record(report, name, pair.ratio, "1", 0.0);
    }
    snprintf(name, sizeof name, "%s.stream_work", base);
    record(report, name, pair.ratio_of_work, "1", 0.0);
}

static void measure_passes(struct bench *bench, struct report *report) {
    static ox_pool_fn *const passes[] = {scale_share, update_share, round_share};
    for (unsigned dtype = OX_GRAD_F32; dtype <= OX_GRAD_BF16; dtype++) {
        const bool bf16 = dtype == OX_GRAD_BF16;
        begin(bench, (struct ox_state_format){OX_OPTIM_ADAMW, OX_MOMENTS_F32}, dtype);
        const struct pair pair = race(bench, passes, 3);
        if (!bf16) {
            record(report, "three_passes.time", pair.other_seconds * 1e9 / (double)bench->options.params, "ns/param",
                   0.0);
            record_limit(report, "adamw.f32.three_passes_ratio", pair.ratio, PASSES_LIMIT);
            record(report, "adamw.f32.three_passes_work", pair.ratio_of_work, "1", 0.0);
        } else {
            record(report, "adamw.f32.grad_bf16.three_passes_ratio", pair.ratio, "1", 0.0);
            record(report, "adamw.f32.grad_bf16.three_passes_work", pair.ratio_of_work, "1", 0.0);
        }
    }
}

/* ---- program ------------------------------------------------------------------------------------------- */

static struct options parse(int argc, char **argv) {
    struct options options = {
        .threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN), .rounds = 9, .params = 48 * OX_MIB,
        .only = ""};
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (strcmp(argv[i], "--json") == 0) {
            options.json = true;
        } else if (more && strcmp(argv[i], "--threads") == 0) {
            options.threads = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (more && strcmp(argv[i], "--rounds") == 0) {
            options.rounds = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (more && strcmp(argv[i], "--only") == 0) {
            options.only = argv[++i];
        } else if (more && strcmp(argv[i], "--params") == 0) {
            options.params = strtoul(argv[++i], NULL, 10) * OX_MIB;
        } else {
            options.rounds = 0;
        }
    }
    if (options.threads == 0 || options.params == 0 || options.rounds == 0 || options.rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: %s [--json] [--threads N] [--rounds 1..%d] [--params MILLIONS] [--only WORD]\n",
                argv[0], ROUNDS_MAX);
        exit(2);
    }
    return options;
}

static bool wide_available(void) {
#if defined(__x86_64__)
    return ox_isa_available(OX_ISA_AVX512);
#else
    return true;
#endif
}

int main(int argc, char **argv) {
    static struct bench bench;
    bench.options = parse(argc, argv);
    struct report report = {.json = bench.options.json};
    if (!wide_available()) {
        test_skip("the loops to compare with are compiled for AVX-512");
    }
    REQUIRE_OK(ox_pool_open(bench.options.threads, &bench.pool));
    REQUIRE_OK(ox_arena_open("benchmark", bench.options.params * 34 + 32 * OX_MIB, &bench.arena));
    const struct ox_adam_settings settings = {.learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
                                              .weight_decay = 0.01, .grad_scale = 0.5, .step = 100};
    ox_adam_hyper_init(&settings, &bench.hyper);
    if (!report.json) {
        printf("%llu Mi parameters, %u threads, %s, median of %u rounds\n",
               (unsigned long long)(bench.options.params / OX_MIB), bench.options.threads, ox_isa_name(ox_isa_best()),
               bench.options.rounds);
    }
    for (unsigned kind = 0; kind < OX_OPTIM_KIND_COUNT; kind++) {
        for (unsigned moments = 0; moments < OX_MOMENTS_COUNT; moments++) {
            const struct ox_state_format format = {kind, moments};
            measure_stream(&bench, &report, format, OX_GRAD_F32);
            if (kind == OX_OPTIM_ADAMW) {
                measure_stream(&bench, &report, format, OX_GRAD_BF16);
            }
        }
    }
    if (strstr("three_passes", bench.options.only) != NULL) {
        measure_passes(&bench, &report);
    }
    if (report.json) {
        printf("]\n");
    }
    ox_arena_close(&bench.arena);
    ox_pool_close(&bench.pool);
    return report.below ? 1 : 0;
}
