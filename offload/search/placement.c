/* The entry point of the search, which engine/step calls: it chooses tiles, prefetch depth, the home of activation
 * checkpoints, how the optimizer overlaps, and the homes of every unit's planes. placement_fill.c decides what fits,
 * placement_search.c what is fastest. This file returns the proven plans of the choice, or a refusal that names the
 * nearest budget that fits. */
#include "offload/search/placement_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "offload/proof/proof.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- refusals ----------------------------------------------------------------------------------- */

enum { FIX_TEXT_BYTES = 600 };

/* Allowances with which the drives would hold the plan that is refused. */
struct enough_drives {
    uint64_t bytes[OX_STORE_DRIVES_MAX];
    uint32_t count, largest;
    bool each; /* all drives get the same new allowance */
};

static uint64_t whole_mib(uint64_t bytes) {
    return ox_align_up(bytes, OX_MIB);
}

/* Checks whether the plan fits with these allowances; the budget is left unchanged. */
static enum ox_status hold_with(struct ox_search *s, const struct enough_drives *drives) {
    struct ox_plan_budget *const budget = &s->in->budget;
    const uint64_t *const given = budget->drive_bytes;
    budget->drive_bytes = drives->bytes;
    const enum ox_status status = ox_search_check_drives(s);
    budget->drive_bytes = given;
    return status;
}

static void begin_drives(const struct ox_search *s, struct enough_drives *drives) {
    const struct ox_plan_budget *const budget = &s->in->budget;
    const uint64_t fixed = ox_store_fixed_bytes(2 * s->table->chunk_count);
    uint32_t small_count = 0;
    *drives = (struct enough_drives){.count = budget->drive_count};
    for (uint32_t i = 0; i < drives->count; i++) {
        const bool small = budget->drive_bytes[i] < fixed;
        drives->bytes[i] = small ? whole_mib(fixed) : budget->drive_bytes[i];
        drives->largest = drives->bytes[i] > drives->bytes[drives->largest] ? i : drives->largest;
        small_count += small;
    }
    drives->each = small_count > 1;
}

/* Gives the largest drive what is missing, as little as whole extents allow; or enlarges all drives alike if several
 * cannot even hold the store's tables. */
static enum ox_status enlarge_drives(struct ox_search *s, struct enough_drives *drives) {
    begin_drives(s, drives);
    const uint64_t need = ox_search_need(s, OX_TIER_NVME);
    uint64_t have = 0;
    for (uint32_t i = 0; i < drives->count; i++) {
        drives->bytes[i] = drives->each ? whole_mib(drives->bytes[drives->largest]) : drives->bytes[i];
        have += drives->bytes[i];
    }
    uint64_t more = need > have ? need - have : 0;
    enum ox_status status = more > 0 ? OX_E_CONFIG : hold_with(s, drives);
    for (uint64_t step = OX_MIB; status == OX_E_CONFIG; step *= 2) {
        for (uint32_t i = 0; i < drives->count; i++) {
            if (drives->each || i == drives->largest) {
                drives->bytes[i] = whole_mib(drives->bytes[i] + more);
            }
        }
        status = hold_with(s, drives);
        more = step;
    }
    return status;
}

static void name_drives(const struct ox_search *s, const struct enough_drives *drives, char *text) {
    const uint64_t *const given = s->in->budget.drive_bytes;
    const uint64_t ranks = ox_plan_rank_count(s->in); /* which share a drive */
    char size[OX_SIZE_TEXT_BYTES];
    size_t used = 0;
    text[0] = '\0';
    const char *const *const paths = s->in->budget.drive_paths;
    if (drives->each && paths == NULL) {
        snprintf(text, FIX_TEXT_BYTES, " --nvme PATH:%s (each of %u drives)",
                 ox_size_flag_text(ranks * drives->bytes[0], size), drives->count);
        return;
    }
    for (uint32_t i = 0; i < drives->count && used < FIX_TEXT_BYTES; i++) {
        if (drives->bytes[i] != given[i] && paths != NULL) {
            used += (size_t)snprintf(text + used, FIX_TEXT_BYTES - used, " --nvme %s:%s", paths[i],
                                     ox_size_flag_text(ranks * drives->bytes[i], size));
        } else if (drives->bytes[i] != given[i]) {
            used += (size_t)snprintf(text + used, FIX_TEXT_BYTES - used, " --nvme PATH:%s (drive %u of %u)",
                                     ox_size_flag_text(ranks * drives->bytes[i], size), i + 1, drives->count);
        }
    }
}

