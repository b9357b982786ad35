/* Idle experts and biases of the choice: from the reports of routers to what updates do. */
#include "engine/step/planes/routing.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

/* What is known of an expert after a step, as bits. */
enum { IDLE = 1, UP = 2, DOWN = 4 };

struct ox_routing {
    uint32_t experts, mixtures;
    /* (unit_count): the unit's mixture, and the first of its experts that lies in the unit; UINT32_MAX: none does. */
    uint32_t *mixture_of, *expert_first;
    uint8_t *own, *pending; /* (mixtures, experts): bits of the step that runs, and of one whose update is pending */
};

/* Mixtures and their experts in the order of forward, which is that of the reports. */
static void find_experts(const struct ox_model *model, struct ox_routing *routing) {
    memset(routing->mixture_of, 0xff, model->unit_count * sizeof *routing->mixture_of);
    for (uint32_t i = 0; i < model->stage_count; i++) {
        const uint32_t unit_idx = model->stages[i];
        const struct ox_unit *const unit = &model->units[unit_idx];
        const bool routes = ox_model_stage_has(model, unit, OX_ROLE_ROUTER);
        routing->mixtures += routes;
        const bool has_some = routes || unit->kind == OX_UNIT_EXPERTS;
        for (uint32_t at = unit_idx; has_some && at != OX_NO_UNIT; at = model->units[at].next) {
            routing->mixture_of[at] = routing->mixtures - 1;
            routing->expert_first[at] = model->units[at].expert_first;
        }
    }
}

enum ox_status ox_routing_open(struct ox_rank *rank) {
    const struct ox_engine_config *const config = &rank->config;
    const struct ox_model *const model = config->model;
    if (config->eval_only || (config->router_bias_rate <= 0 && !config->skips_idle)) {
        return OX_OK;
    }
    struct ox_routing *const routing = calloc(1, sizeof *routing);
    rank->routing = routing;
    if (routing != NULL) {
        routing->mixture_of = calloc(model->unit_count, sizeof *routing->mixture_of);
        routing->expert_first = calloc(model->unit_count, sizeof *routing->expert_first);
    }
    if (routing != NULL && routing->mixture_of != NULL && routing->expert_first != NULL) {
        routing->experts = model->config.mixture.router.experts;
        find_experts(model, routing);
        routing->own = calloc((size_t)routing->mixtures * routing->experts + 1, sizeof *routing->own);
        routing->pending = calloc((size_t)routing->mixtures * routing->experts + 1, sizeof *routing->pending);
    }
    return routing != NULL && routing->own != NULL && routing->pending != NULL
               ? OX_OK : ox_fail(OX_E_NOMEM, "engine: no memory for what routers say of experts");
}

void ox_routing_close(struct ox_rank *rank) {
    if (rank->routing != NULL) {
        free(rank->routing->mixture_of);
        free(rank->routing->expert_first);
        free(rank->routing->own);
        free(rank->routing->pending);
        free(rank->routing);
        rank->routing = NULL;
    }
}

/* ---- from reports ---- */

/* Rows are counted, so that sums and comparisons are exact. */
static void decide_mixture(const struct ox_rank *rank, const double *counts, uint8_t *bits) {
    const uint32_t experts = rank->routing->experts;
    double total = 0;
    for (uint32_t e = 0; e < experts; e++) {
        total += counts[e];
    }
    for (uint32_t e = 0; e < experts; e++) {
        const double above = counts[e] * experts - total; /* the even share, times `experts` */
        const bool moves = rank->config.router_bias_rate > 0;
        bits[e] = (uint8_t)((rank->config.skips_idle && counts[e] == 0 ? IDLE : 0) | (moves && above < 0 ? UP : 0) |
                            (moves && above > 0 ? DOWN : 0));
    }
}

void ox_routing_loads(const struct ox_rank *rank, const double *reports, uint32_t first, uint32_t count,
                      double *out) {
    const struct ox_plan_model *const model = &rank->plan->input.model;
    const uint32_t micro_batches = ox_plan_sums(&rank->plan->input).micro_batches;
    const uint64_t stride = ox_plan_report_bytes(model) / sizeof(double);
    const double *const loads = reports + ox_plan_loss_bytes(model) / sizeof(double) + first;
    OX_ASSERT(first <= model->report_doubles && count <= model->report_doubles - first);
    for (uint32_t i = 0; i < count; i++) {
        double sum = 0;
        for (uint32_t mb_idx = 0; mb_idx < micro_batches; mb_idx++) {
            sum += loads[mb_idx * stride + i];
        }
        out[i] = sum;
    }
}

void ox_routing_decide(struct ox_rank *rank, const double *reports) {
    struct ox_routing *const routing = rank->routing;
    if (routing == NULL) {
        return;
    }
    const struct ox_route_load_layout at = ox_route_load_layout_of(routing->experts);
    OX_ASSERT(rank->plan->input.model.report_doubles == routing->mixtures * at.count);
    for (uint32_t m = 0; m < routing->mixtures; m++) {
        double counts[OX_EXPERTS_MAX];
        ox_routing_loads(rank, reports, m * at.count + at.counts, routing->experts, counts);
        decide_mixture(rank, counts, routing->own + (size_t)m * routing->experts);
    }
}

