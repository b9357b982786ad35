/* Flipped bits in data, tables, roots and headers: each is harmless or reported, and none gives wrong data.
 *
 *     test_store_damage [--count FLIPS] */
#include "nvme/store_impl.h"
#include "tests/kit/store/store_kit.h"

#include "base/prng/prng.h"

#include <string.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { FLIPS_USUAL = 300 };
#else
enum { FLIPS_USUAL = 3000 };
#endif
enum { LAST_STEP = 5 };

struct rig {
    struct kit kit;
    struct ox_io_backend *sim;
    struct ox_store *store;
    struct ox_store_port *port;
    struct ox_store_layout layout; /* layout of the store's files; its lists are not used after a close */
    uint32_t generation;           /* where the last commit lies */
    uint64_t seq;
};

static void rig_reopen(struct rig *rig) {
    REQUIRE_OK(ox_store_open(&rig->kit.config, &rig->store));
    REQUIRE_OK(ox_store_port_open(rig->store, &rig->port));
}

static void rig_shut(struct rig *rig) {
    ox_store_port_close(&rig->port);
    ox_store_close(&rig->store);
}

/* A closed store with steps up to LAST_STEP. */
static void rig_open(struct rig *rig, uint32_t drive_count) {
    memset(rig, 0, sizeof *rig);
    REQUIRE_OK(ox_io_sim_open(1, &rig->sim));
    kit_init(&rig->kit, rig->sim, "/sim", drive_count);
    REQUIRE_OK(ox_store_create(&rig->kit.config, &rig->store));
    REQUIRE_OK(ox_store_port_open(rig->store, &rig->port));
    for (uint64_t step = 1; step <= LAST_STEP; step++) {
        REQUIRE_OK(kit_commit(rig->store, rig->port, step));
    }
    rig->layout = rig->store->layout;
    rig->generation = rig->store->root->generation;
    rig->seq = rig->store->root->seq;
    rig_shut(rig);
}

static void rig_close(struct rig *rig) {
    rig_shut(rig);
    ox_io_sim_close(&rig->sim);
}

static void flip(struct rig *rig, uint32_t drive_idx, uint64_t byte) {
    char path[64];
    snprintf(path, sizeof path, "/sim/offload-store-%u.ox", drive_idx);
    CHECK(ox_io_sim_flip_bit(rig->sim, path, byte, byte % 8));
}

static void flip_root(struct rig *rig, uint64_t seq, uint32_t drive_idx, uint32_t region) {
    flip(rig, drive_idx,
         region * (uint64_t)OX_STORE_REGION_STRIDE +
             (1 + seq % OX_STORE_RING_LEN) * (uint64_t)OX_STORE_BLOCK_BYTES + 100);
}

static void flip_table(struct rig *rig, uint32_t drive_idx, uint32_t generation) {
    flip(rig, drive_idx, rig->layout.table_offset[generation] + 9);
}

static void expect_step(struct rig *rig, uint64_t step) {
    bool wrong = false;
    const enum ox_status status = kit_verify(rig->store, rig->port, step, &wrong);
    CHECK(status == OX_OK && !wrong);
    if (status != OX_OK) {
        printf("%s\n", ox_error_text());
    }
}

static void expect_corrupt(struct rig *rig, const char *word) {
    CHECK(ox_store_open(&rig->kit.config, &rig->store) == OX_E_CORRUPT);
    CHECK(strstr(ox_error_text(), "/sim/offload-store-") != NULL && strstr(ox_error_text(), word) != NULL);
    if (strstr(ox_error_text(), word) == NULL) {
        printf("%s\n", ox_error_text());
    }
}

static void data(void) {
    struct rig rig;
    rig_open(&rig, 2);
    rig_reopen(&rig);
    unsigned char *const buffer = kit_buffer(KIT_BUFFER_BYTES);
    for (uint32_t i = 0; i < KIT_EXTENT_COUNT; i++) {
        const struct ox_extent_spec *const spec = &kit_extents[i];
        const struct ox_store_op whole = {.kind = OX_STORE_READ, .extent_idx = i, .buffer = buffer};
        const struct ox_store_op head = {.kind = OX_STORE_READ_HEAD, .extent_idx = i, .buffer = buffer};
        const uint32_t drive_idx = rig.store->layout.places[i].drive_idx;
        const uint64_t offset = ox_store_slot_offset(rig.store, i, rig.generation);
        const uint64_t bytes[] = {0, spec->bytes - 1, spec->bytes / 2, spec->head_bytes % spec->bytes};
        for (unsigned j = 0; j < sizeof bytes / sizeof *bytes; j++) {
            flip(&rig, drive_idx, offset + bytes[j]);
            CHECK(ox_store_run(rig.port, &whole, 1) == OX_E_CORRUPT);
            char want[64], path[64];
            snprintf(want, sizeof want, "extent %u of step %d ", i, LAST_STEP);
            snprintf(path, sizeof path, "/sim/offload-store-%u.ox", drive_idx);
            CHECK(strstr(ox_error_text(), want) != NULL && strstr(ox_error_text(), path) != NULL);
            if (spec->head_bytes > 0) {
                CHECK(ox_store_run(rig.port, &head, 1) ==
                      (bytes[j] < spec->head_bytes ? OX_E_CORRUPT : OX_OK));
            }
            flip(&rig, drive_idx, offset + bytes[j]);
            /* Damage to the other generation changes nothing. */
            flip(&rig, drive_idx, ox_store_slot_offset(rig.store, i, rig.generation ^ 1) + bytes[j]);
            REQUIRE_OK(ox_store_run(rig.port, &whole, 1));
        }
    }
    free(buffer);
    expect_step(&rig, LAST_STEP);
    rig_close(&rig);
}

