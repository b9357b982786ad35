/* Owns the caches of tokenized text: decides which file belongs to a text and whether it is still valid, and makes it.
 *
 * The name of a cache is a hash of the text's path and of everything that decides ids (tokenizer, options). Its header
 * has two keys: the hash of what decides ids, and the hash of the text's contents. To avoid reading the contents for
 * every comparison, a small file beside the cache, the stamp, records the contents' hash together with the times of
 * change of the files. */
#include "engine/data/corpus.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/data/corpus_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    RULES_VERSION = 7, /* part of the key; raise it when this code changes the ids of documents or rows */
    STAMP_BYTES_MAX = 64 << 10,
};
/* The coarsest resolution of a file system's times of change. */
static const uint64_t time_step_ns = UINT64_C(2000000000);
static const char unnamed_folder[] = "/var/tmp";

/* A text and the cache that belongs to it. */
struct source {
    const struct ox_corpus_config *config;
    struct ox_documents_config documents_config;
    char *separator;
    struct ox_tokenizer *tokenizer;
    struct ox_template *chat_template;
    json_t *kwargs;
    char no_template[512]; /* why chat_template is NULL */
    struct ox_documents *documents;
    struct ox_corpus_rules rules;
    uint64_t key;
    uint64_t examined_ns; /* when the files were last examined, in nanoseconds since 1970 */
    bool is_named;        /* the cache has a name, in a folder for caches */
    char cache_path[OX_PATH_BYTES], stamp_path[OX_PATH_BYTES];
};

/* ---- what the data is ---------------------------------------------------------------------------------------- */

static enum ox_status find_inputs(const struct ox_corpus_config *config, struct ox_inputs *inputs) {
    enum ox_status status = ox_inputs_open(config, inputs);
    if (status == OX_OK && config->format == OX_CORPUS_AUTO && inputs->format == OX_CORPUS_BYTES &&
        config->no_bytes != NULL && config->no_bytes[0] != '\0') {
        ox_inputs_close(inputs);
        status = ox_fail(OX_E_CONFIG, "%.300s: is text, but %s, or take its bytes for tokens with --data-format bytes",
                         config->path, config->no_bytes);
    }
    return status;
}

/* Whether the data is preferences where these are asked for, and nowhere else. */
static enum ox_status check_pairs(const struct ox_corpus_config *config, const struct ox_inputs *inputs) {
    return !config->pairs || inputs->format == OX_CORPUS_ROWS || inputs->format == OX_CORPUS_TOKENS
               ? OX_OK : ox_fail(OX_E_CONFIG, "%s: --dpo trains on JSON lines of \"chosen\" and \"rejected\", and this "
                                 "is none; give --data-format jsonl if it is", config->path);
}

static enum ox_status check_pairs_in(const struct ox_corpus_config *config, const struct ox_data *data) {
    if (ox_data_is_pairs(data) == config->pairs) {
        return OX_OK;
    }
    return config->pairs ? ox_fail(OX_E_CONFIG, "%s: --dpo trains on preferences, and these tokens are none; give the "
                                   "JSON lines of \"chosen\" and \"rejected\"", config->path)
                         : ox_fail(OX_E_CONFIG, "%s: holds preferences; train on them with --dpo", config->path);
}

static bool is_tokenized(const struct ox_inputs *inputs) {
    return inputs->format == OX_CORPUS_TEXT || inputs->format == OX_CORPUS_ROWS;
}

/* ---- rules --------------------------------------------------------------------------------------------------- */

static int hex_digit(char digit) {
    const char *const digits = "0123456789abcdef";
    const char lower = digit >= 'A' && digit <= 'F' ? (char)(digit + 'a' - 'A') : digit;
    const char *const found = lower != '\0' ? strchr(digits, lower) : NULL;
    return found != NULL ? (int)(found - digits) : -1;
}

