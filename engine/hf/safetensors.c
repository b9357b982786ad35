/* Reads safetensors files. Nothing in a header is used before it is checked. */
#include "engine/hf/safetensors.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/hash/listed.h"
#include "base/json.h"
#include "base/planes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little-endian and read in place");

enum { HEADER_BYTES_MAX = 100000000, CONVERT_ELEMS = 2048 };

/* The end of every message about a file that breaks the format. */
static const char remedy[] = "the file is damaged; fetch or save it again";

struct ox_st_file {
    int fd;
    char *path;
    uint64_t file_bytes;
    struct timespec written; /* when it was opened, the time of the last change */
    uint64_t data_offset;
    struct ox_listed_reading *reading; /* compares what is read, in a checkpoint */
    struct ox_st_entry *entries; /* by offset */
    uint32_t count;
};

static const struct {
    const char *name;
    uint32_t bits;
} dtypes[] = {
    {"F32", 32},    {"BF16", 16},   {"F16", 16},        {"F64", 64},        {"I64", 64},    {"I32", 32},
    {"I16", 16},    {"I8", 8},      {"U64", 64},        {"U32", 32},        {"U16", 16},    {"U8", 8},
    {"BOOL", 8},    {"C64", 64},    {"F8_E5M2", 8},     {"F8_E4M3", 8},     {"F8_E8M0", 8}, {"F4", 4},
    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
};

static const char *const own_names[] = {"F32", "F16", "BF16"}; /* by enum ox_dtype */

/* The bits of one element; 0 for an unknown dtype. */
static uint32_t dtype_bits(const char *name) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return dtypes[i].bits;
        }
    }
    return 0;
}

static enum ox_dtype dtype_of(const char *name) {
    for (int i = 0; i < OX_DTYPE_OTHER; i++) {
        if (strcmp(own_names[i], name) == 0) {
            return (enum ox_dtype)i;
        }
    }
    return OX_DTYPE_OTHER;
}

static enum ox_status fail_entry(const struct ox_st_file *file, const char *name, const char *what) {
    return ox_fail(OX_E_CORRUPT, "%s: tensor \"%.200s\": %s; %s", file->path, name, what, remedy);
}

static bool to_u64(const json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        return false;
    }
    *out = (uint64_t)json_integer_value(value);
    return true;
}

/* Reads one entry, with `offset` still relative to the data; check_places corrects it when all entries are known. */
static enum ox_status read_entry(const struct ox_st_file *file, const char *name, const json_t *info,
                                 struct ox_st_entry *out) {
    const char *const dtype = json_string_value(json_object_get(info, "dtype"));
    const json_t *const shape = json_object_get(info, "shape");
    const json_t *const offsets = json_object_get(info, "data_offsets");
    const uint32_t bits = dtype != NULL ? dtype_bits(dtype) : 0;
    if (bits == 0) {
        char text[OX_JSON_EXCERPT_BYTES];
        return ox_fail(OX_E_CORRUPT, "%s: tensor \"%.200s\": unknown dtype in %s; %s", file->path, name,
                       ox_json_excerpt(info, text), remedy);
    }
    out->dtype = dtype_of(dtype);
    memcpy(out->dtype_text, dtype, strlen(dtype) + 1);
    if (!json_is_array(shape)) {
        return fail_entry(file, name, "\"shape\" is not an array");
    }
    if (json_array_size(shape) > OX_ST_RANK_MAX) {
        return fail_entry(file, name, "it has more than 8 dimensions");
    }
    out->rank = (uint32_t)json_array_size(shape);
    out->count = 1;
    for (uint32_t i = 0; i < out->rank; i++) {
        if (!to_u64(json_array_get(shape, i), &out->shape[i])) {
            return fail_entry(file, name, "a dimension is not an integer from 0 to 2^63 - 1");
        }
        if (!ox_mul_u64(out->count, out->shape[i], &out->count)) {
            return fail_entry(file, name, "its number of elements overflows");
        }
    }
    uint64_t begin = 0, end = 0, size_bits = 0;
    if (json_array_size(offsets) != 2 || !to_u64(json_array_get(offsets, 0), &begin) ||
        !to_u64(json_array_get(offsets, 1), &end)) {
        return fail_entry(file, name, "\"data_offsets\" are not two integers from 0 to 2^63 - 1");
    }
    if (end < begin) {
        return fail_entry(file, name, "it ends before it begins");
    }
    if (!ox_mul_u64(out->count, bits, &size_bits)) {
        return fail_entry(file, name, "its number of bits overflows");
    }
    if (size_bits % 8 != 0 || size_bits / 8 != end - begin) {
        return fail_entry(file, name, "its shape and dtype do not match the bytes it occupies");
    }
    out->offset = begin;
    out->bytes = end - begin;
    out->name = strdup(name);
    return out->name != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "%s: no memory for the header", file->path);
}

