/* Communication between ranks of several processes, over a wire within this one: the cases of every backend, with late
 * messages, and a process that ends. */
#include "tests/kit/comm/comm_cases.h"
#include "tests/kit/comm/comm_hub.h"
#include "tests/kit/test.h"

#include <string.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SLOWED = 1 };
#else
enum { SLOWED = 0 };
#endif

enum { DELAY_NS = 20000, SILENT_MS = 3000 };

static struct comm_hub *hub;
static uint32_t silent_ms;

static void open_hub(struct comm_world *world, const struct ox_comm_limits *limits) {
    const uint32_t local = *(const uint32_t *)world->context;
    struct ox_wire *wires[8];
    hub = comm_hub_open(world->count / local, world->count, DELAY_NS, wires);
    for (uint32_t p = 0; p < world->count / local; p++) {
        const struct ox_comm_local_config config = {.count = local, .limits = *limits, .silent_ms = silent_ms};
        REQUIRE_OK(ox_comm_wire_open(wires[p], &config, world->comms + p * local));
    }
}

/* Ends the last process while all ranks make calls. */
static void call_until_lost(struct comm_rank *rank) {
    static const enum ox_comm_call kinds[] = {OX_COMM_GATHER, OX_COMM_SEND, OX_COMM_MEET, OX_COMM_REDUCE_SCATTER,
                                              OX_COMM_EXCHANGE};
    const uint32_t process = *(const uint32_t *)rank->arg;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; status == OX_OK; i++) {
        if (i == 20 && rank->rank == 0) {
            comm_hub_lose(hub, process);
        }
        status = comm_try(rank, &(struct comm_try){.kind = kinds[i % 5], .variant = i % 9});
    }
    CHECK(status == OX_E_COMM);
}

static void test_lost(struct comm_world *world) {
    const uint32_t local = *(const uint32_t *)world->context, processes = world->count / local;
    for (uint32_t process = 0; process < processes; process += processes - 1) {
        struct comm_rank ranks[OX_COMM_RANKS_MAX];
        char words[32];
        snprintf(words, sizeof words, "process %u", process);
        comm_world_open(world, 0, 60000);
        comm_each(world, call_until_lost, &process, ranks);
        for (uint32_t r = 0; r < world->count; r++) {
            if (r / local != process) {
                const bool told = strstr(ranks[r].text, words) != NULL &&
                                  strstr(ranks[r].text, "; resume from the last commit") != NULL;
                CHECK(told);
                if (!told) {
                    printf("rank %u of %u, without %s or the remedy: %s\n", r, world->count, words, ranks[r].text);
                }
            }
        }
        comm_world_close(world);
    }
}

/* Ranks meet until a process is stopped, whose own ranks find that the others say nothing. */
static void meet_until_stopped(struct comm_rank *rank) {
    const uint32_t process = *(const uint32_t *)rank->arg;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; status == OX_OK; i++) {
        if (i == 20 && rank->rank == 0) {
            comm_hub_stop(hub, process);
        }
        status = comm_try(rank, &(struct comm_try){.kind = OX_COMM_MEET});
    }
    CHECK(status == OX_E_COMM);
}

static void test_stopped(struct comm_world *world) {
    for (uint32_t process = 0; process < world->count; process += world->count - 1) {
        struct comm_rank ranks[OX_COMM_RANKS_MAX];
        char words[64];
        snprintf(words, sizeof words, "process %u has not answered for ", process);
        comm_world_open(world, 0, UINT32_MAX);
        comm_each(world, meet_until_stopped, &process, ranks);
        for (uint32_t r = 0; r < world->count; r++) {
            const bool told = strstr(ranks[r].text, words) != NULL;
            CHECK(told || r == process);
        }
        comm_world_close(world);
    }
}

int main(void) {
    static const struct {
        uint32_t count, local;
    } forms[] = {{2, 1}, {3, 1}, {4, 2}};
    for (uint32_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct comm_world world;
        memset(&world, 0, sizeof world);
        world.name = "wire";
        world.count = world.local = forms[i].count;
        world.open = open_hub;
        world.adds = world.adds_on_host = true;
        world.context = &forms[i].local;
        comm_cases_calls(&world);
        comm_cases_random(&world, SLOWED ? 40 : 200, forms[i].count);
        comm_cases_failures(&world);
        comm_cases_groups(&world);
        comm_cases_faults(&world, 6);
        test_lost(&world);
        silent_ms = forms[i].count == 3 ? SILENT_MS : 0;
        if (silent_ms > 0) {
            test_stopped(&world);
            silent_ms = 0;
        }
    }
    return test_end();
}
