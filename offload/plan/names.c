/* Names of lanes, tasks, buffers, links, facts and tiers; rows of choices; what follows from a model's description:
 * data alone, so that the proof may use it, too. */
#include "offload/plan/plan.h"

#include "base/assert.h"

#include <stddef.h>

const char *ox_lane_name(enum ox_lane_id lane) {
    static const char *const names[OX_LANE_COUNT] = {"compute",    "h2d",    "d2h", "nvme.read",
                                                     "nvme.write", "reduce", "adam", "link",
                                                     "link.in",    "link.out"};
    OX_ASSERT((unsigned)lane < OX_LANE_COUNT);
    return names[lane];
}

enum ox_link ox_lane_link(enum ox_lane_id lane) {
    static const enum ox_link links[OX_LANE_COUNT] = {
        [OX_LANE_COMPUTE] = OX_LINK_COUNT,        [OX_LANE_H2D] = OX_LINK_H2D,
        [OX_LANE_D2H] = OX_LINK_D2H,              [OX_LANE_NVME_READ] = OX_LINK_NVME_READ,
        [OX_LANE_NVME_WRITE] = OX_LINK_NVME_WRITE, [OX_LANE_REDUCE] = OX_LINK_COUNT,
        [OX_LANE_ADAM] = OX_LINK_COUNT,           [OX_LANE_LINK] = OX_LINK_COUNT,
        [OX_LANE_LINK_IN] = OX_LINK_PEER_IN,      [OX_LANE_LINK_OUT] = OX_LINK_PEER_OUT};
    OX_ASSERT((unsigned)lane < OX_LANE_COUNT);
    return links[lane];
}

/* Traces store these numbers, so their order never changes. GRAD_ZERO is in older traces alone. */
enum word {
    WORD_BATCH, WORD_READ, WORD_UPLOAD, WORD_CAST, WORD_FORWARD, WORD_HEAD, WORD_BACKWARD,
    WORD_ACT_SAVE, WORD_ACT_WRITE, WORD_ACT_READ, WORD_ACT_LOAD, WORD_GRAD_ZERO, WORD_GRAD_ADD, WORD_GRAD_PACK,
    WORD_GRAD_SAVE, WORD_GRAD_WRITE, WORD_GRAD_READ, WORD_GRAD_LOAD, WORD_REDUCE, WORD_DEVICE_REDUCE, WORD_NORM_SAVE,
    WORD_NORM, WORD_BEGIN, WORD_DOWNLOAD, WORD_ADAM, WORD_REFRESH, WORD_DEVICE_ADAM, WORD_NONFINITE, WORD_LOSS,
    WORD_WRITTEN, WORD_COMMIT, WORD_ACT_ARRIVE, WORD_ACT_LEAVE, WORD_DX_ARRIVE, WORD_DX_LEAVE,
    WORD_GATHER, WORD_GRAD_FOLD, WORD_EXCHANGE, WORD_SUM_PARTS, WORD_NORM_GATHER, WORD_LOSS_GATHER,
    WORD_GRAD_GATHER, WORD_REDUCE_SCATTER, WORD_ADAM_AHEAD, WORD_ADAM_STATE, WORD_LOAD_RETURN, WORD_ROWS,
    WORD_ROUTES, WORD_NARROW, WORD_WIDEN, WORD_LOAN_ARRIVE, WORD_LOAN_LEAVE, WORD_GRAD_ARRIVE, WORD_GRAD_LEAVE,
    WORD_LOW_RANK, WORD_COUNT
};
_Static_assert((int)WORD_COUNT == (int)OX_TASK_WORD_COUNT, "plan.h says how many words there are");

