/* Fixed extents of a store: only the first transaction writes them, every later one takes them over, in every
 * generation, also after a restart and a power cut; they have one place on the drives, may have no bytes, and are read
 * whatever transaction begins meanwhile. */
#include "tests/kit/store/store_kit.h"

#include <string.h>

enum { EXTENTS = 4, COMMITS = 5, FIXED_BYTES = 1 << 20, TABLES_BYTES = 64 << 10 };
static const struct ox_extent_spec extents[EXTENTS] = {
    {FIXED_BYTES, OX_EXTENT_FIXED}, {8192, 4096}, {0, OX_EXTENT_FIXED}, {20 << 10, 0}};
static const bool is_fixed[EXTENTS] = {true, false, true, false};

/* Writes what a commit asks for: all extents with bytes in the first one, then those that are not fixed. */
static uint64_t commit(struct kit_rig *rig, uint64_t step, bool first) {
    struct ox_store_info before, after;
    uint64_t bytes = 0;
    ox_store_info(rig->store, &before);
    REQUIRE_OK(ox_store_begin(rig->store, step));
    for (uint32_t i = 0; i < EXTENTS; i++) {
        if (extents[i].bytes > 0 && (first || !is_fixed[i])) {
            const struct ox_store_op op = {.kind = OX_STORE_WRITE, .extent_idx = i,
                                           .buffer = kit_buffer(extents[i].bytes)};
            kit_fill(op.buffer, extents[i].bytes, step, i);
            REQUIRE_OK(ox_store_run(rig->port, &op, 1));
            bytes += extents[i].bytes;
            free(op.buffer);
        }
    }
    REQUIRE_OK(ox_store_commit(rig->store, &step, sizeof step));
    ox_store_info(rig->store, &after);
    CHECK(after.write_bytes - before.write_bytes >= bytes);
    return after.write_bytes - before.write_bytes;
}

/* Reads every extent: a fixed one has what `first` wrote, the others what `step` wrote. */
static void expect(struct kit_rig *rig, uint64_t first, uint64_t step) {
    for (uint32_t i = 0; i < EXTENTS; i++) {
        if (extents[i].bytes > 0) {
            const struct ox_store_op op = {.kind = OX_STORE_READ, .extent_idx = i,
                                           .buffer = kit_buffer(extents[i].bytes)};
            REQUIRE_OK(ox_store_run(rig->port, &op, 1));
            CHECK(kit_matches(op.buffer, extents[i].bytes, is_fixed[i] ? first : step, i));
            free(op.buffer);
        }
    }
}

static void test_generations(uint32_t generations) {
    struct kit_rig rig;
    kit_rig_init(&rig, 11, 2);
    rig.kit.config.generations = generations;
    rig.kit.config.extents = extents;
    rig.kit.config.extent_count = EXTENTS;
    kit_rig_create(&rig);
    struct ox_store_info info;
    ox_store_info(rig.store, &info);
    CHECK(info.state_bytes == FIXED_BYTES + 8192 + (20 << 10)); /* of one generation */
    static uint64_t smallest; /* that of one generation */
    smallest = generations == 1 ? info.file_bytes : smallest;
    CHECK(info.file_bytes - smallest < FIXED_BYTES);
    const uint64_t whole = commit(&rig, 1, true);
    uint64_t later = 0;
    for (uint64_t step = 2; step < 2 + COMMITS; step++) {
        later = commit(&rig, step, false);
        expect(&rig, 1, step);
        kit_rig_reopen(&rig, step % 2 == 0);
        expect(&rig, 1, step);
    }
    printf("%u generations: the first commit writes %llu bytes, a later one %llu\n", generations,
           (unsigned long long)whole, (unsigned long long)later);
    CHECK(whole > FIXED_BYTES && later < TABLES_BYTES + 8192 + (20 << 10));
    kit_rig_close(&rig);
}

/* A read of a fixed extent may be under way while one transaction ends and the next begins to overwrite the generation
 * that was the last when the read began. */
static void test_read_beside(void) {
    struct kit_rig rig;
    struct ox_store_port *reader = NULL;
    uint64_t tag = 0;
    kit_rig_init(&rig, 12, 1);
    rig.kit.config.extents = extents;
    rig.kit.config.extent_count = EXTENTS;
    kit_rig_create(&rig);
    REQUIRE_OK(ox_store_port_open(rig.store, &reader));
    commit(&rig, 1, true);
    const struct ox_store_op op = {.kind = OX_STORE_READ, .extent_idx = 0, .buffer = kit_buffer(FIXED_BYTES),
                                   .tag = 7};
    REQUIRE_OK(ox_store_submit(reader, &op)); /* complete only when it is reaped */
    commit(&rig, 2, false);
    commit(&rig, 3, false);
    REQUIRE_OK(ox_store_reap(reader, &tag));
    CHECK(tag == 7 && kit_matches(op.buffer, FIXED_BYTES, 1, 0));
    free(op.buffer);
    ox_store_port_close(&reader);
    expect(&rig, 1, 3);
    kit_rig_close(&rig);
}

int main(void) {
    test_read_beside();
    for (uint32_t generations = 1; generations <= OX_STORE_GENERATIONS_MAX; generations++) {
        test_generations(generations);
    }
    return test_end();
}
