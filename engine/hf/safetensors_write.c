/* Writes safetensors files. Large tensors begin at multiples of 4096, so that O_DIRECT can read them. */
#include "base/assert.h"
#include "base/bytes.h"
#include "base/json.h"
#include "engine/hf/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_BYTES_MAX = 100000000, GROUP_COUNT = 3 };

/* The offsets of the tensors, and the header with them. */
struct layout {
    uint64_t *offsets; /* per spec: bytes from the start of the file */
    char *header;      /* length field, JSON and padding */
    uint64_t header_bytes;
    uint64_t file_bytes;
};

struct ox_st_writer {
    struct ox_file_writer file;
    uint64_t *offsets, *bytes; /* per spec */
    uint32_t count;
    uint64_t header_bytes, file_bytes;
    bool shared; /* other processes write the rest */
};

static uint64_t spec_bytes(const struct ox_st_spec *spec) {
    uint64_t bytes = ox_dtype_bytes(spec->dtype);
    OX_ASSERT(bytes > 0 && spec->rank <= OX_ST_RANK_MAX);
    for (uint32_t i = 0; i < spec->rank; i++) {
        const bool fits = ox_mul_u64(bytes, spec->shape[i], &bytes);
        OX_ASSERT(fits && bytes <= INT64_MAX);
    }
    return bytes;
}

/* The order of a tensor in the file: first those of whole pages, then the others by falling element size, so that every
 * element is aligned. */
static uint32_t group_of(const struct ox_st_spec *spec) {
    return spec_bytes(spec) % OX_IO_ALIGN_BYTES == 0 ? 0 : ox_dtype_bytes(spec->dtype) == 4 ? 1 : 2;
}

static bool describe(json_t *header, const struct ox_st_spec *spec, uint64_t begin, uint64_t end) {
    json_t *const shape = json_array();
    bool done = shape != NULL;
    for (uint32_t i = 0; done && i < spec->rank; i++) {
        done = json_array_append_new(shape, json_integer((json_int_t)spec->shape[i])) == 0;
    }
    json_t *const info = json_pack("{s:s, s:o, s:[I, I]}", "dtype", ox_dtype_name(spec->dtype), "shape",
                                   shape, "data_offsets", (json_int_t)begin, (json_int_t)end);
    return json_object_set_new(header, spec->name, info) == 0 && done;
}

static void layout_free(struct layout *layout) {
    free(layout->offsets);
    free(layout->header);
    memset(layout, 0, sizeof *layout);
}

/* Sets the header from its JSON: length, text, spaces up to a multiple of 4096. */
static bool set_header(struct layout *layout, const json_t *json) {
    const size_t text_bytes = json_dumpb(json, NULL, 0, JSON_COMPACT);
    const uint64_t length_bytes = sizeof(uint64_t);
    layout->header_bytes = ox_align_up(length_bytes + text_bytes, OX_IO_ALIGN_BYTES);
    layout->header = text_bytes > 0 ? malloc(layout->header_bytes) : NULL;
    if (layout->header == NULL) {
        return false;
    }
    const uint64_t length = layout->header_bytes - length_bytes;
    memcpy(layout->header, &length, length_bytes);
    memset(layout->header + length_bytes, ' ', length);
    return json_dumpb(json, layout->header + length_bytes, length, JSON_COMPACT) == text_bytes;
}

