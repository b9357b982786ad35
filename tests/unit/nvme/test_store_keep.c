/* Steps that are kept instead of committed: they are read by their number, the next step takes their place, the last
 * commit stays whole, and a kept step can be committed later. */
#include "tests/kit/store/store_kit.h"

static uint32_t generations;

static void rig_open(struct kit_rig *rig) {
    kit_rig_init(rig, 4, 2);
    rig->kit.config.generations = generations;
    kit_rig_create(rig);
    REQUIRE_OK(kit_commit(rig->store, rig->port, 1));
}

/* Writes one extent as of `content`. */
static enum ox_status write_one(struct kit_rig *rig, uint32_t extent_idx, uint64_t content) {
    struct ox_store_op op = {.kind = OX_STORE_WRITE, .extent_idx = extent_idx, .buffer = kit_buffer(KIT_BUFFER_BYTES)};
    kit_fill(op.buffer, kit_extents[extent_idx].bytes, content, extent_idx);
    const enum ox_status status = ox_store_run(rig->port, &op, 1);
    free(op.buffer);
    return status;
}

/* Reads one extent as of `step`, and compares it. */
static enum ox_status read_one(struct kit_rig *rig, uint32_t extent_idx, uint64_t step, uint64_t holds) {
    struct ox_store_op op = {
        .kind = OX_STORE_READ, .extent_idx = extent_idx, .buffer = kit_buffer(KIT_BUFFER_BYTES), .step = step};
    const enum ox_status status = ox_store_run(rig->port, &op, 1);
    CHECK(status != OX_OK || kit_matches(op.buffer, kit_extents[extent_idx].bytes, holds, extent_idx));
    free(op.buffer);
    return status;
}

/* Keeps a step that wrote the first `count` extents. */
static void keep(struct kit_rig *rig, uint64_t step, uint32_t count) {
    REQUIRE_OK(ox_store_begin(rig->store, step));
    REQUIRE_OK(kit_write(rig->store, rig->port, step, count));
    ox_store_keep(rig->store);
}

static uint64_t written_bytes(const struct kit_rig *rig) {
    struct ox_store_info info;
    ox_store_info(rig->store, &info);
    return info.write_bytes;
}

static void read_and_replaced(void) {
    struct kit_rig rig;
    rig_open(&rig);
    keep(&rig, 2, 3);
    kit_rig_expect(&rig, 1);
    REQUIRE_OK(read_one(&rig, 2, 2, 2));
    REQUIRE_OK(ox_store_begin(rig.store, 5));
    REQUIRE_OK(read_one(&rig, 0, 2, 2));
    REQUIRE_OK(write_one(&rig, 0, 5));
    REQUIRE_OK(read_one(&rig, 0, 5, 5));
    REQUIRE_OK(read_one(&rig, 1, 2, 2)); /* not replaced yet */
    REQUIRE_OK(write_one(&rig, 1, 5));
    ox_store_keep(rig.store);
    REQUIRE_OK(read_one(&rig, 1, 5, 5));
    CHECK(read_one(&rig, 1, 2, 2) == OX_E_ABORTED); /* the step is replaced */
    kit_rig_expect(&rig, 1);
    REQUIRE_OK(kit_commit(rig.store, rig.port, 6));
    CHECK(read_one(&rig, 1, 5, 5) == OX_E_ABORTED);
    kit_rig_expect(&rig, 6);
    keep(&rig, 7, 2); /* in the slots of step 1 now */
    kit_rig_expect(&rig, 6);
    kit_rig_reopen(&rig, true);
    kit_rig_expect(&rig, 6);
    CHECK(read_one(&rig, 1, 7, 7) == OX_E_ABORTED);
    kit_rig_close(&rig);
}

static void committed_later(void) {
    struct kit_rig rig;
    rig_open(&rig);
    keep(&rig, 3, 4);
    const uint64_t before = written_bytes(&rig);
    REQUIRE_OK(ox_store_begin(rig.store, 3));
    REQUIRE_OK(read_one(&rig, 3, 3, 3));
    uint64_t rest = 0;
    for (uint32_t i = 4; i < KIT_EXTENT_COUNT; i++) {
        REQUIRE_OK(write_one(&rig, i, 3));
        rest += kit_extents[i].bytes;
    }
    CHECK(written_bytes(&rig) - before == rest);
    const uint64_t step = 3;
    REQUIRE_OK(ox_store_commit(rig.store, &step, sizeof step));
    kit_rig_expect(&rig, 3);
    kit_rig_reopen(&rig, true);
    kit_rig_expect(&rig, 3);
    kit_rig_close(&rig);
}

/* What fails on the way to a commit of the kept step leaves that step as it was, and the next try succeeds. */
static void commit_fails(enum ox_fault_point point) {
    struct kit_rig rig;
    const uint64_t step = 3;
    rig_open(&rig);
    keep(&rig, step, 4);
    ox_io_fault_set(rig.fault, &(struct ox_fault_rule){OX_FAULT_EIO, point, 1, false});
    enum ox_status status = ox_store_begin(rig.store, step);
    for (uint32_t i = 4; i < KIT_EXTENT_COUNT && status == OX_OK; i++) {
        status = write_one(&rig, i, step);
    }
    if (status == OX_OK) {
        status = ox_store_commit(rig.store, &step, sizeof step);
    } else {
        ox_store_abort(rig.store);
    }
    CHECK(status == OX_E_IO);
    kit_rig_expect(&rig, 1);
    for (uint32_t i = 0; i < 4; i++) {
        REQUIRE_OK(read_one(&rig, i, step, step));
    }
    REQUIRE_OK(ox_store_begin(rig.store, step));
    for (uint32_t i = 4; i < KIT_EXTENT_COUNT; i++) {
        REQUIRE_OK(write_one(&rig, i, step));
    }
    REQUIRE_OK(ox_store_commit(rig.store, &step, sizeof step));
    kit_rig_reopen(&rig, true);
    kit_rig_expect(&rig, step);
    kit_rig_close(&rig);
}

static void aborted(void) {
    struct kit_rig rig;
    rig_open(&rig);
    keep(&rig, 2, 3);
    REQUIRE_OK(ox_store_begin(rig.store, 3));
    ox_store_abort(rig.store); /* it has overwritten nothing */
    REQUIRE_OK(read_one(&rig, 0, 2, 2));
    REQUIRE_OK(ox_store_begin(rig.store, 3));
    REQUIRE_OK(write_one(&rig, 0, 3));
    ox_store_abort(rig.store); /* it has, if there are two generations */
    CHECK(read_one(&rig, 0, 2, 2) == (generations == 2 ? OX_E_ABORTED : OX_OK));
    CHECK(read_one(&rig, 1, 2, 2) == (generations == 2 ? OX_E_ABORTED : OX_OK));
    kit_rig_expect(&rig, 1);
    keep(&rig, 3, 3);
    ox_store_forget(rig.store);
    CHECK(read_one(&rig, 1, 3, 3) == OX_E_ABORTED);
    kit_rig_expect(&rig, 1);
    keep(&rig, 2, 3); /* an earlier step than the forgotten one */
    REQUIRE_OK(read_one(&rig, 1, 2, 2));
    kit_rig_close(&rig);
}

int main(void) {
    for (generations = 2; generations <= 3; generations++) {
        read_and_replaced();
        committed_later();
        commit_fails(OX_FAULT_ON_WRITE);
        commit_fails(OX_FAULT_ON_FLUSH);
        aborted();
    }
    return test_end();
}
