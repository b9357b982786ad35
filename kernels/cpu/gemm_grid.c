/* Into which tiles a GEMM is cut. Each tile packs its rows of a and its columns of b for itself, so large tiles are
 * faster; but each thread needs one. OpenBLAS's kernels for AVX2 give other last bits for other borders of a tile, so
 * there the shape alone decides the grid. Most others, among them those for AVX-512, do not, once a tile is past the
 * size of their paths for small matrices; there the number of threads decides too. Which kind the library has is tried,
 * not looked up. */
#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <pthread.h>
#include <string.h>

/* Borders of tiles are multiples of GRAIN, and the last part takes the rest, so that no tile is a thin strip. */
enum { GRAIN = 64 };

static uint32_t grains_of(uint32_t total) {
    return total < GRAIN ? 1 : total / GRAIN;
}

struct ox_range ox_cpu_gemm_part(uint32_t total, uint32_t idx, uint32_t count) {
    const struct ox_range grains = ox_pool_range(grains_of(total), 1, idx, count);
    return (struct ox_range){.begin = grains.begin * GRAIN, .end = idx + 1 == count ? total : grains.end * GRAIN};
}

/* ---- by shape alone ----------------------------------------------------------------------------------- */

/* Tiles of a GEMM with at least so many outputs. More tiles keep more threads busy. Most numbers of threads divide 12,
 * 24, ... or nearly so. */
static const struct {
    uint64_t outputs_least;
    uint32_t tiles;
} tile_steps[] = {{4096, 2}, {65536, 4}, {700000, 8}, {1500000, 12}, {6000000, 24}, {16000000, 48}, {64000000, 96}};
enum {
    TILE_STEPS = sizeof tile_steps / sizeof *tile_steps,
    TILE_WORK_LEAST = 1 << 17, /* multiply-adds; with less, one thread is faster than waking the others */
    PACK_ROWS = 64,            /* to read and pack an element of b takes as long as computing with so many rows of a */
};

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

/* The grid of so many tiles that packs the least. */
static struct ox_gemm_grid grid_by_shape(const struct ox_gemm *gemm) {
    struct ox_gemm_grid grid = {.rows = 1, .cols = 1};
    const uint32_t parts = tiles_of(gemm);
    uint64_t least = UINT64_MAX;
    for (uint32_t rows = 1; rows <= parts; rows++) {
        const uint64_t packed = gemm->m / rows + gemm->n / (parts / rows);
        if (parts % rows == 0 && packed < least) {
            least = packed;
            grid = (struct ox_gemm_grid){.rows = rows, .cols = parts / rows};
        }
    }
    grid.rows = (uint32_t)ox_min_u64(grid.rows, grains_of(gemm->m));
    grid.cols = (uint32_t)ox_min_u64(grid.cols, grains_of(gemm->n));
    return grid;
}

/* ---- for a number of threads -------------------------------------------------------------------------- */

/* FREE_TILE_LEAST is beyond the 10^6 multiply-adds up to which the library takes its path for small matrices. More rows
 * of a tile than ROWS_MOST leave the second-level cache. A tile takes as long as its elements and so many more for each
 * of its rows and columns, which are packed; these two were fitted to products of 768 to 4096 (docs/measurements,
 * archive.md, "tiles of GEMMs on the CPU"). */
enum {
    FREE_WORK_LEAST = 1 << 22, FREE_TILE_LEAST = 1 << 20,
    ROWS_MOST = 512, ROW_COST = 108, COL_COST = 40, TILES_PER_THREAD = 4,
};

static uint64_t longest_of(uint32_t total, uint32_t parts) {
    const struct ox_range last = ox_cpu_gemm_part(total, parts - 1, parts);
    return ox_max_u64(ox_div_up(grains_of(total), parts) * GRAIN, last.end - last.begin);
}

static bool is_large_enough(const struct ox_gemm *gemm, uint32_t rows, uint32_t cols) {
    const uint64_t least_rows = ox_min_u64(grains_of(gemm->m) / rows * GRAIN, gemm->m);
    const uint64_t least_cols = ox_min_u64(grains_of(gemm->n) / cols * GRAIN, gemm->n);
    return least_rows * least_cols * gemm->k >= FREE_TILE_LEAST;
}

/* The grid that is done first where every thread takes one tile after another; false if all have tiles too small. */
static bool grid_for_threads(const struct ox_gemm *gemm, uint32_t threads, struct ox_gemm_grid *grid) {
    const uint32_t tiles_most = TILES_PER_THREAD * threads, rows_least = (uint32_t)ox_div_up(gemm->m, ROWS_MOST);
    const uint32_t rows_most = (uint32_t)ox_min_u64(ox_max_u64(rows_least, tiles_most), grains_of(gemm->m));
    uint64_t least = UINT64_MAX;
    for (uint32_t rows = rows_least; rows <= rows_most; rows++) {
        const uint32_t cols_most = (uint32_t)ox_min_u64(ox_div_up(tiles_most, rows), grains_of(gemm->n));
        for (uint32_t cols = 1; cols <= cols_most; cols++) {
            const uint64_t high = longest_of(gemm->m, rows), wide = longest_of(gemm->n, cols);
            const uint64_t turns = ox_div_up((uint64_t)rows * cols, threads);
            const uint64_t cost = turns * (high * wide + ROW_COST * high + COL_COST * wide);
            if (cost < least && is_large_enough(gemm, rows, cols)) {
                least = cost;
                *grid = (struct ox_gemm_grid){.rows = rows, .cols = cols};
            }
        }
    }
    return least < UINT64_MAX;
}

