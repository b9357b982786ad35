/* A token cache. The input holds what its blocks say: a byte of faults, the rest of block 0, words of tokens, a line
 * "%%", document borders; blocks are filled up and get their checksums here, so that what stands behind those is
 * reached. Tokens read the same in any parts, with ids below the vocabulary. */
#include "tests/fuzz/fuzz.h"

#include "base/hash/hash.h"
#include "engine/data/data.h"
#include "engine/data/token_cache.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

enum {
    FAULT_CHECKSUM = 1, /* the checksum of one block is wrong */
    FAULT_CUT = 2,      /* the file ends early */
    START_BYTES = 88,   /* header fields of block 0 after its checksum: magic to salt */
    AREA_BYTES = OX_CACHE_BLOCK_BYTES - 8,
    BLOCKS_MAX = 4,
    VOCAB = 1 << 20,
    WRITTEN_MAX = 64,
};

static uint64_t seed_of(const uint8_t *start, uint64_t idx) {
    uint64_t salt = 0;
    memcpy(&salt, start + START_BYTES - sizeof salt, sizeof salt);
    return ox_hash_seed((const uint64_t[]){salt, idx}, 2);
}

/* Adds the blocks that the bytes need. */
static size_t add_blocks(uint8_t *file, size_t block_count, const struct fuzz_part *part) {
    for (size_t done = 0; done < part->bytes && block_count < BLOCKS_MAX; done += AREA_BYTES) {
        const size_t left = part->bytes - done;
        memcpy(file + block_count++ * OX_CACHE_BLOCK_BYTES + 8, part->text + done,
               left < AREA_BYTES ? left : AREA_BYTES);
    }
    return block_count;
}

static size_t make_file(const uint8_t *data, size_t bytes, uint8_t *file) {
    struct fuzz_part parts[2];
    const unsigned faults = bytes > 0 ? data[0] : 0;
    const size_t start_bytes = bytes <= 1 ? 0 : bytes - 1 < START_BYTES ? bytes - 1 : START_BYTES;
    const size_t used = bytes > 0 ? 1 + start_bytes : 0;
    memset(file, 0, (size_t)BLOCKS_MAX * OX_CACHE_BLOCK_BYTES);
    memcpy(file + 8, data + (bytes > 0), start_bytes);
    fuzz_split(data + used, bytes - used, parts, 2);
    const size_t count = add_blocks(file, add_blocks(file, 1, &parts[0]), &parts[1]);
    for (size_t i = 0; i < count; i++) {
        uint8_t *const block = file + i * OX_CACHE_BLOCK_BYTES;
        uint64_t hash = ox_hash64(block + 8, AREA_BYTES, seed_of(file + 8, i));
        hash ^= (faults & FAULT_CHECKSUM) != 0 && i == (faults >> 2) % count;
        memcpy(block, &hash, sizeof hash);
    }
    return count * OX_CACHE_BLOCK_BYTES - ((faults & FAULT_CUT) != 0);
}

/* Written as a cache and opened again they are the same; a document begins at the first of them in any case. */
static void check_written(const int32_t *tokens, const uint8_t *marks, size_t count) {
    const struct ox_cache_header header = {.vocab = VOCAB};
    struct ox_cache_writer *writer = NULL;
    struct ox_data *again = NULL;
    int32_t read[WRITTEN_MAX];
    uint8_t read_marks[WRITTEN_MAX];
    int fd = -1;
    FUZZ_CHECK(ox_cache_create(NULL, test_folder(), &writer) == OX_OK);
    for (size_t i = 0; i < count; i++) {
        const uint8_t trained = marks[i] & OX_TOKEN_TRAINED;
        const bool begins = i == 0 || (marks[i] & OX_TOKEN_BEGINS) != 0;
        FUZZ_CHECK(ox_cache_add(writer, begins, &tokens[i], &trained, 1) == OX_OK);
    }
    FUZZ_CHECK(ox_cache_token_count(writer) == count && ox_cache_commit(&writer, &header, &fd) == OX_OK);
    FUZZ_CHECK(ox_data_open_fd(fd, "unnamed", &again) == OX_OK && ox_data_token_count(again) == count);
    FUZZ_CHECK(ox_data_read(again, 0, count, VOCAB, read, read_marks) == OX_OK);
    FUZZ_CHECK(memcmp(read, tokens, count * sizeof *tokens) == 0 && (read_marks[0] & OX_TOKEN_BEGINS) != 0);
    FUZZ_CHECK(memcmp(read_marks + 1, marks + 1, count - 1) == 0);
    ox_data_close(&again);
}

static void check_tokens(const struct ox_data *data, const char *path) {
    const uint64_t count = ox_data_token_count(data), half = count / 2;
    int32_t *const whole = malloc(count * sizeof *whole), *const parts = malloc(count * sizeof *parts);
    uint8_t *const marks = malloc(count);
    FUZZ_CHECK(whole != NULL && parts != NULL && marks != NULL);
    enum ox_status status = ox_data_read(data, 0, count, VOCAB, whole, marks);
    if (status == OX_OK) {
        FUZZ_CHECK(ox_data_read(data, half, count - half, VOCAB, parts + half, NULL) == OX_OK);
        FUZZ_CHECK(ox_data_read(data, 0, half, VOCAB, parts, NULL) == OX_OK);
        FUZZ_CHECK(memcmp(whole, parts, count * sizeof *whole) == 0);
    } else {
        fuzz_check_failure(status, path);
    }
    for (uint64_t i = 0; status == OX_OK && i < count; i++) {
        FUZZ_CHECK(whole[i] >= 0 && whole[i] < VOCAB);
        FUZZ_CHECK((marks[i] & ~(OX_TOKEN_TRAINED | OX_TOKEN_BEGINS)) == 0);
    }
    if (status == OX_OK && count <= WRITTEN_MAX) {
        check_written(whole, marks, count);
    }
    free(whole);
    free(parts);
    free(marks);
}

static void check_documents(const struct ox_data *data, const char *path) {
    const uint64_t count = ox_data_document_count(data);
    uint64_t *const begins = malloc(count * sizeof *begins);
    FUZZ_CHECK(begins != NULL && count <= ox_data_token_count(data));
    const enum ox_status status = ox_data_documents(data, 0, count, begins);
    if (status != OX_OK) {
        fuzz_check_failure(status, path);
    }
    free(begins);
}

int fuzz_cache(const uint8_t *data, size_t bytes) {
    static uint8_t file[BLOCKS_MAX * OX_CACHE_BLOCK_BYTES];
    static const char *path;
    struct ox_data *opened = NULL;
    struct ox_cache_header header;
    path = path != NULL ? path : fuzz_path("tokens.cache");
    fuzz_write(path, file, make_file(data, bytes, file));
    const enum ox_status status = ox_data_open(path, OX_DATA_CACHE, &opened);
    fuzz_accepted = status == OX_OK;
    if (status != OX_OK) {
        FUZZ_CHECK(opened == NULL);
        fuzz_check_failure(status, path);
        return 0;
    }
    ox_data_cache_header(opened, &header);
    FUZZ_CHECK(ox_data_is_chat(opened) == (header.is_chat != 0));
    if (ox_data_token_count(opened) > 0) {
        check_tokens(opened, path);
        check_documents(opened, path);
    } else {
        FUZZ_CHECK(header.untrained_count > 0); /* rows that train nothing are counted, so that they can be told of */
    }
    ox_data_close(&opened);
    enum ox_data_kind kind = OX_DATA_AUTO;
    FUZZ_CHECK(ox_data_find_kind(path, &kind) == OX_OK && kind == OX_DATA_CACHE);
    return 0;
}
