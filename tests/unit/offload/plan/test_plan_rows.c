/* Plans of ranks that divide the rows of sequences, groups of features or experts, and of one rank with several groups
 * of rows: passes have phases, between which pieces go to other ranks; each is proven by the checker, which finds every
 * planted fault. */
#include "base/bytes.h"
#include "offload/plan/plan.h"
#include "offload/proof/proof.h"
#include "tests/kit/plan/plan_faults.h"
#include "tests/kit/test.h"

#include <string.h>

enum { QUICK = 4, SAMPLES = 120, RANKS_MAX = 8 };

struct totals {
    uint64_t plans, rows, joins, deps, of_tensors, rounds, across, slices, circles;
    struct plan_faults faults, sizes;
};

/* The ranks of one step. */
struct box {
    uint32_t count;
    struct ox_shard_table tables[RANKS_MAX];
    struct ox_plan_input inputs[RANKS_MAX];
    struct ox_plan *plans[RANKS_MAX];
};

/* Ranks with several groups of rows; with one rank in three cases of four, to see all of them summed in one place. */
static struct ox_plan_ranks draw_ranks(uint64_t seed) {
    static const uint32_t shapes[][6] = { /* of rows, of batches, groups of rows, of features, groups of features, of
                                             experts */
        {1, 1, 2}, {1, 2, 1, 2, 2, 2}, {1, 1, 3}, {1, 1, 4}, {1, 4, 1, 2, 4, 2}, {2, 1, 2}, {2, 1, 4}, {2, 2, 2},
        {3, 1, 3}, {3, 2, 3}, {4, 1, 4}, {4, 1, 8},
        {4, 2, 4}, {1, 1, 8}, {1, 1, 1, 2, 2}, {1, 1, 1, 2, 4}, {1, 2, 1, 2, 2}, {1, 1, 1, 4, 4}, {1, 2, 1, 3, 6},
        {1, 2, 1, 4, 8}, {1, 2, 1, 1, 1, 2}, {1, 4, 1, 1, 1, 4}, {1, 4, 1, 1, 1, 2}, {1, 8, 1, 1, 1, 4},
        {1, 8, 1, 1, 1, 2}};
    uint64_t counter = 98000;
    const uint32_t *const shape = shapes[plan_sample_number(seed, &counter, sizeof shapes / sizeof *shapes)];
    struct ox_plan_ranks ranks = {.count = shape[0] * shape[1], .contexts = shape[0], .context_groups = shape[2]};
    if (shape[3] > 1) {
        ranks.tensors = shape[3];
        ranks.tensor_groups = shape[4];
        ranks.count *= shape[3];
    }
    while (ranks.sum_groups < shape[1]) {
        ranks.sum_groups = ranks.sum_groups == 0 ? 1 : 2 * ranks.sum_groups;
    }
    ranks.sum_groups <<= plan_sample_number(seed, &counter, 3);
    ranks.micro_batches = ranks.sum_groups + (uint32_t)plan_sample_number(seed, &counter, 5);
    ranks.sharding = (enum ox_sharding)plan_sample_number(seed, &counter, OX_SHARDING_COUNT);
    const uint32_t of_data = shape[0] * shape[1];
    const uint32_t copies = 1 + (uint32_t)plan_sample_number(seed, &counter, of_data);
    ranks.copies = of_data % copies == 0 ? copies : 0;
    if (shape[5] > 1) { /* some of those that divide a copy, or all, with as many micro-batches each */
        static const enum ox_sharding shardings[] = {OX_SHARDING_FULL, OX_SHARDING_STEP, OX_SHARDING_GRAD,
                                                     OX_SHARDING_STATE};
        ranks.experts = shape[5];
        ranks.copies = of_data / shape[5] >> plan_sample_number(seed, &counter, 2);
        ranks.copies += ranks.copies == 0;
        ranks.sharding = shardings[plan_sample_number(seed, &counter, 4)];
        ranks.micro_batches = ranks.sum_groups * (1 + (uint32_t)plan_sample_number(seed, &counter, 2));
    }
    return ranks;
}

/* Takes the homes and the placement that the planner chose for one rank, with room for whatever several need. Stages
 * that say who has rows know nothing of groups, and those that report only of groups of features. */
