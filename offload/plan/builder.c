/* The small steps from which task lists are made: a buffer, a task, a use, a transfer. */
#include "offload/plan/builder.h"

#include <stddef.h>
#include <string.h>

uint32_t ox_build_slots(const struct ox_builder *b, uint32_t mb_first, uint32_t mb_past) {
    uint32_t most = b->scratch->mb_sums[mb_first].occupied;
    for (uint32_t i = mb_first; i < mb_past; i++) {
        most = (uint32_t)ox_max_u64(most, b->scratch->mb_sums[i].slot + 1);
    }
    return most;
}

/* ---- buffers ---------------------------------------------------------------------------------- */

uint32_t ox_build_buf(struct ox_builder *b, enum ox_buf_kind kind, enum ox_tier tier, uint64_t bytes,
                      uint32_t unit_idx) {
    OX_ASSERT(b->plan->buf_count < b->plan->buf_cap && (bytes > 0 || ox_plan_rank_count(b->in) > 1));
    struct ox_buf *const buf = &b->plan->bufs[b->plan->buf_count];
    memset(buf, 0, sizeof *buf);
    buf->bytes = ox_align_up(ox_max_u64(bytes, 1), OX_IO_ALIGN_BYTES);
    buf->first_task_idx = OX_NONE;
    buf->unit_idx = unit_idx;
    buf->stage_idx = buf->grad_idx = OX_NONE;
    buf->kind = (uint8_t)kind;
    buf->tier = (uint8_t)tier;
    return b->plan->buf_count++;
}

uint32_t ox_build_resident(struct ox_builder *b, enum ox_buf_kind kind, enum ox_tier tier, uint64_t bytes,
                           uint32_t unit_idx) {
    const uint32_t buf_idx = ox_build_buf(b, kind, tier, bytes, unit_idx);
    b->plan->bufs[buf_idx].resident = true;
    return buf_idx;
}

uint32_t ox_build_grad_buf(struct ox_builder *b, enum ox_tier tier, uint64_t bytes, uint32_t grad_idx) {
    const uint32_t buf_idx = ox_build_buf(b, OX_BUF_GRAD, tier, bytes, ox_build_grad(b, grad_idx)->unit_idx);
    b->plan->bufs[buf_idx].grad_idx = grad_idx;
    return buf_idx;
}

uint32_t ox_build_stage_buf(struct ox_builder *b, enum ox_buf_kind kind, enum ox_tier tier, uint64_t bytes,
                            uint32_t stage_idx) {
    const uint32_t buf_idx = ox_build_buf(b, kind, tier, bytes, OX_NONE);
    b->plan->bufs[buf_idx].stage_idx = stage_idx;
    return buf_idx;
}

/* ---- tasks ------------------------------------------------------------------------------------ */

void ox_build_follow(struct ox_builder *b) {
    if (b->plan->task_count > 0) {
        ox_plan_follow_lives((struct ox_plan_full *)b->plan, b->plan->task_count - 1, &b->in->placement);
    }
}

struct ox_task *ox_build_task(struct ox_builder *b, enum ox_task_kind kind, enum ox_lane_id lane, uint32_t unit_idx,
                              uint32_t mb_idx) {
    OX_ASSERT(b->plan->task_count < b->plan->task_cap);
    ox_build_follow(b);
    struct ox_task *const task = &b->plan->tasks[b->plan->task_count++];
    memset(task, 0, offsetof(struct ox_task, uses)); /* each use is written whole */
    task->kind = (uint8_t)kind;
    task->lane = (uint8_t)lane;
    task->unit_idx = unit_idx;
    task->stage_idx = task->grad_idx = task->peer = task->asks_stage = OX_NONE;
    task->mb_idx = mb_idx;
    task->when = (uint16_t)(OX_FACT_OWN_WORK | b->when);
    return task;
}

struct ox_task *ox_build_grad_task(struct ox_builder *b, enum ox_task_kind kind, enum ox_lane_id lane,
                                   uint32_t grad_idx) {
    struct ox_task *const task = ox_build_task(b, kind, lane, ox_build_grad(b, grad_idx)->unit_idx, OX_NONE);
    task->grad_idx = grad_idx;
    return task;
}

struct ox_task *ox_build_stage_task(struct ox_builder *b, enum ox_task_kind kind, uint32_t stage_idx,
                                    uint32_t mb_idx) {
    struct ox_task *const task = ox_build_task(b, kind, OX_LANE_COMPUTE, OX_NONE, mb_idx);
    task->stage_idx = stage_idx;
    return task;
}

void ox_build_carry(struct ox_task *task, uint32_t facts) {
    task->carried = true;
    task->when = (uint16_t)facts;
}

void ox_build_nth_use(struct ox_task *task, struct ox_use use) {
    OX_ASSERT(task->use_count < OX_TASK_USES_MAX && use.buf_idx != OX_NONE);
    task->uses[task->use_count++] = use;
}

