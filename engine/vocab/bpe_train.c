/* Counts the different words of texts for a BPE trainer, and owns its vocabulary. */
#include "engine/vocab/bpe_train_internal.h"

#include "base/assert.h"
#include "base/hash/hash.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char llama3_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char qwen2_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

json_t *ox_bpe_pre_tokenizer(enum ox_bpe_words words) {
    static const char *const patterns[] = {
        [OX_BPE_GPT2] = NULL, [OX_BPE_LLAMA3] = llama3_pattern, [OX_BPE_QWEN2] = qwen2_pattern};
    if (patterns[words] == NULL) {
        return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
                         "use_regex", 1);
    }
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, {s:s, s:b, s:b, s:b}]}", "type", "Sequence", "pretokenizers",
                     "type", "Split", "pattern", "Regex", patterns[words], "behavior", "Isolated", "invert", 0,
                     "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 0);
}

/* ---- special tokens ------------------------------------------------------------------------------------------ */

static const char *const role_names[OX_BPE_ROLE_COUNT] = {
    [OX_BPE_EOS] = "eos=", [OX_BPE_BOS] = "bos=", [OX_BPE_PAD] = "pad=", [OX_BPE_UNK] = "unk="};

static enum ox_status add_special(struct ox_bpe_specials *out, const char *text, size_t bytes) {
    static const char where[] = "--special-tokens";
    enum ox_bpe_role role = OX_BPE_NO_ROLE;
    for (unsigned i = OX_BPE_EOS; i < OX_BPE_ROLE_COUNT; i++) {
        const size_t length = strlen(role_names[i]);
        role = bytes >= length && strncmp(text, role_names[i], length) == 0 ? (enum ox_bpe_role)i : role;
    }
    const size_t skipped = role != OX_BPE_NO_ROLE ? strlen(role_names[role]) : 0;
    if (bytes == skipped) {
        return ox_fail(OX_E_CONFIG, "%s has an empty token; separate tokens by one comma each", where);
    }
    if (out->count == OX_BPE_SPECIALS_MAX) {
        return ox_fail(OX_E_CONFIG, "%s has more than %d tokens", where, OX_BPE_SPECIALS_MAX);
    }
    char *const copy = strndup(text + skipped, bytes - skipped);
    if (copy == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to read it", where);
    }
    out->roles[out->count] = role;
    out->texts[out->count++] = copy;
    for (uint32_t i = 0; i + 1 < out->count; i++) {
        if (strcmp(out->texts[i], copy) == 0 || (role != OX_BPE_NO_ROLE && out->roles[i] == role)) {
            return ox_fail(OX_E_CONFIG, "%s: '%s' is given twice, or has a role that another has; give each once",
                           where, copy);
        }
    }
    return OX_OK;
}

enum ox_status ox_bpe_specials_read(const char *text, struct ox_bpe_specials *out) {
    enum ox_status status = OX_OK;
    *out = (struct ox_bpe_specials){0};
    for (const char *at = text; *text != '\0' && status == OX_OK;) {
        const size_t bytes = strcspn(at, ",");
        status = add_special(out, at, bytes);
        if (at[bytes] == '\0') {
            break;
        }
        at += bytes + 1;
    }
    uint32_t first = out->count;
    for (uint32_t i = out->count; i-- > 0;) {
        if (out->roles[i] == OX_BPE_EOS) {
            return status;
        }
        first = out->roles[i] == OX_BPE_NO_ROLE ? i : first;
    }
    if (first < out->count) {
        out->roles[first] = OX_BPE_EOS;
    }
    return status;
}

void ox_bpe_specials_free(struct ox_bpe_specials *specials) {
    for (uint32_t i = 0; i < specials->count; i++) {
        free(specials->texts[i]);
    }
    specials->count = 0;
}

/* ---- vocabulary ---------------------------------------------------------------------------------------------- */

static uint32_t *find_token(const struct ox_bpe_trainer *trainer, const char *text, size_t bytes) {
    uint64_t slot = ox_hash64(text, bytes, 0) & trainer->token_mask;
    for (;; slot = (slot + 1) & trainer->token_mask) {
        uint32_t *const known = &trainer->token_slots[slot];
        if (*known == 0) {
            return known;
        }
        const size_t begin = trainer->token_begin[*known - 1], end = trainer->token_begin[*known];
        if (end - begin == bytes && memcmp(trainer->tokens.data + begin, text, bytes) == 0) {
            return known;
        }
    }
}

