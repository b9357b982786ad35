/* Grouped products on the tensor cores, in 16 bits with sums in fp32. A block computes a tile of 128 by 128 over k in
 * steps of 32, and a warp 64 by 32 of it; copies of two steps are under way while a third is multiplied. A tile has
 * rows of one expert alone, rows past its end being zeros, and an element's sum is over k in order, from the expert's
 * first row where k are rows: so no bit depends on other rows or experts.
 *
 * Why these sizes: a step's products take 128 * 128 * 32 multiplications, 512 cycles at the 1024 per cycle of sm_80.
 * Its fragments are 8 warps * (64 + 32) * 32 elements, 48 KiB of shared memory, 384 cycles at 128 bytes, and its copies
 * 16 KiB. A warp's sums take 64 registers, which with 128 in all lets two blocks share a processor; their 96 KiB of
 * shared memory fit all of sm_80 to sm_120. An expert with fewer rows than a tile reads its weights once all the same,
 * which is what bounds it then. */
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/moe/grouped.cuh"

enum {
    TILE = 128, DEPTH = 32, STAGES = 3, WARP_ROWS = 64, WARP_COLS = 32, MT = WARP_ROWS / 16, NT = WARP_COLS / 8,
    THREADS = TILE / WARP_ROWS * (TILE / WARP_COLS) * OX_WARP, PART_BYTES = TILE * DEPTH * 2,
    STAGE_BYTES = 2 * PART_BYTES, CHUNKS = TILE * DEPTH / 8
};

/* One side of a product, from the tile's first row or column on: element (i, k) is at[i * stride + k] where it lies
 * along k, else at[k * stride + i]. */
struct mma_side {
    const uint16_t *at;
    uint32_t stride, count, depth;
};

/* Where the 16 bytes of a chunk of 8 elements lie: along k a row of 64 bytes for each i, else one of 256 for each k.
 * The order of chunks within a row changes with the row, so that the eight rows of a matrix are in different banks. */
template <bool ALONG> static __device__ __forceinline__ uint32_t chunk_at(uint32_t row, uint32_t chunk) {
    return ALONG ? row * DEPTH * 2 + ((chunk ^ (row / 2 % 4)) << 4) : row * TILE * 2 + ((chunk ^ (row % 8)) << 4);
}

/* Begins to copy the step that begins at k; zeros for what does not exist. */
template <bool ALONG>
static __device__ __forceinline__ void fetch(ox_shared part, const mma_side &side, uint32_t k) {
    enum { PER_ROW = (ALONG ? DEPTH : TILE) / 8 };
    ox_renew(k); /* otherwise the addresses of the next step would be held in registers */
#pragma unroll
    for (uint32_t n = 0; n < CHUNKS / THREADS; n++) {
        const uint32_t idx = threadIdx.x + n * THREADS, row = idx / PER_ROW, chunk = idx % PER_ROW;
        const uint32_t i = ALONG ? row : chunk * 8, at = k + (ALONG ? chunk * 8 : row);
        ox_cp_async_16(part + chunk_at<ALONG>(row, chunk), side.at + (uint64_t)(ALONG ? i : at) * side.stride +
                       (ALONG ? at : i), i < side.count && at < side.depth);
    }
}

/* The left operand's 16 rows from `row` on, for the 16 k of a half step. */
template <bool ALONG>
static __device__ __forceinline__ void take_left(uint32_t out[4], ox_shared part, uint32_t row, uint32_t half) {
    const uint32_t lane = threadIdx.x % OX_WARP;
    if (ALONG) {
        ox_ldmatrix_x4(out, part + chunk_at<true>(row + lane % 16, half * 2 + lane / 16));
    } else {
        ox_ldmatrix_x4_trans(out, part + chunk_at<false>(half * 16 + lane % 8 + lane / 16 * 8, row / 8 + lane / 8 % 2));
    }
}

/* The right operand's 16 columns from `col` on: two operands of 8. */
template <bool ALONG>
static __device__ __forceinline__ void take_right(uint32_t out[4], ox_shared part, uint32_t col, uint32_t half) {
    const uint32_t lane = threadIdx.x % OX_WARP;
    if (ALONG) {
        ox_ldmatrix_x4(out, part + chunk_at<true>(col + lane % 8 + lane / 16 * 8, half * 2 + lane / 8 % 2));
    } else {
        ox_ldmatrix_x4_trans(out, part + chunk_at<false>(half * 16 + lane % 16, col / 8 + lane / 16));
    }
}

