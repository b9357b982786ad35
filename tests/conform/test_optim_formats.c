/* Optimizers and formats of their state: every variant against the scalar one with tolerance zero, the formats against
 * their documented bounds, and training with narrow moments against training with fp32 ones. */
#include "base/planes.h"
#include "base/prng/prng.h"
#include "cpu_optim/optim.h"
#include "tests/kit/draw.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { HI, HI_OUT, LO, M, V, M_SCALE, V_SCALE, GRAD, PLANE_COUNT };
enum { GUARD = 64, GUARD_BYTE = 0xa5 };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { MANY = 100001, SOME = 20011, MANY_STEPS = 5 };
#else
enum { MANY = 3000001, SOME = 100003, MANY_STEPS = 20 };
#endif

/* The planes of one set of parameters, with guards before and behind. */
struct planes {
    struct ox_state_format format;
    uint64_t count;
    unsigned char *memory[PLANE_COUNT];
    size_t memory_bytes[PLANE_COUNT];
    unsigned char *plane[PLANE_COUNT];
};

static size_t elem_bytes(struct ox_state_format format, unsigned idx) {
    const bool q8 = format.moments == OX_MOMENTS_Q8;
    switch (idx) {
    case GRAD:
        return 4;
    case M:
    case V:
        return q8 ? 1 : format.moments == OX_MOMENTS_BF16 ? 2 : 4;
    case LO:
        return q8 ? 1 : 2;
    case HI:
    case HI_OUT:
        return 2;
    default:
        return 1;
    }
}

/* `shift` elements of misalignment. Room is made for whole blocks, whose rest is zero. */
static struct planes planes_new(struct ox_state_format format, uint64_t count, unsigned shift) {
    struct planes planes = {.format = format, .count = count};
    const uint64_t blocks = (count + OX_Q8_BLOCK - 1) / OX_Q8_BLOCK;
    for (unsigned i = 0; i < PLANE_COUNT; i++) {
        const uint64_t elems = i == M_SCALE || i == V_SCALE ? blocks : blocks * OX_Q8_BLOCK;
        const size_t body = elems * elem_bytes(format, i), before = GUARD + shift * elem_bytes(format, i);
        planes.memory_bytes[i] = before + body + GUARD;
        planes.memory[i] = malloc(planes.memory_bytes[i]);
        if (planes.memory[i] == NULL) {
            exit(1);
        }
        memset(planes.memory[i], GUARD_BYTE, planes.memory_bytes[i]);
        planes.plane[i] = planes.memory[i] + before;
        memset(planes.plane[i], 0, body);
    }
    return planes;
}

static void planes_free(struct planes *planes) {
    for (unsigned i = 0; i < PLANE_COUNT; i++) {
        free(planes->memory[i]);
    }
}

/* Another set with the same contents. */
static struct planes planes_twin(const struct planes *source) {
    struct planes twin = *source;
    for (unsigned i = 0; i < PLANE_COUNT; i++) {
        twin.memory[i] = malloc(source->memory_bytes[i]);
        if (twin.memory[i] == NULL) {
            exit(1);
        }
        memcpy(twin.memory[i], source->memory[i], source->memory_bytes[i]);
        twin.plane[i] = twin.memory[i] + (source->plane[i] - source->memory[i]);
    }
    return twin;
}

/* Which NaN fp32 moments leave is open: here they become the same one. `hi_plane` was written last. */
static void canonical_nan(struct planes *planes, unsigned hi_plane) {
    for (uint64_t i = 0; i < planes->count && planes->format.moments == OX_MOMENTS_F32; i++) {
        uint16_t *const hi = (uint16_t *)planes->plane[hi_plane] + i, *const lo = (uint16_t *)planes->plane[LO] + i;
        if (isnan(ox_plane_join(*hi, *lo))) {
            *hi = 0x7fc0;
            *lo = 0;
        }
        for (unsigned plane = M; plane <= V; plane++) {
            float *const value = (float *)planes->plane[plane] + i;
            *value = isnan(*value) ? NAN : *value;
        }
    }
}

/* All memory: planes, guards, and what a span leaves of its last block. */
static bool planes_equal(const struct planes *a, const struct planes *b) {
    bool equal = true;
    for (unsigned i = 0; i < PLANE_COUNT; i++) {
        equal = equal && memcmp(a->memory[i], b->memory[i], a->memory_bytes[i]) == 0;
    }
    return equal;
}

