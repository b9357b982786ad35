#include "tests/kit/run/harness.h"

#include "base/bytes.h"
#include "base/file.h"
#include "nvme/io.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

#define AUTO OX_TIER_COUNT

const struct harness_place harness_in_memory = {
    .name = "memory",
    .unified = true,
    .request = {.tiles = 1,
             .prefetch_depth = 2,
             .act_tier = OX_TIER_HOST,
             .weights_tier = AUTO,
             .state_tier = AUTO,
             .grad_tier = OX_TIER_HOST},
    .chunk_elems = UINT64_C(1) << 18,
    .optimizer_threads = 1,
};

#define NVME   OX_TIER_NVME
#define HOST   OX_TIER_HOST
#define DEVICE OX_TIER_DEVICE
/* A request lists tiles, prefetch depth, the homes of activations, weights, state and gradients, overlap, speculative
 * units, and blocks that keep their activations; then units with their state on the device. */
const struct harness_place harness_places[] = {
    {.name = "three tiers, all on NVMe",
     .store = true,
     .request = {99, 2, NVME, NVME, NVME, NVME, 0, 0, .grads_alternate = 1},
     .chunk_elems = 4096,
     .drives = 2,
     .optimizer_threads = 2,
     .uring = true},
    {.name = "three tiers, no prefetch",
     .store = true,
     .request = {99, 0, NVME, NVME, NVME, NVME, 0, 0},
     .chunk_elems = 2048,
     .drives = 1,
     .optimizer_threads = 1},
    {.name = "two tiles, gradients on NVMe",
     .store = true,
     .request = {2, 1, HOST, HOST, HOST, NVME, 0, 0, .grads_alternate = 1},
     .chunk_elems = 6144,
     .drives = 3,
     .optimizer_threads = 1},
    {.name = "weights on the device, state on NVMe",
     .store = true,
     .request = {1, 2, DEVICE, DEVICE, NVME, HOST, 0, 0},
     .chunk_elems = 4096,
     .drives = 1,
     .optimizer_threads = 3,
     .uring = true},
    {.name = "weights on the device, no store",
     .request = {99, 1, DEVICE, DEVICE, HOST, HOST, 0, 0, .device_sums = 1},
     .chunk_elems = 8192,
     .optimizer_threads = 2},
    {.name = "weights on the host, state on NVMe",
     .store = true,
     .request = {1, 1, HOST, HOST, NVME, HOST, 0, 0},
     .chunk_elems = 4096,
     .drives = 1,
     .optimizer_threads = 1},
    {.name = "weights on NVMe, state on the host",
     .store = true,
     .request = {99, 1, DEVICE, NVME, HOST, HOST, 0, 0},
     .chunk_elems = 2048,
     .drives = 1,
     .optimizer_threads = 1},
    {.name = "one memory, all on NVMe",
     .unified = true,
     .store = true,
     .request = {99, 2, NVME, NVME, NVME, NVME, 0, 0},
     .chunk_elems = 2048,
     .drives = 1,
     .optimizer_threads = 1},
    {.name = "one memory, state on NVMe",
     .unified = true,
     .store = true,
     .request = {1, 0, HOST, HOST, NVME, NVME, 0, 0},
     .chunk_elems = 4096,
     .drives = 1,
     .optimizer_threads = 2,
     .uring = true},
    {.name = "one memory, in many tiles",
     .unified = true,
     .request = {99, 1, HOST, AUTO, AUTO, HOST, 0, 0},
     .chunk_elems = 2048,
     .optimizer_threads = 1},
    {.name = "overlapped, all on NVMe",
     .store = true,
     .request = {99, 2, NVME, NVME, NVME, NVME, 1, 0, .device_sums = 1},
     .chunk_elems = 2048,
     .drives = 2,
     .optimizer_threads = 1},
    {.name = "overlapped, speculative, all on NVMe",
     .store = true,
     .request = {1, 1, NVME, NVME, NVME, NVME, 1, 2},
     .chunk_elems = 4096,
     .drives = 1,
     .optimizer_threads = 2,
     .uring = true},
    {.name = "overlapped, speculative in every unit, two tiles",
     .store = true,
     .request = {2, 3, HOST, NVME, NVME, HOST, 1, 99},
     .chunk_elems = 2048,
     .drives = 1,
     .optimizer_threads = 1},
    {.name = "overlapped, speculative in every other unit, weights on the device",
     .store = true,
     .request = {1, 2, DEVICE, DEVICE, NVME, HOST, 1, 2, .speculative_spread = 1, .device_sums = 1,
                 .grads_alternate = 1},
     .chunk_elems = 4096,
     .drives = 2,
     .optimizer_threads = 1},
    {.name = "overlapped, speculative, state on the host",
     .store = true,
     .request = {1, 0, HOST, HOST, HOST, NVME, 1, 1},
     .chunk_elems = 6144,
     .drives = 1,
     .optimizer_threads = 1},
    {.name = "overlapped, speculative in memory in every other unit, which saves what is replaced",
     .request = {1, 1, DEVICE, DEVICE, HOST, HOST, 1, 2, .speculative_spread = 1, .saves_replaced = 1,
                 .device_sums = 1, .grads_alternate = 1},
     .chunk_elems = 2048,
     .optimizer_threads = 2},
    {.name = "overlapped, speculative in memory, weights ahead of their state",
     .request = {1, 1, DEVICE, HOST, HOST, HOST, 1, 99, .saves_replaced = 1, .weights_ahead = 1, .grads_alternate = 1},
     .chunk_elems = 2048,
     .optimizer_threads = 2},
    {.name = "overlapped, speculative in one memory, weights ahead of their state, two tiles",
     .unified = true,
     .request = {2, 1, HOST, AUTO, AUTO, HOST, 1, 99, .saves_replaced = 1, .weights_ahead = 1},
     .chunk_elems = 4096,
     .optimizer_threads = 1},
    {.name = "overlapped, speculative, saved in memory beside a store, gradients on NVMe",
     .store = true,
     .request = {1, 2, HOST, HOST, HOST, NVME, 1, 99, .saves_replaced = 1},
     .chunk_elems = 2048,
     .drives = 2,
     .optimizer_threads = 1,
     .uring = true},
    {.name = "overlapped, speculative, weights ahead of their state, three units on the device",
     .request = {1, 2, DEVICE, HOST, HOST, HOST, 1, 99, .device_units = 3, .saves_replaced = 1, .weights_ahead = 1},
     .chunk_elems = 4096,
     .optimizer_threads = 2},
    {.name = "overlapped in memory",
     .request = {99, 1, DEVICE, DEVICE, HOST, HOST, 1, 0},
     .chunk_elems = 8192,
     .optimizer_threads = 2},
    {.name = "overlapped in one memory",
     .unified = true,
     .request = {2, 1, HOST, AUTO, AUTO, HOST, 1, 0},
     .chunk_elems = 2048,
     .optimizer_threads = 1},
    {.name = "overlapped, speculative in every other unit, in one memory, all on NVMe",
     .unified = true,
     .store = true,
     .request = {1, 1, NVME, NVME, NVME, NVME, 1, 2, .speculative_spread = 1},
     .chunk_elems = 2048,
     .drives = 1,
     .optimizer_threads = 1,
     .uring = true},
    {.name = "overlapped, speculative in one memory, state on NVMe",
     .unified = true,
     .store = true,
     .request = {99, 2, HOST, HOST, NVME, HOST, 1, 99},
     .chunk_elems = 4096,
     .drives = 1,
     .optimizer_threads = 1},
    {.name = "all on the device",
     .request = {1, 2, DEVICE, DEVICE, DEVICE, DEVICE, 0, 0},
     .chunk_elems = 4096,
     .optimizer_threads = 1},
    {.name = "all on the device, a tile for each micro-batch, overlapped",
     .request = {99, 0, HOST, AUTO, DEVICE, AUTO, 1, 0},
     .chunk_elems = 2048,
     .optimizer_threads = 1},
    {.name = "two units on the device, two tiles",
     .request = {2, 1, HOST, HOST, HOST, HOST, 0, 0, .device_units = 2, .device_sums = 1},
     .chunk_elems = 6144,
     .optimizer_threads = 2},
    {.name = "three units on the device, overlapped",
     .request = {1, 2, DEVICE, DEVICE, HOST, HOST, 1, 0, .device_units = 3},
     .chunk_elems = 4096,
     .optimizer_threads = 1},
    {.name = "the first three units on the device, overlapped",
     .request = {1, 2, HOST, HOST, HOST, HOST, 1, 0, .device_units = 3, .device_first = true},
     .chunk_elems = 4096,
     .optimizer_threads = 1},
    {.name = "all on the device beside a store, overlapped",
     .store = true,
     .request = {1, 2, HOST, DEVICE, DEVICE, DEVICE, 1, 0},
     .chunk_elems = 4096,
     .drives = 2,
     .optimizer_threads = 1,
     .uring = true},
    {.name = "two units on the device, all else on NVMe",
     .store = true,
     .request = {2, 1, NVME, NVME, NVME, NVME, 0, 0, .device_units = 2},
     .chunk_elems = 2048,
     .drives = 1,
     .optimizer_threads = 2},
    {.name = "planner's choice of what fits on the device",
     .request = {0, -1, AUTO, AUTO, AUTO, AUTO, -1, -1, -1, OX_SWITCH_ROWS(OX_SWITCH_AUTOMATIC)},
     .chunk_elems = 4096,
     .optimizer_threads = 1},
    {.name = "one block kept, all else on NVMe",
     .store = true,
     .request = {1, 2, NVME, NVME, NVME, NVME, 0, 0, 1},
     .chunk_elems = 4096,
     .drives = 1,
     .optimizer_threads = 1},
    {.name = "all blocks kept, overlapped, speculative, in many tiles",
     .store = true,
     .request = {99, 1, HOST, NVME, NVME, HOST, 1, 2, 99},
     .chunk_elems = 2048,
     .drives = 1,
     .optimizer_threads = 2},
    {.name = "two blocks kept in one memory",
     .unified = true,
     .request = {2, 0, HOST, AUTO, AUTO, HOST, 1, 0, 2},
     .chunk_elems = 6144,
     .optimizer_threads = 1},
    {.name = "planner's choice",
     .store = true,
     .request = {0, -1, AUTO, AUTO, AUTO, AUTO, -1, -1, -1, OX_SWITCH_ROWS(OX_SWITCH_AUTOMATIC)},
     .chunk_elems = 4096,
     .drives = 1,
     .optimizer_threads = 1},
    {.name = "planner's choice in tight memory",
     .store = true,
     .request = {0, -1, AUTO, AUTO, AUTO, AUTO, -1, -1, -1, OX_SWITCH_ROWS(OX_SWITCH_AUTOMATIC)},
     .chunk_elems = 2048,
     .drives = 2,
     .optimizer_threads = 1,
     .tight = true},
    {.name = "planner's choice in one tight memory",
     .unified = true,
     .store = true,
     .request = {0, -1, AUTO, AUTO, AUTO, AUTO, -1, -1, -1, OX_SWITCH_ROWS(OX_SWITCH_AUTOMATIC)},
     .chunk_elems = 2048,
     .drives = 1,
     .optimizer_threads = 1,
     .tight = true},
    {.name = NULL},
};

