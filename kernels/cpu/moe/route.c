/* The router of a mixture of experts: logits, what is chosen and how it weighs, the losses of the router, and the
 * sorting of pairs. Rows are independent of each other but in the sums of the load and in the sorting. */
#include "base/bytes.h"
#include "base/planes.h"
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { ITEM_ROWS = 16, GROUP_ROWS = 64 };

/* ---- logits ---- */

void ox_cpu_router_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_router_forward *const op = args;
    ox_cpu_gemm_tiles(cpu, &(struct ox_gemm){.c = op->logits, .a = op->in, .b = op->weight, .bias = op->bias,
                                             .m = op->rows, .n = op->experts, .k = op->in_count,
                                             .a_stride = op->in_count, .b_stride = op->in_count,
                                             .c_stride = op->experts, .b_transposed = true});
}

void ox_cpu_router_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_router_backward *const op = args;
    ox_cpu_gemm_tiles(cpu, &(struct ox_gemm){.c = op->din, .a = op->dlogits, .b = op->weight,
                                             .residual = op->residual, .m = op->rows, .n = op->in_count,
                                             .k = op->experts, .a_stride = op->experts, .b_stride = op->in_count,
                                             .c_stride = op->in_count});
    if (op->dweight != NULL) {
        ox_cpu_gemm_tiles(cpu, &(struct ox_gemm){.c = op->dweight, .a = op->dlogits, .b = op->in, .m = op->experts,
                                                 .n = op->in_count, .k = op->rows, .a_stride = op->experts,
                                                 .b_stride = op->in_count, .c_stride = op->in_count,
                                                 .a_transposed = true, .beta = op->begins ? 0.0f : 1.0f});
    }
    if (op->dbias != NULL) {
        ox_cpu_column_sums(cpu, &(struct ox_op_linear_backward){.dbias = op->dbias, .dout = op->dlogits,
                                                                .rows = op->rows, .out_count = op->experts,
                                                                .begins = op->begins});
    }
}

/* ---- choice ---- */

void ox_cpu_join_limbs(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_join_limbs *const op = args;
    (void)cpu;
    for (uint64_t i = 0; i < op->count; i++) {
        const float *const limbs = ox_cpu_at((void *)(uintptr_t)op->in, i * OX_LIMBS);
        op->out[i] = ox_limbs_sum(limbs);
    }
}

void ox_cpu_limbs_shift(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_limbs_shift *const op = args;
    (void)cpu;
    for (uint32_t i = 0; i < op->count; i++) {
        ox_limbs_shift(op, i);
    }
}

/* Orders values as numbers, equal ones by the lower index first; greater is better, and no key is 0. A NaN has a place
 * too, so that whatever comes in, different experts in range are chosen. */
static uint64_t key_of(float value, uint32_t idx) {
    const float plain = value + 0.0f; /* -0 is 0 */
    uint32_t bits;
    memcpy(&bits, &plain, sizeof bits);
    const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | UINT32_C(0x80000000);
    return (uint64_t)(ordered > 0 ? ordered : 1) << 32 | (UINT32_MAX - idx);
}

static uint32_t best_of(const uint64_t *keys, uint32_t count) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++) {
        best = keys[i] > keys[best] ? i : best;
    }
    return best;
}

struct row {
    float z[OX_EXPERTS_MAX];     /* logits as they count */
    float score[OX_EXPERTS_MAX]; /* as they weigh */
    uint64_t key[OX_EXPERTS_MAX];
    float lse;
};

/* Reads a row's logits; returns their largest. */
static float read_logits(const struct ox_vector *vector, const struct ox_router *router, const float *logits,
                         struct row *row) {
    for (uint32_t e = 0; e < router->experts; e++) {
        row->z[e] = router->rounds ? ox_bf16_to_f32(ox_bf16_from_f32(logits[e])) : logits[e];
    }
    return vector->max(row->z, router->experts);
}

static void sigmoids(const struct ox_vector *vector, const struct ox_router *router, struct row *row) {
    for (uint32_t e = 0; e < router->experts; e++) {
        row->score[e] = -row->z[e];
    }
    vector->exp_row(row->score, 0.0f, router->experts);
    for (uint32_t e = 0; e < router->experts; e++) {
        row->score[e] = 1.0f / (1.0f + row->score[e]);
    }
}

