/* Sinks of attention: they shrink what attention without them has computed. */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum { ITEM_ROWS = 16 };

static size_t lse_at(uint32_t heads, uint32_t seq, uint64_t row, uint32_t head) {
    return (row / seq * heads + head) * seq + row % seq;
}

static void forward_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_sinks_forward *const op = args;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        for (uint32_t head = 0; head < op->heads; head++) {
            float *const lse = &op->lse[lse_at(op->heads, op->seq, row, head)];
            const float sink = *ox_cpu_from(op->sinks, head), before = *lse;
            const float top = sink > before ? sink : before, rest = sink > before ? before : sink;
            *lse = top + log1pf(expf(rest - top));
            vector->scale(ox_cpu_at(op->out, (row * op->heads + head) * op->head_dim), expf(before - *lse),
                          op->head_dim);
        }
    }
}

void ox_cpu_sinks_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_sinks_forward *const op = args;
    ox_cpu_pieces(cpu, (uint64_t)op->batch * op->seq, ITEM_ROWS, forward_rows, op);
}

struct sinks {
    const struct ox_vector *vector;
    const struct ox_op_sinks_backward *op;
};

/* One head: its rows in order. */
static void backward_head(void *context, uint32_t head, uint32_t thread) {
    const struct sinks *const job = context;
    const struct ox_op_sinks_backward *const op = job->op;
    const float sink = *ox_cpu_from(op->sinks, head);
    double sum = 0.0;
    (void)thread;
    for (uint64_t row = 0; row < (uint64_t)op->batch * op->seq; row++) {
        const size_t at = (row * op->heads + head) * op->head_dim;
        const float delta = job->vector->dot(ox_cpu_from(op->dout, at), ox_cpu_from(op->out, at), op->head_dim);
        sum -= (double)(expf(sink - op->lse[lse_at(op->heads, op->seq, row, head)]) * delta);
    }
    op->dsinks[head] = (op->begins ? 0.0f : op->dsinks[head]) + (float)sum;
}

void ox_cpu_sinks_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_sinks_backward *const op = args;
    struct sinks job = {.vector = cpu->vector, .op = op};
    ox_pool_items(cpu->pool, op->heads, backward_head, &job);
}
