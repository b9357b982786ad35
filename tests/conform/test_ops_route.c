/* The router of a mixture of experts against references in double: logits, choice with ties, groups and bias, weights,
 * the losses of the router, backward, and the sorting of pairs. */
#include "base/planes.h"
#include "tests/kit/device/ops_kit.h"

#include <math.h>
#include <string.h>

struct route_case {
    uint32_t rows;
    struct ox_router router;
    bool bias, ties, mask, losses;
};
/* A scale of 0 stands for 1. */
#define ROUTER(e, k, kind, divides, ...) \
    {.experts = e, .chosen = k, .scores = kind, .renormalise = divides, __VA_ARGS__}
static const struct route_case cases[] = {
    {1, ROUTER(1, 1, OX_SCORES_SOFTMAX, true), false, false, false, true},
    {7, ROUTER(5, 2, OX_SCORES_SOFTMAX, true), false, false, false, true},
    {70, ROUTER(8, 3, OX_SCORES_SOFTMAX, false), false, false, true, true},
    {33, ROUTER(64, 8, OX_SCORES_SOFTMAX, true), false, true, true, true},
    {40, ROUTER(16, 4, OX_SCORES_SOFTMAX, false), false, true, false, false},
    {65, ROUTER(6, 6, OX_SCORES_SOFTMAX, true), false, false, false, true}, /* k = E */
    {66, ROUTER(6, 6, OX_SCORES_SIGMOID, false), true, false, false, false},
    {35, ROUTER(9, 1, OX_SCORES_SOFTMAX, false), false, true, true, true}, /* k = 1 */
    {35, ROUTER(9, 1, OX_SCORES_SOFTMAX, true), false, false, true, false},
    {50, ROUTER(6, 2, OX_SCORES_SOFTMAX_CHOSEN, false), false, false, false, true},
    {50, ROUTER(32, 4, OX_SCORES_SOFTMAX_CHOSEN, false), false, true, false, false},
    {48, ROUTER(16, 4, OX_SCORES_SOFTMAX, false, .groups = 4, .groups_kept = 2, .scale = 1.5f), false, false, false,
     false},
    {48, ROUTER(24, 6, OX_SCORES_SIGMOID, true, .groups = 4, .groups_kept = 2, .group_rank = OX_GROUP_BY_BEST_TWO,
                .eps = 1e-20f, .scale = 2.5f), true, false, false, false},
    {20, ROUTER(256, 8, OX_SCORES_SIGMOID, true, .groups = 8, .groups_kept = 4, .group_rank = OX_GROUP_BY_BEST_TWO,
                .eps = 1e-20f, .scale = 2.5f), true, false, false, false},
    {30, ROUTER(12, 3, OX_SCORES_SIGMOID, false), false, true, false, false},
    {30, ROUTER(8, 2, OX_SCORES_SOFTMAX, true, .rounds = true), false, true, false, true},
    {5000, ROUTER(4, 2, OX_SCORES_SOFTMAX, true), false, false, true, true}, /* the load in several parts */
};
enum { CASE_COUNT = sizeof cases / sizeof *cases };

struct data {
    const struct route_case *shape;
    const float *logits, *bias, *dweights;
    const int32_t *counted;
    double *z, *weights, *dlogits, *load, *lse; /* wanted */
    int32_t *experts;
    double balance_scale, z_scale;
};

/* ---- the reference ---- */

static double score_of(const struct ox_router *router, const double *z, uint32_t e, double lse) {
    return router->scores == OX_SCORES_SOFTMAX   ? exp(z[e] - lse)
           : router->scores == OX_SCORES_SIGMOID ? 1.0 / (1.0 + exp(-z[e]))
                                                 : z[e];
}

static double lse_of(const double *z, uint32_t count) {
    double top = z[0], sum = 0.0;
    for (uint32_t e = 1; e < count; e++) {
        top = fmax(top, z[e]);
    }
    for (uint32_t e = 0; e < count; e++) {
        sum += exp(z[e] - top);
    }
    return top + log(sum);
}

/* Whether b, behind a, comes before it. */
static void pick(const double *values, uint32_t count, uint32_t wanted, bool *taken) {
    for (uint32_t i = 0; i < wanted; i++) {
        uint32_t best = count;
        for (uint32_t e = 0; e < count; e++) {
            best = !taken[e] && (best == count || values[e] > values[best]) ? e : best;
        }
        taken[best] = true;
    }
}

