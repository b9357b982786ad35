/* Chat templates against what transformers renders of them: every rendering, every error, every span of
 * {% generation %}. Compares the committed cases (made by make/golden_templates.py) and the published templates beside
 * the project, which are no part of it. `test_templates FOLDER [NAME...]` compares another folder of the same form:
 * NAME.jinja, NAME.meta.json with the special tokens, and references.jsonl; `test_templates --cases FILE` the cases of
 * make/fuzz_templates.py, in which a construct may be refused. */
#include "base/file.h"
#include "engine/text/template.h"
#include "tests/kit/test.h"

#include <string.h>

enum { FILE_BYTES_MAX = 256 << 20, TEMPLATES_MAX = 1024, SHOWN_MAX = 20 };

struct subject {
    char name[256];
    struct ox_jinja *jinja;
    char error[OX_ERROR_TEXT_BYTES]; /* why it does not compile */
    json_t *special_tokens;
    size_t rows, equal;
};

static struct subject subjects[TEMPLATES_MAX];
static size_t subject_count, shown;
/* 2026-11-20 15:04:05, a Friday. */
static const struct tm now = {.tm_year = 126, .tm_mon = 10, .tm_mday = 20, .tm_hour = 15, .tm_min = 4, .tm_sec = 5,
                              .tm_wday = 5, .tm_yday = 323};

static json_t *special_tokens(const char *path) {
    json_t *meta = NULL, *const tokens = json_object();
    const char *key = NULL;
    json_t *value = NULL;
    if (!ox_path_exists(path)) {
        return tokens;
    }
    REQUIRE_OK(ox_json_load(path, FILE_BYTES_MAX, &meta));
    json_object_foreach(meta, key, value) {
        if (strlen(key) > 6 && strcmp(key + strlen(key) - 6, "_token") == 0 && json_is_string(value)) {
            json_object_set(tokens, key, value);
        }
    }
    json_decref(meta);
    return tokens;
}

/* The folder of what the published templates give that the built-in ones stand for (make/golden_builtin.py). */
#define BUILTIN "tests/golden/templates/builtin"

static const char *builtin_text(const char *name) {
    const struct ox_template_builtin *builtin = ox_template_builtins;
    while (strcmp(builtin->name, name) != 0) {
        builtin++;
    }
    return builtin->text;
}

