/* Plans of random models and budgets are proven by the checker or refused with a reason; and the checker finds
 * every planted fault, so that its proof means something. A number as argument is that of random models. */
#include "offload/plan/plan.h"
#include "offload/proof/proof.h"
#include "base/bytes.h"
#include "tests/kit/plan/plan_faults.h"
#include "tests/kit/test.h"

#include <string.h>

enum { SAMPLES = 320 };

/* Faults in what other parts of the model give and get. */
enum outside_fault { DROPPED, DOUBLED, AT_WRONG_TIME, OTHER_MICRO_BATCH, OTHER_BUFFER, NOT_IN_EVERY_STEP,
                     OUTSIDE_FAULTS };

static uint64_t outside_made[OUTSIDE_FAULTS];

/* ---- other parts of the model ---------------------------------------------------------------------- */

static bool is_outside(const struct ox_task *task) {
    return task->kind == OX_TASK_MOVE && (task->move == OX_MOVE_OUTSIDE_ACT || task->move == OX_MOVE_OUTSIDE_DX);
}

/* 1 + the last task of a lane before `past`; 0 = none. */
static uint32_t last_in_lane(const struct ox_plan *plan, int lane, uint32_t past) {
    while (past > 0 && plan->tasks[past - 1].lane != lane) {
        past--;
    }
    return past;
}

/* The index of a task after the one at `from` moved to `to`. */
static uint32_t moved_idx(uint32_t idx, uint32_t from, uint32_t to) {
    return idx == from ? to : from < idx && idx <= to ? idx - 1 : to <= idx && idx < from ? idx + 1 : idx;
}

/* Moves a task to another place in the list. What waited for it still does; a task that waited for one which is later
 * now waits for the last one of that lane before it instead. */
static void move_task(struct ox_plan *plan, uint32_t from, uint32_t to) {
    const struct ox_task moved = plan->tasks[from];
    const uint32_t low = from < to ? from : to + 1;
    memmove(&plan->tasks[low], &plan->tasks[from < to ? from + 1 : to],
            (from < to ? to - from : from - to) * sizeof moved);
    plan->tasks[to] = moved;
    for (uint32_t i = from < to ? from : to; i < plan->task_count; i++) {
        for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
            uint32_t *const dep = &plan->tasks[i].deps[lane];
            if (*dep > 0) {
                const uint32_t now = 1 + moved_idx(*dep - 1, from, to);
                *dep = now > i ? last_in_lane(plan, lane, i) : now;
            }
        }
    }
}

/* Puts a task into the list a second time, right behind itself. There must be room. */
static void double_task(struct ox_plan *plan, uint32_t task_idx) {
    memmove(&plan->tasks[task_idx + 1], &plan->tasks[task_idx], (plan->task_count - task_idx) * sizeof *plan->tasks);
    plan->task_count++;
    for (uint32_t i = task_idx + 2; i < plan->task_count; i++) {
        for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
            plan->tasks[i].deps[lane] += plan->tasks[i].deps[lane] > task_idx;
        }
    }
}

/* The task that makes what leaves, or the first that reads what arrives. */
static uint32_t partner_of(const struct ox_plan *plan, uint32_t task_idx) {
    const struct ox_task *const task = &plan->tasks[task_idx];
    const bool leaves = task->lane == OX_LANE_D2H;
    for (uint32_t i = task_idx + (leaves ? -1u : 1u); i < plan->task_count; i += leaves ? -1u : 1u) {
        for (int j = 0; j < plan->tasks[i].use_count; j++) {
            if (plan->tasks[i].uses[j].buf_idx == task->uses[0].buf_idx) {
                return i;
            }
        }
    }
    return task_idx;
}

