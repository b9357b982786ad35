#!/usr/bin/env python3
"""Reference ids and masks of chat templates, made by transformers with `{% generation %}` in the templates.

    pip install transformers tokenizers jinja2
    python3 tests/golden/make/golden_chat.py       # writes tests/golden/chat/ again, the same bytes

Each folder tests/golden/chat/FAMILY/ holds a small tokenizer (one of tests/golden/tokenizers/ and the family's special
tokens), its template in tokenizer_config.json, and chats.jsonl: `row` as a user gives it, `ids`, `mask` (1 = trained),
and `parse_special` where special-token strings in the texts count. The templates are written here after the published
ones, with one difference: the system text of mistral v1 and v3 stands before the first user text. golden_masks.py takes
published templates and real tokenizers.
"""
import json
import os

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
HERE = os.path.join(TESTS, "chat")

CHATML = """{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

TOOL = """{%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}"""

QWEN25 = """{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
""" + CHATML.replace("{%- else %}", TOOL)

QWEN3 = """{%- set ns = namespace(open=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if ns.open and message.role == 'user' and not (message.content.startswith('<tool_response>')
                                                       and message.content.endswith('</tool_response>')) %}
        {%- set ns.open = false %}
        {%- set ns.last = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
""" + CHATML.replace("{%- else %}", TOOL).replace("{{- message.content + '<|im_end|>' }}", """
            {%- set content = message.content %}
            {%- set reasoning = '' %}
            {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
                {%- set reasoning = message.reasoning_content %}
            {%- elif '</think>' in content %}
                {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
                {%- set before = message.content.split('</think>')[0].rstrip('\\n') %}
                {%- set reasoning = before.split('<think>')[-1].lstrip('\\n') %}
            {%- endif %}
            {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
                {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- content }}
            {%- endif %}
            {{- '<|im_end|>' }}""")

LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message.content | trim + '<|eot_id|>' }}{%- endgeneration %}
    {%- else %}
        {{- message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}"""

SYSTEM = """{%- set ns = namespace(system_message='', first=true) %}
{%- if messages[0].role == 'system' %}
    {%- set ns.system_message = SYSTEM_TEXT %}
    {%- set messages = messages[1:] %}
{%- endif %}
"""

LLAMA2 = SYSTEM.replace("SYSTEM_TEXT", r"'<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n'") + """
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set content = (ns.system_message if loop.first else '') + message.content %}
        {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- else %}
        {{- ' ' }}
        {%- generation %}{{- message.content.strip() + ' ' + eos_token }}{%- endgeneration %}
    {%- endif %}
{%- endfor %}"""


def mistral(begin, end, answer, system=None):
    """`system`: how it is written in front, or None for the rule with the first user text."""
    head = SYSTEM.replace("SYSTEM_TEXT", system or r"messages[0].content + '\n\n'")
    head += "{{- bos_token" + (" + ns.system_message" if system else "") + " }}"
    first = "" if system else "(ns.system_message if loop.first else '') + "
    return head + """
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- BEGIN + FIRSTmessage.content + END }}
    {%- else %}
        {%- generation %}{{- ANSWER + eos_token }}{%- endgeneration %}
    {%- endif %}
{%- endfor %}
{#- MARK #}""".replace("BEGIN", begin).replace("END", end).replace("ANSWER", answer).replace("FIRST", first)


MISTRAL_V1 = mistral("' [INST] '", "' [/INST]'", "' ' + message.content").replace("MARK", "' [INST] ' + system_message")
MISTRAL_V3 = mistral("'[INST] '", "'[/INST]'", "' ' + message.content | trim").replace("MARK", "[AVAILABLE_TOOLS]")
TEKKEN = mistral('"[INST]"', '"[/INST]"', "message.content").replace("MARK", "[AVAILABLE_TOOLS]")
MISTRAL_V7 = mistral("'[INST] '", "'[/INST]'", "' ' + message.content",
                     "'[SYSTEM_PROMPT] ' + messages[0].content + '[/SYSTEM_PROMPT]'")
V7_TEKKEN = mistral("'[INST]'", "'[/INST]'", "message.content",
                    "'[SYSTEM_PROMPT]' + messages[0].content + '[/SYSTEM_PROMPT]'")

IM = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HEADERS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
INST = ["[INST]", "[/INST]"]
PROMPT = ["[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]

# family: tokenizer, special tokens, other added tokens, BOS, EOS, template
FAMILIES = {
    "chatml": ("qwen", IM, [], None, "<|im_end|>", CHATML),
    "qwen2.5": ("qwen", IM, ["<tool_response>"], None, "<|im_end|>", QWEN25),
    "qwen3": ("qwen", IM, ["<tool_response>", "</tool_response>", "<think>", "</think>"], None, "<|im_end|>", QWEN3),
    "llama2": ("mistral", [], [], "<s>", "</s>", LLAMA2),
    "llama3": ("llama3", HEADERS, [], "<|begin_of_text|>", "<|eot_id|>", LLAMA3),
    "mistral-v1": ("mistral", [], [], "<s>", "</s>", MISTRAL_V1),
    "mistral-v3": ("mistral", INST, [], "<s>", "</s>", MISTRAL_V3),
    "mistral-v3-tekken": ("nemo", INST, [], "<s>", "</s>", TEKKEN),
    "mistral-v7": ("mistral", INST + PROMPT, [], "<s>", "</s>", MISTRAL_V7),
    "mistral-v7-tekken": ("nemo", INST + PROMPT, [], "<s>", "</s>", V7_TEKKEN),
}


def chat(*texts, system=None):
    messages = [] if system is None else [{"role": "system", "content": system}]
    roles = ["user", "assistant"] * len(texts)
    return messages + [{"role": role, "content": text} for role, text in zip(roles, texts)]


CHATS = [
    chat("hi", "yo"),
    chat("hi", "yo", "more", "done"),
    chat("hi", "yo", "more", "done", "and?", "That is all.", system="Be brief."),
    chat("  padded  ", "  padded too \n", "\n\nlines\n", "\n\n\nlines\n\n", system=" with spaces \n"),
    chat("What is 2 + 2?", "4", "Sure?", "Yes, 2 + 2 = 4.\n\n```\nprint(2 + 2)\n```\n"),
    chat("你好，世界", "今天天气很好。", "Привет 😀", "é e\u0301 👍🏽 ﬁ"),
    chat("combining", "\u0301 begins; \u0308", "x", "\u00a0nbsp\u3000"),
    chat("", "", "empty", ""),
    chat("", "answer", system="only a system text"),
    chat("the other [INST] weather [/INST] there", "the [INST] father's </INST>", system="<<SYS>> the <</SYS>>"),
    chat("no answer yet"),
    chat("a" * 40 + " ! ! ?", "?!" * 20 + " tail ", "  ", " \t "),
    chat("don't stop", "they'll go on; we'd better\r\nwait", "1234567", "3.14159 and 100,000"),
]
QWEN_CHATS = [
    chat("call it", "calling", system="Tools.") + [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"},
                                                   {"role": "assistant", "content": "3"}],
    chat("hi", "yo") + [{"role": "system", "content": "Now be brief."}] + chat("more", "done"),
    [{"role": "assistant", "content": "I begin."}] + chat("hi", "yo"),
    [{"role": "tool", "content": "first"}] + chat("hi", "yo"),
]
THINK_CHATS = [
    chat("hi", "<think>\nold\n</think>\n\nyo", "more", "<think>\nnew\n\n</think>\n\n\ndone"),
    chat("hi", "before<think>\n\na</think>b</think>\n\nc<think>d"),
    chat("hi", "</think>yo"),
    chat("call it", "<think>why\n</think>calling") + [{"role": "tool", "content": "1"},
                                                        {"role": "assistant", "content": "again"},
                                                        {"role": "tool", "content": "2"},
                                                        {"role": "assistant", "content": "3"}],
    chat("q", "a", "<tool_response>\nx\n</tool_response>", "b"),
    [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo", "reasoning_content": "\nbecause\n"}],
    [{"role": "user", "content": "hi"},
     {"role": "assistant", "content": "\n<think>x</think>yo", "reasoning_content": ""}],
]


def write_tokenizer(name):
    """The folder of the family, with a tokenizer that has its special tokens behind those of the small one."""
    base, specials, others, bos, eos, template = FAMILIES[name]
    with open(os.path.join(TESTS, "tokenizers", base + ".json"), encoding="utf-8") as file:
        data = json.load(file)
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in ("<unk>", "<s>", "</s>")]
    if base != "mistral":
        data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in data["model"]["vocab"]]
        data["post_processor"] = None
    tokenizer = Tokenizer.from_str(json.dumps(data))
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
    tokenizer.add_tokens([AddedToken(text, special=True, **flags) for text in specials])
    tokenizer.add_tokens([AddedToken(text, special=False, **flags) for text in others])
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"bos_token": bos, "eos_token": eos, "chat_template": template}, file, indent=1)
        file.write("\n")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, chat_template=template)


def render(tokenizer, messages, template=None):
    done = tokenizer.apply_chat_template(messages, chat_template=template, return_dict=True,
                                         return_assistant_tokens_mask=True)
    return list(done["input_ids"]), list(done["assistant_masks"])


def write_family(name):
    tokenizer = write_tokenizer(name)
    specials = FAMILIES[name][1] or ["<s>", "</s>"]
    chats = CHATS + (QWEN_CHATS if name.startswith("qwen") else []) + (THINK_CHATS if name == "qwen3" else [])
    chats = chats + [chat("a " + specials[-1] + "b", specials[0] + " c", "d", "e")]
    with open(os.path.join(HERE, name, "chats.jsonl"), "w", encoding="utf-8") as file:
        for messages in chats:
            ids, mask = render(tokenizer, messages)
            line = {"row": {"messages": messages}, "ids": ids, "mask": mask}
            if any(text in message["content"] for message in messages for text in specials):
                line["parse_special"] = True
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def main():
    for name in FAMILIES:
        write_family(name)


main()