static bool choose(struct plan_sample *s, uint64_t seed) {
    struct ox_plans plans = {0};
    const bool reports = draw_ranks(seed).tensors > 1;
    plan_sample_draw(s, seed);
    for (uint32_t i = 0; i < s->in.model.stage_count; i++) {
        s->model.stages[i].reports &= reports;
        s->model.stages[i].routes_bytes = 0;
        s->model.stages[i].routed_back = 0;
    }
    s->in.model.report_doubles = reports ? s->in.model.report_doubles : 0;
    s->in.model.pooled_doubles = reports ? s->in.model.pooled_doubles : 0;
    s->in.ranks.sum_groups = 1;
    const bool fits = ox_placement_choose(&s->in, &s->table, &s->request, &s->setup, &plans) == OX_OK;
    ox_plans_close(&plans);
    s->in.budget.host_bytes += OX_GIB;
    s->in.budget.device_bytes += s->in.budget.unified ? 0 : OX_GIB;
    return fits;
}

/* Which group of features each unit is; two in five are none, and so are the first and the last one that is trained:
 * all ranks have something to update from there on and up to there, as groups of a stage are in all of them. */
static void draw_groups(uint32_t groups, const struct ox_plan_model *model, uint64_t seed, uint32_t *out) {
    uint64_t counter = 98500;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        const uint32_t update_idx = model->units[i].update_idx;
        const bool has = plan_sample_number(seed, &counter, 5) > 1 && update_idx != 0 &&
                         update_idx + 1 != model->update_count;
        out[i] = has && groups > 1 ? (uint32_t)plan_sample_number(seed, &counter, groups) : OX_NONE;
    }
}

/* The ranks among which what a pass leaves goes on, but for rounds, and their axis. */
static uint32_t crossing(const struct ox_plan_ranks *ranks) {
    return ranks->contexts > 1 ? ranks->contexts : ranks->tensors > 1 ? ranks->tensors
           : ranks->experts > 1 ? ranks->experts : 1;
}

static enum ox_axis axis_of(const struct ox_plan_ranks *ranks) {
    return ranks->contexts > 1 ? OX_AXIS_CONTEXT : OX_AXIS_TENSOR;
}

static uint32_t members_of(const struct ox_plan_ranks *ranks, const struct ox_plan_cut *cut) {
    return cut->axis == OX_AXIS_EXPERT ? ranks->experts : crossing(ranks);
}

/* Gives a pass rounds: routes of all members, rows to their experts and back, and in backward an exchange behind; then
 * one between ranks that divide features. */
static void round_pass(struct ox_plan_pass *pass, const struct ox_plan_ranks *ranks, uint64_t piece, bool backward,
                       bool returns) {
    const uint32_t members = ranks->experts;
    struct ox_plan_rounds *const rounds = &pass->rounds;
    uint64_t at = pass->scratch_bytes;
    *rounds = (struct ox_plan_rounds){.routes_bytes = piece, .each = 1, .ranges = 1, .row_bytes = 64, .row_max = 3,
                                      .plane_bytes = 64 * 5, .planes = backward ? 2 : 1,
                                      .returned = !backward ? 1 : returns ? 2 : 0};
    for (uint32_t i = 0; i < 2 * rounds->planes; i++, at += rounds->plane_bytes) {
        (i % 2 == 0 ? rounds->own : rounds->other)[i / 2] = at;
    }
    rounds->routes = at;
    pass->cuts[0] = (struct ox_plan_cut){.kind = OX_CUT_GATHER, .axis = OX_AXIS_EXPERT, .role = OX_USE_SCRATCH,
                                         .source = at, .target = at, .bytes = piece * members, .share = 0.1};
    at += piece * members;
    pass->cut_count = 1;
    for (uint32_t round = 1; round <= members - (rounds->returned == 0); round++) {
        pass->cuts[pass->cut_count++] = (struct ox_plan_cut){
            .kind = OX_CUT_ROUND, .axis = OX_AXIS_EXPERT, .role = OX_USE_SCRATCH, .round = (uint8_t)round,
            .bytes = ox_plan_round_bytes(rounds, round, members), .share = 0.1 + 0.8 * round / members};
    }
    if (backward) {
        pass->cuts[pass->cut_count++] = (struct ox_plan_cut){
            .kind = OX_CUT_EXCHANGE, .axis = OX_AXIS_EXPERT, .role = OX_USE_SCRATCH, .source = at,
            .target = at + piece * members, .bytes = piece * members, .share = 0.95};
        at += 2 * piece * members;
    }
    if (ranks->tensors > 1) {
        pass->cuts[pass->cut_count++] = (struct ox_plan_cut){
            .kind = OX_CUT_EXCHANGE, .axis = OX_AXIS_TENSOR, .role = OX_USE_SCRATCH, .source = at,
            .target = at + piece * ranks->tensors, .bytes = piece * ranks->tensors, .share = 1};
        at += 2 * piece * ranks->tensors;
    }
    pass->scratch_bytes = at;
}

