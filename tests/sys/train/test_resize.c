/* --resize-embeddings: a model that gets rows for tokens that were added to its tokenizer, tied and not; the rows that
 * were there stay, the new ones are their mean or fresh, and the run goes on with them. */
#include "engine/hf/hf.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 270 };

static struct sys_args args;
static struct sys_process process;
static const char *text_path, *plain_path;

static void run(const char *command, const char *words, int status, const char *says) {
    sys_args_begin(&args, command);
    sys_args_add(&args, words);
    sys_run(&args, &process);
    if (process.outcome.exit_status != status || !sys_said(&process, says)) {
        sys_complain(&process, words);
    }
}

static const char *train_words(const char *model, const char *data, const char *output, const char *more) {
    return plain_pathf("--model %s --data %s --output %s --seq-len 4 --eval-fraction 0 --compute-threads 1 "
                       "--save-dtype fp32 --learning-rate 1e-9 --weight-decay 0 --device-mem 64MiB --host-mem 64MiB %s",
                       model, data, test_path(output), more);
}

/* A model of VOCAB tokens with weights, whose tokenizer gets one token more. */
static const char *make_model(const char *name, bool tied) {
    const char *const tokenizer = test_pathf("%s-tokenizer", name), *const config = test_pathf("%s-config", name);
    run("tokenize", plain_pathf("--train %s --vocab-size %d --output %s", plain_path, VOCAB, tokenizer), 0, "");
    run("init", plain_pathf("--params 265K --vocab-size %d --tokenizer %s --output %s", VOCAB, tokenizer, config), 0,
        "");
    if (!tied) {
        files_replace_text(plain_pathf("%s/config.json", config), "\"tie_word_embeddings\": true",
                           "\"tie_word_embeddings\": false");
    }
    run("train", train_words(config, plain_path, plain_pathf("%s-first", name), "--from-scratch --max-steps 1"), 0, "");
    const char *const model = test_pathf("%s-model", name);
    run("export", plain_pathf("--model %s --output %s", test_pathf("%s-first/checkpoint-1", name), model), 0, "");
    files_replace_text(plain_pathf("%s/tokenizer.json", model), "\"added_tokens\": [",
                       "\"added_tokens\": [{\"id\": 270, \"content\": \"<|new|>\", \"special\": true, "
                       "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"single_word\": false},");
    return model;
}

/* Compares a table before and after: rows that were there are as near as a tiny step leaves them, and the new one is
 * their mean, or with `fresh` not. */
static void check_table(const struct ox_hf_folder *before, const struct ox_hf_folder *after, uint32_t idx, bool fresh) {
    const uint64_t width = ox_hf_model(before)->tensors[idx].shape[1];
    float *const old = malloc(VOCAB * width * sizeof *old), *const now = malloc((VOCAB + 1) * width * sizeof *now);
    REQUIRE_OK(ox_hf_read(before, idx, 0, VOCAB * width, old));
    REQUIRE_OK(ox_hf_read(after, idx, 0, (VOCAB + 1) * width, now));
    double moved = 0, off = 0, size = 0;
    for (uint64_t i = 0; i < VOCAB * width; i++) {
        moved = fmax(moved, fabs((double)now[i] - (double)old[i]));
    }
    for (uint64_t k = 0; k < width; k++) {
        double mean = 0;
        for (uint64_t row = 0; row < VOCAB; row++) {
            mean += (double)old[row * width + k] / VOCAB;
        }
        off = fmax(off, fabs((double)now[VOCAB * width + k] - mean));
        size = fmax(size, fabs((double)now[VOCAB * width + k]));
    }
    CHECK(moved < 1e-7);
    CHECK(fresh ? off > 1e-3 && size < 1 : off < 1e-7);
    free(old);
    free(now);
}

static void check_checkpoint(const char *model, const char *checkpoint, bool tied, bool fresh) {
    struct ox_hf_folder *before = NULL, *after = NULL;
    unsigned tables = 0;
    REQUIRE_OK(ox_hf_open(model, true, &before));
    REQUIRE_OK(ox_hf_open(test_path(checkpoint), true, &after));
    CHECK(ox_hf_model(after)->config.vocab == VOCAB + 1 && ox_hf_model(after)->config.tied == tied);
    for (uint32_t i = 0; i < ox_hf_model(before)->tensor_count; i++) {
        if (ox_hf_model(before)->tensors[i].count != ox_hf_model(after)->tensors[i].count) {
            check_table(before, after, i, fresh);
            tables++;
        }
    }
    CHECK(tables == (tied ? 1 : 2));
    ox_hf_close(&before);
    ox_hf_close(&after);
}

static void test_model(const char *name, bool tied) {
    const char *const model = make_model(name, tied);
    run("train", train_words(model, text_path, "refused", "--max-steps 1"), 2, "--resize-embeddings mean");
    run("train", train_words(model, text_path, "mean", "--max-steps 1 --resize-embeddings mean"), 0,
        "embeddings: 1 rows are added to 270, each the mean of all rows");
    check_checkpoint(model, "mean/checkpoint-1", tied, false);
    run("train", train_words(model, text_path, "mean", "--max-steps 2 --resize-embeddings mean --resume latest"), 0,
        "");
    check_checkpoint(model, "mean/checkpoint-2", tied, false);
    /* What was saved is a model of its own, with room for the token. */
    run("train", train_words(test_path("mean/checkpoint-2"), text_path, "more",
                             "--max-steps 1 --resize-embeddings mean"), 0, "nothing is resized");
    run("train", train_words(model, text_path, "fresh", "--max-steps 1 --resize-embeddings fresh"), 0,
        "with fresh values");
    check_checkpoint(model, "fresh/checkpoint-1", tied, true);
    /* What is frozen stays so, and the table, which now has rows in another format, is kept whole. */
    run("train", train_words(model, text_path, "frozen", "--max-steps 1 --resize-embeddings mean --freeze layers.0"), 0,
        "trained; frozen are ");
    files_remove_folder("frozen");
    files_remove_folder("mean");
    files_remove_folder("more");
    files_remove_folder("fresh");
}

int main(void) {
    plain_path = files_write_text("plain.txt", "the cat sat on the mat and the rat sat on the cat\n");
    text_path = files_write_text("text.txt", "the cat sat on<|new|> the mat and the rat sat on the cat\n");
    test_model("tied", true);
    test_model("untied", false);
    return test_end();
}
