/* Renders rows into ids and a loss mask: the template makes the text of a conversation, the tokenizer its ids. */
#include "engine/text/chat_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static enum ox_status no_memory(void) {
    return ox_fail(OX_E_NOMEM, "no memory for a conversation");
}

struct tm ox_chat_date(int64_t clock_s) {
    const time_t seconds = clock_s;
    struct tm out = {0};
    gmtime_r(&seconds, &out);
    return out;
}

/* ---- what the template is given ------------------------------------------------------------------------------ */

static json_t *one_message(const char *role, json_t *content) {
    return json_pack("{s:s,s:o}", "role", role, "content", content);
}

static json_t *conversation_of(json_t *message) {
    return json_pack("{s:[o]}", "messages", message);
}

bool ox_chat_give_kwargs(const struct ox_chat_renderer *renderer, json_t *conversation) {
    return conversation != NULL && (renderer->kwargs == NULL ||
                                    json_object_set(conversation, "chat_template_kwargs", renderer->kwargs) == 0);
}

enum ox_status ox_chat_render_probe(const struct ox_chat_renderer *renderer, json_t *conversation, const char *word,
                                    struct ox_jinja_output *out, bool *holds) {
    *out = (struct ox_jinja_output){0};
    *holds = false;
    if (!ox_chat_give_kwargs(renderer, conversation)) {
        return no_memory();
    }
    const enum ox_status status =
        ox_template_render(renderer->options.chat_template, conversation, &renderer->options.now, out);
    *holds = status == OX_OK && strstr(out->text, word) != NULL;
    return status == OX_E_CONFIG ? OX_OK : status;
}

/* Looks whether the template reads a content that is a list of texts: it writes the same for a list of one text as for
 * the text, or it knows lists alone. */
static enum ox_status look_at_lists(struct ox_chat_renderer *renderer) {
    static const char word[] = "Some words.";
    struct ox_jinja_output plain = {0}, listed = {0};
    bool in_plain = false, in_listed = false;
    json_t *const list = json_pack("[{s:s,s:s}]", "type", "text", "text", word);
    json_t *const first = conversation_of(one_message("user", json_string(word)));
    json_t *const second = conversation_of(one_message("user", list));
    enum ox_status status = ox_chat_render_probe(renderer, first, word, &plain, &in_plain);
    OX_THEN(status, ox_chat_render_probe(renderer, second, word, &listed, &in_listed));
    if (status == OX_OK) {
        const bool yes = in_listed && (!in_plain || strcmp(plain.text, listed.text) == 0);
        renderer->reads_lists = yes ? 1 : -1;
    }
    json_decref(first);
    json_decref(second);
    ox_jinja_output_free(&plain);
    ox_jinja_output_free(&listed);
    return status;
}

/* Replaces a content that is a list by its texts, joined. */
static enum ox_status join_content(json_t *message, struct ox_text *text) {
    const json_t *const list = json_object_get(message, "content");
    enum ox_status status = OX_OK;
    text->bytes = 0;
    for (size_t i = 0; status == OX_OK && i < json_array_size(list); i++) {
        const json_t *const part = json_object_get(json_array_get(list, i), "text");
        status = ox_text_append(text, json_string_value(part), json_string_length(part));
    }
    OX_THEN(status, ox_text_append(text, "", 1));
    if (status == OX_OK && json_object_set_new(message, "content", json_stringn(text->data, text->bytes - 1)) != 0) {
        status = no_memory();
    }
    return status;
}

static enum ox_status join_lists(struct ox_chat_renderer *renderer, json_t *row) {
    const json_t *const messages = json_object_get(row, "messages");
    json_t *joined = NULL;
    enum ox_status status = OX_OK;
    for (size_t i = 0; status == OX_OK && i < json_array_size(messages); i++) {
        if (!json_is_array(json_object_get(json_array_get(messages, i), "content"))) {
            continue;
        }
        if (renderer->reads_lists == 0) {
            status = look_at_lists(renderer);
        }
        if (status != OX_OK || renderer->reads_lists > 0) {
            break;
        }
        joined = joined != NULL ? joined : json_copy((json_t *)messages);
        json_t *const message = json_copy(json_array_get(messages, i));
        if (joined == NULL || message == NULL || json_array_set_new(joined, i, message) != 0) {
            status = no_memory();
        }
        OX_THEN(status, join_content(message, &renderer->text));
    }
    if (status == OX_OK && joined != NULL && json_object_set(row, "messages", joined) != 0) {
        status = no_memory();
    }
    json_decref(joined);
    return status;
}

