/* UTF-8, the characters of ByteLevel, and normalization forms. */
#include "engine/text/tokenizer_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { CODE_POINTS = 0x110000, DECOMPOSED_MAX = 32, INSERTION_MAX = 16, CLASSES = 256 };

/* A normalization form, with the set of its loose characters: those that the form may change, move, or join with the
 * character before. Text without loose characters is already normalized, and a character that is not loose begins a
 * part that can be normalized alone. */
struct ox_form {
    bool compose, compat;
    uint8_t loose[CODE_POINTS / 8];
};

/* The original's normalization forms have the tables of Unicode 9: newer characters stay as they are. */
static bool is_after_forms(uint32_t cp) {
    return ox_unicode_is_newer(cp, OX_UNICODE_FORMS);
}

static bool is_tail(unsigned char byte) {
    return (byte & 0xc0) == 0x80;
}

/* The length of the character at the start of `text`, or 0 if it is not UTF-8; *bad is then the length of the longest
 * prefix that could have begun a character, at least 1. */
static unsigned valid_length(const unsigned char *text, size_t bytes, unsigned *bad) {
    const unsigned char lead = text[0];
    *bad = 1;
    if (lead < 0x80) {
        return 1;
    }
    const unsigned length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || bytes < 2) {
        return 0;
    }
    const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (text[1] < low || text[1] > high) {
        return 0;
    }
    for (unsigned i = 2; i < length; i++) {
        *bad = i;
        if (i >= bytes || !is_tail(text[i])) {
            return 0;
        }
    }
    return length;
}

static bool is_loose(const struct ox_form *form, uint32_t cp) {
    return (form->loose[cp >> 3] >> (cp & 7) & 1) != 0;
}

static void set_loose(struct ox_form *form, uint32_t cp) {
    form->loose[cp >> 3] |= (uint8_t)(1u << (cp & 7));
}

static int decompose(uint32_t cp, bool compat, int32_t *out) {
    int boundclass = UTF8PROC_BOUNDCLASS_START;
    const utf8proc_option_t options = compat ? UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT : UTF8PROC_DECOMPOSE;
    return (int)utf8proc_decompose_char((utf8proc_int32_t)cp, out, DECOMPOSED_MAX, options, &boundclass);
}

static unsigned combining_class(int32_t cp) {
    return (unsigned)utf8proc_get_property(cp)->combining_class & (CLASSES - 1);
}

/* Sorts a run of marks by combining class, stably. Insertion sort serves the usual short runs; a counting sort keeps
 * the long runs of hostile text fast. */
static enum ox_status sort_run(struct ox_form_scratch *work, int32_t *cps, size_t count) {
    if (count <= INSERTION_MAX) {
        for (size_t i = 1; i < count; i++) {
            const int32_t cp = cps[i];
            size_t at = i;
            for (; at > 0 && combining_class(cps[at - 1]) > combining_class(cp); at--) {
                cps[at] = cps[at - 1];
            }
            cps[at] = cp;
        }
        return OX_OK;
    }
    const enum ox_status status =
        ox_tok_reserve((void **)&work->sorted, &work->sorted_capacity, count, sizeof *work->sorted);
    if (status != OX_OK) {
        return status;
    }
    size_t begin[CLASSES + 1] = {0};
    for (size_t i = 0; i < count; i++) {
        begin[combining_class(cps[i]) + 1]++;
    }
    for (unsigned i = 0; i < CLASSES; i++) {
        begin[i + 1] += begin[i];
    }
    for (size_t i = 0; i < count; i++) {
        work->sorted[begin[combining_class(cps[i])]++] = cps[i];
    }
    memcpy(cps, work->sorted, count * sizeof *cps);
    return OX_OK;
}

static enum ox_status sort_marks(struct ox_form_scratch *work, size_t count) {
    for (size_t i = 0; i < count;) {
        size_t end = i;
        while (end < count && combining_class(work->cps[end]) != 0) {
            end++;
        }
        if (end > i + 1) {
            const enum ox_status status = sort_run(work, work->cps + i, end - i);
            if (status != OX_OK) {
                return status;
            }
        }
        i = end + 1;
    }
    return OX_OK;
}

