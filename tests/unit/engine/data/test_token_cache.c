/* The token cache: what is written is read back; damaged, cut and unfinished files are noticed. */
#include "base/file.h"
#include "base/prng/prng.h"
#include "engine/data/data.h"
#include "engine/data/token_cache.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    TOKENS_MAX = 3000000,
    VOCAB = 300000,
    PER_BLOCK = OX_CACHE_TOKENS_PER_BLOCK,
    DOCUMENTS_PER_BLOCK = OX_CACHE_DOCUMENTS_PER_BLOCK,
};

/* The expected content of a cache. */
static int32_t ids[TOKENS_MAX];
static uint8_t trained[TOKENS_MAX];
static uint64_t begins[TOKENS_MAX + 1];
static uint64_t token_count, document_count;

static int32_t found_ids[TOKENS_MAX];
static uint8_t found_marks[TOKENS_MAX];
static uint64_t found_begins[TOKENS_MAX];

static uint64_t drawn;

static uint64_t draw(uint64_t below) {
    return (uint64_t)(ox_uniform(7, 1, drawn++) * (double)below);
}

/* Fills the expectation: `tokens` in documents of 1 to length_max. */
static void make_text(uint64_t tokens, uint64_t length_max) {
    token_count = tokens;
    document_count = 0;
    uint64_t next = 0;
    for (uint64_t i = 0; i < tokens; i++) {
        if (i == next) {
            begins[document_count++] = i;
            next += 1 + draw(length_max);
        }
        uint32_t words[4];
        ox_philox(11, tokens, i, words);
        ids[i] = (int32_t)(words[0] % VOCAB);
        trained[i] = (words[1] & 3) != 0;
    }
    begins[document_count] = tokens;
}

static struct ox_cache_header header_of(uint64_t key) {
    return (struct ox_cache_header){.key = {key, ~key}, .source_bytes = 12345, .vocab = VOCAB, .is_chat = 1};
}

/* Adds it in pieces of up to piece_max tokens, with documents without tokens between. */
static enum ox_status add_text(struct ox_cache_writer *writer, uint64_t piece_max, bool masked) {
    enum ox_status status = OX_OK;
    for (uint64_t document = 0; status == OX_OK && document < document_count; document++) {
        bool first = true;
        if (document % 7 == 0) {
            status = ox_cache_add(writer, true, NULL, NULL, 0);
        }
        for (uint64_t at = begins[document]; status == OX_OK && at < begins[document + 1]; first = false) {
            const uint64_t left = begins[document + 1] - at, piece = 1 + draw(piece_max);
            const uint64_t count = piece < left ? piece : left;
            status = ox_cache_add(writer, first, ids + at, masked ? trained + at : NULL, count);
            at += count;
        }
    }
    return status;
}

static enum ox_status write_text(const char *path, uint64_t piece_max, uint64_t key) {
    struct ox_cache_writer *writer = NULL;
    const struct ox_cache_header header = header_of(key);
    enum ox_status status = ox_cache_create(path, NULL, &writer);
    if (status == OX_OK) {
        status = add_text(writer, piece_max, true);
        if (status != OX_OK) {
            ox_cache_discard(&writer);
        } else {
            CHECK(ox_cache_token_count(writer) == token_count);
            status = ox_cache_commit(&writer, &header, NULL);
        }
        CHECK(writer == NULL);
    }
    return status;
}

/* Tokens, marks and documents of a range against the expectation. */
static uint64_t wrong_in(const struct ox_data *data, uint64_t first, uint64_t count, bool masked) {
    uint64_t wrong = 0, document = 0;
    REQUIRE_OK(ox_data_read(data, first, count, VOCAB, found_ids, found_marks));
    while (document < document_count && begins[document] < first) {
        document++;
    }
    for (uint64_t i = 0; i < count; i++) {
        const bool is_first = document < document_count && begins[document] == first + i;
        document += is_first;
        const int mark = (!masked || trained[first + i] ? OX_TOKEN_TRAINED : 0) | (is_first ? OX_TOKEN_BEGINS : 0);
        wrong += found_ids[i] != ids[first + i] || found_marks[i] != mark;
    }
    return wrong;
}

