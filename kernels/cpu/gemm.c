/* GEMMs: a grid of output tiles (gemm_grid.c), each by OpenBLAS on one thread. The library's own threads would spin
 * beside the pool's, and its own division of a GEMM could not be fixed. */
#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <string.h>

/* The library packs a strip of all rows of a call into memory that no budget counts, so a tile of more rows than this
 * is computed in slabs. */
enum { SLAB_ROWS = 4096, SLAB_GRAIN = 32 };

struct grid {
    const struct ox_gemm *gemm;
    const struct ox_vector *vector;
    struct ox_cpu_narrow *narrow;
    struct ox_gemm_grid parts;
};

static void prefill(const struct grid *grid, struct ox_range rows, struct ox_range cols) {
    const struct ox_gemm *const gemm = grid->gemm;
    const size_t width = cols.end - cols.begin;
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        float *const c = gemm->c + row * gemm->c_stride + cols.begin;
        const float *const before =
            gemm->residual == NULL ? NULL : gemm->residual + row * gemm->c_stride + cols.begin;
        const float *const bias = gemm->bias == NULL ? NULL : gemm->bias + cols.begin;
        if (before != NULL && bias != NULL) {
            grid->vector->add(c, before, bias, width);
        } else if ((before != NULL ? before : bias) != c) {
            memcpy(c, before != NULL ? before : bias, width * sizeof(float));
        }
    }
}

static void multiply(const struct grid *grid, struct ox_range rows, struct ox_range cols) {
    const struct ox_gemm *const gemm = grid->gemm;
    float beta = gemm->beta;
    if (gemm->residual != NULL || gemm->bias != NULL) {
        prefill(grid, rows, cols);
        beta = 1.0f;
    }
    if (gemm->halves_a != NULL) {
        ox_cpu_narrow_multiply(grid->narrow, gemm, rows, cols, beta);
        return;
    }
    const float *const a = gemm->a + rows.begin * (gemm->a_transposed ? 1 : gemm->a_stride);
    const float *const b = gemm->b + cols.begin * (gemm->b_transposed ? gemm->b_stride : 1);
    if (gemm->m == 1 && !gemm->a_transposed) {
        /* For one row, as in generating text: reads the matrix once and packs nothing. */
        const bool rows_of_b = gemm->b_transposed;
        const blasint width = (blasint)(cols.end - cols.begin), depth = (blasint)gemm->k;
        cblas_sgemv(CblasRowMajor, rows_of_b ? CblasNoTrans : CblasTrans, rows_of_b ? width : depth,
                    rows_of_b ? depth : width, ox_cpu_gemm_alpha(gemm), b, (blasint)gemm->b_stride, a, 1, beta,
                    gemm->c + cols.begin, 1);
        return;
    }
    cblas_sgemm(CblasRowMajor, gemm->a_transposed ? CblasTrans : CblasNoTrans,
                gemm->b_transposed ? CblasTrans : CblasNoTrans, (blasint)(rows.end - rows.begin),
                (blasint)(cols.end - cols.begin), (blasint)gemm->k, ox_cpu_gemm_alpha(gemm), a,
                (blasint)gemm->a_stride, b, (blasint)gemm->b_stride, beta,
                gemm->c + rows.begin * gemm->c_stride + cols.begin, (blasint)gemm->c_stride);
}

static void gemm_tile(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct grid *const grid = context;
    const struct ox_gemm *const gemm = grid->gemm;
    const struct ox_range rows = ox_cpu_gemm_part(gemm->m, item / grid->parts.cols, grid->parts.rows);
    const struct ox_range cols = ox_cpu_gemm_part(gemm->n, item % grid->parts.cols, grid->parts.cols);
    const uint32_t slab_count = (uint32_t)ox_div_up(rows.end - rows.begin, SLAB_ROWS);
    for (uint32_t i = 0; i < slab_count; i++) {
        const struct ox_range slab = ox_pool_range(rows.end - rows.begin, SLAB_GRAIN, i, slab_count);
        multiply(grid, (struct ox_range){.begin = rows.begin + slab.begin, .end = rows.begin + slab.end}, cols);
    }
}

void ox_cpu_gemm_tiles(const struct ox_cpu *cpu, const struct ox_gemm *gemm) {
    struct grid grid = {.gemm = gemm, .vector = cpu->vector, .narrow = cpu->narrow,
                        .parts = ox_cpu_gemm_grid(gemm, ox_pool_size(cpu->pool))};
    ox_pool_items(cpu->pool, grid.parts.rows * grid.parts.cols, gemm_tile, &grid);
}

void ox_cpu_gemm(const struct ox_cpu *cpu, const struct ox_gemm *gemm) {
    if (cpu->narrow == NULL || gemm->m == 1) {
        ox_cpu_gemm_tiles(cpu, gemm);
    } else {
        ox_cpu_gemm_narrow(cpu, gemm);
    }
}
