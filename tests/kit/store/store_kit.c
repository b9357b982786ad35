#include "tests/kit/store/store_kit.h"

#include <pthread.h>
#include <string.h>

const struct ox_extent_spec kit_extents[KIT_EXTENT_COUNT] = {
    {64 << 10, 4096}, {4096, 0},    {8192, 8192},     {20 << 10, 4096},
    {12 << 10, 0},    {4096, 4096}, {16 << 10, 8192},
};

uint64_t kit_count(int argc, char **argv, uint64_t usual) {
    return argc == 3 && strcmp(argv[1], "--count") == 0 ? strtoull(argv[2], NULL, 10) : usual;
}

void kit_init(struct kit *kit, const struct ox_io_backend *backend, const char *folder, uint32_t drive_count) {
    memset(kit, 0, sizeof *kit);
    for (uint32_t i = 0; i < drive_count; i++) {
        kit->folders[i] = folder;
        kit->bytes_max[i] = 4 * OX_MIB;
    }
    kit->config = (struct ox_store_config){
        .backend = backend,
        .folders = kit->folders,
        .bytes_max = kit->bytes_max,
        .drive_count = drive_count,
        .extents = kit_extents,
        .extent_count = KIT_EXTENT_COUNT,
        .run_id = {0x1234, 0x5678},
        .config_hash = 0x9abc,
        .queue_depth = 4,
    };
}

void kit_rig_init(struct kit_rig *rig, uint64_t seed, uint32_t drive_count) {
    memset(rig, 0, sizeof *rig);
    REQUIRE_OK(ox_io_sim_open(seed, &rig->sim));
    REQUIRE_OK(ox_io_fault_open(rig->sim, &rig->fault));
    kit_init(&rig->kit, rig->fault, "/sim", drive_count);
}

void kit_rig_create(struct kit_rig *rig) {
    REQUIRE_OK(ox_store_create(&rig->kit.config, &rig->store));
    REQUIRE_OK(ox_store_port_open(rig->store, &rig->port));
}

void kit_rig_close(struct kit_rig *rig) {
    ox_store_port_close(&rig->port);
    ox_store_close(&rig->store);
    ox_io_fault_close(&rig->fault);
    ox_io_sim_close(&rig->sim);
}

void kit_rig_reopen(struct kit_rig *rig, bool cuts) {
    ox_store_port_close(&rig->port);
    ox_store_close(&rig->store);
    if (cuts) {
        ox_io_sim_power_cut(rig->sim);
    }
    REQUIRE_OK(ox_store_open(&rig->kit.config, &rig->store));
    REQUIRE_OK(ox_store_port_open(rig->store, &rig->port));
}

void kit_rig_expect(struct kit_rig *rig, uint64_t step) {
    bool wrong = false;
    REQUIRE_OK(kit_verify(rig->store, rig->port, step, &wrong));
    CHECK(!wrong);
}

void *kit_buffer(uint64_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, OX_IO_ALIGN_BYTES, bytes) != 0) {
        printf("no memory for a test buffer\n");
        exit(1);
    }
    return memory;
}

uint64_t kit_word(uint64_t step, uint32_t extent_idx, uint64_t idx) {
    return (step + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)extent_idx << 48 ^
           idx * UINT64_C(0x2545f491);
}

void kit_fill(void *buffer, uint64_t bytes, uint64_t step, uint32_t extent_idx) {
    uint64_t *const words = buffer;
    for (uint64_t i = 0; i < bytes / sizeof *words; i++) {
        words[i] = kit_word(step, extent_idx, i);
    }
}

bool kit_matches(const void *buffer, uint64_t bytes, uint64_t step, uint32_t extent_idx) {
    const uint64_t *const words = buffer;
    for (uint64_t i = 0; i < bytes / sizeof *words; i++) {
        if (words[i] != kit_word(step, extent_idx, i)) {
            return false;
        }
    }
    return true;
}

