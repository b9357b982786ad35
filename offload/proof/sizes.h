/* The sizes of a step as the proof states them. They follow from model, budget and placement (plan.h), from the
 * planes of a parameter (base/planes.h) and from how state is laid out (shard.h). The builder has its own; the two must
 * agree. All sizes are bytes. */
#ifndef OX_OFFLOAD_PROOF_SIZES_H
#define OX_OFFLOAD_PROOF_SIZES_H

#include "offload/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline uint64_t ox_proof_elems(const struct ox_plan_input *input, uint32_t unit_idx) {
    return input->model.units[unit_idx].elem_count;
}
static inline bool ox_proof_trained(const struct ox_plan_input *input, uint32_t unit_idx) {
    return input->model.units[unit_idx].trained;
}
/* Whether the unit has a state: lo and moments, or lo alone where it is not trained. */
static inline bool ox_proof_has_state(const struct ox_plan_input *input, uint32_t unit_idx) {
    return !input->model.eval_only &&
           (ox_proof_trained(input, unit_idx) || input->table->shards[unit_idx].sizes.lo_per_group > 0);
}
/* The first stage that anything below or in it is trained of, from which on there is a backward. */
uint32_t ox_proof_first_back(const struct ox_plan_input *input);
/* All ranks; coordinates of the pipeline; of each the ranks that divide groups of features; those that have the same of
 * both, which divide the micro-batches and lie in a row, and which of them the rank of the plan is. */
static inline uint32_t ox_proof_all_ranks(const struct ox_plan_input *input) {
    return input->ranks.count > 1 ? input->ranks.count : 1;
}
static inline uint32_t ox_proof_pipe(const struct ox_plan_input *input) {
    return input->ranks.pipe > 1 ? input->ranks.pipe : 1;
}
static inline uint32_t ox_proof_tensors(const struct ox_plan_input *input) {
    return input->ranks.tensors > 1 ? input->ranks.tensors : 1;
}
static inline uint32_t ox_proof_ranks(const struct ox_plan_input *input) {
    return ox_proof_all_ranks(input) / ox_proof_pipe(input) / ox_proof_tensors(input);
}
static inline uint32_t ox_proof_rank_of(const struct ox_plan_input *input) {
    return input->ranks.idx % ox_proof_ranks(input);
}
/* The coordinate that has a unit, and computes a stage; whether it is that of the rank. */
static inline uint32_t ox_proof_owner(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_pipe(input) > 1 ? input->ranks.pipe_of[unit_idx] : 0;
}
static inline uint32_t ox_proof_stage_owner(const struct ox_plan_input *input, uint32_t stage_idx) {
    return ox_proof_owner(input, input->model.stages[stage_idx].units[0].unit_idx);
}
/* The rank that differs from that of the plan in its coordinate of the pipeline alone. */
static inline uint32_t ox_proof_rank_at(const struct ox_plan_input *input, uint32_t pipe_at) {
    const uint32_t apart = ox_proof_ranks(input) * ox_proof_tensors(input);
    return pipe_at * apart + input->ranks.idx % apart;
}
/* Of a rank, its places on both axes. */
static inline uint32_t ox_proof_pipe_of(const struct ox_plan_input *input, uint32_t rank_idx) {
    return rank_idx / (ox_proof_ranks(input) * ox_proof_tensors(input));
}
static inline uint32_t ox_proof_tensor_of(const struct ox_plan_input *input, uint32_t rank_idx) {
    return rank_idx / ox_proof_ranks(input) % ox_proof_tensors(input);
}
/* Whether a unit has a group of features, which one of the ranks that divide them has; and whether a rank has it. */
static inline bool ox_proof_is_of_group(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_tensors(input) > 1 && input->ranks.group_of[unit_idx] != OX_NONE;
}
/* Whether several ranks of a coordinate have the unit; and whether the rank writes it to its store, which of those that
 * share one the first does. */
static inline bool ox_proof_is_copied(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_tensors(input) > 1 && !ox_proof_is_of_group(input, unit_idx);
}
static inline bool ox_proof_stores(const struct ox_plan_input *input, uint32_t unit_idx) {
    const uint32_t idx = input->ranks.idx, per_store = input->ranks.per_store;
    const uint32_t before = per_store > 0 ? idx % per_store : idx; /* of the ranks that share the store */
    return !ox_proof_is_copied(input, unit_idx) || ox_proof_tensor_of(input, idx) == 0 ||
           before < ox_proof_ranks(input);
}
static inline bool ox_proof_has_group(const struct ox_plan_input *input, uint32_t rank_idx, uint32_t unit_idx) {
    return !ox_proof_is_of_group(input, unit_idx) ||
           input->ranks.group_of[unit_idx] * ox_proof_tensors(input) / input->ranks.tensor_groups ==
               ox_proof_tensor_of(input, rank_idx);
}
/* Ranks that divide experts, in a row; whether one of them has a unit; and whether a rank is that one, or the unit is
 * none of theirs. */
