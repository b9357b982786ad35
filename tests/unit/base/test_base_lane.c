/* Host lanes: order, waiting, polling, failure and its way through other lanes, chaos. Shared data is plain
 * where the lanes promise order, so that ThreadSanitizer reports a promise that is not kept. */
#include "base/lane.h"
#include "tests/kit/test.h"

#include <semaphore.h>
#include <string.h>

enum { LOG_LEN = 4096 };

/* The record that jobs write to; it owns every lane here. */
struct board {
    uint32_t log[LOG_LEN];
    uint32_t log_len;
    sem_t gate; /* held jobs pass it one by one */
};

struct job_args {
    uint32_t value;
    uint32_t expected_len; /* length of the log when the job starts; UINT32_MAX: any */
};

static enum ox_status log_value(void *owner, const void *args) {
    struct board *const board = owner;
    struct job_args job;
    memcpy(&job, args, sizeof job);
    if (job.expected_len != UINT32_MAX && board->log_len != job.expected_len) {
        return ox_fail(OX_E_CORRUPT, "job %u started after %u others, not %u", job.value, board->log_len,
                       job.expected_len);
    }
    board->log[board->log_len++] = job.value;
    return OX_OK;
}

static enum ox_status held_log_value(void *owner, const void *args) {
    struct board *const board = owner;
    while (sem_wait(&board->gate) != 0) {
    }
    return log_value(owner, args);
}

static enum ox_status fail_job(void *owner, const void *args) {
    (void)owner;
    uint32_t value = 0;
    memcpy(&value, args, sizeof value);
    return ox_fail(OX_E_IO, "job %u: made to fail", value);
}

static enum ox_status nothing(void *owner, const void *args) {
    (void)owner;
    (void)args;
    return OX_OK;
}

/* Fails unless its arguments are the 256 bytes i, i + 1, ... */
static enum ox_status check_args(void *owner, const void *args) {
    const unsigned char *const bytes = args;
    (void)owner;
    for (unsigned i = 0; i < OX_JOB_ARGS_BYTES; i++) {
        if (bytes[i] != (unsigned char)(bytes[0] + i)) {
            return ox_fail(OX_E_CORRUPT, "argument byte %u is wrong", i);
        }
    }
    return OX_OK;
}

static void board_init(struct board *board) {
    memset(board, 0, sizeof *board);
    sem_init(&board->gate, 0, 0);
}

static struct ox_lane *lane_new(const char *label, void *owner, uint32_t queue_len, uint64_t chaos_seed) {
    const struct ox_host_lane_config config = {
        .label = label,
        .owner = owner,
        .queue_len = queue_len,
        .chaos_seed = chaos_seed,
        .chaos_ns_max = 50000,
    };
    struct ox_lane *lane = NULL;
    REQUIRE_OK(ox_host_lane_open(&config, &lane));
    return lane;
}

static struct ox_mark submit(struct ox_lane *lane, ox_job_fn *fn, uint32_t value, uint32_t expected_len) {
    const struct job_args args = {.value = value, .expected_len = expected_len};
    struct ox_mark mark = {0};
    REQUIRE_OK(ox_host_lane_submit(lane, fn, &args, sizeof args, &mark));
    return mark;
}

static void test_order(void) {
    struct board board;
    board_init(&board);
    struct ox_lane *lane =
        lane_new("order", &board, 3, 0); /* far fewer places than jobs: submit must block */
    for (uint32_t i = 0; i < 1000; i++) {
        submit(lane, log_value, i, i);
    }
    REQUIRE_OK(ox_lane_drain(lane));
    CHECK(board.log_len == 1000);
    for (uint32_t i = 0; i < 1000; i++) {
        CHECK(board.log[i] == i);
    }
    struct ox_lane_stats stats;
    ox_lane_stats(lane, &stats);
    CHECK(stats.job_count == 1000 && stats.wait_ns == 0);
    ox_lane_close(&lane);
    CHECK(lane == NULL);
    ox_lane_close(&lane);
    sem_destroy(&board.gate);
}

