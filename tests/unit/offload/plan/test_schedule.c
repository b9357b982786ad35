/* Schedules of pipelines: the order of work beside PyTorch's lists (tests/golden/pipelines.json); idle time and
 * activations in flight by the formulas, as many as lists that are built and proven; and receives that stand where they
 * are used, which the issue window turns into a circle. */
#include "offload/plan/schedule.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "offload/proof/proof.h"
#include "offload/sim/sim.h"
#include "tests/kit/plan/plan_faults.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <string.h>

enum { RANKS_MAX = 8, UNITS_MAX = 64, ACT_BYTES = 8192 };

static const char path[] = "tests/golden/pipelines.json";

/* ---- a model whose blocks are alike --------------------------------------------------------------- */

struct pipe {
    struct plan_model model;
    struct ox_plan_input in;
    uint64_t elems[UNITS_MAX];
    uint32_t owners[UNITS_MAX];
    struct ox_shard_table whole;
    struct ox_shard_table tables[RANKS_MAX];
    struct ox_plan_input inputs[RANKS_MAX];
    struct ox_plan *plans[RANKS_MAX];
};

/* `bare`: blocks alone; else an embedding before them and a head behind, on the first rank and on the last. */
static void make_pipe(struct pipe *out, uint32_t blocks, bool bare, uint32_t ranks, uint32_t micro_batches,
                      enum ox_pipe_schedule schedule, uint32_t chunks) {
    const uint32_t units = blocks + (bare ? 0 : 2);
    memset(out, 0, sizeof *out);
    OX_ASSERT(units <= UNITS_MAX && ranks <= RANKS_MAX);
    for (uint32_t i = 0; i < units; i++) {
        out->elems[i] = 2048;
    }
    plan_model_make(&out->model, out->elems, units,
                    &(struct plan_model_sizes){.act_bytes = ACT_BYTES, .forward_bytes = 4096, .backward_bytes = 4096,
                                               .head_bytes = 4096, .head_eval_bytes = 4096, .without_embedding = bare,
                                               .without_head = bare}, &out->in.model);
    for (uint32_t i = 0; i < out->in.model.stage_count; i++) {
        const bool block = out->model.stages[i].kind == OX_PLAN_BLOCK;
        out->model.stages[i].forward.work.gemm_flops = block ? 1e9 : 0;
        out->model.stages[i].backward.work.gemm_flops = block ? 2e9 : 0;
    }
    out->in.model.micro_batches = micro_batches;
    out->in.model.batch_bytes = 64;
    out->in.model.const_bytes = 64;
    out->in.model.precision = ox_precision_of(OX_COMPUTE_FP32, true);
    out->in.budget = (struct ox_plan_budget){.host_bytes = OX_GIB, .device_bytes = OX_GIB};
    out->in.placement = (struct ox_placement){.tiles = 1, .act_tier = OX_TIER_HOST, .stream_slots = 1,
                                              .prefetch_depth = 1, .schedule = schedule, .chunks = chunks};
    out->in.ranks = (struct ox_plan_ranks){.count = ranks, .pipe = ranks, .pipe_of = out->owners, .sum_groups = 1,
                                           .micro_batches = micro_batches, .sharding = OX_SHARDING_FULL};
}

/* Stages in turn, or in runs of as many. */
static void own(struct pipe *pipe, uint32_t ranks, bool in_turn) {
    const uint32_t units = pipe->in.model.unit_count;
    for (uint32_t i = 0; i < units; i++) {
        pipe->owners[i] = in_turn ? i % ranks : i * ranks / units;
    }
}

/* ---- beside PyTorch ------------------------------------------------------------------------------- */

static uint32_t whole_number(const json_t *of, const char *key) {
    const json_t *const value = json_object_get(of, key);
    CHECK(json_is_integer(value));
    return (uint32_t)json_integer_value(value);
}

static enum ox_pipe_schedule schedule_of(const char *name) {
    for (int i = 0; i < OX_PIPE_COUNT; i++) {
        if (strcmp(name, ox_pipe_schedule_name((enum ox_pipe_schedule)i)) == 0) {
            return (enum ox_pipe_schedule)i;
        }
    }
    CHECK(!"a schedule of that name");
    return OX_PIPE_VERTICAL;
}

