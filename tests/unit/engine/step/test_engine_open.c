/* An engine runs whole models alone: it refuses the plan of a part of one before it reserves anything. */
#include "tests/kit/plan/step_case.h"
#include "tests/kit/test.h"

#include <string.h>

static const struct step_case small = {.profile = "cpu-2-cores", .hidden = 128, .layers = 2, .width = 256, .vocab = 256,
                                       .batch = 1, .seq = 16, .micro_batches = 2, .fp32 = true, .host_gib = 1};

/* Opens an engine with the unit of one stage turned into a block, which is no end of a whole model. */
static enum ox_status open_with_block_at(const struct step_run *run, uint32_t stage_idx, struct ox_engine **out) {
    struct ox_engine_plan *plan = NULL;
    REQUIRE_OK(ox_engine_plan_open(&run->config, &plan));
    plan->units[plan->stages[stage_idx]].kind = OX_PLAN_BLOCK;
    return ox_engine_open(&run->config, &plan, out);
}

int main(void) {
    struct step_run run;
    struct ox_engine *engine = NULL;
    step_case_open(&small, &run);
    const uint32_t last = run.model->unit_count - 1, ends[] = {0, last};
    for (int i = 0; i < 2; i++) {
        CHECK(open_with_block_at(&run, ends[i], &engine) == OX_E_CONFIG && engine == NULL);
        CHECK(strstr(ox_error_text(), "give the whole model") != NULL);
    }
    REQUIRE_OK(open_with_block_at(&run, 1, &engine)); /* it was one before */
    ox_engine_close(&engine);
    ox_model_close(&run.model);
    return test_end();
}
