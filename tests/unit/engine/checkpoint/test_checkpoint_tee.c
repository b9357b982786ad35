/* Checkpoints that the optimizer of the next step fills: the same bytes as those that are read from the engine, from
 * steps and from chunks in any order, in every format; with a fault at every call on files, and with a drive that gives
 * back other bytes (tests/kit/calls.h); given up, and filled where no step came. */
#include "base/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/step/engine_internal.h"
#include "tests/kit/calls.h"
#include "tests/kit/files.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/log.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

/* ---- a checkpoint, both ways --------------------------------------------------------------------------- */

static struct golden golden;
static struct harness harness;
static struct outcome outcome;
static struct harness_place in_memory; /* in many chunks */
/* An engine that has taken one step. */
static void open_engine(struct ox_state_format format, const struct harness_place *place) {
    struct harness_run run = golden_run(&golden);
    run.state = format;
    run.dtype = format.moments != OX_MOMENTS_Q8 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16;
    outcome = (struct outcome){0};
    harness_open(&run, place, &harness);
    golden_steps(&harness, &golden, 0, 1, &outcome);
}

static void close_engine(void) {
    outcome_close(&outcome);
    harness_close(&harness);
}

static struct ox_run_state make_state(uint64_t step) {
    const struct ox_state_format format = ox_engine_config_of(harness.engine)->state;
    return (struct ox_run_state){.version = OX_RUN_STATE_VERSION, .optimizer = (uint16_t)format.kind,
                                 .moments = (uint16_t)format.moments, .run_id = {5, 6}, .branch = 7, .step = step,
                                 .optimizer_steps = step, .cursor = 11, .seed = 3, .tokens_seen = 99,
                                 .best_eval_loss = 2.5};
}

static struct ox_checkpoint_save make_save(const char *output, enum ox_dtype dtype) {
    return (struct ox_checkpoint_save){.output_dir = output, .source_model = "", .weights_dtype = dtype,
                                       .original_config = ox_hf_config(harness.folder),
                                       .shard_bytes_max = dtype == OX_DTYPE_F32 ? UINT64_MAX : 12000,
                                       .total_limit = 1};
}

static void write_directly(const char *output, uint64_t step, enum ox_dtype dtype) {
    const struct ox_run_state state = make_state(step);
    const struct ox_checkpoint_save save = make_save(output, dtype);
    REQUIRE_OK(ox_checkpoint_write(harness.engine, &state, &save));
}

static struct ox_checkpoint_tee *open_tee(const char *output, uint64_t step, enum ox_dtype dtype) {
    const struct ox_run_state state = make_state(step);
    const struct ox_checkpoint_save save = make_save(output, dtype);
    struct ox_checkpoint_tee *tee = NULL;
    const enum ox_status status = ox_checkpoint_tee_open(harness.engine, &state, &save, &tee);
    const bool hooked = ox_engine_rank(harness.engine, 0)->tee.to.chunk != NULL;
    CHECK((status == OX_OK) == (tee != NULL) && (tee != NULL) == hooked);
    return tee;
}

static enum ox_status close_tee(struct ox_checkpoint_tee *tee) {
    double seconds = -1;
    const enum ox_status status = ox_checkpoint_tee_close(&tee, &seconds);
    CHECK(tee == NULL && seconds >= 0 && ox_engine_rank(harness.engine, 0)->tee.to.chunk == NULL);
    return status;
}

/* Shows `part` of all chunks out of order, some of them twice. */
static void show(double part) {
    uint32_t units[512], chunks[512], count = 0;
    for (uint32_t unit_idx = 0; unit_idx < harness.model->unit_count; unit_idx++) {
        for (uint32_t i = 0; i < ox_engine_chunk_count(harness.engine, unit_idx) && count < 512; i++) {
            units[count] = unit_idx;
            chunks[count++] = i;
        }
    }
    CHECK(count > 3 && count < 512);
    const struct ox_tee tee = ox_engine_rank(harness.engine, 0)->tee.to;
    uint32_t stride = count / 3 + 1;
    while (count % stride == 0 || (count % 2 == 0 && stride % 2 == 0) || (count % 3 == 0 && stride % 3 == 0) ||
           (count % 5 == 0 && stride % 5 == 0) || (count % 7 == 0 && stride % 7 == 0)) {
        stride++;
    }
    for (uint32_t i = 0; i < (uint32_t)(part * count); i++) {
        const uint32_t at = i * stride % count;
        for (int again = 0; again < (i % 4 == 0 ? 2 : 1); again++) {
            struct ox_chunk_view view;
            REQUIRE_OK(ox_engine_chunk_get(harness.engine, units[at], chunks[at], &view));
            tee.chunk(tee.context, units[at], chunks[at], &view);
        }
    }
}

