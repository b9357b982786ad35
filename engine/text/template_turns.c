/* Finds the assistant turns in the text of a conversation, by rendering its beginnings. */
#include "engine/text/template.h"

#include <stdlib.h>
#include <string.h>

struct search {
    const struct ox_template *chat_template;
    const json_t *conversation, *messages;
    const struct tm *now;
    struct ox_jinja_output whole; /* the whole conversation; not owned */
    size_t message_count;
    size_t earlier_begin, earlier_end; /* the turn before */
    uint64_t *work;                    /* messages rendered so far; not owned */
    bool adds_nothing; /* an earlier turn showed that the template writes nothing behind the last message */
};

/* A turn while it is searched: where it begins in the whole text and in `up_to`, which ends with it. */
struct place {
    const json_t *message;
    struct ox_jinja_output up_to;
    size_t begin, begin_up_to, end;
};

static enum ox_status no_memory(void) {
    return ox_fail(OX_E_NOMEM, "no memory for the turns of a conversation");
}

/* Renders the first `count` messages, then `more` unless it is NULL. */
static enum ox_status render_first(const struct search *search, size_t count, json_t *more, bool prompt,
                                   struct ox_jinja_output *out) {
    json_t *const row = json_copy((json_t *)search->conversation);
    json_t *const first = json_array();
    *out = (struct ox_jinja_output){0};
    *search->work += count;
    bool ok = row != NULL && first != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        ok = json_array_append(first, json_array_get(search->messages, i)) == 0;
    }
    ok = ok && (more == NULL || json_array_append(first, more) == 0) && json_object_set(row, "messages", first) == 0 &&
         json_object_set_new(row, "add_generation_prompt", json_boolean(prompt)) == 0;
    const enum ox_status status =
        ok ? ox_template_render(search->chat_template, row, search->now, out) : no_memory();
    json_decref(first);
    json_decref(row);
    return status;
}

/* ---- texts ----------------------------------------------------------------------------------------------------- */

struct slice {
    const char *text;
    size_t bytes;
};

static struct slice from(const struct ox_jinja_output *output, size_t begin) {
    return (struct slice){output->text + begin, output->text_bytes - begin};
}

