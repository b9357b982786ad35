#include "tests/kit/comm/comm_world.h"

#include "tests/kit/test.h"

#include <string.h>

enum { GUARD = 64, GUARD_BYTE = 0xA5 };

void comm_world_open(struct comm_world *world, uint32_t warn_ms, uint32_t fail_ms) {
    world->open(world, &(struct ox_comm_limits){.warn_ms = warn_ms, .fail_ms = fail_ms});
    for (uint32_t i = 0; i < world->local; i++) {
        CHECK(world->comms[i]->rank == world->first + i && world->comms[i]->count == world->count);
    }
}

static void *close_main(void *context) {
    ox_comm_close(context);
    return NULL;
}

/* Each rank closes its own endpoint, all at once. */
void comm_world_close(struct comm_world *world) {
    pthread_t threads[OX_COMM_RANKS_MAX];
    for (uint32_t i = 0; i < world->local; i++) {
        pthread_create(&threads[i], NULL, close_main, &world->comms[i]);
    }
    for (uint32_t i = 0; i < world->local; i++) {
        pthread_join(threads[i], NULL);
        CHECK(world->comms[i] == NULL);
    }
}

struct main_args {
    comm_fn *fn;
    struct comm_rank rank;
};

static void *rank_main(void *context) {
    struct main_args *const args = context;
    args->fn(&args->rank);
    snprintf(args->rank.text, sizeof args->rank.text, "%s", ox_error_text());
    return NULL;
}

void comm_each(struct comm_world *world, comm_fn *fn, const void *arg, struct comm_rank *out) {
    pthread_t threads[OX_COMM_RANKS_MAX];
    struct main_args *const args = calloc(world->local, sizeof *args);
    if (world->together != NULL) {
        world->together();
    }
    for (uint32_t i = 0; i < world->local; i++) {
        args[i].fn = fn;
        args[i].rank = (struct comm_rank){.world = world, .comm = world->comms[i], .rank = world->first + i,
                                          .count = world->count, .arg = arg};
        pthread_create(&threads[i], NULL, rank_main, &args[i]);
    }
    for (uint32_t i = 0; i < world->local; i++) {
        pthread_join(threads[i], NULL);
        if (out != NULL) {
            out[i] = args[i].rank;
        }
    }
    free(args);
}

/* ---- memory ----------------------------------------------------------------------------------------- */

static void move(struct comm_block *block, void *target, const void *source, uint64_t bytes) {
    if (bytes == 0) {
        return;
    }
    if (block->device == NULL) {
        memcpy(target, source, bytes);
        return;
    }
    struct ox_lane *lane = NULL;
    struct ox_mark done = {0};
    const struct ox_copy copy = {.target = target, .source = source, .bytes = bytes};
    REQUIRE_OK(ox_device_lane_open(block->device, "test", &lane));
    REQUIRE_OK(ox_device_lane_copy(block->device, lane, &copy, &done));
    REQUIRE_OK(ox_mark_join(done));
    ox_lane_close(&lane);
}

void comm_block_open(struct comm_rank *rank, bool on_host, uint64_t bytes, struct comm_block *out) {
    void *base = NULL;
    memset(out, 0, sizeof *out);
    out->device = on_host ? NULL : rank->world->devices[ox_comm_member(rank->comm, rank->rank) - rank->world->first];
    out->bytes = bytes;
    if (out->device != NULL) {
        REQUIRE_OK(ox_device_mem_open(out->device, bytes + 2 * GUARD, &base));
    } else {
        base = malloc(bytes + 2 * GUARD);
    }
    out->base = base;
    out->at = out->base + GUARD;
    unsigned char guards[GUARD];
    memset(guards, GUARD_BYTE, sizeof guards);
    move(out, out->base, guards, GUARD);
    move(out, out->at + bytes, guards, GUARD);
}

void comm_block_close(struct comm_block *block) {
    unsigned char guards[2 * GUARD];
    move(block, guards, block->base, GUARD);
    move(block, guards + GUARD, block->at + block->bytes, GUARD);
    int wrong = 0;
    for (int i = 0; i < 2 * GUARD; i++) {
        wrong += guards[i] != GUARD_BYTE;
    }
    CHECK(wrong == 0);
    if (block->device != NULL) {
        ox_device_mem_close(block->device, block->base, block->bytes + 2 * GUARD);
    } else {
        free(block->base);
    }
}

void comm_block_write(struct comm_block *block, uint64_t at, const void *data, uint64_t bytes) {
    move(block, block->at + at, data, bytes);
}

