/* The lists of a pipeline's ranks are played together.
 *
 * A task ends where all of these hold: it is issued, which the first tasks of a list are, and each later one when the
 * task OX_RUN_AHEAD_TASKS before it has ended, every norm before it, and what it asks; the task before it in its lane
 * has ended; all that it depends on has ended; and whoever does it together with this rank has come to it too. None of
 * that is undone by what happens elsewhere, so the order in which tasks are looked at does not matter: if all of them
 * end here, they end at any speed of any lane, and if not, those that remain wait for each other in a circle.
 *
 * What ranks do together is the same content on all of them: a transfer names the stage and the micro-batch on both
 * sides, and what a group or all ranks do is the same task in each list. */
#include "offload/proof/proof_internal.h"
#include "offload/proof/sizes.h"

#include <stdio.h>
#include <stdlib.h>

/* A list, and how far it has been played. */
struct player {
    const struct ox_plan *plan;
    const struct ox_plan_input *in;
    uint32_t rank_idx;
    uint32_t issued, norm_past;     /* tasks that are issued; 1 + the last norm that is */
    uint32_t head[OX_LANE_COUNT];   /* the next task of each lane; task_count: none is left */
    uint32_t *next_in_lane;         /* per task */
    bool *ended;
    uint32_t left;
};

struct joint {
    struct player *players;
    uint32_t count;
};

/* ---- a list ---------------------------------------------------------------------------------------- */

static enum ox_status open_player(const struct ox_plan *plan, const struct ox_plan_input *input, struct player *out) {
    *out = (struct player){.plan = plan, .in = input, .rank_idx = input->ranks.idx, .left = plan->task_count};
    out->next_in_lane = calloc(plan->task_count + 1u, sizeof *out->next_in_lane);
    out->ended = calloc(plan->task_count + 1u, sizeof *out->ended);
    if (out->next_in_lane == NULL || out->ended == NULL) {
        return ox_fail(OX_E_NOMEM, "plan checker: no memory for %u tasks", plan->task_count);
    }
    for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
        out->head[lane] = plan->task_count;
    }
    for (uint32_t i = plan->task_count; i-- > 0;) {
        out->next_in_lane[i] = out->head[plan->tasks[i].lane];
        out->head[plan->tasks[i].lane] = i;
    }
    return OX_OK;
}

static void close_player(struct player *player) {
    free(player->next_in_lane);
    free(player->ended);
}

/* Whether what the next task asks is known, for which the issuing thread waits. */
static bool is_answered(const struct player *player) {
    const uint32_t asks = player->plan->tasks[player->issued].asks;
    return asks == 0 || player->ended[asks - 1];
}

static void issue(struct player *player) {
    const struct ox_plan *const plan = player->plan;
    const uint32_t window = ox_plan_window(player->in);
    while (player->issued < plan->task_count &&
           (player->issued < window || player->ended[player->issued - window]) &&
           (player->norm_past == 0 || player->ended[player->norm_past - 1]) && is_answered(player)) {
        player->norm_past = plan->tasks[player->issued].kind == OX_TASK_NORM ? player->issued + 1 : player->norm_past;
        player->issued++;
    }
}

/* Whether the rank itself is ready to do the task. */
static bool is_ready(const struct player *player, uint32_t task_idx) {
    const struct ox_task *const task = &player->plan->tasks[task_idx];
    bool ready = task_idx < player->issued && player->head[task->lane] == task_idx;
    for (int lane = 0; lane < OX_LANE_COUNT && ready; lane++) {
        ready = task->deps[lane] == 0 || player->ended[task->deps[lane] - 1];
    }
    return ready;
}

static void end_task(struct player *player, uint32_t task_idx) {
    player->ended[task_idx] = true;
    player->head[player->plan->tasks[task_idx].lane] = player->next_in_lane[task_idx];
    player->left--;
    issue(player);
}

/* ---- what ranks do together ------------------------------------------------------------------------ */

/* The ranks that do a task together: `count` of them from `first` on. */
struct members {
    uint32_t first, stride, count;
};

