/* Conversations: rows of JSON in the usual forms, and the chat templates that turn them into ids with a mask of what
 * is trained. The templates are written by hand, family by family, because the Jinja text of a model does not tell
 * which of its output is the assistant's; ids equal those of the original template and tokenizer.
 *
 * Trained are the content of assistant turns and the token that ends the turn; masked are headers, system, user and
 * tool texts, BOS, and the newline behind an end of turn. A token across the border of a trained part is trained. */
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

enum ox_chat_role { OX_CHAT_SYSTEM, OX_CHAT_USER, OX_CHAT_ASSISTANT, OX_CHAT_TOOL };

struct ox_chat_message {
    enum ox_chat_role role;
    char *text;      /* NUL-terminated, never NULL */
    char *reasoning; /* "reasoning_content", or NULL; qwen3 alone writes it */
    bool trained;    /* an assistant's, unless its weight is 0 */
};

enum ox_chat_kind {
    OX_CHAT_TEXT,       /* one message: all of it is trained */
    OX_CHAT_COMPLETION, /* two messages without a template: prompt, and completion, which is trained */
    OX_CHAT_MESSAGES,
};

struct ox_chat {
    enum ox_chat_kind kind;
    struct ox_chat_message *messages;
    size_t count, capacity;
};

/* One row, which is the first of these forms whose key it has (other keys are ignored, unless said otherwise):
 *   {"messages": [{"role", "content"}]}   roles system, user, assistant, tool, in any order
 *   {"conversations": [{"from", "value"}], "system"}   sharegpt: human, gpt, system, observation, function_call; after
 *       an optional system message, human or observation and gpt or function_call take turns and end with the latter
 *   {"instruction", "input", "output", "system", "history": [[user, assistant]]}   alpaca
 *   {"prompt", "completion"}
 *   {"text"}
 * "content" is a text or a list of {"type": "text", "text" or "value"}. "weight" or "loss_weight" of an assistant's
 * message may be 0 (not trained) or 1. Tool calls and tool descriptions ("tool_calls", "tools") are refused: leaving
 * them out would change what is said. `where` names file and line in errors, which name the key. *out is zeroed or
 * was filled before; it is emptied first, and left empty on failure. */
OX_MUST enum ox_status ox_chat_read(const char *where, const json_t *row, struct ox_chat *out);
OX_MUST enum ox_status ox_chat_read_line(const char *where, const char *line, size_t bytes, struct ox_chat *out);
/* Frees what it holds; it can be filled again. */
void ox_chat_free(struct ox_chat *chat);

/* ---- templates ----------------------------------------------------------------------------------------------- */

/* As in the comments, where S, U, A are texts of system, user and assistant and [[ ]] is trained:
 * the assistant's A is written as it stands, or trimmed where it says so. */
enum ox_chat_family {
    OX_CHAT_CHATML, /* <|im_start|>role\nU<|im_end|>\n<|im_start|>assistant\n[[A<|im_end|>]]\n */
    OX_CHAT_QWEN25, /* chatml with a system text of its own where none is given; tool answers in user turns */
    OX_CHAT_QWEN3,  /* chatml; reasoning is kept behind the last question only, where a last turn without any gets
                     * an empty one (trained, as the prompt for generation ends before it) */
    OX_CHAT_LLAMA2, /* <s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] [[A </s>]]<s>[INST] U ...; U and A trimmed */
    OX_CHAT_LLAMA3, /* <|begin_of_text|> once; <|start_header_id|>role<|end_header_id|>\n\n[[A<|eot_id|>]]; trimmed */
    OX_CHAT_MISTRAL_V1,        /* <s> [INST] U [/INST][[ A</s>]] [INST] ... */
    OX_CHAT_MISTRAL_V3,        /* <s>[INST] U[/INST][[ A</s>]][INST] ...; A trimmed */
    OX_CHAT_MISTRAL_V3_TEKKEN, /* <s>[INST]U[/INST][[A</s>]][INST]... */
    OX_CHAT_MISTRAL_V7,        /* <s>[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] U[/INST][[ A</s>]] */
    OX_CHAT_MISTRAL_V7_TEKKEN, /* the same without the spaces */
    OX_CHAT_FAMILY_COUNT
};
/* mistral v1 and v3 have no place for a system text; "S\n\n" stands before the first user text. (Some templates put it
 * before the last one, and only if nothing follows: rows that end with the assistant would lose it.) llama2 and mistral
 * need user and assistant to take turns, after an optional system message, and they and llama3 have no tool messages:
 * anything else is OX_E_CONFIG. llama3 is the template of Llama 3; those of 3.1 and later put a system text with dates
 * in front, which is left out. */

const char *ox_chat_family_name(enum ox_chat_family family); /* "mistral-v3-tekken" */
/* By `name`, or where that is NULL by strings in the tokenizer's chat template. What is not known is OX_E_CONFIG with
 * the list of names and the option --chat-template. */
OX_MUST enum ox_status ox_chat_family_pick(const struct ox_tokenizer *tokenizer, const char *name,
                                           enum ox_chat_family *out);

/* ---- rendering ----------------------------------------------------------------------------------------------- */

struct ox_chat_options {
    const char *family;     /* a name, or NULL: detected when the first conversation comes */
    bool parse_special;     /* below */
    bool generation_prompt; /* conversations end with the assistant's header, for a model to go on */
    bool no_thinking;       /* qwen3: the generation prompt holds an empty reasoning */
};

/* Special-token strings become special tokens where the template writes them. In the texts of a row they stay ordinary
 * text, so that nobody's text can end a turn or begin one; parse_special reads them there too, as transformers does.
 * (Tokens that are added but not special, such as <think>, are tokens everywhere; so is [INST] as the plain text that
 * it is in llama2 and mistral v1.)
 * One thread uses it at a time; `tokenizer` must outlive it. */
struct ox_chat_renderer;
OX_MUST enum ox_status ox_chat_open(const struct ox_tokenizer *tokenizer, const struct ox_chat_options *options,
                                    struct ox_chat_renderer **out);
void ox_chat_close(struct ox_chat_renderer **renderer);

/* Appends ids and, beside each, 1 if it is trained and 0 if not. Conversations have the BOS that their template
 * writes, and no other. The other kinds get BOS where the tokenizer adds one, and its EOS (trained) behind them where
 * it has one. `where` as above. On failure nothing is appended. */
OX_MUST enum ox_status ox_chat_render(struct ox_chat_renderer *renderer, const char *where, const struct ox_chat *chat,
                                      struct ox_ids *ids, struct ox_marks *trained);

#ifdef __cplusplus
}
#endif
#endif
