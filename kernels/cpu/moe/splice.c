/* Parts of heads, put together and taken apart; matrices turned. */
#include "kernels/cpu/cpu.h"

#include <string.h>

enum { ITEM_ROWS = 16 };

/* Adds a part's element j of all heads, or that of one. */
static float sum_of(const struct ox_splice_part *part, const float *in, uint32_t j) {
    float sum = in[j];
    for (uint32_t head = 1; head < part->heads; head++) {
        sum += in[(size_t)head * part->in_stride + j];
    }
    return sum;
}

static void put_part(const struct ox_splice_part *part, const float *in, float *out) {
    const bool sums = part->out_stride == 0;
    for (uint32_t head = 0; head < (sums ? 1 : part->heads); head++) {
        const float *const from = in + part->in_first + (size_t)head * part->in_stride;
        float *const to = out + part->out_first + (size_t)head * part->out_stride;
        for (uint32_t j = 0; j < part->width; j++) {
            to[j] += sums ? sum_of(part, from, j) : from[j];
        }
    }
}

static void splice_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_splice *const op = args;
    const size_t bytes = op->out_width * sizeof(float);
    (void)vector;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        float *const out = ox_cpu_at(op->out, row * op->out_width);
        if (op->residual == NULL) {
            memset(out, 0, bytes);
        } else if (op->residual != op->out) {
            memcpy(out, (const float *)op->residual + row * op->out_width, bytes);
        }
        for (uint32_t i = 0; i < op->part_count; i++) {
            put_part(&op->parts[i], (const float *)op->in + row * op->in_width, out);
        }
    }
}

void ox_cpu_splice(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_splice *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, splice_rows, op);
}

static void turn_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_turn *const op = args;
    (void)vector;
    for (uint32_t col = 0; col < op->cols; col++) {
        float *const out = (float *)op->out + (size_t)col * op->rows;
        for (uint64_t row = rows.begin; row < rows.end; row++) {
            const float value = ((const float *)op->in)[row * op->cols + col];
            out[row] = op->adds ? out[row] + value : value;
        }
    }
}

void ox_cpu_turn(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_turn *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, turn_rows, op);
}
