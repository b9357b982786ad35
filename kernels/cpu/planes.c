/* Operations on flat vectors, and the division of rows or elements into items. */
#include "base/bytes.h"
#include "base/planes.h"
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

struct pieces {
    const struct ox_vector *vector;
    ox_cpu_piece_fn *fn;
    const void *args;
    uint64_t total, piece;
};

static void run_piece(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct pieces *const pieces = context;
    const uint64_t begin = item * pieces->piece, end = ox_min_u64(pieces->total, begin + pieces->piece);
    pieces->fn(pieces->vector, pieces->args, (struct ox_range){.begin = begin, .end = end});
}

void ox_cpu_pieces(const struct ox_cpu *cpu, uint64_t total, uint64_t piece, ox_cpu_piece_fn *fn, const void *args) {
    struct pieces pieces = {.vector = cpu->vector, .fn = fn, .args = args, .total = total, .piece = piece};
    ox_pool_items(cpu->pool, (uint32_t)ox_div_up(total, piece), run_piece, &pieces);
}

/* Flat vectors are walked in pieces that fit in the second-level cache. */
enum { PIECE = 65536, SUM_PART = 256 };

static void zero_piece(const struct ox_vector *vector, const void *args, struct ox_range at) {
    (void)vector;
    const struct ox_op_zero *const op = args;
    memset((unsigned char *)op->target + at.begin, 0, at.end - at.begin);
}

void ox_cpu_zero(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_zero *const op = args;
    ox_cpu_pieces(cpu, op->bytes, PIECE, zero_piece, op);
}

static void join_piece(const struct ox_vector *vector, const void *args, struct ox_range at) {
    const struct ox_op_planes_join *const op = args;
    float *const out = ox_cpu_at(op->out, at.begin);
    if (op->format == OX_FORMAT_FP16) {
        for (uint64_t i = at.begin; i < at.end; i++) {
            out[i - at.begin] = ox_f16_to_f32(op->hi[i]);
        }
        return;
    }
    if (op->format == OX_FORMAT_Q8) {
        for (uint64_t i = at.begin; i < at.end; i += OX_BASE8_BLOCK) {
            const unsigned char *const group =
                (const unsigned char *)op->hi + i / OX_GROUP_ELEMS * OX_BASE8_GROUP_BYTES;
            float *const block = out + (i - at.begin);
            ox_base8_unpack(group, i % OX_GROUP_ELEMS / OX_BASE8_BLOCK, block);
            for (uint32_t k = 0; op->to_hi && k < OX_BASE8_BLOCK; k++) {
                block[k] = ox_bf16_to_f32(ox_plane_hi(block[k]));
            }
        }
        return;
    }
    vector->join(out, op->hi + at.begin, op->lo == NULL ? NULL : op->lo + at.begin, at.end - at.begin);
}

void ox_cpu_planes_join(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_planes_join *const op = args;
    ox_cpu_pieces(cpu, op->count, PIECE, join_piece, op);
}

static void add_piece(const struct ox_vector *vector, const void *args, struct ox_range at) {
    const struct ox_op_add *const op = args;
    const size_t count = at.end - at.begin;
    float *const target = ox_cpu_at(op->target, at.begin);
    const float *const b = ox_cpu_from(op->b, at.begin), *const a = op->a == NULL ? NULL : ox_cpu_from(op->a, at.begin);
    const bool scales = op->scale != 0.0f && op->scale != 1.0f;
    if (a != NULL && !scales) {
        vector->add(target, a, b, count);
        return;
    }
    if ((a != NULL ? a : b) != target) {
        memcpy(target, a != NULL ? a : b, count * sizeof *target);
    }
    if (a != NULL) {
        vector->add_scaled(target, b, op->scale, count);
    } else if (scales) {
        vector->scale(target, op->scale, count);
    }
}

void ox_cpu_add(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_add *const op = args;
    ox_cpu_pieces(cpu, op->count, PIECE, add_piece, op);
}

enum { SETTLE_ROWS = 16 };

static void settle_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    const struct ox_op_settle *const op = args;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        const uint64_t at = row * op->cols;
        float *const out = ox_cpu_at(op->out, at);
        const float *const sum = op->in + at;
        float near[SUM_PART];
        for (uint32_t i = 0; i < op->cols; i += SUM_PART) {
            const size_t width = ox_min_u64(SUM_PART, op->cols - i);
            const float *from = sum + i;
            if (op->bias != NULL) { /* out may be the residual, which is still to be read */
                vector->add(near, from, ox_cpu_from(op->bias, i), width);
                from = near;
            }
            if (op->residual != NULL) {
                vector->add(out + i, ox_cpu_from(op->residual, at + i), from, width);
            } else {
                memcpy(out + i, from, width * sizeof *out);
            }
        }
    }
}

void ox_cpu_settle(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_settle *const op = args;
    ox_cpu_pieces(cpu, op->rows, SETTLE_ROWS, settle_rows, op);
}

static void logits_piece(const struct ox_vector *vector, const void *args, struct ox_range at) {
    const struct ox_op_logits *const op = args;
    ox_cpu_scale_logits(vector, op, op->logits + at.begin, at.end - at.begin);
}