static void check_data(const struct ox_data *data, bool masked) {
    struct ox_cache_header header;
    uint64_t longest = 0, trained_count = 0;
    for (uint64_t i = 0; i < document_count; i++) {
        longest = begins[i + 1] - begins[i] > longest ? begins[i + 1] - begins[i] : longest;
    }
    for (uint64_t i = 0; i < token_count; i++) {
        trained_count += !masked || trained[i];
    }
    ox_data_cache_header(data, &header);
    CHECK(header.token_count == token_count && header.document_count == document_count);
    CHECK(header.longest == longest && header.trained_count == trained_count && header.source_bytes == 12345);
    CHECK(header.vocab == VOCAB && header.is_chat == 1 && header.key[1] == ~header.key[0]);
    CHECK(ox_data_kind_of(data) == OX_DATA_CACHE && ox_data_is_chat(data));
    CHECK(ox_data_token_count(data) == token_count && ox_data_document_count(data) == document_count);
    CHECK(wrong_in(data, 0, token_count, masked) == 0);
    REQUIRE_OK(ox_data_documents(data, 0, document_count, found_begins));
    CHECK(memcmp(found_begins, begins, document_count * sizeof *begins) == 0);
    for (int i = 0; i < 20; i++) {
        const uint64_t first = draw(token_count + 1), count = draw(token_count - first + 1);
        CHECK(wrong_in(data, first, count < 9000 ? count : 9000, masked) == 0);
        const uint64_t document = draw(document_count + 1), documents = draw(document_count - document + 1);
        REQUIRE_OK(ox_data_documents(data, document, documents, found_begins));
        CHECK(memcmp(found_begins, begins + document, documents * sizeof *begins) == 0);
    }
    REQUIRE_OK(ox_data_read(data, token_count, 0, VOCAB, found_ids, found_marks));
}

static void check_file(const char *path) {
    struct ox_data *data = NULL;
    enum ox_data_kind kind;
    REQUIRE_OK(ox_data_find_kind(path, &kind));
    CHECK(kind == OX_DATA_CACHE);
    REQUIRE_OK(ox_data_open(path, OX_DATA_AUTO, &data));
    check_data(data, true);
    ox_data_close(&data);
}

static uint64_t fingerprint_of(const char *path) {
    struct ox_data *data = NULL;
    REQUIRE_OK(ox_data_open(path, OX_DATA_CACHE, &data));
    const uint64_t fingerprint = ox_data_fingerprint(data);
    ox_data_close(&data);
    return fingerprint;
}

/* ---- whole files ------------------------------------------------------------------------------------------------ */

