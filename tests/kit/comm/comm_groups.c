/* Groups of ranks: endpoints of their own, with an order of their own, and one cause of failure for all ranks. */
#include "tests/kit/comm/comm_cases.h"
#include "tests/kit/test.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { SPLITS = 2 };

/* A rank's groups, in two ways: ranks in a row, and ranks that are as far apart as those rows are long. */
struct groups {
    struct comm_rank ranks[SPLITS];
    struct ox_comm *comms[SPLITS];
};

/* The members of a rank's group: of `size` ranks in a row, the last group the rest; or of all with the same place. */
static struct ox_comm_group_of group_of(const struct comm_rank *rank, uint32_t split, uint32_t size,
                                        uint32_t members[OX_COMM_RANKS_MAX]) {
    struct ox_comm_group_of group = {.split = split, .members = members};
    for (uint32_t r = 0; r < rank->count; r++) {
        if (split == 0 ? r / size == rank->rank / size : r % size == rank->rank % size) {
            members[group.count++] = r;
        }
    }
    return group;
}

static void open_groups(struct comm_rank *rank, uint32_t size, struct groups *out) {
    for (uint32_t split = 0; split < SPLITS; split++) {
        uint32_t members[OX_COMM_RANKS_MAX];
        const struct ox_comm_group_of group = group_of(rank, split, size, members);
        const bool over = rank->world->over != NULL;
        REQUIRE_OK(ox_comm_split(over ? rank->comm->inner : rank->comm, &group, &out->comms[split]));
        if (over) {
            rank->world->over(rank, &out->comms[split]);
        }
        struct ox_comm *const comm = out->comms[split];
        CHECK(comm->count == group.count && members[comm->rank] == rank->rank);
        CHECK(ox_comm_member(comm, comm->rank) == rank->rank);
        out->ranks[split] = *rank;
        out->ranks[split].comm = comm;
        out->ranks[split].rank = comm->rank;
        out->ranks[split].count = comm->count;
    }
}

/* Calls in a group; the groups of a split make different numbers of them. */
static enum ox_status call_in(struct comm_rank *rank, uint32_t times) {
    static const enum ox_comm_call kinds[] = {OX_COMM_GATHER, OX_COMM_EXCHANGE, OX_COMM_SEND, OX_COMM_MEET};
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < times && status == OX_OK; i++) {
        for (uint32_t variant = 0; variant < 9 && status == OX_OK; variant++) {
            const enum ox_comm_call kind = kinds[(i + variant) % 4];
            status = comm_try(rank, &(struct comm_try){.kind = kind, .variant = kind == OX_COMM_MEET ? 0 : variant,
                                                       .givers = i % 5, .seed = i, .on_host = i % 2 == 1});
        }
    }
    return status;
}

struct beside {
    struct comm_rank *rank;
    uint32_t times;
    enum ox_status status;
};

static void *call_beside(void *context) {
    struct beside *const beside = context;
    beside->status = call_in(beside->rank, beside->times);
    return NULL;
}

/* One group after the other, and then, unless one thread has to make all calls, both at once, beside calls of all. */
static void in_groups(struct comm_rank *rank) {
    const uint32_t size = rank->count > 2 ? 2 : 1;
    struct groups groups;
    open_groups(rank, size, &groups);
    CHECK(call_in(&groups.ranks[0], 1 + rank->rank / size) == OX_OK);
    CHECK(call_in(&groups.ranks[1], 1 + rank->rank % size) == OX_OK);
    struct beside beside = {.rank = &groups.ranks[0], .times = 3};
    pthread_t thread;
    const bool at_once = rank->world->over == NULL && pthread_create(&thread, NULL, call_beside, &beside) == 0;
    CHECK(call_in(&groups.ranks[1], 3) == OX_OK);
    CHECK(comm_try(rank, &(struct comm_try){.kind = OX_COMM_GATHER, .variant = 3}) == OX_OK);
    if (at_once) {
        pthread_join(thread, NULL);
    }
    CHECK(beside.status == OX_OK);
    ox_comm_close(&groups.comms[0]);
    ox_comm_close(&groups.comms[1]);
}

/* Ranks are in pairs, and the first one fails: the calls of all groups end with its text, and a revival of all ranks
 * revives them. */
static void fail_in_groups(struct comm_rank *rank) {
    struct groups groups;
    open_groups(rank, 2, &groups);
    CHECK(comm_try(rank, &(struct comm_try){.kind = OX_COMM_MEET}) == OX_OK); /* all are open */
    if (rank->rank == 0) {
        ox_comm_abort(groups.comms[0], OX_E_DEVICE, "broken");
    }
    enum ox_status status = OX_OK;
    while (status == OX_OK) {
        status = call_in(&groups.ranks[1], 1);
    }
    CHECK(status == OX_E_DEVICE && strcmp(ox_error_text(), "rank 0: broken") == 0);
    CHECK(call_in(&groups.ranks[0], 1) == OX_E_DEVICE);
    CHECK(ox_comm_revive(rank->comm) == OX_OK);
    CHECK(ox_comm_revive(groups.comms[0]) == OX_OK && ox_comm_revive(groups.comms[1]) == OX_OK);
    for (uint32_t split = 0; split < SPLITS; split++) {
        REQUIRE_OK(call_in(&groups.ranks[split], 1));
    }
    ox_comm_close(&groups.comms[0]);
    ox_comm_close(&groups.comms[1]);
}

