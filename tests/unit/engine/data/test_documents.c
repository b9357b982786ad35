/* Documents: texts parted and trimmed, rows of lines and arrays, folders, what is refused; and that the ids of pieces
 * are those of the whole text. */
#include "base/file.h"
#include "base/log.h"
#include "engine/data/documents.h"
#include "engine/text/tokenizer.h"
#include "tests/kit/documents.h"
#include "tests/kit/files.h"
#include "tests/kit/log.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint32_t random_next(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + 1;
    return (uint32_t)(*state >> 33);
}

/* All pieces of `name`: "[" where a document begins, "]" where it ends; rows with their line in front. */
static enum ox_status shown(const char *name, const struct ox_documents_config *config, char *text, size_t room) {
    struct ox_documents *documents = NULL;
    struct ox_document piece;
    size_t used = 0;
    bool found = true;
    text[0] = '\0';
    enum ox_status status = documents_open(test_path(name), config, &documents);
    while (status == OX_OK && found) {
        status = ox_documents_next(documents, &piece, &found);
        if (status == OX_OK && found) {
            char line[24] = "";
            if (piece.line > 0) {
                snprintf(line, sizeof line, "%u:", (unsigned)piece.line);
            }
            used += (size_t)snprintf(text + used, room - used, "%s%s%.*s%s", line, piece.begins ? "[" : "|",
                                     (int)piece.bytes, piece.text, piece.ends ? "]" : "");
        }
    }
    if (status == OX_OK) {
        uint64_t hash = 0;
        REQUIRE_OK(ox_documents_hash(documents, &hash));
        CHECK(hash == ox_documents_hash_read(documents));
    }
    ox_documents_close(&documents);
    ox_documents_close(&documents);
    return status;
}

static void expect(const struct ox_documents_config *config, const char *text, const char *expected) {
    char is[4096];
    files_write("one", text, strlen(text));
    const enum ox_status status = shown("one", config, is, sizeof is);
    if (status != OX_OK || strcmp(is, expected) != 0) {
        printf("%s\n  is       %s %s\n  must be  %s\n", text, ox_status_name(status),
               status == OX_OK ? is : ox_error_text(), expected);
        test_failure_count++;
    }
}

static void refused(const struct ox_documents_config *config, const char *text, const char *words) {
    char is[4096];
    files_write("one", text, strlen(text));
    const enum ox_status status = shown("one", config, is, sizeof is);
    if (status != OX_E_CONFIG || strstr(ox_error_text(), words) == NULL || strstr(ox_error_text(), "/one") == NULL) {
        printf("%s: must be refused with '%s': %s %s\n", text, words, ox_status_name(status),
               status == OX_OK ? is : ox_error_text());
        test_failure_count++;
    }
}

static void test_texts(void) {
    struct ox_documents_config config = {.format = OX_DOCUMENTS_TEXT};
    expect(&config, "  a\n\nb \n", "[  a\n\nb \n]");
    expect(&config,
           "\xef\xbb\xbf"
           "a",
           "[a]");
    expect(&config, " \n", "[ \n]");
    refused(&config, "", "is empty");
    refused(&config, "\xef\xbb\xbf", "no documents");

    config.separator = "<|end|>";
    config.separator_bytes = 7;
    expect(&config, "a b\n<|end|>\n\nc<|end|>", "[a b][c]");
    expect(&config, "<|end|><|end|> \t<|end|>x<|en<|end|><|end|>\r\n", "[x<|en]");
    expect(&config, "one", "[one]");
    refused(&config, " \n<|end|> ", "no documents");
    config.separator = "\n---\n"; /* what begins it is white space itself */
    config.separator_bytes = 5;
    expect(&config, "\n---\na\n---\n---\n b\n", "[a][---\n b]");
}

