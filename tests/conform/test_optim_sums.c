/* Sums over the bits of planes that updates take on their way: the same on every instruction set and number of threads,
 * those of what is read are those of what was written before, and every flipped bit shows in the sum of its plane. The
 * updates themselves have the bits that they have without sums, while they save what they replace, and where weights go
 * ahead of the state. */
#include "base/planes.h"
#include "cpu_optim/optim.h"
#include "tests/kit/draw.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

enum { HI, LO, M, V, M_SCALE, V_SCALE, GRAD, PLANE_COUNT };
enum { ROOM = 20096, SMALL = 200, FIRST = 3 * OX_Q8_BLOCK };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { PAIRS = 2000, BIT_STRIDE = 11 };
#else
enum { PAIRS = 100000, BIT_STRIDE = 1 };
#endif

/* Planes with room for many elements. */
struct planes {
    _Alignas(64) unsigned char of[PLANE_COUNT][ROOM * 4];
};

static struct planes start, now, other, saved;

static uint64_t plane_bytes(struct ox_state_format format, unsigned plane, uint64_t count) {
    const uint32_t block = ox_scale_block_elems(format.moments);
    switch (plane) {
    case HI:
        return count * OX_HI_BYTES;
    case LO:
        return count * ox_lo_bytes(format.moments);
    case M:
    case V:
        return plane == V && !ox_optim_has_v(format.kind) ? 0 : count * ox_moment_bytes(format.moments);
    case M_SCALE:
    case V_SCALE:
        return block == 0 || (plane == V_SCALE && !ox_optim_has_v(format.kind)) ? 0 : (count + block - 1) / block;
    default:
        return 0;
    }
}

static struct ox_update_span span_of(struct ox_state_format format, struct planes *planes, uint64_t count,
                                     struct ox_update_sums *sums) {
    const bool has_v = ox_optim_has_v(format.kind), has_scales = format.moments == OX_MOMENTS_Q8;
    return (struct ox_update_span){
        .hi = (const uint16_t *)planes->of[HI],
        .hi_out = (uint16_t *)planes->of[HI],
        .state = {.lo = planes->of[LO], .m = planes->of[M], .v = has_v ? planes->of[V] : NULL,
                  .m_scale = has_scales ? planes->of[M_SCALE] : NULL,
                  .v_scale = has_scales && has_v ? planes->of[V_SCALE] : NULL},
        .grad = planes->of[GRAD],
        .decay = true,
        .stream = 3,
        .first = FIRST,
        .count = count,
        .sums = sums,
    };
}

static struct ox_optim_hyper hyper_of(uint64_t step) {
    const struct ox_optim_settings settings = {.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8,
                                              .weight_decay = 0.1, .grad_scale = 0.7, .step = step, .seed = 42};
    struct ox_optim_hyper hyper;
    ox_optim_hyper_init(&settings, &hyper);
    return hyper;
}

/* Numbers of every size, with zeros behind the last one. */
static void fill(struct ox_state_format format, uint64_t count) {
    memset(&start, 0, sizeof start);
    const struct ox_update_span span = span_of(format, &start, count, NULL);
    static float values[ROOM];
    for (int plane = 0; plane < 4; plane++) {
        for (uint64_t i = 0; i < count; i++) {
            const float value = random_f32();
            values[i] = plane == 2 ? fabsf(value) : value;
        }
        if (plane == 0) {
            CHECK(ox_state_master_set(format.moments, (uint16_t *)start.of[HI], start.of[LO], count, values) == 0);
        } else if (plane == 1) {
            CHECK(ox_state_moment_set(format.moments, OX_MOMENT_M, &span.state, count, values) == 0);
        } else if (plane == 2 && span.state.v != NULL) {
            CHECK(ox_state_moment_set(format.moments, OX_MOMENT_V, &span.state, count, values) == 0);
        } else if (plane == 3) {
            memcpy(start.of[GRAD], values, count * sizeof *values);
        }
    }
}

static bool same_sums(const struct ox_plane_sums *a, const struct ox_plane_sums *b) {
    return a->hi == b->hi && a->lo == b->lo && a->m == b->m && a->v == b->v;
}

static struct ox_plane_sums sums_now(struct ox_state_format format, uint64_t count) {
    const struct ox_update_span span = span_of(format, &now, count, NULL);
    struct ox_plane_sums sums = {0};
    ox_plane_sums_take(format.moments, span.hi, &span.state, span.first, count, &sums);
    return sums;
}

