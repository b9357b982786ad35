/* Creates files and folders complete or not at all; see base/file.h for the promises. */
#include "base/file.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum {
    COPY_BYTES = 1 << 20,
    REMOVE_DEPTH_MAX = 200,
    NAME_TRIES = 100,
};

/* An error that the user can fix by naming another path is OX_E_CONFIG; all others are OX_E_IO. */
static enum ox_status status_of(int err) {
    switch (err) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
    case EEXIST:
    case ENAMETOOLONG:
        return OX_E_CONFIG;
    default:
        return OX_E_IO;
    }
}

static enum ox_status fail_path(int err, const char *path, const char *what) {
    return ox_fail_errno(status_of(err), err, "%s: cannot %s", path, what);
}

enum ox_status ox_path_parent(const char *path, char *out) {
    const size_t bytes = strlen(path);
    if (bytes == 0 || bytes >= OX_PATH_BYTES) {
        return ox_fail(OX_E_CONFIG, "a path of %zu bytes cannot be used; give one of 1 to %d", bytes,
                       OX_PATH_BYTES - 1);
    }
    memcpy(out, path, bytes + 1);
    size_t end = bytes;
    while (end > 1 && out[end - 1] == '/') {
        end--;
    }
    while (end > 0 && out[end - 1] != '/') {
        end--;
    }
    while (end > 1 && out[end - 1] == '/') {
        end--;
    }
    if (end == 0) {
        memcpy(out, ".", 2);
    } else {
        out[end] = '\0';
    }
    return OX_OK;
}

/* Fails a write; for a full disk it names the bytes needed and the bytes free. */
static enum ox_status fail_space(int err, const char *path, uint64_t needed) {
    char folder[OX_PATH_BYTES];
    uint64_t available = 0;
    if ((err != ENOSPC && err != EDQUOT) || ox_path_parent(path, folder) != OX_OK ||
        ox_folder_free_bytes(folder, &available) != OX_OK) {
        return fail_path(err, path, "write");
    }
    char needed_text[OX_SIZE_TEXT_BYTES], available_text[OX_SIZE_TEXT_BYTES];
    return ox_fail_errno(OX_E_IO, err,
                         "%s: needs %s (%llu bytes), but only %s (%llu bytes) are free; make room or "
                         "choose another folder",
                         path, ox_size_text(needed, needed_text), (unsigned long long)needed,
                         ox_size_text(available, available_text), (unsigned long long)available);
}

static const char *kind_name(mode_t mode) {
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

/* Fails for a `path` that cannot be opened. A dangling link gets its own message, because its name does exist. */
static enum ox_status fail_open(int err, const char *path) {
    char target[OX_PATH_BYTES];
    const ssize_t bytes = err == ENOENT ? readlink(path, target, sizeof target - 1) : -1;
    if (bytes < 0) {
        return fail_path(err, path, "open");
    }
    target[bytes] = '\0';
    return ox_fail(OX_E_CONFIG, "%s: is a link to %.300s, which does not exist; fix the link", path, target);
}

/* Reserves disk blocks, so that a full disk is found before the work is done. */
static enum ox_status reserve(int fd, const char *path, uint64_t bytes) {
    if (bytes == 0) {
        return OX_OK;
    }
    if (bytes > INT64_MAX) {
        return ox_fail(OX_E_CONFIG, "%s: a file of %llu bytes cannot exist", path, (unsigned long long)bytes);
    }
    int result, interrupts = 0;
    do {
        result = fallocate(fd, 0, 0, (off_t)bytes);
    } while (ox_interrupted(result, &interrupts));
    if (result == 0) {
        return OX_OK;
    }
    if (errno != EOPNOTSUPP && errno != ENOSYS) {
        return fail_space(errno, path, bytes);
    }
    /* The file system cannot reserve blocks: compare with its free space instead. */
    struct statvfs space;
    if (fstatvfs(fd, &space) == 0 && (uint64_t)space.f_bavail * space.f_frsize < bytes) {
        return fail_space(ENOSPC, path, bytes);
    }
    return ftruncate(fd, (off_t)bytes) == 0 ? OX_OK : fail_space(errno, path, bytes);
}

/* Creates a file beside `path` under an unused name. The name has a fixed length, because the name of `path` may
 * already be as long as the file system allows. */
static enum ox_status create_beside(const char *path, uint64_t bytes, struct ox_file_writer *out) {
    static atomic_uint counter;
    char folder[OX_PATH_BYTES], temporary[OX_PATH_BYTES], name[64];
    struct stat info;
    if (lstat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode)) { /* it would be gone */
        return ox_fail(OX_E_CONFIG, "%s: is %s; only regular files are written over", path, kind_name(info.st_mode));
    }
    enum ox_status status = ox_path_parent(path, folder);
    for (int i = 0; status == OX_OK && i < NAME_TRIES; i++) {
        snprintf(name, sizeof name, ".offload-%ld-%u.tmp", (long)getpid(), atomic_fetch_add(&counter, 1));
        status = ox_path_join(folder, name, temporary);
        if (status == OX_OK && !ox_path_exists(temporary)) { /* a killed process of the same id may have left it */
            return ox_file_create(temporary, bytes, out);
        }
    }
    return status != OX_OK ? status : ox_fail(OX_E_IO, "%s: no free temporary name in %s; delete the files "
                                              ".offload-*.tmp there", path, folder);
}

