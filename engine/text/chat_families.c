/* The hand-written chat templates, one writer per family. */
#include "engine/text/chat_internal.h"

#include "base/assert.h"

#include <string.h>

/* A part of a message's text; it does not own the text. */
struct slice {
    const char *text;
    size_t bytes;
};

static void put_slice(struct ox_chat_writer *writer, struct slice slice, bool marked) {
    ox_chat_put_text(writer, slice.text, slice.bytes, marked);
}

static struct slice whole(const char *text) {
    return (struct slice){text, strlen(text)};
}

/* Whether Python's str.strip() removes the character: Unicode White_Space and four ASCII separators. */
static bool is_space(uint32_t cp) {
    return ox_unicode_is_space(cp) || (cp >= 0x1c && cp <= 0x1f);
}

static struct slice trimmed(const char *text) {
    struct slice out = whole(text);
    while (out.bytes > 0) {
        size_t next = 0;
        if (!is_space(ox_utf8_next(out.text, &next))) {
            break;
        }
        out.text += next;
        out.bytes -= next;
    }
    while (out.bytes > 0) {
        const size_t last = ox_utf8_back(out.text, out.bytes);
        size_t pos = last;
        if (!is_space(ox_utf8_next(out.text, &pos))) {
            break;
        }
        out.bytes = last;
    }
    return out;
}

/* ---- chatml and qwen ----------------------------------------------------------------------------------------- */

static struct slice skip_newlines(struct slice slice) {
    while (slice.bytes > 0 && slice.text[0] == '\n') {
        slice.text++;
        slice.bytes--;
    }
    return slice;
}

static struct slice drop_newlines(struct slice slice) {
    while (slice.bytes > 0 && slice.text[slice.bytes - 1] == '\n') {
        slice.bytes--;
    }
    return slice;
}

/* The last occurrence of `words` in a slice, or NULL. */
static const char *find_last(struct slice slice, const char *words) {
    const char *found = NULL;
    const size_t bytes = strlen(words);
    const char *at = slice.text;
    const char *const end = slice.text + slice.bytes;
    while ((at = memmem(at, (size_t)(end - at), words, bytes)) != NULL) {
        found = at;
        at += bytes;
    }
    return found;
}

/* Splits an assistant's text into content and reasoning. The reasoning comes from "reasoning_content" or, without
 * that, from between <think> and </think>. */
static void split_reasoning(const struct ox_chat_message *message, struct slice *reasoning, struct slice *content) {
    static const char open[] = "<think>", close[] = "</think>";
    *content = whole(message->text);
    *reasoning = (struct slice){message->text, 0};
    if (message->reasoning != NULL) {
        *reasoning = whole(message->reasoning);
        return;
    }
    const char *const first = strstr(message->text, close);
    if (first == NULL) {
        return;
    }
    const char *const last = find_last(*content, close) + strlen(close);
    const struct slice before = drop_newlines((struct slice){message->text, (size_t)(first - message->text)});
    const char *const begun = find_last(before, open);
    *reasoning = before;
    if (begun != NULL) {
        reasoning->text = begun + strlen(open);
        reasoning->bytes = (size_t)(before.text + before.bytes - reasoning->text);
    }
    *reasoning = skip_newlines(*reasoning);
    *content = skip_newlines((struct slice){last, strlen(last)});
}

/* The index of the last user message that is a question, not the answer of a tool; without one, the last message. */
static size_t last_question(const struct ox_chat *chat) {
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    for (size_t i = chat->count; i-- > 0;) {
        const char *const text = chat->messages[i].text;
        const size_t bytes = strlen(text);
        const bool answers = strncmp(text, open, strlen(open)) == 0 && bytes >= strlen(close) &&
                             strcmp(text + bytes - strlen(close), close) == 0;
        if (chat->messages[i].role == OX_CHAT_USER && !answers) {
            return i;
        }
    }
    return chat->count - 1;
}

