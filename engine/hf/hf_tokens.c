/* Writes what a run knows of its tokenizer into the folders that it saves: the chat template where transformers reads
 * it, and the tokens that end a text. Files that come from the model's folder say what that model was made with. */
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/hf/hf.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 64 << 20 };

static const char template_file[] = "chat_template.jinja", template_key[] = "chat_template";
static const char generation_file[] = "generation_config.json", config_file[] = "tokenizer_config.json";

static enum ox_status no_memory(void) {
    return ox_fail(OX_E_NOMEM, "no memory for what a folder says of its tokenizer");
}

/* Reads a file that a folder may have. One that is not JSON came with the model and stays as it is (*stays), because a
 * save must not fail for it, of which ox_hf_warn_tokens has told. */
static enum ox_status load_file(const char *path, json_t **out, bool *stays) {
    const bool exists = ox_path_exists(path);
    const enum ox_status status = exists ? ox_json_load_large(path, FILE_BYTES_MAX, out) : OX_OK;
    *stays = status == OX_E_CONFIG || status == OX_E_CORRUPT;
    return *stays ? OX_OK : status;
}

enum ox_status ox_hf_tokenizer_folder(const char *model, char *path) {
    if (ox_path_is_folder(model) && !ox_folder_has(model, "tokenizer.json") && ox_hf_is_adapter(model)) {
        return ox_hf_adapter_base(model, path);
    }
    const int bytes = snprintf(path, OX_PATH_BYTES, "%s", model);
    return bytes < OX_PATH_BYTES ? OX_OK : ox_fail(OX_E_CONFIG, "--model %s: the path is too long", model);
}

void ox_hf_warn_tokens(const char *folder, const struct ox_hf_tokens *tokens) {
    const char *const names[] = {generation_file, json_object_size(tokens->templates) > 0 ? config_file : NULL};
    for (size_t i = 0; i < sizeof names / sizeof *names && names[i] != NULL; i++) {
        char path[OX_PATH_BYTES], parent[OX_PATH_BYTES];
        json_t *json = NULL;
        bool stays = false;
        const bool is_file = ox_path_is_file(folder) && ox_path_parent(folder, parent) == OX_OK;
        if (ox_path_join(is_file ? parent : folder, names[i], path) == OX_OK &&
            load_file(path, &json, &stays) == OX_OK && stays) {
            ox_log(OX_LOG_WARN, "%s; the file stays as the model's folder has it, without what the run adds",
                   ox_error_text());
        }
        json_decref(json);
    }
}

/* ---- ids --------------------------------------------------------------------------------------------------------- */

static int append_id(json_t *list, const json_t *id) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (json_equal(json_array_get(list, i), id)) {
            return 0;
        }
    }
    return json_is_integer(id) && json_integer_value(id) >= 0 ? json_array_append(list, (json_t *)id) : 0;
}

/* Appends an id or a list of them, without those that the list has. */
static int append_ids(json_t *list, const json_t *ids) {
    int failed = append_id(list, ids);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        failed |= append_id(list, json_array_get(ids, i));
    }
    return failed;
}

/* Sets "eos_token_id" to what it has, unless the tokens replace that, and to `more` and the tokens' own; one id is a
 * number. *changed: there are others than before. */
static enum ox_status set_ends(json_t *object, const struct ox_hf_tokens *tokens, const json_t *more, bool *changed) {
    const json_t *const old = json_object_get(object, "eos_token_id");
    const bool keeps = !tokens->replaces || tokens->end_count == 0;
    json_t *const before = json_array(), *const list = json_array();
    int failed = before == NULL || list == NULL || append_ids(before, old) != 0;
    failed |= keeps && (append_ids(list, old) != 0 || append_ids(list, more) != 0);
    for (uint32_t i = 0; i < tokens->end_count && failed == 0; i++) {
        json_t *const id = json_integer(tokens->ends[i]);
        failed |= id == NULL || append_id(list, id) != 0;
        json_decref(id);
    }
    *changed = failed == 0 && !json_equal(before, list);
    if (*changed) {
        failed |= json_array_size(list) == 1 ? json_object_set(object, "eos_token_id", json_array_get(list, 0))
                                             : json_object_set(object, "eos_token_id", list);
    }
    json_decref(before);
    json_decref(list);
    return failed != 0 ? no_memory() : OX_OK;
}

/* Sets the ids that a fresh model takes from its tokenizer. */
static enum ox_status set_fresh(json_t *object, const struct ox_hf_tokens *tokens) {
    const struct {
        const char *key;
        int64_t id;
    } ids[] = {{"bos_token_id", tokens->bos}, {"pad_token_id", tokens->pad}};
    int failed = 0;
    for (size_t i = 0; i < sizeof ids / sizeof *ids && tokens->replaces; i++) {
        failed |= ids[i].id >= 0 && json_object_set_new(object, ids[i].key, json_integer(ids[i].id)) != 0;
    }
    return failed != 0 ? no_memory() : OX_OK;
}

