/* Checkpoints of several processes: byte for byte those of one, from planes, from the next step, and loaded again, also
 * where a process has no chunk; with a call on files that fails on one of them, and given up, all end alike. */
#include "base/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/step/engine_internal.h"
#include "engine/step/planes/planes.h"
#include "tests/kit/calls.h"
#include "tests/kit/comm/process_threads.h"
#include "tests/kit/files.h"
#include "tests/kit/log.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <string.h>

enum { GROUPS = 4, SEED = 21 };

static struct golden golden;

/* A run, and the folder of what one process saves of it. */
struct example {
    const char *name;
    uint32_t processes, ranks;
    enum ox_sharding sharding;
    struct ox_state_format format;
    enum ox_dtype dtype;
    bool store;
    uint64_t chunk_elems;
    uint32_t copies; /* of the model; 0: 1 */
};

/* One process of it. */
struct member {
    const struct example *example;
    struct ox_team *team;
    struct harness_run run;
    struct harness_place place;
    struct harness harness;
};

static void meet(const struct member *member) {
    REQUIRE_OK(ox_team_agree(member->team, OX_TEAM_RUN, OX_OK, "the test"));
}

/* Whether all processes say the same; each does, or the test ends. */
static bool is_same_everywhere(const struct member *member, uint32_t mine) {
    uint32_t all[OX_COMM_RANKS_MAX];
    bool same = true;
    REQUIRE_OK(ox_team_gather(member->team, OX_TEAM_RUN, &mine, sizeof mine, all, "the test"));
    for (uint32_t i = 0; i < ox_team_count(member->team); i++) {
        same = same && all[i] == mine;
    }
    return same;
}

static void open_member(const struct example *example, struct ox_team *team, struct member *out) {
    out->example = example;
    out->team = team;
    out->place = example->store ? harness_places[0] : harness_in_memory;
    out->place.chunk_elems = example->chunk_elems;
    out->run = golden_run(&golden);
    out->run.team = team;
    out->run.ranks = team == NULL ? 1 : example->ranks;
    out->run.sum_groups = GROUPS;
    out->run.sharding = example->sharding;
    out->run.copies = team == NULL ? 0 : example->copies;
    out->run.state = example->format;
    out->run.dtype = example->format.moments != OX_MOMENTS_Q8 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16;
    harness_open(&out->run, &out->place, &out->harness);
}

static void step(struct member *member, size_t idx) {
    struct ox_engine *const engine = member->harness.engine;
    struct ox_step_result result;
    const struct ox_step_input input = golden_input(&golden, idx, golden_fill(engine, &golden, idx));
    REQUIRE_OK(ox_engine_step(engine, &input, &result));
    CHECK(result.finite);
}

/* ---- saving ------------------------------------------------------------------------------------------------ */

static struct ox_run_state make_state(const struct member *member, uint64_t at) {
    const struct ox_state_format format = ox_engine_config_of(member->harness.engine)->state;
    return (struct ox_run_state){.version = OX_RUN_STATE_VERSION, .optimizer = (uint16_t)format.kind,
                                 .moments = (uint16_t)format.moments, .run_id = {5, 6}, .branch = 7, .step = at,
                                 .optimizer_steps = at, .cursor = 11, .seed = 3, .tokens_seen = 99,
                                 .best_eval_loss = 2.5};
}

static struct ox_checkpoint_save make_save(const struct member *member, const char *output) {
    const enum ox_dtype dtype = member->example->dtype;
    return (struct ox_checkpoint_save){.output_dir = output, .source_model = "", .weights_dtype = dtype,
                                       .original_config = ox_hf_config(member->harness.folder),
                                       .shard_bytes_max = dtype == OX_DTYPE_F32 ? UINT64_MAX : 12000,
                                       .total_limit = 1};
}

static enum ox_status save(struct member *member, const char *output, uint64_t at) {
    const struct ox_run_state state = make_state(member, at);
    const struct ox_checkpoint_save how = make_save(member, output);
    return ox_checkpoint_write(member->harness.engine, &state, &how);
}

static enum ox_status open_tee(struct member *member, const char *output, uint64_t at,
                               struct ox_checkpoint_tee **tee) {
    const struct ox_run_state state = make_state(member, at);
    const struct ox_checkpoint_save how = make_save(member, output);
    const enum ox_status status = ox_checkpoint_tee_open(member->harness.engine, &state, &how, tee);
    CHECK((status == OX_OK) == (*tee != NULL));
    return status;
}

