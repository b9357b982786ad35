/* Chooses tiles, prefetch depth, the home of checkpoints, how the optimizer overlaps, and the homes of every unit's
 * planes: what fits is placement_fill.c's question, what is fastest placement_search.c's. Here is the answer: the plans
 * of the choice, proven, or a refusal with the nearest budget that does. */
#include "offload/placement_internal.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <stdio.h>
#include <stdlib.h>

static enum ox_status refuse(struct ox_search *s) {
    s->in->placement = s->nearest;
    s->with_eval = true;
    ox_search_farthest_homes(s);
    ox_search_build(s);
    /* It is handed out for its ledger. */
    OX_ASSERT(ox_search_plan(s, OX_PLAN_TRAIN) == s->plans.train);
    if (ox_search_over_all(s) == 0) {
        const enum ox_status status = ox_search_check_drives(s);
        if (status != OX_OK) {
            return status;
        }
    }
    char text[OX_TIER_COUNT][3][OX_SIZE_TEXT_BYTES];
    uint64_t enough_mib[OX_TIER_COUNT];
    for (int tier = 0; tier < OX_TIER_COUNT; tier++) {
        const uint64_t bytes = ox_search_need(s, (enum ox_tier)tier);
        ox_size_text(bytes, text[tier][0]);
        ox_size_text(ox_search_budget(s, (enum ox_tier)tier), text[tier][1]);
        enough_mib[tier] = ox_div_up(ox_max_u64(bytes, ox_search_budget(s, (enum ox_tier)tier)), OX_MIB);
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

static enum ox_status check_wish(const struct ox_search *s) {
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

/* Each by itself, and that what one leaves is what the others find. */
static enum ox_status check_plans(struct ox_search *s) {
    static const enum ox_plan_kind evals[] = {OX_PLAN_EVAL, OX_PLAN_EVAL_AFTER_STEP};
    const struct ox_plan *const train = ox_search_plan(s, OX_PLAN_TRAIN);
    enum ox_status status = ox_plan_check(train, s->in);
    for (uint32_t i = 0; i < (ox_search_overlaps(s) ? 2 : 1) && status == OX_OK; i++) {
        const struct ox_plan *const eval = ox_search_plan(s, evals[i]);
        status = ox_plan_check(eval, s->in);
        status = status == OX_OK ? ox_plan_check_pair(train, eval) : status;
    }
    return status;
}

static enum ox_status choose(struct ox_search *s) {
    enum ox_status status = check_wish(s);
    if (status != OX_OK) {
        return status;
    }
    ox_search_run(s);
    if (!s->best.fits) {
        return refuse(s);
    }
    s->in->placement = s->best.made.placement;
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
    s->extents = calloc(2 * (size_t)table->chunk_count, sizeof *s->extents);
    if (s->homes == NULL || s->extents == NULL) {
        return ox_fail(OX_E_NOMEM, "planner: no memory for %u units", table->unit_count);
    }
    s->best_homes = s->homes + table->unit_count;
    ox_shard_extents(table, s->extents);
    enum ox_status status = ox_plan_open(s->in, &s->plans.train);
    if (status == OX_OK) {
        status = ox_plan_open(s->in, &s->plans.eval);
    }
    if (status == OX_OK && !s->in->model.eval_only) {
        status = ox_plan_open(s->in, &s->plans.eval_after_step);
    }
    if (status == OX_OK) {
        status = ox_built_open(table->unit_count, &s->built);
    }
    return status == OX_OK ? ox_sim_open(s->plans.train->task_cap, &s->sim) : status;
}

static void hand_out(struct ox_search *s, bool fits, struct ox_plans *out) {
    struct ox_plans *const plans = &s->plans;
    ox_plan_shrink(&plans->train);
    out->train = plans->train;
    plans->train = NULL;
    if (!fits) {
        return;
    }
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
                                   const struct ox_placement_wish *wish, const struct ox_sim_setup *setup,
                                   struct ox_plans *out) {
    *out = (struct ox_plans){0};
    struct ox_search *const s = calloc(1, sizeof *s);
    if (s == NULL) {
        return ox_fail(OX_E_NOMEM, "planner: no memory");
    }
    *s = (struct ox_search){.in = input, .table = table, .wish = wish, .setup = *setup, .nearest_short = UINT64_MAX};
    s->setup.input = input;
    input->table = table;
    enum ox_status status = open_search(s);
    if (status == OX_OK) {
        status = choose(s);
        hand_out(s, status == OX_OK, out);
    }
    ox_sim_close(&s->sim);
    ox_built_close(&s->built);
    ox_plans_close(&s->plans);
    free(s->extents);
    free(s->homes);
    free(s);
    return status;
}