/* Writes extents first, first + stride ... below `past`. */
static enum ox_status write_some(struct ox_store *store, struct ox_store_port *port, uint64_t step,
                                 uint32_t first, uint32_t stride, uint32_t past) {
    const struct ox_extent_spec *const extents = ox_store_extents(store);
    struct ox_store_op ops[64];
    uint32_t count = 0;
    for (uint32_t i = first; i < past && count < 64; i += stride) {
        ops[count] = (struct ox_store_op){
            .kind = OX_STORE_WRITE, .extent_idx = i, .buffer = kit_buffer(extents[i].bytes)};
        kit_fill(ops[count++].buffer, extents[i].bytes, step, i);
    }
    const enum ox_status status = ox_store_run(port, ops, count);
    for (uint32_t i = 0; i < count; i++) {
        free(ops[i].buffer);
    }
    return status;
}

enum ox_status kit_write(struct ox_store *store, struct ox_store_port *port, uint64_t step, uint32_t count) {
    return write_some(store, port, step, 0, 1, count);
}

enum ox_status kit_commit(struct ox_store *store, struct ox_store_port *port, uint64_t step) {
    struct ox_store_info info;
    ox_store_info(store, &info);
    enum ox_status status = ox_store_begin(store, step);
    if (status == OX_OK) {
        status = kit_write(store, port, step, info.extent_count);
        if (status == OX_OK) {
            status = ox_store_commit(store, &step, sizeof step);
        } else {
            ox_store_abort(store);
        }
    }
    return status;
}

/* Takes the extents that live on drives from step `base`, which left them there, to `step`. */
static enum ox_status keep(struct ox_store *store, struct ox_store_port *port, const uint64_t *base, uint64_t step,
                           bool *wrong) {
    const struct ox_extent_spec *const extents = ox_store_extents(store);
    struct ox_store_info info;
    ox_store_info(store, &info);
    enum ox_status status = ox_store_begin(store, step);
    for (uint32_t i = 1; i < info.extent_count && base != NULL && status == OX_OK; i += 2) {
        struct ox_store_op op = {
            .kind = OX_STORE_READ, .extent_idx = i, .buffer = kit_buffer(extents[i].bytes), .step = *base};
        status = ox_store_run(port, &op, 1);
        *wrong |= status == OX_OK && !kit_matches(op.buffer, extents[i].bytes, *base, i);
        free(op.buffer);
    }
    OX_THEN(status, write_some(store, port, step, 1, 2, info.extent_count));
    if (status == OX_OK) {
        ox_store_keep(store);
    }
    return status;
}

enum ox_status kit_commit_after(struct ox_store *store, struct ox_store_port *port, uint64_t step, uint32_t kept,
                                bool *wrong) {
    struct ox_store_info info;
    ox_store_info(store, &info);
    const bool of_kept = kept > 0 && step / (kept + 1) % 2 == 1;
    uint64_t base = info.step;
    bool has_base = info.committed;
    enum ox_status status = OX_OK;
    for (uint64_t at = step - kept; at < step + of_kept && status == OX_OK; at++) {
        status = keep(store, port, has_base ? &base : NULL, at, wrong);
        base = at;
        has_base = true;
    }
    OX_THEN(status, ox_store_begin(store, step));
    OX_THEN(status, write_some(store, port, step, 0, of_kept ? 2 : 1, info.extent_count));
    OX_THEN(status, ox_store_commit(store, &step, sizeof step));
    if (status != OX_OK) {
        ox_store_forget(store);
    }
    return status;
}

