/* Ranks that disagree, fail, come late or not at all. */
#include "base/clock.h"
#include "tests/kit/comm/comm_cases.h"
#include "tests/kit/log.h"
#include "tests/kit/test.h"

#include <string.h>
#include <time.h>

static void wait_ms(uint32_t ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

/* Revives, and shows that calls end well again. */
static void revive(struct comm_rank *rank) {
    const enum ox_status status = ox_comm_revive(rank->comm);
    if (status != OX_OK) {
        printf("%s, rank %u of %u: revival: %s\n", rank->world->name, rank->rank, rank->count, ox_error_text());
    }
    CHECK(status == OX_OK);
    CHECK(ox_comm_cause(rank->comm) == OX_OK);
    for (uint32_t variant = 0; variant < 2; variant++) {
        CHECK(comm_try(rank, &(struct comm_try){.kind = OX_COMM_GATHER, .variant = 3 + variant}) == OX_OK);
        CHECK(comm_try(rank, &(struct comm_try){.kind = OX_COMM_SEND, .variant = variant}) == OX_OK);
        CHECK(comm_try(rank, &(struct comm_try){.kind = OX_COMM_MEET, .channel = variant}) == OX_OK);
    }
}

/* Every rank of this process failed with this status and one text, which holds both words. */
static void check_cause(const struct comm_world *world, const struct comm_rank *ranks, enum ox_status status,
                        const char *words, const char *more) {
    for (uint32_t i = 0; i < world->local; i++) {
        const char *const text = ranks[i].text;
        const bool good = ranks[i].status == status && strcmp(text, ranks[0].text) == 0 &&
                          strncmp(text, "rank ", 5) == 0 && strstr(text, words) != NULL && strstr(text, more) != NULL;
        if (!good) {
            printf("%s, rank %u of %u: %s: %s (expected %s, %s)\n", world->name, ranks[i].rank, world->count,
                   ox_status_name(ranks[i].status), text, words, more);
        }
        CHECK(good);
    }
}

/* ---- ranks that disagree ---------------------------------------------------------------------------- */

/* One rank, the first or the last, makes `odd` where the others make `plain`. */
struct disagreement {
    struct comm_try plain, odd;
    const char *words, *more;
    uint32_t odd_rank;
};

static void disagree(struct comm_rank *rank) {
    const struct disagreement *const args = rank->arg;
    enum ox_status status = comm_try(rank, rank->rank == args->odd_rank ? &args->odd : &args->plain);
    /* A rank that has no part in a transfer learns of the failure from its next call. */
    if (status == OX_OK) {
        status = comm_try(rank, &(struct comm_try){.kind = OX_COMM_MEET, .channel = 7});
    }
    CHECK(status != OX_OK);
    CHECK(comm_try(rank, &(struct comm_try){.kind = OX_COMM_GATHER}) == status);
    rank->status = status;
}

static void case_disagreements(struct comm_world *world) {
    static const struct disagreement list[] = {
        {{.kind = OX_COMM_GATHER, .variant = 0}, {.kind = OX_COMM_GATHER, .variant = 2}, "gather \"test\"", "bytes", 0},
        {{.kind = OX_COMM_GATHER}, {.kind = OX_COMM_EXCHANGE}, "gather \"test\"", "exchange \"test\"", 0},
        {{.kind = OX_COMM_GATHER}, {.kind = OX_COMM_GATHER, .what = "other"}, "gather \"test\"", "gather \"other\"", 0},
        {{.kind = OX_COMM_GATHER}, {.kind = OX_COMM_GATHER, .on_host = true}, "gather \"test\"", "host memory", 0},
        {{.kind = OX_COMM_EXCHANGE}, {.kind = OX_COMM_EXCHANGE, .givers = 1}, "exchange \"test\"", "givers", 0},
        {{.kind = OX_COMM_REDUCE_SCATTER}, {.kind = OX_COMM_EXCHANGE}, "exchange \"test\"", "calls", 0},
        {{.kind = OX_COMM_MEET}, {.kind = OX_COMM_MEET, .variant = 3}, "meet \"test\"", "bytes", 0},
        {{.kind = OX_COMM_MEET}, {.kind = OX_COMM_MEET, .what = "commit"}, "meet \"test\"", "meet \"commit\"", 0},
        {{.kind = OX_COMM_SEND}, {.kind = OX_COMM_GATHER}, "gather \"test\"", "calls", 0},
        {{.kind = OX_COMM_SEND}, {.kind = OX_COMM_SEND, .variant = 2}, "send \"test\"", "recv \"test\"", 0},
        {{.kind = OX_COMM_SEND}, {.kind = OX_COMM_SEND, .what = "other"}, "send \"", "recv \"", 0},
    };
    for (uint32_t i = 0; i < sizeof list / sizeof list[0] && world->count > 1; i++) {
        for (uint32_t odd_rank = 0; odd_rank < world->count; odd_rank += world->count - 1) {
            struct disagreement args = list[i];
            struct comm_rank ranks[OX_COMM_RANKS_MAX];
            args.odd_rank = odd_rank;
            if (args.plain.kind == OX_COMM_REDUCE_SCATTER && !world->adds) {
                continue;
            }
            /* The last of an odd number of ranks has no peer to send to. */
            if (args.plain.kind == OX_COMM_SEND && odd_rank > 0 && world->count % 2 == 1) {
                continue;
            }
            comm_each(world, disagree, &args, ranks);
            check_cause(world, ranks, OX_E_COMM, args.words, args.more);
            comm_each(world, revive, NULL, NULL);
        }
    }
}

/* ---- aborts ----------------------------------------------------------------------------------------- */

struct abortion {
    enum ox_comm_call kind;
    uint32_t rank;
    uint32_t after_ms; /* the aborting rank waits so long, then aborts instead of calling */
    bool inside;       /* or it calls too, and another thread of it aborts; the last rank does not call */
};

static void *abort_main(void *context) {
    const struct comm_rank *const rank = context;
    const struct abortion *const args = rank->arg;
    wait_ms(args->after_ms);
    ox_comm_abort(rank->comm, OX_E_IO, "drive 3 failed");
    ox_comm_abort(rank->comm, OX_E_NOMEM, "a later failure");
    return NULL;
}

static void abort_one(struct comm_rank *rank) {
    const struct abortion *const args = rank->arg;
    pthread_t thread;
    const bool aborts = rank->rank == args->rank;
    const bool stays_out = args->inside ? rank->rank == (args->rank + 1) % rank->count : aborts;
    if (aborts) {
        pthread_create(&thread, NULL, abort_main, rank);
    }
    enum ox_status status = OX_OK;
    if (!stays_out) {
        status = comm_try(rank, &(struct comm_try){.kind = args->kind});
    } else if (aborts) {
        pthread_join(thread, NULL);
    }
    if (status == OX_OK) {
        /* Peers of other processes learn of it in time. */
        status = comm_try(rank, &(struct comm_try){.kind = OX_COMM_MEET, .channel = 7});
    }
    CHECK(status == OX_E_IO);
    if (aborts && !stays_out) {
        pthread_join(thread, NULL);
    }
}

static void case_aborts(struct comm_world *world) {
    static const enum ox_comm_call kinds[] = {OX_COMM_GATHER, OX_COMM_EXCHANGE, OX_COMM_SEND, OX_COMM_MEET,
                                              OX_COMM_REDUCE_SCATTER};
    for (uint32_t i = 0; i < 5 * 4 && world->count > 1; i++) {
        const struct abortion args = {.kind = kinds[i / 4], .rank = i % 3 == 0 ? 0 : world->count - 1,
                                      .after_ms = i % 2 == 0 ? 0 : 5, .inside = i / 2 % 2 == 1};
        struct comm_rank ranks[OX_COMM_RANKS_MAX];
        char words[32];
        snprintf(words, sizeof words, "rank %u: drive 3", args.rank);
        comm_each(world, abort_one, &args, ranks);
        check_cause(world, ranks, OX_E_IO, words, "failed");
        comm_each(world, revive, NULL, NULL);
    }
}

/* Aborts at random moments while all ranks make calls without end. */
static void endless(struct comm_rank *rank) {
    const struct abortion *const args = rank->arg;
    pthread_t thread;
    if (rank->rank == args->rank) {
        pthread_create(&thread, NULL, abort_main, rank);
    }
    static const enum ox_comm_call kinds[] = {OX_COMM_GATHER, OX_COMM_EXCHANGE, OX_COMM_SEND, OX_COMM_MEET,
                                              OX_COMM_REDUCE_SCATTER};
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; status == OX_OK; i++) {
        status = comm_try(rank, &(struct comm_try){.kind = kinds[i % 5], .variant = i % 9});
    }
    CHECK(status == OX_E_IO);
    if (rank->rank == args->rank) {
        pthread_join(thread, NULL);
    }
}