/* The list of one rank in words: F and B, the stage, the micro-batch. */
static void check_order(const struct pipe *pipe, struct ox_pipe_trial *trial, uint32_t at, const char *expected) {
    static char text[1 << 16];
    const uint32_t count = ox_pipe_visits(&pipe->in, at, true, &trial->room, trial->visits);
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        const struct ox_pipe_visit *const visit = &trial->visits[i];
        for (uint32_t mb_idx = visit->mb_first; mb_idx < visit->mb_past; mb_idx++) {
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%c%u.%u", used > 0 ? " " : "",
                                     visit->backward ? 'B' : 'F', visit->stage_idx, mb_idx);
        }
    }
    if (strcmp(text, expected) != 0) {
        printf("rank %u of %u: %s\nPyTorch: %s\n", at, pipe->in.ranks.pipe, text, expected);
    }
    CHECK(strcmp(text, expected) == 0);
}

static void test_torch(void) {
    json_error_t error;
    json_t *const all = json_load_file(path, 0, &error), *one;
    size_t idx;
    CHECK(json_array_size(all) > 40);
    json_array_foreach(all, idx, one) {
        const enum ox_pipe_schedule schedule = schedule_of(json_string_value(json_object_get(one, "schedule")));
        const uint32_t ranks = whole_number(one, "ranks"), chunks = whole_number(one, "chunks");
        static struct pipe pipe; /* more than a stack has */
        struct ox_pipe_trial trial;
        make_pipe(&pipe, ranks * chunks, true, ranks, whole_number(one, "micro_batches"), schedule, chunks);
        own(&pipe, ranks, true);
        REQUIRE_OK(ox_pipe_trial_open(&pipe.in.model, &trial));
        for (uint32_t at = 0; at < ranks; at++) {
            check_order(&pipe, &trial, at, json_string_value(json_array_get(json_object_get(one, "order"), at)));
        }
        CHECK(ox_pipe_time(&pipe.in, true, &trial.room, trial.visits, &trial.times));
        ox_pipe_trial_close(&trial);
    }
    json_decref(all);
}

/* ---- idle time ------------------------------------------------------------------------------------ */

/* Over the work: GPipe and 1F1B (p - 1) / m, interleaved (p - 1) / (v m), vertical in turn p (p - 1) / (S m). */
static void check_idle(enum ox_pipe_schedule schedule, uint32_t ranks, uint32_t micro_batches, uint32_t chunks) {
    static struct pipe pipe; /* more than a stack has */
    struct ox_pipe_trial trial;
    const bool in_turn = schedule == OX_PIPE_VERTICAL || schedule == OX_PIPE_INTERLEAVED;
    const uint32_t runs = in_turn ? chunks : 1, stages = ranks * runs;
    make_pipe(&pipe, stages, true, ranks, micro_batches, schedule, chunks);
    own(&pipe, ranks, in_turn);
    REQUIRE_OK(ox_pipe_trial_open(&pipe.in.model, &trial));
    CHECK(ox_pipe_time(&pipe.in, true, &trial.room, trial.visits, &trial.times));
    const uint64_t work = 1500000ull * stages * micro_batches; /* of all ranks, in parts of a backward */
    const double share = schedule == OX_PIPE_VERTICAL ? (double)ranks * (ranks - 1) / (stages * micro_batches)
                                                      : (double)(ranks - 1) / (runs * micro_batches);
    const double idle = (double)trial.times.idle / (double)work;
    if (idle < share * 0.9999 || idle > share * 1.0001) {
        printf("%s, %u ranks, %u micro-batches, %u runs: idle %.4f of the work, by the formula %.4f\n",
               ox_pipe_schedule_name(schedule), ranks, micro_batches, runs, idle, share);
    }
    CHECK(idle >= share * 0.9999 && idle <= share * 1.0001);
    ox_pipe_trial_close(&trial);
}

