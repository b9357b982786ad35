/* What is trained whole beside adapters, and its names in PEFT's files. */
#include "engine/hf/hf_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/json.h"
#include "base/planes.h"

#include <stdio.h>
#include <stdlib.h>
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
    char name[OX_HF_NAME_BYTES];
    ox_lora_name(&model->config, tensor->name, name, sizeof name);
    snprintf(a, sizeof a, "%.*s.lora_A.weight", (int)(strlen(name) - tail), name);
    return ox_model_find_tensor(model, a) >= 0;
}

void ox_hf_file_name(const struct ox_model *model, const struct ox_tensor *tensor, char out[OX_HF_NAME_BYTES]) {
    const bool adapted = model->config.lora.r > 0, wrapped = adapted && is_wrapped(model, tensor);
    char name[OX_HF_NAME_BYTES];
    snprintf(name, sizeof name, "%s", tensor->name);
    if (adapted) {
        ox_lora_name(&model->config, tensor->name, name, sizeof name);
    }
    const int front = (int)(wrapped ? strlen(name) - strlen(".bias") : strlen(name));
    const int bytes = snprintf(out, OX_HF_NAME_BYTES, "%s%.*s%s%s", adapted ? prefix : "", front, name,
                               wrapped ? base_layer : "", name + front);
    OX_ASSERT(bytes > 0 && bytes < OX_HF_NAME_BYTES);
}

/* The saved tensor of the model's that has `name` in PEFT's files, if it is called `plain` here. */
static int64_t find_as(const struct ox_model *model, const char *plain, const char *name) {
    char expected[OX_HF_NAME_BYTES];
    const int64_t idx = ox_model_find_tensor(model, plain);
    if (idx < 0 || model->tensors[idx].saved_idx == OX_NO_TENSOR) {
        return -1;
    }
    ox_hf_file_name(model, &model->tensors[idx], expected);
    return strcmp(expected, name) == 0 ? idx : -1;
}

