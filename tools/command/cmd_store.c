/* `offload store remove`: deletes the stores that runs have left in a folder of --nvme. */
#include "tools/command/cmd.h"

#include "base/bytes.h"
#include "base/file.h"
#include "engine/run/trainer.h"
#include "nvme/store.h"

#include <dirent.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

enum { FOLDERS_MAX = 65 };

/* The folder, and those of processes below it, as far as they hold a store. */
struct stores {
    char folders[FOLDERS_MAX][OX_PATH_BYTES];
    uint32_t count;
};

static void add(struct stores *stores, const char *folder) {
    if (stores->count < FOLDERS_MAX && ox_store_exists(folder)) {
        snprintf(stores->folders[stores->count++], OX_PATH_BYTES, "%s", folder);
    }
}

static enum ox_status find(const char *folder, struct stores *out) {
    char path[OX_PATH_BYTES];
    DIR *const entries = opendir(folder);
    if (entries == NULL) {
        return ox_fail(OX_E_CONFIG, "%s: is not a folder that can be listed; name one that `offload train --nvme` was "
                       "given", folder);
    }
    add(out, folder);
    enum ox_status status = OX_OK;
    for (const char *name = ""; status == OX_OK && name != NULL;) {
        unsigned idx = 0, count = 0;
        status = ox_folder_next(entries, folder, &name);
        if (status == OX_OK && name != NULL && sscanf(name, "process-%u-of-%u", &idx, &count) == 2 &&
            ox_path_join(folder, name, path) == OX_OK) {
            add(out, path);
        }
    }
    closedir(entries);
    return status != OX_OK || out->count > 0
               ? status
               : ox_fail(OX_E_CONFIG, "%s: holds no store; name one that `offload train --nvme` was given", folder);
}

/* What files of the store take in the folder. */
static uint64_t store_bytes(const char *folder) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < OX_CONFIG_NVME_MAX; i++) {
        char name[64], path[OX_PATH_BYTES];
        struct stat info;
        snprintf(name, sizeof name, "offload-store-%" PRIu32 ".ox", i);
        if (ox_path_join(folder, name, path) == OX_OK && stat(path, &info) == 0) {
            sum += (uint64_t)info.st_blocks * 512;
        }
    }
    return sum;
}

int ox_cmd_store(const struct ox_config *config) {
    static struct stores stores; /* hundreds of kilobytes */
    if (config->tool.action[0] == '\0' || config->files.run[0] == '\0') {
        return ox_cmd_exit(ox_fail(OX_E_CONFIG, "%s is missing; run `offload store remove PATH` with a folder of a "
                                   "run's --nvme", config->tool.action[0] == '\0' ? "remove" : "PATH"));
    }
    enum ox_status status = find(config->files.run, &stores);
    const char *folders[FOLDERS_MAX];
    for (uint32_t i = 0; i < stores.count; i++) {
        folders[i] = stores.folders[i];
    }
    OX_THEN(status, ox_store_check_unused(folders, stores.count)); /* of all of them, before any is removed */
    for (uint32_t i = 0; i < stores.count && status == OX_OK; i++) {
        const uint64_t bytes = store_bytes(folders[i]);
        char size[OX_SIZE_TEXT_BYTES];
        status = ox_store_remove(&folders[i], 1);
        OX_THEN(status, ox_run_forget_finished(folders[i]));
        if (status == OX_OK) {
            printf("removed the store in %s: %s\n", folders[i], ox_size_text(bytes, size));
        }
    }
    return ox_cmd_exit(status);
}
