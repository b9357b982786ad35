/* The encoder: finds added tokens in a text, then runs the text between them through normalizer, pre-tokenizer and
 * model. */
#include "engine/text/tokenizer_internal.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

/* Normalizers of published tokenizers make at most 18 bytes of one. */
enum { GROWTH_MAX = 64, GROWTH_BYTES = 4096 };

struct span {
    size_t begin, end;
    bool match;
};

/* The working memory of one pre-tokenizer step. */
struct step_work {
    struct ox_text text;
    struct span *spans;
    size_t span_count, span_capacity;
};

struct ox_encoder {
    const struct ox_tokenizer *tokenizer;
    struct ox_normal_scratch normal;
    struct ox_bpe_scratch *bpe;
    struct step_work steps[OX_TOK_STEPS_MAX];
    struct ox_ids *out;   /* where the current call appends */
    struct ox_ids prefix; /* ids of the text before a border of a marked part */
    bool parse_special;
    bool continues; /* the text is a piece that follows a cut */
    enum ox_status (*take)(void *context, const char *piece, size_t bytes); /* gets pieces in place of the model */
    void *take_context;
};

/* A part of the text inside the pre-tokenizer. */
struct fragment {
    const char *text;
    size_t bytes;
    bool at_start; /* it begins where the whole text begins */
};

static enum ox_status pre_tokenize(struct ox_encoder *encoder, uint32_t index, struct fragment fragment);

/* ---- arrays -------------------------------------------------------------------------------------------------- */

enum ox_status ox_tok_reserve(void **data, size_t *capacity, size_t count, size_t each) {
    if (count <= *capacity) {
        return OX_OK;
    }
    const size_t wanted = count < 16 ? 16 : count + count / 2;
    void *const grown = wanted > SIZE_MAX / each ? NULL : realloc(*data, wanted * each);
    if (grown == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for %zu elements of %zu bytes while tokenizing", wanted, each);
    }
    *data = grown;
    *capacity = wanted;
    return OX_OK;
}

enum ox_status ox_text_append(struct ox_text *text, const char *data, size_t bytes) {
    const enum ox_status status = ox_tok_reserve((void **)&text->data, &text->capacity, text->bytes + bytes + 1, 1);
    if (status == OX_OK && bytes > 0) {
        memcpy(text->data + text->bytes, data, bytes);
        text->bytes += bytes;
    }
    return status;
}

void ox_text_free(struct ox_text *text) {
    free(text->data);
    memset(text, 0, sizeof *text);
}

enum ox_status ox_ids_append(struct ox_ids *ids, const int32_t *add, size_t count) {
    if (ids->count + count > ids->capacity) {
        const enum ox_status status =
            ox_tok_reserve((void **)&ids->ids, &ids->capacity, ids->count + count, sizeof *ids->ids);
        if (status != OX_OK) {
            return status;
        }
    }
    for (size_t i = 0; i < count; i++) { /* usually a handful, so a loop beats memcpy */
        ids->ids[ids->count + i] = add[i];
    }
    ids->count += count;
    return OX_OK;
}

enum ox_status ox_ids_add(struct ox_ids *ids, int64_t id) {
    return ox_ids_append(ids, &(const int32_t){(int32_t)id}, 1);
}

enum ox_status ox_id_mask_append(struct ox_id_mask *marks, bool mark, size_t count) {
    const enum ox_status status =
        ox_tok_reserve((void **)&marks->marks, &marks->capacity, marks->count + count, sizeof *marks->marks);
    if (status == OX_OK && count > 0) {
        memset(marks->marks + marks->count, mark, count);
        marks->count += count;
    }
    return status;
}

void ox_id_mask_free(struct ox_id_mask *marks) {
    free(marks->marks);
    memset(marks, 0, sizeof *marks);
}

void ox_ids_free(struct ox_ids *ids) {
    free(ids->ids);
    memset(ids, 0, sizeof *ids);
}

