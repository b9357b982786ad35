/* Opens, checks, locks and preallocates drive files, for the uring and the threads backend. */
#include "nvme/io_drive.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum {
    LOCK_POLL_NS_MAX = 50 * 1000 * 1000,
    OPEN_TRIES_MAX = 8,
    ZERO_BYTES = 1 << 20,
};
/* How long to wait for a lock: after a process is killed, the kernel finishes its io_uring writes, which keep its file
 * description and its lock alive. */
#define LOCK_WAIT_NS UINT64_C(3000000000)

struct ox_drive {
    int fd;
    uint64_t bytes;
    uint32_t align_bytes;
    bool direct;
    bool unnamed; /* `path` is its folder */
    bool vanished;
    bool copies_on_write;
    char note[160];
    char path[OX_PATH_BYTES];
};

/* Where the process trains, ", which trains in FOLDER": a run keeps its folder open, as its lock; "" if that is not to
 * be seen. */
static const char *trains_in(long pid, char text[OX_PATH_BYTES]) {
    char path[OX_PATH_BYTES], folder[OX_PATH_BYTES], record[OX_PATH_BYTES];
    snprintf(path, sizeof path, "/proc/%ld/fd", pid);
    DIR *const files = opendir(path);
    text[0] = '\0';
    while (files != NULL && text[0] == '\0') {
        const struct dirent *const file = readdir(files);
        if (file == NULL) {
            break;
        }
        snprintf(path, sizeof path, "/proc/%ld/fd/%.20s", pid, file->d_name);
        const ssize_t bytes = readlink(path, folder, sizeof folder - 1);
        folder[bytes > 0 ? bytes : 0] = '\0';
        if (folder[0] == '/' && ox_path_is_folder(folder) && ox_path_join(folder, "run.json", record) == OX_OK &&
            ox_path_is_file(record)) {
            snprintf(text, OX_PATH_BYTES, ", which trains in %.*s", OX_PATH_BYTES - 32, folder);
        }
    }
    if (files != NULL) {
        closedir(files);
    }
    return text;
}

/* Locks the file, waiting a while for the writes of a killed process. */
static enum ox_status lock_file(int fd, const char *path) {
    const uint64_t deadline_ns = ox_clock_ns() + LOCK_WAIT_NS;
    long poll_ns = 1000 * 1000;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            return ox_fail_errno(OX_E_IO, errno,
                                 "%s: the file system cannot lock files; give a folder on a local drive", path);
        }
        if (ox_clock_ns() >= deadline_ns) {
            const long pid = ox_file_lock_holder(fd);
            char run[OX_PATH_BYTES];
            if (pid > 0) {
                return ox_fail(OX_E_BUSY, "%s: in use by process %ld%s; wait for its end, stop it, or give another "
                               "folder", path, pid, trains_in(pid, run));
            }
            return ox_fail(OX_E_BUSY, "%s: in use by another process; stop it or give another folder", path);
        }
        nanosleep(&(struct timespec){.tv_nsec = poll_ns}, NULL);
        poll_ns = 2 * poll_ns < LOCK_POLL_NS_MAX ? 2 * poll_ns : LOCK_POLL_NS_MAX;
    }
    return OX_OK;
}

static enum ox_status check_kind(const char *path, const struct stat *info) {
    if (S_ISLNK(info->st_mode)) {
        return ox_fail(OX_E_CONFIG, "%s: is a symbolic link; give the folder that holds the file itself", path);
    }
    if (!S_ISREG(info->st_mode)) {
        return ox_fail(OX_E_CONFIG, "%s: is not a regular file; remove it or give another folder", path);
    }
    if ((info->st_mode & S_IWOTH) != 0) {
        return ox_fail(OX_E_CONFIG, "%s: any user may write to it (mode %04o); chmod it to 0600", path,
                       (unsigned)(info->st_mode & 07777));
    }
    return OX_OK;
}

