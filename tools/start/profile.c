/* Profiles of machines: which one counts, where it is found by its name, and what a plan takes from it. */
#include "tools/start/profile.h"

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"
#include "base/name/name.h"
#include "engine/run/predict.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The word that stands for nominal rates in the place of a profile. */
static const char BUILTIN[] = "builtin";

/* Writes the path of a file or folder below the user's folder that `variable` names, else below `standard` in the home
 * folder; false, and "", if there is neither or the path is too long. */
static bool user_path(const char *variable, const char *standard, const char *name, char path[OX_CONFIG_TEXT_BYTES]) {
    const char *const folder = getenv(variable), *const home = getenv("HOME");
    const bool given = folder != NULL && folder[0] == '/';
    const bool any = given || (home != NULL && home[0] == '/');
    const int length = any ? snprintf(path, OX_CONFIG_TEXT_BYTES, "%s%s/%s", given ? folder : home,
                                      given ? "" : standard, name) : -1;
    if (length < 0 || length >= OX_CONFIG_TEXT_BYTES) {
        path[0] = '\0';
    }
    return path[0] != '\0';
}

/* ---- names ------------------------------------------------------------------------------------------ */

static const char ENDING[] = ".json";

/* Writes the folder `idx` that may have the profiles that come with the program: in the tree that built it (build/ or a
 * folder of it, as that of a sanitizer), beside the program, or where it is usually installed, for a program that was
 * copied elsewhere. False after the last one. */
