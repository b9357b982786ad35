/* Learns the merges of a BPE trainer: merges the most frequent pair of neighbours again and again, among equals the one
 * with the smaller left id, then the smaller right id.
 *
 * What follows of the original's code, and decides ids where texts are small: a pair may stand in the heap several
 * times, each entry with the words in which it was found; an entry merges in its own words alone; an entry whose count
 * is no longer right goes back with the right one; and the count of a merged pair stays. Counts have 64 bits, where the
 * original's have 32. */
#include "engine/vocab/bpe_train_internal.h"

#include "base/hash/hash.h"

#include <stdlib.h>
#include <string.h>

enum { PROGRESS_MERGES = 64 };

struct pair {
    uint32_t left, right;
    int64_t count;
    uint32_t step;      /* the step in which `last_word` and `found` were set */
    uint32_t last_word; /* the last word in which that step has found it */
    uint32_t found;     /* words in which that step has found it */
    uint32_t entry;     /* index + 1 of its entry among those that the step makes */
};

struct entry {
    uint64_t count;
    uint32_t pair;
    uint32_t word_count;
    uint32_t *words; /* owned, but of the first entries, whose lists lie in one block */
};

/* A word in which a step has found a pair. */
struct finding {
    uint32_t pair, word;
};

struct learning {
    struct ox_bpe_trainer *trainer;
    struct pair *pairs;
    size_t pair_count, pair_capacity;
    uint32_t *slots; /* index + 1 by hash of the ids */
    uint64_t mask;
    struct entry *heap;
    size_t heap_count, heap_capacity;
    struct finding *findings;
    size_t finding_count, finding_capacity;
    uint32_t *block; /* the words of the first entries */
    size_t block_count;
    uint32_t step;
};

static enum ox_status fail_memory(const struct learning *l) {
    return ox_fail(OX_E_NOMEM, "no memory to merge the %zu different words of the texts; train on a sample of them",
                   l->trainer->word_count);
}

/* ---- pairs --------------------------------------------------------------------------------------------------- */

static uint64_t pair_slot(const struct learning *l, uint32_t left, uint32_t right) {
    uint64_t key = (uint64_t)left << 32 | right;
    key = (key ^ key >> 32) * UINT64_C(0x9E3779B97F4A7C15);
    uint64_t slot = (key ^ key >> 29) & l->mask;
    for (; l->slots[slot] != 0; slot = (slot + 1) & l->mask) {
        const struct pair *const pair = &l->pairs[l->slots[slot] - 1];
        if (pair->left == left && pair->right == right) {
            break;
        }
    }
    return slot;
}

static enum ox_status grow_pairs(struct learning *l) {
    const uint64_t count = l->slots == NULL ? 4096 : 2 * (l->mask + 1);
    uint32_t *const slots = count / 2 > UINT32_MAX ? NULL : calloc(count, sizeof *slots);
    if (slots == NULL) {
        return fail_memory(l);
    }
    free(l->slots);
    l->slots = slots;
    l->mask = count - 1;
    for (size_t i = 0; i < l->pair_count; i++) {
        l->slots[pair_slot(l, l->pairs[i].left, l->pairs[i].right)] = (uint32_t)i + 1;
    }
    return OX_OK;
}

/* Finds the pair of two ids, which is added if it is new. */
static enum ox_status find_pair(struct learning *l, uint32_t left, uint32_t right, uint32_t *out) {
    enum ox_status status = 2 * (l->pair_count + 1) > l->mask ? grow_pairs(l) : OX_OK;
    if (status != OX_OK) {
        return status;
    }
    const uint64_t slot = pair_slot(l, left, right);
    if (l->slots[slot] == 0) {
        status = ox_tok_reserve((void **)&l->pairs, &l->pair_capacity, l->pair_count + 1, sizeof *l->pairs);
        if (status != OX_OK) {
            return fail_memory(l);
        }
        l->pairs[l->pair_count++] = (struct pair){.left = left, .right = right, .step = UINT32_MAX};
        l->slots[slot] = (uint32_t)l->pair_count;
    }
    *out = l->slots[slot] - 1;
    return OX_OK;
}

/* Counts `sign` occurrences of a pair in a word, and notes the word if there are more now. */
static enum ox_status count_pair(struct learning *l, uint32_t left, uint32_t right, uint32_t word, int sign) {
    uint32_t idx = 0;
    enum ox_status status = find_pair(l, left, right, &idx);
    if (status != OX_OK) {
        return status;
    }
    struct pair *const pair = &l->pairs[idx];
    pair->count += sign * (int64_t)l->trainer->words[word].count;
    if (sign < 0 || (pair->step == l->step && pair->last_word == word)) {
        return OX_OK;
    }
    pair->found = pair->step == l->step ? pair->found + 1 : 1;
    pair->entry = pair->step == l->step ? pair->entry : 0;
    pair->step = l->step;
    pair->last_word = word;
    if (ox_tok_reserve((void **)&l->findings, &l->finding_capacity, l->finding_count + 1, sizeof *l->findings) !=
        OX_OK) {
        return fail_memory(l);
    }
    l->findings[l->finding_count++] = (struct finding){.pair = idx, .word = word};
    return OX_OK;
}

