/* Placement: nothing overlaps, nothing exceeds an allowance, drives share the load. */
#include "nvme/store_impl.h"
#include "tests/kit/test.h"

#include "base/prng/prng.h"

#include <string.h>

enum { EXTENTS_MAX = 200, SPOOLS_MAX = 20 };

static bool apart(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
    return a + a_bytes <= b || b + b_bytes <= a;
}

/* Both slots of every extent and every spool extent, as ranges of their files. */
static void check_ranges(const struct ox_store_layout *layout, const uint64_t *bytes_max) {
    struct range {
        uint32_t drive_idx;
        uint64_t from, bytes;
    } ranges[2 * EXTENTS_MAX + SPOOLS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < layout->extent_count; i++) {
        const struct ox_store_place *const place = &layout->places[i];
        for (uint32_t generation = 0; generation < 2; generation++) {
            ranges[count++] = (struct range){
                .drive_idx = place->drive_idx,
                .from = layout->state_offset + generation * layout->generation_bytes[place->drive_idx] +
                        place->offset,
                .bytes = layout->extents[i].bytes,
            };
        }
    }
    for (uint32_t i = 0; i < layout->spool_count; i++) {
        ranges[count++] =
            (struct range){layout->spools[i].drive_idx, layout->spools[i].offset, layout->spool_bytes[i]};
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct range *const a = &ranges[i];
        CHECK(a->drive_idx < layout->drive_count && a->from % OX_IO_ALIGN_BYTES == 0);
        CHECK(a->from >= layout->state_offset && a->from + a->bytes <= layout->file_bytes[a->drive_idx]);
        for (uint32_t j = 0; j < i; j++) {
            CHECK(a->drive_idx != ranges[j].drive_idx ||
                  apart(a->from, a->bytes, ranges[j].from, ranges[j].bytes));
        }
    }
    for (uint32_t i = 0; i < layout->drive_count; i++) {
        CHECK(layout->file_bytes[i] <= bytes_max[i]);
    }
}

static void random_layouts(void) {
    uint32_t fit_count = 0;
    for (uint32_t seed = 0; seed < 120; seed++) {
        struct ox_extent_spec extents[EXTENTS_MAX];
        uint64_t spools[SPOOLS_MAX], bytes_max[OX_STORE_DRIVES_MAX], next = 0;
#define DRAW(n) ((uint64_t)(ox_uniform(seed, 1, next++) * (double)(n)))
        const uint32_t drive_count = 1 + (uint32_t)DRAW(5), extent_count = 1 + (uint32_t)DRAW(60);
        const uint32_t spool_count = (uint32_t)DRAW(SPOOLS_MAX);
        for (uint32_t i = 0; i < extent_count; i++) {
            extents[i].bytes = 4096 * (1 + DRAW(30));
            extents[i].head_bytes = 4096 * DRAW(extents[i].bytes / 4096 + 1);
        }
        for (uint32_t i = 0; i < spool_count; i++) {
            spools[i] = 4096 * DRAW(50);
        }
        for (uint32_t i = 0; i < drive_count; i++) {
            bytes_max[i] = OX_STORE_GEOMETRY_OFFSET + 3 * 4096 + DRAW(6 << 20);
        }
        struct ox_store_layout layout = {0};
        enum ox_status status = ox_store_layout_open(extents, extent_count, bytes_max, drive_count, &layout);
        if (status == OX_OK) {
            status = ox_store_layout_add_spool(&layout, spools, spool_count, bytes_max);
        }
        CHECK(status == OX_OK || status == OX_E_CONFIG);
        if (status == OX_OK) {
            fit_count++;
            check_ranges(&layout, bytes_max);
        }
        ox_store_layout_close(&layout);
    }
    CHECK(fit_count > 20 && fit_count < 120);
}