/* Makes what the template is given of a row's conversation: the variables of the options beside its own, and lists as
 * the template reads them. The caller owns *out. */
static enum ox_status prepare(struct ox_chat_renderer *renderer, const json_t *conversation, json_t **out) {
    json_t *const row = json_copy((json_t *)conversation);
    json_t *const kwargs = renderer->kwargs != NULL ? json_copy(renderer->kwargs) : NULL;
    json_t *const own = json_object_get(conversation, "chat_template_kwargs");
    bool ok = row != NULL && (kwargs != NULL || renderer->kwargs == NULL);
    if (ok && kwargs != NULL) {
        ok = (own == NULL || json_object_update(kwargs, own) == 0) &&
             json_object_set(row, "chat_template_kwargs", kwargs) == 0;
    }
    if (ok && renderer->options.generation_prompt) {
        ok = json_object_set_new(row, "add_generation_prompt", json_true()) == 0;
    }
    json_decref(kwargs);
    const enum ox_status status = ok ? join_lists(renderer, row) : no_memory();
    if (status != OX_OK) {
        json_decref(row);
        return status;
    }
    *out = row;
    return OX_OK;
}

/* ---- what is trained ----------------------------------------------------------------------------------------- */

bool ox_chat_is_assistant(const json_t *message) {
    const char *const role = json_string_value(json_object_get(message, "role"));
    return role != NULL && strcmp(role, "assistant") == 0;
}

size_t ox_chat_message_count(const struct ox_chat *chat) {
    return json_array_size(json_object_get(chat->conversation, "messages"));
}

static size_t last_assistant(const struct ox_chat *chat) {
    const json_t *const messages = json_object_get(chat->conversation, "messages");
    size_t idx = json_array_size(messages);
    while (idx > 0 && !ox_chat_is_assistant(json_array_get(messages, idx - 1))) {
        idx--;
    }
    return idx - 1; /* SIZE_MAX for none */
}

bool ox_chat_wants(const struct ox_chat_renderer *renderer, const struct ox_chat *chat, size_t message_idx) {
    const enum ox_chat_part part = chat->message_parts[message_idx];
    switch (renderer->options.train_on) {
    case OX_TRAIN_ON_ALL:
        return part == OX_PART_ANSWER;
    case OX_TRAIN_ON_LAST:
        return part == OX_PART_ANSWER && message_idx == last_assistant(chat);
    case OX_TRAIN_ON_PROMPTS:
        break;
    }
    return part != OX_PART_EXCLUDED;
}

/* Whether every assistant turn is trained. */
static bool wants_all(const struct ox_chat_renderer *renderer, const struct ox_chat *chat) {
    const json_t *const messages = json_object_get(chat->conversation, "messages");
    bool all = true;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        all = all && (!ox_chat_is_assistant(json_array_get(messages, i)) || ox_chat_wants(renderer, chat, i));
    }
    return all;
}

/* How many messages of others than the assistant there are, and how many of them are never trained. */
struct prompts {
    size_t count, excluded_count;
};

static struct prompts prompts_of(const struct ox_chat *chat) {
    const json_t *const messages = json_object_get(chat->conversation, "messages");
    struct prompts out = {0};
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (!ox_chat_is_assistant(json_array_get(messages, i))) {
            out.count++;
            out.excluded_count += chat->message_parts[i] == OX_PART_EXCLUDED;
        }
    }
    return out;
}

/* The message that a {% generation %} block is of, from message *next on: they are the assistant messages in order. */
static size_t message_of_block(const struct ox_chat *chat, size_t *next) {
    const json_t *const messages = json_object_get(chat->conversation, "messages");
    while (!ox_chat_is_assistant(json_array_get(messages, *next))) {
        (*next)++;
    }
    return (*next)++;
}

