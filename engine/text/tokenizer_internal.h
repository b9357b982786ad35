/* Shared by the tokenizer's files: the parts of a tokenizer.json as data, and the working memory of an encoder.
 * The terms are those of the format: a normalizer rewrites text, a pre-tokenizer cuts it into pieces, the model turns
 * a piece into ids, a post-processor adds ids before and after, and the decoder turns the tokens of ids into text. */
#ifndef OX_ENGINE_TOKENIZER_INTERNAL_H
#define OX_ENGINE_TOKENIZER_INTERNAL_H

#include "base/file.h"
#include "base/json.h"
#include "engine/text/text.h"
#include "engine/text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Unicode (tokenizer_unicode.c) --------------------------------------------------------------------------- */

/* Offset of the character that ends at `end` > 0. */
size_t ox_utf8_back(const char *text, size_t end);
/* Appends `text` with each invalid sequence replaced by U+FFFD. */
OX_MUST enum ox_status ox_utf8_lossy(struct ox_text *out, const char *text, size_t bytes);

/* One of the normalization forms NFC, NFD, NFKC, NFKD. */
struct ox_form;
struct ox_form_scratch {
    int32_t *cps, *sorted;
    size_t cps_capacity, sorted_capacity;
};
/* Made at its first use, and kept by the program; any thread may ask for it. */
const struct ox_form *ox_form_of(bool compose, bool compat);
/* Appends the normalized `text`. */
OX_MUST enum ox_status ox_form_apply(const struct ox_form *form, struct ox_form_scratch *work, const char *text,
                                     size_t bytes, struct ox_text *out);
void ox_form_scratch_free(struct ox_form_scratch *work);

/* ---- character classes (unicode.c) --------------------------------------------------------------------------- */

/* The Unicode version of each part of the original library: its parts have tables of their own. */
enum ox_unicode_version {
    OX_UNICODE_NONE = 0,    /* a literal, which has no classes */
    OX_UNICODE_FORMS = 9,   /* normalization forms */
    OX_UNICODE_REGEX = 16,  /* expressions, and words around added tokens */
    OX_UNICODE_DIGITS = 17, /* the pre-tokenizer Digits */
};
/* The two letters of a general category; "Cn" for a character that `version` lacks. */
const char *ox_unicode_category(uint32_t cp, unsigned version);
bool ox_unicode_is_newer(uint32_t cp, unsigned version);
bool ox_unicode_is_space(uint32_t cp); /* White_Space */
bool ox_unicode_is_word(uint32_t cp);  /* letter, mark, decimal digit or letter number, connector, joiner */
bool ox_unicode_is_category(const char *name); /* such as L or Lu */
/* Appends, as members of a PCRE2 bracket expression, the characters that have in `version` the property `name`, or do
 * not have it. A property is a general category or, not negated, a script. OX_E_CONFIG: no such property. */
OX_MUST enum ox_status ox_unicode_put_property(const char *name, bool negated, unsigned version, struct ox_text *out);

/* Between the classes of a version and PCRE2's own: a bit per 256 characters where some differ. */
struct ox_unicode_differences {
    unsigned version, other;
    uint64_t pages[0x1100 / 64];
};
void ox_unicode_compare(unsigned version, struct ox_unicode_differences *out);
/* Whether a character of the text is one that differs. */
bool ox_unicode_differs(const struct ox_unicode_differences *from, const char *text, size_t bytes);

/* ---- patterns (tokenizer_regex.c) ---------------------------------------------------------------------------- */

/* Where a pattern's matches end around a newline that is followed by a letter (tokenizer_cut.c). */
enum ox_newline_cut {
    OX_NEWLINE_CUT_UNKNOWN,
    OX_CUT_IGNORES, /* matches neither begin nor end there, nor do they look at the newline       */
    OX_NEWLINE_CUT_BEFORE,  /* a match ends before the newline, whether or not the text goes on after it  */
    OX_CUT_AFTER,   /* a match ends after the newline, whether or not the text goes on after it   */
};
enum ox_newline_cut ox_cut_of_pattern(const char *text, bool is_regex);

