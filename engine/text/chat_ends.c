/* Finds the tokens that end an assistant's turn: where generation stops, and what a saved model says of it. */
#include "engine/text/chat_internal.h"

#include <string.h>

static enum ox_status no_memory(void) {
    return ox_fail(OX_E_NOMEM, "no memory for a conversation");
}

static bool is_added(const struct ox_chat_renderer *renderer, int64_t id) {
    return renderer->tokenizer->added_by_id[id] > 0;
}

/* What the template writes behind an answer: *end, in *output, which the caller frees; NULL if it shows no answer. */
static enum ox_status render_end(const struct ox_chat_renderer *renderer, struct ox_jinja_output *output,
                                 const char **end) {
    static const char word[] = "Some words.";
    bool holds = false;
    json_t *const row = json_pack("{s:[{s:s,s:s},{s:s,s:s}]}", "messages", "role", "user", "content", "Yes?", "role",
                                  "assistant", "content", word);
    const enum ox_status status = ox_chat_render_probe(renderer, row, word, output, &holds);
    *end = status == OX_OK && holds ? output->text : NULL;
    for (const char *next = *end; next != NULL && (next = strstr(next, word)) != NULL; *end = next) {
        next += sizeof word - 1;
    }
    json_decref(row);
    return status;
}

enum ox_status ox_chat_end_of_turn(struct ox_chat_renderer *renderer, int64_t *id) {
    struct ox_jinja_output output = {0};
    struct ox_ids ids = {0};
    const char *end = NULL;
    *id = -1;
    enum ox_status status = render_end(renderer, &output, &end);
    if (status == OX_OK && end != NULL) {
        status = ox_encode(renderer->encoder, end, strlen(end), true, false, &ids);
    }
    for (size_t i = 0; i < ids.count && *id < 0; i++) {
        *id = is_added(renderer, ids.ids[i]) ? ids.ids[i] : -1;
    }
    ox_ids_free(&ids);
    ox_jinja_output_free(&output);
    return status;
}

/* ---- all of them --------------------------------------------------------------------------------------------- */

/* Conversations whose turns a template may end in another way than the answer to a question: one or two calls of a
 * tool, the answer to a result, an answer that is not the last, one with a reasoning. Some templates take arguments as
 * a text alone, and some one call alone. */
#define CALL(id, arguments) \
    "{\"id\": \"" id "\", \"type\": \"function\", \"function\": {\"name\": \"look\", \"arguments\": " arguments "}}"
#define CALLS(calls) "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" calls "]}"
#define RESULT(id) "{\"role\": \"tool\", \"tool_call_id\": \"" id "\", \"name\": \"look\", \"content\": \"12\"}"
#define ASKED(messages) \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Yes?\"}, " messages "]}"
#define WITH_TOOL(messages) \
    "{\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"look\", \"description\": \"Looks.\", " \
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"at\": {\"type\": \"string\", " \
    "\"description\": \"What.\"}}, \"required\": [\"at\"]}}}], " \
    "\"messages\": [{\"role\": \"user\", \"content\": \"Yes?\"}, " messages "]}"
#define ANSWER "{\"role\": \"assistant\", \"content\": \"Some words.\"}"
#define OBJECT "{\"at\": \"this\"}"
#define TEXT "\"{\\\"at\\\": \\\"this\\\"}\""

static const char *const end_rows[] = {
    ASKED(ANSWER ", {\"role\": \"user\", \"content\": \"And?\"}, " ANSWER),
    ASKED("{\"role\": \"assistant\", \"content\": \"Some words.\", \"reasoning_content\": \"A thought.\"}"),
    WITH_TOOL(CALLS(CALL("call00001", OBJECT))),
    WITH_TOOL(CALLS(CALL("call00001", TEXT))),
    WITH_TOOL(CALLS(CALL("call00001", OBJECT) ", " CALL("call00002", OBJECT))),
    WITH_TOOL(CALLS(CALL("call00001", TEXT) ", " CALL("call00002", TEXT))),
    WITH_TOOL(CALLS(CALL("call00001", OBJECT)) ", " RESULT("call00001") ", " ANSWER),
    WITH_TOOL(CALLS(CALL("call00001", TEXT)) ", " RESULT("call00001") ", " ANSWER),
};