enum ox_status ox_bpe_token_id(struct ox_bpe_trainer *trainer, const char *text, size_t bytes, uint32_t *id) {
    uint32_t *const slot = find_token(trainer, text, bytes);
    if (*slot != 0) {
        *id = *slot - 1;
        return OX_OK;
    }
    const enum ox_status status = ox_text_append(&trainer->tokens, text, bytes);
    if (status == OX_OK) {
        *id = trainer->token_count++;
        *slot = *id + 1;
        trainer->token_begin[trainer->token_count] = trainer->tokens.bytes;
    }
    return status;
}

/* Special tokens first, then the bytes in the order of ByteLevel's characters. */
static enum ox_status add_first_tokens(struct ox_bpe_trainer *trainer) {
    const struct ox_bpe_specials *const specials = trainer->config.specials;
    enum ox_status status = OX_OK;
    uint32_t id = 0;
    for (uint32_t i = 0; i < specials->count; i++) {
        OX_THEN(status, ox_bpe_token_id(trainer, specials->texts[i], strlen(specials->texts[i]), &id));
    }
    for (uint32_t cp = 0, found = 0; found < 256; cp++) {
        const int byte = ox_byte_level_byte(cp);
        if (byte >= 0) {
            char text[4];
            OX_THEN(status, ox_bpe_token_id(trainer, text, ox_utf8_put(cp, text), &trainer->byte_ids[byte]));
            found++;
        }
    }
    return status;
}

static enum ox_status open_vocabulary(struct ox_bpe_trainer *trainer) {
    /* No token is added beyond the size, but for the first ones. */
    const uint64_t most = trainer->config.vocab_size;
    uint64_t slots = 1024;
    while (slots < 2 * most) {
        slots *= 2;
    }
    trainer->token_mask = slots - 1;
    trainer->token_slots = calloc(slots, sizeof *trainer->token_slots);
    trainer->token_begin = calloc(most + 1, sizeof *trainer->token_begin);
    return trainer->token_slots != NULL && trainer->token_begin != NULL
               ? add_first_tokens(trainer)
               : ox_fail(OX_E_NOMEM, "no memory for a vocabulary of %" PRIu32 " tokens", trainer->config.vocab_size);
}

/* ---- words --------------------------------------------------------------------------------------------------- */

static enum ox_status fail_words(const struct ox_bpe_trainer *trainer) {
    return ox_fail(OX_E_NOMEM, "no memory for more than the %zu different words read so far; train on a sample of the "
                               "texts", trainer->word_count);
}

static uint64_t word_slot(const struct ox_bpe_trainer *trainer, const char *text, size_t bytes) {
    uint64_t slot = ox_hash64(text, bytes, 0) & trainer->word_mask;
    for (; trainer->word_slots[slot] != 0; slot = (slot + 1) & trainer->word_mask) {
        const struct ox_bpe_word *const word = &trainer->words[trainer->word_slots[slot] - 1];
        if (word->length == bytes && memcmp(trainer->texts.data + word->begin, text, bytes) == 0) {
            break;
        }
    }
    return slot;
}

static enum ox_status grow_words(struct ox_bpe_trainer *trainer) {
    const uint64_t slots = trainer->word_slots == NULL ? 4096 : 2 * (trainer->word_mask + 1);
    uint32_t *const grown = slots / 2 > UINT32_MAX ? NULL : calloc(slots, sizeof *grown);
    if (grown == NULL) {
        return fail_words(trainer);
    }
    free(trainer->word_slots);
    trainer->word_slots = grown;
    trainer->word_mask = slots - 1;
    for (size_t i = 0; i < trainer->word_count; i++) {
        const struct ox_bpe_word *const word = &trainer->words[i];
        trainer->word_slots[word_slot(trainer, trainer->texts.data + word->begin, word->length)] = (uint32_t)i + 1;
    }
    return OX_OK;
}

