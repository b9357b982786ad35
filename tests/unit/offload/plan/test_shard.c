/* Where chunks lie, worked out by hand: on the drives, where the order of extents is part of the format of a store, and
 * in a slot of memory. The proof of a plan trusts this, as it knows chunks only by their sizes. */
#include "offload/plan/plan.h"
#include "tests/kit/test.h"

#include <math.h>
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
    const struct ox_chunk_layout layout = ox_shard_chunk_layout(&table.sizes, 2 * GROUP, sizeof(float));
    CHECK(layout.hi_bytes == 8192 && layout.state_offset == 8192 && layout.state_bytes == 16384);
    CHECK(layout.numbers_offset == 24576 && layout.numbers_bytes == 16384 && layout.bytes == 40960);
    ox_shard_table_close(&table);
}

/* A narrow unit: hi of 2176 bytes a group in whole pages, so that chunks of several have no gaps between them. */
static void test_narrow(void) {
    enum { PAGE = 4096, LONG = 32 * GROUP };
    static const uint64_t elems[UNITS] = {2 * LONG + 3 * GROUP, 2 * GROUP};
    struct ox_shard_table table, slice;
    struct ox_extent_spec extents[2 * CHUNKS];
    open_table(&table);
    CHECK(ox_shard_narrow(&table, 0, 2176) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "--chunk-elems 4096: weights in 8 bits (--base-dtype q8) need a multiple of 65536"));
    REQUIRE_OK(ox_shard_narrow(&table, 1, 2176)); /* one chunk has all of it */
    CHECK(ox_shard_hi_bytes(&table.shards[1], 2 * GROUP) == 2 * PAGE && !ox_shard_is_narrow(&table.shards[0]));
    ox_shard_table_close(&table);
    REQUIRE_OK(ox_shard_table_open(elems, UNITS, LONG, (struct ox_state_sizes){4096, 2080}, &table));
    ox_shard_fix(&table, 0, 0);
    REQUIRE_OK(ox_shard_narrow(&table, 0, 2176));
    ox_shard_extents(&table, extents);
    CHECK(extents[0].bytes == 17 * PAGE && extents[2].bytes == 17 * PAGE && extents[4].bytes == 2 * PAGE);
    CHECK(extents[1].bytes == 0 && extents[6].bytes == 2 * PAGE);
    CHECK(ox_shard_hi_offset(&table.shards[0], LONG) == 17 * PAGE);
    CHECK(ox_shard_hi_bytes(&table.shards[0], elems[0]) == 36 * PAGE);
    CHECK(ox_shard_extent_sums(&table).bytes == 36 * PAGE + 2 * PAGE + 4 * PAGE);
    CHECK(ox_shard_unit_bytes_per_elem(&table.shards[0]) == 1.0625);
    REQUIRE_OK(ox_shard_table_slice(&table, 2, 1, &slice));
    CHECK(slice.shards[0].elem_count == 3 * GROUP && ox_shard_is_narrow(&slice.shards[0]));
    ox_shard_table_close(&slice);
    ox_shard_table_close(&table);
}

static const struct {
    uint32_t count, idx, unit_idx;
    uint64_t elem_first, elem_count;
    uint32_t chunk_first, chunk_count;
    uint64_t stored_bytes;
} slices[] = {
    {1, 0, 0, 0, 5 * GROUP, 0, 3, 16384 + 16384 + 8192},
    {1, 0, 1, 0, 2 * GROUP, 3, 1, 16384},
    {2, 0, 0, 0, 4 * GROUP, 0, 2, 16384 + 16384},
    {2, 1, 0, 4 * GROUP, GROUP, 2, 1, 8192},
    {2, 0, 1, 0, 2 * GROUP, 3, 1, 16384},
    {2, 1, 1, 2 * GROUP, 0, 4, 0, 0}, /* one chunk for two ranks */
    {4, 1, 0, 2 * GROUP, 2 * GROUP, 1, 1, 16384},
    {4, 2, 0, 4 * GROUP, GROUP, 2, 1, 8192},
    {4, 3, 0, 5 * GROUP, 0, 3, 0, 0},
    {4, 3, 1, 2 * GROUP, 0, 4, 0, 0},
};

static void test_slices(void) {
    struct ox_shard_table whole, table;
    open_table(&whole);
    whole.shards[1].homes.state = OX_TIER_HOST;
    for (unsigned i = 0; i < sizeof slices / sizeof *slices; i++) {
        REQUIRE_OK(ox_shard_table_slice(&whole, slices[i].count, slices[i].idx, &table));
        const struct ox_shard *const shard = &table.shards[slices[i].unit_idx];
        CHECK(shard->elem_first == slices[i].elem_first && shard->elem_count == slices[i].elem_count);
        CHECK(shard->chunk_first == slices[i].chunk_first && shard->chunk_count == slices[i].chunk_count);
        CHECK(ox_shard_stored_bytes(&table, slices[i].unit_idx) == slices[i].stored_bytes);
        CHECK(shard->homes.weights == OX_TIER_NVME);
        CHECK(shard->homes.state == (slices[i].unit_idx == 1 ? OX_TIER_HOST : OX_TIER_NVME));
        CHECK(table.unit_count == UNITS && table.chunk_count == CHUNKS && table.chunk_elems == 2 * GROUP);
        ox_shard_table_close(&table);
    }
    ox_shard_table_close(&whole);
}

