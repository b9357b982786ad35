/* Creates, opens, checks, closes and removes a store's files. */
#include "nvme/store.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash/hash.h"
#include "nvme/store_impl.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TRANSFER_DEPTH = 8 };

static enum ox_status drive_path(const char *folder, uint32_t drive_idx, char *path) {
    char name[32];
    snprintf(name, sizeof name, "offload-store-%u.ox", drive_idx);
    return ox_path_join(folder, name, path);
}

static void *block_alloc(uint64_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, OX_IO_ALIGN_BYTES, bytes) != 0) {
        return NULL;
    }
    memset(memory, 0, bytes);
    return memory;
}

/* State of one of the store's own transfers. */
struct transfer {
    struct ox_store *store;
    enum ox_io_kind kind;
    uint32_t drive_idx, in_flight;
    uint64_t since_ns; /* when the drive last answered */
    enum ox_status status;
};

/* Waits until a request can be reaped; gives a silent drive up. */
static enum ox_status transfer_wait(struct transfer *transfer) {
    struct ox_store *const store = transfer->store;
    const uint64_t tick_ns = ox_stall_tick_ns(&store->stall_limits);
    for (bool ready = false;;) {
        enum ox_status status = store->backend->queue_wait(store->queue, tick_ns, &ready);
        if (status != OX_OK || ready) {
            return status;
        }
        const struct ox_drive_info info = ox_store_info_of(store, transfer->drive_idx);
        const struct ox_stall_op op = {.path = info.path,
                                       .what = transfer->kind == OX_IO_READ ? "a read of roots or tables"
                                                                            : "a write of roots or tables",
                                       .age_ns = ox_clock_ns() - transfer->since_ns};
        status = ox_stall_check(&store->stalls[transfer->drive_idx], &store->stall_limits, &op);
        if (status != OX_OK) {
            __atomic_store_n(&store->hung, true, __ATOMIC_SEQ_CST);
            return status;
        }
    }
}

/* Waits for one request and keeps the first failure in the transfer. Returns false when no request will return any
 * more. */
static bool transfer_reap(struct transfer *transfer) {
    struct ox_store *const store = transfer->store;
    struct ox_io_done done;
    enum ox_status status = transfer_wait(transfer);
    OX_THEN(status, store->backend->queue_reap(store->queue, &done));
    if (status != OX_OK) {
        transfer->status = status;
        return false;
    }
    transfer->in_flight--;
    transfer->since_ns = ox_clock_ns();
    store->stalls[transfer->drive_idx] = (struct ox_stall){0};
    if (done.status != OX_OK && transfer->status == OX_OK) {
        transfer->status = ox_fail(done.status, "%s", done.text);
    }
    return true;
}

enum ox_status ox_store_transfer(struct ox_store *store, enum ox_io_kind kind, uint32_t drive_idx,
                                 uint64_t offset, void *buffer, uint64_t bytes) {
    if (__atomic_load_n(&store->hung, __ATOMIC_SEQ_CST)) {
        return ox_fail(OX_E_IO, "a drive of the store was given up earlier; end the process and resume");
    }
    struct transfer transfer = {.store = store, .kind = kind, .drive_idx = drive_idx, .since_ns = ox_clock_ns()};
    bool alive = true;
    for (uint64_t at = 0; at < bytes && transfer.status == OX_OK;) {
        const struct ox_io_req req = {
            .kind = kind,
            .buffer = (unsigned char *)buffer + at,
            .offset = offset + at,
            .bytes = (uint32_t)ox_min_u64(OX_IO_REQ_BYTES_MAX, bytes - at),
        };
        transfer.status = store->backend->queue_submit(store->queue, drive_idx, &req);
        if (transfer.status == OX_OK) {
            at += req.bytes;
            transfer.in_flight++;
            __atomic_fetch_add(kind == OX_IO_READ ? &store->read_bytes : &store->write_bytes,
                                      req.bytes, __ATOMIC_RELAXED);
        }
        if (transfer.in_flight == TRANSFER_DEPTH) {
            alive = transfer_reap(&transfer);
        }
    }
    while (alive && transfer.in_flight > 0) {
        alive = transfer_reap(&transfer);
    }
    return transfer.status;
}

