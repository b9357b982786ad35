/* The parts of a trainer: bpe_train.c counts words, bpe_train_merges.c learns merges, bpe_train_save.c writes files. */
#ifndef OX_ENGINE_BPE_TRAIN_INTERNAL_H
#define OX_ENGINE_BPE_TRAIN_INTERNAL_H

#include "engine/vocab/bpe_train.h"
#include "engine/text/text.h"

#include <jansson.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A different word; its bytes become as many symbols when merging begins, which are fewer after every merge. */
struct ox_bpe_word {
    size_t begin; /* in texts.data, then in symbols */
    uint32_t length;
    uint64_t count;
};

struct ox_bpe_trainer {
    struct ox_bpe_training config;
    struct ox_tokenizer *cutter;
    struct ox_encoder *encoder;
    /* words */
    struct ox_text texts;
    struct ox_bpe_word *words;
    size_t word_count, word_capacity;
    uint32_t *word_slots; /* index + 1 by hash of the bytes */
    uint64_t word_mask;
    uint32_t *symbols;
    /* vocabulary: the text of each id, with ByteLevel's characters for bytes */
    struct ox_text tokens;
    size_t *token_begin; /* token_count + 1 of them */
    size_t token_capacity;
    uint32_t token_count;
    uint32_t *token_slots; /* id + 1 by hash of the text */
    uint64_t token_mask;
    uint32_t byte_ids[256];
    struct ox_bpe_learned {
        uint32_t left, right;
    } *merges;
    size_t merge_count, merge_capacity;
};

/* The id of a token's text, which is added if no token has it. */
OX_MUST enum ox_status ox_bpe_token_id(struct ox_bpe_trainer *trainer, const char *text, size_t bytes, uint32_t *id);
/* Cuts the words into symbols and merges them until the vocabulary is full. */
OX_MUST enum ox_status ox_bpe_learn(struct ox_bpe_trainer *trainer);
/* The pre-tokenizer of a tokenizer.json; the caller owns it. NULL: no memory. */
json_t *ox_bpe_pre_tokenizer(enum ox_bpe_words words);

#ifdef __cplusplus
}
#endif
#endif
