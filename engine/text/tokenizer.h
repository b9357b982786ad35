/* Tokenizers in the tokenizer.json format of Hugging Face's `tokenizers` library: byte-level BPE (GPT-2, Llama-3,
 * Qwen2, Qwen3, Mistral-Nemo) and byte-fallback BPE (Llama-2, Mistral). engine/data encodes documents with them,
 * tools/command prompts and answers. Ids and decoded text equal those of the original library, called "the original"
 * in this folder. A part of the file that is not supported is OX_E_CONFIG naming it; nothing is approximated. */
#ifndef OX_ENGINE_TOKENIZER_H
#define OX_ENGINE_TOKENIZER_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_tokenizer; /* immutable after open: any number of threads may use it, each with its own encoder */

/* Opens `path`, a tokenizer.json of at most 256 MiB or a folder that contains one. Files beside it are read if they
 * exist:
 * - tokenizer_config.json, and where it has no added_tokens_decoder special_tokens_map.json and added_tokens.json, add
 *   tokens and name BOS and EOS as they do in transformers; a warning tells where a new token gets another id there
 *   than the file says. add_bos_token and add_eos_token replace what the post-processor adds.
 * - config.json gives the ids of BOS and EOS that tokenizer_config.json leaves out. */
OX_MUST enum ox_status ox_tokenizer_open(const char *path, struct ox_tokenizer **out);
void ox_tokenizer_close(struct ox_tokenizer **tokenizer);

/* Says, to follow the name of a folder, which file of a tokenizer it lacks, and how to make it of what it has. */
enum { OX_TOKENIZER_MISSING_BYTES = 640 };
bool ox_tokenizer_has_parts(const char *folder); /* it holds other files of a tokenizer */
const char *ox_tokenizer_missing(const char *folder, char text[OX_TOKENIZER_MISSING_BYTES]);

uint32_t ox_tokenizer_vocab_count(const struct ox_tokenizer *tokenizer); /* the largest id + 1, added tokens included */
int64_t ox_tokenizer_bos(const struct ox_tokenizer *tokenizer);          /* an id, or -1 for none */
int64_t ox_tokenizer_eos(const struct ox_tokenizer *tokenizer);          /* an id, or -1 for none */
int64_t ox_tokenizer_pad(const struct ox_tokenizer *tokenizer);          /* an id, or -1 for none */
bool ox_tokenizer_adds_bos(const struct ox_tokenizer *tokenizer); /* by post-processor or add_bos_token */
/* The id of the token with this text, searched among the added tokens, then in the vocabulary; -1 for none. */
int64_t ox_tokenizer_find(const struct ox_tokenizer *tokenizer, const char *text, size_t bytes);
/* The token's text as the vocabulary spells it, not decoded; NULL if no token has the id. */
const char *ox_tokenizer_token(const struct ox_tokenizer *tokenizer, uint32_t id);
bool ox_tokenizer_is_special(const struct ox_tokenizer *tokenizer, uint32_t id);
/* A hash of everything that decides ids; token caches use it as a key. */
uint64_t ox_tokenizer_fingerprint(const struct ox_tokenizer *tokenizer);

/* A growing array of token ids, zeroed at first; free with ox_ids_free. */
struct ox_ids {
    int32_t *ids;
    size_t count, capacity;
};
void ox_ids_free(struct ox_ids *ids);

/* The working memory of one thread: match data, symbol lists and a cache of encoded pieces. */
struct ox_encoder;
OX_MUST enum ox_status ox_encoder_open(const struct ox_tokenizer *tokenizer, struct ox_encoder **out);
void ox_encoder_close(struct ox_encoder **encoder);

/* Appends the ids of `text`, which is UTF-8; invalid bytes are OX_E_CORRUPT with their offset. parse_special turns
 * special-token strings in the text into those tokens; otherwise they are ordinary text. `post` adds what the
 * post-processor adds (BOS, EOS). A failure appends nothing. */
OX_MUST enum ox_status ox_encode(struct ox_encoder *encoder, const char *text, size_t bytes, bool parse_special,
                                 bool post, struct ox_ids *out);

/* Where a text may be cut into pieces whose ids, joined, equal those of the whole text. Cutting keeps the memory for a
 * long text small and lets many threads encode it. The answer depends on pattern, vocabulary and added tokens; it is
 * NONE unless the ids are certain to be equal. */
enum ox_cuts {
    OX_CUTS_NONE,
    OX_CUTS_BEFORE_NEWLINE, /* before a newline that is followed by a letter */
    OX_CUTS_AFTER_NEWLINE,  /* after such a newline                          */
};
enum ox_cuts ox_tokenizer_cuts(const struct ox_tokenizer *tokenizer);
/* Encodes a piece that follows such a cut: ox_encode without `post`, and without the space that some tokenizers put
 * before a text. */
OX_MUST enum ox_status ox_encode_continued(struct ox_encoder *encoder, const char *text, size_t bytes,
                                           bool parse_special, struct ox_ids *out);

/* Calls `take`, on the caller's thread, with the pieces of a text, in which no added token is looked for, in order;
 * `continues` as in ox_encode_continued. A failure of `take` ends it. */
OX_MUST enum ox_status ox_encode_pieces(struct ox_encoder *encoder, const char *text, size_t bytes, bool continues,
                                        enum ox_status (*take)(void *context, const char *piece, size_t bytes),
                                        void *context);
/* Opens a tokenizer without a vocabulary, for its pieces alone, with the pre-tokenizer of a tokenizer.json. */
OX_MUST enum ox_status ox_tokenizer_open_cutter(const json_t *pre_tokenizer, struct ox_tokenizer **out);

/* One of the consecutive parts of a text. */
struct ox_text_part {
    size_t end;   /* offset of the first byte after the part; the part begins where the previous one ends */
    bool control; /* special-token strings in it become those tokens */
    bool marked;  /* its ids get the mark 1 */
};
struct ox_id_mask { /* one mark per id, 0 or 1; free with ox_id_mask_free */
    uint8_t *marks;
    size_t count, capacity;
};
void ox_id_mask_free(struct ox_id_mask *marks);

/* Encodes a text of several parts like ox_encode over the whole text, so tokens may span parts. Special-token strings
 * become tokens only inside control parts (those that are searched for after the normalizer, only if every part is a
 * control part), and no BOS or EOS is added. *marks gets 1 for each id that covers a byte of a marked part, else 0.
 * (If a normalizer joins characters across parts, or one unknown token covers two parts, the mark may be off by that
 * token.) Every part ends between characters, and the last one ends the text. A failure
 * appends nothing. */
OX_MUST enum ox_status ox_encode_parts(struct ox_encoder *encoder, const char *text, const struct ox_text_part *parts,
                                       size_t part_count, struct ox_ids *out, struct ox_id_mask *marks);

/* Decodes ids into *text, which is NUL-terminated after *bytes; the caller frees it with free(). Invalid UTF-8 becomes
 * U+FFFD as in the original. skip_special leaves out special tokens. A negative id is OX_E_CONFIG; an id that names no
 * token is skipped. */
OX_MUST enum ox_status ox_decode(const struct ox_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                 bool skip_special, char **text, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
