#!/usr/bin/env python3
"""Trains a small mixture of each family from folders of both layouts, and lets transformers load what is saved.

    python3 tools/dev/check_layouts.py --tokenizer FOLDER [--offload build/offload] [CASE...]

For maintainers. The models are those of tests/golden with 512 tokens, so that --tokenizer can be any of as many. Each is
written by transformers with a tensor for each expert and with all experts in one, in float32 and bfloat16, trained for two
steps, and saved. It prints whether the saved file has the names, shapes and types that were read, and the largest
difference between transformers' logits of it, in float32, and those of `offload generate`. Exit status 1 when one is above
--tolerance, or the file differs.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import check_export
import safetensors
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/golden/make"))
import golden  # noqa: E402

CASES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "glm4_moe", "deepseek_v2", "deepseek_v3", "granitemoe"]
TEXT = "Once upon a time there was a little girl who lived in a village near the forest. "


def write(case, layout, dtype, folder, args):
    """A model with random weights, large enough that routers decide, in the layout."""
    config = golden.CASES[case]["config"]()
    config.vocab_size, config.initializer_range = 512, 0.2
    config.max_position_embeddings = max(config.max_position_embeddings, 512)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
            if tensor.dim() == 1 and tensor.is_floating_point() and "inv_freq" not in name:
                tensor.add_(torch.randn_like(tensor) * 0.1)
    if dtype == "bf16":  # as published: routers and the bias of the choice may stay in float32
        model.save_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(folder, save_original_format=layout == "each")
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(os.path.join(args.tokenizer, name), folder)
        os.chmod(os.path.join(folder, name), 0o644)


def tensors_of(folder):
    with safetensors.safe_open(os.path.join(folder, "model.safetensors"), "pt") as file:
        return {name: (tuple(file.get_slice(name).get_shape()), file.get_slice(name).get_dtype()) for name in file.keys()}


def offload(args, *words):
    result = subprocess.run([args.offload, *words], capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: {result.stderr}")
    return result.stdout


def check(case, layout, dtype, base, args):
    name = f"{case}-{layout}-{dtype}"
    folder, run = base / name, base / f"{name}-run"
    write(case, layout, dtype, folder, args)
    (base / "text.txt").write_text(TEXT * 40, encoding="utf-8")
    offload(args, "train", "--model", str(folder), "--data", str(base / "text.txt"), "--output", str(run), "--max-steps",
            "2", "--max-seq-length", "32", "--per-device-train-batch-size", "2", "--eval-fraction", "0", "--quiet",
            "--learning-rate", "1e-3", "--warmup-steps", "0", "--profile", "builtin", "--save-dtype", dtype)
    saved = run / "checkpoint-2"
    read, written = tensors_of(folder), tensors_of(saved)
    for entry in sorted(set(read.items()) ^ set(written.items()))[:4]:
        print(f"  differs: {entry}")
    worst, largest = check_export.largest_difference(str(saved), args.offload)
    each = any(".experts.0." in name for name in read)
    print(f"| `{case}` | {'one an expert' if each else 'all in one'} | {dtype} | {len(read)} | "
          f"{'same' if read == written else 'OTHERS'} | {largest:.1f} | {worst:.1e} |", flush=True)
    return read == written and worst <= args.tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--offload", default="build/offload")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("cases", nargs="*", default=CASES)
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    golden.modeling_deepseek_v2.DeepseekV2Moe.num_experts = property(lambda self: self.config.n_routed_experts)
    print("| Family | Tensors of experts | Type | Tensors | Saved | Largest logit | Largest difference |")
    print("|---|---|---|---|---|---|---|")
    right = True
    with tempfile.TemporaryDirectory() as name:
        for case in args.cases:
            for layout in ["each", "packed"] if case not in ["gpt_oss", "granitemoe"] else ["packed"]:
                for dtype in ["fp32", "bf16"]:
                    right = check(case, layout, dtype, pathlib.Path(name), args) and right
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
