/* Rows of preferences, read and encoded as TRL's DPOTrainer does it (_prepare_dataset in dpo_trainer.py): the two
 * sequences of a pair share the ids of their prompt, and all behind them is trained. */
#include "engine/text/chat_internal.h"
#include "engine/text/chat_rows_internal.h"
#include "engine/text/text.h"

#include <stdlib.h>
#include <string.h>

static const char key_chosen[] = "chosen", key_rejected[] = "rejected", key_prompt[] = "prompt";

/* The row being read, with its parts once they are found. */
struct reader {
    const char *where;
    const json_t *row;
    struct ox_chat_columns columns; /* none that tells the form of a row */
    const char *prompt_key;
    const json_t *chosen, *rejected; /* as the row has them */
    json_t *prompt, *answers[2];     /* owned */
};

static enum ox_status no_memory(const struct reader *reader) {
    return ox_fail(OX_E_NOMEM, "%s: no memory for a preference", reader->where);
}

static const char *name_or(const struct ox_chat_columns *columns, enum ox_chat_column column, const char *usual) {
    const char *const name = columns != NULL ? columns->names[column] : NULL;
    return name != NULL && name[0] != '\0' ? name : usual;
}

/* ---- the prompt ---------------------------------------------------------------------------------------------- */

/* What two texts begin with, without the space at its end; TRL leaves at least the last character to the answers. */
static size_t common_text(const char *a, const char *b) {
    size_t count = 0;
    while (a[count] != '\0' && a[count] == b[count]) {
        count++;
    }
    const bool ends = a[count] == '\0' || b[count] == '\0';
    while (count > 0 && (a[count] & 0xc0) == 0x80) { /* within a character */
        count--;
    }
    if (count > 0 && ends) {
        count = ox_utf8_back(a, count);
    } else if (count > 0 && a[count - 1] == ' ') {
        count--;
    }
    return count;
}

static size_t common_messages(const json_t *a, const json_t *b) {
    const size_t least = json_array_size(a) < json_array_size(b) ? json_array_size(a) : json_array_size(b);
    size_t count = 0;
    while (count < least && json_equal(json_array_get(a, count), json_array_get(b, count))) {
        count++;
    }
    return count > 0 && count == least ? count - 1 : count;
}

/* The messages [first, end) of a list; the caller owns it. */
static json_t *part_of(const json_t *list, size_t first, size_t end) {
    json_t *const part = json_array();
    bool good = part != NULL;
    for (size_t i = first; i < end && good; i++) {
        good = json_array_append(part, json_array_get(list, i)) == 0;
    }
    if (!good) {
        json_decref(part);
        return NULL;
    }
    return part;
}

/* Takes what both answers begin with for the prompt. */
static enum ox_status find_common(struct reader *reader) {
    const json_t *const sides[] = {reader->chosen, reader->rejected};
    if (json_is_string(reader->chosen)) {
        const size_t count = common_text(json_string_value(sides[0]), json_string_value(sides[1]));
        reader->prompt = json_stringn(json_string_value(sides[0]), count);
        for (int i = 0; i < 2; i++) {
            reader->answers[i] = json_string(json_string_value(sides[i]) + count);
        }
        return OX_OK;
    }
    const size_t count = common_messages(sides[0], sides[1]);
    reader->prompt = part_of(sides[0], 0, count);
    for (int i = 0; i < 2; i++) {
        reader->answers[i] = part_of(sides[i], count, json_array_size(sides[i]));
    }
    return count > 0 ? OX_OK
                     : ox_fail(OX_E_CONFIG, "%s: \"chosen\" and \"rejected\" begin with different messages, so there "
                               "is no prompt; give it as \"prompt\"", reader->where);
}

