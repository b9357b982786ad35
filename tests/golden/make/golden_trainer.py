#!/usr/bin/env python3
"""Makes tests/golden/trainer.json: 20 steps of transformers' own Trainer, and which parameters it decays.

    python3 tests/golden/make/golden_trainer.py [--output tests/golden/trainer.json] [--offload build/offload]

Needs torch, transformers, accelerate and safetensors; the tests need none of them. The run has the Trainer's own decay
groups, a warmup, and rows of unequal lengths in steps of several micro-batches, two epochs of which each end with a
step that is not full. With --offload the same run is made by the program, and both are printed beside each other.
"""

import argparse
import json
import os
import subprocess
import tempfile

import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.normpath(os.path.join(HERE, ".."))
MODEL = "llama_tied_gqa"
SEQ, ROWS, BATCH, MICRO_BATCHES, EPOCHS = 29, 57, 2, 3, 2
# The names are those of TrainingArguments; the tests give them to `offload train` as they are.
OPTIONS = {"learning_rate": 3e-3, "lr_scheduler_type": "linear", "warmup_steps": 5, "weight_decay": 0.1,
           "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "max_grad_norm": 1.0, "logging_steps": 1,
           "per_device_train_batch_size": BATCH, "gradient_accumulation_steps": MICRO_BATCHES,
           "num_train_epochs": EPOCHS}


def make_rows(vocab):
    """Rows of 2 to SEQ tokens, most of them short."""
    random = torch.Generator().manual_seed(14)
    lengths = 2 + (torch.rand(ROWS, generator=random) ** 2 * (SEQ - 1)).long()
    return [torch.randint(0, vocab, (int(length),), generator=random).tolist() for length in lengths]


def collate(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    padded = [longest - len(row["input_ids"]) for row in rows]
    ids = [row["input_ids"] for row in rows]
    return {"input_ids": torch.tensor([row + [0] * pad for row, pad in zip(ids, padded)]),
            "labels": torch.tensor([row + [-100] * pad for row, pad in zip(ids, padded)]),
            "attention_mask": torch.tensor([[1] * len(row) + [0] * pad for row, pad in zip(ids, padded)])}


def open_model(name):
    return transformers.AutoModelForCausalLM.from_pretrained(os.path.join(GOLDEN, name), dtype=torch.float32,
                                                             attn_implementation="eager")


def make_trainer(model, rows, folder, **options):
    args = transformers.TrainingArguments(output_dir=folder, use_cpu=True, train_sampling_strategy="sequential",
                                          report_to="none", save_strategy="no", disable_tqdm=True, **options)
    return transformers.Trainer(model=model, args=args, data_collator=collate,
                                train_dataset=[{"input_ids": row} for row in rows])


def run_trainer(rows, folder, **more):
    trainer = make_trainer(open_model(MODEL), rows, folder, **{**OPTIONS, **more})
    trainer.train()
    return [line for line in trainer.state.log_history if "loss" in line]


def decayed(folder):
    """The names that the Trainer decays, for every model of this folder."""
    names = {}
    for name in sorted(os.listdir(GOLDEN)):
        if os.path.exists(os.path.join(GOLDEN, name, "golden.json")):
            model = open_model(name)
            stored = {parameter for parameter, _ in model.named_parameters()}  # a tied head is stored once
            trainer = make_trainer(model, [[1, 2]], folder)
            names[name] = sorted(stored & set(trainer.get_decay_parameter_names(model)))
    return names


def run_offload(program, rows, folder):
    data, output = os.path.join(folder, "rows"), os.path.join(folder, "run")
    os.mkdir(data)
    for idx, row in enumerate(rows):
        with open(os.path.join(data, f"{idx:03}"), "wb") as file:
            file.write(bytes(row))
    words = [f"--{name}={value}" for name, value in OPTIONS.items()]
    subprocess.run([program, "train", "--model", os.path.join(GOLDEN, MODEL), "--data", data, "--output", output,
                    "--data-format", "bytes", "--packing", "pad", "--max-seq-length", str(SEQ), "--eval-fraction", "0",
                    "--data-order", "sequential"] + words, check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    with open(os.path.join(output, "metrics.jsonl"), encoding="utf-8") as file:
        return [line for line in map(json.loads, file) if line["type"] == "step"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default=os.path.join(GOLDEN, "trainer.json"))
    parser.add_argument("--offload", help="compare with this program, and write nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    rows = make_rows(open_model(MODEL).config.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        steps = run_trainer(rows, folder)
        if args.offload:
            ours = run_offload(os.path.abspath(args.offload), rows, folder)
            print("step   learning rate   Trainer's loss  offload's loss  apart    norms apart")
            for idx, (a, b) in enumerate(zip(steps, ours, strict=True)):
                print(f"{idx + 1:4}   {a['learning_rate']:13.6e}   {a['loss']:14.9f}  {b['loss']:14.9f}  "
                      f"{abs(a['loss'] - b['loss']):.1e}  {abs(a['grad_norm'] - b['grad_norm']):.1e}")
            return
        content = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "model": MODEL,
                   "seq": SEQ, "options": {name: str(value) for name, value in OPTIONS.items()}, "rows": rows,
                   "learning_rates": [line["learning_rate"] for line in steps],
                   "losses": [line["loss"] for line in steps], "grad_norms": [line["grad_norm"] for line in steps],
                   "epochs": [line["epoch"] for line in steps],
                   "logged_every_4": [line["loss"] for line in run_trainer(rows, folder, logging_steps=4)],
                   "decayed": decayed(folder)}
    with open(args.output, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
                   + "\n}\n")


if __name__ == "__main__":
    main()
