#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

struct norm {
    const struct ox_vector *vector;
    const void *op;
    uint32_t groups;
    uint32_t parts; /* of the columns */
};

/* The gradients of gain and bias are sums over rows: first over groups of rows, then over the groups in order. Most
 * numbers of threads divide GROUPS_MOST or nearly so. */
enum { ITEM_ROWS = 32, GROUP_ROWS_LEAST = 32, GROUPS_MOST = 24 };

static uint32_t groups_of(uint32_t rows) {
    return (uint32_t)ox_min_u64(ox_div_up(rows, GROUP_ROWS_LEAST), GROUPS_MOST);
}

static void forward_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_norm_forward *const op = args;
    const size_t in_stride = op->in_stride == 0 ? op->cols : op->in_stride;
    const size_t out_stride = op->out_stride == 0 ? op->cols : op->out_stride;
    const float per_col = 1.0f / (float)op->cols;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        const float *const in = ox_cpu_from(op->in, row * in_stride);
        const float mean = op->kind == OX_NORM_LAYER ? vector->sum(in, op->cols) * per_col : 0.0f;
        const float rstd = 1.0f / sqrtf(vector->square_sum(in, mean, op->cols) * per_col + op->eps);
        vector->norm(&(struct ox_vector_norm){.out = ox_cpu_at(op->out, row * out_stride),
                                              .in = in,
                                              .gain = op->gain,
                                              .bias = op->bias,
                                              .residual = op->residual == NULL
                                                              ? NULL
                                                              : ox_cpu_from(op->residual, row * op->cols),
                                              .mean = mean,
                                              .rstd = rstd,
                                              .gain_offset = op->gain_offset},
                     op->cols);
        op->rstd[row] = rstd;
        if (op->kind == OX_NORM_LAYER) {
            op->mean[row] = mean;
        }
    }
}

void ox_cpu_norm_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_norm_forward *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, forward_rows, op);
}

/* The sums over one group: dgain, then dbias. */
static size_t partial_len(uint32_t cols) {
    return ox_align_up(2 * (uint64_t)cols, OX_CPU_GRAIN);
}

uint64_t ox_cpu_norm_scratch_bytes(uint32_t cols) {
    return GROUPS_MOST * partial_len(cols) * sizeof(float);
}

static void backward_group(void *context, uint32_t group, uint32_t thread) {
    (void)thread;
    const struct norm *const job = context;
    const struct ox_op_norm_backward *const op = job->op;
    const struct ox_range rows = ox_pool_range(op->rows, 1, group, job->groups);
    float *const partial = ox_cpu_at(op->scratch, group * partial_len(op->cols));
    memset(partial, 0, 2 * (size_t)op->cols * sizeof(float));
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        const size_t at = row * op->cols;
        struct ox_vector_norm_back back = {
            .din = ox_cpu_at(op->din, at),
            .residual = op->residual == NULL ? NULL : ox_cpu_from(op->residual, at),
            .dgain = partial,
            .dbias = op->dbias == NULL ? NULL : partial + op->cols,
            .dout = ox_cpu_from(op->dout, at),
            .in = ox_cpu_from(op->in, at),
            .gain = op->gain,
            .mean = op->kind == OX_NORM_LAYER ? op->mean[row] : 0.0f,
            .rstd = op->rstd[row],
            .gain_offset = op->gain_offset,
        };
        job->vector->norm_back_sums(&back, op->cols);
        job->vector->norm_back(&back, op->kind == OX_NORM_LAYER, op->cols);
    }
}

/* Adds part `nth` of the groups' sums in order, or sets it. */
static void reduce_part(const struct norm *job, float *sums, uint32_t nth, struct ox_range cols) {
    const struct ox_op_norm_backward *const op = job->op;
    const size_t width = cols.end - cols.begin;
    if (sums == NULL) {
        return;
    }
    if (op->begins) {
        memset(sums + cols.begin, 0, width * sizeof *sums);
    }
    for (uint32_t group = 0; group < job->groups; group++) {
        const float *const partial = ox_cpu_from(op->scratch, group * partial_len(op->cols) + cols.begin);
        job->vector->add(sums + cols.begin, sums + cols.begin, partial + (size_t)nth * op->cols, width);
    }
}