static enum ox_status close_tee(struct ox_checkpoint_tee **tee) {
    double seconds = -1;
    const enum ox_status status = ox_checkpoint_tee_close(tee, &seconds);
    CHECK(*tee == NULL && seconds >= 0);
    return status;
}

/* All processes learn at the same call that the tee is ready. */
static void await_ready(const struct member *member, struct ox_checkpoint_tee *tee) {
    uint32_t call_count = 1;
    while (!ox_checkpoint_tee_ready(tee)) {
        call_count++;
    }
    CHECK(is_same_everywhere(member, call_count));
}

/* Shows the chunks of this process's ranks, all but the last `left` of each unit. */
static void show(struct member *member, uint32_t left) {
    const uint32_t seats = member->example->ranks / member->example->processes;
    for (uint32_t seat = 0; seat < seats; seat++) {
        struct ox_rank *const rank = ox_engine_rank(member->harness.engine, seat);
        const struct ox_tee tee = rank->tee.to;
        for (uint32_t unit_idx = 0; unit_idx < member->harness.model->unit_count; unit_idx++) {
            for (uint32_t i = 0; i + left < rank->plan->table.shards[unit_idx].chunk_count; i++) {
                struct ox_chunk_view view;
                REQUIRE_OK(ox_rank_chunk_get(rank, unit_idx, i, &view));
                tee.chunk(tee.context, unit_idx, i, &view);
            }
        }
    }
}

/* ---- the same bytes ---------------------------------------------------------------------------------------- */

static void load_path(struct member *member, const char *path) {
    REQUIRE_OK(ox_engine_load_begin(member->harness.engine, 5));
    REQUIRE_OK(ox_checkpoint_load(member->harness.engine, path));
    REQUIRE_OK(ox_engine_load_commit(member->harness.engine, NULL, 0));
}

/* Fills the engine with fresh weights, then with those of the model's folder, and saves both. */
static void save_weights(struct member *member, const char *output) {
    struct ox_engine *const engine = member->harness.engine;
    REQUIRE_OK(ox_engine_load_begin(engine, 3));
    REQUIRE_OK(ox_engine_init_weights(engine, SEED));
    REQUIRE_OK(ox_engine_load_commit(engine, NULL, 0));
    REQUIRE_OK(save(member, output, 3));
    REQUIRE_OK(ox_engine_load_begin(engine, 4));
    REQUIRE_OK(ox_engine_load_weights(engine, member->harness.folder));
    REQUIRE_OK(ox_engine_load_commit(engine, NULL, 0));
    REQUIRE_OK(save(member, output, 4));
}

/* What one process saves: checkpoint-N in a folder of its own for each N. */
static void save_alone(const struct example *example) {
    struct member member;
    open_member(example, NULL, &member);
    for (uint64_t at = 1; at <= 2; at++) {
        step(&member, at - 1);
        REQUIRE_OK(save(&member, test_pathf("%s-alone-%d", example->name, (int)at), at));
    }
    save_weights(&member, test_pathf("%s-alone-weights", example->name));
    harness_close(&member.harness);
}

/* Checks, on the first process, what all have saved. */
static void check_same(const struct member *member, const char *ours, const char *alone, int at) {
    const char *const name = member->example->name;
    meet(member);
    if (ox_team_leads(member->team)) {
        const char *const a = test_pathf("%s-%s/checkpoint-%d", name, ours, at);
        const char *const b = test_pathf("%s-%s/checkpoint-%d", name, alone, at);
        const bool same = files_same_folders(a, b);
        printf("%s, %s: checkpoint-%d is %s\n", name, ours, at, same ? "the same" : "another");
        CHECK(same && files_count(a, "", "") > 3);
        REQUIRE_OK(ox_checkpoint_verify(a));
    }
    meet(member);
}

