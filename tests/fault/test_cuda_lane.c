/* Lanes of the CUDA device on the emulated runtime: order within a lane and across lanes, of the device and of the
 * host; issuing work never waits; and whichever call fails, its cause is reported everywhere, buffers are freed
 * and nothing is left behind. */
#include "base/clock.h"
#include "kernels/ops.h"
#include "tests/kit/device/simt_kit.h"
#include "tests/kit/test.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { COUNT = 1000, ROUNDS = 4, MARKS = 3 * ROUNDS, PAGE = 4096 };
enum { UP, COMPUTE, DOWN, DEVICE_LANES };

static const struct simt *simt;

/* ---- what the tests run on ------------------------------------------------------------------------------- */

struct rig {
    struct ox_device *device;
    struct ox_ops ops;
    struct ox_lane *lanes[DEVICE_LANES], *host;
    float *values;            /* pinned host memory */
    float *first, *second;    /* in device memory */
    struct ox_mark marks[DEVICE_LANES + 1][ROUNDS]; /* the last row is the host lane's */
};

static const uint64_t bytes = COUNT * sizeof(float);

static void rig_open(struct rig *rig, uint32_t device_idx) {
    static const char *const labels[DEVICE_LANES] = {"up", "compute", "down"};
    void *memory[2] = {NULL, NULL};
    *rig = (struct rig){0};
    const struct ox_cuda_config config = {.plugin_path = simt->kit.plugin, .device_idx = device_idx};
    REQUIRE_OK(ox_cuda_device_open(&config, &rig->device));
    ox_ops_init_cuda(rig->device, &rig->ops);
    for (int i = 0; i < DEVICE_LANES; i++) {
        REQUIRE_OK(ox_device_lane_open(rig->device, labels[i], &rig->lanes[i]));
    }
    REQUIRE_OK(ox_host_lane_open(&(struct ox_host_lane_config){.label = "host", .owner = rig, .queue_len = 64},
                                 &rig->host));
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(ox_device_mem_open(rig->device, bytes, &memory[i]));
    }
    rig->first = memory[0];
    rig->second = memory[1];
    rig->values = aligned_alloc(PAGE, PAGE);
    REQUIRE_OK(ox_device_host_pin(rig->device, rig->values, bytes));
}

/* A broken device unpins nothing, but the memory may be freed all the same. */
static void rig_close(struct rig *rig, bool broken) {
    ox_lane_close(&rig->host);
    for (int i = 0; i < DEVICE_LANES; i++) {
        ox_lane_close(&rig->lanes[i]);
    }
    CHECK((ox_device_host_unpin(rig->device, rig->values, bytes) == OX_OK) == !broken);
    free(rig->values);
    ox_device_mem_close(rig->device, rig->first, bytes);
    ox_device_mem_close(rig->device, rig->second, bytes);
    ox_device_close(&rig->device);
    CHECK(simt->device_bytes() == 0);
}

static enum ox_status copy(struct rig *rig, int lane, void *target, const void *source, struct ox_mark *done) {
    const struct ox_copy job = {.target = target, .source = source, .bytes = bytes};
    return ox_device_lane_copy(rig->device, rig->lanes[lane], &job, done);
}

/* ---- a small but whole workload ----------------------------------------------------------------------------- */

static enum ox_status add_one(void *owner, const void *args) {
    struct rig *const rig = owner;
    (void)args;
    for (int i = 0; i < COUNT; i++) {
        rig->values[i] += 1.0f;
    }
    return OX_OK;
}

/* x becomes 2x + 1, by all lanes: copied to the device, doubled there, copied back, one added on the host. */
static enum ox_status issue_round(struct rig *rig, int round) {
    struct ox_mark(*const marks)[ROUNDS] = rig->marks;
    const struct ox_op_add twice = {.target = rig->second, .a = rig->first, .b = rig->first, .count = COUNT};
    const struct ox_op_zero wipe = {.target = rig->first, .bytes = bytes};
    enum ox_status status = OX_OK;
    if (round > 0) {
        status = ox_lane_wait(rig->lanes[UP], marks[DEVICE_LANES][round - 1]);
    }
    if (status == OX_OK) {
        status = copy(rig, UP, rig->first, rig->values, &marks[UP][round]);
    }
    if (status == OX_OK) {
        status = ox_lane_wait(rig->lanes[COMPUTE], marks[UP][round]);
    }
    if (status == OX_OK) {
        status = OX_QUEUE(&rig->ops, rig->lanes[COMPUTE], add, &twice);
    }
    if (status == OX_OK) {
        status = OX_QUEUE(&rig->ops, rig->lanes[COMPUTE], zero, &wipe);
    }
    if (status == OX_OK) {
        status = rig->ops.mark(rig->lanes[COMPUTE], &marks[COMPUTE][round]);
    }
    if (status == OX_OK) {
        status = ox_lane_wait(rig->lanes[DOWN], marks[COMPUTE][round]);
    }
    if (status == OX_OK) {
        status = copy(rig, DOWN, rig->values, rig->second, &marks[DOWN][round]);
    }
    if (status == OX_OK) {
        status = ox_lane_wait(rig->host, marks[DOWN][round]);
    }
    return status == OX_OK ? ox_host_lane_submit(rig->host, add_one, NULL, 0, &marks[DEVICE_LANES][round]) : status;
}

