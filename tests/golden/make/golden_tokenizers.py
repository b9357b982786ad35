#!/usr/bin/env python3
"""Reference results of the tokenizers in tests/golden/tokenizers/, made by Hugging Face's `tokenizers` library.

    pip install tokenizers
    python3 tests/golden/make/golden_tokenizers.py                          # writes all cases again, the same bytes
    python3 tests/golden/make/golden_tokenizers.py --compare build/offload [--count 2000] [--seed 1] [FOLDER ...]

Each case is a small tokenizer.json that covers what one family of models asks for, and NAME.jsonl: texts with `ids`,
`ids_with_special` (what the post-processor adds), `ids_plain` (special tokens are text), `decoded` and
`decoded_skip` (special tokens left out); the last four only where they differ from `ids` or from the text.
--compare feeds random texts to the library and to the program, for the cases or for folders with a tokenizer.json.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tokenizers")

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
NEMO = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

CORPUS = [
    "The drive keeps what the memory cannot hold, and the memory keeps what the device is about to need.",
    "It's late; they'll say we're done, but I've seen that the work isn't. We'd better go on.",
    "def step(plan, lanes):\n    for task in plan:\n        lanes[task.lane].submit(task)\n    return lanes\n",
    "In 2024 there were 12345 of them, 3.14159 times as many as in 1999; 100,000 more came later.",
    "Der Fluß fließt über die Wiese. L'élève a déjà mangé. El niño pequeño corre mañana.",
    "Быстрая лиса прыгает через ленивую собаку. Η γρήγορη αλεπού πηδάει.",
    "你好，世界。今天天气很好，我们去公园散步吧。今日は天気がいいです。안녕하세요 세계",
    "A  line   with    many     spaces\tand\ttabs\r\nand two kinds of line ends\n\n\nin it.",
    "http://example.org/path?query=1&other=two#part (see [1], {2} and <3>) -- or not... \"quoted\" 'text'!",
    "the the the there then them these those other another weather together rather father mother",
] * 3
NARROW = [line for line in CORPUS if line.isascii()]  # leaves most characters unknown

TEXTS = [
    "", " ", "  ", "\n", "\t", "a", " a", "a ", "Hello, world!", "  leading and trailing  ", "\n\nlines\r\n \n x\n",
    "It's they'll WE'RE I'VE 'S 'ſ d'd", "12345678 1 22 333 4444 3.14", "snake_case CamelCase HTTPServer iPhone",
    "e\u0301 (nfd) é (nfc) \u1e9b\u0323 \u212b ﬁ ① x²", "\u1100\u1161\u11a8 각 \uac00\u11a8", "a\u0315\u0300\u05ae\u0062",
    "你好世界 こんにちは 안녕", "Привет, мир! Γειά σου", "नमस्ते दुनिया ก็ได้", "مرحبا بالعالم שלום",
    "😀 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽", "\u00a0nbsp\u2003em\u3000wide\u200bzero\u180evowel\u0085nel\ufeffbom", "\u0000\u0001\u007f\u009f",
    "a" * 70, " " * 70 + "x", "\n" * 40, "ab" * 60, "!?" * 40, "the " * 30, "\u0301" * 20, "aX" * 40,
    "<s>text</s>", "<s> text </s> <s>", "a <mask> b<mask>c  <mask>  d", "x<pad>y <pad> z", "word wordy aword word.",
    "<s><s></s></s>", "<unk> <0x41><0xE4>", "▁▁a ▁b", "Ġ Ċ", "don't<s>stop  </s> now", "\ud7ff\ue000\uffff\U0010ffff",
    "if (x<3 && y>=4) { return a[b]; } // end\n", "lone <s", "<s>>", "foo bar foobar barfoo", "été ete\u0301 <e\u0301>",
]


def added(content, **flags):
    base = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
    return AddedToken(content, **{**base, **flags})


def train(tokenizer, size, specials=(), alphabet=(), corpus=CORPUS):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials), initial_alphabet=list(alphabet),
                                  show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return json.loads(tokenizer.to_str())


def template(name, identity):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [identity], "tokens": [name]}}}


BYTE_POST = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def byte_level(regex, size, specials=(), **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, size, specials, sorted(pre_tokenizers.ByteLevel.alphabet()))


def with_added(data, tokens):
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_tokens(tokens)
    return json.loads(tokenizer.to_str())


def llama3():
    data = byte_level(LLAMA3, 420)
    vocab = data["model"]["vocab"]
    for word in ("Ġworld", "Hello", "ä½łå¥½", "ĠmanyĠĠspaces"):  # in the vocabulary, but no merge makes them
        vocab.setdefault(word, len(vocab))
    data["model"]["ignore_merges"] = True
    data = with_added(data, [added("<s>", special=True), added("</s>", special=True), added("<pad>", special=True)])
    begin = next(t["id"] for t in data["added_tokens"] if t["content"] == "<s>")
    data["post_processor"] = {"type": "Sequence", "processors": [BYTE_POST, template("<s>", begin)]}
    return data


def nemo():
    specials = [added(text, special=True) for text in ("<unk>", "<s>", "</s>", "<mask>", "<pad>")]
    data = byte_level(NEMO, 400, specials, ignore_merges=True)
    data["post_processor"] = template("<s>", 1)
    return data


def qwen():
    data = byte_level(QWEN, 420)
    data["normalizer"] = {"type": "NFC"}
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    data["post_processor"] = BYTE_POST
    return with_added(data, [added("<s>", special=True), added("</s>", special=True), added("<e\u0301>"),
                             added("été", normalized=True), added("<mask>", normalized=True, lstrip=True)])


def gpt2_prefix():
    """A space in front, an alphabet with holes, and an unknown token that is not fused."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, 220, [added("<unk>", special=True), added("<s>", special=True), added("word", single_word=True)],
                 (), NARROW)


