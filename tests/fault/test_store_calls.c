/* A store on real files where system calls go wrong (tests/kit/calls.h): every call that the threads backend makes
 * fails, is cut short, is interrupted or takes long, at every index, once and from then on. Each run ends whole after a
 * retry or in an error that names file and cause, and the files then hold the last commit.
 *
 * A temporary fault leaves no trace: a short or interrupted transfer that happens once is repaired. A flush that failed
 * is not repeated as if it could still succeed. After creation and removal the folder itself is synced. */
#include "tests/kit/calls.h"
#include "tests/kit/store/store_kit.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
enum { STRIDE = 4 };
#else
enum { STRIDE = 1 };
#endif
enum { STEPS = 3, EXTENT_COUNT = 3 };

static const struct ox_extent_spec extents[EXTENT_COUNT] = {{12288, 4096}, {4096, 0}, {8192, 8192}};

/* ---- the run ----------------------------------------------------------------------------------------- */

static const enum call points[] = {CALL_OPEN, CALL_LOCK,  CALL_ALLOCATE, CALL_TRUNCATE, CALL_STAT,
                                   CALL_SYNC, CALL_FLUSH, CALL_READ,     CALL_WRITE};

static struct kit kit;
static struct call_rule rule;
static uint64_t injection_count, repaired_count, told_count;

static bool is_in_store(const char *path) {
    return strncmp(path, kit.folders[0], strlen(kit.folders[0])) == 0;
}

struct outcome {
    bool created;
    uint64_t done_step;
    enum ox_status first;
    char text[OX_ERROR_TEXT_BYTES];
};

static void note(struct outcome *outcome, enum ox_status status) {
    if (status != OX_OK && outcome->first == OX_OK) {
        outcome->first = status;
        snprintf(outcome->text, sizeof outcome->text, "%s", ox_error_text());
    }
}

/* What was committed is there, or the fault is told. */
static void reopen(struct outcome *outcome) {
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    struct ox_store_info info;
    bool wrong = false;
    note(outcome, ox_store_open(&kit.config, &store));
    if (store == NULL) {
        return;
    }
    const bool is_over = !rule.persistent && calls_seen->hits > 0; /* else a read below may fail */
    REQUIRE_OK(ox_store_port_open(store, &port));
    ox_store_info(store, &info);
    CHECK(info.step >= outcome->done_step);
    if (info.committed) {
        const enum ox_status status = kit_verify(store, port, info.step, &wrong);
        note(outcome, status);
        CHECK(!wrong && (!is_over || status == OX_OK));
    }
    ox_store_port_close(&port);
    ox_store_close(&store);
}

static void steps(struct outcome *outcome) {
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    note(outcome, ox_store_create(&kit.config, &store));
    outcome->created = store != NULL;
    if (store == NULL) {
        return;
    }
    ox_store_close(&store);
    note(outcome, ox_store_open(&kit.config, &store));
    if (store == NULL) {
        return;
    }
    REQUIRE_OK(ox_store_port_open(store, &port));
    for (uint64_t step = 1; step <= STEPS; step++) {
        bool wrong = false;
        struct ox_store_info info;
        const enum ox_status status = kit_commit(store, port, step);
        note(outcome, status);
        outcome->done_step = status == OX_OK ? step : outcome->done_step;
        ox_store_info(store, &info);
        CHECK(info.step == outcome->done_step);
        if (info.committed) {
            note(outcome, kit_verify(store, port, info.step, &wrong));
            CHECK(!wrong);
        }
    }
    ox_store_port_close(&port);
    ox_store_close(&store);
    reopen(outcome);
}

/* The faults are over. */
static void inspect(const struct outcome *outcome) {
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    struct ox_store_info info;
    bool wrong = false;
    if (!outcome->created) {
        CHECK(!ox_store_exists(kit.folders[0]) || rule.persistent);
        return;
    }
    const bool single = kit.config.generations == 1;
    const enum ox_status status = ox_store_open(&kit.config, &store);
    if (single && outcome->first != OX_OK && status == OX_E_CORRUPT) {
        CHECK(strstr(ox_error_text(), "one generation (--store-generations 1) and was being rewritten at") != NULL);
        return;
    }
    REQUIRE_OK(status);
    REQUIRE_OK(ox_store_port_open(store, &port));
    ox_store_info(store, &info);
    CHECK(info.step >= outcome->done_step && (single || rule.persistent || info.step == outcome->done_step));
    if (info.committed) {
        REQUIRE_OK(kit_verify(store, port, info.step, &wrong));
        CHECK(!wrong);
    }
    REQUIRE_OK(kit_commit(store, port, STEPS + 1));
    ox_store_port_close(&port);
    ox_store_close(&store);
}

/* The store repeats a short or interrupted transfer, and waits on for a lock or for space after a signal. */
static bool must_repair(void) {
    const bool interrupted = rule.fault == CALL_FAILS && (rule.error == EINTR || rule.error == EAGAIN);
    if (rule.fault == CALL_STALLS) {
        return true;
    }
    if (rule.persistent) {
        return false;
    }
    switch (rule.call) {
    case CALL_READ:
    case CALL_WRITE: return interrupted || rule.fault == CALL_IS_SHORT;
    case CALL_LOCK: return interrupted;
    default: return rule.call == CALL_ALLOCATE && interrupted && rule.error == EINTR;
    }
}