/* ---- opening ------------------------------------------------------------------------------------ */

static void load_chunk(struct harness *harness, uint32_t unit_idx, uint32_t chunk_idx) {
    const struct ox_unit *const unit = &harness->model->units[unit_idx];
    struct ox_chunk_view view;
    ox_engine_chunk_view(harness->engine, unit_idx, chunk_idx, &view);
    ox_chunk_clear(&view);
    memset(view.values, 0, view.count * sizeof *view.values);
    for (const struct ox_tensor *tensor = NULL; (tensor = ox_unit_next_tensor(harness->model, unit, tensor)) != NULL;) {
        const uint64_t begin = ox_max_u64(tensor->offset, view.first);
        const uint64_t end = ox_min_u64(tensor->offset + tensor->count, view.first + view.count);
        if (begin < end && ox_hf_has_weights(harness->folder)) {
            REQUIRE_OK(ox_hf_read(harness->folder, (uint32_t)(tensor - harness->model->tensors),
                                  begin - tensor->offset, end - begin,
                                  view.values + (begin - view.first)));
            continue;
        }
        if (begin < end) {
            ox_model_init_values(harness->model, tensor, 1, begin - tensor->offset, end - begin,
                                 view.values + (begin - view.first));
        }
    }
    CHECK(ox_chunk_values_set(&view, OX_PLANE_MASTER) == 0);
    REQUIRE_OK(ox_engine_chunk_put(harness->engine, unit_idx, chunk_idx, &view));
}

