/* The owner map: which coordinate of a pipeline holds which unit. Stages that share units, or whose backward starts
 * from the same activations, stay together; the head counts by its work. */
#include "offload/plan/schedule.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

/* ---- what belongs together ------------------------------------------------------------------------ */

/* Successive stages that one coordinate has to compute, and their work. */
struct part {
    uint32_t first, past;
    double work;
};

static bool shares_unit(const struct ox_plan_stage *a, const struct ox_plan_stage *b) {
    for (uint32_t i = 0; i < a->unit_count; i++) {
        for (uint32_t k = 0; k < b->unit_count; k++) {
            if (a->units[i].unit_idx == b->units[k].unit_idx) {
                return true;
            }
        }
    }
    return false;
}

/* `known`: the model says what its passes take. */
static double work_of(const struct ox_plan_stage *stage, bool known) {
    if (known) {
        return ox_pipe_flops(&stage->forward.work) * (stage->kind == OX_PLAN_HEAD ? 0 : 1) +
               ox_pipe_flops(&stage->backward.work);
    }
    return stage->kind == OX_PLAN_EMBEDDING ? 0 : 3;
}

static uint32_t list_parts(const struct ox_plan_model *model, struct part *out) {
    const bool known = ox_pipe_most_flops(model) > 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < model->stage_count; i++) {
        const struct ox_plan_stage *const stage = &model->stages[i];
        const double work = work_of(stage, known);
        if (i > 0 && (stage->starts_back > 0 || stage->routed_back > 0 || shares_unit(stage, &model->stages[i - 1]))) {
            out[count - 1].past = i + 1;
            out[count - 1].work += work;
        } else {
            out[count++] = (struct part){i, i + 1, work};
        }
    }
    return count;
}

/* A unit belongs to where it is used first: a head borrows the table of the embedding. */
static void give(const struct ox_plan_model *model, struct part part, uint32_t at, uint32_t *out) {
    for (uint32_t i = part.first; i < part.past; i++) {
        for (uint32_t k = 0; k < model->stages[i].unit_count; k++) {
            const uint32_t unit_idx = model->stages[i].units[k].unit_idx;
            out[unit_idx] = model->units[unit_idx].stage_idx == i ? at : out[unit_idx];
        }
    }
}

/* ---- contiguous runs ------------------------------------------------------------------------------ */

/* Whether `runs` runs, none of more than `most` work, hold all parts; each has one or more. Notes where each begins. */
static bool cuts_into(const struct part *parts, uint32_t count, uint32_t runs, double most, uint32_t *first) {
    uint32_t at = 0;
    for (uint32_t run = 0; run < runs; run++) {
        double work = 0;
        first[run] = at;
        for (uint32_t own = 0; at < count; own++, at++) {
            const bool room = own == 0 || work + parts[at].work <= most;
            if (!room || (own > 0 && count - at <= runs - 1 - run)) { /* the others need one each */
                break;
            }
            work += parts[at].work;
        }
        if (work > most) {
            return false;
        }
    }
    first[runs] = at;
    return at == count;
}

static void cut(const struct ox_plan_model *model, const struct part *parts, uint32_t count, uint32_t pipe,
                uint32_t runs, uint32_t *first, uint32_t *out) {
    double low = 0, high = 0;
    for (uint32_t i = 0; i < count; i++) {
        high += parts[i].work;
    }
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        *(cuts_into(parts, count, runs, middle, first) ? &high : &low) = middle;
    }
    OX_ASSERT(cuts_into(parts, count, runs, high, first) || cuts_into(parts, count, runs, 2 * high + 1, first));
    for (uint32_t run = 0; run < runs; run++) {
        for (uint32_t i = first[run]; i < first[run + 1]; i++) {
            give(model, parts[i], run % pipe, out);
        }
    }
}

/* ---- in turn -------------------------------------------------------------------------------------- */

/* How parts are dealt: in turn, but `heavy`, which has the last part, takes none in the last `skips` rounds. The
 * first part, which is an embedding with hardly any work, goes to the same coordinate as the second. */
static void deal(const struct ox_plan_model *model, const struct part *parts, uint32_t count, uint32_t pipe,
                 uint32_t heavy, uint32_t skips, uint32_t *out) {
    const bool light = model->stages[0].kind == OX_PLAN_EMBEDDING && parts[0].past == 1 && count > pipe + 1;
    const uint32_t dealt = count - 1 - light, in_skips = skips * (pipe - 1);
    uint32_t at = 0;
    for (uint32_t i = 0; i < dealt; i++) {
        const bool skipping = i + in_skips >= dealt;
        at = i == 0 ? 0 : (at + 1) % pipe;
        at = skipping && at == heavy && pipe > 1 ? (at + 1) % pipe : at;
        give(model, parts[i + light], at, out);
    }
    if (light) {
        give(model, parts[0], 0, out);
    }
    give(model, parts[count - 1], heavy, out);
}

