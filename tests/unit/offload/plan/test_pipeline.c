/* Plans of pipelines: of random models, with every schedule, each rank's list is proven alone and all lists together;
 * what crosses from rank to rank is what the formulas say; planted faults are refused. A number as argument is that of
 * random models, of which `make test` takes a third. */
#include "base/bytes.h"
#include "base/prng/prng.h"
#include "offload/plan/plan.h"
#include "offload/plan/schedule.h"
#include "offload/proof/proof.h"
#include "tests/kit/plan/plan_faults.h"
#include "tests/kit/test.h"

#include <string.h>

enum { SAMPLES = 200, RANKS_MAX = 16, QUICK = 3 };

struct totals {
    uint64_t plans, refused, transfers, deps, of_schedule[OX_PIPE_COUNT];
    struct plan_faults faults, joint, sizes;
    uint64_t circles; /* planted */
    uint64_t reports; /* moves of reports in which faults were planted, of models whose stages report */
};

/* The ranks of one step, with the last plan of each. */
struct box {
    uint32_t count, owners[PLAN_SAMPLE_UNITS_MAX + 1];
    struct ox_shard_table tables[RANKS_MAX];
    struct ox_plan_input inputs[RANKS_MAX];
    struct ox_plan *plans[RANKS_MAX];
};

static enum ox_status check_box(const struct box *box) {
    return plan_faults_check_ranks(box->plans, box->inputs, box->count);
}

/* Takes the homes and the placement that the planner chose for one rank, with room for whatever several need. */
static bool choose(struct plan_sample *s, uint64_t seed) {
    struct ox_plans plans = {0};
    plan_sample_draw(s, seed);
    const bool whole = s->in.model.stages[0].kind == OX_PLAN_EMBEDDING &&
                       s->in.model.stages[s->in.model.stage_count - 1].kind == OX_PLAN_HEAD;
    const bool fits = ox_placement_choose(&s->in, &s->table, &s->request, &s->setup, &plans) == OX_OK;
    ox_plans_close(&plans);
    s->in.budget.host_bytes += OX_GIB;
    s->in.budget.device_bytes += s->in.budget.unified ? 0 : OX_GIB;
    s->in.budget.nvme_bytes *= 2;
    return fits && whole;
}

/* Draws the pipeline: how many coordinates, how many ranks of each, the schedule, and who has what. */
static bool draw_ranks(struct plan_sample *s, struct box *box, uint64_t seed, struct ox_plan_ranks *ranks) {
    uint64_t counter = 70000;
    struct ox_placement *const placement = &s->in.placement;
    *ranks = (struct ox_plan_ranks){.pipe = 2 + (uint32_t)plan_sample_number(seed, &counter, 4)};
    const uint32_t of_data = 1 + (uint32_t)plan_sample_number(seed, &counter, 2);
    ranks->count = ranks->pipe * of_data;
    ranks->sharding = (enum ox_sharding)plan_sample_number(seed, &counter, OX_SHARDING_COUNT);
    ranks->sum_groups = of_data + (uint32_t)plan_sample_number(seed, &counter, 3);
    ranks->micro_batches = ranks->sum_groups + (uint32_t)plan_sample_number(seed, &counter, 9);
    ranks->pipe_of = box->owners;
    placement->schedule = (enum ox_pipe_schedule)plan_sample_number(seed, &counter, OX_PIPE_COUNT);
    placement->chunks = placement->schedule == OX_PIPE_INTERLEAVED ? 2 : 0;
    ranks->pipe = placement->schedule == OX_PIPE_INTERLEAVED ? 2 : ranks->pipe;
    ranks->count = ranks->pipe * of_data;
    if (placement->schedule != OX_PIPE_VERTICAL) { /* as much for each rank */
        ranks->sum_groups *= of_data;
        ranks->micro_batches = ranks->sum_groups * (1 + (uint32_t)plan_sample_number(seed, &counter, 4));
    }
    placement->tiles = placement->schedule == OX_PIPE_VERTICAL ? placement->tiles : 1;
    s->in.ranks = *ranks;
    const struct ox_sums sums = ox_plan_sums(&s->in);
    s->in.model.micro_batches = ox_sums_count(&sums);
    box->count = ranks->count;
    return ox_pipe_owners(&s->in.model, ranks->pipe, placement->schedule, placement->chunks, box->owners) == OX_OK &&
           ox_pipe_check(&s->in.model, ranks, placement) == OX_OK;
}