int64_t ox_hf_find_saved(const struct ox_model *model, const char *name) {
    const size_t before = strncmp(name, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;
    const char *const wrapped = strstr(name, base_layer);
    char plain[OX_HF_NAME_BYTES], in_files[2 * OX_HF_NAME_BYTES];
    const int front = (int)(wrapped != NULL ? (size_t)(wrapped - name) : strlen(name)) - (int)before;
    if (front < 0 || strlen(name) >= sizeof plain) {
        return -1;
    }
    const int64_t as_it_is = find_as(model, name + before, name); /* experts' are wrapped twice, and named so here */
    if (as_it_is >= 0) {
        return as_it_is;
    }
    snprintf(plain, sizeof plain, "%.*s%s", front, name + before,
             wrapped != NULL ? wrapped + sizeof base_layer - 1 : "");
    const int64_t unwrapped = find_as(model, plain, name);
    ox_lora_name_in_files(&model->config, plain, in_files, sizeof in_files);
    return unwrapped >= 0 ? unwrapped : find_as(model, in_files, name);
}

/* ---- tables that PEFT saves beside their adapters ---- */

enum { PIECE_ELEMS = 1 << 14 };

/* Whether values are the same; where they are stored in different types, once both are rounded. */
static bool alike(const float *a, const float *b, uint64_t count, bool rounds) {
    bool same = rounds || memcmp(a, b, count * sizeof *a) == 0;
    for (uint64_t i = 0; i < count && rounds && same; i++) {
        same = ox_bf16_from_f32(a[i]) == ox_bf16_from_f32(b[i]);
    }
    return same;
}

/* Compares a table of the adapter's file with the model's, of which it may be a copy alone. */
static enum ox_status compare_table(const struct ox_hf_folder *folder, const struct ox_hf_place *place,
                                    uint32_t tensor_idx) {
    const uint64_t count = ox_tensor_whole_count(&folder->model->tensors[tensor_idx]);
    const bool rounds = place->entry->dtype != folder->places[tensor_idx].entry->dtype;
    float *const values = malloc(2 * PIECE_ELEMS * sizeof *values);
    bool same = place->entry->count == count;
    enum ox_status status = values != NULL ? OX_OK : ox_hf_fail_memory(folder->path);
    for (uint64_t first = 0, here; first < count && same && status == OX_OK; first += here) {
        here = ox_min_u64(PIECE_ELEMS, count - first);
        status = ox_st_read_f32(place->file, place->entry, first, here, values);
        OX_THEN(status, ox_hf_read_whole(folder, tensor_idx, first, here, values + PIECE_ELEMS));
        same = status != OX_OK || alike(values, values + PIECE_ELEMS, here, rounds);
    }
    free(values);
    return status != OX_OK || same
               ? status
               : ox_fail(OX_E_CONFIG, "%s: \"%s\" is another table than that of %s: the adapter was trained beside one "
                         "that was changed, by added tokens or training; merge the adapter with PEFT "
                         "(merge_and_unload)", ox_st_path(place->file), place->entry->name, folder->path);
}

enum ox_status ox_hf_take_table(const struct ox_hf_folder *folder, const struct ox_hf_place *place, bool *taken) {
    static const char end[] = ".base_layer.weight";
    const char *const name = place->entry->name;
    const size_t length = strlen(name), tail = sizeof end - 1, before = sizeof prefix - 1;
    char plain[OX_HF_NAME_BYTES];
    *taken = false;
    if (length <= before + tail || length >= sizeof plain || strncmp(name, prefix, before) != 0 ||
        strcmp(name + length - tail, end) != 0) {
        return OX_OK;
    }
    snprintf(plain, sizeof plain, "%.*s.weight", (int)(length - before - tail), name + before);
    const int64_t idx = ox_model_find_tensor(folder->model, plain);
    *taken = idx >= 0 && (folder->model->tensors[idx].role == OX_ROLE_EMBED ||
                          folder->model->tensors[idx].role == OX_ROLE_HEAD);
    return *taken && folder->places != NULL ? compare_table(folder, place, (uint32_t)idx) : OX_OK;
}

/* ---- modules ---- */

enum ox_status ox_hf_check_saved(const struct ox_model *model, const char *modules) {
    size_t length;
    const char *entry;
    for (const char *at = modules; (entry = ox_lora_next_target(&at, &length)) != NULL;) {
        char one[OX_LORA_TARGETS_BYTES];
        snprintf(one, sizeof one, "%.*s", (int)length, entry);
        bool found = false;
        for (uint32_t i = 0; i < model->adapter_first; i++) {
            const struct ox_tensor *const tensor = &model->tensors[i];
            const bool is = ox_lora_is_saved(&model->config, one, tensor->name);
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

json_t *ox_hf_names(const char *list) {
    size_t length;
    const char *entry;
    json_t *const names = list[0] != '\0' ? json_array() : json_null();
    for (const char *at = list; names != NULL && (entry = ox_lora_next_target(&at, &length)) != NULL;) {
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

enum ox_status ox_hf_read_names(const char *where, const json_t *json, const char *key, char *out) {
    const json_t *const list = json_object_get(json, key);
    char text[OX_JSON_EXCERPT_BYTES];
    size_t i, used = 0;
    json_t *value;
    if (list != NULL && !json_is_null(list) && !json_is_array(list)) {
        return ox_fail(OX_E_CONFIG, "%s: \"%s\" is %s; it must be a list of names", where, key,
                       ox_json_excerpt(list, text));
    }
    json_array_foreach(list, i, value) {
        const char *const name = json_string_value(value);
        if (name == NULL || name[0] == '\0' || strpbrk(name, ", ") != NULL ||
            used + strlen(name) + 2 > OX_LORA_TARGETS_BYTES) {
            return ox_fail(OX_E_CONFIG, "%s: \"%s\" has %s, which is no name of the model, or too long a list; save "
                           "the adapter again with names such as lm_head", where, key, ox_json_excerpt(value, text));
        }
        used += (size_t)snprintf(out + used, OX_LORA_TARGETS_BYTES - used, "%s%s", used == 0 ? "" : ",", name);
    }
    return OX_OK;
}

enum ox_status ox_hf_read_saved(const char *where, const json_t *json, struct ox_lora *out) {
    const json_t *const bias = json_object_get(json, "bias");
    const char *const name = json_string_value(bias);
    char text[OX_JSON_EXCERPT_BYTES];
    OX_TRY(ox_hf_read_names(where, json, "modules_to_save", out->modules_to_save));
    for (unsigned i = 0; i < sizeof bias_names / sizeof *bias_names; i++) {
        if (name == NULL ? i == OX_LORA_BIAS_NONE && bias == NULL : strcmp(name, bias_names[i]) == 0) {
            out->bias = (enum ox_lora_bias)i;
            return OX_OK;
        }
    }
    return ox_fail(OX_E_CONFIG, "%s: \"bias\" is %s; it must be none, all or lora_only", where,
                   ox_json_excerpt(bias, text));
}
