/* Flipped bits in data, tables, roots and headers: every one is survived or named, none gives wrong data. */
#include "nvme/store_impl.h"
#include "tests/store_kit.h"

#include "base/prng.h"

#include <string.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { FLIPS = 300 };
#else
enum { FLIPS = 3000 };
#endif
enum { LAST_STEP = 5 };

struct rig {
    struct kit kit;
    struct ox_io_backend *sim;
    struct ox_store *store;
    struct ox_store_port *port;
    struct ox_store_layout layout; /* of the store's files; its lists are not used after a close */
    uint32_t generation;           /* of the last commit */
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
            /* The other generation is nobody's business. */
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
    /* Once a transaction is begun, the rejected root must not come back, even if its table does. */
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

    /* Not even when the root that took its place is lost as well. */
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

    /* The generation before is no refuge when a later attempt has begun to overwrite it. */
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

    /* The list of extents is needed only where nobody brings it. */
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

/* Anywhere in the file: the newest step, the one before, or an error; never a wrong word. */
static void anywhere(void) {
    struct rig rig;
    rig_open(&rig, 1);
    const uint64_t file_bytes = rig.layout.file_bytes[0], state_from = rig.layout.state_offset;
    uint64_t detected = 0, whole = 0;
    for (uint64_t i = 0; i < FLIPS; i++) {
        /* Half of them where the state lies, the others among the records. */
        const double at = ox_uniform(3, 0, i);
        const uint64_t byte = i % 2 == 0 ? state_from + (uint64_t)(at * (double)(file_bytes - state_from))
                                         : (uint64_t)(at * (double)state_from);
        flip(&rig, 0, byte);
        enum ox_status status = ox_store_open(&rig.kit.config, &rig.store);
        if (status == OX_OK) {
            bool wrong = false;
            struct ox_store_info info;
            ox_store_info(rig.store, &info);
            REQUIRE_OK(ox_store_port_open(rig.store, &rig.port));
            status = kit_verify(rig.store, rig.port, info.step, &wrong);
            CHECK(!wrong && (info.step == LAST_STEP || info.step == LAST_STEP - 1));
        }
        const uint64_t from = ox_max_u64(byte, state_from) - state_from;
        const bool in_newest = byte >= state_from && from / rig.layout.generation_bytes[0] == rig.generation;
        CHECK((status == OX_E_CORRUPT) == in_newest);
        detected += status != OX_OK;
        whole += status == OX_OK;
        rig_shut(&rig);
        flip(&rig, 0, byte);
    }
    printf("%d flips: %llu detected, %llu without effect\n", FLIPS, (unsigned long long)detected,
           (unsigned long long)whole);
    CHECK(detected > FLIPS / 8 && whole > FLIPS / 8);
    rig_close(&rig);
}

int main(void) {
    data();
    tables();
    roots();
    headers();
    anywhere();
    return test_end();
}