/* A regular expression in Oniguruma's syntax, or a literal. */
struct ox_regex;
struct ox_pattern {
    struct ox_regex *regex;
    char *literal; /* used when `regex` is NULL */
    size_t literal_bytes;
    enum ox_newline_cut cut;
};
/* `text` is an expression with the character classes of `version`, or with OX_UNICODE_NONE a literal. */
OX_MUST enum ox_status ox_pattern_open(const char *where, const char *text, enum ox_unicode_version version,
                                       struct ox_pattern *out);
void ox_pattern_close(struct ox_pattern *pattern);

/* The match memory of one thread. */
struct ox_matcher;
OX_MUST enum ox_status ox_matcher_open(struct ox_matcher **out);
void ox_matcher_close(struct ox_matcher **matcher);

/* A walk over the matches of a pattern in a text. Set pattern, text and bytes; zero the rest. An empty match right
 * after another match is skipped. */
struct ox_match_iter {
    const struct ox_pattern *pattern;
    const char *text;
    size_t bytes;
    size_t from, last_end;
    bool matched_before;
    uint64_t searches, begin_ns, looked_ns; /* how often a match was looked for, and processor time */
    int exact;         /* whether the text needs the exact expression: 1 yes, -1 no, 0 not looked at */
    size_t begin, end; /* the match found last */
};
OX_MUST enum ox_status ox_match_next(struct ox_matcher *matcher, struct ox_match_iter *walk, bool *found);

/* ---- added tokens (tokenizer_added.c) ------------------------------------------------------------------------ */

struct ox_added_token {
    char *text;
    size_t bytes;
    uint32_t id;
    bool single_word, lstrip, rstrip, normalized, special; /* normalized: some search finds it after the normalizer */
    unsigned searches; /* bits of enum ox_added_search */
};
/* The searches that find an added token: first special ones, each before and after the normalizer. Where a file beside
 * gives a token other flags, it stays in the searches in which it was. */
enum ox_added_search { OX_FIND_SPECIAL = 1, OX_FIND_SPECIAL_LATE = 2, OX_FIND_OTHER = 4, OX_FIND_OTHER_LATE = 8 };

/* ---- files beside (tokenizer_beside.c) ----------------------------------------------------------------------- */

/* A token that a file beside tokenizer.json adds, in the order of adding. One with the same text gets its flags. Its
 * own id follows from its place; `id` is what the file says, -1 for nothing. */
struct ox_tok_beside_token {
    struct ox_added_token token;
    int64_t id;
    size_t order;
};
struct ox_tok_beside {
    json_t *config;            /* tokenizer_config.json with the names of special_tokens_map.json */
    char where[OX_PATH_BYTES]; /* path of the former */
    struct ox_tok_beside_token *tokens;
    size_t count, capacity;
};
/* Reads the files of `folder`, which need not be there; `listed` are the added tokens of tokenizer.json. Close *out
 * after failures too. */
OX_MUST enum ox_status ox_tok_beside_open(const char *folder, const json_t *listed, struct ox_tok_beside *out);
void ox_tok_beside_close(struct ox_tok_beside *beside);

struct ox_trie_node {
    uint32_t child, sibling; /* 0: none; node 0 is the root */
    uint32_t token;          /* index + 1, or 0 */
    uint8_t byte;
};
struct ox_trie {
    struct ox_trie_node *nodes;
    size_t count, capacity;
    uint32_t first[256]; /* children of the root */
};
OX_MUST enum ox_status ox_trie_add(struct ox_trie *trie, const char *text, size_t bytes, uint32_t token);
/* The node that `byte` leads to from `node`; 0: none. */
uint32_t ox_trie_child(const struct ox_trie *trie, uint32_t node, uint8_t byte);
void ox_trie_free(struct ox_trie *trie);

/* A walk over the added tokens in a text. Set trie, tokens, text and bytes, and how special tokens are treated; zero
 * the rest. */
