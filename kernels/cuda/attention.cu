/* Attention in plain arithmetic: the device's reference, for fp32, for head sizes that the tensor-core kernels
 * (attention_mma.cuh) do not take, and for generating text. Keys are walked in tiles with a running maximum and sum
 * (Milakov & Gimelshein 1805.02867; Dao et al. 2205.14135); backward recomputes every score from the row's log of the
 * sum. The gradient of the queries and those of keys and values come from two kernels; in each, a block owns the rows
 * that it adds to, so that sums have one order. */
#include "kernels/cuda/attention_mma.cuh"

static size_t shared_bytes(uint32_t head_dim, unsigned tiles, unsigned rows_per_warp) {
    return (tiles * ATT_TILE * (head_dim + 1) + ATT_WARPS * rows_per_warp * head_dim) * sizeof(float);
}

template <typename T> static __global__ void attention_forward_kernel(forward_args<T> args) {
    const att_shape &shape = args.shape;
    const uint32_t dim = shape.head_dim, lane = threadIdx.x % OX_WARP, warp = threadIdx.x / OX_WARP;
    const uint32_t head = blockIdx.y, sequence = blockIdx.z, kv_head = head / (shape.heads / shape.kv_heads);
    float *const keys = (float *)ox_dynamic_shared(), *const values = keys + ATT_TILE * tile_stride(dim);
    float *const own = values + ATT_TILE * tile_stride(dim) + warp * dim;
    const uint32_t begin = blockIdx.x * ATT_WARPS, query = begin + warp;
    const uint32_t last = begin + ATT_WARPS < shape.queries ? begin + ATT_WARPS - 1 : shape.queries - 1;
    const bool is_there = query < shape.queries;
    const uint32_t first = is_there ? first_key(shape, sequence, query) : 0;
    float row[ATT_PER_LANE], acc[ATT_PER_LANE] = {}, max = -INFINITY, sum = 0.0f;
    take_row(row, row_at(args.q, sequence, head, dim, is_there ? query : last), dim, is_there);
    spread(own, row, dim);
    for (uint32_t tile = first_tile(shape, sequence, begin, last); tile < keys_past(shape, last); tile += ATT_TILE) {
        const uint32_t where[3] = {tile, shape.keys, dim};
        __syncthreads();
        load_tile(keys, args.k, args.chunks, sequence, kv_head, where);
        load_tile(values, args.v, args.chunks, sequence, kv_head, where);
        __syncthreads();
        const uint32_t key = tile + lane;
        const bool sees = is_there && key >= first && key < keys_past(shape, query);
        const float score =
            sees ? capped(shape, shape.scale * dot(own, keys + lane * tile_stride(dim), dim)) : -INFINITY;
        const float tile_max = ox_warp_max(score), new_max = fmaxf(max, tile_max);
        const float kept = new_max == -INFINITY ? 1.0f : expf(max - new_max);
        const float weight = sees ? expf(score - new_max) : 0.0f;
        sum = sum * kept + ox_warp_sum(weight);
        for (uint32_t i = 0; i < ATT_PER_LANE; i++) {
            acc[i] *= kept;
        }
        add_weighted(acc, weight, values, dim);
        max = new_max;
    }
    for (uint32_t i = 0; i < ATT_PER_LANE; i++) {
        acc[i] /= sum;
    }
    if (is_there) {
        give_row(row_at(args.out, sequence, head, dim, query), acc, dim);
        if (args.lse != nullptr && lane == 0) {
            args.lse[((uint64_t)sequence * shape.heads + head) * shape.queries + query] = max + logf(sum);
        }
    }
}

/* ---- backward --------------------------------------------------------------------------------------- */

/* The gradient of a score is weight * (dout . value - dout . out), times the scale. */
template <typename T>
static __device__ row_facts facts_of(const backward_args<T> &args, uint32_t sequence, uint32_t head, uint32_t query) {
    const uint32_t dim = args.shape.head_dim;
    float out[ATT_PER_LANE], dout[ATT_PER_LANE], sum = 0.0f;
    take_row(out, row_at(args.out, sequence, head, dim, query), dim, true);
    take_row(dout, row_at(args.dout, sequence, head, dim, query), dim, true);
    for (uint32_t i = 0; i < ATT_PER_LANE; i++) {
        sum += out[i] * dout[i];
    }
    return row_facts{args.lse[((uint64_t)sequence * args.shape.heads + head) * args.shape.queries + query],
                     ox_warp_sum(sum)};
}

