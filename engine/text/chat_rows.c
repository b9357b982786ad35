/* Reads JSON rows into conversations, one reader for each form of a row. */
#include "engine/text/chat.h"

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

static const char key_messages[] = "messages";

static enum ox_status no_memory(const struct reader *reader) {
    return ox_fail(OX_E_NOMEM, "%s: no memory for a conversation", reader->where);
}

static json_t *messages_of(const struct reader *reader) {
    return json_object_get(reader->chat->conversation, key_messages);
}

/* Adds one message; takes over the reference, which may be NULL for no memory. */
static enum ox_status add_object(struct reader *reader, json_t *message) {
    return message != NULL && json_array_append_new(messages_of(reader), message) == 0 ? OX_OK : no_memory(reader);
}

static enum ox_status add_message(struct reader *reader, const char *role, const char *text) {
    return add_object(reader, json_pack("{s:s,s:s}", "role", role, "content", text));
}

/* Adds one message of two texts with a newline between them; either may be empty, and `second` may be NULL. */
static enum ox_status add_joined(struct reader *reader, const char *role, const char *first, const char *second) {
    char *joined = NULL;
    if (second == NULL || second[0] == '\0' || first[0] == '\0') {
        return add_message(reader, role, first[0] != '\0' || second == NULL ? first : second);
    }
    if (asprintf(&joined, "%s\n%s", first, second) < 0) {
        return no_memory(reader);
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
static json_t *content_part(const json_t *part) {
    const char *const type = json_string_value(json_object_get(part, "type"));
    json_t *const text = json_object_get(part, "text");
    json_t *const found = text != NULL ? text : json_object_get(part, "value");
    return type != NULL && strcmp(type, "text") == 0 && json_is_string(found) ? found : NULL;
}

/* Gives the message a list of {"type", "text"} alone, which is what templates read. */
static enum ox_status set_content_list(struct reader *reader, const char *where, json_t *message, const json_t *list) {
    json_t *const plain = json_array();
    enum ox_status status = plain != NULL ? OX_OK : no_memory(reader);
    for (size_t i = 0; status == OX_OK && i < json_array_size(list); i++) {
        const json_t *const part = json_array_get(list, i);
        json_t *const text = content_part(part);
        if (text == NULL) {
            status = fail_value(where, "content", "a text or a list of {\"type\": \"text\", \"text\"}", part);
        } else if (json_array_append_new(plain, json_pack("{s:s,s:O}", "type", "text", "text", text)) != 0) {
            status = no_memory(reader);
        }
    }
    if (status == OX_OK && json_object_set(message, "content", plain) != 0) {
        status = no_memory(reader);
    }
    json_decref(plain);
    return status;
}

static bool is_empty(const json_t *value) {
    return value == NULL || json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0);
}

/* The content is a text or a list of texts; a message that calls tools needs none. */
static enum ox_status read_content(struct reader *reader, const char *where, json_t *message) {
    const json_t *const content = json_object_get(message, "content");
    const bool calls = !is_empty(json_object_get(message, "tool_calls")) ||
                       !is_empty(json_object_get(message, "function_call"));
    if (json_is_string(content) || (calls && (content == NULL || json_is_null(content)))) {
        return OX_OK;
    }
    return json_is_array(content) ? set_content_list(reader, where, message, content)
                                  : fail_value(where, "content", "a text or a list of texts", content);
}

/* Takes "weight" or "loss_weight" out of the message, which tell whether it is trained; *trained begins as whether it
 * can be. */
static enum ox_status read_weight(const char *where, json_t *message, bool *trained) {
    static const char *const keys[] = {"weight", "loss_weight"};
    const bool may_be = *trained;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *const value = json_object_get(message, keys[i]);
        const double weight = json_number_value(value);
        if (value == NULL || json_is_null(value)) {
            continue;
        }
        if (!json_is_number(value) || (weight != 0.0 && weight != 1.0)) {
            return fail_value(where, keys[i], "0 or 1", value);
        }
        if (weight != 0.0 && !may_be) {
            return ox_fail(OX_E_CONFIG,
                           "%s: \"%s\" is 1, but only messages of the assistant can be trained; set it to 0", where,
                           keys[i]);
        }
        *trained = *trained && weight != 0.0;
        json_object_del(message, keys[i]);
    }
    return OX_OK;
}

