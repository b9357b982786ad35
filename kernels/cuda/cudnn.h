/* Attention by cuDNN, where its library is on the machine: opened at run time, never linked. What stands in the way is
 * no failure: a case that it does not take goes to this project's own kernels. */
#ifndef OX_KERNELS_CUDA_CUDNN_H
#define OX_KERNELS_CUDA_CUDNN_H

#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_cuda_queue;
struct ox_cudnn;

/* What speaks for attention on a device: the library and its version, or why it is not used. */
struct ox_cudnn_words {
    char text[160];
};

/* For the GPU that the calling thread has chosen, of compute capability `capability` (90 stands for 9.0). NULL where
 * the library is not there, or too old; `words` says what is. */
void ox_cudnn_open(uint32_t capability, struct ox_cudnn **out, struct ox_cudnn_words *words);
void ox_cudnn_close(struct ox_cudnn **cudnn);

/* For operations in bfloat16. *took is false where the case is not cuDNN's: documents within sequences, heads and
 * places that no engine of it takes, memory beyond what ox_attention_slices_of grants. That is a function of shape,
 * library and GPU, so that a run has one answer. The first call with a shape builds its plan, which takes a second. */
OX_MUST enum ox_status ox_cudnn_attention_forward(const struct ox_cuda_queue *queue,
                                                  const struct ox_op_attention_forward *op, bool *took);
OX_MUST enum ox_status ox_cudnn_attention_backward(const struct ox_cuda_queue *queue,
                                                   const struct ox_op_attention_backward *op, bool *took);

/* ---- without a GPU ----------------------------------------------------------------------------------- */

/* What cuDNN answers for a GPU that is not here, described as CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION has it: for
 * tests. With `builds` the engine's code is generated and compiled too, which takes a second; that no driver loads it
 * afterwards is expected. */
struct ox_cudnn_question {
    const char *gpu;
    struct ox_attention_shape shape;
    bool backward, builds;
};

struct ox_cudnn_answer {
    bool has_library, has_engine, has_code;
    uint64_t version; /* 91900 stands for 9.19.0 */
    int64_t engine;
    uint64_t workspace_bytes, workspace_max; /* asked for, and granted */
    struct ox_cudnn_words words;             /* why not */
};

/* Symbol "ox_cudnn_ask" of the plugin. */
void ox_cudnn_ask(const struct ox_cudnn_question *question, struct ox_cudnn_answer *out);

#ifdef __cplusplus
}
#endif
#endif