static bool profile_folder(unsigned idx, char path[OX_PATH_BYTES]) {
    static const char *const places[] = {"../docs/profiles", "../../docs/profiles", "../share/offload/profiles",
                                         "/usr/local/share/offload/profiles", "/usr/share/offload/profiles"};
    char self[OX_PATH_BYTES];
    const ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    self[bytes > 0 ? bytes : 0] = '\0';
    char *const slash = strrchr(self, '/');
    if (slash == NULL || idx >= sizeof places / sizeof *places) {
        return false;
    }
    *slash = '\0';
    if (places[idx][0] == '/') {
        snprintf(path, OX_PATH_BYTES, "%s", places[idx]);
        return true;
    }
    return ox_path_join(self, places[idx], path) == OX_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

/* Writes the names of the profiles that come with the program, in order; "" if none is found. */
static void list_names(char *text, size_t text_bytes) {
    enum { NAMES_MAX = 64 };
    char names[NAMES_MAX][64], folder[OX_PATH_BYTES];
    size_t count = 0, used = 0;
    for (unsigned i = 0; count == 0 && profile_folder(i, folder); i++) {
        DIR *const entries = opendir(folder);
        for (struct dirent *e; entries != NULL && count < NAMES_MAX && (e = readdir(entries)) != NULL;) {
            const size_t bytes = strlen(e->d_name), ending = sizeof ENDING - 1;
            if (bytes > ending && bytes < sizeof names[0] && strcmp(e->d_name + bytes - ending, ENDING) == 0) {
                snprintf(names[count++], sizeof names[0], "%.*s", (int)(bytes - ending), e->d_name);
            }
        }
        if (entries != NULL) {
            closedir(entries);
        }
    }
    qsort(names, count, sizeof names[0], by_name);
    text[0] = '\0';
    for (size_t i = 0; i < count && used < text_bytes; i++) {
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
}

/* Fails for a name that is none: with the nearest one, or with all, or with where they were looked for. */
static enum ox_status fail_unknown(const char *where, const char *profile, const char *name) {
    char names[512], folder[OX_PATH_BYTES], nearest[OX_NAME_BYTES], text[1024] = "";
    size_t used = 0;
    list_names(names, sizeof names);
    if (names[0] != '\0' && ox_name_nearest(names, ", ", name, nearest)) {
        return ox_fail(OX_E_CONFIG, "%s %s: there is no such file, and no profile of that name; did you mean %s?",
                       where, profile, nearest);
    }
    for (unsigned i = 0; names[0] == '\0' && used < sizeof text && profile_folder(i, folder); i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i == 0 ? "" : ", ", folder);
    }
    return ox_fail(OX_E_CONFIG, "%s %s: there is no such file, and no profile of that name; %s%s; `offload bench all "
                   "--output FILE` writes one of this machine", where, profile,
                   names[0] != '\0' ? "the program comes with " : "those that come with the program are in none of ",
                   names[0] != '\0' ? names : text);
}

/* Turns the name of a profile that comes with the program, or that of its file, into its path. A file of that name
 * comes first. `where` says who named it. */
static enum ox_status find_profile(const char *where, char profile[OX_CONFIG_TEXT_BYTES]) {
    char folder[OX_PATH_BYTES], name[OX_NAME_BYTES];
    if (profile[0] == '\0' || strcmp(profile, BUILTIN) == 0 || access(profile, F_OK) == 0) {
        return OX_OK;
    }
    const size_t bytes_all = strlen(profile), ending = sizeof ENDING - 1;
    const bool ends = bytes_all > ending && strcmp(profile + bytes_all - ending, ENDING) == 0;
    snprintf(name, sizeof name, "%.*s", (int)(ends ? bytes_all - ending : bytes_all), profile);
    for (unsigned i = 0; strchr(profile, '/') == NULL && profile_folder(i, folder); i++) {
        char file[OX_PATH_BYTES], *real = NULL;
        const int bytes = snprintf(file, sizeof file, "%s/%s%s", folder, name, ENDING);
        real = bytes > 0 && (size_t)bytes < sizeof file ? realpath(file, NULL) : NULL;
        const bool found = real != NULL && strlen(real) < OX_CONFIG_TEXT_BYTES;
        if (found) {
            memcpy(profile, real, strlen(real) + 1);
        }
        free(real);
        if (found) {
            return OX_OK;
        }
    }
    return fail_unknown(where, profile, name);
}

enum ox_status ox_profile_config(const struct ox_config *config, const struct ox_config **out) {
    static struct ox_config own; /* tens of kilobytes */
    static const char VARIABLE[] = "OFFLOAD_PROFILE";
    const char *const variable = getenv(VARIABLE);
    own = *config;
    *out = &own;
    enum ox_status status = find_profile("--profile", own.files.profile);
    memcpy(own.files.given_profile, own.files.profile, sizeof own.files.given_profile);
    if (own.files.profile[0] == '\0' && variable != NULL) {
        snprintf(own.files.profile, sizeof own.files.profile, "%s", variable);
        OX_THEN(status, find_profile(VARIABLE, own.files.profile));
    }
    if (own.files.profile[0] == '\0' &&
        !(user_path("XDG_CONFIG_HOME", "/.config", "offload/machine.json", own.files.profile) &&
          access(own.files.profile, R_OK) == 0)) {
        own.files.profile[0] = '\0';
        own.files.measure = true;
        user_path("XDG_CACHE_HOME", "/.cache", "offload", own.files.measure_folder);
    } else if (strcmp(own.files.profile, BUILTIN) == 0) {
        own.files.profile[0] = '\0';
    }
    return status;
}

/* A plan's --profile may describe another machine. Memory budgets that are not given become that machine's memory less
 * an eighth, which is for what no budget counts; with a GPU its memory is the device's. */
enum ox_status ox_profile_memory(struct ox_config *config) {
    struct ox_machine machine;
    if (config->files.profile[0] == '\0' || strcmp(config->files.profile, BUILTIN) == 0) {
        return OX_OK;
    }
    enum ox_status status = find_profile("--profile", config->files.profile);
    OX_THEN(status, ox_predict_machine(config->files.profile, 1, &machine));
    if (status != OX_OK) {
        return status;
    }
    char text[2][OX_SIZE_TEXT_BYTES];
    if (config->memory.host_mem_bytes == 0) {
        config->memory.host_mem_bytes = machine.host.memory_bytes - machine.host.memory_bytes / 8;
        ox_log(OX_LOG_INFO, "--host-mem %s of the %s of %s", ox_size_text(config->memory.host_mem_bytes, text[0]),
               ox_size_text(machine.host.memory_bytes, text[1]), machine.name);
    }
    if (config->memory.device == OX_DEVICE_CHOICE_AUTO) {
        config->memory.device = machine.has_gpu ? OX_DEVICE_CHOICE_CUDA : OX_DEVICE_CHOICE_CPU;
    }
    if (config->memory.device_mem_bytes == 0 && machine.has_gpu && config->memory.device == OX_DEVICE_CHOICE_CUDA) {
        config->memory.device_mem_bytes = machine.gpu.memory_bytes - machine.gpu.memory_bytes / 8;
        ox_log(OX_LOG_INFO, "--device-mem %s of the %s of %s", ox_size_text(config->memory.device_mem_bytes, text[0]),
               ox_size_text(machine.gpu.memory_bytes, text[1]), machine.gpu.name);
    }
    return OX_OK;
}
