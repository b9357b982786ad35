/* The store: training state on drives, rewritten every step, never lost (unless one generation is asked for).
 *
 * State is a list of extents; each has two generation slots on one drive and a checksum held apart
 * from the data, seeded by (run, extent, step, attempt). A transaction writes every extent once into
 * its idle slot; commit writes the extent table, flushes, writes one root record per drive into a
 * ring, flushes. Whatever happens before the second flush, the previous generation is whole.
 *
 * With one generation an extent has one slot, so the files are about half as large, and a transaction overwrites
 * the state: until its commit the store is neither the step before nor this one, and says so. Then only checkpoints
 * survive a crash, and none is hidden: a store that opens is whole.
 *
 * Spool extents hold what lives within a step (activation checkpoints, gradients): one slot, checksums
 * in memory, meaningless after a restart.
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

enum { OX_STORE_META_BYTES_MAX = 2048, OX_STORE_DRIVES_MAX = 16 };

/* An extent is a head of head_bytes (may be 0) and the rest, each with its own checksum, so that the
 * head can be read and verified alone. Both are multiples of OX_IO_ALIGN_BYTES. */
struct ox_extent_spec {
    uint64_t bytes; /* head included */
    uint64_t head_bytes;
};

struct ox_store_config {
    const struct ox_io_backend *backend;
    const char *const *folders; /* one per drive; the file inside is "offload-store-<idx>.ox" */
    const uint64_t *bytes_max;  /* per drive: what the user allowed */
    /* create: how fast the drives are against each other, in any unit; each gets that share of the state as long as it
     * has room. NULL: all alike. open: the state lies where it was created; the spool is placed by these, or if NULL by
     * those of creation. */
    const uint64_t *speeds;
    uint32_t drive_count;
    const struct ox_extent_spec *extents; /* of state; copied */
    uint32_t extent_count;
    const uint64_t *spool_bytes; /* of spool extents, multiples of OX_IO_ALIGN_BYTES; copied */
    uint32_t spool_count;
    uint64_t run_id[2];    /* create: of this run, seeds the checksums. open: must match unless 0,0 */
    uint64_t config_hash;  /* open: geometry of another model is refused */
    uint32_t queue_depth;  /* requests in flight per port and drive; at least 1 */
    uint32_t stall_warn_ms; /* a drive that gives nothing for so long is warned of; 0: 10 s */
    uint32_t stall_fail_ms; /* and given up: the port breaks; 0: 10 minutes */
    uint32_t generations;   /* 1 or 2; 0: 2. open: must be that of creation, unless extents is NULL */
};

struct ox_store;

/* Creates the files (nothing else there may have their names), preallocates all of them, and writes an
 * empty root. What does not fit in bytes_max or on the file system is refused before anything is
 * written. On failure the files created so far are removed. */
OX_MUST enum ox_status ox_store_create(const struct ox_store_config *config, struct ox_store **out);

/* Opens, locks and recovers: takes the newest root whose extent table is intact; when that is not the
 * newest of all, its data is read and verified as a whole. So it is with one generation after a transaction that
 * did not end: whole if nothing was overwritten yet, else OX_E_CORRUPT that says at which step. Rejected roots are
 * wiped before the first write, by ox_store_begin. `extents` may be NULL to take the geometry from the file (inspect):
 * config_hash and generations are then not compared, and bytes_max may be NULL. Spool extents may differ from those of
 * the last run; the files are resized to them. A damaged or foreign file is OX_E_CORRUPT / OX_E_CONFIG that names it;
 * OX_E_BUSY when another process has it. */
OX_MUST enum ox_status ox_store_open(const struct ox_store_config *config, struct ox_store **out);

void ox_store_close(struct ox_store **store);

/* Removes the store's files of these folders; for a fresh start over an old run. */
OX_MUST enum ox_status ox_store_remove(const char *const *folders, uint32_t drive_count);

/* Of each drive's file: headers, the list of extents and their checksums, before the first extent. */
uint64_t ox_store_fixed_bytes(uint32_t extent_count);

/* Whether ox_store_create would find room for a store of this geometry in the allowances; touches no drive. Uses of
 * config: extents, spool_bytes, bytes_max and their counts, speeds, generations. */
OX_MUST enum ox_status ox_store_fits(const struct ox_store_config *config);

/* The extents of state by their sums. True where there is so much room that ox_store_fits would find it wherever
 * extents come to lie, which is all there is to know of most stores and takes no list of extents; false says nothing.
 * Uses of config: those of ox_store_fits but the extents. */
struct ox_store_sums {
    uint64_t bytes, extent_bytes_max;
    uint32_t extent_count;
};
bool ox_store_surely_fits(const struct ox_store_config *config, const struct ox_store_sums *state);

/* True when a store file lies in the folder. */
bool ox_store_exists(const char *folder);

/* Whose the store files of a folder are, whatever their number and state; nothing is locked or changed. */
enum ox_store_owner {
    OX_STORE_OWNER_NONE,    /* no store file lies there            */
    OX_STORE_OWNER_SAME,    /* all are of the run                   */
    OX_STORE_OWNER_UNKNOWN, /* at least one has no readable header  */
    OX_STORE_OWNER_OTHER,   /* at least one is of another run       */
};
enum ox_store_owner ox_store_owner(const char *folder, const uint64_t run_id[2]);

