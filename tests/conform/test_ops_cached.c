/* Attention over a cache of keys and values against a plain reference in double. */
#include "tests/kit/device/ops_kit.h"

#include <math.h>
#include <string.h>

struct shape {
    uint32_t rows, cached, heads, kv_heads, head_dim, window;
    float cap;
    bool sinks;
};

enum { WIDTHS = 6, ROWS = 5, CACHED = 5 };
static const struct shape widths[WIDTHS] = {
    {.heads = 1, .kv_heads = 1, .head_dim = 5},
    {.heads = 4, .kv_heads = 2, .head_dim = 12, .sinks = true},
    {.heads = 6, .kv_heads = 1, .head_dim = 20, .window = 50},
    {.heads = 3, .kv_heads = 3, .head_dim = 64, .window = 1},
    {.heads = 2, .kv_heads = 1, .head_dim = 16, .window = 600, .sinks = true},
    {.heads = 4, .kv_heads = 2, .head_dim = 12, .window = 50, .cap = 0.8f},
};
static const uint32_t row_counts[ROWS] = {1, 2, 7, 130, 512};
static const uint32_t cached_counts[CACHED] = {0, 1, 5, 128, 700};

static size_t row_len(const struct shape *shape) {
    return (size_t)(shape->heads + 2 * shape->kv_heads) * shape->head_dim;
}

static size_t out_row_len(const struct shape *shape) {
    return (size_t)shape->heads * shape->head_dim;
}

static size_t kv_len(const struct shape *shape) {
    return (size_t)shape->kv_heads * shape->head_dim;
}

/* A text of which q, k and v are all known; row r of the text is row r of the cache. */
struct text {
    struct shape shape;
    const float *qkv, *sinks; /* sinks: (heads) */
    uint32_t count;
    enum ox_real real;
};

/* out (head_dim) of one query of the text. */
static void reference(const struct text *text, uint32_t place, uint32_t head, double *prob, double *out) {
    const struct shape *const shape = &text->shape;
    const uint32_t dim = shape->head_dim, kv_head = head / (shape->heads / shape->kv_heads);
    const uint32_t begin = shape->window == 0 || place < shape->window ? 0 : place - shape->window + 1;
    const float *const q = text->qkv + place * row_len(shape) + (size_t)head * dim;
    const float *const k = text->qkv + out_row_len(shape) + (size_t)kv_head * dim, *const v = k + kv_len(shape);
    double top = -INFINITY, sum = 0.0;
    for (uint32_t j = begin; j <= place; j++) {
        prob[j] = 0.0;
        for (uint32_t i = 0; i < dim; i++) {
            prob[j] += (double)q[i] * (double)k[j * row_len(shape) + i] * (double)(float)(1.0 / sqrt(dim));
        }
        prob[j] = shape->cap == 0.0f ? prob[j] : (double)shape->cap * tanh(prob[j] / (double)shape->cap);
        top = fmax(top, prob[j]);
    }
    if (shape->sinks) {
        top = fmax(top, (double)text->sinks[head]);
        sum = exp((double)text->sinks[head] - top);
    }
    memset(out, 0, dim * sizeof *out);
    for (uint32_t j = begin; j <= place; j++) {
        prob[j] = exp(prob[j] - top);
        sum += prob[j];
        for (uint32_t i = 0; i < dim; i++) {
            out[i] += prob[j] * (double)v[j * row_len(shape) + i];
        }
    }
    for (uint32_t i = 0; i < dim; i++) {
        out[i] /= sum;
    }
}

/* The outputs of rows [first, count) of the text. */
static double *references(const struct text *text, uint32_t first) {
    const struct shape *const shape = &text->shape;
    double *const out = doubles((text->count - first) * out_row_len(shape)), *const prob = doubles(text->count);
    for (uint32_t place = first; place < text->count; place++) {
        for (uint32_t head = 0; head < shape->heads; head++) {
            reference(text, place, head, prob,
                      out + (place - first) * out_row_len(shape) + (size_t)head * shape->head_dim);
        }
    }
    return out;
}

/* Keys (which == 0) or values of rows [first, past), as they lie in the text. */
static void gather(const struct text *text, uint32_t which, uint32_t first, uint32_t past, float *out) {
    const size_t len = kv_len(&text->shape), from = out_row_len(&text->shape) + which * len;
    for (uint32_t row = first; row < past; row++) {
        memcpy(out + row * len, text->qkv + row * row_len(&text->shape) + from, len * sizeof *out);
    }
}

struct cache {
    void *keys, *values, *scratch;
};

static void call(struct lab *lab, const struct text *text, struct cache cache, void *out) {
    const struct shape *const shape = &text->shape;
    const int keep = guard_count;
    const void *const qkv =
        reals_of(text->real, text->qkv + shape->cached * row_len(shape), shape->rows * row_len(shape));
    float *const lse = floats((size_t)shape->heads * shape->rows);
    const struct ox_op_sinks_forward sinks = {out, lse, reals_of(text->real, text->sinks, shape->heads), 1,
                                              shape->rows, shape->heads, shape->head_dim, text->real};
    const struct ox_op_attention_cached op = {.out = out,
                                              .lse = shape->sinks ? lse : NULL,
                                              .qkv = qkv,
                                              .keys = cache.keys,
                                              .values = cache.values,
                                              .scratch = cache.scratch,
                                              .rows = shape->rows,
                                              .cached = shape->cached,
                                              .heads = shape->heads,
                                              .kv_heads = shape->kv_heads,
                                              .head_dim = shape->head_dim,
                                              .window = shape->window,
                                              .scale = (float)(1.0 / sqrt(shape->head_dim)),
                                              .cap = shape->cap,
                                              .real = text->real};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, attention_cached, &op));
    if (shape->sinks) {
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, sinks_forward, &sinks));
    }
    lab_finish(lab);
    guards_end(keep);
}

