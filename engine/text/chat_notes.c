/* Notes what of the rows is not trained, or not as it seems. */
#include "engine/text/chat_internal.h"

#include <stdio.h>
#include <string.h>

static enum ox_status no_memory(void) {
    return ox_fail(OX_E_NOMEM, "no memory for a conversation");
}

/* ---- keys that the template may not read --------------------------------------------------------------------- */

enum { NOTE_ROWS_MAX = 16 }; /* rows that are rendered without a key before the template counts as not reading it */

static const char *const note_keys[OX_NOTE_KEY_COUNT][4] = {
    [OX_NOTE_TOOLS] = {"tools"},
    [OX_NOTE_TOOL_CALLS] = {"tool_calls"},
    [OX_NOTE_REASONING] = {"reasoning_content", "thinking", "reasoning"},
};

/* Whether an object has one of the note's keys with something in it. */
static bool has_noted_key(const json_t *object, enum ox_chat_note note) {
    bool has = false;
    for (size_t i = 0; note_keys[note][i] != NULL; i++) {
        const json_t *const value = json_object_get(object, note_keys[note][i]);
        has = has || json_array_size(value) > 0 || json_string_length(value) > 0;
    }
    return has;
}

static bool row_has_noted_key(const json_t *row, enum ox_chat_note note) {
    const json_t *const messages = json_object_get(row, "messages");
    bool has = note == OX_NOTE_TOOLS && has_noted_key(row, note);
    for (size_t i = 0; note != OX_NOTE_TOOLS && i < json_array_size(messages); i++) {
        has = has || has_noted_key(json_array_get(messages, i), note);
    }
    return has;
}

static void drop_noted_keys(json_t *object, enum ox_chat_note note) {
    for (size_t i = 0; note_keys[note][i] != NULL; i++) {
        json_object_del(object, note_keys[note][i]);
    }
}

/* Whether the template makes another text of the row without the note's keys, or none. */
static enum ox_status look_at_key(const struct ox_chat_renderer *renderer, const json_t *row,
                                  const struct ox_jinja_output *with, enum ox_chat_note note, bool *read) {
    struct ox_jinja_output output = {0};
    json_t *const copy = json_deep_copy(row);
    const json_t *const messages = json_object_get(copy, "messages");
    if (copy == NULL) {
        return no_memory();
    }
    drop_noted_keys(note == OX_NOTE_TOOLS ? copy : NULL, note);
    for (size_t i = 0; note != OX_NOTE_TOOLS && i < json_array_size(messages); i++) {
        drop_noted_keys(json_array_get(messages, i), note);
    }
    enum ox_status status =
        ox_template_render(renderer->options.chat_template, copy, &renderer->options.now, &output);
    *read = status != OX_OK || output.text_bytes != with->text_bytes ||
            memcmp(output.text, with->text, with->text_bytes) != 0;
    ox_jinja_output_free(&output);
    json_decref(copy);
    return status == OX_E_CONFIG ? OX_OK : status;
}

/* ---- empty texts --------------------------------------------------------------------------------------------- */

static bool is_blank(const char *text) {
    return text[strspn(text, " \t\r\n")] == '\0';
}

/* Whether a content says nothing at all. */
static bool is_silent(const json_t *content) {
    bool silent = !json_is_string(content) || is_blank(json_string_value(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        const char *const text = json_string_value(json_object_get(json_array_get(content, i), "text"));
        silent = silent && (text == NULL || is_blank(text));
    }
    return silent;
}

/* Whether a message of the assistant that is trained says nothing at all. */
static bool has_empty_answer(const struct ox_chat_renderer *renderer, const struct ox_chat *chat) {
    const json_t *const messages = json_object_get(chat->conversation, "messages");
    bool empty = false;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *const message = json_array_get(messages, i);
        empty = empty || (ox_chat_is_assistant(message) && ox_chat_wants(renderer, chat, i) &&
                          is_silent(json_object_get(message, "content")) &&
                          !has_noted_key(message, OX_NOTE_TOOL_CALLS) && !has_noted_key(message, OX_NOTE_REASONING));
    }
    return empty;
}

/* Whether a text has a tag like those of special tokens, <|im_end|>, that is no token of the tokenizer. */
static bool has_foreign_tag(const struct ox_tokenizer *tokenizer, const char *text) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    bool has = false;
    for (const char *at = text; !has && (at = strstr(at, "<|")) != NULL; at += 2) {
        const size_t bytes = strspn(at + 2, letters);
        has = bytes > 0 && strncmp(at + 2 + bytes, "|>", 2) == 0 && ox_tokenizer_find(tokenizer, at, bytes + 4) < 0;
    }
    return has;
}

void ox_chat_note_plain(struct ox_chat_renderer *renderer, const struct ox_chat *chat) {
    renderer->notes.rows[OX_NOTE_FOREIGN] += has_foreign_tag(renderer->tokenizer, chat->text);
    renderer->notes.rows[chat->kind == OX_CHAT_COMPLETION ? OX_NOTE_EMPTY : OX_NOTE_BLANK] += is_blank(chat->text);
}

/* ---- contents that the template writes nowhere ---------------------------------------------------------------- */

enum {
    LOOKS_PER_ROLE = 4, /* a role is looked at so often; then only contents that the text does not seem to have */
    LOOKS_PER_ROW = 64,
    LOOKS_PER_LONG_ROW = 4, /* of more than LONG_ROW messages, since each look renders all of them */
    LONG_ROW = 256,
};

static const char *role_of(const json_t *message) {
    const char *const role = json_string_value(json_object_get(message, "role"));
    return role != NULL ? role : "";
}

