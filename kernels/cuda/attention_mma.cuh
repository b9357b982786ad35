/* Shared by the tensor-core kernels of attention: tiles in shared memory and how a warp reads them, which keys a tile's
 * queries see, and how rows are written.
 *
 * A tile is some rows of one head, DIM elements each; elements past the head's own are zero. The 16 bytes at (row,
 * chunk) are stored at chunk ^ (row % 8): so the eight rows of a matrix that ldmatrix reads, and the eight chunks that
 * neighbouring threads copy, are in different banks. */
#ifndef OX_KERNELS_CUDA_ATTENTION_MMA_CUH
#define OX_KERNELS_CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

/* Rows that a block has for its own, and rows of a tile that it walks. */
enum { MMA_OWN = OX_CUDA_ATTENTION_ROWS, MMA_STREAM = 64 };

/* Inside, weights are powers of two. */
static constexpr float MMA_LOG2_E = 1.4426950408889634f, MMA_LN_2 = 0.6931471805599453f;

/* ---- tiles ------------------------------------------------------------------------------------------ */

template <int DIM> struct mma_tile {
    enum { CHUNKS = DIM / 8, ROW_BYTES = DIM * 2 };
    enum { STREAM_BYTES = MMA_STREAM * ROW_BYTES, OWN_BYTES = MMA_OWN * ROW_BYTES };
};

template <int DIM> static __device__ __forceinline__ uint32_t tile_at(uint32_t row, uint32_t chunk) {
    return row * mma_tile<DIM>::ROW_BYTES + ((chunk ^ (row % 8)) << 4);
}

/* An element of 16 bits, whatever they mean. With plain integers in its place the compiler holds more addresses in
 * registers, and spills some. */
struct mma_element {
    uint16_t bits;
};

/* Rows of one head of one sequence; `count` of them exist. */
struct mma_rows {
    const mma_element *at;
    uint32_t stride, count, head_dim;
};

template <typename T>
static __device__ __forceinline__ mma_rows rows_of(const head_rows<const T> &rows, uint32_t sequence, uint32_t head,
                                                   const uint32_t count_dim[2]) {
    return mma_rows{(const mma_element *)row_at(rows, sequence, head, count_dim[1], 0), rows.stride, count_dim[0],
                    count_dim[1]};
}

/* What a kernel is made for, so that those of most models hold no register for the rest: scores that are capped, and
 * queries that are a part of their sequences (head_rows), capped or not. There a tile of keys is one of one chunk. */
enum mma_kind { MMA_PLAIN, MMA_CAPS, MMA_PART };

/* Keys or values as rows, of a part those of the chunk that has the row `tile` + AHEAD. */
template <int KIND, int AHEAD = 0, typename T>
static __device__ __forceinline__ mma_rows keys_of(const head_rows<const T> &rows, const key_chunks &chunks,
                                                   uint32_t sequence, uint32_t head, const uint32_t count_dim[2],
                                                   uint32_t tile) {
    mma_rows out = rows_of(rows, sequence, head, count_dim);
    if (KIND == MMA_PART) {
        const uint32_t chunk = (tile + AHEAD) / chunks.rows;
        out.at += (int64_t)(chunk_place(chunk, chunks.count) * chunks.stride) -
                  (int64_t)((uint64_t)chunk * chunks.rows * rows.stride);
        out.count = chunks.count * chunks.rows;
    }
    return out;
}

/* The place of a query among the keys. */
template <int KIND> static __device__ __forceinline__ uint32_t place_of(const att_shape &shape, uint32_t query) {
    if (KIND == MMA_PART) {
        query += shape.place;
    }
    return query;
}

/* Where the keys end that the queries before `past` see. */
template <int KIND> static __device__ __forceinline__ uint32_t walk_past(const att_shape &shape, uint32_t past) {
    past = place_of<KIND>(shape, past < shape.queries ? past : shape.queries);
    return KIND == MMA_PART && past > shape.keys ? shape.keys : past;
}

