/* Chooses tiles, prefetch depth, the home of checkpoints and the homes of every unit's planes.
 *
 * A candidate is first built with every plane in its farthest home; what remains of a budget is then given to
 * planes by transfers saved per byte: weights (two reads per tile), gradients (a write and a read), state (a
 * read). Candidates are compared by their links' bytes over nominal rates; only the order of candidates
 * depends on these rates, never whether one fits. */
#include "offload/plan.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes per second; a desktop with one PCIe 4 drive and a PCIe 4 x16 GPU. */
static const double nominal_rate[OX_LINK_COUNT] = {
    [OX_LINK_NVME_READ] = 5e9, [OX_LINK_NVME_WRITE] = 3e9, [OX_LINK_H2D] = 25e9, [OX_LINK_D2H] = 25e9};

/* Up to here every number of tiles is tried. Beyond, the tasks of many tiles take long to plan, and a series of ever
 * more tiles ends where doubling them, with all it lets come home and all it repeats, has twice not paid. */
enum { MICRO_BATCHES_ALL_TRIED = 64 };
/* Chunks in flight in the optimizer's stream: so many that a drive is busy while others are checked and updated. */
enum { SLOTS_DEEP = 8, SLOTS_SHALLOW = 3 };

/* Candidates that differ in tiles alone. */
struct series {
    double cost; /* of the last one that fits */
    bool found;
    uint32_t worse_count; /* in a row */
};

struct search {
    struct series series[OX_TIER_COUNT][3]; /* by home of checkpoints and prefetch depth */
    struct ox_plan_input *in;
    struct ox_shard_table *table;
    const struct ox_placement_wish *wish;
    struct ox_plan *train, *eval;
    struct ox_extent_spec *extents;      /* of the store, when the drives' allowances are known */
    struct ox_homes *homes, *best_homes; /* per unit */
    struct ox_placement best, nearest;
    double best_cost;
    uint64_t nearest_short; /* bytes over budget, all tiers together */
    bool found;
};

static enum ox_tier wished(enum ox_tier tier, bool unified) {
    return unified && tier == OX_TIER_DEVICE ? OX_TIER_HOST : tier;
}

/* The farthest home each plane may have. */
static void farthest_homes(struct search *s) {
    const bool unified = s->in->budget.unified;
    const enum ox_tier far = s->in->budget.nvme_bytes > 0 ? OX_TIER_NVME : OX_TIER_HOST;
    for (uint32_t i = 0; i < s->table->unit_count; i++) {
        struct ox_homes *const homes = &s->table->shards[i].homes;
        homes->weights = s->wish->weights_tier < OX_TIER_COUNT ? wished(s->wish->weights_tier, unified) : far;
        homes->state = s->wish->state_tier < OX_TIER_COUNT ? wished(s->wish->state_tier, unified) : far;
        homes->grad = s->wish->grad_tier < OX_TIER_COUNT ? wished(s->wish->grad_tier, unified) : far;
    }
}

static void build(struct search *s) {
    ox_plan_build(s->train, s->in, s->in->model.eval_only ? OX_PLAN_EVAL : OX_PLAN_TRAIN);
    ox_plan_build(s->eval, s->in, OX_PLAN_EVAL);
}

static uint64_t need(const struct search *s, enum ox_tier tier) {
    return ox_max_u64(s->train->peak_bytes[tier], s->eval->peak_bytes[tier]);
}

static uint64_t budget(const struct search *s, enum ox_tier tier) {
    const struct ox_plan_budget *const given = &s->in->budget;
    return tier == OX_TIER_DEVICE ? (given->unified ? 0 : given->device_bytes)
           : tier == OX_TIER_HOST ? given->host_bytes : given->nvme_bytes;
}

static uint64_t over(const struct search *s, enum ox_tier tier) {
    return need(s, tier) > budget(s, tier) ? need(s, tier) - budget(s, tier) : 0;
}

static uint64_t over_all(const struct search *s) {
    return over(s, OX_TIER_DEVICE) + over(s, OX_TIER_HOST) + over(s, OX_TIER_NVME);
}

/* ---- filling what remains --------------------------------------------------------------------- */

enum plane { PLANE_WEIGHTS, PLANE_GRAD, PLANE_STATE, PLANE_COUNT };

static enum ox_tier *home_of(struct ox_shard *shard, enum plane plane) {
    return plane == PLANE_WEIGHTS ? &shard->homes.weights
           : plane == PLANE_GRAD  ? &shard->homes.grad : &shard->homes.state;
}

