/* docs/coming-from.md names every key that other programs have, and options and values that exist here; a configuration
 * with a key of theirs is answered. */
#include "engine/config/config.h"

#include "base/file.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 96 };

static const char name_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";

/* Copies the letters at `at` that belong to a name; returns how many there are. */
static size_t take_word(const char *at, const char *letters, char word[WORD_BYTES]) {
    const size_t bytes = strspn(at, letters);
    snprintf(word, WORD_BYTES, "%.*s", (int)bytes, at);
    return bytes;
}

/* Checks the options that a text between backticks names: "--nvme PATH:SIZE", "--sharding zero2". */
static unsigned check_options(const char *text) {
    static struct ox_config config;
    unsigned count = 0;
    for (const char *at = strstr(text, "--"); at != NULL; at = strstr(at, "--"), count++) {
        char name[WORD_BYTES], value[WORD_BYTES] = "";
        at += 2;
        at += take_word(at, name_letters, name);
        const struct ox_option *const option = ox_option_find(name);
        if (option == NULL || (option->commands & OX_CMD_TRAIN) == 0) {
            printf("`%s`: --%s is no option of train\n", text, name);
            test_failure_count++;
            continue;
        }
        if (*at == ' ' && at[1] != '-' && take_word(at + 1, name_letters, value) > 0) {
            ox_config_init(&config); /* a value in small letters or digits is meant as it is */
            REQUIRE_OK(ox_config_set(&config, option, value, text));
        }
    }
    return count;
}

/* Whether the page has the key as a word of its own between backticks, or as the end of one with a dot. */
static bool has_key(const char *page, const char *key) {
    const size_t bytes = strlen(key);
    for (const char *at = strstr(page, key); at != NULL; at = strstr(at + 1, key)) {
        if ((at[-1] == '`' || at[-1] == '.') && strchr("`.=", at[bytes]) != NULL) {
            return true;
        }
    }
    return false;
}

/* Every key of `object`, and of the mappings in it, is on the page. */
static void check_complete(const char *page, const json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        if (!has_key(page, key)) {
            printf("the page does not have %s\n", key);
            test_failure_count++;
        }
        check_complete(page, value);
    }
}

/* Checks a key of another program; one that is nested answers for the mapping that it is in. */
static unsigned check_key(const char *text) {
    char key[WORD_BYTES];
    const size_t bytes = take_word(text, name_letters, key);
    if (bytes == 0 || (text[bytes] != '\0' && text[bytes] != '.')) {
        return 0; /* no key */
    }
    if (ox_option_find(key) == NULL && ox_foreign_answer(key, NULL) == NULL) {
        printf("`%s`: a configuration with it gets no answer\n", text);
        test_failure_count++;
    }
    return 1;
}

/* Calls `check` with each text between backticks; returns the sum of its results. */
static unsigned each_code(char *text, unsigned (*check)(const char *)) {
    unsigned count = 0;
    for (char *at = strchr(text, '`'); at != NULL; at = strchr(at + 1, '`')) {
        char *const end = strchr(at + 1, '`');
        CHECK(end != NULL);
        if (end == NULL) {
            break;
        }
        *end = '\0';
        count += check(at + 1);
        at = end;
    }
    return count;
}

int main(void) {
    char *page = NULL, *save = NULL;
    size_t bytes = 0;
    unsigned option_count = 0, key_count = 0;
    bool has_keys = false;
    REQUIRE_OK(ox_file_read("docs/coming-from.md", 1 << 20, &page, &bytes));
    json_t *const programs = json_load_file("tests/golden/foreign_keys.json", 0, NULL), *keys;
    const char *name;
    CHECK(json_object_size(programs) == 3);
    json_object_foreach(programs, name, keys) {
        check_complete(page, keys);
    }
    json_decref(programs);
    for (char *line = strtok_r(page, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        char *const cell = line[0] == '|' ? strrchr(line, '|') : NULL; /* the end of the row */
        if (line[0] == '#') {
            has_keys = strstr(line, "Beside it") != NULL || strstr(line, "Accelerate") != NULL;
        }
        if (cell == NULL) {
            option_count += each_code(line, check_options);
            continue;
        }
        *cell = '\0';
        char *const last = strrchr(line, '|');
        CHECK(last != NULL && last > line);
        option_count += each_code(last, check_options);
        *last = '\0';
        char *const second = strchr(line + 1, '|');
        if (second != NULL) {
            *second = '\0';
        }
        key_count += has_keys ? each_code(line, check_key) : 0;
    }
    free(page);
    printf("%u options, %u keys\n", option_count, key_count);
    CHECK(option_count > 60 && key_count > 40);
    return test_end();
}
