/* GEMMs: a grid of output tiles, each by OpenBLAS on one thread. The library's own threads would spin beside the
 * pool's, and its own division of a GEMM could not be fixed. The library's last bits depend on where a tile begins and
 * ends: so the shape alone decides the grid, and threads take the tiles as they come free. */
#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <string.h>

/* TILE_GRAIN keeps tiles at whole micro-tiles of the library's kernels. The library packs a strip of all rows of a call
 * into memory that no budget counts, so a tile of more than SLAB_ROWS rows is computed in slabs. */
enum { TILE_GRAIN = 32, SLAB_ROWS = 4096 };

/* Tiles of a GEMM with at least so many outputs. More tiles keep more threads busy; fewer, larger ones pack less, to
 * which a tile of 512 by 512 adds about 2 percent. Most numbers of threads divide 12, 24, ... or nearly so. */
static const struct {
    uint64_t outputs_least;
    uint32_t tiles;
} tile_steps[] = {{4096, 2}, {65536, 4}, {700000, 8}, {1500000, 12}, {6000000, 24}, {16000000, 48}, {64000000, 96}};
enum {
    TILE_STEPS = sizeof tile_steps / sizeof *tile_steps,
    TILE_WORK_LEAST = 1 << 17, /* multiply-adds; with less, one thread is faster than waking the others */
    PACK_ROWS = 64,            /* to read and pack an element of b takes as long as computing with so many rows of a */
};

struct grid {
    const struct ox_gemm *gemm;
    const struct ox_vector *vector;
    struct ox_cpu_bf16 *bf16;
    uint32_t row_parts, col_parts;
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
        ox_cpu_bf16_multiply(grid->bf16, gemm, rows, cols, beta);
        return;
    }
    const float *const a = gemm->a + rows.begin * (gemm->a_transposed ? 1 : gemm->a_stride);
    const float *const b = gemm->b + cols.begin * (gemm->b_transposed ? gemm->b_stride : 1);
    if (gemm->m == 1 && !gemm->a_transposed) {
        /* For one row, as in generating text: reads the matrix once and packs nothing. */
        const bool rows_of_b = gemm->b_transposed;
        const blasint width = (blasint)(cols.end - cols.begin), depth = (blasint)gemm->k;
        cblas_sgemv(CblasRowMajor, rows_of_b ? CblasNoTrans : CblasTrans, rows_of_b ? width : depth,
                    rows_of_b ? depth : width, 1.0f, b, (blasint)gemm->b_stride, a, 1, beta, gemm->c + cols.begin, 1);
        return;
    }
    cblas_sgemm(CblasRowMajor, gemm->a_transposed ? CblasTrans : CblasNoTrans,
                gemm->b_transposed ? CblasTrans : CblasNoTrans, (blasint)(rows.end - rows.begin),
                (blasint)(cols.end - cols.begin), (blasint)gemm->k, 1.0f, a, (blasint)gemm->a_stride, b,
                (blasint)gemm->b_stride, beta, gemm->c + rows.begin * gemm->c_stride + cols.begin,
                (blasint)gemm->c_stride);
}

static void gemm_tile(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct grid *const grid = context;
    const struct ox_gemm *const gemm = grid->gemm;
    const struct ox_range rows =
        ox_pool_range(gemm->m, TILE_GRAIN, item / grid->col_parts, grid->row_parts);
    const struct ox_range cols =
        ox_pool_range(gemm->n, TILE_GRAIN, item % grid->col_parts, grid->col_parts);
    if (cols.begin == cols.end) {
        return;
    }
    const uint32_t slab_count = (uint32_t)ox_div_up(rows.end - rows.begin, SLAB_ROWS);
    for (uint32_t i = 0; i < slab_count; i++) {
        const struct ox_range slab = ox_pool_range(rows.end - rows.begin, TILE_GRAIN, i, slab_count);
        multiply(grid, (struct ox_range){.begin = rows.begin + slab.begin, .end = rows.begin + slab.end}, cols);
    }
}

static uint32_t tiles_of(const struct ox_gemm *gemm) {
    const uint64_t work = (uint64_t)gemm->m * gemm->n * gemm->k;
    /* One row takes as long as reading b, of which a tile needs not be large because nothing is packed. */
    const uint64_t outputs = gemm->m == 1 ? work : ((uint64_t)gemm->m + PACK_ROWS) * gemm->n;
    uint32_t tiles = 1;
    for (int i = 0; i < TILE_STEPS && outputs >= tile_steps[i].outputs_least; i++) {
        if (work / TILE_WORK_LEAST >= tile_steps[i].tiles) {
            tiles = tile_steps[i].tiles;
        }
    }
    return tiles;
}

/* Finds the grid of tiles that packs the least: each tile packs its rows of a and its columns of b. */
static void divide(struct grid *grid) {
    const uint32_t parts = tiles_of(grid->gemm);
    uint64_t least = UINT64_MAX;
    for (uint32_t rows = 1; rows <= parts; rows++) {
        if (parts % rows != 0) {
            continue;
        }
        const uint64_t packed = grid->gemm->m / rows + grid->gemm->n / (parts / rows);
        if (packed < least) {
            least = packed;
            grid->row_parts = rows;
            grid->col_parts = parts / rows;
        }
    }
}

void ox_cpu_gemm_tiles(const struct ox_cpu *cpu, const struct ox_gemm *gemm) {
    struct grid grid = {.gemm = gemm, .vector = cpu->vector, .bf16 = cpu->bf16, .row_parts = 1, .col_parts = 1};
    divide(&grid);
    ox_cpu_items(cpu->pool, grid.row_parts * grid.col_parts, gemm_tile, &grid);
}

void ox_cpu_gemm(const struct ox_cpu *cpu, const struct ox_gemm *gemm) {
    if (cpu->bf16 == NULL || gemm->m == 1) {
        ox_cpu_gemm_tiles(cpu, gemm);
    } else {
        ox_cpu_gemm_bf16(cpu, gemm);
    }
}
