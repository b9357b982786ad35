/* Bytes between ranks, and memory of each: what crossed, what the plans say and what the endpoints counted equal
 * formulas that are written here by hand. Every unit of the first model is a multiple of four chunks, so each of 2 or 4
 * ranks has an equal slice. */
#include "base/bytes.h"
#include "kernels/comm/comm.h"
#include "tests/kit/files.h"
#include "tests/kit/run/harness.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

/* A head of its own, so that each parameter has one gradient. */
static const char model_config[] =
    "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"n_embd\": 64, \"n_head\": 4, "
    "\"n_inner\": 7616, \"n_layer\": 2, \"n_positions\": 130, \"vocab_size\": 126, "
    "\"activation_function\": \"gelu_new\", \"layer_norm_epsilon\": 1e-05, \"tie_word_embeddings\": false}";

/* Every expert takes every row, so that what crosses does not depend on the router. */
static const char mixture_config[] =
    "{\"model_type\": \"mixtral\", \"vocab_size\": 126, \"hidden_size\": 64, \"intermediate_size\": 32, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"max_position_embeddings\": 64, \"num_local_experts\": 4, \"num_experts_per_tok\": 4}";

enum { VOCAB = 126, CHUNK = 2048, SEQ = 8, RANKS_MAX = 4, TILES_MAX = 2, STEPS = 2, HIDDEN = 64, STAGES = 4,
       BLOCKS = 2 };

/* The endpoints of the engine that was opened last. */
static struct ox_comm *endpoints[RANKS_MAX];

enum ox_status __real_ox_comm_local_open(const struct ox_comm_local_config *config, struct ox_comm **out);
enum ox_status __wrap_ox_comm_local_open(const struct ox_comm_local_config *config, struct ox_comm **out);

enum ox_status __wrap_ox_comm_local_open(const struct ox_comm_local_config *config, struct ox_comm **out) {
    const enum ox_status status = __real_ox_comm_local_open(config, out);
    CHECK(config->count <= RANKS_MAX);
    for (uint32_t i = 0; i < config->count && status == OX_OK; i++) {
        endpoints[i] = out[i];
    }
    return status;
}

/* What each rank receives in a step, and sends. */
struct expected {
    uint64_t weights, grads, other;
    uint64_t gathered; /* weights that its endpoint counts: with shared, those that it takes from host memory */
    uint64_t uploaded; /* weights that it takes from host memory: not from other ranks */
};

/* A gather or an exchange of a vector brings a rank the (N - 1) / N of it that it lacks.
 *
 * With c copies, each divided among N / c ranks, what follows is so among these. Their sums of a gradient are added
 * over the copies: of its slice a rank gets the (c - 1) / c that it lacks of the others' sums, and of the finished one.
 *
 * Weights, of w bytes: with full_shard each of k tiles gathers every block twice, for its forward and for its backward,
 * which recomputes it. It gathers the embedding once, as its backward adds to rows of the gradient and reads no weight;
 * and the head once, as its forward and its backward are one pass. With shard_grad_op, zero2 and zero1 a gathered unit
 * is kept, so k and passes do not count. Ranks upload their slices and gather the rest. With no_shard and shared they
 * upload whole units, whose slices lie with shared in the host memory of all.
 *
 * Gradients, of 4 bytes: as many sum groups as ranks, so a rank has one part, which all tiles add to, and which is
 * exchanged once. With no_shard the finished sums are gathered too, as each rank updates its own copy.
 *
 * The rest: a square sum of 8 bytes for each chunk of 2,048 gradients, where ranks have slices, and a loss of 8 bytes
 * for each micro-batch. */