static void take_scores(const struct ox_vector *vector, const struct ox_router *router, const float *logits,
                        struct row *row) {
    const float top = read_logits(vector, router, logits, row);
    memcpy(row->score, row->z, router->experts * sizeof(float));
    const float sum = vector->exp_row(row->score, top, router->experts);
    row->lse = top + logf(sum);
    if (router->scores == OX_SCORES_SOFTMAX) {
        vector->scale(row->score, 1.0f / sum, router->experts);
    } else if (router->scores == OX_SCORES_SIGMOID) {
        sigmoids(vector, router, row);
    } else {
        memcpy(row->score, row->z, router->experts * sizeof(float));
    }
}

/* Takes the keys of experts in other groups than the best ones away. */
static void keep_groups(const struct ox_router *router, const float *bias, struct row *row) {
    const uint32_t size = router->experts / router->groups;
    uint64_t groups[OX_EXPERTS_MAX];
    bool kept[OX_EXPERTS_MAX] = {false};
    for (uint32_t g = 0; g < router->groups; g++) {
        float best = -INFINITY, second = -INFINITY;
        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            const float value = row->score[e] + (bias == NULL ? 0.0f : bias[e]);
            second = value > best ? best : value > second ? value : second;
            best = value > best ? value : best;
        }
        const bool both = router->group_rank == OX_GROUP_BY_BEST_TWO && size > 1;
        groups[g] = key_of(both ? best + second : best, g);
    }
    for (uint32_t i = 0; i < router->groups_kept; i++) {
        const uint32_t g = best_of(groups, router->groups);
        kept[g] = true;
        groups[g] = 0;
    }
    for (uint32_t e = 0; e < router->experts; e++) {
        row->key[e] = kept[e / size] ? row->key[e] : 0;
    }
}

static void choose(const struct ox_router *router, const float *bias, struct row *row, int32_t *experts) {
    for (uint32_t e = 0; e < router->experts; e++) {
        row->key[e] = key_of(row->score[e] + (bias == NULL ? 0.0f : bias[e]), e);
    }
    if (router->groups > 1) {
        keep_groups(router, bias, row);
    }
    for (uint32_t i = 0; i < router->chosen; i++) {
        const uint32_t e = best_of(row->key, router->experts);
        row->key[e] = 0;
        uint32_t slot = i;
        for (; slot > 0 && experts[slot - 1] > (int32_t)e; slot--) {
            experts[slot] = experts[slot - 1];
        }
        experts[slot] = (int32_t)e;
    }
}

static void weigh(const struct ox_router *router, const struct row *row, const int32_t *experts, float *weights) {
    float top = -INFINITY, sum = 0.0f;
    for (uint32_t i = 0; i < router->chosen; i++) {
        weights[i] = row->score[experts[i]];
        top = weights[i] > top ? weights[i] : top;
    }
    for (uint32_t i = 0; i < router->chosen; i++) {
        weights[i] = router->scores == OX_SCORES_SOFTMAX_CHOSEN ? expf(weights[i] - top) : weights[i];
        sum += weights[i];
    }
    const bool divides = router->renormalise || router->scores == OX_SCORES_SOFTMAX_CHOSEN;
    for (uint32_t i = 0; i < router->chosen; i++) {
        const float weight = (divides ? weights[i] / (sum + router->eps) : weights[i]) * router->scale;
        weights[i] = router->rounds ? ox_bf16_to_f32(ox_bf16_from_f32(weight)) : weight;
    }
}

static void route_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_route_forward *const op = args;
    const struct ox_router *const router = &op->router;
    struct row row;
    for (uint64_t r = rows.begin; r < rows.end; r++) {
        int32_t *const experts = op->experts + r * router->chosen;
        take_scores(vector, router, op->logits + r * router->experts, &row);
        choose(router, op->bias, &row, experts);
        weigh(router, &row, experts, op->weights + r * router->chosen);
        op->lse[r] = row.lse;
    }
}

void ox_cpu_route_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_route_forward *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, route_rows, op);
}

/* ---- load ---- */

static bool counts(const int32_t *counted, uint64_t row) {
    return counted == NULL || counted[row] != OX_TARGET_PADDING;
}