/* True for the names that create_beside gives. */
static bool is_temporary(const char *name) {
    unsigned long pid = 0, serial = 0;
    char again[64];
    if (sscanf(name, ".offload-%lu-%lu.tmp", &pid, &serial) != 2) {
        return false;
    }
    snprintf(again, sizeof again, ".offload-%lu-%lu.tmp", pid, serial);
    return strcmp(name, again) == 0;
}

/* Syncs the writer's file and renames it to `path`; removes it on failure. */
static enum ox_status finish_as(struct ox_file_writer *writer, const char *path) {
    enum ox_status status = ox_file_finish(writer);
    if (status == OX_OK && rename(writer->path, path) != 0) {
        status = fail_path(errno, path, "replace");
    }
    if (status != OX_OK) {
        unlink(writer->path);
        return status;
    }
    char folder[OX_PATH_BYTES];
    status = ox_path_parent(path, folder);
    return status == OX_OK ? ox_folder_sync(folder) : status;
}

/* Removes the content of the open folder `fd` and closes it. `path` is the topmost folder, for errors. */
static enum ox_status remove_content(int fd, const char *path, int depth) {
    DIR *const folder = depth < REMOVE_DEPTH_MAX ? fdopendir(fd) : NULL;
    if (folder == NULL) {
        const int err = depth < REMOVE_DEPTH_MAX ? errno : ELOOP;
        close(fd);
        return fail_path(err, path, "list a folder in it");
    }
    enum ox_status status = OX_OK;
    while (status == OX_OK) {
        errno = 0;
        const struct dirent *const entry = readdir(folder);
        if (entry == NULL) {
            status = errno != 0 ? fail_path(errno, path, "list a folder in it") : OX_OK;
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            unlinkat(fd, entry->d_name, 0) == 0 || errno == ENOENT) {
            continue;
        }
        const int unlink_err = errno;
        const int child = openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (child < 0) {
            status = ox_fail_errno(OX_E_IO, unlink_err, "%s: cannot remove %s in it", path, entry->d_name);
            break;
        }
        status = remove_content(child, path, depth + 1);
        if (status == OX_OK && unlinkat(fd, entry->d_name, AT_REMOVEDIR) != 0) {
            status = ox_fail_errno(OX_E_IO, errno, "%s: cannot remove %s in it", path, entry->d_name);
        }
    }
    closedir(folder);
    return status;
}

enum ox_status ox_path_join(const char *folder, const char *name, char *out) {
    const size_t folder_bytes = strlen(folder), name_bytes = strlen(name);
    const bool slash = folder_bytes > 0 && folder[folder_bytes - 1] != '/';
    if (folder_bytes + slash + name_bytes >= OX_PATH_BYTES) {
        return ox_fail(OX_E_CONFIG, "%.200s/%.200s: the path is longer than %d bytes; choose a shorter one",
                       folder, name, OX_PATH_BYTES - 1);
    }
    memmove(out, folder, folder_bytes);
    memcpy(out + folder_bytes, "/", slash);
    memcpy(out + folder_bytes + slash, name, name_bytes + 1);
    return OX_OK;
}

