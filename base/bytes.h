/* Sizes: alignment and checked arithmetic. All sizes are bytes unless the name says otherwise. */
#ifndef OX_BASE_BYTES_H
#define OX_BASE_BYTES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_IO_ALIGN_BYTES = 4096 }; /* O_DIRECT everywhere; reference: STATX_DIOALIGN is 512 or 4096 */

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

/* False on overflow, and *out is then unspecified. */
static inline bool ox_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool ox_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

enum { OX_SIZE_TEXT_BYTES = 24 };

/* Writes a size for people, "12.3 MiB", into text (OX_SIZE_TEXT_BYTES) and returns text. */
const char *ox_size_text(uint64_t bytes, char *text);

/* Reads "512", "20GiB", "1.5GB", "4096KiB" (binary and decimal units are distinct, case does not
 * matter, "G" alone means GiB). False when the text is not such a size or does not fit. */
bool ox_size_parse(const char *text, uint64_t *bytes_out);

#ifdef __cplusplus
}
#endif
#endif
