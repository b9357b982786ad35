"""Writes tests/golden/foreign_flags.json: the names that other training programs have for settings, by program.

Give the folder into which these packages were unpacked (pip download --no-deps, then unzip), and the file:

    python3 tests/golden/make/golden_foreign.py FOLDER tests/golden/foreign_flags.json

Of 2026-11: transformers 5.12.1, trl 1.16.0, peft 0.21.2, accelerate 1.15.0, deepspeed 0.19.8, axolotl 0.19.0,
llamafactory 0.9.5, torchtune 0.6.1, megatron_core 0.16.1, torch 2.14.1. Names of unsloth, Megatron's training loop, llm.c and
llama.cpp, which have no such classes, are written below.
"""
import ast
import glob
import json
import re
import sys

BY_HAND = {
    "unsloth": "model_name max_seq_length dtype load_in_4bit load_in_8bit load_in_16bit full_finetuning fast_inference "
               "gpu_memory_utilization max_lora_rank r target_modules lora_alpha lora_dropout bias "
               "use_gradient_checkpointing random_state use_rslora loftq_config finetune_vision_layers "
               "finetune_language_layers finetune_attention_modules finetune_mlp_modules token device_map rope_scaling "
               "embedding_learning_rate train_on_responses_only instruction_part response_part",
    "megatron": "micro-batch-size global-batch-size rampup-batch-size train-iters train-samples lr lr-decay-style "
                "lr-decay-iters lr-warmup-iters lr-warmup-fraction lr-warmup-init lr-wsd-decay-style lr-wsd-decay-iters "
                "min-lr weight-decay start-weight-decay end-weight-decay weight-decay-incr-style clip-grad adam-beta1 "
                "adam-beta2 adam-eps sgd-momentum optimizer data-path split train-data-path valid-data-path "
                "test-data-path data-cache-path vocab-file merge-file tokenizer-type tokenizer-model vocab-size "
                "make-vocab-size-divisible-by seq-length encoder-seq-length max-position-embeddings save load "
                "save-interval eval-interval eval-iters log-interval exit-interval exit-duration-in-mins "
                "exit-signal-handler finetune no-load-optim no-load-rng no-save-optim no-save-rng ckpt-format "
                "use-dist-ckpt async-save auto-detect-ckpt-format pretrained-checkpoint tensorboard-dir wandb-project "
                "wandb-exp-name wandb-save-dir log-throughput log-params-norm log-num-zeros-in-grad timing-log-level "
                "num-workers dataloader-type distributed-backend distributed-timeout-minutes local-rank seed "
                "use-mcore-models transformer-impl sequence-parallel use-distributed-optimizer overlap-grad-reduce "
                "overlap-param-gather recompute-activations recompute-granularity recompute-method "
                "recompute-num-layers swiglu disable-bias-linear untie-embeddings-and-output-weights "
                "position-embedding-type rotary-base rotary-percent group-query-attention num-query-groups bf16 fp16 "
                "loss-scale initial-loss-scale min-loss-scale hysteresis attention-softmax-in-fp32 "
                "accumulate-allreduce-grads-in-fp32 use-flash-attn optimizer-cpu-offload optimizer-offload-fraction "
                "profile-step-start profile-step-end use-pytorch-profiler manual-gc rerun-mode reset-position-ids "
                "reset-attention-mask eod-mask-loss deterministic-mode no-masked-softmax-fusion "
                "no-gradient-accumulation-fusion empty-unused-memory-level use-checkpoint-args",
    "llm.c": "i j e o lg n c ce b t d l w q u v s g h a x k y sl",
    "llama.cpp": "model ctx-size n-predict batch-size ubatch-size threads threads-batch n-gpu-layers split-mode "
                 "tensor-split main-gpu prompt file temp top-k top-p min-p repeat-penalty seed interactive conversation "
                 "system-prompt chat-template jinja mlock no-mmap numa flash-attn cont-batching log-file verbose "
                 "learning-rate learning-rate-min decay-epochs weight-decay epochs val-split optimizer outfile outtype",
}


