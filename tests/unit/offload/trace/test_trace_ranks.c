/* Traces of several ranks put together: files found beside each other, clocks joined, and waits counted, in steps small
 * enough to be worked out by hand. */
#include "base/log.h"
#include "offload/trace/trace_ranks.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { COMPUTE, LINK, TASKS = 4, STEPS = 3, LATER = 7, EPOCH = 1000000 };

/* When tasks of the ranks began and ended, by one clock. Rank 0 comes first to the first transfer and last to the
 * second. Rank 2 comes first to both. */
static const struct {
    uint8_t lane;
    uint64_t started, ended;
} given[3][TASKS] = {
    {{COMPUTE, 10, 20}, {LINK, 20, 60}, {COMPUTE, 60, 90}, {LINK, 90, 100}},
    {{COMPUTE, 10, 50}, {LINK, 50, 61}, {COMPUTE, 61, 70}, {LINK, 70, 101}},
    {{COMPUTE, 10, 12}, {LINK, 12, 62}, {COMPUTE, 62, 65}, {LINK, 65, 102}},
};

static struct ox_trace_header head;
static struct ox_trace_task tasks[TASKS];
static uint32_t warning_count;

static void on_line(void *context, enum ox_log_level level, const char *line) {
    (void)context;
    warning_count += level == OX_LOG_WARN && strstr(line, "is left out") != NULL;
}

static void add_name(enum ox_trace_table table, const char *name) {
    struct ox_trace_names *const names = &head.names[table];
    snprintf(names->text[names->count++], OX_TRACE_NAME_BYTES, "%s", name);
}

static void make_head(void) {
    add_name(OX_TRACE_LANES, "compute");
    add_name(OX_TRACE_LANES, "link");
    add_name(OX_TRACE_TASKS, "forward");
    add_name(OX_TRACE_TASKS, "gather");
    add_name(OX_TRACE_LINKS, "peer_in");
    add_name(OX_TRACE_TRAFFIC, "weights");
    add_name(OX_TRACE_BUFS, "weights");
    add_name(OX_TRACE_TIERS, "device");
    add_name(OX_TRACE_SPANS, "step");
    add_name(OX_TRACE_PART_NAMES, "reads");
    for (uint32_t i = 0; i < TASKS; i++) {
        tasks[i] = (struct ox_trace_task){.kind = given[0][i].lane, .lane = given[0][i].lane, .unit_idx = 0,
                                          .mb_idx = OX_NONE};
        tasks[i].deps[1 - given[0][i].lane] = i; /* the task before, on the other lane */
    }
    head.plans[OX_TRACE_TRAIN] = (struct ox_trace_plan){.task_count = TASKS, .tasks = tasks};
}

/* Writes the file of a rank whose clock began LATER after that of the rank before; its wall clock is `wrong` ns off.
 * The steps are `first` and those behind it. */
static void write_rank(const char *name, uint32_t rank, uint32_t count, const char *model, int64_t wrong,
                       uint64_t first) {
    struct ox_trace_writer *writer = NULL;
    char path[1024];
    const uint64_t began = (uint64_t)rank * LATER;
    snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    snprintf(head.title, sizeof head.title, "rank %u of %u, %s; on machine %u", rank, count, model, rank);
    head.epoch_unix_ns = (uint64_t)((int64_t)(EPOCH + began) + wrong);
    REQUIRE_OK(ox_trace_writer_open(path, &head, 1 << 20, &writer));
    for (uint64_t step = first; step < first + STEPS; step++) {
        const uint64_t at = 200 * step - began;
        for (uint32_t i = 0; i < TASKS; i++) {
            ox_trace_writer_put(writer, &(struct ox_trace_record){
                .type = OX_TRACE_TASK, .lane = given[rank][i].lane, .kind = given[rank][i].lane,
                .link = OX_TRACE_NO_LINK, .step = step, .task_idx = i, .mb_idx = OX_NONE,
                .queued_ns = at, .started_ns = at + given[rank][i].started, .ended_ns = at + given[rank][i].ended});
        }
        ox_trace_writer_put(writer, &(struct ox_trace_record){
            .type = OX_TRACE_END, .link = OX_TRACE_NO_LINK, .step = step, .queued_ns = at, .started_ns = at,
            .ended_ns = at + 110});
    }
    ox_trace_writer_close(&writer);
}

