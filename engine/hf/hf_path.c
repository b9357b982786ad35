/* Says of a path that is no model folder what it is, and what to do instead. */
#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "base/name/name.h"
#include "engine/hf/hf.h"
#include "engine/hf/shapes.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { START_BYTES = 512, JSON_BYTES_MAX = 64 << 20, NAME_BYTES = 200 };

/* ---- names of the hub -------------------------------------------------------------------------------------------- */

/* Writes to `name` the name that a path may have on the Hugging Face hub, OWNER/NAME or NAME, which an address may
 * contain; false if it has none. */
static bool hub_name(const char *path, char name[NAME_BYTES]) {
    static const char *const addresses[] = {"https://huggingface.co/", "http://huggingface.co/", "huggingface.co/",
                                            "https://hf.co/", "hf://"};
    static const char *const endings[] = {".json", ".safetensors", ".gguf", ".bin", ".pt", ".pth", ".yaml", ".txt"};
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        if (strncmp(path, addresses[i], strlen(addresses[i])) == 0) {
            path += strlen(addresses[i]);
            const char *const slash = strchr(path, '/');
            const size_t owner = slash != NULL ? (size_t)(slash - path) + 1 : 0;
            snprintf(name, NAME_BYTES, "%.*s", (int)(owner + strcspn(path + owner, "/?#")), path);
            return name[0] != '\0';
        }
    }
    int slashes = 0;
    for (const char *at = path; *at != '\0'; at++) {
        slashes += *at == '/';
        if (!isalnum((unsigned char)*at) && strchr("._-/", *at) == NULL) {
            return false;
        }
    }
    const size_t bytes = strlen(path);
    bool fits = bytes > 1 && bytes < NAME_BYTES && slashes <= 1 && isalnum((unsigned char)path[0]) &&
                path[bytes - 1] != '/';
    for (size_t i = 0; i < sizeof endings / sizeof *endings && fits; i++) {
        const size_t length = strlen(endings[i]);
        fits = bytes < length || strcmp(path + bytes - length, endings[i]) != 0;
    }
    snprintf(name, NAME_BYTES, "%s", fits ? path : "");
    return fits;
}

enum ox_status ox_hf_fail_missing(const char *flag, const char *path, const char *wanted) {
    char near[OX_PATH_BYTES];
    ox_name_near_path(path, near, sizeof near);
    return near[0] != '\0'
               ? ox_fail(OX_E_CONFIG, "%s %s: there is no such file or folder; did you mean %s?", flag, path, near)
               : ox_fail(OX_E_CONFIG, "%s %s: there is no such file or folder; give %s", flag, path, wanted);
}

enum ox_status ox_hf_check_path(const char *flag, const char *path) {
    char name[NAME_BYTES], near[OX_PATH_BYTES], names[OX_SHAPE_NAMES_BYTES];
    int fd_unused = -1;
    uint64_t bytes = 0;
    if (ox_path_is_folder(path) || ox_path_is_file(path)) {
        return OX_OK;
    }
    if (ox_path_exists(path)) { /* a link to nothing, or a device */
        const enum ox_status status = ox_file_open_input(path, &fd_unused, &bytes);
        return ox_fail_in(status, "%s", flag);
    }
    const bool is_model = strcmp(flag, "--model") == 0;
    const char *const wanted = is_model ? "a folder of Hugging Face files" : "a folder with tokenizer.json";
    if (is_model && ox_hf_is_shape(path)) {
        return ox_fail(OX_E_CONFIG, "--model %s: there is no such folder; `offload plan` alone takes this name of a "
                       "shape; for fresh weights: offload init --like %s --output DIR, then --model DIR", path, path);
    }
    const bool is_within = ox_name_near_path(path, near, sizeof near);
    if (near[0] != '\0' || !hub_name(path, name) || is_within) {
        return ox_hf_fail_missing(flag, path, wanted);
    }
    const struct ox_known_shape *const shape = is_model ? ox_shape_near(path) : NULL;
    if (shape != NULL) {
        return ox_fail(OX_E_CONFIG, "--model %s: there is no such file or folder; did you mean %s, a shape that "
                       "`offload plan` takes? Else give %s", path, shape->name, wanted);
    }
    if (is_model && ox_shape_is_kin(path)) {
        return ox_fail(OX_E_CONFIG, "--model %s: there is no such file or folder; give %s, or to `offload plan` the "
                       "name of a shape: %s", path, wanted, ox_shape_names(names));
    }
    const char *const slash = strchr(name, '/'), *const own = slash != NULL ? slash + 1 : name;
    const struct ox_known_shape *const same = is_model && slash != NULL ? ox_shape_find(own) : NULL;
    return ox_fail(OX_E_CONFIG, "%s %s: there is no such file or folder; give %s; if that is a name on the Hugging "
                   "Face hub, download it first: hf download %s --local-dir %s, then %s %s%s%s%s", flag, path, wanted,
                   name, own, flag, own, same != NULL ? "; `offload plan --model " : "", same != NULL ? same->name : "",
                   same != NULL ? "` needs no files" : "");
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* What a JSON file is, by a key that it has. */
static const char *json_kind(const char *path) {
    static const struct {
        const char *key, *kind;
    } kinds[] = {{"weight_map", "the index of weights"},      {"added_tokens_decoder", "the settings of a tokenizer"},
                 {"tokenizer_class", "the settings of a tokenizer"}, {"run_id", "part of a run"},
                 {"added_tokens", "a tokenizer"},             {"peft_type", "the configuration of an adapter"},
                 {"max_new_tokens", "settings of generation"}, {"_from_model_config", "settings of generation"}};
    json_t *json = NULL;
    const char *kind = NULL;
    if (ox_json_load(path, JSON_BYTES_MAX, &json) != OX_OK) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && kind == NULL; i++) {
        kind = json_object_get(json, kinds[i].key) != NULL && json_object_get(json, "model_type") == NULL
                   ? kinds[i].kind : NULL;
    }
    json_decref(json);
    return kind;
}

