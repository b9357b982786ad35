/* Notes what of the rows is not trained, or not as it seems. */
#include "engine/text/chat_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum ox_status no_memory(void) {
    return ox_fail(OX_E_NOMEM, "no memory for a conversation");
}

/* ---- keys that the template may not read --------------------------------------------------------------------- */

enum { NOTE_ROWS_MAX = 16 }; /* rows that are rendered without a key before the template counts as not reading it */

static const char *const note_keys[OX_NOTE_KEY_COUNT][4] = {
    [OX_NOTE_TOOLS] = {"tools"},
    [OX_NOTE_DOCUMENTS] = {"documents"},
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

/* Whether the row has the key, not its messages. */
static bool is_of_row(enum ox_chat_note note) {
    return note == OX_NOTE_TOOLS || note == OX_NOTE_DOCUMENTS;
}

static bool row_has_noted_key(const json_t *row, enum ox_chat_note note) {
    const json_t *const messages = json_object_get(row, "messages");
    bool has = is_of_row(note) && has_noted_key(row, note);
    for (size_t i = 0; !is_of_row(note) && i < json_array_size(messages); i++) {
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
    drop_noted_keys(is_of_row(note) ? copy : NULL, note);
    for (size_t i = 0; !is_of_row(note) && i < json_array_size(messages); i++) {
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

/* ---- opinions ------------------------------------------------------------------------------------------------ */

static void note_place(struct ox_chat_renderer *renderer, enum ox_chat_note note, size_t message_idx,
                       const char *name) {
    struct ox_chat_noted *const first = &renderer->noted[note - OX_NOTE_PLACED];
    if (!first->is_there) {
        *first = (struct ox_chat_noted){.is_there = true, .message_idx = message_idx};
        snprintf(first->name, sizeof first->name, "%s", name);
        renderer->notes.rows[note]++;
    }
}

struct ox_chat_noted ox_chat_noted(const struct ox_chat_renderer *renderer, enum ox_chat_note note) {
    return renderer->noted[note - OX_NOTE_PLACED];
}

static void note_opinion(struct ox_chat_renderer *renderer, const struct ox_chat *chat) {
    if (chat->judged != NULL) {
        note_place(renderer, OX_NOTE_JUDGED, 0, chat->judged);
    }
}

void ox_chat_note_plain(struct ox_chat_renderer *renderer, const struct ox_chat *chat) {
    memset(renderer->noted, 0, sizeof renderer->noted);
    renderer->notes.rows[OX_NOTE_FOREIGN] += has_foreign_tag(renderer->tokenizer, chat->text);
    renderer->notes.rows[chat->kind == OX_CHAT_COMPLETION ? OX_NOTE_EMPTY : OX_NOTE_BLANK] += is_blank(chat->text);
    note_opinion(renderer, chat);
}

/* ---- contents that the template does not write ---------------------------------------------------------------- */

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

struct slice {
    const char *text;
    size_t bytes;
};

/* A text without white space around it. */
static struct slice trimmed(const char *text) {
    struct slice out = {text + strspn(text, " \t\r\n"), 0};
    out.bytes = strlen(out.text);
    while (out.bytes > 0 && strchr(" \t\r\n", out.text[out.bytes - 1]) != NULL) {
        out.bytes--;
    }
    return out;
}

/* Part `idx` of what a message says, or, of a text, that; NULL where it is no text. */
static const char *part_of(const json_t *message, size_t idx) {
    const json_t *const content = json_object_get(message, "content");
    const json_t *const part = json_is_array(content) ? json_object_get(json_array_get(content, idx), "text") : content;
    return json_string_value(part);
}

/* How many parts there are: of a text one. */
static size_t part_count(const json_t *message) {
    const json_t *const content = json_object_get(message, "content");
    return json_is_array(content) ? json_array_size(content) : 1;
}

/* Whether the template makes the same text of the conversation when message `idx` is `other`, which is given away. */
static enum ox_status look_at_other(const struct ox_chat_renderer *renderer, const json_t *row, size_t idx,
                                    json_t *other, const struct ox_jinja_output *with, bool *same) {
    struct ox_jinja_output output = {0};
    json_t *const copy = json_copy((json_t *)row);
    json_t *const messages = json_copy(json_object_get(row, "messages"));
    *same = false;
    enum ox_status status = OX_OK;
    if (copy == NULL || json_array_set_new(messages, idx, other) != 0 ||
        json_object_set(copy, "messages", messages) != 0) {
        status = no_memory();
    }
    OX_THEN(status, ox_template_render(renderer->options.chat_template, copy, &renderer->options.now, &output));
    if (status == OX_OK) {
        *same = output.text_bytes == with->text_bytes && memcmp(output.text, with->text, with->text_bytes) == 0;
    }
    ox_jinja_output_free(&output);
    json_decref(messages);
    json_decref(copy);
    return status == OX_E_CONFIG ? OX_OK : status;
}

/* A copy of a message of whose part `idx` bytes [begin, end) are others; NULL without memory. */
static json_t *with_other_bytes(const json_t *message, size_t idx, size_t begin, size_t end) {
    static const char mark[] = "\xf4\x8f\xbf\xbb"; /* U+10FFFB, which no one writes */
    const char *const text = part_of(message, idx);
    const size_t bytes = strlen(text);
    json_t *const out = json_deep_copy(message);
    json_t *const content = json_object_get(out, "content");
    char *const joined = malloc(bytes + sizeof mark);
    json_t *value = NULL;
    if (joined != NULL) {
        memcpy(joined, text, begin);
        memcpy(joined + begin, mark, sizeof mark - 1);
        memcpy(joined + begin + sizeof mark - 1, text + end, bytes - end);
        value = json_stringn(joined, begin + sizeof mark - 1 + bytes - end);
    }
    free(joined);
    if (json_is_array(content) ? json_object_set_new(json_array_get(content, idx), "text", value) != 0
                               : json_object_set_new(out, "content", value) != 0) {
        json_decref(out);
        return NULL;
    }
    return out;
}

static bool is_in(const struct ox_jinja_output *output, const char *text, size_t bytes) {
    return memmem(output->text, output->text_bytes, text, bytes) != NULL;
}

/* How many bytes of a slice, from its begin or its end, the rendered text has, and one character more: a template may
 * cut where that is. */
static size_t written_bytes(const struct ox_jinja_output *output, struct slice said, bool at_end) {
    size_t low = 0, past = said.bytes; /* the text has `low`, and not `past` */
    while (past - low > 1) {
        const size_t middle = low + (past - low) / 2;
        *(is_in(output, at_end ? said.text + said.bytes - middle : said.text, middle) ? &low : &past) = middle;
    }
    while (past < said.bytes && ((unsigned char)said.text[at_end ? said.bytes - past : past] & 0xc0) == 0x80) {
        past++;
    }
    return past;
}

/* Whether the template writes one end of a text and nothing of the rest. What it drops of reasonings is known. */
static enum ox_status look_at_ends(const struct ox_chat_renderer *renderer, const json_t *row, size_t idx, size_t part,
                                   const struct ox_jinja_output *with, bool *half) {
    const json_t *const message = json_array_get(json_object_get(row, "messages"), idx);
    const char *const text = part_of(message, part);
    const struct slice said = trimmed(text);
    const size_t begin = (size_t)(said.text - text), end = begin + said.bytes;
    enum ox_status status = OX_OK;
    *half = false;
    for (int at_end = 0; at_end < 2 && status == OX_OK && !*half; at_end++) {
        const size_t written = written_bytes(with, said, at_end);
        if (written < said.bytes) {
            json_t *const other = at_end ? with_other_bytes(message, part, begin, end - written)
                                         : with_other_bytes(message, part, begin + written, end);
            status = look_at_other(renderer, row, idx, other, with, half);
        }
    }
    return status;
}

/* Whether the template writes a part of what the message says, and nothing of another. */
static enum ox_status look_at_parts(const struct ox_chat_renderer *renderer, const json_t *row, size_t idx,
                                    const struct ox_jinja_output *with, bool *half) {
    const json_t *const message = json_array_get(json_object_get(row, "messages"), idx);
    const size_t count = part_count(message);
    enum ox_status status = OX_OK;
    *half = false;
    for (size_t i = 0; i < count && status == OX_OK && !*half; i++) {
        const char *const text = part_of(message, i);
        const struct slice said = trimmed(text != NULL ? text : "");
        if (said.bytes == 0 || is_in(with, said.text, said.bytes) || strstr(said.text, "</think>") != NULL) {
            continue;
        }
        if (count > 1) {
            status = look_at_other(renderer, row, idx, with_other_bytes(message, i, 0, strlen(text)), with, half);
        }
        OX_THEN(status, *half ? OX_OK : look_at_ends(renderer, row, idx, i, with, half));
    }
    return status;
}

/* Whether the message, whose text is at `at` of the rendered one or nowhere, has to be looked at. */
static bool is_looked_at(struct ox_chat_renderer *renderer, const json_t *message, const struct ox_jinja_output *output,
                         size_t *from) {
    const char *const last = part_of(message, part_count(message) - 1);
    const struct slice said = trimmed(last != NULL ? last : "");
    const char *const at = memmem(output->text + *from, output->text_bytes - *from, said.text, said.bytes);
    *from = at != NULL && said.bytes > 0 ? (size_t)(at - output->text) + said.bytes : *from;
    return said.bytes > 0 && (!is_known(renderer, role_of(message)) || at == NULL);
}

/* Looks for what each message says in the text, in order, and where it is not there whether the template reads it. */
static enum ox_status find_ignored(struct ox_chat_renderer *renderer, const json_t *row,
                                   const struct ox_jinja_output *output) {
    const json_t *const messages = json_object_get(row, "messages");
    const size_t count = json_array_size(messages), looks_max = count > LONG_ROW ? LOOKS_PER_LONG_ROW : LOOKS_PER_ROW;
    size_t from = 0, looks = 0;
    enum ox_status status = OX_OK;
    for (size_t i = 0; i < count && looks < looks_max && status == OX_OK; i++) {
        const json_t *const message = json_array_get(messages, i);
        bool ignored = false, half = false;
        if (!is_looked_at(renderer, message, output, &from)) {
            continue;
        }
        looks++;
        status = look_at_other(renderer, row, i, ox_template_other_content(message), output, &ignored);
        OX_THEN(status, ignored ? OX_OK : look_at_parts(renderer, row, i, output, &half));
        if (ignored || half) {
            note_place(renderer, ignored ? OX_NOTE_IGNORED : OX_NOTE_HALF, i, role_of(message));
        }
    }
    return status;
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
    note_opinion(renderer, chat);
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
