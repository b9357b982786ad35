/* Roots, tables, transactions and recovery. Only this file decides which slot of an extent is valid, or with
 * one slot, whether that is. */
#include "base/assert.h"
#include "base/hash/hash.h"
#include "base/log.h"
#include "nvme/store_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CHECKSUM_BYTES = 16 };

static uint64_t ring_offset(uint32_t region, uint64_t seq) {
    return region * (uint64_t)OX_STORE_REGION_STRIDE +
           (1 + seq % OX_STORE_RING_LEN) * (uint64_t)OX_STORE_BLOCK_BYTES;
}

/* Writes store->block into ring slot `seq` of both regions of every drive. */
static enum ox_status ring_write(struct ox_store *store, uint64_t seq) {
    for (uint32_t drive_idx = 0; drive_idx < store->drive_count; drive_idx++) {
        for (uint32_t region = 0; region < OX_STORE_REGION_COUNT; region++) {
            const enum ox_status status = ox_store_transfer(
                store, OX_IO_WRITE, drive_idx, ring_offset(region, seq), store->block, OX_STORE_BLOCK_BYTES);
            if (status != OX_OK) {
                return status;
            }
        }
    }
    return OX_OK;
}

static uint64_t table_hash(const struct ox_store *store, const struct ox_store_root *root) {
    const uint64_t words[4] = {store->run_id[0], store->run_id[1], root->step, root->attempt};
    return ox_hash64(store->tables[root->generation], store->layout.table_bytes, ox_hash_seed(words, 4));
}

/* Which of the two tables on a drive is a root's. */
static uint32_t table_idx(const struct ox_store *store, const struct ox_store_root *root) {
    return store->layout.generations > 2 ? root->table : root->generation;
}

/* Makes store->block the successor of `root`. */
static void block_follow(struct ox_store *store, const struct ox_store_root *root) {
    *store->block = *root;
    store->block->seq = store->seq_seen + 1;
    store->block->parent_seq = root->seq;
    store->block->parent_hash = root->checksum[0];
}

/* Writes store->block as the newest root on every drive, durably, and adopts it. Its number counts as used from the
 * start, because a failed write may have reached a drive. The lock is for reads, which may consult the root. */
static enum ox_status block_publish(struct ox_store *store) {
    store->root_is_newest = false;
    store->seq_seen++;
    enum ox_status status = ring_write(store, store->block->seq);
    OX_THEN(status, ox_store_flush(store));
    if (status == OX_OK) {
        pthread_mutex_lock(&store->mutex);
        *store->root = *store->block;
        pthread_mutex_unlock(&store->mutex);
        store->root_is_newest = true;
    }
    return status;
}

/* Writes our root as the newest on every drive and wipes rejected ones, durably, before anything else is written:
 * otherwise a rejected root over a slot being rewritten could pass for a commit. The session counted here keeps
 * checksums of an interrupted attempt from ever being valid again. */
static enum ox_status reaffirm_root(struct ox_store *store) {
    if (store->root_is_newest) {
        return OX_OK;
    }
    const uint64_t wipe_end = ox_min_u64(store->seq_seen + 1, store->root->seq + OX_STORE_RING_LEN);
    enum ox_status status = OX_OK;
    /* Rejected roots are wiped before ours is published: if the run dies between, recovery finds the same choice
     * again. */
    memset(store->block, 0, sizeof *store->block);
    for (uint64_t seq = store->root->seq + 1; seq < wipe_end && status == OX_OK; seq++) {
        status = ring_write(store, seq);
    }
    if ((store->seq_seen + 1 - store->root->seq) % OX_STORE_RING_LEN == 0) {
        store->seq_seen++; /* that ring slot holds our root */
    }
    /* The same data under the next number, so that no older root is newer than it in any slot of the ring. */
    block_follow(store, store->root);
    store->block->session++;
    ox_store_block_seal(store->block);
    return status == OX_OK ? block_publish(store) : status;
}

/* ---- recovery --------------------------------------------------------------------------------- */

