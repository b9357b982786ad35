/* Shared by the files about units: what they compute and what that costs; not for others. */
#ifndef OX_ENGINE_BLOCK_INTERNAL_H
#define OX_ENGINE_BLOCK_INTERNAL_H

#include "engine/model/block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Widths in elements per row. */
struct ox_block_widths {
    uint32_t hidden, qkv, att, mlp_in, mlp; /* mlp_in: before the activation */
};
struct ox_block_widths ox_block_widths_of(const struct ox_model_config *config);

/* Of a block, with its window. */
struct ox_attention_shape ox_block_attention_of(const struct ox_shape *shape, uint32_t unit_idx);

#ifdef __cplusplus
}
#endif
#endif
