/* Linear layer and cross-entropy, fused; kernels/head_walk.h says how rows and vocabulary are walked. */
#include "base/assert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/head_rows.h"
#include "kernels/head_walk.h"

#include <math.h>
#include <string.h>

enum { ITEM_ROWS = 8 };

static uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

struct job {
    const struct ox_op_head *op;
    const struct ox_cpu *cpu;
    struct ox_head_walk walk;
    struct ox_head_scratch scratch; /* of a part its sums are the operation's */
    double *total;               /* (rows): sums of logits, with smoothing */
    uint32_t vocab_whole;        /* of which the operation may have a part */
    uint32_t row, row_count;     /* rows of the current tile */
    uint32_t vocab, vocab_count; /* its tokens          */
    float *tile;                 /* its logits          */
    struct ox_op_logits after;   /* what is done to logits once they are computed */
    uint32_t joined;             /* first token of the tile whose weights are joined; UINT32_MAX: none */
};

static void join_tile(struct job *job) {
    const struct ox_op_head *const op = job->op;
    if (job->joined == job->vocab) {
        return;
    }
    job->joined = job->vocab;
    const uint64_t begin = (uint64_t)job->vocab * op->hidden;
    ox_cpu_planes_join(job->cpu, &(struct ox_op_planes_join){.out = job->scratch.weight, .hi = op->weight_hi + begin,
                                                             .lo = op->weight_lo == NULL ? NULL : op->weight_lo + begin,
                                                             .count = (uint64_t)job->vocab_count * op->hidden});
}

static void compute_logits(struct job *job) {
    const struct ox_op_head *const op = job->op;
    ox_cpu_gemm(job->cpu, &(struct ox_gemm){
                              .c = job->tile,
                              .a = ox_cpu_from(op->in, (size_t)job->row * op->hidden),
                              .b = job->scratch.weight,
                              .m = job->row_count,
                              .n = job->vocab_count,
                              .k = op->hidden,
                              .a_stride = op->hidden,
                              .b_stride = op->hidden,
                              .c_stride = (uint32_t)job->walk.logit_stride,
                              .b_transposed = true,
                          });
}

/* What the product of low rank adds to the tile's logits. */
static void add_low_logits(const struct job *job) {
    const struct ox_head_low *const low = &job->op->low;
    ox_cpu_gemm(job->cpu, &(struct ox_gemm){.c = job->tile,
                                            .a = ox_cpu_from(low->in, (size_t)job->row * low->r),
                                            .b = ox_cpu_from(low->weight, (size_t)job->vocab * low->r),
                                            .m = job->row_count, .n = job->vocab_count, .k = low->r,
                                            .a_stride = low->r, .b_stride = low->r,
                                            .c_stride = (uint32_t)job->walk.logit_stride, .b_transposed = true,
                                            .beta = 1.0f, .scale = low->scale});
}

/* The column of the tile that is the target's; from vocab_count on it is in another one. */
static uint32_t column_of(const struct job *job, int32_t target) {
    const uint32_t first = job->op->first + job->vocab;
    return target >= 0 && (uint32_t)target >= first ? (uint32_t)target - first : UINT32_MAX;
}

/* Scales and caps the tile's logits, where they have just been computed. */
static void after_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct job *const job = args;
    for (uint64_t i = rows.begin; i < rows.end; i++) {
        ox_cpu_scale_logits(vector, &job->after, job->tile + i * job->walk.logit_stride, job->vocab_count);
    }
}

