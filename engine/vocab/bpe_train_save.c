/* Writes what a BPE trainer has learned as the files that transformers reads. */
#include "engine/vocab/bpe_train_internal.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

static json_t *token_text(const struct ox_bpe_trainer *trainer, uint32_t id) {
    const size_t begin = trainer->token_begin[id];
    return json_stringn(trainer->tokens.data + begin, trainer->token_begin[id + 1] - begin);
}

/* False where there is no memory. */
static bool add_vocabulary(const struct ox_bpe_trainer *trainer, json_t *vocab) {
    bool done = vocab != NULL;
    for (uint32_t id = 0; id < trainer->token_count && done; id++) {
        json_t *const text = token_text(trainer, id);
        done = text != NULL && json_object_set_new(vocab, json_string_value(text), json_integer(id)) == 0;
        json_decref(text);
    }
    return done;
}

static int by_pair_then_rank(const void *a, const void *b) {
    const uint64_t *const p = a, *const q = b;
    return p[0] != q[0] ? (p[0] < q[0] ? -1 : 1) : p[1] < q[1] ? -1 : p[1] > q[1];
}

/* Sets kept[rank]. A pair that was merged twice counts at its later place, as in the original, whose map of merges
 * keeps the last one. */
static enum ox_status find_last(const struct ox_bpe_trainer *trainer, bool *kept) {
    const size_t count = trainer->merge_count;
    uint64_t(*const sorted)[2] = malloc((count + 1) * sizeof *sorted);
    if (sorted == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to write a tokenizer");
    }
    for (size_t i = 0; i < count; i++) {
        sorted[i][0] = (uint64_t)trainer->merges[i].left << 32 | trainer->merges[i].right;
        sorted[i][1] = i;
    }
    qsort(sorted, count, sizeof *sorted, by_pair_then_rank);
    for (size_t i = 0; i < count; i++) {
        kept[sorted[i][1]] = i + 1 == count || sorted[i + 1][0] != sorted[i][0];
    }
    free(sorted);
    return OX_OK;
}

static enum ox_status add_merges(const struct ox_bpe_trainer *trainer, json_t *merges) {
    bool *const kept = calloc(trainer->merge_count + 1, sizeof *kept);
    bool done = merges != NULL && kept != NULL;
    enum ox_status status = done ? find_last(trainer, kept) : OX_OK;
    for (size_t i = 0; i < trainer->merge_count && done && status == OX_OK; i++) {
        const struct ox_bpe_learned *const merge = &trainer->merges[i];
        if (kept[i]) {
            json_t *const pair =
                json_pack("[o, o]", token_text(trainer, merge->left), token_text(trainer, merge->right));
            done = json_array_append_new(merges, pair) == 0;
        }
    }
    free(kept);
    return done ? status : ox_fail(OX_E_NOMEM, "no memory to write a tokenizer");
}

static json_t *special_tokens(const struct ox_bpe_specials *specials) {
    json_t *const list = json_array();
    for (uint32_t i = 0; i < specials->count; i++) {
        json_array_append_new(list, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (int)i, "content",
                                              specials->texts[i], "single_word", 0, "lstrip", 0, "rstrip", 0,
                                              "normalized", 0, "special", 1));
    }
    return list;
}

/* tokenizer.json, with the keys and their order of the original. */
static enum ox_status describe(const struct ox_bpe_trainer *trainer, json_t **out) {
    static const char no_memory[] = "no memory to write a tokenizer";
    json_t *const vocab = json_object(), *const merges = json_array();
    enum ox_status status = add_vocabulary(trainer, vocab) ? OX_OK : ox_fail(OX_E_NOMEM, no_memory);
    OX_THEN(status, add_merges(trainer, merges));
    if (status == OX_OK) {
        *out = json_pack("{s:s, s:n, s:n, s:o, s:n, s:o, s:{s:s, s:b, s:b, s:b}, s:{s:s, s:b, s:b, s:b}, "
                         "s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:O, s:O}}",
                         "version", "1.0", "truncation", "padding", "added_tokens",
                         special_tokens(trainer->config.specials), "normalizer", "pre_tokenizer",
                         ox_bpe_pre_tokenizer(trainer->config.words), "post_processor", "type", "ByteLevel",
                         "add_prefix_space", 1, "trim_offsets", 0, "use_regex", 1, "decoder", "type", "ByteLevel",
                         "add_prefix_space", 1, "trim_offsets", 1, "use_regex", 1, "model", "type", "BPE", "dropout",
                         "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                         "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges", merges);
        status = *out != NULL ? OX_OK : ox_fail(OX_E_NOMEM, no_memory);
    }
    json_decref(vocab);
    json_decref(merges);
    return status;
}

static json_t *describe_settings(const struct ox_bpe_specials *specials) {
    static const char *const keys[OX_BPE_ROLE_COUNT] = {
        [OX_BPE_EOS] = "eos_token", [OX_BPE_BOS] = "bos_token", [OX_BPE_PAD] = "pad_token",
        [OX_BPE_UNK] = "unk_token"};
    json_t *const config = json_pack("{s:s, s:b}", "tokenizer_class", "PreTrainedTokenizerFast",
                                     "clean_up_tokenization_spaces", 0);
    for (uint32_t i = 0; i < specials->count; i++) {
        if (specials->roles[i] != OX_BPE_NO_ROLE) {
            json_object_set_new(config, keys[specials->roles[i]], json_string(specials->texts[i]));
        }
    }
    return config;
}

static enum ox_status write_json(const char *folder, const char *name, const json_t *json) {
    char path[OX_PATH_BYTES];
    enum ox_status status = ox_path_join(folder, name, path);
    char *const text = json != NULL ? json_dumps(json, JSON_INDENT(2)) : NULL; /* as the original writes it */
    if (status == OX_OK && text == NULL) {
        status = ox_fail(OX_E_NOMEM, "%s: no memory to write it", path);
    }
    OX_THEN(status, ox_file_replace(path, text, strlen(text)));
    free(text);
    return status;
}

enum ox_status ox_bpe_trainer_save(const struct ox_bpe_trainer *trainer, const char *folder) {
    json_t *json = NULL, *const settings = describe_settings(trainer->config.specials);
    char path[OX_PATH_BYTES];
    enum ox_status status = ox_path_join(folder, "tokenizer.json", path);
    if (status == OX_OK && ox_path_existing(path) == strlen(path)) {
        status = ox_fail(OX_E_CONFIG, "%s: is there already; give --output another folder, or remove it", path);
    }
    OX_THEN(status, describe(trainer, &json));
    OX_THEN(status, ox_folder_make(folder));
    OX_THEN(status, write_json(folder, "tokenizer_config.json", settings));
    OX_THEN(status, write_json(folder, "tokenizer.json", json));
    json_decref(json);
    json_decref(settings);
    return status;
}
