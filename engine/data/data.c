/* Opens token files and caches, checks their headers, and reads tokens and documents from them. */
#include "engine/data/data.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash/hash.h"
#include "base/log.h"
#include "engine/data/files.h"
#include "engine/data/token_cache.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEADER_BYTES = 1024, /* header of llm.c and llmq files */
    KEPT_OPEN_MAX = 64,  /* files that stay open; the others are opened for every read */
    BLOCK_BYTES = 16 << 10,
    SAMPLE_BYTES = 4096,
    SAMPLE_COUNT = 16,
};
static const uint64_t verify_bytes_max = UINT64_C(2) << 30; /* what lies before is verified when it is read */

static const int32_t llmc_gpt2_magic = 20240520, llmc_llama3_magic = 20240801, llmc_eval_magic = 20240522;
static const char llmq_magic[8] = {'B', 'I', 'N', '.', 'T', 'O', 'K', '\n'};

struct data_file {
    const char *path; /* owned by ox_data.listed */
    int fd; /* -1: opened for every read */
    uint64_t file_bytes;
    uint64_t token_first; /* index in the whole data of its first token */
    uint64_t token_count;
    uint64_t document_first; /* number of earlier files with tokens: its document's index, if it has tokens */
    uint64_t token_offset;   /* bytes */
    uint64_t mask_offset;    /* bytes; 0: every token is a target */
    uint32_t token_bytes;    /* 1, 2 or 4 */
};

struct ox_data {
    enum ox_data_kind kind;
    struct ox_files listed;
    struct data_file *files; /* one for each listed path, in the same order */
    uint32_t file_count;
    uint64_t token_count, document_count;
    uint64_t fingerprint;
    struct ox_cache_file cache; /* only with kind CACHE, which has one file */
    bool is_remade;             /* the cache may be deleted when it is damaged */
};

static enum ox_status fail_memory(const char *path) {
    return ox_fail(OX_E_NOMEM, "%s: no memory to list the files", path);
}

static void drop_files(struct ox_data *data) {
    for (uint32_t i = 0; i < data->file_count; i++) {
        if (data->files[i].fd >= 0) {
            close(data->files[i].fd);
        }
    }
    free(data->files);
    data->files = NULL;
    data->file_count = 0;
    ox_files_free(&data->listed);
}

/* Takes over the files. */
static enum ox_status take_files(struct ox_data *data, struct ox_files *files) {
    data->listed = *files;
    *files = (struct ox_files){0};
    data->files = calloc((size_t)data->listed.count + 1, sizeof *data->files);
    if (data->files == NULL) {
        return fail_memory(data->listed.root);
    }
    data->file_count = data->listed.count;
    for (uint32_t i = 0; i < data->file_count; i++) {
        data->files[i] = (struct data_file){.path = data->listed.paths[i], .fd = -1};
    }
    return OX_OK;
}

static enum ox_status fail_header(const struct data_file *file, const char *what, int64_t value) {
    return ox_fail(OX_E_CORRUPT, "%s: the header of the token file has a wrong %s, %" PRId64
                   "; it is damaged or has another version of the format: make it again", file->path, what, value);
}

static enum ox_status read_llmc(struct data_file *file, const int32_t *header) {
    const bool wide = header[0] == llmc_llama3_magic;
    if (header[0] != llmc_gpt2_magic && !wide) {
        return fail_header(file, "magic number", header[0]);
    }
    if (header[1] != (wide ? 7 : 1)) {
        return fail_header(file, "version", header[1]);
    }
    file->token_bytes = wide ? 4 : 2;
    return header[2] >= 0 ? OX_OK : fail_header(file, "number of tokens", header[2]);
}

static enum ox_status read_llmq(struct data_file *file, const int32_t *header, bool *masked) {
    if (memcmp(header, llmq_magic, sizeof llmq_magic) != 0) {
        return fail_header(file, "magic number", header[0]);
    }
    if (header[2] != 1 && header[2] != 2) {
        return fail_header(file, "version", header[2]);
    }
    if (header[3] != 4) {
        return fail_header(file, "size of a token", header[3]);
    }
    file->token_bytes = 4;
    *masked = header[2] == 2 && header[6] == 1;
    /* Writers of older versions left filler in this field. */
    if (header[2] == 2 && header[6] != 0 && header[6] != 1 && header[6] != 0x2a2a2a2a) {
        return fail_header(file, "mask flag", header[6]);
    }
    return header[4] >= 0 ? OX_OK : fail_header(file, "number of tokens", header[4]);
}