static void test_pieces(void) {
    struct ox_documents_config config = {.format = OX_DOCUMENTS_TEXT, .piece_bytes = 4};
    expect(&config, "ab\nc", "[ab\nc]");
    expect(&config, "ab\ncd", "[ab\n|cd]");
    expect(&config, "ab\r\ncd", "[ab\r\n|cd]");
    expect(&config, "a\nb\nc\nd", "[a\nb\n|c\nd]");
    expect(&config, "ab\n1\n.f\n g\n\n", "[ab\n1\n.f\n g\n\n]");
    expect(&config, "long line\n\nnext", "[long line\n\n|next]");           /* the piece grows */
    expect(&config, "\xd1\x8f\n\xd0\xb0\xd0\xb1\xe3\x80\x82\n\xe4\xb8\x96", /* letters beyond ASCII */
           "[\xd1\x8f\n|\xd0\xb0\xd0\xb1\xe3\x80\x82\n|\xe4\xb8\x96]");
    expect(&config, "abc\n\xff\nabc\n\xd0\n", "[abc\n\xff\n|abc\n\xd0\n]");
    config.separator = "|";
    config.separator_bytes = 1;
    expect(&config, "  ab\ncd\nef \n| \n|gh\n|ij\nkl\n", "[ab\n|cd\n|ef][gh][ij\n|kl]");
    config.separator = "c";
    expect(&config, "abab\ncd", "[abab][d]"); /* what would be the letter belongs to the separator */

    config = (struct ox_documents_config){.piece_bytes = 4, .cut_before_newline = true};
    expect(&config, "ab\nc", "[ab\nc]");
    expect(&config, "ab\ncd", "[ab|\ncd]");
    expect(&config, "abcd\ne", "[abcd|\ne]");
    expect(&config, "\nab c\nde", "[\nab c|\nde]"); /* a piece is not empty */
    expect(&config, "long line\n\nnext\n\n", "[long line\n|\nnext\n\n]");
    config.separator = "|";
    config.separator_bytes = 1;
    expect(&config, "\nab\n\ncd\n|\n", "[ab\n|\ncd]");
}

/* Pieces do not depend on how much is read at a time, and lie where they say. */
static void test_long_text(void) {
    enum { LINE_COUNT = 60000, PIECE_BYTES = 1 << 20 };
    const struct ox_documents_config config = {.piece_bytes = PIECE_BYTES};
    char *const text = malloc((size_t)LINE_COUNT * 64);
    struct ox_documents *documents = NULL;
    struct ox_document piece;
    uint64_t prng = 7;
    size_t bytes = 0, at = 0, count = 0;
    for (int i = 0; i < LINE_COUNT; i++) {
        bytes += (size_t)snprintf(text + bytes, 64, "%s line %d of many, %.*s\n", i % 3 == 0 ? "A" : "-", i,
                                  (int)(random_next(&prng) % 20), "....................");
    }
    files_write("long", text, bytes);
    REQUIRE_OK(documents_open(test_path("long"), &config, &documents));
    CHECK(ox_documents_bytes(documents) == bytes);
    for (bool found = true; found;) {
        REQUIRE_OK(ox_documents_next(documents, &piece, &found));
        if (found) {
            CHECK(piece.offset == at && piece.bytes <= PIECE_BYTES && (piece.ends || piece.bytes > PIECE_BYTES / 2));
            CHECK(memcmp(piece.text, text + at, piece.bytes) == 0);
            CHECK(piece.begins == (at == 0) && piece.ends == (at + piece.bytes == bytes));
            CHECK(piece.ends || text[at + piece.bytes] == 'A');
            at += piece.bytes;
            count++;
        }
    }
    CHECK(at == bytes && count == bytes / PIECE_BYTES + 1);
    ox_documents_close(&documents);
    free(text);
}