enum ox_status ox_store_flush(struct ox_store *store) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < store->drive_count && status == OX_OK; i++) {
        const uint64_t start_ns = ox_clock_ns();
        status = store->backend->drive_flush(store->drives[i]);
        const struct ox_drive_info info = ox_store_info_of(store, i);
        const struct ox_stall_op op = {.path = info.path, .what = "a flush", .age_ns = ox_clock_ns() - start_ns};
        ox_stall_report(&store->stall_limits, &op);
        __atomic_fetch_add(&store->flush_count, 1, __ATOMIC_RELAXED);
    }
    return status;
}

/* ---- parts of create and open --------------------------------------------------------------- */

static enum ox_status config_check(const struct ox_store_config *config) {
    OX_ASSERT(config->backend != NULL && config->queue_depth > 0);
    if (config->drive_count == 0 || config->drive_count > OX_STORE_DRIVES_MAX) {
        return ox_fail(OX_E_CONFIG, "a store uses 1 to %d drives, not %u", OX_STORE_DRIVES_MAX,
                       config->drive_count);
    }
    if (config->generations > OX_STORE_GENERATIONS_MAX) {
        return ox_fail(OX_E_CONFIG, "a store has 1 to %d generations (--store-generations), not %u",
                       OX_STORE_GENERATIONS_MAX, config->generations);
    }
    return OX_OK;
}

/* List of stores that are never freed and stay locked until the process ends, because a drive that was given up may
 * still write to their memory or accept what was sent. */
static struct ox_store *given_up;

/* Frees a store, also a half-built one; leaves alone one whose drive was given up. */
static void store_free(struct ox_store *store) {
    if (store == NULL) {
        return;
    }
    if (__atomic_load_n(&store->hung, __ATOMIC_SEQ_CST)) {
        store->given_up_next = __atomic_exchange_n(&given_up, store, __ATOMIC_SEQ_CST);
        return;
    }
    if (store->queue != NULL) {
        store->backend->queue_close(store->queue);
    }
    for (uint32_t i = 0; i < OX_STORE_DRIVES_MAX; i++) {
        if (store->drives[i] != NULL) {
            store->backend->drive_close(store->drives[i]);
        }
    }
    if (store->has_spool_map) {
        ox_spool_map_close(&store->spool_map);
    }
    ox_store_layout_close(&store->layout);
    free(store->root);
    free(store->block);
    for (int i = 0; i < OX_STORE_GENERATIONS_MAX; i++) {
        free(store->tables[i]);
    }
    free(store->extent_states);
    free(store->extent_readers);
    free(store->kept.extents);
    pthread_mutex_destroy(&store->mutex);
    free(store);
}

static enum ox_status store_alloc(const struct ox_store_config *config, struct ox_store **out) {
    struct ox_store *const store = calloc(1, sizeof *store);
    *out = store;
    if (store == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for a store");
    }
    pthread_mutex_init(&store->mutex, NULL);
    store->backend = config->backend;
    store->drive_count = config->drive_count;
    store->queue_depth = config->queue_depth;
    store->stall_limits = ox_stall_limits(config->stall_warn_ms, config->stall_fail_ms);
    store->root = block_alloc(OX_STORE_BLOCK_BYTES);
    store->block = block_alloc(OX_STORE_BLOCK_BYTES);
    return store->root != NULL && store->block != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "no memory for a store");
}

/* Allocates what depends on the layout. */
static enum ox_status tables_alloc(struct ox_store *store) {
    bool room = true;
    for (uint32_t i = 0; i < ox_store_table_count(store); i++) {
        store->tables[i] = block_alloc(store->layout.table_bytes);
        room = room && store->tables[i] != NULL;
    }
    const size_t extent_count = store->layout.extent_count;
    store->extent_states = calloc(extent_count, 1);
    store->extent_readers = calloc(extent_count, sizeof *store->extent_readers);
    store->kept.extents = calloc(extent_count, sizeof *store->kept.extents);
    if (!room || store->extent_states == NULL || store->extent_readers == NULL || store->kept.extents == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the tables of %u extents", store->layout.extent_count);
    }
    return OX_OK;
}