/* Valid roots, newest first; they point into the regions that were read. */
struct candidates {
    const struct ox_store_root **roots;
    uint32_t count;
};

static int newest_first(const void *a, const void *b) {
    const struct ox_store_root *const one = *(const struct ox_store_root *const *)a;
    const struct ox_store_root *const two = *(const struct ox_store_root *const *)b;
    if (one->seq != two->seq) {
        return one->seq < two->seq ? 1 : -1;
    }
    return one->session < two->session ? 1 : one->session > two->session ? -1 : 0;
}

static bool root_is_valid(const struct ox_store *store, const struct ox_store_root *root, uint32_t slot_idx) {
    return root->magic == OX_STORE_ROOT_MAGIC && ox_store_block_is_sealed(root) &&
           root->version == OX_STORE_VERSION && root->run_id[0] == store->run_id[0] &&
           root->run_id[1] == store->run_id[1] && root->config_hash == store->config_hash &&
           root->geometry_hash == store->geometry_hash && root->seq % OX_STORE_RING_LEN == slot_idx &&
           root->generation < ox_store_table_count(store) && root->table <= 1 &&
           root->meta_bytes <= OX_STORE_META_BYTES_MAX;
}

static void collect(const struct ox_store *store, const unsigned char *regions, struct candidates *out) {
    for (uint32_t region = 0; region < store->drive_count * OX_STORE_REGION_COUNT; region++) {
        const unsigned char *const ring =
            regions + (size_t)region * OX_STORE_REGION_BYTES + OX_STORE_BLOCK_BYTES;
        for (uint32_t slot_idx = 0; slot_idx < OX_STORE_RING_LEN; slot_idx++) {
            const void *const block = ring + (size_t)slot_idx * OX_STORE_BLOCK_BYTES;
            if (root_is_valid(store, block, slot_idx)) {
                out->roots[out->count++] = block;
            }
        }
    }
    /* Each drive has each root twice, so equal numbers are copies; of two that differ the later session counts. */
    qsort(out->roots, out->count, sizeof *out->roots, newest_first);
}

/* A root names its parent. A record with the parent's number but another checksum belongs to another history; a missing
 * parent proves nothing. */
static bool parent_fits(const struct candidates *all, const struct ox_store_root *root) {
    bool seen = false;
    for (uint32_t i = 0; i < all->count; i++) {
        if (all->roots[i]->seq == root->parent_seq && root->parent_seq != root->seq) {
            seen = true;
            if (all->roots[i]->checksum[0] == root->parent_hash) {
                return true;
            }
        }
    }
    return !seen;
}

/* Loads the root's table from the first drive that has it intact. */
static enum ox_status table_load(struct ox_store *store, const struct ox_store_root *root) {
    enum ox_status status = OX_OK;
    for (uint32_t drive_idx = 0; drive_idx < store->drive_count; drive_idx++) {
        status = ox_store_transfer(store, OX_IO_READ, drive_idx, store->layout.table_offset[table_idx(store, root)],
                                   store->tables[root->generation], store->layout.table_bytes);
        if (status == OX_OK && table_hash(store, root) == root->table_hash) {
            return OX_OK;
        }
    }
    return status != OX_OK
               ? status
               : ox_fail(OX_E_CORRUPT, "the extent table of step %" PRIu64 " is damaged on every drive",
                         root->step);
}

/* Reads and verifies the whole generation of store->root. */
static enum ox_status generation_verify(struct ox_store *store) {
    void *buffer = NULL;
    /* Read through the port that a run uses, which compares each extent with the table's checksum. */
    struct ox_store_port *port = NULL;
    if (posix_memalign(&buffer, OX_IO_ALIGN_BYTES, store->layout.extent_bytes_max) != 0) {
        return ox_fail(OX_E_NOMEM, "no memory to verify the store");
    }
    enum ox_status status = ox_store_port_open(store, &port);
    for (uint32_t i = 0; i < store->layout.extent_count && status == OX_OK; i++) {
        if (store->layout.extents[i].bytes == 0) {
            continue;
        }
        const struct ox_store_op op = {.kind = OX_STORE_READ, .extent_idx = i, .buffer = buffer};
        status = ox_store_run(port, &op, 1);
    }
    ox_store_port_close(&port);
    free(buffer);
    return status;
}