void ox_routing_keep(struct ox_rank *rank) {
    struct ox_routing *const routing = rank->routing;
    if (routing != NULL) {
        memcpy(routing->pending, routing->own, (size_t)routing->mixtures * routing->experts);
    }
}

const uint8_t *ox_routing_of(const struct ox_rank *rank, bool pending) {
    return rank->routing == NULL ? NULL : pending ? rank->routing->pending : rank->routing->own;
}

/* ---- from reports to people ---- */

/* Adds up the loads of all micro-batches in the report of the first, in their order. */
void ox_rank_report_routers(const struct ox_rank *rank, struct ox_router_report *out) {
    const struct ox_plan_input *const input = &rank->plan->input;
    const struct ox_router *const router = &rank->config.model->config.mixture.router;
    const struct ox_route_load_layout at = ox_route_load_layout_of(router->experts);
    const uint32_t count = input->model.report_doubles;
    const struct ox_plan *const plan = rank->step.plan;
    double *const all = ox_tiers_resident(&rank->tiers, plan, plan->loss_host_buf).ptr;
    double *const loads = all + ox_plan_loss_bytes(&input->model) / sizeof(double);
    if (count == 0) {
        return;
    }
    *out = (struct ox_router_report){.layers = count / at.count, .experts = router->experts,
                                     .chosen = router->chosen, .loads = loads, .stride = at.count,
                                     .rows_at = at.rows};
    ox_routing_loads(rank, all, 0, count, loads);
    double rows = 0, squares = 0;
    for (uint32_t layer = 0; layer < out->layers; layer++) {
        rows += loads[(size_t)layer * at.count + at.rows];
        squares += loads[(size_t)layer * at.count + at.squares];
    }
    for (uint32_t e = 0; e < router->experts; e++) {
        double counts = 0, probs = 0;
        for (uint32_t layer = 0; layer < out->layers; layer++) {
            counts += loads[(size_t)layer * at.count + at.counts + e];
            probs += loads[(size_t)layer * at.count + at.probs + e];
        }
        out->balance += router->experts * (counts / rows) * (probs / rows);
    }
    out->z = squares / rows;
}

/* ---- to updates ---- */

bool ox_routing_next(const struct ox_rank *rank, uint32_t unit_idx, const uint8_t *routed,
                     const struct ox_role_walk *walk, struct ox_routed_part *part) {
    const struct ox_model *const model = rank->config.model;
    const enum ox_role role = walk->last->role;
    const uint64_t each = ox_expert_elems(&model->config, role);
    const uint64_t begin = part->range.end == 0 ? walk->range.begin : part->range.end;
    *part = (struct ox_routed_part){.range = {.begin = begin, .end = walk->range.end}};
    if (begin >= walk->range.end || routed == NULL || each == 0) {
        return begin < walk->range.end;
    }
    const struct ox_routing *const routing = rank->routing;
    const uint64_t offset = model->units[unit_idx].role_offset[role];
    const uint8_t *const bits = routed + (size_t)routing->mixture_of[unit_idx] * routing->experts +
                                routing->expert_first[unit_idx];
    uint64_t expert = (begin - offset) / each;
    part->idle = (bits[expert] & IDLE) != 0;
    do {
        expert++;
        part->range.end = ox_min_u64(offset + expert * each, walk->range.end);
    } while (part->range.end < walk->range.end && ((bits[expert] & IDLE) != 0) == part->idle);
    return true;
}

bool ox_routing_shift(const struct ox_rank *rank, uint32_t unit_idx, const uint8_t *routed, struct ox_range within,
                      struct ox_routed_shift *at) {
    const struct ox_routing *const routing = rank->routing;
    const uint64_t offset = rank->config.model->units[unit_idx].role_offset[OX_ROLE_CHOICE_BIAS];
    if (routed == NULL || rank->config.router_bias_rate <= 0 || offset == UINT64_MAX) {
        return false;
    }
    /* Slices and chunks begin and end with whole OX_GROUP_ELEMS, which are many limbs. */
    const uint64_t past = offset + (uint64_t)routing->experts * OX_LIMBS;
    const uint64_t begin = ox_max_u64(within.begin, offset + (uint64_t)at->next * OX_LIMBS);
    const uint64_t end = ox_min_u64(within.end, past);
    if (begin >= end) {
        return false;
    }
    const uint32_t expert = (uint32_t)((begin - offset) / OX_LIMBS);
    const uint32_t count = (uint32_t)ox_min_u64((end - begin) / OX_LIMBS, OX_LIMBS_SHIFT_MAX);
    const uint8_t *const bits = routed + (size_t)routing->mixture_of[unit_idx] * routing->experts + expert;
    OX_ASSERT((begin - offset) % OX_LIMBS == 0 && (end - begin) % OX_LIMBS == 0);
    *at = (struct ox_routed_shift){.first = begin, .next = expert + count,
                                   .shift = {.count = count, .by = (float)rank->config.router_bias_rate}};
    for (uint32_t i = 0; i < count; i++) {
        at->shift.up[i / 32] |= (bits[i] & UP) != 0 ? 1u << i % 32 : 0;
        at->shift.down[i / 32] |= (bits[i] & DOWN) != 0 ? 1u << i % 32 : 0;
    }
    return true;
}
