/* Opens what --data names as tokens: token files directly; texts and rows through the tokenizer, on all cores, into a
 * cache that later runs reuse while text, tokenizer and options are the same. The trainer and the commands eval and
 * tokenize call it. */
#ifndef OX_ENGINE_CORPUS_H
#define OX_ENGINE_CORPUS_H

#include "base/file.h"
#include "engine/data/data.h"
#include "engine/text/chat.h"
#include "engine/text/tokenizer.h"

#include <signal.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_corpus_format { OX_CORPUS_AUTO, OX_CORPUS_TEXT, OX_CORPUS_ROWS, OX_CORPUS_BYTES, OX_CORPUS_TOKENS };

struct ox_corpus_config {
    const char *path;
    bool evaluates; /* of a folder with a test or validation split, that is read; else all but that */
    enum ox_corpus_format format; /* AUTO: token files by their first bytes, rows by their file name, else text if there
                                     is a tokenizer, and bytes if there is none */
    const char *tokenizer;        /* folder or tokenizer.json; "" for none. Opened only when needed */
    const char *no_bytes;         /* why text without a tokenizer must not be taken for bytes; NULL or "": it may */
    const char *cache_dir;        /* created if missing; "": an unnamed file in /var/tmp, gone with the process */
    const char *separator;        /* between text documents, with escapes \n \t \r \\ \xHH; "": one document a file */
    /* Conversations: the template as engine/text/template.h finds it ("": the tokenizer's own), a JSON object of its
     * variables ("": none), the date it prints, and what is trained. */
    const char *chat_template, *chat_template_kwargs;
    int64_t clock_s; /* for ox_chat_date */
    enum ox_train_on train_on;
    /* BOS and EOS around every text and prompt; with `plain`, AUTO adds neither to texts that are no rows. The EOS is
     * trained. So is the BOS of a text, which is a target when a stream counts as one text; the BOS of a prompt is not.
     * Conversations always have what their template writes. */
    enum ox_add add_bos, add_eos;
    bool plain;
    bool parse_special; /* special-token strings in conversations become tokens; in other texts they always do */
    struct ox_chat_columns columns; /* names of the keys of rows */
    bool pairs; /* rows are preferences, each of which gives two documents; other data is refused */
    uint32_t skip_bad_rows; /* rows that may be left out because they cannot be used; up to UINT16_MAX */
    uint32_t threads;
    const volatile sig_atomic_t *stop; /* may be NULL; a value other than 0 ends the work with OX_E_ABORTED */
};

/* What ox_corpus_open did, for the log. */
struct ox_corpus_report {
    bool tokenized, reused; /* both false: token files were opened */
    bool has_rows;          /* it is JSON lines, tokenized */
    uint64_t documents, tokens; /* documents: with the rows that were left out */
    uint64_t bad_rows;          /* left out because they cannot be used; not among the documents */
    uint64_t trained, bytes; /* trained tokens, and bytes of text; 0 for token files */
    double seconds;
    /* Where there are conversations: their template's origin, and whether {% generation %} marks the assistant's
     * turns. Else "". */
    char chat_template[OX_PATH_BYTES + 64];
    bool marks_generation;
    char lettered_end[OX_CHAT_TAG_BYTES]; /* as ox_chat_lettered_end has it */
    /* Found while rows are tokenized, not in a cache that is used again. */
    struct ox_chat_notes notes;
    char untrained_first[OX_PATH_BYTES + 32]; /* file and line of the first row without a trained token; "": none */
    /* Where the notes that are placed were first taken, as "FILE:LINE: message 2, of the role "tool""; "": nowhere. */
    char noted_first[OX_NOTE_PLACED_COUNT][OX_PATH_BYTES + 96];
};

/* Opens the tokens into *out, which the caller closes with ox_data_close. A row without a token to be trained on is
 * left out and counted, so the data may be empty. Beyond skip_bad_rows, which are logged and counted, nothing else is
 * skipped: a row or text that cannot be used (not JSON,
 * no known form, invalid UTF-8, roles that the template refuses) is an error that names the file and the line or byte.
 * A damaged cache is made again, with a warning. A text that changes while it is read is OX_E_CONFIG. */
OX_MUST enum ox_status ox_corpus_open(const struct ox_corpus_config *config, struct ox_data **out,
                                      struct ox_corpus_report *report);
/* Sets *ready to whether ox_corpus_open can open the tokens without tokenizing. Where it cannot, the first documents,
 * a fourth of a MiB, are tokenized for their errors alone, which are those that ox_corpus_open would have. */
OX_MUST enum ox_status ox_corpus_is_ready(const struct ox_corpus_config *config, bool *ready);

#ifdef __cplusplus
}
#endif
#endif
