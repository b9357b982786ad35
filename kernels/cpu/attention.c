/* Causal attention in blocks of QUERIES x KEYS scores. Blocks above the diagonal, and blocks that the window hides from
 * all their queries, are skipped. The GEMMs of a block run on the calling thread. */
#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

/* A block of scores and one of their gradients fit in the second-level cache. A query row that sees no key of a block,
 * because the keys come after it or before its window or document, adds zero. */
enum { QUERIES = 128, KEYS = 512 };

/* Scratch of one thread, in floats: scores, their gradients, then one value per query each. */
struct work {
    float *score, *dscore;
    float *row_max, *row_sum;
};

struct attention {
    const struct ox_vector *vector;
    const struct ox_attention_shape *shape; /* number of queries of a sequence */
    const float *qkv, *dout, *out_in;
    const float *keys, *values; /* row 0, within qkv or a cache */
    uint32_t cached;            /* keys of the sequence before its first query */
    const int32_t *positions; /* (rows) or NULL */
    const float *lse_in;
    float *out, *lse, *dqkv;
    float *scratch;
    uint32_t query_blocks;
    size_t row_stride; /* between rows of qkv */
    size_t key_stride; /* between rows of keys and of values */
    size_t out_stride;
};

static uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static size_t work_len(uint32_t key_count) {
    const uint64_t keys = ox_align_up(min_u32(key_count, KEYS), OX_CPU_GRAIN);
    return 2 * QUERIES * keys + 2 * QUERIES;
}

uint64_t ox_cpu_attention_scratch_bytes(const struct ox_attention_shape *shape, uint32_t threads) {
    return (uint64_t)threads * work_len(shape->seq) * sizeof(float);
}

uint64_t ox_cpu_attention_pairs(const struct ox_attention_shape *shape) {
    uint64_t pairs = 0;
    for (uint32_t query = 0; query < shape->seq; query += QUERIES) {
        const uint32_t count = min_u32(QUERIES, shape->seq - query);
        const uint32_t hidden = shape->window == 0 || query < shape->window ? 0 : query - shape->window + 1;
        pairs += (uint64_t)count * (query + count - hidden / QUERIES * QUERIES);
    }
    return pairs * shape->batch * shape->heads;
}

static struct work work_of(const struct attention *job, uint32_t thread) {
    const size_t len = work_len(job->cached + job->shape->seq);
    float *const begin = job->scratch + thread * len;
    const size_t block = (len - 2 * QUERIES) / 2;
    return (struct work){.score = begin,
                         .dscore = begin + block,
                         .row_max = begin + 2 * block,
                         .row_sum = begin + 2 * block + QUERIES};
}

/* A matrix within a larger one. */
struct view {
    const float *at;
    size_t stride;
};

/* c (m, n) = alpha * op(a) * op(b) + beta * c on this thread. */
struct gemm {
    CBLAS_TRANSPOSE a_form, b_form;
    uint32_t m, n, k;
    float alpha, beta;
};

static void multiply(const struct gemm *shape, struct view a, struct view b, float *c,
                     size_t c_stride) {
    cblas_sgemm(CblasRowMajor, shape->a_form, shape->b_form, (blasint)shape->m, (blasint)shape->n,
                (blasint)shape->k, shape->alpha, a.at, (blasint)a.stride, b.at, (blasint)b.stride,
                shape->beta, c, (blasint)c_stride);
}

/* Where q, k or v of one head of one sequence begins; `slot` counts the heads within a row. */
static size_t slot_offset(const struct attention *job, uint32_t batch, uint32_t slot) {
    return (size_t)batch * job->shape->seq * job->row_stride + (size_t)slot * job->shape->head_dim;
}

/* One block of queries of one head against a range of keys. */
struct block {
    uint32_t batch, head, kv_head;
    uint32_t query, query_count;
    uint32_t key, key_count;
    uint32_t key_begin; /* where the first block of keys for these queries begins */
};

/* The first key that query row `row` of the block sees: that of its window or of its document, whichever is later. It
 * never falls from one row to the next. */
static uint32_t first_seen(const struct attention *job, const struct block *at, uint32_t row) {
    const uint32_t query = at->query + row, place = job->cached + query, window = job->shape->window;
    uint32_t begin = window == 0 || place < window ? 0 : place - window + 1;
    if (job->positions != NULL) {
        begin = max_u32(begin, place - (uint32_t)job->positions[(size_t)at->batch * job->shape->seq + query]);
    }
    return begin;
}

