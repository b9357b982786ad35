/* Opens a tokenizer from its files and answers questions about it. */
#include "engine/text/tokenizer_internal.h"

#include "base/file.h"
#include "base/hash/hash.h"
#include "base/hash/listed.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FILE_BYTES_MAX = 256 << 20,
    CONFIG_BYTES_MAX = 16 << 20,
    ADDED_BYTES_MAX = 4096,
    RULES_VERSION = 2, /* part of the fingerprint; raise it when this code changes the ids of some text */
};

/* ---- added tokens -------------------------------------------------------------------------------------------- */

/* The hash slot of the text, or the empty slot where it belongs. */
static uint64_t added_slot(const struct ox_tokenizer *tokenizer, const char *text, size_t bytes) {
    uint64_t slot = ox_hash64(text, bytes, 0) & tokenizer->added_mask;
    while (tokenizer->added_slots[slot] != 0) {
        const struct ox_added_token *const token = &tokenizer->added[tokenizer->added_slots[slot] - 1];
        if (token->bytes == bytes && memcmp(token->text, text, bytes) == 0) {
            break;
        }
        slot = (slot + 1) & tokenizer->added_mask;
    }
    return slot;
}

static enum ox_status read_added(const char *where, const json_t *json, struct ox_added_token *token, uint64_t *id) {
    const struct {
        const char *key;
        bool *value;
    } flags[] = {
        {"single_word", &token->single_word}, {"lstrip", &token->lstrip},   {"rstrip", &token->rstrip},
        {"normalized", &token->normalized},   {"special", &token->special},
    };
    const char *text = NULL;
    enum ox_status status = ox_json_get_string(where, json, "content", true, &text);
    OX_THEN(status, ox_json_get_u64(where, json, "id", true, id));
    for (size_t i = 0; i < sizeof flags / sizeof *flags && status == OX_OK; i++) {
        status = ox_json_get_bool(where, json, flags[i].key, true, flags[i].value);
    }
    if (status != OX_OK) {
        return ox_fail_in(status, "added_tokens");
    }
    token->bytes = strlen(text);
    if (token->bytes > ADDED_BYTES_MAX) {
        return ox_fail(OX_E_CONFIG, "%s: an added token has %zu bytes, but the limit is %d", where, token->bytes,
                       ADDED_BYTES_MAX);
    }
    token->text = strdup(text);
    return token->text == NULL ? ox_fail(OX_E_NOMEM, "%s: no memory for the added tokens", where) : OX_OK;
}

static bool same_flags(const struct ox_added_token *a, const struct ox_added_token *b) {
    return a->single_word == b->single_word && a->lstrip == b->lstrip && a->rstrip == b->rstrip &&
           a->normalized == b->normalized && a->special == b->special;
}

/* Puts a token with these flags into the search that they mean. Once a token is special, it stays where it is. */
static void add_search(struct ox_added_token *token, bool special, bool normalized) {
    if (!token->special) {
        token->searches |= special ? (normalized ? OX_FIND_SPECIAL_LATE : OX_FIND_SPECIAL)
                                   : (normalized ? OX_FIND_OTHER_LATE : OX_FIND_OTHER);
        token->special = special;
    }
    token->normalized = (token->searches & (OX_FIND_SPECIAL_LATE | OX_FIND_OTHER_LATE)) != 0;
}

/* The id of a token that is to be added: its own in the vocabulary, else the next free one. */
static int64_t id_for(const struct ox_tokenizer *tokenizer, const struct ox_added_token *token, int64_t id_max) {
    const int64_t own = ox_bpe_find(&tokenizer->bpe, token->text, token->bytes);
    const int64_t count = tokenizer->bpe.token_count;
    return own >= 0 ? own : id_max >= count ? id_max + 1 : count;
}

/* Keeps the token at index added_count, or drops it if it repeats an earlier one. The original gives a token that is
 * not in the vocabulary the next free id and ignores the id in the file. A file with another id is refused, because
 * readers of it would disagree. */
