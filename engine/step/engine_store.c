/* The store of an engine, which holds the slices of its process's ranks. Several processes commit together, by a vote
 * (nvme/store.h): one may be ahead of another by a step at most, and there is always a commit that all have. */
#include "engine/step/engine_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash/hash.h"
#include "engine/step/pending/overlap.h"
#include "engine/step/planes/planes.h"
#include "engine/step/tracing.h"

#include <stdlib.h>
#include <string.h>

/* ---- the store --------------------------------------------------------------------------------------- */

/* Hash of all that the content of extents depends on, by which a store of another model or format, or with other
 * chunks, is refused; with several processes also one of another process, which has another part of the model. AdamW in
 * fp32 adds nothing to the hash, because older stores have no format recorded. */
static uint64_t geometry_hash(const struct ox_engine *engine, uint32_t process) {
    const struct ox_model *const model = engine->config.model;
    uint64_t hash = ox_hash_seed(&engine->plan->table.chunk_elems, 1);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        const uint64_t words[] = {hash, tensor->unit_idx, tensor->offset, tensor->shape[0], tensor->shape[1],
                                  ox_hash64(tensor->name, strlen(tensor->name), 0)};
        hash = ox_hash_seed(words, sizeof words / sizeof *words);
    }
    const struct ox_state_format state = engine->config.state;
    if (state.kind != OX_OPTIM_ADAMW || state.moments != OX_MOMENTS_F32) {
        const uint64_t words[] = {hash, state.kind, state.moments};
        hash = ox_hash_seed(words, sizeof words / sizeof *words);
    }
    if (state.averages) {
        hash = ox_hash64("averages", strlen("averages"), hash);
    }
    const struct ox_team *const team = engine->config.team;
    const uint64_t part[] = {hash, process, ox_team_count(team), engine->rank_total};
    hash = team == NULL ? hash : ox_hash_seed(part, sizeof part / sizeof *part);
    const uint32_t copies = ox_plan_copies(&engine->plan->input); /* processes with a copy each have other parts */
    const uint32_t tensors = ox_plan_tensors(&engine->plan->input);
    const uint32_t experts = ox_plan_experts(&engine->plan->input);
    hash = team == NULL || experts == 1 ? hash : ox_hash_seed((const uint64_t[]){hash, experts, 0, 0}, 4);
    hash = team == NULL || tensors == 1 ? hash : ox_hash_seed((const uint64_t[]){hash, tensors, 0}, 3);
    hash = team == NULL || copies == 1 ? hash : ox_hash_seed((const uint64_t[]){hash, copies}, 2);
    if (engine->plan->input.ranks.low_rank != NULL) { /* whose residuals are extents of their own */
        const uint64_t words[] = {hash, engine->config.low_rank.rank,
                                  (uint64_t)(1000 * engine->config.low_rank.min_rate)};
        hash = ox_hash_seed(words, sizeof words / sizeof *words);
    }
    for (uint32_t i = 0; team != NULL && ox_plan_pipe(&engine->plan->input) > 1 && i < model->unit_count; i++) {
        const uint64_t owner[] = {hash, ox_plan_owner(&engine->plan->input.ranks, i)}; /* and with units of their own */
        hash = ox_hash_seed(owner, sizeof owner / sizeof *owner);
    }
    return hash;
}

/* The spool extents of all ranks, one rank behind another. */
struct spool {
    uint64_t *bytes;
    uint32_t count;
};

static bool list_spool(struct ox_engine *engine, struct spool *out) {
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        engine->seats[i].rank->spool_first = out->count;
        out->count += engine->seats[i].rank->plan->train->spool_count;
    }
    out->bytes = calloc(ox_max_u64(out->count, 1), sizeof *out->bytes);
    for (uint32_t i = 0; i < engine->seat_count && out->bytes != NULL; i++) {
        const struct ox_rank *const rank = engine->seats[i].rank;
        const struct ox_plan *const plan = rank->plan->train;
        memcpy(out->bytes + rank->spool_first, plan->spool_bytes, plan->spool_count * sizeof *out->bytes);
    }
    return out->bytes != NULL;
}