/* Plants one fault in a copy of the plan that has room for one task more; false where this plan has no place for it. */
static bool plant_outside(struct ox_plan *plan, uint32_t at, enum outside_fault fault) {
    struct ox_task *const task = &plan->tasks[at];
    const bool leaves = task->lane == OX_LANE_D2H;
    const uint32_t to = partner_of(plan, at), partner_lane = plan->tasks[to].lane;
    uint32_t other = at;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_task *const near = &plan->tasks[i];
        other = is_outside(near) && near->move == task->move && near->lane == task->lane && i != at ? i : other;
    }
    switch (fault) {
    case DROPPED:
        plan_faults_take_out(plan, at);
        return true;
    case DOUBLED:
        double_task(plan, at);
        return true;
    case AT_WRONG_TIME: /* no race: what uses the buffer next waits */
        move_task(plan, at, to);
        *(leaves ? &plan->tasks[to + 1].deps[OX_LANE_D2H] : &plan->tasks[to].deps[partner_lane]) = leaves ? to + 1 : to;
        return true;
    case OTHER_MICRO_BATCH:
        task->mb_idx = (task->mb_idx + 1) % plan->micro_batches;
        return plan->micro_batches > 1;
    case OTHER_BUFFER: {
        const uint32_t kept = task->uses[0].buf_idx;
        task->uses[0].buf_idx = plan->tasks[other].uses[0].buf_idx;
        plan->tasks[other].uses[0].buf_idx = kept;
        return other != at;
    }
    default:
        task->when |= OX_FACT_SPECULATES;
        return true;
    }
}

/* Plants each fault in everything that other parts of the model give and get. */
static void change_outside(const struct plan_sample *s, const struct ox_plan *plan, struct plan_faults *tally) {
    static const char *const names[OUTSIDE_FAULTS] = {
        "dropped", "doubled", "at the wrong time", "of another micro-batch", "in another buffer", "not in every step"};
    struct ox_plan changed = *plan;
    changed.tasks = calloc(plan->task_count + 1u, sizeof *changed.tasks);
    for (uint32_t i = 0; i < plan->task_count && changed.tasks != NULL; i++) {
        for (int fault = 0; fault < OUTSIDE_FAULTS && is_outside(&plan->tasks[i]); fault++) {
            changed.task_count = plan->task_count;
            memcpy(changed.tasks, plan->tasks, plan->task_count * sizeof *plan->tasks);
            if (!plant_outside(&changed, i, (enum outside_fault)fault)) {
                continue;
            }
            tally->made++;
            outside_made[fault]++;
            if (ox_proof_check(&changed, &s->in) == OX_OK) {
                printf("accepted: task %u (%s) %s\n", i, ox_task_name(&plan->tasks[i]), names[fault]);
            } else {
                tally->found++;
            }
        }
    }
    CHECK(changed.tasks != NULL);
    free(changed.tasks);
}

/* Counts what other parts give and get, apart from the builder and the proof: all micro-batches at each open end of the
 * list, their gradients the other way in training alone, and losses only where the list has a head. */
static void check_outside(const struct plan_sample *s, const struct ox_plan *plan) {
    const struct ox_plan_model *const model = &s->in.model;
    const bool train = plan->kind == OX_PLAN_TRAIN;
    const struct ox_plan_stage *const first = &model->stages[0], *const last = &model->stages[model->stage_count - 1];
    uint32_t counts[2][OX_LANE_COUNT] = {{0}}, losses = 0;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        losses += task->kind == OX_TASK_HEAD;
        counts[task->move == OX_MOVE_OUTSIDE_DX][task->lane] += is_outside(task);
    }
    const uint32_t in = first->input_bytes > 0 ? model->micro_batches : 0;
    const uint32_t out = last->output_bytes > 0 ? model->micro_batches : 0;
    CHECK(counts[0][OX_LANE_H2D] == in && counts[0][OX_LANE_D2H] == out);
    CHECK(counts[1][OX_LANE_H2D] == (train ? out : 0) && counts[1][OX_LANE_D2H] == (train ? in : 0));
    CHECK(losses + out == model->micro_batches && (plan->loss_host_buf == OX_NONE) == (out > 0));
    char *text = NULL;
    REQUIRE_OK(ox_plan_text(plan, &s->in, OX_PLAN_LANES, &text));
    CHECK((strstr(text, "arrive from the part before") != NULL) == (in > 0));
    CHECK((strstr(text, "leave for the part after") != NULL) == (out > 0));
    free(text);
}

/* ---- steps ------------------------------------------------------------------------------------------ */

/* Plants the faults that a reader of the plan would think of first, in every plan that has a place for them. */
static void change_steps(const struct plan_sample *s, struct ox_plan *plan, struct plan_faults *tally) {
    uint32_t first_adam = OX_NONE;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        struct ox_task changed = plan->tasks[i];
        const bool moves_grad = changed.kind == OX_TASK_MOVE && changed.move == OX_MOVE_GRAD;
        const bool updates = changed.kind == OX_TASK_UPDATE;
        if (updates && changed.unit_idx == s->in.model.order[0]) {
            first_adam = i;
        } else if (updates && first_adam != OX_NONE) {
            const struct ox_task *const first = &plan->tasks[first_adam];
            changed.uses[ox_task_find_use(&changed, OX_USE_GRAD)].buf_idx =
                first->uses[ox_task_find_use(first, OX_USE_GRAD)].buf_idx;
            plan_faults_refuse_task(s, plan, i, &changed, tally);
        } else if (moves_grad) {
            changed.last = !changed.last;
            plan_faults_refuse_task(s, plan, i, &changed, tally);
        }
    }
}

