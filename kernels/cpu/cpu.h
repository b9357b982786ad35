/* Internals of the CPU device: what a job sees of it, and the operations. */
#ifndef OX_KERNELS_CPU_CPU_H
#define OX_KERNELS_CPU_CPU_H

#include "base/pool.h"
#include "kernels/cpu/vector.h"
#include "kernels/ops.h"

#include <pthread.h>
#include <stdbool.h>

struct ox_cpu_narrow; /* room for the inputs of a GEMM in bf16 or fp16; oneDNN for bf16 */

/* What an operation computes with: threads and vector loops. */
struct ox_cpu {
    struct ox_pool *pool;
    const struct ox_vector *vector;
    struct ox_cpu_narrow *narrow; /* NULL: GEMMs are in fp32 */
};

/* The owner of every lane of the device. Operations on different lanes take turns: the one that uses the pool holds
 * `turn`. */
struct ox_cpu_device {
    struct ox_device base;
    struct ox_cpu_device_config config;
    struct ox_cpu cpu;
    pthread_mutex_t turn;
    pthread_mutex_t seconds_lock;
    struct ox_ops_seconds seconds;
};

/* Address of element `at` of a tensor of the operation's type, which is float32 on this device. */
static inline float *ox_cpu_at(void *tensor, size_t at) {
    return (float *)tensor + at;
}
static inline const float *ox_cpu_from(const void *tensor, size_t at) {
    return (const float *)tensor + at;
}

/* The operations: ox_cpu_zero takes a struct ox_op_zero, and so on. */
OX_OP_MODEL_LIST(OX_OP_DECLARATION, cpu)

/* This device's part of the sizes in ops.h. */
uint64_t ox_cpu_norm_scratch_bytes(uint32_t cols);
uint64_t ox_cpu_attention_scratch_bytes(const struct ox_attention_shape *shape, uint32_t threads);
uint64_t ox_cpu_attention_cached_scratch_bytes(const struct ox_op_attention_cached *op, uint32_t threads);
uint64_t ox_cpu_grouped_scratch_bytes(uint32_t in_count, uint32_t out_count, uint32_t threads);
uint64_t ox_cpu_attention_pairs(const struct ox_attention_shape *shape);

/* Runs `fn` for [0, total) in pieces of `piece` rows or elements, each of which is an item of ox_pool_items. */
typedef void ox_cpu_piece_fn(const struct ox_vector *vector, const void *args, struct ox_range at);
void ox_cpu_pieces(const struct ox_cpu *cpu, uint64_t total, uint64_t piece, ox_cpu_piece_fn *fn, const void *args);

/* The sorted rows among `all` whose experts are in a group; and whether a pair's expert is. */
static inline struct ox_range ox_cpu_group_rows(const struct ox_experts *group, struct ox_range all) {
    const int32_t *const offsets = group->offsets == NULL ? NULL : group->offsets + group->first;
    const uint64_t begin = offsets == NULL ? 0 : (uint64_t)offsets[0];
    const uint64_t end = offsets == NULL ? UINT64_MAX : (uint64_t)offsets[group->count];
    return (struct ox_range){.begin = all.begin > begin ? all.begin : begin, .end = all.end < end ? all.end : end};
}
static inline bool ox_cpu_in_group(const struct ox_experts *group, const int32_t *experts, size_t pair) {
    return group->offsets == NULL || (uint32_t)experts[pair] - group->first < group->count;
}

/* c (m, n) = op(a) (m, k) * op(b) (k, n) + beta * c, row-major, on all threads of the pool. With `residual` or `bias`,
 * c is first set to residual (rows as far apart as those of c, may be c itself) plus bias (n), and beta is ignored. No
 * parts of a sum go to several threads, and no bit depends on how many there are. A device with `narrow` rounds a and b
 * to its format, unless there is one row. */
struct ox_gemm {
    float *c;
    const float *a, *b;
    const uint16_t *halves_a, *halves_b; /* a and b, already rounded to bf16; or NULL */
    const float *residual;
    const float *bias;
    uint32_t m, n, k;
    uint32_t a_stride, b_stride, c_stride;
    bool a_transposed, b_transposed;
    float beta;
    float scale; /* of the product; 0: none */
};
/* The factor of a product, as libraries take it. */
static inline float ox_cpu_gemm_alpha(const struct ox_gemm *gemm) {
    return gemm->scale == 0.0f ? 1.0f : gemm->scale;
}
void ox_cpu_gemm(const struct ox_cpu *cpu, const struct ox_gemm *gemm);
void ox_cpu_gemm_narrow(const struct ox_cpu *cpu, const struct ox_gemm *gemm);
void ox_cpu_gemm_tiles(const struct ox_cpu *cpu, const struct ox_gemm *gemm);

/* The grid of tiles in which `threads` threads compute a GEMM; no part of it is empty. Where the library's kernels give
 * every element the same bits wherever a tile of 64 by 64 or more begins and ends (ox_cpu_gemm_cuts_freely), a large
 * GEMM in fp32 has a grid for that many threads; any other has one by its shape alone. */
struct ox_gemm_grid {
    uint32_t rows, cols; /* parts of m and of n */
};
struct ox_gemm_grid ox_cpu_gemm_grid(const struct ox_gemm *gemm, uint32_t threads);
struct ox_range ox_cpu_gemm_part(uint32_t total, uint32_t idx, uint32_t count);
/* Tries it, once in a process, with some cut GEMMs of all forms. The library is to have one thread. */
bool ox_cpu_gemm_cuts_freely(void);

/* Opens NULL for fp32, and for bf16 where there is no library for this processor. The room is OX_CPU_BF16_ROOM_BYTES,
 * most of which a small model never touches. */
OX_MUST enum ox_status ox_cpu_narrow_open(enum ox_real products, struct ox_cpu_narrow **out);
void ox_cpu_narrow_close(struct ox_cpu_narrow **narrow);
/* Whether the library failed since the last call; accepts NULL. */
OX_MUST enum ox_status ox_cpu_narrow_status(struct ox_cpu_narrow *narrow);
/* A tile of c on this thread, from halves_a and halves_b. */
void ox_cpu_narrow_multiply(struct ox_cpu_narrow *narrow, const struct ox_gemm *gemm, struct ox_range rows,
                          struct ox_range cols, float beta);

/* The gradient of the bias: column sums of dout, rows in a fixed order. */
void ox_cpu_column_sums(const struct ox_cpu *cpu, const struct ox_op_linear_backward *op);

/* A row of logits, scaled and capped as `op` says; its own pointer and count are not used. */
void ox_cpu_scale_logits(const struct ox_vector *vector, const struct ox_op_logits *op, float *logits, size_t count);

/* The part of attention_cached after the rows' keys and values are in the cache: computes in blocks of rows, as
 * attention_forward does. */
uint64_t ox_cpu_attention_blocks_scratch_bytes(const struct ox_op_attention_cached *op, uint32_t threads);
void ox_cpu_attention_blocks(const struct ox_cpu *cpu, const struct ox_op_attention_cached *op);

/* The fewest elements worth waking a thread for, and the border between threads: a cache line. */
enum { OX_CPU_GRAIN = 16 };

#endif