static enum ox_status take_word(void *context, const char *text, size_t bytes) {
    struct ox_bpe_trainer *const trainer = context;
    enum ox_status status = OX_OK;
    if (bytes > UINT32_MAX) {
        return ox_fail(OX_E_CONFIG, "a word of %zu bytes is too long", bytes);
    }
    if (2 * (trainer->word_count + 1) > trainer->word_mask) {
        status = grow_words(trainer);
    }
    if (status != OX_OK) {
        return status;
    }
    uint32_t *const slot = &trainer->word_slots[word_slot(trainer, text, bytes)];
    if (*slot == 0) {
        struct ox_bpe_word word = {.begin = trainer->texts.bytes, .length = (uint32_t)bytes};
        status = ox_tok_reserve((void **)&trainer->words, &trainer->word_capacity, trainer->word_count + 1,
                                sizeof *trainer->words);
        OX_THEN(status, ox_text_append(&trainer->texts, text, bytes));
        if (status != OX_OK) {
            return fail_words(trainer);
        }
        trainer->words[trainer->word_count++] = word;
        *slot = (uint32_t)trainer->word_count;
    }
    trainer->words[*slot - 1].count++;
    return OX_OK;
}

static enum ox_status open_cutter(struct ox_bpe_trainer *trainer) {
    json_t *const pre = ox_bpe_pre_tokenizer(trainer->config.words);
    enum ox_status status = pre != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "no memory to train a tokenizer");
    OX_THEN(status, ox_tokenizer_open_cutter(pre, &trainer->cutter));
    OX_THEN(status, ox_encoder_open(trainer->cutter, &trainer->encoder));
    json_decref(pre);
    return status;
}

/* ---- public -------------------------------------------------------------------------------------------------- */

enum ox_status ox_bpe_trainer_open(const struct ox_bpe_training *config, struct ox_bpe_trainer **out) {
    const uint32_t least = 256 + config->specials->count;
    if (config->vocab_size < least) {
        return ox_fail(OX_E_CONFIG, "--vocab-size %" PRIu32 " has no room for the 256 bytes and %" PRIu32
                                    " special token%s; give at least %" PRIu32, config->vocab_size,
                       config->specials->count, config->specials->count == 1 ? "" : "s", least);
    }
    struct ox_bpe_trainer *trainer = calloc(1, sizeof *trainer);
    if (trainer == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to train a tokenizer");
    }
    trainer->config = *config;
    enum ox_status status = open_cutter(trainer);
    OX_THEN(status, open_vocabulary(trainer));
    if (status != OX_OK) {
        ox_bpe_trainer_close(&trainer);
        return status;
    }
    *out = trainer;
    return OX_OK;
}

void ox_bpe_trainer_close(struct ox_bpe_trainer **trainer) {
    if (*trainer == NULL) {
        return;
    }
    ox_encoder_close(&(*trainer)->encoder);
    ox_tokenizer_close(&(*trainer)->cutter);
    ox_text_free(&(*trainer)->texts);
    ox_text_free(&(*trainer)->tokens);
    free((*trainer)->words);
    free((*trainer)->word_slots);
    free((*trainer)->symbols);
    free((*trainer)->token_begin);
    free((*trainer)->token_slots);
    free((*trainer)->merges);
    free(*trainer);
    *trainer = NULL;
}

enum ox_cuts ox_bpe_trainer_cuts(const struct ox_bpe_trainer *trainer) {
    return ox_tokenizer_cuts(trainer->cutter);
}

enum ox_status ox_bpe_trainer_add(struct ox_bpe_trainer *trainer, const char *text, size_t bytes, bool continues) {
    OX_ASSERT(trainer->symbols == NULL);
    return ox_encode_pieces(trainer->encoder, text, bytes, continues, take_word, trainer);
}

uint64_t ox_bpe_trainer_word_count(const struct ox_bpe_trainer *trainer) {
    return trainer->word_count;
}

enum ox_status ox_bpe_trainer_run(struct ox_bpe_trainer *trainer, uint32_t *vocab_count) {
    OX_ASSERT(trainer->symbols == NULL);
    const enum ox_status status = ox_bpe_learn(trainer);
    *vocab_count = trainer->token_count;
    return status;
}
