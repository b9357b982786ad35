/* Attention by cuDNN, if its library is on the machine: opened at run time, never linked. Whatever prevents its use is
 * no failure: our own kernels take every case that cuDNN does not. */
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

/* Which library computes attention on a device, with its version, or why none does. */
struct ox_cudnn_words {
    char text[160];
};

/* Opens cuDNN for the GPU that the calling thread has chosen, of compute capability `capability` (90 stands for 9.0).
 * NULL if the library is missing or too old; `words` says which library there is. */
void ox_cudnn_open(uint32_t capability, struct ox_cudnn **out, struct ox_cudnn_words *words);
void ox_cudnn_close(struct ox_cudnn **cudnn);

/* For operations in bfloat16. *took is false if the case is not cuDNN's: documents within sequences, head counts and
 * strides that none of its engines takes, more memory than ox_attention_slices_of grants, slices too small for the
 * GPU. That depends on shape, library and GPU alone, so it is the same throughout a run. The first call with a shape
 * builds its plan, which takes a second. */
OX_MUST enum ox_status ox_cudnn_attention_forward(const struct ox_cuda_queue *queue,
                                                  const struct ox_op_attention_forward *op, bool *took);
OX_MUST enum ox_status ox_cudnn_attention_backward(const struct ox_cuda_queue *queue,
                                                   const struct ox_op_attention_backward *op, bool *took);

/* ---- without a GPU ----------------------------------------------------------------------------------- */

/* Asks cuDNN about a GPU that need not be here, described as in CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION; for tests.
 * With `builds` the engine's code is generated and compiled too, which takes a second; no driver loads it afterwards,
 * as expected. */
struct ox_cudnn_question {
    const char *gpu;
    struct ox_attention_shape shape;
    bool backward, builds;
};

struct ox_cudnn_answer {
    bool has_library, has_engine, has_code;
    uint64_t version; /* 91900 stands for 9.19.0 */
    int64_t engine;
    uint64_t workspace_bytes, workspace_max; /* memory asked for, and granted */
    struct ox_cudnn_words words;             /* the reason for a refusal */
};

/* The plugin's symbol "ox_cudnn_ask". */
void ox_cudnn_ask(const struct ox_cudnn_question *question, struct ox_cudnn_answer *out);

#ifdef __cplusplus
}
#endif
#endif
