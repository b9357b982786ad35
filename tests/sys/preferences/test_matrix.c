/* What a run can be asked for, together: preferences or text, groups, schedules, fp16, frozen parts, adapters with and
 * without modules trained whole, averages, Muon. Each row has the same bits in memory and in other homes, and goes on
 * to them when it is killed, by its store, and when it is stopped, by its checkpoint. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <string.h>

enum { STEPS = 6 };

static const char common[] = "--model tests/golden/dpo --compute-threads 1 --optimizer-threads 1 --host-mem 64MiB "
                             "--batch-size 1 --gradient-accumulation-steps 2 --sum-groups 2 --max-steps 6 "
                             "--max-seq-length 48 --eval-fraction 0.2 --save-steps 2 --save-total-limit 0 "
                             "--learning-rate 1e-3";
static const char dpo[] = "--dpo", text[] = "";

/* The first rows are taken in every run of the tests, and have every word once. */
static const struct {
    const char *kind, *words;
    bool divides; /* among ranks too */
} rows[] = {
    {dpo, "--dtype fp16 --lora-r 3 --lora-modules-to-save lm_head,input_layernorm --group *.lora_B.weight:lr=4x "
          "--lr-scheduler-type cosine", true},
    {dpo, "--dtype bf16 --freeze layers.0 --group head:lr=0.5x,weight_decay=0 --lr-scheduler-type wsd --ema-decay 0.9 "
          "--tensor-groups 2",
     true},
    {text, "--dtype fp16 --freeze embed,head --group *norm*:lr=2x --lr-scheduler-type linear --warmup-steps 2", true},
    {text, "--optimizer muon --freeze layers.1 --group *mlp*:lr=0.5x --lr-scheduler-type cosine", false},
    /* FEW */
    {dpo, "--dtype fp16 --freeze embed --lr-scheduler-type cosine_with_restarts --warmup-steps 1", true},
    {dpo, "--dpo-loss ipo --lora-r 2 --lora-target-modules all-linear --use-rslora --group *.q_proj.*:lr=0.1x", true},
    {dpo, "--dtype bf16 --lora-r 3 --lora-target-modules v_proj,embed_tokens,lm_head "
          "--group *.lora_embedding_B:lr=0.5x", true},
    {dpo, "--dtype fp16 --group layers.1:lr=2x --lr-scheduler-type polynomial", true},
    {dpo, "--optimizer muon --dtype bf16 --dpo-sft-coef 0.5", false},
    {text, "--dtype fp16 --lora-r 2 --lora-dropout 0.2 --lora-modules-to-save embed_tokens --ema-decay 0.8", true},
    {text, "--dtype bf16 --moments q8 --freeze layers.0 --group layers.1:weight_decay=0.3", true},
    {text, "--optimizer lion --dtype fp16 --lora-r 4 --use-dora --group *.lora_A.weight:lr=0.5x "
           "--lr-scheduler-type inverse_sqrt",
     true},
};
enum { ROWS = sizeof rows / sizeof *rows, FEW = 4 };

static struct sys_args args;
static struct sys_process process;
static const char *text_path;

static void begin(unsigned row, const char *output, const char *more) {
    sys_args_begin(&args, "train");
    sys_args_add(&args, common);
    sys_args_word(&args, "--data=%s", rows[row].kind == dpo ? "tests/golden/dpo/texts.jsonl" : text_path);
    sys_args_word(&args, "--output=%s", test_path(output));
    sys_args_add(&args, rows[row].kind);
    sys_args_add(&args, rows[row].words);
    sys_args_add(&args, more);
}

static void compare(unsigned row, const char *output) {
    if (!sys_same_runs("memory", output, STEPS)) {
        printf("%s %s: %s\n", rows[row].kind, rows[row].words, output);
        CHECK(!"other bits");
    }
    sys_remove_run(output);
}

static void check_row(unsigned row) {
    begin(row, "memory", "");
    sys_run_well(&args, &process);
    begin(row, "drive", "--prefetch-depth 0");
    sys_args_on_drive(&args, "drive");
    sys_run_well(&args, &process);
    compare(row, "drive");
    begin(row, "place", rows[row].divides ? "--ranks 2 --sharding full_shard" : "--optimizer-overlap off --tiles 2");
    sys_run_well(&args, &process);
    compare(row, "place");
    for (int has_drive = 0; has_drive <= 1; has_drive++) {
        for (int part = 0; part < 2; part++) {
            begin(row, "parts", part == 0 ? "" : "--resume latest");
            if (has_drive) {
                sys_args_on_drive(&args, "parts");
            }
            if (part == 1) {
                sys_run_well(&args, &process);
                break;
            }
            sys_interrupt(&args, &process, "\nstep 3/", has_drive ? SIGKILL : SIGUSR2);
        }
        compare(row, "parts");
    }
    sys_remove_run("memory");
}

int main(void) {
    text_path = sys_write_text(24000);
    for (unsigned i = 0; i < (test_all() ? ROWS : FEW); i++) {
        check_row(i);
    }
    return test_end();
}