/* ---- normalizer ---------------------------------------------------------------------------------------------- */

enum ox_status ox_tok_replace(struct ox_matcher *matcher, const struct ox_tok_step *step, const char *text,
                              size_t bytes, size_t bytes_max, struct ox_text *out) {
    struct ox_match_iter walk = {.pattern = &step->pattern, .text = text, .bytes = bytes};
    enum ox_status status = OX_OK;
    bool found = true;
    for (size_t copied = 0; status == OX_OK && found; copied = walk.end) {
        status = ox_match_next(matcher, &walk, &found);
        OX_THEN(status, ox_text_append(out, text + copied, (found ? walk.begin : bytes) - copied));
        if (found) {
            OX_THEN(status, ox_text_append(out, step->content, step->content_bytes));
        }
        if (status == OX_OK && out->bytes > bytes_max) {
            status = ox_fail(OX_E_CONFIG, "a Replace of the tokenizer's normalizer makes more than %zu bytes of the "
                             "text, at byte %zu of the %zu that it had then", bytes_max, walk.begin, bytes);
        }
    }
    return status;
}

enum ox_status ox_tok_normalize(const struct ox_tok_steps *steps, struct ox_normal_scratch *work, const char *text,
                                size_t bytes, const char **out, size_t *out_bytes) {
    const size_t bytes_max = GROWTH_BYTES + GROWTH_MAX * bytes;
    for (uint32_t i = 0; i < steps->count; i++) {
        const struct ox_tok_step *const step = &steps->step[i];
        struct ox_text *const target = i % 2 == 0 ? &work->a : &work->b;
        enum ox_status status = OX_OK;
        target->bytes = 0;
        if (step->kind == OX_TOK_FORM) {
            status = ox_form_apply(step->form, &work->form, text, bytes, target);
        } else if (step->kind == OX_TOK_PREPEND) {
            if (bytes > 0 && !work->continues) {
                status = ox_text_append(target, step->content, step->content_bytes);
            }
            OX_THEN(status, ox_text_append(target, text, bytes));
        } else {
            OX_ASSERT(step->kind == OX_TOK_REPLACE);
            status = ox_tok_replace(work->matcher, step, text, bytes, bytes_max, target);
        }
        if (status != OX_OK) {
            return status;
        }
        text = target->data;
        bytes = target->bytes;
    }
    *out = text;
    *out_bytes = bytes;
    return OX_OK;
}

void ox_normal_scratch_close(struct ox_normal_scratch *work) {
    ox_matcher_close(&work->matcher);
    ox_form_scratch_free(&work->form);
    ox_text_free(&work->a);
    ox_text_free(&work->b);
}

/* ---- pre-tokenizer ------------------------------------------------------------------------------------------- */

/* Hands the part [begin, end) of a fragment to the steps after `index`. */
static enum ox_status pass_on(struct ox_encoder *encoder, uint32_t index, struct fragment fragment, size_t begin,
                              size_t end) {
    const struct fragment part = {
        .text = fragment.text + begin, .bytes = end - begin, .at_start = fragment.at_start && begin == 0};
    return pre_tokenize(encoder, index + 1, part);
}

static enum ox_status split_isolated(struct ox_encoder *encoder, uint32_t index, struct fragment fragment) {
    struct ox_match_iter walk = {
        .pattern = &encoder->tokenizer->pre.step[index].pattern, .text = fragment.text, .bytes = fragment.bytes};
    size_t passed = 0;
    for (;;) {
        bool found;
        enum ox_status status = ox_match_next(encoder->normal.matcher, &walk, &found);
        if (status != OX_OK) {
            return status;
        }
        const size_t gap_end = found ? walk.begin : fragment.bytes;
        if (gap_end > passed) {
            status = pass_on(encoder, index, fragment, passed, gap_end);
        }
        if (status != OX_OK || !found) {
            return status;
        }
        if (walk.end > walk.begin) {
            status = pass_on(encoder, index, fragment, walk.begin, walk.end);
        }
        if (status != OX_OK) {
            return status;
        }
        passed = walk.end;
    }
}

