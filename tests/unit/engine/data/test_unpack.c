/* Compressed files read as what they hold, in any steps, of several members; one that is cut or damaged anywhere is an
 * error or reads the same; one that unpacks to what no text does is refused. */
#include "engine/data/unpack.h"

#include "base/file.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <lzma.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { TEXT_BYTES = 300000, SMALL_BYTES = 700 };

struct bytes {
    unsigned char *data;
    size_t count;
};

static struct bytes pack_gzip(const void *text, size_t bytes) {
    struct bytes out = {malloc(bytes + 1024), bytes + 1024};
    z_stream stream = {.next_in = (Bytef *)(uintptr_t)text, .avail_in = (uInt)bytes, .next_out = out.data,
                       .avail_out = (uInt)out.count};
    CHECK(deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY) == Z_OK);
    CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
    out.count = stream.total_out;
    deflateEnd(&stream);
    return out;
}

static struct bytes pack_zstd(const void *text, size_t bytes) {
    struct bytes out = {malloc(ZSTD_compressBound(bytes)), 0};
    ZSTD_CCtx *const context = ZSTD_createCCtx();
    CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1)));
    out.count = ZSTD_compress2(context, out.data, ZSTD_compressBound(bytes), text, bytes);
    CHECK(!ZSTD_isError(out.count));
    ZSTD_freeCCtx(context);
    return out;
}

static struct bytes pack_xz(const void *text, size_t bytes) {
    struct bytes out = {malloc(lzma_stream_buffer_bound(bytes)), 0};
    CHECK(lzma_easy_buffer_encode(6, LZMA_CHECK_CRC64, NULL, text, bytes, out.data, &out.count,
                                  lzma_stream_buffer_bound(bytes)) == LZMA_OK);
    return out;
}

static const struct {
    const char *name;
    struct bytes (*pack)(const void *text, size_t bytes);
} kinds[] = {{"a.txt.gz", pack_gzip}, {"a.txt.zst", pack_zstd}, {"a.txt.xz", pack_xz}};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds };

/* Text that shrinks, but not to nothing. */
static char *make_text(size_t bytes) {
    char *const text = malloc(bytes + 1);
    uint32_t state = 1;
    for (size_t i = 0; i < bytes; i++) {
        state = state * UINT32_C(1664525) + UINT32_C(1013904223);
        text[i] = (char)(i % 60 == 59 ? '\n' : 'a' + (state >> 28));
    }
    text[bytes] = '\0';
    return text;
}

/* Reads a file in steps of so many bytes into `out`, which has room for `room`. */
static enum ox_status read_all(const char *path, size_t step, char *out, size_t room, size_t *count) {
    struct ox_unpacker *unpacker = NULL;
    uint64_t file_bytes = 0;
    size_t got = step;
    int fd = -1;
    REQUIRE_OK(ox_file_open_input(path, &fd, &file_bytes));
    enum ox_status status = ox_unpack_open(fd, path, &unpacker);
    *count = 0;
    while (status == OX_OK && got == step && *count + step <= room) {
        status = ox_unpack_read(unpacker, out + *count, step, &got);
        *count += got;
    }
    ox_unpack_close(&unpacker);
    close(fd);
    return status;
}

static void test_whole(void) {
    char *const text = make_text(TEXT_BYTES), *const out = malloc(3 * TEXT_BYTES);
    static const size_t steps[] = {1 << 20, 65536, 4097, 100};
    for (size_t i = 0; i < KIND_COUNT; i++) {
        const struct bytes packed = kinds[i].pack(text, TEXT_BYTES);
        struct bytes twice = {malloc(2 * packed.count), 2 * packed.count};
        memcpy(twice.data, packed.data, packed.count);
        memcpy(twice.data + packed.count, packed.data, packed.count);
        for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
            size_t count = 0;
            const char *path = files_write(kinds[i].name, packed.data, packed.count);
            REQUIRE_OK(read_all(path, steps[k], out, 3 * TEXT_BYTES, &count));
            CHECK(k == 0 || (count == TEXT_BYTES && memcmp(out, text, TEXT_BYTES) == 0));
            path = files_write(kinds[i].name, twice.data, twice.count);
            REQUIRE_OK(read_all(path, steps[k], out, 3 * TEXT_BYTES, &count));
            CHECK(k == 0 || (count == 2 * TEXT_BYTES && memcmp(out + TEXT_BYTES, text, TEXT_BYTES) == 0));
        }
        char *all = NULL;
        size_t all_bytes = 0;
        REQUIRE_OK(ox_unpack_file(test_path(kinds[i].name), 3 * TEXT_BYTES, &all, &all_bytes));
        CHECK(all_bytes == 2 * TEXT_BYTES && all[all_bytes] == '\0');
        free(all);
        CHECK(ox_unpack_file(test_path(kinds[i].name), TEXT_BYTES, &all, &all_bytes) == OX_E_CONFIG);
        free(packed.data);
        free(twice.data);
    }
    free(text);
    free(out);
}

