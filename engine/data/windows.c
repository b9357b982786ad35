/* Windows: rows of tokens by cursor. The order of an epoch is a computed permutation of its rows, which needs no
 * table. */
#include "engine/data/windows.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/hash/hash.h"
#include "base/prng/prng.h"
#include "engine/data/windows_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The random stream of the data's order ("data" plus the epoch), so that the order is independent of the initial
 * weights, which have the same seed. */
static const uint64_t data_stream = UINT64_C(0x0064617461000000);

struct source {
    const struct ox_data *data;
    uint64_t token_first, token_count;
    struct ox_pack *pack; /* NULL with STREAM */
    uint64_t rows;        /* all rows of the source */
    uint64_t places;      /* places that have a token, in all rows */
    uint64_t epoch_first, epoch_rows; /* its range of rows in an epoch, before shuffling */
    uint64_t rows_before;             /* all rows of the sources before it */
};

struct ox_windows {
    struct ox_windows_config config;
    struct source *sources;
    uint64_t rows;
    uint32_t unit; /* rows that stay together: 2 with pairs, else 1 */
    bool plain; /* an epoch is every row of one source once, so the source needs no order of its own */
    struct ox_windows_counts counts;
    int32_t *tokens; /* (seq + 1) */
    uint8_t *marks;  /* (seq + 1) */
};

/* The number of targets of a stream. The first token is a target only after a BOS; otherwise nothing predicts it. */
static uint64_t stream_targets(const struct ox_windows *windows, const struct source *source) {
    const uint64_t lead = windows->config.bos < 0;
    return source->token_count > lead ? source->token_count - lead : 0;
}

static enum ox_status open_stream(struct ox_windows *windows, struct source *source) {
    const uint64_t seq = windows->config.seq, stride = windows->config.stride;
    const uint64_t targets = stream_targets(windows, source);
    const uint64_t full = targets >= seq ? (targets - seq) / stride + 1 : 0;
    const uint64_t reached = full > 0 ? (full - 1) * stride + seq : 0;
    const bool rest = reached < targets && full * stride < targets && (windows->config.tail || stride < seq);
    source->rows = full + rest;
    source->places = full * seq + (rest ? targets - full * stride : 0);
    uint64_t first = 0, count = 0;
    const enum ox_status status =
        ox_pack_documents_in(source->data, source->token_first, source->token_count, &first, &count);
    windows->counts.documents += count;
    return status;
}

static enum ox_status open_pack(struct ox_windows *windows, struct source *source) {
    const struct ox_pack_config config = {
        .data = source->data,
        .token_first = source->token_first,
        .token_count = source->token_count,
        .seq = windows->config.seq,
        .overlong = windows->config.overlong,
        .pad = windows->config.packing == OX_PACK_PAD,
        .drop_untrained = windows->config.drop_untrained,
        .pairs = windows->config.pairs,
    };
    OX_TRY(ox_pack_open(&config, &source->pack));
    const struct ox_pack_counts *const counts = ox_pack_counts(source->pack);
    source->rows = counts->rows;
    source->places = counts->places;
    windows->counts.documents += counts->documents;
    windows->counts.short_documents += counts->short_documents;
    windows->counts.untrained_documents += counts->untrained_documents;
    windows->counts.overlong += counts->overlong;
    windows->counts.longest = config.pad ? ox_max_u64(windows->counts.longest, counts->longest) : 0;
    windows->counts.dropped_tokens += counts->dropped_tokens;
    return OX_OK;
}