static void run_same(struct ox_team *team, void *arg) {
    const struct example *const example = arg;
    struct member member;
    struct ox_checkpoint_tee *tee = NULL;
    const char *const direct = test_pathf("%s-direct", example->name);
    const char *const teed = test_pathf("%s-teed", example->name);
    open_member(example, team, &member);
    step(&member, 0);
    REQUIRE_OK(save(&member, direct, 1));
    check_same(&member, "direct", "alone-1", 1);
    REQUIRE_OK(open_tee(&member, teed, 1, &tee));
    CHECK(is_same_everywhere(&member, ox_checkpoint_tee_ready(tee)));
    step(&member, 1);
    REQUIRE_OK(ox_engine_finish_update(member.harness.engine));
    if (!example->store) {
        CHECK(close_tee(&tee) == OX_E_ABORTED); /* nothing streams without a store */
    } else {
        await_ready(&member, tee);
        REQUIRE_OK(close_tee(&tee));
        check_same(&member, "teed", "alone-1", 1);
    }
    REQUIRE_OK(open_tee(&member, teed, 2, &tee));
    ox_checkpoint_tee_fill(tee);
    REQUIRE_OK(close_tee(&tee));
    check_same(&member, "teed", "alone-2", 2);
    REQUIRE_OK(save(&member, direct, 2));
    check_same(&member, "direct", "alone-2", 2);
    CHECK(!ox_path_exists(test_pathf("%s-direct/checkpoint-1", example->name))); /* beyond the limit */
    save_weights(&member, test_pathf("%s-weights", example->name));
    check_same(&member, "weights", "alone-weights", 4);
    load_path(&member, test_pathf("%s-alone-2/checkpoint-2", example->name));
    REQUIRE_OK(save(&member, test_pathf("%s-again", example->name), 2));
    check_same(&member, "again", "alone-2", 2);
    if (example->store) {
        harness_reopen(&member.run, &member.place, &member.harness);
        REQUIRE_OK(save(&member, test_pathf("%s-reopened", example->name), 2));
        check_same(&member, "reopened", "alone-2", 2);
    }
    harness_close(&member.harness);
}

static void test_same(void) {
    static const struct ox_state_format q8 = {OX_OPTIM_LION, OX_MOMENTS_Q8, false}, adamw = {0};
    const struct example examples[] = {
        {"memory", 2, 2, OX_SHARDING_FULL, adamw, OX_DTYPE_BF16, false, 2048, 0},
        {"store", 2, 4, OX_SHARDING_FULL, adamw, OX_DTYPE_F32, true, 2048, 0},
        {"three", 3, 3, OX_SHARDING_GRAD, q8, OX_DTYPE_BF16, true, 2048, 0},
        {"copies", 2, 4, OX_SHARDING_NONE, adamw, OX_DTYPE_F32, false, 2048, 0},
        {"hybrid", 2, 4, OX_SHARDING_FULL, adamw, OX_DTYPE_F32, true, 2048, 2}, /* a copy in each process */
        {"across", 2, 4, OX_SHARDING_STEP, adamw, OX_DTYPE_BF16, false, 2048, 4}, /* two in each */
        {"wide", 4, 4, OX_SHARDING_GRAD, q8, OX_DTYPE_BF16, true, 2048, 2}, /* each of two processes */
        {"small", 2, 2, OX_SHARDING_FULL, adamw, OX_DTYPE_F32, true, 1 << 18, 0}, /* all chunks are the first rank's */
    };
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        struct example example = examples[i];
        save_alone(&example);
        processes_run(example.processes, run_same, &example);
    }
}

/* Another format is a warning of one process. */
static void run_conversion(struct ox_team *team, void *arg) {
    struct member member;
    open_member(arg, team, &member);
    load_path(&member, test_path("store-alone-2/checkpoint-2"));
    harness_close(&member.harness);
}

static void test_conversion(void) {
    struct example example = {"conversion", 2, 2, OX_SHARDING_FULL, {OX_OPTIM_LION, OX_MOMENTS_Q8, false},
                              OX_DTYPE_F32, false, 2048, 0};
    CHECK(log_warnings == 0);
    processes_run(2, run_conversion, &example);
    CHECK(log_warnings == 1);
    log_warnings = 0;
}

/* ---- failures ---------------------------------------------------------------------------------------------- */

static const enum call points[] = {CALL_OPEN, CALL_READ, CALL_WRITE, CALL_SYNC, CALL_RENAME, CALL_RENAME_NEW,
                                   CALL_ALLOCATE, CALL_MAKE};
enum { POINTS = sizeof points / sizeof *points, WAYS = 2 };
static _Atomic uint32_t victim;

/* Calls of one process below the folder of the faults. Threads that a process has started open files for the first one
 * alone. */
static bool picks(const char *path) {
    return process_idx() == victim && strstr(path, "/faulty") != NULL;
}

static enum ox_status save_somehow(struct member *member, const char *output, int way) {
    struct ox_checkpoint_tee *tee = NULL;
    if (way == 0) {
        return save(member, output, 2);
    }
    const enum ox_status status = open_tee(member, output, 2, &tee);
    if (status != OX_OK) {
        return status;
    }
    show(member, 0);
    return close_tee(&tee);
}