static struct ox_state_planes state_of(const struct planes *planes) {
    return (struct ox_state_planes){
        .lo = planes->plane[LO],
        .m = planes->plane[M],
        .v = planes->plane[V],
        .m_scale = planes->plane[M_SCALE],
        .v_scale = planes->plane[V_SCALE],
    };
}

enum { DECAY = 1, IN_PLACE = 2, BF16 = 4 };

static struct ox_update_span span_of(const struct planes *planes, unsigned flags) {
    return (struct ox_update_span){
        .hi = (const uint16_t *)planes->plane[HI],
        .hi_out = (uint16_t *)planes->plane[(flags & IN_PLACE) != 0 ? HI : HI_OUT],
        .state = state_of(planes),
        .grad = planes->plane[GRAD],
        .grad_dtype = (flags & BF16) != 0 ? OX_GRAD_BF16 : OX_GRAD_F32,
        .decay = (flags & DECAY) != 0,
        .stream = 7,
        .first = UINT64_C(0xffffffc0), /* the low half of the index wraps after one block */
        .count = planes->count,
    };
}

static struct ox_optim_hyper hyper_of(uint64_t step, double grad_scale) {
    const struct ox_optim_settings settings = {
        .learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1,
        .grad_scale = grad_scale, .step = step, .seed = 42,
    };
    struct ox_optim_hyper hyper;
    ox_optim_hyper_init(&settings, &hyper);
    return hyper;
}

static void set_value(struct planes *planes, unsigned plane, uint64_t idx, float value) {
    const struct ox_state_planes state = state_of(planes);
    if (plane == GRAD) {
        memcpy(planes->plane[GRAD] + idx * 4, &value, sizeof value);
    } else if (plane == HI) {
        void *const lo = planes->plane[LO] + idx * elem_bytes(planes->format, LO);
        CHECK(ox_state_master_set(planes->format.moments, (uint16_t *)planes->plane[HI] + idx, lo, 1, &value) == 0);
    } else if (planes->format.moments == OX_MOMENTS_Q8) {
        planes->plane[plane][idx] = (unsigned char)ox_f32_bits(value); /* any code is a value */
        (plane == M ? state.m_scale : state.v_scale)[idx / OX_Q8_BLOCK] = (uint8_t)(90 + idx / OX_Q8_BLOCK % 40);
    } else if (planes->format.moments == OX_MOMENTS_BF16) {
        ((uint16_t *)planes->plane[plane])[idx] = ox_bf16_from_f32(value);
    } else {
        ((float *)planes->plane[plane])[idx] = value;
    }
}

static void fill_random(struct planes *planes) {
    for (uint64_t i = 0; i < planes->count; i++) {
        set_value(planes, HI, i, random_f32());
        set_value(planes, M, i, random_f32());
        set_value(planes, V, i, fabsf(random_f32()));
        set_value(planes, GRAD, i, random_f32());
    }
}

/* Any bits: infinities, NaN, denormals, negative v, the ends of the range of scales. */
static void fill_bits(struct planes *planes) {
    static const uint32_t special[] = {
        0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00800000, 0x3f800000, 0xbf808000, 0x3f7f8000,
        0x7f7fffff, 0xff7f8000, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff, 0x7effffff,
        0x7f000000, 0x1e3ce508, 0x20000000, 0x5f7fffff,
    };
    enum { SPECIALS = sizeof special / sizeof *special };
    for (unsigned plane = 0; plane < PLANE_COUNT; plane++) {
        const uint64_t blocks = (planes->count + OX_Q8_BLOCK - 1) / OX_Q8_BLOCK;
        const uint64_t elems = plane == M_SCALE || plane == V_SCALE ? blocks : planes->count;
        const size_t bytes = elem_bytes(planes->format, plane);
        for (uint64_t i = 0; i < elems; i++) {
            const uint32_t pick = random_u32();
            const uint32_t bits = pick % 4 == 0 ? special[pick / 4 % SPECIALS] : pick;
            /* Two-byte elements take the upper half, which has the exponent. */
            const uint32_t top = bytes == 4 ? bits : bytes == 2 && plane != LO ? bits >> 16 : bits;
            memcpy(planes->plane[plane] + i * bytes, &top, bytes);
        }
    }
}

