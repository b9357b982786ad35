/* Products of the rows of each expert with its weights, by the small products of vector.h. An element's sum is one
 * chain in the order of k, so that its bits do not depend on which rows or experts are computed beside it, nor on how;
 * and weights are copied for many rows alone, so that few rows cost little more than reading the weights.
 *
 * Forward, and the gradient of the input: rows become lanes. A round takes up to PANELS panels of PANEL_ROWS rows, of
 * one expert or several; first the panels are turned to (k, rows), then every block of columns is computed as
 * (columns, rows) and turned back. The gradient of weights: an item is a stripe of columns of one expert's. */
#include "base/bytes.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

enum { PANEL_ROWS = 2 * OX_VECTOR_STEP, PANELS = 8, DEPTH = 512, SUB_COLS = 48, BLOCK_COLS = 4 * SUB_COLS };

static uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* ---- scratch: the panels of a round, then room for each thread ---- */

static uint64_t panels_len(uint32_t depth) {
    return (uint64_t)PANELS * PANEL_ROWS * depth;
}

static uint64_t block_cols(uint32_t cols) {
    return ox_min_u64(BLOCK_COLS, ox_align_up(cols, SUB_COLS));
}

/* A block of weights with k outermost, or columns of the input; and results as (columns, rows). */
static uint64_t weights_len(uint32_t widest) {
    return ox_max_u64(block_cols(widest), PANEL_ROWS) * min_u32(widest, DEPTH);
}

static uint64_t thread_len(uint32_t widest) {
    return ox_max_u64(weights_len(widest), (uint64_t)DEPTH * PANEL_ROWS) + block_cols(widest) * PANELS * PANEL_ROWS;
}

uint64_t ox_cpu_grouped_scratch_bytes(uint32_t in_count, uint32_t out_count, uint32_t threads) {
    const uint32_t widest = in_count > out_count ? in_count : out_count;
    return (panels_len(widest) + threads * thread_len(widest)) * sizeof(float);
}

/* ---- rows by weights ---- */

/* out (rows, cols) = in (rows, depth) * weights [+ bias]; element (k, col) of an expert's weights lies at k * k_step +
 * col * col_step. */
struct by_rows {
    const struct ox_cpu *cpu;
    const struct ox_experts *experts;
    float *out;
    const float *in, *weight, *bias;
    uint32_t depth, cols;
    size_t k_step, col_step;
    float *panels, *rooms;
    uint64_t room_len;
};

/* Some rows of one expert, in panels of the round. */
struct chunk {
    uint32_t expert, rows, panel; /* counted from the call's first expert; first panel */
    size_t begin;                 /* first sorted row */
};

struct round {
    const struct by_rows *job;
    struct chunk chunks[PANELS];
    uint32_t chunk_count, panel_count, parts; /* parts: blocks of k, or of columns */
};

static uint32_t panels_of(uint32_t rows) {
    return (uint32_t)ox_div_up(rows, PANEL_ROWS);
}

/* Turns a panel's rows for some k; lanes without a row become 0. */
static void turn_item(void *context, uint32_t item, uint32_t thread) {
    enum { STEP = OX_VECTOR_STEP };
    const struct round *const round = context;
    const struct by_rows *const job = round->job;
    const uint32_t panel = item / round->parts, k_begin = item % round->parts * DEPTH;
    const uint32_t k_end = min_u32(k_begin + DEPTH, job->depth);
    const struct chunk *chunk = round->chunks;
    float *const out = job->panels + (size_t)panel * PANEL_ROWS * job->depth;
    (void)thread;
    while (chunk->panel + panels_of(chunk->rows) <= panel) {
        chunk++;
    }
    const uint32_t first = (panel - chunk->panel) * PANEL_ROWS, rows = min_u32(chunk->rows - first, PANEL_ROWS);
    for (uint32_t begin = k_begin; begin < k_end; begin += STEP) {
        const uint32_t end = min_u32(begin + STEP, k_end);
        for (uint32_t row = 0; row < PANEL_ROWS; row++) {
            const float *const in = row < rows ? job->in + (chunk->begin + first + row) * job->depth : NULL;
            for (uint32_t k = begin; k < end; k++) {
                out[(size_t)k * PANEL_ROWS + row] = in == NULL ? 0.0f : in[k];
            }
        }
    }
}

