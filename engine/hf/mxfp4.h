/* MXFP4, in which gpt-oss publishes the weights of its experts (OCP Microscaling Formats 1.0): groups of 32 values of 4
 * bits share a scale, a power of two. A byte holds two values, the lower half the first. */
#ifndef OX_ENGINE_MXFP4_H
#define OX_ENGINE_MXFP4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_MXFP4_GROUP = 32, OX_MXFP4_GROUP_BYTES = 16 };

/* Decodes whole groups, exactly: out (32 * groups), blocks (16 * groups), scales (groups). False where a scale says NaN
 * (255) or a value is beyond the type; such values are then what arithmetic gives, and the rest is decoded. */
bool ox_mxfp4_to_f32(float *out, const uint8_t *blocks, const uint8_t *scales, size_t groups);
bool ox_mxfp4_to_bf16(uint16_t *out, const uint8_t *blocks, const uint8_t *scales, size_t groups);

#ifdef __cplusplus
}
#endif
#endif
