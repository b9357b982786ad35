/* The store with one generation, on a disk in memory: half the size, the mark before the first write, what an abort and
 * a failure leave, what is refused; and files of two generations are unchanged by the choice. Power cuts, faults and
 * kills: tests/fault/. */
#include "base/hash/hash.h"
#include "nvme/store_impl.h"
#include "tests/kit/store/store_kit.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void rig_open(struct kit_rig *rig, uint32_t drive_count) {
    kit_rig_init(rig, 5, drive_count);
    rig->kit.config.generations = 1;
    kit_rig_create(rig);
}

static enum ox_status read_extent(struct kit_rig *rig, uint32_t extent_idx, uint64_t step, bool head) {
    const uint64_t bytes = head ? kit_extents[extent_idx].head_bytes : kit_extents[extent_idx].bytes;
    const struct ox_store_op op = {.kind = head ? OX_STORE_READ_HEAD : OX_STORE_READ,
                                   .extent_idx = extent_idx,
                                   .buffer = kit_buffer(kit_extents[extent_idx].bytes)};
    const enum ox_status status = ox_store_run(rig->port, &op, 1);
    CHECK(status != OX_OK || kit_matches(op.buffer, bytes, step, extent_idx));
    free(op.buffer);
    return status;
}

static void refused(enum ox_status status, enum ox_status want, const char *words) {
    const bool right = status == want && strstr(ox_error_text(), words) != NULL;
    CHECK(right);
    if (!right) {
        printf("wanted %s \"%s\", got %s: %s\n", ox_status_name(want), words, ox_status_name(status), ox_error_text());
    }
}

/* The first `count` extents are torn, the others as before; there is no way on, now or after a restart. */
static void expect_torn(struct kit_rig *rig, uint32_t count, uint64_t step, uint64_t tried_step) {
    char words[64];
    for (uint32_t i = 0; i < KIT_EXTENT_COUNT; i++) {
        if (i >= count) {
            CHECK(read_extent(rig, i, step, false) == OX_OK);
            continue;
        }
        snprintf(words, sizeof words, "extent %u was overwritten by step %llu", i, (unsigned long long)tried_step);
        refused(read_extent(rig, i, step, false), OX_E_CORRUPT, words);
        if (kit_extents[i].head_bytes > 0) {
            refused(read_extent(rig, i, step, true), OX_E_CORRUPT, words);
        }
    }
    refused(ox_store_begin(rig->store, tried_step), OX_E_CORRUPT, "failed while it was overwritten");
    refused(ox_store_begin(rig->store, tried_step + 1), OX_E_CORRUPT, "resume from a checkpoint");
    ox_store_port_close(&rig->port);
    ox_store_close(&rig->store);
    snprintf(words, sizeof words, "being rewritten at step %llu", (unsigned long long)tried_step);
    for (int i = 0; i < 2; i++) {
        refused(ox_store_open(&rig->kit.config, &rig->store), OX_E_CORRUPT, words);
        CHECK(strstr(ox_error_text(), "one generation (--store-generations 1)") != NULL && rig->store == NULL);
        CHECK(strstr(ox_error_text(), "resume from a checkpoint") != NULL);
    }
}

/* Steps, reopenings, reads of what is not written yet; more steps than the ring has room for. */
static void steps(uint32_t drive_count) {
    struct kit_rig rig;
    rig_open(&rig, drive_count);
    for (uint64_t step = 0; step < 80; step++) {
        REQUIRE_OK(ox_store_begin(rig.store, step));
        for (uint32_t i = 0; i < KIT_EXTENT_COUNT && step > 0; i++) {
            CHECK(read_extent(&rig, i, step - 1, false) == OX_OK);
            CHECK(kit_extents[i].head_bytes == 0 || read_extent(&rig, i, step - 1, true) == OX_OK);
        }
        REQUIRE_OK(kit_write(rig.store, rig.port, step, KIT_EXTENT_COUNT));
        REQUIRE_OK(ox_store_commit(rig.store, &step, sizeof step));
        kit_rig_expect(&rig, step);
        if (step % 3 == 0) {
            kit_rig_reopen(&rig, false);
            kit_rig_expect(&rig, step);
        }
    }
    kit_rig_close(&rig);
}