/* A prompt that is a text beside lists of messages: the user's message, where the lists have answers alone. */
static enum ox_status add_user(struct reader *reader) {
    const json_t *const first = json_array_get(reader->chosen, 0);
    const bool from = json_object_get(first, "role") == NULL && json_object_get(first, "from") != NULL;
    const char *const role = name_or(&reader->columns, OX_COLUMN_ROLE, from ? "from" : "role");
    const char *const content = name_or(&reader->columns, OX_COLUMN_CONTENT, from ? "value" : "content");
    const char *const name = json_string_value(json_object_get(first, role));
    const json_t *const text = json_object_get(reader->row, reader->prompt_key);
    if (name != NULL && (strcmp(name, "assistant") == 0 || strcmp(name, "gpt") == 0)) {
        reader->prompt = json_pack("[{s:s,s:O}]", role, "user", content, text);
        reader->answers[0] = json_deep_copy(reader->chosen);
        reader->answers[1] = json_deep_copy(reader->rejected);
        return OX_OK;
    }
    OX_TRY(find_common(reader));
    bool repeats = false;
    for (size_t i = 0; i < json_array_size(reader->prompt); i++) {
        repeats = repeats || json_equal(json_object_get(json_array_get(reader->prompt, i), content), text);
    }
    return repeats ? OX_OK
                   : ox_fail(OX_E_CONFIG, "%s: \"%s\" is a text that no message of \"chosen\" repeats, which begins "
                             "with messages of its own; make it a list of messages, or remove it", reader->where,
                             reader->prompt_key);
}

static enum ox_status find_prompt(struct reader *reader) {
    const json_t *const prompt = json_object_get(reader->row, reader->prompt_key);
    const bool lists = json_is_array(reader->chosen);
    if (prompt == NULL || json_is_null(prompt)) {
        return find_common(reader);
    }
    if (lists && json_is_string(prompt)) {
        return add_user(reader);
    }
    if (lists ? !json_is_array(prompt) : !json_is_string(prompt)) {
        return ox_row_fail_value(reader->where, reader->prompt_key, lists ? "a list of messages, as the answers are"
                                                                          : "a text, as the answers are", prompt);
    }
    reader->prompt = json_deep_copy(prompt);
    reader->answers[0] = json_deep_copy(reader->chosen);
    reader->answers[1] = json_deep_copy(reader->rejected);
    return OX_OK;
}

/* ---- the row ------------------------------------------------------------------------------------------------- */

static enum ox_status find_answers(struct reader *reader) {
    const char *const keys[] = {key_chosen, key_rejected};
    const json_t **const given[] = {&reader->chosen, &reader->rejected};
    for (int i = 0; i < 2; i++) {
        const json_t *const side = json_object_get(reader->row, keys[i]);
        if (side == NULL || json_is_null(side)) {
            return ox_fail(OX_E_CONFIG, "%s: \"%s\" is %s; --dpo trains on rows of \"chosen\" and \"rejected\"",
                           reader->where, keys[i], side == NULL ? "missing" : "null");
        }
        if (!json_is_string(side) && json_array_size(side) == 0) {
            return ox_row_fail_value(reader->where, keys[i], "a text or a list of at least one message", side);
        }
        *given[i] = side;
    }
    if (json_is_string(reader->chosen) != json_is_string(reader->rejected)) {
        return ox_row_fail_value(reader->where, key_rejected, json_is_string(reader->chosen)
                                     ? "a text, as \"chosen\" is" : "a list of messages, as \"chosen\" is",
                                 reader->rejected);
    }
    return OX_OK;
}

/* Refuses what the row says of itself and what is no text, beside its answers. */
static enum ox_status check_rest(struct reader *reader) {
    json_t *const rest = json_copy((json_t *)reader->row);
    if (rest == NULL) {
        return no_memory(reader);
    }
    json_object_del(rest, key_chosen);
    json_object_del(rest, key_rejected);
    enum ox_status status = ox_row_check_marks(reader->where, rest, &reader->columns);
    OX_THEN(status, ox_row_check_media(reader->where, rest));
    json_decref(rest);
    return status;
}

