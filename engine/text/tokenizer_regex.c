/* Patterns of pre-tokenizers. The format's expressions have Oniguruma's (Ruby) syntax, but PCRE2 runs them here. Syntax
 * that the two read differently is rewritten or refused by name, because an almost correct split would go unnoticed.
 * Each pattern is compiled twice, because PCRE2's own character classes are fast but of another Unicode version: text
 * with a character that they may class otherwise is matched by an expression that spells its classes out. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/tokenizer_internal.h"

#include <ctype.h>
#include <limits.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EXCERPT_BYTES = 64 };

struct ox_regex {
    pcre2_code *fast, *exact;
    bool jit;       /* both are machine code */
    uint32_t loops; /* as loops_of counts them */
    struct ox_unicode_differences differences;
    char begin[EXCERPT_BYTES]; /* of the expression, for messages */
};

/* The stack of machine code is reserved whole; a match that needs more is interpreted, on the heap. */
enum { JIT_STACK_START_BYTES = 64 << 10, JIT_STACK_MAX_BYTES = 1 << 20, HEAP_MAX_KIB = 256 << 10 };

struct ox_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* Unicode White_Space; PCRE2's own \s also includes U+180E. */
static const char space_items[] = "\\t-\\r\\x{85}\\p{Z}";

/* The longest expression, and the longest that spelled-out classes make of it; published ones have some hundred
 * bytes. */
enum { PATTERN_BYTES_MAX = 16 << 10, TRANSLATED_BYTES_MAX = 4 << 20 };

/* What matching may take, far beyond what published expressions do: steps of backtracking in one match, and processor
 * time of all matches in a text with what happens between them. The library does not count steps of simple loops: one
 * loop takes at most as many as the text has bytes, and expressions with several are searched for in windows. */
enum { MATCH_STEPS = 10000000, MATCH_STEPS_PER_BYTE = 8, WALK_SECONDS = 2, WALK_NS_PER_BYTE = 10000 };
/* The clock is looked at after so many matches, and after so many starts of a search that may take this many steps. */
enum { MATCHES_PER_LOOK = 1024, STARTS_MIN = 16, STARTS_MAX = 1 << 20, SEARCH_STEPS = 1 << 28,
       QUICK_NS = 1000000 };
/* Windows of the interpreter: the smallest, the largest, and how many bytes all steps of a search in one may pass. */
enum { WINDOW_MIN = 1 << 16, WINDOW_MAX = 1 << 24 };
#define WINDOW_STEPS (UINT64_C(1) << 32)

struct translation {
    const char *where, *pattern;
    enum ox_unicode_version unicode;
    bool exact;
    size_t at;
    bool in_class;
    struct ox_text out;
};

/* The begin of a pattern, for a message. */
static const char *excerpt(const char *pattern, char text[EXCERPT_BYTES]) {
    const size_t bytes = strlen(pattern), most = EXCERPT_BYTES - 4;
    const size_t shown = bytes <= most ? bytes : ox_utf8_valid(pattern, most);
    snprintf(text, EXCERPT_BYTES, "%.*s%s", (int)shown, pattern, shown < bytes ? "..." : "");
    return text;
}

static enum ox_status refuse(const struct translation *t, const char *what, size_t length) {
    const char *const at = t->pattern + t->at;
    const size_t left = strlen(at), shown = length < left ? length : left;
    char begin[EXCERPT_BYTES];
    return ox_fail(OX_E_CONFIG, "%s: %s (\"%.*s\") is not supported at byte %zu of the expression \"%s\"", t->where,
                   what, (int)(shown < EXCERPT_BYTES ? shown : EXCERPT_BYTES), at, t->at, excerpt(t->pattern, begin));
}

static enum ox_status put(struct translation *t, const char *text) {
    return ox_text_append(&t->out, text, strlen(text));
}

/* Copies `length` characters of the pattern. */
static enum ox_status copy(struct translation *t, size_t length) {
    const enum ox_status status = ox_text_append(&t->out, t->pattern + t->at, length);
    t->at += length;
    return status;
}

static enum ox_status put_space(struct translation *t, bool negated) {
    if (t->in_class && negated) {
        return refuse(t, "\\S inside brackets", 2);
    }
    t->at += 2;
    enum ox_status status = OX_OK;
    if (!t->in_class) {
        status = put(t, negated ? "[^" : "[");
    }
    OX_THEN(status, put(t, space_items));
    return status == OX_OK && !t->in_class ? put(t, "]") : status;
}