static void open_box(struct plan_sample *s, struct box *box, struct ox_plan_ranks ranks) {
    for (uint32_t idx = 0; idx < box->count; idx++) {
        ranks.idx = idx;
        REQUIRE_OK(ox_plan_table_open(&s->table, &ranks, &box->tables[idx]));
        box->inputs[idx] = s->in;
        box->inputs[idx].ranks = ranks;
        box->inputs[idx].table = &box->tables[idx];
        const struct ox_sums sums = ox_plan_sums(&box->inputs[idx]);
        box->inputs[idx].model.micro_batches = ox_sums_count(&sums);
        box->inputs[idx].placement.tiles =
            (uint32_t)ox_min_u64(s->in.placement.tiles, ox_plan_tiles_max(&box->inputs[idx]));
        REQUIRE_OK(ox_plan_open(&box->inputs[idx], &box->plans[idx]));
    }
}

static void close_box(struct box *box) {
    for (uint32_t idx = 0; idx < box->count; idx++) {
        ox_plan_close(&box->plans[idx]);
        ox_shard_table_close(&box->tables[idx]);
    }
}

/* ---- what crosses ----------------------------------------------------------------------------------- */

/* Each border between stages of two ranks is crossed by every micro-batch, and backward again above the first stage
 * that trains something. */
static void check_traffic(const struct box *box, bool train, struct totals *totals) {
    uint64_t in = 0, out = 0, expected = 0;
    for (uint32_t idx = 0; idx < box->count; idx++) {
        const struct ox_plan_input *const input = &box->inputs[idx];
        in += box->plans[idx]->traffic[OX_LINK_PEER_IN][OX_TRAFFIC_ACTIVATIONS];
        out += box->plans[idx]->traffic[OX_LINK_PEER_OUT][OX_TRAFFIC_ACTIVATIONS];
        for (uint32_t i = 1; i < input->model.stage_count && idx < box->count / input->ranks.pipe; i++) {
            const struct ox_plan_stage *const stage = &input->model.stages[i];
            const uint32_t from = box->owners[stage[-1].units[0].unit_idx], to = box->owners[stage->units[0].unit_idx];
            const uint64_t ways = train && i > ox_plan_first_back(&input->model) ? 2 : 1;
            expected += from == to ? 0 : ways * stage->input_bytes * input->model.micro_batches;
        }
        for (uint32_t i = 0; i < box->plans[idx]->task_count; i++) {
            totals->transfers += box->plans[idx]->tasks[i].peer != OX_NONE;
        }
    }
    CHECK(in == expected && out == expected);
}

/* ---- all ranks -------------------------------------------------------------------------------------- */

/* Whether all lists together, or that of one rank by itself, are refused. */
static void refuse_box(const struct box *box, uint32_t idx, const char *what, struct totals *totals) {
    totals->joint.made++;
    if (check_box(box) == OX_OK && ox_proof_check(box->plans[idx], &box->inputs[idx]) == OX_OK) {
        printf("accepted: %s\n", what);
    } else {
        totals->joint.found++;
    }
}