struct ox_added_scan {
    const struct ox_trie *trie;
    const struct ox_added_token *tokens;
    const char *text;
    size_t bytes;
    bool skip_special;                /* special tokens are ordinary text */
    const struct ox_text_part *parts; /* if not NULL, special tokens are found only inside control parts */
    size_t part;                      /* the part that contains pos */
    size_t pos, covered, space_begin, space_end;
    bool done;
    size_t gap_begin, gap_end;          /* the ordinary text before the token; may be empty */
    const struct ox_added_token *token; /* NULL after the last token: the gap is the rest of the text */
};
/* Finds the next gap and token; false at the end of the text. */
bool ox_added_next(struct ox_added_scan *scan);

/* ---- the model (tokenizer_bpe.c, tokenizer_merge.c) ---------------------------------------------------------- */

enum { OX_TOK_ID_LIMIT = 1 << 24 };

struct ox_merge_slot {
    uint32_t left, right; /* left = UINT32_MAX: empty */
    uint32_t rank, id;
};

struct ox_bpe {
    /* vocabulary */
    struct ox_text texts; /* all tokens, each NUL-terminated */
    uint32_t *text_begin; /* by id; UINT32_MAX: no token has this id */
    uint32_t *text_bytes;
    uint32_t id_count, token_count, token_bytes_max;
    uint32_t *slots; /* id + 1 by hash of the text */
    uint64_t slot_mask;
    /* merges */
    struct ox_merge_slot *merges;
    uint64_t merge_mask;
    unsigned merge_shift;
    /* characters */
    int32_t byte_ids[256];     /* ids of ByteLevel's characters, or -1 */
    int32_t fallback_ids[256]; /* ids of <0xXX>, or -1 */
    uint16_t *char_pages;      /* page number by code point / 256; page 0 has no tokens */
    int32_t *char_ids;         /* ids of the characters, 256 to a page; -1: not a token */
    uint32_t char_page_count;
    /* a Bloom filter of the pairs of characters that some merge joins: no false negatives */
    uint64_t *joins;
    unsigned join_shift;
    bool byte_level, byte_fallback, fuse_unk, ignore_merges;
    int64_t unk_id; /* the unknown token; -1: none; -2: named, but not in the vocabulary */
    char *unk_text;
};
/* Reads the "model" object of the file; `byte_level` tells whether the pre-tokenizer turns pieces into bytes. */
OX_MUST enum ox_status ox_bpe_open(const char *where, const json_t *model, bool byte_level, struct ox_bpe *out);
void ox_bpe_close(struct ox_bpe *bpe);
/* Lookups: the id of a token's text, or -1; the merge of two ids, or NULL; the id of a character, or -1. */
int64_t ox_bpe_find(const struct ox_bpe *bpe, const char *text, size_t bytes);
const struct ox_merge_slot *ox_bpe_merge(const struct ox_bpe *bpe, uint32_t left, uint32_t right);
int32_t ox_bpe_char_id(const struct ox_bpe *bpe, uint32_t cp);
/* Whether some merge may join these two characters at its border; false is certain, true is not. */
bool ox_bpe_may_join(const struct ox_bpe *bpe, uint32_t left, uint32_t right);

struct ox_bpe_scratch;
/* For the encoding of text by `bpe`. */
OX_MUST enum ox_status ox_bpe_scratch_open(const struct ox_bpe *bpe, struct ox_bpe_scratch **out);
void ox_bpe_scratch_close(struct ox_bpe_scratch **work);
/* Appends the ids of one piece. */
OX_MUST enum ox_status ox_bpe_encode(const struct ox_bpe *bpe, struct ox_bpe_scratch *work, const char *piece,
                                     size_t bytes, struct ox_ids *out);

/* ---- steps (tokenizer_steps.c) ------------------------------------------------------------------------------- */

