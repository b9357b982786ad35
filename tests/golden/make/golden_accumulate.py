#!/usr/bin/env python3
"""Makes tests/golden/accumulate.json: 20 steps of mixtures of experts, with the same four rows a step cut three ways.

    python3 tests/golden/make/golden_accumulate.py [--output tests/golden/accumulate.json]

Needs torch and transformers; the test needs neither. Float64 on the CPU, as in golden.py, AdamW and clipping as in golden.py. Rows are those
of the case, in a circle; "4x1" is one micro-batch of four rows.
"""

import argparse
import json
import os

import torch
import transformers

from golden import BETAS, EPS, WEIGHT_DECAY, decays, in_float64, step_loss

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.normpath(os.path.join(HERE, ".."))
STEPS, ROWS = 20, 4
# Models with their rates. The clamps of this gpt_oss bind: a higher rate makes more of roundings in 20 steps than is
# looked for.
MODELS = {"qwen3_moe": 5e-4, "mixtral": 5e-4, "deepseek_v3": 5e-4, "gpt_oss": 5e-5}
WAYS = {"1x4": 1, "2x2": 2, "4x1": 4}  # rows of a micro-batch


def run(name, batch):
    with open(os.path.join(GOLDEN, name, "golden.json"), encoding="utf-8") as file:
        golden = json.load(file)
    rows = [[torch.tensor(ids) for step in golden[key] for ids in step] for key in ("inputs", "targets")]
    model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(GOLDEN, name), dtype=torch.float64,
                                                              attn_implementation="eager",
                                                              experts_implementation="eager").eval()
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for n, p in named if decays(n, p)], "weight_decay": WEIGHT_DECAY},
         {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0}],
        lr=MODELS[name], betas=BETAS, eps=EPS, foreach=False)
    losses, norms = [], []
    for step in range(STEPS):
        idx = [(step * ROWS + i) % len(rows[0]) for i in range(ROWS)]
        micro_batches = [tuple(torch.stack([kind[k] for k in idx[at : at + batch]]) for kind in rows)
                         for at in range(0, ROWS, batch)]
        optimizer.zero_grad()
        losses.append(step_loss(model, micro_batches, {}, step))
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), golden["max_grad_norm"], foreach=False)))
        optimizer.step()
    return {"learning_rate": MODELS[name], "losses": losses, "grad_norms": norms}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default=os.path.join(GOLDEN, "accumulate.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    with in_float64():
        runs = [{"model": name, "rows": batch, **run(name, batch)} for name in MODELS for batch in WAYS.values()]
    for name in MODELS:
        of = [r["losses"] for r in runs if r["model"] == name]
        print(name, of[0][0], of[0][-1], "apart", max(max(abs(a - b) for a, b in zip(of[0], x)) for x in of))
    lines = [json.dumps(r, separators=(",", ":")) for r in runs]
    with open(args.output, "w", encoding="utf-8") as file:
        file.write('{"steps":%d,"step_rows":%d,"runs":[\n%s\n]}\n' % (STEPS, ROWS, ",\n".join(lines)))


if __name__ == "__main__":
    main()
