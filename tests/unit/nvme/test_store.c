/* The store on a disk in memory: transactions, aborts, reopening, refusals, spools, several ports. */
#include "nvme/store_impl.h"
#include "tests/kit/store/store_kit.h"

#include <string.h>

static void transactions(uint32_t drive_count) {
    struct ox_io_backend *sim = NULL;
    REQUIRE_OK(ox_io_sim_open(drive_count, &sim));
    struct kit kit;
    kit_init(&kit, sim, "/sim", drive_count);
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    bool wrong = false;
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    struct ox_store_info info;
    ox_store_info(store, &info);
    CHECK(!info.committed && info.step == 0 && info.extent_count == KIT_EXTENT_COUNT && info.meta_bytes == 0);
    for (uint64_t step = 0; step < 20; step++) { /* the first transaction may be step 0 */
        REQUIRE_OK(ox_store_port_open(store, &port));
        REQUIRE_OK(kit_commit(store, port, step));
        REQUIRE_OK(kit_verify(store, port, step, &wrong));
        CHECK(!wrong);
        if (step % 3 == 0) {
            /* An attempt that is given up leaves the old generation, before and after a reopening. */
            REQUIRE_OK(ox_store_begin(store, step + 1));
            REQUIRE_OK(kit_write(store, port, 1000, 1 + step % KIT_EXTENT_COUNT));
            REQUIRE_OK(kit_verify(store, port, step, &wrong));
            CHECK(!wrong);
            ox_store_abort(store);
        }
        ox_store_port_close(&port);
        if (step % 2 == 0) {
            ox_store_close(&store);
            REQUIRE_OK(ox_store_open(&kit.config, &store));
        }
        REQUIRE_OK(ox_store_port_open(store, &port));
        REQUIRE_OK(kit_verify(store, port, step, &wrong));
        CHECK(!wrong);
        ox_store_port_close(&port);
    }
    ox_store_info(store, &info);
    CHECK(info.committed && info.step == 19 && info.drive_count == drive_count && info.retry_count == 0);
    CHECK(info.run_id[0] == 0x1234 && info.run_id[1] == 0x5678 && info.config_hash == 0x9abc);
    CHECK(info.file_bytes > 2 * info.state_bytes && info.file_bytes <= drive_count * 4 * OX_MIB);
    ox_store_close(&store);
    ox_io_sim_close(&sim);
}

/* The bytes of one transaction, to the byte. */
static void counters(void) {
    struct ox_io_backend *sim = NULL;
    REQUIRE_OK(ox_io_sim_open(1, &sim));
    struct kit kit;
    kit_init(&kit, sim, "/sim", 3);
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(kit_commit(store, port, 1));
    struct ox_store_info before, after;
    ox_store_info(store, &before);
    REQUIRE_OK(kit_commit(store, port, 2));
    ox_store_info(store, &after);
    const uint64_t table_and_roots = 3 * (4096 + 2 * 4096);
    CHECK(after.write_bytes - before.write_bytes == after.state_bytes + table_and_roots);
    CHECK(after.flush_count - before.flush_count == 2 * 3);
    CHECK(after.read_bytes == before.read_bytes);
    bool wrong = false;
    REQUIRE_OK(kit_verify(store, port, 2, &wrong));
    uint64_t heads = 0;
    for (uint32_t i = 0; i < KIT_EXTENT_COUNT; i++) {
        heads += kit_extents[i].head_bytes;
    }
    ox_store_info(store, &before);
    CHECK(!wrong && before.read_bytes - after.read_bytes == after.state_bytes + heads);
    ox_store_port_close(&port);
    ox_store_close(&store);
    ox_io_sim_close(&sim);
}

static void open_refused(const struct kit *kit, enum ox_status want, const char *word) {
    struct ox_store *store = NULL;
    const enum ox_status status = ox_store_open(&kit->config, &store);
    CHECK(status == want && store == NULL);
    CHECK(strstr(ox_error_text(), word) != NULL);
    if (status != want || strstr(ox_error_text(), word) == NULL) {
        printf("wanted %s \"%s\", got %s: %s\n", ox_status_name(want), word, ox_status_name(status),
               ox_error_text());
    }
    ox_store_close(&store);
}