static enum ox_status spool_map_alloc(struct ox_store *store) {
    const enum ox_status status = ox_spool_map_open(store->layout.spool_bytes_sum, &store->spool_map);
    store->has_spool_map = status == OX_OK;
    return status;
}

static enum ox_status drives_open(struct ox_store *store, const struct ox_store_config *config,
                                  enum ox_drive_mode mode) {
    char path[OX_PATH_BYTES];
    for (uint32_t i = 0; i < config->drive_count; i++) {
        enum ox_status status = drive_path(config->folders[i], i, path);
        OX_THEN(status, store->backend->drive_open(store->backend, path, mode, &store->drives[i]));
        if (status != OX_OK) {
            return status;
        }
    }
    return store->backend->queue_open(store->backend, store->drives, store->drive_count, TRANSFER_DEPTH,
                                      &store->queue);
}

/* ---- create ------------------------------------------------------------------------------------ */

/* A program that knows no third generation refuses the file. */
static uint32_t version_of(uint32_t generations) {
    return generations > 2 ? OX_STORE_VERSION_OF_THREE : OX_STORE_VERSION;
}

/* Writes both regions in full, so that no later commit waits for the file system to convert unwritten blocks. */
static enum ox_status regions_write(struct ox_store *store, const uint64_t *bytes_max) {
    struct ox_store_identity *const identity = block_alloc(OX_STORE_REGION_BYTES);
    if (identity == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to create a store");
    }
    enum ox_status status = OX_OK;
    for (uint32_t drive_idx = 0; drive_idx < store->drive_count && status == OX_OK; drive_idx++) {
        *identity = (struct ox_store_identity){
            .magic = OX_STORE_IDENTITY_MAGIC,
            .version = version_of(store->layout.generations),
            .drive_idx = drive_idx,
            .drive_count = store->drive_count,
            .extent_count = store->layout.extent_count,
            .run_id = {store->run_id[0], store->run_id[1]},
            .config_hash = store->config_hash,
            .geometry_hash = store->geometry_hash,
            .generations = store->layout.generations == 2 ? 0 : store->layout.generations,
        };
        memcpy(identity->bytes_max, bytes_max, store->drive_count * sizeof *bytes_max);
        memcpy(identity->speeds, store->layout.speeds, sizeof identity->speeds);
        ox_store_block_seal(identity);
        for (uint32_t region = 0; region < OX_STORE_REGION_COUNT && status == OX_OK; region++) {
            status =
                ox_store_transfer(store, OX_IO_WRITE, drive_idx, region * (uint64_t)OX_STORE_REGION_STRIDE,
                                  identity, OX_STORE_REGION_BYTES);
        }
    }
    free(identity);
    return status;
}

static enum ox_status geometry_write(struct ox_store *store) {
    const struct ox_store_layout *const layout = &store->layout;
    void *const list = block_alloc(layout->geometry_bytes);
    if (list == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to create a store");
    }
    memcpy(list, layout->extents, layout->extent_count * sizeof *layout->extents);
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < store->drive_count && status == OX_OK; i++) {
        status =
            ox_store_transfer(store, OX_IO_WRITE, i, OX_STORE_GEOMETRY_OFFSET, list, layout->geometry_bytes);
    }
    free(list);
    return status;
}

static enum ox_status files_fill(struct ox_store *store, const struct ox_store_config *config) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < store->drive_count && status == OX_OK; i++) {
        status = store->backend->drive_allocate(store->drives[i], store->layout.file_bytes[i]);
    }
    OX_THEN(status, regions_write(store, config->bytes_max));
    OX_THEN(status, geometry_write(store));
    OX_THEN(status, ox_store_root_create(store));
    return status == OX_OK ? ox_store_flush(store) : status;
}