static void choose(const struct ox_router *router, const double *z, const float *bias, double lse, int32_t *experts) {
    double value[256], group[256];
    bool taken[256] = {false}, kept[256] = {false};
    const uint32_t groups = router->groups > 1 ? router->groups : 1, size = router->experts / groups;
    for (uint32_t e = 0; e < router->experts; e++) {
        value[e] = score_of(router, z, e, lse) + (bias == NULL ? 0.0 : (double)bias[e]);
    }
    for (uint32_t g = 0; g < groups; g++) {
        double first = -INFINITY, second = -INFINITY;
        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            second = fmax(second, fmin(first, value[e]));
            first = fmax(first, value[e]);
        }
        group[g] = router->group_rank == OX_GROUP_BY_BEST_TWO ? first + second : first;
    }
    pick(group, groups, router->groups > 1 ? router->groups_kept : 1, kept);
    for (uint32_t e = 0; e < router->experts; e++) {
        value[e] = kept[e / size] ? value[e] : -INFINITY;
    }
    pick(value, router->experts, router->chosen, taken);
    uint32_t slot = 0;
    for (uint32_t e = 0; e < router->experts; e++) {
        if (taken[e]) {
            experts[slot++] = (int32_t)e;
        }
    }
}

static void weigh(const struct ox_router *router, const double *z, const int32_t *experts, double lse,
                  double *weights) {
    double sum = 0.0;
    for (uint32_t i = 0; i < router->chosen; i++) {
        const uint32_t e = (uint32_t)experts[i];
        weights[i] = router->scores == OX_SCORES_SOFTMAX_CHOSEN ? exp(z[e] - lse) : score_of(router, z, e, lse);
        sum += weights[i];
    }
    for (uint32_t i = 0; i < router->chosen; i++) {
        const bool divides = router->renormalise || router->scores == OX_SCORES_SOFTMAX_CHOSEN;
        weights[i] *= (double)router->scale / (divides ? sum + (double)router->eps : 1.0);
    }
}

/* A row's loss: dweights times weights, and the losses of the router with counts that stay as they are. */
static double row_loss(const struct data *data, uint32_t row, const double *z) {
    const struct ox_router *const router = &data->shape->router;
    const struct ox_route_load_layout at = ox_route_load_layout_of(router->experts);
    const int32_t *const experts = data->experts + (size_t)row * router->chosen;
    const double lse = lse_of(z, router->experts), n = data->load[at.rows];
    double weights[256], loss = 0.0;
    weigh(router, z, experts, lse, weights);
    for (uint32_t i = 0; i < router->chosen; i++) {
        loss += (double)data->dweights[(size_t)row * router->chosen + i] * weights[i];
    }
    if (data->shape->losses && data->counted[row] != OX_TARGET_PADDING) {
        for (uint32_t e = 0; e < router->experts; e++) {
            loss += data->balance_scale * router->experts * data->load[at.counts + e] / n * exp(z[e] - lse) / n;
        }
        loss += data->z_scale * lse * lse / n;
    }
    return loss;
}

/* Gradients by the difference of four losses: exact to about 1e-10. */
static double slope_of(const struct data *data, uint32_t row, double *z, uint32_t e) {
    static const double step = 1e-3;
    const double at = z[e];
    double loss[4];
    for (int i = 0; i < 4; i++) {
        z[e] = at + (i < 2 ? i - 2 : i - 1) * step;
        loss[i] = row_loss(data, row, z);
    }
    z[e] = at;
    return (loss[0] - 8 * loss[1] + 8 * loss[2] - loss[3]) / (12 * step);
}

static void make_reference(struct data *data) {
    const struct ox_router *const router = &data->shape->router;
    const struct ox_route_load_layout at = ox_route_load_layout_of(router->experts);
    const uint32_t experts = router->experts, chosen = router->chosen;
    for (size_t i = 0; i < (size_t)data->shape->rows * experts; i++) {
        const float logit = data->logits[i];
        data->z[i] = (double)(router->rounds ? ox_bf16_to_f32(ox_bf16_from_f32(logit)) : logit);
    }
    memset(data->load, 0, at.count * sizeof(double));
    for (uint32_t row = 0; row < data->shape->rows; row++) {
        const double *const z = data->z + (size_t)row * experts;
        int32_t *const ids = data->experts + (size_t)row * chosen;
        data->lse[row] = lse_of(z, experts);
        choose(router, z, data->bias, data->lse[row], ids);
        weigh(router, z, ids, data->lse[row], data->weights + (size_t)row * chosen);
        if (data->counted[row] == OX_TARGET_PADDING) {
            continue;
        }
        for (uint32_t e = 0; e < experts; e++) {
            data->load[at.probs + e] += exp(z[e] - data->lse[row]);
        }
        for (uint32_t i = 0; i < chosen; i++) {
            data->load[at.counts + (uint32_t)ids[i]] += 1.0;
        }
        data->load[at.rows] += 1.0;
        data->load[at.squares] += data->lse[row] * data->lse[row];
    }
    for (uint32_t row = 0; row < data->shape->rows; row++) {
        for (uint32_t e = 0; e < experts; e++) {
            data->dlogits[(size_t)row * experts + e] = slope_of(data, row, data->z + (size_t)row * experts, e);
        }
    }
}

