/* Trains a byte-level BPE tokenizer: the merges and ids of the `tokenizers` library on the same texts, ties included.
 * `offload tokenize --train` calls it from one thread. */
#ifndef OX_ENGINE_BPE_TRAIN_H
#define OX_ENGINE_BPE_TRAIN_H

#include "base/status.h"
#include "engine/text/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_BPE_SPECIALS_MAX = 256 };

/* What a special token is for, besides that no text becomes it. */
enum ox_bpe_role { OX_BPE_NO_ROLE, OX_BPE_EOS, OX_BPE_BOS, OX_BPE_PAD, OX_BPE_UNK, OX_BPE_ROLE_COUNT };

struct ox_bpe_specials {
    char *texts[OX_BPE_SPECIALS_MAX]; /* in the order of their ids, which are the first; owned */
    enum ox_bpe_role roles[OX_BPE_SPECIALS_MAX];
    uint32_t count;
};
/* Reads "<|endoftext|>,pad=<pad>,bos=<s>": tokens separated by commas, with the role of each before an '='. Where none
 * has the role eos, the first without a role gets it. Free *out with ox_bpe_specials_free, after failures too. */
OX_MUST enum ox_status ox_bpe_specials_read(const char *text, struct ox_bpe_specials *out);
void ox_bpe_specials_free(struct ox_bpe_specials *specials);

/* How texts are cut into the words within which merges happen: the rules of these models. */
enum ox_bpe_words { OX_BPE_GPT2, OX_BPE_LLAMA3, OX_BPE_QWEN2, OX_BPE_WORDS_COUNT };

struct ox_bpe_training {
    uint32_t vocab_size;    /* special tokens, 256 bytes, and merges: an upper limit */
    uint64_t min_frequency; /* occurrences that a pair needs to be merged */
    enum ox_bpe_words words;
    const struct ox_bpe_specials *specials; /* outlives the trainer */
    /* Called on the caller's thread after every some merges; NULL: not. */
    void (*progress)(void *context, uint64_t merges, uint64_t merges_max);
    void *context;
};

struct ox_bpe_trainer;
/* A vocabulary without room for bytes and special tokens is OX_E_CONFIG. */
OX_MUST enum ox_status ox_bpe_trainer_open(const struct ox_bpe_training *config, struct ox_bpe_trainer **out);
void ox_bpe_trainer_close(struct ox_bpe_trainer **trainer);
/* Where a text may be cut into pieces that are added one after another. */
enum ox_cuts ox_bpe_trainer_cuts(const struct ox_bpe_trainer *trainer);
/* Counts the words of a text, or with `continues` of one that follows such a cut. Memory grows with the number of
 * different words. Special tokens in a text are ordinary text, as in the library. */
OX_MUST enum ox_status ox_bpe_trainer_add(struct ox_bpe_trainer *trainer, const char *text, size_t bytes,
                                          bool continues);
uint64_t ox_bpe_trainer_word_count(const struct ox_bpe_trainer *trainer); /* different words */
/* Learns the merges, once. Fewer than asked for is no error: *vocab_count says how many tokens there are. */
OX_MUST enum ox_status ox_bpe_trainer_run(struct ox_bpe_trainer *trainer, uint32_t *vocab_count);
/* Writes tokenizer.json and tokenizer_config.json, as transformers reads them, into `folder`, which is made. One that
 * has a tokenizer.json is OX_E_CONFIG. */
OX_MUST enum ox_status ox_bpe_trainer_save(const struct ox_bpe_trainer *trainer, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
