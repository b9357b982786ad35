/* Conversations: reads JSON rows in the usual forms and renders them with a chat template into token ids and a loss
 * mask. engine/data calls it for training rows, tools/command for prompts.
 *
 * The templates are written by hand, one per family, because a model's Jinja template does not tell which part of its
 * output the assistant wrote. The ids equal those of the original template and tokenizer.
 *
 * The loss covers the content of assistant turns and the token that ends each turn. It leaves out headers, system,
 * user and tool texts, BOS, and the newline after the end of a turn. A token that reaches into a trained part counts
 * as trained. */
#ifndef OX_ENGINE_CHAT_H
#define OX_ENGINE_CHAT_H

#include "base/json.h"
#include "base/status.h"
#include "engine/text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- rows ---------------------------------------------------------------------------------------------------- */

enum ox_chat_role { OX_CHAT_SYSTEM, OX_CHAT_USER, OX_CHAT_ASSISTANT, OX_CHAT_TOOL, OX_CHAT_ROLE_COUNT };

struct ox_chat_message {
    enum ox_chat_role role;
    char *text;      /* NUL-terminated, never NULL */
    char *reasoning; /* "reasoning_content", or NULL; only the qwen3 template writes it */
    bool trained;    /* true for the assistant, unless its weight is 0 */
};

enum ox_chat_kind {
    OX_CHAT_TEXT,       /* one message without a template; all of it is trained */
    OX_CHAT_COMPLETION, /* two messages without a template: the prompt, then the completion, which is trained */
    OX_CHAT_MESSAGES,   /* any number of messages, rendered by a template */
};

struct ox_chat {
    enum ox_chat_kind kind;
    struct ox_chat_message *messages;
    size_t count, capacity;
};

/* Reads one row. A row has one of these forms, the first whose key it contains; other keys are ignored, except the
 * refused ones below:
 *   {"messages": [{"role", "content"}]}   roles system, user, assistant, tool, in any order
 *   {"conversations": [{"from", "value"}], "system"}   sharegpt: human, gpt, system, observation, function_call; after
 *       an optional system message, (human or observation) alternates with (gpt or function_call) and the latter ends
 *   {"instruction", "input", "output", "system", "history": [[user, assistant]]}   alpaca
 *   {"prompt", "completion"}
 *   {"text"}
 * "content" is a text or a list of {"type": "text", "text" or "value"}. "weight" or "loss_weight" of an assistant
 * message is 0 (not trained) or 1. Rows with tool calls or tool descriptions ("tool_calls", "tools") are refused,
 * because dropping them would change what the conversation says.
 * `where` is the file and line that an error starts with; the error also names the key. *out starts zeroed or holds an
 * earlier row, which is freed; the caller frees the result with ox_chat_free. A failure (OX_E_CONFIG, OX_E_NOMEM)
 * leaves *out empty. */
OX_MUST enum ox_status ox_chat_read(const char *where, const json_t *row, struct ox_chat *out);
OX_MUST enum ox_status ox_chat_read_line(const char *where, const char *line, size_t bytes, struct ox_chat *out);
/* Frees the messages and zeroes *chat, which can then be read into again. */
void ox_chat_free(struct ox_chat *chat);

/* ---- templates ----------------------------------------------------------------------------------------------- */

/* Each comment shows what the family writes: S, U and A are the system, user and assistant texts, and [[ ]] encloses
 * what is trained. Texts are written unchanged unless the comment says trimmed. */
enum ox_chat_family {
    OX_CHAT_CHATML, /* <|im_start|>role\nU<|im_end|>\n<|im_start|>assistant\n[[A<|im_end|>]]\n */
    OX_CHAT_QWEN25, /* chatml with a default system text; tool answers are written as user turns */
    OX_CHAT_QWEN3,  /* chatml; keeps reasoning only after the last question. A last turn without reasoning gets an
                     * empty one, which is trained because the prompt for generation ends before it */
    OX_CHAT_LLAMA2, /* <s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] [[A </s>]]<s>[INST] U ...; U and A trimmed */
    OX_CHAT_LLAMA3, /* <|begin_of_text|> once; <|start_header_id|>role<|end_header_id|>\n\n[[A<|eot_id|>]]; trimmed */
    OX_CHAT_MISTRAL_V1,        /* <s> [INST] U [/INST][[ A</s>]] [INST] ... */
    OX_CHAT_MISTRAL_V3,        /* <s>[INST] U[/INST][[ A</s>]][INST] ...; A trimmed */
    OX_CHAT_MISTRAL_V3_TEKKEN, /* <s>[INST]U[/INST][[A</s>]][INST]... */
    OX_CHAT_MISTRAL_V7,        /* <s>[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] U[/INST][[ A</s>]] */
    OX_CHAT_MISTRAL_V7_TEKKEN, /* mistral-v7 without the spaces */
    OX_CHAT_FAMILY_COUNT
};
/* Limits of the families; a conversation outside them is OX_E_CONFIG:
 * - mistral v1 and v3 have no place for a system text, so "S\n\n" precedes the first user text. (Some templates put it
 *   before the last user text, and only when that ends the row: rows that end with the assistant would lose it.)
 * - llama2 and mistral need user and assistant to alternate after an optional system message.
 * - llama2, llama3 and mistral have no tool messages.
 * - llama3 is the template of Llama 3; that of 3.1 and later adds a system text with dates, which is left out here. */

const char *ox_chat_family_name(enum ox_chat_family family); /* "mistral-v3-tekken" */
/* Finds the family by `name` or, if `name` is NULL, by strings in the tokenizer's own chat template. An unknown name
 * or template is OX_E_CONFIG with the list of names and the option --chat-template. */
OX_MUST enum ox_status ox_chat_family_pick(const struct ox_tokenizer *tokenizer, const char *name,
                                           enum ox_chat_family *out);

/* ---- rendering ----------------------------------------------------------------------------------------------- */

struct ox_chat_options {
    const char *family;     /* a name, or NULL to detect the family at the first conversation */
    bool parse_special;     /* special-token strings in the texts of a row become special tokens */
    bool generation_prompt; /* end conversations with the assistant's header, for the model to continue */
    bool no_thinking;       /* qwen3: put an empty reasoning into the generation prompt */
};

/* Renders conversations. Special-token strings become special tokens only where the template writes them. In the texts
 * of a row they stay ordinary text, so that no text can end or begin a turn; parse_special turns them into tokens
 * there too, as transformers does. Added tokens that are not special, such as <think>, are tokens everywhere. [INST]
 * is plain text in llama2 and mistral v1, so it works inside a row's text as well.
 * One thread at a time may use a renderer; `tokenizer` must outlive it. */
struct ox_chat_renderer;
OX_MUST enum ox_status ox_chat_open(const struct ox_tokenizer *tokenizer, const struct ox_chat_options *options,
                                    struct ox_chat_renderer **out);
void ox_chat_close(struct ox_chat_renderer **renderer);

/* Appends token ids to *ids and, for each, 1 (trained) or 0 to *trained. Conversations get only the BOS that their
 * template writes. The other kinds get a BOS first if the tokenizer adds one, and a trained EOS last if it has one.
 * `where` is the file and line for errors. A failure appends nothing. */
OX_MUST enum ox_status ox_chat_render(struct ox_chat_renderer *renderer, const char *where, const struct ox_chat *chat,
                                      struct ox_ids *ids, struct ox_id_mask *trained);

#ifdef __cplusplus
}
#endif
#endif
