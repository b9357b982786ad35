/* Writes and reads the file of a token cache, and verifies that what is read is what was written. */
#include "engine/data/token_cache.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash/hash.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CREATE_TRIES = 100 };

static const uint32_t word_begins = UINT32_C(1) << OX_CACHE_BEGINS_BIT;
static const uint32_t vocab_max = UINT32_C(1) << OX_CACHE_BEGINS_BIT;
static const char magic[8] = OX_CACHE_MAGIC;
static const char temporary_prefix[] = ".offload-cache-", temporary_suffix[] = ".tmp";

/* A block of the file. The checksum is its first 8 bytes: words[0] and [1], or numbers[0]. */
union block {
    uint32_t words[OX_CACHE_BLOCK_BYTES / 4];
    uint64_t numbers[OX_CACHE_BLOCK_BYTES / 8];
};

/* The beginning of block 0. */
struct start {
    uint64_t checksum;
    char magic[8];
    struct ox_cache_header header;
    uint64_t salt;
};
_Static_assert(sizeof(struct ox_cache_header) == 72 && sizeof(struct start) == 96, "the file has no padding");
_Static_assert(offsetof(struct start, magic) == OX_CACHE_MAGIC_OFFSET, "data.c looks for the magic there");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "integers are read and written as they lie in memory");

struct ox_cache_writer {
    char *path;   /* the name it gets at commit; NULL: it stays unnamed */
    char *folder; /* the folder of the file                             */
    struct ox_file_writer file;
    struct ox_file_writer staged; /* unnamed file for the document blocks, which go after the last token block */
    struct ox_cache_header header;
    uint64_t salt;
    uint64_t document_first; /* first token of the current document */
    uint32_t id_max;
    bool is_begun, is_pending; /* there is a current document; it has no token yet */
    union block tokens, documents;
};

static void seal(union block *block, uint64_t salt, uint64_t idx) {
    block->numbers[0] =
        ox_hash64(block->numbers + 1, sizeof *block - 8, ox_hash_seed((const uint64_t[]){salt, idx}, 2));
}

static bool is_sealed(const union block *block, uint64_t salt, uint64_t idx) {
    const uint64_t seed = ox_hash_seed((const uint64_t[]){salt, idx}, 2);
    return block->numbers[0] == ox_hash64(block->numbers + 1, sizeof *block - 8, seed);
}

/* ---- temporary files -------------------------------------------------------------------------------------------- */

