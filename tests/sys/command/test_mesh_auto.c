/* `offload plan --mesh auto` for a model of 8 billion parameters: a pipeline where GPUs do not reach each other and a
 * step is short, data ranks where links between them are fast; and the best of every other kind beside it, with the
 * reason in words. The sum groups that are given limit the data ranks. No GPU is needed. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <string.h>

static const char config_text[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 128256, \"hidden_size\": 4096, \"intermediate_size\": 14336,"
    " \"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"
    " \"max_position_embeddings\": 8192, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5}";

enum { KINDS = 5 };
static const char *const kinds[KINDS] = {"data", "vertical", "gpipe", "1f1b", "interleaved"};

static struct sys_args args;
static struct sys_process process;

static void check(const char *config_path, const char *words, const char *chosen) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_add(&args, "--device cuda --dtype bf16 --max-steps 9 --ranks 4 --mesh auto");
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

int main(void) {
    const char *const config_path = files_write_text("8b.json", config_text);
    check(config_path, "--profile docs/profiles/rtx4090-x4-4-drives.json --device-mem 22GiB --host-mem 400GiB "
          "--max-seq-length 2048 --batch-size 1 --gradient-accumulation-steps 8", "dp=1,pp=4,");
    check(config_path, "--profile docs/profiles/h200-4-drives.json --device-mem 130GiB --host-mem 1000GiB "
          "--max-seq-length 4096 --batch-size 1 --gradient-accumulation-steps 16", "dp=4,pp=1,");
    check(config_path, "--profile docs/profiles/h200-4-drives.json --device-mem 130GiB --host-mem 1000GiB "
          "--max-seq-length 4096 --batch-size 1 --gradient-accumulation-steps 16 --sum-groups 1 "
          "--pipeline-schedule vertical", "dp=1,pp=4,"); /* one group leaves no second data rank */
    return test_end();
}