/* Returns OX_OK when `root` names an intact generation. Only the newest root that is not open vouches for its data,
 * because no later attempt has overwritten it; otherwise all data is read. */
static enum ox_status root_try(struct ox_store *store, const struct candidates *all, uint32_t idx) {
    const struct ox_store_root *const root = all->roots[idx];
    if (!parent_fits(all, root)) {
        return ox_fail(OX_E_CORRUPT, "root record %" PRIu64 " does not follow the one before it",
                       root->seq);
    }
    /* Verification reads what store->root names; where it finds damage, the next root takes its place. */
    *store->root = *root;
    if (!root->committed) {
        return root->seq == all->roots[0]->seq
                   ? OX_OK
                   : ox_fail(OX_E_CORRUPT, "only the empty state from its creation is left");
    }
    enum ox_status status = table_load(store, root);
    if (status == OX_OK && (root->seq != all->roots[0]->seq || root->open != 0)) {
        status = generation_verify(store);
    }
    return status;
}

static bool same_data(const struct ox_store_root *a, const struct ox_store_root *b) {
    return a->committed == b->committed && a->generation == b->generation && a->attempt == b->attempt &&
           a->step == b->step && a->table_hash == b->table_hash && a->parent_seq == b->parent_seq &&
           a->parent_hash == b->parent_hash;
}

static void choice_log(const struct ox_store_root *root, bool newest, const char *path) {
    if (root->open != 0) {
        ox_log(OX_LOG_WARN,
               "%s: step %" PRIu64 " was interrupted before it overwrote anything; step %" PRIu64 " is intact", path,
               root->open_step, root->step);
    } else if (!newest) {
        ox_log(OX_LOG_WARN, "%s: the newest commit is damaged; falling back to step %" PRIu64, path, root->step);
    }
}

static enum ox_status choose_root(struct ox_store *store, const struct candidates *all, const char *path) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < all->count; i++) {
        /* The newest first. An older one is taken only for data that are damaged, never for a drive that cannot be
         * read now: it would silently lose a commit. */
        if (i > 0 && same_data(all->roots[i - 1], all->roots[i])) {
            continue; /* another copy of a rejected root */
        }
        status = root_try(store, all, i);
        if (status == OX_OK) {
            choice_log(store->root, i == 0, path);
            return OX_OK;
        }
        /* One generation: what the older roots name was overwritten by this very step, so that there is nothing to
         * fall back to. */
        if (status == OX_E_CORRUPT && i == 0 && all->roots[i]->open != 0) {
            return ox_fail(status,
                           "%s: has one generation (--store-generations 1) and was being rewritten at step %" PRIu64
                           " when the run ended; resume from a checkpoint",
                           path, all->roots[i]->open_step);
        }
        ox_log(OX_LOG_WARN, "%s: step %" PRIu64 " cannot be used: %s", path, all->roots[i]->step,
               ox_error_text());
        if (status != OX_E_CORRUPT) {
            return ox_fail_in(status, "%s", path);
        }
        if (all->roots[i]->open != 0) {
            break; /* older roots name the state that this one replaced */
        }
    }
    if (all->count == 0) {
        return ox_fail(
            OX_E_CORRUPT,
            "%s: has no valid root record: its creation was interrupted or it is damaged; remove the "
            "store and start from a checkpoint",
            path);
    }
    return ox_fail(status,
                   "%s: no generation of the store is intact (%s); remove it and resume from a checkpoint",
                   path, ox_error_text());
}

/* ---- one transaction over several stores ------------------------------------------------------- */

static struct ox_store_point point_of(const struct ox_store_root *root) {
    return (struct ox_store_point){.step = root->committed != 0 ? root->step : 0, .committed = root->committed != 0};
}

