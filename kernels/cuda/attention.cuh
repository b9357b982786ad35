/* Shared by attention's kernels: where queries, keys and values lie, and which keys a query sees. */
#ifndef OX_KERNELS_CUDA_ATTENTION_CUH
#define OX_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/kernel.cuh"

/* A warp has one row. A block has some rows, and a tile of the rows they are multiplied with in shared memory. */
enum { ATT_WARPS = 8, ATT_TILE = OX_WARP, ATT_DIM_MAX = 256, ATT_PER_LANE = ATT_DIM_MAX / OX_WARP };

/* Rows of one head: sequence and head give the base, rows are `stride` elements apart. */
template <typename T> struct head_rows {
    T *at;
    uint64_t sequence_stride; /* elements between sequences */
    uint32_t stride;
};

template <typename T>
static __device__ __forceinline__ T *row_at(const head_rows<T> &rows, uint32_t sequence, uint32_t head,
                                            uint32_t head_dim, uint32_t row) {
    return rows.at + sequence * rows.sequence_stride + (uint64_t)row * rows.stride + (uint64_t)head * head_dim;
}

/* Keys and values of a sequence may lie in chunks, of which chunk t lies behind chunk `count` - 1 - t, for t from half
 * of them on; sequence_stride is then between the sequences' parts of a chunk. */
struct key_chunks {
    uint32_t count, rows; /* 0: keys lie one after the other; rows of a sequence in a chunk */
    uint64_t stride;      /* elements between chunks */
};

/* How many chunks lie before a chunk. */
static __device__ __forceinline__ uint32_t chunk_place(uint32_t chunk, uint32_t count) {
    const uint32_t back = count - 1 - chunk;
    return chunk < back ? 2 * chunk : 2 * back + 1;
}

template <typename T>
static __device__ __forceinline__ T *key_row_at(const head_rows<T> &rows, const key_chunks &chunks, uint32_t sequence,
                                                uint32_t head, uint32_t head_dim, uint32_t row) {
    if (chunks.count == 0) {
        return row_at(rows, sequence, head, head_dim, row);
    }
    return row_at(rows, sequence, head, head_dim, row % chunks.rows) +
           chunk_place(row / chunks.rows, chunks.count) * chunks.stride;
}

struct att_shape {
    uint32_t sequences;
    uint32_t queries, keys; /* per sequence */
    uint32_t place;         /* position of the first query among the keys */
    uint32_t heads, kv_heads, head_dim, window;
    float scale, cap;         /* of scores; of those that are scaled, 0: none */
    const int32_t *positions; /* (sequences * queries) or NULL: one document */
};

/* A scaled score, capped; and the cap's slope there, by which the gradient of the score is multiplied. */
static __device__ __forceinline__ float capped(const att_shape &shape, float score) {
    return shape.cap == 0.0f ? score : shape.cap * tanhf(score / shape.cap);
}
static __device__ __forceinline__ float cap_slope(const att_shape &shape, float capped_score) {
    const float share = shape.cap == 0.0f ? 0.0f : capped_score / shape.cap;
    return 1.0f - share * share;
}

/* What backward needs of a query besides its rows. */
struct row_facts {
    float lse, dout_out; /* log of the sum of exponentials, and dout . out */
};

template <typename T> struct forward_args {
    att_shape shape;
    head_rows<const T> q, k, v;
    head_rows<T> out;
    float *lse; /* (sequences, heads, queries) or NULL */
    key_chunks chunks;
};

template <typename T> struct backward_args {
    att_shape shape;
    head_rows<const T> q, k, v, out, dout;
    head_rows<T> dq, dk, dv;
    const float *lse;
    row_facts *facts; /* scratch; for the tensor-core kernels only */
    key_chunks chunks;
    head_rows<float> dk_sums, dv_sums; /* of a part of the queries, in the place of dk and dv */
    bool adds;                         /* to these */
};

/* The first key that a query sees; the last is the one at its own position. */
static __device__ __forceinline__ uint32_t first_key(const att_shape &shape, uint32_t sequence, uint32_t query) {
    const uint32_t place = shape.place + query;
    uint32_t first = 0;
    if (shape.positions != nullptr) {
        first = place - (uint32_t)shape.positions[(uint64_t)sequence * shape.queries + query];
    }
    if (shape.window > 0 && place + 1 > shape.window && place + 1 - shape.window > first) {
        first = place + 1 - shape.window;
    }
    return first;
}

/* Where the keys end that a query sees: behind the one at its own position, or with the keys that are there. */
static __device__ __forceinline__ uint32_t keys_past(const att_shape &shape, uint32_t query) {
    const uint32_t past = shape.place + query + 1;
    return past < shape.keys ? past : shape.keys;
}

/* The tile of the first key that any of some neighbouring queries sees. */
static __device__ __forceinline__ uint32_t first_tile(const att_shape &shape, uint32_t sequence, uint32_t query,
                                                      uint32_t last) {
    uint32_t first = first_key(shape, sequence, query);
    for (uint32_t i = query + 1; i <= last; i++) {
        const uint32_t other = first_key(shape, sequence, i);
        first = other < first ? other : first;
    }
    return first / ATT_TILE * ATT_TILE;
}