/* To the byte: files, what a transaction writes, the flush before it. */
static void sizes(void) {
    struct kit_rig rig;
    rig_open(&rig, 3);
    struct kit two = rig.kit;
    two.config.folders = (const char *[]){"/two", "/two", "/two"};
    two.config.generations = 2;
    struct ox_store *store = NULL;
    struct ox_store_info first, before, after;
    REQUIRE_OK(ox_store_create(&two.config, &store));
    ox_store_info(store, &before);
    ox_store_info(rig.store, &first);
    CHECK(before.generations == 2 && first.generations == 1 && first.generation == 0);
    CHECK(before.state_bytes == first.state_bytes && before.file_bytes - first.file_bytes == first.state_bytes);
    ox_store_close(&store);
    REQUIRE_OK(kit_commit(rig.store, rig.port, 1)); /* over nothing: no mark */
    ox_store_info(rig.store, &before);
    CHECK(before.flush_count - first.flush_count == 2 * 3);
    REQUIRE_OK(kit_commit(rig.store, rig.port, 2));
    ox_store_info(rig.store, &after);
    CHECK(after.write_bytes - before.write_bytes == after.state_bytes + 3 * (4096 + 4 * 4096));
    CHECK(after.commit_bytes == after.write_bytes - before.write_bytes);
    CHECK(after.flush_count - before.flush_count == 3 * 3 && after.generation == 0);
    kit_rig_close(&rig);

    /* Room for exactly one generation. */
    struct kit kit = rig.kit;
    const uint64_t need = ox_store_fixed_bytes(KIT_EXTENT_COUNT) + first.state_bytes;
    kit.config.bytes_max = (uint64_t[]){need};
    kit.config.drive_count = 1;
    kit.config.generations = 1;
    CHECK(ox_store_fits(&kit.config) == OX_OK);
    kit.config.generations = 0;
    refused(ox_store_fits(&kit.config), OX_E_CONFIG, "two generations of");
    kit.config.generations = 1;
    kit.config.bytes_max = (uint64_t[]){need - 4096};
    refused(ox_store_fits(&kit.config), OX_E_CONFIG, "one generation of");
}

static void options(void) {
    struct kit_rig rig;
    rig_open(&rig, 2);
    REQUIRE_OK(kit_commit(rig.store, rig.port, 4));
    ox_store_port_close(&rig.port);
    ox_store_close(&rig.store);
    rig.kit.config.generations = 2;
    refused(ox_store_open(&rig.kit.config, &rig.store), OX_E_CONFIG, "give --store-generations 1");
    rig.kit.config.generations = 0;
    refused(ox_store_open(&rig.kit.config, &rig.store), OX_E_CONFIG, "give --store-generations 1");
    rig.kit.config.generations = 3;
    refused(ox_store_open(&rig.kit.config, &rig.store), OX_E_CONFIG, "three are requested; give --store-generations 1");
    rig.kit.config.generations = 4;
    refused(ox_store_open(&rig.kit.config, &rig.store), OX_E_CONFIG, "1 to 3 generations (--store-generations)");
    struct kit kit = rig.kit;
    kit.config.generations = 1;
    for (int i = 0; i < 2; i++) {
        kit.config.drive_count = i == 0 ? 0 : OX_STORE_DRIVES_MAX + 1;
        refused(ox_store_open(&kit.config, &rig.store), OX_E_CONFIG, "a store uses 1 to ");
    }
    /* As `inspect`, which knows nothing of the run. */
    kit = rig.kit;
    kit.config.extents = NULL;
    kit.config.bytes_max = NULL;
    kit.config.generations = 0;
    REQUIRE_OK(ox_store_open(&kit.config, &rig.store));
    REQUIRE_OK(ox_store_port_open(rig.store, &rig.port));
    struct ox_store_info info;
    ox_store_info(rig.store, &info);
    CHECK(info.generations == 1);
    kit_rig_expect(&rig, 4);
    kit_rig_close(&rig);

    struct ox_store *store = NULL;
    REQUIRE_OK(ox_io_sim_open(5, &rig.sim));
    kit_init(&kit, rig.sim, "/sim", 2);
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    ox_store_close(&store);
    kit.config.generations = 1;
    refused(ox_store_open(&kit.config, &store), OX_E_CONFIG, "give --store-generations 2, as the run was started with");
    kit.config.generations = 2;
    REQUIRE_OK(ox_store_open(&kit.config, &store));
    ox_store_close(&store);
    ox_io_sim_close(&rig.sim);
}

