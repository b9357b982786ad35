/* The whole seam for drives: open, allocate, submit, reap, flush, close. A backend is one table of
 * these; the store above it never knows which one runs.
 *
 *   uring    io_uring, registered file and buffers where the kernel allows it
 *   threads  pread/pwrite on a few threads, for kernels and containers that deny io_uring
 *   sim      a disk in memory with a volatile cache, for tests (power cuts by seed)
 *   fault    wraps another backend and fails, shortens, delays or misdirects by rule or seed
 *
 * A transfer is complete or failed: short and interrupted transfers are resumed by the backend at most three times
 * on an aligned boundary. A request and its buffer belong to the queue from submit until it is reaped. */
#ifndef OX_NVME_IO_H
#define OX_NVME_IO_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_IO_REQ_BYTES_MAX = 4 << 20 }; /* one request; larger transfers are split by the store */

enum ox_io_kind { OX_IO_READ, OX_IO_WRITE };

/* offset, bytes and buffer are multiples of OX_IO_ALIGN_BYTES. */
struct ox_io_req {
    enum ox_io_kind kind;
    void *buffer;
    uint64_t offset; /* in the drive file */
    uint32_t bytes;
    uint64_t tag; /* comes back when it is reaped */
};

struct ox_io_done {
    uint64_t tag;
    enum ox_status status;
    char text[160]; /* when status is not OX_OK: what failed, with errno text */
};

/* One open drive file. Holds an exclusive flock on the very description used for I/O. */
struct ox_drive;
/* One independent queue on any number of drives; used by one thread at a time. */
struct ox_io_queue;

enum ox_drive_mode { OX_DRIVE_CREATE, OX_DRIVE_OPEN };

struct ox_drive_info {
    char path[256];
    uint64_t bytes;
    uint32_t align_bytes; /* what the kernel reports, or 4096 assumed */
    bool direct;          /* false: page cache in use, announced as degraded */
    char note[160];       /* why direct is false, or "" */
};

struct ox_io_queue_info {
    bool registered_buffers; /* all regions of queue_register are; false when there are none */
    bool registered_files;
    char note[160]; /* why something was not registered, or "" */
};

/* Memory that requests will lie in; both multiples of OX_IO_ALIGN_BYTES. */
struct ox_io_region {
    void *base;
    uint64_t bytes;
};

struct ox_io_backend {
    const char *name;
    void *context; /* the backend's own; sim and fault keep their state here */
    /* CREATE: the file must not exist or be empty; OPEN: it must exist. Locked, regular, not a link,
     * not writable by others, or an error that says so; OX_E_BUSY names the holder when locked. */
    enum ox_status (*drive_open)(const struct ox_io_backend *, const char *path, enum ox_drive_mode,
                                 struct ox_drive **out);
    /* Preallocates to exactly `bytes`; ENOSPC is found here, not in a step. */
    enum ox_status (*drive_allocate)(struct ox_drive *, uint64_t bytes);
    enum ox_status (*drive_flush)(struct ox_drive *); /* data and size are durable on return */
    void (*drive_info)(const struct ox_drive *, struct ox_drive_info *out);
    void (*drive_close)(struct ox_drive *); /* also releases the lock */
    /* Removes a closed drive file; fine when it does not exist, OX_E_BUSY while it is locked. */
    enum ox_status (*drive_remove)(const struct ox_io_backend *, const char *path);

    /* A queue over `count` drives with up to `depth` requests in flight on each: a slow drive takes no place from a
     * fast one. */
    enum ox_status (*queue_open)(const struct ox_io_backend *, struct ox_drive *const *drives,
                                 uint32_t drive_count, uint32_t depth, struct ox_io_queue **out);
    /* Names the memory most requests will lie in; at most once, with none in flight. It is pinned, and with each drive
     * costs the kernel about 16 bytes per page, so name what this queue uses. Requests elsewhere go on as before, and
     * so do all when the kernel refuses: queue_info says why. */
    void (*queue_register)(struct ox_io_queue *, const struct ox_io_region *regions, uint32_t region_count);
    /* Never blocks for completion; the caller keeps in-flight <= depth per drive. A request may be held back to go with
     * others in one call to the kernel, until a batch is full or one of the next three is called. */
    enum ox_status (*queue_submit)(struct ox_io_queue *, uint32_t drive_idx, const struct ox_io_req *);
    /* Sends what was held back. */
    void (*queue_kick)(struct ox_io_queue *);
    /* Waits until queue_reap would not block, or the time is over; *ready tells which. Requires one in flight. */
    enum ox_status (*queue_wait)(struct ox_io_queue *, uint64_t timeout_ns, bool *ready);
    /* Blocks until one request is complete. Requires one in flight. A status other than OX_OK, here or of queue_wait,
     * means that the queue itself broke: it gives nothing back any more and can only be closed. */
    enum ox_status (*queue_reap)(struct ox_io_queue *, struct ox_io_done *out);
    void (*queue_info)(const struct ox_io_queue *, struct ox_io_queue_info *out);
    void (*queue_close)(struct ox_io_queue *); /* requires none in flight */
};

const struct ox_io_backend *ox_io_uring(void);
const struct ox_io_backend *ox_io_threads(void);

/* "uring" when a ring can be set up here, else "threads"; *why says what was probed. `why` has 160 bytes. */
const struct ox_io_backend *ox_io_probe(char *why);

/* "auto", "uring" or "threads"; NULL for another name. Asking for "uring" where it is denied fails at
 * queue_open with the reason. */
const struct ox_io_backend *ox_io_by_name(const char *name);

#ifdef __cplusplus
}
#endif
#endif
