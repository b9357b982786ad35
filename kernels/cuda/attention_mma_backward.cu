/* Attention's backward pass on the tensor cores, in 16 bits with sums in fp32. A slope is the gradient of a score.
 *
 * There are two kernels. In each a block holds 128 rows of its own in registers and walks the rows of the other side in
 * two stages of 64: one holds queries and adds up their gradient; the other holds keys and values and adds up theirs,
 * over the queries of all heads that share them, head after head. So every sum has one order, whatever the machine does
 * when, without atomics and without partial sums in memory. A warp computes its own rows against a tile, so weights and
 * slopes pass from one GEMM to the next within registers. The price is seven GEMMs instead of five. Five would be
 * enough if all blocks of keys added up the gradient of the queries in memory: in turns, which waits, or in any order,
 * which changes bits. The first kernel also computes dout . out of its queries, and leaves it with their log-sum-exp
 * for the second.
 *
 * Why these sizes, for a head of 128: a warp has 16 rows. Their two operands take 64 registers and, in the kernel of
 * keys, their two gradients take 128; scores and slopes are computed 16 queries at a time, as little more than their 16
 * registers is left. A tile's four GEMMs take 4 * 128 * 64 * 128 multiplications, 4096 cycles at the 1024 per cycle of
 * sm_80, and its fragments 8 * 64 KiB of shared memory, 4096 cycles at 128 bytes; with the own operands in shared
 * memory it would be 4608. Each byte that a block takes from the L2 cache, where queries and output gradients have 512
 * per row, serves 4 * 2 * 128 * 128 / 512 = 256 operations. A head of 64 has room for 32 rows per warp, which halves
 * the reads, except of the values, which then stay in shared memory. */
#include "kernels/cuda/attention_mma.cuh"

template <int DIM> struct backward_layout {
    enum {
        MT = 128 / DIM, WARP_ROWS = 16 * MT, THREADS = MMA_OWN / WARP_ROWS * OX_WARP,
        SECOND = mma_tile<DIM>::STREAM_BYTES, FACTS = 2 * SECOND, STAGE = FACTS + MMA_STREAM * sizeof(row_facts),
        BYTES = 2 * STAGE, VALUES = BYTES, BYTES_BY_KEY = BYTES + mma_tile<DIM>::OWN_BYTES
    };
};

/* Whether the kernel of keys has room for its values in registers. */
template <int DIM, int KIND> struct key_layout {
    enum { HELD = DIM == 128 && KIND != MMA_PART,
           BYTES = HELD ? (int)backward_layout<DIM>::BYTES : (int)backward_layout<DIM>::BYTES_BY_KEY };
};

/* A warp's rows as left operands: queries and output gradients, or keys and values. The second is held in registers or
 * not. */
template <int DIM, bool HELD> struct own_rows {
    uint32_t at[1 + HELD][128 / DIM][DIM / 16][4];
    mma_reader second;
};

/* Loads rows [begin, begin + MMA_OWN) of two matrices, through shared memory. */
template <int DIM, bool HELD>
static __device__ __forceinline__ void take_own(own_rows<DIM, HELD> &own, ox_shared shared, const mma_rows rows[2],
                                                uint32_t begin) {
    using layout = backward_layout<DIM>;
    const uint32_t first = threadIdx.x / OX_WARP * layout::WARP_ROWS;
    const ox_shared second = shared + (HELD ? (int)mma_tile<DIM>::OWN_BYTES : (int)layout::VALUES);
    fetch_rows<DIM, MMA_OWN, layout::THREADS>(shared, rows[0], begin);
    fetch_rows<DIM, MMA_OWN, layout::THREADS>(second, rows[1], begin);
    ox_cp_async_commit();
    ox_cp_async_wait<0>();
    __syncthreads();
    own.second = reader_down<DIM>(second + first * mma_tile<DIM>::ROW_BYTES);
#pragma unroll
    for (uint32_t i = 0; i < (1 + HELD) * layout::MT; i++) {
        const mma_reader reader = reader_down<DIM>((i < layout::MT ? shared : second));
#pragma unroll
        for (uint32_t step = 0; step < DIM / 16; step++) {
            ox_ldmatrix_x4(own.at[i / layout::MT][i % layout::MT][step],
                           read_at<DIM>(reader, first + i % layout::MT * 16, step));
        }
    }
    __syncthreads();
}

