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

/* Reads the template and the special tokens of `folder`, which may also be the path of a file in it:
 * - the templates chat_template.jinja (named "default") and additional_chat_templates/NAME.jinja; without either,
 *   "chat_template" of tokenizer_config.json, a text or a list of named texts; without that, chat_template.json;
 * - bos_token, eos_token, unk_token, sep_token, pad_token, cls_token and mask_token of tokenizer_config.json, and of
 *   special_tokens_map.json where the former has no added_tokens_decoder.
 * `choice` takes another template than the folder's default, unless it is "" or NULL. It is, in this order, a file (one
 * ending in .json has "chat_template" as tokenizer_config.json has it; any other is the template itself), one of the
 * folder's named templates, or a built-in one. Where there is no such template, and where `choice` is empty and the
 * folder has none, the failure is OX_E_CONFIG. A template that does not compile fails when it is rendered. */
OX_MUST enum ox_status ox_template_open(const char *folder, const char *choice, struct ox_template **out);
void ox_template_close(struct ox_template **chat_template);

/* From now on renderings end with OX_E_ABORTED while *stop is not 0: a conversation of 100,000 messages takes seconds,
 * and as many renderings as turns. To be called before other threads render; `stop` (NULL: never) outlives it. */
void ox_template_heed(struct ox_template *chat_template, const volatile sig_atomic_t *stop);

/* Where the template comes from: "tokenizer_config.json of FOLDER", "rag of FOLDER", "FILE" or "built in: chatml". */
const char *ox_template_origin(const struct ox_template *chat_template);
/* The folder whose special tokens it has. */
const char *ox_template_folder(const struct ox_template *chat_template);
/* The texts that conversations are rendered by, by name: where a choice takes one, that alone, as "default". The caller
 * owns *out. */
OX_MUST enum ox_status ox_template_texts(const struct ox_template *chat_template, json_t **out);
/* Whether its text may depend on the date, because it names strftime_now. */
bool ox_template_uses_date(const struct ox_template *chat_template);
/* Changes with the template's text, name or special tokens: the key of what was made with them. */
uint64_t ox_template_hash(const struct ox_template *chat_template);

/* The built-in templates, after whose last the name is NULL. */
struct ox_template_builtin {
    const char *name, *text;
};
extern const struct ox_template_builtin ox_template_builtins[];

/* Renders a conversation. As transformers does, it drops keys of a message whose value is null, gives a message with
 * reasoning_content, thinking or reasoning the names that templates read, and takes the template "tool_use" where
 * there is one and the conversation has tools. `now` is what
 * strftime_now formats. *out need not be initialized; free it with ox_jinja_output_free, after failures too, whose
 * whole text is out->error unless it is NULL. */
OX_MUST enum ox_status ox_template_render(const struct ox_template *chat_template, const json_t *conversation,
                                          const struct tm *now, struct ox_jinja_output *out);

/* Whether the template that a conversation takes has {% generation %}. */
bool ox_template_marks_generation(const struct ox_template *chat_template, const json_t *conversation);

/* What one assistant turn of a conversation is in its text: what the model is to write, from the end of the generation
 * prompt to the end of the turn. */
struct ox_template_turn {
    size_t message_idx;
    size_t begin_byte, end_byte;
};
struct ox_template_turns {
    struct ox_jinja_output output; /* the whole conversation, without a generation prompt */
    struct ox_template_turn *turns;
    size_t count;
    uint64_t rendered_messages; /* in all renderings that the search took */
};

/* Renders a conversation and finds its assistant turns; training makes its loss mask from them. Where the template has
 * {% generation %}, each of its blocks is a turn (message_idx is then its number). Elsewhere:
 * - A turn begins where the messages before it end with a generation prompt. Where a template has no such prompt, the
 *   model is to write the turn's header too. Of a prompt that opens a reasoning, such as <think>, counts what the
 *   conversation has. Where a template writes other words before (it puts the system text or tools into the last
 *   question), the turn begins behind what the prompt has from the message before on. A conversation may begin with the
 *   assistant if what the template adds as a prompt stands before that message.
 * - It ends where the messages up to it end, without white space after an end token. What a template drops from earlier
 *   turns, such as their reasoning, is no part of them; nor is what it writes behind every conversation. An end token
 *   that it writes only where something follows is a part.
 * A content that the template writes too, such as ">", is no sign of a place: the search is in the text with stand-ins
 * for such contents, unless the template writes another text then.
 * It takes two renderings for a turn, a third for such an end token, and at most two more for the conversation, three
 * with stand-ins. Of a conversation of more than 256 messages parts are rendered, as many messages in all as a multiple
 * of its own; one of more than 8,192 is OX_E_CONFIG where the template writes them in another way than the whole.
 * OX_E_CONFIG, besides what ox_template_render fails for: the template makes the place of a turn ambiguous. *out need
 * not be initialized; free it with ox_template_turns_free, after failures too. */
OX_MUST enum ox_status ox_template_render_turns(const struct ox_template *chat_template, const json_t *conversation,
                                                const struct tm *now, struct ox_template_turns *out);
/* Finds turns as ox_template_render_turns does, by renderings of all that is before a turn, however long the
 * conversation is; that function calls it for short conversations, and for parts of long ones. */
OX_MUST enum ox_status ox_template_search_turns(const struct ox_template *chat_template, const json_t *conversation,
                                                const struct tm *now, struct ox_template_turns *out);
/* Finds what of `whole`, the text of a conversation, its message `message_idx` decides by its content: from the first
 * to the last byte that another content changes. OX_E_CONFIG: the template refuses another content. */
OX_MUST enum ox_status ox_template_find_content(const struct ox_template *chat_template, const json_t *conversation,
                                                const struct tm *now, const struct ox_jinja_output *whole,
                                                size_t message_idx, struct ox_template_turn *out);
/* A copy of a message with another content, which no text holds: private-use characters. The caller owns it; NULL
 * without memory. */
json_t *ox_template_other_content(const json_t *message);
void ox_template_turns_free(struct ox_template_turns *turns);

/* The variables of a rendering: special tokens (an object, may be NULL), then what the conversation gives, as above.
 * The caller owns *out. */
OX_MUST enum ox_status ox_template_variables(const json_t *special_tokens, const json_t *conversation, json_t **out);

#ifdef __cplusplus
}
#endif
#endif
