/* A trained tokenizer against the `tokenizers` library: merges, vocabulary and ids of every corpus in tests/golden/bpe/
 * (made by tests/golden/make/golden_bpe.py), whole and in pieces; its files; what cannot be trained. */
#include "base/file.h"
#include "base/json.h"
#include "engine/vocab/bpe_train.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <string.h>

static const char golden[] = "tests/golden/bpe";

static const char *string_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static enum ox_bpe_words words_of(const char *name) {
    return strcmp(name, "gpt2") == 0 ? OX_BPE_GPT2 : strcmp(name, "llama3") == 0 ? OX_BPE_LLAMA3 : OX_BPE_QWEN2;
}

/* Adds a text whole, or cut after the first newline that a letter follows. */
static void add_text(struct ox_bpe_trainer *trainer, const char *text, bool in_pieces) {
    const size_t bytes = strlen(text);
    const bool before = ox_bpe_trainer_cuts(trainer) == OX_CUTS_BEFORE_NEWLINE;
    size_t cut = 0;
    CHECK(ox_bpe_trainer_cuts(trainer) != OX_CUTS_NONE);
    for (const char *at = text; in_pieces && cut == 0 && (at = strchr(at, '\n')) != NULL; at++) {
        cut = at > text && at[1] >= 'a' && at[1] <= 'z' ? (size_t)(at - text) + !before : 0;
    }
    if (cut > 0) {
        REQUIRE_OK(ox_bpe_trainer_add(trainer, text, cut, false));
    }
    REQUIRE_OK(ox_bpe_trainer_add(trainer, text + cut, bytes - cut, cut > 0));
}

static void read_specials(const json_t *list, struct ox_bpe_specials *out) {
    char text[256] = "";
    size_t i;
    json_t *special;
    json_array_foreach(list, i, special) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i > 0 ? "," : "", json_string_value(special));
    }
    REQUIRE_OK(ox_bpe_specials_read(text, out));
    CHECK(out->count == json_array_size(list));
}

/* Trains on the texts of a case, into a new folder. */
static const char *train(const json_t *wanted, const char *name, bool in_pieces) {
    struct ox_bpe_specials specials;
    read_specials(json_object_get(wanted, "special"), &specials);
    const struct ox_bpe_training config = {
        .vocab_size = (uint32_t)json_integer_value(json_object_get(wanted, "vocab_size")),
        .min_frequency = (uint64_t)json_integer_value(json_object_get(wanted, "min_frequency")),
        .words = words_of(string_of(wanted, "pre_tokenizer")),
        .specials = &specials};
    struct ox_bpe_trainer *trainer = NULL;
    uint32_t vocab_count = 0;
    size_t i;
    json_t *text;
    REQUIRE_OK(ox_bpe_trainer_open(&config, &trainer));
    json_array_foreach(json_object_get(wanted, "texts"), i, text) {
        add_text(trainer, json_string_value(text), in_pieces);
    }
    REQUIRE_OK(ox_bpe_trainer_run(trainer, &vocab_count));
    CHECK(vocab_count == 256 + specials.count + json_array_size(json_object_get(wanted, "vocab")));
    const char *const folder = test_path(name);
    REQUIRE_OK(ox_bpe_trainer_save(trainer, folder));
    CHECK(ox_bpe_trainer_save(trainer, folder) == OX_E_CONFIG); /* it is not written over */
    ox_bpe_trainer_close(&trainer);
    ox_bpe_specials_free(&specials);
    return folder;
}

static void check_merges(const json_t *wanted, const json_t *model) {
    const json_t *const expected = json_object_get(wanted, "merges"), *const merges = json_object_get(model, "merges");
    CHECK(json_array_size(merges) == json_array_size(expected));
    for (size_t i = 0; i < json_array_size(expected) && i < json_array_size(merges); i++) {
        const json_t *const pair = json_array_get(merges, i);
        char text[512];
        snprintf(text, sizeof text, "%s %s", json_string_value(json_array_get(pair, 0)),
                 json_string_value(json_array_get(pair, 1)));
        CHECK(strcmp(text, json_string_value(json_array_get(expected, i))) == 0);
    }
}

static void check_vocabulary(const json_t *wanted, const struct ox_tokenizer *tokenizer) {
    const size_t first = 256 + json_array_size(json_object_get(wanted, "special"));
    size_t i;
    json_t *token;
    json_array_foreach(json_object_get(wanted, "vocab"), i, token) {
        const char *const text = ox_tokenizer_token(tokenizer, (uint32_t)(first + i));
        CHECK(text != NULL && strcmp(text, json_string_value(token)) == 0);
    }
}