/* Reads where the tokens of an open file begin and how many there are, and checks this against its size. */
static enum ox_status read_header(struct data_file *file, int fd, enum ox_data_kind kind) {
    if (kind == OX_DATA_BYTES) {
        file->token_bytes = 1;
        file->token_count = file->file_bytes;
        return OX_OK;
    }
    int32_t header[HEADER_BYTES / 4];
    bool masked = false;
    enum ox_status status = ox_file_read_at(fd, file->path, header, sizeof header, 0);
    OX_THEN(status, kind == OX_DATA_LLMC ? read_llmc(file, header) : read_llmq(file, header, &masked));
    if (status != OX_OK) {
        return status;
    }
    file->token_offset = HEADER_BYTES;
    file->token_count = (uint64_t)header[kind == OX_DATA_LLMC ? 2 : 4]; /* below 2^31 */
    const uint64_t mask_offset = HEADER_BYTES + file->token_count * file->token_bytes;
    const uint64_t expected = mask_offset + (masked ? ox_div_up(file->token_count, 8) : 0);
    file->mask_offset = masked ? mask_offset : 0;
    if (file->file_bytes != expected) {
        return ox_fail(OX_E_CORRUPT,
                       "%s: has %" PRIu64 " bytes, but %" PRIu64 " tokens, as its header says, need %" PRIu64
                       "; it is damaged or unfinished: make it again",
                       file->path, file->file_bytes, file->token_count, expected);
    }
    return OX_OK;
}

static enum ox_status open_files(struct ox_data *data, const char *path) {
    for (uint32_t i = 0; i < data->file_count; i++) {
        struct data_file *const file = &data->files[i];
        int fd = -1;
        enum ox_status status = ox_file_open_input(file->path, &fd, &file->file_bytes);
        if (status != OX_OK) {
            return status;
        }
        status = read_header(file, fd, data->kind);
        if (data->file_count <= KEPT_OPEN_MAX) {
            file->fd = fd;
        } else {
            close(fd);
        }
        if (status != OX_OK) {
            return status;
        }
        file->token_first = data->token_count;
        file->document_first = data->document_count;
        data->token_count += file->token_count;
        data->document_count += file->token_count > 0;
    }
    return data->token_count > 0 ? OX_OK
                                 : ox_fail(OX_E_CONFIG, "%s: holds no tokens; give a file that is not empty", path);
}

/* The last file whose first token, or with `by_document` whose first document, has an index up to `idx`. Where several
 * files begin there, the others are empty. */