/* Sums over a group of rows, so that the shape alone decides the order. */
static void load_group(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_route_load *const op = args;
    const struct ox_route_load_layout at = ox_route_load_layout_of(op->router.experts);
    double *const part = (double *)op->scratch + rows.begin / GROUP_ROWS * at.count;
    struct row row;
    memset(part, 0, at.count * sizeof *part);
    for (uint64_t r = rows.begin; r < rows.end; r++) {
        if (!counts(op->counted, r)) {
            continue;
        }
        read_logits(vector, &op->router, op->logits + r * op->router.experts, &row);
        vector->exp_row(row.z, op->lse[r], op->router.experts);
        for (uint32_t e = 0; e < op->router.experts; e++) {
            part[at.probs + e] += (double)row.z[e];
        }
        for (uint32_t i = 0; i < op->router.chosen; i++) {
            part[at.counts + (uint32_t)op->experts[r * op->router.chosen + i]] += 1.0;
        }
        part[at.rows] += 1.0;
        part[at.squares] += (double)op->lse[r] * (double)op->lse[r];
    }
}

void ox_cpu_route_load(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_route_load *const op = args;
    const struct ox_route_load_layout at = ox_route_load_layout_of(op->router.experts);
    if (op->begins) {
        memset(op->load, 0, at.count * sizeof *op->load);
    }
    /* The scratch holds the sums of so many groups. */
    for (uint32_t begin = 0; begin < op->rows; begin += OX_ROUTE_LOAD_GROUPS * GROUP_ROWS) {
        struct ox_op_route_load part = *op;
        part.rows = (uint32_t)ox_min_u64(op->rows - begin, OX_ROUTE_LOAD_GROUPS * GROUP_ROWS);
        part.logits += (size_t)begin * op->router.experts;
        part.lse += begin;
        part.experts += (size_t)begin * op->router.chosen;
        part.counted = op->counted == NULL ? NULL : op->counted + begin;
        ox_cpu_pieces(cpu, part.rows, GROUP_ROWS, load_group, &part);
        for (uint64_t g = 0; g < ox_div_up(part.rows, GROUP_ROWS); g++) {
            for (uint32_t i = 0; i < at.count; i++) {
                op->load[i] += ((const double *)op->scratch)[g * at.count + i];
            }
        }
    }
}

void ox_cpu_route_pool(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_route_pool *const op = args;
    (void)cpu;
    memset(op->load, 0, op->count * sizeof *op->load);
    for (uint32_t mb = 0; mb < op->micro_batches; mb++) {
        for (uint32_t layer = 0; layer < op->layers; layer++) {
            const double *const part = op->loads + (size_t)mb * op->stride + (size_t)layer * op->count;
            for (uint32_t i = 0; i < op->count; i++) {
                op->load[i] += part[i];
            }
        }
    }
}

/* ---- backward ---- */

/* The gradient of the chosen weights, to zeros; row->score are the probabilities or sigmoids. Weights that sum to
 * `scale` have one form, whether the softmax was over all experts or over the chosen. */
static void weights_back(const struct ox_router *router, const struct row *row, const int32_t *experts,
                         const float *weights, const float *dweights, float *dlogits) {
    float sum = 0.0f, product = 0.0f;
    for (uint32_t i = 0; i < router->chosen; i++) {
        const float score = row->score[experts[i]];
        sum += score;
        product += dweights[i] * (router->scores == OX_SCORES_SIGMOID ? score : weights[i]);
    }
    sum += router->eps;
    for (uint32_t i = 0; i < router->chosen; i++) {
        const float score = row->score[experts[i]], dweight = dweights[i];
        if (router->scores == OX_SCORES_SIGMOID) {
            const float dscore =
                router->scale * (router->renormalise ? (dweight - product / sum) / sum : dweight);
            dlogits[experts[i]] = dscore * score * (1.0f - score);
        } else {
            dlogits[experts[i]] = weights[i] * (dweight - product / router->scale);
        }
    }
}

/* Softmax over all experts whose chosen probabilities are weights as they are: every logit has a gradient. */
static void probs_back(const struct ox_router *router, const struct row *row, const int32_t *experts,
                       const float *dweights, float *dlogits) {
    float product = 0.0f;
    for (uint32_t i = 0; i < router->chosen; i++) {
        product += row->score[experts[i]] * dweights[i];
    }
    for (uint32_t e = 0; e < router->experts; e++) {
        dlogits[e] = -router->scale * row->score[e] * product;
    }
    for (uint32_t i = 0; i < router->chosen; i++) {
        dlogits[experts[i]] = router->scale * row->score[experts[i]] * (dweights[i] - product);
    }
}