/* Plants faults in the activations that blocks keep for their backward: a backward finds nothing, or what another block
 * kept; a forward keeps nothing, or what nobody needs; and kept activations are used twice. */
static uint64_t change_kept(const struct plan_sample *s, struct ox_plan *plan, struct plan_faults *tally) {
    uint32_t last_kept = OX_NONE;
    uint64_t kept_count = 0;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        struct ox_task changed = plan->tasks[i];
        const int use_idx = ox_task_find_use(&changed, OX_USE_KEPT);
        if (use_idx >= 0) {
            const uint32_t buf_idx = changed.uses[use_idx].buf_idx;
            kept_count += changed.kind == OX_TASK_FORWARD;
            plan_faults_drop_use(&changed, (uint32_t)use_idx);
            plan_faults_refuse_task(s, plan, i, &changed, tally);
            changed = plan->tasks[i];
            changed.uses[use_idx].buf_idx = last_kept;
            if (last_kept != OX_NONE && last_kept != buf_idx) {
                plan_faults_refuse_task(s, plan, i, &changed, tally);
            }
            last_kept = buf_idx;
        } else if ((changed.kind == OX_TASK_BACKWARD || changed.kind == OX_TASK_FORWARD) && last_kept != OX_NONE) {
            changed.uses[changed.use_count++] = (struct ox_use){
                .buf_idx = last_kept, .role = OX_USE_KEPT, .read = changed.kind == OX_TASK_BACKWARD, .write = true};
            plan_faults_refuse_task(s, plan, i, &changed, tally);
        }
    }
    return kept_count;
}

static void refuse_fact(const struct plan_sample *s, const struct ox_plan *plan, uint64_t *bytes,
                        struct plan_faults *tally) {
    *bytes += OX_IO_ALIGN_BYTES;
    tally->made++;
    if (ox_proof_check(plan, &s->in) == OX_OK) {
        printf("accepted: a page more of a stage's bytes\n");
    } else {
        tally->found++;
    }
    *bytes -= OX_IO_ALIGN_BYTES;
}

/* Each stage's own sizes count: a plan is refused when any one of them asks for a page more than it was built for. */
/* Whether a stage has a backward: something is trained in it or before it, or in the part of the model before. */
static bool has_backward(const struct plan_sample *s, uint32_t stage_idx) {
    bool has = s->in.model.stages[0].kind != OX_PLAN_EMBEDDING;
    for (uint32_t i = 0; i <= stage_idx && !has; i++) {
        for (uint32_t k = 0; k < s->model.stages[i].unit_count; k++) {
            has = has || s->model.units[s->model.stages[i].units[k].unit_idx].trained;
        }
    }
    return has;
}

static void change_facts(struct plan_sample *s, const struct ox_plan *plan, struct plan_faults *tally) {
    uint32_t behind = 0; /* blocks */
    for (uint32_t i = s->in.model.stage_count; i > 0; i--) {
        struct ox_plan_stage *const stage = &s->model.stages[i - 1];
        const bool back = has_backward(s, i - 1);
        const bool keeps = back && behind < s->in.placement.kept_units && stage->kept_bytes > 0;
        if (i == s->in.model.stage_count && stage->kind != OX_PLAN_HEAD) {
            refuse_fact(s, plan, &stage->output_bytes, tally);
        }
        if (stage->kind == OX_PLAN_EMBEDDING && stage->forward.scratch_bytes > 0) { /* with an adapter */
            refuse_fact(s, plan, &stage->forward.scratch_bytes, tally);
            if (back) {
                refuse_fact(s, plan, &stage->backward.scratch_bytes, tally);
            }
        }
        if (stage->kind == OX_PLAN_EMBEDDING) {
            continue;
        }
        refuse_fact(s, plan, &stage->input_bytes, tally);
        if (back || stage->kind == OX_PLAN_HEAD) {
            refuse_fact(s, plan, keeps ? &stage->backward_kept.scratch_bytes : &stage->backward.scratch_bytes, tally);
        }
        if (stage->kind == OX_PLAN_BLOCK) {
            refuse_fact(s, plan, keeps ? &stage->forward_kept.scratch_bytes : &stage->forward.scratch_bytes, tally);
            behind++;
        }
        if (keeps) {
            refuse_fact(s, plan, &stage->kept_bytes, tally);
        }
    }
}