static bool point_is(const struct ox_store_root *root, const struct ox_store_point *point) {
    return (root->committed != 0) == point->committed && (!point->committed || root->step == point->step);
}

/* Returns the root of the commit before store->root's, or the empty root before a first commit, with its table loaded;
 * NULL when it is no longer there. Whether a later transaction has overwritten its data, only reading can tell. */
static const struct ox_store_root *older_root(struct ox_store *store, const struct candidates *all) {
    const struct ox_store_root *const now = store->root;
    for (uint32_t i = 0; i < all->count && now->committed && !ox_store_is_single(store); i++) {
        const struct ox_store_root *const root = all->roots[i];
        if (root->seq >= now->seq || (root->committed && root->step >= now->step)) {
            continue; /* a copy of ours, or one that was withdrawn */
        }
        /* The first that is older decides: it is the commit before ours. */
        const bool other = !root->committed || root->generation != now->generation;
        const bool usable = other && parent_fits(all, root) && (!root->committed || table_load(store, root) == OX_OK);
        return usable ? root : NULL;
    }
    return NULL;
}

static enum ox_status take_point(struct ox_store *store, const struct candidates *all,
                                 const struct ox_store_point *wanted, const char *path) {
    char held[OX_STORE_POINT_TEXT_BYTES], asked[OX_STORE_POINT_TEXT_BYTES];
    const struct ox_store_point newest = point_of(store->root);
    if (point_is(store->root, wanted)) {
        return OX_OK;
    }
    const struct ox_store_root *const older = older_root(store, all);
    ox_store_point_text(&newest, held);
    ox_store_point_text(wanted, asked);
    if (older == NULL || !point_is(older, wanted)) {
        return ox_fail(OX_E_CORRUPT, "%s: holds %s and cannot go back to %s; resume from a checkpoint", path, held,
                       asked);
    }
    /* Verified whole: the withdrawn transaction, or a later one, may have begun to overwrite it. */
    *store->root = *older;
    const enum ox_status status = older->committed ? generation_verify(store) : OX_OK;
    if (status != OX_OK) {
        return ox_fail_in(status, "%s: holds %s and cannot go back to %s, which is not intact; resume from a "
                                  "checkpoint", path, held, asked);
    }
    ox_log(OX_LOG_WARN, "%s: %s is withdrawn, because another process has not committed it; going on from %s", path,
           held, asked);
    return OX_OK;
}

static void list_points(struct ox_store *store, const struct candidates *all, struct ox_store_offer *out) {
    memset(out, 0, sizeof *out);
    out->run_id[0] = store->run_id[0];
    out->run_id[1] = store->run_id[1];
    out->generations = store->layout.generations;
    out->points[out->point_count++] = point_of(store->root);
    const struct ox_store_root *const older = older_root(store, all);
    if (older != NULL) {
        out->points[out->point_count++] = point_of(older);
    }
}

enum ox_status ox_store_recover(struct ox_store *store, const unsigned char *regions,
                                const struct ox_store_point *wanted, struct ox_store_offer *offer) {
    const size_t count_max = (size_t)store->drive_count * OX_STORE_REGION_COUNT * OX_STORE_RING_LEN;
    struct candidates all = {.roots = calloc(count_max, sizeof(struct ox_store_root *))};
    if (all.roots == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the root records of a store");
    }
    const struct ox_drive_info info = ox_store_info_of(store, 0);
    collect(store, regions, &all);
    enum ox_status status = choose_root(store, &all, info.path);
    if (status == OX_OK && wanted != NULL) {
        status = take_point(store, &all, wanted, info.path);
    }
    if (status == OX_OK && offer != NULL) {
        list_points(store, &all, offer);
    }
    if (status == OX_OK) {
        /* The newest number that was seen, taken or not: ours must be above those that were rejected. */
        store->seq_seen = all.roots[0]->seq;
        store->root_is_newest = false;
    }
    free(all.roots);
    return status;
}