static struct slice from_slice(struct slice slice, size_t begin) {
    return (struct slice){slice.text + begin, slice.bytes - begin};
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static struct slice trim(struct slice slice) {
    while (slice.bytes > 0 && is_space(slice.text[0])) {
        slice.text++;
        slice.bytes--;
    }
    while (slice.bytes > 0 && is_space(slice.text[slice.bytes - 1])) {
        slice.bytes--;
    }
    return slice;
}

static size_t common_bytes(struct slice a, struct slice b) {
    size_t bytes = 0;
    while (bytes < a.bytes && bytes < b.bytes && a.text[bytes] == b.text[bytes]) {
        bytes++;
    }
    return bytes;
}

static bool begins_with(struct slice slice, struct slice part) {
    return part.bytes <= slice.bytes && memcmp(slice.text, part.text, part.bytes) == 0;
}

/* The last occurrence of `part`, or NULL; an empty part occurs nowhere. */
static const char *find_last(struct slice slice, struct slice part) {
    for (size_t i = part.bytes > 0 && part.bytes <= slice.bytes ? slice.bytes - part.bytes + 1 : 0; i-- > 0;) {
        if (memcmp(slice.text + i, part.text, part.bytes) == 0) {
            return slice.text + i;
        }
    }
    return NULL;
}

/* The content of a message, of several parts the last, without white space around it; empty where it is no text. */
static struct slice content_of(const json_t *message) {
    const json_t *content = json_object_get(message, "content");
    if (json_is_array(content)) {
        content = json_object_get(json_array_get(content, json_array_size(content) - 1), "text");
    }
    return json_is_string(content) ? trim((struct slice){json_string_value(content), json_string_length(content)})
                                   : (struct slice){"", 0};
}

/* What of an assistant's content is no reasoning, which a template may drop. */
static struct slice answer_of(const json_t *message) {
    static const struct slice close = {"</think>", 8};
    const struct slice content = content_of(message);
    const char *const last = find_last(content, close);
    const size_t skipped = last != NULL ? (size_t)(last - content.text) + close.bytes : 0;
    return trim((struct slice){content.text + skipped, content.bytes - skipped});
}

/* Where the last tag ends that by its name ends something, as <|im_end|>, </s> and <|eot_id|> do; 0 without one. */
static size_t end_of_end_tag(struct slice slice) {
    for (size_t end = slice.bytes; end > 0; end--) {
        const char close = slice.text[end - 1], open = close == '>' ? '<' : '[';
        size_t begin = end - 1;
        while ((close == '>' || close == ']') && begin > 0 && slice.text[begin] != open &&
               !is_space(slice.text[begin])) {
            begin--;
        }
        const struct slice tag = {slice.text + begin, end - begin};
        const bool is_first = memchr(slice.text, open, slice.bytes) == tag.text;
        if (tag.bytes > 2 && tag.text[0] == open &&
            ((is_first && tag.text[1] == '/') || memmem(tag.text, tag.bytes, "end", 3) != NULL ||
             memmem(tag.text, tag.bytes, "END", 3) != NULL || memmem(tag.text, tag.bytes, "eo", 2) != NULL ||
             memmem(tag.text, tag.bytes, "EO", 2) != NULL)) {
            return end;
        }
    }
    return 0;
}

/* The text without a tag that it ends inside of. */
static size_t without_open_tag(struct slice slice) {
    for (size_t i = slice.bytes; i-- > 0 && !is_space(slice.text[i]);) {
        if (slice.text[i] == '>' || slice.text[i] == ']') {
            break;
        }
        if (slice.text[i] == '<' || slice.text[i] == '[') {
            return i;
        }
    }
    return slice.bytes;
}

static bool is_by(const json_t *message, const char *name) {
    const char *const role = json_string_value(json_object_get(message, "role"));
    return role != NULL && strcmp(role, name) == 0;
}

static bool is_assistant(const json_t *message) {
    return is_by(message, "assistant");
}

/* ---- where a turn begins --------------------------------------------------------------------------------------- */

/* Whether a text opens or skips a reasoning. */
static bool begins_reasoning(struct slice slice) {
    static const char *const names[] = {"<think", "</think", "<thought", "<|channel>thought"};
    bool begins = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        begins |= begins_with(slice, (struct slice){names[i], strlen(names[i])});
    }
    return begins;
}

/* A generation prompt without the reasoning that it opens or skips at its end, which a conversation need not have. */
static struct slice without_reasoning(struct slice prompt) {
    enum { REASONING_BYTES_MAX = 48 };
    const size_t first = prompt.bytes > REASONING_BYTES_MAX ? prompt.bytes - REASONING_BYTES_MAX : 0;
    for (size_t i = first; i < prompt.bytes; i++) {
        if (begins_reasoning(from_slice(prompt, i))) {
            return (struct slice){prompt.text, i};
        }
    }
    return prompt;
}

/* How many bytes at the begin of a text are `part`, but for white space that differs inside of it; 0 where they are not
 * that. */
static size_t match_loosely(struct slice slice, struct slice part) {
    const size_t inside = (size_t)(trim(part).text - part.text) + trim(part).bytes;
    const struct slice tail = from_slice(part, inside);
    size_t at = 0;
    for (size_t i = 0; i < inside; i++) {
        if (is_space(part.text[i])) {
            continue;
        }
        while (i > 0 && at < slice.bytes && is_space(slice.text[at])) {
            at++;
        }
        if (at == slice.bytes || slice.text[at++] != part.text[i]) {
            return 0;
        }
    }
    return begins_with(from_slice(slice, at), tail) ? at + tail.bytes : 0;
}

/* Where the first or the last occurrence of `part` ends; 0 without one. White space may differ if that is the only way,
 * because some templates write it before a prompt alone. */