static enum ox_status add_span(struct step_work *work, size_t begin, size_t end, bool match) {
    const enum ox_status status =
        ox_tok_reserve((void **)&work->spans, &work->span_capacity, work->span_count + 1, sizeof *work->spans);
    if (status == OX_OK) {
        work->spans[work->span_count++] = (struct span){begin, end, match};
    }
    return status;
}

/* Lists the matches and the gaps between them, in order. */
static enum ox_status find_spans(struct ox_encoder *encoder, uint32_t index, struct fragment fragment) {
    const struct ox_tok_step *const step = &encoder->tokenizer->pre.step[index];
    struct step_work *const work = &encoder->steps[index];
    struct ox_match_iter walk = {.pattern = &step->pattern, .text = fragment.text, .bytes = fragment.bytes};
    size_t passed = 0;
    work->span_count = 0;
    for (;;) {
        bool found;
        enum ox_status status = ox_match_next(encoder->normal.matcher, &walk, &found);
        const size_t gap_end = found ? walk.begin : fragment.bytes;
        if (status == OX_OK && gap_end > passed) {
            status = add_span(work, passed, gap_end, step->invert);
        }
        if (status != OX_OK || !found) {
            return status;
        }
        status = add_span(work, walk.begin, walk.end, !step->invert);
        if (status != OX_OK) {
            return status;
        }
        passed = walk.end;
    }
}

/* Joins each match with the span after it, unless that span is a match too. */
static void join_next(struct step_work *work) {
    size_t first = work->span_count;
    bool previous = false;
    for (size_t i = work->span_count; i-- > 0;) {
        const struct span span = work->spans[i];
        if (span.match && !previous && first < work->span_count) {
            work->spans[first].begin = span.begin;
        } else {
            work->spans[--first] = span;
        }
        previous = span.match;
    }
    work->span_count -= first;
    memmove(work->spans, work->spans + first, work->span_count * sizeof *work->spans);
}

static void join_spans(struct step_work *work, enum ox_split_behavior behavior) {
    size_t count = 0;
    bool previous = false;
    if (behavior == OX_SPLIT_WITH_NEXT) {
        join_next(work);
        return;
    }
    for (size_t i = 0; i < work->span_count; i++) {
        const struct span span = work->spans[i];
        const bool joins = behavior == OX_SPLIT_WITH_PREVIOUS
                               ? span.match && !previous
                               : behavior == OX_SPLIT_CONTIGUOUS && span.match == previous;
        if (behavior == OX_SPLIT_REMOVED && span.match) {
            continue;
        }
        if (joins && count > 0) {
            work->spans[count - 1].end = span.end;
        } else {
            work->spans[count++] = span;
        }
        previous = span.match;
    }
    work->span_count = count;
}

static enum ox_status split(struct ox_encoder *encoder, uint32_t index, struct fragment fragment) {
    const struct ox_tok_step *const step = &encoder->tokenizer->pre.step[index];
    struct step_work *const work = &encoder->steps[index];
    if (step->behavior == OX_SPLIT_ISOLATED) {
        return split_isolated(encoder, index, fragment);
    }
    enum ox_status status = find_spans(encoder, index, fragment);
    if (status == OX_OK) {
        join_spans(work, step->behavior);
    }
    for (size_t i = 0; i < work->span_count && status == OX_OK; i++) {
        status = pass_on(encoder, index, fragment, work->spans[i].begin, work->spans[i].end);
    }
    return status;
}

static bool begins_with(const char *text, size_t bytes, const char *with, size_t with_bytes) {
    return bytes >= with_bytes && memcmp(text, with, with_bytes) == 0;
}