/* Writes the allowances that the drives need as options into `text`; leaves it empty if the drives suffice. */
static enum ox_status fix_drives(struct ox_search *s, uint64_t named, char *text) {
    text[0] = '\0';
    const struct ox_plan_budget *const budget = &s->in->budget;
    if (budget->nvme_bytes == 0) {
        return OX_OK;
    }
    if (budget->drive_bytes == NULL && named <= budget->nvme_bytes) {
        return OX_OK;
    }
    if (budget->drive_bytes == NULL) {
        const uint64_t bytes = ox_plan_rank_count(s->in) * named;
        char size[OX_SIZE_TEXT_BYTES];
        snprintf(text, FIX_TEXT_BYTES, " --nvme PATH:%s (all drives together)", ox_size_flag_text(bytes, size));
        return OX_OK;
    }
    struct enough_drives drives;
    const bool one = budget->drive_count == 1 && named > budget->nvme_bytes;
    const enum ox_status status = one ? OX_OK : enlarge_drives(s, &drives);
    if (one) {
        drives = (struct enough_drives){.bytes = {named}, .count = 1};
    }
    name_drives(s, &drives, text);
    return status;
}

struct refusal {
    char need[OX_TIER_COUNT][OX_SIZE_TEXT_BYTES], have[OX_TIER_COUNT][OX_SIZE_TEXT_BYTES];
    char device[80], device_fix[64], host_fix[64], nvme[160], nvme_fix[FIX_TEXT_BYTES];
};

/* What the largest of the plans that are handed out takes, as the ledger shows it. A search looks for offsets less hard
 * than a plan that is completed, so that this may be below what it found, and even fit: then that is told. */
static uint64_t ledger_need(const struct ox_search *s, enum ox_tier tier) {
    const uint64_t found = ox_search_need(s, tier), budget = ox_search_budget(s, tier);
    uint64_t need = ox_max_u64(s->plans.train->peak_bytes[tier], s->plans.eval->peak_bytes[tier]);
    need = ox_search_overlaps(s) ? ox_max_u64(need, s->plans.eval_after_step->peak_bytes[tier]) : need;
    return found > budget && need <= budget ? found : need;
}

/* Writes what a tier needs and has; and, if that is too little, the option with what is enough. */
static void weigh(const struct ox_search *s, enum ox_tier tier, const char *flag, uint64_t named, struct refusal *r,
                  char fix[64]) {
    /* Options give each rank a device, and all of them together host memory and drives. */
    const uint64_t ranks = tier == OX_TIER_DEVICE ? 1 : ox_plan_rank_count(s->in);
    const uint64_t have = ranks * ox_search_budget(s, tier);
    const uint64_t beside = tier == OX_TIER_DEVICE ? whole_mib(s->in->budget.device_beside_bytes) : 0;
    char size[OX_SIZE_TEXT_BYTES];
    ox_size_text(ranks * ledger_need(s, tier), r->need[tier]);
    ox_size_text(have, r->have[tier]);
    if (ranks * named > have && fix != NULL) {
        snprintf(fix, 64, " %s %s", flag, ox_size_flag_text(whole_mib(ranks * named) + beside, size));
    }
}

