/* Plans of random models and budgets are proven by the checker or refused with a reason; and the checker finds
 * every planted fault, so that its proof means something. */
#include "offload/plan.h"
#include "base/bytes.h"
#include "base/prng.h"
#include "tests/test.h"

#include <string.h>

enum { UNITS_MAX = 12 };

struct sample {
    uint64_t elems[UNITS_MAX];
    struct ox_plan_input in;
    struct ox_shard_table table;
    struct ox_placement_wish wish;
};

static uint64_t draw(uint64_t seed, uint64_t *counter, uint64_t below) {
    return (uint64_t)(ox_uniform(seed, 1, (*counter)++) * (double)below);
}

static void draw_model(struct sample *s, uint64_t seed, uint64_t *counter) {
    struct ox_plan_model *const model = &s->in.model;
    model->unit_elems = s->elems;
    model->unit_count = 2 + (uint32_t)draw(seed, counter, UNITS_MAX - 1);
    for (uint32_t i = 0; i < model->unit_count; i++) {
        s->elems[i] = OX_SHARD_ALIGN_ELEMS * (1 + draw(seed, counter, 40));
    }
    model->tied_elems = draw(seed, counter, 2) ? s->elems[0] : 0;
    model->micro_batches = 1 + (uint32_t)draw(seed, counter, 7);
    model->act_bytes = 4 * (1 + draw(seed, counter, 30000));
    model->batch_bytes = 12 * (1 + draw(seed, counter, 500));
    model->const_bytes = draw(seed, counter, 9000);
    model->work_forward_bytes = 1 + draw(seed, counter, 400000);
    model->work_backward_bytes = 1 + draw(seed, counter, 800000);
    model->work_head_bytes = 1 + draw(seed, counter, 300000);
    model->work_head_eval_bytes = 1 + draw(seed, counter, 200000);
    model->fp32 = draw(seed, counter, 2);
    model->grad_bf16 = draw(seed, counter, 2);
}

static void draw_sample(struct sample *s, uint64_t seed) {
    uint64_t counter = 0;
    memset(s, 0, sizeof *s);
    draw_model(s, seed, &counter);
    uint64_t total = 0;
    for (uint32_t i = 0; i < s->in.model.unit_count; i++) {
        total += s->elems[i] * 16;
    }
    struct ox_plan_budget *const budget = &s->in.budget;
    budget->unified = draw(seed, &counter, 2);
    budget->host_bytes = 500000 + draw(seed, &counter, 2 * total);
    budget->device_bytes = budget->unified ? 0 : 500000 + draw(seed, &counter, 2 * total);
    budget->nvme_bytes = draw(seed, &counter, 4) ? 100 * total : 0;
    s->wish = (struct ox_placement_wish){.prefetch_depth = -1, .act_tier = OX_TIER_COUNT,
                                         .weights_tier = OX_TIER_COUNT, .state_tier = OX_TIER_COUNT,
                                         .grad_tier = OX_TIER_COUNT};
    if (draw(seed, &counter, 3) == 0) {
        s->wish.tiles = 1 + (uint32_t)draw(seed, &counter, s->in.model.micro_batches);
        s->wish.prefetch_depth = (int32_t)draw(seed, &counter, 5);
    }
    const uint64_t chunk = OX_SHARD_ALIGN_ELEMS * (1 + draw(seed, &counter, 16));
    REQUIRE_OK(ox_shard_table_open(s->elems, s->in.model.unit_count, chunk, &s->table));
}

/* Takes one dependency away, or moves a buffer onto another; the checker must object whenever the result is
 * wrong. Removing a dependency that another path implies is no fault, so objections are counted. */
