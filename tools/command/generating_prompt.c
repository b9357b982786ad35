/* The prompt of `offload generate`: its options, its text, and messages in a chat template. */
#include "tools/command/generating.h"

#include "base/file.h"
#include "base/log.h"
#include "engine/run/trainer.h"
#include "engine/text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT_FILE_BYTES_MAX = 64 << 20, BYTE_VALUES = 256 };

/* ---- prompt ------------------------------------------------------------------------------------------ */

enum ox_status ox_generating_check(struct ox_generating *g) {
    const struct ox_config *const config = g->config;
    if (config->write.prompt[0] != '\0' && config->write.prompt_file[0] != '\0') {
        return ox_fail(OX_E_CONFIG, "--prompt and --prompt-file are both given; give one of them");
    }
    if (config->write.chat && config->write.prompt_given && config->write.prompt[0] == '\0') {
        return ox_fail(OX_E_CONFIG, "--prompt is empty; give a text, or leave it out for a conversation, line by line");
    }
    const bool converses =
        config->write.chat && config->write.prompt[0] == '\0' && config->write.prompt_file[0] == '\0';
    if (converses && (config->write.num_return_sequences > 1 || strcmp(config->tool.format, "json") == 0)) {
        return ox_fail(OX_E_CONFIG, "--%s is for one prompt; give it by --prompt or --prompt-file, which --chat "
                       "answers, or remove it",
                       config->write.num_return_sequences > 1 ? "num-return-sequences" : "format json");
    }
    if (config->write.num_return_sequences > 1 && config->write.temperature == 0) {
        return ox_fail(OX_E_CONFIG, "--num-return-sequences: with --temperature 0 all samples are the same; give a "
                       "higher one");
    }
    if (converses && (g->messages = json_array()) == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for a conversation");
    }
    if (config->write.prompt[0] == '@' && ox_path_is_file(config->write.prompt + 1)) {
        return ox_fail(OX_E_CONFIG, "--prompt %s: the prompt is the text itself; to read the file give --prompt-file "
                       "%s", config->write.prompt, config->write.prompt + 1);
    }
    const char *const name = config->write.system_prompt[0] != '\0' ? "system-prompt"
                             : config->rows.chat_template[0] != '\0' ? "chat-template"
                             : config->rows.chat_template_kwargs[0] != '\0' ? "chat-template-kwargs"
                             : !config->write.thinking ? "no-thinking" : NULL;
    if (!config->write.chat && name != NULL) {
        return ox_fail(OX_E_CONFIG, "--%s is for conversations; add --chat, or remove it", name);
    }
    OX_TRY(ox_stop_texts_open(config->write.stop, &g->stop_texts));
    if (config->write.top_logits > 0 && strcmp(config->tool.format, "json") != 0) {
        return ox_fail(OX_E_CONFIG, "--top-logits is part of the JSON report; add --format json");
    }
    return OX_OK;
}

enum ox_status ox_generating_model(struct ox_generating *g) {
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "adapter_config.json"};
    const char *model = g->config->files.model;
    const char *const adapter = g->config->parts.adapter;
    char found_adapter[OX_CONFIG_TEXT_BYTES];
    char path[OX_PATH_BYTES];
    bool found = false;
    enum ox_status status = ox_hf_check_file(model, true);
    OX_THEN(status, ox_hf_check_folder(model));
    for (int i = 0; status == OX_OK && i < 3; i++) {
        status = ox_path_join(model, names[i], path);
        found = found || (status == OX_OK && ox_path_is_file(path));
    }
    if (status == OX_OK && !found) {
        status = ox_fail(OX_E_CONFIG,
                         "--model %s: has no weights, neither %s nor %s; name a folder with weights", model,
                         names[0], names[1]);
    }
    OX_THEN(status, ox_hf_open(model, true, &g->folder));
    if (status == OX_OK && adapter[0] != '\0') {
        status = ox_run_find_adapter(adapter, found_adapter);
        OX_THEN(status, ox_hf_load_adapter(g->folder, found_adapter));
    }
    OX_THEN(status, g->config->optim.use_ema ? ox_hf_use_averages(g->folder) : OX_OK);
    if (status != OX_OK) {
        return status;
    }
    const bool own = g->config->files.tokenizer[0] == '\0';
    status = ox_run_find_tokenizer(model, adapter, g->text_folder);
    model = g->text_folder;
    OX_THEN(status, ox_path_join(model, "tokenizer.json", path));
    if (status == OX_OK && own && !ox_path_exists(path) && ox_hf_model(g->folder)->config.vocab == BYTE_VALUES &&
        !ox_tokenizer_has_parts(model)) {
        return g->config->write.chat ? ox_fail(OX_E_CONFIG,
                                               "%s: is a model of bytes without a chat template; leave out "
                                               "--chat, or name a tokenizer with --tokenizer",
                                               model)
                                     : OX_OK;
    }
    if (status != OX_OK) {
        return status;
    }
    status = own ? OX_OK : ox_hf_check_path("--tokenizer", g->config->files.tokenizer);
    OX_THEN(status, ox_tokenizer_open(own ? model : g->config->files.tokenizer, &g->tokenizer));
    return status != OX_OK && own
               ? ox_fail_in(status, "the model folder has no usable tokenizer; name one with --tokenizer")
               : status;
}