/* The second of two ranks has the third chunk of the first unit: element 0 of its slice lies in extents 4 and 5. */
static void test_chunk_of_slice(void) {
    struct ox_shard_table whole, table;
    open_table(&whole);
    REQUIRE_OK(ox_shard_table_slice(&whole, 2, 1, &table));
    const struct ox_chunk chunk = ox_shard_chunk(&table, 0, 0);
    CHECK(chunk.first == 0 && chunk.count == GROUP && chunk.hi_extent_idx == 4 && chunk.state_extent_idx == 5);
    const struct ox_store_sums sums = ox_shard_extent_sums(&table);
    CHECK(sums.extent_count == 2 * CHUNKS && sums.bytes == 4096 + 8192 && sums.extent_bytes_max == 8192);
    ox_shard_table_close(&table);
    ox_shard_table_close(&whole);
}

/* A store that some ranks have for themselves holds their chunks, numbered from 0 without gaps; also of a pipeline, of
 * which each coordinate holds other units. */
static void test_store_of_some_ranks(uint32_t pipe) {
    struct ox_shard_table whole;
    enum { COUNT = 4 };
    uint32_t owners[UNITS];
    open_table(&whole);
    for (uint32_t i = 0; i < UNITS; i++) {
        owners[i] = (i + 1) % pipe;
    }
    for (uint32_t shared = 1; shared <= COUNT; shared *= 2) {
        uint32_t chunk_count = 0;
        for (uint32_t first = 0; first < COUNT; first += shared) {
            bool has[CHUNKS] = {false};
            uint32_t seen = 0, all = 0;
            for (uint32_t idx = first; idx < first + shared; idx++) {
                struct ox_shard_table table;
                REQUIRE_OK(ox_plan_table_open(&whole, &(struct ox_plan_ranks){
                    .count = COUNT, .idx = idx, .per_store = shared, .pipe = pipe, .pipe_of = owners}, &table));
                all = table.chunk_count;
                for (uint32_t i = 0; i < UNITS; i++) {
                    for (uint32_t k = 0; k < table.shards[i].chunk_count; k++, seen++) {
                        const struct ox_chunk chunk = ox_shard_chunk(&table, i, k);
                        const uint32_t number = chunk.hi_extent_idx / 2;
                        CHECK(number < table.chunk_count && !has[number]);
                        has[number % CHUNKS] = true;
                    }
                }
                CHECK(ox_shard_extent_sums(&table).extent_count == 2 * all);
                ox_shard_table_close(&table);
            }
            CHECK(seen == all);
            chunk_count += all;
        }
        CHECK(chunk_count == CHUNKS);
    }
    ox_shard_table_close(&whole);
}

/* The slices of all ranks together have each extent of the whole model once, as the whole has it. */
static void test_slices_are_the_whole(void) {
    struct ox_shard_table whole, table;
    struct ox_extent_spec expected_extents[2 * CHUNKS], extents[2 * CHUNKS];
    open_table(&whole);
    ox_shard_extents(&whole, expected_extents);
    for (uint32_t count = 1; count <= 9; count++) {
        uint64_t bytes = 0, chunks = 0, past[UNITS] = {0};
        memset(extents, 0xff, sizeof extents);
        for (uint32_t idx = 0; idx < count; idx++) {
            REQUIRE_OK(ox_shard_table_slice(&whole, count, idx, &table));
            ox_shard_extents(&table, extents);
            bytes += ox_shard_extent_sums(&table).bytes;
            for (uint32_t i = 0; i < UNITS; i++) {
                CHECK(table.shards[i].elem_first == past[i]);
                past[i] += table.shards[i].elem_count;
                chunks += table.shards[i].chunk_count;
            }
            ox_shard_table_close(&table);
        }
        CHECK(past[0] == 5 * GROUP && past[1] == 2 * GROUP && chunks == CHUNKS);
        CHECK(bytes == ox_shard_extent_sums(&whole).bytes);
        CHECK(memcmp(extents, expected_extents, sizeof extents) == 0);
    }
    ox_shard_table_close(&whole);
}

