/* Jinja templates as the chat templates of models use them: compiled once, rendered with JSON values into text.
 * engine/text renders conversations with it.
 *
 * The text equals what transformers renders (jinja2 3.1.6 in its immutable sandbox: trim_blocks, lstrip_blocks, loop
 * controls, `{% generation %}`, tojson, raise_exception, strftime_now, namespace, dict). A construct that this
 * interpreter does not know is an error with line and column; it never gives another text. A template reaches no file,
 * no code and no memory but its own, and the limits below bound what it may take.
 *
 * How a trainer uses it: render a conversation to a text, then encode the text with special tokens parsed. The loss
 * mask comes from the spans of `{% generation %}` where the template has that statement; else from rendering the
 * conversation up to each assistant turn, with and without the generation prompt. */
#ifndef OX_ENGINE_JINJA_H
#define OX_ENGINE_JINJA_H

#include "base/json.h"
#include "base/status.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What one compilation or one rendering may take. Beyond a limit it fails with OX_E_CONFIG. */
struct ox_jinja_limits {
    uint64_t steps_max;        /* nodes evaluated, items visited and 64-byte pieces of text copied */
    uint64_t memory_bytes_max; /* values and text, the output included */
    uint32_t depth_max;        /* nested evaluations; each takes less than 1 KiB of the thread's stack */
};
/* Enough for a conversation of some million characters, and for ten thousand messages where a template looks at all of
 * them for each: that takes some seconds, and so does a template without end until it is refused. */
struct ox_jinja_limits ox_jinja_default_limits(void);

/* A compiled template. It is immutable: any number of threads may render it. */
struct ox_jinja;
/* Compiles `bytes` of UTF-8. A failure is OX_E_CONFIG and its text begins with "line L, column C: ". */
OX_MUST enum ox_status ox_jinja_compile(const char *source, size_t bytes, const struct ox_jinja_limits *limits,
                                        struct ox_jinja **out);
void ox_jinja_close(struct ox_jinja **jinja);
/* Whether the template contains `{% generation %}`. */
bool ox_jinja_marks_generation(const struct ox_jinja *jinja);

struct ox_jinja_input {
    const json_t *variables; /* an object: what the template's names mean */
    struct tm now;           /* what strftime_now formats */
    const volatile sig_atomic_t *stop; /* may be NULL; a value other than 0 ends the rendering with OX_E_ABORTED */
};

/* The text between `{% generation %}` and `{% endgeneration %}`, in bytes of the rendered text. As in transformers,
 * `begin_byte` counts what was written before outside macros, captured blocks and filters; `is_nested` says that the
 * block stood inside one of them, so that the span may not be where its text is. */
struct ox_jinja_span {
    size_t begin_byte, end_byte;
    bool is_nested;
};

struct ox_jinja_output {
    char *text; /* the rendered text, NUL-terminated; NULL after a failure */
    size_t text_bytes;
    struct ox_jinja_span *spans;
    size_t span_count;
    char *error; /* after OX_E_CONFIG: the whole message, NUL-terminated */
    bool raised; /* the template itself raised the error: `error` is its argument of raise_exception */
};

/* Renders once. *out need not be initialized; free it with ox_jinja_output_free, after failures too. OX_E_CONFIG: the
 * template raised an error, did what Python refuses, uses something unknown here, or went beyond a limit; but for the
 * first, `error` begins with "line L, column C: ". */
OX_MUST enum ox_status ox_jinja_render(const struct ox_jinja *jinja, const struct ox_jinja_input *input,
                                       const struct ox_jinja_limits *limits, struct ox_jinja_output *out);
void ox_jinja_output_free(struct ox_jinja_output *output);

#ifdef __cplusplus
}
#endif
#endif