static bool is_assistant(const json_t *message) {
    return strcmp(json_string_value(json_object_get(message, "role")), "assistant") == 0;
}

static enum ox_status read_message(struct reader *reader, size_t index, const json_t *given) {
    char where[WHERE_BYTES];
    const char *role = NULL;
    where_of(reader, key_messages, index, where);
    if (!json_is_object(given)) {
        return fail_value(reader->where, key_messages, "a list of objects", given);
    }
    json_t *const message = json_copy((json_t *)given);
    enum ox_status status = add_object(reader, message);
    OX_TRY(status, ox_json_get_string(where, message, "role", true, &role));
    OX_TRY(status, read_content(reader, where, message));
    if (status != OX_OK) {
        return status;
    }
    reader->chat->trained[index] = is_assistant(message);
    return read_weight(where, message, &reader->chat->trained[index]);
}

static enum ox_status read_messages(struct reader *reader) {
    const json_t *const list = json_object_get(reader->row, key_messages);
    if (!json_is_array(list) || json_array_size(list) == 0) {
        return fail_value(reader->where, key_messages, "a list of at least one message", list);
    }
    reader->chat->trained = calloc(json_array_size(list), sizeof *reader->chat->trained);
    enum ox_status status = reader->chat->trained != NULL ? OX_OK : no_memory(reader);
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
    return add_message(reader, answers ? "assistant" : equals(from, "observation") ? "tool" : "user", text);
}

static enum ox_status read_sharegpt(struct reader *reader) {
    const json_t *const list = json_object_get(reader->row, "conversations");
    const bool has_system = equals(json_object_get(json_array_get(list, 0), "from"), "system");
    const char *text = NULL;
    char where[WHERE_BYTES];
    enum ox_status status = OX_OK;
    if (has_system) {
        status = ox_json_get_string(where_of(reader, "conversations", 0, where), json_array_get(list, 0), "value", true,
                                    &text);
    } else {
        status = ox_json_get_string(reader->where, reader->row, "system", false, &text);
    }
    if (status == OX_OK && text != NULL && (has_system || text[0] != '\0')) {
        status = add_message(reader, "system", text);
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
        status = add_message(reader, "user", asked);
        OX_TRY(status, add_message(reader, "assistant", answered));
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
        status = add_message(reader, "system", system);
    }
    OX_TRY(status, read_history(reader));
    OX_TRY(status, add_joined(reader, "user", instruction, input));
    return status == OX_OK ? add_message(reader, "assistant", output) : status;
}

/* ---- {"prompt"}, {"text"} ------------------------------------------------------------------------------------ */

static enum ox_status copy_text(struct reader *reader, const char *key, char **out) {
    const char *text = NULL;
    const enum ox_status status = ox_json_get_string(reader->where, reader->row, key, true, &text);
    if (status != OX_OK) {
        return status;
    }
    *out = strdup(text);
    return *out != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "%s: no memory for a text", reader->where);
}

static enum ox_status read_completion(struct reader *reader) {
    reader->chat->kind = OX_CHAT_COMPLETION;
    enum ox_status status = copy_text(reader, "prompt", &reader->chat->prompt);
    OX_TRY(status, copy_text(reader, "completion", &reader->chat->text));
    return status;
}

static enum ox_status read_text(struct reader *reader) {
    reader->chat->kind = OX_CHAT_TEXT;
    return copy_text(reader, "text", &reader->chat->text);
}

/* ---- what belongs to every conversation ---------------------------------------------------------------------- */