/* Documents and separators that lie across the borders of what is read at a time. */
static void test_borders(void) {
    enum { READ_BYTES = 1 << 20, SEPARATOR_BYTES = 5 };
    const struct ox_documents_config config = {.separator = "=end=", .separator_bytes = SEPARATOR_BYTES};
    static char text[3 * READ_BYTES];
    struct ox_documents *documents = NULL;
    struct ox_document document;
    for (size_t shift = 0; shift <= SEPARATOR_BYTES; shift++) {
        bool found = false;
        const size_t border = 2 * READ_BYTES - shift;
        memset(text, 'x', sizeof text);
        memcpy(text + border, "=end=", SEPARATOR_BYTES);
        files_write("border", text, sizeof text);
        REQUIRE_OK(documents_open(test_path("border"), &config, &documents));
        REQUIRE_OK(ox_documents_next(documents, &document, &found));
        CHECK(found && document.begins && document.ends && document.bytes == border);
        REQUIRE_OK(ox_documents_next(documents, &document, &found));
        CHECK(found && document.begins && document.ends && document.offset == border + SEPARATOR_BYTES &&
              document.bytes == sizeof text - document.offset);
        REQUIRE_OK(ox_documents_next(documents, &document, &found));
        CHECK(!found);
        ox_documents_close(&documents);
    }
}

static void test_rows(void) {
    const struct ox_documents_config config = {.format = OX_DOCUMENTS_ROWS};
    expect(&config, "{\"a\": 1}\n\n  {\"b\": 2}\r\n\t\n{}", "1:[{\"a\": 1}]3:[{\"b\": 2}]5:[{}]");
    expect(&config, "\xef\xbb\xbf{}\n", "1:[{}]");
    expect(&config, " [ {\"a\":\n [1, 2]} ,\n{\"b,]\\\"}\\\\\": \"[\"}\n\n,3 ]\n ",
           "1:[{\"a\":\n [1, 2]}]3:[{\"b,]\\\"}\\\\\": \"[\"}]5:[3]");
    expect(&config, "no json\nat all", "1:[no json]2:[at all]");
    refused(&config, " \n\n", "no documents");
    refused(&config, "[]", "no documents");
    refused(&config, "[{},\n{}", "one:2: the array of rows does not end");
    refused(&config, "[", "one:1: the array of rows does not end");
    refused(&config, "[{}\n,]", "one:2: a row of the array is missing");
    refused(&config, "[,{}]", "one:1: a row of the array is missing");
    refused(&config, "[{}\n}{}]", "one:2: a comma or ] is missing");
    refused(&config, "[{}]\n[{}]", "one:2: there is text after the ]");
}

/* Rows around the size of a read, and the limit. */
static void test_long_rows(void) {
    const struct ox_documents_config config = {.format = OX_DOCUMENTS_ROWS};
    enum { ROW_BYTES = (1 << 20) - 3, ROW_COUNT = 5, LIMIT = 64 << 20 };
    char *const text = malloc((ROW_COUNT + 1) * ROW_BYTES);
    for (int is_array = 0; is_array < 2; is_array++) {
        struct ox_documents *documents = NULL;
        struct ox_document row;
        size_t bytes = (size_t)is_array, count = 0;
        text[0] = '[';
        for (int i = 0; i < ROW_COUNT; i++) {
            text[bytes] = '"';
            memset(text + bytes + 1, 'a' + i, ROW_BYTES - 3 + i);
            memcpy(text + bytes + ROW_BYTES - 2 + i, is_array ? "\"," : "\"\n", 2);
            bytes += (size_t)ROW_BYTES + (size_t)i;
        }
        text[bytes - 1] = is_array ? ']' : '\n';
        files_write("rows", text, bytes);
        REQUIRE_OK(documents_open(test_path("rows"), &config, &documents));
        for (bool found = true; found; count += found) {
            REQUIRE_OK(ox_documents_next(documents, &row, &found));
            CHECK(!found || (row.bytes == ROW_BYTES - 1 + count && row.text[1] == (char)('a' + count) &&
                             row.text[row.bytes - 2] == row.text[1] && row.line == (is_array ? 1 : count + 1)));
        }
        CHECK(count == ROW_COUNT);
        ox_documents_close(&documents);

        files_write("rows", is_array ? "[" : "\n", 1);
        CHECK(truncate(test_path("rows"), LIMIT + 2) == 0); /* zeros, which are no white space */
        REQUIRE_OK(documents_open(test_path("rows"), &config, &documents));
        bool found;
        CHECK(ox_documents_next(documents, &row, &found) == OX_E_CONFIG);
        CHECK(strstr(ox_error_text(), is_array ? "rows:1: the row has more" : "rows:2: the row has more") != NULL);
        ox_documents_close(&documents);
    }
    CHECK(unlink(test_path("rows")) == 0);
    free(text);
}

