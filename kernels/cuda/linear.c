/* GEMMs by cuBLASLt. The library is column-major, so a row-major matrix here is its transpose there: every GEMM is
 * asked for with sides and factors exchanged. The library is asked for an algorithm once per shape; the shape keeps it,
 * so that its bits stay the same. A GEMM takes at least 2 m n k operations, and moves (m k + k n) elements of a and b
 * and m n of c, which are read too if c is added to. */
#include "kernels/cuda/cuda_device.h"

#include "base/assert.h"

#include <cublasLt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHAPES_MAX = 256 };

/* d (m, n) = op(a) op(b) + beta c, in cuBLASLt's order; c and d share their layout. */
struct gemm {
    cublasOperation_t a_op, b_op;
    uint64_t m, n, k;
    uint64_t a_ld, b_ld, d_ld;
    cudaDataType_t in_type, out_type;
    bool has_bias, adds;
    uint32_t align; /* alignment of all addresses and rows in bytes: 16, or less */
};

struct known {
    struct gemm gemm;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
};

struct ox_cuda_blas {
    cublasLtHandle_t handle;
    pthread_mutex_t lock;
    uint32_t known_count;
    struct known known[SHAPES_MAX];
};

struct operands {
    const void *a, *b, *c, *bias;
    void *d;
    float scale; /* of the product */
};

static enum ox_status check(cublasStatus_t status, const char *what) {
    return status == CUBLAS_STATUS_SUCCESS ? OX_OK
                                           : ox_fail(OX_E_DEVICE, "GPU, cuBLASLt, %s: %s", what,
                                                     cublasLtGetStatusString(status));
}

enum ox_status ox_cuda_blas_open(struct ox_cuda_blas **out) {
    *out = NULL;
    enum ox_status status = ox_cuda_blas_library_open();
    if (status != OX_OK) {
        return status;
    }
    struct ox_cuda_blas *const blas = calloc(1, sizeof *blas);
    if (blas == NULL) {
        return ox_fail(OX_E_NOMEM, "GPU: no memory for %zu bytes of algorithms", sizeof *blas);
    }
    status = check(cublasLtCreate(&blas->handle), "opening");
    if (status != OX_OK) {
        free(blas);
        return status;
    }
    pthread_mutex_init(&blas->lock, NULL);
    *out = blas;
    return OX_OK;
}

void ox_cuda_blas_close(struct ox_cuda_blas **blas) {
    if (*blas != NULL) {
        cublasLtDestroy((*blas)->handle);
        pthread_mutex_destroy(&(*blas)->lock);
        free(*blas);
        *blas = NULL;
    }
}

uint32_t ox_cuda_blas_version(void) {
    return (uint32_t)cublasLtGetVersion();
}

/* ---- one GEMM ------------------------------------------------------------------------------------ */

struct description {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
};

static void undescribe(struct description *description) {
    if (description->desc != NULL) {
        cublasLtMatmulDescDestroy(description->desc);
    }
    if (description->a != NULL) {
        cublasLtMatrixLayoutDestroy(description->a);
    }
    if (description->b != NULL) {
        cublasLtMatrixLayoutDestroy(description->b);
    }
    if (description->d != NULL) {
        cublasLtMatrixLayoutDestroy(description->d);
    }
}

static enum ox_status set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, const void *value,
                          size_t bytes) {
    return check(cublasLtMatmulDescSetAttribute(desc, name, value, bytes), "describing a GEMM");
}

static enum ox_status describe_layouts(const struct gemm *p, struct description *out) {
    const bool a_plain = p->a_op == CUBLAS_OP_N, b_plain = p->b_op == CUBLAS_OP_N;
    enum ox_status status = check(cublasLtMatrixLayoutCreate(&out->a, p->in_type, a_plain ? p->m : p->k,
                                                             a_plain ? p->k : p->m, (int64_t)p->a_ld), "a layout");
    if (status == OX_OK) {
        status = check(cublasLtMatrixLayoutCreate(&out->b, p->in_type, b_plain ? p->k : p->n, b_plain ? p->n : p->k,
                                                  (int64_t)p->b_ld), "a layout");
    }
    OX_THEN(status, check(cublasLtMatrixLayoutCreate(&out->d, p->out_type, p->m, p->n, (int64_t)p->d_ld), "a layout"));
    return status;
}