static void open_run(const char *name, struct ox_trace_ranks *ranks) {
    char path[1024];
    snprintf(path, sizeof path, "%s%s", test_folder(), name);
    warning_count = 0;
    REQUIRE_OK(ox_trace_ranks_open(path, ranks));
}

/* Rank 0 waits 30 for rank 1 at first, and is waited for then: 20 by rank 1, 25 by rank 2. */
static void check_waits(const struct ox_trace_ranks *ranks, const struct ox_trace_joint *joint) {
    static uint64_t waits[OX_TRACE_RANKS_MAX][OX_TRACE_RANKS_MAX];
    static const uint64_t expected[3][3] = {{0, 30, 0}, {20, 0, 0}, {25, 38, 0}};
    ox_trace_joint_waits(ranks, joint, waits);
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t k = 0; k < 3; k++) {
            CHECK(waits[i][k] == expected[i][k]);
        }
    }
}

/* From the end back: rank 2 is done at 102 by transfer 2, which rank 0 came to at 90; that computed from 60 on, behind
 * transfer 1, which rank 1 came to at 50; that computed from 10 on. */
static void check_chain(const struct ox_trace_ranks *ranks, const struct ox_trace_joint *joint) {
    struct ox_trace_joint_chain chain;
    uint64_t sum = 0;
    REQUIRE_OK(ox_trace_joint_follow(ranks, joint, &chain));
    CHECK(chain.wall_ns == 110 && chain.chain_ns[OX_TRACE_CAUSE_DONE] == 8);
    CHECK(chain.chain_ns[COMPUTE] == 30 + 40 && chain.chain_ns[LINK] == 12 + 10);
    CHECK(chain.chain_kind_ns[COMPUTE] == 70 && chain.chain_kind_ns[LINK] == 22);
    CHECK(chain.rank_ns[0] == 42 && chain.rank_ns[1] == 60 && chain.rank_ns[2] == 8);
    for (uint32_t i = 0; i < OX_TRACE_CAUSE_COUNT; i++) {
        sum += chain.chain_ns[i];
    }
    CHECK(sum == chain.wall_ns);
}

static const struct ox_trace_step *step_of(const struct ox_trace_ranks *ranks) {
    return &ranks->ranks[ranks->shown].steps->steps[1];
}

/* The wall clocks of one machine say all; whichever file is named, its clock is the one that counts. */
static void test_one_machine(void) {
    static const char *const names[] = {"", "/trace-1.bin", "/trace-2.bin"};
    struct ox_trace_ranks ranks;
    struct ox_trace_joint joint;
    for (uint32_t rank = 0; rank < 3; rank++) {
        write_rank(rank == 0 ? "trace.bin" : names[rank] + 1, rank, 3, "a model", 0, 1);
    }
    for (uint32_t shown = 0; shown < 3; shown++) {
        open_run(names[shown], &ranks);
        CHECK(ranks.count == 3 && ranks.run_count == 3 && ranks.shown == shown && warning_count == 0);
        ox_trace_joint_of(&ranks, step_of(&ranks), &joint);
        CHECK(joint.whole && joint.moved_ns == 0 && joint.end_ns - joint.begin_ns == 110);
        for (uint32_t i = 0; i < 3; i++) {
            CHECK(ranks.ranks[i].idx == i && joint.shift_ns[i] == ((int64_t)i - (int64_t)shown) * LATER);
        }
        check_waits(&ranks, &joint);
        check_chain(&ranks, &joint);
        ox_trace_ranks_close(&ranks);
    }
}

