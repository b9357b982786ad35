/* Shared by the files that read rows: chat_rows.c their forms, chat_pairs.c preferences, chat_keys.c the keys that
 * say what is trained, and the advice for rows of no known form. */
#ifndef OX_ENGINE_CHAT_ROWS_INTERNAL_H
#define OX_ENGINE_CHAT_ROWS_INTERNAL_H

#include "engine/text/chat.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The error of a value that is not what it must be, or missing. */
OX_MUST enum ox_status ox_row_fail_value(const char *where, const char *key, const char *expected, const json_t *value);
/* Whether there is nothing in a value: it is NULL, null, or a list, object or text of nothing. */
bool ox_row_is_empty(const json_t *value);
/* Whether the user names a key that tells the form of rows. */
bool ox_row_names_form(const struct ox_chat_columns *columns);

/* Takes the keys that say whether a message is trained ("weight", "loss", "train", "mask" ...) out of the message, and
 * sets *part to OX_PART_EXCLUDED where they say no; *part begins as what the message is without them. OX_E_CONFIG for
 * values that are neither yes nor no, for keys that contradict, and for keys of that kind that are not known. */
OX_MUST enum ox_status ox_row_read_trained(const char *where, json_t *message, enum ox_chat_part *part);
/* Refuses an answer that is marked as a bad one, by a key that does not say what is trained. */
OX_MUST enum ox_status ox_row_check_answer(const char *where, const json_t *message);
/* Refuses pictures, sound and films in a row or message, because only text is trained. */
OX_MUST enum ox_status ox_row_check_media(const char *where, const json_t *object);
/* Refuses the row if it says that it is a bad example, or holds one beside the good one, or has keys that choose what
 * is trained. */
OX_MUST enum ox_status ox_row_check_marks(const char *where, const json_t *row, const struct ox_chat_columns *columns);

/* A key with an opinion in words of a row or answer ("rating": "bad"), which counts for nothing here; static, or
 * NULL. */
const char *ox_row_opinion(const json_t *object, const struct ox_chat_columns *columns);

/* Writes how to name the keys of a row that has no known form, as far as they are recognised: a clause that begins with
 * "give", or "". */
enum { OX_ROW_ADVICE_BYTES = 720 };
void ox_row_suggest(const json_t *row, char advice[OX_ROW_ADVICE_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
