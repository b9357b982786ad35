/* `offload plan --mesh auto` for a model of 8 billion parameters: a pipeline where GPUs do not reach each other and a
 * step is short, data ranks where links between them are fast; and the best of every other kind beside it, with the
 * reason in words; of data ranks the same for what they divide. The sum groups that are given limit the data ranks. A
 * small model on fast links has data ranks, a mixture without them a pipeline. No GPU is needed. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <string.h>

static const char config_text[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 128256, \"hidden_size\": 4096, \"intermediate_size\": 14336,"
    " \"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"
    " \"max_position_embeddings\": 8192, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5}";

static const char small_text[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 32000, \"hidden_size\": 2048, \"intermediate_size\": 5632,"
    " \"num_hidden_layers\": 4, \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"
    " \"max_position_embeddings\": 8192, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5}";
static const char mixture_text[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 32000, \"hidden_size\": 2048, \"num_hidden_layers\": 12,"
    " \"num_attention_heads\": 16, \"num_key_value_heads\": 4, \"head_dim\": 128, \"num_experts\": 32,"
    " \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 768, \"intermediate_size\": 6144,"
    " \"norm_topk_prob\": true, \"max_position_embeddings\": 8192, \"tie_word_embeddings\": false}";

enum { KINDS = 5 };
static const char *const kinds[KINDS] = {"data", "vertical", "gpipe", "1f1b", "interleaved"};

static struct sys_args args;
static struct sys_process process;

static void check(const char *config_path, const char *words, const char *chosen) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_add(&args, "--device cuda --dtype bf16 --max-steps 9 --mesh auto");
    sys_args_add(&args, strstr(words, "--ranks") != NULL ? "" : "--ranks 4");
    sys_args_add(&args, words);
    sys_run(&args, &process);
    const char *said = strstr(process.outcome.err, "--mesh auto: takes ");
    said = said != NULL ? said : strstr(process.outcome.out, "--mesh auto: takes ");
    CHECK(process.outcome.exit_status == 0 && said != NULL);
    if (said == NULL) {
        printf("%s: status %d\n%s%s\n", words, process.outcome.exit_status, process.outcome.out, process.outcome.err);
        return;
    }
    printf("%.*s\n", (int)strcspn(said, "\n"), said);
    CHECK(strncmp(said + strlen("--mesh auto: takes "), chosen, strlen(chosen)) == 0);
    const bool all = strstr(words, "--sum-groups") == NULL;
    for (int i = 0; i < KINDS && all; i++) { /* the best of each beside it, in the log and in the table of the plan */
        CHECK(strstr(said, kinds[i]) != NULL && strstr(process.outcome.out, kinds[i]) != NULL);
    }
    CHECK(!all || strstr(said, " at its limit for ") != NULL);
    const char *const table = strstr(process.outcome.out, "the best mesh of every kind");
    CHECK(table != NULL && strstr(table, "(taken)") != NULL);
    printf("%.*s\n", table == NULL ? 0 : 480, table);
}

/* What the data ranks of the last mesh divide: each way with its time, and what binds the one that was taken. */
static void check_division(const char *chosen, const char *const ways[], int count) {
    const char *said = strstr(process.outcome.err, "--sharding auto: takes ");
    said = said != NULL ? said : strstr(process.outcome.out, "--sharding auto: takes ");
    CHECK(said != NULL);
    if (said == NULL) {
        return;
    }
    printf("%.*s\n", (int)strcspn(said, "\n"), said);
    CHECK(strncmp(said + strlen("--sharding auto: takes "), chosen, strlen(chosen)) == 0);
    for (int i = 0; i < count; i++) {
        CHECK(strstr(said, ways[i]) != NULL);
    }
    CHECK(strstr(said, " at its limit for ") != NULL);
}

int main(void) {
    const char *const config_path = files_write_text("8b.json", config_text);
    check(config_path, "--profile docs/profiles/rtx4090-x4-4-drives.json --device-mem 22GiB --host-mem 400GiB "
          "--max-seq-length 2048 --batch-size 1 --gradient-accumulation-steps 8", "dp=1,pp=4,");
    check(config_path, "--profile docs/profiles/h200-4-drives.json --device-mem 130GiB --host-mem 1000GiB "
          "--max-seq-length 4096 --batch-size 1 --gradient-accumulation-steps 16", "dp=4,pp=1,");
    static const char *const ways[] = {" full_shard ", " shard_grad_op ", " zero2 ", " shared ", " hybrid_shard ",
                                       " hybrid_shard_zero2 ", " no_shard "};
    check_division("full_shard,", ways, 7);
    check(config_path, "--profile docs/profiles/h200-4-drives.json --device-mem 130GiB --host-mem 1000GiB "
          "--max-seq-length 4096 --batch-size 1 --gradient-accumulation-steps 16 --sum-groups 1 "
          "--pipeline-schedule vertical", "dp=1,pp=4,"); /* one group leaves no second data rank */
    check(files_write_text("small.json", small_text), "--profile docs/profiles/h100-x8-4-drives.json "
          "--max-seq-length 2048 --batch-size 1 --gradient-accumulation-steps 16", "dp=4,pp=1, data");
    check(files_write_text("mixture.json", mixture_text), "--profile docs/profiles/rtx4090-x4-4-drives.json "
          "--device-mem 22GiB --host-mem 100GiB --max-seq-length 2048 --batch-size 1 --gradient-accumulation-steps 8 "
          "--experts-per-unit all", "dp=1,pp=4, vertical");
    if (test_all()) {
        check(config_path, "--ranks 2 --profile docs/profiles/rtx4090-x4-4-drives.json --device-mem 22GiB "
              "--host-mem 400GiB --max-seq-length 2048 --batch-size 1 --gradient-accumulation-steps 8",
              "dp=1,pp=2, vertical");
    }
    return test_end();
}