/* Adds the gradients of both losses; row->score are the probabilities. */
static void losses_back(const struct ox_op_route_backward *op, const struct row *row, float *dlogits) {
    const struct ox_route_load_layout at = ox_route_load_layout_of(op->router.experts);
    const double *const used = op->load + at.counts;
    const double n = op->load[at.rows];
    double mean = 0.0;
    for (uint32_t e = 0; e < op->router.experts; e++) {
        mean += used[e] / n * (double)row->score[e];
    }
    const double balance = (double)op->balance * op->router.experts / n;
    const double z = 2.0 * (double)op->z / n * (double)row->lse;
    for (uint32_t e = 0; e < op->router.experts; e++) {
        dlogits[e] += (float)((double)row->score[e] * (balance * (used[e] / n - mean) + z));
    }
}

static void route_back_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_route_backward *const op = args;
    const struct ox_router *const router = &op->router;
    struct row row;
    for (uint64_t r = rows.begin; r < rows.end; r++) {
        float *const dlogits = op->dlogits + r * router->experts;
        const int32_t *const experts = op->experts + r * router->chosen;
        const float *const dweights = op->dweights + r * router->chosen;
        const bool losses = op->load != NULL && counts(op->counted, r);
        memset(dlogits, 0, router->experts * sizeof *dlogits);
        read_logits(vector, router, op->logits + r * router->experts, &row);
        row.lse = op->lse[r];
        if (router->scores == OX_SCORES_SIGMOID) {
            sigmoids(vector, router, &row);
            weights_back(router, &row, experts, NULL, dweights, dlogits);
        }
        memcpy(row.score, row.z, router->experts * sizeof(float));
        vector->exp_row(row.score, row.lse, router->experts);
        if (router->scores == OX_SCORES_SOFTMAX && !router->renormalise) {
            probs_back(router, &row, experts, dweights, dlogits);
        } else if (router->scores != OX_SCORES_SIGMOID) {
            weights_back(router, &row, experts, op->weights + r * router->chosen, dweights, dlogits);
        }
        if (losses) {
            losses_back(op, &row, dlogits);
        }
    }
}

void ox_cpu_route_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_route_backward *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, route_back_rows, op);
}

/* ---- sorting ---- */

struct sorting {
    const struct ox_op_route_sort *op;
    int32_t *before; /* (parts, experts): pairs of the expert in the part; then where the part's first one goes */
};

static struct ox_range part_of(const struct ox_op_route_sort *op, uint32_t part) {
    const uint64_t begin = (uint64_t)part * OX_ROUTE_SORT_ROWS * op->chosen;
    const uint64_t pairs = (uint64_t)op->rows * op->chosen;
    return (struct ox_range){begin, ox_min_u64(begin + (uint64_t)OX_ROUTE_SORT_ROWS * op->chosen, pairs)};
}

static void count_part(void *context, uint32_t part, uint32_t thread) {
    const struct sorting *const job = context;
    int32_t *const before = job->before + (size_t)part * job->op->expert_count;
    const struct ox_range pairs = part_of(job->op, part);
    (void)thread;
    memset(before, 0, job->op->expert_count * sizeof *before);
    for (uint64_t pair = pairs.begin; pair < pairs.end; pair++) {
        before[job->op->experts[pair]]++;
    }
}

static void place_part(void *context, uint32_t part, uint32_t thread) {
    const struct sorting *const job = context;
    int32_t *const before = job->before + (size_t)part * job->op->expert_count;
    const struct ox_range pairs = part_of(job->op, part);
    (void)thread;
    for (uint64_t pair = pairs.begin; pair < pairs.end; pair++) {
        const int32_t place = before[job->op->experts[pair]]++;
        job->op->place[pair] = place;
        job->op->pair_of[place] = (int32_t)pair;
    }
}

void ox_cpu_route_sort(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_route_sort *const op = args;
    struct sorting job = {.op = op, .before = op->scratch};
    const uint32_t parts = (uint32_t)ox_div_up(op->rows, OX_ROUTE_SORT_ROWS);
    int32_t sum = 0;
    ox_pool_items(cpu->pool, parts, count_part, &job);
    for (uint32_t e = 0; e < op->expert_count; e++) {
        op->offsets[e] = sum;
        for (uint32_t part = 0; part < parts; part++) {
            int32_t *const at = &job.before[(size_t)part * op->expert_count + e];
            const int32_t count = *at;
            *at = sum;
            sum += count;
        }
    }
    op->offsets[op->expert_count] = sum;
    ox_pool_items(cpu->pool, parts, place_part, &job);
}
