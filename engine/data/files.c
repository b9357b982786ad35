/* Lists the files of a folder of data. */
#include "engine/data/files.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILES_MAX = 1 << 20, FOLDER_DEPTH_MAX = 64 };

static enum ox_status fail_memory(const char *path) {
    return ox_fail(OX_E_NOMEM, "%s: no memory to list the files", path);
}

static enum ox_status add_file(struct ox_files *files, const char *path) {
    if (files->count == FILES_MAX) {
        return ox_fail(OX_E_CONFIG, "%s: exceeds the limit of %d data files; join some", path, FILES_MAX);
    }
    if (files->count == files->capacity) {
        const uint32_t capacity = files->capacity > 0 ? 2 * files->capacity : 16;
        char **const longer = realloc(files->paths, capacity * sizeof *longer);
        if (longer == NULL) {
            return fail_memory(path);
        }
        files->paths = longer;
        files->capacity = capacity;
    }
    files->paths[files->count] = strdup(path);
    if (files->paths[files->count] == NULL) {
        return fail_memory(path);
    }
    files->count++;
    return OX_OK;
}

static enum ox_status add_folder(struct ox_files *files, const char *path, bool recursive, int depth) {
    DIR *const folder = depth < FOLDER_DEPTH_MAX ? opendir(path) : NULL;
    if (folder == NULL) {
        return ox_fail_errno(OX_E_CONFIG, depth < FOLDER_DEPTH_MAX ? errno : ELOOP, "%s: cannot list the folder", path);
    }
    enum ox_status status = OX_OK;
    while (status == OX_OK) {
        char child[OX_PATH_BYTES];
        const char *name = NULL;
        struct stat info;
        status = ox_folder_next(folder, path, &name);
        if (status != OX_OK || name == NULL) {
            break;
        }
        status = ox_path_join(path, name, child);
        if (status == OX_OK && lstat(child, &info) != 0) {
            status = ox_fail_errno(OX_E_IO, errno, "%s: cannot examine", child);
        }
        if (status == OX_OK && S_ISREG(info.st_mode)) {
            status = add_file(files, child);
        } else if (status == OX_OK && S_ISDIR(info.st_mode) && recursive) {
            status = add_folder(files, child, true, depth + 1);
        } else if (status == OX_OK) {
            files->link_count += S_ISLNK(info.st_mode);
        }
    }
    closedir(folder);
    return status;
}

static int compare(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum ox_status ox_files_list(const char *path, bool recursive, struct ox_files *out) {
    memset(out, 0, sizeof *out);
    const enum ox_status status = ox_path_is_folder(path) ? add_folder(out, path, recursive, 0) : add_file(out, path);
    if (status != OX_OK) {
        ox_files_free(out);
    } else if (out->count > 1) {
        qsort(out->paths, out->count, sizeof *out->paths, compare);
    }
    return status;
}

void ox_files_free(struct ox_files *files) {
    for (uint32_t i = 0; i < files->count; i++) {
        free(files->paths[i]);
    }
    free(files->paths);
    memset(files, 0, sizeof *files);
}