static void load(struct harness *harness) {
    REQUIRE_OK(ox_engine_load_begin(harness->engine, 0));
    for (uint32_t i = 0; i < harness->model->unit_count; i++) {
        for (uint32_t j = 0; j < ox_engine_chunk_count(harness->engine, i); j++) {
            if (ox_engine_has_chunk(harness->engine, i, j)) {
                load_chunk(harness, i, j);
            }
        }
    }
    REQUIRE_OK(ox_engine_load_commit(harness->engine, NULL, 0));
}

static void make_drives(const struct harness_place *place, struct harness *out) {
    static _Atomic uint32_t made; /* processes may be threads */
    for (uint32_t i = 0; i < place->drives; i++) {
        snprintf(out->store_paths[i], sizeof out->store_paths[i], "%s/drive-%u", test_folder(), made++);
        REQUIRE_OK(ox_folder_make(out->store_paths[i]));
        out->folders[i] = out->store_paths[i];
        out->bytes[i] = UINT64_C(256) << 20;
    }
}

/* The most tiles: one where backward reads what all forward passes report, and where a pipeline has another order. */
static uint32_t tiles_max(const struct ox_engine_config *config) {
    const bool whole = config->router_balance > 0 || config->router_z > 0 || config->schedule != OX_PIPE_VERTICAL;
    const uint32_t ranks = config->ranks == 0 ? 1 : config->ranks, pipe = config->pipe == 0 ? 1 : config->pipe;
    return whole ? 1 : config->micro_batches / (ranks / pipe / (config->contexts == 0 ? 1 : config->contexts) /
                                              (config->tensors == 0 ? 1 : config->tensors));
}

