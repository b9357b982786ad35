/* Reads the texts of files and rows one after another, for what learns from text before there is a tokenizer. */
#ifndef OX_ENGINE_CORPUS_TEXTS_H
#define OX_ENGINE_CORPUS_TEXTS_H

#include "engine/data/corpus.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What gets the texts; called on the thread that reads them, the caller's. */
struct ox_text_taker {
    /* A text, or with `continues` a piece of one that follows a cut; valid during the call. */
    enum ox_status (*take)(void *context, const char *text, size_t bytes, bool continues);
    /* Called after every document with the bytes of the files read so far, and in all; NULL: not. */
    void (*progress)(void *context, uint64_t bytes, uint64_t bytes_all);
    void *context;
    enum ox_cuts cuts; /* where a text may be cut */
};

/* Takes every text of what `config` names: documents of texts; of rows the text, the prompt and the completion, or the
 * content of every message. Of the configuration, the tokenizer and what follows from it is not used. Token files and
 * bytes are OX_E_CONFIG; so is what is no text or row, with its place. */
OX_MUST enum ox_status ox_corpus_each_text(const struct ox_corpus_config *config, const struct ox_text_taker *taker);

#ifdef __cplusplus
}
#endif
#endif