/* The error names only what must change, as options that can be pasted. */
static enum ox_status tell(struct ox_search *s, const uint64_t named[OX_TIER_COUNT], struct refusal *r) {
    weigh(s, OX_TIER_HOST, "--host-mem", named[OX_TIER_HOST], r, r->host_fix);
    weigh(s, OX_TIER_NVME, "--nvme", 0, r, NULL);
    if (!s->in->budget.unified) {
        weigh(s, OX_TIER_DEVICE, "--device-mem", named[OX_TIER_DEVICE], r, r->device_fix);
        snprintf(r->device, sizeof r->device, "device %s of %s, ", r->need[OX_TIER_DEVICE], r->have[OX_TIER_DEVICE]);
    }
    /* Advice to add a drive does not help an evaluation: the drive would have to be filled first. */
    const bool store = s->in->budget.nvme_bytes > 0, may_add = !store && !s->in->model.eval_only;
    if (store) {
        const bool parts = ox_search_over_all(s) == 0;
        snprintf(r->nvme, sizeof r->nvme, ", nvme %s of %s%s", r->need[OX_TIER_NVME], r->have[OX_TIER_NVME],
                 parts ? ", which the drives do not hold in whole extents" : "");
    }
    const enum ox_status status = fix_drives(s, named[OX_TIER_NVME], r->nvme_fix);
    return status != OX_OK ? status
                           : ox_fail(OX_E_CONFIG, "does not fit: the smallest plan needs %shost %s of %s%s; nearest "
                                     "that fits:%s%s%s%s", r->device, r->need[OX_TIER_HOST], r->have[OX_TIER_HOST],
                                     r->nvme, r->device_fix, r->host_fix, r->nvme_fix,
                                     may_add ? ", or give a drive with --nvme PATH:SIZE" : "");
}

/* What must be had of each tier, in whole MiB: of a drive alone with room for whole extents. */
static enum ox_status name_needs(struct ox_search *s, uint64_t named[OX_TIER_COUNT]) {
    const struct ox_plan_budget *const budget = &s->in->budget;
    for (int tier = 0; tier < OX_TIER_COUNT; tier++) {
        named[tier] = whole_mib(ox_search_need(s, (enum ox_tier)tier));
    }
    if (budget->nvme_bytes == 0 || budget->drive_bytes == NULL || budget->drive_count != 1) {
        return OX_OK;
    }
    struct enough_drives drives;
    const enum ox_status status = enlarge_drives(s, &drives);
    named[OX_TIER_NVME] = drives.bytes[0];
    return status;
}

static enum ox_status refuse(struct ox_search *s) {
    uint64_t named[OX_TIER_COUNT];
    s->in->placement = s->nearest;
    if (s->request->may_keep_three) {
        s->in->budget.generations = 2;
    }
    s->with_eval = true;
    ox_search_farthest_homes(s, ox_search_requested_device_units(s), s->request->device_first);
    ox_search_build(s);
    OX_TRY(name_needs(s, named));
    if (!s->request->rough) {
        OX_TRY(ox_search_tighten(s, named));
    }
    /* The caller gets the plans that do not fit, so that it can show where the bytes go: all of them, because the
     * refusal speaks of the largest, which may be one of evaluation. */
    OX_ASSERT(ox_search_plan(s, OX_PLAN_TRAIN) == s->plans.train && ox_search_plan(s, OX_PLAN_EVAL) == s->plans.eval);
    OX_ASSERT(!ox_search_overlaps(s) || ox_search_plan(s, OX_PLAN_EVAL_AFTER_STEP) == s->plans.eval_after_step);
    struct refusal refusal = {.device = ""};
    return tell(s, named, &refusal);
}

/* ---- choosing ----------------------------------------------------------------------------------- */