static void write_qwen3_answer(struct ox_chat_writer *writer, const struct ox_chat *chat, size_t index,
                               size_t question) {
    const struct ox_chat_message *const message = &chat->messages[index];
    const bool trained = message->trained;
    struct slice reasoning, content;
    split_reasoning(message, &reasoning, &content);
    if (index > question && (index + 1 == chat->count || reasoning.bytes > 0)) {
        ox_chat_put(writer, "<think>\n", trained);
        put_slice(writer, drop_newlines(skip_newlines(reasoning)), trained);
        ox_chat_put(writer, "\n</think>\n\n", trained);
        content = skip_newlines(content);
    }
    put_slice(writer, content, trained);
}

static void put_im_header(struct ox_chat_writer *writer, const char *role) {
    ox_chat_put_token(writer, "<|im_start|>", false);
    ox_chat_put(writer, role, false);
}

static void put_im_end(struct ox_chat_writer *writer, bool marked) {
    ox_chat_put_token(writer, "<|im_end|>", marked);
    ox_chat_put(writer, "\n", false);
}

/* Consecutive tool answers share one user turn. */
static void write_tool_answer(struct ox_chat_writer *writer, const struct ox_chat *chat, size_t index) {
    if (index == 0 || chat->messages[index - 1].role != OX_CHAT_TOOL) {
        put_im_header(writer, "user");
    }
    ox_chat_put(writer, "\n<tool_response>\n", false);
    put_slice(writer, whole(chat->messages[index].text), false);
    ox_chat_put(writer, "\n</tool_response>", false);
    if (index + 1 == chat->count || chat->messages[index + 1].role != OX_CHAT_TOOL) {
        put_im_end(writer, false);
    }
}

/* Writes BOS only if the model's own template does: ChatML models differ in this. */
static void put_chatml_bos(struct ox_chat_writer *writer) {
    const char *const template = ox_tokenizer_chat_template(writer->tokenizer);
    const int64_t bos = ox_tokenizer_bos(writer->tokenizer);
    if (bos >= 0 && template != NULL && strstr(template, "bos_token") != NULL) {
        ox_chat_put_id(writer, bos, "BOS", false);
    }
}