/* Checks that there are as many blocks as assistant messages. */
static enum ox_status check_blocks(const struct ox_chat *chat, const struct ox_template_turns *turns) {
    const size_t count = ox_chat_message_count(chat) - prompts_of(chat).count;
    return count == turns->count
               ? OX_OK
               : ox_fail(OX_E_CONFIG,
                         "the chat template marks %zu {%% generation %%} blocks in a conversation of %zu assistant "
                         "messages, so a single one cannot be left out of training; leave out weights and --train-on, "
                         "or use a chat template with one block for each",
                         turns->count, count);
}

static enum ox_status take_spans(struct ox_chat_renderer *renderer, const struct ox_chat *chat,
                                 const struct ox_template_turns *turns, bool numbered) {
    enum ox_status status =
        ox_tok_reserve((void **)&renderer->spans, &renderer->span_room, turns->count, sizeof *renderer->spans);
    const bool all = wants_all(renderer, chat);
    size_t next = 0;
    OX_THEN(status, !all && numbered ? check_blocks(chat, turns) : OX_OK);
    for (size_t i = 0; status == OX_OK && i < turns->count; i++) {
        const struct ox_template_turn *const turn = &turns->turns[i];
        const size_t message_idx = all ? 0 : numbered ? message_of_block(chat, &next) : turn->message_idx;
        renderer->spans[renderer->span_count++] =
            (struct ox_chat_span){.begin = turn->begin_byte,
                          .end = turn->end_byte,
                          .trained = all || ox_chat_wants(renderer, chat, message_idx)};
    }
    return status;
}

static int by_begin(const void *a, const void *b) {
    const size_t first = ((const struct ox_chat_span *)a)->begin, second = ((const struct ox_chat_span *)b)->begin;
    return (first > second) - (first < second);
}

/* Adds a span that is not trained for the content of each message of others than the assistant whose weight is 0. */
static enum ox_status exclude_prompts(struct ox_chat_renderer *renderer, const struct ox_chat *chat, const json_t *row,
                                      const struct ox_template_turns *turns) {
    const json_t *const messages = json_object_get(chat->conversation, "messages");
    const size_t room = renderer->span_count + json_array_size(messages);
    enum ox_status status =
        ox_tok_reserve((void **)&renderer->spans, &renderer->span_room, room, sizeof *renderer->spans);
    for (size_t i = 0; status == OX_OK && i < json_array_size(messages); i++) {
        struct ox_template_turn place;
        if (chat->message_parts[i] != OX_PART_EXCLUDED || ox_chat_is_assistant(json_array_get(messages, i))) {
            continue;
        }
        status = ox_template_find_content(renderer->options.chat_template, row, &renderer->options.now,
                                          &turns->output, i, &place);
        bool alone = true;
        for (size_t k = 0; k < renderer->span_count; k++) {
            alone &= place.end_byte <= renderer->spans[k].begin || place.begin_byte >= renderer->spans[k].end;
        }
        if (status == OX_OK && !alone) {
            status = ox_fail(OX_E_CONFIG,
                             "message %zu: its weight is 0, but the chat template does not write it in one place of "
                             "its own, so that --train-on prompts cannot leave it out; give every message that is not "
                             "the assistant's weight 0, or choose --train-on all", i + 1);
        }
        renderer->spans[renderer->span_count++] =
            (struct ox_chat_span){.begin = place.begin_byte, .end = place.end_byte};
    }
    qsort(renderer->spans, renderer->span_count, sizeof *renderer->spans, by_begin);
    return status;
}

/* ---- texts of a row that look like special tokens ------------------------------------------------------------ */

/* Finds the places where a row's texts hold special-token strings in its rendered text. The row is rendered a second
 * time with a character in each; where that changes anything else, the template looks at the string. */