bool ox_path_is_file(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool ox_path_is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool ox_path_exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0;
}

bool ox_folder_has(const char *folder, const char *name) {
    char path[OX_PATH_BYTES];
    return ox_path_join(folder, name, path) == OX_OK && ox_path_exists(path);
}

enum ox_status ox_path_refuse_link(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode)
               ? ox_fail(OX_E_CONFIG, "%s: is a symbolic link, which is not written through; remove it", path) : OX_OK;
}

/* Refuses, and closes, what a version control system has put in the place of a large file. */
static enum ox_status check_pointer(const char *path, int fd, uint64_t bytes) {
    char start[64] = "";
    const bool small = bytes < 1024 && pread(fd, start, sizeof start - 1, 0) > 0;
    const bool lfs = small && strncmp(start, "version https://git-lfs.github.com/", 35) == 0;
    if (!lfs && !(small && strncmp(start, "/annex/objects/", 15) == 0)) {
        return OX_OK;
    }
    close(fd);
    return ox_fail(OX_E_CONFIG, "%s: is a pointer of %s, not the file itself; fetch that with `%s` in its folder", path,
                   lfs ? "Git LFS" : "git-annex", lfs ? "git lfs pull" : "git annex get .");
}

enum ox_status ox_file_open_input(const char *path, int *fd_out, uint64_t *bytes) {
    struct stat info;
    if (stat(path, &info) != 0) {
        return fail_open(errno, path);
    }
    /* The type is checked before opening, because opening a device may start it. O_NONBLOCK, because the file may have
     * been replaced by a FIFO since, and opening that would block until a writer comes. */
    const bool regular = S_ISREG(info.st_mode);
    const int fd = regular ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
    if (regular && fd < 0) {
        return fail_open(errno, path);
    }
    if (regular && fstat(fd, &info) != 0) {
        const enum ox_status status = fail_path(errno, path, "examine");
        close(fd);
        return status;
    }
    if (!S_ISREG(info.st_mode)) {
        if (fd >= 0) {
            close(fd);
        }
        return ox_fail(OX_E_CONFIG, "%s: is %s; only regular files are read", path, kind_name(info.st_mode));
    }
    *fd_out = fd;
    *bytes = (uint64_t)info.st_size;
    return check_pointer(path, fd, *bytes);
}

enum ox_status ox_file_read_start(const char *path, void *start, size_t bytes, uint64_t *file_bytes) {
    int fd = -1;
    enum ox_status status = ox_file_open_input(path, &fd, file_bytes);
    if (status != OX_OK) {
        return status;
    }
    status = ox_file_read_at(fd, path, start, (size_t)ox_min_u64(*file_bytes, bytes), 0);
    close(fd);
    return status;
}

enum ox_status ox_file_read(const char *path, size_t bytes_max, char **data, size_t *bytes) {
    uint64_t file_bytes = 0;
    int fd = -1;
    char *text = NULL;
    enum ox_status status = ox_file_open_input(path, &fd, &file_bytes);
    if (status != OX_OK) {
        return status;
    }
    /* The size is a first guess: files of /proc report 0, and a file may grow while it is read. */
    size_t filled = 0, room = (size_t)ox_max_u64(4096, ox_min_u64(file_bytes, bytes_max) + 1);
    text = malloc(room + 1);
    for (int interrupts = 0; text != NULL;) {
        const ssize_t got = read(fd, text + filled, room - filled);
        if (ox_interrupted(got, &interrupts)) {
            continue;
        }
        if (got < 0) {
            status = fail_path(errno, path, "read");
            goto fail;
        }
        filled += (size_t)got;
        if (filled > bytes_max) {
            status = ox_fail(OX_E_CONFIG, "%s: is larger than %zu bytes, the most that is read of such a file", path,
                             bytes_max);
            goto fail;
        }
        if (got == 0) {
            break;
        }
        if (filled == room) {
            room *= 2;
            char *const larger = realloc(text, room + 1);
            if (larger == NULL) {
                free(text);
            }
            text = larger;
        }
    }
    if (text == NULL) {
        status = ox_fail(OX_E_NOMEM, "%s: no memory to read %zu bytes", path, room);
        goto fail;
    }
    close(fd);
    text[filled] = '\0';
    *data = text;
    *bytes = filled;
    return OX_OK;
fail:
    free(text);
    close(fd);
    return status;
}