static void shares(void) {
    enum { COUNT = 90 };
    struct ox_extent_spec extents[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        extents[i] = (struct ox_extent_spec){1 << 20, 0};
    }
    /* Allowances differ, but each would hold its equal share: round robin. */
    const uint64_t wide[3] = {OX_GIB, 2 * OX_GIB, 70 * OX_MIB};
    struct ox_store_layout layout = {0};
    REQUIRE_OK(ox_store_layout_open(extents, COUNT, wide, 3, &layout));
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK(layout.places[i].drive_idx == i % 3);
    }
    ox_store_layout_close(&layout);
    /* A small drive is filled, with extents spread over the list; the others share the rest equally. */
    const uint64_t narrow[3] = {OX_GIB, 24 * OX_MIB, OX_GIB};
    REQUIRE_OK(ox_store_layout_open(extents, COUNT, narrow, 3, &layout));
    CHECK(layout.generation_bytes[1] == 10 * OX_MIB);
    CHECK(layout.generation_bytes[0] == 40 * OX_MIB && layout.generation_bytes[2] == 40 * OX_MIB);
    uint32_t early = 0;
    for (uint32_t i = 0; i < COUNT / 2; i++) {
        early += layout.places[i].drive_idx == 1;
    }
    CHECK(early >= 4 && early <= 6);
    ox_store_layout_close(&layout);
    /* To the byte, and one byte less. */
    const struct ox_extent_spec one = {8192, 4096};
    uint64_t exact = OX_STORE_GEOMETRY_OFFSET + 3 * 4096 + 2 * 8192;
    REQUIRE_OK(ox_store_layout_open(&one, 1, &exact, 1, &layout));
    CHECK(layout.file_bytes[0] == exact);
    ox_store_layout_close(&layout);
    exact--;
    CHECK(ox_store_layout_open(&one, 1, &exact, 1, &layout) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "allow more") != NULL);
    const struct ox_extent_spec odd[] = {
        {4000, 0}, {4096, 8192}, {0, 0}, {4096, 100}, {UINT64_MAX / 4096 * 4096, 0}};
    for (unsigned i = 0; i < sizeof odd / sizeof *odd; i++) {
        memset(&layout, 0, sizeof layout);
        CHECK(ox_store_layout_open(&odd[i], 1, wide, 1, &layout) == OX_E_CONFIG);
    }
    const uint64_t odd_spool = 4000;
    const struct ox_store_config config = {.bytes_max = wide, .drive_count = 1, .extents = &one, .extent_count = 1,
                                           .spool_bytes = &odd_spool, .spool_count = 1};
    CHECK(ox_store_fits(&config) == OX_E_CONFIG && strstr(ox_error_text(), "4000 bytes are not a multiple") != NULL);
    const struct ox_store_sums sums = {.bytes = one.bytes, .extent_bytes_max = one.bytes, .extent_count = 1};
    CHECK(!ox_store_surely_fits(&config, &sums));
    const uint64_t even_spool = 4096;
    struct ox_store_config even = config;
    even.spool_bytes = &even_spool;
    CHECK(ox_store_fits(&even) == OX_OK && ox_store_surely_fits(&even, &sums));
}

/* A drive gets by its speed, also where another is full; old stores, without speeds, lie as they did. */
static void speeds(void) {
    enum { COUNT = 100 };
    struct ox_extent_spec extents[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        extents[i] = (struct ox_extent_spec){1 << 20, 0};
    }
    const uint64_t wide[3] = {OX_GIB, OX_GIB, OX_GIB};
    struct ox_store_layout layout = {.speeds = {7000, 2000, 1000}};
    REQUIRE_OK(ox_store_layout_open(extents, COUNT, wide, 3, &layout));
    CHECK(layout.generation_bytes[0] == 70 * OX_MIB);
    CHECK(layout.generation_bytes[1] == 20 * OX_MIB && layout.generation_bytes[2] == 10 * OX_MIB);
    uint32_t slow_early = 0;
    for (uint32_t i = 0; i < COUNT / 2; i++) {
        slow_early += layout.places[i].drive_idx == 2;
    }
    CHECK(slow_early >= 4 && slow_early <= 6);
    const uint64_t spools[COUNT / 10] = {OX_MIB, OX_MIB, OX_MIB, OX_MIB, OX_MIB, OX_MIB, OX_MIB, OX_MIB, OX_MIB,
                                        OX_MIB};
    REQUIRE_OK(ox_store_layout_add_spool(&layout, spools, COUNT / 10, wide));
    check_ranges(&layout, wide);
    uint32_t on_first = 0;
    for (uint32_t i = 0; i < COUNT / 10; i++) {
        on_first += layout.spools[i].drive_idx == 0;
    }
    CHECK(on_first == 7);
    ox_store_layout_close(&layout);
    /* The fastest is small: 30 MiB of state; the others share the rest two to one. */
    const uint64_t narrow[3] = {64 * OX_MIB, OX_GIB, OX_GIB};
    layout = (struct ox_store_layout){.speeds = {7000, 2000, 1000}};
    REQUIRE_OK(ox_store_layout_open(extents, COUNT, narrow, 3, &layout));
    CHECK(layout.generation_bytes[0] == 30 * OX_MIB);
    CHECK(layout.generation_bytes[1] >= 46 * OX_MIB && layout.generation_bytes[1] <= 47 * OX_MIB);
    ox_store_layout_close(&layout);
    /* Any numbers do, and one that was not measured still gets something when the others are full. */
    layout = (struct ox_store_layout){.speeds = {UINT64_MAX, UINT64_MAX, 0}};
    const uint64_t tight[3] = {84 * OX_MIB, 84 * OX_MIB, OX_GIB};
    REQUIRE_OK(ox_store_layout_open(extents, COUNT, tight, 3, &layout));
    CHECK(layout.generation_bytes[0] == 40 * OX_MIB && layout.generation_bytes[2] == 20 * OX_MIB);
    check_ranges(&layout, tight);
    ox_store_layout_close(&layout);
}

int main(void) {
    random_layouts();
    shares();
    speeds();
    return test_end();
}
