/* Clamping of queries, keys and values. */
#include "kernels/cpu/cpu.h"

enum { ITEM_ROWS = 16, WORD = 32 };

static void forward_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_clamp_forward *const op = args;
    (void)vector;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        float *const at = ox_cpu_at(op->inout, row * op->row_stride);
        for (uint32_t word = 0; word < ox_clamp_words(op->width); word++) {
            uint32_t inside = 0;
            for (uint32_t i = word * WORD; i < op->width && i < (word + 1) * WORD; i++) {
                inside |= (uint32_t)(at[i] >= -op->limit && at[i] <= op->limit) << i % WORD;
                at[i] = at[i] > op->limit ? op->limit : at[i] < -op->limit ? -op->limit : at[i];
            }
            if (op->inside != NULL) {
                op->inside[row * ox_clamp_words(op->width) + word] = inside;
            }
        }
    }
}

void ox_cpu_clamp_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_clamp_forward *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, forward_rows, op);
}

static void backward_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_clamp_backward *const op = args;
    (void)vector;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        float *const at = ox_cpu_at(op->dinout, row * op->row_stride);
        const uint32_t *const inside = op->inside + row * ox_clamp_words(op->width);
        for (uint32_t i = 0; i < op->width; i++) {
            at[i] = (inside[i / WORD] >> i % WORD & 1) != 0 ? at[i] : 0.0f;
        }
    }
}

void ox_cpu_clamp_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_clamp_backward *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, backward_rows, op);
}
