/* Opens the data of a run: its sources as tokens, and the rows for training and of held-out text. */
#include "engine/run/preview.h"
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"
#include "base/hash/hash.h"
#include "base/log.h"
#include "engine/data/corpus.h"
#include "engine/data/token_cache.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- from options to settings ----------------------------------------------------------------------- */

static enum ox_add add_of(enum ox_auto_choice choice) {
    return choice == OX_CHOICE_ON ? OX_ADD_ON : choice == OX_CHOICE_OFF ? OX_ADD_OFF : OX_ADD_AUTO;
}

static enum ox_corpus_format format_of(enum ox_data_format format) {
    static const enum ox_corpus_format formats[] = {[OX_FORMAT_AUTO] = OX_CORPUS_AUTO,
                                                    [OX_FORMAT_TEXT] = OX_CORPUS_TEXT,
                                                    [OX_FORMAT_JSONL] = OX_CORPUS_ROWS,
                                                    [OX_FORMAT_BYTES] = OX_CORPUS_BYTES,
                                                    [OX_FORMAT_TOKENS] = OX_CORPUS_TOKENS};
    return formats[format];
}

/* Writes folder or file of the configuration's tokenizer to `path` (OX_PATH_BYTES); "" if there is none. */
static enum ox_status find_tokenizer(const struct ox_trainer *trainer, char *path) {
    const struct ox_config *const config = &trainer->config;
    path[0] = '\0';
    if (config->files.tokenizer[0] != '\0') {
        snprintf(path, OX_PATH_BYTES, "%s", config->files.tokenizer);
        return OX_OK;
    }
    char file[OX_PATH_BYTES], folder[OX_PATH_BYTES];
    if (!ox_path_is_folder(config->files.model)) {
        return OX_OK;
    }
    const bool is_one = trainer->input.eval_alone && ox_hf_is_adapter(config->files.model); /* and begun with another */
    enum ox_status status = ox_run_find_tokenizer(config->files.model, is_one ? "" : config->parts.adapter, folder);
    OX_THEN(status, ox_path_join(folder, "tokenizer.json", file));
    if (status == OX_OK && ox_path_exists(file)) { /* or a link to nothing, which opening it tells */
        snprintf(path, OX_PATH_BYTES, "%s", folder);
    }
    return status;
}

/* Bytes are the tokens of a model without a tokenizer only if it has as many: the ids of another one mean pieces of
 * text that only its own tokenizer knows. */
static void say_no_bytes(struct ox_trainer *trainer) {
    enum { BYTE_VALUES = 256 };
    const char *const model = trainer->config.files.model, *const slash = strrchr(model, '/');
    const bool is_file = !ox_path_is_folder(model);
    const uint32_t vocab = trainer->folder != NULL ? ox_hf_model(trainer->folder)->config.vocab : BYTE_VALUES;
    char folder[OX_PATH_BYTES], missing[OX_TOKENIZER_MISSING_BYTES];
    snprintf(folder, sizeof folder, "%.*s", slash != NULL ? (int)(slash - model) : 1, slash != NULL ? model : ".");
    trainer->input.no_bytes[0] = '\0';
    const bool of_bytes = vocab == BYTE_VALUES && (is_file || !ox_tokenizer_has_parts(model));
    if (trainer->input.tokenizer_path[0] != '\0' || of_bytes) {
        return;
    }
    const bool beside = is_file && ox_folder_has(folder, "tokenizer.json");
    snprintf(trainer->input.no_bytes, sizeof trainer->input.no_bytes, "the model's %" PRIu32 " tokens are not %s, and "
             "%.150s %s; %s", vocab,
             vocab == BYTE_VALUES ? "bytes, because it has files of a tokenizer" : "those of bytes", model,
             beside    ? "names a file, beside which the tokenizer.json is not looked for"
             : is_file ? "has no tokenizer"
                       : ox_tokenizer_missing(model, missing),
             beside ? "name its folder, or the tokenizer by --tokenizer"
                    : "name a tokenizer.json, or its folder, with --tokenizer");
}

/* Sets where tokens are cached: beside the run, unless the user names a folder. */
static enum ox_status set_cache_dir(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    trainer->input.cache_dir[0] = '\0';
    if (config->rows.data_cache[0] != '\0') {
        snprintf(trainer->input.cache_dir, sizeof trainer->input.cache_dir, "%s", config->rows.data_cache);
        const enum ox_status place = ox_folder_check_place(config->rows.data_cache);
        return place != OX_OK ? place
               : ox_folder_takes_files(config->rows.data_cache)
                   ? ox_run_check_beside_model(trainer, "--data-cache", config->rows.data_cache)
                   : ox_fail(OX_E_CONFIG, "--data-cache %s: nothing can be written there (read-only, or of another "
                             "user); give another folder", config->rows.data_cache);
    }
    if (trainer->input.leaves_nothing) {
        return OX_OK;
    }
    const enum ox_status status = config->files.output_dir[0] != '\0'
                                      ? ox_path_join(config->files.output_dir, "cache", trainer->input.cache_dir)
                                      : OX_OK;
    return status == OX_OK ? ox_path_refuse_link(trainer->input.cache_dir) : status;
}