static void test_round_trips(void) {
    static const uint64_t cases[][3] = { /* tokens, longest document, longest piece */
        {1, 1, 1},
        {2, 1, 1},
        {PER_BLOCK - 1, 10, 3},
        {PER_BLOCK, PER_BLOCK, PER_BLOCK},
        {PER_BLOCK + 1, PER_BLOCK, 2 * PER_BLOCK},
        {2 * PER_BLOCK, 1, 1},
        {DOCUMENTS_PER_BLOCK - 1, 1, 1},
        {DOCUMENTS_PER_BLOCK, 1, 1},
        {DOCUMENTS_PER_BLOCK + 1, 1, 1},
        {2 * DOCUMENTS_PER_BLOCK, 1, 1},
        {50000, 100, 7},
        {50000, 20000, 9000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_text(cases[i][0], cases[i][1]);
        REQUIRE_OK(write_text(test_path("round"), cases[i][2], i));
        check_file(test_path("round"));
    }
    make_text(TOKENS_MAX, 5000);
    REQUIRE_OK(write_text(test_path("round"), 3000, 0));
    check_file(test_path("round"));
    CHECK(files_count(test_folder(), ".", "") == 0);

    struct ox_data *data = NULL;
    REQUIRE_OK(ox_data_open(test_path("round"), OX_DATA_AUTO, &data));
    uint64_t at = PER_BLOCK + 3;
    for (uint64_t i = 0; i < at; i++) {
        at = ids[i] >= 1000 ? i : at;
    }
    CHECK(ox_data_read(data, 0, token_count, 1000, found_ids, NULL) == OX_E_CORRUPT);
    char text[64];
    snprintf(text, sizeof text, "round: token %llu has the id %d", (unsigned long long)at, (int)ids[at]);
    CHECK(strstr(ox_error_text(), text) != NULL);
    ox_data_close(&data);

    /* A cache is a file, not a folder of them. */
    REQUIRE_OK(ox_folder_make(test_path("set")));
    make_text(10, 3);
    REQUIRE_OK(write_text(test_path("set/a"), 3, 0));
    CHECK(ox_data_open(test_path("set"), OX_DATA_AUTO, &data) == OX_E_CONFIG && data == NULL);
    REQUIRE_OK(write_text(test_path("set/b"), 3, 0));
    CHECK(ox_data_open(test_path("set"), OX_DATA_AUTO, &data) == OX_E_CONFIG && data == NULL);
}

static void test_unnamed(void) {
    struct ox_cache_writer *writer = NULL;
    struct ox_data *data = NULL;
    const struct ox_cache_header header = header_of(3);
    int fd = -1;
    REQUIRE_OK(ox_folder_make(test_path("unnamed")));
    make_text(30000, 9);
    REQUIRE_OK(ox_cache_create(NULL, test_path("unnamed"), &writer));
    REQUIRE_OK(add_text(writer, 5, false));
    REQUIRE_OK(ox_cache_commit(&writer, &header, &fd));
    REQUIRE_OK(ox_data_open_fd(fd, "tokens of a test", &data));
    check_data(data, false);
    CHECK(files_count("unnamed", "", "") == 0);
    const uint64_t fingerprint = ox_data_fingerprint(data);
    ox_data_close(&data);
    CHECK(fcntl(fd, F_GETFD) == -1);

    /* Key and counts make the fingerprint; place and salt do not. */
    memset(trained, 1, sizeof trained);
    REQUIRE_OK(write_text(test_path("named"), 100, 3));
    CHECK(fingerprint_of(test_path("named")) == fingerprint);
    REQUIRE_OK(write_text(test_path("named"), 100, 4));
    CHECK(fingerprint_of(test_path("named")) != fingerprint);
    trained[5] = 0;
    REQUIRE_OK(write_text(test_path("named"), 100, 3));
    CHECK(fingerprint_of(test_path("named")) != fingerprint);

    /* Not a cache: the descriptor is closed all the same. */
    files_write_text("text", "text");
    fd = open(test_path("text"), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && ox_data_open_fd(fd, "text", &data) == OX_E_CORRUPT && data == NULL);
    CHECK(fcntl(fd, F_GETFD) == -1);
    CHECK(ox_data_open(test_path("text"), OX_DATA_CACHE, &data) == OX_E_CORRUPT);
    CHECK(ox_cache_create(NULL, test_path("nowhere"), &writer) == OX_E_CONFIG && writer == NULL);
    CHECK(ox_cache_create(test_path("nowhere/file"), NULL, &writer) == OX_E_CONFIG && writer == NULL);
}

/* One without tokens is a good file, and no data. */
static void test_empty(void) {
    struct ox_cache_writer *writer = NULL;
    struct ox_data *data = NULL;
    const struct ox_cache_header header = header_of(1);
    REQUIRE_OK(ox_cache_create(test_path("empty"), NULL, &writer));
    REQUIRE_OK(ox_cache_add(writer, true, NULL, NULL, 0));
    REQUIRE_OK(ox_cache_commit(&writer, &header, NULL));
    CHECK(ox_data_open(test_path("empty"), OX_DATA_AUTO, &data) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "holds no tokens") != NULL);
}