enum ox_status ox_store_root_create(struct ox_store *store) {
    struct ox_store_root *const root = store->root;
    memset(root, 0, sizeof *root);
    root->magic = OX_STORE_ROOT_MAGIC;
    root->version = OX_STORE_VERSION;
    root->run_id[0] = store->run_id[0];
    root->run_id[1] = store->run_id[1];
    root->config_hash = store->config_hash;
    root->geometry_hash = store->geometry_hash;
    root->generation = 1; /* makes the first transaction write generation 0 */
    ox_store_block_seal(root);
    *store->block = *root;
    store->root_is_newest = true;
    return ring_write(store, 0);
}

/* ---- transactions ------------------------------------------------------------------------------ */

/* With one generation: marks the root open, durably, on every drive before any state is overwritten. After a crash the
 * open root is valid only if every extent still verifies. */
static enum ox_status mark_open(struct ox_store *store, uint64_t step) {
    const struct ox_store_root *const root = store->root;
    if (!ox_store_is_single(store) || !root->committed || (root->open != 0 && root->open_step == step)) {
        return OX_OK;
    }
    block_follow(store, root);
    store->block->open = 1;
    store->block->open_step = step;
    ox_store_block_seal(store->block);
    return block_publish(store);
}

/* The generation that the next transaction writes: neither the last commit's nor, if there are three, the kept one's,
 * unless that goes on. */
static uint32_t target_of(const struct ox_store *store, bool goes_on) {
    const uint32_t committed = store->root->generation;
    if (store->layout.generations < OX_STORE_GENERATIONS_MAX) {
        return committed ^ 1;
    }
    const uint32_t other = (committed + 1) % OX_STORE_GENERATIONS_MAX;
    const bool taken = store->kept.exists && store->kept.generation == other;
    return goes_on ? store->kept.generation : taken ? (committed + 2) % OX_STORE_GENERATIONS_MAX : other;
}

/* Whether a transaction takes over what an extent holds: a fixed one that is committed, or has no bytes. */
static bool is_taken_over(const struct ox_store *store, uint32_t extent_idx) {
    const struct ox_extent_spec *const spec = &store->layout.extents[extent_idx];
    return ox_extent_is_fixed(spec) && (store->root->committed || spec->bytes == 0);
}

/* Starts the transaction in memory: a new one, or the one that was kept goes on. */
static void start(struct ox_store *store, uint64_t step) {
    const struct ox_store_kept *const kept = &store->kept;
    const bool goes_on = kept->exists && kept->step == step;
    unsigned written_count = 0;
    /* What a new transaction overwrites is no longer read, except that an extent of the kept one may be read until the
     * transaction writes it. */
    const uint32_t target = target_of(store, goes_on);
    const bool in_place = kept->exists && kept->generation == target;
    OX_ASSERT(in_place || __atomic_load_n(&store->reads_in_flight[target], __ATOMIC_SEQ_CST) == 0);
    pthread_mutex_lock(&store->mutex);
    store->in_transaction = true;
    store->step = step;
    store->target = target;
    store->attempt = goes_on ? kept->attempt : store->root->session << 32 | ++store->attempt_count;
    /* What is taken over, or was written by the part that was kept, needs no write; a commit counts all extents. */
    for (uint32_t i = 0; i < store->layout.extent_count; i++) {
        const bool taken_over = is_taken_over(store, i), written = taken_over || (goes_on && kept->extents[i]);
        if (taken_over && store->root->committed) {
            store->tables[target][i] = store->tables[store->root->generation][i];
        }
        store->extent_states[i] = written ? OX_EXTENT_WRITTEN : OX_EXTENT_IDLE;
        written_count += written;
    }
    pthread_mutex_unlock(&store->mutex);
    __atomic_store_n(&store->written_count, written_count, __ATOMIC_SEQ_CST);
}