/* A row that is too long and ends in the same read; blanks over several reads; a text that has no end. */
static void test_limits(void) {
    enum { BLANK_BYTES = 3 << 20 };
    static const off_t row_bytes = ((off_t)64 << 20) + 2, text_bytes = ((off_t)128 << 20) + 1;
    struct ox_documents_config config = {.format = OX_DOCUMENTS_ROWS};
    struct ox_documents *documents = NULL;
    struct ox_document row;
    bool found = false;
    files_write("limit", "[", 1);
    CHECK(truncate(test_path("limit"), row_bytes) == 0);
    const int fd = open(test_path("limit"), O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, "]", 1, row_bytes) == 1 && close(fd) == 0);
    REQUIRE_OK(documents_open(test_path("limit"), &config, &documents));
    CHECK(ox_documents_next(documents, &row, &found) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "limit:1: the row has more than 64 MiB") != NULL);
    ox_documents_close(&documents);

    char *const blanks = malloc(BLANK_BYTES + 2);
    memset(blanks, '\n', BLANK_BYTES);
    memcpy(blanks + BLANK_BYTES, "{}", 2);
    files_write("limit", blanks, BLANK_BYTES + 2);
    REQUIRE_OK(documents_open(test_path("limit"), &config, &documents));
    REQUIRE_OK(ox_documents_next(documents, &row, &found));
    CHECK(found && row.bytes == 2 && row.line == BLANK_BYTES + 1 && row.offset == BLANK_BYTES);
    ox_documents_close(&documents);
    free(blanks);

    config = (struct ox_documents_config){.piece_bytes = 1 << 20};
    CHECK(truncate(test_path("limit"), 0) == 0 && truncate(test_path("limit"), text_bytes) == 0);
    REQUIRE_OK(documents_open(test_path("limit"), &config, &documents));
    CHECK(ox_documents_next(documents, &row, &found) == OX_E_CONFIG && !found);
    CHECK(strstr(ox_error_text(), "limit: the text at byte 0 has more than 128 MiB") != NULL);
    ox_documents_close(&documents);
    CHECK(unlink(test_path("limit")) == 0);
}

/* Folders in folders, more than anyone has. */
static void test_deep_folder(void) {
    const struct ox_documents_config config = {.format = OX_DOCUMENTS_TEXT};
    struct ox_documents *documents = NULL;
    char name[256] = "deep";
    for (size_t i = 0; i < 70; i++) {
        memcpy(name + strlen(name), "/d", 3);
    }
    REQUIRE_OK(ox_folder_make(test_path(name)));
    CHECK(documents_open(test_path("deep"), &config, &documents) == OX_E_CONFIG && documents == NULL);
    CHECK(strstr(ox_error_text(), "cannot list the folder: Too many levels") != NULL);
}

static void test_folders(void) {
    struct ox_documents_config config = {.format = OX_DOCUMENTS_TEXT};
    char text[256];
    REQUIRE_OK(ox_folder_make(test_path("f/sub")));
    REQUIRE_OK(ox_folder_make(test_path("g")));
    files_write("f/b.txt", "B", 1);
    files_write("f/a.jsonl", "1\n2", 3);
    files_write("f/sub/c.json", "[3,4]", 5);
    files_write("f/empty", "", 0);
    CHECK(symlink("b.txt", test_path("f/link")) == 0);
    REQUIRE_OK(shown("f", &config, text, sizeof text));
    CHECK(strcmp(text, "[1\n2][B][[3,4]]") == 0);
    CHECK(unlink(test_path("f/b.txt")) == 0);
    config.format = OX_DOCUMENTS_ROWS;
    REQUIRE_OK(shown("f", &config, text, sizeof text));
    CHECK(strcmp(text, "1:[1]2:[2]1:[3]1:[4]") == 0);
    struct ox_documents *documents = NULL;
    CHECK(documents_open(test_path("g"), &config, &documents) == OX_E_CONFIG && documents == NULL);
    CHECK(strstr(ox_error_text(), "/g: is empty") != NULL);
    CHECK(documents_open(test_path("missing"), &config, &documents) == OX_E_CONFIG && documents == NULL);
    CHECK(mkfifo(test_path("fifo"), 0600) == 0);
    CHECK(documents_open(test_path("fifo"), &config, &documents) == OX_E_CONFIG && documents == NULL);
}