static uint32_t file_at(const struct ox_data *data, uint64_t idx, bool by_document) {
    uint32_t low = 0, high = data->file_count;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        const struct data_file *const file = &data->files[middle];
        if ((by_document ? file->document_first : file->token_first) <= idx) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Gets a descriptor of the file, whose size must not have changed; the caller closes it unless it is file->fd. */
static enum ox_status reopen(const struct data_file *file, int *fd) {
    if (file->fd >= 0) {
        *fd = file->fd;
        return OX_OK;
    }
    uint64_t bytes = 0;
    enum ox_status status = ox_file_open_input(file->path, fd, &bytes);
    if (status == OX_OK && bytes != file->file_bytes) {
        close(*fd);
        status = ox_fail(OX_E_CORRUPT, "%s: has changed its size since it was opened; start again", file->path);
    }
    return status;
}

/* Opens the one file, whose descriptor is open, as a cache. The fingerprint needs no content, since the key decides
 * it. */
static enum ox_status open_cache(struct ox_data *data) {
    struct ox_cache_file *const cache = &data->cache;
    const struct ox_cache_header *const header = &cache->header;
    cache->fd = data->files[0].fd;
    cache->where = data->files[0].path;
    OX_TRY(ox_cache_read_header(cache->fd, cache->where, &cache->header, &cache->salt));
    data->token_count = header->token_count;
    data->document_count = header->document_count;
    const uint64_t words[] = {(uint64_t)data->kind, header->key[0],         header->key[1],
                              header->token_count,  header->document_count, header->trained_count};
    data->fingerprint = ox_hash_seed(words, sizeof words / sizeof *words);
    return data->token_count > 0 || header->untrained_count > 0
               ? OX_OK : ox_fail(OX_E_CONFIG, "%s: holds no tokens", cache->where);
}

static enum ox_status open_cache_file(struct ox_data *data, const char *path) {
    if (data->file_count != 1 || ox_path_is_folder(path)) {
        return ox_fail(OX_E_CONFIG, "%s: is a folder, but a token cache is a single file; give that file", path);
    }
    const enum ox_status status = ox_file_open_input(path, &data->files[0].fd, &data->files[0].file_bytes);
    return status == OX_OK ? open_cache(data) : status;
}

static int64_t token_at(const unsigned char *block, uint64_t idx, uint32_t token_bytes) {
    if (token_bytes == 1) {
        return block[idx];
    }
    if (token_bytes == 2) {
        uint16_t value;
        memcpy(&value, block + 2 * idx, sizeof value);
        return value;
    }
    uint32_t value;
    memcpy(&value, block + 4 * idx, sizeof value);
    return value;
}

static enum ox_status read_marks(const struct data_file *file, int fd, uint64_t first, uint64_t count, uint8_t *marks) {
    unsigned char block[BLOCK_BYTES];
    for (uint64_t i = 0; i < count && file->mask_offset == 0; i++) {
        marks[i] = OX_TOKEN_TRAINED;
    }
    for (uint64_t done = 0; done < count && file->mask_offset != 0;) {
        const uint64_t bit = first + done, skipped = bit % 8;
        const uint64_t part = ox_min_u64(count - done, 8 * BLOCK_BYTES - skipped);
        const enum ox_status status =
            ox_file_read_at(fd, file->path, block, (size_t)ox_div_up(skipped + part, 8), file->mask_offset + bit / 8);
        if (status != OX_OK) {
            return status;
        }
        for (uint64_t i = 0; i < part; i++) {
            marks[done + i] = block[(skipped + i) / 8] >> (skipped + i) % 8 & 1 ? OX_TOKEN_TRAINED : 0;
        }
        done += part;
    }
    if (first == 0 && count > 0) {
        marks[0] |= OX_TOKEN_BEGINS;
    }
    return OX_OK;
}

static enum ox_status fail_id(const char *path, uint64_t token, int64_t id, uint32_t vocab) {
    return ox_fail(OX_E_CORRUPT,
                   "%s: token %" PRIu64 " has the id %" PRId64 ", but the model knows %" PRIu32
                   " tokens: they are of another tokenizer; tokenize the text again with the model's",
                   path, token, id, vocab);
}

/* Reads tokens of one file; `first` counts from the file's first token. */
static enum ox_status read_tokens(const struct data_file *file, int fd, uint64_t first, uint64_t count, uint32_t vocab,
                                  int32_t *tokens) {
    unsigned char block[BLOCK_BYTES];
    for (uint64_t done = 0; done < count;) {
        const uint64_t part = ox_min_u64(count - done, BLOCK_BYTES / file->token_bytes);
        const enum ox_status status = ox_file_read_at(fd, file->path, block, (size_t)(part * file->token_bytes),
                                                      file->token_offset + (first + done) * file->token_bytes);
        if (status != OX_OK) {
            return status;
        }
        for (uint64_t i = 0; i < part; i++) {
            const int64_t id = token_at(block, i, file->token_bytes);
            if (id >= (int64_t)vocab) {
                return fail_id(file->path, first + done + i, id, vocab);
            }
            tokens[done + i] = (int32_t)id;
        }
        done += part;
    }
    return OX_OK;
}

/* Deletes a damaged cache that can be made again, unless its name is another file's by now. */
static enum ox_status drop_damaged(const struct ox_data *data, enum ox_status status) {
    struct stat own, named;
    const char *const path = data->cache.where;
    if (status != OX_E_CORRUPT || !data->is_remade || fstat(data->cache.fd, &own) != 0 || stat(path, &named) != 0 ||
        own.st_dev != named.st_dev || own.st_ino != named.st_ino || unlink(path) != 0) {
        return status;
    }
    return ox_fail(OX_E_CORRUPT, "%s: the token cache is damaged and is deleted; start again and it is made again; "
                   "check the disk", path);
}

/* Reads the words of a cache into `tokens` and splits them there into ids and marks. */
static enum ox_status read_cache(const struct ox_data *data, uint64_t first, uint64_t count, uint32_t vocab,
                                 int32_t *tokens, uint8_t *marks) {
    uint32_t *const words = (uint32_t *)tokens;
    OX_TRY(drop_damaged(data, ox_cache_read_tokens(&data->cache, first, count, words)));
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t word = words[i], id = word & ((UINT32_C(1) << OX_CACHE_BEGINS_BIT) - 1);
        if (id >= vocab) {
            return fail_id(data->cache.where, first + i, id, vocab);
        }
        if (marks != NULL) {
            marks[i] = (uint8_t)((word >> OX_CACHE_TRAINED_BIT & 1 ? OX_TOKEN_TRAINED : 0) |
                                 (word >> OX_CACHE_BEGINS_BIT & 1 ? OX_TOKEN_BEGINS : 0));
        }
        tokens[i] = (int32_t)id;
    }
    return OX_OK;
}