/* ---- running ---- */

static void run_sort(struct lab *lab, const struct ox_router *router, const int32_t *experts, uint32_t rows) {
    const uint32_t pairs = rows * router->chosen;
    int32_t *const offsets = guarded((router->experts + 1) * sizeof(int32_t));
    int32_t *const pair_of = guarded(pairs * sizeof(int32_t)), *const place = guarded(pairs * sizeof(int32_t));
    const struct ox_op_route_sort sort = {.offsets = offsets, .pair_of = pair_of, .place = place, .experts = experts,
                                          .scratch = guarded(ox_ops_route_sort_scratch_bytes(rows, router->experts)),
                                          .rows = rows, .chosen = router->chosen, .expert_count = router->experts};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, route_sort, &sort));
    lab_finish(lab);
    uint32_t at = 0;
    for (uint32_t e = 0; e < router->experts; e++) {
        CHECK(offsets[e] == (int32_t)at);
        for (uint32_t pair = 0; pair < pairs; pair++) {
            if (experts[pair] == (int32_t)e) {
                CHECK(pair_of[at] == (int32_t)pair && place[pair] == (int32_t)at);
                at++;
            }
        }
    }
    CHECK(offsets[router->experts] == (int32_t)pairs);
}

static void run_load(struct lab *lab, const struct data *data, const struct ox_op_route_forward *forward,
                     double *load) {
    const struct ox_route_load_layout at = ox_route_load_layout_of(forward->router.experts);
    struct ox_op_route_load op = {.load = load, .logits = data->logits, .lse = forward->lse,
                                  .experts = forward->experts,
                                  .counted = data->shape->mask ? data->counted : NULL,
                                  .scratch = guarded(ox_ops_route_load_scratch_bytes(forward->router.experts)),
                                  .rows = data->shape->rows, .router = forward->router, .begins = true};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, route_load, &op));
    op.begins = false; /* a second layer with the same logits */
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, route_load, &op));
    enum { MICRO_BATCHES = 2, LAYERS = 3, BESIDE = 5 };
    const uint32_t stride = LAYERS * at.count + BESIDE;
    double *const loads = doubles((size_t)MICRO_BATCHES * stride), *const pooled = doubles(at.count);
    for (uint32_t i = 0; i < MICRO_BATCHES * stride; i++) {
        loads[i] = i % stride < LAYERS * at.count ? 1.0 / (1 + i) : 1e9;
    }
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, route_pool, &(struct ox_op_route_pool){
        .load = pooled, .loads = loads, .micro_batches = MICRO_BATCHES, .layers = LAYERS, .count = at.count,
        .stride = stride}));
    lab_finish(lab);
    for (uint32_t i = 0; i < at.count; i++) {
        double want = 0;
        for (uint32_t part = 0; part < MICRO_BATCHES * LAYERS; part++) {
            want += loads[part / LAYERS * stride + part % LAYERS * at.count + i];
        }
        CHECK(pooled[i] == want);
    }
    for (uint32_t i = 0; i < at.count; i++) {
        const double want = 2.0 * data->load[i];
        CHECK(i < at.probs || i == at.rows ? load[i] == want : fabs(load[i] - want) <= 1e-6 * (1.0 + fabs(want)));
        load[i] *= 0.5;
    }
    lab_digest(lab, load, at.count * sizeof *load);
}

