#include "tests/kit/device/ops_kit.h"

#include "base/hash/hash.h"
#include "base/planes.h"
#include "base/prng/prng.h"
#include "kernels/cuda.h"
#include "tests/kit/device/simt_kit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int lab_count = LAB_CUDA;
int guard_count;

/* Guarded buffers are cut from this when there is a GPU: host memory that it can use at the host's addresses. The
 * references of the widest head take most of it. */
static const size_t LAB_ARENA_BYTES = (size_t)2 << 30;
static struct {
    unsigned char *base;
    size_t used;
} lab_arena;

/* The emulation takes no more than this many multiplications of a kernel's threads, to be done in a few seconds; its
 * fibers are slower under the sanitizers. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const double lab_work_max = 3e5;
#else
static const double lab_work_max = 1e6;
#endif

enum { GUARD_MAX = 64, GUARD_BYTES = 64 };

struct guard {
    unsigned char *base;
    size_t bytes;
};
static struct guard guards[GUARD_MAX];

/* The worst error of each named quantity over all cases is printed beside its tolerance at the end. */
struct worst {
    const char *what;
    enum ox_real real;
    double error, tolerance;
};
enum { WORST_MAX = 256 };
static struct worst worst_list[WORST_MAX];
static int worst_count;


static void open_cuda(struct lab *lab, const struct ox_cuda_config *config) {
    *lab = (struct lab){.compute = {.device = OX_DEVICE_CUDA}};
    REQUIRE_OK(ox_cuda_device_open(config, &lab->device));
    REQUIRE_OK(ox_device_lane_open(lab->device, "compute", &lab->lane));
    ox_ops_init_cuda(lab->device, &lab->ops);
}

void lab_open_cuda(struct lab *lab, const char *plugin) {
    open_cuda(lab, &(struct ox_cuda_config){.plugin_path = plugin});
}

void lab_open_simt(struct lab *lab) {
    struct cuda_kit kit;
    cuda_kit_emulated(&kit);
    lab_open_cuda(lab, kit.plugin);
    lab->emulated = true;
}

static void labs_open_gpu(struct lab labs[LAB_MAX]) {
    struct cuda_kit kit;
    if (!cuda_kit_real(&kit)) {
        return;
    }
    lab_open_cuda(&labs[LAB_CUDA], kit.plugin);
    lab_open_cuda(&labs[LAB_CUDA_AGAIN], kit.plugin);
    lab_count = LAB_MAX;
    lab_arena.base = aligned_alloc(4096, LAB_ARENA_BYTES);
    lab_arena.used = 0;
    REQUIRE_OK(ox_device_host_pin(labs[LAB_CUDA].device, lab_arena.base, LAB_ARENA_BYTES));
}

static void labs_open_cpus(struct lab labs[LAB_CPU_COUNT], enum ox_real products) {
    static const struct ox_cpu_device_config configs[LAB_CPU_COUNT] = {
        {.thread_count = 1},
        {.thread_count = 2},
        {.thread_count = 2, .chaos_seed = 7, .chaos_ns_max = 200000},
        {.thread_count = 3},
        {.thread_count = 5},
    };
    for (int i = 0; i < LAB_CPU_COUNT; i++) {
        struct ox_cpu_device_config config = configs[i];
        config.products = products;
        labs[i] = (struct lab){.compute = {.threads = config.thread_count}, .products = products};
        REQUIRE_OK(ox_cpu_device_open(&config, &labs[i].device));
        REQUIRE_OK(ox_device_lane_open(labs[i].device, "compute", &labs[i].lane));
        ox_ops_init_cpu(&labs[i].ops);
    }
}

void labs_open(struct lab labs[LAB_MAX]) {
    lab_open_simt(&labs[LAB_SIMT]);
    labs_open_gpu(labs);
    labs_open_cpus(labs, OX_REAL_F32);
}

static void labs_close(struct lab labs[LAB_MAX]) {
    if (lab_arena.base != NULL) {
        REQUIRE_OK(ox_device_host_unpin(labs[LAB_CUDA].device, lab_arena.base, LAB_ARENA_BYTES));
        free(lab_arena.base);
        lab_arena.base = NULL;
    }
    for (int i = 0; i < lab_count; i++) {
        ox_lane_close(&labs[i].lane);
        ox_device_close(&labs[i].device);
        CHECK(labs[i].device == NULL && labs[i].lane == NULL);
    }
}

bool labs_change_products(struct lab labs[LAB_MAX], enum ox_real products) {
    const char *library;
    const bool is_there = ox_cpu_has_products(products, &library);
    printf("GEMMs of the CPU in %s: %s\n", ox_real_name(products), library);
    if (is_there) {
        labs_close(labs);
        lab_count = LAB_CPU_COUNT;
        labs_open_cpus(labs, products);
    }
    return is_there;
}

int labs_end(struct lab labs[LAB_MAX]) {
    labs_close(labs);
    print_errors();
    return test_end();
}