/* Hashes the sizes of all files and samples from all over the data. This is enough to notice other data, and cheap at
 * any size. */
static enum ox_status find_fingerprint(struct ox_data *data) {
    uint64_t hash = ox_hash_seed((const uint64_t[]){(uint64_t)data->kind, data->file_count, data->token_count}, 3);
    for (uint32_t i = 0; i < data->file_count; i++) {
        hash = ox_hash64(&data->files[i].token_count, sizeof data->files[i].token_count, hash);
    }
    const uint64_t last = data->token_count - 1, steps = SAMPLE_COUNT - 1;
    for (uint64_t i = 0; i <= steps; i++) {
        const uint64_t token = last / steps * i + last % steps * i / steps;
        const struct data_file *const file = &data->files[file_at(data, token, false)];
        unsigned char sample[SAMPLE_BYTES];
        uint64_t offset = file->token_offset + (token - file->token_first) * file->token_bytes;
        const size_t bytes = (size_t)ox_min_u64(SAMPLE_BYTES, file->file_bytes);
        int fd = -1;
        offset = ox_min_u64(offset, file->file_bytes - bytes);
        enum ox_status status = reopen(file, &fd);
        if (status != OX_OK) {
            return status;
        }
        status = ox_file_read_at(fd, file->path, sample, bytes, offset);
        if (fd != file->fd) {
            close(fd);
        }
        if (status != OX_OK) {
            return status;
        }
        hash = ox_hash64(sample, bytes, hash);
    }
    data->fingerprint = hash;
    return OX_OK;
}

enum ox_status ox_data_kind_of_file(const char *path, enum ox_data_kind *kind) {
    unsigned char start[OX_CACHE_MAGIC_OFFSET + 8] = {0};
    uint64_t bytes = 0;
    int32_t magic;
    *kind = OX_DATA_BYTES;
    enum ox_status status = ox_file_read_start(path, start, sizeof start, &bytes);
    if (status != OX_OK) {
        return status;
    }
    memcpy(&magic, start, sizeof magic);
    if (memcmp(start + OX_CACHE_MAGIC_OFFSET, OX_CACHE_MAGIC, 8) == 0) {
        *kind = OX_DATA_CACHE; /* tested first, because its first 8 bytes are a checksum, which may be any value */
    } else if (bytes >= sizeof llmq_magic && memcmp(start, llmq_magic, sizeof llmq_magic) == 0) {
        *kind = OX_DATA_LLMQ;
    } else if (bytes >= sizeof magic && (magic == llmc_gpt2_magic || magic == llmc_llama3_magic)) {
        *kind = OX_DATA_LLMC;
    } else if (bytes >= sizeof magic && magic == llmc_eval_magic) {
        status =
            ox_fail(OX_E_CONFIG,
                    "%s: is an evaluation file of llm.c, which has questions and no text; give a token file", path);
    }
    return status;
}

