/* A drive's file is opened, allocated, flushed and removed while each call fails in turn, with each error that makes a
 * difference; and on kernels and file systems that report direct I/O in other ways. What fails is told, and leaves
 * nothing open and, of a new file, nothing behind (tests/kit/calls.h). */
#include "base/bytes.h"
#include "base/file.h"
#include "nvme/io_drive.h"
#include "tests/kit/calls.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

/* ---- what kernel and file system say -------------------------------------------------------------------- */

static struct {
    bool set;
    const char *release; /* of the kernel; NULL: it says nothing */
    bool knows;          /* statx knows of direct I/O */
    uint32_t offset_align, mem_align;
} says;

int uname(struct utsname *name) {
    if (says.set && says.release == NULL) {
        errno = EFAULT;
        return -1;
    }
    const int result = (int)syscall(SYS_uname, name);
    if (says.set) {
        snprintf(name->release, sizeof name->release, "%s", says.release);
    }
    return result;
}

int statx(int fd, const char *path, int flags, unsigned mask, struct statx *info) {
    const int result = (int)syscall(SYS_statx, fd, path, flags, mask, info);
    if (says.set) {
        info->stx_mask = says.knows ? info->stx_mask | STATX_DIOALIGN : info->stx_mask & ~(unsigned)STATX_DIOALIGN;
        info->stx_dio_offset_align = says.offset_align;
        info->stx_dio_mem_align = says.mem_align;
    }
    return result;
}

static const char *path, *folder;

static void check_said(const char *release, bool knows, uint32_t offset_align, uint32_t mem_align, bool direct,
                       uint32_t align_bytes) {
    struct ox_drive *drive = NULL;
    struct ox_drive_info info;
    says.release = release;
    says.knows = knows;
    says.offset_align = offset_align;
    says.mem_align = mem_align;
    says.set = true;
    REQUIRE_OK(ox_drive_file_open(NULL, path, OX_DRIVE_CREATE, &drive));
    says.set = false;
    ox_drive_file_info(drive, &info);
    CHECK(info.direct == direct && info.align_bytes == align_bytes && (info.note[0] == '\0') == direct);
    ox_drive_file_close(drive);
    REQUIRE_OK(ox_drive_file_remove(NULL, path));
}

static void test_said(void) {
    struct ox_drive *drive = NULL;
    struct ox_drive_info info;
    REQUIRE_OK(ox_drive_file_open(NULL, path, OX_DRIVE_CREATE, &drive));
    ox_drive_file_info(drive, &info);
    ox_drive_file_close(drive);
    REQUIRE_OK(ox_drive_file_remove(NULL, path));
    if (!info.direct) {
        printf("not tried: what kernels say of direct I/O, which this file system does not have\n");
        return;
    }
    /* Before 6.1 no kernel said; from then on one that says nothing means that there is none. */
    static const char *const old[] = {"6.0.9", "5.19.0", NULL, "of no number"};
    static const char *const new[] = {"6.1.0", "6.2.1", "7.0"};
    for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
        check_said(old[i], false, 0, 0, true, OX_IO_ALIGN_BYTES);
    }
    for (size_t i = 0; i < sizeof new / sizeof *new; i++) {
        check_said(new[i], false, 0, 0, false, OX_IO_ALIGN_BYTES);
    }
    check_said("6.1.0", true, 0, 0, false, OX_IO_ALIGN_BYTES);
    check_said("6.1.0", true, 2 * OX_IO_ALIGN_BYTES, 4, false, OX_IO_ALIGN_BYTES);
    check_said("6.1.0", true, 512, 2 * OX_IO_ALIGN_BYTES, false, OX_IO_ALIGN_BYTES);
    check_said("6.1.0", true, 512, 4, true, 512);
    check_said("6.1.0", true, 512, 1024, true, 1024);
}

/* ---- calls that fail --------------------------------------------------------------------------------------- */

enum { BYTES = 3 * OX_IO_ALIGN_BYTES };

static unsigned open_files(void) {
    return files_count("/proc/self/fd", "", "");
}

static enum ox_status use(const char *name, enum ox_drive_mode mode) {
    struct ox_drive *drive = NULL;
    enum ox_status status = ox_drive_file_open(NULL, name, mode, &drive);
    CHECK((status == OX_OK) == (drive != NULL));
    if (drive == NULL) {
        calls_arm(false);
        CHECK(mode != OX_DRIVE_CREATE || !files_exist(name));
        return status;
    }
    status = ox_drive_file_allocate(drive, BYTES);
    OX_THEN(status, ox_drive_file_flush(drive));
    ox_drive_file_close(drive);
    OX_THEN(status, mode == OX_DRIVE_UNNAMED ? OX_OK : ox_drive_file_remove(NULL, name));
    return status;
}