static enum ox_status find_places(struct ox_chat_renderer *renderer, const json_t *conversation,
                                  const struct ox_jinja_output *plain) {
    char mark[OX_MARK_BYTES + 1] = {0};
    struct ox_jinja_output output = {0};
    json_t *marked = NULL, *row = NULL;
    uint32_t cp = 0x10fffd; /* private use, as are those before it */
    do {
        ox_utf8_put(cp--, mark);
    } while (strstr(plain->text, mark) != NULL);
    enum ox_status status = ox_chat_put_marks(&renderer->special, mark, conversation, &marked);
    if (status != OX_OK || marked == NULL) {
        return status;
    }
    status = prepare(renderer, marked, &row);
    bool same = false;
    if (status == OX_OK) {
        status = ox_template_render(renderer->options.chat_template, row, &renderer->options.now, &output);
        same = status == OX_OK;
        status = status == OX_E_CONFIG ? OX_OK : status;
    }
    if (status == OX_OK && same) {
        status = ox_chat_take_marks(mark, output.text, &output.text_bytes, &renderer->places, &renderer->place_count);
        same = output.text_bytes == plain->text_bytes && memcmp(output.text, plain->text, plain->text_bytes) == 0;
    }
    if (status == OX_OK && !same) {
        status = ox_fail(OX_E_CONFIG, "a text of this row has a special token's string, and the chat template looks at "
                                      "it, so it cannot stay ordinary text; remove it, or give --parse-special if it "
                                      "is meant as the token");
    } else if (status == OX_OK && renderer->place_count > 0 && renderer->special.late != NULL) {
        status = ox_fail(OX_E_CONFIG,
                         "a text of this row has a special token's string, which would pass for the token: %s has "
                         "\"normalized\": true in the tokenizer.json; set it to false, remove the string, or give "
                         "--parse-special",
                         renderer->special.late);
    }
    ox_jinja_output_free(&output);
    json_decref(row);
    json_decref(marked);
    return status;
}

/* ---- parts --------------------------------------------------------------------------------------------------- */

static int by_offset(const void *a, const void *b) {
    const size_t first = *(const size_t *)a, second = *(const size_t *)b;
    return (first > second) - (first < second);
}

/* The offset before the character that ends at a place. */
static size_t before(const char *text, size_t place) {
    return place > 0 ? ox_utf8_back(text, place) : 0;
}

/* Cuts the rendered text where spans and places begin and end, and says of each part what it is. */
static enum ox_status cut_parts(struct ox_chat_renderer *renderer, const char *text, size_t bytes) {
    const size_t room = 2 * renderer->span_count + 2 * renderer->place_count + 1;
    enum ox_status status =
        ox_tok_reserve((void **)&renderer->borders, &renderer->border_room, room, sizeof *renderer->borders);
    OX_THEN(status, ox_tok_reserve((void **)&renderer->parts, &renderer->part_room, room, sizeof *renderer->parts));
    if (status != OX_OK) {
        return status;
    }
    size_t count = 0, span = 0, place = 0, begin = 0;
    for (size_t i = 0; i < renderer->span_count; i++) {
        renderer->borders[count++] = renderer->spans[i].begin;
        renderer->borders[count++] = renderer->spans[i].end;
    }
    for (size_t i = 0; i < renderer->place_count; i++) {
        renderer->borders[count++] = before(text, renderer->places[i]);
        renderer->borders[count++] = renderer->places[i];
    }
    renderer->borders[count++] = bytes;
    qsort(renderer->borders, count, sizeof *renderer->borders, by_offset);
    for (size_t i = 0; i < count; i++) {
        const size_t end = renderer->borders[i];
        if (end == begin) {
            continue;
        }
        while (span < renderer->span_count && renderer->spans[span].end <= begin) {
            span++;
        }
        while (place < renderer->place_count && renderer->places[place] <= begin) {
            place++;
        }
        const bool in_span = span < renderer->span_count && renderer->spans[span].begin <= begin;
        const bool in_place = place < renderer->place_count && before(text, renderer->places[place]) <= begin;
        const bool marked = in_span ? renderer->spans[span].trained : renderer->trains_rest;
        renderer->parts[renderer->part_count++] =
            (struct ox_text_part){.end = end, .control = !in_place, .marked = marked};
        renderer->spells |= in_place && marked && ox_special_strings_begin(&renderer->special, text, bytes, begin);
        begin = end;
    }
    return OX_OK;
}

/* ---- rendering ----------------------------------------------------------------------------------------------- */

static enum ox_status append(struct ox_ids *ids, struct ox_id_mask *trained, int64_t id, bool mark) {
    enum ox_status status = ox_ids_add(ids, id);
    OX_THEN(status, ox_id_mask_append(trained, mark, 1));
    return status;
}