/* Whether a coordinate has something to train. */
static bool trains(const struct ox_plan_model *model, const struct ox_plan_ranks *ranks, uint32_t at) {
    bool any = model->eval_only;
    for (uint32_t i = 0; i < model->unit_count && !any; i++) {
        any = model->units[i].trained && ox_plan_owner(ranks, i) == at;
    }
    return any;
}

/* Whether each of them has. */
static bool all_train(const struct ox_plan_model *model, const struct ox_plan_ranks *ranks) {
    bool all = true;
    for (uint32_t at = 0; at < ranks->pipe && all; at++) {
        all = trains(model, ranks, at);
    }
    return all;
}

/* Deals in the way that ends first, where transfers take no time. A head whose table is the embedding's belongs to the
 * same coordinate. */
static enum ox_status deal_best(const struct ox_plan_model *model, const struct part *parts, uint32_t count,
                                uint32_t pipe, uint32_t *out) {
    const bool tied = shares_unit(&model->stages[0], &model->stages[model->stage_count - 1]);
    const uint32_t rounds = (count - 1) / pipe > 1 ? (count - 1) / pipe : 1;
    uint64_t best = UINT64_MAX;
    uint32_t heavy = 0, skips = 0;
    struct ox_plan_input in = {.model = *model, .ranks = {.count = pipe, .pipe = pipe, .pipe_of = out, .sum_groups = 1},
                               .placement = {.tiles = 1}};
    struct ox_pipe_trial trial;
    const enum ox_status status = ox_pipe_trial_open(model, &trial);
    for (uint32_t at = 0; at < (tied ? 1 : pipe) && status == OX_OK; at++) {
        for (uint32_t by = 0; by < rounds && by < 8; by++) {
            deal(model, parts, count, pipe, at, by, out);
            const bool ends = all_train(model, &in.ranks) &&
                              ox_pipe_time(&in, true, &trial.room, trial.visits, &trial.times);
            if (ends && trial.times.last < best) {
                best = trial.times.last;
                heavy = at;
                skips = by;
            }
        }
    }
    ox_pipe_trial_close(&trial);
    deal(model, parts, count, pipe, heavy, skips, out);
    return status;
}

enum ox_status ox_pipe_owners(const struct ox_plan_model *model, uint32_t pipe, enum ox_pipe_schedule schedule,
                              uint32_t chunks, uint32_t *out) {
    const uint32_t runs = schedule == OX_PIPE_INTERLEAVED && chunks > 1 ? chunks * pipe : pipe;
    struct part *const parts = calloc(model->stage_count, sizeof *parts);
    uint32_t *const first = calloc(runs + 1u, sizeof *first);
    enum ox_status status = parts != NULL && first != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "pipeline: no memory");
    memset(out, 0, model->unit_count * sizeof *out);
    if (status == OX_OK) {
        const uint32_t count = list_parts(model, parts);
        if (count < pipe) {
            status = ox_fail(OX_E_CONFIG, "--pipeline-parallel-size %u: the model has %u stages that can be divided; "
                             "use at most %u", pipe, count, count);
        } else if (count < runs) {
            status = ox_fail(OX_E_CONFIG, "--virtual-pipeline-size %u: the model has %u stages that can be divided, "
                             "and %u runs of stages are asked for; use at most %u", chunks, count, runs, count / pipe);
        } else if (schedule == OX_PIPE_VERTICAL && pipe > 1) {
            status = deal_best(model, parts, count, pipe, out);
        } else {
            cut(model, parts, count, pipe, runs, first, out);
        }
    }
    free(first);
    free(parts);
    return status;
}

/* ---- what cannot be ------------------------------------------------------------------------------- */

static enum ox_status check_stage(const struct ox_plan_model *model, const struct ox_plan_ranks *ranks,
                                  enum ox_pipe_schedule schedule, uint32_t stage_idx) {
    const struct ox_plan_stage *const stage = &model->stages[stage_idx];
    const uint32_t owner = ox_plan_owner(ranks, stage->units[0].unit_idx);
    for (uint32_t k = 1; k < stage->unit_count; k++) {
        const uint32_t unit_idx = stage->units[k].unit_idx;
        const bool borrows = stage->kind == OX_PLAN_HEAD && model->units[unit_idx].stage_idx == 0 &&
                             schedule != OX_PIPE_VERTICAL;
        if (ox_plan_owner(ranks, unit_idx) != owner && !borrows) {
            return ox_fail(OX_E_CONFIG, "--pipeline-schedule %s: stage %u of %u computes with units of two ranks; let "
                           "one rank have both", ox_pipe_schedule_name(schedule), stage_idx, model->stage_count);
        }
    }
    if ((stage->starts_back > 0 || stage->routed_back > 0) &&
        ox_plan_owner(ranks, model->stages[stage_idx - 1].units[0].unit_idx) != owner) {
        return ox_fail(OX_E_CONFIG, "--pipeline-parallel-size %u: stages %u and %u of %u belong to one block; let one "
                       "rank have both", ranks->pipe, stage_idx - 1, stage_idx, model->stage_count);
    }
    return OX_OK;
}

