/* What other training programs say explicitly of what is done here anyway: mostly their defaults. It is taken without
 * a word, so a value stands here only if the run with it is the run without it. tests/golden/trainer_defaults.json has
 * the defaults of the Trainer and TRL, and a test gives each of them. */
#include "engine/config/foreign.h"

enum { ANY = 0 };

static const char no[] = "false no off 0", yes[] = "true yes on 1";

const struct ox_foreign ox_foreign_same[] = {
    /* options of ours by another word: the answer is the word of ours */
    {"optimizer", "adamw_torch adamw_torch_fused", "adamw", ANY},
    /* what is always so */
    {"average-tokens-across-devices full-determinism prediction-loss-only disable-dropout precompute-ref-log-probs "
     "dataloader-pin-memory do-train remove-unused-columns save-safetensors", yes, NULL, ANY},
    {"full-determinism", no, NULL, ANY}, /* asks for nothing, and gets it */
    {"dataloader-num-workers dataloader-prefetch-factor", "0", NULL, ANY},
    {"local-rank", "-1", NULL, ANY},
    {"logging-strategy", "steps", NULL, ANY},
    {"train-sampling-strategy", "random", NULL, ANY},
    {"dataset-text-field", "text", NULL, ANY},
    {"length-column-name", "length", NULL, ANY},
    {"hub-strategy", "every_save", NULL, ANY},
    {"project", "huggingface", NULL, ANY},
    {"log-level log-level-replica", "passive warning", NULL, ANY},
    {"include-num-input-tokens-seen", "no false", NULL, ANY},
    {"log-on-each-node eval-do-concat-batches skip-memory-metrics", yes, NULL, ANY},
    /* what does not exist, and is not asked for */
    {"tf32 bf16 fp16 pure-bf16 bf16-full-eval fp16-full-eval torch-compile use-liger-kernel use-cache "
     "auto-find-batch-size logging-first-step eval-use-gather-object batch-eval-metrics save-on-each-node "
     "push-to-hub hub-always-push hub-private-repo ignore-data-skip "
     "restore-callback-states-from-checkpoint use-cpu no-cuda dataloader-drop-last "
     "dataloader-persistent-workers do-eval do-predict trust-remote-code shuffle-dataset padding-free "
     "group-by-length load-in-4bit load-in-8bit use-qalora use-bdlora fan-in-fan-out "
     "ensure-weight-tying inference-mode sync-ref-model use-weighting ddp-find-unused-parameters "
     "ddp-static-graph strict unsloth use-unsloth pissa-init", no, NULL, ANY},
    {"bias", "none", NULL, ANY},
    {"init-lora-weights", yes, NULL, ANY},
    {"peft-type", "lora", NULL, ANY},
    {"task-type lora-task-type", "causal_lm", NULL, ANY},
    {"f-divergence-type", "reverse_kl", NULL, ANY},
    {"f-alpha-divergence-coef", "0.5", NULL, ANY}, /* of another divergence alone, as the next are of other losses */
    {"discopop-tau", "0.05", NULL, ANY},
    {"ref-model-mixup-alpha", "0.6", NULL, ANY},
    {"ref-model-sync-steps", "512", NULL, ANY},
    {"qalora-group-size", "16", NULL, ANY},
    {"megatron-core", "megatron.core", NULL, ANY},
    {"pad-to-multiple-of", "auto", NULL, ANY},
};
const unsigned ox_foreign_same_count = sizeof ox_foreign_same / sizeof *ox_foreign_same;
