/* Conversations: reads JSON rows in the usual forms and turns them into token ids and a loss mask, through the model's
 * own chat template. engine/data calls it for training rows, tools/command for prompts.
 *
 * The ids equal those of transformers' apply_chat_template with the same template and tokenizer. The loss covers what
 * the model would have to write: of an assistant turn everything from the end of the generation prompt to the token
 * that ends the turn (template.h says how it is found). A token that reaches into a trained part counts as trained. */
#ifndef OX_ENGINE_CHAT_H
#define OX_ENGINE_CHAT_H

#include "base/json.h"
#include "base/status.h"
#include "engine/text/template.h"
#include "engine/text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- rows ---------------------------------------------------------------------------------------------------- */

enum ox_chat_kind {
    OX_CHAT_TEXT,       /* `text` without a template; all of it is trained */
    OX_CHAT_COMPLETION, /* `prompt`, then `text`, without a template; OX_TRAIN_ON_PROMPTS trains the prompt too */
    OX_CHAT_MESSAGES,   /* `conversation`, rendered by the template */
    OX_CHAT_IDS,        /* `ids`, of which those whose `trained` is 1 count; nothing is added to them */
};

/* When a message is trained. */
enum ox_chat_part {
    OX_PART_PROMPT,   /* with OX_TRAIN_ON_PROMPTS alone */
    OX_PART_ANSWER,   /* it is the assistant's */
    OX_PART_EXCLUDED, /* never: its weight is 0 */
};

/* One row. */
struct ox_chat {
    enum ox_chat_kind kind;
    json_t *conversation; /* {"messages", "tools", "documents", "chat_template_kwargs"}, for ox_template_render */
    enum ox_chat_part *message_parts;
    char *prompt, *text;  /* NUL-terminated; NULL where the kind has none */
    struct ox_ids ids;
    struct ox_id_mask trained; /* one for each of the ids */
    const char *judged;   /* a key of the row or an answer that has an opinion of it, "rating"; static, may be NULL */
};
size_t ox_chat_message_count(const struct ox_chat *chat);

/* The keys of rows and of messages that a user may name; the first OX_COLUMN_FORM_COUNT tell the form of a row. */
enum ox_chat_column {
    OX_COLUMN_MESSAGES, OX_COLUMN_PROMPT, OX_COLUMN_COMPLETION, OX_COLUMN_INSTRUCTION, OX_COLUMN_INPUT,
    OX_COLUMN_OUTPUT, OX_COLUMN_TEXT, OX_COLUMN_FORM_COUNT,
    OX_COLUMN_SYSTEM = OX_COLUMN_FORM_COUNT, OX_COLUMN_TOOLS, OX_COLUMN_ROLE, OX_COLUMN_CONTENT, OX_COLUMN_COUNT,
};
struct ox_chat_columns {
    const char *names[OX_COLUMN_COUNT]; /* NULL or "": the usual one */
};

/* Reads one row. A row has exactly one of these forms; other keys are ignored, and null counts as missing:
 *   {"messages": [...], "system"}        a message has "role" and "content", and whatever else its template reads
 *   {"conversations": [...], "system"}   the same; in both, a message may have "from" and "value" instead (sharegpt)
 *   {"prompt", "completion"}             two texts, or two lists of messages, of which the second is trained
 *   {"instruction", "input", "output", "system", "history": [[user, assistant]]}   alpaca
 *   {"instruction", "context", "response"}                                         dolly
 *   {"text"}
 *   {"input_ids", "labels", masks}       token ids: what trainers keep of texts that they have tokenized (below)
 * with "tools", "documents" and "chat_template_kwargs" beside conversations. `columns` (may be NULL) names keys; a form
 * is then considered only if it has one of the keys that are named. No form, or two at once, is an error.
 * A row with "input_ids" is that form, whatever else it has, unless columns are named. "labels" has the same ids, or
 * -100 where nothing is trained; "loss_mask", "completion_mask" and "assistant_masks" have 1 where something is, and
 * all of them count; without any, all is. Where "attention_mask" is 0, at the ends, is padding, which is dropped.
 * "content" is a text or a list of {"type": "text", "text" or "value"}; a message with "tool_calls" may lack it.
 * "weight" or "loss_weight" of a message is 0 (not trained) or, for the assistant, 1; the template does not see it.
 * "tools" and lists of messages may be JSON in a text. `where` is the file and line that an error starts with;
 * the error also names the key. *out starts zeroed or holds an earlier row, which is freed; the caller frees the result
 * with ox_chat_free. A failure (OX_E_CONFIG, OX_E_NOMEM) leaves *out empty. */