static int compare_entries(const void *a, const void *b) {
    const struct ox_st_entry *const left = a, *const right = b;
    if (left->offset != right->offset) {
        return left->offset < right->offset ? -1 : 1;
    }
    return left->bytes < right->bytes ? -1 : left->bytes > right->bytes;
}

/* Refuses tensors with a hole or an overlap between them: every byte of the data must belong to one tensor. Also makes
 * offsets absolute. */
static enum ox_status check_places(struct ox_st_file *file) {
    uint64_t end = 0;
    if (file->count > 1) {
        qsort(file->entries, file->count, sizeof *file->entries, compare_entries);
    }
    for (uint32_t i = 0; i < file->count; i++) {
        struct ox_st_entry *const entry = &file->entries[i];
        if (entry->offset != end) {
            return ox_fail(OX_E_CORRUPT,
                           "%s: tensor \"%.200s\" begins at byte %" PRIu64 " of the data, but the one before it ends "
                           "at %" PRIu64 ", which makes %s; %s",
                           file->path, entry->name, entry->offset, end,
                           entry->offset < end ? "an overlap" : "a hole", remedy);
        }
        end += entry->bytes; /* cannot overflow: both are below 2^63 */
        if (end > file->file_bytes - file->data_offset) {
            return fail_entry(file, entry->name,
                              "it reaches beyond the end of the file: the file is cut off");
        }
        entry->offset += file->data_offset;
    }
    if (end != file->file_bytes - file->data_offset) {
        return ox_fail(OX_E_CORRUPT, "%s: %" PRIu64 " bytes follow the last tensor; %s", file->path,
                       file->file_bytes - file->data_offset - end, remedy);
    }
    return OX_OK;
}

static enum ox_status check_metadata(const struct ox_st_file *file, const json_t *metadata) {
    const char *key;
    json_t *value;
    bool good = json_is_object(metadata);
    json_object_foreach((json_t *)metadata, key, value) {
        good = good && json_is_string(value);
    }
    return good ? OX_OK
                : ox_fail(OX_E_CORRUPT, "%s: \"__metadata__\" is not an object of strings; %s", file->path, remedy);
}

static enum ox_status read_entries(struct ox_st_file *file, const json_t *header) {
    if (!json_is_object(header)) {
        return ox_fail(OX_E_CORRUPT, "%s: the header is not a JSON object; %s", file->path, remedy);
    }
    const char *name;
    json_t *info;
    file->entries = calloc(json_object_size(header) + 1, sizeof *file->entries);
    if (file->entries == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for %zu tensors", file->path, json_object_size(header));
    }
    json_object_foreach((json_t *)header, name, info) {
        enum ox_status status;
        if (strcmp(name, "__metadata__") == 0) {
            status = check_metadata(file, info);
        } else if (!json_is_object(info)) {
            status = fail_entry(file, name, "its description is not an object");
        } else {
            status = read_entry(file, name, info, &file->entries[file->count]);
            file->count += status == OX_OK;
        }
        if (status != OX_OK) {
            return status;
        }
    }
    return check_places(file);
}