static uint64_t run_steps(struct planes *planes, enum ox_isa isa, unsigned flags, unsigned steps) {
    uint64_t bad_count = 0;
    for (unsigned step = 1; step <= steps; step++) {
        const struct ox_optim_hyper hyper = hyper_of(step, step % 2 == 0 ? 0.37 : 1.0);
        const struct ox_update_span span = span_of(planes, flags ^ (step % 2 == 0 ? BF16 : 0));
        bad_count += ox_update_run(isa, planes->format, &span, &hyper);
        canonical_nan(planes, (flags & IN_PLACE) != 0 ? HI : HI_OUT);
    }
    return bad_count;
}

static void compare(const struct planes *start, unsigned flags, unsigned steps) {
    struct planes expected = planes_twin(start);
    const uint64_t expected_bad = run_steps(&expected, OX_ISA_SCALAR, flags, steps);
    for (unsigned isa = OX_ISA_SCALAR + 1; isa < OX_ISA_COUNT; isa++) {
        if (!ox_isa_available(isa)) {
            continue;
        }
        struct planes got = planes_twin(start);
        CHECK(run_steps(&got, isa, flags, steps) == expected_bad);
        const bool equal = planes_equal(&expected, &got);
        if (!equal) {
            printf("%s, %s, %s: %llu elements, flags %u\n", ox_isa_name(isa), ox_optim_kind_name(start->format.kind),
                   ox_moments_name(start->format.moments), (unsigned long long)start->count, flags);
        }
        CHECK(equal);
        planes_free(&got);
    }
    planes_free(&expected);
}

static void test_lengths(struct ox_state_format format) {
    for (uint64_t count = 0; count <= 67; count++) {
        for (unsigned flags = 0; flags < 8; flags++) {
            struct planes start = planes_new(format, count, (unsigned)(count + flags) % 4);
            fill_random(&start);
            compare(&start, flags, 3);
            planes_free(&start);
        }
    }
    struct planes start = planes_new(format, 64 * 5 + 33, 1);
    fill_random(&start);
    compare(&start, DECAY | IN_PLACE, 3);
    planes_free(&start);
}

static void test_bits(struct ox_state_format format) {
    struct planes start = planes_new(format, SOME, 3);
    fill_bits(&start);
    compare(&start, DECAY, 1);
    compare(&start, IN_PLACE | BF16, 3);
    planes_free(&start);
}

static void test_many(struct ox_state_format format) {
    const bool all = format.kind == OX_OPTIM_ADAMW && format.moments != OX_MOMENTS_F32; /* F32: in test_adam.c */
    struct planes start = planes_new(format, all ? MANY : SOME, 1);
    fill_random(&start);
    compare(&start, DECAY | IN_PLACE, MANY_STEPS);
    planes_free(&start);
}

/* Threads, and spans that end anywhere a tensor may, change nothing. */
static void test_division(struct ox_state_format format) {
    struct planes start = planes_new(format, 50021, 0);
    fill_random(&start);
    struct planes expected = planes_twin(&start);
    const struct ox_optim_hyper hyper = hyper_of(3, 0.5);
    const struct ox_update_span whole = span_of(&expected, DECAY | IN_PLACE);
    CHECK(ox_update_run(ox_isa_best(), format, &whole, &hyper) == 0);
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct ox_pool *pool = NULL;
        REQUIRE_OK(ox_pool_open(threads, &pool));
        struct planes got = planes_twin(&start);
        const struct ox_update_span span = span_of(&got, DECAY | IN_PLACE);
        CHECK(ox_update_run_pool(pool, ox_isa_best(), format, &span, &hyper) == 0);
        CHECK(planes_equal(&expected, &got));
        planes_free(&got);
        ox_pool_close(&pool);
    }
    struct planes got = planes_twin(&start);
    const uint64_t cut = 64 * 77;
    struct ox_update_span left = span_of(&got, DECAY | IN_PLACE), right = left;
    left.count = cut;
    right.count -= cut;
    right.first += cut;
    right.hi = right.hi_out = left.hi_out + cut;
    right.grad = got.plane[GRAD] + cut * 4;
    right.state = (struct ox_state_planes){
        .lo = got.plane[LO] + cut * elem_bytes(format, LO),
        .m = got.plane[M] + cut * elem_bytes(format, M),
        .v = got.plane[V] + cut * elem_bytes(format, V),
        .m_scale = got.plane[M_SCALE] + cut / OX_Q8_BLOCK,
        .v_scale = got.plane[V_SCALE] + cut / OX_Q8_BLOCK,
    };
    CHECK(ox_update_run(ox_isa_best(), format, &right, &hyper) == 0);
    CHECK(ox_update_run(ox_isa_best(), format, &left, &hyper) == 0);
    CHECK(planes_equal(&expected, &got));
    planes_free(&got);
    planes_free(&expected);
    planes_free(&start);
}