/* Bytes of the state of so many groups of a unit: lo and moments in whole pages, or lo alone. */
static uint64_t state_of(const struct plan_sample *s, uint32_t unit_idx, uint64_t groups) {
    const struct ox_state_sizes sizes = s->table.shards[unit_idx].sizes;
    return ox_div_up(groups * sizes.lo_per_group, OX_IO_ALIGN_BYTES) * OX_IO_ALIGN_BYTES +
           ox_div_up(groups * sizes.rest_per_group, OX_IO_ALIGN_BYTES) * OX_IO_ALIGN_BYTES;
}

/* Compares what the plan says of state with sums that the test makes piece by piece: memory, drives and traffic. Of a
 * unit that is not trained there is one generation, and nothing moves. */
static void check_state_bytes(const struct plan_sample *s, const struct ox_plan *plan) {
    const bool store = s->in.budget.nvme_bytes > 0, between = ox_plan_commits_between(&s->in);
    uint64_t hi = 0, state = 0, written = 0, read = 0, home = 0, home_found = 0;
    for (uint32_t i = 0; i < s->table.unit_count; i++) {
        const bool trained = s->in.model.units[i].trained, away = s->table.shards[i].homes.state == OX_TIER_NVME;
        const uint64_t generations = !store ? 0 : trained ? s->in.budget.generations : 1;
        uint64_t unit = 0;
        CHECK(trained || s->table.shards[i].sizes.rest_per_group == 0);
        for (uint32_t k = 0; k < s->table.shards[i].chunk_count; k++) {
            const uint64_t groups = ox_shard_chunk(&s->table, i, k).count / OX_GROUP_ELEMS;
            unit += state_of(s, i, groups);
            hi += generations * ((groups * s->table.shards[i].hi_per_group + 4095) / 4096 * 4096);
        }
        state += generations * unit;
        const bool lo_there = s->in.model.precision->lo_travels && s->table.shards[i].homes.weights == OX_TIER_NVME;
        const bool returns =
            s->in.placement.overlap && plan->rules[i].speculative && !plan->rules[i].saves_replaced;
        written += trained && store && (!between || away || lo_there || returns) ? unit : 0;
        read += trained && store && away ? unit : 0;
        home += away ? 0 : state_of(s, i, s->elems[i] / OX_GROUP_ELEMS);
    }
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        home_found += plan->bufs[i].kind == OX_BUF_STATE ? plan->bufs[i].bytes : 0;
    }
    struct ox_ledger ledger;
    ox_plan_ledger(plan, &ledger);
    CHECK(home_found == home);
    CHECK(plan->traffic[OX_LINK_NVME_WRITE][OX_TRAFFIC_STATE] == written);
    CHECK(plan->traffic[OX_LINK_NVME_READ][OX_TRAFFIC_STATE] == read);
    CHECK(ledger.bytes[OX_TIER_NVME][OX_BUF_STATE] == state);
    CHECK(ledger.bytes[OX_TIER_NVME][OX_BUF_WEIGHTS] == hi);
}

/* What is updated before the norm is known can be taken back only where the drives keep what it replaces, or memory. */
static uint64_t refuse_one_generation(struct plan_sample *s, const struct ox_plan *plan) {
    bool on_drives = false;
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        on_drives = on_drives || (plan->rules[i].speculative && !plan->rules[i].saves_replaced);
    }
    if (!on_drives) {
        return 0;
    }
    const uint32_t generations = s->in.budget.generations;
    s->in.budget.generations = 1;
    CHECK(ox_proof_check(plan, &s->in) != OX_OK);
    s->in.budget.generations = generations;
    return 1;
}

/* Bytes that the updates of the step before move. */
static uint64_t bytes_before(const struct ox_plan *plan) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        bytes += plan->tasks[i].carried ? plan->tasks[i].bytes : 0;
    }
    return bytes;
}

