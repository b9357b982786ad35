#!/usr/bin/env python3
"""Makes layouts.json: which tensors transformers saves of the mixtures of golden.py, with their shapes, once with a tensor
for each expert and once with all experts in one; and for elements of the latter where the former has them. Read by
tests/unit/engine/hf/test_mixtures.c. Weights are random and not saved."""

import argparse
import json
import os
import tempfile

import safetensors.torch
import torch
import transformers

import golden

CASES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "glm4_moe", "deepseek_v2", "deepseek_v3", "granitemoe"]


def saved(model, original):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, save_original_format=original)
        return safetensors.torch.load_file(os.path.join(folder, "model.safetensors"))


def places(each, packed):
    """The first, a middle and the last element of each tensor of all experts of the last layer: [name and index with all
    experts in one, name and index with a tensor for each]."""
    of = {float(value): (name, idx) for name, tensor in each.items() for idx, value in enumerate(tensor.flatten())}
    found = []
    for name in sorted(name for name in packed.keys() - each.keys() if ".experts." in name)[-2:]:
        flat = packed[name].flatten()
        for idx in [0, len(flat) * 5 // 8 + 3, len(flat) - 1]:
            found.append([name, idx, *of[float(flat[idx])]])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../layouts.json"))
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    lines = []
    for case in CASES:
        torch.manual_seed(5)
        model = transformers.AutoModelForCausalLM.from_config(golden.CASES[case]["config"](), dtype=torch.float32)
        each, packed = saved(model, True), saved(model, False)
        layouts = [each] if each.keys() == packed.keys() else [each, packed]
        lines.append(json.dumps({"name": case, "layouts": [{name: list(tensor.shape) for name, tensor in sorted(of.items())}
                                                           for of in layouts],
                                 "places": places(each, packed)}, separators=(",", ":")))
    with open(args.output, "w", encoding="utf-8") as file:
        file.write('{"transformers":"%s","cases":[\n%s\n]}\n' % (transformers.__version__, ",\n".join(lines)))


if __name__ == "__main__":
    main()
