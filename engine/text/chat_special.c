/* Special tokens in the text of a conversation: those that a row spells, and those that end a turn.
 *
 * The strings in the texts of a row are marked, so that a rendered text tells which of them a row wrote. A template is
 * a program: what it writes comes from its own text or from a row's, and only a character that no one else writes tells
 * which. */
#include "engine/text/chat_internal.h"

#include <stdlib.h>
#include <string.h>

struct marking {
    const struct ox_special_strings *strings;
    const char *mark;
    struct ox_text text; /* working memory */
};

static enum ox_status no_memory(void) {
    return ox_fail(OX_E_NOMEM, "no memory for the special-token strings of a conversation");
}

enum ox_status ox_special_strings_open(const struct ox_tokenizer *tokenizer, struct ox_special_strings *out) {
    enum ox_status status = OX_OK;
    *out = (struct ox_special_strings){0};
    for (uint32_t i = 0; status == OX_OK && i < tokenizer->added_count; i++) {
        const struct ox_added_token *const token = &tokenizer->added[i];
        if (token->special && token->bytes > 0) {
            status = ox_trie_add(&out->trie, token->text, token->bytes, i);
            out->late = token->normalized ? token->text : out->late;
        }
    }
    return status;
}

void ox_special_strings_close(struct ox_special_strings *strings) {
    ox_trie_free(&strings->trie);
}

/* ---- putting marks ------------------------------------------------------------------------------------------- */

/* Whether a special-token string begins at `pos`; *open: the text ends inside one that would begin there. */
static bool begins(const struct ox_trie *trie, const char *text, size_t bytes, size_t pos, bool *open) {
    bool found = false;
    uint32_t node = 0;
    size_t at = pos;
    do {
        node = ox_trie_child(trie, node, (uint8_t)text[at++]);
        found = found || (node != 0 && trie->nodes[node].token != 0);
    } while (node != 0 && at < bytes);
    *open = node != 0 && trie->nodes[node].child != 0;
    return found;
}

bool ox_special_strings_begin(const struct ox_special_strings *strings, const char *text, size_t bytes, size_t pos) {
    bool open = false;
    return strings->trie.count > 0 && pos < bytes && begins(&strings->trie, text, bytes, pos, &open);
}

/* Writes the text with its marks to marking->text, unless that is NULL; returns how many there are in *count. The end
 * of a key is never marked: templates compare keys. */
static enum ox_status mark_text(struct marking *marking, const char *text, size_t bytes, bool is_key, size_t *count) {
    const struct ox_trie *const trie = &marking->strings->trie;
    enum ox_status status = OX_OK;
    bool ends_open = false;
    size_t copied = 0;
    marking->text.bytes = 0;
    *count = 0;
    for (size_t pos = 0; status == OX_OK && trie->count > 0 && pos < bytes; pos++) {
        bool open = false;
        if (trie->first[(uint8_t)text[pos]] == 0) {
            continue;
        }
        if (begins(trie, text, bytes, pos, &open)) {
            size_t next = pos;
            ox_utf8_next(text, &next);
            status = ox_text_append(&marking->text, text + copied, next - copied);
            OX_THEN(status, ox_text_append(&marking->text, marking->mark, OX_MARK_BYTES));
            copied = next;
            ++*count;
        }
        ends_open = ends_open || open;
    }
    if (status == OX_OK && (*count > 0 || ends_open)) {
        status = ox_text_append(&marking->text, text + copied, bytes - copied);
    }
    if (status == OX_OK && ends_open && !is_key) {
        status = ox_text_append(&marking->text, marking->mark, OX_MARK_BYTES);
        ++*count;
    }
    return status;
}

static enum ox_status count_marks(struct marking *marking, const json_t *value, size_t *count) {
    enum ox_status status = OX_OK;
    const char *key = NULL;
    json_t *member = NULL;
    size_t own = 0;
    if (json_is_string(value)) {
        status = mark_text(marking, json_string_value(value), json_string_length(value), false, &own);
        *count += own;
    }
    for (size_t i = 0; status == OX_OK && i < json_array_size(value); i++) {
        status = count_marks(marking, json_array_get(value, i), count);
    }
    json_object_foreach((json_t *)value, key, member) {
        OX_THEN(status, mark_text(marking, key, strlen(key), true, &own));
        *count += own;
        OX_THEN(status, count_marks(marking, member, count));
    }
    return status;
}

static enum ox_status copy_marked(struct marking *marking, json_t *value, json_t **out);

