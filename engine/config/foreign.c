/* Flags and values of other training programs, and what to use here instead. One table answers them all. A test checks
 * that each flag that an answer names exists. */
#include "engine/config/config.h"

#include <ctype.h>
#include <string.h>

static const char all_trained[] = "does not exist: all parameters are trained; what memory cannot hold lives on drives "
                                  "(--nvme)";
static const char full_weights[] = "does not exist: weights are trained in full; --moments q8 makes the optimizer's "
                                   "state small";
static const char streamed[] = "does not exist: state is streamed without a configuration file; give the budgets "
                               "--device-mem, --host-mem and --nvme";
static const char use_ranks[] = "use --ranks N, or --ranks auto";
static const char use_sharding[] = "use --sharding NAME";
static const char not_divided[] = "does not exist: ranks divide the micro-batches of a step (--ranks) and the state "
                                  "(--sharding), never a tensor or a sequence; leave it out";
static const char one_process[] = "does not exist: the ranks of a machine are threads of one process (--ranks N); "
                                  "leave it out";
static const char not_hybrid[] = "does not exist: a copy of the state for each machine is not made; use full_shard";
static const char use_model[] = "use --model FOLDER";
static const char use_data[] = "use --data PATH; data sets are files here, and are not downloaded";
static const char use_length[] = "use --max-seq-length N";
static const char use_batch[] = "use --per-device-train-batch-size N";
static const char use_global[] = "use --global-batch-size N";
static const char use_kept[] = "is always on; --kept-blocks N keeps the activations of N blocks instead";
static const char files_only[] = "does not exist: nothing is sent anywhere; --report-to tensorboard writes files that "
                                 "other programs read";
static const char use_files[] = "use tensorboard: nothing is sent anywhere, and other programs read its files";
static const char times[] = "does not exist: metrics.jsonl has times and bytes of every step; --trace on records "
                            "every task";
static const char not_needed[] = "does not exist and is not needed; leave it out";
static const char by_step[] = "use cosine: the rate depends on the step alone, so that a run can be repeated";
static const char use_dtype[] = "use --dtype bf16, or --dtype fp32";
static const char no_fp16[] = "does not exist: 16 bits with a short exponent need loss scaling; use --dtype bf16";

/* Without `value` an answer to a flag that does not exist here, else to a value of one that does. A name that ends in
 * '*' stands for all that begin so. */
