/* Owns the state of a rendering: its memory, failures and limits; and the calls that compile and render. */
#include "engine/jinja/ast_internal.h"

#include "base/assert.h"
#include "base/pool.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory: regions of chunks, freed as a whole ---------------------------------------------------------------- */

enum { CHUNK_BYTES = 64 << 10, ALIGN_BYTES = 16 };

struct chunk {
    struct chunk *older;
    _Alignas(ALIGN_BYTES) char data[];
};

bool ox_ji_count_memory(struct memory *memory, size_t bytes) {
    if (bytes > memory->bytes_max || memory->bytes > memory->bytes_max - bytes) {
        memory->refused = true;
        return false;
    }
    memory->bytes += bytes;
    return true;
}

static bool add_chunk(struct memory *memory, struct region *region, size_t bytes) {
    size_t size = sizeof(struct chunk) + CHUNK_BYTES;
    if (bytes > CHUNK_BYTES / 4) {
        if (bytes > SIZE_MAX / 4) {
            return false;
        }
        /* Room to grow: a text that is extended again and again is then copied only now and then. */
        size = sizeof(struct chunk) + 2 * bytes;
    }
    if (!ox_ji_count_memory(memory, size)) {
        return false;
    }
    struct chunk *const chunk = malloc(size);
    if (chunk == NULL) {
        return false;
    }
    chunk->older = region->chunks;
    region->chunks = chunk;
    region->next = chunk->data;
    region->end = (char *)chunk + size;
    return true;
}

void *ox_ji_take(struct memory *memory, size_t bytes) {
    struct region *const region = &memory->objects;
    if (bytes > SIZE_MAX / 4) {
        return NULL;
    }
    bytes = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    if ((size_t)(region->end - region->next) < bytes && !add_chunk(memory, region, bytes)) {
        return NULL;
    }
    void *const out = region->next;
    region->next += bytes;
    memset(out, 0, bytes);
    return out;
}

char *ox_ji_take_text(struct memory *memory, const char *before, size_t before_bytes, size_t bytes) {
    struct region *const region = &memory->texts;
    if (region->chunks == NULL && !add_chunk(memory, region, before_bytes + bytes)) {
        return NULL;
    }
    const size_t room = (size_t)(region->end - region->next);
    const bool continues = before != NULL && before + before_bytes == region->next && room >= bytes;
    if (!continues && room < before_bytes + bytes && !add_chunk(memory, region, before_bytes + bytes)) {
        return NULL;
    }
    char *const out = region->next;
    region->next += continues ? bytes : before_bytes + bytes;
    if (!continues && before_bytes > 0) {
        memcpy(out, before, before_bytes);
    }
    return continues ? out : out + before_bytes;
}

static void free_region(struct region *region) {
    while (region->chunks != NULL) {
        struct chunk *const chunk = region->chunks;
        region->chunks = chunk->older;
        free(chunk);
    }
    *region = (struct region){0};
}

void ox_ji_free_memory(struct memory *memory) {
    free_region(&memory->objects);
    free_region(&memory->texts);
    memory->bytes = 0;
}

/* ---- failures and limits --------------------------------------------------------------------------------------- */

bool ox_ji_fail(struct run *run, const char *format, ...) {
    if (run->error != NULL || run->no_memory) {
        return false;
    }
    va_list arguments;
    char *text = NULL;
    va_start(arguments, format);
    const int bytes = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (bytes < 0 || asprintf(&run->error, "line %u, column %u: %s", run->place.line, run->place.column, text) < 0) {
        run->error = NULL;
        run->no_memory = true;
    }
    free(bytes < 0 ? NULL : text);
    return false;
}

bool ox_ji_raise(struct run *run, const struct string *message) {
    if (run->error == NULL && !run->no_memory) {
        run->error = strndup(message->bytes == 0 ? "" : message->data, message->bytes);
        run->raised = run->error != NULL;
        run->no_memory = run->error == NULL;
    }
    return false;
}

bool ox_ji_spend(struct run *run, uint64_t steps) {
    if (steps > run->limits.steps_max - run->steps) {
        run->steps = run->limits.steps_max;
        return ox_ji_fail(run, "the template takes more than %llu steps", (unsigned long long)run->limits.steps_max);
    }
    run->steps += steps;
    if (run->input != NULL && ox_is_raised(run->input->stop)) {
        run->stopped = true;
        return ox_ji_fail(run, "the rendering was stopped");
    }
    return true;
}

bool ox_ji_enter(struct run *run) {
    if (run->depth >= run->limits.depth_max) {
        return ox_ji_fail(run, "more than %u levels are nested in each other", run->limits.depth_max);
    }
    run->depth++;
    return true;
}

void *ox_ji_new(struct run *run, size_t bytes) {
    void *const out = ox_ji_take(&run->memory, bytes);
    if (out == NULL) {
        run->no_memory = !run->memory.refused;
        ox_ji_fail(run, run->no_memory ? "no memory for the values" : "the values take more memory than their limit");
    }
    return out;
}