static enum ox_status encode_bytes(struct ox_generating *g, const char *where, const char *text, size_t bytes) {
    enum ox_status status = bytes > 0 ? OX_OK : ox_fail(OX_E_CONFIG, "%s: the text is empty, so there is nothing to "
                                                        "continue; give a text", where);
    for (size_t i = 0; i < bytes && status == OX_OK; i++) {
        status = ox_ids_add(&g->ids, (unsigned char)text[i]);
    }
    return status;
}

/* Turns bytes into UTF-8: each byte that is part of no character becomes U+FFFD. */
static enum ox_status decode_bytes(const int32_t *ids, size_t count, char **text, size_t *bytes) {
    static const char replacement[] = "\xef\xbf\xbd";
    const size_t mark_bytes = sizeof replacement - 1;
    char *const raw = malloc(count + 1), *const out = malloc(mark_bytes * count + 1);
    size_t used = 0;
    for (size_t i = 0; raw != NULL && i < count; i++) {
        raw[i] = (char)ids[i];
    }
    for (size_t at = 0; raw != NULL && out != NULL && at < count;) {
        const size_t valid = ox_utf8_valid(raw + at, count - at);
        memcpy(out + used, raw + at, valid);
        used += valid;
        at += valid;
        if (at < count) {
            memcpy(out + used, replacement, mark_bytes);
            used += mark_bytes;
            at++;
        }
    }
    const bool done = raw != NULL && out != NULL;
    free(raw);
    *text = out;
    *bytes = used;
    if (done) {
        out[used] = '\0';
    }
    return done ? OX_OK : ox_fail(OX_E_NOMEM, "no memory for a text of %zu bytes", count);
}

enum ox_status ox_generating_decode(const struct ox_generating *g, const int32_t *ids, size_t count, char **text,
                             size_t *bytes) {
    return g->tokenizer == NULL ? decode_bytes(ids, count, text, bytes)
                                : ox_decode(g->tokenizer, ids, count, true, text, bytes);
}

static enum ox_status encode_plain(struct ox_generating *g, const char *where, const char *text, size_t bytes) {
    struct ox_encoder *encoder = NULL;
    if (g->tokenizer == NULL) {
        return encode_bytes(g, where, text, bytes);
    }
    enum ox_status status = ox_encoder_open(g->tokenizer, &encoder);
    if (status == OX_OK) {
        status = ox_encode(encoder, text, bytes, true, true, &g->ids);
        status = status == OX_OK ? status : ox_fail_in(status, "%s", where);
    }
    ox_encoder_close(&encoder);
    if (status == OX_OK && g->ids.count == 0) {
        status = ox_fail(OX_E_CONFIG, "%s: the text is empty and the tokenizer adds no first token, so there is "
                         "nothing to continue; give a text", where);
    }
    return status;
}

/* Opens the model's chat template. */
static enum ox_status open_chat(struct ox_generating *g) {
    const struct ox_config *const config = g->config;
    struct ox_chat_options options = {.generation_prompt = true};
    json_t *kwargs = NULL;
    enum ox_status status = ox_chat_kwargs(config->rows.chat_template_kwargs, &kwargs);
    if (status == OX_OK && !config->write.thinking &&
        json_object_set_new(kwargs, "enable_thinking", json_false()) != 0) {
        status = ox_fail(OX_E_NOMEM, "no memory for the variables of the chat template");
    }
    char why[OX_ERROR_TEXT_BYTES] = "";
    bool has_none = false;
    options.folder = config->files.tokenizer[0] != '\0' ? config->files.tokenizer : g->text_folder;
    if (status == OX_OK) {
        status = ox_template_open(options.folder, config->rows.chat_template, &g->chat_template);
        has_none = status == OX_E_CONFIG && config->rows.chat_template[0] == '\0';
    }
    if (has_none) { /* the refusal names templates for this tokenizer, which a renderer finds */
        snprintf(why, sizeof why, "%s", ox_error_text());
        status = OX_OK;
    }
    options.no_template = why;
    options.chat_template = g->chat_template;
    options.now = ox_chat_date(config->tool.clock_s);
    options.kwargs = kwargs;
    OX_THEN(status, ox_chat_open(g->tokenizer, &options, &g->renderer));
    OX_THEN(status, has_none ? ox_chat_fail_template(g->renderer) : OX_OK);
    json_decref(kwargs);
    return status;
}

enum ox_status ox_generating_check_text(const char *where, const char *text, size_t bytes) {
    if (memchr(text, '\0', bytes) != NULL) { /* as in rows */
        return ox_fail(OX_E_CONFIG, "%s: the message contains a NUL character; remove it", where);
    }
    const size_t valid = ox_utf8_valid(text, bytes);
    return valid == bytes ? OX_OK : ox_fail(OX_E_CORRUPT, "%s: the text is not UTF-8 at byte %zu (0x%02x)", where,
                                            valid, (unsigned char)text[valid]);
}

