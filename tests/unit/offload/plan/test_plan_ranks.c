/* Plans of steps that several ranks do together: each is proven by the checker, which finds every planted fault, and
 * what ranks send to each other adds up. */
#include "offload/plan/plan.h"
#include "offload/proof/proof.h"
#include "base/bytes.h"
#include "tests/kit/plan/plan_faults.h"
#include "tests/kit/test.h"

#include <string.h>

enum { QUICK = 8 }; /* so many fewer plans in `make test` */
enum { SAMPLES = 200, PLANNED = 60, RANKS_MAX = 8 };

struct totals {
    uint64_t plans, gathers, empty_slices, deps;
    struct plan_faults faults, sizes;
};

/* Takes the homes and the placement that the planner chose for one rank, with room for whatever several need. */
static bool choose(struct plan_sample *s, uint64_t seed) {
    struct ox_plans plans = {0};
    plan_sample_draw(s, seed);
    const bool fits = ox_placement_choose(&s->in, &s->table, &s->request, &s->setup, &plans) == OX_OK;
    ox_plans_close(&plans);
    s->in.budget.host_bytes += OX_GIB;
    s->in.budget.device_bytes += s->in.budget.unified ? 0 : OX_GIB;
    return fits;
}

/* The micro-batches of a rank: those of its sum groups. */
static uint32_t micro_batches_of(const struct ox_plan_ranks *ranks) {
    const uint64_t first = ox_div_up((uint64_t)ranks->sum_groups * ranks->idx, ranks->count);
    const uint64_t past = ox_div_up((uint64_t)ranks->sum_groups * (ranks->idx + 1), ranks->count);
    return (uint32_t)(ox_div_up(ranks->micro_batches * past, ranks->sum_groups) -
                      ox_div_up(ranks->micro_batches * first, ranks->sum_groups));
}

/* Makes the sample that of one rank, with its slices of `whole`. */
static void become_rank(struct plan_sample *s, const struct ox_shard_table *whole, struct ox_plan_ranks ranks,
                        uint32_t idx) {
    ranks.idx = idx;
    REQUIRE_OK(ox_plan_table_open(whole, &ranks, &s->table));
    s->in.table = &s->table;
    s->in.ranks = ranks;
    s->in.model.micro_batches = micro_batches_of(&ranks);
    s->in.placement.tiles = (uint32_t)ox_min_u64(s->in.placement.tiles, ox_plan_tiles_max(&s->in));
}

/* ---- what crosses between ranks --------------------------------------------------------------------- */

/* Whether devices take the unit from host memory and not from each other. */
static bool takes_from_host(const struct plan_sample *s, uint32_t unit_idx) {
    return s->in.ranks.sharding == OX_SHARDING_SHARED && !s->in.budget.unified &&
           s->table.shards[unit_idx].homes.weights != OX_TIER_DEVICE;
}

/* Bytes of what a rank lacks of a unit. */
static uint64_t bytes_of_others(const struct plan_sample *s, uint32_t unit_idx) {
    const struct ox_shard *const shard = &s->table.shards[unit_idx];
    const bool lo = s->in.model.precision->lo_travels && shard->sizes.lo_per_group > 0;
    const uint64_t all = s->in.model.units[unit_idx].elem_count, own = shard->elem_count;
    const uint64_t pages = (all / OX_GROUP_ELEMS * shard->hi_per_group + 4095) / 4096 -
                           (own / OX_GROUP_ELEMS * shard->hi_per_group + 4095) / 4096; /* of hi */
    return takes_from_host(s, unit_idx) ? 0 : pages * 4096 + (lo ? (all - own) * 2 : 0);
}

static bool uses(const struct ox_plan_stage *stage, uint32_t unit_idx) {
    bool is = false;
    for (uint32_t k = 0; stage != NULL && k < stage->unit_count; k++) {
        is |= stage->units[k].unit_idx == unit_idx;
    }
    return is;
}

/* Bytes of weights that come from other ranks: in each tile for each pass of a stage and each unit that it uses, unless
 * the pass before, of another stage, has used it, where it stays; or once for each unit. */