static enum ox_status prefix_space(struct ox_encoder *encoder, uint32_t index, struct fragment fragment) {
    struct ox_text *const text = &encoder->steps[index].text;
    if (fragment.text[0] == ' ' || (encoder->continues && fragment.at_start)) {
        return pre_tokenize(encoder, index + 1, fragment);
    }
    text->bytes = 0;
    enum ox_status status = ox_text_append(text, " ", 1);
    OX_THEN(status, ox_text_append(text, fragment.text, fragment.bytes));
    const struct fragment whole = {text->data, text->bytes, fragment.at_start};
    return status == OX_OK ? pre_tokenize(encoder, index + 1, whole) : status;
}

/* Turns spaces into the replacement character and puts one in front if the scheme asks for it. */
static enum ox_status replace_spaces(const struct ox_tok_step *step, struct fragment fragment, bool continues,
                                     struct ox_text *out) {
    enum ox_status status = OX_OK;
    const bool begins = (continues && fragment.at_start) || fragment.text[0] == ' ' ||
                        begins_with(fragment.text, fragment.bytes, step->content, step->content_bytes);
    out->bytes = 0;
    if (!begins && step->prepend != OX_PREPEND_NEVER && (step->prepend == OX_PREPEND_ALWAYS || fragment.at_start)) {
        status = ox_text_append(out, step->content, step->content_bytes);
    }
    const char *from = fragment.text;
    const char *const end = fragment.text + fragment.bytes;
    while (status == OX_OK && from < end) {
        const char *const space = memchr(from, ' ', (size_t)(end - from));
        status = ox_text_append(out, from, (size_t)((space != NULL ? space : end) - from));
        if (status == OX_OK && space != NULL) {
            status = ox_text_append(out, step->content, step->content_bytes);
        }
        from = space != NULL ? space + 1 : end;
    }
    return status;
}

static enum ox_status metaspace(struct ox_encoder *encoder, uint32_t index, struct fragment fragment) {
    const struct ox_tok_step *const step = &encoder->tokenizer->pre.step[index];
    struct ox_text *const text = &encoder->steps[index].text;
    enum ox_status status = replace_spaces(step, fragment, encoder->continues, text);
    if (status != OX_OK) {
        return status;
    }
    const struct fragment whole = {text->data, text->bytes, fragment.at_start};
    if (!step->split) {
        return pre_tokenize(encoder, index + 1, whole);
    }
    size_t begin = 0;
    while (begin < whole.bytes && status == OX_OK) {
        const size_t skip = begins_with(whole.text + begin, whole.bytes - begin, step->content, step->content_bytes)
                                ? step->content_bytes
                                : 0;
        const char *const next =
            memmem(whole.text + begin + skip, whole.bytes - begin - skip, step->content, step->content_bytes);
        const size_t end = next != NULL ? (size_t)(next - whole.text) : whole.bytes;
        status = pass_on(encoder, index, whole, begin, end);
        begin = end;
    }
    return status;
}

static enum ox_status pre_tokenize(struct ox_encoder *encoder, uint32_t index, struct fragment fragment) {
    const struct ox_tokenizer *const tokenizer = encoder->tokenizer;
    if (fragment.bytes == 0) {
        return OX_OK;
    }
    if (index == tokenizer->pre.count && encoder->take != NULL) {
        return encoder->take(encoder->take_context, fragment.text, fragment.bytes);
    }
    if (index == tokenizer->pre.count) {
        return ox_bpe_encode(&tokenizer->bpe, encoder->bpe, fragment.text, fragment.bytes, encoder->out);
    }
    switch (tokenizer->pre.step[index].kind) {
    case OX_TOK_PREFIX_SPACE:
        return prefix_space(encoder, index, fragment);
    case OX_TOK_METASPACE:
        return metaspace(encoder, index, fragment);
    default:
        OX_ASSERT(tokenizer->pre.step[index].kind == OX_TOK_SPLIT);
        return split(encoder, index, fragment);
    }
}