/* The keys of the block that query row `row` sees, counted from the block's first key; may be empty. */
struct seen {
    uint32_t begin, end;
};

static struct seen seen_of(const struct attention *job, const struct block *at, uint32_t row) {
    const uint32_t begin = first_seen(job, at, row), past = job->cached + at->query + row + 1;
    const uint32_t end = past > at->key ? min_u32(at->key_count, past - at->key) : 0;
    return (struct seen){.begin = min_u32(begin > at->key ? begin - at->key : 0, end), .end = end};
}

/* Sets to zero what belongs to keys that a row does not see. */
static void clear_unseen(float *score, struct seen seen, uint32_t key_count) {
    memset(score, 0, seen.begin * sizeof(float));
    memset(score + seen.end, 0, (key_count - seen.end) * sizeof(float));
}

/* The key at which the blocks of keys begin for a block of queries. */
static uint32_t first_key(const struct attention *job, const struct block *at) {
    return first_seen(job, at, 0) / QUERIES * QUERIES;
}

static struct view q_view(const struct attention *job, const struct block *at) {
    return (struct view){
        job->qkv + slot_offset(job, at->batch, at->head) + at->query * job->row_stride, job->row_stride};
}

/* Element where the block's first key begins, in keys and in values alike. */
static size_t key_offset(const struct attention *job, const struct block *at) {
    return ((size_t)at->batch * job->shape->seq + at->key) * job->key_stride +
           (size_t)at->kv_head * job->shape->head_dim;
}

static struct view k_view(const struct attention *job, const struct block *at) {
    return (struct view){job->keys + key_offset(job, at), job->key_stride};
}

static struct view v_view(const struct attention *job, const struct block *at) {
    return (struct view){job->values + key_offset(job, at), job->key_stride};
}

/* Where one head begins in a (rows, heads * head_dim) tensor. */
static size_t out_offset(const struct attention *job, const struct block *at) {
    return ((size_t)at->batch * job->shape->seq + at->query) * job->out_stride +
           (size_t)at->head * job->shape->head_dim;
}

static size_t lse_offset(const struct attention *job, const struct block *at) {
    return ((size_t)at->batch * job->shape->heads + at->head) * job->shape->seq + at->query;
}

static void scores(const struct attention *job, const struct block *at, float *score) {
    const struct gemm shape = {.a_form = CblasNoTrans,
                                  .b_form = CblasTrans,
                                  .m = at->query_count,
                                  .n = at->key_count,
                                  .k = job->shape->head_dim,
                                  .alpha = job->shape->scale};
    multiply(&shape, q_view(job, at), k_view(job, at), score, at->key_count);
}

void ox_cpu_softmax_add(const struct ox_vector *vector, const struct ox_cpu_softmax *row) {
    const float top = vector->max(row->score, row->count);
    if (top > *row->max) {
        if (*row->sum > 0.0f) {
            const float shrink = expf(*row->max - top);
            *row->sum *= shrink;
            vector->scale(row->out, shrink, row->out_len);
        }
        *row->max = top;
    }
    *row->sum += vector->exp_row(row->score, *row->max, row->count);
}

/* Turns the block's scores into exponentials against the running maximum, and rescales the earlier sums to the new
 * maximum. */
static void forward_softmax(const struct attention *job, const struct block *at, const struct work *work) {
    const struct ox_vector *const vector = job->vector;
    float *const out = job->out + out_offset(job, at);
    for (uint32_t row = 0; row < at->query_count; row++) {
        float *const score = work->score + (size_t)row * at->key_count;
        const struct seen seen = seen_of(job, at, row);
        if (at->key == at->key_begin) {
            work->row_max[row] = -INFINITY;
            work->row_sum[row] = 0.0f;
        }
        ox_cpu_softmax_add(vector, &(struct ox_cpu_softmax){.score = score + seen.begin,
                                                            .count = seen.end - seen.begin,
                                                            .max = &work->row_max[row],
                                                            .sum = &work->row_sum[row],
                                                            .out = out + row * job->out_stride,
                                                            .out_len = job->shape->head_dim});
        clear_unseen(score, seen, at->key_count);
    }
}