static uint64_t plane_bytes(const struct search *s, uint32_t unit_idx, enum plane plane) {
    const uint64_t elems = s->in->model.unit_elems[unit_idx];
    if (plane == PLANE_GRAD) { /* a tied table holds two */
        return elems * 4 + (unit_idx == 0 ? s->in->model.tied_elems * 4 : 0);
    }
    return plane == PLANE_STATE ? ox_shard_state_bytes(s->table, elems) : ox_plan_weight_bytes(s->in, unit_idx);
}

static bool is_wished(const struct search *s, enum plane plane) {
    const enum ox_tier wish = plane == PLANE_WEIGHTS ? s->wish->weights_tier
                              : plane == PLANE_GRAD  ? s->wish->grad_tier : s->wish->state_tier;
    return wish < OX_TIER_COUNT;
}

/* Moves planes of one sort to `tier` while `left` lasts; returns how many moved. */
static uint32_t fill_plane(struct search *s, enum plane plane, enum ox_tier tier, uint64_t *left) {
    uint32_t moved = 0;
    for (uint32_t i = 0; i < s->table->unit_count && !is_wished(s, plane); i++) {
        enum ox_tier *const home = home_of(&s->table->shards[i], plane);
        const uint64_t bytes = ox_align_up(plane_bytes(s, i, plane), OX_IO_ALIGN_BYTES) + OX_IO_ALIGN_BYTES;
        if (*home > tier && bytes <= *left) { /* tiers are ordered near to far */
            *home = tier;
            *left -= bytes;
            moved++;
        }
    }
    return moved;
}

static void save_homes(struct search *s, struct ox_homes *homes) {
    for (uint32_t i = 0; i < s->table->unit_count; i++) {
        homes[i] = s->table->shards[i].homes;
    }
}

static void load_homes(struct search *s, const struct ox_homes *homes) {
    for (uint32_t i = 0; i < s->table->unit_count; i++) {
        s->table->shards[i].homes = homes[i];
    }
}

/* Gives the rest of a tier to planes. Moving a plane home also removes its transfer buffers, so the rest is measured
 * anew a few times; a packing that comes out worse than counted, or asks for more of another tier than there is, is
 * taken back and tried with less. */
static void fill_tier(struct search *s, enum ox_tier tier) {
    uint64_t share = 1;
    for (int round = 0; round < 6; round++) {
        if (need(s, tier) > budget(s, tier)) {
            return;
        }
        uint64_t left = (budget(s, tier) - need(s, tier)) / share;
        const uint64_t over_before = over_all(s);
        save_homes(s, s->homes);
        uint32_t moved = fill_plane(s, PLANE_WEIGHTS, tier, &left);
        if (tier == OX_TIER_HOST) {
            moved += fill_plane(s, PLANE_GRAD, tier, &left);
            moved += fill_plane(s, PLANE_STATE, tier, &left);
        }
        if (moved == 0) {
            return;
        }
        build(s);
        if (over_all(s) > over_before) {
            load_homes(s, s->homes);
            build(s);
            share *= 2;
        }
    }
}

static double cost(const struct search *s) {
    double seconds = 0;
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        uint64_t bytes = 0;
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            bytes += s->train->traffic[link][kind];
        }
        seconds += (double)bytes / nominal_rate[link];
    }
    /* Transfers that run ahead hide behind work; what does not run ahead is waited for. */
    static const double waiting[] = {1.5, 1.1, 1.0};
    const uint32_t depth = s->in->placement.prefetch_depth;
    /* The optimizer's transfers hide behind compute only where steps overlap. */
    const double overlapping = s->in->placement.overlap ? 1.0 : 1.3;
    return seconds * overlapping * waiting[depth < 2 ? depth : 2] + 1e-6 * s->in->placement.tiles;
}

/* Extents are whole on one drive: what fits in the sum of allowances may not fit in each. */
static enum ox_status check_drives(const struct search *s) {
    const struct ox_plan_budget *const given = &s->in->budget;
    if (given->drive_bytes == NULL || given->nvme_bytes == 0) {
        return OX_OK;
    }
    return ox_store_fits(&(struct ox_store_config){
        .bytes_max = given->drive_bytes,
        .drive_count = given->drive_count,
        .extents = s->extents,
        .extent_count = 2 * s->table->chunk_count,
        .spool_bytes = s->train->spool_bytes,
        .spool_count = s->train->spool_count,
        .generations = ox_plan_generations(given),
    });
}