bool lab_owns_attention(const struct lab *lab, enum ox_real real) {
    static const char own[] = "own kernels: ";
    struct ox_cuda_device_info info;
    if (real == OX_REAL_F32) {
        return true;
    }
    REQUIRE_OK(ox_cuda_device_query(lab->device, &info));
    return strncmp(info.attention, own, sizeof own - 1) == 0;
}

void labs_change_attention(struct lab labs[LAB_MAX]) {
    const struct simt *const simt = simt_open();
    struct cuda_kit kit;
    /* The old devices close last, because the memory of the cases is registered with them. */
    struct lab old[LAB_MAX];
    memcpy(old, labs, sizeof old);
    *simt->cudnn_is_there = true;
    lab_open_simt(&labs[LAB_SIMT]);
    *simt->cudnn_is_there = false;
    if (lab_count == LAB_MAX && cuda_kit_real(&kit)) {
        const struct ox_cuda_config config = {.plugin_path = kit.plugin, .own_attention = true};
        open_cuda(&labs[LAB_CUDA], &config);
        open_cuda(&labs[LAB_CUDA_AGAIN], &config);
    }
    for (int i = LAB_SIMT; i < lab_count; i++) {
        ox_lane_close(&old[i].lane);
        ox_device_close(&old[i].device);
    }
}

bool lab_takes(const struct lab *lab, double work) {
    return !lab->emulated || work < lab_work_max;
}

void lab_finish(struct lab *lab) {
    struct ox_mark mark;
    REQUIRE_OK(lab->ops.mark(lab->lane, &mark));
    REQUIRE_OK(ox_mark_join(mark));
}

void lab_digest(struct lab *lab, const void *data, size_t bytes) {
    lab->digest = ox_hash64(data, bytes, lab->digest);
}

void labs_end_case(struct lab labs[LAB_MAX]) {
    for (int i = 1; i < LAB_CPU_COUNT; i++) {
        CHECK(labs[i].digest == labs[0].digest);
    }
    CHECK(lab_count <= LAB_CUDA || labs[LAB_CUDA].digest == labs[LAB_CUDA_AGAIN].digest);
    for (int i = 0; i < lab_count; i++) {
        labs[i].digest = 0;
    }
    guards_end(0);
}

