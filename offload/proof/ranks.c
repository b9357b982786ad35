/* The plans of ranks that do a step together: those of one coordinate of a pipeline, which are all without one.
 *
 * Each plan is proven alone: what a task does together with other ranks ends there when it ends. So it remains to show
 * that all ranks come to it. Such tasks are those of the lane LINK, also where each group of ranks on an axis does one
 * by itself, and the tasks that begin and end a transaction. They are the same in the lists of a coordinate, in the
 * same order. Take the first of them that has not ended on some rank: whatever comes before it in a list is either over
 * or waits for no other rank, so every rank comes to it, and it ends. Coordinates of a pipeline have different lists,
 * and send to each other, so joint.c plays them. */
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

/* How many of the step's micro-batches come before those of a rank: all of the groups before its own. */
static uint64_t micro_batches_before(const struct ox_plan_ranks *ranks, uint32_t of_data, uint32_t rank_idx) {
    const uint64_t groups = ranks->sum_groups, before = (groups * rank_idx + of_data - 1) / of_data;
    return (ranks->micro_batches * before + groups - 1) / groups;
}

/* Checks the input of one rank, which must be one of `count`. */
static enum ox_status check_input(const struct ox_plan_input *input, const struct ox_plan_input *first, uint32_t idx,
                                  uint32_t count) {
    const struct ox_plan_ranks *const ranks = &input->ranks, *const others = &first->ranks;
    const uint32_t pipe = ranks->pipe > 1 ? ranks->pipe : 1, of_data = count / pipe;
    if (count % pipe != 0 || (pipe > 1 && (ranks->pipe != others->pipe || !same_owners(input, first)))) {
        return refuse(idx, "the units are not divided over the pipeline");
    }
    if (ranks->count != count || ranks->idx != idx || ranks->sum_groups < of_data ||
        ranks->micro_batches < ranks->sum_groups) {
        return refuse(idx, "there is not work for as many ranks");
    }
    if (ranks->library_sums && ranks->sum_groups != of_data) {
        return refuse(idx, "the library adds sums that are in several parts");
    }
    if (ranks->sum_groups != others->sum_groups || ranks->library_sums != others->library_sums ||
        ranks->micro_batches != others->micro_batches || ranks->sharding != others->sharding ||
        ranks->copies != others->copies || !same_models(input, first)) {
        return refuse(idx, "the step is not the same");
    }
    if (ranks->copies > 1 && (of_data % ranks->copies != 0 || (ranks->library_sums && ranks->copies != of_data &&
                                                               ranks->sharding != OX_SHARDING_NONE))) {
        return refuse(idx, "the ranks do not divide into copies");
    }
    if (input->model.micro_batches != micro_batches_before(ranks, of_data, idx % of_data + 1) -
                                            micro_batches_before(ranks, of_data, idx % of_data)) {
        return refuse(idx, "the micro-batches are not divided");
    }
    return OX_OK;
}

/* ---- what ranks do together ------------------------------------------------------------------------- */

static bool is_joint(const struct ox_task *task) {
    return task->lane == OX_LANE_LINK || task->kind == OX_TASK_BEGIN || task->kind == OX_TASK_COMMIT;
}

/* The first such task from `at` on; the number of tasks if there is none. */
static uint32_t next_joint(const struct ox_plan *plan, uint32_t at) {
    while (at < plan->task_count && !is_joint(&plan->tasks[at])) {
        at++;
    }
    return at;
}

static bool same_tasks(const struct ox_task *a, const struct ox_task *b) {
    return a->kind == b->kind && a->lane == b->lane && a->move == b->move && a->last == b->last &&
           a->carried == b->carried && a->axis == b->axis && a->when == b->when && a->unit_idx == b->unit_idx &&
           a->stage_idx == b->stage_idx && a->grad_idx == b->grad_idx && a->mb_idx == b->mb_idx && a->slot == b->slot;
}

/* Follows both lists. A rank knows of each unit alone whether an update is due, so no joint task may depend on that. */
static enum ox_status check_joint(const struct ox_plan *plan, const struct ox_plan *first, uint32_t idx) {
    uint32_t i = next_joint(plan, 0), k = next_joint(first, 0);
    for (; i < plan->task_count && k < first->task_count; i = next_joint(plan, i + 1), k = next_joint(first, k + 1)) {
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
        OX_THEN(status, check_joint(plans[i], plans[i - i % ox_proof_ranks(inputs[i])], i));
    }
    return status == OX_OK && ox_proof_pipe(inputs[0]) > 1 ? ox_proof_check_pipe(plans, inputs, count) : status;
}
