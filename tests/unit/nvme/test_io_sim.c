/* The simulated disk loses what was not flushed, keeps what was, and repeats itself by seed; the fault decorator hits
 * the call of its rule. */
#include "tests/kit/store/io_sim.h"
#include "tests/kit/store/store_kit.h"

#include <string.h>

enum { BLOCKS = 64, DRIVE_BYTES = BLOCKS * 4096 };

struct rig {
    struct ox_drive *drive;
    struct ox_io_queue *queue;
};

static struct rig rig_open(const struct ox_io_backend *backend, enum ox_drive_mode mode) {
    struct rig rig = {0};
    REQUIRE_OK(backend->drive_open(backend, "/sim/drive", mode, &rig.drive));
    if (mode == OX_DRIVE_CREATE) {
        REQUIRE_OK(backend->drive_allocate(rig.drive, DRIVE_BYTES));
    }
    REQUIRE_OK(backend->queue_open(backend, &rig.drive, 1, 4, &rig.queue));
    return rig;
}

static void rig_close(const struct ox_io_backend *backend, struct rig *rig) {
    backend->queue_close(rig->queue);
    backend->drive_close(rig->drive);
}

static enum ox_status rig_move(const struct ox_io_backend *backend, struct rig *rig, enum ox_io_kind kind,
                               void *data, uint64_t offset, uint32_t bytes) {
    const struct ox_io_req req = {.kind = kind, .buffer = data, .offset = offset, .bytes = bytes, .tag = 3};
    struct ox_io_done done;
    REQUIRE_OK(backend->queue_submit(rig->queue, 0, &req));
    REQUIRE_OK(backend->queue_reap(rig->queue, &done));
    CHECK(done.tag == 3 && (done.status == OX_OK) == (done.text[0] == '\0'));
    return done.status;
}

struct fates {
    uint32_t kept, torn, lost;
};

/* Generation 1 is flushed, generation 2 is not; then the power goes. */
static struct fates cut(uint64_t seed, unsigned char *image) {
    struct ox_io_backend *sim = NULL;
    REQUIRE_OK(ox_io_sim_open(seed, &sim));
    struct rig rig = rig_open(sim, OX_DRIVE_CREATE);
    unsigned char *const data = kit_buffer(DRIVE_BYTES);
    kit_fill(data, DRIVE_BYTES, 1, 0);
    REQUIRE_OK(rig_move(sim, &rig, OX_IO_WRITE, data, 0, DRIVE_BYTES));
    REQUIRE_OK(sim->drive_flush(rig.drive));
    kit_fill(data, DRIVE_BYTES, 2, 0);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        REQUIRE_OK(rig_move(sim, &rig, OX_IO_WRITE, data + i * 4096, i * 4096, 4096));
    }
    rig_close(sim, &rig);
    ox_io_sim_power_cut(sim);
    rig = rig_open(sim, OX_DRIVE_OPEN);
    REQUIRE_OK(rig_move(sim, &rig, OX_IO_READ, image, 0, DRIVE_BYTES));
    unsigned char *const old = kit_buffer(DRIVE_BYTES);
    kit_fill(old, DRIVE_BYTES, 1, 0);
    struct fates fates = {0};
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t old_count = 0, new_count = 0;
        for (uint32_t at = i * 4096; at < (i + 1) * 4096; at += 512) {
            old_count += memcmp(image + at, old + at, 512) == 0;
            new_count += memcmp(image + at, data + at, 512) == 0;
        }
        CHECK(old_count + new_count == 8);
        fates.kept += new_count == 8;
        fates.lost += old_count == 8;
        fates.torn += old_count > 0 && new_count > 0;
    }
    rig_close(sim, &rig);
    CHECK(ox_io_sim_flip_bit(sim, "/sim/drive", 100, 3) &&
          !ox_io_sim_flip_bit(sim, "/sim/drive", DRIVE_BYTES, 0));
    CHECK(!ox_io_sim_flip_bit(sim, "/sim/other", 0, 0));
    rig = rig_open(sim, OX_DRIVE_OPEN);
    REQUIRE_OK(rig_move(sim, &rig, OX_IO_READ, old, 0, DRIVE_BYTES));
    CHECK((old[100] ^ image[100]) == 8);
    rig_close(sim, &rig);
    ox_io_sim_close(&sim);
    free(old);
    free(data);
    return fates;
}