/* ---- the whole text ------------------------------------------------------------------------------------------ */

/* Encodes the text between two added tokens that were found before the normalizer. */
static enum ox_status encode_raw(struct ox_encoder *encoder, const char *text, size_t bytes, bool at_start) {
    const struct ox_tokenizer *const tokenizer = encoder->tokenizer;
    struct ox_added_scan scan = {
        .trie = &tokenizer->normalized, .tokens = tokenizer->added, .skip_special = !encoder->parse_special};
    encoder->normal.continues = encoder->continues && at_start;
    enum ox_status status =
        ox_tok_normalize(&tokenizer->normalizer, &encoder->normal, text, bytes, &scan.text, &scan.bytes);
    while (status == OX_OK && ox_added_next(&scan)) {
        const struct fragment gap = {.text = scan.text + scan.gap_begin,
                                     .bytes = scan.gap_end - scan.gap_begin,
                                     .at_start = at_start && scan.gap_begin == 0};
        status = pre_tokenize(encoder, 0, gap);
        if (scan.token != NULL) {
            OX_THEN(status, ox_ids_add(encoder->out, scan.token->id));
        }
    }
    return status;
}

static enum ox_status encode_text(struct ox_encoder *encoder, const char *text, size_t bytes) {
    struct ox_added_scan scan = {.trie = &encoder->tokenizer->raw,
                                 .tokens = encoder->tokenizer->added,
                                 .text = text,
                                 .bytes = bytes,
                                 .skip_special = !encoder->parse_special};
    enum ox_status status = OX_OK;
    while (status == OX_OK && ox_added_next(&scan)) {
        if (scan.gap_end > scan.gap_begin) {
            status = encode_raw(encoder, text + scan.gap_begin, scan.gap_end - scan.gap_begin, scan.gap_begin == 0);
        }
        if (scan.token != NULL) {
            OX_THEN(status, ox_ids_add(encoder->out, scan.token->id));
        }
    }
    return status;
}

static enum ox_status check_utf8(const char *text, size_t bytes) {
    const size_t valid = ox_utf8_valid(text, bytes);
    return valid == bytes ? OX_OK
                          : ox_fail(OX_E_CORRUPT, "the text is not UTF-8 at byte %zu (0x%02x)", valid,
                                    (unsigned char)text[valid]);
}

static enum ox_status encode(struct ox_encoder *encoder, const char *text, size_t bytes, bool post,
                             struct ox_ids *out) {
    const struct ox_tok_post *const ends = &encoder->tokenizer->post;
    const size_t begin = out->count;
    enum ox_status status = check_utf8(text, bytes);
    encoder->out = out;
    if (post) {
        OX_THEN(status, ox_ids_append(out, ends->before.ids, ends->before.count));
    }
    OX_THEN(status, encode_text(encoder, text, bytes));
    if (status == OX_OK && post) {
        status = ox_ids_append(out, ends->after.ids, ends->after.count);
    }
    if (status != OX_OK) {
        out->count = begin;
    }
    encoder->out = NULL;
    return status;
}

/* ---- a text in parts ----------------------------------------------------------------------------------------- */

/* How much text a token covers. The unit does not matter, only that all ways to write a text as ids have the same
 * sum. */
static size_t token_length(const struct ox_bpe *bpe, uint32_t id) {
    if (id >= bpe->id_count || bpe->text_begin[id] == UINT32_MAX) {
        return 1;
    }
    const char *const text = bpe->texts.data + bpe->text_begin[id];
    const size_t bytes = bpe->text_bytes[id];
    if (bpe->byte_level) { /* each character of the token is one byte of text */
        size_t count = 0;
        for (size_t i = 0; i < bytes; i++) {
            count += ((uint8_t)text[i] & 0xc0) != 0x80;
        }
        return count;
    }
    const bool is_byte = bpe->byte_fallback && bytes == 6 && memcmp(text, "<0x", 3) == 0;
    return is_byte ? 1 : bytes;
}