/* Reads the prompt with one answer as a row of two columns, so that errors name the row's own keys. */
static enum ox_status read_answer(struct reader *reader, int which, struct ox_chat *out) {
    static const char *const taken[] = {"documents", "chat_template_kwargs", "tools"};
    const char *const key = which == 0 ? key_chosen : key_rejected;
    const char *const tools = name_or(&reader->columns, OX_COLUMN_TOOLS, "tools");
    struct ox_chat_columns columns = reader->columns;
    columns.names[OX_COLUMN_PROMPT] = reader->prompt_key;
    columns.names[OX_COLUMN_COMPLETION] = key;
    json_t *const side = json_pack("{s:O,s:O}", reader->prompt_key, reader->prompt, key, reader->answers[which]);
    bool good = side != NULL;
    for (size_t i = 0; i < sizeof taken / sizeof *taken && good; i++) {
        const char *const name = strcmp(taken[i], "tools") == 0 ? tools : taken[i];
        json_t *const value = json_object_get(reader->row, name);
        good = value == NULL || json_object_set(side, name, value) == 0;
    }
    const enum ox_status status = good ? ox_chat_read(reader->where, side, &columns, out) : no_memory(reader);
    json_decref(side);
    return status;
}

/* All that follows the prompt is trained; a weight of 0 would have no meaning. */
static enum ox_status level_parts(const struct reader *reader, struct ox_chat *chat, size_t first, const char *key) {
    for (size_t i = 0; i < ox_chat_message_count(chat); i++) {
        if (i >= first && chat->message_parts[i] == OX_PART_EXCLUDED) {
            return ox_fail(OX_E_CONFIG, "%s: message %zu of \"%s\" has a weight of 0, but all of an answer counts in a "
                           "preference; leave the weight out, or move the message into \"prompt\"", reader->where,
                           i - first + 1, key);
        }
        chat->message_parts[i] = OX_PART_PROMPT;
    }
    return OX_OK;
}

static enum ox_status read_row(struct reader *reader, struct ox_chat_pair *out) {
    if (!json_is_object(reader->row)) {
        char excerpt[OX_JSON_EXCERPT_BYTES];
        return ox_fail(OX_E_CONFIG, "%s: a row must be an object of \"chosen\" and \"rejected\", but is %s",
                       reader->where, ox_json_excerpt(reader->row, excerpt));
    }
    OX_TRY(find_answers(reader));
    OX_TRY(check_rest(reader));
    OX_TRY(find_prompt(reader));
    if (reader->prompt == NULL || reader->answers[0] == NULL || reader->answers[1] == NULL) {
        return no_memory(reader);
    }
    OX_TRY(read_answer(reader, 0, &out->chosen));
    OX_TRY(read_answer(reader, 1, &out->rejected));
    if (out->chosen.kind == OX_CHAT_MESSAGES) {
        out->prompt_messages = json_array_size(reader->prompt);
        OX_TRY(level_parts(reader, &out->chosen, out->prompt_messages, key_chosen));
        OX_TRY(level_parts(reader, &out->rejected, out->prompt_messages, key_rejected));
    }
    return OX_OK;
}

void ox_chat_pair_free(struct ox_chat_pair *pair) {
    ox_chat_free(&pair->chosen);
    ox_chat_free(&pair->rejected);
    pair->prompt_messages = 0;
}

enum ox_status ox_chat_read_pair(const char *where, const char *line, size_t bytes,
                                 const struct ox_chat_columns *columns, struct ox_chat_pair *out) {
    struct reader reader = {.where = where, .prompt_key = name_or(columns, OX_COLUMN_PROMPT, key_prompt)};
    json_t *row = NULL;
    ox_chat_pair_free(out);
    for (int i = OX_COLUMN_FORM_COUNT; i < OX_COLUMN_COUNT && columns != NULL; i++) {
        reader.columns.names[i] = columns->names[i];
    }
    enum ox_status status = ox_json_parse_line(where, line, bytes, &row);
    reader.row = row;
    OX_THEN(status, read_row(&reader, out));
    if (status != OX_OK) {
        ox_chat_pair_free(out);
    }
    json_decref(reader.prompt);
    json_decref(reader.answers[0]);
    json_decref(reader.answers[1]);
    json_decref(row);
    return status;
}

/* ---- rendering ----------------------------------------------------------------------------------------------- */