enum ox_status ox_hf_config_with(const json_t *config, const struct ox_hf_tokens *tokens, json_t **out) {
    bool changed = false;
    *out = json_deep_copy(config);
    enum ox_status status = *out != NULL ? set_ends(*out, tokens, NULL, &changed) : no_memory();
    OX_THEN(status, set_fresh(*out, tokens));
    if (status != OX_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

/* A new generation_config.json has the ids that transformers would take from config.json without it. */
static enum ox_status begin_generation(const json_t *original, json_t **out) {
    static const char *const keys[] = {"bos_token_id", "pad_token_id"};
    int failed = (*out = json_object()) == NULL;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *const id = json_object_get(original, keys[i]);
        failed |= json_is_integer(id) && json_object_set(*out, keys[i], id) != 0;
    }
    return failed != 0 ? no_memory() : OX_OK;
}

/* generation_config.json, by which generate of transformers stops. Where there is none transformers takes the ids of
 * config.json, so it is made only for ids that the model did not have. */
static enum ox_status write_generation(const char *folder, const json_t *original, const struct ox_hf_tokens *tokens) {
    char path[OX_PATH_BYTES];
    json_t *object = NULL, *config = NULL;
    bool changed = false, others = false, stays = false;
    enum ox_status status = ox_path_join(folder, generation_file, path);
    const bool exists = status == OX_OK && ox_path_exists(path);
    OX_THEN(status, load_file(path, &object, &stays));
    if (stays) {
        return OX_OK;
    }
    if (status == OX_OK && !json_is_object(object)) {
        json_decref(object);
        status = begin_generation(original, &object);
    }
    config = original != NULL ? json_deep_copy(original) : json_object();
    OX_THEN(status, config != NULL ? set_ends(config, tokens, NULL, &others) : no_memory());
    OX_THEN(status, set_ends(object, tokens, json_object_get(original, "eos_token_id"), &changed));
    OX_THEN(status, set_fresh(object, tokens));
    if (status == OX_OK && (exists ? changed || tokens->replaces : others || tokens->replaces) &&
        json_object_size(object) > 0) {
        status = ox_hf_write_json(folder, generation_file, object);
    }
    json_decref(config);
    json_decref(object);
    return status;
}

/* ---- the chat template ------------------------------------------------------------------------------------------- */

static enum ox_status remove_file(const char *folder, const char *name) {
    char path[OX_PATH_BYTES];
    const enum ox_status status = ox_path_join(folder, name, path);
    return status != OX_OK || unlink(path) == 0 || errno == ENOENT
               ? status : ox_fail_errno(OX_E_IO, errno, "%s: cannot be removed", path);
}

/* The value of the key "chat_template": a text, or a list where there are others than a default. */
static json_t *template_value(const json_t *templates, const json_t *alone) {
    const char *name;
    json_t *text;
    json_t *const list = alone != NULL ? json_incref((json_t *)alone) : json_array();
    json_object_foreach((json_t *)templates, name, text) {
        if (alone == NULL &&
            json_array_append_new(list, json_pack("{s:s, s:O}", "name", name, "template", text)) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* Where there is one template, it is in chat_template.jinja, which transformers reads first, and under the key in
 * tokenizer_config.json, which earlier versions read. Several are under the key alone: a chat_template.jinja would hide
 * the others. */
static enum ox_status write_templates(const char *folder, const json_t *templates) {
    const json_t *const alone = json_object_size(templates) == 1 ? json_object_get(templates, "default") : NULL;
    char path[OX_PATH_BYTES];
    json_t *config = NULL;
    bool stays = false;
    enum ox_status status = remove_file(folder, "chat_template.json");
    OX_THEN(status, remove_file(folder, template_file));
    OX_THEN(status, ox_path_join(folder, config_file, path));
    OX_THEN(status, load_file(path, &config, &stays));
    if (status == OX_OK && !json_is_object(config)) {
        json_decref(config);
        config = json_object();
    }
    if (status == OX_OK && !stays &&
        (config == NULL || json_object_set_new(config, template_key, template_value(templates, alone)) != 0)) {
        status = no_memory();
    }
    OX_THEN(status, stays ? OX_OK : ox_hf_write_json(folder, config_file, config));
    json_decref(config);
    if (status == OX_OK && alone != NULL) {
        status = ox_path_join(folder, template_file, path);
        OX_THEN(status, ox_file_replace(path, json_string_value(alone), json_string_length(alone)));
    }
    return status;
}

enum ox_status ox_hf_write_tokens(const char *folder, const json_t *original, const struct ox_hf_tokens *tokens) {
    const enum ox_status status = write_generation(folder, original, tokens);
    return status == OX_OK && json_object_size(tokens->templates) > 0 ? write_templates(folder, tokens->templates)
                                                                      : status;
}
