/* Windows against naive lists of rows, made from the same tokens in plain ways. */
#include "base/file.h"
#include "base/prng/prng.h"
#include "engine/data/token_cache.h"
#include "engine/data/windows.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

enum {
    VOCAB = 1 << 20,
    DOCUMENTS_MAX = 70000, /* 18 groups */
    TOKENS_MAX = 1 << 19,
    SEQ_MAX = 512,
    ROWS_MAX = 20000,
    SMALL_COUNT = 5,
};

/* Every token has an id of its own, so that a row shows where it comes from. */
struct text {
    struct ox_data *data;
    uint64_t document_count, token_count;
    uint64_t begins[DOCUMENTS_MAX + 1];
    int32_t ids[TOKENS_MAX];
    uint8_t trained[TOKENS_MAX];
};

/* A row as a list of runs of tokens. */
struct run {
    uint64_t first;
    uint32_t count, row;
};
struct rows {
    uint32_t seq, row_count;
    int32_t *ids, *positions, *targets; /* (rows, seq) */
    uint32_t used[ROWS_MAX];
};

static struct text small[SMALL_COUNT], large, many;
static struct rows expected[2];
static uint64_t draw_count;

static uint64_t draw(uint64_t below) {
    return (uint64_t)(ox_uniform(77, 1, draw_count++) * (double)below);
}

/* ---- data ------------------------------------------------------------------------------------------------------ */

static void make_text(struct text *text, uint64_t documents, uint64_t longest, int32_t id, bool masked) {
    text->document_count = documents;
    text->token_count = 0;
    for (uint64_t i = 0; i < documents; i++) {
        const uint64_t count = 1 + (draw(4) == 0 ? draw(3) : draw(longest));
        text->begins[i] = text->token_count;
        for (uint64_t k = 0; k < count; k++) {
            text->ids[text->token_count] = id++;
            text->trained[text->token_count++] = !masked || draw(4) > 0;
        }
    }
    text->begins[documents] = text->token_count;
}

/* A folder of token files with masks: a document each. */
static void write_folder(struct text *text, const char *name) {
    static unsigned char bytes[65536];
    REQUIRE_OK(ox_folder_make(test_path(name)));
    for (uint64_t i = 0; i < text->document_count; i++) {
        const uint64_t first = text->begins[i], count = text->begins[i + 1] - first;
        const int32_t words[5] = {2, 4, (int32_t)count, VOCAB, 1};
        char file[64];
        snprintf(file, sizeof file, "%s/%04u", name, (unsigned)i);
        memset(bytes, 0, sizeof bytes);
        memcpy(bytes, "BIN.TOK\n", 8);
        memcpy(bytes + 8, words, sizeof words);
        memcpy(bytes + 1024, text->ids + first, 4 * count);
        for (uint64_t k = 0; k < count; k++) {
            bytes[1024 + 4 * count + k / 8] |= (unsigned char)(text->trained[first + k] << k % 8);
        }
        files_write(file, bytes, 1024 + 4 * count + (count + 7) / 8);
    }
    REQUIRE_OK(ox_data_open(test_path(name), OX_DATA_AUTO, &text->data));
}

static void write_cache(struct text *text, const char *name) {
    struct ox_cache_writer *writer = NULL;
    const struct ox_cache_header header = {.vocab = VOCAB};
    REQUIRE_OK(ox_cache_create(test_path(name), test_folder(), &writer));
    for (uint64_t i = 0; i < text->document_count; i++) {
        const uint64_t first = text->begins[i];
        REQUIRE_OK(ox_cache_add(writer, true, text->ids + first, text->trained + first, text->begins[i + 1] - first));
    }
    REQUIRE_OK(ox_cache_commit(&writer, &header, NULL));
    REQUIRE_OK(ox_data_open(test_path(name), OX_DATA_AUTO, &text->data));
}

/* ---- the naive rows -------------------------------------------------------------------------------------------- */

static void open_rows(struct rows *rows, uint32_t seq) {
    rows->seq = seq;
    rows->row_count = 0;
}

