/* safetensors files: hostile headers and sizes are refused, legal ones read, and what is written is read back. */
#include "base/bytes.h"
#include "base/planes.h"
#include "engine/hf/safetensors.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[OX_PATH_BYTES];

/* Writes a file of `header` and `data_bytes` zeros; `length` overrides the header's length unless UINT64_MAX.
 */
static void write_raw(const char *header, size_t header_bytes, uint64_t length, size_t data_bytes) {
    FILE *const file = fopen(path, "wb");
    const uint64_t field = length != UINT64_MAX ? length : header_bytes;
    fwrite(&field, 8, 1, file);
    fwrite(header, 1, header_bytes, file);
    for (size_t i = 0; i < data_bytes; i++) {
        fputc(0, file);
    }
    fclose(file);
}

static enum ox_status open_header(const char *header, size_t data_bytes) {
    struct ox_st_file *file = NULL;
    write_raw(header, strlen(header), UINT64_MAX, data_bytes);
    const enum ox_status status = ox_st_open(path, &file);
    CHECK((status == OX_OK) == (file != NULL));
    CHECK(status == OX_OK || strstr(ox_error_text(), path) != NULL);
    ox_st_close(&file);
    return status;
}

static void test_hostile(void) {
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *named;
    } cases[] = {
        {"", 0, "JSON"},
        {"[]", 0, "object"},
        {"{", 0, "JSON"},
        {"{}", 1, "follow"},
        {"{\"a\":1}", 0, "\"a\""},
        {"{\"\xff\":1}", 0, "JSON"},
        {"{\"__metadata__\":{\"n\":1}}", 0, "metadata"},
        {"{\"__metadata__\":[]}", 0, "metadata"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         8, "duplicate"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "dimension"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "dimension"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551616],\"data_offsets\":[0,4]}}", 4,
         "dimension"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "dimensions"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
         "overflow"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4,0],\"data_offsets\":[0,0]}}", 0,
         "overflow"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1152921504606846976],\"data_offsets\":[0,0]}}", 0, "overflow"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "match"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "match"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "before"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "hole"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
         12, "hole"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         8, "overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         8, "overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "cut off"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807],\"data_offsets\":[0,9223372036854775807]}"
         "}",
         9, "overflow"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1152921504606846975],\"data_offsets\":[0,1152921504606846975]}"
         "}",
         9, "cut off"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "follow"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const enum ox_status status = open_header(cases[i].header, cases[i].data_bytes);
        if (status != OX_E_CORRUPT || strstr(ox_error_text(), cases[i].named) == NULL) {
            printf("%s: %s\n", cases[i].header, ox_error_text());
        }
        CHECK(status == OX_E_CORRUPT);
        CHECK(strstr(ox_error_text(), cases[i].named) != NULL);
    }
}

/* Claims about the file itself: a header longer than it, a file shorter than a header, no file. */
/* A header of more tensors than any model has is refused before it is built, which would take 1 KiB for each. */
static void test_many(void) {
    enum { TENSORS = 100000, NAME_BYTES = 80 };
    char *const header = malloc((size_t)TENSORS * NAME_BYTES + 2);
    size_t used = 0;
    for (int i = 0; i < TENSORS; i++) {
        used += (size_t)snprintf(header + used, NAME_BYTES,
                                 "%c\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                                 i == 0 ? '{' : ',', i, i, i + 1);
    }
    memcpy(header + used, "}", 2);
    CHECK(open_header(header, TENSORS) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "reads at most 500000 there") != NULL);
    free(header);
}

static void test_hostile_files(void) {
    struct ox_st_file *file = NULL;
    static const uint64_t lengths[] = {3, 100000001, UINT64_MAX - 1, UINT64_MAX / 2, INT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        write_raw("{}", 2, lengths[i], 0);
        CHECK(ox_st_open(path, &file) == OX_E_CORRUPT);
    }
    files_write_text(path, "1234567");
    CHECK(ox_st_open(path, &file) == OX_E_CORRUPT);
    CHECK(ox_st_open(test_folder(), &file) == OX_E_CONFIG);
    CHECK(remove(path) == 0 && ox_st_open(path, &file) == OX_E_CONFIG && file == NULL);
}

