/* The store keeps training state on drives, rewrites it every step, and never loses it (unless one generation is
 * requested). The engine's optimizer, its spool and `offload inspect` call it.
 *
 * State is a list of extents. Each has two slots on one drive, one per generation, and a checksum stored apart from the
 * data and seeded by (run, extent, step, attempt). A transaction writes every extent once into its idle slot; commit
 * writes the extent table, flushes, writes one root record per drive into a ring, and flushes again. Until that second
 * flush ends, the previous generation is intact. Between commits the idle slots may hold a step that is not committed
 * (ox_store_keep), for state that need not survive a crash at every step.
 *
 * With one generation an extent has one slot, so the files are about half as large, and a transaction overwrites the
 * state: until its commit the store holds neither the previous step nor the new one, and its root says so. After a
 * crash in between only checkpoints are left; a store that opens is always intact.
 *
 * With three generations a step that is kept and the transaction after it have slots of their own, so that an abort
 * goes back to the kept step.
 *
 * Spool extents hold data that lives within a step (activation checkpoints, gradients): one slot, checksums in memory,
 * meaningless after a restart.
 *
 * Layout and protocol: docs/store-format.md. */
#ifndef OX_NVME_STORE_H
#define OX_NVME_STORE_H

#include "nvme/io.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_STORE_META_BYTES_MAX = 2048, OX_STORE_DRIVES_MAX = 16, OX_STORE_GENERATIONS_MAX = 3 };

/* In the place of head_bytes: the extent is fixed. It has no head, and one slot for all generations, which only the
 * first transaction of a store writes; later ones take over what it holds. It may have no bytes; then nothing is
 * written. */
#define OX_EXTENT_FIXED UINT64_C(1)

/* An extent consists of a head of head_bytes (may be 0) and the rest, each with its own checksum, so that the head can
 * be read alone. Both are multiples of OX_IO_ALIGN_BYTES. */
struct ox_extent_spec {
    uint64_t bytes; /* head included */
    uint64_t head_bytes;
};

/* A state to which a store can be opened: a committed step, or the empty state before the first commit. */
struct ox_store_point {
    uint64_t step; /* 0 unless committed */
    bool committed;
};

struct ox_store_config {
    const struct ox_io_backend *backend;
    const char *const *folders; /* one per drive; the file inside is "offload-store-<idx>.ox" */
    const uint64_t *bytes_max;  /* per drive: the user's allowance */
    /* Relative speeds of the drives, in any unit. create: each drive gets that share of the state as far as it has
     * room; NULL: equal shares. open: state stays where it was created; spool is placed by these, or by those of
     * creation if NULL. */
    const uint64_t *speeds;
    uint32_t drive_count;
    const struct ox_extent_spec *extents; /* state extents; copied. A store may have none */
    uint32_t extent_count;
    const uint64_t *spool_bytes; /* spool extents, multiples of OX_IO_ALIGN_BYTES; copied */
    uint32_t spool_count;
    uint64_t run_id[2];    /* create: this run, seeds the checksums. open: must match unless 0,0 */
    /* open: another model's geometry is refused. With several processes it covers which one of how many this is, as
     * their extents may be alike: else drives that two of them exchanged would open. */
    uint64_t config_hash;
    uint32_t queue_depth;  /* requests in flight per port and drive; at least 1 */
    uint32_t stall_warn_ms; /* warn of a drive silent for this long; 0: 10 s */
    uint32_t stall_fail_ms; /* give it up after this; the port breaks; 0: 10 minutes */
    uint32_t generations;   /* 1, 2 or 3; 0: 2. open: must be as created, unless extents is NULL */
    const struct ox_store_point *point; /* open: take exactly this one, as ox_store_agree chose; NULL: the newest */
};

struct ox_store;

/* Creates and preallocates the files, whose names must be free, and writes an empty root. A store that does not fit in
 * bytes_max or on the file system is refused before anything is written. On failure the created files are removed. */