static bool kernel_is_at_least(int want_major, int want_minor) {
    struct utsname name;
    int have_major = 0, have_minor = 0;
    if (uname(&name) != 0 || sscanf(name.release, "%d.%d", &have_major, &have_minor) != 2) {
        return false;
    }
    return have_major > want_major || (have_major == want_major && have_minor >= want_minor);
}

/* Reads the alignment, and corrects `direct`: a file system may accept O_DIRECT and still use the page cache, which
 * only statx reveals. */
static void probe_alignment(struct ox_drive *drive) {
    struct statx info;
    drive->align_bytes = OX_IO_ALIGN_BYTES;
    if (!drive->direct) {
        return;
    }
    const bool known = statx(drive->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
                       (info.stx_mask & STATX_DIOALIGN) != 0;
    if (!known) {
        if (kernel_is_at_least(6, 1)) {
            drive->direct = false;
            snprintf(drive->note, sizeof drive->note,
                     "the file system accepts O_DIRECT but does not report that it bypasses the page cache");
        }
        return;
    }
    if (info.stx_dio_offset_align == 0 || info.stx_dio_offset_align > OX_IO_ALIGN_BYTES ||
        info.stx_dio_mem_align > OX_IO_ALIGN_BYTES) {
        fcntl(drive->fd, F_SETFL, fcntl(drive->fd, F_GETFL) & ~O_DIRECT);
        drive->direct = false;
        snprintf(drive->note, sizeof drive->note, "direct I/O is not possible on this file (alignment %u)",
                 info.stx_dio_offset_align);
        return;
    }
    drive->align_bytes = info.stx_dio_offset_align > info.stx_dio_mem_align ? info.stx_dio_offset_align
                                                                            : info.stx_dio_mem_align;
}

bool ox_drive_copies_on_write(uint64_t type, bool nocow) {
    enum { BTRFS = 0x9123683e, ZFS = 0x2fc12fc1, BCACHEFS = 0xca451a4e };
    return type == ZFS || type == BCACHEFS || (type == BTRFS && !nocow);
}

/* Asks that a new, empty file is written in place, where a file system has a flag for that; others refuse it. */
static void ask_no_copies(int fd) {
    unsigned flags = 0;
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0) {
        flags |= FS_NOCOW_FL;
        (void)ioctl(fd, FS_IOC_SETFLAGS, &flags);
    }
}

static bool finds_copies(int fd) {
    struct statfs space;
    unsigned flags = 0;
    const bool nocow = ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && (flags & FS_NOCOW_FL) != 0;
    return fstatfs(fd, &space) == 0 && ox_drive_copies_on_write((uint32_t)space.f_type, nocow);
}

/* Opens the file with O_DIRECT, or without where the file system refuses that. */
static int open_flags(struct ox_drive *drive, int flags) {
    const int base = O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags;
    int fd = open(drive->path, base | O_DIRECT, 0600);
    drive->direct = fd >= 0;
    if (fd < 0 && errno == EINVAL) {
        /* The failed call may have created the file. */
        fd = open(drive->path, base & ~O_EXCL, 0600);
        snprintf(drive->note, sizeof drive->note, "the file system refuses O_DIRECT");
    }
    return fd;
}

/* Opens and locks the file. *created: the file is new. *stale: its name meanwhile refers to another file. */
static enum ox_status open_locked(struct ox_drive *drive, enum ox_drive_mode mode, bool *created,
                                  bool *stale) {
    struct stat named, opened;
    *created = false;
    *stale = false;
    if (lstat(drive->path, &named) == 0) {
        const enum ox_status status = check_kind(drive->path, &named);
        if (status != OX_OK) {
            return status;
        }
    } else if (errno == ENOENT && mode == OX_DRIVE_CREATE) {
        *created = true;
    } else {
        return ox_fail_errno(errno == ENOENT ? OX_E_CONFIG : OX_E_IO, errno, "%s: cannot open it",
                             drive->path);
    }
    drive->fd = open_flags(drive, *created ? O_CREAT | O_EXCL : 0);
    if (drive->fd < 0) {
        const int err = errno;
        *created = false;
        *stale = err == EEXIST || (err == ENOENT && mode == OX_DRIVE_CREATE);
        return ox_fail_errno(OX_E_IO, err, "%s: cannot open it", drive->path);
    }
    enum ox_status status = lock_file(drive->fd, drive->path);
    if (status != OX_OK) {
        *created = *created && status != OX_E_BUSY; /* the process that locked it first keeps it */
        return status;
    }
    if (fstat(drive->fd, &opened) != 0) {
        return ox_fail_errno(OX_E_IO, errno, "%s: cannot be examined", drive->path);
    }
    if (lstat(drive->path, &named) != 0 || named.st_ino != opened.st_ino || named.st_dev != opened.st_dev) {
        *created = false;
        *stale = true;
        return ox_fail(OX_E_BUSY, "%s: another process replaced it while it was opened", drive->path);
    }
    drive->bytes = (uint64_t)opened.st_size;
    if (drive->bytes == 0) {
        ask_no_copies(drive->fd);
    }
    return check_kind(drive->path, &opened);
}