/* What a store is opened with, for as long as that takes. */
struct opening {
    struct ox_store_config config;
    struct ox_extent_spec *extents;
    struct spool spool;
};

static void end_opening(struct opening *opening) {
    free(opening->spool.bytes);
    free(opening->extents);
}

/* The extents of this process's ranks: with one process those of all. */
static enum ox_status begin_opening(struct ox_engine *engine, const uint64_t run_id[2], struct opening *out) {
    const uint32_t chunks = 2 * ox_first_rank(engine)->plan->table.chunk_count;
    uint32_t extent_count = chunks, residuals = 0;
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        engine->seats[i].rank->residual_first = extent_count;
        extent_count += ox_low_rank_extents(&engine->seats[i].rank->plan->input, NULL);
    }
    *out = (struct opening){.extents = calloc(extent_count, sizeof *out->extents)};
    if (out->extents == NULL || !list_spool(engine, &out->spool)) {
        return ox_fail(OX_E_NOMEM, "store: no memory for %u extents", extent_count);
    }
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        const struct ox_rank *const rank = engine->seats[i].rank;
        ox_shard_extents(&rank->plan->table, out->extents);
        residuals += ox_low_rank_extents(&rank->plan->input, out->extents + rank->residual_first);
    }
    OX_ASSERT(chunks + residuals == extent_count);
    out->config = (struct ox_store_config){
        .backend = engine->config.io,
        .folders = engine->config.nvme_folders,
        .bytes_max = engine->config.nvme_bytes,
        .speeds = engine->config.budget.drive_speeds,
        .drive_count = engine->config.nvme_count,
        .extents = out->extents,
        .extent_count = extent_count,
        .spool_bytes = out->spool.bytes,
        .spool_count = out->spool.count,
        .run_id = {run_id[0], run_id[1]},
        .config_hash = geometry_hash(engine, ox_team_idx(engine->config.team)),
        .queue_depth = engine->config.queue_depth,
        .generations = ox_plan_generations(&engine->config.budget),
    };
    return OX_OK;
}

static enum ox_status connect_store(struct ox_engine *engine) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < engine->seat_count && status == OX_OK; i++) {
        status = ox_rank_connect_store(engine->seats[i].rank, engine->store);
    }
    return status;
}

static void close_store(struct ox_engine *engine) {
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        ox_rank_disconnect_store(engine->seats[i].rank);
    }
    ox_store_close(&engine->store);
}

/* Finds the commit that the stores of all processes can be opened at. */
static enum ox_status agree_on_point(struct ox_engine *engine, const struct ox_store_config *config,
                                     struct ox_store_point *out) {
    struct ox_team *const team = engine->config.team;
    struct ox_store_offer mine = {0}, all[OX_COMM_RANKS_MAX];
    enum ox_status status = ox_team_agree(team, OX_TEAM_RUN, ox_store_look(config, &mine), "a look at the stores");
    OX_THEN(status, ox_team_gather(team, OX_TEAM_RUN, &mine, sizeof mine, all, "what the stores hold"));
    OX_THEN(status, ox_store_agree(all, ox_team_count(team), out));
    return status != OX_OK || out->committed ? status
                                             : ox_fail(OX_E_CORRUPT, "the stores of the processes hold no commit");
}

