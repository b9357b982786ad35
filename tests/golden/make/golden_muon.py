#!/usr/bin/env python3
"""Writes tests/golden/muon/muon.safetensors: updates by Muon of matrices of some shapes, in float64 as its authors have
it (https://github.com/KellerJordan/Muon), and by torch.optim.Muon, which iterates in bfloat16.

    make/golden_muon.py --output muon
"""
import argparse
import math
import os

import safetensors.torch
import torch

SHAPES = [(12, 20), (33, 17), (64, 64), (5, 7), (48, 130)]
STEPS, RATE, DECAY, MOMENTUM = 4, 0.02, 0.1, 0.95


def orthogonalize(update):
    """zeropower_via_newtonschulz5 of the authors, but in the type of its input."""
    a, b, c = (3.4445, -4.7750, 2.0315)
    x = update.T if update.size(0) > update.size(1) else update
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if update.size(0) > update.size(1) else x


def by_authors(weight, grads, nesterov, ratio):
    """muon_update and the step of the authors' Muon."""
    weight, momentum = weight.double(), torch.zeros_like(weight, dtype=torch.float64)
    for grad in grads:
        grad = grad.double()
        momentum.lerp_(grad, 1 - MOMENTUM)
        update = grad.lerp(momentum, MOMENTUM) if nesterov else momentum
        weight = weight * (1 - RATE * DECAY) - RATE * ratio * orthogonalize(update)
    return weight.float(), momentum.float()


def by_torch(weight, grads, nesterov, name):
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.Muon([parameter], lr=RATE, weight_decay=DECAY, momentum=MOMENTUM, nesterov=nesterov,
                                 adjust_lr_fn=name)
    for grad in grads:
        parameter.grad = grad.clone()
        optimizer.step()
    return parameter.detach()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True)
    output = parser.parse_args().output
    random = torch.Generator().manual_seed(7)
    tensors = {}
    for i, (rows, cols) in enumerate(SHAPES):
        weight = torch.randn(rows, cols, generator=random)
        grads = torch.randn(STEPS, rows, cols, generator=random) * torch.tensor([1.0, 0.01, 3.0, 0.5]).reshape(-1, 1, 1)
        name = ("match_rms_adamw", "original")[i % 2]
        ratio = math.sqrt(max(1, rows / cols)) if i % 2 else 0.2 * math.sqrt(max(rows, cols))
        nesterov = i != 2
        tensors[f"{i}.weight"], tensors[f"{i}.grads"] = weight, grads
        tensors[f"{i}.exact"], tensors[f"{i}.momentum"] = by_authors(weight, grads, nesterov, ratio)
        tensors[f"{i}.torch"] = by_torch(weight, grads, nesterov, name)
        error = (tensors[f"{i}.torch"] - tensors[f"{i}.exact"]).abs().max() / (weight - tensors[f"{i}.exact"]).abs().max()
        print(f"{rows} x {cols}: torch.optim.Muon differs by {error:.1e} of the largest change")
    os.makedirs(output, exist_ok=True)
    safetensors.torch.save_file(tensors, os.path.join(output, "muon.safetensors"))


if __name__ == "__main__":
    main()
