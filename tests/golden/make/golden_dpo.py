#!/usr/bin/env python3
"""Makes tests/golden/dpo/: rows of preferences in TRL's forms, and ten steps of TRL's DPOTrainer on them.

    python3 tests/golden/make/golden_dpo.py [--output tests/golden/dpo]

Needs torch, transformers, datasets, peft and trl. TRL reads the files, finds prompts, tokenizes, truncates, and computes
the reference's log-probabilities before training; rows are taken in their order.
"""

import argparse
import json
import os
import random
import shutil
import tempfile

import datasets
import peft
import tokenizers
import torch
import transformers
import trl

PAIRS, MICRO_BATCHES, STEPS, LEARNING_RATE, SEQ = 2, 2, 10, 2e-3, 47
ROWS = PAIRS * MICRO_BATCHES * STEPS
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
WORDS = "a cat sat on mats and ran far to the blue sea or not".split()
RUNS = {  # name: rows, options of TRL, and of the program
    "sigmoid": ("texts", {"loss_type": ["sigmoid"], "beta": 0.5}, "--dpo-beta 0.5"),
    "ipo": ("texts", {"loss_type": ["ipo"], "beta": 0.4}, "--beta 0.4 --loss-type ipo"),
    "robust": ("texts", {"loss_type": ["robust"], "beta": 0.5, "label_smoothing": 0.1},
               "--dpo-beta 0.5 --dpo-loss robust --label-smoothing 0.1"),
    "sft": ("texts", {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.7], "beta": 0.5},
            "--dpo-beta 0.5 --rpo-alpha 0.7"),
    "hinge": ("implicit", {"loss_type": ["hinge"], "beta": 0.3}, "--dpo-beta 0.3 --dpo-loss hinge"),
    # Equal parts of both answers leave some gradients that are rounding alone; with the usual eps AdamW makes whole steps
    # of these, by which two programs part (losses by 1.7e-4).
    "chats": ("chats", {"loss_type": ["sigmoid"], "adam_epsilon": 1e-3}, "--adam-epsilon 1e-3"),
    "implicit_chats": ("implicit_chats", {"loss_type": ["sigmoid"]}, ""),
    "adapter": ("texts", {"loss_type": ["sigmoid"], "beta": 0.5}, "--dpo-beta 0.5"),
}


def make_tokenizer(folder):
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "c"), ("s", "a")]
    vocab = {token: i for i, token in enumerate(letters + [a + b for a, b in merges] + SPECIALS)}
    model = tokenizers.models.BPE({t: i for t, i in vocab.items() if t not in SPECIALS}, merges)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIALS[0], pad_token=SPECIALS[0],
                                                chat_template=TEMPLATE)
    fast.save_pretrained(folder)
    return fast, len(vocab)


def make_rows():
    draw = random.Random(7)
    text = lambda least, most: " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))
    message = lambda role, least, most: {"role": role, "content": text(least, most)}
    rows = {"texts": [], "implicit": [], "chats": [], "implicit_chats": []}
    for i in range(ROWS + 4):
        long = i % 11 == 5  # the prompt fills the sequence, so the pair is left out
        rows["texts"].append({"prompt": text(20, 25) if long else text(1, 5) + draw.choice(["", " ", " t"]),
                              "chosen": draw.choice(["he end ", " "]) + text(1, 9),
                              "rejected": draw.choice(["he", " "]) + text(1, 9)})
        both = text(20, 25) if long else text(1, 4)
        rows["implicit"].append({"chosen": both + " " + text(1, 6), "rejected": both + " " + text(1, 6)})
        prompt = [message("user", 1, 1)]
        if i % 4 == 1:
            prompt = [message("system", 1, 1)] + prompt
        rows["chats"].append({"prompt": prompt, "chosen": [message("assistant", 1, 2)],
                              "rejected": [message("assistant", 1, 2)]})
        turns = [message("user", 1, 1)]
        rows["implicit_chats"].append({"chosen": turns + [message("assistant", 1, 2)],
                                       "rejected": turns + [message("assistant", 1, 2)]})
    return rows


