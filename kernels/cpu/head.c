/* Linear layer and cross-entropy, fused. Rows are taken in groups; within a group the vocabulary is
 * walked in tiles twice: first for the maximum and the sum of exponentials of each row, then for the
 * gradients. Where the logits of a group of useful size fit in HELD_MAX floats they are kept between
 * the two walks (`held`); otherwise the group is all rows and the logits are computed again. */
#include "base/assert.h"
#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum {
    HELD_MAX = 16 * 1024 * 1024,
    HELD_ROWS_MIN = 384, /* with fewer rows at once, adding to dweight costs more than computing again */
    VOCAB_TILE = 4096,
    ROW_TILE = 1024,
    ROW_GRAIN = 32,
    ITEM_ROWS = 8,
};

/* The walk; a function of rows and vocab alone. */
struct walk {
    uint32_t group_rows; /* rows per group                                    */
    uint32_t tile_rows;  /* rows whose logits of one vocabulary tile exist    */
    uint32_t tile_vocab;
    uint64_t logit_stride; /* between rows of the logits' scratch              */
    bool held;
};

static uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static struct walk walk_of(uint32_t rows, uint32_t vocab) {
    OX_ASSERT(rows > 0 && vocab > 0);
    struct walk walk = {.tile_vocab = min_u32(vocab, VOCAB_TILE)};
    const uint32_t fit = HELD_MAX / vocab;
    walk.held = fit >= min_u32(rows, HELD_ROWS_MIN);
    if (walk.held) {
        const uint32_t group_count = (uint32_t)ox_div_up(rows, fit);
        const uint32_t even = (uint32_t)ox_align_up(ox_div_up(rows, group_count), ROW_GRAIN);
        walk.group_rows = min_u32(min_u32(even, fit), rows);
        walk.tile_rows = walk.group_rows;
        walk.logit_stride = vocab;
    } else {
        walk.group_rows = rows;
        walk.tile_rows = min_u32(rows, ROW_TILE);
        walk.logit_stride = walk.tile_vocab;
    }
    return walk;
}

bool ox_ops_head_holds_logits(uint32_t rows, uint32_t vocab) {
    return walk_of(rows, vocab).held;
}

/* Scratch, in this order: sums (double, rows), maxima and target logits (float, rows each), the joined
 * weights of a tile, the logits. */
struct job {
    const struct ox_op_head *op;
    const struct ox_cpu *cpu;
    struct walk walk;
    double *sum;
    float *max, *target_logit;
    float *weight, *logits;
    uint32_t row, row_count;     /* of the current tile */
    uint32_t vocab, vocab_count; /* likewise            */
    float *tile;                 /* its logits          */
    uint32_t joined;             /* first word of the tile whose weights are joined; none: UINT32_MAX */
};

static uint64_t weight_len(const struct walk *walk, uint32_t hidden) {
    return ox_align_up((uint64_t)walk->tile_vocab * hidden, OX_CPU_GRAIN);
}

static uint64_t state_len(uint32_t rows) {
    return ox_align_up(rows, OX_CPU_GRAIN);
}

uint64_t ox_ops_head_scratch_bytes(uint32_t rows, uint32_t hidden, uint32_t vocab, uint32_t threads) {
    (void)threads;
    const struct walk walk = walk_of(rows, vocab);
    const uint64_t state_bytes = state_len(rows) * (sizeof(double) + 2 * sizeof(float));
    const uint64_t logits_len = walk.tile_rows * walk.logit_stride;
    return state_bytes + (weight_len(&walk, hidden) + logits_len) * sizeof(float);
}

static void lay_out(struct job *job) {
    const uint64_t len = state_len(job->op->rows);
    job->sum = job->op->scratch;
    job->max = (float *)(job->sum + len);
    job->target_logit = job->max + len;
    job->weight = job->target_logit + len;
    job->logits = job->weight + weight_len(&job->walk, job->op->hidden);
}

static void join_tile(struct job *job) {
    const struct ox_op_head *const op = job->op;
    if (job->joined == job->vocab) {
        return;
    }
    job->joined = job->vocab;
    const uint64_t begin = (uint64_t)job->vocab * op->hidden;
    ox_cpu_join(job->cpu, job->weight, op->weight_hi + begin,
                op->weight_lo == NULL ? NULL : op->weight_lo + begin,
                (uint64_t)job->vocab_count * op->hidden);
}

static void compute_logits(struct job *job) {
    const struct ox_op_head *const op = job->op;
    ox_cpu_gemm(job->cpu, &(struct ox_gemm){
                              .c = job->tile,
                              .a = op->in + (size_t)job->row * op->hidden,
                              .b = job->weight,
                              .m = job->row_count,
                              .n = job->vocab_count,
                              .k = op->hidden,
                              .a_stride = op->hidden,
                              .b_stride = op->hidden,
                              .c_stride = (uint32_t)job->walk.logit_stride,
                              .b_transposed = true,
                          });
}

static bool in_tile(const struct job *job, int32_t target) {
    return target >= 0 && (uint32_t)target >= job->vocab &&
           (uint32_t)target - job->vocab < job->vocab_count;
}

