/* Attention for generating text. Many rows are computed in blocks, as in training. A single row is limited by reading
 * the cache: its keys are cut into spans, as many as their number says, and a thread takes all heads of a key while the
 * key is at hand, so that the cache is read once and in order. */
#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* Keys: the fewest of a span, those whose scores exist at a time, and the length of a row of scores; that length is no
 * power of two because the heads' rows lie side by side. Then numbers of spans: one that threads divide well, and the
 * most; and the rows that one item copies. */
enum { SPAN_LEAST = 64, BLOCK = 256, SCORE_STRIDE = BLOCK + 16, SPANS_GRAIN = 4, SPANS_MOST = 48, COPY_ROWS = 64 };

static size_t kv_len(const struct ox_op_attention_cached *op) {
    return (size_t)op->kv_heads * op->head_dim;
}

/* ---- the cache grows ----------------------------------------------------------------------------- */

static void append_rows(const struct ox_vector *vector, const void *args, struct ox_range rows) {
    (void)vector;
    const struct ox_op_attention_cached *const op = args;
    const size_t q_len = (size_t)op->heads * op->head_dim, len = kv_len(op);
    for (uint64_t row = rows.begin; row < rows.end; row++) {
        const float *const key = ox_cpu_from(op->qkv, row * (q_len + 2 * len) + q_len);
        const size_t to = (op->cached + row) * len;
        memcpy(ox_cpu_at(op->keys, to), key, len * sizeof *key);
        memcpy(ox_cpu_at(op->values, to), key + len, len * sizeof *key);
    }
}

/* ---- one row ------------------------------------------------------------------------------------- */

/* The result of one span of keys for all heads. */
struct partial {
    float *out;       /* (heads, head_dim) */
    float *max, *sum; /* (heads) */
};

struct row {
    const struct ox_vector *vector;
    const struct ox_op_attention_cached *op;
    uint32_t begin, count; /* keys that the row sees */
    uint32_t span_count;
    float *scores; /* per thread, (heads, SCORE_STRIDE) */
    float *partials;
};

static size_t scores_len(const struct ox_op_attention_cached *op) {
    return (size_t)op->heads * SCORE_STRIDE;
}

static size_t partial_len(const struct ox_op_attention_cached *op) {
    return (size_t)op->heads * (op->head_dim + 2);
}

/* Spans of up to two blocks of keys, because a shorter one takes longer for each key. */
static uint32_t span_count(uint32_t keys) {
    const uint64_t whole = ox_align_up(ox_div_up(keys, 2 * BLOCK), SPANS_GRAIN);
    return (uint32_t)ox_min_u64(ox_min_u64(whole, ox_div_up(keys, SPAN_LEAST)), SPANS_MOST);
}

uint64_t ox_cpu_attention_cached_scratch_bytes(const struct ox_op_attention_cached *op, uint32_t threads) {
    const uint32_t keys = op->cached + op->rows;
    const uint64_t one =
        ((uint64_t)threads * scores_len(op) + span_count(keys) * partial_len(op)) * sizeof(float);
    return ox_max_u64(one, ox_cpu_attention_blocks_scratch_bytes(op, threads));
}

static struct partial partial_of(const struct row *job, uint32_t span) {
    const size_t heads = job->op->heads;
    float *const out = job->partials + span * partial_len(job->op);
    return (struct partial){.out = out, .max = out + heads * job->op->head_dim,
                            .sum = out + heads * (job->op->head_dim + 1)};
}

/* A softmax whose scores come in parts. Turns `count` more scores into exponentials against the running maximum, and
 * rescales the earlier `sum` and the weighted `out` to the new one. Before the first part max is -inf and sum is 0;
 * `out` is not touched before a part has had a score. */
struct softmax {
    float *score;
    uint32_t count; /* may be 0 */
    float *max, *sum;
    float *out;
    uint32_t out_len;
};