static void test_idle(void) {
    for (uint32_t ranks = 2; ranks <= 8; ranks *= 2) {
        for (uint32_t times = 1; times <= 4; times *= 2) {
            for (int schedule = 0; schedule < OX_PIPE_COUNT; schedule++) {
                check_idle((enum ox_pipe_schedule)schedule, ranks, times * ranks, 2);
                check_idle((enum ox_pipe_schedule)schedule, ranks, times * ranks, 4);
            }
        }
    }
}

/* ---- lists ---------------------------------------------------------------------------------------- */

static void build_all(struct pipe *pipe) {
    OX_ASSERT(pipe->in.ranks.count <= RANKS_MAX);
    REQUIRE_OK(ox_shard_table_open(pipe->elems, pipe->in.model.unit_count, 2048,
                                   (struct ox_state_sizes){OX_LO_BYTES * OX_GROUP_ELEMS, 8 * OX_GROUP_ELEMS},
                                   &pipe->whole));
    for (uint32_t i = 0; i < pipe->whole.unit_count; i++) {
        pipe->whole.shards[i].homes = (struct ox_homes){OX_TIER_HOST, OX_TIER_HOST, OX_TIER_HOST};
    }
    for (uint32_t at = 0; at < pipe->in.ranks.count; at++) {
        pipe->inputs[at] = pipe->in;
        pipe->inputs[at].ranks.idx = at;
        REQUIRE_OK(ox_plan_table_open(&pipe->whole, &pipe->inputs[at].ranks, &pipe->tables[at]));
        pipe->inputs[at].table = &pipe->tables[at];
        REQUIRE_OK(ox_plan_open(&pipe->inputs[at], &pipe->plans[at]));
        ox_plan_build(pipe->plans[at], &pipe->inputs[at], OX_PLAN_TRAIN);
        REQUIRE_OK(ox_proof_check(pipe->plans[at], &pipe->inputs[at]));
    }
}

static enum ox_status check_all(const struct pipe *pipe) {
    const struct ox_plan *plans[RANKS_MAX];
    const struct ox_plan_input *inputs[RANKS_MAX];
    for (uint32_t at = 0; at < pipe->in.ranks.count; at++) {
        plans[at] = pipe->plans[at];
        inputs[at] = &pipe->inputs[at];
    }
    return ox_proof_check_ranks(plans, inputs, pipe->in.ranks.count);
}

static void close_all(struct pipe *pipe) {
    for (uint32_t at = 0; at < pipe->in.ranks.count; at++) {
        ox_plan_close(&pipe->plans[at]);
        ox_shard_table_close(&pipe->tables[at]);
    }
    ox_shard_table_close(&pipe->whole);
}

/* The most activation checkpoints in host memory at a time, of one stage. */
static uint32_t most_in_flight(const struct ox_plan *plan, uint32_t stage_idx) {
    uint32_t most = 0;
    for (uint32_t at = 0; at < plan->task_count; at++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < plan->buf_count; i++) {
            const struct ox_buf *const buf = &plan->bufs[i];
            count += buf->kind == OX_BUF_ACT && buf->tier == OX_TIER_HOST && buf->stage_idx == stage_idx &&
                     buf->first_task_idx <= at && at <= buf->last_task_idx;
        }
        most = count > most ? count : most;
    }
    return most;
}

/* Checkpoints of a block in flight: vertical and GPipe m, 1F1B min(m, p - r), and one more that arrives from another
 * rank while the last one is in use. */
