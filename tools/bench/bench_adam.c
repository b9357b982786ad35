/* `offload bench adam`: compares the optimizer with memory bandwidth. Each optimizer and state format runs over planes
 * far larger than the caches, chunk by chunk as in a run, beside a plain loop that reads and writes the same bytes
 * without computing. AdamW in one pass is also compared with three passes: scale the gradient, update fp32 copies,
 * round the weights.
 *
 * The two of a pair are timed alternately, so that other load slows both, and the median of the rounds' ratios counts.
 * Bytes follow from the format: each plane is read and written once, with ordinary stores. `work` is the ratio of
 * processor times, which other processes disturb less. */
#include "tools/bench/bench_device.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/planes.h"
#include "cpu_optim/optim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    GRAIN = 4096, LINE = 64, SUMS = 64,
    CHUNK_ELEMS = 262144,         /* those of a run, OX_SHARD_CHUNK_ELEMS of the planner */
    PARAM_BYTES = 34,             /* per parameter, in all planes of both sides */
    FULL_MEGAPARAMS = 48, BRIEF_MEGAPARAMS = 16,
};

#define STREAM_LIMIT 0.92
#define PASSES_LIMIT 1.5

/* ---- planes ------------------------------------------------------------------------------------------- */

struct planes {
    uint16_t *hi;
    void *grad;
    struct ox_state_planes state;
    /* for the three passes */
    float *p, *wide_grad, *m, *v;
    uint16_t *weights;
};

struct comparison {
    struct ox_bench *bench;
    struct ox_pool *pool;
    struct ox_arena arena;
    struct planes planes;
    struct ox_state_format format;
    enum ox_grad_dtype grad_dtype;
    enum ox_isa isa;
    struct ox_optim_hyper hyper;
    struct ox_bench_loop loop;
    uint64_t params;
    uint32_t rounds;
    _Atomic uint64_t work;      /* processor time of the threads, in nanoseconds */
    _Atomic uint64_t nonfinite; /* counted by the optimizer */
    bool sums_up;               /* the optimizer sums the bits of what it reads and writes */
    bool saves;                 /* it saves what it replaces, where the three passes have their planes */
    bool ahead;                 /* it makes weights alone, and saves those */
    struct ox_range chunk;      /* what it is at */
    uint64_t sums[SUMS];        /* sums of what was read, so that no read is dropped */
};

/* Each plane begins on its own huge page, at a different offset, so that planes do not share cache sets. */
static unsigned char *carve(struct comparison *comparison, uint64_t *at, uint64_t bytes) {
    enum { HUGE_PAGE = 2 << 20, SKEW = 4096 + 5 * LINE };
    const uint64_t skew = *at / HUGE_PAGE % 13 * SKEW / LINE * LINE;
    unsigned char *const plane = comparison->arena.base + *at + skew;
    *at = ox_align_up(*at + skew + bytes, HUGE_PAGE);
    OX_ASSERT(*at <= comparison->arena.bytes);
    return plane;
}

/* Places all planes and points the plain loops at them. */
static void lay_out(struct comparison *comparison) {
    const uint64_t n = comparison->params;
    const bool has_v = ox_optim_has_v(comparison->format.kind);
    const uint32_t lo = ox_lo_bytes(comparison->format.moments), moment = ox_moment_bytes(comparison->format.moments);
    const uint32_t block = ox_scale_block_elems(comparison->format.moments);
    struct planes *const planes = &comparison->planes;
    uint64_t at = 0;
    planes->hi = (uint16_t *)carve(comparison, &at, n * 2);
    planes->grad = carve(comparison, &at, n * 4);
    planes->state.lo = carve(comparison, &at, n * lo);
    planes->state.m = carve(comparison, &at, n * moment);
    planes->state.v = has_v ? carve(comparison, &at, n * moment) : NULL;
    planes->state.m_scale = block > 0 ? carve(comparison, &at, n / block) : NULL;
    planes->state.v_scale = block > 0 && has_v ? carve(comparison, &at, n / block) : NULL;
    planes->p = (float *)carve(comparison, &at, n * 4);
    planes->wide_grad = (float *)carve(comparison, &at, n * 4);
    planes->m = (float *)carve(comparison, &at, n * 4);
    planes->v = (float *)carve(comparison, &at, n * 4);
    planes->weights = (uint16_t *)carve(comparison, &at, n * 2);
    comparison->loop = (struct ox_bench_loop){
        .planes = {.hi = (unsigned char *)planes->hi, .lo = planes->state.lo, .m = planes->state.m,
                   .v = planes->state.v, .m_scale = planes->state.m_scale, .v_scale = planes->state.v_scale,
                   .grad = planes->grad, .lo_lines = lo, .moment_lines = moment,
                   .grad_lines = (unsigned)ox_grad_bytes(comparison->grad_dtype)},
        .p = planes->p, .grad = planes->wide_grad, .m = planes->m, .v = planes->v, .weights = planes->weights,
        .hyper = &comparison->hyper,
    };
}