OX_MUST enum ox_status ox_store_create(const struct ox_store_config *config, struct ox_store **out);

/* Opens, locks and recovers the store: it takes the newest root whose extent table is intact. If a newer root was
 * rejected, it reads and verifies all data of the one it takes. With one generation and an unfinished transaction it
 * does the same: the store is intact if nothing was overwritten yet, else the call fails with OX_E_CORRUPT and names
 * the step. With `point` it takes that one or fails; if that is not the newest, it reads and verifies all its data.
 * ox_store_begin wipes rejected and withdrawn roots before the first write.
 *
 * `extents` NULL takes the geometry from the file (for inspect): config_hash and generations are not compared, and
 * bytes_max may be NULL. Spool extents may differ from the last run's; the files are resized to them. A damaged file is
 * OX_E_CORRUPT, a foreign one OX_E_CONFIG, both named; OX_E_BUSY when another process has it. */
#define OX_STORE_OF_ANOTHER "was made for another model or other settings" /* in the text, for config_hash */
OX_MUST enum ox_status ox_store_open(const struct ox_store_config *config, struct ox_store **out);

void ox_store_close(struct ox_store **store);

/* ---- one transaction over several stores -----------------------------------------------------
 *
 * Each process of a run has a store of its own. A step is committed on all of them or on none:
 *
 *   1. every process prepares (ox_store_prepare) and says so; if one fails, all abort (ox_store_abort)
 *   2. when all have prepared, every process commits (ox_store_commit) and says so
 *   3. when all have committed, the next transaction may begin, on any of them
 *
 * A process that does not learn what the others said must not go on. So stores differ by one commit at most, and the
 * older one is intact on those that are ahead. At a start, and after a commit that failed or was not confirmed, every
 * process looks what its store offers, all agree on one point, and each opens its store there. */

struct ox_store_offer {
    uint64_t run_id[2];
    uint32_t generations;
    uint32_t point_count; /* 0: there is no store */
    struct ox_store_point points[2]; /* newest first */
};

/* Tells what the store can be opened at, and changes nothing. The older point is the commit before, if its root and
 * table are still there; ox_store_open then verifies its data. Locks and errors are those of ox_store_open. Uses of
 * config: as for open without extents. */
OX_MUST enum ox_status ox_store_look(const struct ox_store_config *config, struct ox_store_offer *out);

/* Finds the newest point that all processes can take: a pure function, equal on all of them. offers[i] is of process
 * i. If no process has a store, or all that have one hold no commit, that is a point that is not committed. Fails, with
 * text that names processes and their steps, if there is no such point, or stores of different runs are mixed, or a
 * store has one generation, which cannot go back. */
OX_MUST enum ox_status ox_store_agree(const struct ox_store_offer *offers, uint32_t count, struct ox_store_point *out);

/* Fails, with OX_E_BUSY, if another process has a store open in one of these folders. */
OX_MUST enum ox_status ox_store_check_unused(const char *const *folders, uint32_t drive_count);
/* Removes the store's files in these folders, durably, to start over. */
OX_MUST enum ox_status ox_store_remove(const char *const *folders, uint32_t drive_count);

/* Returns the bytes before the first extent in each drive's file: headers, the list of extents and their checksums. */
uint64_t ox_store_fixed_bytes(uint32_t extent_count);

/* Checks whether a store of this geometry fits in the allowances, without touching a drive. Uses of config: extents,
 * spool_bytes, bytes_max and their counts, speeds, generations. */
OX_MUST enum ox_status ox_store_fits(const struct ox_store_config *config);

/* Quick check by sums instead of a list of extents: true when there is so much room that ox_store_fits would succeed
 * wherever extents are placed; false says nothing. Uses of config: as ox_store_fits, without the extents. */
struct ox_store_sums {
    uint64_t bytes, extent_bytes_max;
    uint32_t extent_count;
};
bool ox_store_surely_fits(const struct ox_store_config *config, const struct ox_store_sums *state);

/* Returns true when the folder holds a store file. */
bool ox_store_exists(const char *folder);