static uint64_t expected_in(const struct plan_sample *s, bool train) {
    const struct ox_plan_model *const model = &s->in.model;
    const bool each_pass = s->in.ranks.sharding == OX_SHARDING_FULL || s->in.ranks.sharding == OX_SHARDING_SHARED;
    const struct ox_plan_stage *before = NULL;
    const uint32_t count = model->stage_count;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < 2 * count * s->in.placement.tiles; i++) {
        const bool back = i % (2 * count) >= count;
        const uint32_t stage_idx = back ? 2 * count - 1 - i % (2 * count) : i % (2 * count);
        const struct ox_plan_stage *const stage = &model->stages[stage_idx];
        bool trains = model->stages[0].kind != OX_PLAN_EMBEDDING; /* this stage or one before */
        for (uint32_t j = 0; j <= stage_idx; j++) {
            for (uint32_t k = 0; k < model->stages[j].unit_count; k++) {
                trains = trains || model->units[model->stages[j].units[k].unit_idx].trained;
            }
        }
        if (back && (!train || !trains || stage->kind == OX_PLAN_HEAD)) {
            continue;
        }
        const bool reads = !back || stage->kind == OX_PLAN_BLOCK;
        for (uint32_t k = 0; k < stage->unit_count; k++) {
            const uint32_t unit_idx = stage->units[k].unit_idx;
            if (!reads && !stage->units[k].read_back) {
                continue;
            }
            const bool once = i < count && model->units[unit_idx].stage_idx == stage_idx;
            bytes += (each_pass ? before == stage || !uses(before, unit_idx) : once) ? bytes_of_others(s, unit_idx) : 0;
        }
        before = reads ? stage : NULL;
    }
    return bytes;
}

/* How many parts those have who come from `first` on, all but one of them, where `count` divide the groups: one for
 * each block of a power of two of groups. The last block of a step may be short. */
static uint64_t parts_of_others(uint64_t groups, uint64_t count, uint64_t first, uint64_t past, uint64_t own) {
    uint64_t parts = 0;
    for (uint64_t i = first; i < past; i++) {
        const uint64_t end = ox_div_up(groups * (i + 1), count);
        for (uint64_t at = ox_div_up(groups * i, count); i != own && at < end; parts++) {
            uint64_t block = 1;
            while (at % (2 * block) == 0 && (at + 2 * block <= end || (end == groups && at + block < end))) {
                block *= 2;
            }
            at += block;
        }
    }
    return parts;
}

/* Elements that number `idx` of `count` has of a vector that is as long as the first `left` of `elems` elements. */
static uint64_t own_of(uint64_t elems, uint64_t left, uint64_t chunk, uint64_t count, uint64_t idx) {
    const uint64_t most = ox_div_up(ox_div_up(elems, chunk), count) * chunk, first = ox_min_u64(most * idx, left);
    return ox_min_u64(most, left - first);
}

/* Bytes of so many numbers as --exchange-dtype moves them: in float32, bfloat16, or 8 bits with a scale for 64. */
static uint64_t travelling(const struct plan_sample *s, uint64_t elems) {
    const uint64_t bytes[] = {4 * elems, (2 * elems + 15) & ~UINT64_C(15),
                              (68 * ((elems + 63) / 64) + 15) & ~UINT64_C(15)};
    return bytes[s->in.ranks.exchange];
}

/* Numbers of both thin matrices of so many rows; 0 where they are too many. */
static uint64_t thin_of(const struct ox_low_rank *how, uint64_t rows, uint64_t cols) {
    const uint64_t rank = ox_min_u64(how->rank, ox_min_u64(rows, cols)), thin = (rows + cols) * rank;
    return (double)thin * how->min_rate < (double)(rows * cols) ? thin : 0;
}

/* Whether copies exchange a gradient in low rank: a matrix of all of it is worth it. *sent: what each gives of its
 * slice of `own` numbers, the rows that lie in it as thin matrices where these are worth it. */
