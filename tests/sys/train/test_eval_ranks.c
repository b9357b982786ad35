/* `offload eval --ranks N` prints the figures of one rank, bit for bit: for every number of ranks and whatever they
 * divide, for texts whose windows they cannot divide evenly, and with the micro-batches of a run's configuration. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <string.h>

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *texts[2];

static void begin(const char *words) {
    sys_args_begin(&args, "eval");
    sys_args_word(&args, "--model=%s", model_path);
    for (int i = 0; i < 2; i++) {
        sys_args_word(&args, "--data=%s", texts[i]);
    }
    sys_args_add(&args, "--max-seq-length 16 --per-device-train-batch-size 2 --chunk-elems 2048 --format json");
    sys_args_add(&args, words);
}

/* Trains a model for a step, and returns its folder. */
static const char *make_model(const char *config, const char *family) {
    sys_args_train(&args, config, texts[0], family);
    sys_args_add(&args, "--max-steps 1 --max-seq-length 16 --save-steps 1 --eval-steps 0 --quiet --host-mem 256MiB");
    sys_run_well(&args, &process);
    return test_pathf("%s/checkpoint-1", family);
}

static char *figures(const char *words) {
    begin(words);
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "\"mean_nll\":") != NULL);
    return strdup(process.outcome.out);
}

static void same(const char *expected, const char *words) {
    char *const found = figures(words);
    CHECK(sys_same_text(words, expected, found));
    free(found);
}

static void test_family(const char *family) {
    static const char *const shardings[] = {"auto", "full_shard", "shard_grad_op", "zero2", "zero1", "no_shard",
                                            "shared"};
    char words[256];
    model_path = make_model(sys_write_model(family), family);
    char *const all = figures("--ranks 1 --compute-threads 1"), *const some = figures("--max-windows 11");
    for (int ranks = 2; ranks <= 4; ranks++) {
        for (unsigned i = 0; i < sizeof shardings / sizeof *shardings; i++) {
            snprintf(words, sizeof words, "--compute-threads 1 --ranks %d --sharding %s%s", ranks, shardings[i],
                     i % 2 == 0 ? "" : " --max-windows 11");
            same(i % 2 == 0 ? all : some, words);
        }
    }
    same(all, "--ranks 7 --compute-threads 1 --chaos-seed 5");
    free(all);
    free(some);
}

/* Losses of four micro-batches are added before those of the next four, however many the ranks take at a time. */
static void test_groups(void) {
    char words[SYS_PATH_BYTES];
    const char *const config = files_write_text("groups.yaml", "gradient_accumulation_steps: 4\n");
    snprintf(words, sizeof words, "--config %s", config);
    char *const one = figures(words);
    for (int ranks = 3; ranks <= 7; ranks += 2) {
        snprintf(words, sizeof words, "--config %s --compute-threads 1 --ranks %d", config, ranks);
        same(one, words);
    }
    free(one);
}

/* Left to choose, ranks have copies where these fit, else slices: here of many blocks, most of which they leave out. */
static void test_copies(void) {
    model_path = make_model(files_write_text("deep.json",
        "{\"model_type\": \"llama\", \"vocab_size\": 256, \"hidden_size\": 64, \"intermediate_size\": 256,"
        " \"num_hidden_layers\": 12, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"rms_norm_eps\": 1e-5,"
        " \"max_position_embeddings\": 64, \"tie_word_embeddings\": true}\n"), "deep");
    for (unsigned kib = 1024; kib < 65536; kib += 256) {
        char words[128];
        snprintf(words, sizeof words, "--ranks 2 --compute-threads 1 --host-mem %uKiB --sharding full_shard", kib);
        begin(words);
        sys_run(&args, &process);
        if (process.outcome.exit_status != 0) {
            continue;
        }
        snprintf(words, sizeof words, "--ranks 2 --compute-threads 1 --host-mem %uKiB --sharding no_shard", kib);
        begin(words);
        sys_run(&args, &process);
        CHECK(process.outcome.exit_status == 2 && strstr(process.outcome.err, "--host-mem") != NULL);
        snprintf(words, sizeof words, "--ranks 2 --compute-threads 1 --host-mem %uKiB", kib);
        begin(words);
        sys_run(&args, &process);
        CHECK(process.outcome.exit_status == 0);
        return;
    }
    CHECK(!"no memory is enough");
}

int main(void) {
    texts[0] = strdup(sys_write_text(3000));
    texts[1] = strdup(files_write_text("short.txt", "A short text, which leaves most ranks without work.\n"));
    test_family("llama");
    test_groups();
    test_copies();
    test_family("gpt2");
    static const char *const refused[][2] = { /* an evaluation chooses no mesh, and keeps given sizes */
        {"--compute-threads 1 --mesh auto --ranks 9 --pipeline-parallel-size 9",
         "--pipeline-parallel-size 9: the model has "},
        {"--compute-threads 1 --mesh dp=3,cp=2", "--mesh cp=2: beside ranks or groups that divide rows an evaluation "
         "needs a power of two of data ranks, and there are 3; give dp=2"}};
    for (int i = 0; i < 2; i++) {
        begin(refused[i][0]);
        sys_run(&args, &process);
        CHECK(process.outcome.exit_status == 2 && sys_said(&process, refused[i][1]));
    }
    begin("--ranks 65");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && strstr(process.outcome.err, "--ranks") != NULL);
    return test_end();
}