static enum ox_status keep_added(const char *where, struct ox_tokenizer *tokenizer, uint64_t id, int64_t *id_max) {
    struct ox_added_token *const token = &tokenizer->added[tokenizer->added_count];
    const uint64_t slot = added_slot(tokenizer, token->text, token->bytes);
    const uint32_t known = tokenizer->added_slots[slot];
    if (known != 0 && !same_flags(token, &tokenizer->added[known - 1])) {
        return ox_fail(OX_E_CONFIG, "%s: the added token \"%.80s\" is listed twice with different flags; remove one",
                       where, token->text);
    }
    if (known != 0 || token->bytes == 0) {
        free(token->text);
        memset(token, 0, sizeof *token);
        return OX_OK;
    }
    const int64_t expected = id_for(tokenizer, token, *id_max);
    if (id != (uint64_t)expected || expected >= OX_TOK_ID_LIMIT) {
        return ox_fail(
            OX_E_CONFIG,
            "%s: the added token \"%.80s\" has the id %llu, but its position means %lld; number the added tokens "
            "in order, starting after the vocabulary",
            where, token->text, (unsigned long long)id, (long long)expected);
    }
    token->id = (uint32_t)id;
    *id_max = expected > *id_max ? expected : *id_max;
    tokenizer->added_slots[slot] = ++tokenizer->added_count;
    const bool special = token->special;
    token->special = false;
    add_search(token, special, token->normalized);
    return OX_OK;
}

/* Notes in the fingerprint what a file beside tokenizer.json has changed. */
static void note_change(struct ox_tokenizer *tokenizer, const struct ox_added_token *token) {
    const uint64_t words[] = {tokenizer->fingerprint, ox_hash64(token->text, token->bytes, token->id), token->searches,
                              token->single_word, token->lstrip, token->rstrip};
    tokenizer->fingerprint = ox_hash_seed(words, sizeof words / sizeof *words);
}

/* Adds a token of a file beside, or gives a known one its flags. Takes its text if it is new. */
static enum ox_status add_beside(const char *where, struct ox_tokenizer *tokenizer, struct ox_tok_beside_token *beside,
                                 int64_t *id_max) {
    struct ox_added_token *const token = &beside->token;
    const uint64_t slot = added_slot(tokenizer, token->text, token->bytes);
    const uint32_t known = tokenizer->added_slots[slot];
    struct ox_added_token *const kept = &tokenizer->added[known != 0 ? known - 1 : tokenizer->added_count];
    const int64_t id = known != 0 ? (int64_t)kept->id : id_for(tokenizer, token, *id_max);
    if (known != 0 && same_flags(token, kept)) {
        return OX_OK;
    }
    if (id >= OX_TOK_ID_LIMIT) {
        return ox_fail(OX_E_CONFIG, "%s: the added token \"%.80s\" would get the id %lld, more than any model knows",
                       where, token->text, (long long)id);
    }
    if (beside->id >= 0 && beside->id != id) {
        ox_log(OX_LOG_WARN, "%s: the added token \"%.80s\" is listed with the id %lld, but gets %lld, as in "
               "transformers: ids of added tokens follow the vocabulary, one after the other", where, token->text,
               (long long)beside->id, (long long)id);
    }
    if (known == 0) {
        *kept = (struct ox_added_token){.text = token->text, .bytes = token->bytes, .id = (uint32_t)id};
        token->text = NULL;
        *id_max = id > *id_max ? id : *id_max;
        tokenizer->added_slots[slot] = ++tokenizer->added_count;
    }
    kept->single_word = token->single_word;
    kept->lstrip = token->lstrip;
    kept->rstrip = token->rstrip;
    add_search(kept, token->special, token->normalized);
    note_change(tokenizer, kept);
    return OX_OK;
}

