/* Checkpoints while memory runs out or calls on files fail: each allocation and each call in turn, once, while one is
 * saved, filled by chunks, loaded, looked for, deleted or exported. What was to be written is whole or not there, the
 * checkpoint before it stays, and the same work succeeds afterwards (tests/kit/calls.h). An export is also killed at
 * each call that changes a file. */
#include "base/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "tests/kit/calls.h"
#include "tests/kit/files.h"
#include "tests/kit/log.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct golden golden;
static struct harness harness;
static const char *tokenizer = "tests/golden/chat/chatml";
static uint64_t tried, told;

static struct ox_run_state make_state(uint64_t step) {
    return (struct ox_run_state){.version = OX_RUN_STATE_VERSION, .run_id = {5, 6}, .branch = 7, .step = step,
                                 .optimizer_steps = step, .cursor = 11, .seed = 3, .tokens_seen = 99,
                                 .best_eval_loss = 2.5};
}

static struct ox_checkpoint_save make_save(const char *output) {
    return (struct ox_checkpoint_save){.output_dir = output, .source_model = tokenizer,
                                       .weights_dtype = OX_DTYPE_BF16,
                                       .tokenizer_file = "tests/golden/chat/chatml/tokenizer.json",
                                       .original_config = ox_hf_config(harness.folder), .shard_bytes_max = 12000,
                                       .total_limit = 1};
}

/* ---- the work ---------------------------------------------------------------------------------------- */

static enum ox_status save(void) {
    const struct ox_run_state state = make_state(2);
    const struct ox_checkpoint_save how = make_save(test_path("out"));
    return ox_checkpoint_write(harness.engine, &state, &how);
}

static enum ox_status save_by_chunks(void) {
    const struct ox_run_state state = make_state(2);
    const struct ox_checkpoint_save how = make_save(test_path("out"));
    struct ox_checkpoint_tee *tee = NULL;
    double seconds = 0;
    const enum ox_status status = ox_checkpoint_tee_open(harness.engine, &state, &how, &tee);
    CHECK((status == OX_OK) == (tee != NULL));
    if (status != OX_OK) {
        return status;
    }
    ox_checkpoint_tee_fill(tee);
    return ox_checkpoint_tee_close(&tee, &seconds);
}

static enum ox_status load(void) {
    REQUIRE_OK(ox_engine_load_begin(harness.engine, 1));
    const enum ox_status status = ox_checkpoint_load(harness.engine, test_path("first/checkpoint-1"));
    calls_arm(false);
    REQUIRE_OK(ox_engine_load_commit(harness.engine, NULL, 0)); /* ends what was begun, and keeps nothing on drives */
    return status;
}

static enum ox_status load_weights(void) {
    REQUIRE_OK(ox_engine_load_begin(harness.engine, 1));
    const enum ox_status status = ox_engine_load_weights(harness.engine, harness.folder);
    calls_arm(false);
    REQUIRE_OK(ox_engine_load_commit(harness.engine, NULL, 0));
    return status;
}

static enum ox_status find(void) {
    static const uint64_t run_id[2] = {5, 6};
    char path[OX_PATH_BYTES], first[OX_PATH_BYTES];
    struct ox_run_state state;
    enum ox_status status = ox_checkpoint_find_latest(test_path("out"), first);
    OX_THEN(status, ox_checkpoint_find_branch(test_path("out"), run_id, 7, path));
    OX_THEN(status, ox_checkpoint_read_state(test_path("out/checkpoint-1"), &state));
    OX_THEN(status, ox_checkpoint_verify(test_path("out/checkpoint-1")));
    OX_THEN(status, ox_checkpoint_make_latest(test_path("out"), test_path("out/checkpoint-1")));
    CHECK(status != OX_OK || (strcmp(first, path) == 0 && state.step == 1));
    return status;
}

/* A checkpoint that is not known for one stays. */
static enum ox_status delete(void) {
    const enum ox_status status = ox_checkpoint_sweep(test_path("out"));
    if (status != OX_OK || !ox_checkpoint_is_ours(test_path("out"), "checkpoint-1")) {
        return status;
    }
    return ox_checkpoint_remove(test_path("out"), "checkpoint-1");
}

static enum ox_status export_masters(void) {
    return ox_export_folder(test_path("first/checkpoint-1"), NULL, false, test_path("new"), OX_DTYPE_F32, 12000);
}

static enum ox_status export_rounded(void) {
    return ox_export_folder(test_path("first/checkpoint-1"), NULL, false, test_path("new"), OX_DTYPE_BF16, UINT64_MAX);
}

/* ---- what is there afterwards ------------------------------------------------------------------------ */

/* One call alone fails, so that what it spoiled can be removed. */
static void check_removed(enum ox_status status, const char *text) {
    CHECK(status == OX_OK || strstr(text, "could not be removed") == NULL);
}

