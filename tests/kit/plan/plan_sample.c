#include "tests/kit/plan/plan_sample.h"

#include "base/bytes.h"
#include "base/prng/prng.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

enum { DRAWN_UNITS_MAX = 12 };

uint64_t plan_sample_number(uint64_t seed, uint64_t *counter, uint64_t below) {
    return (uint64_t)(ox_uniform(seed, 1, (*counter)++) * (double)below);
}

double plan_sample_even(uint64_t seed, uint64_t *counter, double from, double to) {
    return from + ox_uniform(seed, 5, (*counter)++) * (to - from);
}

double plan_sample_wide(uint64_t seed, uint64_t *counter, double from, double to) {
    return from * pow(to / from, plan_sample_even(seed, counter, 0, 1));
}

void plan_sample_machine(uint64_t seed, uint64_t *counter, struct ox_machine *out) {
    const uint32_t cores = 1 + (uint32_t)plan_sample_even(seed, counter, 0, 32);
    const double core_flops = plan_sample_wide(seed, counter, 1e10, 2e11);
    const double dram_rate = plan_sample_wide(seed, counter, 1e10, 2e11);
    *out = (struct ox_machine){
        .name = "drawn", .has_gpu = plan_sample_even(seed, counter, 0, 2) < 1, .drive_count = 1, .task_seconds = 1e-5,
        .gpu = {.bf16_flops = plan_sample_wide(seed, counter, 1e12, 1e15),
                .h2d_rate = plan_sample_even(seed, counter, 5e9, 5e10),
                .d2h_rate = plan_sample_even(seed, counter, 5e9, 5e10)},
        .host = {.cores = cores, .dram_rate = dram_rate, .core_flops = core_flops, .flops = core_flops * cores,
                 .adam = {.threads = cores, .seconds = {plan_sample_even(seed, counter, 1, 3) * 28 / dram_rate}}},
        .drives = {{.read_rate = plan_sample_wide(seed, counter, 5e8, 3e10),
                    .write_rate = plan_sample_wide(seed, counter, 5e8, 3e10),
                    .latency_seconds = 1e-4, .flush_seconds = 1e-3}}};
    struct ox_machine_drive *const drive = &out->drives[0];
    out->gpu.fp32_flops = out->gpu.bf16_flops / 4;
    drive->mix_rate = plan_sample_even(seed, counter, 0.8, 2) * fmin(drive->read_rate, drive->write_rate);
    out->gpu.duplex_rate = plan_sample_even(seed, counter, 1, 2) * fmin(out->gpu.h2d_rate, out->gpu.d2h_rate);
}

/* Every other three models have units that differ in everything, numbered in any order. */
static bool is_varied(uint64_t seed) {
    return seed / 3 % 2 == 1;
}

/* Two in five models are a part of one: without an embedding, without a head, or without both; one unit alone in every
 * fourth of these. Returns how many units there are. */
static uint32_t draw_part(struct plan_model_sizes *sizes, uint64_t seed, uint32_t unit_count) {
    uint64_t counter = 97000;
    const uint64_t nth = plan_sample_number(seed, &counter, 5), which = plan_sample_number(seed, &counter, 3);
    if (nth >= 2) {
        return unit_count;
    }
    sizes->without_embedding = which != 0;
    sizes->without_head = which != 1;
    return plan_sample_number(seed, &counter, 4) == 0 ? 1 : unit_count;
}

/* Two models in three have blocks that report, whose backward reads in every other one what all have reported. */
static void draw_reports(struct plan_sample *s, uint64_t seed) {
    struct ox_plan_model *const model = &s->in.model;
    uint64_t counter = 99000;
    const uint64_t nth = plan_sample_number(seed, &counter, 3);
    uint32_t any = 0;
    for (uint32_t i = 0; i < model->stage_count && nth > 0; i++) {
        s->model.stages[i].reports =
            model->stages[i].kind == OX_PLAN_BLOCK && plan_sample_number(seed, &counter, 4) > 0;
        any += model->stages[i].reports;
    }
    model->report_doubles = any * (2 + (uint32_t)plan_sample_number(seed, &counter, 900)); /* as much for each */
    model->pooled_doubles = any > 0 && nth == 2 ? 1 + (uint32_t)plan_sample_number(seed, &counter, 900) : 0;
}

