/* The micro-batches of a step in host memory: as they are given, and what the rank makes of them before the step. */
#include "engine/step/executor/executor.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <string.h>

struct ox_batch ox_rank_batch(struct ox_rank *rank, uint32_t mb_idx) {
    OX_ASSERT(mb_idx < rank->config.micro_batches);
    const struct ox_view all = ox_tiers_resident(&rank->tiers, rank->plan->train, rank->plan->train->batch_host_buf);
    int32_t *const ids = (int32_t *)((unsigned char *)all.ptr + mb_idx * rank->batch_bytes);
    const uint64_t rows = ox_engine_batch_rows(&rank->shape);
    int32_t *const positions = ids + rows; /* ids | positions | targets, then those of the rank's row groups */
    for (uint64_t i = 0; i < rows; i++) {
        positions[i] = (int32_t)(i % rank->shape.seq);
    }
    unsigned char *const end = (unsigned char *)ids + ox_engine_batch_ids_bytes(&rank->shape);
    return (struct ox_batch){.ids = ids, .targets = positions + rows, .positions = positions,
                             .reference = rank->shape.objective.pairs ? (double *)(void *)end : NULL};
}

void ox_rank_copy_batches(struct ox_rank *rank, const struct ox_rank *from) {
    const struct ox_view own = ox_tiers_resident(&rank->tiers, rank->plan->train, rank->plan->train->batch_host_buf);
    const struct ox_view all = ox_tiers_resident(&from->tiers, from->plan->train, from->plan->train->batch_host_buf);
    const uint64_t given = ox_engine_batch_rows(&rank->shape) * 3 * sizeof(int32_t);
    const uint64_t behind = ox_engine_batch_ids_bytes(&rank->shape);
    OX_ASSERT(rank->config.micro_batches == from->config.micro_batches);
    for (uint32_t i = 0; i < rank->config.micro_batches; i++) { /* not what the other makes of it for itself */
        const uint64_t at = i * rank->batch_bytes;
        memcpy((unsigned char *)own.ptr + at, (const unsigned char *)all.ptr + at, given);
        memcpy((unsigned char *)own.ptr + at + behind, (const unsigned char *)all.ptr + at + behind,
               rank->batch_bytes - behind);
    }
}

/* Brings rows of a micro-batch into the order of row groups, `count` of them: of each group two chunks of every
 * sequence. */
static void take_rows(const struct ox_shape *shape, uint32_t first, uint32_t count, const int32_t *from, int32_t *to) {
    const uint32_t chunks = 2 * shape->groups.all, seq = shape->seq / chunks;
    for (uint32_t i = 0; i < 2 * count; i++) {
        const uint32_t group = first + i / 2, chunk = i % 2 == 0 ? group : chunks - 1 - group;
        for (uint32_t k = 0; k < shape->batch; k++, to += seq) {
            memcpy(to, from + (uint64_t)k * shape->seq + (uint64_t)chunk * seq, seq * sizeof *to);
        }
    }
}

static void take_groups(const struct ox_rank *rank, const struct ox_plan *plan) {
    unsigned char *const all = ox_tiers_resident(&rank->tiers, plan, plan->batch_host_buf).ptr;
    const struct ox_row_groups *const groups = &rank->shape.groups;
    const uint64_t rows = ox_engine_batch_rows(&rank->shape), own = ox_engine_group_rows(&rank->shape);
    for (uint32_t i = 0; i < plan->micro_batches && own > 0; i++) {
        int32_t *const given = (int32_t *)(all + i * rank->batch_bytes);
        for (uint32_t kind = 0; kind < 3; kind++) {
            take_rows(&rank->shape, groups->first, groups->count, given + kind * rows, given + 3 * rows + kind * own);
        }
        if (ox_shape_head_ranks(&rank->shape) > 1) {
            take_rows(&rank->shape, 0, groups->all, given + rows, given + 3 * (rows + own));
        }
    }
}

/* Notes the micro-batches in which a sequence has several documents. Attention gets positions only for these, because
 * not every attention kernel supports several documents. */
static void note_packed(struct ox_rank *rank, const struct ox_plan *plan) {
    const unsigned char *const all = ox_tiers_resident(&rank->tiers, plan, plan->batch_host_buf).ptr;
    for (uint32_t mb_idx = 0; mb_idx < plan->micro_batches; mb_idx++) {
        const uint64_t rows = ox_engine_batch_rows(&rank->shape);
        const int32_t *const positions = (const int32_t *)(all + mb_idx * rank->batch_bytes) + rows;
        rank->packed[mb_idx] = false;
        for (uint64_t i = 0; i < rows && !rank->packed[mb_idx]; i++) {
            rank->packed[mb_idx] = positions[i] != (int32_t)(i % rank->shape.seq);
        }
    }
}

