/* Exchanges of low rank beside the step: which matrices they have, and for checkpoints what they keep between steps,
 * the residuals of blocks and their Q. */
#include "engine/step/engine_internal.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <stdio.h>
#include <stdlib.h>

enum ox_status ox_engine_low_rank_open(const struct ox_engine_config *config, struct ox_engine_plan *plan) {
    const struct ox_model *const model = config->model;
    uint32_t count = 0;
    if (config->low_rank.rank == 0 || config->eval_only || ox_plan_copies(&plan->input) == 1) {
        return OX_OK;
    }
    OX_ASSERT(ox_engine_on_cpu(config) && config->exchange == OX_EXCHANGE_FP32 && !config->library_sums);
    plan->matrices = calloc(model->tensor_count + 1u, sizeof *plan->matrices);
    plan->matrices_of = calloc(model->unit_count + 1u, sizeof *plan->matrices_of);
    plan->matrix_tensors = calloc(model->tensor_count + 1u, sizeof *plan->matrix_tensors);
    if (plan->matrices == NULL || plan->matrices_of == NULL || plan->matrix_tensors == NULL) {
        return ox_fail(OX_E_NOMEM, "plan: no memory for the matrices of its model");
    }
    for (uint32_t i = 0; i < model->unit_count; i++) {
        const struct ox_tensor *tensor = NULL;
        while ((tensor = ox_unit_next_tensor(model, &model->units[i], tensor)) != NULL) {
            const uint64_t rows = tensor->shape[0] * (tensor->rank > 2 ? tensor->shape[1] : 1);
            if (tensor->trained && tensor->rank > 1 && rows <= UINT32_MAX) {
                plan->matrix_tensors[count] = (uint32_t)(tensor - model->tensors);
                plan->matrices[count++] = (struct ox_low_rank_matrix){
                    .first = tensor->offset, .rows = (uint32_t)rows, .cols = (uint32_t)(tensor->count / rows)};
            }
        }
        plan->matrices_of[i + 1] = count;
    }
    plan->low_rank = (struct ox_low_rank){.rank = config->low_rank.rank, .min_rate = config->low_rank.min_rate,
                                          .matrices = plan->matrices, .first_of = plan->matrices_of};
    plan->input.ranks.low_rank = &plan->low_rank;
    return OX_OK;
}

/* Which use of its unit a gradient is of. */
static uint32_t use_of(const struct ox_plan_model *model, uint32_t grad_idx) {
    uint32_t use = 0;
    uint32_t i = model->units[model->grads[grad_idx].unit_idx].grad_idx;
    for (; i != grad_idx; i = model->grads[i].addend) {
        use++;
    }
    return use;
}

static float *kept_of(const struct ox_rank *rank, uint32_t grad_idx, const struct ox_low_rank_sizes *sizes) {
    float *const both = (float *)(void *)ox_rank_resident_ptr(rank, ox_plan_residual(rank->plan->train, grad_idx));
    return both + (rank->low_rank_half ? ox_low_rank_kept(sizes) : 0);
}

/* The blocks of a gradient in a rank's slice, and what is kept of them from `kept` on; NULL: they are listed alone. */
static enum ox_status each_of_gradient(const struct ox_engine *engine, const struct ox_plan_input *input,
                                       uint32_t grad_idx, float *kept, ox_residual_fn *fn, void *context) {
    const struct ox_low_rank_sizes sizes = ox_low_rank_sizes(input, grad_idx);
    struct ox_low_rank_block block = {0};
    enum ox_status status = OX_OK;
    float *rest = kept, *q = kept == NULL ? NULL : kept + sizes.blocks;
    while (status == OX_OK && ox_low_rank_next(input, grad_idx, &block)) {
        status = fn(context, &(struct ox_residual){
            .tensor_idx = engine->plan->matrix_tensors[block.matrix_idx], .use = use_of(&input->model, grad_idx),
            .row_first = block.row_first, .rows = block.rows, .cols = block.cols, .rank = block.rank,
            .rest = rest, .q = q});
        rest = kept == NULL ? NULL : rest + (uint64_t)block.rows * block.cols;
        q = kept == NULL ? NULL : q + (uint64_t)block.cols * block.rank;
    }
    return status;
}

