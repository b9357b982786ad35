#include "engine/data/reference.h"

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash/hash.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they lie in memory");

enum { VERSION = 2, FIRST_VERSION = 1, ROWS_MAX_BITS = 40 };
static const char magic[8] = {'O', 'X', 'R', 'E', 'F', 'L', 'O', 'G'};

/* What a file begins with. */
struct head {
    char magic[8];
    uint32_t version, part_count;
    uint64_t run_id[2], weights;
    uint64_t numerics; /* from version 2 on */
};
struct part_head {
    uint64_t fingerprint, rows;
};

enum ox_status ox_reference_open(struct ox_reference *reference) {
    for (uint32_t i = 0; i < reference->part_count; i++) {
        struct ox_reference_part *const part = &reference->parts[i];
        part->values = malloc(((size_t)part->rows + 1) * sizeof *part->values);
        if (part->values == NULL) {
            return ox_fail(OX_E_NOMEM, "no memory for the reference of %" PRIu64 " sequences", part->rows);
        }
        for (uint64_t k = 0; k < part->rows; k++) {
            part->values[k] = NAN;
        }
    }
    return OX_OK;
}

void ox_reference_close(struct ox_reference *reference) {
    for (uint32_t i = 0; i < reference->part_count; i++) {
        free(reference->parts[i].values);
    }
    *reference = (struct ox_reference){0};
}

/* The values of a part with this fingerprint and so many rows, and without one that is known; or NULL. */
static double *find_part(const struct ox_reference *reference, const struct part_head *head) {
    for (uint32_t i = 0; i < reference->part_count; i++) {
        const struct ox_reference_part *const part = &reference->parts[i];
        if (part->fingerprint == head->fingerprint && part->rows == head->rows) {
            return part->values;
        }
    }
    return NULL;
}

static enum ox_status fail_damaged(const char *path) {
    return ox_fail(OX_E_CORRUPT, "%s: is damaged, and no copy of what the reference says of the preferences exists; "
                   "restore the file, or begin the run anew", path);
}

/* Takes the values out of a file's bytes. */
static enum ox_status take(struct ox_reference *reference, const char *path, const unsigned char *bytes, size_t count,
                           bool *found) {
    struct head head = {.version = 0};
    uint64_t sum = 0;
    if (count < sizeof head + sizeof sum) {
        return fail_damaged(path);
    }
    memcpy(&head, bytes, sizeof head);
    memcpy(&sum, bytes + count - sizeof sum, sizeof sum);
    const size_t head_bytes = head.version == FIRST_VERSION ? offsetof(struct head, numerics) : sizeof head;
    head.numerics = head.version == FIRST_VERSION ? 0 : head.numerics;
    const size_t fronts = head_bytes + (size_t)head.part_count * sizeof(struct part_head);
    if (memcmp(head.magic, magic, sizeof magic) != 0 || sum != ox_hash64(bytes, count - sizeof sum, 0) ||
        head.part_count > OX_REFERENCE_PARTS_MAX || fronts > count - sizeof sum) {
        return fail_damaged(path);
    }
    if (head.version != VERSION && head.version != FIRST_VERSION) {
        return ox_fail(OX_E_CORRUPT, "%s: is of version %u, this program reads %d and %d", path, head.version,
                       FIRST_VERSION, VERSION);
    }
    *found = memcmp(head.run_id, reference->run_id, sizeof head.run_id) == 0 ||
             (head.weights != 0 && head.weights == reference->weights);
    *found &= reference->numerics == 0 || head.numerics == 0 || head.numerics == reference->numerics;
    reference->numerics = *found && reference->numerics == 0 ? head.numerics : reference->numerics;
    const unsigned char *at = bytes + fronts, *const end = bytes + count - sizeof sum;
    for (uint32_t i = 0; i < head.part_count && *found; i++) {
        struct part_head part;
        memcpy(&part, bytes + head_bytes + i * sizeof part, sizeof part);
        if (part.rows > (size_t)(end - at) / sizeof(double)) {
            return fail_damaged(path);
        }
        double *const values = find_part(reference, &part);
        if (values != NULL) {
            memcpy(values, at, part.rows * sizeof(double));
        }
        at += part.rows * sizeof(double);
    }
    return OX_OK;
}

enum ox_status ox_reference_load(struct ox_reference *reference, const char *path, bool *found) {
    char *bytes = NULL;
    size_t count = 0;
    *found = false;
    if (!ox_path_exists(path)) {
        return OX_OK;
    }
    enum ox_status status = ox_file_read(path, (size_t)1 << ROWS_MAX_BITS, &bytes, &count);
    OX_THEN(status, take(reference, path, (const unsigned char *)bytes, count, found));
    free(bytes);
    return status;
}

enum ox_status ox_reference_save(const struct ox_reference *reference, const char *path) {
    struct head head = {.version = VERSION, .part_count = reference->part_count, .weights = reference->weights,
                        .numerics = reference->numerics};
    size_t count = sizeof head + reference->part_count * sizeof(struct part_head) + sizeof(uint64_t);
    memcpy(head.magic, magic, sizeof magic);
    memcpy(head.run_id, reference->run_id, sizeof head.run_id);
    for (uint32_t i = 0; i < reference->part_count; i++) {
        count += (size_t)reference->parts[i].rows * sizeof(double);
    }
    unsigned char *const bytes = malloc(count);
    if (bytes == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to write it", path);
    }
    unsigned char *at = bytes + sizeof head;
    memcpy(bytes, &head, sizeof head);
    for (uint32_t i = 0; i < reference->part_count; i++, at += sizeof(struct part_head)) {
        const struct part_head part = {reference->parts[i].fingerprint, reference->parts[i].rows};
        memcpy(at, &part, sizeof part);
    }
    for (uint32_t i = 0; i < reference->part_count; i++) {
        const size_t part = (size_t)reference->parts[i].rows * sizeof(double);
        memcpy(at, reference->parts[i].values, part);
        at += part;
    }
    const uint64_t sum = ox_hash64(bytes, count - sizeof sum, 0);
    memcpy(at, &sum, sizeof sum);
    const enum ox_status status = ox_file_replace(path, bytes, count);
    free(bytes);
    return status;
}
