/* What exchanges of low rank keep, in the extents of the store: one for each gradient with a block in the rank's slice,
 * written whole with each transaction, because all of it changes in each step. */
#include "engine/step/planes/planes.h"

/* Does the same with every gradient's half; *next_half: that of this step. */
static enum ox_status each(struct ox_rank *rank, enum ox_store_op_kind kind, bool next_half) {
    const struct ox_plan_input *const input = &rank->plan->input;
    uint32_t extent_idx = rank->residual_first;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; input->ranks.low_rank != NULL && i < input->model.grad_count && status == OX_OK; i++) {
        const struct ox_low_rank_sizes sizes = ox_low_rank_sizes(input, i);
        if (sizes.count == 0) {
            continue;
        }
        float *const both = (float *)(void *)ox_rank_resident_ptr(rank, ox_plan_residual(rank->plan->train, i));
        float *const half = both + (rank->low_rank_half != next_half ? ox_low_rank_kept(&sizes) : 0);
        const struct ox_store_op op = {.kind = kind, .extent_idx = extent_idx++, .buffer = half};
        status = ox_store_run(rank->chunk_slots.transfers.port, &op, 1);
    }
    return status;
}

enum ox_status ox_rank_write_residuals(struct ox_rank *rank, bool of_step) {
    return each(rank, OX_STORE_WRITE, of_step);
}

enum ox_status ox_rank_read_residuals(struct ox_rank *rank) {
    return each(rank, OX_STORE_READ, false);
}
