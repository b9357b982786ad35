#include "engine/run/preview.h"

#include "base/bytes.h"
#include "base/log.h"
#include "base/pool.h"
#include "engine/data/token_cache.h"
#include "engine/run/trainer_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void ox_trainer_log_rows(const struct ox_windows *windows, const char *what, uint32_t seq) {
    struct ox_windows_counts counts;
    ox_windows_counts(windows, &counts);
    if (counts.rows > 0) {
        char weighted[64] = "", padded[96] = "";
        if (counts.rows != counts.all_rows) {
            snprintf(weighted, sizeof weighted, "; by weight an epoch has %" PRIu64, counts.rows);
        }
        if (counts.longest > 0 && counts.longest < seq && counts.fill < 0.5) {
            snprintf(padded, sizeof padded, "; the rest is padding, and --max-seq-length %" PRIu64 " cuts none of "
                     "them", counts.longest);
        }
        ox_log(OX_LOG_INFO, "%s: %" PRIu64 " document%s in %" PRIu64 " sequence%s of %" PRIu32 " tokens, %.1f %% of "
               "the places used%s%s", what, counts.documents, ox_plural(counts.documents), counts.all_rows,
               ox_plural(counts.all_rows), seq, 100 * counts.fill, weighted, padded);
    }
    const uint64_t cut = counts.untrained_documents - counts.untrained_rows;
    if (counts.untrained_rows > 0) {
        ox_log(OX_LOG_WARN, "%s: %" PRIu64 " of %" PRIu64 " documents %s no token to be trained on and %s left out: "
               "%s no assistant turn, or none that is trained", what, counts.untrained_rows, counts.documents,
               counts.untrained_rows == 1 ? "has" : "have", counts.untrained_rows == 1 ? "is" : "are",
               counts.untrained_rows == 1 ? "it has" : "they have");
    }
    if (cut > 0) {
        ox_log(OX_LOG_WARN, "%s: %" PRIu64 " of %" PRIu64 " documents %s no token to be trained on within "
               "--max-seq-length %" PRIu32 " and %s left out: what is trained begins behind it (`offload tokenize "
               "--show` prints rows and their masks)", what, cut, counts.documents, cut == 1 ? "has" : "have", seq,
               cut == 1 ? "is" : "are");
    }
    if (counts.dropped_tokens > 0) {
        ox_log(OX_LOG_WARN, "%s: %" PRIu64 " document%s longer than --max-seq-length %" PRIu32 "; %" PRIu64
               " token%s of them %s left out (--overlong %s)", what, counts.overlong,
               counts.overlong == 1 ? " is" : "s are", seq, counts.dropped_tokens, ox_plural(counts.dropped_tokens),
               counts.dropped_tokens == 1 ? "is" : "are",
               counts.pairs ? "drop would leave out such pairs" : "split would use them");
    }
}

struct preview {
    struct ox_trainer *trainer;
    struct ox_tokenizer *tokenizer;
    struct ox_preview_row row;
};

static enum ox_status open_tokenizer(struct preview *preview) {
    struct ox_trainer *const trainer = preview->trainer;
    char missing[OX_TOKENIZER_MISSING_BYTES];
    enum ox_status status = ox_trainer_check_data(trainer);
    if (status == OX_OK && trainer->input.tokenizer_path[0] == '\0') {
        status = ox_fail(OX_E_CONFIG, "%.300s: %s; name one by --tokenizer", trainer->config.files.model,
                         ox_tokenizer_missing(trainer->config.files.model, missing));
    }
    OX_THEN(status, ox_tokenizer_open(trainer->input.tokenizer_path, &preview->tokenizer));
    trainer->input.vocab = status == OX_OK ? ox_tokenizer_vocab_count(preview->tokenizer) : 0;
    return status;
}

/* If there is a model, limits sequences to what it can attend to, as in training. */
static enum ox_status open_model(struct ox_trainer *trainer) {
    const char *const model = trainer->config.files.model;
    char path[OX_PATH_BYTES];
    enum ox_status status = OX_OK;
    if (model[0] == '\0') {
        return OX_OK;
    }
    if (ox_path_is_folder(model)) {
        status = ox_path_join(model, "config.json", path);
        if (status != OX_OK || !ox_path_is_file(path)) {
            return status;
        }
    }
    return ox_trainer_open_model(trainer, false);
}

static enum ox_status open_row(struct preview *preview) {
    const uint64_t seq = preview->trainer->config.rows.max_seq_length;
    int32_t *const words = calloc(3 * (size_t)seq, sizeof *words);
    if (words == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for a sequence of %llu tokens", (unsigned long long)seq);
    }
    preview->row.seq = (uint32_t)seq;
    preview->row.row = (struct ox_window_row){.ids = words, .positions = words + seq, .targets = words + 2 * seq};
    return OX_OK;
}

