/* What a pair of sequences costs (struct ox_op_pairs), on each device. */
#ifndef OX_KERNELS_PAIR_LOSS_H
#define OX_KERNELS_PAIR_LOSS_H

#include "base/planes.h"
#include "kernels/ops.h"

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline OX_ON_DEVICE_TOO double ox_softplus(double x) {
    return log1p(exp(-fabs(x))) + (x > 0.0 ? x : 0.0);
}

static inline OX_ON_DEVICE_TOO double ox_sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

/* Returns the loss of a pair at d, and its slope there. */
static inline OX_ON_DEVICE_TOO double ox_pair_loss_at(const struct ox_op_pairs *op, double d, double *slope) {
    const double beta = (double)op->beta, e = (double)op->smoothing, z = beta * d;
    double sign = 1.0, whole = 1.0;
    if (op->loss == OX_PAIR_IPO) {
        const double off = d - 1.0 / (2.0 * beta);
        *slope = 2.0 * off;
        return off * off;
    }
    if (op->loss == OX_PAIR_HINGE) {
        *slope = z < 1.0 ? -beta : 0.0;
        return z < 1.0 ? 1.0 - z : 0.0;
    }
    if (op->loss == OX_PAIR_ROBUST) {
        sign = -1.0;
        whole = 1.0 - 2.0 * e;
    }
    *slope = beta * (sign * e * ox_sigmoid(z) - (1.0 - e) * ox_sigmoid(-z)) / whole;
    return ((1.0 - e) * ox_softplus(-z) + sign * e * ox_softplus(z)) / whole;
}

/* A sequence: the sum of log-probabilities of its counted rows, in their order, and how many these are. */
struct ox_pair_side {
    double logp;
    uint32_t count;
};
static inline OX_ON_DEVICE_TOO struct ox_pair_side ox_pair_side_at(const struct ox_op_pairs *op, uint32_t sequence) {
    const uint64_t first = (uint64_t)sequence * op->seq;
    struct ox_pair_side out = {0.0, 0};
    for (uint64_t i = first; i < first + op->seq; i++) {
        if (op->targets[i] >= 0) {
            out.logp -= (double)op->row_nll[i];
            out.count++;
        }
    }
    return out;
}

static inline OX_ON_DEVICE_TOO void ox_pair_weigh(const struct ox_op_pairs *op, uint32_t sequence, double weight) {
    const uint64_t first = (uint64_t)sequence * op->seq;
    for (uint64_t i = first; op->row_weights != NULL && i < first + op->seq; i++) {
        op->row_weights[i] = (float)weight;
    }
}

/* Adds pair `k` to the values and weighs its rows; sft: what a chosen row's -log p adds to the loss. */
static inline OX_ON_DEVICE_TOO void ox_pair_add(const struct ox_op_pairs *op, uint32_t k, struct ox_pair_side chosen,
                                                struct ox_pair_side rejected, double sft) {
    if (chosen.count == 0 || rejected.count == 0) {
        ox_pair_weigh(op, 2 * k, 0.0);
        ox_pair_weigh(op, 2 * k + 1, 0.0);
        return;
    }
    const double own = chosen.logp - (op->reference == NULL ? chosen.logp : op->reference[2 * k]);
    const double other = rejected.logp - (op->reference == NULL ? rejected.logp : op->reference[2 * k + 1]);
    const bool means = op->loss == OX_PAIR_IPO;
    const double share = means ? 1.0 / chosen.count : 1.0, other_share = means ? 1.0 / rejected.count : 1.0;
    double slope = 0.0;
    op->values[OX_PAIR_LOSS] += ox_pair_loss_at(op, own * share - other * other_share, &slope) - sft * chosen.logp;
    op->values[OX_PAIR_REWARD_CHOSEN] += (double)op->beta * own;
    op->values[OX_PAIR_REWARD_REJECTED] += (double)op->beta * other;
    op->values[OX_PAIR_RIGHT] += own > other ? 1.0 : 0.0;
    op->values[OX_PAIR_LOGP_CHOSEN] += chosen.logp;
    op->values[OX_PAIR_LOGP_REJECTED] += rejected.logp;
    op->values[OX_PAIR_SFT] -= sft * chosen.logp;
    ox_pair_weigh(op, 2 * k, sft - slope * share);
    ox_pair_weigh(op, 2 * k + 1, slope * other_share);
}

/* All pairs of a micro-batch, whose sequences' sums lie in `sides`. */
static inline OX_ON_DEVICE_TOO void ox_pairs_add_all(const struct ox_op_pairs *op, const struct ox_pair_side *sides) {
    uint64_t rows = 0, pairs = 0;
    for (uint32_t i = 0; i < (uint32_t)OX_PAIR_VALUES; i++) {
        op->values[i] = 0.0;
    }
    for (uint32_t i = 0; i < op->batch; i++) {
        op->values[OX_PAIR_VALUES + i] = sides[i].logp;
        if (i % 2 == 0 && sides[i].count > 0 && sides[i + 1].count > 0) {
            rows += sides[i].count;
            pairs++;
        }
    }
    const double sft = rows == 0 ? 0.0 : (double)op->sft * (double)pairs / (double)rows;
    for (uint32_t k = 0; k < op->batch / 2; k++) {
        ox_pair_add(op, k, sides[2 * k], sides[2 * k + 1], sft);
    }
}

#ifdef __cplusplus
}
#endif
#endif