/* False when it does not fit. */
static bool consider(struct search *s) {
    struct series *const series = &s->series[s->in->placement.act_tier][ox_min_u64(s->in->placement.prefetch_depth, 2)];
    if (series->worse_count >= 2 && s->in->model.micro_batches > MICRO_BATCHES_ALL_TRIED) {
        return true;
    }
    farthest_homes(s);
    build(s);
    if (!s->in->budget.unified) {
        fill_tier(s, OX_TIER_DEVICE);
    }
    fill_tier(s, OX_TIER_HOST);
    /* Short of nothing but a good cut: the nearest of all that do not fit. */
    const uint64_t short_bytes = ox_max_u64(over_all(s), check_drives(s) != OX_OK);
    if (short_bytes > 0) {
        if (short_bytes < s->nearest_short) {
            s->nearest_short = short_bytes;
            s->nearest = s->in->placement;
        }
        return false;
    }
    const double seconds = cost(s);
    series->worse_count = series->found && seconds >= series->cost ? series->worse_count + 1 : 0;
    series->cost = seconds;
    series->found = true;
    if (!s->found || seconds < s->best_cost) {
        s->found = true;
        s->best_cost = seconds;
        s->best = s->in->placement;
        save_homes(s, s->best_homes);
    }
    return true;
}

static bool act_tier_allowed(const struct search *s, enum ox_tier tier) {
    if (s->wish->act_tier < OX_TIER_COUNT) {
        return wished(s->wish->act_tier, s->in->budget.unified) == wished(tier, s->in->budget.unified) &&
               !(s->in->budget.unified && tier == OX_TIER_DEVICE);
    }
    return tier == OX_TIER_NVME ? s->in->budget.nvme_bytes > 0
                                : tier == OX_TIER_HOST || !s->in->budget.unified;
}

/* How many of the last units may be updated in backward: what the update replaces must stay on the drives. Backward is
 * about three quarters of a step's compute, so it takes as much of the optimizer. */
static uint32_t early_units(const struct search *s) {
    const uint32_t unit_count = s->table->unit_count;
    if (s->in->budget.nvme_bytes == 0 || ox_plan_generations(&s->in->budget) < 2) {
        return 0;
    }
    return s->wish->early_units >= 0 ? (uint32_t)ox_min_u64((uint64_t)s->wish->early_units, unit_count)
                                     : unit_count * 3 / 4;
}

/* With overlap where that fits, and with fewer chunks in flight before without. */
static void consider_overlap(struct search *s, struct ox_placement placement) {
    for (int overlap = 1; overlap >= 0; overlap--) {
        const bool refused = s->wish->overlap >= 0 && overlap != s->wish->overlap;
        if (refused || (overlap == 1 && s->in->model.eval_only)) {
            continue;
        }
        placement.overlap = overlap == 1;
        placement.early_units = placement.overlap ? early_units(s) : 0;
        s->in->placement = placement;
        if (consider(s)) {
            return;
        }
        if (placement.stage_slots == SLOTS_DEEP) {
            s->in->placement.stage_slots = SLOTS_SHALLOW;
            if (consider(s)) {
                return;
            }
        }
    }
}

static void consider_tiles(struct search *s, uint32_t tiles) {
    for (int tier = OX_TIER_DEVICE; tier < OX_TIER_COUNT; tier++) {
        if (!act_tier_allowed(s, (enum ox_tier)tier)) {
            continue;
        }
        for (int depth = 2; depth >= 0; depth--) {
            if (s->wish->prefetch_depth >= 0 && depth != 2) {
                break; /* a wished depth is tried once */
            }
            const uint32_t chosen = s->wish->prefetch_depth >= 0 ? (uint32_t)s->wish->prefetch_depth : (uint32_t)depth;
            consider_overlap(s, (struct ox_placement){
                .tiles = tiles,
                .prefetch_depth = chosen,
                .act_tier = (enum ox_tier)tier,
                .stage_slots = chosen < 2 ? chosen + 1 : SLOTS_DEEP,
            });
        }
    }
}

static void consider_all(struct search *s) {
    const uint32_t micro_batches = s->in->model.micro_batches;
    if (s->wish->tiles > 0) {
        consider_tiles(s, s->wish->tiles);
        return;
    }
    for (uint32_t tiles = 1; tiles < micro_batches; tiles *= 2) {
        consider_tiles(s, tiles);
    }
    consider_tiles(s, micro_batches);
}

/* ---- the answer ------------------------------------------------------------------------------- */

