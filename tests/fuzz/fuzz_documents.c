/* Documents of texts and rows. The first line of the input says how they are read: "rows", "text" or "text-before"
 * (cuts stand before newlines), the bytes of a piece, and the separator ("text 16 <|end|>"); the rest is one file, or
 * two as a folder. Pieces are the bytes of the files, which may be compressed, in their order, and the documents are
 * the same whatever the size of pieces. */
#include "tests/fuzz/fuzz.h"

#include "base/file.h"
#include "base/hash/hash.h"
#include "engine/data/documents_internal.h"
#include "tests/kit/documents.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_COUNT = 2, FIRST_LINE_BYTES = 64, PIECE_BYTES_MAX = 512, HELD_BYTES_MAX = 1 << 20 };

static const char *folder, *files[FILE_COUNT];

static struct fuzz_part parts[FILE_COUNT];

/* What the files hold, as far as it can be read. */
static struct held {
    char text[HELD_BYTES_MAX];
    size_t bytes;
} held[FILE_COUNT];

static void read_held(int idx) {
    struct ox_unpacker *unpacker = NULL;
    uint64_t file_bytes = 0;
    enum { STEP = 512 }; /* what a step that fails has read is never part of a document */
    size_t got = STEP;
    int fd = -1;
    held[idx].bytes = 0;
    if (ox_file_open_input(files[idx], &fd, &file_bytes) != OX_OK) {
        return;
    }
    enum ox_status status = ox_unpack_open(fd, files[idx], &unpacker);
    while (status == OX_OK && got == STEP && held[idx].bytes < HELD_BYTES_MAX) {
        status = ox_unpack_read(unpacker, held[idx].text + held[idx].bytes, STEP, &got);
        held[idx].bytes += status == OX_OK ? got : 0;
    }
    ox_unpack_close(&unpacker);
    close(fd);
}

static void open_paths(void) {
    if (folder == NULL) {
        files[0] = fuzz_path("rows/a.jsonl");
        files[1] = fuzz_path("rows/b.jsonl");
        folder = fuzz_path("rows");
    }
}

/* Settings of the first line; the separator points into `line`. */
static void read_first_line(char *line, struct ox_documents_config *config) {
    char *at = line;
    config->format = strncmp(at, "rows", 4) == 0 ? OX_DOCUMENTS_ROWS : OX_DOCUMENTS_TEXT;
    config->cut_before_newline = strncmp(at, "text-before", 11) == 0;
    at += strcspn(at, " ");
    config->piece_bytes = strtoul(at, &at, 10) % PIECE_BYTES_MAX;
    at += *at == ' ';
    config->separator = at;
    config->separator_bytes = config->format == OX_DOCUMENTS_TEXT ? strlen(at) : 0;
}

/* Position of the walk: the file, the byte after the last piece, and whether its document continues. */
struct walk {
    size_t file, end, count;
    bool goes_on;
    size_t line_offset, line; /* lines that begin after this offset of the file are not counted yet */
    uint64_t hash;            /* hash of the documents so far */
};

