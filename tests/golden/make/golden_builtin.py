#!/usr/bin/env python3
"""What transformers renders of the published templates that the built-in ones stand for (engine/text/template_builtin.c).

    pip install transformers jinja2
    python3 tests/golden/make/golden_builtin.py FOLDER      # writes tests/golden/templates/builtin/ again, the same bytes

FOLDER has NAME.jinja of every name below, as its publisher has it; they are no part of this project. A row has the
conversation, the special tokens in `kwargs`, and `rendered`, or `error` where the published template refuses the row:
there the built-in one must refuse it too, in words of its own. `generation` are the assistant's turns: each begins where
the published template ends the messages before with a generation prompt, and ends where it ends the messages up to
the turn, without the white space behind. Where one of these is no beginning of the text, or where the text has white
space alone for a turn, `generation` is left out.
"""
import argparse
import json
import os
import warnings

from transformers.utils import chat_template_utils

from fuzz_templates import Pinned

HERE = os.path.dirname(os.path.abspath(__file__))
# name: publisher of the template, bos_token, eos_token
PUBLISHED = {
    "chatml": ("teknium/OpenHermes-2.5-Mistral-7B", "<s>", "<|im_end|>"),
    "llama2": ("meta-llama/Llama-2-7b-chat-hf", "<s>", "</s>"),
    "llama3": ("meta-llama/Meta-Llama-3-8B-Instruct, as huggingface/trl has it", "<|begin_of_text|>", "<|eot_id|>"),
    "mistral-v1": ("mistralai/Mistral-7B-Instruct-v0.2, 'v1' in the tests of ggml-org/llama.cpp", "<s>", "</s>"),
    "mistral-v3": ("mistralai/Mistral-Large-Instruct-2407, 'v3' in the tests of ggml-org/llama.cpp", "<s>", "</s>"),
    "mistral-v3-tekken": ("mistralai/Mistral-Nemo-Instruct-2407", "<s>", "</s>"),
    "mistral-v7": ("mistralai/Mistral-Large-Instruct-2411, 'v7' in the tests of ggml-org/llama.cpp", "<s>", "</s>"),
    # Rows without a system message are left out: the published template has a text of its own for them.
    "mistral-v7-tekken": ("mistralai/Mistral-Small-24B-Instruct-2501, as axolotl has it", "<s>", "</s>"),
    "qwen2.5": ("Qwen/Qwen2.5-7B-Instruct", None, "<|im_end|>"),
    "qwen3": ("Qwen/Qwen3-0.6B", None, "<|im_end|>"),
    "gemma": ("google/gemma-7b-it, as axolotl has it", "<bos>", "<eos>"),
    "phi3": ("microsoft/Phi-3-mini-4k-instruct", "<s>", "<|endoftext|>"),
    "alpaca": ("axolotl-ai-cloud/axolotl", "<s>", "</s>"),
    "zephyr": ("huggingface/alignment-handbook", "<s>", "</s>"),
}
# What a template writes behind the last message, whoever it is by.
TAIL = {"phi3": "<|endoftext|>"}


def chat(*texts, system=None):
    roles = ["user", "assistant"] * len(texts)
    head = [] if system is None else [{"role": "system", "content": system}]
    return head + [{"role": role, "content": text} for role, text in zip(roles, texts)]


def says(role, content, **more):
    return {"role": role, "content": content, **more}


TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a \"town\"", "parameters": {
    "type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}, "required": ["town"]}}}
OTHER = {"type": "function", "function": {"name": "now", "description": "", "parameters": {}, "return": {"type": "string"}}}


def call(*arguments, **more):
    calls = [{"id": f"call{i:05d}", "type": "function", "function": {"name": "weather", "arguments": a}}
             for i, a in enumerate(arguments)]
    return says("assistant", "", tool_calls=calls, **more)


def answer(text, i=0):
    return says("tool", text, name="weather", tool_call_id=f"call{i:05d}")


CASES = {
    "one": chat("hi"), "pair": chat("hi", "yo"), "two": chat("hi", "yo", "more", "done"),
    "system": chat("hi", system="Be brief."), "system_pair": chat("hi", "yo", system="Be brief."),
    "system_two": chat("hi", "yo", "more", "done", system="  Be brief.\n"),
    "system_open": chat("hi", "yo", "more", system="Be\n\nbrief."),
    "blanks": chat("  padded\n", "\n padded too \n", " \t", "\u3000done\u2003"), "empty": chat("", "", "x", ""),
    "system_empty": chat("hi", "yo", system=""), "unicode": chat("你好，世界", "Привет 😀 é", "ﬁ", "e\u0301"),
    "repeated": chat("yes", "yes", "yes", "yes", system="yes"),
    "markup": chat("</s><|im_end|>[INST]", "<|eot_id|> {{ x }} {% if %}", system="<<SYS>>"),
    "think": chat("hi", "<think>\nold\n</think>\n\nyo", "more", "<think>\n\nnew\n\n</think>\n\n\ndone\n"),
    "think_open": chat("hi", "a<think>b</think>c</think>\nd", "e", "<think>f"),
    "reasoning": chat("hi", "yo") + [says("user", "more"), says("assistant", "\ndone", reasoning_content="\nbecause\n")],
    "reasoning_past": [says("user", "a"), says("assistant", "b", reasoning_content="why")] + chat("c", "d"),
    "two_users": [says("user", "a"), says("user", "b"), says("assistant", "c")],
    "two_assistants": chat("a", "b") + [says("assistant", "c")], "assistant_first": [says("assistant", "a")] + chat("b", "c"),
    "system_late": chat("a", "b") + chat("c", "d", system="Now be brief."), "system_alone": [says("system", "a")],
    "other_role": chat("a", "b") + [says("critic", "c")] + chat("d", "e"), "no_content": [says("user", "a"), {"role": "assistant"}],
    "parts": [says("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), says("assistant", "c")],
    "parts_system": [says("system", [{"type": "text", "text": "s"}]), says("user", [{"type": "text", "text": "a"}]), says("assistant", "c")],
    "called": chat("rain?", system="Help.") + [call({"town": "Köln", "days": 2}), answer("wet"), says("assistant", "Yes."), says("user", "ok")],
    "called_twice": chat("rain?") + [call({"town": "A"}, {"town": "B"}), answer("x"), answer({"content": 1}, 1), says("assistant", "Yes.")],
    "called_again": chat("rain?") + [call({"town": "A"}, reasoning_content="look"), answer("x"), call({"town": "B"}), answer("y"), says("assistant", "Yes.", reasoning_content="so")],
    "called_text": [says("user", "rain?"), says("assistant", "\nI look.", tool_calls=[{"function": {"name": "f", "arguments": "{\"a\": 1}"}}])],
    "called_bare": [says("user", "rain?"), says("assistant", "I look.", tool_calls=[{"name": "f", "arguments": {"a": [1, None, 2.5]}}])],
    "tool_first": [answer("x")] + chat("a", "b"), "tool_response": chat("a", "b", "<tool_response>\nx\n</tool_response>", "<think>c</think>d"),
}


def render(template, row, messages, prompt):
    """`messages` as transformers gives them to a template: reasoning_content is also thinking, null keys are dropped."""
    plain = []
    for message in messages:
        reasoning = message.get("reasoning_content")
        plain.append({**({} if reasoning is None else {"thinking": reasoning}), **message})
    return template.render(messages=plain, tools=row["tools"], documents=None, add_generation_prompt=prompt, **row["kwargs"])


def turns(template, row):
    text, spans = row["rendered"], []
    for i, message in enumerate(row["messages"]):
        if message["role"] != "assistant":
            continue
        try:
            before = render(template, row, row["messages"][:i], True) if i else None
            up_to = render(template, row, row["messages"][:i + 1], False).removesuffix(TAIL.get(row["template"], ""))
        except Exception:  # noqa: BLE001: a beginning that the template refuses says nothing
            return None
        end = len(up_to.rstrip())
        if before is None or not up_to.startswith(before) or not text.startswith(up_to) or end <= len(before):
            return None
        spans.append([len(before), end])
    return spans


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    folder = parser.parse_args().folder
    warnings.simplefilter("ignore")
    chat_template_utils.datetime = Pinned
    lines, stated = [], 0
    for name, (_, bos, eos) in PUBLISHED.items():
        with open(os.path.join(folder, name + ".jinja"), encoding="utf-8", newline="") as file:
            template = chat_template_utils._cached_compile_jinja_template(file.read())
        tokens = {key: value for key, value in (("bos_token", bos), ("eos_token", eos)) if value}
        for case, messages in CASES.items():
            if name == "mistral-v7-tekken" and messages[0]["role"] != "system":
                continue
            has_tools = case in ("called", "called_twice", "system_open")
            for more in ({}, {"enable_thinking": False}) if name == "qwen3" and "th" in case + "two" else ({},):
                for tools in (None, [TOOL, OTHER]) if has_tools else (None,):
                    row = {"template": name, "case": case, "messages": messages, "tools": tools, "kwargs": {**tokens, **more},
                           "add_generation_prompt": messages[-1]["role"] != "assistant"}
                    try:
                        row["rendered"] = render(template, row, messages, row["add_generation_prompt"])
                    except Exception as error:  # noqa: BLE001: any failure of a template is a result
                        row |= {"error": str(error), "error_type": "any"}
                    if "rendered" in row:
                        row |= {"generation": spans} if (spans := turns(template, row)) else {}
                        stated += "generation" in row
                    lines.append(row)
    path = os.path.join(HERE, "..", "templates", "builtin", "references.jsonl")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write("".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines))
    print(f"{len(lines)} rows, {sum('rendered' in line for line in lines)} rendered, {stated} with turns")


if __name__ == "__main__":
    main()
