/* Losses of pairs of sequences, noise, and dropout. */
#include "base/prng/philox.h"
#include "kernels/cpu/cpu.h"
#include "kernels/pair_loss.h"

void ox_cpu_pairs(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_pairs *const op = args;
    struct ox_pair_side sides[OX_PAIR_SEQUENCES_MAX];
    (void)cpu;
    for (uint32_t i = 0; i < op->batch; i++) {
        sides[i] = ox_pair_side_at(op, i);
    }
    ox_pairs_add_all(op, sides);
}

enum { PIECE = 65536 };

static void noise_piece(const struct ox_vector *vector, const void *args, struct ox_range at) {
    const struct ox_op_noise *const op = args;
    (void)vector;
    float *const inout = ox_cpu_at(op->inout, 0);
    uint32_t words[4];
    for (uint64_t i = at.begin; i < at.end; i++) { /* a piece begins with a block */
        if (i % 4 == 0) {
            ox_philox_words(op->seed, op->stream, i / 4, words);
        }
        inout[i] += op->magnitude * ox_philox_signed(words[i % 4]);
    }
}

void ox_cpu_noise(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_noise *const op = args;
    ox_cpu_pieces(cpu, op->count, PIECE, noise_piece, op);
}

static void drop_piece(const struct ox_vector *vector, const void *args, struct ox_range at) {
    const struct ox_op_drop *const op = args;
    (void)vector;
    float *const out = ox_cpu_at(op->out, 0);
    const float *const in = op->in, *const residual = op->residual;
    const float scale = 1.0f / (1.0f - op->rate);
    uint32_t words[4] = {0};
    for (uint64_t i = at.begin; i < at.end; i++) { /* a piece begins with a block */
        if (i % 4 == 0 && op->rate != 0.0f) {
            ox_philox_words(op->seed, op->stream, i / 4, words);
        }
        const bool drops = op->rate != 0.0f && ox_philox_drops(words[i % 4], op->rate);
        const float kept = drops ? 0.0f : in[i] * scale;
        out[i] = residual == NULL ? kept : residual[i] + kept;
    }
}

void ox_cpu_drop(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_drop *const op = args;
    ox_cpu_pieces(cpu, op->count, PIECE, drop_piece, op);
}
