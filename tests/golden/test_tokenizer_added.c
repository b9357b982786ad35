/* Tokens that files beside a tokenizer.json add, against the ids of transformers (tests/golden/added/, made by
 * tests/golden/make/golden_added.py). */
#include "base/file.h"
#include "base/json.h"
#include "engine/text/tokenizer.h"
#include "tests/kit/files.h"
#include "tests/kit/log.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 16 << 20 };

static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};

static void write_files(const json_t *one) {
    char base[OX_PATH_BYTES];
    REQUIRE_OK(ox_path_join("tests/golden/tokenizers", json_string_value(json_object_get(one, "base")), base));
    REQUIRE_OK(ox_file_copy(base, test_path("tokenizer.json")));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *const file = json_object_get(json_object_get(one, "files"), names[i]);
        char *const text = file != NULL ? json_dumps(file, 0) : NULL;
        if (text != NULL) {
            files_write_text(names[i], text);
        } else {
            unlink(test_path(names[i]));
        }
        free(text);
    }
}

/* Where no file names it, other rules find a BOS or EOS. */
static bool is_id(const json_t *one, const char *key, int64_t id) {
    const json_t *const value = json_object_get(one, key);
    return json_is_null(value) || json_integer_value(value) == id;
}

static bool same_ids(const json_t *expected, const struct ox_ids *ids) {
    bool same = json_array_size(expected) == ids->count;
    for (size_t i = 0; i < ids->count && same; i++) {
        same = json_integer_value(json_array_get(expected, i)) == ids->ids[i];
    }
    return same;
}

static void check_case(const json_t *one, const json_t *texts) {
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_encoder *encoder = NULL;
    struct ox_ids ids = {0};
    write_files(one);
    REQUIRE_OK(ox_tokenizer_open(test_folder(), &tokenizer));
    REQUIRE_OK(ox_encoder_open(tokenizer, &encoder));
    bool same = is_id(one, "count", ox_tokenizer_vocab_count(tokenizer)) &&
                is_id(one, "bos", ox_tokenizer_bos(tokenizer)) && is_id(one, "eos", ox_tokenizer_eos(tokenizer));
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *const text = json_array_get(texts, i);
        ids.count = 0;
        REQUIRE_OK(ox_encode(encoder, json_string_value(text), json_string_length(text), true, false, &ids));
        same = same && same_ids(json_array_get(json_object_get(one, "ids"), i), &ids);
    }
    if (!same) {
        printf("%s, %s: not as in transformers\n", json_string_value(json_object_get(one, "base")),
               json_string_value(json_object_get(one, "name")));
        test_failure_count++;
    }
    ox_ids_free(&ids);
    ox_encoder_close(&encoder);
    ox_tokenizer_close(&tokenizer);
}

int main(void) {
    json_t *cases = NULL;
    size_t i;
    json_t *one;
    log_count_warnings("is listed with the id"); /* and they are not printed */
    REQUIRE_OK(ox_json_load("tests/golden/added/cases.json", FILE_BYTES_MAX, &cases));
    json_array_foreach(json_object_get(cases, "cases"), i, one) {
        check_case(one, json_object_get(cases, "texts"));
    }
    CHECK(i > 100 && log_warnings > 0);
    json_decref(cases);
    return test_end();
}