static void test_legal(void) {
    CHECK(open_header("\t\n{}\r ", 0) == OX_OK);
    CHECK(open_header("{\"__metadata__\":{\"format\":\"pt\"}}", 0) == OX_OK);
    CHECK(open_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,0],\"data_offsets\":[0,0]}}", 0) == OX_OK);
    CHECK(open_header("{\"a\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}", 8) == OX_OK);
    CHECK(open_header("{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3) == OX_OK);
    /* The order of the header need not be that of the data. */
    CHECK(open_header("{\"b\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[3,7]},"
                      "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}",
                      7) == OX_OK);
    struct ox_st_file *file = NULL;
    float value[3];
    REQUIRE_OK(ox_st_open(path, &file));
    CHECK(ox_st_count(file) == 2 && strcmp(ox_st_entry(file, 0)->name, "a") == 0);
    CHECK(ox_st_entry(file, 0)->dtype == OX_DTYPE_OTHER);
    CHECK(ox_st_read_f32(file, ox_st_entry(file, 0), 0, 3, value) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "U8") != NULL);
    ox_st_close(&file);
    CHECK(remove(path) == 0);
}

/* Values that test every kind of half: zeros, subnormals, ones, largest, infinities, not a number. */
static const uint16_t halves[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x3c00, 0xc000,
                                  0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x3555, 0xb555};
static const double half_values[] = {0.0, -0.0,       0x1p-24,    -1023 * 0x1p-24, 0x1p-14,
                                     1.0, -2.0,       65504.0,    INFINITY,        -INFINITY,
                                     NAN, 0x1.554p-2, -0x1.554p-2};

static void test_round_trip(void) {
    enum { BIG = 3 * 2048, ODD = 5001 };
    static float big[BIG], back[BIG];
    static uint16_t odd[ODD];
    const struct ox_st_spec specs[] = {
        {.name = "halves", .dtype = OX_DTYPE_F16, .rank = 1, .shape = {13}},
        {.name = "odd", .dtype = OX_DTYPE_BF16, .rank = 1, .shape = {ODD}},
        {.name = "scalar", .dtype = OX_DTYPE_F32, .rank = 0},
        {.name = "big", .dtype = OX_DTYPE_F32, .rank = 2, .shape = {3, 2048}},
        {.name = "empty", .dtype = OX_DTYPE_F32, .rank = 2, .shape = {0, 7}},
    };
    for (int i = 0; i < BIG; i++) {
        big[i] = (float)(i * i) * 0x1.123456p-7f;
    }
    for (int i = 0; i < ODD; i++) {
        odd[i] = (uint16_t)(i * 13);
    }
    const float scalar = -0x1.fffffep127f;
    struct ox_st_writer *writer = NULL;
    REQUIRE_OK(ox_st_create(path, specs, 5, &writer));
    REQUIRE_OK(ox_st_write(writer, 2, 0, &scalar, 4));
    REQUIRE_OK(ox_st_write(writer, 3, 4000, (const char *)big + 4000, sizeof big - 4000));
    REQUIRE_OK(ox_st_write(writer, 0, 0, halves, sizeof halves));
    REQUIRE_OK(ox_st_write(writer, 1, 0, odd, sizeof odd));
    REQUIRE_OK(ox_st_write(writer, 3, 0, big, 4000));
    REQUIRE_OK(ox_st_finish(&writer));
    CHECK(writer == NULL);
    struct stat info;
    CHECK(stat(path, &info) == 0 && (uint64_t)info.st_size == ox_st_file_bytes(specs, 5));
    CHECK(ox_st_create(path, specs, 5, &writer) == OX_E_CONFIG && writer == NULL);

    struct ox_st_file *file = NULL;
    REQUIRE_OK(ox_st_open(path, &file));
    CHECK(ox_st_count(file) == 5 && strcmp(ox_st_path(file), path) == 0);
    for (uint32_t i = 0; i < 5; i++) {
        const struct ox_st_entry *const entry = ox_st_entry(file, i);
        CHECK(entry->offset % ox_max_u64(ox_dtype_bytes(entry->dtype), 1) == 0);
        if (strcmp(entry->name, "big") == 0) {
            CHECK(entry->offset % 4096 == 0 && entry->rank == 2 && entry->shape[1] == 2048);
            REQUIRE_OK(ox_st_read_f32(file, entry, 0, BIG, back));
            CHECK(memcmp(back, big, sizeof big) == 0);
            REQUIRE_OK(ox_st_read_f32(file, entry, 77, 5, back));
            CHECK(memcmp(back, big + 77, 5 * sizeof *back) == 0);
        } else if (strcmp(entry->name, "odd") == 0) {
            REQUIRE_OK(ox_st_read_f32(file, entry, 3, ODD - 3, back));
            int wrong = 0;
            for (int j = 3; j < ODD; j++) {
                wrong += ox_f32_bits(back[j - 3]) != (uint32_t)odd[j] << 16;
            }
            CHECK(wrong == 0);
        } else if (strcmp(entry->name, "halves") == 0) {
            REQUIRE_OK(ox_st_read_f32(file, entry, 0, 13, back));
            for (int j = 0; j < 13; j++) {
                CHECK(isnan(half_values[j]) ? isnan(back[j]) : back[j] == half_values[j]);
                CHECK(!signbit(back[j]) == !signbit(half_values[j]) || isnan(back[j]));
            }
        } else if (strcmp(entry->name, "scalar") == 0) {
            REQUIRE_OK(ox_st_read_f32(file, entry, 0, 1, back));
            CHECK(back[0] == scalar);
        } else {
            REQUIRE_OK(ox_st_read_f32(file, entry, 0, 0, back));
        }
    }
    ox_st_close(&file);
    CHECK(remove(path) == 0);
}