enum ox_status ox_corpus_separator(const char *text, char **bytes, size_t *byte_count) {
    static const char names[] = "ntr\\", values[] = "\n\t\r\\";
    char *const out = malloc(strlen(text) + 1);
    size_t count = 0;
    *bytes = out;
    if (out == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the separator of documents");
    }
    for (const char *at = text; *at != '\0'; at++) {
        if (*at != '\\') {
            out[count++] = *at;
            continue;
        }
        const char *const name = at[1] != '\0' ? strchr(names, at[1]) : NULL;
        const int high = at[1] == 'x' ? hex_digit(at[2]) : -1;
        const int low = high >= 0 ? hex_digit(at[3]) : -1;
        if (name == NULL && low < 0) {
            return ox_fail(OX_E_CONFIG,
                           "--document-separator is \"%s\", with the unknown escape \"%.2s\"; write \\n, \\t, \\r, "
                           "\\\\, or \\xHH with two hex digits",
                           text, at);
        }
        out[count++] = name != NULL ? values[name - names] : (char)(16 * high + low);
        at += name != NULL ? 1 : 3;
    }
    *byte_count = count;
    return OX_OK;
}

/* Decides which BOS and EOS to add around texts. */
static enum ox_status choose_ends(const struct ox_corpus_config *config, struct ox_corpus_rules *rules) {
    const int64_t bos = ox_tokenizer_bos(rules->tokenizer), eos = ox_tokenizer_eos(rules->tokenizer);
    const bool adds_bos = ox_tokenizer_adds_bos(rules->tokenizer);
    const bool no_bos = config->add_bos == OX_ADD_ON && bos < 0;
    if (no_bos || (config->add_eos == OX_ADD_ON && eos < 0)) {
        return ox_fail(OX_E_CONFIG,
                       "%s: the tokenizer has no %s token to add to every document; name one in the "
                       "tokenizer_config.json, or leave out %s",
                       config->tokenizer, no_bos ? "BOS" : "EOS", no_bos ? "--add-bos on" : "--add-eos on");
    }
    const bool bare = config->plain && !rules->rows;
    const bool auto_bos = config->add_bos == OX_ADD_AUTO && adds_bos && !bare;
    const bool auto_eos = config->add_eos == OX_ADD_AUTO && !bare;
    rules->text_bos = config->add_bos == OX_ADD_ON || auto_bos ? bos : -1;
    rules->text_eos = config->add_eos == OX_ADD_ON || auto_eos ? eos : -1;
    return OX_OK;
}

/* ---- the chat template --------------------------------------------------------------------------------------- */

/* Opens the template of conversations. A tokenizer without one is an error only when a conversation comes. */
static enum ox_status open_template(struct source *source) {
    const struct ox_corpus_config *const config = source->config;
    enum ox_status status = ox_template_open(config->tokenizer, config->chat_template, &source->chat_template);
    if (status == OX_E_CONFIG && config->chat_template[0] == '\0') {
        snprintf(source->no_template, sizeof source->no_template, "%s", ox_error_text());
        status = OX_OK;
    }
    if (source->chat_template != NULL) {
        ox_template_heed(source->chat_template, config->stop);
    }
    OX_THEN(status, ox_chat_kwargs(config->chat_template_kwargs, &source->kwargs));
    source->rules.chat = (struct ox_chat_options){.chat_template = source->chat_template,
                                                  .no_template = source->no_template,
                                                  .folder = config->tokenizer,
                                                  .now = ox_chat_date(config->clock_s),
                                                  .kwargs = source->kwargs,
                                                  .train_on = config->train_on,
                                                  .add_bos = config->add_bos,
                                                  .add_eos = config->add_eos,
                                                  .parse_special = config->parse_special};
    return status;
}

/* ---- the key ------------------------------------------------------------------------------------------------- */

static uint64_t hash_text(const char *text) {
    return text != NULL ? ox_hash64(text, strlen(text), 1) : 0;
}

static uint64_t hash_columns(const struct ox_chat_columns *columns) {
    uint64_t words[OX_COLUMN_COUNT];
    for (int i = 0; i < OX_COLUMN_COUNT; i++) {
        words[i] = hash_text(columns->names[i]);
    }
    return ox_hash_seed(words, OX_COLUMN_COUNT);
}

/* What of the date the ids depend on: the day, and what a conversation shows of it, which may be the time too. */
static uint64_t date_key(const struct source *source) {
    const struct ox_template *const chat_template = source->chat_template;
    const struct tm now = ox_chat_date(source->config->clock_s);
    if (chat_template == NULL || !ox_template_uses_date(chat_template)) {
        return 0;
    }
    struct ox_jinja_output output = {0};
    json_t *const row = json_pack("{s:[{s:s,s:s},{s:s,s:s}],s:O}", "messages", "role", "user", "content", "Yes?",
                                  "role", "assistant", "content", "No.", "chat_template_kwargs", source->kwargs);
    const bool shown = row != NULL && ox_template_render(chat_template, row, &now, &output) == OX_OK;
    const uint64_t words[] = {(uint64_t)now.tm_year, (uint64_t)now.tm_yday,
                              shown ? hash_text(output.text) : (uint64_t)source->config->clock_s};
    ox_jinja_output_free(&output);
    json_decref(row);
    return ox_hash_seed(words, sizeof words / sizeof *words);
}

