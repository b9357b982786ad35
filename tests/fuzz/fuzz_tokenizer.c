/* A tokenizer's files and a text: tokenizer.json, tokenizer_config.json, config.json, chat_template.jinja, the text.
 * The chat template opens or is refused. A tokenizer that opens gives ids below its vocabulary, the same ones again and
 * in parts, and decodes any ids to UTF-8. */
#include "tests/fuzz/fuzz.h"

#include "base/file.h"
#include "engine/text/template.h"
#include "engine/text/tokenizer_internal.h"
#include "tests/kit/test.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_COUNT = 4, PART_COUNT = FILE_COUNT + 1, TEXT_BYTES_MAX = 256, SMALL_ID = 1 << 12 };

static const char *folder, *files[FILE_COUNT];

static void open_paths(void) {
    if (folder == NULL) {
        files[0] = fuzz_path("tokenizer/tokenizer.json");
        files[1] = fuzz_path("tokenizer/tokenizer_config.json");
        files[2] = fuzz_path("tokenizer/config.json");
        files[3] = fuzz_path("tokenizer/chat_template.jinja");
        folder = fuzz_path("tokenizer");
        struct ox_tokenizer *tokenizer = NULL;
        fuzz_check_failure(ox_tokenizer_open(test_folder(), &tokenizer), test_folder());
    }
}

/* Ids near the limit are allowed, but tables of up to 200 MB would only slow the search down. */
static bool has_large_id(const struct fuzz_part *file) {
    uint64_t value = 0;
    for (size_t i = 0; i < file->bytes; i++) {
        const bool digit = isdigit((unsigned char)file->text[i]);
        value = digit && value < OX_TOK_ID_LIMIT ? value * 10 + (uint64_t)(file->text[i] - '0') : digit ? value : 0;
        const bool more = i + 1 < file->bytes && isdigit((unsigned char)file->text[i + 1]);
        if (!more && value > SMALL_ID && value < OX_TOK_ID_LIMIT) {
            return true;
        }
    }
    return false;
}

static void check_decode(const struct ox_tokenizer *tokenizer, const int32_t *ids, size_t count) {
    for (int skip = 0; skip < 2; skip++) {
        char *text = NULL;
        size_t bytes = 0;
        const enum ox_status status = ox_decode(tokenizer, ids, count, skip == 1, &text, &bytes);
        if (status != OX_OK) {
            FUZZ_CHECK(text == NULL && ox_error_text()[0] != '\0');
            continue;
        }
        FUZZ_CHECK(text != NULL && text[bytes] == '\0' && ox_utf8_valid(text, bytes) == bytes);
        free(text);
    }
}

static void check_ids(const struct ox_tokenizer *tokenizer, const struct ox_ids *ids) {
    for (size_t i = 0; i < ids->count; i++) {
        FUZZ_CHECK(ids->ids[i] >= 0 && (uint32_t)ids->ids[i] < ox_tokenizer_vocab_count(tokenizer));
        FUZZ_CHECK(ox_tokenizer_token(tokenizer, (uint32_t)ids->ids[i]) != NULL);
    }
    check_decode(tokenizer, ids->ids, ids->count);
}

static bool same_ids(const struct ox_ids *a, const struct ox_ids *b) {
    return a->count == b->count && (a->count == 0 || memcmp(a->ids, b->ids, a->count * sizeof *a->ids) == 0);
}

/* Special tokens that are matched after the normalizer are not found in parts, so whoever needs them must refuse parts.
 */
static bool has_late_special(const struct ox_tokenizer *tokenizer) {
    bool found = false;
    for (uint32_t i = 0; i < tokenizer->added_count; i++) {
        found = found || (tokenizer->added[i].special && tokenizer->added[i].normalized);
    }
    return found;
}

/* The whole text as one part gives the ids of the text without parts. */
static void check_parts(struct ox_encoder *encoder, const struct fuzz_part *text, bool control,
                        const struct ox_ids *expected) {
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    size_t middle = text->bytes / 2;
    const struct ox_text_part whole = {.end = text->bytes, .control = control, .marked = true};
    FUZZ_CHECK(ox_encode_parts(encoder, text->text, &whole, text->bytes > 0, &ids, &marks) == OX_OK);
    FUZZ_CHECK(same_ids(&ids, expected) && marks.count == ids.count);
    ids.count = marks.count = 0;
    while (middle > 0 && ((unsigned char)text->text[middle] & 0xc0) == 0x80) {
        middle--;
    }
    const struct ox_text_part halves[] = {{.end = middle, .control = control, .marked = !control},
                                          {.end = text->bytes, .control = !control, .marked = control}};
    if (middle > 0 && ox_encode_parts(encoder, text->text, halves, 2, &ids, &marks) == OX_OK) {
        FUZZ_CHECK(marks.count == ids.count);
        for (size_t i = 0; i < marks.count; i++) {
            FUZZ_CHECK(marks.marks[i] <= 1);
        }
    }
    ox_ids_free(&ids);
    ox_id_mask_free(&marks);
}

/* A text that cannot be encoded as a whole cannot be encoded in parts either. */
static void check_refused_parts(struct ox_encoder *encoder, const struct fuzz_part *text) {
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    const struct ox_text_part whole = {.end = text->bytes};
    FUZZ_CHECK(ox_encode_parts(encoder, text->text, &whole, 1, &ids, &marks) != OX_OK);
    FUZZ_CHECK(ids.count == 0 && marks.count == 0);
    ox_ids_free(&ids);
    ox_id_mask_free(&marks);
}