/* Tells which run the store files of a folder belong to, whatever their number and state; locks and changes nothing. */
enum ox_store_owner {
    OX_STORE_OWNER_NONE,    /* no store file */
    OX_STORE_OWNER_SAME,    /* all belong to the run */
    OX_STORE_OWNER_UNKNOWN, /* at least one has no readable header  */
    OX_STORE_OWNER_OTHER,   /* at least one belongs to another run */
};
enum ox_store_owner ox_store_owner(const char *folder, const uint64_t run_id[2]);

struct ox_store_info {
    uint64_t run_id[2], config_hash;
    uint64_t step;      /* last committed step; 0: nothing committed yet */
    bool committed;     /* at least one transaction is committed */
    uint32_t extent_count, drive_count;
    uint32_t generations, generation; /* how many, and which one holds the last commit */
    uint64_t state_bytes, spool_bytes, file_bytes; /* file_bytes: over all drives */
    uint64_t read_bytes, write_bytes, flush_count; /* since open */
    uint32_t retry_count;                          /* reads repeated after a wrong checksum */
    uint64_t commit_bytes;                         /* total bytes of a commit: state, tables, roots */
    uint32_t meta_bytes;
    unsigned char meta[OX_STORE_META_BYTES_MAX];   /* metadata of the last commit */
};
void ox_store_info(const struct ox_store *store, struct ox_store_info *out);
OX_MUST enum ox_status ox_store_drive_info(const struct ox_store *store, uint32_t drive_idx,
                                           struct ox_drive_info *out);
/* Whether a commit has failed because a file of the store was deleted, moved or replaced. The store stays open, and its
 * last commit can be read, but no other process may find it. */
bool ox_store_has_vanished(const struct ox_store *store);
/* Returns the bytes that a commit writes to one drive: state, tables, roots. */
uint64_t ox_store_commit_bytes(const struct ox_store *store, uint32_t drive_idx);
const struct ox_extent_spec *ox_store_extents(const struct ox_store *store);

/* ---- transactions: begin, write every extent, commit ---------------------------------------- */

/* Starts the transaction that will become `step`, which must exceed the committed one, and that of a kept transaction
 * unless it is the same: then that transaction goes on. With one generation over committed state it costs an extra
 * flush, and fails with OX_E_CORRUPT after an earlier transaction was aborted following a write. */
OX_MUST enum ox_status ox_store_begin(struct ox_store *store, uint64_t step);

/* Does all of a commit but its last part, and makes it durable: afterwards ox_store_commit only writes the roots.
 * Requirements are those of ox_store_commit; no write of state may follow. The last commit stays intact, whether
 * ox_store_commit or ox_store_abort comes next, or the process ends: nothing on the drives says that the step was
 * prepared. A failure aborts the transaction. Fails with one generation, and leaves the transaction open. */
OX_MUST enum ox_status ox_store_prepare(struct ox_store *store, const void *meta, uint32_t meta_bytes);

/* Commits; prepares first unless that was done, and then `meta` was given there and meta_bytes is 0 here. Requires
 * every extent written and no write of state in flight; spool operations and reads that name a step may be. `meta` is
 * kept in the root. On failure nothing is committed and the transaction is aborted; if even
 * withdrawing the root fails, the text says so. A failed flush is never retried. With one generation a failure acts
 * like an abort after writes; a restart finds `step` intact if its root reached the drives. */
OX_MUST enum ox_status ox_store_commit(struct ox_store *store, const void *meta, uint32_t meta_bytes);

/* Ends the transaction without a commit, and keeps what it has written, which need not be every extent: reads that name
 * its step find it. The last commit stays as it is, so that a crash goes back to that. With two generations the next
 * transaction takes the same slots: it reads an extent of the kept step, if at all, before it writes that. Its step
 * replaces the kept one. To commit the kept step itself, begin it again and write the extents that are missing. Needs
 * several generations and no write of state in flight. */
void ox_store_keep(struct ox_store *store);

