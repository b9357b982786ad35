/* The places of assistant turns in what published templates write: those that make/golden_turns.py states by another
 * way of looking. The templates lie beside the project and are no part of it; the places are. */
#include "base/file.h"
#include "engine/text/template.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <string.h>

enum { FILE_BYTES_MAX = 64 << 20, SHOWN_MAX = 20 };

static const struct tm now = {.tm_year = 126, .tm_mon = 10, .tm_mday = 20, .tm_hour = 15, .tm_min = 4, .tm_sec = 5,
                              .tm_wday = 5, .tm_yday = 323};
static size_t equal, refused, different, unstated;

static bool same(const struct ox_template_turns *turns, const json_t *expected) {
    bool ok = turns->count == json_array_size(expected);
    for (size_t i = 0; ok && i < turns->count; i++) {
        const json_t *const place = json_array_get(expected, i);
        ok = json_integer_value(json_array_get(place, 0)) == (json_int_t)turns->turns[i].begin_byte &&
             json_integer_value(json_array_get(place, 1)) == (json_int_t)turns->turns[i].end_byte;
    }
    return ok;
}

static void show(const char *name, const char *conversation, const struct ox_template_turns *turns,
                 const json_t *expected) {
    char *const wanted = json_dumps(expected, JSON_COMPACT);
    printf("%s, %s: expected %s, got", name, conversation, wanted);
    for (size_t i = 0; i < turns->count; i++) {
        printf(" [%zu,%zu]", turns->turns[i].begin_byte, turns->turns[i].end_byte);
    }
    printf("\n  of %.600s\n", turns->output.text);
    free(wanted);
}

static void compare(const struct ox_template *chat_template, const json_t *line, const char *conversation,
                    json_t *row) {
    const json_t *const expected = json_object_get(line, conversation);
    struct ox_template_turns turns;
    bool is_stated = true;
    for (size_t i = 0; i < json_array_size(expected); i++) {
        is_stated = is_stated && !json_is_null(json_array_get(expected, i));
    }
    json_object_set(row, "chat_template_kwargs", json_object_get(line, "kwargs"));
    const enum ox_status status = ox_template_render_turns(chat_template, row, &now, &turns);
    CHECK(status == OX_OK || (status == OX_E_CONFIG && strncmp(ox_error_text(), "message ", 8) == 0));
    if (!is_stated) {
        unstated++;
    } else if (status != OX_OK) {
        refused++;
    } else if (same(&turns, expected)) {
        equal++;
    } else if (different++ < SHOWN_MAX) {
        show(json_string_value(json_object_get(line, "template")), conversation, &turns, expected);
    }
    ox_template_turns_free(&turns);
}

static void compare_template(const char *folder, const json_t *line, json_t *conversations) {
    struct ox_template *chat_template = NULL;
    char path[OX_PATH_BYTES];
    const char *conversation = NULL;
    json_t *row = NULL;
    snprintf(path, sizeof path, "%.1000s/%.200s.jinja", folder, json_string_value(json_object_get(line, "template")));
    REQUIRE_OK(ox_template_open(test_path("empty"), path, &chat_template));
    json_object_foreach(conversations, conversation, row) {
        if (json_object_get(line, conversation) != NULL) {
            compare(chat_template, line, conversation, row);
        }
    }
    ox_template_close(&chat_template);
}

int main(void) {
    const char *const data = test_data_folder();
    char folder[OX_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    json_t *conversations = NULL;
    snprintf(folder, sizeof folder, "%.1000s/templates", data != NULL ? data : "");
    if (data == NULL || !ox_path_is_folder(folder)) {
        test_skip("the published templates are not there; set OX_TEST_DATA to their folder");
    }
    files_make_folder("empty");
    REQUIRE_OK(ox_file_read("tests/golden/templates/turns.jsonl", FILE_BYTES_MAX, &text, &bytes));
    for (char *at = text; at < text + bytes;) {
        char *const end = strchr(at, '\n');
        json_t *line = NULL;
        REQUIRE_OK(ox_json_parse("turns.jsonl", at, (size_t)(end - at), &line));
        if (conversations == NULL) {
            conversations = json_incref(line);
        } else {
            compare_template(folder, line, conversations);
        }
        json_decref(line);
        at = end + 1;
    }
    printf("%zu conversations equal, %zu different, %zu refused; %zu not stated\n", equal, different, refused,
           unstated);
    /* What is refused: a text around the turn that changes with what follows, and some conversations that begin with
     * the assistant. */
    CHECK(different == 0 && equal > 50 * refused);
    json_decref(conversations);
    free(text);
    return test_end();
}