enum ox_status ox_data_kind_of_files(const struct ox_files *files, enum ox_data_kind *kind) {
    enum ox_status status = OX_OK;
    *kind = OX_DATA_BYTES;
    for (uint32_t i = 0; i < files->count && status == OX_OK; i++) {
        const enum ox_data_kind before = *kind;
        status = ox_data_kind_of_file(files->paths[i], kind);
        if (status == OX_OK && i > 0 && *kind != before) {
            status = ox_fail(OX_E_CONFIG,
                             "%s: has another format than %s; keep token files and other files in separate folders",
                             files->paths[i], files->paths[0]);
        }
    }
    return status;
}

enum ox_status ox_data_find_kind(const char *path, enum ox_data_kind *kind) {
    struct ox_files files;
    enum ox_status status = ox_files_list(path, &files);
    OX_THEN(status, ox_data_kind_of_files(&files, kind));
    ox_files_free(&files);
    return status;
}

enum ox_status ox_data_open(const char *path, enum ox_data_kind kind, struct ox_data **out) {
    struct ox_files files;
    enum ox_status status = ox_files_list(path, &files);
    if (status == OX_OK && kind == OX_DATA_AUTO) {
        status = ox_data_kind_of_files(&files, &kind);
    }
    OX_THEN(status, ox_data_open_files(&files, kind, out));
    ox_files_free(&files);
    return status;
}

enum ox_status ox_data_open_files(struct ox_files *files, enum ox_data_kind kind, struct ox_data **out) {
    struct ox_data *data = calloc(1, sizeof *data);
    if (data == NULL) {
        return fail_memory(files->root);
    }
    data->kind = kind;
    ox_path_warn_shared(files->root);
    enum ox_status status = take_files(data, files);
    const char *const path = data->listed.root;
    if (status == OX_OK && data->kind == OX_DATA_CACHE) {
        status = open_cache_file(data, path);
    } else if (status == OX_OK) {
        status = open_files(data, path);
        OX_THEN(status, find_fingerprint(data));
    }
    if (status != OX_OK) {
        ox_data_close(&data);
        return status;
    }
    *out = data;
    return OX_OK;
}

/* Makes `where` the path of the only file, for messages. */
static enum ox_status own_file(struct ox_data *data, const char *where) {
    data->listed.paths = calloc(1, sizeof *data->listed.paths);
    data->files = calloc(1, sizeof *data->files);
    char *const name = strdup(where);
    if (data->listed.paths == NULL || data->files == NULL || name == NULL) {
        free(name);
        return fail_memory(where);
    }
    data->listed.paths[0] = name;
    data->listed.count = data->file_count = 1;
    data->files[0] = (struct data_file){.path = name, .fd = -1};
    return OX_OK;
}

enum ox_status ox_data_open_fd(int fd, const char *where, struct ox_data **out) {
    struct ox_data *data = calloc(1, sizeof *data);
    enum ox_status status = data != NULL ? own_file(data, where) : fail_memory(where);
    if (status == OX_OK) {
        data->kind = OX_DATA_CACHE;
        data->files[0].fd = fd;
        status = open_cache(data);
    } else {
        close(fd);
    }
    if (status != OX_OK) {
        ox_data_close(&data);
        return status;
    }
    *out = data;
    return OX_OK;
}

void ox_data_close(struct ox_data **data) {
    if (*data != NULL) {
        drop_files(*data);
        free(*data);
        *data = NULL;
    }
}

uint64_t ox_data_token_count(const struct ox_data *data) {
    return data->token_count;
}

enum ox_data_kind ox_data_kind_of(const struct ox_data *data) {
    return data->kind;
}

uint64_t ox_data_fingerprint(const struct ox_data *data) {
    return data->fingerprint;
}

uint64_t ox_data_document_count(const struct ox_data *data) {
    return data->document_count;
}

