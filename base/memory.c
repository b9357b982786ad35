/* Reads memory figures from /proc and from control groups, versions 1 and 2. The limits of the process (ulimit) are in
 * /proc too. */
#include "base/memory.h"

#include "base/bytes.h"
#include "base/file.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

enum { NAME_BYTES = 1024, LINE_BYTES = 512 };

/* The files of one version of control groups. */
struct group_files {
    const char *folder, *limit, *usage;
    const char *cache[3]; /* keys of memory.stat that count what the kernel drops when memory is short; or NULL */
};

static const struct group_files cgroup_v1 = {.folder = "/sys/fs/cgroup/memory",
                                             .limit = "memory.limit_in_bytes",
                                             .usage = "memory.usage_in_bytes",
                                             .cache = {"total_inactive_file", "total_active_file"}};
static const struct group_files cgroup_v2 = {.folder = "/sys/fs/cgroup",
                                             .limit = "memory.max",
                                             .usage = "memory.current",
                                             .cache = {"inactive_file", "active_file", "slab_reclaimable"}};

/* Reads the number after `key` and blanks or a colon at the start of a line; with an empty key, the file's first
 * word. */
static bool read_number(const char *path, const char *key, uint64_t *out) {
    FILE *const file = fopen(path, "r");
    if (file == NULL) {
        return false;
    }
    char line[LINE_BYTES];
    const size_t key_bytes = strlen(key);
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        const char *const rest = line + key_bytes;
        found = strncmp(line, key, key_bytes) == 0 && (key_bytes == 0 || *rest == ' ' || *rest == ':') &&
                sscanf(rest + strspn(rest, ": \t"), "%" SCNu64, out) == 1;
    }
    fclose(file);
    return found;
}

static bool group_number(const char *group, const char *name, const char *key, uint64_t *out) {
    char path[2 * NAME_BYTES];
    snprintf(path, sizeof path, "%s/%s", group, name);
    return read_number(path, key, out);
}

/* Lowers `usable` to what one limit leaves. */
static void apply_limit(struct ox_memory *out, uint64_t limit, uint64_t held, enum ox_memory_bound bound) {
    const uint64_t left = limit - ox_min_u64(limit, held);
    if (left < out->usable) {
        out->usable = left;
        out->bound = bound;
    }
}

/* Lowers `out` to one group's limit, if it has one. */
static void apply_group_limit(const struct group_files *files, const char *group, struct ox_memory *out) {
    uint64_t limit = 0, usage = 0, cache = 0;
    if (!group_number(group, files->limit, "", &limit)) {
        return; /* "max" (no limit), or the group does not exist here */
    }
    out->limit = ox_min_u64(out->limit, limit);
    if (!group_number(group, files->usage, "", &usage)) {
        return;
    }
    for (int i = 0; i < 3; i++) {
        uint64_t part = 0;
        if (files->cache[i] != NULL && group_number(group, "memory.stat", files->cache[i], &part)) {
            cache += part;
        }
    }
    apply_limit(out, limit, usage - ox_min_u64(usage, cache), OX_MEMORY_GROUP);
}

/* Applies the limits of all groups from this process up to the root. In a container the path in /proc may be the host's
 * and not exist here; the last step, the mounted root, is then the container's own group. */
static void apply_group_limits(const char *root, struct ox_memory *out) {
    char name[NAME_BYTES], line[LINE_BYTES];
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *const file = fopen(name, "r");
    if (file == NULL) {
        return;
    }
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        const bool is_v2 = strncmp(line, "0::", 3) == 0;
        char *const path = is_v2 ? line + 3 : strstr(line, ":memory:");
        if (path == NULL) {
            continue;
        }
        const struct group_files *const files = is_v2 ? &cgroup_v2 : &cgroup_v1;
        char *const start = is_v2 ? path : path + strlen(":memory:");
        for (char *slash = start; slash != NULL;) {
            snprintf(name, sizeof name, "%s%s%s", root, files->folder, start);
            apply_group_limit(files, name, out);
            slash = strrchr(start, '/');
            if (slash != NULL) {
                *slash = '\0';
            }
        }
    }
    fclose(file);
}

