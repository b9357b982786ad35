/* Text in memory: arrays that grow, and UTF-8. Used by engine/text, by engine/data, which cuts files into documents, by
 * engine/vocab and by tools/command. A function that grows an array returns OX_E_NOMEM and leaves the contents as they
 * were when there is no memory. */
#ifndef OX_ENGINE_TEXT_H
#define OX_ENGINE_TEXT_H

#include "engine/text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- arrays that grow (tokenizer_encode.c) -------------------------------------------------------------------- */

struct ox_text {
    char *data;
    size_t bytes, capacity;
};
OX_MUST enum ox_status ox_text_append(struct ox_text *text, const char *data, size_t bytes);
void ox_text_free(struct ox_text *text);
OX_MUST enum ox_status ox_id_mask_append(struct ox_id_mask *marks, bool mark, size_t count);
OX_MUST enum ox_status ox_ids_append(struct ox_ids *ids, const int32_t *add, size_t count);
OX_MUST enum ox_status ox_ids_add(struct ox_ids *ids, int64_t id); /* appends one id, which fits in 32 bits */
/* Grows *data to hold at least `count` elements of `each` bytes; contents stay. */
OX_MUST enum ox_status ox_tok_reserve(void **data, size_t *capacity, size_t count, size_t each);

/* ---- UTF-8 (tokenizer_unicode.c) ------------------------------------------------------------------------------ */

/* Offset of the first byte that is not UTF-8, or `bytes`. */
size_t ox_utf8_valid(const char *text, size_t bytes);
/* Returns the code point at *pos of valid text and moves *pos past it. */
uint32_t ox_utf8_next(const char *text, size_t *pos);
/* Writes the UTF-8 of `cp`, at most 4 bytes, and returns how many. */
unsigned ox_utf8_put(uint32_t cp, char *out);
bool ox_unicode_is_letter(uint32_t cp);
/* ByteLevel writes every byte as one printable character. The first returns the byte of a character, or -1 for a
 * character that stands for none; the second returns the character of a byte. */
int ox_byte_level_byte(uint32_t cp);
uint32_t ox_byte_level_char(uint8_t byte);

#ifdef __cplusplus
}
#endif
#endif
