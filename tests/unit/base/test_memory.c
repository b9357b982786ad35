/* Memory figures are read from files laid out as the kernel lays them out. */
#include "base/bytes.h"
#include "base/file.h"
#include "base/memory.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <linux/magic.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[OX_PATH_BYTES];

static void begin(const char *name) {
    REQUIRE_OK(ox_path_join(test_folder(), name, root));
}

static void put(const char *folder, const char *name, const char *text) {
    char path[2 * OX_PATH_BYTES], file[3 * OX_PATH_BYTES];
    snprintf(path, sizeof path, "%s%s", root, folder);
    snprintf(file, sizeof file, "%s/%s", path, name);
    REQUIRE_OK(ox_folder_make(path));
    REQUIRE_OK(ox_file_replace(file, text, strlen(text)));
}

static void put_machine(const char *groups) {
    put("/proc", "meminfo", "MemTotal:       16777216 kB\nMemFree:          102400 kB\n"
                            "MemAvailable:    8388608 kB\nHugePages_Total:       0\n");
    put("/proc/self", "cgroup", groups);
}

static void expect(uint64_t limit, uint64_t usable) {
    struct ox_memory memory;
    ox_memory_read(root, &memory);
    CHECK(memory.total == 16 * OX_GIB && memory.available == 8 * OX_GIB);
    CHECK(memory.limit == limit);
    CHECK(memory.usable == usable);
}

static void test_without_limits(void) {
    begin("plain");
    put_machine("0::/user.slice\n");
    expect(UINT64_MAX, 8 * OX_GIB);
    put("/sys/fs/cgroup/user.slice", "memory.max", "max\n");
    put("/sys/fs/cgroup/user.slice", "memory.current", "1073741824\n");
    expect(UINT64_MAX, 8 * OX_GIB);
}

/* The smallest rest of all groups up to the root counts; cached files and entries of folders do not count as used. */
static void test_version_2(void) {
    begin("second");
    put_machine("0::/outer/inner\n");
    put("/sys/fs/cgroup/outer/inner", "memory.max", "6442450944\n");
    expect(6 * OX_GIB, 8 * OX_GIB);
    put("/sys/fs/cgroup/outer/inner", "memory.current", "3221225472\n");
    expect(6 * OX_GIB, 3 * OX_GIB);
    put("/sys/fs/cgroup/outer/inner", "memory.stat",
        "anon 1073741824\nfile 2147483648\nworkingset_refault_inactive_file 7\ninactive_file 1073741824\n"
        "active_file 536870912\n");
    expect(6 * OX_GIB, 4 * OX_GIB + OX_GIB / 2);
    put("/sys/fs/cgroup/outer/inner", "memory.stat",
        "inactive_file 1073741824\nactive_file 536870912\nslab_reclaimable 268435456\n");
    expect(6 * OX_GIB, 4 * OX_GIB + 3 * OX_GIB / 4);
    put("/sys/fs/cgroup/outer", "memory.max", "4294967296\n");
    put("/sys/fs/cgroup/outer", "memory.current", "3221225472\n");
    expect(4 * OX_GIB, OX_GIB);
    put("/sys/fs/cgroup/outer", "memory.current", "5368709120\n"); /* a limit that was lowered meanwhile */
    expect(4 * OX_GIB, 0);
}