/* Translates a property; its escape has `length` characters. */
static enum ox_status put_property(struct translation *t, const char *name, bool negated, size_t length) {
    if (!t->exact && ox_unicode_is_category(name)) {
        char item[8];
        snprintf(item, sizeof item, "\\%c{%s}", negated ? 'P' : 'p', name);
        t->at += length;
        return put(t, item);
    }
    enum ox_status status = put(t, t->in_class ? "" : negated ? "[^" : "[");
    OX_THEN(status, ox_unicode_put_property(name, negated && t->in_class, t->unicode, &t->out));
    OX_THEN(status, put(t, t->in_class ? "" : "]"));
    if (status == OX_E_CONFIG) {
        return refuse(t, "this property", length);
    }
    t->at += length;
    return status;
}

/* Translates \x{H...}, \uHHHH, and \xHH below 0x80; from 0x80 on, Oniguruma reads \xHH as a single byte. */
static enum ox_status translate_code(struct translation *t) {
    const char *const text = t->pattern + t->at;
    if (text[1] == 'x' && text[2] == '{') {
        const char *const end = strchr(text, '}');
        return end == NULL ? refuse(t, "an open \\x{", 3) : copy(t, (size_t)(end - text) + 1);
    }
    const unsigned digits = text[1] == 'x' ? 2 : 4;
    for (unsigned i = 0; i < digits; i++) {
        if (!isxdigit((unsigned char)text[2 + i])) {
            return refuse(t, "a short character code", 2);
        }
    }
    if (digits == 2 && text[2] > '7') {
        return refuse(t, "a byte above 0x7f", 4);
    }
    enum ox_status status = put(t, "\\x{");
    t->at += 2;
    OX_THEN(status, copy(t, digits));
    return status == OX_OK ? put(t, "}") : status;
}

static enum ox_status translate_escape(struct translation *t) {
    const char *const text = t->pattern + t->at;
    switch (text[1]) {
    case '\0':
        return refuse(t, "a backslash at the end", 1);
    case 's':
    case 'S':
        return put_space(t, text[1] == 'S');
    case 'd':
    case 'D':
        return put_property(t, "Nd", text[1] == 'D', 2);
    case 'p':
    case 'P': {
        const char *const end = strchr(text, '}');
        char name[64];
        if (text[2] != '{' || end == NULL) {
            return refuse(t, "a property without braces", 3);
        }
        snprintf(name, sizeof name, "%.*s", (int)(end - text - 3), text + 3);
        return put_property(t, name, text[1] == 'P', (size_t)(end - text) + 1);
    }
    case 'x':
    case 'u':
        return translate_code(t);
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'a':
    case 'e':
        return copy(t, 2);
    default:
        if (isalnum((unsigned char)text[1]) || (unsigned char)text[1] >= 0x80) {
            return refuse(t, "this escape", 2);
        }
        return copy(t, 2);
    }
}

static enum ox_status translate_in_class(struct translation *t) {
    const char *const text = t->pattern + t->at;
    if (text[0] == '[') {
        return refuse(t, "a bracket inside brackets", 2);
    }
    if (text[0] == '&' && text[1] == '&') {
        return refuse(t, "an intersection of sets", 2);
    }
    t->in_class = text[0] != ']';
    return copy(t, 1);
}

static enum ox_status translate_group(struct translation *t) {
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:"};
    const char *const text = t->pattern + t->at;
    if (text[1] == '*') {
        return refuse(t, "this group", 3);
    }
    if (text[1] != '?') {
        return copy(t, 1);
    }
    if (t->at == 0 && strncmp(text, "(?i)", 4) == 0) {
        return copy(t, 4);
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strncmp(text, known[i], strlen(known[i])) == 0) {
            return copy(t, strlen(known[i]));
        }
    }
    return refuse(t, "this group", 4);
}

