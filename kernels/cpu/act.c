#include "kernels/cpu/cpu.h"

enum { ITEM_ROWS = 16 };

static void forward_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_act_forward *const op = args;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        float *const out = ox_cpu_at(op->out, row * op->width);
        if (ox_activation_is_gated(op->kind)) {
            const float *const gate = ox_cpu_from(op->in, row * 2 * op->width);
            (op->kind == OX_ACTIVATION_SWIGLU ? vector->swiglu : vector->geglu)(out, gate, gate + op->width, op->width);
        } else {
            vector->gelu(out, ox_cpu_from(op->in, row * op->width), op->width);
        }
    }
}

void ox_cpu_act_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_act_forward *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, forward_rows, op);
}

static void backward_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_act_backward *const op = args;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        const float *const dout = ox_cpu_from(op->dout, row * op->width);
        if (ox_activation_is_gated(op->kind)) {
            const float *const gate = ox_cpu_from(op->in, row * 2 * op->width);
            float *const din = ox_cpu_at(op->din, row * 2 * op->width);
            (op->kind == OX_ACTIVATION_SWIGLU ? vector->swiglu_back : vector->geglu_back)(
                (float *[2]){din, din + op->width}, dout, gate, gate + op->width, op->width);
        } else {
            const size_t at = row * op->width;
            vector->gelu_back(ox_cpu_at(op->din, at), dout, ox_cpu_from(op->in, at), op->width);
        }
    }
}

void ox_cpu_act_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_act_backward *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, backward_rows, op);
}