/* Counts another look at a role; true if it has been looked at often. Roles beyond those that are kept never are. */
static bool is_known(struct ox_chat_renderer *renderer, const char *role) {
    for (size_t i = 0; i < OX_LOOKED_AT_ROLES; i++) {
        struct ox_role_looked_at *const seen = &renderer->roles[i];
        if (seen->count == 0) {
            snprintf(seen->name, sizeof seen->name, "%s", role);
        }
        if (strcmp(seen->name, role) == 0) {
            return seen->count == LOOKS_PER_ROLE || seen->count++ == LOOKS_PER_ROLE;
        }
    }
    return false;
}

/* The text of a message, of several parts the last, without white space around it. */
static const char *said_by(const json_t *message, size_t *bytes) {
    const json_t *content = json_object_get(message, "content");
    if (json_is_array(content)) {
        content = json_object_get(json_array_get(content, json_array_size(content) - 1), "text");
    }
    const char *const text = json_is_string(content) ? json_string_value(content) : "";
    const char *const begin = text + strspn(text, " \t\r\n");
    *bytes = strlen(begin);
    while (*bytes > 0 && strchr(" \t\r\n", begin[*bytes - 1]) != NULL) {
        --*bytes;
    }
    return begin;
}

/* Whether the template makes the same text of the conversation when message `idx` says something else. */
static enum ox_status look_at_content(const struct ox_chat_renderer *renderer, const json_t *row, size_t idx,
                                      const struct ox_jinja_output *with, bool *ignored) {
    struct ox_jinja_output output = {0};
    json_t *const copy = json_copy((json_t *)row);
    json_t *const messages = json_copy(json_object_get(row, "messages"));
    json_t *const other = ox_template_other_content(json_array_get(messages, idx));
    *ignored = false;
    enum ox_status status = OX_OK;
    if (copy == NULL || json_array_set_new(messages, idx, other) != 0 ||
        json_object_set(copy, "messages", messages) != 0) {
        status = no_memory();
    }
    OX_TRY(status, ox_template_render(renderer->options.chat_template, copy, &renderer->options.now, &output));
    if (status == OX_OK) {
        *ignored = output.text_bytes == with->text_bytes && memcmp(output.text, with->text, with->text_bytes) == 0;
    }
    ox_jinja_output_free(&output);
    json_decref(messages);
    json_decref(copy);
    return status == OX_E_CONFIG ? OX_OK : status;
}

/* Looks for what each message says in the text, in order, and where it is not there whether the template reads it. */
static enum ox_status find_ignored(struct ox_chat_renderer *renderer, const json_t *row,
                                   const struct ox_jinja_output *output) {
    const json_t *const messages = json_object_get(row, "messages");
    struct ox_chat_ignored *const first = &renderer->ignored;
    const size_t count = json_array_size(messages), looks_max = count > LONG_ROW ? LOOKS_PER_LONG_ROW : LOOKS_PER_ROW;
    size_t from = 0, looks = 0;
    for (size_t i = 0; i < count && looks < looks_max; i++) {
        const json_t *const message = json_array_get(messages, i);
        size_t bytes = 0;
        const char *const said = said_by(message, &bytes);
        const char *const at = memmem(output->text + from, output->text_bytes - from, said, bytes);
        bool ignored = false;
        if (bytes == 0 || (is_known(renderer, role_of(message)) && at != NULL)) {
            from = bytes > 0 ? (size_t)(at - output->text) + bytes : from;
            continue;
        }
        looks++;
        from = at != NULL ? (size_t)(at - output->text) + bytes : from;
        const enum ox_status status = look_at_content(renderer, row, i, output, &ignored);
        if (status != OX_OK) {
            return status;
        }
        if (ignored && !first->is_there) {
            *first = (struct ox_chat_ignored){.is_there = true, .message_idx = i};
            snprintf(first->role, sizeof first->role, "%s", role_of(message));
        }
    }
    renderer->notes.rows[OX_NOTE_IGNORED] += first->is_there;
    return OX_OK;
}

struct ox_chat_ignored ox_chat_ignored(const struct ox_chat_renderer *renderer) {
    return renderer->ignored;
}

/* ---- all of them --------------------------------------------------------------------------------------------- */

enum ox_status ox_chat_take_notes(struct ox_chat_renderer *renderer, const struct ox_chat *chat, const json_t *row,
                                 const struct ox_jinja_output *output) {
    struct ox_chat_notes *const notes = &renderer->notes;
    enum ox_status status = OX_OK;
    for (int i = 0; i < OX_NOTE_KEY_COUNT && status == OX_OK && !renderer->options.generation_prompt; i++) {
        const enum ox_chat_note note = (enum ox_chat_note)i;
        if (row_has_noted_key(row, note) && notes->rows[note]++ < NOTE_ROWS_MAX && !notes->read[note]) {
            status = look_at_key(renderer, row, output, note, &notes->read[note]);
        }
    }
    notes->rows[OX_NOTE_EMPTY] += has_empty_answer(renderer, chat);
    return status == OX_OK && !renderer->options.generation_prompt ? find_ignored(renderer, row, output) : status;
}

void ox_chat_add_notes(const struct ox_chat_renderer *renderer, struct ox_chat_notes *sum) {
    for (int i = 0; i < OX_NOTE_COUNT; i++) {
        sum->rows[i] += renderer->notes.rows[i];
    }
    for (int i = 0; i < OX_NOTE_KEY_COUNT; i++) {
        sum->read[i] |= renderer->notes.read[i];
    }
}
