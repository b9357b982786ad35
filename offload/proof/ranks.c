/* The plans of ranks that do a step together: those of one coordinate of a pipeline, which are all without one.
 *
 * Each plan is proven alone: what a task does together with other ranks ends there when it ends. So it remains to show
 * that all ranks come to it. Such tasks are those of the lane LINK, also where each group of ranks on an axis does one
 * by itself, and the tasks that begin and end a transaction. They are the same in the lists of a coordinate, in the
 * same order. Take the first of them that has not ended on some rank: whatever comes before it in a list is either over
 * or waits for no other rank, so every rank comes to it, and it ends. What crosses between the phases of a pass is done
 * once for each micro-batch, of which other ranks than those that share it may have more or fewer: there lists are the
 * same among those that share their micro-batches, and all the rest on all. Take the ranks that have ended the fewest
 * of the rest, among those of them that share their micro-batches one that has come least far: it waits for ranks that
 * have come as far, or to the rest. Coordinates of a pipeline have different lists, and send to each other; those that
 * divide groups of features have other units: so joint.c plays them. */
#include "offload/proof/proof_internal.h"
#include "offload/proof/sizes.h"

static enum ox_status refuse(uint32_t rank_idx, const char *what) {
    return ox_fail(OX_E_CONFIG, "plan is wrong: %s on rank %u as on rank 0; please report this", what, rank_idx);
}

/* ---- what ranks agree on --------------------------------------------------------------------------- */

static bool same_stages(const struct ox_plan_model *a, const struct ox_plan_model *b) {
    bool same = a->stage_count == b->stage_count;
    for (uint32_t i = 0; i < a->stage_count && same; i++) {
        same = a->stages[i].kind == b->stages[i].kind && a->stages[i].unit_count == b->stages[i].unit_count;
        for (uint32_t k = 0; k < a->stages[i].unit_count && same; k++) {
            same = a->stages[i].units[k].unit_idx == b->stages[i].units[k].unit_idx &&
                   a->stages[i].units[k].grad_idx == b->stages[i].units[k].grad_idx;
        }
    }
    return same;
}

static bool same_models(const struct ox_plan_input *a, const struct ox_plan_input *b) {
    bool same = a->model.unit_count == b->model.unit_count && a->model.grad_count == b->model.grad_count &&
                a->model.precision->dtype == b->model.precision->dtype && a->model.grad_bf16 == b->model.grad_bf16 &&
                a->table->chunk_elems == b->table->chunk_elems && same_stages(&a->model, &b->model);
    for (uint32_t i = 0; i < a->model.unit_count && same; i++) {
        same = ox_proof_elems(a, i) == ox_proof_elems(b, i) && ox_proof_trained(a, i) == ox_proof_trained(b, i) &&
               a->model.order[i] == b->model.order[i];
    }
    for (uint32_t i = 0; i < a->model.grad_count && same; i++) {
        same = a->model.grads[i].unit_idx == b->model.grads[i].unit_idx &&
               a->model.grads[i].elem_count == b->model.grads[i].elem_count;
    }
    return same;
}

/* Whether both say the same of who has which unit; each unit has one of the coordinates. */
static bool same_owners(const struct ox_plan_input *a, const struct ox_plan_input *b) {
    bool same = a->model.unit_count == b->model.unit_count && a->ranks.pipe_of != NULL && b->ranks.pipe_of != NULL;
    for (uint32_t i = 0; i < a->model.unit_count && same; i++) {
        same = a->ranks.pipe_of[i] == b->ranks.pipe_of[i] && a->ranks.pipe_of[i] < a->ranks.pipe;
    }
    return same;
}

static bool is_power(uint64_t number) {
    return (number & (number - 1)) == 0;
}

/* Whether both say the same of which group of features each unit is, and groups are divided evenly. */
static bool same_groups(const struct ox_plan_input *a, const struct ox_plan_input *b) {
    const uint32_t *const x = a->ranks.group_of, *const y = b->ranks.group_of, groups = a->ranks.tensor_groups;
    bool same = a->model.unit_count == b->model.unit_count && x != NULL && y != NULL &&
                groups == b->ranks.tensor_groups && groups % ox_proof_tensors(a) == 0;
    for (uint32_t i = 0; i < a->model.unit_count && same; i++) {
        same = x[i] == y[i] && (x[i] < groups || x[i] == OX_NONE);
    }
    return same;
}

/* Whether both say the same of who has which experts, and each of those who divide them has as many micro-batches and
 * sums that are nodes of the tree, which join as one. */
