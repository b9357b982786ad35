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
    {0x00DF, "\x53\x53", "\x53\x73"},
    {0x0149, "\xCA\xBC\x4E", "\xCA\xBC\x4E"},
    {0x01F0, "\x4A\xCC\x8C", "\x4A\xCC\x8C"},
    {0x0390, "\xCE\x99\xCC\x88\xCC\x81", "\xCE\x99\xCC\x88\xCC\x81"},
    {0x03B0, "\xCE\xA5\xCC\x88\xCC\x81", "\xCE\xA5\xCC\x88\xCC\x81"},
    {0x0587, "\xD4\xB5\xD5\x92", "\xD4\xB5\xD6\x82"},
    {0x1E96, "\x48\xCC\xB1", "\x48\xCC\xB1"},
    {0x1E97, "\x54\xCC\x88", "\x54\xCC\x88"},
    {0x1E98, "\x57\xCC\x8A", "\x57\xCC\x8A"},
    {0x1E99, "\x59\xCC\x8A", "\x59\xCC\x8A"},
    {0x1E9A, "\x41\xCA\xBE", "\x41\xCA\xBE"},
    {0x1F50, "\xCE\xA5\xCC\x93", "\xCE\xA5\xCC\x93"},
    {0x1F52, "\xCE\xA5\xCC\x93\xCC\x80", "\xCE\xA5\xCC\x93\xCC\x80"},
    {0x1F54, "\xCE\xA5\xCC\x93\xCC\x81", "\xCE\xA5\xCC\x93\xCC\x81"},
    {0x1F56, "\xCE\xA5\xCC\x93\xCD\x82", "\xCE\xA5\xCC\x93\xCD\x82"},
    {0x1F80, "\xE1\xBC\x88\xCE\x99", "\xE1\xBE\x88"},
    {0x1F81, "\xE1\xBC\x89\xCE\x99", "\xE1\xBE\x89"},
    {0x1F82, "\xE1\xBC\x8A\xCE\x99", "\xE1\xBE\x8A"},
    {0x1F83, "\xE1\xBC\x8B\xCE\x99", "\xE1\xBE\x8B"},
    {0x1F84, "\xE1\xBC\x8C\xCE\x99", "\xE1\xBE\x8C"},
    {0x1F85, "\xE1\xBC\x8D\xCE\x99", "\xE1\xBE\x8D"},
    {0x1F86, "\xE1\xBC\x8E\xCE\x99", "\xE1\xBE\x8E"},
    {0x1F87, "\xE1\xBC\x8F\xCE\x99", "\xE1\xBE\x8F"},
    {0x1F88, "\xE1\xBC\x88\xCE\x99", "\xE1\xBE\x88"},
    {0x1F89, "\xE1\xBC\x89\xCE\x99", "\xE1\xBE\x89"},
    {0x1F8A, "\xE1\xBC\x8A\xCE\x99", "\xE1\xBE\x8A"},
    {0x1F8B, "\xE1\xBC\x8B\xCE\x99", "\xE1\xBE\x8B"},
    {0x1F8C, "\xE1\xBC\x8C\xCE\x99", "\xE1\xBE\x8C"},
    {0x1F8D, "\xE1\xBC\x8D\xCE\x99", "\xE1\xBE\x8D"},
    {0x1F8E, "\xE1\xBC\x8E\xCE\x99", "\xE1\xBE\x8E"},
    {0x1F8F, "\xE1\xBC\x8F\xCE\x99", "\xE1\xBE\x8F"},
    {0x1F90, "\xE1\xBC\xA8\xCE\x99", "\xE1\xBE\x98"},
    {0x1F91, "\xE1\xBC\xA9\xCE\x99", "\xE1\xBE\x99"},
    {0x1F92, "\xE1\xBC\xAA\xCE\x99", "\xE1\xBE\x9A"},
    {0x1F93, "\xE1\xBC\xAB\xCE\x99", "\xE1\xBE\x9B"},
    {0x1F94, "\xE1\xBC\xAC\xCE\x99", "\xE1\xBE\x9C"},
    {0x1F95, "\xE1\xBC\xAD\xCE\x99", "\xE1\xBE\x9D"},
    {0x1F96, "\xE1\xBC\xAE\xCE\x99", "\xE1\xBE\x9E"},
    {0x1F97, "\xE1\xBC\xAF\xCE\x99", "\xE1\xBE\x9F"},
    {0x1F98, "\xE1\xBC\xA8\xCE\x99", "\xE1\xBE\x98"},
    {0x1F99, "\xE1\xBC\xA9\xCE\x99", "\xE1\xBE\x99"},
    {0x1F9A, "\xE1\xBC\xAA\xCE\x99", "\xE1\xBE\x9A"},
    {0x1F9B, "\xE1\xBC\xAB\xCE\x99", "\xE1\xBE\x9B"},
    {0x1F9C, "\xE1\xBC\xAC\xCE\x99", "\xE1\xBE\x9C"},
    {0x1F9D, "\xE1\xBC\xAD\xCE\x99", "\xE1\xBE\x9D"},
    {0x1F9E, "\xE1\xBC\xAE\xCE\x99", "\xE1\xBE\x9E"},
    {0x1F9F, "\xE1\xBC\xAF\xCE\x99", "\xE1\xBE\x9F"},
    {0x1FA0, "\xE1\xBD\xA8\xCE\x99", "\xE1\xBE\xA8"},
    {0x1FA1, "\xE1\xBD\xA9\xCE\x99", "\xE1\xBE\xA9"},
    {0x1FA2, "\xE1\xBD\xAA\xCE\x99", "\xE1\xBE\xAA"},
    {0x1FA3, "\xE1\xBD\xAB\xCE\x99", "\xE1\xBE\xAB"},
    {0x1FA4, "\xE1\xBD\xAC\xCE\x99", "\xE1\xBE\xAC"},
    {0x1FA5, "\xE1\xBD\xAD\xCE\x99", "\xE1\xBE\xAD"},
    {0x1FA6, "\xE1\xBD\xAE\xCE\x99", "\xE1\xBE\xAE"},
    {0x1FA7, "\xE1\xBD\xAF\xCE\x99", "\xE1\xBE\xAF"},
    {0x1FA8, "\xE1\xBD\xA8\xCE\x99", "\xE1\xBE\xA8"},
    {0x1FA9, "\xE1\xBD\xA9\xCE\x99", "\xE1\xBE\xA9"},
    {0x1FAA, "\xE1\xBD\xAA\xCE\x99", "\xE1\xBE\xAA"},
    {0x1FAB, "\xE1\xBD\xAB\xCE\x99", "\xE1\xBE\xAB"},
    {0x1FAC, "\xE1\xBD\xAC\xCE\x99", "\xE1\xBE\xAC"},
    {0x1FAD, "\xE1\xBD\xAD\xCE\x99", "\xE1\xBE\xAD"},
    {0x1FAE, "\xE1\xBD\xAE\xCE\x99", "\xE1\xBE\xAE"},
    {0x1FAF, "\xE1\xBD\xAF\xCE\x99", "\xE1\xBE\xAF"},
    {0x1FB2, "\xE1\xBE\xBA\xCE\x99", "\xE1\xBE\xBA\xCD\x85"},
    {0x1FB3, "\xCE\x91\xCE\x99", "\xE1\xBE\xBC"},
    {0x1FB4, "\xCE\x86\xCE\x99", "\xCE\x86\xCD\x85"},
    {0x1FB6, "\xCE\x91\xCD\x82", "\xCE\x91\xCD\x82"},
    {0x1FB7, "\xCE\x91\xCD\x82\xCE\x99", "\xCE\x91\xCD\x82\xCD\x85"},
    {0x1FBC, "\xCE\x91\xCE\x99", "\xE1\xBE\xBC"},
    {0x1FC2, "\xE1\xBF\x8A\xCE\x99", "\xE1\xBF\x8A\xCD\x85"},
    {0x1FC3, "\xCE\x97\xCE\x99", "\xE1\xBF\x8C"},
    {0x1FC4, "\xCE\x89\xCE\x99", "\xCE\x89\xCD\x85"},
    {0x1FC6, "\xCE\x97\xCD\x82", "\xCE\x97\xCD\x82"},
    {0x1FC7, "\xCE\x97\xCD\x82\xCE\x99", "\xCE\x97\xCD\x82\xCD\x85"},
    {0x1FCC, "\xCE\x97\xCE\x99", "\xE1\xBF\x8C"},
    {0x1FD2, "\xCE\x99\xCC\x88\xCC\x80", "\xCE\x99\xCC\x88\xCC\x80"},
    {0x1FD3, "\xCE\x99\xCC\x88\xCC\x81", "\xCE\x99\xCC\x88\xCC\x81"},
    {0x1FD6, "\xCE\x99\xCD\x82", "\xCE\x99\xCD\x82"},
    {0x1FD7, "\xCE\x99\xCC\x88\xCD\x82", "\xCE\x99\xCC\x88\xCD\x82"},
    {0x1FE2, "\xCE\xA5\xCC\x88\xCC\x80", "\xCE\xA5\xCC\x88\xCC\x80"},
    {0x1FE3, "\xCE\xA5\xCC\x88\xCC\x81", "\xCE\xA5\xCC\x88\xCC\x81"},
    {0x1FE4, "\xCE\xA1\xCC\x93", "\xCE\xA1\xCC\x93"},
    {0x1FE6, "\xCE\xA5\xCD\x82", "\xCE\xA5\xCD\x82"},
    {0x1FE7, "\xCE\xA5\xCC\x88\xCD\x82", "\xCE\xA5\xCC\x88\xCD\x82"},
    {0x1FF2, "\xE1\xBF\xBA\xCE\x99", "\xE1\xBF\xBA\xCD\x85"},
    {0x1FF3, "\xCE\xA9\xCE\x99", "\xE1\xBF\xBC"},
    {0x1FF4, "\xCE\x8F\xCE\x99", "\xCE\x8F\xCD\x85"},
    {0x1FF6, "\xCE\xA9\xCD\x82", "\xCE\xA9\xCD\x82"},
    {0x1FF7, "\xCE\xA9\xCD\x82\xCE\x99", "\xCE\xA9\xCD\x82\xCD\x85"},
    {0x1FFC, "\xCE\xA9\xCE\x99", "\xE1\xBF\xBC"},
    {0xFB00, "\x46\x46", "\x46\x66"},
    {0xFB01, "\x46\x49", "\x46\x69"},
    {0xFB02, "\x46\x4C", "\x46\x6C"},
    {0xFB03, "\x46\x46\x49", "\x46\x66\x69"},
    {0xFB04, "\x46\x46\x4C", "\x46\x66\x6C"},
    {0xFB05, "\x53\x54", "\x53\x74"},
    {0xFB06, "\x53\x54", "\x53\x74"},
    {0xFB13, "\xD5\x84\xD5\x86", "\xD5\x84\xD5\xB6"},
    {0xFB14, "\xD5\x84\xD4\xB5", "\xD5\x84\xD5\xA5"},
    {0xFB15, "\xD5\x84\xD4\xBB", "\xD5\x84\xD5\xAB"},
    {0xFB16, "\xD5\x8E\xD5\x86", "\xD5\x8E\xD5\xB6"},
    {0xFB17, "\xD5\x84\xD4\xBD", "\xD5\x84\xD5\xAD"},
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
