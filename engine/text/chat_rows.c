/* Reads JSON rows into conversations. The forms of a row are a table: the keys of each, and how it is read. */
#include "engine/text/chat_rows_internal.h"
#include "engine/text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { WHERE_BYTES = 512, KEYS_BYTES = 240, ID_MOST = (1 << 24) - 1, LABEL_IGNORED = -100 };

struct reader;

/* A form of rows. */
struct form {
    const char *name;
    const char *keys[OX_COLUMN_COUNT]; /* their usual names; NULL: the form has no such column */
    unsigned required;                 /* bits of the columns that a row of this form has */
    enum ox_status (*read)(struct reader *reader);
};

/* The row being read and the conversation it fills. */
struct reader {
    const char *where;
    const json_t *row;
    const struct ox_chat_columns *columns;
    const struct form *form;
    struct ox_chat *chat;
    size_t trained_room;
};

static const char key_messages[] = "messages";

static enum ox_status no_memory(const struct reader *reader) {
    return ox_fail(OX_E_NOMEM, "%s: no memory for a conversation", reader->where);
}

enum ox_status ox_row_fail_value(const char *where, const char *key, const char *expected, const json_t *value) {
    char excerpt[OX_JSON_EXCERPT_BYTES];
    if (value == NULL) {
        return ox_fail(OX_E_CONFIG, "%s: the key \"%s\" is missing", where, key);
    }
    return ox_fail(OX_E_CONFIG, "%s: \"%s\" must be %s, but is %s", where, key, expected,
                   ox_json_excerpt(value, excerpt));
}

/* The name that the user gives a column; NULL for none. */
static const char *given_name(const struct ox_chat_columns *columns, enum ox_chat_column column) {
    const char *const name = columns != NULL ? columns->names[column] : NULL;
    return name != NULL && name[0] != '\0' ? name : NULL;
}

/* The key of a column in rows of a form; NULL if the form has no such column. */
static const char *key_in(const struct ox_chat_columns *columns, const struct form *form, enum ox_chat_column column) {
    const char *const given = given_name(columns, column);
    return form->keys[column] == NULL || given == NULL ? form->keys[column] : given;
}

static const char *key_of(const struct reader *reader, enum ox_chat_column column) {
    return key_in(reader->columns, reader->form, column);
}