/* A hash of everything but the text that decides ids. */
static uint64_t key_of(const struct source *source) {
    const struct ox_corpus_rules *const rules = &source->rules;
    const struct ox_documents_config *const documents = &source->documents_config;
    const uint64_t words[] = {
        RULES_VERSION,
        OX_CACHE_VERSION,
        ox_tokenizer_fingerprint(rules->tokenizer),
        (uint64_t)rules->text_bos,
        (uint64_t)rules->text_eos,
        rules->rows,
        ox_hash64(documents->separator, documents->separator_bytes, 0),
    };
    /* Rows also depend on what AUTO takes from the tokenizer, and conversations on the template. */
    const uint64_t more[] = {
        rules->chat.add_bos,
        rules->chat.add_eos,
        (uint64_t)ox_tokenizer_bos(rules->tokenizer),
        (uint64_t)ox_tokenizer_eos(rules->tokenizer),
        ox_tokenizer_adds_bos(rules->tokenizer),
        rules->chat.parse_special,
        rules->chat.train_on,
        hash_text(source->config->chat_template_kwargs),
        hash_columns(rules->columns),
        source->chat_template != NULL ? ox_template_hash(source->chat_template) : 0,
        date_key(source),
    };
    const uint64_t all[] = {ox_hash_seed(words, sizeof words / sizeof *words),
                            rules->rows ? ox_hash_seed(more, sizeof more / sizeof *more) : 0, rules->skip_bad_rows,
                            rules->pairs};
    /* without them as before there were such options */
    return ox_hash_seed(all, rules->pairs ? 4 : rules->skip_bad_rows > 0 ? 3 : 2);
}

/* ---- opening a source ---------------------------------------------------------------------------------------- */

static void close_source(struct source *source) {
    ox_documents_close(&source->documents);
    ox_template_close(&source->chat_template);
    json_decref(source->kwargs);
    ox_tokenizer_close(&source->tokenizer);
    free(source->separator);
}

/* A folder's test split, read alone, has a cache beside that of the rest. */
static enum ox_status name_cache(struct source *source, const struct ox_inputs *inputs) {
    const struct ox_corpus_config *const config = source->config;
    char name[64];
    source->is_named = config->cache_dir[0] != '\0';
    if (!source->is_named) {
        snprintf(source->cache_path, sizeof source->cache_path, "the tokens of %.4000s", config->path);
        return OX_OK;
    }
    char *const canonical = realpath(config->path, NULL);
    if (canonical == NULL) {
        return ox_fail(OX_E_CONFIG, "%s: cannot be found", config->path);
    }
    const bool is_split = inputs->files.left[OX_LEFT_REST].count > 0;
    const uint64_t words[] = {source->key, ox_hash64(canonical, strlen(canonical), is_split)};
    free(canonical);
    const uint64_t hash = ox_hash_seed(words, 2);
    snprintf(name, sizeof name, "%016" PRIx64 ".tokens", hash);
    enum ox_status status = ox_path_join(config->cache_dir, name, source->cache_path);
    if (status == OX_OK) {
        snprintf(name, sizeof name, "%016" PRIx64 ".source.json", hash);
        status = ox_path_join(config->cache_dir, name, source->stamp_path);
    }
    return status;
}

