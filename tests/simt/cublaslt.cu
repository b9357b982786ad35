/* GEMMs for the emulated cuBLASLt: column-major. */
#include <cublasLt.h>

#include "base/assert.h"
#include "base/planes.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/simt/inside.h"
#include "tests/simt/matrix.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

static bool library_present = true;

/* OX_SIMT_BLAS_VERSION and OX_SIMT_ALGORITHM: the version and the number of every algorithm, as of another library. */
static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *const text = std::getenv(name);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

struct simt_blas {
    int unused;
};
struct simt_preference {
    uint32_t align[4]; /* alignment of a, b, c, d in bytes */
};
struct simt_desc {
    cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *bias = nullptr;
};
struct simt_layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
};

static double get(const void *at, cudaDataType type, uint64_t idx) {
    if (type == CUDA_R_32F) {
        return (double)((const float *)at)[idx];
    }
    const uint16_t bits = ((const uint16_t *)at)[idx];
    return (double)(type == CUDA_R_16F ? ox_f16_to_f32(bits) : ox_bf16_to_f32(bits));
}

static void set(void *at, cudaDataType type, uint64_t idx, double value) {
    if (type == CUDA_R_32F) {
        ((float *)at)[idx] = (float)value;
    } else {
        ((uint16_t *)at)[idx] = type == CUDA_R_16F ? ox_f16_from_f32((float)value) : ox_bf16_from_f32((float)value);
    }
}

/* The alignments for which an algorithm was chosen: a, b, c, d, and the bias by its address at that time. */
enum { BIAS = 4, ALGORITHM = 5 };

static uint64_t align_of(const void *ptr) {
    const uintptr_t address = (uintptr_t)ptr | 16; /* no access is wider */
    return address & -address;
}

static bool is_aligned(const void *ptr, const simt_layout &layout, uint64_t align) {
    const uint64_t row_bytes = (uint64_t)layout.ld * (layout.type == CUDA_R_32F ? 4 : 2);
    return (uintptr_t)ptr % align == 0 && row_bytes % align == 0;
}

struct gemm {
    simt_desc desc;
    simt_layout a_layout, b_layout, c_layout, d_layout;
    const void *a, *b, *c;
    void *d;
    float alpha, beta;
};

/* A whole operand in double, `across` behind one another for each of `along`. */
static std::vector<double> widened(const void *at, const simt_layout &layout, bool along_columns, uint64_t along,
                                   uint64_t across) {
    std::vector<double> out(along * across);
    for (uint64_t i = 0; i < along; i++) {
        for (uint64_t j = 0; j < across; j++) {
            out[i * across + j] = get(at, layout.type, along_columns ? j + i * layout.ld : i + j * layout.ld);
        }
    }
    return out;
}

/* A column of the product of A, stored by its columns, and a column of B: in float32 in double, as a reference. */
static void of_doubles(const double *a, const double *b, uint64_t m, uint64_t k, double *out) {
    std::fill(out, out + m, 0.0);
    for (uint64_t i = 0; i < k; i++) {
        for (uint64_t row = 0; row < m; row++) {
            out[row] += a[i * m + row] * b[i];
        }
    }
}

/* One element by the tensor cores, some products at a time; A is stored by its rows. */
static double of_terms(const double *a, const double *b, uint64_t k) {
    enum : uint64_t { AT_ONCE = 16 };
    double sum = 0.0, products[AT_ONCE];
    for (uint64_t i = 0; i < k; i += AT_ONCE) {
        const uint64_t count = std::min<uint64_t>(k - i, AT_ONCE);
        for (uint64_t j = 0; j < count; j++) {
            products[j] = a[i + j] * b[i + j];
        }
        sum = (double)simt_tensor_sum((float)sum, products, (unsigned)count);
    }
    return sum;
}