static bool is_low_rank(const struct plan_sample *s, uint32_t grad_idx, uint64_t own, uint64_t *sent) {
    const struct ox_low_rank *const how = s->in.ranks.low_rank;
    const struct ox_plan_grad *const grad = &s->in.model.grads[grad_idx];
    const uint64_t first = s->table.shards[grad->unit_idx].elem_first;
    bool any = false;
    *sent = own;
    for (uint32_t i = how == NULL ? 0 : how->first_of[grad->unit_idx];
         how != NULL && i < how->first_of[grad->unit_idx + 1]; i++) {
        const struct ox_low_rank_matrix *const matrix = &how->matrices[i];
        uint64_t here = 0, all = 0;
        for (uint64_t row = 0, at = matrix->first; row < matrix->rows; row++, at += matrix->cols) {
            here += at >= first && at + matrix->cols <= first + own;
            all += at + matrix->cols <= grad->elem_count;
        }
        const uint64_t thin = thin_of(how, here, matrix->cols);
        any = any || thin_of(how, all, matrix->cols) > 0;
        *sent -= thin > 0 ? here * matrix->cols - thin : 0;
    }
    return any;
}

/* Each other holder of the rank's copy gives its slice of every gradient once for each part that it has. Then each
 * other copy gives the rank's cut of that slice, once for each part of the copy, and in the end the cut that it has
 * added. */
static uint64_t expected_grads_in(const struct plan_sample *s) {
    const struct ox_plan_model *const model = &s->in.model;
    const uint64_t groups = s->in.ranks.sum_groups, ranks = s->in.ranks.count, chunk = s->table.chunk_elems;
    const uint64_t given = ox_max_u64(s->in.ranks.copies, 1);
    const uint64_t copies = s->in.ranks.sharding == OX_SHARDING_NONE ? ranks : given, holders = ranks / copies;
    const uint64_t idx = s->in.ranks.idx, copy = idx / holders;
    const uint64_t within = parts_of_others(groups, ranks, copy * holders, (copy + 1) * holders, idx);
    const uint64_t over = parts_of_others(groups, copies, 0, copies, copy);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model->grad_count; i++) {
        const uint64_t unit = model->units[model->grads[i].unit_idx].elem_count;
        const uint64_t slice = own_of(unit, unit, chunk, holders, idx % holders);
        const uint64_t own = own_of(unit, model->grads[i].elem_count, chunk, holders, idx % holders);
        const uint64_t cut = own_of(slice, own, chunk, copies, copy);
        uint64_t thin = 0;
        const bool low_rank = copies > 1 && is_low_rank(s, i, own, &thin);
        bytes += low_rank     ? (within * own + (copies - 1) * thin) * sizeof(float)
                 : copies > 1 ? within * own * sizeof(float) + (over - 1) * travelling(s, cut) + travelling(s, own)
                              : within * travelling(s, own);
    }
    return bytes;
}

/* The text of the plan says whose it is, and has a column for each link between ranks. */
static void check_text(const struct plan_sample *s, const struct ox_plan *plan) {
    char *text = NULL, line[64];
    REQUIRE_OK(ox_plan_text(plan, &s->in, OX_PLAN_LANES, &text));
    snprintf(line, sizeof line, "rank %u of %u, %s", s->in.ranks.idx, s->in.ranks.count,
             ox_sharding_name(s->in.ranks.sharding));
    CHECK(strstr(text, line) != NULL);
    snprintf(line, sizeof line, "within each of %u copies", s->in.ranks.copies);
    CHECK((strstr(text, line) != NULL) == (s->in.ranks.copies > 1 && s->in.ranks.sharding != OX_SHARDING_NONE));
    CHECK(strstr(text, "traffic per step: none") != NULL || strstr(text, "peer_in    peer_out") != NULL);
    free(text);
}

/* ---- one rank --------------------------------------------------------------------------------------- */