static void check_held(enum ox_pipe_schedule schedule, uint32_t ranks, uint32_t micro_batches) {
    static struct pipe pipe; /* more than a stack has */
    make_pipe(&pipe, 4 * ranks - 2, false, ranks, micro_batches, schedule, 0);
    own(&pipe, ranks, schedule == OX_PIPE_VERTICAL);
    build_all(&pipe);
    REQUIRE_OK(check_all(&pipe));
    for (uint32_t i = 1; i + 1 < pipe.in.model.stage_count; i++) {
        const uint32_t at = pipe.owners[i], all = micro_batches;
        const bool arrives = pipe.owners[i - 1] != at;
        const uint32_t ahead = (uint32_t)ox_min_u64(all, ranks - at + (arrives ? 1 : 0));
        const uint32_t most = most_in_flight(pipe.plans[at], i), least = (uint32_t)ox_min_u64(all, ranks - at);
        if (schedule == OX_PIPE_1F1B ? most < least || most > ahead : most != all) {
            printf("%s, stage %u on rank %u of %u, %u micro-batches: %u in flight\n", ox_pipe_schedule_name(schedule),
                   i, at, ranks, micro_batches, most);
        }
        CHECK(schedule == OX_PIPE_1F1B ? most >= least && most <= ahead : most == all);
    }
    close_all(&pipe);
}

static void test_held(void) {
    for (uint32_t ranks = 2; ranks <= 8; ranks *= 2) {
        check_held(OX_PIPE_VERTICAL, ranks, 2 * ranks);
        check_held(OX_PIPE_GPIPE, ranks, 2 * ranks);
        check_held(OX_PIPE_1F1B, ranks, ranks);
        check_held(OX_PIPE_1F1B, ranks, 3 * ranks);
    }
}

/* ---- lists in virtual time ------------------------------------------------------------------------- */

/* A block takes 1 second forward and 2 backward; nothing else takes any. */
static struct ox_sim_work block_alone(const void *context, const struct ox_plan *plan, uint32_t task_idx) {
    const struct ox_plan_model *const model = context;
    const struct ox_task *const task = &plan->tasks[task_idx];
    const bool of_block = (task->kind == OX_TASK_FORWARD || task->kind == OX_TASK_BACKWARD) &&
                          model->stages[task->stage_idx].kind == OX_PLAN_BLOCK;
    return (struct ox_sim_work){.seconds = !of_block ? 0 : task->kind == OX_TASK_FORWARD ? 1 : 2};
}

/* Lists that are played together, with the issue window, are idle for as long as the formulas say. */
static void check_played(enum ox_pipe_schedule schedule, uint32_t ranks, uint32_t micro_batches, uint32_t runs) {
    static struct pipe pipe; /* more than a stack has */
    struct ox_sim *sims[RANKS_MAX];
    struct ox_sim_list lists[RANKS_MAX];
    struct ox_sim_result results[RANKS_MAX];
    const bool in_turn = schedule == OX_PIPE_VERTICAL || schedule == OX_PIPE_INTERLEAVED;
    const uint32_t blocks = ranks * runs;
    make_pipe(&pipe, blocks, false, ranks, micro_batches, schedule, runs);
    for (uint32_t i = 0; i < blocks; i++) {
        pipe.owners[i + 1] = in_turn ? i % ranks : i / runs;
    }
    pipe.owners[blocks + 1] = ranks - 1;
    build_all(&pipe);
    REQUIRE_OK(check_all(&pipe));
    for (uint32_t at = 0; at < ranks; at++) {
        REQUIRE_OK(ox_sim_open(pipe.plans[at]->task_count, &sims[at]));
        lists[at] = (struct ox_sim_list){.plan = pipe.plans[at], .work = block_alone, .context = &pipe.in.model,
                                         .limits = {.nvme = {1, 1}, .link = {1, 1},
                                                    .run_ahead_tasks = OX_RUN_AHEAD_TASKS}};
    }
    const double seconds = ox_sim_play_pipe(sims, lists, ranks, results);
    const double work = 3.0 * blocks * micro_batches;
    const double share = schedule == OX_PIPE_VERTICAL ? (double)ranks * (ranks - 1) / (blocks * micro_batches)
                         : (double)(ranks - 1) / ((schedule == OX_PIPE_INTERLEAVED ? runs : 1) * micro_batches);
    const double idle = (seconds * ranks - work) / work;
    if (idle < share * 0.9999 || idle > share * 1.0001) {
        printf("%s, %u ranks, %u micro-batches, %u runs: %.1f s, idle %.4f of the work, by the formula %.4f\n",
               ox_pipe_schedule_name(schedule), ranks, micro_batches, runs, seconds, idle, share);
    }
    CHECK(idle >= share * 0.9999 && idle <= share * 1.0001);
    for (uint32_t at = 0; at < ranks; at++) {
        CHECK(results[at].lanes[OX_LANE_COMPUTE].busy == work / ranks);
        ox_sim_close(&sims[at]);
    }
    close_all(&pipe);
}