static uint32_t word_of_move(const struct ox_task *task) {
    if (task->move == OX_MOVE_GRAD && task->lane == OX_LANE_LINK && task->last) {
        return WORD_GRAD_GATHER;
    }
    static const uint8_t words[OX_MOVE_COUNT][OX_LANE_COUNT] = {
        [OX_MOVE_WEIGHTS] = {[OX_LANE_NVME_READ] = WORD_READ, [OX_LANE_H2D] = WORD_UPLOAD,
                             [OX_LANE_LINK] = WORD_GATHER,
                             [OX_LANE_LINK_IN] = WORD_LOAN_ARRIVE, [OX_LANE_LINK_OUT] = WORD_LOAN_LEAVE},
        [OX_MOVE_PLANES] = {[OX_LANE_D2H] = WORD_DOWNLOAD, [OX_LANE_H2D] = WORD_REFRESH},
        [OX_MOVE_ACT] = {[OX_LANE_D2H] = WORD_ACT_SAVE, [OX_LANE_NVME_WRITE] = WORD_ACT_WRITE,
                         [OX_LANE_NVME_READ] = WORD_ACT_READ, [OX_LANE_H2D] = WORD_ACT_LOAD},
        [OX_MOVE_GRAD] = {[OX_LANE_D2H] = WORD_GRAD_SAVE, [OX_LANE_NVME_WRITE] = WORD_GRAD_WRITE,
                          [OX_LANE_NVME_READ] = WORD_GRAD_READ, [OX_LANE_H2D] = WORD_GRAD_LOAD,
                          [OX_LANE_LINK] = WORD_EXCHANGE,
                          [OX_LANE_LINK_IN] = WORD_GRAD_ARRIVE, [OX_LANE_LINK_OUT] = WORD_GRAD_LEAVE},
        [OX_MOVE_BATCH] = {[OX_LANE_H2D] = WORD_BATCH},
        [OX_MOVE_LOSSES] = {[OX_LANE_D2H] = WORD_LOSS, [OX_LANE_LINK] = WORD_LOSS_GATHER,
                            [OX_LANE_H2D] = WORD_LOAD_RETURN},
        [OX_MOVE_PARTIALS] = {[OX_LANE_D2H] = WORD_NORM_SAVE, [OX_LANE_LINK] = WORD_NORM_GATHER},
        [OX_MOVE_NONFINITE] = {[OX_LANE_D2H] = WORD_NONFINITE},
        [OX_MOVE_OUTSIDE_ACT] = {[OX_LANE_H2D] = WORD_ACT_ARRIVE, [OX_LANE_D2H] = WORD_ACT_LEAVE,
                                 [OX_LANE_LINK_IN] = WORD_ACT_ARRIVE, [OX_LANE_LINK_OUT] = WORD_ACT_LEAVE},
        [OX_MOVE_OUTSIDE_DX] = {[OX_LANE_H2D] = WORD_DX_ARRIVE, [OX_LANE_D2H] = WORD_DX_LEAVE,
                                [OX_LANE_LINK_IN] = WORD_DX_ARRIVE, [OX_LANE_LINK_OUT] = WORD_DX_LEAVE},
        [OX_MOVE_SUM] = {[OX_LANE_LINK] = WORD_REDUCE_SCATTER},
        [OX_MOVE_ROWS] = {[OX_LANE_LINK] = WORD_ROWS},
        [OX_MOVE_LOW_RANK] = {[OX_LANE_LINK] = WORD_LOW_RANK},
        [OX_MOVE_ROUTES] = {[OX_LANE_D2H] = WORD_ROUTES},
    };
    OX_ASSERT(task->move < OX_MOVE_COUNT && task->lane < OX_LANE_COUNT);
    return words[task->move][task->lane];
}

/* An update of all planes of a unit, of its weights ahead of its state, or of the state that follows. */
static uint32_t word_of_update(const struct ox_task *task) {
    bool keeps_state = false;
    for (int i = 0; i < task->use_count; i++) {
        keeps_state = keeps_state || (task->uses[i].role == OX_USE_STATE && !task->uses[i].write);
    }
    return task->lane == OX_LANE_COMPUTE           ? WORD_DEVICE_ADAM
           : (task->when & OX_FACT_STATE_DUE) != 0 ? WORD_ADAM_STATE : keeps_state ? WORD_ADAM_AHEAD : WORD_ADAM;
}

