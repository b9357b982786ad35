/* GEMMs of inputs in 16 bits: these are rounded once into room of the device, block by block. In bf16 the tiles of a
 * block are oneDNN's. In fp16 the room holds the rounded values as floats, and the tiles are OpenBLAS's: a product of
 * two halves is exact in fp32, so that only the sums round. Blocks follow from the shape alone, and the blocks of a sum
 * are added in order. */
#include "base/bytes.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/onednn.h"

#include <stdatomic.h>
#include <stdlib.h>

/* A block takes so many elements of a sum; within the room, it takes more rows of a than columns of b, because b is
 * rounded again for each block of rows. DIM_GRAIN keeps blocks at whole micro-tiles. */
enum {
    DEPTH_MOST = 4096,
    A_ELEMS = 2048 * DEPTH_MOST, /* in bf16; half as many floats */
    B_ELEMS = 1024 * DEPTH_MOST,
    DIM_GRAIN = 32,
    ITEM_ELEMS = 32768, /* of a part that one thread rounds at a time */
};
_Static_assert((A_ELEMS + B_ELEMS) * sizeof(uint16_t) == OX_CPU_BF16_ROOM_BYTES, "the room is what is announced");

struct ox_cpu_narrow {
    const struct ox_onednn *library; /* NULL: fp16 */
    _Atomic int error; /* the library's first error since it was last asked for */
    union {
        uint16_t halves[A_ELEMS];
        float floats[A_ELEMS / 2];
    } a;
    union {
        uint16_t halves[B_ELEMS];
        float floats[B_ELEMS / 2];
    } b;
};

/* Elements of a part of the room. */
static uint32_t room_elems(const struct ox_cpu_narrow *narrow, uint32_t halves) {
    return narrow->library != NULL ? halves : halves / 2;
}

enum ox_status ox_cpu_narrow_open(enum ox_real products, struct ox_cpu_narrow **out) {
    const char *text;
    const struct ox_onednn *const library = products == OX_REAL_BF16 ? ox_onednn_open(&text) : NULL;
    *out = NULL;
    if (products == OX_REAL_F32 || (products == OX_REAL_BF16 && library == NULL)) {
        return OX_OK;
    }
    struct ox_cpu_narrow *const narrow = calloc(1, sizeof *narrow);
    if (narrow == NULL) {
        return ox_fail(OX_E_NOMEM, "CPU device: no memory for %zu bytes of rounded inputs", sizeof *narrow);
    }
    narrow->library = library;
    *out = narrow;
    return OX_OK;
}

void ox_cpu_narrow_close(struct ox_cpu_narrow **narrow) {
    free(*narrow);
    *narrow = NULL;
}

enum ox_status ox_cpu_narrow_status(struct ox_cpu_narrow *narrow) {
    const int error = narrow == NULL ? 0 : atomic_exchange(&narrow->error, 0);
    return error == 0 ? OX_OK : ox_fail(OX_E_NOMEM, "oneDNN could not compute a matrix product (its error %d), most "
                                        "likely for want of memory; lower the budgets, or use --dtype fp32", error);
}

void ox_cpu_narrow_multiply(struct ox_cpu_narrow *narrow, const struct ox_gemm *gemm, struct ox_range rows,
                            struct ox_range cols, float beta) {
    static _Thread_local bool is_alone; /* the pool divides GEMMs; the library's own threads would spin beside it */
    if (!is_alone && narrow->library->set_threads != NULL) {
        narrow->library->set_threads(1);
    }
    is_alone = true;
    const int error = narrow->library->gemm(
        gemm->a_transposed ? 'T' : 'N', gemm->b_transposed ? 'T' : 'N', (int64_t)(rows.end - rows.begin),
        (int64_t)(cols.end - cols.begin), gemm->k, ox_cpu_gemm_alpha(gemm),
        gemm->halves_a + rows.begin * (gemm->a_transposed ? 1 : gemm->a_stride), gemm->a_stride,
        gemm->halves_b + cols.begin * (gemm->b_transposed ? gemm->b_stride : 1), gemm->b_stride, beta,
        gemm->c + rows.begin * gemm->c_stride + cols.begin, gemm->c_stride);
    if (error != 0) {
        atomic_store(&narrow->error, error);
    }
}

/* A part of a matrix that is rounded: rows of `width` elements, `stride` apart, become rows without gaps. */
struct part {
    uint16_t *halves; /* bf16, or with NULL */
    float *floats;    /* fp16 */
    const float *in;
    uint64_t rows, width, stride;
};

static uint64_t rows_of_item(const struct part *part) {
    return ox_max_u64(1, ITEM_ELEMS / part->width);
}

struct rounding {
    const struct ox_vector *vector;
    struct part parts[2];
    uint32_t items[2];
};

static void round_item(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct rounding *const job = context;
    const uint32_t which = item < job->items[0] ? 0 : 1;
    const struct part *const part = &job->parts[which];
    const uint64_t rows = rows_of_item(part), begin = (item - (which == 0 ? 0 : job->items[0])) * rows;
    for (uint64_t row = begin; row < ox_min_u64(begin + rows, part->rows); row++) {
        const float *const in = part->in + row * part->stride;
        if (part->halves != NULL) {
            job->vector->bf16_pack(part->halves + row * part->width, in, part->width);
        } else {
            job->vector->f16_round(part->floats + row * part->width, in, part->width);
        }
    }
}

