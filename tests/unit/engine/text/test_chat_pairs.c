/* Rows of preferences in TRL's forms, as tests/golden/make/golden_dpo.py wrote them: the ids of their prompts and
 * answers are those of TRL's DPOTrainer. */
#include "base/json.h"
#include "engine/text/chat.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LENGTH = 48 }; /* of golden_dpo.py: a pair whose prompt fills it is not there */

static struct ox_chat_renderer *renderer;

static bool is_part(const json_t *list, const int32_t *ids, size_t count) {
    bool same = json_array_size(list) == count;
    for (size_t i = 0; i < count && same; i++) {
        same = json_integer_value(json_array_get(list, i)) == ids[i];
    }
    return same;
}

static void check_half(const json_t *prompt, const json_t *answer, const int32_t *ids, const uint8_t *trained,
                       size_t count) {
    const size_t shared = json_array_size(prompt);
    CHECK(count >= shared && is_part(prompt, ids, shared) && is_part(answer, ids + shared, count - shared));
    for (size_t i = 0; i < count; i++) {
        CHECK(trained[i] == (i >= shared));
    }
}

static void check_rows(const char *name, const json_t *expected) {
    char path[256], *line = NULL;
    size_t room = 0, taken = 0, number = 0;
    snprintf(path, sizeof path, "tests/golden/dpo/%s.jsonl", name);
    FILE *const file = fopen(path, "r");
    struct ox_chat_pair pair = {0};
    struct ox_ids ids = {0};
    struct ox_id_mask trained = {0};
    CHECK(file != NULL);
    for (ssize_t bytes = 0; file != NULL && (bytes = getline(&line, &room, file)) > 0;) {
        char where[300];
        size_t second = 0;
        snprintf(where, sizeof where, "%s:%zu", path, ++number);
        REQUIRE_OK(ox_chat_read_pair(where, line, (size_t)bytes, NULL, &pair));
        ids.count = trained.count = 0;
        REQUIRE_OK(ox_chat_render_pair(renderer, where, &pair, &ids, &trained, &second));
        size_t shared = 0;
        while (shared < second && trained.marks[shared] == 0) {
            shared++;
        }
        if (shared >= MAX_LENGTH) {
            continue;
        }
        const json_t *const row = json_array_get(expected, taken++);
        check_half(json_array_get(row, 0), json_array_get(row, 1), ids.ids, trained.marks, second);
        check_half(json_array_get(row, 0), json_array_get(row, 2), ids.ids + second, trained.marks + second,
                   ids.count - second);
    }
    CHECK(taken == json_array_size(expected) && taken > 0 && taken <= number);
    printf("%s: %zu of %zu rows\n", name, taken, number);
    ox_chat_pair_free(&pair);
    ox_ids_free(&ids);
    ox_id_mask_free(&trained);
    free(line);
    fclose(file);
}

/* Implicit prompts of texts. */
static void check_prompts(void) {
    json_t *rows = NULL, *row;
    size_t idx;
    struct ox_chat_pair pair = {0};
    REQUIRE_OK(ox_json_load("tests/golden/dpo/prompts.json", 1 << 20, &rows));
    CHECK(json_array_size(rows) > 0);
    json_array_foreach(rows, idx, row) {
        const char *parts[5];
        for (size_t i = 0; i < 5; i++) {
            parts[i] = json_string_value(json_array_get(row, i));
        }
        json_t *const object = json_pack("{s:s,s:s}", "chosen", parts[0], "rejected", parts[1]);
        char *const line = json_dumps(object, JSON_COMPACT);
        REQUIRE_OK(ox_chat_read_pair("rows", line, strlen(line), NULL, &pair));
        CHECK(strcmp(pair.chosen.prompt, parts[2]) == 0 && strcmp(pair.rejected.prompt, parts[2]) == 0);
        CHECK(strcmp(pair.chosen.text, parts[3]) == 0 && strcmp(pair.rejected.text, parts[4]) == 0);
        free(line);
        json_decref(object);
    }
    json_decref(rows);
    ox_chat_pair_free(&pair);
}

int main(void) {
    check_prompts();
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_template *chat_template = NULL;
    json_t *golden = NULL, *expected;
    const char *name;
    REQUIRE_OK(ox_json_load("tests/golden/dpo/golden.json", 1 << 20, &golden));
    REQUIRE_OK(ox_tokenizer_open("tests/golden/dpo", &tokenizer));
    REQUIRE_OK(ox_template_open("tests/golden/dpo", "", &chat_template));
    REQUIRE_OK(ox_chat_open(tokenizer, &(struct ox_chat_options){.chat_template = chat_template}, &renderer));
    json_object_foreach(json_object_get(golden, "tokens"), name, expected) {
        check_rows(name, expected);
    }
    ox_chat_close(&renderer);
    ox_template_close(&chat_template);
    ox_tokenizer_close(&tokenizer);
    json_decref(golden);
    return test_end();
}