static void case_aborts_at_random(struct comm_world *world) {
    for (uint32_t i = 0; i < 10; i++) {
        const struct abortion args = {.rank = i % world->count, .after_ms = 1 + i * 3};
        struct comm_rank ranks[OX_COMM_RANKS_MAX];
        comm_each(world, endless, &args, ranks);
        check_cause(world, ranks, OX_E_IO, "drive 3", "failed");
        comm_each(world, revive, NULL, NULL);
    }
}

/* A rank fails during a revival: it ends on all, with the new cause. */
static void revive_in_vain(struct comm_rank *rank) {
    const struct abortion *const args = rank->arg;
    if (rank->rank == args->rank) {
        ox_comm_abort(rank->comm, OX_E_IO, "drive 3 failed");
        /* Again and again, because a peer may come to the revival after one of them. */
        for (int i = 0; i < 20; i++) {
            wait_ms(args->after_ms);
            ox_comm_abort(rank->comm, OX_E_DEVICE, "cannot be repaired");
        }
        rank->status = ox_comm_cause(rank->comm);
    } else {
        while (ox_comm_cause(rank->comm) == OX_OK) {
            wait_ms(1);
        }
        rank->status = ox_comm_revive(rank->comm);
    }
    CHECK(rank->status == OX_E_DEVICE);
}

