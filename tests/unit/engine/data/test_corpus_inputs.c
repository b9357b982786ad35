/* Which files of a folder are read, as what, and which are left out; files that are refused by their first bytes. */
#include "base/file.h"
#include "engine/data/corpus_internal.h"
#include "engine/data/foreign_files.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Makes a folder of files, "name=content" with a space between them; a content is "" , or what it says. */
static void make_folder(const char *name, const char *files) {
    char path[512], list[1024];
    snprintf(list, sizeof list, "%s", files);
    files_remove_folder(name);
    REQUIRE_OK(ox_folder_make(test_path(name)));
    for (char *at = strtok(list, " "); at != NULL; at = strtok(NULL, " ")) {
        char *const content = strchr(at, '=');
        snprintf(path, sizeof path, "%s/%.*s", name, (int)(content != NULL ? content - at : (long)strlen(at)), at);
        char *const slash = strrchr(path, '/');
        *slash = '\0';
        REQUIRE_OK(ox_folder_make(test_path(path)));
        *slash = '/';
        files_write_text(path, content != NULL ? content + 1 : "x");
    }
}

/* Writes format, files that are read, and after a bar for each reason what is left out. */
static enum ox_status describe(const struct ox_corpus_config *config, char *text, size_t bytes) {
    static const char *const formats[] = {"auto", "text", "rows", "bytes", "tokens"};
    static const char *const reasons[] = {"link", "hidden", "about", "format", "split", "rest"};
    struct ox_inputs inputs;
    const enum ox_status status = ox_inputs_open(config, &inputs);
    if (status != OX_OK) {
        snprintf(text, bytes, "%s", ox_error_text());
        return status;
    }
    size_t used = (size_t)snprintf(text, bytes, "%s:", formats[inputs.format]);
    for (uint32_t i = 0; i < inputs.files.count; i++) {
        used += (size_t)snprintf(text + used, bytes - used, " %s", ox_files_name(&inputs.files, i));
    }
    for (int i = 0; i < OX_LEFT_COUNT; i++) {
        if (inputs.files.left[i].count > 0) {
            used += (size_t)snprintf(text + used, bytes - used, " | %s: %s", reasons[i], inputs.files.left[i].names);
        }
    }
    ox_inputs_close(&inputs);
    return status;
}

struct folder {
    const char *files;
    enum ox_corpus_format format;
    bool evaluates;
    const char *expected; /* as described, or a part of an error */
};

#define ROW "{\"text\":\"a\"}"

static const struct folder folders[] = {
    {"a.txt b.txt .env .git/HEAD .ipynb_checkpoints/a.txt _SUCCESS sub/_x sub/c.txt", OX_CORPUS_AUTO, false,
     "text: a.txt b.txt sub/c.txt | hidden: .env, .git, .ipynb_checkpoints, _SUCCESS, sub/_x"},
    {"README.md data/train.jsonl data/test.jsonl .cache/x .gitattributes", OX_CORPUS_AUTO, false,
     "rows: data/train.jsonl | hidden: .cache, .gitattributes | about: README.md | split: data/test.jsonl"},
    {"README.md data/train.jsonl data/test.jsonl", OX_CORPUS_AUTO, true,
     "rows: data/test.jsonl | about: README.md | rest: data/train.jsonl"},
    {"a.jsonl b.jsonl", OX_CORPUS_AUTO, true, "rows: a.jsonl b.jsonl"},
    {"a.jsonl notes.txt t.csv p.parquet info.json={} LICENSE dataset_info.json CITATION.cff", OX_CORPUS_AUTO, false,
     "rows: a.jsonl | about: CITATION.cff, LICENSE, dataset_info.json | format: info.json, notes.txt, p.parquet, "
     "t.csv"},
    {"foo-test-00000.jsonl foo-train-00000-of-00002.jsonl foo-val-00001-of-00002.jsonl dev-v2.0.json=[]",
     OX_CORPUS_AUTO, false,
     "rows: foo-train-00000-of-00002.jsonl | split: dev-v2.0.json, foo-test-00000.jsonl, foo-val-00001-of-00002.jsonl"},
    {"validation/a.jsonl eval/b.jsonl train/c.jsonl Test/d.jsonl valid.json=[] latest.jsonl contest.jsonl "
     "devices.jsonl",
     OX_CORPUS_AUTO, false,
     "rows: contest.jsonl devices.jsonl latest.jsonl train/c.jsonl | split: Test/d.jsonl, eval/b.jsonl, valid.json, "
     "validation/a.jsonl"},
    {"train_test.jsonl unit_test_guide_one.jsonl test_data.jsonl", OX_CORPUS_AUTO, false,
     "rows: train_test.jsonl unit_test_guide_one.jsonl | split: test_data.jsonl"},
    {"test.jsonl val.jsonl README.md", OX_CORPUS_AUTO, false,
     "nothing in it is read: what looks like a test or validation split is left out (test.jsonl, val.jsonl); name"},
    {"README.md", OX_CORPUS_AUTO, false, "what tells of data and holds none is left out (README.md)"},
    {".a", OX_CORPUS_AUTO, false, "has a name that begins with . or _ is left out (.a)"},
    {"README.md guide.md sub/README.md LICENSE", OX_CORPUS_AUTO, false,
     "text: README.md guide.md sub/README.md | about: LICENSE"},
    {"README.md a.txt", OX_CORPUS_TEXT, false, "text: a.txt | about: README.md"},
    {"a.json={} b.json={}", OX_CORPUS_AUTO, false, "rows: a.json b.json"},
    {"a.json=[" ROW "] notes.txt", OX_CORPUS_AUTO, false, "rows: a.json | format: notes.txt"},
    {"a.json=" ROW "\n" ROW " notes.txt", OX_CORPUS_AUTO, false, "rows: a.json | format: notes.txt"},
    {"a.json={} notes.txt", OX_CORPUS_AUTO, false, "notes.txt: has another format than "},
    {"a.json={} notes.txt", OX_CORPUS_ROWS, false, "rows: a.json | format: notes.txt"},
    {"a.json={} notes.txt", OX_CORPUS_TEXT, false, "text: a.json notes.txt"},
    {"notes.txt", OX_CORPUS_ROWS, false, "has no files that end in .jsonl, .ndjson or .json and hold rows"},
    {"a.txt b.parquet", OX_CORPUS_AUTO, false, "b.parquet: is a parquet file"},
    {"a.txt test.txt", OX_CORPUS_BYTES, false, "bytes: a.txt | split: test.txt"},
};

