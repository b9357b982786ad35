#include "kernels/cpu/cpu.h"

#include <math.h>

enum { ITEM_ROWS = 32, TABLE_ROWS = 64 };

static void rope_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_rope *const op = args;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        const size_t angles = (size_t)op->positions[row] * (op->rotary_dim / 2);
        vector->rope(&(struct ox_vector_rope){
            .qk = ox_cpu_at(op->qk, row * op->row_stride),
            .cos_row = op->cos_table + angles,
            .sin_row = op->sin_table + angles,
            .heads = op->heads,
            .head_dim = op->head_dim,
            .rotary_dim = op->rotary_dim,
            .sign = op->inverse ? -1.0f : 1.0f,
            .neighbours = op->neighbours,
        });
    }
}

void ox_cpu_rope(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_rope *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, rope_rows, op);
}

static void table_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    (void)vector;
    const struct ox_op_rope_table *const op = args;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        for (uint32_t i = 0; i < op->half_dim; i++) {
            const double angle = (double)row * op->inv_freq[i];
            op->cos_table[row * op->half_dim + i] = (float)(cos(angle) * op->scale);
            op->sin_table[row * op->half_dim + i] = (float)(sin(angle) * op->scale);
        }
    }
}

void ox_cpu_rope_table(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_rope_table *const op = args;
    ox_cpu_pieces(cpu, op->contexts, TABLE_ROWS, table_rows, op);
}