/* Copies {n}, {n,} or {n,m}. A sign after it is refused: Oniguruma and PCRE2 give it different meanings. */
static enum ox_status translate_interval(struct translation *t) {
    const char *const text = t->pattern + t->at;
    size_t length = 1 + strspn(text + 1, "0123456789");
    const bool counted = length > 1;
    if (text[length] == ',') {
        length += 1 + strspn(text + length + 1, "0123456789");
    }
    if (!counted || text[length] != '}') {
        return refuse(t, "this repetition", length + 1);
    }
    const char next = text[length + 1];
    if (next == '+' || next == '?' || next == '*') {
        return refuse(t, "this repetition", length + 2);
    }
    return copy(t, length + 1);
}

static enum ox_status translate_step(struct translation *t) {
    const char *const text = t->pattern + t->at;
    if (text[0] == '\\') {
        return translate_escape(t);
    }
    if (t->in_class) {
        return translate_in_class(t);
    }
    switch (text[0]) {
    case '[': {
        const size_t length = text[1] == '^' ? 2 : 1;
        if (text[length] == ']') {
            return refuse(t, "an empty set", length + 1);
        }
        t->in_class = true;
        return copy(t, length);
    }
    case '(':
        return translate_group(t);
    case '{':
        return translate_interval(t);
    case '^':
    case '$':
        return refuse(t, "an anchor", 1);
    default:
        return copy(t, 1);
    }
}

static enum ox_status compile(const struct translation *t, pcre2_code **out) {
    pcre2_compile_context *const context = pcre2_compile_context_create(NULL);
    if (context == NULL || pcre2_set_newline(context, PCRE2_NEWLINE_LF) != 0) {
        pcre2_compile_context_free(context);
        return ox_fail(OX_E_NOMEM, "%s: no memory to compile an expression", t->where);
    }
    int error = 0;
    PCRE2_SIZE offset = 0;
    *out = pcre2_compile((PCRE2_SPTR)(t->out.data != NULL ? t->out.data : ""), t->out.bytes,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_USE_OFFSET_LIMIT, &error, &offset, context);
    pcre2_compile_context_free(context);
    if (*out == NULL) {
        PCRE2_UCHAR text[160] = "";
        char begin[EXCERPT_BYTES];
        pcre2_get_error_message(error, text, sizeof text);
        return ox_fail(OX_E_CONFIG, "%s: the expression \"%s\" is not supported: %s", t->where,
                       excerpt(t->pattern, begin), (const char *)text);
    }
    return OX_OK;
}

static enum ox_status translate(struct translation t, pcre2_code **out) {
    char begin[EXCERPT_BYTES];
    const size_t bytes = strlen(t.pattern);
    enum ox_status status = OX_OK;
    while (status == OX_OK && t.pattern[t.at] != '\0') {
        status = bytes <= PATTERN_BYTES_MAX && t.out.bytes <= TRANSLATED_BYTES_MAX
                     ? translate_step(&t)
                     : ox_fail(OX_E_CONFIG, "%s: the expression \"%s\" is too long: %zu bytes", t.where,
                               excerpt(t.pattern, begin), bytes);
    }
    OX_THEN(status, compile(&t, out));
    ox_text_free(&t.out);
    return status;
}

/* ---- simple loops ---------------------------------------------------------------------------------------------- */

enum { LOOPS_MAX = 1000, LOOP_MIN = 16, GROUPS_MAX = 100 };

/* The length of an element that is no group: a class, an escaped character or property, a character. */
static size_t element_bytes(const char *at) {
    if (at[0] == '\\' && at[1] != '\0') {
        const size_t braced = at[2] == '{' && strchr("pPxu", at[1]) != NULL ? strcspn(at, "}") : 1;
        return braced + (at[braced] != '\0');
    }
    size_t bytes = 1;
    if (at[0] == '[') {
        while (at[bytes] != '\0' && at[bytes] != ']') {
            bytes += at[bytes] == '\\' && at[bytes + 1] != '\0' ? 2 : 1;
        }
        bytes += at[bytes] == ']';
    }
    return bytes;
}

struct repetition {
    bool optional, loops, many; /* none is enough; it may give back one after another; more than one is possible */
};

/* Reads what follows an element; without a repetition it is there once. */
static struct repetition read_repetition(const char **at) {
    unsigned long least = **at == '+' ? 1 : 0, most = **at == '?' ? 1 : ULONG_MAX;
    if (**at == '{') {
        char *end = NULL;
        least = strtoul(*at + 1, &end, 10);
        most = *end != ',' ? least : end[1] == '}' ? ULONG_MAX : strtoul(end + 1, &end, 10);
        *at += strcspn(*at, "}") + ((*at)[strcspn(*at, "}")] == '}');
    } else if (**at == '*' || **at == '+' || **at == '?') {
        ++*at;
    } else {
        return (struct repetition){false, false, false};
    }
    const bool possessive = **at == '+';
    *at += possessive || **at == '?';
    return (struct repetition){least == 0, !possessive && most >= LOOP_MIN, most > 1};
}