static void check_ids(const json_t *wanted, const struct ox_tokenizer *tokenizer) {
    const json_t *const expected = json_object_get(wanted, "ids");
    struct ox_encoder *encoder = NULL;
    struct ox_ids ids = {0};
    const char *const probe = string_of(wanted, "probe");
    REQUIRE_OK(ox_encoder_open(tokenizer, &encoder));
    REQUIRE_OK(ox_encode(encoder, probe, strlen(probe), true, false, &ids));
    CHECK(ids.count == json_array_size(expected));
    for (size_t i = 0; i < ids.count; i++) {
        CHECK(ids.ids[i] == json_integer_value(json_array_get(expected, i)));
    }
    ox_ids_free(&ids);
    ox_encoder_close(&encoder);
}

static void check_case(const char *name, bool in_pieces) {
    json_t *wanted = NULL, *written = NULL;
    struct ox_tokenizer *tokenizer = NULL;
    REQUIRE_OK(ox_json_load(plain_pathf("%s/%s", golden, name), 1 << 20, &wanted));
    const char *const folder = train(wanted, in_pieces ? "pieces" : "whole", in_pieces);
    REQUIRE_OK(ox_json_load(plain_pathf("%s/tokenizer.json", folder), 1 << 20, &written));
    REQUIRE_OK(ox_tokenizer_open(folder, &tokenizer));
    const int before = test_failure_count;
    check_merges(wanted, json_object_get(written, "model"));
    check_vocabulary(wanted, tokenizer);
    check_ids(wanted, tokenizer);
    if (test_failure_count > before) {
        printf("in %s%s\n", name, in_pieces ? ", in pieces" : "");
    }
    ox_tokenizer_close(&tokenizer);
    json_decref(written);
    json_decref(wanted);
    files_remove_folder(in_pieces ? "pieces" : "whole");
}

static void test_golden(void) {
    DIR *const folder = opendir(golden);
    const char *name = NULL;
    unsigned count = 0;
    CHECK(folder != NULL);
    while (folder != NULL && ox_folder_next(folder, golden, &name) == OX_OK && name != NULL) {
        check_case(name, false);
        check_case(name, true);
        count++;
    }
    closedir(folder);
    CHECK(count >= 29);
}

/* The roles of special tokens are in tokenizer_config.json. */
static void test_roles(void) {
    struct ox_bpe_specials specials;
    struct ox_bpe_trainer *trainer = NULL;
    struct ox_tokenizer *tokenizer = NULL;
    uint32_t vocab_count = 0;
    REQUIRE_OK(ox_bpe_specials_read("<|im_start|>,bos=<s>,pad=<pad>,eos=<|im_end|>", &specials));
    const struct ox_bpe_training config = {.vocab_size = 300, .specials = &specials};
    REQUIRE_OK(ox_bpe_trainer_open(&config, &trainer));
    REQUIRE_OK(ox_bpe_trainer_run(trainer, &vocab_count)); /* of no text at all */
    CHECK(vocab_count == 260);
    REQUIRE_OK(ox_bpe_trainer_save(trainer, test_path("roles")));
    REQUIRE_OK(ox_tokenizer_open(test_path("roles"), &tokenizer));
    CHECK(ox_tokenizer_bos(tokenizer) == 1);
    CHECK(ox_tokenizer_pad(tokenizer) == 2);
    CHECK(ox_tokenizer_eos(tokenizer) == 3);
    CHECK(ox_tokenizer_is_special(tokenizer, 0));
    ox_tokenizer_close(&tokenizer);
    ox_bpe_trainer_close(&trainer);
    ox_bpe_specials_free(&specials);
}

static void test_refused(void) {
    static const char *const lists[] = {"a,,b", "eos=", "a,a", "eos=a,eos=b", ","};
    struct ox_bpe_specials specials;
    struct ox_bpe_trainer *trainer = NULL;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        CHECK(ox_bpe_specials_read(lists[i], &specials) == OX_E_CONFIG);
        ox_bpe_specials_free(&specials);
    }
    REQUIRE_OK(ox_bpe_specials_read("x,y", &specials));
    const struct ox_bpe_training small = {.vocab_size = 257, .specials = &specials};
    CHECK(ox_bpe_trainer_open(&small, &trainer) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "at least 258") != NULL);
    const struct ox_bpe_training config = {.vocab_size = 258, .specials = &specials};
    REQUIRE_OK(ox_bpe_trainer_open(&config, &trainer));
    CHECK(ox_bpe_trainer_add(trainer, "a\xff", 2, false) == OX_E_CORRUPT);
    ox_bpe_trainer_close(&trainer);
    ox_bpe_specials_free(&specials);
}

int main(void) {
    test_golden();
    test_roles();
    test_refused();
    return test_end();
}