struct ox_store_info {
    uint64_t run_id[2], config_hash;
    uint64_t step;      /* of the last commit; 0 = created, nothing committed yet */
    bool committed;     /* at least one transaction is committed */
    uint32_t extent_count, drive_count;
    uint32_t generations, generation; /* how many, and which of them holds the last commit */
    uint64_t state_bytes, spool_bytes, file_bytes; /* file_bytes: over all drives */
    uint64_t read_bytes, write_bytes, flush_count; /* since open */
    uint32_t retry_count;                          /* reads repeated after a bad checksum */
    uint64_t commit_bytes;                         /* what a commit writes in all: state, tables, roots */
    uint32_t meta_bytes;
    unsigned char meta[OX_STORE_META_BYTES_MAX];   /* what the last commit recorded */
};
void ox_store_info(const struct ox_store *store, struct ox_store_info *out);
OX_MUST enum ox_status ox_store_drive_info(const struct ox_store *store, uint32_t drive_idx,
                                           struct ox_drive_info *out);
/* What a commit writes to one drive: its state, the tables and roots. */
uint64_t ox_store_commit_bytes(const struct ox_store *store, uint32_t drive_idx);
const struct ox_extent_spec *ox_store_extents(const struct ox_store *store);

/* ---- transactions: begin, write every extent, commit ---------------------------------------- */

/* Starts the transaction that will become `step`; requires step > the committed one, if any is. With one generation:
 * over committed state, a flush more; and OX_E_CORRUPT once a transaction was given up after a write. */
OX_MUST enum ox_status ox_store_begin(struct ox_store *store, uint64_t step);

/* Requires every extent written and no write of state in flight; spool operations may be, and reads that name a step.
 * `meta` is kept in the root. On failure nothing is committed and the transaction is aborted; should the drives
 * fail even to take the root back, the text says so. A failed flush is never retried as a success. With one
 * generation a failure is as an abort after writes; a restart finds `step` whole if its root got so far. */
OX_MUST enum ox_status ox_store_commit(struct ox_store *store, const void *meta, uint32_t meta_bytes);

/* Forgets the transaction; its slots may be written again by the next one. Requires no write of state in flight, nor a
 * read of what it wrote; fine when there is no transaction. With one generation over committed state, and a write of
 * it submitted: the state is torn for good. Extents that were written read as OX_E_CORRUPT from then on, the others as
 * before; ox_store_begin fails. */
void ox_store_abort(struct ox_store *store);

/* ---- transfers -------------------------------------------------------------------------------- */

/* One queue for one thread; several may be open. */
struct ox_store_port;
OX_MUST enum ox_status ox_store_port_open(struct ox_store *store, struct ox_store_port **out);
/* Waits for what is in flight. */
void ox_store_port_close(struct ox_store_port **port);

/* Names the memory most of this port's buffers lie in, once, before the first operation: the kernel then keeps it
 * pinned and mapped for the drives, where it allows that. Costs it about 16 bytes per page and drive, so name what
 * this port uses, not more. The memory must stay until the port is closed. */
void ox_store_port_register(struct ox_store_port *port, const struct ox_io_region *regions, uint32_t region_count);
/* What could be registered, and why not. */
void ox_store_port_info(const struct ox_store_port *port, struct ox_io_queue_info *out);

enum ox_store_op_kind {
    OX_STORE_READ,       /* whole extent, verified. With one generation a transaction must
                            have read an extent, and reaped that, before it writes it:
                            the last commit's cannot be read after */
    OX_STORE_READ_HEAD,  /* its head alone, verified                                  */
    OX_STORE_WRITE,      /* whole extent into the idle (or only) slot; hashed at submit; of several
                            writes of one extent in a transaction the last counts    */
    OX_STORE_SPOOL_READ, /* spool_len bytes from the start of a spool extent, verified */
    OX_STORE_SPOOL_WRITE,
};
struct ox_store_op {
    enum ox_store_op_kind kind;
    uint32_t extent_idx;
    void *buffer;        /* aligned to OX_IO_ALIGN_BYTES; owned by the port until reaped */
    uint64_t spool_from; /* spool: offset within the extent, aligned                   */
    uint64_t spool_len;  /* spool: bytes, aligned. Pieces must be read as they were written */
    uint64_t tag;
    /* Reads of state: as of this step, which is the last commit's, or that of the transaction under way, which has
     * then written the extent and seen it complete; OX_E_ABORTED when that was given up. 0: the last commit's. */
    uint64_t step;
};

enum { OX_STORE_OPS_MAX = 1024 };

/* Queues an operation of any size and does not wait: what exceeds the depth is sent by later calls on the port, reads
 * before writes. At most OX_STORE_OPS_MAX operations of a port may be waiting to be reaped. */
OX_MUST enum ox_status ox_store_submit(struct ox_store_port *port, const struct ox_store_op *op);

/* Blocks until one operation is complete, in any order, and gives its tag. The status is that of this
 * operation. Requires one in flight. A read whose checksum fails is read again up to three times, then
 * OX_E_CORRUPT naming drive, extent and step. */
OX_MUST enum ox_status ox_store_reap(struct ox_store_port *port, uint64_t *tag);

/* Waits until an operation is complete, so that ox_store_reap will not block, but for about max_ns at most while
 * nothing comes; false when there is none. For a thread that has other work to look for. Requires one in flight. */
bool ox_store_wait(struct ox_store_port *port, uint64_t max_ns);

uint32_t ox_store_in_flight(const struct ox_store_port *port);

/* Runs them all and waits; after the first failure, whose status is returned, no more are submitted. Tags
 * are ignored. Requires none in flight before. */
OX_MUST enum ox_status ox_store_run(struct ox_store_port *port, const struct ox_store_op *ops,
                                    uint32_t op_count);

#ifdef __cplusplus
}
#endif
#endif