static bool is_clean(void) {
    return !ox_path_exists(test_path("faulty/checkpoint-2")) &&
           !ox_path_exists(test_path("faulty/checkpoint-2.tmp"));
}

/* Checks, on the first process, what a save has left behind. */
static void check_left(enum ox_status status) {
    if (status == OX_OK) {
        CHECK(files_same_folders(test_path("faulty/checkpoint-2"),
                                 test_path("expected/checkpoint-2")));
    } else {
        CHECK(is_clean());
        REQUIRE_OK(ox_checkpoint_verify(test_path("faulty/checkpoint-1")));
    }
}

/* A call of one process fails: all return the same, and the checkpoint is whole, or there is none of it and the one
 * before is. False when no call was left to fail. */
static bool check_fault(struct member *member, const struct call_rule *rule, uint32_t process, int way) {
    const char *const output = test_path("faulty");
    const bool leads = ox_team_leads(member->team);
    if (leads) {
        victim = process;
        REQUIRE_OK(ox_folder_remove(output));
    }
    meet(member);
    REQUIRE_OK(save(member, output, 1));
    if (leads) {
        calls_set(rule);
        calls_arm(true);
    }
    meet(member);
    const enum ox_status status = save_somehow(member, output, way);
    const bool blamed = status == OX_OK || strncmp(ox_error_text(), "process ", 8) == 0 || process == process_idx();
    meet(member);
    if (leads) {
        calls_arm(false);
        check_left(status);
    }
    CHECK(is_same_everywhere(member, status) && blamed);
    const bool hit = calls_seen->hits > 0;
    meet(member);
    return hit;
}

static void run_faults(struct ox_team *team, void *arg) {
    struct member member;
    open_member(arg, team, &member);
    step(&member, 0);
    REQUIRE_OK(save(&member, test_path("expected"), 2));
    for (uint32_t nth = 0; nth < POINTS * WAYS * member.example->processes; nth++) {
        const uint32_t process = nth / (POINTS * WAYS);
        struct call_rule rule = {.call = points[nth / WAYS % POINTS], .fault = CALL_FAILS, .error = ENOSPC};
        uint32_t tries = 0, stride = 1;
        for (; check_fault(&member, &rule, process, (int)(nth % WAYS)); rule.idx += stride) {
            stride = ++tries < 8 ? 1 : 37; /* most writes are of chunks */
        }
        if (ox_team_leads(team)) {
            printf("%s of process %u, way %u: %u tries\n", call_names[rule.call], process, nth % WAYS, tries);
            const bool opens = rule.call == CALL_OPEN || rule.call == CALL_WRITE || rule.call == CALL_SYNC;
            CHECK(tries > 0 || (process > 0 && !opens));
        }
    }
    harness_close(&member.harness);
}

static void test_faults(void) {
    struct example example = {"faults", 2, 2, OX_SHARDING_FULL, {0}, OX_DTYPE_F32, false, 2048, 0};
    calls_options.picks = picks;
    processes_run(2, run_faults, &example);
    calls_options.picks = NULL;
}

/* A read that fails on one process while weights are loaded is the failure of all. */
static void run_load_fault(struct ox_team *team, void *arg) {
    struct member member;
    open_member(arg, team, &member);
    REQUIRE_OK(save(&member, test_path("faulty-read"), 1));
    for (uint32_t process = 0; process < 2; process++) {
        if (ox_team_leads(team)) {
            victim = process;
            calls_set(&(struct call_rule){.call = CALL_READ, .fault = CALL_FAILS, .error = EIO, .idx = 20});
            calls_arm(true);
        }
        meet(&member);
        REQUIRE_OK(ox_engine_load_begin(member.harness.engine, 1));
        const enum ox_status status = ox_checkpoint_load(member.harness.engine, test_path("faulty-read/checkpoint-1"));
        CHECK(status == OX_E_IO && strstr(ox_error_text(), "safetensors") != NULL);
        CHECK(process == process_idx() || strncmp(ox_error_text(), "process ", 8) == 0);
        calls_arm(false);
        REQUIRE_OK(ox_engine_load_commit(member.harness.engine, NULL, 0));
        meet(&member);
    }
    harness_close(&member.harness);
}

/* A process that has shown all its chunks waits for one that gives up, and one that has failed for one that has not
 * shown all; nobody waits for ever. */