/* Multiplies own rows by rows [row, row + 8 NT) of two tiles, the first by the first and the second by the second. */
template <typename T, int DIM, int NT, bool HELD>
static __device__ __forceinline__ void take_products(float scores[128 / DIM][NT][4], float slopes[128 / DIM][NT][4],
                                                     const own_rows<DIM, HELD> &own, const mma_reader tiles[2],
                                                     uint32_t row) {
    enum { MT = 128 / DIM };
#pragma unroll
    for (int i = 0; i < MT * NT * 4; i++) {
        scores[i / (NT * 4)][i / 4 % NT][i % 4] = 0.0f;
        slopes[i / (NT * 4)][i / 4 % NT][i % 4] = 0.0f;
    }
#pragma unroll
    for (uint32_t step = 0; step < DIM / 16; step++) {
        uint32_t second[MT][4];
#pragma unroll
        for (uint32_t m = 0; m < MT && !HELD; m++) {
            ox_ldmatrix_x4(second[m], read_at<DIM>(own.second, 16 * m, step));
        }
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t b[2][4];
            ox_ldmatrix_x4(b[0], read_at<DIM>(tiles[0], row + 8 * n, step));
            ox_ldmatrix_x4(b[1], read_at<DIM>(tiles[1], row + 8 * n, step));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                const uint32_t *const other = HELD ? own.at[HELD][m][step] : second[m];
                ox_mma_16816<T>(scores[m][n], own.at[0][m][step], b[0]);
                ox_mma_16816<T>(scores[m][n + 1], own.at[0][m][step], b[0] + 2);
                ox_mma_16816<T>(slopes[m][n], other, b[1]);
                ox_mma_16816<T>(slopes[m][n + 1], other, b[1] + 2);
            }
        }
    }
}

template <typename T, int DIM, int NT>
static __device__ __forceinline__ void add_products(float acc[128 / DIM][DIM / 8][4],
                                                    const float left[128 / DIM][NT][4], const mma_reader &tile,
                                                    uint32_t row) {
    enum { MT = 128 / DIM };
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
        uint32_t a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            left_operand<T>(a[m], left[m][n], left[m][n + 1]);
        }
        add_rows<T, DIM, MT>(acc, a, tile, row + 8 * n);
    }
}

template <int DIM> static __device__ __forceinline__ void clear(float acc[128 / DIM][DIM / 8][4]) {
#pragma unroll
    for (int i = 0; i < 64; i++) {
        acc[i / (DIM / 2)][i / 4 % (DIM / 8)][i % 4] = 0.0f;
    }
}

template <typename T, int DIM>
static __device__ __forceinline__ void give_scaled(const mma_target &to, uint32_t begin, unsigned char *shared,
                                                   float acc[128 / DIM][DIM / 8][4], float scale) {
#pragma unroll
    for (int i = 0; i < 64; i++) {
        acc[i / (DIM / 2)][i / 4 % (DIM / 8)][i % 4] *= scale;
    }
    give_rows<T, DIM, 128 / DIM>(to, begin, shared, acc);
}

/* As above, to the sums of a part's keys, in float32: rows [begin, ...), which all exist, of one chunk. */
template <int DIM>
static __device__ __forceinline__ void give_key_sums(float *to, uint32_t stride, uint32_t head_dim, bool adds,
                                                     const float acc[128 / DIM][DIM / 8][4], float scale) {
    const uint32_t lane = threadIdx.x % OX_WARP;
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        const int m = i / (DIM / 2), n = i / 4 % (DIM / 8), at = i % 4;
        const uint32_t row = 16 * m + 8 * (at / 2) + lane / 4, col = 8 * n + lane % 4 * 2;
        float2 *const pair = (float2 *)(to + (uint64_t)row * stride + col);
        if (col < head_dim) {
            float2 sum = adds ? *pair : make_float2(0.0f, 0.0f);
            sum.x += acc[m][n][at] * scale;
            sum.y += acc[m][n][at + 1] * scale;
            *pair = sum;
        }
    }
}

/* ---- queries ---------------------------------------------------------------------------------------- */

/* Of the two elements T in each. */
template <typename T> static __device__ __forceinline__ float pair_dot(uint32_t a, uint32_t b) {
    const float low = ox_widen(T{(uint16_t)a}) * ox_widen(T{(uint16_t)b});
    return __fmaf_rn(ox_widen(T{(uint16_t)(a >> 16)}), ox_widen(T{(uint16_t)(b >> 16)}), low);
}

