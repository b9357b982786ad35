/* Every I/O fault at every call of a tiny run, once and from then on: the store reports it or repairs it, never gives
 * wrong data, and opens at the last commit afterwards. With one generation a reported fault may have lost the state,
 * and the store then says so.
 *
 *     test_store_faults [--count DRIVES]     on stores of 1 to DRIVES drives */
#include "tests/kit/store/store_kit.h"

#include <string.h>

#if defined(__SANITIZE_THREAD__)
enum { STRIDE = 4 };
#else
enum { STRIDE = 1 };
#endif
enum { STEPS = 3 };

static const struct ox_extent_spec extents[] = {{12288, 4096}, {4096, 0}, {8192, 8192}};

static uint32_t generations, kept; /* kept: steps that are kept before each commit */
static uint64_t injection_count, refused_count, noticed_count, repaired_count, torn_count;

struct rig {
    struct kit kit;
    struct ox_io_backend *sim, *fault;
};

static void rig_open(struct rig *rig, uint32_t drive_count) {
    REQUIRE_OK(ox_io_sim_open(3, &rig->sim));
    REQUIRE_OK(ox_io_fault_open(rig->sim, &rig->fault));
    kit_init(&rig->kit, rig->fault, "/sim", drive_count);
    rig->kit.config.extents = extents;
    rig->kit.config.extent_count = sizeof extents / sizeof *extents;
    rig->kit.config.generations = generations;
}

static void rig_close(struct rig *rig) {
    ox_io_fault_close(&rig->fault);
    ox_io_sim_close(&rig->sim);
}

/* What the run under faults saw. */
struct outcome {
    bool created;
    uint64_t done_step, tried_step;
    enum ox_status first;
    bool wrong, may_return; /* a step that was not committed may be there after a crash, says its failure */
};

static void note(struct outcome *outcome, enum ox_status status) {
    if (status != OX_OK && outcome->first == OX_OK) {
        outcome->first = status;
        CHECK(ox_error_text()[0] != '\0');
    }
    outcome->may_return |= status != OX_OK && strstr(ox_error_text(), "after a crash it may still be found") != NULL;
}

/* A short or interrupted transfer is repeated; a slow one only takes longer. */
static bool must_repair(const struct ox_fault_rule *rule) {
    const bool transfer = rule->point == OX_FAULT_ON_READ || rule->point == OX_FAULT_ON_WRITE;
    const bool passing = rule->kind == OX_FAULT_EAGAIN || rule->kind == OX_FAULT_EINTR || rule->kind == OX_FAULT_SHORT;
    return rule->kind == OX_FAULT_STALL || (transfer && passing && !rule->persistent);
}

/* A permanent failure must be reported, unless it hit something that has a copy or that nothing needed. */
static bool must_tell(const struct ox_fault_rule *rule) {
    const bool passing = rule->kind == OX_FAULT_EAGAIN || rule->kind == OX_FAULT_EINTR || rule->kind == OX_FAULT_SHORT;
    const bool loud = rule->kind <= OX_FAULT_SHORT;
    return loud && rule->point != OX_FAULT_ON_READ &&
           (rule->point != OX_FAULT_ON_WRITE || !passing || rule->persistent);
}

static uint64_t last_step(void) {
    return STEPS * (kept + UINT64_C(1));
}

/* Creates, steps and reads, and continues after failures as a trainer that retries would. */
static struct outcome scenario(const struct kit *kit) {
    struct outcome outcome = {0};
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    note(&outcome, ox_store_create(&kit->config, &store));
    if (store == NULL) {
        return outcome;
    }
    outcome.created = true;
    ox_store_close(&store);
    note(&outcome, ox_store_open(&kit->config, &store));
    if (store == NULL) {
        return outcome;
    }
    note(&outcome, ox_store_port_open(store, &port));
    for (uint64_t step = kept + 1; step <= last_step() && port != NULL; step += kept + 1) {
        outcome.tried_step = step;
        const enum ox_status status =
            kept > 0 ? kit_commit_after(store, port, step, kept, &outcome.wrong) : kit_commit(store, port, step);
        note(&outcome, status);
        if (status == OX_OK) {
            outcome.done_step = step;
        }
        struct ox_store_info info;
        ox_store_info(store, &info);
        CHECK(info.step == outcome.done_step);
        if (info.committed) {
            bool wrong = false;
            note(&outcome, kit_verify(store, port, info.step, &wrong));
            outcome.wrong |= wrong;
        }
    }
    ox_store_port_close(&port);
    ox_store_close(&store);
    return outcome;
}

