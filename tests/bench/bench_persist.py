#!/usr/bin/env python3
"""Compares steps that stay uncommitted with steps that are all commits, where state lives in memory and on drives.

    tests/bench/bench_persist.py [FOLDER]

Six budgets of host memory, and so six mixes. The two runs of a pair take turns, may be placed differently by the
planner, and must report the same losses. Prints for each mix the medians of seconds a step and their ratio; and the
bytes that an uncommitted step writes and reads, as the kernel counts them (rusage of a run less that of one with half as
many steps), beside those that the plan's homes need. FOLDER (build/persist) holds the runs; its drive is the one that is
used. RUNS (3) pairs per mix. For quiet machines.
"""
import json
import os
import re
import shutil
import statistics
import subprocess
import sys

RUNS, STEPS = int(os.environ.get("RUNS", "3")), 16
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ROOT + "/build/persist")
MIXES = ["180MiB", "260MiB", "340MiB", "420MiB", "500MiB", "580MiB"]


def environment():
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_") and k != "OFFLOAD_PROFILE"}
    return dict(kept, XDG_CACHE_HOME=FOLDER + "/cache", XDG_CONFIG_HOME=FOLDER + "/config")


def write_inputs():
    """The demo's model with other sizes, 58 M parameters, and a text."""
    with open(ROOT + "/tools/demo/model.json") as file:
        model = json.load(file)
    model.update(hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12,
                 num_key_value_heads=12)
    with open(FOLDER + "/model.json", "w") as file:
        json.dump(model, file)
    names = ["README.md", "CHANGELOG.md"] + sorted(n for n in os.listdir(ROOT + "/docs") if n.endswith(".md"))
    with open(FOLDER + "/text.txt", "w") as text:
        for name in names:
            with open(os.path.join(ROOT, "docs" if name not in names[:2] else "", name)) as file:
                text.write(file.read())


def run(memory, steps, persist):
    """Returns the metrics of the steps, the bytes that the kernel saw on drives, and what the run printed."""
    for name in ("run", "nvme"):
        shutil.rmtree(f"{FOLDER}/{name}", ignore_errors=True)
    os.mkdir(FOLDER + "/nvme")
    words = f"""--max-steps {steps} --persist-steps {persist} --host-mem {memory} --device-mem 160MiB --from-scratch
        --eval-steps 0 --save-steps 0 --max-seq-length 64 --per-device-train-batch-size 4 --compute-threads 2
        --optimizer-threads 2 --profile builtin""".split()
    command = [ROOT + "/build/offload", "train", "--model", FOLDER + "/model.json", "--data", FOLDER + "/text.txt",
               "--output", FOLDER + "/run", "--nvme", FOLDER + "/nvme:4GiB"] + words
    with open(FOLDER + "/out.txt", "w") as out, open(FOLDER + "/err.txt", "w") as err:
        child = subprocess.Popen(command, stdout=out, stderr=err, env=environment())
        _, status, usage = os.wait4(child.pid, 0)
    with open(FOLDER + "/out.txt") as out, open(FOLDER + "/err.txt") as err:
        printed, errors = out.read(), err.read()
    if status != 0:
        sys.exit(errors)
    with open(FOLDER + "/run/metrics.jsonl") as file:
        lines = [json.loads(line) for line in file]
    moved = {"write": 512 * usage.ru_oublock, "read": 512 * usage.ru_inblock}
    return [line for line in lines if line["type"] == "step"], moved, printed + errors


def seconds(steps):
    return statistics.median(step["seconds"] for step in steps[3:])


def mix(memory):
    times, commits, ratios = [], [], []
    for _ in range(RUNS):
        kept, kept_bytes, printed = run(memory, STEPS, 1000)
        every, _, _ = run(memory, STEPS, 1)
        if [step["loss"] for step in kept] != [step["loss"] for step in every]:
            sys.exit("the losses differ")
        times.append(seconds(kept))
        commits.append(seconds(every))
        ratios.append(times[-1] / commits[-1])
    _, half_bytes, _ = run(memory, STEPS // 2, 1000)
    whole = sum(every[-1]["bytes"]["nvme_write"].values())
    units = re.search(r"homes between tasks.*?optimizer state +\d+ +(\d+) +(\d+)", printed, re.S)
    print(f"{memory}: state of {units[1]} units in memory, of {units[2]} on the drive: {statistics.median(times):.3f} s "
          f"uncommitted, {statistics.median(commits):.3f} s committed, ratio {statistics.median(ratios):.3f} "
          f"({min(ratios):.3f} to {max(ratios):.3f}); of an uncommitted step", end="")
    for way, bytes_seen in kept_bytes.items():
        seen = (bytes_seen - half_bytes[way]) / (STEPS - STEPS // 2)
        needed = sum(kept[-1]["bytes"]["nvme_" + way].values())
        print(f" the kernel {way}s {seen / 2**20:.1f} MiB, the plan {needed / 2**20:.1f}, ratio {seen / needed:.4f};", end="")
    print(f" a committed one writes {whole / 2**20:.1f}", flush=True)


def main():
    os.makedirs(FOLDER, exist_ok=True)
    write_inputs()
    for memory in MIXES:
        mix(memory)


if __name__ == "__main__":
    main()