static struct expected expect(const struct harness *harness, const struct harness_run *run, uint64_t tiles) {
    const struct ox_model *const model = harness->model;
    const uint64_t width = run->dtype == OX_COMPUTE_FP32 ? 4 : 2, whole = ox_max_u64(run->copies, 1);
    const uint64_t ranks = run->ranks / whole, others = ranks - 1; /* of a copy */
    const bool copies = run->sharding == OX_SHARDING_NONE, shared = run->sharding == OX_SHARDING_SHARED;
    uint64_t all = 0, blocks = 0;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        CHECK(model->units[i].elem_count % ((uint64_t)RANKS_MAX * CHUNK) == 0);
        all += model->units[i].elem_count;
        blocks += i > 0 && i + 1 < model->unit_count ? model->units[i].elem_count : 0;
    }
    const bool each_pass = copies || shared || run->sharding == OX_SHARDING_FULL;
    const uint64_t used = width * (each_pass ? tiles * (all + blocks) : all);
    return (struct expected){
        .weights = copies || shared ? 0 : used / ranks * others,
        .grads = 4 * all / ranks * others * (copies ? 2 : 1) + 2 * 4 * all / ranks / whole * (whole - 1),
        .other = (copies ? 0 : all / CHUNK * 8) / ranks * others +
                 8 * run->micro_batches / run->ranks * (run->ranks - 1),
        .gathered = copies ? 0 : used / ranks * others,
        .uploaded = copies || shared ? used : used / ranks,
    };
}

static uint64_t counted(uint32_t rank, enum ox_comm_call call, bool in) {
    struct ox_comm_stats stats;
    ox_comm_stats(endpoints[rank], call, &stats);
    return in ? stats.in_bytes : stats.out_bytes;
}

static void take_step(struct harness *harness, const struct harness_run *run, uint64_t step,
                      struct ox_step_result *result) {
    for (uint32_t mb_idx = 0; mb_idx < run->micro_batches; mb_idx++) {
        const struct ox_batch batch = ox_engine_batch(harness->engine, mb_idx);
        for (int i = 0; i < SEQ; i++) {
            batch.ids[i] = batch.targets[i] = (int)(mb_idx * 7 + step + (uint64_t)i * 5) % 126;
        }
    }
    const struct ox_step_input input = {
        .step = step,
        .target_count = (uint64_t)SEQ * run->micro_batches,
        .adam = {.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .grad_scale = 1, .step = step},
        .max_grad_norm = 1,
    };
    REQUIRE_OK(ox_engine_step(harness->engine, &input, result));
}

static void check_step(const struct expected *each, const struct harness_run *run,
                       const struct ox_step_result *result) {
    const int links[] = {OX_LINK_PEER_IN, OX_LINK_PEER_OUT};
    for (int i = 0; i < 2; i++) {
        const uint64_t *const crossed = result->traffic[links[i]];
        CHECK(crossed[OX_TRAFFIC_WEIGHTS] == each->weights * run->ranks);
        CHECK(crossed[OX_TRAFFIC_GRADS] == each->grads * run->ranks);
        CHECK(crossed[OX_TRAFFIC_OTHER] == each->other * run->ranks);
    }
    CHECK(result->traffic[OX_LINK_H2D][OX_TRAFFIC_WEIGHTS] == each->uploaded * run->ranks);
    CHECK(memcmp(result->traffic, result->planned, sizeof result->traffic) == 0);
}

/* The endpoints count by call, rank by rank. */
static void check_endpoints(const struct expected *each, const struct harness_run *run) {
    const uint64_t sums = run->sharding == OX_SHARDING_NONE ? each->grads / 2 : 0; /* of no_shard, gathered */
    for (uint32_t rank = 0; rank < run->ranks; rank++) {
        for (int in = 0; in < 2; in++) {
            CHECK(counted(rank, OX_COMM_EXCHANGE, in) == STEPS * (each->grads - sums));
            CHECK(counted(rank, OX_COMM_GATHER, in) == STEPS * (each->gathered + sums + each->other));
            CHECK(counted(rank, OX_COMM_SEND, in) + counted(rank, OX_COMM_RECV, in) == 0);
        }
    }
}

