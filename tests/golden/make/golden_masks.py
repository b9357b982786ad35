#!/usr/bin/env python3
"""Ids and loss masks of conversations through published chat templates and real tokenizers, made by transformers.

    pip install transformers tokenizers jinja2
    python3 tests/golden/make/golden_masks.py DATA     # writes tests/golden/chat/real.json again, the same bytes

DATA holds templates/ (NAME.jinja, NAME.meta.json, references.jsonl) and tokenizers/ (NAME/tokenizer.json); neither is part
of this project. Each template is paired with one of the tokenizers, to which the special tokens of its templates are
added. tests/golden/test_chat_reference.c makes the same and compares the hashes.

Per template: `rows` that transformers renders, `ids` and their hash; `masked` rows with a mask and the hash of those. The
mask is return_assistant_tokens_mask where the template has {% generation %}. Elsewhere a turn begins where the text of
the messages before it ends, with a generation prompt, and ends where the text up to it ends, without the white space
behind its end token. Rows in which one of these texts does not begin the whole text have no mask, nor do those in which
the template writes no end token, or something behind the last message alone: test_template.c has these.
"""
import argparse
import json
import os
import re
import warnings

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from fuzz_templates import Pinned

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENIZERS = ["gpt2", "qwen3", "llama2_sp", "tok512"]
TOKENS = ["bos_token", "eos_token", "unk_token", "pad_token"]
SPECIAL = re.compile(r"<\|[A-Za-z_0-9]+\|>|\[/?[A-Z_]+\]|<(?:start|end)_of_[a-z]+>")


def hash_bytes(state, data):
    for byte in data:  # FNV-1a
        state = ((state ^ byte) * 0x100000001b3) & 0xffffffffffffffff
    return state


def read_templates(folder):
    names = sorted(name[:-len(".meta.json")] for name in os.listdir(folder) if name.endswith(".meta.json"))
    for number, name in enumerate(names):
        with open(os.path.join(folder, name + ".meta.json"), encoding="utf-8") as file:
            meta = json.load(file)
        with open(os.path.join(folder, name + ".jinja"), encoding="utf-8", newline="") as file:
            source = file.read()
        tokens = {key: meta[key] for key in TOKENS if meta.get(key)}
        special = sorted(set(SPECIAL.findall(source)) | set(tokens.values()))
        tokenizer = "qwen3" if "<|im_end|>" in special else TOKENIZERS[number % len(TOKENIZERS)]
        yield {"name": name, "tokenizer": tokenizer, "tokens": tokens, "source": source, "special": special}


def with_special(path, strings):
    """The tokenizer, with the strings that it does not know as special tokens behind all others."""
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    vocab = data["model"]["vocab"]
    known = {token["content"] for token in data["added_tokens"]}
    following = max(list(vocab.values()) + [token["id"] for token in data["added_tokens"]]) + 1
    ids = {}
    for text in sorted(strings - known):
        ids[text] = vocab.get(text, following)
        following += ids[text] == following
        data["added_tokens"].append({"id": ids[text], "content": text, "single_word": False, "lstrip": False,
                                     "rstrip": False, "normalized": False, "special": True})
    return Tokenizer.from_str(json.dumps(data)), ids


def read_rows(path):
    rows = {}
    with open(path, encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file):
            row = json.loads(line)
            rows.setdefault(row["template"], []).append((number, row))
    return rows


def is_plain(message):
    content = message.get("content")
    return isinstance(message["role"], str) and \
        (isinstance(content, str) or (content is None and bool(message.get("tool_calls"))))


def is_usable(row):
    """Whether a row of training data may have the conversation: lists of texts are joined there for some templates."""
    return len(row["messages"]) > 0 and all(is_plain(message) for message in row["messages"])


