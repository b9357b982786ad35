/* The optimizer on the compute lane: the bits of cpu_optim's own calls, for every format, in any division of a unit;
 * and the iterations of Muon, on every instruction set and device. */
#include "base/planes.h"
#include "cpu_optim/muon.h"
#include "cpu_optim/norm.h"
#include "cpu_optim/optim.h"
#include "engine/step/update/ops_optim.h"
#include "tests/kit/device/ops_kit.h"

#include <math.h>
#include <string.h>

/* The last span ends within a block of Q8, and within what a thread of a GPU takes at once. */
enum { ELEMS = 12 * 2048, BORDER = 5 * OX_Q8_BLOCK, END = ELEMS - 27 };

struct unit {
    struct ox_state_format format;
    bool grad_bf16;
    uint64_t bytes; /* bytes of the optimizer state */
    uint16_t *hi;
    void *state, *grad;
    uint64_t *nonfinite;
};

/* Behind the end there are zeros, which stay. */
static void fill_to_end(float *values, uint64_t stream, double scale) {
    fill(values, ELEMS, 0.0f);
    fill_normal(values, END, stream, scale);
}

/* Values that a few steps may have led to; one gradient is infinite. */
static void open_unit(struct ox_state_format format, bool grad_bf16, struct unit *out) {
    *out = (struct unit){.format = format, .grad_bf16 = grad_bf16};
    out->bytes = ox_state_layout_of(format, ELEMS).bytes;
    out->hi = guarded(ELEMS * sizeof(uint16_t));
    out->state = guarded(out->bytes);
    out->grad = guarded(ELEMS * (grad_bf16 ? 2 : 4));
    out->nonfinite = guarded(sizeof(uint64_t));
    memset(out->state, 0, out->bytes);
    const int kept = guard_count;
    float *const values = floats(ELEMS);
    fill_to_end(values, 1, 0.02);
    const struct ox_state_planes planes = ox_state_planes_at(format, out->state, ELEMS, 0);
    CHECK(ox_state_master_set(format.moments, out->hi, planes.lo, ELEMS, values) == 0);
    fill_to_end(values, 2, 1e-3);
    CHECK(ox_state_moment_set(format.moments, OX_MOMENT_M, &planes, ELEMS, values) == 0);
    for (int i = 0; i < ELEMS; i++) {
        values[i] *= values[i];
    }
    if (ox_optim_has_v(format.kind)) {
        CHECK(ox_state_moment_set(format.moments, OX_MOMENT_V, &planes, ELEMS, values) == 0);
    }
    fill_normal(values, ELEMS, 3, 1e-2); /* behind the end too */
    values[BORDER + 1] = INFINITY;
    if (grad_bf16) {
        for (int i = 0; i < ELEMS; i++) {
            ((uint16_t *)out->grad)[i] = ox_bf16_from_f32(values[i]);
        }
    } else {
        memcpy(out->grad, values, ELEMS * sizeof *values);
    }
    *out->nonfinite = 40;
    guards_end(kept);
}

static struct ox_optim_hyper hyper(void) {
    struct ox_optim_hyper out;
    ox_optim_hyper_init(&(struct ox_optim_settings){.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8,
                                                  .weight_decay = 0.1, .grad_scale = 0.5, .step = 3, .seed = 5}, &out);
    return out;
}

static void update_by_op(struct lab *lab, const struct unit *unit) {
    const struct ox_optim_hyper numbers = hyper();
    const uint64_t borders[] = {0, BORDER, END};
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, adam, &(struct ox_op_adam){
            .hi = unit->hi, .state = unit->state, .grad = unit->grad, .nonfinite = unit->nonfinite,
            .elem_count = ELEMS, .first = borders[i], .count = borders[i + 1] - borders[i],
            .format = unit->format, .isa = OX_ISA_SCALAR, .stream = 7,
            .grad_bf16 = unit->grad_bf16, .decay = i == 0, .hyper = numbers}));
    }
    lab_finish(lab);
}

static void update_by_call(const struct unit *unit) {
    const struct ox_optim_hyper numbers = hyper();
    const uint64_t borders[] = {0, BORDER, END};
    for (int i = 0; i < 2; i++) {
        const struct ox_update_span span = {
            .hi = unit->hi + borders[i], .hi_out = unit->hi + borders[i],
            .state = ox_state_planes_at(unit->format, unit->state, ELEMS, borders[i]),
            .grad = (const unsigned char *)unit->grad + borders[i] * (unit->grad_bf16 ? 2 : 4),
            .grad_dtype = unit->grad_bf16 ? OX_GRAD_BF16 : OX_GRAD_F32,
            .decay = i == 0, .stream = 7, .first = borders[i], .count = borders[i + 1] - borders[i]};
        *unit->nonfinite += ox_update_run(ox_isa_best(), unit->format, &span, &numbers);
    }
}

static void test_adam(struct lab *lab, struct ox_state_format format, bool grad_bf16) {
    struct unit expected, unit;
    open_unit(format, grad_bf16, &expected);
    open_unit(format, grad_bf16, &unit);
    update_by_call(&expected);
    update_by_op(lab, &unit);
    CHECK(*expected.nonfinite == 41 && *unit.nonfinite == 41);
    /* which NaN it is stays open */
    const struct ox_state_planes a = ox_state_planes_at(format, expected.state, ELEMS, 0);
    const struct ox_state_planes b = ox_state_planes_at(format, unit.state, ELEMS, 0);
    float *const x = floats(ELEMS), *const y = floats(ELEMS);
    for (int plane = 0; plane < 2 + ox_optim_has_v(format.kind); plane++) {
        const enum ox_moment which = plane == 1 ? OX_MOMENT_M : OX_MOMENT_V;
        if (plane == 0) {
            ox_state_master_get(format.moments, expected.hi, a.lo, ELEMS, x);
            ox_state_master_get(format.moments, unit.hi, b.lo, ELEMS, y);
        } else {
            ox_state_moment_get(format.moments, which, &a, ELEMS, x);
            ox_state_moment_get(format.moments, which, &b, ELEMS, y);
        }
        x[BORDER + 1] = y[BORDER + 1] = 0;
        CHECK(memcmp(x, y, ELEMS * sizeof *x) == 0);
    }
    guards_end(0);
}