static enum ox_status refuse(struct search *s) {
    s->in->placement = s->nearest;
    farthest_homes(s);
    build(s);
    if (over_all(s) == 0) {
        const enum ox_status status = check_drives(s);
        if (status != OX_OK) {
            return status;
        }
    }
    char text[OX_TIER_COUNT][3][OX_SIZE_TEXT_BYTES];
    uint64_t enough_mib[OX_TIER_COUNT];
    for (int tier = 0; tier < OX_TIER_COUNT; tier++) {
        const uint64_t bytes = need(s, (enum ox_tier)tier);
        ox_size_text(bytes, text[tier][0]);
        ox_size_text(budget(s, (enum ox_tier)tier), text[tier][1]);
        enough_mib[tier] = ox_div_up(ox_max_u64(bytes, budget(s, (enum ox_tier)tier)), OX_MIB);
    }
    char device[160] = "", device_fix[64] = "";
    if (!s->in->budget.unified) {
        snprintf(device, sizeof device, "device %s of %s, ", text[OX_TIER_DEVICE][0], text[OX_TIER_DEVICE][1]);
        snprintf(device_fix, sizeof device_fix, "--device-mem %lluMiB ",
                 (unsigned long long)enough_mib[OX_TIER_DEVICE]);
    }
    /* A drive helps no evaluation that has none: it would have to be filled first. */
    const bool store = s->in->budget.nvme_bytes > 0, may_add = !store && !s->in->model.eval_only;
    char nvme[160] = "", nvme_fix[96] = "";
    if (store) {
        snprintf(nvme, sizeof nvme, ", nvme %s of %s", text[OX_TIER_NVME][0], text[OX_TIER_NVME][1]);
        snprintf(nvme_fix, sizeof nvme_fix, " --nvme PATH:%lluMiB (all drives together)",
                 (unsigned long long)enough_mib[OX_TIER_NVME]);
    }
    return ox_fail(OX_E_CONFIG, "does not fit: the smallest plan needs %shost %s of %s%s; nearest that fits: "
                   "%s--host-mem %lluMiB%s%s", device, text[OX_TIER_HOST][0], text[OX_TIER_HOST][1], nvme,
                   device_fix, (unsigned long long)enough_mib[OX_TIER_HOST], nvme_fix,
                   may_add ? ", or give a drive with --nvme PATH:SIZE" : "");
}

static enum ox_status check_wish(const struct search *s) {
    const struct ox_placement_wish *const wish = s->wish;
    if (wish->tiles > s->in->model.micro_batches) {
        return ox_fail(OX_E_CONFIG, "--tiles %u: there are only %u micro-batches per step "
                       "(--gradient-accumulation-steps)", wish->tiles, s->in->model.micro_batches);
    }
    const bool asks_nvme = wish->act_tier == OX_TIER_NVME || wish->weights_tier == OX_TIER_NVME ||
                           wish->state_tier == OX_TIER_NVME || wish->grad_tier == OX_TIER_NVME;
    if (asks_nvme && s->in->budget.nvme_bytes == 0) {
        return ox_fail(OX_E_CONFIG, "a tier option asks for nvme, but no drive is given; add --nvme PATH:SIZE");
    }
    if (!s->in->budget.unified && (wish->state_tier == OX_TIER_DEVICE || wish->grad_tier == OX_TIER_DEVICE)) {
        return ox_fail(OX_E_CONFIG, "--state-tier and --grads-tier: the optimizer runs on the host; use host or nvme");
    }
    return OX_OK;
}

static enum ox_status choose(struct search *s) {
    enum ox_status status = check_wish(s);
    if (status != OX_OK) {
        return status;
    }
    consider_all(s);
    if (!s->found) {
        return refuse(s);
    }
    s->in->placement = s->best;
    load_homes(s, s->best_homes);
    build(s);
    status = ox_plan_check(s->train, s->in);
    return status == OX_OK ? ox_plan_check(s->eval, s->in) : status;
}

enum ox_status ox_placement_choose(struct ox_plan_input *input, struct ox_shard_table *table,
                                   const struct ox_placement_wish *wish, struct ox_plan **train,
                                   struct ox_plan **eval) {
    *train = *eval = NULL;
    struct search s = {.in = input, .table = table, .wish = wish, .nearest_short = UINT64_MAX};
    input->table = table;
    s.homes = calloc(table->unit_count, sizeof *s.homes);
    s.best_homes = calloc(table->unit_count, sizeof *s.best_homes);
    s.extents = calloc(2 * (size_t)table->chunk_count, sizeof *s.extents);
    enum ox_status status = s.homes == NULL || s.best_homes == NULL || s.extents == NULL
                                ? ox_fail(OX_E_NOMEM, "planner: no memory for %u units", table->unit_count)
                                : ox_plan_open(input, &s.train);
    if (status == OX_OK) {
        ox_shard_extents(table, s.extents);
        status = ox_plan_open(input, &s.eval);
    }
    if (status == OX_OK) {
        status = choose(&s);
        ox_plan_shrink(&s.train);
        ox_plan_shrink(&s.eval);
        *train = s.train;
        s.train = NULL;
        if (status == OX_OK) {
            *eval = s.eval;
            s.eval = NULL;
        }
    }
    ox_plan_close(&s.eval);
    ox_plan_close(&s.train);
    free(s.extents);
    free(s.best_homes);
    free(s.homes);
    return status;
}
