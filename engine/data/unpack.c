#include "engine/data/unpack.h"

#include "base/bytes.h"
#include "base/file.h"

#include <errno.h>
#include <inttypes.h>
#include <lzma.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { PACKED_BYTES = 64 << 10 };
/* What xz -9 needs to unpack is 65 MiB, and zstd without --long 8. */
static const uint64_t memory_max = UINT64_C(128) << 20;
/* Text shrinks to a tenth, and repeated rows to a hundredth. What grows more, and is large, was made to fill drives. */
static const uint64_t growth_max = 500, growth_begins = UINT64_C(256) << 20;

/* A kind of compression. Its step unpacks from `in` to `out`, moving both; *done says that what it has read may be the
 * end of the file. NULL: no compression. */
struct kind {
    const char *magic;
    size_t magic_bytes;
    const char *name;
    bool (*open)(struct ox_unpacker *unpacker);
    const char *(*step)(struct ox_unpacker *unpacker, bool *done); /* NULL, or what is wrong */
    void (*close)(struct ox_unpacker *unpacker);
};

struct ox_unpacker {
    int fd;
    const char *path;
    const struct kind *kind;
    unsigned char *packed; /* PACKED_BYTES */
    const unsigned char *in;
    size_t in_bytes;
    unsigned char *out;
    size_t out_bytes;
    uint64_t read, given; /* bytes of the file, and of what it holds */
    bool is_read;         /* the file's end is in `packed` */
    bool done;            /* a whole number of members is unpacked */
    z_stream gzip;
    ZSTD_DStream *zstd;
    lzma_stream xz;
};

/* ---- kinds --------------------------------------------------------------------------------------------------- */

static bool open_gzip(struct ox_unpacker *u) {
    return inflateInit2(&u->gzip, 16 + MAX_WBITS) == Z_OK;
}

static const char *step_gzip(struct ox_unpacker *u, bool *done) {
    if (*done) { /* another member, as of files put together */
        *done = false;
        if (inflateReset(&u->gzip) != Z_OK) {
            return "it cannot be read on";
        }
    }
    u->gzip.next_in = (Bytef *)(uintptr_t)u->in;
    u->gzip.avail_in = (uInt)u->in_bytes;
    u->gzip.next_out = u->out;
    u->gzip.avail_out = (uInt)ox_min_u64(u->out_bytes, 1 << 30);
    const uInt room = u->gzip.avail_out;
    const int result = inflate(&u->gzip, Z_NO_FLUSH);
    u->in = u->gzip.next_in;
    u->in_bytes = u->gzip.avail_in;
    u->out += room - u->gzip.avail_out;
    u->out_bytes -= room - u->gzip.avail_out;
    *done = result == Z_STREAM_END;
    return result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR ? NULL
           : u->gzip.msg != NULL                                             ? u->gzip.msg
                                                                             : "no memory to unpack it";
}

static void close_gzip(struct ox_unpacker *u) {
    inflateEnd(&u->gzip);
}

static bool open_zstd(struct ox_unpacker *u) {
    u->zstd = ZSTD_createDStream();
    return u->zstd != NULL && !ZSTD_isError(ZSTD_initDStream(u->zstd));
}

static const char *step_zstd(struct ox_unpacker *u, bool *done) {
    ZSTD_inBuffer in = {.src = u->in, .size = u->in_bytes};
    ZSTD_outBuffer out = {.dst = u->out, .size = u->out_bytes};
    const size_t result = ZSTD_decompressStream(u->zstd, &out, &in);
    u->in += in.pos;
    u->in_bytes -= in.pos;
    u->out += out.pos;
    u->out_bytes -= out.pos;
    *done = result == 0;
    return !ZSTD_isError(result) ? NULL : ZSTD_getErrorName(result);
}

static void close_zstd(struct ox_unpacker *u) {
    ZSTD_freeDStream(u->zstd);
}

static bool open_xz(struct ox_unpacker *u) {
    u->xz = (lzma_stream)LZMA_STREAM_INIT;
    return lzma_stream_decoder(&u->xz, memory_max, LZMA_CONCATENATED) == LZMA_OK;
}