/* Writes a file of these bytes beside `path`; removes it on failure. */
static enum ox_status write_beside(const char *path, const void *data, size_t bytes, struct ox_file_writer *writer) {
    enum ox_status status = create_beside(path, bytes, writer);
    if (status == OX_OK) {
        status = ox_file_write(writer, data, bytes, 0);
        if (status != OX_OK) {
            ox_file_discard(writer);
        }
    }
    return status;
}

enum ox_status ox_file_replace(const char *path, const void *data, size_t bytes) {
    struct ox_file_writer writer;
    const enum ox_status status = write_beside(path, data, bytes, &writer);
    return status == OX_OK ? finish_as(&writer, path) : status;
}

enum ox_status ox_file_replace_unsynced(const char *path, const void *data, size_t bytes) {
    struct ox_file_writer writer;
    enum ox_status status = write_beside(path, data, bytes, &writer);
    if (status == OX_OK && rename(writer.path, path) != 0) {
        status = fail_path(errno, path, "replace");
        ox_file_discard(&writer);
    }
    if (status == OX_OK) {
        close(writer.fd);
    }
    return status;
}

/* Takes from a new file the permissions that the file it copies does not give. On a file system that keeps none the
 * mount decides who reads it, as for all that lies there. */
static enum ox_status narrow_mode(int source_fd, const struct ox_file_writer *writer) {
    const mode_t all = S_IRWXU | S_IRWXG | S_IRWXO;
    struct stat source, target;
    if (fstat(source_fd, &source) != 0 || fstat(writer->fd, &target) != 0) {
        return fail_path(errno, writer->path, "examine");
    }
    const mode_t kept = source.st_mode | S_IWUSR; /* a copy of a read-only file is its owner's to change */
    const bool wider = (target.st_mode & ~kept & all) != 0;
    const bool done = !wider || fchmod(writer->fd, kept & target.st_mode & all) == 0;
    return done || errno == EPERM || errno == ENOTSUP || errno == ENOSYS
               ? OX_OK
               : fail_path(errno, writer->path, "set the permissions of");
}

enum ox_status ox_file_copy(const char *source, const char *target) {
    uint64_t bytes = 0;
    struct ox_file_writer writer = {.fd = -1};
    int fd = -1;
    char *buffer = NULL;
    enum ox_status status = ox_file_open_input(source, &fd, &bytes);
    if (status != OX_OK) {
        return status;
    }
    status = create_beside(target, bytes, &writer);
    if (status != OX_OK) {
        close(fd);
        return status;
    }
    status = narrow_mode(fd, &writer);
    buffer = malloc(COPY_BYTES);
    if (status == OX_OK && buffer == NULL) {
        status = ox_fail(OX_E_NOMEM, "%s: no memory to copy it", source);
    }
    for (uint64_t offset = 0; status == OX_OK && offset < bytes;) {
        const size_t part = (size_t)ox_min_u64(COPY_BYTES, bytes - offset);
        status = ox_file_read_at(fd, source, buffer, part, offset);
        OX_THEN(status, ox_file_write(&writer, buffer, part, offset));
        offset += part;
    }
    free(buffer);
    close(fd);
    if (status != OX_OK) {
        ox_file_discard(&writer);
        return status;
    }
    return finish_as(&writer, target);
}

static enum ox_status open_writer(const char *path, int flags, const char *what, struct ox_file_writer *out) {
    memset(out, 0, sizeof *out);
    out->fd = -1;
    const size_t path_bytes = strlen(path);
    if (path_bytes >= sizeof out->path) {
        return ox_fail(OX_E_CONFIG, "%.200s...: the path is longer than %d bytes; choose a shorter one", path,
                       OX_PATH_BYTES - 1);
    }
    memcpy(out->path, path, path_bytes + 1);
    out->fd = open(path, flags | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0666);
    return out->fd >= 0 ? OX_OK : fail_path(errno, path, what);
}

