/* Operations on flat vectors, and the division of work into items. */
#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

#include <stdatomic.h>
#include <string.h>

struct items {
    ox_cpu_item_fn *fn;
    void *context;
    uint32_t count;
    _Atomic uint32_t next;
};

static void items_share(void *context, uint32_t idx, uint32_t count) {
    (void)count;
    struct items *const items = context;
    for (;;) {
        const uint32_t item = atomic_fetch_add(&items->next, 1);
        if (item >= items->count) {
            return;
        }
        items->fn(items->context, item, idx);
    }
}

void ox_cpu_items(struct ox_pool *pool, uint32_t item_count, ox_cpu_item_fn *fn, void *context) {
    struct items items = {.fn = fn, .context = context, .count = item_count};
    if (item_count == 1) {
        fn(context, 0, 0);
        return;
    }
    ox_pool_run(pool, items_share, &items);
}

/* Flat vectors are walked in pieces that fit in the second-level cache. */
enum { PIECE = 65536 };

struct flat {
    const struct ox_vector *vector;
    const void *args;
};

static struct ox_range piece_of(uint64_t count, uint32_t item) {
    const uint64_t begin = (uint64_t)item * PIECE;
    return (struct ox_range){.begin = begin, .end = ox_min_u64(count, begin + PIECE)};
}

static void run_flat(const struct ox_cpu *cpu, uint64_t count, ox_cpu_item_fn *fn, const void *args) {
    struct flat flat = {.vector = cpu->vector, .args = args};
    ox_cpu_items(cpu->pool, (uint32_t)ox_div_up(count, PIECE), fn, &flat);
}

static void zero_piece(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct ox_op_zero *const op = ((const struct flat *)context)->args;
    const struct ox_range at = piece_of(op->bytes, item);
    memset((unsigned char *)op->target + at.begin, 0, at.end - at.begin);
}

void ox_cpu_zero(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_zero *const op = args;
    run_flat(cpu, op->bytes, zero_piece, op);
}

static void join_piece(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct flat *const flat = context;
    const struct ox_op_planes_join *const op = flat->args;
    const struct ox_range at = piece_of(op->count, item);
    flat->vector->join(op->out + at.begin, op->hi + at.begin, op->lo == NULL ? NULL : op->lo + at.begin,
                       at.end - at.begin);
}

void ox_cpu_planes_join(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_planes_join *const op = args;
    run_flat(cpu, op->count, join_piece, op);
}

void ox_cpu_join(const struct ox_cpu *cpu, float *out, const uint16_t *hi, const uint16_t *lo,
                 uint64_t count) {
    ox_cpu_planes_join(cpu, &(struct ox_op_planes_join){.out = out, .hi = hi, .lo = lo, .count = count});
}

static void add_piece(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct flat *const flat = context;
    const struct ox_op_add *const op = flat->args;
    const struct ox_range at = piece_of(op->count, item);
    flat->vector->add(op->target + at.begin, op->a + at.begin, op->b + at.begin, at.end - at.begin);
}

void ox_cpu_add(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_add *const op = args;
    run_flat(cpu, op->count, add_piece, op);
}

static void bf16_pack_piece(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct flat *const flat = context;
    const struct ox_op_bf16_pack *const op = flat->args;
    const struct ox_range at = piece_of(op->count, item);
    flat->vector->bf16_pack(op->out + at.begin, op->in + at.begin, at.end - at.begin);
}

void ox_cpu_bf16_pack(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_bf16_pack *const op = args;
    run_flat(cpu, op->count, bf16_pack_piece, op);
}

struct column_sums {
    const struct ox_vector *vector;
    float *sums;
    const float *in;
    uint32_t rows, cols;
};

enum { SUM_COLS = 256, SUM_ROWS = 64 };

/* Sums blocks of rows separately and then adds them, which keeps the rounding error of long columns low. */
static void column_sums_item(void *context, uint32_t item, uint32_t thread) {
    (void)thread;
    const struct column_sums *const job = context;
    const size_t begin = (size_t)item * SUM_COLS;
    const size_t width = ox_min_u64(SUM_COLS, job->cols - begin);
    float block[SUM_COLS];
    for (uint32_t first = 0; first < job->rows; first += SUM_ROWS) {
        const uint32_t end = (uint32_t)ox_min_u64(job->rows, (uint64_t)first + SUM_ROWS);
        memset(block, 0, sizeof block);
        for (uint32_t row = first; row < end; row++) {
            job->vector->add(block, block, job->in + (size_t)row * job->cols + begin, width);
        }
        job->vector->add(job->sums + begin, job->sums + begin, block, width);
    }
}

void ox_cpu_column_sums(const struct ox_cpu *cpu, float *sums, const float *in, uint32_t rows,
                        uint32_t cols) {
    struct column_sums job = {.vector = cpu->vector, .sums = sums, .in = in, .rows = rows, .cols = cols};
    ox_cpu_items(cpu->pool, (uint32_t)ox_div_up(cols, SUM_COLS), column_sums_item, &job);
}
