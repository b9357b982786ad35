#include "engine/hf/mxfp4_tensor.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/planes.h"
#include "engine/hf/mxfp4.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const endings[] = {[OX_MXFP4_BLOCKS] = "_blocks", [OX_MXFP4_SCALES] = "_scales"};

enum ox_mxfp4_part ox_mxfp4_part_of(const char *name, char *whole, size_t bytes) {
    const size_t len = strlen(name);
    for (int part = 0; part < OX_MXFP4_NONE; part++) {
        const size_t end = strlen(endings[part]);
        if (len > end && len - end < bytes && strcmp(name + len - end, endings[part]) == 0) {
            snprintf(whole, bytes, "%.*s", (int)(len - end), name);
            return (enum ox_mxfp4_part)part;
        }
    }
    return OX_MXFP4_NONE;
}

enum ox_status ox_mxfp4_check(const char *path, const struct ox_st_entry *entry, enum ox_mxfp4_part part,
                              const struct ox_tensor *tensor) {
    const uint64_t groups = tensor->shape[1] / OX_MXFP4_GROUP;
    const uint64_t shape[] = {tensor->whole[0], tensor->shape[2], groups, OX_MXFP4_GROUP_BYTES};
    const uint32_t rank = part == OX_MXFP4_BLOCKS ? 4 : 3;
    bool same = tensor->shape[1] % OX_MXFP4_GROUP == 0 && entry->rank == rank && strcmp(entry->dtype_text, "U8") == 0;
    for (uint32_t i = 0; same && i < rank; i++) {
        same = entry->shape[i] == shape[i];
    }
    return same ? OX_OK
                : ox_fail(OX_E_CONFIG, "%s: tensor \"%s\" is not the U8 [%" PRIu64 ", %" PRIu64 ", %" PRIu64 "%s] that "
                          "MXFP4 has for a matrix of %" PRIu64 " inputs, which must be a multiple of %d; use the "
                          "config.json that came with the weights", path, entry->name, shape[0], shape[1], shape[2],
                          part == OX_MXFP4_BLOCKS ? ", 16" : "", tensor->shape[1], OX_MXFP4_GROUP);
}

struct ox_mxfp4_reader {
    const struct ox_tensor *tensor; /* NULL: nothing has been read */
    uint64_t expert;
    uint8_t *blocks, *scales;
    uint16_t *values; /* bfloat16 (in, out), of one expert */
};

void ox_mxfp4_close(struct ox_mxfp4_reader **reader) {
    if (*reader != NULL) {
        free((*reader)->blocks);
        free((*reader)->scales);
        free((*reader)->values);
        free(*reader);
        *reader = NULL;
    }
}

/* Makes a reader with room for an expert of the tensor. */
static enum ox_status open_for(struct ox_mxfp4_reader **out, const struct ox_tensor *tensor) {
    const uint64_t elems = tensor->shape[1] * tensor->shape[2];
    ox_mxfp4_close(out);
    struct ox_mxfp4_reader *const reader = *out = calloc(1, sizeof *reader);
    if (reader != NULL) {
        reader->blocks = malloc(elems / 2);
        reader->scales = malloc(elems / OX_MXFP4_GROUP);
        reader->values = malloc(elems * sizeof *reader->values);
    }
    if (reader == NULL || reader->blocks == NULL || reader->scales == NULL || reader->values == NULL) {
        ox_mxfp4_close(out);
        return ox_fail(OX_E_NOMEM, "no memory to decode an expert of %" PRIu64 " elements from MXFP4", elems);
    }
    reader->tensor = tensor;
    reader->expert = UINT64_MAX;
    return OX_OK;
}

/* Decodes the expert whose parts have been read and turns it, in squares as wide as a group. */
static bool decode(struct ox_mxfp4_reader *reader) {
    const uint64_t in = reader->tensor->shape[1], out = reader->tensor->shape[2], groups = in / OX_MXFP4_GROUP;
    bool finite = true;
    for (uint64_t group = 0; group < groups; group++) {
        for (uint64_t first = 0; first < out; first += OX_MXFP4_GROUP) {
            const uint64_t rows = ox_min_u64(OX_MXFP4_GROUP, out - first);
            uint16_t square[OX_MXFP4_GROUP][OX_MXFP4_GROUP];
            for (uint64_t i = 0; i < rows; i++) {
                const uint64_t at = (first + i) * groups + group;
                finite = ox_mxfp4_to_bf16(square[i], reader->blocks + at * OX_MXFP4_GROUP_BYTES, reader->scales + at,
                                          1) && finite;
            }
            for (uint64_t k = 0; k < OX_MXFP4_GROUP; k++) {
                uint16_t *const row = reader->values + (group * OX_MXFP4_GROUP + k) * out + first;
                for (uint64_t i = 0; i < rows; i++) {
                    row[i] = square[i][k];
                }
            }
        }
    }
    return finite;
}

static enum ox_status take(struct ox_mxfp4_reader *reader, const struct ox_mxfp4_source *source, uint64_t expert) {
    const uint64_t elems = reader->tensor->shape[1] * reader->tensor->shape[2];
    const uint64_t bytes[] = {elems / 2, elems / OX_MXFP4_GROUP};
    uint8_t *const targets[] = {reader->blocks, reader->scales};
    enum ox_status status = OX_OK;
    reader->expert = UINT64_MAX;
    for (int part = 0; part < OX_MXFP4_NONE; part++) {
        OX_THEN(status, ox_st_read_bytes(source->files[part], source->entries[part], expert * bytes[part], bytes[part],
                                         targets[part]));
    }
    if (status == OX_OK && !decode(reader)) {
        status = ox_fail(OX_E_CORRUPT, "%s: tensor \"%s\" has a scale of MXFP4 that is no number, or a value beyond "
                         "its type, in expert %" PRIu64 "; the file is damaged: fetch it again",
                         ox_st_path(source->files[OX_MXFP4_SCALES]), source->entries[OX_MXFP4_SCALES]->name, expert);
    }
    reader->expert = status == OX_OK ? expert : UINT64_MAX;
    return status;
}

enum ox_status ox_mxfp4_read(struct ox_mxfp4_reader **reader, const struct ox_mxfp4_source *source,
                             const struct ox_tensor *tensor, uint64_t first, uint64_t count, float *out) {
    const uint64_t elems = tensor->shape[1] * tensor->shape[2];
    OX_ASSERT(first <= ox_tensor_whole_count(tensor) && count <= ox_tensor_whole_count(tensor) - first);
    enum ox_status status = *reader == NULL || (*reader)->tensor != tensor ? open_for(reader, tensor) : OX_OK;
    for (uint64_t done = 0, part; status == OX_OK && done < count; done += part) {
        const uint64_t expert = (first + done) / elems, at = (first + done) % elems;
        part = ox_min_u64(count - done, elems - at);
        status = (*reader)->expert == expert ? OX_OK : take(*reader, source, expert);
        for (uint64_t i = 0; status == OX_OK && i < part; i++) {
            out[done + i] = ox_bf16_to_f32((*reader)->values[at + i]);
        }
    }
    return status;
}