static enum ox_status create_steps(struct ox_store *store, const struct ox_store_config *config) {
    store->run_id[0] = config->run_id[0];
    store->run_id[1] = config->run_id[1];
    store->config_hash = config->config_hash;
    store->geometry_hash = ox_store_geometry_hash(config->extents, config->extent_count);
    store->layout.generations = config->generations;
    if (config->speeds != NULL) {
        memcpy(store->layout.speeds, config->speeds, config->drive_count * sizeof *config->speeds);
    }
    enum ox_status status = ox_store_layout_open(config->extents, config->extent_count, config->bytes_max,
                                                 config->drive_count, &store->layout);
    OX_THEN(status, ox_store_layout_add_spool(&store->layout, config->spool_bytes, config->spool_count,
                                              config->bytes_max));
    OX_THEN(status, tables_alloc(store));
    OX_THEN(status, spool_map_alloc(store));
    OX_THEN(status, drives_open(store, config, OX_DRIVE_CREATE));
    return status == OX_OK ? files_fill(store, config) : status;
}

/* Frees a store whose creation failed and removes the files opened for it, which were empty. */
static enum ox_status create_undo(struct ox_store *store, const struct ox_store_config *config,
                                  enum ox_status status) {
    char text[OX_ERROR_TEXT_BYTES];
    memcpy(text, ox_error_text(), sizeof text);
    uint32_t opened = 0;
    while (store != NULL && opened < store->drive_count && store->drives[opened] != NULL) {
        opened++;
    }
    store_free(store);
    for (uint32_t i = 0; i < opened; i++) {
        char path[OX_PATH_BYTES];
        if (drive_path(config->folders[i], i, path) != OX_OK ||
            config->backend->drive_remove(config->backend, path) != OX_OK) {
            return ox_fail(status, "%.600s; also, the unfinished store in %.200s could not be removed", text,
                           config->folders[i]);
        }
    }
    return ox_fail(status, "%s", text);
}

enum ox_status ox_store_create(const struct ox_store_config *config, struct ox_store **out) {
    *out = NULL;
    enum ox_status status = config_check(config);
    if (status != OX_OK) {
        return status;
    }
    OX_ASSERT(config->extents != NULL);
    struct ox_store *store = NULL;
    status = store_alloc(config, &store);
    OX_THEN(status, create_steps(store, config));
    if (status != OX_OK) {
        return create_undo(store, config, status);
    }
    *out = store;
    return OX_OK;
}

/* ---- open --------------------------------------------------------------------------------------- */

/* Reads both regions of a drive; a region that cannot be read counts as damaged. */
static enum ox_status regions_read(struct ox_store *store, uint32_t drive_idx, unsigned char *regions) {
    const struct ox_drive_info info = ox_store_info_of(store, drive_idx);
    if (info.bytes < OX_STORE_GEOMETRY_OFFSET) {
        return ox_fail(OX_E_CORRUPT, "%s: too short to be a store; remove it and start over", info.path);
    }
    enum ox_status status = OX_OK;
    uint32_t read_count = 0;
    for (uint32_t region = 0; region < OX_STORE_REGION_COUNT; region++) {
        unsigned char *const target = regions + (size_t)region * OX_STORE_REGION_BYTES;
        const enum ox_status read =
            ox_store_transfer(store, OX_IO_READ, drive_idx, region * (uint64_t)OX_STORE_REGION_STRIDE, target,
                              OX_STORE_REGION_BYTES);
        if (read != OX_OK) {
            memset(target, 0, OX_STORE_REGION_BYTES);
            status = read;
        }
        read_count += read == OX_OK;
    }
    return read_count > 0 ? OX_OK : status;
}

static const struct ox_store_identity *identity_of(const unsigned char *regions) {
    for (uint32_t region = 0; region < OX_STORE_REGION_COUNT; region++) {
        const struct ox_store_identity *const identity =
            (const void *)(regions + (size_t)region * OX_STORE_REGION_BYTES);
        if (identity->magic == OX_STORE_IDENTITY_MAGIC && ox_store_block_is_sealed(identity)) {
            return identity;
        }
    }
    return NULL;
}