static void test_folders(void) {
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const struct folder *const folder = &folders[i];
        char text[1024];
        make_folder("folder", folder->files);
        const struct ox_corpus_config config = {
            .path = test_path("folder"), .format = folder->format, .tokenizer = "t", .evaluates = folder->evaluates};
        const enum ox_status status = describe(&config, text, sizeof text);
        if (status == OX_OK ? strcmp(text, folder->expected) != 0 : strstr(text, folder->expected) == NULL) {
            printf("%s\n  is       %s\n  must be  %s\n", folder->files, text, folder->expected);
            test_failure_count++;
        }
    }
    /* A file that is named is read, whatever it is called. */
    char text[1024];
    make_folder("folder", "test.jsonl _a.txt README.md");
    const char *const named[] = {"folder/test.jsonl", "folder/_a.txt", "folder/README.md"};
    for (size_t i = 0; i < 3; i++) {
        const struct ox_corpus_config config = {.path = test_path(named[i]), .tokenizer = "t"};
        REQUIRE_OK(describe(&config, text, sizeof text));
        CHECK(strstr(text, " | ") == NULL);
    }
}

/* ---- first bytes --------------------------------------------------------------------------------------------- */

static void refuse(const char *name, const void *bytes, size_t count, const char *words) {
    files_write(name, bytes, count);
    const enum ox_status status = ox_foreign_data_check(test_path(name), true);
    if (words == NULL ? status != OX_OK : status != OX_E_CONFIG || strstr(ox_error_text(), words) == NULL) {
        printf("%s must be refused with '%s': %s\n", name, words != NULL ? words : "nothing",
               status == OX_OK ? "it is not" : ox_error_text());
        test_failure_count++;
    }
}

static void test_binary(void) {
    enum { COUNT = 1000 };
    static uint16_t narrow[COUNT], few[COUNT];
    static uint32_t wide[COUNT], small[COUNT];
    static uint64_t words[COUNT];
    static unsigned char noise[2 * COUNT];
    uint32_t state = 1;
    for (size_t i = 0; i < COUNT; i++) {
        state = state * 1664525 + 1013904223;
        const uint32_t rank = state >> 20; /* ids as a text has them: most are small */
        narrow[i] = (uint16_t)(i % 3 != 0 ? rank % 700 : rank * 12 % 50257);
        few[i] = (uint16_t)(rank % 4);
        wide[i] = i % 3 != 0 ? rank % 3000 : rank * 37 % 151643;
        small[i] = rank % 65;
        words[i] = wide[i];
        noise[2 * i] = (unsigned char)(state >> 8);
        noise[2 * i + 1] = (unsigned char)(state >> 16);
    }
    noise[7] = 0;
    refuse("train.bin", narrow, sizeof narrow, "is binary and looks like token ids of 16 bits without a header");
    refuse("train", few, sizeof few, "token ids of 16 bits without a header, of which the first 1000 are up to 3");
    refuse("wide.bin", wide, sizeof wide, "token ids of 32 bits without a header");
    refuse("small.bin", small, sizeof small, "ids of 32 bits without a header, of which the first 1000 are up to 64");
    refuse("words.bin", words, sizeof words, "token ids of 64 bits without a header");
    refuse("noise.bin", noise, sizeof noise, "is binary, with a NUL at byte ");
    refuse("noise.bin", noise, sizeof noise - 1, "or take its bytes for tokens with --data-format bytes");
    refuse("a.txt", "abc\0def", 7, "is binary, with a NUL at byte 3, and no text");
    refuse("a.txt", "a\0b\0\n\0", 6, "is UTF-16 text, which is not read; make UTF-8 of it: iconv -f UTF-16LE");
    refuse("a.txt", "\xff\xfe" "a\0", 4, "is UTF-16 text");
    refuse("a.npy", "\x93NUMPY\1\0", 8, "is a NumPy array");
    refuse("a.txt", "version https://git-lfs.github.com/spec/v1\n", 43, "is a pointer of Git LFS, not the file itself");
    refuse("a.txt", "A text.\n", 8, NULL);
    refuse("a.txt", "", 0, NULL);
    /* A pair of Megatron, by either of its files. */
    char head[34] = "MMIDIDX";
    head[9] = 1;
    head[17] = 8;
    refuse("pair.idx", head, sizeof head, "pair.bin: is the index of a Megatron data set, token ids of 16 bits");
    refuse("pair.bin", "abcd", 4, "pair.bin: is the data of a Megatron data set, token ids of 16 bits without a");
    head[17] = 4;
    refuse("pair.idx", head, sizeof head, "token ids of 32 bits without a header; make a token file of it: python3 -c");
    head[17] = 6;
    refuse("pair.idx", head, sizeof head, "of another kind than token ids");
}

int main(void) {
    test_folders();
    test_binary();
    return test_end();
}
