/* Muon beside its authors' update in float64 and torch.optim.Muon (tests/golden/make/golden_muon.py); the same bits on
 * every instruction set and number of threads; and what an update saves, or makes of the weights alone. */
#include "cpu_optim/muon.h"
#include "engine/hf/safetensors.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 5, STEPS = 4, COUNT = 4 * OX_GROUP_ELEMS };
static const double rate = 0.02, decay = 0.1;
static struct ox_state_format format = {OX_OPTIM_MUON, OX_MOMENTS_F32, false};

struct state {
    uint16_t hi[COUNT];
    unsigned char *planes;
    float masters[COUNT], momentum[COUNT];
};

static struct ox_st_file *file;

static const float *read_tensor(int nth, const char *what, struct ox_matrix *matrix) {
    char name[32];
    snprintf(name, sizeof name, "%d.%s", nth, what);
    const struct ox_st_entry *const entry = ox_st_find(file, name);
    REQUIRE_OK(entry != NULL ? OX_OK : OX_E_CONFIG);
    float *const values = malloc(entry->count * sizeof *values);
    REQUIRE_OK(ox_st_read_f32(file, entry, 0, entry->count, values));
    if (matrix != NULL) {
        *matrix = (struct ox_matrix){entry->shape[0], entry->shape[1]};
    }
    return values;
}

/* Takes the steps of a case; with `ahead` each twice: first the weights alone, and then from what was saved of them. */
static void run(int nth, enum ox_isa isa, uint32_t threads, bool ahead, struct state *state) {
    struct ox_matrix matrix;
    struct ox_pool *pool = NULL;
    const float *const weight = read_tensor(nth, "weight", &matrix), *const grads = read_tensor(nth, "grads", NULL);
    const uint64_t count = matrix.rows * matrix.cols;
    const struct ox_muon muon = {.momentum = 0.95f, .nesterov = nth != 2, .iterations = 5,
                                 .ratio = nth % 2 == 1 ? OX_MUON_ORIGINAL : OX_MUON_MATCH_RMS_ADAMW};
    float *const scratch = malloc(ox_muon_scratch_floats(matrix, false) * sizeof *scratch);
    static uint16_t replaced[COUNT], made[COUNT];
    REQUIRE_OK(ox_pool_open(threads, &pool));
    const struct ox_muon_job job = {pool, isa, &muon, format, matrix, scratch, {0}};
    uint64_t bad = 0;
    state->planes = calloc(1, ox_state_layout_of(format, COUNT).bytes);
    const struct ox_state_planes planes = ox_state_planes_at(format, state->planes, COUNT, 0);
    CHECK(ox_state_master_set(format.moments, state->hi, planes.lo, count, weight) == 0);
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct ox_optim_hyper hyper;
        ox_optim_hyper_init(&(struct ox_optim_settings){.learning_rate = rate, .weight_decay = decay, .beta1 = 0.9,
                                                        .beta2 = 0.99, .eps = 1e-8, .grad_scale = 1, .step = step},
                            &hyper);
        struct ox_update_span span = {.hi = state->hi, .hi_out = state->hi, .state = planes,
                                      .grad = grads + (step - 1) * count, .grad_dtype = OX_GRAD_F32, .decay = true,
                                      .count = count};
        if (ahead) {
            struct ox_update_span first = span;
            first.weights_only = true;
            first.replaced_hi = replaced;
            CHECK(ox_muon_run(&job, &first, &hyper, &bad) == OX_OK && bad == 0);
            memcpy(made, state->hi, count * sizeof *made);
            span.hi = replaced;
        }
        CHECK(ox_muon_run(&job, &span, &hyper, &bad) == OX_OK && bad == 0);
        CHECK(!ahead || memcmp(made, state->hi, count * sizeof *made) == 0);
    }
    ox_state_master_get(format.moments, state->hi, planes.lo, count, state->masters);
    ox_state_moment_get(format.moments, OX_MOMENT_M, &planes, count, state->momentum);
    free(state->planes);
    free(scratch);
    free((void *)weight);
    free((void *)grads);
    ox_pool_close(&pool);
}

/* The largest difference, of the largest change that the steps have made. */
static double difference(int nth, const char *what, const struct state *state) {
    struct ox_matrix matrix;
    const float *const before = read_tensor(nth, "weight", &matrix), *const after = read_tensor(nth, "exact", NULL);
    const float *const other = read_tensor(nth, what, NULL);
    double worst = 0.0, change = 0.0;
    for (uint64_t i = 0; i < matrix.rows * matrix.cols; i++) {
        worst = fmax(worst, fabs((double)other[i] - (double)state->masters[i]));
        change = fmax(change, fabs((double)after[i] - (double)before[i]));
    }
    free((void *)before);
    free((void *)after);
    free((void *)other);
    return worst / change;
}

