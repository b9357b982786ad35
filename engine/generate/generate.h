/* A model that goes on from a text: its weights, and the keys and values of what it has read so far.
 *
 * Weights are kept as fp32 where the memory allows it, else (bf16 alone) as their planes, else they are read from the
 * folder anew for every pass. All three give the same bits. */
#ifndef OX_ENGINE_GENERATE_H
#define OX_ENGINE_GENERATE_H

#include "engine/hf/hf.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ox_weights_home { OX_WEIGHTS_JOINED, OX_WEIGHTS_PLANES, OX_WEIGHTS_FILES, OX_WEIGHTS_HOME_COUNT };

struct ox_generator_config {
    const struct ox_hf_folder *folder; /* with weights; outlives the generator */
    const char *where;                 /* the folder, for messages; outlives the generator */
    bool fp32;           /* compute with the exact weights; else rounded to bfloat16, as training does */
    uint32_t threads;    /* at least 1; a matter of numerics */
    uint64_t host_bytes; /* weights, cache and workspace stay within it */
    uint32_t contexts;   /* tokens there is room for, at most the model's */
    uint32_t chunk_rows; /* tokens read at once, at most; a matter of numerics */
};

struct ox_generator;

/* Reserves everything and reads the weights. A budget that is too small is OX_E_CONFIG that names one that is not. */
OX_MUST enum ox_status ox_generator_open(const struct ox_generator_config *config, struct ox_generator **out);
void ox_generator_close(struct ox_generator **generator);

enum ox_weights_home ox_generator_home(const struct ox_generator *generator);
/* The least budget with which the weights live there. */
uint64_t ox_generator_need(const struct ox_generator *generator, enum ox_weights_home home);
/* Tokens read so far. */
uint32_t ox_generator_count(const struct ox_generator *generator);

/* Reads `count` tokens behind those before, as many as there is room for. *logits (vocab) are those behind the last
 * one, valid until the next call. `nll_sum`, if not NULL, is set to the sum of -log p of ids 1 .. count - 1, each given
 * all before it; that costs the head for every token. After a failure the generator can only be closed. */
OX_MUST enum ox_status ox_generator_read(struct ox_generator *generator, const int32_t *ids, uint32_t count,
                                         double *nll_sum, const float **logits);

#ifdef __cplusplus
}
#endif
#endif
