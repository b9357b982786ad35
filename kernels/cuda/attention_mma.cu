/* Attention's forward pass on the tensor cores, in 16 bits with sums in fp32: the structure of FlashAttention-2 (Dao,
 * arXiv 2307.08691). A block has 128 queries of one head and a warp 32 of them. Their outputs stay in registers while
 * the block walks keys and values in tiles of 64. Copies overlap with computing: the tile's values arrive while its
 * scores are computed, the next keys while values are added.
 *
 * Why these sizes, for a head of 128: each byte of keys and values that a block takes from the L2 cache serves 128
 * operations (4 * 128 * 128 operations for each key's 512 bytes), so 400 Tflop/s take 3.1 TB/s of it. Within the
 * processor a tile's GEMMs take 2 * 128 * 64 * 128 multiplications, 2048 cycles at the 1024 per cycle of sm_80, and its
 * fragments 160 KiB of shared memory, 1280 cycles at 128 bytes; with 16 queries per warp instead of 32 it would be 2304
 * cycles, and shared memory the limit. 32 queries take 128 registers for outputs and 64 for scores, which leaves enough
 * for the rest below 255; queries therefore stay in shared memory. With 64 KiB of that and 128 threads, two blocks
 * share a processor, so that one computes weights while the other multiplies. */
#include "kernels/cuda/attention_mma.cuh"

enum { WARPS = 4, THREADS = WARPS * OX_WARP, MT = 2, WARP_ROWS = 16 * MT, NT = MMA_STREAM / 8 };

template <int DIM> struct forward_layout {
    enum { KEYS = mma_tile<DIM>::OWN_BYTES, VALUES = KEYS + mma_tile<DIM>::STREAM_BYTES,
           BYTES = VALUES + mma_tile<DIM>::STREAM_BYTES };
};

/* For rows g and g + 8 of each 16: outputs so far, not yet divided by the sum of weights; that sum; and the shift that
 * is subtracted from scores, in powers of two, before they become weights. */
template <int DIM> struct running {
    float out[MT][DIM / 8][4];
    float shift[MT][2], sum[MT][2];
};

template <typename T, int DIM>
static __device__ __forceinline__ void take_scores(float scores[MT][NT][4], const mma_reader &queries,
                                                   const mma_reader &keys) {
#pragma unroll
    for (int i = 0; i < MT * NT * 4; i++) {
        scores[i / (NT * 4)][i / 4 % NT][i % 4] = 0.0f;
    }
#pragma unroll
    for (uint32_t step = 0; step < DIM / 16; step++) {
        uint32_t a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            ox_ldmatrix_x4(a[m], read_at<DIM>(queries, 16 * m, step));
        }
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t b[4];
            ox_ldmatrix_x4(b, read_at<DIM>(keys, 8 * n, step));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                ox_mma_16816<T>(scores[m][n], a[m], b);
                ox_mma_16816<T>(scores[m][n + 1], a[m], b + 2);
            }
        }
    }
}

template <int KIND>
static __device__ __forceinline__ void cap_scores(float scores[MT][NT][4], const att_shape &shape) {
#pragma unroll
    for (int i = 0; i < MT * NT * 4; i++) {
        cap_unscaled<KIND>(shape, &scores[i / (NT * 4)][i / 4 % NT][i % 4]);
    }
}

/* Sets scores of keys that a query does not see to -infinity. */
template <int KIND>
static __device__ __forceinline__ void hide(float scores[MT][NT][4], const att_shape &shape, uint32_t query,
                                            uint32_t key) {
    const uint32_t lane = threadIdx.x % OX_WARP;
#pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        const uint32_t place = query + 8 * i + lane / 4, there = place < shape.queries ? place : shape.queries - 1;
        const uint32_t first = first_key(shape, blockIdx.z, there);
#pragma unroll
        for (int n = 0; n < NT * 2; n++) {
            const uint32_t at = key + n / 2 * 8 + lane % 4 * 2 + n % 2;
            float *const score = &scores[i / 2][n / 2][i % 2 * 2 + n % 2];
            *score = at >= first && at <= (KIND == MMA_PART ? shape.place + place : place) ? *score : -INFINITY;
        }
    }
}

/* A row's shift follows its largest score only when that exceeds it by more than this many powers of two. Weights then
 * stay below 2^8, and few tiles make earlier sums be rescaled. */
enum { SHIFT_SLACK = 8 };

