/* Data in files: bytes, folders, many files, the token files of llm.c and llmq with masks, and what is refused. */
#include "base/file.h"
#include "engine/data/data.h"
#include "tests/kit/files.h"
#include "tests/kit/log.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A token file: 256 header words, then `bytes` of data. */
static void write_tokens(const char *name, const int32_t *words, size_t word_count, const void *data,
                         size_t bytes) {
    static char text[1024 + 65536];
    memset(text, 0, 1024);
    memcpy(text, words, word_count * sizeof *words);
    memcpy(text + 1024, data, bytes);
    files_write(name, text, 1024 + bytes);
}

static enum ox_status open_only(const char *name, enum ox_data_kind kind) {
    struct ox_data *data = NULL;
    const enum ox_status status = ox_data_open(test_path(name), kind, &data);
    CHECK((status == OX_OK) == (data != NULL));
    ox_data_close(&data);
    return status;
}

static void test_bytes(void) {
    struct ox_data *data = NULL;
    int32_t tokens[64];
    uint8_t marks[64];
    static const unsigned char text[] = {0, 200, 255, 'a', 'b'};
    files_write("plain", text, sizeof text);
    REQUIRE_OK(ox_data_open(test_path("plain"), OX_DATA_AUTO, &data));
    CHECK(ox_data_kind_of(data) == OX_DATA_BYTES && ox_data_token_count(data) == 5);
    REQUIRE_OK(ox_data_read(data, 0, 5, 256, tokens, marks));
    CHECK(tokens[0] == 0 && tokens[1] == 200 && tokens[2] == 255 && tokens[4] == 'b' &&
          marks[0] == (OX_TOKEN_TRAINED | OX_TOKEN_BEGINS) && marks[4] == OX_TOKEN_TRAINED);
    CHECK(ox_data_document_count(data) == 1 && !ox_data_is_chat(data));
    REQUIRE_OK(ox_data_read(data, 3, 2, 100, tokens, NULL));
    CHECK(tokens[0] == 'a');
    CHECK(ox_data_read(data, 0, 5, 128, tokens, NULL) == OX_E_CORRUPT);
    CHECK(strstr(ox_error_text(), "plain: token 1 ") != NULL && strstr(ox_error_text(), "200") != NULL);
    /* The file shrinks under the run. */
    CHECK(truncate(test_path("plain"), 3) == 0);
    CHECK(ox_data_read(data, 0, 5, 256, tokens, NULL) == OX_E_CORRUPT);
    ox_data_close(&data);
    ox_data_close(&data);

    files_write("empty", "", 0);
    CHECK(open_only("empty", OX_DATA_AUTO) == OX_E_CONFIG);
    CHECK(open_only("missing", OX_DATA_AUTO) == OX_E_CONFIG);
    CHECK(open_only("empty", OX_DATA_LLMC) == OX_E_CORRUPT);
}

