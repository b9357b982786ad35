/* Generators of sweeps. GPipe, 1F1B and interleaved 1F1B differ in how many micro-batches go forward before the first
 * one goes back; all of them meet every micro-batch in ascending order at each stage, as gradients are summed. */
#include "offload/plan/schedule.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <stdlib.h>

/* ---- sweeps --------------------------------------------------------------------------------------- */

static uint32_t own_stages(const struct ox_pipe_shape *shape) {
    return shape->run_first[shape->run_count];
}

static uint32_t vertical(const struct ox_pipe_shape *shape, struct ox_sweep *out) {
    uint32_t count = 0;
    for (uint32_t tile = 0; tile < shape->tiles; tile++) {
        struct ox_sweep sweep = {.mb_first = (uint32_t)((uint64_t)shape->micro_batches * tile / shape->tiles),
                                 .mb_past = (uint32_t)((uint64_t)shape->micro_batches * (tile + 1) / shape->tiles),
                                 .stage_past = own_stages(shape)};
        out[count++] = sweep;
        sweep.backward = true;
        if (shape->train) {
            out[count++] = sweep;
        }
    }
    return count;
}

uint32_t ox_pipe_group(uint32_t pipe, uint32_t micro_batches) {
    const uint32_t rounds = micro_batches / pipe > 1 ? micro_batches / pipe : 1;
    return micro_batches % rounds == 0 ? micro_batches / rounds : 0;
}

/* The sweep number `nth` of all that go forward, or back: a group of micro-batches passes one run before the next. */
static struct ox_sweep nth_sweep(const struct ox_pipe_shape *shape, uint32_t group, uint32_t nth, bool backward) {
    const uint32_t round = nth / (group * shape->run_count), run = nth / group % shape->run_count;
    const uint32_t at = backward ? shape->run_count - 1 - run : run, mb_idx = round * group + nth % group;
    return (struct ox_sweep){.mb_first = mb_idx, .mb_past = mb_idx + 1, .stage_first = shape->run_first[at],
                             .stage_past = shape->run_first[at + 1], .backward = backward};
}

/* How many go forward before the first one goes back. */
static uint32_t warm_up(const struct ox_pipe_shape *shape, uint32_t group, uint32_t all) {
    const uint32_t behind = shape->pipe - 1 - shape->at;
    const uint32_t count = shape->schedule == OX_PIPE_GPIPE || shape->pools ? all
                           : shape->schedule == OX_PIPE_1F1B ? behind : 2 * behind + (shape->run_count - 1) * group;
    return (uint32_t)ox_min_u64(count, all);
}

uint32_t ox_pipe_sweeps(const struct ox_pipe_shape *shape, struct ox_sweep *out) {
    if (shape->schedule == OX_PIPE_VERTICAL) {
        return vertical(shape, out);
    }
    const bool turns = shape->schedule == OX_PIPE_INTERLEAVED;
    const uint32_t group = turns ? ox_pipe_group(shape->pipe, shape->micro_batches) : 1;
    const uint32_t all = shape->micro_batches * shape->run_count, before = warm_up(shape, group, all);
    uint32_t count = 0;
    OX_ASSERT(group > 0);
    for (uint32_t i = 0; i < all + (shape->train ? before : 0); i++) {
        if (i < all) {
            out[count++] = nth_sweep(shape, group, i, false);
        }
        if (shape->train && i >= before) {
            out[count++] = nth_sweep(shape, group, i - before, true);
        }
    }
    return count;
}

/* ---- visits --------------------------------------------------------------------------------------- */

/* Lists the stages of a coordinate, and where its runs begin among them; returns how many runs there are. */
static uint32_t list_runs(const struct ox_plan_input *input, uint32_t at, const struct ox_pipe_room *room) {
    uint32_t count = 0, run_count = 0;
    for (uint32_t i = 0; i < input->model.stage_count; i++) {
        if (ox_plan_stage_owner(input, i) == at) {
            if (count == 0 || room->stages[count - 1] + 1 != i) {
                room->runs[run_count++] = count;
            }
            room->stages[count++] = i;
        }
    }
    room->runs[run_count] = count;
    return run_count;
}

/* Whether the stage's backward is a task of its own: a head's is part of its forward, and below the first stage that
 * trains something there is none. */