static void test_bad_count(struct ox_state_format format, enum ox_isa isa) {
    struct planes planes = planes_new(format, 200, 0);
    const struct ox_optim_hyper hyper = hyper_of(5, 1.0);
    fill_random(&planes);
    for (unsigned i = 0; i < 200; i++) {
        set_value(&planes, V, i, 1.0f); /* Q8: code 0, v = 0 */
    }
    struct ox_update_span span = span_of(&planes, DECAY | IN_PLACE);
    CHECK(ox_update_run(isa, format, &span, &hyper) == 0);
    set_value(&planes, GRAD, 3, NAN);
    set_value(&planes, GRAD, 4, -INFINITY);
    ((uint16_t *)planes.plane[HI])[41] = 0x7f80; /* an infinite weight */
    memset(planes.plane[LO] + 41 * elem_bytes(format, LO), 0, elem_bytes(format, LO));
    set_value(&planes, GRAD, 5, 4.0f);
    set_value(&planes, GRAD, 199, NAN);  /* in the part that fills no vector */
    CHECK(ox_update_run(isa, format, &span, &hyper) == 4);
    if (format.moments != OX_MOMENTS_F32) {
        float m[64], p;
        ox_state_moment_get(format.moments, OX_MOMENT_M, &span.state, 64, m);
        ox_state_master_get(format.moments, span.hi + 3, (uint8_t *)span.state.lo + 3 * elem_bytes(format, LO), 1, &p);
        CHECK(m[3] == 0.0f && m[41] == 0.0f && isnan(p) && m[5] != 0.0f);
    }
    planes_free(&planes);
}

/* ---- formats ---------------------------------------------------------------------------------------- */

static void test_layout(void) {
    static unsigned char base[262144 * 10]; /* never looked at */
    static const double bytes_per_param[OX_MOMENTS_COUNT] = {12.0, 8.0, 5.03125};
    static const double with_one_moment[OX_MOMENTS_COUNT] = {8.0, 6.0, 4.015625};
    for (unsigned k = 0; k < OX_OPTIM_KIND_COUNT; k++) {
        for (unsigned mo = 0; mo < OX_MOMENTS_COUNT; mo++) {
            const struct ox_state_format format = {k, mo, false};
            const double expected = ox_optim_has_v(k) ? bytes_per_param[mo] : with_one_moment[mo];
            const struct ox_update_traffic traffic = ox_update_traffic_of(format, OX_GRAD_BF16);
            CHECK(traffic.written == expected && traffic.read == expected + 2);
            for (uint64_t count = 2048; count <= 262144; count += count < 16384 ? 2048 : 245760) {
                const struct ox_state_layout layout = ox_state_layout_of(format, count);
                const double used = (double)count * (expected - 2);
                CHECK(layout.lo_bytes % 4096 == 0 && layout.bytes % 4096 == 0 && layout.m_offset == layout.lo_bytes);
                CHECK(layout.m_offset % 64 == 0 && (double)layout.bytes >= used && (double)layout.bytes < used + 8192);
                CHECK(layout.v_offset >= layout.m_scale_offset && layout.v_scale_offset >= layout.v_offset);
            }
            const struct ox_state_layout large = ox_state_layout_of(format, 262144);
            CHECK((double)large.bytes == 262144 * (expected - 2)); /* no padding in a chunk of the usual size */
            const struct ox_state_planes planes = ox_state_planes_at(format, base, 262144, 128);
            CHECK((unsigned char *)planes.lo == base + 128 * (mo == OX_MOMENTS_Q8 ? 1 : 2));
            CHECK((unsigned char *)planes.m == base + large.m_offset + 128 * elem_bytes(format, M));
            CHECK(ox_optim_has_v(k) ? (unsigned char *)planes.v == base + large.v_offset + 128 * elem_bytes(format, V)
                                    : planes.v == NULL);
            CHECK(mo == OX_MOMENTS_Q8 ? planes.m_scale == base + large.m_scale_offset + 2 : planes.m_scale == NULL);
            CHECK((planes.v_scale != NULL) == (mo == OX_MOMENTS_Q8 && ox_optim_has_v(k)));
        }
    }
    const struct ox_state_layout today = ox_state_layout_of((struct ox_state_format){0}, 4096);
    CHECK(today.m_offset == 8192 && today.v_offset == 8192 + 16384 && today.bytes == 4096 * 10);
}