static bool is_same_folder(const char *a, const char *b) {
    return files_count(a, "", "") > 3 && files_same_folders(a, b);
}

/* ---- the tests ----------------------------------------------------------------------------------------- */

/* From chunks in any order, and from the next step, where the engine streams. */
static void test_same(const char *name, struct ox_state_format format, enum ox_dtype dtype,
                      const struct harness_place *place) {
    char text[64];
    open_engine(format, place);
    snprintf(text, sizeof text, "direct-%s-%d%d%d", name, format.kind, format.moments, dtype);
    const char *const direct = test_path(text);
    snprintf(text, sizeof text, "teed-%s-%d%d%d", name, format.kind, format.moments, dtype);
    const char *const teed = test_path(text);
    char path[OX_PATH_BYTES];
    for (uint64_t step = 1; step <= (place->store ? 2 : 1); step++) {
        write_directly(direct, step, dtype);
        struct ox_checkpoint_tee *const tee = open_tee(teed, step, dtype);
        CHECK(!ox_checkpoint_tee_ready(tee));
        if (step == 1) {
            show(1);
        } else {
            golden_steps(&harness, &golden, 1, 2, &outcome);
            REQUIRE_OK(ox_engine_finish_update(harness.engine));
        }
        REQUIRE_OK(close_tee(tee));
        const char *const folder = step == 1 ? "checkpoint-1" : "checkpoint-2";
        CHECK(is_same_folder(test_pathf("%s/%s", direct, folder), test_pathf("%s/%s", teed, folder)));
        REQUIRE_OK(ox_checkpoint_verify(test_pathf("%s/%s", teed, folder)));
        REQUIRE_OK(ox_checkpoint_find_latest(teed, path));
        CHECK(strcmp(path, test_pathf("%s/%s", teed, folder)) == 0);
    }
    CHECK(!place->store || !ox_path_exists(test_pathf("%s/checkpoint-1", teed))); /* beyond the limit */
    close_engine();
}

static bool is_clean(const char *output, const char *folder) {
    char tmp[64];
    snprintf(tmp, sizeof tmp, "%s.tmp", folder);
    return !ox_path_exists(test_pathf("%s/%s", output, folder)) && !ox_path_exists(test_pathf("%s/%s", output, tmp));
}

/* One call fails: the checkpoint is whole, or there is none of it and the one before is. False when none was left. */
static bool check_fault(enum call call, uint32_t idx, const char *expected) {
    const char *const output = test_path("faulty");
    REQUIRE_OK(ox_folder_remove(output));
    write_directly(output, 1, OX_DTYPE_F32);
    calls_set(&(struct call_rule){.call = call, .fault = CALL_FAILS, .error = EIO, .idx = idx});
    calls_arm(true);
    struct ox_checkpoint_tee *const tee = open_tee(output, 2, OX_DTYPE_F32);
    bool good = tee != NULL;
    if (good) {
        show(1);
        good = close_tee(tee) == OX_OK;
    }
    calls_arm(false);
    if (good) {
        CHECK(is_same_folder(expected, test_pathf("%s/checkpoint-2", output)));
    } else {
        CHECK(strlen(ox_error_text()) > 20 && calls_seen->hits == 1 && is_clean(output, "checkpoint-2"));
        REQUIRE_OK(ox_checkpoint_verify(test_pathf("%s/checkpoint-1", output)));
    }
    return calls_seen->hits > 0;
}

static void test_faults(void) {
    static const enum call points[] = {CALL_OPEN, CALL_READ, CALL_WRITE, CALL_SYNC, CALL_RENAME, CALL_RENAME_NEW,
                                       CALL_ALLOCATE, CALL_MAKE};
    open_engine((struct ox_state_format){0}, &in_memory);
    const char *const output = test_path("expected");
    write_directly(output, 2, OX_DTYPE_F32);
    char expected[OX_PATH_BYTES];
    REQUIRE_OK(ox_path_join(output, "checkpoint-2", expected));
    for (unsigned i = 0; i < sizeof points / sizeof *points; i++) {
        uint32_t idx = 0, step = 1;
        for (; check_fault(points[i], idx, expected); idx += step) {
            step = idx < 8 ? 1 : 37; /* most writes are of chunks */
        }
        printf("%s: up to %u calls\n", call_names[points[i]], idx);
        CHECK(idx > 0);
    }
    close_engine();
}