static bool goes_back(const struct ox_plan_model *model, uint32_t stage_idx, uint32_t first_back) {
    return stage_idx >= first_back && model->stages[stage_idx].kind != OX_PLAN_HEAD;
}

uint32_t ox_pipe_visits(const struct ox_plan_input *input, uint32_t at, bool train, const struct ox_pipe_room *room,
                        struct ox_pipe_visit *out) {
    const uint32_t first_back = ox_plan_first_back(&input->model);
    struct ox_pipe_shape shape = {.schedule = input->placement.schedule, .pipe = ox_plan_pipe(input), .at = at,
                                  .micro_batches = input->model.micro_batches, .tiles = input->placement.tiles,
                                  .run_first = room->runs, .train = train,
                                  .pools = input->model.pooled_doubles > 0};
    shape.run_count = list_runs(input, at, room);
    const uint32_t sweep_count = ox_pipe_sweeps(&shape, room->sweeps);
    uint32_t count = 0;
    for (uint32_t i = 0; i < sweep_count; i++) {
        const struct ox_sweep *const sweep = &room->sweeps[i];
        for (uint32_t k = 0; k < sweep->stage_past - sweep->stage_first; k++) {
            const uint32_t nth = sweep->backward ? sweep->stage_past - 1 - k : sweep->stage_first + k;
            const uint32_t stage_idx = room->stages[nth];
            if (!sweep->backward || goes_back(&input->model, stage_idx, first_back)) {
                out[count++] = (struct ox_pipe_visit){stage_idx, sweep->mb_first, sweep->mb_past, sweep->backward};
            }
        }
    }
    return count;
}

/* ---- times ---------------------------------------------------------------------------------------- */

/* What a stage takes for a micro-batch, as parts of the dearest pass of the model; where the model says nothing of its
 * work, as usual: backward twice forward, and both together in the head. */
static uint64_t cost_of(const struct ox_plan_model *model, uint32_t stage_idx, bool backward, double most, bool train) {
    const struct ox_plan_stage *const stage = &model->stages[stage_idx];
    const bool is_head = stage->kind == OX_PLAN_HEAD;
    const struct ox_plan_work *const work = backward || (is_head && train) ? &stage->backward.work
                                                                            : &stage->forward.work;
    if (most > 0) {
        return 1 + (uint64_t)(1e6 * ox_pipe_flops(work) / most);
    }
    return stage->kind == OX_PLAN_EMBEDDING ? 1 : 1000 * (is_head && train ? 3 : backward ? 2 : 1);
}

double ox_pipe_flops(const struct ox_plan_work *work) {
    return work->gemm_flops + work->attention_flops + work->attention_backward_flops;
}

double ox_pipe_most_flops(const struct ox_plan_model *model) {
    double most = 0;
    for (uint32_t i = 0; i < model->stage_count; i++) {
        const double forward = ox_pipe_flops(&model->stages[i].forward.work);
        const double backward = ox_pipe_flops(&model->stages[i].backward.work);
        most = forward > most ? forward : most;
        most = backward > most ? backward : most;
    }
    return most;
}

/* How far a coordinate has come. */
struct walk {
    uint32_t first, past, at; /* its visits among those of all, and the next one */
    uint32_t mb_idx;          /* the next micro-batch of that */
    uint64_t free, busy;
};

struct timing {
    const struct ox_plan_input *in;
    const struct ox_pipe_visit *visits;
    struct ox_pipe_times *out;
    double most;
    bool train;
};

/* When what the visit computes with is there; UINT64_MAX: not yet known. An end of 0 is one that is not known. A
 * backward that reads what the whole step reports comes behind the last forward. */
static uint64_t ready_at(const struct timing *t, const struct ox_pipe_visit *visit, uint32_t mb_idx) {
    const struct ox_plan_model *const model = &t->in->model;
    const bool first = !visit->backward && visit->stage_idx == 0;
    if (first || (visit->backward && visit->stage_idx + 1 == model->stage_count)) {
        return 0;
    }
    const uint32_t from = visit->backward ? visit->stage_idx + 1 : visit->stage_idx - 1;
    const bool back = visit->backward && model->stages[from].kind != OX_PLAN_HEAD;
    const bool pools = visit->backward && model->pooled_doubles > 0;
    const uint64_t last = ox_pipe_entry(model, model->stage_count - 1, model->micro_batches - 1, false);
    const uint64_t end = t->out->end[ox_pipe_entry(model, from, mb_idx, back)];
    const uint64_t behind = pools ? t->out->end[last] : end;
    return end == 0 || behind == 0 ? UINT64_MAX : ox_max_u64(end, behind);
}

