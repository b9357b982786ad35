/* Calls that end well. */
#include "base/prng/prng.h"
#include "tests/kit/comm/comm_cases.h"
#include "tests/kit/test.h"

#include <string.h>

static void all_kinds(struct comm_rank *rank) {
    uint64_t cuts[OX_COMM_RANKS_MAX + 1];
    for (uint32_t variant = 0; comm_cuts(variant, rank->count, cuts); variant++) {
        for (uint32_t form = 0; form < 4; form++) {
            struct comm_try call = {.variant = variant, .in_place = form % 2 == 1, .on_host = form >= 2,
                                    .seed = variant * 4 + form};
            call.kind = OX_COMM_GATHER;
            CHECK(comm_try(rank, &call) == OX_OK);
            call.kind = OX_COMM_REDUCE_SCATTER;
            CHECK(comm_try(rank, &call) == OX_OK);
            call.kind = OX_COMM_SEND;
            CHECK(comm_try(rank, &call) == OX_OK);
            call.kind = OX_COMM_EXCHANGE;
            for (call.givers = 0; call.givers < 5; call.givers++) {
                CHECK(comm_try(rank, &call) == OX_OK);
            }
        }
        for (uint32_t channel = 0; channel < OX_COMM_CHANNELS; channel++) {
            const struct comm_try meet = {.kind = OX_COMM_MEET, .variant = variant, .channel = channel,
                                          .seed = variant + 100};
            CHECK(comm_try(rank, &meet) == OX_OK);
        }
    }
}

/* What a rank has counted over a gather, an exchange and a sum of uneven pieces, a transfer and a meeting. */
static void counters(struct comm_rank *rank) {
    struct ox_comm_stats before[OX_COMM_CALL_COUNT], after[OX_COMM_CALL_COUNT];
    uint64_t cuts[OX_COMM_RANKS_MAX + 1];
    CHECK(comm_cuts(3, rank->count, cuts));
    const uint64_t own = cuts[rank->rank + 1] - cuts[rank->rank], rest = cuts[rank->count] - cuts[0] - own;
    for (int i = 0; i < OX_COMM_CALL_COUNT; i++) {
        ox_comm_stats(rank->comm, (enum ox_comm_call)i, &before[i]);
    }
    CHECK(comm_try(rank, &(struct comm_try){.kind = OX_COMM_GATHER, .variant = 3}) == OX_OK);
    CHECK(comm_try(rank, &(struct comm_try){.kind = OX_COMM_EXCHANGE, .variant = 3, .givers = 2}) == OX_OK);
    CHECK(comm_try(rank, &(struct comm_try){.kind = OX_COMM_SEND}) == OX_OK);
    CHECK(comm_try(rank, &(struct comm_try){.kind = OX_COMM_MEET}) == OX_OK);
    if (rank->world->adds) {
        CHECK(comm_try(rank, &(struct comm_try){.kind = OX_COMM_REDUCE_SCATTER, .variant = 3}) == OX_OK);
    }
    for (int i = 0; i < OX_COMM_CALL_COUNT; i++) {
        ox_comm_stats(rank->comm, (enum ox_comm_call)i, &after[i]);
        after[i].in_bytes -= before[i].in_bytes;
        after[i].out_bytes -= before[i].out_bytes;
        after[i].calls -= before[i].calls;
        after[i].call_ns -= before[i].call_ns;
        after[i].wait_ns -= before[i].wait_ns;
        CHECK(after[i].call_ns >= after[i].wait_ns || rank->world->lanes[0] != NULL);
    }
    const uint64_t peers = rank->count - 1;
    const bool alone = rank->rank % 2 == 0 && rank->rank + 1 == rank->count, gives = rank->rank == 0;
    CHECK(after[OX_COMM_GATHER].in_bytes == rest && after[OX_COMM_GATHER].out_bytes == own * peers);
    CHECK(after[OX_COMM_EXCHANGE].in_bytes == (gives ? 0 : own));
    CHECK(after[OX_COMM_EXCHANGE].out_bytes == (gives ? rest : 0));
    CHECK(after[OX_COMM_SEND].out_bytes == (alone ? 0 : 1000) && after[OX_COMM_RECV].in_bytes == (alone ? 0 : 1000));
    CHECK(after[OX_COMM_REDUCE_SCATTER].in_bytes == (rank->world->adds ? 4 * own * peers : 0));
    CHECK(after[OX_COMM_REDUCE_SCATTER].out_bytes == (rank->world->adds ? 4 * rest : 0));
    CHECK(after[OX_COMM_MEET].in_bytes == 16 * peers && after[OX_COMM_MEET].calls == 1);
}

void comm_cases_calls(struct comm_world *world) {
    comm_world_open(world, 0, 30000);
    comm_each(world, all_kinds, NULL, NULL);
    comm_each(world, counters, NULL, NULL);
    comm_world_close(world);
}

/* ---- random calls beside meetings ------------------------------------------------------------------- */

struct random_args {
    uint32_t call_count;
    uint64_t seed;
};

struct meeting {
    struct comm_rank rank;
    uint32_t channel;
    struct random_args args;
};

static void *meet_main(void *context) {
    struct meeting *const meeting = context;
    for (uint32_t i = 0; i < meeting->args.call_count / 2; i++) {
        const struct comm_try call = {.kind = OX_COMM_MEET, .channel = meeting->channel, .variant = i % 4,
                                      .seed = meeting->args.seed + i};
        CHECK(comm_try(&meeting->rank, &call) == OX_OK);
    }
    return NULL;
}

static void random_calls(struct comm_rank *rank) {
    static const enum ox_comm_call kinds[] = {OX_COMM_GATHER, OX_COMM_EXCHANGE, OX_COMM_SEND, OX_COMM_MEET,
                                              OX_COMM_REDUCE_SCATTER};
    const struct random_args *const args = rank->arg;
    struct meeting meetings[2];
    pthread_t threads[2];
    for (uint32_t i = 0; i < 2; i++) {
        meetings[i] = (struct meeting){.rank = *rank, .channel = 1 + i, .args = *args};
        pthread_create(&threads[i], NULL, meet_main, &meetings[i]);
    }
    for (uint32_t i = 0; i < args->call_count; i++) {
        uint32_t words[4];
        ox_philox(args->seed, 0, i, words);
        const uint64_t draw = words[0] | (uint64_t)words[1] << 32;
        const struct comm_try call = {
            .kind = kinds[draw % 5],
            .variant = (uint32_t)(draw >> 8) % 8,
            .givers = (uint32_t)(draw >> 16) % 5,
            .in_place = (draw >> 24 & 1) != 0,
            .on_host = (draw >> 25 & 1) != 0,
            .seed = draw >> 32,
        };
        CHECK(comm_try(rank, &call) == OX_OK);
    }
    for (uint32_t i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
}

void comm_cases_random(struct comm_world *world, uint32_t call_count, uint64_t seed) {
    comm_world_open(world, 0, 30000);
    comm_each(world, random_calls, &(struct random_args){.call_count = call_count, .seed = seed}, NULL);
    comm_world_close(world);
}
