/* Averages of weights beside an update: torch's numbers; the same bits on every instruction set, number of threads and
 * format of the moments; an update whose bits they do not change; what it saves; sums over their bits. */
#include "base/optim_element.h"
#include "base/bytes.h"
#include "cpu_optim/optim.h"
#include "tests/kit/draw.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 3 * OX_GROUP_ELEMS, USED = COUNT - 7, STEPS = 4 };

/* torch 2.14: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)), update_parameters after each step. */
static void check_torch(void) {
    static const struct {
        double decay;
        float weights[3], averages[3];
    } rows[] = {
        {0.9, {0.834805131f, -1.25027335f, 0.0707600117f}, {0.834805131f, -1.25027335f, 0.0707600117f}},
        {0.9, {0.947936714f, -1.17258036f, 0.405841678f}, {0.846118271f, -1.242504f, 0.104268178f}},
        {0.9, {1.1712476f, -0.872517109f, 0.389161527f}, {0.878631234f, -1.20550525f, 0.132757515f}},
        {0.9, {1.49673462f, -0.484680802f, 0.37269634f}, {0.940441549f, -1.13342285f, 0.156751394f}},
        {0.9, {1.22926736f, 0.575865149f, 0.163458154f}, {0.969324112f, -0.962494075f, 0.157422066f}},
        {0.3, {0.759361684f, -1.24472308f, -0.238218218f}, {0.759361684f, -1.24472308f, -0.238218218f}},
        {0.3, {0.680112839f, -1.40455151f, -0.500132978f}, {0.703887522f, -1.35660303f, -0.421558559f}},
        {0.3, {0.640732229f, -1.86436224f, -0.676338673f}, {0.659678817f, -1.71203446f, -0.599904656f}},
        {0.3, {0.386942387f, -2.42126465f, -0.58199507f}, {0.468763322f, -2.20849562f, -0.587367952f}},
        {0.3, {1.05451441f, -2.58785248f, -0.760716915f}, {0.878789067f, -2.47404552f, -0.70871222f}},
    };
    float averages[3] = {9, 9, 9};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ox_optim_hyper hyper;
        ox_optim_hyper_init(&(struct ox_optim_settings){.beta1 = 0.9, .beta2 = 0.99, .grad_scale = 1,
                                                        .average_decay = rows[i].decay, .step = i % 5 + 1}, &hyper);
        for (int k = 0; k < 3; k++) {
            averages[k] = ox_average_update(averages[k], rows[i].weights[k], hyper.average_share);
            CHECK(fabsf(averages[k] - rows[i].averages[k]) <= 2e-7f * fabsf(rows[i].averages[k]));
        }
    }
}

struct state {
    uint16_t hi[COUNT], grad_room[1];
    unsigned char *planes;
};

static struct ox_update_span span_of(struct ox_state_format format, struct state *state, const float *grad) {
    return (struct ox_update_span){.hi = state->hi, .hi_out = state->hi,
                                   .state = ox_state_planes_at(format, state->planes, COUNT, 0),
                                   .grad = grad, .grad_dtype = OX_GRAD_F32, .decay = true, .stream = 1, .count = USED};
}

static void begin(struct ox_state_format format, struct state *state) {
    static float masters[COUNT];
    state->planes = calloc(1, ox_state_layout_of(format, COUNT).bytes);
    REQUIRE_OK(state->planes != NULL ? OX_OK : OX_E_NOMEM);
    for (uint64_t i = 0; i < USED; i++) {
        masters[i] = (float)(((double)(i * 2654435761u % 1000) - 500) * 1e-3);
    }
    const struct ox_state_planes planes = ox_state_planes_at(format, state->planes, COUNT, 0);
    CHECK(ox_state_master_set(format.moments, state->hi, planes.lo, USED, masters) == 0);
}

static void run(struct ox_state_format format, enum ox_isa isa, struct ox_pool *pool) {
    static struct state with, without;
    static float grad[COUNT], expected[COUNT], masters[COUNT], before[COUNT];
    static uint16_t replaced_hi[COUNT];
    struct ox_state_format plain = format;
    plain.averages = false;
    begin(format, &with);
    begin(plain, &without);
    unsigned char *const replaced = calloc(1, ox_state_layout_of(format, COUNT).bytes);
    const struct ox_state_planes planes = ox_state_planes_at(format, with.planes, COUNT, 0);
    for (int step = 1; step <= STEPS; step++) {
        struct ox_optim_hyper hyper;
        struct ox_update_sums sums = {{0}, {0}};
        struct ox_plane_sums read = {0}, written = {0};
        ox_optim_hyper_init(&(struct ox_optim_settings){.learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8,
                                                        .weight_decay = 0.1, .grad_scale = 1, .average_decay = 0.75,
                                                        .step = (uint64_t)step, .seed = 3}, &hyper);
        for (uint64_t i = 0; i < USED; i++) {
            grad[i] = (float)((double)((i + (uint64_t)step) * 40503u % 2001) - 1000) * 1e-3f;
        }
        memcpy(before, planes.average, USED * sizeof *before);
        ox_plane_sums_take(format.moments, with.hi, &planes, 0, USED, &read);
        struct ox_update_span span = span_of(format, &with, grad), ahead = span;
        ahead.weights_only = true; /* writes hi_out alone */
        ahead.hi_out = replaced_hi;
        CHECK(ox_update_run_pool(pool, isa, format, &ahead, &hyper) == 0);
        CHECK(memcmp(before, planes.average, USED * sizeof *before) == 0);
        span.sums = &sums;
        span.replaced_hi = replaced_hi;
        span.replaced_state = ox_state_planes_at(format, replaced, COUNT, 0);
        CHECK(ox_update_run_pool(pool, isa, format, &span, &hyper) == 0);
        const struct ox_update_span other = span_of(plain, &without, grad);
        CHECK(ox_update_run(isa, plain, &other, &hyper) == 0);
        CHECK(memcmp(with.hi, without.hi, sizeof with.hi) == 0);
        CHECK(memcmp(with.planes, without.planes, ox_state_layout_of(plain, COUNT).end) == 0);
        CHECK(memcmp(span.replaced_state.average, before, USED * sizeof *before) == 0);
        ox_plane_sums_take(format.moments, with.hi, &planes, 0, USED, &written);
        CHECK(memcmp(&sums.read, &read, sizeof read) == 0 && memcmp(&sums.written, &written, sizeof written) == 0);
        CHECK(step == 1 || read.average != written.average);
        ox_state_master_get(format.moments, with.hi, planes.lo, USED, masters);
        for (uint64_t i = 0; i < USED; i++) {
            expected[i] = step == 1 ? masters[i] : ox_average_update(expected[i], masters[i], 0.25f);
        }
        CHECK(memcmp(expected, planes.average, USED * sizeof *expected) == 0);
        CHECK(planes.average[USED] == 0);
    }
    free(replaced);
    free(with.planes);
    free(without.planes);
}

int main(void) {
    check_torch();
    struct ox_pool *pool = NULL;
    REQUIRE_OK(ox_pool_open(3, &pool));
    for (int isa = 0; isa < OX_ISA_COUNT; isa++) {
        for (int kind = 0; kind < OX_OPTIM_KIND_COUNT && ox_isa_available((enum ox_isa)isa); kind++) {
            for (int moments = 0; moments < OX_MOMENTS_COUNT; moments++) {
                run((struct ox_state_format){(enum ox_optim_kind)kind, (enum ox_moments)moments, true},
                    (enum ox_isa)isa, pool);
            }
        }
    }
    ox_pool_close(&pool);
    return test_end();
}