static struct ox_engine_config configure(const struct harness_run *run, const struct harness_place *place,
                                         struct harness *out) {
    char why[160];
    struct ox_engine_config config = {
        .model = out->model,
        .batch = run->batch,
        .seq = run->seq,
        .micro_batches = run->micro_batches,
        .sum_groups = run->sum_groups,
        .ranks = run->ranks,
        .team = run->team,
        .sharding = run->sharding,
        .copies = run->copies,
        .context_groups = run->context_groups,
        .contexts = run->contexts,
        .context_mode = run->context_mode,
        .tensors = run->tensors,
        .experts = run->experts,
        .pipe = run->pipe,
        .schedule = run->schedule,
        .pipe_chunks = run->pipe_chunks,
        .window = run->window,
        .comm_timeout_ns = run->comm_timeout_ns,
        .dtype = run->dtype,
        .objective = run->objective,
        .router_balance = run->router_balance,
        .router_z = run->router_z,
        .router_bias_rate = run->router_bias_rate,
        .skips_idle = run->skips_idle,
        .grad_bf16 = run->grad_bf16,
        .decay_all = run->decay_all,
        .state = run->state,
        .device = run->cuda_plugin == NULL ? OX_DEVICE_CPU : OX_DEVICE_CUDA,
        .cuda = {.plugin_path = run->cuda_plugin},
        .cuda_count = run->cuda_count,
        .comm = run->comm,
        .comm_debug = run->comm_debug,
        .library_sums = run->library_sums,
        .exchange = run->exchange,
        .low_rank = run->low_rank,
        .compute_threads = run->compute_threads == 0 ? 1 : run->compute_threads,
        .budget = {.unified = place->unified && run->cuda_plugin == NULL, /* a GPU's memory is its own */
                   .device_bytes = UINT64_C(1) << 30,
                   .host_bytes = UINT64_C(1) << 30},
        .request = place->request,
        .chunk_elems = run->base_q8 ? 65536 : place->chunk_elems,
        .optimizer_threads = place->optimizer_threads,
        .isa = ox_isa_best(),
        .verify_memory = !run->trusts_memory,
        .queue_depth = 8,
        .chaos_seed = place->chaos_seed,
    };
    const uint32_t most = tiles_max(&config);
    config.request.tiles = config.request.tiles > most ? most : config.request.tiles;
    config.request.rough = !test_all(); /* what is left open may be any choice, as of a run that ends soon */
    config.request.steps = test_all() ? 0 : 1;
    if (place->store) {
        config.nvme_folders = out->folders;
        config.nvme_bytes = out->bytes;
        config.nvme_count = place->drives;
        config.budget.nvme_bytes = place->drives * out->bytes[0];
        config.budget.generations = place->generations;
        config.io = place->io != NULL ? place->io : place->uring ? ox_io_probe(why) : ox_io_threads();
    }
    return config;
}