static void tables(void) {
    struct rig rig;
    rig_open(&rig, 2);
    flip_table(&rig, 0, rig.generation);
    rig_reopen(&rig);
    expect_step(&rig, LAST_STEP); /* from the other drive */
    rig_shut(&rig);

    flip_table(&rig, 1, rig.generation);
    rig_reopen(&rig);
    expect_step(&rig, LAST_STEP - 1);
    /* Once a transaction has begun, the rejected root must not become valid again, even if its table does. */
    REQUIRE_OK(ox_store_begin(rig.store, LAST_STEP));
    REQUIRE_OK(kit_write(rig.store, rig.port, 99, 2));
    ox_store_abort(rig.store);
    rig_shut(&rig);
    flip_table(&rig, 0, rig.generation);
    flip_table(&rig, 1, rig.generation);
    rig_reopen(&rig);
    expect_step(&rig, LAST_STEP - 1);
    REQUIRE_OK(kit_commit(rig.store, rig.port, LAST_STEP));
    expect_step(&rig, LAST_STEP);
    rig_close(&rig);

    /* Nor if the root that took its place is lost as well. */
    rig_open(&rig, 1);
    flip_table(&rig, 0, rig.generation);
    rig_reopen(&rig);
    REQUIRE_OK(ox_store_begin(rig.store, LAST_STEP));
    REQUIRE_OK(kit_write(rig.store, rig.port, 99, 2));
    rig_shut(&rig);
    flip_table(&rig, 0, rig.generation);
    flip_root(&rig, rig.seq + 1, 0, 0);
    flip_root(&rig, rig.seq + 1, 0, 1);
    rig_reopen(&rig);
    expect_step(&rig, LAST_STEP - 1);
    rig_close(&rig);

    /* The generation before cannot be used if a later attempt has begun to overwrite it. */
    rig_open(&rig, 2);
    rig_reopen(&rig);
    REQUIRE_OK(ox_store_begin(rig.store, LAST_STEP + 1));
    REQUIRE_OK(kit_write(rig.store, rig.port, 99, 1));
    rig_shut(&rig);
    flip_table(&rig, 0, rig.generation);
    flip_table(&rig, 1, rig.generation);
    expect_corrupt(&rig, "resume from a checkpoint");
    rig_close(&rig);
}

static void roots(void) {
    struct rig rig;
    rig_open(&rig, 2);
    flip_root(&rig, rig.seq, 0, 0);
    flip_root(&rig, rig.seq, 1, 0);
    flip_root(&rig, rig.seq, 1, 1);
    rig_reopen(&rig);
    expect_step(&rig, LAST_STEP);
    rig_shut(&rig);
    flip_root(&rig, rig.seq, 0, 1);
    rig_reopen(&rig);
    expect_step(&rig, LAST_STEP - 1);
    REQUIRE_OK(kit_commit(rig.store, rig.port, LAST_STEP));
    expect_step(&rig, LAST_STEP);
    rig_close(&rig);

    rig_open(&rig, 1);
    for (uint64_t seq = 0; seq <= rig.seq; seq++) {
        flip_root(&rig, seq, 0, 0);
        flip_root(&rig, seq, 0, 1);
    }
    expect_corrupt(&rig, "no valid root");
    rig_close(&rig);
}