/* ---- the heap ------------------------------------------------------------------------------------------------ */

static bool is_before(const struct learning *l, const struct entry *a, const struct entry *b) {
    const struct pair *const p = &l->pairs[a->pair], *const q = &l->pairs[b->pair];
    return a->count != b->count ? a->count > b->count : p->left != q->left ? p->left < q->left : p->right < q->right;
}

static enum ox_status push(struct learning *l, struct entry entry) {
    if (ox_tok_reserve((void **)&l->heap, &l->heap_capacity, l->heap_count + 1, sizeof *l->heap) != OX_OK) {
        return fail_memory(l);
    }
    size_t at = l->heap_count++;
    for (; at > 0 && is_before(l, &entry, &l->heap[(at - 1) / 2]); at = (at - 1) / 2) {
        l->heap[at] = l->heap[(at - 1) / 2];
    }
    l->heap[at] = entry;
    return OX_OK;
}

/* Puts `entry` in the place of the first one. */
static void sink(struct learning *l, struct entry entry) {
    size_t at = 0;
    for (size_t child = 1; child < l->heap_count; child = 2 * at + 1) {
        child += child + 1 < l->heap_count && is_before(l, &l->heap[child + 1], &l->heap[child]);
        if (!is_before(l, &l->heap[child], &entry)) {
            break;
        }
        l->heap[at] = l->heap[child];
        at = child;
    }
    l->heap[at] = entry;
}

static struct entry pop(struct learning *l) {
    const struct entry first = l->heap[0];
    l->heap_count--;
    if (l->heap_count > 0) {
        sink(l, l->heap[l->heap_count]);
    }
    return first;
}

static bool is_in_block(const struct learning *l, const uint32_t *words) {
    return words >= l->block && words < l->block + l->block_count;
}

/* Makes an entry of every pair that the step has found, with the words in which it did. */
static enum ox_status push_findings(struct learning *l) {
    const bool first = l->step == 0;
    size_t taken = 0, entry_count = 0, entry_capacity = 0;
    struct entry *entries = NULL;
    enum ox_status status = OX_OK;
    if (first) {
        l->block_count = l->finding_count;
        l->block = malloc((l->block_count + 1) * sizeof *l->block);
        status = l->block != NULL ? OX_OK : fail_memory(l);
    }
    for (size_t i = 0; i < l->finding_count && status == OX_OK; i++) {
        struct pair *const pair = &l->pairs[l->findings[i].pair];
        if (pair->count > 0 && pair->entry == 0) {
            struct entry entry = {.count = (uint64_t)pair->count, .pair = l->findings[i].pair};
            entry.words = first ? l->block + taken : malloc(pair->found * sizeof *entry.words);
            taken += pair->found;
            if (entry.words == NULL ||
                ox_tok_reserve((void **)&entries, &entry_capacity, entry_count + 1, sizeof *entries) != OX_OK) {
                free(first ? NULL : entry.words);
                status = fail_memory(l);
                break;
            }
            entries[entry_count++] = entry;
            pair->entry = (uint32_t)entry_count;
        }
        if (pair->entry != 0) {
            struct entry *const entry = &entries[pair->entry - 1];
            entry->words[entry->word_count++] = l->findings[i].word;
        }
    }
    for (size_t i = 0; i < entry_count; i++) {
        OX_THEN(status, push(l, entries[i]));
        if (status != OX_OK && !is_in_block(l, entries[i].words)) {
            free(entries[i].words);
        }
    }
    free(entries);
    l->finding_count = 0;
    return status;
}

/* ---- steps --------------------------------------------------------------------------------------------------- */

static enum ox_status count_words(struct learning *l) {
    struct ox_bpe_trainer *const trainer = l->trainer;
    enum ox_status status = OX_OK;
    trainer->symbols = malloc((trainer->texts.bytes + 1) * sizeof *trainer->symbols);
    if (trainer->symbols == NULL) {
        return fail_memory(l);
    }
    for (size_t i = 0; i < trainer->texts.bytes; i++) {
        trainer->symbols[i] = trainer->byte_ids[(unsigned char)trainer->texts.data[i]];
    }
    ox_text_free(&trainer->texts);
    free(trainer->word_slots);
    trainer->word_slots = NULL;
    for (size_t i = 0; i < trainer->word_count && status == OX_OK; i++) {
        const uint32_t *const symbols = trainer->symbols + trainer->words[i].begin;
        for (uint32_t k = 0; k + 1 < trainer->words[i].length && status == OX_OK; k++) {
            status = count_pair(l, symbols[k], symbols[k + 1], (uint32_t)i, 1);
        }
    }
    return status == OX_OK ? push_findings(l) : status;
}