static void check_saved(enum ox_status status) {
    char text[OX_ERROR_TEXT_BYTES];
    memcpy(text, ox_error_text(), sizeof text);
    check_removed(status, text);
    CHECK((status == OX_OK) == files_exist("out/checkpoint-2") && !files_exist("out/checkpoint-2.tmp"));
    REQUIRE_OK(ox_checkpoint_verify(test_path(status == OX_OK ? "out/checkpoint-2" : "out/checkpoint-1")));
    CHECK(status != OX_OK || log_warnings > 0 || !files_exist("out/checkpoint-1"));
}

static void check_found(enum ox_status status) {
    (void)status;
    REQUIRE_OK(ox_checkpoint_verify(test_path("out/checkpoint-1")));
}

static void check_deleted(enum ox_status status) {
    CHECK(status != OX_OK || log_warnings > 0 || !files_exist("out/checkpoint-9.tmp"));
}

static void check_exported(enum ox_status status) {
    check_removed(status, ox_error_text());
    CHECK((status == OX_OK) == files_exist("new") && !files_exist("new.tmp"));
}

static void check_nothing(enum ox_status status) {
    (void)status;
}

static const struct work {
    const char *name;
    enum ox_status (*run)(void);
    void (*check)(enum ox_status status);
} works[] = {
    {"save", save, check_saved},
    {"save by chunks", save_by_chunks, check_saved},
    {"load", load, check_nothing},
    {"load weights", load_weights, check_nothing},
    {"find", find, check_found},
    {"delete", delete, check_deleted},
    {"export of masters", export_masters, check_exported},
    {"export", export_rounded, check_exported},
};

/* ---- the faults -------------------------------------------------------------------------------------- */

/* A folder with a checkpoint, and what crashes have left. The checkpoint is copied where the work before took it. */
static void make_place(void) {
    static const char *const left[] = {"out/checkpoint-2", "out/checkpoint-2.tmp", "out/checkpoint-1.tmp", "new",
                                       "new.tmp"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        files_remove_folder(left[i]);
    }
    if (!files_exist("out/checkpoint-1")) {
        files_copy_folder("first/checkpoint-1", "out/checkpoint-1");
    }
    files_make_folder("out/checkpoint-9.tmp");
    if (!files_exist("out/checkpoint-8.tmp")) {
        CHECK(symlink(test_path("first"), test_path("out/checkpoint-8.tmp")) == 0);
    }
}

enum { QUICK = 7 }; /* `make test` takes one of so many calls */

static bool try_one(const struct work *work, const struct call_rule *rule) {
    const int failures = test_failure_count;
    make_place();
    log_warnings = 0;
    calls_set(rule);
    calls_arm(true);
    const enum ox_status status = work->run();
    calls_arm(false);
    const bool hit = calls_seen->hits > 0;
    char text[OX_ERROR_TEXT_BYTES];
    memcpy(text, ox_error_text(), sizeof text);
    CHECK(status == OX_OK || (hit && status < OX_STATUS_COUNT && text[0] != '\0'));
    work->check(status);
    if (test_failure_count > failures) {
        printf("%s: call %llu of %s, error %d: %s %s\n", work->name, (unsigned long long)rule->idx,
               call_names[rule->call], rule->error, ox_status_name(status), status != OX_OK ? text : "");
    }
    tried += hit;
    told += status != OX_OK;
    return hit && test_failure_count < 10;
}

static void try_all(const struct work *work) {
    CHECK(!try_one(work, &(struct call_rule){.call = CALL_COUNT}));
    for (int call = 0; call < CALL_COUNT; call++) {
        const uint64_t before = tried;
        const unsigned stride = test_stride(QUICK), first = test_first(QUICK);
        struct call_rule rule = {.call = (enum call)call, .fault = CALL_FAILS, .error = EIO, .idx = first};
        while (try_one(work, &rule)) {
            rule.idx += stride;
        }
        if (test_deep()) {
            printf("%s: %llu calls of %s\n", work->name, (unsigned long long)(tried - before), call_names[call]);
        }
    }
}

/* Exports in a process that is killed at a call that changes a file; false if it ends before that. */
static bool export_dies(enum call_fault fault, uint64_t idx) {
    int how = 0;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        calls_set(&(struct call_rule){.fault = fault, .idx = idx});
        calls_arm(true);
        _exit(export_masters() == OX_OK ? 0 : 1);
    }
    CHECK(child > 0 && waitpid(child, &how, 0) == child);
    CHECK(WIFSIGNALED(how) ? WTERMSIG(how) == SIGKILL : WEXITSTATUS(how) == 0);
    return WIFSIGNALED(how);
}

/* An export that is killed leaves nothing under its name, or all of it. What it leaves beside that is named by the next
 * one, which does the whole work once that is removed. */
static void test_export_killed(void) {
    uint64_t kills = 0;
    make_place();
    REQUIRE_OK(export_masters());
    CHECK(rename(test_path("new"), test_path("whole")) == 0);
    for (enum call_fault fault = CALL_DIES_BEFORE; fault <= CALL_DIES_AFTER; fault++) {
        uint64_t idx = test_first(QUICK);
        for (; export_dies(fault, idx) && test_failure_count < 10; idx += test_stride(QUICK)) {
            kills++;
            const bool partial = files_exist("new.tmp");
            CHECK(!files_exist("new") || (!partial && files_same_folders("new", "whole")));
            CHECK(!partial || (export_masters() == OX_E_CONFIG &&
                               strstr(ox_error_text(), "new.tmp: a stopped export has left it") != NULL));
            make_place();
            REQUIRE_OK(export_masters());
            CHECK(files_same_folders("new", "whole"));
            make_place();
        }
        make_place();
    }
    printf("%llu exports killed\n", (unsigned long long)kills);
    CHECK(kills > 10);
    files_remove_folder("whole");
}