static enum ox_status copy_text(struct marking *marking, json_t *value, json_t **out) {
    size_t count = 0;
    const enum ox_status status =
        mark_text(marking, json_string_value(value), json_string_length(value), false, &count);
    if (status == OX_OK) {
        *out = count > 0 ? json_stringn(marking->text.data, marking->text.bytes) : json_incref(value);
    }
    return status != OX_OK || *out != NULL ? status : no_memory();
}

static enum ox_status copy_member(struct marking *marking, const char *key, json_t *member, json_t *object) {
    json_t *copy = NULL;
    size_t count = 0;
    enum ox_status status = copy_marked(marking, member, &copy);
    OX_THEN(status, mark_text(marking, key, strlen(key), true, &count));
    OX_THEN(status, ox_text_append(&marking->text, "", 1));
    if (status != OX_OK) {
        json_decref(copy);
        return status;
    }
    return json_object_set_new(object, count > 0 ? marking->text.data : key, copy) == 0 ? OX_OK : no_memory();
}

/* *out is a new reference, to a copy with marks. */
static enum ox_status copy_marked(struct marking *marking, json_t *value, json_t **out) {
    enum ox_status status = OX_OK;
    const char *key = NULL;
    json_t *member = NULL;
    *out = NULL;
    if (json_is_string(value)) {
        return copy_text(marking, value, out);
    }
    if (!json_is_array(value) && !json_is_object(value)) {
        *out = json_incref(value);
        return OX_OK;
    }
    json_t *const copy = json_is_array(value) ? json_array() : json_object();
    status = copy != NULL ? OX_OK : no_memory();
    for (size_t i = 0; status == OX_OK && i < json_array_size(value); i++) {
        status = copy_marked(marking, json_array_get(value, i), &member);
        if (status == OX_OK && json_array_append_new(copy, member) != 0) {
            status = no_memory();
        }
    }
    json_object_foreach(value, key, member) {
        OX_THEN(status, copy_member(marking, key, member, copy));
    }
    if (status != OX_OK) {
        json_decref(copy);
        return status;
    }
    *out = copy;
    return OX_OK;
}

enum ox_status ox_chat_put_marks(const struct ox_special_strings *strings, const char *mark,
                                 const json_t *conversation, json_t **out) {
    struct marking marking = {.strings = strings, .mark = mark};
    size_t count = 0;
    *out = NULL;
    enum ox_status status = count_marks(&marking, conversation, &count);
    if (status == OX_OK && count > 0) {
        status = copy_marked(&marking, (json_t *)conversation, out);
    }
    ox_text_free(&marking.text);
    return status;
}

/* ---- taking them --------------------------------------------------------------------------------------------- */

enum ox_status ox_chat_take_marks(const char *mark, char *text, size_t *bytes, size_t **places, size_t *count) {
    const char *from = text;
    const char *const end = text + *bytes;
    size_t capacity = 0, kept = 0;
    enum ox_status status = OX_OK;
    *count = 0;
    *places = NULL;
    for (;;) {
        const char *const next = memmem(from, (size_t)(end - from), mark, OX_MARK_BYTES);
        const size_t run = (size_t)((next != NULL ? next : end) - from);
        memmove(text + kept, from, run);
        kept += run;
        if (next == NULL) {
            break;
        }
        status = ox_tok_reserve((void **)places, &capacity, *count + 1, sizeof **places);
        if (status != OX_OK) {
            break;
        }
        (*places)[(*count)++] = kept;
        from = next + OX_MARK_BYTES;
    }
    *bytes = kept;
    return status;
}

/* ---- tokens that end a turn ------------------------------------------------------------------------------------- */

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

/* ---- all tokens that do ------------------------------------------------------------------------------------------ */

/* Conversations whose turns a template may end in another way than the answer to a question. Some templates take the
 * arguments of a call as a text alone, and some one call alone. */
static const struct end_row {
    int calls;       /* of a tool, by the first turn */
    bool as_text;    /* their arguments */
    bool reasons;    /* the first turn */
    bool goes_on;    /* a result or a question follows it, and an answer */
} end_rows[] = {{.goes_on = true},           {.reasons = true},
                {.calls = 1},                {.calls = 1, .as_text = true},
                {.calls = 2},                {.calls = 2, .as_text = true},
                {.calls = 1, .goes_on = true}, {.calls = 1, .as_text = true, .goes_on = true}};

static json_t *one_message(const char *role, const char *content) {
    return json_pack("{s:s,s:s}", "role", role, "content", content);
}

