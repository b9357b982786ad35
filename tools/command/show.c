/* `offload tokenize --show`: prints sequences as training sees them, so that a person can check documents and masks. */
#include "tools/command/cmd.h"

#include "base/bytes.h"
#include "base/file.h"
#include "engine/run/preview.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Prints a text on one line, with line ends and other control characters escaped. */
static void print_text(const char *text, size_t bytes) {
    putchar('"');
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char byte = (unsigned char)text[i];
        if (byte == '\n') {
            fputs("\\n", stdout);
        } else if (byte == '\t') {
            fputs("\\t", stdout);
        } else if (byte < 0x20 || byte == 0x7f) {
            printf("\\x%02x", byte);
        } else {
            putchar(byte);
        }
    }
    putchar('"');
}

/* The tokens of one document within a row. The last one may be only a target, no input. */
struct span {
    int32_t *ids;
    bool *trained;
    size_t count;
};

static enum ox_status print_part(const struct ox_tokenizer *tokenizer, const struct span *span, size_t begin,
                                 size_t end) {
    char *text = NULL;
    size_t bytes = 0;
    OX_TRY(ox_decode(tokenizer, span->ids + begin, end - begin, false, &text, &bytes));
    printf("    %-8s ", span->trained[begin] ? "trained" : "masked");
    print_text(text, bytes);
    free(text);
    printf("\n             ");
    for (size_t i = begin; i < end; i++) {
        printf(" %" PRId32, span->ids[i]);
    }
    putchar('\n');
    return OX_OK;
}

/* Prints a document as runs of trained and of masked tokens. */
static enum ox_status print_document(const struct ox_tokenizer *tokenizer, const struct span *span, size_t number) {
    enum ox_status status = OX_OK;
    size_t trained = 0;
    for (size_t i = 0; i < span->count; i++) {
        trained += span->trained[i];
    }
    printf("  document %zu: %zu token%s, %zu trained\n", number, span->count, ox_plural(span->count), trained);
    for (size_t begin = 0, end; begin < span->count && status == OX_OK; begin = end) {
        for (end = begin + 1; end < span->count && span->trained[end] == span->trained[begin];) {
            end++;
        }
        status = print_part(tokenizer, span, begin, end);
    }
    return status;
}

/* Reads the document whose first input is at `first`; returns where the next one begins. Padding after the row's last
 * document, which has neither target nor id, is left out. */
static size_t take_document(const struct ox_preview_row *row, size_t first, struct span *out) {
    const struct ox_window_row *const r = &row->row;
    size_t past = first + 1;
    while (past < row->seq && r->positions[past] != 0) {
        past++;
    }
    size_t last = past;
    while (past == row->seq && last > first + 1 && r->targets[last - 1] < 0 && r->ids[last - 1] == 0) {
        last--;
    }
    out->count = 0;
    for (size_t i = first; i < last; i++) {
        out->ids[out->count] = r->ids[i];
        out->trained[out->count++] = i > first && r->targets[i - 1] >= 0;
    }
    if (r->targets[last - 1] >= 0) {
        out->ids[out->count] = r->targets[last - 1];
        out->trained[out->count++] = true;
    }
    return past;
}

static enum ox_status print_row(void *context, const struct ox_tokenizer *tokenizer, const struct ox_preview_row *row) {
    (void)context;
    struct span span = {.ids = malloc((row->seq + 1) * sizeof *span.ids),
                        .trained = malloc((row->seq + 1) * sizeof *span.trained)};
    enum ox_status status = span.ids != NULL && span.trained != NULL
                                ? OX_OK
                                : ox_fail(OX_E_NOMEM, "no memory to show a sequence");
    printf("sequence %" PRIu64 ": %" PRIu32 " position%s, %" PRIu64 " target%s\n", row->idx, row->seq,
           ox_plural(row->seq), row->target_count, ox_plural(row->target_count));
    size_t number = 0;
    for (size_t first = 0; first < row->seq && status == OX_OK;) {
        first = take_document(row, first, &span);
        status = print_document(tokenizer, &span, ++number);
    }
    free(span.trained);
    free(span.ids);
    return status;
}

static json_t *numbers(const int32_t *values, uint32_t count) {
    json_t *const array = json_array();
    for (uint32_t i = 0; i < count; i++) {
        json_array_append_new(array, json_integer(values[i]));
    }
    return array;
}

static enum ox_status print_row_json(void *context, const struct ox_tokenizer *tokenizer,
                                     const struct ox_preview_row *row) {
    (void)context;
    (void)tokenizer;
    json_t *const json = json_pack("{s:I, s:o, s:o, s:o}", "sequence", (json_int_t)row->idx, "ids",
                                   numbers(row->row.ids, row->seq), "positions", numbers(row->row.positions, row->seq),
                                   "targets", numbers(row->row.targets, row->seq));
    return ox_print_json(stdout, json, JSON_COMPACT, "the sequences");
}

static enum ox_status print_counts_json(const struct ox_preview *preview) {
    const struct ox_windows_counts *const counts = &preview->counts;
    return ox_print_json(stdout, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "documents",
                                           (json_int_t)preview->documents, "tokens", (json_int_t)preview->tokens,
                                           "trained_tokens", (json_int_t)preview->trained, "dropped_documents",
                                           (json_int_t)counts->untrained_documents, "dropped_tokens",
                                           (json_int_t)counts->dropped_tokens, "sequences", (json_int_t)counts->rows,
                                           "sequence_tokens", (json_int_t)preview->seq, "fill", counts->fill),
                         JSON_COMPACT | JSON_REAL_PRECISION(9), "the counts");
}

enum ox_status ox_show(const struct ox_config *given) {
    static struct ox_config config; /* tens of kilobytes */
    config = *given;
    /* A tokenizer.json in place of a folder is enough to count. */
    if (!config.vocab.show && config.files.tokenizer[0] == '\0' && ox_path_is_file(config.files.model)) {
        memcpy(config.files.tokenizer, config.files.model, sizeof config.files.tokenizer);
        config.files.model[0] = '\0';
    }
    const bool json = strcmp(config.tool.format, "json") == 0;
    const uint64_t rows = !config.vocab.show ? 0 : config.eval.max_windows > 0 ? config.eval.max_windows : 1;
    struct ox_preview preview;
    enum ox_status status = ox_preview_rows(&config, rows, json ? print_row_json : print_row, NULL, &preview);
    if (status == OX_OK && json && !config.vocab.show) {
        status = print_counts_json(&preview);
    } else if (status == OX_OK && !json) {
        printf("%" PRIu64 " document%s | %" PRIu64 " token%s | %" PRIu64 " may be trained | %" PRIu64 " sequence%s of %"
               PRIu32 ", %.1f %% of the positions used\n", preview.documents, ox_plural(preview.documents),
               preview.tokens, ox_plural(preview.tokens), preview.trained, preview.counts.rows,
               ox_plural(preview.counts.rows), preview.seq, 100 * preview.counts.fill);
    }
    return status;
}