static enum ox_status open_source(const struct ox_corpus_config *config, const struct ox_inputs *inputs,
                                  struct source *out) {
    memset(out, 0, sizeof *out);
    out->config = config;
    out->rules.columns = &config->columns;
    out->rules.rows = inputs->format == OX_CORPUS_ROWS;
    out->rules.pairs = config->pairs;
    out->rules.skip_bad_rows = out->rules.rows ? config->skip_bad_rows : 0;
    if (config->tokenizer[0] == '\0') {
        const bool known = config->no_bytes != NULL && config->no_bytes[0] != '\0';
        return ox_fail(OX_E_CONFIG, "%.300s: holds %s, %s%s", config->path, out->rules.rows ? "rows" : "text",
                       known ? "but " : "",
                       known ? config->no_bytes : "which needs a tokenizer; name one with --tokenizer");
    }
    out->documents_config.format = out->rules.rows ? OX_DOCUMENTS_ROWS : OX_DOCUMENTS_TEXT;
    enum ox_status status = ox_corpus_separator(out->rules.rows ? "" : config->separator, &out->separator,
                                                &out->documents_config.separator_bytes);
    out->documents_config.separator = out->separator;
    OX_THEN(status, ox_tokenizer_open(config->tokenizer, &out->tokenizer));
    if (status != OX_OK) {
        goto fail;
    }
    out->rules.tokenizer = out->tokenizer;
    const enum ox_cuts cuts = ox_tokenizer_cuts(out->tokenizer);
    out->documents_config.piece_bytes = cuts != OX_CUTS_NONE ? OX_CORPUS_PIECE_BYTES : 0;
    out->documents_config.cut_before_newline = cuts == OX_CUTS_BEFORE_NEWLINE;
    status = choose_ends(config, &out->rules);
    if (status == OX_OK && out->rules.rows) {
        status = open_template(out);
    }
    OX_THEN(status, ox_documents_open(&inputs->files, &out->documents_config, &out->documents));
    if (status == OX_OK) {
        out->key = key_of(out);
        status = name_cache(out, inputs);
    }
    if (status != OX_OK) {
        goto fail;
    }
    return OX_OK;
fail:
    close_source(out);
    return status;
}

/* ---- stamps -------------------------------------------------------------------------------------------------- */

/* Reads the hash of the contents that files with this stamp had; false if none is recorded. */
static bool read_stamp(const struct source *source, uint64_t stamp, uint64_t *contents) {
    json_t *json = NULL;
    uint64_t noted = 0;
    if (!ox_path_is_file(source->stamp_path) || ox_json_load(source->stamp_path, STAMP_BYTES_MAX, &json) != OX_OK) {
        return false;
    }
    const bool known = ox_json_get_hex(source->stamp_path, json, "stamp", 1, &noted) == OX_OK && noted == stamp &&
                       ox_json_get_hex(source->stamp_path, json, "contents", 1, contents) == OX_OK;
    json_decref(json);
    return known;
}

/* Records the hash of the contents, unless the files changed so recently that another change could keep the same
 * times. A failure is only logged, because the stamp merely saves time. */
static void write_stamp(const struct source *source, uint64_t contents) {
    uint64_t newest = 0;
    const uint64_t stamp = ox_documents_stamp(source->documents, &newest);
    if (newest + time_step_ns >= source->examined_ns) {
        return;
    }
    char text[160];
    const int bytes = snprintf(text, sizeof text, "{\"stamp\": \"%016" PRIx64 "\", \"contents\": \"%016" PRIx64 "\"}\n",
                               stamp, contents);
    if (ox_file_replace(source->stamp_path, text, (size_t)bytes) != OX_OK) {
        ox_log(OX_LOG_WARN, "%s", ox_error_text());
    }
}

/* Whether files were written, added or removed since the source was opened. */
static enum ox_status has_changed(struct source *source, bool *changed) {
    struct ox_documents *again = NULL;
    uint64_t newest = 0;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    source->examined_ns = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
    struct ox_inputs inputs;
    enum ox_status status = ox_inputs_open(source->config, &inputs);
    OX_THEN(status, ox_documents_open(&inputs.files, &source->documents_config, &again));
    ox_inputs_close(&inputs);
    if (status == OX_OK) {
        *changed = ox_documents_stamp(again, &newest) != ox_documents_stamp(source->documents, &newest);
        ox_documents_close(&again);
    }
    return status;
}

/* ---- using a cache ------------------------------------------------------------------------------------------- */

/* Makes damage a warning, since the cache can be made again. */
static enum ox_status pass_damage(enum ox_status status) {
    if (status != OX_E_CORRUPT) {
        return status;
    }
    ox_log(OX_LOG_WARN, "the token cache is damaged and will be made again: %s", ox_error_text());
    return OX_OK;
}