static size_t end_of_part(struct slice slice, struct slice part, bool takes_last) {
    const char *const exact = takes_last ? find_last(slice, part)
                                         : memmem(slice.text, slice.bytes, part.text, part.bytes);
    size_t end = exact != NULL ? (size_t)(exact - slice.text) + part.bytes : 0;
    for (size_t i = 0; exact == NULL && i < slice.bytes && (end == 0 || takes_last); i++) {
        const size_t bytes = slice.text[i] == part.text[0] ? match_loosely(from_slice(slice, i), part) : 0;
        end = bytes > 0 ? i + bytes : end;
    }
    return end;
}

/* Finds the end of the prompt in a text that has other words before: what the prompt has from the message before on,
 * the first time behind the turn before. */
static bool find_prompt(const struct search *search, struct slice prompt, size_t index, struct place *place) {
    const char *const content = find_last(prompt, content_of(json_array_get(search->messages, index - 1)));
    if (content == NULL) {
        return false;
    }
    const struct slice part = {content, (size_t)(prompt.text + prompt.bytes - content)};
    const bool follows_turn = is_assistant(json_array_get(search->messages, index - 1));
    const size_t behind = follows_turn ? search->earlier_begin : search->earlier_end;
    const size_t end = end_of_part(from(&search->whole, behind), part, false);
    place->begin = behind + end;
    place->begin_up_to = end_of_part(from(&place->up_to, 0), part, true);
    return end > 0 && place->begin_up_to > 0;
}

/* Moves the begin behind what the text has of the reasoning that the prompt opens. */
static void skip_reasoning(const struct search *search, struct slice reasoning, struct place *place) {
    const struct slice whole = from(&search->whole, place->begin);
    const struct slice up_to = from(&place->up_to, place->begin_up_to);
    const size_t common = without_open_tag((struct slice){whole.text, common_bytes(whole, reasoning)});
    const size_t bytes = begins_with(whole, reasoning) ? reasoning.bytes : common;
    const size_t shared = common_bytes(up_to, (struct slice){whole.text, bytes});
    if (shared == bytes || begins_with(whole, reasoning)) { /* a last message may have its own */
        place->begin += bytes;
        place->begin_up_to += shared == bytes ? bytes : without_open_tag((struct slice){whole.text, shared});
    }
}

static bool find_begin(const struct search *search, struct slice prompt, size_t index, struct place *place) {
    const struct slice whole = from(&search->whole, 0), up_to = from(&place->up_to, 0);
    const size_t common = without_open_tag((struct slice){prompt.text, common_bytes(prompt, whole)});
    const size_t shared = begins_with(whole, prompt) ? prompt.bytes : common;
    const struct slice rest = trim(from_slice(prompt, shared));
    if (shared >= search->earlier_end && (rest.bytes == 0 || begins_reasoning(rest)) &&
        begins_with(up_to, (struct slice){prompt.text, shared})) {
        place->begin = place->begin_up_to = shared;
        return true;
    }
    const struct slice shorter = without_reasoning(prompt);
    if (find_prompt(search, prompt, index, place)) {
        return true;
    }
    if (!find_prompt(search, shorter, index, place)) {
        return false;
    }
    skip_reasoning(search, from_slice(prompt, shorter.bytes), place);
    return true;
}

/* A conversation that begins with the assistant has no prompt before it. What the template adds behind the message as a
 * prompt for generation must stand right before the message too. */