static enum ox_status layout_build(const struct ox_st_spec *specs, uint32_t count, struct layout *out) {
    uint64_t end = 0;
    memset(out, 0, sizeof *out);
    json_t *const json = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    bool done = json != NULL;
    out->offsets = calloc(count + (size_t)1, sizeof *out->offsets);
    done = done && out->offsets != NULL;
    for (uint32_t group = 0; done && group < GROUP_COUNT; group++) {
        for (uint32_t i = 0; done && i < count; i++) {
            if (group_of(&specs[i]) != group) {
                continue;
            }
            const uint64_t bytes = spec_bytes(&specs[i]);
            done = describe(json, &specs[i], end, end + bytes);
            out->offsets[i] = end;
            const bool fits = ox_add_u64(end, bytes, &end);
            OX_ASSERT(fits && end <= INT64_MAX - HEADER_BYTES_MAX - OX_IO_ALIGN_BYTES);
        }
    }
    OX_ASSERT(!done || json_object_size(json) == count + (size_t)1); /* no name twice */
    done = done && set_header(out, json);
    json_decref(json);
    if (!done) {
        layout_free(out);
        return ox_fail(OX_E_NOMEM, "no memory for the header of a file of %" PRIu32 " tensors", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        out->offsets[i] += out->header_bytes;
    }
    out->file_bytes = out->header_bytes + end;
    if (out->header_bytes - sizeof(uint64_t) > HEADER_BYTES_MAX) {
        layout_free(out);
        return ox_fail(OX_E_CONFIG,
                       "the header of a file of %" PRIu32 " tensors is too long; use smaller shards", count);
    }
    return OX_OK;
}

static void writer_free(struct ox_st_writer **writer) {
    free((*writer)->offsets);
    free((*writer)->bytes);
    free(*writer);
    *writer = NULL;
}

static enum ox_status create(const char *path, const struct layout *layout, struct ox_file_writer *out) {
    enum ox_status status = ox_file_create(path, layout->file_bytes, out);
    if (status != OX_OK) {
        return status;
    }
    status = ox_file_write(out, layout->header, layout->header_bytes, 0);
    if (status != OX_OK) {
        ox_file_discard(out);
    }
    return status;
}

static enum ox_status open_writer(const char *path, const struct ox_st_spec *specs, uint32_t spec_count, bool joins,
                                  struct ox_st_writer **out) {
    struct layout layout;
    enum ox_status status = layout_build(specs, spec_count, &layout);
    if (status != OX_OK) {
        return ox_fail_in(status, "%s", path);
    }
    struct ox_st_writer *writer = calloc(1, sizeof *writer);
    uint64_t *const bytes = calloc(spec_count + (size_t)1, sizeof *bytes);
    if (writer == NULL || bytes == NULL) {
        status = ox_fail(OX_E_NOMEM, "%s: no memory to write it", path);
        goto fail;
    }
    for (uint32_t i = 0; i < spec_count; i++) {
        bytes[i] = spec_bytes(&specs[i]);
    }
    status = joins ? ox_file_join(path, &writer->file) : create(path, &layout, &writer->file);
    if (status != OX_OK) {
        goto fail;
    }
    writer->shared = joins;
    writer->offsets = layout.offsets;
    writer->bytes = bytes;
    writer->count = spec_count;
    writer->header_bytes = layout.header_bytes;
    writer->file_bytes = layout.file_bytes;
    free(layout.header);
    *out = writer;
    return OX_OK;
fail:
    layout_free(&layout);
    free(bytes);
    free(writer);
    return status;
}

enum ox_status ox_st_create(const char *path, const struct ox_st_spec *specs, uint32_t spec_count,
                            struct ox_st_writer **out) {
    return open_writer(path, specs, spec_count, false, out);
}

enum ox_status ox_st_join(const char *path, const struct ox_st_spec *specs, uint32_t spec_count,
                          struct ox_st_writer **out) {
    return open_writer(path, specs, spec_count, true, out);
}

void ox_st_share(struct ox_st_writer *writer) {
    writer->shared = true;
}

enum ox_status ox_st_write(struct ox_st_writer *writer, uint32_t spec_idx, uint64_t byte_offset,
                           const void *data, uint64_t bytes) {
    OX_ASSERT(spec_idx < writer->count);
    OX_ASSERT(byte_offset <= writer->bytes[spec_idx] && bytes <= writer->bytes[spec_idx] - byte_offset);
    return ox_file_write(&writer->file, data, bytes, writer->offsets[spec_idx] + byte_offset);
}

enum ox_status ox_st_finish(struct ox_st_writer **writer) {
    OX_ASSERT((*writer)->shared || (*writer)->file.bytes_written == (*writer)->file_bytes);
    const enum ox_status status = ox_file_finish(&(*writer)->file);
    if (status != OX_OK && !(*writer)->file.joined) {
        unlink((*writer)->file.path);
    }
    writer_free(writer);
    return status;
}

void ox_st_discard(struct ox_st_writer **writer) {
    if (*writer != NULL) {
        ox_file_discard(&(*writer)->file);
        writer_free(writer);
    }
}

static uint64_t digits_of(uint64_t value) {
    uint64_t digits = 1;
    for (; value >= 10; value /= 10) {
        digits++;
    }
    return digits;
}

/* Characters of a name as JSON writes it, with its quotes. */
static uint64_t name_chars(const char *name) {
    uint64_t chars = 2;
    for (const char *at = name; *at != '\0'; at++, chars++) {
        if (*at == '"' || *at == '\\' || (unsigned char)*at < ' ') {
            json_t *const text = json_string(name);
            chars = json_dumpb(text, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
            json_decref(text);
            return chars;
        }
    }
    return chars;
}

/* Characters of a tensor's entry in the header, with a comma. */
static uint64_t entry_chars(const struct ox_st_spec *spec, uint64_t begin, uint64_t end) {
    uint64_t chars = strlen(",:{\"dtype\":\"\",\"shape\":[],\"data_offsets\":[,]}") + name_chars(spec->name) +
                     strlen(ox_dtype_name(spec->dtype)) + digits_of(begin) + digits_of(end);
    for (uint32_t i = 0; i < spec->rank; i++) {
        chars += (i > 0) + digits_of(spec->shape[i]);
    }
    return chars;
}

/* Counts what layout_build would write: sizes are asked for often, and the text of a large header takes long. */
uint64_t ox_st_file_bytes(const struct ox_st_spec *specs, uint32_t spec_count) {
    uint64_t end = 0, chars = strlen("{\"__metadata__\":{\"format\":\"pt\"}}");
    for (uint32_t group = 0; group < GROUP_COUNT; group++) {
        for (uint32_t i = 0; i < spec_count; i++) {
            if (group_of(&specs[i]) == group) {
                const uint64_t begin = end;
                const bool fits = ox_add_u64(end, spec_bytes(&specs[i]), &end);
                OX_ASSERT(fits);
                chars += entry_chars(&specs[i], begin, end);
            }
        }
    }
    const uint64_t header_bytes = ox_align_up(sizeof(uint64_t) + chars, OX_IO_ALIGN_BYTES);
    return header_bytes - sizeof(uint64_t) > HEADER_BYTES_MAX ? UINT64_MAX : header_bytes + end;
}