static void run_given_up(struct ox_team *team, void *arg) {
    struct member member;
    struct ox_checkpoint_tee *tee = NULL;
    const char *const output = test_path("faulty");
    open_member(arg, team, &member);
    if (ox_team_leads(team)) {
        REQUIRE_OK(ox_folder_remove(output));
    }
    meet(&member);
    for (uint32_t lacking = 0; lacking < 3; lacking++) {
        REQUIRE_OK(open_tee(&member, output, 2, &tee));
        CHECK(ox_path_is_folder(test_path("faulty/checkpoint-2.tmp")));
        show(&member, lacking == 2 || lacking == ox_team_idx(team) ? 1 : 0);
        CHECK(!ox_checkpoint_tee_ready(tee) && close_tee(&tee) == OX_E_ABORTED);
        CHECK(strstr(ox_error_text(), "chunks of the state are missing") != NULL);
        meet(&member);
        CHECK(is_clean());
        meet(&member);
    }
    if (ox_team_leads(team)) {
        victim = 1;
        calls_set(&(struct call_rule){.call = CALL_WRITE, .fault = CALL_FAILS, .error = ENOSPC});
        calls_arm(true);
    }
    meet(&member);
    REQUIRE_OK(open_tee(&member, output, 2, &tee));
    if (ox_team_idx(team) == 1) {
        show(&member, 0);
    }
    CHECK(!ox_checkpoint_tee_ready(tee));
    if (ox_team_idx(team) == 0) {
        show(&member, 0);
    }
    await_ready(&member, tee);
    CHECK(close_tee(&tee) == OX_E_IO && strstr(ox_error_text(), "faulty/checkpoint-2.tmp") != NULL);
    meet(&member);
    CHECK(calls_seen->hits == 1 && is_clean());
    calls_arm(false);
    harness_close(&member.harness);
}

/* A process that does not reach the folder, because it is on another machine, is told so. */
static void run_not_shared(struct ox_team *team, void *arg) {
    struct member member;
    open_member(arg, team, &member);
    if (ox_team_leads(team)) {
        victim = 1;
        calls_set(&(struct call_rule){.call = CALL_OPEN, .fault = CALL_FAILS, .error = ENOENT});
        calls_arm(true);
    }
    meet(&member);
    CHECK(save(&member, test_path("faulty"), 4) == OX_E_CONFIG && calls_seen->hits == 1);
    CHECK(strstr(ox_error_text(), "to a folder that all processes reach: /") != NULL);
    meet(&member);
    CHECK(!ox_path_exists(test_path("faulty/checkpoint-4.tmp")));
    calls_arm(false);
    harness_close(&member.harness);
}

/* A process ends its run while another waits for its chunks: that one has its failure, and leaves nothing behind. */
static void run_aborted(struct ox_team *team, void *arg) {
    struct member member;
    struct ox_checkpoint_tee *tee = NULL;
    open_member(arg, team, &member);
    REQUIRE_OK(open_tee(&member, test_path("faulty"), 3, &tee));
    show(&member, ox_team_leads(team) ? 0 : 1);
    if (!ox_team_leads(team)) {
        ox_team_abort(team, ox_fail(OX_E_DEVICE, "the device is lost"));
    }
    CHECK(close_tee(&tee) == OX_E_DEVICE && strstr(ox_error_text(), "process 1: the device is lost") != NULL);
    CHECK(!ox_team_leads(team) || !ox_path_exists(test_path("faulty/checkpoint-3.tmp")));
    harness_close(&member.harness);
}

static void test_given_up(void) {
    struct example example = {"given-up", 2, 2, OX_SHARDING_FULL, {0}, OX_DTYPE_F32, false, 2048, 0};
    calls_options.picks = picks;
    processes_run(2, run_given_up, &example);
    processes_run(2, run_load_fault, &example);
    processes_run(2, run_not_shared, &example);
    processes_run(2, run_aborted, &example);
    calls_options.picks = NULL;
}

int main(void) {
    log_count_warnings(NULL);
    calls_options = (struct calls_options){.skips_sync = true, .refuses_direct = true}; /* a disk would take long */
    printf("in %s\n", test_folder());
    golden_open("llama_bias", &golden);
    golden.micro_batches = GROUPS;
    test_same();
    test_conversion();
    CHECK(log_warnings == 0);
    test_faults();
    test_given_up();
    golden_close(&golden);
    return test_end();
}
