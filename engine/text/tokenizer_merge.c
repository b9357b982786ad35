/* Turns a piece of text into ids. It cuts the piece where no merge can join, then takes each part from the cache or
 * merges its characters: the pair of lowest rank first, and the leftmost of equal ranks. */
#include "engine/text/tokenizer_internal.h"

#include "base/hash/hash.h"

#include <stdlib.h>
#include <string.h>

enum {
    CACHE_SETS_MIN = 64,
    CACHE_SETS_MAX = 1 << 15,
    CACHE_WAYS = 2,
    CACHE_KEY_BYTES = 32,
    CACHE_IDS = 7,
    SHORT_SYMBOLS = 64, /* up to this many symbols, a linear search for the lowest rank; above it, a heap */
};

struct cache_entry { /* 64 bytes: one line */
    uint8_t key_bytes, id_count;
    uint16_t spare;
    int32_t ids[CACHE_IDS];
    char key[CACHE_KEY_BYTES];
};

struct symbol {
    uint32_t id, previous, next; /* UINT32_MAX: none */
    bool gone;
};

struct candidate {
    uint32_t rank, position, id;
};

struct ox_bpe_scratch {
    struct cache_entry *cache; /* sets of CACHE_WAYS entries */
    uint64_t cache_sets;       /* a power of two */
    struct ox_ids symbols_read;
    struct symbol *symbols;
    size_t symbol_capacity;
    struct candidate *heap;
    size_t heap_count, heap_capacity;
    struct ox_text mapped; /* a piece written in ByteLevel's characters */
};

/* ---- symbols ------------------------------------------------------------------------------------------------- */

static enum ox_status add_symbol(struct ox_bpe_scratch *work, int32_t id) {
    return ox_ids_add(&work->symbols_read, id);
}

/* Writes the ids of the bytes of an unknown character; false if the model has no byte fallback or a byte has no
 * token. */
static bool fallback(const struct ox_bpe *bpe, const char *text, size_t bytes, int32_t *ids) {
    for (size_t i = 0; i < bytes; i++) {
        ids[i] = bpe->fallback_ids[(uint8_t)text[i]];
        if (ids[i] < 0) {
            return false;
        }
    }
    return bpe->byte_fallback;
}

/* Handles an unknown character. Its unknown token is added later, before the next known or unknown character or at the
 * end, because fuse_unk may join several; `waiting` tells that one is due. As in the original, byte tokens of a
 * fallback go in before it. */
static enum ox_status add_unknown(const struct ox_bpe *bpe, struct ox_bpe_scratch *work, const char *text, size_t bytes,
                                  bool *waiting) {
    int32_t ids[4];
    if (fallback(bpe, text, bytes, ids)) {
        return ox_ids_append(&work->symbols_read, ids, bytes);
    }
    if (bpe->unk_id == -2) {
        return ox_fail(OX_E_CONFIG, "the tokenizer's unk_token \"%.40s\" is not in its vocabulary", bpe->unk_text);
    }
    if (bpe->unk_id == -1) {
        return OX_OK;
    }
    const bool apart = *waiting && !bpe->fuse_unk;
    *waiting = true;
    return apart ? add_symbol(work, (int32_t)bpe->unk_id) : OX_OK;
}

static enum ox_status add_known(const struct ox_bpe *bpe, struct ox_bpe_scratch *work, int32_t id, bool *waiting) {
    enum ox_status status = *waiting ? add_symbol(work, (int32_t)bpe->unk_id) : OX_OK;
    *waiting = false;
    return status == OX_OK ? add_symbol(work, id) : status;
}

static enum ox_status read_symbols(const struct ox_bpe *bpe, struct ox_bpe_scratch *work, const char *text,
                                   size_t bytes) {
    enum ox_status status = OX_OK;
    bool waiting = false;
    for (size_t pos = 0; pos < bytes && status == OX_OK;) {
        const char *character = text + pos;
        char mapped[4];
        const size_t begin = pos;
        const int32_t id =
            bpe->byte_level ? bpe->byte_ids[(uint8_t)text[pos++]] : ox_bpe_char_id(bpe, ox_utf8_next(text, &pos));
        size_t length = pos - begin;
        if (id >= 0) {
            status = add_known(bpe, work, id, &waiting);
            continue;
        }
        if (bpe->byte_level) {
            length = ox_utf8_put(ox_byte_level_char((uint8_t)*character), mapped);
            character = mapped;
        }
        status = add_unknown(bpe, work, character, length, &waiting);
    }
    return status == OX_OK && waiting ? add_symbol(work, (int32_t)bpe->unk_id) : status;
}