static void add_rows(struct rows *rows, uint32_t count) {
    rows->row_count += count;
    if (rows->row_count > ROWS_MAX) {
        printf("the test makes too many rows\n");
        exit(1);
    }
    const size_t bytes = ((size_t)rows->row_count + 1) * rows->seq * sizeof(int32_t);
    rows->ids = realloc(rows->ids, bytes);
    rows->positions = realloc(rows->positions, bytes);
    rows->targets = realloc(rows->targets, bytes);
    for (uint32_t row = rows->row_count - count; row < rows->row_count; row++) {
        rows->used[row] = 0;
    }
}

static void add_place(struct rows *rows, uint32_t row, int32_t id, int32_t position, int32_t target) {
    const size_t at = (size_t)row * rows->seq + rows->used[row]++;
    CHECK(rows->used[row] <= rows->seq);
    rows->ids[at] = id;
    rows->positions[at] = position;
    rows->targets[at] = target;
}

static void end_rows(struct rows *rows) {
    for (uint32_t row = 0; row < rows->row_count; row++) {
        int32_t position = rows->used[row] > 0 ? rows->positions[(size_t)row * rows->seq + rows->used[row] - 1] : -1;
        const uint32_t used = rows->used[row];
        while (rows->used[row] < rows->seq) {
            add_place(rows, row, 0, ++position, OX_TARGET_PADDING);
        }
        rows->used[row] = used;
    }
}

static bool begins_at(const struct text *text, uint64_t token) {
    uint64_t i = 0;
    while (text->begins[i] < token) {
        i++;
    }
    return text->begins[i] == token && token < text->token_count;
}

/* Rows for perplexity: windows begin every `stride` tokens, and a target counts once. */
static void naive_stream(const struct text *text, const struct ox_windows_config *config, struct rows *rows) {
    const uint64_t first = config->sources->token_first, end = first + config->sources->token_count;
    const uint32_t stride = config->stride > 0 ? config->stride : config->seq;
    uint8_t *const met = calloc(text->token_count + 1, 1);
    open_rows(rows, config->seq);
    for (uint64_t begin = first;; begin += stride) {
        uint64_t target = config->bos >= 0 ? begin : begin + 1, last = target + config->seq;
        const bool whole = last <= end;
        bool fresh = false;
        last = whole ? last : end;
        for (uint64_t i = target; i < last; i++) {
            fresh |= !met[i];
        }
        if (!fresh || (!whole && !config->tail && stride >= config->seq)) {
            break;
        }
        int32_t position = 0;
        add_rows(rows, 1);
        for (; target < last; target++) {
            const bool bos = config->bos >= 0 && target == begin;
            const bool behind_bos = config->bos >= 0 && target == begin + 1; /* its document begins with the BOS */
            const bool restarts = config->document_mask && !bos && !behind_bos && begins_at(text, target - 1);
            const bool next = config->document_mask && !bos && begins_at(text, target);
            position = restarts ? 0 : position;
            add_place(rows, rows->row_count - 1, bos ? (int32_t)config->bos : text->ids[target - 1], position++,
                      text->trained[target] && !met[target] && !next ? text->ids[target] : -1);
            met[target] = 1;
        }
    }
    end_rows(rows);
    free(met);
}

/* Pieces of a document's part within [first, end). */
static uint32_t naive_pieces(const struct ox_windows_config *config, uint64_t first, uint64_t end, struct run *runs) {
    uint32_t count = 0;
    if (end - first > config->seq + 1 && config->overlong == OX_OVERLONG_DROP) {
        return 0;
    }
    while (end - first >= 2) {
        const uint64_t tokens = end - first < config->seq + 1 ? end - first : config->seq + 1;
        runs[count++] = (struct run){.first = first, .count = (uint32_t)tokens};
        first += tokens - 1;
        if (config->overlong == OX_OVERLONG_TRUNCATE) {
            break;
        }
    }
    return count;
}

static int compare_length(const void *a, const void *b) {
    const struct run *const left = a, *const right = b;
    if (left->count != right->count) {
        return left->count > right->count ? -1 : 1;
    }
    return left->first < right->first ? -1 : 1;
}

static int compare_place(const void *a, const void *b) {
    const struct run *const left = a, *const right = b;
    if (left->row != right->row) {
        return left->row < right->row ? -1 : 1;
    }
    return left->first < right->first ? -1 : 1;
}