/* ---- damage ----------------------------------------------------------------------------------------------------- */

static char *image, *changed;
static size_t image_bytes;

/* Opens a file of these bytes and reads all of it; returns the first failure. */
static enum ox_status read_all(const char *bytes, size_t count) {
    const int fd = open(test_path("damaged"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, bytes, count) == (ssize_t)count);
    struct ox_data *data = NULL;
    enum ox_status status = ox_data_open_fd(fd, test_path("damaged"), &data);
    if (status == OX_OK) {
        status = ox_data_read(data, 0, ox_data_token_count(data), VOCAB, found_ids, found_marks);
    }
    if (status == OX_OK) {
        status = ox_data_documents(data, 0, ox_data_document_count(data), found_begins);
    }
    CHECK(status == OX_OK || strstr(ox_error_text(), "damaged: ") != NULL);
    ox_data_close(&data);
    return status;
}

/* A bit of block 2, a block of tokens, turns: the others are read as before. */
static void check_rest(void) {
    struct ox_data *data = NULL;
    memcpy(changed, image, image_bytes);
    changed[2 * OX_CACHE_BLOCK_BYTES + 777] ^= 4;
    files_write("damaged", changed, image_bytes);
    REQUIRE_OK(ox_data_open(test_path("damaged"), OX_DATA_AUTO, &data));
    CHECK(wrong_in(data, 0, PER_BLOCK, true) == 0);
    CHECK(wrong_in(data, 2 * PER_BLOCK, token_count - 2 * PER_BLOCK, true) == 0);
    CHECK(ox_data_read(data, PER_BLOCK - 5, 6, VOCAB, found_ids, NULL) == OX_E_CORRUPT);
    CHECK(ox_data_read(data, 2 * PER_BLOCK - 1, 6, VOCAB, found_ids, NULL) == OX_E_CORRUPT);
    CHECK(strstr(ox_error_text(), "damaged: the 16384 bytes at 32768 ") != NULL);
    REQUIRE_OK(ox_data_documents(data, 0, document_count, found_begins));
    ox_data_close(&data);
}

/* A cache that can be made again: damage is found when it is verified, and when it shows later, at a read, the file is
 * deleted, unless it is another one by now. */
static void check_remade(void) {
    struct ox_data *data = NULL;
    for (int kind = 0; kind < 3; kind++) {
        files_write("damaged", image, image_bytes);
        REQUIRE_OK(ox_data_open(test_path("damaged"), OX_DATA_CACHE, &data));
        REQUIRE_OK(ox_data_verify_cache(data));
        if (kind == 1) {
            files_write("other", image, image_bytes);
            CHECK(rename(test_path("damaged"), test_path("moved")) == 0);
            CHECK(rename(test_path("other"), test_path("damaged")) == 0);
        }
        files_flip(kind == 1 ? "moved" : "damaged", kind == 2 ? -500 : 2 * OX_CACHE_BLOCK_BYTES + 777);
        CHECK(kind == 1 || ox_data_verify_cache(data) == OX_E_CORRUPT);
        CHECK(files_exist("damaged"));
        const enum ox_status status = kind == 2 ? ox_data_documents(data, 0, document_count, found_begins)
                                                : ox_data_read(data, PER_BLOCK, 6, VOCAB, found_ids, NULL);
        CHECK(status == OX_E_CORRUPT && files_exist("damaged") == (kind == 1));
        CHECK((strstr(ox_error_text(), "damaged: the token cache is damaged and is deleted") != NULL) == (kind != 1));
        ox_data_close(&data);
    }
}