static void check_rank(struct plan_sample *s, struct ox_plan *plan, enum ox_plan_kind kind, uint64_t seed,
                       struct totals *totals) {
    ox_plan_build(plan, &s->in, kind);
    const enum ox_status status = ox_proof_check(plan, &s->in);
    if (status != OX_OK) {
        printf("seed %llu, rank %u of %u, sharding %d, kind %d: %s\n", (unsigned long long)seed, s->in.ranks.idx,
               s->in.ranks.count, s->in.ranks.sharding, kind, ox_error_text());
    }
    CHECK(status == OX_OK);
    totals->plans++;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        totals->gathers += plan->tasks[i].lane == OX_LANE_LINK;
    }
    CHECK(plan->traffic[OX_LINK_PEER_IN][OX_TRAFFIC_WEIGHTS] == expected_in(s, kind == OX_PLAN_TRAIN));
    CHECK(plan->traffic[OX_LINK_PEER_IN][OX_TRAFFIC_GRADS] == (kind == OX_PLAN_TRAIN ? expected_grads_in(s) : 0));
    check_text(s, plan);
    if (seed % 4 == 0) {
        plan_faults_deps(s, plan, seed, &totals->deps);
        plan_faults_effects(s, plan, seed, &totals->faults);
        plan_faults_drop_tasks(s, plan, seed, &totals->faults);
        plan_faults_buffers(s, plan, &totals->sizes);
        plan_faults_sums(s, plan, &totals->sizes);
    }
}

static bool same_slices(const struct ox_shard_table *a, const struct ox_shard_table *b) {
    bool same = true;
    for (uint32_t i = 0; i < a->unit_count && same; i++) {
        same = a->shards[i].elem_first == b->shards[i].elem_first && a->shards[i].elem_count == b->shards[i].elem_count;
    }
    return same;
}

/* A plan that lets the library add is no plan of fixed sums, nor the other way. */
static void refuse_other_sums(struct plan_sample *s, const struct ox_plan *plan, struct totals *totals) {
    s->in.ranks.library_sums = !s->in.ranks.library_sums;
    totals->faults.made++;
    totals->faults.found += ox_proof_check(plan, &s->in) != OX_OK;
    s->in.ranks.library_sums = !s->in.ranks.library_sums;
}

/* The slices of another rank are refused. They may be the same only where both ranks have nothing. */
static void refuse_other_slices(struct plan_sample *s, const struct ox_shard_table *whole, const struct ox_plan *plan,
                                struct totals *totals) {
    const struct ox_shard_table own = s->table;
    for (uint32_t other = 0; other < ox_plan_holders(&s->in); other++) {
        REQUIRE_OK(ox_shard_table_slice(whole, ox_plan_holders(&s->in), other, &s->table));
        const bool fault = !same_slices(&own, &s->table);
        totals->faults.made += fault;
        totals->faults.found += fault && ox_proof_check(plan, &s->in) != OX_OK;
        ox_shard_table_close(&s->table);
    }
    s->table = own;
}

/* ---- all ranks -------------------------------------------------------------------------------------- */

/* The ranks of one step, with the last plan of each. */
struct box {
    uint32_t count;
    struct ox_shard_table tables[RANKS_MAX];
    struct ox_plan_input inputs[RANKS_MAX];
    struct ox_plan *plans[RANKS_MAX];
};

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

/* Plants faults in one task that the ranks do together. */
static void change_task(struct box *box, struct ox_task *task, struct totals *totals) {
    const struct ox_task kept = *task;
    task->when |= OX_FACT_DUE;
    refuse_box(box, "a joint task of a unit that is due", totals);
    *task = kept;
    task->unit_idx++;
    refuse_box(box, "a joint task of another unit", totals);
    *task = kept;
    task->slot++;
    refuse_box(box, "a joint task of another part", totals);
    *task = kept;
    task->axis ^= 1;
    refuse_box(box, "a joint task of other ranks", totals);
    *task = kept;
    task->move = task->move == OX_MOVE_GRAD ? OX_MOVE_SUM : OX_MOVE_GRAD;
    refuse_box(box, "a joint task that moves something else", totals);
    *task = kept;
    task->last = !task->last;
    refuse_box(box, "a joint task of a sum that is not finished", totals);
    *task = kept;
    task->carried = !task->carried;
    refuse_box(box, "a joint task of another step", totals);
    *task = kept;
    task->mb_idx++;
    refuse_box(box, "a joint task of another micro-batch", totals);
    *task = kept;
    task->grad_idx++;
    refuse_box(box, "a joint task of another gradient", totals);
    *task = kept;
    task->kind = OX_TASK_CAST;
    refuse_box(box, "a joint task of another kind", totals);
    *task = kept;
    task->lane = OX_LANE_H2D;
    refuse_box(box, "a joint task that one rank lacks", totals);
    *task = kept;
}

