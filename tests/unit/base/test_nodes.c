/* Memory nodes: what is read of the machine, threads bound to nodes, memory placed on them. The nodes of the tests are
 * made up where the machine has only one. */
#include "base/arena.h"
#include "base/bytes.h"
#include "base/nodes.h"
#include "base/pool.h"
#include "tests/kit/test.h"

#include <numaif.h>
#include <stdbool.h>
#include <string.h>

enum { THREADS = 5 };

static void test_read(void) {
    static struct ox_nodes nodes;
    cpu_set_t allowed, seen;
    CPU_ZERO(&allowed);
    CPU_ZERO(&seen);
    REQUIRE_OK(sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? OX_OK : ox_fail(OX_E_IO, "no affinity"));
    ox_nodes_read(&nodes);
    CHECK(nodes.count >= 1 && nodes.count <= OX_NODES_MAX);
    for (uint32_t i = 0; i < nodes.count; i++) {
        cpu_set_t both;
        CPU_AND(&both, &seen, &nodes.cpus[i]);
        CHECK(CPU_COUNT(&both) == 0);
        CHECK(CPU_COUNT(&nodes.cpus[i]) > 0);
        CHECK(i == 0 || nodes.ids[i] > nodes.ids[i - 1]);
        CPU_OR(&seen, &seen, &nodes.cpus[i]);
    }
    CHECK(CPU_EQUAL(&seen, &allowed));
    char text[OX_NODES_TEXT_BYTES];
    printf("%s\n", ox_nodes_text(&nodes, text));
    CHECK(strstr(text, nodes.count == 1 ? "one memory node" : "memory nodes") != NULL);
}

/* Two nodes of one processor each, the same one where there is no other. */
static void make_up(struct ox_nodes *nodes) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    memset(nodes, 0, sizeof *nodes);
    CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    nodes->count = 2;
    int found = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++) {
        if (CPU_ISSET(cpu, &allowed)) {
            for (int node = found; node < 2; node++) {
                CPU_ZERO(&nodes->cpus[node]);
                CPU_SET(cpu, &nodes->cpus[node]);
            }
            found++;
        }
    }
}

struct seen {
    cpu_set_t cpus[THREADS];
};

static void look(void *context, uint32_t idx, uint32_t count) {
    struct seen *const seen = context;
    (void)count;
    CPU_ZERO(&seen->cpus[idx]);
    if (sched_getaffinity(0, sizeof seen->cpus[idx], &seen->cpus[idx]) != 0) {
        CPU_ZERO(&seen->cpus[idx]);
    }
}

static void test_threads(void) {
    static struct ox_nodes one, two;
    static struct seen before, after;
    struct ox_pool *pool = NULL;
    ox_nodes_read(&one);
    make_up(&two);
    if (one.count == 1) {
        REQUIRE_OK(ox_pool_open_on(&one, THREADS, &pool));
        ox_pool_run(pool, look, &before);
        for (uint32_t i = 0; i < THREADS; i++) {
            CHECK(CPU_EQUAL(&before.cpus[i], &one.cpus[0]));
        }
        ox_pool_close(&pool);
    }
    REQUIRE_OK(ox_pool_open_on(&two, THREADS, &pool));
    ox_pool_run(pool, look, &after);
    for (uint32_t i = 0; i < THREADS; i++) {
        CHECK(CPU_EQUAL(&after.cpus[i], &two.cpus[i * 2 / THREADS]));
    }
    ox_pool_close(&pool);
    CPU_ZERO(&two.cpus[1]); /* no processor: a thread cannot be bound there */
    CHECK(ox_pool_open_on(&two, THREADS, &pool) == OX_E_CONFIG && pool == NULL);
    CHECK(strstr(ox_error_text(), "memory node") != NULL);
}

static void test_memory(void) {
    static struct ox_nodes nodes;
    struct ox_arena arena;
    REQUIRE_OK(ox_arena_open("test", OX_MIB, NULL, &arena));
    ox_nodes_read(&nodes);
    memset(arena.base, 7, arena.bytes);
    if (nodes.count == 1) {
        REQUIRE_OK(ox_nodes_interleave(&nodes, arena.base, arena.bytes));
        REQUIRE_OK(ox_nodes_bind(&nodes, 0, arena.base, arena.bytes));
        nodes.count = 2; /* one node twice: the call is made and changes nothing */
        nodes.ids[1] = nodes.ids[0];
    }
    int mode = -1;
    const enum ox_status status = ox_nodes_interleave(&nodes, arena.base, arena.bytes);
    if (status == OX_OK && get_mempolicy(&mode, NULL, 0, arena.base, MPOL_F_ADDR) == 0) {
        CHECK(mode == MPOL_INTERLEAVE);
        REQUIRE_OK(ox_nodes_bind(&nodes, 1, arena.base, arena.bytes));
        CHECK(get_mempolicy(&mode, NULL, 0, arena.base + arena.bytes - 1, MPOL_F_ADDR) == 0 && mode == MPOL_PREFERRED);
        nodes.ids[0] = nodes.ids[1] = 1023; /* no such node */
        CHECK(ox_nodes_bind(&nodes, 0, arena.base, arena.bytes) == OX_E_CONFIG);
    } else {
        printf("the kernel refuses to place memory: %s\n", ox_error_text());
        CHECK(status == OX_OK || strstr(ox_error_text(), "cannot interleave") != NULL);
    }
    bool kept = true;
    for (uint64_t i = 0; i < arena.bytes; i++) {
        kept = kept && arena.base[i] == 7;
    }
    CHECK(kept);
    ox_arena_close(&arena);
}

int main(void) {
    test_read();
    test_memory();
    test_threads(); /* last: it binds this thread */
    return test_end();
}
