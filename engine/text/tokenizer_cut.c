/* Where a text may be cut near a newline that a letter follows, without changing its ids. A cut is harmless when no
 * added token, no match of a pattern and no token of the vocabulary can lie across it, and when nothing before it looks
 * at what comes behind. */
#include "engine/text/tokenizer_internal.h"

#include <string.h>

/* Patterns by what becomes of white space that ends with the newline. GPT-2's \s+(?!\S) takes all of it but the last
 * character, and the newline is a match of its own; where the text ends before the newline it takes the same. In the
 * others either [\r\n]* behind other characters or \s*[\r\n]+ ends with the newline, whatever comes. None of them has a
 * lookbehind. */
static const struct {
    enum ox_cut cut;
    const char *regex;
} known[] = {
    /* GPT-2 */
    {OX_CUT_BEFORE, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    /* Llama-3 */
    {OX_CUT_BEHIND, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    /* Qwen2, Qwen3 */
    {OX_CUT_BEHIND, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    /* Mistral-Nemo */
    {OX_CUT_BEHIND, "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
                    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}|"
                    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {OX_CUT_PASSES, "\\p{N}"},
    {OX_CUT_PASSES, "\\p{N}{1,3}"},
};

static bool may_be_letter(char character) {
    const unsigned char byte = (unsigned char)character;
    return byte >= 0x80 || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

enum ox_cut ox_cut_of_pattern(const char *text, bool is_regex) {
    if (!is_regex) {
        return strchr(text, '\n') == NULL && !may_be_letter(text[0]) ? OX_CUT_PASSES : OX_CUT_UNKNOWN;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(text, known[i].regex) == 0) {
            return known[i].cut;
        }
    }
    return OX_CUT_UNKNOWN;
}

/* Whether `newline`, as it is written in `text`, is followed by what may be a letter, or a byte of one, or stands for
 * unknown ones (NULL: nothing does). */
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

/* Whether the tokenizer puts something before a text, which it then puts behind added tokens too. */
static bool prefixes(const struct ox_tokenizer *tokenizer) {
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

/* An added token may not lie across, nor swallow the newline or ask for it. Before the newline there is more to mind:
 * what is put in front of the text behind a token would be missing where a piece begins there, and a token in the
 * letter's place would end the text for the pattern, which then takes the newline too. */
static bool added_allow(const struct ox_tokenizer *tokenizer, enum ox_cuts cuts) {
    const bool prefixed = prefixes(tokenizer);
    const bool no_newline = prefixed || cuts == OX_CUTS_BEFORE;
    if (prefixed && cuts == OX_CUTS_BEFORE && tokenizer->added_count > 0) {
        return false;
    }
    for (uint32_t i = 0; i < tokenizer->added_count; i++) {
        const struct ox_added_token *const token = &tokenizer->added[i];
        const bool minds_letter = token->lstrip || cuts == OX_CUTS_BEFORE;
        if (token->rstrip || (minds_letter && may_be_letter(token->text[0])) ||
            has_cut_inside(token->text, "\n", NULL) || (no_newline && strchr(token->text, '\n') != NULL)) {
            return false;
        }
    }
    return true;
}

/* Bytes: the first pattern that parts the text there decides, as those behind it get its parts one by one, and so does
 * the vocabulary. Canonical forms leave a newline, and what stands on either side of it, apart. */
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
            return OX_CUTS_NONE; /* every part would get a space */
        }
        if (cuts == OX_CUTS_NONE && step->pattern.cut != OX_CUT_PASSES) {
            if (step->pattern.cut == OX_CUT_UNKNOWN || !keeps) {
                return OX_CUTS_NONE;
            }
            cuts = step->pattern.cut == OX_CUT_BEFORE ? OX_CUTS_BEFORE : OX_CUTS_BEHIND;
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

/* Characters: merges go on over the whole text, so no token may hold a newline and a letter behind it, and no letter
 * may vanish for want of a token, which would bring the newline to what follows; and the newline must be a symbol of
 * its own, where unknown characters are joined into one. What stands before it does not matter. */
static bool characters_allow(const struct ox_tokenizer *tokenizer) {
    const struct ox_bpe *const bpe = &tokenizer->bpe;
    const bool newline_known = has_all_bytes(bpe) || (ox_bpe_char_id(bpe, '\n') >= 0 && bpe->unk_id != -1);
    for (uint32_t i = 0; i < tokenizer->normalizer.count; i++) {
        const struct ox_tok_step *const step = &tokenizer->normalizer.step[i];
        const bool replaces =
            step->kind == OX_TOK_REPLACE && step->pattern.literal != NULL && step->pattern.cut == OX_CUT_PASSES;
        if (step->kind != OX_TOK_PREPEND && !replaces) {
            return false;
        }
    }
    for (uint32_t i = 0; i < tokenizer->pre.count; i++) {
        const struct ox_tok_step *const step = &tokenizer->pre.step[i];
        const bool splits =
            step->kind == OX_TOK_SPLIT && step->pattern.literal != NULL && step->pattern.cut == OX_CUT_PASSES;
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
        cuts = OX_CUTS_BEHIND;
    }
    return added_allow(tokenizer, cuts) ? cuts : OX_CUTS_NONE;
}
