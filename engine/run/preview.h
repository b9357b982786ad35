/* Shows rows as training would see them, so that users can check their data; needs no model. */
#ifndef OX_ENGINE_PREVIEW_H
#define OX_ENGINE_PREVIEW_H

#include "engine/config/config.h"
#include "engine/text/tokenizer.h"
#include "engine/data/corpus.h"
#include "engine/data/windows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the options say of how a file becomes documents: its format, what parts them, the keys of rows; not how they
 * become tokens. The texts in it are those of `config`. */
struct ox_corpus_config ox_corpus_of_options(const struct ox_config *config, const char *path);

struct ox_preview_row {
    uint64_t idx;
    uint32_t seq;
    struct ox_window_row row;
    uint64_t target_count;
};
/* Called for a row on the caller's thread; returns OX_OK to go on with the next one. */
typedef enum ox_status ox_preview_fn(void *context, const struct ox_tokenizer *tokenizer,
                                     const struct ox_preview_row *row);

/* What --data has after the tokenizer, with `counts` of its rows. `fn` (may be NULL) is called for the first `row_max`
 * rows in the order of training. */
struct ox_preview {
    uint64_t documents, tokens, trained;
    struct ox_windows_counts counts;
    uint32_t seq; /* tokens per row: --max-seq-length, or fewer if the model cannot attend to as many */
};
OX_MUST enum ox_status ox_preview_rows(const struct ox_config *config, uint64_t row_max, ox_preview_fn *fn,
                                       void *context, struct ox_preview *out);

#ifdef __cplusplus
}
#endif
#endif