static void forward_item(void *context, uint32_t item, uint32_t thread) {
    const struct attention *const job = context;
    const struct ox_attention_shape *const shape = job->shape;
    const struct work work = work_of(job, thread);
    const uint32_t head_idx = item % (shape->batch * shape->heads);
    /* The last queries of a sequence see most keys: these long items come first. */
    const uint32_t query_block = job->query_blocks - 1 - item / (shape->batch * shape->heads);
    struct block at = {.batch = head_idx / shape->heads,
                       .head = head_idx % shape->heads,
                       .query = query_block * QUERIES};
    at.kv_head = at.head / (shape->heads / shape->kv_heads);
    at.query_count = min_u32(QUERIES, shape->seq - at.query);
    float *const out = job->out + out_offset(job, &at);
    const uint32_t key_end = job->cached + at.query + at.query_count;
    at.key_begin = first_key(job, &at);
    for (at.key = at.key_begin; at.key < key_end; at.key += KEYS) {
        at.key_count = min_u32(KEYS, key_end - at.key);
        scores(job, &at, work.score);
        forward_softmax(job, &at, &work);
        const struct gemm by_values = {.a_form = CblasNoTrans,
                                          .b_form = CblasNoTrans,
                                          .m = at.query_count,
                                          .n = shape->head_dim,
                                          .k = at.key_count,
                                          .alpha = 1.0f,
                                          .beta = at.key == at.key_begin ? 0.0f : 1.0f};
        multiply(&by_values, (struct view){work.score, at.key_count}, v_view(job, &at), out,
                 job->out_stride);
    }
    for (uint32_t row = 0; row < at.query_count; row++) {
        job->vector->scale(out + row * job->out_stride, 1.0f / work.row_sum[row], shape->head_dim);
        if (job->lse != NULL) {
            job->lse[lse_offset(job, &at) + row] = work.row_max[row] + logf(work.row_sum[row]);
        }
    }
}

static struct attention attention_of(const struct ox_cpu *cpu, const struct ox_attention_shape *shape,
                                     const float *qkv) {
    const float *const keys = qkv + (size_t)shape->heads * shape->head_dim;
    const size_t row_stride = (size_t)(shape->heads + 2 * shape->kv_heads) * shape->head_dim;
    return (struct attention){
        .vector = cpu->vector,
        .shape = shape,
        .qkv = qkv,
        .keys = keys,
        .values = keys + (size_t)shape->kv_heads * shape->head_dim,
        .query_blocks = (uint32_t)ox_div_up(shape->seq, QUERIES),
        .row_stride = row_stride,
        .key_stride = row_stride,
        .out_stride = (size_t)shape->heads * shape->head_dim,
    };
}

static void forward(const struct ox_cpu *cpu, struct attention *job) {
    ox_cpu_items(cpu->pool, job->shape->batch * job->shape->heads * job->query_blocks, forward_item, job);
}

void ox_cpu_attention_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_attention_forward *const op = args;
    struct attention job = attention_of(cpu, &op->shape, op->qkv);
    job.positions = op->positions;
    job.out = op->out;
    job.lse = op->lse;
    job.scratch = op->scratch;
    forward(cpu, &job);
}

void ox_cpu_attention_blocks(const struct ox_cpu *cpu, const struct ox_op_attention_cached *op) {
    const struct ox_attention_shape shape = {.batch = 1,
                                             .seq = op->rows,
                                             .heads = op->heads,
                                             .kv_heads = op->kv_heads,
                                             .head_dim = op->head_dim,
                                             .window = op->window,
                                             .scale = op->scale};
    struct attention job = attention_of(cpu, &shape, op->qkv);
    job.keys = op->keys;
    job.values = op->values;
    job.key_stride = (size_t)op->kv_heads * op->head_dim;
    job.cached = op->cached;
    job.out = op->out;
    job.scratch = op->scratch;
    forward(cpu, &job);
}

/* Turns scores into probabilities, and their gradients after the softmax into those before it. */
static void backward_softmax(const struct attention *job, const struct block *at, const struct work *work) {
    const struct ox_vector *const vector = job->vector;
    const float *const lse = job->lse_in + lse_offset(job, at);
    for (uint32_t row = 0; row < at->query_count; row++) {
        float *const score = work->score + (size_t)row * at->key_count;
        float *const dscore = work->dscore + (size_t)row * at->key_count;
        const struct seen seen = seen_of(job, at, row);
        const uint32_t from = seen.begin, count = seen.end - seen.begin;
        vector->exp_scaled(score + from, lse[row], 1.0f, count);
        clear_unseen(score, seen, at->key_count);
        vector->score_gradient(dscore + from, score + from, work->row_sum[row], count);
        clear_unseen(dscore, seen, at->key_count);
    }
}