/* A gradient that an evaluation would lose: its home given away, or another one than training has. */
static void lose_gradients(const struct plan_sample *s, const struct ox_plans *plans, struct plan_faults *tally) {
    struct ox_plan *const eval = plans->eval_after_step;
    for (uint32_t i = 0; i < eval->buf_count; i++) {
        struct ox_buf *const buf = &eval->bufs[i];
        if (buf->kind != OX_BUF_GRAD || s->in.model.grads[buf->grad_idx].added_to != OX_NONE) {
            continue;
        }
        CHECK(buf->resident);
        buf->resident = false;
        tally->made++;
        tally->found += ox_proof_check(eval, &s->in) != OX_OK;
        buf->resident = true;
        if (buf->tier == OX_TIER_HOST) {
            buf->offset += OX_IO_ALIGN_BYTES;
            tally->made++;
            tally->found += ox_proof_check_pair(plans->train, eval) != OX_OK;
            buf->offset -= OX_IO_ALIGN_BYTES;
        }
    }
}

/* The evaluation that follows a step brings the update of that step with it, as the next step would. */
static uint64_t check_eval_after_step(const struct plan_sample *s, const struct ox_plans *plans, uint64_t seed,
                                      struct plan_faults *tally) {
    struct ox_plan *const eval = plans->eval_after_step;
    REQUIRE_OK(ox_proof_check_pair(plans->train, plans->eval));
    CHECK((eval != NULL) == s->in.placement.overlap);
    if (eval == NULL) {
        return 0;
    }
    uint64_t ignored = 0;
    REQUIRE_OK(ox_proof_check_pair(plans->train, eval));
    CHECK(bytes_before(eval) == bytes_before(plans->train));
    CHECK(eval->peak_bytes[OX_TIER_HOST] <= s->in.budget.host_bytes);
    CHECK(eval->peak_bytes[OX_TIER_DEVICE] <= s->in.budget.device_bytes);
    if (seed % 3 == 0 && seed <= SAMPLES) {
        plan_faults_deps(s, eval, seed, &ignored);
        plan_faults_effects(s, eval, seed, tally);
        plan_faults_drop_tasks(s, eval, seed, tally);
        change_steps(s, eval, tally);
        lose_gradients(s, plans, tally);
        change_outside(s, eval, tally);
    }
    return 1;
}

static uint64_t advised(const char *option, uint64_t given) {
    const char *const at = strstr(ox_error_text(), option);
    return at == NULL ? given : strtoull(at + strlen(option), NULL, 10) * OX_MIB;
}

/* A plan fits in the budget that a refusal names. */
static void take_advice(struct plan_sample *s) {
    struct ox_plan_budget *const budget = &s->in.budget;
    const char *const nearest = strstr(ox_error_text(), "nearest that fits: ");
    struct ox_plans plans = {0};
    CHECK(nearest != NULL);
    budget->device_bytes = advised("--device-mem ", budget->device_bytes);
    budget->host_bytes = advised("--host-mem ", budget->host_bytes);
    budget->nvme_bytes = advised("--nvme PATH:", budget->nvme_bytes);
    REQUIRE_OK(ox_placement_choose(&s->in, &s->table, &s->request, &s->setup, &plans));
    ox_plans_close(&plans);
}

static uint64_t wide; /* arenas with larger gaps */

/* An arena is at most 3 % larger than the buffers that have space at a time; returns how many were compared. What
 * loading needs behind the resident part may make it larger. */
static uint64_t check_gaps(const struct ox_plan *plan) {
    uint64_t count = 0;
    for (int tier = 0; tier < OX_TIER_NVME; tier++) {
        uint64_t end = 0;
        for (uint32_t i = 0; i < plan->buf_count; i++) {
            const struct ox_buf *const buf = &plan->bufs[i];
            const bool there = buf->tier == tier && (buf->resident || buf->first_task_idx != OX_NONE);
            end = there ? ox_max_u64(end, buf->offset + buf->bytes) : end;
        }
        CHECK(end >= plan->live_bytes[tier] && end <= plan->peak_bytes[tier]);
        wide += end > plan->live_bytes[tier] + plan->live_bytes[tier] / 33 + 4096;
        count += end > 0;
    }
    return count;
}

static void check_wide(uint64_t arenas) {
    printf("%llu of %llu arenas have gaps of more than 3 %%\n", (unsigned long long)wide, (unsigned long long)arenas);
    CHECK(arenas > 100 && 40 * wide < arenas);
}