static void check(const char *config, const struct harness_run *of, uint32_t tiles) {
    static const struct harness_place host = {
        .request = {.prefetch_depth = 1, .act_tier = OX_TIER_HOST, .weights_tier = OX_TIER_HOST,
                    .state_tier = OX_TIER_HOST, .grad_tier = OX_TIER_HOST},
        .chunk_elems = CHUNK,
        .optimizer_threads = 1,
    };
    struct harness_place place = host;
    struct harness_run run = *of;
    struct harness harness;
    run.model_folder = config;
    run.batch = 1;
    run.seq = SEQ;
    run.micro_batches = TILES_MAX * run.ranks;
    run.sum_groups = run.ranks;
    place.request.tiles = tiles;
    harness_open(&run, &place, &harness);
    const struct expected each = expect(&harness, &run, tiles);
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct ox_step_result result;
        take_step(&harness, &run, step, &result);
        check_step(&each, &run, &result);
    }
    if (run.copies == 0) { /* groups of ranks have endpoints of their own */
        check_endpoints(&each, &run);
    }
    printf("%u ranks in %u copies, %-13s %s, tiles %u: each way and rank %8llu bytes of weights, %8llu of gradients, "
           "%llu else\n",
           run.ranks, run.copies, ox_sharding_name(run.sharding), run.dtype == OX_COMPUTE_FP32 ? "fp32" : "bf16", tiles,
           (unsigned long long)each.weights, (unsigned long long)each.grads, (unsigned long long)each.other);
    harness_close(&harness);
}

/* ---- pipelines ------------------------------------------------------------------------------------------ */

static const struct harness_place on_host = {
    .request = {.tiles = 1, .prefetch_depth = 1, .act_tier = OX_TIER_HOST, .weights_tier = OX_TIER_HOST,
                .state_tier = OX_TIER_HOST, .grad_tier = OX_TIER_HOST},
    .chunk_elems = CHUNK,
    .optimizer_threads = 1,
};

/* What all ranks receive in a step, and send, of D data ranks for each of p coordinates: gathers of weights and
 * exchanges of gradients are those of D ranks without a pipeline, as each unit has one coordinate. Of the norm each
 * rank gets 8 bytes for each unit of other coordinates, and the losses come from those that have the head. Activations
 * of e bytes cross each border between stages of two coordinates once per micro-batch, their gradients back. Where the
 * head's table is the embedding's, each rank of the head gets that unit from the other coordinate and gives what it has
 * summed of the table's gradient, which is exchanged there as another gradient. */
static void check_pipe_step(const struct harness *harness, const struct harness_run *run, uint64_t borders,
                            const struct ox_step_result *result) {
    const uint64_t pipe = run->pipe, data = run->ranks / pipe, micro_batches = run->micro_batches;
    uint64_t all = 0, blocks = 0;
    for (uint32_t i = 0; i < harness->model->unit_count; i++) {
        all += harness->model->units[i].elem_count;
        blocks += i > 0 && i + 1 < harness->model->unit_count ? harness->model->units[i].elem_count : 0;
    }
    const uint64_t passes = run->schedule == OX_PIPE_VERTICAL ? 1 : micro_batches / data; /* each micro-batch alone */
    const uint64_t other = all / CHUNK * 8 * (data - 1) + 8 * harness->model->unit_count * (pipe - 1) * data +
                           8 * micro_batches * (run->ranks - 1);
    const uint64_t table = harness->model->config.tied ? harness->model->units[0].elem_count : 0;
    const uint64_t summed = table > 0 ? (VOCAB * HIDDEN + CHUNK - 1) / CHUNK * CHUNK : 0; /* of it by the head */
    const int links[] = {OX_LINK_PEER_IN, OX_LINK_PEER_OUT};
    for (int i = 0; i < 2; i++) {
        const uint64_t *const crossed = result->traffic[links[i]];
        CHECK(crossed[OX_TRAFFIC_WEIGHTS] == passes * 4 * (all + blocks) * (data - 1) + 4 * table * data);
        CHECK(crossed[OX_TRAFFIC_GRADS] == 4 * (all + summed) * (data - 1) + 4 * summed * data);
        CHECK(crossed[OX_TRAFFIC_ACTIVATIONS] == 2 * borders * micro_batches * 4 * SEQ * HIDDEN);
        CHECK(crossed[OX_TRAFFIC_OTHER] == other);
    }
    CHECK(memcmp(result->traffic, result->planned, sizeof result->traffic) == 0);
}

