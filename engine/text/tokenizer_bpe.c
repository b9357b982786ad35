/* The vocabulary and the merges of a BPE model, in tables for lookup by text, id, character and pair. */
#include "engine/text/tokenizer_internal.h"

#include "base/bytes.h"
#include "base/hash/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_CHARS = 256, PAGE_COUNT = 0x110000 / PAGE_CHARS, JOIN_BITS_MIN = 16, JOIN_BITS_PER_MERGE = 32 };

static uint32_t log2_up(uint64_t value) {
    uint32_t bits = 0;
    while ((UINT64_C(1) << bits) < value) {
        bits++;
    }
    return bits;
}

static uint64_t mix(uint64_t value) {
    value ^= value >> 32;
    return value * UINT64_C(0x9e3779b97f4a7c15);
}

static enum ox_status no_memory(const char *where) {
    return ox_fail(OX_E_NOMEM, "%s: no memory for the vocabulary", where);
}

/* The hash slot of the text, or the empty slot where it belongs. */
static uint64_t slot_of(const struct ox_bpe *bpe, const char *text, size_t bytes) {
    uint64_t slot = ox_hash64(text, bytes, 0) & bpe->slot_mask;
    while (bpe->slots[slot] != 0) {
        const uint32_t id = bpe->slots[slot] - 1;
        if (bpe->text_bytes[id] == bytes && memcmp(bpe->texts.data + bpe->text_begin[id], text, bytes) == 0) {
            break;
        }
        slot = (slot + 1) & bpe->slot_mask;
    }
    return slot;
}

/* ---- vocabulary ---------------------------------------------------------------------------------------------- */

static enum ox_status size_vocabulary(const char *where, const json_t *vocab, struct ox_bpe *bpe) {
    const char *text;
    json_t *value;
    json_object_foreach((json_t *)vocab, text, value) {
        const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= OX_TOK_ID_LIMIT) {
            char excerpt[OX_JSON_EXCERPT_BYTES];
            return ox_fail(OX_E_CONFIG, "%s: the token \"%.80s\" has the id %s; an id is an integer from 0 to %d",
                           where, text, ox_json_excerpt(value, excerpt), OX_TOK_ID_LIMIT - 1);
        }
        bpe->id_count = (uint32_t)id >= bpe->id_count ? (uint32_t)id + 1 : bpe->id_count;
    }
    bpe->token_count = (uint32_t)json_object_size(vocab);
    const uint64_t slots = UINT64_C(1) << log2_up(2 * (uint64_t)bpe->token_count + 2);
    bpe->slot_mask = slots - 1;
    bpe->slots = calloc(slots, sizeof *bpe->slots);
    bpe->text_begin = malloc(((size_t)bpe->id_count + 1) * sizeof *bpe->text_begin);
    bpe->text_bytes = calloc((size_t)bpe->id_count + 1, sizeof *bpe->text_bytes);
    if (bpe->slots == NULL || bpe->text_begin == NULL || bpe->text_bytes == NULL) {
        return no_memory(where);
    }
    memset(bpe->text_begin, 0xff, ((size_t)bpe->id_count + 1) * sizeof *bpe->text_begin);
    return OX_OK;
}

static enum ox_status fill_vocabulary(const char *where, const json_t *vocab, struct ox_bpe *bpe) {
    const char *text;
    json_t *value;
    json_object_foreach((json_t *)vocab, text, value) {
        const uint32_t id = (uint32_t)json_integer_value(value);
        const size_t bytes = strlen(text);
        if (bpe->text_begin[id] != UINT32_MAX) {
            return ox_fail(OX_E_CONFIG, "%s: the id %u names both \"%.80s\" and \"%.80s\"", where, (unsigned)id,
                           bpe->texts.data + bpe->text_begin[id], text);
        }
        bpe->text_begin[id] = (uint32_t)bpe->texts.bytes;
        bpe->text_bytes[id] = (uint32_t)bytes;
        bpe->token_bytes_max = (uint32_t)bytes > bpe->token_bytes_max ? (uint32_t)bytes : bpe->token_bytes_max;
        const enum ox_status status = ox_text_append(&bpe->texts, text, bytes + 1);
        if (status != OX_OK) {
            return status;
        }
        bpe->slots[slot_of(bpe, text, bytes)] = id + 1;
    }
    return OX_OK;
}

