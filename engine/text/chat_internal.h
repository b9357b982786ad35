/* The text of a conversation while a template writes it, part by part. Shared by chat.c,
 * chat_families.c and chat_rows.c. */
#ifndef OX_ENGINE_CHAT_INTERNAL_H
#define OX_ENGINE_CHAT_INTERNAL_H

#include "engine/text/chat.h"
#include "engine/text/tokenizer_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Collects the parts of one conversation. `status` keeps the first failure, and later writes do nothing. */
struct ox_chat_writer {
    enum ox_status status;
    const struct ox_tokenizer *tokenizer;
    const struct ox_chat_options *options;
    enum ox_chat_family family;
    struct ox_text text;
    struct ox_text_part *parts;
    size_t count, capacity;
};

/* "system", "user", "assistant" or "tool": in JSON rows, in templates and in messages. */
const char *ox_chat_role_name(enum ox_chat_role role);

/* Writes the messages in the writer's family. */
void ox_chat_write(struct ox_chat_writer *writer, const struct ox_chat *chat);

/* Writes text of the template, or one of its special tokens, which the tokenizer must list as special. `marked` text
 * is trained. */
void ox_chat_put(struct ox_chat_writer *writer, const char *text, bool marked);
void ox_chat_put_token(struct ox_chat_writer *writer, const char *text, bool marked);
/* Writes text of the row, where special-token strings stay text unless parse_special is set. */
void ox_chat_put_text(struct ox_chat_writer *writer, const char *text, size_t bytes, bool marked);
/* Writes the tokenizer's BOS or EOS; an error calls it `name`. */
void ox_chat_put_id(struct ox_chat_writer *writer, int64_t id, const char *name, bool marked);

#ifdef __cplusplus
}
#endif
#endif
