/* What the folders that a run saves say of its tokenizer: the chat template and the tokens that end a text, so that
 * another program renders and stops as this one does. */
#include "engine/run/trainer_internal.h"

#include "base/log.h"
#include "engine/text/chat.h"

#include <string.h>

/* Adds a token that ends a text, if the model has it. */
static void add_end(struct ox_trainer *trainer, int64_t id) {
    struct ox_hf_tokens *const tokens = &trainer->input.tokens;
    const bool known = tokens->end_count > 0 && tokens->ends[0] == id;
    if (id >= 0 && id < (int64_t)trainer->input.vocab && !known) {
        tokens->ends[tokens->end_count++] = id;
    }
}

/* Takes the texts of the template, and the token at which an answer ends. */
static enum ox_status take_template(struct ox_trainer *trainer, const struct ox_tokenizer *tokenizer) {
    const struct ox_config *const config = &trainer->config;
    struct ox_template *chat_template = NULL;
    struct ox_chat_renderer *renderer = NULL;
    json_t *kwargs = NULL;
    int64_t end = -1;
    enum ox_status status = ox_template_open(trainer->input.tokenizer_path, config->chat_template, &chat_template);
    OX_TRY(status, ox_chat_kwargs(config->chat_template_kwargs, &kwargs));
    const struct ox_chat_options options = {
        .chat_template = chat_template, .kwargs = kwargs, .now = ox_chat_date(trainer->input.clock_s)};
    OX_TRY(status, ox_chat_open(tokenizer, &options, &renderer));
    OX_TRY(status, ox_chat_end_of_turn(renderer, &end));
    OX_TRY(status, ox_template_texts(chat_template, &trainer->input.tokens.templates));
    if (status == OX_OK) {
        add_end(trainer, end);
    }
    ox_chat_close(&renderer);
    ox_template_close(&chat_template);
    json_decref(kwargs);
    return status;
}

/* An id that the model has, else -1. */
static int64_t known_id(const struct ox_trainer *trainer, int64_t id) {
    return id < (int64_t)trainer->input.vocab ? id : -1;
}

static enum ox_status find(struct ox_trainer *trainer, bool chat) {
    struct ox_hf_tokens *const tokens = &trainer->input.tokens;
    struct ox_tokenizer *tokenizer = NULL;
    enum ox_status status = ox_tokenizer_open(trainer->input.tokenizer_path, &tokenizer);
    if (status == OX_OK) {
        *tokens = (struct ox_hf_tokens){.bos = known_id(trainer, ox_tokenizer_bos(tokenizer)),
                                        .pad = known_id(trainer, ox_tokenizer_pad(tokenizer)),
                                        .replaces = !trainer->begins_given || trainer->config.from_scratch};
        add_end(trainer, ox_tokenizer_eos(tokenizer));
    }
    if (chat || trainer->config.chat_template[0] != '\0') {
        OX_TRY(status, take_template(trainer, tokenizer));
    }
    ox_tokenizer_close(&tokenizer);
    OX_TRY(status, ox_hf_config_with(ox_hf_config(trainer->folder), tokens, &trainer->input.saved_config));
    return status;
}

enum ox_status ox_trainer_find_tokens(struct ox_trainer *trainer, bool chat) {
    const struct ox_trainer_input *const input = &trainer->input;
    if (input->eval_alone || input->tokenizer_path[0] == '\0' || trainer->folder == NULL ||
        trainer->config.output_dir[0] == '\0') {
        return OX_OK;
    }
    ox_trainer_drop_tokens(trainer);
    const enum ox_status status = find(trainer, chat);
    if (status == OX_E_CONFIG || status == OX_E_CORRUPT) { /* data that needs it has been refused */
        ox_log(OX_LOG_WARN, "what is saved says nothing of the tokenizer: %s", ox_error_text());
        ox_trainer_drop_tokens(trainer);
        return OX_OK;
    }
    trainer->input.has_tokens = status == OX_OK;
    return status;
}

void ox_trainer_drop_tokens(struct ox_trainer *trainer) {
    json_decref(trainer->input.tokens.templates);
    json_decref(trainer->input.saved_config);
    trainer->input.tokens = (struct ox_hf_tokens){0};
    trainer->input.saved_config = NULL;
    trainer->input.has_tokens = false;
}