static void test_args(void) {
    struct ox_lane *lane = lane_new("args", NULL, 4, 0);
    for (unsigned round = 0; round < 50; round++) {
        unsigned char args[OX_JOB_ARGS_BYTES];
        for (unsigned i = 0; i < sizeof args; i++) {
            args[i] = (unsigned char)(round + i);
        }
        REQUIRE_OK(ox_host_lane_submit(lane, check_args, args, sizeof args, NULL));
        memset(args, 0, sizeof args); /* the lane has its copy */
    }
    REQUIRE_OK(ox_host_lane_submit(lane, nothing, NULL, 0, NULL));
    REQUIRE_OK(ox_lane_drain(lane));
    ox_lane_close(&lane);
}

static void test_poll(void) {
    struct board board;
    board_init(&board);
    struct ox_lane *lane = lane_new("poll", &board, 8, 0);
    const struct ox_mark first = submit(lane, held_log_value, 1, UINT32_MAX);
    const struct ox_mark second = submit(lane, held_log_value, 2, UINT32_MAX);
    bool done = true;
    REQUIRE_OK(ox_mark_poll(first, &done));
    CHECK(!done);
    sem_post(&board.gate);
    REQUIRE_OK(ox_mark_join(first));
    REQUIRE_OK(ox_mark_poll(first, &done));
    CHECK(done);
    REQUIRE_OK(ox_mark_poll(second, &done));
    CHECK(!done);
    sem_post(&board.gate);
    REQUIRE_OK(ox_lane_drain(lane));
    REQUIRE_OK(ox_mark_poll(second, &done));
    CHECK(done);
    done = false;
    REQUIRE_OK(ox_mark_poll((struct ox_mark){0}, &done)); /* the empty mark */
    CHECK(done);
    REQUIRE_OK(ox_mark_join((struct ox_mark){0}));
    REQUIRE_OK(ox_lane_wait(lane, (struct ox_mark){0}));
    REQUIRE_OK(ox_lane_wait(lane, second)); /* its own past */
    ox_lane_close(&lane);
    sem_destroy(&board.gate);
}

/* `late` writes first, though its job is held until all work of `early` is queued. */
static void test_wait(void) {
    struct board board;
    board_init(&board);
    struct ox_lane *late = lane_new("late", &board, 8, 0), *early = lane_new("early", &board, 8, 0);
    for (uint32_t round = 0; round < 100; round++) {
        const struct ox_mark first = submit(late, held_log_value, 2 * round, 2 * round);
        REQUIRE_OK(ox_lane_wait(early, first));
        const struct ox_mark second = submit(early, log_value, 2 * round + 1, 2 * round + 1);
        REQUIRE_OK(ox_lane_wait(late, second)); /* the next round's job waits in turn */
        bool done = true;
        REQUIRE_OK(ox_mark_poll(second, &done));
        CHECK(!done);
        sem_post(&board.gate);
    }
    REQUIRE_OK(ox_lane_drain(late));
    REQUIRE_OK(ox_lane_drain(early));
    CHECK(board.log_len == 200);
    struct ox_lane_stats stats;
    ox_lane_stats(early, &stats);
    CHECK(stats.job_count == 100); /* a wait is no job */
    ox_lane_close(&early);
    ox_lane_close(&late);
    sem_destroy(&board.gate);
}

static void check_failed(enum ox_status status) {
    CHECK(status == OX_E_IO);
    CHECK(strcmp(ox_error_text(), "job 7: made to fail") == 0);
}