/* ---- names and places -------------------------------------------------------------------------------- */

static void refuse_export(const char *path, const char *words) {
    const char *const from = test_path("first/checkpoint-1");
    CHECK(ox_export_folder(from, NULL, false, path, OX_DTYPE_F32, UINT64_MAX) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), words) != NULL);
}

static void test_names(void) {
    char longest[OX_PATH_BYTES];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    make_place();
    refuse_export("", "a path of 0 bytes cannot be used");
    refuse_export(longest, "bytes cannot be used");
    refuse_export(test_path("first/"), "first: exists already");
    files_make_folder("new.tmp");
    refuse_export(test_path("new"), "new.tmp: a stopped export has left it");
    files_remove_folder("new.tmp");
    const char *const from = test_path("first/checkpoint-1");
    REQUIRE_OK(ox_export_folder(from, NULL, false, test_path("new//"), OX_DTYPE_F32, UINT64_MAX));
    CHECK(files_exist("new/config.json"));
    const char *const out = test_path("out");
    CHECK(!ox_checkpoint_is_ours(out, "checkpoint-3") && !ox_checkpoint_is_ours(out, "latest"));
    CHECK(!ox_checkpoint_is_ours(out, longest) && ox_checkpoint_is_ours(out, "checkpoint-9.tmp"));
    REQUIRE_OK(ox_checkpoint_remove(out, "checkpoint-9.tmp"));
    CHECK(!files_exist("out/checkpoint-9.tmp"));
    CHECK(ox_checkpoint_remove(out, longest) == OX_E_CONFIG);
}

/* A folder with the name of a checkpoint gives way, for as long as there are names. */
static void test_set_aside(void) {
    enum { NAMES = 1000 };
    const struct ox_run_state state = make_state(2);
    struct ox_checkpoint_save how = make_save(test_path("out"));
    how.total_limit = 0;
    make_place();
    files_make_folder("out/checkpoint-2");
    for (int i = 1; i <= NAMES; i++) {
        files_make_folder(test_pathf("out/checkpoint-2.old-%d", i) + strlen(test_folder()) + 1);
    }
    CHECK(ox_checkpoint_write(harness.engine, &state, &how) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "is not a complete checkpoint, and its place is needed; move it away") != NULL);
    CHECK(files_exist("out/checkpoint-2") && !files_exist("out/checkpoint-2.tmp"));
    files_remove_folder("out/checkpoint-2.old-1000");
    REQUIRE_OK(ox_checkpoint_write(harness.engine, &state, &how));
    REQUIRE_OK(ox_checkpoint_verify(test_path("out/checkpoint-2")));
    /* One of another run, branch, or state is named for what it is, and stays too. */
    struct ox_run_state others[] = {state, state, state};
    others[0].run_id[1]++;
    others[1].branch++;
    others[2].tokens_seen++;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        CHECK(rename(test_path("out/checkpoint-2"), test_path("spare")) == 0);
        REQUIRE_OK(ox_checkpoint_write(harness.engine, &others[i], &how));
        REQUIRE_OK(ox_checkpoint_write(harness.engine, &others[i], &how)); /* it is there already */
        CHECK(ox_checkpoint_write(harness.engine, &state, &how) == OX_E_CONFIG);
        CHECK(strstr(ox_error_text(), i == 0   ? "is of another run, and"
                                      : i == 1 ? "is of another branch of this run, and"
                                               : "is of this run, with another state, and") != NULL);
        files_remove_folder("out/checkpoint-2");
        CHECK(rename(test_path("spare"), test_path("out/checkpoint-2")) == 0);
    }
    files_remove_folder("out");
    files_make_folder("out");
}

int main(void) {
    if (!calls_memory_spare_json()) {
        printf("skipped: this build's allocator cannot be taken over\n");
        return 77;
    }
    calls_options = (struct calls_options){.skips_sync = true, .refuses_direct = true}; /* a disk would take long */
    golden_open("llama_bias", &golden);
    const struct harness_run run = golden_run(&golden);
    harness_open(&run, &harness_in_memory, &harness);
    struct ox_checkpoint_save how = make_save(test_path("first"));
    const struct ox_run_state state = make_state(1);
    REQUIRE_OK(ox_checkpoint_write(harness.engine, &state, &how));
    files_make_folder("out");
    log_count_warnings(NULL);
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        try_all(&works[i]);
    }
    test_export_killed();
    test_names();
    test_set_aside();
    printf("%llu calls failed, %llu times told\n", (unsigned long long)tried, (unsigned long long)told);
    CHECK(tried > 300 && told > 200);
    harness_close(&harness);
    golden_close(&golden);
    return test_end();
}