template <typename T> static __global__ void attention_dq_kernel(backward_args<T> args) {
    const att_shape &shape = args.shape;
    const uint32_t dim = shape.head_dim, lane = threadIdx.x % OX_WARP, warp = threadIdx.x / OX_WARP;
    const uint32_t head = blockIdx.y, sequence = blockIdx.z, kv_head = head / (shape.heads / shape.kv_heads);
    float *const keys = (float *)ox_dynamic_shared(), *const values = keys + ATT_TILE * tile_stride(dim);
    float *const own_q = values + ATT_TILE * tile_stride(dim) + warp * 2 * dim, *const own_dout = own_q + dim;
    const uint32_t begin = blockIdx.x * ATT_WARPS, query = begin + warp;
    const uint32_t last = begin + ATT_WARPS < shape.queries ? begin + ATT_WARPS - 1 : shape.queries - 1;
    const bool is_there = query < shape.queries;
    const uint32_t first = is_there ? first_key(shape, sequence, query) : 0, safe = is_there ? query : last;
    const row_facts facts = facts_of(args, sequence, head, safe);
    float row[ATT_PER_LANE], acc[ATT_PER_LANE] = {};
    take_row(row, row_at(args.q, sequence, head, dim, safe), dim, is_there);
    spread(own_q, row, dim);
    take_row(row, row_at(args.dout, sequence, head, dim, safe), dim, is_there);
    spread(own_dout, row, dim);
    for (uint32_t tile = first_tile(shape, sequence, begin, last); tile < keys_past(shape, last); tile += ATT_TILE) {
        const uint32_t where[3] = {tile, shape.keys, dim};
        __syncthreads();
        load_tile(keys, args.k, args.chunks, sequence, kv_head, where);
        load_tile(values, args.v, args.chunks, sequence, kv_head, where);
        __syncthreads();
        const uint32_t key = tile + lane;
        float slope = 0.0f;
        if (is_there && key >= first && key < keys_past(shape, query)) {
            const float score = capped(shape, shape.scale * dot(own_q, keys + lane * tile_stride(dim), dim));
            const float weight = expf(score - facts.lse) * cap_slope(shape, score);
            slope = shape.scale * weight * (dot(own_dout, values + lane * tile_stride(dim), dim) - facts.dout_out);
        }
        add_weighted(acc, slope, keys, dim);
    }
    if (is_there) {
        give_row(row_at(args.dq, sequence, head, dim, query), acc, dim);
    }
}

/* Takes one tile of queries, and of the gradients of their outputs, against the warp's key. */
struct key_row {
    const float *key, *value; /* in shared memory */
    uint32_t place;
    bool is_there;
};

template <typename T>
static __device__ void add_queries(const backward_args<T> &args, const key_row &own, uint32_t tile, const float *shared,
                                   float *dk, float *dv) {
    const att_shape &shape = args.shape;
    const uint32_t dim = shape.head_dim, lane = threadIdx.x % OX_WARP, query = tile + lane;
    const float *const queries = shared, *const douts = queries + ATT_TILE * tile_stride(dim);
    const float *const facts = douts + ATT_TILE * tile_stride(dim); /* lse, then dout . out, of the tile's queries */
    float weight = 0.0f, slope = 0.0f;
    if (own.is_there && query < shape.queries && shape.place + query >= own.place &&
        own.place >= first_key(shape, blockIdx.z, query)) {
        const float score = capped(shape, shape.scale * dot(own.key, queries + lane * tile_stride(dim), dim));
        weight = expf(score - facts[lane]);
        slope = shape.scale * weight * cap_slope(shape, score) *
                (dot(own.value, douts + lane * tile_stride(dim), dim) - facts[ATT_TILE + lane]);
    }
    add_weighted(dk, slope, queries, dim);
    add_weighted(dv, weight, douts, dim);
}