void comm_block_read(struct comm_block *block, uint64_t at, void *data, uint64_t bytes) {
    move(block, data, block->at + at, bytes);
}

/* ---- calls ------------------------------------------------------------------------------------------ */

/* Where the rank puts a call; NULL: it blocks. */
static struct ox_lane *lane_for(const struct comm_rank *rank, bool on_host) {
    struct ox_lane *const lane = rank->world->lanes[ox_comm_member(rank->comm, rank->rank) - rank->world->first];
    return !on_host && ox_comm_queues(rank->comm) ? lane : NULL;
}

/* Watches the call that the rank has put on a lane; after a failure nothing is left there. */
static enum ox_status follow(struct comm_rank *rank, struct ox_lane *lane, enum ox_status status) {
    if (lane == NULL) {
        return status;
    }
    static const char from;
    char to = 0;
    struct ox_mark done = {0};
    struct ox_device *const device =
        rank->world->devices[ox_comm_member(rank->comm, rank->rank) - rank->world->first];
    OX_THEN(status, ox_device_lane_copy(device, lane, &(struct ox_copy){&to, &from, 1}, &done));
    OX_THEN(status, ox_comm_watch(rank->comm, 1, done));
    if (status != OX_OK) {
        struct ox_first_failure first = {0};
        ox_first_failure_note(&first, status);
        ox_comm_stop(rank->comm);
        ox_first_failure_note(&first, ox_lane_drain(lane));
        ox_lane_reset(lane);
        status = ox_first_failure_result(&first);
    }
    return status;
}

bool comm_cuts(uint32_t variant, uint32_t count, uint64_t *cuts) {
    static const uint64_t firsts[] = {0, 0, 0, 5, 0, 0, 0, 24, 0};
    if (variant >= sizeof firsts / sizeof firsts[0]) {
        return false;
    }
    cuts[0] = firsts[variant];
    for (uint32_t r = 0; r < count; r++) {
        const uint64_t sizes[] = {1024, 0, 1, 1 + 977 * (uint64_t)r, r == 0 ? 333 : 0, r + 1 == count ? 70001 : 0,
                                  r % 2 == 0 ? 0 : 4099, 4096, 1 << 17};
        cuts[r + 1] = cuts[r] + sizes[variant];
    }
    return true;
}

/* Byte i of the vector that `rank` gives. */
static unsigned char content(uint64_t seed, uint32_t rank, uint64_t i) {
    return (unsigned char)(seed * 31 + rank * 57 + i * 7 + (i >> 8) * 11 + (i >> 16) * 13);
}

static unsigned char *contents(uint64_t seed, uint32_t rank, uint64_t first, uint64_t bytes) {
    unsigned char *const data = malloc(bytes + 1);
    for (uint64_t i = 0; i < bytes; i++) {
        data[i] = content(seed, rank, first + i);
    }
    return data;
}

static void check_contents(struct comm_block *block, uint64_t at, uint64_t bytes, const unsigned char *expected) {
    unsigned char *const found = malloc(bytes + 1);
    comm_block_read(block, at, found, bytes);
    CHECK(memcmp(found, expected, bytes) == 0);
    free(found);
}

static bool gives(uint32_t givers, uint32_t r, uint32_t count) {
    const bool given[] = {true, false, r == 0, r + 1 == count, r % 2 == 0};
    return given[givers];
}

static enum ox_status try_gather(struct comm_rank *rank, const struct comm_try *call, const uint64_t *cuts) {
    const uint64_t total = cuts[rank->count] - cuts[0], first = cuts[rank->rank] - cuts[0];
    const uint64_t own = cuts[rank->rank + 1] - cuts[rank->rank];
    struct comm_block source, target;
    comm_block_open(rank, call->on_host, call->in_place ? 0 : own, &source);
    comm_block_open(rank, call->on_host, total, &target);
    unsigned char *const mine = contents(call->seed, rank->rank, first, own);
    comm_block_write(call->in_place ? &target : &source, call->in_place ? first : 0, mine, own);
    free(mine);
    struct ox_lane *const lane = lane_for(rank, call->on_host);
    enum ox_status status = ox_comm_gather(rank->comm, &(struct ox_comm_gather){
        .source = call->in_place ? target.at + first : source.at, .target = target.at, .cuts = cuts,
        .on_host = call->on_host, .lane = lane, .what = call->what});
    status = follow(rank, lane, status);
    for (uint32_t r = 0; r < rank->count && status == OX_OK; r++) {
        unsigned char *const piece = contents(call->seed, r, cuts[r] - cuts[0], cuts[r + 1] - cuts[r]);
        check_contents(&target, cuts[r] - cuts[0], cuts[r + 1] - cuts[r], piece);
        free(piece);
    }
    comm_block_close(&source);
    comm_block_close(&target);
    return status;
}