/* What backward needs of rows g and g + 8 of each 16 of the warp; also written for the other kernel. */
template <typename T, int DIM>
static __device__ __forceinline__ void take_facts(row_facts facts[128 / DIM][2], const backward_args<T> &args,
                                                  const own_rows<DIM, true> &own, ox_shared shared, uint32_t begin) {
    using layout = backward_layout<DIM>;
    const att_shape &shape = args.shape;
    const uint32_t lane = threadIdx.x % OX_WARP, first = threadIdx.x / OX_WARP * layout::WARP_ROWS;
    const uint64_t head = (uint64_t)blockIdx.z * shape.heads + blockIdx.x;
    const uint32_t count_dim[2] = {shape.queries, shape.head_dim};
    fetch_rows<DIM, MMA_OWN, layout::THREADS>(shared, rows_of(args.out, blockIdx.z, blockIdx.x, count_dim), begin);
    ox_cp_async_commit();
    ox_cp_async_wait<0>();
    __syncthreads();
    const mma_reader reader = reader_down<DIM>(shared);
#pragma unroll
    for (uint32_t m = 0; m < layout::MT; m++) {
        float sums[2] = {0.0f, 0.0f};
#pragma unroll
        for (uint32_t step = 0; step < DIM / 16; step++) {
            uint32_t out[4];
            ox_ldmatrix_x4(out, read_at<DIM>(reader, first + 16 * m, step));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sums[i % 2] += pair_dot<T>(own.at[1][m][step][i], out[i]);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t query = begin + first + 16 * m + 8 * i + lane / 4;
            const bool is_there = query < shape.queries;
            facts[m][i].lse = is_there ? args.lse[head * shape.queries + query] * MMA_LOG2_E : INFINITY;
            facts[m][i].dout_out = quad_sum(sums[i]);
            if (lane % 4 == 0) {
                args.facts[head * gridDim.y * MMA_OWN + query] = facts[m][i];
            }
        }
    }
    __syncthreads();
}

/* Turns scores into slopes: weight * (dout . value - dout . out), times the slope of a cap, if there is one. */
template <int DIM, int NT, int KIND>
static __device__ __forceinline__ void query_slopes(float slopes[128 / DIM][NT][4],
                                                    float scores[128 / DIM][NT][4],
                                                    const row_facts facts[128 / DIM][2], const att_shape &shape) {
    const float scale_log2 = shape.scale * MMA_LOG2_E;
#pragma unroll
    for (int i = 0; i < 128 / DIM * NT * 4; i++) {
        const int m = i / (NT * 4), n = i / 4 % NT, at = i % 4;
        const float turn = cap_unscaled<KIND>(shape, &scores[m][n][at]);
        const float weight = ox_exp2(__fmaf_rn(scores[m][n][at], scale_log2, -facts[m][at / 2].lse));
        slopes[m][n][at] = weight * (slopes[m][n][at] - facts[m][at / 2].dout_out) * turn;
    }
}

template <int DIM, int NT, int KIND>
static __device__ __forceinline__ void hide_keys(float slopes[128 / DIM][NT][4], const att_shape &shape,
                                                 uint32_t query, uint32_t key) {
    const uint32_t lane = threadIdx.x % OX_WARP;
#pragma unroll
    for (int i = 0; i < 128 / DIM * 2; i++) {
        const uint32_t place = query + 8 * i + lane / 4, there = place < shape.queries ? place : shape.queries - 1;
        const uint32_t first = first_key(shape, blockIdx.z, there);
#pragma unroll
        for (int n = 0; n < NT * 2; n++) {
            const uint32_t at = key + n / 2 * 8 + lane % 4 * 2 + n % 2;
            float *const slope = &slopes[i / 2][n / 2][i % 2 * 2 + n % 2];
            *slope = at >= first && at <= (KIND == MMA_PART ? shape.place + place : place) ? *slope : 0.0f;
        }
    }
}