/* One generation: a fault hit a transaction and was reported, and the store says what became of the state. */
static bool is_torn(const struct outcome *outcome, enum ox_status status) {
    char words[128];
    snprintf(words, sizeof words, "one generation (--store-generations 1) and was being rewritten at step %llu ",
             (unsigned long long)outcome->done_step + 1);
    return generations == 1 && outcome->first != OX_OK && outcome->done_step > 0 && status == OX_E_CORRUPT &&
           strstr(ox_error_text(), words) != NULL;
}

/* Checks the store after the faults. A silent fault may have damaged anything, but every damage must be found. */
static void inspect(const struct rig *rig, const struct outcome *outcome, const struct ox_fault_rule *rule,
                    bool cut) {
    const bool silent =
        rule->kind == OX_FAULT_TORN || rule->kind == OX_FAULT_LOST || rule->kind == OX_FAULT_MISDIRECT;
    if (cut) {
        ox_io_sim_power_cut(rig->sim);
    }
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    const enum ox_status status = ox_store_open(&rig->kit.config, &store);
    CHECK(!outcome->wrong);
    if (!outcome->created) {
        CHECK(status != OX_OK && strstr(ox_error_text(), "no such simulated file") != NULL);
        refused_count++;
        return;
    }
    noticed_count += outcome->first != OX_OK;
    repaired_count += outcome->first == OX_OK;
    CHECK(!must_repair(rule) || (outcome->first == OX_OK && outcome->done_step == last_step()));
    CHECK(!must_tell(rule) || outcome->first != OX_OK);
    const bool torn = is_torn(outcome, status);
    torn_count += torn;
    CHECK(silent || torn || status == OX_OK);
    if (status != OX_OK) {
        CHECK(status == OX_E_CORRUPT);
        return;
    }
    struct ox_store_info info;
    ox_store_info(store, &info);
    REQUIRE_OK(ox_store_port_open(store, &port));
    bool wrong = false;
    if (info.committed) {
        const enum ox_status read = kit_verify(store, port, info.step, &wrong);
        CHECK(!wrong && (silent || read == OX_OK));
    }
    CHECK(silent || info.step >= outcome->done_step);
    /* A step that was reported as not committed is gone, unless the drives refused even to undo it. */
    CHECK(silent || rule->persistent || generations == 1 || info.step == outcome->done_step);
    CHECK(silent || generations == 1 || (rule->persistent ? outcome->may_return || info.step == outcome->done_step
                                                          : !outcome->may_return));
    CHECK(info.step <= outcome->tried_step);
    /* When the drives work again, the next step succeeds. */
    REQUIRE_OK(kit_commit(store, port, last_step() + 1));
    REQUIRE_OK(kit_verify(store, port, last_step() + 1, &wrong));
    CHECK(!wrong);
    ox_store_port_close(&port);
    ox_store_close(&store);
}

static void sweep(enum ox_fault_kind kind, enum ox_fault_point point, bool persistent, uint32_t drive_count) {
    for (uint64_t idx = 0;; idx += STRIDE) {
        struct rig rig;
        rig_open(&rig, drive_count);
        const struct ox_fault_rule rule = {kind, point, idx, persistent};
        ox_io_fault_set(rig.fault, &rule);
        ox_io_fault_set_stall(rig.fault, 50 * 1000);
        const int failures = test_failure_count;
        const struct outcome outcome = scenario(&rig.kit);
        uint64_t calls = 0, hits = 0;
        ox_io_fault_counts(rig.fault, point, &calls, &hits);
        ox_io_fault_set(rig.fault, NULL);
        if (hits > 0) {
            injection_count++;
            /* A fault with an error must be reported, unless it hit something that exists twice. */
            inspect(&rig, &outcome, &rule, idx % 2 == 1 && kind <= OX_FAULT_SHORT);
        } else {
            CHECK(outcome.first == OX_OK && outcome.done_step == last_step());
        }
        if (test_failure_count > failures) {
            printf("kind %d, point %d, call %llu, persistent %d, %u drives, %u generations, %u kept\n", (int)kind,
                   (int)point, (unsigned long long)idx, persistent, drive_count, generations, kept);
        }
        rig_close(&rig);
        if (hits == 0) {
            break;
        }
    }
}