/* Returns NULL without memory. */
static json_t *make_row(const struct end_row *kind) {
    json_t *const turn = one_message("assistant", kind->calls > 0 ? "" : "Some words.");
    json_t *const messages = json_pack("[o,O]", one_message("user", "Yes?"), turn);
    json_t *const row = json_pack("{s:o}", "messages", messages);
    json_t *const calls = json_array();
    bool ok = row != NULL && calls != NULL;
    for (int i = 0; i < kind->calls; i++) {
        json_t *const arguments = kind->as_text ? json_string("{\"at\": \"this\"}") : json_pack("{s:s}", "at", "this");
        ok = json_array_append_new(calls, json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", i == 0 ? "call00001" : "call00002",
                                                    "type", "function", "function", "name", "look", "arguments",
                                                    arguments)) == 0 && ok;
    }
    if (kind->calls > 0) {
        json_t *const tool = json_pack("{s:s,s:{s:s,s:s,s:{s:s,s:{s:{s:s,s:s}},s:[s]}}}", "type", "function",
                                       "function", "name", "look", "description", "Looks.", "parameters", "type",
                                       "object", "properties", "at", "type", "string", "description", "What.",
                                       "required", "at");
        ok = json_object_set(turn, "tool_calls", calls) == 0 && ok;
        ok = json_object_set_new(row, "tools", json_pack("[o]", tool)) == 0 && ok;
    }
    if (kind->reasons) {
        ok = json_object_set_new(turn, "reasoning_content", json_string("A thought.")) == 0 && ok;
    }
    if (kind->goes_on) {
        json_t *const next = kind->calls > 0 ? json_pack("{s:s,s:s,s:s,s:s}", "role", "tool", "tool_call_id",
                                                         "call00001", "name", "look", "content", "12")
                                             : one_message("user", "And?");
        ok = json_array_append_new(messages, next) == 0 && ok;
        ok = json_array_append_new(messages, one_message("assistant", "Some words.")) == 0 && ok;
    }
    json_decref(calls);
    json_decref(turn);
    if (!ok) {
        json_decref(row);
        return NULL;
    }
    return row;
}

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
static enum ox_status look_at_row(const struct ox_chat_renderer *renderer, const struct end_row *kind,
                                  struct ends *ends) {
    struct ox_template_turns turns = {0};
    json_t *const row = make_row(kind);
    enum ox_status status = ox_chat_give_kwargs(renderer, row) ? OX_OK : no_memory();
    OX_THEN(status, ox_template_render_turns(renderer->options.chat_template, row, &renderer->options.now, &turns));
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
    OX_THEN(status, first >= 0 ? ox_ids_add(out, first) : OX_OK);
    for (size_t i = 0; i < sizeof end_rows / sizeof *end_rows && status == OX_OK; i++) {
        status = look_at_row(renderer, &end_rows[i], &ends);
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

/* Whether the text begins with the added token: one further on, as an EOS behind the last turn, ends no other turn. */
static bool begins_with_added(const struct ox_chat_renderer *renderer, int64_t id, const char *text) {
    const struct ox_tokenizer *const tokenizer = renderer->tokenizer;
    const struct ox_added_token *const added = id >= 0 ? &tokenizer->added[tokenizer->added_by_id[id] - 1] : NULL;
    return added != NULL && strncmp(text, added->text, added->bytes) == 0;
}

enum ox_status ox_chat_lettered_end(struct ox_chat_renderer *renderer, char tag[OX_CHAT_TAG_BYTES]) {
    static const char *const openings[] = {"<|", "<\xef\xbd\x9c", "</s>", "<end_of_turn>", "<eos>"};
    struct ox_jinja_output output = {0};
    const char *end = NULL;
    int64_t id = 0;
    tag[0] = '\0';
    enum ox_status status = ox_chat_end_of_turn(renderer, &id);
    OX_THEN(status, render_end(renderer, &output, &end));
    end = status == OX_OK && end != NULL ? end + strspn(end, " \n") : "";
    const size_t bytes = strcspn(end, "> \n") + 1;
    const bool is_token = begins_with_added(renderer, id, end);
    for (size_t i = 0; i < sizeof openings / sizeof *openings && !is_token; i++) {
        if (strncmp(end, openings[i], strlen(openings[i])) == 0 && end[bytes - 1] == '>' && bytes < OX_CHAT_TAG_BYTES) {
            memcpy(tag, end, bytes);
            tag[bytes] = '\0';
        }
    }
    ox_jinja_output_free(&output);
    return status;
}
