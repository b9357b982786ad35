/* Turns ids back into text. The tokens' texts form a list of pieces, and every step of the decoder rewrites the
 * list. */
#include "engine/text/tokenizer_internal.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

struct pieces {
    struct ox_text text;
    size_t *ends; /* offset in `text` at which each piece ends */
    size_t count, capacity;
};

static enum ox_status end_piece(struct pieces *pieces) {
    const enum ox_status status =
        ox_tok_reserve((void **)&pieces->ends, &pieces->capacity, pieces->count + 1, sizeof *pieces->ends);
    if (status == OX_OK) {
        pieces->ends[pieces->count++] = pieces->text.bytes;
    }
    return status;
}

static enum ox_status add_piece(struct pieces *pieces, const char *text, size_t bytes) {
    const enum ox_status status = ox_text_append(&pieces->text, text, bytes);
    return status == OX_OK ? end_piece(pieces) : status;
}

/* ---- steps over one piece ------------------------------------------------------------------------------------ */

/* Appends the bytes that a token's characters stand for. If one of them stands for no byte, the token is appended
 * unchanged. */
static enum ox_status append_bytes(struct ox_text *out, const char *text, size_t bytes) {
    const size_t begin = out->bytes;
    for (size_t pos = 0; pos < bytes;) {
        const int byte = ox_byte_level_byte(ox_utf8_next(text, &pos));
        if (byte < 0) {
            out->bytes = begin;
            return ox_text_append(out, text, bytes);
        }
        const char c = (char)byte;
        const enum ox_status status = ox_text_append(out, &c, 1);
        if (status != OX_OK) {
            return status;
        }
    }
    return OX_OK;
}


static enum ox_status strip(const struct ox_tok_step *step, const char *text, size_t bytes, struct ox_text *out) {
    const size_t each = step->content_bytes;
    size_t begin = 0;
    for (uint64_t i = 0; i < step->start && bytes - begin >= each; i++) {
        if (memcmp(text + begin, step->content, each) != 0) {
            break;
        }
        begin += each;
    }
    for (uint64_t i = 0; i < step->stop && bytes - begin >= each; i++) {
        if (memcmp(text + bytes - each, step->content, each) != 0) {
            break;
        }
        bytes -= each;
    }
    return ox_text_append(out, text + begin, bytes - begin);
}

/* Turns the replacement character back into spaces. In the first piece it is dropped instead if the encoder had put one
 * in front. */
static enum ox_status restore_spaces(const struct ox_tok_step *step, const char *text, size_t bytes, bool first,
                                     struct ox_text *out) {
    const bool drop = first && step->prepend != OX_PREPEND_NEVER;
    enum ox_status status = OX_OK;
    for (size_t pos = 0; pos < bytes && status == OX_OK;) {
        const size_t begin = pos;
        ox_utf8_next(text, &pos);
        if (pos - begin != step->content_bytes || memcmp(text + begin, step->content, pos - begin) != 0) {
            status = ox_text_append(out, text + begin, pos - begin);
        } else if (!drop) {
            status = ox_text_append(out, " ", 1);
        }
    }
    return status;
}

/* ---- steps over all pieces ----------------------------------------------------------------------------------- */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    const char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* The byte that "<0xXX>" stands for, or -1. The original reads "+X" as a number too. */
static int fallback_byte(const char *text, size_t bytes) {
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
        return -1;
    }
    const int high = text[3] == '+' ? 0 : hex_digit(text[3]);
    const int low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Ends a run of byte tokens: it becomes one piece if it is valid UTF-8, else one U+FFFD per byte. */
static enum ox_status end_run(struct ox_text *run, struct pieces *to) {
    enum ox_status status = OX_OK;
    if (run->bytes > 0 && ox_utf8_valid(run->data, run->bytes) == run->bytes) {
        status = add_piece(to, run->data, run->bytes);
    } else {
        for (size_t i = 0; i < run->bytes && status == OX_OK; i++) {
            status = add_piece(to, "\xef\xbf\xbd", 3);
        }
    }
    run->bytes = 0;
    return status;
}

