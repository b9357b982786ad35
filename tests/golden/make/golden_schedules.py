#!/usr/bin/env python3
"""Makes tests/golden/schedules.json: learning rates of every step, by transformers' own schedules.

    python3 tests/golden/make/golden_schedules.py [--output tests/golden/schedules.json]

Needs torch and transformers; the tests need neither. A case has the options of `offload train`, the arguments that the
Trainer gives to transformers.get_scheduler for the same run, and the rate with which the optimizer takes each step.
"""

import argparse
import json
import math
import os

import torch
import transformers

CASES = [  # schedule, peak, warmup, steps, the Trainer's lr_scheduler_kwargs, our options for these
    ("linear", 3e-4, 4, 20, {}, {}),
    ("linear", 1e-3, 0, 7, {}, {}),
    ("linear", 1e-3, 0.15, 33, {}, {}),
    ("cosine", 1e-3, 3, 20, {}, {}),
    ("cosine", 1e-3, 0, 20, {"num_cycles": 1.25}, {"lr-num-cycles": "1.25"}),
    ("cosine_with_restarts", 2e-3, 3, 21, {}, {}),
    ("cosine_with_restarts", 2e-3, 3, 31, {"num_cycles": 3}, {"lr-num-cycles": "3"}),
    ("polynomial", 5e-4, 2, 20, {}, {}),
    ("polynomial", 5e-4, 2, 20, {"power": 2.5, "lr_end": 1e-5}, {"lr-power": "2.5", "min-lr": "1e-5"}),
    ("constant", 1e-4, 0, 5, {}, {}),
    ("constant_with_warmup", 1e-4, 3, 9, {}, {}),
    ("inverse_sqrt", 1e-3, 5, 40, {}, {}),
    ("inverse_sqrt", 1e-3, 0, 12, {}, {}),
    ("inverse_sqrt", 1e-3, 4, 30, {"timescale": 9}, {"lr-timescale": "9"}),
    ("cosine_with_min_lr", 1e-3, 4, 20, {"min_lr": 1e-4}, {"min-lr": "1e-4"}),
    ("cosine_with_min_lr", 1e-3, 4, 20, {"min_lr_rate": 0.25, "num_cycles": 1.5},
     {"min-lr-ratio": "0.25", "lr-num-cycles": "1.5"}),
    ("cosine_warmup_with_min_lr", 1e-3, 4, 20, {"min_lr_rate": 0.1}, {"min-lr-ratio": "0.1"}),
    ("warmup_stable_decay", 1e-3, 4, 30, {"num_decay_steps": 10}, {"decay-steps": "10"}),
    ("warmup_stable_decay", 1e-3, 4, 30, {"num_decay_steps": 10, "decay_type": "linear", "min_lr_ratio": 0.1},
     {"decay-steps": "10", "lr-decay-type": "linear", "min-lr-ratio": "0.1"}),
    ("warmup_stable_decay", 1e-3, 0, 30, {"num_decay_steps": 7, "decay_type": "1-sqrt"},
     {"decay-steps": "7", "lr-decay-type": "1-sqrt"}),
    ("warmup_stable_decay", 1e-3, 2, 30, {"num_decay_steps": 7, "num_cycles": 1.5},
     {"decay-steps": "7", "lr-num-cycles": "1.5"}),
]


def rates(name, peak, warmup, steps, kwargs):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak)
    warmup = warmup if warmup >= 1 or warmup == 0 else math.ceil(steps * warmup)
    schedule = transformers.get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=steps,
                                          scheduler_specific_kwargs=dict(kwargs))
    out = []
    for _ in range(steps):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--output", default=os.path.join(here, "..", "schedules.json"))
    args = parser.parse_args()
    cases = []
    for name, peak, warmup, steps, kwargs, ours in CASES:
        options = {"lr-scheduler-type": name, "learning-rate": repr(peak), **ours}
        if warmup:
            options["warmup-ratio" if warmup < 1 else "warmup-steps"] = repr(warmup)
        cases.append({"options": options, "lr_scheduler_kwargs": kwargs, "steps": steps,
                      "rates": rates(name, peak, warmup, steps, kwargs)})
    with open(args.output, "w", encoding="utf-8") as file:
        file.write('{\n"transformers": "%s",\n"cases": [\n' % transformers.__version__)
        file.write(",\n".join(json.dumps(case) for case in cases) + "\n]\n}\n")


if __name__ == "__main__":
    main()
