#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

#include <math.h>

struct rope {
    const struct ox_vector *vector;
    const struct ox_op_rope *op;
};

enum { ITEM_ROWS = 32, TABLE_ROWS = 64 };

static void rope_item(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct rope *const job = context;
    const struct ox_op_rope *const op = job->op;
    const uint32_t end = (uint32_t)ox_min_u64(op->rows, (uint64_t)(item + 1) * ITEM_ROWS);
    for (uint32_t row = item * ITEM_ROWS; row < end; row++) {
        const size_t angles = (size_t)op->positions[row] * (op->head_dim / 2);
        job->vector->rope(&(struct ox_vector_rope){
            .qk = ox_cpu_at(op->qk, (size_t)row * op->row_stride),
            .cos_row = op->cos_table + angles,
            .sin_row = op->sin_table + angles,
            .heads = op->heads,
            .head_dim = op->head_dim,
            .sign = op->inverse ? -1.0f : 1.0f,
        });
    }
}

void ox_cpu_rope(const struct ox_cpu *cpu, const void *args) {
    struct rope job = {.vector = cpu->vector, .op = args};
    ox_cpu_items(cpu->pool, (uint32_t)ox_div_up(job.op->rows, ITEM_ROWS), rope_item, &job);
}

static void table_item(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct ox_op_rope_table *const op = context;
    const uint32_t end = (uint32_t)ox_min_u64(op->contexts, (uint64_t)(item + 1) * TABLE_ROWS);
    for (uint32_t row = item * TABLE_ROWS; row < end; row++) {
        for (uint32_t i = 0; i < op->half_dim; i++) {
            const double angle = (double)row * op->inv_freq[i];
            op->cos_table[(size_t)row * op->half_dim + i] = (float)cos(angle);
            op->sin_table[(size_t)row * op->half_dim + i] = (float)sin(angle);
        }
    }
}

void ox_cpu_rope_table(const struct ox_cpu *cpu, const void *args) {
    struct ox_op_rope_table op = *(const struct ox_op_rope_table *)args;
    ox_cpu_items(cpu->pool, (uint32_t)ox_div_up(op.contexts, TABLE_ROWS), table_item, &op);
}
