/* Alignment, checked arithmetic, and sizes as text. All sizes are bytes unless the name says otherwise. */
#ifndef OX_BASE_BYTES_H
#define OX_BASE_BYTES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* block size for every O_DIRECT transfer: drives report 512 or 4096 (STATX_DIOALIGN) */
enum { OX_IO_ALIGN_BYTES = 4096 };

#define OX_KIB (UINT64_C(1) << 10)
#define OX_MIB (UINT64_C(1) << 20)
#define OX_GIB (UINT64_C(1) << 30)

static inline uint64_t ox_align_up(uint64_t value, uint64_t align) {
    return (value + align - 1) / align * align;
}

static inline uint64_t ox_div_up(uint64_t value, uint64_t by) {
    return (value + by - 1) / by;
}

static inline uint64_t ox_min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint64_t ox_max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Both return false on overflow; *out is then unspecified. */
static inline bool ox_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool ox_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

enum { OX_SIZE_TEXT_BYTES = 24 };

/* Writes a readable size such as "12.3 MiB" into text (OX_SIZE_TEXT_BYTES) and returns text. */
const char *ox_size_text(uint64_t bytes, char *text);

/* Writes the smallest readable size of at least `bytes` as a flag takes it, such as "900MiB" or "54.1GiB", into text
 * (OX_SIZE_TEXT_BYTES) and returns text. */
const char *ox_size_flag_text(uint64_t bytes, char *text);

/* The ending of a plural: "" for one, else "s", or "es" as of a batch. */
static inline const char *ox_plural(uint64_t count) {
    return count == 1 ? "" : "s";
}
static inline const char *ox_plural_es(uint64_t count) {
    return count == 1 ? "" : "es";
}

/* Writes a readable number of things such as "10.08 M" or "6.738 B" (billions) into text (OX_SIZE_TEXT_BYTES) and
 * returns text. */
const char *ox_count_text(double count, char *text);

/* Writes a readable time such as "312 ms" or "4.20 s" into text (OX_SIZE_TEXT_BYTES) and returns text. */
const char *ox_seconds_text(double seconds, char *text);

/* Reads "90" or "90s", "10min", "1.5h", "250ms"; "m" alone means minutes. Case does not matter. Returns false when the
 * text is no such time or exceeds 2^62 ns. */
bool ox_duration_parse(const char *text, uint64_t *ns_out);

/* Writes a time in the largest unit that divides it, so that it reads back exactly, into text (OX_SIZE_TEXT_BYTES) and
 * returns text. */
const char *ox_duration_flag_text(uint64_t ns, char *text);

/* Reads "512", "20GiB", "1.5GB", "4096KiB". Case does not matter; GiB is binary, GB decimal, and "G" alone means GiB.
 * Returns false when the text is no such size or exceeds 2^62 bytes. */
bool ox_size_parse(const char *text, uint64_t *bytes_out);

#ifdef __cplusplus
}
#endif
#endif
