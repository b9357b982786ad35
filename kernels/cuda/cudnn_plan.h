/* Internals of cuDNN's use: the opened library, its descriptors, and plans for one operation on one shape. The
 * library's own types do not appear, so that this header needs none of its headers: enumerations are ints here. */
#ifndef OX_KERNELS_CUDA_CUDNN_PLAN_H
#define OX_KERNELS_CUDA_CUDNN_PLAN_H

#include "kernels/attention_slices.h"
#include "kernels/cuda/cudnn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the library (cudnn_library.c) -------------------------------------------------------------------- */

struct ox_cudnn_library;

/* False, with the reason, if the library does not open or is too old. */
bool ox_cudnn_library_open(struct ox_cudnn_library **out, struct ox_cudnn_words *words);
void ox_cudnn_library_close(struct ox_cudnn_library **library);
uint64_t ox_cudnn_library_version(const struct ox_cudnn_library *library);

/* Where a plan is to run: on the GPU of a handle, or on one that is only described. The other member is NULL. */
struct ox_cudnn_target {
    const struct ox_cudnn_library *library;
    void *handle, *properties;
    uint64_t slice_bytes; /* for ox_attention_slices_of */
    uint32_t capability;  /* 90 stands for 9.0 */
};

/* False, with the library's text, if cuDNN does not support the GPU. */
bool ox_cudnn_target_open(const struct ox_cudnn_library *library, uint32_t capability, struct ox_cudnn_target *out,
                          struct ox_cudnn_words *words);
bool ox_cudnn_target_describe(const struct ox_cudnn_library *library, const char *gpu, struct ox_cudnn_target *out,
                              struct ox_cudnn_words *words);
void ox_cudnn_target_close(struct ox_cudnn_target *target);

/* Descriptors that belong together. After the first failure the library is not called any more, so that a whole graph
 * is described before its status is checked. */
struct ox_cudnn_set {
    const struct ox_cudnn_target *target;
    void **owned;
    uint32_t owned_count, owned_room;
    int status; /* cudnnStatus_t */
    struct ox_cudnn_words words; /* set with a failure */
};

/* NULL after a failure. */
void *ox_cudnn_make(struct ox_cudnn_set *set, int descriptor_type);
void ox_cudnn_put(struct ox_cudnn_set *set, void *descriptor, int name, int type, const void *value);
void ox_cudnn_put_all(struct ox_cudnn_set *set, void *descriptor, const int name_type[2], int64_t count,
                      const void *values);
void ox_cudnn_put_descriptor(struct ox_cudnn_set *set, void *descriptor, int name, void *value);
void ox_cudnn_finish(struct ox_cudnn_set *set, void *descriptor);
/* Returns how many values there are and writes at most `room` of them. 0 after a failure. */
int64_t ox_cudnn_get(struct ox_cudnn_set *set, void *descriptor, const int name_type[2], int64_t room, void *values);
/* As finish and get of one int64, but a refusal is an answer and no failure of the set; returns a cudnnStatus_t. */
int ox_cudnn_try_finish(struct ox_cudnn_set *set, void *descriptor, struct ox_cudnn_words *words);
int ox_cudnn_try_get(struct ox_cudnn_set *set, void *descriptor, int name, int64_t *value);
void ox_cudnn_set_close(struct ox_cudnn_set *set);

/* ---- graphs (cudnn_graph.c) --------------------------------------------------------------------------- */

/* A pass over a slice of an operation of this shape. */
struct ox_cudnn_case {
    struct ox_attention_shape shape;
    uint32_t batch, kv_heads; /* rows and key heads of one slice */
    uint64_t sums_bytes, workspace_max;
    bool backward;
};

/* Numbers of a graph's tensors. Those from OX_CUDNN_SCALE on are single values in host memory. */
enum ox_cudnn_tensor {
    OX_CUDNN_Q = 1,
    OX_CUDNN_K,
    OX_CUDNN_V,
    OX_CUDNN_OUT,
    OX_CUDNN_LSE,
    OX_CUDNN_DOUT,
    OX_CUDNN_DQ,
    OX_CUDNN_DK,
    OX_CUDNN_DV,
    OX_CUDNN_SUMS, /* (batch, heads, seq): dot products of gradient and output */
    OX_CUDNN_SCALE,
    OX_CUDNN_ONE,
    OX_CUDNN_MASKED,
    OX_CUDNN_WINDOW,
    OX_CUDNN_TENSOR_END
};

/* The finished graph. */
void *ox_cudnn_graph(struct ox_cudnn_set *set, const struct ox_cudnn_case *of);

static inline bool ox_cudnn_has_window(const struct ox_attention_shape *shape) {
    return shape->window > 0 && shape->window < shape->seq;
}

/* ---- plans (cudnn_plan.c) ----------------------------------------------------------------------------- */

struct ox_cudnn_plan {
    struct ox_cudnn_case of;
    struct ox_cudnn_set set;
    void *config;  /* configuration of the chosen engine; NULL: cuDNN does not take the case, and the text says why */
    void *plan;    /* NULL: as above, or not built */
    bool has_code; /* the engine's code was compiled, even if no driver could load it */
    int64_t engine;
    uint64_t workspace_bytes;
    struct ox_cudnn_words words;
};

/* OX_OK also if cuDNN does not take the case; a failure of memory or driver is a failure. Without `builds` an engine is
 * chosen and no code is made. */
OX_MUST enum ox_status ox_cudnn_plan_open(const struct ox_cudnn_target *target, const struct ox_cudnn_case *of,
                                          bool builds, struct ox_cudnn_plan **out);
void ox_cudnn_plan_close(struct ox_cudnn_plan **plan);

/* Addresses by number of tensor; NULL if the graph has no tensor of that number. */
struct ox_cudnn_call {
    void *at[OX_CUDNN_TENSOR_END];
    void *workspace, *stream;
};
OX_MUST enum ox_status ox_cudnn_plan_run(const struct ox_cudnn_plan *plan, const struct ox_cudnn_call *call);
/* (cudnn_library.c) */
OX_MUST enum ox_status ox_cudnn_execute(const struct ox_cudnn_target *target, void *plan, void *pack, void *stream);

#ifdef __cplusplus
}
#endif
#endif