template <typename T> static __global__ void attention_dkv_kernel(backward_args<T> args) {
    const att_shape &shape = args.shape;
    const uint32_t dim = shape.head_dim, warp = threadIdx.x / OX_WARP, group = shape.heads / shape.kv_heads;
    const uint32_t kv_head = blockIdx.y, sequence = blockIdx.z;
    float *const queries = (float *)ox_dynamic_shared(), *const douts = queries + ATT_TILE * tile_stride(dim);
    float *const facts = douts + ATT_TILE * tile_stride(dim);
    float *const own_k = facts + 2 * ATT_TILE + warp * 2 * dim, *const own_v = own_k + dim;
    const uint32_t begin = blockIdx.x * ATT_WARPS, key = begin + warp;
    const bool is_there = key < shape.keys, of_part = args.dk_sums.at != nullptr;
    if (of_part && args.adds && begin >= shape.place + shape.queries) {
        return; /* no query sees these keys */
    }
    float row[ATT_PER_LANE], dk[ATT_PER_LANE] = {}, dv[ATT_PER_LANE] = {};
    take_row(row, key_row_at(args.k, args.chunks, sequence, kv_head, dim, is_there ? key : begin), dim, is_there);
    spread(own_k, row, dim);
    take_row(row, key_row_at(args.v, args.chunks, sequence, kv_head, dim, is_there ? key : begin), dim, is_there);
    spread(own_v, row, dim);
    const key_row own = {own_k, own_v, key, is_there};
    const uint32_t sees = begin + ATT_WARPS + shape.window; /* the place behind the last query that sees one of them */
    const uint32_t seen_past = shape.window == 0 || sees > shape.place + shape.queries ? shape.queries
                                                                                      : first_query(shape.place, sees);
    for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (uint32_t tile = first_query(shape.place, begin) / ATT_TILE * ATT_TILE; tile < seen_past;
             tile += ATT_TILE) {
            const uint32_t where[3] = {tile, shape.queries, dim};
            __syncthreads();
            load_tile(queries, args.q, key_chunks{}, sequence, head, where);
            load_tile(douts, args.dout, key_chunks{}, sequence, head, where);
            for (uint32_t i = warp; i < ATT_TILE; i += ATT_WARPS) {
                const uint32_t query = tile + i < shape.queries ? tile + i : shape.queries - 1;
                const row_facts found = facts_of(args, sequence, head, query);
                if (threadIdx.x % OX_WARP == 0) {
                    facts[i] = found.lse;
                    facts[ATT_TILE + i] = found.dout_out;
                }
            }
            __syncthreads();
            add_queries(args, own, tile, queries, dk, dv);
        }
    }
    if (is_there && of_part) {
        give_sums(key_row_at(args.dk_sums, args.chunks, sequence, kv_head, dim, key), dk, dim, args.adds);
        give_sums(key_row_at(args.dv_sums, args.chunks, sequence, kv_head, dim, key), dv, dim, args.adds);
    } else if (is_there) {
        give_row(row_at(args.dk, sequence, kv_head, dim, key), dk, dim);
        give_row(row_at(args.dv, sequence, kv_head, dim, key), dv, dim);
    }
}

/* ---- the operations --------------------------------------------------------------------------------- */

static att_shape shape_of(const ox_attention_shape &shape, const int32_t *positions) {
    OX_ASSERT(shape.head_dim <= ATT_DIM_MAX);
    return att_shape{shape.batch, shape.seq, shape.seq, 0, shape.heads, shape.kv_heads, shape.head_dim, shape.window,
                     shape.scale, shape.cap, positions};
}

/* Queries, keys or values within rows of q | k | v: which = 0, 1, 2. */
template <typename T> static head_rows<T> part_of(T *qkv, const ox_attention_shape &shape, unsigned which) {
    const uint32_t stride = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    const uint32_t head = which == 0 ? 0 : which == 1 ? shape.heads : shape.heads + shape.kv_heads;
    return head_rows<T>{qkv + (uint64_t)head * shape.head_dim, (uint64_t)shape.seq * stride, stride};
}

template <typename T> static head_rows<T> outputs_of(T *out, const ox_attention_shape &shape) {
    const uint32_t stride = shape.heads * shape.head_dim;
    return head_rows<T>{out, (uint64_t)shape.seq * stride, stride};
}

/* Keys or values, which = 0 or 1, of whole sequences, of which the queries are a part. */
template <typename T> static head_rows<T> seen_by_part(T *kv, const ox_attention_shape &shape, unsigned which) {
    const uint32_t width = shape.kv_heads * shape.head_dim, stride = 2 * width;
    return head_rows<T>{kv + which * width, (uint64_t)shape.seq * stride, stride};
}

static key_chunks chunks_of(const ox_attention_shape &shape, const ox_attention_part &part) {
    if (part.key_chunk > 0) {
        return key_chunks{1, shape.seq, 0};
    }
    const uint64_t row = 2 * (uint64_t)shape.kv_heads * shape.head_dim;
    return key_chunks{part.chunks, shape.seq, (uint64_t)shape.batch * shape.seq * row};
}