/* Applies the limits of the process itself; one that is not set reads "unlimited". */
static void apply_process_limits(const char *root, struct ox_memory *out) {
    static const struct {
        const char *limit, *held;
        enum ox_memory_bound bound;
    } kinds[] = {{"Max address space", "VmSize", OX_MEMORY_ADDRESSES}, {"Max data size", "VmData", OX_MEMORY_DATA}};
    char limits[NAME_BYTES], status[NAME_BYTES];
    snprintf(limits, sizeof limits, "%s/proc/self/limits", root);
    snprintf(status, sizeof status, "%s/proc/self/status", root);
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        uint64_t limit = 0, held_kib = 0;
        if (read_number(limits, kinds[i].limit, &limit) && read_number(status, kinds[i].held, &held_kib)) {
            apply_limit(out, limit, held_kib * OX_KIB, kinds[i].bound);
            const uint64_t left = limit - ox_min_u64(limit, held_kib * OX_KIB);
            if (left < out->addresses) {
                out->addresses = left;
                out->addresses_bound = kinds[i].bound;
            }
        }
    }
}

/* ---- files that are memory ------------------------------------------------------------------------------------ */

enum { OVERLAY_FILES = 0x794c7630, UNDER_MAX = 4 };

/* Writes the first line of a file of the kernel; false if there is none. */
static bool read_line(const char *path, char *line, size_t bytes) {
    FILE *const file = fopen(path, "r");
    const bool read = file != NULL && fgets(line, (int)bytes, file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    line[read ? strcspn(line, "\n") : 0] = '\0';
    return read;
}

/* Finds the folder to which the overlay of this device writes. */
static bool find_upper(dev_t device, char path[OX_PATH_BYTES]) {
    static const char key[] = "upperdir=";
    char line[4096];
    FILE *const mounts = fopen("/proc/self/mountinfo", "r");
    bool found = false;
    while (mounts != NULL && !found && fgets(line, sizeof line, mounts) != NULL) {
        unsigned major_number = 0, minor_number = 0;
        const char *const upper = strstr(line, key);
        if (upper != NULL && sscanf(line, "%*u %*u %u:%u", &major_number, &minor_number) == 2 &&
            makedev(major_number, minor_number) == device) {
            const int bytes = (int)strcspn(upper + sizeof key - 1, ",\n");
            found = bytes > 0 && bytes < OX_PATH_BYTES;
            snprintf(path, OX_PATH_BYTES, "%.*s", bytes, upper + sizeof key - 1);
        }
    }
    if (mounts != NULL) {
        fclose(mounts);
    }
    return found;
}

/* Names a block device that is memory, or finds the file that a loop device has in its place. */
static const char *of_device(dev_t device, char path[OX_PATH_BYTES]) {
    static const char *const places[] = {"loop/backing_file", "../loop/backing_file"};
    char name[64], link[OX_PATH_BYTES];
    path[0] = '\0';
    for (unsigned i = 0; i < sizeof places / sizeof *places && path[0] == '\0'; i++) {
        snprintf(name, sizeof name, "/sys/dev/block/%u:%u/%s", major(device), minor(device), places[i]);
        read_line(name, path, OX_PATH_BYTES);
    }
    snprintf(name, sizeof name, "/sys/dev/block/%u:%u", major(device), minor(device));
    const ssize_t bytes = readlink(name, link, sizeof link - 1);
    link[bytes > 0 ? bytes : 0] = '\0';
    return strstr(link, "/block/zram") != NULL ? "zram" : strstr(link, "/block/ram") != NULL ? "a RAM disk" : NULL;
}

const char *ox_memory_of_files(const char *path) {
    static const struct {
        unsigned long type;
        const char *name;
    } kinds[] = {{0x01021994, "tmpfs"}, {0x858458f6, "ramfs"}, {0x958458f6, "hugetlbfs"}};
    char at[OX_PATH_BYTES], under[OX_PATH_BYTES];
    snprintf(at, sizeof at, "%.*s", (int)ox_path_existing(path), path);
    for (int depth = 0; depth < UNDER_MAX; depth++) {
        struct statfs files;
        struct stat info;
        const char *const here = at[0] != '\0' ? at : ".";
        if (statfs(here, &files) != 0 || stat(here, &info) != 0) {
            return NULL;
        }
        for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            if ((unsigned long)files.f_type == kinds[i].type) {
                return kinds[i].name;
            }
        }
        const char *const name = (unsigned long)files.f_type == OVERLAY_FILES ? NULL : of_device(info.st_dev, under);
        const bool goes_on = (unsigned long)files.f_type == OVERLAY_FILES ? find_upper(info.st_dev, under)
                                                                          : name == NULL && under[0] != '\0';
        if (!goes_on) {
            return name;
        }
        memcpy(at, under, sizeof at);
    }
    return NULL;
}

