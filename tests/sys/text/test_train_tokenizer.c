/* From scratch: `offload tokenize --train` makes a tokenizer of texts, rows and several files, `offload init` a model,
 * and they train; what is missing or does not fit is an error with the remedy. Merges are compared in
 * tests/unit/engine/vocab/test_bpe_train.c, shapes in tests/unit/engine/hf/test_shapes.c. */
#include "base/bytes.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

static struct sys_args args;
static struct sys_process process;

static void check_command(const char *command, const char *words, int status, const char *out, const char *err) {
    sys_args_begin(&args, command);
    sys_args_add(&args, words);
    sys_run(&args, &process);
    if (process.outcome.exit_status != status || strstr(process.outcome.out, out) == NULL || !sys_said(&process, err)) {
        sys_complain(&process, words);
    }
}

static void check(const char *words, int status, const char *out, const char *err) {
    check_command("tokenize", words, status, out, err);
}

static void test_forms(void) {
    const char *const text = files_write_text("a.txt", "the cat the cat the cat\n");
    const char *const rows = files_write_text(
        "b.jsonl", "{\"text\":\"the cat\"}\n{\"prompt\":\"the cat\",\"completion\":\" the cat\"}\n"
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"the cat\"},"
                   "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"the cat\"}]}]}\n");
    const char *const folder = test_path("tokenizer");
    /* One document, one row of text, two of a completion, two of messages. */
    check(plain_pathf("--train %s %s --vocab-size 260 --output %s --format json", text, rows, folder), 0,
          "{\"vocab\":260,\"texts\":6,\"bytes\":60,", "");
    check(plain_pathf("--train %s --vocab-size 260 --output %s", text, folder), 2, "", 
          "tokenizer.json: is there already");
    check(plain_pathf("--model %s --data %s --jsonl", folder, rows), 2, "", "the line has no string \"text\"");
    check(plain_pathf("--model %s --data %s --output %s", folder, text, test_path("ids.bin")), 0, "24 bytes", "");
}

static void test_errors(void) {
    const char *const text = files_write_text("c.txt", "one two");
    const char *const bad = files_write("d.txt", "one \xff", 5);
    check(plain_pathf("--train %s --output x", text), 2, "", "--vocab-size is missing");
    check(plain_pathf("--train %s --vocab-size 300", text), 2, "", "--output is missing");
    check("--vocab-size 300 --output x", 2, "", "--train is missing");
    check(plain_pathf("--train %s --vocab-size 200 --output %s", text, test_path("e")), 2, "", "give at least 257");
    check(plain_pathf("--train %s --vocab-size 300 --output %s", bad, test_path("e")), 1, "",
          "d.txt: is not UTF-8 text at byte 4");
    check(plain_pathf("--train %s --vocab-size 300 --output %s", text, test_path("e")), 0, "",
          "no more pairs to merge");
    CHECK(files_exist("e/tokenizer.json"));
}

/* Different words take memory; too many for the budget are an error that names it, and nothing is written. */
static void test_memory(void) {
    enum { BYTES = 64 << 20, WORD_BYTES = 8 };
    char *const text = malloc(BYTES);
    CHECK(text != NULL);
    for (uint32_t i = 0; i < BYTES / WORD_BYTES; i++) {
        for (uint32_t k = 0, rest = i * UINT32_C(2654435761); k < WORD_BYTES - 1; k++, rest /= 26) {
            text[i * WORD_BYTES + k] = (char)('a' + rest % 26);
        }
        text[i * WORD_BYTES + WORD_BYTES - 1] = '\n';
    }
    const char *const path = files_write("words.txt", text, BYTES);
    free(text);
    check(plain_pathf("--train %s --vocab-size 300 --host-mem 64MiB --output %s", path, test_path("f")), 2, "",
          "--host-mem");
    CHECK(!files_exist("f"));
}

/* A tokenizer, a model of its vocabulary, and two steps of training. */
static void test_from_scratch(void) {
    const char *const text = files_write_text("s.txt", "the cat sat on the mat and the rat sat on the cat\n");
    const char *const tokenizer = test_path("s-tokenizer"), *const model = test_path("s-model");
    check(plain_pathf("--train %s --vocab-size 270 --output %s", text, tokenizer), 0, "270 tokens", "");
    check_command("init", plain_pathf("--params 300K --tokenizer %s --output %s", tokenizer, model), 0,
                  "llama, 2", "");
    check_command("init", plain_pathf("--params 300K --tokenizer %s --output %s", tokenizer, model), 2, "",
                  "config.json: is there already");
    char *const config = files_read("s-model/config.json", NULL);
    CHECK(strstr(config, "\"vocab_size\": 320") != NULL && strstr(config, "\"eos_token_id\": 0") != NULL);
    free(config);
    check_command("train", plain_pathf("--model %s --from-scratch --data %s --output %s --max-steps 2 --seq-len 4 "
                                       "--eval-fraction 0 --compute-threads 1 --device-mem 64MiB --host-mem 64MiB",
                                       model, text, test_path("s-run")), 0, "", "step 2/2");
    CHECK(files_exist("s-run/checkpoint-2/tokenizer.json"));
    check_command("init", plain_pathf("--params 12X --output %s", test_path("t")), 2, "", "'12X' is no number");
    check_command("init", plain_pathf("--like llama-9b --output %s", test_path("t")), 2, "", "qwen3-8b");
    check_command("init", plain_pathf("--params 1M --vocab-size 9 --tokenizer %s --output %s", tokenizer,
                                      test_path("t")), 2, "", "less than the 270 tokens");
    check_command("init", "--params 1M", 2, "", "--output is missing");
    check_command("init", plain_pathf("--output %s", test_path("t")), 2, "",
                  "--params is missing; give the size of the llama, such as --params 100M");
    check(plain_pathf("--train %s --vocab-size 270 --output %s --special-tokens <s>,</s>,pad=<p>", text,
                      test_path("roles")), 0, "270 tokens",
          "special tokens: <s> ends documents (eos), </s>, <p> pads (pad)");
    const char *const tagged = files_write_text("tagged.txt", "<|im_start|>user<|im_end|><|im_start|>a <| b|> <|c\n|>"
                                                              "<|endoftext|>");
    check(plain_pathf("--train %s --vocab-size 270 --output %s", tagged, test_path("tags")), 0, "tokens",
          "the texts spell <|im_start|>, 2 times, which is no special token here");
    check_command("plan", "--model llama-3.2-1b --seq-len 512 --device-mem 8GiB --host-mem 64GiB", 0, "1.236 B", "");
    check_command("train", plain_pathf("--model llama-3.2-1b --data %s --output %s", text, test_path("t")), 2, "",
                  "offload init --like llama-3.2-1b");
    CHECK(!files_exist("t"));
}

int main(void) {
    test_forms();
    test_from_scratch();
    test_errors();
    test_memory();
    return test_end();
}