void ox_cpu_scale_logits(const struct ox_vector *vector, const struct ox_op_logits *op, float *logits, size_t count) {
    const float scale = op->scale != 0.0f ? op->scale : 1.0f;
    if (op->cap != 0.0f) {
        vector->cap(logits, scale, op->cap, count);
    } else if (scale != 1.0f) {
        vector->scale(logits, scale, count);
    }
}

void ox_cpu_logits(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_logits *const op = args;
    ox_cpu_pieces(cpu, op->count, PIECE, logits_piece, op);
}

static void bf16_pack_piece(const struct ox_vector *vector, const void *args, struct ox_range at) {
    const struct ox_op_bf16_pack *const op = args;
    vector->bf16_pack(op->out + at.begin, op->in + at.begin, at.end - at.begin);
}

void ox_cpu_bf16_pack(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_bf16_pack *const op = args;
    ox_cpu_pieces(cpu, op->count, PIECE, bf16_pack_piece, op);
}

/* One block of at most 64 numbers; those that are missing are zeros. */
static void block8_pack_block(unsigned char *block, const float *in, size_t count) {
    float most = 0.0f, zero = 0.0f; /* zero becomes NaN where a number is not finite */
    for (size_t i = 0; i < count; i++) {
        const float magnitude = fabsf(in[i]);
        most = magnitude > most ? magnitude : most;
        zero += in[i] * 0.0f;
    }
    const float scale = ox_block8_scale(most + zero), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    memcpy(block, &scale, sizeof scale);
    for (size_t i = 0; i < OX_BLOCK8_ELEMS; i++) {
        const bool is_number = i < count && inverse > 0.0f;
        block[sizeof scale + i] = is_number ? (unsigned char)(signed char)rintf(in[i] * inverse) : 0;
    }
}

static void block8_pack_piece(const struct ox_vector *vector, const void *args, struct ox_range at) {
    (void)vector;
    const struct ox_op_block8_pack *const op = args;
    for (uint64_t i = at.begin; i < at.end; i++) {
        block8_pack_block((unsigned char *)op->blocks + i * OX_BLOCK8_BYTES, op->in + i * OX_BLOCK8_ELEMS,
                      ox_min_u64(OX_BLOCK8_ELEMS, op->count - i * OX_BLOCK8_ELEMS));
    }
}

void ox_cpu_block8_pack(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_block8_pack *const op = args;
    const uint64_t blocks = ox_div_up(op->count, OX_BLOCK8_ELEMS), past = blocks * OX_BLOCK8_BYTES;
    ox_cpu_pieces(cpu, blocks, PIECE / OX_BLOCK8_ELEMS, block8_pack_piece, op);
    memset((unsigned char *)op->blocks + past, 0, ox_exchange_bytes(OX_EXCHANGE_Q8, op->count) - past);
}

static void block8_unpack_piece(const struct ox_vector *vector, const void *args, struct ox_range at) {
    (void)vector;
    const struct ox_op_block8_unpack *const op = args;
    for (uint64_t i = at.begin; i < at.end; i++) {
        const unsigned char *const block = (const unsigned char *)op->blocks + i * OX_BLOCK8_BYTES;
        float scale;
        memcpy(&scale, block, sizeof scale);
        const size_t count = ox_min_u64(OX_BLOCK8_ELEMS, op->count - i * OX_BLOCK8_ELEMS);
        for (size_t k = 0; k < count; k++) {
            op->out[i * OX_BLOCK8_ELEMS + k] = (float)(signed char)block[sizeof scale + k] * scale;
        }
    }
}

void ox_cpu_block8_unpack(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_block8_unpack *const op = args;
    ox_cpu_pieces(cpu, ox_div_up(op->count, OX_BLOCK8_ELEMS), PIECE / OX_BLOCK8_ELEMS, block8_unpack_piece, op);
}

struct column_sums {
    const struct ox_vector *vector;
    const struct ox_op_linear_backward *op;
};

enum { SUM_COLS = 256, SUM_ROWS = 64 };

/* Sums blocks of rows separately and then adds them, which keeps the rounding error of long columns low. */
static void column_sums_item(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct column_sums *const job = context;
    const struct ox_op_linear_backward *const op = job->op;
    const size_t begin = (size_t)item * SUM_COLS;
    const size_t width = ox_min_u64(SUM_COLS, op->out_count - begin);
    float *const sums = op->dbias + begin;
    float block[SUM_COLS];
    if (op->begins) {
        memset(sums, 0, width * sizeof(float));
    }
    for (uint32_t first = 0; first < op->rows; first += SUM_ROWS) {
        const uint32_t end = (uint32_t)ox_min_u64(op->rows, (uint64_t)first + SUM_ROWS);
        memset(block, 0, sizeof block);
        for (uint32_t row = first; row < end; row++) {
            job->vector->add(block, block, ox_cpu_from(op->dout, (size_t)row * op->out_count + begin), width);
        }
        job->vector->add(sums, sums, block, width);
    }
}

void ox_cpu_column_sums(const struct ox_cpu *cpu, const struct ox_op_linear_backward *op) {
    struct column_sums job = {.vector = cpu->vector, .op = op};
    ox_pool_items(cpu->pool, (uint32_t)ox_div_up(op->out_count, SUM_COLS), column_sums_item, &job);
}