/* Gives a pass cuts whose pieces lie one behind the other, at the end of its scratch or of what is kept; an exchange
 * may go from one of these to the other. */
static void cut_pass(struct ox_plan_pass *pass, uint32_t count, const struct ox_plan_ranks *ranks, uint64_t piece,
                     uint64_t kept) {
    const uint32_t members = crossing(ranks);
    uint64_t at = pass->scratch_bytes;
    for (uint32_t i = 0; i < count; i++) {
        const bool in_kept = i == 0 && kept > 0, shifts = i % 3 == 2, exchanges = i % 2 == 1 || shifts;
        const uint64_t bytes = piece * members * (i + 1), first = in_kept ? 0 : at;
        struct ox_plan_cut *const cut = &pass->cuts[i];
        *cut = (struct ox_plan_cut){
            .kind = shifts ? OX_CUT_SHIFT : exchanges ? OX_CUT_EXCHANGE : OX_CUT_GATHER,
            .axis = (uint8_t)axis_of(ranks),
            .role = in_kept ? OX_USE_KEPT : OX_USE_SCRATCH, .source = exchanges ? first + bytes : first,
            .target = first, .bytes = bytes, .share = (i + 1.0) / (count + 1)};
        if (exchanges && kept >= bytes) {
            cut->across = true;
            cut->role = i % 4 == 1 ? OX_USE_KEPT : OX_USE_SCRATCH;
            *(i % 4 == 1 ? &cut->target : &cut->source) = 0;
        }
        at += in_kept ? 0 : bytes * (1 + exchanges);
    }
    pass->scratch_bytes = at;
    pass->cut_count = count;
}

static void cut_stages(struct plan_sample *s, const struct ox_plan_ranks *ranks, uint64_t seed) {
    uint64_t counter = 97500;
    for (uint32_t i = 0; i < s->in.model.stage_count && crossing(ranks) > 1; i++) {
        struct ox_plan_stage *const stage = &s->model.stages[i];
        const uint64_t piece = 64 * (1 + plan_sample_number(seed, &counter, 200));
        const uint32_t count = (uint32_t)plan_sample_number(seed, &counter, 4);
        if (stage->kind == OX_PLAN_BLOCK && ranks->experts > 1 && count > 0) {
            stage->kept_bytes = 0; /* as experts, which keep nothing */
            round_pass(&stage->forward, ranks, piece, false, true);
            round_pass(&stage->backward, ranks, piece, true, count > 1);
        } else if (ranks->experts > 1 && ranks->tensors <= 1) {
            continue;
        } else if (stage->kind == OX_PLAN_BLOCK) {
            const uint64_t kept = stage->kept_bytes >= piece * crossing(ranks) ? stage->kept_bytes : 0;
            cut_pass(&stage->forward, count, ranks, piece, 0);
            cut_pass(&stage->forward_kept, count, ranks, piece, kept);
            cut_pass(&stage->backward, count + 1, ranks, piece, 0);
            cut_pass(&stage->backward_kept, count, ranks, piece, kept);
        } else if (ranks->tensors > 1) { /* which divide the vocabulary too */
            cut_pass(&stage->forward, 2 * count, ranks, piece, 0);
            cut_pass(&stage->backward, stage->kind == OX_PLAN_HEAD ? count + 3 : 0, ranks, piece, 0);
        }
    }
}

static uint32_t micro_batches_of(const struct ox_plan_ranks *ranks) {
    const uint32_t tensors = ranks->tensors > 1 ? ranks->tensors : 1;
    const uint32_t of_batch = ranks->count / ranks->contexts / tensors, idx = ranks->idx % of_batch;
    const uint64_t groups = ranks->sum_groups, all = ranks->micro_batches;
    const uint64_t first = ox_div_up(groups * idx, of_batch), past = ox_div_up(groups * (idx + 1), of_batch);
    return (uint32_t)(ox_div_up(all * past, groups) - ox_div_up(all * first, groups));
}

static void become_rank(struct plan_sample *s, const struct ox_shard_table *whole, struct ox_plan_ranks ranks,
                        uint32_t idx) {
    ranks.idx = idx;
    REQUIRE_OK(ox_plan_table_open(whole, &ranks, &s->table));
    s->in.table = &s->table;
    s->in.ranks = ranks;
    s->in.model.micro_batches = micro_batches_of(&ranks);
    s->in.placement.tiles = (uint32_t)ox_min_u64(s->in.placement.tiles, ox_plan_tiles_max(&s->in));
}