static enum ox_status find_first_begin(const struct search *search, struct place *place, bool *found) {
    const struct slice whole = from(&search->whole, 0), up_to = from(&place->up_to, 0);
    struct ox_jinja_output next;
    const enum ox_status status = render_first(search, 1, NULL, true, &next);
    *found = false;
    if (status == OX_OK) {
        const struct slice all = from(&next, 0);
        const size_t shared = without_open_tag((struct slice){all.text, common_bytes(all, up_to)});
        const struct slice added = from_slice(all, shared), prompt = without_reasoning(added);
        const char *const at = prompt.bytes > 0 ? memmem(whole.text, whole.bytes, prompt.text, prompt.bytes) : NULL;
        const size_t begin = at != NULL ? (size_t)(at - whole.text) + prompt.bytes : 0;
        const struct slice turn = trim(from_slice(whole, begin));
        *found = at != NULL && begin <= up_to.bytes && begins_with(whole, (struct slice){up_to.text, begin}) &&
                 (begins_with(turn, answer_of(place->message)) || begins_reasoning(turn));
        place->begin = place->begin_up_to = begin;
        if (*found) {
            skip_reasoning(search, from_slice(added, prompt.bytes), place);
        }
    }
    ox_jinja_output_free(&next);
    return status == OX_E_CONFIG ? OX_OK : status;
}

/* ---- where a turn ends ----------------------------------------------------------------------------------------- */

/* Sets the end to that of the last end token that the whole text has in common with `other` behind the answer. Without
 * one, the turn ends with its answer, unless other words follow it. */
static bool end_with_tag(const struct search *search, struct slice other, bool needs_tag, struct place *place) {
    const struct slice whole = from(&search->whole, place->begin), answer = answer_of(place->message);
    const struct slice common = {whole.text, without_open_tag((struct slice){whole.text, common_bytes(whole, other)})};
    const char *const last = find_last(common, answer);
    size_t answer_end = last != NULL ? (size_t)(last - common.text) + answer.bytes : 0;
    const bool is_end = trim(from_slice(common, answer_end)).bytes == 0;
    size_t tag_end = end_of_end_tag(from_slice(common, answer_end));
    if (last != NULL && tag_end == 0 && !is_end) { /* an answer may also be a part of the end token's name */
        const char *const first = memmem(common.text, common.bytes, answer.text, answer.bytes);
        answer_end = (size_t)(first - common.text) + answer.bytes;
        tag_end = end_of_end_tag(from_slice(common, answer_end));
    }
    if ((answer.bytes > 0 && last == NULL) || (tag_end == 0 && (needs_tag || !is_end))) {
        return false;
    }
    place->end = place->begin + answer_end + tag_end;
    return true;
}

/* Whether `turn`, which the whole text has at the place, may be the assistant's: with its answer, if it has one. */
static bool is_turn(const struct place *place, struct slice turn, bool is_all) {
    const struct slice answer = answer_of(place->message);
    const bool is_blank = trim(turn).bytes == 0;
    return answer.bytes == 0 ? is_all || !is_blank : !is_blank && (is_all || find_last(turn, answer) != NULL);
}

/* Whether the whole text goes on with the turn as the template writes it when nothing follows: with all of it, or with
 * what remains where the template drops a part, at its beginning or behind `kept` bytes. */
static bool match_turn(const struct search *search, size_t kept, struct place *place) {
    const struct slice whole = from(&search->whole, place->begin + kept);
    for (size_t begin = place->begin_up_to + kept; begin <= place->up_to.text_bytes; begin++) {
        const struct slice turn = from(&place->up_to, begin);
        if (begins_with(whole, turn)) {
            place->end = place->begin + kept + turn.bytes;
            return is_turn(place, turn, begin == place->begin_up_to + kept);
        }
    }
    return false;
}

static bool ends_in_answer(const struct search *search, const struct place *place) {
    const struct slice turn = trim((struct slice){search->whole.text + place->begin, place->end - place->begin});
    const struct slice answer = answer_of(place->message);
    return turn.bytes >= answer.bytes && (answer.bytes > 0 || turn.bytes == 0) &&
           memcmp(turn.text + turn.bytes - answer.bytes, answer.text, answer.bytes) == 0;
}

/* Some templates write the end token of a turn only where something follows. */
static enum ox_status extend_to_tag(const struct search *search, size_t index, struct place *place) {
    struct ox_jinja_output next;
    const enum ox_status status = render_first(search, index + 1, NULL, true, &next);
    if (status == OX_OK && begins_with(from(&next, 0), from(&place->up_to, 0))) {
        const struct slice rest = from(&search->whole, place->end);
        const size_t bytes = common_bytes(rest, from(&next, place->up_to.text_bytes));
        place->end += end_of_end_tag((struct slice){rest.text, bytes});
    }
    ox_jinja_output_free(&next);
    return status == OX_E_CONFIG ? OX_OK : status;
}

