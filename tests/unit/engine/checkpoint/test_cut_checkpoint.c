/* Checkpoints of models that are cut into groups of features hold whole tensors: the files of a run do not say how it
 * was cut, and a run with another cut goes on from them. */
#include "engine/checkpoint/checkpoint.h"
#include "tests/kit/files.h"
#include "tests/kit/log.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>

static void open_cut(const struct golden *golden, uint32_t groups, struct harness *out) {
    struct harness_run run = golden_run(golden);
    run.tensor_groups = groups;
    harness_open(&run, &harness_in_memory, out);
}

/* Writes checkpoint 1 of a folder of this name, checks that the drive returns it, and returns its path. */
static const char *save(struct harness *harness, const char *name, enum ox_dtype dtype) {
    const struct ox_run_state state = {.version = OX_RUN_STATE_VERSION, .step = 1};
    const char *const output = test_path(name);
    const struct ox_checkpoint_save how = {.output_dir = output, .source_model = "", .weights_dtype = dtype,
                                           .shard_bytes_max = dtype == OX_DTYPE_F32 ? UINT64_MAX : 12000};
    REQUIRE_OK(ox_checkpoint_write(harness->engine, &state, &how));
    const char *const path = test_pathf("%s/checkpoint-1", output);
    REQUIRE_OK(ox_checkpoint_verify(path));
    return path;
}

/* Of a run cut into `from`, after a step, so that moments and weights are numbers of their own; loaded into other cuts,
 * and saved by them. */
static void check_case(const char *name, uint32_t from, const uint32_t *others, enum ox_dtype dtype) {
    struct golden golden;
    struct harness harness;
    struct outcome outcome;
    char run[64];
    golden_open(name, &golden);
    open_cut(&golden, from, &harness);
    golden_steps(&harness, &golden, 0, 1, &outcome);
    snprintf(run, sizeof run, "%s-%u-%d", name, from, (int)dtype);
    const char *const saved = save(&harness, run, dtype);
    outcome_close(&outcome);
    harness_close(&harness);
    for (size_t i = 0; others[i] > 0; i++) {
        printf("%s in %u groups, loaded into %u\n", name, from, others[i]);
        open_cut(&golden, others[i], &harness);
        REQUIRE_OK(ox_checkpoint_load(harness.engine, saved));
        snprintf(run, sizeof run, "%s-%u-%d-again-%u", name, from, (int)dtype, others[i]);
        CHECK(files_same_folders(saved, save(&harness, run, dtype)));
        harness_close(&harness);
    }
    golden_close(&golden);
}

int main(void) {
    log_count_warnings(NULL);
    check_case("eight_qwen3", 4, (const uint32_t[]){1, 2, 4, 8, 0}, OX_DTYPE_F32);
    check_case("eight_qwen3", 1, (const uint32_t[]){8, 0}, OX_DTYPE_BF16);
    check_case("eight_gpt2", 8, (const uint32_t[]){1, 2, 0}, OX_DTYPE_BF16);
    check_case("phi3_long", 2, (const uint32_t[]){1, 0}, OX_DTYPE_F32);
    check_case("gpt2_small", 1, (const uint32_t[]){3, 0}, OX_DTYPE_F32);
    return test_end();
}
