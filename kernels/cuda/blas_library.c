/* Opens cuBLASLt with the first device: a machine without a GPU, which opens the plugin to say why there is none, is
 * spared half a gigabyte of library. Its functions are defined here under their own names, so that callers need not
 * know. */
#include "kernels/cuda/cuda_device.h"

#include "base/assert.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <pthread.h>

static struct library {
    cublasStatus_t (*create)(cublasLtHandle_t *);
    cublasStatus_t (*destroy)(cublasLtHandle_t);
    const char *(*status_string)(cublasStatus_t);
    size_t (*version)(void);
    cublasStatus_t (*matmul)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t,
                             const void *, cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t,
                             void *, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t,
                             cudaStream_t);
    cublasStatus_t (*heuristic)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                cublasLtMatmulHeuristicResult_t *, int *);
    cublasStatus_t (*algo_get)(const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t, void *, size_t,
                               size_t *);
    cublasStatus_t (*desc_create)(cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t);
    cublasStatus_t (*desc_destroy)(cublasLtMatmulDesc_t);
    cublasStatus_t (*desc_set)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t);
    cublasStatus_t (*preference_create)(cublasLtMatmulPreference_t *);
    cublasStatus_t (*preference_destroy)(cublasLtMatmulPreference_t);
    cublasStatus_t (*preference_set)(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *,
                                     size_t);
    cublasStatus_t (*layout_create)(cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t, int64_t);
    cublasStatus_t (*layout_destroy)(cublasLtMatrixLayout_t);
    cublasStatus_t (*layout_set)(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, const void *, size_t);
} library;
static bool is_open;
static pthread_mutex_t library_lock = PTHREAD_MUTEX_INITIALIZER;

/* Offset of a function in the struct above. */
static const struct symbol {
    const char *name;
    size_t offset;
} symbols[] = {
    {"cublasLtCreate", offsetof(struct library, create)},
    {"cublasLtDestroy", offsetof(struct library, destroy)},
    {"cublasLtGetStatusString", offsetof(struct library, status_string)},
    {"cublasLtGetVersion", offsetof(struct library, version)},
    {"cublasLtMatmul", offsetof(struct library, matmul)},
    {"cublasLtMatmulAlgoConfigGetAttribute", offsetof(struct library, algo_get)},
    {"cublasLtMatmulAlgoGetHeuristic", offsetof(struct library, heuristic)},
    {"cublasLtMatmulDescCreate", offsetof(struct library, desc_create)},
    {"cublasLtMatmulDescDestroy", offsetof(struct library, desc_destroy)},
    {"cublasLtMatmulDescSetAttribute", offsetof(struct library, desc_set)},
    {"cublasLtMatmulPreferenceCreate", offsetof(struct library, preference_create)},
    {"cublasLtMatmulPreferenceDestroy", offsetof(struct library, preference_destroy)},
    {"cublasLtMatmulPreferenceSetAttribute", offsetof(struct library, preference_set)},
    {"cublasLtMatrixLayoutCreate", offsetof(struct library, layout_create)},
    {"cublasLtMatrixLayoutDestroy", offsetof(struct library, layout_destroy)},
    {"cublasLtMatrixLayoutSetAttribute", offsetof(struct library, layout_set)},
};

static enum ox_status load(void) {
    void *const handle = dlopen(OX_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        return ox_fail(OX_E_DEVICE, "GPU: cuBLASLt does not open: %s; install the library of the CUDA toolkit that "
                       "this was built with, or use --device cpu", dlerror());
    }
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *const symbol = dlsym(handle, symbols[i].name);
        if (symbol == NULL) {
            dlclose(handle);
            return ox_fail(OX_E_DEVICE, "GPU: " OX_CUBLASLT " has no %s; it is not the library that this was built for",
                           symbols[i].name);
        }
        *(void **)((char *)&library + symbols[i].offset) = symbol;
    }
    return OX_OK; /* never closed, like the driver */
}

enum ox_status ox_cuda_blas_library_open(void) {
    pthread_mutex_lock(&library_lock);
    const enum ox_status status = is_open ? OX_OK : load();
    is_open = status == OX_OK;
    pthread_mutex_unlock(&library_lock);
    return status;
}

/* ---- its functions --------------------------------------------------------------------------------- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    return library.create(handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    return library.destroy(handle);
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    return library.status_string(status);
}

/* Returns 0 while cuBLASLt is not open, because `doctor` asks for the version then too. */
size_t cublasLtGetVersion(void) {
    return is_open ? library.version() : 0;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    return library.matmul(handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo,
                          workspace, workspace_bytes, stream);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found) {
    return library.heuristic(handle, desc, a, b, c, d, preference, wanted, results, found);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written) {
    return library.algo_get(algo, attribute, value, bytes, written);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale) {
    return library.desc_create(desc, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    return library.desc_destroy(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    return library.desc_set(desc, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    return library.preference_create(preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return library.preference_destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
    return library.preference_set(preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t stride) {
    return library.layout_create(layout, type, rows, cols, stride);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return library.layout_destroy(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t bytes) {
    return library.layout_set(layout, attribute, value, bytes);
}