/* Where a product reads the weights of SUB_COLS columns from `col` on, for k from `k` on. */
struct weights {
    const float *at;
    size_t k_step, col_step, sub_step;
};

/* Weights with columns side by side are copied to `room`, SUB_COLS columns after the other, so that a product's reads
 * are near each other. */
static struct weights weights_of(const struct by_rows *job, uint32_t expert, struct ox_range cols, struct ox_range k,
                                 float *room) {
    const float *const from = job->weight + (size_t)expert * job->depth * job->cols + cols.begin * job->col_step +
                              k.begin * job->k_step;
    const size_t depth = k.end - k.begin;
    if (job->k_step == 1) {
        return (struct weights){from, 1, job->col_step, SUB_COLS * job->col_step};
    }
    for (size_t i = 0; i < depth; i++) {
        uint64_t col = 0;
        for (; col + SUB_COLS <= cols.end - cols.begin; col += SUB_COLS) { /* of a size that is known: no call */
            memcpy(room + (col * depth + i * SUB_COLS), from + i * job->k_step + col, SUB_COLS * sizeof(float));
        }
        if (col < cols.end - cols.begin) {
            memcpy(room + (col * depth + i * SUB_COLS), from + i * job->k_step + col,
                   (cols.end - cols.begin - col) * sizeof(float));
        }
    }
    return (struct weights){room, SUB_COLS, 1, depth * SUB_COLS};
}

/* The columns of one block for one chunk, as (columns, rows of all its panels), one block of k after the other. */
static void multiply(const struct by_rows *job, const struct chunk *chunk, struct ox_range cols, float *room,
                     float *result) {
    const uint32_t width = (uint32_t)(cols.end - cols.begin), row_count = panels_of(chunk->rows) * PANEL_ROWS;
    for (uint32_t k = 0; k < job->depth; k += DEPTH) {
        const uint32_t depth = min_u32(DEPTH, job->depth - k);
        const struct weights weights = weights_of(job, chunk->expert, cols, (struct ox_range){k, k + depth}, room);
        for (uint32_t col = 0; col < width; col += SUB_COLS) {
            for (uint32_t row = 0; row < row_count; row += PANEL_ROWS) {
                const float *const panel = job->panels + (size_t)(chunk->panel * PANEL_ROWS + row) * job->depth;
                job->cpu->vector->product(&(struct ox_vector_product){
                    .c = result + (size_t)col * row_count + row, .c_row = row_count,
                    .a = weights.at + col / SUB_COLS * weights.sub_step, .a_row = weights.col_step,
                    .a_step = weights.k_step, .b = panel + (size_t)k * PANEL_ROWS, .b_row = PANEL_ROWS,
                    .rows = min_u32(SUB_COLS, width - col),
                    .cols = (uint32_t)ox_min_u64(PANEL_ROWS, ox_align_up(chunk->rows - row, OX_VECTOR_STEP)),
                    .depth = depth, .carries = k > 0});
            }
        }
    }
}

/* Few rows of weights with columns side by side: these are read where they are, in rows as long as the block. Products
 * read b in whole steps, so columns are a multiple of that. */
enum { FEW_ROWS = 32, FEW_DEPTH = 128 };

static bool is_few(const struct by_rows *job, const struct chunk *chunk) {
    return job->k_step != 1 && chunk->rows <= FEW_ROWS && job->cols % OX_VECTOR_STEP == 0;
}

static void multiply_few(const struct by_rows *job, const struct chunk *chunk, struct ox_range cols) {
    const float *const weight = job->weight + (size_t)chunk->expert * job->depth * job->cols + cols.begin;
    for (uint32_t k = 0; k < job->depth; k += FEW_DEPTH) {
        job->cpu->vector->product(&(struct ox_vector_product){
            .c = job->out + chunk->begin * job->cols + cols.begin, .c_row = job->cols,
            .a = job->in + chunk->begin * job->depth + k, .a_row = job->depth, .a_step = 1,
            .b = weight + (size_t)k * job->cols, .b_row = job->cols, .rows = chunk->rows,
            .cols = (uint32_t)(cols.end - cols.begin), .depth = min_u32(FEW_DEPTH, job->depth - k),
            .carries = k > 0});
    }
}