static void naive_group(const struct text *text, const struct ox_windows_config *config, struct run *runs,
                        uint32_t count, struct rows *rows) {
    const uint32_t base = rows->row_count;
    uint32_t *const room = malloc((count + 1) * sizeof *room);
    uint32_t opened = 0;
    if (config->packing == OX_PACK_BINS) {
        qsort(runs, count, sizeof *runs, compare_length);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bin = config->packing == OX_PACK_PAD ? opened : 0;
        while (bin < opened && room[bin] < runs[i].count - 1) {
            bin++;
        }
        if (bin == opened) {
            room[opened++] = config->seq;
        }
        room[bin] -= runs[i].count - 1;
        runs[i].row = base + bin;
    }
    qsort(runs, count, sizeof *runs, compare_place);
    add_rows(rows, opened);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k + 1 < runs[i].count; k++) {
            const uint64_t token = runs[i].first + k;
            add_place(rows, runs[i].row, text->ids[token], (int32_t)k,
                      text->trained[token + 1] ? text->ids[token + 1] : -1);
        }
    }
    free(room);
}

static void naive_packed(const struct text *text, const struct ox_windows_config *config, struct rows *rows) {
    static struct run runs[TOKENS_MAX];
    const uint64_t first = config->sources->token_first, end = first + config->sources->token_count;
    uint32_t count = 0, documents = 0;
    open_rows(rows, config->seq);
    for (uint64_t i = 0; i < text->document_count; i++) {
        const uint64_t from = text->begins[i] > first ? text->begins[i] : first;
        const uint64_t to = text->begins[i + 1] < end ? text->begins[i + 1] : end;
        if (from >= to) {
            continue;
        }
        count += naive_pieces(config, from, to, runs + count);
        if (++documents == OX_PACK_GROUP) {
            naive_group(text, config, runs, count, rows);
            count = documents = 0;
        }
    }
    naive_group(text, config, runs, count, rows);
    end_rows(rows);
}

static void naive_rows(const struct text *text, const struct ox_windows_config *config, struct rows *rows) {
    if (config->packing == OX_PACK_STREAM) {
        naive_stream(text, config, rows);
    } else {
        naive_packed(text, config, rows);
    }
}

/* ---- comparing ------------------------------------------------------------------------------------------------- */

struct filled {
    int32_t ids[SEQ_MAX], positions[SEQ_MAX], targets[SEQ_MAX];
    uint64_t target_count;
};

static void fill(struct ox_windows *windows, uint64_t cursor, struct filled *out) {
    out->target_count = 0;
    REQUIRE_OK(ox_windows_fill(windows, cursor, (struct ox_window_row){out->ids, out->positions, out->targets},
                               &out->target_count));
}

static bool is_row(const struct filled *filled, const struct rows *rows, uint32_t row) {
    const size_t at = (size_t)row * rows->seq, bytes = rows->seq * sizeof(int32_t);
    return memcmp(filled->ids, rows->ids + at, bytes) == 0 &&
           memcmp(filled->positions, rows->positions + at, bytes) == 0 &&
           memcmp(filled->targets, rows->targets + at, bytes) == 0;
}

/* The row of `rows` that was filled in, or row_count. */
static uint32_t find_row(const struct filled *filled, const struct rows *rows) {
    uint32_t row = 0;
    while (row < rows->row_count && !is_row(filled, rows, row)) {
        row++;
    }
    return row;
}