/* Sets budgets a little above those of the smallest plan. */
static void tighten(struct ox_engine_config *config) {
    struct ox_engine_config smallest = *config;
    struct ox_engine_plan *plan = NULL;
    smallest.request = (struct ox_placement_request){
        .tiles = tiles_max(config),
        .act_tier = NVME, .weights_tier = NVME, .state_tier = NVME, .grad_tier = NVME};
    REQUIRE_OK(ox_engine_plan_open(&smallest, &plan));
    const uint32_t ranks = ox_plan_rank_count(&plan->input);
    config->budget.device_bytes = config->budget.host_bytes = 0;
    for (uint32_t i = 0; i < ranks; i++) {
        const struct ox_engine_plan *const of_rank = ox_engine_plan_at(plan, i);
        const uint64_t device = ox_engine_plan_peak_bytes(of_rank, OX_TIER_DEVICE) / 4 * 5;
        const uint64_t host = ox_engine_plan_peak_bytes(of_rank, OX_TIER_HOST) / 4 * 5 * ranks;
        config->budget.device_bytes = ox_max_u64(config->budget.device_bytes, device);
        config->budget.host_bytes = ox_max_u64(config->budget.host_bytes, host);
    }
    ox_engine_plan_close(&plan);
}

static enum ox_status open_engine(const struct harness_run *run, const struct harness_place *place,
                                  struct harness *out) {
    struct ox_engine_config config = configure(run, place, out);
    struct ox_engine_plan *plan = NULL;
    if (place->tight) {
        tighten(&config);
    }
    enum ox_status status = ox_engine_plan_open(&config, &plan);
    OX_THEN(status, ox_engine_open(&config, &plan, &out->engine));
    ox_engine_plan_close(&plan); /* a plan that does not fit is there for its ledger */
    return status;
}

static const uint64_t run_id[2] = {7, 11};