/* ---- late, missing and closed ranks ----------------------------------------------------------------- */

/* Rank 1 comes when rank 0 has warned of it, however late that began on a busy machine; after a while, if rank 0 is in
 * another process. */
static void come_late(struct comm_rank *rank) {
    const struct comm_try *const call = rank->arg;
    const bool sees = rank->world->first == 0;
    for (int waited = 0; rank->rank == 1 && (sees ? log_warnings == 0 && waited < 20000 : waited < 150); waited++) {
        wait_ms(1);
    }
    CHECK(comm_try(rank, call) == OX_OK);
}

static void case_late(struct comm_world *world) {
    static const enum ox_comm_call kinds[] = {OX_COMM_GATHER, OX_COMM_SEND, OX_COMM_MEET};
    static const char *const words[] = {"rank 0: gather \"test\"", "rank 0: send \"test\" to rank 1",
                                        "rank 0: meet \"test\""};
    if (world->count == 1) {
        return;
    }
    comm_world_open(world, 60, 30000);
    for (uint32_t i = 0; i < 3; i++) {
        log_count_warnings(words[i]);
        comm_each(world, come_late, &(struct comm_try){.kind = kinds[i]}, NULL);
        CHECK(world->first > 0 || log_warnings >= 1);
        CHECK(world->first == 0 || log_warnings == 0);
        log_count_warnings("for rank 1;");
        comm_each(world, come_late, &(struct comm_try){.kind = kinds[i]}, NULL);
        CHECK(world->first > 0 || log_warnings >= 1);
    }
    log_count_warnings(NULL);
    comm_world_close(world);
}

/* The last rank calls nothing until the others have given up. */
static void stay_away(struct comm_rank *rank) {
    const struct comm_try *const call = rank->arg;
    while (rank->rank + 1 == rank->count && ox_comm_cause(rank->comm) == OX_OK) {
        wait_ms(5);
    }
    CHECK(comm_try(rank, call) == OX_E_COMM);
    CHECK(comm_try(rank, &(struct comm_try){.kind = OX_COMM_MEET, .channel = 6}) == OX_E_COMM);
}

static void case_missing(struct comm_world *world) {
    static const enum ox_comm_call kinds[] = {OX_COMM_GATHER, OX_COMM_SEND, OX_COMM_MEET};
    char words[32];
    snprintf(words, sizeof words, "for rank %u, which", world->count - 1);
    /* The limit is long enough for threads that start late on a busy machine, so not every number of ranks waits. */
    for (uint32_t i = 0; i < 3 && (world->count == 2 || world->count == 4); i++) {
        if (kinds[i] == OX_COMM_SEND && world->count > 2) {
            continue; /* ranks without a part in it meet, and may give up first */
        }
        struct comm_rank ranks[OX_COMM_RANKS_MAX];
        comm_world_open(world, 10000, 1000);
        comm_each(world, stay_away, &(struct comm_try){.kind = kinds[i]}, ranks);
        check_cause(world, ranks, OX_E_COMM, words, kinds[i] == OX_COMM_SEND ? "\"" : "\"test\"");
        comm_world_close(world);
    }
}

