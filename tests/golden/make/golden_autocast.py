#!/usr/bin/env python3
"""Makes tests/golden/autocast.json: 20 steps of PyTorch in float32 and under autocast to bfloat16, both on the CPU.

    python3 tests/golden/make/golden_autocast.py DATA_FOLDER [--output tests/golden/autocast.json]

Needs torch and transformers; the test needs neither. The data folder holds models/stories260K/, a trained model that is
not part of the project; the others are those of this folder. Parameters, gradients and the optimizer are in float32.
Under autocast PyTorch computes linear layers, the head and attention in bfloat16, norms and the loss in float32.
"""

import argparse
import json
import os
import struct

import torch
import transformers

from golden import BETAS, EPS, WEIGHT_DECAY, decays

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.normpath(os.path.join(HERE, ".."))
MODELS = ["llama_tied_gqa", "gpt2_small", "stories260K"]
STEPS, MICRO_BATCHES, LEARNING_RATE = 20, 4, 1e-3
STORIES_BATCH, STORIES_SEQ, STORIES_BOS, STORIES_LEARNING_RATE = 8, 127, 1, 5e-4


def stories_steps():
    """One micro-batch a step, as tests/golden/test_stories.c takes them."""
    with open(os.path.join(GOLDEN, "stories", "finetune_ids.bin"), "rb") as file:
        data = file.read()
    rows = torch.tensor(struct.unpack(f"<{len(data) // 2}H", data)).view(-1, STORIES_BATCH, STORIES_SEQ)
    bos = torch.full((STORIES_BATCH, 1), STORIES_BOS)
    return [[(torch.cat([bos, targets[:, :-1]], 1), targets)] for targets in rows[:STEPS]]


def golden_steps(golden):
    def flat(key):
        return [torch.tensor(ids).view(golden["batch"], golden["seq"]) for step in golden[key] for ids in step]
    batches = list(zip(flat("inputs"), flat("targets")))
    return [[batches[(step * MICRO_BATCHES + i) % len(batches)] for i in range(MICRO_BATCHES)]
            for step in range(STEPS)]


def load(name, data):
    folder = os.path.join(data, "models", name) if name == "stories260K" else os.path.join(GOLDEN, name)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                             attn_implementation="eager").eval()
    if name == "stories260K":
        return model, stories_steps(), 1.0, STORIES_LEARNING_RATE, lambda name, tensor: True
    with open(os.path.join(folder, "golden.json"), encoding="utf-8") as file:
        golden = json.load(file)
    return model, golden_steps(golden), golden["max_grad_norm"], LEARNING_RATE, decays


def run(name, data, autocast):
    model, steps, max_grad_norm, learning_rate, decayed = load(name, data)
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for n, p in named if decayed(n, p)], "weight_decay": WEIGHT_DECAY},
         {"params": [p for n, p in named if not decayed(n, p)], "weight_decay": 0.0}],
        lr=learning_rate, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for micro_batches in steps:
        counted, total = sum(targets.numel() for _, targets in micro_batches), 0.0
        optimizer.zero_grad()
        for inputs, targets in micro_batches:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                logits = model(input_ids=inputs, use_cache=False).logits
            nll = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
            (nll / counted).backward()
            total += float(nll.detach())
        losses.append(total / counted)
        limit = max_grad_norm if max_grad_norm > 0 else float("inf")
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit)))
        optimizer.step()
    return {"losses": losses, "grad_norms": norms}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--output", default=os.path.join(GOLDEN, "autocast.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    runs = []
    for name in MODELS:
        exact, cast = run(name, args.data, False), run(name, args.data, True)
        apart = max(abs(a - b) for a, b in zip(exact["losses"], cast["losses"]))
        print(f"{name}: loss {exact['losses'][0]:.4f} to {exact['losses'][-1]:.4f}; autocast's is up to {apart:.1e} "
              "away")
        runs.append({"model": name, "float32": exact, "autocast": cast})
    content = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__, "steps": STEPS,
               "micro_batches": MICRO_BATCHES, "learning_rate": LEARNING_RATE,
               "stories_learning_rate": STORIES_LEARNING_RATE}
    with open(args.output, "w", encoding="utf-8") as file:
        head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in content.items())
        file.write("{\n" + head + '"runs": [\n' + ",\n".join(json.dumps(each) for each in runs) + "\n]\n}\n")


if __name__ == "__main__":
    main()