static void check_kind(struct plan_sample *s, struct box *box, enum ox_plan_kind kind, uint64_t seed,
                       struct totals *totals) {
    for (uint32_t i = 0; i < box->count; i++) {
        ox_plan_build(box->plans[i], &box->inputs[i], kind);
        const enum ox_status status = ox_proof_check(box->plans[i], &box->inputs[i]);
        if (status != OX_OK) {
            printf("seed %llu, rank %u of %u, pipe %u, schedule %s, kind %d: %s\n", (unsigned long long)seed, i,
                   box->count, box->inputs[i].ranks.pipe, ox_pipe_schedule_name(s->in.placement.schedule), kind,
                   ox_error_text());
        }
        CHECK(status == OX_OK);
        totals->plans++;
    }
    const enum ox_status status = check_box(box);
    if (status != OX_OK) {
        printf("seed %llu, %u ranks, pipe %u, schedule %s, kind %d: %s\n", (unsigned long long)seed, box->count,
               box->inputs[0].ranks.pipe, ox_pipe_schedule_name(s->in.placement.schedule), kind, ox_error_text());
    }
    CHECK(status == OX_OK);
    check_traffic(box, kind == OX_PLAN_TRAIN, totals);
    totals->of_schedule[s->in.placement.schedule]++;
}

/* Plants faults in one task that goes from rank to rank. */
static void change_transfer(struct box *box, uint32_t idx, uint32_t at, struct totals *totals) {
    struct ox_plan *const plan = box->plans[idx];
    struct ox_task *const task = &plan->tasks[at], kept = plan->tasks[at];
    uint32_t other = at;
    for (uint32_t i = 0; i < at; i++) {
        other = plan->tasks[i].lane == task->lane && plan->tasks[i].peer == task->peer ? i : other;
    }
    task->mb_idx = (task->mb_idx + 1) % plan->micro_batches;
    if (plan->micro_batches > 1) {
        refuse_box(box, idx, "a transfer of another micro-batch", totals);
    }
    *task = kept;
    task->stage_idx = task->stage_idx > 1 ? task->stage_idx - 1 : task->stage_idx + 1;
    refuse_box(box, idx, "a transfer of another stage", totals);
    *task = kept;
    task->peer = (task->peer + 1) % box->count;
    refuse_box(box, idx, "a transfer with another rank", totals);
    *task = kept;
    task->move = task->move == OX_MOVE_OUTSIDE_ACT ? OX_MOVE_OUTSIDE_DX : OX_MOVE_OUTSIDE_ACT;
    refuse_box(box, idx, "a transfer the other way", totals);
    *task = kept;
    task->when |= OX_FACT_DUE;
    refuse_box(box, idx, "a transfer of a unit that is due", totals);
    *task = kept;
    task->lane = OX_LANE_H2D;
    refuse_box(box, idx, "a transfer that one rank lacks", totals);
    CHECK(check_box(box) != OX_OK && strstr(ox_error_text(), "in a circle") == NULL); /* it is said who lacks what */
    *task = kept;
    if (other != at) {
        const struct ox_task before = plan->tasks[other];
        *task = before;
        plan->tasks[other] = kept;
        memcpy(task->deps, kept.deps, sizeof kept.deps); /* each at its place in the list */
        memcpy(plan->tasks[other].deps, before.deps, sizeof before.deps);
        refuse_box(box, idx, "two transfers in another order", totals);
        plan->tasks[other] = before;
        *task = kept;
    }
}

/* Plants faults in one move of reports, losses or what stages report: to host memory, among all ranks, and back. */
static void change_report(struct box *box, uint32_t idx, uint32_t at, struct totals *totals) {
    struct ox_plan *const plan = box->plans[idx];
    struct ox_task *const task = &plan->tasks[at], kept = plan->tasks[at];
    totals->reports += box->inputs[idx].model.report_doubles > 0;
    if (task->lane == OX_LANE_LINK) {
        task->last = !task->last;
        refuse_box(box, idx, "reports of stages that report nothing, or none of those that do", totals);
        *task = kept;
        task->axis = OX_AXIS_PIPE;
        refuse_box(box, idx, "reports of some ranks alone", totals);
        *task = kept;
    }
    task->lane = task->lane == OX_LANE_H2D ? OX_LANE_D2H : OX_LANE_H2D;
    refuse_box(box, idx, "reports that one rank lacks", totals);
    *task = kept;
    task->bytes += sizeof(double);
    refuse_box(box, idx, "a report of another size", totals);
    *task = kept;
    task->when |= OX_FACT_DUE;
    refuse_box(box, idx, "reports of a unit that is due", totals);
    *task = kept;
}

