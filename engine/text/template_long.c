/* Finds the assistant turns of a long conversation in windows of it, because the search renders all that is before a
 * turn, which takes hours for 100,000 messages.
 *
 * A window begins with the exchange of the last turn that is known and ends with an exchange beyond those that are
 * sought. Its text is laid over that of the whole conversation so that the known turn covers itself. If they are the
 * same as far as the last turn that is sought, the turns of the window are those of the conversation. */
#include "engine/text/template.h"

#include <stdlib.h>
#include <string.h>

enum {
    LONG_MESSAGES = 256,          /* up to as many the search takes milliseconds */
    SOUGHT_MESSAGES = 16,         /* by a window, at least */
    SEARCHED_MESSAGES_MAX = 8192, /* without windows: tens of seconds */
};

struct windows {
    const struct ox_template *chat_template;
    const json_t *conversation, *messages;
    const struct tm *now;
    size_t count, head; /* messages, and those before the first user's */
    struct ox_template_turns *out;
};

/* Messages [0, head) and [from, past) of the conversation, of which [sought, sought_past) are sought. */
struct window {
    size_t from, past, sought, sought_past;
};

static enum ox_status no_memory(void) {
    return ox_fail(OX_E_NOMEM, "no memory for the turns of a conversation");
}

static bool is_by(const struct windows *w, size_t idx, const char *name) {
    const char *const role = json_string_value(json_object_get(json_array_get(w->messages, idx), "role"));
    return role != NULL && strcmp(role, name) == 0;
}

/* The first message from `idx` on that is of `name`, or the number of messages. */
static size_t next_by(const struct windows *w, size_t idx, const char *name) {
    while (idx < w->count && !is_by(w, idx, name)) {
        idx++;
    }
    return idx < w->count ? idx : w->count;
}

static const struct ox_template_turn *last_turn(const struct windows *w) {
    return w->out->count > 0 ? &w->out->turns[w->out->count - 1] : NULL;
}

static struct window window_at(const struct windows *w, size_t sought) {
    const struct ox_template_turn *const last = last_turn(w);
    struct window out = {.from = last != NULL ? last->message_idx : w->head, .sought = sought};
    while (out.from > w->head && !is_by(w, out.from, "user")) {
        out.from--;
    }
    out.sought_past = next_by(w, sought + SOUGHT_MESSAGES, "user");
    out.past = next_by(w, next_by(w, out.sought_past, "assistant"), "user");
    out.sought_past = out.past == w->count ? w->count : out.sought_past;
    return out;
}

/* Makes the conversation of the messages of a window; *out is the caller's. */
static enum ox_status cut_out(const struct windows *w, const struct window *window, json_t **out) {
    json_t *const messages = json_array();
    *out = json_copy((json_t *)w->conversation);
    bool ok = messages != NULL && *out != NULL;
    for (size_t i = 0; i < w->head && ok; i++) {
        ok = json_array_append(messages, json_array_get(w->messages, i)) == 0;
    }
    for (size_t i = window->from; i < window->past && ok; i++) {
        ok = json_array_append(messages, json_array_get(w->messages, i)) == 0;
    }
    ok = ok && json_object_set(*out, "messages", messages) == 0;
    json_decref(messages);
    return ok ? OX_OK : no_memory();
}

/* Takes over the turns that a window found, if its text is that of the conversation. */
static bool take(const struct windows *w, const struct window *window, const struct ox_template_turns *found) {
    const struct ox_template_turn *const known = last_turn(w);
    const struct ox_jinja_output *const whole = &w->out->output, *const part = &found->output;
    size_t at = 0, begin = 0, end = 0; /* the window's text from `begin` on is the conversation's from `at` on */
    bool laid = known == NULL;
    const size_t count = w->out->count;
    for (size_t i = 0; i < found->count; i++) {
        const struct ox_template_turn *const turn = &found->turns[i];
        const size_t idx = turn->message_idx < w->head ? turn->message_idx
                                                       : turn->message_idx - w->head + window->from;
        if (known != NULL && idx == known->message_idx) {
            laid = turn->end_byte - turn->begin_byte == known->end_byte - known->begin_byte;
            at = known->begin_byte;
            begin = turn->begin_byte;
        } else if (idx >= window->sought && idx < window->sought_past && laid) {
            w->out->turns[w->out->count++] = (struct ox_template_turn){idx, turn->begin_byte - begin + at,
                                                                       turn->end_byte - begin + at};
            end = turn->end_byte;
        }
    }
    const size_t bytes = end > begin ? end - begin : 0;
    const bool same = laid && bytes <= whole->text_bytes - at &&
                      memcmp(whole->text + at, part->text + begin, bytes) == 0;
    w->out->count = same ? w->out->count : count;
    return same;
}

static enum ox_status search_window(const struct windows *w, const struct window *window, bool *same) {
    struct ox_template_turns found = {0};
    json_t *part = NULL;
    enum ox_status status = cut_out(w, window, &part);
    OX_THEN(status, ox_template_search_turns(w->chat_template, part, w->now, &found));
    *same = status == OX_OK && take(w, window, &found);
    w->out->rendered_messages += found.rendered_messages;
    ox_template_turns_free(&found);
    json_decref(part);
    return status == OX_E_CONFIG ? OX_OK : status;
}

/* Renders the conversation, and finds its turns in windows; *done is false where a window's text is another. */
static enum ox_status search_windows(struct windows *w, bool *done) {
    json_t *const row = json_copy((json_t *)w->conversation);
    const bool ok = row != NULL && json_object_set_new(row, "add_generation_prompt", json_false()) == 0;
    enum ox_status status =
        ok ? ox_template_render(w->chat_template, row, w->now, &w->out->output) : no_memory();
    json_decref(row);
    if (status != OX_OK) {
        return status;
    }
    w->out->rendered_messages = w->count;
    w->out->turns = calloc(w->count, sizeof *w->out->turns);
    status = w->out->turns != NULL ? OX_OK : no_memory();
    *done = true;
    for (size_t sought = 0; sought < w->count && status == OX_OK && *done;) {
        const struct window window = window_at(w, sought);
        *done = window.past - window.from <= SEARCHED_MESSAGES_MAX;
        status = *done ? search_window(w, &window, done) : OX_OK;
        sought = window.sought_past;
    }
    return status;
}

enum ox_status ox_template_render_turns(const struct ox_template *chat_template, const json_t *conversation,
                                        const struct tm *now, struct ox_template_turns *out) {
    struct windows w = {.chat_template = chat_template,
                        .conversation = conversation,
                        .messages = json_object_get(conversation, "messages"),
                        .now = now,
                        .out = out};
    w.count = json_array_size(w.messages);
    w.head = next_by(&w, 0, "user");
    *out = (struct ox_template_turns){0};
    if (w.count <= LONG_MESSAGES || ox_template_marks_generation(chat_template, conversation)) {
        return ox_template_search_turns(chat_template, conversation, now, out);
    }
    bool done = false;
    const enum ox_status status = search_windows(&w, &done);
    if (status != OX_OK || done) {
        return status;
    }
    ox_template_turns_free(out);
    return w.count <= SEARCHED_MESSAGES_MAX
               ? ox_template_search_turns(chat_template, conversation, now, out)
               : ox_fail(OX_E_CONFIG, "a conversation of %zu messages is too long: each turn takes renderings of all "
                         "that is before it, because the chat template writes turns by messages far from them, or no "
                         "user speaks between them; divide it into rows of at most %d messages, or use a template with "
                         "{%% generation %%}", w.count, SEARCHED_MESSAGES_MAX);
}
