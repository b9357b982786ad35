/* The embedding and its gradient. Backward sorts the rows by their table entry, so that the rows of one entry are
 * neighbours, in their order: one thread adds an element of all of them, the sums have the bits of the CPU's, and an
 * entry with many rows is divided by columns. Bytes moved, at least:
 *   forward   rows hidden (real + planes), planes once more with learned positions
 *   backward  rows hidden real + 8 hidden entries, of the table; the same for learned positions */
#include "kernels/cuda/kernel.cuh"

/* ---- forward ---------------------------------------------------------------------------------------- */

template <int N>
static __device__ __forceinline__ void load_planes(float out[N], const uint16_t *hi, const uint16_t *lo, uint64_t at) {
    const ox_pack<uint16_t, N> high = ox_get<uint16_t, N>(hi + at);
    ox_pack<uint16_t, N> low = {};
    if (lo != nullptr) {
        low = ox_get<uint16_t, N>(lo + at);
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        out[k] = ox_join(high.at[k], low.at[k]);
    }
}

template <typename T, int N> static __global__ void embed_kernel(ox_op_embed_forward op) {
    const uint64_t row = blockIdx.x, from = ((uint64_t)op.ids[row] - op.tokens.first) * op.hidden;
    T *const out = (T *)op.out + row * op.hidden;
    if (!ox_token_range_has(op.tokens, op.ids[row])) {
        return;
    }
    for (uint32_t i = threadIdx.x * N; i < op.hidden; i += blockDim.x * N) {
        float value[N], place[N];
        load_planes<N>(value, op.table_hi, op.table_lo, from + i);
        if (op.pos_hi != nullptr) {
            load_planes<N>(place, op.pos_hi, op.pos_lo, (uint64_t)op.positions[row] * op.hidden + i);
#pragma unroll
            for (int k = 0; k < N; k++) {
                value[k] += place[k];
            }
        }
        ox_store<T, N>(out + i, value);
    }
}

/* From a table that lies in columns, of which there are few. */
template <typename T> static __global__ void embed_columns_kernel(ox_op_embed_forward op) {
    const uint64_t count = (uint64_t)op.rows * op.hidden, step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += step) {
        const int32_t id = op.ids[i / op.hidden];
        const uint64_t at = i % op.hidden * op.column + ((uint32_t)id - op.tokens.first);
        if (ox_token_range_has(op.tokens, id)) {
            const float value[1] = {ox_join(op.table_hi[at], op.table_lo == nullptr ? 0 : op.table_lo[at])};
            ox_store<T, 1>((T *)op.out + i, value);
        }
    }
}

template <typename T> static ox_status embed(const ox_cuda_queue *queue, const ox_op_embed_forward *op) {
    enum { WIDE = ox_wide<ox_bf16>::COUNT };
    if (op->column > 0) {
        const uint64_t count = (uint64_t)op->rows * op->hidden;
        ox_launch(embed_columns_kernel<T>, queue,
                  ox_launch_shape{ox_grid_for(queue, count, OX_BLOCK_THREADS), OX_BLOCK_THREADS, 0}, *op);
        return OX_OK;
    }
    const uintptr_t addresses = (uintptr_t)op->out | (uintptr_t)op->table_hi | (uintptr_t)op->table_lo |
                                (uintptr_t)op->pos_hi | (uintptr_t)op->pos_lo;
    const bool is_wide = addresses % 16 == 0 && op->hidden % WIDE == 0;
    ox_launch(is_wide ? embed_kernel<T, WIDE> : embed_kernel<T, 1>, queue,
              ox_launch_shape{op->rows, OX_BLOCK_THREADS, 0}, *op);
    return OX_OK;
}

extern "C" ox_status ox_cuda_embed_forward(const ox_cuda_queue *queue, const void *given) {
    const ox_op_embed_forward *const op = (const ox_op_embed_forward *)given;
    return ox_for_real(op->real, [=](auto of) { return embed<decltype(of)>(queue, op); });
}

