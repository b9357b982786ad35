/* Finds the chat template and the special tokens of a model folder, and renders conversations. */
#include "engine/text/template.h"

#include "base/file.h"
#include "base/hash/hash.h"
#include "base/hash/listed.h"
#include "base/name/name.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_BYTES_MAX = 16 << 20, CONFIG_BYTES_MAX = 64 << 20, TEMPLATES_MAX = 64, NAMES_BYTES = 1024 };

struct named {
    char *name, *text;
    size_t bytes;
    struct ox_jinja *jinja; /* NULL: `error` says why it does not compile */
    char *error;
    uint64_t hash; /* covers name and text */
    bool uses_date;
};

struct ox_template {
    struct named named[TEMPLATES_MAX];
    size_t count;
    const struct named *chosen; /* NULL: the default, or that for tools */
    json_t *special_tokens;
    uint64_t hash;
    const volatile sig_atomic_t *stop;
    char origin[OX_PATH_BYTES + 64], folder[OX_PATH_BYTES];
};

static enum ox_status no_memory(void) {
    return ox_fail(OX_E_NOMEM, "no memory for a chat template");
}

/* ---- finding --------------------------------------------------------------------------------------------------- */

static enum ox_status add_template(struct ox_template *chat_template, const char *name, const char *text,
                                   size_t bytes) {
    const struct ox_jinja_limits limits = ox_jinja_default_limits();
    if (chat_template->count == TEMPLATES_MAX) {
        return ox_fail(OX_E_CONFIG, "a model has more than %d chat templates", TEMPLATES_MAX);
    }
    struct named *const named = &chat_template->named[chat_template->count];
    named->name = strdup(name);
    named->text = malloc(bytes + 1);
    chat_template->count++;
    if (named->name == NULL || named->text == NULL) {
        return no_memory();
    }
    memcpy(named->text, text, bytes);
    named->bytes = bytes;
    named->hash = ox_hash64(text, bytes, ox_hash64(name, strlen(name), 0));
    named->uses_date = memmem(text, bytes, "strftime_now", 12) != NULL;
    const enum ox_status status = ox_jinja_compile(text, bytes, &limits, &named->jinja);
    if (status != OX_E_CONFIG) {
        return status;
    }
    named->error = strdup(ox_error_text());
    return named->error == NULL ? no_memory() : OX_OK;
}

static enum ox_status add_file(struct ox_template *chat_template, const char *name, const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    enum ox_status status = ox_file_read(path, TEMPLATE_BYTES_MAX, &text, &bytes);
    if (status == OX_OK) {
        status = add_template(chat_template, name, text, bytes);
    }
    free(text);
    return status;
}

/* additional_chat_templates/NAME.jinja */
static enum ox_status add_folder(struct ox_template *chat_template, const char *path) {
    enum ox_status status = OX_OK;
    const char *name = NULL;
    DIR *const folder = opendir(path);
    if (folder == NULL) {
        return OX_OK;
    }
    while ((status = ox_folder_next(folder, path, &name)) == OX_OK && name != NULL) {
        char file[OX_PATH_BYTES], stem[OX_PATH_BYTES];
        const size_t bytes = strlen(name);
        if (bytes <= 6 || bytes >= sizeof stem || strcmp(name + bytes - 6, ".jinja") != 0) {
            continue;
        }
        memcpy(stem, name, bytes - 6);
        stem[bytes - 6] = '\0';
        status = ox_path_join(path, name, file);
        OX_THEN(status, add_file(chat_template, stem, file));
        if (status != OX_OK) {
            break;
        }
    }
    closedir(folder);
    return status;
}

/* "chat_template" of a JSON file: a text, or a list of {"name", "template"}. */
static enum ox_status add_from_json(struct ox_template *chat_template, const char *where, const json_t *config) {
    const json_t *const value = json_object_get(config, "chat_template");
    if (json_is_string(value)) {
        return add_template(chat_template, "default", json_string_value(value), json_string_length(value));
    }
    enum ox_status status = OX_OK;
    for (size_t i = 0; status == OX_OK && i < json_array_size(value); i++) {
        const json_t *const one = json_array_get(value, i);
        const json_t *const text = json_object_get(one, "template");
        const char *const name = json_string_value(json_object_get(one, "name"));
        if (name == NULL || !json_is_string(text)) {
            return ox_fail(OX_E_CONFIG, "%s: \"chat_template\" must be a text or a list of {\"name\", \"template\"}",
                           where);
        }
        status = add_template(chat_template, name, json_string_value(text), json_string_length(text));
    }
    return status;
}

