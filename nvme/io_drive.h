/* Shared by the uring and threads backends: drive files of a real file system, and the rule for resuming short
 * transfers. Private to nvme/. */
#ifndef OX_NVME_IO_DRIVE_H
#define OX_NVME_IO_DRIVE_H

#include "nvme/io.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_IO_RESUMES_MAX = 3 };

/* The drive_* entries of both backends. */
OX_MUST enum ox_status ox_drive_file_open(const struct ox_io_backend *backend, const char *path,
                                          enum ox_drive_mode mode, struct ox_drive **out);
OX_MUST enum ox_status ox_drive_file_allocate(struct ox_drive *drive, uint64_t bytes);
OX_MUST enum ox_status ox_drive_file_flush(struct ox_drive *drive);
OX_MUST enum ox_status ox_drive_file_remove(const struct ox_io_backend *backend, const char *path);
void ox_drive_file_info(const struct ox_drive *drive, struct ox_drive_info *out);
void ox_drive_file_close(struct ox_drive *drive);

/* Whether a file system of this type (statfs) writes changes of a file to new places; `nocow`: the file has the flag
 * that says it may not, which only btrfs honors. */
bool ox_drive_copies_on_write(uint64_t type, bool nocow);

int ox_drive_file_fd(const struct ox_drive *drive);
const char *ox_drive_file_path(const struct ox_drive *drive);

/* Asserts the requirements of io.h on a request; `drive_bytes` is the size of its file. */
void ox_io_req_check(const struct ox_io_req *req, uint64_t drive_bytes);
void ox_drive_file_check(const struct ox_drive *drive, const struct ox_io_req *req);

/* The progress of a request. */
struct ox_io_progress {
    struct ox_io_req req;
    uint32_t drive_idx;
    uint32_t done_bytes;
    uint32_t resume_count;
};

/* Handles the result of one system call or CQE: bytes, or a negative errno. Returns true when the request has ended and
 * *out is filled; false when the rest, from done_bytes on, must be issued again. */
bool ox_io_advance(struct ox_io_progress *progress, const char *path, int64_t result, struct ox_io_done *out);

#ifdef __cplusplus
}
#endif
#endif