static bool is_eval_path(const struct ox_trainer *trainer, const char *path) {
    bool is = false;
    for (uint32_t i = 0; i < trainer->input.eval_sets.count; i++) {
        is = is || path == trainer->input.eval_sets.sets[i].path;
    }
    return is;
}

struct ox_corpus_config ox_corpus_of_options(const struct ox_config *config, const char *path) {
    return (struct ox_corpus_config){
        .path = path,
        .format = format_of(config->rows.data_format),
        .separator = config->rows.document_separator,
        .columns = {.names = {[OX_COLUMN_MESSAGES] = config->rows.column_messages,
                              [OX_COLUMN_PROMPT] = config->rows.column_prompt,
                              [OX_COLUMN_COMPLETION] = config->rows.column_completion,
                              [OX_COLUMN_INSTRUCTION] = config->rows.column_instruction,
                              [OX_COLUMN_INPUT] = config->rows.column_input,
                              [OX_COLUMN_OUTPUT] = config->rows.column_output,
                              [OX_COLUMN_SYSTEM] = config->rows.column_system,
                              [OX_COLUMN_TEXT] = config->rows.column_text,
                              [OX_COLUMN_TOOLS] = config->rows.column_tools,
                              [OX_COLUMN_ROLE] = config->rows.column_role,
                              [OX_COLUMN_CONTENT] = config->rows.column_content}},
    };
}

static struct ox_corpus_config corpus_config(const struct ox_trainer *trainer, const char *path) {
    const struct ox_config *const config = &trainer->config;
    struct ox_corpus_config corpus = ox_corpus_of_options(config, path);
    corpus.evaluates = (trainer->input.eval_alone && config->rows.held_share == 0) || is_eval_path(trainer, path);
    corpus.tokenizer = trainer->input.tokenizer_path;
    corpus.no_bytes = trainer->input.no_bytes;
    corpus.cache_dir = trainer->input.cache_dir;
    corpus.chat_template = config->rows.chat_template;
    corpus.chat_template_kwargs = config->rows.chat_template_kwargs;
    corpus.clock_s = trainer->input.clock_s;
    corpus.train_on = (enum ox_train_on)config->rows.train_on;
    /* Where each window gets a BOS of its own, one at the start of the text would be there twice. */
    corpus.add_bos = config->eval.bos_per_window && config->rows.add_bos == OX_CHOICE_AUTO
                         ? OX_ADD_OFF
                         : add_of(config->rows.add_bos);
    corpus.add_eos = add_of(config->rows.add_eos);
    /* what a run is evaluated on is measured as the run does, and so are preferences */
    corpus.plain = trainer->input.eval_alone && !config->rows.as_run && !config->loss.dpo;
    corpus.parse_special = config->rows.parse_special;
    corpus.pairs = config->loss.dpo;
    corpus.skip_bad_rows = (uint32_t)config->rows.skip_bad_rows;
    corpus.threads = trainer->engine_config.compute_threads;
    corpus.stop = trainer->events != NULL ? &trainer->events->stop : NULL;
    return corpus;
}

static enum ox_status check_input(const char *flag, const char *path) {
    char config[OX_PATH_BYTES], tokenizer[OX_PATH_BYTES];
    if (access(path, F_OK) != 0) {
        return ox_hf_fail_missing(flag, path, "text, JSON lines, a token file, or a folder of them (nothing is "
                                              "downloaded)");
    }
    enum ox_status status = ox_path_join(path, "config.json", config);
    OX_THEN(status, ox_path_join(path, "tokenizer.json", tokenizer));
    const bool is_run = status == OX_OK && ox_path_is_folder(path) && ox_run_exists(path);
    const bool is_model = status == OX_OK && ox_path_is_file(config) && ox_path_is_file(tokenizer);
    return status == OX_OK && (is_run || is_model)
               ? ox_fail(OX_E_CONFIG, "%s %s: is the folder of a %s, which holds no texts to train on; name the data",
                         flag, path, is_run ? "run" : "model") : status;
}

/* Finds what a resumed run began with, so that its data stays the same: the date that chat templates print (else now),
 * and whether what it holds out may begin within a document, as in runs of earlier versions. */
static enum ox_status find_origin(struct ox_trainer *trainer) {
    const char *const resume = trainer->config.files.resume_from_checkpoint;
    struct ox_run_identity *const identity = malloc(sizeof *identity); /* too large for the stack */
    char folder[OX_PATH_BYTES];
    if (identity == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the identity of a run");
    }
    const bool latest = strcmp(resume, "latest") == 0;
    snprintf(folder, sizeof folder, "%s", trainer->config.files.output_dir);
    if (!latest && resume[0] != '\0') {
        ox_run_of_checkpoint(resume, folder);
    }
    const bool known =
        resume[0] != '\0' && ox_run_exists(folder) && ox_run_read_identity(folder, identity) == OX_OK;
    trainer->input.clock_s = known && identity->has_clock ? identity->clock_s : trainer->config.tool.clock_s;
    trainer->input.holds_whole = !known || identity->holds_whole;
    free(identity);
    return OX_OK;
}

