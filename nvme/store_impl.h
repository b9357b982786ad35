/* The store's internals: the format on the drives, and the state that its files share. Private to nvme/. All numbers on
 * a drive are little endian; docs/store-format.md describes the bytes. */
#ifndef OX_NVME_STORE_IMPL_H
#define OX_NVME_STORE_IMPL_H

#include "base/assert.h"
#include "base/bytes.h"
#include "nvme/stall.h"
#include "nvme/store.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* ---- on the drives ---------------------------------------------------------------------------- */

#define OX_STORE_IDENTITY_MAGIC UINT64_C(0x31444945524f5453) /* "STOREID1" */
#define OX_STORE_ROOT_MAGIC     UINT64_C(0x31544f4f524f5453) /* "STOROOT1" */

enum {
    OX_STORE_VERSION = 1,
    OX_STORE_VERSION_OF_THREE = 2, /* of the identity of a store with three generations */
    OX_STORE_BLOCK_BYTES = 4096,
    OX_STORE_RING_LEN = 64,
    OX_STORE_REGION_COUNT = 2,
    OX_STORE_REGION_STRIDE = 1 << 20,
    /* A region holds the identity, then the root ring. */
    OX_STORE_REGION_BYTES = (1 + OX_STORE_RING_LEN) * OX_STORE_BLOCK_BYTES,
    OX_STORE_GEOMETRY_OFFSET = OX_STORE_REGION_COUNT * OX_STORE_REGION_STRIDE,
};

/* Identifies the store that a file belongs to; written once. */
struct ox_store_identity {
    uint64_t magic;
    uint32_t version;
    uint32_t drive_idx, drive_count, extent_count;
    uint64_t run_id[2];
    uint64_t config_hash;
    uint64_t geometry_hash;                  /* hash of the extent list                    */
    uint64_t bytes_max[OX_STORE_DRIVES_MAX]; /* allowances at creation, which decide the placement */
    uint64_t speeds[OX_STORE_DRIVES_MAX];    /* speeds at creation, which do too; all 0: equal */
    uint32_t generations;                    /* 0: two, also in files older than the choice; 1; 3 */
    unsigned char zero[OX_STORE_BLOCK_BYTES - 332];
    uint64_t checksum[2]; /* checksum of all members before it */
};
OX_STATIC_ASSERT(sizeof(struct ox_store_identity) == OX_STORE_BLOCK_BYTES, "one block");

/* One commit. Record `seq` is in ring slot seq % OX_STORE_RING_LEN of both regions of every drive. */
struct ox_store_root {
    uint64_t magic;
    uint32_t version;
    uint32_t committed; /* 0: the store holds no state yet */
    uint64_t run_id[2];
    uint64_t config_hash, geometry_hash;
    uint64_t seq, session; /* session: how often the root was reaffirmed before a first write */
    uint64_t parent_seq, parent_hash;
    uint64_t step, attempt;
    uint64_t table_hash;
    uint32_t generation, meta_bytes;
    unsigned char meta[OX_STORE_META_BYTES_MAX];
    /* One generation only: set from before the first write of a transaction until its commit. All other fields then
     * describe the state being overwritten, as the previous root did. */
    uint64_t open_step;
    uint32_t open;
    uint32_t table; /* three generations: which of the two tables is this root's; else that is `generation` */
    unsigned char zero[OX_STORE_BLOCK_BYTES - OX_STORE_META_BYTES_MAX - 144];
    uint64_t checksum[2]; /* checksum of all members before it */
};
OX_STATIC_ASSERT(sizeof(struct ox_store_root) == OX_STORE_BLOCK_BYTES, "one block");

/* An entry of an extent table: checksums of head and rest. */
struct ox_extent_sum {
    uint64_t head, rest;
};

/* ---- placement: a pure function of the extent list and the allowances ------------------------- */

struct ox_store_place {
    uint64_t offset; /* state: within its generation; spool: in the file */
    uint32_t drive_idx;
};

struct ox_store_layout {
    /* Set before the calls below: */
    uint64_t speeds[OX_STORE_DRIVES_MAX]; /* all 0: equal */
    uint32_t generations;                 /* 0: 2 */

