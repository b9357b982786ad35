/* Adam: every variant against the scalar one with tolerance zero, the scalar one against AdamW in double. */
#include "base/planes.h"
#include "base/prng/prng.h"
#include "cpu_optim/optim.h"
#include "tests/kit/draw.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { GUARD = 8, GUARD_BYTE = 0xa5 };

/* One set of planes with room before and behind, at a chosen misalignment. */
struct planes {
    void *memory[6];
    uint16_t *hi, *hi_out, *lo;
    float *m, *v;
    void *grad;
    uint64_t count;
};

#ifdef __SANITIZE_THREAD__
enum { MANY = 200001 }; /* each access costs twenty times as much there, and this part uses one thread */
#else
enum { MANY = 3000001 };
#endif

static void *plane_new(struct planes *planes, unsigned idx, size_t elem_bytes, unsigned shift) {
    const size_t bytes = (planes->count + 2 * GUARD + shift) * elem_bytes;
    planes->memory[idx] = malloc(bytes);
    if (planes->memory[idx] == NULL) {
        exit(1);
    }
    memset(planes->memory[idx], GUARD_BYTE, bytes);
    return (unsigned char *)planes->memory[idx] + (GUARD + shift) * elem_bytes;
}

static struct planes planes_new(uint64_t count, unsigned shift) {
    struct planes planes = {.count = count};
    planes.hi = plane_new(&planes, 0, 2, shift);
    planes.lo = plane_new(&planes, 1, 2, shift);
    planes.m = plane_new(&planes, 2, 4, shift);
    planes.v = plane_new(&planes, 3, 4, shift);
    planes.grad = plane_new(&planes, 4, 4, shift);
    planes.hi_out = plane_new(&planes, 5, 2, shift);
    return planes;
}

static void planes_free(struct planes *planes) {
    for (unsigned i = 0; i < sizeof planes->memory / sizeof *planes->memory; i++) {
        free(planes->memory[i]);
    }
}

static void planes_copy(struct planes *target, const struct planes *source) {
    memcpy(target->hi, source->hi, source->count * 2);
    memcpy(target->lo, source->lo, source->count * 2);
    memcpy(target->m, source->m, source->count * 4);
    memcpy(target->v, source->v, source->count * 4);
    memcpy(target->grad, source->grad, source->count * 4);
}

static void master_set(struct planes *planes, uint64_t idx, float value) {
    planes->hi[idx] = ox_plane_hi(value);
    planes->lo[idx] = ox_plane_lo(value);
}

static void grad_set(struct planes *planes, enum ox_grad_dtype dtype, uint64_t idx, float value) {
    if (dtype == OX_GRAD_BF16) {
        ((uint16_t *)planes->grad)[idx] = ox_bf16_from_f32(value);
    } else {
        ((float *)planes->grad)[idx] = value;
    }
}

static const struct ox_state_format adamw_f32 = {OX_OPTIM_ADAMW, OX_MOMENTS_F32, false};

static struct ox_update_span span_of(const struct planes *planes, enum ox_grad_dtype dtype, bool decay,
                                   bool in_place) {
    return (struct ox_update_span){
        .hi = planes->hi,
        .hi_out = in_place ? planes->hi : planes->hi_out,
        .state = {.lo = planes->lo, .m = planes->m, .v = planes->v},
        .grad = planes->grad,
        .grad_dtype = dtype,
        .decay = decay,
        .count = planes->count,
    };
}

static struct ox_optim_hyper hyper_of(uint64_t step, double grad_scale) {
    const struct ox_optim_settings settings = {
        .learning_rate = 1e-3,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .eps = 1e-8,
        .weight_decay = 0.1,
        .grad_scale = grad_scale,
        .step = step,
    };
    struct ox_optim_hyper hyper;
    ox_optim_hyper_init(&settings, &hyper);
    return hyper;
}

static bool same_f32(float a, float b) {
    return ox_f32_bits(a) == ox_f32_bits(b) || (isnan(a) && isnan(b));
}