/* Checks that drive `drive_idx` belongs to the same store as drive 0. */
static enum ox_status identity_check(const struct ox_store *store, uint32_t drive_idx,
                                     const struct ox_store_identity *first,
                                     const struct ox_store_identity *identity) {
    const struct ox_drive_info info = ox_store_info_of(store, drive_idx);
    if (identity == NULL) {
        return ox_fail(OX_E_CORRUPT,
                       "%s: not a store, or both its headers are damaged; resume from a checkpoint",
                       info.path);
    }
    if (identity->version != version_of(identity->generations) ||
        identity->generations == 2 || identity->generations > OX_STORE_GENERATIONS_MAX) { /* two are written as 0 */
        return ox_fail(OX_E_CONFIG,
                       "%s: has format version %u with generations %u, which this program does not read; use the "
                       "program that wrote it", info.path, identity->version, identity->generations);
    }
    if (identity->drive_count != store->drive_count || identity->drive_idx != drive_idx) {
        return ox_fail(OX_E_CONFIG,
                       "%s: is drive %u of %u of its store, but is given as %u of %u; give the drives of "
                       "the run in their order",
                       info.path, identity->drive_idx + 1, identity->drive_count, drive_idx + 1,
                       store->drive_count);
    }
    if (identity->run_id[0] != first->run_id[0] || identity->run_id[1] != first->run_id[1] ||
        identity->geometry_hash != first->geometry_hash || identity->config_hash != first->config_hash ||
        identity->extent_count != first->extent_count || identity->generations != first->generations ||
        memcmp(identity->bytes_max, first->bytes_max, sizeof first->bytes_max) != 0 ||
        memcmp(identity->speeds, first->speeds, sizeof first->speeds) != 0) {
        return ox_fail(OX_E_CONFIG,
                       "%s: belongs to another run than the first drive's file; give the drives of one run", info.path);
    }
    return OX_OK;
}

/* Checks that the store belongs to the run, model and settings of `config`, and takes over its identity. */
static enum ox_status identity_match(struct ox_store *store, const struct ox_store_config *config,
                                     const struct ox_store_identity *identity) {
    const struct ox_drive_info info = ox_store_info_of(store, 0);
    store->run_id[0] = identity->run_id[0];
    store->run_id[1] = identity->run_id[1];
    store->config_hash = identity->config_hash;
    store->geometry_hash = identity->geometry_hash;
    if ((config->run_id[0] != 0 || config->run_id[1] != 0) &&
        (config->run_id[0] != identity->run_id[0] || config->run_id[1] != identity->run_id[1])) {
        return ox_fail(OX_E_CONFIG,
                       "%s: holds run %016" PRIx64 "%016" PRIx64 ", not this one; give another folder",
                       info.path, identity->run_id[0], identity->run_id[1]);
    }
    if (config->extents != NULL &&
        (config->config_hash != identity->config_hash ||
         ox_store_geometry_hash(config->extents, config->extent_count) != identity->geometry_hash)) {
        return ox_fail(OX_E_CONFIG,
                       "%s: " OX_STORE_OF_ANOTHER "; give those of the run, or another folder",
                       info.path);
    }
    const uint32_t has = ox_store_generations(identity->generations), asked = ox_store_generations(config->generations);
    if (config->extents != NULL && has != asked) {
        return ox_fail(OX_E_CONFIG, "%s: has %s, but %s requested; give --store-generations %u, as the run was started "
                       "with, or another folder", info.path, ox_store_generations_text(has),
                       asked == 1 ? "one is" : asked == 2 ? "two are" : "three are", has);
    }
    return OX_OK;
}

