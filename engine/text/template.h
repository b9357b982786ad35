/* The chat template of a model folder: found as transformers finds it, rendered by engine/jinja.
 *
 * A conversation is a JSON object with "messages" and, where it has them, "tools", "documents",
 * "add_generation_prompt" and "chat_template_kwargs" (further variables of the chat_template). */
#ifndef OX_ENGINE_TEMPLATE_H
#define OX_ENGINE_TEMPLATE_H

#include "engine/jinja/jinja.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_template; /* immutable after open: any number of threads may render */

/* Reads the template and the special tokens of `folder`:
 * - the templates chat_template.jinja (named "default") and additional_chat_templates/NAME.jinja; without either,
 *   "chat_template" of tokenizer_config.json, a text or a list of named texts; without that, chat_template.json;
 * - bos_token, eos_token, unk_token, sep_token, pad_token, cls_token and mask_token of tokenizer_config.json, and of
 *   special_tokens_map.json where the former has no added_tokens_decoder.
 * A folder without a template is OX_E_CONFIG. A template that does not compile fails when it is rendered. */
OX_MUST enum ox_status ox_template_open(const char *folder, struct ox_template **out);
void ox_template_close(struct ox_template **chat_template);

/* Renders a conversation. As transformers does, it drops keys of a message whose value is null, gives a message with
 * reasoning_content, thinking or reasoning the names that templates read, and takes the template "tool_use" where
 * there is one and the conversation has tools. `now` is what strftime_now formats. *out need not be initialized; free
 * it with ox_jinja_output_free, after failures too, whose whole text is out->error unless it is NULL. */
OX_MUST enum ox_status ox_template_render(const struct ox_template *chat_template, const json_t *conversation,
                                          const struct tm *now, struct ox_jinja_output *out);

/* The variables of a rendering: special tokens (an object, may be NULL), then what the conversation gives, as above.
 * The caller owns *out. */
OX_MUST enum ox_status ox_template_variables(const json_t *special_tokens, const json_t *conversation, json_t **out);

#ifdef __cplusplus
}
#endif
#endif