/* The error of one stored value that random rounding may leave; to nearest it is half of that. */
static double bound_of(enum ox_moments moments, unsigned plane, double value, double largest) {
    if (plane == HI) {
        return moments == OX_MOMENTS_Q8 ? ldexp(fabs(value), -15) : 0.0;
    }
    if (moments != OX_MOMENTS_Q8) {
        return moments == OX_MOMENTS_BF16 ? fmax(ldexp(fabs(value), -7), 0x1p-133) : 0.0; /* denormals: the step */
    }
    const double relative = fabs(value) / 16, absolute = largest / (plane == M ? 992 : 253952);
    return relative > absolute ? relative : absolute;
}

struct values {
    float p[OX_Q8_BLOCK], m[OX_Q8_BLOCK], v[OX_Q8_BLOCK];
};

static void values_get(const struct planes *planes, struct values *out) {
    const struct ox_state_planes state = state_of(planes);
    ox_state_master_get(planes->format.moments, (const uint16_t *)planes->plane[HI], state.lo, OX_Q8_BLOCK, out->p);
    ox_state_moment_get(planes->format.moments, OX_MOMENT_M, &state, OX_Q8_BLOCK, out->m);
    ox_state_moment_get(planes->format.moments, OX_MOMENT_V, &state, OX_Q8_BLOCK, out->v);
}

static uint64_t values_set(struct planes *planes, const struct values *values) {
    const struct ox_state_planes state = state_of(planes);
    return ox_state_master_set(planes->format.moments, (uint16_t *)planes->plane[HI], state.lo, OX_Q8_BLOCK,
                               values->p) +
           ox_state_moment_set(planes->format.moments, OX_MOMENT_M, &state, OX_Q8_BLOCK, values->m) +
           ox_state_moment_set(planes->format.moments, OX_MOMENT_V, &state, OX_Q8_BLOCK, values->v);
}

static struct values values_random(void) {
    struct values values;
    const int size = (int)(random_u32() % 80) - 40, spread = 1 + (int)(random_u32() % 24);
    for (unsigned i = 0; i < OX_Q8_BLOCK; i++) {
        values.p[i] = random_f32();
        values.m[i] = ldexpf((float)(int32_t)random_u32() * 0x1p-31f, size - (int)(random_u32() % spread));
        values.v[i] = ldexpf((float)random_u32() * 0x1p-32f, 2 * size - (int)(random_u32() % (2 * spread)));
    }
    return values;
}

static double largest_of(const float *values) {
    double largest = 0.0;
    for (unsigned i = 0; i < OX_Q8_BLOCK; i++) {
        largest = fabs(values[i]) > largest ? fabs(values[i]) : largest;
    }
    return largest;
}

static void check_bounds(enum ox_moments moments, const struct values *exact, const struct values *got,
                         double share) {
    const double m_largest = largest_of(exact->m), v_largest = largest_of(exact->v);
    unsigned far = 0, zeroed = 0;
    for (unsigned i = 0; i < OX_Q8_BLOCK; i++) {
        far += fabs((double)got->p[i] - exact->p[i]) > share * bound_of(moments, HI, exact->p[i], 0.0);
        far += fabs((double)got->m[i] - exact->m[i]) > share * bound_of(moments, M, exact->m[i], m_largest);
        /* The floor under v: the smallest code, a whole step. */
        const double floor_share = got->v[i] > exact->v[i] ? 1.0 : share;
        far += fabs((double)got->v[i] - exact->v[i]) > floor_share * bound_of(moments, V, exact->v[i], v_largest);
        zeroed += exact->v[i] > 0.0f && got->v[i] == 0.0f;
    }
    CHECK(far == 0);
    CHECK(zeroed == 0);
}