static void write_chatml(struct ox_chat_writer *writer, const struct ox_chat *chat) {
    const enum ox_chat_family family = writer->family;
    const size_t question = last_question(chat);
    if (family == OX_CHAT_CHATML) {
        put_chatml_bos(writer);
    } else if (family == OX_CHAT_QWEN25 && chat->messages[0].role != OX_CHAT_SYSTEM) {
        put_im_header(writer, "system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
        put_im_end(writer, false);
    }
    for (size_t i = 0; i < chat->count; i++) {
        const struct ox_chat_message *const message = &chat->messages[i];
        if (message->role == OX_CHAT_TOOL && family != OX_CHAT_CHATML) {
            write_tool_answer(writer, chat, i);
            continue;
        }
        put_im_header(writer, ox_chat_role_name(message->role));
        ox_chat_put(writer, "\n", false);
        if (message->role == OX_CHAT_ASSISTANT && family == OX_CHAT_QWEN3) {
            write_qwen3_answer(writer, chat, i, question);
        } else {
            put_slice(writer, whole(message->text), message->trained);
        }
        put_im_end(writer, message->trained);
    }
    if (writer->options->generation_prompt) {
        put_im_header(writer, "assistant\n");
        if (family == OX_CHAT_QWEN3 && writer->options->no_thinking) {
            ox_chat_put(writer, "<think>\n\n</think>\n\n", false);
        }
    }
}

/* ---- llama3 -------------------------------------------------------------------------------------------------- */

static void put_llama3_header(struct ox_chat_writer *writer, const char *role) {
    ox_chat_put_token(writer, "<|start_header_id|>", false);
    ox_chat_put(writer, role, false);
    ox_chat_put_token(writer, "<|end_header_id|>", false);
    ox_chat_put(writer, "\n\n", false);
}

static void write_llama3(struct ox_chat_writer *writer, const struct ox_chat *chat) {
    ox_chat_put_token(writer, "<|begin_of_text|>", false);
    for (size_t i = 0; i < chat->count; i++) {
        const struct ox_chat_message *const message = &chat->messages[i];
        put_llama3_header(writer, ox_chat_role_name(message->role));
        put_slice(writer, trimmed(message->text), message->trained);
        ox_chat_put_token(writer, "<|eot_id|>", message->trained);
    }
    if (writer->options->generation_prompt) {
        put_llama3_header(writer, "assistant");
    }
}

/* ---- llama2 and mistral -------------------------------------------------------------------------------------- */

static void put_bos(struct ox_chat_writer *writer) {
    ox_chat_put_id(writer, ox_tokenizer_bos(writer->tokenizer), "BOS", false);
}

static void put_eos(struct ox_chat_writer *writer, bool marked) {
    ox_chat_put_id(writer, ox_tokenizer_eos(writer->tokenizer), "EOS", marked);
}

/* The original strips the system and user text as one, so whitespace around the system text stays. */
static void write_llama2(struct ox_chat_writer *writer, const struct ox_chat *chat) {
    const bool has_system = chat->messages[0].role == OX_CHAT_SYSTEM;
    for (size_t i = has_system ? 1 : 0; i < chat->count; i++) {
        const struct ox_chat_message *const message = &chat->messages[i];
        struct slice text = trimmed(message->text);
        if (message->role == OX_CHAT_ASSISTANT) {
            ox_chat_put(writer, " ", false);
            put_slice(writer, text, message->trained);
            ox_chat_put(writer, " ", message->trained);
            put_eos(writer, message->trained);
            continue;
        }
        put_bos(writer);
        ox_chat_put(writer, "[INST] ", false);
        if (has_system && i == 1) {
            const size_t leading = (size_t)(text.text - message->text);
            ox_chat_put(writer, "<<SYS>>\n", false);
            put_slice(writer, whole(chat->messages[0].text), false);
            ox_chat_put(writer, "\n<</SYS>>", false);
            /* Without a question, the newlines end the joined text, so the original strips them. */
            if (text.bytes > 0) {
                ox_chat_put(writer, "\n\n", false);
                put_slice(writer, (struct slice){message->text, leading}, false);
            }
        }
        put_slice(writer, text, false);
        ox_chat_put(writer, " [/INST]", false);
    }
}

/* The differences between the versions of the mistral template. */
struct mistral {
    enum ox_chat_family family;
    const char *before, *inside, *close, *answer; /* before [INST], after it, before [/INST], before the answer */
    bool tokens;                                  /* [INST] is a special token, not text */
    bool system_prompt;
    bool trims;
};

static void put_inst(struct ox_chat_writer *writer, const struct mistral *form, const char *text) {
    if (form->tokens) {
        ox_chat_put_token(writer, text, false);
    } else {
        ox_chat_put(writer, text, false);
    }
}

static void write_mistral(struct ox_chat_writer *writer, const struct ox_chat *chat) {
    static const struct mistral forms[] = {
        {OX_CHAT_MISTRAL_V1, " ", " ", " ", " ", false, false, false},
        {OX_CHAT_MISTRAL_V3, "", " ", "", " ", true, false, true},
        {OX_CHAT_MISTRAL_V3_TEKKEN, "", "", "", "", true, false, false},
        {OX_CHAT_MISTRAL_V7, "", " ", "", " ", true, true, false},
        {OX_CHAT_MISTRAL_V7_TEKKEN, "", "", "", "", true, true, false},
    };
    const struct mistral *const form = &forms[writer->family - OX_CHAT_MISTRAL_V1];
    const bool has_system = chat->messages[0].role == OX_CHAT_SYSTEM;
    OX_ASSERT(form->family == writer->family);
    put_bos(writer);
    if (has_system && form->system_prompt) {
        ox_chat_put_token(writer, "[SYSTEM_PROMPT]", false);
        ox_chat_put(writer, form->inside, false);
        put_slice(writer, whole(chat->messages[0].text), false);
        ox_chat_put_token(writer, "[/SYSTEM_PROMPT]", false);
    }
    for (size_t i = has_system ? 1 : 0; i < chat->count; i++) {
        const struct ox_chat_message *const message = &chat->messages[i];
        if (message->role == OX_CHAT_ASSISTANT) {
            ox_chat_put(writer, form->answer, message->trained);
            put_slice(writer, form->trims ? trimmed(message->text) : whole(message->text), message->trained);
            put_eos(writer, message->trained);
            continue;
        }
        ox_chat_put(writer, form->before, false);
        put_inst(writer, form, "[INST]");
        ox_chat_put(writer, form->inside, false);
        if (has_system && i == 1 && !form->system_prompt) {
            put_slice(writer, whole(chat->messages[0].text), false);
            ox_chat_put(writer, "\n\n", false);
        }
        put_slice(writer, whole(message->text), false);
        ox_chat_put(writer, form->close, false);
        put_inst(writer, form, "[/INST]");
    }
}

/* ---- public -------------------------------------------------------------------------------------------------- */

static bool is_chatml(enum ox_chat_family family) {
    return family == OX_CHAT_CHATML || family == OX_CHAT_QWEN25 || family == OX_CHAT_QWEN3;
}

/* Refuses a conversation with a message for which the template has no place. */
static enum ox_status check_roles(const struct ox_chat_writer *writer, const struct ox_chat *chat) {
    const char *const family = ox_chat_family_name(writer->family);
    const bool has_system = chat->messages[0].role == OX_CHAT_SYSTEM;
    const bool takes_turns = !is_chatml(writer->family) && writer->family != OX_CHAT_LLAMA3;
    for (size_t i = 0; i < chat->count; i++) {
        const enum ox_chat_role role = chat->messages[i].role;
        const enum ox_chat_role turn = (i - (has_system ? 1 : 0)) % 2 == 0 ? OX_CHAT_USER : OX_CHAT_ASSISTANT;
        if (role == OX_CHAT_TOOL && !is_chatml(writer->family)) {
            return ox_fail(OX_E_CONFIG, "message %zu: the chat template %s has no tool messages", i, family);
        }
        if (takes_turns && !(has_system && i == 0) && role != turn) {
            return ox_fail(OX_E_CONFIG,
                           "message %zu: the chat template %s needs a message by the %s here, but this one is by the "
                           "%s", i, family, ox_chat_role_name(turn), ox_chat_role_name(role));
        }
    }
    if (takes_turns && chat->count == (has_system ? 1U : 0U)) {
        return ox_fail(OX_E_CONFIG, "the chat template %s needs a user message after the system message; add one",
                       family);
    }
    if (writer->options->generation_prompt && chat->messages[chat->count - 1].role == OX_CHAT_ASSISTANT) {
        return ox_fail(OX_E_CONFIG, "a prompt for generation cannot end with an assistant message; end it with a user "
                                    "message");
    }
    return OX_OK;
}

void ox_chat_write(struct ox_chat_writer *writer, const struct ox_chat *chat) {
    OX_ASSERT(chat->count > 0);
    writer->status = check_roles(writer, chat);
    if (writer->status != OX_OK) {
        return;
    }
    if (is_chatml(writer->family)) {
        write_chatml(writer, chat);
    } else if (writer->family == OX_CHAT_LLAMA3) {
        write_llama3(writer, chat);
    } else if (writer->family == OX_CHAT_LLAMA2) {
        write_llama2(writer, chat);
    } else {
        write_mistral(writer, chat);
    }
}