/* Plants faults in the model as one rank sees it. */
static void change_model(struct box *box, uint32_t idx, struct totals *totals) {
    struct ox_plan_input *const input = &box->inputs[idx];
    struct ox_shard_table *const table = &box->tables[idx];
    const struct ox_plan_model kept = input->model;
    struct ox_plan_unit units[PLAN_SAMPLE_UNITS_MAX + 1] = {{0}}; /* one more than is counted, for one that is */
    struct ox_plan_grad grads[2 * PLAN_SAMPLE_UNITS_MAX + 2] = {{0}};
    struct ox_plan_stage stages[2 * PLAN_SAMPLE_UNITS_MAX + 1] = {{.kind = OX_PLAN_EMBEDDING}};
    uint32_t order[PLAN_SAMPLE_UNITS_MAX + 1] = {0};
    memcpy(units, kept.units, kept.unit_count * sizeof *units);
    memcpy(grads, kept.grads, kept.grad_count * sizeof *grads);
    memcpy(stages, kept.stages, kept.stage_count * sizeof *stages);
    memcpy(order, kept.order, kept.unit_count * sizeof *order);
    input->model.units = units;
    input->model.grads = grads;
    input->model.stages = stages;
    input->model.order = order;
    const struct ox_precision *const other = ox_precision_of(
        input->model.precision->dtype == OX_COMPUTE_FP32 ? OX_COMPUTE_BF16 : OX_COMPUTE_FP32, true);
    bool *const flags[] = {&input->model.grad_bf16};
    uint32_t *const numbers[] = {&input->model.unit_count, &input->model.grad_count, &input->model.stage_count,
                                 &order[0], &stages[0].unit_count, &stages[0].units[0].unit_idx,
                                 &stages[0].units[0].grad_idx, &grads[0].unit_idx};
    uint64_t *const sizes[] = {&units[0].elem_count, &grads[0].elem_count, &table->chunk_elems};
    input->model.precision = other;
    refuse_box(box, "numbers of another type", totals);
    input->model.precision = kept.precision;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        *flags[i] = !*flags[i];
        refuse_box(box, "numbers of another type", totals);
        *flags[i] = !*flags[i];
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        (*numbers[i])++;
        refuse_box(box, "another list of units or gradients", totals);
        (*numbers[i])--;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *sizes[i] += OX_GROUP_ELEMS;
        refuse_box(box, "units, gradients or chunks of another size", totals);
        *sizes[i] -= OX_GROUP_ELEMS;
    }
    box->plans[idx]->kind = box->plans[idx]->kind == OX_PLAN_TRAIN ? OX_PLAN_EVAL : OX_PLAN_TRAIN;
    refuse_box(box, "a step of another kind", totals);
    box->plans[idx]->kind = box->plans[idx == 0 ? 1 : 0]->kind;
    input->model = kept;
}

/* Plants faults in what one rank does with the others, each of which would make some rank wait for ever. */
static void change_joint(struct box *box, uint64_t seed, struct totals *totals) {
    uint64_t counter = 4000;
    const uint32_t idx = (uint32_t)plan_sample_number(seed, &counter, box->count);
    struct ox_plan *const plan = box->plans[idx];
    uint32_t before = OX_NONE;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        struct ox_task *const task = &plan->tasks[i];
        if (task->lane != OX_LANE_LINK) {
            continue;
        }
        const struct ox_task kept = *task;
        change_task(box, task, totals);
        if (before != OX_NONE && plan->tasks[before].unit_idx != task->unit_idx) {
            *task = plan->tasks[before];
            plan->tasks[before] = kept;
            refuse_box(box, "joint tasks in another order", totals);
            plan->tasks[before] = *task;
            *task = kept;
        }
        before = i;
    }
    struct ox_plan_ranks *const ranks = &box->inputs[idx].ranks;
    const struct ox_plan_ranks kept = *ranks;
    ranks->idx = (idx + 1) % box->count;
    refuse_box(box, "a rank twice", totals);
    *ranks = kept;
    ranks->micro_batches++;
    refuse_box(box, "more micro-batches", totals);
    *ranks = kept;
    ranks->sum_groups++;
    refuse_box(box, "more sum groups", totals);
    *ranks = kept;
    ranks->copies = ranks->copies == 7 ? 3 : 7;
    refuse_box(box, "another number of copies", totals);
    *ranks = kept;
    ranks->sharding++;
    refuse_box(box, "another sharding", totals);
    *ranks = kept;
    ranks->library_sums = !ranks->library_sums;
    refuse_box(box, "sums that another adds", totals);
    *ranks = kept;
    ranks->exchange = ranks->exchange == OX_EXCHANGE_Q8 ? OX_EXCHANGE_FP32 : OX_EXCHANGE_Q8;
    refuse_box(box, "sums that travel in another type", totals);
    *ranks = kept;
    ranks->low_rank = ranks->low_rank == NULL ? &(struct ox_low_rank){.rank = 1} : NULL;
    refuse_box(box, "sums in low rank", totals);
    *ranks = kept;
    box->inputs[idx].model.micro_batches++;
    refuse_box(box, "a micro-batch too many", totals);
    box->inputs[idx].model.micro_batches--;
    change_model(box, idx, totals);
    REQUIRE_OK(check_box(box));
}