static uint64_t scratch_bytes(const struct lab *lab, const struct shape *shape) {
    const struct ox_op_attention_cached op = {
        .rows = shape->rows, .cached = shape->cached, .heads = shape->heads, .head_dim = shape->head_dim};
    return ox_ops_attention_cached_scratch_bytes(&lab->compute, &op);
}

/* Keys or values of the text's first rows, in a cache that has room for all. */
static void *cache_of(const struct text *text, uint32_t which) {
    const size_t len = kv_len(&text->shape);
    float *const known = floats(text->count * len);
    gather(text, which, 0, text->shape.cached, known);
    return reals_of(text->real, known, text->count * len);
}

/* The rows' own are there too, as they were. */
static void check_cache(const struct text *text, uint32_t which, const void *cache) {
    const size_t len = text->count * kv_len(&text->shape);
    float *const after = floats(len);
    gather(text, which, 0, text->count, after);
    CHECK(memcmp(after, floats_of(text->real, cache, len), len * sizeof(float)) == 0);
}

static void run_on(struct lab *lab, const struct text *text, const double *want) {
    const int keep = guard_count;
    const struct shape *const shape = &text->shape;
    const size_t out_len = shape->rows * out_row_len(shape);
    const struct cache cache = {.keys = cache_of(text, 0),
                                .values = cache_of(text, 1),
                                .scratch = guarded(scratch_bytes(lab, shape))};
    void *const out = reals(text->real, out_len);
    call(lab, text, cache, out);
    /* A mean of many values is small beside them, and so the error large beside it. */
    check_real_error(text->real, "out", error_of(floats_of(text->real, out, out_len), want, out_len), 2.5e-6, 1e-2);
    check_cache(text, 0, cache.keys);
    check_cache(text, 1, cache.values);
    lab_digest(lab, out, out_len * ox_real_bytes(text->real));
    guards_end(keep);
}

static void run_shape(struct lab labs[LAB_MAX], struct shape shape, enum ox_real real) {
    const uint32_t count = shape.cached + shape.rows;
    const struct text text = {
        .shape = shape, .qkv = random_reals(real, count * row_len(&shape), 1, 1.0),
        .sinks = random_reals(real, shape.heads, 3, 2.0), .count = count, .real = real};
    const double *const want = references(&text, shape.cached);
    const double work = (double)shape.rows * (shape.cached + shape.rows) * shape.heads * shape.head_dim;
    for (int i = 0; i < lab_count; i++) {
        if (lab_knows(&labs[i], real) && lab_takes(&labs[i], work)) {
            run_on(&labs[i], &text, want);
        }
    }
    labs_end_case(labs);
}

/* A text in one call and in several; the scratch of the most of rows and of cached serves all. */
static void test_cuts(struct lab *lab, struct shape shape) {
    enum { COUNT = 700, CUTS = 9 };
    static const uint32_t cuts[CUTS] = {1, 3, 129, 1, 1, 300, 64, 200, 1};
    struct text text = {.shape = shape, .qkv = random_floats(COUNT * row_len(&shape), 2, 1.0),
                        .sinks = random_floats(shape.heads, 3, 2.0), .count = COUNT};
    const size_t len = COUNT * kv_len(&shape), out_len = COUNT * out_row_len(&shape);
    const struct shape most = {
        .rows = COUNT, .cached = COUNT, .heads = shape.heads, .head_dim = shape.head_dim};
    const struct cache cache = {
        .keys = floats(len), .values = floats(len), .scratch = guarded(scratch_bytes(lab, &most))};
    float *const whole = floats(out_len), *const cut = floats(out_len);
    double *const want = doubles(out_len);
    text.shape.rows = COUNT;
    call(lab, &text, cache, whole);
    fill(cache.keys, len, NAN);
    fill(cache.values, len, NAN);
    for (int i = 0; i < CUTS; i++) {
        text.shape.rows = cuts[i];
        CHECK(scratch_bytes(lab, &text.shape) <= scratch_bytes(lab, &most));
        call(lab, &text, cache, cut + text.shape.cached * out_row_len(&shape));
        text.shape.cached += cuts[i];
    }
    CHECK(text.shape.cached == COUNT);
    for (size_t i = 0; i < out_len; i++) {
        want[i] = (double)whole[i];
    }
    check_error("in several calls", error_of(cut, want, out_len), 6e-7);
    guards_end(0);
}

int main(void) {
    struct lab labs[LAB_MAX];
    labs_open(labs);
    for (int i = 0; i < WIDTHS; i++) {
        struct shape shape = widths[i];
        for (int j = 0; j < ROWS; j++) {
            for (int k = 0; k < CACHED; k++) {
                shape.rows = row_counts[j];
                shape.cached = cached_counts[k];
                run_shape(labs, shape, OX_REAL_F32);
            }
            run_shape(labs, shape, OX_REAL_BF16);
            run_shape(labs, shape, OX_REAL_F16);
        }
        test_cuts(&labs[1], widths[i]);
    }
    /* One row before which more keys lie than one thread holds the scores of at a time. */
    run_shape(labs, (struct shape){.rows = 1, .cached = 3000, .heads = 2, .kv_heads = 1, .head_dim = 8},
              OX_REAL_F32);
    return labs_end(labs);
}
