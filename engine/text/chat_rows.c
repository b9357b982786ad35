/* Reads JSON rows into conversations, one reader for each form of a row. */
#include "engine/text/chat_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The row being read and the conversation it fills. */
struct reader {
    const char *where;
    const json_t *row;
    struct ox_chat *chat;
};

/* ---- messages ------------------------------------------------------------------------------------------------ */

static enum ox_status add_message(struct reader *reader, enum ox_chat_role role, const char *text) {
    struct ox_chat *const chat = reader->chat;
    if (chat->count == chat->capacity) {
        const size_t wanted = chat->capacity < 8 ? 8 : 2 * chat->capacity;
        struct ox_chat_message *const grown = realloc(chat->messages, wanted * sizeof *grown);
        if (grown == NULL) {
            return ox_fail(OX_E_NOMEM, "%s: no memory for a conversation of %zu messages", reader->where, wanted);
        }
        chat->messages = grown;
        chat->capacity = wanted;
    }
    char *const copy = strdup(text);
    if (copy == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for a message of %zu bytes", reader->where, strlen(text));
    }
    chat->messages[chat->count++] =
        (struct ox_chat_message){.role = role, .text = copy, .trained = role == OX_CHAT_ASSISTANT};
    return OX_OK;
}

/* Adds one message of two texts with a newline between them; either may be empty, and `second` may be NULL. */
static enum ox_status add_joined(struct reader *reader, enum ox_chat_role role, const char *first, const char *second) {
    char *joined = NULL;
    if (second == NULL || second[0] == '\0' || first[0] == '\0') {
        return add_message(reader, role, first[0] != '\0' || second == NULL ? first : second);
    }
    if (asprintf(&joined, "%s\n%s", first, second) < 0) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for a message", reader->where);
    }
    const enum ox_status status = add_message(reader, role, joined);
    free(joined);
    return status;
}

static enum ox_status fail_value(const char *where, const char *key, const char *expected, const json_t *value) {
    char excerpt[OX_JSON_EXCERPT_BYTES];
    if (value == NULL) {
        return ox_fail(OX_E_CONFIG, "%s: the key \"%s\" is missing", where, key);
    }
    return ox_fail(OX_E_CONFIG, "%s: \"%s\" must be %s, but is %s", where, key, expected,
                   ox_json_excerpt(value, excerpt));
}

/* Writes "<file and line>: messages[3]" into `text`, of WHERE_BYTES, and returns it. */
enum { WHERE_BYTES = 512 };
static const char *where_of(const struct reader *reader, const char *key, size_t index, char *text) {
    snprintf(text, WHERE_BYTES, "%s: %s[%zu]", reader->where, key, index);
    return text;
}

/* ---- {"messages"} -------------------------------------------------------------------------------------------- */

/* The text of one element of a "content" list; NULL if the element is not text. */
static const char *content_part(const json_t *part) {
    const char *const type = json_string_value(json_object_get(part, "type"));
    const json_t *const text = json_object_get(part, "text");
    if (type == NULL || strcmp(type, "text") != 0) {
        return NULL;
    }
    return json_string_value(text != NULL ? text : json_object_get(part, "value"));
}

static enum ox_status add_content_list(struct reader *reader, const char *where, enum ox_chat_role role,
                                       const json_t *list) {
    size_t bytes = 1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *const part = json_array_get(list, i);
        const char *const text = content_part(part);
        if (text == NULL) {
            return fail_value(where, "content", "a text or a list of {\"type\": \"text\", \"text\"}", part);
        }
        bytes += strlen(text);
    }
    char *const joined = malloc(bytes);
    if (joined == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for %zu bytes", where, bytes);
    }
    char *end = joined;
    *end = '\0';
    for (size_t i = 0; i < json_array_size(list); i++) {
        end = stpcpy(end, content_part(json_array_get(list, i)));
    }
    const enum ox_status status = add_message(reader, role, joined);
    free(joined);
    return status;
}

static enum ox_status read_role(const char *where, const json_t *message, enum ox_chat_role *role) {
    const json_t *const value = json_object_get(message, "role");
    for (enum ox_chat_role i = 0; i < OX_CHAT_ROLE_COUNT; i++) {
        if (json_is_string(value) && strcmp(json_string_value(value), ox_chat_role_name(i)) == 0) {
            *role = i;
            return OX_OK;
        }
    }
    return fail_value(where, "role", "system, user, assistant or tool", value);
}

/* Reads "weight" or "loss_weight", which tell whether an assistant message is trained. */
static enum ox_status read_weight(const char *where, const json_t *message, struct ox_chat_message *out) {
    static const char *const keys[] = {"weight", "loss_weight"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *const value = json_object_get(message, keys[i]);
        const double weight = json_number_value(value);
        if (value == NULL || json_is_null(value)) {
            continue;
        }
        if (!json_is_number(value) || (weight != 0.0 && weight != 1.0)) {
            return fail_value(where, keys[i], "0 or 1", value);
        }
        if (weight != 0.0 && out->role != OX_CHAT_ASSISTANT) {
            return ox_fail(OX_E_CONFIG,
                           "%s: \"%s\" is 1, but only messages of the assistant can be trained; set it to 0", where,
                           keys[i]);
        }
        out->trained = out->trained && weight != 0.0;
    }
    return OX_OK;
}

