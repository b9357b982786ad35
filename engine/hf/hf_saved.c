/* What is trained whole beside adapters, and its names in PEFT's files. */
#include "engine/hf/hf_internal.h"

#include "base/assert.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>

static const char prefix[] = "base_model.model.", base_layer[] = ".base_layer";
static const char *const bias_names[] = {[OX_LORA_BIAS_NONE] = "none", [OX_LORA_BIAS_ALL] = "all",
                                         [OX_LORA_BIAS_LORA_ONLY] = "lora_only"};

/* ---- names ---- */

/* Whether a bias is that of a module with an adapter, which PEFT has wrapped. */
static bool is_wrapped(const struct ox_model *model, const struct ox_tensor *tensor) {
    static const char end[] = ".bias";
    const size_t length = strlen(tensor->name), tail = sizeof end - 1;
    char a[OX_HF_NAME_BYTES];
    if (tensor->base_idx != OX_NO_TENSOR || length <= tail || strcmp(tensor->name + length - tail, end) != 0) {
        return false;
    }
    snprintf(a, sizeof a, "%.*s.lora_A.weight", (int)(length - tail), tensor->name);
    return ox_model_find_tensor(model, a) >= 0;
}

void ox_hf_file_name(const struct ox_model *model, const struct ox_tensor *tensor, char out[OX_HF_NAME_BYTES]) {
    const bool adapted = model->config.lora.r > 0, wrapped = adapted && is_wrapped(model, tensor);
    const int front = (int)(wrapped ? strlen(tensor->name) - strlen(".bias") : strlen(tensor->name));
    const int bytes = snprintf(out, OX_HF_NAME_BYTES, "%s%.*s%s%s", adapted ? prefix : "", front, tensor->name,
                               wrapped ? base_layer : "", tensor->name + front);
    OX_ASSERT(bytes > 0 && bytes < OX_HF_NAME_BYTES);
}

int64_t ox_hf_find_saved(const struct ox_model *model, const char *name) {
    const size_t before = strncmp(name, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;
    const char *const wrapped = strstr(name, base_layer);
    char plain[OX_HF_NAME_BYTES], expected[OX_HF_NAME_BYTES];
    const int front = (int)(wrapped != NULL ? (size_t)(wrapped - name) : strlen(name)) - (int)before;
    if (front < 0 || strlen(name) >= sizeof plain) {
        return -1;
    }
    snprintf(plain, sizeof plain, "%.*s%s", front, name + before,
             wrapped != NULL ? wrapped + sizeof base_layer - 1 : "");
    const int64_t idx = ox_model_find_tensor(model, plain);
    if (idx < 0 || model->tensors[idx].saved_idx == OX_NO_TENSOR) {
        return -1;
    }
    ox_hf_file_name(model, &model->tensors[idx], expected);
    return strcmp(expected, name) == 0 ? idx : -1;
}

/* ---- modules ---- */

enum ox_status ox_hf_check_saved(const struct ox_model *model, const char *modules) {
    size_t length;
    const char *entry;
    for (const char *at = modules; (entry = ox_lora_next_target(&at, &length)) != NULL;) {
        char one[OX_LORA_TARGETS_BYTES];
        snprintf(one, sizeof one, "%.*s", (int)length, entry);
        bool found = ox_lora_unties(model, one);
        for (uint32_t i = 0; i < model->adapter_first; i++) {
            const struct ox_tensor *const tensor = &model->tensors[i];
            const bool is = ox_lora_is_saved(one, tensor->name);
            if (is && (ox_role_is_of_expert(tensor->role) || !tensor->trained || tensor->fp32)) {
                return ox_fail(OX_E_CONFIG, "--lora-modules-to-save %s: means \"%s\", which cannot be trained whole "
                               "beside adapters; name other modules, or train the model without --lora-r and with "
                               "--freeze", one, tensor->name);
            }
            found |= is;
        }
        if (!found) {
            return ox_fail(OX_E_CONFIG, "--lora-modules-to-save %s: the model has no module whose name ends so; give "
                           "names such as lm_head, embed_tokens or input_layernorm, as in its files", one);
        }
    }
    return OX_OK;
}

json_t *ox_hf_saved_names(const struct ox_lora *lora) {
    size_t length;
    const char *entry;
    json_t *const names = lora->modules_to_save[0] != '\0' ? json_array() : json_null();
    for (const char *at = lora->modules_to_save;
         names != NULL && (entry = ox_lora_next_target(&at, &length)) != NULL;) {
        if (json_array_append_new(names, json_stringn(entry, length)) != 0) {
            json_decref(names);
            return NULL;
        }
    }
    return names;
}

const char *ox_hf_bias_name(enum ox_lora_bias bias) {
    return bias_names[bias];
}

static enum ox_status read_modules(const char *where, const json_t *list, char out[OX_LORA_TARGETS_BYTES]) {
    size_t i, used = 0;
    json_t *value;
    json_array_foreach(list, i, value) {
        const char *const name = json_string_value(value);
        if (name == NULL || name[0] == '\0' || strpbrk(name, ", ") != NULL ||
            used + strlen(name) + 2 > OX_LORA_TARGETS_BYTES) {
            char text[OX_JSON_EXCERPT_BYTES];
            return ox_fail(OX_E_CONFIG, "%s: \"modules_to_save\" has %s, which is no name of a module, or too long a "
                           "list; save the adapter again with names such as lm_head", where,
                           ox_json_excerpt(value, text));
        }
        used += (size_t)snprintf(out + used, OX_LORA_TARGETS_BYTES - used, "%s%s", used == 0 ? "" : ",", name);
    }
    return OX_OK;
}

enum ox_status ox_hf_read_saved(const char *where, const json_t *json, struct ox_lora *out) {
    const json_t *const list = json_object_get(json, "modules_to_save"), *const bias = json_object_get(json, "bias");
    const char *const name = json_string_value(bias);
    char text[OX_JSON_EXCERPT_BYTES];
    if (list != NULL && !json_is_null(list) && !json_is_array(list)) {
        return ox_fail(OX_E_CONFIG, "%s: \"modules_to_save\" is %s; it must be a list of names", where,
                       ox_json_excerpt(list, text));
    }
    OX_TRY(read_modules(where, list, out->modules_to_save));
    for (unsigned i = 0; i < sizeof bias_names / sizeof *bias_names; i++) {
        if (name == NULL ? i == OX_LORA_BIAS_NONE && bias == NULL : strcmp(name, bias_names[i]) == 0) {
            out->bias = (enum ox_lora_bias)i;
            return OX_OK;
        }
    }
    return ox_fail(OX_E_CONFIG, "%s: \"bias\" is %s; it must be none, all or lora_only", where,
                   ox_json_excerpt(bias, text));
}
