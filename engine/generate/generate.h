/* Generates text with a model: its weights, and the keys and values of the tokens read so far.
 *
 * The weights are kept as fp32 where memory allows it, else (bf16 only) as planes, else they are read from the folder
 * again in every pass. All three give the same bits. */
#ifndef OX_ENGINE_GENERATE_H
#define OX_ENGINE_GENERATE_H

#include "engine/hf/hf.h"
#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ox_weights_home { OX_WEIGHTS_JOINED, OX_WEIGHTS_PLANES, OX_WEIGHTS_FILES, OX_WEIGHTS_HOME_COUNT };

struct ox_generator_config {
    const struct ox_hf_folder *folder; /* with weights; outlives the generator */
    const char *where;                 /* the folder's name in messages; outlives the generator */
    enum ox_compute_dtype dtype; /* compute with weights rounded to this format, as training does */
    uint32_t threads;    /* at least 1; changes the last bits of results */
    uint64_t host_bytes; /* limit for weights, cache and scratch; with a GPU, for what is on its way */
    const struct ox_cuda_config *cuda; /* the GPU that computes, also in float32; NULL: the CPU does */
    uint64_t device_bytes;             /* limit for weights, cache and scratch on a GPU */
    uint64_t device_beside_bytes;      /* what the GPU's process takes besides: part of the advised --device-mem */
    uint32_t contexts;   /* room for this many tokens; at most the model's */
    uint32_t chunk_rows; /* most tokens read at once; changes the last bits of results */
};

struct ox_generator;

/* Reserves all memory and reads the weights. If the budget is too small, OX_E_CONFIG names one that suffices. Without
 * a GPU where one is asked for: OX_E_DEVICE. */
OX_MUST enum ox_status ox_generator_open(const struct ox_generator_config *config, struct ox_generator **out);
void ox_generator_close(struct ox_generator **generator);

enum ox_weights_home ox_generator_home(const struct ox_generator *generator);
/* The smallest budget for which the weights live there, of the memory that computes. */
uint64_t ox_generator_need(const struct ox_generator *generator, enum ox_weights_home home);
/* Room for so many tokens. */
uint32_t ox_generator_room(const struct ox_generator *generator);
/* Tokens read so far, over all calls. */
uint32_t ox_generator_count(const struct ox_generator *generator);

/* Forgets the tokens behind the first `count`, so that others can be read in their place. */
void ox_generator_rewind(struct ox_generator *generator, uint32_t count);

/* Reads `count` more tokens; there must be room for them. *logits (vocab) are those after the last token, valid until
 * the next call. If `nll_sum` is not NULL it is set to the sum of -log p of ids 1 .. count - 1, each given all tokens
 * before it; that costs the head for every token. After a failure the generator can only be closed. */
OX_MUST enum ox_status ox_generator_read(struct ox_generator *generator, const int32_t *ids, uint32_t count,
                                         double *nll_sum, const float **logits);

#ifdef __cplusplus
}
#endif
#endif