/* Checks the options of conversations before any data is read, because only conversations would read them. */
static enum ox_status check_template(const struct ox_trainer *trainer) {
    struct ox_template *chat_template = NULL;
    json_t *kwargs = NULL;
    enum ox_status status = ox_chat_kwargs(trainer->config.rows.chat_template_kwargs, &kwargs);
    json_decref(kwargs);
    if (status == OX_OK && trainer->config.rows.chat_template[0] != '\0' && trainer->input.tokenizer_path[0] != '\0') {
        status = ox_template_open(trainer->input.tokenizer_path, trainer->config.rows.chat_template, &chat_template);
        ox_template_close(&chat_template);
    }
    return status;
}

enum ox_status ox_trainer_check_data(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    bool any = trainer->input.eval_alone ||
               config->files.data_count == 0; /* only training uses source weights; a plan needs no data */
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < config->files.data_count && status == OX_OK; i++) {
        status = check_input("--data", config->files.data[i].path);
        any = any || config->files.data[i].weight > 0;
    }
    if (status == OX_OK && !any) {
        status = ox_fail(OX_E_CONFIG, "--data %s: every weight is 0, so there is nothing to train on; give at least "
                         "one above 0", config->files.data[0].path);
    }
    OX_THEN(status, ox_config_eval_sets(config->files.eval_data, &trainer->input.eval_sets));
    for (uint32_t i = 0; i < trainer->input.eval_sets.count && status == OX_OK; i++) {
        status = check_input("--eval-data", trainer->input.eval_sets.sets[i].path);
    }
    if (status == OX_OK && config->files.tokenizer[0] != '\0') {
        status = ox_hf_check_path("--tokenizer", config->files.tokenizer);
    }
    OX_THEN(status, find_tokenizer(trainer, trainer->input.tokenizer_path));
    OX_THEN(status, check_template(trainer));
    if (status == OX_OK) {
        say_no_bytes(trainer);
        status = find_origin(trainer);
    }
    return status;
}

enum ox_status ox_trainer_data_ready(struct ox_trainer *trainer, bool *ready) {
    const struct ox_config *const config = &trainer->config;
    enum ox_status status = set_cache_dir(trainer);
    ox_host_text_begin(&trainer->claim, 0);
    *ready = true;
    const struct ox_eval_sets *const sets = &trainer->input.eval_sets;
    for (uint32_t i = 0; i < config->files.data_count + sets->count && status == OX_OK && *ready; i++) {
        const char *const path =
            i < config->files.data_count ? config->files.data[i].path : sets->sets[i - config->files.data_count].path;
        const struct ox_corpus_config corpus = corpus_config(trainer, path);
        status = ox_corpus_is_ready(&corpus, ready);
    }
    return ox_host_text_end(&trainer->claim, status);
}

/* ---- sources ---------------------------------------------------------------------------------------- */

/* Says once for each template where it comes from, and what is trained. */
static void say_template(struct ox_trainer *trainer, const struct ox_corpus_report *report) {
    static const char *const trained[] = {[OX_TRAIN_ALL] = "all of them are trained",
                                          [OX_TRAIN_LAST] = "the last one is trained",
                                          [OX_TRAIN_PROMPTS] = "prompts are trained too"};
    if (report->chat_template[0] == '\0' || trainer->input.said_template) {
        return;
    }
    trainer->input.said_template = true;
    if (trainer->config.loss.dpo) {
        ox_log(OX_LOG_INFO, "chat template: %s; all of an answer counts", report->chat_template);
        return;
    }
    ox_log(OX_LOG_INFO, "chat template: %s; assistant turns %s; %s", report->chat_template,
           report->marks_generation ? "by {% generation %}" : "found by rendering prefixes",
           trained[trainer->config.rows.train_on]);
}

