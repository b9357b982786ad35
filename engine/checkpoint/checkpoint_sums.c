/* Checks that the drive has what the engine wrote. It adds up the hashes of the written pieces, for each plane of each
 * tensor, and compares the sums with those of the same pieces read back. */
#include "base/assert.h"
#include "base/bytes.h"
#include "engine/checkpoint/checkpoint_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static const char suffix[] = ".safetensors";

/* The place of a tensor's plane in the file that is read. */
struct span {
    uint64_t offset, elem_bytes;
    uint32_t tensor_idx, nth;
};

/* The state of reading a file back. Pieces fill a span without gaps; the next one begins at byte `begin` and has `left`
 * bytes to come. */
struct reading {
    const struct ox_tensor_sums *sums;
    struct span *spans; /* in the order of the file */
    uint32_t span_count, span_idx;
    uint32_t seen_count; /* spans seen, in all files */
    uint64_t at, begin, left;
    uint64_t first, count; /* elements of the current piece */
    uint64_t sum;          /* sum of the hashes of the span's pieces so far */
    const struct span *bad;
    XXH3_state_t state;
};

static uint32_t planes_of(const struct ox_tensor_sums *sums) {
    return 1 + sums->planes.count;
}

static uint64_t *sum_at(const struct ox_tensor_sums *sums, uint32_t tensor_idx, uint32_t nth) {
    return &sums->sums[(size_t)tensor_idx * planes_of(sums) + nth];
}

static void plane_name(const struct ox_tensor_sums *sums, uint32_t tensor_idx, uint32_t nth, char *name) {
    const struct ox_tensor *const tensor = &sums->model->tensors[tensor_idx];
    if (nth == 0) {
        snprintf(name, OX_OPTIM_NAME_BYTES, "%s", tensor->name);
    } else {
        ox_optim_name(tensor, sums->planes.planes[nth - 1], name);
    }
}

/* ---- a file's spans ------------------------------------------------------------------------------ */

static bool find_span(const struct ox_tensor_sums *sums, const struct ox_st_entry *entry, struct span *out) {
    for (uint32_t i = 0; i < sums->model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &sums->model->tensors[i];
        if (strncmp(entry->name, tensor->name, strlen(tensor->name)) != 0) {
            continue;
        }
        for (uint32_t nth = 0; nth < planes_of(sums); nth++) {
            char name[OX_OPTIM_NAME_BYTES];
            plane_name(sums, i, nth, name);
            if (strcmp(entry->name, name) == 0 && entry->count == tensor->count) {
                *out = (struct span){.offset = entry->offset, .elem_bytes = ox_dtype_bytes(entry->dtype),
                                     .tensor_idx = i, .nth = nth};
                return true;
            }
        }
    }
    return false;
}

static int compare_spans(const void *a, const void *b) {
    const struct span *const left = a, *const right = b;
    return left->offset < right->offset ? -1 : left->offset > right->offset;
}

static enum ox_status list_spans(struct reading *reading, const struct ox_st_file *file) {
    reading->span_count = ox_st_count(file);
    reading->spans = calloc(reading->span_count + (size_t)1, sizeof *reading->spans);
    if (reading->spans == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it back", ox_st_path(file));
    }
    for (uint32_t i = 0; i < reading->span_count; i++) {
        const struct ox_st_entry *const entry = ox_st_entry(file, i);
        if (!find_span(reading->sums, entry, &reading->spans[i])) {
            return ox_fail(OX_E_CORRUPT, "%s: holds \"%.200s\", which was not written", ox_st_path(file), entry->name);
        }
    }
    qsort(reading->spans, reading->span_count, sizeof *reading->spans, compare_spans);
    return OX_OK;
}

/* ---- reading back --------------------------------------------------------------------------------- */

static enum ox_status begin_file(void *context, const char *path, bool *known) {
    struct reading *const reading = context;
    const size_t bytes = strlen(path), suffix_bytes = strlen(suffix);
    struct ox_st_file *file = NULL;
    *known = bytes > suffix_bytes && strcmp(path + bytes - suffix_bytes, suffix) == 0;
    if (!*known) {
        return OX_OK;
    }
    free(reading->spans);
    *reading = (struct reading){.sums = reading->sums, .seen_count = reading->seen_count};
    enum ox_status status = ox_st_open(path, &file);
    OX_TRY(status, list_spans(reading, file));
    ox_st_close(&file);
    return status;
}