class Subject:
    def __init__(self, template, tokenizer):
        self.source = template["source"]
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **template["tokens"])
        self.marks = bool(re.search(r"\{%-?\s*generation\s*-?%\}", self.source))

    def render(self, row, count, prompt=False):
        return self.tokenizer.apply_chat_template(row["messages"][:count], tools=row["tools"], tokenize=False,
                                                  chat_template=self.source, add_generation_prompt=prompt, **row["kwargs"])

    def encode(self, row):
        done = self.tokenizer.apply_chat_template(row["messages"], tools=row["tools"], return_dict=True,
                                                  chat_template=self.source, return_assistant_tokens_mask=self.marks,
                                                  **row["kwargs"])
        return list(done["input_ids"]), list(done["assistant_masks"]) if self.marks else None

    def turns(self, row, whole):
        spans = []
        for i, message in enumerate(row["messages"]):
            if message["role"] != "assistant":
                continue
            if i == 0:
                return None
            before, last = self.render(row, i, True), self.render(row, i + 1)
            more = self.render(row, i + 1, True)
            if more == last:  # the template has no generation prompt
                more = self.render({**row, "messages": row["messages"][:i + 1] + [{"role": "user", "content": "?"}]}, None)
            content = (message.get("content") or "").strip(" \n\t\r")
            end = last.rstrip(" \n\t\r")
            if not (whole.startswith(last) and last.startswith(before) and more.startswith(last)) or \
                    len(end) <= len(before) or (content and end.endswith(content)):
                return None
            spans.append((len(before), len(end)))
        return spans

    def mask(self, row, ids):
        whole = self.render(row, None)
        spans = self.turns(row, whole)
        if spans is None:
            return None
        done = self.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        assert done["input_ids"] == ids
        return [int(any(begin < to and end > since for begin, end in spans))
                for since, to in done["offset_mapping"]]


def take(template, tokenizer, rows):
    subject = Subject(template, tokenizer)
    out = {"name": template["name"], "tokenizer": template["tokenizer"], "tokens": template["tokens"],
           "rows": 0, "ids": 0, "masked": 0, "trained": 0}
    of_ids = of_masks = 0xcbf29ce484222325
    unmasked = []
    for number, row in rows:
        if not is_usable(row):
            continue
        try:
            ids, mask = subject.encode(row)
            mask = mask if subject.marks else subject.mask(row, ids)
        except Exception:  # the template refuses the row, or its beginning
            try:
                ids, mask = subject.encode(row)[0], None
            except Exception:
                continue
        out["rows"] += 1
        out["ids"] += len(ids)
        for identity in ids:
            of_ids = hash_bytes(of_ids, identity.to_bytes(4, "little"))
        if mask is None:
            unmasked.append(number)
        else:
            out["masked"] += 1
            out["trained"] += sum(mask)
            of_masks = hash_bytes(of_masks, bytes(mask))
    return {**out, "fnv1a_ids": f"{of_ids:016x}", "fnv1a_masks": f"{of_masks:016x}", "unmasked": unmasked}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    chat_template_utils.datetime = Pinned
    templates = list(read_templates(os.path.join(args.data, "templates")))
    rows = read_rows(os.path.join(args.data, "templates", "references.jsonl"))
    out = {"special": {}, "templates": []}
    made = {}
    for name in TOKENIZERS:
        strings = {text for template in templates if template["tokenizer"] == name for text in template["special"]}
        made[name], out["special"][name] = with_special(
            os.path.join(args.data, "tokenizers", name, "tokenizer.json"), strings)
    for template in templates:
        out["templates"].append(take(template, made[template["tokenizer"]], rows[template["name"]]))
    with open(os.path.join(HERE, "..", "chat", "real.json"), "w", encoding="utf-8") as file:
        file.write("{\"special\": " + json.dumps(out["special"], ensure_ascii=False) + ",\n \"templates\": [\n" +
                   ",\n".join(json.dumps(one, ensure_ascii=False) for one in out["templates"]) + "]}\n")


main()