/* The most activation checkpoints of a stage that wait at a time. */
static uint32_t most_waiting(const struct ox_plan *plan, uint32_t stage_idx) {
    uint32_t most = 0;
    for (uint32_t task = 0; task < plan->task_count; task++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < plan->buf_count; i++) {
            const struct ox_buf *const buf = &plan->bufs[i];
            count += buf->kind == OX_BUF_ACT && buf->tier == OX_TIER_HOST && buf->stage_idx == stage_idx &&
                     buf->first_task_idx <= task && task <= buf->last_task_idx;
        }
        most = count > most ? count : most;
    }
    return most;
}

/* Bytes of weights and state that live in memory. */
static uint64_t home_bytes(const struct ox_engine_plan *plan) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->train->buf_count; i++) {
        const struct ox_buf *const buf = &plan->train->bufs[i];
        const bool is_home = buf->resident && (buf->kind == OX_BUF_WEIGHTS || buf->kind == OX_BUF_STATE);
        const bool has = is_home && plan->table.shards[buf->unit_idx].elem_count > 0; /* an empty one has a page */
        bytes += has ? buf->bytes : 0;
    }
    return bytes;
}

/* Weights and state take 12 bytes of a parameter that a rank has; of checkpoints as many wait as the schedule says. */
static void check_pipe_memory(const struct harness *harness, const struct harness_run *run) {
    const struct ox_engine_plan *const first = ox_engine_plan_of(harness->engine);
    const uint32_t data = run->ranks / run->pipe, micro_batches = run->micro_batches / data;
    for (uint32_t rank = 0; rank < run->ranks; rank++) {
        const struct ox_engine_plan *const plan = ox_engine_plan_at(first, rank);
        uint64_t held = 0;
        for (uint32_t i = 0; i < harness->model->unit_count; i++) {
            const uint64_t chunks = harness->model->units[i].elem_count / CHUNK, each = (chunks + data - 1) / data;
            const uint64_t before = ox_min_u64(rank % data * each, chunks);
            held += ox_plan_holds(&plan->input, i) ? CHUNK * ox_min_u64(each, chunks - before) : 0;
        }
        CHECK(home_bytes(plan) == 12 * held);
        for (uint32_t stage = 1; stage + 1 < STAGES; stage++) {
            /* Coordinates from this one on; the last one has the next input while it computes. */
            const uint32_t of_last = run->pipe - rank / data, left = of_last == 1 ? 2 : of_last;
            const uint32_t expected = run->schedule == OX_PIPE_1F1B && left < micro_batches ? left : micro_batches;
            const uint32_t most = most_waiting(plan->train, stage);
            if (ox_plan_computes(&plan->input, stage) && most != expected) {
                printf("%s, pipe %u, data %u, stage %u of rank %u: %u checkpoints wait, and not %u\n",
                       ox_pipe_schedule_name(run->schedule), run->pipe, data, stage, rank, most, expected);
                test_failure_count++;
            }
        }
    }
}

/* Between stages of two coordinates. */
static uint64_t borders_of(const struct harness *harness) {
    const struct ox_plan_input *const input = &ox_engine_plan_of(harness->engine)->input;
    uint64_t borders = 0;
    for (uint32_t i = 1; i < input->model.stage_count; i++) {
        borders += ox_plan_stage_owner(input, i) != ox_plan_stage_owner(input, i - 1);
    }
    return borders;
}

static void check_pipe(const char *config, uint32_t pipe, uint32_t data, enum ox_pipe_schedule schedule) {
    struct harness_run run = {.ranks = pipe * data, .pipe = pipe, .schedule = schedule, .pipe_chunks = 1,
                              .sharding = OX_SHARDING_FULL, .dtype = OX_COMPUTE_FP32, .model_folder = config,
                              .batch = 1, .seq = SEQ, .micro_batches = 4 * data, .sum_groups = data};
    struct harness harness;
    struct ox_step_result result;
    harness_open(&run, &on_host, &harness);
    const uint64_t borders = borders_of(&harness);
    CHECK(ox_engine_plan_of(harness.engine)->input.model.stage_count == STAGES && borders >= pipe - 1);
    for (uint64_t step = 1; step <= STEPS; step++) {
        take_step(&harness, &run, step, &result);
        check_pipe_step(&harness, &run, borders, &result);
    }
    check_pipe_memory(&harness, &run);
    harness_close(&harness);
}

