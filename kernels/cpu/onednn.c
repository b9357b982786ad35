/* Opens oneDNN. */
#include "kernels/cpu/onednn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* As in the library's headers: what it reports of itself, and bits of the instruction sets that it uses here. */
struct version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_threads, gpu_runtime;
};
enum { THREADS_NONE = 1, THREADS_OPENMP = 2, ISA_AVX512_BF16 = 0xe7, ISA_AMX = 0x300 };

typedef const struct version *version_fn(void);
typedef int isa_fn(void);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct ox_onednn library;
static bool is_usable;
static char text_of[192];

/* Its OpenMP, where OMP_PROC_BIND or OMP_PLACES is set, binds the thread that opens it to one processor, and threads
 * that this one starts would be bound with it. */
static void *open_file(void) {
    static const char *const names[] = {"libdnnl.so.3", "libdnnl.so.2"};
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    (void)sched_getaffinity(0, sizeof cpus, &cpus);
    void *file = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && file == NULL; i++) {
        file = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    (void)sched_setaffinity(0, sizeof cpus, &cpus); /* of no processors, where they are not known, it changes nothing */
    return file;
}

/* The value of a symbol as a pointer to a function, which C does not convert. */
static bool find(void *file, const char *name, void *function) {
    void *const found = dlsym(file, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static void set_threads(void) {
    if (library.set_threads != NULL) {
        library.set_threads(1);
    }
}

/* Multiplies matrices whose product is known, with both forms and strides beyond the rows: a library in which the
 * function takes other arguments is not used. */
static bool multiplies(void) {
    enum { DIM = 3, STRIDE = 4 };
    static const uint16_t bf16[] = {0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110};
    uint16_t a[DIM * STRIDE] = {0}, b[DIM * STRIDE] = {0};
    float c[DIM * STRIDE];
    bool same = true;
    for (int i = 0; i < DIM; i++) {
        for (int j = 0; j < DIM; j++) {
            a[i * STRIDE + j] = bf16[1 + i * DIM + j];
            b[i * STRIDE + j] = bf16[9 - i * DIM - j];
            c[i * STRIDE + j] = 100.0f;
        }
    }
    set_threads();
    same = library.gemm('N', 'T', DIM, DIM, DIM, 1.0f, a, STRIDE, b, STRIDE, 1.0f, c, STRIDE) == 0;
    for (int i = 0; i < DIM; i++) {
        for (int j = 0; j < DIM; j++) {
            float sum = 100.0f;
            for (int k = 0; k < DIM; k++) {
                sum += (float)((1 + i * DIM + k) * (9 - j * DIM - k));
            }
            same = same && c[i * STRIDE + j] == sum;
        }
    }
    return same;
}

static void load(void) {
    version_fn *version = NULL;
    isa_fn *isa = NULL;
    void *const file = open_file();
    if (file == NULL) {
        snprintf(text_of, sizeof text_of, "there is no libdnnl (oneDNN)");
        return;
    }
    if (!find(file, "dnnl_version", &version) || !find(file, "dnnl_get_effective_cpu_isa", &isa) ||
        !find(file, "dnnl_gemm_bf16bf16f32", &library.gemm)) {
        snprintf(text_of, sizeof text_of, "this libdnnl (oneDNN) has no GEMM of bf16");
        return;
    }
    const struct version *const is = version();
    const int isas = isa();
    if ((isas & ISA_AVX512_BF16) != ISA_AVX512_BF16) {
        snprintf(text_of, sizeof text_of, "oneDNN %d.%d.%d finds neither AVX-512 BF16 nor AMX", is->major, is->minor,
                 is->patch);
        return;
    }
    const bool openmp = is->cpu_threads == THREADS_OPENMP && find(file, "omp_set_num_threads", &library.set_threads);
    if ((!openmp && is->cpu_threads != THREADS_NONE) || !multiplies()) {
        snprintf(text_of, sizeof text_of, "oneDNN %d.%d.%d is built in a way that is not supported", is->major,
                 is->minor, is->patch);
        return;
    }
    is_usable = true;
    snprintf(text_of, sizeof text_of, "oneDNN %d.%d.%d, %s", is->major, is->minor, is->patch,
             (isas & ISA_AMX) == ISA_AMX ? "AMX" : "AVX-512 BF16");
}

const struct ox_onednn *ox_onednn_open(const char **text) {
    pthread_once(&once, load);
    *text = text_of;
    return is_usable ? &library : NULL;
}
