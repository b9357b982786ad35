/* Shared by the files of `offload generate`: what it works on, its prompt and its messages. */
#ifndef OX_TOOLS_GENERATING_H
#define OX_TOOLS_GENERATING_H

#include "engine/config/config.h"
#include "engine/generate/generate.h"
#include "engine/generate/sample.h"
#include "engine/generate/stops.h"
#include "engine/text/chat.h"

#include <jansson.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Text printed while tokens come: what the tokens from `shown` on add to the text of [from, shown). A decoder treats
 * the first piece of a text differently, so one piece that was already printed precedes them. */
struct ox_text_stream {
    size_t from, shown;
    bool line_open;
};

struct ox_generating {
    const struct ox_config *config;
    struct ox_hf_folder *folder;
    char text_folder[OX_PATH_BYTES]; /* of the model or the adapter: with the tokenizer, its template, the ends */
    struct ox_tokenizer *tokenizer; /* NULL: the model's tokens are bytes */
    struct ox_template *chat_template; /* this and the renderer: with --chat alone */
    struct ox_chat_renderer *renderer;
    struct ox_generator *generator;
    struct ox_cuda_config cuda;
    struct ox_cuda_device_info gpu;  /* where a GPU computes */
    uint64_t gpu_bytes, process_bytes; /* its memory to use; what driver, code and libraries take of that */
    bool on_gpu;
    struct ox_sampler *sampler;
    struct ox_ids ids, stops;
    struct ox_stop_texts stop_texts;
    size_t prompt_count, text_begin, text_end; /* indices into ids */
    size_t text_bytes; /* of the text behind the prompt, up to a stop text; SIZE_MAX: all of it */
    json_t *messages;  /* of a conversation; NULL: there is one prompt */
    json_t *samples;   /* of --format json, with several */
    struct ox_text_stream stream;
    struct ox_said { /* with stop texts: the text behind the prompt */
        char *text; /* freed at the end */
        size_t room, bytes, printed; /* `bytes` are whole characters, in which no stop text is */
        size_t from, shown; /* as of a stream: the tokens of these bytes end at `shown` */
    } said;
    bool streams;
    const char *finish;
    double seconds, step_seconds; /* time of everything, and of the passes after the prompt, of all samples */
    size_t steps, made; /* these passes, and new tokens, of all samples */
    struct ox_logit *top; /* (top_logits), after */
    size_t top_count;
    double nll_sum, logit_sum, logsumexp;
};

/* Refuses options that contradict each other, and takes the stop texts. */
OX_MUST enum ox_status ox_generating_check(struct ox_generating *g);
OX_MUST enum ox_status ox_generating_model(struct ox_generating *g);
/* Appends the ids of the prompt, or begins the messages of a conversation. */
OX_MUST enum ox_status ox_generating_prompt(struct ox_generating *g);
/* The text of ids, which the caller frees. */
OX_MUST enum ox_status ox_generating_decode(const struct ox_generating *g, const int32_t *ids, size_t count,
                                            char **text, size_t *bytes);

/* Messages, as chat templates have them. `where` names the text in errors. */
OX_MUST enum ox_status ox_generating_begin(const struct ox_generating *g, json_t *messages);
OX_MUST enum ox_status ox_generating_check_text(const char *where, const char *text, size_t bytes);
OX_MUST enum ox_status ox_generating_add(json_t *messages, const char *role, const char *text);
/* Appends the ids of all messages, and of the beginning of an answer. */
OX_MUST enum ox_status ox_generating_encode(struct ox_generating *g, const char *where, json_t *messages);

#ifdef __cplusplus
}
#endif
#endif