/* Which NaN comes out is left open; all else must agree to the bit, the memory around included. */
static uint64_t differences(const struct planes *a, const struct planes *b, bool in_place) {
    const uint16_t *const hi_a = in_place ? a->hi : a->hi_out, *const hi_b = in_place ? b->hi : b->hi_out;
    uint64_t count = 0;
    for (uint64_t i = 0; i < a->count; i++) {
        const float p_a = ox_plane_join(hi_a[i], a->lo[i]), p_b = ox_plane_join(hi_b[i], b->lo[i]);
        count += !same_f32(p_a, p_b) || !same_f32(a->m[i], b->m[i]) || !same_f32(a->v[i], b->v[i]);
    }
    return count;
}

static bool guards_intact(const struct planes *planes) {
    static const size_t elem_bytes[] = {2, 2, 4, 4, 4, 2};
    const void *const first[] = {planes->hi, planes->lo, planes->m, planes->v, planes->grad, planes->hi_out};
    for (unsigned i = 0; i < 6; i++) {
        const unsigned char *const begin = first[i];
        const unsigned char *const end = begin + planes->count * elem_bytes[i];
        for (size_t j = 1; j <= GUARD * elem_bytes[i]; j++) {
            if (*(begin - j) != GUARD_BYTE || end[j - 1] != GUARD_BYTE) {
                return false;
            }
        }
    }
    return true;
}

static void fill_random(struct planes *planes, enum ox_grad_dtype dtype) {
    for (uint64_t i = 0; i < planes->count; i++) {
        master_set(planes, i, random_f32());
        planes->m[i] = random_f32();
        planes->v[i] = fabsf(random_f32());
        grad_set(planes, dtype, i, random_f32());
    }
}

/* Runs `steps` updates of the same start on the scalar variant and on `isa`. */
static void compare(enum ox_isa isa, const struct planes *start, enum ox_grad_dtype dtype, unsigned flags) {
    const bool decay = (flags & 1) != 0, in_place = (flags & 2) != 0;
    struct planes a = planes_new(start->count, flags >> 2), b = planes_new(start->count, flags >> 2);
    planes_copy(&a, start);
    planes_copy(&b, start);
    for (uint64_t step = 1; step <= 3; step++) {
        const struct ox_optim_hyper hyper = hyper_of(step, step == 2 ? 0.37 : 1.0);
        const struct ox_update_span span_a = span_of(&a, dtype, decay, in_place);
        const struct ox_update_span span_b = span_of(&b, dtype, decay, in_place);
        const uint64_t bad_a = ox_update_run(OX_ISA_SCALAR, adamw_f32, &span_a, &hyper);
        const uint64_t bad_b = ox_update_run(isa, adamw_f32, &span_b, &hyper);
        CHECK(bad_a == bad_b);
        CHECK(differences(&a, &b, in_place) == 0);
    }
    CHECK(guards_intact(&a));
    CHECK(guards_intact(&b));
    planes_free(&a);
    planes_free(&b);
}

static void test_lengths(enum ox_isa isa) {
    for (uint64_t count = 0; count <= 67; count++) {
        for (unsigned flags = 0; flags < 16; flags++) { /* decay, in place, misalignment 0 to 3 */
            for (unsigned dtype = OX_GRAD_F32; dtype <= OX_GRAD_BF16; dtype++) {
                struct planes start = planes_new(count, 0);
                fill_random(&start, dtype);
                compare(isa, &start, dtype, flags);
                planes_free(&start);
            }
        }
    }
}

/* Every combination of special values for master, m, v and gradient. */
static void test_specials(enum ox_isa isa) {
    static const uint32_t bits[] = {
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x00012345,
        0x3f800000, 0xbf808000, 0x3f7f8000, 0x7f7fffff, 0xff7f8000, 0x7f800000, 0xff800000,
        0x7fc00000, 0x7f800001, 0xffffffff, 0x7fffffff, 0x1e3ce508, 0x20000000,
    };
    enum { N = sizeof bits / sizeof *bits };
    struct planes start = planes_new(N * N * N * N, 0);
    for (unsigned dtype = OX_GRAD_F32; dtype <= OX_GRAD_BF16; dtype++) {
        for (uint64_t i = 0; i < start.count; i++) {
            master_set(&start, i, ox_f32_from_bits(bits[i % N]));
            start.m[i] = ox_f32_from_bits(bits[i / N % N]);
            start.v[i] = ox_f32_from_bits(bits[i / N / N % N]);
            grad_set(&start, dtype, i, ox_f32_from_bits(bits[i / N / N / N % N]));
        }
        compare(isa, &start, dtype, 3 | (dtype << 2));
        compare(isa, &start, dtype, 0);
    }
    planes_free(&start);
}

