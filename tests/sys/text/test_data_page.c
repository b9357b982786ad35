/* Every example of docs/data.md is tokenized and trained on, and what is trained of it is what the page says. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <string.h>

enum { TEXT_BYTES = 4096 };

/* An example: lines that are indented by four spaces, without a blank line between them. */
struct example {
    char words[TEXT_BYTES];   /* flags */
    char rows[TEXT_BYTES];    /* JSON lines */
    char trained[TEXT_BYTES]; /* what is trained, a line each */
};

static struct sys_args args;
static struct sys_process process;
static const char *model_path;

static void add_line(char *text, const char *line, size_t bytes) {
    const size_t used = strlen(text);
    CHECK(used + bytes + 2 < TEXT_BYTES);
    snprintf(text + used, TEXT_BYTES - used, "%.*s\n", (int)bytes, line);
}

static void begin(const char *command, const struct example *example) {
    char words[TEXT_BYTES];
    snprintf(words, sizeof words, "%s", example->words);
    words[strcspn(words, "\n")] = '\0';
    sys_args_begin(&args, command);
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--data=%s", files_write_text("rows.jsonl", example->rows));
    sys_args_add(&args, "--max-seq-length 256 --packing pad --data-order sequential");
    sys_args_add(&args, words);
}

/* Collects the lines `    trained  "..."` of what is shown. */
static void collect(const char *out, char *trained) {
    static const char mark[] = "    trained  \"";
    trained[0] = '\0';
    for (const char *at = strstr(out, mark); at != NULL; at = strstr(at, mark)) {
        at += sizeof mark - 1;
        const size_t bytes = strcspn(at, "\n");
        add_line(trained, at, bytes > 0 ? bytes - 1 : 0);
    }
}

static void try_example(const struct example *example) {
    char trained[TEXT_BYTES];
    begin("tokenize", example);
    sys_args_add(&args, "--show --max-windows 99");
    sys_run(&args, &process);
    collect(process.outcome.out, trained);
    if (process.outcome.exit_status != 0 || !sys_same_text("what is trained", example->trained, trained)) {
        printf("  of %s%s%s\n", example->words, example->rows, process.outcome.err);
        test_failure_count++;
    }
    begin("train", example);
    sys_args_word(&args, "--output=%s", test_path("run"));
    sys_args_add(&args, "--from-scratch --max-steps 1 --eval-fraction 0 --compute-threads 1 --host-mem 64MiB --quiet");
    sys_run(&args, &process);
    if (process.outcome.exit_status != 0) {
        printf("  not trained: %s%s\n", example->rows, process.outcome.err);
        test_failure_count++;
    }
    files_remove_folder("run");
}

int main(void) {
    static struct example example;
    char *const folder = realpath("docs", NULL); /* tests run in the root of the sources */
    char *const page = files_read(plain_pathf("%s/data.md", folder), NULL);
    unsigned count = 0;
    model_path = sys_write_speaker();
    for (const char *line = page; *line != '\0'; line += strcspn(line, "\n") + 1) {
        const size_t bytes = strcspn(line, "\n");
        if (bytes > 4 && strncmp(line, "    --", 6) == 0) {
            add_line(example.words, line + 4, bytes - 4);
        } else if (bytes > 4 && strncmp(line, "    {", 5) == 0) {
            add_line(example.rows, line + 4, bytes - 4);
        } else if (bytes > 4 && strncmp(line, "    trained: ", 13) == 0) {
            add_line(example.trained, line + 13, bytes - 13);
        } else if (example.rows[0] != '\0') {
            try_example(&example);
            example = (struct example){.words = ""};
            count++;
        }
        if (line[bytes] == '\0') {
            break;
        }
    }
    if (example.rows[0] != '\0') {
        try_example(&example);
        count++;
    }
    CHECK(count >= 14);
    free(folder);
    free(page);
    return test_end();
}