/* ---- what all ranks agree on, and yet cannot be ------------------------------------------------------------- */

/* Gives all ranks the same numbers, with which none has other units than before: refused by their input alone. */
static void refuse_of_all(struct box *box, struct ox_plan_ranks wrong, const char *says, struct totals *totals) {
    struct ox_plan_ranks kept[RANKS_MAX];
    for (uint32_t i = 0; i < box->count; i++) {
        kept[i] = box->inputs[i].ranks;
        box->inputs[i].ranks = wrong;
        box->inputs[i].ranks.idx = i;
    }
    refuse_box(box, says, totals);
    if (strstr(ox_error_text(), says) == NULL) {
        printf("not said: %s, but %s\n", says, ox_error_text());
        CHECK(!"another refusal");
    }
    for (uint32_t i = 0; i < box->count; i++) {
        box->inputs[i].ranks = kept[i];
    }
}

/* Numbers of ranks and groups that do not divide what they have to. */
static void change_all(struct box *box, struct totals *totals) {
    static const char rows[] = "the rows are not divided", features[] = "the groups of features are not divided";
    static const char experts[] = "the experts are not divided";
    static const char units[] = "the units are not divided over the pipeline";
    static const char work[] = "there is not work for as many ranks", copies[] = "the ranks do not divide into copies";
    const struct ox_plan_ranks right = box->inputs[0].ranks;
    const uint32_t count = box->count;
    uint32_t odd = 2, of_unit[64];
    while (count % odd == 0) {
        odd++;
    }
    CHECK(box->inputs[0].model.unit_count <= sizeof of_unit / sizeof *of_unit);
    memset(of_unit, 0xff, sizeof of_unit); /* OX_NONE */
    struct ox_plan_ranks wrong = right;
    wrong.contexts = wrong.context_groups = odd;
    refuse_of_all(box, wrong, rows, totals);
    wrong.contexts = count;
    wrong.context_groups = count + 1; /* not as many for each */
    refuse_of_all(box, wrong, rows, totals);
    wrong.context_groups = count;
    wrong.sum_groups = 3; /* leaves of no node, though each has one group of rows */
    refuse_of_all(box, wrong, rows, totals);
    wrong.contexts = 1;
    wrong.context_groups = 2; /* two groups of rows on a rank that has a part of the sum groups */
    wrong.sum_groups = 8;
    refuse_of_all(box, wrong, rows, totals);
    wrong = right;
    wrong.tensors = count;
    wrong.tensor_groups = count + 1;
    wrong.group_of = of_unit;
    refuse_of_all(box, wrong, features, totals);
    wrong = right;
    wrong.experts = odd;
    wrong.expert_of = of_unit;
    refuse_of_all(box, wrong, experts, totals);
    wrong = right;
    wrong.pipe = 2 * count;
    wrong.pipe_of = of_unit; /* none has them */
    refuse_of_all(box, wrong, features, totals); /* no rank of a coordinate is left */
    wrong.pipe = count;
    refuse_of_all(box, wrong, units, totals);
    wrong = right;
    wrong.sum_groups = count - 1;
    wrong.library_sums = false;
    refuse_of_all(box, wrong, work, totals);
    wrong.sum_groups = right.micro_batches + 1;
    refuse_of_all(box, wrong, work, totals);
    wrong = right;
    wrong.copies = odd;
    refuse_of_all(box, wrong, copies, totals);
    wrong.library_sums = true;
    wrong.exchange = OX_EXCHANGE_FP32;
    wrong.sharding = OX_SHARDING_FULL;
    wrong.sum_groups = wrong.micro_batches = count;
    wrong.copies = count / 2; /* neither one copy nor all: a library adds over all ranks or over none */
    if (count > 2 && count % 2 == 0) {
        refuse_of_all(box, wrong, copies, totals);
    }
    wrong.copies = 0;
    wrong.sum_groups = count + 1;
    wrong.micro_batches = count + 1;
    refuse_of_all(box, wrong, "the library adds sums that are in several parts", totals);
}