/* An update runs where its state lives, so state on the device needs weights and gradients there too. */
static enum ox_status check_device_request(const struct ox_search *s) {
    const struct ox_placement_request *const request = s->request;
    const char *const asked = request->device_units > 0 ? "--device-state-units" : "--state-tier device";
    if (request->state_tier != OX_TIER_DEVICE && request->grad_tier == OX_TIER_DEVICE) {
        return ox_fail(OX_E_CONFIG, "--grads-tier device: a finished gradient stays on the device only for an "
                       "optimizer that runs there; add --state-tier device, or use host or nvme");
    }
    if (request->state_tier != OX_TIER_DEVICE && request->device_units == 0) {
        return OX_OK;
    }
    const uint32_t generations = ox_plan_generations(&s->in->budget);
    const bool store = s->in->budget.nvme_bytes > 0, all = request->state_tier == OX_TIER_DEVICE;
    const bool speculates = ox_request_speculates(request) && request->saves_replaced != 1;
    const bool in_host = request->state_tier == OX_TIER_HOST && request->weights_tier < OX_TIER_NVME;
    if (store && !all && generations < (speculates ? 3u : in_host ? 1u : 2u)) {
        return ox_fail(OX_E_CONFIG, "%s: state on the device is committed between steps, and what the drives have of "
                       "a step before that needs %s there; add --store-generations %d, or leave it out", asked,
                       speculates ? "a second slot, and for updates in backward a third," : "a second slot",
                       speculates ? 3 : 2);
    }
    if (request->state_tier != OX_TIER_DEVICE) {
        return OX_OK;
    }
    if ((request->weights_tier != OX_TIER_COUNT && request->weights_tier != OX_TIER_DEVICE) ||
        (request->grad_tier != OX_TIER_COUNT && request->grad_tier != OX_TIER_DEVICE)) {
        return ox_fail(OX_E_CONFIG, "--state-tier device: the optimizer then runs on the device, where weights and "
                       "gradients must live too; leave out --weights-tier and --grads-tier, or give device");
    }
    return OX_OK;
}

static enum ox_status check_request(const struct ox_search *s) {
    const struct ox_placement_request *const request = s->request;
    if (request->tiles > 1 && s->in->model.pooled_doubles > 0) {
        return ox_fail(OX_E_CONFIG, "--tiles %u: a loss of routers is one of the whole step, so no backward begins "
                       "before all its micro-batches have passed forward; use --tiles 1, or no --router-aux-loss-coef "
                       "and --router-z-loss-coef", request->tiles);
    }
    if (request->tiles > ox_plan_tiles_max(s->in)) {
        return ox_fail(OX_E_CONFIG, "--tiles %u: %s only %u micro-batch%s per step (--gradient-accumulation-steps); "
                       "give at most that", request->tiles, ox_plan_rank_count(s->in) > 1 ? "a rank has" : "a step has",
                       ox_plan_tiles_max(s->in), ox_plural_es(ox_plan_tiles_max(s->in)));
    }
    const bool asks_nvme = request->act_tier == OX_TIER_NVME || request->weights_tier == OX_TIER_NVME ||
                           request->state_tier == OX_TIER_NVME || request->grad_tier == OX_TIER_NVME;
    if (asks_nvme && s->in->budget.nvme_bytes == 0) {
        return ox_fail(OX_E_CONFIG, "a tier option asks for nvme, but no drive is given; add --nvme PATH:SIZE");
    }
    if (s->in->budget.unified && request->device_units > 0 && !s->in->model.eval_only) {
        return ox_fail(OX_E_CONFIG, "--device-state-units %u: host memory is device memory here, for all units alike; "
                       "add --device-mem SIZE, or leave it out", request->device_units);
    }
    return s->in->budget.unified ? OX_OK : check_device_request(s);
}

/* Proves each plan by itself, and that training leaves what the evaluation plans expect to find. */
static enum ox_status check_plans(struct ox_search *s) {
    static const enum ox_plan_kind evals[] = {OX_PLAN_EVAL, OX_PLAN_EVAL_AFTER_STEP};
    const struct ox_plan *const train = ox_search_plan(s, OX_PLAN_TRAIN);
    enum ox_status status = ox_proof_check(train, s->in);
    for (uint32_t i = 0; i < (ox_search_overlaps(s) ? 2 : 1) && status == OX_OK; i++) {
        const struct ox_plan *const eval = ox_search_plan(s, evals[i]);
        status = ox_proof_check(eval, s->in);
        status = status == OX_OK ? ox_proof_check_pair(train, eval) : status;
    }
    return status;
}

