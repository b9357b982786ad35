/* Token files: one, or several as a folder. What opens has as many tokens as it says, reads the same in any parts, and
 * is the same data when it is opened again. */
#include "tests/fuzz/fuzz.h"

#include "base/file.h"
#include "engine/data/windows.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_COUNT = 3, ROWS_MAX = 32 };

static const char *folder, *files[FILE_COUNT];

/* Checks that documents begin where the marks of tokens say so. */
static void check_documents(const struct ox_data *data, const uint8_t *marks) {
    const uint64_t count = ox_data_document_count(data), tokens = ox_data_token_count(data);
    uint64_t begun = 0, begin = 0, last = 0;
    FUZZ_CHECK(count > 0 && count <= tokens && (marks[0] & OX_TOKEN_BEGINS) != 0);
    for (uint64_t i = 0; i < tokens; i++) {
        begun += (marks[i] & OX_TOKEN_BEGINS) != 0;
    }
    FUZZ_CHECK(begun == count);
    for (uint64_t i = 0; i < count; i++) {
        FUZZ_CHECK(ox_data_documents(data, i, 1, &begin) == OX_OK);
        FUZZ_CHECK(begin < tokens && (i == 0 ? begin == 0 : begin > last) && (marks[begin] & OX_TOKEN_BEGINS) != 0);
        last = begin;
    }
}

static void check_tokens(const struct ox_data *data, size_t bytes) {
    const uint64_t count = ox_data_token_count(data), half = count / 2;
    FUZZ_CHECK(count > 0 && count <= bytes);
    int32_t *const whole = malloc(count * sizeof *whole), *const parts = malloc(count * sizeof *parts);
    uint8_t *const marks = malloc(count), *const marks_parts = malloc(count);
    FUZZ_CHECK(whole != NULL && parts != NULL && marks != NULL && marks_parts != NULL);
    const enum ox_status status = ox_data_read(data, 0, count, INT_MAX, whole, marks);
    if (status == OX_OK) {
        FUZZ_CHECK(ox_data_read(data, half, count - half, INT_MAX, parts + half, marks_parts + half) == OX_OK);
        FUZZ_CHECK(ox_data_read(data, 0, half, INT_MAX, parts, marks_parts) == OX_OK);
        FUZZ_CHECK(memcmp(whole, parts, count * sizeof *whole) == 0);
        FUZZ_CHECK(memcmp(marks, marks_parts, count) == 0);
        check_documents(data, marks);
    } else {
        FUZZ_CHECK(status == OX_E_CORRUPT); /* an id of 2^31 - 1 or more */
        fuzz_check_failure(status, folder);
    }
    free(whole);
    free(parts);
    free(marks);
    free(marks_parts);
}

/* The first rows of an epoch can be filled, packed or not, and no target lies outside of the vocabulary. */
static void check_windows(const struct ox_data *data, enum ox_packing packing) {
    const struct ox_window_source source = {
        .data = data, .weight = 1, .token_count = ox_data_token_count(data)};
    const struct ox_windows_config config = {.sources = &source, .source_count = 1, .seq = 3, .vocab = INT32_MAX,
                                       .document_mask = true, .tail = true, .bos = -1, .seed = 5,
                                       .packing = packing};
    struct ox_windows *windows = NULL;
    struct ox_windows_counts counts;
    int32_t ids[3], positions[3], targets[3];
    const struct ox_window_row row = {ids, positions, targets};
    if (ox_windows_open(&config, &windows) != OX_OK) {
        return;
    }
    ox_windows_counts(windows, &counts);
    for (uint64_t i = 0; i < counts.rows && i < ROWS_MAX; i++) {
        uint64_t target_count = 0;
        if (ox_windows_fill(windows, i, row, &target_count) != OX_OK) {
            break;
        }
        FUZZ_CHECK(target_count <= 3 && positions[0] == 0);
        for (int k = 0; k < 3; k++) {
            FUZZ_CHECK(ids[k] >= 0 && targets[k] >= OX_TARGET_PADDING && positions[k] <= k);
        }
    }
    ox_windows_close(&windows);
}

static void take(const char *path, enum ox_data_kind kind, size_t bytes) {
    struct ox_data *data = NULL;
    const enum ox_status status = ox_data_open(path, kind, &data);
    fuzz_accepted = fuzz_accepted || (status == OX_OK && ox_data_kind_of(data) != OX_DATA_BYTES);
    if (status != OX_OK) {
        FUZZ_CHECK(data == NULL);
        fuzz_check_failure(status, folder);
        return;
    }
    const uint64_t fingerprint = ox_data_fingerprint(data);
    check_tokens(data, bytes);
    /* One packing for each input, and few that are opened again: other inputs like this one get the others. */
    check_windows(data, (enum ox_packing)(OX_PACK_STREAM + bytes % (OX_PACK_PAD - OX_PACK_STREAM + 1)));
    ox_data_close(&data);
    if (bytes % 4 == 0) {
        FUZZ_CHECK(ox_data_open(path, kind, &data) == OX_OK && ox_data_fingerprint(data) == fingerprint);
        ox_data_close(&data);
    }
}

int fuzz_data(const uint8_t *data, size_t bytes) {
    struct fuzz_part parts[FILE_COUNT];
    if (folder == NULL) {
        files[0] = fuzz_path("data/a");
        files[1] = fuzz_path("data/b");
        files[2] = fuzz_path("data/c");
        folder = fuzz_path("data");
    }
    fuzz_split(data, bytes, parts, FILE_COUNT);
    for (size_t i = 0; i < FILE_COUNT; i++) {
        fuzz_write_part(files[i], &parts[i]);
    }
    fuzz_accepted = false;
    take(parts[1].bytes > 0 ? folder : files[0], OX_DATA_AUTO, bytes);
    take(files[0], OX_DATA_LLMC, bytes);
    take(files[0], OX_DATA_LLMQ, bytes);
    return 0;
}