static void test_damage(void) {
    make_text(3 * PER_BLOCK + 100, 5);
    REQUIRE_OK(write_text(test_path("whole"), 50, 1));
    REQUIRE_OK(ox_file_read(test_path("whole"), 1 << 20, &image, &image_bytes));
    changed = malloc(image_bytes + OX_CACHE_BLOCK_BYTES);
    CHECK(changed != NULL && image_bytes % OX_CACHE_BLOCK_BYTES == 0);
    CHECK(read_all(image, image_bytes) == OX_OK);
    int unnoticed = 0;
    for (int i = 0; i < 300; i++) {
        /* Every third in the header's fields or the checksums. */
        const size_t block = draw(image_bytes / OX_CACHE_BLOCK_BYTES);
        const size_t at = i % 3 == 0   ? draw(96)
                          : i % 3 == 1 ? block * OX_CACHE_BLOCK_BYTES + draw(8)
                                       : draw(image_bytes);
        memcpy(changed, image, image_bytes);
        changed[at] ^= (char)(1 << draw(8));
        unnoticed += read_all(changed, image_bytes) != OX_E_CORRUPT;
    }
    CHECK(unnoticed == 0);
    for (int i = 0; i < 40; i++) {
        const size_t bytes = i < 8 ? (size_t)i * OX_CACHE_BLOCK_BYTES : draw(image_bytes);
        unnoticed += bytes < image_bytes && read_all(image, bytes) != OX_E_CORRUPT;
    }
    CHECK(unnoticed == 0);
    memset(changed, 0, image_bytes + OX_CACHE_BLOCK_BYTES);
    memcpy(changed, image, image_bytes);
    CHECK(read_all(changed, image_bytes + 1) == OX_E_CORRUPT);
    CHECK(read_all(changed, image_bytes + OX_CACHE_BLOCK_BYTES) == OX_E_CORRUPT);

    changed[16]++;
    CHECK(read_all(changed, image_bytes) == OX_E_CORRUPT && strstr(ox_error_text(), "of version 2") != NULL);
    /* A good block at another's place, or of another file with the same tokens. */
    memcpy(changed, image, image_bytes);
    memcpy(changed + OX_CACHE_BLOCK_BYTES, image + (size_t)2 * OX_CACHE_BLOCK_BYTES, OX_CACHE_BLOCK_BYTES);
    CHECK(read_all(changed, image_bytes) == OX_E_CORRUPT);
    check_rest();
    CHECK(files_exist("damaged")); /* it was given as data, and cannot be made again */
    check_remade();
    char *other = NULL;
    REQUIRE_OK(write_text(test_path("whole"), 50, 1));
    REQUIRE_OK(ox_file_read(test_path("whole"), 1 << 20, &other, &image_bytes));
    CHECK(read_all(other, image_bytes) == OX_OK);
    memcpy(other + OX_CACHE_BLOCK_BYTES, image + OX_CACHE_BLOCK_BYTES, OX_CACHE_BLOCK_BYTES);
    CHECK(read_all(other, image_bytes) == OX_E_CORRUPT);
    free(other);
    free(image);
    free(changed);
}

/* ---- what is not finished --------------------------------------------------------------------------------------- */

