/* Finds the assistant turns in the text of a conversation, by rendering its beginnings. */
#include "engine/text/template.h"

#include <stdlib.h>
#include <string.h>

struct search {
    const struct ox_template *chat_template;
    const json_t *conversation, *messages;
    const struct tm *now;
    const char *text; /* the whole conversation */
    size_t text_bytes;
};

static enum ox_status no_memory(void) {
    return ox_fail(OX_E_NOMEM, "no memory for the turns of a conversation");
}

/* Renders the first `count` messages. */
static enum ox_status render_first(const struct search *search, size_t count, bool prompt,
                                   struct ox_jinja_output *out) {
    json_t *const row = json_copy((json_t *)search->conversation);
    json_t *const first = json_array();
    *out = (struct ox_jinja_output){0};
    bool ok = row != NULL && first != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        ok = json_array_append(first, json_array_get(search->messages, i)) == 0;
    }
    ok = ok && json_object_set(row, "messages", first) == 0 &&
         json_object_set_new(row, "add_generation_prompt", json_boolean(prompt)) == 0;
    const enum ox_status status =
        ok ? ox_template_render(search->chat_template, row, search->now, out) : no_memory();
    json_decref(first);
    json_decref(row);
    return status;
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The content of a message without white space around it; empty where it is no text. */
static const char *content_of(const json_t *message, size_t *bytes) {
    const json_t *const content = json_object_get(message, "content");
    const char *text = json_is_string(content) ? json_string_value(content) : "";
    *bytes = json_is_string(content) ? json_string_length(content) : 0;
    while (*bytes > 0 && is_space(text[0])) {
        text++;
        --*bytes;
    }
    while (*bytes > 0 && is_space(text[*bytes - 1])) {
        --*bytes;
    }
    return text;
}

static bool contains(const char *text, size_t bytes, const char *part, size_t part_bytes) {
    return part_bytes > 0 && memmem(text, bytes, part, part_bytes) != NULL;
}

/* How many bytes at `begin` of the whole text are the end of `last`, the turn as the template writes it when nothing
 * follows: all of it, or what remains where the template drops its beginning; 0 where that lacks the content. */
static size_t match_turn(const struct search *search, size_t begin, const struct ox_jinja_output *last,
                         const json_t *message) {
    size_t content_bytes = 0;
    const char *const content = content_of(message, &content_bytes);
    for (size_t from = begin; from < last->text_bytes; from++) {
        const size_t bytes = last->text_bytes - from;
        if (bytes <= search->text_bytes - begin &&
            memcmp(last->text + from, search->text + begin, bytes) == 0) {
            const bool is_whole = from == begin;
            return is_whole || contains(last->text + from, bytes, content, content_bytes) ? bytes : 0;
        }
    }
    return 0;
}

/* The end of the turn without the white space after its end token, if it has one. */
static size_t trim_end(const struct search *search, size_t begin, size_t end, const json_t *message) {
    size_t content_bytes = 0, last = end;
    const char *const content = content_of(message, &content_bytes);
    while (last > begin && is_space(search->text[last - 1])) {
        last--;
    }
    const bool ends_in_content = last - begin >= content_bytes && content_bytes > 0 &&
                                 memcmp(search->text + last - content_bytes, content, content_bytes) == 0;
    return ends_in_content || last == begin ? end : last;
}

static enum ox_status find_turn(const struct search *search, size_t index, struct ox_template_turn *out) {
    const json_t *const message = json_array_get(search->messages, index);
    struct ox_jinja_output before, last = {0};
    if (index == 0) {
        return ox_fail(OX_E_CONFIG, "the first message is the assistant's, which answers nothing");
    }
    enum ox_status status = render_first(search, index, true, &before);
    OX_TRY(status, render_first(search, index + 1, false, &last));
    if (status == OX_OK) {
        const size_t begin = before.text_bytes;
        const bool is_prefix = begin <= search->text_bytes && memcmp(before.text, search->text, begin) == 0 &&
                               begin <= last.text_bytes && memcmp(before.text, last.text, begin) == 0;
        const size_t bytes = is_prefix ? match_turn(search, begin, &last, message) : 0;
        *out = (struct ox_template_turn){
            .message_idx = index, .begin_byte = begin, .end_byte = trim_end(search, begin, begin + bytes, message)};
        if (bytes == 0) {
            status = ox_fail(OX_E_CONFIG,
                             "message %zu: the chat template does not show where this assistant turn is: what it "
                             "writes depends on what follows; a template with {%% generation %%} says it",
                             index + 1);
        }
    }
    ox_jinja_output_free(&before);
    ox_jinja_output_free(&last);
    return status;
}

static bool is_assistant(const json_t *message) {
    const char *const role = json_string_value(json_object_get(message, "role"));
    return role != NULL && strcmp(role, "assistant") == 0;
}

static enum ox_status take_spans(struct ox_template_turns *out) {
    for (size_t i = 0; i < out->output.span_count; i++) {
        if (out->output.spans[i].is_nested) {
            return ox_fail(OX_E_CONFIG, "the chat template has {%% generation %%} inside a macro or a captured block, "
                                        "so that its place is not known");
        }
        out->turns[out->count++] = (struct ox_template_turn){.message_idx = i,
                                                             .begin_byte = out->output.spans[i].begin_byte,
                                                             .end_byte = out->output.spans[i].end_byte};
    }
    return OX_OK;
}

enum ox_status ox_template_render_turns(const struct ox_template *chat_template, const json_t *conversation,
                                        const struct tm *now, struct ox_template_turns *out) {
    struct search search = {.chat_template = chat_template,
                            .conversation = conversation,
                            .messages = json_object_get(conversation, "messages"),
                            .now = now};
    const size_t message_count = json_array_size(search.messages);
    *out = (struct ox_template_turns){0};
    enum ox_status status = render_first(&search, message_count, false, &out->output);
    if (status != OX_OK) {
        return status;
    }
    search.text = out->output.text;
    search.text_bytes = out->output.text_bytes;
    out->turns = calloc(message_count + out->output.span_count, sizeof *out->turns);
    if (out->turns == NULL) {
        return no_memory();
    }
    if (ox_template_marks_generation(chat_template, conversation)) {
        return take_spans(out);
    }
    for (size_t i = 0; status == OX_OK && i < message_count; i++) {
        if (is_assistant(json_array_get(search.messages, i))) {
            status = find_turn(&search, i, &out->turns[out->count]);
            const size_t earlier = out->count > 0 ? out->turns[out->count - 1].end_byte : 0;
            if (status == OX_OK && out->turns[out->count].begin_byte < earlier) {
                status = ox_fail(OX_E_CONFIG, "message %zu: the assistant's turn begins inside the one before", i + 1);
            }
            out->count++;
        }
    }
    return status;
}

void ox_template_turns_free(struct ox_template_turns *turns) {
    ox_jinja_output_free(&turns->output);
    free(turns->turns);
    *turns = (struct ox_template_turns){0};
}