static void test_square_sums(struct lab *lab, uint64_t count, bool grad_bf16) {
    float *const values = random_floats(count, 9, 1e-2);
    uint16_t *const packed = guarded(count * 2);
    for (uint64_t i = 0; i < count; i++) {
        packed[i] = ox_bf16_from_f32(values[i]);
    }
    const void *const grad = grad_bf16 ? (const void *)packed : values;
    const uint64_t partials = (count + OX_GROUP_ELEMS - 1) / OX_GROUP_ELEMS;
    double *const expected = doubles(partials), *const sums = doubles(partials);
    struct ox_pool *pool = NULL;
    REQUIRE_OK(ox_pool_open(1, &pool));
    ox_sumsq_partials(pool, grad, grad_bf16 ? OX_GRAD_BF16 : OX_GRAD_F32, count, expected);
    ox_pool_close(&pool);
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, square_sums, &(struct ox_op_square_sums){sums, grad, count, grad_bf16}));
    lab_finish(lab);
    CHECK(memcmp(expected, sums, partials * sizeof *sums) == 0 && sums[0] > 0);
    guards_end(0);
}

/* alpha * d + beta * (a b), or a b^T, each sum in the order of its index. */
struct product {
    float *out;
    const float *a, *b, *d;
    uint64_t rows, inner, cols;
    float alpha, beta;
    bool turned;
};

static void multiply(const struct product *p) {
    for (uint64_t i = 0; i < p->rows * p->cols; i++) {
        const uint64_t row = i / p->cols, col = i % p->cols;
        float sum = 0.0f;
        for (uint64_t k = 0; k < p->inner; k++) {
            sum += p->a[row * p->inner + k] * p->b[p->turned ? col * p->inner + k : k * p->cols + col];
        }
        p->out[i] = p->beta * sum + (p->d != NULL ? p->alpha * p->d[i] : 0.0f);
    }
}

/* The iterations as they are written, without what symmetry saves. */
static void test_newton_schulz(struct lab *lab, uint64_t rows, uint64_t cols, uint32_t iterations) {
    const uint64_t count = rows * cols;
    const float factors[] = {ox_muon_factors[0], ox_muon_factors[1], ox_muon_factors[2]};
    float *const x = random_floats(count, rows, 1.0 / sqrt((double)count)), *const made = floats(count);
    float *const scratch = floats(count + 2 * rows * rows);
    float *const gram = floats(rows * rows), *const square = floats(rows * rows), *const next = floats(count);
    memcpy(made, x, count * sizeof *x);
    for (uint32_t k = 0; k < iterations; k++) {
        multiply(&(struct product){gram, x, x, NULL, rows, cols, rows, 0.0f, 1.0f, true});
        multiply(&(struct product){square, gram, gram, gram, rows, rows, rows, factors[1], factors[2], false});
        multiply(&(struct product){next, square, x, x, rows, rows, cols, factors[0], 1.0f, false});
        memcpy(x, next, count * sizeof *x);
    }
    for (int isa = 0; isa < OX_ISA_COUNT; isa++) {
        float *const out = floats(count);
        if (!ox_isa_available((enum ox_isa)isa) || (isa > 0 && lab->compute.device != OX_DEVICE_CPU)) {
            continue;
        }
        memcpy(out, made, count * sizeof *out);
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, newton_schulz, &(struct ox_op_newton_schulz){
            .inout = out, .scratch = scratch, .rows = (uint32_t)rows, .cols = (uint32_t)cols, .iterations = iterations,
            .isa = (uint32_t)isa, .factors = {factors[0], factors[1], factors[2]}}));
        lab_finish(lab);
        CHECK(memcmp(x, out, count * sizeof *x) == 0);
    }
    guards_end(0);
}

int main(void) {
    struct lab labs[LAB_MAX];
    labs_open(labs);
    for (int i = 0; i < lab_count; i++) {
        if (i < LAB_CPU_COUNT) {
            ox_ops_optim_init_cpu(&labs[i].ops);
        }
        for (int format = 0; format < (int)OX_OPTIM_KIND_COUNT * (int)OX_MOMENTS_COUNT; format++) {
            const struct ox_state_format made = {(enum ox_optim_kind)(format / OX_MOMENTS_COUNT),
                                                 (enum ox_moments)(format % OX_MOMENTS_COUNT), format % 2 == 1};
            test_adam(&labs[i], made, false);
            test_adam(&labs[i], made, true);
        }
        test_square_sums(&labs[i], 2048, false);
        test_square_sums(&labs[i], 70001, true);
        test_square_sums(&labs[i], 200000, false);
        test_newton_schulz(&labs[i], 1, 3, 1);
        test_newton_schulz(&labs[i], 17, 40, 2);
        test_newton_schulz(&labs[i], 129, 150, 5);
        test_newton_schulz(&labs[i], 140, 140, 1);
    }
    return labs_end(labs);
}