static double momentum_difference(int nth, const struct state *state) {
    struct ox_matrix matrix;
    const float *const other = read_tensor(nth, "momentum", &matrix);
    double worst = 0.0;
    for (uint64_t i = 0; i < matrix.rows * matrix.cols; i++) {
        worst = fmax(worst, fabs((double)other[i] - (double)state->momentum[i]));
    }
    free((void *)other);
    return worst;
}

static void check(int nth) {
    static struct state first, other;
    run(nth, OX_ISA_SCALAR, 1, false, &first);
    const double exact = difference(nth, "exact", &first), torch = difference(nth, "torch", &first);
    const double momentum = momentum_difference(nth, &first);
    printf("case %d: within %.1e of float64, momentum %.1e; torch.optim.Muon in bfloat16 %.1e\n", nth, exact, momentum,
           torch);
    /* small singular values, and what float32 leaves out of them, grow 484-fold in five iterations */
    const bool narrow = format.moments == OX_MOMENTS_BF16; /* a momentum of eight bits, which changes directions */
    CHECK(narrow ? exact < 5e-3 && momentum < 8e-3 : exact < 5e-5 && momentum < 1e-6 && torch < 3e-2);
    for (int isa = 0; isa < OX_ISA_COUNT; isa++) {
        for (uint32_t threads = 1; threads <= 3; threads++) {
            if (ox_isa_available((enum ox_isa)isa)) {
                run(nth, (enum ox_isa)isa, threads, threads == 3, &other);
                CHECK(memcmp(first.hi, other.hi, sizeof first.hi) == 0);
                CHECK(memcmp(first.masters, other.masters, sizeof first.masters) == 0);
                CHECK(memcmp(first.momentum, other.momentum, sizeof first.momentum) == 0);
            }
        }
    }
}

/* A momentum of bf16 keeps its mean: of equal gradients it comes as near to them as one of fp32. */
static void check_mean(void) {
    enum { ROWS = 32, COLS = 64, MANY = 200 };
    static uint16_t hi[ROWS * COLS];
    static float grad[ROWS * COLS], momentum[ROWS * COLS];
    struct ox_pool *pool = NULL;
    const struct ox_matrix matrix = {ROWS, COLS};
    const struct ox_muon muon = {.momentum = 0.95f, .iterations = 1};
    float *const scratch = malloc(ox_muon_scratch_floats(matrix, false) * sizeof *scratch);
    void *const state = calloc(1, ox_state_layout_of(format, ROWS * COLS).bytes);
    const struct ox_state_planes planes = ox_state_planes_at(format, state, ROWS * COLS, 0);
    double mean = 0.0;
    REQUIRE_OK(ox_pool_open(1, &pool));
    const struct ox_muon_job job = {pool, OX_ISA_SCALAR, &muon, format, matrix, scratch, {0}};
    uint64_t bad = 0;
    for (int i = 0; i < ROWS * COLS; i++) {
        grad[i] = 1.0f;
    }
    for (uint64_t step = 1; step <= MANY; step++) {
        struct ox_optim_hyper hyper;
        ox_optim_hyper_init(&(struct ox_optim_settings){.learning_rate = 1e-6, .grad_scale = 1, .step = step}, &hyper);
        const struct ox_update_span span = {.hi = hi, .hi_out = hi, .state = planes, .grad = grad,
                                            .grad_dtype = OX_GRAD_F32, .count = ROWS * COLS};
        CHECK(ox_muon_run(&job, &span, &hyper, &bad) == OX_OK && bad == 0);
    }
    ox_state_moment_get(format.moments, OX_MOMENT_M, &planes, ROWS * COLS, momentum);
    for (int i = 0; i < ROWS * COLS; i++) {
        mean += (double)momentum[i] / (ROWS * COLS);
    }
    printf("mean of a momentum of bf16: %.5f\n", mean);
    CHECK(fabs(mean - 1.0) < 1e-3); /* rounded to nearest it would stay below 0.97 */
    ox_pool_close(&pool);
    free(state);
    free(scratch);
}

int main(void) {
    REQUIRE_OK(ox_st_open("tests/golden/muon/muon.safetensors", &file));
    for (int i = 0; i < 2 * CASES; i++) {
        format.moments = i < CASES ? OX_MOMENTS_F32 : OX_MOMENTS_BF16;
        check(i % CASES);
    }
    check_mean();
    ox_st_close(&file);
    return test_end();
}
