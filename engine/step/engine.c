/* The engine: the ranks of a process as one. It gives each rank its micro-batches and its chunks, lets all do a step at
 * once, and returns the first failure of any. The store is the engine's; the rank that leads begins and commits. */
#include "engine/step/rank_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash/hash.h"
#include "base/pool.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct seat {
    struct ox_engine *engine;
    struct ox_rank *rank;
    struct ox_step_input input;
    struct ox_first_failure failure; /* of the last call */
};

struct ox_engine {
    struct ox_engine_config config;
    struct ox_engine_plan *plan;
    struct ox_store *store;  /* NULL: none */
    struct ox_pool *threads; /* one for each rank; NULL with one rank */
    struct ox_tee tee;
    pthread_mutex_t tee_lock; /* one rank at a time calls it */
    uint32_t rank_count;
    struct ox_rank_times times[OX_COMM_RANKS_MAX]; /* of the last step */
    struct seat seats[];
};

/* ---- all ranks ------------------------------------------------------------------------------------- */

static struct ox_rank *first_rank(const struct ox_engine *engine) {
    return engine->seats[0].rank;
}

/* What each rank does at once with the others. */
typedef enum ox_status rank_fn(struct seat *seat, void *context);

struct all {
    struct ox_engine *engine;
    rank_fn *fn;
    void *context;
};

static void run_share(void *context, uint32_t idx, uint32_t count) {
    const struct all *const all = context;
    struct seat *const seat = &all->engine->seats[idx];
    OX_ASSERT(count == all->engine->rank_count);
    seat->failure = (struct ox_first_failure){0};
    ox_first_failure_note(&seat->failure, all->fn(seat, all->context));
}

/* Returns the first failure of any rank. The ranks know it, where it ended what they did together, and its text names
 * its rank; a rank that then failed too has only that text. One that was aborted, by a stop or because another rank
 * failed, counts only if nothing else did. */
static enum ox_status first_failure(const struct ox_engine *engine) {
    const struct seat *found = NULL;
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        const struct seat *const seat = &engine->seats[i];
        const bool counts = seat->failure.status != OX_OK && seat->failure.status != OX_E_ABORTED;
        if (counts && (found == NULL || found->failure.status == OX_E_ABORTED)) {
            found = seat;
        } else if (found == NULL && seat->failure.status != OX_OK) {
            found = seat;
        }
    }
    if (found == NULL || found->failure.status == OX_E_ABORTED) {
        return found == NULL ? OX_OK : ox_first_failure_result(&found->failure);
    }
    const enum ox_status cause = ox_comm_cause(found->rank->comm);
    return cause != OX_OK ? cause
                          : ox_fail(found->failure.status, "rank %u: %s", found->rank->idx, found->failure.text);
}

static enum ox_status run_all(struct ox_engine *engine, rank_fn *fn, void *context) {
    struct all all = {.engine = engine, .fn = fn, .context = context};
    if (engine->threads == NULL) {
        return fn(&engine->seats[0], context);
    }
    ox_pool_run(engine->threads, run_share, &all);
    return first_failure(engine);
}

/* Ends what all ranks have run, one after another: the status of the whole, whose text is this thread's, decides what
 * each leaves behind. */
static enum ox_status end_all(struct ox_engine *engine, enum ox_status status,
                              enum ox_status (*end)(struct ox_rank *, enum ox_status)) {
    struct ox_first_failure first = {0};
    ox_first_failure_note(&first, status);
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        ox_first_failure_note(&first, end(engine->seats[i].rank, status));
    }
    return ox_first_failure_result(&first);
}

/* After a failure all ranks meet, so that none still waits in the step that failed. */
static enum ox_status ready(struct seat *seat, void *context) {
    struct ox_rank *const rank = seat->rank;
    (void)context;
    enum ox_status status = rank->comm == NULL || ox_comm_cause(rank->comm) == OX_OK ? OX_OK
                                                                                     : ox_comm_revive(rank->comm);
    OX_TRY(status, ox_overlap_make_ready(rank));
    return status;
}

/* ---- opening and closing ----------------------------------------------------------------------------- */

/* The rank's part of the configuration. */
static struct ox_engine_config part_of(const struct ox_engine *engine, uint32_t idx) {
    struct ox_engine_config config = engine->config;
    config.micro_batches = ox_engine_plan_at(engine->plan, idx)->train->micro_batches;
    config.compute_threads = (uint32_t)ox_max_u64(1, config.compute_threads / engine->rank_count);
    config.optimizer_threads = (uint32_t)ox_max_u64(1, config.optimizer_threads / engine->rank_count);
    config.chaos_seed += config.chaos_seed == 0 ? 0 : idx;
    config.cuda.device_idx += config.cuda_count > 0 ? idx % config.cuda_count : 0;
    return config;
}