/* A text in two pieces, where the tokenizer says that it may be cut, has the ids of the whole. */
static void check_cuts(struct ox_encoder *encoder, const struct ox_tokenizer *tokenizer, const struct fuzz_part *text,
                       bool special) {
    const enum ox_cuts cuts = ox_tokenizer_cuts(tokenizer);
    struct ox_ids whole = {0}, pieces = {0};
    if (cuts == OX_CUTS_NONE || ox_encode(encoder, text->text, text->bytes, special, false, &whole) != OX_OK) {
        return;
    }
    for (size_t i = 0; i + 1 < text->bytes; i++) {
        size_t letter = i + 1;
        const size_t cut = cuts == OX_CUTS_BEFORE_NEWLINE ? i : i + 1;
        if (text->text[i] != '\n' || cut == 0 || !ox_unicode_is_letter(ox_utf8_next(text->text, &letter))) {
            continue;
        }
        pieces.count = 0;
        FUZZ_CHECK(ox_encode(encoder, text->text, cut, special, false, &pieces) == OX_OK);
        FUZZ_CHECK(ox_encode_continued(encoder, text->text + cut, text->bytes - cut, special, &pieces) == OX_OK);
        FUZZ_CHECK(same_ids(&whole, &pieces));
    }
    ox_ids_free(&whole);
    ox_ids_free(&pieces);
}

static void check_text(struct ox_encoder *encoder, const struct ox_tokenizer *tokenizer, const struct fuzz_part *text) {
    for (int mode = 0; mode < 2; mode++) {
        struct ox_ids ids = {0}, again = {0};
        const bool special = mode == 1, post = special == (text->bytes % 2 == 0);
        const enum ox_status status = ox_encode(encoder, text->text, text->bytes, special, post, &ids);
        if (status == OX_OK) {
            check_ids(tokenizer, &ids);
            FUZZ_CHECK(ox_encode(encoder, text->text, text->bytes, special, post, &again) == OX_OK);
            FUZZ_CHECK(same_ids(&ids, &again));
            check_cuts(encoder, tokenizer, text, special);
            if (!post && !(special && has_late_special(tokenizer))) {
                check_parts(encoder, text, special, &ids);
            }
        } else {
            FUZZ_CHECK(ids.count == 0 && ox_error_text()[0] != '\0');
            check_refused_parts(encoder, text);
        }
        ox_ids_free(&ids);
        ox_ids_free(&again);
    }
}

static void check_tokenizer(const struct ox_tokenizer *tokenizer, const struct fuzz_part *text) {
    const uint32_t count = ox_tokenizer_vocab_count(tokenizer);
    const int64_t bos = ox_tokenizer_bos(tokenizer), eos = ox_tokenizer_eos(tokenizer);
    struct ox_encoder *encoder = NULL;
    int32_t ids[TEXT_BYTES_MAX];
    char *none = NULL;
    size_t none_bytes = 0;
    FUZZ_CHECK(count > 0 && bos >= -1 && bos < (int64_t)count && eos >= -1 && eos < (int64_t)count);
    for (uint32_t id = 0; id < count; id++) {
        const char *const token = ox_tokenizer_token(tokenizer, id);
        FUZZ_CHECK(token == NULL || ox_tokenizer_find(tokenizer, token, strlen(token)) >= 0);
    }
    for (size_t i = 0; i < text->bytes; i++) {
        ids[i] = (unsigned char)text->text[i] * 7;
    }
    check_decode(tokenizer, ids, text->bytes);
    ids[0] = -1;
    FUZZ_CHECK(ox_decode(tokenizer, ids, 1, false, &none, &none_bytes) == OX_E_CONFIG && none == NULL);
    FUZZ_CHECK(ox_encoder_open(tokenizer, &encoder) == OX_OK);
    check_text(encoder, tokenizer, text);
    ox_encoder_close(&encoder);
}

static void check_template(void) {
    struct ox_template *chat_template = NULL;
    const enum ox_status status = ox_template_open(folder, "", &chat_template);
    FUZZ_CHECK((status == OX_OK) == (chat_template != NULL));
    if (status != OX_OK) {
        fuzz_check_failure(status, "");
    }
    ox_template_close(&chat_template);
}

int fuzz_tokenizer(const uint8_t *data, size_t bytes) {
    struct fuzz_part parts[PART_COUNT];
    struct ox_tokenizer *tokenizer = NULL;
    open_paths();
    fuzz_split(data, bytes, parts, PART_COUNT);
    struct fuzz_part *const text = &parts[FILE_COUNT];
    fuzz_accepted = false;
    if (has_large_id(&parts[0])) {
        return 0;
    }
    for (size_t i = 0; i < FILE_COUNT; i++) {
        fuzz_write_part(files[i], &parts[i]);
    }
    text->bytes = text->bytes < TEXT_BYTES_MAX ? text->bytes : TEXT_BYTES_MAX;
    const enum ox_status status = ox_tokenizer_open(folder, &tokenizer);
    fuzz_accepted = status == OX_OK;
    if (bytes % 4 == 0) { /* by the name of the file it is the same */
        const uint64_t fingerprint = status == OX_OK ? ox_tokenizer_fingerprint(tokenizer) : 0;
        ox_tokenizer_close(&tokenizer);
        FUZZ_CHECK(ox_tokenizer_open(files[0], &tokenizer) == status);
        FUZZ_CHECK(status != OX_OK || ox_tokenizer_fingerprint(tokenizer) == fingerprint);
    }
    if (status == OX_OK) {
        check_tokenizer(tokenizer, text);
    } else {
        FUZZ_CHECK(tokenizer == NULL);
        fuzz_check_failure(status, folder);
    }
    ox_tokenizer_close(&tokenizer);
    check_template();
    return 0;
}
