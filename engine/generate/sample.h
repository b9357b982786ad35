/* Turns logits into a token: the most likely one, or one drawn at random among the most likely. `offload generate`
 * calls it. Equal seeds, positions and logits give equal tokens. */
#ifndef OX_ENGINE_SAMPLE_H
#define OX_ENGINE_SAMPLE_H

#include "base/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_sampling {
    double temperature; /* divisor of the logits; 0: the most likely token, the lowest id if several are equal */
    uint64_t top_k;     /* draw among this many most likely tokens; 0: all */
    double top_p;       /* draw among the fewest of those that have this share of their probability; 1: all */
    uint64_t seed;
    double repetition_penalty; /* divides the logits above 0 of seen tokens, multiplies those below; 1: none */
};

struct ox_logit {
    float value;
    int32_t id;
};

struct ox_sampler;
OX_MUST enum ox_status ox_sampler_open(const struct ox_sampling *sampling, uint32_t vocab, struct ox_sampler **out);
void ox_sampler_close(struct ox_sampler **sampler);

/* Draws the token after the one at `position` from that one's logits[vocab]. A NaN or +inf among them is
 * OX_E_CORRUPT. */
OX_MUST enum ox_status ox_sampler_next(struct ox_sampler *sampler, const float *logits, uint64_t position,
                                       int32_t *id);

/* Notes a token of the text so far, for the penalty; forgets all of them. */
void ox_sampler_see(struct ox_sampler *sampler, int32_t id);
void ox_sampler_forget(struct ox_sampler *sampler);
/* Changes the seed, for another sample of the same text. */
void ox_sampler_seed(struct ox_sampler *sampler, uint64_t seed);

/* Writes the `count` largest logits to out[count], the largest first, equal ones by ascending id; `count` is at most
 * vocab. */
void ox_sampler_top(struct ox_sampler *sampler, const float *logits, uint64_t count, struct ox_logit *out);

#ifdef __cplusplus
}
#endif
#endif
