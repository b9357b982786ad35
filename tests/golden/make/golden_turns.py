#!/usr/bin/env python3
"""Where the assistant's turns lie in what published chat templates write, stated by varying the messages.

    pip install transformers jinja2
    python3 tests/golden/make/golden_turns.py FOLDER      # writes tests/golden/templates/turns.jsonl again

FOLDER has NAME.jinja and NAME.meta.json with the special tokens; they are no part of this project, and neither their
texts nor what they write are stored, but the places of turns alone, in bytes. engine/text finds them by rendering
beginnings of a conversation; here the text of one message is replaced, which shows where it stands in the whole. The
turn begins behind what a generation prompt adds, the first time behind the message before; it ends with what the
template writes behind the message when nothing follows, as far as it stands in the whole, without white space. A turn
is null where this says nothing, as with a template whose text around the message changes with it.
"""
import argparse
import glob
import json
import os
import re
import warnings

from transformers.utils import chat_template_utils

from fuzz_templates import Pinned
from golden_builtin import TOOL, chat, render, says

HERE = os.path.dirname(os.path.abspath(__file__))


def call(town, content="", **more):
    calls = [{"id": "call00000", "type": "function", "function": {"name": "weather", "arguments": {"town": town}}}]
    return says("assistant", content, tool_calls=calls, **more)


def answer(text):
    return says("tool", text, name="weather", tool_call_id="call00000")


def thought(text, reasoning):
    return says("assistant", text, reasoning_content=reasoning)


def parts(text):
    return [{"type": "text", "text": text}]


ASK, MORE = says("user", "hi"), says("user", "More?")
CASES = {
    "pair": chat("hi there", "Yo."), "two": chat("hi there", "Yo.", "More?", "Done now."),
    "four": chat("a1", "B1.", "a2", "B2.", "a3", "B3.", "a4", "B4."), "open": chat("hi there", "Yo.", "More?"),
    "system": chat("hi there", "Yo.", system="Be brief."),
    "system_two": chat("hi there", "Yo.", "More?", "Done now.", system="Be brief."),
    "blanks": chat(" hi\n", "\n Yo. \n", "\tMore ", "  Done now.\n\n"), "empty": chat("hi there", "", "More?", ""),
    "same": chat("yes", "yes", "yes", "yes", "yes", "yes"),
    "newlines": chat("hi", "One\n\nTwo\n- x", "More?", "```\ncode\n```"),
    "first": [says("assistant", "Hello you.")] + chat("hi", "Yo."),
    "two_assistants": chat("hi", "Yo.") + [says("assistant", "And more.")] + chat("so", "Done."),
    "reasoning": [ASK, thought("Yo.", "because")],
    "reasoning_all": [ASK, thought("Yo.", "because"), MORE, thought("Done.", "so that")],
    "reasoning_past": [ASK, thought("Yo.", "because"), MORE, says("assistant", "Done.")],
    "reasoning_same": [ASK, thought("Yo.", "Yo."), ASK, thought("Yo.", "Yo.")],
    "think": chat("hi", "<think>\nbecause\n</think>\n\nYo.", "More?", "<think>\nso that\n</think>\n\nDone."),
    "angle": chat("hi", "<b>Yo</b>", "More?", "[x] Done [y]"), "unicode": chat("你好", "今天天气很好。", "Привет", "😀 é"),
    "parts": [says("user", parts("hi")), says("assistant", parts("Yo.")), says("user", parts("More?")),
              says("assistant", parts("Done."))],
    "tools": chat("rain?") + [call("Oslo"), answer("wet"), says("assistant", "Yes.")],
    "tools_text": chat("rain?") + [call("Oslo", "I look."), answer("wet"), says("assistant", "Yes.")],
    "tools_two": chat("rain?") + [call("Oslo"), answer("wet"), says("assistant", "Yes."), says("user", "and Rome?"),
                                  call("Rome"), answer("dry"), says("assistant", "No.")],
    "tools_reasoning": chat("rain?") + [call("Oslo", reasoning_content="look"), answer("wet"), thought("Yes.", "it says so")],
    "tools_last": chat("rain?") + [call("Oslo")],
}


class Unstated(Exception):
    """This way of looking does not show the turn."""


def common(a, b):
    """How much two texts begin alike, without a tag that they end inside of."""
    size = len(os.path.commonprefix([a, b]))
    return size if size in (len(a), len(b)) else len(re.sub(r"[<\[][^<>\[\]\s]*$", "", a[:size]))


def varied(message, word):
    message = json.loads(json.dumps(message))
    if isinstance(message.get("content"), list):
        message["content"][0]["text"] = word
    elif message.get("tool_calls"):
        message["tool_calls"][0]["function"]["name"] = word
    else:
        message["content"] = word
    return message


