/* Rows of JSON, rendered: the first line of the input names a folder of tests/golden/chat, whose tokenizer and chat
 * template are used, and may name options ("qwen3 special prompt last"), each further line is a row. With "plain" the
 * template is one that writes roles and contents alone; with "pairs" rows are preferences. Ids lie below the
 * vocabulary, each has a mark, and no text of a conversation makes a special token. */
#include "tests/fuzz/fuzz.h"

#include "base/file.h"
#include "engine/text/chat.h"
#include "tests/kit/test.h"

#include <string.h>

enum { FIRST_LINE_BYTES = 64, FOLDERS = 10, FLAGS = 24 };

static const char *const names[FOLDERS] = {"chatml",     "qwen2.5",           "qwen3",      "llama2",
                                           "llama3",     "mistral-v1",        "mistral-v3", "mistral-v3-tekken",
                                           "mistral-v7", "mistral-v7-tekken"};
static const char plain_template[] =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

/* Opened at the first use, and kept: opening takes longer than most inputs. */
static struct subject {
    struct ox_tokenizer *tokenizer;
    struct ox_template *templates[2]; /* the folder's own, and the plain one */
    struct ox_chat_renderer *renderers[2][FLAGS];
} subjects[FOLDERS];

static void open_subject(struct subject *subject, const char *name) {
    char path[OX_PATH_BYTES];
    static const char *file;
    file = file != NULL ? file : fuzz_path("plain.jinja");
    const struct fuzz_part part = {plain_template, sizeof plain_template - 1};
    REQUIRE_OK(ox_path_join("tests/golden/chat", name, path));
    REQUIRE_OK(ox_tokenizer_open(path, &subject->tokenizer));
    REQUIRE_OK(ox_template_open(path, "", &subject->templates[0]));
    fuzz_write_part(file, &part);
    REQUIRE_OK(ox_template_open(path, file, &subject->templates[1]));
}

/* The renderer that the first line asks for, which may be anything. */
static struct ox_chat_renderer *renderer_of(const struct fuzz_part *line, const struct ox_tokenizer **tokenizer,
                                            bool *parse_special) {
    char text[FIRST_LINE_BYTES] = "";
    size_t folder = 0;
    memcpy(text, line->text, line->bytes < sizeof text - 1 ? line->bytes : sizeof text - 1);
    for (size_t i = 0; i < FOLDERS; i++) {
        folder = strncmp(text, names[i], strlen(names[i])) == 0 ? i : folder; /* a longer name comes behind */
    }
    struct subject *const subject = &subjects[folder];
    if (subject->tokenizer == NULL) {
        open_subject(subject, names[folder]);
    }
    const size_t plain = strstr(text, " plain") != NULL;
    const struct ox_chat_options options = {
        .chat_template = subject->templates[plain],
        .parse_special = strstr(text, " special") != NULL,
        .generation_prompt = strstr(text, " prompt") != NULL,
        .train_on = strstr(text, " last") != NULL         ? OX_TRAIN_ON_LAST
                    : strstr(text, " everything") != NULL ? OX_TRAIN_ON_PROMPTS
                                                          : OX_TRAIN_ON_ALL};
    const size_t flags = options.parse_special + 2 * options.generation_prompt + 4 * options.train_on;
    if (subject->renderers[plain][flags] == NULL) {
        FUZZ_CHECK(ox_chat_open(subject->tokenizer, &options, &subject->renderers[plain][flags]) == OX_OK);
    }
    *tokenizer = subject->tokenizer;
    *parse_special = options.parse_special;
    return subject->renderers[plain][flags];
}

static size_t count_special(const struct ox_tokenizer *tokenizer, const struct ox_ids *ids) {
    size_t count = 0;
    for (size_t i = 0; i < ids->count; i++) {
        count += ox_tokenizer_is_special(tokenizer, (uint32_t)ids->ids[i]);
    }
    return count;
}

/* Replaces every text in a content by a harmless one. */
static void make_harmless(json_t *messages) {
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *const message = json_array_get(messages, i);
        if (json_object_get(message, "content") != NULL) {
            FUZZ_CHECK(json_object_set_new(message, "content", json_string("x")) == 0);
        }
    }
}

/* The contents of a conversation add no special token: as many come out as with harmless contents. */
static void check_special(struct ox_chat_renderer *renderer, const struct ox_tokenizer *tokenizer,
                          const struct ox_chat *chat, size_t found) {
    struct ox_chat plain = *chat;
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    plain.conversation = json_deep_copy(chat->conversation);
    FUZZ_CHECK(plain.conversation != NULL);
    make_harmless(json_object_get(plain.conversation, "messages"));
    if (ox_chat_render(renderer, "plain", &plain, &ids, &marks) == OX_OK) {
        FUZZ_CHECK(count_special(tokenizer, &ids) == found);
    }
    json_decref(plain.conversation);
    ox_ids_free(&ids);
    ox_id_mask_free(&marks);
}