/* A read that returns wrong data once is repeated and counted; one that stays wrong is an error that names it. */
static void rereads(void) {
    struct rig rig;
    rig_open(&rig, 1);
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    struct ox_store_info info;
    bool wrong = false;
    REQUIRE_OK(ox_store_create(&rig.kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(kit_commit(store, port, 9));
    ox_io_fault_set(rig.fault, &(struct ox_fault_rule){OX_FAULT_TORN, OX_FAULT_ON_READ, 0, false});
    REQUIRE_OK(kit_verify(store, port, 9, &wrong));
    ox_store_info(store, &info);
    CHECK(!wrong && info.retry_count == 1);
    ox_io_fault_set(rig.fault, &(struct ox_fault_rule){OX_FAULT_MISDIRECT, OX_FAULT_ON_READ, 0, true});
    CHECK(kit_verify(store, port, 9, &wrong) == OX_E_CORRUPT);
    ox_store_info(store, &info);
    CHECK(info.retry_count == 1 + 3);
    CHECK(strstr(ox_error_text(), "/sim/offload-store-0.ox") != NULL);
    CHECK(strstr(ox_error_text(), "extent 0 of step 9") != NULL);
    ox_store_port_close(&port);
    ox_store_close(&store);
    rig_close(&rig);
}

static void matrix(uint32_t drives_max) {
    const enum ox_fault_kind kinds[] = {OX_FAULT_EIO,  OX_FAULT_ENOSPC,    OX_FAULT_EAGAIN,
                                        OX_FAULT_EINTR, OX_FAULT_SHORT, OX_FAULT_TORN,
                                        OX_FAULT_MISDIRECT, OX_FAULT_LOST, OX_FAULT_STALL};
    const enum ox_fault_point points[] = {OX_FAULT_ON_READ, OX_FAULT_ON_WRITE, OX_FAULT_ON_FLUSH,
                                          OX_FAULT_ON_ALLOCATE, OX_FAULT_ON_OPEN};
    for (uint32_t drive_count = 1; drive_count <= drives_max; drive_count++) {
        for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            for (unsigned j = 0; j < sizeof points / sizeof *points; j++) {
                sweep(kinds[i], points[j], false, drive_count);
                sweep(kinds[i], points[j], true, drive_count);
            }
        }
    }
    sweep(OX_FAULT_EIO, OX_FAULT_ON_WRITE, false, 2);
    sweep(OX_FAULT_EIO, OX_FAULT_ON_FLUSH, false, 2);
    sweep(OX_FAULT_LOST, OX_FAULT_ON_WRITE, false, 2);
    printf("%u generations, %u kept steps, %llu injections: %llu creations refused and cleaned up, %llu runs told of a "
           "failure, %llu repaired it, %llu states lost\n", generations, kept, (unsigned long long)injection_count,
           (unsigned long long)refused_count, (unsigned long long)noticed_count, (unsigned long long)repaired_count,
           (unsigned long long)torn_count);
    CHECK(injection_count > 800 / STRIDE && refused_count > 80 / STRIDE && noticed_count > 400 / STRIDE &&
          repaired_count > 400 / STRIDE);
    CHECK(generations >= 2 ? torn_count == 0 : torn_count > 40 / STRIDE);
    injection_count = refused_count = noticed_count = repaired_count = torn_count = 0;
}

int main(int argc, char **argv) {
    const uint32_t drives_max = (uint32_t)kit_count(argc, argv, 1);
    for (generations = 1; generations <= 2; generations++) {
        matrix(drives_max);
    }
    kept = 2;
    for (generations = 2; generations <= 3; generations++) {
        matrix(drives_max);
    }
    generations = 2;
    rereads();
    return test_end();
}