enum ox_status ox_file_create(const char *path, uint64_t bytes_expected, struct ox_file_writer *out) {
    enum ox_status status = open_writer(path, O_CREAT | O_EXCL, "create", out);
    OX_THEN(status, reserve(out->fd, path, bytes_expected));
    if (status != OX_OK) {
        ox_file_discard(out);
    }
    return status;
}

enum ox_status ox_file_join(const char *path, struct ox_file_writer *out) {
    const enum ox_status status = open_writer(path, 0, "open", out);
    out->joined = true;
    return status;
}

enum ox_status ox_file_write(struct ox_file_writer *writer, const void *data, size_t bytes, uint64_t offset) {
    OX_ASSERT(writer->fd >= 0);
    const char *from = data;
    size_t left = bytes;
    for (int interrupts = 0; left > 0;) {
        const ssize_t done = pwrite(writer->fd, from, left, (off_t)offset);
        if (ox_interrupted(done, &interrupts)) {
            continue;
        }
        if (done <= 0) {
            return fail_space(done == 0 ? EIO : errno, writer->path, left);
        }
        from += done;
        left -= (size_t)done;
        offset += (uint64_t)done;
    }
    writer->bytes_written += bytes;
    return OX_OK;
}

enum ox_status ox_file_finish(struct ox_file_writer *writer) {
    OX_ASSERT(writer->fd >= 0);
    enum ox_status status = OX_OK;
    if (fsync(writer->fd) != 0) {
        status = fail_space(errno, writer->path, writer->bytes_written);
    }
    if (close(writer->fd) != 0 && status == OX_OK && errno != EINTR) {
        status = fail_path(errno, writer->path, "close");
    }
    writer->fd = -1;
    return status;
}

void ox_file_discard(struct ox_file_writer *writer) {
    if (writer->fd >= 0) {
        close(writer->fd);
        if (!writer->joined) {
            unlink(writer->path);
        }
        writer->fd = -1;
    }
}

static enum ox_status fail_cut_off(const char *path, size_t missing, uint64_t offset) {
    return ox_fail(OX_E_CORRUPT, "%s: ends at byte %llu, %zu bytes too early; it is cut off", path,
                   (unsigned long long)offset, missing);
}

enum ox_status ox_file_read_at(int fd, const char *path, void *data, size_t bytes, uint64_t offset) {
    char *to = data;
    for (int interrupts = 0; bytes > 0;) {
        const ssize_t got = pread(fd, to, bytes, (off_t)offset);
        if (ox_interrupted(got, &interrupts)) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? fail_path(errno, path, "read") : fail_cut_off(path, bytes, offset);
        }
        to += got;
        bytes -= (size_t)got;
        offset += (uint64_t)got;
    }
    return OX_OK;
}

/* Switches O_DIRECT on or off; false when nothing changed. */
static bool set_direct(int fd, bool direct) {
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || ((flags & O_DIRECT) != 0) == direct) {
        return false;
    }
    return fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

enum ox_status ox_file_open_direct(const char *path, int *fd, uint64_t *bytes) {
    const enum ox_status status = ox_file_open_input(path, fd, bytes);
    if (status == OX_OK && !set_direct(*fd, true)) {
        (void)posix_fadvise(*fd, 0, 0, POSIX_FADV_DONTNEED); /* else drop its cached pages */
    }
    return status;
}

enum ox_status ox_file_read_direct(int fd, const char *path, void *data, size_t bytes, uint64_t offset) {
    OX_ASSERT((uintptr_t)data % OX_IO_ALIGN_BYTES == 0 && offset % OX_IO_ALIGN_BYTES == 0);
    const size_t room = (size_t)ox_align_up(bytes, OX_IO_ALIGN_BYTES);
    int interrupts = 0;
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = pread(fd, (char *)data + done, room - done, (off_t)(offset + done));
        /* EINVAL: some file systems accept O_DIRECT and refuse the read, and all refuse an offset inside a block. */
        if (ox_interrupted(got, &interrupts) || (got < 0 && errno == EINVAL && set_direct(fd, false))) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? fail_path(errno, path, "read") : fail_cut_off(path, bytes - done, offset + done);
        }
        done += (size_t)got;
    }
    return OX_OK;
}