static void plant_faults(const struct sample *s, struct ox_plan *plan, uint64_t seed, uint64_t *objected) {
    uint64_t counter = 1000;
    for (int i = 0; i < 20; i++) {
        struct ox_task *const task = &plan->tasks[draw(seed, &counter, plan->task_count)];
        uint32_t *const dep = &task->deps[draw(seed, &counter, OX_LANE_COUNT)];
        const uint32_t kept = *dep;
        *dep = 0;
        *objected += kept != 0 && ox_plan_check(plan, &s->in) != OX_OK;
        *dep = kept;
    }
    const uint32_t self = (uint32_t)draw(seed, &counter, plan->task_count);
    uint32_t *const dep = &plan->tasks[self].deps[(plan->tasks[self].lane + 1) % OX_LANE_COUNT];
    const uint32_t kept = *dep;
    *dep = self + 2; /* on a later task */
    CHECK(ox_plan_check(plan, &s->in) != OX_OK);
    *dep = kept;
    plan->peak_bytes[OX_TIER_HOST] += s->in.budget.host_bytes;
    CHECK(ox_plan_check(plan, &s->in) != OX_OK);
    plan->peak_bytes[OX_TIER_HOST] -= s->in.budget.host_bytes;
    struct ox_buf *const small = &plan->bufs[plan->norm_buf];
    const uint64_t offset = small->offset;
    small->offset = plan->bufs[plan->batch_host_buf].offset;
    CHECK(ox_plan_check(plan, &s->in) != OX_OK);
    small->offset = offset;
    REQUIRE_OK(ox_plan_check(plan, &s->in));
}

static void test_random_plans(void) {
    uint64_t fit = 0, refused = 0, objected = 0;
    for (uint64_t seed = 1; seed <= 250; seed++) {
        struct sample s;
        draw_sample(&s, seed);
        struct ox_plan *train = NULL, *eval = NULL;
        const enum ox_status status = ox_placement_choose(&s.in, &s.table, &s.wish, &train, &eval);
        if (status == OX_OK) {
            fit++;
            CHECK(train->peak_bytes[OX_TIER_HOST] <= s.in.budget.host_bytes);
            CHECK(train->peak_bytes[OX_TIER_DEVICE] <= s.in.budget.device_bytes);
            plant_faults(&s, train, seed, &objected);
        } else {
            refused++;
            if (status != OX_E_CONFIG || strstr(ox_error_text(), "does not fit") == NULL) {
                printf("seed %llu: %s\n", (unsigned long long)seed, ox_error_text());
                CHECK(status == OX_E_CONFIG && strstr(ox_error_text(), "does not fit") != NULL);
            }
        }
        ox_plan_close(&train);
        ox_plan_close(&eval);
        ox_shard_table_close(&s.table);
    }
    printf("%llu plans proven, %llu refused, %llu planted faults found\n", (unsigned long long)fit,
           (unsigned long long)refused, (unsigned long long)objected);
    CHECK(fit > 100 && refused > 10 && objected > 200);
}

/* What the refusal recommends does fit. */
static void test_nearest_budget(void) {
    struct sample s;
    draw_sample(&s, 7);
    s.in.budget = (struct ox_plan_budget){.unified = true, .host_bytes = 4096, .nvme_bytes = UINT64_C(1) << 40};
    s.wish.tiles = 0;
    s.wish.prefetch_depth = -1;
    struct ox_plan *train = NULL, *eval = NULL;
    CHECK(ox_placement_choose(&s.in, &s.table, &s.wish, &train, &eval) == OX_E_CONFIG);
    const char *const advice = strstr(ox_error_text(), "--host-mem ");
    CHECK(advice != NULL && train != NULL);
    if (advice != NULL) {
        s.in.budget.host_bytes = strtoull(advice + strlen("--host-mem "), NULL, 10) * OX_MIB;
    }
    ox_plan_close(&train);
    REQUIRE_OK(ox_placement_choose(&s.in, &s.table, &s.wish, &train, &eval));
    ox_plan_close(&train);
    ox_plan_close(&eval);
    ox_shard_table_close(&s.table);
}

int main(void) {
    test_random_plans();
    test_nearest_budget();
    return test_end();
}