static void run_on(struct lab *lab, const struct data *data) {
    const int keep = guard_count;
    const struct ox_router *const router = &data->shape->router;
    const size_t pairs = (size_t)data->shape->rows * router->chosen;
    const size_t logit_len = (size_t)data->shape->rows * router->experts;
    const struct ox_op_route_forward forward = {.experts = guarded(pairs * sizeof(int32_t)), .weights = floats(pairs),
                                                .lse = floats(data->shape->rows), .logits = data->logits,
                                                .bias = data->bias, .rows = data->shape->rows, .router = *router};
    double *const load = doubles(ox_route_load_layout_of(router->experts).count);
    float *const dlogits = floats(logit_len);
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, route_forward, &forward));
    run_load(lab, data, &forward, load);
    const struct ox_op_route_backward backward = {
        .dlogits = dlogits, .dweights = data->dweights, .logits = data->logits, .weights = forward.weights,
        .lse = forward.lse, .experts = forward.experts, .load = data->shape->losses ? load : NULL,
        .counted = data->shape->mask ? data->counted : NULL, .rows = data->shape->rows,
        .balance = (float)data->balance_scale, .z = (float)data->z_scale, .router = *router};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, route_backward, &backward));
    lab_finish(lab);
    CHECK(memcmp(forward.experts, data->experts, pairs * sizeof(int32_t)) == 0);
    const double rounding = router->rounds ? 4e-3 : 5e-7;
    check_error(router->rounds ? "weights, rounded" : "weights", error_of(forward.weights, data->weights, pairs),
                rounding);
    check_error("log of the sum", error_of(forward.lse, data->lse, data->shape->rows), 3e-7);
    const bool constant = router->chosen == 1 && router->renormalise && !data->shape->losses;
    if (!constant) { /* nothing but rounding is left of a weight of 1 */
        check_error(router->rounds ? "dlogits, rounded" : "dlogits", error_of(dlogits, data->dlogits, logit_len),
                    router->rounds ? 2e-2 : 2e-6);
    }
    for (size_t i = 0; i < logit_len && !data->shape->losses && (router->renormalise || router->scores != 0); i++) {
        bool chosen = false;
        for (uint32_t slot = 0; slot < router->chosen; slot++) {
            chosen |= forward.experts[i / router->experts * router->chosen + slot] == (int32_t)(i % router->experts);
        }
        CHECK(chosen || dlogits[i] == 0.0f);
    }
    lab_digest(lab, forward.experts, pairs * sizeof(int32_t));
    lab_digest(lab, forward.weights, pairs * sizeof(float));
    lab_digest(lab, dlogits, logit_len * sizeof(float));
    run_sort(lab, router, forward.experts, data->shape->rows);
    guards_end(keep);
}

static void run_case(struct lab labs[LAB_MAX], const struct route_case *given) {
    struct route_case scaled = *given;
    const struct route_case *const shape = &scaled;
    scaled.router.scale = given->router.scale == 0.0f ? 1.0f : given->router.scale;
    const uint32_t experts = shape->router.experts;
    const size_t pairs = (size_t)shape->rows * shape->router.chosen, logits = (size_t)shape->rows * experts;
    struct data data = {.shape = shape, .z = doubles(logits), .weights = doubles(pairs), .dlogits = doubles(logits),
                        .lse = doubles(shape->rows), .experts = guarded(pairs * sizeof(int32_t)),
                        .load = doubles(ox_route_load_layout_of(experts).count), .balance_scale = 0.7 * shape->rows,
                        .z_scale = 0.2 * shape->rows};
    float *const values = random_floats(logits, 1, 1.5);
    int32_t *const counted = guarded(shape->rows * sizeof(int32_t));
    for (size_t i = 0; i < logits && shape->ties; i++) {
        values[i] = roundf(values[i]);
    }
    for (uint32_t row = 0; row < shape->rows; row++) {
        counted[row] = shape->mask && row % 3 == 1 ? OX_TARGET_PADDING : (int32_t)row - 1; /* the first is masked */
    }
    data.logits = values;
    data.counted = counted;
    data.bias = shape->bias ? random_floats(experts, 2, 0.5) : NULL;
    data.dweights = random_floats(pairs, 3, 1.0);
    make_reference(&data);
    for (int i = 0; i < lab_count; i++) {
        if (lab_takes(&labs[i], (double)logits * 20)) {
            run_on(&labs[i], &data);
        }
    }
    labs_end_case(labs);
}

/* ---- logits ---- */

struct linear_data {
    uint32_t rows, in_count, experts;
    enum ox_real real;
    float *in, *weight, *bias, *dlogits, *residual;
    double *logits, *din, *dweight, *dbias;
};