/* Opens a file without a name in the folder. Where the file system has none, the file has a name for a moment. */
static enum ox_status open_unnamed(struct ox_drive *drive) {
    char name[OX_PATH_BYTES];
    const int base = O_RDWR | O_CLOEXEC;
    drive->unnamed = true;
    drive->fd = open(drive->path, base | O_TMPFILE | O_DIRECT, 0600);
    drive->direct = drive->fd >= 0;
    if (drive->fd < 0 && errno == EINVAL) {
        drive->fd = open(drive->path, base | O_TMPFILE, 0600);
        snprintf(drive->note, sizeof drive->note, "the file system refuses O_DIRECT");
    }
    if (drive->fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
        const enum ox_status status = ox_path_join(drive->path, "offload-XXXXXX", name);
        if (status != OX_OK) {
            return status;
        }
        drive->fd = mkostemp(name, O_CLOEXEC | O_DIRECT);
        drive->direct = drive->fd >= 0;
        if (drive->fd >= 0) {
            unlink(name);
        }
    }
    return drive->fd >= 0 ? OX_OK : ox_fail_errno(OX_E_IO, errno, "%s: cannot hold a file", drive->path);
}

static enum ox_status open_once(struct ox_drive *drive, enum ox_drive_mode mode, bool *stale) {
    bool created = false;
    if (mode == OX_DRIVE_UNNAMED) {
        *stale = false;
        return open_unnamed(drive);
    }
    enum ox_status status = open_locked(drive, mode, &created, stale);
    if (status == OX_OK && mode == OX_DRIVE_CREATE && drive->bytes > 0) {
        status = ox_fail(OX_E_CONFIG, "%s: exists already; resume from it, or remove it to start over",
                         drive->path);
    }
    if (status != OX_OK) {
        if (created) {
            unlink(drive->path);
        }
        if (drive->fd >= 0) {
            close(drive->fd);
            drive->fd = -1;
        }
    }
    return status;
}

static enum ox_status allocate_failed(const struct ox_drive *drive, uint64_t bytes, int err) {
    char want[OX_SIZE_TEXT_BYTES];
    ox_size_text(bytes, want);
    if (err == ENOSPC || err == EDQUOT) {
        return ox_fail_errno(OX_E_CONFIG, err, "%s: the file system has no room for %s; free space or allow less",
                             drive->path, want);
    }
    return ox_fail_errno(OX_E_IO, err, "%s: cannot preallocate %s", drive->path, want);
}

/* Preallocates by writing zeros, for file systems without fallocate, so that a lack of space shows up now. */
static int fill_with_zeros(const struct ox_drive *drive, uint64_t bytes) {
    void *zeros = NULL;
    int err = posix_memalign(&zeros, OX_IO_ALIGN_BYTES, ZERO_BYTES);
    if (err != 0) {
        return err;
    }
    memset(zeros, 0, ZERO_BYTES);
    int interrupts = 0;
    for (uint64_t at = drive->bytes; at < bytes && err == 0;) {
        const ssize_t wrote = pwrite(drive->fd, zeros, ox_min_u64(ZERO_BYTES, bytes - at), (off_t)at);
        if (wrote > 0) {
            at += (uint64_t)wrote;
            interrupts = 0;
        } else if (!ox_interrupted(wrote, &interrupts)) {
            err = wrote == 0 ? ENOSPC : errno;
        }
    }
    free(zeros);
    return err;
}

