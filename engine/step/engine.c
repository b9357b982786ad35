/* The engine: the ranks of a process as one. It gives each rank its micro-batches and its chunks, lets all do a step at
 * once, and returns the first failure of any. The store is the engine's; the rank that leads begins and commits. */
#include "engine/step/engine_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "engine/step/executor/executor.h"
#include "engine/step/planes/routing.h"
#include "engine/step/link/link.h"
#include "engine/step/pending/overlap.h"
#include "engine/step/place.h"
#include "engine/step/planes/planes.h"
#include "engine/step/rank/recorder.h"
#include "engine/step/update/update.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- all ranks ------------------------------------------------------------------------------------- */

struct all {
    struct ox_engine *engine;
    ox_seat_fn *fn;
    void *context;
};

static void run_share(void *context, uint32_t idx, uint32_t count) {
    const struct all *const all = context;
    struct ox_seat *const seat = &all->engine->seats[idx];
    OX_ASSERT(count == all->engine->seat_count);
    seat->failure = (struct ox_first_failure){0};
    ox_first_failure_note(&seat->failure, all->fn(seat, all->context));
}

/* Returns the first failure of any rank. The ranks know it, where it ended what they did together, and its text names
 * its rank; a rank that then failed too has only that text. One that was aborted, by a stop or because another rank
 * failed, counts only if nothing else did. */
static enum ox_status first_failure(const struct ox_engine *engine) {
    const struct ox_seat *found = NULL;
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        const struct ox_seat *const seat = &engine->seats[i];
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

enum ox_status ox_engine_here(struct ox_engine *engine, ox_seat_fn *fn, void *context) {
    struct all all = {.engine = engine, .fn = fn, .context = context};
    if (engine->rank_total == 1) {
        return fn(&engine->seats[0], context);
    }
    if (engine->threads == NULL) {
        run_share(&all, 0, 1);
    } else {
        ox_pool_run(engine->threads, run_share, &all);
    }
    return first_failure(engine);
}

enum ox_status ox_engine_all(struct ox_engine *engine, ox_seat_fn *fn, void *context, const char *what) {
    return ox_team_agree(engine->config.team, OX_TEAM_RUN, ox_engine_here(engine, fn, context), what);
}

/* Ends what all ranks have run, one after another: the status of the whole, whose text is this thread's, decides what
 * each leaves behind. */
static enum ox_status end_all(struct ox_engine *engine, enum ox_status status,
                              enum ox_status (*end)(struct ox_rank *, enum ox_status)) {
    struct ox_first_failure first = {0};
    ox_first_failure_note(&first, status);
    if (status != OX_OK && status != OX_E_ABORTED) {
        ox_first_failure_note(&first, ox_engine_store_realign(engine));
    }
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        ox_first_failure_note(&first, end(engine->seats[i].rank, status));
    }
    return ox_first_failure_result(&first);
}

/* After a failure all ranks meet, so that none still waits in the step that failed. */
static enum ox_status ready(struct ox_seat *seat, void *context) {
    struct ox_rank *const rank = seat->rank;
    (void)context;
    enum ox_status status = rank->comm == NULL || ox_comm_cause(rank->comm) == OX_OK ? OX_OK
                                                                                     : ox_link_revive(rank);
    OX_THEN(status, ox_overlap_make_ready(rank));
    return status;
}

/* What a process has done in a step. */
struct share {
    struct ox_step_result result; /* sums over its ranks */
    struct ox_rank_times times[OX_COMM_RANKS_MAX]; /* as many as it has ranks */
};

/* ---- opening and closing ----------------------------------------------------------------------------- */

