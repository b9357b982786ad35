/* Small models on several ranks: a run that begins chooses chunks by which the ranks divide the model, records them and
 * keeps them; the files are those of one rank. A run that has other chunks is told what they cost. */
#include "base/file.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <string.h>

enum { STEPS = 4, TEXT_BYTES_MAX = 1 << 20 };

static struct sys_args args;
static struct sys_process process;
static const char *config, *text;

static void train(const char *name, const char *words) {
    char drive[64];
    snprintf(drive, sizeof drive, "%s-drive", name);
    sys_args_train(&args, config, text, name);
    sys_args_add(&args, "--data-format bytes --max-seq-length 16 --global-batch-size 4 --sum-groups 4 "
                        "--host-mem 128MiB "
                        "--compute-threads 1 --optimizer-threads 1 --lr-scheduler-type constant --state-tier nvme "
                        "--save-steps 2 --eval-steps 0");
    sys_args_drive(&args, drive, "64MiB");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
}

/* The chunks that a run recorded. */
static unsigned recorded(const char *name) {
    char *yaml = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(test_pathf("%s/config.resolved.yaml", name), TEXT_BYTES_MAX, &yaml, &bytes));
    const long chunk = sys_number_after(yaml, "chunk_elems: ", 0);
    free(yaml);
    return (unsigned)chunk;
}

static bool told(const char *name, const char *words) {
    char *plan = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(test_pathf("%s/plan.txt", name), TEXT_BYTES_MAX, &plan, &bytes));
    const bool found = strstr(plan, words) != NULL;
    free(plan);
    return found;
}

int main(void) {
    static const char uneven[] = " times its part of the model";
    config = files_write_text("small.json",
        "{\"model_type\": \"llama\", \"vocab_size\": 1024, \"hidden_size\": 128, \"intermediate_size\": 384,"
        " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"rms_norm_eps\": 1e-5,"
        " \"max_position_embeddings\": 64, \"tie_word_embeddings\": true}\n");
    text = sys_write_text(4000);
    train("one", "--max-steps 4");
    train("four", "--max-steps 4 --ranks 4");
    CHECK(recorded("one") == 262144 && recorded("four") == 65536);
    CHECK(!told("one", uneven) && told("four", "rank 0 has 1."));
    CHECK(sys_same_runs("one", "four", STEPS));
    train("given", "--max-steps 4 --ranks 4 --chunk-elems 262144");
    CHECK(recorded("given") == 262144 && told("given", "rank 0 has 4.00 times its part of the model"));
    CHECK(told("given", "a new run with --chunk-elems 2048 would bring that to 1."));
    CHECK(sys_same_runs("one", "given", STEPS));

    /* A resume keeps the chunks of the store, with any number of ranks. */
    train("kept", "--max-steps 2 --ranks 4");
    train("kept", "--max-steps 4 --ranks 2 --resume latest");
    CHECK(recorded("kept") == 65536 && sys_same_checkpoint(test_pathf("%s/checkpoint-4", "one"),
                                                         test_pathf("%s/checkpoint-4", "kept")));
    train("grown", "--max-steps 2");
    train("grown", "--max-steps 4 --ranks 4 --resume latest");
    CHECK(recorded("grown") == 262144 && told("grown", uneven));
    CHECK(sys_same_checkpoint(test_pathf("%s/checkpoint-4", "one"), test_pathf("%s/checkpoint-4", "grown")));
    return test_end();
}
