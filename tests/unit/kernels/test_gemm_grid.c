/* Tiles of GEMMs: they cover the output, and no bit depends on how many threads compute, with every kind of kernels
 * that OpenBLAS has for this processor; some of these give other last bits for other borders. */
#include "base/assert.h"
#include "base/isa.h"
#include "kernels/cpu/cpu.h"
#include "tests/kit/draw.h"
#include "tests/kit/test.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint32_t thread_counts[] = {1, 2, 5, 16};
enum { THREAD_COUNTS = sizeof thread_counts / sizeof *thread_counts, OUTPUTS_MOST = 1 << 21, DRAWN = 16 };

static bool is_border(uint64_t at, uint32_t total) {
    return at == total || at % 64 == 0;
}

static void check_parts(uint32_t total, uint32_t count) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct ox_range part = ox_cpu_gemm_part(total, i, count);
        CHECK(part.begin == at && part.end > at && is_border(part.end, total));
        CHECK(count == 1 || part.end - part.begin >= 64);
        at = part.end;
    }
    CHECK(at == total);
}

/* A large GEMM keeps nearly all threads busy; a tile of one is not on the library's path for small matrices. */
static void check_grid(const struct ox_gemm *gemm, uint32_t threads) {
    const struct ox_gemm_grid grid = ox_cpu_gemm_grid(gemm, threads);
    check_parts(gemm->m, grid.rows);
    check_parts(gemm->n, grid.cols);
    if (gemm->m >= 1024 && gemm->n >= 1024 && gemm->k >= 256 && ox_cpu_gemm_cuts_freely()) {
        CHECK(4 * grid.rows * grid.cols >= 3 * threads && grid.rows * grid.cols <= 4 * threads + 3);
        CHECK((uint64_t)(gemm->m / grid.rows - 64) * (gemm->n / grid.cols - 64) * gemm->k > 1000000);
    }
}

static void fill(float *values, size_t count, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)((uint32_t)i * 2654435761u + seed) * 0x1p-32f - 0.5f;
    }
}

struct room {
    struct ox_cpu cpus[THREAD_COUNTS];
    float *a, *b, *c, *first;
};

/* One GEMM with every number of threads; `form` has a bit each for op(a), op(b), beta and a bias. */
static void check_shape(struct room *room, uint32_t m, uint32_t n, uint32_t k, uint32_t form) {
    struct ox_gemm gemm = {.c = room->c, .a = room->a, .b = room->b, .m = m, .n = n, .k = k,
                           .a_stride = form & 1 ? m : k, .b_stride = form & 2 ? k : n, .c_stride = n,
                           .a_transposed = form & 1, .b_transposed = form & 2, .beta = form & 4 ? 1.0f : 0.0f,
                           .bias = form & 8 ? room->b : NULL};
    const size_t bytes = (size_t)m * n * sizeof *room->c;
    OX_ASSERT((size_t)m * n <= OUTPUTS_MOST && (size_t)m * k <= OUTPUTS_MOST && (size_t)n * k <= OUTPUTS_MOST);
    for (int i = 0; i < THREAD_COUNTS; i++) {
        check_grid(&gemm, thread_counts[i]);
        fill(room->c, (size_t)m * n, 3);
        ox_cpu_gemm(&room->cpus[i], &gemm);
        if (i == 0) {
            memcpy(room->first, room->c, bytes);
        } else if (memcmp(room->first, room->c, bytes) != 0) {
            printf("%s: %u x %u x %u, form %u: %u threads give other bits than one\n", openblas_get_corename(), m, n, k,
                   form, thread_counts[i]);
            CHECK(false);
        }
    }
}

static uint32_t draw_to(uint32_t most) {
    return 1 + random_u32() % most;
}

static int check_all(void) {
    /* Shapes of models; then thin ones, and ones at the limits of grids and of the library's paths. */
    static const uint32_t shapes[][3] = {
        {1024, 1920, 640}, {640, 1792, 1024}, {513, 768, 770}, {65, 1031, 600}, {1031, 65, 600}, {64, 4096, 512},
        {129, 129, 260}, {161, 163, 160}, {1408, 1408, 8}, {9000, 8, 64}, {100, 100, 101}, {2, 2048, 1024},
        {1, 2048, 1024}, {191, 190, 1025}, {255, 4097, 64}};
    struct room room = {.a = malloc(OUTPUTS_MOST * sizeof(float)), .b = malloc(OUTPUTS_MOST * sizeof(float)),
                        .c = malloc(OUTPUTS_MOST * sizeof(float)), .first = malloc(OUTPUTS_MOST * sizeof(float))};
    openblas_set_num_threads(1);
    fill(room.a, OUTPUTS_MOST, 1);
    fill(room.b, OUTPUTS_MOST, 2);
    for (int i = 0; i < THREAD_COUNTS; i++) {
        room.cpus[i].vector = ox_vector_pick();
        REQUIRE_OK(ox_pool_open(thread_counts[i], &room.cpus[i].pool));
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (uint32_t form = 0; form < 16; form++) {
            if (!test_takes((unsigned)i + form, 3)) {
                continue;
            }
            check_shape(&room, shapes[i][0], shapes[i][1], shapes[i][2], form);
        }
    }
    for (int i = 0; i < DRAWN; i++) {
        const uint32_t m = draw_to(1400), n = draw_to(1400);
        check_shape(&room, m, n, draw_to(1400), random_u32() % 16);
    }
    for (int i = 0; i < THREAD_COUNTS; i++) {
        ox_pool_close(&room.cpus[i].pool);
    }
    free(room.a);
    free(room.b);
    free(room.c);
    free(room.first);
    return test_end();
}

/* Runs this program again: the library chooses its kernels when it is loaded. */
static void check_core(const char *core) {
    const pid_t child = fork();
    int ended = -1;
    if (child == 0) {
        setenv("OPENBLAS_CORETYPE", core, 1);
        execl("/proc/self/exe", "test_gemm_grid", core, (char *)NULL);
        _exit(127);
    }
    CHECK(child > 0 && waitpid(child, &ended, 0) == child && ended == 0);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        if (strcmp(openblas_get_corename(), argv[1]) != 0) {
            printf("%s: not for this processor or in this library\n", argv[1]);
            return 0;
        }
        const int status = check_all();
        printf("%s: tiles %s\n", argv[1], ox_cpu_gemm_cuts_freely() ? "of any grid" : "by shape");
        return status;
    }
    static const char *const cores[] = {"Haswell", "SkylakeX"};
    const char *const own = openblas_get_corename();
    check_core(own);
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++) {
        if (i > 0 && !ox_cpu_has_avx512()) { /* the library would run into an instruction that is not there */
            printf("%s: not for this processor\n", cores[i]);
        } else if (strcmp(cores[i], own) != 0) {
            check_core(cores[i]);
        }
    }
    return test_end();
}