static enum ox_status sync_parent(const char *path) {
    char folder[OX_PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", path);
    char *const slash = strrchr(folder, '/');
    if (slash == NULL) {
        return ox_folder_sync(".");
    }
    slash[slash == folder ? 1 : 0] = '\0';
    return ox_folder_sync(folder);
}

enum ox_status ox_drive_file_open(const struct ox_io_backend *backend, const char *path,
                                  enum ox_drive_mode mode, struct ox_drive **out) {
    (void)backend;
    *out = NULL;
    if (strlen(path) >= OX_PATH_BYTES) {
        return ox_fail(OX_E_CONFIG, "%.64s...: the path is too long; choose a shorter one", path);
    }
    struct ox_drive *const drive = calloc(1, sizeof *drive);
    if (drive == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to open it", path);
    }
    drive->fd = -1;
    snprintf(drive->path, sizeof drive->path, "%s", path);
    bool stale = false;
    enum ox_status status = open_once(drive, mode, &stale);
    for (int tries = 1; status != OX_OK && stale && tries < OPEN_TRIES_MAX; tries++) {
        status = open_once(drive, mode, &stale);
    }
    if (status != OX_OK) {
        free(drive);
        return status;
    }
    probe_alignment(drive);
    drive->copies_on_write = finds_copies(drive->fd);
    *out = drive;
    return OX_OK;
}

enum ox_status ox_drive_file_allocate(struct ox_drive *drive, uint64_t bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) {
        char most[OX_SIZE_TEXT_BYTES];
        return ox_fail(OX_E_CONFIG, "%s: a limit of this process keeps files below %s; raise `ulimit -f`", drive->path,
                       ox_size_text(limit.rlim_cur, most));
    }
    int err = 0;
    if (bytes > drive->bytes) {
        int result, interrupts = 0;
        do {
            result = fallocate(drive->fd, 0, 0, (off_t)bytes);
        } while (ox_interrupted(result, &interrupts));
        err = result == 0 ? 0 : errno;
        if (err == EOPNOTSUPP || err == ENOSYS) { /* an unnamed file need not be whole */
            err = drive->unnamed ? 0 : fill_with_zeros(drive, bytes);
        }
    }
    if (err == 0 && ftruncate(drive->fd, (off_t)bytes) != 0) {
        err = errno;
    }
    if (err == 0 && fsync(drive->fd) != 0) {
        err = errno;
    }
    if (err != 0) {
        return allocate_failed(drive, bytes, err);
    }
    drive->bytes = bytes;
    return drive->unnamed ? OX_OK : sync_parent(drive->path);
}

/* Whether the file can still be found by its name. What is written to one that cannot is lost with this process. */
static enum ox_status check_name(struct ox_drive *drive) {
    struct stat opened, named;
    if (drive->unnamed || fstat(drive->fd, &opened) != 0) {
        return OX_OK;
    }
    const bool found = lstat(drive->path, &named) == 0;
    if (found ? named.st_dev == opened.st_dev && named.st_ino == opened.st_ino : errno != ENOENT && errno != ENOTDIR) {
        return OX_OK;
    }
    drive->vanished = true;
    return ox_fail(OX_E_IO, "%s: was %s while it was in use, so nothing can be committed there", drive->path,
                   found ? "replaced" : opened.st_nlink == 0 ? "deleted" : "moved away");
}

