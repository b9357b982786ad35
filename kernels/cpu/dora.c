/* Magnitudes of adapters (DoRA). A row's length is one sum in the order of inputs; a magnitude's gradient one in the
 * order of rows. */
#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

#include <math.h>

enum { NORM_ROWS = 4, ITEM_ROWS = 16, ITEM_COLS = 64, BLOCK = 256 };

/* Some inputs of row `o` of W + scale * B A. */
static void row_of(const struct ox_op_dora_norm *op, uint64_t o, uint32_t first, uint32_t count, float *out) {
    const float *const weight = op->weight, *const a = op->a, *const b = (const float *)op->b + o * op->r;
    const bool out_in = op->layout == OX_WEIGHT_OUT_IN;
    for (uint32_t k = 0; k < count; k++) {
        out[k] = weight[out_in ? o * op->in_count + first + k : (uint64_t)(first + k) * op->out_count + o];
    }
    for (uint32_t j = 0; j < op->r; j++) {
        const float factor = op->scale * b[j];
        const float *const from = a + (uint64_t)j * op->in_count + first;
        for (uint32_t k = 0; k < count; k++) {
            out[k] += factor * from[k];
        }
    }
}

static void norm_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_dora_norm *const op = args;
    float values[BLOCK];
    (void)vector;
    for (uint64_t o = rows.begin; o < rows.end; o++) {
        double sum = 0.0;
        for (uint32_t first = 0; first < op->in_count; first += BLOCK) {
            const uint32_t count = (uint32_t)ox_min_u64(BLOCK, op->in_count - first);
            row_of(op, o, first, count, values);
            for (uint32_t k = 0; k < count; k++) {
                sum += (double)values[k] * (double)values[k];
            }
        }
        op->norm[o] = (float)sqrt(sum);
    }
}

void ox_cpu_dora_norm(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_dora_norm *const op = args;
    ox_cpu_pieces(cpu, op->out_count, NORM_ROWS, norm_rows, op);
}

static float bias_at(const void *bias, uint64_t col) {
    return bias == NULL ? 0.0f : ((const float *)bias)[col];
}

static void forward_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_dora_forward *const op = args;
    (void)vector;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        const float *const in = (const float *)op->in + row * op->stride;
        float *const out = (float *)op->out + row * op->stride;
        for (uint32_t col = 0; col < op->cols; col++) {
            const float bias = bias_at(op->bias, col), factor = ((const float *)op->magnitude)[col] / op->norm[col];
            out[col] = (in[col] - bias) * factor + bias;
        }
    }
}

void ox_cpu_dora_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_dora_forward *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, forward_rows, op);
}

static void backward_cols(const struct ox_vector *vector, const void *args, struct ox_range cols) {
    const struct ox_op_dora_backward *const op = args;
    double sums[ITEM_COLS] = {0.0};
    (void)vector;
    for (uint64_t row = 0; row < op->rows; row++) {
        const uint64_t at = row * op->stride;
        for (uint64_t col = cols.begin; col < cols.end; col++) {
            const float dout = ((const float *)op->dout)[at + col];
            if (op->dmagnitude != NULL) {
                const float in = ((const float *)op->in)[at + col] - bias_at(op->bias, col);
                sums[col - cols.begin] += (double)dout * (double)in;
            }
            ((float *)op->din)[at + col] = dout * (((const float *)op->magnitude)[col] / op->norm[col]);
        }
    }
    for (uint64_t col = cols.begin; op->dmagnitude != NULL && col < cols.end; col++) {
        const float sum = (float)(sums[col - cols.begin] / (double)op->norm[col]);
        op->dmagnitude[col] = op->begins ? sum : op->dmagnitude[col] + sum;
    }
}

void ox_cpu_dora_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_dora_backward *const op = args;
    ox_cpu_pieces(cpu, op->cols, ITEM_COLS, backward_cols, op);
}
