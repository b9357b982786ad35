/* Compares the files of a checkpoint with the sizes and hashes that its trainer_state.json lists. */
#include "base/hash/listed.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash/seal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { PART_BYTES = 1 << 20 };

static enum ox_status fail_memory(const char *path) {
    return ox_fail(OX_E_NOMEM, "%s: no memory to compare its files with their hashes", path);
}

/* ---- the list --------------------------------------------------------------------------------------- */

enum ox_status ox_listed_add(const char *where, const char *name, struct ox_listed *list) {
    struct ox_listed_file *const longer = realloc(list->files, (list->count + (size_t)1) * sizeof *list->files);
    char *const copy = strdup(name);
    list->files = longer != NULL ? longer : list->files;
    if (longer == NULL || copy == NULL) {
        free(copy);
        return fail_memory(where);
    }
    longer[list->count++] = (struct ox_listed_file){.name = copy};
    return OX_OK;
}

enum ox_status ox_listed_parse(const char *where, const json_t *object, struct ox_listed *list) {
    json_t *const files = json_object_get(object, "files");
    const char *name;
    json_t *value;
    if (!json_is_object(files)) {
        return ox_fail(OX_E_CORRUPT, "%s: has no list of \"files\"; use another checkpoint", where);
    }
    json_object_foreach(files, name, value) {
        if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL || !json_is_object(value)) {
            return ox_fail(OX_E_CORRUPT, "%s: \"%.200s\" in its \"files\" is not a file of this folder; use another "
                           "checkpoint", where, name);
        }
        enum ox_status status = ox_listed_add(where, name, list);
        uint64_t words[2];
        OX_THEN(status, ox_json_get_hex(where, value, "xxh3_128", 2, words));
        if (status == OX_OK) {
            struct ox_listed_file *const file = &list->files[list->count - 1];
            file->hash = (struct ox_hash128){.high = words[0], .low = words[1]};
            status = ox_json_get_u64(where, value, "bytes", true, &file->bytes);
        }
        if (status != OX_OK) {
            return status;
        }
    }
    return OX_OK;
}

/* The Trainer of transformers writes a file of this name too, and may write NaN, which is not JSON. So a file is ours
 * if it has the key of a hash; there are several of them, and a damaged byte spoils but one. */
static enum ox_status parse_text(const char *path, const char *text, size_t bytes, struct ox_listed *out) {
    static const char key[] = "\"xxh3_128\"";
    json_t *object = NULL;
    if (memmem(text, bytes, key, sizeof key - 1) == NULL) {
        return OX_OK;
    }
    enum ox_status status = ox_json_parse(path, text, bytes, &object);
    OX_THEN(status, ox_seal_check(path, object, false));
    OX_THEN(status, ox_listed_parse(path, object, out));
    json_decref(object);
    return status == OX_E_CONFIG ? ox_fail_in(OX_E_CORRUPT, "the checkpoint is damaged") : status;
}

enum ox_status ox_listed_read(const char *folder, struct ox_listed *out) {
    char path[OX_PATH_BYTES];
    struct stat info;
    char *text = NULL;
    size_t bytes = 0;
    memset(out, 0, sizeof *out);
    enum ox_status status = ox_path_join(folder, OX_LISTED_IN, path);
    if (status != OX_OK || stat(path, &info) != 0 || !S_ISREG(info.st_mode) ||
        info.st_size > OX_LISTED_IN_BYTES_MAX) {
        return status;
    }
    status = ox_file_read(path, OX_LISTED_IN_BYTES_MAX, &text, &bytes);
    OX_THEN(status, parse_text(path, text, bytes, out));
    free(text);
    if (status != OX_OK) {
        ox_listed_close(out);
    }
    return status;
}

void ox_listed_close(struct ox_listed *list) {
    for (uint32_t i = 0; i < list->count; i++) {
        free(list->files[i].name);
    }
    free(list->files);
    memset(list, 0, sizeof *list);
}

/* ---- one file ----------------------------------------------------------------------------------------- */

struct ox_listed_reading {
    char *path;
    int fd;
    uint64_t bytes, at; /* what lies before `at` is hashed */
    bool finished;
    struct ox_hash128 hash;
    XXH3_state_t state;
};

static enum ox_status open_reading(const char *path, int fd, uint64_t bytes, const struct ox_listed_file *file,
                                   struct ox_listed_reading **out) {
    if (bytes != file->bytes) {
        return ox_fail(OX_E_CORRUPT, "%s: has %" PRIu64 " bytes instead of %" PRIu64 "; use another checkpoint", path,
                       bytes, file->bytes);
    }
    void *memory = NULL;
    char *const copy = strdup(path);
    if (copy == NULL || posix_memalign(&memory, 64, sizeof **out) != 0) { /* the vectors of the state */
        free(copy);
        return fail_memory(path);
    }
    struct ox_listed_reading *const reading = memory;
    memset(reading, 0, sizeof *reading);
    reading->path = copy;
    reading->fd = fd;
    reading->bytes = bytes;
    reading->hash = file->hash;
    XXH3_128bits_reset(&reading->state);
    *out = reading;
    return OX_OK;
}