static void headers(void) {
    struct rig rig;
    rig_open(&rig, 2);
    flip(&rig, 0, 50);
    flip(&rig, 1, OX_STORE_REGION_STRIDE + 50);
    rig_reopen(&rig);
    expect_step(&rig, LAST_STEP);
    rig_shut(&rig);
    flip(&rig, 1, 50);
    expect_corrupt(&rig, "headers are damaged");
    rig_close(&rig);

    /* The list of extents is read only if the caller gives none. */
    rig_open(&rig, 2);
    flip(&rig, 0, OX_STORE_GEOMETRY_OFFSET + 3);
    rig.kit.config.extents = NULL;
    rig_reopen(&rig);
    expect_step(&rig, LAST_STEP);
    rig_shut(&rig);
    flip(&rig, 1, OX_STORE_GEOMETRY_OFFSET + 3);
    expect_corrupt(&rig, "list of extents is damaged");
    rig.kit.config.extents = kit_extents;
    rig_reopen(&rig);
    expect_step(&rig, LAST_STEP);
    rig_close(&rig);
}

enum { SUMS_MAX = 32 };

static uint32_t sums_take(const struct ox_store *store, uint64_t *sums, uint32_t count) {
    for (uint32_t i = 0; i < store->layout.extent_count; i++) {
        sums[count++] = store->tables[store->root->generation][i].head;
        sums[count++] = store->tables[store->root->generation][i].rest;
    }
    return count;
}

/* A checksum depends on run, extent, part, step and attempt: equal data never has equal checksums. */
static void seeds(void) {
    static const struct ox_extent_spec same[] = {{8192, 4096}, {8192, 4096}};
    uint64_t sums[SUMS_MAX];
    uint32_t count = 0;
    unsigned char *const zeros = kit_buffer(8192);
    memset(zeros, 0, 8192);
    for (uint64_t run = 0; run < 2; run++) {
        struct rig rig = {0};
        REQUIRE_OK(ox_io_sim_open(1, &rig.sim));
        kit_init(&rig.kit, rig.sim, "/sim", 1);
        rig.kit.config.extents = same;
        rig.kit.config.extent_count = 2;
        rig.kit.config.run_id[1] += run;
        REQUIRE_OK(ox_store_create(&rig.kit.config, &rig.store));
        REQUIRE_OK(ox_store_port_open(rig.store, &rig.port));
        for (uint64_t step = 1; step <= 3; step++) {
            const struct ox_store_op ops[] = {{.kind = OX_STORE_WRITE, .extent_idx = 0, .buffer = zeros},
                                              {.kind = OX_STORE_WRITE, .extent_idx = 1, .buffer = zeros}};
            for (int attempt = 0; attempt < (step == 2 ? 2 : 1); attempt++) {
                REQUIRE_OK(ox_store_begin(rig.store, step));
                REQUIRE_OK(ox_store_run(rig.port, ops, 2));
                if (step == 2 && attempt == 0) { /* aborted: notes what it would have recorded */
                    const struct ox_extent_sum *const idle = rig.store->tables[rig.store->root->generation ^ 1];
                    sums[count++] = idle[0].head;
                    sums[count++] = idle[0].rest;
                    ox_store_abort(rig.store);
                }
            }
            REQUIRE_OK(ox_store_commit(rig.store, NULL, 0));
            count = sums_take(rig.store, sums, count);
        }
        rig_close(&rig);
    }
    CHECK(count == 2 * (3 * 4 + 2));
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < i; j++) {
            CHECK(sums[i] != sums[j]);
        }
    }
    free(zeros);
}

/* Where a flip lies, which decides the expected outcome. */
enum place { IN_STATE, IN_TABLE, IN_ROOT, ELSEWHERE, PLACE_COUNT };

struct tally {
    uint64_t flips, refused, stepped_back, unaffected;
};

static enum place place_of(const struct rig *rig, uint64_t byte) {
    const uint64_t root = (1 + rig->seq % OX_STORE_RING_LEN) * (uint64_t)OX_STORE_BLOCK_BYTES;
    const uint64_t in_region = byte % OX_STORE_REGION_STRIDE, table = rig->layout.table_offset[rig->generation];
    if (byte >= rig->layout.state_offset) {
        const uint64_t generation = (byte - rig->layout.state_offset) / rig->layout.generation_bytes[0];
        return generation == rig->generation ? IN_STATE : ELSEWHERE;
    }
    if (byte >= table && byte < table + rig->layout.table_bytes) {
        return IN_TABLE;
    }
    const bool in_ring = byte < OX_STORE_REGION_COUNT * (uint64_t)OX_STORE_REGION_STRIDE;
    return in_ring && in_region >= root && in_region < root + OX_STORE_BLOCK_BYTES ? IN_ROOT : ELSEWHERE;
}

