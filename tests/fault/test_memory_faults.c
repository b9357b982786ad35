/* Memory runs out in the store, its backends, and the proof of a plan: each allocation in turn fails, once and from
 * then on. The work ends as without the fault, or in OX_E_NOMEM with a text; what was on the drives is there
 * afterwards. */
#include "nvme/store.h"
#include "offload/proof/proof.h"
#include "tests/kit/calls.h"
#include "tests/kit/plan/plan_sample.h"
#include "tests/kit/store/store_kit.h"

#include <string.h>
#include <unistd.h>

static struct kit kit;
static struct call_rule rule;
static uint64_t tried, told;

/* Repeats the work with each allocation failing in turn, until it makes fewer than that. */
static void sweep(const char *name, enum ox_status (*work)(void *), void (*inspect)(enum ox_status), void *context) {
    for (int persistent = 0; persistent < 2; persistent++) {
        rule = (struct call_rule){.call = CALL_MEMORY, .fault = CALL_FAILS, .persistent = persistent == 1};
        bool any = true;
        for (; any; rule.idx++) {
            const int failures = test_failure_count;
            calls_set(&rule);
            calls_arm(true);
            const enum ox_status status = work(context);
            calls_arm(false);
            any = calls_seen->hits > 0;
            CHECK(status == OX_OK || (any && status == OX_E_NOMEM && ox_error_text()[0] != '\0'));
            tried += any;
            told += status != OX_OK;
            inspect(status);
            if (test_failure_count > failures) {
                printf("%s, allocation %llu, %s: %s %s\n", name, (unsigned long long)rule.idx,
                       persistent ? "from then on" : "once", ox_status_name(status), ox_error_text());
            }
        }
        CHECK(rule.idx > 1);
    }
}

/* ---- a store ----------------------------------------------------------------------------------------- */

enum { PIECES = 64 }; /* of a spool: more than the table of their checksums has room for at first */

static void *buffer;

static enum ox_status spool(struct ox_store_port *port) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < PIECES && status == OX_OK; i++) {
        const struct ox_store_op op = {.kind = OX_STORE_SPOOL_WRITE, .buffer = buffer, .spool_from = i * 4096ull,
                                       .spool_len = 4096};
        status = ox_store_run(port, &op, 1);
    }
    return status;
}

static enum ox_status use(struct ox_store *store) {
    struct ox_store_port *port = NULL;
    bool wrong = false;
    enum ox_status status = ox_store_port_open(store, &port);
    if (status != OX_OK) {
        CHECK(port == NULL);
        return status;
    }
    const struct ox_io_region region = {buffer, 4096};
    ox_store_port_register(port, &region, 1);
    OX_THEN(status, spool(port));
    calls_arm(false); /* the kit has buffers of its own */
    OX_THEN(status, kit_commit(store, port, 1));
    OX_THEN(status, kit_verify(store, port, 1, &wrong));
    CHECK(!wrong);
    calls_arm(true);
    ox_store_port_close(&port);
    return status;
}

static enum ox_status work_store(void *context) {
    (void)context;
    struct ox_store *store = NULL;
    struct ox_store_offer offer;
    enum ox_status status = ox_store_create(&kit.config, &store);
    CHECK((store != NULL) == (status == OX_OK));
    if (store != NULL) {
        ox_store_close(&store);
    }
    OX_THEN(status, ox_store_look(&kit.config, &offer));
    OX_THEN(status, ox_store_open(&kit.config, &store));
    CHECK((store != NULL) == (status == OX_OK));
    if (store != NULL) {
        status = use(store);
        ox_store_close(&store);
    }
    return status;
}

/* A store that was created is whole, and one that was not left nothing behind, or what it could not remove is told. */
static void inspect_store(enum ox_status status) {
    struct ox_store *store = NULL;
    if (status != OX_OK && strstr(ox_error_text(), "could not be removed") != NULL) {
        REQUIRE_OK(ox_store_remove(kit.folders, kit.config.drive_count));
    } else if (ox_store_exists(kit.folders[0])) {
        REQUIRE_OK(ox_store_open(&kit.config, &store));
        ox_store_close(&store);
        REQUIRE_OK(ox_store_remove(kit.folders, kit.config.drive_count));
    } else {
        CHECK(status != OX_OK);
    }
    CHECK(!ox_store_exists(kit.folders[0]));
}

static void test_store(const struct ox_io_backend *backend, const char *folder, uint32_t generations) {
    static const uint64_t spool_bytes[] = {PIECES * 4096ull};
    kit_init(&kit, backend, folder, 2);
    for (uint32_t i = 0; i < kit.config.drive_count; i++) {
        kit.bytes_max[i] = 8 * OX_MIB;
    }
    kit.config.spool_bytes = spool_bytes;
    kit.config.spool_count = 1;
    kit.config.generations = generations;
    sweep(backend->name, work_store, inspect_store, NULL);
}

/* ---- a proof ------------------------------------------------------------------------------------------ */

struct proven {
    struct plan_sample sample;
    struct ox_plans plans;
};

static enum ox_status work_proof(void *context) {
    const struct proven *const proven = context;
    return ox_proof_check(proven->plans.train, &proven->sample.in);
}

static void inspect_proof(enum ox_status status) {
    (void)status;
}

static void test_proof(void) {
    static struct proven proven;
    struct plan_sample *const s = &proven.sample;
    uint64_t seed = 1;
    for (bool fits = false; !fits; seed++) {
        plan_sample_draw(s, seed);
        fits = ox_placement_choose(&s->in, &s->table, &s->request, &s->setup, &proven.plans) == OX_OK;
        if (!fits) {
            ox_plans_close(&proven.plans);
            ox_shard_table_close(&s->table);
        }
    }
    sweep("proof", work_proof, inspect_proof, &proven);
    ox_plans_close(&proven.plans);
    ox_shard_table_close(&s->table);
}

int main(void) {
    if (!calls_memory_spare_json()) {
        printf("skipped: this build's allocator cannot be taken over\n");
        return 77;
    }
    buffer = kit_buffer(4096);
    /* A folder in memory is enough, and freed space is not given back to a drive there, which takes long. */
    char in_memory[64] = "/dev/shm/offload-memory-XXXXXX";
    const char *const folder = mkdtemp(in_memory) != NULL ? in_memory : test_folder();
    test_store(ox_io_threads(), folder, 2);
    test_store(ox_io_threads(), folder, 1);
    test_store(ox_io_uring(), folder, 2);
    test_proof();
    rmdir(in_memory);
    free(buffer);
    printf("%llu allocations failed, %llu times told\n", (unsigned long long)tried, (unsigned long long)told);
    CHECK(tried > 100 && told > 50);
    return test_end();
}