/* First walk: updates maximum and sum of each row. A NaN logit makes the sum NaN. */
static void statistics_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct job *const job = args;
    const struct ox_op_head *const op = job->op;
    for (uint64_t i = rows.begin; i < rows.end; i++) {
        const float *const logits = job->tile + i * job->walk.logit_stride;
        const uint32_t row = job->row + (uint32_t)i;
        const float top = vector->max(logits, job->vocab_count);
        if (job->vocab == 0) {
            job->scratch.max[row] = top;
            job->scratch.sum[row] = 0.0;
            if (op->smoothing != 0.0f) {
                job->total[row] = 0.0;
            }
        } else if (top > job->scratch.max[row]) {
            job->scratch.sum[row] *= exp((double)job->scratch.max[row] - (double)top);
            job->scratch.max[row] = top;
        }
        job->scratch.sum[row] += vector->exp_sum(logits, job->scratch.max[row], job->vocab_count);
        for (uint32_t k = 0; op->smoothing != 0.0f && k < job->vocab_count; k++) {
            job->total[row] += (double)logits[k];
        }
        if (column_of(job, op->targets[row]) < job->vocab_count) {
            job->scratch.target_logit[row] = logits[column_of(job, op->targets[row])];
        }
        if (op->logits != NULL) {
            memcpy(op->logits + (size_t)row * job->vocab_whole + op->first + job->vocab, logits,
                   job->vocab_count * sizeof(float));
        }
    }
}

static double log_sum(const struct job *job, uint32_t row) {
    return (double)job->scratch.max[row] + log(job->scratch.sum[row]);
}

/* The gradient of a row's logits is factor * exp(logit - max), less `uniform` for each, and less `hit` for the
 * target. */
struct slopes {
    float factor, hit, uniform;
};

static struct slopes slopes_of(const struct job *job, uint32_t row) {
    const struct ox_op_head *const op = job->op;
    const float weight = op->row_weights != NULL ? op->loss_scale * op->row_weights[row] : op->loss_scale;
    const double e = (double)op->smoothing, z = (double)op->z_loss;
    const double of_sum = z == 0.0 ? (double)weight : (double)weight * (1.0 + 2.0 * z * log_sum(job, row));
    return (struct slopes){.factor = (float)(of_sum / job->scratch.sum[row]),
                           .hit = op->smoothing == 0.0f ? weight : (float)((double)weight * (1.0 - e)),
                           .uniform = (float)((double)weight * e / job->vocab_whole)};
}

/* Subtracts the same from all. */
static void shift(float *values, float by, uint32_t count) {
    for (uint32_t i = 0; by != 0.0f && i < count; i++) {
        values[i] -= by;
    }
}

/* Turns scaled and capped logits into the gradient of the products. The cap's slope follows from the logits, over which
 * the gradient is written: so of some columns at a time they are taken aside first. */
enum { ASIDE = 512 };

static void gradient_row(const struct ox_vector *vector, const struct job *job, float *logits, uint32_t row) {
    const struct ox_op_head *const op = job->op;
    const uint32_t column = column_of(job, op->targets[row]);
    const struct slopes slopes = slopes_of(job, row);
    float aside[ASIDE];
    for (uint32_t begin = 0; begin < job->vocab_count; begin += ASIDE) {
        const uint32_t count = min_u32(ASIDE, job->vocab_count - begin);
        float *const part = logits + begin;
        memcpy(aside, part, count * sizeof *part);
        vector->exp_scaled(part, job->scratch.max[row], slopes.factor, count);
        shift(part, slopes.uniform, count);
        if (column >= begin && column - begin < count) {
            part[column - begin] -= slopes.hit;
        }
        if (op->logit_cap != 0.0f) {
            vector->cap_back(part, aside, op->logit_cap, count);
        }
        if (op->logit_scale != 0.0f) {
            vector->scale(part, op->logit_scale, count);
        }
    }
}

/* Second walk: turns the logits into their own gradient. */
static void gradient_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct job *const job = args;
    const struct ox_op_head *const op = job->op;
    for (uint64_t i = rows.begin; i < rows.end; i++) {
        float *const logits = job->tile + i * job->walk.logit_stride;
        const uint32_t row = job->row + (uint32_t)i;
        const int32_t target = op->targets[row];
        if (target < 0) {
            memset(logits, 0, job->vocab_count * sizeof(float));
            continue;
        }
        if (op->logit_cap != 0.0f || op->logit_scale != 0.0f) {
            gradient_row(vector, job, logits, row);
            continue;
        }
        const struct slopes slopes = slopes_of(job, row);
        vector->exp_scaled(logits, job->scratch.max[row], slopes.factor, job->vocab_count);
        shift(logits, slopes.uniform, job->vocab_count);
        if (column_of(job, target) < job->vocab_count) {
            logits[column_of(job, target)] -= slopes.hit;
        }
    }
}