/* Reads the extent list from any drive that has it intact. */
static enum ox_status geometry_read(struct ox_store *store, const struct ox_store_identity *identity,
                                    struct ox_extent_spec **out) {
    const struct ox_drive_info info = ox_store_info_of(store, 0);
    const uint64_t bytes = ox_align_up(identity->extent_count * sizeof **out, OX_IO_ALIGN_BYTES);
    const bool fits = bytes <= info.bytes;
    struct ox_extent_spec *const list = fits ? block_alloc(ox_max_u64(bytes, OX_IO_ALIGN_BYTES)) : NULL;
    if (fits && list == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for the list of %u extents", info.path,
                       identity->extent_count);
    }
    struct ox_first_failure first = {0};
    for (uint32_t i = 0; i < store->drive_count && fits; i++) {
        const struct ox_drive_info other = ox_store_info_of(store, i);
        if (other.bytes < OX_STORE_GEOMETRY_OFFSET + bytes) {
            continue;
        }
        const enum ox_status status =
            bytes == 0 ? OX_OK : ox_store_transfer(store, OX_IO_READ, i, OX_STORE_GEOMETRY_OFFSET, list, bytes);
        ox_first_failure_note(&first, status);
        if (status == OX_OK && ox_store_geometry_hash(list, identity->extent_count) == identity->geometry_hash) {
            *out = list;
            return OX_OK;
        }
    }
    free(list);
    return first.status != OX_OK ? ox_first_failure_result(&first)
                                 : ox_fail(OX_E_CORRUPT, "%s: the list of extents is damaged; resume from a checkpoint",
                                           info.path);
}

/* Rebuilds the layout from the file's identity, and checks that no file was cut short. */
static enum ox_status layout_restore(struct ox_store *store, const struct ox_store_config *config,
                                     const struct ox_store_identity *identity) {
    struct ox_extent_spec *list = NULL;
    enum ox_status status = OX_OK;
    if (config->extents == NULL) {
        status = geometry_read(store, identity, &list);
        if (status != OX_OK) {
            return status;
        }
    }
    const struct ox_extent_spec *const extents = list != NULL ? list : config->extents;
    const uint32_t extent_count = list != NULL ? identity->extent_count : config->extent_count;
    store->layout.generations = ox_store_generations(identity->generations);
    memcpy(store->layout.speeds, identity->speeds, sizeof store->layout.speeds);
    status = ox_store_layout_open(extents, extent_count, identity->bytes_max, store->drive_count, &store->layout);
    free(list);
    for (uint32_t i = 0; i < store->drive_count && status == OX_OK; i++) {
        const struct ox_drive_info info = ox_store_info_of(store, i);
        if (info.bytes < store->layout.file_bytes[i]) {
            status = ox_fail(OX_E_CORRUPT,
                             "%s: cut short to %" PRIu64 " of %" PRIu64 " bytes; resume from a checkpoint",
                             info.path, info.bytes, store->layout.file_bytes[i]);
        }
    }
    return status;
}

/* Places the spool again, because its data is useless after a restart. */
static enum ox_status spool_restore(struct ox_store *store, const struct ox_store_config *config) {
    if (config->bytes_max == NULL || config->extents == NULL) {
        OX_ASSERT(config->spool_count == 0);
        return OX_OK;
    }
    if (config->speeds != NULL) {
        memcpy(store->layout.speeds, config->speeds, store->drive_count * sizeof *config->speeds);
    }
    enum ox_status status = ox_store_layout_add_spool(&store->layout, config->spool_bytes,
                                                      config->spool_count, config->bytes_max);
    for (uint32_t i = 0; i < store->drive_count && status == OX_OK; i++) {
        const struct ox_drive_info info = ox_store_info_of(store, i);
        if (info.bytes != store->layout.file_bytes[i]) {
            status = store->backend->drive_allocate(store->drives[i], store->layout.file_bytes[i]);
        }
    }
    return status;
}

/* Reads and checks what ox_store_open needs from the files. */
static enum ox_status files_load(struct ox_store *store, const struct ox_store_config *config,
                                 unsigned char *regions, struct ox_store_offer *offer) {
    const size_t drive_bytes = (size_t)OX_STORE_REGION_COUNT * OX_STORE_REGION_BYTES;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < store->drive_count && status == OX_OK; i++) {
        status = regions_read(store, i, regions + i * drive_bytes);
    }
    const struct ox_store_identity *const first = status == OX_OK ? identity_of(regions) : NULL;
    for (uint32_t i = 0; i < store->drive_count && status == OX_OK; i++) {
        status = identity_check(store, i, first, identity_of(regions + i * drive_bytes));
    }
    OX_THEN(status, identity_match(store, config, first));
    OX_THEN(status, layout_restore(store, config, first));
    OX_THEN(status, tables_alloc(store));
    OX_THEN(status, ox_store_recover(store, regions, config->point, offer));
    return status == OX_OK ? spool_restore(store, config) : status;
}

