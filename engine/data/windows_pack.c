/* Packs documents into rows, group by group. Only the number of rows of each group stays in memory. Which documents
 * share a row is computed again from the table of documents, when a row of the group is needed. */
#include "engine/data/windows_internal.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    GROUPS_KEPT = 16,
    READ_TOKENS = 4096,
    DIGIT_BITS = 8,
    DIGITS = 1 << DIGIT_BITS,
};

/* A group of documents and its rows. A document gives (tokens - 1) / seq pieces that fill a row each, and at most one
 * shorter piece, the item. So a group has at most OX_PACK_GROUP items to fit, however long its documents are. Its rows
 * are first the full pieces (with padding: all pieces), then the bins of items: the order of first-fit-decreasing. */
struct group {
    uint64_t idx, used; /* idx UINT64_MAX: empty; used: the pack's clock at its last use */
    uint32_t document_count;
    uint32_t bin_count;
    uint64_t begins[OX_PACK_GROUP + 1];     /* the token where each document begins and where the last ends */
    uint64_t row_first[OX_PACK_GROUP + 1];  /* rows of single pieces before each document */
    uint16_t item_first[OX_PACK_GROUP + 1]; /* index in `items` of each bin's first item */
    uint16_t items[OX_PACK_GROUP];          /* documents of the group, by bin, then in the order of the data */
};

/* Working memory for fitting the items of a group into bins. */
struct fitting {
    uint32_t places[OX_PACK_GROUP]; /* size of each document's item; 0: no item */
    uint16_t bin_of[OX_PACK_GROUP];
    uint16_t order[2][OX_PACK_GROUP];
    uint32_t room[2 * OX_PACK_GROUP]; /* a binary tree over the bins; a node is the largest free room below it */
};

struct ox_pack {
    struct ox_pack_config config;
    uint64_t document_first, document_count;
    uint64_t group_count, clock;
    uint64_t *group_first; /* rows before each group, and the number of all rows; group_count + 1 of them */
    uint8_t *untrained;    /* a bit per document: it has no target; NULL: none is left out for that */
    struct group *groups;  /* the groups used last */
    uint32_t kept;
    struct fitting fitting;
    struct ox_pack_part parts[OX_PACK_GROUP]; /* the result of ox_pack_row */
    struct ox_pack_counts counts;
};

/* The index of the last of `count` ascending values that is at most `value`, which the first one is. */
static uint64_t last_at_most(const uint64_t *values, uint64_t count, uint64_t value) {
    uint64_t low = 0, high = count;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (values[middle] <= value) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

enum ox_status ox_pack_document_at(const struct ox_data *data, uint64_t token, uint64_t *document, uint64_t *begin) {
    uint64_t low = 0, high = ox_data_document_count(data);
    *begin = 0;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        uint64_t found = 0;
        const enum ox_status status = ox_data_documents(data, middle, 1, &found);
        if (status != OX_OK) {
            return status;
        }
        if (found <= token) {
            low = middle;
            *begin = found;
        } else {
            high = middle;
        }
    }
    *document = low;
    return OX_OK;
}

enum ox_status ox_pack_documents_in(const struct ox_data *data, uint64_t token_first, uint64_t token_count,
                                    uint64_t *first, uint64_t *count) {
    uint64_t begin = 0, last = 0;
    *first = *count = 0;
    if (token_count == 0) {
        return OX_OK;
    }
    enum ox_status status = ox_pack_document_at(data, token_first, first, &begin);
    OX_THEN(status, ox_pack_document_at(data, token_first + token_count - 1, &last, &begin));
    *count = last + 1 - *first;
    return status;
}

static enum ox_status read_begins(const struct ox_pack *pack, struct group *group) {
    const struct ox_pack_config *const config = &pack->config;
    const uint64_t skipped = group->idx * OX_PACK_GROUP, first = pack->document_first + skipped;
    const uint32_t count = (uint32_t)ox_min_u64(OX_PACK_GROUP, pack->document_count - skipped);
    const bool to_end = first + count == ox_data_document_count(config->data);
    OX_TRY(ox_data_documents(config->data, first, count + !to_end, group->begins));
    if (to_end) {
        group->begins[count] = ox_data_token_count(config->data);
    }
    group->begins[0] = ox_max_u64(group->begins[0], config->token_first);
    group->begins[count] = ox_min_u64(group->begins[count], config->token_first + config->token_count);
    for (uint32_t i = 0; i < count; i++) {
        if (group->begins[i] >= group->begins[i + 1]) {
            return ox_fail(OX_E_CORRUPT, "data: document %" PRIu64 " does not begin before the next one; delete the "
                           "token cache to have it made again", first + i);
        }
    }
    group->document_count = count;
    return OX_OK;
}