/* ---- merges -------------------------------------------------------------------------------------------------- */

static uint64_t merge_slot(const struct ox_bpe *bpe, uint32_t left, uint32_t right) {
    return mix((uint64_t)left << 32 | right) >> bpe->merge_shift;
}

/* Splits a merge into its two sides: ["a", "b"], or "a b" with one space. False for anything else. */
static bool sides_of(const json_t *merge, bool is_pair, const char **left, size_t *left_bytes, const char **right) {
    if (is_pair) {
        *left = json_string_value(json_array_get(merge, 0));
        *right = json_string_value(json_array_get(merge, 1));
        if (json_array_size(merge) != 2 || *left == NULL || *right == NULL) {
            return false;
        }
        *left_bytes = strlen(*left);
        return true;
    }
    *left = json_string_value(merge);
    const char *const space = *left == NULL ? NULL : strchr(*left, ' ');
    if (space == NULL || strchr(space + 1, ' ') != NULL) {
        return false;
    }
    *left_bytes = (size_t)(space - *left);
    *right = space + 1;
    return true;
}

static void add_join(struct ox_bpe *bpe, uint32_t left, uint32_t right) {
    const uint64_t bit = mix((uint64_t)left << 32 | right) >> bpe->join_shift;
    bpe->joins[bit >> 6] |= UINT64_C(1) << (bit & 63);
}

static enum ox_status put_merge(const char *where, struct ox_bpe *bpe, size_t rank, const char *left, size_t left_bytes,
                                const char *right) {
    const size_t right_bytes = strlen(right);
    struct ox_text joined = {0};
    enum ox_status status = ox_text_append(&joined, left, left_bytes);
    OX_THEN(status, ox_text_append(&joined, right, right_bytes + 1));
    if (status != OX_OK) {
        ox_text_free(&joined);
        return status;
    }
    const int64_t left_id = ox_bpe_find(bpe, left, left_bytes);
    const int64_t right_id = ox_bpe_find(bpe, right, right_bytes);
    const int64_t id = ox_bpe_find(bpe, joined.data, left_bytes + right_bytes);
    if (left_id < 0 || right_id < 0 || id < 0) {
        status = ox_fail(OX_E_CONFIG, "%s: merge %zu joins \"%.*s\" and \"%.60s\", but %s is not in the vocabulary",
                         where, rank, (int)(left_bytes < 60 ? left_bytes : 60), left, right,
                         left_id < 0    ? "the first"
                         : right_id < 0 ? "the second"
                                        : "the joined token");
    } else {
        uint64_t slot = merge_slot(bpe, (uint32_t)left_id, (uint32_t)right_id);
        while (bpe->merges[slot].left != UINT32_MAX &&
               (bpe->merges[slot].left != (uint32_t)left_id || bpe->merges[slot].right != (uint32_t)right_id)) {
            slot = (slot + 1) & bpe->merge_mask;
        }
        /* If a pair has two merges, the later one counts, as in the original. */
        bpe->merges[slot] = (struct ox_merge_slot){(uint32_t)left_id, (uint32_t)right_id, (uint32_t)rank, (uint32_t)id};
        if (left_bytes > 0 && right_bytes > 0) {
            size_t last = ox_utf8_back(left, left_bytes);
            size_t first = 0;
            const uint32_t last_char = ox_utf8_next(left, &last);
            add_join(bpe, last_char, ox_utf8_next(right, &first));
        }
    }
    ox_text_free(&joined);
    return status;
}