enum ox_status kit_verify(struct ox_store *store, struct ox_store_port *port, uint64_t step, bool *wrong) {
    const struct ox_extent_spec *const extents = ox_store_extents(store);
    struct ox_store_info info;
    ox_store_info(store, &info);
    enum ox_status status = OX_OK;
    uint64_t meta = 0;
    memcpy(&meta, info.meta, sizeof meta);
    *wrong = info.step != step || info.meta_bytes != sizeof meta || meta != step;
    for (uint32_t i = 0; i < info.extent_count && status == OX_OK; i++) {
        struct ox_store_op op = {.extent_idx = i, .buffer = kit_buffer(extents[i].bytes)};
        memset(op.buffer, 0xee, extents[i].bytes);
        op.kind = OX_STORE_READ;
        status = ox_store_run(port, &op, 1);
        *wrong |= status == OX_OK && !kit_matches(op.buffer, extents[i].bytes, step, i);
        if (status == OX_OK && extents[i].head_bytes > 0) {
            memset(op.buffer, 0xee, extents[i].bytes);
            op.kind = OX_STORE_READ_HEAD;
            status = ox_store_run(port, &op, 1);
            *wrong |= status == OX_OK && !kit_matches(op.buffer, extents[i].head_bytes, step, i);
        }
        free(op.buffer);
    }
    return status;
}

/* One of the two threads of kit_commit_by_two. */
struct worker {
    struct ox_store *store;
    uint32_t idx;
    uint64_t step;
    bool spools;
    enum ox_status status;
    bool wrong;
};

static enum ox_status rewrite_half(struct worker *worker, struct ox_store_port *port, unsigned char *buffer) {
    enum ox_status status = OX_OK;
    for (uint32_t i = worker->idx; i < KIT_EXTENT_COUNT && status == OX_OK; i += 2) {
        struct ox_store_op op = {.kind = OX_STORE_READ, .extent_idx = i, .buffer = buffer};
        status = ox_store_run(port, &op, 1);
        worker->wrong |= !kit_matches(buffer, kit_extents[i].bytes, worker->step - 1, i);
        for (int times = 0; times < 2 && status == OX_OK; times++) { /* the last write counts */
            kit_fill(buffer, kit_extents[i].bytes, times == 0 ? 77 : worker->step, i);
            op.kind = OX_STORE_WRITE;
            status = ox_store_run(port, &op, 1);
        }
    }
    return status;
}

static enum ox_status write_spool(const struct worker *worker, struct ox_store_port *port, unsigned char *buffer) {
    enum ox_status status = OX_OK;
    for (uint32_t i = worker->idx; i < KIT_EXTENT_COUNT && status == OX_OK; i += 2) {
        kit_fill(buffer, kit_extents[i].bytes, worker->step, i);
        const struct ox_store_op op = {.kind = OX_STORE_SPOOL_WRITE,
                                       .extent_idx = worker->idx,
                                       .buffer = buffer,
                                       .spool_from = (uint64_t)i * 4096,
                                       .spool_len = 4096};
        status = ox_store_run(port, &op, 1);
    }
    return status;
}

static void *worker_main(void *arg) {
    struct worker *const worker = arg;
    struct ox_store_port *port = NULL;
    unsigned char *const buffer = kit_buffer(KIT_BUFFER_BYTES);
    worker->status = ox_store_port_open(worker->store, &port);
    if (worker->status == OX_OK) {
        worker->status = rewrite_half(worker, port, buffer);
    }
    if (worker->status == OX_OK && worker->spools) {
        worker->status = write_spool(worker, port, buffer);
    }
    ox_store_port_close(&port);
    free(buffer);
    return NULL;
}

void kit_commit_by_two(struct ox_store *store, uint64_t step, bool spools) {
    struct worker workers[2];
    pthread_t threads[2];
    REQUIRE_OK(ox_store_begin(store, step));
    for (uint32_t i = 0; i < 2; i++) {
        workers[i] = (struct worker){.store = store, .idx = i, .step = step, .spools = spools};
        CHECK(pthread_create(&threads[i], NULL, worker_main, &workers[i]) == 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        CHECK(workers[i].status == OX_OK && !workers[i].wrong);
    }
    REQUIRE_OK(ox_store_commit(store, &step, sizeof step));
}
