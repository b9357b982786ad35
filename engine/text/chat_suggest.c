/* The advice for rows of no known form: which of their keys are a question and its answer, a text, or messages, and the
 * options that say so. */
#include "engine/text/chat_rows_internal.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* What is asked, the likelier first. A question is meant for the chat template; others are as likely to be texts. */
static const struct {
    const char *key;
    bool is_question;
} asks[] = {
    {"question", true}, {"query", true},   {"instruction", true}, {"problem", true},  {"user", true},
    {"human", true},    {"message", true}, {"request", true},     {"q", true},        {"prompt", false},
    {"input", true},    {"inputs", false}, {"source", false},     {"src", false},     {"article", false},
    {"document", false}, {"context", false},
};
static const char *const answers[] = {"answer",    "response", "output",  "outputs", "completion", "target",
                                      "targets",   "tgt",      "solution", "assistant", "bot",     "gpt",
                                      "reply",     "summary",  "highlights", "result", "generation", "chosen", "a"};
static const char *const contexts[] = {"context", "input", "passage"}, *const systems[] = {"system", "system_prompt"};

/* The key of the row that is `name` but for its case and has a text, or with `lists` a list; NULL for none. */
static const char *find_key(const json_t *row, const char *name, bool lists) {
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)row, key, value) {
        if (strcasecmp(key, name) == 0 && (lists ? json_is_array(value) : json_is_string(value))) {
            return key;
        }
    }
    return NULL;
}

static const char *find_one(const json_t *row, const char *const *names, size_t count, const char *but) {
    const char *found = NULL;
    for (size_t i = 0; i < count && found == NULL; i++) {
        found = find_key(row, names[i], false);
        found = found != NULL && strcmp(found, but) == 0 ? NULL : found;
    }
    return found;
}

static bool suggest_pair(const json_t *row, char *advice) {
    const char *ask = NULL;
    bool is_question = false;
    for (size_t i = 0; i < sizeof asks / sizeof *asks && ask == NULL; i++) {
        ask = find_key(row, asks[i].key, false);
        is_question = asks[i].is_question;
    }
    const char *const answer = ask != NULL ? find_one(row, answers, sizeof answers / sizeof *answers, ask) : NULL;
    char chat[OX_ROW_ADVICE_BYTES / 2], texts[OX_ROW_ADVICE_BYTES / 4], more[OX_ROW_ADVICE_BYTES / 6] = "";
    if (answer == NULL) {
        return false;
    }
    const char *const context = find_one(row, contexts, sizeof contexts / sizeof *contexts, ask);
    const char *const rules = find_one(row, systems, sizeof systems / sizeof *systems, ask);
    snprintf(more, sizeof more, "%s%.40s%s%.40s", context != NULL ? " --column-input " : "",
             context != NULL ? context : "", rules != NULL ? " --column-system " : "", rules != NULL ? rules : "");
    snprintf(chat, sizeof chat, "--column-instruction %.40s --column-output %.40s%s", ask, answer, more);
    snprintf(texts, sizeof texts, "--column-prompt %.40s --column-completion %.40s", ask, answer);
    if (is_question) {
        snprintf(advice, OX_ROW_ADVICE_BYTES, "give %s (a conversation, by the chat template), or %s (the texts as "
                 "they are)", chat, texts);
    } else {
        snprintf(advice, OX_ROW_ADVICE_BYTES, "give %s (the texts as they are), or %s (a conversation, by the chat "
                 "template)", texts, chat);
    }
    return true;
}

/* A list of objects that have a role and a text. */
static bool is_talk(const json_t *list) {
    const json_t *const first = json_array_get(list, 0);
    return json_object_get(first, "role") != NULL || json_object_get(first, "from") != NULL;
}

void ox_row_suggest(const json_t *row, char advice[OX_ROW_ADVICE_BYTES]) {
    const char *key = NULL, *text = NULL;
    json_t *value = NULL;
    size_t text_count = 0;
    advice[0] = '\0';
    json_object_foreach((json_t *)row, key, value) {
        if (is_talk(value) && strcmp(key, "prompt") == 0 && json_is_array(json_object_get(row, "response"))) {
            snprintf(advice, OX_ROW_ADVICE_BYTES, "give --column-completion response");
            return;
        }
        if (is_talk(value)) {
            snprintf(advice, OX_ROW_ADVICE_BYTES, "give --column-messages %.40s", key);
            return;
        }
        text = json_is_string(value) ? key : text;
        text_count += json_is_string(value);
    }
    if (find_key(row, "input_ids", true) != NULL) {
        snprintf(advice, OX_ROW_ADVICE_BYTES, "give the text in place of its token ids, or a token file");
    } else if (!suggest_pair(row, advice) && text_count == 1) {
        snprintf(advice, OX_ROW_ADVICE_BYTES, "give --column-text %.40s", text);
    }
}
