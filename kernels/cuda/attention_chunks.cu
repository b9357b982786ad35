/* Attention of queries to one chunk of keys after the other, as in a ring. The kernels of attention see the chunk
 * alone; what comes of it is then put together with what came of those before: outputs by their shares of the sums of
 * exponentials (Liu et al., arXiv 2310.01889), gradients of queries by adding. A query that sees nothing of the chunk
 * has a sum of 0 and an output that says nothing, and keeps what it has. */
#include "kernels/cuda/attention.cuh"

template <typename T> struct chunk_args {
    head_rows<T> rows;            /* of the chunks before, and then of all */
    head_rows<const T> of_chunk;
    float *lse;                   /* as rows; (sequences, heads, queries) */
    const float *lse_of_chunk;
    uint32_t queries, head_dim;
};

template <typename T> static __global__ void merge_kernel(chunk_args<T> args) {
    const uint32_t query = blockIdx.x * ATT_WARPS + threadIdx.x / OX_WARP, head = blockIdx.y, sequence = blockIdx.z;
    const uint64_t at = ((uint64_t)sequence * gridDim.y + head) * args.queries + query;
    if (query >= args.queries || args.lse_of_chunk[at] == -INFINITY) {
        return;
    }
    const float before = args.lse[at], here = args.lse_of_chunk[at], max = fmaxf(before, here);
    const float lse = max + logf(expf(before - max) + expf(here - max));
    const float kept = expf(before - lse), share = expf(here - lse);
    float out[ATT_PER_LANE], more[ATT_PER_LANE];
    T *const row = row_at(args.rows, sequence, head, args.head_dim, query);
    take_row(out, row, args.head_dim, true);
    take_row(more, row_at(args.of_chunk, sequence, head, args.head_dim, query), args.head_dim, true);
    for (uint32_t i = 0; i < ATT_PER_LANE; i++) {
        out[i] = kept * out[i] + share * more[i];
    }
    give_row(row, out, args.head_dim);
    __syncwarp(); /* every lane has read the logs */
    if (threadIdx.x % OX_WARP == 0) {
        args.lse[at] = lse;
    }
}

template <typename T> static __global__ void add_kernel(chunk_args<T> args) {
    const uint32_t query = blockIdx.x * ATT_WARPS + threadIdx.x / OX_WARP, head = blockIdx.y, sequence = blockIdx.z;
    float sum[ATT_PER_LANE], more[ATT_PER_LANE];
    if (query >= args.queries) {
        return;
    }
    T *const row = row_at(args.rows, sequence, head, args.head_dim, query);
    take_row(sum, row, args.head_dim, true);
    take_row(more, row_at(args.of_chunk, sequence, head, args.head_dim, query), args.head_dim, true);
    for (uint32_t i = 0; i < ATT_PER_LANE; i++) {
        sum[i] += more[i];
    }
    give_row(row, sum, args.head_dim);
}

/* Documents that begin before the chunk begin at its first key, `place` before the first query. */
static __global__ void clip_kernel(int32_t *clipped, const int32_t *positions, uint32_t place, uint32_t queries,
                                   uint32_t count) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        const int32_t most = (int32_t)(place + i % queries);
        clipped[i] = positions[i] < most ? positions[i] : most;
    }
}

static const int32_t *clip(const ox_cuda_queue *queue, const ox_attention_shape &shape, const ox_attention_part &part,
                           const int32_t *positions, void *room) {
    const uint32_t count = shape.batch * shape.seq, place = (part.chunk + 1 - part.key_chunk) * shape.seq;
    if (positions == nullptr) {
        return nullptr;
    }
    ox_launch(clip_kernel, queue,
              ox_launch_shape{dim3((count + OX_BLOCK_THREADS - 1) / OX_BLOCK_THREADS), dim3(OX_BLOCK_THREADS), 0},
              (int32_t *)room, positions, place, shape.seq, count);
    return (const int32_t *)room;
}

/* Outputs, or gradients of queries within rows of another width. */
template <typename T> static head_rows<T> rows_of_heads(T *at, const ox_attention_shape &shape, uint32_t heads) {
    const uint32_t stride = heads * shape.head_dim;
    return head_rows<T>{at, (uint64_t)shape.seq * stride, stride};
}

static ox_launch_shape launch_of(const ox_attention_shape &shape) {
    return ox_launch_shape{dim3((shape.seq + ATT_WARPS - 1) / ATT_WARPS, shape.heads, shape.batch),
                           dim3(ATT_WARPS * OX_WARP), 0};
}

extern "C" ox_status ox_cuda_attention_forward_chunks(const ox_cuda_queue *queue, const void *given) {
    const ox_op_attention_forward *const op = (const ox_op_attention_forward *)given;
    ox_op_attention_forward own = *op;
    if (op->part.key_chunk == 0) {
        return ox_cuda_attention_forward_own(queue, op);
    }
    const ox_cuda_chunk_room room = ox_cuda_chunk_room_of(&op->shape, op->real);
    char *const scratch = (char *)op->scratch;
    own.positions = clip(queue, op->shape, op->part, op->positions, scratch + room.positions);
    own.out = op->part.resumes ? scratch + room.out : op->out;
    own.lse = op->part.resumes ? (float *)(scratch + room.lse) : op->lse;
    const ox_status status = ox_cuda_attention_forward_own(queue, &own);
    if (status != OX_OK || !op->part.resumes) {
        return status;
    }
    return ox_for_real(op->real, [=](auto of) {
        typedef decltype(of) T;
        const chunk_args<T> args = {rows_of_heads((T *)op->out, op->shape, op->shape.heads),
                                    rows_of_heads((const T *)own.out, op->shape, op->shape.heads), op->lse, own.lse,
                                    op->shape.seq, op->shape.head_dim};
        ox_launch(merge_kernel<T>, queue, launch_of(op->shape), args);
        return OX_OK;
    });
}

extern "C" ox_status ox_cuda_attention_backward_chunks(const ox_cuda_queue *queue, const void *given) {
    const ox_op_attention_backward *const op = (const ox_op_attention_backward *)given;
    ox_op_attention_backward own = *op;
    if (op->part.key_chunk == 0) {
        return ox_cuda_attention_backward_own(queue, op);
    }
    const ox_cuda_chunk_room room = ox_cuda_chunk_room_of(&op->shape, op->real);
    char *const scratch = (char *)op->scratch;
    own.positions = clip(queue, op->shape, op->part, op->positions, scratch + room.positions);
    const ox_status status = ox_cuda_attention_backward_own(queue, &own);
    if (status != OX_OK || !op->part.resumes) {
        return status;
    }
    return ox_for_real(op->real, [=](auto of) {
        typedef decltype(of) T;
        const chunk_args<T> args = {
            rows_of_heads((T *)op->dqkv, op->shape, op->shape.heads + 2 * op->shape.kv_heads),
            rows_of_heads((const T *)(scratch + room.out), op->shape, op->shape.heads), nullptr, nullptr,
            op->shape.seq, op->shape.head_dim};
        ox_launch(add_kernel<T>, queue, launch_of(op->shape), args);
        return OX_OK;
    });
}