/* A rank that makes another call than its group: all ranks learn of it, with the numbers that they have among all. */
static void differ_in_group(struct comm_rank *rank) {
    struct groups groups;
    open_groups(rank, 2, &groups);
    struct comm_try call = {.kind = OX_COMM_GATHER, .variant = 3};
    call.what = rank->rank + 1 == rank->count ? "other" : "test";
    enum ox_status status = OX_OK;
    while (status == OX_OK) {
        status = comm_try(&groups.ranks[0], &call);
    }
    char expected[64];
    snprintf(expected, sizeof expected, "rank %u: it calls gather \"other\"", rank->count - 1);
    CHECK(status == OX_E_COMM && strstr(ox_error_text(), expected) != NULL);
    ox_comm_close(&groups.comms[0]);
    ox_comm_close(&groups.comms[1]);
}

/* ---- a ring: each rank sends to its next one and receives from the one before, and the other way, in two threads */

enum { RING_ROUNDS = 20, RING_BYTES = 5000 };

struct ring {
    struct comm_rank *rank;
    struct ox_comm *comm;
    bool wrong; /* names what it sends otherwise than the receiver */
    enum ox_status status;
};

static uint32_t ring_peer(const struct ring *ring, bool next) {
    const uint32_t count = ring->rank->count;
    return (ring->rank->rank + (next ? 1 : count - 1)) % count;
}

static unsigned char ring_byte(uint32_t sender, uint32_t round, uint32_t i) {
    return (unsigned char)(sender * 31 + round * 7 + i % 251);
}

/* All sends of a rank go to the next one first, so with one order for both directions every rank would wait. */
static void *ring_send(void *context) {
    struct ring *const ring = context;
    unsigned char bytes[RING_BYTES];
    for (uint32_t round = 0; round < 2 * RING_ROUNDS && ring->status == OX_OK; round++) {
        char what[OX_COMM_WHAT_BYTES];
        for (uint32_t i = 0; i < RING_BYTES; i++) {
            bytes[i] = ring_byte(ring->rank->rank, round, i);
        }
        snprintf(what, sizeof what, "%s %u", ring->wrong && round == 3 ? "another" : "round", round);
        ring->status = ox_comm_send(ring->comm, &(struct ox_comm_send){
            .peer = ring_peer(ring, round < RING_ROUNDS), .source = bytes, .bytes = RING_BYTES, .on_host = true,
            .what = what});
    }
    return NULL;
}

static void ring_receive(struct ring *ring) {
    unsigned char bytes[RING_BYTES];
    for (uint32_t round = 0; round < 2 * RING_ROUNDS && ring->status == OX_OK; round++) {
        const uint32_t peer = ring_peer(ring, round >= RING_ROUNDS);
        char what[OX_COMM_WHAT_BYTES];
        snprintf(what, sizeof what, "round %u", round);
        ring->status = ox_comm_recv(ring->comm, &(struct ox_comm_recv){
            .peer = peer, .target = bytes, .bytes = RING_BYTES, .on_host = true, .what = what});
        for (uint32_t i = 0; i < RING_BYTES && ring->status == OX_OK; i++) {
            CHECK(bytes[i] == ring_byte(peer, round, i));
        }
    }
}

static void run_ring(struct comm_rank *rank, bool wrong) {
    uint32_t members[OX_COMM_RANKS_MAX];
    struct ox_comm *comm = NULL;
    pthread_t thread;
    for (uint32_t r = 0; r < rank->count; r++) {
        members[r] = r;
    }
    REQUIRE_OK(ox_comm_split(rank->world->over == NULL ? rank->comm : rank->comm->inner, &(struct ox_comm_group_of){
        .split = 2, .count = rank->count, .members = members, .duplex = true}, &comm));
    if (rank->world->over_transfers != NULL) {
        rank->world->over_transfers(rank, &comm);
    }
    struct ring sends = {.rank = rank, .comm = comm, .wrong = wrong && rank->rank == 0}, receives = sends;
    CHECK(pthread_create(&thread, NULL, ring_send, &sends) == 0);
    ring_receive(&receives);
    pthread_join(thread, NULL);
    /* What does not pass between the first two ranks may have been done before they fail. */
    CHECK(sends.status == OX_OK || (wrong && sends.status == OX_E_COMM));
    CHECK(receives.status == OX_OK || (wrong && receives.status == OX_E_COMM));
    CHECK(!wrong || rank->rank != 0 || sends.status == OX_E_COMM);
    CHECK(!wrong || rank->rank != 1 || receives.status == OX_E_COMM);
    ox_comm_close(&comm);
}

static void in_ring(struct comm_rank *rank) {
    run_ring(rank, false);
}

static void differ_in_ring(struct comm_rank *rank) {
    run_ring(rank, true);
}

void comm_cases_groups(struct comm_world *world) {
    for (int wrong = 0; wrong < 2 && world->count > 1; wrong++) {
        comm_world_open(world, 0, 30000);
        comm_each(world, wrong ? differ_in_ring : in_ring, NULL, NULL);
        comm_world_close(world);
    }
    comm_world_open(world, 0, 30000);
    comm_each(world, in_groups, NULL, NULL);
    comm_world_close(world);
    if (world->count % 2 == 0) {
        comm_world_open(world, 0, 30000);
        comm_each(world, fail_in_groups, NULL, NULL);
        comm_world_close(world);
        comm_world_open(world, 0, 30000);
        comm_each(world, differ_in_group, NULL, NULL);
        comm_world_close(world);
    }
}
