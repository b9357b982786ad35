/* The keys by which rows and messages say what is trained, and those that would be ignored without a word: they are
 * honoured where they can be, else refused. Behind them the advice for rows of no known form: which of their keys are a
 * question and its answer, a text, or messages, and the options that say so. */
#include "engine/text/chat_rows_internal.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- messages ------------------------------------------------------------------------------------------------ */

/* What OpenAI, TRL, axolotl, LLaMA-Factory, ms-swift and others call it. */
static const struct {
    const char *key;
    bool trains; /* what "yes" means */
} flags[] = {
    {"weight", true},       {"loss_weight", true}, {"loss", true},        {"loss_mask", true}, {"compute_loss", true},
    {"calculate_loss", true}, {"use_loss", true},  {"train", true},       {"training", true},  {"trainable", true},
    {"trained", true},      {"learn", true},       {"mask", false},       {"masked", false},   {"mask_loss", false},
    {"ignore", false},      {"ignore_loss", false}, {"skip_loss", false}, {"no_loss", false},  {"no_train", false},
    {"skip", false},        {"exclude", false},    {"excluded", false},   {"supervise", true}, {"supervised", true},
};

enum { FLAG_COUNT = sizeof flags / sizeof *flags };

/* Words that a key has only if it says what is trained. */
static const char *const flag_words[] = {"loss",   "train",  "training", "trained",  "trainable", "mask",
                                         "masked", "masks",   "weight",  "weights",  "learn",     "supervised"};

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Whether a key such as "no_loss", "lossMask" or "train-detail" has one of the words. */
static bool has_flag_word(const char *key) {
    for (const char *at = key; *at != '\0';) {
        size_t bytes = is_letter(*at);
        while (bytes > 0 && at[bytes] >= 'a' && at[bytes] <= 'z') {
            bytes++;
        }
        for (size_t i = 0; i < sizeof flag_words / sizeof *flag_words && bytes > 0; i++) {
            if (strlen(flag_words[i]) == bytes && strncasecmp(at, flag_words[i], bytes) == 0) {
                return true;
            }
        }
        at += bytes > 0 ? bytes : 1;
    }
    return false;
}

/* Reads yes or no: true and false, or 1 and 0. */
static bool read_choice(const json_t *value, bool *yes) {
    const double number = json_number_value(value);
    *yes = json_is_true(value) || number == 1.0;
    return json_is_boolean(value) || (json_is_number(value) && (number == 0.0 || number == 1.0));
}

static enum ox_status check_unknown(const char *where, const json_t *message) {
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)message, key, value) {
        if (has_flag_word(key) && !ox_row_is_empty(value)) {
            return ox_fail(OX_E_CONFIG,
                           "%s: \"%s\" seems to say what is trained, but is not known and would be ignored; say it "
                           "with \"weight\", \"loss\" or \"train\" of the whole message, or remove the key",
                           where, key);
        }
    }
    return OX_OK;
}

enum ox_status ox_row_read_trained(const char *where, json_t *message, enum ox_chat_part *part) {
    const bool is_answer = *part == OX_PART_ANSWER;
    const char *said = NULL;
    bool trains = true;
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        const json_t *const value = json_object_get(message, flags[i].key);
        const bool is_number = json_is_number(value);
        bool yes = false;
        if (value == NULL || json_is_null(value)) {
            continue;
        }
        if (!read_choice(value, &yes)) {
            return ox_row_fail_value(where, flags[i].key, is_number ? "0 or 1" : "true, false, 0 or 1", value);
        }
        if (yes == flags[i].trains && !is_answer) {
            return ox_fail(OX_E_CONFIG,
                           "%s: \"%s\" is %s, but only messages of the assistant can be trained; set it to %s", where,
                           flags[i].key, is_number ? yes ? "1" : "0" : yes ? "true" : "false",
                           is_number ? yes ? "0" : "1" : yes ? "false" : "true");
        }
        if (said != NULL && trains != (yes == flags[i].trains)) {
            return ox_fail(OX_E_CONFIG, "%s: \"%s\" and \"%s\" contradict each other; remove one", where, said,
                           flags[i].key);
        }
        said = flags[i].key;
        trains = yes == flags[i].trains;
        *part = trains ? *part : OX_PART_EXCLUDED;
    }
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        json_object_del(message, flags[i].key);
    }
    return check_unknown(where, message);
}

/* ---- pictures ------------------------------------------------------------------------------------------------ */

