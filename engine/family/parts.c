/* Folders of several parts, of which one is a text model: its configuration, and the names of its tensors. */
#include "base/json.h"
#include "engine/family/families.h"

#include <stdio.h>
#include <string.h>

/* Models whose text model, given text alone, computes what it computes by itself. */
static const char *const known[] = {"gemma3", "mistral3", NULL};

/* What the text model's own object may lack. */
static const char *const outer_keys[] = {"quantization_config", "bos_token_id", "eos_token_id", "pad_token_id",
                                         "dtype", "torch_dtype", NULL};

static bool is_known(const char *model_type) {
    const char *const *name = known;
    while (*name != NULL && strcmp(*name, model_type) != 0) {
        name++;
    }
    return *name != NULL;
}

static enum ox_status refuse(const char *where, const char *whole, const char *part) {
    char names[OX_FAMILY_NAMES_BYTES];
    if (ox_family_find(part) == NULL) {
        return ox_fail(OX_E_CONFIG, "%s: the \"model_type\" \"%.40s\" has several parts; the text model in it, "
                       "\"%.40s\", is not supported; supported are %s", where, whole, part, ox_family_names(names));
    }
    return ox_fail(OX_E_CONFIG, "%s: the \"model_type\" \"%.40s\" has several parts, and which of its tensors are the "
                   "text model's is not known; save that model alone: AutoModel.from_pretrained(...).language_model"
                   ".save_pretrained(...) in transformers", where, whole);
}

/* Makes the text model's configuration of its own object and of what the whole one says for it. */
static enum ox_status extract(const char *where, const json_t *json, json_t **out) {
    json_t *const text = json_deep_copy(json_object_get(json, "text_config"));
    json_t *const tied = json_object_get(json, "tie_word_embeddings");
    bool done = text != NULL && (tied == NULL || json_object_set(text, "tie_word_embeddings", tied) == 0);
    for (const char *const *key = outer_keys; done && *key != NULL; key++) {
        json_t *const value = json_object_get(json, *key);
        done = value == NULL || json_object_get(text, *key) != NULL || json_object_set(text, *key, value) == 0;
    }
    json_object_del(text, "architectures"); /* that of the text model follows from its kind */
    if (!done) {
        json_decref(text);
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it", where);
    }
    *out = text;
    return OX_OK;
}

enum ox_status ox_text_config(const char *where, const json_t *json, json_t **out) {
    const json_t *const text = json_object_get(json, "text_config");
    const char *whole = NULL, *part = NULL;
    *out = NULL;
    if (!json_is_object(text)) {
        return OX_OK;
    }
    enum ox_status status = ox_json_get_string(where, json, "model_type", true, &whole);
    if (status == OX_OK && ox_family_find(whole) != NULL) {
        return OX_OK; /* where the key has no effect */
    }
    OX_THEN(status, ox_json_get_string(where, text, "model_type", true, &part));
    if (status == OX_OK && (!is_known(whole) || ox_family_find(part) == NULL)) {
        return refuse(where, whole, part);
    }
    return status == OX_OK ? extract(where, json, out) : status;
}

bool ox_text_tensor_name(const char *name, char *out, size_t bytes) {
    static const char *const fronts[][2] = {
        {"language_model.", ""}, {"model.language_model.", "model."}, {"lm_head.", "lm_head."}};
    for (size_t i = 0; i < sizeof fronts / sizeof *fronts; i++) {
        const size_t front = strlen(fronts[i][0]);
        if (strncmp(name, fronts[i][0], front) == 0) {
            const int count = snprintf(out, bytes, "%s%s", fronts[i][1], name + front);
            return count > 0 && (size_t)count < bytes;
        }
    }
    return false;
}