/* Whether the runs of stages belong to the coordinates in turn, as often as the schedule says. */
static bool has_runs(const struct ox_plan_model *model, const struct ox_plan_ranks *ranks, uint32_t chunks) {
    uint32_t runs = 0, before = OX_NONE;
    bool in_turn = true;
    for (uint32_t i = 0; i < model->stage_count; i++) {
        const uint32_t owner = ox_plan_owner(ranks, model->stages[i].units[0].unit_idx);
        if (owner != before) {
            in_turn = in_turn && owner == runs++ % ranks->pipe;
        }
        before = owner;
    }
    return in_turn && runs == ranks->pipe * chunks;
}

/* How many ranks divide the micro-batches, of which others have the same with other rows or features. */
static uint32_t of_data(const struct ox_plan_ranks *ranks) {
    const uint32_t contexts = ranks->contexts > 0 ? ranks->contexts : 1;
    return ranks->count / ranks->pipe / (ranks->tensors > 0 ? ranks->tensors : 1) / contexts;
}

/* Whether the ranks of a coordinate have as many micro-batches each, so that they meet as often. */
static bool has_even_work(const struct ox_plan_ranks *ranks) {
    struct ox_sums sums = {.micro_batches = ranks->micro_batches, .groups = ranks->sum_groups,
                           .ranks = of_data(ranks)};
    bool even = ranks->micro_batches % sums.ranks == 0;
    for (sums.rank = 0; sums.rank < sums.ranks && sums.ranks > 1 && even; sums.rank++) {
        even = ox_sums_count(&sums) == ranks->micro_batches / sums.ranks;
    }
    return even;
}

static enum ox_status check_schedule(const struct ox_plan_model *model, const struct ox_plan_ranks *ranks,
                                     const struct ox_placement *placement) {
    const char *const name = ox_pipe_schedule_name(placement->schedule);
    if (placement->schedule == OX_PIPE_VERTICAL) {
        return OX_OK;
    }
    const bool turns = placement->schedule == OX_PIPE_INTERLEAVED;
    if (!has_runs(model, ranks, turns && placement->chunks > 1 ? placement->chunks : 1)) {
        return ox_fail(OX_E_CONFIG, "--pipeline-schedule %s: the stages of a rank do not follow each other; use "
                       "vertical", name);
    }
    if (!has_even_work(ranks)) {
        return ox_fail(OX_E_CONFIG, "--pipeline-schedule %s: %u micro-batches in %u sum groups do not divide evenly "
                       "among %u ranks, which gather weights for each of them; use vertical, or give a multiple of %u "
                       "of both", name, ranks->micro_batches, ranks->sum_groups, of_data(ranks), of_data(ranks));
    }
    if (placement->tiles > 1) {
        return ox_fail(OX_E_CONFIG, "--tiles %u: with --pipeline-schedule %s micro-batches do not pass the stages in "
                       "groups; leave out --tiles, or use vertical", placement->tiles, name);
    }
    if (placement->schedule == OX_PIPE_INTERLEAVED && ox_pipe_group(ranks->pipe, model->micro_batches) == 0) {
        const uint32_t rounds = model->micro_batches / ranks->pipe;
        return ox_fail(OX_E_CONFIG, "--pipeline-schedule %s: %u micro-batches in groups of %u leave %u, which would "
                       "stall; use vertical, or --gradient-accumulation-steps %u", name, model->micro_batches,
                       model->micro_batches / rounds, model->micro_batches % rounds,
                       (rounds + 1) * ranks->pipe);
    }
    return OX_OK;
}

enum ox_status ox_pipe_check(const struct ox_plan_model *model, const struct ox_plan_ranks *ranks,
                             const struct ox_placement *placement) {
    if (ranks->pipe <= 1) {
        return OX_OK;
    }
    enum ox_status status = check_schedule(model, ranks, placement);
    for (uint32_t i = 0; i < model->stage_count && status == OX_OK; i++) {
        status = check_stage(model, ranks, placement->schedule, i);
    }
    for (uint32_t at = 0; at < ranks->pipe && status == OX_OK; at++) {
        if (!trains(model, ranks, at)) {
            status = ox_fail(OX_E_CONFIG, "--pipeline-parallel-size %u: nothing of what rank %u would hold is trained; "
                             "use fewer", ranks->pipe, at * (ranks->count / ranks->pipe));
        }
    }
    return status;
}