OX_MUST enum ox_status ox_chat_read(const char *where, const json_t *row, const struct ox_chat_columns *columns,
                                    struct ox_chat *out);
OX_MUST enum ox_status ox_chat_read_line(const char *where, const char *line, size_t bytes,
                                         const struct ox_chat_columns *columns, struct ox_chat *out);
/* Frees the row and zeroes *chat, which can then be read into again. */
void ox_chat_free(struct ox_chat *chat);

/* A preference: two answers to one prompt, of which the first is the better one. */
struct ox_chat_pair {
    struct ox_chat chosen, rejected; /* the prompt with each; of the kind COMPLETION or MESSAGES */
    size_t prompt_messages;          /* so many of the messages are the prompt */
};
/* Reads a row of "chosen" and "rejected", both texts or both lists of messages, in the forms of TRL's DPOTrainer:
 *   {"prompt", "chosen", "rejected"}   three texts, or three lists of messages; a text also beside lists of messages,
 *                                      which is the user's message unless the lists begin with it
 *   {"chosen", "rejected"}             the prompt is what both begin with: characters, less a space at its end, or
 *                                      messages
 * Keys beside them, `columns`, failures and ownership are as of ox_chat_read; of the columns those of the prompt, the
 * system, the tools, roles and contents count. */
OX_MUST enum ox_status ox_chat_read_pair(const char *where, const char *line, size_t bytes,
                                         const struct ox_chat_columns *columns, struct ox_chat_pair *out);
void ox_chat_pair_free(struct ox_chat_pair *pair);

/* ---- the date ------------------------------------------------------------------------------------------------ */

/* The date at which a clock that shows local time reads `clock_s`, in seconds since it read the beginning of 1970. A
 * run records that number, so that its date stays the same wherever it is resumed. */
struct tm ox_chat_date(int64_t clock_s);

/* ---- rendering ----------------------------------------------------------------------------------------------- */

enum ox_train_on {
    OX_TRAIN_ON_ALL,     /* all assistant turns */
    OX_TRAIN_ON_LAST,    /* the last assistant turn */
    OX_TRAIN_ON_PROMPTS, /* everything but messages whose weight is 0 */
};

/* Whether BOS and EOS are added to texts, and to prompts with their completions. AUTO: the BOS if the tokenizer adds
 * one, the EOS if it has one. One that the text has already is not added again. */
enum ox_add { OX_ADD_AUTO, OX_ADD_ON, OX_ADD_OFF };

struct ox_chat_options {
    const struct ox_template *chat_template; /* outlives the renderer; NULL: conversations are refused */
    const char *no_template, *folder;        /* then: why there is none, and whose; both outlive the renderer */
    struct tm now;                           /* the date that templates print */
    const json_t *kwargs;                    /* variables of the template; those of a row precede. May be NULL */
    enum ox_train_on train_on;
    enum ox_add add_bos, add_eos;
    bool parse_special;     /* special-token strings in the texts of a conversation become special tokens */
    bool generation_prompt; /* end conversations with the assistant's header, for the model to continue */
};

/* Reads the text of --chat-template-kwargs, a JSON object, or "" for none. The caller owns *out. */
OX_MUST enum ox_status ox_chat_kwargs(const char *text, json_t **out);

/* Renders rows. In texts that need no template, special-token strings are special tokens. In a conversation they are so
 * only where the template writes them; in its own texts they stay ordinary text, so that no text can end or begin a
 * turn, and a template that looks at such a string makes the row an error. parse_special turns them into tokens there
 * too, as transformers does. Added tokens that are not special, such as Qwen3's <think>, are tokens everywhere.
 * A content that is a list of texts is given to the template as a list where the template reads lists, else as one
 * text. One thread at a time may use a renderer; `tokenizer` must outlive it. */
struct ox_chat_renderer;
OX_MUST enum ox_status ox_chat_open(const struct ox_tokenizer *tokenizer, const struct ox_chat_options *options,
                                    struct ox_chat_renderer **out);
void ox_chat_close(struct ox_chat_renderer **renderer);

/* OX_E_CONFIG: why conversations are refused where there is no template, and which built-in ones the tokenizer can
 * use. */
OX_MUST enum ox_status ox_chat_fail_template(struct ox_chat_renderer *renderer);