enum ox_status ox_drive_file_flush(struct ox_drive *drive) {
    if (fdatasync(drive->fd) != 0) {
        return ox_fail_errno(OX_E_IO, errno, "%s: flush failed; data written since the last flush may be lost",
                             drive->path);
    }
    OX_TRY(check_name(drive));
    if (!drive->direct) {
        /* Without this the page cache would grow to the size of the file. */
        posix_fadvise(drive->fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    return OX_OK;
}

enum ox_status ox_drive_file_remove(const struct ox_io_backend *backend, const char *path) {
    struct stat info;
    if (lstat(path, &info) != 0 && errno == ENOENT) {
        return OX_OK;
    }
    struct ox_drive *drive = NULL;
    enum ox_status status = ox_drive_file_open(backend, path, OX_DRIVE_OPEN, &drive);
    if (status != OX_OK) {
        return status;
    }
    if (unlink(path) != 0) {
        status = ox_fail_errno(OX_E_IO, errno, "%s: cannot be removed", path);
    }
    OX_THEN(status, sync_parent(path)); /* what is durable later may count on it, also on another file system */
    ox_drive_file_close(drive);
    return status;
}

void ox_drive_file_info(const struct ox_drive *drive, struct ox_drive_info *out) {
    memset(out, 0, sizeof *out);
    /* Keeps the end of a long path, which says more. */
    const size_t len = strlen(drive->path), room = sizeof out->path - 1;
    memcpy(out->path, drive->path + (len > room ? len - room : 0), len > room ? room : len);
    out->bytes = drive->bytes;
    out->align_bytes = drive->align_bytes;
    out->direct = drive->direct;
    out->vanished = drive->vanished;
    out->copies_on_write = drive->copies_on_write;
    memcpy(out->note, drive->note, sizeof out->note);
}

void ox_drive_file_close(struct ox_drive *drive) {
    /* Unlock explicitly: a ring being torn down may hold the description longer than this close. */
    (void)flock(drive->fd, LOCK_UN);
    close(drive->fd);
    free(drive);
}

int ox_drive_file_fd(const struct ox_drive *drive) {
    return drive->fd;
}

const char *ox_drive_file_path(const struct ox_drive *drive) {
    return drive->path;
}

void ox_io_req_check(const struct ox_io_req *req, uint64_t drive_bytes) {
    OX_ASSERT(req->bytes > 0 && req->bytes <= OX_IO_REQ_BYTES_MAX);
    OX_ASSERT(req->bytes % OX_IO_ALIGN_BYTES == 0 && req->offset % OX_IO_ALIGN_BYTES == 0);
    OX_ASSERT((uintptr_t)req->buffer % OX_IO_ALIGN_BYTES == 0 && req->buffer != NULL);
    OX_ASSERT(req->offset <= drive_bytes && req->bytes <= drive_bytes - req->offset);
}

void ox_drive_file_check(const struct ox_drive *drive, const struct ox_io_req *req) {
    ox_io_req_check(req, drive->bytes);
}

bool ox_io_advance(struct ox_io_progress *progress, const char *path, int64_t result, struct ox_io_done *out) {
    const struct ox_io_req *const req = &progress->req;
    const char *const verb = req->kind == OX_IO_READ ? "read" : "write";
    const uint32_t want = req->bytes - progress->done_bytes;
    out->tag = req->tag;
    out->status = OX_OK;
    out->text[0] = '\0';
    if (result == (int64_t)want) {
        return true;
    }
    const bool again = result >= 0 || result == -EAGAIN || result == -EINTR;
    if (again && progress->resume_count < OX_IO_RESUMES_MAX) {
        progress->resume_count++;
        if (result > 0) {
            progress->done_bytes += (uint32_t)result / OX_IO_ALIGN_BYTES * OX_IO_ALIGN_BYTES;
        }
        return false;
    }
    const size_t len = strlen(path);
    path += len > 64 ? len - 64 : 0;
    out->status = OX_E_IO;
    if (result < 0) {
        snprintf(out->text, sizeof out->text, "%s: %s of %" PRIu32 " bytes at %" PRIu64 ": %s", path, verb,
                 req->bytes, req->offset, strerror((int)-result));
    } else {
        snprintf(out->text, sizeof out->text, "%s: %s of %" PRIu32 " bytes at %" PRIu64 " remains short", path,
                 verb, req->bytes, req->offset);
    }
    return true;
}
