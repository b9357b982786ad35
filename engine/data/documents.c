/* Owns the files that documents come from: lists them, reads them through, and notices when they change. */
#include "engine/data/documents_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash/hash.h"
#include "base/log.h"
#include "engine/data/files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char byte_order_mark[3] = {'\xef', '\xbb', '\xbf'};

/* ---- files --------------------------------------------------------------------------------------------------- */

static uint64_t ns_of(struct timespec time) {
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

static enum ox_status open_file(const char *path, int *fd, struct stat *info) {
    uint64_t bytes = 0;
    const enum ox_status status = ox_file_open_input(path, fd, &bytes);
    if (status == OX_OK && fstat(*fd, info) != 0) {
        const int err = errno;
        close(*fd);
        *fd = -1;
        return ox_fail_errno(OX_E_IO, err, "%s: cannot examine", path);
    }
    return status;
}

/* Adds a file and owns `path` from now on, even on failure. */
static enum ox_status add_file(struct ox_documents *documents, char *path) {
    struct ox_documents_file *const file = &documents->files[documents->file_count++];
    struct stat info;
    int fd = -1;
    file->path = path;
    OX_TRY(open_file(path, &fd, &info));
    close(fd);
    file->bytes = (uint64_t)info.st_size;
    file->inode = (uint64_t)info.st_ino;
    file->modified_ns = ns_of(info.st_mtim);
    file->changed_ns = ns_of(info.st_ctim);
    documents->bytes += file->bytes;
    return OX_OK;
}

static enum ox_status take_files(struct ox_documents *documents, const struct ox_files *files) {
    enum ox_status status = OX_OK;
    documents->root_bytes = strlen(files->root);
    documents->files = calloc((size_t)files->count + 1, sizeof *documents->files);
    if (documents->files == NULL) {
        status = ox_fail(OX_E_NOMEM, "%s: no memory to list the files", files->root);
    }
    for (uint32_t i = 0; status == OX_OK && i < files->count; i++) {
        char *const path = strdup(files->paths[i]);
        status = path != NULL ? add_file(documents, path)
                              : ox_fail(OX_E_NOMEM, "%s: no memory to list the files", files->root);
    }
    return status == OX_OK && documents->bytes == 0 ? ox_fail(OX_E_CONFIG, "%s: is empty", files->root) : status;
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

/* How much is read at a time. A file of less than a block is read at once: one byte more than it has shows its end. */
static size_t block_bytes_of(const struct ox_unpacker *unpacker, const struct stat *info) {
    return ox_unpack_is_packed(unpacker) ? OX_DOCUMENTS_READ_BYTES
                                         : (size_t)ox_min_u64(OX_DOCUMENTS_READ_BYTES, (uint64_t)info->st_size + 1);
}

/* Adds a file to the hash of all contents: first the hash of its blocks, then its length. */
static uint64_t hash_file(uint64_t hash, uint64_t file_hash, uint64_t bytes) {
    return ox_hash_seed((const uint64_t[]){hash, file_hash, bytes}, 3);
}

static enum ox_status make_room(struct ox_documents *documents) {
    const size_t held = documents->end - documents->begin;
    if (documents->capacity - documents->end >= documents->block_bytes) {
        return OX_OK;
    }
    if (held > 0) {
        memmove(documents->buffer, documents->buffer + documents->begin, held);
    }
    documents->begin = 0;
    documents->end = held;
    const size_t capacity = held + held / 4 + 2 * documents->block_bytes;
    /* What a large document left is given back. */
    if (documents->capacity - held >= documents->block_bytes && documents->capacity / 4 < capacity) {
        return OX_OK;
    }
    char *const resized = realloc(documents->buffer, capacity);
    if (resized == NULL) {
        char size[OX_SIZE_TEXT_BYTES];
        return ox_fail(OX_E_NOMEM, "%s: no memory for a piece of more than %s that begins at byte %" PRIu64 "%s",
                       documents->files[documents->file_idx].path, ox_size_text(held, size), documents->offset,
                       documents->config.format == OX_DOCUMENTS_ROWS ? ", a row; divide it"
                                                                      : " and has no place to cut it; divide it");
    }
    documents->buffer = resized;
    documents->capacity = capacity;
    return OX_OK;
}

enum ox_status ox_documents_fill(struct ox_documents *documents, size_t wanted) {
    while (documents->end - documents->begin < wanted && !documents->is_at_end) {
        size_t got = 0;
        enum ox_status status = make_room(documents);
        char *const target = documents->buffer + documents->end;
        OX_THEN(status, ox_unpack_read(documents->unpacker, target, documents->block_bytes, &got));
        if (status != OX_OK) {
            return status;
        }
        documents->file_hash = got > 0 ? ox_hash64(target, got, documents->file_hash) : documents->file_hash;
        documents->file_read_bytes += got;
        documents->end += got;
        documents->is_at_end = got < documents->block_bytes;
    }
    return OX_OK;
}

void ox_documents_skip(struct ox_documents *documents, size_t bytes) {
    OX_ASSERT(bytes <= documents->end - documents->begin);
    documents->begin += bytes;
    documents->offset += bytes;
}

static enum ox_status start_file(struct ox_documents *documents) {
    struct stat info;
    const char *const path = documents->files[documents->file_idx].path;
    enum ox_status status = open_file(path, &documents->fd, &info);
    OX_THEN(status, ox_unpack_open(documents->fd, path, &documents->unpacker));
    if (status != OX_OK) {
        return status;
    }
    documents->is_at_end = false;
    documents->block_bytes = block_bytes_of(documents->unpacker, &info);
    documents->file_hash = documents->file_read_bytes = documents->offset = 0;
    documents->begin = documents->end = 0;
    documents->in_document = false;
    documents->place = OX_ROWS_START;
    documents->line = 1;
    status = ox_documents_fill(documents, sizeof byte_order_mark);
    if (status == OX_OK && documents->end >= sizeof byte_order_mark &&
        memcmp(documents->buffer, byte_order_mark, sizeof byte_order_mark) == 0) {
        ox_documents_skip(documents, sizeof byte_order_mark);
    }
    return status;
}

static void end_file(struct ox_documents *documents) {
    OX_ASSERT(documents->is_at_end && documents->begin == documents->end);
    documents->hash = hash_file(documents->hash, documents->file_hash, documents->file_read_bytes);
    ox_unpack_close(&documents->unpacker);
    close(documents->fd);
    documents->fd = -1;
    documents->file_idx++;
}

static enum ox_status hash_one(const struct ox_documents_file *file, uint64_t *hash) {
    struct stat info;
    struct ox_unpacker *unpacker = NULL;
    uint64_t file_hash = 0, done = 0;
    size_t got = 0;
    int fd = -1;
    enum ox_status status = open_file(file->path, &fd, &info);
    if (status != OX_OK) {
        return status;
    }
    status = ox_unpack_open(fd, file->path, &unpacker);
    if (status != OX_OK) {
        close(fd);
        return status;
    }
    const size_t block_bytes = block_bytes_of(unpacker, &info);
    char *const block = malloc(block_bytes);
    status = block == NULL ? ox_fail(OX_E_NOMEM, "%s: no memory to read documents", file->path) : OX_OK;
    do {
        OX_THEN(status, ox_unpack_read(unpacker, block, block_bytes, &got));
        if (status == OX_OK && got > 0) {
            file_hash = ox_hash64(block, got, file_hash);
            done += got;
        }
    } while (status == OX_OK && got == block_bytes);
    free(block);
    ox_unpack_close(&unpacker);
    close(fd);
    *hash = hash_file(*hash, file_hash, done);
    return status;
}

/* ---- public -------------------------------------------------------------------------------------------------- */

enum ox_status ox_documents_open(const struct ox_files *files, const struct ox_documents_config *config,
                                 struct ox_documents **out) {
    const char *const path = files->root;
    struct ox_documents *documents = calloc(1, sizeof *documents);
    if (documents == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to read documents", path);
    }
    documents->config = *config;
    documents->fd = -1;
    documents->separator = malloc(config->separator_bytes + 1);
    enum ox_status status = OX_OK;
    if (documents->separator == NULL) {
        status = ox_fail(OX_E_NOMEM, "%s: no memory to read documents", path);
    } else if (config->separator_bytes > 0) {
        memcpy(documents->separator, config->separator, config->separator_bytes);
    }
    documents->config.separator = documents->separator;
    if (status == OX_OK) {
        ox_path_warn_shared(path);
        status = take_files(documents, files);
    }
    if (status != OX_OK) {
        ox_documents_close(&documents);
        return status;
    }
    *out = documents;
    return OX_OK;
}

void ox_documents_close(struct ox_documents **documents) {
    struct ox_documents *const d = *documents;
    if (d == NULL) {
        return;
    }
    ox_unpack_close(&d->unpacker);
    if (d->fd >= 0) {
        close(d->fd);
    }
    for (uint32_t i = 0; i < d->file_count; i++) {
        free(d->files[i].path);
    }
    free(d->files);
    free(d->separator);
    free(d->buffer);
    free(d);
    *documents = NULL;
}

enum ox_status ox_documents_next(struct ox_documents *documents, struct ox_document *out, bool *found) {
    *found = false;
    while (documents->file_idx < documents->file_count) {
        enum ox_status status = documents->fd < 0 ? start_file(documents) : OX_OK;
        OX_THEN(status, documents->config.format == OX_DOCUMENTS_ROWS ? ox_documents_next_row(documents, out, found)
                                                                      : ox_documents_next_text(documents, out, found));
        if (status != OX_OK) {
            return status;
        }
        if (*found) {
            out->path = documents->files[documents->file_idx].path;
            documents->any = true;
            return OX_OK;
        }
        end_file(documents);
    }
    return documents->any
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "%.*s: holds no documents, only white space or separators",
                         (int)documents->root_bytes, documents->file_count > 0 ? documents->files[0].path : "");
}

uint64_t ox_documents_bytes(const struct ox_documents *documents) {
    return documents->bytes;
}

uint64_t ox_documents_bytes_read(const struct ox_documents *documents) {
    uint64_t bytes = documents->unpacker != NULL ? ox_unpack_used_bytes(documents->unpacker) : 0;
    for (uint32_t i = 0; i < documents->file_idx; i++) {
        bytes += documents->files[i].bytes;
    }
    return bytes;
}

uint64_t ox_documents_stamp(const struct ox_documents *documents, uint64_t *newest) {
    uint64_t hash = documents->file_count;
    *newest = 0;
    for (uint32_t i = 0; i < documents->file_count; i++) {
        const struct ox_documents_file *const file = &documents->files[i];
        const char *const name = file->path + documents->root_bytes;
        const uint64_t words[] = {hash, file->bytes, file->inode, file->modified_ns, file->changed_ns};
        hash = ox_hash64(name, strlen(name), ox_hash_seed(words, sizeof words / sizeof *words));
        *newest = ox_max_u64(*newest, file->changed_ns);
    }
    return hash;
}

enum ox_status ox_documents_hash(const struct ox_documents *documents, uint64_t *hash) {
    enum ox_status status = OX_OK;
    *hash = 0;
    for (uint32_t i = 0; status == OX_OK && i < documents->file_count; i++) {
        status = hash_one(&documents->files[i], hash);
    }
    return status;
}

uint64_t ox_documents_hash_read(const struct ox_documents *documents) {
    OX_ASSERT(documents->file_idx == documents->file_count);
    return documents->hash;
}
