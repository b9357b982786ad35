/* Detects the template family of a tokenizer and renders conversations into ids and a loss mask. */
#include "engine/text/chat_internal.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ox_chat_renderer {
    struct ox_chat_options options;
    bool has_family;
    struct ox_encoder *encoder;
    struct ox_chat_writer writer;
};

static const char *const family_names[OX_CHAT_FAMILY_COUNT] = {
    [OX_CHAT_CHATML] = "chatml",         [OX_CHAT_QWEN25] = "qwen2.5",
    [OX_CHAT_QWEN3] = "qwen3",           [OX_CHAT_LLAMA2] = "llama2",
    [OX_CHAT_LLAMA3] = "llama3",         [OX_CHAT_MISTRAL_V1] = "mistral-v1",
    [OX_CHAT_MISTRAL_V3] = "mistral-v3", [OX_CHAT_MISTRAL_V3_TEKKEN] = "mistral-v3-tekken",
    [OX_CHAT_MISTRAL_V7] = "mistral-v7", [OX_CHAT_MISTRAL_V7_TEKKEN] = "mistral-v7-tekken",
};

/* ---- picking a family ---------------------------------------------------------------------------------------- */

static bool has(const char *template, const char *words) {
    return strstr(template, words) != NULL;
}

static enum ox_chat_family detect_inst(const char *template) {
    if (has(template, "[SYSTEM_PROMPT]")) {
        return has(template, "[SYSTEM_PROMPT] ") ? OX_CHAT_MISTRAL_V7 : OX_CHAT_MISTRAL_V7_TEKKEN;
    }
    if (has(template, "' [INST] ' + system_message") || has(template, "[AVAILABLE_TOOLS]")) {
        if (has(template, " [INST]")) {
            return OX_CHAT_MISTRAL_V1;
        }
        return has(template, "\"[INST]\"") ? OX_CHAT_MISTRAL_V3_TEKKEN : OX_CHAT_MISTRAL_V3;
    }
    return OX_CHAT_LLAMA2;
}

/* Returns OX_CHAT_FAMILY_COUNT for a template of no known family. */
static enum ox_chat_family detect(const char *template) {
    if (has(template, "<|im_start|>")) {
        if (has(template, "<|im_sep|>") || has(template, "<end_of_utterance>")) {
            return OX_CHAT_FAMILY_COUNT; /* Phi-4 and SmolVLM share the tokens of ChatML but not its form */
        }
        if (has(template, "You are Qwen, created by Alibaba Cloud")) {
            return OX_CHAT_QWEN25;
        }
        return has(template, "reasoning_content") ? OX_CHAT_QWEN3 : OX_CHAT_CHATML;
    }
    if (has(template, "[INST]")) {
        return detect_inst(template);
    }
    return has(template, "<|start_header_id|>") && has(template, "<|end_header_id|>") ? OX_CHAT_LLAMA3
                                                                                      : OX_CHAT_FAMILY_COUNT;
}

const char *ox_chat_role_name(enum ox_chat_role role) {
    static const char *const names[OX_CHAT_ROLE_COUNT] = {"system", "user", "assistant", "tool"};
    OX_ASSERT((unsigned)role < OX_CHAT_ROLE_COUNT);
    return names[role];
}

const char *ox_chat_family_name(enum ox_chat_family family) {
    OX_ASSERT((unsigned)family < OX_CHAT_FAMILY_COUNT);
    return family_names[family];
}

enum ox_status ox_chat_family_pick(const struct ox_tokenizer *tokenizer, const char *name, enum ox_chat_family *out) {
    const char *const template = ox_tokenizer_chat_template(tokenizer);
    char list[256];
    size_t used = 0;
    for (unsigned i = 0; i < OX_CHAT_FAMILY_COUNT; i++) {
        if (name != NULL && strcmp(name, family_names[i]) == 0) {
            *out = (enum ox_chat_family)i;
            return OX_OK;
        }
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i == 0 ? "" : ", ", family_names[i]);
    }
    if (name != NULL) {
        return ox_fail(OX_E_CONFIG, "the chat template \"%.60s\" is not known; --chat-template takes one of %s", name,
                       list);
    }
    const enum ox_chat_family found = template != NULL ? detect(template) : OX_CHAT_FAMILY_COUNT;
    if (found == OX_CHAT_FAMILY_COUNT) {
        return ox_fail(OX_E_CONFIG, "the tokenizer %s; name one with --chat-template: %s",
                       template == NULL ? "has no chat template" : "has a chat template of an unknown family",
                       list);
    }
    *out = found;
    return OX_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

static void put(struct ox_chat_writer *writer, const char *text, size_t bytes, bool control, bool marked) {
    struct ox_text_part *const last = writer->count > 0 ? &writer->parts[writer->count - 1] : NULL;
    if (writer->status != OX_OK || bytes == 0) {
        return;
    }
    writer->status = ox_text_append(&writer->text, text, bytes);
    if (writer->status == OX_OK && last != NULL && last->control == control && last->marked == marked) {
        last->end = writer->text.bytes;
        return;
    }
    if (writer->status == OX_OK) {
        writer->status =
            ox_tok_reserve((void **)&writer->parts, &writer->capacity, writer->count + 1, sizeof *writer->parts);
    }
    if (writer->status == OX_OK) {
        writer->parts[writer->count++] =
            (struct ox_text_part){.end = writer->text.bytes, .control = control, .marked = marked};
    }
}