/* Places the queries among the keys that they see: all chunks, or one, whose first key then has the position 0. */
static att_shape shape_of_part(att_shape shape, const ox_attention_part &part) {
    if (part.key_chunk > 0) {
        shape.place = (part.chunk + 1 - part.key_chunk) * shape.queries;
        return shape;
    }
    shape.keys = part.chunks * shape.queries;
    shape.place = part.chunk * shape.queries;
    return shape;
}

static unsigned blocks_for(uint32_t rows) {
    return (rows + ATT_WARPS - 1) / ATT_WARPS;
}

template <typename T> static forward_args<T> args_of(const ox_op_attention_forward *op) {
    const ox_attention_shape &shape = op->shape;
    const T *const qkv = (const T *)op->qkv;
    forward_args<T> args = {shape_of(shape, op->positions), part_of(qkv, shape, 0), part_of(qkv, shape, 1),
                            part_of(qkv, shape, 2), outputs_of((T *)op->out, shape), op->lse, {}};
    if (op->part.kv != nullptr) {
        args.shape = shape_of_part(args.shape, op->part);
        args.chunks = chunks_of(shape, op->part);
        args.k = seen_by_part((const T *)op->part.kv, shape, 0);
        args.v = seen_by_part((const T *)op->part.kv, shape, 1);
    }
    return args;
}

template <typename T> static backward_args<T> args_of(const ox_op_attention_backward *op) {
    const ox_attention_shape &shape = op->shape;
    const T *const qkv = (const T *)op->qkv;
    T *const dqkv = (T *)op->dqkv;
    backward_args<T> args = {};
    args.shape = shape_of(shape, op->positions);
    args.q = part_of(qkv, shape, 0);
    args.k = part_of(qkv, shape, 1);
    args.v = part_of(qkv, shape, 2);
    args.out = outputs_of((const T *)op->out, shape);
    args.dout = outputs_of((const T *)op->dout, shape);
    args.dq = part_of(dqkv, shape, 0);
    args.dk = part_of(dqkv, shape, 1);
    args.dv = part_of(dqkv, shape, 2);
    args.lse = op->lse;
    args.facts = (row_facts *)op->scratch;
    if (op->part.kv != nullptr) {
        args.shape = shape_of_part(args.shape, op->part);
        args.chunks = chunks_of(shape, op->part);
        args.k = seen_by_part((const T *)op->part.kv, shape, 0);
        args.v = seen_by_part((const T *)op->part.kv, shape, 1);
        args.dk_sums = seen_by_part(op->part.dkv, shape, 0);
        args.dv_sums = seen_by_part(op->part.dkv, shape, 1);
        args.adds = op->part.adds;
    }
    if (op->part.resumes) { /* to be added to the gradient of the chunks before */
        args.dq = outputs_of((T *)((char *)op->scratch + ox_cuda_chunk_room_of(&shape, op->real).out), shape);
    }
    return args;
}

template <typename T> static ox_status forward(const ox_cuda_queue *queue, const forward_args<T> &args) {
    const att_shape &shape = args.shape;
    const ox_launch_shape launch = {dim3(blocks_for(shape.queries), shape.heads, shape.sequences), ATT_WARPS * OX_WARP,
                                    shared_bytes(shape.head_dim, 2, 1)};
    return ox_launch_large(attention_forward_kernel<T>, queue, launch, args);
}

template <typename T> static ox_status backward(const ox_cuda_queue *queue, const backward_args<T> &args) {
    const att_shape &shape = args.shape;
    const size_t bytes = shared_bytes(shape.head_dim, 2, 2);
    const ox_launch_shape by_query = {dim3(blocks_for(shape.queries), shape.heads, shape.sequences),
                                      ATT_WARPS * OX_WARP, bytes};
    const ox_launch_shape by_key = {dim3(blocks_for(shape.keys), shape.kv_heads, shape.sequences),
                                    ATT_WARPS * OX_WARP, bytes + 2 * ATT_TILE * sizeof(float)};
    const ox_status status = ox_launch_large(attention_dq_kernel<T>, queue, by_query, args);
    return status == OX_OK ? ox_launch_large(attention_dkv_kernel<T>, queue, by_key, args) : status;
}

/* The keys and values of a part's own rows get no gradient there, but among those of all rows. */
template <typename T> static __global__ void clear_own_kernel(T *dkv, uint32_t stride, uint32_t width) {
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) {
        ox_narrow(0.0f, &dkv[blockIdx.x * (uint64_t)stride + i]);
    }
}