/* All work is issued at once; the results show its order, whatever the lanes' speeds. */
static void issue_all(struct rig *rig) {
    for (int i = 0; i < COUNT; i++) {
        rig->values[i] = (float)i;
    }
    for (int round = 0; round < ROUNDS; round++) {
        REQUIRE_OK(issue_round(rig, round));
    }
}

static void check_values(const struct rig *rig) {
    int wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        wrong += rig->values[i] != (float)(i * (1 << ROUNDS) + (1 << ROUNDS) - 1);
    }
    CHECK(wrong == 0);
}

static void finish_all(struct rig *rig) {
    for (int lane = 0; lane <= DEVICE_LANES; lane++) {
        REQUIRE_OK(ox_mark_join(rig->marks[lane][ROUNDS - 1]));
    }
    check_values(rig);
}

static void run_well(struct rig *rig) {
    issue_all(rig);
    finish_all(rig);
}

/* ---- order ---------------------------------------------------------------------------------------------- */

/* Ordinary work allocates nothing, and only the host's own work waits for the device. */
static void test_order(void) {
    struct rig rig;
    struct simt_counts before, after;
    rig_open(&rig, 0);
    run_well(&rig);
    simt->count(&before);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        simt->set_delay(seed, 300000);
        run_well(&rig);
    }
    simt->set_delay(0, 0);
    simt->count(&after);
    CHECK(after.run - before.run == 3 * 4 * ROUNDS && after.queued > before.queued);
    CHECK(after.event_waits - before.event_waits == 3 * MARKS);
    CHECK(after.stalls == before.stalls && after.pageable == before.pageable && after.made == before.made);
    /* A check of the counters: a drain waits for the stream, a copy from memory that is not pinned for everything. */
    float *const unpinned = malloc(bytes);
    REQUIRE_OK(ox_lane_drain(rig.lanes[UP]));
    REQUIRE_OK(copy(&rig, UP, rig.first, unpinned, NULL));
    REQUIRE_OK(ox_lane_drain(rig.lanes[UP]));
    simt->count(&after);
    CHECK(after.stalls == before.stalls + 2 && after.pageable == before.pageable + 1);
    free(unpinned);
    rig_close(&rig, false);
}

/* A thread of a lane that did not name its device would work on the first one. */
static void test_second_device(void) {
    struct rig rig;
    simt->set_machine(2, 13000);
    rig_open(&rig, 1);
    run_well(&rig);
    rig_close(&rig, false);
    simt->set_machine(1, 13000);
}

/* ---- the host never waits ---------------------------------------------------------------------------------- */

