/* The rules that turn documents into ids. corpus.c sets them, corpus_tokenize.c applies them. */
#ifndef OX_ENGINE_CORPUS_INTERNAL_H
#define OX_ENGINE_CORPUS_INTERNAL_H

#include "base/file.h"
#include "engine/data/corpus.h"
#include "engine/data/documents.h"
#include "engine/data/token_cache.h"
#include "engine/text/chat.h"
#include "engine/text/tokenizer.h"

#include <signal.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_CORPUS_PIECE_BYTES = 256 << 10 };

/* The files that are read, and as what. */
struct ox_inputs {
    struct ox_files files;
    enum ox_corpus_format format; /* not AUTO */
    enum ox_data_kind kind;       /* of TOKENS; else BYTES */
};

/* Lists `path` and chooses. In a folder it leaves out what is about the data, test and validation splits (of an
 * evaluation all else, where there are such), and beside rows all other formats. Files that cannot be read in the
 * format are OX_E_CONFIG, with what they look like and how to convert them. Close *out with ox_inputs_close. */
OX_MUST enum ox_status ox_inputs_open(const struct ox_corpus_config *config, struct ox_inputs *out);
void ox_inputs_close(struct ox_inputs *inputs);
/* Logs what was left out. */
void ox_inputs_say_left(const struct ox_files *files);

/* Turns the escapes of the option for a separator into bytes. The caller frees *bytes, after failures too. */
OX_MUST enum ox_status ox_corpus_separator(const char *text, char **bytes, size_t *byte_count);

struct ox_corpus_rules {
    const struct ox_tokenizer *tokenizer;
    int64_t text_bos, text_eos; /* ids around a text; -1: none                              */
    bool rows, pairs;
    uint32_t skip_bad_rows;     /* of rows                                                  */
    struct ox_chat_options chat;    /* how conversations are rendered                       */
    const struct ox_chat_columns *columns; /* names of the keys of rows                      */
};

struct ox_corpus_work {
    struct ox_corpus_rules rules;
    const char *path; /* for the log */
    struct ox_documents *documents;
    struct ox_cache_writer *writer;
    uint32_t threads;
    const volatile sig_atomic_t *stop;
    uint32_t is_chat, untrained_count, bad_count; /* out: as in struct ox_cache_header */
    struct ox_chat_notes notes;        /* out: what all renderers noticed   */
    char untrained_first[OX_PATH_BYTES + 32]; /* out: file and line of the first row without a trained token */
    char noted_first[OX_NOTE_PLACED_COUNT][OX_PATH_BYTES + 96]; /* out: as in struct ox_corpus_report      */
};

/* Writes the ids of all documents to the writer, in order, and counts rows without a trained token instead. The ids do
 * not depend on the number of threads. */
OX_MUST enum ox_status ox_corpus_tokenize(struct ox_corpus_work *work);
/* Tokenizes the first documents and writes nothing: shows within a moment what is wrong with them. */
OX_MUST enum ox_status ox_corpus_look(struct ox_corpus_work *work);

#ifdef __cplusplus
}
#endif
#endif
