/* Shared by chat.c, chat_pairs.c (preferences), chat_special.c (special-token strings in the texts of a row, tokens
 * that end a turn) and chat_notes.c (what is noticed). */
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
/* Whether the string of a special token begins at `pos`. */
bool ox_special_strings_begin(const struct ox_special_strings *strings, const char *text, size_t bytes, size_t pos);
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

/* ---- the renderer -------------------------------------------------------------------------------------------- */

/* How often it was looked whether the template writes the contents of a role. */
enum { OX_LOOKED_AT_ROLES = 8 };
struct ox_role_looked_at {
    char name[sizeof((struct ox_chat_noted){0}).name];
    uint32_t count;
};

/* A part of a rendered text that one assistant turn takes. */
struct ox_chat_span {
    size_t begin, end;
    bool trained;
};

struct ox_chat_renderer {
    struct ox_chat_options options;
    const struct ox_tokenizer *tokenizer;
    struct ox_encoder *encoder;
    struct ox_special_strings special;
    json_t *kwargs; /* a copy that this thread alone uses; NULL for none */
    struct ox_chat_notes notes;
    struct ox_role_looked_at roles[OX_LOOKED_AT_ROLES];
    int reads_lists; /* whether the template reads a content that is a list: 1 yes, -1 no, 0 not looked at */
    /* the row being rendered */
    struct ox_text text;
    struct ox_text_part *parts;
    struct ox_chat_span *spans;
    size_t *borders, *places; /* places: behind characters that keep a special-token string ordinary text */
    size_t part_count, span_count, border_count, place_count;
    bool trains_rest; /* what is in no span is trained */
    bool spells;      /* a text that is trained has the string of a special token, as letters */
    struct ox_chat_noted noted[OX_NOTE_PLACED_COUNT];
    size_t part_room, span_room, border_room;
};

/* Gives a conversation the variables of the options; false without memory, or without a conversation. */
bool ox_chat_give_kwargs(const struct ox_chat_renderer *renderer, json_t *conversation);
/* Whether the text that the template makes of a conversation holds `word`; *out is the text, which the caller frees. */
OX_MUST enum ox_status ox_chat_render_probe(const struct ox_chat_renderer *renderer, json_t *conversation,
                                            const char *word, struct ox_jinja_output *out, bool *holds);
bool ox_chat_is_assistant(const json_t *message);
/* Whether the options train the message. */
bool ox_chat_wants(const struct ox_chat_renderer *renderer, const struct ox_chat *chat, size_t message_idx);
/* Notes what the template does not read of `row`, the conversation as it was given to the template, and `output` what
 * it made of it. */
OX_MUST enum ox_status ox_chat_take_notes(struct ox_chat_renderer *renderer, const struct ox_chat *chat,
                                          const json_t *row, const struct ox_jinja_output *output);

#ifdef __cplusplus
}
#endif
#endif