/* The rank's part of the configuration. */
static struct ox_engine_config part_of(const struct ox_engine *engine, uint32_t idx) {
    struct ox_engine_config config = engine->config;
    config.micro_batches = ox_engine_plan_at(engine->plan, idx)->train->micro_batches;
    config.compute_threads = (uint32_t)ox_max_u64(1, config.compute_threads / engine->rank_total);
    config.optimizer_threads = (uint32_t)ox_max_u64(
        1, ox_engine_optimizer_share(&config, config.optimizer_threads, engine->rank_total));
    config.chaos_seed += config.chaos_seed == 0 ? 0 : idx;
    config.cuda.device_idx += config.cuda_count > 0 ? idx % config.cuda_count : 0;
    return config;
}

/* The memory node of each GPU, for the ranks of this machine. */
static void find_gpu_nodes(const struct ox_engine *engine, uint32_t ranks, int out[OX_COMM_RANKS_MAX]) {
    for (uint32_t i = 0; i < ranks; i++) {
        const struct ox_engine_config config = part_of(engine, i);
        struct ox_cuda_device_info info = {0};
        struct ox_device *device = NULL;
        enum ox_status status = ox_cuda_device_open(&config.cuda, &device);
        OX_THEN(status, ox_cuda_device_query(device, &info));
        out[i] = status == OX_OK ? ox_place_pci_node("/sys/bus/pci/devices", info.pci) : -1;
        ox_device_close(&device);
    }
}

/* Where the ranks of a machine run and have their memory. */
struct placing {
    struct ox_nodes nodes;
    int gpu_nodes[OX_COMM_RANKS_MAX];
    struct ox_place_case given;
    struct ox_rank_place place; /* of the rank that opens */
};

static void find_places(const struct ox_engine *engine, struct placing *out) {
    const bool on_gpu = !ox_engine_on_cpu(&engine->config);
    const uint32_t ranks = engine->seat_count * ox_team_per_machine(engine->config.team);
    char text[OX_PLACE_TEXT_BYTES];
    out->given = (struct ox_place_case){.ranks = ranks, .gpu_nodes = on_gpu ? out->gpu_nodes : NULL,
                                        .shared = ox_plan_shares_host(&engine->plan->input)};
    ox_nodes_read(&out->nodes);
    if (on_gpu && out->nodes.count > 1 && ranks > 1) {
        find_gpu_nodes(engine, ranks, out->gpu_nodes);
    }
    if (ox_place_text(&out->nodes, &out->given, text)[0] != '\0') {
        ox_log(OX_LOG_INFO, "%s", text);
    }
}

/* Opens a rank where it is to run: its lanes and threads start on its memory nodes, and its memory comes from there. */
static enum ox_status open_rank(struct ox_engine *engine, struct placing *placing, uint32_t i) {
    const uint32_t idx = engine->rank_first + i;
    const struct ox_engine_config config = part_of(engine, idx);
    struct ox_nodes_before before;
    engine->seats[i].engine = engine;
    ox_place_rank(&placing->nodes, &placing->given, idx % placing->given.ranks, &placing->place);
    if (ox_nodes_enter(&placing->place.threads, &placing->place.memory, &before) != OX_OK && i == 0) {
        ox_log(OX_LOG_WARN, "%s", ox_error_text());
    }
    const enum ox_status status = ox_rank_open(&config, ox_engine_plan_at(engine->plan, idx), &engine->plan->whole,
                                               &engine->seats[i].rank);
    ox_nodes_leave(&before);
    return status != OX_OK && engine->rank_total > 1 ? ox_fail_in(status, "rank %u", idx) : status;
}

static enum ox_status open_ranks(struct ox_engine *engine) {
    struct placing *const placing = calloc(1, sizeof *placing); /* tens of kilobytes */
    if (placing == NULL) {
        return ox_fail(OX_E_NOMEM, "engine: no memory");
    }
    find_places(engine, placing);
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < engine->seat_count && status == OX_OK; i++) {
        status = open_rank(engine, placing, i);
    }
    for (uint32_t i = 0; i < engine->seat_count && status == OX_OK; i++) {
        engine->seats[i].rank->leads = i == 0;
    }
    free(placing);
    return status;
}