static void test_folder_of_bytes(void) {
    struct ox_data *data = NULL;
    int32_t tokens[16];
    char text[17] = {0};
    REQUIRE_OK(ox_folder_make(test_path("f/sub/deep")));
    REQUIRE_OK(ox_folder_make(test_path("f/none")));
    files_write("f/b", "BB", 2);
    files_write("f/a", "A", 1);
    files_write("f/empty", "", 0);
    files_write("f/sub/deep/x", "xyz", 3);
    files_write("f/sub.txt", "S", 1); /* '.' sorts before '/' */
    files_write("f/z", "Z", 1);
    files_write("outside", "outside", 7);
    char target[OX_PATH_BYTES];
    snprintf(target, sizeof target, "%s", test_path("outside"));
    CHECK(symlink(target, test_path("f/link")) == 0);
    REQUIRE_OK(ox_data_open(test_path("f"), OX_DATA_AUTO, &data));
    CHECK(ox_data_token_count(data) == 8);
    REQUIRE_OK(ox_data_read(data, 0, 8, 256, tokens, NULL));
    for (int i = 0; i < 8; i++) {
        text[i] = (char)tokens[i];
    }
    CHECK(strcmp(text, "ABBSxyzZ") == 0);
    /* Files are documents; the empty one is none. */
    static const uint64_t expected[5] = {0, 1, 3, 4, 7};
    uint64_t begins[5];
    uint8_t marks[8];
    CHECK(ox_data_document_count(data) == 5);
    for (uint64_t first = 0; first <= 5; first++) {
        for (uint64_t count = 0; count <= 5 - first; count++) {
            REQUIRE_OK(ox_data_documents(data, first, count, begins));
            CHECK(memcmp(begins, expected + first, count * sizeof *begins) == 0);
        }
    }
    REQUIRE_OK(ox_data_read(data, 0, 8, 256, tokens, marks));
    for (uint64_t i = 0, document = 0; i < 8; i++) {
        const bool first = document < 5 && expected[document] == i;
        CHECK(marks[i] == (first ? OX_TOKEN_TRAINED | OX_TOKEN_BEGINS : OX_TOKEN_TRAINED));
        document += first;
    }
    const uint64_t fingerprint = ox_data_fingerprint(data);
    ox_data_close(&data);
    REQUIRE_OK(ox_data_open(test_path("f"), OX_DATA_BYTES, &data));
    CHECK(ox_data_fingerprint(data) == fingerprint);
    ox_data_close(&data);
    files_write("f/z", "Y", 1);
    REQUIRE_OK(ox_data_open(test_path("f"), OX_DATA_BYTES, &data));
    CHECK(ox_data_fingerprint(data) != fingerprint);
    ox_data_close(&data);
}

/* More files than are kept open. */
static void test_many_files(void) {
    struct ox_data *data = NULL;
    REQUIRE_OK(ox_folder_make(test_path("many")));
    for (int i = 0; i < 100; i++) {
        char name[32];
        snprintf(name, sizeof name, "many/%03d", i);
        const unsigned char pair[2] = {(unsigned char)i, (unsigned char)(i + 100)};
        files_write(name, pair, 2);
    }
    int32_t all[200];
    REQUIRE_OK(ox_data_open(test_path("many"), OX_DATA_AUTO, &data));
    REQUIRE_OK(ox_data_read(data, 0, 200, 256, all, NULL));
    int wrong = 0;
    for (int i = 0; i < 200; i++) {
        wrong += all[i] != i / 2 + 100 * (i % 2);
    }
    CHECK(wrong == 0);
    uint64_t begins[3];
    CHECK(ox_data_document_count(data) == 100);
    REQUIRE_OK(ox_data_documents(data, 70, 3, begins));
    CHECK(begins[0] == 140 && begins[1] == 142 && begins[2] == 144);
    files_write("many/050", "x", 1);
    CHECK(ox_data_read(data, 90, 20, 256, all, NULL) == OX_E_CORRUPT);
    CHECK(strstr(ox_error_text(), "many/050: has changed its size") != NULL);
    CHECK(unlink(test_path("many/050")) == 0);
    CHECK(ox_data_read(data, 90, 20, 256, all, NULL) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "many/050: cannot open") != NULL);
    ox_data_close(&data);
    /* Folders in folders, more than anyone has. */
    char name[256] = "levels";
    for (size_t i = 0; i < 70; i++) {
        memcpy(name + strlen(name), "/d", 3);
    }
    REQUIRE_OK(ox_folder_make(test_path(name)));
    CHECK(open_only("levels", OX_DATA_BYTES) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "cannot list the folder: Too many levels") != NULL);
}