/* Opens a file without a name, which disappears when it is closed, however the process ends. */
static enum ox_status open_unnamed(const char *folder, struct ox_file_writer *out) {
    enum ox_status status = ox_path_join(folder, ".offload-XXXXXX", out->path);
    if (status != OX_OK) {
        return status;
    }
    out->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
    if (out->fd < 0 &&
        (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) { /* not every file system supports O_TMPFILE */
        out->fd = mkostemp(out->path, O_CLOEXEC);
        if (out->fd >= 0) {
            unlink(out->path);
        }
    }
    if (out->fd < 0) {
        const bool is_choice =
            errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == EPERM || errno == EROFS;
        return ox_fail_errno(is_choice ? OX_E_CONFIG : OX_E_IO, errno,
                             "%s: cannot make a temporary file for tokens there; choose another folder", folder);
    }
    return ox_path_join(folder, "(unnamed token file)", out->path); /* for messages */
}

static void close_unnamed(struct ox_file_writer *file) {
    if (file->fd >= 0) {
        close(file->fd);
        file->fd = -1;
    }
}

void ox_cache_sweep(const char *path) {
    ox_folder_sweep_shared(path); /* stamps */
    DIR *const folder = opendir(path);
    const struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        const char *const name = entry->d_name;
        const size_t bytes = strlen(name), suffix_bytes = strlen(temporary_suffix);
        if (strncmp(name, temporary_prefix, strlen(temporary_prefix)) != 0 || bytes < suffix_bytes ||
            strcmp(name + bytes - suffix_bytes, temporary_suffix) != 0) {
            continue;
        }
        const int fd = openat(dirfd(folder), name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(dirfd(folder), name, 0) == 0) {
            ox_log(OX_LOG_INFO, "%s/%s: removed; a process that was killed while it tokenized had left it", path,
                   name);
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
}

static enum ox_status draw_random(uint64_t *number) {
    if (getrandom(number, sizeof *number, 0) != (ssize_t)sizeof *number) {
        return ox_fail_errno(OX_E_IO, errno, "the system gives no random number for a token cache");
    }
    return OX_OK;
}

/* Creates a temporary file and locks it, so that other processes do not remove it. If one did so before the lock, it
 * tries again. */
static enum ox_status open_named(const char *folder, struct ox_file_writer *out) {
    for (int i = 0; i < CREATE_TRIES; i++) {
        char name[64], path[OX_PATH_BYTES];
        struct stat info;
        uint64_t number = 0;
        enum ox_status status = draw_random(&number);
        snprintf(name, sizeof name, "%s%016" PRIx64 "%s", temporary_prefix, number, temporary_suffix);
        OX_THEN(status, ox_path_join(folder, name, path));
        OX_THEN(status, ox_file_create(path, 0, out));
        if (status != OX_OK) {
            return status;
        }
        int result, interrupts = 0;
        do {
            result = flock(out->fd, LOCK_EX);
        } while (ox_interrupted(result, &interrupts));
        if (result != 0 && errno == EINTR) {
            ox_file_discard(out);
            return ox_fail_errno(OX_E_IO, EINTR, "%s: cannot be locked; choose another folder", path);
        } /* on a file system without locks, no process removes such files */
        if (fstat(out->fd, &info) == 0 && info.st_nlink > 0) {
            return OX_OK;
        }
        ox_file_discard(out);
    }
    return ox_fail(OX_E_IO, "%s: temporary files made there vanish; choose another folder", folder);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static enum ox_status flush_tokens(struct ox_cache_writer *writer) {
    const uint64_t idx = 1 + (writer->header.token_count - 1) / OX_CACHE_TOKENS_PER_BLOCK;
    seal(&writer->tokens, writer->salt, idx);
    const enum ox_status status =
        ox_file_write(&writer->file, &writer->tokens, sizeof writer->tokens, idx * OX_CACHE_BLOCK_BYTES);
    memset(&writer->tokens, 0, sizeof writer->tokens);
    return status;
}

/* Writes a staged block, sealed with a number that no block of the file has. */
static enum ox_status flush_documents(struct ox_cache_writer *writer) {
    const uint64_t idx = (writer->header.document_count - 1) / OX_CACHE_DOCUMENTS_PER_BLOCK;
    seal(&writer->documents, writer->salt, ~idx);
    const enum ox_status status =
        ox_file_write(&writer->staged, &writer->documents, sizeof writer->documents, idx * OX_CACHE_BLOCK_BYTES);
    memset(&writer->documents, 0, sizeof writer->documents);
    return status;
}

static enum ox_status begin_document(struct ox_cache_writer *writer) {
    struct ox_cache_header *const header = &writer->header;
    const uint64_t place = header->document_count++ % OX_CACHE_DOCUMENTS_PER_BLOCK;
    header->longest = ox_max_u64(header->longest, header->token_count - writer->document_first);
    writer->document_first = header->token_count;
    writer->is_pending = false;
    writer->documents.numbers[1 + place] = header->token_count;
    return place + 1 == OX_CACHE_DOCUMENTS_PER_BLOCK ? flush_documents(writer) : OX_OK;
}

/* Writes the last token block and the last document block, then copies the staged blocks to the end of the file. */
static enum ox_status append_documents(struct ox_cache_writer *writer) {
    const struct ox_cache_header *const header = &writer->header;
    const uint64_t token_blocks = ox_div_up(header->token_count, OX_CACHE_TOKENS_PER_BLOCK);
    const uint64_t document_blocks = ox_div_up(header->document_count, OX_CACHE_DOCUMENTS_PER_BLOCK);
    enum ox_status status = OX_OK;
    if (header->token_count % OX_CACHE_TOKENS_PER_BLOCK != 0) {
        status = flush_tokens(writer);
    }
    if (status == OX_OK && header->document_count % OX_CACHE_DOCUMENTS_PER_BLOCK != 0) {
        status = flush_documents(writer);
    }
    for (uint64_t i = 0; status == OX_OK && i < document_blocks; i++) {
        union block *const block = &writer->documents;
        status =
            ox_file_read_at(writer->staged.fd, writer->staged.path, block, sizeof *block, i * OX_CACHE_BLOCK_BYTES);
        if (status == OX_OK && !is_sealed(block, writer->salt, ~i)) {
            status = ox_fail(OX_E_CORRUPT,
                             "%s: the disk returns other bytes than were written; check it, or choose another folder",
                             writer->folder);
        }
        if (status == OX_OK) {
            const uint64_t idx = 1 + token_blocks + i;
            seal(block, writer->salt, idx);
            status = ox_file_write(&writer->file, block, sizeof *block, idx * OX_CACHE_BLOCK_BYTES);
        }
    }
    return status;
}

static enum ox_status write_header(struct ox_cache_writer *writer) {
    union block *const block = &writer->documents;
    struct start start = {.header = writer->header, .salt = writer->salt};
    start.header.version = OX_CACHE_VERSION;
    memcpy(start.magic, magic, sizeof magic);
    memset(block, 0, sizeof *block);
    memcpy(block, &start, sizeof start);
    seal(block, writer->salt, 0);
    return ox_file_write(&writer->file, block, sizeof *block, 0);
}

/* Syncs the file, closes it and renames it to its path. */
static enum ox_status publish(struct ox_cache_writer *writer) {
    enum ox_status status = ox_file_finish(&writer->file);
    if (status == OX_OK && rename(writer->file.path, writer->path) != 0) {
        status = ox_fail_errno(errno == EISDIR || errno == EACCES || errno == EPERM ? OX_E_CONFIG : OX_E_IO, errno,
                               "%s: cannot be replaced", writer->path);
    }
    if (status != OX_OK) {
        unlink(writer->file.path);
        return status;
    }
    return ox_folder_sync(writer->folder);
}

static enum ox_status open_files(struct ox_cache_writer *writer, const char *path, const char *folder) {
    const char *const slash = path != NULL ? strrchr(path, '/') : NULL;
    const size_t bytes = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    writer->path = path != NULL ? strdup(path) : NULL;
    writer->folder = path == NULL ? strdup(folder) : slash == NULL ? strdup(".") : strndup(path, bytes);
    if (writer->folder == NULL || (path != NULL && writer->path == NULL)) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to write it", path != NULL ? path : folder);
    }
    if (path != NULL) {
        ox_cache_sweep(writer->folder);
    }
    enum ox_status status = draw_random(&writer->salt);
    OX_THEN(status, open_unnamed(writer->folder, &writer->staged));
    OX_THEN(status, path != NULL ? open_named(writer->folder, &writer->file) : open_unnamed(folder, &writer->file));
    return status;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static enum ox_status read_raw(const struct ox_cache_file *file, uint64_t idx, union block *block) {
    return ox_file_read_at(file->fd, file->where, block, sizeof *block, idx * OX_CACHE_BLOCK_BYTES);
}

static enum ox_status check(const struct ox_cache_file *file, uint64_t idx, const union block *block) {
    if (!is_sealed(block, file->salt, idx)) {
        return ox_fail(OX_E_CORRUPT,
                       "%s: the %d bytes at %" PRIu64 " do not match their checksum; check the disk, and delete the "
                       "file to have it made again",
                       file->where, OX_CACHE_BLOCK_BYTES, idx * OX_CACHE_BLOCK_BYTES);
    }
    return OX_OK;
}

static enum ox_status read_block(const struct ox_cache_file *file, uint64_t idx, union block *block) {
    const enum ox_status status = read_raw(file, idx, block);
    return status == OX_OK ? check(file, idx, block) : status;
}

/* Whether a writer could have left these counts, and the file has the size of their blocks. */
static bool is_plausible(const struct ox_cache_header *header, uint64_t file_bytes) {
    const uint64_t blocks = file_bytes / OX_CACHE_BLOCK_BYTES;
    return header->token_count <= blocks * OX_CACHE_TOKENS_PER_BLOCK && header->document_count <= header->token_count &&
           header->trained_count <= header->token_count && header->longest <= header->token_count &&
           (header->document_count == 0) == (header->token_count == 0) &&
           (header->longest == 0) == (header->token_count == 0) && header->vocab <= vocab_max &&
           (header->is_chat & ~OX_CACHE_PAIRS) <= 2 &&
           ((header->is_chat & OX_CACHE_PAIRS) == 0 || header->document_count % 2 == 0) &&
           file_bytes % OX_CACHE_BLOCK_BYTES == 0 &&
           blocks == 1 + ox_div_up(header->token_count, OX_CACHE_TOKENS_PER_BLOCK) +
                         ox_div_up(header->document_count, OX_CACHE_DOCUMENTS_PER_BLOCK);
}

/* ---- public ----------------------------------------------------------------------------------------------------- */

enum ox_status ox_cache_create(const char *path, const char *folder, struct ox_cache_writer **out) {
    struct ox_cache_writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to write it", path != NULL ? path : folder);
    }
    writer->file.fd = writer->staged.fd = -1;
    const enum ox_status status = open_files(writer, path, folder);
    if (status != OX_OK) {
        ox_cache_discard(&writer);
        return status;
    }
    *out = writer;
    return OX_OK;
}

enum ox_status ox_cache_add(struct ox_cache_writer *writer, bool begins, const int32_t *ids, const uint8_t *trained,
                            size_t count) {
    struct ox_cache_header *const header = &writer->header;
    OX_ASSERT(begins || writer->is_begun);
    writer->is_begun = true;
    writer->is_pending = writer->is_pending || begins;
    for (size_t done = 0; done < count;) {
        enum ox_status status = OX_OK;
        const uint64_t place = header->token_count % OX_CACHE_TOKENS_PER_BLOCK;
        const size_t part = (size_t)ox_min_u64(count - done, OX_CACHE_TOKENS_PER_BLOCK - place);
        uint32_t *const words = writer->tokens.words + 2 + place;
        uint32_t id_max = writer->id_max, trained_count = 0;
        for (size_t i = 0; i < part; i++) {
            const uint32_t id = (uint32_t)ids[done + i];
            const uint32_t mark = trained == NULL || trained[done + i] != 0;
            id_max = id > id_max ? id : id_max;
            trained_count += mark;
            words[i] = id | mark << OX_CACHE_TRAINED_BIT;
        }
        if (writer->is_pending) {
            words[0] |= word_begins;
            status = begin_document(writer);
        }
        writer->id_max = id_max;
        header->trained_count += trained_count;
        header->token_count += part;
        done += part;
        if (status == OX_OK && place + part == OX_CACHE_TOKENS_PER_BLOCK) {
            status = flush_tokens(writer);
        }
        if (status != OX_OK) {
            return status;
        }
    }
    return OX_OK;
}

uint64_t ox_cache_token_count(const struct ox_cache_writer *writer) {
    return writer->header.token_count;
}

uint32_t ox_cache_id_limit(const struct ox_cache_writer *writer) {
    return writer->header.token_count > 0 ? writer->id_max + 1 : 0;
}

enum ox_status ox_cache_commit(struct ox_cache_writer **writer_in, const struct ox_cache_header *header, int *fd) {
    struct ox_cache_writer *const writer = *writer_in;
    struct ox_cache_header *const own = &writer->header;
    OX_ASSERT((fd != NULL) == (writer->path == NULL));
    OX_ASSERT(header->vocab <= vocab_max && (own->token_count == 0 || writer->id_max < header->vocab));
    own->longest = ox_max_u64(own->longest, own->token_count - writer->document_first);
    own->untrained_count = header->untrained_count;
    memcpy(own->key, header->key, sizeof own->key);
    own->source_bytes = header->source_bytes;
    own->vocab = header->vocab;
    own->is_chat = header->is_chat;
    own->bad_count = header->bad_count;
    enum ox_status status = append_documents(writer);
    OX_THEN(status, write_header(writer));
    if (status == OX_OK && writer->path != NULL) {
        status = publish(writer);
    } else if (status == OX_OK) {
        *fd = writer->file.fd;
        writer->file.fd = -1;
    }
    ox_cache_discard(writer_in);
    return status;
}

void ox_cache_discard(struct ox_cache_writer **writer) {
    if (*writer == NULL) {
        return;
    }
    if ((*writer)->path != NULL) {
        ox_file_discard(&(*writer)->file);
    } else {
        close_unnamed(&(*writer)->file);
    }
    close_unnamed(&(*writer)->staged);
    free((*writer)->path);
    free((*writer)->folder);
    free(*writer);
    *writer = NULL;
}

enum ox_status ox_cache_read_header(int fd, const char *where, struct ox_cache_header *header, uint64_t *salt) {
    struct stat info;
    struct start start;
    union block block;
    if (fstat(fd, &info) != 0) {
        return ox_fail_errno(OX_E_IO, errno, "%s: cannot examine", where);
    }
    struct ox_cache_file file = {.fd = fd, .where = where};
    enum ox_status status = read_raw(&file, 0, &block);
    if (status != OX_OK) {
        return status;
    }
    memcpy(&start, &block, sizeof start);
    file.salt = start.salt;
    if (memcmp(start.magic, magic, sizeof magic) != 0) {
        return ox_fail(OX_E_CORRUPT, "%s: is not a token cache; delete it to have it made again", where);
    }
    if (start.header.version != OX_CACHE_VERSION) {
        return ox_fail(OX_E_CORRUPT,
                       "%s: is a token cache of version %" PRIu32 ", but this program reads version %d; delete "
                       "it to have it made again",
                       where, start.header.version, OX_CACHE_VERSION);
    }
    status = check(&file, 0, &block);
    if (status != OX_OK) {
        return status;
    }
    if (info.st_size < 0 || !is_plausible(&start.header, (uint64_t)info.st_size)) {
        return ox_fail(OX_E_CORRUPT,
                       "%s: a token cache of %" PRIu64 " tokens and %" PRIu64 " documents cannot have %lld bytes; it "
                       "is cut off or damaged: delete it to have it made again",
                       where, start.header.token_count, start.header.document_count, (long long)info.st_size);
    }
    *header = start.header;
    *salt = start.salt;
    return OX_OK;
}

enum ox_status ox_cache_verify(const struct ox_cache_file *file, uint64_t bytes_max) {
    const struct ox_cache_header *const header = &file->header;
    const uint64_t blocks = 1 + ox_div_up(header->token_count, OX_CACHE_TOKENS_PER_BLOCK) +
                            ox_div_up(header->document_count, OX_CACHE_DOCUMENTS_PER_BLOCK);
    enum ox_status status = OX_OK;
    union block block;
    for (uint64_t i = 0; i < ox_min_u64(blocks, bytes_max / OX_CACHE_BLOCK_BYTES) && status == OX_OK; i++) {
        status = read_block(file, blocks - 1 - i, &block);
    }
    return status;
}

enum ox_status ox_cache_read_tokens(const struct ox_cache_file *file, uint64_t first, uint64_t count, uint32_t *words) {
    OX_ASSERT(first <= file->header.token_count && count <= file->header.token_count - first);
    union block block;
    for (uint64_t done = 0; done < count;) {
        const uint64_t place = (first + done) % OX_CACHE_TOKENS_PER_BLOCK;
        const uint64_t part = ox_min_u64(count - done, OX_CACHE_TOKENS_PER_BLOCK - place);
        const enum ox_status status = read_block(file, 1 + (first + done) / OX_CACHE_TOKENS_PER_BLOCK, &block);
        if (status != OX_OK) {
            return status;
        }
        memcpy(words + done, block.words + 2 + place, (size_t)part * sizeof *words);
        done += part;
    }
    return OX_OK;
}

enum ox_status ox_cache_read_documents(const struct ox_cache_file *file, uint64_t first, uint64_t count,
                                       uint64_t *begins) {
    OX_ASSERT(first <= file->header.document_count && count <= file->header.document_count - first);
    const uint64_t blocks_before = 1 + ox_div_up(file->header.token_count, OX_CACHE_TOKENS_PER_BLOCK);
    union block block;
    for (uint64_t done = 0; done < count;) {
        const uint64_t place = (first + done) % OX_CACHE_DOCUMENTS_PER_BLOCK;
        const uint64_t part = ox_min_u64(count - done, OX_CACHE_DOCUMENTS_PER_BLOCK - place);
        const uint64_t idx = blocks_before + (first + done) / OX_CACHE_DOCUMENTS_PER_BLOCK;
        const enum ox_status status = read_block(file, idx, &block);
        if (status != OX_OK) {
            return status;
        }
        memcpy(begins + done, block.numbers + 1 + place, (size_t)part * sizeof *begins);
        done += part;
    }
    return OX_OK;
}
