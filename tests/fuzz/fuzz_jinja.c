/* A chat template and its variables: any bytes compile or are refused with a place; what compiles renders the same
 * twice, within its limits, to UTF-8, or fails with a text. */
#include "tests/fuzz/fuzz.h"

#include "engine/jinja/jinja.h"
#include "engine/text/text.h"

#include <stdlib.h>
#include <string.h>

/* Small, so that no input takes long. */
static const struct ox_jinja_limits limits = {
    .steps_max = 10000, .memory_bytes_max = (uint64_t)1 << 20, .depth_max = 200};
static const struct tm now = {.tm_year = 126, .tm_mon = 10, .tm_mday = 20, .tm_wday = 5, .tm_yday = 323};

static void check_output(enum ox_status status, const struct ox_jinja_output *output) {
    if (status != OX_OK) {
        FUZZ_CHECK(status == OX_E_CONFIG && output->text == NULL && output->error != NULL);
        FUZZ_CHECK(output->raised || strncmp(output->error, "line ", 5) == 0);
        return;
    }
    FUZZ_CHECK(output->error == NULL && output->text[output->text_bytes] == '\0');
    FUZZ_CHECK(ox_utf8_valid(output->text, output->text_bytes) == output->text_bytes);
    for (size_t i = 0; i < output->span_count; i++) {
        FUZZ_CHECK(output->spans[i].begin_byte <= output->spans[i].end_byte);
        FUZZ_CHECK(output->spans[i].is_nested || output->spans[i].end_byte <= output->text_bytes);
    }
}

static void render(const struct ox_jinja *jinja, const json_t *variables) {
    const struct ox_jinja_input input = {.variables = variables, .now = now};
    struct ox_jinja_output output, again;
    const enum ox_status status = ox_jinja_render(jinja, &input, &limits, &output);
    check_output(status, &output);
    FUZZ_CHECK(ox_jinja_render(jinja, &input, &limits, &again) == status);
    if (status == OX_OK) {
        FUZZ_CHECK(output.text_bytes == again.text_bytes && memcmp(output.text, again.text, output.text_bytes) == 0);
        FUZZ_CHECK(output.span_count == again.span_count);
    } else {
        FUZZ_CHECK(strcmp(output.error, again.error) == 0);
    }
    fuzz_accepted = status == OX_OK;
    ox_jinja_output_free(&output);
    ox_jinja_output_free(&again);
}

int fuzz_jinja(const uint8_t *data, size_t bytes) {
    struct fuzz_part parts[2];
    struct ox_jinja *jinja = NULL;
    json_error_t error;
    fuzz_accepted = false;
    fuzz_split(data, bytes, parts, 2);
    if (ox_jinja_compile(parts[0].text, parts[0].bytes, &limits, &jinja) != OX_OK) {
        FUZZ_CHECK(jinja == NULL);
        fuzz_check_failure(OX_E_CONFIG, "line ");
        return 0;
    }
    json_t *variables = json_loadb(parts[1].text, parts[1].bytes, JSON_ALLOW_NUL, &error);
    if (!json_is_object(variables)) {
        json_decref(variables);
        variables = json_object();
    }
    render(jinja, variables);
    json_decref(variables);
    ox_jinja_close(&jinja);
    return 0;
}