static enum ox_status open_ranks(struct ox_engine *engine) {
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        const struct ox_engine_config config = part_of(engine, i);
        engine->seats[i].engine = engine;
        const enum ox_status status = ox_rank_open(&config, ox_engine_plan_at(engine->plan, i), &engine->plan->whole,
                                                   &engine->seats[i].rank);
        if (status != OX_OK && engine->rank_count > 1) {
            char text[OX_ERROR_TEXT_BYTES];
            snprintf(text, sizeof text, "%s", ox_error_text());
            return ox_fail(status, "rank %u: %s", i, text);
        }
        if (status != OX_OK) {
            return status;
        }
    }
    return OX_OK;
}

/* Lets the ranks reach each other, and gives each a thread. */
static enum ox_status connect_ranks(struct ox_engine *engine) {
    struct ox_device *devices[OX_COMM_RANKS_MAX] = {NULL};
    struct ox_comm *comms[OX_COMM_RANKS_MAX] = {NULL};
    if (engine->rank_count == 1) {
        return OX_OK;
    }
    for (uint32_t i = 0; i < engine->rank_count && !ox_engine_on_cpu(&engine->config); i++) {
        devices[i] = engine->seats[i].rank->device;
    }
    enum ox_status status = ox_pool_open(engine->rank_count, &engine->threads);
    OX_TRY(status, ox_comm_local_open(&(struct ox_comm_local_config){
        .count = engine->rank_count, .devices = devices,
        .limits = {.fail_ms = (uint32_t)ox_min_u64(engine->config.comm_timeout_ns / 1000000, UINT32_MAX)}}, comms));
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        struct ox_rank *const rank = engine->seats[i].rank;
        struct ox_comm *delayed = NULL;
        if (status == OX_OK && rank->config.chaos_seed != 0) {
            status = ox_comm_chaos_open(comms[i], rank->config.chaos_seed, OX_CHAOS_NS_MAX, &delayed);
        }
        rank->comm = delayed != NULL ? delayed : comms[i];
    }
    return status;
}

enum ox_status ox_engine_open(const struct ox_engine_config *config, struct ox_engine_plan **plan,
                              struct ox_engine **out) {
    const uint32_t rank_count = ox_plan_rank_count(&(*plan)->input);
    *out = NULL;
    struct ox_engine *engine = calloc(1, sizeof *engine + rank_count * sizeof *engine->seats);
    if (engine == NULL) {
        ox_engine_plan_close(plan);
        return ox_fail(OX_E_NOMEM, "engine: no memory");
    }
    engine->config = *config;
    engine->plan = *plan;
    engine->rank_count = rank_count;
    pthread_mutex_init(&engine->tee_lock, NULL);
    *plan = NULL;
    enum ox_status status = open_ranks(engine);
    OX_TRY(status, connect_ranks(engine));
    if (status != OX_OK) {
        ox_engine_close(&engine);
        return status;
    }
    *out = engine;
    return OX_OK;
}

void ox_engine_close(struct ox_engine **engine_ptr) {
    struct ox_engine *const engine = *engine_ptr;
    if (engine == NULL) {
        return;
    }
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        ox_rank_close(&engine->seats[i].rank);
    }
    pthread_mutex_destroy(&engine->tee_lock);
    ox_pool_close(&engine->threads);
    ox_store_close(&engine->store);
    ox_engine_plan_close(&engine->plan);
    free(engine);
    *engine_ptr = NULL;
}

const struct ox_engine_plan *ox_engine_plan_of(const struct ox_engine *engine) {
    return engine->plan;
}

const struct ox_engine_config *ox_engine_config_of(const struct ox_engine *engine) {
    return &engine->config;
}

struct ox_rank *ox_engine_rank(const struct ox_engine *engine, uint32_t idx) {
    OX_ASSERT(idx < engine->rank_count);
    return engine->seats[idx].rank;
}

struct ox_pool *ox_engine_pool(const struct ox_engine *engine) {
    return first_rank(engine)->optim_pool;
}

const struct ox_store *ox_engine_store(const struct ox_engine *engine) {
    return engine->store;
}