static void check_counts(const struct ox_windows *windows, const struct text *text,
                         const struct ox_windows_config *config, const struct rows *rows) {
    struct ox_windows_counts counts;
    uint64_t used = 0, documents = 0, shorts = 0, overlong = 0, tokens = 0, kept = 0;
    const uint64_t first = config->sources->token_first, end = first + config->sources->token_count;
    ox_windows_counts(windows, &counts);
    for (uint32_t i = 0; i < rows->row_count; i++) {
        used += rows->used[i];
    }
    for (uint64_t i = 0; i < text->document_count; i++) {
        const uint64_t from = text->begins[i] > first ? text->begins[i] : first;
        const uint64_t to = text->begins[i + 1] < end ? text->begins[i + 1] : end;
        if (from < to) {
            documents++;
        }
        if (from < to && config->packing != OX_PACK_STREAM) {
            shorts += to - from == 1;
            overlong += to - from > config->seq + 1;
            tokens += to - from > 1 ? to - from : 0;
            kept += to - from > config->seq + 1 && config->overlong == OX_OVERLONG_DROP ? 0 : to - from > 1;
        }
    }
    CHECK(counts.rows == rows->row_count && ox_windows_source_rows(windows, 0) == rows->row_count);
    CHECK(counts.documents == documents && counts.short_documents == shorts && counts.overlong == overlong);
    if (config->packing != OX_PACK_STREAM) {
        CHECK(counts.dropped_tokens == tokens - used - kept);
        CHECK(config->overlong != OX_OVERLONG_SPLIT || counts.dropped_tokens == 0);
    }
    const double share = rows->row_count > 0 ? (double)used / ((double)rows->row_count * config->seq) : 0;
    CHECK(fabs(counts.fill - share) < 1e-12);
}

/* Two epochs in order, and a shuffled one. */
static void check_trial(const struct text *text, struct ox_windows_config config) {
    struct rows *const rows = &expected[0];
    struct ox_windows *windows = NULL;
    struct filled filled;
    naive_rows(text, &config, rows);
    config.order = OX_WINDOWS_SEQUENTIAL;
    REQUIRE_OK(ox_windows_open(&config, &windows));
    check_counts(windows, text, &config, rows);
    int wrong = 0;
    for (uint64_t i = 0; i < 2 * (uint64_t)rows->row_count; i++) {
        uint64_t target_count = 0;
        fill(windows, i, &filled);
        for (uint32_t k = 0; k < config.seq; k++) {
            target_count += filled.targets[k] >= 0;
        }
        wrong += !is_row(&filled, rows, (uint32_t)(i % rows->row_count)) || filled.target_count != target_count;
    }
    CHECK(wrong == 0);
    ox_windows_close(&windows);
    config.order = OX_WINDOWS_SHUFFLE;
    REQUIRE_OK(ox_windows_open(&config, &windows));
    for (uint64_t i = 0; i < rows->row_count; i++) {
        fill(windows, 3 * (uint64_t)rows->row_count + i, &filled);
        /* The order that runs have had since there is one. */
        wrong += !is_row(&filled, rows, (uint32_t)ox_permute(config.seed, UINT64_C(0x0064617461000003),
                                                             rows->row_count, i));
    }
    CHECK(wrong == 0);
    ox_windows_close(&windows);
    CHECK(windows == NULL);
    ox_windows_close(&windows);
}

static struct ox_windows_config random_config(const struct text *text, struct ox_window_source *source) {
    const uint64_t first = draw(2) == 0 ? 0 : draw(text->token_count);
    *source = (struct ox_window_source){.data = text->data, .weight = 1, .token_first = first};
    source->token_count = draw(2) == 0 ? text->token_count - first : draw(text->token_count - first + 1);
    struct ox_windows_config config = {.sources = source, .source_count = 1, .vocab = VOCAB, .bos = -1};
    config.seq = 1 + (uint32_t)draw(draw(2) == 0 ? 8 : 60);
    config.stride = (uint32_t)draw(config.seq + 2);
    config.packing = (enum ox_packing)draw(3);
    config.overlong = (enum ox_overlong)draw(3);
    config.document_mask = draw(2) == 0;
    config.tail = draw(2) == 0;
    config.bos = draw(2) == 0 || config.stride > config.seq ? -1 : 7;
    config.seed = draw(1000);
    return config;
}

static void test_random(void) {
    for (int trial = 0; trial < 600; trial++) {
        const struct text *const text = &small[draw(SMALL_COUNT)];
        struct ox_window_source source;
        check_trial(text, random_config(text, &source));
    }
}

/* ---- what is promised ------------------------------------------------------------------------------------------ */