/* Where a store was refused that is whole, but that of another process, says so; returns `refusal`. */
static enum ox_status name_other(const struct ox_engine *engine, const struct ox_store_config *config,
                                 enum ox_status refusal) {
    const uint32_t own = ox_team_idx(engine->config.team), count = ox_team_count(engine->config.team);
    struct ox_store_config plain = *config;
    struct ox_store *store = NULL;
    struct ox_store_info info;
    char text[OX_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", ox_error_text());
    plain.extents = NULL;
    plain.spool_count = 0;
    plain.point = NULL;
    if (refusal != OX_E_CONFIG || ox_store_open(&plain, &store) != OX_OK) {
        return refusal == OX_OK ? OX_OK : ox_fail(refusal, "%s", text);
    }
    ox_store_info(store, &info);
    ox_store_close(&store);
    for (uint32_t i = 0; i < count; i++) {
        if (i != own && info.config_hash == geometry_hash(engine, i)) {
            return ox_fail(refusal, "%s: has the store of process %u, and this is process %u of %u; the folders "
                           "process-K-of-%u were exchanged, or processes see each other's drives: put them back",
                           config->folders[0], i, own, count, count);
        }
    }
    return ox_fail(refusal, "%s", text);
}

/* Opens the store; where there are several processes, at the commit that all have. */
static enum ox_status open_at_commit(struct ox_engine *engine, struct ox_store_config *config) {
    struct ox_team *const team = engine->config.team;
    struct ox_store_point point;
    if (team == NULL) {
        return ox_store_open(config, &engine->store);
    }
    enum ox_status status = agree_on_point(engine, config, &point);
    if (status != OX_OK) {
        return status;
    }
    config->point = &point;
    status = name_other(engine, config, ox_store_open(config, &engine->store));
    config->point = NULL;
    status = ox_team_agree(team, OX_TEAM_RUN, status, "the opening of the stores");
    if (status != OX_OK) {
        ox_store_close(&engine->store);
    }
    return status;
}

static enum ox_status open_store(struct ox_engine *engine, const uint64_t run_id[2], bool create) {
    struct opening opening;
    OX_ASSERT(engine->store == NULL && engine->config.nvme_count > 0 && engine->config.io != NULL);
    struct ox_team *const team = engine->config.team;
    enum ox_status status =
        ox_team_agree(team, OX_TEAM_RUN, begin_opening(engine, run_id, &opening), "the extents of the stores");
    if (status == OX_OK && create) {
        status = ox_team_agree(team, OX_TEAM_RUN, ox_store_create(&opening.config, &engine->store), "new stores");
    } else if (status == OX_OK) {
        status = open_at_commit(engine, &opening.config);
    }
    end_opening(&opening);
    OX_THEN(status, ox_team_agree(team, OX_TEAM_RUN, connect_store(engine), "the ports of the stores"));
    if (status != OX_OK && team != NULL) {
        close_store(engine);
    }
    return status;
}

enum ox_status ox_engine_store_create(struct ox_engine *engine, const uint64_t run_id[2]) {
    return open_store(engine, run_id, true);
}

enum ox_status ox_engine_store_realign(struct ox_engine *engine) {
    struct ox_store_info info;
    if (engine->config.team == NULL || engine->store == NULL) {
        return OX_OK;
    }
    ox_store_info(engine->store, &info);
    close_store(engine);
    const enum ox_status status = open_store(engine, info.run_id, false);
    engine->store_lost = status != OX_OK;
    return status;
}

enum ox_status ox_engine_check_store(const struct ox_engine *engine) {
    return engine->store_lost ? ox_fail(OX_E_IO, "the store could not be opened again when a step had failed on some "
                                        "process; resume the run from its last commit") : OX_OK;
}

/* Loads planes that live in memory from the last commit. It reads those that stay on the drives too, to verify their
 * checksums: damage is then found while the run can still use a checkpoint. This reads as much as one step does. */
static enum ox_status load_and_verify(struct ox_seat *seat, void *context) {
    struct ox_rank *const rank = seat->rank;
    const struct ox_store_info *const info = context;
    enum ox_status status = OX_OK;
    rank->planes.step = info->step;
    for (uint32_t unit_idx = 0; unit_idx < rank->plan->table.unit_count && info->committed && status == OX_OK;
         unit_idx++) {
        status = ox_rank_load_unit(rank, unit_idx, 0, rank->config.stop);
    }
    return status == OX_OK && info->committed ? ox_rank_read_residuals(rank) : status;
}

enum ox_status ox_engine_store_open(struct ox_engine *engine, const uint64_t run_id[2]) {
    OX_TRY(open_store(engine, run_id, false));
    struct ox_store_info info;
    ox_store_info(engine->store, &info);
    return ox_engine_all(engine, load_and_verify, &info, "the last commit");
}

/* ---- what a store begins with, and what stays in memory ----------------------------------------------- */

enum ox_status ox_engine_load_begin(struct ox_engine *engine, uint64_t step) {
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        ox_rank_load_begin(engine->seats[i].rank, step);
    }
    return engine->store == NULL ? OX_OK : ox_store_begin(engine->store, step);
}

