/* Causal attention in blocks of QUERIES x KEYS scores. Blocks whose keys come after all their queries, or before the
 * window or document of the first, are skipped. Scores lie as (keys, queries), one query a lane, so that a softmax
 * never adds up the lanes of a vector. */
#include "base/assert.h"
#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* What a thread holds of a block in backward, 330 KB with heads of 64 and 520 KB with heads of 128, is to stay in the
 * second-level cache. */
enum { QUERIES = 128, KEYS = 128 };

/* Scratch of one thread. `dim` is head_dim up to whole vectors, beyond which rows may have any values. */
struct work {
    float *query, *query_t; /* (queries, dim), scaled; (head_dim, queries) */
    float *kv;              /* (keys, dim): keys or values, side by side */
    float *sum;             /* (queries, dim): of out or of dq */
    float *score;           /* (keys, queries) */
    float *row_max, *row_sum, *shrink;
    int32_t *begin, *end; /* of each query */
    /* of backward alone */
    float *dout, *dout_t, *dscore, *lse, *delta;
    size_t dim;
};

struct attention {
    const struct ox_vector *vector;
    const struct ox_attention_shape *shape; /* number of queries of a sequence */
    const float *qkv, *dout, *out_in;
    const float *keys, *values; /* row 0, within qkv or a cache */
    uint32_t cached;            /* keys of the sequence before its first query */
    uint32_t chunks;            /* of a sequence, in an order of their own; 0: its keys lie in a row */
    uint32_t key_first, key_past; /* keys that there are: one chunk alone, or all */
    bool resumes;
    const int32_t *positions; /* (rows) or NULL */
    const float *lse_in;
    float *out, *lse, *dqkv; /* dqkv: in backward alone */
    float *dkeys, *dvalues;  /* laid out as keys and values */
    bool adds_keys;          /* to these */
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

static size_t dim_of(const struct ox_attention_shape *shape) {
    return ox_align_up(shape->head_dim, OX_VECTOR_STEP);
}

/* The largest block that a sequence needs, and the scratch for it. */
struct block_size {
    size_t queries, keys;
};

static struct block_size largest_block(const struct ox_attention_shape *shape, uint32_t cached) {
    return (struct block_size){ox_align_up(min_u32(shape->seq, QUERIES), OX_VECTOR_STEP),
                               ox_align_up(min_u32(cached + shape->seq, KEYS), OX_VECTOR_STEP)};
}

/* In floats, of one thread. */
static size_t work_len(struct block_size block, size_t dim, bool backward) {
    const size_t per_query = backward ? 5 * dim + 7 : 3 * dim + 5;
    return block.queries * per_query + block.keys * dim + (backward ? 2 : 1) * block.keys * block.queries;
}

static uint64_t scratch_bytes(const struct ox_attention_shape *shape, uint32_t cached, bool backward,
                              uint32_t threads) {
    return threads * work_len(largest_block(shape, cached), dim_of(shape), backward) * sizeof(float);
}

uint64_t ox_cpu_attention_scratch_bytes(const struct ox_attention_shape *shape, uint32_t threads) {
    return scratch_bytes(shape, 0, true, threads);
}

uint64_t ox_cpu_attention_pairs(const struct ox_attention_shape *shape) {
    uint64_t pairs = 0;
    for (uint32_t query = 0; query < shape->seq; query += OX_VECTOR_STEP) {
        const uint32_t end = min_u32(query + OX_VECTOR_STEP, shape->seq), first = query / QUERIES * QUERIES;
        const uint32_t hidden = shape->window == 0 || first < shape->window ? 0 : first - shape->window + 1;
        pairs += (uint64_t)OX_VECTOR_STEP * (end - hidden / OX_VECTOR_STEP * OX_VECTOR_STEP);
    }
    return pairs * shape->batch * shape->heads;
}

static float *take(float **next, size_t len) {
    float *const at = *next;
    *next += len;
    return at;
}

static struct work work_of(const struct attention *job, uint32_t thread) {
    const struct block_size block = largest_block(job->shape, job->cached);
    const size_t dim = dim_of(job->shape), len = work_len(block, dim, job->dqkv != NULL);
    float *const begin = job->scratch + thread * len, *next = begin;
    struct work work = {.dim = dim};
    work.query = take(&next, block.queries * dim);
    work.query_t = take(&next, block.queries * dim);
    work.sum = take(&next, block.queries * dim);
    work.kv = take(&next, block.keys * dim);
    work.score = take(&next, block.keys * block.queries);
    work.row_max = take(&next, block.queries);
    work.row_sum = take(&next, block.queries);
    work.shrink = take(&next, block.queries);
    work.begin = (int32_t *)take(&next, block.queries);
    work.end = (int32_t *)take(&next, block.queries);
    if (job->dqkv != NULL) {
        work.dout = take(&next, block.queries * dim);
        work.dout_t = take(&next, block.queries * dim);
        work.dscore = take(&next, block.keys * block.queries);
        work.lse = take(&next, block.queries);
        work.delta = take(&next, block.queries);
    }
    OX_ASSERT((size_t)(next - begin) == len);
    return work;
}

/* Where q, k or v of one head of one sequence begins; `slot` counts the heads within a row. */
static size_t slot_offset(const struct attention *job, uint32_t batch, uint32_t slot) {
    return (size_t)batch * job->shape->seq * job->row_stride + (size_t)slot * job->shape->head_dim;
}

/* A matrix within a larger one. */
struct view {
    const float *at;
    size_t stride;
};

/* One block of queries of one head against a range of keys. */
struct block {
    uint32_t batch, head, kv_head;
    uint32_t query, query_count;
    uint32_t width; /* lanes of a row of scores: query_count up to whole vectors */
    uint32_t key, key_count;
    uint32_t key_begin; /* the first key that a query of the block sees, down to a whole step */
    uint32_t key_end;   /* behind the last one */
    bool begun;         /* work->sum has a sum before the first key */
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

static struct block block_of(const struct attention *job, uint32_t batch, uint32_t head, uint32_t query) {
    struct block at = {.batch = batch, .head = head, .query = query};
    at.kv_head = head / (job->shape->heads / job->shape->kv_heads);
    at.query_count = min_u32(QUERIES, job->shape->seq - query);
    at.width = (uint32_t)ox_align_up(at.query_count, OX_VECTOR_STEP);
    at.key_begin = max_u32(first_seen(job, &at, 0) / OX_VECTOR_STEP * OX_VECTOR_STEP, job->key_first);
    at.key_end = max_u32(min_u32(job->cached + query + at.query_count, job->key_past), at.key_begin);
    return at;
}

/* Goes to the next keys of the block, all of one chunk; returns false behind the last. Begins with key_count 0. */
static bool next_keys(const struct attention *job, struct block *at) {
    at->key = at->key_count == 0 ? at->key_begin : at->key + at->key_count;
    at->key_count = min_u32(KEYS, at->key_end - at->key);
    if (job->chunks > 0) {
        at->key_count = min_u32(at->key_count, job->shape->seq - at->key % job->shape->seq);
    }
    return at->key_count > 0;
}

/* The block's scores, and which of them count. */
static struct ox_vector_scores scores_of(const struct attention *job, const struct block *at, const struct work *work) {
    const struct ox_vector_scores all = {.score = work->score, .keys = at->key_count, .queries = at->width,
                                         .cap = job->shape->cap};
    const uint32_t last = at->query_count - 1;
    if (first_seen(job, at, last) <= at->key && at->key + at->key_count <= job->cached + at->query + 1) {
        return all;
    }
    for (uint32_t row = 0; row < at->width; row++) {
        const uint32_t query = min_u32(row, last); /* lanes without a query do as the last one */
        const uint32_t begin = first_seen(job, at, query), end = job->cached + at->query + query + 1;
        work->begin[row] = (int32_t)(max_u32(begin, at->key) - at->key);
        work->end[row] = (int32_t)(max_u32(end, at->key) - at->key);
    }
    struct ox_vector_scores some = all;
    some.begin = work->begin;
    some.end = work->end;
    return some;
}

static struct view q_view(const struct attention *job, const struct block *at) {
    return (struct view){
        job->qkv + slot_offset(job, at->batch, at->head) + at->query * job->row_stride, job->row_stride};
}

/* The row of a key of a sequence. */
static size_t key_row(const struct attention *job, uint32_t batch, uint32_t key) {
    const uint32_t seq = job->shape->seq;
    if (job->chunks == 0 || job->key_past != UINT32_MAX) { /* in a row, or one chunk */
        return (size_t)batch * seq + key - job->key_first;
    }
    const uint32_t chunk = key / seq, back = job->chunks - 1 - chunk;
    const size_t place = chunk < back ? 2 * chunk : 2 * back + 1;
    return (place * job->shape->batch + batch) * seq + key % seq;
}

/* Element where the block's first key begins, in keys and in values alike. */
static size_t key_offset(const struct attention *job, const struct block *at) {
    return key_row(job, at->batch, at->key) * job->key_stride + (size_t)at->kv_head * job->shape->head_dim;
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

/* Copies `rows` rows of a head, times `factor`. */
static void copy_rows(const struct attention *job, struct view from, uint32_t rows, float factor, float *out,
                      size_t dim) {
    for (uint32_t row = 0; row < rows; row++) {
        memcpy(out + row * dim, from.at + row * from.stride, job->shape->head_dim * sizeof *out);
        if (factor != 1.0f) {
            job->vector->scale(out + row * dim, factor, job->shape->head_dim);
        }
    }
}

/* Makes (head_dim, width) of the block's (queries, dim); lanes without a query become 0. */
static void turn(const struct attention *job, const struct block *at, const float *from, size_t dim, float *out) {
    for (uint32_t begin = 0; begin < at->width; begin += OX_VECTOR_STEP) {
        const uint32_t count = min_u32(OX_VECTOR_STEP, at->query_count - begin);
        for (uint32_t i = 0; i < job->shape->head_dim; i++) {
            float *const row = out + (size_t)i * at->width + begin;
            for (uint32_t lane = 0; lane < OX_VECTOR_STEP; lane++) {
                row[lane] = lane < count ? from[(begin + lane) * dim + i] : 0.0f;
            }
        }
    }
}

/* Blocks on the diagonal are computed in steps of OX_VECTOR_STEP queries by as many keys; steps whose keys all come
 * after their queries are left out. Says how many keys of the block are computed for the step of queries that begins
 * at row `query`. */
static uint32_t keys_for(const struct attention *job, const struct block *at, uint32_t query) {
    const uint32_t past = job->cached + at->query + query + OX_VECTOR_STEP;
    return past > at->key ? min_u32(at->key_count, (uint32_t)ox_align_up(past - at->key, OX_VECTOR_STEP)) : 0;
}

/* Keys of a block that are computed for the same queries: those from row `query` on. */
struct step {
    uint32_t key, keys, query;
    uint32_t next_query;
};

/* Goes to the next step of the block, from zeros to the first; returns false behind the last. */
static bool next_step(const struct attention *job, const struct block *at, struct step *step) {
    step->key += step->keys;
    step->keys = 0;
    for (; step->next_query < at->width && step->keys == 0; step->next_query += OX_VECTOR_STEP) {
        step->query = step->next_query;
        step->keys = max_u32(keys_for(job, at, step->query), step->key) - step->key;
    }
    return step->keys > 0;
}

/* (keys, width) = keys or values times turned queries or gradients. */
static void by_queries(const struct attention *job, const struct block *at, struct view rows, const float *turned,
                       float *out) {
    for (struct step step = {0}; next_step(job, at, &step);) {
        job->vector->product(&(struct ox_vector_product){.c = out + (size_t)step.key * at->width + step.query,
                                                         .c_row = at->width,
                                                         .a = rows.at + step.key * rows.stride,
                                                         .a_row = rows.stride,
                                                         .a_step = 1,
                                                         .b = turned + step.query,
                                                         .b_row = at->width,
                                                         .rows = step.keys,
                                                         .cols = at->width - step.query,
                                                         .depth = job->shape->head_dim});
    }
}

/* A gradient of keys or values += scores times queries or gradients of their outputs. */
static void add_gradient(const struct attention *job, const struct block *at, const float *score, const float *rows,
                         size_t dim, float *out) {
    for (struct step step = {0}; next_step(job, at, &step);) {
        job->vector->product(&(struct ox_vector_product){.c = out + step.key * job->key_stride,
                                                         .c_row = job->key_stride,
                                                         .a = score + (size_t)step.key * at->width + step.query,
                                                         .a_row = at->width,
                                                         .a_step = 1,
                                                         .b = rows + step.query * dim,
                                                         .b_row = dim,
                                                         .rows = step.keys,
                                                         .cols = job->shape->head_dim,
                                                         .depth = at->query_count - step.query,
                                                         .add = true});
    }
}

/* work->sum (queries, dim) += scores, turned, times keys or values. */
static void by_keys(const struct attention *job, const struct block *at, const float *score, struct view rows,
                    const struct work *work) {
    copy_rows(job, rows, at->key_count, 1.0f, work->kv, work->dim);
    for (uint32_t query = 0, end; query < at->query_count; query = end) {
        const uint32_t depth = keys_for(job, at, query);
        for (end = query; end < at->query_count && keys_for(job, at, end) == depth; end += OX_VECTOR_STEP) {
        }
        end = min_u32(end, at->query_count);
        job->vector->product(&(struct ox_vector_product){.c = work->sum + query * work->dim,
                                                         .c_row = work->dim,
                                                         .a = score + query,
                                                         .a_row = 1,
                                                         .a_step = at->width,
                                                         .b = work->kv,
                                                         .b_row = work->dim,
                                                         .rows = end - query,
                                                         .cols = job->shape->head_dim,
                                                         .depth = depth,
                                                         .add = at->begun || at->key != at->key_begin});
    }
}

static void rescale(const struct attention *job, const struct block *at, const struct work *work) {
    for (uint32_t row = 0; row < at->query_count; row++) {
        if (work->shrink[row] != 1.0f) {
            job->vector->scale(work->sum + row * work->dim, work->shrink[row], job->shape->head_dim);
        }
    }
}

/* The sums of each query: none yet, or those of the chunks before, which are as if one key had had them all. */
static void begin_sums(const struct attention *job, struct block *at, const struct work *work) {
    at->begun = job->resumes;
    for (uint32_t row = 0; row < at->width; row++) {
        const bool goes_on = job->resumes && row < at->query_count;
        work->row_max[row] = goes_on ? job->lse[lse_offset(job, at) + row] : -INFINITY;
        work->row_sum[row] = goes_on ? 1.0f : 0.0f;
    }
    if (job->resumes) {
        copy_rows(job, (struct view){job->out + out_offset(job, at), job->out_stride}, at->query_count, 1.0f, work->sum,
                  work->dim);
    }
}

static void forward_item(void *context, uint32_t item, uint32_t thread) {
    const struct attention *const job = context;
    const struct ox_attention_shape *const shape = job->shape;
    const struct work work = work_of(job, thread);
    const uint32_t head_idx = item % (shape->batch * shape->heads);
    /* The last queries of a sequence see most keys: these long items come first. */
    const uint32_t query_block = job->query_blocks - 1 - item / (shape->batch * shape->heads);
    struct block at = block_of(job, head_idx / shape->heads, head_idx % shape->heads, query_block * QUERIES);
    copy_rows(job, q_view(job, &at), at.query_count, shape->scale, work.query, work.dim);
    turn(job, &at, work.query, work.dim, work.query_t);
    begin_sums(job, &at, &work);
    while (next_keys(job, &at)) {
        by_queries(job, &at, k_view(job, &at), work.query_t, work.score);
        job->vector->softmax(&(struct ox_vector_softmax){.block = scores_of(job, &at, &work),
                                                         .max = work.row_max,
                                                         .sum = work.row_sum,
                                                         .shrink = work.shrink});
        if (at.begun || at.key != at.key_begin) {
            rescale(job, &at, &work);
        }
        by_keys(job, &at, work.score, v_view(job, &at), &work);
    }
    float *const out = job->out + out_offset(job, &at);
    for (uint32_t row = 0; row < at.query_count; row++) {
        float *const sum = work.sum + row * work.dim;
        job->vector->scale(sum, 1.0f / work.row_sum[row], shape->head_dim);
        memcpy(out + row * job->out_stride, sum, shape->head_dim * sizeof *out);
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
        .key_past = UINT32_MAX,
        .query_blocks = (uint32_t)ox_div_up(shape->seq, QUERIES),
        .row_stride = row_stride,
        .key_stride = row_stride,
        .out_stride = (size_t)shape->heads * shape->head_dim,
    };
}

/* Lets queries see the keys and values of whole sequences. */
static void see_part(struct attention *job, const struct ox_attention_part *part) {
    const size_t width = (size_t)job->shape->kv_heads * job->shape->head_dim;
    if (part->kv != NULL) {
        job->keys = part->kv;
        job->values = job->keys + width;
        job->key_stride = 2 * width;
        job->cached = part->chunk * job->shape->seq;
        job->chunks = part->chunks;
        job->dkeys = part->dkv;
        job->dvalues = part->dkv == NULL ? NULL : part->dkv + width;
        job->adds_keys = part->adds;
        job->resumes = part->resumes;
        if (part->key_chunk > 0) {
            job->key_first = (part->key_chunk - 1) * job->shape->seq;
            job->key_past = part->key_chunk * job->shape->seq;
        }
    }
}

static void forward(const struct ox_cpu *cpu, struct attention *job) {
    ox_pool_items(cpu->pool, job->shape->batch * job->shape->heads * job->query_blocks, forward_item, job);
}

void ox_cpu_attention_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_attention_forward *const op = args;
    struct attention job = attention_of(cpu, &op->shape, op->qkv);
    job.positions = op->positions;
    job.out = op->out;
    job.lse = op->lse;
    job.scratch = op->scratch;
    see_part(&job, &op->part);
    forward(cpu, &job);
}

static struct ox_attention_shape rows_of(const struct ox_op_attention_cached *op) {
    return (struct ox_attention_shape){.batch = 1,
                                       .seq = op->rows,
                                       .heads = op->heads,
                                       .kv_heads = op->kv_heads,
                                       .head_dim = op->head_dim,
                                       .window = op->window,
                                       .scale = op->scale,
                                       .cap = op->cap};
}

uint64_t ox_cpu_attention_blocks_scratch_bytes(const struct ox_op_attention_cached *op, uint32_t threads) {
    const struct ox_attention_shape shape = rows_of(op);
    return scratch_bytes(&shape, op->cached, false, threads);
}

void ox_cpu_attention_blocks(const struct ox_cpu *cpu, const struct ox_op_attention_cached *op) {
    const struct ox_attention_shape shape = rows_of(op);
    struct attention job = attention_of(cpu, &shape, op->qkv);
    job.keys = op->keys;
    job.values = op->values;
    job.key_stride = (size_t)op->kv_heads * op->head_dim;
    job.cached = op->cached;
    job.out = op->out;
    job.lse = op->lse;
    job.scratch = op->scratch;
    forward(cpu, &job);
}

/* Prepares a block of queries for backward. */
static void begin_queries(const struct attention *job, const struct block *at, const struct work *work) {
    const struct ox_attention_shape *const shape = job->shape;
    const size_t out = out_offset(job, at);
    copy_rows(job, q_view(job, at), at->query_count, shape->scale, work->query, work->dim);
    copy_rows(job, (struct view){job->dout + out, job->out_stride}, at->query_count, 1.0f, work->dout, work->dim);
    turn(job, at, work->query, work->dim, work->query_t);
    turn(job, at, work->dout, work->dim, work->dout_t);
    for (uint32_t row = 0; row < at->width; row++) {
        const bool is_query = row < at->query_count;
        const size_t begin = out + row * job->out_stride;
        work->lse[row] = is_query ? job->lse_in[lse_offset(job, at) + row] : 0.0f;
        work->delta[row] = is_query ? job->vector->dot(job->dout + begin, job->out_in + begin, shape->head_dim) : 0.0f;
    }
}

static void backward_block(const struct attention *job, const struct block *at, const struct work *work) {
    float *const dk = job->dkeys + key_offset(job, at), *const dv = job->dvalues + key_offset(job, at);
    by_queries(job, at, k_view(job, at), work->query_t, work->score);
    by_queries(job, at, v_view(job, at), work->dout_t, work->dscore);
    job->vector->softmax_back(&(struct ox_vector_softmax_back){.block = scores_of(job, at, work),
                                                               .dscore = work->dscore,
                                                               .lse = work->lse,
                                                               .delta = work->delta});
    add_gradient(job, at, work->score, work->dout, work->dim, dv);
    add_gradient(job, at, work->dscore, work->query, work->dim, dk);
    by_keys(job, at, work->dscore, k_view(job, at), work);
}

/* Clears what the gradients of keys and values are added to, and those of the queries' rows where these are elsewhere.
 */
static void clear_gradients(const struct attention *job, uint32_t batch, uint32_t kv_head) {
    const struct ox_attention_shape *const shape = job->shape;
    const size_t bytes = shape->head_dim * sizeof(float);
    for (uint32_t kind = 0; kind < 2 && !job->resumes; kind++) {
        const uint32_t slot = shape->heads + kind * shape->kv_heads + kv_head;
        float *const gradient = job->dqkv + slot_offset(job, batch, slot);
        for (uint32_t row = 0; row < shape->seq; row++) {
            memset(gradient + row * job->row_stride, 0, bytes);
        }
    }
    const uint32_t past = min_u32(job->chunks * shape->seq, job->key_past);
    for (uint32_t key = job->key_first; job->chunks > 0 && !job->adds_keys && key < past; key++) {
        const size_t at = key_row(job, batch, key) * job->key_stride + (size_t)kv_head * shape->head_dim;
        memset(job->dkeys + at, 0, bytes);
        memset(job->dvalues + at, 0, bytes);
    }
}

/* The gradient of a block's queries, or what is added to it; nothing, where they have seen no key. */
static void give_queries(const struct attention *job, const struct block *at, const struct work *work) {
    const uint32_t dim = job->shape->head_dim;
    float *const dq = job->dqkv + (q_view(job, at).at - job->qkv);
    OX_ASSERT(job->resumes || at->key_end > at->key_begin);
    if (!job->resumes) {
        copy_rows(job, (struct view){work->sum, work->dim}, at->query_count, job->shape->scale, dq, job->row_stride);
        return;
    }
    for (uint32_t row = 0; row < at->query_count && at->key_end > at->key_begin; row++) {
        float *const sum = work->sum + row * work->dim, *const to = dq + row * job->row_stride;
        job->vector->scale(sum, job->shape->scale, dim);
        for (uint32_t i = 0; i < dim; i++) {
            to[i] += sum[i];
        }
    }
}

/* One key/value head of one sequence with all query heads that read it, in order, so that one thread makes the sums of
 * dk and dv. */
static void backward_item(void *context, uint32_t item, uint32_t thread) {
    const struct attention *const job = context;
    const struct ox_attention_shape *const shape = job->shape;
    const struct work work = work_of(job, thread);
    const uint32_t group = shape->heads / shape->kv_heads;
    const uint32_t batch = item / shape->kv_heads, kv_head = item % shape->kv_heads;
    clear_gradients(job, batch, kv_head);
    for (uint32_t idx = 0; idx < group * job->query_blocks; idx++) {
        struct block at = block_of(job, batch, kv_head * group + idx / job->query_blocks,
                                   idx % job->query_blocks * QUERIES);
        begin_queries(job, &at, &work);
        while (next_keys(job, &at)) {
            backward_block(job, &at, &work);
        }
        give_queries(job, &at, &work);
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
    job.dkeys = job.dqkv + (job.keys - job.qkv);
    job.dvalues = job.dqkv + (job.values - job.qkv);
    job.scratch = op->scratch;
    see_part(&job, &op->part);
    ox_pool_items(cpu->pool, op->shape.batch * op->shape.kv_heads, backward_item, &job);
}