/* Counts how often each token of text 0, all of which is trained, is a target in an epoch. */
static void count_targets(const struct ox_windows_config *config, uint8_t *times) {
    struct ox_windows *windows = NULL;
    struct ox_windows_counts counts;
    struct filled filled;
    memset(times, 0, small[0].token_count);
    REQUIRE_OK(ox_windows_open(config, &windows));
    ox_windows_counts(windows, &counts);
    for (uint64_t i = 0; i < counts.rows; i++) {
        fill(windows, i, &filled);
        for (uint32_t k = 0; k < config->seq; k++) {
            if (filled.targets[k] >= 0) {
                times[filled.targets[k] - small[0].ids[0]]++;
            }
        }
    }
    ox_windows_close(&windows);
}

static void test_targets(void) {
    const struct text *const text = &small[0];
    const struct ox_window_source source = {.data = text->data, .weight = 1, .token_count = text->token_count};
    uint8_t *const times = malloc(text->token_count);
    struct ox_windows_config config = {.sources = &source, .source_count = 1, .vocab = VOCAB, .tail = true};
    for (config.seq = 1; config.seq < 24; config.seq++) {
        int wrong = 0;
        for (config.stride = 1; config.stride <= config.seq; config.stride++) {
            for (config.bos = -1; config.bos < 1; config.bos++) {
                count_targets(&config, times);
                for (uint64_t i = 0; i < text->token_count; i++) {
                    wrong += times[i] != (i > 0 || config.bos >= 0);
                }
            }
        }
        config.packing = OX_PACK_BINS;
        for (int pad = 0; pad < 2; pad++, config.packing = OX_PACK_PAD) {
            count_targets(&config, times);
            for (uint64_t i = 0; i < text->token_count; i++) {
                wrong += times[i] == begins_at(text, i);
            }
        }
        config.packing = OX_PACK_STREAM;
        CHECK(wrong == 0);
    }
    free(times);
}

/* After each epoch the rows of a source have come equally often, give or take one. */
static void check_mixture(struct ox_windows_config config, const struct text *texts[2]) {
    struct ox_windows *windows = NULL;
    struct ox_windows_counts counts;
    struct filled filled;
    uint32_t *times[2];
    uint64_t rows[2];
    REQUIRE_OK(ox_windows_open(&config, &windows));
    ox_windows_counts(windows, &counts);
    for (int i = 0; i < 2; i++) {
        struct ox_windows_config one = config;
        one.sources = &config.sources[i];
        naive_rows(texts[i], &one, &expected[i]);
        times[i] = calloc(expected[i].row_count + 1, sizeof **times);
        const double wanted = round(config.sources[i].weight * expected[i].row_count);
        rows[i] = ox_windows_source_rows(windows, (uint32_t)i);
        CHECK(rows[i] == (config.sources[i].weight == 0 ? 0 : wanted < 1 ? 1 : (uint64_t)wanted));
    }
    CHECK(counts.rows == rows[0] + rows[1]);
    for (uint64_t epoch = 0; epoch < 5; epoch++) {
        uint64_t lost = 0, came[2] = {0}, uneven = 0;
        for (uint64_t i = 0; i < counts.rows; i++) {
            fill(windows, epoch * counts.rows + i, &filled);
            uint32_t row = find_row(&filled, &expected[0]), source = 0;
            if (row == expected[0].row_count) {
                source = 1;
                row = find_row(&filled, &expected[1]);
            }
            lost += row == expected[source].row_count;
            came[source]++;
            times[source][row]++;
            if (config.order == OX_WINDOWS_SEQUENTIAL) {
                const uint64_t walked = epoch * rows[source] + i - (source > 0 ? rows[0] : 0);
                lost += source != (i >= rows[0]) || row != walked % expected[source].row_count;
            }
        }
        CHECK(lost == 0 && came[0] == rows[0] && came[1] == rows[1]);
        for (int i = 0; i < 2; i++) {
            const uint64_t least = (epoch + 1) * rows[i] / expected[i].row_count;
            for (uint32_t row = 0; row < expected[i].row_count; row++) {
                uneven += times[i][row] != least && times[i][row] != least + 1;
            }
        }
        CHECK(uneven == 0);
    }
    free(times[0]);
    free(times[1]);
    ox_windows_close(&windows);
}