bool ox_row_is_empty(const json_t *value) {
    return value == NULL || json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

/* Reads a list, or the JSON of one in a text, as tables have it. *out is NULL where there is none; else the caller owns
 * it. */
static enum ox_status read_list(const struct reader *reader, const char *key, const char *expected, json_t **out) {
    json_t *const value = json_object_get(reader->row, key);
    enum ox_status status = OX_OK;
    *out = NULL;
    if (json_is_string(value) && !ox_row_is_empty(value)) {
        status = ox_json_parse(reader->where, json_string_value(value), json_string_length(value), out);
        if (status == OX_E_CORRUPT) {
            char excerpt[OX_JSON_EXCERPT_BYTES];
            status = ox_fail(OX_E_CONFIG, "%s: \"%s\" is the text %s, which is not valid JSON of %s; write the list "
                             "itself, or its JSON in a text", reader->where, key, ox_json_excerpt(value, excerpt),
                             expected);
        }
    } else if (!ox_row_is_empty(value) || json_is_array(value) || json_is_object(value)) {
        *out = json_incref(value);
    }
    if (status == OX_OK && *out != NULL && !json_is_array(*out)) {
        status = ox_row_fail_value(reader->where, key, expected, *out);
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

/* ---- messages ------------------------------------------------------------------------------------------------ */

static json_t *messages_of(const struct reader *reader) {
    return json_object_get(reader->chat->conversation, key_messages);
}

/* Adds one message; takes over the reference, which may be NULL for no memory. */
static enum ox_status add_object(struct reader *reader, json_t *message, enum ox_chat_part part) {
    struct ox_chat *const chat = reader->chat;
    const size_t count = ox_chat_message_count(chat);
    if (count == reader->trained_room) {
        const size_t room = 2 * count + 4;
        enum ox_chat_part *const longer = realloc(chat->message_parts, room * sizeof *longer);
        if (longer == NULL) {
            json_decref(message);
            return no_memory(reader);
        }
        chat->message_parts = longer;
        reader->trained_room = room;
    }
    chat->message_parts[count] = part;
    return message != NULL && json_array_append_new(messages_of(reader), message) == 0 ? OX_OK : no_memory(reader);
}

static enum ox_status add_message(struct reader *reader, const char *role, const char *text) {
    return add_object(reader, json_pack("{s:s,s:s}", "role", role, "content", text),
                      strcmp(role, "assistant") == 0 ? OX_PART_ANSWER : OX_PART_PROMPT);
}

/* Adds the system column, if the row has one and it is not empty. */
static enum ox_status add_system(struct reader *reader) {
    const char *text = NULL;
    const enum ox_status status =
        ox_json_get_string(reader->where, reader->row, key_of(reader, OX_COLUMN_SYSTEM), false, &text);
    return status == OX_OK && text != NULL && text[0] != '\0' ? add_message(reader, "system", text) : status;
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

/* Lists the keys of a row or message, as many as there is room for (KEYS_BYTES). */
static const char *keys_text(const json_t *row, char *text) {
    const char *key;
    json_t *value;
    size_t used = 0;
    text[0] = '\0';
    json_object_foreach((json_t *)row, key, value) {
        const int bytes = snprintf(text + used, KEYS_BYTES - used, "%s\"%s\"", used > 0 ? ", " : "", key);
        if (bytes < 0 || used + (size_t)bytes >= KEYS_BYTES - 5) {
            snprintf(text + used, KEYS_BYTES - used, " ...");
            break;
        }
        used += (size_t)bytes;
    }
    return used > 0 ? text : "none";
}

static enum ox_status read_messages(struct reader *reader);

/* ---- one message --------------------------------------------------------------------------------------------- */

/* The text of one element of a "content" list; NULL if the element is not text. */
static json_t *content_part(const json_t *part) {
    const char *const type = json_string_value(json_object_get(part, "type"));
    json_t *const text = json_object_get(part, "text");
    json_t *const found = text != NULL ? text : json_object_get(part, "value");
    return type != NULL && strcmp(type, "text") == 0 && json_is_string(found) ? found : NULL;
}

static enum ox_status fail_part(const char *where, const char *key, const json_t *part) {
    const char *const type = json_string_value(json_object_get(part, "type"));
    return type != NULL && strcmp(type, "text") != 0
               ? ox_fail(OX_E_CONFIG,
                         "%s: \"%s\" has a part of the type \"%.40s\", but only text is trained; leave such rows out, "
                         "or remove the part where the text stands without it", where, key, type)
               : ox_row_fail_value(where, key, "a text or a list of {\"type\": \"text\", \"text\"}", part);
}

/* Gives the message a list of {"type", "text"} alone, which is what templates read. */
static enum ox_status set_content_list(struct reader *reader, const char *where, json_t *message, const char *key) {
    const json_t *const list = json_object_get(message, "content");
    json_t *const plain = json_array();
    enum ox_status status = plain != NULL ? OX_OK : no_memory(reader);
    for (size_t i = 0; status == OX_OK && i < json_array_size(list); i++) {
        const json_t *const part = json_array_get(list, i);
        json_t *const text = content_part(part);
        if (text == NULL) {
            status = fail_part(where, key, part);
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

/* A role or content that is missing: lists what the message has, and names what may be meant. */
static enum ox_status fail_missing(const char *where, const char *key, bool is_role, const json_t *message) {
    static const char *const roles_alike[] = {"speaker", "author", "sender", "name", "user", "type"};
    static const char *const texts_alike[] = {"text", "value", "message", "body", "utterance", "response", "markdown"};
    const char *const *const alike = is_role ? roles_alike : texts_alike;
    const size_t count = is_role ? sizeof roles_alike / sizeof *roles_alike : sizeof texts_alike / sizeof *texts_alike;
    char keys[KEYS_BYTES];
    const char *found = NULL;
    for (size_t i = 0; i < count && found == NULL; i++) {
        found = json_is_string(json_object_get(message, alike[i])) ? alike[i] : NULL;
    }
    return ox_fail(OX_E_CONFIG, "%s: the key \"%s\" is missing; the message has the keys %s%s%s", where, key,
                   keys_text(message, keys), found == NULL ? "" : is_role ? "; give --column-role " : "; give "
                   "--column-content ", found != NULL ? found : "");
}

static bool has_calls(const json_t *message) {
    return !ox_row_is_empty(json_object_get(message, "tool_calls")) ||
           !ox_row_is_empty(json_object_get(message, "function_call"));
}

/* The content is a text or a list of texts; a message that calls tools needs none. `key` is its name in the row. */
static enum ox_status read_content(struct reader *reader, const char *where, json_t *message, const char *key) {
    const json_t *const content = json_object_get(message, "content");
    if (json_is_string(content) || (has_calls(message) && (content == NULL || json_is_null(content)))) {
        return OX_OK;
    }
    return json_is_array(content) ? set_content_list(reader, where, message, key)
                                  : ox_row_fail_value(where, key, "a text or a list of texts", content);
}

/* Names of roles. Those of sharegpt are for "from" and for columns that the user names; under "role" all but two are
 * left to the template, which may know others. */
static const struct {
    const char *name, *role;
    bool always;
} roles[] = {
    {"human", "user", true},         {"gpt", "assistant", true},     {"user", "user", false},
    {"assistant", "assistant", false}, {"chatgpt", "assistant", false}, {"function_call", "assistant", false},
    {"system", "system", false},     {"tool", "tool", false},        {"observation", "tool", false},
    {NULL, NULL, false},
};

/* Refuses a name that is a usual one but for its case or white space, because templates compare names exactly. */
static enum ox_status check_case(const char *where, const char *key, const char *name) {
    static const char *const others[] = {"developer", "model", "ipython"};
    const size_t lead = strspn(name, " \t\n");
    size_t bytes = strlen(name + lead);
    while (bytes > 0 && strchr(" \t\n", name[lead + bytes - 1]) != NULL) {
        bytes--;
    }
    for (size_t i = 0; i < sizeof roles / sizeof *roles - 1 + sizeof others / sizeof *others; i++) {
        const size_t count = sizeof roles / sizeof *roles - 1;
        const char *const usual = i < count ? roles[i].name : others[i - count];
        if (strlen(usual) == bytes && strncasecmp(name + lead, usual, bytes) == 0 && strcmp(name, usual) != 0) {
            return ox_fail(OX_E_CONFIG,
                           "%s: \"%s\" is \"%.40s\", which chat templates know as \"%s\"; write it so "
                           "(jq -c '(.. | .%s? | strings) |= ascii_downcase')", where, key, name, usual, key);
        }
    }
    return OX_OK;
}

/* Gives the message its role by the name that it has under `key`. */
static enum ox_status read_role(struct reader *reader, const char *where, json_t *message, const char *key) {
    const char *name = NULL;
    const enum ox_status status = ox_json_get_string(where, message, "role", true, &name);
    if (status != OX_OK) {
        return ox_row_fail_value(where, key, "a string", json_object_get(message, "role"));
    }
    const enum ox_status checked = check_case(where, key, name);
    if (checked != OX_OK) {
        return checked;
    }
    const bool plain = strcmp(key, "role") == 0;
    for (size_t i = 0; roles[i].name != NULL; i++) {
        if ((roles[i].always || !plain) && strcmp(name, roles[i].name) == 0) {
            json_t *const role = json_string(roles[i].role);
            return json_object_set_new(message, "role", role) == 0 ? OX_OK : no_memory(reader);
        }
    }
    return strcmp(key, "from") != 0
               ? OX_OK
               : ox_row_fail_value(where, key, "human, user, gpt, chatgpt, assistant, system, tool, observation or "
                            "function_call", json_object_get(message, "role"));
}

/* Renames a key of a message. */
static enum ox_status rename_key(struct reader *reader, json_t *message, const char *key, const char *name) {
    json_t *const value = json_object_get(message, key);
    if (value == NULL || strcmp(key, name) == 0) {
        return OX_OK;
    }
    if (json_object_set(message, name, value) != 0) {
        return no_memory(reader);
    }
    json_object_del(message, key);
    return OX_OK;
}

/* The keys of a message's role and content: those that the user names, else "role" and "content", else "from" and
 * "value"; also one of each. */
static const char *key_in_message(const struct reader *reader, const json_t *message, enum ox_chat_column column,
                                  const char *usual, const char *other) {
    const char *const given = given_name(reader->columns, column);
    const bool from = json_object_get(message, "role") == NULL && json_object_get(message, "from") != NULL;
    const char *const first = from ? other : usual, *const second = from ? usual : other;
    return given != NULL ? given : json_object_get(message, first) != NULL || json_object_get(message, second) == NULL
               ? first : second;
}

static bool is_assistant(const json_t *message) {
    const char *const role = json_string_value(json_object_get(message, "role"));
    return role != NULL && strcmp(role, "assistant") == 0;
}

/* Reads message `index` of the list under `list_key`. */
static enum ox_status read_message(struct reader *reader, const char *list_key, size_t index, const json_t *given,
                                   bool may_train) {
    char where[WHERE_BYTES];
    if (reader->form->read == read_messages) {
        snprintf(where, sizeof where, "%s: message %zu", reader->where, index + 1);
    } else {
        snprintf(where, sizeof where, "%s: message %zu of \"%s\"", reader->where, index + 1, list_key);
    }
    if (!json_is_object(given)) {
        return ox_row_fail_value(reader->where, list_key, "a list of objects", given);
    }
    const char *const role_key = key_in_message(reader, given, OX_COLUMN_ROLE, "role", "from");
    const char *const content_key = key_in_message(reader, given, OX_COLUMN_CONTENT, "content", "value");
    const bool has_role = json_object_get(given, role_key) != NULL;
    if (!has_role || (json_object_get(given, content_key) == NULL && !has_calls(given))) {
        return fail_missing(where, has_role ? content_key : role_key, !has_role, given);
    }
    json_t *const message = json_copy((json_t *)given);
    enum ox_status status = add_object(reader, message, OX_PART_PROMPT);
    OX_THEN(status, rename_key(reader, message, role_key, "role"));
    OX_THEN(status, rename_key(reader, message, content_key, "content"));
    OX_THEN(status, read_role(reader, where, message, role_key));
    OX_THEN(status, ox_row_check_media(where, message));
    OX_THEN(status, read_content(reader, where, message, content_key));
    if (status != OX_OK) {
        return status;
    }
    enum ox_chat_part *const part = &reader->chat->message_parts[ox_chat_message_count(reader->chat) - 1];
    *part = is_assistant(message) ? OX_PART_ANSWER : OX_PART_PROMPT;
    status = ox_row_read_trained(where, message, part);
    if (status == OX_OK && *part == OX_PART_ANSWER) {
        status = ox_row_check_answer(where, message);
        reader->chat->judged = reader->chat->judged != NULL ? reader->chat->judged
                                                            : ox_row_opinion(message, reader->columns);
    }
    *part = *part == OX_PART_ANSWER && !may_train ? OX_PART_PROMPT : *part;
    return status;
}

/* ---- forms --------------------------------------------------------------------------------------------------- */

/* Whether the first message of a list is by the system. */
static bool begins_with_system(const struct reader *reader, const json_t *list) {
    const json_t *const first = json_array_get(list, 0);
    const char *const key = key_in_message(reader, first, OX_COLUMN_ROLE, "role", "from");
    const char *const role = json_string_value(json_object_get(first, key));
    return role != NULL && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
}

static enum ox_status read_messages_of(struct reader *reader, enum ox_chat_column column, bool may_train) {
    const char *const key = key_of(reader, column);
    json_t *list = NULL;
    enum ox_status status = read_list(reader, key, "a list of at least one message", &list);
    if (status == OX_OK && json_array_size(list) == 0) {
        const json_t *const given = json_object_get(reader->row, key);
        status = ox_row_fail_value(reader->where, key, "a list of at least one message", given);
    }
    if (status == OX_OK && column == OX_COLUMN_MESSAGES && !begins_with_system(reader, list)) {
        status = add_system(reader);
    }
    for (size_t i = 0; status == OX_OK && i < json_array_size(list); i++) {
        status = read_message(reader, key, i, json_array_get(list, i), may_train);
    }
    json_decref(list);
    return status;
}

static enum ox_status read_messages(struct reader *reader) {
    return read_messages_of(reader, OX_COLUMN_MESSAGES, true);
}

static enum ox_status read_history(struct reader *reader) {
    const json_t *const history = json_object_get(reader->row, "history");
    enum ox_status status = OX_OK;
    if (history == NULL || json_is_null(history)) {
        return OX_OK;
    }
    if (!json_is_array(history)) {
        return ox_row_fail_value(reader->where, "history", "a list of [user, assistant] pairs", history);
    }
    for (size_t i = 0; status == OX_OK && i < json_array_size(history); i++) {
        const json_t *const pair = json_array_get(history, i);
        const char *const asked = json_string_value(json_array_get(pair, 0));
        const char *const answered = json_string_value(json_array_get(pair, 1));
        if (json_array_size(pair) != 2 || asked == NULL || answered == NULL) {
            return ox_row_fail_value(reader->where, "history", "a list of [user, assistant] pairs", pair);
        }
        status = add_message(reader, "user", asked);
        OX_THEN(status, add_message(reader, "assistant", answered));
    }
    return status;
}

static enum ox_status read_instruction(struct reader *reader) {
    const char *instruction = NULL, *input = NULL, *output = NULL;
    const char *const where = reader->where;
    enum ox_status status =
        ox_json_get_string(where, reader->row, key_of(reader, OX_COLUMN_INSTRUCTION), true, &instruction);
    OX_THEN(status, ox_json_get_string(where, reader->row, key_of(reader, OX_COLUMN_INPUT), false, &input));
    OX_THEN(status, ox_json_get_string(where, reader->row, key_of(reader, OX_COLUMN_OUTPUT), true, &output));
    OX_THEN(status, add_system(reader));
    OX_THEN(status, read_history(reader));
    OX_THEN(status, add_joined(reader, "user", instruction, input));
    return status == OX_OK ? add_message(reader, "assistant", output) : status;
}

static enum ox_status copy_text(struct reader *reader, enum ox_chat_column column, char **out) {
    const char *text = NULL;
    OX_TRY(ox_json_get_string(reader->where, reader->row, key_of(reader, column), true, &text));
    *out = strdup(text);
    return *out != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "%s: no memory for a text", reader->where);
}

/* Two texts, or two lists of messages of which the second is trained. */
static enum ox_status read_completion(struct reader *reader) {
    const char *const keys[] = {key_of(reader, OX_COLUMN_PROMPT), key_of(reader, OX_COLUMN_COMPLETION)};
    const bool lists[] = {json_is_array(json_object_get(reader->row, keys[0])),
                          json_is_array(json_object_get(reader->row, keys[1]))};
    if (lists[0] != lists[1]) {
        const char *const other = keys[lists[0] ? 1 : 0];
        return ox_row_fail_value(reader->where, other, lists[0] ? "a list of messages, as the prompt is"
                                 : "a list of messages, as the completion is", json_object_get(reader->row, other));
    }
    if (lists[0]) {
        const enum ox_status status = read_messages_of(reader, OX_COLUMN_PROMPT, false);
        return status == OX_OK ? read_messages_of(reader, OX_COLUMN_COMPLETION, true) : status;
    }
    reader->chat->kind = OX_CHAT_COMPLETION;
    enum ox_status status = copy_text(reader, OX_COLUMN_PROMPT, &reader->chat->prompt);
    OX_THEN(status, copy_text(reader, OX_COLUMN_COMPLETION, &reader->chat->text));
    return status;
}

static enum ox_status read_text(struct reader *reader) {
    reader->chat->kind = OX_CHAT_TEXT;
    return copy_text(reader, OX_COLUMN_TEXT, &reader->chat->text);
}

enum {
    MESSAGES = 1 << OX_COLUMN_MESSAGES, PROMPT = 1 << OX_COLUMN_PROMPT, COMPLETION = 1 << OX_COLUMN_COMPLETION,
    INSTRUCTION = 1 << OX_COLUMN_INSTRUCTION, OUTPUT = 1 << OX_COLUMN_OUTPUT, TEXT = 1 << OX_COLUMN_TEXT,
};

static const struct form forms[] = {
    {.name = "messages", .required = MESSAGES, .read = read_messages,
     .keys = {[OX_COLUMN_MESSAGES] = "messages", [OX_COLUMN_SYSTEM] = "system"}},
    {.name = "sharegpt", .required = MESSAGES, .read = read_messages,
     .keys = {[OX_COLUMN_MESSAGES] = "conversations", [OX_COLUMN_SYSTEM] = "system"}},
    {.name = "prompt and completion", .required = PROMPT | COMPLETION, .read = read_completion,
     .keys = {[OX_COLUMN_PROMPT] = "prompt", [OX_COLUMN_COMPLETION] = "completion"}},
    {.name = "alpaca", .required = INSTRUCTION | OUTPUT, .read = read_instruction,
     .keys = {[OX_COLUMN_INSTRUCTION] = "instruction", [OX_COLUMN_INPUT] = "input", [OX_COLUMN_OUTPUT] = "output",
              [OX_COLUMN_SYSTEM] = "system"}},
    {.name = "dolly", .required = INSTRUCTION | OUTPUT, .read = read_instruction,
     .keys = {[OX_COLUMN_INSTRUCTION] = "instruction", [OX_COLUMN_INPUT] = "context", [OX_COLUMN_OUTPUT] = "response",
              [OX_COLUMN_SYSTEM] = "system"}},
    {.name = "text", .required = TEXT, .read = read_text, .keys = {[OX_COLUMN_TEXT] = "text"}},
};

enum { FORM_COUNT = sizeof forms / sizeof *forms };

/* ---- which form a row has ------------------------------------------------------------------------------------ */

/* The columns that the user names decide which forms there are: those that have one of them. */
static bool is_considered(const struct ox_chat_columns *columns, const struct form *form) {
    bool any = false, used = false;
    for (int i = 0; i < OX_COLUMN_FORM_COUNT; i++) {
        const bool given = given_name(columns, (enum ox_chat_column)i) != NULL;
        any = any || given;
        used = used || (given && form->keys[i] != NULL);
    }
    return used || !any;
}

/* Whether two forms are the same where the user names their columns. */
static bool has_same_keys(const struct ox_chat_columns *columns, const struct form *a, const struct form *b) {
    bool same = a->required == b->required;
    for (int i = 0; i < OX_COLUMN_FORM_COUNT && same; i++) {
        same = (a->required >> i & 1) == 0 || strcmp(key_in(columns, a, (enum ox_chat_column)i),
                                                     key_in(columns, b, (enum ox_chat_column)i)) == 0;
    }
    return same;
}

/* The first required key of the form that the row has, or lacks; NULL for none. */
static const char *find_key(const json_t *row, const struct ox_chat_columns *columns, const struct form *form,
                            bool present) {
    for (int i = 0; i < OX_COLUMN_COUNT; i++) {
        const char *const key = (form->required >> i & 1) != 0 ? key_in(columns, form, (enum ox_chat_column)i) : NULL;
        const json_t *const value = key != NULL ? json_object_get(row, key) : NULL;
        if (key != NULL && (value != NULL && !json_is_null(value)) == present) {
            return key;
        }
    }
    return NULL;
}

/* The required key of the form that is null, where the row has all of them; else NULL. */
static const char *find_null(const json_t *row, const struct ox_chat_columns *columns, const struct form *form) {
    const char *found = NULL;
    for (int i = 0; i < OX_COLUMN_COUNT; i++) {
        const char *const key = (form->required >> i & 1) != 0 ? key_in(columns, form, (enum ox_chat_column)i) : NULL;
        const json_t *const value = key != NULL ? json_object_get(row, key) : NULL;
        if (key != NULL && value == NULL) {
            return NULL;
        }
        found = json_is_null(value) ? key : found;
    }
    return found;
}

bool ox_row_names_form(const struct ox_chat_columns *columns) {
    bool names = false;
    for (int i = 0; i < OX_COLUMN_FORM_COUNT; i++) {
        names = names || given_name(columns, (enum ox_chat_column)i) != NULL;
    }
    return names;
}

static enum ox_status fail_formless(const char *where, const json_t *row, const struct ox_chat_columns *columns) {
    char keys[KEYS_BYTES], excerpt[OX_JSON_EXCERPT_BYTES], advice[OX_ROW_ADVICE_BYTES] = "";
    if (!json_is_object(row)) {
        const bool of_messages = json_is_object(json_array_get(row, 0));
        return ox_fail(OX_E_CONFIG, "%s: a row must be an object, but is %s; %s", where, ox_json_excerpt(row, excerpt),
                       of_messages ? "make it {\"messages\": [...]} (jq -c '{messages: .}')"
                       : json_is_array(row) ? "make it {\"prompt\": ..., \"completion\": ...} "
                                              "(jq -c '{prompt: .[0], completion: .[1]}')"
                                            : "make it {\"text\": ...} (jq -c '{text: .}'), or of lines that are "
                                              "pairs jq -c '{prompt: .[0], completion: .[1]}'");
    }
    if (!ox_row_names_form(columns)) {
        ox_row_suggest(row, advice);
    }
    for (int i = 0; i < FORM_COUNT; i++) {
        const bool considered = is_considered(columns, &forms[i]);
        const char *const null = considered ? find_null(row, columns, &forms[i]) : NULL;
        const char *const has = considered ? find_key(row, columns, &forms[i], true) : NULL;
        if (null != NULL) {
            return ox_fail(OX_E_CONFIG, "%s: \"%s\" is null, so the row has nothing to train on; leave such rows out "
                           "(jq -c 'select(.%s != null)')", where, null, null);
        }
        if (has != NULL) {
            return ox_fail(OX_E_CONFIG, "%s: a row with \"%s\" also needs \"%s\"; this one has the keys %s%s%s", where,
                           has, find_key(row, columns, &forms[i], false), keys_text(row, keys),
                           advice[0] != '\0' ? "; " : "", advice);
        }
    }
    return ox_fail(OX_E_CONFIG,
                   "%s: the row has no known form, which are \"messages\", \"conversations\", \"prompt\" with "
                   "\"completion\", \"instruction\" with \"output\" or \"response\", and \"text\"; its keys are %s; "
                   "%s", where, keys_text(row, keys),
                   advice[0] != '\0' ? advice : "name them with --column-messages, --column-prompt and "
                                                "--column-completion, or --column-text");
}

/* Finds the one form that the row has. */
static enum ox_status find_form(const char *where, const json_t *row, const struct ox_chat_columns *columns,
                                const struct form **out) {
    char keys[KEYS_BYTES];
    *out = NULL;
    for (int i = 0; i < FORM_COUNT; i++) {
        const struct form *const form = &forms[i];
        if (!is_considered(columns, form) || find_key(row, columns, form, false) != NULL ||
            (*out != NULL && has_same_keys(columns, *out, form))) {
            continue;
        }
        if (*out != NULL) {
            return ox_fail(OX_E_CONFIG,
                           "%s: the row has two forms at once, %s and %s; choose one by naming its keys, such as "
                           "--column-messages, --column-prompt, --column-instruction or --column-text; its keys are %s",
                           where, (*out)->name, form->name, keys_text(row, keys));
        }
        *out = form;
    }
    return *out != NULL ? OX_OK : fail_formless(where, row, columns);
}

/* ---- what belongs to every conversation ---------------------------------------------------------------------- */

/* Takes over "tools", which may be JSON in a text, "documents" and "chat_template_kwargs". */
static enum ox_status read_rest(struct reader *reader) {
    const char *const given = given_name(reader->columns, OX_COLUMN_TOOLS);
    json_t *const documents = json_object_get(reader->row, "documents");
    json_t *const kwargs = json_object_get(reader->row, "chat_template_kwargs");
    json_t *const conversation = reader->chat->conversation;
    json_t *tools = NULL;
    enum ox_status status = read_list(reader, given != NULL ? given : "tools", "a list of tools", &tools);
    bool stored = true;
    if (status == OX_OK && tools != NULL) {
        stored = json_object_set(conversation, "tools", tools) == 0;
    }
    if (status == OX_OK && documents != NULL && !json_is_null(documents)) {
        stored = stored && json_object_set(conversation, "documents", documents) == 0;
    }
    if (status == OX_OK && kwargs != NULL && !json_is_null(kwargs)) {
        status = json_is_object(kwargs) ? OX_OK
                                        : ox_row_fail_value(reader->where, "chat_template_kwargs", "an object", kwargs);
        stored = stored && json_object_set(conversation, "chat_template_kwargs", kwargs) == 0;
    }
    json_decref(tools);
    return status == OX_OK && !stored ? no_memory(reader) : status;
}

static enum ox_status read_form(struct reader *reader) {
    reader->chat->kind = OX_CHAT_MESSAGES;
    reader->chat->conversation = json_pack("{s:[]}", key_messages);
    enum ox_status status = reader->chat->conversation != NULL ? reader->form->read(reader) : no_memory(reader);
    if (status != OX_OK || reader->chat->kind != OX_CHAT_MESSAGES) {
        json_decref(reader->chat->conversation);
        reader->chat->conversation = NULL;
        return status;
    }
    return read_rest(reader);
}

/* ---- token ids ----------------------------------------------------------------------------------------------- */

/* A list of as many whole numbers as there are ids, of `least` to `most`; *out is NULL where the row has none. */
static enum ox_status find_numbers(const struct reader *reader, const char *key, json_int_t least, json_int_t most,
                                   const json_t **out) {
    const size_t count = json_array_size(json_object_get(reader->row, "input_ids"));
    const json_t *const list = json_object_get(reader->row, key);
    *out = json_is_null(list) ? NULL : list;
    if (*out == NULL) {
        return OX_OK;
    }
    if (!json_is_array(list)) {
        return ox_row_fail_value(reader->where, key, "a list of whole numbers", list);
    }
    if (json_array_size(list) != count) {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" has %zu values for %zu of \"input_ids\"; give as many", reader->where,
                       key, json_array_size(list), count);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *const value = json_array_get(list, i);
        if (!json_is_integer(value) || json_integer_value(value) < least || json_integer_value(value) > most) {
            char excerpt[OX_JSON_EXCERPT_BYTES];
            return ox_fail(OX_E_CONFIG, "%s: \"%s\" has %s at position %zu; it must be a whole number from %lld to "
                           "%lld", reader->where, key, ox_json_excerpt(value, excerpt), i, (long long)least,
                           (long long)most);
        }
    }
    return OX_OK;
}

static json_int_t number_at(const json_t *list, size_t i) {
    return json_integer_value(json_array_get(list, i));
}

/* The part of the ids that is no padding. */
static enum ox_status find_attended(const struct reader *reader, size_t *begin, size_t *end) {
    const json_t *mask = NULL, *positions = NULL;
    enum ox_status status = find_numbers(reader, "attention_mask", 0, 1, &mask);
    if (status != OX_OK) {
        return status;
    }
    while (mask != NULL && *begin < *end && number_at(mask, *begin) == 0) {
        ++*begin;
    }
    while (mask != NULL && *begin < *end && number_at(mask, *end - 1) == 0) {
        --*end;
    }
    for (size_t i = *begin; i < *end && mask != NULL; i++) {
        if (number_at(mask, i) == 0) {
            return ox_fail(OX_E_CONFIG, "%s: \"attention_mask\" is 0 at position %zu, between tokens that are not; "
                           "only padding at the ends can be left out", reader->where, i);
        }
    }
    status = find_numbers(reader, "position_ids", 0, ID_MOST, &positions);
    for (size_t i = *begin + 1; i < *end && positions != NULL && status == OX_OK; i++) {
        if (number_at(positions, i) != number_at(positions, i - 1) + 1) {
            return ox_fail(OX_E_CONFIG, "%s: \"position_ids\" begin anew at position %zu, so the row holds several "
                           "documents; give each a row of its own (--packing pack puts them together again)",
                           reader->where, i);
        }
    }
    return status;
}

/* Whether the id at a position is trained, by all that says so. */
static enum ox_status find_trained(const struct reader *reader, const json_t *const *lists, size_t mask_count, size_t i,
                                   json_int_t id, bool *trained) {
    const json_t *const labels = lists[mask_count];
    *trained = true;
    for (size_t k = 0; k < mask_count; k++) {
        *trained = *trained && (lists[k] == NULL || number_at(lists[k], i) == 1);
    }
    if (labels == NULL || number_at(labels, i) == LABEL_IGNORED) {
        *trained = *trained && labels == NULL;
        return OX_OK;
    }
    return number_at(labels, i) == id
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "%s: \"labels\" has %lld at position %zu, where \"input_ids\" has %lld; labels "
                         "are the same ids, not shifted, or %d", reader->where, (long long)number_at(labels, i), i,
                         (long long)id, LABEL_IGNORED);
}

static enum ox_status read_ids(struct reader *reader) {
    static const char *const masks[] = {"loss_mask", "completion_mask", "assistant_masks"};
    enum { MASKS = sizeof masks / sizeof *masks };
    const json_t *ids = NULL, *lists[MASKS + 1] = {NULL};
    struct ox_chat *const chat = reader->chat;
    enum ox_status status = find_numbers(reader, "input_ids", 0, ID_MOST, &ids);
    size_t begin = 0, end = json_array_size(ids);
    for (int k = 0; k < MASKS; k++) {
        OX_THEN(status, find_numbers(reader, masks[k], 0, 1, &lists[k]));
    }
    OX_THEN(status, find_numbers(reader, "labels", LABEL_IGNORED, ID_MOST, &lists[MASKS]));
    OX_THEN(status, find_attended(reader, &begin, &end));
    chat->kind = OX_CHAT_IDS;
    for (size_t i = begin; i < end && status == OX_OK; i++) {
        bool trained = false;
        status = find_trained(reader, lists, MASKS, i, number_at(ids, i), &trained);
        OX_THEN(status, ox_ids_add(&chat->ids, number_at(ids, i)));
        OX_THEN(status, ox_id_mask_append(&chat->trained, trained, 1));
    }
    return status;
}

/* ---- public -------------------------------------------------------------------------------------------------- */

void ox_chat_free(struct ox_chat *chat) {
    ox_ids_free(&chat->ids);
    ox_id_mask_free(&chat->trained);
    json_decref(chat->conversation);
    free(chat->message_parts);
    free(chat->prompt);
    free(chat->text);
    memset(chat, 0, sizeof *chat);
}

enum ox_status ox_chat_read(const char *where, const json_t *row, const struct ox_chat_columns *columns,
                            struct ox_chat *out) {
    struct reader reader = {.where = where, .row = row, .columns = columns, .chat = out};
    ox_chat_free(out);
    out->judged = ox_row_opinion(row, columns);
    enum ox_status status = ox_row_check_marks(where, row, columns);
    if (status == OX_OK && !ox_row_is_empty(json_object_get(row, "input_ids")) && !ox_row_names_form(columns)) {
        status = read_ids(&reader);
    } else {
        OX_THEN(status, find_form(where, row, columns, &reader.form));
        OX_THEN(status, ox_row_check_media(where, row));
        OX_THEN(status, read_form(&reader));
    }
    if (status != OX_OK) {
        ox_chat_free(out);
    }
    return status;
}

enum ox_status ox_chat_read_line(const char *where, const char *line, size_t bytes,
                                 const struct ox_chat_columns *columns, struct ox_chat *out) {
    json_t *row = NULL;
    ox_chat_free(out);
    enum ox_status status = ox_json_parse_line(where, line, bytes, &row);
    if (status == OX_OK) {
        status = ox_chat_read(where, row, columns, out);
        json_decref(row);
    }
    return status;
}