static enum ox_status describe(const struct gemm *p, struct description *out) {
    const cublasLtEpilogue_t epilogue = p->has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    enum ox_status status =
        check(cublasLtMatmulDescCreate(&out->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a GEMM");
    OX_THEN(status, set(out->desc, CUBLASLT_MATMUL_DESC_TRANSA, &p->a_op, sizeof p->a_op));
    OX_THEN(status, set(out->desc, CUBLASLT_MATMUL_DESC_TRANSB, &p->b_op, sizeof p->b_op));
    OX_THEN(status, set(out->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    return status == OX_OK ? describe_layouts(p, out) : status;
}

/* ---- which algorithm -------------------------------------------------------------------------------- */

static enum ox_status prefer(const struct gemm *p, cublasLtMatmulPreference_t preference) {
    static const cublasLtMatmulPreferenceAttributes_t aligns[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t workspace_bytes = OX_CUDA_WORKSPACE_BYTES;
    /* If k is divided, the parts are kept in float32 and added in a separate step: never in the type of c, and never
     * into c in the order in which they arrive. */
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                      &reductions, sizeof reductions);
    }
    for (size_t i = 0; status == CUBLAS_STATUS_SUCCESS && i < sizeof aligns / sizeof aligns[0]; i++) {
        status = cublasLtMatmulPreferenceSetAttribute(preference, aligns[i], &p->align, sizeof p->align);
    }
    return check(status, "choosing an algorithm");
}

/* Also used to choose an algorithm, which depends on the alignment of the addresses. */
static cublasStatus_t set_bias(const struct description *description, const struct gemm *p, const void *bias) {
    return p->has_bias ? cublasLtMatmulDescSetAttribute(description->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                        sizeof bias)
                       : CUBLAS_STATUS_SUCCESS;
}

/* Lists the algorithms that the library would take, best by its own estimate first. The bias address is one with
 * exactly the alignment that is known, so that the answer does not depend on where the first bias lies. */
static enum ox_status ask(struct ox_cuda_blas *blas, const struct gemm *p, const struct description *description,
                          int wanted, cublasLtMatmulHeuristicResult_t *results, int *found) {
    cublasLtMatmulPreference_t preference = NULL;
    *found = 0;
    enum ox_status status = check(cublasLtMatmulPreferenceCreate(&preference), "choosing an algorithm");
    if (status != OX_OK) {
        return status;
    }
    status = prefer(p, preference);
    OX_THEN(status, check(set_bias(description, p, (const void *)(uintptr_t)p->align), "choosing an algorithm"));
    if (status == OX_OK) {
        status = check(cublasLtMatmulAlgoGetHeuristic(blas->handle, description->desc, description->a, description->b,
                                                      description->d, description->d, preference, wanted, results,
                                                      found), "choosing an algorithm");
    }
    cublasLtMatmulPreferenceDestroy(preference);
    if (status == OX_OK && *found == 0) {
        return ox_fail(OX_E_DEVICE, "GPU, cuBLASLt has no algorithm for a GEMM of %llu by %llu by %llu; please "
                       "report this", (unsigned long long)p->m, (unsigned long long)p->n, (unsigned long long)p->k);
    }
    return status;
}

static enum ox_status choose(struct ox_cuda_blas *blas, const struct gemm *p, const struct description *description,
                             struct known *out) {
    cublasLtMatmulHeuristicResult_t result = {0};
    int found = 0;
    const enum ox_status status = ask(blas, p, description, 1, &result, &found);
    *out = (struct known){.gemm = *p, .algo = result.algo, .workspace_bytes = result.workspaceSize};
    return status;
}

static bool same(const struct gemm *a, const struct gemm *b) {
    return a->a_op == b->a_op && a->b_op == b->b_op && a->m == b->m && a->n == b->n && a->k == b->k &&
           a->a_ld == b->a_ld && a->b_ld == b->b_ld && a->d_ld == b->d_ld && a->in_type == b->in_type &&
           a->out_type == b->out_type && a->has_bias == b->has_bias && a->adds == b->adds && a->align == b->align;
}

/* A run has few shapes; those beyond the table are asked for again each time, with the same answer. */
static enum ox_status algorithm(struct ox_cuda_blas *blas, const struct gemm *p,
                                const struct description *description, struct known *out) {
    enum ox_status status = OX_OK;
    bool found = false;
    pthread_mutex_lock(&blas->lock);
    for (uint32_t i = 0; i < blas->known_count && !found; i++) {
        found = same(&blas->known[i].gemm, p);
        if (found) {
            *out = blas->known[i];
        }
    }
    if (!found) {
        status = choose(blas, p, description, out);
        if (status == OX_OK && blas->known_count < SHAPES_MAX) {
            blas->known[blas->known_count++] = *out;
        }
    }
    pthread_mutex_unlock(&blas->lock);
    return status;
}

static uint32_t align_of(const struct gemm *p, const struct operands *at) {
    const uintptr_t addresses = (uintptr_t)at->a | (uintptr_t)at->b | (uintptr_t)at->c | (uintptr_t)at->d |
                                (uintptr_t)at->bias;
    const uint64_t in_bytes = p->in_type == CUDA_R_32F ? 4 : 2, out_bytes = p->out_type == CUDA_R_32F ? 4 : 2;
    const uintptr_t all = addresses | (p->a_ld * in_bytes) | (p->b_ld * in_bytes) | (p->d_ld * out_bytes) | 16;
    return (uint32_t)(all & -all);
}

static cublasStatus_t multiply(const struct ox_cuda_queue *queue, const struct description *description,
                               const struct known *known, const struct operands *at) {
    static const float one = 1.0f, zero = 0.0f;
    const cublasStatus_t status = set_bias(description, &known->gemm, at->bias);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    return cublasLtMatmul(queue->device->blas->handle, description->desc, &at->scale, at->a, description->a, at->b,
                          description->b, known->gemm.adds ? &one : &zero, at->c, description->d, at->d,
                          description->d, &known->algo, queue->device->workspace, known->workspace_bytes,
                          queue->stream);
}

/* ---- in words ---------------------------------------------------------------------------------------- */

/* One number of an algorithm's configuration, or -1 where this version of the library does not have it. */
static long configured(const struct known *known, cublasLtMatmulAlgoConfigAttributes_t name, size_t bytes) {
    uint32_t value = 0; /* those of two bytes are its lower half */
    size_t written = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoConfigGetAttribute(&known->algo, name, &value, bytes, &written);
    return status == CUBLAS_STATUS_SUCCESS ? (long)value : -1;
}

static const char *name_of(cudaDataType_t type) {
    return type == CUDA_R_32F ? "f32" : type == CUDA_R_16BF ? "bf16" : "f16";
}

/* In terms of row-major matrices, as in struct ox_cuda_gemm_args. Returns the length. */
static size_t name_gemm(const struct gemm *p, char text[OX_CUDA_GEMM_BYTES]) {
    const int length = snprintf(
        text, OX_CUDA_GEMM_BYTES, "%llu x %llu x %llu, %s to %s, rows of a %llu%s, of b %llu%s, of c %llu%s%s, "
        "aligned to %u", (unsigned long long)p->n, (unsigned long long)p->m, (unsigned long long)p->k,
        name_of(p->in_type), name_of(p->out_type),
        (unsigned long long)p->b_ld, p->b_op == CUBLAS_OP_T ? " transposed" : "", (unsigned long long)p->a_ld,
        p->a_op == CUBLAS_OP_T ? " transposed" : "", (unsigned long long)p->d_ld, p->adds ? ", added to" : "",
        p->has_bias ? ", with bias" : "", p->align);
    OX_ASSERT(length > 0 && length < OX_CUDA_GEMM_BYTES);
    return (size_t)length;
}

static void name_algorithm(const struct known *known, char *text, size_t bytes) {
    static const struct {
        const char *text;
        cublasLtMatmulAlgoConfigAttributes_t name;
        size_t bytes;
    } parts[] = {{"algorithm", CUBLASLT_ALGO_CONFIG_ID, 4},
                 {"tile", CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
                 {"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
                 {"parts of k", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
                 {"reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
                 {"swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
                 {"option", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
                 {"inner shape", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
                 {"cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2}};
    size_t used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        used += (size_t)snprintf(text + used, bytes - used, "%s %ld, ", parts[i].text,
                                 configured(known, parts[i].name, parts[i].bytes));
        OX_ASSERT(used < bytes);
    }
    snprintf(text + used, bytes - used, "workspace %zu", known->workspace_bytes);
}

bool ox_cuda_blas_text(struct ox_device *device, uint32_t idx, char text[OX_CUDA_GEMM_BYTES]) {
    struct ox_cuda_blas *const blas = ((const struct ox_cuda_device *)device)->blas;
    struct known known = {0};
    pthread_mutex_lock(&blas->lock);
    const bool is_known = idx < blas->known_count;
    if (is_known) {
        known = blas->known[idx];
    }
    pthread_mutex_unlock(&blas->lock);
    if (is_known) {
        const size_t length = name_gemm(&known.gemm, text);
        const size_t after = length + (size_t)snprintf(text + length, OX_CUDA_GEMM_BYTES - length, ": ");
        name_algorithm(&known, text + after, OX_CUDA_GEMM_BYTES - after);
    }
    return is_known;
}

/* ---- all algorithms, for measuring -------------------------------------------------------------------- */

enum { OFFERED_MAX = 64 };

/* An algorithm this many times slower than the best is not timed a second time. */
static const double hopeless = 1.2;

/* Best time of the rounds, by events; 0 if the library refuses its own offer. `best` is the best of other algorithms;
 * 0: none was timed yet. */
static enum ox_status time_one(const struct ox_cuda_queue *queue, const struct description *description,
                               const struct known *known, const struct operands *at, double best, double *seconds) {
    cudaEvent_t begin = NULL, end = NULL;
    bool refused = false;
    cudaError_t error = cudaEventCreateWithFlags(&begin, cudaEventBlockingSync);
    if (error == cudaSuccess) {
        error = cudaEventCreateWithFlags(&end, cudaEventBlockingSync);
    }
    *seconds = 0.0;
    for (uint32_t i = 0; i < queue->search->rounds && error == cudaSuccess && !refused; i++) {
        float milliseconds = 0.0f;
        refused = multiply(queue, description, known, at) != CUBLAS_STATUS_SUCCESS; /* warm, host ahead */
        error = cudaEventRecord(begin, queue->stream);
        refused = refused || multiply(queue, description, known, at) != CUBLAS_STATUS_SUCCESS;
        if (error == cudaSuccess) {
            error = cudaEventRecord(end, queue->stream);
        }
        if (error == cudaSuccess) {
            error = cudaEventSynchronize(end);
        }
        if (error == cudaSuccess) {
            error = cudaEventElapsedTime(&milliseconds, begin, end);
        }
        if (*seconds == 0.0 || (double)milliseconds * 1e-3 < *seconds) {
            *seconds = (double)milliseconds * 1e-3;
        }
        if (best > 0.0 && *seconds > hopeless * best) {
            break;
        }
    }
    if (begin != NULL) {
        cudaEventDestroy(begin);
    }
    if (end != NULL) {
        cudaEventDestroy(end);
    }
    *seconds = refused ? 0.0 : *seconds;
    return ox_cuda_check(error, "timing a GEMM");
}

static enum ox_status search_all(const struct ox_cuda_queue *queue, const struct description *description,
                                 const struct known *taken, const struct operands *at) {
    struct ox_cuda_search *const search = queue->search;
    cublasLtMatmulHeuristicResult_t *const results = calloc(OFFERED_MAX, sizeof *results);
    double seconds = 0.0, best = 0.0;
    int found = 0;
    if (results == NULL) {
        return ox_fail(OX_E_NOMEM, "GPU: no memory for %d algorithms", (int)OFFERED_MAX);
    }
    enum ox_status status = ask(queue->device->blas, &taken->gemm, description, OFFERED_MAX, results, &found);
    OX_THEN(status, time_one(queue, description, taken, at, 0.0, &best));
    search->taken_seconds += best;
    for (int i = 0; i < found && status == OX_OK; i++) {
        const struct known other = {.gemm = taken->gemm, .algo = results[i].algo,
                                    .workspace_bytes = results[i].workspaceSize};
        if (results[i].state == CUBLAS_STATUS_SUCCESS) {
            status = time_one(queue, description, &other, at, best, &seconds);
            best = seconds > 0.0 && seconds < best ? seconds : best;
        }
    }
    search->best_seconds += best;
    search->offered = (uint32_t)found > search->offered ? (uint32_t)found : search->offered;
    free(results);
    return status;
}

/* ---- running it ----------------------------------------------------------------------------------------- */

static enum ox_status run(const struct ox_cuda_queue *queue, struct gemm p, const struct operands *at) {
    struct ox_cuda_blas *const blas = queue->device->blas;
    struct description description = {0};
    struct known known;
    p.align = align_of(&p, at);
    enum ox_status status = describe(&p, &description);
    OX_THEN(status, algorithm(blas, &p, &description, &known));
    if (status == OX_OK) {
        status = queue->search != NULL ? search_all(queue, &description, &known, at)
                                       : check(multiply(queue, &description, &known, at), "a GEMM");
    }
    undescribe(&description);
    return status;
}

static cudaDataType_t type_of(enum ox_real real) {
    return real == OX_REAL_F32 ? CUDA_R_32F : real == OX_REAL_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

enum ox_status ox_cuda_gemm(const struct ox_cuda_queue *queue, const struct ox_cuda_gemm_args *given) {
    const struct gemm p = {
        .a_op = given->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
        .b_op = given->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
        .m = given->n, .n = given->m, .k = given->k,
        .a_ld = given->b_stride, .b_ld = given->a_stride, .d_ld = given->c_stride,
        .in_type = type_of(given->in), .out_type = type_of(given->out),
        .has_bias = given->bias != NULL, .adds = given->addend != NULL,
    };
    return run(queue, p, &(struct operands){.a = given->b, .b = given->a, .bias = given->bias, .d = given->c,
                                            .c = given->addend != NULL ? given->addend : given->c,
                                            .scale = given->scale == 0.0f ? 1.0f : given->scale});
}

/* ---- the operations --------------------------------------------------------------------------------- */

static uint32_t stride_of(uint32_t stride, uint32_t count) {
    return stride == 0 ? count : stride;
}

enum ox_status ox_cuda_linear_forward(const struct ox_cuda_queue *queue, const void *args) {
    const struct ox_op_linear_forward *const op = args;
    const bool out_in = op->layout == OX_WEIGHT_OUT_IN;
    return ox_cuda_gemm(queue, &(struct ox_cuda_gemm_args){
        .c = op->out, .a = op->in, .b = op->weight, .bias = op->bias, .addend = op->residual,
        .m = op->rows, .n = op->out_count, .k = op->in_count,
        .a_stride = stride_of(op->in_stride, op->in_count), .b_stride = out_in ? op->in_count : op->out_count,
        .c_stride = stride_of(op->out_stride, op->out_count), .b_transposed = out_in, .scale = op->scale,
        .in = op->real, .out = op->wide ? OX_REAL_F32 : op->real});
}

static enum ox_status add_dweight(const struct ox_cuda_queue *queue, const struct ox_op_linear_backward *op) {
    const bool out_in = op->layout == OX_WEIGHT_OUT_IN;
    const uint32_t m = out_in ? op->out_count : op->in_count, n = out_in ? op->in_count : op->out_count;
    const uint32_t in_stride = stride_of(op->in_stride, op->in_count);
    const uint32_t out_stride = stride_of(op->out_stride, op->out_count);
    return ox_cuda_gemm(queue, &(struct ox_cuda_gemm_args){
        .c = op->dweight, .addend = op->begins ? NULL : op->dweight,
        .a = out_in ? op->dout : op->in, .b = out_in ? op->in : op->dout, .m = m, .n = n, .k = op->rows,
        .a_stride = out_in ? out_stride : in_stride, .b_stride = out_in ? in_stride : out_stride, .c_stride = n,
        .a_transposed = true, .scale = op->scale, .in = op->real, .out = OX_REAL_F32});
}

enum ox_status ox_cuda_linear_backward(const struct ox_cuda_queue *queue, const void *args) {
    const struct ox_op_linear_backward *const op = args;
    const bool out_in = op->layout == OX_WEIGHT_OUT_IN;
    enum ox_status status = op->dweight == NULL ? OX_OK : add_dweight(queue, op);
    if (status == OX_OK && op->dbias != NULL) {
        status = ox_cuda_column_sums(queue, op);
    }
    if (status != OX_OK || op->din == NULL) {
        return status;
    }
    return ox_cuda_gemm(queue, &(struct ox_cuda_gemm_args){
        .c = op->din, .addend = op->residual, .a = op->dout, .b = op->weight,
        .m = op->rows, .n = op->in_count, .k = op->out_count, .a_stride = stride_of(op->out_stride, op->out_count),
        .b_stride = out_in ? op->in_count : op->out_count, .c_stride = stride_of(op->in_stride, op->in_count),
        .b_transposed = !out_in, .scale = op->scale, .in = op->real, .out = op->wide ? OX_REAL_F32 : op->real});
}

enum ox_status ox_cuda_blas_search(struct ox_device *device, const struct ox_op_linear_forward *forward,
                                   const struct ox_op_linear_backward *backward, struct ox_cuda_search *search) {
    struct ox_cuda_queue queue = {.device = (const struct ox_cuda_device *)device, .search = search};
    enum ox_status status = ox_cuda_check(cudaSetDevice(queue.device->idx), "choosing the device");
    OX_THEN(status, ox_cuda_check(cudaStreamCreateWithFlags(&queue.stream, cudaStreamNonBlocking), "a stream"));
    if (status != OX_OK) {
        return status;
    }
    status = forward != NULL ? ox_cuda_linear_forward(&queue, forward) : ox_cuda_linear_backward(&queue, backward);
    cudaStreamSynchronize(queue.stream);
    cudaStreamDestroy(queue.stream);
    return status;
}