/* Threads divide the columns. */
static void reduce_columns(void *context, uint32_t part, uint32_t thread) {
    (void)thread;
    const struct norm *const job = context;
    const struct ox_op_norm_backward *const op = job->op;
    const struct ox_range cols = ox_pool_range(op->cols, OX_CPU_GRAIN, part, job->parts);
    reduce_part(job, op->dgain, 0, cols);
    reduce_part(job, op->dbias, 1, cols);
}

void ox_cpu_norm_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_norm_backward *const op = args;
    struct norm job = {.vector = cpu->vector, .op = op, .groups = groups_of(op->rows),
                       .parts = ox_pool_size(cpu->pool)};
    ox_pool_items(cpu->pool, job.groups, backward_group, &job);
    ox_pool_items(cpu->pool, job.parts, reduce_columns, &job);
}

/* ---- per head ----------------------------------------------------------------------------------- */

static void head_forward_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_head_norm_forward *const op = args;
    const size_t width = (size_t)op->heads * op->head_dim;
    const float per_col = 1.0f / (float)op->head_dim;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        float *const inout = ox_cpu_at(op->inout, row * op->row_stride);
        if (op->saved != NULL) {
            memcpy(ox_cpu_at(op->saved, row * width), inout, width * sizeof(float));
        }
        for (uint32_t head = 0; head < op->heads; head++) {
            float *const at = inout + (size_t)head * op->head_dim;
            const float rstd = 1.0f / sqrtf(vector->square_sum(at, 0.0f, op->head_dim) * per_col + op->eps);
            vector->norm(&(struct ox_vector_norm){.out = at, .in = at, .gain = op->gain, .rstd = rstd,
                                                  .gain_offset = op->gain_offset}, op->head_dim);
            op->rstd[row * op->heads + head] = rstd;
        }
    }
}

void ox_cpu_head_norm_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_head_norm_forward *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, head_forward_rows, op);
}

static void head_backward_group(void *context, uint32_t group, uint32_t thread) {
    (void)thread;
    const struct norm *const job = context;
    const struct ox_op_head_norm_backward *const op = job->op;
    const struct ox_range rows = ox_pool_range(op->rows, 1, group, job->groups);
    float *const partial = ox_cpu_at(op->scratch, group * partial_len(op->head_dim));
    memset(partial, 0, op->head_dim * sizeof(float));
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        for (uint32_t head = 0; head < op->heads; head++) {
            const size_t nth = row * op->heads + head;
            float *const at = ox_cpu_at(op->dinout, row * op->row_stride + (size_t)head * op->head_dim);
            struct ox_vector_norm_back back = {
                .din = at,
                .dgain = partial,
                .dout = at,
                .in = ox_cpu_from(op->saved, nth * op->head_dim),
                .gain = op->gain,
                .rstd = op->rstd[nth],
                .gain_offset = op->gain_offset,
            };
            job->vector->norm_back_sums(&back, op->head_dim);
            job->vector->norm_back(&back, false, op->head_dim);
        }
    }
}

void ox_cpu_head_norm_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_head_norm_backward *const op = args;
    struct norm job = {.vector = cpu->vector, .op = op, .groups = groups_of(op->rows)};
    ox_pool_items(cpu->pool, job.groups, head_backward_group, &job);
    if (op->begins && op->dgain != NULL) {
        memset(op->dgain, 0, op->head_dim * sizeof(float));
    }
    for (uint32_t group = 0; op->dgain != NULL && group < job.groups; group++) { /* few enough to add on one thread */
        const float *const partial = ox_cpu_from(op->scratch, group * partial_len(op->head_dim));
        cpu->vector->add(op->dgain, op->dgain, partial, op->head_dim);
    }
}