static enum ox_status open_source(struct ox_windows *windows, const struct ox_window_source *from,
                                  struct source *source) {
    const uint64_t token_count = ox_data_token_count(from->data);
    OX_ASSERT(from->weight >= 0 && isfinite(from->weight));
    OX_ASSERT(from->token_first <= token_count && from->token_count <= token_count - from->token_first);
    source->data = from->data;
    source->token_first = from->token_first;
    source->token_count = from->token_count;
    source->epoch_first = windows->rows;
    if (from->weight == 0) {
        return OX_OK;
    }
    windows->counts.documents += ox_data_untrained_count(from->data);
    windows->counts.untrained_documents += ox_data_untrained_count(from->data);
    windows->counts.untrained_rows += ox_data_untrained_count(from->data);
    const enum ox_status status =
        windows->config.packing == OX_PACK_STREAM ? open_stream(windows, source) : open_pack(windows, source);
    if (status != OX_OK) {
        return status;
    }
    if (source->rows == 0) {
        return OX_OK;
    }
    const double wanted = from->weight * (double)(source->rows / windows->unit);
    if (wanted >= 0x1p61 || windows->rows >= UINT64_C(1) << 61) {
        return ox_fail(OX_E_CONFIG, "data: a weight of %g makes more rows than an epoch can have; give a smaller one",
                       from->weight);
    }
    source->epoch_rows = windows->unit * ox_max_u64(1, (uint64_t)llround(wanted));
    windows->rows += source->epoch_rows;
    return OX_OK;
}

static enum ox_status check_config(const struct ox_windows_config *config) {
    OX_ASSERT(config->seq > 0 && config->seq < UINT32_MAX && config->source_count > 0);
    OX_ASSERT(!config->pairs || (config->packing == OX_PACK_PAD && config->drop_untrained &&
                                 config->overlong != OX_OVERLONG_SPLIT));
    if (config->packing != OX_PACK_STREAM) {
        return OX_OK;
    }
    if (config->stride > (uint64_t)config->seq + (config->bos < 0)) {
        return ox_fail(OX_E_CONFIG, "a stride of %" PRIu32 " would leave out tokens between windows of %" PRIu32
                       " tokens; give at most that", config->stride, config->seq);
    }
    if (config->bos >= (int64_t)config->vocab) {
        return ox_fail(OX_E_CONFIG, "windows would begin with the token %" PRId64 ", but the model knows only %" PRIu32
                       "; give the model's own tokenizer", config->bos, config->vocab);
    }
    return OX_OK;
}

/* Computes what depends on all sources: the share of places filled, and whether the order is plain. */
static void sum_up(struct ox_windows *windows) {
    double filled = 0;
    for (uint32_t i = 0; i < windows->config.source_count; i++) {
        struct source *const source = &windows->sources[i];
        source->rows_before = windows->counts.all_rows;
        if (source->epoch_rows > 0) {
            windows->counts.all_rows += source->rows;
            filled += (double)source->epoch_rows * ((double)source->places / (double)source->rows);
            windows->plain |= source->epoch_rows == windows->rows && source->rows == windows->rows;
        }
    }
    windows->counts.rows = windows->rows;
    windows->counts.fill = windows->rows > 0 ? filled / ((double)windows->rows * windows->config.seq) : 0;
}

enum ox_status ox_windows_open(const struct ox_windows_config *config, struct ox_windows **out) {
    struct ox_windows *windows = NULL;
    enum ox_status status = check_config(config);
    if (status != OX_OK) {
        return status;
    }
    windows = calloc(1, sizeof *windows);
    if (windows == NULL) {
        goto no_memory;
    }
    windows->config = *config;
    windows->config.sources = NULL; /* copied to windows->sources */
    windows->unit = config->pairs ? 2 : 1;
    windows->counts.pairs = config->pairs;
    windows->config.stride = config->stride > 0 ? config->stride : config->seq;
    windows->sources = calloc(config->source_count, sizeof *windows->sources);
    windows->tokens = calloc((size_t)config->seq + 1, sizeof *windows->tokens);
    windows->marks = calloc((size_t)config->seq + 1, sizeof *windows->marks);
    if (windows->sources == NULL || windows->tokens == NULL || windows->marks == NULL) {
        goto no_memory;
    }
    for (uint32_t i = 0; i < config->source_count; i++) {
        status = open_source(windows, &config->sources[i], &windows->sources[i]);
        if (status != OX_OK) {
            goto fail;
        }
    }
    sum_up(windows);
    *out = windows;
    return OX_OK;
no_memory:
    status = ox_fail(OX_E_NOMEM, "data: no memory for windows of %" PRIu32 " tokens", config->seq);
fail:
    ox_windows_close(&windows);
    return status;
}