/* Refuses something that exists and is no folder. */
static enum ox_status refuse_other(const char *path) {
    struct stat info;
    if (ox_path_is_file(path)) {
        return ox_fail(OX_E_CONFIG, "%s: is a file where a folder is needed; give another name", path);
    }
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode) && !ox_path_is_folder(path)
               ? ox_fail(OX_E_CONFIG, "%s: is a link, but not to a folder; remove it or give another name", path)
               : OX_OK;
}

enum ox_status ox_folder_make(const char *path) {
    if (ox_path_is_folder(path)) {
        return OX_OK;
    }
    char parent[OX_PATH_BYTES];
    enum ox_status status = ox_path_parent(path, parent);
    if (status == OX_OK && strcmp(parent, path) != 0 && !ox_path_is_folder(parent)) {
        status = ox_folder_make(parent); /* recursion ends: each parent is shorter */
    }
    if (status != OX_OK) {
        return status;
    }
    if (mkdir(path, 0777) != 0) {
        const int err = errno;
        status = err == EEXIST ? refuse_other(path) : OX_OK;
        if (status != OX_OK) {
            return status;
        }
        return err == EEXIST && ox_path_is_folder(path) ? OX_OK : fail_path(err, path, "create the folder");
    }
    return ox_folder_sync(parent);
}

/* Cuts off the last name of the path; false when nothing is left. */
static bool cut_name(char *path) {
    char *const slash = strrchr(path, '/');
    *(slash != NULL ? slash : path) = '\0';
    return path[0] != '\0';
}

size_t ox_path_existing(const char *path) {
    char part[OX_PATH_BYTES] = "";
    if (strlen(path) < sizeof part) { /* else ox_folder_make refuses the path */
        memcpy(part, path, strlen(path) + 1);
        bool more = part[0] != '\0';
        while (more && !ox_path_exists(part)) {
            more = cut_name(part);
        }
    }
    return strlen(part);
}

/* The part of the path that exists, or ".". */
static void existing_part(const char *path, char *part) {
    const size_t existing = ox_path_existing(path);
    snprintf(part, OX_PATH_BYTES, "%.*s", existing > 0 ? (int)existing : 1, existing > 0 ? path : ".");
}

enum ox_status ox_folder_check_place(const char *path) {
    char part[OX_PATH_BYTES];
    existing_part(path, part);
    return refuse_other(part);
}

bool ox_folder_takes_files(const char *path) {
    static const uint32_t views[] = {PROC_SUPER_MAGIC, SYSFS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC,
                                     DEBUGFS_MAGIC, TRACEFS_MAGIC, SECURITYFS_MAGIC, DEVPTS_SUPER_MAGIC,
                                     BPF_FS_MAGIC, PSTOREFS_MAGIC, SELINUX_MAGIC};
    char folder[OX_PATH_BYTES];
    struct statfs files;
    existing_part(path, folder);
    bool takes = access(folder, W_OK | X_OK) == 0;
    for (size_t i = 0; i < sizeof views / sizeof *views && takes && statfs(folder, &files) == 0; i++) {
        takes = (uint32_t)files.f_type != views[i];
    }
    return takes;
}

enum ox_status ox_folder_make_undoable(const char *path, size_t *existing) {
    *existing = ox_path_existing(path);
    return ox_folder_make(path);
}

void ox_folder_unmake(const char *path, size_t existing) {
    char part[OX_PATH_BYTES];
    size_t bytes = strlen(path);
    memcpy(part, path, bytes < sizeof part ? bytes + 1 : 0);
    while (bytes < sizeof part && bytes > existing && (path[bytes - 1] == '/' || rmdir(part) == 0)) {
        cut_name(part);
        bytes = strlen(part);
    }
}