/* Warns of rows from which less is trained than they hold. */
static void warn_of_rows(const struct ox_corpus_report *report, const char *path) {
    static const char *const names[] = {[OX_NOTE_TOOLS] = "tools",
                                        [OX_NOTE_DOCUMENTS] = "documents",
                                        [OX_NOTE_TOOL_CALLS] = "tool_calls",
                                        [OX_NOTE_REASONING] = "reasoning"};
    /* Once for each kind and file: a line for each row would bury what else is said. */
    for (int i = 0; i < OX_NOTE_KEY_COUNT; i++) {
        const uint64_t rows = report->notes.rows[i];
        if (rows > 0 && !report->notes.read[i]) {
            ox_log(OX_LOG_WARN, "%s: %" PRIu64 " row%s %s, which the chat template does not read, so nothing of it is "
                   "trained; name a template that reads it with --chat-template", path, rows,
                   rows == 1 ? " has" : "s have", names[i]);
        }
    }
    static const struct {
        enum ox_chat_note note;
        const char *has, *what;
    } others[] = {
        {OX_NOTE_EMPTY, "an empty answer", "of which only the end is trained; remove such rows if that is not meant"},
        {OX_NOTE_BLANK, "an empty text", "of which only the end is trained; remove such rows if that is not meant"},
        {OX_NOTE_EQUAL, "the same answer twice", "which teaches no preference; remove such rows"},
        {OX_NOTE_SPELLED, "the string of a special token in what is trained",
         "where it stays letters; remove it, or give --parse-special if it is meant as the token"},
        {OX_NOTE_FOREIGN, "a tag such as <|im_end|> that is no token of this tokenizer",
         "so its letters are trained; give the tokenizer that the text was written for"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const uint64_t rows = report->notes.rows[others[i].note];
        if (rows > 0) {
            ox_log(OX_LOG_WARN, "%s: %" PRIu64 " row%s %s, %s", path, rows, rows == 1 ? " has" : "s have",
                   others[i].has, others[i].what);
        }
    }
    static const struct {
        enum ox_chat_note note;
        const char *what, *has, *remedy;
    } placed[] = {
        {OX_NOTE_IGNORED, "the chat template writes nothing of what it says, so the model does not see it",
         "such a message", "give it a role that the template knows, or name another template with --chat-template"},
        {OX_NOTE_HALF, "the chat template writes a part of what it says, and nothing of the rest",
         "such a message", "say all of it in one text, or name another template with --chat-template"},
        {OX_NOTE_JUDGED, "seems to say how good the row is, and the row is trained like all others",
         "such a key", "leave bad rows out, or give bad answers \"weight\": 0"},
    };
    for (size_t i = 0; i < sizeof placed / sizeof *placed; i++) {
        const uint64_t rows = report->notes.rows[placed[i].note];
        if (rows > 0) {
            ox_log(OX_LOG_WARN, "%s: %s; %" PRIu64 " row%s %s; %s",
                   report->noted_first[placed[i].note - OX_NOTE_PLACED], placed[i].what, rows,
                   rows == 1 ? " has" : "s have", placed[i].has, placed[i].remedy);
        }
    }
    if (report->untrained_first[0] != '\0') {
        ox_log(OX_LOG_WARN, "%s: the first row without a token to be trained on; a conversation needs a message of the "
               "role assistant that is not empty and whose weight is not 0", report->untrained_first);
    }
    if (report->lettered_end[0] != '\0') {
        ox_log(OX_LOG_WARN, "the chat template ends a turn with %s, which is no token of this tokenizer, so its "
               "letters are trained; name a template for this model with --chat-template", report->lettered_end);
    }
}

static enum ox_status open_corpus(struct ox_trainer *trainer, const char *path, struct ox_data **out) {
    const struct ox_corpus_config config = corpus_config(trainer, path);
    struct ox_corpus_report report;
    struct ox_cache_header header;
    const enum ox_status status = ox_corpus_open(&config, out, &report);
    if (status == OX_OK && ox_data_kind_of(*out) == OX_DATA_BYTES) {
        ox_log(OX_LOG_INFO, "%s: %" PRIu64 " byte%s, one token each", path, report.tokens,
               ox_plural(report.tokens));
    }
    if (status != OX_OK || !(report.tokenized || report.reused)) {
        return status;
    }
    trainer->input.bad_rows += report.bad_rows;
    if (report.reused && report.bad_rows > 0) {
        ox_log(OX_LOG_WARN, "%s: %" PRIu64 " row%s left out when the cache was made, because they cannot be used", path,
               report.bad_rows, report.bad_rows == 1 ? " was" : "s were");
    }
    char how[64] = "from the cache";
    if (report.tokenized && report.seconds < 0.05) { /* too short for a speed */
        snprintf(how, sizeof how, "tokenized in less than 0.1 s");
    } else if (report.tokenized) {
        snprintf(how, sizeof how, "tokenized in %.1f s, %.1f MB/s", report.seconds,
                 (double)report.bytes * 1e-6 / report.seconds);
    }
    ox_log(OX_LOG_INFO, "%s: %" PRIu64 " document%s, %" PRIu64 " token%s, %" PRIu64 " of them trained; %s", path,
           report.documents, ox_plural(report.documents), report.tokens, ox_plural(report.tokens), report.trained, how);
    if (report.documents == 1 && !report.has_rows && trainer->config.rows.document_separator[0] != '\0') {
        ox_log(OX_LOG_WARN, "%s: is one document: --document-separator \"%s\" divides nothing in it", path,
               trainer->config.rows.document_separator);
    }
    trainer->input.has_rows |= report.has_rows;
    trainer->input.has_prompts |= ox_data_is_chat(*out);
    say_template(trainer, &report);
    warn_of_rows(&report, path);
    /* Checked here, because otherwise a step would fail at the first such token. */
    ox_data_cache_header(*out, &header);
    if (header.vocab > trainer->input.vocab) {
        ox_data_close(out);
        return ox_fail(OX_E_CONFIG,
                       "%s: the tokenizer %s makes the token %" PRIu32 " of it, but the model knows %" PRIu32
                       " tokens; use the tokenizer that the model was made for%s", path, trainer->input.tokenizer_path,
                       header.vocab - 1, trainer->input.vocab,
                       trainer->input.eval_alone ? "" : ", or give the model rows for tokens that were added to it "
                                                        "with --resize-embeddings mean");
    }
    return OX_OK;
}

/* Warns of a tokenizer beside the config.json that --model names: a file is a model without a tokenizer. */
static void warn_of_tokenizer(const struct ox_config *config) {
    const char *const slash = strrchr(config->files.model, '/');
    char file[OX_PATH_BYTES];
    const int bytes = snprintf(file, sizeof file, "%.*stokenizer.json",
                               slash != NULL ? (int)(slash + 1 - config->files.model) : 0, config->files.model);
    if (config->files.model[0] != '\0' && ox_path_is_file(config->files.model) && bytes < OX_PATH_BYTES &&
        access(file, F_OK) == 0) {
        ox_log(OX_LOG_WARN, "bytes are trained, not the tokens of %s: --model %s names a file; name its folder, or "
               "give --tokenizer", file, config->files.model);
    }
}

/* Warns of options that are for another kind of data than all that is there. */
static void warn_of_unused(const struct ox_trainer *trainer) {
    static const char *const names[] = {"conversations", "prompts with answers", "rows"};
    const struct ox_config *const config = &trainer->config;
    const struct ox_trainer_input *const input = &trainer->input;
    const bool has[] = {input->said_template, input->has_prompts, input->has_rows};
    const struct {
        const char *flag, *value;
        int needs;
    } options[] = {
        {"chat-template", config->rows.chat_template, 0},
        {"chat-template-kwargs", config->rows.chat_template_kwargs, 0},
        {"train-on",
         config->rows.train_on == OX_TRAIN_LAST  ? "last"
         : config->rows.train_on == OX_TRAIN_ALL ? ""
                                                 : "prompts",
         1},
        {"column-messages", config->rows.column_messages, 2},
        {"column-prompt", config->rows.column_prompt, 2},
        {"column-completion", config->rows.column_completion, 2},
        {"column-instruction", config->rows.column_instruction, 2},
        {"column-input", config->rows.column_input, 2},
        {"column-output", config->rows.column_output, 2},
        {"column-system", config->rows.column_system, 2},
        {"column-text", config->rows.column_text, 2},
        {"column-tools", config->rows.column_tools, 2},
        {"column-role", config->rows.column_role, 2},
        {"column-content", config->rows.column_content, 2},
    };
    /* Said only when all data is read: rows of any source may need them. */
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (options[i].value[0] != '\0' && !has[options[i].needs]) {
            ox_log(OX_LOG_WARN, "--%s %s changes no token of this data, which has no %s", options[i].flag,
                   options[i].value, names[options[i].needs]);
        }
    }
}