static void add_input_gradient(const struct job *job) {
    const struct ox_op_head *const op = job->op;
    ox_cpu_gemm(job->cpu, &(struct ox_gemm){
                              .c = ox_cpu_at(op->din, (size_t)job->row * op->hidden),
                              .a = job->tile,
                              .b = job->scratch.weight,
                              .m = job->row_count,
                              .n = op->hidden,
                              .k = job->vocab_count,
                              .a_stride = (uint32_t)job->walk.logit_stride,
                              .b_stride = op->hidden,
                              .c_stride = op->hidden,
                              .beta = job->vocab == 0 ? 0.0f : 1.0f,
                          });
}

static void add_weight_gradient(const struct job *job) {
    const struct ox_op_head *const op = job->op;
    ox_cpu_gemm(job->cpu, &(struct ox_gemm){
                              .c = op->dweight + (size_t)job->vocab * op->hidden,
                              .a = job->tile,
                              .b = ox_cpu_from(op->in, (size_t)job->row * op->hidden),
                              .m = job->vocab_count,
                              .n = op->hidden,
                              .k = job->row_count,
                              .a_stride = (uint32_t)job->walk.logit_stride,
                              .b_stride = op->hidden,
                              .c_stride = op->hidden,
                              .a_transposed = true,
                              .beta = op->begins && job->row == 0 ? 0.0f : 1.0f,
                          });
}

/* Its gradients, of those of the tile's logits. */
static void add_low_gradients(const struct job *job) {
    const struct ox_head_low *const low = &job->op->low;
    struct ox_gemm gemm = {.a = job->tile, .a_stride = (uint32_t)job->walk.logit_stride, .n = low->r,
                           .b_stride = low->r, .c_stride = low->r, .scale = low->scale};
    if (low->din != NULL) {
        gemm.c = ox_cpu_at(low->din, (size_t)job->row * low->r);
        gemm.b = ox_cpu_from(low->weight, (size_t)job->vocab * low->r);
        gemm.m = job->row_count;
        gemm.k = job->vocab_count;
        gemm.beta = job->vocab == 0 ? 0.0f : 1.0f;
        ox_cpu_gemm(job->cpu, &gemm);
    }
    if (low->dweight != NULL) {
        gemm.c = low->dweight + (size_t)job->vocab * low->r;
        gemm.b = ox_cpu_from(low->in, (size_t)job->row * low->r);
        gemm.m = job->vocab_count;
        gemm.k = job->row_count;
        gemm.a_transposed = true;
        gemm.beta = job->op->begins && job->row == 0 ? 0.0f : 1.0f;
        ox_cpu_gemm(job->cpu, &gemm);
    }
}

/* Walks the vocabulary once for the rows [first, end). */
static void walk_group(struct job *job, uint32_t first, uint32_t end, bool backward) {
    const struct ox_head_walk *const walk = &job->walk;
    const uint32_t vocab = job->op->vocab;
    for (job->vocab = 0; job->vocab < vocab; job->vocab += walk->tile_vocab) {
        job->vocab_count = min_u32(walk->tile_vocab, vocab - job->vocab);
        join_tile(job);
        for (job->row = first; job->row < end; job->row += walk->tile_rows) {
            job->row_count = min_u32(walk->tile_rows, end - job->row);
            job->tile = walk->held ? job->scratch.logits + job->vocab : job->scratch.logits;
            if (!backward || !walk->held || job->op->part == OX_HEAD_GRADIENTS) {
                compute_logits(job);
                if (job->op->low.r > 0) {
                    add_low_logits(job);
                }
                if (job->after.scale != 0.0f || job->after.cap != 0.0f) {
                    ox_cpu_pieces(job->cpu, job->row_count, ITEM_ROWS, after_rows, job);
                }
            }
            ox_cpu_pieces(job->cpu, job->row_count, ITEM_ROWS, backward ? gradient_rows : statistics_rows, job);
            if (backward && job->op->din != NULL) {
                add_input_gradient(job);
            }
            if (backward && job->op->dweight != NULL) {
                add_weight_gradient(job);
            }
            if (backward && job->op->low.r > 0) {
                add_low_gradients(job);
            }
        }
    }
}