void ox_engine_take_op_seconds(struct ox_engine *engine, struct ox_ops_seconds *out) {
    *out = (struct ox_ops_seconds){0};
    if (ox_engine_on_cpu(&engine->config)) {
        ox_ops_cpu_take_seconds(first_rank(engine)->device, out);
    }
}

/* ---- the store --------------------------------------------------------------------------------------- */

/* Hash of all that the content of extents depends on, by which a store of another model or format, or with other
 * chunks, is refused. AdamW in fp32 adds nothing to the hash, because older stores have no format recorded. */
static uint64_t geometry_hash(const struct ox_engine *engine) {
    const struct ox_model *const model = engine->config.model;
    uint64_t hash = ox_hash_seed(&engine->config.chunk_elems, 1);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        const uint64_t words[] = {hash, tensor->unit_idx, tensor->offset, tensor->shape[0], tensor->shape[1],
                                  ox_hash64(tensor->name, strlen(tensor->name), 0)};
        hash = ox_hash_seed(words, sizeof words / sizeof *words);
    }
    const struct ox_state_format state = engine->config.state;
    const uint64_t words[] = {hash, state.kind, state.moments};
    return state.kind == OX_OPTIM_ADAMW && state.moments == OX_MOMENTS_F32
               ? hash : ox_hash_seed(words, sizeof words / sizeof *words);
}

/* The spool extents of all ranks, one rank behind another. */
struct spool {
    uint64_t *bytes;
    uint32_t count;
};

static bool list_spool(struct ox_engine *engine, struct spool *out) {
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        engine->seats[i].rank->spool_first = out->count;
        out->count += engine->seats[i].rank->plan->train->spool_count;
    }
    out->bytes = calloc(ox_max_u64(out->count, 1), sizeof *out->bytes);
    for (uint32_t i = 0; i < engine->rank_count && out->bytes != NULL; i++) {
        const struct ox_rank *const rank = engine->seats[i].rank;
        const struct ox_plan *const plan = rank->plan->train;
        memcpy(out->bytes + rank->spool_first, plan->spool_bytes, plan->spool_count * sizeof *out->bytes);
    }
    return out->bytes != NULL;
}

static enum ox_status open_store(struct ox_engine *engine, const uint64_t run_id[2], bool create) {
    OX_ASSERT(engine->store == NULL && engine->config.nvme_count > 0 && engine->config.io != NULL);
    const struct ox_shard_table *const table = &engine->plan->whole;
    struct ox_extent_spec *const extents = calloc(2 * (size_t)table->chunk_count, sizeof *extents);
    struct spool spool = {0};
    if (extents == NULL || !list_spool(engine, &spool)) {
        free(extents);
        return ox_fail(OX_E_NOMEM, "store: no memory for %u extents", 2 * table->chunk_count);
    }
    ox_shard_extents(table, extents);
    const struct ox_store_config config = {
        .backend = engine->config.io,
        .folders = engine->config.nvme_folders,
        .bytes_max = engine->config.nvme_bytes,
        .speeds = engine->config.budget.drive_speeds,
        .drive_count = engine->config.nvme_count,
        .extents = extents,
        .extent_count = 2 * table->chunk_count,
        .spool_bytes = spool.bytes,
        .spool_count = spool.count,
        .run_id = {run_id[0], run_id[1]},
        .config_hash = geometry_hash(engine),
        .queue_depth = engine->config.queue_depth,
        .generations = ox_plan_generations(&engine->config.budget),
    };
    enum ox_status status = create ? ox_store_create(&config, &engine->store)
                                   : ox_store_open(&config, &engine->store);
    free(spool.bytes);
    free(extents);
    for (uint32_t i = 0; i < engine->rank_count && status == OX_OK; i++) {
        status = ox_rank_connect_store(engine->seats[i].rank, engine->store);
    }
    return status;
}

enum ox_status ox_engine_store_create(struct ox_engine *engine, const uint64_t run_id[2]) {
    return open_store(engine, run_id, true);
}

/* Loads planes that live in memory from the last commit. It reads those that stay on the drives too, to verify their
 * checksums: damage is then found while the run can still use a checkpoint. This reads as much as one step does. */
static enum ox_status load_and_verify(struct seat *seat, void *context) {
    struct ox_rank *const rank = seat->rank;
    const struct ox_store_info *const info = context;
    enum ox_status status = OX_OK;
    rank->planes.step = info->step;
    for (uint32_t unit_idx = 0; unit_idx < rank->plan->table.unit_count && info->committed && status == OX_OK;
         unit_idx++) {
        status = ox_rank_load_unit(rank, unit_idx, rank->config.stop);
    }
    return status;
}