/* Adds the tokens of the list in tokenizer.json, then those of the files beside. */
static enum ox_status load_added(const char *where, const json_t *list, struct ox_tok_beside *beside,
                                 struct ox_tokenizer *tokenizer) {
    const size_t count = json_array_size(list), room = count + beside->count;
    if (list != NULL && !json_is_array(list)) {
        return ox_fail(OX_E_CONFIG, "%s: \"added_tokens\" must be a list", where);
    }
    size_t slots = 16;
    while (slots < 2 * room + 2) {
        slots *= 2;
    }
    tokenizer->added_mask = slots - 1;
    tokenizer->added = calloc(room + 1, sizeof *tokenizer->added);
    tokenizer->added_slots = calloc(slots, sizeof *tokenizer->added_slots);
    if (tokenizer->added == NULL || tokenizer->added_slots == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for the added tokens", where);
    }
    int64_t id_max = -1;
    for (size_t i = 0; i < count; i++) {
        uint64_t id = 0;
        enum ox_status status =
            read_added(where, json_array_get(list, i), &tokenizer->added[tokenizer->added_count], &id);
        OX_THEN(status, keep_added(where, tokenizer, id, &id_max));
        if (status != OX_OK) {
            free(tokenizer->added[tokenizer->added_count].text);
            return status;
        }
    }
    for (size_t i = 0; i < beside->count; i++) {
        const enum ox_status status = add_beside(beside->where, tokenizer, &beside->tokens[i], &id_max);
        if (status != OX_OK) {
            return status;
        }
    }
    const uint32_t above = (uint32_t)(id_max + 1);
    tokenizer->vocab_count = above > tokenizer->bpe.id_count ? above : tokenizer->bpe.id_count;
    tokenizer->added_by_id = calloc(tokenizer->vocab_count, sizeof *tokenizer->added_by_id);
    if (tokenizer->added_by_id == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for the added tokens", where);
    }
    for (uint32_t i = 0; i < tokenizer->added_count; i++) {
        tokenizer->added_by_id[tokenizer->added[i].id] = i + 1;
    }
    return OX_OK;
}

static enum ox_status add_late(const char *where, struct ox_tokenizer *tokenizer, struct ox_normal_scratch *work,
                               uint32_t index) {
    const struct ox_added_token *const token = &tokenizer->added[index];
    const char *text = NULL;
    size_t bytes = 0;
    enum ox_status status = ox_tok_normalize(&tokenizer->normalizer, work, token->text, token->bytes, &text, &bytes);
    if (status == OX_OK && bytes == 0) {
        status = ox_fail(OX_E_CONFIG, "%s: the normalizer removes all of the added token \"%.80s\"", where,
                         token->text);
    }
    return status == OX_OK ? ox_trie_add(&tokenizer->normalized, text, bytes, index) : status;
}

/* Fills the two tries, special tokens first: if two tokens have the same text, the trie keeps the first. */
static enum ox_status build_tries(const char *where, struct ox_tokenizer *tokenizer) {
    struct ox_normal_scratch work = {0};
    enum ox_status status = ox_matcher_open(&work.matcher);
    for (uint32_t i = 0; i < 2 * tokenizer->added_count && status == OX_OK; i++) {
        const bool special = i < tokenizer->added_count;
        const uint32_t index = i % tokenizer->added_count;
        const struct ox_added_token *const token = &tokenizer->added[index];
        if ((token->searches & (special ? OX_FIND_SPECIAL : OX_FIND_OTHER)) != 0) {
            status = ox_trie_add(&tokenizer->raw, token->text, token->bytes, index);
        }
        if ((token->searches & (special ? OX_FIND_SPECIAL_LATE : OX_FIND_OTHER_LATE)) != 0) {
            OX_THEN(status, add_late(where, tokenizer, &work, index));
        }
    }
    ox_normal_scratch_close(&work);
    return status;
}

/* ---- the files ----------------------------------------------------------------------------------------------- */

static bool ends_with(const char *path, const char *ending) {
    const size_t bytes = strlen(path), length = strlen(ending);
    return bytes >= length && strcmp(path + bytes - length, ending) == 0;
}

static enum ox_status fail_other(const char *path) {
    return ox_fail(OX_E_CONFIG, "%s: is another file of a model than its tokenizer.json, which is what is read; give "
                   "that, or its folder; save_pretrained of transformers makes it of a tokenizer.model, or of a "
                   "vocab.json with merges.txt", path);
}