static enum ox_status open_sources(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < config->files.data_count && status == OX_OK; i++) {
        status = open_corpus(trainer, config->files.data[i].path, &trainer->input.data[i]);
        if (i == 0 && status == OX_OK && ox_data_kind_of(trainer->input.data[i]) == OX_DATA_BYTES) {
            warn_of_tokenizer(config);
        }
        trainer->input.data_count += status == OX_OK;
    }
    for (uint32_t i = 0; i < trainer->input.eval_sets.count && status == OX_OK; i++) {
        status = open_corpus(trainer, trainer->input.eval_sets.sets[i].path, &trainer->input.eval_data[i]);
    }
    if (status == OX_OK && trainer->input.data_count > 0) {
        warn_of_unused(trainer);
        ox_trainer_warn_of_measured(trainer);
    }
    return status;
}

void ox_trainer_close_data(struct ox_trainer *trainer) {
    ox_windows_close(&trainer->input.train);
    ox_windows_close(&trainer->input.eval);
    for (uint32_t i = 0; i < OX_EVAL_SETS_MAX; i++) {
        ox_windows_close(&trainer->input.eval_more[i]);
        ox_data_close(&trainer->input.eval_data[i]);
    }
    for (uint32_t i = 0; i < trainer->input.data_count; i++) {
        ox_data_close(&trainer->input.data[i]);
    }
    trainer->input.data_count = 0;
    ox_trainer_drop_tokens(trainer);
}

uint64_t ox_trainer_data_fingerprint(const struct ox_trainer *trainer) {
    uint64_t hash = ox_data_fingerprint(trainer->input.data[0]);
    for (uint32_t i = 1; i < trainer->input.data_count; i++) {
        const uint64_t words[] = {hash, ox_data_fingerprint(trainer->input.data[i])};
        hash = ox_hash_seed(words, 2);
    }
    return hash;
}

/* ---- rows ------------------------------------------------------------------------------------------- */

static bool has_chat(const struct ox_trainer *trainer) {
    bool chat = false;
    for (uint32_t i = 0; i < trainer->input.eval_sets.count; i++) {
        chat = chat || (trainer->input.eval_data[i] != NULL && ox_data_is_chat(trainer->input.eval_data[i]));
    }
    for (uint32_t i = 0; i < trainer->input.data_count; i++) {
        chat = chat || ox_data_is_chat(trainer->input.data[i]);
    }
    return chat;
}

bool ox_trainer_has_conversations(const struct ox_trainer *trainer) {
    bool has = false;
    for (uint32_t i = 0; i < trainer->input.eval_sets.count; i++) {
        has = has || (trainer->input.eval_data[i] != NULL && ox_data_has_conversations(trainer->input.eval_data[i]));
    }
    for (uint32_t i = 0; i < trainer->input.data_count; i++) {
        has = has || ox_data_has_conversations(trainer->input.data[i]);
    }
    return has;
}