static void softmax_add(const struct ox_vector *vector, const struct softmax *row) {
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

/* Adds `count` keys, at most BLOCK, from key `first` on to a span. */
static void add_block(const struct row *job, const struct partial *to, float *scores, uint32_t first,
                      uint32_t count) {
    const struct ox_op_attention_cached *const op = job->op;
    const size_t dim = op->head_dim, len = kv_len(op);
    const uint32_t group = op->heads / op->kv_heads;
    for (uint32_t i = 0; i < count; i++) {
        const float *const key = ox_cpu_from(op->keys, ((size_t)first + i) * len);
        for (uint32_t head = 0; head < op->heads; head++) {
            scores[head * SCORE_STRIDE + i] =
                op->scale * job->vector->dot(ox_cpu_from(op->qkv, head * dim), key + head / group * dim, dim);
        }
    }
    for (uint32_t head = 0; head < op->heads; head++) {
        if (op->cap != 0.0f) {
            job->vector->cap(scores + head * SCORE_STRIDE, 1.0f, op->cap, count);
        }
        softmax_add(job->vector, &(struct softmax){.score = scores + head * SCORE_STRIDE,
                                                   .count = count,
                                                   .max = &to->max[head],
                                                   .sum = &to->sum[head],
                                                   .out = to->out + head * dim,
                                                   .out_len = op->head_dim});
    }
    for (uint32_t i = 0; i < count; i++) {
        const float *const value = ox_cpu_from(op->values, ((size_t)first + i) * len);
        for (uint32_t head = 0; head < op->heads; head++) {
            job->vector->add_scaled(to->out + head * dim, value + head / group * dim,
                                    scores[head * SCORE_STRIDE + i], dim);
        }
    }
}

static void span_item(void *context, uint32_t item, uint32_t thread) {
    const struct row *const job = context;
    const struct partial to = partial_of(job, item);
    float *const scores = job->scores + thread * scores_len(job->op);
    const struct ox_range keys = ox_pool_range(job->count, OX_CPU_GRAIN, item, job->span_count);
    memset(to.out, 0, partial_len(job->op) * sizeof *to.out);
    for (uint32_t head = 0; head < job->op->heads; head++) {
        to.max[head] = -INFINITY;
    }
    for (uint64_t key = keys.begin; key < keys.end; key += BLOCK) {
        add_block(job, &to, scores, job->begin + (uint32_t)key, (uint32_t)ox_min_u64(BLOCK, keys.end - key));
    }
}

static void join_spans(const struct row *job) {
    const struct ox_op_attention_cached *const op = job->op;
    for (uint32_t head = 0; head < op->heads; head++) {
        float *const out = ox_cpu_at(op->out, (size_t)head * op->head_dim);
        float top = -INFINITY, sum = 0.0f;
        for (uint32_t span = 0; span < job->span_count; span++) {
            top = fmaxf(top, partial_of(job, span).max[head]);
        }
        memset(out, 0, op->head_dim * sizeof *out);
        for (uint32_t span = 0; span < job->span_count; span++) {
            const struct partial part = partial_of(job, span);
            const float shrink = expf(part.max[head] - top);
            sum += shrink * part.sum[head];
            job->vector->add_scaled(out, part.out + (size_t)head * op->head_dim, shrink, op->head_dim);
        }
        job->vector->scale(out, 1.0f / sum, op->head_dim);
        if (op->lse != NULL) {
            op->lse[head] = top + logf(sum);
        }
    }
}

static void run_row(const struct ox_cpu *cpu, const struct ox_op_attention_cached *op) {
    const uint32_t threads = ox_pool_size(cpu->pool), place = op->cached;
    struct row job = {.vector = cpu->vector, .op = op, .scores = op->scratch};
    job.begin = op->window == 0 || place < op->window ? 0 : place - op->window + 1;
    job.count = place + 1 - job.begin;
    job.span_count = span_count(job.count);
    job.partials = ox_cpu_at(op->scratch, threads * scores_len(op));
    ox_pool_items(cpu->pool, job.span_count, span_item, &job);
    join_spans(&job);
}

void ox_cpu_attention_cached(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_attention_cached *const op = args;
    ox_cpu_pieces(cpu, op->rows, COPY_ROWS, append_rows, op);
    if (op->rows == 1) {
        run_row(cpu, op);
    } else {
        ox_cpu_attention_blocks(cpu, op);
    }
}