def sentencepiece(normalizer, pre_tokenizer, decoder, tokens=(), corpus=CORPUS, **model):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", **model))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    specials = [added("<unk>", special=True), added("<s>", special=True), added("</s>", special=True)]
    if model.get("byte_fallback"):
        specials += [added(f"<0x{byte:02X}>") for byte in range(256)]
    data = train(tokenizer, 300 + len(specials), specials, ["▁"], corpus)
    data["added_tokens"] = data["added_tokens"][:3]
    data.update(normalizer=normalizer, pre_tokenizer=pre_tokenizer, decoder=decoder)
    data["post_processor"] = template("<s>", 1)
    return with_added(data, list(tokens))


PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                               {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
SPACES = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK = [SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def mistral():
    """Prepend and Replace; added tokens of every kind, some of them looked for behind the normalizer."""
    tokens = [added("<mask>", lstrip=True), added("<pad>", rstrip=True), added("word", single_word=True, normalized=True),
              added("foo bar", normalized=True), added("don't", single_word=True), added("\n\n", rstrip=True)]
    return sentencepiece(PREPEND, None, {"type": "Sequence", "decoders": FALLBACK + [STRIP]}, tokens,
                         byte_fallback=True, fuse_unk=True)


def metaspace(scheme, split):
    def make():
        step = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
        tokens = [added("<mask>", lstrip=True, rstrip=True), added("<pad>"), added("foo", single_word=True, normalized=True)]
        return sentencepiece(None, step, dict(step), tokens, NARROW, fuse_unk=split)
    return make


def gemma():
    """Spaces replaced by the normalizer, and a split that sends a space to the text before it."""
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    return sentencepiece(replace, split, {"type": "Sequence", "decoders": FALLBACK}, [added("\n\n"), added("▁▁")], NARROW,
                         byte_fallback=True)


def steps():
    """Several splits in a row, digits, and byte-level at the end."""
    data = byte_level(QWEN, 380)
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "[\r\n]"}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": "\\s?\\p{L}+"}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": "[一-龥ぁ-ヿ]+"}, "behavior": "Contiguous", "invert": False},
        {"type": "Split", "pattern": {"Regex": "\\s"}, "behavior": "MergedWithNext", "invert": False},
        {"type": "Split", "pattern": {"Regex": "[^!?]"}, "behavior": "MergedWithPrevious", "invert": True},
        {"type": "Split", "pattern": {"Regex": "x*"}, "behavior": "Isolated", "invert": False},
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
    return data