enum ox_status ox_listed_open(const char *path, int fd, uint64_t bytes, struct ox_listed_reading **out) {
    const char *const slash = strrchr(path, '/'), *const name = slash != NULL ? slash + 1 : path;
    char folder[OX_PATH_BYTES] = ".";
    struct ox_listed list;
    *out = NULL;
    if (slash != NULL) {
        const size_t folder_bytes = slash > path ? (size_t)(slash - path) : 1;
        OX_ASSERT(folder_bytes < sizeof folder); /* the path is open */
        memcpy(folder, path, folder_bytes);
        folder[folder_bytes] = '\0';
    }
    enum ox_status status = ox_listed_read(folder, &list);
    for (uint32_t i = 0; status == OX_OK && *out == NULL && i < list.count; i++) {
        if (strcmp(list.files[i].name, name) == 0) {
            status = open_reading(path, fd, bytes, &list.files[i], out);
        }
    }
    if (status == OX_OK && *out == NULL && list.count > 0) { /* its name may be damaged in the list */
        status = ox_fail(OX_E_CORRUPT, "%s: is not among the files that %s beside it lists; use another checkpoint",
                         path, OX_LISTED_IN);
    }
    ox_listed_close(&list);
    return status;
}

void ox_listed_take(struct ox_listed_reading *reading, uint64_t offset, const void *data, uint64_t bytes) {
    if (reading != NULL && offset == reading->at) {
        XXH3_128bits_update(&reading->state, data, bytes);
        reading->at += bytes;
    }
}

enum ox_status ox_listed_finish(struct ox_listed_reading *reading) {
    if (reading == NULL || reading->finished) {
        return OX_OK;
    }
    enum ox_status status = OX_OK;
    void *const part = malloc(PART_BYTES);
    if (part == NULL) {
        return fail_memory(reading->path);
    }
    while (status == OX_OK && reading->at < reading->bytes) {
        const size_t bytes = (size_t)ox_min_u64(PART_BYTES, reading->bytes - reading->at);
        status = ox_file_read_at(reading->fd, reading->path, part, bytes, reading->at);
        if (status == OX_OK) {
            ox_listed_take(reading, reading->at, part, bytes);
        }
    }
    free(part);
    const XXH128_hash_t found = XXH3_128bits_digest(&reading->state);
    if (status == OX_OK && (found.low64 != reading->hash.low || found.high64 != reading->hash.high)) {
        status = ox_fail(OX_E_CORRUPT, "%s: its content has changed since it was saved; use another checkpoint; "
                         "what you edit yourself, such as a chat template, edit in a folder that `offload export` "
                         "wrote",
                         reading->path);
    }
    reading->finished = status == OX_OK;
    return status;
}

void ox_listed_free(struct ox_listed_reading **reading) {
    if (*reading != NULL) {
        free((*reading)->path);
        free(*reading);
        *reading = NULL;
    }
}

enum ox_status ox_listed_verify(const char *folder, const struct ox_listed_file *file) {
    char path[OX_PATH_BYTES];
    struct ox_listed_reading *reading = NULL;
    uint64_t bytes = 0;
    int fd = -1;
    enum ox_status status = ox_path_join(folder, file->name, path);
    OX_THEN(status, ox_file_open_input(path, &fd, &bytes));
    if (status != OX_OK) { /* a listed file that is missing is damage, not a wrong request */
        return status == OX_E_CONFIG ? ox_fail(OX_E_CORRUPT, "%s", ox_error_text()) : status;
    }
    status = open_reading(path, fd, bytes, file, &reading);
    OX_THEN(status, ox_listed_finish(reading));
    ox_listed_free(&reading);
    close(fd);
    return status;
}

static bool has_tensors(const char *name) {
    static const char ending[] = ".safetensors";
    const size_t bytes = strlen(name);
    return bytes >= sizeof ending && strcmp(name + bytes - (sizeof ending - 1), ending) == 0;
}

enum ox_status ox_listed_verify_small(const char *folder) {
    struct ox_listed list;
    enum ox_status status = ox_listed_read(folder, &list);
    for (uint32_t i = 0; status == OX_OK && i < list.count; i++) {
        char path[OX_PATH_BYTES];
        const char *const name = list.files[i].name;
        const bool gone = strcmp(name, "tokenizer.json") == 0 && ox_path_join(folder, name, path) == OX_OK &&
                          !ox_path_exists(path); /* who needs it says so, and takes another one by --tokenizer */
        if (!has_tensors(name) && !gone) {
            status = ox_listed_verify(folder, &list.files[i]);
        }
    }
    ox_listed_close(&list);
    return status;
}