static enum ox_status byte_fallback(const struct pieces *from, struct pieces *to) {
    struct ox_text run = {0};
    enum ox_status status = OX_OK;
    size_t begin = 0;
    for (size_t i = 0; i < from->count && status == OX_OK; i++) {
        const char *const text = from->text.data + begin;
        const size_t bytes = from->ends[i] - begin;
        const int byte = fallback_byte(text, bytes);
        if (byte >= 0) {
            const char c = (char)byte;
            status = ox_text_append(&run, &c, 1);
        } else {
            status = end_run(&run, to);
            OX_THEN(status, add_piece(to, text, bytes));
        }
        begin = from->ends[i];
    }
    OX_THEN(status, end_run(&run, to));
    ox_text_free(&run);
    return status;
}

static enum ox_status byte_level(const struct pieces *from, struct pieces *to) {
    struct ox_text raw = {0};
    enum ox_status status = OX_OK;
    size_t begin = 0;
    for (size_t i = 0; i < from->count && status == OX_OK; i++) {
        status = append_bytes(&raw, from->text.data + begin, from->ends[i] - begin);
        begin = from->ends[i];
    }
    OX_THEN(status, ox_utf8_lossy(&to->text, raw.data, raw.bytes));
    ox_text_free(&raw);
    return status == OX_OK ? end_piece(to) : status;
}

static enum ox_status each_piece(const struct ox_tok_step *step, const struct pieces *from, struct pieces *to) {
    size_t begin = 0;
    for (size_t i = 0; i < from->count; i++) {
        const char *const text = from->text.data + begin;
        const size_t bytes = from->ends[i] - begin;
        enum ox_status status;
        if (step->kind == OX_TOK_REPLACE) {
            status = ox_tok_replace(NULL, step, text, bytes, SIZE_MAX, &to->text); /* literal patterns only */
        } else if (step->kind == OX_TOK_STRIP) {
            status = strip(step, text, bytes, &to->text);
        } else {
            OX_ASSERT(step->kind == OX_TOK_METASPACE);
            status = restore_spaces(step, text, bytes, i == 0, &to->text);
        }
        OX_THEN(status, end_piece(to));
        if (status != OX_OK) {
            return status;
        }
        begin = from->ends[i];
    }
    return OX_OK;
}

static enum ox_status apply(const struct ox_tok_step *step, const struct pieces *from, struct pieces *to) {
    to->text.bytes = 0;
    to->count = 0;
    switch (step->kind) {
    case OX_TOK_BYTE_LEVEL:
        return byte_level(from, to);
    case OX_TOK_BYTE_FALLBACK:
        return byte_fallback(from, to);
    case OX_TOK_FUSE:
        return add_piece(to, from->text.data, from->text.bytes);
    default:
        return each_piece(step, from, to);
    }
}

/* Lists the texts of the ids. An id without a token is skipped, as in the original. */
static enum ox_status list_texts(const struct ox_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                 bool skip_special, struct pieces *out) {
    for (size_t i = 0; i < count; i++) {
        if (ids[i] < 0) {
            return ox_fail(OX_E_CONFIG, "token %zu of %zu is %d; ids are not negative", i, count, (int)ids[i]);
        }
        const uint32_t id = (uint32_t)ids[i];
        const char *const text = ox_tokenizer_token(tokenizer, id);
        if (text == NULL || (skip_special && ox_tokenizer_is_special(tokenizer, id))) {
            continue;
        }
        enum ox_status status = OX_OK;
        if (!tokenizer->has_decoder && out->count > 0) { /* without a decoder, spaces separate the tokens */
            status = ox_text_append(&out->text, " ", 1);
        }
        OX_THEN(status, add_piece(out, text, strlen(text)));
        if (status != OX_OK) {
            return status;
        }
    }
    return OX_OK;
}

enum ox_status ox_decode(const struct ox_tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
                         char **text, size_t *bytes) {
    struct pieces pieces[2] = {0};
    struct pieces *from = &pieces[0];
    struct pieces *to = &pieces[1];
    enum ox_status status = list_texts(tokenizer, ids, count, skip_special, from);
    for (uint32_t i = 0; i < tokenizer->decoder.count && status == OX_OK; i++) {
        status = apply(&tokenizer->decoder.step[i], from, to);
        struct pieces *const swap = from;
        from = to;
        to = swap;
    }
    if (status == OX_OK) {
        status = ox_text_append(&from->text, "", 0); /* make room for the NUL of an empty text */
    }
    if (status == OX_OK) {
        from->text.data[from->text.bytes] = '\0';
        *text = from->text.data;
        *bytes = from->text.bytes;
        from->text.data = NULL;
    }
    for (int i = 0; i < 2; i++) {
        free(pieces[i].text.data);
        free(pieces[i].ends);
    }
    return status;
}