def place(template, row, messages, i):
    """The text of the messages, and where that of message i begins and ends in it."""
    text = render(template, row, messages, False)
    for change in (varied, lambda message, word: {**message, "content": word}):
        one, other = (render(template, row, messages[:i] + [change(messages[i], word)] + messages[i + 1:], False)
                      for word in ("Qzj", "KwV"))
        if one != other:
            break
    begin = len(os.path.commonprefix([one, other]))
    behind = len(os.path.commonprefix([one[::-1], other[::-1]]))
    calls = messages[i].get("tool_calls")
    if calls and change is varied and text[begin:len(text) - behind] != calls[0]["function"]["name"]:
        raise Unstated  # the name of a call stands elsewhere too
    if one == other or text[:begin] != one[:begin] or not text.endswith(one[len(one) - behind:]) or begin + behind > len(text):
        raise Unstated
    return text, begin, len(text) - behind


def header(template, row, messages):
    """What a generation prompt adds, in the ways in which a conversation may have it."""
    prompt = render(template, row, messages, True)
    added = prompt[common(prompt, render(template, row, messages, False)):]
    return prompt, added, re.split(r"</?(?:think|thought)|<\|channel>thought", added)[0]


def last_end_token(text):
    found = list(re.finditer(r"[<\[][^<>\[\]\s]*(?:end|END|eo|EO)[^<>\[\]\s]*[>\]]|</s>", text))
    return found[-1].end() if found else 0


def turn(template, row, i):
    messages = row["messages"]
    text, begin, end = place(template, row, messages, i)
    up_to, begin_up_to, end_up_to = place(template, row, messages[:i + 1], i)
    prompt, added, head = header(template, row, messages[:max(i, 1)])
    behind = place(template, row, messages, i - 1)[2] if i else 0
    at = text.find(head, behind, begin) if head else -1
    if at >= 0:
        start = at + len(head)
        start += common(text[start:], added[len(head):])
    elif head or i == 0 or not up_to.startswith(prompt):
        raise Unstated
    else:
        start = begin - (begin_up_to - len(prompt))
    if not head and text[start:begin] != up_to[len(prompt):begin_up_to]:
        raise Unstated
    closing, rest = up_to[end_up_to:], text[end:]
    following = render(template, row, messages[:i + 1], True)
    if i + 1 == len(messages):  # what the template writes behind every conversation is no part of the turn
        if following == text:
            following = render(template, row, messages + [says("user", "?")], False)
        other = following[end:] if following[:end] == text[:end] else rest
        tag = last_end_token(rest[:common(rest, other)])
        size = len(rest) if other.startswith(rest) or not tag else tag
    else:
        other = closing if closing.strip() else following[end_up_to:]
        size = last_end_token(rest[:common(rest, other)])
        size = len(closing) if rest.startswith(closing) and (closing.strip() or not size) else size
    if not messages[i]["content"] and not last_end_token(rest[:size]):
        raise Unstated
    stop = end + size
    trimmed = len(text[:stop].rstrip(" \n\t\r"))
    return [start, trimmed if trimmed > end else stop]


def turns(template, row):
    """Places in bytes: null for a turn that is not stated, nothing at all where the template refuses the row."""
    found, text = [], render(template, row, row["messages"], False)
    for i, message in enumerate(row["messages"]):
        if message["role"] == "assistant":
            try:
                found.append([len(text[:at].encode()) for at in turn(template, row, i)])
            except Exception:  # noqa: BLE001: a template may refuse what is rendered here
                found.append(None)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    folder = parser.parse_args().folder
    warnings.simplefilter("ignore")
    chat_template_utils.datetime = Pinned
    rows = {case: {"messages": messages, "tools": [TOOL] if case.startswith("tools") else None} for case, messages in CASES.items()}
    lines, stated = [rows], 0
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        with open(path, encoding="utf-8", newline="") as file:
            source = file.read()
        if re.search(r"{%-?\s*generation", source):
            continue
        with open(path[:-6] + ".meta.json", encoding="utf-8") as file:
            kwargs = {key: value for key, value in json.load(file).items() if key.endswith("_token") and value}
        template = chat_template_utils._cached_compile_jinja_template(source)
        line = {"template": os.path.basename(path)[:-6], "kwargs": kwargs}
        for case, row in rows.items():
            try:
                line[case] = turns(template, {**row, "kwargs": kwargs})
                stated += None not in line[case]
            except Exception:  # noqa: BLE001: the template refuses this conversation
                pass
        lines.append(line)
    path = os.path.join(HERE, "..", "templates", "turns.jsonl")
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write("".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines))
    print(f"{len(lines) - 1} templates, {stated} conversations stated")


if __name__ == "__main__":
    main()
