/* What the files of the chat templates share: the text of a conversation as it is written, part by part. */
#ifndef OX_ENGINE_CHAT_INTERNAL_H
#define OX_ENGINE_CHAT_INTERNAL_H

#include "engine/text/chat.h"
#include "engine/text/tokenizer_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The first failure stays; what is written behind it is dropped. */
struct ox_chat_writer {
    enum ox_status status;
    const struct ox_tokenizer *tokenizer;
    const struct ox_chat_options *options;
    enum ox_chat_family family;
    struct ox_text text;
    struct ox_text_part *parts;
    size_t count, capacity;
};

/* Writes the messages in the writer's family. */
void ox_chat_write(struct ox_chat_writer *writer, const struct ox_chat *chat);

/* Text of the template; a special token of it, which the tokenizer must know as one. */
void ox_chat_put(struct ox_chat_writer *writer, const char *text, bool marked);
void ox_chat_put_token(struct ox_chat_writer *writer, const char *text, bool marked);
/* Text of the row. */
void ox_chat_put_text(struct ox_chat_writer *writer, const char *text, size_t bytes, bool marked);
/* The tokenizer's BOS or EOS; `name` for messages. */
void ox_chat_put_id(struct ox_chat_writer *writer, int64_t id, const char *name, bool marked);

#ifdef __cplusplus
}
#endif
#endif