/* Reads the tokenizer.json at `path`, and the tokens that the files of `folder` add. */
static enum ox_status load_tokenizer(const char *path, const char *folder, struct ox_tok_beside *beside,
                                     struct ox_tokenizer *tokenizer) {
    char *text = NULL;
    size_t bytes = 0;
    json_t *json = NULL;
    bool byte_level = false;
    enum ox_status status = ox_file_read(path, FILE_BYTES_MAX, &text, &bytes);
    if (status != OX_OK) {
        return status;
    }
    tokenizer->fingerprint = ox_hash64(text, bytes, RULES_VERSION);
    const bool is_other = ends_with(path, ".model") || ends_with(path, "merges.txt");
    status = is_other ? fail_other(path) : ox_json_parse(path, text, bytes, &json);
    free(text);
    if (status == OX_OK && json_is_object(json) && json_object_get(json, "model") == NULL &&
        !ends_with(path, "tokenizer.json")) {
        status = fail_other(path);
    }
    if (status == OX_OK && !json_is_object(json)) {
        status = ox_fail(OX_E_CONFIG, "%s: not a JSON object; give a tokenizer.json", path);
    }
    OX_THEN(status, ox_tok_normalizer_open(path, json_object_get(json, "normalizer"), &tokenizer->normalizer));
    OX_THEN(status, ox_tok_pre_open(path, json_object_get(json, "pre_tokenizer"), &tokenizer->pre, &byte_level));
    if (status == OX_OK) {
        const json_t *const decoder = json_object_get(json, "decoder");
        tokenizer->has_decoder = decoder != NULL && !json_is_null(decoder);
        status = ox_tok_decoder_open(path, decoder, &tokenizer->decoder);
    }
    OX_THEN(status, ox_tok_post_open(path, json_object_get(json, "post_processor"), &tokenizer->post));
    OX_THEN(status, ox_bpe_open(path, json_object_get(json, "model"), byte_level, &tokenizer->bpe));
    OX_THEN(status, ox_tok_beside_open(folder, json_object_get(json, "added_tokens"), beside));
    OX_THEN(status, load_added(path, json_object_get(json, "added_tokens"), beside, tokenizer));
    OX_THEN(status, build_tries(path, tokenizer));
    json_decref(json);
    return status;
}

/* Finds a token that is named by its text or by an object with "content"; *id is -1 if none is named. */
static void named_token(const struct ox_tokenizer *tokenizer, const json_t *config, const char *key, int64_t *id) {
    const json_t *value = json_object_get(config, key);
    const char *const text = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
    *id = text != NULL ? ox_tokenizer_find(tokenizer, text, strlen(text)) : -1;
}

/* Reads an id from config.json, the only place where older folders name the token: a number, or a list whose first
 * element is used. */
static void numbered_token(const struct ox_tokenizer *tokenizer, const json_t *config, const char *key, int64_t *id) {
    const json_t *value = json_object_get(config, key);
    value = json_is_array(value) ? json_array_get(value, 0) : value;
    if (*id < 0 && json_is_integer(value) && json_integer_value(value) >= 0 &&
        json_integer_value(value) < (json_int_t)tokenizer->vocab_count) {
        *id = json_integer_value(value);
    }
}

static enum ox_status set_ids(struct ox_ids *ids, bool one, int64_t id) {
    ids->count = 0;
    return one && id >= 0 ? ox_ids_add(ids, id) : OX_OK;
}

/* If the file has add_bos_token or add_eos_token, the two replace what the post-processor adds. */
static enum ox_status load_flags(const char *where, const json_t *config, struct ox_tokenizer *tokenizer) {
    bool bos = false;
    bool eos = false;
    enum ox_status status = ox_json_get_bool(where, config, "add_bos_token", false, &bos);
    OX_THEN(status, ox_json_get_bool(where, config, "add_eos_token", false, &eos));
    if (json_is_boolean(json_object_get(config, "add_bos_token")) ||
        json_is_boolean(json_object_get(config, "add_eos_token"))) {
        OX_THEN(status, set_ids(&tokenizer->post.before, bos, tokenizer->bos));
        OX_THEN(status, set_ids(&tokenizer->post.after, eos, tokenizer->eos));
    }
    return status;
}

/* Finds BOS and EOS, and what is added around a text. */
static enum ox_status load_ends(const char *folder, const struct ox_tok_beside *beside,
                                struct ox_tokenizer *tokenizer) {
    char path[OX_PATH_BYTES];
    named_token(tokenizer, beside->config, "bos_token", &tokenizer->bos);
    named_token(tokenizer, beside->config, "eos_token", &tokenizer->eos);
    named_token(tokenizer, beside->config, "pad_token", &tokenizer->pad);
    enum ox_status status = load_flags(beside->where, beside->config, tokenizer);
    OX_THEN(status, ox_path_join(folder, "config.json", path));
    if (status == OX_OK && ox_path_exists(path) && (tokenizer->bos < 0 || tokenizer->eos < 0)) {
        json_t *config = NULL;
        status = ox_json_load(path, CONFIG_BYTES_MAX, &config);
        numbered_token(tokenizer, config, "bos_token_id", &tokenizer->bos);
        numbered_token(tokenizer, config, "eos_token_id", &tokenizer->eos);
        json_decref(config);
    }
    return status;
}