static unsigned char *guard_memory(size_t bytes) {
    if (lab_arena.base == NULL) {
        return malloc(bytes);
    }
    const size_t rounded = (bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
    if (rounded > LAB_ARENA_BYTES - lab_arena.used) {
        return NULL;
    }
    lab_arena.used += rounded;
    return lab_arena.base + lab_arena.used - rounded;
}

void *guarded(size_t bytes) {
    if (guard_count == GUARD_MAX) {
        printf("too many guarded buffers\n");
        exit(1);
    }
    unsigned char *const base = guard_memory(bytes + 2 * GUARD_BYTES);
    if (base == NULL) {
        printf("no memory for a buffer of %zu bytes\n", bytes);
        exit(1);
    }
    memset(base, 0xa5, GUARD_BYTES);
    memset(base + GUARD_BYTES, 0xff, bytes);
    memset(base + GUARD_BYTES + bytes, 0xa5, GUARD_BYTES);
    guards[guard_count++] = (struct guard){.base = base, .bytes = bytes};
    return base + GUARD_BYTES;
}

float *floats(size_t count) {
    return guarded(count * sizeof(float));
}

double *doubles(size_t count) {
    return guarded(count * sizeof(double));
}

void guards_end(int keep) {
    while (guard_count > keep) {
        const struct guard *const guard = &guards[--guard_count];
        int broken = 0;
        for (size_t i = 0; i < GUARD_BYTES; i++) {
            broken += guard->base[i] != 0xa5 || guard->base[GUARD_BYTES + guard->bytes + i] != 0xa5;
        }
        CHECK(broken == 0);
        if (lab_arena.base == NULL) {
            free(guard->base);
        } else {
            lab_arena.used = (size_t)(guard->base - lab_arena.base);
        }
    }
}

void fill_normal(float *out, size_t count, uint64_t stream, double scale) {
    for (size_t i = 0; i < count; i++) {
        out[i] = (float)(scale * ox_normal(1, stream, i));
    }
}

float *random_floats(size_t count, uint64_t stream, double scale) {
    float *const out = floats(count);
    fill_normal(out, count, stream, scale);
    return out;
}

void make_hard(float *values, size_t count, uint64_t stream) {
    static const float hard[] = {0.0f, -0.0f, 1e-40f, -1e-40f, 1.2e-38f, -6e-8f, 1.0f, 1.0f, 89.0f, -89.0f,
                                 200.0f, -200.0f};
    for (size_t i = 0; i < count; i++) {
        const double drawn = 4 * ox_uniform(1, stream, i);
        values[i] = drawn < 1 ? hard[(size_t)(drawn * (sizeof hard / sizeof *hard))] : values[i];
    }
}

double *widened(const float *in, size_t count) {
    double *const out = doubles(count);
    for (size_t i = 0; i < count; i++) {
        out[i] = (double)in[i];
    }
    return out;
}

void fill(float *out, size_t count, float value) {
    for (size_t i = 0; i < count; i++) {
        out[i] = value;
    }
}

bool lab_knows(struct lab *lab, enum ox_real real) {
    lab->compute.real = real;
    return real == OX_REAL_F32 || lab->compute.device != OX_DEVICE_CPU;
}

float real_nearest(enum ox_real real, float value) {
    return real == OX_REAL_F32    ? value
           : real == OX_REAL_BF16 ? ox_bf16_to_f32(ox_bf16_from_f32(value))
                                  : ox_f16_to_f32(ox_f16_from_f32(value));
}

float *random_reals(enum ox_real real, size_t count, uint64_t stream, double scale) {
    float *const out = random_floats(count, stream, scale);
    for (size_t i = 0; i < count && real != OX_REAL_F32; i++) {
        out[i] = real_nearest(real, out[i]);
    }
    return out;
}

void *reals(enum ox_real real, size_t count) {
    return guarded(count * ox_real_bytes(real));
}

void *reals_of(enum ox_real real, const float *values, size_t count) {
    void *const out = reals(real, count);
    if (real == OX_REAL_F32) {
        memcpy(out, values, count * sizeof(float));
    }
    for (size_t i = 0; i < count && real != OX_REAL_F32; i++) {
        ((uint16_t *)out)[i] = real == OX_REAL_BF16 ? ox_bf16_from_f32(values[i]) : ox_f16_from_f32(values[i]);
    }
    return out;
}

float *floats_of(enum ox_real real, const void *tensor, size_t count) {
    float *const out = floats(count);
    if (real == OX_REAL_F32) {
        memcpy(out, tensor, count * sizeof(float));
    }
    for (size_t i = 0; i < count && real != OX_REAL_F32; i++) {
        const uint16_t bits = ((const uint16_t *)tensor)[i];
        out[i] = real == OX_REAL_BF16 ? ox_bf16_to_f32(bits) : ox_f16_to_f32(bits);
    }
    return out;
}

double error_of(const float *got, const double *want, size_t count) {
    double largest = 1e-30, difference = 0.0;
    for (size_t i = 0; i < count; i++) {
        const double here = fabs((double)got[i] - want[i]);
        largest = fmax(largest, fabs(want[i]));
        difference = isnan(here) || here > difference ? (isnan(here) ? INFINITY : here) : difference;
    }
    return difference / largest;
}

void check_error_in(enum ox_real real, const char *what, double error, double tolerance) {
    int at = 0;
    while (at < worst_count && (strcmp(worst_list[at].what, what) != 0 || worst_list[at].real != real)) {
        at++;
    }
    if (at == WORST_MAX) {
        printf("too many named quantities\n");
        exit(1);
    }
    if (at == worst_count) {
        worst_list[worst_count++] = (struct worst){.what = what, .real = real};
    }
    worst_list[at].error = fmax(worst_list[at].error, error);
    worst_list[at].tolerance = tolerance;
    CHECK(error <= tolerance);
}

void check_error(const char *what, double error, double tolerance) {
    check_error_in(OX_REAL_F32, what, error, tolerance);
}

/* Where rounding to bfloat16 makes the error, halves make an eighth of it. */
void check_real_error(enum ox_real real, const char *what, double error, double f32, double bf16) {
    const double f16 = bf16 > 1e-3 ? bf16 / 6 : bf16;
    check_error_in(real, what, error, real == OX_REAL_F32 ? f32 : real == OX_REAL_BF16 ? bf16 : f16);
}

void check_begun(const struct lab *lab, const float *begun, const float *added, size_t count) {
    const bool same = lab->compute.device == OX_DEVICE_CPU || lab->emulated;
    size_t first = count;
    for (size_t i = count; i-- > 0;) {
        first = begun[i] == added[i] ? first : i;
    }
    if (!same) {
        check_error("sums that begin on a GPU", error_of(begun, widened(added, count), count), 1e-5);
    } else if (first < count) {
        CHECK(begun[first] == added[first]);
    }
}

void print_errors(void) {
    for (int i = 0; i < worst_count; i++) {
        printf("%-28s %s error %.2e, allowed %.2e\n", worst_list[i].what,
               worst_list[i].real == OX_REAL_F32 ? "    " : ox_real_name(worst_list[i].real), worst_list[i].error,
               worst_list[i].tolerance);
    }
}

double gradient_error(loss_fn *loss, const void *context, double *x, const double *gradient, size_t count) {
    const double step = 1e-5;
    double largest = 1e-30, difference = 0.0;
    for (size_t i = 0; i < count; i++) {
        const double kept = x[i];
        x[i] = kept + step;
        const double above = loss(context, x);
        x[i] = kept - step;
        const double below = loss(context, x);
        x[i] = kept;
        largest = fmax(largest, fabs(gradient[i]));
        difference = fmax(difference, fabs((above - below) / (2.0 * step) - gradient[i]));
    }
    return difference / largest;
}