static void columns_item(void *context, uint32_t item, uint32_t thread) {
    const struct round *const round = context;
    const struct by_rows *const job = round->job;
    const struct chunk *const chunk = &round->chunks[item / round->parts];
    const uint32_t col_begin = item % round->parts * BLOCK_COLS, row_count = panels_of(chunk->rows) * PANEL_ROWS;
    const struct ox_range cols = {col_begin, min_u32(col_begin + BLOCK_COLS, job->cols)};
    const float *const bias = job->bias == NULL ? NULL : job->bias + (size_t)chunk->expert * job->cols;
    float *const room = job->rooms + thread * job->room_len;
    float *const result = room + job->room_len - block_cols(job->cols) * PANELS * PANEL_ROWS;
    if (is_few(job, chunk)) {
        multiply_few(job, chunk, cols);
        for (uint32_t row = 0; bias != NULL && row < chunk->rows; row++) {
            float *const out = job->out + (chunk->begin + row) * job->cols + cols.begin;
            job->cpu->vector->add(out, out, bias + cols.begin, cols.end - cols.begin);
        }
        return;
    }
    multiply(job, chunk, cols, room, result);
    for (uint32_t row = 0; row < chunk->rows; row++) {
        float *const out = job->out + (chunk->begin + row) * job->cols;
        for (uint64_t col = cols.begin; col < cols.end; col++) {
            const float sum = result[(col - cols.begin) * row_count + row];
            out[col] = bias == NULL ? sum : sum + bias[col];
        }
    }
}

static void run_round(struct round *round) {
    const struct by_rows *const job = round->job;
    round->parts = (uint32_t)ox_div_up(job->depth, DEPTH);
    ox_pool_items(job->cpu->pool, round->panel_count * round->parts, turn_item, round);
    round->parts = (uint32_t)ox_div_up(job->cols, BLOCK_COLS);
    ox_pool_items(job->cpu->pool, round->chunk_count * round->parts, columns_item, round);
    round->chunk_count = round->panel_count = 0;
}

static void run_rows(const struct by_rows *job) {
    struct round round = {.job = job};
    for (uint32_t e = 0; e < job->experts->count; e++) {
        const int32_t *const offset = &job->experts->offsets[job->experts->first + e];
        for (uint32_t at = (uint32_t)offset[0]; at < (uint32_t)offset[1];) {
            const uint32_t room = (PANELS - round.panel_count) * PANEL_ROWS;
            const uint32_t rows = min_u32((uint32_t)offset[1] - at, room);
            round.chunks[round.chunk_count++] =
                (struct chunk){.expert = e, .rows = rows, .panel = round.panel_count, .begin = at};
            round.panel_count += panels_of(rows);
            at += rows;
            if (round.panel_count == PANELS) {
                run_round(&round);
            }
        }
    }
    if (round.chunk_count > 0) {
        run_round(&round);
    }
}

/* ---- the gradient of weights ---- */

/* dweight (rows, cols) of each expert += a^T b over its sorted rows; a has `rows` elements a row, b has `cols`. */
struct by_experts {
    const struct ox_cpu *cpu;
    const struct ox_experts *experts;
    float *dweight;
    const float *a, *b;
    uint32_t rows, cols;
    bool begins;
    float *rooms;
    uint64_t room_len;
    uint32_t parts;
};

/* With few sorted rows the gradient is written along its rows; with more it pays to copy a stripe of b. */
enum { STRIPE_ROWS = 96, STRIPE_TILE = 12, ALONG_ROWS_MOST = 32 };

static struct ox_vector_product product_of(const struct by_experts *job, float *c, size_t at, uint32_t depth) {
    return (struct ox_vector_product){.c = c, .c_row = job->cols, .a = job->a + at * job->rows, .a_row = 1,
                                      .a_step = job->rows, .b = job->b + at * job->cols, .b_row = job->cols,
                                      .depth = depth};
}

