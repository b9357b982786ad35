/* A pipeline over GPUs of two processes: what its ranks pass to each other goes by NCCL, from device or host memory
 * to either. The processes are threads and the GPUs emulated; the bits are those of one rank. */
#include "tests/kit/comm/process_threads.h"
#include "tests/kit/device/simt_kit.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <string.h>

enum { PROCESSES = 2, DRIVER = 13000 };

static struct {
    struct golden golden;
    struct harness_run run;
    struct harness_place place;
    struct outcome outcomes[PROCESSES];
} world;

static void train(struct ox_team *team, void *arg) {
    struct harness_run run = world.run;
    (void)arg;
    run.team = team;
    golden_train(&world.golden, &run, &world.place, FEW_STEPS, &world.outcomes[process_idx()]);
}

static void check(const struct simt *simt, const char *what, enum ox_pipe_schedule schedule, bool saves_on_host,
                  const struct outcome *expected) {
    world.run.schedule = schedule;
    world.place = harness_in_memory;
    world.place.request.act_tier = saves_on_host ? OX_TIER_HOST : OX_TIER_DEVICE;
    const uint64_t before = simt->nccl_calls();
    processes_run(PROCESSES, train, NULL);
    CHECK(simt->nccl_calls() > before);
    for (uint32_t i = 0; i < PROCESSES; i++) {
        float *const logits = world.outcomes[i].logits; /* those of the head's process are another's */
        if (logits != NULL) {
            memcpy(logits, expected->logits, expected->logits_count * sizeof *logits);
        }
        outcome_check_same(what, expected, &world.outcomes[i]);
        outcome_close(&world.outcomes[i]);
    }
}

int main(void) {
    const struct simt *const simt = simt_open();
    struct outcome expected;
    (void)test_folder(); /* before there are threads */
    golden_open("gpt2_b1", &world.golden);
    world.golden.micro_batches = 4;
    world.run = golden_run(&world.golden);
    world.run.cuda_plugin = simt->kit.plugin;
    world.run.sum_groups = 4;
    golden_train(&world.golden, &world.run, &harness_in_memory, FEW_STEPS, &expected);
    simt->set_machine(PROCESSES, DRIVER);
    simt->set_nccl(true);
    world.run.cuda_count = world.run.ranks = world.run.pipe = PROCESSES;
    check(simt, "1f1b over 2 processes", OX_PIPE_1F1B, false, &expected); /* the table is on loan */
    check(simt, "vertical over 2 processes, checkpoints on the host", OX_PIPE_VERTICAL, true, &expected);
    outcome_close(&expected);
    golden_close(&world.golden);
    return test_end();
}