/* Every other model has blocks that say which of the one to three blocks behind them have rows. */
static void draw_routes(struct plan_sample *s, uint64_t seed) {
    uint64_t counter = 101000;
    const bool has = plan_sample_number(seed, &counter, 2) > 0;
    for (uint32_t i = 0; has && i < s->in.model.stage_count; i++) {
        struct ox_plan_stage *const stage = &s->model.stages[i];
        const uint32_t most = (uint32_t)plan_sample_number(seed, &counter, 4);
        const uint64_t bytes = 4 * (1 + plan_sample_number(seed, &counter, 2000));
        stage->routes_bytes = stage->kind == OX_PLAN_BLOCK && most > 0 ? bytes : 0;
        for (uint32_t back = 1; stage->routes_bytes > 0 && back <= most && i + 1 < s->in.model.stage_count &&
                                s->model.stages[i + 1].kind == OX_PLAN_BLOCK; back++) {
            s->model.stages[++i].routed_back = back;
        }
    }
}

static void draw_model(struct plan_sample *s, uint64_t seed, uint64_t *counter) {
    struct ox_plan_model *const model = &s->in.model;
    struct plan_model_sizes sizes = {0};
    uint64_t kept_counter = 90000;
    const uint32_t most = 2 + (uint32_t)plan_sample_number(seed, counter, DRAWN_UNITS_MAX - 1);
    const uint32_t unit_count = draw_part(&sizes, seed, most);
    for (uint32_t i = 0; i < unit_count; i++) {
        s->elems[i] = OX_GROUP_ELEMS * (1 + plan_sample_number(seed, counter, 40));
    }
    const bool tied = plan_sample_number(seed, counter, 2) && !sizes.without_embedding && !sizes.without_head;
    sizes.tied_elems = tied ? s->elems[0] : 0;
    model->micro_batches = 1 + (uint32_t)plan_sample_number(seed, counter, 7);
    sizes.act_bytes = 4 * (1 + plan_sample_number(seed, counter, 30000));
    model->batch_bytes = 12 * (1 + plan_sample_number(seed, counter, 500));
    model->const_bytes = plan_sample_number(seed, counter, 9000);
    sizes.forward_bytes = 1 + plan_sample_number(seed, counter, 400000);
    sizes.backward_bytes = 1 + plan_sample_number(seed, counter, 800000);
    sizes.head_bytes = 1 + plan_sample_number(seed, counter, 300000);
    sizes.head_eval_bytes = 1 + plan_sample_number(seed, counter, 200000);
    const bool keeps = plan_sample_number(seed, &kept_counter, 4) != 0;
    sizes.kept_bytes = keeps ? 1 + plan_sample_number(seed, &kept_counter, 200000) : 0;
    sizes.forward_kept_bytes = 1 + plan_sample_number(seed, &kept_counter, 100000);
    sizes.backward_kept_bytes = 1 + plan_sample_number(seed, &kept_counter, 200000);
    s->request.kept_units = (int32_t)plan_sample_number(seed, &kept_counter, unit_count + 2) - 1;
    uint64_t uses_counter = 93000, shares_counter = 99000;
    sizes.pairs = plan_sample_number(seed, &uses_counter, 4) == 0;
    sizes.shares = plan_sample_number(seed, &uses_counter, 5) == 0;
    const uint64_t stages = plan_sample_number(seed, &shares_counter, 3);
    sizes.in_turn = sizes.shares && stages > 0;
    sizes.shares *= sizes.in_turn ? (uint32_t)stages : 1;
    uint64_t chains_counter = 97000, adapts_counter = 96000;
    sizes.adapts = unit_count > 3 && plan_sample_number(seed, &adapts_counter, 4) == 0;
    sizes.chains = plan_sample_number(seed, &chains_counter, 4) == 0;
    const uint64_t frozen = plan_sample_number(seed, &uses_counter, UINT64_C(1) << 24);
    const uint64_t how = plan_sample_number(seed, &uses_counter, 6); /* the first units, or any */
    const uint64_t first = (UINT64_C(1) << plan_sample_number(seed, &uses_counter, unit_count)) - 1;
    sizes.frozen = how == 0 ? frozen : how == 1 ? first : 0;
    sizes.frozen &= ~(UINT64_C(1) << (unit_count - 1 - plan_sample_number(seed, &uses_counter, unit_count)));
    plan_model_make(&s->model, s->elems, unit_count, &sizes, model);
    if (is_varied(seed)) {
        plan_model_vary(&s->model, model, s->elems, seed);
    }
    draw_reports(s, seed);
    draw_routes(s, seed);
    static const enum ox_compute_dtype dtypes[] = {OX_COMPUTE_BF16, OX_COMPUTE_FP32, OX_COMPUTE_BF16, OX_COMPUTE_FP16};
    const enum ox_compute_dtype dtype = dtypes[plan_sample_number(seed, counter, 4)];
    model->grad_bf16 = plan_sample_number(seed, counter, 2);
    const bool on_cpu = dtype == OX_COMPUTE_FP32 || plan_sample_number(seed, counter, 2);
    model->precision = ox_precision_of(dtype, on_cpu);
}