void ox_windows_close(struct ox_windows **windows) {
    if (*windows == NULL) {
        return;
    }
    for (uint32_t i = 0; (*windows)->sources != NULL && i < (*windows)->config.source_count; i++) {
        ox_pack_close(&(*windows)->sources[i].pack);
    }
    free((*windows)->sources);
    free((*windows)->tokens);
    free((*windows)->marks);
    free(*windows);
    *windows = NULL;
}

void ox_windows_counts(const struct ox_windows *windows, struct ox_windows_counts *out) {
    *out = windows->counts;
}

uint64_t ox_windows_source_rows(const struct ox_windows *windows, uint32_t source) {
    OX_ASSERT(source < windows->config.source_count);
    return windows->sources[source].epoch_rows;
}

/* Finds which row of which source comes at the cursor. Rows that stay together are drawn as one. */
static const struct source *find_row(const struct ox_windows *windows, uint64_t cursor, uint64_t *row) {
    const bool shuffled = windows->config.order == OX_WINDOWS_SHUFFLE;
    const uint64_t seed = windows->config.seed, epoch = cursor / windows->rows;
    uint64_t place = cursor % windows->rows;
    const uint32_t unit = windows->unit;
    if (shuffled) {
        place = ox_permute(seed, data_stream + epoch, windows->rows / unit, place / unit) * unit + place % unit;
    }
    uint32_t idx = 0;
    while (place - windows->sources[idx].epoch_first >= windows->sources[idx].epoch_rows) {
        idx++;
    }
    const struct source *const source = &windows->sources[idx];
    const uint64_t walked = epoch * source->epoch_rows + (place - source->epoch_first);
    *row = walked % source->rows;
    if (shuffled && !windows->plain) {
        const uint64_t own_seed = ox_hash_seed((const uint64_t[]){seed, idx}, 2);
        *row = ox_permute(own_seed, data_stream + walked / source->rows, source->rows / unit, *row / unit) * unit +
               *row % unit;
    }
    return source;
}

uint64_t ox_windows_place(const struct ox_windows *windows, uint64_t cursor) {
    uint64_t row = 0;
    const struct source *const source = find_row(windows, cursor, &row);
    return source->rows_before + row;
}

uint64_t ox_windows_fingerprint(const struct ox_windows *windows) {
    const struct ox_windows_config *const config = &windows->config;
    uint64_t hash = ox_hash_seed((const uint64_t[]){config->seq, config->packing, config->overlong, config->pairs}, 4);
    for (uint32_t i = 0; i < config->source_count; i++) {
        const struct source *const source = &windows->sources[i];
        hash = ox_hash_seed((const uint64_t[]){hash, ox_data_fingerprint(source->data), source->token_first,
                                               source->token_count, source->epoch_rows > 0 ? source->rows : 0}, 5);
    }
    return hash;
}

/* Writes `count` inputs and targets, taken from the first count + 1 tokens, into the row from place `at` on. The first
 * `seen` targets do not count, because the previous row has them. */
static void put_tokens(const struct ox_windows *windows, uint32_t count, uint32_t seen, uint32_t at,
                       struct ox_window_row row, uint64_t *target_count) {
    const int32_t *const tokens = windows->tokens;
    const uint8_t *const marks = windows->marks;
    const bool masked = windows->config.document_mask;
    int32_t position = 0;
    for (uint32_t i = 0; i < count; i++) {
        const bool begins = masked && (marks[i] & OX_TOKEN_BEGINS) != 0;
        const bool next_begins = masked && (marks[i + 1] & OX_TOKEN_BEGINS) != 0;
        const bool counts = i >= seen && (marks[i + 1] & OX_TOKEN_TRAINED) != 0 && !next_begins;
        position = begins ? 0 : position;
        row.ids[at + i] = tokens[i];
        row.positions[at + i] = position++;
        row.targets[at + i] = counts ? tokens[i + 1] : OX_TARGET_MASKED;
        *target_count += counts;
    }
}