    uint32_t drive_count, extent_count, spool_count;
    struct ox_extent_spec *extents;
    struct ox_store_place *places; /* one per extent */
    uint64_t *spool_bytes;
    struct ox_store_place *spools;
    uint64_t geometry_bytes, table_bytes, extent_bytes_max;
    uint64_t table_offset[2], state_offset;
    uint64_t fixed_bytes[OX_STORE_DRIVES_MAX]; /* of fixed extents, which lie before the generations */
    uint64_t generation_bytes[OX_STORE_DRIVES_MAX];
    uint64_t file_bytes[OX_STORE_DRIVES_MAX];
    uint64_t state_bytes_sum, fixed_bytes_sum, spool_bytes_sum; /* state: of one generation */
};

static inline bool ox_extent_is_fixed(const struct ox_extent_spec *spec) {
    return spec->head_bytes == OX_EXTENT_FIXED;
}
static inline uint64_t ox_extent_head_bytes(const struct ox_extent_spec *spec) {
    return ox_extent_is_fixed(spec) ? 0 : spec->head_bytes;
}

/* Places the state and fills `layout`, which is zeroed except for speeds and generations; copies the lists. */
OX_MUST enum ox_status ox_store_layout_open(const struct ox_extent_spec *extents, uint32_t extent_count,
                                            const uint64_t *bytes_max, uint32_t drive_count,
                                            struct ox_store_layout *layout);
/* Places spool extents in the room that the allowances leave. */
OX_MUST enum ox_status ox_store_layout_add_spool(struct ox_store_layout *layout, const uint64_t *spool_bytes,
                                                 uint32_t spool_count, const uint64_t *bytes_max);
void ox_store_layout_close(struct ox_store_layout *layout);
/* Generations by the number that a configuration or a file has; 0: two. */
static inline uint32_t ox_store_generations(uint32_t number) {
    return number == 0 ? 2 : number;
}
/* "one generation", "two generations" ... */
const char *ox_store_generations_text(uint32_t generations);
uint64_t ox_store_geometry_hash(const struct ox_extent_spec *extents, uint32_t extent_count);

/* ---- checksums of spool pieces, in memory ------------------------------------------------------ */

struct ox_spool_piece {
    uint64_t from, len, hash;
    uint32_t extent_idx;
    bool used;
};

struct ox_spool_map {
    pthread_mutex_t mutex;
    struct ox_spool_piece *pieces;
    uint64_t piece_count, piece_count_max; /* piece_count_max is a power */
};

OX_MUST enum ox_status ox_spool_map_open(uint64_t bytes, struct ox_spool_map *map);
void ox_spool_map_close(struct ox_spool_map *map);
/* Sets a piece; allocates only for a piece seen for the first time. */
OX_MUST enum ox_status ox_spool_map_set(struct ox_spool_map *map, const struct ox_spool_piece *piece);
/* Returns false when no such piece was written. */
bool ox_spool_map_get(struct ox_spool_map *map, struct ox_spool_piece *piece);

/* ---- the open store ----------------------------------------------------------------------------- */

/* TORN: a write failed, and the slot was the only one. */
enum ox_extent_state { OX_EXTENT_IDLE, OX_EXTENT_IN_FLIGHT, OX_EXTENT_WRITTEN, OX_EXTENT_TORN };

/* The last transaction that ended without a commit, and which extents still hold what it has written. */
struct ox_store_kept {
    bool exists;
    uint64_t step, attempt;
    uint32_t generation;
    bool *extents; /* one per extent */
};

struct ox_store {
    const struct ox_io_backend *backend;
    struct ox_drive *drives[OX_STORE_DRIVES_MAX];
    uint32_t drive_count, queue_depth;
    struct ox_stall_limits stall_limits;
    struct ox_stall stalls[OX_STORE_DRIVES_MAX]; /* for the store's own transfers */
    bool hung;                                   /* a drive was given up with requests in flight */
    struct ox_store *given_up_next;
    struct ox_store_port *given_up_ports;
    struct ox_store_layout layout;
    struct ox_spool_map spool_map;
    bool has_spool_map;

