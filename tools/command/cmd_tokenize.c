/* `offload tokenize`: turns texts into ids, as lines for another program or as a token file, with BOS and EOS where
 * they are asked for; or counts what training would see of them. With --render it prints conversations as the model's
 * chat template writes them. With --train it makes a tokenizer. */
#include "tools/command/cmd.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/data/foreign_files.h"
#include "engine/data/unpack.h"
#include "engine/hf/hf.h"
#include "engine/run/host_memory.h"
#include "engine/run/trainer.h"
#include "engine/text/chat.h"
#include "engine/text/template.h"
#include "engine/text/text.h"
#include "engine/text/tokenizer.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define DATA_BYTES_MAX ((size_t)16 << 30)

struct tokenizing {
    struct ox_tokenizer *tokenizer;
    struct ox_encoder *encoder;
    struct ox_ids ids;
    int64_t bos, eos; /* added to each text that has not got them; -1: none */
    const char *path; /* where the lines come from, for errors */
};

/* Ids are for other programs too, so that BOS and EOS are added only where the user says so. */
static enum ox_status choose_ends(const struct ox_config *config, const char *path, struct tokenizing *t) {
    const bool bos = config->rows.add_bos == OX_CHOICE_ON, eos = config->rows.add_eos == OX_CHOICE_ON;
    t->bos = bos ? ox_tokenizer_bos(t->tokenizer) : -1;
    t->eos = eos ? ox_tokenizer_eos(t->tokenizer) : -1;
    if ((bos && t->bos < 0) || (eos && t->eos < 0)) {
        const bool no_bos = bos && t->bos < 0;
        return ox_fail(OX_E_CONFIG, "%s: the tokenizer has no %s token to add to a text; name one in the "
                       "tokenizer_config.json, or leave out %s", path, no_bos ? "BOS" : "EOS",
                       no_bos ? "--add-bos on" : "--add-eos on");
    }
    return OX_OK;
}

static enum ox_status encode(struct tokenizing *t, const char *text, size_t bytes) {
    const bool has_bos = ox_chat_has_end(t->tokenizer, t->bos, text, bytes, false);
    const bool has_eos = ox_chat_has_end(t->tokenizer, t->eos, text, bytes, true);
    enum ox_status status = t->bos >= 0 && !has_bos ? ox_ids_add(&t->ids, t->bos) : OX_OK;
    OX_THEN(status, ox_encode(t->encoder, text, bytes, true, false, &t->ids));
    return status == OX_OK && t->eos >= 0 && !has_eos ? ox_ids_add(&t->ids, t->eos) : status;
}

static void print_ids(const struct ox_ids *ids) {
    fputs("{\"ids\":[", stdout);
    for (size_t i = 0; i < ids->count; i++) {
        printf(i > 0 ? ",%" PRId32 : "%" PRId32, ids->ids[i]);
    }
    puts("]}");
}

/* The library says nothing where it finds no memory. */
static enum ox_status fail_json(const char *path, size_t number, bool exceeded, const json_error_t *error) {
    return exceeded || error->text[0] == '\0'
               ? ox_fail(OX_E_NOMEM, "%s:%zu: no memory for this line; divide it", path, number)
               : ox_fail(OX_E_CORRUPT, "%s:%zu: not valid JSON: %s", path, number, error->text);
}

