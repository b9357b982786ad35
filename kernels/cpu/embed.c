#include "base/bytes.h"
#include "base/planes.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

struct embed {
    const struct ox_vector *vector;
    const void *op;
    uint32_t parts; /* of the columns */
};

/* Rows per item. A row of positions is joined into a buffer, BUFFER floats at a time. */
enum { ITEM_ROWS = 64, BUFFER = 256 };

static void join_row(const struct ox_vector *vector, float *out, const uint16_t *hi, const uint16_t *lo,
                     struct ox_range at) {
    vector->join(out, hi + at.begin, lo == NULL ? NULL : lo + at.begin, at.end - at.begin);
}

/* One element after the other of a table that lies in columns. */
static void join_column(const struct ox_op_embed_forward *op, float *out, uint64_t row) {
    for (uint64_t i = 0; i < op->hidden; i++) {
        const uint64_t at = i * op->column + row;
        out[i] = ox_plane_join(op->table_hi[at], op->table_lo == NULL ? 0 : op->table_lo[at]);
    }
}

static void forward_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_embed_forward *const op = args;
    float buffer[BUFFER];
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        float *const out = ox_cpu_at(op->out, row * op->hidden);
        if (!ox_token_range_has(op->tokens, op->ids[row])) {
            continue;
        }
        if (op->column > 0) {
            join_column(op, out, (uint64_t)op->ids[row] - op->tokens.first);
            continue;
        }
        const uint64_t word = ((uint64_t)op->ids[row] - op->tokens.first) * op->hidden;
        join_row(vector, out, op->table_hi, op->table_lo,
                 (struct ox_range){.begin = word, .end = word + op->hidden});
        if (op->pos_hi == NULL) {
            continue;
        }
        const uint64_t place = (uint64_t)op->positions[row] * op->hidden;
        for (uint64_t i = 0; i < op->hidden; i += BUFFER) {
            const uint64_t width = ox_min_u64(BUFFER, op->hidden - i);
            join_row(vector, buffer, op->pos_hi, op->pos_lo,
                     (struct ox_range){.begin = place + i, .end = place + i + width});
            vector->add(out + i, out + i, buffer, width);
        }
    }
}

void ox_cpu_embed_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_embed_forward *const op = args;
    ox_cpu_pieces(cpu, op->rows, ITEM_ROWS, forward_rows, op);
}

/* A table that lies in columns: its columns are few, so each is an item. */
static void backward_column(void *context, uint32_t col, uint32_t thread) {
    (void)thread;
    const struct embed *const job = context;
    const struct ox_op_embed_backward *const op = job->op;
    for (uint32_t row = 0; row < op->rows; row++) {
        if (ox_token_range_has(op->tokens, op->ids[row])) {
            const float *const dout = ox_cpu_from(op->dout, (size_t)row * op->hidden + col);
            op->dtable[(size_t)col * op->column + (uint32_t)op->ids[row] - op->tokens.first] += *dout;
        }
    }
}

/* A token may occur in many rows: so threads divide the columns, and each walks all rows in order. */
static void backward_part(void *context, uint32_t part, uint32_t thread) {
    (void)thread;
    const struct embed *const job = context;
    const struct ox_op_embed_backward *const op = job->op;
    const struct ox_range cols = ox_pool_range(op->hidden, OX_CPU_GRAIN, part, job->parts);
    const size_t width = cols.end - cols.begin;
    if (width == 0) {
        return;
    }
    for (uint32_t row = 0; row < op->rows; row++) {
        const float *const dout = ox_cpu_from(op->dout, (size_t)row * op->hidden + cols.begin);
        if (op->dtable != NULL && ox_token_range_has(op->tokens, op->ids[row])) {
            float *const word =
                op->dtable + ((size_t)op->ids[row] - op->tokens.first) * op->hidden + cols.begin;
            job->vector->add(word, word, dout, width);
        }
        if (op->dpos != NULL) {
            float *const place = op->dpos + (size_t)op->positions[row] * op->hidden + cols.begin;
            job->vector->add(place, place, dout, width);
        }
    }
}

void ox_cpu_embed_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_embed_backward *const op = args;
    struct embed job = {.vector = cpu->vector, .op = op, .parts = ox_pool_size(cpu->pool)};
    if (op->column > 0) {
        ox_pool_items(cpu->pool, op->dtable == NULL ? 0 : op->hidden, backward_column, &job);
    } else {
        ox_pool_items(cpu->pool, job.parts, backward_part, &job);
    }
}