/* ---- what was held at most ------------------------------------------------------------------------------------ */

static const char own_status[] = "/proc/self/status";

uint64_t ox_memory_peak(void) {
    uint64_t kib = 0;
    return read_number(own_status, "VmHWM", &kib) ? kib * OX_KIB : 0;
}

void ox_memory_forget_peak(void) {
    FILE *const file = fopen("/proc/self/clear_refs", "w");
    if (file != NULL) {
        (void)fputs("5", file); /* resets VmHWM; proc(5) */
        (void)fclose(file);
    }
}

/* ---- a limit for a time --------------------------------------------------------------------------------------- */

enum { TIGHT_GIB = 4, BIG_BLOCK_BYTES = 1 << 20 };

static struct {
    bool on;
    struct rlimit before, lower;
} cap;
static _Thread_local bool exceeded; /* this thread had the limit lifted */

void ox_memory_cap_begin(uint64_t bytes, uint32_t threads) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)bytes; /* a sanitizer's own memory counts too */
    (void)threads;
#else
    static const uint64_t default_stack_bytes = UINT64_C(8) << 20;
    uint64_t held_kib = 0, resident_kib = 0;
    struct rlimit stack;
    if (cap.on || bytes > UINT64_MAX / 2 || getrlimit(RLIMIT_DATA, &cap.before) != 0 ||
        getrlimit(RLIMIT_STACK, &stack) != 0 || !read_number(own_status, "VmData", &held_kib) ||
        !read_number(own_status, "VmRSS", &resident_kib)) {
        return;
    }
    const uint64_t left = bytes - ox_min_u64(bytes, resident_kib * OX_KIB);
    const uint64_t stack_bytes = stack.rlim_cur == RLIM_INFINITY ? default_stack_bytes : stack.rlim_cur;
    const uint64_t limit = held_kib * OX_KIB + left + threads * (stack_bytes + OX_KIB * 64);
    if (limit < cap.before.rlim_cur) {
        cap.lower = (struct rlimit){.rlim_cur = limit, .rlim_max = cap.before.rlim_max};
        cap.on = setrlimit(RLIMIT_DATA, &cap.lower) == 0;
    }
#ifdef __GLIBC__
    if (cap.on && left < TIGHT_GIB * OX_GIB) {
        mallopt(M_MMAP_THRESHOLD, BIG_BLOCK_BYTES); /* else freed blocks of some MiB stay in the heap */
    }
#endif
#endif
}

void ox_memory_cap_end(void) {
    if (cap.on) {
        cap.on = setrlimit(RLIMIT_DATA, &cap.before) != 0;
    }
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

void *ox_memory_cap_malloc(size_t bytes) {
    const bool may_be_text = (bytes & (bytes - 1)) == 0; /* jansson doubles the room for text */
    if (exceeded && !may_be_text) {
        return NULL;
    }
    void *const data = malloc(bytes);
    if (data != NULL || !cap.on || !may_be_text || setrlimit(RLIMIT_DATA, &cap.before) != 0) {
        return data;
    }
    exceeded = true;
    return malloc(bytes);
}

bool ox_memory_cap_exceeded(void) {
    const bool was = exceeded;
    if (was && cap.on) {
        cap.on = setrlimit(RLIMIT_DATA, &cap.lower) == 0;
    }
    exceeded = false;
    return was;
}

void ox_memory_read(const char *root, struct ox_memory *out) {
    char path[NAME_BYTES];
    *out = (struct ox_memory){.limit = UINT64_MAX, .addresses = UINT64_MAX};
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (read_number(path, "MemTotal", &out->total)) {
        out->total *= OX_KIB;
    }
    if (read_number(path, "MemAvailable", &out->available)) {
        out->available *= OX_KIB;
    } else {
        const long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
        out->available = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    }
    out->usable = out->available;
    apply_group_limits(root, out);
    apply_process_limits(root, out);
}