static inline uint32_t ox_proof_experts(const struct ox_plan_input *input) {
    return input->ranks.experts > 1 ? input->ranks.experts : 1;
}
static inline bool ox_proof_is_expert(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_experts(input) > 1 && input->ranks.expert_of[unit_idx] != OX_NONE;
}
static inline bool ox_proof_has_experts(const struct ox_plan_input *input, uint32_t rank_idx, uint32_t unit_idx) {
    return !ox_proof_is_expert(input, unit_idx) ||
           input->ranks.expert_of[unit_idx] == rank_idx % ox_proof_experts(input);
}
static inline bool ox_proof_rank_holds(const struct ox_plan_input *input, uint32_t rank_idx, uint32_t unit_idx) {
    return ox_proof_owner(input, unit_idx) == ox_proof_pipe_of(input, rank_idx) &&
           ox_proof_has_group(input, rank_idx, unit_idx) && ox_proof_has_experts(input, rank_idx, unit_idx);
}
static inline bool ox_proof_holds(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_rank_holds(input, input->ranks.idx, unit_idx);
}
static inline bool ox_proof_computes(const struct ox_plan_input *input, uint32_t stage_idx) {
    return ox_proof_stage_owner(input, stage_idx) == ox_proof_pipe_of(input, input->ranks.idx);
}
/* The coordinate whose head computes with a unit that another one has, which gets it on loan in every step; OX_NONE:
 * none does. And whether the rank gets the unit or gives it. */
static inline uint32_t ox_proof_borrower(const struct ox_plan_input *input, uint32_t unit_idx) {
    const uint32_t last = input->model.stage_count - 1, at = ox_proof_stage_owner(input, last);
    const struct ox_plan_stage *const head = &input->model.stages[last];
    bool has = false;
    for (uint32_t k = 0; k < head->unit_count; k++) {
        has = has || head->units[k].unit_idx == unit_idx;
    }
    return has && ox_proof_owner(input, unit_idx) != at ? at : OX_NONE;
}
static inline bool ox_proof_borrows(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_borrower(input, unit_idx) == ox_proof_pipe_of(input, input->ranks.idx) &&
           ox_proof_has_group(input, input->ranks.idx, unit_idx);
}
/* Whether it computes with the unit where its stage does. */
static inline bool ox_proof_has(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_holds(input, unit_idx) || ox_proof_borrows(input, unit_idx);
}
static inline bool ox_proof_lends(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_holds(input, unit_idx) && ox_proof_borrower(input, unit_idx) != OX_NONE;
}
/* Whether the rank updates the unit: it holds it, and the unit is trained. */
static inline bool ox_proof_updates(const struct ox_plan_input *input, uint32_t unit_idx) {
    return input->model.units[unit_idx].trained && ox_proof_holds(input, unit_idx);
}
/* How many units it updates. */
static inline uint32_t ox_proof_update_count(const struct ox_plan_input *input) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < input->model.unit_count; i++) {
        count += ox_proof_updates(input, i);
    }
    return count;
}
/* How many copies of the model there are: as many as are asked for, and where no rank divides any, one on each. A copy
 * is divided among as many ranks in a row, its holders. */
static inline uint32_t ox_proof_copies(const struct ox_plan_input *input) {
    return input->ranks.sharding == OX_SHARDING_NONE ? ox_proof_ranks(input)
           : input->ranks.copies > 1 ? input->ranks.copies : 1;
}
static inline uint32_t ox_proof_holders(const struct ox_plan_input *input) {
    return ox_proof_ranks(input) / ox_proof_copies(input);
}
/* The ranks that do something together along an axis, the rank of the plan among them: the holders of its copy, those
 * of them that have the same experts, or those that have the same of each copy. */