/* ---- rows by key ------------------------------------------------------------------------------------ */

constexpr uint32_t CHUNK = 512;

/* Rows with their keys: sorted in chunks; and all of them sorted. */
struct order {
    int32_t *chunk_keys, *keys;
    uint32_t *chunk_rows, *rows;
    uint32_t count;
};

/* Sorts a chunk of rows by key, then by number: a row's place is the number of rows before it. */
static __global__ void sort_chunk_kernel(order to, const int32_t *keys) {
    __shared__ int32_t near[CHUNK];
    const uint32_t begin = blockIdx.x * CHUNK, count = to.count - begin < CHUNK ? to.count - begin : CHUNK;
    const uint32_t mine = threadIdx.x;
    if (mine < count) {
        near[mine] = keys[begin + mine];
    }
    __syncthreads();
    uint32_t rank = 0;
    for (uint32_t i = 0; mine < count && i < count; i++) {
        rank += near[i] < near[mine] || (near[i] == near[mine] && i < mine);
    }
    if (mine < count) {
        to.chunk_keys[begin + rank] = near[mine];
        to.chunk_rows[begin + rank] = begin + mine;
    }
}

/* How many of the sorted keys are below `key`, or not above it. */
static __device__ uint32_t count_below(const int32_t *keys, uint32_t count, int32_t key, bool equal_too) {
    uint32_t low = 0, high = count;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (keys[middle] < key || (equal_too && keys[middle] == key)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* A row's place among all rows: its place in its chunk, plus the rows before it in every other chunk. */
static __global__ void merge_chunks_kernel(order to) {
    const uint32_t at = blockIdx.x * blockDim.x + threadIdx.x, own = at / CHUNK * CHUNK;
    if (at >= to.count) {
        return;
    }
    const int32_t key = to.chunk_keys[at];
    uint32_t rank = at - own;
    for (uint32_t begin = 0; begin < to.count; begin += CHUNK) {
        const uint32_t count = to.count - begin < CHUNK ? to.count - begin : CHUNK;
        rank += begin == own ? 0 : count_below(to.chunk_keys + begin, count, key, begin < own);
    }
    to.keys[rank] = key;
    to.rows[rank] = to.chunk_rows[at];
}

/* ---- backward --------------------------------------------------------------------------------------- */

enum { ADD_THREADS = 64, BATCH = 8 };

template <typename T> struct add_args {
    float *table;
    const T *dout;
    order rows;
    uint32_t hidden;
    ox_token_range tokens;
};

/* Adds the next COUNT rows, all of them read before the first is added. */
template <typename T, int N, int COUNT>
static __device__ __forceinline__ void add_batch(float sum[N], const T *dout, const uint32_t *rows, uint32_t hidden) {
    ox_pack<T, N> near[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        near[i] = ox_get<T, N>(dout + (uint64_t)rows[i] * hidden);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            sum[k] += ox_widen(near[i].at[k]);
        }
    }
}

/* Adds the rows of one key to a table that lies in columns: a thread takes one of these. */
template <typename T> static __global__ void add_columns_kernel(add_args<T> args, uint32_t column) {
    const uint32_t col = blockIdx.y * ADD_THREADS + threadIdx.x;
    const int32_t *const keys = args.rows.keys, key = keys[blockIdx.x];
    if (col >= args.hidden || (blockIdx.x > 0 && keys[blockIdx.x - 1] == key) ||
        !ox_token_range_has(args.tokens, key)) {
        return;
    }
    float *const target = args.table + (uint64_t)col * column + ((uint32_t)key - args.tokens.first);
    float sum = *target;
    for (uint32_t at = blockIdx.x; at < args.rows.count && keys[at] == key; at++) {
        sum += ox_widen(args.dout[(uint64_t)args.rows.rows[at] * args.hidden + col]);
    }
    *target = sum;
}

/* Adds the rows of one key, for a stretch of columns. Of the blocks that have such rows, the first adds them. */
template <typename T, int N> static __global__ void add_rows_kernel(add_args<T> args) {
    const uint32_t col = (blockIdx.y * ADD_THREADS + threadIdx.x) * N, count = args.rows.count;
    const int32_t *const keys = args.rows.keys, key = keys[blockIdx.x];
    uint32_t at = blockIdx.x;
    if (col >= args.hidden || (at > 0 && keys[at - 1] == key) || !ox_token_range_has(args.tokens, key)) {
        return;
    }
    float *const target = args.table + ((uint64_t)key - args.tokens.first) * args.hidden + col;
    float sum[N];
    ox_load<float, N>(sum, target);
    while (at < count && keys[at] == key) {
        /* keys are sorted: if the last of a batch has this key, all have it */
        if (at + BATCH <= count && keys[at + BATCH - 1] == key) {
            add_batch<T, N, BATCH>(sum, args.dout + col, args.rows.rows + at, args.hidden);
            at += BATCH;
        } else {
            add_batch<T, N, 1>(sum, args.dout + col, args.rows.rows + at, args.hidden);
            at++;
        }
    }
    ox_store<float, N>(target, sum);
}

/* The order is in the workspace of the GEMMs, which only this lane uses, one operation after another. Rows that do not
 * fit there follow in the next turn, so they are added later. */
template <typename T>
static void add_rows(const ox_cuda_queue *queue, const ox_op_embed_backward *op, float *table, const int32_t *keys,
                     ox_token_range tokens) {
    enum { WIDE = ox_wide<T>::COUNT };
    const uint32_t most = OX_CUDA_WORKSPACE_BYTES / (4 * sizeof(uint32_t));
    int32_t *const room = (int32_t *)queue->device->workspace;
    for (uint32_t begin = 0; begin < op->rows; begin += most) {
        const uint32_t count = op->rows - begin < most ? op->rows - begin : most;
        const order rows = {room, room + most, (uint32_t *)room + 2 * most, (uint32_t *)room + 3 * most, count};
        const add_args<T> args = {table, (const T *)op->dout + (uint64_t)begin * op->hidden, rows, op->hidden,
                                  tokens};
        const unsigned chunks = (count + CHUNK - 1) / CHUNK;
        ox_launch(sort_chunk_kernel, queue, ox_launch_shape{chunks, CHUNK, 0}, rows, keys + begin);
        ox_launch(merge_chunks_kernel, queue, ox_launch_shape{chunks * (CHUNK / 128), 128, 0}, rows);
        if (op->column > 0) {
            const unsigned columns = (op->hidden + ADD_THREADS - 1) / ADD_THREADS;
            ox_launch(add_columns_kernel<T>, queue, ox_launch_shape{dim3(count, columns), ADD_THREADS, 0}, args,
                      op->column);
            continue;
        }
        const bool is_wide = ox_all_wide<T>(op->dout, op->hidden, 0) && ox_all_wide<float>(table, op->hidden, 0);
        const unsigned per_block = ADD_THREADS * (is_wide ? (unsigned)WIDE : 1);
        const unsigned stretches = (op->hidden + per_block - 1) / per_block;
        ox_launch(is_wide ? add_rows_kernel<T, WIDE> : add_rows_kernel<T, 1>, queue,
                  ox_launch_shape{dim3(count, stretches), ADD_THREADS, 0}, args);
    }
}

template <typename T> static ox_status embed_backward(const ox_cuda_queue *queue, const ox_op_embed_backward *op) {
    if (op->dtable != nullptr) {
        add_rows<T>(queue, op, op->dtable, op->ids, op->tokens);
    }
    if (op->dpos != nullptr) {
        add_rows<T>(queue, op, op->dpos, op->positions, ox_token_range{});
    }
    return OX_OK;
}

extern "C" ox_status ox_cuda_embed_backward(const ox_cuda_queue *queue, const void *given) {
    const ox_op_embed_backward *const op = (const ox_op_embed_backward *)given;
    return ox_for_real(op->real, [=](auto of) { return embed_backward<decltype(of)>(queue, op); });
}