/* Appends one part in normalized form. */
static enum ox_status apply_part(const struct ox_form *form, struct ox_form_scratch *work, const char *text,
                                 size_t bytes, struct ox_text *out) {
    size_t count = 0;
    for (size_t pos = 0; pos < bytes;) {
        const enum ox_status status =
            ox_tok_reserve((void **)&work->cps, &work->cps_capacity, count + DECOMPOSED_MAX, sizeof *work->cps);
        if (status != OX_OK) {
            return status;
        }
        const uint32_t cp = ox_utf8_next(text, &pos);
        const int added = decompose(cp, form->compat, work->cps + count);
        if (added < 0 || added > DECOMPOSED_MAX) {
            return ox_fail(OX_E_CORRUPT, "U+%04X cannot be normalized", (unsigned)cp);
        }
        count += (size_t)added;
    }
    enum ox_status status = sort_marks(work, count);
    if (status == OX_OK && form->compose) {
        const utf8proc_ssize_t left =
            utf8proc_normalize_utf32(work->cps, (utf8proc_ssize_t)count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        count = left < 0 ? 0 : (size_t)left;
    }
    for (size_t i = 0; i < count && status == OX_OK; i++) {
        char encoded[4];
        const unsigned length = ox_utf8_put((uint32_t)work->cps[i], encoded);
        status = ox_text_append(out, encoded, length);
    }
    return status;
}

/* Marks `cp` as loose if the form may change it, and the characters that `cp` is composed of, except the first. */
static void mark_loose(struct ox_form *form, uint32_t cp) {
    int32_t cps[DECOMPOSED_MAX];
    int count = decompose(cp, false, cps);
    for (int i = 1; i < count && form->compose; i++) {
        set_loose(form, (uint32_t)cps[i]);
    }
    if (form->compat) {
        count = decompose(cp, true, cps);
    }
    if (form->compose && count > 1) {
        count = (int)utf8proc_normalize_utf32(cps, count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    }
    if (count != 1 || cps[0] != (int32_t)cp || combining_class((int32_t)cp) != 0) {
        set_loose(form, cp);
    }
}

size_t ox_utf8_valid(const char *text, size_t bytes) {
    size_t pos = 0;
    while (pos < bytes) {
        uint64_t word;
        if (bytes - pos >= sizeof word) {
            memcpy(&word, text + pos, sizeof word);
            if ((word & UINT64_C(0x8080808080808080)) == 0) {
                pos += sizeof word;
                continue;
            }
        }
        unsigned bad;
        const unsigned length = valid_length((const unsigned char *)text + pos, bytes - pos, &bad);
        if (length == 0) {
            return pos;
        }
        pos += length;
    }
    return bytes;
}

uint32_t ox_utf8_next(const char *text, size_t *pos) {
    const unsigned char *const at = (const unsigned char *)text + *pos;
    if (at[0] < 0x80) {
        *pos += 1;
        return at[0];
    }
    if (at[0] < 0xe0) {
        *pos += 2;
        return (uint32_t)(at[0] & 0x1f) << 6 | (at[1] & 0x3f);
    }
    if (at[0] < 0xf0) {
        *pos += 3;
        return (uint32_t)(at[0] & 0x0f) << 12 | (uint32_t)(at[1] & 0x3f) << 6 | (at[2] & 0x3f);
    }
    *pos += 4;
    return (uint32_t)(at[0] & 0x07) << 18 | (uint32_t)(at[1] & 0x3f) << 12 | (uint32_t)(at[2] & 0x3f) << 6 |
           (at[3] & 0x3f);
}

size_t ox_utf8_back(const char *text, size_t end) {
    size_t pos = end - 1;
    while (pos > 0 && is_tail((unsigned char)text[pos])) {
        pos--;
    }
    return pos;
}

unsigned ox_utf8_put(uint32_t cp, char *out) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

enum ox_status ox_utf8_lossy(struct ox_text *out, const char *text, size_t bytes) {
    size_t pos = 0;
    while (pos < bytes) {
        const size_t valid = ox_utf8_valid(text + pos, bytes - pos);
        enum ox_status status = ox_text_append(out, text + pos, valid);
        pos += valid;
        if (status == OX_OK && pos < bytes) {
            unsigned bad = 1;
            valid_length((const unsigned char *)text + pos, bytes - pos, &bad);
            status = ox_text_append(out, "\xef\xbf\xbd", 3);
            pos += bad;
        }
        if (status != OX_OK) {
            return status;
        }
    }
    return OX_OK;
}

/* ByteLevel writes the bytes 0x00-0x20, 0x7f-0xa0 and 0xad as U+0100 and on, in this order, and all others as the
 * character of the same number. */
uint32_t ox_byte_level_char(uint8_t byte) {
    if (byte <= 0x20) {
        return 0x100u + byte;
    }
    if (byte >= 0x7f && byte <= 0xa0) {
        return 0x100u + 0x21 + (byte - 0x7fu);
    }
    return byte == 0xad ? 0x143 : byte;
}

int ox_byte_level_byte(uint32_t cp) {
    if (cp <= 0xff) {
        return ox_byte_level_char((uint8_t)cp) == cp ? (int)cp : -1;
    }
    if (cp > 0x143) {
        return -1;
    }
    const int order = (int)cp - 0x100;
    return order <= 0x20 ? order : order < 0x43 ? order - 0x21 + 0x7f : 0xad;
}

static void make_form(struct ox_form *form, bool compose, bool compat) {
    form->compose = compose;
    form->compat = compat;
    for (uint32_t cp = 0; cp < CODE_POINTS; cp++) {
        const char *const category = ox_unicode_category(cp, OX_UNICODE_FORMS);
        if (strcmp(category, "Cn") != 0 && strcmp(category, "Cs") != 0 && strcmp(category, "Co") != 0) {
            mark_loose(form, cp);
        }
    }
}

const struct ox_form *ox_form_of(bool compose, bool compat) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct ox_form forms[2][2];
    static bool made[2][2];
    pthread_mutex_lock(&lock);
    if (!made[compose][compat]) { /* a walk over all characters, which takes many times what the rest of opening does */
        make_form(&forms[compose][compat], compose, compat);
        made[compose][compat] = true;
    }
    pthread_mutex_unlock(&lock);
    return &forms[compose][compat];
}

enum ox_status ox_form_apply(const struct ox_form *form, struct ox_form_scratch *work, const char *text, size_t bytes,
                             struct ox_text *out) {
    size_t copied = 0; /* the text before this offset is in `out` */
    size_t firm = 0;   /* offset of the last character that is not loose */
    size_t pos = 0;
    enum ox_status status = OX_OK;
    while (pos < bytes && status == OX_OK) {
        const size_t at = pos;
        if ((unsigned char)text[pos] < 0x80) { /* never loose */
            firm = pos++;
            continue;
        }
        if (!is_loose(form, ox_utf8_next(text, &pos))) {
            firm = at;
            continue;
        }
        size_t end = pos;
        size_t after_firm = firm;
        if (firm < at && is_after_forms(ox_utf8_next(text, &after_firm))) {
            firm = after_firm; /* a newer character joins nothing, so the part begins after it */
        }
        while (pos < bytes && is_loose(form, ox_utf8_next(text, &pos))) {
            end = pos;
        }
        status = ox_text_append(out, text + copied, firm - copied);
        OX_THEN(status, apply_part(form, work, text + firm, end - firm, out));
        copied = firm = pos = end;
    }
    return status == OX_OK ? ox_text_append(out, text + copied, bytes - copied) : status;
}

void ox_form_scratch_free(struct ox_form_scratch *work) {
    free(work->cps);
    free(work->sorted);
    memset(work, 0, sizeof *work);
}