def fields(path, classes=None):
    """The annotated members of the classes of a file."""
    for node in ast.walk(ast.parse(open(path).read())):
        if isinstance(node, ast.ClassDef) and (classes is None or node.name in classes):
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    yield part.target.id


def flags(path):
    """The long flags of a parser."""
    for name in re.findall(r'"--([a-zA-Z][a-zA-Z0-9_-]+)"', open(path).read()):
        yield name.replace("-", "_")


def members(folder):
    def of(pattern, classes=None):
        for path in sorted(glob.glob(f"{folder}/{pattern}")):
            yield from fields(path, classes)

    torchtune = set()
    for path in glob.glob(f"{folder}/torchtune/recipes/configs/**/*.yaml", recursive=True):
        if "full" in path:
            torchtune |= set(re.findall(r"^([a-z_]+):", open(path).read(), re.M))
    deepspeed = f"{folder}/deepspeed-*/deepspeed"
    runner = glob.glob(f"{deepspeed}/launcher/runner.py")[0]
    return {
        "transformers": of("transformers/transformers/training_args.py", ["TrainingArguments"]),
        "trl": [*of("trl/trl/trainer/sft_config.py"), *of("trl/trl/trainer/base_config.py"),
                *of("trl/trl/trainer/model_config.py"),
                *of("trl/trl/scripts/utils.py", ["ScriptArguments", "DatasetMixtureConfig"])],
        "peft": of("peft/peft/tuners/lora/config.py", ["LoraConfig"]),
        "accelerate": [*of("accelerate/accelerate/commands/config/config_args.py", ["BaseConfig", "ClusterConfig"]),
                       *flags(f"{folder}/accelerate/accelerate/commands/launch.py")],
        "torchrun": flags(f"{folder}/torch/torch/distributed/run.py"),
        "deepspeed": [*flags(runner), *of("deepspeed-*/deepspeed/runtime/zero/config.py"),
                      *of("deepspeed-*/deepspeed/runtime/precision_config.py")],
        "axolotl": [*of("axolotl/axolotl/utils/schemas/config.py", ["AxolotlInputConfig"]),
                    *of("axolotl/axolotl/utils/schemas/[imp]*.py"), *of("axolotl/axolotl/utils/schemas/deprecated.py"),
                    *of("axolotl/axolotl/utils/schemas/training.py", ["HyperparametersConfig", "JaggedLRConfig"])],
        "llamafactory": of("llamafactory/llamafactory/hparams/*_args.py"),
        "torchtune": torchtune,
        "megatron": [*of("megatron/megatron/core/model_parallel_config.py"),
                     *of("megatron/megatron/core/optimizer/optimizer_config.py", ["OptimizerConfig"]),
                     *of("megatron/megatron/core/distributed/distributed_data_parallel_config.py"),
                     *BY_HAND["megatron"].split()],
        **{name: BY_HAND[name].split() for name in ("unsloth", "llm.c", "llama.cpp")},
    }


def main():
    folder, path = sys.argv[1:]
    names = {program: sorted({name.replace("-", "_") for name in found if not name.startswith("_")})
             for program, found in members(folder).items()}
    with open(path, "w") as file:
        file.write("{\n")
        for at, (program, found) in enumerate(names.items()):
            line = f'  "{program}": ['
            for idx, name in enumerate(found):
                item = json.dumps(name) + ("," if idx + 1 < len(found) else "]" + ("," if at + 1 < len(names) else ""))
                if len(line) + 1 + len(item) > 118:
                    file.write(line.rstrip() + "\n")
                    line = "   "
                line += (" " if not line.endswith(("[", " ")) or line.strip() == "" else "") + item
            file.write(line + "\n")
        file.write("}\n")
    print({program: len(found) for program, found in names.items()})


main()