static enum ox_status open_nccl(struct ox_seat *seat, void *context) {
    (void)context;
    return ox_link_open_nccl(seat->rank);
}

static enum ox_status open_groups(struct ox_seat *seat, void *context) {
    (void)context;
    return ox_link_open_groups(seat->rank);
}

static enum ox_status revive(struct ox_seat *seat, void *context) {
    (void)context;
    return ox_link_revive(seat->rank);
}

/* Lets NCCL carry memory of the devices. It takes one rank per GPU, and none of the host's memory. Without it the
 * devices of one process copy, unless the user demands it. */
static enum ox_status use_nccl(struct ox_engine *engine) {
    const struct ox_engine_config *const config = &engine->config;
    const bool demanded = config->comm == OX_RANK_COMM_NCCL || config->team != NULL;
    const bool fits = config->cuda_count >= engine->seat_count * ox_team_per_machine(config->team) &&
                      !ox_plan_shares_host(&engine->plan->input);
    if (ox_engine_on_cpu(config) || config->comm == OX_RANK_COMM_LOCAL || !(demanded || fits)) {
        return OX_OK;
    }
    const enum ox_status status = ox_engine_all(engine, open_nccl, NULL, "NCCL");
    if (status != OX_E_COMM || demanded) {
        return status;
    }
    ox_log(OX_LOG_WARN, "ranks go on without NCCL, with copies by the devices: %s", ox_error_text());
    return ox_engine_all(engine, revive, NULL, "ranks without NCCL");
}

/* Without this, copies from GPU to GPU would pass through host memory also where a link joins both. */
static enum ox_status join_gpus(struct ox_device *const *devices, uint32_t count) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < count * count; i++) {
        bool reaches = false;
        struct ox_device *const device = devices[i / count], *const peer = devices[i % count];
        OX_THEN(status, device == NULL ? OX_OK : ox_cuda_device_reach(device, peer, &reaches));
    }
    return status;
}

/* Lets the ranks reach each other, and gives each a thread. All processes come here. */
static enum ox_status connect_ranks(struct ox_engine *engine) {
    struct ox_device *devices[OX_COMM_RANKS_MAX] = {NULL};
    struct ox_comm *comms[OX_COMM_RANKS_MAX] = {NULL};
    const uint32_t count = engine->seat_count;
    if (engine->rank_total == 1) {
        return OX_OK;
    }
    for (uint32_t i = 0; i < count && !ox_engine_on_cpu(&engine->config); i++) {
        devices[i] = engine->seats[i].rank->device;
    }
    const struct ox_comm_local_config local = {
        .count = count, .devices = devices, .limits = ox_link_limits(&engine->config)};
    enum ox_status status = count == 1 ? OX_OK : ox_pool_open(count, &engine->threads);
    OX_THEN(status, join_gpus(devices, count));
    status = ox_team_agree(engine->config.team, OX_TEAM_RUN, status, "threads of ranks");
    OX_THEN(status, engine->config.team == NULL ? ox_comm_local_open(&local, comms)
                                                : ox_comm_mpi_open(NULL, &local, comms));
    for (uint32_t i = 0; i < count; i++) {
        engine->seats[i].rank->comm = comms[i];
    }
    OX_THEN(status, ox_engine_all(engine, open_groups, NULL, "groups of ranks"));
    OX_THEN(status, use_nccl(engine));
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        status = ox_link_delay(engine->seats[i].rank);
    }
    return status;
}