/* Gives the model its adapters, or marks what of it is not trained. */
static void prepare(const struct harness_run *run, struct ox_hf_folder *folder) {
    if (run->adapter != NULL || run->lora != NULL) {
        char path[OX_PATH_BYTES];
        if (run->adapter != NULL) {
            REQUIRE_OK(ox_path_join(run->model_folder, run->adapter, path));
            REQUIRE_OK(ox_hf_load_adapter(folder, path));
        } else {
            REQUIRE_OK(ox_hf_adapt(folder, run->lora, 1));
        }
        REQUIRE_OK(ox_hf_regroup(folder, run->experts_per_unit, run->tensor_groups));
        if (run->base_q8) {
            REQUIRE_OK(ox_hf_choose_bytes(ox_hf_own_model(folder)));
        }
        return;
    }
    REQUIRE_OK(ox_hf_regroup(folder, run->experts_per_unit, run->tensor_groups));
    REQUIRE_OK(ox_hf_share_layers(folder, run->share_layers, true));
    struct ox_model *const model = ox_hf_own_model(folder);
    for (size_t i = 0; i < json_array_size(run->frozen); i++) {
        const int64_t idx = ox_model_find_tensor(model, json_string_value(json_array_get(run->frozen, i)));
        CHECK(idx >= 0);
        for (uint32_t part = (uint32_t)idx; part != OX_NO_TENSOR; part = model->tensors[part].next_part) {
            model->tensors[part].trained = false;
        }
    }
    ox_model_settle_trained(model);
}

static void group(const struct harness_run *run, struct ox_hf_folder *folder) {
    struct ox_model *const model = ox_hf_own_model(folder);
    const char *name;
    json_t *own;
    json_object_foreach((json_t *)(uintptr_t)run->groups, name, own) {
        const int64_t idx = ox_model_find_tensor(model, name);
        const json_t *const decay = json_array_get(own, 1);
        CHECK(idx >= 0);
        model->tensors[idx].group = (struct ox_tensor_group){
            .given = true,
            .rate_share = json_number_value(json_array_get(own, 0)),
            .weight_decay = json_is_null(decay) ? (double)NAN : json_number_value(decay)};
    }
}

void harness_open(const struct harness_run *run, const struct harness_place *place, struct harness *out) {
    *out = (struct harness){.run = *run};
    REQUIRE_OK(ox_hf_open(run->model_folder, ox_path_is_folder(run->model_folder), &out->folder));
    prepare(run, out->folder);
    group(run, out->folder);
    out->model = ox_hf_model(out->folder);
    make_drives(place, out);
    REQUIRE_OK(open_engine(run, place, out));
    if (place->store) {
        REQUIRE_OK(ox_engine_store_create(out->engine, run_id));
    }
    load(out);
}

void harness_open_again(const struct harness_run *run, const struct harness_place *place, struct harness *harness) {
    ox_engine_close(&harness->engine);
    harness->run = *run;
    REQUIRE_OK(open_engine(run, place, harness));
}

enum ox_status harness_store_open(struct harness *harness) {
    return ox_engine_store_open(harness->engine, run_id);
}

void harness_reopen(const struct harness_run *run, const struct harness_place *place,
                    struct harness *harness) {
    harness_open_again(run, place, harness);
    REQUIRE_OK(harness_store_open(harness));
}

void harness_close(struct harness *harness) {
    ox_engine_close(&harness->engine);
    ox_hf_close(&harness->folder);
    for (uint32_t i = 0; i < 4 && harness->folders[i] != NULL; i++) {
        REQUIRE_OK(ox_folder_remove(harness->folders[i]));
    }
}

enum ox_status harness_try(const struct harness_run *run, const struct harness_place *place) {
    struct harness harness = {0};
    REQUIRE_OK(ox_hf_open(run->model_folder, ox_path_is_folder(run->model_folder), &harness.folder));
    prepare(run, harness.folder);
    group(run, harness.folder);
    harness.model = ox_hf_model(harness.folder);
    const enum ox_status status = open_engine(run, place, &harness);
    harness_close(&harness);
    return status;
}

/* ---- looking ------------------------------------------------------------------------------------ */

