/* Owns the tokens of a template. White space around tags goes as jinja2 takes it away with trim_blocks and
 * lstrip_blocks: the newline after a block or comment, blanks before it on its line, and all white space at a "-". */
#include "engine/jinja/ast_internal.h"

#include <stdlib.h>
#include <string.h>

enum { NESTED_BRACES_MAX = 256 };

struct lexer {
    struct run *run;
    const char *source;
    size_t bytes, at;
    uint32_t line;
    size_t counted;  /* up to where lines and columns are */
    uint32_t points; /* of the line, up to there */
    bool line_starting;         /* what was read last ended a line */
    char braces[NESTED_BRACES_MAX]; /* the closing braces that are awaited */
    size_t brace_count;
    struct token *tokens;
    size_t token_count, token_capacity;
};

/* ---- places and tokens ----------------------------------------------------------------------------------------- */

/* Each byte is counted once, because places are asked for in order. */
static struct place place_of(struct lexer *lexer, size_t at) {
    for (; lexer->counted < at; lexer->counted++) {
        const char c = lexer->source[lexer->counted];
        lexer->line += c == '\n';
        lexer->points = c == '\n' ? 0 : lexer->points + ((c & 0xC0) != 0x80);
    }
    return (struct place){lexer->line, lexer->points + 1};
}

static struct token *add_token(struct lexer *lexer, enum token_kind kind, size_t begin, size_t end) {
    if (lexer->token_count == lexer->token_capacity) {
        const size_t capacity = lexer->token_capacity == 0 ? 256 : lexer->token_capacity * 2;
        struct token *const tokens = ox_ji_new(lexer->run, capacity * sizeof *tokens);
        if (tokens == NULL) {
            return NULL;
        }
        if (lexer->token_count > 0) {
            memcpy(tokens, lexer->tokens, lexer->token_count * sizeof *tokens);
        }
        lexer->tokens = tokens;
        lexer->token_capacity = capacity;
    }
    struct token *const token = &lexer->tokens[lexer->token_count++];
    const size_t counted = lexer->counted;
    *token = (struct token){.kind = kind,
                            .place = place_of(lexer, begin),
                            .text = lexer->source + begin,
                            .bytes = end - begin};
    return ox_ji_spend(lexer->run, 1 + (lexer->counted - counted) / 64) ? token : NULL;
}

static bool failed_at(struct lexer *lexer, size_t at, const char *message) {
    lexer->run->place = place_of(lexer, at);
    return ox_ji_fail(lexer->run, "%s", message);
}

/* Moves to `end`, where a match ends. */
static void advance(struct lexer *lexer, size_t end) {
    if (end > lexer->at) {
        lexer->line_starting = lexer->source[end - 1] == '\n';
    }
    lexer->at = end;
}

static bool follows(const struct lexer *lexer, size_t at, const char *text) {
    const size_t bytes = strlen(text);
    return lexer->bytes - at >= bytes && memcmp(lexer->source + at, text, bytes) == 0;
}

static size_t skip_space(const struct lexer *lexer, size_t at) {
    while (at < lexer->bytes) {
        size_t next = at;
        if (!ox_ji_is_space(ox_ji_next_point(lexer->source, &next))) {
            break;
        }
        at = next;
    }
    return at;
}

/* Returns where the end of a tag that stands at `at` ends, or 0: "%}" with "+" or "-" before it. What `trims` also
 * takes a newline after it. */
static size_t tag_end(const struct lexer *lexer, size_t at, const char *end, bool trims) {
    const bool has_sign = at < lexer->bytes && (lexer->source[at] == '-' || (trims && lexer->source[at] == '+'));
    const size_t begin = at + has_sign;
    if (begin >= lexer->bytes || !follows(lexer, begin, end)) {
        return 0;
    }
    at = begin + 2;
    if (has_sign) {
        return lexer->source[begin - 1] == '-' ? skip_space(lexer, at) : at;
    }
    return at + (trims && at < lexer->bytes && lexer->source[at] == '\n');
}

/* ---- data ------------------------------------------------------------------------------------------------------ */

/* The end of the text [begin, end) before a tag with this sign: '-', '+' or another character. */
static size_t strip_before(const struct lexer *lexer, size_t begin, size_t end, char sign, bool is_variable) {
    size_t line = end;
    size_t blank = begin; /* after the last character that is no white space */
    for (size_t at = begin; at < end;) {
        const bool is_space = ox_ji_is_space(ox_ji_next_point(lexer->source, &at));
        blank = is_space ? blank : at;
    }
    if (sign == '-') {
        return blank;
    }
    if (sign == '+' || is_variable) {
        return end;
    }
    while (line > begin && lexer->source[line - 1] != '\n') {
        line--;
    }
    return (line > begin || lexer->line_starting) && blank <= line ? line : end;
}

