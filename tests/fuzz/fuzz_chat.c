/* Rows of JSON, rendered: the first line of the input names the chat template and may name options ("qwen3 special
 * prompt no-thinking"), each further line is a row. With "foreign" the tokenizer is chatml's, which lacks the tokens of
 * most others; with "detect" the template is told by the tokenizer's own. Ids lie below the vocabulary, each has a
 * mark, and no text of a row makes a special token. */
#include "tests/fuzz/fuzz.h"

#include "base/file.h"
#include "engine/text/chat.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_LINE_BYTES = 64, RENDERERS_KEPT = 61 };

/* Opened at the first use, and kept. */
static struct ox_tokenizer *tokenizers[OX_CHAT_FAMILY_COUNT];

static const struct ox_tokenizer *tokenizer_of(enum ox_chat_family family) {
    if (tokenizers[family] == NULL) {
        char path[OX_PATH_BYTES];
        REQUIRE_OK(ox_path_join("tests/golden/chat", ox_chat_family_name(family), path));
        REQUIRE_OK(ox_tokenizer_open(path, &tokenizers[family]));
    }
    return tokenizers[family];
}

/* The template and the options of the first line, which may be anything. */
static const struct ox_tokenizer *read_first_line(const struct fuzz_part *line, struct ox_chat_options *options) {
    char text[FIRST_LINE_BYTES] = "";
    enum ox_chat_family family = OX_CHAT_CHATML;
    memcpy(text, line->text, line->bytes < sizeof text - 1 ? line->bytes : sizeof text - 1);
    for (unsigned i = 0; i < OX_CHAT_FAMILY_COUNT; i++) {
        const char *const name = ox_chat_family_name((enum ox_chat_family)i);
        if (strncmp(text, name, strlen(name)) == 0) {
            family = (enum ox_chat_family)i; /* a longer name comes behind the one it begins with */
        }
    }
    options->family = strstr(text, " detect") != NULL ? NULL : ox_chat_family_name(family);
    options->parse_special = strstr(text, " special") != NULL;
    options->generation_prompt = strstr(text, " prompt") != NULL;
    options->no_thinking = strstr(text, " no-thinking") != NULL;
    return tokenizer_of(strstr(text, " foreign") != NULL ? OX_CHAT_CHATML : family);
}

/* Opened when first asked for, and kept until another one needs the place: opening takes longer than most inputs. */
static struct ox_chat_renderer *renderer_of(const struct ox_tokenizer *tokenizer,
                                            const struct ox_chat_options *options) {
    static struct kept {
        const struct ox_tokenizer *tokenizer;
        struct ox_chat_options options;
        struct ox_chat_renderer *renderer;
    } all[RENDERERS_KEPT];
    const size_t flags = options->parse_special + 2 * options->generation_prompt + 4 * options->no_thinking;
    const size_t family =
        options->family != NULL ? (size_t)(unsigned char)options->family[strlen(options->family) - 1] : 0;
    struct kept *const kept = &all[(flags + 8 * family + (uintptr_t)tokenizer / 64) % RENDERERS_KEPT];
    if (kept->renderer == NULL || kept->tokenizer != tokenizer || kept->options.family != options->family ||
        kept->options.parse_special != options->parse_special ||
        kept->options.generation_prompt != options->generation_prompt ||
        kept->options.no_thinking != options->no_thinking) {
        ox_chat_close(&kept->renderer);
        *kept = (struct kept){.tokenizer = tokenizer, .options = *options};
        FUZZ_CHECK(ox_chat_open(tokenizer, options, &kept->renderer) == OX_OK);
    }
    return kept->renderer;
}

static size_t count_special(const struct ox_tokenizer *tokenizer, const struct ox_ids *ids) {
    size_t count = 0;
    for (size_t i = 0; i < ids->count; i++) {
        count += ox_tokenizer_is_special(tokenizer, (uint32_t)ids->ids[i]);
    }
    return count;
}

/* The text of a conversation adds no special token: as many come out as with harmless texts. */
static void check_special(struct ox_chat_renderer *renderer, const struct ox_tokenizer *tokenizer,
                          const struct ox_chat *chat, size_t expected) {
    struct ox_chat plain = {.kind = chat->kind, .count = chat->count};
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    plain.messages = calloc(chat->count + 1, sizeof *plain.messages);
    FUZZ_CHECK(plain.messages != NULL);
    for (size_t i = 0; i < chat->count; i++) {
        plain.messages[i] = (struct ox_chat_message){.role = chat->messages[i].role, .trained = true};
        plain.messages[i].text = (char *)(uintptr_t) "x";
    }
    FUZZ_CHECK(ox_chat_render(renderer, "plain", &plain, &ids, &marks) == OX_OK);
    FUZZ_CHECK(count_special(tokenizer, &ids) == expected);
    free(plain.messages);
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
    enum ox_status status = ox_chat_read_line(where, row->text, row->bytes, &chat);
    fuzz_accepted = fuzz_accepted && status == OX_OK;
    if (status != OX_OK) {
        FUZZ_CHECK(chat.count == 0);
        fuzz_check_failure(status, where);
    } else {
        FUZZ_CHECK(chat.count > 0);
        status = ox_chat_render(renderer, where, &chat, &ids, &marks);
        fuzz_accepted = fuzz_accepted && status == OX_OK;
        if (status == OX_OK) {
            check_rendered(tokenizer, &ids, &marks);
            if (!parse_special) {
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

static void check_name(const struct ox_tokenizer *tokenizer) {
    const struct ox_chat_options options = {.family = "none"};
    struct ox_chat_renderer *renderer = NULL;
    fuzz_check_failure(ox_chat_open(tokenizer, &options, &renderer), "--chat-template");
    ox_chat_close(&renderer);
}

int fuzz_chat(const uint8_t *data, size_t bytes) {
    const char *text = (const char *)data;
    const char *const end = text + bytes;
    const struct ox_tokenizer *tokenizer = NULL;
    struct ox_chat_renderer *renderer = NULL;
    struct ox_chat_options options = {0};
    fuzz_accepted = true;
    for (size_t line = 0; text < end; line++) {
        const char *const newline = memchr(text, '\n', (size_t)(end - text));
        const struct fuzz_part part = {text, (size_t)((newline != NULL ? newline : end) - text)};
        if (line == 0) {
            tokenizer = read_first_line(&part, &options);
            check_name(tokenizer);
            renderer = renderer_of(tokenizer, &options);
        } else {
            take_row(renderer, tokenizer, options.parse_special, &part);
        }
        text += part.bytes + 1;
    }
    return 0;
}