/* Finds the BOS token of the tokenizer, or else of the model. */
static enum ox_status find_bos(const struct ox_trainer *trainer, int64_t *bos) {
    *bos = trainer->folder != NULL ? ox_hf_model(trainer->folder)->config.bos_id : -1;
    if (trainer->input.tokenizer_path[0] != '\0') {
        struct ox_tokenizer *tokenizer = NULL;
        const enum ox_status status = ox_tokenizer_open(trainer->input.tokenizer_path, &tokenizer);
        if (status != OX_OK) {
            return status;
        }
        const int64_t own = ox_tokenizer_bos(tokenizer);
        *bos = own >= 0 ? own : *bos;
        ox_tokenizer_close(&tokenizer);
    }
    return *bos >= 0 ? OX_OK
                     : ox_fail(OX_E_CONFIG, "--bos-per-window: neither the tokenizer nor config.json of %s names a BOS "
                               "token", trainer->config.files.model);
}

enum ox_status ox_trainer_windows_config(const struct ox_trainer *trainer, bool chat, struct ox_windows_config *out) {
    const struct ox_config *const config = &trainer->config;
    static const enum ox_packing packings[] = {[OX_PACKING_STREAM] = OX_PACK_STREAM,
                                               [OX_PACKING_PACK] = OX_PACK_BINS,
                                               [OX_PACKING_PAD] = OX_PACK_PAD};
    static const enum ox_overlong overlongs[] = {[OX_LONG_SPLIT] = OX_OVERLONG_SPLIT,
                                                 [OX_LONG_TRUNCATE] = OX_OVERLONG_TRUNCATE,
                                                 [OX_LONG_DROP] = OX_OVERLONG_DROP};
    *out = (struct ox_windows_config){
        .seq = (uint32_t)config->rows.max_seq_length,
        .vocab = trainer->input.vocab,
        .pairs = config->loss.dpo,
        .packing = config->loss.dpo                          ? OX_PACK_PAD
                   : config->rows.packing != OX_PACKING_AUTO ? packings[config->rows.packing]
                   : chat                                    ? OX_PACK_BINS
                                                             : OX_PACK_STREAM,
        .overlong = config->rows.overlong != OX_LONG_AUTO ? overlongs[config->rows.overlong]
                    : chat                                ? OX_OVERLONG_TRUNCATE
                                                          : OX_OVERLONG_SPLIT,
        .document_mask = config->rows.document_mask != OX_CHOICE_OFF,
        .drop_untrained = !trainer->input.eval_alone || config->loss.dpo,
        .bos = -1,
        .order = strcmp(config->rows.data_order, "sequential") == 0 ? OX_WINDOWS_SEQUENTIAL : OX_WINDOWS_SHUFFLE,
        .seed = config->train.seed,
    };
    if (!config->eval.bos_per_window) {
        return OX_OK;
    }
    if (out->packing != OX_PACK_STREAM) {
        return ox_fail(OX_E_CONFIG, "--bos-per-window works on a stream of tokens; add --packing stream");
    }
    return find_bos(trainer, &out->bos);
}

static uint64_t rows_of(const struct ox_windows *windows) {
    struct ox_windows_counts counts;
    ox_windows_counts(windows, &counts);
    return counts.rows;
}

static const char *other_sources(const struct ox_trainer *trainer) {
    return trainer->input.data_count > 1 ? " and the others" : "";
}

/* Turns shares of tokens into passes: the source that is scarcest for its share gives one. `counts` are the tokens of
 * each source that are trained on. */
static void share_tokens(const struct ox_trainer *trainer, const uint64_t *counts, double *passes) {
    const struct ox_data_choice *const data = trainer->config.files.data;
    double total = INFINITY, shares = 0;
    for (uint32_t i = 0; i < trainer->input.data_count; i++) {
        total = data[i].weight > 0 ? fmin(total, (double)counts[i] / data[i].weight) : total;
        shares += data[i].weight;
    }
    for (uint32_t i = 0; i < trainer->input.data_count; i++) {
        passes[i] = data[i].weight > 0 && counts[i] > 0 ? data[i].weight * total / (double)counts[i] : 0;
        ox_log(OX_LOG_INFO, "%s: %.3g %% of the tokens, %.4g passes over it in an epoch", data[i].path,
               100 * data[i].weight / shares, passes[i]);
    }
}