static struct members members_of(const struct joint *joint, const struct player *player, const struct ox_task *task) {
    const bool all = task->kind == OX_TASK_NORM || task->kind == OX_TASK_BEGIN || task->kind == OX_TASK_COMMIT ||
                     (task->lane == OX_LANE_LINK && task->move == OX_MOVE_LOSSES);
    const uint32_t idx = player->rank_idx, of_data = ox_proof_ranks(player->in), holders = ox_proof_holders(player->in);
    if (all) {
        return (struct members){0, 1, joint->count};
    }
    if (task->lane != OX_LANE_LINK) {
        return (struct members){idx, 1, 1};
    }
    if (task->axis == OX_AXIS_CONTEXT) { /* those that share micro-batches lie as far apart as there are others */
        const uint32_t contexts = ox_proof_contexts(player->in), apart = of_data / contexts;
        return (struct members){idx / of_data * of_data + idx % apart, apart, contexts};
    }
    if (task->axis == OX_AXIS_EXPERT) {
        const uint32_t experts = ox_proof_experts(player->in);
        return (struct members){idx / experts * experts, 1, experts};
    }
    if (task->axis == OX_AXIS_SLICE) {
        const uint32_t experts = ox_proof_experts(player->in);
        return (struct members){idx / holders * holders + idx % experts, experts, holders / experts};
    }
    const uint32_t tensors = ox_proof_tensors(player->in), of_pipe = of_data * tensors;
    return task->axis == OX_AXIS_PIPE   ? (struct members){idx % of_pipe, of_pipe, ox_proof_pipe(player->in)}
           : task->axis == OX_AXIS_TENSOR ? (struct members){idx / of_pipe * of_pipe + idx % of_data, of_data, tensors}
           : task->axis == OX_AXIS_COPY ? (struct members){idx / of_data * of_data + idx % holders, holders,
                                                           ox_proof_copies(player->in)}
                                        : (struct members){idx / holders * holders, 1, holders};
}

static bool same_members(struct members a, struct members b) {
    return a.first == b.first && a.stride == b.stride && a.count == b.count;
}

static bool same_task(const struct ox_task *a, const struct ox_task *b) {
    return a->kind == b->kind && a->move == b->move && a->axis == b->axis && a->last == b->last &&
           a->phase == b->phase && a->pass == b->pass &&
           a->carried == b->carried && a->when == b->when && a->stage_idx == b->stage_idx && a->mb_idx == b->mb_idx &&
           a->unit_idx == b->unit_idx && a->grad_idx == b->grad_idx && a->slot == b->slot;
}

/* The rank with which a transfer is; NULL: there is none. */
static struct player *peer_of(const struct joint *joint, const struct player *player, const struct ox_task *task) {
    return task->peer < ox_proof_pipe(player->in) ? &joint->players[ox_proof_rank_at(player->in, task->peer)] : NULL;
}

static int other_end(int lane) {
    return lane == OX_LANE_LINK_IN ? OX_LANE_LINK_OUT : OX_LANE_LINK_IN;
}

/* Lets a transfer end, where both ranks have come to it. */
static enum ox_status try_transfer(const struct joint *joint, struct player *player, uint32_t task_idx, bool *moved) {
    const struct ox_task *const task = &player->plan->tasks[task_idx];
    struct player *const peer = peer_of(joint, player, task);
    if (peer == NULL || peer == player || (task->when & OX_FACTS_OF_UNIT) != 0) {
        return ox_proof_fault(player->plan, task_idx, "goes to no rank of the pipeline, or waits where none need come");
    }
    const int lane = other_end(task->lane);
    const uint32_t other = peer->head[lane];
    if (other == peer->plan->task_count || peer_of(joint, peer, &peer->plan->tasks[other]) != player) {
        return OX_OK; /* not yet, or never: say_what_remains() */
    }
    if (!same_task(task, &peer->plan->tasks[other]) || task->bytes != peer->plan->tasks[other].bytes) {
        return ox_proof_fault(player->plan, task_idx, "is not what the other rank sends or receives next");
    }
    if (is_ready(peer, other)) {
        end_task(player, task_idx);
        end_task(peer, other);
        *moved = true;
    }
    return OX_OK;
}

/* Whether the next task of a lane is one that these ranks do together. */
static bool comes_to(const struct joint *joint, const struct player *player, int lane, struct members members) {
    const uint32_t at = player->head[lane];
    return at < player->plan->task_count &&
           same_members(members_of(joint, player, &player->plan->tasks[at]), members);
}

static enum ox_status try_group(const struct joint *joint, const struct player *player, uint32_t task_idx,
                                bool *moved) {
    const struct ox_task *const task = &player->plan->tasks[task_idx];
    const struct members members = members_of(joint, player, task);
    bool ready = true;
    for (uint32_t i = 0; i < members.count && ready; i++) {
        const struct player *const other = &joint->players[members.first + i * members.stride];
        ready = comes_to(joint, other, task->lane, members); /* else not yet, or never: say_what_remains() */
        if (ready && !same_task(task, &other->plan->tasks[other->head[task->lane]])) {
            return ox_proof_fault(player->plan, task_idx, "is not what other ranks do next together with this one");
        }
        ready = ready && is_ready(other, other->head[task->lane]);
    }
    for (uint32_t i = 0; i < members.count && ready; i++) {
        struct player *const other = &joint->players[members.first + i * members.stride];
        end_task(other, other->head[task->lane]);
        *moved = true;
    }
    return OX_OK;
}

/* ---- all lists ------------------------------------------------------------------------------------- */

