/* The last save of a run whose folder takes none, where only memory has the state: it goes to another folder. */
#include "engine/run/trainer_internal.h"

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { PLACES = 2, NAMES = 100, MEMORY_FILES = 0x01021994 /* TMPFS_MAGIC */ };

/* Whether what is written there stays in memory, which the run has not counted. The run's own file system may. */
static bool is_memory(const char *folder, const char *output_dir) {
    struct statfs files;
    struct stat here, own;
    const bool same = stat(folder, &here) == 0 && stat(output_dir, &own) == 0 && here.st_dev == own.st_dev;
    return !same && (statfs(folder, &files) != 0 || files.f_type == MEMORY_FILES);
}

/* Writes the folder that holds `path` to `folder`, and returns its name there. */
static const char *split(const char *path, char *folder) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') {
        begin--;
    }
    snprintf(folder, OX_PATH_BYTES, "%.*s", begin == 0 ? 1 : (int)begin, begin == 0 ? "." : path);
    return path + begin;
}

/* Writes place `idx` for a checkpoint to `path`, a name that nothing has yet; false if it cannot take one. */
static bool place_at(const struct ox_trainer *trainer, int idx, char *path) {
    const char *const output = trainer->config.output_dir, *const temporary = getenv("TMPDIR");
    char folder[OX_PATH_BYTES];
    const char *const name = split(output, folder);
    uint64_t bytes = 0;
    if (idx > 0) {
        snprintf(folder, sizeof folder, "%s", temporary != NULL ? temporary : "/tmp");
    }
    const bool sized = ox_checkpoint_bytes(ox_trainer_model(trainer), trainer->engine_config.state.kind,
                                           OX_DTYPE_F32, &bytes) == OX_OK;
    if (!sized || access(folder, W_OK | X_OK) != 0 || is_memory(folder, output) ||
        ox_checkpoint_check_space(folder, bytes) != OX_OK) {
        return false;
    }
    for (int i = 1; i <= NAMES; i++) {
        char number[16] = "";
        if (i > 1) {
            snprintf(number, sizeof number, "-%d", i);
        }
        const int length = snprintf(path, OX_PATH_BYTES, "%s/%.*s.rescue%s", folder, (int)strcspn(name, "/"), name,
                                    number);
        if (length >= OX_PATH_BYTES) {
            return false;
        }
        struct stat info;
        if (lstat(path, &info) != 0 && errno == ENOENT) {
            return true;
        }
    }
    return false;
}

bool ox_trainer_find_elsewhere(const struct ox_trainer *trainer, char *path) {
    for (int i = 0; i < PLACES && trainer->team == NULL; i++) {
        if (place_at(trainer, i, path)) {
            return true;
        }
    }
    return false;
}

enum ox_status ox_trainer_save_elsewhere(struct ox_trainer *trainer, const struct ox_checkpoint_save *how, char *path) {
    enum ox_status status = ox_fail(OX_E_IO, "there is no other place");
    for (int i = 0; i < PLACES && trainer->team == NULL && status != OX_OK; i++) {
        struct ox_checkpoint_save there = *how;
        char folder[OX_PATH_BYTES], name[64];
        there.output_dir = folder;
        if (!place_at(trainer, i, folder) || mkdir(folder, 0777) != 0) {
            continue;
        }
        snprintf(name, sizeof name, "checkpoint-%" PRIu64, trainer->state.step);
        status = ox_path_join(folder, name, path);
        OX_TRY(status, ox_checkpoint_write(trainer->engine, &trainer->state, &there));
        if (status != OX_OK) {
            ox_log(OX_LOG_WARN, "%s: takes no checkpoint either: %s", folder, ox_error_text());
            rmdir(folder);
        }
    }
    return status;
}