def make_prompts(path):
    """Implicit prompts of texts that share a beginning, as TRL finds them; it fails where nothing is shared."""
    draw = random.Random(11)
    rows = []
    while len(rows) < 300:
        both = "".join(draw.choice("a b\u00e9\u00e8\u4e2d\u6587 ") for _ in range(draw.randint(1, 6)))
        row = {side: both + "".join(draw.choice("a \u00e9\u00e8\u4e2d") for _ in range(draw.randint(0, 3)))
               for side in ("chosen", "rejected")}
        if len(row["chosen"]) > 1 and len(row["rejected"]) > 1:
            parts = trl.data_utils.extract_prompt(row)
            rows.append([row["chosen"], row["rejected"], parts["prompt"], parts["chosen"], parts["rejected"]])
    with open(path, "w", encoding="utf-8") as file:
        json.dump(rows, file, separators=(",", ":"))


def make_model(folder, vocab):
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=44, max_position_embeddings=128, tie_word_embeddings=True, attention_dropout=0.0,
        bos_token_id=None, eos_token_id=vocab - len(SPECIALS), pad_token_id=None)
    model = transformers.LlamaForCausalLM(config)
    for _, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            parameter.data.normal_(0, 0.25)
    model.save_pretrained(folder)


def make_adapter(base, folder):
    torch.manual_seed(4)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"],
                                                       lora_dropout=0.0, bias="none", task_type="CAUSAL_LM"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.1)
    model.save_pretrained(folder)
    path = os.path.join(folder, "adapter_config.json")
    config = json.load(open(path, encoding="utf-8"))
    config["base_model_name_or_path"] = ".."
    json.dump(config, open(path, "w", encoding="utf-8"), indent=1, sort_keys=True)


class Sequential(trl.DPOTrainer):
    def _get_train_sampler(self, *unused):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def train(folder, tokenizer, rows, options, adapter, scratch):
    arguments = trl.DPOConfig(
        output_dir=scratch, max_steps=STEPS, per_device_train_batch_size=PAIRS, learning_rate=LEARNING_RATE,
        gradient_accumulation_steps=MICRO_BATCHES, lr_scheduler_type="constant", logging_steps=1, max_length=SEQ + 1,
        precompute_ref_log_probs=True, gradient_checkpointing=False, bf16=False, fp16=False, use_cpu=True,
        optim="adamw_torch", max_grad_norm=1.0, report_to=[], save_strategy="no", disable_tqdm=True, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    if adapter:
        model = peft.PeftModel.from_pretrained(model, os.path.join(folder, "adapter"), is_trainable=True)
    trainer = Sequential(model=model, args=arguments, processing_class=tokenizer,
                         train_dataset=datasets.Dataset.from_list(rows))
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry][:STEPS]
    return trainer.train_dataset, log


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "dpo"))
    folder = parser.parse_args().output
    torch.set_num_threads(1)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    tokenizer, vocab = make_tokenizer(folder)
    make_model(folder, vocab)
    make_adapter(folder, os.path.join(folder, "adapter"))
    rows = make_rows()
    make_prompts(os.path.join(folder, "prompts.json"))
    for name, of in rows.items():
        with open(os.path.join(folder, f"{name}.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in of)
    keys = ["loss", "grad_norm", "rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins",
            "logps/chosen", "logps/rejected"]
    result = {"versions": {"torch": torch.__version__.split("+")[0], "trl": trl.__version__, "peft": peft.__version__},
              "tokens": {}, "runs": {}}
    for name, (of, options, own) in RUNS.items():
        with tempfile.TemporaryDirectory() as scratch:
            taken, log = train(folder, tokenizer, rows[of], options, name == "adapter", scratch)
        result["tokens"][of] = [[list(row["prompt_ids"]), list(row["chosen_ids"]), list(row["rejected_ids"])]
                                for row in taken]
        result["runs"][name] = {"rows": of, "options": own, "adapter": name == "adapter",
                                **{k: [float(entry[k]) for entry in log] for k in keys}}
        print(name, len(taken), result["runs"][name]["loss"])
    encoder = json.JSONEncoder(separators=(",", ":"))
    with open(os.path.join(folder, "golden.json"), "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(f"{json.dumps(k)}: {encoder.encode(v)}" for k, v in result.items()) + "\n}\n")
    for name in ["README.md"]:
        for where, _, files in os.walk(folder):
            if name in files:
                os.remove(os.path.join(where, name))
    for where, _, files in os.walk(folder):
        for file in files:
            os.chmod(os.path.join(where, file), 0o644)


if __name__ == "__main__":
    main()