/* Opens the cache if it exists and belongs to this text; else *out is NULL. */
static enum ox_status open_cache(struct source *source, struct ox_data **out) {
    struct ox_cache_header header;
    uint64_t newest = 0, contents = 0;
    *out = NULL;
    if (!source->is_named || !ox_path_is_file(source->cache_path)) {
        return OX_OK;
    }
    enum ox_status status = ox_data_open(source->cache_path, OX_DATA_CACHE, out);
    if (status != OX_OK) {
        return pass_damage(status);
    }
    ox_data_cache_header(*out, &header);
    bool same = header.key[0] == source->key;
    const uint64_t stamp = ox_documents_stamp(source->documents, &newest);
    if (same && read_stamp(source, stamp, &contents)) {
        same = contents == header.key[1];
    } else if (same) {
        status = ox_documents_hash(source->documents, &contents);
        same = contents == header.key[1];
        bool changed = true;
        if (status == OX_OK && same) {
            status = has_changed(source, &changed);
        }
        if (status == OX_OK && !changed) {
            write_stamp(source, contents);
        }
    }
    if (status == OX_OK && same) {
        status = ox_data_verify_cache(*out);
        same = status == OX_OK;
        status = pass_damage(status);
    }
    if (status != OX_OK || !same) {
        ox_data_close(out);
    }
    return status;
}

/* ---- making a cache ------------------------------------------------------------------------------------------ */

static enum ox_status tokenize(struct source *source, struct ox_cache_writer *writer, struct ox_cache_header *header,
                               struct ox_corpus_report *report) {
    struct ox_corpus_work work = {.rules = source->rules,
                                  .path = source->config->path,
                                  .documents = source->documents,
                                  .writer = writer,
                                  .threads = source->config->threads,
                                  .stop = source->config->stop};
    bool changed = false;
    enum ox_status status = ox_corpus_tokenize(&work);
    report->notes = work.notes;
    memcpy(report->untrained_first, work.untrained_first, sizeof work.untrained_first);
    memcpy(report->noted_first, work.noted_first, sizeof work.noted_first);
    OX_THEN(status, has_changed(source, &changed));
    if (status == OX_OK && changed) {
        status = ox_fail(OX_E_CONFIG, "%s: was changed while it was read; start again when it is complete",
                         source->config->path);
    }
    if (status == OX_OK && ox_cache_token_count(writer) == 0 && work.untrained_count == 0) {
        status = ox_fail(OX_E_CONFIG, "%s: the tokenizer finds no tokens in it; give a text that is not blank",
                         source->config->path);
    }
    if (status == OX_OK) {
        *header = (struct ox_cache_header){.untrained_count = work.untrained_count,
                                           .key = {source->key, ox_documents_hash_read(source->documents)},
                                           .source_bytes = ox_documents_bytes(source->documents),
                                           .vocab = ox_cache_id_limit(writer),
                                           .is_chat = (uint16_t)(work.is_chat |
                                                                 (source->rules.pairs ? OX_CACHE_PAIRS : 0)),
                                           .bad_count = (uint16_t)work.bad_count};
    }
    return status;
}

/* Opens the cache just made. Another process may have replaced it with its own, which is fine if it is of the same
 * text. */
static enum ox_status open_made(const struct source *source, const struct ox_cache_header *made, struct ox_data **out) {
    struct ox_cache_header header;
    OX_TRY(ox_data_open(source->cache_path, OX_DATA_CACHE, out));
    ox_data_cache_header(*out, &header);
    if (header.key[0] != made->key[0] || header.key[1] != made->key[1]) {
        ox_data_close(out);
        return ox_fail(OX_E_BUSY, "%s: another process has replaced it, from a text that changed; start again",
                       source->cache_path);
    }
    return OX_OK;
}

static enum ox_status make_cache(struct source *source, struct ox_data **out, struct ox_corpus_report *report) {
    struct ox_cache_writer *writer = NULL;
    struct ox_cache_header header;
    int fd = -1;
    size_t existing = 0;
    const char *const folder = source->config->cache_dir;
    enum ox_status status = source->is_named ? ox_folder_make_undoable(folder, &existing) : OX_OK;
    OX_THEN(status, ox_cache_create(source->is_named ? source->cache_path : NULL, unnamed_folder, &writer));
    OX_THEN(status, tokenize(source, writer, &header, report));
    OX_THEN(status, ox_cache_commit(&writer, &header, source->is_named ? NULL : &fd));
    ox_cache_discard(&writer);
    if (status != OX_OK && source->is_named) {
        ox_folder_unmake(folder, existing);
    }
    if (status != OX_OK || !source->is_named) {
        return status == OX_OK ? ox_data_open_fd(fd, source->cache_path, out) : status;
    }
    write_stamp(source, header.key[1]);
    return open_made(source, &header, out);
}