/* Sizes are counted without writing the header, whose pages end at the same character: names with all kinds of
 * characters, shapes and offsets of many digits. */
static void test_sizes(void) {
    enum { FEWEST = 3700, MOST = 4000 };
    char name[MOST + 1];
    struct ox_st_spec specs[] = {
        {.name = name, .dtype = OX_DTYPE_F32, .rank = 1, .shape = {1024}},
        {.name = "a \"quoted\" \\ name\twith \xc3\xa9 and /", .dtype = OX_DTYPE_BF16, .rank = 3, .shape = {1, 10, 999}},
        {.name = "scalar", .dtype = OX_DTYPE_F16, .rank = 0},
    };
    uint64_t last = 0;
    uint32_t steps = 0, wrong = 0;
    for (int length = FEWEST; length <= MOST; length++) {
        memset(name, 'n', (size_t)length);
        name[length] = '\0';
        struct ox_st_writer *writer = NULL;
        struct stat info = {.st_size = 0};
        REQUIRE_OK(ox_st_create(path, specs, 3, &writer));
        CHECK(stat(path, &info) == 0);
        const uint64_t bytes = ox_st_file_bytes(specs, 3);
        wrong += bytes != (uint64_t)info.st_size;
        steps += last > 0 && bytes > last;
        last = bytes;
        ox_st_discard(&writer);
    }
    CHECK(wrong == 0 && steps == 1);
}

static void test_refused_writes(void) {
    struct ox_st_writer *writer = NULL;
    const struct ox_st_spec huge = {
        .name = "huge", .dtype = OX_DTYPE_F32, .rank = 1, .shape = {UINT64_C(1) << 58}};
    CHECK(ox_st_create(path, &huge, 1, &writer) != OX_OK && writer == NULL);
    CHECK(!ox_path_is_file(path));
    const struct ox_st_spec small = {.name = "small", .dtype = OX_DTYPE_F32, .rank = 1, .shape = {4}};
    REQUIRE_OK(ox_st_create(path, &small, 1, &writer));
    CHECK(ox_path_is_file(path));
    ox_st_discard(&writer);
    ox_st_discard(&writer);
    CHECK(!ox_path_is_file(path));
    REQUIRE_OK(ox_st_create(path, NULL, 0, &writer));
    REQUIRE_OK(ox_st_finish(&writer));
    struct ox_st_file *file = NULL;
    REQUIRE_OK(ox_st_open(path, &file));
    CHECK(ox_st_count(file) == 0);
    ox_st_close(&file);
}

/* A file that is written to after it was opened is noticed. One that takes its name is not this file. */
static void test_changed(void) {
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    const struct timespec past[] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    struct ox_st_file *file = NULL;
    for (int kind = 0; kind < 4; kind++) {
        write_raw(header, strlen(header), UINT64_MAX, 4);
        CHECK(utimensat(AT_FDCWD, path, past, 0) == 0); /* clocks of files are coarse */
        REQUIRE_OK(ox_st_open(path, &file));
        if (kind == 1) {
            files_flip(path, -1);
        } else if (kind == 2) {
            CHECK(truncate(path, 8) == 0 && utimensat(AT_FDCWD, path, past, 0) == 0);
        } else if (kind == 3) {
            REQUIRE_OK(ox_file_replace(path, "other", 5));
        }
        const enum ox_status status = ox_st_verify(file);
        CHECK(status == (kind == 1 || kind == 2 ? OX_E_CORRUPT : OX_OK));
        CHECK(status == OX_OK || strstr(ox_error_text(), "was written to while it was read") != NULL);
        ox_st_close(&file);
    }
}

int main(void) {
    REQUIRE_OK(ox_path_join(test_folder(), "a.safetensors", path));
    test_hostile();
    test_hostile_files();
    test_many();
    test_legal();
    test_round_trip();
    test_sizes();
    test_refused_writes();
    test_changed();
    return test_end();
}
