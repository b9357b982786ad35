/* Files that are read whole, and files and folders that appear whole: written under a temporary
 * name, synced, renamed, and the folder synced. The one place in the program that renames.
 *
 * Inputs are read through links, because model folders consist of them; nothing is ever written through one. */
#ifndef OX_BASE_FILE_H
#define OX_BASE_FILE_H

#include "base/status.h"

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_PATH_BYTES = 4096 };

/* Joins folder and name into `out` (OX_PATH_BYTES); OX_E_CONFIG when it does not fit. */
OX_MUST enum ox_status ox_path_join(const char *folder, const char *name, char *out);

/* True for a regular file or folder, following links. */
bool ox_path_is_file(const char *path);
bool ox_path_is_folder(const char *path);
/* True when there is anything of that name, a link that leads nowhere included. */
bool ox_path_exists(const char *path);

/* Opens a regular file to be read, links followed: what every input goes through. A folder, FIFO, device or socket is
 * refused without being opened, and a link that leads nowhere is named as such; both are OX_E_CONFIG. */
OX_MUST enum ox_status ox_file_open_input(const char *path, int *fd, uint64_t *bytes);

/* Warns, once for each path, when anyone on this machine may change an input that the user has named: the file itself
 * or by its folder; the folder, or a file directly in it. A folder with the sticky bit protects what is in it. */
void ox_path_announce_shared(const char *path);

/* Reads a regular file of at most bytes_max; *data is NUL-terminated beyond *bytes; free() it. */
OX_MUST enum ox_status ox_file_read(const char *path, size_t bytes_max, char **data, size_t *bytes);

/* Replaces `path` by a complete, synced file of these bytes (temporary name, fsync, rename, fsync of
 * the folder). On failure an older file is untouched and nothing is left behind. */
OX_MUST enum ox_status ox_file_replace(const char *path, const void *data, size_t bytes);

/* Replaces it without syncing: readers never see half of it, but a power cut may take it. For what is worth nothing
 * then. */
OX_MUST enum ox_status ox_file_show(const char *path, const void *data, size_t bytes);

/* Copies a file of any size in bounded memory, with the same promise. */
OX_MUST enum ox_status ox_file_copy(const char *source, const char *target);

/* A file under construction, for writers that stream: opened with O_EXCL under a name inside
 * `folder`; all writes go by offset. */
struct ox_file_writer {
    int fd;
    char path[OX_PATH_BYTES];
    uint64_t bytes_written;
};
OX_MUST enum ox_status ox_file_create(const char *path, uint64_t bytes_expected,
                                      struct ox_file_writer *out);
OX_MUST enum ox_status ox_file_write(struct ox_file_writer *writer, const void *data, size_t bytes,
                                     uint64_t offset);
/* fsync and close; the writer is closed also on failure. */
OX_MUST enum ox_status ox_file_finish(struct ox_file_writer *writer);
/* Closes and unlinks what was written so far; for error paths. */
void ox_file_discard(struct ox_file_writer *writer);

/* Reads exactly `bytes` at `offset` from fd, resuming short reads; end of file is OX_E_CORRUPT. */
OX_MUST enum ox_status ox_file_read_at(int fd, const char *path, void *data, size_t bytes,
                                       uint64_t offset);

/* Opens as ox_file_open_input does, to read what the drive holds and not what memory still has of it, as far as the
 * file system lets: for files that are synced. */
OX_MUST enum ox_status ox_file_open_drive(const char *path, int *fd, uint64_t *bytes);
/* As ox_file_read_at, from such a file: buffer and offset are multiples of OX_IO_ALIGN_BYTES, and the buffer has room
 * up to the next one. */
OX_MUST enum ox_status ox_file_read_drive(int fd, const char *path, void *data, size_t bytes, uint64_t offset);

/* Creates a folder and its missing parents; fine when it exists. */
OX_MUST enum ox_status ox_folder_make(const char *path);
/* The same; *existing becomes how many bytes of the path were there before, for ox_folder_unmake, which removes the
 * rest again as far as it is empty. */
OX_MUST enum ox_status ox_folder_make_anew(const char *path, size_t *existing);
void ox_folder_unmake(const char *path, size_t existing);
/* Removes the temporary files of ox_file_replace and ox_file_copy that killed processes have left directly in a folder.
 * For a caller who knows that nobody is writing there. */
void ox_folder_sweep(const char *path);
OX_MUST enum ox_status ox_folder_sync(const char *path);
/* Renames a complete, synced folder into place and syncs the parent. `to` must not exist. */
OX_MUST enum ox_status ox_folder_commit(const char *from, const char *to);
/* Removes a folder and everything in it; does not follow links; fine when it does not exist. */
OX_MUST enum ox_status ox_folder_remove(const char *path);

/* Free bytes of the file system that holds `path`. */
OX_MUST enum ox_status ox_folder_free_bytes(const char *path, uint64_t *bytes);

/* The next name in an open folder other than . and .., or NULL at its end: which readdir alone does not tell from a
 * failure. `path` names the folder in errors. */
OX_MUST enum ox_status ox_folder_next(DIR *folder, const char *path, const char **name);

#ifdef __cplusplus
}
#endif
#endif