static enum ox_status open_files(const struct ox_store_config *config, struct ox_store_offer *offer,
                                 struct ox_store **out) {
    *out = NULL;
    enum ox_status status = config_check(config);
    if (status != OX_OK) {
        return status;
    }
    struct ox_store *store = NULL;
    unsigned char *const regions =
        block_alloc((size_t)config->drive_count * OX_STORE_REGION_COUNT * OX_STORE_REGION_BYTES);
    status = regions == NULL ? ox_fail(OX_E_NOMEM, "no memory to open a store") : store_alloc(config, &store);
    OX_THEN(status, drives_open(store, config, OX_DRIVE_OPEN));
    OX_THEN(status, files_load(store, config, regions, offer));
    OX_THEN(status, spool_map_alloc(store));
    free(regions);
    if (status != OX_OK) {
        store_free(store);
        return status;
    }
    *out = store;
    return OX_OK;
}

enum ox_status ox_store_open(const struct ox_store_config *config, struct ox_store **out) {
    return open_files(config, NULL, out);
}

enum ox_status ox_store_look(const struct ox_store_config *config, struct ox_store_offer *out) {
    struct ox_store_config plain = *config; /* geometry from the file, so that nothing is resized */
    struct ox_store *store = NULL;
    plain.extents = NULL;
    plain.spool_count = 0;
    plain.point = NULL;
    const enum ox_status status = open_files(&plain, out, &store);
    ox_store_close(&store);
    return status;
}

/* ---- the rest ----------------------------------------------------------------------------------- */

void ox_store_close(struct ox_store **store) {
    if (*store == NULL) {
        return;
    }
    OX_ASSERT(__atomic_load_n(&(*store)->port_count, __ATOMIC_SEQ_CST) == 0);
    store_free(*store);
    *store = NULL;
}

static enum ox_status lock_once(const struct ox_io_backend *backend, const char *path) {
    struct ox_drive *drive = NULL;
    const enum ox_status status = backend->drive_open(backend, path, OX_DRIVE_OPEN, &drive);
    if (status == OX_OK) {
        backend->drive_close(drive);
    }
    return status;
}

/* Does it to files of every index: the folders may have been given in another order before, or may have been more. */
static enum ox_status each_file(const char *const *folders, uint32_t drive_count,
                                enum ox_status (*fn)(const struct ox_io_backend *, const char *path)) {
    const struct ox_io_backend *const backend = ox_io_threads();
    for (uint32_t i = 0; i < drive_count * OX_STORE_DRIVES_MAX; i++) {
        char path[OX_PATH_BYTES];
        enum ox_status status = drive_path(folders[i / OX_STORE_DRIVES_MAX], i % OX_STORE_DRIVES_MAX, path);
        if (status == OX_OK && ox_path_exists(path)) {
            status = fn(backend, path);
        }
        if (status != OX_OK) {
            return status;
        }
    }
    return OX_OK;
}

enum ox_status ox_store_check_unused(const char *const *folders, uint32_t drive_count) {
    return each_file(folders, drive_count, lock_once);
}

enum ox_status ox_store_remove(const char *const *folders, uint32_t drive_count) {
    return each_file(folders, drive_count, ox_io_threads()->drive_remove);
}