template <int DIM>
static __device__ __forceinline__ void follow(running<DIM> &state, const float scores[MT][NT][4], float scale_log2) {
    float kept[MT][2];
    bool stays = true;
#pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        float *const shift = &state.shift[i / 2][i % 2], max = -INFINITY;
#pragma unroll
        for (int n = 0; n < NT * 2; n++) {
            max = fmaxf(max, scores[i / 2][n / 2][i % 2 * 2 + n % 2]);
        }
        max = quad_max(max) * scale_log2;
        const bool left_behind = max > *shift + SHIFT_SLACK;
        kept[i / 2][i % 2] = left_behind ? ox_exp2(*shift - max) : 1.0f;
        *shift = left_behind ? max : *shift;
        stays = stays && !left_behind;
    }
    if (__any_sync(0xffffffffu, !stays)) {
#pragma unroll
        for (int i = 0; i < MT * 2; i++) {
            state.sum[i / 2][i % 2] *= kept[i / 2][i % 2];
#pragma unroll
            for (int d = 0; d < DIM / 8; d++) {
                state.out[i / 2][d][i % 2 * 2] *= kept[i / 2][i % 2];
                state.out[i / 2][d][i % 2 * 2 + 1] *= kept[i / 2][i % 2];
            }
        }
    }
}

/* Turns scores into weights, 16 keys at a time, adds the weights up, and adds the values weighted by them. A row that
 * has seen no key yet has no shift; any shift does for weights of 0. */
template <typename T, int DIM>
static __device__ __forceinline__ void add_values(running<DIM> &state, float scores[MT][NT][4],
                                                  const mma_reader &values, float scale_log2) {
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
        uint32_t a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float given = state.shift[m][i / 2 % 2], shift = given == -INFINITY ? 0.0f : given;
                float *const score = &scores[m][n + i / 4][i % 4];
                *score = ox_exp2(__fmaf_rn(*score, scale_log2, -shift));
                state.sum[m][i / 2 % 2] += *score; /* sums only this lane's keys */
            }
            left_operand<T>(a[m], scores[m][n], scores[m][n + 1]);
        }
        add_rows<T, DIM, MT>(state.out, a, values, 8 * n);
    }
}

/* Divides by the sums and writes the rows' log of the sum of exponentials. */
template <typename T, int DIM>
static __device__ __forceinline__ void finish(running<DIM> &state, const forward_args<T> &args, uint32_t query) {
    const uint32_t lane = threadIdx.x % OX_WARP;
    float *const lse = args.lse + ((uint64_t)blockIdx.z * args.shape.heads + blockIdx.x) * args.shape.queries;
#pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        const int m = i / 2, half = i % 2 * 2;
        const float sum = quad_sum(state.sum[m][i % 2]), share = 1.0f / sum;
        const uint32_t place = query + 8 * i + lane / 4;
        if (lane % 4 == 0 && place < args.shape.queries) {
            lse[place] = __fmaf_rn(state.shift[m][i % 2], MMA_LN_2, logf(sum));
        }
#pragma unroll
        for (int d = 0; d < DIM / 8; d++) {
            state.out[m][d][half] *= share;
            state.out[m][d][half + 1] *= share;
        }
    }
}

template <int DIM> static __device__ __forceinline__ void begin_running(running<DIM> &state) {
#pragma unroll
    for (int i = 0; i < MT * DIM / 2; i++) {
        state.out[i / (DIM / 2)][i / 4 % (DIM / 8)][i % 4] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        state.shift[i / 2][i % 2] = -INFINITY;
        state.sum[i / 2][i % 2] = 0.0f;
    }
}

