/* Files of a test: paths below its folder (test_folder()), and writing, reading, spoiling, comparing and counting what
 * lies there. A name is below the test's folder; one that begins with "/" is a path as it is. What cannot be done ends
 * the test with the path and the cause. */
#ifndef OX_TESTS_FILES_H
#define OX_TESTS_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The path of a name, kept to the end of the program. Allocates nothing, so that it works while allocations fail. */
const char *test_path(const char *name);
__attribute__((format(printf, 1, 2))) const char *test_pathf(const char *format, ...);
/* A path that is not below the test's folder, kept likewise. */
__attribute__((format(printf, 1, 2))) const char *plain_pathf(const char *format, ...);

/* Writes the whole file anew and returns its path. */
const char *files_write(const char *name, const void *data, size_t bytes);
const char *files_write_text(const char *name, const char *text);
/* Reads all bytes and puts a NUL behind them; `bytes` may be NULL. free() the result. */
char *files_read(const char *name, size_t *bytes);
uint64_t files_size(const char *name);

/* Writes over part of a file; `at` below 0 counts from its end. */
void files_patch(const char *name, int64_t at, const void *data, size_t bytes);
/* Inverts a bit of one byte. */
void files_flip(const char *name, int64_t at);
/* Replaces the first `from` by `to`. */
void files_replace_text(const char *name, const char *from, const char *to);

bool files_exist(const char *name);
/* True when both hold the same bytes; otherwise prints where they part. */
bool files_same(const char *a, const char *b);
/* True when two folders of files hold the same names with the same bytes; otherwise prints what differs. */
bool files_same_folders(const char *a, const char *b);
/* Counts the entries of a folder whose names begin and end with these texts; 0 where there is no folder. "." and ".."
 * never count. */
unsigned files_count(const char *folder, const char *begin, const char *end);
/* Returns the path of the only such entry; none or several end the test. */
const char *files_find(const char *folder, const char *begin, const char *end);

/* Makes a folder, and those above it, unless it is there; returns its path. */
const char *files_make_folder(const char *name);
void files_remove_folder(const char *name);
/* Copies a file, or a folder of files; `to` must not exist. */
void files_copy_folder(const char *from, const char *to);

/* Whether the shell ends these words with status 0. */
bool files_run_shell(const char *words);

/* Mounts a file system in memory on a folder, with options such as "size=1m", seen by this process and its children
 * alone. False where this user may not. */
bool files_mount(const char *name, const char *options);
/* Makes a file system of a type ("btrfs") in memory and mounts it on a folder, which is made, seen as above. False
 * where this user may not, or there is no loop device, no mkfs of the type, or no such type in this kernel. */
bool files_mount_image(const char *name, const char *type, unsigned mib);
/* Mounts it again, as after a restart of the machine: its journal recovers it. Nothing in it may be open. */
void files_mount_again(const char *name);
/* Takes it away. What is open stays so. */
void files_unmount_image(const char *name);

#endif