/* Work of the host that waits until the test releases it. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool open, fails;
};

static enum ox_status pass_gate(void *owner, const void *args) {
    struct gate *gate;
    (void)owner;
    memcpy(&gate, args, sizeof gate);
    pthread_mutex_lock(&gate->lock);
    while (!gate->open) {
        pthread_cond_wait(&gate->opened, &gate->lock);
    }
    pthread_mutex_unlock(&gate->lock);
    return gate->fails ? ox_fail(OX_E_IO, "drive a: the first cause") : OX_OK;
}

static void close_gate(struct rig *rig, struct gate *gate, struct ox_mark *passed) {
    pthread_mutex_init(&gate->lock, NULL);
    pthread_cond_init(&gate->opened, NULL);
    REQUIRE_OK(ox_host_lane_submit(rig->host, pass_gate, &gate, sizeof gate, passed));
}

static void open_gate(struct gate *gate) {
    pthread_mutex_lock(&gate->lock);
    gate->open = true;
    pthread_cond_broadcast(&gate->opened);
    pthread_mutex_unlock(&gate->lock);
}

static void free_gate(struct gate *gate) {
    pthread_cond_destroy(&gate->opened);
    pthread_mutex_destroy(&gate->lock);
}

/* All work waits for a gate that opens when everything is issued: if a call waited, the test would not end. */
static void test_issue(void) {
    struct rig rig;
    struct gate gate = {0};
    struct ox_mark passed;
    struct simt_counts before, after;
    struct ox_lane_stats stats;
    bool done = true;
    rig_open(&rig, 0);
    const uint64_t begin_ns = ox_clock_ns();
    close_gate(&rig, &gate, &passed);
    REQUIRE_OK(ox_lane_wait(rig.lanes[UP], passed));
    simt->count(&before);
    issue_all(&rig);
    simt->count(&after);
    CHECK(after.run == before.run);
    for (int lane = 0; lane <= DEVICE_LANES; lane++) {
        REQUIRE_OK(ox_mark_poll(rig.marks[lane][0], &done));
        CHECK(!done);
    }
    open_gate(&gate);
    finish_all(&rig);
    const uint64_t wall_ns = ox_clock_ns() - begin_ns;
    for (int lane = 0; lane < DEVICE_LANES; lane++) {
        REQUIRE_OK(ox_mark_poll(rig.marks[lane][ROUNDS - 1], &done));
        ox_lane_stats(rig.lanes[lane], &stats);
        CHECK(done && stats.job_count == ROUNDS);
        CHECK(stats.busy_ns > 0 && stats.wait_ns > 0 && stats.busy_ns + stats.wait_ns <= wall_ns);
    }
    free_gate(&gate);
    rig_close(&rig, false);
}

/* What a lane's observer saw. */
struct seen {
    uint64_t count, end_ns;
    bool wrong;
};

static void see(void *context, const struct ox_job_times *times) {
    struct seen *const seen = context;
    seen->wrong |= times->seq != ++seen->count || times->begin_ns < seen->end_ns || times->end_ns < times->begin_ns ||
                   times->wait;
    seen->end_ns = times->end_ns;
}

struct issuer {
    struct rig *rig;
    int count;
    bool marks;
    atomic_int issued;
    struct ox_mark first, last;
};

/* Each copy reads what the copy before it wrote. */
static void *issue_many(void *context) {
    struct issuer *const issuer = context;
    struct rig *const rig = issuer->rig;
    for (int i = 0; i < issuer->count; i++) {
        float *const from = i % 2 == 0 ? rig->first : rig->second, *const to = i % 2 == 0 ? rig->second : rig->first;
        const struct ox_op_add op = {.target = to, .a = from, .b = rig->values, .count = 10};
        struct ox_mark mark = {0};
        REQUIRE_OK(OX_QUEUE(&rig->ops, rig->lanes[COMPUTE], add, &op));
        if (issuer->marks) {
            REQUIRE_OK(rig->ops.mark(rig->lanes[COMPUTE], &mark));
        }
        issuer->first = i == 0 ? mark : issuer->first;
        issuer->last = mark;
        atomic_fetch_add(&issuer->issued, 1);
    }
    return NULL;
}

/* A full queue blocks only its own producer, which then continues where it was. */
static void test_full(bool marks) {
    enum { MANY = 3000, NEARLY = 500, QUEUE = 1024 };
    struct rig rig;
    struct gate gate = {0};
    struct seen seen = {0};
    struct ox_mark passed;
    struct ox_lane_stats stats;
    struct simt_counts before, after;
    pthread_t thread;
    struct issuer issuer = {.rig = &rig, .count = MANY, .marks = marks};
    rig_open(&rig, 0);
    for (int i = 0; i < COUNT; i++) {
        rig.values[i] = 1.0f;
    }
    REQUIRE_OK(OX_QUEUE(&rig.ops, rig.lanes[COMPUTE], zero, &(struct ox_op_zero){.target = rig.first, .bytes = bytes}));
    ox_lane_observe(rig.lanes[COMPUTE], see, &seen);
    close_gate(&rig, &gate, &passed);
    REQUIRE_OK(ox_lane_wait(rig.lanes[COMPUTE], passed));
    simt->count(&before);
    CHECK(pthread_create(&thread, NULL, issue_many, &issuer) == 0);
    while (atomic_load(&issuer.issued) < NEARLY) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    CHECK(atomic_load(&issuer.issued) <= QUEUE + 1);
    open_gate(&gate);
    pthread_join(thread, NULL);
    /* A mark is done for its waiters even when its event has been reused by a later mark. */
    REQUIRE_OK(ox_lane_wait(rig.lanes[DOWN], issuer.first));
    REQUIRE_OK(ox_lane_wait(rig.lanes[DOWN], issuer.last));
    REQUIRE_OK(rig.ops.mark(rig.lanes[COMPUTE], &passed));
    REQUIRE_OK(ox_lane_wait(rig.lanes[DOWN], passed));
    REQUIRE_OK(copy(&rig, DOWN, rig.values, MANY % 2 == 0 ? rig.first : rig.second, &passed));
    REQUIRE_OK(ox_mark_join(passed));
    CHECK(rig.values[0] == (float)MANY && rig.values[9] == (float)MANY);
    simt->count(&after);
    CHECK(after.made == before.made && after.stalls == before.stalls);
    REQUIRE_OK(ox_lane_drain(rig.lanes[COMPUTE]));
    ox_lane_stats(rig.lanes[COMPUTE], &stats);
    CHECK(stats.job_count == (marks ? MANY + 1 : 1) && seen.count == stats.job_count && !seen.wrong);
    free_gate(&gate);
    rig_close(&rig, false);
}