/* The stamp knows a change that leaves size and mtime as they were; the hash knows contents alone. */
static void test_stamps(void) {
    const struct ox_documents_config config = {.format = OX_DOCUMENTS_TEXT};
    struct ox_documents *documents = NULL;
    uint64_t stamps[3], hashes[3], newest[3];
    struct stat info;
    REQUIRE_OK(ox_folder_make(test_path("s")));
    files_write("s/a", "first", 5);
    files_write("s/b", "second", 6);
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(documents_open(test_path("s"), &config, &documents));
        stamps[i] = ox_documents_stamp(documents, &newest[i]);
        REQUIRE_OK(ox_documents_hash(documents, &hashes[i]));
        ox_documents_close(&documents);
        if (i == 0) {
            usleep(20000); /* longer than a tick of a file system's clock */
            CHECK(stat(test_path("s/a"), &info) == 0);
            const int fd = open(test_path("s/a"), O_WRONLY);
            const struct timespec times[] = {info.st_atim, info.st_mtim};
            CHECK(fd >= 0 && pwrite(fd, "First", 5, 0) == 5 && futimens(fd, times) == 0);
            close(fd);
        }
    }
    CHECK(stamps[0] != stamps[1] && hashes[0] != hashes[1] && newest[1] > newest[0]);
    CHECK(stamps[1] == stamps[2] && hashes[1] == hashes[2] && newest[1] == newest[2]);
    /* Where one file ends and the next begins is part of the contents. */
    files_write("s/a", "Firsts", 6);
    files_write("s/b", "econd", 5);
    REQUIRE_OK(documents_open(test_path("s"), &config, &documents));
    REQUIRE_OK(ox_documents_hash(documents, &hashes[2]));
    CHECK(hashes[2] != hashes[1]);
    ox_documents_close(&documents);
}

/* ---- cuts ---------------------------------------------------------------------------------------------------- */

/* A tokenizer of characters with bytes behind them, as Llama-2 and its kind; `newlines` adds to its vocabulary. */
static void write_tokenizer(const char *steps, const char *added, const char *vocab, const char *merges) {
    static char text[1 << 16];
    size_t used = (size_t)snprintf(text, sizeof text,
                                   "{\"added_tokens\":[%s],%s,\"post_processor\":null,\"decoder\":{\"type\":\"Fuse\"},"
                                   "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,"
                                   "\"byte_fallback\":true,\"vocab\":{\"<unk>\":0",
                                   added, steps);
    for (int i = 0; i < 256; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, ",\"<0x%02X>\":%d", i, i + 1);
    }
    used += (size_t)snprintf(text + used, sizeof text - used,
                             ",\"\xe2\x96\x81\":257,\"t\":258,\"h\":259,\"e\":260,\"th\":261,\"the\":262,"
                             "\"\xe2\x96\x81t\":263,\"\xe2\x96\x81the\":264%s},\"merges\":[\"t h\",\"th e\","
                             "\"\xe2\x96\x81 t\",\"\xe2\x96\x81 the\"%s]}}",
                             vocab, merges);
    files_write("tokenizer.json", text, used);
}