/* ---- features, rows, experts, and pairs of them --------------------------------------------------------- */

/* Ranks along each axis; of data ranks, those that divide experts. */
struct divided {
    uint32_t data, contexts, tensors, experts, pipe;
    enum ox_context_mode mode;
    bool keeps;
};

/* What a rank of c receives of activations, and sends, of R rows with q elements of keys, a of queries, of e = 4 bytes,
 * for each block and micro-batch. Gathering keys and values takes 2 q R (c - 1) / c elements in forward, again in a
 * backward that recomputes, and there their gradients. Exchanging rows for heads takes (2 a + 2 q) R / c (c - 1) / c
 * elements: queries, keys and values there, what attention makes of them back; again in a backward that recomputes; and
 * in backward the gradients of all these. In a ring keys and values of R / c rows go to c - 1 ranks, in forward, again
 * in a backward that recomputes, and in backward with their gradients, which also come home. Each of t ranks has a t-th
 * of the heads. */
static uint64_t context_bytes(const struct ox_model_config *model, const struct divided *by) {
    const uint64_t q = (uint64_t)model->kv_heads * model->head_dim, a = (uint64_t)model->heads * model->head_dim;
    const uint64_t rows = SEQ / by->contexts, others = by->contexts - 1, times = by->keeps ? 2 : 3;
    return (by->mode == OX_CONTEXT_GATHER    ? 2 * q * rows * others * ((times - 1) * 4 + 4)
            : by->mode == OX_CONTEXT_ULYSSES ? times * 4 * rows * (2 * a + 2 * q) * others / by->contexts
            : others > 0                     ? 2 * q * rows * (times * 4 * others + 4 * by->contexts) : 0) /
           by->tensors;
}

/* Bytes of activations that a rank gives along the tensor axis, of the whole model, with z = R h / c and y = (t - 1)
 * / t: in each block rows are gathered before the products with columns and put together behind those with rows, in
 * forward; again in a backward that recomputes all but the last sum; and in backward once more each. The embedding
 * gives its rows to the ranks that have them and takes their gradients; the head gathers rows, has 16 bytes of
 * statistics a row, and sums gradients. Of all vectors of 2 norms a block and of the last one, the gradients of all
 * groups come together. A mixture moves what an MLP does, but that its backward gathers its rows again where
 * activations are kept; and each rank gives what pairs of row and expert weigh the gradient that its experts have, in
 * lines of 64 bytes. */
static uint64_t tensor_bytes(const struct ox_model_config *model, const struct divided *by) {
    const uint64_t others = by->tensors - 1, rows = SEQ / by->contexts, zy = rows * HIDDEN * others / by->tensors;
    const bool mixture = model->mixture.router.experts > 0;
    const uint64_t pairs = mixture ? ox_align_up(4 * rows * model->mixture.router.chosen, 64) * others : 0;
    const uint64_t of_block = by->keeps ? (mixture ? 5 : 4) * 4 * zy + 4 * 4 * zy : 6 * 4 * zy + 5 * 4 * zy;
    const uint64_t vectors = model->norm == OX_NORM_LAYER ? 2 : 1;
    return BLOCKS * (of_block + pairs) + 2 * 4 * zy + 4 * zy + 4 * zy + 16 * rows * others +
           (2 * BLOCKS + 1) * vectors * 4 * HIDDEN * others;
}

/* Bytes of routes that a rank gives along the expert axis, in each of E / x stages of a layer: which row each pair is,
 * and its weight, and where experts begin, from every other rank in both passes; what pairs weigh comes back. In lines
 * of 64 bytes. */
static uint64_t route_bytes(const struct ox_router *router, const struct divided *by) {
    const uint64_t pairs = ox_align_up(4 * SEQ / by->contexts * router->chosen, 64);
    const uint64_t begins = ox_align_up(4 * (router->experts + 1), 64), others = by->experts - 1;
    return router->experts / by->experts * others * (2 * (2 * pairs + begins) + pairs);
}

/* Bytes of rows that a rank gives along the expert axis, to each of their experts that another rank has: there and back
 * in forward, and in backward rows and gradients there and gradients back. */