/* ---- failures -------------------------------------------------------------------------------------------- */

/* Checks that the error is one sentence about the device that names the lane. */
static bool is_useful(const char *text, const char *what) {
    return strncmp(text, "lane ", 5) == 0 && strstr(text, "GPU") != NULL && strstr(text, what) != NULL &&
           strstr(text, "dmesg") != NULL && strchr(text, '\n') == NULL;
}

/* After a lane's first failed mark all later ones fail; with `one_cause` they report the same cause. Returns how many
 * failed. */
static int check_marks(struct rig *rig, const char *what, bool one_cause) {
    char text[OX_ERROR_TEXT_BYTES] = "";
    int failed = 0;
    for (int lane = 0; lane <= DEVICE_LANES; lane++) {
        bool before = false;
        for (int round = 0; round < ROUNDS; round++) {
            const enum ox_status status = ox_mark_join(rig->marks[lane][round]);
            CHECK(!before || status != OX_OK);
            before = status != OX_OK;
            failed += before;
            if (before && text[0] == '\0') {
                snprintf(text, sizeof text, "%s", ox_error_text());
                CHECK(is_useful(text, what));
            }
            CHECK(!before || (status == OX_E_DEVICE && is_useful(ox_error_text(), what)));
            CHECK(!before || !one_cause || strcmp(text, ox_error_text()) == 0);
        }
    }
    return failed;
}

/* Drains all lanes, the host's included, and returns how many fail. */
static int drain_all(struct rig *rig) {
    int failed = ox_lane_drain(rig->host) != OX_OK;
    for (int i = 0; i < DEVICE_LANES; i++) {
        failed += ox_lane_drain(rig->lanes[i]) != OX_OK;
    }
    return failed;
}

/* The n-th call that queues something on a stream fails; then the lanes are used again, or closed at once. */
static void test_calls(bool reused) {
    struct rig rig;
    rig_open(&rig, 0);
    uint64_t calls = 0;
    for (int failed = 1; failed > 0;) {
        calls += reused ? 1 : 5; /* a device takes its time to open */
        simt->fail_after(calls);
        issue_all(&rig);
        failed = check_marks(&rig, "unspecified launch failure", true);
        simt->fail_after(0);
        CHECK((drain_all(&rig) > 0) == (failed > 0));
        if (failed > 0 && reused) {
            ox_lane_reset(rig.host);
            for (int i = 0; i < DEVICE_LANES; i++) {
                ox_lane_reset(rig.lanes[i]);
            }
            run_well(&rig);
        } else if (failed > 0) {
            rig_close(&rig, false);
            rig_open(&rig, 0);
        }
    }
    check_values(&rig);
    /* calls per round: two copies, an operation, a fill, two waits, and two events of each lane */
    CHECK(!reused || calls == (4 + 2 + 2 * DEVICE_LANES) * ROUNDS + 1);
    rig_close(&rig, false);
}

/* The n-th piece of work breaks the device while it runs: nothing works after that, but every call returns. */
static void test_breaks(void) {
    enum { PIECES = 4 * ROUNDS };
    for (uint64_t piece = 1; piece <= PIECES; piece += 3) {
        struct rig rig;
        void *memory = &rig;
        rig_open(&rig, 0);
        simt->break_after(piece);
        issue_all(&rig);
        CHECK(check_marks(&rig, "illegal memory access", false) > 0);
        CHECK(drain_all(&rig) >= DEVICE_LANES);
        CHECK(ox_device_mem_open(rig.device, bytes, &memory) == OX_E_DEVICE && memory == NULL);
        rig_close(&rig, true);
        simt->break_after(0);
    }
}

