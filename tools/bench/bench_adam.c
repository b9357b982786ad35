/* `offload bench adam`: how near to the speed of memory the optimizer runs. Each optimizer and format of state goes
 * over planes far larger than the caches, against a plain loop that reads and writes the same bytes of the same planes
 * and computes nothing; and AdamW in one pass against the three passes of an engine that scales the gradient, updates
 * fp32 copies and rounds the weights in turn.
 *
 * Both of a pair are timed in turn, so that what else runs on the machine slows both, and the median of the rounds'
 * ratios counts. Bytes are counted by the formats: what a parameter's planes hold, read and written once. All stores
 * are ordinary ones. `work` is the ratio in processor time, which other processes disturb less. */
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
    PARAM_BYTES = 34,             /* of a parameter in all planes of all contestants */
    FULL_MEGAPARAMS = 48, BRIEF_MEGAPARAMS = 16,
};

#define STREAM_LIMIT 0.92
#define PASSES_LIMIT 1.5

/* ---- the planes of all contestants --------------------------------------------------------------------- */

struct planes {
    uint16_t *hi;
    void *grad;
    struct ox_state_planes state;
    /* of the three passes */
    float *p, *wide_grad, *m, *v;
    uint16_t *weights;
};

struct contest {
    struct ox_bench *bench;
    struct ox_pool *pool;
    struct ox_arena arena;
    struct planes planes;
    struct ox_state_format format;
    enum ox_grad_dtype grad_dtype;
    enum ox_isa isa;
    struct ox_adam_hyper hyper;
    struct ox_bench_loop loop;
    uint64_t params;
    uint32_t rounds;
    _Atomic uint64_t work;      /* nanoseconds of processor time that the threads took */
    _Atomic uint64_t nonfinite; /* what the optimizer counted */
    uint64_t sums[SUMS];        /* what the threads read, so that no read is left out */
};

static uint64_t moment_bytes(enum ox_moments moments) {
    return moments == OX_MOMENTS_Q8 ? 1 : moments == OX_MOMENTS_BF16 ? 2 : 4;
}

static uint64_t grad_bytes(enum ox_grad_dtype dtype) {
    return dtype == OX_GRAD_BF16 ? 2 : 4;
}

/* Planes begin on huge pages of their own, each a little further into them, so that they do not meet in one set of the
 * caches. */
static unsigned char *carve(struct contest *contest, uint64_t *at, uint64_t bytes) {
    enum { HUGE_PAGE = 2 << 20, SKEW = 4096 + 5 * LINE };
    const uint64_t skew = *at / HUGE_PAGE % 13 * SKEW / LINE * LINE;
    unsigned char *const plane = contest->arena.base + *at + skew;
    *at = ox_align_up(*at + skew + bytes, HUGE_PAGE);
    OX_ASSERT(*at <= contest->arena.bytes);
    return plane;
}

static void lay_out(struct contest *contest) {
    const uint64_t n = contest->params;
    const bool q8 = contest->format.moments == OX_MOMENTS_Q8, has_v = ox_optim_has_v(contest->format.kind);
    const uint64_t moment = moment_bytes(contest->format.moments);
    struct planes *const planes = &contest->planes;
    uint64_t at = 0;
    planes->hi = (uint16_t *)carve(contest, &at, n * 2);
    planes->grad = carve(contest, &at, n * 4);
    planes->state.lo = carve(contest, &at, n * (q8 ? 1 : 2));
    planes->state.m = carve(contest, &at, n * moment);
    planes->state.v = has_v ? carve(contest, &at, n * moment) : NULL;
    planes->state.m_scale = q8 ? carve(contest, &at, n / OX_Q8_BLOCK) : NULL;
    planes->state.v_scale = q8 && has_v ? carve(contest, &at, n / OX_Q8_BLOCK) : NULL;
    planes->p = (float *)carve(contest, &at, n * 4);
    planes->wide_grad = (float *)carve(contest, &at, n * 4);
    planes->m = (float *)carve(contest, &at, n * 4);
    planes->v = (float *)carve(contest, &at, n * 4);
    planes->weights = (uint16_t *)carve(contest, &at, n * 2);
    contest->loop = (struct ox_bench_loop){
        .planes = {.hi = (unsigned char *)planes->hi, .lo = planes->state.lo, .m = planes->state.m,
                   .v = planes->state.v, .m_scale = planes->state.m_scale, .v_scale = planes->state.v_scale,
                   .grad = planes->grad, .lo_lines = q8 ? 1 : 2, .moment_lines = (unsigned)moment,
                   .grad_lines = (unsigned)grad_bytes(contest->grad_dtype)},
        .p = planes->p, .grad = planes->wide_grad, .m = planes->m, .v = planes->v, .weights = planes->weights,
        .hyper = &contest->hyper,
    };
}