static enum ox_status try_exchange(struct comm_rank *rank, const struct comm_try *call, const uint64_t *cuts) {
    const uint64_t total = cuts[rank->count] - cuts[0], first = cuts[rank->rank] - cuts[0];
    const uint64_t own = cuts[rank->rank + 1] - cuts[rank->rank];
    bool givers[OX_COMM_RANKS_MAX];
    uint32_t giver_count = 0;
    for (uint32_t r = 0; r < rank->count; r++) {
        givers[r] = gives(call->givers, r, rank->count);
        giver_count += givers[r];
    }
    struct comm_block source, target;
    comm_block_open(rank, call->on_host, givers[rank->rank] ? total : 0, &source);
    comm_block_open(rank, call->on_host, own * giver_count, &target);
    unsigned char *const mine = contents(call->seed, rank->rank, 0, source.bytes);
    comm_block_write(&source, 0, mine, source.bytes);
    struct ox_lane *const lane = lane_for(rank, call->on_host);
    enum ox_status status = ox_comm_exchange(rank->comm, &(struct ox_comm_exchange){
        .source = givers[rank->rank] ? source.at : NULL, .target = target.at, .cuts = cuts, .gives = givers,
        .on_host = call->on_host, .lane = lane, .what = call->what});
    status = follow(rank, lane, status);
    uint64_t at = 0;
    for (uint32_t r = 0; r < rank->count && status == OX_OK; r++) {
        if (givers[r]) {
            unsigned char *const piece = contents(call->seed, r, first, own);
            check_contents(&target, at, own, piece);
            free(piece);
            at += own;
        }
    }
    if (status == OX_OK) {
        check_contents(&source, 0, source.bytes, mine);
    }
    free(mine);
    comm_block_close(&source);
    comm_block_close(&target);
    return status;
}

/* Whole numbers, whose sums are exact in any order. */
static float number(uint64_t seed, uint32_t rank, uint64_t i) {
    return (float)((seed * 31 + rank * 57 + i * 7 + (i >> 8) * 11) % 1009) - 504;
}

static void check_sums(struct comm_rank *rank, const struct comm_try *call, struct comm_block *block, uint64_t at,
                       const uint64_t *cuts) {
    const uint64_t first = (cuts[rank->rank] - cuts[0]) / sizeof(float);
    const uint64_t own = (cuts[rank->rank + 1] - cuts[rank->rank]) / sizeof(float);
    float *const found = malloc((own + 1) * sizeof *found);
    comm_block_read(block, at, found, own * sizeof *found);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < own; i++) {
        float sum = 0;
        for (uint32_t r = 0; r < rank->count; r++) {
            sum += number(call->seed, r, first + i);
        }
        wrong += found[i] != sum;
    }
    CHECK(wrong == 0);
    free(found);
}

static enum ox_status try_reduce_scatter(struct comm_rank *rank, const struct comm_try *call, uint64_t *cuts) {
    for (uint32_t r = 0; r <= rank->count; r++) {
        cuts[r] *= sizeof(float);
    }
    const uint64_t total = cuts[rank->count] - cuts[0], first = cuts[rank->rank] - cuts[0];
    struct comm_block source, target;
    comm_block_open(rank, call->on_host, total, &source);
    comm_block_open(rank, call->on_host, call->in_place ? 0 : cuts[rank->rank + 1] - cuts[rank->rank], &target);
    float *const mine = malloc(total + 1);
    for (uint64_t i = 0; i < total / sizeof(float); i++) {
        mine[i] = number(call->seed, rank->rank, i);
    }
    comm_block_write(&source, 0, mine, total);
    free(mine);
    void *const to = call->in_place ? source.at + first : target.at;
    struct ox_lane *const lane = lane_for(rank, call->on_host);
    enum ox_status status = ox_comm_reduce_scatter(rank->comm, &(struct ox_comm_reduce_scatter){
        .source = (const float *)(const void *)source.at, .target = to, .cuts = cuts, .on_host = call->on_host,
        .lane = lane, .what = call->what});
    status = follow(rank, lane, status);
    if (status == OX_OK) {
        check_sums(rank, call, call->in_place ? &source : &target, call->in_place ? first : 0, cuts);
    }
    comm_block_close(&source);
    comm_block_close(&target);
    return status;
}