/* A stage reports for all ranks but that which has it. */
static void change_reporters(struct box *box, uint32_t idx, struct totals *totals) {
    static struct ox_plan_stage stages[3 * PLAN_MODEL_UNITS_MAX];
    const struct ox_plan_stage *const kept = box->inputs[idx].model.stages;
    const uint32_t count = box->inputs[idx].model.stage_count, at = idx / (box->count / box->inputs[idx].ranks.pipe);
    memcpy(stages, kept, count * sizeof *stages);
    box->inputs[idx].model.stages = stages;
    for (uint32_t i = 0; i < count && box->inputs[idx].model.report_doubles > 0; i++) {
        if (stages[i].reports && box->owners[stages[i].units[0].unit_idx] == at) {
            stages[i].reports = false;
            refuse_box(box, idx, "a stage that reports for the others alone", totals);
            stages[i].reports = true;
        }
    }
    box->inputs[idx].model.stages = kept;
}

/* Whether all lists together are refused, whatever that of one rank by itself is. */
static void refuse_joint(const struct box *box, const char *what, struct totals *totals) {
    totals->joint.made++;
    if (check_box(box) == OX_OK) {
        printf("accepted by all lists together: %s\n", what);
    } else {
        totals->joint.found++;
    }
}

/* Changes one by one what tasks that ranks do together have in common. */
static void change_fields(const struct box *box, uint32_t idx, uint32_t at, struct totals *totals) {
    struct ox_task *const task = &box->plans[idx]->tasks[at], kept = *task;
    for (int field = 0;; field++) {
        const char *what = NULL;
        switch (field) {
        case 0: what = "last", task->last = !task->last; break;
        case 1: what = "phase", task->phase++; break;
        case 2: what = "pass", task->pass++; break;
        case 3: what = "carried", task->carried = !task->carried; break;
        case 4: what = "when", task->when ^= OX_FACT_COMMITS; break;
        case 5: what = "stage_idx", task->stage_idx++; break;
        case 6: what = "mb_idx", task->mb_idx++; break;
        case 7: what = "unit_idx", task->unit_idx++; break;
        case 8: what = "grad_idx", task->grad_idx++; break;
        case 9: what = "slot", task->slot++; break;
        case 10: what = "move", task->move = task->move == OX_MOVE_ROWS ? OX_MOVE_SUM : OX_MOVE_ROWS; break;
        case 11: what = "axis", task->axis = (uint8_t)((task->axis + 1) % OX_AXIS_COUNT); break;
        case 12: what = "kind", task->kind = OX_TASK_CAST; break;
        default: return;
        }
        refuse_joint(box, what, totals);
        *task = kept;
    }
}

/* The first task of a lane; the list's length: none. */
static uint32_t first_of(const struct ox_plan *plan, int lane) {
    uint32_t at = 0;
    while (at < plan->task_count && plan->tasks[at].lane != lane) {
        at++;
    }
    return at;
}

/* Lets what a rank sends first wait for what the other rank can send only once it has that. */
static void change_circle(const struct box *box, struct totals *totals) {
    struct ox_plan *const plan = box->plans[0];
    const uint32_t out = first_of(plan, OX_LANE_LINK_OUT), in = first_of(plan, OX_LANE_LINK_IN);
    if (out < in && in < plan->task_count && plan->tasks[in].move == OX_MOVE_OUTSIDE_DX) {
        uint32_t *const dep = &plan->tasks[out].deps[OX_LANE_LINK_IN], kept = *dep;
        *dep = in + 1;
        refuse_joint(box, "a circle", totals);
        *dep = kept;
        totals->circles++;
    }
}