static inline uint32_t ox_proof_members(const struct ox_plan_input *input, uint32_t axis) {
    return axis == OX_AXIS_SHARD   ? ox_proof_holders(input)
           : axis == OX_AXIS_SLICE ? ox_proof_holders(input) / ox_proof_experts(input) : ox_proof_copies(input);
}
/* The axis along which the holders of a copy divide a unit. */
static inline uint32_t ox_proof_axis_of(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_is_expert(input, unit_idx) ? OX_AXIS_SLICE : OX_AXIS_SHARD;
}
static inline uint32_t ox_proof_grad_axis(const struct ox_plan_input *input, uint32_t grad_idx) {
    return ox_proof_axis_of(input, input->model.grads[grad_idx].unit_idx);
}
static inline uint32_t ox_proof_copy_of(const struct ox_plan_input *input) {
    return ox_proof_rank_of(input) / ox_proof_holders(input);
}
/* Which of them the rank of the plan is. */
static inline uint32_t ox_proof_member_of(const struct ox_plan_input *input, uint32_t axis) {
    const uint32_t holder = ox_proof_rank_of(input) % ox_proof_holders(input);
    return axis == OX_AXIS_SHARD   ? holder
           : axis == OX_AXIS_SLICE ? holder / ox_proof_experts(input) : ox_proof_copy_of(input);
}
/* Whether each rank has its own part of the unit's weights and state, so that compute reads what was gathered from
 * these parts. */
static inline bool ox_proof_divides(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_members(input, ox_proof_axis_of(input, unit_idx)) > 1;
}
/* Whether the square sums of a unit's gradient come together on the rank: it is trained, in its coordinate. */
static inline bool ox_proof_knows_norm(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_holders(input) > 1 && input->model.units[unit_idx].trained &&
           (ox_proof_holds(input, unit_idx) ||
            (ox_proof_is_expert(input, unit_idx) && ox_proof_has_group(input, input->ranks.idx, unit_idx) &&
             ox_proof_owner(input, unit_idx) == ox_proof_pipe_of(input, input->ranks.idx)));
}
/* The elements of a unit that a rank has, [first, first + count). The chunks of a unit go to the holders in order, to
 * each as many as the largest part has, until there are none left. */
struct ox_proof_part {
    uint64_t first, count;
};
struct ox_proof_part ox_proof_part_of(const struct ox_plan_input *input, uint32_t unit_idx, uint32_t rank_idx);
static inline uint64_t ox_proof_own_elems(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_part_of(input, unit_idx, input->ranks.idx).count;
}
/* Ranks of a coordinate of the pipeline that divide the rows of the same micro-batches; groups of rows, of all of them
 * and of each. */
static inline uint32_t ox_proof_contexts(const struct ox_plan_input *input) {
    return input->ranks.contexts > 1 ? input->ranks.contexts : 1;
}
static inline uint32_t ox_proof_row_groups(const struct ox_plan_input *input) {
    return input->ranks.context_groups > 1 ? input->ranks.context_groups : 1;
}
static inline uint32_t ox_proof_own_row_groups(const struct ox_plan_input *input) {
    return ox_proof_row_groups(input) / ox_proof_contexts(input);
}
/* Sums that a slot has side by side of a gradient: of each group of rows, or of each rank whose rows its experts take.
 */
