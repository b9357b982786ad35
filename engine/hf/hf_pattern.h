/* Patterns by which options name tensors of a model: a name with * and ?, embed, head, layers.3 or layers.0-15. */
#ifndef OX_ENGINE_HF_PATTERN_H
#define OX_ENGINE_HF_PATTERN_H

#include "engine/hf/hf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether a pattern means a tensor. A table that embedding and head share is one tensor, by both names. */
bool ox_hf_means(const struct ox_model *model, const char *pattern, const struct ox_tensor *tensor);
/* Whether a pattern means the tensors that the rest of it does not mean: `all-but PATTERN`. Goes on to that rest, and
 * over blanks before it. */
bool ox_hf_excepts(const char **pattern);
/* Refuses a pattern of `option` that means nothing (OX_E_CONFIG), with the nearest name that it may mean. */
OX_MUST enum ox_status ox_hf_refuse_pattern(const struct ox_model *model, const char *option, const char *pattern);
/* Refuses tensors of one role that `option` made unlike, one trained and the other not or in another group, where they
 * share a block of OX_Q8_BLOCK elements: scales of eight-bit moments and sums that notice changed memory are of whole
 * blocks, which one update writes. OX_E_CONFIG naming both. */
OX_MUST enum ox_status ox_hf_check_blocks(const struct ox_model *model, const char *option);

#ifdef __cplusplus
}
#endif
#endif