enum ox_status ox_engine_open(const struct ox_engine_config *config, struct ox_engine_plan **plan,
                              struct ox_engine **out) {
    const uint32_t rank_total = ox_plan_rank_count(&(*plan)->input), processes = ox_team_count(config->team);
    const uint32_t seat_count = rank_total / processes;
    OX_ASSERT(rank_total % processes == 0);
    *out = NULL;
    struct ox_engine *engine = calloc(1, sizeof *engine + seat_count * sizeof *engine->seats);
    if (engine == NULL) {
        ox_engine_plan_close(plan);
        return ox_fail(OX_E_NOMEM, "engine: no memory");
    }
    engine->config = *config;
    engine->plan = *plan;
    engine->shares = calloc(processes, sizeof(struct share));
    engine->rank_total = rank_total;
    engine->rank_first = ox_team_idx(config->team) * seat_count;
    engine->seat_count = seat_count;
    pthread_mutex_init(&engine->tee_lock, NULL);
    *plan = NULL;
    enum ox_status status = engine->shares != NULL ? open_ranks(engine) : ox_fail(OX_E_NOMEM, "engine: no memory");
    status = ox_team_agree(config->team, OX_TEAM_RUN, status, "memory of ranks");
    OX_THEN(status, connect_ranks(engine));
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
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        ox_rank_close(&engine->seats[i].rank);
    }
    pthread_mutex_destroy(&engine->tee_lock);
    ox_pool_close(&engine->threads);
    ox_store_close(&engine->store);
    ox_engine_plan_close(&engine->plan);
    free(engine->shares);
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
    OX_ASSERT(idx < engine->seat_count);
    return engine->seats[idx].rank;
}

struct ox_pool *ox_engine_pool(const struct ox_engine *engine) {
    return ox_first_rank(engine)->optim_pool;
}

const struct ox_store *ox_engine_store(const struct ox_engine *engine) {
    return engine->store;
}

void ox_engine_take_op_seconds(struct ox_engine *engine, struct ox_ops_seconds *out) {
    *out = (struct ox_ops_seconds){0};
    if (ox_engine_on_cpu(&engine->config)) {
        ox_ops_cpu_take_seconds(ox_first_rank(engine)->device, out);
    }
}

bool ox_engine_gemm_text(const struct ox_engine *engine, uint32_t idx, char text[OX_CUDA_GEMM_BYTES]) {
    return !ox_engine_on_cpu(&engine->config) && ox_cuda_gemm_text(ox_first_rank(engine)->device, idx, text);
}

/* ---- planes between steps ---------------------------------------------------------------------------- */

uint32_t ox_engine_chunk_count(const struct ox_engine *engine, uint32_t unit_idx) {
    OX_ASSERT(unit_idx < engine->plan->whole.unit_count);
    return engine->plan->whole.shards[unit_idx].chunk_count;
}

/* The first chunk of a unit that a rank has, among all of the unit. */
static uint32_t chunks_before(const struct ox_rank *rank, uint32_t unit_idx) {
    return (uint32_t)ox_div_up(ox_slice_first(rank, unit_idx), rank->plan->table.shards[unit_idx].chunk_elems);
}

static bool has_chunk(const struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx) {
    const uint32_t before = chunks_before(rank, unit_idx);
    return chunk_idx >= before && chunk_idx - before < rank->plan->table.shards[unit_idx].chunk_count;
}

/* The rank of this process that owns a chunk of a unit, or the first of those that have a copy; NULL: none of them
 * does. *chunk_idx becomes its number among those of the rank. */
static struct ox_rank *find_owner(const struct ox_engine *engine, uint32_t unit_idx, uint32_t *chunk_idx) {
    OX_ASSERT(*chunk_idx < ox_engine_chunk_count(engine, unit_idx));
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        struct ox_rank *const rank = engine->seats[i].rank;
        if (has_chunk(rank, unit_idx, *chunk_idx)) {
            *chunk_idx -= chunks_before(rank, unit_idx);
            return rank;
        }
    }
    return NULL;
}

static struct ox_rank *owner_of(const struct ox_engine *engine, uint32_t unit_idx, uint32_t *chunk_idx) {
    struct ox_rank *const rank = find_owner(engine, unit_idx, chunk_idx);
    OX_ASSERT(rank != NULL);
    return rank;
}

