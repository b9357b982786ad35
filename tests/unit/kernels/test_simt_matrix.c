/* The emulated instructions of the tensor cores against the fragment layouts as the PTX ISA writes them: element i of
 * a lane's fragment is at a row and a column that are given by i and the lane alone. Whole numbers, so that sums are
 * exact. */
#include "base/planes.h"
#include "base/prng/prng.h"
#include "tests/kit/device/cuda_kit.h"
#include "tests/simt/matrix.h"

#include <dlfcn.h>
#include <string.h>

enum { LANES = 32, M = 16, N = 8, K = 16 };

static simt_try_mma_fn *try_mma;
static simt_try_ldmatrix_fn *try_ldmatrix;

/* POSIX lets an object pointer be a function's. */
static void find(void *library, const char *name, void *out) {
    void *const found = dlsym(library, name);
    CHECK(found != NULL);
    memcpy(out, &found, sizeof found);
}

/* Opening its device brings in what the emulation takes of base/. */
static void open_emulation(void) {
    struct cuda_kit kit;
    struct ox_device *device;
    cuda_kit_emulated(&kit);
    REQUIRE_OK(ox_cuda_device_open(&(struct ox_cuda_config){.plugin_path = kit.plugin}, &device));
    ox_device_close(&device);
    void *const library = dlopen(kit.plugin, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL) {
        printf("%s is not loaded: %s\n", kit.plugin, dlerror());
        exit(1);
    }
    find(library, "simt_try_mma", &try_mma);
    find(library, "simt_try_ldmatrix", &try_ldmatrix);
}

/* Row and column of a lane's elements: 8 (a0..a7) of the left operand, 4 of the right one, 4 of the result. */
static int a_row(int lane, int i) {
    return i < 2 || (i >= 4 && i < 6) ? lane >> 2 : (lane >> 2) + 8;
}
static int a_column(int lane, int i) {
    return i < 4 ? lane % 4 * 2 + (i & 1) : lane % 4 * 2 + (i & 1) + 8;
}
static int b_row(int lane, int i) {
    return i < 2 ? lane % 4 * 2 + (i & 1) : lane % 4 * 2 + (i & 1) + 8;
}
static int b_column(int lane) {
    return lane >> 2;
}
static int c_row(int lane, int i) {
    return i < 2 ? lane >> 2 : (lane >> 2) + 8;
}
static int c_column(int lane, int i) {
    return lane % 4 * 2 + (i & 1);
}

static float whole(uint64_t stream, uint64_t at) {
    return (float)(int)(ox_uniform(5, stream, at) * 41.0) - 20.0f;
}

/* Element i of a lane's fragment is the lower half of register i / 2 where i is even. */
static uint32_t element(float value, int i) {
    return (uint32_t)ox_bf16_from_f32(value) << (i % 2 * 16);
}

static void test_mma(uint64_t stream) {
    float a[M][K], b[K][N], c[M][N], acc[LANES][4];
    uint32_t a_registers[LANES][4] = {{0}}, b_registers[LANES][2] = {{0}};
    for (int i = 0; i < M * K; i++) {
        a[i / K][i % K] = whole(stream, (uint64_t)i);
    }
    for (int i = 0; i < K * N; i++) {
        b[i / N][i % N] = whole(stream + 1, (uint64_t)i);
    }
    for (int i = 0; i < M * N; i++) {
        c[i / N][i % N] = whole(stream + 2, (uint64_t)i);
    }
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < 8; i++) {
            a_registers[lane][i / 2] |= element(a[a_row(lane, i)][a_column(lane, i)], i);
        }
        for (int i = 0; i < 4; i++) {
            b_registers[lane][i / 2] |= element(b[b_row(lane, i)][b_column(lane)], i);
            acc[lane][i] = c[c_row(lane, i)][c_column(lane, i)];
        }
    }
    try_mma(acc, (const uint32_t(*)[4])a_registers, (const uint32_t(*)[2])b_registers);
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < 4; i++) {
            const int row = c_row(lane, i), column = c_column(lane, i);
            float want = c[row][column];
            for (int k = 0; k < K; k++) {
                want += a[row][k] * b[k][column];
            }
            CHECK(acc[lane][i] == want);
        }
    }
}

/* Four matrices, whose rows lie anywhere: lane 8 i + r names row r of matrix i. A lane then has of each the elements
 * (lane / 4, 2 (lane % 4)) and the one right of it, or, transposed, (2 (lane % 4), lane / 4) and the one below. */
static void test_ldmatrix(bool transposed) {
    _Alignas(16) uint16_t memory[64][8];
    const void *rows[LANES];
    uint32_t out[LANES][4];
    for (int i = 0; i < 64 * 8; i++) {
        memory[i / 8][i % 8] = (uint16_t)(1000 + i);
    }
    for (int i = 0; i < LANES; i++) {
        rows[i] = memory[i * 37 % 64];
    }
    try_ldmatrix(out, (const void *const *)rows, transposed);
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < 4; i++) {
            for (int half = 0; half < 2; half++) {
                const int row = transposed ? lane % 4 * 2 + half : lane / 4;
                const int column = transposed ? lane / 4 : lane % 4 * 2 + half;
                CHECK((uint16_t)(out[lane][i] >> (16 * half)) == memory[(8 * i + row) * 37 % 64][column]);
            }
        }
    }
}

int main(void) {
    open_emulation();
    for (uint64_t i = 0; i < 8; i++) {
        test_mma(10 * i);
    }
    test_ldmatrix(false);
    test_ldmatrix(true);
    return test_end();
}