static uint64_t run_steps(struct planes *planes, enum ox_isa isa, struct ox_pool *pool, uint64_t step_count) {
    uint64_t bad_count = 0;
    for (uint64_t step = 1; step <= step_count; step++) {
        const enum ox_grad_dtype dtype = step % 2 == 0 ? OX_GRAD_BF16 : OX_GRAD_F32;
        const struct ox_optim_hyper hyper = hyper_of(step, 1.0 / (double)step);
        const struct ox_update_span span = span_of(planes, dtype, step % 4 < 2, true);
        bad_count += pool == NULL ? ox_update_run(isa, adamw_f32, &span, &hyper)
                                  : ox_update_run_pool(pool, isa, adamw_f32, &span, &hyper);
    }
    return bad_count;
}

/* The gradient plane is read as fp32 and as bf16 in turn: any bits serve, and NaN among them are wanted
 * rarely. */
static void fill_many(struct planes *planes) {
    fill_random(planes, OX_GRAD_F32);
    for (uint64_t i = 0; i < planes->count; i += 100003) {
        planes->v[i] = ox_f32_from_bits(random_u32());
    }
}

static void test_many(void) {
    struct planes start = planes_new(MANY, 0), expected = planes_new(start.count, 0);
    fill_many(&start);
    planes_copy(&expected, &start);
    const uint64_t expected_bad = run_steps(&expected, OX_ISA_SCALAR, NULL, 20);
    for (unsigned isa = OX_ISA_SCALAR; isa < OX_ISA_COUNT; isa++) {
        if (!ox_isa_available(isa) || isa == OX_ISA_SCALAR) {
            continue;
        }
        struct planes got = planes_new(start.count, 1);
        planes_copy(&got, &start);
        CHECK(run_steps(&got, isa, NULL, 20) == expected_bad);
        const uint64_t count = differences(&expected, &got, true);
        printf("%s: %llu of %llu parameters differ after 20 steps\n", ox_isa_name(isa),
               (unsigned long long)count, (unsigned long long)start.count);
        CHECK(count == 0);
        planes_free(&got);
    }
    planes_free(&start);
    planes_free(&expected);
}

static void test_pool(void) {
    struct planes start = planes_new(50021, 0), expected = planes_new(start.count, 0);
    fill_random(&start, OX_GRAD_F32);
    start.m[17] = INFINITY;
    start.v[50020] = NAN;
    planes_copy(&expected, &start);
    const uint64_t expected_bad = run_steps(&expected, OX_ISA_SCALAR, NULL, 4);
    CHECK(expected_bad > 0);
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct ox_pool *pool = NULL;
        REQUIRE_OK(ox_pool_open(threads, &pool));
        for (unsigned isa = OX_ISA_SCALAR; isa < OX_ISA_COUNT; isa++) {
            if (!ox_isa_available(isa)) {
                continue;
            }
            struct planes got = planes_new(start.count, 0);
            planes_copy(&got, &start);
            CHECK(run_steps(&got, isa, pool, 4) == expected_bad);
            CHECK(differences(&expected, &got, true) == 0);
            planes_free(&got);
        }
        ox_pool_close(&pool);
    }
    planes_free(&start);
    planes_free(&expected);
}

/* AdamW as the papers write it, in double, over 100 steps. Each fp32 step rounds p once (2^-24 relative), so
 * 100 steps drift by at most 100 * 2^-24 = 6e-6 of the largest |p| met, plus the rounding of the updates. */
