#include "tests/kit/files.h"

#include "base/file.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

__attribute__((noreturn)) static void give_up(const char *what, const char *path) {
    printf("%s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

/* ---- paths --------------------------------------------------------------------------------------------- */

/* All paths that were asked for, each with its NUL. */
enum { KEPT_BYTES = 1 << 20 };
static char kept[KEPT_BYTES];
static size_t kept_bytes;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *keep(const char *path) {
    const size_t bytes = strlen(path) + 1;
    pthread_mutex_lock(&kept_lock);
    size_t at = 0;
    while (at < kept_bytes && strcmp(kept + at, path) != 0) {
        at += strlen(kept + at) + 1;
    }
    if (at == kept_bytes) {
        if (bytes > KEPT_BYTES - kept_bytes) {
            printf("%s: the test asks for too many paths\n", path);
            exit(1);
        }
        memcpy(kept + at, path, bytes);
        kept_bytes += bytes;
    }
    pthread_mutex_unlock(&kept_lock);
    return kept + at;
}

const char *test_path(const char *name) {
    char path[OX_PATH_BYTES];
    if (name[0] == '/') {
        return keep(name);
    }
    const int length = snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    if (length < 0 || (size_t)length >= sizeof path) {
        printf("%s: the path is too long\n", name);
        exit(1);
    }
    return keep(path);
}

static void print_path(char path[OX_PATH_BYTES], const char *format, va_list values) {
    const int length = vsnprintf(path, OX_PATH_BYTES, format, values);
    if (length < 0 || length >= OX_PATH_BYTES) {
        printf("%s: the path is too long\n", format);
        exit(1);
    }
}

const char *test_pathf(const char *format, ...) {
    char name[OX_PATH_BYTES];
    va_list values;
    va_start(values, format);
    print_path(name, format, values);
    va_end(values);
    return test_path(name);
}

const char *plain_pathf(const char *format, ...) {
    char path[OX_PATH_BYTES];
    va_list values;
    va_start(values, format);
    print_path(path, format, values);
    va_end(values);
    return keep(path);
}

/* ---- one file ------------------------------------------------------------------------------------------ */

const char *files_write(const char *name, const void *data, size_t bytes) {
    const char *const path = test_path(name);
    FILE *const file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) {
        give_up("cannot write", path);
    }
    return path;
}

const char *files_write_text(const char *name, const char *text) {
    return files_write(name, text, strlen(text));
}

char *files_read(const char *name, size_t *bytes) {
    const char *const path = test_path(name);
    const uint64_t size = files_size(path);
    FILE *const file = fopen(path, "rb");
    char *const data = malloc(size + 1);
    if (file == NULL || data == NULL || fread(data, 1, size, file) != size) {
        give_up("cannot read", path);
    }
    fclose(file);
    data[size] = '\0';
    if (bytes != NULL) {
        *bytes = size;
    }
    return data;
}

uint64_t files_size(const char *name) {
    const char *const path = test_path(name);
    struct stat info;
    if (stat(path, &info) != 0) {
        give_up("cannot examine", path);
    }
    return (uint64_t)info.st_size;
}

/* The descriptor of a file, and in *at the offset from its begin. */
static int open_at(const char *path, int64_t *at) {
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    *at += *at < 0 ? (int64_t)files_size(path) : 0;
    if (fd < 0) {
        give_up("cannot open", path);
    }
    return fd;
}

void files_patch(const char *name, int64_t at, const void *data, size_t bytes) {
    const char *const path = test_path(name);
    const int fd = open_at(path, &at);
    if (pwrite(fd, data, bytes, at) != (ssize_t)bytes || close(fd) != 0) {
        give_up("cannot patch", path);
    }
}

void files_flip(const char *name, int64_t at) {
    const char *const path = test_path(name);
    const int fd = open_at(path, &at);
    unsigned char byte = 0;
    const bool is_read = pread(fd, &byte, 1, at) == 1;
    byte ^= 0x10;
    if (!is_read || pwrite(fd, &byte, 1, at) != 1 || close(fd) != 0) {
        give_up("cannot flip a bit of", path);
    }
}

void files_replace_text(const char *name, const char *from, const char *to) {
    size_t bytes = 0;
    char *const data = files_read(name, &bytes);
    const size_t from_bytes = strlen(from), to_bytes = strlen(to);
    const char *const found = memmem(data, bytes, from, from_bytes);
    char *const changed = malloc(bytes + to_bytes);
    if (found == NULL || changed == NULL) {
        errno = ENOMSG;
        give_up(from, test_path(name));
    }
    const size_t before = (size_t)(found - data), after = bytes - before - from_bytes;
    memcpy(changed, data, before);
    memcpy(changed + before, to, to_bytes);
    memcpy(changed + before + to_bytes, found + from_bytes, after);
    files_write(name, changed, before + to_bytes + after);
    free(changed);
    free(data);
}

/* ---- looking ------------------------------------------------------------------------------------------- */

bool files_exist(const char *name) {
    struct stat info;
    return lstat(test_path(name), &info) == 0;
}

bool files_same(const char *a, const char *b) {
    size_t bytes[2] = {0, 0}, at = 0;
    char *const data[2] = {files_read(a, &bytes[0]), files_read(b, &bytes[1])};
    while (at < bytes[0] && at < bytes[1] && data[0][at] == data[1][at]) {
        at++;
    }
    const bool same = at == bytes[0] && at == bytes[1];
    if (!same) {
        printf("%s (%zu bytes) and %s (%zu bytes) part at byte %zu\n", a, bytes[0], b, bytes[1], at);
    }
    free(data[0]);
    free(data[1]);
    return same;
}

static bool is_named(const char *name, const char *begin, const char *end) {
    const size_t length = strlen(name), end_length = strlen(end);
    return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strncmp(name, begin, strlen(begin)) == 0 &&
           length >= end_length && strcmp(name + length - end_length, end) == 0;
}

/* Counts the entries; `last` may be NULL, else *last is the path of one of them. */
static unsigned list(const char *folder, const char *begin, const char *end, const char **last) {
    const char *const path = test_path(folder);
    DIR *const entries = opendir(path);
    unsigned count = 0;
    for (const struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        if (is_named(entry->d_name, begin, end)) {
            count++;
            if (last != NULL) {
                *last = test_pathf("%s/%s", path, entry->d_name);
            }
        }
    }
    if (entries != NULL) {
        closedir(entries);
    }
    return count;
}

bool files_same_folders(const char *a, const char *b) {
    const unsigned counts[2] = {files_count(a, "", ""), files_count(b, "", "")};
    DIR *const entries = opendir(test_path(a));
    bool same = entries != NULL && counts[0] == counts[1];
    if (!same) {
        printf("%s has %u files and %s has %u\n", a, counts[0], b, counts[1]);
    }
    for (const struct dirent *entry; same && (entry = readdir(entries)) != NULL;) {
        char paths[2][PATH_MAX];
        if (is_named(entry->d_name, "", "")) {
            snprintf(paths[0], sizeof paths[0], "%s/%s", a, entry->d_name);
            snprintf(paths[1], sizeof paths[1], "%s/%s", b, entry->d_name);
            same = files_exist(paths[1]) && files_same(paths[0], paths[1]);
        }
    }
    if (entries != NULL) {
        closedir(entries);
    }
    return same;
}

unsigned files_count(const char *folder, const char *begin, const char *end) {
    return list(folder, begin, end, NULL);
}

const char *files_find(const char *folder, const char *begin, const char *end) {
    const char *found = NULL;
    const unsigned count = list(folder, begin, end, &found);
    if (count != 1) {
        printf("%s: %u entries are named %s*%s\n", folder, count, begin, end);
        exit(1);
    }
    return found;
}

/* ---- folders ------------------------------------------------------------------------------------------- */

const char *files_make_folder(const char *name) {
    const char *const path = test_path(name);
    REQUIRE_OK(ox_folder_make(path));
    return path;
}

void files_remove_folder(const char *name) {
    REQUIRE_OK(ox_folder_remove(test_path(name)));
}

void files_copy_folder(const char *from, const char *to) {
    char *const words[] = {(char[]){"cp"}, (char[]){"-R"}, strdup(test_path(from)), strdup(test_path(to)), NULL};
    const pid_t child = words[2] == NULL || words[3] == NULL ? -1 : fork();
    if (child == 0) {
        execvp("cp", words);
        _exit(126);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        give_up("cannot copy", from);
    }
    free(words[2]);
    free(words[3]);
}

bool files_run_shell(const char *words) {
    int status = 1;
    const pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", words, (char *)NULL);
        _exit(127);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* ---- a disk of its own --------------------------------------------------------------------------------- */

static bool write_line(const char *path, const char *line) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool written = fd >= 0 && write(fd, line, strlen(line)) == (ssize_t)strlen(line);
    if (fd >= 0) {
        close(fd);
    }
    return written;
}

/* A namespace of mounts: as root, or as the root of a user namespace. */
static bool may_mount(void) {
    char users[64], groups[64];
    snprintf(users, sizeof users, "0 %ld 1", (long)geteuid());
    snprintf(groups, sizeof groups, "0 %ld 1", (long)getegid());
    if (geteuid() == 0) {
        if (unshare(CLONE_NEWNS) != 0) {
            return false;
        }
    } else if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !write_line("/proc/self/setgroups", "deny") ||
               !write_line("/proc/self/uid_map", users) || !write_line("/proc/self/gid_map", groups)) {
        return false;
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

bool files_mount(const char *name, const char *options) {
    static bool is_apart;
    is_apart = is_apart || may_mount();
    return is_apart && mount("tmpfs", test_path(name), "tmpfs", 0, options) == 0;
}

static bool mount_image(const char *name) {
    char words[1024];
    snprintf(words, sizeof words, "mount -o loop '%s/image' '%s' >/dev/null 2>&1", test_pathf("%s-disk", name),
             test_path(name));
    return files_run_shell(words);
}

bool files_mount_image(const char *name, const char *type, unsigned mib) {
    char disk[64], size[32], words[1024];
    snprintf(disk, sizeof disk, "%s-disk", name);
    snprintf(size, sizeof size, "size=%um", mib + 16);
    files_make_folder(disk);
    files_make_folder(name);
    if (!files_mount(disk, size)) {
        return false;
    }
    snprintf(words, sizeof words, "exec >/dev/null 2>&1; truncate -s %uM '%s/image' && mkfs.%s -q '%s/image'", mib,
             test_path(disk), type, test_path(disk));
    if (!files_run_shell(words) || !mount_image(name)) {
        umount2(test_path(disk), MNT_DETACH);
        return false;
    }
    return true;
}

void files_mount_again(const char *name) {
    enum { TRIES = 100, TRY_NS = 100000000 };
    int result = umount2(test_path(name), 0);
    /* What a process had open in io_uring is closed some time after its end. */
    for (int i = 0; i < TRIES && result != 0 && errno == EBUSY; i++) {
        nanosleep(&(struct timespec){.tv_nsec = TRY_NS}, NULL);
        result = umount2(test_path(name), 0);
    }
    if (result != 0 || !mount_image(name)) {
        give_up("cannot mount again", name);
    }
}

void files_unmount_image(const char *name) {
    if (umount2(test_path(name), MNT_DETACH) != 0 || umount2(test_pathf("%s-disk", name), MNT_DETACH) != 0) {
        give_up("cannot unmount", name);
    }
}