/* ---- what crosses ----------------------------------------------------------------------------------- */

/* Whether a pass is done, of each of the rank's micro-batches. */
static bool is_done(const struct plan_sample *s, const struct ox_plan *plan, uint32_t stage_idx, int kind) {
    bool kept = false;
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        kept = kept || (plan->bufs[i].kind == OX_BUF_KEPT && plan->bufs[i].stage_idx == stage_idx);
    }
    const bool backward = kind == OX_PLAN_BACKWARD || kind == OX_PLAN_BACKWARD_KEPT;
    const bool of_kept = kind == OX_PLAN_FORWARD_KEPT || kind == OX_PLAN_BACKWARD_KEPT;
    const bool in_one = s->in.model.stages[stage_idx].kind == OX_PLAN_HEAD; /* its forward and its backward */
    return kept == of_kept && (!in_one || backward == (plan->kind == OX_PLAN_TRAIN)) &&
           (!backward || (plan->kind == OX_PLAN_TRAIN && stage_idx >= ox_plan_first_back(&s->in.model)));
}

/* Bytes of what crosses: with `rounds` of rows to experts, of which they are the most. */
static uint64_t expected_in(const struct plan_sample *s, const struct ox_plan *plan, bool rounds) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->in.model.stage_count; i++) {
        for (int kind = 0; kind < OX_PLAN_PASS_COUNT; kind++) {
            const struct ox_plan_pass *const pass =
                ox_plan_stage_pass(&s->in.model.stages[i], (enum ox_plan_pass_kind)kind);
            for (uint32_t k = 0; k < pass->cut_count && is_done(s, plan, i, kind); k++) {
                const bool of_round = pass->cuts[k].kind == OX_CUT_ROUND, shifts = pass->cuts[k].kind == OX_CUT_SHIFT;
                bytes += of_round != rounds ? 0
                         : of_round || shifts ? pass->cuts[k].bytes
                                            : pass->cuts[k].bytes / members_of(&s->in.ranks, &pass->cuts[k]) *
                                                  (members_of(&s->in.ranks, &pass->cuts[k]) - 1);
            }
        }
    }
    return bytes * s->in.model.micro_batches;
}

/* ---- one rank --------------------------------------------------------------------------------------- */

static void check_rank(struct plan_sample *s, struct ox_plan *plan, enum ox_plan_kind kind, uint64_t seed,
                       struct totals *totals) {
    ox_plan_build(plan, &s->in, kind);
    const enum ox_status status = ox_proof_check(plan, &s->in);
    if (status != OX_OK) {
        printf("seed %llu, rank %u of %u, kind %d: %s\n", (unsigned long long)seed, s->in.ranks.idx,
               s->in.ranks.count, kind, ox_error_text());
    }
    CHECK(status == OX_OK);
    totals->plans++;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        totals->rows += plan->tasks[i].move == OX_MOVE_ROWS;
        totals->rounds += plan->tasks[i].move == OX_MOVE_ROWS && plan->tasks[i].slot > 0;
        totals->of_tensors += plan->tasks[i].move == OX_MOVE_ROWS && plan->tasks[i].axis == OX_AXIS_TENSOR;
        totals->across += plan->tasks[i].move == OX_MOVE_ROWS &&
                          ox_task_find_use(&plan->tasks[i], OX_USE_SOURCE) >= 0; /* from one buffer to another */
        totals->joins += plan->tasks[i].kind == OX_TASK_GRAD_FOLD && plan->tasks[i].last;
    }
    for (int link = OX_LINK_PEER_IN; link <= OX_LINK_PEER_OUT; link++) {
        CHECK(plan->traffic[link][OX_TRAFFIC_ACTIVATIONS] == expected_in(s, plan, false));
        CHECK(plan->traffic[link][OX_TRAFFIC_TOKENS] == expected_in(s, plan, true));
    }
    if (seed % 3 == 0) {
        plan_faults_deps(s, plan, seed, &totals->deps);
        plan_faults_effects(s, plan, seed, &totals->faults);
        plan_faults_drop_tasks(s, plan, seed, &totals->faults);
        plan_faults_buffers(s, plan, &totals->sizes);
        plan_faults_sums(s, plan, &totals->sizes);
    }
}

/* ---- all ranks -------------------------------------------------------------------------------------- */