enum ox_status ox_store_begin(struct ox_store *store, uint64_t step) {
    OX_ASSERT(!store->in_transaction);
    OX_ASSERT(!store->root->committed || step > store->root->step);
    OX_ASSERT(!store->kept.exists || step >= store->kept.step);
    OX_ASSERT(__atomic_load_n(&store->writes_in_flight, __ATOMIC_SEQ_CST) == 0);
    if (store->torn) {
        return ox_fail(OX_E_CORRUPT,
                       "the store has one generation, and step %" PRIu64 " failed while it was overwritten; resume "
                       "from a checkpoint", store->step);
    }
    /* The last commit must be the newest root before anything is overwritten; of a single generation it is then marked
     * as being overwritten. Both are durable before the transaction begins in memory. */
    enum ox_status status = reaffirm_root(store);
    OX_THEN(status, mark_open(store, step));
    if (status != OX_OK) {
        return ox_fail_in(status, "the store cannot be prepared for step %" PRIu64, step);
    }
    start(store, step);
    return OX_OK;
}

/* Writes the transaction's table over the one that is not the last commit's. */
static enum ox_status tables_write(struct ox_store *store) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < store->drive_count && status == OX_OK; i++) {
        status = ox_store_transfer(store, OX_IO_WRITE, i, store->layout.table_offset[table_idx(store, store->root) ^ 1],
                                   store->tables[store->target], store->layout.table_bytes);
    }
    return status;
}

/* Prepares the transaction's root record in store->block. */
static void block_prepare(struct ox_store *store, const void *meta, uint32_t meta_bytes) {
    block_follow(store, store->root);
    struct ox_store_root *const root = store->block;
    root->committed = 1;
    root->open = 0;
    root->open_step = 0;
    root->generation = store->target;
    root->table = store->layout.generations > 2 ? root->table ^ 1 : 0;
    root->step = store->step;
    root->attempt = store->attempt;
    root->table_hash = table_hash(store, root);
    root->meta_bytes = meta_bytes;
    memset(root->meta, 0, sizeof root->meta);
    if (meta_bytes > 0) {
        memcpy(root->meta, meta, meta_bytes);
    }
    ox_store_block_seal(root);
}

/* Ends the transaction. What was kept before it stays, unless the transaction was committed or has overwritten a part
 * of that. */
static void end_transaction(struct ox_store *store, bool committed) {
    struct ox_store_kept *const kept = &store->kept;
    bool whole = kept->exists && !committed;
    for (uint32_t i = 0; i < store->layout.extent_count && whole && store->step != kept->step; i++) {
        whole = kept->generation != store->target || store->extent_states[i] == OX_EXTENT_IDLE ||
                is_taken_over(store, i);
    }
    pthread_mutex_lock(&store->mutex);
    store->in_transaction = false;
    store->prepared = false;
    kept->exists = whole;
    pthread_mutex_unlock(&store->mutex);
}

/* After a failure: notes whether committed state of a single generation was overwritten, which cannot be undone. */
static void note_torn(struct ox_store *store) {
    bool touched = false;
    for (uint32_t i = 0; i < store->layout.extent_count && !touched; i++) {
        touched = store->extent_states[i] != OX_EXTENT_IDLE && !is_taken_over(store, i);
    }
    store->torn = touched && ox_store_is_single(store) && store->root->committed;
}

/* Ends the transaction whose commit failed with `status`. */
static enum ox_status give_up(struct ox_store *store, enum ox_status status) {
    char text[OX_ERROR_TEXT_BYTES];
    end_transaction(store, false);
    memcpy(text, ox_error_text(), sizeof text); /* of the failure: reaffirming may fail too */
    note_torn(store);
    if (store->torn) {
        return ox_fail(status,
                       "step %" PRIu64 " is not committed: %.700s; the store has one generation, which this step "
                       "overwrote; resume from a checkpoint", store->step, text);
    }
    /* The failed root may have reached some drives: the last commit is written again, with a higher number. */
    const bool undone = reaffirm_root(store) == OX_OK;
    return ox_fail(status, "step %" PRIu64 " is not committed: %.800s%s", store->step, text,
                   undone ? "" : "; after a crash it may still be found committed, and then intact");
}