/* A refusal tells the bytes of the largest plan that it hands out, and advises what fits. */
static void check_refusal(struct plan_sample *s, const struct ox_plans *plans) {
    const struct ox_plan *const all[] = {plans->train, plans->eval, plans->eval_after_step};
    for (int tier = s->in.budget.unified ? OX_TIER_HOST : OX_TIER_DEVICE; tier < OX_TIER_NVME; tier++) {
        char size[OX_SIZE_TEXT_BYTES], words[OX_SIZE_TEXT_BYTES + 16];
        uint64_t bytes = 0;
        for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
            bytes = all[i] != NULL ? ox_max_u64(bytes, all[i]->peak_bytes[tier]) : bytes;
        }
        snprintf(words, sizeof words, "%s %s of ", ox_tier_name((enum ox_tier)tier), ox_size_text(bytes, size));
        CHECK(strstr(ox_error_text(), words) != NULL);
    }
    take_advice(s);
}

static void test_random_plans(uint64_t count) {
    uint64_t fit = 0, refused = 0, objected = 0, early = 0, kept = 0, after_steps = 0, one_generation = 0, parts = 0;
    uint64_t device_plans = 0, arenas = 0; /* with an update on the device, among those changed */
    struct plan_faults tally = {0}, sizes = {0};
    for (uint64_t seed = 1; seed <= count; seed++) {
        static struct plan_sample s;
        plan_sample_draw(&s, seed);
        s.request.rough = false; /* gaps are those of good choices */
        struct ox_plans plans = {0};
        const enum ox_status status = ox_placement_choose(&s.in, &s.table, &s.request, &s.setup, &plans);
        if (status == OX_OK) {
            fit++;
            CHECK(plans.train->peak_bytes[OX_TIER_HOST] <= s.in.budget.host_bytes);
            CHECK(plans.train->peak_bytes[OX_TIER_DEVICE] <= s.in.budget.device_bytes);
            check_state_bytes(&s, plans.train);
            arenas += check_gaps(plans.train) + check_gaps(plans.eval);
            check_outside(&s, plans.train);
            check_outside(&s, plans.eval);
            parts += plans.train->loss_buf == OX_NONE || s.model.stages[0].input_bytes > 0;
            one_generation += s.in.budget.nvme_bytes > 0 && s.in.budget.generations == 1;
            early += refuse_one_generation(&s, plans.train);
            if (seed <= SAMPLES) {
                plan_faults_deps(&s, plans.train, seed, &objected);
            }
            if (seed % 3 == 0 && seed <= SAMPLES) {
                device_plans += plans.train->counts_buf != OX_NONE;
                plan_faults_effects(&s, plans.train, seed, &tally);
                plan_faults_drop_tasks(&s, plans.train, seed, &tally);
                change_steps(&s, plans.train, &tally);
                kept += change_kept(&s, plans.train, &tally);
                change_facts(&s, plans.train, &tally);
                change_outside(&s, plans.train, &tally);
                change_outside(&s, plans.eval, &tally);
                plan_faults_effects(&s, plans.eval, seed, &tally);
                plan_faults_buffers(&s, plans.train, &sizes);
                plan_faults_sums(&s, plans.train, &sizes);
                plan_faults_buffers(&s, plans.eval, &sizes);
                plan_faults_sums(&s, plans.eval, &sizes);
            }
            after_steps += check_eval_after_step(&s, &plans, seed, &tally);
        } else {
            refused++;
            CHECK(plans.train->peak_bytes[OX_TIER_HOST] > s.in.budget.host_bytes ||
                  plans.train->peak_bytes[OX_TIER_DEVICE] > s.in.budget.device_bytes ||
                  plans.train->peak_bytes[OX_TIER_NVME] > s.in.budget.nvme_bytes);
            if (status != OX_E_CONFIG || strstr(ox_error_text(), "does not fit") == NULL) {
                printf("seed %llu: %s\n", (unsigned long long)seed, ox_error_text());
                CHECK(status == OX_E_CONFIG && strstr(ox_error_text(), "does not fit") != NULL);
            } else {
                check_refusal(&s, &plans);
            }
        }
        ox_plans_close(&plans);
        ox_shard_table_close(&s.table);
    }
    printf("%llu plans proven, %llu refused, %llu planted faults found, %llu of %llu changes of meaning\n",
           (unsigned long long)fit, (unsigned long long)refused, (unsigned long long)objected,
           (unsigned long long)tally.found, (unsigned long long)tally.made);
    printf("%llu of %llu wrong sizes\n", (unsigned long long)sizes.found, (unsigned long long)sizes.made);
    CHECK(tally.found == tally.made && tally.made > 5000 && device_plans >= 3);
    CHECK(fit > 50 && refused > 5 && objected > 50 && early > 2 && kept > 25 && after_steps > 7);
    CHECK(one_generation > 5 && parts > 20 && sizes.found == sizes.made && sizes.made > 5000);
    check_wide(arenas);
    printf("%llu plans of parts of a model; faults in what others give and get:", (unsigned long long)parts);
    for (int fault = 0; fault < OUTSIDE_FAULTS; fault++) {
        printf(" %llu", (unsigned long long)outside_made[fault]);
        CHECK(outside_made[fault] > 100);
    }
    printf("\n");
}