/* Opens rows of the sources: of each the tokens before its border, or with `held` those behind it. */
static enum ox_status open_part(struct ox_trainer *trainer, const uint64_t *borders, bool held,
                                struct ox_windows **out) {
    struct ox_window_source sources[OX_CONFIG_DATA_MAX];
    struct ox_windows_config config;
    OX_TRY(ox_trainer_windows_config(trainer, has_chat(trainer), &config));
    double passes[OX_CONFIG_DATA_MAX];
    const bool shares = trainer->config.rows.mixture == OX_MIXTURE_TOKENS && !held;
    if (shares) {
        share_tokens(trainer, borders, passes);
    }
    for (uint32_t i = 0; i < trainer->input.data_count; i++) {
        const uint64_t count = ox_data_token_count(trainer->input.data[i]);
        const double weight = shares ? passes[i] : trainer->config.files.data[i].weight;
        sources[i] = (struct ox_window_source){
            .data = trainer->input.data[i],
            .weight = held && weight > 0 ? 1 : weight,
            .token_first = held ? borders[i] : 0,
            .token_count = held ? count - borders[i] : borders[i],
        };
    }
    config.sources = sources;
    config.source_count = trainer->input.data_count;
    config.order = held ? OX_WINDOWS_SEQUENTIAL : config.order;
    return ox_windows_open(&config, out);
}

/* Finds where the part of each source begins that is held out. Rows of whole documents hold out whole ones. */
static enum ox_status find_borders(const struct ox_trainer *trainer, double share, uint64_t *borders) {
    struct ox_windows_config config;
    enum ox_status status = ox_trainer_windows_config(trainer, has_chat(trainer), &config);
    const bool whole = trainer->input.holds_whole && status == OX_OK && config.packing != OX_PACK_STREAM;
    for (uint32_t i = 0; i < trainer->input.data_count && status == OX_OK; i++) {
        borders[i] = ox_data_token_count(trainer->input.data[i]);
        status = share > 0 ? ox_windows_split(trainer->input.data[i], share, whole, &borders[i]) : OX_OK;
    }
    return status;
}

enum ox_status ox_trainer_find_held(struct ox_trainer *trainer, uint64_t *borders) {
    struct ox_windows *held = NULL;
    const double share = trainer->config.rows.held_share;
    enum ox_status status = find_borders(trainer, share, borders);
    OX_THEN(status, open_part(trainer, borders, true, &held));
    const bool any = status == OX_OK && rows_of(held) > 0;
    ox_windows_close(&held);
    if (status == OX_OK && !any) {
        ox_log(OX_LOG_WARN, "%s%s: the run's --eval-fraction %g held nothing out, so rows are measured that it was "
               "trained on; give other text with --data", trainer->config.files.data[0].path, other_sources(trainer),
               share);
        memset(borders, 0, trainer->input.data_count * sizeof *borders);
    }
    return status;
}

/* Says how much is held out. Targets are counted by reading them, as every evaluation does. */
static enum ox_status log_held_out(struct ox_windows *windows, uint32_t seq) {
    struct ox_windows_counts counts;
    uint64_t target_count = 0;
    ox_windows_counts(windows, &counts);
    int32_t *const words = calloc(3 * (size_t)seq, sizeof *words);
    if (words == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for a sequence of %" PRIu32 " tokens", seq);
    }
    const struct ox_window_row row = {.ids = words, .positions = words + seq, .targets = words + 2 * (size_t)seq};
    enum ox_status status = OX_OK;
    for (uint64_t i = 0; i < counts.rows && status == OX_OK; i++) {
        status = ox_windows_fill(windows, i, row, &target_count);
    }
    free(words);
    if (status == OX_OK) {
        const uint64_t documents = counts.documents - counts.untrained_documents;
        ox_log(OX_LOG_INFO, "held out: %" PRIu64 " document%s with %" PRIu64 " target%s", documents,
               ox_plural(documents), target_count, ox_plural(target_count));
    }
    return status;
}

/* Holds out a part of --data for evaluation; nothing if it is less than a row. */
static enum ox_status open_held_out(struct ox_trainer *trainer, uint64_t *borders) {
    const double share = trainer->config.files.eval_data[0] != '\0' ? 0 : trainer->config.rows.eval_fraction;
    enum ox_status status = find_borders(trainer, share, borders);
    if (share == 0 || status != OX_OK) {
        return status;
    }
    status = open_part(trainer, borders, true, &trainer->input.eval);
    if (status != OX_OK || rows_of(trainer->input.eval) > 0) {
        OX_THEN(status, log_held_out(trainer->input.eval, (uint32_t)trainer->config.rows.max_seq_length));
        return status;
    }
    ox_windows_close(&trainer->input.eval);
    for (uint32_t i = 0; i < trainer->input.data_count; i++) {
        borders[i] = ox_data_token_count(trainer->input.data[i]);
    }
    ox_log(OX_LOG_WARN, "nothing is evaluated: --eval-fraction %g of %s is less than one window of --max-seq-length "
           "%" PRIu64 " + 1 tokens, or no whole document with a target; all of it is trained on", share,
           trainer->config.files.data[0].path, trainer->config.rows.max_seq_length);
    return OX_OK;
}

