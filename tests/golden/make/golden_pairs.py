#!/usr/bin/env python3
"""Makes tests/golden/pairs/: ten steps of TRL's DPOTrainer on a small model, for several losses.

    python3 tests/golden/make/golden_pairs.py [--output tests/golden/pairs]

Needs torch, transformers, datasets and trl. Rows are words of a tokenizer that knows nothing else; TRL tokenizes them,
computes the reference's log-probabilities before training, and takes the rows in their order.
"""

import argparse
import json
import os
import random
import shutil
import tempfile

import datasets
import tokenizers
import torch
import transformers
import trl

VOCAB, SEQ, PAIRS, MICRO_BATCHES, STEPS, LEARNING_RATE = 67, 24, 2, 2, 10, 2e-3
LOSSES = {  # name: options of TRL, and of the engine
    "sigmoid": ({"loss_type": ["sigmoid"], "beta": 0.5}, {"loss": 0, "beta": 0.5}),
    "ipo": ({"loss_type": ["ipo"], "beta": 0.4}, {"loss": 1, "beta": 0.4}),
    "robust": ({"loss_type": ["robust"], "beta": 0.5, "label_smoothing": 0.1},
               {"loss": 2, "beta": 0.5, "smoothing": 0.1}),
    "hinge": ({"loss_type": ["hinge"], "beta": 0.3}, {"loss": 3, "beta": 0.3}),
    "sigmoid_sft": ({"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.7], "beta": 0.5},
                    {"loss": 0, "beta": 0.5, "sft": 0.7}),
}


def make_tokenizer():
    words = {"<eos>": 0, "<pad>": 1, **{f"w{i}": i for i in range(2, VOCAB)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")


def make_rows():
    draw = random.Random(5)
    text = lambda least, most: " ".join(f"w{draw.randrange(2, VOCAB)}" for _ in range(draw.randint(least, most)))
    return [{"prompt": text(2, 7) + " ", "chosen": text(1, 12), "rejected": text(1, 12)}
            for _ in range(PAIRS * MICRO_BATCHES * STEPS)]


def make_model(folder):
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=52, max_position_embeddings=64, tie_word_embeddings=False, attention_dropout=0.0,
        bos_token_id=None, eos_token_id=0, pad_token_id=1)
    model = transformers.LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            parameter.data.normal_(0, 0.25)
    model.save_pretrained(folder)


class Sequential(trl.DPOTrainer):
    def _get_train_sampler(self, *unused):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def train(folder, options, scratch):
    arguments = trl.DPOConfig(
        output_dir=scratch, max_steps=STEPS, per_device_train_batch_size=PAIRS, learning_rate=LEARNING_RATE,
        gradient_accumulation_steps=MICRO_BATCHES, lr_scheduler_type="constant", logging_steps=1, max_length=SEQ + 1,
        precompute_ref_log_probs=True, gradient_checkpointing=False, bf16=False, fp16=False, use_cpu=True,
        optim="adamw_torch", max_grad_norm=1.0, report_to=[], save_strategy="no", disable_tqdm=True, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    trainer = Sequential(model=model, args=arguments, processing_class=make_tokenizer(),
                         train_dataset=datasets.Dataset.from_list(make_rows()))
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry][:STEPS]
    return trainer.train_dataset, log


def place(ids, prompt):
    """A row of the engine: inputs and targets, of which those of the prompt do not count."""
    inputs = ids[:-1] + [0] * (SEQ - len(ids) + 1)
    targets = [-1] * (prompt - 1) + ids[prompt:]
    return inputs, targets + [-1] * (SEQ - len(targets))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "pairs"))
    folder = parser.parse_args().output
    torch.set_num_threads(1)
    shutil.rmtree(folder, ignore_errors=True)
    make_model(folder)
    result = {"versions": {"torch": torch.__version__.split("+")[0], "trl": trl.__version__},
              "seq": SEQ, "batch": 2 * PAIRS, "micro_batches": MICRO_BATCHES, "steps": STEPS,
              "learning_rate": LEARNING_RATE, "runs": {}}
    for name, (options, own) in LOSSES.items():
        with tempfile.TemporaryDirectory() as scratch:
            rows, log = train(folder, options, scratch)
        if "inputs" not in result:
            placed = []
            for row in rows:
                prompt = list(row["prompt_ids"])
                for kind in ("chosen", "rejected"):
                    placed.append(place(prompt + list(row[f"{kind}_ids"]), len(prompt)))
            result["inputs"] = [inputs for inputs, _ in placed]
            result["targets"] = [targets for _, targets in placed]
            result["reference"] = [row[f"ref_{kind}_logps"] for row in rows for kind in ("chosen", "rejected")]
        keys = {"losses": "loss", "norms": "grad_norm", "rewards_chosen": "rewards/chosen",
                "rewards_rejected": "rewards/rejected", "accuracies": "rewards/accuracies",
                "logps_chosen": "logps/chosen", "logps_rejected": "logps/rejected"}
        result["runs"][name] = {**own, **{k: [float(entry[v]) for entry in log] for k, v in keys.items()}}
        print(name, result["runs"][name]["losses"])
    encoder = json.JSONEncoder(separators=(",", ":"))
    with open(os.path.join(folder, "golden.json"), "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(f"{json.dumps(k)}: {encoder.encode(v)}" for k, v in result.items()) + "\n}\n")
    for entry in os.listdir(folder):
        os.chmod(os.path.join(folder, entry), 0o644)


if __name__ == "__main__":
    main()