/* Conversion rounds to nearest, repeats without loss, and stays within the bounds after an update with random rounding.
 */
static void test_bounds(enum ox_moments moments) {
    const struct ox_state_format wide = {.kind = OX_OPTIM_ADAMW}, format = {OX_OPTIM_ADAMW, moments, false};
    struct planes exact = planes_new(wide, OX_Q8_BLOCK, 0), narrow = planes_new(format, OX_Q8_BLOCK, 0);
    for (unsigned round = 0; round < 2000; round++) {
        const struct values start = values_random();
        struct values once, again, expected;
        CHECK(values_set(&narrow, &start) == 0);
        values_get(&narrow, &once);
        check_bounds(moments, &start, &once, 0.5);
        CHECK(values_set(&exact, &once) == 0);
        const struct ox_optim_hyper hyper = hyper_of(1 + round, 1.0);
        for (unsigned i = 0; i < OX_Q8_BLOCK; i++) {
            set_value(&narrow, GRAD, i, start.m[i] * 2.0f);
            set_value(&exact, GRAD, i, start.m[i] * 2.0f);
        }
        const struct ox_update_span span = span_of(&narrow, IN_PLACE | DECAY);
        const struct ox_update_span exact_span = span_of(&exact, IN_PLACE | DECAY);
        CHECK(ox_update_run(ox_isa_best(), format, &span, &hyper) == 0);
        CHECK(ox_update_run(ox_isa_best(), wide, &exact_span, &hyper) == 0);
        values_get(&exact, &expected);
        values_get(&narrow, &once);
        check_bounds(moments, &expected, &once, 1.0);
        CHECK(values_set(&narrow, &once) == 0);
        values_get(&narrow, &again);
        CHECK(memcmp(&once, &again, sizeof once) == 0);
    }
    struct values values = values_random();
    values.m[3] = INFINITY;
    values.p[4] = NAN;
    values.v[5] = moments == OX_MOMENTS_F32 ? -INFINITY : 2e38f;
    CHECK(values_set(&narrow, &values) == 3);
    planes_free(&exact);
    planes_free(&narrow);
}

/* Random rounding keeps the mean: over many seeds the stored value is the exact one. With n rounds the mean's
 * deviation is at most step / (2 sqrt(n)); six of those are allowed. */
static void test_mean(enum ox_moments moments) {
    enum { ROUNDS = 4096 };
    const struct ox_state_format wide = {.kind = OX_OPTIM_ADAMW}, format = {OX_OPTIM_ADAMW, moments, false};
    struct planes exact = planes_new(wide, OX_Q8_BLOCK, 0), narrow = planes_new(format, OX_Q8_BLOCK, 0);
    const struct values start = values_random();
    CHECK(values_set(&narrow, &start) == 0);
    struct values once, expected;
    values_get(&narrow, &once);
    CHECK(values_set(&exact, &once) == 0);
    for (unsigned i = 0; i < OX_Q8_BLOCK; i++) {
        set_value(&narrow, GRAD, i, start.m[i] * 1.1f);
        set_value(&exact, GRAD, i, start.m[i] * 1.1f);
    }
    struct ox_optim_hyper hyper = hyper_of(9, 1.0);
    const struct ox_update_span exact_span = span_of(&exact, IN_PLACE);
    CHECK(ox_update_run(ox_isa_best(), wide, &exact_span, &hyper) == 0);
    values_get(&exact, &expected);
    double sum[3][OX_Q8_BLOCK] = {0};
    for (hyper.seed = 0; hyper.seed < ROUNDS; hyper.seed++) {
        struct planes got = planes_twin(&narrow);
        const struct ox_update_span span = span_of(&got, IN_PLACE);
        CHECK(ox_update_run(ox_isa_best(), format, &span, &hyper) == 0);
        values_get(&got, &once);
        for (unsigned i = 0; i < OX_Q8_BLOCK; i++) {
            sum[0][i] += once.p[i];
            sum[1][i] += once.m[i];
            sum[2][i] += once.v[i];
        }
        planes_free(&got);
    }
    unsigned far = 0;
    const double m_largest = largest_of(expected.m), v_largest = largest_of(expected.v);
    for (unsigned i = 0; i < OX_Q8_BLOCK; i++) {
        const double allowed = 6 / (2 * sqrt(ROUNDS));
        const double v_step = bound_of(moments, V, expected.v[i], v_largest);
        far += fabs(sum[0][i] / ROUNDS - expected.p[i]) > allowed * bound_of(moments, HI, expected.p[i], 0.0);
        far += fabs(sum[1][i] / ROUNDS - expected.m[i]) > allowed * bound_of(moments, M, expected.m[i], m_largest);
        /* At the floor v is kept up, not kept in the mean. */
        far += expected.v[i] > v_step && fabs(sum[2][i] / ROUNDS - expected.v[i]) > allowed * v_step;
    }
    CHECK(far == 0);
    planes_free(&exact);
    planes_free(&narrow);
}

