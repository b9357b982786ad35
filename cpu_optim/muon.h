/* Muon (Jordan et al., https://kellerjordan.github.io/posts/muon/): the update of a matrix as a whole. With g the
 * gradient, m the momentum and mu its factor
 *   m = m + (1 - mu) (g - m);  u = g + mu (m - g) with Nesterov's momentum, else m
 *   o = the Newton-Schulz iterations of u, which brings its singular values near 1
 *   p = p * decay - lr * ratio * o
 * in the order of operations of torch.optim.Muon, but in float32 throughout, where that iterates in bfloat16. Every
 * element of a product is summed in the order of its index, without fused multiply-adds, so the bits depend neither on
 * instruction set nor on threads. */
#ifndef OX_CPU_OPTIM_MUON_H
#define OX_CPU_OPTIM_MUON_H

#include "base/status.h"
#include "cpu_optim/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the learning rate is multiplied by for a matrix of (rows, cols): sqrt(max(1, rows / cols)), as the authors do;
 * or 0.2 sqrt(max(rows, cols)), by which updates are as large as those of AdamW (Moonlight, arXiv 2502.16982). */
enum ox_muon_ratio { OX_MUON_MATCH_RMS_ADAMW, OX_MUON_ORIGINAL };

struct ox_muon {
    float momentum;
    bool nesterov;
    uint32_t iterations;
    enum ox_muon_ratio ratio;
};

struct ox_matrix {
    uint64_t rows, cols;
};

/* Factors of x, of x x^T x and of x x^T x x^T x in an iteration, by the authors. */
extern const float ox_muon_factors[3];

/* Floats of scratch that the update of a matrix takes; with `elsewhere` where something else iterates. */
uint64_t ox_muon_scratch_floats(struct ox_matrix matrix, bool elsewhere);
/* Floats that the iterations take: the matrix with no more rows than columns, and their scratch. */
uint64_t ox_muon_iterated_floats(struct ox_matrix matrix);
/* Multiplications and additions of its update. */
double ox_muon_flops(const struct ox_muon *muon, struct ox_matrix matrix);
/* The iterations, in place, of a matrix with a norm of 1 and no more rows than columns. `scratch` has
 * ox_muon_iterated_floats() less those of the matrix. */
void ox_muon_iterate(struct ox_pool *pool, enum ox_isa isa, uint32_t iterations, struct ox_matrix matrix, float *inout,
                     float *scratch);

/* What iterates in place of the pool, with the same bits: a GPU. Called by the thread that called ox_muon_run, with a
 * matrix as ox_muon_iterate takes it, which lies in the scratch of the job. */
struct ox_muon_iterator {
    enum ox_status (*iterate)(void *owner, struct ox_matrix matrix, float *inout); /* NULL: the pool does */
    void *owner;
};

/* Updates one matrix, which is the span, as ox_update_run_pool does; its moments are fp32 or bf16, of which
 * the second ones stay as they are, and it has no sums. */
struct ox_muon_job {
    struct ox_pool *pool;
    enum ox_isa isa;
    const struct ox_muon *muon;
    struct ox_state_format format;
    struct ox_matrix matrix;
    float *scratch; /* ox_muon_scratch_floats() */
    struct ox_muon_iterator iterator;
};
/* *bad_count: as ox_update_run_pool returns it. Fails only where the iterator does; the planes are then as before. */
OX_MUST enum ox_status ox_muon_run(const struct ox_muon_job *job, const struct ox_update_span *span,
                                   const struct ox_optim_hyper *hyper, uint64_t *bad_count);

#ifdef __cplusplus
}
#endif
#endif
