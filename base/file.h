/* Owns how files and folders are read and created. A file or folder appears whole or not at all: it is written under a
 * temporary name, synced and renamed, and then its folder is synced. No other code renames. Checkpoints, data, reports,
 * the store and the tools call it.
 *
 * Inputs may be symbolic links, because downloaded model folders consist of them. Nothing is ever written through a
 * link. */
#ifndef OX_BASE_FILE_H
#define OX_BASE_FILE_H

#include "base/status.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_PATH_BYTES = 4096 };

enum { OX_INTERRUPTS_MAX = 1000 };
/* True while a system call that has returned `result` was interrupted and is to be made again. *in_row, 0 at first,
 * counts the interrupts in a row: after OX_INTERRUPTS_MAX of them the call has failed with EINTR, because no storm of
 * signals lasts that long, and a broken file system must not hang the program. */
static inline bool ox_interrupted(int64_t result, int *in_row) {
    *in_row = result < 0 && errno == EINTR ? *in_row + 1 : 0;
    return *in_row > 0 && *in_row <= OX_INTERRUPTS_MAX;
}

/* Joins folder and name into `out` (OX_PATH_BYTES); OX_E_CONFIG when the result is too long. */
OX_MUST enum ox_status ox_path_join(const char *folder, const char *name, char *out);

/* True for a regular file, or for a folder; both follow links. */
bool ox_path_is_file(const char *path);
bool ox_path_is_folder(const char *path);
/* True when any entry has that name, a dangling link included. */
bool ox_path_exists(const char *path);
/* True when a folder has an entry of that name, a dangling link included. */
bool ox_folder_has(const char *folder, const char *name);

/* Refuses a link in the place of something that the program makes and fills under a name of its own: OX_E_CONFIG. */
OX_MUST enum ox_status ox_path_refuse_link(const char *path);

/* Opens a regular file for reading and sets its size; follows links. Every input file goes through here. A folder,
 * FIFO, device or socket is refused without being opened, and a dangling link is named as such, as is the pointer that
 * Git LFS leaves in the place of a large file; all are OX_E_CONFIG. */
OX_MUST enum ox_status ox_file_open_input(const char *path, int *fd, uint64_t *bytes);
/* Reads the first `bytes` of an input file into `start`, by which its format may be known; of a shorter file all of it,
 * and the rest of `start` stays. *file_bytes is the size of the file. */
OX_MUST enum ox_status ox_file_read_start(const char *path, void *start, size_t bytes, uint64_t *file_bytes);

/* Warns, once for each path, when any user of this machine can change an input named by the user: a file that is
 * world-writable or lies in a world-writable folder; a folder that is, or that directly holds a world-writable file. A
 * folder with the sticky bit counts as protected. */
void ox_path_warn_shared(const char *path);
/* The process that holds a flock on the file or folder, or 0 when the kernel does not report it. */
long ox_file_lock_holder(int fd);

/* Writes the folder that holds `path` to `out` (OX_PATH_BYTES): "." when the path has none. */
OX_MUST enum ox_status ox_path_parent(const char *path, char *out);

/* Reads a regular file of at most bytes_max. *data has a NUL after its *bytes; the caller frees it. */
OX_MUST enum ox_status ox_file_read(const char *path, size_t bytes_max, char **data, size_t *bytes);

/* Replaces `path` by a complete, synced file of these bytes. What is no regular file, such as /dev/null, is refused. On
 * failure an older file is untouched and no temporary file remains. */
OX_MUST enum ox_status ox_file_replace(const char *path, const void *data, size_t bytes);

/* Replaces `path` without syncing: readers never see half a file, but a power cut may lose it. For files that are
 * worthless after a power cut, such as live metrics. */
OX_MUST enum ox_status ox_file_replace_unsynced(const char *path, const void *data, size_t bytes);

/* Copies a file of any size in bounded memory; the target is replaced as ox_file_replace does it, and has no wider
 * permissions than the source. */
OX_MUST enum ox_status ox_file_copy(const char *source, const char *target);

/* A file being written. ox_file_create opens it with O_EXCL and reserves bytes_expected; every write names its
 * offset. */
