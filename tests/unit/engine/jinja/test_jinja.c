/* The interpreter of chat templates by hand: places of errors, limits, spans, and what it refuses. That its texts are
 * those of jinja2 is tests/golden/test_templates.c. */
#include "engine/jinja/jinja.h"
#include "tests/kit/test.h"

#include <string.h>

static const struct tm now = {.tm_year = 126, .tm_mon = 10, .tm_mday = 20, .tm_wday = 5, .tm_yday = 323};

/* Compiles and renders; *out is to be freed. A template that does not compile gives the error of that. */
static enum ox_status render_within(const char *source, const struct ox_jinja_limits *limits, const char *variables,
                                    struct ox_jinja_output *out) {
    struct ox_jinja *jinja = NULL;
    json_t *json = NULL;
    *out = (struct ox_jinja_output){0};
    REQUIRE_OK(ox_json_parse("variables", variables, strlen(variables), &json));
    const struct ox_jinja_input input = {.variables = json, .now = now};
    enum ox_status status = ox_jinja_compile(source, strlen(source), limits, &jinja);
    if (status != OX_OK) {
        out->error = strdup(ox_error_text());
    } else {
        status = ox_jinja_render(jinja, &input, limits, out);
    }
    ox_jinja_close(&jinja);
    json_decref(json);
    return status;
}

static void gives(const char *source, const char *expected) {
    const struct ox_jinja_limits limits = ox_jinja_default_limits();
    struct ox_jinja_output output;
    CHECK(render_within(source, &limits, "{\"a\": [1, 2], \"s\": \"x\"}", &output) == OX_OK);
    if (output.text == NULL || strcmp(output.text, expected) != 0) {
        printf("%s\n  gives %s\n  not   %s\n", source, output.text != NULL ? output.text : output.error, expected);
        test_failure_count++;
    }
    ox_jinja_output_free(&output);
}

/* The error is `expected`, or contains it where it does not begin with "line ". */
static void fails_within(const char *source, const struct ox_jinja_limits *limits, const char *expected) {
    struct ox_jinja_output output;
    CHECK(render_within(source, limits, "{\"a\": [1, 2], \"s\": \"x\"}", &output) == OX_E_CONFIG);
    CHECK(output.text == NULL);
    const bool whole = strncmp(expected, "line ", 5) == 0;
    if (output.error == NULL ||
        (whole ? strcmp(output.error, expected) != 0 : strstr(output.error, expected) == NULL)) {
        printf("%.200s\n  fails with %s\n  not        %s\n", source, output.error, expected);
        test_failure_count++;
    }
    ox_jinja_output_free(&output);
}

static void fails(const char *source, const char *expected) {
    const struct ox_jinja_limits limits = ox_jinja_default_limits();
    fails_within(source, &limits, expected);
}

static void test_places(void) {
    fails("{{ nope.x }}", "line 1, column 8: 'nope' is undefined");
    fails("\n\n  {{ s + 1 }}", "line 3, column 8: can only concatenate str (not \"int\") to str");
    fails("a\n{% nope %}", "line 2, column 4: unknown or unsupported tag 'nope'");
    fails("é{{ 1 | nope }}", "line 1, column 9: No filter or test named 'nope'.");
    gives("{{ 1 | nope if false else 2 }}{{ 3 if true else 4 is nope }}", "23");
    fails("{% if true %}{{ 1 | nope }}{% endif %}", "line 1, column 21: No filter named 'nope' found.");
    fails("{% for x in a %}", "line 1, column 17: Unexpected end of template; expected else");
    fails("{{ 'a", "line 1, column 4: a string without an end");
    fails("{{ a.b.c }}", "line 1, column 7: 'list object' has no attribute 'b'");
    fails("{{ a.append(1) }}", "line 1, column 12: access to attribute 'append' of 'list' object is unsafe.");
    fails("{% include 'x' %}", "line 1, column 4: unknown or unsupported tag 'include'");
}

static void test_raised(void) {
    const struct ox_jinja_limits limits = ox_jinja_default_limits();
    struct ox_jinja_output output;
    CHECK(render_within("x{{ raise_exception('No: ' ~ s) }}", &limits, "{\"s\": \"\\u00e9\"}", &output) == OX_E_CONFIG);
    CHECK(output.raised && strcmp(output.error, "No: \xC3\xA9") == 0);
    CHECK(strcmp(ox_error_text(), output.error) == 0);
    ox_jinja_output_free(&output);
}