/* Proves the plans of all ranks. */
static void check_kind(struct plan_sample *s, struct box *box, enum ox_plan_kind kind, uint64_t seed,
                       struct totals *totals) {
    uint64_t in[OX_TRAFFIC_KIND_COUNT] = {0}, out[OX_TRAFFIC_KIND_COUNT] = {0};
    for (uint32_t i = 0; i < box->count; i++) {
        s->in = box->inputs[i];
        s->table = box->tables[i];
        s->in.table = &s->table;
        check_rank(s, box->plans[i], kind, seed, totals);
        for (int k = 0; k < OX_TRAFFIC_KIND_COUNT; k++) {
            in[k] += box->plans[i]->traffic[OX_LINK_PEER_IN][k];
            out[k] += box->plans[i]->traffic[OX_LINK_PEER_OUT][k];
        }
    }
    CHECK(memcmp(in, out, sizeof in) == 0);
    REQUIRE_OK(check_box(box));
    change_joint(box, seed, totals);
    change_all(box, totals);
}

static void check_sample(struct plan_sample *s, uint64_t seed, struct totals *totals) {
    const struct ox_shard_table whole = s->table;
    struct ox_plan_ranks ranks = plan_sample_ranks(seed);
    ranks.low_rank = plan_sample_low_rank(s, &ranks, seed);
    struct box box = {.count = ranks.count};
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
        s->in = box.inputs[idx];
        s->table = box.tables[idx];
        s->in.table = &s->table;
        refuse_other_slices(s, &whole, box.plans[idx], totals);
        refuse_other_sums(s, box.plans[idx], totals);
        for (uint32_t i = 0; i < s->table.unit_count; i++) {
            totals->empty_slices += s->table.shards[i].elem_count == 0;
        }
        ox_plan_close(&box.plans[idx]);
        ox_shard_table_close(&s->table);
    }
    s->table = whole;
}

/* ---- the planner ------------------------------------------------------------------------------------ */

static const struct ox_plan *plan_of(const struct ox_plans *plans, int kind) {
    return kind == OX_PLAN_TRAIN ? plans->train : kind == OX_PLAN_EVAL ? plans->eval : plans->eval_after_step;
}

/* The planner chooses for the first rank, which has the largest slices; with its choice the plans of the others are
 * proven too, and all fit together. Returns whether something fits; *over counts ranks that need more memory than the
 * first one, because they have more micro-batches. */