/* ---- training --------------------------------------------------------------------------------------- */

enum { FEATURES = 512, BATCH = 8, STEPS = 2000, SAMPLES = 1024 };

static float sample_feature(unsigned sample, unsigned feature) {
    const float size = ldexpf(1.0f, -(int)(feature % 8)); /* features over two orders of magnitude */
    return size * (float)ox_normal(11, sample, feature);
}

/* Logistic regression on labels that a hidden direction decides but for noise. */
struct problem {
    float x[SAMPLES][FEATURES];
    float y[SAMPLES];
};

static void problem_init(struct problem *problem) {
    for (unsigned s = 0; s < SAMPLES; s++) {
        double score = 0.5 * ox_normal(13, 0, s);
        for (unsigned f = 0; f < FEATURES; f++) {
            problem->x[s][f] = sample_feature(s, f);
            score += problem->x[s][f] * ox_normal(12, 0, f) / ldexp(1.0, -(int)(f % 8)) / 16.0;
        }
        problem->y[s] = score > 0.0 ? 1.0f : 0.0f;
    }
}

static double score_of(const struct problem *problem, unsigned sample, const float *weights) {
    double score = 0.0;
    for (unsigned f = 0; f < FEATURES; f++) {
        score += (double)(problem->x[sample][f] * weights[f]);
    }
    return score;
}

static double loss_of(const struct problem *problem, const float *weights) {
    double sum = 0.0;
    for (unsigned s = 0; s < SAMPLES; s++) {
        const double score = score_of(problem, s, weights);
        sum += log1p(exp(-fabs(score))) + (problem->y[s] > 0.5f ? fmax(-score, 0.0) : fmax(score, 0.0));
    }
    return sum / SAMPLES;
}

/* The loss after STEPS steps of small batches, the learning rate falling to nothing. */
static double train(const struct problem *problem, struct ox_state_format format, double learning_rate) {
    struct planes planes = planes_new(format, FEATURES, 0);
    const struct ox_update_span span = span_of(&planes, IN_PLACE | DECAY);
    float weights[FEATURES], *const grad = (float *)planes.plane[GRAD];
    for (unsigned step = 1; step <= STEPS; step++) {
        ox_state_master_get(format.moments, span.hi, span.state.lo, FEATURES, weights);
        memset(grad, 0, FEATURES * sizeof *grad);
        for (unsigned b = 0; b < BATCH; b++) {
            const unsigned sample = (unsigned)ox_permute(5, step / (SAMPLES / BATCH), SAMPLES,
                                                         (step * BATCH + b) % SAMPLES);
            const double score = score_of(problem, sample, weights);
            const float error = (float)(1.0 / (1.0 + exp(-score)) - problem->y[sample]) / BATCH;
            for (unsigned f = 0; f < FEATURES; f++) {
                grad[f] += error * problem->x[sample][f];
            }
        }
        const struct ox_optim_settings settings = {
            .learning_rate = learning_rate * (1.0 - (step - 1.0) / STEPS),
            .beta1 = 0.9, .beta2 = format.kind == OX_OPTIM_LION ? 0.99 : 0.999, .eps = 1e-8,
            .weight_decay = format.kind == OX_OPTIM_SGD ? 1e-4 : 0.1, .grad_scale = 1.0, .step = step, .seed = 3,
        };
        struct ox_optim_hyper hyper;
        ox_optim_hyper_init(&settings, &hyper);
        CHECK(ox_update_run(ox_isa_best(), format, &span, &hyper) == 0);
    }
    ox_state_master_get(format.moments, span.hi, span.state.lo, FEATURES, weights);
    planes_free(&planes);
    return loss_of(problem, weights);
}