static float gradient(uint64_t idx) {
    uint32_t word = (uint32_t)idx * 2654435761u;
    word = (word ^ word >> 15) * 2246822519u;
    word ^= word >> 13;
    return ((float)word * 0x1p-32f - 0.5f) * 1e-3f;
}

static void fill_share(void *context, uint32_t idx, uint32_t count) {
    struct contest *const contest = context;
    struct planes *const planes = &contest->planes;
    const struct ox_range range = ox_pool_range(contest->params, GRAIN, idx, count);
    for (uint64_t i = range.begin; i < range.end; i++) {
        const float grad = gradient(i);
        if (contest->grad_dtype == OX_GRAD_BF16) {
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
static void begin(struct contest *contest, struct ox_state_format format, enum ox_grad_dtype grad_dtype) {
    contest->format = format;
    contest->grad_dtype = grad_dtype;
    memset(contest->arena.base, 0, contest->arena.bytes);
    lay_out(contest);
    ox_pool_run(contest->pool, fill_share, contest);
}

/* ---- the contestants ------------------------------------------------------------------------------------ */

static uint64_t thread_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static void *at(void *plane, uint64_t bytes) {
    return plane == NULL ? NULL : (unsigned char *)plane + bytes;
}

static void fused_share(void *context, uint32_t idx, uint32_t count) {
    struct contest *const contest = context;
    const struct planes *const planes = &contest->planes;
    const struct ox_range range = ox_pool_range(contest->params, GRAIN, idx, count);
    const uint64_t moment = moment_bytes(contest->format.moments);
    const uint64_t lo = contest->format.moments == OX_MOMENTS_Q8 ? 1 : 2;
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
        .grad = at(planes->grad, range.begin * grad_bytes(contest->grad_dtype)),
        .grad_dtype = contest->grad_dtype,
        .decay = true,
        .first = range.begin,
        .count = range.end - range.begin,
    };
    const uint64_t begin_ns = thread_ns();
    contest->nonfinite += ox_update_run(contest->isa, contest->format, &span, &contest->hyper);
    contest->work += thread_ns() - begin_ns;
}

static void loop_share(void *context, uint32_t idx, uint32_t count) {
    struct contest *const contest = context;
    const uint64_t begin_ns = thread_ns();
    const uint64_t sum = ox_bench_loop_run(&contest->loop, ox_pool_range(contest->params, GRAIN, idx, count));
    if (idx < SUMS) {
        contest->sums[idx] += sum;
    }
    contest->work += thread_ns() - begin_ns;
}

/* ---- timing ---------------------------------------------------------------------------------------------- */

struct duration {
    double wall, work; /* seconds; of the clock, and of processors */
};

/* Loops that are run one after another; none of them: the optimizer. */
struct runner {
    enum ox_bench_loop_kind kinds[3];
    unsigned count;
};

static struct duration timed(struct contest *contest, const struct runner *runner) {
    contest->work = 0;
    const uint64_t begin_ns = ox_clock_ns();
    for (unsigned i = 0; i < runner->count; i++) {
        contest->loop.kind = runner->kinds[i];
        ox_pool_run(contest->pool, loop_share, contest);
    }
    if (runner->count == 0) {
        ox_pool_run(contest->pool, fused_share, contest);
    }
    return (struct duration){.wall = (double)(ox_clock_ns() - begin_ns) * 1e-9,
                             .work = (double)contest->work * 1e-9};
}

/* One contestant beside the optimizer. */
struct pair {
    double fused_seconds, other_seconds;
    double ratio, ratio_of_work; /* the other's time by the optimizer's */
};

static enum ox_status race(struct contest *contest, const struct runner *other, struct pair *out) {
    static const struct runner fused = {.count = 0};
    double fused_wall[OX_BENCH_ROUNDS_MAX], fused_work[OX_BENCH_ROUNDS_MAX];
    double other_wall[OX_BENCH_ROUNDS_MAX], other_work[OX_BENCH_ROUNDS_MAX];
    timed(contest, &fused);
    timed(contest, other);
    for (uint32_t i = 0; i < contest->rounds; i++) {
        const struct duration theirs = timed(contest, other), ours = timed(contest, &fused);
        fused_wall[i] = ours.wall;
        fused_work[i] = ours.work;
        other_wall[i] = theirs.wall;
        other_work[i] = theirs.work;
    }
    *out = (struct pair){ox_bench_median(fused_wall, contest->rounds), ox_bench_median(other_wall, contest->rounds),
                         ox_bench_median_ratio(other_wall, fused_wall, contest->rounds),
                         ox_bench_median_ratio(other_work, fused_work, contest->rounds)};
    if (contest->nonfinite != 0) {
        return ox_fail(OX_E_CORRUPT, "the optimizer made %" PRIu64 " values of finite ones that are not; the memory or "
                                     "the processor of this machine is at fault", (uint64_t)contest->nonfinite);
    }
    return OX_OK;
}

/* ---- records ----------------------------------------------------------------------------------------------- */

static void add_share(struct ox_bench *bench, const char *base, const char *what, double value, double limit) {
    ox_bench_add(bench, &(struct ox_bench_figure){.value = value, .unit = OX_BENCH_SHARE, .limit = limit,
                                                  .ratio = limit > 0.0 ? value / limit : 0.0}, "%s.%s", base, what);
}

/* Against the plain loop. The limit is on AdamW with fp32 moments; the others are told. */
static enum ox_status measure_stream(struct contest *contest, struct ox_state_format format,
                                     enum ox_grad_dtype grad_dtype) {
    static const struct runner stream = {.kinds = {OX_BENCH_LOOP_STREAM}, .count = 1};
    struct ox_bench *const bench = contest->bench;
    char base[48];
    snprintf(base, sizeof base, "adam.%s.%s.grad_%s", ox_optim_kind_name(format.kind), ox_moments_name(format.moments),
             grad_dtype == OX_GRAD_BF16 ? "bf16" : "f32");
    begin(contest, format, grad_dtype);
    struct pair pair;
    const enum ox_status status = race(contest, &stream, &pair);
    if (status != OX_OK) {
        return status;
    }
    const struct ox_update_traffic traffic = ox_update_traffic_of(format, grad_dtype);
    const double param_bytes = traffic.read + traffic.written, params = (double)contest->params;
    ox_bench_add(bench, &(struct ox_bench_figure){.value = param_bytes, .unit = "B/param"}, "%s.bytes", base);
    ox_bench_add(bench, &(struct ox_bench_figure){.value = pair.fused_seconds * 1e9 / params, .unit = "ns/param"},
                 "%s.time", base);
    ox_bench_add(bench, &(struct ox_bench_figure){.value = param_bytes * params / pair.fused_seconds, .unit = "B/s",
                                                  .limit = param_bytes * params / pair.other_seconds,
                                                  .ratio = pair.ratio}, "%s.rate", base);
    add_share(bench, base, "work", pair.ratio_of_work, 0.0);
    if (format.kind == OX_OPTIM_ADAMW && format.moments == OX_MOMENTS_F32) {
        add_share(bench, base, "of_plain_loop", pair.ratio, STREAM_LIMIT);
    }
    return OX_OK;
}

/* The limit is on fp32 gradients; what three passes do with others is told. */
static enum ox_status measure_passes(struct contest *contest) {
    static const struct runner passes = {
        .kinds = {OX_BENCH_LOOP_SCALE, OX_BENCH_LOOP_UPDATE, OX_BENCH_LOOP_ROUND}, .count = 3};
    for (unsigned dtype = OX_GRAD_F32; dtype <= OX_GRAD_BF16; dtype++) {
        const bool bf16 = dtype == OX_GRAD_BF16;
        const char *const base = bf16 ? "adam.three_passes.grad_bf16" : "adam.three_passes.grad_f32";
        begin(contest, (struct ox_state_format){OX_OPTIM_ADAMW, OX_MOMENTS_F32}, dtype);
        struct pair pair;
        const enum ox_status status = race(contest, &passes, &pair);
        if (status != OX_OK) {
            return status;
        }
        const double time = pair.other_seconds * 1e9 / (double)contest->params;
        ox_bench_add(contest->bench, &(struct ox_bench_figure){.value = time, .unit = "ns/param"}, "%s.time", base);
        add_share(contest->bench, base, "work", pair.ratio_of_work, 0.0);
        add_share(contest->bench, base, "by_one", pair.ratio, bf16 ? 0.0 : PASSES_LIMIT);
    }
    return OX_OK;
}

/* ---- the part ------------------------------------------------------------------------------------------------ */

static bool wants(const struct ox_bench *bench, enum ox_moments moments) {
    const char *const request = bench->config->state_format;
    return strcmp(request, "all") == 0 || strcmp(request, ox_moments_name(moments)) == 0;
}

/* A probe takes AdamW with fp32 gradients alone. */
static enum ox_status measure_all(struct contest *contest) {
    const struct ox_bench *const bench = contest->bench;
    enum ox_status status = OX_OK;
    for (unsigned kind = 0; kind < (bench->brief ? 1u : (unsigned)OX_OPTIM_KIND_COUNT); kind++) {
        for (unsigned moments = 0; moments < OX_MOMENTS_COUNT; moments++) {
            const struct ox_state_format format = {kind, moments};
            if (wants(bench, moments) && status == OX_OK) {
                status = measure_stream(contest, format, OX_GRAD_F32);
            }
            if (wants(bench, moments) && status == OX_OK && kind == OX_OPTIM_ADAMW && !bench->brief) {
                status = measure_stream(contest, format, OX_GRAD_BF16);
            }
        }
    }
    return status == OX_OK && !bench->brief && wants(bench, OX_MOMENTS_F32) ? measure_passes(contest) : status;
}

enum ox_status ox_bench_isa(const struct ox_config *config, enum ox_isa *out) {
    *out = ox_isa_best();
    for (unsigned isa = 0; isa < OX_ISA_COUNT; isa++) {
        if (strcmp(config->isa, ox_isa_name(isa)) == 0) {
            *out = isa;
        }
    }
    if (!ox_isa_available(*out)) {
        return ox_fail(OX_E_CONFIG, "--isa %s: this machine has no such instructions; its widest are %s", config->isa,
                       ox_isa_name(ox_isa_best()));
    }
    return OX_OK;
}

static enum ox_status set_up(struct contest *contest) {
    const struct ox_config *const config = contest->bench->config;
    const uint64_t default_params = (contest->bench->brief ? BRIEF_MEGAPARAMS : FULL_MEGAPARAMS) * OX_MIB;
    contest->params = config->size_bytes == 0 ? default_params : config->size_bytes / PARAM_BYTES / GRAIN * GRAIN;
    contest->rounds = ox_bench_rounds(contest->bench, 9, 3);
    if (contest->params == 0) {
        return ox_fail(OX_E_CONFIG, "--size: %" PRIu64 " bytes are too few for the planes; give at least %d",
                       config->size_bytes, PARAM_BYTES * GRAIN);
    }
    enum ox_status status = ox_bench_isa(config, &contest->isa);
    if (status == OX_OK) {
        status = ox_pool_open(ox_bench_threads(config->optimizer_threads), &contest->pool);
    }
    if (status == OX_OK) {
        status = ox_bench_arena_open("adam", contest->params * PARAM_BYTES + 32 * OX_MIB, &contest->arena);
    }
    const struct ox_adam_settings settings = {.learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
                                              .weight_decay = 0.01, .grad_scale = 0.5, .step = 100};
    ox_adam_hyper_init(&settings, &contest->hyper);
    return status;
}

enum ox_status ox_bench_adam(struct ox_bench *bench) {
    struct contest *const contest = calloc(1, sizeof *contest);
    if (contest == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to measure with");
    }
    contest->bench = bench;
    enum ox_status status = set_up(contest);
    if (status == OX_OK) {
        struct ox_bench_meter meter;
        ox_bench_note(bench, "adam: %.1f million parameters, %" PRIu32 " threads, %s, median of %" PRIu32 " rounds",
                      (double)contest->params * 1e-6, ox_pool_size(contest->pool), ox_isa_name(contest->isa),
                      contest->rounds);
        ox_bench_meter_begin(&meter);
        status = measure_all(contest);
        if (status == OX_OK) {
            ox_bench_meter_end(&meter, bench, "adam");
        }
    }
    ox_arena_close(&contest->arena);
    ox_pool_close(&contest->pool);
    free(contest);
    return status == OX_OK && bench->gpu != NULL ? ox_bench_gpu_adam(bench) : status;
}