/* A text of what matters at cuts. */
static size_t random_text(uint64_t *prng, char *text, size_t room) {
    static const char *const parts[] = {"the",
                                        "The",
                                        " ",
                                        "  ",
                                        "\n",
                                        "\n",
                                        "\n",
                                        "\n\n",
                                        "\r\n",
                                        "\t",
                                        ".",
                                        "'s",
                                        "'",
                                        "12",
                                        "x",
                                        "<s>",
                                        "été",
                                        "word",
                                        "\xe4\xb8\x96",
                                        "\xef\xbd\xb6",
                                        "\xcc\x81",
                                        "\xc2\xa0",
                                        "/",
                                        "<mask>",
                                        "<wo>",
                                        "e\xcc\x81",
                                        "\xe2\x96\x81",
                                        "\xd1\x8f",
                                        "\xe2\x84\xab",
                                        "):",
                                        "\xf0\x9f\x98\x80"};
    size_t used = 0;
    for (int i = 0; i < 120; i++) {
        const char *const part = parts[random_next(prng) % (sizeof parts / sizeof *parts)];
        used += (size_t)snprintf(text + used, room - used, "%s", part);
    }
    return used;
}

static bool pieces_agree(struct ox_encoder *encoder, const char *text, size_t bytes, struct ox_documents_config config,
                         size_t *cuts) {
    struct ox_documents *documents = NULL;
    struct ox_document piece;
    struct ox_ids whole = {0}, joined = {0};
    REQUIRE_OK(ox_encode(encoder, text, bytes, true, false, &whole));
    files_write("cut", text, bytes);
    REQUIRE_OK(documents_open(test_path("cut"), &config, &documents));
    for (bool found = true; found;) {
        REQUIRE_OK(ox_documents_next(documents, &piece, &found));
        if (found && piece.begins) {
            REQUIRE_OK(ox_encode(encoder, piece.text, piece.bytes, true, false, &joined));
        } else if (found) {
            REQUIRE_OK(ox_encode_continued(encoder, piece.text, piece.bytes, true, &joined));
            (*cuts)++;
        }
    }
    const bool same =
        whole.count == joined.count && memcmp(whole.ids, joined.ids, whole.count * sizeof *whole.ids) == 0;
    ox_documents_close(&documents);
    ox_ids_free(&whole);
    ox_ids_free(&joined);
    return same;
}

static void check_cuts(const char *path, const char *name, enum ox_cuts expected) {
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_encoder *encoder = NULL;
    uint64_t prng = 3;
    char text[4096];
    size_t cuts = 0;
    REQUIRE_OK(ox_tokenizer_open(path, &tokenizer));
    REQUIRE_OK(ox_encoder_open(tokenizer, &encoder));
    if (ox_tokenizer_cuts(tokenizer) != expected) {
        printf("%s: cuts %d, must be %d\n", name, (int)ox_tokenizer_cuts(tokenizer), (int)expected);
        test_failure_count++;
    }
    for (int i = 0; i < 100 && expected != OX_CUTS_NONE; i++) {
        const size_t bytes = random_text(&prng, text, sizeof text);
        const struct ox_documents_config config = {.piece_bytes = 1 + random_next(&prng) % 40,
                                                   .cut_before_newline = expected == OX_CUTS_BEFORE_NEWLINE};
        if (!pieces_agree(encoder, text, bytes, config, &cuts)) {
            printf("%s: the pieces differ from the whole\n%s\n", name, text);
            test_failure_count++;
        }
    }
    CHECK(expected == OX_CUTS_NONE || cuts > 60);
    ox_encoder_close(&encoder);
    ox_tokenizer_close(&tokenizer);
}

#define SP_NORMALIZER                                                                                                  \
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},"      \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]}"
#define METASPACE(scheme)                                                                                              \
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\","                  \
    "\"prepend_scheme\":\"" scheme "\",\"split\":true}"
#define ADDED(id, text, flag)                                                                                          \
    "{\"id\":" id ",\"content\":\"" text "\",\"single_word\":false,\"lstrip\":" flag ",\"rstrip\":false,"              \
    "\"normalized\":false,\"special\":true}"

