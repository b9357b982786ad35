/* The command that the error about a table or an archive names makes rows that are then read; compressed rows are read
 * as they are. */
#include "engine/data/data.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sys_args args;
static struct sys_process process;
static const char *model_path;

static const char rows[] = "{\"prompt\": \"Q: a\", \"completion\": \" the b\"}\n";

/* Runs a line of the shell in the test's folder; whether it ended well. */
static bool in_folder(const char *line) {
    int result = -1;
    const pid_t pid = fork();
    if (pid == 0) {
        if (chdir(test_folder()) == 0) {
            execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        }
        _exit(127);
    }
    return pid > 0 && waitpid(pid, &result, 0) == pid && WIFEXITED(result) && WEXITSTATUS(result) == 0;
}

static void show(const char *data) {
    sys_args_begin(&args, "tokenize");
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--data=%s", data);
    sys_args_add(&args, "--show --max-seq-length 16 --packing pad");
    sys_run(&args, &process);
}

/* Makes `file` by a command, which must be refused; runs the command of the error, which makes `result`. */
static void test_remedy(const char *make, const char *file, const char *result) {
    static const char words[] = "make JSON lines or text of it: ";
    printf("%s\n", file);
    if (!in_folder(make)) {
        printf("  left out: `%s` fails\n", make);
        return;
    }
    show(test_path(file));
    CHECK(process.outcome.exit_status == 2);
    char *const command = strstr(process.outcome.err, words);
    CHECK(command != NULL);
    if (command == NULL) {
        return;
    }
    command[strcspn(command, "\n")] = '\0';
    CHECK(in_folder(command + strlen(words)));
    show(test_path(result));
    CHECK(process.outcome.exit_status == 0);
    CHECK(strstr(process.outcome.out, "trained  \" the b<|endoftext|>\"") != NULL);
    remove(test_path(result));
}

/* Reads what a tool has packed as it is, also in a text, and names the place where it is cut. */
static void test_packed(const char *command, const char *packed) {
    printf("%s\n", packed);
    if (!in_folder(command)) {
        printf("  left out: `%s` fails\n", command);
        return;
    }
    show(test_path(packed));
    CHECK(process.outcome.exit_status == 0);
    CHECK(strstr(process.outcome.out, "trained  \" the b<|endoftext|>\"") != NULL);
    size_t bytes = 0;
    char *const data = files_read(packed, &bytes);
    files_write(packed, data, bytes - 9);
    show(test_path(packed));
    CHECK(process.outcome.exit_status == 1 && sys_said(&process, packed));
    CHECK(sys_said(&process, "cannot be unpacked at"));
    free(data);
    remove(test_path(packed));
}

/* Runs the command of the error about ids of `id_bytes` each, and reads the token file that it makes. */
static void test_ids(const char *file, const void *bytes, size_t count, unsigned id_bytes) {
    static const char words[] = "make a token file of it: ";
    int32_t tokens[64] = {0};
    struct ox_data *data = NULL;
    printf("%s\n", file);
    files_write(file, bytes, count * id_bytes);
    show(test_path(file));
    CHECK(process.outcome.exit_status == 2);
    char *const command = strstr(process.outcome.err, words);
    CHECK(command != NULL);
    if (command == NULL) {
        return;
    }
    command[strcspn(command, "\n")] = '\0';
    CHECK(in_folder(command + strlen(words)));
    REQUIRE_OK(ox_data_open(test_path("tokens.bin"), OX_DATA_AUTO, &data));
    CHECK(ox_data_kind_of(data) == OX_DATA_LLMC && ox_data_token_count(data) == count);
    REQUIRE_OK(ox_data_read(data, 0, count, 1 << 18, tokens, NULL));
    for (size_t i = 0; i < count; i++) {
        uint64_t id = 0;
        memcpy(&id, (const char *)bytes + i * id_bytes, id_bytes); /* little-endian */
        CHECK(tokens[i] == (int32_t)id);
    }
    ox_data_close(&data);
    remove(test_path("tokens.bin"));
    remove(test_path(file));
}

static void test_token_ids(void) {
    static const uint16_t narrow[] = {5, 300, 2, 50000, 1, 0, 7, 8, 9, 10};
    static const uint32_t wide[] = {5, 300, 2, 150000, 1, 0, 7, 8, 9, 10};
    static const uint64_t words[] = {5, 300, 2, 150000, 1, 0, 7, 8, 9, 10};
    static const char index[34] = {"MMIDIDX\0\0\1\0\0\0\0\0\0\0\4"};
    test_ids("narrow.bin", narrow, 10, 2);
    test_ids("wide.bin", wide, 10, 4);
    test_ids("words.bin", words, 10, 8);
    files_write("pair.idx", index, sizeof index);
    test_ids("pair.bin", wide, 10, 4);
}

/* What begins like JSON is rows only by its name: another file with a NUL is binary, of rows the line is named. */
static void test_braces(void) {
    static const char *const cases[][2] = {{"braces.txt", "braces.txt: is binary, with a NUL at byte 2,"},
                                           {"braces.jsonl", "braces.jsonl:1:"}};
    char bytes[4096];
    memset(bytes, 'b', sizeof bytes);
    memcpy(bytes, "{a\0b}\n", 6); /* a text but for the NUL, of which no other check finds fault */
    for (int i = 0; i < 2; i++) {
        files_write(cases[i][0], bytes, sizeof bytes);
        show(test_path(cases[i][0]));
        CHECK(process.outcome.exit_status != 0 && sys_said(&process, cases[i][1]));
    }
}

int main(void) {
    model_path = sys_write_speaker();
    files_write_text("table.csv", "prompt,completion\n\"Q: a\",\" the b\"\n");
    test_remedy("true", "table.csv", "rows.jsonl");
    files_write_text("table.tsv", "prompt\tcompletion\nQ: a\t the b\n");
    test_remedy("true", "table.tsv", "rows.jsonl");
    files_write_text("some.jsonl", rows);
    test_packed("gzip some.jsonl", "some.jsonl.gz");
    files_write_text("some.jsonl", rows);
    test_remedy("bzip2 some.jsonl", "some.jsonl.bz2", "some.jsonl");
    files_write_text("some.jsonl", rows);
    test_packed("xz some.jsonl", "some.jsonl.xz");
    files_write_text("some.jsonl", rows);
    test_packed("zstd -q --rm some.jsonl", "some.jsonl.zst");
    files_write_text("some.jsonl", rows);
    test_remedy("zip -q all.zip some.jsonl", "all.zip", "data/some.jsonl");
    files_remove_folder("data");
    test_remedy("tar -cf all.tar some.jsonl", "all.tar", "data/some.jsonl");
    test_token_ids();
    test_braces();
    return test_end();
}