enum ox_status ox_engine_store_open(struct ox_engine *engine, const uint64_t run_id[2]) {
    const enum ox_status status = open_store(engine, run_id, false);
    if (status != OX_OK) {
        return status;
    }
    struct ox_store_info info;
    ox_store_info(engine->store, &info);
    return run_all(engine, load_and_verify, &info);
}

/* ---- planes between steps ---------------------------------------------------------------------------- */

uint32_t ox_engine_chunk_count(const struct ox_engine *engine, uint32_t unit_idx) {
    OX_ASSERT(unit_idx < engine->plan->whole.unit_count);
    return engine->plan->whole.shards[unit_idx].chunk_count;
}

/* Whether every rank has every chunk. */
static bool has_copies(const struct ox_engine *engine) {
    return engine->plan->input.ranks.sharding == OX_SHARDING_NONE;
}

/* The rank that owns a chunk of a unit, or the first of those that have a copy; *chunk_idx becomes its number among
 * those of the rank. */
static struct ox_rank *owner_of(const struct ox_engine *engine, uint32_t unit_idx, uint32_t *chunk_idx) {
    uint32_t i = 0;
    for (; *chunk_idx >= engine->seats[i].rank->plan->table.shards[unit_idx].chunk_count; i++) {
        *chunk_idx -= engine->seats[i].rank->plan->table.shards[unit_idx].chunk_count;
        OX_ASSERT(i + 1 < engine->rank_count);
    }
    return engine->seats[i].rank;
}

void ox_engine_chunk_view(struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx,
                          struct ox_chunk_view *out) {
    struct ox_rank *const rank = owner_of(engine, unit_idx, &chunk_idx);
    ox_rank_chunk_view(rank, unit_idx, chunk_idx, out);
    out->first += ox_slice_first(rank, unit_idx);
}

enum ox_status ox_engine_chunk_get(struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx,
                                   struct ox_chunk_view *out) {
    struct ox_rank *const rank = owner_of(engine, unit_idx, &chunk_idx);
    const enum ox_status status = ox_rank_chunk_get(rank, unit_idx, chunk_idx, out);
    out->first += ox_slice_first(rank, unit_idx);
    return status;
}

enum ox_status ox_engine_chunk_put(struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx,
                                   const struct ox_chunk_view *view) {
    struct ox_rank *const rank = owner_of(engine, unit_idx, &chunk_idx);
    struct ox_chunk_view own = *view;
    own.first -= ox_slice_first(rank, unit_idx);
    enum ox_status status = ox_rank_chunk_put(rank, unit_idx, chunk_idx, &own);
    for (uint32_t i = 1; i < engine->rank_count && has_copies(engine) && status == OX_OK; i++) {
        status = ox_rank_chunk_put(engine->seats[i].rank, unit_idx, chunk_idx, &own);
    }
    return status;
}

enum ox_status ox_engine_load_begin(struct ox_engine *engine, uint64_t step) {
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        ox_rank_load_begin(engine->seats[i].rank, step);
    }
    return engine->store == NULL ? OX_OK : ox_store_begin(engine->store, step);
}

/* Waits until all chunks are on the drives. */
static enum ox_status end_load(struct ox_engine *engine, enum ox_status status) {
    struct ox_first_failure first = {0};
    ox_first_failure_note(&first, status);
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        ox_first_failure_note(&first, ox_rank_load_end(engine->seats[i].rank));
    }
    if (first.status != OX_OK && engine->store != NULL) {
        ox_store_abort(engine->store);
    }
    return ox_first_failure_result(&first);
}

enum ox_status ox_engine_load_commit(struct ox_engine *engine, const void *meta, uint32_t meta_bytes) {
    const enum ox_status status = end_load(engine, OX_OK);
    return status != OX_OK || engine->store == NULL ? status : ox_store_commit(engine->store, meta, meta_bytes);
}

static enum ox_status put_all(struct seat *seat, void *context) {
    (void)context;
    return ox_rank_put_all(seat->rank);
}

