/* Shared by chat.c and chat_special.c: special-token strings in the texts of a row. */
#ifndef OX_ENGINE_CHAT_INTERNAL_H
#define OX_ENGINE_CHAT_INTERNAL_H

#include "engine/text/chat.h"
#include "engine/text/tokenizer_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The strings of the special tokens. */
struct ox_special_strings {
    struct ox_trie trie;
    const char *late; /* one that is searched for after the normalizer; NULL for none */
};
OX_MUST enum ox_status ox_special_strings_open(const struct ox_tokenizer *tokenizer, struct ox_special_strings *out);
void ox_special_strings_close(struct ox_special_strings *strings);

/* A character that no conversation holds is put inside every special-token string of `conversation`, after its first
 * character, and at the end of a text that such a string may go on from. *out is NULL if there is none; else a
 * conversation that the caller owns. `mark` is the character, of OX_MARK_BYTES. */
enum { OX_MARK_BYTES = 4 };
OX_MUST enum ox_status ox_chat_put_marks(const struct ox_special_strings *strings, const char *mark,
                                         const json_t *conversation, json_t **out);
/* Removes the marks from a text of *bytes. *places gets the offset of each in what remains, in order; the caller frees
 * it. */
OX_MUST enum ox_status ox_chat_take_marks(const char *mark, char *text, size_t *bytes, size_t **places, size_t *count);

#ifdef __cplusplus
}
#endif
#endif