static void refusals(void) {
    struct ox_io_backend *sim = NULL;
    REQUIRE_OK(ox_io_sim_open(1, &sim));
    struct kit kit, other;
    kit_init(&kit, sim, "/sim", 2);
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    open_refused(&kit, OX_E_CONFIG, "offload-store-0.ox");
    other = kit;
    other.config.bytes_max = (uint64_t[2]){2 * OX_MIB, 2 * OX_MIB};
    CHECK(ox_store_create(&other.config, &store) == OX_E_CONFIG && store == NULL);
    open_refused(&kit, OX_E_CONFIG, "no such simulated file"); /* nothing was left */
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    open_refused(&kit, OX_E_BUSY, "in use");
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(kit_commit(store, port, 4));
    ox_store_port_close(&port);
    ox_store_close(&store);
    CHECK(ox_store_create(&kit.config, &store) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "exists already") != NULL);

    kit_init(&other, sim, "/sim", 2);
    other.config.run_id[1]++;
    open_refused(&other, OX_E_CONFIG, "holds run");
    kit_init(&other, sim, "/sim", 2);
    other.config.config_hash++;
    open_refused(&other, OX_E_CONFIG, "another model");
    kit_init(&other, sim, "/sim", 2);
    other.config.extent_count--;
    open_refused(&other, OX_E_CONFIG, "another model");
    kit_init(&other, sim, "/sim", 1);
    open_refused(&other, OX_E_CONFIG, "drive 1 of 2");
    kit_init(&other, sim, "/sim", 2);
    other.bytes_max[1] = 2 * OX_MIB;
    open_refused(&other, OX_E_CONFIG, "allow more");

    /* Without knowing anything of the run, as `inspect` does. */
    kit_init(&other, sim, "/sim", 2);
    other.config.extents = NULL;
    other.config.bytes_max = NULL;
    other.config.config_hash = other.config.run_id[0] = other.config.run_id[1] = 0;
    REQUIRE_OK(ox_store_open(&other.config, &store));
    CHECK(memcmp(ox_store_extents(store), kit_extents, sizeof kit_extents) == 0);
    bool wrong = false;
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(kit_verify(store, port, 4, &wrong));
    CHECK(!wrong);
    struct ox_drive_info drive;
    REQUIRE_OK(ox_store_drive_info(store, 1, &drive));
    CHECK(strcmp(drive.path, "/sim/offload-store-1.ox") == 0);
    CHECK(ox_store_drive_info(store, 2, &drive) == OX_E_CONFIG);
    ox_store_port_close(&port);
    ox_store_close(&store);
    ox_io_sim_close(&sim);
}

enum { PIECES = 200, PIECE_BYTES = 8192 };

/* More pieces than the map starts with; each goes its way, and a foreign byte is noticed. */
static void spools(void) {
    struct ox_io_backend *sim = NULL;
    REQUIRE_OK(ox_io_sim_open(1, &sim));
    struct kit kit;
    kit_init(&kit, sim, "/sim", 2);
    kit.spool_bytes[0] = 3 * PIECE_BYTES;
    kit.spool_bytes[1] = PIECES * PIECE_BYTES;
    kit.config.spool_bytes = kit.spool_bytes;
    kit.config.spool_count = 2;
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    unsigned char *const out = kit_buffer(PIECES * PIECE_BYTES);
    unsigned char *const in = kit_buffer(PIECES * PIECE_BYTES);
    struct ox_store_op ops[PIECES];
    for (uint64_t round = 0; round < 3; round++) {
        kit_fill(out, PIECES * PIECE_BYTES, round, 0);
        for (uint32_t i = 0; i < PIECES; i++) {
            ops[i] = (struct ox_store_op){.kind = OX_STORE_SPOOL_WRITE,
                                          .extent_idx = 1,
                                          .buffer = out + i * PIECE_BYTES,
                                          .spool_from = (uint64_t)i * PIECE_BYTES,
                                          .spool_len = PIECE_BYTES};
        }
        REQUIRE_OK(ox_store_run(port, ops, PIECES));
        REQUIRE_OK(kit_commit(store, port, round + 1)); /* state and spool do not touch each other */
        for (uint32_t i = 0; i < PIECES; i++) {
            ops[i].kind = OX_STORE_SPOOL_READ;
            ops[i].buffer = in + i * PIECE_BYTES;
        }
        REQUIRE_OK(ox_store_run(port, ops, PIECES));
        CHECK(memcmp(in, out, PIECES * PIECE_BYTES) == 0);
    }
    const struct ox_store_place *const place = &store->layout.spools[1];
    struct ox_drive_info info;
    REQUIRE_OK(ox_store_drive_info(store, place->drive_idx, &info));
    CHECK(ox_io_sim_flip_bit(sim, info.path, place->offset + 5 * PIECE_BYTES + 77, 2));
    CHECK(ox_store_run(port, &ops[4], 1) == OX_OK);
    CHECK(ox_store_run(port, &ops[5], 1) == OX_E_CORRUPT);
    CHECK(strstr(ox_error_text(), "spool extent 1") != NULL && strstr(ox_error_text(), info.path) != NULL);
    ox_store_port_close(&port);
    ox_store_close(&store);

    /* The next run may want other spools, or none. */
    bool wrong = false;
    kit.spool_bytes[1] = 64 * PIECE_BYTES;
    REQUIRE_OK(ox_store_open(&kit.config, &store));
    ox_store_close(&store);
    kit.config.spool_count = 0;
    REQUIRE_OK(ox_store_open(&kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(kit_verify(store, port, 3, &wrong));
    CHECK(!wrong);
    ox_store_port_close(&port);
    ox_store_close(&store);
    free(out);
    free(in);
    ox_io_sim_close(&sim);
}

static void several_ports(void) {
    struct ox_io_backend *sim = NULL;
    REQUIRE_OK(ox_io_sim_open(1, &sim));
    struct kit kit;
    kit_init(&kit, sim, "/sim", 3);
    kit.spool_bytes[0] = kit.spool_bytes[1] = KIT_EXTENT_COUNT * 4096;
    kit.config.spool_bytes = kit.spool_bytes;
    kit.config.spool_count = 2;
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(kit_commit(store, port, 0));
    for (uint64_t step = 1; step < 10; step++) {
        kit_commit_by_two(store, step, true);
        bool wrong = false;
        REQUIRE_OK(kit_verify(store, port, step, &wrong));
        CHECK(!wrong);
    }
    ox_store_port_close(&port);
    ox_store_close(&store);
    ox_io_sim_close(&sim);
}

int main(void) {
    transactions(1);
    transactions(3);
    counters();
    refusals();
    spools();
    several_ports();
    return test_end();
}
