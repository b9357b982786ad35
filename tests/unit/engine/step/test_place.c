/* Where ranks are placed on machines with several memory nodes, which are described here: this machine need not have
 * them. And that with one node nothing is placed. */
#include "engine/step/place.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <numaif.h>
#include <pthread.h>
#include <string.h>

/* Nodes 0, 1, 3 and 4, of which the first `count` are there: a node may be without processors. */
static void make_nodes(uint32_t count, struct ox_nodes *out) {
    static const uint32_t ids[] = {0, 1, 3, 4};
    memset(out, 0, sizeof *out);
    out->count = count;
    for (uint32_t i = 0; i < count; i++) {
        out->ids[i] = ids[i];
        CPU_SET(2 * i, &out->cpus[i]);
        CPU_SET(2 * i + 1, &out->cpus[i]);
    }
}

/* The numbers of nodes as digits. */
static void digits(const struct ox_nodes *nodes, char text[OX_NODES_MAX + 1]) {
    for (uint32_t i = 0; i < nodes->count; i++) {
        text[i] = (char)('0' + nodes->ids[i]);
        CHECK(CPU_COUNT(&nodes->cpus[i]) == 2);
    }
    text[nodes->count] = '\0';
}

struct expected {
    const char *what;
    uint32_t nodes, ranks;
    int gpus[4]; /* nodes of the GPUs, if not all are 0 */
    bool on_gpu, shared;
    const char *threads[4], *memory[4]; /* by rank */
    const char *text;
};

static const struct expected cases[] = {
    {"one node", 1, 2, {0}, false, false, {"", ""}, {"", ""}, ""},
    {"one node and GPUs", 1, 2, {0, 0}, true, true, {"", ""}, {"", ""}, ""},
    {"one rank", 2, 1, {0}, false, false, {""}, {"01"}, "threads run anywhere, memory interleaved over 2 of them"},
    {"one GPU", 2, 1, {1}, true, false, {""}, {"01"}, "threads run anywhere, memory interleaved over 2 of them"},
    {"a rank for each node", 2, 2, {0}, false, false, {"0", "1"}, {"0", "1"}, "in turn, memory on 1 of them"},
    {"two ranks for each node", 2, 4, {0}, false, false, {"0", "1", "0", "1"}, {"0", "1", "0", "1"}, "in turn"},
    {"two nodes for each rank", 4, 2, {0}, false, false, {"01", "34"}, {"01", "34"},
     "each rank has nodes of its own, memory interleaved over 2 of them"},
    {"uneven", 2, 3, {0}, false, false, {"", "", ""}, {"01", "01", "01"}, "anywhere"},
    {"uneven nodes", 3, 2, {0}, false, false, {"", ""}, {"013", "013"}, "anywhere"},
    {"shared", 2, 2, {0}, false, true, {"0", "1"}, {"01", "01"}, "in turn, memory interleaved over 2 of them"},
    {"GPUs", 2, 4, {1, 1, 0, 0}, true, false, {"1", "1", "0", "0"}, {"1", "1", "0", "0"},
     "each rank is on the node of its GPU, memory on 1 of them"},
    {"GPUs that share", 2, 2, {1, 0}, true, true, {"1", "0"}, {"01", "01"}, "interleaved over 2"},
    {"GPUs of one node", 2, 2, {0, 0}, true, false, {"", ""}, {"01", "01"}, "anywhere"},
    {"a GPU of a node without processors", 2, 2, {0, 3}, true, false, {"", ""}, {"01", "01"}, "anywhere"},
    {"unknown GPUs", 2, 2, {-1, -1}, true, false, {"", ""}, {"01", "01"}, "anywhere"},
};

static void test_places(void) {
    static struct ox_nodes nodes;
    static struct ox_rank_place place;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct expected *const e = &cases[i];
        const struct ox_place_case given = {.ranks = e->ranks, .gpu_nodes = e->on_gpu ? e->gpus : NULL,
                                            .shared = e->shared};
        char threads[OX_NODES_MAX + 1], memory[OX_NODES_MAX + 1], text[OX_PLACE_TEXT_BYTES];
        make_nodes(e->nodes, &nodes);
        for (uint32_t rank = 0; rank < e->ranks; rank++) {
            ox_place_rank(&nodes, &given, rank, &place);
            digits(&place.threads, threads);
            digits(&place.memory, memory);
            if (strcmp(threads, e->threads[rank]) != 0 || strcmp(memory, e->memory[rank]) != 0) {
                printf("%s: rank %u has threads on '%s', memory on '%s'\n", e->what, rank, threads, memory);
                test_failure_count++;
            }
        }
        ox_place_text(&nodes, &given, text);
        if (strstr(text, e->text) == NULL || (e->nodes == 1) != (text[0] == '\0')) {
            printf("%s: '%s'\n", e->what, text);
            test_failure_count++;
        }
    }
}

