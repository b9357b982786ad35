/* A drive that gives nothing is warned of by name, less and less often, and given up at last; and what goes first to
 * a drive that is not to be kept waiting. Delays come from the fault decorator, so that no drive need be slow. */
#include "base/log.h"
#include "nvme/stall.h"
#include "nvme/store_impl.h"
#include "tests/kit/store/store_kit.h"

#include <math.h>
#include <string.h>

enum { WARN_MS = 20, LINES_MAX = 64 };

static char lines[LINES_MAX][512];
static unsigned line_count;

static void keep_line(void *context, enum ox_log_level level, const char *line) {
    (void)context;
    if (level == OX_LOG_WARN && line_count < LINES_MAX) {
        snprintf(lines[line_count++], sizeof lines[0], "%s", line);
    }
}

/* Whether some warning has all of these words. A busy machine may add warnings of other operations, and miss some. */
static bool warned_of(const char *a, const char *b, const char *c) {
    bool found = false;
    for (unsigned i = 0; i < line_count; i++) {
        found = found || (strstr(lines[i], a) != NULL && strstr(lines[i], b) != NULL && strstr(lines[i], c) != NULL);
    }
    return found;
}

static void rule_of_ages(void) {
    const struct ox_stall_limits limits = ox_stall_limits(0, 0);
    struct ox_stall stall = {0};
    CHECK(limits.warn_ns == UINT64_C(10000000000) && limits.fail_ns == UINT64_C(600000000000));
    CHECK(ox_stall_tick_ns(&limits) == 1000 * 1000 * 1000);
    line_count = 0;
    uint64_t warned[8] = {0};
    for (uint64_t second = 0; second < 600; second++) {
        const struct ox_stall_op op = {.path = "/mnt/slow", .what = "a read", .age_ns = second * 1000000000};
        const unsigned before = line_count;
        CHECK(ox_stall_check(&stall, &limits, &op) == OX_OK);
        if (line_count > before && before < 8) {
            warned[before] = second;
        }
    }
    CHECK(line_count == 6 && warned[0] == 10 && warned[1] == 20 && warned[2] == 40 && warned[5] == 320);
    CHECK(strstr(lines[1], "/mnt/slow: a read has not completed in 20.0 s") != NULL);
    /* Something came: from the beginning. */
    CHECK(ox_stall_check(&stall, &limits, &(struct ox_stall_op){"/mnt/slow", "a read", 5}) == OX_OK);
    CHECK(ox_stall_check(&stall, &limits, &(struct ox_stall_op){"/mnt/slow", "a read", limits.warn_ns}) == OX_OK);
    CHECK(line_count == 7);
    CHECK(ox_stall_check(&stall, &limits, &(struct ox_stall_op){"/mnt/slow", "a read", limits.fail_ns}) == OX_E_IO);
    CHECK(strstr(ox_error_text(), "/mnt/slow") != NULL && strstr(ox_error_text(), "given up") != NULL);
}

static void rig_open(struct kit_rig *rig, uint32_t fail_ms) {
    kit_rig_init(rig, 1, 2);
    rig->kit.config.stall_warn_ms = WARN_MS;
    rig->kit.config.stall_fail_ms = fail_ms;
    kit_rig_create(rig);
    REQUIRE_OK(kit_commit(rig->store, rig->port, 1));
    line_count = 0;
}

static void warnings(void) {
    struct kit_rig rig;
    bool wrong = false;
    rig_open(&rig, 0);
    ox_io_fault_set_stall(rig.fault, (uint64_t)(7 * WARN_MS) * 1000000);
    ox_io_fault_set(rig.fault, &(struct ox_fault_rule){OX_FAULT_STALL, OX_FAULT_ON_READ, 4, false});
    REQUIRE_OK(kit_verify(rig.store, rig.port, 1, &wrong));
    CHECK(!wrong && warned_of("/sim/offload-store-", "a read of ", "(extent "));
    CHECK(warned_of("a read of ", "(extent ", " s; the drive"));
    /* Writes of data, then of roots and tables, then a flush. */
    line_count = 0;
    ox_io_fault_set(rig.fault, &(struct ox_fault_rule){OX_FAULT_STALL, OX_FAULT_ON_WRITE, 2, false});
    REQUIRE_OK(kit_commit(rig.store, rig.port, 2));
    CHECK(warned_of("a write of ", "(extent ", ""));
    line_count = 0;
    ox_io_fault_set(rig.fault, &(struct ox_fault_rule){OX_FAULT_STALL, OX_FAULT_ON_WRITE, KIT_EXTENT_COUNT, false});
    REQUIRE_OK(kit_commit(rig.store, rig.port, 3));
    CHECK(warned_of("a write of roots or tables", "", ""));
    line_count = 0;
    ox_io_fault_set(rig.fault, &(struct ox_fault_rule){OX_FAULT_STALL, OX_FAULT_ON_FLUSH, 1, false});
    REQUIRE_OK(kit_commit(rig.store, rig.port, 4));
    CHECK(warned_of("offload-store-1.ox: a flush took", "", ""));
    ox_store_port_close(&rig.port);
    ox_store_close(&rig.store);
    ox_io_fault_close(&rig.fault);
    ox_io_sim_close(&rig.sim);
}