static void test_mixture(void) {
    static const double weights[][2] = {{1, 1}, {1, 0.5}, {3, 1}, {0.001, 2.25}, {0, 0.75}, {1, 0}, {3, 0.5}};
    const struct text *const texts[2] = {&small[1], &small[2]};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        for (int packing = 0; packing < 3; packing++) {
            const struct ox_window_source sources[2] = {
                {.data = texts[0]->data, .weight = weights[i][0], .token_count = texts[0]->token_count},
                {.data = texts[1]->data, .weight = weights[i][1], .token_count = texts[1]->token_count},
            };
            struct ox_windows_config config = {
                .sources = sources, .source_count = 2, .seq = 13, .vocab = VOCAB, .packing = (enum ox_packing)packing,
                .bos = -1, .seed = i, .order = i % 2 > 0 ? OX_WINDOWS_SEQUENTIAL : OX_WINDOWS_SHUFFLE};
            check_mixture(config, (const struct text *[2]){texts[0], texts[1]});
            config.order = OX_WINDOWS_SHUFFLE;
            check_mixture(config, (const struct text *[2]){texts[0], texts[1]});
        }
    }
}

/* Cursors in any order, windows opened anew: the same rows; other epochs and other seeds: another order. */
static void test_order(void) {
    enum { ASKED = 400 };
    static struct filled rows[ASKED];
    const struct ox_window_source sources[2] = {
        {.data = large.data, .weight = 0.6, .token_count = large.token_count},
        {.data = small[3].data, .weight = 2, .token_count = small[3].token_count},
    };
    struct ox_windows_config config = {.sources = sources, .source_count = 2, .seq = 40, .vocab = VOCAB,
                                       .packing = OX_PACK_BINS, .bos = -1, .seed = 5};
    struct ox_windows *windows = NULL;
    struct ox_windows_counts counts;
    struct filled filled;
    memset(rows, 0, sizeof rows);
    memset(&filled, 0, sizeof filled);
    REQUIRE_OK(ox_windows_open(&config, &windows));
    ox_windows_counts(windows, &counts);
    for (uint64_t i = 0; i < ASKED; i++) {
        fill(windows, i * 97, &rows[i]);
    }
    ox_windows_close(&windows);
    REQUIRE_OK(ox_windows_open(&config, &windows));
    int wrong = 0, same = 0, same_epoch = 0;
    for (uint64_t i = 0; i < ASKED; i++) {
        const uint64_t at = ox_permute(1, 2, ASKED, i);
        fill(windows, at * 97, &filled);
        wrong += memcmp(&filled, &rows[at], sizeof filled) != 0;
        fill(windows, at * 97 + counts.rows, &filled);
        same_epoch += memcmp(&filled, &rows[at], sizeof filled) == 0;
    }
    ox_windows_close(&windows);
    config.seed = 6;
    REQUIRE_OK(ox_windows_open(&config, &windows));
    for (uint64_t i = 0; i < ASKED; i++) {
        fill(windows, i * 97, &filled);
        same += memcmp(&filled, &rows[i], sizeof filled) == 0;
    }
    ox_windows_close(&windows);
    CHECK(wrong == 0 && same < ASKED / 20 && same_epoch < ASKED / 20);
}

/* A part of an epoch is no part of the data: what comes first is drawn from all of it. */
static void test_small_weight(void) {
    const struct text *const text = &small[2];
    const struct ox_window_source source = {.data = text->data, .weight = 0.25, .token_count = text->token_count};
    const struct ox_windows_config config = {
        .sources = &source, .source_count = 1, .seq = 10, .vocab = VOCAB, .bos = -1, .seed = 3};
    struct ox_windows *windows = NULL;
    struct filled filled;
    int behind = 0;
    REQUIRE_OK(ox_windows_open(&config, &windows));
    const uint64_t count = ox_windows_source_rows(windows, 0);
    for (uint64_t i = 0; i < count; i++) {
        fill(windows, i, &filled);
        behind += (uint64_t)(filled.ids[0] - text->ids[0]) > text->token_count / 2;
    }
    CHECK(count > 5 && behind > 0);
    ox_windows_close(&windows);
}