/* The last turn ends before what the template writes behind every conversation. With a prompt for generation, or with a
 * further message where the template ignores prompts, the text goes on differently there. */
static enum ox_status cut_last(const struct search *search, struct place *place) {
    struct ox_jinja_output other;
    const struct slice whole = from(&search->whole, 0);
    enum ox_status status = render_first(search, search->message_count, NULL, true, &other);
    if (status == OX_OK && other.text_bytes == whole.bytes && begins_with(from(&other, 0), whole)) {
        json_t *const more = json_pack("{s:s, s:s}", "role", "user", "content", "?");
        ox_jinja_output_free(&other);
        status = more != NULL ? render_first(search, search->message_count, more, false, &other) : no_memory();
        json_decref(more);
    }
    if (status == OX_OK && other.text_bytes >= place->begin && !begins_with(from(&other, 0), whole) &&
        begins_with(from(&other, 0), (struct slice){whole.text, place->begin})) {
        (void)end_with_tag(search, from(&other, place->begin), true, place);
    }
    ox_jinja_output_free(&other);
    return status == OX_E_CONFIG ? OX_OK : status;
}

/* The end of the turn without the white space after its end token, if it has one. */
static size_t trimmed_end(const struct search *search, const struct place *place) {
    size_t end = place->end;
    while (end > place->begin && is_space(search->whole.text[end - 1])) {
        end--;
    }
    return ends_in_answer(search, place) ? place->end : end;
}

static enum ox_status find_end(struct search *search, size_t index, bool *found, struct place *place) {
    const bool is_last = index + 1 == search->message_count;
    enum ox_status status = OX_OK;
    const size_t kept = common_bytes(from(&search->whole, place->begin), from(&place->up_to, place->begin_up_to));
    *found = match_turn(search, 0, place) || match_turn(search, kept, place);
    search->adds_nothing |= *found && !is_last && is_by(json_array_get(search->messages, index + 1), "user");
    if (!*found) {
        *found = end_with_tag(search, from(&place->up_to, place->begin_up_to), false, place);
    } else if (is_last && !search->adds_nothing) {
        status = cut_last(search, place);
    } else if (!is_last && ends_in_answer(search, place)) {
        status = extend_to_tag(search, index, place);
    }
    return status;
}

/* ---- turns ----------------------------------------------------------------------------------------------------- */

static enum ox_status find_turn(struct search *search, size_t index, struct ox_template_turn *out) {
    const bool is_last = index + 1 == search->message_count;
    struct place place = {.message = json_array_get(search->messages, index), .up_to = search->whole};
    struct ox_jinja_output before = {0};
    bool found = false;
    enum ox_status status = is_last ? OX_OK : render_first(search, index + 1, NULL, false, &place.up_to);
    if (status == OX_OK && index > 0) {
        status = render_first(search, index, NULL, true, &before);
        found = status == OX_OK && find_begin(search, from(&before, 0), index, &place);
    } else if (status == OX_OK) {
        status = find_first_begin(search, &place, &found);
    }
    if (status == OX_OK && found) {
        status = find_end(search, index, &found, &place);
    }
    if (status == OX_E_CONFIG) {
        status = ox_fail_in(status, "message %zu: the chat template refuses the messages up to it alone", index + 1);
    } else if (status == OX_OK && !found) {
        status = ox_fail(OX_E_CONFIG,
                         "message %zu: the chat template does not show where this assistant turn is: what it writes "
                         "%s; a template with {%% generation %%} says it",
                         index + 1, index > 0 ? "depends on what follows" : "before a first message is no prompt");
    }
    if (status == OX_OK) {
        *out = (struct ox_template_turn){index, place.begin, trimmed_end(search, &place)};
        search->earlier_begin = place.begin;
        search->earlier_end = place.end;
    }
    ox_jinja_output_free(&before);
    if (!is_last) {
        ox_jinja_output_free(&place.up_to);
    }
    return status;
}