/* Two updates: sums are those of a pass of its own, before and after, and change no bit. */
static void check_updates(struct ox_state_format format, enum ox_isa isa, uint64_t count) {
    struct ox_plane_sums before = {0};
    now = other = start;
    for (uint64_t step = 1; step <= 2; step++) {
        const struct ox_optim_hyper hyper = hyper_of(step);
        struct ox_update_sums sums = {0};
        const struct ox_plane_sums expected = sums_now(format, count);
        const struct ox_update_span span = span_of(format, &now, count, &sums);
        const struct ox_update_span plain = span_of(format, &other, count, NULL);
        const uint64_t bad_count = ox_update_run(isa, format, &span, &hyper);
        CHECK(ox_update_run(isa, format, &plain, &hyper) == bad_count);
        CHECK(memcmp(&now, &other, sizeof now) == 0);
        CHECK(same_sums(&sums.read, &expected) && (step == 1 || same_sums(&sums.read, &before)));
        before = sums_now(format, count);
        CHECK(same_sums(&sums.written, &before));
    }
}

/* The same, with values that are not finite among the others: their groups go another way. */
static void check_nonfinite(struct ox_state_format format, enum ox_isa isa, uint64_t count) {
    for (uint64_t i = 5; i < count; i += 97) {
        ((float *)start.of[GRAD])[i] = i % 2 == 0 ? INFINITY : NAN;
    }
    now = start;
    struct ox_update_sums sums = {0};
    const struct ox_optim_hyper hyper = hyper_of(1);
    const struct ox_plane_sums before = sums_now(format, count);
    const struct ox_update_span span = span_of(format, &now, count, &sums);
    CHECK(ox_update_run(isa, format, &span, &hyper) > 0 || count <= 5 || format.kind == OX_OPTIM_LION);
    const struct ox_plane_sums after = sums_now(format, count);
    CHECK(same_sums(&sums.read, &before) && same_sums(&sums.written, &after));
}

static void check_threads(struct ox_state_format format, enum ox_isa isa, uint64_t count) {
    static const uint32_t threads[] = {1, 2, 3, 7};
    struct ox_update_sums expected = {0};
    const struct ox_optim_hyper hyper = hyper_of(1);
    for (int i = -1; i < 4; i++) {
        struct ox_pool *pool = NULL;
        struct ox_update_sums sums = {0};
        now = start;
        const struct ox_update_span span = span_of(format, &now, count, i < 0 ? &expected : &sums);
        if (i < 0) {
            CHECK(ox_update_run(OX_ISA_SCALAR, format, &span, &hyper) == 0);
            continue;
        }
        REQUIRE_OK(ox_pool_open(threads[i], &pool));
        CHECK(ox_update_run_pool(pool, isa, format, &span, &hyper) == 0);
        CHECK(same_sums(&sums.read, &expected.read) && same_sums(&sums.written, &expected.written));
        ox_pool_close(&pool);
    }
}

/* An update that saves what it replaces leaves the planes as they were in the other place, and has the same bits. */
static void check_saved(struct ox_state_format format, enum ox_isa isa, uint64_t count) {
    struct ox_update_sums expected = {0}, sums = {0};
    const struct ox_optim_hyper hyper = hyper_of(1);
    struct ox_pool *pool = NULL;
    REQUIRE_OK(ox_pool_open(3, &pool));
    now = other = start;
    memset(&saved, 0xa5, sizeof saved);
    const struct ox_update_span plain = span_of(format, &other, count, &expected);
    struct ox_update_span span = span_of(format, &now, count, &sums);
    span.replaced_hi = (uint16_t *)saved.of[HI];
    span.replaced_state = span_of(format, &saved, count, NULL).state;
    CHECK(ox_update_run(isa, format, &plain, &hyper) == 0);
    CHECK(ox_update_run_pool(pool, isa, format, &span, &hyper) == 0);
    ox_pool_close(&pool);
    CHECK(memcmp(&now, &other, sizeof now) == 0);
    CHECK(same_sums(&sums.read, &expected.read) && same_sums(&sums.written, &expected.written));
    for (unsigned plane = 0; plane < GRAD; plane++) {
        const uint64_t bytes = plane_bytes(format, plane, count);
        CHECK(memcmp(saved.of[plane], start.of[plane], bytes) == 0);
        CHECK(bytes == sizeof saved.of[plane] || saved.of[plane][bytes] == 0xa5);
    }
}