/* Lets a coordinate work until it waits for another one; whether it did anything. */
static bool go_on(const struct timing *t, struct walk *walk) {
    bool moved = false;
    for (; walk->at < walk->past; walk->at++) {
        const struct ox_pipe_visit *const visit = &t->visits[walk->at];
        for (; walk->mb_idx < visit->mb_past; walk->mb_idx++) {
            const uint64_t ready = ready_at(t, visit, walk->mb_idx);
            if (ready == UINT64_MAX) {
                return moved;
            }
            const uint64_t cost = cost_of(&t->in->model, visit->stage_idx, visit->backward, t->most, t->train);
            const uint64_t idx = ox_pipe_entry(&t->in->model, visit->stage_idx, walk->mb_idx, visit->backward);
            t->out->begin[idx] = ox_max_u64(walk->free, ready);
            t->out->end[idx] = walk->free = t->out->begin[idx] + cost;
            walk->busy += cost;
            moved = true;
        }
        walk->mb_idx = walk->at + 1 < walk->past ? t->visits[walk->at + 1].mb_first : 0;
    }
    return moved;
}

bool ox_pipe_time(const struct ox_plan_input *input, bool train, const struct ox_pipe_room *room,
                  struct ox_pipe_visit *visits, struct ox_pipe_times *out) {
    const uint32_t pipe = ox_plan_pipe(input);
    const struct timing t = {.in = input, .visits = visits, .out = out, .most = ox_pipe_most_flops(&input->model),
                             .train = train};
    struct walk walks[OX_PIPE_MAX] = {{0}};
    uint32_t count = 0;
    bool moved = true, ended = true;
    OX_ASSERT(pipe <= OX_PIPE_MAX);
    for (uint64_t i = 0; i < 2ull * input->model.stage_count * input->model.micro_batches; i++) {
        out->begin[i] = out->end[i] = 0;
    }
    for (uint32_t at = 0; at < pipe; at++) {
        const uint32_t own = ox_pipe_visits(input, at, train, room, visits + count);
        walks[at] = (struct walk){.first = count, .past = count + own, .at = count,
                                  .mb_idx = own > 0 ? visits[count].mb_first : 0};
        count += own;
    }
    while (moved) {
        moved = false;
        for (uint32_t at = 0; at < pipe; at++) {
            moved = go_on(&t, &walks[at]) || moved;
        }
    }
    out->last = out->idle = 0;
    for (uint32_t at = 0; at < pipe; at++) {
        out->last = ox_max_u64(out->last, walks[at].free);
        ended = ended && walks[at].at == walks[at].past;
    }
    for (uint32_t at = 0; at < pipe; at++) {
        out->idle += out->last - walks[at].busy;
    }
    return ended;
}

enum ox_status ox_pipe_trial_open(const struct ox_plan_model *model, struct ox_pipe_trial *out) {
    const size_t passes = 2 * (size_t)model->stage_count * model->micro_batches, stages = model->stage_count + 1u;
    *out = (struct ox_pipe_trial){.visits = calloc(passes, sizeof *out->visits)};
    out->room.sweeps = calloc(passes, sizeof *out->room.sweeps);
    out->room.stages = calloc(stages, sizeof *out->room.stages);
    out->room.runs = calloc(stages, sizeof *out->room.runs);
    out->times.begin = calloc(passes, sizeof *out->times.begin);
    out->times.end = calloc(passes, sizeof *out->times.end);
    const bool room = out->room.sweeps != NULL && out->room.stages != NULL && out->room.runs != NULL &&
                      out->visits != NULL && out->times.begin != NULL && out->times.end != NULL;
    return room ? OX_OK : ox_fail(OX_E_NOMEM, "pipeline: no memory for %zu passes of stages", passes);
}

void ox_pipe_trial_close(struct ox_pipe_trial *trial) {
    free(trial->room.sweeps);
    free(trial->room.stages);
    free(trial->room.runs);
    free(trial->visits);
    free(trial->times.begin);
    free(trial->times.end);
}