static uint64_t row_bytes(const struct ox_router *router, const struct divided *by) {
    return 5 * 4 * HIDDEN * (SEQ / by->contexts) * (router->experts - router->experts / by->experts);
}

/* Whether a unit is a block's, or its experts'. */
static bool is_of_block(const struct ox_model *model, uint32_t unit_idx) {
    bool begun = false, ended = false;
    for (uint32_t i = 0; i <= unit_idx; i++) {
        begun |= model->units[i].kind == OX_UNIT_BLOCK;
        ended |= model->units[i].kind == OX_UNIT_HEAD;
    }
    return begun && !ended;
}

/* How many ranks of those with the same features divide a unit. */
static uint64_t members_of(const struct ox_unit *unit, const struct divided *by) {
    return (uint64_t)by->data * by->contexts / (unit->kind == OX_UNIT_EXPERTS ? by->experts : 1);
}

/* Weights, gradients and all else of all ranks. Weights and gradients as of data ranks, among those that have a unit,
 * of groups of features one set and of what is not cut one a tensor rank; blocks and experts are gathered for both
 * passes. Square sums of experts come to all data ranks; of groups of features one for each that others have; of every
 * unit one to the other coordinates of a pipeline. Each micro-batch's loss, of each group of rows, and of a layer with
 * a router 2 E + 2 sums go to all. */
static struct expected expect_divided(const struct harness *harness, const struct divided *by, uint64_t micro_batches) {
    const uint64_t count = (uint64_t)by->data * by->contexts, experts = harness->model->config.mixture.router.experts;
    const uint64_t sums = 1 + (experts > 0 ? BLOCKS * (2 * experts + 2) : 0);
    const uint64_t ranks = count * by->tensors * by->pipe;
    struct expected all = {.other = 8 * micro_batches * by->contexts * sums * (ranks - 1) +
                                    8 * harness->model->unit_count * (ranks - count * by->tensors)};
    for (uint32_t i = 0; i < harness->model->unit_count; i++) {
        const struct ox_unit *const unit = &harness->model->units[i];
        const bool cut = by->tensors > 1 && unit->group != OX_NO_GROUP;
        const uint64_t sets = cut ? 1 : by->tensors, elems = unit->elem_count * sets;
        all.weights += 4 * elems * (members_of(unit, by) - 1) * (is_of_block(harness->model, i) ? 2 : 1);
        all.grads += 4 * elems * (members_of(unit, by) - 1);
        all.other += elems / CHUNK * 8 * (count - 1) + (cut ? 8 * (by->tensors - 1) * count : 0);
    }
    return all;
}

/* What a micro-batch leaves for backward on a rank, in host memory: of every block the rank's rows; and of the experts
 * of its layer, where these have stages, however many, once these and what experts read, which pairs are theirs in
 * which order, where they begin, and what they weigh. */
static uint64_t checkpoint_bytes(const struct ox_router *router, const struct divided *by) {
    const uint64_t rows = SEQ / by->contexts / by->tensors, act = 4 * HIDDEN * rows, pairs = rows * router->chosen;
    const uint64_t order = ox_align_up(4 * (3 * pairs + router->experts + 1), 64) + ox_align_up(4 * pairs, 64);
    return by->keeps ? 0 : BLOCKS * (act + (by->experts > 1 ? 2 * act + order : 0));
}

/* Weights and state take 12 bytes of a parameter that a rank has. */
static void check_divided_memory(const struct harness *harness, const struct divided *by) {
    const struct ox_engine_plan *const first = ox_engine_plan_of(harness->engine);
    const uint32_t count = by->data * by->contexts;
    for (uint32_t rank = 0; rank < count * by->tensors * by->pipe; rank++) {
        const struct ox_engine_plan *const plan = ox_engine_plan_at(first, rank);
        uint64_t held = 0;
        for (uint32_t i = 0; i < harness->model->unit_count; i++) {
            const uint64_t chunks = harness->model->units[i].elem_count / CHUNK;
            const uint64_t members = members_of(&harness->model->units[i], by), each = ox_div_up(chunks, members);
            const uint64_t before = ox_min_u64(rank % count / (count / members) * each, chunks);
            held += ox_plan_holds(&plan->input, i) ? CHUNK * ox_min_u64(each, chunks - before) : 0;
        }
        CHECK(home_bytes(plan) == 12 * held);
    }
}