/* Makes all durable that the root of the transaction will name, and makes that root in store->block. */
static enum ox_status prepare(struct ox_store *store, const void *meta, uint32_t meta_bytes) {
    OX_ASSERT(store->in_transaction && !store->prepared && meta_bytes <= OX_STORE_META_BYTES_MAX);
    OX_ASSERT(__atomic_load_n(&store->writes_in_flight, __ATOMIC_SEQ_CST) == 0);
    OX_ASSERT(__atomic_load_n(&store->written_count, __ATOMIC_SEQ_CST) == store->layout.extent_count);
    /* Tables and, by the same flush, all extents before the root that names them: it may reach a drive any time. */
    enum ox_status status = tables_write(store);
    OX_THEN(status, ox_store_flush(store));
    if (status == OX_OK) {
        block_prepare(store, meta, meta_bytes);
        store->prepared = true;
    }
    return status;
}

enum ox_status ox_store_prepare(struct ox_store *store, const void *meta, uint32_t meta_bytes) {
    if (ox_store_is_single(store)) {
        return ox_fail(OX_E_CONFIG, OX_STORE_SINGLE_TEXT, "the store");
    }
    const enum ox_status status = prepare(store, meta, meta_bytes);
    return status == OX_OK ? OX_OK : give_up(store, status);
}

enum ox_status ox_store_commit(struct ox_store *store, const void *meta, uint32_t meta_bytes) {
    OX_ASSERT(store->in_transaction && (!store->prepared || meta_bytes == 0));
    enum ox_status status = store->prepared ? OX_OK : prepare(store, meta, meta_bytes);
    OX_THEN(status, block_publish(store));
    if (status != OX_OK) {
        return give_up(store, status);
    }
    end_transaction(store, true);
    return OX_OK;
}

void ox_store_abort(struct ox_store *store) {
    OX_ASSERT(__atomic_load_n(&store->writes_in_flight, __ATOMIC_SEQ_CST) == 0);
    if (store->in_transaction) {
        note_torn(store); /* while the states of the extents are still known */
        end_transaction(store, false);
    }
}

void ox_store_keep(struct ox_store *store) {
    struct ox_store_kept *const kept = &store->kept;
    OX_ASSERT(store->in_transaction && !store->prepared && !ox_store_is_single(store));
    OX_ASSERT(__atomic_load_n(&store->writes_in_flight, __ATOMIC_SEQ_CST) == 0);
    pthread_mutex_lock(&store->mutex);
    store->in_transaction = false;
    kept->exists = true;
    kept->step = store->step;
    kept->attempt = store->attempt;
    kept->generation = store->target;
    for (uint32_t i = 0; i < store->layout.extent_count; i++) {
        kept->extents[i] = store->extent_states[i] == OX_EXTENT_WRITTEN;
    }
    pthread_mutex_unlock(&store->mutex);
}

void ox_store_forget(struct ox_store *store) {
    ox_store_abort(store);
    pthread_mutex_lock(&store->mutex);
    store->kept.exists = false;
    pthread_mutex_unlock(&store->mutex);
}

void ox_store_block_seal(void *block) {
    unsigned char *const bytes = block;
    const struct ox_hash128 hash = ox_hash128(bytes, OX_STORE_BLOCK_BYTES - CHECKSUM_BYTES, OX_STORE_VERSION);
    memcpy(bytes + OX_STORE_BLOCK_BYTES - CHECKSUM_BYTES, &hash, sizeof hash);
}

bool ox_store_block_is_sealed(const void *block) {
    const unsigned char *const bytes = block;
    const struct ox_hash128 hash = ox_hash128(bytes, OX_STORE_BLOCK_BYTES - CHECKSUM_BYTES, OX_STORE_VERSION);
    return memcmp(bytes + OX_STORE_BLOCK_BYTES - CHECKSUM_BYTES, &hash, sizeof hash) == 0;
}