/* How many tokens of a document of `count` tokens are used. */
static uint64_t kept_tokens(const struct ox_pack *pack, uint64_t count) {
    const uint64_t most = (uint64_t)pack->config.seq + 1;
    if (count <= most || pack->config.overlong == OX_OVERLONG_SPLIT) {
        return count;
    }
    return pack->config.overlong == OX_OVERLONG_TRUNCATE ? most : 0;
}

static bool is_untrained(const struct ox_pack *pack, const struct group *group, uint32_t document) {
    const uint64_t idx = group->idx * OX_PACK_GROUP + document;
    return pack->untrained != NULL && (pack->untrained[idx / 8] >> idx % 8 & 1) != 0;
}

/* How many tokens of the group's document are placed in rows. */
static uint64_t placed_tokens(const struct ox_pack *pack, const struct group *group, uint32_t document) {
    return is_untrained(pack, group, document)
               ? 0 : kept_tokens(pack, group->begins[document + 1] - group->begins[document]);
}

/* Sorts the documents that have an item: the longest first, equal ones in the order of the data. */
static const uint16_t *sort_items(struct fitting *fitting, const struct group *group, uint32_t longest,
                                  uint32_t *count) {
    uint16_t *from = fitting->order[0], *to = fitting->order[1];
    uint32_t filled = 0;
    for (uint32_t i = 0; i < group->document_count; i++) {
        if (fitting->places[i] > 0) {
            from[filled++] = (uint16_t)i;
        }
    }
    for (uint32_t shift = 0; shift < 32 && longest >> shift > 0; shift += DIGIT_BITS) {
        uint32_t begins[DIGITS + 1] = {0};
        for (uint32_t i = 0; i < filled; i++) {
            begins[((longest - fitting->places[from[i]]) >> shift) % DIGITS + 1]++;
        }
        for (uint32_t digit = 0; digit < DIGITS; digit++) {
            begins[digit + 1] += begins[digit];
        }
        for (uint32_t i = 0; i < filled; i++) {
            to[begins[((longest - fitting->places[from[i]]) >> shift) % DIGITS]++] = from[i];
        }
        uint16_t *const other = from;
        from = to;
        to = other;
    }
    *count = filled;
    return from;
}

/* Puts each item into the first bin with room. Bins not used yet are empty and come after the others. */
static void fit_items(struct fitting *fitting, struct group *group, uint32_t seq) {
    uint32_t count = 0, leaves = 1;
    const uint16_t *const order = sort_items(fitting, group, seq, &count);
    while (leaves < count) {
        leaves *= 2;
    }
    for (uint32_t i = 1; i < 2 * leaves; i++) {
        fitting->room[i] = seq;
    }
    group->bin_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t places = fitting->places[order[i]];
        uint32_t node = 1;
        while (node < leaves) {
            node = 2 * node + (fitting->room[2 * node] < places);
        }
        const uint32_t bin = node - leaves;
        fitting->bin_of[order[i]] = (uint16_t)bin;
        group->bin_count = bin + 1 > group->bin_count ? bin + 1 : group->bin_count;
        fitting->room[node] -= places;
        while (node > 1) {
            const uint32_t most = fitting->room[node] > fitting->room[node ^ 1] ? fitting->room[node]
                                                                                  : fitting->room[node ^ 1];
            node /= 2;
            if (fitting->room[node] == most) {
                break;
            }
            fitting->room[node] = most;
        }
    }
}

static void list_bins(const struct fitting *fitting, struct group *group) {
    uint16_t filled[OX_PACK_GROUP];
    memset(group->item_first, 0, (group->bin_count + 1) * sizeof *group->item_first);
    for (uint32_t i = 0; i < group->document_count; i++) {
        if (fitting->places[i] > 0) {
            group->item_first[fitting->bin_of[i] + 1]++;
        }
    }
    for (uint32_t bin = 0; bin < group->bin_count; bin++) {
        filled[bin] = group->item_first[bin];
        group->item_first[bin + 1] = (uint16_t)(group->item_first[bin + 1] + filled[bin]);
    }
    for (uint32_t i = 0; i < group->document_count; i++) {
        if (fitting->places[i] > 0) {
            group->items[filled[fitting->bin_of[i]]++] = (uint16_t)i;
        }
    }
}