template <typename T, int DIM, int KIND>
static __global__ void __launch_bounds__(backward_layout<DIM>::THREADS, 128 / DIM)
    attention_mma_dq_kernel(const backward_args<T> args) {
    using layout = backward_layout<DIM>;
    enum { NT = DIM == 64 ? 2 : 4 };
    const att_shape &shape = args.shape;
    const uint32_t kv_head = blockIdx.x / (shape.heads / shape.kv_heads), sequence = blockIdx.z;
    uint32_t head = blockIdx.x;
    const uint32_t begin = (gridDim.y - 1 - blockIdx.y) * MMA_OWN; /* queries with the most keys come first */
    const uint32_t first = begin + threadIdx.x / OX_WARP * layout::WARP_ROWS;
    const uint32_t count_dim[2] = {shape.queries, shape.head_dim};
    const mma_rows ours[2] = {rows_of(args.q, sequence, head, count_dim),
                              rows_of(args.dout, sequence, head, count_dim)};
    const mma_bounds bounds = key_bounds<KIND>(shape, first, layout::WARP_ROWS);
    unsigned char *const bytes = (unsigned char *)ox_dynamic_shared();
    const ox_shared shared = ox_shared_of(bytes);
    own_rows<DIM, true> own;
    row_facts facts[layout::MT][2];
    float acc[layout::MT][DIM / 8][4];
    take_own(own, shared, ours, begin);
    take_facts<T, DIM>(facts, args, own, shared, begin);
    clear<DIM>(acc);
    const uint32_t past = walk_past<KIND>(shape, begin + MMA_OWN);
    uint32_t tile = first_key(shape, sequence, begin) / MMA_STREAM * MMA_STREAM;
    mma_rows keys = keys_of<KIND>(args.k, args.chunks, sequence, kv_head, count_dim, tile);
    mma_rows values = keys_of<KIND>(args.v, args.chunks, sequence, kv_head, count_dim, tile);
    fetch_rows<DIM, MMA_STREAM, layout::THREADS>(shared, keys, tile);
    fetch_rows<DIM, MMA_STREAM, layout::THREADS>(shared + layout::SECOND, values, tile);
    ox_cp_async_commit();
    uint32_t stage = 0;
    for (; tile < past; tile += MMA_STREAM, stage ^= 1) {
        const ox_shared now = shared + stage * layout::STAGE, next = shared + (stage ^ 1) * layout::STAGE;
        if (tile + MMA_STREAM < past) {
            if (KIND == MMA_PART) { /* which may be of another chunk */
                keys = keys_of<KIND>(args.k, args.chunks, sequence, kv_head, count_dim, tile + MMA_STREAM);
                values = keys_of<KIND>(args.v, args.chunks, sequence, kv_head, count_dim, tile + MMA_STREAM);
            }
            fetch_rows<DIM, MMA_STREAM, layout::THREADS>(next, keys, tile + MMA_STREAM);
            fetch_rows<DIM, MMA_STREAM, layout::THREADS>(next + layout::SECOND, values, tile + MMA_STREAM);
        }
        ox_cp_async_commit();
        ox_cp_async_wait<1>();
        __syncthreads(); /* the tile has arrived */
        const mma_sight sight = sight_of(bounds, tile);
        const mma_reader across[2] = {reader_across<DIM>(now), reader_across<DIM>(now + layout::SECOND)};
        const mma_reader down = reader_down<DIM>(now);
#pragma unroll 1
        for (uint32_t row = 0; row < MMA_STREAM && sight != MMA_NONE; row += 8 * NT) {
            float scores[layout::MT][NT][4], slopes[layout::MT][NT][4];
            take_products<T, DIM, NT>(scores, slopes, own, across, row);
            query_slopes<DIM, NT, KIND>(slopes, scores, facts, shape);
            if (sight == MMA_SOME) {
                hide_keys<DIM, NT, KIND>(slopes, shape, first, tile + row);
            }
            add_products<T, DIM, NT>(acc, slopes, down, row);
        }
        __syncthreads(); /* no warp reads the tile any more */
    }
    ox_cp_async_wait<0>();
    if (KIND == MMA_PART) { /* a block that sees no key has waited for nothing */
        __syncthreads();
    }
    ox_renew(head);
    give_scaled<T, DIM>(target_of(args.dq, sequence, head, count_dim), first,
                     bytes + (first - begin) * mma_tile<DIM>::ROW_BYTES, acc, shape.scale);
}

/* ---- keys and values --------------------------------------------------------------------------------- */

/* Where the queries that see a key end; the first is the one at the key's own position, or, of a part, the first behind
 * it that sees it. All lanes of a warp call it together. */