static enum ox_status failure(const struct run *run, const char *error) {
    return run->no_memory ? ox_fail(OX_E_NOMEM, "no memory for a chat template")
           : run->stopped ? ox_fail(OX_E_ABORTED, "the rendering of a conversation was stopped")
                          : ox_fail(OX_E_CONFIG, "%s", error == NULL ? "the template failed" : error);
}

/* ---- compiling ------------------------------------------------------------------------------------------------- */

struct ox_jinja_limits ox_jinja_default_limits(void) {
    return (struct ox_jinja_limits){
        .steps_max = 1000 * 1000 * 1000, .memory_bytes_max = (uint64_t)512 << 20, .depth_max = 800};
}

/* Line ends become "\n", and one at the end of the template goes. */
static bool normalize(struct run *run, const char *source, size_t bytes, char **out, size_t *out_bytes) {
    char *const text = ox_ji_take_text(&run->memory, NULL, 0, bytes + 1);
    size_t used = 0;
    if (text == NULL) {
        run->no_memory = !run->memory.refused;
        return ox_ji_fail(run, "no memory for the template");
    }
    for (size_t i = 0; i < bytes; i++) {
        if (source[i] == '\r' && i + 1 < bytes && source[i + 1] == '\n') {
            continue;
        }
        text[used++] = source[i] == '\r' ? '\n' : source[i];
    }
    used -= used > 0 && text[used - 1] == '\n';
    *out = text;
    *out_bytes = used;
    return true;
}

enum ox_status ox_jinja_compile(const char *source, size_t bytes, const struct ox_jinja_limits *limits,
                                struct ox_jinja **out) {
    struct run run = {.limits = *limits, .place = {1, 1}};
    run.memory.bytes_max = limits->memory_bytes_max;
    struct parser parser = {.run = &run};
    struct nodes body = {0};
    struct name_uses uses = {0};
    char *text = NULL;
    *out = NULL;
    size_t count = 0;
    struct token *tokens = NULL;
    bool ok = ox_ji_is_utf8(source, bytes) || ox_ji_fail(&run, "the template is not UTF-8");
    ok = ok && normalize(&run, source, bytes, &text, &bytes) && ox_ji_lex(&run, text, bytes, &tokens, &count);
    parser.token = tokens;
    ok = ok && ox_ji_parse(&parser, &body, &uses);
    free(run.output);
    struct ox_jinja *const jinja = ok ? malloc(sizeof *jinja) : NULL;
    run.no_memory = run.no_memory || (ok && jinja == NULL);
    if (jinja == NULL) {
        const enum ox_status status = failure(&run, run.error);
        ox_ji_free_memory(&run.memory);
        free(run.error);
        return status;
    }
    *jinja = (struct ox_jinja){.memory = run.memory, .body = body, .uses = uses, .names = parser.names,
                                .marks_generation = parser.marks_generation, .hides = parser.hides,
                                .reads_self = parser.reads_self};
    *out = jinja;
    return OX_OK;
}

void ox_jinja_close(struct ox_jinja **jinja) {
    if (*jinja != NULL) {
        ox_ji_free_memory(&(*jinja)->memory);
        free(*jinja);
        *jinja = NULL;
    }
}

bool ox_jinja_marks_generation(const struct ox_jinja *jinja) {
    return jinja->marks_generation;
}

/* ---- rendering ------------------------------------------------------------------------------------------------- */

enum ox_status ox_jinja_render(const struct ox_jinja *jinja, const struct ox_jinja_input *input,
                               const struct ox_jinja_limits *limits, struct ox_jinja_output *out) {
    struct run run = {.jinja = jinja, .input = input, .limits = *limits, .place = {1, 1}};
    run.memory.bytes_max = limits->memory_bytes_max;
    *out = (struct ox_jinja_output){0};
    struct value variables = NONE;
    bool ok = ox_ji_from_json(&run, input->variables, &variables);
    OX_ASSERT(!ok || variables.kind == V_DICT);
    run.variables = variables.as.dict;
    struct scope *const scope = ok ? ox_ji_new_scope(&run, NULL, &jinja->uses) : NULL;
    ok = scope != NULL && ox_ji_execute(&run, scope, &jinja->body) == FLOW_ON && ox_ji_put(&run, "", 1);
    ox_ji_free_memory(&run.memory);
    if (ok) {
        *out = (struct ox_jinja_output){.text = run.output,
                                        .text_bytes = run.output_bytes - 1,
                                        .spans = run.spans,
                                        .span_count = run.span_count};
        return OX_OK;
    }
    free(run.output);
    free(run.spans);
    *out = (struct ox_jinja_output){.error = run.error, .raised = run.raised};
    return failure(&run, run.error);
}

void ox_jinja_output_free(struct ox_jinja_output *output) {
    free(output->text);
    free(output->spans);
    free(output->error);
    *output = (struct ox_jinja_output){0};
}