static void check_outcome(const struct outcome *outcome) {
    injection_count++;
    repaired_count += outcome->first == OX_OK;
    told_count += outcome->first != OX_OK;
    CHECK(!must_repair() || (outcome->first == OX_OK && outcome->done_step == STEPS));
    if (outcome->first != OX_OK) {
        CHECK(strstr(outcome->text, "offload-store-0.ox") != NULL || strstr(outcome->text, test_folder()) != NULL ||
              strstr(outcome->text, kit.folders[0]) != NULL);
    }
    CHECK(calls_seen->repeated_syncs == 0);
}

/* A removed store does not come back after a power cut, when run.json may name another run already. */
static void remove_store(void) {
    const struct call_rule none = {.call = CALL_SYNC, .idx = UINT64_MAX}, fails = {.call = CALL_SYNC, .error = EIO};
    const bool exists = ox_store_exists(kit.folders[0]), must_fail = exists && injection_count % 2 == 1;
    calls_set(must_fail ? &fails : &none);
    calls_arm(true);
    const enum ox_status status = ox_store_remove(kit.folders, 1);
    calls_arm(false);
    CHECK(status == (must_fail ? OX_E_IO : OX_OK) && !ox_store_exists(kit.folders[0]));
    CHECK(!exists || calls_seen->folder_syncs > 0);
}

/* Returns false if there was no call of that index. */
static bool inject(void) {
    struct outcome outcome = {0};
    const int failures = test_failure_count;
    calls_set(&rule);
    calls_arm(true);
    steps(&outcome);
    calls_arm(false);
    const bool any = calls_seen->hits > 0;
    if (any) {
        check_outcome(&outcome);
    } else {
        CHECK(outcome.first == OX_OK && outcome.done_step == STEPS);
    }
    CHECK(!outcome.created || calls_seen->folder_syncs > 0);
    inspect(&outcome);
    remove_store();
    if (test_failure_count > failures) {
        printf("%s, fault %d, %s, call %llu, %s: %s\n", call_names[rule.call], (int)rule.fault, strerror(rule.error),
               (unsigned long long)rule.idx, rule.persistent ? "from then on" : "once", outcome.text);
    }
    return any;
}

/* Waiting for a lock that never comes takes seconds; once is enough. */
static bool too_slow(void) {
    const bool waits = rule.call == CALL_LOCK && rule.persistent && rule.fault == CALL_FAILS;
    return waits && (rule.error == EAGAIN || (rule.error == EINTR && rule.idx > 0));
}

static void sweep_call(enum call call, enum call_fault fault, int error) {
    for (int persistent = 0; persistent < 2; persistent++) {
        rule = (struct call_rule){.call = call, .fault = fault, .error = error, .persistent = persistent == 1};
        rule.multiple = 512; /* transfers past the page cache stay aligned */
        while (!too_slow() && inject()) {
            rule.idx += STRIDE;
        }
        CHECK(rule.idx > 0 || too_slow());
    }
}

static void sweep(enum call_fault fault, int error) {
    for (unsigned i = 0; i < sizeof points / sizeof *points; i++) {
        const bool is_transfer = points[i] == CALL_READ || points[i] == CALL_WRITE;
        sweep_call(points[i], fault, fault == CALL_IS_SHORT && is_transfer ? 0 : error);
    }
}

int main(void) {
    /* A folder in memory is enough: the test is about results of calls, not about what a drive keeps. */
    char folder[64] = "/dev/shm/offload-calls-XXXXXX";
    const bool in_memory = mkdtemp(folder) != NULL;
    kit_init(&kit, ox_io_threads(), in_memory ? folder : test_folder(), 1);
    calls_options.picks = is_in_store;
    kit.config.extents = extents;
    kit.config.extent_count = EXTENT_COUNT;
    const int errnos[] = {EIO, ENOSPC, EAGAIN, EINTR};
    for (unsigned i = 0; i < sizeof errnos / sizeof *errnos; i++) {
        sweep(CALL_FAILS, errnos[i]);
    }
    sweep(CALL_IS_SHORT, EIO);
    sweep(CALL_STALLS, 0);
    /* With one generation the calls between create and close differ. */
    kit.config.generations = 1;
    sweep_call(CALL_WRITE, CALL_FAILS, EIO);
    sweep_call(CALL_FLUSH, CALL_FAILS, EIO);
    /* Without fallocate, zeros are written in its place. */
    kit.config.generations = 2;
    calls_options.refuses_allocate = true;
    sweep_call(CALL_WRITE, CALL_FAILS, ENOSPC);
    sweep_call(CALL_WRITE, CALL_FAILS, EINTR);
    sweep_call(CALL_WRITE, CALL_IS_SHORT, 0);
    if (in_memory) {
        rmdir(folder);
    }
    printf("%llu injections: %llu repaired, %llu told\n", (unsigned long long)injection_count,
           (unsigned long long)repaired_count, (unsigned long long)told_count);
    CHECK(injection_count > 600 / STRIDE && repaired_count > 200 / STRIDE && told_count > 400 / STRIDE);
    return test_end();
}