/* Where values are not finite, an update of weights alone counts them like one of all. */
static void check_nonfinite_alone(struct ox_state_format format, enum ox_isa isa, uint64_t count) {
    const struct ox_optim_hyper hyper = hyper_of(1);
    now = other = start;
    for (uint64_t i = 5; i < count; i += 97) {
        ((float *)now.of[GRAD])[i] = ((float *)other.of[GRAD])[i] = i % 2 == 0 ? INFINITY : NAN;
    }
    struct ox_update_span span = span_of(format, &now, count, NULL);
    const struct ox_update_span plain = span_of(format, &other, count, NULL);
    span.weights_only = true;
    const uint64_t bad_count = ox_update_run(isa, format, &span, &hyper);
    CHECK(bad_count == ox_update_run(isa, format, &plain, &hyper) && (bad_count > 0 || format.kind == OX_OPTIM_LION));
    CHECK(memcmp(now.of[LO], start.of[LO], sizeof now.of[LO] * (GRAD - LO)) == 0);
}

/* An update of weights alone gives them the bits of an update of all, saves those that it replaces, and leaves the
 * state as it was; an update of all from what was saved then gives the state its bits, and the weights the same ones
 * again. */
static void check_weights_alone(struct ox_state_format format, enum ox_isa isa, uint64_t count) {
    struct ox_update_sums expected = {0}, sums = {0};
    const struct ox_optim_hyper hyper = hyper_of(1);
    struct ox_pool *pool = NULL;
    REQUIRE_OK(ox_pool_open(3, &pool));
    now = other = start;
    memset(&saved, 0xa5, sizeof saved);
    const struct ox_update_span plain = span_of(format, &other, count, &expected);
    struct ox_update_span span = span_of(format, &now, count, &sums);
    span.weights_only = true;
    span.replaced_hi = (uint16_t *)saved.of[HI];
    CHECK(ox_update_run(isa, format, &plain, &hyper) == 0);
    CHECK(ox_update_run_pool(pool, isa, format, &span, &hyper) == 0);
    CHECK(memcmp(now.of[HI], other.of[HI], sizeof now.of[HI]) == 0);
    CHECK(memcmp(now.of[LO], start.of[LO], sizeof now - sizeof now.of[HI]) == 0);
    CHECK(memcmp(saved.of[HI], start.of[HI], count * OX_HI_BYTES) == 0 && saved.of[HI][count * OX_HI_BYTES] == 0xa5);
    const struct ox_plane_sums after = sums_now(format, count);
    CHECK(same_sums(&sums.read, &expected.read) && same_sums(&sums.written, &after));
    struct ox_update_span rest = span_of(format, &now, count, NULL);
    rest.hi = rest.hi_out = (uint16_t *)saved.of[HI];
    CHECK(ox_update_run_pool(pool, isa, format, &rest, &hyper) == 0);
    CHECK(memcmp(&now, &other, sizeof now) == 0);
    CHECK(memcmp(saved.of[HI], now.of[HI], count * OX_HI_BYTES) == 0);
    for (int saves = 0; saves <= 1; saves++) { /* without sums vectors do it directly */
        now = start;
        memset(&saved, 0xa5, sizeof saved);
        span.sums = NULL;
        span.replaced_hi = saves ? (uint16_t *)saved.of[HI] : NULL;
        CHECK(ox_update_run(isa, format, &span, &hyper) == 0);
        CHECK(memcmp(now.of[HI], other.of[HI], sizeof now.of[HI]) == 0);
        CHECK(memcmp(now.of[LO], start.of[LO], sizeof now - sizeof now.of[HI]) == 0);
        CHECK(!saves || memcmp(saved.of[HI], start.of[HI], count * OX_HI_BYTES) == 0);
    }
    check_nonfinite_alone(format, isa, count);
    ox_pool_close(&pool);
}

/* Spans that begin at blocks add up to the whole, with zeros between them or not. */
static void check_parts(struct ox_state_format format, enum ox_isa isa) {
    struct ox_update_sums whole = {0}, parts = {0};
    const struct ox_optim_hyper hyper = hyper_of(1);
    const uint64_t cuts[] = {0, 64, 640, 4160, 4160 + 1024};
    fill(format, cuts[4]);
    now = start;
    struct ox_update_span span = span_of(format, &now, cuts[4], &whole);
    CHECK(ox_update_run(isa, format, &span, &hyper) == 0);
    now = start;
    for (int i = 3; i >= 0; i--) {
        span = span_of(format, &now, cuts[i + 1] - cuts[i], &parts);
        span.hi += cuts[i];
        span.hi_out += cuts[i];
        span.state = ox_state_planes_skip(format.moments, span.state, cuts[i]);
        span.grad = (const float *)span.grad + cuts[i];
        span.first += cuts[i];
        CHECK(ox_update_run(isa, format, &span, &hyper) == 0);
    }
    CHECK(same_sums(&whole.read, &parts.read) && same_sums(&whole.written, &parts.written));
    fill(format, 100); /* zeros follow */
    now = start;
    const struct ox_plane_sums some = sums_now(format, 100), all = sums_now(format, 1024);
    CHECK(same_sums(&some, &all));
}