enum ox_tok_step_kind {
    /* normalizers */
    OX_TOK_FORM,
    OX_TOK_PREPEND, /* content */
    OX_TOK_REPLACE, /* pattern by content; also a decoder */
    /* pre-tokenizers */
    OX_TOK_PREFIX_SPACE,
    OX_TOK_SPLIT,
    OX_TOK_METASPACE, /* content is the replacement; also a decoder */
    /* decoders */
    OX_TOK_BYTE_LEVEL,
    OX_TOK_BYTE_FALLBACK,
    OX_TOK_FUSE,
    OX_TOK_STRIP, /* the character in content */
};
enum ox_split_behavior {
    OX_SPLIT_ISOLATED,
    OX_SPLIT_REMOVED,
    OX_SPLIT_WITH_PREVIOUS,
    OX_SPLIT_WITH_NEXT,
    OX_SPLIT_CONTIGUOUS,
};
enum ox_prepend_scheme { OX_PREPEND_ALWAYS, OX_PREPEND_FIRST, OX_PREPEND_NEVER };

struct ox_tok_step {
    enum ox_tok_step_kind kind;
    const struct ox_form *form;
    bool compat; /* the form is NFKC or NFKD */
    struct ox_pattern pattern;
    char *content;
    size_t content_bytes;
    enum ox_split_behavior behavior;
    bool invert;
    enum ox_prepend_scheme prepend;
    bool split;           /* Metaspace: cut the text before every replacement character */
    uint64_t start, stop; /* Strip: how many characters to remove at most from either end */
};
enum { OX_TOK_STEPS_MAX = 16 };
struct ox_tok_steps {
    struct ox_tok_step step[OX_TOK_STEPS_MAX];
    uint32_t count;
};
/* The post-processor: ids to add before and after a text. */
struct ox_tok_post {
    struct ox_ids before, after;
    bool is_template;
};
/* Appends `text` with every match of the step's pattern replaced by its content; more than `bytes_max` are an error.
 * `matcher` may be NULL for a literal pattern. */
OX_MUST enum ox_status ox_tok_replace(struct ox_matcher *matcher, const struct ox_tok_step *step, const char *text,
                                      size_t bytes, size_t bytes_max, struct ox_text *out);
OX_MUST enum ox_status ox_tok_normalizer_open(const char *where, const json_t *json, struct ox_tok_steps *out);
OX_MUST enum ox_status ox_tok_pre_open(const char *where, const json_t *json, struct ox_tok_steps *out,
                                       bool *byte_level);
OX_MUST enum ox_status ox_tok_decoder_open(const char *where, const json_t *json, struct ox_tok_steps *out);
OX_MUST enum ox_status ox_tok_post_open(const char *where, const json_t *json, struct ox_tok_post *out);
void ox_tok_steps_close(struct ox_tok_steps *steps);

/* ---- the whole ----------------------------------------------------------------------------------------------- */

struct ox_tokenizer {
    struct ox_bpe bpe;
    struct ox_tok_steps normalizer, pre, decoder;
    bool has_decoder;
    struct ox_tok_post post;
    struct ox_added_token *added;
    uint32_t added_count;
    uint32_t *added_by_id; /* index + 1 by id, vocab_count of them */
    uint32_t *added_slots; /* index + 1 by hash of the text */
    uint64_t added_mask;
    struct ox_trie raw, normalized; /* added tokens searched for before and after the normalizer */
    uint32_t vocab_count;
    int64_t bos, eos, pad;
    bool adds_bos;
    uint64_t fingerprint;
};
struct ox_normal_scratch {
    struct ox_matcher *matcher;
    struct ox_form_scratch form;
    struct ox_text a, b;
    bool continues; /* the text continues another one, so Prepend does nothing */
};
/* Normalizes `text` into *out, which points into `work` or is `text`. */
OX_MUST enum ox_status ox_tok_normalize(const struct ox_tok_steps *steps, struct ox_normal_scratch *work,
                                        const char *text, size_t bytes, const char **out, size_t *out_bytes);
void ox_normal_scratch_close(struct ox_normal_scratch *work);

#ifdef __cplusplus
}
#endif
#endif