/* Renders the text of a conversation and, where training needs them, finds its turns. */
static enum ox_status render_text(struct ox_chat_renderer *renderer, const struct ox_chat *chat, const json_t *row,
                                  struct ox_template_turns *turns) {
    const struct ox_chat_options *const options = &renderer->options;
    const struct prompts prompts = prompts_of(chat);
    const bool with_prompts = options->train_on == OX_TRAIN_ON_PROMPTS;
    const bool needs_turns = !options->generation_prompt &&
                             (!with_prompts || prompts.excluded_count > 0 || !wants_all(renderer, chat));
    const bool excludes_all = prompts.excluded_count > 0 && prompts.excluded_count == prompts.count;
    renderer->trains_rest = with_prompts && !excludes_all;
    if (!needs_turns) {
        return ox_template_render(options->chat_template, row, &options->now, &turns->output);
    }
    enum ox_status status = ox_template_render_turns(options->chat_template, row, &options->now, turns);
    OX_THEN(status, take_spans(renderer, chat, turns, ox_template_marks_generation(options->chat_template, row)));
    return status == OX_OK && renderer->trains_rest && prompts.excluded_count > 0
               ? exclude_prompts(renderer, chat, row, turns)
               : status;
}

/* Explains a failure by the message without a content, if the template renders the row once that is "". */
static enum ox_status explain_null(const struct ox_chat_renderer *renderer, const json_t *row, enum ox_status failed) {
    char reason[OX_ERROR_TEXT_BYTES];
    struct ox_jinja_output output = {0};
    json_t *const copy = json_deep_copy(row);
    json_t *const messages = json_object_get(copy, "messages");
    size_t first = 0;
    bool missing = false, ok = copy != NULL;
    snprintf(reason, sizeof reason, "%s", ox_error_text());
    for (size_t i = json_array_size(messages); i-- > 0;) {
        json_t *const message = json_array_get(messages, i), *const content = json_object_get(message, "content");
        if (content == NULL || json_is_null(content)) {
            first = i + 1;
            missing = content == NULL;
            ok = ok && json_object_set_new(message, "content", json_string("")) == 0;
        }
    }
    enum ox_status status = ok && first > 0 ? ox_template_render(renderer->options.chat_template, copy,
                                                                 &renderer->options.now, &output)
                                            : failed;
    status = status == OX_OK ? ox_fail(failed, "message %zu: its \"content\" is %s, which the chat template %s cannot "
                                       "write (%s); write \"content\": \"\" there", first,
                                       missing ? "missing" : "null",
                                       ox_template_origin(renderer->options.chat_template), reason)
             : status == OX_E_ABORTED
                 ? status
                 : ox_fail(failed, "chat template %s: %s", ox_template_origin(renderer->options.chat_template), reason);
    ox_jinja_output_free(&output);
    json_decref(copy);
    return status;
}

/* Lists the built-in templates whose end of a turn is a token of this tokenizer. */
static enum ox_status list_builtins(struct ox_chat_renderer *renderer, const char *folder, char *names, size_t bytes) {
    const struct ox_template *const own = renderer->options.chat_template;
    enum ox_status status = OX_OK;
    size_t used = 0;
    names[0] = '\0';
    for (const struct ox_template_builtin *builtin = ox_template_builtins; status == OX_OK && builtin->name != NULL;
         builtin++) {
        struct ox_template *other = NULL;
        char tag[OX_CHAT_TAG_BYTES] = "";
        int64_t id = -1;
        status = ox_template_open(folder, builtin->name, &other);
        renderer->options.chat_template = other;
        OX_THEN(status, ox_chat_end_of_turn(renderer, &id));
        OX_THEN(status, ox_chat_lettered_end(renderer, tag));
        if (status == OX_OK && id >= 0 && tag[0] == '\0') {
            const int written = snprintf(names + used, bytes - used, "%s%s", used > 0 ? ", " : "", builtin->name);
            used = used + (size_t)written < bytes ? used + (size_t)written : bytes - 1;
        }
        ox_template_close(&other);
    }
    renderer->options.chat_template = own;
    return status;
}