static enum ox_status take_spans(struct ox_template_turns *out) {
    for (size_t i = 0; i < out->output.span_count; i++) {
        if (out->output.spans[i].is_nested) {
            return ox_fail(OX_E_CONFIG, "the chat template has {%% generation %%} inside a macro or a captured block, "
                                        "so that its place is not known");
        }
        out->turns[out->count++] = (struct ox_template_turn){.message_idx = i,
                                                             .begin_byte = out->output.spans[i].begin_byte,
                                                             .end_byte = out->output.spans[i].end_byte};
    }
    return OX_OK;
}

/* Renders the conversation and makes room for its turns. */
static enum ox_status begin_search(struct search *search, struct ox_template_turns *out) {
    search->messages = json_object_get(search->conversation, "messages");
    search->message_count = json_array_size(search->messages);
    *out = (struct ox_template_turns){0};
    enum ox_status status = render_first(search, search->message_count, NULL, false, &out->output);
    if (status != OX_OK) {
        return status;
    }
    search->whole = out->output;
    out->turns = calloc(search->message_count + out->output.span_count, sizeof *out->turns);
    return out->turns != NULL ? OX_OK : no_memory();
}

static enum ox_status search_turns(struct search *search, struct ox_template_turns *out) {
    enum ox_status status = OX_OK;
    for (size_t i = 0; status == OX_OK && i < search->message_count; i++) {
        if (is_assistant(json_array_get(search->messages, i))) {
            const size_t earlier = search->earlier_end;
            status = find_turn(search, i, &out->turns[out->count]);
            if (status == OX_OK && out->turns[out->count].begin_byte < earlier) {
                status = ox_fail(OX_E_CONFIG, "message %zu: the assistant's turn begins inside the one before", i + 1);
            }
            out->count++;
        }
    }
    return status;
}

/* ---- contents that the template writes too --------------------------------------------------------------------- */

/* A content such as ">" or "INST" is also a part of tags, so that looking for it does not tell a place. The turns are
 * then found in the text of a conversation with a stand-in for each such content: three private-use characters, of
 * which the middle one has the message's number. */
enum { STAND_IN_BYTES = 12, STOOD_FOR_BYTES_MAX = 64, STAND_IN_MESSAGES_MAX = 0x8000, COUNTED_MESSAGES_MAX = 64 };
static const char mark[] = "\xf4\x8f\xbf\xbb"; /* U+10FFFB */

static struct slice said_in(const json_t *message) {
    return is_assistant(message) ? answer_of(message) : content_of(message);
}

static size_t count_in(struct slice slice, struct slice part) {
    const char *const end = slice.text + slice.bytes;
    size_t count = 0;
    for (const char *at = slice.text; (at = memmem(at, (size_t)(end - at), part.text, part.bytes)) != NULL; at++) {
        count++;
    }
    return count;
}

/* Whether the text has what a message says more often than the messages have. Among many messages they are not counted,
 * because one more rendering of them takes less time. */
static bool is_written(const struct search *search, struct slice said) {
    size_t count = 0;
    if (said.bytes == 0 || said.bytes > STOOD_FOR_BYTES_MAX) {
        return false;
    }
    for (size_t i = 0; search->message_count <= COUNTED_MESSAGES_MAX && i < search->message_count; i++) {
        count += count_in(content_of(json_array_get(search->messages, i)), said);
    }
    return search->message_count > COUNTED_MESSAGES_MAX || count_in(from(&search->whole, 0), said) > count;
}