static void test_failure(void) {
    struct board board;
    board_init(&board);
    struct ox_lane *lane = lane_new("failure", &board, 16, 0);
    const struct ox_mark before = submit(lane, log_value, 1, 0);
    const struct ox_mark failed = submit(lane, fail_job, 7, 0);
    const struct ox_mark after = submit(lane, log_value, 2, UINT32_MAX);
    submit(lane, fail_job, 8, 0); /* the first failure wins */
    (void)ox_fail(OX_E_COMM, "something else");
    check_failed(ox_lane_drain(lane));
    CHECK(board.log_len == 1); /* what came after was skipped */
    REQUIRE_OK(ox_mark_join(before));
    (void)ox_fail(OX_E_COMM, "something else");
    check_failed(ox_mark_join(failed));
    (void)ox_fail(OX_E_COMM, "something else");
    check_failed(ox_mark_join(after));
    bool done = false;
    check_failed(ox_mark_poll(after, &done));
    CHECK(done);
    const struct ox_mark later = submit(lane, log_value, 3, UINT32_MAX); /* still skipping */
    check_failed(ox_mark_join(later));
    CHECK(board.log_len == 1);

    ox_lane_reset(lane);
    const struct ox_mark again = submit(lane, log_value, 4, 1);
    REQUIRE_OK(ox_mark_join(again));
    REQUIRE_OK(ox_lane_drain(lane));
    CHECK(board.log_len == 2 && board.log[1] == 4);
    ox_lane_close(&lane);
    sem_destroy(&board.gate);
}

/* A failure travels from lane to lane along the waits, with its text, and no further. */
static void test_propagation(void) {
    struct board boards[4];
    struct ox_lane *lanes[4];
    static const char *const labels[4] = {"first", "second", "third", "apart"};
    for (unsigned i = 0; i < 4; i++) {
        board_init(&boards[i]);
        lanes[i] = lane_new(labels[i], &boards[i], 8, 0);
    }
    const struct ox_mark early = submit(lanes[1], log_value, 1, 0);
    const struct ox_mark cause = submit(lanes[0], fail_job, 7, 0);
    REQUIRE_OK(ox_lane_wait(lanes[1], cause));
    const struct ox_mark middle = submit(lanes[1], log_value, 2, UINT32_MAX);
    REQUIRE_OK(ox_lane_wait(lanes[2], middle));
    const struct ox_mark last = submit(lanes[2], log_value, 3, UINT32_MAX);
    const struct ox_mark apart = submit(lanes[3], log_value, 4, 0);
    check_failed(ox_mark_join(last));
    check_failed(ox_mark_join(middle));
    check_failed(ox_mark_join(cause));
    REQUIRE_OK(ox_mark_join(early));
    REQUIRE_OK(ox_mark_join(apart));
    CHECK(boards[1].log_len == 1 && boards[2].log_len == 0 && boards[3].log_len == 1);
    for (unsigned i = 0; i < 3; i++) {
        check_failed(ox_lane_drain(lanes[i]));
        ox_lane_reset(lanes[i]);
    }
    REQUIRE_OK(ox_lane_drain(lanes[3]));
    const struct ox_mark fresh = submit(lanes[0], log_value, 5, 0);
    REQUIRE_OK(ox_lane_wait(lanes[2], fresh));
    REQUIRE_OK(ox_mark_join(submit(lanes[2], log_value, 6, 0)));
    CHECK(boards[0].log_len == 1);
    for (unsigned i = 0; i < 4; i++) {
        ox_lane_close(&lanes[i]);
        sem_destroy(&boards[i].gate);
    }
}

/* A lane that skips still waits: when it is drained, the work it waited for is over too. */
static void test_skip_waits(void) {
    struct board board, other_board;
    board_init(&board);
    board_init(&other_board);
    struct ox_lane *lane = lane_new("skipping", &board, 8, 0), *other = lane_new("other", &other_board, 8, 0);
    const struct ox_mark failed = submit(lane, fail_job, 7, 0);
    check_failed(ox_mark_join(failed));
    const struct ox_mark held = submit(other, held_log_value, 1, 0);
    REQUIRE_OK(ox_lane_wait(lane, held));
    const struct ox_mark skipped = submit(lane, log_value, 2, UINT32_MAX);
    bool done = true;
    REQUIRE_OK(ox_mark_poll(skipped, &done));
    CHECK(!done);
    sem_post(&other_board.gate);
    check_failed(ox_lane_drain(lane));
    REQUIRE_OK(ox_mark_poll(held, &done));
    CHECK(done && other_board.log_len == 1);
    ox_lane_close(&lane);
    ox_lane_close(&other);
    sem_destroy(&board.gate);
    sem_destroy(&other_board.gate);
}