void ox_rank_take_batches(struct ox_rank *rank, const struct ox_plan *plan) {
    note_packed(rank, plan);
    take_groups(rank, plan);
}

/* ---- what they come to ---- */

static uint64_t logits_bytes(const struct ox_rank *rank) {
    return (uint64_t)rank->shape.rows * ox_shape_own_groups(&rank->shape) * rank->config.model->config.vocab *
           sizeof(float);
}

/* Which row of all that the sequences of a micro-batch have, one sequence after the other, is a row of the rank's row
 * groups: these have two chunks of each sequence. */
static uint64_t logits_at(const struct ox_rank *rank, uint64_t row) {
    const struct ox_row_groups *const groups = &rank->shape.groups;
    if (groups->all <= 1) {
        return row;
    }
    const uint64_t chunks = 2ull * groups->all, chunk_rows = rank->shape.seq / chunks, piece = row / chunk_rows;
    const uint64_t half = piece / rank->shape.batch, group = groups->first + half / 2;
    const uint64_t chunk = half % 2 == 0 ? group : chunks - 1 - group;
    return (piece % rank->shape.batch * chunks + chunk) * chunk_rows + row % chunk_rows;
}

/* Copies those of the rank's rows and tokens. */
static enum ox_status copy_logits(struct ox_rank *rank, float *logits) {
    const uint32_t vocab = rank->config.model->config.vocab, groups = ox_model_groups(&rank->config.model->config);
    const uint32_t first = rank->shape.features.first, past = first + ox_shape_own_features(&rank->shape);
    const uint64_t begin = ox_groups_begin(vocab, groups, first), end = ox_groups_begin(vocab, groups, past);
    const uint64_t rows = (uint64_t)rank->shape.rows * ox_shape_own_groups(&rank->shape);
    struct ox_mark done = {0};
    enum ox_status status = OX_OK;
    for (uint64_t row = 0; row < rows && status == OX_OK; row++) {
        const struct ox_copy copy = {.target = logits + logits_at(rank, row) * vocab + begin,
                                     .source = rank->logits_buffer + row * vocab + begin,
                                     .bytes = (end - begin) * sizeof(float)};
        status = ox_device_lane_copy(rank->device, rank->lanes[OX_LANE_D2H], &copy, &done);
    }
    return status == OX_OK ? ox_mark_join(done) : status;
}

/* Copies the logits that a test requests, from device memory that no plan counts. */
enum ox_status ox_rank_take_logits(struct ox_rank *rank, const struct ox_step_input *input, enum ox_status status) {
    const uint64_t bytes = logits_bytes(rank);
    if (rank->logits_buffer == NULL) {
        return status;
    }
    OX_THEN(status, copy_logits(rank, input->logits));
    ox_device_mem_close(rank->device, rank->logits_buffer, bytes);
    rank->logits_buffer = NULL;
    return status;
}

enum ox_status ox_rank_make_logits(struct ox_rank *rank, const struct ox_step_input *input) {
    return input->logits == NULL ? OX_OK : ox_device_mem_open(rank->device, logits_bytes(rank),
                                                              (void **)&rank->logits_buffer);
}

const double *ox_rank_losses(const struct ox_rank *rank, uint32_t *stride) {
    *stride = (uint32_t)(ox_plan_report_bytes(&rank->plan->input.model) / sizeof(double));
    return ox_tiers_resident(&rank->tiers, rank->step.plan, rank->step.plan->loss_host_buf).ptr;
}

const double *ox_rank_join_losses(const struct ox_rank *rank, uint32_t *stride) {
    double *const all = ox_tiers_resident(&rank->tiers, rank->step.plan, rank->step.plan->loss_host_buf).ptr;
    const struct ox_plan_input *const input = &rank->plan->input;
    const uint64_t groups = ox_plan_row_groups(input), one = ox_plan_report_bytes(&input->model) / sizeof(double);
    const uint64_t values = ox_plan_sums(input).micro_batches / groups * one; /* of one group */
    for (uint64_t i = values; i < groups * values; i++) {
        all[i % values] += all[i];
    }
    return ox_rank_losses(rank, stride);
}