/* Reads the first tokens of documents and checks their order: a checksum proves that the file is as it was written, not
 * that it was written correctly. */
static enum ox_status read_borders(const struct ox_data *data, uint64_t first, uint64_t count, uint64_t *begins) {
    const enum ox_status status = drop_damaged(data, ox_cache_read_documents(&data->cache, first, count, begins));
    for (uint64_t i = 0; status == OX_OK && i < count; i++) {
        const bool rises = i == 0 ? (begins[0] == 0) == (first == 0) : begins[i] > begins[i - 1];
        if (!rises || begins[i] >= data->token_count) {
            return ox_fail(OX_E_CORRUPT, "%s: document %" PRIu64 " begins with token %" PRIu64 ", which is out of "
                           "order; delete the file to have it made again", data->cache.where, first + i, begins[i]);
        }
    }
    return status;
}

enum ox_status ox_data_documents(const struct ox_data *data, uint64_t first, uint64_t count, uint64_t *begins) {
    OX_ASSERT(first <= data->document_count && count <= data->document_count - first);
    if (data->kind == OX_DATA_CACHE) {
        return read_borders(data, first, count, begins);
    }
    uint64_t done = 0;
    for (uint32_t i = file_at(data, first, true); done < count; i++) {
        if (data->files[i].token_count > 0) {
            begins[done++] = data->files[i].token_first;
        }
    }
    return OX_OK;
}

uint64_t ox_data_untrained_count(const struct ox_data *data) {
    return data->kind == OX_DATA_CACHE ? data->cache.header.untrained_count : 0;
}

bool ox_data_is_chat(const struct ox_data *data) {
    return data->kind == OX_DATA_CACHE && data->cache.header.is_chat != 0;
}

bool ox_data_is_pairs(const struct ox_data *data) {
    return data->kind == OX_DATA_CACHE && (data->cache.header.is_chat & OX_CACHE_PAIRS) != 0;
}

bool ox_data_has_conversations(const struct ox_data *data) {
    return data->kind == OX_DATA_CACHE && (data->cache.header.is_chat & ~OX_CACHE_PAIRS) == 2;
}

bool ox_data_all_trained(const struct ox_data *data) {
    if (data->kind == OX_DATA_CACHE) {
        return data->cache.header.trained_count == data->cache.header.token_count;
    }
    bool all = true;
    for (uint32_t i = 0; i < data->file_count; i++) {
        all = all && data->files[i].mask_offset == 0;
    }
    return all;
}

bool ox_data_may_train(const struct ox_data *data) {
    return data->kind == OX_DATA_CACHE ? data->cache.header.trained_count > 0 : true;
}

void ox_data_cache_header(const struct ox_data *data, struct ox_cache_header *out) {
    OX_ASSERT(data->kind == OX_DATA_CACHE);
    *out = data->cache.header;
}

enum ox_status ox_data_verify_cache(struct ox_data *data) {
    OX_ASSERT(data->kind == OX_DATA_CACHE);
    data->is_remade = true;
    return ox_cache_verify(&data->cache, verify_bytes_max);
}

enum ox_status ox_data_read(const struct ox_data *data, uint64_t first, uint64_t count, uint32_t vocab, int32_t *tokens,
                            uint8_t *marks) {
    OX_ASSERT(first <= data->token_count && count <= data->token_count - first);
    if (data->kind == OX_DATA_CACHE) {
        return read_cache(data, first, count, vocab, tokens, marks);
    }
    for (uint64_t done = 0; done < count;) {
        const struct data_file *const file = &data->files[file_at(data, first + done, false)];
        const uint64_t from = first + done - file->token_first;
        const uint64_t part = ox_min_u64(count - done, file->token_count - from);
        int fd = -1;
        enum ox_status status = reopen(file, &fd);
        if (status != OX_OK) {
            return status;
        }
        status = read_tokens(file, fd, from, part, vocab, tokens + done);
        if (status == OX_OK && marks != NULL) {
            status = read_marks(file, fd, from, part, marks + done);
        }
        if (fd != file->fd) {
            close(fd);
        }
        if (status != OX_OK) {
            return status;
        }
        done += part;
    }
    return OX_OK;
}