/* A plan fits in the host memory that a refusal recommends. */
static void test_nearest_budget(void) {
    static struct plan_sample s;
    plan_sample_draw(&s, 7);
    s.in.budget = (struct ox_plan_budget){.unified = true, .host_bytes = 4096, .nvme_bytes = UINT64_C(1) << 40};
    s.request.tiles = s.request.device_units = 0;
    s.request.prefetch_depth = -1;
    struct ox_plans plans = {0};
    CHECK(ox_placement_choose(&s.in, &s.table, &s.request, &s.setup, &plans) == OX_E_CONFIG);
    const char *const advice = strstr(ox_error_text(), "--host-mem ");
    CHECK(advice != NULL && plans.train != NULL);
    if (advice != NULL) {
        s.in.budget.host_bytes = strtoull(advice + strlen("--host-mem "), NULL, 10) * OX_MIB;
    }
    ox_plans_close(&plans);
    REQUIRE_OK(ox_placement_choose(&s.in, &s.table, &s.request, &s.setup, &plans));
    ox_plans_close(&plans);
    ox_shard_table_close(&s.table);
}

/* Where drives have enough space together but no cut of the data fits each of them, the planner refuses, so that the
 * store does not have to. */
static void test_uneven_drives(void) {
    uint32_t refused = 0, fit = 0;
    for (uint64_t pages = 0; pages < 400; pages += 10) {
        static struct plan_sample s;
        plan_sample_draw(&s, 7);
        struct ox_plans plans = {0};
        s.in.budget = (struct ox_plan_budget){.unified = true, .host_bytes = OX_GIB, .nvme_bytes = OX_GIB};
        s.request = (struct ox_placement_request){.tiles = 1, .prefetch_depth = 1, .act_tier = OX_TIER_NVME,
                                            .weights_tier = OX_TIER_NVME, .state_tier = OX_TIER_NVME,
                                            .grad_tier = OX_TIER_NVME};
        const uint64_t fixed = ox_store_fixed_bytes(2 * s.table.chunk_count);
        s.in.budget.nvme_fixed_bytes = 3 * fixed;
        REQUIRE_OK(ox_placement_choose(&s.in, &s.table, &s.request, &s.setup, &plans));
        const uint64_t need = plans.train->peak_bytes[OX_TIER_NVME] - 3 * fixed;
        ox_plans_close(&plans);
        const uint64_t slack = pages * OX_IO_ALIGN_BYTES;
        const uint64_t drives[3] = {fixed + need / 3 + slack, fixed + need / 5 + slack,
                                    fixed + need - need / 3 - need / 5 + slack};
        s.in.budget.drive_bytes = drives;
        s.in.budget.drive_count = 3;
        s.in.budget.nvme_bytes = drives[0] + drives[1] + drives[2];
        const enum ox_status status = ox_placement_choose(&s.in, &s.table, &s.request, &s.setup, &plans);
        CHECK(status == OX_OK || (status == OX_E_CONFIG && strstr(ox_error_text(), "of 3)") != NULL));
        refused += status != OX_OK;
        fit += status == OX_OK;
        ox_plans_close(&plans);
        ox_shard_table_close(&s.table);
    }
    printf("uneven drives: %u refused, %u fit\n", refused, fit);
    CHECK(refused > 0 && fit > 0);
}

int main(int argc, char **argv) {
    test_uneven_drives();
    test_random_plans(argc > 1 ? strtoull(argv[1], NULL, 10) : SAMPLES / test_stride(4));
    test_nearest_budget();
    return test_end();
}