static void along_rows(const struct by_experts *job, float *c, struct ox_range rows, size_t at, uint32_t depth) {
    for (uint64_t row = rows.begin; row < rows.end; row += STRIPE_TILE) {
        struct ox_vector_product product = product_of(job, c + row * job->cols, at, depth);
        product.a += row;
        product.rows = (uint32_t)ox_min_u64(STRIPE_TILE, rows.end - row);
        product.cols = job->cols / OX_VECTOR_STEP * OX_VECTOR_STEP;
        product.add = !job->begins;
        job->cpu->vector->product(&product);
        if (product.cols < job->cols) { /* the last step of b's rows must not be read beyond its end */
            float last[ALONG_ROWS_MOST * OX_VECTOR_STEP] = {0};
            const uint32_t rest = job->cols - product.cols;
            for (uint32_t k = 0; k < depth; k++) {
                memcpy(last + (size_t)k * OX_VECTOR_STEP, product.b + (size_t)k * job->cols + product.cols,
                       rest * sizeof *last);
            }
            product.c += product.cols;
            product.cols = rest;
            product.b = last;
            product.b_row = OX_VECTOR_STEP;
            job->cpu->vector->product(&product);
        }
    }
}

static void along_cols(const struct by_experts *job, float *c, struct ox_range cols, size_t at, uint32_t depth,
                       float *room) {
    for (uint64_t col = cols.begin; col < cols.end; col += PANEL_ROWS) {
        const uint32_t width = (uint32_t)ox_min_u64(PANEL_ROWS, cols.end - col);
        for (uint32_t k = 0; k < depth; k += DEPTH) {
            struct ox_vector_product product = product_of(job, c + col, at + k, min_u32(DEPTH, depth - k));
            for (uint32_t i = 0; i < product.depth; i++) {
                memcpy(room + (size_t)i * PANEL_ROWS, product.b + i * (size_t)job->cols + col, width * sizeof *room);
            }
            product.b = room;
            product.b_row = PANEL_ROWS;
            product.rows = job->rows;
            product.cols = width;
            product.add = k > 0 || !job->begins;
            job->cpu->vector->product(&product);
        }
    }
}

static void expert_item(void *context, uint32_t item, uint32_t thread) {
    const struct by_experts *const job = context;
    const uint32_t expert = item / job->parts, part = item % job->parts;
    const int32_t *const offset = &job->experts->offsets[job->experts->first + expert];
    const uint32_t depth = (uint32_t)(offset[1] - offset[0]);
    float *const c = job->dweight + (size_t)expert * job->rows * job->cols;
    const uint64_t row = (uint64_t)part * STRIPE_ROWS;
    const struct ox_range rows = {row, ox_min_u64(row + STRIPE_ROWS, job->rows)};
    if (depth > ALONG_ROWS_MOST) {
        const struct ox_range cols = ox_pool_range(job->cols, PANEL_ROWS, part, job->parts);
        along_cols(job, c, cols, (size_t)offset[0], depth, job->rooms + thread * job->room_len);
    } else if (depth > 0) {
        along_rows(job, c, rows, (size_t)offset[0], depth);
    } else if (job->begins) {
        memset(c + rows.begin * job->cols, 0, (rows.end - rows.begin) * job->cols * sizeof *c);
    }
}

struct bias_sums {
    const struct ox_cpu *cpu;
    const struct ox_op_grouped_backward *op;
    uint32_t parts;
};

/* Part of an expert's columns, its rows in order. */
static void bias_item(void *context, uint32_t item, uint32_t thread) {
    const struct bias_sums *const job = context;
    const struct ox_op_grouped_backward *const op = job->op;
    const uint32_t expert = item / job->parts, begin = item % job->parts * DEPTH;
    const size_t width = min_u32(DEPTH, op->out_count - begin);
    const int32_t *const offset = &op->experts.offsets[op->experts.first + expert];
    float *const dbias = op->dbias + (size_t)expert * op->out_count + begin;
    (void)thread;
    if (op->begins) {
        memset(dbias, 0, width * sizeof *dbias);
    }
    for (int32_t row = offset[0]; row < offset[1]; row++) {
        job->cpu->vector->add(dbias, dbias, ox_cpu_from(op->dout, (size_t)row * op->out_count + begin), width);
    }
}

/* ---- by a library, in bf16 ---- */