static void test_refused(void) {
    fails("{{ a | select }}", "printing an object of type 'generator' is not supported here");
    fails("{{ 9223372036854775807 + 1 }}", "beyond 64 bits is not supported here");
    fails("{{ 9223372036854775808 }}", "beyond 64 bits is not supported here");
    fails("{{ 'a'.encode() }}", "the attribute 'encode' of 'str' is not supported here");
    fails("{{ '\\N{DASH}' }}", "is not supported here");
    fails("{{ a | random }}", "'random' is not supported here");
    fails("{{ ('<' | safe).replace('a', 'b') }}", "is not supported here");
    fails("{{ range(100001) }}", "Range too big");
}

/* What a template may not reach or make. */
static void test_limits(void) {
    struct ox_jinja_limits limits = ox_jinja_default_limits();
    struct ox_jinja_output output;
    char deep[4096];
    gives("{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{{ n }}{% endmacro %}{{ f(5) }}", "012345");
    fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "levels are nested in each other");
    memset(deep, '(', sizeof deep);
    memcpy(deep, "{{ ", 3);
    deep[sizeof deep - 1] = '\0';
    fails(deep, "");
    memset(deep + 3, '[', sizeof deep - 4);
    fails(deep, "");
    limits.steps_max = 1000;
    fails_within("{% for x in range(9999) %}{% endfor %}", &limits, "more than 1000 steps");
    limits = ox_jinja_default_limits();
    limits.memory_bytes_max = 1 << 20;
    fails_within("{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
                 &limits, "memory than their limit");
    fails_within("{{ 'abc' * 9999999 }}", &limits, "memory than its limit");
    fails_within("{{ [0] * 9999999 }}", &limits, "memory than their limit");
    /* Some thousand messages in a template that looks at all of them for each. */
    gives("{% set n = namespace(c=0) %}{% for x in range(8000) %}{% for y in range(8000) %}{% endfor %}"
          "{% set n.c = n.c + 1 %}{% endfor %}{{ n.c }}", "8000");
    /* A text that grows piece by piece is not copied at each step. */
    gives("{% set n = namespace(s='') %}{% for i in range(20000) %}{% set n.s = n.s + 'abcdefghijklmnop' %}{% endfor %}"
          "{{ n.s | length }}", "320000");
    /* Loops over all messages for each message, and parts of a list, take no memory for each item. */
    CHECK(render_within("{% for x in range(400) %}{% for y in range(400) %}{% if x == y %}{% endif %}{% endfor %}"
                        "{% endfor %}"
                        "{% set l = range(2000) | list %}{% for x in l %}{% set rest = l[x:] %}{% endfor %}ok",
                        &limits, "{}", &output) == OX_OK);
    ox_jinja_output_free(&output);
    fails("{{ s.__class__.__mro__ }}", "has no attribute '__class__'");
    fails("{{ ''.join(5) }}", "can only join an iterable");
    fails("{% set n = namespace(f=0) %}{% for x in a %}{% macro f() %}{{ x }}{% endmacro %}{% set n.f = n.f or f %}"
          "{{ n.f() }}{% endfor %}", "'x' of a loop that went on");
}

/* A template of `count` times `piece` between two texts; compiling and rendering it takes at most so many steps a byte,
 * of which one stands for a token, a node or 64 bytes looked at. It fails with these words, or not (NULL). */
static void repeats(const char *begin, const char *piece, const char *end, size_t count, const char *words) {
    enum { STEPS_A_BYTE = 4 };
    const size_t bytes = strlen(piece), first = strlen(begin);
    char *const source = malloc(first + count * bytes + strlen(end) + 1);
    memcpy(source, begin, first);
    for (size_t i = 0; i < count; i++) {
        memcpy(source + first + i * bytes, piece, bytes);
    }
    memcpy(source + first + count * bytes, end, strlen(end) + 1);
    struct ox_jinja_limits limits = ox_jinja_default_limits();
    limits.steps_max = STEPS_A_BYTE * strlen(source) + 1000;
    struct ox_jinja_output output;
    const enum ox_status status = render_within(source, &limits, "{\"a\": [1, 2]}", &output);
    if (words == NULL ? status != OX_OK : output.error == NULL || strstr(output.error, words) == NULL) {
        printf("%zu times %s: %s\n", count, piece, output.error);
        test_failure_count++;
    }
    ox_jinja_output_free(&output);
    free(source);
}