/* Draws state sizes: those of the real formats, and others that no format has; a lo that travels has 2 bytes. */
static struct ox_state_sizes draw_sizes(const struct plan_sample *s, uint64_t seed, uint64_t *counter) {
    static const struct ox_state_sizes known[] = {
        {4096, 16384}, {4096, 8192}, {4096, 4096}, {2048, 4160}, {2048, 2080}};
    enum { KNOWN = sizeof known / sizeof *known };
    const uint64_t nth = plan_sample_number(seed, counter, KNOWN + 2);
    struct ox_state_sizes sizes = nth < KNOWN
                                      ? known[nth]
                                      : (struct ox_state_sizes){1 + (uint32_t)plan_sample_number(seed, counter, 9000),
                                                                1 + (uint32_t)plan_sample_number(seed, counter, 20000)};
    if (s->in.model.precision->lo_travels) {
        sizes.lo_per_group = OX_LO_BYTES * OX_GROUP_ELEMS;
    }
    return sizes;
}

static void draw_machine(struct ox_machine *machine, uint64_t seed) {
    uint64_t counter = 70000;
    ox_machine_nominal(1 + (uint32_t)plan_sample_number(seed, &counter, 32), machine);
    machine->has_gpu = plan_sample_number(seed, &counter, 2);
    machine->gpu = (struct ox_machine_gpu){.bf16_flops = 1e14, .fp32_flops = 2e13, .h2d_rate = 2e10, .d2h_rate = 3e10,
                                           .duplex_rate = 2e10 + 1e9 * (double)plan_sample_number(seed, &counter, 30)};
    machine->drives[0].read_rate *= 0.1 * (double)(1 + plan_sample_number(seed, &counter, 100));
    machine->drives[0].mix_rate *= 0.1 * (double)(1 + plan_sample_number(seed, &counter, 20));
}

/* Some states live on the device. */
static void draw_device_units(struct plan_sample *s, uint64_t seed) {
    uint64_t counter = 80000;
    const uint64_t nth = plan_sample_number(seed, &counter, 4);
    if (s->in.budget.unified) {
        return;
    }
    s->in.budget.device_bytes *= 1 + nth;
    if (nth == 1) {
        s->request.state_tier = OX_TIER_DEVICE;
    } else if (nth == 2) {
        s->request.device_units = 1 + (uint32_t)plan_sample_number(seed, &counter, s->in.model.unit_count);
        s->request.device_first = plan_sample_number(seed, &counter, 2);
    }
}

/* Every third store has one generation. */
static void draw_generations(struct plan_sample *s, uint64_t seed) {
    uint64_t counter = 95000;
    s->in.budget.generations = plan_sample_number(seed, &counter, 3) == 0 ? 1 : 2;
    if (s->request.device_units > 0) { /* which are committed between steps, that updates in backward may need */
        s->in.budget.generations = 3;
    }
}

