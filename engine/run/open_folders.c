/* Folders of a run that anyone on the machine may write to. */
#include "engine/run/trainer_internal.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Looks at a folder, or at the one in which it will be made. Where the sticky bit is set, others can neither remove nor
 * rename what is not theirs. */
static void look_at(const char *flag, const char *path) {
    char folder[OX_PATH_BYTES];
    struct stat info;
    const size_t existing = ox_path_existing(path);
    snprintf(folder, sizeof folder, "%.*s", (int)existing, existing > 0 ? path : ".");
    if (stat(folder[0] != '\0' ? folder : ".", &info) == 0 && (info.st_mode & S_IWOTH) != 0 &&
        (info.st_mode & S_ISVTX) == 0) {
        ox_log(OX_LOG_WARN, "%s %s: anyone on this machine may write to %s and replace what the run keeps there; `chmod "
               "o-w %s` ends that", flag, path, folder[0] != '\0' ? folder : "the working folder",
               folder[0] != '\0' ? folder : ".");
    }
}

void ox_trainer_warn_open_folders(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    if (ox_trainer_leads(trainer)) {
        look_at("--output", config->output_dir);
    }
    for (uint32_t i = 0; i < config->nvme_count; i++) {
        look_at("--nvme", config->nvme[i].path);
    }
}