/* Work grows with the size of a template, in one line too, or the template is refused by what it nests or spells. */
static void test_long_templates(void) {
    static const char deep[] = "levels are nested in each other";
    repeats("", "{{ 1 }}", "", 400000, NULL);
    repeats("", "{# a #}{% if 0 %}{% endif %}", "", 40000, NULL);
    repeats("{{ ", "not ", "1 }}", 400000, deep);
    repeats("{{ ", "-", "1 }}", 400000, deep);
    repeats("{{ a", ".a", " }}", 400000, deep);
    repeats("{{ a", "|list", " }}", 200000, deep);
    repeats("{{ 1", "+1", " }}", 400000, deep);
    repeats("", "{% if 1 %}", "", 200000, deep);
    repeats("{{ [", "1,", "] }}", 400000, NULL);
    repeats("{{ 1", " < 2", " }}", 200000, NULL);
    repeats("{{ ", "'a' ", "}}", 200000, NULL);
    repeats("{{ '", "\\n", "' }}", 400000, NULL);
    repeats("{% if 0 %}", "{% elif 0 %}", "{% endif %}", 100000, NULL);
    repeats("{% if 1 -%}", " \n", "{%- endif %}", 400000, NULL);
    repeats("{% macro f(", "a,", "a) %}{% endmacro %}", 200000, "more than 255 parameters are not supported");
}

/* Different names are looked for one after the other, so there is a limit to them. */
static void test_many_names(void) {
    enum { NAMES = 2000, NAME_BYTES = 24 };
    char *const source = malloc(NAMES * NAME_BYTES + 1);
    for (size_t count = 900; count <= NAMES; count += NAMES - 900) {
        size_t used = 0;
        for (size_t i = 0; i < count; i++) {
            used += (size_t)snprintf(source + used, NAME_BYTES, "{%% set n%zu = 1 %%}", i);
        }
        if (count == NAMES) {
            fails(source, "more than 1000 different names in a template are not supported");
        } else {
            gives(source, "");
        }
    }
    free(source);
}

static void test_spans(void) {
    const struct ox_jinja_limits limits = ox_jinja_default_limits();
    struct ox_jinja_output output;
    CHECK(render_within("\xC3\xA9{% generation %}ab{% endgeneration %}{% set x %}{% generation %}c{% endgeneration %}"
                        "{% endset %}{{ x }}{% for i in a %}{% generation %}{{ i }}{% endgeneration %}{% endfor %}",
                        &limits, "{\"a\": [1, 2]}", &output) == OX_OK);
    CHECK(strcmp(output.text, "\xC3\xA9"
                              "abc12") == 0);
    CHECK(output.span_count == 4);
    static const struct ox_jinja_span expected[] = {{2, 4, false}, {4, 5, true}, {5, 6, false}, {6, 7, false}};
    for (size_t i = 0; i < 4 && output.span_count == 4; i++) {
        CHECK(output.spans[i].begin_byte == expected[i].begin_byte);
        CHECK(output.spans[i].end_byte == expected[i].end_byte);
        CHECK(output.spans[i].is_nested == expected[i].is_nested);
    }
    ox_jinja_output_free(&output);
}

static void test_templates_apart(void) {
    const struct ox_jinja_limits limits = ox_jinja_default_limits();
    struct ox_jinja *jinja = NULL;
    CHECK(ox_jinja_compile("{% generation %}{% endgeneration %}", 35, &limits, &jinja) == OX_OK);
    CHECK(ox_jinja_marks_generation(jinja));
    ox_jinja_close(&jinja);
    CHECK(jinja == NULL);
    ox_jinja_close(&jinja);
    CHECK(ox_jinja_compile("\xFF", 1, &limits, &jinja) == OX_E_CONFIG && jinja == NULL);
    gives("", "");
    struct ox_jinja_output output;
    CHECK(render_within("{{ '' | trim }}{{ '' ~ '' }}", &limits, "{}", &output) == OX_OK && output.text_bytes == 0);
    ox_jinja_output_free(&output);
    gives("{{ strftime_now('%d %b %Y|%f|%z|') }}", "20 Nov 2026|000000||");
}

int main(void) {
    test_places();
    test_raised();
    test_refused();
    test_limits();
    test_long_templates();
    test_many_names();
    test_spans();
    test_templates_apart();
    return test_end();
}