/* In two of three steps gradients are summed in several groups. */
static void draw_sum_groups(struct plan_sample *s, uint64_t seed) {
    uint64_t counter = 99000;
    s->in.ranks.sum_groups = 1;
    if (plan_sample_number(seed, &counter, 3) > 0) {
        s->in.ranks.sum_groups += (uint32_t)plan_sample_number(seed, &counter, s->in.model.micro_batches);
    }
}

static void draw_updates(struct plan_sample *s, uint64_t seed) {
    uint64_t counter = 97000;
    s->request.saves_replaced = (int32_t)plan_sample_number(seed, &counter, 3) - 1;
    s->request.device_sums = (int32_t)plan_sample_number(seed, &counter, 3) - 1;
    s->request.speculative_spread = (int32_t)plan_sample_number(seed, &counter, 3) - 1;
    s->request.grads_alternate = (int32_t)plan_sample_number(seed, &counter, 3) - 1;
    s->request.weights_ahead = (int32_t)plan_sample_number(seed, &counter, 3) - 1;
}

/* Two thirds of the units that may be narrow are: blocks alone use them, they have no lo, chunks are whole pages. */
static void narrow_some(const struct ox_plan_model *model, struct ox_shard_table *table, uint32_t unit_idx,
                        bool with_lo) {
    bool of_blocks = true;
    for (uint32_t i = 0; i < model->stage_count; i++) {
        for (uint32_t nth = 0; nth < model->stages[i].unit_count; nth++) {
            of_blocks &= model->stages[i].units[nth].unit_idx != unit_idx || model->stages[i].kind == OX_PLAN_BLOCK;
        }
    }
    const struct ox_shard *const shard = &table->shards[unit_idx];
    const uint32_t bytes = unit_idx % 2 == 0 ? 2176 : 2048; /* of a group: that of eight-bit weights; half of hi */
    const bool pages = shard->chunk_count == 1 || shard->chunk_elems / OX_GROUP_ELEMS * bytes % OX_IO_ALIGN_BYTES == 0;
    if (of_blocks && !with_lo && pages && unit_idx % 3 != 2) {
        REQUIRE_OK(ox_shard_narrow(table, unit_idx, bytes));
    }
}

void plan_sample_fix(const struct ox_plan_model *model, struct ox_shard_table *table, bool with_lo) {
    for (uint32_t i = 0; i < model->unit_count; i++) {
        if (!model->units[i].trained) {
            ox_shard_fix(table, i, with_lo ? OX_LO_BYTES * OX_GROUP_ELEMS : 0);
            narrow_some(model, table, i, with_lo);
        }
    }
}

void plan_sample_draw(struct plan_sample *s, uint64_t seed) {
    uint64_t counter = 0;
    memset(s, 0, sizeof *s);
    draw_machine(&s->machine, seed);
    s->setup = (struct ox_sim_setup){.machine = &s->machine, .run_ahead_tasks = 64};
    draw_model(s, seed, &counter);
    uint64_t total = 0;
    for (uint32_t i = 0; i < s->in.model.unit_count; i++) {
        total += s->elems[i] * 16;
    }
    struct ox_plan_budget *const budget = &s->in.budget;
    budget->unified = plan_sample_number(seed, &counter, 2);
    budget->host_bytes = 500000 + plan_sample_number(seed, &counter, 2 * total);
    budget->device_bytes = budget->unified ? 0 : 500000 + plan_sample_number(seed, &counter, 2 * total);
    budget->nvme_bytes = plan_sample_number(seed, &counter, 4) ? 200 * total : 0;
    s->request = (struct ox_placement_request){
        .kept_units = s->request.kept_units, .prefetch_depth = -1, .act_tier = OX_TIER_COUNT,
        .weights_tier = OX_TIER_COUNT, .state_tier = OX_TIER_COUNT, .grad_tier = OX_TIER_COUNT,
        .rough = !test_all()};
    if (plan_sample_number(seed, &counter, 3) == 0) {
        s->request.tiles = 1 + (uint32_t)plan_sample_number(seed, &counter, s->in.model.micro_batches);
        s->request.prefetch_depth = (int32_t)plan_sample_number(seed, &counter, 5);
    }
    s->request.overlap = (int32_t)plan_sample_number(seed, &counter, 3) - 1;
    s->request.speculative_units = (int32_t)plan_sample_number(seed, &counter, s->in.model.unit_count + 2) - 1;
    draw_device_units(s, seed);
    draw_updates(s, seed);
    draw_generations(s, seed);
    draw_sum_groups(s, seed);
    if (s->in.model.pooled_doubles > 0) {
        s->request.tiles = (uint32_t)ox_min_u64(s->request.tiles, 1);
    }
    const uint64_t chunk = OX_GROUP_ELEMS * (1 + plan_sample_number(seed, &counter, 16));
    REQUIRE_OK(ox_shard_table_open(s->elems, s->in.model.unit_count, chunk, draw_sizes(s, seed, &counter), &s->table));
    plan_sample_fix(&s->in.model, &s->table, seed % 2 == 0);
}