static void check_rendered(const struct ox_tokenizer *tokenizer, const struct ox_ids *ids,
                           const struct ox_id_mask *marks) {
    FUZZ_CHECK(ids->count == marks->count);
    for (size_t i = 0; i < ids->count; i++) {
        FUZZ_CHECK(ids->ids[i] >= 0 && (uint32_t)ids->ids[i] < ox_tokenizer_vocab_count(tokenizer));
        FUZZ_CHECK(marks->marks[i] <= 1);
    }
}

static void take_row(struct ox_chat_renderer *renderer, const struct ox_tokenizer *tokenizer, bool parse_special,
                     const struct fuzz_part *row) {
    static const char where[] = "rows.jsonl:1";
    struct ox_chat chat = {0};
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    enum ox_status status = ox_chat_read_line(where, row->text, row->bytes, NULL, &chat);
    fuzz_accepted = fuzz_accepted && status == OX_OK;
    if (status != OX_OK) {
        FUZZ_CHECK(chat.conversation == NULL && chat.text == NULL);
        fuzz_check_failure(status, where);
    } else {
        FUZZ_CHECK((chat.conversation != NULL) == (chat.kind == OX_CHAT_MESSAGES));
        status = ox_chat_render(renderer, where, &chat, &ids, &marks);
        fuzz_accepted = fuzz_accepted && status == OX_OK;
        if (status == OX_OK) {
            check_rendered(tokenizer, &ids, &marks);
            if (!parse_special && chat.kind == OX_CHAT_MESSAGES) {
                check_special(renderer, tokenizer, &chat, count_special(tokenizer, &ids));
            }
        } else {
            FUZZ_CHECK(ids.count == 0 && marks.count == 0);
            fuzz_check_failure(status, where);
        }
    }
    ox_chat_free(&chat);
    ox_ids_free(&ids);
    ox_id_mask_free(&marks);
}

/* A preference: both answers begin with the same ids without a mark, and all behind these has one. */
static void take_pair(struct ox_chat_renderer *renderer, const struct ox_tokenizer *tokenizer,
                      const struct fuzz_part *row) {
    static const char where[] = "rows.jsonl:1";
    struct ox_chat_pair pair = {0};
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    size_t second = 0, shared = 0;
    enum ox_status status = ox_chat_read_pair(where, row->text, row->bytes, NULL, &pair);
    if (status != OX_OK) {
        FUZZ_CHECK(pair.chosen.conversation == NULL && pair.rejected.text == NULL);
    }
    OX_THEN(status, ox_chat_render_pair(renderer, where, &pair, &ids, &marks, &second));
    fuzz_accepted = fuzz_accepted && status == OX_OK;
    if (status != OX_OK) {
        FUZZ_CHECK(ids.count == 0 && marks.count == 0);
        fuzz_check_failure(status, where);
    } else {
        check_rendered(tokenizer, &ids, &marks);
        while (marks.marks[shared] == 0) {
            shared++;
        }
        FUZZ_CHECK(shared < second && second + shared < ids.count && second > 1 && ids.count - second > 1);
        for (size_t i = 0; i < ids.count; i++) {
            const size_t at = i < second ? i : i - second;
            FUZZ_CHECK(marks.marks[i] == (at >= shared) && (at >= shared || ids.ids[at] == ids.ids[i]));
        }
    }
    ox_chat_pair_free(&pair);
    ox_ids_free(&ids);
    ox_id_mask_free(&marks);
}

int fuzz_chat(const uint8_t *data, size_t bytes) {
    const char *text = (const char *)data;
    const char *const end = text + bytes;
    const struct ox_tokenizer *tokenizer = NULL;
    struct ox_chat_renderer *renderer = NULL;
    bool parse_special = false, pairs = false;
    fuzz_accepted = true;
    for (size_t line = 0; text < end; line++) {
        const char *const newline = memchr(text, '\n', (size_t)(end - text));
        const struct fuzz_part part = {text, (size_t)((newline != NULL ? newline : end) - text)};
        if (line == 0) {
            renderer = renderer_of(&part, &tokenizer, &parse_special);
            pairs = memmem(part.text, part.bytes, " pairs", 6) != NULL;
        } else if (pairs) {
            take_pair(renderer, tokenizer, &part);
        } else {
            take_row(renderer, tokenizer, parse_special, &part);
        }
        text += part.bytes + 1;
    }
    return 0;
}