static bool check_planner(struct plan_sample *s, uint64_t seed, uint32_t *over) {
    struct ox_plan_ranks ranks = plan_sample_ranks(seed);
    ranks.low_rank = plan_sample_low_rank(s, &ranks, seed);
    const struct ox_shard_table whole = s->table;
    struct ox_plans plans = {0};
    s->in.placement.tiles = 1;
    become_rank(s, &whole, ranks, 0);
    s->request.tiles = (uint32_t)ox_min_u64(s->request.tiles, ox_plan_tiles_max(&s->in));
    s->in.budget.host_bytes *= 2;
    s->in.budget.device_bytes *= 2;
    const bool asked = s->request.state_tier == OX_TIER_DEVICE || s->request.device_units > 0;
    const bool fits = ox_placement_choose(&s->in, &s->table, &s->request, &s->setup, &plans) == OX_OK;
    for (uint32_t i = 0; i < s->table.unit_count && fits; i++) {
        CHECK(asked || !ox_plan_shares_host(&s->in) || s->table.shards[i].homes.weights != OX_TIER_DEVICE);
    }
    struct box box = {.count = ranks.count};
    box.tables[0] = s->table;
    box.inputs[0] = s->in;
    for (uint32_t idx = 1; idx < ranks.count && fits; idx++) {
        become_rank(s, &whole, ranks, idx);
        CHECK(s->in.placement.tiles == box.inputs[0].placement.tiles);
        for (uint32_t i = 0; i < whole.unit_count; i++) {
            s->table.shards[i].homes = box.tables[0].shards[i].homes;
        }
        box.tables[idx] = s->table;
        box.inputs[idx] = s->in;
        box.inputs[idx].table = &box.tables[idx];
        box.inputs[idx].budget.host_bytes += OX_GIB;
        box.inputs[idx].budget.device_bytes += s->in.budget.unified ? 0 : OX_GIB;
        REQUIRE_OK(ox_plan_open(&box.inputs[idx], &box.plans[idx]));
    }
    for (int kind = OX_PLAN_TRAIN; kind <= OX_PLAN_EVAL_AFTER_STEP && fits; kind++) {
        box.plans[0] = (struct ox_plan *)plan_of(&plans, kind);
        for (uint32_t idx = 1; idx < ranks.count && box.plans[0] != NULL; idx++) {
            ox_plan_build(box.plans[idx], &box.inputs[idx], (enum ox_plan_kind)kind);
            REQUIRE_OK(ox_proof_check(box.plans[idx], &box.inputs[idx]));
            *over += box.plans[idx]->peak_bytes[OX_TIER_HOST] > s->in.budget.host_bytes ||
                     box.plans[idx]->peak_bytes[OX_TIER_DEVICE] > s->in.budget.device_bytes;
        }
        if (box.plans[0] != NULL) {
            REQUIRE_OK(check_box(&box));
        }
    }
    for (uint32_t idx = 0; idx < ranks.count && (fits || idx == 0); idx++) {
        if (idx > 0) {
            ox_plan_close(&box.plans[idx]);
        }
        ox_shard_table_close(&box.tables[idx]);
    }
    ox_plans_close(&plans);
    s->table = whole;
    return fits;
}

static void test_planner(void) {
    uint32_t fit = 0, over = 0;
    for (uint64_t seed = 1; seed <= PLANNED; seed++) {
        static struct plan_sample s;
        plan_sample_draw(&s, seed);
        fit += check_planner(&s, seed, &over);
        ox_shard_table_close(&s.table);
    }
    printf("%u of %d steps of ranks planned; %u plans of other ranks need more memory\n", fit, PLANNED, over);
    CHECK(fit > PLANNED / 2);
}

int main(int argc, char **argv) {
    struct totals totals = {0};
    test_planner();
    const uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : SAMPLES / test_stride(QUICK);
    for (uint64_t seed = 1; seed <= count; seed++) {
        static struct plan_sample s;
        if (choose(&s, seed)) {
            check_sample(&s, seed, &totals);
        }
        ox_shard_table_close(&s.table);
    }
    printf("%llu plans of ranks proven, with %llu gathers and %llu empty slices; %llu wrong dependencies, %llu of %llu "
           "changes of meaning and %llu of %llu wrong sizes found\n", (unsigned long long)totals.plans,
           (unsigned long long)totals.gathers, (unsigned long long)totals.empty_slices,
           (unsigned long long)totals.deps, (unsigned long long)totals.faults.found,
           (unsigned long long)totals.faults.made, (unsigned long long)totals.sizes.found,
           (unsigned long long)totals.sizes.made);
    CHECK(totals.faults.found == totals.faults.made && totals.sizes.found == totals.sizes.made);
    CHECK(totals.plans > 250 && totals.gathers > 500 && totals.empty_slices > 50 && totals.deps > 50);
    CHECK(totals.faults.made > 2500 && totals.sizes.made > 2500);
    return test_end();
}