static void check_divided(const char *config, const struct divided *by) {
    const uint32_t ranks = by->data * by->contexts * by->tensors * by->pipe;
    struct harness_run run = {.ranks = ranks, .contexts = by->contexts, .context_groups = by->contexts,
                              .context_mode = by->mode, .tensors = by->tensors, .tensor_groups = by->tensors,
                              .pipe = by->pipe, .experts = by->experts, .experts_per_unit = by->experts > 1 ? 1 : 0,
                              .sharding = OX_SHARDING_FULL, .dtype = OX_COMPUTE_FP32, .model_folder = config,
                              .batch = 1, .seq = SEQ, .micro_batches = 2 * by->data, .sum_groups = by->data};
    struct harness_place place = on_host;
    struct harness harness;
    struct ox_step_result result;
    place.request.kept_units = by->keeps ? BLOCKS : 0;
    harness_open(&run, &place, &harness);
    const struct ox_model_config *const model = &harness.model->config;
    CHECK(ox_engine_plan_of(harness.engine)->input.placement.kept_units == (by->keeps ? BLOCKS : 0));
    const struct expected all = expect_divided(&harness, by, run.micro_batches);
    /* Rows of a micro-batch cross a border between coordinates once, whoever has them, and their gradients back. */
    const uint64_t between = 2 * borders_of(&harness) * run.micro_batches * 4 * SEQ * HIDDEN;
    const uint64_t turns = (uint64_t)run.micro_batches / by->data * ranks / by->pipe; /* of micro-batches on ranks */
    const uint64_t routes = BLOCKS * route_bytes(&model->mixture.router, by);
    const uint64_t acts = BLOCKS * context_bytes(model, by) + tensor_bytes(model, by) + routes;
    const uint64_t tokens = BLOCKS * row_bytes(&model->mixture.router, by);
    const uint64_t checkpoints = checkpoint_bytes(&model->mixture.router, by);
    for (uint64_t step = 1; step <= STEPS; step++) {
        take_step(&harness, &run, step, &result);
        for (int i = 0; i < 2; i++) {
            const uint64_t *const crossed = result.traffic[i == 0 ? OX_LINK_PEER_IN : OX_LINK_PEER_OUT];
            CHECK(crossed[OX_TRAFFIC_WEIGHTS] == all.weights);
            CHECK(crossed[OX_TRAFFIC_GRADS] == all.grads);
            CHECK(crossed[OX_TRAFFIC_ACTIVATIONS] == turns * acts + between);
            CHECK(crossed[OX_TRAFFIC_TOKENS] == turns * tokens);
            CHECK(crossed[OX_TRAFFIC_OTHER] == all.other);
        }
        if (by->pipe == 1) { /* else some come from another rank */
            CHECK(result.traffic[OX_LINK_D2H][OX_TRAFFIC_ACTIVATIONS] == turns * checkpoints);
        }
        CHECK(memcmp(result.traffic, result.planned, sizeof result.traffic) == 0);
    }
    check_divided_memory(&harness, by);
    printf("%u data ranks, %u of rows (mode %d), %u of features, %u of experts, %u coordinates%s: each way and rank "
           "%llu bytes of activations, %llu of tokens a micro-batch; %llu bytes of checkpoints\n",
           by->data, by->contexts, by->mode, by->tensors, by->experts, by->pipe, by->keeps ? ", kept" : "",
           (unsigned long long)acts, (unsigned long long)tokens, (unsigned long long)checkpoints);
    harness_close(&harness);
}

