/* Where chunks lie, worked out by hand: on the drives, where the order of extents is part of the format of a store, and
 * in a slot of memory. The proof of a plan trusts this, as it knows chunks only by their sizes. */
#include "offload/plan/shard.h"
#include "tests/kit/test.h"

#include <string.h>

enum { UNITS = 2, CHUNKS = 4, GROUP = OX_GROUP_ELEMS };

/* Two units of 5 and 2 groups in chunks of 2 groups: three chunks, the last of one group, and one chunk. A group has
 * 4096 bytes of lo and 2080 of moments. */
static void open_table(struct ox_shard_table *out) {
    static const uint64_t elems[UNITS] = {5 * GROUP, 2 * GROUP};
    REQUIRE_OK(ox_shard_table_open(elems, UNITS, 2 * GROUP, (struct ox_state_sizes){4096, 2080}, out));
}

static const struct {
    uint32_t unit_idx, chunk_idx, hi_extent_idx, state_extent_idx;
    uint64_t first, count, hi_bytes, state_bytes, lo_bytes;
} expected[CHUNKS] = {
    {0, 0, 0, 1, 0, 2 * GROUP, 8192, 8192 + 8192, 8192}, /* 4160 bytes of moments in whole pages */
    {0, 1, 2, 3, 2 * GROUP, 2 * GROUP, 8192, 8192 + 8192, 8192},
    {0, 2, 4, 5, 4 * GROUP, GROUP, 4096, 4096 + 4096, 4096},
    {1, 0, 6, 7, 0, 2 * GROUP, 8192, 8192 + 8192, 8192},
};

/* A chunk has two extents of the store: its hi, followed by its state, which begins with lo. */
static void test_extents(void) {
    struct ox_shard_table table;
    struct ox_extent_spec extents[2 * CHUNKS];
    open_table(&table);
    CHECK(table.chunk_count == CHUNKS);
    memset(extents, 0xff, sizeof extents);
    ox_shard_extents(&table, extents);
    for (int i = 0; i < CHUNKS; i++) {
        const struct ox_chunk chunk = ox_shard_chunk(&table, expected[i].unit_idx, expected[i].chunk_idx);
        CHECK(chunk.first == expected[i].first && chunk.count == expected[i].count);
        CHECK(chunk.hi_extent_idx == expected[i].hi_extent_idx);
        CHECK(chunk.state_extent_idx == expected[i].state_extent_idx);
        const struct ox_extent_spec *const hi = &extents[2 * i], *const state = &extents[2 * i + 1];
        CHECK(hi->bytes == expected[i].hi_bytes && hi->head_bytes == 0);
        CHECK(state->bytes == expected[i].state_bytes && state->head_bytes == expected[i].lo_bytes);
    }
    ox_shard_table_close(&table);
}

/* In a slot hi, state and the numbers follow each other without a gap. */
static void test_layout(void) {
    struct ox_shard_table table;
    open_table(&table);
    const struct ox_chunk_layout layout = ox_shard_chunk_layout(&table, 2 * GROUP, sizeof(float));
    CHECK(layout.hi_bytes == 8192 && layout.state_offset == 8192 && layout.state_bytes == 16384);
    CHECK(layout.numbers_offset == 24576 && layout.numbers_bytes == 16384 && layout.bytes == 40960);
    ox_shard_table_close(&table);
}

int main(void) {
    test_extents();
    test_layout();
    return test_end();
}
