/* Packing: decides which pieces of which documents make up a row of one source. windows.c calls it for BINS and PAD. */
#ifndef OX_ENGINE_WINDOWS_INTERNAL_H
#define OX_ENGINE_WINDOWS_INTERNAL_H

#include "engine/data/windows.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_pack;

struct ox_pack_config {
    const struct ox_data *data;
    uint64_t token_first, token_count; /* the part of the data that is packed */
    uint32_t seq;
    enum ox_overlong overlong;
    bool pad; /* one piece per row */
    bool drop_untrained, pairs; /* as in struct ox_windows_config */
};

struct ox_pack_counts {
    uint64_t rows, places; /* places that have a token */
    uint64_t longest;      /* places of the longest document */
    uint64_t documents, short_documents, untrained_documents, overlong, dropped_tokens;
};

/* A piece of a document: the tokens [first, first + count) of the data, at least two. All but the last are inputs, all
 * but the first are targets. */
struct ox_pack_part {
    uint64_t first;
    uint32_t count;
};

OX_MUST enum ox_status ox_pack_open(const struct ox_pack_config *config, struct ox_pack **out);
void ox_pack_close(struct ox_pack **pack);
const struct ox_pack_counts *ox_pack_counts(const struct ox_pack *pack);
/* Lists the pieces of a row in the order of the data; *parts is valid until the next call. */
OX_MUST enum ox_status ox_pack_row(struct ox_pack *pack, uint64_t row, const struct ox_pack_part **parts,
                                   uint32_t *part_count);

/* Finds the documents that overlap the tokens [token_first, token_first + token_count). */
OX_MUST enum ox_status ox_pack_documents_in(const struct ox_data *data, uint64_t token_first, uint64_t token_count,
                                            uint64_t *first, uint64_t *count);
/* Finds the last document that begins at or before `token`. */
OX_MUST enum ox_status ox_pack_document_at(const struct ox_data *data, uint64_t token, uint64_t *document,
                                           uint64_t *begin);

#ifdef __cplusplus
}
#endif
#endif