uint32_t ox_task_word(const struct ox_task *task) {
    static const uint8_t words[OX_TASK_KIND_COUNT] = {
        [OX_TASK_CAST] = WORD_CAST,           [OX_TASK_FORWARD] = WORD_FORWARD,     [OX_TASK_HEAD] = WORD_HEAD,
        [OX_TASK_BACKWARD] = WORD_BACKWARD,   [OX_TASK_GRAD_ADD] = WORD_GRAD_ADD,
        [OX_TASK_GRAD_PACK] = WORD_GRAD_PACK, [OX_TASK_REDUCE] = WORD_REDUCE,       [OX_TASK_NORM] = WORD_NORM,
        [OX_TASK_BEGIN] = WORD_BEGIN,         [OX_TASK_UPDATE] = WORD_ADAM,         [OX_TASK_WRITTEN] = WORD_WRITTEN,
        [OX_TASK_COMMIT] = WORD_COMMIT,       [OX_TASK_GRAD_FOLD] = WORD_GRAD_FOLD,
        [OX_TASK_SUM_PARTS] = WORD_SUM_PARTS, [OX_TASK_NARROW] = WORD_NARROW,       [OX_TASK_WIDEN] = WORD_WIDEN,
    };
    const bool on_device = task->lane == OX_LANE_COMPUTE;
    OX_ASSERT(task->kind < OX_TASK_KIND_COUNT);
    switch ((enum ox_task_kind)task->kind) {
    case OX_TASK_MOVE:
        return word_of_move(task);
    case OX_TASK_REDUCE:
        return on_device ? WORD_DEVICE_REDUCE : WORD_REDUCE;
    case OX_TASK_UPDATE:
        return word_of_update(task);
    default:
        return words[task->kind];
    }
}

const char *ox_task_word_name(uint32_t word) {
    static const char *const names[OX_TASK_WORD_COUNT] = {
        "batch",     "read",      "upload",     "cast",      "forward",   "head",      "backward", "act-save",
        "act-write", "act-read",  "act-load",   "grad-zero", "grad-add",  "grad-pack", "grad-save",
        "grad-write", "grad-read", "grad-load", "reduce",    "dev-reduce", "norm-save", "norm",    "begin",
        "download",  "adam",      "refresh",    "dev-adam",  "nonfinite",   "loss",      "written",  "commit",
        "act-arrive", "act-leave", "dx-arrive", "dx-leave", "gather", "grad-fold", "exchange", "sum-parts",
        "norm-gather", "loss-gather", "grad-gather", "reduce-scatter", "adam-ahead",
        "adam-state", "load-return", "rows", "routes", "narrow", "widen",
        "loan-arrive", "loan-leave", "grad-arrive", "grad-leave", "low-rank"};
    OX_ASSERT(word < OX_TASK_WORD_COUNT);
    return names[word];
}

const char *ox_task_name(const struct ox_task *task) {
    return ox_task_word_name(ox_task_word(task));
}

const char *ox_buf_name(enum ox_buf_kind kind) {
    static const char *const names[OX_BUF_KIND_COUNT] = {"weights",     "optimizer state",  "gradients",
                                                         "activations", "kept activations", "cast weights",
                                                         "workspace",   "tokens",           "optimizer stream",
                                                         "small",           "gathered weights", "replaced state",
                                                         "residuals"};
    OX_ASSERT((unsigned)kind < OX_BUF_KIND_COUNT);
    return names[kind];
}

const char *ox_link_name(enum ox_link link) {
    static const char *const names[OX_LINK_COUNT] = {"nvme_read", "nvme_write", "h2d", "d2h", "peer_in", "peer_out"};
    OX_ASSERT((unsigned)link < OX_LINK_COUNT);
    return names[link];
}

const char *ox_traffic_name(enum ox_traffic_kind kind) {
    static const char *const names[OX_TRAFFIC_KIND_COUNT] = {"weights", "state", "grads", "activations",
                                                             "other", "tokens"};
    OX_ASSERT((unsigned)kind < OX_TRAFFIC_KIND_COUNT);
    return names[kind];
}

