/* Finds added tokens in a text, leftmost first and the longest of those, with a trie of their texts. */
#include "engine/text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

uint32_t ox_trie_child(const struct ox_trie *trie, uint32_t node, uint8_t byte) {
    uint32_t child = node == 0 ? trie->first[byte] : trie->nodes[node].child;
    while (node != 0 && child != 0 && trie->nodes[child].byte != byte) {
        child = trie->nodes[child].sibling;
    }
    return child;
}

static enum ox_status add_child(struct ox_trie *trie, uint32_t node, uint8_t byte, uint32_t *out) {
    const enum ox_status status =
        ox_tok_reserve((void **)&trie->nodes, &trie->capacity, trie->count + 2, sizeof *trie->nodes);
    if (status != OX_OK) {
        return status;
    }
    if (trie->count == 0) {
        trie->nodes[trie->count++] = (struct ox_trie_node){0};
    }
    const uint32_t child = (uint32_t)trie->count++;
    trie->nodes[child] = (struct ox_trie_node){.byte = byte};
    if (node == 0) {
        trie->first[byte] = child;
    } else {
        trie->nodes[child].sibling = trie->nodes[node].child;
        trie->nodes[node].child = child;
    }
    *out = child;
    return OX_OK;
}

/* The longest token that begins at `pos`, as index + 1, or 0 for none. */
static uint32_t longest(const struct ox_added_scan *scan, size_t pos, size_t *end) {
    uint32_t best = 0;
    uint32_t node = 0;
    for (size_t i = pos; i < scan->bytes; i++) {
        node = ox_trie_child(scan->trie, node, (uint8_t)scan->text[i]);
        if (node == 0) {
            break;
        }
        if (scan->trie->nodes[node].token != 0) {
            best = scan->trie->nodes[node].token;
            *end = i + 1;
        }
    }
    return best;
}

static bool touches_word(const struct ox_added_scan *scan, size_t begin, size_t end) {
    if (begin > 0) {
        size_t pos = ox_utf8_back(scan->text, begin);
        if (ox_unicode_is_word(ox_utf8_next(scan->text, &pos))) {
            return true;
        }
    }
    return end < scan->bytes && ox_unicode_is_word(ox_utf8_next(scan->text, &end));
}

/* Moves `begin` back over whitespace, but not into the token before. */
static size_t strip_left(const struct ox_added_scan *scan, size_t begin) {
    while (begin > scan->covered) {
        const size_t before = ox_utf8_back(scan->text, begin);
        size_t pos = before;
        if (!ox_unicode_is_space(ox_utf8_next(scan->text, &pos))) {
            break;
        }
        begin = before;
    }
    return begin;
}

/* Moves `end` forward over whitespace. It remembers the last run, so a long run is walked once. */
static size_t strip_right(struct ox_added_scan *scan, size_t end) {
    if (end >= scan->space_begin && end < scan->space_end) {
        return scan->space_end;
    }
    scan->space_begin = end;
    while (end < scan->bytes) {
        size_t pos = end;
        if (!ox_unicode_is_space(ox_utf8_next(scan->text, &pos))) {
            break;
        }
        end = pos;
    }
    scan->space_end = end;
    return end;
}

/* Finds the next token text from scan->pos on. The caller checks whether it counts as a token there. */
static bool find(const struct ox_added_scan *scan, size_t *begin, size_t *end, uint32_t *token) {
    for (size_t pos = scan->pos; pos < scan->bytes; pos++) {
        if (scan->trie->first[(uint8_t)scan->text[pos]] != 0) {
            *token = longest(scan, pos, end);
            if (*token != 0) {
                *begin = pos;
                return true;
            }
        }
    }
    return false;
}

/* Whether a special token counts at [begin, end). With parts, all of it must be control text. */
static bool may_be_special(struct ox_added_scan *scan, size_t begin, size_t end) {
    if (scan->parts == NULL) {
        return !scan->skip_special;
    }
    while (scan->parts[scan->part].end <= begin) {
        scan->part++;
    }
    for (size_t i = scan->part; scan->parts[i].control; i++) {
        if (end <= scan->parts[i].end) {
            return true;
        }
    }
    return false;
}

enum ox_status ox_trie_add(struct ox_trie *trie, const char *text, size_t bytes, uint32_t token) {
    uint32_t node = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint32_t child = ox_trie_child(trie, node, (uint8_t)text[i]);
        if (child == 0) {
            const enum ox_status status = add_child(trie, node, (uint8_t)text[i], &child);
            if (status != OX_OK) {
                return status;
            }
        }
        node = child;
    }
    if (node != 0 && trie->nodes[node].token == 0) { /* keep the first of two tokens with the same text */
        trie->nodes[node].token = token + 1;
    }
    return OX_OK;
}

void ox_trie_free(struct ox_trie *trie) {
    free(trie->nodes);
    memset(trie, 0, sizeof *trie);
}

bool ox_added_next(struct ox_added_scan *scan) {
    size_t begin = 0;
    size_t end = 0;
    uint32_t index = 0;
    if (scan->done) {
        return false;
    }
    while (scan->trie->count > 0 && find(scan, &begin, &end, &index)) {
        const struct ox_added_token *const token = &scan->tokens[index - 1];
        scan->pos = end; /* the original also skips the text of a match that does not count */
        if ((token->special && !may_be_special(scan, begin, end)) ||
            (token->single_word && touches_word(scan, begin, end))) {
            continue;
        }
        if (token->lstrip) {
            begin = strip_left(scan, begin);
        }
        if (token->rstrip) {
            end = strip_right(scan, end);
        }
        scan->gap_begin = scan->covered;
        scan->gap_end = scan->covered < begin ? begin : scan->covered;
        scan->token = token;
        scan->covered = end;
        return true;
    }
    scan->done = true;
    scan->gap_begin = scan->covered;
    scan->gap_end = scan->bytes;
    scan->token = NULL;
    return scan->gap_begin < scan->gap_end;
}