static enum ox_status open_eval_set(struct ox_trainer *trainer, uint32_t idx, struct ox_windows **out) {
    const struct ox_config *const config = &trainer->config;
    struct ox_data *const data = trainer->input.eval_data[idx];
    const struct ox_window_source source = {.data = data, .weight = 1, .token_count = ox_data_token_count(data)};
    struct ox_windows_config windows;
    enum ox_status status = ox_trainer_windows_config(trainer, has_chat(trainer), &windows);
    if (status != OX_OK) {
        return status;
    }
    windows.sources = &source;
    windows.source_count = 1;
    windows.order = OX_WINDOWS_SEQUENTIAL;
    status = ox_windows_open(&windows, out);
    if (status == OX_OK && rows_of(*out) == 0) {
        return ox_fail(OX_E_CONFIG, "--eval-data %s: %" PRIu64 " token%s not one window of --max-seq-length %" PRIu64
                       " + 1; give more text, or leave the option out", trainer->input.eval_sets.sets[idx].path,
                       source.token_count, source.token_count == 1 ? " is" : "s are", config->rows.max_seq_length);
    }
    return status;
}

/* The windows of the first set are those that a held-out part would have. */
static enum ox_status open_eval_data(struct ox_trainer *trainer) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < trainer->input.eval_sets.count && status == OX_OK; i++) {
        status = open_eval_set(trainer, i, i == 0 ? &trainer->input.eval : &trainer->input.eval_more[i]);
    }
    return status;
}

enum ox_status ox_trainer_open_sources(struct ox_trainer *trainer) {
    enum ox_status status = set_cache_dir(trainer);
    ox_host_text_begin(&trainer->claim, trainer->engine_config.compute_threads - 1);
    OX_THEN(status, open_sources(trainer));
    OX_THEN(status, ox_trainer_find_tokens(trainer));
    status = ox_host_text_end(&trainer->claim, status);
    if (status != OX_OK) {
        ox_trainer_close_data(trainer);
    }
    return status;
}

static enum ox_status fail_untrained(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    return ox_fail(OX_E_CONFIG,
                   "%s%s: no document has a token to be trained on within --max-seq-length %" PRIu64
                   ", so the run would train nothing; conversations need an assistant turn, long prompts a longer "
                   "sequence (`offload tokenize --show` prints masks)",
                   config->files.data[0].path, other_sources(trainer), config->rows.max_seq_length);
}

/* Refuses sources without a token to be trained on. */
static enum ox_status check_trained(const struct ox_trainer *trainer) {
    bool trains = trainer->input.data_count == 0;
    for (uint32_t i = 0; i < trainer->input.data_count; i++) {
        trains = trains || ox_data_may_train(trainer->input.data[i]);
    }
    return trains ? OX_OK : fail_untrained(trainer);
}

/* Refuses data that gives no row. */
static enum ox_status check_rows(const struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    struct ox_windows_counts counts;
    uint64_t tokens = 0;
    ox_windows_counts(trainer->input.train, &counts);
    if (counts.rows > 0) {
        return OX_OK;
    }
    for (uint32_t i = 0; i < trainer->input.data_count; i++) {
        tokens += ox_data_token_count(trainer->input.data[i]);
    }
    if (counts.untrained_documents > counts.short_documents && counts.untrained_documents == counts.documents) {
        return fail_untrained(trainer);
    }
    return ox_fail(OX_E_CONFIG, "%s%s: %" PRIu64 " token%s not one window of --max-seq-length %" PRIu64 " + 1; use "
                   "a shorter length or more text", config->files.data[0].path, other_sources(trainer), tokens,
                   tokens == 1 ? " is" : "s are", config->rows.max_seq_length);
}

static enum ox_status open_rows(struct ox_trainer *trainer) {
    const struct ox_config *const config = &trainer->config;
    uint64_t borders[OX_CONFIG_DATA_MAX];
    enum ox_status status = check_trained(trainer);
    OX_THEN(status, open_eval_data(trainer));
    OX_THEN(status, open_held_out(trainer, borders));
    OX_THEN(status, open_part(trainer, borders, false, &trainer->input.train));
    OX_THEN(status, check_rows(trainer));
    if (status == OX_OK) {
        ox_trainer_log_rows(trainer->input.train, "training", (uint32_t)config->rows.max_seq_length);
    }
    return status;
}

/* Removes the tokens of refused data from an output folder that had none before: `existing` bytes of its path did.
 * Keeps the text of the refusal. */
static enum ox_status undo_cache(const struct ox_trainer *trainer, size_t existing, enum ox_status refusal) {
    const char *const cache = trainer->input.cache_dir;
    char text[OX_ERROR_TEXT_BYTES];
    if (refusal != OX_E_CONFIG || trainer->config.rows.data_cache[0] != '\0' || existing == strlen(cache) ||
        !ox_path_is_folder(cache)) {
        return refusal;
    }
    snprintf(text, sizeof text, "%s", ox_error_text());
    if (ox_folder_remove(cache) != OX_OK) {
        ox_log(OX_LOG_WARN, "%s", ox_error_text());
    }
    ox_folder_unmake(trainer->config.files.output_dir, existing);
    return ox_fail(refusal, "%s", text);
}

enum ox_status ox_trainer_open_data(struct ox_trainer *trainer) {
    enum ox_status status = set_cache_dir(trainer);
    const size_t existing = ox_path_existing(trainer->input.cache_dir);
    OX_THEN(status, ox_trainer_open_sources(trainer));
    if (status == OX_OK) {
        status = open_rows(trainer);
        return status == OX_OK ? OX_OK : undo_cache(trainer, existing, status);
    }
    return status;
}