enum ox_status ox_chat_fail_template(struct ox_chat_renderer *renderer) {
    const char *const why = renderer->options.no_template != NULL ? renderer->options.no_template : "there is none";
    char names[256] = "";
    if (renderer->options.folder == NULL) {
        return ox_fail(OX_E_CONFIG, "a conversation needs a chat template: %s", why);
    }
    OX_TRY(list_builtins(renderer, renderer->options.folder, names, sizeof names));
    return ox_fail(OX_E_CONFIG, "a conversation needs a chat template: %s; of these its tokenizer can use %s", why,
                   names[0] != '\0' ? names : "none");
}

static enum ox_status render_conversation(struct ox_chat_renderer *renderer, const struct ox_chat *chat,
                                          struct ox_ids *ids, struct ox_id_mask *trained) {
    struct ox_template_turns turns = {0};
    json_t *row = NULL;
    if (renderer->options.chat_template == NULL) {
        return ox_chat_fail_template(renderer);
    }
    const size_t count = ox_chat_message_count(chat);
    if (renderer->options.generation_prompt && last_assistant(chat) == count - 1) {
        return ox_fail(OX_E_CONFIG, "a prompt for generation cannot end with an assistant message; end it with a user "
                                    "message");
    }
    enum ox_status status = prepare(renderer, chat->conversation, &row);
    OX_THEN(status, render_text(renderer, chat, row, &turns));
    if (status == OX_E_CONFIG && turns.output.error != NULL) {
        status = explain_null(renderer, row, status);
    }
    if (status == OX_OK && !renderer->options.parse_special) {
        status = find_places(renderer, chat->conversation, &turns.output);
    }
    OX_THEN(status, ox_chat_take_notes(renderer, chat, row, &turns.output));
    OX_THEN(status, cut_parts(renderer, turns.output.text, turns.output.text_bytes));
    renderer->notes.rows[OX_NOTE_SPELLED] += status == OX_OK && renderer->spells;
    if (status == OX_OK && renderer->part_count > 0) {
        status = ox_encode_parts(renderer->encoder, turns.output.text, renderer->parts, renderer->part_count, ids,
                                 trained);
    }
    json_decref(row);
    ox_template_turns_free(&turns);
    return status;
}

bool ox_chat_has_end(const struct ox_tokenizer *tokenizer, int64_t id, const char *text, size_t bytes, bool at_end) {
    static const char blanks[] = " \t\r\n";
    const bool is_parsed = id >= 0 && id < ox_tokenizer_vocab_count(tokenizer) && tokenizer->added_by_id[id] > 0;
    const char *const token = is_parsed ? ox_tokenizer_token(tokenizer, (uint32_t)id) : NULL;
    const size_t token_bytes = token != NULL ? strlen(token) : 0;
    size_t begin = 0;
    while (!at_end && begin < bytes && strchr(blanks, text[begin]) != NULL && text[begin] != '\0') {
        begin++;
    }
    while (at_end && bytes > 0 && strchr(blanks, text[bytes - 1]) != NULL && text[bytes - 1] != '\0') {
        bytes--;
    }
    return token_bytes > 0 && token_bytes <= bytes - begin &&
           memcmp(at_end ? text + bytes - token_bytes : text + begin, token, token_bytes) == 0;
}

/* The id of a BOS or EOS to add to a text; -1 for none. */
static int64_t end_to_add(const struct ox_chat_renderer *renderer, enum ox_add choice, int64_t id, bool usual,
                          const char *text, size_t bytes, bool at_end) {
    const bool adds = choice == OX_ADD_ON || (choice == OX_ADD_AUTO && usual);
    return adds && id >= 0 && !ox_chat_has_end(renderer->tokenizer, id, text, bytes, at_end) ? id : -1;
}