static struct subject *subject_of(const char *folder, const char *name) {
    char path[OX_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    for (size_t i = 0; i < subject_count; i++) {
        if (strcmp(subjects[i].name, name) == 0) {
            return &subjects[i];
        }
    }
    CHECK(subject_count < TEMPLATES_MAX);
    struct subject *const subject = &subjects[subject_count++];
    const struct ox_jinja_limits limits = ox_jinja_default_limits();
    snprintf(subject->name, sizeof subject->name, "%s", name);
    snprintf(path, sizeof path, "%.1000s/%.200s.jinja", folder, name);
    if (strcmp(folder, BUILTIN) == 0) {
        text = strdup(builtin_text(name));
        bytes = strlen(text);
    } else {
        REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    }
    if (ox_jinja_compile(text, bytes, &limits, &subject->jinja) != OX_OK) {
        snprintf(subject->error, sizeof subject->error, "%s", ox_error_text());
    }
    free(text);
    snprintf(path, sizeof path, "%.1000s/%.200s.meta.json", folder, name);
    subject->special_tokens = special_tokens(path);
    return subject;
}

/* The reference counts code points. */
static bool same_spans(const struct ox_jinja_output *output, const json_t *expected) {
    if (json_array_size(expected) != output->span_count) {
        return false;
    }
    for (size_t i = 0; i < output->span_count; i++) {
        json_int_t points[2] = {0, 0};
        for (size_t k = 0; k < output->text_bytes; k++) {
            const bool starts = ((unsigned char)output->text[k] & 0xC0) != 0x80;
            points[0] += starts && k < output->spans[i].begin_byte;
            points[1] += starts && k < output->spans[i].end_byte;
        }
        /* A nested block's end may lie beyond the text, where there are no code points to count. */
        for (size_t k = 0; k < (output->spans[i].is_nested ? 1 : 2); k++) {
            if (json_integer_value(json_array_get(json_array_get(expected, i), k)) != points[k]) {
                return false;
            }
        }
    }
    return true;
}

static bool same(const json_t *row, enum ox_status status, const struct ox_jinja_output *output) {
    const json_t *const rendered = json_object_get(row, "rendered");
    const json_t *const generation = json_object_get(row, "generation");
    if (rendered != NULL) {
        return status == OX_OK && output->text_bytes == json_string_length(rendered) &&
               memcmp(output->text, json_string_value(rendered), output->text_bytes) == 0 &&
               (generation == NULL || same_spans(output, generation));
    }
    if (status != OX_E_CONFIG) {
        return false;
    }
    /* The text counts where the template raised it; elsewhere its wording is Python's. */
    const bool raised = strcmp(json_string_value(json_object_get(row, "error_type")), "TemplateError") == 0;
    return !raised || (output->raised && strcmp(output->error, json_string_value(json_object_get(row, "error"))) == 0);
}

static void show(const struct subject *subject, size_t number, const json_t *row,
                 const struct ox_jinja_output *output) {
    const json_t *const rendered = json_object_get(row, "rendered");
    const json_t *const expected = rendered != NULL ? rendered : json_object_get(row, "error");
    const char *const wanted = json_string_value(expected);
    const char *const error = output->error != NULL ? output->error : ox_error_text();
    const char *const got = output->text != NULL ? output->text : error;
    size_t at = 0;
    if (shown++ >= SHOWN_MAX) {
        return;
    }
    while (wanted[at] != '\0' && wanted[at] == got[at]) {
        at++;
    }
    const size_t from = at < 60 ? 0 : at - 60;
    printf("%s, line %zu (%s): differs at byte %zu\n", subject->name, number,
           json_string_value(json_object_get(row, "case")), at);
    printf("  expected: %s%.200s\n", rendered == NULL ? "(error) " : "", wanted + from);
    printf("  got:      %s%.200s\n", output->text == NULL ? "(error) " : "", from < strlen(got) ? got + from : "");
}

static bool is_asked(const char *name, char **names, int count) {
    bool asked = count == 0;
    for (int i = 0; i < count; i++) {
        asked = asked || strcmp(name, names[i]) == 0;
    }
    return asked;
}

static void compare_row(const char *folder, const char *line, size_t bytes, size_t number, char **names, int count) {
    const struct ox_jinja_limits limits = ox_jinja_default_limits();
    struct ox_jinja_output output = {0};
    json_error_t error;
    json_t *variables = NULL;
    json_t *const row = json_loadb(line, bytes, JSON_ALLOW_NUL, &error);
    CHECK(row != NULL);
    const char *const name = json_string_value(json_object_get(row, "template"));
    if (!is_asked(name, names, count)) {
        json_decref(row);
        return;
    }
    struct subject *const subject = subject_of(folder, name);
    json_object_set(row, "chat_template_kwargs", json_object_get(row, "kwargs"));
    enum ox_status status = ox_template_variables(subject->special_tokens, row, &variables);
    if (status == OX_OK && subject->jinja != NULL) {
        const struct ox_jinja_input input = {.variables = variables, .now = now};
        status = ox_jinja_render(subject->jinja, &input, &limits, &output);
    } else if (status == OX_OK) {
        status = ox_fail(OX_E_CONFIG, "%s", subject->error);
    }
    subject->rows++;
    if (same(row, status, &output)) {
        subject->equal++;
    } else {
        show(subject, number, row, &output);
    }
    ox_jinja_output_free(&output);
    json_decref(variables);
    json_decref(row);
}

static void compare_folder(const char *folder, char **names, int count) {
    char path[OX_PATH_BYTES], *text = NULL;
    size_t bytes = 0, number = 0, rows = 0, equal = 0, whole = 0;
    snprintf(path, sizeof path, "%.1000s/references.jsonl", folder);
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    for (const char *line = text; line < text + bytes;) {
        const char *const end = memchr(line, '\n', (size_t)(text + bytes - line));
        const size_t length = end != NULL ? (size_t)(end - line) : (size_t)(text + bytes - line);
        compare_row(folder, line, length, ++number, names, count);
        line += length + 1;
    }
    free(text);
    for (size_t i = 0; i < subject_count; i++) {
        rows += subjects[i].rows;
        equal += subjects[i].equal;
        whole += subjects[i].rows == subjects[i].equal;
        ox_jinja_close(&subjects[i].jinja);
        json_decref(subjects[i].special_tokens);
    }
    printf("%s: %zu of %zu rows equal, %zu of %zu templates\n", folder, equal, rows, whole, subject_count);
    CHECK(rows > 0 && equal == rows);
    memset(subjects, 0, sizeof subjects);
    subject_count = 0;
}

/* ---- cases --------------------------------------------------------------------------------------------------- */

/* How often each reason of a refusal was given, by the words after the place. */
static struct {
    char text[160];
    size_t count;
} reasons[256];

static void count_reason(const char *error) {
    const char *const after = strstr(error, ": ");
    size_t i = 0;
    while (i < 255 && reasons[i].count > 0 && strncmp(reasons[i].text, after + 2, sizeof reasons[i].text - 1) != 0) {
        i++;
    }
    snprintf(reasons[i].text, sizeof reasons[i].text, "%s", after + 2);
    reasons[i].count++;
}

struct tally {
    size_t rows, equal, refused;
};

/* Variables of the cases that have none; the first line of a file gives them. */
static json_t *common_variables;

/* A case has its template as "source", and perhaps its own variables. Refusals are counted where `may_refuse`. */
static void compare_case(const char *line, size_t bytes, bool may_refuse, struct tally *tally) {
    const struct ox_jinja_limits limits = ox_jinja_default_limits();
    struct ox_jinja_output output = {0};
    struct ox_jinja *jinja = NULL;
    json_error_t error;
    json_t *const row = json_loadb(line, bytes, JSON_ALLOW_NUL, &error);
    CHECK(row != NULL);
    const json_t *const source = json_object_get(row, "source");
    const json_t *variables = json_object_get(row, "variables");
    if (source == NULL) {
        common_variables = json_incref(json_object_get(row, "variables"));
        json_decref(row);
        return;
    }
    variables = variables != NULL ? variables : common_variables;
    enum ox_status status = ox_jinja_compile(json_string_value(source), json_string_length(source), &limits, &jinja);
    if (status == OX_OK) {
        const struct ox_jinja_input input = {.variables = variables, .now = now};
        status = ox_jinja_render(jinja, &input, &limits, &output);
    }
    const char *const text = output.error != NULL ? output.error : ox_error_text();
    tally->rows++;
    if (same(row, status, &output)) {
        tally->equal++;
    } else if (may_refuse && status == OX_E_CONFIG && json_object_get(row, "rendered") != NULL &&
               strstr(text, "supported") != NULL) {
        tally->refused++;
        count_reason(text);
    } else {
        static const struct subject subject = {.name = "case"};
        show(&subject, tally->rows, row, &output);
        if (shown <= SHOWN_MAX) {
            printf("  source:   %.1500s\n", json_string_value(source));
        }
    }
    ox_jinja_output_free(&output);
    ox_jinja_close(&jinja);
    json_decref(row);
}

static void compare_cases(const char *path, bool may_refuse) {
    char *text = NULL;
    size_t bytes = 0;
    struct tally tally = {0};
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    for (const char *line = text; line < text + bytes;) {
        const char *const end = memchr(line, '\n', (size_t)(text + bytes - line));
        const size_t length = end != NULL ? (size_t)(end - line) : (size_t)(text + bytes - line);
        compare_case(line, length, may_refuse, &tally);
        line += length + 1;
    }
    free(text);
    json_decref(common_variables);
    common_variables = NULL;
    for (size_t i = 0; i < 256 && reasons[i].count > 0; i++) {
        printf("%6zu refused: %s\n", reasons[i].count, reasons[i].text);
    }
    printf("%s: %zu of %zu cases equal, %zu refused\n", path, tally.equal, tally.rows, tally.refused);
    CHECK(tally.rows > 0 && tally.equal + tally.refused == tally.rows);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--cases") == 0) {
        compare_cases(argv[2], true);
        return test_end();
    }
    if (argc > 1) {
        compare_folder(argv[1], argv + 2, argc - 2);
        return test_end();
    }
    compare_cases("tests/golden/templates/cases.jsonl", false);
    compare_folder(BUILTIN, NULL, 0);
    const char *const data = test_data_folder();
    if (data != NULL) {
        char path[OX_PATH_BYTES];
        snprintf(path, sizeof path, "%.1000s/templates", data);
        if (ox_path_is_folder(path)) {
            compare_folder(path, NULL, 0);
        }
    }
    return test_end();
}