static void round_parts(const struct ox_cpu *cpu, struct rounding *job) {
    for (int i = 0; i < 2; i++) {
        const struct part *const part = &job->parts[i];
        job->items[i] = part->in == NULL ? 0 : (uint32_t)ox_div_up(part->rows, rows_of_item(part));
    }
    ox_pool_items(cpu->pool, job->items[0] + job->items[1], round_item, job);
}

/* The longest of equal pieces of `total` that are at most `most`, in whole grains. */
static uint32_t piece_of(uint32_t total, uint32_t most) {
    const uint32_t count = (uint32_t)ox_div_up(total, most);
    return (uint32_t)ox_align_up(ox_div_up(total, count), DIM_GRAIN);
}

struct blocks {
    const struct ox_gemm *gemm;
    uint32_t rows, cols, depth;             /* of a full block */
    uint32_t row, col, at;                  /* where the current one begins */
    uint32_t row_count, col_count, k_count; /* and its size */
};

static struct part part_of_a(const struct ox_cpu *cpu, const struct blocks *block) {
    const struct ox_gemm *const gemm = block->gemm;
    struct ox_cpu_narrow *const room = cpu->narrow;
    const uint32_t row = gemm->a_transposed ? block->at : block->row, col = gemm->a_transposed ? block->row : block->at;
    return (struct part){.halves = room->library != NULL ? room->a.halves : NULL, .floats = room->a.floats,
                         .in = gemm->a + (size_t)row * gemm->a_stride + col,
                         .rows = gemm->a_transposed ? block->k_count : block->row_count,
                         .width = gemm->a_transposed ? block->row_count : block->k_count, .stride = gemm->a_stride};
}

static struct part part_of_b(const struct ox_cpu *cpu, const struct blocks *block) {
    const struct ox_gemm *const gemm = block->gemm;
    struct ox_cpu_narrow *const room = cpu->narrow;
    const uint32_t row = gemm->b_transposed ? block->col : block->at, col = gemm->b_transposed ? block->at : block->col;
    return (struct part){.halves = room->library != NULL ? room->b.halves : NULL, .floats = room->b.floats,
                         .in = gemm->b + (size_t)row * gemm->b_stride + col,
                         .rows = gemm->b_transposed ? block->col_count : block->k_count,
                         .width = gemm->b_transposed ? block->k_count : block->col_count, .stride = gemm->b_stride};
}

static void multiply_block(const struct ox_cpu *cpu, const struct blocks *block) {
    const struct ox_gemm *const whole = block->gemm;
    const bool again = block->at > 0; /* a later part of the sum */
    const size_t at = (size_t)block->row * whole->c_stride + block->col;
    struct ox_gemm gemm = *whole;
    gemm.c = whole->c + at;
    gemm.residual = again || whole->residual == NULL ? NULL : whole->residual + at;
    gemm.bias = again || whole->bias == NULL ? NULL : whole->bias + block->col;
    gemm.beta = again ? 1.0f : whole->beta;
    gemm.m = block->row_count;
    gemm.n = block->col_count;
    gemm.k = block->k_count;
    if (cpu->narrow->library != NULL) {
        gemm.halves_a = cpu->narrow->a.halves;
        gemm.halves_b = cpu->narrow->b.halves;
    } else {
        gemm.a = cpu->narrow->a.floats;
        gemm.b = cpu->narrow->b.floats;
    }
    gemm.a_stride = whole->a_transposed ? block->row_count : block->k_count;
    gemm.b_stride = whole->b_transposed ? block->k_count : block->col_count;
    ox_cpu_gemm_tiles(cpu, &gemm);
}

void ox_cpu_gemm_narrow(const struct ox_cpu *cpu, const struct ox_gemm *gemm) {
    struct blocks block = {.gemm = gemm, .depth = piece_of(gemm->k, DEPTH_MOST)};
    block.rows = piece_of(gemm->m, room_elems(cpu->narrow, A_ELEMS) / block.depth / DIM_GRAIN * DIM_GRAIN);
    block.cols = piece_of(gemm->n, room_elems(cpu->narrow, B_ELEMS) / block.depth / DIM_GRAIN * DIM_GRAIN);
    for (block.at = 0; block.at < gemm->k; block.at += block.depth) {
        block.k_count = (uint32_t)ox_min_u64(block.depth, gemm->k - block.at);
        for (block.row = 0; block.row < gemm->m; block.row += block.rows) {
            block.row_count = (uint32_t)ox_min_u64(block.rows, gemm->m - block.row);
            for (block.col = 0; block.col < gemm->n; block.col += block.cols) {
                block.col_count = (uint32_t)ox_min_u64(block.cols, gemm->n - block.col);
                struct rounding job = {.vector = cpu->vector};
                if (block.col == 0) {
                    job.parts[0] = part_of_a(cpu, &block);
                }
                if (block.row == 0 || block.cols < gemm->n) {
                    job.parts[1] = part_of_b(cpu, &block);
                }
                round_parts(cpu, &job);
                multiply_block(cpu, &block);
            }
        }
    }
}