/* Begins to copy rows [begin, begin + ROWS) to a tile, with the whole block; zeros for rows that do not exist. */
template <int DIM, int ROWS, int THREADS>
static __device__ __forceinline__ void fetch_rows(ox_shared tile, const mma_rows &rows, uint32_t begin) {
    enum { STEP = THREADS / mma_tile<DIM>::CHUNKS };
    const uint32_t chunk = threadIdx.x % mma_tile<DIM>::CHUNKS, first = threadIdx.x / mma_tile<DIM>::CHUNKS;
    const uint32_t count = chunk * 8 < rows.head_dim ? rows.count : 0;
    const mma_element *from = rows.at + (uint64_t)(begin + first) * rows.stride + chunk * 8;
    uint32_t step = STEP * rows.stride;
    ox_renew(step); /* otherwise eight addresses would be held in registers */
#pragma unroll
    for (uint32_t i = 0; i < ROWS / STEP; i++) {
        ox_cp_async_16(tile + tile_at<DIM>(first + i * STEP, chunk), from, begin + first + i * STEP < count);
        from += step;
    }
}

/* ---- fragments -------------------------------------------------------------------------------------- */

/* Where a lane reads the four matrices of 16 rows and 16 columns of a tile. */
struct mma_reader {
    ox_shared row;
    uint32_t chunk_bytes;
};

/* Matrices in the order upper left, lower left, upper right, lower right: an A as stored, or, transposed, two B for a
 * tile whose rows are k. */
template <int DIM> static __device__ __forceinline__ mma_reader reader_down(ox_shared tile) {
    const uint32_t lane = threadIdx.x % OX_WARP, row = lane % 16, chunk = lane / 16;
    return mma_reader{tile + row * mma_tile<DIM>::ROW_BYTES, (chunk ^ (row % 8)) << 4};
}

/* Matrices in the order upper left, upper right, lower left, lower right: two B for a tile whose columns are k. */
template <int DIM> static __device__ __forceinline__ mma_reader reader_across(ox_shared tile) {
    const uint32_t lane = threadIdx.x % OX_WARP, row = lane % 8 + lane / 16 * 8, chunk = lane / 8 % 2;
    return mma_reader{tile + row * mma_tile<DIM>::ROW_BYTES, (chunk ^ (row % 8)) << 4};
}

/* For the 16 rows from `row` on, a multiple of 8, and columns [16 step, 16 step + 16). */
template <int DIM>
static __device__ __forceinline__ ox_shared read_at(const mma_reader &reader, uint32_t row, uint32_t step) {
    return reader.row + row * mma_tile<DIM>::ROW_BYTES + (reader.chunk_bytes ^ (step << 5));
}

/* acc (16 rows, DIM) += a (16, 16) * 16 rows of a tile, for MT such a. */
template <typename T, int DIM, int MT>
static __device__ __forceinline__ void add_rows(float acc[MT][DIM / 8][4], const uint32_t a[MT][4],
                                                const mma_reader &tile, uint32_t row) {
#pragma unroll
    for (uint32_t step = 0; step < DIM / 16; step++) {
        uint32_t b[4];
        ox_ldmatrix_x4_trans(b, read_at<DIM>(tile, row, step));
#pragma unroll
        for (int m = 0; m < MT; m++) {
            ox_mma_16816<T>(acc[m][2 * step], a[m], b);
            ox_mma_16816<T>(acc[m][2 * step + 1], a[m], b + 2);
        }
    }
}

/* Turns two neighbouring 16x8 results into the left operand of a GEMM over their 16 columns. */
template <typename T>
static __device__ __forceinline__ void left_operand(uint32_t a[4], const float left[4], const float right[4]) {
    a[0] = ox_pair<T>(left[0], left[1]);
    a[1] = ox_pair<T>(left[2], left[3]);
    a[2] = ox_pair<T>(right[0], right[1]);
    a[3] = ox_pair<T>(right[2], right[3]);
}

/* Combined over the four lanes that hold a row of results; the same in each lane. */
static __device__ __forceinline__ float quad_sum(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}
static __device__ __forceinline__ float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

/* ---- what is seen ----------------------------------------------------------------------------------- */

enum mma_sight { MMA_NONE, MMA_SOME, MMA_ALL };

/* The walked rows: rows [any_from, any_past) concern some of a warp's own rows, rows [all_from, all_past) all of them.
 * The first key that a query sees never falls from one query to the next, so the first and the last own row decide. */
struct mma_bounds {
    uint32_t any_from, any_past, all_from, all_past;
};