/* Aborts the transaction, if there is one, and forgets the step that was kept: the last commit alone is left. */
void ox_store_forget(struct ox_store *store);

/* Aborts the transaction, if there is one; the next one may write its slots again. Requires no write of state in flight
 * and no read of what it wrote. A step that was kept before it stays, unless the transaction has overwritten some of
 * it; then the last commit alone is left. With one generation over committed state, an abort after a submitted write
 * leaves the state torn for good: extents written read as OX_E_CORRUPT from then on, the others as before, and
 * ox_store_begin fails. */
void ox_store_abort(struct ox_store *store);

/* ---- transfers, one by one; nvme/transfers.h has them in groups ------------------------------- */

/* A queue of operations for one thread; several ports may be open. */
struct ox_store_port;
OX_MUST enum ox_status ox_store_port_open(struct ox_store *store, struct ox_store_port **out);
/* Waits for operations in flight, then closes. */
void ox_store_port_close(struct ox_store_port **port);

/* Registers the memory of most of this port's buffers, once, before the first operation: the kernel then keeps it
 * pinned and mapped for the drives, if it allows that. It costs the kernel about 16 bytes per page and drive, so
 * register only what this port uses. The memory must stay until the port is closed. */
void ox_store_port_register(struct ox_store_port *port, const struct ox_io_region *regions, uint32_t region_count);
/* Tells what could be registered, and why not. */
void ox_store_port_info(const struct ox_store_port *port, struct ox_io_queue_info *out);

enum ox_store_op_kind {
    /* whole extent, verified. With one generation, a transaction must read an extent and reap that before it writes it:
     * afterwards the last commit's data is gone */
    OX_STORE_READ,
    OX_STORE_READ_HEAD,  /* only its head, verified */
    /* whole extent into the idle (or only) slot, hashed at submit; of several writes of one extent in a transaction the
     * last counts */
    OX_STORE_WRITE,
    OX_STORE_SPOOL_READ, /* spool_len bytes of a spool extent, from spool_from, verified */
    OX_STORE_SPOOL_WRITE,
};
struct ox_store_op {
    enum ox_store_op_kind kind;
    uint32_t extent_idx;
    void *buffer;        /* aligned to OX_IO_ALIGN_BYTES; owned by the port until reaped */
    uint64_t spool_from; /* spool: offset within the extent, aligned                   */
    uint64_t spool_len;  /* spool: bytes, aligned; pieces must be read as written */
    uint64_t tag;
    /* Step whose state to read: the last commit's, that of the running transaction, which must have written the extent
     * and reaped that, or a kept one's; OX_E_ABORTED when it was aborted. 0: the last commit's. */
    uint64_t step;
};

enum { OX_STORE_OPS_MAX = 1024 };

/* Queues an operation of any size without waiting; later calls on the port send what exceeds the depth, reads before
 * writes. At most OX_STORE_OPS_MAX operations of a port may be unreaped. */
OX_MUST enum ox_status ox_store_submit(struct ox_store_port *port, const struct ox_store_op *op);

/* Blocks until any operation is complete and returns its tag and its status. Requires one in flight. A read with a
 * wrong checksum is repeated up to three times, then fails with OX_E_CORRUPT naming drive, extent and step. */
OX_MUST enum ox_status ox_store_reap(struct ox_store_port *port, uint64_t *tag);

/* Waits until an operation is complete, so that ox_store_reap will not block, but at most about max_ns; returns false
 * on timeout. For a thread that has other work. Requires one in flight. */
bool ox_store_wait(struct ox_store_port *port, uint64_t max_ns);

uint32_t ox_store_in_flight(const struct ox_store_port *port);

/* Runs all operations and waits. After the first failure, which it returns, it submits no more. Tags are ignored.
 * Requires none in flight. */
OX_MUST enum ox_status ox_store_run(struct ox_store_port *port, const struct ox_store_op *ops,
                                    uint32_t op_count);

#ifdef __cplusplus
}
#endif
#endif
