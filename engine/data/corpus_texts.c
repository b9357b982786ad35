#include "engine/data/corpus_texts.h"

#include "base/bytes.h"
#include "engine/data/corpus_internal.h"
#include "engine/text/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum ox_status take_string(const struct ox_text_taker *taker, const char *text) {
    return text != NULL && text[0] != '\0' ? taker->take(taker->context, text, strlen(text), false) : OX_OK;
}

/* The content of a message is a text, or a list of parts that have one. */
static enum ox_status take_content(const struct ox_text_taker *taker, const json_t *content) {
    enum ox_status status = take_string(taker, json_string_value(content));
    size_t i;
    json_t *part;
    json_array_foreach(content, i, part) {
        OX_THEN(status, take_string(taker, json_string_value(json_object_get(part, "text"))));
    }
    return status;
}

static enum ox_status take_row(const struct ox_text_taker *taker, const struct ox_chat_columns *columns,
                               const struct ox_document *document, struct ox_chat *chat) {
    char where[OX_PATH_BYTES + 32];
    snprintf(where, sizeof where, "%s:%" PRIu64, document->path, document->line);
    enum ox_status status = ox_chat_read_line(where, document->text, document->bytes, columns, chat);
    if (status != OX_OK) {
        return status;
    }
    if (chat->kind == OX_CHAT_IDS) {
        return ox_fail(OX_E_CONFIG, "%s: holds token ids and no text, of which a tokenizer can learn nothing", where);
    }
    if (chat->kind != OX_CHAT_MESSAGES) {
        status = take_string(taker, chat->prompt);
        OX_THEN(status, take_string(taker, chat->text));
        return status;
    }
    size_t i;
    json_t *message;
    json_array_foreach(json_object_get(chat->conversation, "messages"), i, message) {
        OX_THEN(status, take_content(taker, json_object_get(message, "content")));
    }
    return status;
}

static enum ox_status take_text(const struct ox_text_taker *taker, const struct ox_document *document) {
    const size_t valid = ox_utf8_valid(document->text, document->bytes);
    const char *const nul = memchr(document->text, 0, document->bytes);
    if (nul != NULL) {
        return ox_fail(OX_E_CONFIG, "%s: is binary, with a NUL at byte %" PRIu64 ", and no text; keep it elsewhere",
                       document->path, document->offset + (uint64_t)(nul - document->text));
    }
    return valid == document->bytes
               ? taker->take(taker->context, document->text, document->bytes, !document->begins)
               : ox_fail(OX_E_CORRUPT, "%s: is not UTF-8 text at byte %" PRIu64 " (0x%02x); make UTF-8 of it, or keep "
                         "it elsewhere", document->path, document->offset + valid,
                         (unsigned char)document->text[valid]);
}

static enum ox_status take_all(const struct ox_corpus_config *config, const struct ox_text_taker *taker, bool rows,
                               struct ox_documents *documents) {
    struct ox_document document;
    struct ox_chat chat = {0};
    bool found = false;
    enum ox_status status = OX_OK;
    for (;;) {
        OX_THEN(status, ox_documents_next(documents, &document, &found));
        if (status != OX_OK || !found) {
            break;
        }
        status = rows ? take_row(taker, &config->columns, &document, &chat) : take_text(taker, &document);
        if (taker->progress != NULL) {
            taker->progress(taker->context, ox_documents_bytes_read(documents), ox_documents_bytes(documents));
        }
    }
    ox_chat_free(&chat);
    return status;
}

enum ox_status ox_corpus_each_text(const struct ox_corpus_config *given, const struct ox_text_taker *taker) {
    struct ox_corpus_config config = *given;
    struct ox_documents_config documents_config = {.piece_bytes = 0};
    struct ox_documents *documents = NULL;
    struct ox_inputs inputs;
    char *separator = NULL;
    config.tokenizer = "none yet"; /* so that a file without another form is text */
    enum ox_status status = ox_inputs_open(&config, &inputs);
    if (status != OX_OK) {
        return status;
    }
    const bool rows = inputs.format == OX_CORPUS_ROWS;
    if (!rows && inputs.format != OX_CORPUS_TEXT) {
        status = ox_fail(OX_E_CONFIG, "%s: holds no text; give texts or JSON lines", config.path);
    }
    documents_config.format = rows ? OX_DOCUMENTS_ROWS : OX_DOCUMENTS_TEXT;
    documents_config.piece_bytes = taker->cuts != OX_CUTS_NONE ? OX_CORPUS_PIECE_BYTES : 0;
    documents_config.cut_before_newline = taker->cuts == OX_CUTS_BEFORE_NEWLINE;
    OX_THEN(status, ox_corpus_separator(rows ? "" : config.separator, &separator, &documents_config.separator_bytes));
    documents_config.separator = separator;
    OX_THEN(status, ox_documents_open(&inputs.files, &documents_config, &documents));
    if (status == OX_OK) {
        ox_inputs_say_left(&inputs.files);
    }
    OX_THEN(status, take_all(&config, taker, rows, documents));
    ox_documents_close(&documents);
    ox_inputs_close(&inputs);
    free(separator);
    return status;
}
