/* Internals of the CUDA plugin: the device, its lanes, and how work gets on a stream. Used by C and by CUDA C++. */
#ifndef OX_KERNELS_CUDA_CUDA_DEVICE_H
#define OX_KERNELS_CUDA_CUDA_DEVICE_H

#include "kernels/cuda.h"
#include "kernels/cuda/cudnn.h"

#include <cuda_runtime.h>
#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_cuda_blas; /* linear.c */

struct ox_cuda_device {
    struct ox_device base;
    int idx;
    struct cudaDeviceProp prop;
    struct ox_cuda_blas *blas;
    void *workspace; /* OX_CUDA_WORKSPACE_BYTES, for the GEMMs of the compute lane */
    struct ox_cudnn *cudnn; /* NULL: our own kernels compute attention */
    struct ox_cudnn_words attention; /* the library and its version, or why it is not used */
    pthread_mutex_t lock;
    struct ox_cuda_moved *moved; /* under lock; device.c */
};

/* What an operation's function gets to queue its work. */
struct ox_cuda_queue {
    cudaStream_t stream;
    const struct ox_cuda_device *device;
    struct ox_cuda_search *search; /* not NULL: do not compute GEMMs, time their algorithms */
};

/* Puts the work of one operation on the stream; runs on the lane's feeding thread. `args` is the operation's struct. */
typedef enum ox_status ox_cuda_fn(const struct ox_cuda_queue *queue, const void *args);

/* OX_E_DEVICE with the driver's text, unless `error` is cudaSuccess. */
OX_MUST enum ox_status ox_cuda_check(cudaError_t error, const char *what);

OX_MUST enum ox_status ox_cuda_lane_open(struct ox_cuda_device *device, const char *label, struct ox_lane **out);
/* Queues `work` with a copy of `bytes` bytes of `args`. */
struct ox_cuda_work {
    ox_cuda_fn *run;
    const char *name; /* for profilers; lives as long as the lane */
};
OX_MUST enum ox_status ox_cuda_lane_submit(struct ox_lane *lane, const struct ox_cuda_work *work, const void *args,
                                           size_t bytes);
/* Sets *out to a mark that is done when all work submitted so far is done. */
OX_MUST enum ox_status ox_cuda_lane_mark(struct ox_lane *lane, struct ox_mark *out);

/* Lets the ranges of base/lane.h tell NVIDIA's profiler, if one watches this process. */
void ox_cuda_ranges_open(void);

/* Loads cuBLASLt, unless it is loaded. */
OX_MUST enum ox_status ox_cuda_blas_library_open(void);
OX_MUST enum ox_status ox_cuda_blas_open(struct ox_cuda_blas **out);
void ox_cuda_blas_close(struct ox_cuda_blas **blas);
uint32_t ox_cuda_blas_version(void); /* version of the loaded cuBLASLt */

/* c (m, n) = scale * op(a) (m, k) * op(b) (k, n) [+ addend] [+ bias], row-major; strides count elements between rows. a
 * and b have one type, c may have another; sums are float32. `addend` has the type, the shape and the stride of c and
 * may be c; `bias` has n elements of that type, the same for every row. */
struct ox_cuda_gemm_args {
    void *c;
    const void *a, *b, *addend, *bias;
    uint32_t m, n, k;
    uint32_t a_stride, b_stride, c_stride;
    bool a_transposed, b_transposed;
    float scale; /* 0: none */
    enum ox_real in, out; /* types of a and b, and of c */
};
OX_MUST enum ox_status ox_cuda_gemm(const struct ox_cuda_queue *queue, const struct ox_cuda_gemm_args *gemm);

/* The functions gemm_text and linear_search of struct ox_cuda_plugin. */
bool ox_cuda_blas_text(struct ox_device *device, uint32_t idx, char text[OX_CUDA_GEMM_BYTES]);
OX_MUST enum ox_status ox_cuda_blas_search(struct ox_device *device, const struct ox_op_linear_forward *forward,
                                           const struct ox_op_linear_backward *backward,
                                           struct ox_cuda_search *search);

/* Communication through NCCL; NULL in a build without its headers. */
const struct ox_nccl_ops *ox_cuda_nccl_ops(void);

/* Rounds floats to a type, to nearest, ties to even. */
OX_MUST enum ox_status ox_cuda_narrow(const struct ox_cuda_queue *queue, enum ox_real real, void *out, const float *in,
                                      uint64_t count);

/* dbias of a linear_backward. */
OX_MUST enum ox_status ox_cuda_column_sums(const struct ox_cuda_queue *queue, const struct ox_op_linear_backward *op);

/* Fills the whole table. */
void ox_ops_fill_cuda(struct ox_ops *ops);

/* Takes a struct ox_copy. */
ox_cuda_fn ox_cuda_copy;

/* The operations: ox_cuda_zero takes a struct ox_op_zero, and so on. */
OX_OP_LIST(OX_OP_DECLARATION, cuda)
/* Attention by our own kernels. ox_cuda_attention_forward and _backward choose between these and cuDNN. */
ox_cuda_fn ox_cuda_attention_forward_own, ox_cuda_attention_backward_own;
/* The same, also of one chunk of keys after the other. */
ox_cuda_fn ox_cuda_attention_forward_chunks, ox_cuda_attention_backward_chunks;

#ifdef __cplusplus
}
#endif
#endif
