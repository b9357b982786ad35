#!/usr/bin/env python3
"""Writes the tokens that tests/golden/test_stories.c trains on: tests/golden/stories/finetune_ids.bin.

    python3 tests/golden/make/golden_stories.py DATA_FOLDER

Needs tokenizers. The data folder holds models/stories260K/ and text/tinyshakespeare/. The reference
fine-tuning run of that model reads the first 400000 characters of the text; its 30 steps of 8 rows need only
the first 30 * 8 * 127 ids, and these are what the file holds, as 16-bit little-endian numbers.
"""

import argparse
import os
import struct

import tokenizers

CHARACTERS = 400000
STEPS, BATCH, SEQ = 30, 8, 128


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    args = parser.parse_args()
    tokenizer = tokenizers.Tokenizer.from_file(
        os.path.join(args.data, "models", "stories260K", "tokenizer.json"))
    with open(os.path.join(args.data, "text", "tinyshakespeare", "input.txt"), encoding="utf-8") as file:
        text = file.read(CHARACTERS)
    ids = tokenizer.encode(text, add_special_tokens=False).ids[: STEPS * BATCH * (SEQ - 1)]
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(here, "..", "stories", "finetune_ids.bin")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(struct.pack(f"<{len(ids)}H", *ids))
    print(f"{len(ids)} ids")


if __name__ == "__main__":
    main()