    struct ox_io_queue *queue; /* for roots and tables; used by the committing thread */
    uint64_t run_id[2], config_hash, geometry_hash;
    struct ox_store_root *root;  /* the committed root */
    struct ox_store_root *block; /* one aligned block for transfers */
    struct ox_extent_sum *tables[OX_STORE_GENERATIONS_MAX]; /* by generation; on the drives there are two */
    uint64_t seq_seen; /* no root on any drive is newer */
    bool root_is_newest; /* no root newer than ours can be on a drive: rejected ones are wiped */

    /* Guards what a read consults while it changes: root, kept, and the members down to target. */
    pthread_mutex_t mutex;
    bool in_transaction;
    bool prepared; /* the transaction's root is in `block`, all else on the drives; used by the committing thread */
    uint64_t step, attempt;
    uint32_t attempt_count;
    uint32_t target;              /* the generation that the transaction writes */
    struct ox_store_kept kept;
    unsigned char *extent_states; /* enum ox_extent_state; one port at a time uses each */
    unsigned *extent_readers;     /* reads in flight */
    bool torn;                    /* `step` was aborted after overwriting part of the only generation */
    unsigned written_count, writes_in_flight, port_count;
    unsigned reads_in_flight[OX_STORE_GENERATIONS_MAX]; /* reads of state that is not fixed, by generation */

    uint64_t read_bytes, write_bytes, flush_count;
    unsigned retry_count;
};

static inline bool ox_store_is_single(const struct ox_store *store) {
    return store->layout.generations == 1;
}

/* How many tables are in memory: with one generation two as well, which alternate. */
static inline uint32_t ox_store_table_count(const struct ox_store *store) {
    return store->layout.generations > 2 ? store->layout.generations : 2;
}

static inline struct ox_drive_info ox_store_info_of(const struct ox_store *store, uint32_t drive_idx) {
    struct ox_drive_info info;
    store->backend->drive_info(store->drives[drive_idx], &info);
    return info;
}

/* `generation` is a root's; with one generation only the tables alternate. */
static inline uint64_t ox_store_slot_offset(const struct ox_store *store, uint32_t extent_idx,
                                            uint32_t generation) {
    const struct ox_store_place *const place = &store->layout.places[extent_idx];
    if (ox_extent_is_fixed(&store->layout.extents[extent_idx])) {
        return store->layout.state_offset + place->offset;
    }
    return store->layout.state_offset + store->layout.fixed_bytes[place->drive_idx] +
           generation % store->layout.generations * store->layout.generation_bytes[place->drive_idx] + place->offset;
}

/* The two parts of ox_store_submit: ox_store_queue queues an operation, which the kernel may not get yet; ox_store_kick
 * submits held requests. */
OX_MUST enum ox_status ox_store_queue(struct ox_store_port *port, const struct ox_store_op *op);
void ox_store_kick(struct ox_store_port *port);

/* Moves bytes between `buffer` and one drive, and waits. */
OX_MUST enum ox_status ox_store_transfer(struct ox_store *store, enum ox_io_kind kind, uint32_t drive_idx,
                                         uint64_t offset, void *buffer, uint64_t bytes);
OX_MUST enum ox_status ox_store_flush(struct ox_store *store);

/* Seals a block with a checksum of all but its last 16 bytes. */
void ox_store_block_seal(void *block);
bool ox_store_block_is_sealed(const void *block);

/* Writes an empty store's root into every ring, without a flush. */
OX_MUST enum ox_status ox_store_root_create(struct ox_store *store);
/* Finds the newest intact generation and loads its table; goes back to the generation before where that is `wanted`
 * (NULL: the newest). `regions` holds both regions of each drive as read. Fills `offer` unless it is NULL. */
OX_MUST enum ox_status ox_store_recover(struct ox_store *store, const unsigned char *regions,
                                        const struct ox_store_point *wanted, struct ox_store_offer *offer);

enum { OX_STORE_POINT_TEXT_BYTES = 48, OX_STORE_OFFER_TEXT_BYTES = 160 };
/* Writes "step 7", or "no commit". */
void ox_store_point_text(const struct ox_store_point *point, char text[OX_STORE_POINT_TEXT_BYTES]);

/* Why a store with one generation cannot share a transaction; the argument says which store. */
#define OX_STORE_SINGLE_TEXT \
    "%s has one generation (--store-generations 1) and cannot go back to the step before, so it cannot share " \
    "transactions with other processes; use two generations"

#endif
