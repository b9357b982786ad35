#!/usr/bin/env python3
"""Makes tests/golden/scaler.json: 200 steps of PyTorch under autocast to float16 with torch.amp.GradScaler, on the CPU.

    python3 tests/golden/make/golden_scaler.py [--output tests/golden/scaler.json]

Needs torch and transformers; the test needs neither. Parameters, gradients and the optimizer are in float32, and the
first steps are there in float32 too. In the steps of FORCED the loss is multiplied by 2^60 more, so that gradients
overflow whatever rounds to float16 on the way.
"""

import argparse
import json
import os

import torch
import transformers

from golden import BETAS, EPS, WEIGHT_DECAY, decays

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.normpath(os.path.join(HERE, ".."))
MODELS = ["llama_tied_gqa", "gpt2_small"]
STEPS, MICRO_BATCHES, LEARNING_RATE = 200, 2, 5e-4
FORCED = [2, 3, 40, 77, 78, 79, 150]
FORCED_BY = 2.0 ** 60
SCALE, WINDOW = 2.0 ** 12, 25


def batches_of(golden):
    def flat(key):
        return [torch.tensor(ids).view(golden["batch"], golden["seq"]) for step in golden[key] for ids in step]
    return list(zip(flat("inputs"), flat("targets")))


def run(name, steps, half):
    folder = os.path.join(GOLDEN, name)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                             attn_implementation="eager").eval()
    with open(os.path.join(folder, "golden.json"), encoding="utf-8") as file:
        golden = json.load(file)
    batches, named = batches_of(golden), list(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for n, p in named if decays(n, p)], "weight_decay": WEIGHT_DECAY},
         {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=BETAS, eps=EPS)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=WINDOW, enabled=half)
    losses, norms, scales = [], [], []
    for step in range(steps):
        taken = [batches[(step * MICRO_BATCHES + i) % len(batches)] for i in range(MICRO_BATCHES)]
        counted, total = sum(targets.numel() for _, targets in taken), 0.0
        forced = FORCED_BY if half and step in FORCED else 1.0
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
        for inputs, targets in taken:
            with torch.autocast("cpu", dtype=torch.float16, enabled=half):
                logits = model(input_ids=inputs, use_cache=False).logits
            nll = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
            scaler.scale(nll / counted * forced).backward()
            total += float(nll.detach())
        scaler.unscale_(optimizer)
        limit = golden["max_grad_norm"] if golden["max_grad_norm"] > 0 else float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit))
        scaler.step(optimizer)
        scaler.update()
        losses.append(total / counted)
        norms.append(norm if torch.isfinite(torch.tensor(norm)) else None)
    return {"losses": losses, "grad_norms": norms, "scales": scales}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default=os.path.join(GOLDEN, "scaler.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    runs = []
    for name in MODELS:
        half, exact = run(name, STEPS, True), run(name, STEPS, False)
        skipped = [step for step, norm in enumerate(half["grad_norms"]) if norm is None]
        apart = max(abs(a - b) for a, b in zip(half["losses"][:20], exact["losses"][:20]))
        print(f"{name}: loss {half['losses'][0]:.4f} to {half['losses'][-1]:.4f}, scale {half['scales'][-1]:g}, "
              f"{len(skipped)} steps skipped; {apart:.1e} from float32 in 20 steps")
        assert skipped == FORCED, skipped
        runs.append({"model": name, **half})
    content = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__, "steps": STEPS,
               "micro_batches": MICRO_BATCHES, "learning_rate": LEARNING_RATE, "forced": FORCED,
               "forced_by": FORCED_BY, "window": WINDOW}
    with open(args.output, "w", encoding="utf-8") as file:
        head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in content.items())
        file.write("{\n" + head + '"runs": [\n' + ",\n".join(json.dumps(each) for each in runs) + "\n]\n}\n")


if __name__ == "__main__":
    main()