/* Refuses a post-processor that adds an id without a token. */
static enum ox_status check_post(const char *path, const struct ox_tokenizer *tokenizer) {
    const struct ox_ids *const lists[] = {&tokenizer->post.before, &tokenizer->post.after};
    for (int i = 0; i < 2; i++) {
        for (size_t j = 0; j < lists[i]->count; j++) {
            if (ox_tokenizer_token(tokenizer, (uint32_t)lists[i]->ids[j]) == NULL) {
                return ox_fail(OX_E_CONFIG, "%s: the post_processor adds the id %d, which is not a token", path,
                               (int)lists[i]->ids[j]);
            }
        }
    }
    return OX_OK;
}

/* Finds the tokenizer.json and its folder; `file` and `folder` have room for a path. */
static enum ox_status find_files(const char *path, char *file, char *folder) {
    char missing[OX_TOKENIZER_MISSING_BYTES];
    if (ox_path_is_folder(path)) {
        memcpy(folder, path, strlen(path) + 1); /* it exists, so it is not too long */
        const enum ox_status status = ox_path_join(path, "tokenizer.json", file);
        return status != OX_OK || ox_path_exists(file)
                   ? status
                   : ox_fail(OX_E_CONFIG, "%.1000s: %s; give a folder with one, or the file, by --tokenizer", path,
                             ox_tokenizer_missing(path, missing));
    }
    const char *const slash = strrchr(path, '/');
    const size_t bytes = slash == NULL ? 0 : (size_t)(slash - path) + 1;
    if (strlen(path) >= OX_PATH_BYTES) {
        return ox_fail(OX_E_CONFIG, "the path of the tokenizer is too long");
    }
    memcpy(file, path, strlen(path) + 1);
    memcpy(folder, bytes > 0 ? path : ".", bytes > 0 ? bytes : 1);
    folder[bytes > 0 ? bytes : 1] = '\0';
    return OX_OK;
}

/* ---- public -------------------------------------------------------------------------------------------------- */

bool ox_tokenizer_has_parts(const char *folder) {
    static const char *const names[] = {"tokenizer_config.json", "tokenizer.model", "vocab.json", "tekken.json",
                                        "special_tokens_map.json", "added_tokens.json"};
    bool has = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        has = has || ox_folder_has(folder, names[i]);
    }
    return has;
}

const char *ox_tokenizer_missing(const char *folder, char text[OX_TOKENIZER_MISSING_BYTES]) {
    static const struct {
        const char *name, *with;
    } others[] = {{"tokenizer.model", ""}, {"vocab.json", " and merges.txt"}, {"tekken.json", ""},
                  {"spiece.model", ""}};
    snprintf(text, OX_TOKENIZER_MISSING_BYTES, "has no tokenizer.json");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (ox_folder_has(folder, others[i].name)) {
            snprintf(text, OX_TOKENIZER_MISSING_BYTES, "has %s%s, but no tokenizer.json, which is what is read; "
                     "transformers makes it: python3 -c 'from transformers import AutoTokenizer as T; "
                     "T.from_pretrained(\"%.200s\").save_pretrained(\"%.200s\")'", others[i].name, others[i].with,
                     folder, folder);
            break;
        }
    }
    return text;
}

enum ox_status ox_tokenizer_open(const char *path, struct ox_tokenizer **out) {
    char file[OX_PATH_BYTES], folder[OX_PATH_BYTES];
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_tok_beside beside = {0};
    enum ox_status status = find_files(path, file, folder);
    if (status != OX_OK) {
        return status;
    }
    tokenizer = calloc(1, sizeof *tokenizer);
    if (tokenizer == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for the tokenizer", path);
    }
    ox_path_warn_shared(path);
    tokenizer->bos = tokenizer->eos = -1;
    status = ox_listed_verify_small(folder);
    OX_THEN(status, load_tokenizer(file, folder, &beside, tokenizer));
    OX_THEN(status, load_ends(folder, &beside, tokenizer));
    OX_THEN(status, check_post(file, tokenizer));
    ox_tok_beside_close(&beside);
    if (status != OX_OK) {
        ox_tokenizer_close(&tokenizer);
        return status;
    }
    const struct ox_ids *const before = &tokenizer->post.before;
    const struct ox_ids *const after = &tokenizer->post.after;
    if (tokenizer->bos < 0 && before->count == 1) {
        tokenizer->bos = before->ids[0];
    }
    tokenizer->adds_bos = before->count > 0 && before->ids[0] == tokenizer->bos;
    const uint64_t words[] = {tokenizer->fingerprint, ox_hash64(before->ids, before->count * sizeof *before->ids, 0),
                              ox_hash64(after->ids, after->count * sizeof *after->ids, 0)};
    tokenizer->fingerprint = ox_hash_seed(words, sizeof words / sizeof *words);
    *out = tokenizer;
    return OX_OK;
}

