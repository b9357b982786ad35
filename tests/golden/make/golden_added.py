#!/usr/bin/env python3
"""Tokens that files beside a tokenizer.json add, as transformers adds them: writes tests/golden/added/cases.json.

    pip install transformers tokenizers jinja2
    python3 tests/golden/make/golden_added.py [--count 60] [--seed 1]

Each case has a `base` (a tokenizer.json of tests/golden/tokenizers/), the objects of the files that lie beside it, and
what PreTrainedTokenizerFast gives: the ids of every text, the number of tokens, BOS and EOS (null for none). The first
cases have the tokens in one file each or in files that contradict each other; the others are drawn. A draw that
transformers refuses is left out.
"""
import argparse
import json
import os
import random
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
from transformers import PreTrainedTokenizerFast

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
NAMES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "image_token"]
TOKENS = ["<s>", "</s>", "<|a|>", "<|b|>", "<pad>", "the", " dog", "foo", "<|im_end|>", "<x y>"]
TEXTS = ["the foo <|a|> the<|b|>the dog </s> <s> <pad> x", "<|im_end|>the <|a|><|b|> foo  <x y>. <mask>",
         "a<|a|> the\n<pad>  <|b|> dog<|im_end|> bfoo"]


def token(content, **flags):
    return dict(content=content, **flags)


END = token("<|im_end|>", lstrip=False, rstrip=False, normalized=False, single_word=False, special=True)
START = token("<|a|>", lstrip=False, rstrip=False, normalized=False, single_word=False, special=True)


def chosen(first):
    """Cases by name; `first` is the id of the first new token."""
    decoder = {str(first): START, str(first + 1): END}
    return {
        "nothing beside": {},
        "a decoder alone": {"tokenizer_config.json": {"added_tokens_decoder": decoder}},
        "a decoder out of order": {"tokenizer_config.json": {
            "added_tokens_decoder": {str(first + 1): END, str(first): START}}},
        "a decoder with other ids": {"tokenizer_config.json": {
            "added_tokens_decoder": {str(first + 90): END, str(first + 70): START}}},
        "added_tokens.json alone": {"added_tokens.json": {"<|im_end|>": first + 1, "<|a|>": first}},
        "special_tokens_map.json alone": {"special_tokens_map.json": {
            "bos_token": START, "eos_token": "<|im_end|>", "pad_token": "<|b|>"}},
        "names in tokenizer_config.json alone": {"tokenizer_config.json": {
            "bos_token": "<|a|>", "eos_token": dict(END, __type="AddedToken")}},
        "an EOS of the vocabulary that no list has": {"tokenizer_config.json": {"eos_token": "the"}},
        "extra tokens in tokenizer_config.json": {"tokenizer_config.json": {
            "additional_special_tokens": ["<|b|>", "<|a|>"]}},
        "extra tokens in special_tokens_map.json": {"special_tokens_map.json": {
            "additional_special_tokens": ["<|b|>", "<|a|>"]}},
        "extra tokens by both names": {"tokenizer_config.json": {
            "additional_special_tokens": ["<|b|>"], "extra_special_tokens": ["<|a|>"]}},
        "the map replaces names": {
            "tokenizer_config.json": {"bos_token": "<|b|>", "eos_token": "</s>"},
            "special_tokens_map.json": {"bos_token": "<|a|>", "eos_token": "<|im_end|>"}},
        "a decoder makes the map void": {
            "tokenizer_config.json": {"eos_token": "</s>", "added_tokens_decoder": decoder},
            "special_tokens_map.json": {"eos_token": "<|im_end|>", "bos_token": "<|b|>"}},
        "a decoder makes added_tokens.json void": {
            "tokenizer_config.json": {"added_tokens_decoder": decoder}, "added_tokens.json": {"<|b|>": first}},
        "a decoder changes flags": {"tokenizer_config.json": {"added_tokens_decoder": {
            "2": token("</s>", lstrip=True, rstrip=True, special=True), "7": token("foo", special=True)}}},
        "ids that added_tokens.json shares": {"added_tokens.json": {"<|b|>": 2, "<|a|>": first}},
        "names of added_tokens.json": {
            "added_tokens.json": {"<|im_end|>": first + 1, "<|a|>": first},
            "special_tokens_map.json": {"eos_token": "<|im_end|>"}},
        "names of the model's own": {"tokenizer_config.json": {"image_token": "<|b|>", "eos_token": "<|im_end|>"}},
    }


def flags(draw):
    return {key: draw.random() < (0.6 if key == "special" else 0.35)
            for key in ["lstrip", "rstrip", "single_word", "normalized", "special"] if draw.random() < 0.7}


def drawn(draw, first):
    files, config = {}, {}
    for name in NAMES:
        if draw.random() < 0.3:
            text = draw.choice(TOKENS)
            config[name] = text if draw.random() < 0.7 else dict(token(text, **flags(draw)), __type="AddedToken")
    if draw.random() < 0.5:
        ids = [0, 1, 2, first + 1, first + 3, first + 90] if draw.random() < 0.3 else list(range(first, first + 8))
        draw.shuffle(ids)
        texts = draw.sample(TOKENS, draw.randint(0, 6))
        config["added_tokens_decoder"] = {str(i): token(t, **flags(draw)) for i, t in zip(ids, texts)}
    if draw.random() < 0.3:
        config[draw.choice(["additional_special_tokens", "extra_special_tokens"])] = draw.sample(TOKENS, 2)
    if draw.random() < 0.8:
        files["tokenizer_config.json"] = config
    if draw.random() < 0.5:
        files["special_tokens_map.json"] = {
            name: draw.choice(TOKENS) if draw.random() < 0.6 else token(draw.choice(TOKENS), **flags(draw))
            for name in NAMES if draw.random() < 0.3}
    if draw.random() < 0.5:
        ids = draw.sample([0, 2, first, first + 1, first + 2, first + 3, first + 30], 4)
        files["added_tokens.json"] = dict(zip(draw.sample(TOKENS, draw.randint(0, 4)), ids))
    return files


def reference(base, files):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(HERE, "tokenizers", base)) as file:
            data = file.read()
        for name, text in [("tokenizer.json", data)] + [(n, json.dumps(o)) for n, o in files.items()]:
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        return {"count": len(tokenizer), "bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id,
                "ids": [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    cases = []
    for base, first in [("llama3.json", 427), ("metaspace_first.json", 306)]:
        draw = random.Random(args.seed)
        named = list(chosen(first).items()) + [(f"drawn {i}", drawn(draw, first)) for i in range(args.count)]
        for name, files in named:
            try:
                cases.append(dict(name=name, base=base, files=files, **reference(base, files)))
            except Exception as error:  # noqa: BLE001
                print(f"{base}, {name}: left out: {error!r:.100}")
    os.makedirs(os.path.join(HERE, "added"), exist_ok=True)
    with open(os.path.join(HERE, "added", "cases.json"), "w") as file:
        file.write('{"texts": ' + json.dumps(TEXTS) + ', "cases": [\n')
        file.write(",\n".join(json.dumps(case) for case in cases) + "\n]}\n")


if __name__ == "__main__":
    main()