def removed():
    """Characters without a fallback, text that a split removes, NFKC, a Replace by regex, no decoder."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"[0-9]+"), "7")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\s+"), "removed"),
                                                       pre_tokenizers.Digits(individual_digits=False)])
    return train(tokenizer, 200, [added("<unk>", special=True), added("<s>", special=True, normalized=True)], (), NARROW)


CASES = {"llama3": llama3, "nemo": nemo, "qwen": qwen, "gpt2_prefix": gpt2_prefix, "mistral": mistral,
         "metaspace_always": metaspace("always", True), "metaspace_first": metaspace("first", False),
         "metaspace_never": metaspace("never", True), "gemma": gemma, "steps": steps, "removed": removed}


def encode(tokenizer, text, special=False, plain=False):
    tokenizer.encode_special_tokens = plain
    ids = tokenizer.encode(text, add_special_tokens=special).ids
    tokenizer.encode_special_tokens = False
    return ids


def write_case(name, make):
    data = make()
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    tokenizer = Tokenizer.from_str(text)
    with open(os.path.join(HERE, name + ".json"), "w", encoding="utf-8") as file:
        file.write(text + "\n")
    with open(os.path.join(HERE, name + ".jsonl"), "w", encoding="utf-8") as file:
        for text in TEXTS:
            row = {"text": text, "ids": encode(tokenizer, text)}
            for key, ids in (("ids_with_special", encode(tokenizer, text, special=True)),
                             ("ids_plain", encode(tokenizer, text, plain=True))):
                if ids != row["ids"]:
                    row[key] = ids
            for key, skip in (("decoded", False), ("decoded_skip", True)):
                decoded = tokenizer.decode(row["ids"], skip_special_tokens=skip)
                if decoded != text:
                    row[key] = decoded
            file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")


def random_text(rng, specials):
    """Words, runs, odd characters, special tokens, in any order."""
    def code_point(low, high):
        while True:
            char = chr(rng.randint(low, high))
            if not "\ud800" <= char <= "\udfff":
                return char
    makers = [
        lambda: rng.choice(rng.choice(CORPUS).split(" ")) + " ",
        lambda: rng.choice(rng.choice(CORPUS).split(" ")),
        lambda: rng.choice(" \t\n\r\u00a0\u2003\u3000\u0085\u180e\u200b") * rng.choice([1, 1, 2, 3, 9, 70]),
        lambda: "".join(code_point(0x20, 0x7e) for _ in range(rng.randint(1, 12))),
        lambda: "".join(code_point(0, 0x1f) for _ in range(rng.randint(1, 4))),
        lambda: "".join(code_point(0xa0, 0x24f) for _ in range(rng.randint(1, 8))),
        lambda: "".join(code_point(0x300, 0x36f) for _ in range(rng.randint(1, 5))),
        lambda: "".join(code_point(0x370, 0x1fff) for _ in range(rng.randint(1, 6))),
        lambda: "".join(code_point(0x2000, 0x2bff) for _ in range(rng.randint(1, 5))),
        lambda: "".join(code_point(0x3040, 0x9fff) for _ in range(rng.randint(1, 9))),
        lambda: "".join(code_point(0xac00, 0xd7a3) for _ in range(rng.randint(1, 5))),
        lambda: "".join(code_point(0x1100, 0x11ff) for _ in range(rng.randint(1, 5))),
        lambda: "".join(code_point(0xf900, 0xffff) for _ in range(rng.randint(1, 4))),
        lambda: "".join(code_point(0x1f300, 0x1faff) for _ in range(rng.randint(1, 4))),
        lambda: code_point(0x10000, 0x1ffff),
        lambda: code_point(0x10000, 0x10ffff),
        lambda: str(rng.randint(0, 10 ** rng.randint(1, 12))),
        lambda: rng.choice("aA .!?/'_-=\n▁") * rng.choice([2, 3, 8, 65, 300]),
        lambda: rng.choice(specials) if specials else "",
        lambda: rng.choice(specials)[:-1] if specials else "",
        lambda: rng.choice(["'s", "'LL", "'ſ", "'Re", "\u212a", "<0x41>", "\ufeff", "\u200d", "\ufe0f"]),
    ]
    return "".join(rng.choice(makers)() for _ in range(rng.randint(1, 30)))


def compare(program, folders, count, seed):
    rng = random.Random(seed)
    paths = [os.path.join(folder, "tokenizer.json") for folder in folders]
    paths = paths or [os.path.join(HERE, name + ".json") for name in CASES]
    failed = 0
    for path in paths:
        tokenizer = Tokenizer.from_file(path)
        specials = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        texts = [random_text(rng, specials) for _ in range(count)]
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
            file.flush()
            done = subprocess.run([program, "tokenize", "--model", path, "--data", file.name, "--jsonl"],
                                  stdout=subprocess.PIPE, check=True)
        lines = done.stdout.splitlines()
        wrong = [text for text, line in zip(texts, lines) if json.loads(line)["ids"] != encode(tokenizer, text)]
        print(f"{path}: {len(lines)} texts, {len(wrong)} differ")
        for text in wrong[:3]:
            print("  ", json.dumps(text))
        failed += len(wrong) + (len(lines) != len(texts))
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compare")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("folders", nargs="*")
    args = parser.parse_args()
    if args.compare:
        sys.exit(1 if compare(args.compare, args.folders, args.count, args.seed) else 0)
    os.makedirs(HERE, exist_ok=True)
    for name, make in CASES.items():
        write_case(name, make)


main()
