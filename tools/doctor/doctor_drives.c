/* Reports how drives can be used: io_uring, and direct I/O with its alignment for each folder. */
#include "tools/doctor/doctor.h"

#include "base/bytes.h"
#include "base/file.h"
#include "nvme/io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static void report_uring(struct ox_doctor *doctor, const char *wanted) {
    char why[160] = "", disabled[16] = "absent";
    const struct ox_io_backend *const backend = ox_io_probe(why);
    const bool has_switch = ox_doctor_read("/proc/sys/kernel/io_uring_disabled", disabled, sizeof disabled);
    ox_doctor_add(doctor, "I/O backend", "%s%s%s", backend->name, why[0] != '\0' ? ": " : "", why);
    const char *const remedy = has_switch && strcmp(disabled, "0") != 0
                                   ? "sysctl kernel.io_uring_disabled=0"
                                   : "allow io_uring in the container's seccomp profile";
    if (strcmp(backend->name, "uring") != 0 && strcmp(wanted, "uring") == 0) {
        ox_doctor_refuse(doctor, remedy, "--io-backend uring: io_uring is not available");
    } else if (strcmp(backend->name, "uring") != 0) {
        ox_doctor_warn(doctor, remedy,
                       "io_uring is not available; threads are used instead, which cost more CPU time per byte");
    }
    ox_doctor_add(doctor, "io_uring_disabled", "%s", disabled);
}

static const char *file_system_name(const char *folder) {
    static const struct {
        unsigned long magic;
        const char *name;
    } known[] = {{0xEF53, "ext4"},        {0x58465342, "xfs"},     {0x9123683E, "btrfs"},
                 {0x01021994, "tmpfs"},   {0x794C7630, "overlay"}, {0x6969, "nfs"},
                 {0xF2F52010, "f2fs"},    {0x2FC12FC1, "zfs"},     {0x65735546, "fuse"},
                 {0xCA451A4E, "bcachefs"}};
    struct statfs info;
    if (statfs(folder, &info) == 0) {
        for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
            if ((unsigned long)info.f_type == known[i].magic) {
                return known[i].name;
            }
        }
    }
    return "other file system";
}

/* Opens an unnamed file; where the file system has none, a file whose name is removed at once. Returns -1 with
 * errno. */
static int open_scratch(const char *folder, int flags) {
    const int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) {
        return fd;
    }
    char path[OX_PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/.offload-doctor-%ld", folder, (long)getpid()) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    const int named = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (named >= 0) {
        unlink(path);
    }
    return named;
}

/* Returns the alignment that the kernel reports for direct I/O, 0 when it reports none. */
static unsigned direct_align(int fd) {
#ifdef STATX_DIOALIGN
    struct statx info;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 && (info.stx_mask & STATX_DIOALIGN) != 0) {
        return info.stx_dio_offset_align;
    }
#else
    (void)fd;
#endif
    return 0;
}

/* Tries to write one aligned block without the page cache. */
static bool direct_write_works(int fd) {
    void *block = NULL;
    if (posix_memalign(&block, OX_IO_ALIGN_BYTES, OX_IO_ALIGN_BYTES) != 0) {
        return false;
    }
    memset(block, 0, OX_IO_ALIGN_BYTES);
    const bool works = pwrite(fd, block, OX_IO_ALIGN_BYTES, 0) == OX_IO_ALIGN_BYTES;
    free(block);
    return works;
}

/* Reports a folder: file system, free space, direct I/O. `wanted_bytes` of it are to be used; 0: not known. */
static void report_folder(struct ox_doctor *doctor, const char *name, const char *folder, uint64_t wanted_bytes) {
    const char *const system = file_system_name(folder);
    char free_text[OX_SIZE_TEXT_BYTES] = "unknown";
    uint64_t free_bytes = 0;
    if (ox_folder_free_bytes(folder, &free_bytes) == OX_OK) {
        ox_size_text(free_bytes, free_text);
    }
    const int plain = open_scratch(folder, 0);
    if (plain < 0) {
        const char *const why = strerror(errno);
        ox_doctor_add(doctor, name, "%s: unusable", folder);
        ox_doctor_refuse(doctor, "name an existing folder on a drive that you may write to",
                         ox_path_is_folder(folder) ? "%s: no file can be made there: %s" : "%s: is not a folder: %s",
                         folder, why);
        return;
    }
    close(plain);
    const int fd = open_scratch(folder, O_DIRECT);
    const bool direct = fd >= 0 && direct_write_works(fd);
    const unsigned align = fd >= 0 ? direct_align(fd) : 0;
    if (fd >= 0) {
        close(fd);
    }
    char direct_text[64] = "no direct I/O";
    if (direct && align > 0) {
        snprintf(direct_text, sizeof direct_text, "direct I/O, alignment %u", align);
    } else if (direct) {
        snprintf(direct_text, sizeof direct_text, "direct I/O, alignment 4096 assumed");
    }
    ox_doctor_add(doctor, name, "%s: %s, %s free, %s", folder, system, free_text, direct_text);
    char wanted[OX_SIZE_TEXT_BYTES];
    if (wanted_bytes > free_bytes) {
        ox_doctor_refuse(doctor, "make room, or give a smaller size", "%s has %s free, less than the %s of --nvme",
                         folder, free_text, ox_size_text(wanted_bytes, wanted));
    } else if (strcmp(system, "tmpfs") == 0) {
        ox_doctor_warn(doctor, "name a folder on an NVMe drive", "tmpfs is memory, not a drive");
    } else if (!direct) {
        ox_doctor_warn(doctor, "use a folder on ext4 or xfs of a local NVMe drive",
                       "%s does not support O_DIRECT; the page cache will use memory outside the budget", system);
    } else if (align > OX_IO_ALIGN_BYTES) {
        ox_doctor_warn(doctor, "create the file system with 4096-byte blocks",
                       "%s requires alignment %u, more than the %d in use", system, align, OX_IO_ALIGN_BYTES);
    }
}

void ox_doctor_drives(struct ox_doctor *doctor, const struct ox_config *config) {
    doctor->group = "Drives";
    report_uring(doctor, config->memory.io_backend);
    for (uint32_t i = 0; i < config->memory.nvme_count; i++) {
        report_folder(doctor, "drive", config->memory.nvme[i].path, config->memory.nvme[i].bytes);
    }
    if (config->memory.nvme_count == 0) {
        report_folder(doctor, "this folder", ".", 0);
    }
}