enum ox_status ox_generating_add(json_t *messages, const char *role, const char *text) {
    return json_array_append_new(messages, json_pack("{s:s,s:s}", "role", role, "content", text)) == 0
               ? OX_OK : ox_fail(OX_E_CONFIG, "the message of the %s is not UTF-8 text", role);
}

/* Renders messages and appends the ids. */
enum ox_status ox_generating_encode(struct ox_generating *g, const char *where, json_t *messages) {
    const size_t count = json_array_size(messages);
    struct ox_chat chat = {.kind = OX_CHAT_MESSAGES, .message_parts = malloc(count * sizeof *chat.message_parts),
                           .conversation = json_pack("{s:O}", "messages", messages)};
    struct ox_id_mask marks = {0};
    enum ox_status status = chat.message_parts != NULL && chat.conversation != NULL
                                ? OX_OK : ox_fail(OX_E_NOMEM, "no memory for %zu messages", count);
    for (size_t i = 0; i < count && status == OX_OK; i++) {
        chat.message_parts[i] = OX_PART_PROMPT;
    }
    OX_THEN(status, ox_chat_render(g->renderer, where, &chat, &g->ids, &marks));
    ox_id_mask_free(&marks);
    free(chat.message_parts);
    json_decref(chat.conversation);
    return status;
}

/* Begins the messages of a conversation: what --system-prompt says. */
enum ox_status ox_generating_begin(const struct ox_generating *g, json_t *messages) {
    const char *const system_prompt = g->config->write.system_prompt;
    return system_prompt[0] == '\0' ? OX_OK
           : ox_utf8_valid(system_prompt, strlen(system_prompt)) == strlen(system_prompt)
               ? ox_generating_add(messages, "system", system_prompt)
               : ox_fail(OX_E_CONFIG, "--prompt: --system-prompt is not UTF-8 text");
}

/* Renders the prompt as one message. */
static enum ox_status encode_chat(struct ox_generating *g, const char *where, const char *text, size_t bytes) {
    json_t *const messages = json_array();
    enum ox_status status = ox_generating_check_text(where, text, bytes);
    OX_THEN(status, messages != NULL ? ox_generating_begin(g, messages)
                                     : ox_fail(OX_E_NOMEM, "no memory for a message"));
    OX_THEN(status, ox_generating_add(messages, "user", text));
    OX_THEN(status, open_chat(g));
    OX_THEN(status, ox_generating_encode(g, where, messages));
    json_decref(messages);
    return status;
}

/* Reads all of the standard input. */
static enum ox_status read_input(char **text, size_t *bytes) {
    size_t room = 0;
    *text = NULL;
    *bytes = 0;
    do {
        char *const longer = *bytes + 1 >= room ? realloc(*text, room = 2 * room + 4096) : *text;
        if (longer == NULL || *bytes > PROMPT_FILE_BYTES_MAX) {
            return ox_fail(OX_E_CONFIG, "the standard input is longer than a prompt may be");
        }
        *text = longer;
        *bytes += fread(*text + *bytes, 1, room - *bytes - 1, stdin);
    } while (!feof(stdin) && !ferror(stdin));
    (*text)[*bytes] = '\0';
    return ferror(stdin) ? ox_fail(OX_E_IO, "the standard input cannot be read") : OX_OK;
}

enum ox_status ox_generating_prompt(struct ox_generating *g) {
    const struct ox_config *const config = g->config;
    const bool is_input = strcmp(config->write.prompt, "-") == 0 || strcmp(config->write.prompt_file, "-") == 0;
    const bool is_file = config->write.prompt_file[0] != '\0' && !is_input;
    const char *const where = is_input ? "the standard input" : is_file ? config->write.prompt_file : "--prompt";
    char *text = NULL;
    size_t bytes = strlen(config->write.prompt);
    enum ox_status status = OX_OK;
    if (g->messages != NULL) { /* they come one by one */
        status = open_chat(g);
        return status == OX_OK ? ox_generating_begin(g, g->messages) : status;
    }
    if (is_input) {
        status = read_input(&text, &bytes);
    } else if (is_file) {
        status = ox_file_read(config->write.prompt_file, PROMPT_FILE_BYTES_MAX, &text, &bytes);
        if (status == OX_OK && bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* a byte-order mark */
            bytes -= 3;
            memmove(text, text + 3, bytes + 1);
        }
    } else if ((text = strdup(config->write.prompt)) == NULL) {
        status = ox_fail(OX_E_NOMEM, "no memory for the prompt");
    }
    OX_THEN(status, config->write.chat ? encode_chat(g, where, text, bytes) : encode_plain(g, where, text, bytes));
    free(text);
    if (status == OX_OK && g->ids.count == 0) {
        return ox_fail(OX_E_CONFIG, "%s: the chat template renders it to nothing, so there is nothing to continue; "
                       "give another with --chat-template, or leave out --chat", where);
    }
    g->prompt_count = g->ids.count;
    g->text_begin = config->write.chat ? g->prompt_count : 0;
    return status;
}
