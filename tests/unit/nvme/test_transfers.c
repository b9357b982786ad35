/* The transfer queue: groups end apart, the first failure wins and stops what follows, and everything is in when a
 * drain returns, also with more operations than a port takes at a time. */
#include "nvme/transfers.h"
#include "tests/kit/store/store_kit.h"

#include <string.h>

enum { MANY = 2 * OX_STORE_OPS_MAX + 7, PIECE = OX_IO_ALIGN_BYTES };

struct rig {
    struct ox_io_backend *sim, *fault;
    struct kit kit;
    struct ox_store *store;
    struct ox_transfers transfers;
    unsigned char *buffer;
};

static void rig_open(struct rig *rig) {
    memset(rig, 0, sizeof *rig);
    REQUIRE_OK(ox_io_sim_open(1, &rig->sim));
    REQUIRE_OK(ox_io_fault_open(rig->sim, &rig->fault));
    kit_init(&rig->kit, rig->fault, "/sim", 1);
    rig->kit.spool_bytes[0] = 16 * PIECE;
    rig->kit.config.spool_bytes = rig->kit.spool_bytes;
    rig->kit.config.spool_count = 1;
    REQUIRE_OK(ox_store_create(&rig->kit.config, &rig->store));
    REQUIRE_OK(ox_store_port_open(rig->store, &rig->transfers.port));
    rig->buffer = kit_buffer(KIT_BUFFER_BYTES);
    memset(rig->buffer, 7, KIT_BUFFER_BYTES);
}

static void rig_close(struct rig *rig) {
    ox_store_port_close(&rig->transfers.port);
    ox_store_close(&rig->store);
    ox_io_fault_close(&rig->fault);
    ox_io_sim_close(&rig->sim);
    free(rig->buffer);
}

static struct ox_store_op piece(struct rig *rig, uint32_t idx, bool write) {
    return (struct ox_store_op){.kind = write ? OX_STORE_SPOOL_WRITE : OX_STORE_SPOOL_READ,
                                .buffer = rig->buffer + idx * PIECE, .spool_from = idx * PIECE, .spool_len = PIECE};
}

static void test_groups(void) {
    struct rig rig;
    rig_open(&rig);
    for (uint32_t group = 0; group < 3; group++) {
        const struct ox_store_op ops[] = {piece(&rig, 2 * group, true), piece(&rig, 2 * group + 1, true)};
        CHECK(ox_transfers_submit(&rig.transfers, group, ops, 2) == OX_OK);
        CHECK(rig.transfers.in_flight[group] == 2);
    }
    ox_transfers_wait(&rig.transfers, 1);
    CHECK(rig.transfers.in_flight[1] == 0 && ox_transfers_status(&rig.transfers) == OX_OK);
    while (ox_store_in_flight(rig.transfers.port) > 0) {
        uint32_t group = 99;
        if (ox_transfers_take(&rig.transfers, 1000, &group)) {
            CHECK(group == 0 || group == 2);
        }
    }
    CHECK(rig.transfers.in_flight[0] == 0 && rig.transfers.in_flight[2] == 0);
    CHECK(ox_transfers_drain(&rig.transfers) == OX_OK);
    rig_close(&rig);
}

static void test_more_than_a_port_takes(void) {
    struct rig rig;
    rig_open(&rig);
    for (uint32_t i = 0; i < MANY; i++) {
        const struct ox_store_op op = piece(&rig, i % 16, true);
        CHECK(ox_transfers_submit(&rig.transfers, i % OX_TRANSFER_GROUPS_MAX, &op, 1) == OX_OK);
    }
    CHECK(ox_transfers_drain(&rig.transfers) == OX_OK && ox_store_in_flight(rig.transfers.port) == 0);
    rig_close(&rig);
}

/* The third transfer fails: nothing is submitted after that is known, every call tells the same, a drain forgets it. */
static void test_first_failure(void) {
    struct rig rig;
    rig_open(&rig);
    const struct ox_store_op ops[] = {piece(&rig, 0, true), piece(&rig, 1, true), piece(&rig, 2, true)};
    ox_io_fault_set(rig.fault,
                    &(struct ox_fault_rule){.kind = OX_FAULT_EIO, .point = OX_FAULT_ON_WRITE, .first_idx = 2});
    CHECK(ox_transfers_submit(&rig.transfers, 0, ops, 3) == OX_OK);
    ox_transfers_wait(&rig.transfers, 0);
    CHECK(ox_transfers_status(&rig.transfers) == OX_E_IO);
    const struct ox_store_op wrong = {.kind = OX_STORE_SPOOL_WRITE, .buffer = NULL};
    CHECK(ox_transfers_submit(&rig.transfers, 1, &wrong, 1) == OX_E_IO && rig.transfers.in_flight[1] == 0);
    CHECK(ox_transfers_drain(&rig.transfers) == OX_E_IO && strstr(ox_error_text(), "spool extent 0") != NULL);
    CHECK(ox_transfers_drain(&rig.transfers) == OX_OK);
    ox_io_fault_set(rig.fault, NULL);
    CHECK(ox_transfers_submit(&rig.transfers, 0, ops, 3) == OX_OK && ox_transfers_drain(&rig.transfers) == OX_OK);
    rig_close(&rig);
}

int main(void) {
    test_groups();
    test_more_than_a_port_takes();
    test_first_failure();
    return test_end();
}