static void library_rows(const struct by_rows *job) {
    for (uint32_t e = 0; e < job->experts->count; e++) {
        const int32_t *const offset = &job->experts->offsets[job->experts->first + e];
        const size_t begin = (size_t)offset[0];
        if (offset[1] == offset[0]) {
            continue;
        }
        ox_cpu_gemm(job->cpu, &(struct ox_gemm){
                                  .c = job->out + begin * job->cols, .a = job->in + begin * job->depth,
                                  .b = job->weight + (size_t)e * job->depth * job->cols,
                                  .bias = job->bias == NULL ? NULL : job->bias + (size_t)e * job->cols,
                                  .m = (uint32_t)(offset[1] - offset[0]), .n = job->cols, .k = job->depth,
                                  .a_stride = job->depth, .b_stride = job->k_step == 1 ? job->depth : job->cols,
                                  .c_stride = job->cols, .b_transposed = job->k_step == 1});
    }
}

static void library_experts(const struct by_experts *job) {
    for (uint32_t e = 0; e < job->experts->count; e++) {
        const int32_t *const offset = &job->experts->offsets[job->experts->first + e];
        const size_t begin = (size_t)offset[0], elems = (size_t)job->rows * job->cols;
        if (offset[1] > offset[0]) {
            ox_cpu_gemm(job->cpu, &(struct ox_gemm){
                                      .c = job->dweight + e * elems, .a = job->a + begin * job->rows,
                                      .b = job->b + begin * job->cols, .m = job->rows, .n = job->cols,
                                      .k = (uint32_t)(offset[1] - offset[0]), .a_stride = job->rows,
                                      .b_stride = job->cols, .c_stride = job->cols, .a_transposed = true,
                                      .beta = job->begins ? 0.0f : 1.0f});
        } else if (job->begins) {
            memset(job->dweight + e * elems, 0, elems * sizeof(float));
        }
    }
}

/* ---- the operations ---- */

static void multiply_rows(struct by_rows *job, void *scratch) {
    job->panels = scratch;
    job->rooms = job->panels + panels_len(job->depth > job->cols ? job->depth : job->cols);
    job->room_len = thread_len(job->depth > job->cols ? job->depth : job->cols);
    if (job->cpu->narrow != NULL) {
        library_rows(job);
    } else {
        run_rows(job);
    }
}

void ox_cpu_grouped_forward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_grouped_forward *const op = args;
    const bool out_in = op->layout == OX_WEIGHT_OUT_IN;
    struct by_rows job = {.cpu = cpu, .experts = &op->experts, .out = op->out, .in = op->in, .weight = op->weight,
                          .bias = op->bias, .depth = op->in_count, .cols = op->out_count,
                          .k_step = out_in ? 1 : op->out_count, .col_step = out_in ? op->in_count : 1};
    multiply_rows(&job, op->scratch);
}

static void weight_gradient(const struct ox_cpu *cpu, const struct ox_op_grouped_backward *op) {
    const bool out_in = op->layout == OX_WEIGHT_OUT_IN;
    const uint32_t widest = op->in_count > op->out_count ? op->in_count : op->out_count;
    struct by_experts job = {.cpu = cpu, .experts = &op->experts, .dweight = op->dweight,
                             .a = out_in ? op->dout : op->in, .b = out_in ? op->in : op->dout,
                             .rows = out_in ? op->out_count : op->in_count,
                             .cols = out_in ? op->in_count : op->out_count, .begins = op->begins,
                             .rooms = op->scratch, .room_len = thread_len(widest)};
    job.parts = (uint32_t)ox_div_up(job.rows, STRIPE_ROWS);
    if (cpu->narrow != NULL) {
        library_experts(&job);
    } else {
        ox_pool_items(cpu->pool, op->experts.count * job.parts, expert_item, &job);
    }
}

void ox_cpu_grouped_backward(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_grouped_backward *const op = args;
    const bool out_in = op->layout == OX_WEIGHT_OUT_IN;
    if (op->din != NULL) {
        struct by_rows job = {.cpu = cpu, .experts = &op->experts, .out = op->din, .in = op->dout,
                              .weight = op->weight, .depth = op->out_count, .cols = op->in_count,
                              .k_step = out_in ? op->in_count : 1, .col_step = out_in ? 1 : op->out_count};
        multiply_rows(&job, op->scratch);
    }
    if (op->dweight != NULL) {
        weight_gradient(cpu, op);
    }
    if (op->dbias != NULL) {
        struct bias_sums job = {.cpu = cpu, .op = op, .parts = (uint32_t)ox_div_up(op->out_count, DEPTH)};
        ox_pool_items(cpu->pool, op->experts.count * job.parts, bias_item, &job);
    }
}
