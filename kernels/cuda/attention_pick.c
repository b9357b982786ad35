/* Chooses who computes attention: cuDNN, for the cases that it takes, else our own kernels. */
#include "base/assert.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cudnn.h"

enum ox_status ox_cuda_attention_forward(const struct ox_cuda_queue *queue, const void *args) {
    const struct ox_op_attention_forward *const op = args;
    bool took = false;
    const enum ox_status status =
        op->real == OX_REAL_BF16 && op->part.kv == NULL ? ox_cudnn_attention_forward(queue, op, &took) : OX_OK;
    return status != OX_OK || took ? status : ox_cuda_attention_forward_chunks(queue, args);
}

enum ox_status ox_cuda_attention_backward(const struct ox_cuda_queue *queue, const void *args) {
    const struct ox_op_attention_backward *const op = args;
    bool took = false;
    const enum ox_status status =
        op->real == OX_REAL_BF16 && op->part.kv == NULL ? ox_cudnn_attention_backward(queue, op, &took) : OX_OK;
    return status != OX_OK || took ? status : ox_cuda_attention_backward_chunks(queue, args);
}