static enum ox_status read_merges(const char *where, const json_t *list, struct ox_bpe *bpe) {
    const size_t count = json_array_size(list);
    const unsigned bits = log2_up(2 * (uint64_t)count + 2);
    const unsigned join_bits = log2_up(count * JOIN_BITS_PER_MERGE);
    bpe->merge_shift = 64 - bits;
    bpe->merge_mask = (UINT64_C(1) << bits) - 1;
    bpe->merges = malloc((bpe->merge_mask + 1) * sizeof *bpe->merges);
    bpe->join_shift = 64 - (join_bits < JOIN_BITS_MIN ? JOIN_BITS_MIN : join_bits);
    bpe->joins = calloc((size_t)1 << (64 - bpe->join_shift - 6), sizeof *bpe->joins);
    if (bpe->merges == NULL || bpe->joins == NULL) {
        return no_memory(where);
    }
    memset(bpe->merges, 0xff, (bpe->merge_mask + 1) * sizeof *bpe->merges);
    const bool pairs = json_is_array(json_array_get(list, 0));
    size_t rank = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *const merge = json_array_get(list, i);
        const char *left, *right;
        size_t left_bytes;
        if (!pairs && json_is_string(merge) && strncmp(json_string_value(merge), "#version", 8) == 0) {
            continue; /* some exports include the first line of merges.txt */
        }
        if (json_is_array(merge) != pairs || !sides_of(merge, pairs, &left, &left_bytes, &right)) {
            char excerpt[OX_JSON_EXCERPT_BYTES];
            return ox_fail(OX_E_CONFIG, "%s: merge %zu is %s; it must be %s", where, i, ox_json_excerpt(merge, excerpt),
                           pairs ? "a list of two texts" : "two texts with one space between");
        }
        const enum ox_status status = put_merge(where, bpe, rank++, left, left_bytes, right);
        if (status != OX_OK) {
            return status;
        }
    }
    return OX_OK;
}

/* ---- characters ---------------------------------------------------------------------------------------------- */

/* Builds the table of one-character tokens: the first pass finds the pages in use, the second fills them. */
static enum ox_status fill_chars(const char *where, struct ox_bpe *bpe) {
    bpe->char_pages = calloc(PAGE_COUNT, sizeof *bpe->char_pages);
    bool *const used = calloc(PAGE_COUNT, sizeof *used);
    uint32_t pages = 1;
    for (int pass = 0; pass < 2 && bpe->char_pages != NULL && used != NULL; pass++) {
        for (uint32_t id = 0; id < bpe->id_count; id++) {
            const uint32_t bytes = bpe->text_bytes[id];
            size_t pos = 0;
            if (bytes == 0 || bytes > 4) {
                continue;
            }
            const uint32_t cp = ox_utf8_next(bpe->texts.data + bpe->text_begin[id], &pos);
            if (pos != bytes) {
                continue;
            }
            if (pass == 0) {
                used[cp / PAGE_CHARS] = true;
            } else {
                bpe->char_ids[bpe->char_pages[cp / PAGE_CHARS] * PAGE_CHARS + cp % PAGE_CHARS] = (int32_t)id;
            }
        }
        for (uint32_t page = 0; page < PAGE_COUNT && pass == 0; page++) {
            bpe->char_pages[page] = used[page] ? (uint16_t)pages++ : 0;
        }
        if (pass == 0) {
            bpe->char_ids = malloc((size_t)pages * PAGE_CHARS * sizeof *bpe->char_ids);
            if (bpe->char_ids == NULL) {
                break;
            }
            memset(bpe->char_ids, 0xff, (size_t)pages * PAGE_CHARS * sizeof *bpe->char_ids);
        }
    }
    free(used);
    return bpe->char_ids == NULL ? no_memory(where) : OX_OK;
}

static void fill_bytes(struct ox_bpe *bpe) {
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        bpe->byte_ids[byte] = ox_bpe_char_id(bpe, ox_byte_level_char((uint8_t)byte));
        bpe->fallback_ids[byte] = (int32_t)ox_bpe_find(bpe, name, 6);
    }
}

/* ---- settings ------------------------------------------------------------------------------------------------ */