static bool sum_differs(const struct ox_plane_sums *a, const struct ox_plane_sums *b, unsigned plane) {
    const bool hi = a->hi != b->hi, lo = a->lo != b->lo, m = a->m != b->m, v = a->v != b->v;
    return hi == (plane == HI) && lo == (plane == LO) && m == (plane == M || plane == M_SCALE) &&
           v == (plane == V || plane == V_SCALE);
}

/* Flips single bits between two updates: each shows in the sum of its plane, and in no other. */
static uint64_t check_flips(struct ox_state_format format, enum ox_isa isa, uint64_t count, uint64_t stride) {
    struct ox_update_sums kept = {0};
    const struct ox_optim_hyper hyper[] = {hyper_of(1), hyper_of(2)};
    uint64_t flip_count = 0, missed = 0, nonfinite_count = 0;
    now = start;
    const struct ox_update_span first = span_of(format, &now, count, &kept);
    CHECK(ox_update_run(isa, format, &first, &hyper[0]) == 0);
    other = now;
    for (unsigned plane = 0; plane < GRAD; plane++) {
        const uint64_t bits = plane_bytes(format, plane, count) * 8;
        for (uint64_t bit = random_u32() % stride; bit < bits; bit += 1 + random_u32() % (2 * stride - 1)) {
            struct ox_update_sums sums = {0};
            for (unsigned i = 0; i < GRAD; i++) {
                memcpy(now.of[i], other.of[i], plane_bytes(format, i, count));
            }
            now.of[plane][bit / 8] ^= (unsigned char)(1u << bit % 8);
            const struct ox_update_span span = span_of(format, &now, count, &sums);
            nonfinite_count += ox_update_run(isa, format, &span, &hyper[1]);
            missed += !sum_differs(&sums.read, &kept.written, plane);
            flip_count++;
        }
    }
    CHECK(missed == 0 && nonfinite_count < flip_count);
    return flip_count;
}

/* Two flipped bits, somewhere in a plane: the share that is missed is as the header says. */
static void check_pairs(void) {
    const struct ox_state_format format = {OX_OPTIM_ADAMW, OX_MOMENTS_F32, false};
    const uint64_t count = 512;
    uint64_t missed = 0;
    fill(format, count);
    now = start;
    const struct ox_plane_sums kept = sums_now(format, count);
    for (unsigned i = 0; i < PAIRS; i++) {
        const uint32_t a = random_u32() % (512 * 32), b = random_u32() % (512 * 32);
        now.of[M][a / 8] ^= (unsigned char)(1u << a % 8);
        now.of[M][b / 8] ^= (unsigned char)(1u << b % 8);
        const struct ox_plane_sums sums = sums_now(format, count);
        missed += a != b && sums.m == kept.m;
        memcpy(now.of[M], start.of[M], count * 4);
    }
    printf("two flipped bits: %llu of %d missed\n", (unsigned long long)missed, PAIRS);
    CHECK(missed * 1024 < PAIRS + 4096); /* of few pairs some may be missed by chance: 3 of 2,000 were */
}

int main(void) {
    static const uint64_t counts[] = {0, 1, 63, 64, 100, 128, 191, SMALL, 1000, ROOM - 7};
    uint64_t flips = 0;
    for (unsigned kind = 0; kind < OX_OPTIM_KIND_COUNT; kind++) {
        for (unsigned moments = 0; moments < OX_MOMENTS_COUNT; moments++) {
            for (unsigned isa = 0; isa < OX_ISA_COUNT; isa++) {
                const struct ox_state_format format = {kind, moments, false};
                if (!ox_isa_available(isa)) {
                    continue;
                }
                for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
                    fill(format, counts[i]);
                    check_updates(format, isa, counts[i]);
                    check_threads(format, isa, counts[i]);
                    check_nonfinite(format, isa, counts[i]);
                }
                check_parts(format, isa);
                fill(format, ROOM);
                check_saved(format, isa, ROOM);
                check_weights_alone(format, isa, ROOM - 7);
                fill(format, SMALL);
                check_saved(format, isa, SMALL);
                check_weights_alone(format, isa, SMALL);
                flips += check_flips(format, isa, SMALL, BIT_STRIDE);
                fill(format, 5000);
                flips += check_flips(format, isa, 5000, 4001);
            }
        }
    }
    printf("%llu single bits flipped, all found\n", (unsigned long long)flips);
    check_pairs();
    return test_end();
}