static enum ox_status choose(struct ox_search *s) {
    enum ox_status status = check_request(s);
    if (status != OX_OK) {
        return status;
    }
    if (s->request->rough && ox_search_cannot_fit(s)) { /* nobody reads what would fit */
        return ox_fail(OX_E_CONFIG, "does not fit: the state of all units is more than the memory there is");
    }
    ox_search_run(s);
    if (!s->best.fits) {
        return refuse(s);
    }
    if (s->request->found != NULL && s->request->found->seconds == 0) {
        *s->request->found = (struct ox_found){.candidate = s->best.made, .seconds = s->best.seconds};
    }
    s->in->placement = s->best.made.placement;
    if (s->best.made.generations > 0) {
        s->in->budget.generations = s->best.made.generations;
    }
    s->with_eval = true;
    for (uint32_t i = 0; i < s->table->unit_count; i++) {
        s->table->shards[i].homes = s->best_homes[i];
    }
    ox_search_build(s);
    return check_plans(s);
}

static enum ox_status open_search(struct ox_search *s) {
    const struct ox_shard_table *const table = s->table;
    s->homes = calloc(2 * (size_t)table->unit_count, sizeof *s->homes);
    s->extents = calloc(2 * (size_t)table->chunk_count + s->in->model.grad_count, sizeof *s->extents);
    if (s->homes == NULL || s->extents == NULL) {
        return ox_fail(OX_E_NOMEM, "planner: no memory for %u units", table->unit_count);
    }
    s->best_homes = s->homes + table->unit_count;
    enum ox_status status = ox_plan_open(s->in, &s->plans.train);
    OX_THEN(status, ox_plan_open(s->in, &s->plans.eval));
    if (status == OX_OK && !s->in->model.eval_only) {
        status = ox_plan_open(s->in, &s->plans.eval_after_step);
    }
    OX_THEN(status, ox_built_open(table->unit_count, &s->built));
    OX_THEN(status, ox_sim_open(s->plans.train->task_cap, &s->sim));
    s->works = status == OX_OK ? calloc(s->plans.train->task_cap, sizeof *s->works) : NULL;
    return status != OX_OK || s->works != NULL ? status
                                               : ox_fail(OX_E_NOMEM, "planner: no memory for the times of tasks");
}

static void hand_out(struct ox_search *s, struct ox_plans *out) {
    struct ox_plans *const plans = &s->plans;
    out->spare_host = s->best.fits && !s->host_short;
    ox_plan_shrink(&plans->train);
    out->train = plans->train;
    plans->train = NULL;
    ox_plan_shrink(&plans->eval);
    out->eval = plans->eval;
    plans->eval = NULL;
    if (ox_search_overlaps(s)) {
        ox_plan_shrink(&plans->eval_after_step);
        out->eval_after_step = plans->eval_after_step;
        plans->eval_after_step = NULL;
    }
}

enum ox_status ox_placement_choose(struct ox_plan_input *input, struct ox_shard_table *table,
                                   const struct ox_placement_request *request, const struct ox_sim_setup *setup,
                                   struct ox_plans *out) {
    *out = (struct ox_plans){0};
    struct ox_search *const s = calloc(1, sizeof *s);
    if (s == NULL) {
        return ox_fail(OX_E_NOMEM, "planner: no memory");
    }
    *s = (struct ox_search){.in = input, .table = table, .request = request, .setup = *setup,
                            .nearest_short = UINT64_MAX};
    s->setup.input = input;
    input->table = table;
    enum ox_status status = open_search(s);
    if (status == OX_OK) {
        status = choose(s);
        hand_out(s, out);
    }
    ox_sim_close(&s->sim);
    ox_built_close(&s->built);
    ox_plans_close(&s->plans);
    free(s->works);
    free(s->extents);
    free(s->homes);
    free(s);
    return status;
}