static void test_known(bool decay) {
    enum { N = 1000, STEPS = 100 };
    const double beta1 = 0.9, beta2 = 0.95, lr = 1e-3, eps = 1e-8, wd = decay ? 0.1 : 0.0, scale = 0.5;
    struct planes planes = planes_new(N, 0);
    static double p[N], m[N], v[N];
    for (unsigned i = 0; i < N; i++) {
        const float start = (float)ox_normal(1, 1, i);
        master_set(&planes, i, start);
        planes.m[i] = planes.v[i] = 0.0f;
        p[i] = start;
        m[i] = v[i] = 0.0;
    }
    for (unsigned step = 1; step <= STEPS; step++) {
        const struct ox_optim_hyper hyper = hyper_of(step, scale);
        for (unsigned i = 0; i < N; i++) {
            const float grad = (float)(ox_normal(2, step, i) * 1e-3);
            grad_set(&planes, OX_GRAD_F32, i, grad);
            const double g = grad * scale;
            m[i] = beta1 * m[i] + (1 - beta1) * g;
            v[i] = beta2 * v[i] + (1 - beta2) * g * g;
            const double m_hat = m[i] / (1 - pow(beta1, step)), v_hat = v[i] / (1 - pow(beta2, step));
            p[i] -= lr * wd * p[i];
            p[i] -= lr * m_hat / (sqrt(v_hat) + eps);
        }
        const struct ox_update_span span = span_of(&planes, OX_GRAD_F32, decay, true);
        CHECK(ox_update_run(ox_isa_best(), adamw_f32, &span, &hyper) == 0);
    }
    double worst = 0.0;
    for (unsigned i = 0; i < N; i++) {
        const double error = fabs(ox_plane_join(planes.hi[i], planes.lo[i]) - p[i]);
        const double size = fabs(p[i]) > 0.1 ? fabs(p[i]) : 0.1; /* lr * STEPS: what updates may have moved */
        worst = error / size > worst ? error / size : worst;
    }
    printf("against double, decay %d: worst relative error %.2g, tolerance 6e-6\n", decay, worst);
    CHECK(worst < 6e-6);
    planes_free(&planes);
}

/* One step by hand: with zero moments the first update is lr * g / (|g| + eps). */
static void test_first_step(void) {
    struct planes planes = planes_new(4, 0);
    static const float grads[] = {0.25f, -2.0f, 0.0f, 1e-4f};
    for (unsigned i = 0; i < 4; i++) {
        master_set(&planes, i, 1.0f);
        planes.m[i] = planes.v[i] = 0.0f;
        grad_set(&planes, OX_GRAD_F32, i, grads[i]);
    }
    const struct ox_optim_hyper hyper = hyper_of(1, 1.0);
    const struct ox_update_span span = span_of(&planes, OX_GRAD_F32, true, false);
    CHECK(ox_update_run(OX_ISA_SCALAR, adamw_f32, &span, &hyper) == 0);
    for (unsigned i = 0; i < 4; i++) {
        const double u = grads[i] / (fabs((double)grads[i]) + 1e-8);
        const double p = ox_plane_join(planes.hi_out[i], planes.lo[i]);
        CHECK(fabs(p - (1.0 - 1e-4 - 1e-3 * u)) < 1e-7);
        CHECK(fabs(planes.m[i] - 0.1 * grads[i]) < 1e-8);
        CHECK(planes.hi[i] == ox_plane_hi(1.0f));
    }
    planes_free(&planes);
}

static void test_bad_count(enum ox_isa isa) {
    struct planes planes = planes_new(100, 0);
    fill_random(&planes, OX_GRAD_F32);
    const struct ox_optim_hyper hyper = hyper_of(5, 1.0);
    const struct ox_update_span span = span_of(&planes, OX_GRAD_F32, true, true);
    CHECK(ox_update_run(isa, adamw_f32, &span, &hyper) == 0);
    grad_set(&planes, OX_GRAD_F32, 3, NAN);
    grad_set(&planes, OX_GRAD_F32, 4, -INFINITY);
    planes.m[40] = INFINITY;
    planes.v[40] = INFINITY; /* one element counts once */
    master_set(&planes, 41, -INFINITY);
    planes.v[99] = NAN;                        /* in the part that does not fill a vector */
    grad_set(&planes, OX_GRAD_F32, 98, 1e30f); /* the square overflows */
    CHECK(ox_update_run(isa, adamw_f32, &span, &hyper) == 6);
    planes_free(&planes);
}

int main(void) {
    CHECK(ox_isa_available(OX_ISA_SCALAR) && ox_isa_available(ox_isa_best()));
    printf("best here: %s\n", ox_isa_name(ox_isa_best()));
    for (unsigned isa = OX_ISA_SCALAR; isa < OX_ISA_COUNT; isa++) {
        if (!ox_isa_available(isa)) {
            printf("%s: not on this machine\n", ox_isa_name(isa));
            continue;
        }
        test_lengths(isa);
        test_specials(isa);
        test_bad_count(isa);
    }
    test_first_step();
    test_known(true);
    test_known(false);
    test_pool();
    test_many();
    return test_end();
}
