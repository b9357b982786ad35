/* From whatever --data names to tokens: token files as they are; texts and rows through the tokenizer, on all cores,
 * into a cache that is used again as long as text, tokenizer and options are the same. */
#ifndef OX_ENGINE_CORPUS_H
#define OX_ENGINE_CORPUS_H

#include "engine/data/data.h"
#include "engine/text/tokenizer.h"

#include <signal.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_corpus_format { OX_CORPUS_AUTO, OX_CORPUS_TEXT, OX_CORPUS_ROWS, OX_CORPUS_BYTES, OX_CORPUS_TOKENS };
enum ox_corpus_add { OX_ADD_AUTO, OX_ADD_ON, OX_ADD_OFF };

struct ox_corpus_config {
    const char *path;
    enum ox_corpus_format format; /* AUTO: token files by their first bytes, rows by their ending, else text where there
                                     is a tokenizer, and bytes where there is none */
    const char *tokenizer;        /* folder or tokenizer.json; "" = none. Opened when it is needed */
    const char *cache_dir;        /* made when missing; "": an unnamed file in /var/tmp, gone with the process */
    const char *separator;        /* of text documents, with \n \t \r \\ \xHH written out; "": a file is a document */
    const char *chat_template;    /* a name of engine/text/chat.h, or "": detected */
    /* Beside every text and prompt: AUTO is what the tokenizer does for BOS, and EOS where it has one; with `plain`
     * AUTO adds neither to texts. EOS is trained, and the BOS of texts, which is a target where a stream is one text; a
     * prompt's is not. Conversations have what their template writes, always. */
    enum ox_corpus_add add_bos, add_eos;
    bool plain;
    bool parse_special; /* special-token strings in rows of chats become tokens; in texts and {"text"} rows they always
                           do */
    uint32_t threads;
    const volatile sig_atomic_t *stop; /* not 0: given up, OX_E_ABORTED; may be NULL */
};

/* What was done, for the log. */
struct ox_corpus_report {
    bool tokenized, reused;                     /* neither: token files */
    uint64_t documents, tokens, trained, bytes; /* trained, and bytes (of the text): only with one of the two */
    double seconds;
};

/* A row or text that cannot be used (not JSON, no known form, invalid UTF-8, a template that refuses the roles) is an
 * error that names file and line, or byte: nothing is skipped. A cache that is damaged is made again, with a warning. A
 * text that changes while it is read is OX_E_CONFIG. */
OX_MUST enum ox_status ox_corpus_open(const struct ox_corpus_config *config, struct ox_data **out,
                                      struct ox_corpus_report *report);
/* False when ox_corpus_open would have to tokenize. */
OX_MUST enum ox_status ox_corpus_is_ready(const struct ox_corpus_config *config, bool *ready);

#ifdef __cplusplus
}
#endif
#endif
