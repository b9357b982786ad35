/* Character classes of every code point against the original library: the ids of texts in which a character's class
 * decides what its neighbours join (tests/golden/unicode/, made by tests/golden/make/golden_unicode.py). */
#include "base/file.h"
#include "base/json.h"
#include "engine/text/tokenizer_internal.h"
#include "tests/kit/test.h"

#include <string.h>

enum { FILE_BYTES_MAX = 1 << 20, CODE_POINTS = 0x110000, TEXT_BYTES = 128 };

static const char golden[] = "tests/golden/unicode";

static uint64_t add(uint64_t hash, uint32_t id) {
    return (hash ^ id) * UINT64_C(0x100000001b3);
}

/* The text that golden_unicode.py makes of a code point. */
static size_t text_of(uint32_t cp, char text[TEXT_BYTES]) {
    char c[5] = "";
    c[ox_utf8_put(cp, c)] = '\0';
    if (cp == 0) { /* which no format writes */
        static const char nul[] = "\0a\0" "1\0!\0A\0 e\0\xcc\x81QQ <m> \0<n>";
        memcpy(text, nul, sizeof nul);
        return sizeof nul; /* its last NUL is the text's */
    }
    return (size_t)snprintf(text, TEXT_BYTES, "%sa%s1%s!%sA%s e%s\xcc\x81QQ <m> %s<n>%s", c, c, c, c, c, c, c, c);
}

static uint64_t block_hash(struct ox_encoder *encoder, uint32_t begin, uint32_t count) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    struct ox_ids ids = {0};
    for (uint32_t cp = begin; cp < begin + count; cp++) {
        if (cp >= 0xd800 && cp < 0xe000) {
            continue;
        }
        char text[TEXT_BYTES];
        const size_t bytes = text_of(cp, text);
        ids.count = 0;
        REQUIRE_OK(ox_encode(encoder, text, bytes, true, false, &ids));
        for (size_t i = 0; i < ids.count; i++) {
            hash = add(hash, (uint32_t)ids.ids[i]);
        }
        hash = add(hash, UINT32_MAX);
    }
    ox_ids_free(&ids);
    return hash;
}

/* Planes 4 to 13 and 15 to 16 hold no character, so one case is enough for them. */
static bool is_due(const char *name, uint32_t cp) {
    return cp < 0x40000 || cp >> 16 == 14 || strcmp(name, "others") == 0;
}

static void test_case(const char *name, const json_t *hashes, uint32_t block) {
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_encoder *encoder = NULL;
    char path[OX_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s.json", golden, name);
    REQUIRE_OK(ox_tokenizer_open(path, &tokenizer));
    REQUIRE_OK(ox_encoder_open(tokenizer, &encoder));
    CHECK(json_array_size(hashes) == CODE_POINTS / block);
    for (uint32_t i = 0; i < CODE_POINTS / block; i++) {
        char hash[17] = "";
        if (!is_due(name, i * block)) {
            continue;
        }
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)block_hash(encoder, i * block, block));
        if (strcmp(hash, json_string_value(json_array_get(hashes, i))) != 0) {
            printf("%s: ids differ between U+%04X and U+%04X\n", name, i * block, (i + 1) * block - 1);
            test_failure_count++;
        }
    }
    ox_encoder_close(&encoder);
    ox_tokenizer_close(&tokenizer);
}

int main(void) {
    char path[OX_PATH_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/hashes.json", golden);
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    json_t *const file = json_loadb(text, bytes, 0, NULL);
    const uint32_t block = (uint32_t)json_integer_value(json_object_get(file, "block"));
    json_t *const cases = json_object_get(file, "hashes");
    const char *name = NULL;
    json_t *hashes = NULL;
    CHECK(block > 0 && json_object_size(cases) > 0);
    json_object_foreach(cases, name, hashes) {
        test_case(name, hashes, block);
    }
    json_decref(file);
    free(text);
    return test_end();
}