/* Whole units are one chunk each, at the rank that has least; in a pipeline among those that hold them. */
static void test_deal(void) {
    enum { MANY = 9 };
    static const uint64_t elems[MANY] = {GROUP,     5 * GROUP, 5 * GROUP, GROUP, 5 * GROUP,
                                         3 * GROUP, 3 * GROUP, GROUP,     GROUP};
    static const struct ox_state_sizes sizes = {2 * GROUP, 8 * GROUP};
    static const bool whole[MANY] = {false, true, true, false, true, true, true};
    static const uint32_t pipe_of[MANY] = {0, 0, 1, 0, 0, 1, 0, 1, 1};
    for (uint32_t pipe = 1; pipe <= 2; pipe++) {
        for (uint32_t count = 1; count <= 3; count++) {
            struct ox_shard_table all, table;
            uint64_t has[3] = {0}, most = 0;
            uint32_t seen[MANY] = {0};
            REQUIRE_OK(ox_shard_table_open(elems, MANY, 2 * GROUP, sizes, &all));
            all.shards[1].sizes.rest_per_group = 4 * GROUP;
            REQUIRE_OK(ox_shard_deal(&all, whole, pipe == 1 ? NULL : pipe_of, count, 2));
            CHECK(all.chunk_count == MANY && ox_shard_chunk(&all, 1, 0).count == 5 * GROUP);
            for (uint32_t idx = 0; idx < count; idx++) {
                REQUIRE_OK(ox_shard_table_slice(&all, count, idx, &table));
                for (uint32_t i = 0; i < MANY; i++) {
                    const struct ox_shard *const shard = &table.shards[i];
                    CHECK(!whole[i] || shard->elem_count == shard->chunk_count * elems[i]);
                    CHECK(shard->elem_count == 0 || !whole[i] || shard->elem_first == 0);
                    seen[i] += shard->chunk_count;
                    has[idx] += shard->elem_count;
                }
                most = has[idx] > most ? has[idx] : most;
                ox_shard_table_close(&table);
            }
            for (uint32_t i = 0; i < MANY; i++) {
                CHECK(seen[i] == 1);
            }
            CHECK(most <= (count == 1 ? 25 : count == 2 ? 14 : 11) * (uint64_t)GROUP);
            CHECK(ox_shard_bytes_per_elem(&all) == 12 - 4 * 5.0 / 25);
            ox_shard_table_close(&all);
        }
    }
}

/* Chunks by which ranks divide the model evenly, and no smaller ones than asked for; one rank always has the same. */
static void test_choose_chunk(void) {
    enum { UNIT_COUNT = 3 };
    static const struct {
        uint64_t elems[UNIT_COUNT];
        uint32_t ranks;
        uint64_t least, chunk;
        double excess, usual; /* with that chunk, and with 262144 */
    } cases[] = {
        {{30000, 30000, 48}, 1, GROUP, 262144, 1, 1},
        {{32768, 32768, 4096}, 4, GROUP, 2048, 4.0 * (8192 + 8192 + 2048) / 69632, 4}, /* the last does not divide */
        {{32768, 32768, 4096}, 4, 4096, 8192, 4.0 * (8192 + 8192 + 4096) / 69632, 4},
        {{32768, 32768, 4096}, 4, OX_SHARD_CHUNK_LEAST, 262144, 4, 4}, /* no better than the usual */
        {{65536, 65536, 0}, 4, GROUP, 16384, 1, 4},
        {{65536, 65536, 0}, 3, GROUP, 2048, 3.0 * 22528 / 65536, 3}, /* with 8192 and with 4096 it is 1.125 */
        {{212224, 131072, 0}, 2, OX_SHARD_CHUNK_LEAST, 65536, 2.0 * (131072 + 65536) / 343296, 2},
        {{4 << 20, 4 << 20, 0}, 8, OX_SHARD_CHUNK_LEAST, 262144, 1, 1},
        {{218112000, 218112000, 4096}, 8, GROUP, 262144, 1, 1}, /* blocks of a model of 8 billion parameters */
        {{1, 1, 1}, 2, GROUP, 262144, 2, 2},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint64_t chunk =
            ox_shard_choose_chunk(cases[i].elems, UNIT_COUNT, cases[i].ranks, cases[i].least);
        const double excess = ox_shard_excess(cases[i].elems, UNIT_COUNT, chunk, cases[i].ranks);
        const double usual = ox_shard_excess(cases[i].elems, UNIT_COUNT, OX_SHARD_CHUNK_ELEMS, cases[i].ranks);
        if (chunk != cases[i].chunk || fabs(excess - cases[i].excess) > 0.01 || fabs(usual - cases[i].usual) > 0.01) {
            printf("case %u: chunks of %llu, %.4f times a part, usually %.4f\n", i, (unsigned long long)chunk, excess,
                   usual);
            test_failure_count++;
        }
    }
}

int main(void) {
    test_extents();
    test_slices();
    test_chunk_of_slice();
    for (uint32_t pipe = 1; pipe <= 4; pipe *= 2) {
        test_store_of_some_ranks(pipe);
    }
    test_slices_are_the_whole();
    test_deal();
    test_layout();
    test_narrow();
    test_choose_chunk();
    return test_end();
}