static void test_training(void) {
    static const double rates[OX_OPTIM_KIND_COUNT] = {0.01, 0.003, 0.2, 0.01};
    struct problem *const problem = malloc(sizeof *problem);
    if (problem == NULL) {
        exit(1);
    }
    problem_init(problem);
    const float zero[FEATURES] = {0};
    printf("loss before: %.5f\n", loss_of(problem, zero));
    for (unsigned kind = 0; kind < OX_OPTIM_KIND_COUNT; kind++) {
        double wide = 0.0;
        for (unsigned moments = 0; moments < OX_MOMENTS_COUNT; moments++) {
            const double loss = train(problem, (struct ox_state_format){kind, moments, false}, rates[kind]);
            wide = moments == OX_MOMENTS_F32 ? loss : wide;
            printf("%s, %s: loss %.5f, %+.2f %%\n", ox_optim_kind_name(kind), ox_moments_name(moments), loss,
                   100.0 * (loss / wide - 1.0));
            CHECK(loss < 0.45);
            CHECK(fabs(loss / wide - 1.0) < 0.02);
        }
    }
    free(problem);
}

/* v follows gradients that became smaller, although each step moves it by a thousandth. */
static void test_v_falls(enum ox_moments moments) {
    const struct ox_state_format format = {OX_OPTIM_ADAMW, moments, false};
    struct planes planes = planes_new(format, 4096, 0);
    const struct ox_update_span span = span_of(&planes, IN_PLACE);
    for (unsigned step = 1; step <= 6000; step++) {
        if (step == 1 || step == 3001) {
            for (unsigned i = 0; i < planes.count; i++) {
                set_value(&planes, GRAD, i, step == 1 ? 1.0f : 0.5f);
            }
        }
        const struct ox_optim_settings settings = {.learning_rate = 0.0, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
                                                  .grad_scale = 1.0, .step = step};
        struct ox_optim_hyper hyper;
        ox_optim_hyper_init(&settings, &hyper);
        CHECK(ox_update_run(ox_isa_best(), format, &span, &hyper) == 0);
    }
    float v[4096];
    double mean = 0.0, square = 0.0;
    ox_state_moment_get(moments, OX_MOMENT_V, &span.state, 4096, v);
    for (unsigned i = 0; i < 4096; i++) {
        mean += v[i] / 4096.0;
    }
    for (unsigned i = 0; i < 4096; i++) {
        square += (v[i] - mean) * (v[i] - mean) / 4096.0;
    }
    const double expected = 0.25 + (0.75 - pow(0.999, 3000)) * pow(0.999, 3000);
    printf("%s: v fell from 1 to %.4f, expected %.4f, deviation %.1f %%\n", ox_moments_name(moments), mean, expected,
           100.0 * sqrt(square) / mean);
    CHECK(fabs(mean / expected - 1.0) < 0.02);
    CHECK(sqrt(square) / mean < 0.25);
    planes_free(&planes);
}

int main(void) {
    test_layout();
    for (unsigned kind = 0; kind < OX_OPTIM_KIND_COUNT; kind++) {
        for (unsigned moments = 0; moments < OX_MOMENTS_COUNT; moments++) {
            const struct ox_state_format format = {kind, moments, false};
            test_lengths(format);
            test_bits(format);
            test_many(format);
            test_division(format);
            for (unsigned isa = 0; isa < OX_ISA_COUNT; isa++) {
                if (ox_isa_available(isa)) {
                    test_bad_count(format, isa);
                }
            }
        }
    }
    for (unsigned moments = 0; moments < OX_MOMENTS_COUNT; moments++) {
        test_bounds(moments);
        test_mean(moments);
        test_v_falls(moments);
    }
    test_training();
    return test_end();
}