bool ox_engine_has_chunk(const struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx) {
    return find_owner(engine, unit_idx, &chunk_idx) != NULL;
}

bool ox_engine_owns_chunk(const struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx) {
    const struct ox_rank *const rank = find_owner(engine, unit_idx, &chunk_idx);
    if (rank == NULL) {
        return false;
    }
    const struct ox_plan_input *const input = &rank->plan->input;
    const struct ox_rank_group copies = ox_plan_group(input, OX_AXIS_COPY);
    const bool all_have = ox_plan_tensor_owner(&input->ranks, unit_idx) == OX_NONE; /* whichever features they have */
    return ox_rank_group_leads(&copies) && (!all_have || ox_plan_tensor_at(input) == 0);
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
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < engine->seat_count && status == OX_OK; i++) { /* every copy that this process has */
        struct ox_rank *const rank = engine->seats[i].rank;
        if (has_chunk(rank, unit_idx, chunk_idx)) {
            struct ox_chunk_view own = *view;
            own.first -= ox_slice_first(rank, unit_idx);
            status = ox_rank_chunk_put(rank, unit_idx, chunk_idx - chunks_before(rank, unit_idx), &own);
        }
    }
    return status;
}

void ox_engine_grad_read(const struct ox_engine *engine, uint32_t unit_idx, uint64_t first, uint64_t count,
                         float *out) {
    for (uint32_t i = 0; i < engine->seat_count; i++) { /* copies have the same */
        const struct ox_rank *const rank = engine->seats[i].rank;
        const uint64_t begin = ox_slice_first(rank, unit_idx), end = begin + ox_slice_elems(rank, unit_idx);
        const uint64_t from = ox_max_u64(first, begin), past = ox_min_u64(first + count, end);
        if (from < past) {
            ox_rank_grad_read(rank, unit_idx, from - begin, past - from, out + (from - first));
        }
    }
}

/* ---- steps ------------------------------------------------------------------------------------------- */

/* How many ranks have micro-batches that no other of them has. */
static uint32_t batch_ranks(const struct ox_engine *engine) {
    const struct ox_plan_input *const input = &engine->plan->input;
    return ox_plan_data_ranks(input) / ox_plan_contexts(input);
}

/* The first rank of this process that has the micro-batches of a rank; NULL: none has. */
static struct ox_rank *first_with_batches_of(const struct ox_engine *engine, uint32_t rank) {
    const uint32_t of_batch = batch_ranks(engine);
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        if ((engine->rank_first + i) % of_batch == rank % of_batch) {
            return engine->seats[i].rank;
        }
    }
    return NULL;
}

struct ox_batch ox_engine_batch(struct ox_engine *engine, uint32_t mb_idx) {
    uint32_t rank = 0;
    for (; mb_idx >= ox_engine_plan_at(engine->plan, rank)->train->micro_batches; rank++) {
        mb_idx -= ox_engine_plan_at(engine->plan, rank)->train->micro_batches;
        OX_ASSERT(rank + 1 < batch_ranks(engine));
    }
    struct ox_rank *const has = first_with_batches_of(engine, rank);
    return has == NULL ? (struct ox_batch){0} : ox_rank_batch(has, mb_idx);
}

/* Every coordinate of a pipeline has the micro-batches, and so do ranks that divide their rows: ids for the embedding,
 * targets for the head, positions for all.
 * They are filled in for one rank, and the others of the process copy them. */
static void take_batches(struct ox_seat *seat) {
    const struct ox_rank *const has = first_with_batches_of(seat->engine, seat->rank->idx);
    if (has != seat->rank) {
        ox_rank_copy_batches(seat->rank, has);
    }
}

static enum ox_status step(struct ox_seat *seat, void *context) {
    (void)context;
    take_batches(seat);
    return ox_rank_run(seat->rank, seat->rank->plan->train, &seat->input);
}

