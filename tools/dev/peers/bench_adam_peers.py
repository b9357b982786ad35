#!/usr/bin/env python3
"""Times other CPU optimizers per parameter, for comparison with `offload bench adam`.

    python3 tools/dev/peers/bench_adam_peers.py [--params MILLIONS] [--threads N] [--rounds N] [--format text|json]

It measures torch.optim.AdamW(fused=True) over fp32 tensors, the same with the passes that bf16 weights and scaled
gradients need (scale the gradient, step, copy to bf16), and DeepSpeedCPUAdam if it can be imported. Missing packages
are reported and skipped; without torch the exit status is 77. Times are medians of the rounds.
"""
import argparse
import json
import os
import statistics
import sys
import time


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--params", type=int, default=48, help="parameters, in units of 2^20")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--format", choices=["text", "json"], default="text")
    return parser.parse_args()


def median_ns_per_param(run, count, rounds):
    run()
    run()
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) * 1e9 / count


def weights_and_gradient(torch, count):
    generator = torch.Generator().manual_seed(1)
    weights = torch.nn.Parameter(torch.empty(count).uniform_(-0.02, 0.02, generator=generator))
    weights.grad = torch.empty(count).uniform_(-5e-4, 5e-4, generator=generator)
    return weights


SETTINGS = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def bench_torch(torch, count, rounds):
    weights = weights_and_gradient(torch, count)
    optimizer = torch.optim.AdamW([weights], fused=True, **SETTINGS)
    narrow = torch.empty(count, dtype=torch.bfloat16)

    def passes():
        weights.grad.mul_(1.0)
        optimizer.step()
        narrow.copy_(weights.data)

    yield "torch.adamw_fused.time", median_ns_per_param(optimizer.step, count, rounds)
    yield "torch.adamw_fused_with_passes.time", median_ns_per_param(passes, count, rounds)


def bench_deepspeed(torch, count, rounds):
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
    except Exception as error:  # importing it fails in many ways: no compiler, no accelerator
        print(f"DeepSpeedCPUAdam is skipped: {error}", file=sys.stderr)
        return
    weights = weights_and_gradient(torch, count)
    optimizer = DeepSpeedCPUAdam([weights], adamw_mode=True, **SETTINGS)
    narrow = torch.empty(count, dtype=torch.bfloat16)

    def passes():
        weights.grad.mul_(1.0)
        optimizer.step()
        narrow.copy_(weights.data)

    yield "deepspeed.cpu_adam.time", median_ns_per_param(optimizer.step, count, rounds)
    yield "deepspeed.cpu_adam_with_passes.time", median_ns_per_param(passes, count, rounds)


def main():
    options = parse()
    try:
        import torch
    except ImportError as error:
        print(f"skipped: torch is not installed ({error})", file=sys.stderr)
        return 77
    torch.set_num_threads(options.threads)
    count = options.params << 20
    records = []
    for bench in (bench_torch, bench_deepspeed):
        for name, value in bench(torch, count, options.rounds):
            records.append({"name": name, "value": round(value, 4), "unit": "ns/param", "limit": None, "ratio": None})
    if options.format == "json":
        print(json.dumps(records, indent=1))
        return 0
    print(f"{options.params} Mi parameters, {options.threads} threads, torch {torch.__version__}")
    for record in records:
        print(f"{record['name']:<38} {record['value']:9.3f} {record['unit']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