/* A container sees the host's path, which is not there, and its own group as the root. */
static void test_version_1(void) {
    begin("first");
    put_machine("12:cpuset:/docker/abc\n5:memory:/docker/abc\n1:name=systemd:/docker/abc\n");
    put("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory", "memory.usage_in_bytes", "1073741824\n");
    expect(UINT64_C(9223372036854771712), 8 * OX_GIB);
    put("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "2147483648\n");
    put("/sys/fs/cgroup/memory", "memory.stat", "inactive_file 1\ntotal_inactive_file 536870912\n");
    expect(2 * OX_GIB, OX_GIB + OX_GIB / 2);
}

static void expect_bound(uint64_t usable, enum ox_memory_bound bound) {
    struct ox_memory memory;
    ox_memory_read(root, &memory);
    CHECK(memory.usable == usable && memory.bound == bound);
}

/* The limits of the process count what it has already mapped. */
static void test_process_limits(void) {
    begin("process");
    put_machine("0::/own\n");
    put("/proc/self", "status", "Name:\tcat\nVmPeak:\t 9999999 kB\nVmSize:\t 1048576 kB\nVmData:\t  524288 kB\n");
    put("/proc/self", "limits", "Limit                     Soft Limit           Hard Limit           Units     \n"
                                "Max data size             unlimited            unlimited            bytes     \n"
                                "Max address space         unlimited            unlimited            bytes     \n");
    expect_bound(8 * OX_GIB, OX_MEMORY_MACHINE);
    put("/proc/self", "limits", "Max data size             unlimited            unlimited            bytes     \n"
                                "Max address space         4294967296           unlimited            bytes     \n");
    expect_bound(3 * OX_GIB, OX_MEMORY_ADDRESSES);
    put("/proc/self", "limits", "Max data size             2147483648           unlimited            bytes     \n"
                                "Max address space         4294967296           unlimited            bytes     \n");
    expect_bound(OX_GIB + OX_GIB / 2, OX_MEMORY_DATA);
    put("/sys/fs/cgroup/own", "memory.max", "1073741824\n");
    put("/sys/fs/cgroup/own", "memory.current", "0\n");
    expect_bound(OX_GIB, OX_MEMORY_GROUP);
}

static void test_this_machine(void) {
    struct ox_memory memory;
    ox_memory_read("", &memory);
    CHECK(memory.available > 0 && memory.usable <= memory.available);
    begin("nothing");
    ox_memory_read(root, &memory); /* where nothing can be read, what the C library says */
    CHECK(memory.total == 0 && memory.available > 0 && memory.usable == memory.available);
}

/* Folders whose files are memory, also below an overlay and through a link, and of a path that does not exist yet. */
static void test_files(void) {
    struct statfs files;
    CHECK(ox_memory_of_files("/proc") == NULL && ox_memory_of_files("") == ox_memory_of_files("."));
    if (statfs("/dev/shm", &files) == 0 && files.f_type == TMPFS_MAGIC) {
        CHECK(strcmp(ox_memory_of_files("/dev/shm"), "tmpfs") == 0);
        CHECK(strcmp(ox_memory_of_files("/dev/shm/not/there/yet"), "tmpfs") == 0);
        CHECK(symlink("/dev/shm", test_path("link")) == 0);
        CHECK(strcmp(ox_memory_of_files(test_path("link")), "tmpfs") == 0);
    }
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        printf("no mounts of its own: overlay and ramfs are not tried\n");
        return;
    }
    char options[3 * OX_PATH_BYTES];
    const char *const top = files_make_folder("top"), *const disk = files_make_folder("disk");
    CHECK(mount("ramfs", top, "ramfs", 0, NULL) == 0);
    CHECK(strcmp(ox_memory_of_files(top), "ramfs") == 0);
    files_make_folder("top/upper");
    files_make_folder("top/work");
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s/upper,workdir=%s/work", disk, top, top);
    const char *const merged = files_make_folder("merged");
    if (mount("overlay", merged, "overlay", 0, options) == 0) {
        CHECK(strcmp(ox_memory_of_files(merged), "ramfs") == 0);
        CHECK(umount(merged) == 0);
    }
    CHECK(umount(top) == 0);
}

/* What was held and given back counts until it is forgotten; what another program held before it became this one does
 * not. */
static void test_peak(const char *self) {
    enum { BYTES = 64 << 20, NEAR = 16 << 20 };
    void *const block = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) {
        CHECK(false);
        return;
    }
    memset(block, 1, BYTES);
    const pid_t child = fork();
    if (child == 0) {
        execl(self, self, "peak", NULL);
        _exit(2);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(munmap(block, BYTES) == 0);
    const uint64_t before = ox_memory_peak();
    CHECK(before >= BYTES);
    ox_memory_forget_peak();
    CHECK(ox_memory_peak() < before - BYTES + NEAR);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        return ox_memory_peak() > 0 && ox_memory_peak() < 48 * OX_MIB ? 0 : 1;
    }
    test_peak(argv[0]);
    test_without_limits();
    test_version_2();
    test_version_1();
    test_process_limits();
    test_this_machine();
    test_files();
    return test_end();
}