/* How many loops of an expression a single match may have to try in all combinations: the most of any alternative. A
 * loop counts when what follows can fail and make it give back; the end of the expression cannot. Published expressions
 * have at most one. *at ends at a ")" or at the end; the loops of a repeated group count twice. */
static uint32_t loops_of(const char **at, uint32_t depth) {
    uint32_t most = 0, count = 0, pending = 0;
    while (**at != '\0' && **at != ')' && depth < GROUPS_MAX && count < LOOPS_MAX) {
        uint32_t inner = 0;
        if (**at == '|') {
            count += depth > 0 ? pending : 0;
            most = count > most ? count : most;
            count = pending = 0;
            ++*at;
            continue;
        }
        if (**at == '(') {
            ++*at;
            inner = loops_of(at, depth + 1);
            *at += **at == ')';
        } else {
            *at += element_bytes(*at);
        }
        const struct repetition found = read_repetition(at);
        count += (found.optional ? 0 : pending) + (found.many ? 2 * inner : inner);
        pending = (found.optional ? pending : 0) + found.loops;
    }
    count += depth > 0 ? pending : 0;
    return depth == GROUPS_MAX || count >= LOOPS_MAX ? LOOPS_MAX : count > most ? count : most;
}

static void close_regex(struct ox_regex **regex) {
    if (*regex != NULL) {
        pcre2_code_free((*regex)->fast);
        pcre2_code_free((*regex)->exact);
        free(*regex);
        *regex = NULL;
    }
}

static uint64_t thread_ns(void) {
    struct timespec now;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0
               ? (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec
               : 0;
}

static enum ox_status open_regex(const char *where, const char *pattern, enum ox_unicode_version version,
                                 struct ox_regex **out) {
    struct ox_regex *const regex = *out = calloc(1, sizeof *regex);
    if (regex == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for an expression", where);
    }
    const char *at = pattern;
    regex->loops = loops_of(&at, 0);
    excerpt(pattern, regex->begin);
    ox_unicode_compare(version, &regex->differences);
    struct translation t = {.where = where, .pattern = pattern, .unicode = version};
    enum ox_status status = translate(t, &regex->fast);
    t.exact = true;
    OX_THEN(status, translate(t, &regex->exact));
    if (status != OX_OK) {
        close_regex(out);
        return status;
    }
    /* If memory cannot be made executable, the slower interpreter matches. */
    const uint32_t modes = PCRE2_JIT_COMPLETE | (regex->loops > 1 ? PCRE2_JIT_PARTIAL_HARD : 0);
    regex->jit = pcre2_jit_compile(regex->fast, modes) == 0 && pcre2_jit_compile(regex->exact, modes) == 0;
    return OX_OK;
}

/* Processor time that all matches in a text may take. */
static uint64_t walk_ns(const struct ox_match_iter *walk) {
    return WALK_SECONDS * UINT64_C(1000000000) + walk->bytes * (uint64_t)WALK_NS_PER_BYTE;
}

static enum ox_status check_time(struct ox_match_iter *walk, size_t at) {
    const uint64_t now = thread_ns();
    walk->begin_ns = walk->begin_ns == 0 ? now : walk->begin_ns;
    return now - walk->begin_ns <= walk_ns(walk)
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "the tokenizer's expression \"%s\" takes too long for a text of %zu bytes: more "
                         "than %.0f s up to byte %zu", walk->pattern->regex->begin, walk->bytes,
                         (double)walk_ns(walk) * 1e-9, at);
}

/* Looks for a match that begins in [from, last], in the first `bytes` of the text. If that is not all of it, an attempt
 * that comes to their end is PCRE2_ERROR_PARTIAL. */