void ox_build_reads(struct ox_task *task, uint32_t buf_idx, enum ox_use_role role) {
    ox_build_nth_use(task, (struct ox_use){.buf_idx = buf_idx, .role = (uint8_t)role, .read = true});
}

void ox_build_writes(struct ox_task *task, uint32_t buf_idx, enum ox_use_role role) {
    ox_build_nth_use(task, (struct ox_use){.buf_idx = buf_idx, .role = (uint8_t)role, .write = true});
}

void ox_build_updates(struct ox_task *task, uint32_t buf_idx, enum ox_use_role role) {
    ox_build_nth_use(task, (struct ox_use){.buf_idx = buf_idx, .role = (uint8_t)role, .read = true, .write = true});
}

struct ox_task *ox_build_move(struct ox_builder *b, enum ox_move what, enum ox_lane_id route, uint32_t source,
                              uint32_t target) {
    struct ox_task *const task = ox_build_task(b, OX_TASK_MOVE, route, OX_NONE, OX_NONE);
    task->move = (uint8_t)what;
    if (source != OX_NONE) {
        ox_build_reads(task, source, OX_USE_SOURCE);
    }
    if (target != OX_NONE) {
        ox_build_writes(task, target, OX_USE_TARGET);
    }
    return task;
}

void ox_build_count_move(struct ox_builder *b, struct ox_task *task) {
    ox_build_count(b, task, ox_lane_link((enum ox_lane_id)task->lane), ox_task_traffic(task),
                   ox_plan_move_bytes(b->in, task));
}

void ox_build_gather_here(struct ox_builder *b, enum ox_move what, uint32_t buf_idx, uint32_t unit_idx, bool gives) {
    struct ox_task *const task = ox_build_task(b, OX_TASK_MOVE, OX_LANE_LINK, unit_idx, OX_NONE);
    task->move = (uint8_t)what;
    (gives ? ox_build_updates : ox_build_writes)(task, buf_idx, OX_USE_TARGET);
    ox_build_count_peers(b, task);
}

void ox_build_gather_losses(struct ox_builder *b, bool gives, bool of_stages) {
    struct ox_task *const task = ox_build_task(b, OX_TASK_MOVE, OX_LANE_LINK, OX_NONE, OX_NONE);
    task->move = OX_MOVE_LOSSES;
    task->last = of_stages;
    (gives ? ox_build_updates : ox_build_writes)(task, b->plan->loss_host_buf, OX_USE_TARGET);
    ox_build_count_peers(b, task);
}

void ox_build_gather_totals(struct ox_builder *b, enum ox_axis axis) {
    struct ox_task *const task = ox_build_task(b, OX_TASK_MOVE, OX_LANE_LINK, OX_NONE, OX_NONE);
    task->move = OX_MOVE_PARTIALS;
    task->axis = (uint8_t)axis;
    ox_build_updates(task, b->plan->norm_buf, OX_USE_TARGET);
    ox_build_count_peers(b, task);
}

void ox_build_cross(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx, enum ox_plan_pass_kind pass,
                    uint32_t phase, uint32_t room) {
    const struct ox_plan_pass *const of = ox_plan_stage_pass(ox_build_stage(b, stage_idx), pass);
    if (phase == of->cut_count) {
        return;
    }
    const struct ox_plan_cut *const cut = &of->cuts[phase];
    const uint32_t kept = *ox_build_act_slot(b, b->scratch->kept, stage_idx, mb_idx);
    struct ox_task *const task = ox_build_stage_task(b, OX_TASK_MOVE, stage_idx, mb_idx);
    task->lane = OX_LANE_LINK;
    task->move = OX_MOVE_ROWS;
    task->axis = cut->axis;
    task->phase = (uint8_t)phase;
    task->pass = (uint8_t)pass;
    task->slot = cut->kind == OX_CUT_ROUND ? cut->round : 0;
    ox_build_updates(task, cut->role == OX_USE_KEPT ? kept : room, OX_USE_TARGET);
    if (cut->across) {
        ox_build_reads(task, cut->role == OX_USE_KEPT ? room : kept, OX_USE_SOURCE);
    }
    ox_build_count_peers(b, task);
}

void ox_build_count_peers(struct ox_builder *b, struct ox_task *task) {
    const struct ox_peer_bytes bytes = ox_plan_peer_bytes(b->plan, b->in, task);
    ox_build_count(b, task, OX_LINK_PEER_IN, ox_task_traffic(task), bytes.in);
    ox_build_count(b, task, OX_LINK_PEER_OUT, ox_task_traffic(task), bytes.out);
    ox_build_count(b, task, OX_LINK_H2D, ox_task_traffic(task), bytes.up);
}

void ox_build_count(struct ox_builder *b, struct ox_task *task, enum ox_link link, enum ox_traffic_kind kind,
                    uint64_t bytes) {
    const bool usual = (b->when & ~b->usual.facts) == 0;
    if (!usual || (ox_build_unified(b) && (link == OX_LINK_H2D || link == OX_LINK_D2H))) {
        return;
    }
    task->bytes += bytes;
    b->plan->traffic[link][kind] += bytes;
}
