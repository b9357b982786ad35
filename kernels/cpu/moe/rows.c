/* Rows of tokens to the rows of their experts, and back. */
#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

enum { ITEM_ROWS = 32, ITEM_COLS = 512 };

static void gather_rows(const struct ox_vector *vector, const void *args, struct ox_range all) {
    const struct ox_op_rows_gather *const op = args;
    const struct ox_range rows = ox_cpu_group_rows(&op->group, all);
    (void)vector;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        const size_t from = (size_t)op->pair_of[row] / op->chosen;
        memcpy(ox_cpu_at(op->out, row * op->width), ox_cpu_from(op->in, from * op->width), op->width * sizeof(float));
    }
}

void ox_cpu_rows_gather(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_rows_gather *const op = args;
    ox_cpu_pieces(cpu, (uint64_t)op->rows * op->chosen, ITEM_ROWS, gather_rows, op);
}

/* Adds up in `sum`, because out may be the residual, which comes last. */
static void combine_part(const struct ox_vector *vector, const struct ox_op_rows_combine *op, uint64_t row,
                         struct ox_range cols) {
    const size_t width = cols.end - cols.begin, at = row * op->width + cols.begin;
    float sum[ITEM_COLS];
    if (op->sum == NULL || op->begins) {
        memset(sum, 0, width * sizeof *sum);
    } else {
        memcpy(sum, op->sum + at, width * sizeof *sum);
    }
    for (uint32_t i = 0; i < op->chosen; i++) {
        const size_t pair = row * op->chosen + (op->from_last ? op->chosen - 1 - i : i);
        if (!ox_cpu_in_group(&op->group, op->experts, pair)) {
            continue;
        }
        vector->add(sum, sum, ox_cpu_from(op->in, (size_t)op->place[pair] * op->width + cols.begin), width);
        if (op->bias != NULL) {
            const size_t expert = (uint32_t)op->experts[pair] - op->group.first;
            vector->add_scaled(sum, ox_cpu_from(op->bias, expert * op->width + cols.begin), op->weights[pair], width);
        }
    }
    if (op->out == NULL) {
        memcpy(op->sum + at, sum, width * sizeof *sum);
    } else if (op->residual != NULL) {
        vector->add(ox_cpu_at(op->out, at), ox_cpu_from(op->residual, at), sum, width);
    } else {
        memcpy(ox_cpu_at(op->out, at), sum, width * sizeof *sum);
    }
}

static void combine_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_rows_combine *const op = args;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        for (uint64_t col = 0; col < op->width; col += ITEM_COLS) {
            combine_part(vector, op, row, (struct ox_range){col, ox_min_u64(col + ITEM_COLS, op->width)});
        }
    }
}

void ox_cpu_rows_combine(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_rows_combine *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, combine_rows, op);
}

/* ---- backward of the bias ---- */

static void bias_weights(const struct ox_vector *vector, const void *args, struct ox_range pairs) {
    const struct ox_op_combine_bias_backward *const op = args;
    for (uint64_t pair = pairs.begin; pair < pairs.end; pair++) {
        const size_t expert = (uint32_t)op->experts[pair] - op->group.first;
        if (ox_cpu_in_group(&op->group, op->experts, pair)) {
            op->dweights[pair] = vector->dot(ox_cpu_from(op->dout, pair / op->chosen * op->width),
                                             ox_cpu_from(op->bias, expert * op->width), op->width);
        }
    }
}

struct bias_job {
    const struct ox_vector *vector;
    const struct ox_op_combine_bias_backward *op;
    uint32_t parts; /* of the columns */
};

/* A part of an expert's columns: its rows in order. */
static void bias_item(void *context, uint32_t item, uint32_t thread) {
    const struct bias_job *const job = context;
    const struct ox_op_combine_bias_backward *const op = job->op;
    const uint32_t expert = item / job->parts;
    const uint64_t begin = (uint64_t)(item % job->parts) * ITEM_COLS;
    const size_t width = ox_min_u64(ITEM_COLS, op->width - begin);
    float *const dbias = op->dbias + (size_t)expert * op->width + begin;
    (void)thread;
    if (op->begins) {
        memset(dbias, 0, width * sizeof *dbias);
    }
    const int32_t *const offsets = op->group.offsets + op->group.first + expert;
    for (int32_t at = offsets[0]; at < offsets[1]; at++) {
        const uint32_t pair = (uint32_t)op->pair_of[at];
        const size_t row = pair / op->chosen;
        job->vector->add_scaled(dbias, ox_cpu_from(op->dout, row * op->width + begin), op->weights[pair], width);
    }
}

void ox_cpu_combine_bias_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_combine_bias_backward *const op = args;
    struct bias_job job = {.vector = cpu->vector, .op = op, .parts = (uint32_t)ox_div_up(op->width, ITEM_COLS)};
    ox_cpu_pieces(cpu, (uint64_t)op->rows * op->chosen, ITEM_ROWS, bias_weights, op);
    if (op->dbias != NULL) {
        ox_pool_items(cpu->pool, op->group.count * job.parts, bias_item, &job);
    }
}