enum ox_status ox_engine_persist(struct ox_engine *engine, const void *meta, uint32_t meta_bytes) {
    enum ox_status status = ox_engine_finish_update(engine);
    if (status != OX_OK || engine->store == NULL) {
        return status;
    }
    const uint64_t step = first_rank(engine)->planes.step;
    struct ox_store_info info;
    ox_store_info(engine->store, &info);
    if (info.step == step) {
        return OX_OK;
    }
    const uint64_t begin_ns = ox_clock_ns();
    status = ox_engine_load_begin(engine, step);
    status = end_load(engine, status == OX_OK ? run_all(engine, put_all, NULL) : status);
    if (status == OX_OK) {
        status = ox_store_commit(engine->store, meta, meta_bytes);
        ox_engine_trace_span(engine, OX_TRACE_SPAN_PERSIST, step, begin_ns);
    }
    return status;
}

void ox_engine_grad_read(const struct ox_engine *engine, uint32_t unit_idx, uint64_t first, uint64_t count,
                         float *out) {
    for (uint32_t i = 0; i < (has_copies(engine) ? 1 : engine->rank_count); i++) {
        const struct ox_rank *const rank = engine->seats[i].rank;
        const uint64_t begin = ox_slice_first(rank, unit_idx), end = begin + ox_slice_elems(rank, unit_idx);
        const uint64_t from = ox_max_u64(first, begin), past = ox_min_u64(first + count, end);
        if (from < past) {
            ox_rank_grad_read(rank, unit_idx, from - begin, past - from, out + (from - first));
        }
    }
}

/* ---- steps ------------------------------------------------------------------------------------------- */

struct ox_batch ox_engine_batch(struct ox_engine *engine, uint32_t mb_idx) {
    uint32_t i = 0;
    for (; mb_idx >= engine->seats[i].rank->config.micro_batches; i++) {
        mb_idx -= engine->seats[i].rank->config.micro_batches;
        OX_ASSERT(i + 1 < engine->rank_count);
    }
    return ox_rank_batch(engine->seats[i].rank, mb_idx);
}

static enum ox_status step(struct seat *seat, void *context) {
    (void)context;
    return ox_rank_run(seat->rank, seat->rank->plan->train, &seat->input);
}

static enum ox_status evaluate(struct seat *seat, void *context) {
    const struct ox_engine_plan *const plan = seat->rank->plan;
    const bool *const with_update = context;
    return ox_rank_run(seat->rank, *with_update ? plan->eval_after_step : plan->eval, &seat->input);
}

/* Micro-batch 0, whose logits may be requested, is the first rank's; so is the call before the optimizer begins. */
static void give_input(struct ox_engine *engine, const struct ox_step_input *input) {
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        engine->seats[i].input = *input;
        if (i > 0) {
            engine->seats[i].input.logits = NULL;
            engine->seats[i].input.decided = NULL;
        }
    }
}

static enum ox_status finish_update(struct seat *seat, void *context) {
    (void)context;
    return ox_rank_run_pending(seat->rank);
}

enum ox_status ox_engine_finish_update(struct ox_engine *engine) {
    enum ox_status status = run_all(engine, ready, NULL);
    if (status != OX_OK || !first_rank(engine)->pending.exists) {
        return status;
    }
    status = run_all(engine, finish_update, NULL);
    return end_all(engine, status, ox_rank_end_pending);
}

void ox_engine_finished_traffic(const struct ox_engine *engine, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    memset(out, 0, sizeof first_rank(engine)->traffic.finished);
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        ox_traffic_add(engine->seats[i].rank->traffic.finished, out);
    }
}

enum ox_status ox_engine_roll_back(struct ox_engine *engine) {
    struct ox_first_failure first = {0};
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        ox_first_failure_note(&first, ox_rank_roll_back(engine->seats[i].rank));
    }
    return ox_first_failure_result(&first);
}

enum ox_status ox_engine_step(struct ox_engine *engine, const struct ox_step_input *input,
                              struct ox_step_result *out) {
    *out = (struct ox_step_result){0};
    const uint64_t begin_ns = ox_clock_ns();
    enum ox_status status = run_all(engine, ready, NULL);
    if (status != OX_OK) {
        return status;
    }
    give_input(engine, input);
    status = run_all(engine, step, NULL);
    status = end_all(engine, status, ox_rank_end);
    if (status != OX_OK) {
        return status;
    }
    out->seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        ox_rank_times(engine->seats[i].rank, &engine->times[i]);
        ox_rank_add_result(engine->seats[i].rank, out);
    }
    out->rank_count = engine->rank_count;
    out->ranks = engine->times;
    const struct ox_step_state *const done = &first_rank(engine)->step;
    out->loss = done->loss;
    out->grad_norm = done->grad_norm;
    out->grad_scale = done->grad_scale;
    out->finite = done->finite;
    out->committed = done->committed;
    out->speculated = (done->facts & OX_FACT_SPECULATES) != 0 && out->finite && out->grad_scale == 1.0;
    return OX_OK;
}