/* Every cut behind the first bytes and every flipped bit: an error that names the file, or the same text. */
static void test_damage(void) {
    char *const text = make_text(SMALL_BYTES), out[3 * SMALL_BYTES];
    for (size_t i = 0; i < KIND_COUNT; i++) {
        const struct bytes packed = kinds[i].pack(text, SMALL_BYTES);
        size_t count = 0;
        for (size_t end = 6; end < packed.count; end++) {
            const char *const path = files_write(kinds[i].name, packed.data, end);
            CHECK(read_all(path, SMALL_BYTES + 1, out, sizeof out, &count) == OX_E_CORRUPT);
            CHECK(strstr(ox_error_text(), kinds[i].name) != NULL);
        }
        for (size_t at = 6; at < packed.count; at++) {
            packed.data[at] ^= 0x10;
            const char *const path = files_write(kinds[i].name, packed.data, packed.count);
            const enum ox_status status = read_all(path, SMALL_BYTES + 1, out, sizeof out, &count);
            const bool right = status != OX_OK || (count == SMALL_BYTES && memcmp(out, text, count) == 0);
            CHECK(right);
            if (!right) {
                printf("%s: byte %zu of %zu: %zu bytes\n", kinds[i].name, at, packed.count, count);
            }
            packed.data[at] ^= 0x10;
        }
        struct bytes longer = {malloc(packed.count + 9), packed.count + 9};
        memcpy(longer.data, packed.data, packed.count);
        memcpy(longer.data + packed.count, "something", 9);
        const char *const path = files_write(kinds[i].name, longer.data, longer.count);
        CHECK(read_all(path, 2 * SMALL_BYTES, out, sizeof out, &count) == OX_E_CORRUPT);
        free(longer.data);
        free(packed.data);
    }
    free(text);
}

static void test_growth(void) {
    enum { FRAME_BYTES = 32 << 20, FRAMES = 10 };
    char *const blank = malloc(FRAME_BYTES), *const out = malloc(FRAME_BYTES);
    memset(blank, '\n', FRAME_BYTES);
    const struct bytes frame = pack_zstd(blank, FRAME_BYTES);
    struct bytes all = {malloc(FRAMES * frame.count), FRAMES * frame.count};
    for (size_t i = 0; i < FRAMES; i++) {
        memcpy(all.data + i * frame.count, frame.data, frame.count);
    }
    const char *const path = files_write("bomb.zst", all.data, all.count);
    struct ox_unpacker *unpacker = NULL;
    uint64_t file_bytes = 0;
    size_t got = 0;
    int fd = -1;
    REQUIRE_OK(ox_file_open_input(path, &fd, &file_bytes));
    REQUIRE_OK(ox_unpack_open(fd, path, &unpacker));
    enum ox_status status = OX_OK;
    for (size_t i = 0; i < FRAMES && status == OX_OK; i++) {
        status = ox_unpack_read(unpacker, out, FRAME_BYTES, &got);
        CHECK(status == OX_OK || i == 7); /* 256 MiB are allowed whatever they come of */
    }
    CHECK(status == OX_E_CONFIG && strstr(ox_error_text(), "unpack it first") != NULL);
    ox_unpack_close(&unpacker);
    close(fd);
    free(blank);
    free(out);
    free(frame.data);
    free(all.data);
}

static void test_start(void) {
    char start[8];
    size_t got = 0;
    bool all = false, packed = true;
    REQUIRE_OK(ox_unpack_start(files_write_text("p", "12345678"), start, sizeof start, &got, &all, &packed));
    CHECK(got == 8 && all && !packed);
    REQUIRE_OK(ox_unpack_start(files_write_text("p", "123456789"), start, sizeof start, &got, &all, &packed));
    CHECK(got == 8 && !all && !packed);
    for (size_t i = 0; i < KIND_COUNT; i++) {
        const struct bytes short_one = kinds[i].pack("12345", 5);
        const char *const path = files_write("p", short_one.data, short_one.count);
        REQUIRE_OK(ox_unpack_start(path, start, sizeof start, &got, &all, &packed));
        CHECK(got == 5 && all && packed && memcmp(start, "12345", 5) == 0);
        free(short_one.data);
    }
    CHECK(ox_unpack_name_bytes("a.jsonl.gz") == 7 && ox_unpack_name_bytes("a.XZ") == 1);
    CHECK(ox_unpack_name_bytes("a.jsonl") == 7 && ox_unpack_name_bytes(".gz") == 3);
}

int main(void) {
    test_whole();
    test_damage();
    test_growth();
    test_start();
    return test_end();
}