static void aborts(void) {
    struct kit_rig rig;
    for (uint32_t count = 1; count <= KIT_EXTENT_COUNT; count += 2) {
        rig_open(&rig, 2);
        REQUIRE_OK(kit_commit(rig.store, rig.port, 1));
        REQUIRE_OK(ox_store_begin(rig.store, 2));
        REQUIRE_OK(kit_write(rig.store, rig.port, 2, count));
        ox_store_abort(rig.store);
        ox_store_abort(rig.store); /* fine without a transaction, and changes nothing */
        expect_torn(&rig, count, 1, 2);
        kit_rig_close(&rig);
    }
    /* Without a write nothing is lost, whatever comes next. */
    for (int next = 0; next < 3; next++) {
        rig_open(&rig, 2);
        REQUIRE_OK(kit_commit(rig.store, rig.port, 1));
        REQUIRE_OK(ox_store_begin(rig.store, 2));
        CHECK(read_extent(&rig, 3, 1, false) == OX_OK);
        ox_store_abort(rig.store);
        kit_rig_expect(&rig, 1);
        if (next > 0) {
            kit_rig_reopen(&rig, false);
            kit_rig_expect(&rig, 1);
        }
        REQUIRE_OK(kit_commit(rig.store, rig.port, next == 1 ? 3 : 2));
        kit_rig_expect(&rig, next == 1 ? 3 : 2);
        kit_rig_reopen(&rig, false);
        kit_rig_expect(&rig, next == 1 ? 3 : 2);
        kit_rig_close(&rig);
    }
    /* Nor is there anything to lose before the first commit. */
    rig_open(&rig, 2);
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(ox_store_begin(rig.store, 1));
        REQUIRE_OK(kit_write(rig.store, rig.port, 1, 3));
        ox_store_abort(rig.store);
        kit_rig_reopen(&rig, false);
        struct ox_store_info info;
        ox_store_info(rig.store, &info);
        CHECK(!info.committed);
    }
    REQUIRE_OK(kit_commit(rig.store, rig.port, 1));
    kit_rig_expect(&rig, 1);
    kit_rig_close(&rig);
}

/* A write, or a flush of the transaction, fails: the extent is as lost as one that was written. */
static void failures(void) {
    struct kit_rig rig;
    rig_open(&rig, 1);
    REQUIRE_OK(kit_commit(rig.store, rig.port, 1));
    REQUIRE_OK(ox_store_begin(rig.store, 2));
    ox_io_fault_set(rig.fault, &(struct ox_fault_rule){OX_FAULT_EIO, OX_FAULT_ON_WRITE, 0, false});
    CHECK(kit_write(rig.store, rig.port, 2, 1) == OX_E_IO);
    refused(read_extent(&rig, 0, 1, false), OX_E_CORRUPT, "extent 0 was overwritten by step 2");
    REQUIRE_OK(kit_write(rig.store, rig.port, 2, KIT_EXTENT_COUNT)); /* once more, then all is well */
    REQUIRE_OK(ox_store_commit(rig.store, &(uint64_t){2}, sizeof(uint64_t)));
    kit_rig_expect(&rig, 2);
    REQUIRE_OK(ox_store_begin(rig.store, 3));
    ox_io_fault_set(rig.fault, &(struct ox_fault_rule){OX_FAULT_TORN, OX_FAULT_ON_WRITE, 0, false});
    CHECK(kit_write(rig.store, rig.port, 3, 1) == OX_OK);
    ox_io_fault_set(rig.fault, &(struct ox_fault_rule){OX_FAULT_EIO, OX_FAULT_ON_WRITE, 0, false});
    CHECK(kit_write(rig.store, rig.port, 3, 1) == OX_E_IO);
    ox_store_abort(rig.store);
    expect_torn(&rig, 1, 2, 3);
    kit_rig_close(&rig);

    /* Flush 0 makes the mark durable, 1 the data, 2 the root, of which a copy may have got through. */
    for (uint64_t flush_idx = 0; flush_idx < 3; flush_idx++) {
        rig_open(&rig, 1);
        REQUIRE_OK(kit_commit(rig.store, rig.port, 1));
        ox_io_fault_set(rig.fault, &(struct ox_fault_rule){OX_FAULT_EIO, OX_FAULT_ON_FLUSH, flush_idx, false});
        CHECK(kit_commit(rig.store, rig.port, 2) == OX_E_IO);
        if (flush_idx == 0) {
            kit_rig_expect(&rig, 1);
            kit_rig_reopen(&rig, false);
            kit_rig_expect(&rig, 1);
            REQUIRE_OK(kit_commit(rig.store, rig.port, 2));
        } else {
            CHECK(strstr(ox_error_text(), "one generation") != NULL);
        }
        if (flush_idx == 1) {
            expect_torn(&rig, KIT_EXTENT_COUNT, 1, 2);
        } else {
            kit_rig_reopen(&rig, false);
            kit_rig_expect(&rig, 2);
        }
        kit_rig_close(&rig);
    }
}