static bool add_data(struct lexer *lexer, size_t begin, size_t end) {
    return begin == end || add_token(lexer, T_DATA, begin, end) != NULL;
}

/* Returns where "{% raw %}" at `at` ends, or 0. */
static size_t raw_begin(const struct lexer *lexer, size_t at) {
    at += 2;
    at += at < lexer->bytes && (lexer->source[at] == '-' || lexer->source[at] == '+');
    at = skip_space(lexer, at);
    return follows(lexer, at, "raw") ? tag_end(lexer, skip_space(lexer, at + 3), "%}", false) : 0;
}

/* Returns where "{% endraw %}" at `at` ends, or 0. */
static size_t raw_end(const struct lexer *lexer, size_t at) {
    if (!follows(lexer, at, "{%")) {
        return 0;
    }
    at += 2;
    at += at < lexer->bytes && (lexer->source[at] == '-' || lexer->source[at] == '+');
    at = skip_space(lexer, at);
    return follows(lexer, at, "endraw") ? tag_end(lexer, skip_space(lexer, at + 6), "%}", true) : 0;
}

static bool lex_raw(struct lexer *lexer) {
    const size_t begin = lexer->at;
    for (size_t at = begin; at < lexer->bytes; at++) {
        const size_t end = lexer->source[at] == '{' ? raw_end(lexer, at) : 0;
        if (end != 0) {
            const char sign = lexer->source[at + 2];
            const bool ok = add_data(lexer, begin, strip_before(lexer, begin, at, sign, false));
            advance(lexer, end);
            return ok;
        }
    }
    /* Without anything after it, the directive is nothing. */
    return begin == lexer->bytes || failed_at(lexer, begin, "Missing end of raw directive");
}

static bool lex_comment(struct lexer *lexer) {
    for (size_t at = lexer->at; at < lexer->bytes; at++) {
        const size_t end = tag_end(lexer, at, "#}", true);
        if (end != 0) {
            advance(lexer, end);
            return true;
        }
    }
    return lexer->at == lexer->bytes || failed_at(lexer, lexer->at, "Missing end of comment tag");
}

/* ---- what tags are made of ------------------------------------------------------------------------------------- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Digits with single "_" between them; returns their end. */
static size_t digits_end(const struct lexer *lexer, size_t at) {
    while (at < lexer->bytes && (is_digit(lexer->source[at]) ||
                                 (lexer->source[at] == '_' && at + 1 < lexer->bytes &&
                                  is_digit(lexer->source[at + 1]) && is_digit(lexer->source[at - 1])))) {
        at++;
    }
    return at;
}

/* The end of the real number at `at`, or 0 where there is none. */
static size_t float_end(const struct lexer *lexer, size_t at) {
    if (at > 0 && lexer->source[at - 1] == '.') {
        return 0;
    }
    size_t end = digits_end(lexer, at);
    bool is_float = false;
    if (end + 1 < lexer->bytes && lexer->source[end] == '.' && is_digit(lexer->source[end + 1])) {
        end = digits_end(lexer, end + 1);
        is_float = true;
    }
    if (end < lexer->bytes && (lexer->source[end] | 0x20) == 'e') {
        size_t exponent = end + 1;
        exponent += exponent < lexer->bytes && (lexer->source[exponent] == '+' || lexer->source[exponent] == '-');
        if (exponent < lexer->bytes && is_digit(lexer->source[exponent])) {
            end = digits_end(lexer, exponent);
            is_float = true;
        }
    }
    return is_float ? end : 0;
}

static size_t integer_end(const struct lexer *lexer, size_t at) {
    const char mark = at + 1 < lexer->bytes && lexer->source[at] == '0' ? (char)(lexer->source[at + 1] | 0x20) : ' ';
    const char *const allowed = mark == 'b'   ? "01"
                                : mark == 'o' ? "01234567"
                                : mark == 'x' ? "0123456789abcdefABCDEF"
                                              : "";
    size_t end = at + 2;
    while (*allowed != '\0' && end < lexer->bytes) {
        const size_t digit = end + (lexer->source[end] == '_');
        if (digit >= lexer->bytes || lexer->source[digit] == '\0' || strchr(allowed, lexer->source[digit]) == NULL) {
            break;
        }
        end = digit + 1;
    }
    if (*allowed != '\0' && end > at + 2) {
        return end;
    }
    if (lexer->source[at] != '0') {
        return digits_end(lexer, at);
    }
    for (end = at + 1; end < lexer->bytes; end++) {
        const size_t digit = end + (lexer->source[end] == '_');
        if (digit >= lexer->bytes || lexer->source[digit] != '0') {
            break;
        }
        end = digit;
    }
    return end;
}