static bool is_empty(const json_t *value) {
    return value == NULL || json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0);
}

/* Refuses a key that cannot be ignored without changing what the conversation says. */
static enum ox_status refuse(const char *where, const json_t *object, const char *key) {
    return is_empty(json_object_get(object, key))
               ? OX_OK
               : ox_fail(
                     OX_E_CONFIG,
                     "%s: \"%s\" is not supported; write what the model shall see into \"content\" and remove the key",
                     where, key);
}

static enum ox_status read_message(struct reader *reader, size_t index, const json_t *message) {
    char where[WHERE_BYTES];
    enum ox_chat_role role = OX_CHAT_USER;
    where_of(reader, "messages", index, where);
    if (!json_is_object(message)) {
        return fail_value(reader->where, "messages", "a list of objects", message);
    }
    enum ox_status status = read_role(where, message, &role);
    OX_TRY(status, refuse(where, message, "tool_calls"));
    OX_TRY(status, refuse(where, message, "function_call"));
    const json_t *const content = json_object_get(message, "content");
    if (status == OX_OK && json_is_string(content)) {
        status = add_message(reader, role, json_string_value(content));
    } else if (status == OX_OK && json_is_array(content)) {
        status = add_content_list(reader, where, role, content);
    } else if (status == OX_OK) {
        status = fail_value(where, "content", "a text or a list of texts", content);
    }
    const char *reasoning = NULL;
    OX_TRY(status, ox_json_get_string(where, message, "reasoning_content", false, &reasoning));
    if (status != OX_OK) {
        return status;
    }
    struct ox_chat_message *const added = &reader->chat->messages[reader->chat->count - 1];
    if (reasoning != NULL && role == OX_CHAT_ASSISTANT) {
        added->reasoning = strdup(reasoning);
        if (added->reasoning == NULL) {
            return ox_fail(OX_E_NOMEM, "%s: no memory for a reasoning", where);
        }
    }
    return read_weight(where, message, added);
}

static enum ox_status read_messages(struct reader *reader) {
    const json_t *const list = json_object_get(reader->row, "messages");
    enum ox_status status = refuse(reader->where, reader->row, "tools");
    if (status == OX_OK && (!json_is_array(list) || json_array_size(list) == 0)) {
        status = fail_value(reader->where, "messages", "a list of at least one message", list);
    }
    for (size_t i = 0; status == OX_OK && i < json_array_size(list); i++) {
        status = read_message(reader, i, json_array_get(list, i));
    }
    return status;
}

/* ---- {"conversations"} --------------------------------------------------------------------------------------- */

