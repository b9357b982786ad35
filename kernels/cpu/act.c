#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

struct act {
    const struct ox_vector *vector;
    const void *op;
};

enum { ITEM_ROWS = 16 };

static void forward_item(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct act *const job = context;
    const struct ox_op_act_forward *const op = job->op;
    const uint32_t end = (uint32_t)ox_min_u64(op->rows, (uint64_t)(item + 1) * ITEM_ROWS);
    for (uint32_t row = item * ITEM_ROWS; row < end; row++) {
        float *const out = ox_cpu_at(op->out, (size_t)row * op->width);
        if (op->kind == OX_ACTIVATION_SWIGLU) {
            const float *const gate = ox_cpu_from(op->in, (size_t)row * 2 * op->width);
            job->vector->swiglu(out, gate, gate + op->width, op->width);
        } else {
            job->vector->gelu(out, ox_cpu_from(op->in, (size_t)row * op->width), op->width);
        }
    }
}

void ox_cpu_act_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_act_forward *const op = args;
    struct act job = {.vector = cpu->vector, .op = op};
    ox_cpu_items(cpu->pool, (uint32_t)ox_div_up(op->rows, ITEM_ROWS), forward_item, &job);
}

static void backward_item(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct act *const job = context;
    const struct ox_op_act_backward *const op = job->op;
    const uint32_t end = (uint32_t)ox_min_u64(op->rows, (uint64_t)(item + 1) * ITEM_ROWS);
    for (uint32_t row = item * ITEM_ROWS; row < end; row++) {
        const float *const dout = ox_cpu_from(op->dout, (size_t)row * op->width);
        if (op->kind == OX_ACTIVATION_SWIGLU) {
            const float *const gate = ox_cpu_from(op->in, (size_t)row * 2 * op->width);
            float *const din = ox_cpu_at(op->din, (size_t)row * 2 * op->width);
            job->vector->swiglu_back((float *[2]){din, din + op->width}, dout, gate, gate + op->width,
                                     op->width);
        } else {
            const size_t at = (size_t)row * op->width;
            job->vector->gelu_back(ox_cpu_at(op->din, at), dout, ox_cpu_from(op->in, at), op->width);
        }
    }
}

void ox_cpu_act_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_act_backward *const op = args;
    struct act job = {.vector = cpu->vector, .op = op};
    ox_cpu_items(cpu->pool, (uint32_t)ox_div_up(op->rows, ITEM_ROWS), backward_item, &job);
}
