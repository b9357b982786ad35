/* The interface to drives: open, allocate, submit, reap, flush, close. A backend is one table of these functions; the
 * store and `offload bench nvme` call it without knowing which backend runs.
 *
 *   uring    io_uring, with registered file and buffers where the kernel allows it
 *   threads  pread and pwrite on a few threads, for kernels and containers that deny io_uring
 *   sim      a disk in memory with a volatile cache, for tests (power cuts by seed)
 *   fault    wraps another backend and fails, shortens, delays or misdirects by rule or seed
 *
 * A transfer completes or fails: the backend resumes short and interrupted transfers at an aligned offset, at most
 * three times. A request and its buffer belong to the queue from submit until it is reaped. */
#ifndef OX_NVME_IO_H
#define OX_NVME_IO_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_IO_REQ_BYTES_MAX = 4 << 20 }; /* largest request; the store splits larger transfers */

enum ox_io_kind { OX_IO_READ, OX_IO_WRITE };

/* offset, bytes and buffer are multiples of OX_IO_ALIGN_BYTES. */
struct ox_io_req {
    enum ox_io_kind kind;
    void *buffer;
    uint64_t offset; /* in the drive file */
    uint32_t bytes;
    uint64_t tag; /* returned when it is reaped */
};

struct ox_io_done {
    uint64_t tag;
    enum ox_status status;
    char text[160]; /* if status is not OX_OK: what failed, with errno text */
};

/* One open drive file. It holds an exclusive flock on the same file description that does the I/O. */
struct ox_drive;
/* One independent queue over any number of drives; one thread at a time uses it. */
struct ox_io_queue;

/* UNNAMED: `path` is a folder, and the file in it has no name, so that it is gone when it is closed, however the
 * process ends. The uring and the threads backend have it. */
enum ox_drive_mode { OX_DRIVE_CREATE, OX_DRIVE_OPEN, OX_DRIVE_UNNAMED };

struct ox_drive_info {
    char path[256];
    uint64_t bytes;
    uint32_t align_bytes; /* as the kernel reports it, or 4096 assumed */
    bool direct;          /* false: transfers use the page cache */
    bool vanished;        /* a flush found that its name is gone or is another file's */
    bool copies_on_write; /* each change goes to a new place, for which there may be no room */
    char note[160];       /* why direct is false, or "" */
};

struct ox_io_queue_info {
    bool registered_buffers; /* all regions given to queue_register; false without any */
    bool registered_files;
    char note[160]; /* why something was not registered, or "" */
};

/* Memory for buffers of requests; both members are multiples of OX_IO_ALIGN_BYTES. */
struct ox_io_region {
    void *base;
    uint64_t bytes;
};

struct ox_io_backend {
    const char *name;
    void *context; /* private to the backend; sim and fault keep their state here */
    /* Opens and locks a drive file. CREATE requires that it does not exist or is empty, OPEN that it exists. Refuses
     * links, other than regular files, and files that others may write. OX_E_BUSY names the process that holds the
     * lock. */
    enum ox_status (*drive_open)(const struct ox_io_backend *, const char *path, enum ox_drive_mode,
                                 struct ox_drive **out);
    /* Preallocates exactly `bytes`, so that ENOSPC shows up here instead of in a step. */
    enum ox_status (*drive_allocate)(struct ox_drive *, uint64_t bytes);
    /* Data and size are durable on return, in a file that still has its name. */
    enum ox_status (*drive_flush)(struct ox_drive *);
    void (*drive_info)(const struct ox_drive *, struct ox_drive_info *out);
    void (*drive_close)(struct ox_drive *); /* also releases the lock */
    /* Removes a closed drive file, durably; succeeds when it does not exist, OX_E_BUSY while it is locked. */
    enum ox_status (*drive_remove)(const struct ox_io_backend *, const char *path);

    /* Opens a queue with up to `depth` requests in flight on each drive, so that a slow drive takes no place from a
     * fast one. */
    enum ox_status (*queue_open)(const struct ox_io_backend *, struct ox_drive *const *drives,
                                 uint32_t drive_count, uint32_t depth, struct ox_io_queue **out);
    /* Registers the memory of most requests; at most once, with none in flight. The kernel pins it, at a cost of about
     * 16 bytes per page and drive, so register only what this queue uses. Requests with other memory still work, and so
     * do all when the kernel refuses: queue_info says why. */
    void (*queue_register)(struct ox_io_queue *, const struct ox_io_region *regions, uint32_t region_count);
    /* Submits a request without waiting for its completion; the caller keeps at most `depth` in flight per drive. The
     * backend may hold a request back to send several in one system call: until a batch is full or one of the next
     * three is called. */
    enum ox_status (*queue_submit)(struct ox_io_queue *, uint32_t drive_idx, const struct ox_io_req *);
    /* Sends requests that were held back. */
    void (*queue_kick)(struct ox_io_queue *);
    /* Waits until queue_reap would not block, or for timeout_ns; sets *ready accordingly. Requires one in flight. */
    enum ox_status (*queue_wait)(struct ox_io_queue *, uint64_t timeout_ns, bool *ready);
    /* Blocks until one request is complete. Requires one in flight. A failure of this call or of queue_wait means that
     * the queue itself is broken: it returns no more requests and can only be closed. */
    enum ox_status (*queue_reap)(struct ox_io_queue *, struct ox_io_done *out);
    void (*queue_info)(const struct ox_io_queue *, struct ox_io_queue_info *out);
    void (*queue_close)(struct ox_io_queue *); /* requires none in flight */
};

const struct ox_io_backend *ox_io_uring(void);
const struct ox_io_backend *ox_io_threads(void);

/* Returns "uring" if a ring can be set up here, else "threads"; writes the reason to `why` (160 bytes). */
const struct ox_io_backend *ox_io_probe(char *why);

/* Returns the backend "auto", "uring" or "threads", NULL for another name. With "uring" where the kernel denies it,
 * queue_open fails with the reason. */
const struct ox_io_backend *ox_io_by_name(const char *name);

#ifdef __cplusplus
}
#endif
#endif