static void test_unfinished(void) {
    struct ox_cache_writer *writer = NULL, *second = NULL;
    REQUIRE_OK(ox_folder_make(test_path("crash")));
    char folder[OX_PATH_BYTES], path[OX_PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", test_path("crash"));
    snprintf(path, sizeof path, "%s", test_path("crash/cache"));
    make_text(20000, 3);
    REQUIRE_OK(ox_cache_create(path, NULL, &writer));
    REQUIRE_OK(add_text(writer, 100, true));
    CHECK(files_count(folder, "", "") == 1 && files_count(folder, ".", "") == 1);
    ox_cache_discard(&writer);
    ox_cache_discard(&writer);
    CHECK(writer == NULL && files_count(folder, "", "") == 0);

    for (int i = 0; i < 2; i++) {
        const pid_t child = fork();
        if (child == 0) { /* killed before the cache is complete */
            REQUIRE_OK(ox_cache_create(path, NULL, &writer));
            REQUIRE_OK(add_text(writer, 100, true));
            raise(SIGKILL);
        }
        int how = 0;
        CHECK(waitpid(child, &how, 0) == child && WIFSIGNALED(how));
        CHECK(files_count(folder, "", "") == 1 && files_count(folder, ".", "") == 1);
    }
    /* Files left by killed processes are removed; files of running ones stay. */
    REQUIRE_OK(ox_cache_create(path, NULL, &writer));
    CHECK(files_count(folder, "", "") == 1);
    REQUIRE_OK(add_text(writer, 100, true));
    REQUIRE_OK(ox_cache_create(path, NULL, &second));
    CHECK(files_count(folder, "", "") == 2 && files_count(folder, ".", "") == 2);
    const struct ox_cache_header header = header_of(5);
    REQUIRE_OK(ox_cache_commit(&writer, &header, NULL));
    check_file(path);
    CHECK(files_count(folder, "", "") == 2 && files_count(folder, ".", "") == 1);
    ox_cache_discard(&second);
    CHECK(files_count(folder, "", "") == 1 && files_count(folder, ".", "") == 0);
    check_file(path);
    /* A folder has the cache's name. */
    REQUIRE_OK(ox_folder_make(test_path("crash/folder")));
    CHECK(write_text(test_path("crash/folder"), 100, 0) == OX_E_CONFIG);
    CHECK(files_count(folder, "", "") == 2 && files_count(folder, ".", "") == 0);
}

/* Writes that end early, at any place: an error, and the file before is as it was. */
static void test_file_limit(void) {
    struct rlimit before, limit;
    char folder[OX_PATH_BYTES], path[OX_PATH_BYTES];
    int failed = 0;
    REQUIRE_OK(ox_folder_make(test_path("limit")));
    snprintf(folder, sizeof folder, "%s", test_path("limit"));
    snprintf(path, sizeof path, "%s", test_path("limit/cache"));
    signal(SIGXFSZ, SIG_IGN);
    make_text(20000, 3);
    REQUIRE_OK(write_text(path, 100, 1));
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    for (rlim_t bytes = 5000; bytes < 200000; bytes += 15000) {
        limit = (struct rlimit){.rlim_cur = bytes, .rlim_max = before.rlim_max};
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        const enum ox_status status = write_text(path, 100, 1);
        CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
        CHECK(status == OX_E_IO || status == OX_OK);
        failed += status != OX_OK;
        CHECK(files_count(folder, ".", "") == 0);
        check_file(path);
    }
    CHECK(failed > 8 && failed < 13);
}

/* ---- a full disk ------------------------------------------------------------------------------------------------ */

static void test_full_disk(void) {
    const char *const disk = files_make_folder("disk"), *const path = test_path("disk/cache");
    int failed = 0;
    if (!files_mount(disk, "size=320k")) {
        printf("no file system can be mounted here; a full disk is not tried\n");
        return;
    }
    for (uint64_t tokens = 1000; tokens < 60000; tokens += 2500) {
        make_text(tokens, 2);
        const enum ox_status status = write_text(path, 100, 1);
        CHECK(status == OX_OK || (status == OX_E_IO && strstr(ox_error_text(), "make room") != NULL));
        failed += status != OX_OK;
        CHECK(files_count(disk, ".", "") == 0);
        if (status == OX_OK) {
            check_file(path);
        }
        CHECK(unlink(path) == 0 || status != OX_OK);
    }
    CHECK(failed > 3 && failed < 20);
    CHECK(umount2(disk, MNT_DETACH) == 0);
}

int main(void) {
    test_round_trips();
    test_unnamed();
    test_empty();
    test_damage();
    test_unfinished();
    test_file_limit();
    test_full_disk();
    return test_end();
}