static void linear_reference(const struct linear_data *d) {
    for (uint32_t r = 0; r < d->rows; r++) {
        for (uint32_t i = 0; i < d->in_count; i++) {
            d->din[(size_t)r * d->in_count + i] = (double)d->residual[(size_t)r * d->in_count + i];
        }
        for (uint32_t e = 0; e < d->experts; e++) {
            const double dlogit = (double)d->dlogits[(size_t)r * d->experts + e];
            double sum = (double)d->bias[e];
            for (uint32_t i = 0; i < d->in_count; i++) {
                const double in = (double)d->in[(size_t)r * d->in_count + i];
                const double weight = (double)d->weight[(size_t)e * d->in_count + i];
                sum += in * weight;
                d->din[(size_t)r * d->in_count + i] += dlogit * weight;
                d->dweight[(size_t)e * d->in_count + i] += dlogit * in;
            }
            d->logits[(size_t)r * d->experts + e] = sum;
            d->dbias[e] += dlogit;
        }
    }
}

static void run_linear_on(struct lab *lab, const struct linear_data *d) {
    const int keep = guard_count;
    const size_t in_len = (size_t)d->rows * d->in_count, out_len = (size_t)d->rows * d->experts;
    const size_t weight_len = (size_t)d->experts * d->in_count;
    float *const logits = floats(out_len), *const dweight = floats(weight_len), *const dbias = floats(d->experts);
    void *const din = reals_of(d->real, d->residual, in_len), *const in = reals_of(d->real, d->in, in_len);
    void *const weight = reals_of(d->real, d->weight, weight_len);
    const struct ox_op_router_forward forward = {logits, in, weight, reals_of(d->real, d->bias, d->experts), d->rows,
                                                 d->in_count, d->experts, d->real};
    const uint64_t scratch_bytes = ox_ops_router_scratch_bytes(&lab->compute, d->rows, d->experts);
    struct ox_op_router_backward backward = {din, din, dweight, dbias, d->dlogits, in, weight, guarded(scratch_bytes),
                                             d->rows, d->in_count, d->experts, d->real, true};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, router_forward, &forward));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, router_backward, &backward));
    lab_finish(lab);
    check_error("router logits", error_of(logits, d->logits, out_len), 1e-6);
    check_real_error(d->real, "router din", error_of(floats_of(d->real, din, in_len), d->din, in_len), 1e-6, 8e-3);
    check_real_error(d->real, "router dweight", error_of(dweight, d->dweight, weight_len), 1e-6, 4e-3);
    check_error("router dbias", error_of(dbias, d->dbias, d->experts), 1e-6);
    lab_digest(lab, logits, out_len * sizeof(float));
    lab_digest(lab, dweight, weight_len * sizeof(float));
    guards_end(keep);
}

static void run_linear(struct lab labs[LAB_MAX], enum ox_real real) {
    struct linear_data d = {.rows = 37, .in_count = 40, .experts = 6, .real = real};
    const size_t in_len = (size_t)d.rows * d.in_count, weight_len = (size_t)d.experts * d.in_count;
    d.in = random_reals(real, in_len, 1, 1.0);
    d.weight = random_reals(real, weight_len, 2, 1.0);
    d.bias = random_reals(real, d.experts, 3, 1.0);
    d.dlogits = random_floats((size_t)d.rows * d.experts, 4, 1.0);
    d.residual = random_reals(real, in_len, 5, 1.0);
    d.logits = doubles((size_t)d.rows * d.experts);
    d.din = doubles(in_len);
    d.dweight = doubles(weight_len);
    d.dbias = doubles(d.experts);
    memset(d.dweight, 0, weight_len * sizeof(double));
    memset(d.dbias, 0, d.experts * sizeof(double));
    linear_reference(&d);
    for (int i = 0; i < lab_count; i++) {
        if (lab_knows(&labs[i], real)) {
            run_linear_on(&labs[i], &d);
        }
    }
    labs_end_case(labs);
}

int main(void) {
    struct lab labs[LAB_MAX];
    labs_open(labs);
    for (int i = 0; i < CASE_COUNT; i++) {
        run_case(labs, &cases[i]);
    }
    run_linear(labs, OX_REAL_F32);
    run_linear(labs, OX_REAL_BF16);
    run_linear(labs, OX_REAL_F16);
    if (labs_change_products(labs, OX_REAL_BF16)) { /* a router stays in float32 */
        run_linear(labs, OX_REAL_F32);
    }
    return labs_end(labs);
}