static void test_llmc(void) {
    struct ox_data *data = NULL;
    static uint16_t narrow[20000];
    static int32_t tokens[20000];
    const uint32_t wide[4] = {1, 100000, 128255, 4000000000u};
    for (int i = 0; i < 20000; i++) {
        narrow[i] = (uint16_t)(i * 3);
    }
    write_tokens("gpt2.bin", (const int32_t[]){20240520, 1, 20000}, 3, narrow, sizeof narrow);
    REQUIRE_OK(ox_data_open(test_path("gpt2.bin"), OX_DATA_AUTO, &data));
    CHECK(ox_data_kind_of(data) == OX_DATA_LLMC && ox_data_token_count(data) == 20000);
    REQUIRE_OK(ox_data_read(data, 5, 19995, 65536, tokens, NULL));
    int wrong = 0;
    for (int i = 0; i < 19995; i++) {
        wrong += tokens[i] != ((i + 5) * 3 & 0xffff);
    }
    CHECK(wrong == 0);
    ox_data_close(&data);
    write_tokens("llama3.bin", (const int32_t[]){20240801, 7, 4}, 3, wide, sizeof wide);
    REQUIRE_OK(ox_data_open(test_path("llama3.bin"), OX_DATA_AUTO, &data));
    REQUIRE_OK(ox_data_read(data, 0, 3, 128256, tokens, NULL));
    CHECK(tokens[0] == 1 && tokens[1] == 100000 && tokens[2] == 128255);
    CHECK(ox_data_read(data, 3, 1, UINT32_MAX, tokens, NULL) == OX_OK);
    CHECK(ox_data_read(data, 3, 1, 128256, tokens, NULL) == OX_E_CORRUPT);
    ox_data_close(&data);

    write_tokens("bad.bin", (const int32_t[]){20240520, 2, 10}, 3, narrow, 20);
    CHECK(open_only("bad.bin", OX_DATA_AUTO) == OX_E_CORRUPT);
    write_tokens("bad.bin", (const int32_t[]){20240801, 1, 10}, 3, narrow, 40);
    CHECK(open_only("bad.bin", OX_DATA_AUTO) == OX_E_CORRUPT);
    write_tokens("bad.bin", (const int32_t[]){20240520, 1, 10}, 3, narrow, 19);
    CHECK(open_only("bad.bin", OX_DATA_AUTO) == OX_E_CORRUPT);
    write_tokens("bad.bin", (const int32_t[]){20240520, 1, 10}, 3, narrow, 21);
    CHECK(open_only("bad.bin", OX_DATA_AUTO) == OX_E_CORRUPT);
    write_tokens("bad.bin", (const int32_t[]){20240520, 1, -10}, 3, narrow, 20);
    CHECK(open_only("bad.bin", OX_DATA_AUTO) == OX_E_CORRUPT);
    write_tokens("bad.bin", (const int32_t[]){20240522, 1, 10}, 3, narrow, 20);
    CHECK(open_only("bad.bin", OX_DATA_AUTO) == OX_E_CONFIG);
    write_tokens("bad.bin", (const int32_t[]){20240521, 1, 10}, 3, narrow, 20);
    CHECK(open_only("bad.bin", OX_DATA_LLMC) == OX_E_CORRUPT);
    const int32_t magic = 20240520;
    files_write("bad.bin", &magic, 4);
    CHECK(open_only("bad.bin", OX_DATA_AUTO) == OX_E_CORRUPT);

    /* A folder of token files is one stream; another kind of file among them is no data. */
    REQUIRE_OK(ox_folder_make(test_path("shards/inner")));
    write_tokens("shards/1.bin", (const int32_t[]){20240520, 1, 2}, 3, narrow + 2, 4);
    write_tokens("shards/0.bin", (const int32_t[]){20240520, 1, 2}, 3, narrow, 4);
    REQUIRE_OK(ox_data_open(test_path("shards"), OX_DATA_AUTO, &data));
    CHECK(ox_data_kind_of(data) == OX_DATA_LLMC && ox_data_token_count(data) == 4);
    REQUIRE_OK(ox_data_read(data, 0, 4, 65536, tokens, NULL));
    CHECK(tokens[0] == 0 && tokens[1] == 3 && tokens[2] == 6 && tokens[3] == 9);
    ox_data_close(&data);
    files_write("shards/README", "text", 4);
    CHECK(open_only("shards", OX_DATA_AUTO) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "README") != NULL);
}