/* Adds the rows' losses in ascending order. */
static void add_losses(const struct job *job) {
    const struct ox_op_head *const op = job->op;
    const double e = (double)op->smoothing, z = (double)op->z_loss;
    double total = 0.0, nll_total = 0.0, z_total = 0.0;
    for (uint32_t row = 0; row < op->rows; row++) {
        double nll = 0.0, loss = 0.0;
        if (op->targets[row] >= 0) {
            nll = (double)job->scratch.max[row] - (double)job->scratch.target_logit[row] + log(job->scratch.sum[row]);
            loss = nll;
            if (e != 0.0) {
                loss = (1.0 - e) * nll + e * (log_sum(job, row) - op->row_parts[row] / op->vocab);
            }
            if (z != 0.0) {
                const double z_loss = z * log_sum(job, row) * log_sum(job, row);
                z_total += z_loss;
                loss += z_loss;
            }
        }
        total += loss;
        nll_total += nll;
        if (op->row_nll != NULL) {
            op->row_nll[row] = (float)nll;
        }
    }
    op->loss_sum[0] += total;
    if (op->parts != NULL) {
        op->parts[0] += nll_total;
        op->parts[1] += z_total;
    }
}

/* Statistics of a part are those that the operation is given. */
static void take_rows(struct job *job, const struct ox_head_rows *rows) {
    job->scratch.sum = rows->sum;
    job->scratch.max = rows->max;
    job->scratch.target_logit = rows->target;
    job->total = rows->total;
    if (job->op->part == OX_HEAD_STATISTICS) {
        memset(rows->target, 0, job->op->rows * sizeof *rows->target);
    }
}

void ox_cpu_head(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_head *const op = args;
    const struct ox_compute compute = {.device = OX_DEVICE_CPU, .real = op->real};
    struct job job = {.op = op, .cpu = cpu, .walk = ox_head_walk_of(&compute, op->rows, op->vocab),
                      .after = {.scale = op->logit_scale, .cap = op->logit_cap}, .joined = UINT32_MAX,
                      .total = op->row_parts,
                      .vocab_whole = op->part == OX_HEAD_WHOLE ? op->vocab : op->vocab_whole};
    job.scratch = ox_head_scratch_at(&compute, op->scratch, op->rows, op->hidden, op->vocab);
    if (op->part != OX_HEAD_WHOLE) {
        take_rows(&job, &op->rows_of);
    }
    for (uint32_t first = 0; first < op->rows; first += job.walk.group_rows) {
        const uint32_t end = min_u32(op->rows, first + job.walk.group_rows);
        if (op->part != OX_HEAD_GRADIENTS) {
            walk_group(&job, first, end, false);
        }
        if (op->din != NULL || op->dweight != NULL || op->low.din != NULL || op->low.dweight != NULL) {
            walk_group(&job, first, end, true);
        }
    }
    if (op->part == OX_HEAD_WHOLE) {
        add_losses(&job);
    }
}

void ox_cpu_head_merge(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_head_merge *const op = args;
    double totals[3] = {0.0};
    (void)cpu;
    for (uint32_t row = 0; row < op->rows; row++) {
        ox_head_merge_row(op, row);
        ox_head_row_losses(op, row, op->row_losses);
        for (int k = 0; k < 3; k++) {
            totals[k] += op->row_losses[(uint64_t)k * op->rows + row];
        }
    }
    op->loss_sum[0] += totals[0];
    if (op->parts != NULL) {
        op->parts[0] += totals[1];
        op->parts[1] += totals[2];
    }
}