/* Documents without a target are left out where that is requested: every row trains, and no target is lost. */
static void check_untrained(const struct text *text, enum ox_packing packing, uint32_t seq) {
    const struct ox_window_source source = {.data = text->data, .weight = 1, .token_count = text->token_count};
    struct ox_windows_config config = {.sources = &source, .source_count = 1, .seq = seq, .vocab = VOCAB,
                                       .packing = packing, .overlong = OX_OVERLONG_TRUNCATE, .bos = -1, .seed = 1};
    uint64_t untrained = 0, targets[2] = {0}, empty_rows = 0;
    for (uint64_t i = 0; i < text->document_count; i++) {
        uint64_t trained = 0;
        for (uint64_t k = text->begins[i] + 1; k < text->begins[i + 1] && k <= text->begins[i] + seq; k++) {
            trained += text->trained[k];
        }
        untrained += trained == 0;
    }
    for (int drop = 0; drop < 2; drop++) {
        struct ox_windows *windows = NULL;
        struct ox_windows_counts counts;
        config.drop_untrained = drop != 0;
        REQUIRE_OK(ox_windows_open(&config, &windows));
        ox_windows_counts(windows, &counts);
        for (uint64_t cursor = 0; cursor < counts.rows; cursor++) {
            struct filled filled;
            fill(windows, cursor, &filled);
            targets[drop] += filled.target_count;
            empty_rows += drop != 0 && filled.target_count == 0;
        }
        CHECK(counts.untrained_documents == (drop != 0 ? untrained : 0) && counts.documents == text->document_count);
        CHECK(packing != OX_PACK_PAD || drop == 0 || counts.rows == text->document_count - untrained);
        ox_windows_close(&windows);
    }
    CHECK(untrained > 0 && empty_rows == 0 && targets[0] == targets[1] && targets[0] > 0);
}

/* Several groups of documents, and more than are kept at once. */
static void test_groups(void) {
    struct ox_window_source source = {.data = large.data, .weight = 1, .token_count = large.token_count};
    struct ox_windows_config config = {.sources = &source, .source_count = 1, .seq = 300, .vocab = VOCAB,
                                       .packing = OX_PACK_BINS, .bos = -1, .seed = 1};
    struct ox_windows *windows = NULL;
    struct ox_windows_counts counts;
    for (int overlong = 0; overlong < 3; overlong++) {
        config.overlong = (enum ox_overlong)overlong;
        check_trial(&large, config);
        config.seq = 60; /* many are longer */
    }
    config.packing = OX_PACK_PAD;
    config.overlong = OX_OVERLONG_SPLIT;
    check_trial(&large, config);
    source.token_first = large.begins[3000] + 1; /* within a document, mostly */
    source.token_count = large.begins[9000] - 1 - source.token_first;
    config.packing = OX_PACK_BINS;
    check_trial(&large, config);

    source = (struct ox_window_source){.data = many.data, .weight = 1, .token_count = many.token_count};
    check_trial(&many, config);
    source = (struct ox_window_source){.data = large.data, .weight = 1, .token_count = large.token_count};
    config.seq = 256;
    REQUIRE_OK(ox_windows_open(&config, &windows));
    ox_windows_counts(windows, &counts);
    CHECK(counts.fill > 0.95 && counts.fill <= 1);
    ox_windows_close(&windows);
}

static void test_split(void) {
    uint64_t token = 0, whole_count = 0;
    for (int i = 0; i < SMALL_COUNT; i++) {
        const struct text *const text = &small[i];
        for (uint64_t k = 0; k <= 100; k++) {
            const double share = (double)k / 100;
            const uint64_t border = text->token_count - (uint64_t)((double)text->token_count * share);
            uint64_t document = 0;
            while (text->begins[document] < border) {
                document++;
            }
            REQUIRE_OK(ox_windows_split(text->data, share, false, &token));
            CHECK(token == (document < text->document_count ? text->begins[document] : border));
            if (document == text->document_count && border < text->token_count) { /* none begins in that part */
                const uint64_t last = text->begins[text->document_count - 1];
                REQUIRE_OK(ox_windows_split(text->data, share, true, &token));
                CHECK(token == (last > 0 ? last : text->token_count));
                whole_count++;
            } else {
                const uint64_t cut = token;
                REQUIRE_OK(ox_windows_split(text->data, share, true, &token));
                CHECK(token == cut);
            }
        }
    }
    CHECK(whole_count > 0);
    /* One document is cut where its share begins. */
    const struct text *const one = &small[4];
    CHECK(one->document_count == 1);
    REQUIRE_OK(ox_windows_split(one->data, 0.1, false, &token));
    CHECK(token == one->token_count - (uint64_t)((double)one->token_count * 0.1) && token < one->token_count);
}