static float gradient(uint64_t idx) {
    uint32_t word = (uint32_t)idx * 2654435761u;
    word = (word ^ word >> 15) * 2246822519u;
    word ^= word >> 13;
    return ((float)word * 0x1p-32f - 0.5f) * 1e-3f;
}

static void fill_share(void *context, uint32_t idx, uint32_t count) {
    struct comparison *const comparison = context;
    struct planes *const planes = &comparison->planes;
    const struct ox_range range = ox_pool_range(comparison->params, GRAIN, idx, count);
    for (uint64_t i = range.begin; i < range.end; i++) {
        const float grad = gradient(i);
        if (comparison->grad_dtype == OX_GRAD_BF16) {
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

/* Fills weights and gradients and zeroes the moments; the first update fills those. */
static void fill_planes(struct comparison *comparison, struct ox_state_format format, enum ox_grad_dtype grad_dtype) {
    comparison->format = format;
    comparison->grad_dtype = grad_dtype;
    memset(comparison->arena.base, 0, comparison->arena.bytes);
    lay_out(comparison);
    ox_pool_run(comparison->pool, fill_share, comparison);
}

/* ---- the two sides -------------------------------------------------------------------------------------- */

static uint64_t thread_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static void fused_share(void *context, uint32_t idx, uint32_t count) {
    struct comparison *const comparison = context;
    const struct planes *const planes = &comparison->planes;
    const struct ox_range chunk = comparison->chunk, share = ox_pool_range(chunk.end - chunk.begin, GRAIN, idx, count);
    const struct ox_range range = {.begin = chunk.begin + share.begin, .end = chunk.begin + share.end};
    struct ox_update_sums sums = {0};
    struct ox_update_span span = {
        .hi = planes->hi + range.begin,
        .hi_out = planes->hi + range.begin,
        .state = ox_state_planes_skip(comparison->format.moments, planes->state, range.begin),
        .grad = (const unsigned char *)planes->grad + range.begin * ox_grad_bytes(comparison->grad_dtype),
        .grad_dtype = comparison->grad_dtype,
        .decay = true,
        .first = range.begin,
        .count = range.end - range.begin,
        .sums = comparison->sums_up ? &sums : NULL,
    };
    if (comparison->saves) {
        const struct ox_state_planes room = {
            .lo = planes->p, .m = planes->m, .v = planes->state.v == NULL ? NULL : planes->v,
            .m_scale = planes->state.m_scale == NULL ? NULL : (uint8_t *)planes->wide_grad,
            .v_scale = planes->state.v_scale == NULL ? NULL : (uint8_t *)planes->wide_grad + comparison->params};
        span.replaced_hi = planes->weights + range.begin;
        span.replaced_state = ox_state_planes_skip(comparison->format.moments, room, range.begin);
    }
    if (comparison->ahead) {
        span.weights_only = true;
        span.replaced_hi = planes->weights + range.begin;
    }
    const uint64_t begin_ns = thread_ns();
    comparison->nonfinite += ox_update_run(comparison->isa, comparison->format, &span, &comparison->hyper);
    comparison->work += thread_ns() - begin_ns;
}

static void loop_share(void *context, uint32_t idx, uint32_t count) {
    struct comparison *const comparison = context;
    const uint64_t begin_ns = thread_ns();
    const uint64_t sum = ox_bench_loop_run(&comparison->loop, ox_pool_range(comparison->params, GRAIN, idx, count));
    if (idx < SUMS) {
        comparison->sums[idx] += sum;
    }
    comparison->work += thread_ns() - begin_ns;
}

/* ---- timing ---------------------------------------------------------------------------------------------- */

struct duration {
    double wall, work; /* seconds by the clock, and of processor time */
};

/* Loops run one after another; count 0 runs the optimizer, which sums up, saves, makes weights alone, or does none of
 * these. */
struct runner {
    enum ox_bench_loop_kind kinds[3];
    unsigned count;
    bool sums_up, saves, ahead;
};

/* Times one side once. */
static struct duration timed(struct comparison *comparison, const struct runner *runner) {
    comparison->work = 0;
    const uint64_t begin_ns = ox_clock_ns();
    for (unsigned i = 0; i < runner->count; i++) {
        comparison->loop.kind = runner->kinds[i];
        ox_pool_run(comparison->pool, loop_share, comparison);
    }
    if (runner->count == 0) {
        comparison->sums_up = runner->sums_up;
        comparison->saves = runner->saves;
        comparison->ahead = runner->ahead;
        for (uint64_t at = 0; at < comparison->params; at += CHUNK_ELEMS) {
            comparison->chunk = (struct ox_range){at, ox_min_u64(at + CHUNK_ELEMS, comparison->params)};
            ox_pool_run(comparison->pool, fused_share, comparison);
        }
    }
    return (struct duration){.wall = (double)(ox_clock_ns() - begin_ns) * 1e-9,
                             .work = (double)comparison->work * 1e-9};
}

/* The result of comparing something with the optimizer. */
struct pair {
    double fused_seconds, other_seconds;
    double ratio, ratio_of_work; /* the other's time divided by the optimizer's */
};

/* Times the optimizer and the other side alternately; fails when the optimizer saw a non-finite value. */
static enum ox_status compare(struct comparison *comparison, const struct runner *other, struct pair *out) {
    static const struct runner fused = {.count = 0};
    double fused_wall[OX_BENCH_ROUNDS_MAX], fused_work[OX_BENCH_ROUNDS_MAX];
    double other_wall[OX_BENCH_ROUNDS_MAX], other_work[OX_BENCH_ROUNDS_MAX];
    timed(comparison, &fused);
    timed(comparison, other);
    for (uint32_t i = 0; i < comparison->rounds; i++) {
        const struct duration theirs = timed(comparison, other), ours = timed(comparison, &fused);
        fused_wall[i] = ours.wall;
        fused_work[i] = ours.work;
        other_wall[i] = theirs.wall;
        other_work[i] = theirs.work;
    }
    const uint32_t rounds = comparison->rounds;
    *out = (struct pair){ox_probe_median(fused_wall, rounds), ox_probe_median(other_wall, rounds),
                         ox_bench_median_ratio(other_wall, fused_wall, rounds),
                         ox_bench_median_ratio(other_work, fused_work, rounds)};
    if (comparison->nonfinite != 0) {
        return ox_fail(OX_E_CORRUPT, "the optimizer made %" PRIu64 " non-finite values from finite ones; memory or "
                                     "processor of this machine is faulty", (uint64_t)comparison->nonfinite);
    }
    return OX_OK;
}

/* ---- records ----------------------------------------------------------------------------------------------- */

static void add_share(struct ox_bench *bench, const char *base, const char *what, double value, double limit) {
    ox_bench_add(bench, &(struct ox_bench_figure){.value = value, .unit = OX_BENCH_SHARE, .limit = limit}, "%s.%s",
                 base, what);
}

/* Compares with the same update that does more, or less: the ratios of time and of processor time. */
static enum ox_status measure_more(struct comparison *comparison, const char *base, const char *what,
                                   const struct runner *more) {
    struct pair pair;
    const enum ox_status status = compare(comparison, more, &pair);
    if (status == OX_OK) {
        char work[32];
        snprintf(work, sizeof work, "%s.work", what);
        add_share(comparison->bench, base, what, pair.ratio, 0.0);
        add_share(comparison->bench, base, work, pair.ratio_of_work, 0.0);
    }
    return status;
}

/* With sums of the bits of its planes (--verify-memory); and as an update in backward may be: with a copy of what it
 * replaces, or of the weights alone, with a copy of those. */
static enum ox_status measure_extras(struct comparison *comparison, const char *base) {
    static const struct runner summed = {.count = 0, .sums_up = true}, saved = {.count = 0, .saves = true};
    static const struct runner ahead = {.count = 0, .ahead = true}, both = {.count = 0, .ahead = true, .sums_up = true};
    enum ox_status status = measure_more(comparison, base, "with_sums", &summed);
    OX_THEN(status, measure_more(comparison, base, "with_saved", &saved));
    OX_THEN(status, measure_more(comparison, base, "weights_alone", &ahead));
    OX_THEN(status, measure_more(comparison, base, "weights_alone_with_sums", &both));
    return status;
}

/* Compares with the plain loop. Only AdamW with fp32 moments has a limit. */
static enum ox_status measure_stream(struct comparison *comparison, struct ox_state_format format,
                                     enum ox_grad_dtype grad_dtype) {
    static const struct runner stream = {.kinds = {OX_BENCH_LOOP_STREAM}, .count = 1};
    struct ox_bench *const bench = comparison->bench;
    char base[48];
    snprintf(base, sizeof base, "adam.%s.%s.grad_%s", ox_optim_kind_name(format.kind), ox_moments_name(format.moments),
             grad_dtype == OX_GRAD_BF16 ? "bf16" : "f32");
    fill_planes(comparison, format, grad_dtype);
    struct pair pair;
    OX_TRY(compare(comparison, &stream, &pair));
    const struct ox_update_traffic traffic = ox_update_traffic_of(format, grad_dtype);
    const double param_bytes = traffic.read + traffic.written, params = (double)comparison->params;
    ox_bench_add(bench, &(struct ox_bench_figure){.value = param_bytes, .unit = "B/param"}, "%s.bytes", base);
    ox_bench_add(bench, &(struct ox_bench_figure){.value = pair.fused_seconds * 1e9 / params, .unit = "ns/param"},
                 "%s.time", base);
    ox_bench_add(bench, &(struct ox_bench_figure){.value = param_bytes * params / pair.fused_seconds, .unit = "B/s",
                                                  .limit = param_bytes * params / pair.other_seconds,
                                                  .ratio = pair.ratio}, "%s.rate", base);
    ox_bench_add(bench, &(struct ox_bench_figure){.value = param_bytes * params / pair.other_seconds, .unit = "B/s"},
                 "%s.plain_loop", base);
    add_share(bench, base, "work", pair.ratio_of_work, 0.0);
    if (format.kind == OX_OPTIM_ADAMW && format.moments == OX_MOMENTS_F32) {
        add_share(bench, base, "of_plain_loop", pair.ratio, STREAM_LIMIT);
    }
    return measure_extras(comparison, base);
}

/* Compares with three passes. Only fp32 gradients have a limit. */
static enum ox_status measure_passes(struct comparison *comparison) {
    static const struct runner passes = {
        .kinds = {OX_BENCH_LOOP_SCALE, OX_BENCH_LOOP_UPDATE, OX_BENCH_LOOP_ROUND}, .count = 3};
    for (unsigned dtype = OX_GRAD_F32; dtype <= OX_GRAD_BF16; dtype++) {
        const bool bf16 = dtype == OX_GRAD_BF16;
        const char *const base = bf16 ? "adam.three_passes.grad_bf16" : "adam.three_passes.grad_f32";
        fill_planes(comparison, (struct ox_state_format){OX_OPTIM_ADAMW, OX_MOMENTS_F32, false}, dtype);
        struct pair pair;
        const enum ox_status status = compare(comparison, &passes, &pair);
        if (status != OX_OK) {
            return status;
        }
        const double time = pair.other_seconds * 1e9 / (double)comparison->params;
        ox_bench_add(comparison->bench, &(struct ox_bench_figure){.value = time, .unit = "ns/param"}, "%s.time", base);
        add_share(comparison->bench, base, "work", pair.ratio_of_work, 0.0);
        add_share(comparison->bench, base, "by_one", pair.ratio, bf16 ? 0.0 : PASSES_LIMIT);
    }
    return OX_OK;
}

/* ---- the part ------------------------------------------------------------------------------------------------ */

static bool wants(const struct ox_bench *bench, enum ox_moments moments) {
    const char *const request = bench->config->bench.state_format;
    return strcmp(request, "all") == 0 || strcmp(request, ox_moments_name(moments)) == 0;
}

/* A brief bench measures only AdamW with fp32 gradients. */
static enum ox_status measure_all(struct comparison *comparison) {
    const struct ox_bench *const bench = comparison->bench;
    enum ox_status status = OX_OK;
    for (unsigned kind = 0; kind < (bench->brief ? 1u : (unsigned)OX_OPTIM_KIND_COUNT); kind++) {
        for (unsigned moments = 0; moments < OX_MOMENTS_COUNT; moments++) {
            const struct ox_state_format format = {kind, moments, false};
            if (wants(bench, moments) && status == OX_OK) {
                status = measure_stream(comparison, format, OX_GRAD_F32);
            }
            if (wants(bench, moments) && status == OX_OK && kind == OX_OPTIM_ADAMW && !bench->brief) {
                status = measure_stream(comparison, format, OX_GRAD_BF16);
            }
        }
    }
    return status == OX_OK && !bench->brief && wants(bench, OX_MOMENTS_F32) ? measure_passes(comparison) : status;
}

static enum ox_status set_up(struct comparison *comparison) {
    const struct ox_config *const config = comparison->bench->config;
    const uint64_t default_params = (comparison->bench->brief ? BRIEF_MEGAPARAMS : FULL_MEGAPARAMS) * OX_MIB;
    comparison->params =
        config->bench.size_bytes == 0 ? default_params : config->bench.size_bytes / PARAM_BYTES / GRAIN * GRAIN;
    comparison->rounds = ox_bench_rounds(comparison->bench, 9, 3);
    if (comparison->params == 0) {
        return ox_fail(OX_E_CONFIG, "--size: %" PRIu64 " bytes are too few for the planes; give at least %dB",
                       config->bench.size_bytes, PARAM_BYTES * GRAIN);
    }
    enum ox_status status = ox_isa_pick(config->place.isa, &comparison->isa);
    OX_THEN(status, ox_pool_open(ox_bench_threads(config->place.optimizer_threads), &comparison->pool));
    OX_THEN(status, ox_bench_arena_open("adam", comparison->params * PARAM_BYTES + 32 * OX_MIB, &comparison->arena));
    const struct ox_optim_settings settings = {.learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
                                              .weight_decay = 0.01, .grad_scale = 0.5, .step = 100};
    ox_optim_hyper_init(&settings, &comparison->hyper);
    return status;
}

enum ox_status ox_bench_adam(struct ox_bench *bench) {
    struct comparison *const comparison = calloc(1, sizeof *comparison);
    if (comparison == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the measurement");
    }
    comparison->bench = bench;
    enum ox_status status = set_up(comparison);
    if (status == OX_OK) {
        struct ox_probe_load meter;
        ox_bench_note(bench, "adam: %.1f million parameters, %" PRIu32 " thread%s, %s, median of %" PRIu32 " rounds",
                      (double)comparison->params * 1e-6, ox_pool_size(comparison->pool),
                      ox_plural(ox_pool_size(comparison->pool)), ox_isa_name(comparison->isa),
                      comparison->rounds);
        ox_probe_load_begin(&meter);
        status = measure_all(comparison);
        if (status == OX_OK) {
            ox_bench_add_load(&meter, bench, "adam");
        }
    }
    ox_arena_close(&comparison->arena);
    ox_pool_close(&comparison->pool);
    free(comparison);
    return status == OX_OK && bench->gpu != NULL ? ox_bench_gpu_adam(bench) : status;
}