static const struct {
    const char *name, *value, *answer;
} foreign[] = {
    /* number formats */
    {"bf16", NULL, "use --dtype bf16"},
    {"bf16-full-eval", NULL, "use --dtype bf16"},
    {"fp16*", NULL, no_fp16},
    {"data-types", NULL, "use --grad-dtype; sums of gradients are fp32"},
    {"tf32", NULL, "does not exist: matrices are multiplied in the format of --dtype; leave it out"},
    {"torch-dtype", NULL, use_dtype},
    {"precision", NULL, use_dtype},
    {"mixed-precision", NULL, use_dtype},
    {"dtype", "bfloat16", "use bf16"},
    {"dtype", "float32", "use fp32"},
    {"dtype", "float16", "use bf16"},
    {"dtype", "fp16", "use bf16"},
    {"dtype", "auto", "use the format of the weights: bf16 or fp32"},
    /* fewer parameters, fewer bits */
    {"lora*", NULL, all_trained},
    {"qlora*", NULL, all_trained},
    {"peft*", NULL, all_trained},
    {"use-peft", NULL, all_trained},
    {"use-lora", NULL, all_trained},
    {"adapter", NULL, all_trained},
    {"finetuning-type", NULL, all_trained},
    {"load-in-4bit", NULL, full_weights},
    {"load-in-8bit", NULL, full_weights},
    {"quantization*", NULL, full_weights},
    {"bnb*", NULL, full_weights},
    /* where state lives, and how many devices there are */
    {"deepspeed*", NULL, streamed},
    {"fsdp", NULL, use_sharding},
    {"fsdp-sharding-strategy", NULL, use_sharding},
    {"fsdp*", NULL, streamed},
    {"zero-stage", NULL, "use --sharding zero1, zero2 or zero3"},
    {"sharding", "hybrid_shard*", not_hybrid},
    {"sharding", "_hybrid_shard*", not_hybrid},
    {"sharding", "zero0", "use no_shard"},
    {"sharding", "ddp", "use no_shard"},
    {"sharding", "fsdp*", "use full_shard"},
    {"zero-optimization", NULL, "use --sharding and the budgets --device-mem, --host-mem and --nvme; "
                                "docs/coming-from.md has every key"},
    {"zero-*", NULL, not_needed},
    {"stage3-*", NULL, not_needed},
    {"aio", NULL, "use --queue-depth and --io-backend; docs/coming-from.md has every key"},
    {"limit-all-gathers", NULL, not_needed},
    {"downcast-bf16", NULL, not_needed},
    {"dynamo-*", NULL, not_needed},
    {"checkpoint", NULL, not_needed},
    {"elasticity", NULL, not_needed},
    {"offload-optimizer*", NULL, streamed},
    {"offload-param*", NULL, streamed},
    {"device-map", NULL, streamed},
    {"max-memory", NULL, streamed},
    {"ddp*", NULL, one_process},
    {"local-rank", NULL, one_process},
    {"master-addr", NULL, one_process},
    {"master-port", NULL, one_process},
    {"num-machines", NULL, one_process},
    {"machine-rank", NULL, one_process},
    {"same-network", NULL, one_process},
    {"main-process-*", NULL, one_process},
    {"rdzv-*", NULL, one_process},
    {"num-processes", NULL, use_ranks},
    {"nproc-per-node", NULL, use_ranks},
    {"num-gpus", NULL, use_ranks},
    {"world-size", NULL, use_ranks},
    {"data-parallel-size", NULL, use_ranks},
    {"tensor-parallel*", NULL, not_divided},
    {"pipeline-parallel*", NULL, not_divided},
    {"context-parallel*", NULL, not_divided},
    {"sequence-parallel*", NULL, not_divided},
    {"no-cuda", NULL, "use --device cpu"},
    {"use-cpu", NULL, "use --device cpu"},
    {"gradient-checkpointing*", NULL, use_kept},
    {"use-gradient-checkpointing", NULL, use_kept},
    {"activation-checkpointing", NULL, use_kept},
    {"auto-find-batch-size", NULL, "does not exist: `offload plan` says what fits, before anything runs"},
    /* model and data */
    {"model-name-or-path", NULL, use_model},
    {"model-name", NULL, use_model},
    {"model-id", NULL, use_model},
    {"base-model", NULL, use_model},
    {"pretrained-model-name-or-path", NULL, use_model},
    {"config-name", NULL, "use --model CONFIG.json"},
    {"tokenizer-name*", NULL, "use --tokenizer PATH"},
    {"trust-remote-code", NULL, "does not exist: no code of a model folder is run; leave it out"},
    {"dataset", NULL, use_data},
    {"dataset-name", NULL, use_data},
    {"dataset-dir", NULL, use_data},
    {"data-path", NULL, use_data},
    {"train-file", NULL, use_data},
    {"train-data", NULL, use_data},
    {"validation-file", NULL, "use --eval-data PATH"},
    {"eval-dataset", NULL, "use --eval-data PATH"},
    {"validation-split-percentage", NULL, "use --eval-fraction, a share such as 0.05"},
    {"val-size", NULL, "use --eval-fraction, a share such as 0.05"},
    {"val-set-size", NULL, "use --eval-fraction, a share such as 0.05"},
    {"template", NULL, "use --chat-template"},
    {"max-length", NULL, use_length},
    {"max-seq-len", NULL, use_length},
    {"model-max-length", NULL, use_length},
    {"block-size", NULL, use_length},
    {"cutoff-len", NULL, use_length},
    {"sequence-len", NULL, use_length},
    {"context-length", NULL, use_length},
    {"sample-packing", NULL, "use --packing pack"},
    {"packing", "true", "use pack"},
    {"packing", "false", "use pad"},
    {"completion-only-loss", NULL, "is the default: of a prompt and its completion, the completion is trained; "
                                   "--train-on prompts trains both"},
    {"assistant-only-loss", NULL, "is the default: of a conversation, the assistant's turns are trained; --train-on "
                                  "prompts trains all of it"},
    {"ignore-data-skip", NULL, "does not exist: a resumed run goes on at its place in the data; leave it out"},
    {"group-by-length", NULL, "does not exist: --packing pack leaves few places unused"},
    {"data-seed", NULL, "use --seed N"},
    {"cache-dir", NULL, "use --data-cache FOLDER"},
    {"dataloader*", NULL, not_needed},
    {"preprocessing-num-workers", NULL, "does not exist: text is tokenized on all cores; leave it out"},
    {"dataset-num-proc", NULL, "does not exist: text is tokenized on all cores; leave it out"},
    {"remove-unused-columns", NULL, not_needed},
    {"overwrite-cache", NULL, "does not exist: a cache whose text has changed is made again; leave it out"},
    /* steps and rates */
    {"num-epochs", NULL, "use --num-train-epochs N"},
    {"n-epochs", NULL, "use --num-train-epochs N"},
    {"max-epochs", NULL, "use --num-train-epochs N"},
    {"train-micro-batch-size-per-gpu", NULL, use_batch},
    {"micro-batch-size", NULL, use_batch},
    {"per-gpu-train-batch-size", NULL, use_batch},
    {"per-device-batch-size", NULL, use_batch},
    {"per-device-eval-batch-size", NULL, "does not exist: evaluation uses --per-device-train-batch-size"},
    {"eval-batch-size", NULL, "does not exist: evaluation uses --per-device-train-batch-size"},
    {"eval-accumulation-steps", NULL, "does not exist: an evaluation keeps sums alone; leave it out"},
    {"total-batch-size", NULL, use_global},
    {"effective-batch-size", NULL, use_global},
    {"gradient-accumulation", NULL, "use --gradient-accumulation-steps N"},
    {"grad-accum-steps", NULL, "use --gradient-accumulation-steps N"},
    {"lr-scheduler", NULL, "use --lr-scheduler-type NAME"},
    {"scheduler", NULL, "use --lr-scheduler-type NAME"},
    {"lr-scheduler-kwargs", NULL, "use --lr-num-cycles, --lr-power, --lr-timescale, --min-lr, --decay-steps and "
                                  "--lr-decay-type"},
    {"lr-scheduler-type", "reduce_lr_on_plateau", by_step},
    {"lr-scheduler-type", "greedy", by_step},
    {"num-warmup-steps", NULL, "use --warmup-steps N"},
    {"lr-warmup-steps", NULL, "use --warmup-steps N"},
    {"grad-clip", NULL, "use --max-grad-norm X"},
    {"gradient-clipping", NULL, "use --max-grad-norm X"},
    {"optimizer", "adamw_torch", "use adamw"},
    {"optimizer", "adamw_torch_fused", "use adamw"},
    {"optimizer", "adamw_hf", "use adamw"},
    {"optimizer", "adamw_apex_fused", "use adamw"},
    {"optimizer", "paged_adamw", "use adamw; what memory cannot hold lives on drives (--nvme)"},
    {"optimizer", "paged_adamw_32bit", "use adamw; what memory cannot hold lives on drives (--nvme)"},
    {"optimizer", "paged_adamw_8bit", "use adamw with --moments q8"},
    {"optimizer", "adamw_8bit", "use adamw with --moments q8"},
    {"optimizer", "adamw_bnb_8bit", "use adamw with --moments q8"},
    {"optimizer", "adafactor", "use adamw with --moments q8, or lion"},
    {"optimizer", "lion_8bit", "use lion with --moments q8"},
    {"optimizer", "lion_32bit", "use lion"},
    {"optim-args", NULL, "use --adam-beta1, --adam-beta2, --adam-epsilon and --weight-decay"},
    {"label-smoothing-factor", NULL, "does not exist: the loss is the plain cross entropy; leave it out"},
    {"neftune-noise-alpha", NULL, "does not exist: embeddings get no noise; leave it out"},
    /* commands, reports and checkpoints */
    {"do-train", NULL, "use `offload train`"},
    {"do-eval", NULL, "use --eval-steps N while training, or `offload eval`"},
    {"do-predict", NULL, "use `offload generate`"},
    {"do-sample", NULL, "use --temperature X; 0 takes the most likely token each time"},
    {"eval-strategy", NULL, "use --eval-steps N; 0: only at the end"},
    {"evaluation-strategy", NULL, "use --eval-steps N; 0: only at the end"},
    {"save-strategy", NULL, "use --save-steps N; 0: only at the end"},
    {"logging-strategy", NULL, "use --logging-steps N"},
    {"steps-per-print", NULL, "use --logging-steps N"},
    {"wall-clock-breakdown", NULL, times},
    {"comms-logger", NULL, times},
    {"flops-profiler", NULL, times},
    {"tensorboard", NULL, "use --report-to tensorboard"},
    {"csv-monitor", NULL, "does not exist: metrics.jsonl has every step; leave it out"},
    {"logging-first-step", NULL, "does not exist: metrics.jsonl has every step; leave it out"},
    {"logging-dir", NULL, "does not exist: --report-to tensorboard writes into --output"},
    {"save-safetensors", NULL, "is always on"},
    {"load-best-model-at-end", NULL, "does not exist: metrics.jsonl names the best step; keep its checkpoint with "
                                     "--save-total-limit 0"},
    {"metric-for-best-model", NULL, "does not exist: metrics.jsonl names the best step"},
    {"push-to-hub", NULL, files_only},
    {"hub*", NULL, files_only},
    {"wandb*", NULL, files_only},
    {"run-name", NULL, "does not exist: the folder of --output names the run"},
    {"report-to", "wandb", use_files},
    {"report-to", "mlflow", use_files},
    {"report-to", "comet_ml", use_files},
    {"report-to", "swanlab", use_files},
    {"report-to", "trackio", use_files},
    /* how a model is computed */
    {"attn-implementation", NULL, not_needed},
    {"flash-attn*", NULL, not_needed},
    {"use-flash-attention*", NULL, not_needed},
    {"use-liger-kernel", NULL, not_needed},
    {"torch-compile*", NULL, not_needed},
    {"low-cpu-mem-usage", NULL, not_needed},
    {"use-fast-tokenizer", NULL, not_needed},
};

/* Whether a name, with '_' for '-' and in any case, is the one of the table, or with '*' begins so. */
static bool matches(const char *pattern, const char *name) {
    for (; *pattern != '\0' && *pattern != '*'; pattern++, name++) {
        const char letter = (char)tolower((unsigned char)*name);
        if ((letter == '_' ? '-' : letter) != (*pattern == '_' ? '-' : *pattern)) {
            return false;
        }
    }
    return *pattern == '*' || *name == '\0';
}

const char *ox_foreign_answer(const char *name, const char *value) {
    for (unsigned i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        const bool same_kind = (foreign[i].value == NULL) == (value == NULL);
        if (same_kind && matches(foreign[i].name, name) && (value == NULL || matches(foreign[i].value, value))) {
            return foreign[i].answer;
        }
    }
    return NULL;
}

bool ox_foreign_entry(unsigned idx, const char **name, const char **value, const char **answer) {
    if (idx >= sizeof foreign / sizeof *foreign) {
        return false;
    }
    *name = foreign[idx].name;
    *value = foreign[idx].value;
    *answer = foreign[idx].answer;
    return true;
}