enum ox_status ox_row_check_media(const char *where, const json_t *object) {
    static const char *const keys[] = {
        "images", "image", "image_url", "image_urls", "image_path", "image_paths", "pictures", "pixel_values", "videos",
        "video", "video_url", "video_path", "video_paths", "audios", "audio", "audio_url", "audio_path", "audio_paths",
        "media", "attachments", "attachment", "files", "img", "imgs", "photo", "photos", "picture"};
    char excerpt[OX_JSON_EXCERPT_BYTES];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *const value = json_object_get(object, keys[i]);
        if (!ox_row_is_empty(value) && (json_is_string(value) || json_is_array(value) || json_is_object(value))) {
            return ox_fail(OX_E_CONFIG,
                           "%s: \"%s\" is %s, but only text is trained; leave such rows out, or remove the key where "
                           "the text stands without it (jq -c 'del(.%s)')",
                           where, keys[i], ox_json_excerpt(value, excerpt), keys[i]);
        }
    }
    return OX_OK;
}

/* ---- bad examples -------------------------------------------------------------------------------------------- */

/* A row is a bad example if the key is false, or true. */
static const struct {
    const char *key;
    bool bad;
} marks[] = {
    {"label", false},       {"kto_tag", false},   {"accepted", false},  {"is_accepted", false}, {"approved", false},
    {"good", false},        {"is_good", false},   {"correct", false},   {"is_correct", false},  {"preferred", false},
    {"is_preferred", false}, {"desirable", false}, {"thumbs_up", false}, {"liked", false},      {"keep", false},
    {"train", false},       {"training", false},  {"trainable", false}, {"loss", false},        {"rejected", true},
    {"is_rejected", true},  {"bad", true},        {"is_bad", true},     {"incorrect", true},    {"wrong", true},
    {"is_wrong", true},     {"negative", true},   {"is_negative", true}, {"undesirable", true}, {"discard", true},
    {"discarded", true},    {"exclude", true},    {"excluded", true},   {"ignore", true},       {"skip", true},
    {"thumbs_down", true},  {"mask", true},       {"masked", true},     {"no_train", true},
};

/* A row holds a worse answer beside the one that would be trained. */
static const char *const worse[] = {"rejected",          "rejected_response", "rejected_responses", "rejected_messages",
                                    "rejected_completion", "rejected_output", "non_preferred_output",
                                    "negative_response"};

static bool is_column(const struct ox_chat_columns *columns, const char *key) {
    bool is = false;
    for (int i = 0; i < OX_COLUMN_COUNT && columns != NULL; i++) {
        is = is || (columns->names[i] != NULL && strcmp(columns->names[i], key) == 0);
    }
    return is;
}

/* The first key by which a row or message says that it is a bad example, or NULL. 0 and 1 under "label" are classes,
 * but beside a prompt (`is_pair`) they are what true and false are. */
static const char *find_bad(const json_t *object, bool is_pair, const struct ox_chat_columns *columns) {
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const json_t *const value = json_object_get(object, marks[i].key);
        const bool is_choice = json_is_boolean(value) ||
                               (json_is_integer(value) && is_pair && strcmp(marks[i].key, "label") == 0);
        bool yes = false;
        if (is_choice && read_choice(value, &yes) && yes == marks[i].bad && !is_column(columns, marks[i].key)) {
            return marks[i].key;
        }
    }
    return NULL;
}

static enum ox_status fail_bad(const char *where, const char *key, const json_t *value) {
    char excerpt[OX_JSON_EXCERPT_BYTES], good[OX_JSON_EXCERPT_BYTES + 8];
    snprintf(good, sizeof good, "!= %s", ox_json_excerpt(value, excerpt));
    return ox_fail(OX_E_CONFIG,
                   "%s: \"%s\" is %s, which says that the row is a bad example, and it would be trained like the "
                   "others; leave such rows out (jq -c 'select(.%s %s)'), or remove the key if it means something else",
                   where, key, excerpt, key, good);
}

enum ox_status ox_row_check_answer(const char *where, const json_t *message) {
    const char *const key = find_bad(message, false, NULL);
    return key == NULL
               ? OX_OK
               : ox_fail(OX_E_CONFIG,
                         "%s: \"%s\" is %s, but the answer would be trained like the others; leave it out with "
                         "\"weight\": 0, or remove the key if it means something else",
                         where, key, json_is_true(json_object_get(message, key)) ? "true" : "false");
}

/* How to train on what was chosen. */
static const char *advice_on_chosen(const json_t *row) {
    const json_t *const chosen = json_object_get(row, "chosen"), *const prompt = json_object_get(row, "prompt");
    if (json_is_array(chosen)) {
        return json_is_array(prompt) ? "give --column-prompt prompt --column-completion chosen"
                                     : "give --column-messages chosen";
    }
    if (json_is_string(chosen)) {
        return json_is_string(prompt) ? "give --column-prompt prompt --column-completion chosen, or with the chat "
                                        "template --column-instruction prompt --column-output chosen"
                                      : "give --column-text chosen";
    }
    return "make it the last of the messages, and remove both keys";
}

