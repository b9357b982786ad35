/* An engine runs whole models alone: it refuses the plan of a part of one before it reserves anything. Plans for
 * several ranks fit all of them, or are refused as what does not fit. Ranks on GPUs go on without an NCCL that was not
 * demanded. The optimizer of each leaves cores to its lanes, in the simulator as in the run. */
#include "base/bytes.h"
#include "base/pool.h"
#include "offload/proof/proof.h"
#include "offload/sim/sim.h"
#include "tests/kit/device/simt_kit.h"
#include "tests/kit/log.h"
#include "tests/kit/plan/step_case.h"
#include "tests/kit/test.h"

#include <string.h>
#include <sys/mman.h>

static const struct step_case small = {.profile = "cpu-2-cores", .hidden = 128, .layers = 2, .width = 256, .vocab = 256,
                                       .batch = 1, .seq = 16, .micro_batches = 2, .fp32 = true, .host_gib = 1};

/* Opens an engine with the unit of one stage turned into a block, which is no end of a whole model. */
static enum ox_status open_with_block_at(const struct step_run *run, uint32_t stage_idx, struct ox_engine **out) {
    struct ox_engine_plan *plan = NULL;
    REQUIRE_OK(ox_engine_plan_open(&run->config, &plan));
    plan->stages[stage_idx].kind = OX_PLAN_BLOCK;
    return ox_engine_open(&run->config, &plan, out);
}

/* The planner chooses for the first of two ranks, which has two of three micro-batches. Whatever it takes must fit
 * both; every other budget is refused. */
static void test_ranks_fit(struct ox_engine_config config) {
    uint32_t fit = 0, refused = 0, chosen_again = 0;
    config.ranks = config.sum_groups = 2;
    config.micro_batches = 3;
    config.batch = 32;
    for (uint64_t bytes = 4 * OX_MIB; bytes < 60 * OX_MIB; bytes += OX_MIB / 8) {
        struct ox_engine_plan *plan = NULL;
        config.budget.host_bytes = bytes;
        if (ox_engine_plan_open(&config, &plan) == OX_OK) {
            const uint64_t first = ox_engine_plan_at(plan, 0)->train->peak_bytes[OX_TIER_HOST];
            const uint64_t second = ox_engine_plan_at(plan, 1)->train->peak_bytes[OX_TIER_HOST];
            CHECK(first <= bytes / 2 && second <= bytes / 2);
            chosen_again += second > first && second + OX_MIB / 8 > bytes / 2;
            fit++;
        } else if (strstr(ox_error_text(), "does not fit") != NULL) {
            refused++;
        } else {
            printf("%llu bytes: %s\n", (unsigned long long)bytes, ox_error_text());
            CHECK(strstr(ox_error_text(), "does not fit") != NULL);
        }
        ox_engine_plan_close(&plan);
    }
    printf("two ranks: %u budgets fit, %u are refused, %u are used up by the second\n", fit, refused, chosen_again);
    CHECK(fit > 10 && refused > 10);
}

/* Ranks whose plans are the same have one, which is proven for each of them: what 64 ranks take is what their few
 * different plans take. */
static void test_shared_plans(struct ox_engine_config config) {
    enum { RANKS = 64 };
    struct ox_engine_plan *plan = NULL;
    config.ranks = config.sum_groups = config.micro_batches = RANKS;
    config.chunk_elems = OX_GROUP_ELEMS;
    config.budget.host_bytes = 64 * OX_GIB;
    REQUIRE_OK(ox_engine_plan_open(&config, &plan));
    uint32_t different = 0;
    for (uint32_t i = 0; i < RANKS; i++) {
        const struct ox_engine_plan *const of_rank = ox_engine_plan_at(plan, i);
        bool shared = false;
        for (uint32_t k = 0; k < i; k++) {
            const bool same = ox_plan_same(of_rank->train, ox_engine_plan_at(plan, k)->train);
            CHECK(same == (of_rank->train == ox_engine_plan_at(plan, k)->train));
            shared = shared || same;
        }
        different += !shared;
        REQUIRE_OK(ox_proof_check(of_rank->train, &of_rank->input));
        REQUIRE_OK(ox_proof_check(of_rank->eval, &of_rank->input));
    }
    printf("%d ranks have %u different plans\n", RANKS, different);
    CHECK(different >= 2 && different <= 8); /* slices end where units do, and some ranks have none of a unit */
    ox_engine_plan_close(&plan);
}

static const struct ox_nccl_ops *no_nccl(void) {
    return NULL;
}

static enum ox_status open_on_gpus(struct ox_engine_config *config) {
    struct ox_engine_plan *plan = NULL;
    struct ox_engine *engine = NULL;
    REQUIRE_OK(ox_engine_plan_open(config, &plan));
    const enum ox_status status = ox_engine_open(config, &plan, &engine);
    ox_engine_close(&engine);
    return status;
}