template <typename T>
static void clear_own(const ox_cuda_queue *queue, const ox_op_attention_backward *op, const backward_args<T> &args) {
    if (op->part.kv != nullptr && !op->part.resumes) {
        ox_launch(clear_own_kernel<T>, queue,
                  ox_launch_shape{dim3(op->shape.batch * op->shape.seq), dim3(OX_BLOCK_THREADS), 0}, args.dk.at,
                  args.dk.stride, 2 * op->shape.kv_heads * op->shape.head_dim);
    }
}

/* Whether the kernels for tensor cores, which are for types of 16 bits, take heads of this size and this part. */
static bool mma_takes(const ox_attention_shape &shape, const ox_attention_part &part) {
    return ox_attention_mma_takes(shape.head_dim) && (part.kv == nullptr || shape.seq % MMA_OWN == 0);
}

template <typename T> static ox_status forward_narrow(const ox_cuda_queue *queue, const ox_op_attention_forward *op) {
    return mma_takes(op->shape, op->part) ? ox_attention_mma_forward(queue, args_of<T>(op))
                                          : forward(queue, args_of<T>(op));
}

template <typename T> static ox_status backward_narrow(const ox_cuda_queue *queue, const ox_op_attention_backward *op) {
    const backward_args<T> args = args_of<T>(op);
    clear_own(queue, op, args);
    return mma_takes(op->shape, op->part) ? ox_attention_mma_backward(queue, args) : backward(queue, args);
}

extern "C" ox_status ox_cuda_attention_forward_own(const ox_cuda_queue *queue, const void *given) {
    const ox_op_attention_forward *const op = (const ox_op_attention_forward *)given;
    if (op->real == OX_REAL_F32) {
        return forward(queue, args_of<float>(op));
    }
    return op->real == OX_REAL_BF16 ? forward_narrow<ox_bf16>(queue, op) : forward_narrow<ox_f16>(queue, op);
}

extern "C" ox_status ox_cuda_attention_backward_own(const ox_cuda_queue *queue, const void *given) {
    const ox_op_attention_backward *const op = (const ox_op_attention_backward *)given;
    if (op->real == OX_REAL_F32) {
        clear_own(queue, op, args_of<float>(op));
        return backward(queue, args_of<float>(op));
    }
    return op->real == OX_REAL_BF16 ? backward_narrow<ox_bf16>(queue, op) : backward_narrow<ox_f16>(queue, op);
}

/* ---- with a cache ----------------------------------------------------------------------------------- */

template <typename T> struct append_args {
    const T *qkv;
    T *keys, *values;
    uint32_t cached, heads, kv_width, head_dim;
};

template <typename T> static __global__ void append_kernel(append_args<T> args) {
    const uint64_t row = blockIdx.x, to = (args.cached + row) * args.kv_width;
    const uint32_t q_width = args.heads * args.head_dim;
    const T *const from = args.qkv + row * (q_width + 2 * args.kv_width) + q_width;
    for (uint32_t i = threadIdx.x; i < args.kv_width; i += blockDim.x) {
        args.keys[to + i] = from[i];
        args.values[to + i] = from[args.kv_width + i];
    }
}

template <typename T> static ox_status cached(const ox_cuda_queue *queue, const ox_op_attention_cached *op) {
    const uint32_t kv_width = op->kv_heads * op->head_dim, q_width = op->heads * op->head_dim;
    OX_ASSERT(op->head_dim <= ATT_DIM_MAX);
    const T *const qkv = (const T *)op->qkv;
    T *const keys = (T *)op->keys, *const values = (T *)op->values;
    const append_args<T> append = {qkv, keys, values, op->cached, op->heads, kv_width, op->head_dim};
    ox_launch(append_kernel<T>, queue, ox_launch_shape{op->rows, OX_BLOCK_THREADS, 0}, append);
    const att_shape shape = {1, op->rows, op->cached + op->rows, op->cached, op->heads, op->kv_heads, op->head_dim,
                             op->window, op->scale, op->cap, nullptr};
    return forward(queue, forward_args<T>{shape, head_rows<const T>{qkv, 0, q_width + 2 * kv_width},
                                          head_rows<const T>{keys, 0, kv_width},
                                          head_rows<const T>{values, 0, kv_width},
                                          head_rows<T>{(T *)op->out, 0, q_width}, op->lse, {}});
}

extern "C" ox_status ox_cuda_attention_cached(const ox_cuda_queue *queue, const void *given) {
    const ox_op_attention_cached *const op = (const ox_op_attention_cached *)given;
    return ox_for_real(op->real, [=](auto of) { return cached<decltype(of)>(queue, op); });
}