static enum ox_status load_optional(const char *folder, const char *name, char *path, json_t **out) {
    enum ox_status status = ox_path_join(folder, name, path);
    if (status == OX_OK && ox_path_exists(path)) {
        status = ox_json_load_large(path, CONFIG_BYTES_MAX, out);
    }
    return status;
}

static void drop_templates(struct ox_template *chat_template) {
    for (size_t i = 0; i < chat_template->count; i++) {
        free(chat_template->named[i].name);
        free(chat_template->named[i].text);
        free(chat_template->named[i].error);
        ox_jinja_close(&chat_template->named[i].jinja);
    }
    memset(chat_template->named, 0, sizeof chat_template->named);
    chat_template->count = 0;
}

static void set_origin(struct ox_template *chat_template, const char *what, const char *folder) {
    snprintf(chat_template->origin, sizeof chat_template->origin, "%.60s of %s", what, folder);
}

/* The folder's own templates; none is no failure here. */
static enum ox_status find_templates(struct ox_template *chat_template, const char *folder, const json_t *config) {
    char path[OX_PATH_BYTES];
    json_t *legacy = NULL;
    set_origin(chat_template, "chat_template.jinja", folder);
    enum ox_status status = ox_path_join(folder, "chat_template.jinja", path);
    if (status == OX_OK && ox_path_exists(path)) {
        status = add_file(chat_template, "default", path);
    }
    OX_THEN(status, ox_path_join(folder, "additional_chat_templates", path));
    OX_THEN(status, add_folder(chat_template, path));
    if (status == OX_OK && chat_template->count == 0) {
        set_origin(chat_template, "tokenizer_config.json", folder);
        status = add_from_json(chat_template, "tokenizer_config.json", config);
    }
    if (status == OX_OK && chat_template->count == 0) {
        set_origin(chat_template, "chat_template.json", folder);
        status = load_optional(folder, "chat_template.json", path, &legacy);
        OX_THEN(status, add_from_json(chat_template, path, legacy));
        json_decref(legacy);
    }
    return status;
}

/* ---- choosing -------------------------------------------------------------------------------------------------- */

static const struct named *find_named(const struct ox_template *chat_template, const char *name) {
    for (size_t i = 0; i < chat_template->count; i++) {
        if (strcmp(chat_template->named[i].name, name) == 0) {
            return &chat_template->named[i];
        }
    }
    return NULL;
}

static const struct ox_template_builtin *find_builtin(const char *name) {
    const struct ox_template_builtin *builtin = ox_template_builtins;
    while (builtin->name != NULL && strcmp(builtin->name, name) != 0) {
        builtin++;
    }
    return builtin->name != NULL ? builtin : NULL;
}

static void append_name(char names[NAMES_BYTES], const char *name) {
    const size_t used = strlen(names);
    snprintf(names + used, NAMES_BYTES - used, "%s%s", used > 0 ? ", " : "", name);
}

/* The names that a choice may be, for messages: the folder's own, then the built-in ones. */
static void list_names(const struct ox_template *chat_template, char names[NAMES_BYTES]) {
    names[0] = '\0';
    for (size_t i = 0; i < chat_template->count; i++) {
        append_name(names, chat_template->named[i].name);
    }
    for (const struct ox_template_builtin *builtin = ox_template_builtins; builtin->name != NULL; builtin++) {
        if (find_named(chat_template, builtin->name) == NULL) {
            append_name(names, builtin->name);
        }
    }
}

static enum ox_status take_file(struct ox_template *chat_template, const char *path) {
    const size_t bytes = strlen(path);
    json_t *config = NULL;
    snprintf(chat_template->origin, sizeof chat_template->origin, "%s", path);
    if (bytes < 5 || strcmp(path + bytes - 5, ".json") != 0) {
        return add_file(chat_template, "default", path);
    }
    enum ox_status status = ox_json_load_large(path, CONFIG_BYTES_MAX, &config);
    OX_THEN(status, add_from_json(chat_template, path, config));
    json_decref(config);
    if (status == OX_OK && chat_template->count == 0) {
        status = ox_fail(OX_E_CONFIG, "%s: no \"chat_template\" in it", path);
    }
    return status;
}