/* Reads the owner from a file's header, without a lock. */
static enum ox_store_owner file_owner(const char *path, const uint64_t run_id[2]) {
    struct ox_store_identity identity;
    enum ox_store_owner owner = OX_STORE_OWNER_UNKNOWN;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    for (uint32_t region = 0; fd >= 0 && region < OX_STORE_REGION_COUNT && owner == OX_STORE_OWNER_UNKNOWN; region++) {
        const ssize_t bytes = pread(fd, &identity, sizeof identity, (off_t)(region * (uint64_t)OX_STORE_REGION_STRIDE));
        if (bytes == (ssize_t)sizeof identity && identity.magic == OX_STORE_IDENTITY_MAGIC &&
            ox_store_block_is_sealed(&identity)) {
            owner = memcmp(identity.run_id, run_id, sizeof identity.run_id) == 0 ? OX_STORE_OWNER_SAME
                                                                                 : OX_STORE_OWNER_OTHER;
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    return owner;
}

enum ox_store_owner ox_store_owner(const char *folder, const uint64_t run_id[2]) {
    enum ox_store_owner worst = OX_STORE_OWNER_NONE;
    for (uint32_t i = 0; i < OX_STORE_DRIVES_MAX; i++) {
        char path[OX_PATH_BYTES];
        if (drive_path(folder, i, path) == OX_OK && ox_path_exists(path)) {
            const enum ox_store_owner owner = file_owner(path, run_id);
            worst = owner > worst ? owner : worst;
        }
    }
    return worst;
}

bool ox_store_exists(const char *folder) {
    bool exists = false;
    for (uint32_t i = 0; i < OX_STORE_DRIVES_MAX && !exists; i++) {
        char path[OX_PATH_BYTES];
        exists = drive_path(folder, i, path) == OX_OK && ox_path_exists(path);
    }
    return exists;
}

uint64_t ox_store_commit_bytes(const struct ox_store *store, uint32_t drive_idx) {
    OX_ASSERT(drive_idx < store->drive_count);
    return store->layout.generation_bytes[drive_idx] + store->layout.table_bytes +
           OX_STORE_REGION_COUNT * OX_STORE_BLOCK_BYTES * (uint64_t)(ox_store_is_single(store) ? 2 : 1);
}

void ox_store_info(const struct ox_store *store, struct ox_store_info *out) {
    const struct ox_store_root *const root = store->root;
    const struct ox_store_layout *const layout = &store->layout;
    memset(out, 0, sizeof *out);
    out->run_id[0] = store->run_id[0];
    out->run_id[1] = store->run_id[1];
    out->config_hash = store->config_hash;
    out->step = root->step;
    out->committed = root->committed != 0;
    out->extent_count = layout->extent_count;
    out->drive_count = store->drive_count;
    out->generations = layout->generations;
    out->generation = root->generation % layout->generations;
    out->state_bytes = layout->state_bytes_sum + layout->fixed_bytes_sum;
    out->spool_bytes = layout->spool_bytes_sum;
    for (uint32_t i = 0; i < store->drive_count; i++) {
        out->file_bytes += layout->file_bytes[i];
        out->commit_bytes += ox_store_commit_bytes(store, i);
    }
    out->read_bytes = __atomic_load_n(&store->read_bytes, __ATOMIC_RELAXED);
    out->write_bytes = __atomic_load_n(&store->write_bytes, __ATOMIC_RELAXED);
    out->flush_count = __atomic_load_n(&store->flush_count, __ATOMIC_RELAXED);
    out->retry_count = __atomic_load_n(&store->retry_count, __ATOMIC_RELAXED);
    out->meta_bytes = root->meta_bytes;
    memcpy(out->meta, root->meta, root->meta_bytes);
}

enum ox_status ox_store_drive_info(const struct ox_store *store, uint32_t drive_idx,
                                   struct ox_drive_info *out) {
    if (drive_idx >= store->drive_count) {
        return ox_fail(OX_E_CONFIG, "the store has %u drives, but no drive %u", store->drive_count,
                       drive_idx);
    }
    store->backend->drive_info(store->drives[drive_idx], out);
    return OX_OK;
}

bool ox_store_has_vanished(const struct ox_store *store) {
    bool vanished = false;
    for (uint32_t i = 0; i < store->drive_count; i++) {
        vanished = vanished || ox_store_info_of(store, i).vanished;
    }
    return vanished;
}

const struct ox_extent_spec *ox_store_extents(const struct ox_store *store) {
    return store->layout.extents;
}