static bool lex_number(struct lexer *lexer) {
    const size_t begin = lexer->at;
    const size_t real = float_end(lexer, begin);
    const size_t end = real != 0 ? real : integer_end(lexer, begin);
    const struct string text = {.data = lexer->source + begin, .bytes = end - begin, .points = end - begin};
    struct token *const token = add_token(lexer, real != 0 ? T_FLOAT : T_INTEGER, begin, end);
    bool overflow = false;
    if (token == NULL) {
        return false;
    }
    advance(lexer, end);
    token->number = ox_ji_float(0);
    if (real != 0) {
        return ox_ji_parse_float(&text, &token->number.as.real) || failed_at(lexer, begin, "the number is too long");
    }
    token->number = ox_ji_int(0);
    return (ox_ji_parse_int(&text, 0, &token->number.as.integer, &overflow) && !overflow) ||
           failed_at(lexer, begin, "an integer beyond 64 bits is not supported here");
}

static bool lex_name(struct lexer *lexer) {
    const size_t begin = lexer->at;
    size_t end = begin;
    while (end < lexer->bytes) {
        size_t next = end;
        if (!ox_ji_is_word_point(ox_ji_next_point(lexer->source, &next))) {
            break;
        }
        end = next;
    }
    const struct string text = {.data = lexer->source + begin, .bytes = end - begin};
    if (!ox_ji_classify(&text, "isidentifier")) {
        return failed_at(lexer, begin, "Invalid character in identifier");
    }
    advance(lexer, end);
    return add_token(lexer, T_NAME, begin, end) != NULL;
}

/* ---- strings --------------------------------------------------------------------------------------------------- */

static int digit_of(char c) {
    return is_digit(c) ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : 99;
}

/* The code of `count` hexadecimal digits at *at, or up to three octal ones. */
static bool read_code(struct lexer *lexer, size_t *at, size_t end, size_t count, uint32_t base) {
    uint32_t point = 0;
    size_t i = 0;
    for (; i < count && *at < end && digit_of(lexer->source[*at]) < (int)base; i++) {
        point = point * base + (uint32_t)digit_of(lexer->source[(*at)++]);
    }
    if (base == 16 && i < count) {
        return failed_at(lexer, *at, "truncated escape");
    }
    if (point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) {
        return failed_at(lexer, *at, "an escape that is no character is not supported here");
    }
    char bytes[4];
    return ox_ji_put(lexer->run, bytes, ox_ji_encode_point(point, bytes));
}

/* A backslash before a character beyond ASCII: jinja2 spells the character as an escape first and then takes the
 * backslash for that of the escape's own backslash, which leaves the escape's letters as text. */
static bool put_spelled(struct lexer *lexer, size_t *at) {
    char text[16];
    const uint32_t point = ox_ji_next_point(lexer->source, at);
    snprintf(text, sizeof text, point < 0x100 ? "\\x%02x" : point < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)point);
    return ox_ji_put_text(lexer->run, text);
}

/* The escape whose backslash stands before *at. */
static bool put_escape(struct lexer *lexer, size_t *at, size_t end) {
    static const char known[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    const char c = lexer->source[*at];
    if ((unsigned char)c >= 0x80) {
        return put_spelled(lexer, at);
    }
    ++*at;
    if (c == '\n') {
        return true;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
        return read_code(lexer, at, end, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16);
    }
    if (c >= '0' && c <= '7') {
        --*at;
        return read_code(lexer, at, end, 3, 8);
    }
    if (c == 'N') {
        return failed_at(lexer, *at, "the escape \\N is not supported here");
    }
    for (size_t i = 0; known[i] != '\0'; i += 2) {
        if (c == known[i]) {
            return ox_ji_put(lexer->run, &known[i + 1], 1);
        }
    }
    const char kept[] = {'\\', c};
    return ox_ji_put(lexer->run, kept, 2);
}

static bool lex_string(struct lexer *lexer) {
    const size_t begin = lexer->at + 1;
    size_t end = begin;
    while (end < lexer->bytes && lexer->source[end] != lexer->source[lexer->at]) {
        end += lexer->source[end] == '\\' ? 2 : 1;
    }
    if (end >= lexer->bytes) {
        return failed_at(lexer, lexer->at, "a string without an end");
    }
    struct token *const token = add_token(lexer, T_STRING, lexer->at, end + 1);
    struct value text = MISSING;
    const struct capture capture = ox_ji_capture(lexer->run);
    for (size_t at = begin; token != NULL && at < end;) {
        const size_t plain = at;
        while (at < end && lexer->source[at] != '\\') {
            at++;
        }
        if (!ox_ji_put(lexer->run, lexer->source + plain, at - plain)) {
            return false;
        }
        if (at < end && (++at, !put_escape(lexer, &at, end))) {
            return false;
        }
    }
    if (token == NULL || !ox_ji_capture_end(lexer->run, capture, &text)) {
        return false;
    }
    token->text = text.as.string->data;
    token->bytes = text.as.string->bytes;
    advance(lexer, end + 1);
    return true;
}

/* ---- operators and tags ---------------------------------------------------------------------------------------- */

static bool balance(struct lexer *lexer, char brace) {
    if (brace == '(' || brace == '[' || brace == '{') {
        if (lexer->brace_count == NESTED_BRACES_MAX) {
            return failed_at(lexer, lexer->at, "too many nested braces");
        }
        lexer->braces[lexer->brace_count++] = (char)(brace == '(' ? ')' : brace == '[' ? ']' : '}');
    } else if (brace == ')' || brace == ']' || brace == '}') {
        if (lexer->brace_count == 0 || lexer->braces[--lexer->brace_count] != brace) {
            const char message[] = {'u', 'n', 'e', 'x', 'p', 'e', 'c', 't', 'e', 'd', ' ', '\'', brace, '\'', '\0'};
            return failed_at(lexer, lexer->at, message);
        }
    }
    return true;
}

static bool lex_operator(struct lexer *lexer) {
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                            "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (follows(lexer, lexer->at, operators[i])) {
            const size_t end = lexer->at + strlen(operators[i]);
            if (!balance(lexer, operators[i][0])) {
                return false;
            }
            struct token *const token = add_token(lexer, T_OPERATOR, lexer->at, end);
            if (token != NULL) {
                memcpy(token->symbol, operators[i], strlen(operators[i]) + 1);
            }
            advance(lexer, end);
            return token != NULL;
        }
    }
    return failed_at(lexer, lexer->at, "unexpected character");
}