/* Appends token ids to *ids and, for each, 1 (trained) or 0 to *trained. Conversations get only the BOS that their
 * template writes. The other kinds get a BOS first and a trained EOS last, as the options say.
 * `where` is the file and line for errors. A failure appends nothing. */
OX_MUST enum ox_status ox_chat_render(struct ox_chat_renderer *renderer, const char *where, const struct ox_chat *chat,
                                      struct ox_ids *ids, struct ox_id_mask *trained);

/* Appends the ids of the prompt with the chosen answer, then of the prompt with the rejected one, whose first id is at
 * *second. As TRL does it, the prompt is encoded alone too, of a conversation with the header of the answer behind it;
 * what is trained begins where one of the two sequences departs from that. OX_E_CONFIG also where an answer then has no
 * token to be predicted. */
OX_MUST enum ox_status ox_chat_render_pair(struct ox_chat_renderer *renderer, const char *where,
                                           const struct ox_chat_pair *pair, struct ox_ids *ids,
                                           struct ox_id_mask *trained, size_t *second);

/* Whether a text begins, or with `at_end` ends, with the string of the special token `id`, white space left aside. */
bool ox_chat_has_end(const struct ox_tokenizer *tokenizer, int64_t id, const char *text, size_t bytes, bool at_end);

/* What a renderer noticed in the rows that it rendered for training. */
enum ox_chat_note {
    OX_NOTE_TOOLS, OX_NOTE_DOCUMENTS, OX_NOTE_TOOL_CALLS, OX_NOTE_REASONING, /* keys that the template may not read */
    OX_NOTE_KEY_COUNT,
    OX_NOTE_EMPTY = OX_NOTE_KEY_COUNT, /* an empty answer that is trained                                           */
    OX_NOTE_BLANK,                     /* an empty text                                                             */
    OX_NOTE_EQUAL,                     /* both answers of a preference are the same                                 */
    OX_NOTE_SPELLED,                   /* a special token's string is trained as letters                            */
    OX_NOTE_FOREIGN,                   /* ready-made text with a tag such as <|im_end|> that is no token here       */
    OX_NOTE_IGNORED,                   /* the template writes nothing of what a message says                        */
    OX_NOTE_HALF,                      /* it writes a part of that                                                  */
    OX_NOTE_JUDGED,                    /* a key has an opinion of the row, which counts for nothing                 */
    OX_NOTE_COUNT,
    OX_NOTE_PLACED = OX_NOTE_IGNORED,  /* from here on the place is noted too                                       */
    OX_NOTE_PLACED_COUNT = OX_NOTE_COUNT - OX_NOTE_PLACED,
};
struct ox_chat_notes {
    uint64_t rows[OX_NOTE_COUNT];
    bool read[OX_NOTE_KEY_COUNT]; /* some row has another text without the key: the template reads it */
};
void ox_chat_add_notes(const struct ox_chat_renderer *renderer, struct ox_chat_notes *sum);
/* Notes a text, or a prompt with its completion, that the caller encodes itself. */
void ox_chat_note_plain(struct ox_chat_renderer *renderer, const struct ox_chat *chat);

/* Where the row rendered or noted last gave rise to a note of those that are placed: the first message, or the key. */
struct ox_chat_noted {
    bool is_there;
    size_t message_idx;
    char name[32]; /* the message's role, or the key; cut off where it is longer */
};
struct ox_chat_noted ox_chat_noted(const struct ox_chat_renderer *renderer, enum ox_chat_note note);

/* The end of a turn that the template writes like a special token (<|...|>, </s>) and that is none of this tokenizer,
 * so that its letters are trained; "" if there is no such thing. */
enum { OX_CHAT_TAG_BYTES = 64 };
OX_MUST enum ox_status ox_chat_lettered_end(struct ox_chat_renderer *renderer, char tag[OX_CHAT_TAG_BYTES]);

/* The added token that the template writes after an assistant's content, at which generation stops; -1 if it writes
 * none, or cannot render a question with its answer. */
OX_MUST enum ox_status ox_chat_end_of_turn(struct ox_chat_renderer *renderer, int64_t *id);
/* Appends that token, if there is one, and those that end other turns, such as a call of a tool; none that the template
 * also writes inside of a turn. */
OX_MUST enum ox_status ox_chat_ends_of_turn(struct ox_chat_renderer *renderer, struct ox_ids *out);

#ifdef __cplusplus
}
#endif
#endif