static enum ox_status choose(struct ox_template *chat_template, const char *folder, const char *choice) {
    const struct ox_template_builtin *const builtin = find_builtin(choice);
    char names[NAMES_BYTES];
    list_names(chat_template, names);
    if (choice[0] == '\0') {
        return chat_template->count > 0
                   ? OX_OK
                   : ox_fail(OX_E_CONFIG,
                             "%s: no chat template: neither chat_template.jinja nor \"chat_template\" in "
                             "tokenizer_config.json; give one with --chat-template, a file or a built-in one", folder);
    }
    chat_template->chosen = find_named(chat_template, choice);
    if (chat_template->chosen != NULL) {
        set_origin(chat_template, choice, folder);
        return OX_OK;
    }
    if (builtin != NULL) {
        drop_templates(chat_template);
        snprintf(chat_template->origin, sizeof chat_template->origin, "built in: %s", builtin->name);
        return add_template(chat_template, "default", builtin->text, strlen(builtin->text));
    }
    char nearest[OX_NAME_BYTES];
    return ox_name_nearest(names, ", ", choice, nearest)
               ? ox_fail(OX_E_CONFIG, "--chat-template %.200s: there is no chat template of this name; did you mean "
                         "%s?", choice, nearest)
               : ox_fail(OX_E_CONFIG, "there is no chat template \"%.200s\"; --chat-template takes a file or one of %s",
                         choice, names);
}

/* ---- special tokens -------------------------------------------------------------------------------------------- */

/* A token is a text, or an object with its text as "content". */
static enum ox_status take_tokens(json_t *tokens, const json_t *config) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *value = json_object_get(config, names[i]);
        value = json_is_object(value) ? json_object_get(value, "content") : value;
        if (json_is_string(value) && json_object_set(tokens, names[i], value) != 0) {
            return no_memory();
        }
    }
    return OX_OK;
}

static enum ox_status find_tokens(struct ox_template *chat_template, const char *folder, const json_t *config) {
    char path[OX_PATH_BYTES];
    json_t *map = NULL;
    chat_template->special_tokens = json_object();
    enum ox_status status =
        chat_template->special_tokens == NULL ? no_memory() : take_tokens(chat_template->special_tokens, config);
    if (status == OX_OK && json_object_get(config, "added_tokens_decoder") == NULL) {
        status = load_optional(folder, "special_tokens_map.json", path, &map);
        OX_THEN(status, take_tokens(chat_template->special_tokens, map));
        json_decref(map);
    }
    return status;
}

/* The key of the templates that a conversation may take, and of the special tokens. */
static enum ox_status set_hash(struct ox_template *chat_template) {
    char *const tokens = json_dumps(chat_template->special_tokens, JSON_COMPACT | JSON_SORT_KEYS);
    if (tokens == NULL) {
        return no_memory();
    }
    /* Without a choice only the template named default serves conversations: the key tells a chosen other one apart. */
    const bool is_other = chat_template->chosen != NULL && strcmp(chat_template->chosen->name, "default") != 0;
    chat_template->hash = ox_hash64(tokens, strlen(tokens), is_other);
    for (size_t i = 0; i < chat_template->count; i++) {
        const struct named *const named = &chat_template->named[i];
        if (chat_template->chosen == NULL || chat_template->chosen == named) {
            chat_template->hash += named->hash; /* folders are read in any order */
        }
    }
    free(tokens);
    return OX_OK;
}

/* The folder of a path that names a folder or a file in it. */
static enum ox_status folder_of(const char *path, char folder[OX_PATH_BYTES]) {
    const char *const slash = ox_path_is_file(path) ? strrchr(path, '/') : NULL;
    const int bytes = slash == NULL ? (int)strlen(path) : slash > path ? (int)(slash - path) : 1;
    const char *const shown = slash == NULL && ox_path_is_file(path) ? "." : path;
    const int written = snprintf(folder, OX_PATH_BYTES, "%.*s", bytes, shown);
    return written < OX_PATH_BYTES ? OX_OK : ox_fail(OX_E_CONFIG, "%.200s...: the path is too long", path);
}