/* Whether a temporary file in a shared folder is left over. A process of another machine may have written it, whose
 * number says nothing here; but such a file lives for a moment only. */
static bool is_stale(int folder_fd, const char *name) {
    enum { MINUTE = 60, DAY = 24 * 60 * MINUTE };
    const pid_t pid = (pid_t)strtol(name + strlen(".offload-"), NULL, 10);
    struct stat info;
    if (fstatat(folder_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        return false;
    }
    const time_t age = time(NULL) - info.st_mtime;
    return age > DAY || (age > MINUTE && pid > 0 && kill(pid, 0) != 0 && errno == ESRCH);
}

static void sweep(const char *path, bool shared) {
    DIR *const folder = opendir(path);
    const struct dirent *entry = NULL;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (is_temporary(entry->d_name) && (!shared || is_stale(dirfd(folder), entry->d_name)) &&
            unlinkat(dirfd(folder), entry->d_name, 0) != 0 && errno != ENOENT) {
            ox_log(OX_LOG_WARN, "%s: cannot remove %s, which a killed process left: %s", path,
                   entry->d_name, strerror(errno));
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
}

void ox_folder_sweep(const char *path) {
    sweep(path, false);
}

void ox_folder_sweep_shared(const char *path) {
    sweep(path, true);
}

enum ox_status ox_folder_sync(const char *path) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return fail_path(errno, path, "open the folder");
    }
    enum ox_status status = OX_OK;
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP) { /* some file systems cannot sync folders */
        status = fail_path(errno, path, "sync the folder");
    }
    close(fd);
    return status;
}

enum ox_status ox_folder_commit(const char *from, const char *to) {
    char from_parent[OX_PATH_BYTES], to_parent[OX_PATH_BYTES];
    enum ox_status status = ox_path_parent(from, from_parent);
    OX_THEN(status, ox_path_parent(to, to_parent));
    OX_THEN(status, ox_path_is_folder(from) ? ox_folder_sync(from) : OX_OK);
    if (status != OX_OK) {
        return status;
    }
    int result = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
    if (result != 0 && (errno == EINVAL || errno == ENOSYS)) { /* this file system lacks RENAME_NOREPLACE */
        struct stat info;
        if (lstat(to, &info) == 0) {
            errno = EEXIST;
        } else {
            result = rename(from, to);
        }
    }
    if (result != 0) {
        return ox_fail_errno(status_of(errno), errno, "%s: cannot be renamed to %s", from, to);
    }
    status = ox_folder_sync(to_parent);
    if (status == OX_OK && strcmp(from_parent, to_parent) != 0) {
        status = ox_folder_sync(from_parent);
    }
    return status;
}

enum ox_status ox_folder_remove(const char *path) {
    struct stat info;
    if (lstat(path, &info) != 0) {
        return errno == ENOENT ? OX_OK : fail_path(errno, path, "examine");
    }
    if (!S_ISDIR(info.st_mode)) {
        return ox_fail(OX_E_CONFIG,
                       "%s: is not a folder (a link is not followed), so it is not removed; remove it yourself", path);
    }
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return fail_path(errno, path, "open the folder");
    }
    OX_TRY(remove_content(fd, path, 0));
    return rmdir(path) == 0 || errno == ENOENT ? OX_OK : fail_path(errno, path, "remove the folder");
}

enum ox_status ox_folder_free_bytes(const char *path, uint64_t *bytes) {
    struct statvfs space;
    if (statvfs(path, &space) != 0) {
        return fail_path(errno, path, "read the free space of");
    }
    *bytes = space.f_blocks == 0 ? UINT64_MAX : (uint64_t)space.f_bavail * space.f_frsize;
    return OX_OK;
}

enum ox_status ox_folder_next(DIR *folder, const char *path, const char **name) {
    for (;;) {
        errno = 0;
        const struct dirent *const entry = readdir(folder);
        *name = entry == NULL ? NULL : entry->d_name;
        if (entry == NULL) {
            return errno == 0 ? OX_OK : ox_fail_errno(OX_E_IO, errno, "%s: cannot list the folder", path);
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            return OX_OK;
        }
    }
}