/* The summed token_length of the first `bytes` of a gap, encoded alone: the position of the next byte among the ids of
 * the whole gap. */
static enum ox_status prefix_length(struct ox_encoder *encoder, const char *text, size_t bytes, bool at_start,
                                    size_t *length) {
    struct ox_ids *const out = encoder->out;
    enum ox_status status = OX_OK;
    *length = 0;
    encoder->prefix.count = 0;
    encoder->out = &encoder->prefix;
    if (bytes > 0) {
        status = encode_raw(encoder, text, bytes, at_start);
    }
    encoder->out = out;
    for (size_t i = 0; i < encoder->prefix.count; i++) {
        *length += token_length(&encoder->tokenizer->bpe, (uint32_t)encoder->prefix.ids[i]);
    }
    return status;
}

/* Marks the ids, from `first` on, that overlap [begin, end), in units of token_length. */
static void mark_ids(const struct ox_encoder *encoder, size_t first, size_t begin, size_t end, uint8_t *marks) {
    size_t at = 0;
    for (size_t i = first; i < encoder->out->count && at < end; i++) {
        const size_t next = at + token_length(&encoder->tokenizer->bpe, (uint32_t)encoder->out->ids[i]);
        if (next > begin) {
            marks[i - first] = 1;
        }
        at = next;
    }
}

/* Marks the ids of a gap, which begin at `first`, by the parts inside the gap; `part` is the first of them. It finds
 * the borders of marked parts by encoding the text before them, because a normalizer may have changed lengths. */
static enum ox_status mark_gap(struct ox_encoder *encoder, const struct ox_added_scan *scan,
                               const struct ox_text_part *part, size_t first, uint8_t *marks) {
    const char *const text = scan->text + scan->gap_begin;
    const size_t bytes = scan->gap_end - scan->gap_begin;
    size_t at = 0; /* offset in the gap */
    enum ox_status status = OX_OK;
    for (; at < bytes && status == OX_OK; part++) {
        const size_t end = part->end < scan->gap_end ? part->end - scan->gap_begin : bytes;
        if (part->marked && end > at) {
            size_t from = 0;
            size_t to = SIZE_MAX;
            status = prefix_length(encoder, text, at, scan->gap_begin == 0, &from);
            if (status == OX_OK && end < bytes) {
                status = prefix_length(encoder, text, end, scan->gap_begin == 0, &to);
            }
            if (status == OX_OK) {
                mark_ids(encoder, first, from, to, marks);
            }
        }
        at = end;
    }
    return status;
}

/* Encodes a gap and the token after it. *part may be any part at or before the gap; it moves to the one in which the
 * gap begins. */
static enum ox_status encode_gap(struct ox_encoder *encoder, const struct ox_added_scan *scan,
                                 const struct ox_text_part **part, struct ox_id_mask *marks) {
    const size_t first = encoder->out->count;
    enum ox_status status = OX_OK;
    if (scan->gap_end > scan->gap_begin) {
        const size_t bytes = scan->gap_end - scan->gap_begin;
        status = encode_raw(encoder, scan->text + scan->gap_begin, bytes, scan->gap_begin == 0);
        OX_THEN(status, ox_id_mask_append(marks, false, encoder->out->count - first));
        while ((*part)->end <= scan->gap_begin) {
            (*part)++;
        }
        if (status == OX_OK && encoder->out->count > first) { /* characters without a token give no ids */
            uint8_t *const fresh = marks->marks + marks->count - (encoder->out->count - first);
            status = mark_gap(encoder, scan, *part, first, fresh);
        }
    }
    if (status == OX_OK && scan->token != NULL) {
        bool marked = false;
        size_t at = scan->gap_end;
        for (const struct ox_text_part *each = *part; at < scan->covered; each++) {
            if (each->end > at) {
                marked = marked || each->marked;
                at = each->end;
            }
        }
        status = ox_ids_add(encoder->out, scan->token->id);
        OX_THEN(status, ox_id_mask_append(marks, marked, 1));
    }
    return status;
}