enum ox_status ox_template_open(const char *path, const char *choice, struct ox_template **out) {
    char folder[OX_PATH_BYTES], file[OX_PATH_BYTES];
    json_t *config = NULL;
    struct ox_template *chat_template = calloc(1, sizeof *chat_template);
    *out = NULL;
    if (chat_template == NULL) {
        return no_memory();
    }
    choice = choice != NULL ? choice : "";
    enum ox_status status = folder_of(path, folder);
    OX_THEN(status, ox_listed_verify_small(folder));
    OX_THEN(status, load_optional(folder, "tokenizer_config.json", file, &config));
    if (ox_path_is_file(choice)) {
        OX_THEN(status, take_file(chat_template, choice));
    } else {
        OX_THEN(status, find_templates(chat_template, folder, config));
        OX_THEN(status, choose(chat_template, folder, choice));
    }
    OX_THEN(status, find_tokens(chat_template, folder, config));
    OX_THEN(status, set_hash(chat_template));
    snprintf(chat_template->folder, sizeof chat_template->folder, "%s", folder);
    json_decref(config);
    if (status != OX_OK) {
        ox_template_close(&chat_template);
    }
    *out = chat_template;
    return status;
}

void ox_template_close(struct ox_template **chat_template) {
    if (*chat_template == NULL) {
        return;
    }
    drop_templates(*chat_template);
    json_decref((*chat_template)->special_tokens);
    free(*chat_template);
    *chat_template = NULL;
}

const char *ox_template_origin(const struct ox_template *chat_template) {
    return chat_template->origin;
}

const char *ox_template_folder(const struct ox_template *chat_template) {
    return chat_template->folder;
}

enum ox_status ox_template_texts(const struct ox_template *chat_template, json_t **out) {
    int failed = (*out = json_object()) == NULL;
    for (size_t i = 0; i < chat_template->count && failed == 0; i++) {
        const struct named *const named = &chat_template->named[i];
        const bool alone = chat_template->chosen == named;
        failed |= (alone || chat_template->chosen == NULL) &&
                  json_object_set_new(*out, alone ? "default" : named->name,
                                      json_stringn(named->text, named->bytes)) != 0;
    }
    if (failed != 0) {
        json_decref(*out);
        *out = NULL;
        return no_memory();
    }
    return OX_OK;
}

bool ox_template_uses_date(const struct ox_template *chat_template) {
    bool uses_date = false;
    for (size_t i = 0; i < chat_template->count; i++) {
        const struct named *const named = &chat_template->named[i];
        uses_date |= named->uses_date && (chat_template->chosen == NULL || chat_template->chosen == named);
    }
    return uses_date;
}

uint64_t ox_template_hash(const struct ox_template *chat_template) {
    return chat_template->hash;
}

/* ---- rendering ------------------------------------------------------------------------------------------------- */

/* Sets a key to a value that stays the caller's. */
static bool set(json_t *object, const char *key, const json_t *value) {
    return json_object_set(object, key, (json_t *)value) == 0;
}

/* A message without the keys that are null. One with reasoning has it under both names that templates read: "thinking"
 * first of all, unless the message has one, and "reasoning_content". */
static json_t *plain_message(const json_t *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *const plain = json_object();
    const json_t *reasoning = NULL;
    const char *key = NULL;
    json_t *value = NULL;
    for (size_t i = 0; reasoning == NULL && i < sizeof names / sizeof *names; i++) {
        reasoning = json_object_get(message, names[i]);
        reasoning = json_is_null(reasoning) ? NULL : reasoning;
    }
    bool ok = plain != NULL && (reasoning == NULL || set(plain, "thinking", reasoning));
    json_object_foreach((json_t *)message, key, value) {
        ok = ok && (json_is_null(value) || set(plain, key, value));
    }
    ok = ok && (reasoning == NULL || set(plain, "reasoning_content", reasoning));
    if (!ok) {
        json_decref(plain);
        return NULL;
    }
    return plain;
}

static enum ox_status plain_messages(const json_t *messages, json_t **out) {
    *out = json_array();
    if (*out == NULL) {
        return no_memory();
    }
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        return ox_fail(OX_E_CONFIG, "\"messages\" must be a list of at least one message");
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *const message = json_array_get(messages, i);
        if (!json_is_object(message)) {
            return ox_fail(OX_E_CONFIG, "message %zu must be an object with \"role\" and \"content\"", i + 1);
        }
        json_t *const plain = plain_message(message);
        if (plain == NULL || json_array_append_new(*out, plain) != 0) {
            return no_memory();
        }
    }
    return OX_OK;
}