static enum ox_status check_box(const struct box *box) {
    return plan_faults_check_ranks(box->plans, box->inputs, box->count);
}

static void refuse_box(const struct box *box, const char *what, struct totals *totals) {
    totals->faults.made++;
    if (check_box(box) == OX_OK) {
        printf("accepted: %s\n", what);
    } else {
        totals->faults.found++;
    }
}

/* One rank knows of fewer groups, or of fewer ranks that divide them. */
static void refuse_half(struct box *box, struct ox_plan_ranks *ranks, struct totals *totals) {
    const struct ox_plan_ranks kept = *ranks;
    ranks->tensor_groups *= 2;
    refuse_box(box, "another number of groups of features", totals);
    *ranks = kept;
    ranks->tensors = 1;
    refuse_box(box, "another number of ranks that divide features", totals);
    *ranks = kept;
}

/* One rank knows of other experts, or of fewer ranks that divide them, or sums what has no tree of its own. */
static void refuse_experts(struct box *box, uint32_t idx, struct totals *totals) {
    struct ox_plan_ranks *const ranks = &box->inputs[idx].ranks;
    const struct ox_plan_ranks kept = *ranks;
    uint32_t others[PLAN_SAMPLE_UNITS_MAX];
    memcpy(others, ranks->expert_of, box->inputs[0].model.unit_count * sizeof *others);
    others[0] = others[0] == 0 ? 1 : 0;
    ranks->expert_of = others;
    refuse_box(box, "another owner of experts", totals);
    *ranks = kept;
    ranks->experts = 1;
    refuse_box(box, "another number of ranks that divide experts", totals);
    *ranks = kept;
    ranks->sum_groups *= 3;
    refuse_box(box, "sums that are no nodes of the tree", totals);
    *ranks = kept;
}

/* Lets what a rank does first with the others wait for what it does next with them. What ranks do together, and in
 * which order, stays the same, so that only all lists played together show the circle. */
static void plant_circle(struct box *box, struct totals *totals) {
    struct ox_plan *const plan = box->plans[0];
    const bool played = box->inputs[0].ranks.experts > 1 || box->inputs[0].ranks.tensors > 1; /* else compared alone */
    uint32_t *first = NULL;
    for (uint32_t i = 0; i < plan->task_count && played; i++) {
        if (plan->tasks[i].lane == OX_LANE_LINK && first != NULL) {
            const uint32_t kept = *first;
            *first = i + 1;
            refuse_box(box, "ranks that wait for each other in a circle", totals);
            CHECK(strstr(ox_error_text(), "in a circle") != NULL);
            *first = kept;
            totals->circles++;
            return;
        }
        first = plan->tasks[i].lane == OX_LANE_LINK ? &plan->tasks[i].deps[OX_LANE_LINK] : first;
    }
}

/* Plants faults in how ranks divide rows, and in the order in which one of them meets the others. */
static void change_joint(struct box *box, uint64_t seed, struct totals *totals) {
    uint64_t counter = 4000;
    const uint32_t idx = (uint32_t)plan_sample_number(seed, &counter, box->count);
    struct ox_plan *const plan = box->plans[idx];
    struct ox_plan_ranks *const ranks = &box->inputs[idx].ranks;
    const struct ox_plan_ranks kept_ranks = *ranks;
    ranks->contexts = 7;
    refuse_box(box, "another number of ranks that divide rows", totals);
    *ranks = kept_ranks;
    ranks->context_groups *= 2;
    refuse_box(box, "another number of groups of rows", totals);
    *ranks = kept_ranks;
    if (ranks->tensors > 1) {
        uint32_t others[PLAN_SAMPLE_UNITS_MAX];
        memcpy(others, ranks->group_of, box->inputs[0].model.unit_count * sizeof *others);
        others[0] = others[0] == 0 ? 1 : 0;
        ranks->group_of = others;
        refuse_box(box, "another group of a unit", totals);
        *ranks = kept_ranks;
        refuse_half(box, ranks, totals);
        *ranks = kept_ranks;
    }
    if (ranks->experts > 1) {
        refuse_experts(box, idx, totals);
    }
    if (crossing(ranks) == 1) {
        return;
    }
    uint32_t before = OX_NONE;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        struct ox_task *const task = &plan->tasks[i];
        if (task->lane != OX_LANE_LINK) {
            continue;
        }
        const struct ox_task kept = *task;
        task->phase++;
        refuse_box(box, "rows of another phase", totals);
        *task = kept;
        task->pass ^= 2;
        refuse_box(box, "rows of another pass", totals);
        *task = kept;
        task->mb_idx++;
        refuse_box(box, "rows of another micro-batch", totals);
        *task = kept;
        if (kept.move == OX_MOVE_ROWS && ranks->experts > 1) {
            task->slot++;
            refuse_box(box, "rows of another round", totals);
            *task = kept;
        }
        if (kept.axis == OX_AXIS_SLICE) {
            task->axis = OX_AXIS_SHARD;
            refuse_box(box, "experts' slices with those that have other experts", totals);
            *task = kept;
            totals->slices++;
        }
        /* what other ranks do with this one along another axis may come before or behind it */
        const bool of_same = ranks->contexts > 1 || (before != OX_NONE && plan->tasks[before].axis == kept.axis);
        const bool same_ranks = before != OX_NONE && of_same;
        if (same_ranks && kept.move == OX_MOVE_ROWS) {
            *task = plan->tasks[before];
            plan->tasks[before] = kept;
            refuse_box(box, "joint tasks in another order", totals);
            plan->tasks[before] = *task;
            *task = kept;
        }
        before = i;
    }
    REQUIRE_OK(check_box(box));
}