void ox_chat_put(struct ox_chat_writer *writer, const char *text, bool marked) {
    put(writer, text, strlen(text), false, marked);
}

void ox_chat_put_text(struct ox_chat_writer *writer, const char *text, size_t bytes, bool marked) {
    put(writer, text, bytes, writer->options->parse_special, marked);
}

/* Whether the token is searched for after the normalizer, which loses track of whether the template or a row wrote
 * it. */
static bool is_searched_after_normalizer(const struct ox_tokenizer *tokenizer, uint32_t id) {
    const uint32_t added = tokenizer->added_by_id[id];
    return added > 0 && tokenizer->added[added - 1].normalized;
}

void ox_chat_put_token(struct ox_chat_writer *writer, const char *text, bool marked) {
    const int64_t id = ox_tokenizer_find(writer->tokenizer, text, strlen(text));
    if (writer->status == OX_OK && (id < 0 || !ox_tokenizer_is_special(writer->tokenizer, (uint32_t)id))) {
        writer->status = ox_fail(OX_E_CONFIG,
                                 "the tokenizer has no special token %s, which the chat template %s needs; use the "
                                 "model's own template or name another with --chat-template",
                                 text, ox_chat_family_name(writer->family));
    } else if (writer->status == OX_OK && is_searched_after_normalizer(writer->tokenizer, (uint32_t)id)) {
        writer->status = ox_fail(OX_E_CONFIG,
                                 "the special token %s has \"normalized\": true in the tokenizer.json, so the text of "
                                 "a conversation could pass for it; set it to false",
                                 text);
    }
    put(writer, text, strlen(text), true, marked);
}

void ox_chat_put_id(struct ox_chat_writer *writer, int64_t id, const char *name, bool marked) {
    const char *const text = id < 0 ? NULL : ox_tokenizer_token(writer->tokenizer, (uint32_t)id);
    if (text != NULL) {
        ox_chat_put_token(writer, text, marked);
    } else if (writer->status == OX_OK) {
        writer->status = ox_fail(OX_E_CONFIG,
                                 "the tokenizer has no %s, which the chat template %s needs; name another with "
                                 "--chat-template",
                                 name, ox_chat_family_name(writer->family));
    }
}

/* ---- rendering ----------------------------------------------------------------------------------------------- */

static enum ox_status append(struct ox_ids *ids, struct ox_id_mask *trained, int64_t id, bool mark) {
    enum ox_status status = ox_ids_add(ids, id);
    OX_TRY(status, ox_id_mask_append(trained, mark, 1));
    return status;
}

static enum ox_status write_all(struct ox_chat_renderer *renderer, const struct ox_chat *chat) {
    struct ox_chat_writer *const writer = &renderer->writer;
    if (chat->kind != OX_CHAT_MESSAGES) {
        for (size_t i = 0; i < chat->count; i++) {
            const struct ox_chat_message *const message = &chat->messages[i];
            ox_chat_put_text(writer, message->text, strlen(message->text), message->trained);
        }
        return writer->status;
    }
    if (!renderer->has_family) {
        writer->status = ox_chat_family_pick(writer->tokenizer, renderer->options.family, &writer->family);
        renderer->has_family = writer->status == OX_OK;
    }
    if (writer->status == OX_OK) {
        ox_chat_write(writer, chat);
    }
    return writer->status;
}

enum ox_status ox_chat_open(const struct ox_tokenizer *tokenizer, const struct ox_chat_options *options,
                            struct ox_chat_renderer **out) {
    struct ox_chat_renderer *renderer = calloc(1, sizeof *renderer);
    enum ox_status status = OX_OK;
    if (renderer == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for a chat template");
    }
    renderer->options = *options;
    renderer->writer.tokenizer = tokenizer;
    renderer->writer.options = &renderer->options;
    if (options->family != NULL) {
        status = ox_chat_family_pick(tokenizer, options->family, &renderer->writer.family);
        renderer->has_family = true;
        renderer->options.family = NULL; /* borrowed from the caller and no longer needed */
    }
    OX_TRY(status, ox_encoder_open(tokenizer, &renderer->encoder));
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
    ox_text_free(&(*renderer)->writer.text);
    free((*renderer)->writer.parts);
    free(*renderer);
    *renderer = NULL;
}

enum ox_status ox_chat_render(struct ox_chat_renderer *renderer, const char *where, const struct ox_chat *chat,
                              struct ox_ids *ids, struct ox_id_mask *trained) {
    struct ox_chat_writer *const writer = &renderer->writer;
    const int64_t bos = ox_tokenizer_bos(writer->tokenizer);
    const int64_t eos = ox_tokenizer_eos(writer->tokenizer);
    const size_t ids_begin = ids->count;
    const size_t trained_begin = trained->count;
    const bool plain = chat->kind != OX_CHAT_MESSAGES;
    writer->status = OX_OK;
    writer->text.bytes = 0;
    writer->count = 0;
    enum ox_status status = write_all(renderer, chat);
    if (status == OX_OK && plain && bos >= 0 && ox_tokenizer_adds_bos(writer->tokenizer)) {
        status = append(ids, trained, bos, false);
    }
    OX_TRY(status, ox_encode_parts(renderer->encoder, writer->text.data, writer->parts, writer->count, ids, trained));
    if (status == OX_OK && plain && eos >= 0) {
        status = append(ids, trained, eos, true);
    }
    if (status != OX_OK) {
        ids->count = ids_begin;
        trained->count = trained_begin;
        return ox_fail_in(status, "%s", where);
    }
    return OX_OK;
}