/* ---- public -------------------------------------------------------------------------------------------------- */

enum ox_status ox_encoder_open(const struct ox_tokenizer *tokenizer, struct ox_encoder **out) {
    struct ox_encoder *encoder = calloc(1, sizeof *encoder);
    if (encoder == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to encode text");
    }
    encoder->tokenizer = tokenizer;
    enum ox_status status = ox_matcher_open(&encoder->normal.matcher);
    OX_THEN(status, ox_bpe_scratch_open(&tokenizer->bpe, &encoder->bpe));
    if (status != OX_OK) {
        ox_encoder_close(&encoder);
        return status;
    }
    *out = encoder;
    return OX_OK;
}

void ox_encoder_close(struct ox_encoder **encoder) {
    if (*encoder == NULL) {
        return;
    }
    ox_normal_scratch_close(&(*encoder)->normal);
    ox_bpe_scratch_close(&(*encoder)->bpe);
    ox_ids_free(&(*encoder)->prefix);
    for (unsigned i = 0; i < OX_TOK_STEPS_MAX; i++) {
        ox_text_free(&(*encoder)->steps[i].text);
        free((*encoder)->steps[i].spans);
    }
    free(*encoder);
    *encoder = NULL;
}

enum ox_status ox_encode(struct ox_encoder *encoder, const char *text, size_t bytes, bool parse_special, bool post,
                         struct ox_ids *out) {
    encoder->parse_special = parse_special;
    return encode(encoder, text, bytes, post, out);
}

enum ox_status ox_encode_continued(struct ox_encoder *encoder, const char *text, size_t bytes, bool parse_special,
                              struct ox_ids *out) {
    encoder->parse_special = parse_special;
    encoder->continues = true;
    const enum ox_status status = encode(encoder, text, bytes, false, out);
    encoder->continues = false;
    return status;
}

enum ox_status ox_encode_pieces(struct ox_encoder *encoder, const char *text, size_t bytes, bool continues,
                                enum ox_status (*take)(void *context, const char *piece, size_t bytes),
                                void *context) {
    enum ox_status status = check_utf8(text, bytes);
    encoder->take = take;
    encoder->take_context = context;
    encoder->continues = continues;
    OX_THEN(status, encode_raw(encoder, text, bytes, true));
    encoder->continues = false;
    encoder->take = NULL;
    return status;
}

enum ox_status ox_encode_parts(struct ox_encoder *encoder, const char *text, const struct ox_text_part *parts,
                               size_t part_count, struct ox_ids *out, struct ox_id_mask *marks) {
    const size_t bytes = part_count > 0 ? parts[part_count - 1].end : 0;
    const size_t ids_begin = out->count;
    const size_t marks_begin = marks->count;
    struct ox_added_scan scan = {.trie = &encoder->tokenizer->raw,
                                 .tokens = encoder->tokenizer->added,
                                 .text = text,
                                 .bytes = bytes,
                                 .parts = parts};
    const struct ox_text_part *part = parts;
    enum ox_status status = check_utf8(text, bytes);
    encoder->out = out;
    encoder->parse_special = true; /* after the normalizer, the part that a token came from is unknown */
    for (size_t i = 0; i < part_count; i++) {
        encoder->parse_special = encoder->parse_special && parts[i].control;
    }
    while (status == OX_OK && ox_added_next(&scan)) {
        status = encode_gap(encoder, &scan, &part, marks);
    }
    if (status != OX_OK) {
        out->count = ids_begin;
        marks->count = marks_begin;
    }
    encoder->out = NULL;
    return status;
}