/* Plants faults in what every rank of a step sends and receives, and in who has what. */
static void change_box(struct box *box, uint64_t seed, struct totals *totals) {
    uint64_t counter = 5000;
    for (uint32_t idx = 0; idx < box->count; idx++) {
        for (uint32_t at = 0; at < box->plans[idx]->task_count; at++) {
            if (box->plans[idx]->tasks[at].peer != OX_NONE && plan_sample_number(seed, &counter, 4) == 0) {
                change_transfer(box, idx, at, totals);
                change_fields(box, idx, at, totals);
            } else if (box->plans[idx]->tasks[at].lane == OX_LANE_LINK && box->inputs[idx].ranks.count > 1 &&
                       plan_sample_number(seed, &counter, 16) == 0) {
                change_fields(box, idx, at, totals);
            }
            if (box->plans[idx]->tasks[at].kind == OX_TASK_MOVE && box->plans[idx]->tasks[at].move == OX_MOVE_LOSSES) {
                change_report(box, idx, at, totals);
            }
        }
        change_reporters(box, idx, totals);
        struct ox_plan_ranks *const ranks = &box->inputs[idx].ranks;
        const struct ox_plan_ranks kept = *ranks;
        uint32_t owners[PLAN_SAMPLE_UNITS_MAX + 1];
        memcpy(owners, box->owners, sizeof owners);
        ranks->pipe_of = owners;
        owners[0] = (owners[0] + 1) % ranks->pipe;
        refuse_box(box, idx, "a unit that another rank has", totals);
        owners[0] = ranks->pipe;
        refuse_box(box, idx, "a unit that no rank has", totals);
        *ranks = kept;
        ranks->pipe = ranks->pipe == 2 ? 1 : 2;
        refuse_box(box, idx, "another number of coordinates", totals);
        *ranks = kept;
        box->tables[idx].shards[0].homes.weights = (box->tables[idx].shards[0].homes.weights + 1) % OX_TIER_COUNT;
        refuse_box(box, idx, "a unit with another home", totals);
        box->tables[idx].shards[0].homes.weights = (box->tables[idx].shards[0].homes.weights + 2) % OX_TIER_COUNT;
    }
    change_circle(box, totals);
    REQUIRE_OK(check_box(box));
}

static void check_sample(struct plan_sample *s, uint64_t seed, struct totals *totals) {
    struct box box = {0};
    struct ox_plan_ranks ranks;
    if (!draw_ranks(s, &box, seed, &ranks)) {
        totals->refused++;
        return;
    }
    open_box(s, &box, ranks);
    if (s->in.placement.overlap) {
        check_kind(s, &box, OX_PLAN_EVAL_AFTER_STEP, seed, totals);
    }
    check_kind(s, &box, OX_PLAN_EVAL, seed, totals);
    check_kind(s, &box, OX_PLAN_TRAIN, seed, totals);
    change_box(&box, seed, totals);
    close_box(&box);
}

int main(int argc, char **argv) {
    struct totals totals = {0};
    const uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : SAMPLES / test_stride(QUICK);
    for (uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1; seed <= count; seed++) {
        static struct plan_sample s;
        if (choose(&s, seed)) {
            check_sample(&s, seed, &totals);
        }
        ox_shard_table_close(&s.table);
    }
    printf("%llu plans of pipelines proven, with %llu transfers, %llu steps refused; of schedules",
           (unsigned long long)totals.plans, (unsigned long long)totals.transfers, (unsigned long long)totals.refused);
    for (int i = 0; i < OX_PIPE_COUNT; i++) {
        printf(" %llu", (unsigned long long)totals.of_schedule[i]);
        CHECK(totals.of_schedule[i] > 2);
    }
    printf("\n%llu of %llu changes of meaning found\n", (unsigned long long)totals.joint.found,
           (unsigned long long)totals.joint.made);
    CHECK(totals.joint.found == totals.joint.made && totals.joint.made > 300 && totals.reports > 30 &&
          totals.circles > 3);
    return test_end();
}