/* A wall clock that is wrong is corrected: no rank leaves a transfer before the others have come. Rank 1 may be moved
 * by -4 to 17, and is put in the middle. */
static void test_wrong_clock(void) {
    struct ox_trace_ranks ranks;
    struct ox_trace_joint joint;
    write_rank("trace-1.bin", 1, 3, "a model", 500, 1);
    open_run("/trace.bin", &ranks);
    ox_trace_joint_of(&ranks, step_of(&ranks), &joint);
    CHECK(joint.shift_ns[1] == 6 && joint.shift_ns[2] == 2 * LATER && joint.moved_ns == 501);
    ox_trace_ranks_close(&ranks);
    write_rank("trace-1.bin", 1, 3, "a model", -3, 1); /* within what the transfers allow */
    open_run("/trace.bin", &ranks);
    ox_trace_joint_of(&ranks, step_of(&ranks), &joint);
    CHECK(joint.shift_ns[1] == LATER - 3 && joint.moved_ns == 0);
    ox_trace_ranks_close(&ranks);
}

static void check_left_out(const char *what, uint32_t count) {
    struct ox_trace_ranks ranks;
    open_run("", &ranks);
    if (ranks.count != count || warning_count != 3 - count) {
        printf("%s: %u ranks and %u warnings, expected %u ranks\n", what, ranks.count, warning_count, count);
        test_failure_count++;
    }
    for (uint32_t i = 0; i + 1 < ranks.count; i++) {
        CHECK(ranks.ranks[i].idx < ranks.ranks[i + 1].idx);
    }
    ox_trace_ranks_close(&ranks);
}

/* Files that are missing, broken, of another run or of other steps are left out; the others are shown. */
static void test_left_out(void) {
    struct ox_trace_ranks ranks;
    char path[1024];
    snprintf(path, sizeof path, "%s/trace-1.bin", test_folder());
    write_rank("trace-1.bin", 1, 3, "another model", 0, 1);
    check_left_out("another model", 2);
    write_rank("trace-1.bin", 1, 2, "a model", 0, 1);
    check_left_out("another number of ranks", 2);
    write_rank("trace-1.bin", 2, 3, "a model", 0, 1);
    check_left_out("the file of another rank", 2);
    write_rank("trace-1.bin", 1, 3, "a model", 0, 1 + STEPS);
    check_left_out("other steps", 2);
    files_write_text("trace-1.bin", "no trace");
    check_left_out("a broken file", 2);
    CHECK(unlink(path) == 0);
    check_left_out("no file", 2);
    write_rank("trace-1.bin", 1, 3, "a model", 0, STEPS);
    check_left_out("one step together", 3);
    write_rank("copy.bin", 1, 3, "a model", 0, 1); /* the name says nothing of others beside it */
    open_run("/copy.bin", &ranks);
    CHECK(ranks.count == 1 && ranks.run_count == 1 && warning_count == 0);
    ox_trace_ranks_close(&ranks);
}

/* A step that one rank lacks is shown without it, and says so. */
static void test_missing_step(void) {
    struct ox_trace_ranks ranks;
    struct ox_trace_joint joint;
    static uint64_t waits[OX_TRACE_RANKS_MAX][OX_TRACE_RANKS_MAX];
    open_run("", &ranks); /* rank 1 has steps from STEPS on */
    ox_trace_joint_of(&ranks, step_of(&ranks), &joint);
    CHECK(!joint.whole && joint.steps[1] == NULL && joint.steps[2] != NULL);
    ox_trace_joint_waits(&ranks, &joint, waits);
    CHECK(waits[2][0] == 0);
    ox_trace_joint_of(&ranks, &ranks.ranks[0].steps->steps[STEPS - 1], &joint);
    CHECK(joint.whole);
    check_waits(&ranks, &joint);
    ox_trace_ranks_close(&ranks);
}

int main(void) {
    ox_log_set_sink(on_line, NULL);
    make_head();
    test_one_machine();
    test_wrong_clock();
    test_left_out();
    test_missing_step();
    return test_end();
}
