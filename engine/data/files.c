/* Lists the files of a folder of data. */
#include "engine/data/files.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILES_MAX = 1 << 20, FOLDER_DEPTH_MAX = 64 };

/* What a folder holds, while it is listed. */
struct entry {
    char *path;
    enum ox_left reason; /* OX_LEFT_COUNT: it is no reason to leave it out */
};

struct entries {
    struct entry *list;
    uint32_t count, capacity;
};

static enum ox_status fail_memory(const char *path) {
    return ox_fail(OX_E_NOMEM, "%s: no memory to list the files", path);
}

static enum ox_status add_entry(struct entries *entries, const char *path, enum ox_left reason) {
    if (entries->count == FILES_MAX) {
        return ox_fail(OX_E_CONFIG, "%s: exceeds the limit of %d data files; join some", path, FILES_MAX);
    }
    if (entries->count == entries->capacity) {
        const uint32_t capacity = entries->capacity > 0 ? 2 * entries->capacity : 16;
        struct entry *const longer = realloc(entries->list, capacity * sizeof *longer);
        if (longer == NULL) {
            return fail_memory(path);
        }
        entries->list = longer;
        entries->capacity = capacity;
    }
    entries->list[entries->count] = (struct entry){strdup(path), reason};
    if (entries->list[entries->count].path == NULL) {
        return fail_memory(path);
    }
    entries->count++;
    return OX_OK;
}

static enum ox_status add_folder(struct entries *entries, const char *path, int depth) {
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
        if (status == OX_OK && (name[0] == '.' || name[0] == '_')) {
            status = add_entry(entries, child, OX_LEFT_HIDDEN);
        } else if (status == OX_OK && S_ISDIR(info.st_mode)) {
            status = add_folder(entries, child, depth + 1);
        } else if (status == OX_OK && (S_ISREG(info.st_mode) || S_ISLNK(info.st_mode))) {
            status = add_entry(entries, child, S_ISLNK(info.st_mode) ? OX_LEFT_LINK : OX_LEFT_COUNT);
        }
    }
    closedir(folder);
    return status;
}

static int compare(const void *a, const void *b) {
    return strcmp(((const struct entry *)a)->path, ((const struct entry *)b)->path);
}

static const char *relative(const struct ox_files *files, const char *path) {
    const char *name = path + (files->is_folder ? strlen(files->root) : 0);
    return files->is_folder && *name == '/' ? name + 1 : name;
}

static void note_left(struct ox_files *files, enum ox_left reason, const char *path) {
    static const char more[] = " and more";
    struct ox_files_left *const left = &files->left[reason];
    const size_t used = strlen(left->names), name_bytes = strlen(relative(files, path));
    if (used + name_bytes + 2 + sizeof more < sizeof left->names) {
        snprintf(left->names + used, sizeof left->names - used, "%s%s", used > 0 ? ", " : "", relative(files, path));
    } else if (used == 0) {
        snprintf(left->names, sizeof left->names, "%.100s...", relative(files, path));
    } else if (used < sizeof more || strcmp(left->names + used - sizeof more + 1, more) != 0) {
        snprintf(left->names + used, sizeof left->names - used, "%s", more);
    }
    left->count++;
}

/* Takes over the entries in order. */
static enum ox_status take_entries(struct ox_files *files, struct entries *entries) {
    if (entries->count > 1) {
        qsort(entries->list, entries->count, sizeof *entries->list, compare);
    }
    files->paths = calloc((size_t)entries->count + 1, sizeof *files->paths);
    if (files->paths == NULL) {
        return fail_memory(files->root);
    }
    for (uint32_t i = 0; i < entries->count; i++) {
        struct entry *const entry = &entries->list[i];
        if (entry->reason == OX_LEFT_COUNT) {
            files->paths[files->count++] = entry->path;
            entry->path = NULL;
        } else {
            note_left(files, entry->reason, entry->path);
        }
    }
    return OX_OK;
}

enum ox_status ox_files_list(const char *path, struct ox_files *out) {
    struct entries entries = {0};
    *out = (struct ox_files){.root = strdup(path), .is_folder = ox_path_is_folder(path)};
    enum ox_status status = out->root != NULL ? OX_OK : fail_memory(path);
    OX_THEN(status, out->is_folder ? add_folder(&entries, path, 0) : add_entry(&entries, path, OX_LEFT_COUNT));
    OX_THEN(status, take_entries(out, &entries));
    for (uint32_t i = 0; i < entries.count; i++) {
        free(entries.list[i].path);
    }
    free(entries.list);
    if (status != OX_OK) {
        ox_files_free(out);
    }
    return status;
}

const char *ox_files_name(const struct ox_files *files, uint32_t idx) {
    return relative(files, files->paths[idx]);
}

void ox_files_leave(struct ox_files *files, const enum ox_left *reasons) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < files->count; i++) {
        if (reasons[i] == OX_LEFT_COUNT) {
            files->paths[kept++] = files->paths[i];
        } else {
            note_left(files, reasons[i], files->paths[i]);
            free(files->paths[i]);
        }
    }
    files->count = kept;
}

void ox_files_free(struct ox_files *files) {
    for (uint32_t i = 0; i < files->count; i++) {
        free(files->paths[i]);
    }
    free(files->paths);
    free(files->root);
    memset(files, 0, sizeof *files);
}

bool ox_files_are_same(const char *a, const char *b) {
    struct stat of_a, of_b;
    return stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}