static const char *step_xz(struct ox_unpacker *u, bool *done) {
    u->xz.next_in = u->in;
    u->xz.avail_in = u->in_bytes;
    u->xz.next_out = u->out;
    u->xz.avail_out = u->out_bytes;
    const lzma_ret result = lzma_code(&u->xz, u->is_read ? LZMA_FINISH : LZMA_RUN);
    u->in = u->xz.next_in;
    u->in_bytes = u->xz.avail_in;
    u->out = u->xz.next_out;
    u->out_bytes = u->xz.avail_out;
    *done = result == LZMA_STREAM_END;
    switch (result) {
    case LZMA_OK:
    case LZMA_STREAM_END:
    case LZMA_BUF_ERROR: /* it needs more of the file */
        return NULL;
    case LZMA_MEM_ERROR:
        return "no memory to unpack it";
    case LZMA_MEMLIMIT_ERROR:
        return "unpacking it takes more than 128 MiB; pack it again with xz -9 or less";
    case LZMA_OPTIONS_ERROR:
        return "it uses options that this version of the library lacks";
    default:
        return "its data is damaged";
    }
}

static void close_xz(struct ox_unpacker *u) {
    lzma_end(&u->xz);
}

static const struct kind kinds[] = {
    {"\x1f\x8b", 2, "gzip", open_gzip, step_gzip, close_gzip},
    {"\x28\xb5\x2f\xfd", 4, "zstd", open_zstd, step_zstd, close_zstd},
    {"\xfd" "7zXZ", 5, "xz", open_xz, step_xz, close_xz},
};

static const struct kind *find_kind(const unsigned char *start, size_t bytes) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (bytes >= kinds[i].magic_bytes && memcmp(start, kinds[i].magic, kinds[i].magic_bytes) == 0) {
            return &kinds[i];
        }
    }
    return NULL;
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

/* Reads up to `bytes` bytes of the file; *got is less only at its end. */
static enum ox_status read_file(struct ox_unpacker *u, void *data, size_t bytes, size_t *got) {
    *got = 0;
    for (int interrupts = 0; *got < bytes;) {
        const ssize_t part = pread(u->fd, (char *)data + *got, bytes - *got, (off_t)u->read);
        if (ox_interrupted(part, &interrupts)) {
            continue;
        }
        if (part < 0) {
            return ox_fail_errno(OX_E_IO, errno, "%s: cannot read at byte %" PRIu64, u->path, u->read);
        }
        if (part == 0) {
            break;
        }
        *got += (size_t)part;
        u->read += (uint64_t)part;
    }
    return OX_OK;
}

static enum ox_status refill(struct ox_unpacker *u) {
    const enum ox_status status = read_file(u, u->packed, PACKED_BYTES, &u->in_bytes);
    u->in = u->packed;
    u->is_read = status == OX_OK && u->in_bytes < PACKED_BYTES;
    return status;
}

static enum ox_status fail_damaged(const struct ox_unpacker *u, const char *why) {
    return ox_fail(OX_E_CORRUPT, "%s: is compressed with %s, and cannot be unpacked at its byte %" PRIu64 " (after %"
                   PRIu64 " bytes of text): %s; fetch or pack it again", u->path, u->kind->name, u->read - u->in_bytes,
                   u->given, why);
}

static enum ox_status check_growth(const struct ox_unpacker *u) {
    if (u->given < growth_begins || u->given / growth_max < u->read) {
        return OX_OK;
    }
    return ox_fail(OX_E_CONFIG, "%s: unpacks to more than %" PRIu64 " times its size (%" PRIu64 " bytes after %" PRIu64
                   "), which no text does; if it is meant, unpack it first", u->path, growth_max, u->given, u->read);
}

static enum ox_status unpack(struct ox_unpacker *u, unsigned char *data, size_t bytes, size_t *got) {
    enum ox_status status = OX_OK;
    u->out = data;
    u->out_bytes = bytes;
    while (u->out_bytes > 0 && status == OX_OK) {
        if (u->in_bytes == 0 && !u->is_read) {
            status = refill(u);
            continue;
        }
        if (u->in_bytes == 0 && u->done) {
            break;
        }
        const size_t in_before = u->in_bytes, out_before = u->out_bytes;
        const char *const wrong = u->kind->step(u, &u->done);
        u->given += out_before - u->out_bytes;
        if (wrong != NULL) {
            status = fail_damaged(u, wrong);
        } else if (u->in_bytes == in_before && u->out_bytes == out_before && !u->done && u->is_read) {
            status = fail_damaged(u, "it ends in the middle");
        }
        OX_THEN(status, check_growth(u));
    }
    *got = bytes - u->out_bytes;
    return status;
}

/* ---- public -------------------------------------------------------------------------------------------------- */