/* A text, or a prompt and the text that completes it, in which special-token strings are tokens. */
static enum ox_status render_plain(struct ox_chat_renderer *renderer, const struct ox_chat *chat, struct ox_ids *ids,
                                   struct ox_id_mask *trained) {
    const struct ox_tokenizer *const tokenizer = renderer->tokenizer;
    const struct ox_chat_options *const options = &renderer->options;
    const size_t prompt_bytes = chat->prompt != NULL ? strlen(chat->prompt) : 0, text_bytes = strlen(chat->text);
    const size_t bytes = prompt_bytes + text_bytes;
    const bool trains_prompt = options->train_on == OX_TRAIN_ON_PROMPTS;
    const struct ox_text_part parts[] = {{.end = prompt_bytes, .control = true, .marked = trains_prompt},
                                         {.end = bytes, .control = true, .marked = true}};
    const size_t first = prompt_bytes == 0, end = text_bytes == 0 ? 1 : 2; /* no part is empty */
    renderer->text.bytes = 0;
    enum ox_status status = ox_text_append(&renderer->text, chat->prompt, prompt_bytes);
    OX_THEN(status, ox_text_append(&renderer->text, chat->text, text_bytes));
    if (status != OX_OK) {
        return status;
    }
    const char *const text = renderer->text.data;
    const int64_t bos = end_to_add(renderer, options->add_bos, ox_tokenizer_bos(tokenizer),
                                   ox_tokenizer_adds_bos(tokenizer), text, bytes, false);
    const int64_t eos = end_to_add(renderer, options->add_eos, ox_tokenizer_eos(tokenizer), true, text, bytes, true);
    ox_chat_note_plain(renderer, chat);
    status = bos >= 0 ? append(ids, trained, bos, false) : OX_OK;
    if (status == OX_OK && end > first) {
        status = ox_encode_parts(renderer->encoder, text, parts + first, end - first, ids, trained);
    }
    return status == OX_OK && eos >= 0 ? append(ids, trained, eos, true) : status;
}

static enum ox_status copy_ids(const struct ox_chat_renderer *renderer, const struct ox_chat *chat,
                               struct ox_ids *ids, struct ox_id_mask *trained) {
    const uint32_t vocab = ox_tokenizer_vocab_count(renderer->tokenizer);
    enum ox_status status = OX_OK;
    for (size_t i = 0; i < chat->ids.count && status == OX_OK; i++) {
        const int32_t id = chat->ids.ids[i];
        status = (uint32_t)id < vocab ? append(ids, trained, id, chat->trained.marks[i] != 0)
                                      : ox_fail(OX_E_CONFIG, "\"input_ids\" has %d, but the tokenizer has %u tokens; "
                                                "give the tokenizer that made the ids", (int)id, (unsigned)vocab);
    }
    return status;
}

enum ox_status ox_chat_render(struct ox_chat_renderer *renderer, const char *where, const struct ox_chat *chat,
                              struct ox_ids *ids, struct ox_id_mask *trained) {
    const size_t ids_begin = ids->count;
    const size_t trained_begin = trained->count;
    renderer->part_count = renderer->span_count = renderer->place_count = 0;
    renderer->spells = false;
    memset(renderer->noted, 0, sizeof renderer->noted);
    const enum ox_status status = chat->kind == OX_CHAT_MESSAGES ? render_conversation(renderer, chat, ids, trained)
                                  : chat->kind == OX_CHAT_IDS    ? copy_ids(renderer, chat, ids, trained)
                                                                 : render_plain(renderer, chat, ids, trained);
    free(renderer->places);
    renderer->places = NULL;
    if (status != OX_OK) {
        ids->count = ids_begin;
        trained->count = trained_begin;
        return ox_fail_in(status, "%s", where);
    }
    return OX_OK;
}

static enum ox_status fail_builtin(struct ox_chat_renderer *renderer, const char *name) {
    const char *const folder = ox_template_folder(renderer->options.chat_template);
    char tag[OX_CHAT_TAG_BYTES], names[256];
    enum ox_status status = ox_chat_lettered_end(renderer, tag);
    OX_THEN(status, list_builtins(renderer, folder, names, sizeof names));
    return status != OX_OK
               ? status
               : ox_fail(OX_E_CONFIG, "the tokenizer of %s has no special token %s%sfor the end of a turn that the "
                         "chat template %s writes; use the model's own template, or name %s%s with --chat-template",
                         folder, tag, tag[0] != '\0' ? " " : "", name,
                         names[0] != '\0' ? "a file or one of " : "a file", names);
}

