/* Tokenizers as Hugging Face's `tokenizers` library defines them in tokenizer.json: byte-level BPE (GPT-2, Llama-3,
 * Qwen2, Qwen3, Mistral-Nemo) and byte-fallback BPE (Llama-2, Mistral). Ids and decoded text equal those of the
 * original; a part of the file that is not known is OX_E_CONFIG naming it, never an approximation. */
#ifndef OX_ENGINE_TOKENIZER_H
#define OX_ENGINE_TOKENIZER_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_tokenizer; /* immutable after open: any number of threads may use it, each with its own encoder */

/* `path`: a tokenizer.json, or a folder that holds one. Beside it tokenizer_config.json gives bos, eos and the chat
 * template (config.json the ids where it does not, chat_template.jinja the template before it); add_bos_token and
 * add_eos_token replace what the post-processor adds, as transformers has it. The file is at most 256 MiB. */
OX_MUST enum ox_status ox_tokenizer_open(const char *path, struct ox_tokenizer **out);
void ox_tokenizer_close(struct ox_tokenizer **tokenizer);

uint32_t ox_tokenizer_vocab_count(const struct ox_tokenizer *tokenizer); /* ids are below it, added tokens included */
int64_t ox_tokenizer_bos(const struct ox_tokenizer *tokenizer);          /* -1: none */
int64_t ox_tokenizer_eos(const struct ox_tokenizer *tokenizer);
bool ox_tokenizer_adds_bos(const struct ox_tokenizer *tokenizer); /* by post-processor or add_bos_token */
/* Id of a token by its text (added tokens first, then the vocabulary), or -1. */
int64_t ox_tokenizer_find(const struct ox_tokenizer *tokenizer, const char *text, size_t bytes);
/* The text as it stands in the vocabulary (not decoded); NULL when the id names none. */
const char *ox_tokenizer_token(const struct ox_tokenizer *tokenizer, uint32_t id);
bool ox_tokenizer_is_special(const struct ox_tokenizer *tokenizer, uint32_t id);
/* The Jinja chat template as text, or NULL. */
const char *ox_tokenizer_chat_template(const struct ox_tokenizer *tokenizer);
/* Hash of everything that decides ids, for caches. */
uint64_t ox_tokenizer_fingerprint(const struct ox_tokenizer *tokenizer);

/* Ids grow here; free with ox_ids_free. */
struct ox_ids {
    int32_t *ids;
    size_t count, capacity;
};
void ox_ids_free(struct ox_ids *ids);

/* Working memory of one thread: match data, symbol lists, the cache of pieces. */
struct ox_encoder;
OX_MUST enum ox_status ox_encoder_open(const struct ox_tokenizer *tokenizer, struct ox_encoder **out);
void ox_encoder_close(struct ox_encoder **encoder);

/* Appends the ids of `text` (UTF-8; invalid bytes are OX_E_CORRUPT with their offset). Special-token strings in the
 * text become those tokens when parse_special, else they are ordinary text. `post` adds what the post-processor adds
 * (BOS, EOS). */
OX_MUST enum ox_status ox_encode(struct ox_encoder *encoder, const char *text, size_t bytes, bool parse_special,
                                 bool post, struct ox_ids *out);

/* Where a text may be cut into pieces, each encoded alone, so that long texts need little memory and many threads: the
 * ids of the pieces are those of the whole. It depends on pattern, vocabulary and added tokens; NONE where that is not
 * certain. */
enum ox_cuts {
    OX_CUTS_NONE,
    OX_CUTS_BEFORE, /* before a newline that a letter follows */
    OX_CUTS_BEHIND, /* behind it                              */
};
enum ox_cuts ox_tokenizer_cuts(const struct ox_tokenizer *tokenizer);
/* As ox_encode without `post`, of a piece that goes on behind such a cut: what a tokenizer puts before a text (a space)
 * is not put before it. */
OX_MUST enum ox_status ox_encode_more(struct ox_encoder *encoder, const char *text, size_t bytes, bool parse_special,
                                      struct ox_ids *out);

/* A text in parts that follow one another. */
struct ox_text_part {
    size_t end;   /* the byte behind it; it begins where the one before ends */
    bool control; /* special-token strings in it become those tokens */
    bool marked;
};
struct ox_marks { /* of ids, 0 or 1; free with ox_marks_free */
    uint8_t *marks;
    size_t count, capacity;
};
void ox_marks_free(struct ox_marks *marks);

/* As ox_encode over the whole text, where parts meet too, except that special-token strings count only inside control
 * parts; nothing is added in front or behind. *marks gets 1 for each id that stands for a byte of a marked part, else
 * 0. (Where a normalizer joins characters across parts, or one unknown token covers both, the mark may be off by that
 * token.) Parts end between characters, and the last one ends the text. */
OX_MUST enum ox_status ox_encode_parts(struct ox_encoder *encoder, const char *text, const struct ox_text_part *parts,
                                       size_t part_count, struct ox_ids *out, struct ox_marks *marks);

/* The text of ids; *text is NUL-terminated beyond *bytes; free() it. Invalid UTF-8 becomes U+FFFD as in the original.
 * Special tokens are left out when skip_special. */
OX_MUST enum ox_status ox_decode(const struct ox_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                 bool skip_special, char **text, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