/* Takes over "tools", which may be JSON in a text, "documents" and "chat_template_kwargs". */
static enum ox_status read_rest(struct reader *reader) {
    json_t *const tools = json_object_get(reader->row, "tools");
    json_t *const documents = json_object_get(reader->row, "documents");
    json_t *const kwargs = json_object_get(reader->row, "chat_template_kwargs");
    json_t *const conversation = reader->chat->conversation;
    json_t *parsed = NULL;
    enum ox_status status = OX_OK;
    if (json_is_string(tools) && json_string_length(tools) > 0) {
        status = ox_json_parse(reader->where, json_string_value(tools), json_string_length(tools), &parsed);
    } else if (!json_is_string(tools)) {
        parsed = json_incref(tools);
    }
    bool stored = true;
    if (status == OX_OK && !is_empty(parsed)) {
        status = json_is_array(parsed) ? OX_OK : fail_value(reader->where, "tools", "a list of tools", parsed);
        stored = json_object_set(conversation, "tools", parsed) == 0;
    }
    if (status == OX_OK && !is_empty(documents)) {
        stored = stored && json_object_set(conversation, "documents", documents) == 0;
    }
    if (status == OX_OK && !is_empty(kwargs)) {
        status = json_is_object(kwargs) ? OX_OK
                                        : fail_value(reader->where, "chat_template_kwargs", "an object", kwargs);
        stored = stored && json_object_set(conversation, "chat_template_kwargs", kwargs) == 0;
    }
    json_decref(parsed);
    return status == OX_OK && !stored ? no_memory(reader) : status;
}

/* The assistant's messages are trained in forms that have no weights. */
static enum ox_status train_all(struct reader *reader) {
    const json_t *const messages = messages_of(reader);
    reader->chat->trained = calloc(json_array_size(messages) + 1, sizeof *reader->chat->trained);
    for (size_t i = 0; reader->chat->trained != NULL && i < json_array_size(messages); i++) {
        reader->chat->trained[i] = is_assistant(json_array_get(messages, i));
    }
    return reader->chat->trained != NULL ? OX_OK : no_memory(reader);
}

static enum ox_status read_form(struct reader *reader, enum ox_status (*read)(struct reader *)) {
    reader->chat->kind = OX_CHAT_MESSAGES;
    reader->chat->conversation = json_pack("{s:[]}", key_messages);
    enum ox_status status = reader->chat->conversation != NULL ? read(reader) : no_memory(reader);
    if (status != OX_OK || reader->chat->kind != OX_CHAT_MESSAGES) {
        json_decref(reader->chat->conversation);
        reader->chat->conversation = NULL;
        return status;
    }
    if (reader->chat->trained == NULL) {
        status = train_all(reader);
    }
    return status == OX_OK ? read_rest(reader) : status;
}

/* ---- public -------------------------------------------------------------------------------------------------- */

void ox_chat_free(struct ox_chat *chat) {
    json_decref(chat->conversation);
    free(chat->trained);
    free(chat->prompt);
    free(chat->text);
    memset(chat, 0, sizeof *chat);
}

enum ox_status ox_chat_read(const char *where, const json_t *row, struct ox_chat *out) {
    static const struct {
        const char *key;
        enum ox_status (*read)(struct reader *);
    } forms[] = {{key_messages, read_messages},
                 {"conversations", read_sharegpt},
                 {"instruction", read_alpaca},
                 {"prompt", read_completion},
                 {"text", read_text}};
    struct reader reader = {.where = where, .row = row, .chat = out};
    char excerpt[OX_JSON_EXCERPT_BYTES];
    ox_chat_free(out);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const json_t *const value = json_object_get(row, forms[i].key);
        if (value != NULL && !json_is_null(value)) {
            const enum ox_status status = read_form(&reader, forms[i].read);
            if (status != OX_OK) {
                ox_chat_free(out);
            }
            return status;
        }
    }
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
