/* Warns of inputs that every user of the machine may change, and tells which process holds a lock. */
#include "base/file.h"

#include "base/log.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

enum {
    WARNINGS_MAX = 64, /* paths; more warnings would bury the other messages */
    ENTRIES_CHECKED_MAX = 10000,
};

static bool is_world_writable(const struct stat *info) {
    return (info->st_mode & S_IWOTH) != 0 && !(S_ISDIR(info->st_mode) && (info->st_mode & S_ISVTX) != 0);
}

/* Finds what makes an input changeable by every user, and writes its path to `shared`: the input itself, a file in it,
 * or the folder that holds it. */
static bool find_world_writable(const char *path, const struct stat *info, char *shared) {
    struct stat other;
    if (is_world_writable(info)) {
        snprintf(shared, OX_PATH_BYTES, "%s", path);
        return true;
    }
    if (!S_ISDIR(info->st_mode)) {
        return ox_path_parent(path, shared) == OX_OK && stat(shared, &other) == 0 && is_world_writable(&other);
    }
    DIR *const folder = opendir(path);
    bool found = false;
    for (int i = 0; folder != NULL && !found && i < ENTRIES_CHECKED_MAX; i++) {
        const struct dirent *const entry = readdir(folder);
        if (entry == NULL) {
            break;
        }
        found = fstatat(dirfd(folder), entry->d_name, &other, 0) == 0 && S_ISREG(other.st_mode) &&
                is_world_writable(&other) && ox_path_join(path, entry->d_name, shared) == OX_OK;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return found;
}

void ox_path_warn_shared(const char *path) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct seen_file {
        dev_t device;
        ino_t inode;
    } seen[WARNINGS_MAX];
    static uint32_t seen_count;
    struct stat info;
    char shared[OX_PATH_BYTES];
    if (stat(path, &info) != 0 || !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)) ||
        !find_world_writable(path, &info, shared)) {
        return;
    }
    pthread_mutex_lock(&lock);
    bool known = seen_count == WARNINGS_MAX;
    for (uint32_t i = 0; i < seen_count; i++) {
        known = known || (seen[i].device == info.st_dev && seen[i].inode == info.st_ino);
    }
    if (!known) {
        seen[seen_count++] = (struct seen_file){info.st_dev, info.st_ino};
    }
    pthread_mutex_unlock(&lock);
    if (!known) {
        ox_log(OX_LOG_WARN,
               "%s: any user of this machine can change it, because %s is writable by all; run `chmod o-w` on that",
               path, shared);
    }
}

long ox_file_lock_holder(int fd) {
    struct stat info;
    FILE *const locks = fopen("/proc/locks", "re");
    if (locks == NULL || fstat(fd, &info) != 0) {
        if (locks != NULL) {
            fclose(locks);
        }
        return 0;
    }
    long holder = 0;
    char line[256];
    while (holder == 0 && fgets(line, sizeof line, locks) != NULL) {
        long pid = 0;
        unsigned dev_major = 0, dev_minor = 0;
        unsigned long long inode = 0;
        if (sscanf(line, "%*d: FLOCK %*s %*s %ld %x:%x:%llu", &pid, &dev_major, &dev_minor, &inode) == 4 &&
            pid > 0 && inode == info.st_ino && dev_major == major(info.st_dev) &&
            dev_minor == minor(info.st_dev)) {
            holder = pid;
        }
    }
    fclose(locks);
    return holder;
}