static void power_cuts(void) {
    unsigned char *const one = kit_buffer(DRIVE_BYTES);
    unsigned char *const two = kit_buffer(DRIVE_BYTES);
    const struct fates fates = cut(5, one);
    CHECK(fates.kept > 4 && fates.torn > 4 && fates.lost > 16);
    (void)cut(5, two);
    CHECK(memcmp(one, two, DRIVE_BYTES) == 0);
    (void)cut(6, two);
    CHECK(memcmp(one, two, DRIVE_BYTES) != 0);
    free(one);
    free(two);
}

static void fault_rules(void) {
    struct ox_io_backend *sim = NULL, *fault = NULL;
    REQUIRE_OK(ox_io_sim_open(1, &sim));
    REQUIRE_OK(ox_io_fault_open(sim, &fault));
    struct rig rig = rig_open(fault, OX_DRIVE_CREATE);
    unsigned char *const data = kit_buffer(16384);
    unsigned char *const back = kit_buffer(16384);
    kit_fill(data, 16384, 1, 0);
    const enum ox_fault_kind kinds[] = {OX_FAULT_EIO,   OX_FAULT_ENOSPC, OX_FAULT_EAGAIN,
                                        OX_FAULT_EINTR, OX_FAULT_SHORT,  OX_FAULT_TORN,
                                        OX_FAULT_LOST,  OX_FAULT_MISDIRECT, OX_FAULT_STALL};
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const bool repaired = kinds[i] >= OX_FAULT_EAGAIN && kinds[i] <= OX_FAULT_SHORT;
        const bool silent = kinds[i] >= OX_FAULT_EAGAIN, harmless = kinds[i] == OX_FAULT_STALL || repaired;
        for (int on_write = 0; on_write < 2; on_write++) {
            ox_io_fault_set(fault, NULL);
            memset(back, 0, 16384);
            REQUIRE_OK(rig_move(fault, &rig, OX_IO_WRITE, back, 0, 16384));
            ox_io_fault_set(fault,
                            &(struct ox_fault_rule){kinds[i], on_write ? OX_FAULT_ON_WRITE : OX_FAULT_ON_READ,
                                                    on_write ? 1 : 0, false});
            REQUIRE_OK(rig_move(fault, &rig, OX_IO_WRITE, data, 65536, 16384)); /* call 0 of the writes */
            enum ox_status status = rig_move(fault, &rig, OX_IO_WRITE, data, 0, 16384);
            CHECK(status == (on_write && !silent ? OX_E_IO : OX_OK));
            memset(back, 0x77, 16384);
            status = rig_move(fault, &rig, OX_IO_READ, back, 0, 16384);
            CHECK(status == (!on_write && !silent ? OX_E_IO : OX_OK));
            CHECK((memcmp(back, data, 16384) == 0) == harmless);
            uint64_t calls = 0, hits = 0;
            ox_io_fault_counts(fault, on_write ? OX_FAULT_ON_WRITE : OX_FAULT_ON_READ, &calls, &hits);
            CHECK(calls == (on_write ? 2u : 1u) + repaired && hits == 1);
            if (repaired) { /* a result that stays so is a failure with a name, and no data is taken for whole */
                ox_io_fault_set(fault, &(struct ox_fault_rule){
                                           kinds[i], on_write ? OX_FAULT_ON_WRITE : OX_FAULT_ON_READ, 0, true});
                status = rig_move(fault, &rig, on_write ? OX_IO_WRITE : OX_IO_READ, back, 0, 16384);
                ox_io_fault_counts(fault, on_write ? OX_FAULT_ON_WRITE : OX_FAULT_ON_READ, &calls, &hits);
                CHECK(status == OX_E_IO && hits == 4);
            }
        }
    }
    ox_io_fault_set(fault, &(struct ox_fault_rule){OX_FAULT_EIO, OX_FAULT_ON_FLUSH, 1, true});
    CHECK(fault->drive_flush(rig.drive) == OX_OK);
    CHECK(fault->drive_flush(rig.drive) == OX_E_IO && fault->drive_flush(rig.drive) == OX_E_IO);
    rig_close(fault, &rig);
    free(data);
    free(back);
    ox_io_fault_close(&fault);
    ox_io_sim_close(&sim);
}

int main(void) {
    power_cuts();
    fault_rules();
    return test_end();
}