static enum ox_status read_header(struct ox_st_file *file) {
    uint64_t header_bytes = 0;
    if (file->file_bytes < sizeof header_bytes) {
        return ox_fail(OX_E_CORRUPT,
                       "%s: has %" PRIu64 " bytes, too few for a safetensors file; fetch or save it again", file->path,
                       file->file_bytes);
    }
    enum ox_status status = ox_file_read_at(file->fd, file->path, &header_bytes, sizeof header_bytes, 0);
    if (status != OX_OK) {
        return status;
    }
    if (header_bytes > HEADER_BYTES_MAX || header_bytes > file->file_bytes - sizeof header_bytes) {
        return ox_fail(OX_E_CORRUPT,
                       "%s: claims a header of %" PRIu64 " bytes (the file has %" PRIu64 ", the limit is %d); it is "
                       "cut off or not a safetensors file: fetch or save it again",
                       file->path, header_bytes, file->file_bytes, HEADER_BYTES_MAX);
    }
    file->data_offset = sizeof header_bytes + header_bytes;
    ox_listed_take(file->reading, 0, &header_bytes, sizeof header_bytes);
    json_t *header = NULL;
    char *const text = malloc(header_bytes + 1);
    if (text == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for a header of %" PRIu64 " bytes", file->path,
                       header_bytes);
    }
    status = ox_file_read_at(file->fd, file->path, text, header_bytes, sizeof header_bytes);
    if (status == OX_OK) {
        ox_listed_take(file->reading, sizeof header_bytes, text, header_bytes);
    }
    OX_THEN(status, ox_json_check_values(file->path, text, header_bytes));
    OX_THEN(status, ox_json_parse(file->path, text, header_bytes, &header));
    free(text);
    OX_THEN(status, read_entries(file, header));
    json_decref(header);
    return status;
}

/* Widens in place `count` 16-bit values that fill the second half of `out`. In ascending order no value is overwritten
 * before it is read, because value i begins at or after the end of result i - 1. */
static void widen_in_place(float *out, uint64_t count, enum ox_dtype dtype) {
    const unsigned char *const source = (const unsigned char *)out + count * sizeof(uint16_t);
    uint16_t block[CONVERT_ELEMS];
    for (uint64_t done = 0; done < count; done += CONVERT_ELEMS) {
        const size_t part = (size_t)ox_min_u64(CONVERT_ELEMS, count - done);
        memcpy(block, source + done * sizeof *block, part * sizeof *block);
        for (size_t i = 0; i < part; i++) {
            out[done + i] = dtype == OX_DTYPE_BF16 ? ox_bf16_to_f32(block[i]) : ox_f16_to_f32(block[i]);
        }
    }
}

uint32_t ox_dtype_bytes(enum ox_dtype dtype) {
    static const uint32_t bytes[] = {4, 2, 2, 0};
    return bytes[dtype];
}

const char *ox_dtype_name(enum ox_dtype dtype) {
    return dtype < OX_DTYPE_OTHER ? own_names[dtype] : "another dtype";
}

enum ox_dtype ox_dtype_of_word(const char *word) {
    return strcmp(word, "bf16") == 0 ? OX_DTYPE_BF16 : strcmp(word, "fp16") == 0 ? OX_DTYPE_F16 : OX_DTYPE_F32;
}

static enum ox_status examine(const struct ox_st_file *file, struct stat *info) {
    return fstat(file->fd, info) == 0 ? OX_OK : ox_fail_errno(OX_E_IO, errno, "%s: cannot examine", file->path);
}

