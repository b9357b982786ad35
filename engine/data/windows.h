/* Windows: rows of seq tokens from one or several sources. The trainer and the evaluation read them by cursor. The row
 * at a cursor is a pure function of data, settings, seed and cursor, so a resumed run sees the same rows. Memory is
 * bounded however much data there is.
 *
 * An epoch takes round(weight_i * rows_i) rows from source i, and at least one if weight_i > 0. Each source has an
 * order of its own that continues from epoch to epoch, so after every epoch its rows have come equally often, give or
 * take one. SHUFFLE puts the rows of each epoch into a new random order. SEQUENTIAL takes source after source, each
 * from the front. */
#ifndef OX_ENGINE_WINDOWS_H
#define OX_ENGINE_WINDOWS_H

#include "base/planes.h"
#include "engine/data/data.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ox_packing {
    OX_PACK_STREAM, /* the tokens of all documents as one stream. Row w has the tokens [w * stride, w * stride + seq]:
                       seq inputs and seq targets. With stride < seq only the last `stride` targets count, except in the
                       first row, where all do. With stride == seq + 1 (and no bos) rows share no token, and the first
                       token of each row is not a target. The remaining tokens fill a shorter last row (with
                       stride >= seq: only if `tail`) */
    OX_PACK_BINS,   /* whole documents side by side in rows: groups of OX_PACK_GROUP documents, first-fit-decreasing by
                       length (ties by position). A document of n tokens takes n - 1 places (its inputs, all tokens but
                       the last). Within a row, documents keep the order of the data */
    OX_PACK_PAD,    /* one document per row */
};
enum { OX_PACK_GROUP = 4096 };

/* What happens to documents of more than seq + 1 tokens, with BINS and PAD. */
enum ox_overlong {
    OX_OVERLONG_SPLIT,    /* cut into pieces of at most seq + 1 tokens. Neighbours share one token, so every token but
                             the first is a target once. Each piece is placed like a document */
    OX_OVERLONG_TRUNCATE, /* keep the first seq + 1 tokens; the rest is not trained */
    OX_OVERLONG_DROP,     /* leave the document out */
};

enum ox_window_order { OX_WINDOWS_SHUFFLE, OX_WINDOWS_SEQUENTIAL };

struct ox_window_source {
    const struct ox_data *data; /* must outlive the windows */
    double weight;              /* >= 0; with 0 the source is neither used nor counted */
    uint64_t token_first, token_count; /* the part that is used; a document across its border counts as far as it lies
                                          inside */
};

struct ox_windows_config {
    const struct ox_window_source *sources; /* copied */
    uint32_t source_count;
    uint32_t seq, stride; /* stride 0 means seq. STREAM: more than seq (with no bos, seq + 1) is OX_E_CONFIG */
    uint32_t vocab;
    enum ox_packing packing;
    enum ox_overlong overlong;
    bool document_mask; /* positions restart where a document begins, and its first token is not a target; always on
                           with BINS and PAD */
    bool drop_untrained; /* BINS and PAD: leave out documents without a token that may be a target */
    bool pairs; /* PAD, drop_untrained, not SPLIT: documents 2 k and 2 k + 1 of the data belong together. Their rows are
                   neighbours, the first at an even cursor; what leaves out one of them leaves out both. The parts of
                   the sources that are used begin and end between pairs */
    bool tail;          /* STREAM: the tokens left at the end make one more row, padded at its end */
    int64_t bos;        /* STREAM: if >= 0, every row begins with this id, followed by the tokens [w * stride,
                           w * stride + seq): again seq inputs and seq targets. The first of these tokens is a target
                           and belongs to the same document as the BOS. -1: none */
    enum ox_window_order order;
    uint64_t seed;
};

struct ox_windows;

/* Opens the windows. With BINS and PAD it reads the table of documents once. */
OX_MUST enum ox_status ox_windows_open(const struct ox_windows_config *config, struct ox_windows **out);
void ox_windows_close(struct ox_windows **windows);

struct ox_windows_counts {
    uint64_t rows;            /* in an epoch; 0: the data is too short for a row */
    uint64_t overlong;        /* documents longer than a row */
    uint64_t dropped_tokens;  /* tokens of overlong documents that are never used (TRUNCATE, DROP) */
    uint64_t documents;       /* with the untrained ones */
    uint64_t short_documents; /* BINS and PAD: documents of one token, which have nothing to predict */
    uint64_t untrained_documents; /* rows that the cache leaves out, for the whole source, and documents that
                                     drop_untrained does, short ones too */
    uint64_t all_rows;        /* counts all sources with a weight, however many of them an epoch takes */
    uint64_t untrained_rows;  /* left out by the cache */
    uint64_t longest;         /* PAD: places that the longest document takes, which is all that others are padded for */
    double fill;              /* the share of places that have a token */
    bool pairs;               /* as in struct ox_windows_config */
};
void ox_windows_counts(const struct ox_windows *windows, struct ox_windows_counts *out);
/* The rows of an epoch that come from config.sources[source]; 0 if it is too short for a row or has no weight. */
uint64_t ox_windows_source_rows(const struct ox_windows *windows, uint32_t source);

/* The arrays of one row, each of shape (seq). Places after the row's last token have id 0, target OX_TARGET_PADDING,
 * and positions that keep counting. */
struct ox_window_row {
    int32_t *ids, *positions, *targets;
};
/* Fills the row at `cursor`, which counts rows over all epochs from 0, and adds its number of targets to *target_count.
 * Needs at least one row in an epoch. One thread at a time may call it. */
OX_MUST enum ox_status ox_windows_fill(struct ox_windows *windows, uint64_t cursor, struct ox_window_row row,
                                       uint64_t *target_count);

/* A hash of the data, and of how it is cut into rows; not of their order. */
uint64_t ox_windows_fingerprint(const struct ox_windows *windows);
/* Where the row at `cursor` lies among all rows of all sources, one after another: below counts.all_rows. */
uint64_t ox_windows_place(const struct ox_windows *windows, uint64_t cursor);

/* Finds the token at which to split off the last `share` (0..1) of the data: where the first document in that part
 * begins. If none begins there, it is the start of the part, within the last document; with `whole` the last document
 * is split off, or nothing if it is the only one. An empty share gives the number of tokens. Data of pairs is split
 * between pairs. */
OX_MUST enum ox_status ox_windows_split(const struct ox_data *data, double share, bool whole, uint64_t *token);

#ifdef __cplusplus
}
#endif
#endif