/* ---- merging ------------------------------------------------------------------------------------------------- */

static uint32_t rank_of(const struct ox_bpe *bpe, const int32_t *ids, uint32_t *made) {
    const struct ox_merge_slot *const merge = ox_bpe_merge(bpe, (uint32_t)ids[0], (uint32_t)ids[1]);
    *made = merge == NULL ? 0 : merge->id;
    return merge == NULL ? UINT32_MAX : merge->rank;
}

static size_t merge_short(const struct ox_bpe *bpe, int32_t *ids, size_t count) {
    uint32_t ranks[SHORT_SYMBOLS], made[SHORT_SYMBOLS]; /* rank and merged id of the pair that begins at i */
    for (size_t i = 0; i + 1 < count; i++) {
        ranks[i] = rank_of(bpe, ids + i, &made[i]);
    }
    ranks[count - 1] = UINT32_MAX;
    made[count - 1] = 0;
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++) {
            best = ranks[i] < ranks[best] ? i : best;
        }
        if (ranks[best] == UINT32_MAX) {
            break;
        }
        ids[best] = (int32_t)made[best];
        count--;
        for (size_t i = best + 1; i < count; i++) {
            ids[i] = ids[i + 1];
            ranks[i] = ranks[i + 1];
            made[i] = made[i + 1];
        }
        if (best + 1 < count) {
            ranks[best] = rank_of(bpe, ids + best, &made[best]);
        }
        if (best > 0) {
            ranks[best - 1] = rank_of(bpe, ids + best - 1, &made[best - 1]);
        }
    }
    return count;
}