struct ox_plan_ranks plan_sample_ranks(uint64_t seed) {
    uint64_t counter = 98000;
    struct ox_plan_ranks ranks = {.count = 2 + (uint32_t)plan_sample_number(seed, &counter, 7)};
    ranks.sum_groups = ranks.count + (uint32_t)plan_sample_number(seed, &counter, 9);
    ranks.micro_batches = ranks.sum_groups + (uint32_t)plan_sample_number(seed, &counter, 9);
    ranks.sharding = (enum ox_sharding)plan_sample_number(seed, &counter, OX_SHARDING_COUNT);
    ranks.library_sums = plan_sample_number(seed, &counter, 4) == 0;
    ranks.sum_groups = ranks.library_sums ? ranks.count : ranks.sum_groups;
    const uint32_t copies = 1 + (uint32_t)plan_sample_number(seed, &counter, ranks.count);
    ranks.copies = ranks.count % copies == 0 && !ranks.library_sums ? copies : 0;
    ranks.exchange = (enum ox_exchange_dtype)plan_sample_number(seed, &counter, 2 * OX_EXCHANGE_COUNT);
    ranks.exchange = ranks.library_sums || ranks.exchange >= OX_EXCHANGE_COUNT ? OX_EXCHANGE_FP32 : ranks.exchange;
    return ranks;
}

const struct ox_low_rank *plan_sample_low_rank(struct plan_sample *s, const struct ox_plan_ranks *ranks,
                                               uint64_t seed) {
    uint64_t counter = 99000;
    uint32_t count = 0;
    const bool may = !ranks->library_sums && ranks->exchange == OX_EXCHANGE_FP32 && !s->in.model.eval_only;
    if (!may || plan_sample_number(seed, &counter, 2) == 0) {
        return NULL;
    }
    for (uint32_t i = 0; i < s->in.model.unit_count; i++) {
        uint64_t first = plan_sample_number(seed, &counter, 3000), left = s->in.model.units[i].elem_count;
        for (int k = 0; k < 2 && first < left; k++) {
            const uint64_t cols = 1 + plan_sample_number(seed, &counter, 400);
            const uint64_t rows = ox_min_u64(1 + plan_sample_number(seed, &counter, 400), (left - first) / cols);
            if (rows > 0) {
                s->matrices[count++] =
                    (struct ox_low_rank_matrix){.first = first, .rows = (uint32_t)rows, .cols = (uint32_t)cols};
                first += rows * cols + plan_sample_number(seed, &counter, 100);
            }
        }
        s->matrices_of[i + 1] = count;
    }
    s->low_rank = (struct ox_low_rank){.rank = 1 + (uint32_t)plan_sample_number(seed, &counter, 6),
                                       .min_rate = plan_sample_even(seed, &counter, 0.5, 4),
                                       .matrices = s->matrices, .first_of = s->matrices_of};
    return &s->low_rank;
}

void plan_sample_divide(struct plan_sample *s, uint64_t seed) {
    s->in.ranks = plan_sample_ranks(seed);
    const struct ox_sums sums = ox_plan_sums(&s->in);
    s->in.model.micro_batches = ox_sums_count(&sums);
    s->request.tiles = (uint32_t)ox_min_u64(s->request.tiles, ox_plan_tiles_max(&s->in));
    struct ox_shard_table whole = s->table;
    REQUIRE_OK(ox_plan_table_open(&whole, &s->in.ranks, &s->table));
    ox_shard_table_close(&whole);
}