static enum ox_status fill_stream(struct ox_windows *windows, const struct source *source, uint64_t idx,
                                  struct ox_window_row row, uint32_t *filled, uint64_t *target_count) {
    const struct ox_windows_config *const config = &windows->config;
    const uint64_t first = idx * config->stride;
    const uint32_t count = (uint32_t)ox_min_u64(config->seq, stream_targets(windows, source) - first);
    const uint32_t lead = config->bos >= 0;
    if (lead > 0) {
        windows->tokens[0] = (int32_t)config->bos;
        windows->marks[0] = 0;
    }
    const enum ox_status status = ox_data_read(source->data, source->token_first + first, count + 1 - lead,
                                               config->vocab, windows->tokens + lead, windows->marks + lead);
    if (status != OX_OK) {
        return status;
    }
    if (lead > 0) { /* a document that begins after the BOS begins with the BOS instead */
        windows->marks[1] &= (uint8_t)~OX_TOKEN_BEGINS;
    }
    const uint32_t seen = idx > 0 && config->stride < config->seq ? config->seq - config->stride : 0;
    put_tokens(windows, count, seen, 0, row, target_count);
    *filled = count;
    return OX_OK;
}

static enum ox_status fill_packed(struct ox_windows *windows, const struct source *source, uint64_t idx,
                                  struct ox_window_row row, uint32_t *filled, uint64_t *target_count) {
    const struct ox_pack_part *parts = NULL;
    uint32_t part_count = 0;
    enum ox_status status = ox_pack_row(source->pack, idx, &parts, &part_count);
    if (status != OX_OK) {
        return status;
    }
    for (uint32_t i = 0; i < part_count; i++) {
        status = ox_data_read(source->data, parts[i].first, parts[i].count, windows->config.vocab, windows->tokens,
                              windows->marks);
        if (status != OX_OK) {
            return status;
        }
        put_tokens(windows, parts[i].count - 1, 0, *filled, row, target_count);
        *filled += parts[i].count - 1;
    }
    return OX_OK;
}

enum ox_status ox_windows_fill(struct ox_windows *windows, uint64_t cursor, struct ox_window_row row,
                               uint64_t *target_count) {
    OX_ASSERT(windows->rows > 0);
    uint64_t idx = 0;
    uint32_t filled = 0;
    const struct source *const source = find_row(windows, cursor, &idx);
    const enum ox_status status =
        source->pack == NULL ? fill_stream(windows, source, idx, row, &filled, target_count)
                             : fill_packed(windows, source, idx, row, &filled, target_count);
    if (status != OX_OK) {
        return status;
    }
    for (uint32_t i = filled; i < windows->config.seq; i++) {
        row.ids[i] = 0;
        row.positions[i] = row.positions[i - 1] + 1; /* i > 0, because no row is empty */
        row.targets[i] = OX_TARGET_PADDING;
    }
    return OX_OK;
}

/* Moves a border that divides a pair to before it; to the end where that is the first one. */
static enum ox_status before_pair(const struct ox_data *data, uint64_t *token) {
    uint64_t document = 0, begin = 0;
    if (*token == ox_data_token_count(data)) {
        return OX_OK;
    }
    enum ox_status status = ox_pack_document_at(data, *token, &document, &begin);
    if (status == OX_OK && document % 2 != 0) {
        status = ox_data_documents(data, document - 1, 1, token);
    }
    *token = *token > 0 ? *token : ox_data_token_count(data);
    return status;
}

enum ox_status ox_windows_split(const struct ox_data *data, double share, bool whole, uint64_t *token) {
    OX_ASSERT(share >= 0 && share <= 1);
    const uint64_t count = ox_data_token_count(data);
    const uint64_t border = count - ox_min_u64(count, (uint64_t)((double)count * share));
    uint64_t document = 0, begin = 0;
    *token = border;
    if (border == count) {
        return OX_OK;
    }
    enum ox_status status = ox_pack_document_at(data, border, &document, &begin);
    if (status == OX_OK && begin < border && document + 1 < ox_data_document_count(data)) {
        status = ox_data_documents(data, document + 1, 1, token);
    } else if (status == OX_OK && begin < border && whole) {
        *token = begin > 0 ? begin : count;
    }
    return status == OX_OK && ox_data_is_pairs(data) ? before_pair(data, token) : status;
}
