/* What the reference of preferences says of their sequences: a log-probability for each row of one or several windows,
 * known or not yet, and the file that keeps them. The trainer computes them before a run begins.
 *
 *     "OXREFLOG", u32 version 2, u32 parts, u64 run id (2), u64 weights, u64 numerics (version 1 lacks it), of each
 *     part u64 fingerprint and u64 rows;
 *     a double per row of all parts, NaN: not known; u64 XXH3 of all before it; little-endian */
#ifndef OX_ENGINE_REFERENCE_H
#define OX_ENGINE_REFERENCE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_REFERENCE_PARTS_MAX = 16 };
/* The rows of one windows: their fingerprint (ox_windows_fingerprint), and their values by ox_windows_place. */
struct ox_reference_part {
    uint64_t fingerprint, rows;
    double *values; /* NaN: not known */
};
struct ox_reference {
    uint64_t run_id[2]; /* the run that began with the weights of the reference */
    uint64_t weights;   /* a hash of these; 0: not known */
    uint64_t numerics;  /* what computes the values, as a hash; 0: any, and loading sets it to that of the file */
    uint32_t part_count;
    struct ox_reference_part parts[OX_REFERENCE_PARTS_MAX];
};

/* Allocates the values of all parts, whose fingerprints and rows are set; none is known. Closing frees them, also those
 * of a structure of zeros. */
OX_MUST enum ox_status ox_reference_open(struct ox_reference *reference);
void ox_reference_close(struct ox_reference *reference);
/* Takes from the file what it knows of the parts whose fingerprint it has, if it is of the same run or the same known
 * weights, and of the same numerics; sets *found to whether it is. A file that is missing is none of the same run; a
 * damaged one is OX_E_CORRUPT. */
OX_MUST enum ox_status ox_reference_load(struct ox_reference *reference, const char *path, bool *found);
/* Writes the file under a temporary name, syncs it and renames it. */
OX_MUST enum ox_status ox_reference_save(const struct ox_reference *reference, const char *path);

#ifdef __cplusplus
}
#endif
#endif