template <int KIND> static __device__ __forceinline__ uint32_t seen_past(const att_shape &shape, uint32_t key) {
    const uint32_t place = place_of<KIND>(shape, 0);
    if (shape.positions == nullptr) {
        return shape.window == 0 || key + shape.window > place + shape.queries
                   ? shape.queries : first_query(place, key + shape.window);
    }
    const uint32_t from = first_query(place, key);
    if (KIND == MMA_PART && (from >= shape.queries || first_key(shape, blockIdx.z, from) > key)) {
        return from < shape.queries ? from : shape.queries;
    }
    uint32_t sees = from, past = shape.queries; /* `sees` falls once: `past` and all after it do not see the key */
    while (past - sees > 1) {
        const uint32_t step = (past - sees + OX_WARP - 1) / OX_WARP;
        const uint32_t probe = sees + (threadIdx.x % OX_WARP + 1) * step;
        uint32_t count = probe < past && first_key(shape, blockIdx.z, probe) <= key ? 1 : 0;
#pragma unroll
        for (int distance = OX_WARP / 2; distance > 0; distance /= 2) {
            count += __shfl_xor_sync(0xffffffffu, count, distance);
        }
        sees += count * step;
        past = past - sees > step ? sees + step : past;
    }
    return past;
}

/* The queries for keys [begin, begin + rows), some of which may not exist. */
template <int KIND>
static __device__ __forceinline__ mma_bounds query_bounds(const att_shape &shape, uint32_t begin, uint32_t rows) {
    const uint32_t place = place_of<KIND>(shape, 0);
    if (begin >= shape.keys) {
        return mma_bounds{0, 0, 0, 0};
    }
    const uint32_t last = (begin + rows < shape.keys ? begin + rows : shape.keys) - 1;
    return mma_bounds{first_query(place, begin), seen_past<KIND>(shape, last),
                      first_query(place, begin + rows - 1), seen_past<KIND>(shape, begin)};
}

/* Turns scores into weights and into slopes, as above; here queries are columns, and the facts about them are
 * in shared memory. */
template <int DIM, int NT, int KIND>
static __device__ __forceinline__ void key_slopes(float slopes[128 / DIM][NT][4], float scores[128 / DIM][NT][4],
                                                  const row_facts *facts, const att_shape &shape) {
    const float scale_log2 = shape.scale * MMA_LOG2_E;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const float4 both = *(const float4 *)(facts + 8 * n + threadIdx.x % 4 * 2);
#pragma unroll
        for (int i = 0; i < 128 / DIM * 4; i++) {
            float *const score = &scores[i / 4][n][i % 4], *const slope = &slopes[i / 4][n][i % 4];
            const float turn = cap_unscaled<KIND>(shape, score);
            *score = ox_exp2(__fmaf_rn(*score, scale_log2, i % 2 == 0 ? -both.x : -both.z));
            *slope = *score * (*slope - (i % 2 == 0 ? both.y : both.w)) * turn;
        }
    }
}

template <int DIM, int NT, int KIND>
static __device__ __forceinline__ void hide_queries(float slopes[128 / DIM][NT][4], float weights[128 / DIM][NT][4],
                                                    const att_shape &shape, uint32_t key, uint32_t query) {
    const uint32_t lane = threadIdx.x % OX_WARP;
#pragma unroll
    for (int n = 0; n < NT * 2; n++) {
        const uint32_t place = query + n / 2 * 8 + lane % 4 * 2 + n % 2;
        const uint32_t first = first_key(shape, blockIdx.z, place < shape.queries ? place : shape.queries - 1);
#pragma unroll
        for (int i = 0; i < 128 / DIM * 2; i++) {
            const uint32_t at = key + 8 * i + lane / 4;
            const bool sees = at >= first && at <= (KIND == MMA_PART ? shape.place + place : place);
            float *const weight = &weights[i / 2][n / 2][i % 2 * 2 + n % 2];
            float *const slope = &slopes[i / 2][n / 2][i % 2 * 2 + n % 2];
            *weight = sees ? *weight : 0.0f;
            *slope = sees ? *slope : 0.0f;
        }
    }
}

/* One tile of queries of one of the heads that share the block's keys; head after head. */
struct query_walk {
    uint32_t head, tile;
};