static enum ox_status fail_worse(const char *where, const json_t *row, const char *key) {
    return json_object_get(row, "chosen") != NULL
               ? ox_fail(OX_E_CONFIG,
                         "%s: the row is a preference (chosen, rejected); `offload train --dpo` trains on it as one; "
                         "to train on what was chosen alone, %s", where, advice_on_chosen(row))
               : ox_fail(OX_E_CONFIG,
                         "%s: \"%s\" is a worse answer; to train on preferences, name the answers \"chosen\" and "
                         "\"rejected\" and give --dpo; to train on the better one alone, remove the key (jq -c "
                         "'del(.%s)')", where, key, key);
}

/* Words of annotators: prodigy's "answer", and what others write. */
static enum ox_status check_words(const char *where, const json_t *row) {
    static const char *const keys[] = {"status", "verdict", "quality", "decision", "answer"};
    static const char *const words[] = {"reject", "rejected", "ignore", "bad", "discard", "discarded"};
    const bool has_text = json_object_get(row, "text") != NULL;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *const value = json_object_get(row, keys[i]);
        for (size_t k = 0; k < sizeof words / sizeof *words && json_is_string(value); k++) {
            const bool may_be = has_text || strcmp(keys[i], "answer") != 0; /* else it is the answer to a question */
            if (may_be && strcasecmp(json_string_value(value), words[k]) == 0) {
                return fail_bad(where, keys[i], value);
            }
        }
    }
    return OX_OK;
}

/* What chooses among "input_ids". */
static bool is_id_mask(const char *key) {
    static const char *const keys[] = {"labels", "loss_mask", "completion_mask", "assistant_masks"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strcmp(key, keys[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* A list under a key such as "loss_mask" chooses tokens, turns or characters. */
static enum ox_status check_lists(const char *where, const json_t *row, const struct ox_chat_columns *columns) {
    const bool has_ids = !ox_row_is_empty(json_object_get(row, "input_ids")) && !ox_row_names_form(columns);
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)row, key, value) {
        /* what tokenizers write beside ids says nothing of training */
        const bool is_other = strcmp(key, "attention_mask") == 0 || strcmp(key, "special_tokens_mask") == 0 ||
                              (has_ids && is_id_mask(key));
        if (json_array_size(value) > 0 && has_flag_word(key) && !is_other && !is_column(columns, key)) {
            return ox_fail(OX_E_CONFIG,
                           "%s: \"%s\" seems to say what is trained, but is not known and would be ignored; say it "
                           "with a \"weight\" of 0 or 1 in each message, or remove the key", where, key);
        }
    }
    return OX_OK;
}

enum ox_status ox_row_check_marks(const char *where, const json_t *row, const struct ox_chat_columns *columns) {
    for (size_t i = 0; i < sizeof worse / sizeof *worse && !ox_row_names_form(columns); i++) {
        const json_t *const value = json_object_get(row, worse[i]);
        if (!ox_row_is_empty(value) && !json_is_boolean(value)) {
            return fail_worse(where, row, worse[i]);
        }
    }
    const bool is_pair = json_object_get(row, "completion") != NULL || json_object_get(row, "messages") != NULL ||
                         json_object_get(row, "conversations") != NULL;
    const char *const key = find_bad(row, is_pair, columns);
    if (key != NULL) {
        return fail_bad(where, key, json_object_get(row, key));
    }
    const json_t *const weight = json_object_get(row, "weight");
    if (json_is_number(weight) && json_number_value(weight) == 0.0) {
        return fail_bad(where, "weight", weight);
    }
    const enum ox_status status = check_words(where, row);
    return status == OX_OK ? check_lists(where, row, columns) : status;
}

const char *ox_row_opinion(const json_t *object, const struct ox_chat_columns *columns) {
    static const char *const keys[] = {"rating",  "ratings",   "thumbs",  "thumb",    "vote",     "votes",
                                       "feedback", "opinion",  "grade",   "verdict",  "quality",  "judgement",
                                       "judgment", "negative", "negatives", "reaction"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *const value = json_object_get(object, keys[i]);
        if ((json_is_string(value) || json_is_array(value) || json_is_object(value)) && !ox_row_is_empty(value) &&
            !is_column(columns, keys[i])) {
            return keys[i];
        }
    }
    return NULL;
}

/* ---- rows of no known form ------------------------------------------------------------------------------------- */

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
    if (!suggest_pair(row, advice) && text_count == 1) {
        snprintf(advice, OX_ROW_ADVICE_BYTES, "give --column-text %.40s", text);
    }
}