/* Two ranks on emulated GPUs: on a machine with NCCL and without, and with a plugin that was built without. */
static void test_nccl(struct ox_engine_config config) {
    enum { PAGE_BYTES = 4096 };
    const struct simt *const simt = simt_open();
    char *const table = (char *)simt->plugin - (uintptr_t)simt->plugin % PAGE_BYTES;
    REQUIRE_OK(mprotect(table, 2 * PAGE_BYTES, PROT_READ | PROT_WRITE) == 0 ? OX_OK : OX_E_IO);
    simt->set_machine(2, 13000);
    config.ranks = config.sum_groups = config.cuda_count = 2;
    config.device = OX_DEVICE_CUDA;
    config.cuda.plugin_path = simt->kit.plugin;
    config.budget.unified = false;
    config.budget.device_bytes = OX_GIB / 4;
    config.comm = OX_RANK_COMM_NCCL;
    CHECK(open_on_gpus(&config) == OX_OK);
    simt->set_nccl(false);
    CHECK(open_on_gpus(&config) == OX_E_COMM && strstr(ox_error_text(), "NCCL: ") != NULL);
    simt->set_nccl(true);
    simt->plugin->nccl = no_nccl;
    CHECK(open_on_gpus(&config) == OX_E_COMM && strstr(ox_error_text(), "make nccl=1") != NULL);
    log_count_warnings("ranks go on without NCCL");
    config.comm = OX_RANK_COMM_AUTO;
    CHECK(open_on_gpus(&config) == OX_OK && log_warnings == 1);
}

/* Threads of the optimizer's ranks on a machine of some cores, as the simulator and an engine on emulated GPUs take
 * them. */
static void test_threads(struct ox_engine_config config) {
    static const struct {
        uint32_t threads, lane_cores, ranks, each;
    } cases[] = {
        {16, 0, 1, 16}, {16, 2, 1, 14}, {16, 2, 2, 6}, {16, 2, 4, 2}, {17, 2, 3, 3},
        {16, 2, 5, 2}, {16, 2, 8, 1}, {16, 2, 16, 1}, {3, 2, 4, 1}, {2, 2, 1, 1}, {16, 0, 4, 4}, {1, 0, 4, 1},
    };
    const struct simt *const simt = simt_open();
    simt->set_machine(2, 13000);
    config.device = OX_DEVICE_CUDA;
    config.cuda.plugin_path = simt->kit.plugin;
    config.budget.unified = false;
    config.budget.device_bytes = OX_GIB / 4;
    config.comm = OX_RANK_COMM_LOCAL;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        config.optimizer_threads = config.machine_optimizer_threads = cases[i].threads;
        config.lane_cores = cases[i].lane_cores;
        config.ranks = config.sum_groups = config.cuda_count = cases[i].ranks;
        CHECK(ox_engine_optimizer_share(&config, cases[i].threads, cases[i].ranks) == cases[i].each);
        if (cases[i].ranks > 2) {
            continue;
        }
        struct ox_engine_plan *plan = NULL;
        struct ox_engine *engine = NULL;
        struct ox_sim_setup setup;
        REQUIRE_OK(ox_engine_plan_open(&config, &plan));
        ox_engine_sim_setup(&config, &plan->input, &setup);
        CHECK(setup.optimizer_threads == cases[i].each);
        REQUIRE_OK(ox_engine_open(&config, &plan, &engine));
        CHECK(ox_pool_size(ox_engine_pool(engine)) == cases[i].each);
        ox_engine_close(&engine);
    }
    config.machine_optimizer_threads = 0; /* one per core: the simulator counts them */
    CHECK(ox_engine_optimizer_share(&config, 0, 2) == 0);
}

/* The planner knows whether several heads of queries share one of keys, whose attention has a rate of its own. */
static void test_grouped(void) {
    struct step_case two_heads = small;
    two_heads.hidden = 256;
    for (uint32_t kv_heads = 1; kv_heads <= 2; kv_heads++) {
        struct step_run run;
        struct ox_engine_plan *plan = NULL;
        two_heads.kv_heads = kv_heads;
        step_case_open(&two_heads, &run);
        REQUIRE_OK(ox_engine_plan_open(&run.config, &plan));
        CHECK(plan->input.model.grouped == (kv_heads == 1));
        ox_engine_plan_close(&plan);
        ox_model_close(&run.model);
    }
}

int main(void) {
    struct step_run run;
    struct ox_engine *engine = NULL;
    test_grouped();
    step_case_open(&small, &run);
    test_ranks_fit(run.config);
    test_shared_plans(run.config);
    test_threads(run.config);
    test_nccl(run.config);
    const uint32_t last = run.model->unit_count - 1, ends[] = {0, last};
    for (int i = 0; i < 2; i++) {
        CHECK(open_with_block_at(&run, ends[i], &engine) == OX_E_CONFIG && engine == NULL);
        CHECK(strstr(ox_error_text(), "give the whole model") != NULL);
    }
    REQUIRE_OK(open_with_block_at(&run, 1, &engine)); /* it was one before */
    REQUIRE_OK(ox_engine_persist(engine, NULL, 0));   /* all of it lives in memory: there is nothing to do */
    ox_engine_close(&engine);
    ox_model_close(&run.model);
    return test_end();
}
