/* `offload plan --mesh auto` for a model of 8 billion parameters: a pipeline where GPUs do not reach each other and a
 * step is short, data ranks where links between them are fast; and what the others would take. No GPU is needed. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <string.h>

static const char config_text[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 128256, \"hidden_size\": 4096, \"intermediate_size\": 14336,"
    " \"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"
    " \"max_position_embeddings\": 8192, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5}";

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
    CHECK(strstr(said, "dp=4,pp=1 ") != NULL && strstr(said, "dp=2,pp=2 ") != NULL &&
          strstr(said, "dp=1,pp=4 ") != NULL);
}

int main(void) {
    const char *const config_path = files_write_text("8b.json", config_text);
    check(config_path, "--profile docs/profiles/rtx4090-x4-4-drives.json --device-mem 22GiB --host-mem 400GiB "
          "--max-seq-length 2048 --batch-size 1 --gradient-accumulation-steps 8", "dp=1,pp=4,");
    check(config_path, "--profile docs/profiles/h200-4-drives.json --device-mem 130GiB --host-mem 1000GiB "
          "--max-seq-length 4096 --batch-size 1 --gradient-accumulation-steps 16", "dp=4,pp=1,");
    return test_end();
}