template <typename T, int DIM, int KIND>
static __global__ void __launch_bounds__(THREADS, 2) attention_mma_forward_kernel(const forward_args<T> args) {
    using layout = forward_layout<DIM>;
    const att_shape &shape = args.shape;
    const uint32_t begin = (gridDim.y - 1 - blockIdx.y) * MMA_OWN; /* queries with the most keys come first */
    const uint32_t past = walk_past<KIND>(shape, begin + MMA_OWN);
    const uint32_t own = threadIdx.x / OX_WARP * WARP_ROWS, count_dim[2] = {shape.queries, shape.head_dim};
    uint32_t kv_head = blockIdx.x / (shape.heads / shape.kv_heads);
    const mma_bounds bounds = key_bounds<KIND>(shape, begin + own, WARP_ROWS);
    const float scale_log2 = shape.scale * MMA_LOG2_E;
    unsigned char *const bytes = (unsigned char *)ox_dynamic_shared();
    const ox_shared shared = ox_shared_of(bytes);
    mma_reader down = reader_down<DIM>(shared), across = reader_across<DIM>(shared + layout::KEYS);
    running<DIM> state;
    begin_running(state);
    uint32_t tile = first_key(shape, blockIdx.z, begin) / MMA_STREAM * MMA_STREAM;
    fetch_rows<DIM, MMA_OWN, THREADS>(shared, rows_of(args.q, blockIdx.z, blockIdx.x, count_dim), begin);
    fetch_rows<DIM, MMA_STREAM, THREADS>(
        shared + layout::KEYS, keys_of<KIND>(args.k, args.chunks, blockIdx.z, kv_head, count_dim, tile), tile);
    ox_cp_async_commit();
    for (; tile < past; tile += MMA_STREAM) {
        ox_renew(kv_head);
        ox_renew(down.chunk_bytes);
        ox_renew(across.chunk_bytes);
        ox_renew(across.row);
        const mma_rows keys = keys_of<KIND, MMA_STREAM>(args.k, args.chunks, blockIdx.z, kv_head, count_dim, tile);
        const mma_rows values = keys_of<KIND>(args.v, args.chunks, blockIdx.z, kv_head, count_dim, tile);
        ox_cp_async_wait<0>();
        __syncthreads(); /* the keys have arrived, and no warp adds values of the tile before any more */
        fetch_rows<DIM, MMA_STREAM, THREADS>(shared + layout::VALUES, values, tile);
        ox_cp_async_commit();
        float scores[MT][NT][4];
        take_scores<T, DIM>(scores, mma_reader{down.row + own * mma_tile<DIM>::ROW_BYTES, down.chunk_bytes}, across);
        ox_cp_async_wait<0>();
        __syncthreads(); /* the values have arrived, and no warp reads these keys any more */
        if (tile + MMA_STREAM < past) {
            fetch_rows<DIM, MMA_STREAM, THREADS>(shared + layout::KEYS, keys, tile + MMA_STREAM);
            ox_cp_async_commit();
        }
        if (KIND != MMA_PLAIN) {
            cap_scores<KIND>(scores, shape);
        }
        if (tile < bounds.all_from || tile + MMA_STREAM > bounds.all_past) {
            hide<KIND>(scores, shape, begin + own, tile);
        }
        follow(state, scores, scale_log2);
        add_values<T>(state, scores, mma_reader{down.row + layout::VALUES, down.chunk_bytes}, scale_log2);
    }
    if (KIND == MMA_PART) { /* a block that sees no key has waited for nothing */
        ox_cp_async_wait<0>();
        __syncthreads();
    }
    finish(state, args, begin + own);
    give_rows<T, DIM, MT>(target_of(args.out, blockIdx.z, blockIdx.x, count_dim), begin + own,
                       bytes + own * mma_tile<DIM>::ROW_BYTES, state.out);
}

template <typename T, int DIM>
static ox_status launch(const ox_cuda_queue *queue, const ox_launch_shape &shape, const forward_args<T> &args) {
    return args.chunks.count > 0 ? ox_launch_large(attention_mma_forward_kernel<T, DIM, MMA_PART>, queue, shape, args)
           : args.shape.cap != 0.0f
               ? ox_launch_large(attention_mma_forward_kernel<T, DIM, MMA_CAPS>, queue, shape, args)
               : ox_launch_large(attention_mma_forward_kernel<T, DIM, MMA_PLAIN>, queue, shape, args);
}

template <typename T>
ox_status ox_attention_mma_forward(const ox_cuda_queue *queue, const forward_args<T> &args) {
    OX_ASSERT(((uintptr_t)args.q.at | (uintptr_t)args.k.at | (uintptr_t)args.out.at) % 16 == 0);
    const bool is_wide = args.shape.head_dim > 64;
    const ox_launch_shape shape = {
        dim3(args.shape.heads, (args.shape.queries + MMA_OWN - 1) / MMA_OWN, args.shape.sequences), THREADS,
        is_wide ? (size_t)forward_layout<128>::BYTES : (size_t)forward_layout<64>::BYTES};
    return is_wide ? launch<T, 128>(queue, shape, args) : launch<T, 64>(queue, shape, args);
}

template ox_status ox_attention_mma_forward(const ox_cuda_queue *queue, const forward_args<ox_bf16> &args);
template ox_status ox_attention_mma_forward(const ox_cuda_queue *queue, const forward_args<ox_f16> &args);