static inline uint32_t ox_proof_sums_of(const struct ox_plan_input *input, uint32_t grad_idx) {
    const bool of_expert = ox_proof_is_expert(input, input->model.grads[grad_idx].unit_idx);
    return ox_proof_own_row_groups(input) * (of_expert ? ox_proof_experts(input) : 1);
}
/* Micro-batches of the step, of all ranks, each as often as it has groups of rows; and those of the rank. */
static inline uint32_t ox_proof_micro_batches(const struct ox_plan_input *input) {
    return (ox_proof_ranks(input) > 1 ? input->ranks.micro_batches : input->model.micro_batches) *
           ox_proof_row_groups(input);
}
static inline uint32_t ox_proof_own_micro_batches(const struct ox_plan_input *input) {
    return input->model.micro_batches * ox_proof_own_row_groups(input);
}
/* How many ranks do something together along an axis on which they do not divide gradients. */
static inline uint32_t ox_proof_crossing(const struct ox_plan_input *input, uint32_t axis) {
    return axis == OX_AXIS_CONTEXT  ? ox_proof_contexts(input)
           : axis == OX_AXIS_TENSOR ? ox_proof_tensors(input)
           : axis == OX_AXIS_EXPERT ? ox_proof_experts(input) : 1;
}
/* What a micro-batch reports, what the head leaves first; and the reports of all, with what is pooled of them. */
static inline uint64_t ox_proof_report_bytes(const struct ox_plan_input *input) {
    const uint64_t of_head = input->model.loss_values > 0 ? input->model.loss_values : 1;
    return 8 * (of_head + input->model.report_doubles);
}
static inline uint64_t ox_proof_reports_bytes(const struct ox_plan_input *input) {
    return ox_proof_micro_batches(input) * ox_proof_report_bytes(input) + 8 * (uint64_t)input->model.pooled_doubles;
}
/* How many stages report that a coordinate of the pipeline computes. */
static inline uint32_t ox_proof_reporters(const struct ox_plan_input *input, uint32_t at) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < input->model.stage_count && input->model.report_doubles > 0; i++) {
        count += input->model.stages[i].reports && ox_proof_stage_owner(input, i) == at;
    }
    return count;
}
static inline uint32_t ox_proof_pipe_at(const struct ox_plan_input *input) {
    return ox_proof_pipe_of(input, input->ranks.idx);
}
static inline uint32_t ox_proof_own_reporters(const struct ox_plan_input *input) {
    return ox_proof_reporters(input, ox_proof_pipe_at(input));
}
/* Whether ranks share their reports before backward, which none of them begins with its head. */
static inline bool ox_proof_shares_in_pipe(const struct ox_plan_input *input) {
    return ox_proof_pipe(input) > 1 && input->model.pooled_doubles > 0;
}
static inline const struct ox_homes *ox_proof_homes(const struct ox_plan_input *input, uint32_t unit_idx) {
    return &input->table->shards[unit_idx].homes;
}
/* Whether the device makes the square sums of the unit's gradient; else the host does. */
bool ox_proof_counts_on_device(const struct ox_plan_input *input, uint32_t unit_idx);
/* Whether the unit's state lives on the device, where its optimizer then runs. */
static inline bool ox_proof_on_device(const struct ox_plan_input *input, uint32_t unit_idx) {
    return !input->model.eval_only && ox_proof_trained(input, unit_idx) &&
           ox_proof_homes(input, unit_idx)->state == OX_TIER_DEVICE;
}

/* Copies of the state in the store: 2, or 1 if the user gave up crash safety, or 3. */
static inline uint32_t ox_proof_generations(const struct ox_plan_input *input) {
    return input->budget.generations == 0 ? 2 : input->budget.generations;
}

/* Of hi of so many elements, or what is in its place; whether that is narrower than hi, so that no kernel but CAST
 * reads it; and of a weight that CAST makes, 0 where blocks read hi. */
uint64_t ox_proof_hi_bytes(const struct ox_plan_input *input, uint32_t unit_idx, uint64_t elems);
bool ox_proof_is_narrow(const struct ox_plan_input *input, uint32_t unit_idx);
uint32_t ox_proof_cast_bytes(const struct ox_plan_input *input, uint32_t unit_idx);
/* Planes as compute needs them, hi, followed by lo where it travels: of the whole unit, and of what this rank has of
 * it. All that follows is of what the rank has. */
uint64_t ox_proof_whole_bytes(const struct ox_plan_input *input, uint32_t unit_idx);
uint64_t ox_proof_planes_bytes(const struct ox_plan_input *input, uint32_t unit_idx);
/* Whether compute finds lo in the state, because weights and state have their home in the same memory. */
bool ox_proof_lo_in_state(const struct ox_plan_input *input, uint32_t unit_idx);
/* The unit's planes in their home in memory. */
uint64_t ox_proof_weights_home_bytes(const struct ox_plan_input *input, uint32_t unit_idx);
/* State of a unit in one piece, as memory has it, and chunk by chunk, as the store has it. */
uint64_t ox_proof_state_bytes(const struct ox_plan_input *input, uint32_t unit_idx);
uint64_t ox_proof_stored_state_bytes(const struct ox_plan_input *input, uint32_t unit_idx);

/* Whether the device rounds the finished sum of a gradient to bf16. The two sums of weights that are used twice are
 * rounded after they are added; if the optimizer runs on the host, both leave the device in fp32. */
bool ox_proof_packs(const struct ox_plan_input *input, uint32_t grad_idx);
/* Bytes of a gradient's sum over what the rank computes; of the finished sum of what the rank has of it, in fp32 and
 * packed; and of a unit's finished gradient as the optimizer reads it. */
uint64_t ox_proof_sum_bytes(const struct ox_plan_input *input, uint32_t grad_idx);
uint64_t ox_proof_slice_bytes(const struct ox_plan_input *input, uint32_t grad_idx);
/* Bytes of what the rank adds up along an axis: of the sums of the holders what it has of the gradient, of those of
 * copies its cut of that, because copies divide the adding. */