static enum ox_status evaluate(struct ox_seat *seat, void *context) {
    const struct ox_engine_plan *const plan = seat->rank->plan;
    const bool *const with_update = context;
    take_batches(seat);
    return ox_rank_run(seat->rank, *with_update ? plan->eval_after_step : plan->eval, &seat->input);
}

/* Micro-batch 0, whose logits may be requested, is that of the first rank that computes the head, and of those with
 * which it divides the rows or the
 * features. The first rank of each process calls back before the optimizer begins. */
static void give_input(struct ox_engine *engine, const struct ox_step_input *input) {
    const struct ox_plan_input *const plan = &engine->plan->input;
    const uint32_t head = ox_plan_stage_owner(plan, plan->model.stage_count - 1) * ox_plan_data_ranks(plan) *
                          ox_plan_tensors(plan);
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        struct ox_step_input *const own = &engine->seats[i].input;
        *own = *input;
        const uint32_t rank = engine->rank_first + i;
        const bool is_head = rank >= head && rank < head + ox_plan_data_ranks(plan) * ox_plan_tensors(plan);
        own->logits = is_head && (rank - head) % batch_ranks(engine) == 0 ? input->logits : NULL;
        own->decided = i == 0 ? input->decided : NULL;
    }
}

/* Makes all ranks ready for a step. Where nothing has failed, processes need not meet for that. */
static enum ox_status make_ready(struct ox_engine *engine) {
    if (engine->config.team != NULL && !engine->failed) {
        return OX_OK;
    }
    enum ox_status status = ox_engine_check_store(engine);
    OX_THEN(status, ox_engine_all(engine, ready, NULL, "the return to the last commit"));
    engine->failed = status != OX_OK;
    return status;
}

/* Lets all ranks do a step or a part of it, and ends it on all. */
static enum ox_status run_and_end(struct ox_engine *engine, ox_seat_fn *fn, void *context,
                                  enum ox_status (*end)(struct ox_rank *, enum ox_status)) {
    struct ox_team *const team = engine->config.team;
    enum ox_status status = ox_team_agree(team, OX_TEAM_STEP, ox_engine_here(engine, fn, context), "a step");
    status = ox_team_agree(team, OX_TEAM_STEP, end_all(engine, status, end), "the end of a step");
    engine->failed = status != OX_OK;
    return status;
}

static enum ox_status finish_update(struct ox_seat *seat, void *context) {
    (void)context;
    return ox_rank_run_pending(seat->rank);
}

enum ox_status ox_engine_finish_update(struct ox_engine *engine) {
    const enum ox_status status = make_ready(engine);
    return status != OX_OK || !ox_first_rank(engine)->pending.exists
               ? status : run_and_end(engine, finish_update, NULL, ox_rank_end_pending);
}

void ox_engine_finished_traffic(const struct ox_engine *engine, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    memset(out, 0, sizeof ox_first_rank(engine)->traffic.finished);
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        ox_traffic_add(engine->seats[i].rank->traffic.finished, out);
    }
}

static enum ox_status roll_back(struct ox_seat *seat, void *context) {
    (void)context;
    return ox_rank_roll_back(seat->rank);
}

enum ox_status ox_engine_roll_back(struct ox_engine *engine) {
    enum ox_status status = ox_engine_check_store(engine);
    OX_THEN(status, ox_engine_all(engine, roll_back, NULL, "the return to the last commit"));
    const bool averaged = engine->averaged_step == ox_first_rank(engine)->planes.step; /* behind that commit */
    return status == OX_OK && averaged ? ox_engine_average_residuals(engine) : status;
}

static void add_share(struct ox_step_result *out, const struct ox_step_result *share) {
    for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
        out->lane_busy_seconds[lane] += share->lane_busy_seconds[lane];
        out->lane_wait_seconds[lane] += share->lane_wait_seconds[lane];
    }
    ox_traffic_add(share->traffic, out->traffic);
    ox_traffic_add(share->planned, out->planned);
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        out->left_out[link] += share->left_out[link];
    }
}