static enum ox_status tokenize_line(void *context, size_t number, const char *line, size_t bytes) {
    struct tokenizing *const t = context;
    json_error_t error;
    json_t *const row = json_loadb(line, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    const bool exceeded = ox_memory_cap_exceeded();
    const json_t *const text = json_object_get(row, "text");
    enum ox_status status = OX_OK;
    if (row == NULL || exceeded) {
        status = fail_json(t->path, number, exceeded, &error);
    } else if (!json_is_string(text)) {
        status = ox_fail(OX_E_CONFIG, "%s:%zu: the line has no string \"text\"; give {\"text\": \"...\"}", t->path,
                         number);
    } else {
        t->ids.count = 0;
        status = encode(t, json_string_value(text), json_string_length(text));
        if (status != OX_OK) {
            status = ox_fail_in(status, "%s:%zu", t->path, number);
        }
    }
    json_decref(row);
    if (status == OX_OK) {
        print_ids(&t->ids);
    }
    return status;
}

/* Calls `use` with each line of the file, or of stdin where `path` is empty, that is not blank. */
static enum ox_status for_lines(const char *path,
                                enum ox_status (*use)(void *context, size_t number, const char *line, size_t bytes),
                                void *context) {
    const bool is_file = path[0] != '\0';
    FILE *const file = is_file ? fopen(path, "r") : stdin;
    char *line = NULL;
    size_t capacity = 0;
    size_t number = 0;
    enum ox_status status = OX_OK;
    if (file == NULL) {
        return ox_fail_errno(OX_E_CONFIG, errno, "%s cannot be opened", path);
    }
    if (is_file) {
        char start[1];
        size_t got = 0;
        bool all = false, packed = false;
        status = ox_unpack_start(path, start, sizeof start, &got, &all, &packed);
        if (status == OX_OK && packed) {
            status = ox_fail(OX_E_CONFIG, "%s: is compressed, and lines are read as they are; unpack it into stdin, "
                             "such as gunzip -c '%s' | offload tokenize ... without --data", path, path);
        }
    }
    for (ssize_t bytes = 0; status == OX_OK && (bytes = getline(&line, &capacity, file)) >= 0;) {
        number++;
        if (strspn(line, " \t\r\n") < (size_t)bytes) {
            status = use(context, number, line, (size_t)bytes);
        }
    }
    if (status == OX_OK && !feof(file)) {
        const char *const name = is_file ? path : "stdin";
        status = errno == ENOMEM ? ox_fail(OX_E_NOMEM, "%s:%zu: no memory for this line; divide it", name, number + 1)
                                 : ox_fail(OX_E_IO, "%s: reading failed after line %zu", name, number);
    }
    free(line);
    if (is_file) {
        fclose(file);
    }
    return status;
}

/* Tokenizes lines of {"text"} from --data, or from stdin. */
static enum ox_status tokenize_lines(struct tokenizing *t, const char *path) {
    t->path = path[0] != '\0' ? path : "stdin";
    return for_lines(path, tokenize_line, t);
}

/* A token file in llmq's format (version 2, no masks), which `train --data` and `eval --data` read. */
enum { TOKEN_FILE_HEADER_BYTES = 1024 };

static enum ox_status write_token_file(const struct tokenizing *t, const char *path) {
    const size_t bytes = TOKEN_FILE_HEADER_BYTES + t->ids.count * sizeof(int32_t);
    if (t->ids.count > INT32_MAX) {
        return ox_fail(OX_E_CONFIG, "%s: %zu tokens are more than a token file can hold; tokenize the text in parts",
                       path, t->ids.count);
    }
    unsigned char *const data = malloc(bytes);
    if (data == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for %zu tokens", path, t->ids.count);
    }
    const int32_t fields[] = {2, (int32_t)sizeof(int32_t), (int32_t)t->ids.count,
                              (int32_t)ox_tokenizer_vocab_count(t->tokenizer), 0};
    memset(data, '*', TOKEN_FILE_HEADER_BYTES);
    memcpy(data, "BIN.TOK\n", 8);
    memcpy(data + 8, fields, sizeof fields);
    data[TOKEN_FILE_HEADER_BYTES - 1] = '\n';
    if (t->ids.count > 0) {
        memcpy(data + TOKEN_FILE_HEADER_BYTES, t->ids.ids, t->ids.count * sizeof(int32_t));
    }
    const enum ox_status status = ox_file_replace(path, data, bytes);
    free(data);
    return status;
}

/* A token file is trained as it is: says what training on the text itself would add, where nobody has decided that. */
static void warn_of_ends(const struct tokenizing *t, const struct ox_config *config) {
    const bool bos = config->rows.add_bos == OX_CHOICE_AUTO && ox_tokenizer_adds_bos(t->tokenizer);
    const bool eos = config->rows.add_eos == OX_CHOICE_AUTO && ox_tokenizer_eos(t->tokenizer) >= 0;
    if (bos || eos) {
        ox_log(OX_LOG_WARN, "%s: has no %s, which training adds to a text, but not to a token file; for the same "
               "tokens give%s%s, else off", config->files.output_dir, bos && eos ? "BOS and EOS" : bos ? "BOS" : "EOS",
               bos ? " --add-bos on" : "", eos ? " --add-eos on" : "");
    }
}

static enum ox_status count_tokens(struct tokenizing *t, const struct ox_config *config) {
    char *text = NULL;
    size_t bytes = 0;
    if (config->files.data_count == 0) {
        return ox_fail(OX_E_CONFIG, "--data is missing; give a text file, or --jsonl to read lines from stdin");
    }
    enum ox_status status = ox_foreign_data_check(config->files.data[0].path, true);
    OX_THEN(status, ox_unpack_file(config->files.data[0].path, DATA_BYTES_MAX, &text, &bytes));
    if (status != OX_OK) {
        return status;
    }
    const uint64_t start = ox_clock_ns();
    status = encode(t, text, bytes);
    const double seconds = (double)(ox_clock_ns() - start) / 1e9;
    free(text);
    if (status != OX_OK) {
        return ox_fail_in(status, "%s", config->files.data[0].path);
    }
    if (config->files.output_dir[0] != '\0') {
        OX_TRY(write_token_file(t, config->files.output_dir));
        warn_of_ends(t, config);
    }
    const double rate = seconds > 0 ? (double)bytes / 1e6 / seconds : 0;
    if (strcmp(config->tool.format, "json") == 0) {
        printf("{\"tokens\":%zu,\"bytes\":%zu,\"seconds\":%.6f,\"vocab\":%" PRIu32 "}\n", t->ids.count, bytes, seconds,
               ox_tokenizer_vocab_count(t->tokenizer));
    } else {
        printf("%zu token%s | %zu byte%s | %.2f bytes per token | %.1f MB/s\n", t->ids.count,
               ox_plural(t->ids.count), bytes, ox_plural(bytes),
               t->ids.count > 0 ? (double)bytes / (double)t->ids.count : 0, rate);
    }
    return OX_OK;
}

/* ---- --render -------------------------------------------------------------------------------------------------- */

static enum ox_status print_rendered(const char *key, const char *text, size_t bytes) {
    json_t *const line = json_pack("{s:s%}", key, text, bytes);
    const int failed = line == NULL ? -1 : json_dumpf(line, stdout, JSON_COMPACT);
    json_decref(line);
    if (failed == 0) {
        putchar('\n');
    }
    return failed == 0 ? OX_OK : ox_fail(OX_E_NOMEM, "no memory to print a rendered text");
}

struct rendering {
    struct ox_template *template;
    struct tm now;
    const char *path;
};

/* Renders a row with "messages" as it is, and one of another form as training reads it. */
static enum ox_status render_row(const struct rendering *rendering, const char *where, const json_t *row,
                                 struct ox_jinja_output *output) {
    struct ox_chat chat = {0};
    if (!json_is_object(row) || json_object_get(row, "messages") != NULL) {
        return ox_template_render(rendering->template, row, &rendering->now, output);
    }
    enum ox_status status = ox_chat_read(where, row, NULL, &chat);
    if (status == OX_OK && chat.kind != OX_CHAT_MESSAGES) {
        status = ox_fail(OX_E_CONFIG, "%s: no template renders this form of a row: it is trained as it is", where);
    }
    OX_THEN(status, ox_template_render(rendering->template, chat.conversation, &rendering->now, output));
    ox_chat_free(&chat);
    return status;
}

/* A row that cannot be rendered is a line of the output too; a line that is no JSON ends the command. */
static enum ox_status render_line(void *context, size_t number, const char *line, size_t bytes) {
    const struct rendering *const rendering = context;
    struct ox_jinja_output output = {0};
    char where[OX_PATH_BYTES + 32];
    json_error_t error;
    json_t *const row = json_loadb(line, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    const bool exceeded = ox_memory_cap_exceeded();
    if (row == NULL || exceeded) {
        json_decref(row);
        return fail_json(rendering->path, number, exceeded, &error);
    }
    snprintf(where, sizeof where, "%s:%zu", rendering->path, number);
    enum ox_status status = render_row(rendering, where, row, &output);
    if (status == OX_OK) {
        status = print_rendered("rendered", output.text, output.text_bytes);
    } else if (status == OX_E_CONFIG) {
        const char *const text = output.error != NULL ? output.error : ox_error_text();
        status = print_rendered("error", text, strlen(text));
    }
    ox_jinja_output_free(&output);
    json_decref(row);
    return status;
}

/* Where the tokenizer is: --tokenizer, or what belongs to the model. */
static enum ox_status find_tokenizer(const struct ox_config *config, char path[OX_PATH_BYTES]) {
    if (config->files.tokenizer[0] == '\0') {
        return ox_hf_tokenizer_folder(config->files.model, path);
    }
    snprintf(path, OX_PATH_BYTES, "%s", config->files.tokenizer);
    return ox_hf_check_path("--tokenizer", path);
}

static enum ox_status render_rows(const struct ox_config *config, const char *tokenizer) {
    struct rendering rendering = {.path = config->files.data[0].path};
    if (config->files.data_count == 0) {
        rendering.path = "";
    }
    rendering.now = ox_chat_date(config->tool.clock_s);
    enum ox_status status = ox_template_open(tokenizer, config->rows.chat_template, &rendering.template);
    OX_THEN(status, for_lines(rendering.path, render_line, &rendering));
    ox_template_close(&rendering.template);
    return status;
}

static enum ox_status tokenize(const struct ox_config *config, const char *tokenizer) {
    struct tokenizing t = {0};
    enum ox_status status = ox_tokenizer_open(tokenizer, &t.tokenizer);
    OX_THEN(status, choose_ends(config, tokenizer, &t));
    OX_THEN(status, ox_encoder_open(t.tokenizer, &t.encoder));
    OX_THEN(status, config->vocab.jsonl ? tokenize_lines(&t, config->files.data[0].path) : count_tokens(&t, config));
    ox_ids_free(&t.ids);
    ox_encoder_close(&t.encoder);
    ox_tokenizer_close(&t.tokenizer);
    return status;
}

/* Warns of options that count alone: ids of a text have no template, and a row to render has its own variables. */
static void warn_of_unused(const struct ox_config *config) {
    const char *const without = config->vocab.render ? "--render; give them in the rows" : "ids of texts";
    if (config->rows.chat_template[0] != '\0' && !config->vocab.render) {
        ox_log(OX_LOG_WARN, "--chat-template %s has no effect on ids of texts", config->rows.chat_template);
    }
    if (config->rows.chat_template_kwargs[0] != '\0') {
        ox_log(OX_LOG_WARN, "--chat-template-kwargs %s has no effect on %s", config->rows.chat_template_kwargs,
               without);
    }
    if (config->rows.document_separator[0] != '\0') {
        ox_log(OX_LOG_WARN, "--document-separator has no effect on %s", without);
    }
}

/* What counts reads all of --data; all else reads one text. */
static enum ox_status check_single(const struct ox_config *config) {
    return config->files.data_count <= 1
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "--data: %s reads one file, and %" PRIu32 " are given; run it for each of them",
                         config->vocab.render ? "--render" : config->vocab.jsonl ? "--jsonl" : "--output",
                         config->files.data_count);
}

int ox_cmd_tokenize(const struct ox_config *given) {
    static struct ox_config own; /* tens of kilobytes */
    const struct ox_config *const config = &own;
    if (given->vocab.train_tokenizer) {
        return ox_cmd_exit(ox_train_tokenizer(given));
    }
    char path[OX_PATH_BYTES];
    own = *given;
    const bool counts = !config->vocab.jsonl && config->files.output_dir[0] == '\0' && config->files.data_count > 0;
    enum ox_status status =
        given->files.model[0] != '\0' ? ox_run_find_model(given->files.model, own.files.model) : OX_OK;
    if (status == OX_OK && !config->vocab.render &&
        (config->vocab.show || counts || config->rows.data_cache[0] != '\0')) {
        return ox_cmd_exit(ox_show(config));
    }
    OX_THEN(status, check_single(config));
    warn_of_unused(config);
    const struct ox_host_claim claim = {.host_bytes = config->memory.host_mem_bytes,
                                        .beside_bytes = ox_fixed_overhead_bytes(1, 0, 0)};
    ox_host_text_begin(&claim, 0);
    OX_THEN(status, find_tokenizer(config, path));
    OX_THEN(status, config->vocab.render ? render_rows(config, path) : tokenize(config, path));
    return ox_cmd_exit(ox_host_text_end(&claim, status));
}