struct ox_file_writer {
    int fd;
    bool joined; /* another process has created the file */
    char path[OX_PATH_BYTES];
    uint64_t bytes_written;
};
OX_MUST enum ox_status ox_file_create(const char *path, uint64_t bytes_expected,
                                      struct ox_file_writer *out);
/* Opens a file that another process has created, to write a part of it. It is never deleted by this writer. */
OX_MUST enum ox_status ox_file_join(const char *path, struct ox_file_writer *out);
OX_MUST enum ox_status ox_file_write(struct ox_file_writer *writer, const void *data, size_t bytes,
                                     uint64_t offset);
/* Syncs and closes the file; the writer is closed also on failure. */
OX_MUST enum ox_status ox_file_finish(struct ox_file_writer *writer);
/* Closes and deletes the file, for error paths; does nothing once it is finished. A joined file stays. */
void ox_file_discard(struct ox_file_writer *writer);

/* Reads exactly `bytes` at `offset` from fd, resuming short reads; end of file is OX_E_CORRUPT. `path` is for
 * errors. */
OX_MUST enum ox_status ox_file_read_at(int fd, const char *path, void *data, size_t bytes,
                                       uint64_t offset);

/* Opens as ox_file_open_input does, but so that reads come from the drive instead of the page cache (O_DIRECT), as far
 * as the file system allows. Requires a synced file. Used to verify checkpoints. */
OX_MUST enum ox_status ox_file_open_direct(const char *path, int *fd, uint64_t *bytes);
/* As ox_file_read_at, for a file opened by ox_file_open_direct. `data` and `offset` are multiples of OX_IO_ALIGN_BYTES,
 * and `data` has room for `bytes` rounded up to that. */
OX_MUST enum ox_status ox_file_read_direct(int fd, const char *path, void *data, size_t bytes, uint64_t offset);

/* Creates a folder and its missing parents; succeeds when it exists. */
OX_MUST enum ox_status ox_folder_make(const char *path);
/* How many leading bytes of `path` name something that exists. */
size_t ox_path_existing(const char *path);
/* Refuses a path of which a part is a file, or a link to no folder, as ox_folder_make would, and makes nothing. */
OX_MUST enum ox_status ox_folder_check_place(const char *path);
/* Whether files can be made in the folder or, where it does not exist, in the one in which it would be made. The
 * kernel's own file systems, such as /proc, take none, whatever their permissions say. */
bool ox_folder_takes_files(const char *path);
/* As ox_folder_make, but it can be undone: *existing becomes what ox_path_existing was before. ox_folder_unmake removes
 * the folders beyond it, as far as they are empty. */
OX_MUST enum ox_status ox_folder_make_undoable(const char *path, size_t *existing);
void ox_folder_unmake(const char *path, size_t existing);
/* Removes temporary files that killed processes left directly in a folder. Requires that no other process writes
 * there. */
void ox_folder_sweep(const char *path);
/* As ox_folder_sweep, in a folder that others use too: only what no process can be writing any more. That is what is
 * older than a day, or, after a minute, of a process that is not on this machine. */
void ox_folder_sweep_shared(const char *path);
OX_MUST enum ox_status ox_folder_sync(const char *path);
/* Renames a complete folder into place and syncs it and its parent. `to` must not exist. What is no folder, such as a
 * file or a link, is renamed too, and not synced itself. */
OX_MUST enum ox_status ox_folder_commit(const char *from, const char *to);
/* Removes a folder with its content, without following links; succeeds when it does not exist. */
OX_MUST enum ox_status ox_folder_remove(const char *path);

/* Free bytes of the file system that holds `path`; UINT64_MAX where it has no blocks to count. */
OX_MUST enum ox_status ox_folder_free_bytes(const char *path, uint64_t *bytes);

/* Sets *name to the next entry other than "." and "..", NULL at the end. Unlike plain readdir it tells the end from a
 * failure. `path` names the folder in errors. */
OX_MUST enum ox_status ox_folder_next(DIR *folder, const char *path, const char **name);

#ifdef __cplusplus
}
#endif
#endif