const char *ox_fact_name(enum ox_fact fact) {
    static const char *const names[] = {"own-work",   "speculates",  "commits", "begin-due", "commit-due",
                                        "counts-due", "from-memory", "due",     "wanted",  "state-due",
                                        "exact",      "low-rank"};
    const int idx = __builtin_ctz(fact);
    OX_ASSERT(fact != 0 && (unsigned)idx < sizeof names / sizeof *names);
    return names[idx];
}

const char *ox_tier_name(enum ox_tier tier) {
    static const char *const names[OX_TIER_COUNT] = {"device", "host", "nvme"};
    OX_ASSERT((unsigned)tier < OX_TIER_COUNT);
    return names[tier];
}

const char *ox_sharding_name(enum ox_sharding sharding) {
    static const char *const names[OX_SHARDING_COUNT] = {
        [OX_SHARDING_FULL] = "full_shard", [OX_SHARDING_STEP] = "shard_grad_op", [OX_SHARDING_GRAD] = "zero2",
        [OX_SHARDING_STATE] = "zero1",     [OX_SHARDING_NONE] = "no_shard",      [OX_SHARDING_SHARED] = "shared"};
    OX_ASSERT((unsigned)sharding < OX_SHARDING_COUNT);
    return names[sharding];
}

const char *ox_pipe_schedule_name(enum ox_pipe_schedule schedule) {
    static const char *const names[OX_PIPE_COUNT] = {
        [OX_PIPE_VERTICAL] = "vertical", [OX_PIPE_GPIPE] = "gpipe", [OX_PIPE_1F1B] = "1f1b",
        [OX_PIPE_INTERLEAVED] = "interleaved"};
    OX_ASSERT((unsigned)schedule < OX_PIPE_COUNT);
    return names[schedule];
}

const struct ox_choice_row ox_choice_rows[OX_CHOICE_ROW_COUNT] = {OX_NUMBER_ROWS(OX_NUMBER_ROW)
                                                                  OX_SWITCH_ROWS(OX_SWITCH_ROW)};

uint32_t ox_choice_value(const struct ox_placement *placement, const struct ox_choice_row *row) {
    const unsigned char *const at = (const unsigned char *)placement + row->offset;
    return row->is_switch ? *(const bool *)at : *(const uint32_t *)(const void *)at;
}

/* ---- a model ------------------------------------------------------------------------------------------ */

uint32_t ox_plan_order_units(const struct ox_plan_stage *stages, uint32_t stage_count, struct ox_plan_unit *units,
                             uint32_t *order) {
    uint32_t count = 0, update_count = 0;
    for (uint32_t i = stage_count; i-- > 0;) { /* the first stage that uses a unit is met last */
        for (uint32_t k = stages[i].unit_count; k-- > 0;) {
            units[stages[i].units[k].unit_idx].stage_idx = i;
            units[stages[i].units[k].unit_idx].order_idx = k;
        }
    }
    for (uint32_t i = 0; i < stage_count; i++) {
        for (uint32_t k = 0; k < stages[i].unit_count; k++) {
            const uint32_t unit_idx = stages[i].units[k].unit_idx;
            if (units[unit_idx].stage_idx == i) {
                OX_ASSERT(units[unit_idx].order_idx == k); /* no stage uses a unit twice */
                units[unit_idx].order_idx = count;
                units[unit_idx].update_idx = units[unit_idx].trained ? update_count++ : OX_NONE;
                order[count++] = unit_idx;
            }
        }
    }
    return update_count;
}

uint32_t ox_plan_first_back(const struct ox_plan_model *model) {
    bool trains = ox_plan_has_outside_input(model);
    uint32_t stage_idx = 0;
    for (; stage_idx < model->stage_count; stage_idx++) {
        for (uint32_t k = 0; k < model->stages[stage_idx].unit_count; k++) {
            trains = trains || model->stages[stage_idx].units[k].grad_idx != OX_NONE;
        }
        if (trains) {
            break;
        }
    }
    return stage_idx;
}

uint32_t ox_plan_block_count(const struct ox_plan_model *model) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < model->stage_count; i++) {
        count += model->stages[i].kind == OX_PLAN_BLOCK;
    }
    return count;
}