/* A head's floats of one row, spread over the lanes: lane, lane + 32, ... */
template <typename T>
static __device__ __forceinline__ void take_row(float out[ATT_PER_LANE], const T *row, uint32_t head_dim,
                                                bool is_there) {
#pragma unroll
    for (uint32_t i = 0; i < ATT_PER_LANE; i++) {
        const uint32_t col = threadIdx.x % OX_WARP + i * OX_WARP;
        out[i] = is_there && col < head_dim ? ox_widen(row[col]) : 0.0f;
    }
}

template <typename T>
static __device__ __forceinline__ void give_row(T *row, const float in[ATT_PER_LANE], uint32_t head_dim) {
#pragma unroll
    for (uint32_t i = 0; i < ATT_PER_LANE; i++) {
        const uint32_t col = threadIdx.x % OX_WARP + i * OX_WARP;
        if (col < head_dim) {
            ox_narrow(in[i], &row[col]);
        }
    }
}

/* As above, added to what is there where `adds`. */
static __device__ __forceinline__ void give_sums(float *row, const float in[ATT_PER_LANE], uint32_t head_dim,
                                                 bool adds) {
#pragma unroll
    for (uint32_t i = 0; i < ATT_PER_LANE; i++) {
        const uint32_t col = threadIdx.x % OX_WARP + i * OX_WARP;
        if (col < head_dim) {
            row[col] = adds ? row[col] + in[i] : in[i];
        }
    }
}

/* The first of `queries` queries at or behind the place of a key, where the first is at `place`. */
static __device__ __forceinline__ uint32_t first_query(uint32_t place, uint32_t key) {
    return key > place ? key - place : 0;
}

/* Rows of a tile are one float further apart than they are long, so that the lanes of a warp, each at its own row, use
 * different banks. */
static __device__ __forceinline__ uint32_t tile_stride(uint32_t head_dim) {
    return head_dim + 1;
}

/* Copies rows [begin, begin + ATT_TILE) of a head to shared memory, with the whole block, N elements at a time; zeros
 * past `count`. */
template <typename T, int N>
static __device__ __forceinline__ void load_tile_by(float *tile, const head_rows<const T> &rows,
                                                    const key_chunks &chunks, uint32_t sequence, uint32_t head,
                                                    const uint32_t begin_count_dim[3]) {
    const uint32_t begin = begin_count_dim[0], count = begin_count_dim[1], head_dim = begin_count_dim[2];
    const uint32_t packs = head_dim / N;
    for (uint32_t i = threadIdx.x; i < ATT_TILE * packs; i += blockDim.x) {
        const uint32_t row = i / packs, col = i % packs * N;
        float values[N] = {};
        if (begin + row < count) {
            ox_load<T, N>(values, key_row_at(rows, chunks, sequence, head, head_dim, begin + row) + col);
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            tile[row * tile_stride(head_dim) + col + k] = values[k];
        }
    }
}

template <typename T>
static __device__ void load_tile(float *tile, const head_rows<const T> &rows, const key_chunks &chunks,
                                 uint32_t sequence, uint32_t head, const uint32_t begin_count_dim[3]) {
    enum { N = ox_wide<T>::COUNT };
    const bool is_wide = (uintptr_t)rows.at % 16 == 0 && rows.sequence_stride % N == 0 && rows.stride % N == 0 &&
                         begin_count_dim[2] % N == 0;
    if (is_wide) {
        load_tile_by<T, N>(tile, rows, chunks, sequence, head, begin_count_dim);
    } else {
        load_tile_by<T, 1>(tile, rows, chunks, sequence, head, begin_count_dim);
    }
}

/* Copies a row that is spread over the lanes to the warp's part of shared memory. */
static __device__ __forceinline__ void spread(float *to, const float row[ATT_PER_LANE], uint32_t head_dim) {
#pragma unroll
    for (uint32_t i = 0; i < ATT_PER_LANE; i++) {
        const uint32_t col = threadIdx.x % OX_WARP + i * OX_WARP;
        if (col < head_dim) {
            to[col] = row[i];
        }
    }
    __syncwarp();
}

static __device__ __forceinline__ float dot(const float *a, const float *b, uint32_t count) {
    float sum = 0.0f;
    for (uint32_t i = 0; i < count; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* acc += sum over the tile's rows of weight(row) * row; every lane holds the weight of one row. */
static __device__ __forceinline__ void add_weighted(float acc[ATT_PER_LANE], float weight, const float *tile,
                                                    uint32_t head_dim) {
    for (uint32_t row = 0; row < ATT_TILE; row++) {
        const float share = __shfl_sync(0xffffffffu, weight, (int)row);
#pragma unroll
        for (uint32_t i = 0; i < ATT_PER_LANE; i++) {
            const uint32_t col = threadIdx.x % OX_WARP + i * OX_WARP;
            if (col < head_dim) {
                acc[i] += share * tile[row * tile_stride(head_dim) + col];
            }
        }
    }
}

#endif