static void check_all_divided(const char *dense, const char *mixture) {
    static const struct divided of_dense[] = {
        {1, 1, 2, 1, 1, OX_CONTEXT_GATHER, false},  {1, 1, 4, 1, 1, OX_CONTEXT_GATHER, false},
        {1, 1, 2, 1, 1, OX_CONTEXT_GATHER, true},   {2, 1, 2, 1, 1, OX_CONTEXT_GATHER, false},
        {1, 2, 2, 1, 1, OX_CONTEXT_GATHER, false},  {1, 2, 2, 1, 1, OX_CONTEXT_ULYSSES, true},
        {2, 2, 1, 1, 1, OX_CONTEXT_ULYSSES, false}, {2, 2, 1, 1, 1, OX_CONTEXT_RING, false},
        {1, 1, 2, 1, 2, OX_CONTEXT_GATHER, false},  {1, 2, 1, 1, 2, OX_CONTEXT_RING, false},
        {1, 2, 2, 1, 1, OX_CONTEXT_RING, false}};
    static const struct divided of_mixture[] = {
        {2, 1, 1, 2, 1, OX_CONTEXT_GATHER, false}, {4, 1, 1, 4, 1, OX_CONTEXT_GATHER, false},
        {4, 1, 1, 2, 1, OX_CONTEXT_GATHER, false}, {2, 2, 1, 2, 1, OX_CONTEXT_GATHER, false},
        {2, 2, 1, 4, 1, OX_CONTEXT_ULYSSES, false}, {2, 1, 1, 2, 2, OX_CONTEXT_GATHER, false},
        {1, 1, 2, 1, 1, OX_CONTEXT_GATHER, false}, {2, 1, 2, 1, 1, OX_CONTEXT_GATHER, true},
        {1, 2, 2, 1, 1, OX_CONTEXT_GATHER, false}, {1, 1, 2, 1, 2, OX_CONTEXT_GATHER, false}};
    for (size_t i = 0; i < sizeof of_dense / sizeof *of_dense; i++) {
        check_divided(dense, &of_dense[i]);
    }
    for (size_t i = 0; i < sizeof of_mixture / sizeof *of_mixture; i++) {
        check_divided(mixture, &of_mixture[i]);
    }
}

int main(void) {
    char config[512], tied[512], mixture[512], text[sizeof model_config];
    snprintf(config, sizeof config, "%s", files_write_text("config.json", model_config));
    snprintf(text, sizeof text, "%.*s true}", (int)(sizeof model_config - sizeof " false}"), model_config);
    snprintf(tied, sizeof tied, "%s", files_write_text("tied.json", text));
    snprintf(mixture, sizeof mixture, "%s", files_write_text("mixture.json", mixture_config));
    for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks *= 2) {
        for (int sharding = 0; sharding < OX_SHARDING_COUNT; sharding++) {
            for (uint32_t i = 0; i < 4; i++) {
                const struct harness_run run = {.ranks = ranks, .sharding = (enum ox_sharding)sharding,
                                                .dtype = i / 2 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16};
                if (test_takes(i + (uint32_t)sharding, 2)) {
                    check(config, &run, 1 + i % 2);
                }
            }
            if (ranks == RANKS_MAX && sharding != OX_SHARDING_NONE) {
                const struct harness_run run = {.ranks = ranks, .sharding = (enum ox_sharding)sharding, .copies = 2,
                                                .dtype = OX_COMPUTE_BF16};
                check(config, &run, 2);
            }
        }
    }
    for (int schedule = OX_PIPE_VERTICAL; schedule <= OX_PIPE_1F1B; schedule++) {
        check_pipe(config, 2, 1, (enum ox_pipe_schedule)schedule);
        check_pipe(config, 3, 1, (enum ox_pipe_schedule)schedule);
        check_pipe(config, 2, 2, (enum ox_pipe_schedule)schedule);
        if (schedule != OX_PIPE_VERTICAL) { /* which has embedding and head on one rank */
            check_pipe(tied, 2, 1, (enum ox_pipe_schedule)schedule);
            check_pipe(tied, 3, 1, (enum ox_pipe_schedule)schedule);
            check_pipe(tied, 2, 2, (enum ox_pipe_schedule)schedule);
        }
    }
    for (int mode = 0; mode < OX_CONTEXT_MODE_COUNT; mode++) {
        for (uint32_t contexts = 2; contexts <= RANKS_MAX; contexts *= 2) {
            check_divided(config, &(struct divided){1, contexts, 1, 1, 1, (enum ox_context_mode)mode, false});
            check_divided(config, &(struct divided){1, contexts, 1, 1, 1, (enum ox_context_mode)mode, true});
        }
    }
    check_all_divided(config, mixture);
    return test_end();
}