static enum ox_status play_lane(const struct joint *joint, struct player *player, int lane, bool *moved) {
    enum ox_status status = OX_OK;
    bool more = true;
    while (more && status == OX_OK) {
        const uint32_t at = player->head[lane];
        more = false;
        if (at == player->plan->task_count || !is_ready(player, at)) {
            break;
        }
        if (ox_proof_is_transfer(&player->plan->tasks[at])) {
            status = try_transfer(joint, player, at, &more);
        } else {
            status = try_group(joint, player, at, &more);
        }
        *moved = *moved || more;
    }
    return status;
}

/* Whether what another rank does next together with this one, whatever its lane has before that, is the task. */
static bool agrees(const struct joint *joint, const struct player *player, uint32_t task_idx,
                   const struct player *other) {
    const struct ox_task *const task = &player->plan->tasks[task_idx];
    const bool transfer = ox_proof_is_transfer(task);
    const struct members members = members_of(joint, player, task);
    bool found = false;
    uint32_t at = other->head[transfer ? other_end(task->lane) : task->lane];
    while (at < other->plan->task_count && !found) {
        const struct ox_task *const next = &other->plan->tasks[at];
        found = transfer ? peer_of(joint, other, next) == player
                         : same_members(members_of(joint, other, next), members);
        at = found ? at : other->next_in_lane[at];
    }
    return found && same_task(task, &other->plan->tasks[at]);
}

/* Refuses the next task of a lane, where another rank that does it too does something else. */
static enum ox_status check_others(const struct joint *joint, const struct player *player, uint32_t task_idx) {
    const struct ox_task *const task = &player->plan->tasks[task_idx];
    const bool transfer = ox_proof_is_transfer(task);
    const struct members members = members_of(joint, player, task);
    for (uint32_t i = 0; i < (transfer ? 1 : members.count); i++) {
        const struct player *const other = transfer ? peer_of(joint, player, task)
                                                    : &joint->players[members.first + i * members.stride];
        if (other == NULL || !agrees(joint, player, task_idx, other)) {
            return ox_proof_fault(player->plan, task_idx, "is not what other ranks do next together with this one");
        }
    }
    return OX_OK;
}

/* Names a task that never ends: one that another rank lacks, else the first of those that wait in a circle. */
static enum ox_status say_what_remains(const struct joint *joint) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < joint->count && status == OX_OK; i++) {
        const struct player *const player = &joint->players[i];
        for (int lane = 0; lane < OX_LANE_COUNT && status == OX_OK; lane++) {
            const uint32_t at = player->head[lane];
            status = at < player->plan->task_count ? check_others(joint, player, at) : OX_OK;
        }
    }
    for (uint32_t i = 0; i < joint->count && status == OX_OK; i++) {
        const struct player *const player = &joint->players[i];
        for (uint32_t at = 0; at < player->plan->task_count && status == OX_OK; at++) {
            if (!player->ended[at]) {
                char text[96];
                snprintf(text, sizeof text, "ranks wait for each other in a circle, rank %u with this task",
                         player->rank_idx);
                status = ox_proof_fault(player->plan, at, text);
            }
        }
    }
    return status;
}

static enum ox_status play(const struct joint *joint) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < joint->count; i++) {
        issue(&joint->players[i]);
    }
    for (bool moved = true; moved && status == OX_OK;) {
        moved = false;
        for (uint32_t i = 0; i < joint->count && status == OX_OK; i++) {
            for (int lane = 0; lane < OX_LANE_COUNT && status == OX_OK; lane++) {
                status = play_lane(joint, &joint->players[i], lane, &moved);
            }
        }
    }
    return status == OX_OK ? say_what_remains(joint) : status;
}

/* What a step begins with follows from the homes of all units, so all ranks have to know the same. */
static bool same_homes(const struct ox_plan_input *a, const struct ox_plan_input *b) {
    bool same = true;
    for (uint32_t i = 0; i < a->model.unit_count && same; i++) {
        const struct ox_homes *const x = ox_proof_homes(a, i), *const y = ox_proof_homes(b, i);
        same = x->weights == y->weights && x->state == y->state && x->grad == y->grad;
    }
    return same && a->placement.overlap == b->placement.overlap &&
           a->placement.speculative_units == b->placement.speculative_units;
}

enum ox_status ox_proof_check_pipe(const struct ox_plan *const *plans, const struct ox_plan_input *const *inputs,
                                   uint32_t count) {
    struct player *const players = calloc(count, sizeof *players);
    const struct joint joint = {.players = players, .count = count};
    enum ox_status status =
        players != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "plan checker: no memory for %u ranks", count);
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        if (!same_homes(inputs[0], inputs[i])) {
            status = ox_fail(OX_E_CONFIG, "plan is wrong: rank %u has other homes than rank 0; please report this", i);
        }
        OX_THEN(status, open_player(plans[i], inputs[i], &players[i]));
    }
    if (status == OX_OK) {
        status = play(&joint);
    }
    for (uint32_t i = 0; i < count && players != NULL; i++) {
        close_player(&players[i]);
    }
    free(players);
    return status;
}
