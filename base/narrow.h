/* Formats in which ranks exchange gradients: --exchange-dtype. All but float32 round each sum once before it travels,
 * so that a result depends on how many ranks summed it.
 *
 * Q8 has blocks of 64 numbers: a float32 scale, the largest magnitude of the block over 127, and 64 signed bytes, each
 * the number over the scale, rounded to nearest, ties to even. An element is off by half a scale at most. Numbers of
 * less than about 1.5e-36 become zero; a block with a number that is not finite comes back as NaN, so that it shows in
 * the norm. */
#ifndef OX_BASE_NARROW_H
#define OX_BASE_NARROW_H

#include "base/planes.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_exchange_dtype { OX_EXCHANGE_FP32, OX_EXCHANGE_BF16, OX_EXCHANGE_Q8, OX_EXCHANGE_COUNT };

enum { OX_BLOCK8_ELEMS = 64, OX_BLOCK8_BYTES = 4 + OX_BLOCK8_ELEMS };

/* As --exchange-dtype: "fp32", "bf16", "q8". */
static inline const char *ox_exchange_dtype_name(enum ox_exchange_dtype dtype) {
    return dtype == OX_EXCHANGE_BF16 ? "bf16" : dtype == OX_EXCHANGE_Q8 ? "q8" : "fp32";
}

/* Bytes of so many numbers, in float32 exactly and else up to a multiple of 16. Those of the first 2048 * n numbers of
 * a vector are where the others begin. */
static inline uint64_t ox_exchange_bytes(enum ox_exchange_dtype dtype, uint64_t elems) {
    const uint64_t bytes = dtype == OX_EXCHANGE_BF16 ? 2 * elems
                           : dtype == OX_EXCHANGE_Q8 ? (elems + OX_BLOCK8_ELEMS - 1) / OX_BLOCK8_ELEMS * OX_BLOCK8_BYTES
                                                     : 4 * elems;
    return dtype == OX_EXCHANGE_FP32 ? bytes : (bytes + 15) / 16 * 16;
}

/* The scale of a block whose largest magnitude is `most`; `most` is NaN where a number is not finite. */
static inline OX_ON_DEVICE_TOO float ox_block8_scale(float most) {
    const float scale = most / 127.0f;
    return scale < 1.17549435e-38f ? 0.0f : scale;
}

#ifdef __cplusplus
}
#endif
#endif