struct mma_place {
    uint32_t row, col; /* of the warp in the tile */
};

static __device__ __forceinline__ mma_place place_of() {
    const uint32_t warp = threadIdx.x / OX_WARP;
    return mma_place{warp % (TILE / WARP_ROWS) * WARP_ROWS, warp / (TILE / WARP_ROWS) * WARP_COLS};
}

template <typename T, bool LEFT, bool RIGHT>
static __device__ __forceinline__ void add_stage(float acc[MT][NT][4], ox_shared stage, const mma_place &place) {
#pragma unroll
    for (uint32_t half = 0; half < DEPTH / 16; half++) {
        uint32_t a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            take_left<LEFT>(a[m], stage, place.row + 16 * m, half);
        }
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t b[4];
            take_right<RIGHT>(b, stage + PART_BYTES, place.col + 8 * n, half);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                ox_mma_16816<T>(acc[m][n], a[m], b);
                ox_mma_16816<T>(acc[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* acc = left * right over their depth. */
template <typename T, bool LEFT, bool RIGHT>
static __device__ __forceinline__ void multiply(float acc[MT][NT][4], const mma_side &left, const mma_side &right,
                                                const mma_place &place) {
    const ox_shared shared = ox_shared_of(ox_dynamic_shared());
    const uint32_t steps = (left.depth + DEPTH - 1) / DEPTH;
#pragma unroll
    for (int i = 0; i < MT * NT * 4; i++) {
        acc[i / (NT * 4)][i / 4 % NT][i % 4] = 0.0f;
    }
#pragma unroll
    for (uint32_t step = 0; step < STAGES - 1; step++) { /* past the depth zeros arrive */
        fetch<LEFT>(shared + step * STAGE_BYTES, left, step * DEPTH);
        fetch<RIGHT>(shared + step * STAGE_BYTES + PART_BYTES, right, step * DEPTH);
        ox_cp_async_commit();
    }
    uint32_t now = 0, next = STAGES - 1;
    for (uint32_t step = 0; step < steps; step++) {
        ox_cp_async_wait<STAGES - 2>();
        __syncthreads(); /* the step has arrived, and no warp reads the stage that is fetched next */
        fetch<LEFT>(shared + next * STAGE_BYTES, left, (step + STAGES - 1) * DEPTH);
        fetch<RIGHT>(shared + next * STAGE_BYTES + PART_BYTES, right, (step + STAGES - 1) * DEPTH);
        ox_cp_async_commit();
        add_stage<T, LEFT, RIGHT>(acc, shared + now * STAGE_BYTES, place);
        now = now + 1 < STAGES ? now + 1 : 0;
        next = next + 1 < STAGES ? next + 1 : 0;
    }
    ox_cp_async_wait<0>();
}

static __device__ __forceinline__ uint32_t tile_rest(uint32_t total, uint32_t begin) {
    return total - begin < TILE ? total - begin : (uint32_t)TILE;
}

template <typename T, bool ALONG>
static __global__ void __launch_bounds__(THREADS, 2) grouped_mma_rows(const group_rows_args<T> args) {
    const group_tile tile = tile_of<TILE>(args.offsets, args.count, blockIdx.y);
    if (tile.begin >= tile.end) {
        return;
    }
    const uint32_t first = blockIdx.x * TILE, lane = threadIdx.x % OX_WARP;
    const T *const weight = args.weight + (uint64_t)tile.expert * args.depth * args.cols;
    const mma_side left = {(const uint16_t *)(args.in + (uint64_t)tile.begin * args.depth), args.depth,
                           tile_rest((uint32_t)tile.end, (uint32_t)tile.begin), args.depth};
    const mma_side right = {(const uint16_t *)(weight + (ALONG ? (uint64_t)first * args.depth : first)),
                            ALONG ? args.depth : args.cols, tile_rest(args.cols, first), args.depth};
    const mma_place place = place_of();
    float acc[MT][NT][4];
    multiply<T, true, ALONG>(acc, left, right, place);
#pragma unroll
    for (uint32_t i = 0; i < MT * NT * 2; i++) {
        const uint32_t m = i / (NT * 2), n = i / 2 % NT, half = i % 2;
        const uint32_t row = place.row + 16 * m + 8 * half + lane / 4, col = place.col + 8 * n + lane % 4 * 2;
        if (row < left.count && col < right.count) {
            float pair[2] = {acc[m][n][2 * half], acc[m][n][2 * half + 1]};
            if (args.bias != NULL) {
                const T *const bias = args.bias + (uint64_t)tile.expert * args.cols + first + col;
                pair[0] += ox_widen(bias[0]);
                pair[1] += ox_widen(bias[1]);
            }
            *(uint32_t *)(args.out + ((uint64_t)tile.begin + row) * args.cols + first + col) =
                ox_pair<T>(pair[0], pair[1]);
        }
    }
}

/* One side of the gradient of weights: rows of the expert are k. */
template <typename T>
static __device__ __forceinline__ mma_side side_of(const T *at, uint32_t width, uint32_t first, int32_t begin,
                                                   uint32_t depth) {
    return mma_side{(const uint16_t *)(at + (uint64_t)begin * width + first), width, tile_rest(width, first), depth};
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, 2) grouped_mma_weights(const group_weights_args<T> args) {
    const int32_t begin = args.offsets[blockIdx.z];
    const uint32_t depth = (uint32_t)(args.offsets[blockIdx.z + 1] - begin);
    if (depth == 0 && !args.begins) {
        return;
    }
    float acc[MT][NT][4];
    multiply<T, false, false>(acc, side_of(args.a, args.rows, blockIdx.y * TILE, begin, depth),
                           side_of(args.b, args.cols, blockIdx.x * TILE, begin, depth), place_of());
    uint32_t lane = threadIdx.x % OX_WARP;
    ox_renew(lane); /* nothing of where results go is held during the product */
    const mma_place place = place_of();
    float *const dweight = args.dweight + (uint64_t)blockIdx.z * args.rows * args.cols;
#pragma unroll
    for (uint32_t i = 0; i < MT * NT * 2; i++) {
        const uint32_t m = i / (NT * 2), n = i / 2 % NT, half = i % 2;
        const uint32_t row = blockIdx.y * TILE + place.row + 16 * m + 8 * half + lane / 4;
        const uint32_t col = blockIdx.x * TILE + place.col + 8 * n + lane % 4 * 2;
        if (row < args.rows && col < args.cols) {
            float2 *const to = (float2 *)(dweight + (uint64_t)row * args.cols + col);
            const float2 before = args.begins ? make_float2(0.0f, 0.0f) : *to;
            *to = make_float2(before.x + acc[m][n][2 * half], before.y + acc[m][n][2 * half + 1]);
        }
    }
}

static unsigned tiles_of(uint32_t count) {
    return (count + TILE - 1) / TILE;
}

template <typename T>
ox_status ox_grouped_mma_rows(const ox_cuda_queue *queue, const ox_experts &experts, const group_rows_args<T> &args) {
    const ox_launch_shape shape = {dim3(tiles_of(args.cols), group_tiles(experts, TILE)), THREADS,
                                   STAGES * STAGE_BYTES};
    return args.along ? ox_launch_large(grouped_mma_rows<T, true>, queue, shape, args)
                      : ox_launch_large(grouped_mma_rows<T, false>, queue, shape, args);
}

template <typename T>
ox_status ox_grouped_mma_weights(const ox_cuda_queue *queue, const ox_experts &experts,
                                 const group_weights_args<T> &args) {
    const ox_launch_shape shape = {dim3(tiles_of(args.cols), tiles_of(args.rows), experts.count), THREADS,
                                   STAGES * STAGE_BYTES};
    return ox_launch_large(grouped_mma_weights<T>, queue, shape, args);
}

template ox_status ox_grouped_mma_rows(const ox_cuda_queue *queue, const ox_experts &experts,
                                       const group_rows_args<ox_bf16> &args);
template ox_status ox_grouped_mma_rows(const ox_cuda_queue *queue, const ox_experts &experts,
                                       const group_rows_args<ox_f16> &args);
template ox_status ox_grouped_mma_weights(const ox_cuda_queue *queue, const ox_experts &experts,
                                          const group_weights_args<ox_bf16> &args);
template ox_status ox_grouped_mma_weights(const ox_cuda_queue *queue, const ox_experts &experts,
                                          const group_weights_args<ox_f16> &args);