/* Reports what the template is and does. */
static enum ox_status report_template(const struct source *source, struct ox_corpus_report *report) {
    struct ox_chat_renderer *renderer = NULL;
    snprintf(report->chat_template, sizeof report->chat_template, "%s", ox_template_origin(source->chat_template));
    report->marks_generation = ox_template_marks_generation(source->chat_template, NULL);
    enum ox_status status = ox_chat_open(source->tokenizer, &source->rules.chat, &renderer);
    OX_THEN(status, ox_chat_lettered_end(renderer, report->lettered_end));
    ox_chat_close(&renderer);
    return status;
}

static enum ox_status open_tokenized(const struct ox_corpus_config *config, const struct ox_inputs *inputs,
                                     struct ox_data **out, struct ox_corpus_report *report) {
    struct source *const source = malloc(sizeof *source); /* too large for the stack */
    if (source == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to open it", config->path);
    }
    enum ox_status status = open_source(config, inputs, source);
    if (status != OX_OK) {
        free(source);
        return status;
    }
    if (source->is_named) {
        ox_cache_sweep(config->cache_dir);
    }
    status = open_cache(source, out);
    report->reused = status == OX_OK && *out != NULL;
    if (status == OX_OK && *out == NULL) {
        status = make_cache(source, out, report);
        report->tokenized = status == OX_OK;
    }
    if (status == OX_OK) {
        struct ox_cache_header header;
        ox_data_cache_header(*out, &header);
        report->has_rows = source->rules.rows;
        report->trained = header.trained_count;
        report->bytes = header.source_bytes;
        report->bad_rows = header.bad_count;
        if (ox_data_has_conversations(*out)) {
            status = report_template(source, report);
        }
    }
    close_source(source);
    free(source);
    return status;
}

/* ---- public -------------------------------------------------------------------------------------------------- */

enum ox_status ox_corpus_open(const struct ox_corpus_config *config, struct ox_data **out,
                              struct ox_corpus_report *report) {
    const uint64_t begin_ns = ox_clock_ns();
    struct ox_inputs inputs;
    struct ox_data *data = NULL;
    OX_ASSERT(config->threads > 0);
    memset(report, 0, sizeof *report);
    enum ox_status status = find_inputs(config, &inputs);
    if (status == OX_OK) {
        ox_inputs_say_left(&inputs.files);
        status = check_pairs(config, &inputs);
        OX_THEN(status, is_tokenized(&inputs) ? open_tokenized(config, &inputs, &data, report)
                                              : ox_data_open_files(&inputs.files, inputs.kind, &data));
        ox_inputs_close(&inputs);
    }
    OX_THEN(status, check_pairs_in(config, data));
    if (status != OX_OK) {
        ox_data_close(&data);
        return status;
    }
    report->documents = ox_data_document_count(data) + ox_data_untrained_count(data);
    report->tokens = ox_data_token_count(data);
    report->seconds = (double)(ox_clock_ns() - begin_ns) / 1e9;
    *out = data;
    return OX_OK;
}

enum ox_status ox_corpus_is_ready(const struct ox_corpus_config *config, bool *ready) {
    struct ox_inputs inputs;
    struct ox_data *data = NULL;
    *ready = true;
    enum ox_status status = find_inputs(config, &inputs);
    if (status != OX_OK || !is_tokenized(&inputs)) {
        ox_inputs_close(&inputs);
        return status;
    }
    struct source *const source = malloc(sizeof *source);
    status = source != NULL ? open_source(config, &inputs, source)
                            : ox_fail(OX_E_NOMEM, "%s: no memory to open it", config->path);
    if (status == OX_OK) {
        status = open_cache(source, &data);
        if (status == OX_OK && data == NULL) {
            struct ox_corpus_work work = {
                .rules = source->rules, .path = config->path, .documents = source->documents, .stop = config->stop};
            status = ox_corpus_look(&work);
        }
        close_source(source);
    }
    free(source);
    ox_inputs_close(&inputs);
    *ready = data != NULL;
    ox_data_close(&data);
    return status;
}
