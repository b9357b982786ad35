/* From logits to a token: greedy, or by chance within the most likely tokens. The same seed, position and logits give
 * the same token. */
#ifndef OX_ENGINE_SAMPLE_H
#define OX_ENGINE_SAMPLE_H

#include "base/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_sampling {
    double temperature; /* 0: the most likely token, the lowest id of equals */
    uint64_t top_k;     /* only the most likely tokens, so many; 0: all */
    double top_p;       /* of those the fewest that reach this share of their probability together; 1: all */
    uint64_t seed;
};

struct ox_logit {
    float value;
    int32_t id;
};

struct ox_sampler;
OX_MUST enum ox_status ox_sampler_open(const struct ox_sampling *sampling, uint32_t vocab, struct ox_sampler **out);
void ox_sampler_close(struct ox_sampler **sampler);

/* The token behind the one at `position`, from its logits (vocab). A NaN or +inf among them is OX_E_CORRUPT. */
OX_MUST enum ox_status ox_sampler_next(struct ox_sampler *sampler, const float *logits, uint64_t position,
                                       int32_t *id);

/* The `count` (at most vocab) largest logits, largest first, the lower id first of equals. */
void ox_sampler_top(struct ox_sampler *sampler, const float *logits, uint64_t count, struct ox_logit *out);

#ifdef __cplusplus
}
#endif
#endif