/* Begins to copy those queries, their output gradients and the facts about them. */
template <typename T, int DIM, int KIND>
static __device__ __forceinline__ void fetch_queries(ox_shared stage, const backward_args<T> &args,
                                                     query_walk at) {
    using layout = backward_layout<DIM>;
    const att_shape &shape = args.shape;
    const uint32_t count_dim[2] = {shape.queries, shape.head_dim};
    fetch_rows<DIM, MMA_STREAM, layout::THREADS>(stage, rows_of(args.q, blockIdx.z, at.head, count_dim), at.tile);
    fetch_rows<DIM, MMA_STREAM, layout::THREADS>(stage + layout::SECOND,
                                                 rows_of(args.dout, blockIdx.z, at.head, count_dim), at.tile);
    if (threadIdx.x < MMA_STREAM / 2) {
        const uint64_t of_head = KIND == MMA_PART ? shape.queries : gridDim.y * MMA_OWN; /* in whole blocks */
        const uint64_t row = ((uint64_t)blockIdx.z * shape.heads + at.head) * of_head + at.tile;
        ox_cp_async_16(stage + layout::FACTS + threadIdx.x * 16, args.facts + row + threadIdx.x * 2, true);
    }
}

/* Gives the gradients of a block of keys: of a part to its sums, else as they are, by way of shared memory. */
template <typename T, int DIM, int KIND>
static __device__ __forceinline__ void give_keys(const backward_args<T> &args, uint32_t kv_head, uint32_t begin,
                                                 unsigned char *bytes, float dk[128 / DIM][DIM / 8][4],
                                                 float dv[128 / DIM][DIM / 8][4]) {
    const att_shape &shape = args.shape;
    const uint32_t sequence = blockIdx.z, count_dim[2] = {shape.keys, shape.head_dim};
    const uint32_t first = begin + threadIdx.x / OX_WARP * backward_layout<DIM>::WARP_ROWS;
    if (KIND == MMA_PART) {
        float *const dk_at = key_row_at(args.dk_sums, args.chunks, sequence, kv_head, shape.head_dim, first);
        float *const dv_at = key_row_at(args.dv_sums, args.chunks, sequence, kv_head, shape.head_dim, first);
        give_key_sums<DIM>(dk_at, args.dk_sums.stride, shape.head_dim, args.adds, dk, shape.scale);
        give_key_sums<DIM>(dv_at, args.dv_sums.stride, shape.head_dim, args.adds, dv, 1.0f);
        return;
    }
    unsigned char *const exit = bytes + (first - begin) * mma_tile<DIM>::ROW_BYTES;
    give_scaled<T, DIM>(target_of(args.dk, sequence, kv_head, count_dim), first, exit, dk, shape.scale);
    give_scaled<T, DIM>(target_of(args.dv, sequence, kv_head, count_dim), first, exit, dv, 1.0f);
}