static void test_played(void) {
    for (uint32_t ranks = 2; ranks <= 8; ranks *= 2) {
        for (uint32_t times = 1; times <= 4; times *= 2) {
            for (int schedule = 0; schedule < OX_PIPE_COUNT; schedule++) {
                check_played((enum ox_pipe_schedule)schedule, ranks, times * ranks, 2);
                check_played((enum ox_pipe_schedule)schedule, ranks, times * ranks, 4);
            }
        }
    }
}

/* ---- the issue window ------------------------------------------------------------------------------ */

/* The place of a task in a list in which the one at `from` has come to stand right before the one at `to`. */
static uint32_t moved(uint32_t idx, uint32_t from, uint32_t to) {
    return idx == from ? to - 1 : idx > from && idx < to ? idx - 1 : idx;
}

static void move_back(struct ox_plan *plan, uint32_t from, uint32_t to) {
    const struct ox_task task = plan->tasks[from];
    memmove(&plan->tasks[from], &plan->tasks[from + 1], (to - 1 - from) * sizeof task);
    plan->tasks[to - 1] = task;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
            uint32_t *const dep = &plan->tasks[i].deps[lane];
            *dep = *dep > 0 ? 1 + moved(*dep - 1, from, to) : 0;
        }
    }
}

/* Moves everything that arrives to right before its first use. */
static void receive_late(struct ox_plan *plan) {
    for (uint32_t at = plan->task_count; at-- > 0;) {
        if (plan->tasks[at].lane != OX_LANE_LINK_IN) {
            continue;
        }
        uint32_t to = at + 1;
        for (bool used = false; !used && to < plan->task_count; to += !used) {
            const struct ox_task *const task = &plan->tasks[to];
            for (uint32_t k = 0; k < task->use_count && !used; k++) {
                used = task->uses[k].buf_idx == plan->tasks[at].uses[0].buf_idx;
            }
            used = used || task->lane == OX_LANE_LINK_IN; /* in their order */
        }
        move_back(plan, at, to);
    }
}

/* Two ranks, many micro-batches: with receives where they are used the window is a circle that no dependency shows. */
static void test_window(void) {
    static struct pipe pipe; /* more than a stack has */
    make_pipe(&pipe, 14, false, 2, 64, OX_PIPE_VERTICAL, 0);
    own(&pipe, 2, true);
    build_all(&pipe);
    REQUIRE_OK(check_all(&pipe));
    for (uint32_t at = 0; at < 2; at++) {
        receive_late(pipe.plans[at]);
    }
    CHECK(check_all(&pipe) == OX_E_CONFIG && strstr(ox_error_text(), "in a circle") != NULL);
    close_all(&pipe);
}

/* Backward reads what all forwards of the step report: what it gives is not waited for before these have ended. */
static void test_pooled(void) {
    static struct pipe pipe; /* more than a stack has */
    make_pipe(&pipe, 4, false, 2, 128, OX_PIPE_VERTICAL, 0);
    for (uint32_t i = 0; i < pipe.in.model.stage_count; i++) {
        pipe.model.stages[i].reports = pipe.model.stages[i].kind == OX_PLAN_BLOCK;
    }
    pipe.model.stages[pipe.in.model.stage_count - 1].backward.work.gemm_flops = 3e9;
    pipe.in.model.report_doubles = 4 * 8;
    pipe.in.model.pooled_doubles = 8;
    own(&pipe, 2, true);
    build_all(&pipe);
    REQUIRE_OK(check_all(&pipe));
    close_all(&pipe);
}

int main(void) {
    test_torch();
    test_idle();
    test_held();
    test_window();
    test_pooled();
    test_played();
    return test_end();
}