/* Chooses by turns a byte of the newest state, of its table, root or another record, and of anything. */
static uint64_t choose_byte(const struct rig *rig, uint64_t idx) {
    const double at = ox_uniform(3, 0, idx);
    uint64_t from = 0, bytes = rig->layout.file_bytes[0];
    if (idx % 3 == 0) {
        from = rig->layout.state_offset + rig->generation * rig->layout.generation_bytes[0];
        bytes = rig->layout.generation_bytes[0];
    } else if (idx % 3 == 1 && idx % 2 == 0) {
        from = rig->layout.table_offset[rig->generation];
        bytes = rig->layout.table_bytes;
    } else if (idx % 3 == 1) {
        from = idx / 6 % 2 * OX_STORE_REGION_STRIDE +
               (1 + rig->seq % OX_STORE_RING_LEN) * (uint64_t)OX_STORE_BLOCK_BYTES;
        bytes = OX_STORE_BLOCK_BYTES;
    }
    return from + (uint64_t)(at * (double)bytes);
}

/* One copy of the newest root must be enough: a flip in one makes its checksum fail, and the other is used. */
static bool root_copy_is_sealed(const struct rig *rig, uint64_t byte) {
    struct ox_drive *drive = NULL;
    struct ox_io_queue *queue = NULL;
    struct ox_io_done done;
    unsigned char *const block = kit_buffer(OX_STORE_BLOCK_BYTES);
    REQUIRE_OK(rig->sim->drive_open(rig->sim, "/sim/offload-store-0.ox", OX_DRIVE_OPEN, &drive));
    REQUIRE_OK(rig->sim->queue_open(rig->sim, &drive, 1, 1, &queue));
    const struct ox_io_req req = {.kind = OX_IO_READ, .buffer = block, .bytes = OX_STORE_BLOCK_BYTES,
                                  .offset = byte / OX_STORE_BLOCK_BYTES * OX_STORE_BLOCK_BYTES};
    REQUIRE_OK(rig->sim->queue_submit(queue, 0, &req));
    REQUIRE_OK(rig->sim->queue_reap(queue, &done));
    const bool sealed = ox_store_block_is_sealed(block);
    rig->sim->queue_close(queue);
    rig->sim->drive_close(drive);
    free(block);
    return sealed;
}

/* Checks the outcome of one flip, or of none. */
static void look(struct rig *rig, enum place place, struct tally *tally) {
    bool wrong = false;
    struct ox_store_info info = {0};
    enum ox_status status = ox_store_open(&rig->kit.config, &rig->store);
    if (status == OX_OK) {
        ox_store_info(rig->store, &info);
        REQUIRE_OK(ox_store_port_open(rig->store, &rig->port));
        status = kit_verify(rig->store, rig->port, info.step, &wrong);
    }
    CHECK(!wrong && (status == OX_OK || status == OX_E_CORRUPT));
    tally->flips++;
    tally->refused += status != OX_OK;
    tally->stepped_back += status == OX_OK && info.step == LAST_STEP - 1;
    tally->unaffected += status == OX_OK && info.step == LAST_STEP;
    CHECK((status != OX_OK) == (place == IN_STATE));
    CHECK(status != OX_OK || info.step == (place == IN_TABLE ? LAST_STEP - 1 : LAST_STEP));
    rig_shut(rig);
}

/* Flips anywhere in the file. In the newest state they give an error, in its table the step before, in a root the other
 * copy; never wrong data, and never an error without damage. */
static void anywhere(uint64_t flip_count) {
    static const char *const names[PLACE_COUNT] = {"newest state", "newest table", "newest root", "elsewhere"};
    struct rig rig;
    struct tally tallies[PLACE_COUNT] = {{0}}, clean = {0};
    rig_open(&rig, 1);
    for (uint64_t i = 0; i < flip_count; i++) {
        const uint64_t byte = choose_byte(&rig, i);
        const enum place place = place_of(&rig, byte);
        flip(&rig, 0, byte);
        CHECK(place != IN_ROOT || !root_copy_is_sealed(&rig, byte));
        look(&rig, place, &tallies[place]);
        flip(&rig, 0, byte);
        if (i % 16 == 0) {
            look(&rig, ELSEWHERE, &clean);
        }
    }
    for (int place = 0; place < PLACE_COUNT; place++) {
        const struct tally *const tally = &tallies[place];
        printf("%s: %llu flips, %llu refused, %llu back by a step, %llu without effect\n", names[place],
               (unsigned long long)tally->flips, (unsigned long long)tally->refused,
               (unsigned long long)tally->stepped_back, (unsigned long long)tally->unaffected);
        CHECK(tally->flips > flip_count / 16);
    }
    printf("clean: %llu looks, %llu alarms\n", (unsigned long long)clean.flips,
           (unsigned long long)(clean.refused + clean.stepped_back));
    CHECK(clean.flips > 0 && clean.unaffected == clean.flips);
    rig_close(&rig);
}

int main(int argc, char **argv) {
    data();
    tables();
    roots();
    headers();
    seeds();
    anywhere(kit_count(argc, argv, FLIPS_USUAL));
    return test_end();
}