/* Begins the next piece of the file; false after the last one. Pieces end where the chunks of the unit end. */
static bool begin_piece(struct reading *reading) {
    if (reading->span_idx == reading->span_count) {
        return false;
    }
    const struct span *const span = &reading->spans[reading->span_idx];
    const struct ox_tensor *const tensor = &reading->sums->model->tensors[span->tensor_idx];
    const uint64_t chunk_elems = reading->sums->chunk_elems, from = tensor->offset + reading->first;
    reading->count = ox_min_u64(chunk_elems - from % chunk_elems, tensor->count - reading->first);
    reading->begin = span->offset + reading->first * span->elem_bytes;
    reading->left = reading->count * span->elem_bytes;
    const XXH_errorcode begun = XXH3_64bits_reset_withSeed(&reading->state, reading->first);
    OX_ASSERT(begun == XXH_OK && reading->left > 0);
    return true;
}

static void end_piece(struct reading *reading) {
    const struct span *const span = &reading->spans[reading->span_idx];
    reading->sum += XXH3_64bits_digest(&reading->state);
    reading->first += reading->count;
    if (reading->first < reading->sums->model->tensors[span->tensor_idx].count) {
        return;
    }
    if (reading->sum != *sum_at(reading->sums, span->tensor_idx, span->nth) && reading->bad == NULL) {
        reading->bad = span;
    }
    reading->span_idx++;
    reading->seen_count++;
    reading->first = reading->sum = 0;
}

static void take_bytes(void *context, const unsigned char *data, size_t bytes) {
    struct reading *const reading = context;
    while (bytes > 0 && (reading->left > 0 || begin_piece(reading))) {
        const bool before = reading->at < reading->begin; /* in the header */
        const uint64_t wanted = before ? reading->begin - reading->at : reading->left;
        const size_t part = (size_t)ox_min_u64(wanted, bytes);
        if (!before) {
            const XXH_errorcode added = XXH3_64bits_update(&reading->state, data, part);
            OX_ASSERT(added == XXH_OK);
            reading->left -= part;
        }
        reading->at += part;
        data += part;
        bytes -= part;
        if (!before && reading->left == 0) {
            end_piece(reading);
        }
    }
}

static enum ox_status end_file(void *context, const char *path) {
    struct reading *const reading = context;
    char name[OX_OPTIM_NAME_BYTES];
    if (reading->bad == NULL) {
        return OX_OK;
    }
    plane_name(reading->sums, reading->bad->tensor_idx, reading->bad->nth, name);
    return ox_fail(OX_E_CORRUPT, "%s: the drive returns other bytes of %s than were written; replace it or "
                   "use another", path, name);
}

/* ---- public ---------------------------------------------------------------------------------------- */

enum ox_status ox_tensor_sums_open(const struct ox_model *model, struct ox_plane_list planes, uint64_t chunk_elems,
                                  struct ox_tensor_sums *out) {
    *out = (struct ox_tensor_sums){.model = model, .planes = planes, .chunk_elems = chunk_elems};
    out->sums = calloc((size_t)model->tensor_count * planes_of(out), sizeof *out->sums);
    return out->sums != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "checkpoint: no memory for the hashes of its tensors");
}

void ox_tensor_sums_close(struct ox_tensor_sums *sums) {
    free(sums->sums);
    memset(sums, 0, sizeof *sums);
}

void ox_tensor_sums_add(struct ox_tensor_sums *sums, uint32_t nth, const struct ox_tensor_part *piece, const void *data,
                       size_t bytes) {
    *sum_at(sums, piece->tensor_idx, nth) += ox_hash64(data, bytes, piece->first);
}

enum ox_status ox_tensor_sums_collect(const struct ox_tensor_sums *sums, const char *folder,
                                     struct ox_manifest *manifest) {
    struct reading reading = {.sums = sums};
    const struct ox_readback read_back = {
        .begin = begin_file, .bytes = take_bytes, .end = end_file, .context = &reading};
    manifest->read_back = &read_back;
    enum ox_status status = ox_manifest_collect(folder, manifest);
    manifest->read_back = NULL;
    if (status == OX_OK && reading.seen_count != sums->model->tensor_count * planes_of(sums)) {
        status = ox_fail(OX_E_CORRUPT, "%s: %" PRIu32 " of %" PRIu32 " tensors could be read back", folder,
                         reading.seen_count, sums->model->tensor_count * planes_of(sums));
    }
    free(reading.spans);
    return status;
}
