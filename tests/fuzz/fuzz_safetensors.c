/* One safetensors file. What opens covers its bytes without hole or overlap, and reads as what stands in it. */
#include "tests/fuzz/fuzz.h"

#include "engine/hf/safetensors.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

/* The value that the file's bytes mean: exact for F32 and BF16. */
static uint32_t expected_bits(const uint8_t *bytes, enum ox_dtype dtype) {
    uint32_t wide = 0;
    uint16_t narrow = 0;
    if (dtype == OX_DTYPE_F32) {
        memcpy(&wide, bytes, sizeof wide);
        return wide;
    }
    memcpy(&narrow, bytes, sizeof narrow);
    return (uint32_t)narrow << 16;
}

static void check_values(const struct ox_st_file *file, const struct ox_st_entry *entry, const uint8_t *data) {
    const uint32_t elem_bytes = ox_dtype_bytes(entry->dtype);
    const uint64_t half = entry->count / 2;
    float *const whole = malloc((entry->count + 1) * sizeof *whole);
    float *const parts = malloc((entry->count + 1) * sizeof *parts);
    FUZZ_CHECK(whole != NULL && parts != NULL);
    FUZZ_CHECK(ox_st_read_f32(file, entry, 0, entry->count, whole) == OX_OK);
    FUZZ_CHECK(ox_st_read_f32(file, entry, 0, half, parts) == OX_OK);
    FUZZ_CHECK(ox_st_read_f32(file, entry, half, entry->count - half, parts + half) == OX_OK);
    FUZZ_CHECK(memcmp(whole, parts, entry->count * sizeof *whole) == 0);
    for (uint64_t i = 0; entry->dtype != OX_DTYPE_F16 && i < entry->count; i++) {
        const uint32_t expected = expected_bits(data + entry->offset + i * elem_bytes, entry->dtype);
        FUZZ_CHECK(memcmp(&expected, &whole[i], sizeof expected) == 0);
    }
    free(whole);
    free(parts);
}

static void check_entry(const struct ox_st_file *file, const struct ox_st_entry *entry, const uint8_t *data) {
    uint64_t count = 1;
    FUZZ_CHECK(entry->name != NULL && entry->rank <= OX_ST_RANK_MAX);
    for (uint32_t i = 0; i < entry->rank; i++) {
        FUZZ_CHECK(!__builtin_mul_overflow(count, entry->shape[i], &count));
    }
    FUZZ_CHECK(count == entry->count);
    if (entry->dtype != OX_DTYPE_OTHER) {
        FUZZ_CHECK(entry->bytes == count * ox_dtype_bytes(entry->dtype));
        FUZZ_CHECK(strcmp(ox_dtype_name(entry->dtype), entry->dtype_text) == 0);
        check_values(file, entry, data);
    } else {
        float none;
        fuzz_check_failure(ox_st_read_f32(file, entry, 0, 0, &none), ox_st_path(file));
    }
}

int fuzz_safetensors(const uint8_t *data, size_t bytes) {
    static const char *path;
    struct ox_st_file *file = NULL;
    if (path == NULL) {
        path = fuzz_path("model.safetensors");
        fuzz_check_failure(ox_st_open(test_folder(), &file), test_folder());
        ox_st_close(&file);
    }
    fuzz_write(path, data, bytes);
    const enum ox_status status = ox_st_open(path, &file);
    fuzz_accepted = status == OX_OK;
    if (status != OX_OK) {
        FUZZ_CHECK(file == NULL);
        fuzz_check_failure(status, path);
        return 0;
    }
    uint64_t header_bytes = 0;
    memcpy(&header_bytes, data, sizeof header_bytes);
    uint64_t end = sizeof header_bytes + header_bytes;
    for (uint32_t i = 0; i < ox_st_count(file); i++) {
        const struct ox_st_entry *const entry = ox_st_entry(file, i);
        FUZZ_CHECK(entry->offset == end && entry->bytes <= bytes - end);
        end += entry->bytes;
        check_entry(file, entry, data);
    }
    FUZZ_CHECK(end == bytes);
    ox_st_close(&file);
    FUZZ_CHECK(file == NULL);
    return 0;
}