static void test_cuts(void) {
    static const struct {
        const char *name;
        enum ox_cuts cuts;
    } golden[] = {{"gpt2_prefix", OX_CUTS_NONE},   {"llama3", OX_CUTS_AFTER_NEWLINE}, {"qwen", OX_CUTS_AFTER_NEWLINE},
                  {"nemo", OX_CUTS_AFTER_NEWLINE}, {"gemma", OX_CUTS_NONE},           {"mistral", OX_CUTS_NONE},
                  {"removed", OX_CUTS_NONE},       {"metaspace_first", OX_CUTS_NONE}, {"steps", OX_CUTS_NONE}};
    static const struct {
        const char *steps, *added, *vocab, *merges;
        enum ox_cuts cuts;
    } made[] = {
        {SP_NORMALIZER ",\"pre_tokenizer\":null", "", "", "", OX_CUTS_AFTER_NEWLINE},
        {SP_NORMALIZER ",\"pre_tokenizer\":null", ADDED("265", "<s>", "false") "," ADDED("266", "<mask>", "true"), "",
         "", OX_CUTS_AFTER_NEWLINE},
        {SP_NORMALIZER ",\"pre_tokenizer\":null", "", ",\"\\n\":265,\"\\n\\n\":266", ",\"\\n \\n\"",
         OX_CUTS_AFTER_NEWLINE},
        {SP_NORMALIZER ",\"pre_tokenizer\":null", "", ",\"\\n\":265,\"\\nt\":266", ",\"\\n t\"", OX_CUTS_NONE},
        {SP_NORMALIZER ",\"pre_tokenizer\":null", "", ",\"<0x0A>t\":265", ",\"<0x0A> t\"", OX_CUTS_NONE},
        {SP_NORMALIZER ",\"pre_tokenizer\":null", ADDED("265", "a\\n", "false"), "", "", OX_CUTS_NONE},
        {SP_NORMALIZER ",\"pre_tokenizer\":null", ADDED("265", "be", "true"), "", "", OX_CUTS_NONE},
        {METASPACE("always"), ADDED("265", "<s>", "false"), "", "", OX_CUTS_AFTER_NEWLINE},
        {METASPACE("first"), ADDED("265", "<s>", "false"), "", "", OX_CUTS_AFTER_NEWLINE},
        {METASPACE("never"), "", "", "", OX_CUTS_AFTER_NEWLINE},
        {"\"normalizer\":{\"type\":\"NFKC\"},\"pre_tokenizer\":null", "", "", "", OX_CUTS_NONE},
    };
    char path[OX_PATH_BYTES];
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        snprintf(path, sizeof path, "tests/golden/tokenizers/%s.json", golden[i].name);
        check_cuts(path, golden[i].name, golden[i].cuts);
    }
    char *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read("tests/golden/tokenizers/gpt2_prefix.json", 1 << 20, &text, &bytes));
    /* GPT-2 itself has no space in front, and no word as a token. */
    static const char with[] = "true,\"trim_offsets", without[] = "false,\"trim_offset";
    for (char *at = strstr(text, with); at != NULL; at = strstr(at, with)) {
        memcpy(at, without, sizeof without - 1);
    }
    files_write("tokenizer.json", text, bytes);
    REQUIRE_OK(ox_path_join(test_folder(), "tokenizer.json", path));
    check_cuts(path, "gpt2 with a word", OX_CUTS_NONE);
    for (char *at = strstr(text, "\"word\""); at != NULL; at = strstr(at, "\"word\"")) {
        memcpy(at + 1, "<wo>", 4);
    }
    files_write("tokenizer.json", text, bytes);
    free(text);
    check_cuts(path, "gpt2", OX_CUTS_BEFORE_NEWLINE);
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        char name[32];
        snprintf(name, sizeof name, "made %zu", i);
        write_tokenizer(made[i].steps, made[i].added, made[i].vocab, made[i].merges);
        REQUIRE_OK(ox_path_join(test_folder(), "tokenizer.json", path));
        check_cuts(path, name, made[i].cuts);
    }
}

int main(void) {
    test_texts();
    test_pieces();
    test_long_text();
    test_borders();
    test_rows();
    test_long_rows();
    test_limits();
    test_folders();
    test_deep_folder();
    test_stamps();
    test_cuts();
    return test_end();
}
