/* Rows as training would see them, without a model: for people to check their data. */
#ifndef OX_ENGINE_PREVIEW_H
#define OX_ENGINE_PREVIEW_H

#include "engine/config/config.h"
#include "engine/text/tokenizer.h"
#include "engine/data/windows.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_preview_row {
    uint64_t idx;
    uint32_t seq;
    struct ox_window_row row;
    uint64_t target_count;
};
/* OX_OK goes on with the next row. */
typedef enum ox_status ox_preview_fn(void *context, const struct ox_tokenizer *tokenizer,
                                     const struct ox_preview_row *row);

/* What --data holds, after the tokenizer; *counts is of the rows. fn (may be NULL) is given the first `row_max` rows in
 * the order of training. */
struct ox_preview {
    uint64_t documents, tokens, trained;
    struct ox_windows_counts counts;
    uint32_t seq; /* of --max-seq-length, or what the model can attend to */
};
OX_MUST enum ox_status ox_preview_rows(const struct ox_config *config, uint64_t row_max, ox_preview_fn *fn,
                                       void *context, struct ox_preview *out);

#ifdef __cplusplus
}
#endif
#endif