uint64_t ox_proof_cut_bytes(const struct ox_plan_input *input, uint32_t grad_idx, uint32_t axis);
/* How copies exchange a gradient as thin matrices: bytes that a rank keeps for it, of this step and the one before;
 * that it works in; and that it gives to each other copy. `used`: some matrix of the whole gradient is worth it; else
 * they exchange whole sums alone. */
struct ox_proof_low_rank {
    bool used;
    uint64_t kept, room, sent;
};
struct ox_proof_low_rank ox_proof_low_rank(const struct ox_plan_input *input, uint32_t grad_idx);
/* Whether sums are exchanged in fewer bits along an axis: the outermost one of data, if the input says so. And what so
 * many bytes of float32 take then. */
bool ox_proof_narrows(const struct ox_plan_input *input, uint32_t axis);
uint64_t ox_proof_exchanged(const struct ox_plan_input *input, uint32_t axis, uint64_t bytes);
uint64_t ox_proof_packed_bytes(const struct ox_plan_input *input, uint32_t grad_idx);
uint64_t ox_proof_reduced_bytes(const struct ox_plan_input *input, uint32_t unit_idx);
/* Bytes of a gradient's home, in memory or in the spool: the widest form in which the gradient leaves the memory where
 * it is summed. */
uint64_t ox_proof_grad_home_bytes(const struct ox_plan_input *input, uint32_t grad_idx);
/* Square sums of a finished gradient, one per group of elements: of what the rank has of a unit, of the whole unit, and
 * of all units. */
uint64_t ox_proof_norms_bytes(const struct ox_plan_input *input);
uint64_t ox_proof_whole_partials_bytes(const struct ox_plan_input *input, uint32_t unit_idx);
uint64_t ox_proof_partials_bytes(const struct ox_plan_input *input, uint32_t unit_idx);

/* Where the first stage is no embedding, its input arrives from another part of the model; where the last is no head,
 * its output leaves for one. */
static inline const struct ox_plan_stage *ox_proof_last_stage(const struct ox_plan_input *input) {
    return &input->model.stages[input->model.stage_count - 1];
}
static inline bool ox_proof_input_arrives(const struct ox_plan_input *input) {
    return input->model.stages[0].kind != OX_PLAN_EMBEDDING;
}
static inline bool ox_proof_output_leaves(const struct ox_plan_input *input) {
    return ox_proof_last_stage(input)->kind != OX_PLAN_HEAD;
}
/* The stage whose input is this one's output; OX_NONE where the list ends. */
uint32_t ox_proof_next_stage(const struct ox_plan_input *input, uint32_t stage_idx);
/* Whether the unit is one of the last, which are updated in the backward of their own step if steps overlap, and drives
 * or memory keep what that replaces. */
bool ox_proof_is_speculative(const struct ox_plan_input *input, uint32_t unit_idx);
/* Whether host memory keeps it; and its bytes there. */
bool ox_proof_saves(const struct ox_plan_input *input, uint32_t unit_idx);
uint64_t ox_proof_saved_bytes(const struct ox_plan_input *input, uint32_t unit_idx);
/* Whether what it keeps is hi alone, because such an update makes hi alone: the state follows in the next step. */
bool ox_proof_goes_ahead(const struct ox_plan_input *input, uint32_t unit_idx);
/* Whether the stage is a block that keeps what its backward needs: one of the last blocks, and able to. */
bool ox_proof_keeps(const struct ox_plan_input *input, enum ox_plan_kind kind, uint32_t stage_idx);

/* Bytes of the optimizer's stream: its slots, and one chunk in fp32. */
uint64_t ox_proof_stream_bytes(const struct ox_plan_input *input);
/* Bytes that loading and saving need after the resident part of host memory. */
uint64_t ox_proof_scratch_bytes(const struct ox_plan_input *input);

/* Extents of the spool: gradients, then activation checkpoints by stage and micro-batch. */
static inline uint32_t ox_proof_grad_extent(uint32_t grad_idx) {
    return grad_idx;
}
static inline uint32_t ox_proof_act_extent(const struct ox_plan *plan, uint32_t stage_idx, uint32_t mb_idx) {
    return plan->grad_count + plan->micro_batches * stage_idx + mb_idx;
}

#ifdef __cplusplus
}
#endif
#endif