/* Lanes that are closed while work is queued, with and without a failure. */
static void test_close(uint64_t fail_after) {
    struct rig rig;
    rig_open(&rig, 0);
    simt->set_delay(5, 200000);
    simt->fail_after(fail_after);
    issue_all(&rig);
    for (int i = 0; i < DEVICE_LANES; i++) { /* no lane may close before those that wait for it */
        CHECK((ox_mark_join(rig.marks[i][ROUNDS - 1]) == OX_OK) == (fail_after == 0));
    }
    const struct ox_op_add op = {.target = rig.second, .a = rig.first, .b = rig.first, .count = COUNT};
    for (int i = 0; i < 20; i++) {
        struct ox_mark mark;
        REQUIRE_OK(OX_QUEUE(&rig.ops, rig.lanes[COMPUTE], add, &op));
        REQUIRE_OK(rig.ops.mark(rig.lanes[COMPUTE], &mark));
    }
    rig_close(&rig, false);
    simt->set_delay(0, 0);
    simt->fail_after(0);
}

/* A failure of the host's lane crosses the device with its text. */
static void test_foreign_failure(void) {
    struct rig rig;
    struct gate gate = {.open = true, .fails = true};
    struct ox_mark passed, mark;
    rig_open(&rig, 0);
    close_gate(&rig, &gate, &passed);
    REQUIRE_OK(ox_lane_wait(rig.lanes[UP], passed));
    REQUIRE_OK(copy(&rig, UP, rig.first, rig.values, &mark));
    REQUIRE_OK(ox_lane_wait(rig.lanes[DOWN], mark));
    REQUIRE_OK(copy(&rig, DOWN, rig.values, rig.first, &mark));
    CHECK(ox_mark_join(mark) == OX_E_IO && strcmp(ox_error_text(), "drive a: the first cause") == 0);
    CHECK(ox_lane_drain(rig.lanes[UP]) == OX_E_IO && ox_lane_drain(rig.lanes[DOWN]) == OX_E_IO);
    free_gate(&gate);
    rig_close(&rig, false);
}

/* Work that was queued before the failed call has run when the mark is done: its buffers are free. */
static void test_buffers_come_back(void) {
    enum { DELAY_NS = 20000000 };
    struct rig rig;
    struct ox_mark mark;
    rig_open(&rig, 0);
    memset(rig.values, 0, bytes);
    REQUIRE_OK(copy(&rig, UP, rig.first, rig.values, &mark));
    REQUIRE_OK(ox_mark_join(mark));
    memset(rig.values, 1, bytes);
    simt->set_delay(3, DELAY_NS);
    simt->fail_after(3); /* the span's event, the first copy, the second */
    REQUIRE_OK(copy(&rig, UP, rig.values, rig.first, NULL));
    REQUIRE_OK(copy(&rig, UP, rig.first, rig.values, &mark));
    CHECK(ox_mark_join(mark) == OX_E_DEVICE);
    CHECK(rig.values[0] == 0.0f && rig.values[COUNT - 1] == 0.0f);
    simt->set_delay(0, 0);
    rig_close(&rig, false);
}

/* ---- memory of the device is not the host's --------------------------------------------------------------- */

static sigjmp_buf after_fault;

static void on_fault(int signal) {
    (void)signal;
    siglongjmp(after_fault, 1);
}

static bool host_reads(const volatile float *at) {
    struct sigaction action = {.sa_handler = on_fault}, before;
    volatile bool read = false;
    sigaction(SIGSEGV, &action, &before);
    simt->guard(true);
    if (sigsetjmp(after_fault, 1) == 0) {
        (void)*at;
        read = true;
    }
    simt->guard(false);
    sigaction(SIGSEGV, &before, NULL);
    return read;
}

static void test_guard(void) {
    struct rig rig;
    rig_open(&rig, 0);
    CHECK(host_reads(rig.values) && !host_reads(rig.first) && !host_reads(rig.second + COUNT - 1));
    simt->guard(true);
    run_well(&rig);
    for (int i = 0; i < DEVICE_LANES; i++) {
        REQUIRE_OK(ox_lane_drain(rig.lanes[i]));
    }
    simt->guard(false);
    rig_close(&rig, false);
}

int main(void) {
    simt = simt_open();
    test_order();
    test_second_device();
    test_issue();
    test_full(true);
    test_full(false);
    test_calls(true);
    test_calls(false);
    test_breaks();
    test_close(0);
    test_close(20);
    test_foreign_failure();
    test_buffers_come_back();
    test_guard();
    return test_end();
}