static void backward_block(const struct attention *job, const struct block *at, const struct work *work) {
    const struct ox_attention_shape *const shape = job->shape;
    const struct view dout = {job->dout + out_offset(job, at), job->out_stride};
    const struct view score = {work->score, at->key_count}, dscore = {work->dscore, at->key_count};
    float *const dq = job->dqkv + (q_view(job, at).at - job->qkv);
    float *const dk = job->dqkv + (k_view(job, at).at - job->qkv);
    float *const dv = job->dqkv + (v_view(job, at).at - job->qkv);

    scores(job, at, work->score);
    struct gemm gemm = {.a_form = CblasNoTrans,
                              .b_form = CblasTrans,
                              .m = at->query_count,
                              .n = at->key_count,
                              .k = shape->head_dim,
                              .alpha = 1.0f};
    multiply(&gemm, dout, v_view(job, at), work->dscore, at->key_count);
    backward_softmax(job, at, work);

    gemm = (struct gemm){.a_form = CblasTrans,
                               .b_form = CblasNoTrans,
                               .m = at->key_count,
                               .n = shape->head_dim,
                               .k = at->query_count,
                               .alpha = 1.0f,
                               .beta = 1.0f};
    multiply(&gemm, score, dout, dv, job->row_stride);
    gemm.alpha = shape->scale;
    multiply(&gemm, dscore, q_view(job, at), dk, job->row_stride);
    gemm = (struct gemm){.a_form = CblasNoTrans,
                               .b_form = CblasNoTrans,
                               .m = at->query_count,
                               .n = shape->head_dim,
                               .k = at->key_count,
                               .alpha = shape->scale,
                               .beta = at->key == at->key_begin ? 0.0f : 1.0f};
    multiply(&gemm, dscore, k_view(job, at), dq, job->row_stride);
}

/* One key/value head of one sequence with all query heads that read it, in order, so that one thread makes the sums of
 * dk and dv. */
static void backward_item(void *context, uint32_t item, uint32_t thread) {
    const struct attention *const job = context;
    const struct ox_attention_shape *const shape = job->shape;
    const struct work work = work_of(job, thread);
    const uint32_t group = shape->heads / shape->kv_heads;
    struct block at = {.batch = item / shape->kv_heads, .kv_head = item % shape->kv_heads};
    for (uint32_t kind = 0; kind < 2; kind++) {
        const uint32_t slot = shape->heads + kind * shape->kv_heads + at.kv_head;
        float *const gradient = job->dqkv + slot_offset(job, at.batch, slot);
        for (uint32_t row = 0; row < shape->seq; row++) {
            memset(gradient + row * job->row_stride, 0, shape->head_dim * sizeof(float));
        }
    }
    for (uint32_t member = 0; member < group; member++) {
        at.head = at.kv_head * group + member;
        for (at.query = 0; at.query < shape->seq; at.query += QUERIES) {
            at.query_count = min_u32(QUERIES, shape->seq - at.query);
            const size_t out = out_offset(job, &at);
            for (uint32_t row = 0; row < at.query_count; row++) {
                const size_t begin = out + row * job->out_stride;
                work.row_sum[row] =
                    job->vector->dot(job->dout + begin, job->out_in + begin, shape->head_dim);
            }
            const uint32_t key_end = at.query + at.query_count;
            at.key_begin = first_key(job, &at);
            for (at.key = at.key_begin; at.key < key_end; at.key += KEYS) {
                at.key_count = min_u32(KEYS, key_end - at.key);
                backward_block(job, &at, &work);
            }
        }
    }
}

void ox_cpu_attention_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_attention_backward *const op = args;
    struct attention job = attention_of(cpu, &op->shape, op->qkv);
    job.positions = op->positions;
    job.dout = op->dout;
    job.out_in = op->out;
    job.lse_in = op->lse;
    job.dqkv = op->dqkv;
    job.scratch = op->scratch;
    ox_cpu_items(cpu->pool, op->shape.batch * op->shape.kv_heads, backward_item, &job);
}