static uint64_t tried, told;

static bool try_one(enum ox_drive_mode mode, const struct call_rule *rule) {
    const int failures = test_failure_count;
    const unsigned files = open_files();
    unlink(path);
    if (mode == OX_DRIVE_OPEN) {
        files_write_text(path, "");
    }
    calls_set(rule);
    calls_arm(true);
    const enum ox_status status = use(mode == OX_DRIVE_UNNAMED ? folder : path, mode);
    calls_arm(false);
    const bool hit = calls_seen->hits > 0;
    CHECK(open_files() == files && (status == OX_OK || (hit && ox_error_text()[0] != '\0')));
    CHECK(files_count(folder, "offload-", "") == 0);
    if (test_failure_count > failures) {
        printf("mode %d, call %llu of %s%s, error %d: %s %s\n", (int)mode, (unsigned long long)rule->idx,
               call_names[rule->call], rule->persistent ? " and all later" : "", rule->error, ox_status_name(status),
               status != OX_OK ? ox_error_text() : "");
    }
    tried += hit;
    told += status != OX_OK;
    return hit;
}

static void test_calls(void) {
    static const int errors[] = {EIO, EINVAL, EEXIST, ENOENT, EOPNOTSUPP, EISDIR, ENOTDIR, ENOSPC, EDQUOT};
    static const enum ox_drive_mode modes[] = {OX_DRIVE_CREATE, OX_DRIVE_OPEN, OX_DRIVE_UNNAMED};
    for (size_t at = 0; at < sizeof modes / sizeof *modes * (sizeof errors / sizeof *errors) * CALL_COUNT * 2; at++) {
        const enum ox_drive_mode mode = modes[at / 2 / CALL_COUNT / (sizeof errors / sizeof *errors)];
        struct call_rule rule = {.call = (enum call)(at / 2 % CALL_COUNT), .fault = CALL_FAILS,
                                 .persistent = at % 2 != 0,
                                 .error = errors[at / 2 / CALL_COUNT % (sizeof errors / sizeof *errors)]};
        if (rule.call == CALL_MEMORY && !calls_memory_spare_json()) {
            continue;
        }
        while (try_one(mode, &rule) && !rule.persistent && test_failure_count < 10) {
            rule.idx++;
        }
    }
}

/* A process may be forbidden large files. */
static void test_limit(void) {
    struct rlimit before;
    struct ox_drive *drive = NULL;
    REQUIRE_OK(getrlimit(RLIMIT_FSIZE, &before) == 0 ? OX_OK : OX_E_IO);
    REQUIRE_OK(ox_drive_file_open(NULL, path, OX_DRIVE_CREATE, &drive));
    for (int fits = 0; fits < 2; fits++) {
        const struct rlimit limit = {BYTES - 1 + (rlim_t)fits, before.rlim_max};
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        const enum ox_status status = ox_drive_file_allocate(drive, BYTES);
        CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
        CHECK(fits ? status == OX_OK : status == OX_E_CONFIG && strstr(ox_error_text(), "raise `ulimit -f`") != NULL);
    }
    ox_drive_file_close(drive);
    REQUIRE_OK(ox_drive_file_remove(NULL, path));
}

/* Paths in the working folder, and too long. */
static void test_paths(void) {
    char longest[OX_PATH_BYTES + 1];
    struct ox_drive *drive = NULL;
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    CHECK(ox_drive_file_open(NULL, longest, OX_DRIVE_CREATE, &drive) == OX_E_CONFIG && drive == NULL);
    CHECK(chdir(folder) == 0);
    CHECK(use("drive-here", OX_DRIVE_CREATE) == OX_OK);
    CHECK(chdir("/") == 0);
}

int main(void) {
    calls_options.skips_sync = true;
    folder = files_make_folder("drive");
    path = test_pathf("%s/drive-0", folder);
    test_said();
    test_limit();
    for (int refuses = 0; refuses < 2; refuses++) {
        calls_options.refuses_allocate = refuses != 0;
        test_calls();
    }
    calls_options.refuses_allocate = false;
    test_paths();
    printf("%llu calls failed, %llu times told\n", (unsigned long long)tried, (unsigned long long)told);
    CHECK(tried > 300 && told > 200);
    return test_end();
}
