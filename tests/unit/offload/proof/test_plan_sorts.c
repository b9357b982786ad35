/* A task of another sort: in plans for one rank and for several, tasks become every other kind, lane and move in turn,
 * with the buffers that they have. The proof refuses each, whatever the task asks for. */
#include "offload/proof/proof.h"
#include "tests/kit/plan/plan_sample.h"
#include "tests/kit/test.h"

enum { SAMPLES = 60, EACH = 6 /* tasks of a plan */ };

static uint64_t made, found;

static void change(const struct plan_sample *s, struct ox_plan *plan, uint32_t task_idx) {
    struct ox_task *const task = &plan->tasks[task_idx];
    const struct ox_task kept = *task;
    for (int sort = 0; sort < (OX_TASK_KIND_COUNT + OX_MOVE_COUNT) * OX_LANE_COUNT; sort++) {
        const int kind = sort / OX_LANE_COUNT;
        task->lane = (uint8_t)(sort % OX_LANE_COUNT);
        task->kind = (uint8_t)(kind < OX_TASK_KIND_COUNT ? kind : OX_TASK_MOVE);
        task->move = kind < OX_TASK_KIND_COUNT ? kept.move : (uint8_t)(kind - OX_TASK_KIND_COUNT);
        const bool same = task->lane == kept.lane && task->kind == kept.kind &&
                          (task->kind != OX_TASK_MOVE || task->move == kept.move);
        const bool accepted = ox_proof_check(plan, &s->in) == OX_OK;
        made += !same;
        found += !same && !accepted;
        if (accepted != same) {
            printf("%s: task %u (%s) as %s in lane %d\n", accepted ? "accepted" : "refused", task_idx,
                   ox_task_name(&kept), ox_task_name(task), task->lane);
        }
    }
    *task = kept;
}

static void change_some(const struct plan_sample *s, struct ox_plan *plan, uint64_t seed) {
    uint64_t counter = 7000;
    for (int i = 0; i < EACH; i++) {
        change(s, plan, (uint32_t)plan_sample_number(seed, &counter, plan->task_count));
    }
    REQUIRE_OK(ox_proof_check(plan, &s->in));
}

int main(void) {
    uint32_t plans_of_ranks = 0;
    for (uint64_t seed = 1; seed <= SAMPLES; seed++) {
        static struct plan_sample s;
        struct ox_plans plans = {0};
        plan_sample_draw(&s, seed);
        if (seed % 2 == 0) {
            plan_sample_divide(&s, seed);
        }
        if (ox_placement_choose(&s.in, &s.table, &s.request, &s.setup, &plans) == OX_OK) {
            change_some(&s, plans.train, seed);
            change_some(&s, plans.eval, seed);
            plans_of_ranks += s.in.ranks.count > 1;
        }
        ox_plans_close(&plans);
        ox_shard_table_close(&s.table);
    }
    printf("%llu of %llu tasks of another sort refused, in plans of %u samples of ranks\n", (unsigned long long)found,
           (unsigned long long)made, plans_of_ranks);
    CHECK(found == made && made > 10000 && plans_of_ranks > 10);
    return test_end();
}