/* Two lanes hand one number back and forth under random delays; delays change neither order nor result. */
static void test_chaos(uint64_t seed) {
    struct board board;
    board_init(&board);
    struct ox_lane *a = lane_new("a", &board, 4, seed), *b = lane_new("b", &board, 64, seed);
    struct ox_mark last_b = {0};
    for (uint32_t i = 0; i < 60; i += 2) {
        REQUIRE_OK(ox_lane_wait(a, last_b));
        const struct ox_mark last_a = submit(a, log_value, i, i);
        REQUIRE_OK(ox_lane_wait(b, last_a));
        last_b = submit(b, log_value, i + 1, i + 1);
    }
    REQUIRE_OK(ox_lane_drain(a));
    REQUIRE_OK(ox_lane_drain(b));
    CHECK(board.log_len == 60);
    ox_lane_close(&a);
    ox_lane_close(&b);
    sem_destroy(&board.gate);
}

/* Closing runs what is queued. */
static void test_close(void) {
    struct board board;
    board_init(&board);
    struct ox_lane *lane = lane_new("close", &board, 32, 5);
    for (uint32_t i = 0; i < 20; i++) {
        submit(lane, log_value, i, i);
    }
    ox_lane_close(&lane);
    CHECK(board.log_len == 20);
    sem_destroy(&board.gate);
}

struct observed {
    uint64_t count, last_seq, last_end_ns, waits, backward;
};

static void take_times(void *context, const struct ox_job_times *times) {
    struct observed *const seen = context;
    seen->count++;
    seen->waits += times->wait;
    seen->backward += times->seq != seen->last_seq + 1 || times->begin_ns < seen->last_end_ns ||
                      times->end_ns < times->begin_ns;
    seen->last_seq = times->seq;
    seen->last_end_ns = times->end_ns;
}

/* An observer sees every job and wait once, in order, before its mark is done; also those that are skipped. */
static void test_observer(void) {
    struct board board;
    board_init(&board);
    struct observed seen = {0};
    struct ox_lane *a = lane_new("a", &board, 8, 0), *b = lane_new("b", &board, 8, 0);
    ox_lane_observe(a, take_times, &seen);
    for (uint32_t i = 0; i < 5; i++) {
        REQUIRE_OK(ox_lane_wait(a, submit(b, nothing, i, 0)));
        REQUIRE_OK(ox_mark_join(submit(a, log_value, i, i)));
        CHECK(seen.count == 2 * (i + 1) && seen.waits == i + 1 && seen.last_seq == seen.count);
    }
    submit(a, fail_job, 0, 0);
    submit(a, log_value, 0, 0);
    CHECK(ox_lane_drain(a) == OX_E_IO);
    CHECK(seen.count == 12 && seen.backward == 0);
    ox_lane_reset(a);
    ox_lane_observe(a, NULL, NULL);
    REQUIRE_OK(ox_mark_join(submit(a, log_value, 0, 5)));
    CHECK(seen.count == 12);
    ox_lane_close(&a);
    ox_lane_close(&b);
    sem_destroy(&board.gate);
}

/* The first failure is kept with its text, whatever is recorded after it; success leaves no trace. */
static void test_first_failure(void) {
    struct ox_first_failure first = {0};
    ox_first_failure_note(&first, OX_OK);
    CHECK(ox_first_failure_result(&first) == OX_OK);
    ox_first_failure_note(&first, ox_fail(OX_E_IO, "the cause"));
    ox_first_failure_note(&first, ox_fail(OX_E_CORRUPT, "what follows from it"));
    ox_first_failure_note(&first, OX_OK);
    CHECK(ox_first_failure_result(&first) == OX_E_IO && strcmp(ox_error_text(), "the cause") == 0);
}

int main(void) {
    test_first_failure();
    test_order();
    test_args();
    test_poll();
    test_wait();
    test_failure();
    test_propagation();
    test_skip_waits();
    for (uint64_t seed = 1; seed <= 5; seed++) {
        test_chaos(seed);
    }
    test_close();
    test_observer();
    return test_end();
}