static bool equals(const json_t *value, const char *text) {
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

/* Reads the message at `index`; `turn` counts messages after the system message. */
static enum ox_status read_turn(struct reader *reader, size_t index, size_t turn, const json_t *message) {
    char where[WHERE_BYTES];
    const json_t *const from = json_object_get(message, "from");
    const char *text = NULL;
    where_of(reader, "conversations", index, where);
    const bool asks = equals(from, "human") || equals(from, "observation");
    const bool answers = equals(from, "gpt") || equals(from, "function_call");
    if (!asks && !answers) {
        return fail_value(where, "from", "human, gpt, observation or function_call (system only in the first message)",
                          from);
    }
    if (asks != (turn % 2 == 0)) {
        return fail_value(where, "from", turn % 2 == 0 ? "human or observation here" : "gpt or function_call here",
                          from);
    }
    const enum ox_status status = ox_json_get_string(where, message, "value", true, &text);
    if (status != OX_OK) {
        return status;
    }
    return add_message(reader,
                       answers ? OX_CHAT_ASSISTANT : (equals(from, "observation") ? OX_CHAT_TOOL : OX_CHAT_USER), text);
}

static enum ox_status read_sharegpt(struct reader *reader) {
    const json_t *const list = json_object_get(reader->row, "conversations");
    const bool has_system = equals(json_object_get(json_array_get(list, 0), "from"), "system");
    const char *text = NULL;
    char where[WHERE_BYTES];
    enum ox_status status = refuse(reader->where, reader->row, "tools");
    if (status == OX_OK && has_system) {
        status = ox_json_get_string(where_of(reader, "conversations", 0, where), json_array_get(list, 0), "value", true,
                                    &text);
    } else if (status == OX_OK) {
        status = ox_json_get_string(reader->where, reader->row, "system", false, &text);
    }
    if (status == OX_OK && text != NULL && (has_system || text[0] != '\0')) {
        status = add_message(reader, OX_CHAT_SYSTEM, text);
    }
    const size_t count = json_array_size(list);
    for (size_t i = has_system ? 1 : 0; status == OX_OK && i < count; i++) {
        status = read_turn(reader, i, i - (has_system ? 1 : 0), json_array_get(list, i));
    }
    const size_t turns = count - (has_system ? 1 : 0);
    if (status == OX_OK && (turns == 0 || turns % 2 != 0)) {
        status = ox_fail(OX_E_CONFIG,
                         "%s: \"conversations\" has %zu turns; they must come in pairs, the last one by gpt or "
                         "function_call",
                         reader->where, turns);
    }
    return status;
}

/* ---- {"instruction"} ----------------------------------------------------------------------------------------- */

static enum ox_status read_history(struct reader *reader) {
    const json_t *const history = json_object_get(reader->row, "history");
    enum ox_status status = OX_OK;
    if (history == NULL || json_is_null(history)) {
        return OX_OK;
    }
    if (!json_is_array(history)) {
        return fail_value(reader->where, "history", "a list of [user, assistant] pairs", history);
    }
    for (size_t i = 0; status == OX_OK && i < json_array_size(history); i++) {
        const json_t *const pair = json_array_get(history, i);
        const char *const asked = json_string_value(json_array_get(pair, 0));
        const char *const answered = json_string_value(json_array_get(pair, 1));
        if (json_array_size(pair) != 2 || asked == NULL || answered == NULL) {
            return fail_value(reader->where, "history", "a list of [user, assistant] pairs", pair);
        }
        status = add_message(reader, OX_CHAT_USER, asked);
        OX_TRY(status, add_message(reader, OX_CHAT_ASSISTANT, answered));
    }
    return status;
}

static enum ox_status read_alpaca(struct reader *reader) {
    const char *instruction = NULL, *input = NULL, *output = NULL, *system = NULL;
    enum ox_status status = ox_json_get_string(reader->where, reader->row, "instruction", true, &instruction);
    OX_TRY(status, ox_json_get_string(reader->where, reader->row, "input", false, &input));
    OX_TRY(status, ox_json_get_string(reader->where, reader->row, "output", true, &output));
    OX_TRY(status, ox_json_get_string(reader->where, reader->row, "system", false, &system));
    if (status == OX_OK && system != NULL && system[0] != '\0') {
        status = add_message(reader, OX_CHAT_SYSTEM, system);
    }
    OX_TRY(status, read_history(reader));
    OX_TRY(status, add_joined(reader, OX_CHAT_USER, instruction, input));
    return status == OX_OK ? add_message(reader, OX_CHAT_ASSISTANT, output) : status;
}

/* ---- {"prompt"}, {"text"} ------------------------------------------------------------------------------------ */

static enum ox_status read_completion(struct reader *reader) {
    const char *prompt = NULL, *completion = NULL;
    reader->chat->kind = OX_CHAT_COMPLETION;
    enum ox_status status = ox_json_get_string(reader->where, reader->row, "prompt", true, &prompt);
    OX_TRY(status, ox_json_get_string(reader->where, reader->row, "completion", true, &completion));
    OX_TRY(status, add_message(reader, OX_CHAT_USER, prompt));
    return status == OX_OK ? add_message(reader, OX_CHAT_ASSISTANT, completion) : status;
}

static enum ox_status read_text(struct reader *reader) {
    const char *text = NULL;
    reader->chat->kind = OX_CHAT_TEXT;
    const enum ox_status status = ox_json_get_string(reader->where, reader->row, "text", true, &text);
    return status == OX_OK ? add_message(reader, OX_CHAT_ASSISTANT, text) : status;
}

/* ---- public -------------------------------------------------------------------------------------------------- */

void ox_chat_free(struct ox_chat *chat) {
    for (size_t i = 0; i < chat->count; i++) {
        free(chat->messages[i].text);
        free(chat->messages[i].reasoning);
    }
    free(chat->messages);
    memset(chat, 0, sizeof *chat);
}

enum ox_status ox_chat_read(const char *where, const json_t *row, struct ox_chat *out) {
    static const struct {
        const char *key;
        enum ox_status (*read)(struct reader *);
    } forms[] = {{"messages", read_messages},
                 {"conversations", read_sharegpt},
                 {"instruction", read_alpaca},
                 {"prompt", read_completion},
                 {"text", read_text}};
    struct reader reader = {.where = where, .row = row, .chat = out};
    char excerpt[OX_JSON_EXCERPT_BYTES];
    ox_chat_free(out);
    out->kind = OX_CHAT_MESSAGES;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const json_t *const value = json_object_get(row, forms[i].key);
        if (value != NULL && !json_is_null(value)) {
            const enum ox_status status = forms[i].read(&reader);
            if (status != OX_OK) {
                ox_chat_free(out);
            }
            return status;
        }
    }
    ox_chat_free(out);
    return ox_fail(OX_E_CONFIG,
                   "%s: a row must be an object with \"messages\", \"conversations\", \"instruction\" and \"output\", "
                   "\"prompt\" and \"completion\", or \"text\", but is %s",
                   where, ox_json_excerpt(row, excerpt));
}

enum ox_status ox_chat_read_line(const char *where, const char *line, size_t bytes, struct ox_chat *out) {
    json_t *row = NULL;
    ox_chat_free(out);
    enum ox_status status = ox_json_parse_line(where, line, bytes, &row);
    if (status == OX_OK) {
        status = ox_chat_read(where, row, out);
        json_decref(row);
    }
    return status;
}
