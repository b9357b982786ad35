/* Decides whether a text may be cut at a newline that is followed by a letter, without changing its ids. A cut is safe
 * if no added token, pattern match or vocabulary token can span it, and if no match before it looks past it. */
#include "engine/text/tokenizer_internal.h"

#include <string.h>

/* Known patterns, sorted by how they treat white space that ends with the newline:
 * - GPT-2's \s+(?!\S) matches all of it but the last character, and the newline is a match of its own. The match
 *   before the newline is the same if the text ends there.
 * - In the others, [\r\n]* after other characters or \s*[\r\n]+ ends with the newline, whatever follows.
 * None of them has a lookbehind. */
static const struct {
    enum ox_newline_cut cut;
    const char *regex;
} known[] = {
    /* GPT-2 */
    {OX_NEWLINE_CUT_BEFORE, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    /* Llama-3 */
    {OX_CUT_AFTER, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    /* Qwen2, Qwen3 */
    {OX_CUT_AFTER, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    /* Mistral-Nemo */
    {OX_CUT_AFTER, "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
                    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}|"
                    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {OX_CUT_IGNORES, "\\p{N}"},
    {OX_CUT_IGNORES, "\\p{N}{1,3}"},
};

static bool may_be_letter(char character) {
    const unsigned char byte = (unsigned char)character;
    return byte >= 0x80 || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

enum ox_newline_cut ox_cut_of_pattern(const char *text, bool is_regex) {
    if (!is_regex) {
        return strchr(text, '\n') == NULL && !may_be_letter(text[0]) ? OX_CUT_IGNORES : OX_NEWLINE_CUT_UNKNOWN;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(text, known[i].regex) == 0) {
            return known[i].cut;
        }
    }
    return OX_NEWLINE_CUT_UNKNOWN;
}

/* Whether `text` contains `newline` followed by something that may be a letter: a letter, a byte of one, or the token
 * `unknown` (NULL for none). */
static bool has_cut_inside(const char *text, const char *newline, const char *unknown) {
    const size_t bytes = strlen(newline);
    for (const char *at = strstr(text, newline); at != NULL; at = strstr(at + bytes, newline)) {
        if (may_be_letter(at[bytes]) || strncmp(at + bytes, "<0x", 3) == 0 ||
            (unknown != NULL && strncmp(at + bytes, unknown, strlen(unknown)) == 0)) {
            return true;
        }
    }
    return false;
}

/* Whether the tokenizer puts something before a text; it then also does so after added tokens. */
static bool adds_prefix(const struct ox_tokenizer *tokenizer) {
    bool found = false;
    for (uint32_t i = 0; i < tokenizer->normalizer.count; i++) {
        found = found || tokenizer->normalizer.step[i].kind == OX_TOK_PREPEND;
    }
    for (uint32_t i = 0; i < tokenizer->pre.count; i++) {
        found = found || tokenizer->pre.step[i].kind == OX_TOK_PREFIX_SPACE ||
                tokenizer->pre.step[i].kind == OX_TOK_METASPACE;
    }
    return found;
}

/* Whether the added tokens allow the cut. No added token may span the cut, or strip or contain the newline at it. Cuts
 * before the newline fail for two more reasons. A prefix added to the text after a token would be missing if a piece
 * begins there. And a token in place of the letter ends the text for the pattern, which then matches the newline
 * too. */
static bool added_allow(const struct ox_tokenizer *tokenizer, enum ox_cuts cuts) {
    const bool prefixed = adds_prefix(tokenizer);
    const bool no_newline = prefixed || cuts == OX_CUTS_BEFORE_NEWLINE;
    if (prefixed && cuts == OX_CUTS_BEFORE_NEWLINE && tokenizer->added_count > 0) {
        return false;
    }
    for (uint32_t i = 0; i < tokenizer->added_count; i++) {
        const struct ox_added_token *const token = &tokenizer->added[i];
        const bool no_letter = token->lstrip || cuts == OX_CUTS_BEFORE_NEWLINE;
        if (token->rstrip || (no_letter && may_be_letter(token->text[0])) ||
            has_cut_inside(token->text, "\n", NULL) || (no_newline && strchr(token->text, '\n') != NULL)) {
            return false;
        }
    }
    return true;
}

/* The cuts of a byte-level tokenizer. The first pattern that splits at the newline decides, because later patterns and
 * the vocabulary see its pieces one by one. NFC and NFD never join a newline with its neighbours. */
static enum ox_cuts cuts_of_bytes(const struct ox_tokenizer *tokenizer) {
    enum ox_cuts cuts = OX_CUTS_NONE;
    for (uint32_t i = 0; i < tokenizer->normalizer.count; i++) {
        const struct ox_tok_step *const step = &tokenizer->normalizer.step[i];
        if (step->kind != OX_TOK_FORM || step->compat) {
            return OX_CUTS_NONE;
        }
    }
    for (uint32_t i = 0; i < tokenizer->pre.count; i++) {
        const struct ox_tok_step *const step = &tokenizer->pre.step[i];
        const bool keeps = step->behavior == OX_SPLIT_ISOLATED || (step->behavior == OX_SPLIT_REMOVED && step->invert);
        if (step->kind == OX_TOK_PREFIX_SPACE && cuts == OX_CUTS_NONE) {
            continue;
        }
        if (step->kind != OX_TOK_SPLIT) {
            return OX_CUTS_NONE; /* every piece would get a space */
        }
        if (cuts == OX_CUTS_NONE && step->pattern.cut != OX_CUT_IGNORES) {
            if (step->pattern.cut == OX_NEWLINE_CUT_UNKNOWN || !keeps) {
                return OX_CUTS_NONE;
            }
            cuts = step->pattern.cut == OX_NEWLINE_CUT_BEFORE ? OX_CUTS_BEFORE_NEWLINE : OX_CUTS_AFTER_NEWLINE;
        }
    }
    return cuts;
}

static bool has_all_bytes(const struct ox_bpe *bpe) {
    bool all = bpe->byte_fallback;
    for (unsigned byte = 0; byte < 256; byte++) {
        all = all && bpe->fallback_ids[byte] >= 0;
    }
    return all;
}

/* Whether a character-level tokenizer allows a cut after the newline. Merges work across the whole text, so:
 * - no token may contain a newline followed by a letter;
 * - no letter may vanish because it has no token, as the newline would then meet the character after it;
 * - the newline must be a symbol of its own and not part of a joined unknown token.
 * The text before the newline does not matter. */
static bool characters_allow(const struct ox_tokenizer *tokenizer) {
    const struct ox_bpe *const bpe = &tokenizer->bpe;
    const bool newline_known = has_all_bytes(bpe) || (ox_bpe_char_id(bpe, '\n') >= 0 && bpe->unk_id != -1);
    for (uint32_t i = 0; i < tokenizer->normalizer.count; i++) {
        const struct ox_tok_step *const step = &tokenizer->normalizer.step[i];
        const bool replaces =
            step->kind == OX_TOK_REPLACE && step->pattern.literal != NULL && step->pattern.cut == OX_CUT_IGNORES;
        if (step->kind != OX_TOK_PREPEND && !replaces) {
            return false;
        }
    }
    for (uint32_t i = 0; i < tokenizer->pre.count; i++) {
        const struct ox_tok_step *const step = &tokenizer->pre.step[i];
        const bool splits =
            step->kind == OX_TOK_SPLIT && step->pattern.literal != NULL && step->pattern.cut == OX_CUT_IGNORES;
        if ((step->kind != OX_TOK_METASPACE || tokenizer->pre.count > 1) && !splits) {
            return false;
        }
    }
    for (uint32_t id = 0; id < bpe->id_count && newline_known; id++) {
        const char *const text = bpe->text_begin[id] == UINT32_MAX ? "" : bpe->texts.data + bpe->text_begin[id];
        if (has_cut_inside(text, "\n", bpe->unk_text) || has_cut_inside(text, "<0x0A>", bpe->unk_text)) {
            return false;
        }
    }
    return newline_known && !bpe->ignore_merges;
}

enum ox_cuts ox_tokenizer_cuts(const struct ox_tokenizer *tokenizer) {
    enum ox_cuts cuts = OX_CUTS_NONE;
    if (tokenizer->bpe.byte_level) {
        cuts = cuts_of_bytes(tokenizer);
    } else if (characters_allow(tokenizer)) {
        cuts = OX_CUTS_AFTER_NEWLINE;
    }
    return added_allow(tokenizer, cuts) ? cuts : OX_CUTS_NONE;
}