static int match_within(struct ox_matcher *matcher, const struct ox_match_iter *walk, const size_t range[2],
                        size_t bytes, bool jit, uint64_t steps) {
    const struct ox_regex *const regex = walk->pattern->regex;
    const pcre2_code *const code = walk->exact > 0 ? regex->exact : regex->fast;
    const PCRE2_SPTR text = (PCRE2_SPTR)walk->text;
    const uint32_t options = PCRE2_NO_UTF_CHECK | (bytes < walk->bytes ? PCRE2_PARTIAL_HARD : 0);
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    pcre2_set_match_limit(matcher->context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    pcre2_set_offset_limit(matcher->context, range[1]);
    if (jit && regex->jit) {
        rc = pcre2_jit_match(code, text, bytes, range[0], options, matcher->data, matcher->context);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(code, text, bytes, range[0], options | PCRE2_NO_JIT, matcher->data, matcher->context);
    }
    return rc;
}

/* How far machine code may look ahead where it does not count its steps: for one start, the window to the power of the
 * loops by their factorial is below 2^27. 0: not at all. */
static size_t first_window(uint32_t loops) {
    static const size_t windows[] = {SIZE_MAX, SIZE_MAX, 8192, 512, 128, 64, 64};
    return loops < sizeof windows / sizeof *windows ? windows[loops] : 0;
}

/* Looks for a match that begins in [from, last]. With several loops, what machine code cannot match in its window is
 * interpreted in larger ones. There each counted step passes at most a window of characters, and WINDOW_STEPS bounds
 * their product. */
static int search(struct ox_matcher *matcher, const struct ox_match_iter *walk, size_t from, size_t last) {
    const size_t range[2] = {from, last}, left = walk->bytes - from, first = first_window(walk->pattern->regex->loops);
    if (first == SIZE_MAX) {
        return match_within(matcher, walk, range, walk->bytes, true,
                            MATCH_STEPS + (uint64_t)walk->bytes * MATCH_STEPS_PER_BYTE);
    }
    int rc = PCRE2_ERROR_PARTIAL;
    for (size_t window = first > 0 ? first : WINDOW_MIN; rc == PCRE2_ERROR_PARTIAL && window <= WINDOW_MAX;
         window = window < WINDOW_MIN ? WINDOW_MIN : 16 * window) {
        size_t end = left <= window ? walk->bytes : from + window;
        while (end < walk->bytes && ((unsigned char)walk->text[end] & 0xc0) == 0x80) {
            end--;
        }
        rc = match_within(matcher, walk, range, end, window < WINDOW_MIN, WINDOW_STEPS / window);
    }
    return rc == PCRE2_ERROR_PARTIAL ? PCRE2_ERROR_MATCHLIMIT : rc;
}

static enum ox_status fail_match(const struct ox_match_iter *walk, size_t from, int rc) {
    PCRE2_UCHAR reason[160] = "";
    pcre2_get_error_message(rc, reason, sizeof reason);
    return ox_fail(rc == PCRE2_ERROR_NOMEMORY ? OX_E_NOMEM : OX_E_CONFIG,
                   "the tokenizer's expression \"%s\" fails at byte %zu of a text of %zu bytes: %s",
                   walk->pattern->regex->begin, from, walk->bytes, (const char *)reason);
}

/* Finds the next match at or after walk->from, in searches that end soon enough to look at the clock. */
static enum ox_status find_regex(struct ox_matcher *matcher, struct ox_match_iter *walk, bool *found) {
    if (walk->exact == 0) {
        walk->exact = ox_unicode_differs(&walk->pattern->regex->differences, walk->text, walk->bytes) ? 1 : -1;
    }
    enum ox_status status = ++walk->searches % MATCHES_PER_LOOK == 0 ? check_time(walk, walk->from) : OX_OK;
    const size_t share = SEARCH_STEPS / (walk->bytes + 1);
    const uint32_t loops = walk->pattern->regex->loops;
    const size_t starts_max = loops < 2 ? STARTS_MAX : STARTS_MIN; /* well within the first window */
    size_t starts = loops > 1 ? 1 : share < STARTS_MIN ? STARTS_MIN : share;
    for (size_t from = walk->from; status == OX_OK;) {
        const size_t last = walk->bytes - from > starts ? from + starts : walk->bytes;
        const int rc = search(matcher, walk, from, last);
        *found = rc >= 0;
        if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
            return fail_match(walk, from, rc);
        }
        if (*found || last == walk->bytes) {
            break;
        }
        const uint64_t before_ns = walk->looked_ns;
        status = check_time(walk, from);
        walk->looked_ns = thread_ns();
        starts = walk->looked_ns - before_ns < QUICK_NS && starts < starts_max ? 2 * starts : starts;
        for (from = last + 1; from < walk->bytes && ((unsigned char)walk->text[from] & 0xc0) == 0x80; from++) {
        }
    }
    if (status == OX_OK && *found) {
        const PCRE2_SIZE *const pair = pcre2_get_ovector_pointer(matcher->data);
        walk->begin = pair[0];
        walk->end = pair[1];
    }
    return status;
}