enum ox_status ox_engine_eval(struct ox_engine *engine, const struct ox_step_input *input,
                              struct ox_eval_result *out) {
    *out = (struct ox_eval_result){.with_update = first_rank(engine)->pending.exists};
    enum ox_status status = run_all(engine, ready, NULL);
    if (status != OX_OK) {
        return status;
    }
    give_input(engine, input);
    status = run_all(engine, evaluate, &out->with_update);
    status = end_all(engine, status, ox_rank_end);
    for (uint32_t i = 0; i < engine->rank_count && status == OX_OK; i++) {
        struct ox_rank *const rank = engine->seats[i].rank;
        uint64_t planned[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
        ox_rank_add_traffic(rank, out->traffic);
        ox_overlap_planned(rank, planned);
        ox_traffic_add(planned, out->planned);
    }
    const double *const losses = ox_rank_losses(first_rank(engine));
    for (uint32_t mb_idx = 0; mb_idx < engine->config.micro_batches && status == OX_OK; mb_idx++) {
        out->loss_sum += losses[mb_idx];
    }
    return status;
}

/* Shows a chunk of a rank as the chunk of the unit that it is. */
static void show_chunk(void *context, uint32_t unit_idx, uint32_t chunk_idx, const struct ox_chunk_view *view) {
    const struct seat *const seat = context;
    struct ox_engine *const engine = seat->engine;
    struct ox_chunk_view of_unit = *view;
    of_unit.first += ox_slice_first(seat->rank, unit_idx);
    const uint32_t before = seat->rank->plan->table.shards[unit_idx].chunk_first -
                            engine->plan->whole.shards[unit_idx].chunk_first;
    pthread_mutex_lock(&engine->tee_lock);
    engine->tee.chunk(engine->tee.context, unit_idx, before + chunk_idx, &of_unit);
    pthread_mutex_unlock(&engine->tee_lock);
}

void ox_engine_tee(struct ox_engine *engine, const struct ox_tee *tee) {
    engine->tee = tee == NULL ? (struct ox_tee){0} : *tee;
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        const struct ox_tee of_rank = {.chunk = show_chunk, .context = &engine->seats[i]};
        ox_rank_tee(engine->seats[i].rank, tee == NULL ? NULL : &of_rank);
    }
}

/* ---- the trace: a file for each rank --------------------------------------------------------------------- */

/* "trace.bin" of the first rank is "trace-1.bin" of the next. */
static void name_trace(const char *path, uint32_t rank, char out[OX_PATH_BYTES]) {
    const char *const slash = strrchr(path, '/'), *const dot = strrchr(path, '.');
    const size_t stem = dot != NULL && (slash == NULL || dot > slash) ? (size_t)(dot - path) : strlen(path);
    snprintf(out, OX_PATH_BYTES, "%.*s-%u%s", (int)stem, path, rank, path + stem);
}

enum ox_status ox_engine_trace(struct ox_engine *engine, const struct ox_tracing_config *config) {
    const uint32_t count = engine->rank_count;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        struct ox_rank *const rank = engine->seats[i].rank;
        struct ox_tracing_config of_rank = *config;
        char path[OX_PATH_BYTES], title[OX_TRACE_TITLE_BYTES];
        if (count > 1) {
            snprintf(title, sizeof title, "rank %u of %u, %s", i, count, config->title);
            of_rank.title = title;
            of_rank.bytes_max /= count;
        }
        if (i > 0) {
            name_trace(config->path, i, path);
            of_rank.path = path;
            const bool alike = rank->plan->train->task_count == first_rank(engine)->plan->train->task_count;
            of_rank.predicted = alike ? config->predicted : NULL;
        }
        status = ox_rank_trace(rank, &of_rank);
    }
    return status;
}

void ox_engine_trace_pause(struct ox_engine *engine, bool pause) {
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        ox_rank_trace_pause(engine->seats[i].rank, pause);
    }
}

void ox_engine_trace_span(struct ox_engine *engine, enum ox_trace_span span, uint64_t step, uint64_t begin_ns) {
    for (uint32_t i = 0; i < engine->rank_count; i++) {
        ox_rank_trace_span(engine->seats[i].rank, span, step, begin_ns);
    }
}
