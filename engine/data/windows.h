/* Windows: the rows of seq tokens that a run walks, from one or several sources. Which row comes at a cursor is a pure
 * function of data, settings, seed and cursor, found in bounded memory however much data there is.
 *
 * An epoch has, of source i, round(weight_i * rows_i) rows and at least one where weight_i > 0; the rows of a source
 * are walked in an order of its own that goes on from epoch to epoch: after every epoch each has come equally often,
 * give or take one. SHUFFLE: the epoch's rows in random order, drawn anew each epoch. SEQUENTIAL: source after source,
 * from the front. */
#ifndef OX_ENGINE_WINDOWS_H
#define OX_ENGINE_WINDOWS_H

#include "engine/data/data.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ox_packing {
    OX_PACK_STREAM, /* the tokens of all documents as one stream: row w has the tokens [w * stride, w * stride + seq],
                       seq inputs and seq targets; with stride < seq only the last `stride` targets count, but all of
                       the first row; with stride == seq + 1 (no bos) rows share no token, and the first of each is no
                       target. What is left at the end fills a shorter last row (stride >= seq: only with `tail`) */
    OX_PACK_BINS,   /* whole documents side by side in rows: groups of OX_PACK_GROUP documents, first-fit-decreasing by
                       length (ties by position); a document of n tokens takes n - 1 places (inputs without the last);
                       in a row they lie in the order of the data */
    OX_PACK_PAD,    /* one document per row */
};
enum { OX_PACK_GROUP = 4096 };

/* Documents of more than seq + 1 tokens, with BINS and PAD. */
enum ox_overlong {
    OX_OVERLONG_SPLIT,    /* into pieces of at most seq + 1 tokens that share one token, so that every token but the
                             first is a target once; each piece is placed as a document is */
    OX_OVERLONG_TRUNCATE, /* the first seq + 1 tokens; the rest is not trained on */
    OX_OVERLONG_DROP,
};

enum ox_window_order { OX_WINDOWS_SHUFFLE, OX_WINDOWS_SEQUENTIAL };

struct ox_window_source {
    const struct ox_data *data; /* outlives the windows */
    double weight;              /* >= 0; with 0 nothing is walked, nor counted */
    uint64_t token_first, token_count; /* the part that is walked; a document that a border cuts counts as far as it
                                          lies in it */
};

struct ox_windows_config {
    const struct ox_window_source *sources; /* copied */
    uint32_t source_count;
    uint32_t seq, stride; /* stride 0 = seq; with STREAM at most seq, else OX_E_CONFIG */
    uint32_t vocab;
    enum ox_packing packing;
    enum ox_overlong overlong;
    bool document_mask; /* positions restart where a document begins, and its first token is no target; always so with
                           BINS and PAD */
    bool tail;          /* STREAM: the tokens left at the end are a row too, its rest not counted */
    int64_t bos;        /* STREAM: >= 0: every row begins with this id, then seq ids follow: seq inputs, seq targets;
                           row w has the ids [w * stride, w * stride + seq), of which the first is a target and of
                           the same document as the BOS. -1: none */
    enum ox_window_order order;
    uint64_t seed;
};

struct ox_windows;

/* Walks the table of documents once with BINS and PAD. */
OX_MUST enum ox_status ox_windows_open(const struct ox_windows_config *config, struct ox_windows **out);
void ox_windows_close(struct ox_windows **windows);

struct ox_windows_counts {
    uint64_t rows;                     /* of an epoch; 0: there is not enough for one */
    uint64_t overlong, dropped_tokens; /* documents longer than a row, and tokens never seen for it (TRUNCATE, DROP) */
    uint64_t documents;                /* with BINS and PAD */
    uint64_t short_documents;          /* of one token: nothing to predict */
    double fill;                       /* share of places that hold tokens */
};
void ox_windows_counts(const struct ox_windows *windows, struct ox_windows_counts *out);
/* Rows of an epoch that come from config.sources[source]; 0 where it is too short for one, or has no weight. */
uint64_t ox_windows_source_rows(const struct ox_windows *windows, uint32_t source);

/* One row, (seq) each. Places beyond the row's tokens have id 0, target -1 and positions that go on. */
struct ox_window_row {
    int32_t *ids, *positions, *targets;
};
/* The row at `cursor`, counted over all epochs from 0; *target_count grows by the targets that count. Not to be called
 * by two threads at once. Requires at least one row. */
OX_MUST enum ox_status ox_windows_fill(struct ox_windows *windows, uint64_t cursor, struct ox_window_row row,
                                       uint64_t *target_count);

/* The token where the last `share` (0..1) of the data begins: the first begin of a document in that part, or, where
 * none begins in it, exactly there, within the last document. The number of tokens when the share is empty. */
OX_MUST enum ox_status ox_windows_split(const struct ox_data *data, double share, uint64_t *token);

#ifdef __cplusplus
}
#endif
#endif