/* A copy of the message that says message `idx`'s stand-in in place of `said`. NULL without memory. */
static json_t *with_stand_in(const json_t *message, struct slice said, size_t idx) {
    json_t *const out = json_deep_copy(message);
    json_t *const content = json_object_get(out, "content");
    json_t *const part = json_array_get(content, json_array_size(content) - 1);
    const json_t *const given = json_object_get(message, "content");
    const json_t *const given_part = json_array_get(given, json_array_size(given) - 1);
    const json_t *const text = json_is_array(given) ? json_object_get(given_part, "text") : given;
    const size_t lead = (size_t)(said.text - json_string_value(text));
    char *const joined = out != NULL ? malloc(json_string_length(text) + STAND_IN_BYTES) : NULL;
    if (joined == NULL) {
        json_decref(out);
        return NULL;
    }
    const char number[] = {(char)0xf4, (char)(0x80 | idx >> 12), (char)(0x80 | (idx >> 6 & 0x3f)),
                           (char)(0x80 | (idx & 0x3f))};
    const size_t behind = json_string_length(text) - lead - said.bytes;
    memcpy(joined, json_string_value(text), lead);
    memcpy(joined + lead, mark, sizeof number);
    memcpy(joined + lead + sizeof number, number, sizeof number);
    memcpy(joined + lead + 2 * sizeof number, mark, sizeof number);
    memcpy(joined + lead + STAND_IN_BYTES, said.text + said.bytes, behind);
    json_t *const value = json_stringn(joined, lead + STAND_IN_BYTES + behind);
    free(joined);
    if (json_object_set_new(json_is_array(given) ? part : out, json_is_array(given) ? "text" : "content", value) != 0) {
        json_decref(out);
        return NULL;
    }
    return out;
}

/* Makes the conversation with stand-ins; *out is NULL where none is needed, else the caller's. */
static enum ox_status put_stand_ins(const struct search *search, json_t **out) {
    const bool is_free = memmem(search->whole.text, search->whole.text_bytes, mark, sizeof mark - 1) == NULL;
    const bool may = is_free && search->message_count <= STAND_IN_MESSAGES_MAX;
    json_t *messages = NULL;
    *out = NULL;
    for (size_t i = 0; may && i < search->message_count; i++) {
        const json_t *const message = json_array_get(search->messages, i);
        const struct slice said = said_in(message);
        if (!is_written(search, said)) {
            continue;
        }
        messages = messages != NULL ? messages : json_copy((json_t *)search->messages);
        if (json_array_set_new(messages, i, with_stand_in(message, said, i)) != 0) {
            json_decref(messages);
            return no_memory();
        }
    }
    if (messages != NULL) {
        *out = json_copy((json_t *)search->conversation);
        if (json_object_set_new(*out, "messages", messages) != 0) {
            json_decref(*out);
            *out = NULL;
            return no_memory();
        }
    }
    return OX_OK;
}

static size_t *border(struct ox_template_turns *turns, size_t number) {
    struct ox_template_turn *const turn = &turns->turns[number / 2];
    return number % 2 == 0 ? &turn->begin_byte : &turn->end_byte;
}

/* Takes over the turns of a text with stand-ins; false where the text is another than that of the conversation, because
 * the template looks at what is said. */
static bool take_turns(const struct search *search, struct ox_template_turns *other, struct ox_template_turns *out) {
    const struct slice text = from(&other->output, 0);
    size_t at = 0, number = 0;
    memcpy(out->turns, other->turns, other->count * sizeof *out->turns);
    for (size_t i = 0, step = 1; i <= text.bytes; i += step) {
        while (number < 2 * other->count && *border(other, number) == i) {
            *border(out, number++) = at;
        }
        struct slice next = {text.text + i, i < text.bytes};
        step = 1;
        if (i + STAND_IN_BYTES <= text.bytes && memcmp(text.text + i, mark, sizeof mark - 1) == 0) {
            const unsigned char *const code = (const unsigned char *)text.text + i + sizeof mark - 1;
            const size_t idx = (code[1] & 0x3fU) << 12 | (code[2] & 0x3fU) << 6 | (code[3] & 0x3fU);
            next = said_in(json_array_get(search->messages, idx));
            step = STAND_IN_BYTES;
        }
        if (!begins_with(from(&search->whole, at), next)) {
            return false;
        }
        at += next.bytes;
    }
    out->count = other->count;
    return at == search->whole.text_bytes && number == 2 * other->count;
}