enum ox_status ox_st_open(const char *path, struct ox_st_file **out) {
    enum ox_status status = OX_OK;
    struct ox_st_file *file = calloc(1, sizeof *file);
    if (file != NULL) {
        file->fd = -1;
        file->path = strdup(path);
    }
    if (file == NULL || file->path == NULL) {
        status = ox_fail(OX_E_NOMEM, "%s: no memory to open it", path);
        goto fail;
    }
    struct stat info = {0};
    status = ox_file_open_input(path, &file->fd, &file->file_bytes);
    OX_THEN(status, examine(file, &info));
    file->written = info.st_mtim;
    OX_THEN(status, ox_listed_open(path, file->fd, file->file_bytes, &file->reading));
    OX_THEN(status, read_header(file));
    if (status != OX_OK) {
        goto fail;
    }
    *out = file;
    return OX_OK;
fail:
    ox_st_close(&file);
    return status;
}

void ox_st_close(struct ox_st_file **file) {
    if (*file == NULL) {
        return;
    }
    for (uint32_t i = 0; i < (*file)->count; i++) {
        free((*file)->entries[i].name);
    }
    if ((*file)->fd >= 0) {
        close((*file)->fd);
    }
    ox_listed_free(&(*file)->reading);
    free((*file)->entries);
    free((*file)->path);
    free(*file);
    *file = NULL;
}

uint32_t ox_st_count(const struct ox_st_file *file) {
    return file->count;
}

const struct ox_st_entry *ox_st_entry(const struct ox_st_file *file, uint32_t idx) {
    OX_ASSERT(idx < file->count);
    return &file->entries[idx];
}

const struct ox_st_entry *ox_st_find(const struct ox_st_file *file, const char *name) {
    for (uint32_t i = 0; i < file->count; i++) {
        if (strcmp(file->entries[i].name, name) == 0) {
            return &file->entries[i];
        }
    }
    return NULL;
}

const char *ox_st_path(const struct ox_st_file *file) {
    return file->path;
}

enum ox_status ox_st_read_bytes(const struct ox_st_file *file, const struct ox_st_entry *entry, uint64_t first,
                                uint64_t bytes, void *out) {
    OX_ASSERT(first <= entry->bytes && bytes <= entry->bytes - first);
    const enum ox_status status = ox_file_read_at(file->fd, file->path, out, bytes, entry->offset + first);
    if (status == OX_OK) {
        ox_listed_take(file->reading, entry->offset + first, out, bytes);
    }
    return status;
}

enum ox_status ox_st_read_f32(const struct ox_st_file *file, const struct ox_st_entry *entry, uint64_t first,
                              uint64_t count, float *out) {
    OX_ASSERT(first <= entry->count && count <= entry->count - first);
    const uint32_t elem_bytes = ox_dtype_bytes(entry->dtype);
    if (elem_bytes == 0) {
        return ox_fail(OX_E_CONFIG,
                       "%s: tensor \"%.200s\" is stored as %s; only F32, F16 and BF16 weights can be read",
                       file->path, entry->name, entry->dtype_text);
    }
    unsigned char *const target = (unsigned char *)out + count * (sizeof *out - elem_bytes);
    const enum ox_status status = ox_st_read_bytes(file, entry, first * elem_bytes, count * elem_bytes, target);
    if (status == OX_OK && entry->dtype != OX_DTYPE_F32) {
        widen_in_place(out, count, entry->dtype);
    }
    return status;
}

/* A file of that name that took this one's place since does not matter: what was opened is whole and stays so. */
enum ox_status ox_st_verify(const struct ox_st_file *file) {
    struct stat now;
    enum ox_status status = ox_listed_finish(file->reading);
    OX_THEN(status, examine(file, &now));
    if (status == OX_OK && ((uint64_t)now.st_size != file->file_bytes || now.st_mtim.tv_sec != file->written.tv_sec ||
                            now.st_mtim.tv_nsec != file->written.tv_nsec)) {
        status = ox_fail(OX_E_CORRUPT, "%s: was written to while it was read, so what came of it is not valid; repeat "
                         "this when the file is complete", file->path);
    }
    return status;
}