/* Fills in what other processes have: this one's values there are zero. */
static void add_processes(struct ox_team *team, float *values, uint64_t count) {
    enum { PART = 1024 };
    uint64_t bits[PART];
    for (uint64_t at = 0; at < count && ox_team_count(team) > 1; at += PART) {
        const uint64_t part = ox_min_u64(PART, count - at);
        memset(bits, 0, sizeof bits);
        for (uint64_t i = 0; i < part; i++) {
            memcpy(&bits[i], &values[at + i], sizeof *values);
        }
        REQUIRE_OK(ox_team_sum(team, OX_TEAM_RUN, bits, PART, "the values of a unit"));
        for (uint64_t i = 0; i < part; i++) {
            memcpy(&values[at + i], &bits[i], sizeof *values);
        }
    }
}

float *harness_read_unit(struct harness *harness, uint32_t unit_idx, enum ox_plane plane) {
    REQUIRE_OK(ox_engine_finish_update(harness->engine));
    const uint64_t elem_count = harness->model->units[unit_idx].elem_count;
    float *const values = calloc(elem_count, sizeof *values);
    if (values == NULL) {
        printf("no memory for unit %u\n", unit_idx);
        exit(1);
    }
    const bool has_moments = harness->model->units[unit_idx].trained;
    if (!ox_plane_exists(harness->run.state, plane) || (plane != OX_PLANE_MASTER && !has_moments)) {
        free(values);
        return NULL;
    }
    for (uint32_t i = 0; i < ox_engine_chunk_count(harness->engine, unit_idx); i++) {
        struct ox_chunk_view view;
        if (ox_engine_owns_chunk(harness->engine, unit_idx, i)) {
            REQUIRE_OK(ox_engine_chunk_get(harness->engine, unit_idx, i, &view));
            ox_chunk_values_get(&view, plane);
            memcpy(values + view.first, view.values, view.count * sizeof *values);
        }
    }
    add_processes(harness->run.team, values, elem_count);
    return values;
}

void harness_compare(struct harness_error *error, const float *measured, uint64_t stride,
                     const float *expected, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        if (isnan(expected[i])) {
            continue;
        }
        const double difference = fabs((double)measured[i * stride] - (double)expected[i]);
        /* written so that a NaN is kept */
        error->largest = difference <= error->largest ? error->largest : difference;
        error->magnitude = fmax(error->magnitude, fabs((double)expected[i]));
        error->compared++;
    }
}

void harness_exchange(struct harness *harness, uint32_t unit_idx, uint16_t *hi) {
    struct ox_chunk_view view;
    REQUIRE_OK(ox_engine_finish_update(harness->engine));
    REQUIRE_OK(ox_engine_chunk_get(harness->engine, unit_idx, 0, &view));
    const uint16_t before = view.hi[0];
    view.hi[0] = *hi;
    *hi = before;
    REQUIRE_OK(ox_engine_chunk_put(harness->engine, unit_idx, 0, &view));
}

void harness_load_pattern(struct ox_engine *engine, const struct ox_model *model) {
    REQUIRE_OK(ox_engine_load_begin(engine, 0));
    for (uint32_t unit_idx = 0; unit_idx < model->unit_count; unit_idx++) {
        for (uint32_t i = 0; i < ox_engine_chunk_count(engine, unit_idx); i++) {
            struct ox_chunk_view view;
            ox_engine_chunk_view(engine, unit_idx, i, &view);
            ox_chunk_clear(&view);
            for (uint64_t k = 0; k < view.count; k++) {
                view.values[k] = (float)((int)((view.first + k) * 2654435761u >> 20 & 255) - 128) * 2e-4f;
            }
            CHECK(ox_chunk_values_set(&view, OX_PLANE_MASTER) == 0);
            REQUIRE_OK(ox_engine_chunk_put(engine, unit_idx, i, &view));
        }
    }
    REQUIRE_OK(ox_engine_load_commit(engine, NULL, 0));
}
