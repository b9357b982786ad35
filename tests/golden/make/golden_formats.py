#!/usr/bin/env python3
"""Makes the samples of tests/golden/formats with programs that were built at earlier commits.

    golden_formats.py COMMIT=PATH/TO/offload ...

Each program trains a tiny model for three steps, which are in its store, its run folder and its trace; then for five in
one go, whose curve is what a run that goes on from the sample must follow.
"""
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "formats")
WORDS = ["--max-seq-length", "8", "--batch-size", "1", "--gradient-accumulation-steps", "2", "--learning-rate", "3e-2",
         "--lr-schedule", "constant", "--warmup-steps", "0", "--weight-decay", "0.1", "--data-order", "sequential",
         "--data-format", "bytes", "--eval-fraction", "0", "--eval-windows", "1", "--eval-steps", "0", "--save-steps",
         "0", "--chunk-elems", "2048", "--compute-threads", "1", "--optimizer-threads", "1"]


def pack(source, target):
    """Writes what a file holds besides long runs of zeros: its size, then offset, length and bytes of each piece."""
    with open(source, "rb") as file, open(target, "wb") as out:
        data = file.read()
        out.write(struct.pack("<Q", len(data)))
        for piece in re.finditer(rb"[^\0](?:\0{0,15}[^\0])*", data):
            out.write(struct.pack("<II", piece.start(), len(piece.group())) + piece.group())


def train(program, folder, name, steps, more):
    words = [program, "train", "--model", os.path.join(HERE, "config.json"), "--data", os.path.join(HERE, "text"),
             "--output", os.path.join(folder, name), "--max-steps", str(steps)] + WORDS + more
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    if done.returncode != 0:
        sys.exit(f"{program}: {done.stderr[-1000:]}")


def make(commit, program):
    sample = os.path.join(HERE, commit)
    with tempfile.TemporaryDirectory() as folder:
        drive = os.path.join(folder, "drive")
        os.mkdir(drive)
        helped = subprocess.run([program, "help", "train"], capture_output=True, text=True).stdout
        trace = ["--trace", "1", "--trace-bytes", "256KiB"] if "--trace " in helped else []
        train(program, folder, "run", 3, ["--nvme", f"{drive}:4MiB"] + trace)
        train(program, folder, "whole", 5, [])
        shutil.rmtree(sample, ignore_errors=True)
        os.mkdir(sample)
        pack(os.path.join(drive, "offload-store-0.ox"), os.path.join(sample, "store"))
        if trace:
            pack(os.path.join(folder, "run", "trace.bin"), os.path.join(sample, "trace"))
        for name in ("run.json", "config.resolved.yaml", "metrics.jsonl", "latest", "checkpoint-3"):
            source = os.path.join(folder, "run", name)
            if os.path.isdir(source):
                shutil.copytree(source, os.path.join(sample, name))
            elif os.path.exists(source):
                with open(source, encoding="utf-8") as file, open(os.path.join(sample, name), "w", encoding="utf-8") as out:
                    out.write(file.read().replace(HERE, "/samples").replace(folder, "/samples"))
        shutil.copy(os.path.join(folder, "whole", "metrics.jsonl"), os.path.join(sample, "whole.jsonl"))


for word in sys.argv[1:]:
    make(*word.split("=", 1))