bool ox_engine_has_residuals(const struct ox_engine *engine) {
    return engine->plan->input.ranks.low_rank != NULL;
}

enum ox_status ox_engine_list_residuals(const struct ox_engine *engine, ox_residual_fn *fn, void *context) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < ox_plan_rank_count(&engine->plan->input) && status == OX_OK; i++) {
        const struct ox_plan_input *const input = &ox_engine_plan_at(engine->plan, i)->input;
        for (uint32_t k = 0; k < input->model.grad_count && ox_rank_of_first_copy(input) && status == OX_OK; k++) {
            status = each_of_gradient(engine, input, k, NULL, fn, context);
        }
    }
    return status;
}

enum ox_status ox_engine_each_residual(struct ox_engine *engine, bool one_copy, ox_residual_fn *fn, void *context) {
    enum ox_status status = OX_OK;
    OX_ASSERT(ox_engine_has_residuals(engine));
    for (uint32_t i = 0; i < engine->seat_count && status == OX_OK; i++) {
        const struct ox_rank *const rank = engine->seats[i].rank;
        const struct ox_plan_input *const input = &rank->plan->input;
        const uint32_t count = !one_copy || ox_rank_of_first_copy(input) ? input->model.grad_count : 0;
        for (uint32_t k = 0; k < count && status == OX_OK; k++) {
            const struct ox_low_rank_sizes sizes = ox_low_rank_sizes(input, k);
            float *const kept = sizes.count > 0 ? kept_of(rank, k, &sizes) : NULL;
            status = kept != NULL ? each_of_gradient(engine, input, k, kept, fn, context) : OX_OK;
        }
    }
    return status;
}

/* Replaces numbers by their mean over copies, in pieces for which the scratch has room. All copies add in the same
 * order, so they end with the same bits. */
static enum ox_status average(struct ox_rank *rank, float *numbers, uint64_t count, uint32_t grad_idx) {
    const struct ox_view room = ox_tiers_scratch(&rank->tiers, rank->plan->train);
    const uint32_t copies = ox_plan_copies(&rank->plan->input);
    const uint64_t piece = room.bytes / sizeof *numbers / copies;
    float *const all = room.ptr;
    enum ox_status status = OX_OK;
    OX_ASSERT(piece > 0);
    for (uint64_t first = 0; first < count && status == OX_OK; first += piece) {
        const uint64_t own = ox_min_u64(piece, count - first);
        uint64_t cuts[OX_COMM_RANKS_MAX + 1];
        char what[OX_COMM_WHAT_BYTES];
        for (uint32_t i = 0; i <= copies; i++) {
            cuts[i] = i * own * sizeof *numbers;
        }
        snprintf(what, sizeof what, "residuals of gradient %u", grad_idx);
        status = ox_comm_gather(rank->along[OX_AXIS_COPY], &(struct ox_comm_gather){
            .source = numbers + first, .target = all, .cuts = cuts, .on_host = true, .what = what});
        for (uint64_t k = 0; k < own && status == OX_OK; k++) {
            double sum = 0;
            for (uint32_t i = 0; i < copies; i++) {
                sum += (double)all[i * own + k];
            }
            numbers[first + k] = (float)(sum / copies);
        }
    }
    return status;
}

static enum ox_status average_all(struct ox_seat *seat, void *context) {
    struct ox_rank *const rank = seat->rank;
    const struct ox_plan_input *const input = &rank->plan->input;
    enum ox_status status = OX_OK;
    (void)context;
    for (uint32_t i = 0; i < input->model.grad_count && status == OX_OK; i++) {
        const struct ox_low_rank_sizes sizes = ox_low_rank_sizes(input, i);
        status = sizes.count > 0 ? average(rank, kept_of(rank, i, &sizes), sizes.blocks, i) : OX_OK;
    }
    return status;
}

enum ox_status ox_engine_average_residuals(struct ox_engine *engine) {
    engine->averaged_step = ox_first_rank(engine)->planes.step;
    return ox_engine_has_residuals(engine) ? ox_engine_all(engine, average_all, NULL, "the mean of residuals") : OX_OK;
}
