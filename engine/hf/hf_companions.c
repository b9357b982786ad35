/* Copies the small files that lie beside a model's weights. The folder may come from strangers, and what is copied is
 * passed on with the checkpoint: so of what a link leads to elsewhere only that is copied which the name promises, and
 * not a key or a password. */
#include "base/file.h"
#include "base/hash/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/hf/hf.h"

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COMPANION_MIB_MAX = 256, SKIPPED_BYTES = 600 }; /* a tokenizer.json is refused beyond that size, too */

static bool is_companion(const char *name) {
    static const char *const names[] = {
        "tokenizer.model",       "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json",
        "generation_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    const size_t bytes = strlen(name);
    return strncmp(name, "chat_template.", 14) == 0 ||
           (strncmp(name, "tokenizer", 9) == 0 && bytes >= 14 && strcmp(name + bytes - 5, ".json") == 0);
}

/* Whether `path` lies below the folder that is named by the first `bytes` of `folder` and by `name`. */
static bool lies_below(const char *path, const char *folder, size_t bytes, const char *name) {
    const size_t name_bytes = strlen(name);
    return strncmp(path, folder, bytes) == 0 && strncmp(path + bytes, name, name_bytes) == 0;
}

/* Whether a file belongs to a model folder: both are paths without links. A snapshot in the cache of Hugging Face holds
 * links to the folder "blobs" beside "snapshots". */
static bool belongs(const char *file, const char *folder) {
    static const char snapshots[] = "/snapshots/";
    const char *found = NULL;
    for (const char *at = folder; (at = strstr(at, snapshots)) != NULL; at++) {
        found = at;
    }
    return lies_below(file, folder, strlen(folder), "/") ||
           (found != NULL && lies_below(file, folder, (size_t)(found - folder), "/blobs/"));
}

/* A key that such an object has, of which `keys` is a list between blanks; with "#" every value is a number. */
static bool has_key_of(const json_t *object, const char *keys) {
    const char *key;
    json_t *value;
    bool all = json_object_size(object) > 0, any = false;
    json_object_foreach((json_t *)object, key, value) {
        char listed[64];
        snprintf(listed, sizeof listed, " %.60s ", key);
        all = all && json_is_integer(value);
        any = any || strstr(keys, listed) != NULL;
    }
    return strcmp(keys, "#") == 0 ? all : any;
}

static bool is_json_of(const char *name, const char *text, size_t bytes) {
    static const char tokens[] = " bos_token eos_token unk_token pad_token additional_special_tokens tokenizer_class "
                                 "chat_template model_max_length added_tokens_decoder add_bos_token ";
    static const struct {
        const char *name, *keys;
    } kinds[] = {{"tokenizer.json", " model "},           {"vocab.json", "#"},
                 {"added_tokens.json", "#"},              {"special_tokens_map.json", tokens},
                 {"chat_template.json", " chat_template "}, {"tokenizer_config.json", tokens},
                 {"generation_config.json", " transformers_version _from_model_config eos_token_id bos_token_id "
                                            "max_new_tokens temperature do_sample pad_token_id "}};
    json_t *json = NULL;
    bool fits = false;
    if (ox_json_parse(name, text, bytes, &json) != OX_OK) {
        return false;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        fits = fits || (strcmp(kinds[i].name, name) == 0 && has_key_of(json, kinds[i].keys));
    }
    json_decref(json);
    return fits;
}

/* Whether a file elsewhere holds what a file of this name does. */
static bool holds_its_kind(const char *name, const char *real) {
    static const char merge[] = "#version";
    char *text = NULL;
    size_t bytes = 0;
    if (ox_file_read(real, (size_t)COMPANION_MIB_MAX << 20, &text, &bytes) != OX_OK) {
        return false;
    }
    const size_t length = strlen(name), line = strcspn(text, "\n"), word = strcspn(text, " \n");
    const bool pair = word > 0 && word + 1 < line && memchr(text + word + 1, ' ', line - word - 1) == NULL;
    const bool fits =
        strcmp(name, "tokenizer.model") == 0 ? bytes > 1 && text[0] == '\n' /* the first field of a SentencePiece one */
        : strcmp(name, "merges.txt") == 0    ? strncmp(text, merge, sizeof merge - 1) == 0 || pair
        : strcmp(name + length - 5, ".json") == 0 ? is_json_of(name, text, bytes)
                                                  : strstr(text, "{{") != NULL || strstr(text, "{%") != NULL;
    free(text);
    return fits;
}

/* Why a file is not to be copied; NULL if nothing speaks against it. */
static const char *objection(const char *name, const char *real, const char *folder) {
    struct stat info;
    if (stat(real, &info) != 0 || access(real, R_OK) != 0) {
        return "cannot be read";
    }
    if (info.st_size > (off_t)COMPANION_MIB_MAX << 20) {
        return "larger than any such file";
    }
    const bool fits = belongs(real, folder) || holds_its_kind(name, real);
    return fits ? NULL : "a link that leads out of the folder, to something else";
}

static void add_skipped(char *skipped, const char *name, const char *why) {
    const size_t used = strlen(skipped);
    snprintf(skipped + used, SKIPPED_BYTES - used, "%s%.100s (%s)", used > 0 ? ", " : "", name, why);
}

/* Warns of what is not copied; of the same files once, because checkpoints follow each other. */
static void warn_skipped(const char *from, const char *skipped) {
    static atomic_uint_fast64_t told;
    const uint64_t hash = ox_hash64(skipped, strlen(skipped), ox_hash64(from, strlen(from), 0));
    if (skipped[0] != '\0' && atomic_exchange(&told, hash) != hash) {
        ox_log(OX_LOG_WARN, "%s: not copied beside the weights: %s; put the file itself there if the model needs it",
               from, skipped);
    }
}

static enum ox_status copy_one(const char *folder, const char *name, const char *to, char *skipped) {
    char source[OX_PATH_BYTES], target[OX_PATH_BYTES];
    enum ox_status status = ox_path_join(folder, name, source);
    OX_THEN(status, ox_path_join(to, name, target));
    if (status != OX_OK || ox_path_is_folder(source)) {
        return status;
    }
    char *const real = realpath(source, NULL);
    const char *const why = real == NULL ? "a link to nothing"
                            : ox_path_is_file(real) ? objection(name, real, folder) : "no regular file";
    if (why != NULL) {
        add_skipped(skipped, name, why);
    } else {
        status = ox_file_copy(real, target);
    }
    free(real);
    return status;
}

/* Copies the files of a folder that `fits` names. */
static enum ox_status copy_all(const char *from, const char *to, bool (*fits)(const char *name)) {
    char skipped[SKIPPED_BYTES] = "";
    char *const folder = realpath(from, NULL);
    DIR *const list = folder != NULL ? opendir(folder) : NULL;
    enum ox_status status = OX_OK;
    if (list == NULL) {
        status = ox_fail_errno(OX_E_CONFIG, errno, "%s: cannot open the folder", from);
        free(folder);
        return status;
    }
    for (const char *name = ""; status == OX_OK && name != NULL;) {
        status = ox_folder_next(list, from, &name);
        if (status == OX_OK && name != NULL && fits(name)) {
            status = copy_one(folder, name, to, skipped);
        }
    }
    closedir(list);
    free(folder);
    warn_skipped(from, skipped);
    return status;
}

enum ox_status ox_hf_copy_companions(const char *from, const char *to) {
    return copy_all(from, to, is_companion);
}

static bool is_template(const char *name) {
    const size_t bytes = strlen(name);
    return name[0] != '.' && bytes > 6 && strcmp(name + bytes - 6, ".jinja") == 0;
}

enum ox_status ox_hf_copy_templates(const char *from, const char *to) {
    char source[OX_PATH_BYTES], target[OX_PATH_BYTES];
    enum ox_status status = ox_path_join(from, OX_HF_TEMPLATES, source);
    OX_THEN(status, ox_path_join(to, OX_HF_TEMPLATES, target));
    if (status != OX_OK || !ox_path_is_folder(source)) {
        return status;
    }
    status = ox_folder_make(target);
    return status == OX_OK ? copy_all(source, target, is_template) : status;
}