/* A meeting of the processes that fails on this one alone must end what the others do next. */
static enum ox_status end_ranks(struct ox_engine *engine, enum ox_status status) {
    engine->failed = engine->failed || status != OX_OK;
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        ox_link_abort(engine->seats[i].rank, status);
    }
    return status;
}

/* Adds up what all processes have done. */
static enum ox_status add_processes(struct ox_engine *engine, struct ox_step_result *out) {
    const uint32_t processes = ox_team_count(engine->config.team), count = engine->seat_count;
    const uint32_t bytes = (uint32_t)(offsetof(struct share, times) + count * sizeof *engine->times);
    unsigned char *const all = engine->shares;
    struct share own = {.times = {{0}}};
    for (uint32_t i = 0; i < count; i++) {
        ox_rank_times(engine->seats[i].rank, &own.times[i]);
        ox_rank_add_result(engine->seats[i].rank, &own.result);
    }
    const enum ox_status status =
        ox_team_gather(engine->config.team, OX_TEAM_STEP, &own, bytes, all, "the times of a step");
    for (uint32_t i = 0; i < processes && status == OX_OK; i++) {
        memcpy(&own, all + (size_t)i * bytes, bytes);
        memcpy(&engine->times[i * count], own.times, count * sizeof *own.times);
        add_share(out, &own.result);
    }
    return status;
}

/* Takes a step, which its plan commits if it commits steps at all. */
static enum ox_status take_step(struct ox_engine *engine, const struct ox_step_input *input,
                                struct ox_step_result *out) {
    *out = (struct ox_step_result){0};
    const uint64_t begin_ns = ox_clock_ns();
    enum ox_status status = make_ready(engine);
    if (status != OX_OK) {
        return status;
    }
    give_input(engine, input);
    status = run_and_end(engine, step, NULL, ox_rank_end);
    if (status != OX_OK) {
        return status;
    }
    out->seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    out->rank_count = engine->rank_total;
    out->ranks = engine->times;
    const struct ox_step_state *const done = &ox_first_rank(engine)->step;
    out->loss = done->loss;
    memcpy(out->values, done->values, sizeof out->values);
    out->grad_norm = done->grad_norm;
    out->grad_scale = done->grad_scale;
    ox_rank_report_routers(ox_first_rank(engine), &out->routers);
    out->finite = done->finite;
    out->overflow = done->overflow;
    out->committed = done->committed;
    out->order = (done->facts & OX_FACT_SPECULATES) != 0 ? OX_UPDATES_SPECULATIVE
                 : ox_engine_plan_of(engine)->input.placement.overlap ? OX_UPDATES_HELD
                                                                      : OX_UPDATES_AFTER;
    out->speculated = out->order == OX_UPDATES_SPECULATIVE && out->finite && out->grad_scale == 1.0;
    return end_ranks(engine, add_processes(engine, out));
}

/* Commits a step that has ended; if that fails, the step has failed, and planes are those of the last commit. */
static enum ox_status commit_between(struct ox_engine *engine, const struct ox_step_input *input, uint64_t before) {
    const enum ox_status status = ox_engine_persist(engine, input->meta, input->meta_bytes);
    for (uint32_t i = 0; i < engine->seat_count && status != OX_OK; i++) {
        engine->seats[i].rank->planes.step = before; /* the caller has not been told of another */
        ox_rank_lose_kept(engine->seats[i].rank);
    }
    return status;
}

enum ox_status ox_engine_step(struct ox_engine *engine, const struct ox_step_input *input,
                              struct ox_step_result *out) {
    const uint64_t begin_ns = ox_clock_ns(), before = ox_first_rank(engine)->planes.step;
    if (input->stays || !ox_plan_commits_between(&ox_engine_plan_of(engine)->input)) {
        return take_step(engine, input, out);
    }
    struct ox_step_input stays = *input;
    stays.stays = true;
    enum ox_status status = take_step(engine, &stays, out);
    if (status == OX_OK && out->finite) {
        status = commit_between(engine, input, before);
        out->committed = status == OX_OK;
        out->seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    }
    return status;
}