template <typename T, int DIM, int KIND>
static __global__ void __launch_bounds__(backward_layout<DIM>::THREADS, 128 / DIM)
    attention_mma_dkv_kernel(const backward_args<T> args) {
    using layout = backward_layout<DIM>;
    enum { NT = 2 };
    const att_shape &shape = args.shape;
    const uint32_t sequence = blockIdx.z, begin = blockIdx.y * MMA_OWN;
    uint32_t kv_head = blockIdx.x;
    const uint32_t first = begin + threadIdx.x / OX_WARP * layout::WARP_ROWS;
    const uint32_t count_dim[2] = {shape.keys, shape.head_dim};
    const mma_rows ours[2] = {keys_of<KIND>(args.k, args.chunks, sequence, kv_head, count_dim, begin),
                              keys_of<KIND>(args.v, args.chunks, sequence, kv_head, count_dim, begin)};
    const mma_bounds bounds = query_bounds<KIND>(shape, first, layout::WARP_ROWS);
    const uint32_t past = query_bounds<KIND>(shape, begin, MMA_OWN).any_past;
    const uint32_t from = first_query(place_of<KIND>(shape, 0), begin) / MMA_STREAM * MMA_STREAM;
    const bool unseen = KIND == MMA_PART && from >= past;
    const uint32_t group = shape.heads / shape.kv_heads, heads_past = (kv_head + (unseen ? 0 : 1)) * group;
    if (unseen && args.adds) {
        return;
    }
    unsigned char *const bytes = (unsigned char *)ox_dynamic_shared();
    const ox_shared shared = ox_shared_of(bytes);
    own_rows<DIM, key_layout<DIM, KIND>::HELD> own;
    float dk[layout::MT][DIM / 8][4], dv[layout::MT][DIM / 8][4];
    take_own(own, shared, ours, begin);
    clear<DIM>(dk);
    clear<DIM>(dv);
    uint32_t stage = 0;
    query_walk at = {kv_head * group, from};
    if (!unseen) {
        fetch_queries<T, DIM, KIND>(shared, args, at);
    }
    ox_cp_async_commit();
    while (at.head < heads_past) {
        const ox_shared now = shared + stage * layout::STAGE;
        const bool is_last = at.tile + MMA_STREAM >= past; /* the last tile of its head */
        const query_walk next = {at.head + is_last, is_last ? from : at.tile + MMA_STREAM};
        if (next.head < heads_past) {
            fetch_queries<T, DIM, KIND>(shared + (stage ^ 1) * layout::STAGE, args, next);
        }
        ox_cp_async_commit();
        ox_cp_async_wait<1>();
        __syncthreads(); /* the tile has arrived */
        const mma_sight sight = sight_of(bounds, at.tile);
        const row_facts *const facts = (const row_facts *)(bytes + stage * layout::STAGE + layout::FACTS);
        const mma_reader across[2] = {reader_across<DIM>(now), reader_across<DIM>(now + layout::SECOND)};
        const mma_reader down = reader_down<DIM>(now);
#pragma unroll 1
        for (uint32_t row = 0; row < MMA_STREAM && sight != MMA_NONE; row += 8 * NT) {
            float weights[layout::MT][NT][4], slopes[layout::MT][NT][4];
            take_products<T, DIM, NT>(weights, slopes, own, across, row);
            key_slopes<DIM, NT, KIND>(slopes, weights, facts + row, shape);
            if (sight == MMA_SOME) {
                hide_queries<DIM, NT, KIND>(slopes, weights, shape, first, at.tile + row);
            }
            add_products<T, DIM, NT>(dv, weights, mma_reader{down.row + layout::SECOND, down.chunk_bytes}, row);
            add_products<T, DIM, NT>(dk, slopes, down, row);
        }
        __syncthreads(); /* no warp reads the tile any more */
        at = next;
        stage ^= 1;
    }
    ox_cp_async_wait<0>();
    ox_renew(kv_head);
    give_keys<T, DIM, KIND>(args, kv_head, begin, bytes, dk, dv);
}

template <typename T, int DIM, int KIND>
static ox_status launch_backward(const ox_cuda_queue *queue, const backward_args<T> &args) {
    using layout = backward_layout<DIM>;
    const unsigned blocks = (args.shape.queries + MMA_OWN - 1) / MMA_OWN;
    const unsigned key_blocks = KIND == MMA_PART ? args.shape.keys / MMA_OWN : blocks;
    const ox_launch_shape by_query = {dim3(args.shape.heads, blocks, args.shape.sequences), layout::THREADS,
                                      layout::BYTES};
    const ox_launch_shape by_key = {dim3(args.shape.kv_heads, key_blocks, args.shape.sequences), layout::THREADS,
                                    key_layout<DIM, KIND>::BYTES};
    const ox_status status = ox_launch_large(attention_mma_dq_kernel<T, DIM, KIND>, queue, by_query, args);
    return status == OX_OK ? ox_launch_large(attention_mma_dkv_kernel<T, DIM, KIND>, queue, by_key, args) : status;
}

template <typename T, int DIM>
static ox_status launch_kind(const ox_cuda_queue *queue, const backward_args<T> &args) {
    return args.chunks.count > 0         ? launch_backward<T, DIM, MMA_PART>(queue, args)
           : args.shape.cap != 0.0f ? launch_backward<T, DIM, MMA_CAPS>(queue, args)
                                    : launch_backward<T, DIM, MMA_PLAIN>(queue, args);
}

template <typename T>
ox_status ox_attention_mma_backward(const ox_cuda_queue *queue, const backward_args<T> &args) {
    OX_ASSERT(((uintptr_t)args.q.at | (uintptr_t)args.out.at | (uintptr_t)args.dout.at | (uintptr_t)args.dq.at |
               (uintptr_t)args.facts) % 16 == 0);
    return args.shape.head_dim > 64 ? launch_kind<T, 128>(queue, args) : launch_kind<T, 64>(queue, args);
}

template ox_status ox_attention_mma_backward(const ox_cuda_queue *queue, const backward_args<ox_bf16> &args);
template ox_status ox_attention_mma_backward(const ox_cuda_queue *queue, const backward_args<ox_f16> &args);