enum ox_status ox_tokenizer_open_cutter(const json_t *pre_tokenizer, struct ox_tokenizer **out) {
    static const char where[] = "pre-tokenizer";
    struct ox_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    json_t *const model = json_pack("{s:s, s:{s:i}, s:[]}", "type", "BPE", "vocab", "a", 0, "merges"); /* not used */
    bool byte_level = false;
    enum ox_status status =
        tokenizer != NULL && model != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "no memory for a pre-tokenizer");
    OX_THEN(status, ox_tok_pre_open(where, pre_tokenizer, &tokenizer->pre, &byte_level));
    OX_THEN(status, ox_bpe_open(where, model, byte_level, &tokenizer->bpe));
    json_decref(model);
    if (status != OX_OK) {
        ox_tokenizer_close(&tokenizer);
    }
    *out = tokenizer;
    return status;
}

void ox_tokenizer_close(struct ox_tokenizer **tokenizer) {
    struct ox_tokenizer *const t = *tokenizer;
    if (t == NULL) {
        return;
    }
    ox_bpe_close(&t->bpe);
    ox_tok_steps_close(&t->normalizer);
    ox_tok_steps_close(&t->pre);
    ox_tok_steps_close(&t->decoder);
    ox_ids_free(&t->post.before);
    ox_ids_free(&t->post.after);
    for (uint32_t i = 0; i < t->added_count; i++) {
        free(t->added[i].text);
    }
    free(t->added);
    free(t->added_by_id);
    free(t->added_slots);
    ox_trie_free(&t->raw);
    ox_trie_free(&t->normalized);
    free(t);
    *tokenizer = NULL;
}

uint32_t ox_tokenizer_vocab_count(const struct ox_tokenizer *tokenizer) {
    return tokenizer->vocab_count;
}

int64_t ox_tokenizer_bos(const struct ox_tokenizer *tokenizer) {
    return tokenizer->bos;
}

int64_t ox_tokenizer_eos(const struct ox_tokenizer *tokenizer) {
    return tokenizer->eos;
}

int64_t ox_tokenizer_pad(const struct ox_tokenizer *tokenizer) {
    return tokenizer->pad;
}

bool ox_tokenizer_adds_bos(const struct ox_tokenizer *tokenizer) {
    return tokenizer->adds_bos;
}

int64_t ox_tokenizer_find(const struct ox_tokenizer *tokenizer, const char *text, size_t bytes) {
    const uint32_t index = tokenizer->added_slots[added_slot(tokenizer, text, bytes)];
    return index != 0 ? (int64_t)tokenizer->added[index - 1].id : ox_bpe_find(&tokenizer->bpe, text, bytes);
}

const char *ox_tokenizer_token(const struct ox_tokenizer *tokenizer, uint32_t id) {
    if (id >= tokenizer->vocab_count) {
        return NULL;
    }
    if (tokenizer->added_by_id[id] != 0) {
        return tokenizer->added[tokenizer->added_by_id[id] - 1].text;
    }
    const struct ox_bpe *const bpe = &tokenizer->bpe;
    return id < bpe->id_count && bpe->text_begin[id] != UINT32_MAX ? bpe->texts.data + bpe->text_begin[id] : NULL;
}

bool ox_tokenizer_is_special(const struct ox_tokenizer *tokenizer, uint32_t id) {
    return id < tokenizer->vocab_count && tokenizer->added_by_id[id] != 0 &&
           tokenizer->added[tokenizer->added_by_id[id] - 1].special;
}

uint64_t ox_tokenizer_fingerprint(const struct ox_tokenizer *tokenizer) {
    return tokenizer->fingerprint;
}
