/* Defaults of other trainers given as flags: what means the same here is taken without a word, in one command for each
 * program; each other is answered. tests/golden/make/golden_trainer_defaults.py has made the list. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static struct sys_args args;
static struct sys_process process;
static const char *model;

/* What is said of a default that does not mean what is done here. */
static const struct {
    const char *name, *says;
} answered[] = {
    {"gradient_checkpointing", "is planned: blocks keep their activations where memory allows it"},
    {"logging_nan_inf_filter", "a step that is not finite is skipped and said"},
    {"per_device_eval_batch_size", "evaluation uses --per-device-train-batch-size"},
    {"prediction_loss_only", "is always so"},
    {"enable_jit_checkpoint", "INT and TERM end a run with its state saved"},
    {"do_train", "use `offload train`"},
    {"max_length", "use --max-seq-length N"},
    {"truncation_mode", "use --overlong truncate"},
    {"packing", "use pad"},
    {"packing_strategy", "first-fit-decreasing"},
    {"assistant_only_loss", "--train-on prompts trains all of it"},
    {"loss_type", "is not one of sigmoid, ipo, robust, hinge"},
    {"activation_offloading", "use --activation-tier host or nvme"},
    {"precompute_ref_log_probs", "is so with --dpo"},
};
enum { ANSWERED = sizeof answered / sizeof *answered };

static int answer_of(const char *name) {
    for (int i = 0; i < ANSWERED; i++) {
        if (strcmp(answered[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

static void begin(void) {
    sys_args_begin(&args, "plan");
    sys_args_word(&args, "--model=%s", model);
    sys_args_add(&args, "--host-mem 64MiB");
}

static void add(const char *name, const char *value, bool apart) {
    sys_args_word(&args, apart ? "--%s" : "--%s=%s", name, value);
    if (apart) {
        sys_args_word(&args, "%s", value);
    }
}

static void check_program(const char *program, const json_t *defaults, unsigned least) {
    const char *name;
    json_t *value;
    unsigned taken = 0;
    begin();
    json_object_foreach((json_t *)defaults, name, value) {
        if (answer_of(name) < 0) {
            add(name, json_string_value(value), taken++ % 2 == 0);
        }
    }
    sys_run(&args, &process);
    if (process.outcome.exit_status != 0 || strstr(process.outcome.err, "warning") != NULL) {
        sys_complain(&process, program);
    }
    printf("%s: %u defaults are taken\n", program, taken);
    CHECK(taken >= least);
}

static void check_answers(const json_t *programs) {
    const char *program, *name;
    json_t *defaults, *value;
    json_object_foreach((json_t *)programs, program, defaults) {
        json_object_foreach(defaults, name, value) {
            const int of = answer_of(name);
            if (of < 0) {
                continue;
            }
            begin();
            add(name, json_string_value(value), true);
            sys_run(&args, &process);
            if (process.outcome.exit_status != 2 || !sys_said(&process, answered[of].says)) {
                sys_complain(&process, name);
            }
        }
    }
}

/* Other values of the same names ask for something, and are answered. */
static void check_others(void) {
    static const char *const words[] = {"--bf16 true", "--dataloader_num_workers 4", "--remove_unused_columns false",
                                        "--torch_compile", "--use_dora true", "--trust_remote_code", "--load_in_4bit 1",
                                        "--optim sgd_fused", "--dataset_text_field body", "--local_rank 3"};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        begin();
        sys_args_add(&args, words[i]);
        sys_run(&args, &process);
        if (process.outcome.exit_status != 2) {
            sys_complain(&process, words[i]);
        }
    }
}

/* A configuration of ours may say what is done anyway, too; switches take true and false as a value apart. */
static void check_file(void) {
    begin();
    sys_args_word(&args, "--config=%s", files_write_text("own.yaml", "learning_rate: 1e-4\nbf16: false\nfp16: off\n"
                                                         "dataloader_num_workers: 0\noptim: adamw_torch\n"));
    sys_run_well(&args, &process);
    begin();
    sys_args_word(&args, "--config=%s", files_write_text("own.yaml", "learning_rate: 1e-4\nbf16: true\n"));
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && sys_said(&process, "'bf16': use --dtype bf16"));
    begin();
    sys_args_add(&args, "--save_only_model false --eval_on_start true --no-decay-all");
    sys_run_well(&args, &process);
    begin();
    sys_args_add(&args, "--no-decay-all false");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && sys_said(&process, "--no-decay-all takes no value; write --decay-all"));
}

int main(void) {
    json_t *const programs = json_load_file("tests/golden/trainer_defaults.json", 0, NULL);
    model = sys_write_model("llama");
    CHECK(programs != NULL);
    check_program("TrainingArguments", json_object_get(programs, "TrainingArguments"), 50);
    check_program("SFTConfig", json_object_get(programs, "SFTConfig"), 50);
    check_program("DPOConfig", json_object_get(programs, "DPOConfig"), 55);
    check_answers(programs);
    check_others();
    check_file();
    json_decref(programs);
    return test_end();
}
