/* Real texts in pieces: with real tokenizers (which are no part of the project) the ids of pieces are those of the
 * whole. */
#include "base/file.h"
#include "engine/data/documents.h"
#include "engine/text/tokenizer.h"
#include "tests/kit/documents.h"
#include "tests/kit/test.h"

#include <string.h>

/* Only one thread works here, so ThreadSanitizer, which slows every access, gets a part of the texts. */
#if defined(__SANITIZE_THREAD__)
enum { SIZES = 1, TEXTS = 1 };
#else
enum { SIZES = 3, TEXTS = 2 };
#endif

static void compare(struct ox_encoder *encoder, const char *path, enum ox_cuts cuts, size_t piece_bytes) {
    const struct ox_documents_config config = {.piece_bytes = piece_bytes,
                                               .cut_before_newline = cuts == OX_CUTS_BEFORE_NEWLINE};
    struct ox_documents *documents = NULL;
    struct ox_document piece;
    struct ox_ids whole = {0}, joined = {0};
    char *text = NULL;
    size_t bytes = 0, count = 0;
    REQUIRE_OK(ox_file_read(path, 64 << 20, &text, &bytes));
    REQUIRE_OK(ox_encode(encoder, text, bytes, true, false, &whole));
    REQUIRE_OK(documents_open(path, &config, &documents));
    for (bool found = true; found; count += found) {
        REQUIRE_OK(ox_documents_next(documents, &piece, &found));
        if (found) {
            REQUIRE_OK(piece.begins ? ox_encode(encoder, piece.text, piece.bytes, true, false, &joined)
                                    : ox_encode_continued(encoder, piece.text, piece.bytes, true, &joined));
        }
    }
    CHECK(count > bytes / piece_bytes / 20 && count > 1);
    CHECK(whole.count == joined.count && memcmp(whole.ids, joined.ids, whole.count * sizeof *whole.ids) == 0);
    ox_documents_close(&documents);
    ox_ids_free(&whole);
    ox_ids_free(&joined);
    free(text);
}

int main(void) {
    static const char *const names[] = {"gpt2", "qwen3", "llama2_sp", "tok512"};
    static const char *const texts[2] = {"tinyshakespeare/input.txt", "tinystories/val_sample.txt"};
    static const size_t sizes[3] = {3000, 50, 65536};
    const char *const data = test_data_folder();
    char path[OX_PATH_BYTES];
    if (data == NULL) {
        test_skip("no folder of tokenizers ($OX_TEST_DATA)");
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct ox_tokenizer *tokenizer = NULL;
        struct ox_encoder *encoder = NULL;
        snprintf(path, sizeof path, "%.1000s/tokenizers/%s", data, names[i]);
        if (!ox_path_is_folder(path)) {
            test_skip("the data folder has no tokenizers");
        }
        REQUIRE_OK(ox_tokenizer_open(path, &tokenizer));
        REQUIRE_OK(ox_encoder_open(tokenizer, &encoder));
        const enum ox_cuts cuts = ox_tokenizer_cuts(tokenizer);
        CHECK(cuts == (i == 0 ? OX_CUTS_BEFORE_NEWLINE : OX_CUTS_AFTER_NEWLINE));
        for (size_t k = 0; k < TEXTS * SIZES; k++) {
            snprintf(path, sizeof path, "%.1000s/text/%s", data, texts[k / SIZES]);
            if (ox_path_is_file(path)) {
                compare(encoder, path, cuts, sizes[k % SIZES]);
            }
        }
        ox_encoder_close(&encoder);
        ox_tokenizer_close(&tokenizer);
    }
    return test_end();
}