static void run(const gemm &p) {
    const uint64_t m = p.d_layout.rows, n = p.d_layout.cols;
    const uint64_t k = p.desc.a == CUBLAS_OP_N ? p.a_layout.cols : p.a_layout.rows;
    OX_ASSERT((p.desc.a == CUBLAS_OP_N ? p.a_layout.rows : p.a_layout.cols) == m);
    OX_ASSERT((p.desc.b == CUBLAS_OP_N ? p.b_layout.rows : p.b_layout.cols) == k);
    OX_ASSERT((p.desc.b == CUBLAS_OP_N ? p.b_layout.cols : p.b_layout.rows) == n);
    /* the combination of types that kernels/cuda/ asks for */
    OX_ASSERT(p.a_layout.type == p.b_layout.type && p.c_layout.type == p.d_layout.type);
    OX_ASSERT(p.d_layout.type == p.a_layout.type || p.d_layout.type == CUDA_R_32F);
    const bool by_tensor_cores = p.a_layout.type != CUDA_R_32F, a_plain = p.desc.a == CUBLAS_OP_N;
    const std::vector<double> a = by_tensor_cores ? widened(p.a, p.a_layout, !a_plain, m, k)
                                                  : widened(p.a, p.a_layout, a_plain, k, m);
    const std::vector<double> b = widened(p.b, p.b_layout, p.desc.b == CUBLAS_OP_N, n, k);
    std::vector<double> sums(m);
    for (uint64_t col = 0; col < n; col++) {
        if (!by_tensor_cores) {
            of_doubles(a.data(), &b[col * k], m, k, sums.data());
        }
        for (uint64_t row = 0; row < m; row++) {
            double sum = by_tensor_cores ? of_terms(&a[row * k], &b[col * k], k) : sums[row];
            sum *= p.alpha;
            if (p.beta != 0.0f) {
                sum += p.beta * get(p.c, p.c_layout.type, row + col * p.c_layout.ld);
            }
            if (p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS) {
                sum += get(p.desc.bias, p.d_layout.type, row);
            }
            set(p.d, p.d_layout.type, row + col * p.d_layout.ld, sum);
        }
    }
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = new simt_blas{0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) {
    return setting("OX_SIMT_BLAS_VERSION", 130000);
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS            ? "success"
           : status == CUBLAS_STATUS_EXECUTION_FAILED ? "the GPU program failed to execute"
                                                      : "not supported";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t, cudaDataType_t) {
    *desc = new simt_desc;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    void *const to = attribute == CUBLASLT_MATMUL_DESC_TRANSA     ? (void *)&desc->a
                     : attribute == CUBLASLT_MATMUL_DESC_TRANSB   ? (void *)&desc->b
                     : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE ? (void *)&desc->epilogue
                                                                  : (void *)&desc->bias;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    OX_ASSERT(ld >= (int64_t)rows);
    *layout = new simt_layout{type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    *preference = new simt_preference{{256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
    const int which = (int)attribute - (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    if (which >= 0 && which < BIAS) {
        OX_ASSERT(bytes == sizeof preference->align[which]);
        memcpy(&preference->align[which], value, bytes);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int,
                                              cublasLtMatmulHeuristicResult_t results[], int *found) {
    results[0] = cublasLtMatmulHeuristicResult_t{};
    for (int i = 0; i < BIAS; i++) {
        results[0].algo.data[i] = preference->align[i];
    }
    results[0].algo.data[BIAS] = align_of(desc->bias);
    results[0].algo.data[ALGORITHM] = setting("OX_SIMT_ALGORITHM", 1);
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written) {
    const bool is_short = attribute >= CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID;
    const uint32_t number = attribute == CUBLASLT_ALGO_CONFIG_ID ? (uint32_t)algo->data[ALGORITHM] : 0;
    *written = is_short ? sizeof(uint16_t) : sizeof number;
    if (bytes != *written) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    memcpy(value, &number, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *, size_t,
                              cudaStream_t stream) {
    OX_ASSERT(is_aligned(a, *a_layout, algo->data[0]) && is_aligned(b, *b_layout, algo->data[1]));
    OX_ASSERT(is_aligned(c, *c_layout, algo->data[2]) && is_aligned(d, *d_layout, algo->data[3]));
    OX_ASSERT(desc->epilogue != CUBLASLT_EPILOGUE_BIAS || (uintptr_t)desc->bias % algo->data[BIAS] == 0);
    gemm p = {*desc, *a_layout, *b_layout, *c_layout, *d_layout, a, b, c, d, 0.0f, 0.0f};
    memcpy(&p.alpha, alpha, sizeof p.alpha);
    memcpy(&p.beta, beta, sizeof p.beta);
    return simt_queue(stream, [p] { run(p); }) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

void simt_set_blas(bool present) {
    library_present = present;
}

ox_status ox_cuda_blas_library_open(void) {
    return library_present ? OX_OK : ox_fail(OX_E_DEVICE, "GPU: cuBLASLt does not open: a test took it away");
}

} // extern "C"