/* Searches in a text with stand-ins; *done where that gave the turns of the conversation. */
static enum ox_status search_stood_in(const struct search *search, struct ox_template_turns *out, bool *done) {
    struct ox_template_turns other = {0};
    struct search inner = {.chat_template = search->chat_template, .now = search->now, .work = search->work};
    json_t *row = NULL;
    *done = false;
    enum ox_status status = put_stand_ins(search, &row);
    if (status != OX_OK || row == NULL) {
        return status;
    }
    inner.conversation = row;
    status = begin_search(&inner, &other);
    OX_THEN(status, search_turns(&inner, &other));
    *done = status == OX_OK && take_turns(search, &other, out);
    ox_template_turns_free(&other);
    json_decref(row);
    return status == OX_E_CONFIG ? OX_OK : status;
}

enum ox_status ox_template_search_turns(const struct ox_template *chat_template, const json_t *conversation,
                                        const struct tm *now, struct ox_template_turns *out) {
    uint64_t work = 0;
    struct search search = {.chat_template = chat_template, .conversation = conversation, .now = now, .work = &work};
    bool done = false;
    enum ox_status status = begin_search(&search, out);
    if (status == OX_OK && ox_template_marks_generation(chat_template, conversation)) {
        return take_spans(out);
    }
    OX_THEN(status, search_stood_in(&search, out, &done));
    OX_THEN(status, done ? OX_OK : search_turns(&search, out));
    out->rendered_messages = work;
    return status;
}

json_t *ox_template_other_content(const json_t *message) {
    static const char text[] = "\xf4\x8f\xbf\xbb\xf4\x8f\xbf\xba";
    json_t *const out = json_copy((json_t *)message);
    json_t *const content = json_is_array(json_object_get(message, "content"))
                                ? json_pack("[{s:s,s:s}]", "type", "text", "text", text)
                                : json_string(text);
    if (json_object_set_new(out, "content", content) != 0) {
        json_decref(out);
        return NULL;
    }
    return out;
}

enum ox_status ox_template_find_content(const struct ox_template *chat_template, const json_t *conversation,
                                        const struct tm *now, const struct ox_jinja_output *whole,
                                        size_t message_idx, struct ox_template_turn *out) {
    json_t *const messages = json_copy(json_object_get(conversation, "messages"));
    json_t *const row = json_copy((json_t *)conversation);
    json_t *const other = ox_template_other_content(json_array_get(messages, message_idx));
    const struct search search = {.chat_template = chat_template,
                                  .conversation = row,
                                  .messages = messages,
                                  .now = now,
                                  .work = &(uint64_t){0}};
    struct ox_jinja_output output = {0};
    *out = (struct ox_template_turn){.message_idx = message_idx};
    enum ox_status status = row != NULL && json_array_set_new(messages, message_idx, other) == 0 ? OX_OK : no_memory();
    OX_THEN(status, render_first(&search, json_array_size(messages), NULL, false, &output));
    if (status == OX_OK) {
        const size_t shorter = output.text_bytes < whole->text_bytes ? output.text_bytes : whole->text_bytes;
        size_t behind = 0;
        out->begin_byte = common_bytes(from(whole, 0), from(&output, 0));
        while (behind < shorter - out->begin_byte &&
               whole->text[whole->text_bytes - behind - 1] == output.text[output.text_bytes - behind - 1]) {
            behind++;
        }
        out->end_byte = whole->text_bytes - behind;
    } else if (status == OX_E_CONFIG) {
        status = ox_fail_in(status, "message %zu: its weight is 0, and the chat template refuses another text in its "
                                    "place, by which it is found", message_idx + 1);
    }
    ox_jinja_output_free(&output);
    json_decref(messages);
    json_decref(row);
    return status;
}

void ox_template_turns_free(struct ox_template_turns *turns) {
    ox_jinja_output_free(&turns->output);
    free(turns->turns);
    *turns = (struct ox_template_turns){0};
}