static void test_pci(void) {
    const char *const folder = files_make_folder("devices");
    files_make_folder("devices/0000:c1:00.0");
    files_make_folder("devices/0000:41:00.0");
    files_make_folder("devices/0001:41:00.0");
    files_write_text("devices/0000:c1:00.0/numa_node", "3\n");
    files_write_text("devices/0000:41:00.0/numa_node", "-1\n");
    CHECK(ox_place_pci_node(folder, "00000000:C1:00.0") == 3 && ox_place_pci_node(folder, "0000:c1:00.0") == 3);
    CHECK(ox_place_pci_node(folder, "00000000:41:00.0") == -1);
    CHECK(ox_place_pci_node(folder, "00000001:41:00.0") == -1); /* no file */
    CHECK(ox_place_pci_node(folder, "00000000:42:00.0") == -1 && ox_place_pci_node(folder, "") == -1);
}

/* ---- threads ------------------------------------------------------------------------------------------ */

struct seen {
    cpu_set_t cpus;
    int mode;
};

static void *look(void *context) {
    struct seen *const seen = context;
    CPU_ZERO(&seen->cpus);
    CHECK(sched_getaffinity(0, sizeof seen->cpus, &seen->cpus) == 0);
    if (get_mempolicy(&seen->mode, NULL, 0, NULL, 0) != 0) {
        seen->mode = -1;
    }
    return NULL;
}

/* What a thread sees that is started now. */
static struct seen started(void) {
    struct seen seen = {.mode = -1};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, look, &seen) == 0 && pthread_join(thread, NULL) == 0);
    return seen;
}

static bool starts(const cpu_set_t *cpus, int mode) {
    const struct seen seen = started();
    return CPU_EQUAL(&seen.cpus, cpus) && seen.mode == mode;
}

/* Threads that start while a rank opens keep its processors and its policy of memory; those that start later do not. */
static void test_enter(void) {
    static struct ox_nodes here, nodes, none;
    struct ox_nodes_before before;
    const struct seen usual = started();
    ox_nodes_read(&here);
    nodes = here;
    nodes.count = 1;
    CPU_ZERO(&nodes.cpus[0]);
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0 && CPU_COUNT(&nodes.cpus[0]) == 0; cpu--) {
        if (CPU_ISSET(cpu, &usual.cpus)) {
            CPU_SET(cpu, &nodes.cpus[0]);
        }
    }
    REQUIRE_OK(ox_nodes_enter(&none, &none, &before));
    CHECK(starts(&usual.cpus, usual.mode));
    ox_nodes_leave(&before);
    const enum ox_status status = ox_nodes_enter(&nodes, &nodes, &before);
    const struct seen placed = started();
    CHECK(CPU_EQUAL(&placed.cpus, &nodes.cpus[0]));
    CHECK(status != OX_OK || usual.mode != MPOL_DEFAULT || placed.mode == MPOL_PREFERRED);
    ox_nodes_leave(&before);
    CHECK(starts(&usual.cpus, usual.mode));
    nodes.count = 2; /* the same node twice */
    nodes.ids[1] = nodes.ids[0];
    nodes.cpus[1] = here.cpus[0];
    if (ox_nodes_enter(&none, &nodes, &before) == OX_OK && usual.mode == MPOL_DEFAULT) {
        CHECK(starts(&usual.cpus, MPOL_INTERLEAVE));
        static struct ox_nodes_before again; /* as in a process that numactl started: its policy stays */
        REQUIRE_OK(ox_nodes_enter(&none, &here, &again));
        CHECK(started().mode == MPOL_INTERLEAVE && !again.placed);
        ox_nodes_leave(&again);
    }
    ox_nodes_leave(&before);
    CHECK(started().mode == usual.mode);
    CPU_ZERO(&nodes.cpus[0]);
    nodes.count = 1;
    CHECK(ox_nodes_enter(&nodes, &none, &before) == OX_E_CONFIG && !before.bound);
    ox_nodes_leave(&before);
    CHECK(starts(&usual.cpus, usual.mode));
}

int main(void) {
    test_places();
    test_pci();
    test_enter();
    return test_end();
}