/* Requests in flight may still reach memory or drive, so nothing is freed or unlocked; the backends outlive the store.
 */
static void given_up(void) {
    static struct kit_rig rig; /* never closed */
    static unsigned char *buffer;
    rig_open(&rig, 4 * WARN_MS);
    ox_io_fault_set_stall(rig.fault, UINT64_C(3600) * 1000000000);
    ox_io_fault_set(rig.fault, &(struct ox_fault_rule){OX_FAULT_STALL, OX_FAULT_ON_READ, 0, false});
    buffer = kit_buffer(KIT_BUFFER_BYTES);
    const struct ox_store_op op = {.kind = OX_STORE_READ, .extent_idx = 0, .buffer = buffer};
    CHECK(ox_store_run(rig.port, &op, 1) == OX_E_IO);
    CHECK(strstr(ox_error_text(), "given up") != NULL && strstr(ox_error_text(), "offload-store-0.ox") != NULL);
    CHECK(ox_store_submit(rig.port, &op) == OX_E_IO && strstr(ox_error_text(), "resume") != NULL);
    ox_store_port_close(&rig.port);
    ox_store_close(&rig.store);
    struct ox_store *again = NULL;
    CHECK(ox_store_open(&rig.kit.config, &again) == OX_E_BUSY);
}

/* ---- what goes first ------------------------------------------------------------------------------- */

static enum ox_io_kind sent[256];
static uint32_t sent_count;
static enum ox_status (*inner_submit)(struct ox_io_queue *, uint32_t, const struct ox_io_req *);

static enum ox_status record(struct ox_io_queue *queue, uint32_t drive_idx, const struct ox_io_req *req) {
    if (sent_count < 256) {
        sent[sent_count++] = req->kind;
    }
    return inner_submit(queue, drive_idx, req);
}

/* A poll finds nothing ready, so that operations pile up. */
static enum ox_status no_look(struct ox_io_queue *queue, uint64_t timeout_ns, bool *ready) {
    (void)queue;
    *ready = timeout_ns > 0;
    return OX_OK;
}

/* One request is on its way; of those that wait, reads pass writes, but only so many at a time. */
static void order(void) {
    enum { READS = 40, WRITES = 10, COUNT = READS };
    struct ox_io_backend *sim = NULL;
    REQUIRE_OK(ox_io_sim_open(1, &sim));
    struct ox_io_backend recording = *sim;
    inner_submit = sim->queue_submit;
    recording.queue_submit = record;
    recording.queue_wait = no_look;
    struct kit kit;
    struct ox_extent_spec extents[COUNT];
    kit_init(&kit, &recording, "/sim", 1);
    for (uint32_t i = 0; i < COUNT; i++) {
        extents[i] = (struct ox_extent_spec){4096, 0};
    }
    kit.config.extents = extents;
    kit.config.extent_count = COUNT;
    kit.config.queue_depth = 1;
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(kit_commit(store, port, 1));
    REQUIRE_OK(ox_store_begin(store, 2));
    unsigned char *const buffer = kit_buffer((READS + WRITES) * 4096);
    memset(buffer, 0, (READS + WRITES) * 4096);
    sent_count = 0;
    for (uint32_t i = 0; i < WRITES + READS; i++) {
        const struct ox_store_op op = {.kind = i < WRITES ? OX_STORE_WRITE : OX_STORE_READ,
                                       .extent_idx = i < WRITES ? i : i - WRITES,
                                       .buffer = buffer + (size_t)i * 4096};
        REQUIRE_OK(ox_store_submit(port, &op));
    }
    CHECK(sent_count == 1 && ox_store_in_flight(port) == WRITES + READS);
    for (uint64_t tag = 0; ox_store_in_flight(port) > 0;) {
        REQUIRE_OK(ox_store_reap(port, &tag));
    }
    char have[READS + WRITES + 1] = "";
    for (uint32_t i = 0; i < sent_count && i < READS + WRITES; i++) {
        have[i] = sent[i] == OX_IO_READ ? 'r' : 'w';
    }
    CHECK(strcmp(have, "wrrrrrrrrrrrrrrrrwrrrrrrrrrrrrrrrrwrrrrrrrrwwwwwww") == 0);
    ox_store_abort(store);
    ox_store_port_close(&port);
    ox_store_close(&store);
    free(buffer);
    ox_io_sim_close(&sim);
}

int main(void) {
    ox_log_set_sink(keep_line, NULL);
    rule_of_ages();
    warnings();
    order();
    given_up();
    return test_end();
}