static void count_data(const struct ox_trainer *trainer, struct ox_preview *out) {
    for (uint32_t i = 0; i < trainer->input.data_count; i++) {
        out->documents += ox_data_document_count(trainer->input.data[i]) +
                          ox_data_untrained_count(trainer->input.data[i]);
        out->tokens += ox_data_token_count(trainer->input.data[i]);
        if (ox_data_kind_of(trainer->input.data[i]) == OX_DATA_CACHE) {
            struct ox_cache_header header;
            ox_data_cache_header(trainer->input.data[i], &header);
            out->trained += header.trained_count;
        } else {
            out->trained += ox_data_token_count(trainer->input.data[i]);
        }
    }
    ox_windows_counts(trainer->input.train, &out->counts);
    out->seq = (uint32_t)trainer->config.rows.max_seq_length;
}

/* Opens data of less than one sequence again, as one that is as short as it is, so that rows can be shown; training
 * refuses it, as the warning says. Else returns the failure as it was. */
static enum ox_status shorten(struct preview *preview, enum ox_status failure) {
    struct ox_trainer *const trainer = preview->trainer;
    struct ox_windows_counts counts = {.rows = 1};
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < trainer->input.data_count; i++) {
        tokens += ox_data_token_count(trainer->input.data[i]);
    }
    if (trainer->input.train != NULL) {
        ox_windows_counts(trainer->input.train, &counts);
    }
    if (counts.rows > 0 || tokens < 2 || tokens > trainer->config.rows.max_seq_length) {
        return failure;
    }
    ox_log(OX_LOG_WARN, "training would refuse this: %s", ox_error_text());
    ox_trainer_close_data(trainer);
    trainer->config.rows.max_seq_length = tokens - 1;
    preview->row.seq = (uint32_t)trainer->config.rows.max_seq_length;
    return ox_trainer_open_data(trainer);
}

static enum ox_status walk(struct preview *preview, uint64_t row_max, ox_preview_fn *fn, void *context) {
    struct ox_windows_counts counts;
    ox_windows_counts(preview->trainer->input.train, &counts);
    enum ox_status status = OX_OK;
    for (uint64_t i = 0; i < row_max && i < counts.rows && status == OX_OK; i++) {
        preview->row.idx = i;
        preview->row.target_count = 0;
        status = ox_windows_fill(preview->trainer->input.train, i, preview->row.row, &preview->row.target_count);
        OX_THEN(status, fn(context, preview->tokenizer, &preview->row));
    }
    return status;
}

enum ox_status ox_preview_rows(const struct ox_config *config, uint64_t row_max, ox_preview_fn *fn, void *context,
                               struct ox_preview *out) {
    struct preview preview = {.trainer = calloc(1, sizeof *preview.trainer)};
    *out = (struct ox_preview){0};
    if (preview.trainer == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to look at the data");
    }
    preview.trainer->config = *config;
    preview.trainer->config.files.output_dir[0] = '\0';
    preview.trainer->config.rows.eval_fraction = 0;
    preview.trainer->lock_fd = -1;
    preview.trainer->engine_config.compute_threads = ox_processor_count();
    preview.trainer->claim = (struct ox_host_claim){
        .host_bytes = config->memory.host_mem_bytes,
        .beside_bytes = ox_fixed_overhead_bytes(preview.trainer->engine_config.compute_threads, 0, 0)};
    enum ox_status status = ox_trainer_check_pairs(config);
    OX_THEN(status, open_model(preview.trainer));
    ox_host_text_begin(&preview.trainer->claim, 0);
    OX_THEN(status, open_tokenizer(&preview));
    status = ox_host_text_end(&preview.trainer->claim, status);
    OX_THEN(status, open_row(&preview));
    OX_THEN(status, ox_trainer_open_data(preview.trainer));
    if (status == OX_E_CONFIG && row_max > 0) {
        status = shorten(&preview, status);
    }
    if (status == OX_E_CONFIG && row_max == 0 && preview.trainer->input.train != NULL) {
        ox_log(OX_LOG_WARN, "training would refuse this: %s", ox_error_text()); /* what there is can be counted */
        status = OX_OK;
    }
    if (status == OX_OK) {
        count_data(preview.trainer, out);
    }
    if (status == OX_OK && fn != NULL) {
        status = walk(&preview, row_max, fn, context);
    }
    free(preview.row.row.ids);
    ox_tokenizer_close(&preview.tokenizer);
    ox_trainer_close(&preview.trainer);
    return status;
}