/* A table that is lost takes the state with it; the mark that comes before is no refuge. */
static void damage(void) {
    struct kit_rig rig;
    rig_open(&rig, 1);
    for (uint64_t step = 1; step < 4; step++) {
        REQUIRE_OK(kit_commit(rig.store, rig.port, step));
    }
    const uint64_t table = rig.store->layout.table_offset[rig.store->root->generation];
    ox_store_port_close(&rig.port);
    ox_store_close(&rig.store);
    CHECK(ox_io_sim_flip_bit(rig.sim, "/sim/offload-store-0.ox", table + 9, 3));
    refused(ox_store_open(&rig.kit.config, &rig.store), OX_E_CORRUPT, "no generation of the store is intact");
    CHECK(ox_io_sim_flip_bit(rig.sim, "/sim/offload-store-0.ox", table + 9, 3));
    kit_rig_reopen(&rig, false);
    kit_rig_expect(&rig, 3);
    const uint64_t data = ox_store_slot_offset(rig.store, 4, 0) + 100;
    CHECK(ox_io_sim_flip_bit(rig.sim, "/sim/offload-store-0.ox", data, 0));
    refused(read_extent(&rig, 4, 3, false), OX_E_CORRUPT, "extent 4 of step 3 does not match its checksum");
    kit_rig_close(&rig);
}

static void several_ports(void) {
    struct kit_rig rig;
    rig_open(&rig, 3);
    REQUIRE_OK(kit_commit(rig.store, rig.port, 0));
    for (uint64_t step = 1; step < 10; step++) {
        kit_commit_by_two(rig.store, step, false);
        kit_rig_expect(&rig, step);
    }
    kit_rig_close(&rig);
}

/* Forbidden calls end the process: reading what is overwritten, overwriting what is read. */
static void misuse(void) {
    for (int kind = 0; kind < 2; kind++) {
        fflush(stdout);
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            const struct rlimit none = {0};
            setrlimit(RLIMIT_CORE, &none);
            fclose(stderr);
            struct kit_rig rig;
            rig_open(&rig, 1);
            REQUIRE_OK(kit_commit(rig.store, rig.port, 1));
            REQUIRE_OK(ox_store_begin(rig.store, 2));
            const struct ox_store_op ops[] = {
                {.kind = kind == 0 ? OX_STORE_WRITE : OX_STORE_READ, .buffer = kit_buffer(KIT_BUFFER_BYTES)},
                {.kind = kind == 0 ? OX_STORE_READ : OX_STORE_WRITE, .buffer = kit_buffer(KIT_BUFFER_BYTES)}};
            for (int i = 0; i < 2; i++) {
                memset(ops[i].buffer, 0, KIT_BUFFER_BYTES);
                (void)!ox_store_submit(rig.port, &ops[i]);
            }
            _exit(0);
        }
        int how = 0;
        CHECK(waitpid(child, &how, 0) == child && WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT);
    }
}

/* Every byte of three steps, as the code from before there was a choice wrote them. */
static void format_of_two(void) {
    struct ox_io_backend *sim = NULL;
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    struct kit kit;
    REQUIRE_OK(ox_io_sim_open(1, &sim));
    kit_init(&kit, sim, "/sim", 1);
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    for (uint64_t step = 1; step < 4; step++) {
        REQUIRE_OK(kit_commit(store, port, step));
    }
    const uint64_t bytes = store->layout.file_bytes[0];
    void *const file = kit_buffer(bytes);
    REQUIRE_OK(ox_store_transfer(store, OX_IO_READ, 0, 0, file, bytes));
    const uint64_t hash = ox_hash64(file, bytes, 0);
    CHECK(bytes == 2371584 && hash == UINT64_C(0x56e4c17f74404298));
    free(file);
    ox_store_port_close(&port);
    ox_store_close(&store);
    ox_io_sim_close(&sim);
}

int main(void) {
    steps(1);
    steps(3);
    sizes();
    options();
    aborts();
    failures();
    damage();
    several_ports();
    misuse();
    format_of_two();
    return test_end();
}