/* Adds up what all processes have moved. */
static enum ox_status add_eval(struct ox_engine *engine, struct ox_eval_result *out) {
    typedef uint64_t table[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    struct {
        table traffic, planned;
    } own = {0}, all[OX_COMM_RANKS_MAX];
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        table planned;
        ox_rank_add_traffic(engine->seats[i].rank, own.traffic);
        ox_rank_planned(engine->seats[i].rank, planned);
        ox_traffic_add(planned, own.planned);
    }
    const enum ox_status status =
        ox_team_gather(engine->config.team, OX_TEAM_STEP, &own, sizeof own, all, "the traffic of an evaluation");
    for (uint32_t i = 0; i < ox_team_count(engine->config.team) && status == OX_OK; i++) {
        ox_traffic_add(all[i].traffic, out->traffic);
        ox_traffic_add(all[i].planned, out->planned);
    }
    return status;
}

enum ox_status ox_engine_eval(struct ox_engine *engine, const struct ox_step_input *input,
                              struct ox_eval_result *out) {
    *out = (struct ox_eval_result){.with_update = ox_first_rank(engine)->pending.exists};
    enum ox_status status = make_ready(engine);
    if (status != OX_OK) {
        return status;
    }
    give_input(engine, input);
    status = run_and_end(engine, evaluate, &out->with_update, ox_rank_end);
    OX_THEN(status, end_ranks(engine, add_eval(engine, out)));
    out->losses = ox_rank_join_losses(ox_first_rank(engine), &out->loss_values);
    for (uint32_t mb_idx = 0; mb_idx < engine->config.micro_batches && status == OX_OK; mb_idx++) {
        out->loss_sum += out->losses[(uint64_t)mb_idx * out->loss_values];
    }
    return status;
}

/* Shows a chunk of a rank as the chunk of the unit that it is. */
static void show_chunk(void *context, uint32_t unit_idx, uint32_t chunk_idx, const struct ox_chunk_view *view) {
    const struct ox_seat *const seat = context;
    struct ox_engine *const engine = seat->engine;
    struct ox_chunk_view of_unit = *view;
    of_unit.first += ox_slice_first(seat->rank, unit_idx);
    const uint32_t before = chunks_before(seat->rank, unit_idx);
    pthread_mutex_lock(&engine->tee_lock);
    engine->tee.chunk(engine->tee.context, unit_idx, before + chunk_idx, &of_unit);
    pthread_mutex_unlock(&engine->tee_lock);
}

void ox_engine_tee(struct ox_engine *engine, const struct ox_tee *tee) {
    engine->tee = tee == NULL ? (struct ox_tee){0} : *tee;
    for (uint32_t i = 0; i < engine->seat_count; i++) {
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
    const uint32_t count = engine->rank_total;
    enum ox_status status = OX_OK;
    for (uint32_t seat = 0; seat < engine->seat_count && status == OX_OK; seat++) {
        const uint32_t i = engine->rank_first + seat;
        struct ox_rank *const rank = engine->seats[seat].rank;
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
            const bool alike = rank->plan->train->task_count == engine->plan->train->task_count;
            of_rank.predicted = alike ? config->predicted : NULL;
        }
        status = ox_rank_trace(rank, &of_rank);
    }
    return status;
}

void ox_engine_trace_pause(struct ox_engine *engine, bool pause) {
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        ox_rank_trace_pause(engine->seats[i].rank, pause);
    }
}

void ox_engine_trace_span(struct ox_engine *engine, enum ox_trace_span span, uint64_t step, uint64_t begin_ns) {
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        ox_rank_trace_span(engine->seats[i].rank, span, step, begin_ns);
    }
}