static bool before(const struct candidate *a, const struct candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static enum ox_status push(const struct ox_bpe *bpe, struct ox_bpe_scratch *work, uint32_t position) {
    const struct symbol *const left = &work->symbols[position];
    const struct ox_merge_slot *const merge = ox_bpe_merge(bpe, left->id, work->symbols[left->next].id);
    if (merge == NULL) {
        return OX_OK;
    }
    const enum ox_status status =
        ox_tok_reserve((void **)&work->heap, &work->heap_capacity, work->heap_count + 1, sizeof *work->heap);
    if (status != OX_OK) {
        return status;
    }
    const struct candidate added = {merge->rank, position, merge->id};
    size_t at = work->heap_count++;
    while (at > 0 && before(&added, &work->heap[(at - 1) / 2])) {
        work->heap[at] = work->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    work->heap[at] = added;
    return OX_OK;
}

static struct candidate pop(struct ox_bpe_scratch *work) {
    struct candidate *const heap = work->heap;
    const struct candidate top = heap[0];
    const struct candidate last = heap[--work->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= work->heap_count) {
            break;
        }
        child += child + 1 < work->heap_count && before(&heap[child + 1], &heap[child]);
        if (!before(&heap[child], &last)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

/* Joins the symbol at `position` with its right neighbour and adds the two new pairs to the heap. */
static enum ox_status join(const struct ox_bpe *bpe, struct ox_bpe_scratch *work, uint32_t position, uint32_t id) {
    struct symbol *const left = &work->symbols[position];
    struct symbol *const right = &work->symbols[left->next];
    left->id = id;
    left->next = right->next;
    right->gone = true;
    if (left->next != UINT32_MAX) {
        work->symbols[left->next].previous = position;
    }
    enum ox_status status = left->previous != UINT32_MAX ? push(bpe, work, left->previous) : OX_OK;
    if (status == OX_OK && left->next != UINT32_MAX) {
        status = push(bpe, work, position);
    }
    return status;
}

static enum ox_status merge_long(const struct ox_bpe *bpe, struct ox_bpe_scratch *work, struct ox_ids *out) {
    const size_t count = work->symbols_read.count;
    if (count >= UINT32_MAX) {
        return ox_fail(OX_E_CONFIG, "a text has %zu characters without a place to split it; divide it", count);
    }
    enum ox_status status =
        ox_tok_reserve((void **)&work->symbols, &work->symbol_capacity, count, sizeof *work->symbols);
    for (size_t i = 0; i < count && status == OX_OK; i++) {
        work->symbols[i] = (struct symbol){.id = (uint32_t)work->symbols_read.ids[i],
                                           .previous = i == 0 ? UINT32_MAX : (uint32_t)i - 1,
                                           .next = i + 1 == count ? UINT32_MAX : (uint32_t)i + 1};
    }
    work->heap_count = 0;
    for (size_t i = 0; i + 1 < count && status == OX_OK; i++) {
        status = push(bpe, work, (uint32_t)i);
    }
    while (status == OX_OK && work->heap_count > 0) {
        const struct candidate top = pop(work);
        const struct symbol *const left = &work->symbols[top.position];
        if (left->gone || left->next == UINT32_MAX) {
            continue;
        }
        const struct ox_merge_slot *const merge = ox_bpe_merge(bpe, left->id, work->symbols[left->next].id);
        if (merge != NULL && merge->id == top.id) {
            status = join(bpe, work, top.position, top.id);
        }
    }
    for (uint32_t i = 0; status == OX_OK && i != UINT32_MAX; i = work->symbols[i].next) {
        status = ox_ids_add(out, work->symbols[i].id);
    }
    return status;
}

/* ---- parts and the cache ------------------------------------------------------------------------------------- */

/* Finds the piece as one token of the vocabulary; *id is -1 if there is none. */
static enum ox_status find_whole(const struct ox_bpe *bpe, struct ox_bpe_scratch *work, const char *piece, size_t bytes,
                                 int64_t *id) {
    *id = -1;
    if (bytes > bpe->token_bytes_max) {
        return OX_OK;
    }
    if (!bpe->byte_level) {
        *id = ox_bpe_find(bpe, piece, bytes);
        return OX_OK;
    }
    work->mapped.bytes = 0;
    for (size_t i = 0; i < bytes; i++) {
        char encoded[4];
        const unsigned length = ox_utf8_put(ox_byte_level_char((uint8_t)piece[i]), encoded);
        const enum ox_status status = ox_text_append(&work->mapped, encoded, length);
        if (status != OX_OK) {
            return status;
        }
    }
    *id = ox_bpe_find(bpe, work->mapped.data, work->mapped.bytes);
    return OX_OK;
}

static enum ox_status encode_part(const struct ox_bpe *bpe, struct ox_bpe_scratch *work, const char *part, size_t bytes,
                                  struct ox_ids *out) {
    work->symbols_read.count = 0;
    const enum ox_status status = read_symbols(bpe, work, part, bytes);
    const size_t count = work->symbols_read.count;
    if (status != OX_OK || count == 0) {
        return status;
    }
    if (count > SHORT_SYMBOLS) {
        return merge_long(bpe, work, out);
    }
    return ox_ids_append(out, work->symbols_read.ids, merge_short(bpe, work->symbols_read.ids, count));
}

static enum ox_status encode_whole(const struct ox_bpe *bpe, struct ox_bpe_scratch *work, const char *piece,
                                   size_t bytes, struct ox_ids *out) {
    if (bpe->ignore_merges && bpe->byte_level) {
        int64_t id;
        enum ox_status status = find_whole(bpe, work, piece, bytes, &id);
        if (status != OX_OK || id >= 0) {
            return status == OX_OK ? ox_ids_add(out, id) : status;
        }
    }
    return encode_part(bpe, work, piece, bytes, out);
}

static enum ox_status encode_cached(const struct ox_bpe *bpe, struct ox_bpe_scratch *work, const char *part,
                                    size_t bytes, struct ox_ids *out) {
    if (bytes > CACHE_KEY_BYTES) {
        return encode_whole(bpe, work, part, bytes, out);
    }
    struct cache_entry *const set =
        &work->cache[(ox_hash64(part, bytes, 0) & (work->cache_sets - 1)) * CACHE_WAYS];
    for (unsigned way = 0; way < CACHE_WAYS; way++) {
        if (set[way].key_bytes == bytes && memcmp(set[way].key, part, bytes) == 0) {
            return ox_ids_append(out, set[way].ids, set[way].id_count);
        }
    }
    const size_t begin = out->count;
    const enum ox_status status = encode_whole(bpe, work, part, bytes, out);
    const size_t count = out->count - begin;
    if (status == OX_OK && count > 0 && count <= CACHE_IDS) {
        set[1] = set[0]; /* newest first; the oldest entry is dropped */
        set[0].key_bytes = (uint8_t)bytes;
        set[0].id_count = (uint8_t)count;
        memcpy(set[0].ids, out->ids + begin, count * sizeof *set[0].ids);
        memcpy(set[0].key, part, bytes);
    }
    return status;
}

/* Encodes a piece in parts, cut between two known characters that no merge joins. The ids are the same, because a token
 * that spans the cut would need a merge exactly there. This cuts text without a pre-tokenizer into words, which the
 * cache can hold. */
static enum ox_status encode_chars(const struct ox_bpe *bpe, struct ox_bpe_scratch *work, const char *piece,
                                   size_t bytes, struct ox_ids *out) {
    size_t begin = 0;
    size_t pos = 0;
    uint32_t previous = ox_utf8_next(piece, &pos);
    bool previous_known = ox_bpe_char_id(bpe, previous) >= 0;
    while (pos < bytes) {
        const size_t at = pos;
        const uint32_t cp = ox_utf8_next(piece, &pos);
        const bool known = ox_bpe_char_id(bpe, cp) >= 0;
        if (known && previous_known && !ox_bpe_may_join(bpe, previous, cp)) {
            const enum ox_status status = encode_cached(bpe, work, piece + begin, at - begin, out);
            if (status != OX_OK) {
                return status;
            }
            begin = at;
        }
        previous = cp;
        previous_known = known;
    }
    return encode_cached(bpe, work, piece + begin, bytes - begin, out);
}

/* ---- public -------------------------------------------------------------------------------------------------- */

/* The cache grows with the vocabulary: clearing 4 MiB takes longer than a small tokenizer's text does. */
static uint64_t cache_sets_of(const struct ox_bpe *bpe) {
    uint64_t sets = CACHE_SETS_MIN;
    while (sets < CACHE_SETS_MAX && sets < 4 * (uint64_t)bpe->token_count) {
        sets *= 2;
    }
    return sets;
}

enum ox_status ox_bpe_scratch_open(const struct ox_bpe *bpe, struct ox_bpe_scratch **out) {
    struct ox_bpe_scratch *work = calloc(1, sizeof *work);
    void *cache = NULL;
    const uint64_t sets = cache_sets_of(bpe);
    const size_t bytes = CACHE_WAYS * sets * sizeof *work->cache;
    if (work == NULL || posix_memalign(&cache, sizeof *work->cache, bytes) != 0) {
        free(work);
        return ox_fail(OX_E_NOMEM, "no memory to encode text");
    }
    work->cache = memset(cache, 0, bytes);
    work->cache_sets = sets;
    *out = work;
    return OX_OK;
}

void ox_bpe_scratch_close(struct ox_bpe_scratch **work) {
    if (*work != NULL) {
        free((*work)->cache);
        ox_ids_free(&(*work)->symbols_read);
        free((*work)->symbols);
        free((*work)->heap);
        ox_text_free(&(*work)->mapped);
        free(*work);
        *work = NULL;
    }
}

enum ox_status ox_bpe_encode(const struct ox_bpe *bpe, struct ox_bpe_scratch *work, const char *piece, size_t bytes,
                             struct ox_ids *out) {
    if (bytes == 0) {
        return OX_OK;
    }
    if (bpe->byte_level) {
        return encode_cached(bpe, work, piece, bytes, out);
    }
    int64_t id = -1;
    if (bpe->ignore_merges) {
        const enum ox_status status = find_whole(bpe, work, piece, bytes, &id);
        if (status != OX_OK) {
            return status;
        }
    }
    return id >= 0 ? ox_ids_add(out, id) : encode_chars(bpe, work, piece, bytes, out);
}
