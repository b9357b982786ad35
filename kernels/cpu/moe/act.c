/* Activations of experts, weighted by the router, and the gate of a shared expert. */
#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

/* Interleaved gates and ups are put side by side in buffers, BUFFER at a time. */
enum { ITEM_ROWS = 16, BUFFER = 256 };

static struct ox_vector_gate vector_gate(const struct ox_gate *gate, float factor) {
    return (struct ox_vector_gate){.alpha = gate->alpha, .limit = gate->limit, .shift = gate->shift,
                                   .factor = factor};
}

static void part_pairs(const float *in, size_t count, float *gate, float *up) {
    for (size_t i = 0; i < count; i++) {
        gate[i] = in[2 * i];
        up[i] = in[2 * i + 1];
    }
}

static void forward_row(const struct ox_vector *vector, const struct ox_op_expert_act_forward *op, uint64_t row,
                        float factor) {
    const float *const in = ox_cpu_from(op->in, row * 2 * op->width);
    float *const out = ox_cpu_at(op->out, row * op->width);
    struct ox_vector_gate job = vector_gate(&op->gate, factor);
    float gate[BUFFER], up[BUFFER];
    if (!op->gate.interleaved) {
        job.out = out;
        job.gate = in;
        job.up = in + op->width;
        vector->gated(&job, op->width);
        return;
    }
    job.gate = gate;
    job.up = up;
    for (uint32_t i = 0; i < op->width; i += BUFFER) {
        const size_t count = ox_min_u64(BUFFER, op->width - i);
        part_pairs(in + 2 * (size_t)i, count, gate, up);
        job.out = out + i;
        vector->gated(&job, count);
    }
}

static void forward_rows(const struct ox_vector *vector, const void *args, struct ox_range all) {
    const struct ox_op_expert_act_forward *const op = args;
    const struct ox_range rows = ox_cpu_group_rows(&op->group, all);
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        forward_row(vector, op, row, op->weights == NULL ? 1.0f : op->weights[op->pair_of[row]]);
    }
}

void ox_cpu_expert_act_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_expert_act_forward *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, forward_rows, op);
}

/* Returns the sum of dout times the activation. */
static float backward_row(const struct ox_vector *vector, const struct ox_op_expert_act_backward *op, uint64_t row,
                          float factor) {
    const float *const in = ox_cpu_from(op->in, row * 2 * op->width);
    const float *const dout = ox_cpu_from(op->dout, row * op->width);
    float *const din = ox_cpu_at(op->din, row * 2 * op->width);
    struct ox_vector_gate job = vector_gate(&op->gate, factor);
    float gate[BUFFER], up[BUFFER], sum = 0.0f;
    if (!op->gate.interleaved) {
        job.dout = dout;
        job.gate = in;
        job.up = in + op->width;
        job.dgate = din;
        job.dup = din + op->width;
        return vector->gated_back(&job, op->width);
    }
    job.gate = job.dgate = gate;
    job.up = job.dup = up;
    for (uint32_t i = 0; i < op->width; i += BUFFER) {
        const size_t count = ox_min_u64(BUFFER, op->width - i);
        part_pairs(in + 2 * (size_t)i, count, gate, up);
        job.dout = dout + i;
        sum += vector->gated_back(&job, count);
        for (size_t k = 0; k < count; k++) {
            din[2 * (i + k)] = gate[k];
            din[2 * (i + k) + 1] = up[k];
        }
    }
    return sum;
}

static void backward_rows(const struct ox_vector *vector, const void *args, struct ox_range all) {
    const struct ox_op_expert_act_backward *const op = args;
    const struct ox_range rows = ox_cpu_group_rows(&op->group, all);
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        if (op->weights == NULL) {
            (void)backward_row(vector, op, row, 1.0f);
            continue;
        }
        const int32_t pair = op->pair_of[row];
        const float dweight = backward_row(vector, op, row, op->weights[pair]);
        op->dweights[pair] = op->adds ? op->dweights[pair] + dweight : dweight;
    }
}

void ox_cpu_expert_act_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_expert_act_backward *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, backward_rows, op);
}

/* ---- the gate of a shared expert ---- */

static float sigmoid(const struct ox_vector *vector, float x) {
    float power = -x;
    vector->exp_row(&power, 0.0f, 1);
    return 1.0f / (1.0f + power);
}

static void row_gate_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_row_gate_forward *const op = args;
    float part[BUFFER];
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        const float share = sigmoid(vector, op->gate[row]);
        for (uint32_t i = 0; i < op->width; i += BUFFER) {
            const size_t count = ox_min_u64(BUFFER, op->width - i), at = row * op->width + i;
            memcpy(part, ox_cpu_from(op->in, at), count * sizeof *part);
            vector->scale(part, share, count);
            if (op->residual != NULL) {
                vector->add(part, ox_cpu_from(op->residual, at), part, count);
            }
            memcpy(ox_cpu_at(op->out, at), part, count * sizeof *part);
        }
    }
}

void ox_cpu_row_gate_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_row_gate_forward *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, row_gate_rows, op);
}

static void row_gate_back_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_row_gate_backward *const op = args;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        const float share = sigmoid(vector, op->gate[row]);
        const float *const dout = ox_cpu_from(op->dout, row * op->width);
        float *const din = ox_cpu_at(op->din, row * op->width);
        op->dgate[row] = share * (1.0f - share) * vector->dot(dout, ox_cpu_from(op->in, row * op->width), op->width);
        if (din != dout) {
            memcpy(din, dout, op->width * sizeof *din);
        }
        vector->scale(din, share, op->width);
    }
}

void ox_cpu_row_gate_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_row_gate_backward *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, row_gate_back_rows, op);
}