static enum ox_status load_group(struct ox_pack *pack, uint64_t idx, struct group *group) {
    const uint32_t seq = pack->config.seq;
    group->idx = idx;
    const enum ox_status status = read_begins(pack, group);
    if (status != OX_OK) {
        group->idx = UINT64_MAX;
        return status;
    }
    group->row_first[0] = 0;
    for (uint32_t i = 0; i < group->document_count; i++) {
        const uint64_t kept = placed_tokens(pack, group, i);
        const uint64_t places = kept > 0 ? kept - 1 : 0;
        const bool alone = pack->config.pad;
        group->row_first[i + 1] = group->row_first[i] + (alone ? ox_div_up(places, seq) : places / seq);
        pack->fitting.places[i] = alone ? 0 : (uint32_t)(places % seq);
    }
    fit_items(&pack->fitting, group, seq);
    list_bins(&pack->fitting, group);
    return OX_OK;
}

static uint64_t group_rows(const struct group *group) {
    return group->row_first[group->document_count] + group->bin_count;
}

/* Counts the rows of each group, and what ox_pack_counts reports, in one pass over all documents. */
static enum ox_status count_groups(struct ox_pack *pack) {
    const struct ox_pack_config *const config = &pack->config;
    struct ox_pack_counts *const counts = &pack->counts;
    for (uint64_t idx = 0; idx < pack->group_count; idx++) {
        struct group *const group = &pack->groups[idx % pack->kept];
        const enum ox_status status = load_group(pack, idx, group);
        if (status != OX_OK) {
            return status;
        }
        for (uint32_t i = 0; i < group->document_count; i++) {
            const uint64_t tokens = group->begins[i + 1] - group->begins[i], kept = kept_tokens(pack, tokens);
            const bool overlong = tokens > (uint64_t)config->seq + 1;
            const uint64_t placed = placed_tokens(pack, group, i);
            counts->places += placed > 0 ? placed - 1 : 0;
            counts->longest = ox_max_u64(counts->longest, placed > 0 ? placed - 1 : 0);
            counts->short_documents += tokens == 1;
            counts->untrained_documents += config->drop_untrained && (tokens == 1 || is_untrained(pack, group, i));
            counts->overlong += overlong;
            counts->dropped_tokens += overlong ? tokens - kept : 0;
        }
        pack->group_first[idx + 1] = pack->group_first[idx] + group_rows(group);
    }
    counts->documents = pack->document_count;
    counts->rows = pack->group_first[pack->group_count];
    return OX_OK;
}

/* Sets *found if one of the tokens [first, first + count) may be a target. */
static enum ox_status find_trained(const struct ox_data *data, uint64_t first, uint64_t count, bool *found) {
    int32_t tokens[READ_TOKENS];
    uint8_t marks[READ_TOKENS];
    enum ox_status status = OX_OK;
    *found = false;
    for (uint64_t done = 0; done < count && !*found && status == OX_OK; done += READ_TOKENS) {
        const uint64_t part = ox_min_u64(READ_TOKENS, count - done);
        status = ox_data_read(data, first + done, part, INT32_MAX, tokens, marks);
        for (uint64_t i = 0; i < part && status == OX_OK; i++) {
            *found = *found || (marks[i] & OX_TOKEN_TRAINED) != 0;
        }
    }
    return status;
}

/* Notes the documents without a target among their kept tokens. Reads all tokens once, unless all are trained. */
static enum ox_status find_untrained(struct ox_pack *pack) {
    struct group *const group = &pack->groups[0];
    if (!pack->config.drop_untrained || (ox_data_all_trained(pack->config.data) && !pack->config.pairs)) {
        return OX_OK;
    }
    pack->untrained = calloc((size_t)(pack->document_count / 8) + 1, 1);
    enum ox_status status = pack->untrained != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "data: no memory to look for rows "
                                                                      "without a token to be trained on");
    for (uint64_t idx = 0; idx < pack->group_count && status == OX_OK; idx++) {
        group->idx = idx;
        status = read_begins(pack, group);
        for (uint32_t i = 0; i < group->document_count && status == OX_OK; i++) {
            const uint64_t begin = group->begins[i], kept = kept_tokens(pack, group->begins[i + 1] - begin);
            const uint64_t document = idx * OX_PACK_GROUP + i;
            bool found = true;
            if (kept > 1) { /* the first token of a document is no target */
                status = find_trained(pack->config.data, begin + 1, kept - 1, &found);
            }
            found = found && (kept > 0 || !pack->config.pairs);
            pack->untrained[document / 8] |= (uint8_t)(!found << document % 8);
        }
    }
    for (uint64_t i = 0; i <= pack->document_count / 8 && status == OX_OK && pack->config.pairs; i++) {
        const unsigned either = pack->untrained[i] | pack->untrained[i] >> 1; /* at even bits, of a pair */
        pack->untrained[i] = (uint8_t)((either & 0x55) * 3);
    }
    group->idx = UINT64_MAX;
    return status;
}