static __device__ __forceinline__ mma_sight sight_of(const mma_bounds &bounds, uint32_t tile) {
    if (tile >= bounds.any_past || tile + MMA_STREAM <= bounds.any_from) {
        return MMA_NONE;
    }
    return tile >= bounds.all_from && tile + MMA_STREAM <= bounds.all_past ? MMA_ALL : MMA_SOME;
}

/* The keys for queries [begin, begin + rows), some of which may not exist. */
template <int KIND>
static __device__ __forceinline__ mma_bounds key_bounds(const att_shape &shape, uint32_t begin, uint32_t rows) {
    if (begin >= shape.queries) {
        return mma_bounds{0, 0, 0, 0};
    }
    const uint32_t past = begin + rows < shape.queries ? begin + rows : shape.queries;
    return mma_bounds{first_key(shape, blockIdx.z, begin), place_of<KIND>(shape, past),
                      first_key(shape, blockIdx.z, past - 1), place_of<KIND>(shape, begin + 1)};
}

/* Scores of these kernels are not scaled yet. Caps one, in place, if they are; returns the cap's slope there. */
template <int KIND> static __device__ __forceinline__ float cap_unscaled(const att_shape &shape, float *score) {
    if (KIND == MMA_PLAIN || (KIND == MMA_PART && shape.cap == 0.0f)) {
        return 1.0f;
    }
    const float share = tanhf(*score * (shape.scale / shape.cap));
    *score = share * (shape.cap / shape.scale);
    return 1.0f - share * share;
}

/* ---- leaving ---------------------------------------------------------------------------------------- */

struct mma_target {
    mma_element *at;
    uint32_t stride, count, head_dim;
};

template <typename T>
static __device__ __forceinline__ mma_target target_of(const head_rows<T> &rows, uint32_t sequence, uint32_t head,
                                                       const uint32_t count_dim[2]) {
    return mma_target{(mma_element *)row_at(rows, sequence, head, count_dim[1], 0), rows.stride, count_dim[0],
                      count_dim[1]};
}

/* Writes a warp's 16 MT rows of results to rows [begin, ...) of the target, through as many rows of the warp's own
 * shared memory, so that they are written 16 bytes at a time. */
template <typename T, int DIM, int MT>
static __device__ __forceinline__ void give_rows(const mma_target &to, uint32_t begin, unsigned char *shared,
                                                 const float acc[MT][DIM / 8][4]) {
    const uint32_t lane = threadIdx.x % OX_WARP;
#pragma unroll
    for (uint32_t m = 0; m < MT; m++) {
#pragma unroll
        for (uint32_t n = 0; n < DIM / 8; n++) {
            unsigned char *const at = shared + tile_at<DIM>(16 * m + lane / 4, n) + lane % 4 * 4;
            *(uint32_t *)at = ox_pair<T>(acc[m][n][0], acc[m][n][1]);
            *(uint32_t *)(at + 8 * mma_tile<DIM>::ROW_BYTES) = ox_pair<T>(acc[m][n][2], acc[m][n][3]);
        }
    }
    __syncwarp();
    enum { CHUNKS = mma_tile<DIM>::CHUNKS, STEP = OX_WARP / CHUNKS };
    const uint32_t chunk = lane % CHUNKS;
#pragma unroll
    for (uint32_t i = 0; i < 16 * MT / STEP; i++) {
        const uint32_t row = lane / CHUNKS + i * STEP;
        if (begin + row < to.count && chunk * 8 < to.head_dim) {
            *(uint4 *)(to.at + (uint64_t)(begin + row) * to.stride + chunk * 8) =
                *(const uint4 *)(shared + tile_at<DIM>(row, chunk));
        }
    }
    __syncwarp();
}

/* ---- the operations --------------------------------------------------------------------------------- */

/* Whether the kernels take heads of that size; rows then begin on 16 bytes if the tensor does. For backward, `facts`
 * holds (sequences, heads, queries rounded up to MMA_OWN). The log is to base 2 there: a weight is exp2(score * scale *
 * log2 e - lse). */
static inline bool ox_attention_mma_takes(uint32_t head_dim) {
    return head_dim % 16 == 0 && head_dim <= 128;
}
/* Of bfloat16 and halves. */
template <typename T>
OX_MUST ox_status ox_attention_mma_forward(const ox_cuda_queue *queue, const forward_args<T> &args);
template <typename T>
OX_MUST ox_status ox_attention_mma_backward(const ox_cuda_queue *queue, const backward_args<T> &args);

#endif