/* First walk: running maximum and sum of each row. A NaN logit makes the sum NaN. */
static void statistics_item(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct job *const job = context;
    const struct ox_op_head *const op = job->op;
    const struct ox_vector *const vector = job->cpu->vector;
    const uint32_t end = min_u32(job->row_count, (item + 1) * ITEM_ROWS);
    for (uint32_t i = item * ITEM_ROWS; i < end; i++) {
        const float *const logits = job->tile + i * job->walk.logit_stride;
        const uint32_t row = job->row + i;
        const float top = vector->max(logits, job->vocab_count);
        if (job->vocab == 0) {
            job->max[row] = top;
            job->sum[row] = 0.0;
        } else if (top > job->max[row]) {
            job->sum[row] *= exp((double)job->max[row] - (double)top);
            job->max[row] = top;
        }
        job->sum[row] += vector->exp_sum(logits, job->max[row], job->vocab_count);
        if (in_tile(job, op->targets[row])) {
            job->target_logit[row] = logits[(uint32_t)op->targets[row] - job->vocab];
        }
        if (op->logits != NULL) {
            memcpy(op->logits + (size_t)row * op->vocab + job->vocab, logits,
                   job->vocab_count * sizeof(float));
        }
    }
}

/* Second walk: the logits become their own gradient. */
static void gradient_item(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct job *const job = context;
    const struct ox_op_head *const op = job->op;
    const uint32_t end = min_u32(job->row_count, (item + 1) * ITEM_ROWS);
    for (uint32_t i = item * ITEM_ROWS; i < end; i++) {
        float *const logits = job->tile + i * job->walk.logit_stride;
        const uint32_t row = job->row + i;
        const int32_t target = op->targets[row];
        if (target < 0) {
            memset(logits, 0, job->vocab_count * sizeof(float));
            continue;
        }
        const float factor = (float)((double)op->loss_scale / job->sum[row]);
        job->cpu->vector->exp_scaled(logits, job->max[row], factor, job->vocab_count);
        if (in_tile(job, target)) {
            logits[(uint32_t)target - job->vocab] -= op->loss_scale;
        }
    }
}

static void add_gradients(struct job *job) {
    const struct ox_op_head *const op = job->op;
    const size_t first = (size_t)job->row * op->hidden;
    ox_cpu_gemm(job->cpu, &(struct ox_gemm){
                              .c = op->din + first,
                              .a = job->tile,
                              .b = job->weight,
                              .m = job->row_count,
                              .n = op->hidden,
                              .k = job->vocab_count,
                              .a_stride = (uint32_t)job->walk.logit_stride,
                              .b_stride = op->hidden,
                              .c_stride = op->hidden,
                              .beta = job->vocab == 0 ? 0.0f : 1.0f,
                          });
    ox_cpu_gemm(job->cpu, &(struct ox_gemm){
                              .c = op->dweight + (size_t)job->vocab * op->hidden,
                              .a = job->tile,
                              .b = op->in + first,
                              .m = job->vocab_count,
                              .n = op->hidden,
                              .k = job->row_count,
                              .a_stride = (uint32_t)job->walk.logit_stride,
                              .b_stride = op->hidden,
                              .c_stride = op->hidden,
                              .a_transposed = true,
                              .beta = 1.0f,
                          });
}

/* One walk over the vocabulary of the rows [first, end). */
static void walk_group(struct job *job, uint32_t first, uint32_t end, bool backward) {
    const struct walk *const walk = &job->walk;
    const uint32_t vocab = job->op->vocab;
    for (job->vocab = 0; job->vocab < vocab; job->vocab += walk->tile_vocab) {
        job->vocab_count = min_u32(walk->tile_vocab, vocab - job->vocab);
        join_tile(job);
        for (job->row = first; job->row < end; job->row += walk->tile_rows) {
            job->row_count = min_u32(walk->tile_rows, end - job->row);
            job->tile = walk->held ? job->logits + job->vocab : job->logits;
            const uint32_t item_count = (uint32_t)ox_div_up(job->row_count, ITEM_ROWS);
            if (!backward || !walk->held) {
                compute_logits(job);
            }
            ox_cpu_items(job->cpu->pool, item_count, backward ? gradient_item : statistics_item, job);
            if (backward) {
                add_gradients(job);
            }
        }
    }
}

/* The rows' losses in ascending order. */
static void add_losses(const struct job *job) {
    const struct ox_op_head *const op = job->op;
    double total = 0.0;
    for (uint32_t row = 0; row < op->rows; row++) {
        double loss = 0.0;
        if (op->targets[row] >= 0) {
            loss = (double)job->max[row] - (double)job->target_logit[row] + log(job->sum[row]);
        }
        total += loss;
        if (op->row_nll != NULL) {
            op->row_nll[row] = (float)loss;
        }
    }
    op->loss_sum[0] += total;
}

void ox_cpu_head(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_head *const op = args;
    struct job job = {.op = op, .cpu = cpu, .walk = walk_of(op->rows, op->vocab), .joined = UINT32_MAX};
    lay_out(&job);
    for (uint32_t first = 0; first < op->rows; first += job.walk.group_rows) {
        const uint32_t end = min_u32(op->rows, first + job.walk.group_rows);
        walk_group(&job, first, end, false);
        if (op->din != NULL) {
            walk_group(&job, first, end, true);
        }
    }
    add_losses(&job);
}