enum ox_status ox_pack_open(const struct ox_pack_config *config, struct ox_pack **out) {
    struct ox_pack *pack = calloc(1, sizeof *pack);
    enum ox_status status = OX_OK;
    if (pack == NULL) {
        goto no_memory;
    }
    pack->config = *config;
    status = ox_pack_documents_in(config->data, config->token_first, config->token_count, &pack->document_first,
                                  &pack->document_count);
    if (status != OX_OK) {
        goto fail;
    }
    OX_ASSERT(!config->pairs || (pack->document_first % 2 == 0 && pack->document_count % 2 == 0));
    pack->group_count = ox_div_up(pack->document_count, OX_PACK_GROUP);
    pack->kept = (uint32_t)ox_min_u64(ox_max_u64(pack->group_count, 1), GROUPS_KEPT);
    pack->group_first = calloc((size_t)pack->group_count + 1, sizeof *pack->group_first);
    pack->groups = calloc(pack->kept, sizeof *pack->groups);
    if (pack->group_first == NULL || pack->groups == NULL) {
        goto no_memory;
    }
    for (uint32_t i = 0; i < pack->kept; i++) {
        pack->groups[i].idx = UINT64_MAX;
    }
    status = find_untrained(pack);
    OX_THEN(status, count_groups(pack));
    if (status != OX_OK) {
        goto fail;
    }
    *out = pack;
    return OX_OK;
no_memory:
    status = ox_fail(OX_E_NOMEM, "data: no memory to pack documents into rows");
fail:
    ox_pack_close(&pack);
    return status;
}

void ox_pack_close(struct ox_pack **pack) {
    if (*pack != NULL) {
        free((*pack)->group_first);
        free((*pack)->groups);
        free((*pack)->untrained);
        free(*pack);
        *pack = NULL;
    }
}

const struct ox_pack_counts *ox_pack_counts(const struct ox_pack *pack) {
    return &pack->counts;
}

/* Finds the group among those in memory, or loads it in place of the least recently used one. */
static enum ox_status find_group(struct ox_pack *pack, uint64_t idx, const struct group **out) {
    struct group *oldest = &pack->groups[0];
    for (uint32_t i = 0; i < pack->kept; i++) {
        struct group *const group = &pack->groups[i];
        if (group->idx == idx) {
            group->used = ++pack->clock;
            *out = group;
            return OX_OK;
        }
        oldest = group->used < oldest->used ? group : oldest;
    }
    oldest->used = ++pack->clock;
    *out = oldest;
    return load_group(pack, idx, oldest);
}

/* The tokens of piece `piece` of a document in the group. */
static struct ox_pack_part part_of(const struct ox_pack *pack, const struct group *group, uint32_t document,
                                   uint64_t piece) {
    const uint64_t begin = group->begins[document], skipped = piece * pack->config.seq;
    const uint64_t kept = kept_tokens(pack, group->begins[document + 1] - begin);
    return (struct ox_pack_part){.first = begin + skipped,
                                 .count = (uint32_t)ox_min_u64((uint64_t)pack->config.seq + 1, kept - skipped)};
}

enum ox_status ox_pack_row(struct ox_pack *pack, uint64_t row, const struct ox_pack_part **parts,
                           uint32_t *part_count) {
    OX_ASSERT(row < pack->counts.rows);
    const uint64_t idx = last_at_most(pack->group_first, pack->group_count, row);
    const struct group *group = NULL;
    OX_TRY(find_group(pack, idx, &group));
    row -= pack->group_first[idx];
    /* The rows no longer match those counted at open: the file was replaced, or the disk returns other bytes. */
    if (row >= group_rows(group)) {
        return ox_fail(OX_E_CORRUPT, "data: the table of documents has changed since it was opened; start again");
    }
    *parts = pack->parts;
    *part_count = 1;
    const uint64_t alone = group->row_first[group->document_count];
    if (row < alone) {
        const uint32_t document = (uint32_t)last_at_most(group->row_first, group->document_count, row);
        pack->parts[0] = part_of(pack, group, document, row - group->row_first[document]);
        return OX_OK;
    }
    const uint32_t first = group->item_first[row - alone], end = group->item_first[row - alone + 1];
    for (uint32_t i = first; i < end; i++) {
        const uint32_t document = group->items[i];
        const uint64_t full = group->row_first[document + 1] - group->row_first[document];
        pack->parts[i - first] = part_of(pack, group, document, full);
    }
    *part_count = end - first;
    return OX_OK;
}