/* Waits until all chunks are on the drives. */
static enum ox_status end_load(struct ox_engine *engine, enum ox_status status) {
    struct ox_first_failure first = {0};
    ox_first_failure_note(&first, status);
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        struct ox_rank *const rank = engine->seats[i].rank;
        const enum ox_status ended = ox_rank_load_end(rank);
        ox_first_failure_note(&first, ended != OX_OK || engine->store == NULL ? ended
                                                                              : ox_rank_write_residuals(rank, false));
    }
    if (first.status != OX_OK && engine->store != NULL) {
        ox_store_abort(engine->store);
    }
    return ox_first_failure_result(&first);
}

/* Commits on all processes or on none, and returns the same status on all. Memory stays as it is. */
static enum ox_status commit(struct ox_engine *engine, enum ox_status status, const void *meta, uint32_t meta_bytes) {
    struct ox_team *const team = engine->config.team;
    if (team == NULL || engine->store == NULL) {
        OX_THEN(status, engine->store == NULL ? OX_OK : ox_store_commit(engine->store, meta, meta_bytes));
        return ox_team_agree(team, OX_TEAM_RUN, status, "what was loaded");
    }
    status = ox_team_agree(team, OX_TEAM_RUN, status, "the writes of a transaction");
    if (status == OX_OK) {
        status = ox_store_prepare(engine->store, meta, meta_bytes);
        status = ox_team_agree(team, OX_TEAM_RUN, status, "a prepared transaction");
    }
    if (status == OX_OK) {
        status = ox_team_agree(team, OX_TEAM_RUN, ox_store_commit(engine->store, NULL, 0), "a commit");
    }
    if (status == OX_OK) {
        return OX_OK;
    }
    struct ox_first_failure first = {0};
    ox_first_failure_note(&first, status);
    ox_store_abort(engine->store);
    ox_first_failure_note(&first, ox_engine_store_realign(engine));
    return ox_first_failure_result(&first);
}

enum ox_status ox_engine_load_commit(struct ox_engine *engine, const void *meta, uint32_t meta_bytes) {
    return commit(engine, end_load(engine, OX_OK), meta, meta_bytes);
}

static enum ox_status put_missing(struct ox_seat *seat, void *context) {
    (void)context;
    return ox_rank_put_missing(seat->rank);
}

enum ox_status ox_engine_persist(struct ox_engine *engine, const void *meta, uint32_t meta_bytes) {
    enum ox_status status = ox_engine_finish_update(engine);
    if (status != OX_OK || engine->store == NULL) {
        return status;
    }
    const uint64_t step = ox_first_rank(engine)->planes.step;
    struct ox_store_info info;
    ox_store_info(engine->store, &info);
    if (info.step == step) {
        return OX_OK;
    }
    const uint64_t begin_ns = ox_clock_ns();
    status = ox_engine_load_begin(engine, step);
    status = end_load(engine, status == OX_OK ? ox_engine_here(engine, put_missing, NULL) : status);
    status = commit(engine, status, meta, meta_bytes);
    if (status == OX_OK) {
        ox_engine_trace_span(engine, OX_TRACE_SPAN_PERSIST, step, begin_ns);
    } else if (engine->config.team != NULL && ox_plan_transacts(&engine->plan->input, true)) {
        for (uint32_t i = 0; i < engine->seat_count; i++) {
            ox_rank_lose_kept(engine->seats[i].rank);
        }
    }
    return status;
}
