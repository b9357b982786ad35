/* Owns what depends on the class of a character: upper and lower case, isalpha() and the like, what repr() escapes. */
#include "engine/jinja/value_internal.h"

#include <string.h>
#include <utf8proc.h>

/* ---- classes --------------------------------------------------------------------------------------------------- */

static utf8proc_category_t category(uint32_t point) {
    return utf8proc_category((utf8proc_int32_t)point);
}

static bool is_upper(uint32_t point) {
    return point < 0x80 ? point >= 'A' && point <= 'Z' : utf8proc_isupper((utf8proc_int32_t)point) != 0;
}

static bool is_lower(uint32_t point) {
    return point < 0x80 ? point >= 'a' && point <= 'z' : utf8proc_islower((utf8proc_int32_t)point) != 0;
}

static bool is_title(uint32_t point) {
    return category(point) == UTF8PROC_CATEGORY_LT;
}

static bool is_cased(uint32_t point) {
    return is_upper(point) || is_lower(point) || is_title(point);
}

static bool is_letter(uint32_t point) {
    const utf8proc_category_t c = category(point);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(uint32_t point) {
    return category(point) == UTF8PROC_CATEGORY_ND;
}

static bool is_digit(uint32_t point) {
    return is_decimal(point) || point == 0xB2 || point == 0xB3 || point == 0xB9 || point == 0x2070 ||
           (point >= 0x2074 && point <= 0x2079) || (point >= 0x2080 && point <= 0x2089);
}

static bool is_numeric(uint32_t point) {
    const utf8proc_category_t c = category(point);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

static bool is_letter_or_number(uint32_t point) {
    return is_letter(point) || is_numeric(point);
}

bool ox_ji_is_word_point(uint32_t point) {
    return point == '_' || is_letter_or_number(point);
}

bool ox_ji_is_printable(uint32_t point) {
    if (point < 0x7F) {
        return point >= 0x20;
    }
    switch (category(point)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    default:
        return true;
    }
}

static bool is_ascii(uint32_t point) {
    return point < 0x80;
}

static bool is_identifier(const struct string *string) {
    size_t at = 0;
    while (at < string->bytes) {
        const bool is_first = at == 0;
        const uint32_t point = ox_ji_next_point(string->data, &at);
        if (!(point == '_' || is_letter(point) || (!is_first && is_decimal(point)))) {
            return false;
        }
    }
    return string->bytes > 0;
}

/* All cased characters are of one case, and there is one. */
static bool has_one_case(const struct string *string, bool upper) {
    bool found = false;
    for (size_t at = 0; at < string->bytes;) {
        const uint32_t point = ox_ji_next_point(string->data, &at);
        if (upper ? is_lower(point) || is_title(point) : is_upper(point) || is_title(point)) {
            return false;
        }
        found = found || is_cased(point);
    }
    return found;
}

static bool has_title_case(const struct string *string) {
    bool found = false;
    bool in_word = false;
    for (size_t at = 0; at < string->bytes;) {
        const uint32_t point = ox_ji_next_point(string->data, &at);
        if (is_upper(point) || is_title(point) ? in_word : is_lower(point) && !in_word) {
            return false;
        }
        in_word = is_cased(point);
        found = found || in_word;
    }
    return found;
}

bool ox_ji_classify(const struct string *string, const char *name) {
    static const struct {
        const char *name;
        bool (*holds)(uint32_t);
        bool empty; /* the answer for an empty text */
    } classes[] = {{"isalpha", is_letter, false},     {"isdecimal", is_decimal, false},
                   {"isdigit", is_digit, false},      {"isnumeric", is_numeric, false},
                   {"isspace", ox_ji_is_space, false}, {"isalnum", is_letter_or_number, false},
                   {"isascii", is_ascii, true},       {"isprintable", ox_ji_is_printable, true}};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (strcmp(name, classes[i].name) == 0) {
            bool holds = string->bytes > 0 || classes[i].empty;
            for (size_t at = 0; holds && at < string->bytes;) {
                holds = classes[i].holds(ox_ji_next_point(string->data, &at));
            }
            return holds;
        }
    }
    if (strcmp(name, "isidentifier") == 0) {
        return is_identifier(string);
    }
    return strcmp(name, "istitle") == 0 ? has_title_case(string) : has_one_case(string, strcmp(name, "isupper") == 0);
}

/* ---- case ------------------------------------------------------------------------------------------------------ */

/* Characters whose upper case is several characters (Unicode's SpecialCasing.txt, without conditions). */
struct expansion {
    uint32_t point;
    const char *upper, *title;
};
static const struct expansion expansions[] = {
#include "engine/jinja/text_case.inc"
};

static const struct expansion *find_expansion(uint32_t point) {
    for (size_t i = 0; i < sizeof expansions / sizeof *expansions; i++) {
        if (expansions[i].point == point) {
            return &expansions[i];
        }
    }
    return NULL;
}

static bool put_code(struct run *run, utf8proc_int32_t point) {
    char bytes[4];
    return ox_ji_put(run, bytes, ox_ji_encode_point((uint32_t)point, bytes));
}

static bool put_upper(struct run *run, uint32_t point, bool title) {
    if (point < 0x80) {
        return put_code(run, point >= 'a' && point <= 'z' ? (utf8proc_int32_t)point - 32 : (utf8proc_int32_t)point);
    }
    const struct expansion *const expansion = find_expansion(point);
    if (expansion != NULL) {
        return ox_ji_put_text(run, title ? expansion->title : expansion->upper);
    }
    return put_code(run, title ? utf8proc_totitle((utf8proc_int32_t)point) : utf8proc_toupper((utf8proc_int32_t)point));
}

/* Whether a character between letters does not separate them as words. */
static bool is_case_ignorable(uint32_t point) {
    const utf8proc_category_t c = category(point);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || point == '\'' || point == '.' || point == ':' ||
           point == 0xB7 || point == 0x387 || point == 0x2018 || point == 0x2019 || point == 0x2024 || point == 0x2027;
}

/* A capital sigma at [begin, end) ends a word: a cased letter stands before it and none after it. */
static bool ends_word(const struct string *string, size_t begin, size_t end) {
    bool before = false;
    for (size_t at = 0; at < begin;) {
        const uint32_t point = ox_ji_next_point(string->data, &at);
        before = is_case_ignorable(point) ? before : is_cased(point);
    }
    while (before && end < string->bytes) {
        const uint32_t point = ox_ji_next_point(string->data, &end);
        if (!is_case_ignorable(point)) {
            return !is_cased(point);
        }
    }
    return before;
}

static bool put_lower(struct run *run, const struct string *string, size_t begin, size_t end) {
    size_t at = begin;
    const uint32_t point = ox_ji_next_point(string->data, &at);
    if (point < 0x80) {
        return put_code(run, point >= 'A' && point <= 'Z' ? (utf8proc_int32_t)point + 32 : (utf8proc_int32_t)point);
    }
    if (point == 0x130) {
        return ox_ji_put_text(run, "i\xCC\x87");
    }
    if (point == 0x3A3) {
        return ox_ji_spend(run, string->bytes / 8) && put_code(run, ends_word(string, begin, end) ? 0x3C2 : 0x3C3);
    }
    return put_code(run, utf8proc_tolower((utf8proc_int32_t)point));
}

static bool put_folded(struct run *run, uint32_t point) {
    utf8proc_int32_t folded[8];
    int boundary = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char((utf8proc_int32_t)point, folded, 8, UTF8PROC_CASEFOLD, &boundary);
    bool ok = count > 0 && count <= 8;
    for (utf8proc_ssize_t i = 0; ok && i < count; i++) {
        ok = put_code(run, folded[i]);
    }
    return ok;
}

bool ox_ji_change_case(struct run *run, const struct string *string, enum casing casing, struct value *out) {
    const struct capture capture = ox_ji_capture(run);
    bool in_word = false;
    if (!ox_ji_spend(run, string->bytes / 16)) {
        return false;
    }
    for (size_t at = 0; at < string->bytes;) {
        const size_t begin = at;
        const uint32_t point = ox_ji_next_point(string->data, &at);
        const bool first = casing == CASE_CAPITALIZE ? begin == 0 : !in_word;
        bool ok = true;
        if (casing == CASE_FOLD) {
            ok = put_folded(run, point);
        } else if (casing == CASE_UPPER || (casing == CASE_SWAP && is_lower(point))) {
            ok = put_upper(run, point, false);
        } else if (casing == CASE_SWAP && !is_upper(point)) {
            ok = ox_ji_put(run, string->data + begin, at - begin);
        } else if ((casing == CASE_TITLE || casing == CASE_CAPITALIZE) && first) {
            ok = put_upper(run, point, true);
        } else {
            ok = put_lower(run, string, begin, at);
        }
        if (!ok) {
            return false;
        }
        in_word = is_cased(point);
    }
    return ox_ji_capture_end(run, capture, out);
}

static bool begins_word(uint32_t point) {
    return point == '-' || point == '(' || point == '{' || point == '[' || point == '<' || ox_ji_is_space(point);
}

bool ox_ji_title_words(struct run *run, const struct string *string, struct value *out) {
    const struct capture capture = ox_ji_capture(run);
    for (size_t at = 0; at < string->bytes;) {
        /* A word, or what is between two words: its first character in upper case, the rest in lower case. */
        const size_t begin = at;
        const bool between = begins_word(ox_ji_next_point(string->data, &at));
        const size_t second = at;
        for (size_t next = at; next < string->bytes; at = next) {
            if (begins_word(ox_ji_next_point(string->data, &next)) != between) {
                break;
            }
        }
        struct value rest = MISSING, lower = MISSING;
        size_t first = begin;
        if (!put_upper(run, ox_ji_next_point(string->data, &first), false) ||
            !ox_ji_string_at(run, string->data + second, at - second, &rest) ||
            !ox_ji_change_case(run, rest.as.string, CASE_LOWER, &lower) || !ox_ji_put_string(run, lower.as.string)) {
            return false;
        }
    }
    return ox_ji_capture_end(run, capture, out);
}