/* The inside of "{% %}" or "{{ }}", up to its end. */
static bool lex_tag(struct lexer *lexer, bool is_variable) {
    while (lexer->at < lexer->bytes) {
        const char c = lexer->source[lexer->at];
        const char *const close = is_variable ? "}}" : "%}";
        const size_t end = lexer->brace_count > 0 ? 0 : tag_end(lexer, lexer->at, close, !is_variable);
        size_t next = lexer->at;
        if (end != 0) {
            const bool ok = add_token(lexer, is_variable ? T_VARIABLE_END : T_BLOCK_END, lexer->at, end) != NULL;
            advance(lexer, end);
            return ok;
        }
        const uint32_t point = ox_ji_next_point(lexer->source, &next);
        bool ok = true;
        if (ox_ji_is_space(point)) {
            advance(lexer, skip_space(lexer, next));
        } else if (is_digit(c)) {
            ok = lex_number(lexer);
        } else if (ox_ji_is_word_point(point)) {
            ok = lex_name(lexer);
        } else {
            ok = c == '\'' || c == '"' ? lex_string(lexer) : lex_operator(lexer);
        }
        if (!ok) {
            return false;
        }
    }
    return true;
}

/* Text up to the next tag, and the tag. */
static bool lex_part(struct lexer *lexer) {
    const size_t begin = lexer->at;
    size_t at = begin;
    while (at < lexer->bytes && !follows(lexer, at, "{%") && !follows(lexer, at, "{{") && !follows(lexer, at, "{#")) {
        at++;
    }
    if (at == lexer->bytes) {
        lexer->at = at;
        return add_data(lexer, begin, at);
    }
    const char kind = lexer->source[at + 1];
    const size_t raw = kind == '%' ? raw_begin(lexer, at) : 0;
    const char sign = at + 2 < lexer->bytes ? lexer->source[at + 2] : ' ';
    const bool has_sign = sign == '-' || sign == '+';
    if (!add_data(lexer, begin, strip_before(lexer, begin, at, sign, kind == '{'))) {
        return false;
    }
    if (raw != 0) {
        advance(lexer, raw);
        return lex_raw(lexer);
    }
    advance(lexer, at + 2 + has_sign);
    if (kind == '#') {
        return lex_comment(lexer);
    }
    return add_token(lexer, kind == '{' ? T_VARIABLE_BEGIN : T_BLOCK_BEGIN, at, lexer->at) != NULL &&
           lex_tag(lexer, kind == '{');
}

bool ox_ji_lex(struct run *run, const char *source, size_t bytes, struct token **tokens, size_t *count) {
    struct lexer lexer = {.run = run, .source = source, .bytes = bytes, .line = 1, .line_starting = true};
    while (lexer.at < bytes) {
        if (!lex_part(&lexer)) {
            return false;
        }
    }
    if (add_token(&lexer, T_END, bytes, bytes) == NULL) {
        return false;
    }
    *tokens = lexer.tokens;
    *count = lexer.token_count;
    return true;
}