static bool same_experts(const struct ox_plan_input *a, const struct ox_plan_input *b) {
    const uint32_t *const x = a->ranks.expert_of, *const y = b->ranks.expert_of, experts = a->ranks.experts;
    const uint32_t ranks = ox_proof_ranks(a), leaves = a->ranks.sum_groups * ox_proof_row_groups(a);
    bool same = x != NULL && y != NULL && a->model.unit_count == b->model.unit_count &&
                ox_proof_holders(a) % experts == 0 && is_power(experts) && leaves % ranks == 0 &&
                is_power(leaves / ranks) && a->ranks.micro_batches % a->ranks.sum_groups == 0 &&
                !a->ranks.library_sums && ox_proof_own_row_groups(a) == 1;
    for (uint32_t i = 0; i < a->model.unit_count && same; i++) {
        same = x[i] == y[i] && (x[i] < experts || x[i] == OX_NONE);
    }
    return same;
}

/* How many of the step's micro-batches come before those of a rank, of as many with others: all of the groups before
 * its own. */
static uint64_t micro_batches_before(const struct ox_plan_ranks *ranks, uint32_t of_batch, uint32_t rank_idx) {
    const uint64_t groups = ranks->sum_groups, before = (groups * rank_idx + of_batch - 1) / of_batch;
    return (ranks->micro_batches * before + groups - 1) / groups;
}

/* Whether what each rank sums of the tree is what its groups of rows have summed, joined: each group of rows has a
 * power of two of leaves, unless there is one group; and a rank has one group, or all sum groups of a power of two of
 * them, or all. */
static bool joins_as_nodes(const struct ox_plan_ranks *ranks, uint32_t groups, uint32_t contexts, uint32_t of_batch) {
    const uint32_t own = groups / contexts, sum_groups = ranks->sum_groups > 1 ? ranks->sum_groups : 1;
    return groups == 1 ||
           (is_power(sum_groups) && (own == 1 || (of_batch == 1 && (is_power(own) || contexts == 1))));
}

/* Checks the input of one rank, which must be one of `count`. */
static enum ox_status check_input(const struct ox_plan_input *input, const struct ox_plan_input *first, uint32_t idx,
                                  uint32_t count) {
    const struct ox_plan_ranks *const ranks = &input->ranks, *const others = &first->ranks;
    const uint32_t pipe = ranks->pipe > 1 ? ranks->pipe : 1, tensors = ox_proof_tensors(input);
    const uint32_t of_data = count / pipe / tensors;
    const uint32_t contexts = ox_proof_contexts(input), groups = ox_proof_row_groups(input);
    const uint32_t of_batch = of_data / contexts;
    if (of_data % contexts != 0 || groups % contexts != 0 || contexts != ox_proof_contexts(first) ||
        groups != ox_proof_row_groups(first) || !joins_as_nodes(ranks, groups, contexts, of_batch)) {
        return refuse(idx, "the rows are not divided");
    }
    if (tensors != ox_proof_tensors(first) || count % (pipe * tensors) != 0 ||
        (tensors > 1 && !same_groups(input, first))) {
        return refuse(idx, "the groups of features are not divided");
    }
    if (ox_proof_experts(input) != ox_proof_experts(first) ||
        (ox_proof_experts(input) > 1 && !same_experts(input, first))) {
        return refuse(idx, "the experts are not divided");
    }
    if (count % pipe != 0 || (pipe > 1 && (ranks->pipe != others->pipe || !same_owners(input, first)))) {
        return refuse(idx, "the units are not divided over the pipeline");
    }
    if (ranks->count != count || ranks->idx != idx || ranks->sum_groups < of_batch ||
        ranks->micro_batches < ranks->sum_groups) {
        return refuse(idx, "there is not work for as many ranks");
    }
    if (ranks->library_sums && (ranks->sum_groups * groups != of_data || ranks->exchange != OX_EXCHANGE_FP32)) {
        return refuse(idx, "the library adds sums that are in several parts, or rounded");
    }
    if (ranks->sum_groups != others->sum_groups || ranks->library_sums != others->library_sums ||
        ranks->exchange != others->exchange || ranks->low_rank != others->low_rank ||
        ranks->micro_batches != others->micro_batches || ranks->sharding != others->sharding ||
        ranks->copies != others->copies || !same_models(input, first)) {
        return refuse(idx, "the step is not the same");
    }
    if (ranks->copies > 1 && (of_data % ranks->copies != 0 || (ranks->library_sums && ranks->copies != of_data &&
                                                               ranks->sharding != OX_SHARDING_NONE))) {
        return refuse(idx, "the ranks do not divide into copies");
    }
    if (input->model.micro_batches != micro_batches_before(ranks, of_batch, idx % of_batch + 1) -
                                            micro_batches_before(ranks, of_batch, idx % of_batch)) {
        return refuse(idx, "the micro-batches are not divided");
    }
    return OX_OK;
}