static enum ox_status try_meet(struct comm_rank *rank, const struct comm_try *call) {
    static const uint32_t slots[] = {16, 0, 1, 4097, OX_COMM_MEET_BYTES};
    const uint32_t slot = slots[call->variant % 5];
    const uint32_t mine_bytes = slot == 0 ? 0 : slot - (rank->rank + call->variant) % 2 * (slot / 2 + slot % 2);
    unsigned char *const mine = contents(call->seed, rank->rank, 0, mine_bytes);
    unsigned char *const all = malloc((size_t)slot * rank->count + 1);
    uint32_t all_bytes[OX_COMM_RANKS_MAX];
    const enum ox_status status = ox_comm_meet(rank->comm, &(struct ox_comm_meet){
        .channel = call->channel, .mine = mine, .mine_bytes = mine_bytes, .slot_bytes = slot, .all = all,
        .all_bytes = all_bytes, .what = call->what});
    for (uint32_t r = 0; r < rank->count && status == OX_OK; r++) {
        const uint32_t expected = slot == 0 ? 0 : slot - (r + call->variant) % 2 * (slot / 2 + slot % 2);
        unsigned char *const piece = contents(call->seed, r, 0, expected);
        CHECK(all_bytes[r] == expected && memcmp(all + (size_t)r * slot, piece, expected) == 0);
        free(piece);
    }
    free(mine);
    free(all);
    return status;
}

/* Sends this rank's bytes to the peer, or receives the peer's. */
static enum ox_status try_one_way(struct comm_rank *rank, const struct comm_try *call, uint32_t peer, bool sends) {
    static const uint64_t sizes[] = {1000, 0, 1, 977, 65536, 70001, 1 << 17, 3, 5};
    const uint64_t bytes = sizes[call->variant % 9];
    struct comm_block block;
    comm_block_open(rank, call->on_host, bytes, &block);
    unsigned char *const data = contents(call->seed, sends ? rank->rank : peer, 0, bytes);
    struct ox_lane *const lane = lane_for(rank, call->on_host);
    enum ox_status status = OX_OK;
    if (sends) {
        comm_block_write(&block, 0, data, bytes);
        status = ox_comm_send(rank->comm, &(struct ox_comm_send){
            .peer = peer, .source = block.at, .bytes = bytes, .on_host = call->on_host, .lane = lane,
            .what = call->what});
        status = follow(rank, lane, status);
    } else {
        status = ox_comm_recv(rank->comm, &(struct ox_comm_recv){
            .peer = peer, .target = block.at, .bytes = bytes, .on_host = call->on_host, .lane = lane,
            .what = call->what});
        status = follow(rank, lane, status);
        if (status == OX_OK) {
            check_contents(&block, 0, bytes, data);
        }
    }
    free(data);
    comm_block_close(&block);
    return status;
}

static enum ox_status try_pair(struct comm_rank *rank, const struct comm_try *call) {
    const bool even = rank->rank % 2 == 0, alone = even && rank->rank + 1 == rank->count;
    if (alone) {
        return OX_OK;
    }
    const uint32_t peer = even ? rank->rank + 1 : rank->rank - 1;
    enum ox_status status = try_one_way(rank, call, peer, even);
    OX_THEN(status, try_one_way(rank, call, peer, !even));
    return status;
}

enum ox_status comm_try(struct comm_rank *rank, const struct comm_try *asked) {
    uint64_t cuts[OX_COMM_RANKS_MAX + 1];
    struct comm_try call = *asked;
    call.what = call.what != NULL ? call.what : "test";
    CHECK(comm_cuts(call.variant % 9, rank->count, cuts));
    const bool adds = call.on_host ? rank->world->adds_on_host : rank->world->adds;
    enum ox_status status = OX_OK;
    switch (call.kind) {
    case OX_COMM_REDUCE_SCATTER: status = adds ? try_reduce_scatter(rank, &call, cuts) : try_meet(rank, &call); break;
    case OX_COMM_GATHER: status = try_gather(rank, &call, cuts); break;
    case OX_COMM_EXCHANGE: status = try_exchange(rank, &call, cuts); break;
    case OX_COMM_MEET: status = try_meet(rank, &call); break;
    default: status = try_pair(rank, &call); break;
    }
    rank->status = status;
    return status;
}