static void test_errors(void) {
    const struct text *const text = &small[0];
    const struct ox_window_source source = {.data = text->data, .weight = 1, .token_count = text->token_count};
    const struct ox_windows_config good = {.sources = &source, .source_count = 1, .seq = 8, .vocab = VOCAB, .bos = -1};
    struct ox_windows_config config = good;
    struct ox_windows *windows = NULL;
    struct ox_windows_counts counts;
    struct filled filled = {0};
    config.stride = 10;
    CHECK(ox_windows_open(&config, &windows) == OX_E_CONFIG && windows == NULL);
    config.stride = 9;
    config.bos = 0;
    CHECK(ox_windows_open(&config, &windows) == OX_E_CONFIG && windows == NULL);
    config = good;
    config.bos = VOCAB;
    CHECK(ox_windows_open(&config, &windows) == OX_E_CONFIG && windows == NULL);
    config = good;
    const struct ox_window_source heavy = {.data = text->data, .weight = 1e300, .token_count = text->token_count};
    config.sources = &heavy;
    CHECK(ox_windows_open(&config, &windows) == OX_E_CONFIG && windows == NULL);
    config.sources = &source;
    config.vocab = (uint32_t)text->ids[5];
    REQUIRE_OK(ox_windows_open(&config, &windows));
    int refused = 0;
    for (uint64_t i = 0; i < 3; i++) {
        refused += ox_windows_fill(windows, i, (struct ox_window_row){filled.ids, filled.positions, filled.targets},
                                   &filled.target_count) == OX_E_CORRUPT;
    }
    CHECK(refused == 3);
    ox_windows_close(&windows);

    /* Nothing to walk is no error; the caller decides. */
    const struct ox_window_source none = {.data = text->data, .weight = 1, .token_first = 3};
    config = good;
    for (int packing = 0; packing < 3; packing++) {
        config.sources = &none;
        config.packing = (enum ox_packing)packing;
        REQUIRE_OK(ox_windows_open(&config, &windows));
        ox_windows_counts(windows, &counts);
        CHECK(counts.rows == 0 && counts.fill == 0 && counts.documents == 0);
        ox_windows_close(&windows);
    }
}

int main(void) {
    static const uint64_t documents[SMALL_COUNT] = {12, 30, 17, 25, 1}, longest[SMALL_COUNT] = {40, 30, 90, 12, 900};
    for (int i = 0; i < SMALL_COUNT; i++) {
        char name[16];
        snprintf(name, sizeof name, "text%d", i);
        do {
            make_text(&small[i], documents[i], longest[i], 10000 * (i + 1), i > 0);
        } while (small[i].token_count < 100);
        write_folder(&small[i], name);
    }
    make_text(&large, 10000, 80, 100000, true);
    write_cache(&large, "large");
    make_text(&many, DOCUMENTS_MAX, 7, 100000, true);
    write_cache(&many, "many");
    test_random();
    test_targets();
    test_mixture();
    test_order();
    test_small_weight();
    test_groups();
    check_untrained(&large, OX_PACK_PAD, 60);
    check_untrained(&large, OX_PACK_BINS, 60);
    check_untrained(&many, OX_PACK_BINS, 3);
    check_untrained(&small[1], OX_PACK_PAD, 8);
    test_split();
    test_errors();
    for (int i = 0; i < SMALL_COUNT; i++) {
        ox_data_close(&small[i].data);
    }
    ox_data_close(&large.data);
    ox_data_close(&many.data);
    for (int i = 0; i < 2; i++) {
        free(expected[i].ids);
        free(expected[i].positions);
        free(expected[i].targets);
    }
    return test_end();
}
