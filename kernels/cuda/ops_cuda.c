/* Queues operations on lanes of the CUDA device. */
#include "kernels/cuda/cuda_device.h"

#include "base/assert.h"

#include <math.h>
#include <stdlib.h>

/* Computes the angles on the host, once per model, with the CPU device's arithmetic and so with its bits. Runs on the
 * lane's feeding thread, which waits until they are copied. */
enum ox_status ox_cuda_rope_table(const struct ox_cuda_queue *queue, const void *args) {
    const struct ox_op_rope_table *const op = args;
    const size_t count = (size_t)op->contexts * op->half_dim;
    float *const both = malloc(2 * count * sizeof *both);
    if (both == NULL) {
        return ox_fail(OX_E_NOMEM, "GPU: no memory for a table of %zu angles", count);
    }
    for (size_t i = 0; i < count; i++) {
        const double angle = (double)(i / op->half_dim) * op->inv_freq[i % op->half_dim];
        both[i] = (float)(cos(angle) * op->scale);
        both[count + i] = (float)(sin(angle) * op->scale);
    }
    const struct ox_copy cosines = {.target = op->cos_table, .source = both, .bytes = count * sizeof *both};
    const struct ox_copy sines = {.target = op->sin_table, .source = both + count, .bytes = count * sizeof *both};
    struct ox_first_failure first = {0};
    ox_first_failure_note(&first, ox_cuda_copy(queue, &cosines));
    ox_first_failure_note(&first, ox_cuda_copy(queue, &sines));
    ox_first_failure_note(&first, ox_cuda_check(cudaStreamSynchronize(queue->stream), "copying a table of angles"));
    free(both);
    return ox_first_failure_result(&first);
}

static enum ox_status queue(struct ox_lane *lane, const struct ox_op_row *row, ox_op_fn *function, const void *args) {
    const struct ox_cuda_work work = {.run = (ox_cuda_fn *)function, .name = row->name};
    return ox_cuda_lane_submit(lane, &work, args, row->args_bytes);
}

void ox_ops_fill_cuda(struct ox_ops *ops) {
    *ops = (struct ox_ops){
        .name = "cuda",
        .queue = queue,
        .mark = ox_cuda_lane_mark,
        .functions = {OX_OP_LIST(OX_OP_FUNCTION, cuda)},
    };
}