/* A bit that the drive has lost is found in every file, and said with its name. */
static void test_lies(void) {
    const char *const output = test_path("lies");
    open_engine((struct ox_state_format){0}, &in_memory);
    for (int i = 0; i < 3; i++) {
        struct ox_checkpoint_tee *const tee = open_tee(output, 1, OX_DTYPE_F32);
        calls_seen->direct_reads = 0;
        calls_options.refuses_direct = false;
        calls_options.flipped_byte = i == 0   ? 20
                                     : i == 1 ? 4096
                                              : 70000; /* all files, or where tensors begin, or within them */
        show(1);
        const enum ox_status status = close_tee(tee);
        calls_options.flipped_byte = 0;
        calls_options.refuses_direct = true;
        if (calls_seen->direct_reads == 0) {
            printf("this file system cannot be read past memory: not tested\n");
            CHECK(status == OX_OK);
            break;
        }
        CHECK(status == OX_E_CORRUPT && strstr(ox_error_text(), "drive") != NULL && is_clean(output, "checkpoint-1"));
        CHECK(i == 0 || strstr(ox_error_text(), "safetensors") != NULL);
    }
    close_engine();
}

static void test_given_up(void) {
    const char *const output = test_path("given-up");
    open_engine((struct ox_state_format){0}, &in_memory);
    struct ox_checkpoint_tee *tee = open_tee(output, 1, OX_DTYPE_BF16);
    CHECK(ox_path_is_folder(test_pathf("%s/checkpoint-1.tmp", output)));
    show(0.7);
    CHECK(!ox_checkpoint_tee_ready(tee) && close_tee(tee) == OX_E_ABORTED && is_clean(output, "checkpoint-1"));
    /* No step came in between: what is missing is still there. */
    write_directly(test_path("not-given-up"), 1, OX_DTYPE_BF16);
    tee = open_tee(output, 1, OX_DTYPE_BF16);
    show(0.4);
    ox_checkpoint_tee_fill(tee);
    REQUIRE_OK(close_tee(tee));
    CHECK(is_same_folder(test_path("not-given-up/checkpoint-1"), test_pathf("%s/checkpoint-1", output)));
    /* Saving the same step again keeps what is there; what a crash has left is not in the way. */
    REQUIRE_OK(ox_folder_make(test_pathf("%s/checkpoint-2.tmp/inner", output)));
    struct stat before, after;
    CHECK(stat(test_pathf("%s/checkpoint-1/config.json", output), &before) == 0);
    tee = open_tee(output, 1, OX_DTYPE_BF16);
    show(1);
    REQUIRE_OK(close_tee(tee));
    CHECK(stat(test_pathf("%s/checkpoint-1/config.json", output), &after) == 0 && before.st_ino == after.st_ino);
    CHECK(!ox_path_exists(test_pathf("%s/checkpoint-2.tmp", output)));
    close_engine();
}

enum { FORMATS = OX_OPTIM_MUON * OX_MOMENTS_COUNT }; /* Muon, the last, updates no chunks */

static struct ox_state_format format_at(int idx) {
    return (struct ox_state_format){(enum ox_optim_kind)(idx / OX_MOMENTS_COUNT % OX_OPTIM_MUON),
                                    (enum ox_moments)(idx % OX_MOMENTS_COUNT), false};
}

int main(void) {
    log_count_warnings(NULL);
    calls_options = (struct calls_options){.skips_sync = true, .refuses_direct = true}; /* a disk would take long */
    golden_open("llama_bias", &golden);
    in_memory = harness_in_memory;
    in_memory.chunk_elems = 2048;
    for (int i = 0; i < FORMATS; i++) {
        test_same("memory", format_at(i), i % 2 == 0 ? OX_DTYPE_BF16 : OX_DTYPE_F32, &in_memory);
    }
    for (int i = 0; harness_places[i].name != NULL; i++) {
        /* No update passes on what lives on the device. */
        const struct ox_placement_request *const request = &harness_places[i].request;
        const bool passes = request->device_units == 0 && request->state_tier != OX_TIER_DEVICE;
        if (harness_places[i].store && passes && !harness_places[i].tight && harness_places[i].chaos_seed == 0) {
            char name[32];
            snprintf(name, sizeof name, "place-%d", i);
            test_same(name, format_at(i), i % 2 == 0 ? OX_DTYPE_F32 : OX_DTYPE_BF16, &harness_places[i]);
        }
    }
    test_given_up();
    test_lies();
    CHECK(log_warnings == 0);
    test_faults();
    golden_close(&golden);
    return test_end();
}