static void test_llmq(void) {
    enum { COUNT = 4000 };
    struct ox_data *data = NULL;
    static unsigned char body[COUNT * 4 + COUNT / 8];
    static int32_t tokens[COUNT];
    static uint8_t marks[COUNT];
    int32_t header[8] = {0, 0, 2, 4, COUNT, 50000, 1};
    memcpy(header, "BIN.TOK\n", 8);
    for (int32_t i = 0; i < COUNT; i++) {
        const int32_t id = i * 11;
        memcpy(body + 4 * i, &id, 4);
        body[COUNT * 4 + i / 8] |= (unsigned char)((i % 3 == 0) << i % 8);
    }
    write_tokens("q.bin", header, 8, body, sizeof body);
    REQUIRE_OK(ox_data_open(test_path("q.bin"), OX_DATA_AUTO, &data));
    CHECK(ox_data_kind_of(data) == OX_DATA_LLMQ && ox_data_token_count(data) == COUNT);
    for (uint64_t first = 0; first < 20; first += 3) {
        REQUIRE_OK(ox_data_read(data, first, COUNT - 20, 50000, tokens, marks));
        int wrong = 0;
        for (uint64_t i = 0; i < COUNT - 20; i++) {
            const int mark = ((first + i) % 3 == 0 ? OX_TOKEN_TRAINED : 0) | (first + i == 0 ? OX_TOKEN_BEGINS : 0);
            wrong += tokens[i] != (int32_t)(first + i) * 11 || marks[i] != mark;
        }
        CHECK(wrong == 0);
    }
    ox_data_close(&data);
    header[6] = 0; /* without masks the masks are surplus bytes */
    write_tokens("q.bin", header, 8, body, sizeof body);
    CHECK(open_only("q.bin", OX_DATA_AUTO) == OX_E_CORRUPT);
    write_tokens("q.bin", header, 8, body, COUNT * 4);
    REQUIRE_OK(ox_data_open(test_path("q.bin"), OX_DATA_AUTO, &data));
    REQUIRE_OK(ox_data_read(data, 0, COUNT, 50000, tokens, marks));
    CHECK(marks[0] == (OX_TOKEN_TRAINED | OX_TOKEN_BEGINS) && marks[1] == OX_TOKEN_TRAINED &&
          marks[COUNT - 1] == OX_TOKEN_TRAINED);
    ox_data_close(&data);
    header[2] = 1; /* version 1 has neither vocabulary nor masks */
    header[5] = header[6] = 0x2a2a2a2a;
    write_tokens("q.bin", header, 8, body, COUNT * 4);
    CHECK(open_only("q.bin", OX_DATA_AUTO) == OX_OK);
    CHECK(open_only("q.bin", OX_DATA_LLMC) == OX_E_CORRUPT);
    header[2] = 3;
    write_tokens("q.bin", header, 8, body, COUNT * 4);
    CHECK(open_only("q.bin", OX_DATA_AUTO) == OX_E_CORRUPT);
    header[2] = 1;
    header[3] = 2;
    write_tokens("q.bin", header, 8, body, COUNT * 2);
    CHECK(open_only("q.bin", OX_DATA_AUTO) == OX_E_CORRUPT);
    /* A token that is negative as int32. */
    header[3] = 4;
    header[4] = 1;
    const int32_t negative = -5;
    write_tokens("q.bin", header, 8, &negative, 4);
    REQUIRE_OK(ox_data_open(test_path("q.bin"), OX_DATA_AUTO, &data));
    CHECK(ox_data_read(data, 0, 1, 50000, tokens, NULL) == OX_E_CORRUPT);
    ox_data_close(&data);
}

int main(void) {
    log_count_warnings(NULL);
    test_bytes();
    test_folder_of_bytes();
    test_many_files();
    test_llmc();
    test_llmq();
    return test_end();
}