/* ---- what ranks do together ------------------------------------------------------------------------- */

static bool is_joint(const struct ox_task *task) {
    return task->lane == OX_LANE_LINK || task->kind == OX_TASK_BEGIN || task->kind == OX_TASK_COMMIT;
}

/* Which of them lists are compared by: all; those without what crosses between phases; those without the sums of
 * experts, which their holders alone have. */
enum joint_tasks { ALL_JOINT, WITHOUT_ROWS, WITHOUT_EXPERTS };

static bool counts(const struct ox_plan_input *input, const struct ox_task *task, enum joint_tasks which) {
    const bool rows = task->kind == OX_TASK_MOVE && task->move == OX_MOVE_ROWS;
    const bool of_expert = task->axis == OX_AXIS_SLICE ||
                           (task->grad_idx < input->model.grad_count && ox_proof_is_expert(input, task->unit_idx));
    return is_joint(task) && !(which == WITHOUT_ROWS && rows) && !(which == WITHOUT_EXPERTS && of_expert);
}

/* The first such task from `at` on; the number of tasks if there is none. */
static uint32_t next_joint(const struct ox_plan *plan, const struct ox_plan_input *input, uint32_t at,
                           enum joint_tasks which) {
    while (at < plan->task_count && !counts(input, &plan->tasks[at], which)) {
        at++;
    }
    return at;
}

static bool same_tasks(const struct ox_task *a, const struct ox_task *b) {
    return a->phase == b->phase && a->pass == b->pass && a->kind == b->kind && a->lane == b->lane &&
           a->move == b->move && a->last == b->last &&
           a->carried == b->carried && a->axis == b->axis && a->when == b->when && a->unit_idx == b->unit_idx &&
           a->stage_idx == b->stage_idx && a->grad_idx == b->grad_idx && a->mb_idx == b->mb_idx && a->slot == b->slot;
}

/* Follows both lists. A rank knows of each unit alone whether an update is due, so no joint task may depend on that. */
static enum ox_status check_joint(const struct ox_plan *plan, const struct ox_plan *first,
                                  const struct ox_plan_input *input, enum joint_tasks which) {
    const uint32_t idx = input->ranks.idx;
    uint32_t i = next_joint(plan, input, 0, which), k = next_joint(first, input, 0, which);
    for (; i < plan->task_count && k < first->task_count;
         i = next_joint(plan, input, i + 1, which), k = next_joint(first, input, k + 1, which)) {
        if (!same_tasks(&plan->tasks[i], &first->tasks[k])) {
            return ox_proof_fault(plan, i, "is not what rank 0 does next together with other ranks");
        }
        if ((plan->tasks[i].when & OX_FACTS_OF_UNIT) != 0) {
            return ox_proof_fault(plan, i, "waits for other ranks where they need not come");
        }
    }
    return i < plan->task_count || k < first->task_count ? refuse(idx, "not as much is done with others") : OX_OK;
}

enum ox_status ox_proof_check_ranks(const struct ox_plan *const *plans, const struct ox_plan_input *const *inputs,
                                    uint32_t count) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        status = plans[i]->kind == plans[0]->kind ? OX_OK : refuse(i, "the step is not of the kind");
        OX_THEN(status, check_input(inputs[i], inputs[0], i, count));
        if (status == OX_OK) {
            const uint32_t of_data = ox_proof_ranks(inputs[i]), of_batch = of_data / ox_proof_contexts(inputs[i]);
            const uint32_t first = i - i % of_data;
            const uint32_t experts = ox_proof_experts(inputs[i]), alike = experts > 1 ? i % experts : i % of_batch;
            status = check_joint(plans[i], plans[first], inputs[i], experts > 1 ? WITHOUT_EXPERTS : WITHOUT_ROWS);
            OX_THEN(status, check_joint(plans[i], plans[first + alike], inputs[i], ALL_JOINT));
        }
    }
    const bool apart = ox_proof_pipe(inputs[0]) > 1 || ox_proof_tensors(inputs[0]) > 1 ||
                       ox_proof_experts(inputs[0]) > 1;
    return status == OX_OK && apart ? ox_proof_check_pipe(plans, inputs, count) : status;
}