/* The added tokens that end a turn, and those that stand inside of one. */
struct ends {
    struct ox_ids last, inner;
};

static bool has_id(const struct ox_ids *ids, int64_t id) {
    bool has = false;
    for (size_t i = 0; i < ids->count && !has; i++) {
        has = ids->ids[i] == id;
    }
    return has;
}

static enum ox_status add_turn(const struct ox_chat_renderer *renderer, const char *text, size_t bytes,
                               struct ends *ends) {
    struct ox_ids ids = {0};
    enum ox_status status = ox_encode(renderer->encoder, text, bytes, true, false, &ids);
    for (size_t i = 0; i < ids.count && status == OX_OK; i++) {
        struct ox_ids *const list = i + 1 == ids.count ? &ends->last : &ends->inner;
        status = is_added(renderer, ids.ids[i]) && !has_id(list, ids.ids[i]) ? ox_ids_add(list, ids.ids[i]) : OX_OK;
    }
    ox_ids_free(&ids);
    return status;
}

/* Adds how the turns of a row end; a template that refuses the row is no failure. */
static enum ox_status look_at_row(const struct ox_chat_renderer *renderer, const char *words, struct ends *ends) {
    struct ox_template_turns turns = {0};
    json_t *const row = json_loads(words, 0, NULL);
    enum ox_status status = ox_chat_give_kwargs(renderer, row) ? OX_OK : no_memory();
    OX_TRY(status, ox_template_render_turns(renderer->options.chat_template, row, &renderer->options.now, &turns));
    for (size_t i = 0; i < turns.count && status == OX_OK; i++) {
        const struct ox_template_turn *const turn = &turns.turns[i];
        status = add_turn(renderer, turns.output.text + turn->begin_byte, turn->end_byte - turn->begin_byte, ends);
    }
    ox_template_turns_free(&turns);
    json_decref(row);
    return status == OX_E_CONFIG ? OX_OK : status;
}

enum ox_status ox_chat_ends_of_turn(struct ox_chat_renderer *renderer, struct ox_ids *out) {
    struct ends ends = {0};
    int64_t first = -1;
    enum ox_status status = ox_chat_end_of_turn(renderer, &first);
    OX_TRY(status, first >= 0 ? ox_ids_add(out, first) : OX_OK);
    for (size_t i = 0; i < sizeof end_rows / sizeof *end_rows && status == OX_OK; i++) {
        status = look_at_row(renderer, end_rows[i], &ends);
    }
    for (size_t i = 0; i < ends.last.count && status == OX_OK; i++) {
        const int64_t id = ends.last.ids[i];
        status = id != first && !has_id(&ends.inner, id) ? ox_ids_add(out, id) : OX_OK;
    }
    ox_ids_free(&ends.last);
    ox_ids_free(&ends.inner);
    return status;
}

/* ---- what is no token ---------------------------------------------------------------------------------------- */

enum ox_status ox_chat_lettered_end(struct ox_chat_renderer *renderer, char tag[OX_CHAT_TAG_BYTES]) {
    static const char *const openings[] = {"<|", "<\xef\xbd\x9c", "</s>", "<end_of_turn>", "<eos>"};
    struct ox_jinja_output output = {0};
    const char *end = NULL;
    int64_t id = 0;
    tag[0] = '\0';
    enum ox_status status = ox_chat_end_of_turn(renderer, &id);
    OX_TRY(status, render_end(renderer, &output, &end));
    end = status == OX_OK && end != NULL ? end + strspn(end, " \n") : "";
    const size_t bytes = strcspn(end, "> \n") + 1;
    for (size_t i = 0; i < sizeof openings / sizeof *openings && id < 0; i++) {
        if (strncmp(end, openings[i], strlen(openings[i])) == 0 && end[bytes - 1] == '>' && bytes < OX_CHAT_TAG_BYTES) {
            memcpy(tag, end, bytes);
            tag[bytes] = '\0';
        }
    }
    ox_jinja_output_free(&output);
    return status;
}