static void take_piece(const struct ox_documents_config *config, const struct ox_document *piece, struct walk *walk) {
    if (strcmp(piece->path, files[walk->file]) != 0) {
        FUZZ_CHECK(!walk->goes_on && walk->file + 1 < FILE_COUNT && strcmp(piece->path, files[walk->file + 1]) == 0);
        walk->file++;
        walk->end = walk->line_offset = walk->line = 0;
    }
    const struct held *const content = &held[walk->file];
    if (content->bytes == HELD_BYTES_MAX) { /* it unpacks to more */
        walk->goes_on = !piece->ends;
        walk->count++;
        return;
    }
    FUZZ_CHECK(piece->begins == !walk->goes_on && piece->bytes > 0);
    FUZZ_CHECK(piece->offset >= walk->end && piece->offset + piece->bytes <= content->bytes);
    FUZZ_CHECK(piece->begins || piece->offset == walk->end);
    FUZZ_CHECK(memcmp(piece->text, content->text + piece->offset, piece->bytes) == 0);
    if (config->format == OX_DOCUMENTS_ROWS) {
        for (; walk->line_offset < piece->offset; walk->line_offset++) {
            walk->line += content->text[walk->line_offset] == '\n';
        }
        FUZZ_CHECK(piece->line == walk->line + 1 && piece->ends);
    }
    if (config->format == OX_DOCUMENTS_ROWS || config->separator_bytes > 0) {
        FUZZ_CHECK(!piece->begins || !ox_is_blank(piece->text[0]));
        FUZZ_CHECK(!piece->ends || !ox_is_blank(piece->text[piece->bytes - 1]));
    }
    /* Where documents begin and end, and not where they are cut. */
    const uint64_t words[] = {walk->hash, walk->file, piece->offset, piece->offset + piece->bytes};
    walk->hash = piece->begins ? ox_hash_seed(words, 3) : walk->hash;
    walk->hash = piece->ends ? ox_hash_seed((const uint64_t[]){walk->hash, words[3]}, 2) : walk->hash;
    walk->end = (size_t)piece->offset + piece->bytes;
    walk->goes_on = !piece->ends;
    walk->count++;
}

/* Reads all of it; the status is that of the end. */
static enum ox_status take_all(const char *path, const struct ox_documents_config *config, bool with_hash,
                               struct walk *walk) {
    struct ox_documents *documents = NULL;
    struct ox_document piece;
    bool found = true;
    enum ox_status status = documents_open(path, config, &documents);
    FUZZ_CHECK((status == OX_OK) == (documents != NULL));
    if (status == OX_OK) {
        uint64_t newest = 0;
        FUZZ_CHECK(ox_documents_bytes(documents) == parts[0].bytes + parts[1].bytes);
        FUZZ_CHECK(ox_documents_stamp(documents, &newest) == ox_documents_stamp(documents, &newest) && newest > 0);
    }
    while (status == OX_OK && found) {
        status = ox_documents_next(documents, &piece, &found);
        if (status == OX_OK && found) {
            take_piece(config, &piece, walk);
        }
    }
    if (status == OX_OK) {
        uint64_t hash = 0;
        FUZZ_CHECK(walk->count > 0 && !walk->goes_on);
        FUZZ_CHECK(!with_hash || (ox_documents_hash(documents, &hash) == OX_OK &&
                                  hash == ox_documents_hash_read(documents)));
    } else {
        fuzz_check_failure(status, folder);
    }
    ox_documents_close(&documents);
    return status;
}

int fuzz_documents(const uint8_t *data, size_t bytes) {
    char line[FIRST_LINE_BYTES] = "";
    struct ox_documents_config config = {0};
    struct walk walk = {0}, whole = {0};
    const uint8_t *const newline = bytes > 0 ? memchr(data, '\n', bytes) : NULL;
    const size_t line_bytes = newline != NULL ? (size_t)(newline - data) : bytes;
    const size_t used = newline != NULL ? line_bytes + 1 : bytes;
    open_paths();
    memcpy(line, data, line_bytes < sizeof line - 1 ? line_bytes : sizeof line - 1);
    read_first_line(line, &config);
    fuzz_split(data + used, bytes - used, parts, FILE_COUNT);
    fuzz_write(files[0], parts[0].text, parts[0].bytes);
    fuzz_write_part(files[1], &parts[1]);
    read_held(0);
    if (parts[1].bytes > 0) {
        read_held(1);
    }
    const char *const path = parts[1].bytes > 0 ? folder : files[0];
    const bool every_fourth = bytes % 4 == 0; /* for what depends little on the bytes */
    const enum ox_status status = take_all(path, &config, every_fourth, &walk);
    fuzz_accepted = status == OX_OK;
    if (config.piece_bytes > 0) {
        config.piece_bytes = 0;
        FUZZ_CHECK(take_all(path, &config, every_fourth, &whole) == status);
        FUZZ_CHECK(status != OX_OK || (walk.hash == whole.hash && walk.file == whole.file && walk.end == whole.end));
    }
    return 0;
}