/* A meeting may have a limit of its own. */
static void stay_away_for_long(struct comm_rank *rank) {
    const struct ox_comm_meet call = {.what = "a meeting", .limits = &(struct ox_comm_limits){.fail_ms = 1000}};
    while (rank->rank + 1 == rank->count && ox_comm_cause(rank->comm) == OX_OK) {
        wait_ms(5);
    }
    CHECK(ox_comm_meet(rank->comm, &call) == OX_E_COMM);
    CHECK(strstr(ox_error_text(), "meet \"a meeting\"") != NULL);
}

static void case_impatient(struct comm_world *world) {
    if (world->count > 1) {
        comm_world_open(world, 10000, 600000);
        comm_each(world, stay_away_for_long, NULL, NULL);
        comm_world_close(world);
    }
}

static void close_early(struct comm_rank *rank) {
    CHECK(comm_try(rank, &(struct comm_try){.kind = OX_COMM_GATHER}) == OX_OK);
    if (rank->rank + 1 == rank->count) {
        ox_comm_close(&rank->world->comms[rank->rank - rank->world->first]);
    } else {
        CHECK(comm_try(rank, &(struct comm_try){.kind = OX_COMM_GATHER}) == OX_E_COMM);
        CHECK(strstr(ox_error_text(), "ended before it") != NULL);
    }
}

void comm_cases_failures(struct comm_world *world) {
    comm_world_open(world, 0, 30000);
    case_disagreements(world);
    case_aborts(world);
    case_aborts_at_random(world);
    if (world->count > 1) {
        struct comm_rank ranks[OX_COMM_RANKS_MAX];
        comm_each(world, revive_in_vain, &(struct abortion){.rank = 1, .after_ms = 25}, ranks);
        check_cause(world, ranks, OX_E_DEVICE, "rank 1: cannot", "repaired");
        comm_each(world, revive, NULL, NULL);
    }
    comm_world_close(world);
    case_late(world);
    case_missing(world);
    case_impatient(world);
    if (world->count > 1) {
        comm_world_open(world, 0, 30000);
        comm_each(world, close_early, NULL, NULL);
        comm_world_close(world);
    }
}

/* ---- faults ----------------------------------------------------------------------------------------- */

static void mix_until_failure(struct comm_rank *rank) {
    static const enum ox_comm_call kinds[] = {OX_COMM_GATHER, OX_COMM_EXCHANGE, OX_COMM_MEET, OX_COMM_SEND,
                                              OX_COMM_REDUCE_SCATTER};
    const uint32_t call_count = *(const uint32_t *)rank->arg;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < call_count + 8 && status == OX_OK; i++) {
        status = comm_try(rank, &(struct comm_try){.kind = kinds[i % 5], .variant = i % 9});
    }
    CHECK(status == OX_E_DEVICE);
}

void comm_cases_faults(struct comm_world *world, uint32_t call_count) {
    for (uint32_t i = 0; i < 2 * call_count; i++) {
        const uint32_t rank = i % world->count;
        const struct ox_comm_fault fault = {.call_idx = i / 2, .after = i % 2 == 1, .status = OX_E_DEVICE};
        struct comm_rank ranks[OX_COMM_RANKS_MAX];
        char words[64];
        comm_world_open(world, 0, 30000);
        if (rank >= world->first && rank < world->first + world->local) {
            struct ox_comm *const inner = world->comms[rank - world->first];
            REQUIRE_OK(ox_comm_fault_open(inner, &fault, &world->comms[rank - world->first]));
        }
        comm_each(world, mix_until_failure, &call_count, ranks);
        snprintf(words, sizeof words, "rank %u: injected fault %s call %u", rank, fault.after ? "after" : "before",
                 i / 2);
        check_cause(world, ranks, OX_E_DEVICE, words, "injected");
        comm_each(world, revive, NULL, NULL);
        comm_world_close(world);
    }
}
