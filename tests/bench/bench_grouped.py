#!/usr/bin/env python3
"""Grouped products beside PyTorch's, on the CPU in float32: build/tests/bench/bench_grouped, then torch's grouped product
(torch._grouped_mm or torch.nn.functional.grouped_mm) and a loop of products, each by turns, best of the rounds.

    make build/tests/bench/bench_grouped
    OMP_NUM_THREADS=1 python3 tests/bench/bench_grouped.py [threads]
"""
import subprocess
import sys
import time

import torch

EXPERTS, IN, OUT = 16, 2048, 1536


def best(function, rounds=5):
    seconds = []
    for _ in range(rounds):
        begin = time.process_time()
        function()
        seconds.append((time.process_time() - begin) / torch.get_num_threads())
    return min(seconds)


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(threads)
    grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    ours = subprocess.run(["build/tests/bench/bench_grouped", str(threads)], capture_output=True, text=True).stdout
    print(ours, end="")
    weight = torch.randn(EXPERTS, OUT, IN, requires_grad=True)
    for rows in (4, 16, 64, 256):
        x = torch.randn(EXPERTS * rows, IN, requires_grad=True)
        offsets = torch.arange(1, EXPERTS + 1, dtype=torch.int32) * rows
        dout = torch.randn(EXPERTS * rows, OUT)

        def loop():
            return torch.cat([part @ weight[e].T for e, part in enumerate(x.split(rows))])

        def forward(product):
            with torch.no_grad():
                product()

        def both(product):
            x.grad = None
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            product().backward(dout)

        flops = 2e-9 * EXPERTS * rows * IN * OUT
        for name, product in (("grouped_mm", lambda: grouped_mm(x, weight.transpose(1, 2), offs=offsets)), ("loop", loop)):
            ahead = best(lambda: forward(product))
            back = best(lambda: both(product)) - ahead
            print(f"{rows:4} rows an expert, torch {torch.__version__} {name}: forward {flops / ahead:.1f} GFLOP/s, "
                  f"backward {2 * flops / back:.1f}", flush=True)


main()