static enum ox_status check_objects(const char *key, const json_t *list) {
    bool ok = list == NULL || json_is_null(list) || json_is_array(list);
    for (size_t i = 0; i < json_array_size(list); i++) {
        ok = ok && json_is_object(json_array_get(list, i));
    }
    return ok ? OX_OK : ox_fail(OX_E_CONFIG, "\"%s\" must be a list of objects", key);
}

/* Sets what every template may read, null or false where neither the conversation nor its further variables say. */
static enum ox_status set_rest(json_t *variables, const json_t *conversation) {
    static const char *const names[] = {"tools", "documents", "add_generation_prompt"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *value = json_object_get(conversation, names[i]);
        value = value != NULL ? value : json_object_get(variables, names[i]);
        const enum ox_status status = i < 2 ? check_objects(names[i], value) : OX_OK;
        if (status != OX_OK) {
            return status;
        }
        const int failed = value != NULL ? json_object_set(variables, names[i], (json_t *)value)
                                         : json_object_set_new(variables, names[i], i < 2 ? json_null() : json_false());
        if (failed != 0) {
            return no_memory();
        }
    }
    return OX_OK;
}

enum ox_status ox_template_variables(const json_t *special_tokens, const json_t *conversation, json_t **out) {
    const json_t *const more = json_object_get(conversation, "chat_template_kwargs");
    json_t *messages = NULL;
    json_t *const variables = json_object();
    enum ox_status status = variables == NULL ? no_memory() : OX_OK;
    if (status == OX_OK && more != NULL && !json_is_object(more) && !json_is_null(more)) {
        status = ox_fail(OX_E_CONFIG, "\"chat_template_kwargs\" must be an object");
    }
    if (status == OX_OK &&
        ((special_tokens != NULL && json_object_update(variables, (json_t *)special_tokens) != 0) ||
         (json_is_object(more) && json_object_update(variables, (json_t *)more) != 0))) {
        status = no_memory();
    }
    OX_THEN(status, plain_messages(json_object_get(conversation, "messages"), &messages));
    if (status == OX_OK && json_object_set(variables, "messages", messages) != 0) {
        status = no_memory();
    }
    OX_THEN(status, set_rest(variables, conversation));
    json_decref(messages);
    if (status != OX_OK) {
        json_decref(variables);
    }
    *out = status == OX_OK ? variables : NULL;
    return status;
}

/* The template for a conversation with these tools; NULL where none is named default. */
static const struct named *named_for(const struct ox_template *chat_template, const json_t *tools) {
    if (chat_template->chosen != NULL) {
        return chat_template->chosen;
    }
    const struct named *const named =
        tools != NULL && !json_is_null(tools) ? find_named(chat_template, "tool_use") : NULL;
    return named != NULL ? named : find_named(chat_template, "default");
}

bool ox_template_marks_generation(const struct ox_template *chat_template, const json_t *conversation) {
    const struct named *const named = named_for(chat_template, json_object_get(conversation, "tools"));
    return named != NULL && named->jinja != NULL && ox_jinja_marks_generation(named->jinja);
}

/* A template that cannot be picked is no failure of opening: only a conversation says whether it has tools. */
static enum ox_status pick(const struct ox_template *chat_template, const json_t *variables, const struct named **out) {
    *out = named_for(chat_template, json_object_get(variables, "tools"));
    if (*out == NULL) {
        char names[NAMES_BYTES];
        list_names(chat_template, names);
        return ox_fail(OX_E_CONFIG,
                       "the model has several chat templates and none is named default; name one with --chat-template: "
                       "%s", names);
    }
    return (*out)->jinja != NULL ? OX_OK : ox_fail(OX_E_CONFIG, "%s", (*out)->error);
}

void ox_template_heed(struct ox_template *chat_template, const volatile sig_atomic_t *stop) {
    chat_template->stop = stop;
}

enum ox_status ox_template_render(const struct ox_template *chat_template, const json_t *conversation,
                                  const struct tm *now, struct ox_jinja_output *out) {
    const struct ox_jinja_limits limits = ox_jinja_default_limits();
    const struct named *named = NULL;
    json_t *variables = NULL;
    *out = (struct ox_jinja_output){0};
    enum ox_status status = ox_template_variables(chat_template->special_tokens, conversation, &variables);
    OX_THEN(status, pick(chat_template, variables, &named));
    if (status == OX_OK) {
        const struct ox_jinja_input input = {.variables = variables, .now = *now, .stop = chat_template->stop};
        status = ox_jinja_render(named->jinja, &input, &limits, out);
    }
    json_decref(variables);
    return status;
}
