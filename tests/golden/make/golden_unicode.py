#!/usr/bin/env python3
"""Reference results of every code point in contexts that show its class, by Hugging Face's `tokenizers` library.

    pip install tokenizers
    python3 tests/golden/make/golden_unicode.py                 # writes tests/golden/unicode/ again, the same bytes

Each case is a small tokenizer whose merges join a character with what follows it, if one piece holds both; so the ids
tell which class the library gives the character. NAME.json is the tokenizer; hashes.json holds the library's version
and, for each case, a hash of the ids of each block of 8,192 code points.
"""
import json
import os

import tokenizers
from tokenizers import Tokenizer, pre_tokenizers

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "unicode")
BLOCK = 8192
NEIGHBOURS = "a1!A"  # one of each class that expressions tell apart

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CASES = {
    "gpt2": GPT2,
    "numbers": r"\p{Nd}+|\p{Nl}+|[^\p{No}]|\p{No}+",
    "letters": r"[\p{Lu}\p{Lt}]+|\p{Ll}+|[\p{Lm}\p{Lo}\p{M}]+|\P{L}",
    "marks": r"\p{Mn}+|[\p{Mc}\p{Me}a-z]+|[^\p{P}\p{S}a]+|[\p{Sm}\p{So}!]+|\p{Pd}1?",
    "others": r"[\p{C}a]+|[\p{Cf}\p{Co}1]+|[\p{Z}!]+|\s?A",
    "scripts": r"[\p{Han}a]+|[\p{Hiragana}\p{Katakana}1]+|[\p{Arabic}\p{Kannada}!]+|[\p{Latin}\p{Hangul}]+",
}


def text_of(cp):
    char = chr(cp)
    return f"{char}a{char}1{char}!{char}A{char} e{char}\u0301QQ <m> {char}<n>{char}"


def added(identity, content, **flags):
    base = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
    return {"id": identity, "content": content, **{**base, **flags}}


def vocabulary(units, joined):
    """Tokens of single units, then of each unit that `joined` has, followed by a neighbour; with their merges."""
    vocab = {unit: i for i, unit in enumerate(units)}
    merges = [[unit, near] for near in NEIGHBOURS for unit in joined]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    return vocab, merges


def byte_level(steps, normalizer=None):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    writes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tails = sorted({writes.pre_tokenize_str(chr(cp))[0][0][-1] for cp in range(0x80, 0x100)})  # the last bytes of characters
    vocab, merges = vocabulary(alphabet, tails)
    tokens = [added(len(vocab) + i, text, **flags) for i, (text, flags) in enumerate(
        [("QQ", {"single_word": True}), ("<m>", {"lstrip": True}), ("<n>", {"rstrip": True, "lstrip": True})])]
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps + [step]},
            "post_processor": None, "decoder": step,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": merges}}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def sentencepiece():
    """Forms, digits and words as SentencePiece models have them; what no token names becomes bytes."""
    data = byte_level([], {"type": "Sequence", "normalizers": [
        {"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": r"\p{Nd}\p{L}"}, "content": "<n>"}]})
    units = ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)] + list("▁" + NEIGHBOURS)
    vocab, merges = vocabulary(units, "▁" + NEIGHBOURS)
    for i, token in enumerate(data["added_tokens"]):
        token["id"] = len(vocab) + i
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": False},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}]}
    data["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    data["model"].update(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return data


def block_hashes(data):
    """FNV-1a with 64 bits, an id at a time; each text ends with 0xffffffff."""
    tokenizer = Tokenizer.from_str(json.dumps(data))
    hashes = []
    for begin in range(0, 0x110000, BLOCK):
        points = [cp for cp in range(begin, begin + BLOCK) if not 0xD800 <= cp < 0xE000]
        value = 0xCBF29CE484222325
        for encoding in tokenizer.encode_batch([text_of(cp) for cp in points], add_special_tokens=False):
            for identity in encoding.ids + [0xFFFFFFFF]:
                value = (value ^ identity) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
        hashes.append(f"{value:016x}")
    return hashes


def main():
    os.makedirs(HERE, exist_ok=True)
    cases = {name: byte_level([split(regex)]) for name, regex in CASES.items()}
    cases["digits"] = byte_level([{"type": "Digits", "individual_digits": False}])
    cases["forms"] = byte_level([split(GPT2)], {"type": "NFC"})
    cases["sentencepiece"] = sentencepiece()
    hashes = {}
    for name, data in cases.items():
        with open(os.path.join(HERE, name + ".json"), "w", encoding="utf-8") as file:
            file.write(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
        hashes[name] = block_hashes(data)
    with open(os.path.join(HERE, "hashes.json"), "w", encoding="utf-8") as file:
        json.dump({"tokenizers": tokenizers.__version__, "block": BLOCK, "hashes": hashes}, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