/* Refuses a built-in template whose end of a turn is no token of this tokenizer: it is one for other models. */
static enum ox_status check_builtin(struct ox_chat_renderer *renderer) {
    static const char builtin[] = "built in: ";
    const struct ox_template *const chat_template = renderer->options.chat_template;
    char tag[OX_CHAT_TAG_BYTES] = "";
    int64_t id = 0;
    enum ox_status status = OX_OK;
    if (chat_template != NULL && strncmp(ox_template_origin(chat_template), builtin, sizeof builtin - 1) == 0) {
        status = ox_chat_end_of_turn(renderer, &id);
        OX_THEN(status, ox_chat_lettered_end(renderer, tag));
    }
    return status == OX_OK && (id < 0 || tag[0] != '\0')
               ? fail_builtin(renderer, ox_template_origin(chat_template) + sizeof builtin - 1) : status;
}

/* The JSON object that NAME=VALUE or NAME: VALUE is likely to mean; one of many for another text. */
static void kwargs_example(const char *text, char *example, size_t bytes) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    const size_t name = strspn(text, letters), gap = strspn(text + name, "=: ");
    const char *const value = text + name + gap;
    const bool bare = strcasecmp(value, "true") == 0 || strcasecmp(value, "false") == 0 ||
                      (value[0] != '\0' && value[strspn(value, "0123456789")] == '\0');
    char folded[64];
    size_t used = 0;
    for (; value[used] != '\0' && used + 1 < sizeof folded; used++) {
        folded[used] = bare ? (char)tolower((unsigned char)value[used]) : value[used];
    }
    folded[used] = '\0';
    if (name == 0 || name > 40 || gap == 0 || (!bare && (used == 0 || value[strspn(value, letters)] != '\0'))) {
        snprintf(example, bytes, "{\"enable_thinking\": false}");
    } else {
        snprintf(example, bytes, "{\"%.*s\": %s%s%s}", (int)name, text, bare ? "" : "\"", folded, bare ? "" : "\"");
    }
}

enum ox_status ox_chat_kwargs(const char *text, json_t **out) {
    static const char where[] = "--chat-template-kwargs";
    const char *const given = text[0] != '\0' ? text : "{}";
    const enum ox_status status = ox_json_parse(where, given, strlen(given), out);
    if (status == OX_OK && json_is_object(*out)) {
        return OX_OK;
    }
    if (status == OX_OK) {
        json_decref(*out);
        *out = NULL;
    }
    char example[128];
    kwargs_example(given, example, sizeof example);
    return status == OX_OK || (status == OX_E_CORRUPT && strchr(given, '{') == NULL)
               ? ox_fail(OX_E_CONFIG, "%s is %.100s, but must be a JSON object such as '%s'", where, text, example)
           : status == OX_E_CORRUPT ? ox_fail_in(OX_E_CONFIG, "the option must be a JSON object such as '%s'", example)
                                    : status;
}

/* ---- open and close ------------------------------------------------------------------------------------------ */

enum ox_status ox_chat_open(const struct ox_tokenizer *tokenizer, const struct ox_chat_options *options,
                            struct ox_chat_renderer **out) {
    struct ox_chat_renderer *renderer = calloc(1, sizeof *renderer);
    *out = NULL;
    if (renderer == NULL) {
        return no_memory();
    }
    renderer->options = *options;
    renderer->tokenizer = tokenizer;
    enum ox_status status = ox_special_strings_open(tokenizer, &renderer->special);
    if (status == OX_OK && json_object_size(options->kwargs) > 0) {
        renderer->kwargs = json_deep_copy(options->kwargs);
        status = renderer->kwargs != NULL ? OX_OK : no_memory();
    }
    OX_THEN(status, ox_encoder_open(tokenizer, &renderer->encoder));
    OX_THEN(status, check_builtin(renderer));
    if (status != OX_OK) {
        ox_chat_close(&renderer);
        return status;
    }
    *out = renderer;
    return OX_OK;
}

void ox_chat_close(struct ox_chat_renderer **renderer) {
    if (*renderer == NULL) {
        return;
    }
    ox_encoder_close(&(*renderer)->encoder);
    ox_special_strings_close(&(*renderer)->special);
    json_decref((*renderer)->kwargs);
    ox_text_free(&(*renderer)->text);
    free((*renderer)->parts);
    free((*renderer)->spans);
    free((*renderer)->borders);
    free(*renderer);
    *renderer = NULL;
}