static void find_literal(struct ox_match_iter *walk, bool *found) {
    const struct ox_pattern *const pattern = walk->pattern;
    const char *const at =
        memmem(walk->text + walk->from, walk->bytes - walk->from, pattern->literal, pattern->literal_bytes);
    *found = at != NULL;
    if (at != NULL) {
        walk->begin = (size_t)(at - walk->text);
        walk->end = walk->begin + pattern->literal_bytes;
    }
}

enum ox_status ox_pattern_open(const char *where, const char *text, enum ox_unicode_version version,
                               struct ox_pattern *out) {
    memset(out, 0, sizeof *out);
    out->cut = ox_cut_of_pattern(text, version != OX_UNICODE_NONE);
    if (version != OX_UNICODE_NONE) {
        return open_regex(where, text, version, &out->regex);
    }
    if (text[0] == '\0') {
        return ox_fail(OX_E_CONFIG, "%s: an empty pattern is not supported", where);
    }
    out->literal = strdup(text);
    out->literal_bytes = strlen(text);
    return out->literal == NULL ? ox_fail(OX_E_NOMEM, "%s: no memory for a pattern", where) : OX_OK;
}

void ox_pattern_close(struct ox_pattern *pattern) {
    close_regex(&pattern->regex);
    free(pattern->literal);
    pattern->literal = NULL;
}

enum ox_status ox_matcher_open(struct ox_matcher **out) {
    struct ox_matcher *const matcher = calloc(1, sizeof *matcher);
    if (matcher != NULL) {
        matcher->data = pcre2_match_data_create(1, NULL);
        matcher->context = pcre2_match_context_create(NULL);
        matcher->stack = pcre2_jit_stack_create(JIT_STACK_START_BYTES, JIT_STACK_MAX_BYTES, NULL);
    }
    /* A PCRE2 library without JIT has no JIT stack. */
    uint32_t has_jit = 0;
    pcre2_config(PCRE2_CONFIG_JIT, &has_jit);
    if (matcher == NULL || matcher->data == NULL || matcher->context == NULL ||
        (has_jit != 0 && matcher->stack == NULL)) {
        struct ox_matcher *broken = matcher;
        ox_matcher_close(&broken);
        return ox_fail(OX_E_NOMEM, "no memory to match expressions");
    }
    pcre2_set_depth_limit(matcher->context, UINT32_MAX);
    pcre2_set_heap_limit(matcher->context, HEAP_MAX_KIB);
    if (matcher->stack != NULL) {
        pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    }
    *out = matcher;
    return OX_OK;
}

void ox_matcher_close(struct ox_matcher **matcher) {
    if (*matcher != NULL) {
        pcre2_match_data_free((*matcher)->data);
        pcre2_match_context_free((*matcher)->context);
        pcre2_jit_stack_free((*matcher)->stack);
        free(*matcher);
        *matcher = NULL;
    }
}

enum ox_status ox_match_next(struct ox_matcher *matcher, struct ox_match_iter *walk, bool *found) {
    *found = false;
    while (walk->from <= walk->bytes) {
        if (walk->pattern->regex == NULL) {
            find_literal(walk, found);
        } else {
            const enum ox_status status = find_regex(matcher, walk, found);
            if (status != OX_OK) {
                return status;
            }
        }
        if (!*found) {
            walk->from = walk->bytes + 1;
            return OX_OK;
        }
        if (walk->end > walk->begin || !walk->matched_before || walk->last_end != walk->end) {
            walk->from = walk->last_end = walk->end;
            walk->matched_before = true;
            return OX_OK;
        }
        if (walk->from == walk->bytes) {
            walk->from++;
        } else {
            ox_utf8_next(walk->text, &walk->from);
        }
    }
    *found = false;
    return OX_OK;
}