static void check_kind(struct plan_sample *s, struct box *box, enum ox_plan_kind kind, uint64_t seed,
                       struct totals *totals) {
    for (uint32_t i = 0; i < box->count; i++) {
        s->in = box->inputs[i];
        s->table = box->tables[i];
        s->in.table = &s->table;
        check_rank(s, box->plans[i], kind, seed, totals);
    }
    if (box->count > 1) {
        REQUIRE_OK(check_box(box));
        change_joint(box, seed, totals);
        plant_circle(box, totals);
    }
}

static void check_sample(struct plan_sample *s, uint64_t seed, struct totals *totals) {
    const struct ox_shard_table whole = s->table;
    struct ox_plan_ranks ranks = draw_ranks(seed);
    struct box box = {.count = ranks.count};
    uint32_t group_of[PLAN_SAMPLE_UNITS_MAX], expert_of[PLAN_SAMPLE_UNITS_MAX];
    CHECK(s->in.model.unit_count <= PLAN_SAMPLE_UNITS_MAX);
    draw_groups(ranks.tensor_groups, &s->in.model, seed, group_of);
    ranks.group_of = group_of;
    draw_groups(ranks.experts, &s->in.model, seed + 1, expert_of);
    ranks.expert_of = expert_of;
    cut_stages(s, &ranks, seed);
    for (uint32_t idx = 0; idx < ranks.count; idx++) {
        become_rank(s, &whole, ranks, idx);
        box.tables[idx] = s->table;
        box.inputs[idx] = s->in;
        box.inputs[idx].table = &box.tables[idx];
        REQUIRE_OK(ox_plan_open(&s->in, &box.plans[idx]));
    }
    if (s->in.placement.overlap) {
        check_kind(s, &box, OX_PLAN_EVAL_AFTER_STEP, seed, totals);
    }
    check_kind(s, &box, OX_PLAN_EVAL, seed, totals);
    check_kind(s, &box, OX_PLAN_TRAIN, seed, totals);
    for (uint32_t idx = 0; idx < ranks.count; idx++) {
        ox_plan_close(&box.plans[idx]);
        ox_shard_table_close(&box.tables[idx]);
    }
    s->table = whole;
}

int main(void) {
    static struct plan_sample s;
    struct totals totals = {0};
    for (uint64_t seed = test_first(QUICK); seed < SAMPLES; seed += test_stride(QUICK)) {
        if (choose(&s, seed)) {
            check_sample(&s, seed, &totals);
        }
        ox_shard_table_close(&s.table);
    }
    printf("%llu plans with %llu moves of rows and %llu joined sums; faults: %llu of %llu, of sizes %llu of %llu\n",
           (unsigned long long)totals.plans, (unsigned long long)totals.rows, (unsigned long long)totals.joins,
           (unsigned long long)totals.faults.found, (unsigned long long)totals.faults.made,
           (unsigned long long)totals.sizes.found, (unsigned long long)totals.sizes.made);
    CHECK(totals.rounds > 0 && totals.slices > 0 && totals.across > 0 && totals.circles > 0);
    CHECK(totals.rows > totals.of_tensors && totals.of_tensors > 0 && totals.joins > 0);
    CHECK(totals.faults.made > 0 && totals.deps > 0);
    CHECK(totals.faults.found == totals.faults.made && totals.sizes.found == totals.sizes.made);
    return test_end();
}