/* Merges a pair in one word, from left to right. The counts of its neighbours change with every place, as if nothing
 * after it were merged yet. */
static enum ox_status merge_in(struct learning *l, uint32_t left, uint32_t right, uint32_t id, uint32_t word_idx) {
    struct ox_bpe_word *const word = &l->trainer->words[word_idx];
    uint32_t *const symbols = l->trainer->symbols + word->begin;
    uint32_t kept = 0;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < word->length && status == OX_OK; i++) {
        if (symbols[i] != left || i + 1 == word->length || symbols[i + 1] != right) {
            symbols[kept++] = symbols[i];
            continue;
        }
        if (kept > 0) {
            status = count_pair(l, symbols[kept - 1], left, word_idx, -1);
            OX_THEN(status, count_pair(l, symbols[kept - 1], id, word_idx, 1));
        }
        if (i + 2 < word->length) {
            OX_THEN(status, count_pair(l, right, symbols[i + 2], word_idx, -1));
            OX_THEN(status, count_pair(l, id, symbols[i + 2], word_idx, 1));
        }
        symbols[kept++] = id;
        i++;
    }
    word->length = kept;
    return status;
}

static enum ox_status new_token(struct ox_bpe_trainer *trainer, uint32_t left, uint32_t right, uint32_t *id) {
    const size_t *const begin = trainer->token_begin;
    const size_t first = begin[left + 1] - begin[left], bytes = first + begin[right + 1] - begin[right];
    char *const text = malloc(bytes);
    if (text == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for a token of %zu bytes", bytes);
    }
    memcpy(text, trainer->tokens.data + begin[left], first);
    memcpy(text + first, trainer->tokens.data + begin[right], bytes - first);
    enum ox_status status = ox_bpe_token_id(trainer, text, bytes, id);
    OX_THEN(status, ox_tok_reserve((void **)&trainer->merges, &trainer->merge_capacity, trainer->merge_count + 1,
                                   sizeof *trainer->merges));
    if (status == OX_OK) {
        trainer->merges[trainer->merge_count++] = (struct ox_bpe_learned){.left = left, .right = right};
    }
    free(text);
    return status;
}

static enum ox_status merge_entry(struct learning *l, const struct entry *entry) {
    const uint32_t left = l->pairs[entry->pair].left, right = l->pairs[entry->pair].right;
    uint32_t id = 0;
    enum ox_status status = new_token(l->trainer, left, right, &id);
    l->step++;
    for (uint32_t i = 0; i < entry->word_count && status == OX_OK; i++) {
        status = merge_in(l, left, right, id, entry->words[i]);
    }
    return status == OX_OK ? push_findings(l) : status;
}

static enum ox_status merge_all(struct learning *l) {
    struct ox_bpe_trainer *const trainer = l->trainer;
    const struct ox_bpe_training *const config = &trainer->config;
    const uint64_t most = config->vocab_size - trainer->token_count;
    enum ox_status status = OX_OK;
    while (status == OX_OK && trainer->token_count < config->vocab_size && l->heap_count > 0) {
        const int64_t count = l->pairs[l->heap[0].pair].count;
        if (l->heap[0].count != (uint64_t)count) {
            struct entry entry = l->heap[0];
            entry.count = (uint64_t)count;
            sink(l, entry);
            continue;
        }
        struct entry entry = pop(l);
        const bool enough = count >= 1 && (uint64_t)count >= config->min_frequency;
        status = enough ? merge_entry(l, &entry) : OX_OK;
        if (!is_in_block(l, entry.words)) {
            free(entry.words);
        }
        if (!enough) {
            break;
        }
        if (config->progress != NULL && trainer->merge_count % PROGRESS_MERGES == 0) {
            config->progress(config->context, trainer->merge_count, most);
        }
    }
    return status;
}

enum ox_status ox_bpe_learn(struct ox_bpe_trainer *trainer) {
    struct learning l = {.trainer = trainer};
    enum ox_status status = count_words(&l);
    OX_THEN(status, merge_all(&l));
    for (size_t i = 0; i < l.heap_count; i++) {
        if (!is_in_block(&l, l.heap[i].words)) {
            free(l.heap[i].words);
        }
    }
    free(l.pairs);
    free(l.slots);
    free(l.heap);
    free(l.findings);
    free(l.block);
    return status;
}
