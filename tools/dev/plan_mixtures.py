#!/usr/bin/env python3
"""Prints docs/mixtures.md's table of plans: published mixtures of experts on GPUs of 24 and 80 GiB, with several sizes of
host memory and numbers of drives. Nothing is trained; every figure is predicted from a profile.

usage: plan_mixtures.py [--offload build/offload] [--box N]... [MODEL...]"""
import argparse
import json
import subprocess

MODELS = ["gpt-oss-20b", "qwen3-30b-a3b", "mixtral-8x7b", "glm-4.5-air", "gpt-oss-120b", "qwen3-235b-a22b"]
# profile, device memory, host memory in GiB, drives of 2 TB
BOXES = [("rtx4090-4-drives", "23GiB", 64, 1), ("rtx4090-4-drives", "23GiB", 128, 4), ("rtx4090-4-drives", "23GiB", 512, 4),
         ("a100-4-drives", "78GiB", 128, 4), ("a100-4-drives", "78GiB", 512, 4)]


def plan(offload, model, box):
    profile, device, host, drives = box
    command = [offload, "plan", "--model", model, "--profile", profile, "--device", "cuda", "--device-mem", device,
               "--host-mem", f"{host}GiB", "--dtype", "bf16", "--max-seq-length", "4096", "--per-device-train-batch-size", "1",
               "--gradient-accumulation-steps", "8", "--format", "json"]
    for drive in range(drives):
        command += ["--nvme", f"drive{drive}:1900GiB"]
    result = subprocess.run(command, capture_output=True, text=True)
    return json.loads(result.stdout) if result.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--offload", default="build/offload")
    parser.add_argument("--box", type=int, action="append", choices=range(len(BOXES)), help="this box; may be repeated")
    parser.add_argument("models", nargs="*", default=MODELS)
    args = parser.parse_args()
    print("| Model | GPU | Host, GiB | Drives | Experts a unit | A step, s | Tokens/s | On drives, GiB | Written a step, GiB | Binds |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for model in args.models:
        for box in BOXES if args.box is None else [BOXES[i] for i in args.box]:
            gpu = f"{'RTX 4090' if box[1] == '23GiB' else 'A100'}, {box[1].removesuffix('GiB')} GiB"
            head = f"| {model} | {gpu} | {box[2]} | {box[3]} |"
            found = plan(args.offload, model, box)
            if found is None or not found["verdict"]["fits"]:
                print(head, "| does not fit | | | | |", flush=True)
                continue
            seconds = found["predicted_seconds"]
            written = sum(found["bytes_per_step"]["nvme_write"].values()) / 2**30
            print(head, f"{found['experts_per_unit']} | {seconds:.1f} | {8 * 4096 / seconds:.0f} | {found['peak_bytes']['nvme'] / 2**30:.0f} |",
                  f"{written:.0f} | {found['binding_resource']} |", flush=True)


if __name__ == "__main__":
    main()