struct ox_gemm_grid ox_cpu_gemm_grid(const struct ox_gemm *gemm, uint32_t threads) {
    struct ox_gemm_grid grid;
    const bool large = gemm->m > 1 && (uint64_t)gemm->m * gemm->n * gemm->k >= FREE_WORK_LEAST;
    if (large && gemm->halves_a == NULL && ox_cpu_gemm_cuts_freely() && grid_for_threads(gemm, threads, &grid)) {
        return grid;
    }
    return grid_by_shape(gemm);
}

/* ---- what the library's kernels do ---------------------------------------------------------------------- */

/* A GEMM of this size, once whole and then in tiles, one of each row and column of the grid, because each process waits
 * for it; odd, so that every kind of edge is met, and deeper than what the library packs at a time. Of strips of 12, 24
 * or 48, one with a border at GRAIN and one at twice that begin differently. Tiles are hardly larger than
 * FREE_TILE_LEAST, and the whole is larger than the 7.3 * 10^6 multiply-adds up to which some builds of the library do
 * not pack where nothing is added to c. */
enum { TRY_PARTS = 3, TRY_DIM = TRY_PARTS * GRAIN + 29, TRY_DEPTH = 515 };

static bool cuts_freely;
static pthread_once_t cuts_once = PTHREAD_ONCE_INIT;

struct form {
    enum CBLAS_TRANSPOSE a, b;
    float beta;
};

static void try_tile(struct form form, const float *a, const float *b, float *c, struct ox_range rows,
                     struct ox_range cols) {
    const blasint a_stride = form.a == CblasTrans ? TRY_DIM : TRY_DEPTH;
    const blasint b_stride = form.b == CblasTrans ? TRY_DEPTH : TRY_DIM;
    cblas_sgemm(CblasRowMajor, form.a, form.b, (blasint)(rows.end - rows.begin), (blasint)(cols.end - cols.begin),
                TRY_DEPTH, 1.0f, a + rows.begin * (form.a == CblasTrans ? 1 : TRY_DEPTH), a_stride,
                b + cols.begin * (form.b == CblasTrans ? TRY_DEPTH : 1), b_stride, form.beta,
                c + rows.begin * TRY_DIM + cols.begin, TRY_DIM);
}

static bool try_form(struct form form, const float *a, const float *b, float *c) {
    enum { ELEMS = TRY_DIM * TRY_DIM };
    const struct ox_range all = {.begin = 0, .end = TRY_DIM};
    memset(c, 0, 2 * ELEMS * sizeof *c);
    try_tile(form, a, b, c, all, all);
    bool same = true;
    for (uint32_t i = 0; i < TRY_PARTS; i++) {
        const struct ox_range rows = ox_cpu_gemm_part(TRY_DIM, i, TRY_PARTS);
        const struct ox_range cols = ox_cpu_gemm_part(TRY_DIM, TRY_PARTS - 1 - i, TRY_PARTS);
        try_tile(form, a, b, c + ELEMS, rows, cols);
        for (uint64_t row = rows.begin; row < rows.end; row++) {
            const float *const at = c + row * TRY_DIM + cols.begin;
            same = same && memcmp(at, at + ELEMS, (cols.end - cols.begin) * sizeof *at) == 0;
        }
    }
    return same;
}

static void try_cuts(void) {
    enum { INPUTS = TRY_DIM * TRY_DEPTH };
    /* Static, because what can be had of memory must not decide which bits a run makes. */
    static float inputs[2 * INPUTS], outputs[2 * TRY_DIM * TRY_DIM];
    static const enum CBLAS_TRANSPOSE forms[] = {CblasNoTrans, CblasTrans};
    for (uint32_t i = 0; i < 2 * INPUTS; i++) {
        inputs[i] = (float)(i * 2654435761u) * 0x1p-32f - 0.5f;
    }
    cuts_freely = true;
    for (uint32_t i = 0; i < 8; i++) {
        const struct form form = {.a = forms[i / 4], .b = forms[i / 2 % 2], .beta = (float)(i % 2)};
        cuts_freely = cuts_freely && try_form(form, inputs, inputs + INPUTS, outputs);
    }
}

bool ox_cpu_gemm_cuts_freely(void) {
    pthread_once(&cuts_once, try_cuts);
    return cuts_freely;
}