enum ox_status ox_unpack_open(int fd, const char *path, struct ox_unpacker **out) {
    unsigned char start[8];
    size_t got = 0;
    struct ox_unpacker *u = calloc(1, sizeof *u);
    *out = u;
    if (u == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it", path);
    }
    u->fd = fd;
    u->path = path;
    enum ox_status status = read_file(u, start, sizeof start, &got);
    u->read = 0;
    u->kind = status == OX_OK ? find_kind(start, got) : NULL;
    if (u->kind != NULL) {
        const struct kind *const kind = u->kind;
        u->packed = malloc(PACKED_BYTES);
        u->kind = u->packed != NULL && kind->open(u) ? kind : NULL;
        status = u->kind != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "%s: no memory to unpack it", path);
    }
    if (status != OX_OK) {
        ox_unpack_close(out);
    }
    return status;
}

void ox_unpack_close(struct ox_unpacker **unpacker) {
    if (*unpacker == NULL) {
        return;
    }
    if ((*unpacker)->kind != NULL) {
        (*unpacker)->kind->close(*unpacker);
    }
    free((*unpacker)->packed);
    free(*unpacker);
    *unpacker = NULL;
}

bool ox_unpack_is_packed(const struct ox_unpacker *unpacker) {
    return unpacker->kind != NULL;
}

uint64_t ox_unpack_used_bytes(const struct ox_unpacker *unpacker) {
    return unpacker->read - unpacker->in_bytes;
}

enum ox_status ox_unpack_read(struct ox_unpacker *unpacker, void *data, size_t bytes, size_t *got) {
    return unpacker->kind != NULL ? unpack(unpacker, data, bytes, got) : read_file(unpacker, data, bytes, got);
}

enum ox_status ox_unpack_start(const char *path, void *start, size_t bytes, size_t *got, bool *all, bool *packed) {
    struct ox_unpacker *unpacker = NULL;
    uint64_t file_bytes = 0;
    int fd = -1;
    char more;
    size_t more_bytes = 0;
    enum ox_status status = ox_file_open_input(path, &fd, &file_bytes);
    if (status != OX_OK) {
        return status;
    }
    status = ox_unpack_open(fd, path, &unpacker);
    OX_THEN(status, ox_unpack_read(unpacker, start, bytes, got));
    if (status == OX_OK && *got == bytes) {
        status = ox_unpack_read(unpacker, &more, 1, &more_bytes);
    }
    *all = more_bytes == 0;
    if (packed != NULL) {
        *packed = unpacker != NULL && ox_unpack_is_packed(unpacker);
    }
    ox_unpack_close(&unpacker);
    close(fd);
    return status;
}

enum ox_status ox_unpack_file(const char *path, size_t bytes_max, char **data, size_t *bytes) {
    struct ox_unpacker *unpacker = NULL;
    uint64_t file_bytes = 0;
    size_t capacity = 0, got = 0;
    char *text = NULL;
    int fd = -1;
    enum ox_status status = ox_file_open_input(path, &fd, &file_bytes);
    if (status != OX_OK) {
        return status;
    }
    *bytes = 0;
    status = ox_unpack_open(fd, path, &unpacker);
    do {
        if (status == OX_OK && capacity == *bytes) {
            capacity = capacity == 0 ? (size_t)ox_min_u64(file_bytes, bytes_max) + 1 : 2 * capacity;
            char *const grown = realloc(text, capacity + 1);
            status = grown != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "%s: no memory for a file of more than %zu bytes",
                                                     path, *bytes);
            text = grown != NULL ? grown : text;
        }
        OX_THEN(status, ox_unpack_read(unpacker, text + *bytes, capacity - *bytes, &got));
        *bytes += got;
        if (status == OX_OK && *bytes > bytes_max) {
            status = ox_fail(OX_E_CONFIG, "%s: is larger than %zu bytes; divide it", path, bytes_max);
        }
    } while (status == OX_OK && capacity == *bytes);
    ox_unpack_close(&unpacker);
    close(fd);
    if (status != OX_OK) {
        free(text);
        return status;
    }
    text[*bytes] = '\0';
    *data = text;
    return OX_OK;
}

size_t ox_unpack_name_bytes(const char *path) {
    static const char *const endings[] = {".gz", ".zst", ".zstd", ".xz"};
    const size_t bytes = strlen(path);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t length = strlen(endings[i]);
        if (bytes > length && strcasecmp(path + bytes - length, endings[i]) == 0) {
            return bytes - length;
        }
    }
    return bytes;
}