static enum ox_status read_settings(const char *where, const json_t *model, struct ox_bpe *bpe) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *unk = NULL;
    double dropout = 0;
    enum ox_status status = ox_json_get_string(where, model, "unk_token", false, &unk);
    OX_THEN(status, ox_json_get_bool(where, model, "byte_fallback", false, &bpe->byte_fallback));
    OX_THEN(status, ox_json_get_bool(where, model, "fuse_unk", false, &bpe->fuse_unk));
    OX_THEN(status, ox_json_get_bool(where, model, "ignore_merges", false, &bpe->ignore_merges));
    OX_THEN(status, ox_json_get_double(where, model, "dropout", false, &dropout));
    if (status == OX_OK && dropout != 0) {
        status = ox_fail(OX_E_CONFIG, "%s: the model has a dropout of %g; set it to null", where, dropout);
    }
    for (int i = 0; i < 2 && status == OX_OK; i++) {
        const char *affix = "";
        status = ox_json_get_string(where, model, affixes[i], false, &affix);
        if (status == OX_OK && affix[0] != '\0') {
            status = ox_fail(OX_E_CONFIG, "%s: a model with %s (\"%.40s\") is not supported", where, affixes[i], affix);
        }
    }
    bpe->unk_id = -1;
    if (status == OX_OK && unk != NULL) {
        const int64_t id = ox_bpe_find(bpe, unk, strlen(unk));
        bpe->unk_id = id < 0 ? -2 : id;
        bpe->unk_text = strdup(unk);
        status = bpe->unk_text == NULL ? no_memory(where) : OX_OK;
    }
    return status;
}

/* ---- public -------------------------------------------------------------------------------------------------- */

int64_t ox_bpe_find(const struct ox_bpe *bpe, const char *text, size_t bytes) {
    return (int64_t)bpe->slots[slot_of(bpe, text, bytes)] - 1;
}

const struct ox_merge_slot *ox_bpe_merge(const struct ox_bpe *bpe, uint32_t left, uint32_t right) {
    uint64_t slot = merge_slot(bpe, left, right);
    while (bpe->merges[slot].left != UINT32_MAX) {
        if (bpe->merges[slot].left == left && bpe->merges[slot].right == right) {
            return &bpe->merges[slot];
        }
        slot = (slot + 1) & bpe->merge_mask;
    }
    return NULL;
}

int32_t ox_bpe_char_id(const struct ox_bpe *bpe, uint32_t cp) {
    return bpe->char_ids[bpe->char_pages[cp / PAGE_CHARS] * PAGE_CHARS + cp % PAGE_CHARS];
}

bool ox_bpe_may_join(const struct ox_bpe *bpe, uint32_t left, uint32_t right) {
    const uint64_t bit = mix((uint64_t)left << 32 | right) >> bpe->join_shift;
    return (bpe->joins[bit >> 6] >> (bit & 63) & 1) != 0;
}

enum ox_status ox_bpe_open(const char *where, const json_t *model, bool byte_level, struct ox_bpe *out) {
    const json_t *const vocab = json_object_get(model, "vocab");
    const json_t *const merges = json_object_get(model, "merges");
    const char *type = "BPE"; /* old files leave it out */
    memset(out, 0, sizeof *out);
    out->byte_level = byte_level;
    enum ox_status status = ox_json_get_string(where, model, "type", false, &type);
    if (status == OX_OK && strcmp(type, "BPE") != 0) {
        status = ox_fail(OX_E_CONFIG, "%s: the model type \"%.40s\" is not supported; only BPE is", where, type);
    }
    if (status == OX_OK && (!json_is_object(vocab) || json_object_size(vocab) == 0 || !json_is_array(merges))) {
        status = ox_fail(OX_E_CONFIG, "%s: the model needs \"vocab\" (an object, not empty) and \"merges\" (a list)",
                         where);
    }
    OX_THEN(status, size_vocabulary(where, vocab, out));
    OX_THEN(status, fill_vocabulary(where, vocab, out));
    OX_THEN(status, fill_chars(where, out));
    if (status == OX_OK) {
        fill_bytes(out);
        status = read_settings(where, model, out);
    }
    OX_THEN(status, read_merges(where, merges, out));
    if (status != OX_OK) {
        ox_bpe_close(out);
    }
    return status;
}

void ox_bpe_close(struct ox_bpe *bpe) {
    ox_text_free(&bpe->texts);
    free(bpe->text_begin);
    free(bpe->text_bytes);
    free(bpe->slots);
    free(bpe->merges);
    free(bpe->char_pages);
    free(bpe->char_ids);
    free(bpe->joins);
    free(bpe->unk_text);
    memset(bpe, 0, sizeof *bpe);
}