/* Appends the ids of the prompt alone: with the header of the answer, or without an EOS. */
static enum ox_status render_prompt(struct ox_chat_renderer *renderer, const char *where,
                                    const struct ox_chat_pair *pair, struct ox_ids *ids, struct ox_id_mask *marks) {
    const struct ox_chat *const chosen = &pair->chosen;
    const struct ox_chat_options before = renderer->options;
    struct ox_chat prompt = {.kind = chosen->kind, .message_parts = chosen->message_parts, .prompt = chosen->prompt,
                             .text = (char[]){""}};
    enum ox_status status = OX_OK;
    if (chosen->kind == OX_CHAT_MESSAGES) {
        const json_t *const messages = json_object_get(chosen->conversation, "messages");
        json_t *const list = part_of(messages, 0, pair->prompt_messages);
        prompt.conversation = json_copy(chosen->conversation);
        if (list == NULL || prompt.conversation == NULL ||
            json_object_set(prompt.conversation, "messages", list) != 0) {
            status = ox_fail(OX_E_NOMEM, "%s: no memory for a prompt", where);
        }
        json_decref(list);
    }
    renderer->options.generation_prompt = chosen->kind == OX_CHAT_MESSAGES;
    renderer->options.add_eos = OX_ADD_OFF;
    OX_THEN(status, ox_chat_render(renderer, where, &prompt, ids, marks));
    renderer->options = before;
    json_decref(prompt.conversation);
    return status;
}

/* How many of the prompt's ids a sequence begins with. */
static size_t common_ids(const struct ox_ids *prompt, const int32_t *ids, size_t count) {
    size_t same = 0;
    while (same < prompt->count && same < count && prompt->ids[same] == ids[same]) {
        same++;
    }
    return same;
}

/* A row that is rendered three times gives rise to a note once. */
static void note_once(struct ox_chat_renderer *renderer, const struct ox_chat_notes *before, bool equal) {
    for (int i = 0; i < OX_NOTE_COUNT; i++) {
        renderer->notes.rows[i] = before->rows[i] + (renderer->notes.rows[i] > before->rows[i]);
    }
    renderer->notes.rows[OX_NOTE_EQUAL] += equal;
}

enum ox_status ox_chat_render_pair(struct ox_chat_renderer *renderer, const char *where,
                                   const struct ox_chat_pair *pair, struct ox_ids *ids, struct ox_id_mask *trained,
                                   size_t *second) {
    const struct ox_chat_notes notes = renderer->notes;
    const enum ox_train_on train_on = renderer->options.train_on;
    const size_t first = ids->count, first_mark = trained->count;
    struct ox_ids prompt = {0};
    struct ox_id_mask marks = {0};
    renderer->options.train_on = OX_TRAIN_ON_PROMPTS; /* which needs no turns: what is trained is found below */
    enum ox_status status = render_prompt(renderer, where, pair, &prompt, &marks);
    if (status == OX_OK) { /* what is noticed of the prompt is noticed of the whole too */
        renderer->notes = notes;
        status = ox_chat_render(renderer, where, &pair->chosen, ids, trained);
    }
    *second = ids->count;
    OX_THEN(status, ox_chat_render(renderer, where, &pair->rejected, ids, trained));
    renderer->options.train_on = train_on;
    if (status == OX_OK) {
        const size_t counts[] = {*second - first, ids->count - *second};
        const size_t a = common_ids(&prompt, ids->ids + first, counts[0]);
        const size_t b = common_ids(&prompt, ids->ids + *second, counts[1]), shared = a < b ? a : b;
        for (size_t i = 0; i < counts[0] + counts[1]; i++) {
            trained->marks[first_mark + i] = (i < counts[0] ? i : i - counts[0]) >= shared;
        }
        note_once(renderer, &notes, counts[0] == counts[1] &&
                  memcmp(ids->ids + first, ids->ids + *second, counts[0] * sizeof *ids->ids) == 0);
        for (int side = 0; side < 2 && status == OX_OK; side++) {
            status = counts[side] > (shared > 0 ? shared : 1)
                         ? OX_OK : ox_fail(OX_E_CONFIG, "%s: \"%s\" has no token to be predicted behind the prompt",
                                           where, side == 0 ? key_chosen : key_rejected);
        }
    }
    if (status != OX_OK) {
        ids->count = first;
        trained->count = first_mark;
    }
    ox_ids_free(&prompt);
    ox_id_mask_free(&marks);
    return status;
}
