#!/usr/bin/env python3
"""Loads a model folder with transformers and prints or compares logits.

    python3 tools/dev/check_export.py FOLDER --ids 5,17,3            prints {"ids": ..., "logits": ...} as JSON
    python3 tools/dev/check_export.py FOLDER --compare dump.json     compares with such a file; exit status 1 when
                                                                 the difference exceeds --tolerance
    python3 tools/dev/check_export.py FOLDER --offload build/offload compares with the logits of `offload generate` on the
                                                                 same folder, after several prompts

For maintainers: it shows that other programs read a folder saved by `offload` and see the same model. Weights are
widened to float32, so a folder in bfloat16 is computed without further rounding.
"""

import argparse
import json
import subprocess
import sys

import torch
import transformers


def logits_of(folder, ids):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True,
        output_loading_info=True)
    problems = {kind: sorted(names) for kind, names in report.items() if names}
    if problems:
        raise SystemExit(f"{folder}: transformers reports {problems}")
    vocab = model.get_input_embeddings().num_embeddings
    outside = [i for i in ids if not 0 <= i < vocab]
    if outside:
        raise SystemExit(f"{folder}: ids {outside} lie outside the vocabulary of {vocab}")
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def compare(logits, expected, tolerance):
    expected = torch.tensor(expected)
    if expected.shape != logits.shape:
        raise SystemExit(f"the dump holds logits of shape {tuple(expected.shape)}, not {tuple(logits.shape)}")
    worst = float((logits - expected).abs().max())
    same_choice = int((logits.argmax(-1) == expected.argmax(-1)).sum())
    print(f"largest difference {worst:.3g} (tolerance {tolerance:g}); "
          f"same most likely token at {same_choice} of {len(logits)} positions")
    return worst <= tolerance  # False for NaN


PROMPTS = ["", "Once upon a time", "Tom and Jane went to the park. They saw a", "ROMEO:\nWhat say you", "1 2 3"]


def largest_difference(folder, program):
    """Of the logits of the whole vocabulary after each prompt, by `offload generate` and by transformers, and the
    largest logit."""
    vocab = transformers.AutoConfig.from_pretrained(folder, local_files_only=True).vocab_size
    worst = largest = 0.0
    for prompt in PROMPTS:
        answer = subprocess.run([program, "generate", "--model", folder, "--prompt", prompt, "--max-new-tokens", "0",
                                 "--temperature", "0", "--top-logits", str(vocab), "--format", "json"],
                                check=True, capture_output=True, text=True)
        found = json.loads(answer.stdout)
        expected = logits_of(folder, found["ids"])[-1]
        mine = torch.full((vocab,), float("nan"))
        for idx, value in found["prompt_logits"]["top"]:
            mine[idx] = value
        difference = float((mine - expected).abs().max())
        worst = max(worst, difference) if difference == difference else float("inf")
        largest = max(largest, float(expected.abs().max()))
    return worst, largest


def compare_programs(folder, program, tolerance):
    worst, _ = largest_difference(folder, program)
    print(f"{len(PROMPTS)} prompts: largest difference {worst:.3g} (tolerance {tolerance:g})")
    return worst <= tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--ids", help="token ids, separated by commas")
    source.add_argument("--compare", metavar="JSON", help='a file with "ids" and "logits"')
    source.add_argument("--offload", metavar="PROGRAM", help="compare with this program")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    if args.offload is not None:
        return 0 if compare_programs(args.folder, args.offload, args.tolerance) else 1
    if args.ids is not None:
        ids = [int(text) for text in args.ids.split(",")]
        json.dump({"ids": ids, "logits": logits_of(args.folder, ids).tolist()}, sys.stdout)
        print()
        return 0
    with open(args.compare, encoding="utf-8") as file:
        dump = json.load(file)
    return 0 if compare(logits_of(args.folder, dump["ids"]), dump["logits"], args.tolerance) else 1


if __name__ == "__main__":
    sys.exit(main())