/* What a file is by its first bytes, or as JSON; NULL if it may be a config.json, or is not known. */
static const char *file_kind(const char *path) {
    unsigned char start[START_BYTES + 1] = {0};
    uint64_t bytes = 0;
    if (ox_file_read_start(path, start, START_BYTES, &bytes) != OX_OK) {
        return NULL;
    }
    const bool is_pickle = start[0] == 0x80 && start[1] >= 2 && start[1] <= 5;
    return bytes > 8 && start[7] == 0 && start[8] == '{' ? "weights (safetensors)"
           : memcmp(start, "GGUF", 4) == 0                ? "a model for llama.cpp (GGUF), which is not read; give the "
                                                            "folder of Hugging Face files that it was made of"
           : memcmp(start, "PK\3\4", 4) == 0 || is_pickle ? "weights of PyTorch, which are not read; save the model "
                                                            "with save_pretrained of transformers, and give that folder"
           : strstr((const char *)start, "\"added_tokens\"") != NULL
               ? "a tokenizer" /* which may have more values than ox_json_load reads */
               : json_kind(path);
}

/* The folder of a file; "." for a plain name. */
static void folder_of(const char *path, char folder[OX_PATH_BYTES]) {
    const char *const slash = strrchr(path, '/');
    const int bytes = slash == NULL ? 0 : slash == path ? 1 : (int)(slash - path);
    snprintf(folder, OX_PATH_BYTES, "%.*s", bytes > 0 ? bytes : 1, bytes > 0 ? path : ".");
}

enum ox_status ox_hf_check_file(const char *path, bool weights) {
    char folder[OX_PATH_BYTES];
    const char *const kind = ox_path_is_file(path) ? file_kind(path) : NULL;
    folder_of(path, folder);
    if (kind != NULL && strchr(kind, ';') != NULL) { /* it has its remedy */
        return ox_fail(OX_E_CONFIG, "%.600s: is %s", path, kind);
    }
    if (kind != NULL) {
        return ox_fail(OX_E_CONFIG, "%.600s: is %s; name its folder, which has config.json and weights: %.300s", path,
                       kind, folder);
    }
    return weights && ox_path_is_file(path)
               ? ox_fail(OX_E_CONFIG, "%.600s: is a file without weights; name its folder, which has config.json and "
                         "weights: %.300s", path, folder)
               : OX_OK;
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

bool ox_hf_has_weight_files(const char *folder) {
    return ox_folder_has(folder, "model.safetensors") || ox_folder_has(folder, "model.safetensors.index.json");
}

enum ox_status ox_hf_check_folder(const char *folder) {
    static const char *const others[] = {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth",
                                         "tf_model.h5", "flax_model.msgpack"};
    if (!ox_folder_has(folder, "config.json") && ox_folder_has(folder, "snapshots") && ox_folder_has(folder, "blobs")) {
        return ox_fail(OX_E_CONFIG, "%s: is a model in the cache of the Hugging Face hub; name the folder of its "
                       "version, below %s/snapshots", folder, folder);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (ox_folder_has(folder, others[i]) && !ox_hf_has_weight_files(folder)) {
            return ox_fail(OX_E_CONFIG, "%.300s: holds %s, but neither model.safetensors nor "
                           "model.safetensors.index.json; transformers makes them: python3 -c 'from transformers "
                           "import AutoModelForCausalLM as M; M.from_pretrained(\"%.150s\")"
                           ".save_pretrained(\"%.150s\")'", folder, others[i], folder, folder);
        }
    }
    return OX_OK;
}
