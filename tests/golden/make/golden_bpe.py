#!/usr/bin/env python3
"""Makes tests/golden/bpe/: what the `tokenizers` library trains on small corpora.

    python3 tests/golden/make/golden_bpe.py [--output tests/golden/bpe] [--check OFFLOAD [--random N]]

Each file has the texts, the settings, the vocabulary in the order of ids, the merges, and the ids of a probe.
With --check the program is run on the same texts, on N random corpora and on FILE... of --files, and transformers
must load what it writes with the same ids. Needs tokenizers; --check also transformers.
"""

import argparse
import json
import os
import random
import subprocess
import tempfile

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
PROBE = "Hello, wörld! I'm 12345 你好\n\n<|endoftext|> aaaa bbab  abcabc\t— ok"


def pre_tokenizer(name):
    if name == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    pattern = {"llama3": LLAMA3, "qwen2": QWEN2}[name]
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(texts, vocab_size, words="gpt2", special=("<|endoftext|>",), min_frequency=0):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(words)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=list(special),
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = sorted(model["vocab"], key=model["vocab"].get)
    return {"vocab_size": vocab_size, "pre_tokenizer": words, "special": list(special),
            "min_frequency": min_frequency, "texts": texts, "vocab": vocab[256 + len(special):],
            "merges": [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]],
            "probe": PROBE, "ids": tokenizer.encode(PROBE).ids}


def random_text(generator, letters, words, longest):
    return " ".join("".join(generator.choice(letters) for _ in range(generator.randint(1, longest)))
                    for _ in range(words))


def cases():
    generator = random.Random(7)
    prose = open(os.path.join(os.path.dirname(__file__), "../../../README.md"), encoding="utf-8").read()[:12000]
    unicode_text = ("Ünïcödé straße ŁÓDŹ Ελληνικά кириллица עברית العربية हिन्दी ไทย 日本語のテキスト 中文文本 한국어 "
                    "🙂🙃 e\u0301 \u00a0\u2003x ½ ² Ⅷ 123٤٥٦ \u180e naïve café\r\n\tend  ") * 3
    for letters, longest in (("ab", 6), ("abc", 9), ("aab", 12), ("é中a", 5)):
        for number in range(4):
            text = [random_text(generator, letters, generator.randint(3, 120), longest) for _ in range(3)]
            yield f"ties_{len(set(letters))}_{longest}_{number}", dict(texts=text, vocab_size=256 + 1 + 60)
    yield "prose", dict(texts=[prose], vocab_size=700)
    yield "prose_llama3", dict(texts=[prose], vocab_size=500, words="llama3")
    yield "prose_qwen2", dict(texts=[prose, "1234567 1234 12 12 1234567"], vocab_size=500, words="qwen2")
    yield "unicode", dict(texts=[unicode_text], vocab_size=600)
    yield "unicode_qwen2", dict(texts=[unicode_text], vocab_size=600, words="qwen2")
    yield "bytes_alone", dict(texts=["ab ab ab"], vocab_size=257)
    yield "one_merge", dict(texts=["ab ab ab bc bc bc"], vocab_size=258)
    yield "no_special", dict(texts=["ab ab ab bc bc bc"], vocab_size=260, special=())
    yield "specials_in_text", dict(texts=["<s>ab<s> <s> <s>ab </s>" * 9], vocab_size=290, special=("<s>", "</s>", "<pad>"))
    yield "rare_left_alone", dict(texts=["aa aa aa bb bb cc"], vocab_size=300, min_frequency=2)
    yield "exhausted", dict(texts=["one two"], vocab_size=5000)
    yield "overlaps", dict(texts=["aaaaaaa aaaa aaa bbbbb bbb ababab"], vocab_size=290)
    yield "lines", dict(texts=["a line\n\n  indented\nanother line\r\n\r\n   end\n" * 4, "\n\n\n", ""], vocab_size=320)


def check(program, name, case, folder):
    """Runs the program on the texts as rows and compares what it has written."""
    rows, out = os.path.join(folder, "rows.jsonl"), os.path.join(folder, name)
    with open(rows, "w", encoding="utf-8") as file:
        for text in case["texts"]:
            file.write(json.dumps({"text": text}) + "\n")
    subprocess.run([program, "tokenize", "--train", rows, "--vocab-size", str(case["vocab_size"]), "--output", out,
                    "--pre-tokenizer", case["pre_tokenizer"], "--special-tokens", ",".join(case["special"]),
                    "--min-frequency", str(case["min_frequency"])], check=True, capture_output=True)
    written = json.load(open(os.path.join(out, "tokenizer.json"), encoding="utf-8"))["model"]
    vocab = sorted(written["vocab"], key=written["vocab"].get)
    assert [" ".join(pair) for pair in written["merges"]] == case["merges"], f"{name}: merges differ"
    assert vocab[256 + len(case["special"]):] == case["vocab"], f"{name}: vocabulary differs"
    import transformers
    ids = transformers.AutoTokenizer.from_pretrained(out)(case["probe"])["input_ids"]
    assert ids == case["ids"], f"{name}: transformers has other ids"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="tests/golden/bpe")
    parser.add_argument("--check", metavar="OFFLOAD")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--files", nargs="*", default=[])
    arguments = parser.parse_args()
    made = {name: train(**case) for name, case in cases()}
    if arguments.check is None:
        os.makedirs(arguments.output, exist_ok=True)
        for name, case in made.items():
            with open(os.path.join(arguments.output, name + ".json"), "w", encoding="utf-8") as file:
                json.dump(case, file, ensure_ascii=False)
                file.write("\n")
        return
    generator = random.Random(11)
    for number in range(arguments.random):
        texts = [random_text(generator, generator.choice(["ab", "abc", "abcd", "aé中"]), generator.randint(1, 200),
                             generator.randint(1, 15)) for _ in range(3)]
        made[f"random_{number}"] = train(texts, 257 + generator.randint(1, 200))
    for path in arguments.files:
        made[os.path.basename(path)] = train([open(path, encoding="utf-8", newline="").read()], 3000)
    with tempfile.TemporaryDirectory() as folder:
        for name, case in made.items():
            check(arguments.check, name, case, folder)
    print(f"{len(made)} corpora: merges, vocabulary and ids are equal")


if __name__ == "__main__":
    main()
