#!/usr/bin/env python3
"""Random templates through transformers and through engine/jinja, which must give the same text or both fail.

    pip install transformers jinja2
    make build/tests/golden/test_templates
    python3 tests/golden/make/fuzz_templates.py --count 20000 --seed 1
    python3 tests/golden/make/fuzz_templates.py --count 5000 --seed 1 --published FOLDER    templates to change, *.jinja

Cases are expressions, statements with white space control, and published templates with a piece changed. Where the
interpreter says "not supported", nothing is compared; the reasons are counted. Exit status 1 when a text differs, or
when only transformers fails.
"""
import argparse
import datetime
import glob
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import warnings

from transformers.utils import chat_template_utils

VARIABLES = {
    "s": "Hello, wörld!", "t": "  spaced\tout \n", "e": "", "n": None, "i": 7, "j": -3, "z": 0, "f": 2.5, "g": -0.125,
    "h": 1e22, "b": True, "c": False, "l": [3, 1, 2], "m": ["b", "A", "c", "a"], "k": [], "d": {"b": 1, "a": "x"},
    "u": "a,b,,c", "w": "İstanbul ß ΑΣ ǆ", "q": "it's \"quoted\"\\ \u0007 \u00a0\u2028é😀",
    "x": [{"name": "ann", "age": 3}, {"name": "Bob", "age": 1}, {"name": "ann", "age": None}, {"other": 1}],
    "y": {"items": 1, "keys": [1, 2], "0": "zero", "nested": {"deep": [{"er": 5}]}},
    "messages": [{"role": "system", "content": "Be <brief> & 'kind'."}, {"role": "user", "content": "Hi\n there "},
                 {"role": "assistant", "content": [{"type": "text", "text": "yes"}], "tool_calls": [
                     {"function": {"name": "f", "arguments": {"a": 1, "b": [True, None, 1.5]}}}]}],
    "big": 4611686018427387904, "digits": "12345", "num": " 42.5 ", "html": "<a href='x'>&amp;</a>",
}
NAMES = list(VARIABLES) + ["missing", "ns"]
FILTERS = ["abs", "batch(2)", "batch(3, 'x')", "capitalize", "center(9)", "count", "d('z')", "default('z', true)", "default",
           "dictsort", "dictsort(true)", "dictsort(by='value')", "dictsort(reverse=true)", "e", "escape",
           "filesizeformat", "first", "float", "float(1.5)", "format(1, 2)", "format('a')", "groupby('name')",
           "groupby('age', default=0)", "indent", "indent(2, true)", "indent('> ', first=true, blank=true)",
           "int", "int(5)", "int(base=16)", "items", "join", "join(', ')", "join('-', attribute='name')", "last",
           "length", "list", "lower", "map('upper')", "map(attribute='name')", "map(attribute='age', default=0)",
           "map('length')", "map('default', 'n')", "max", "min", "max(attribute='age')", "min(case_sensitive=true)",
           "reject", "reject('none')", "rejectattr('name')", "rejectattr('name', 'equalto', 'ann')",
           "replace('a', 'o')", "replace('', '.')", "replace('l', 'L', 1)", "reverse", "round", "round(1)",
           "round(1, 'floor')", "round(0, 'ceil')", "safe", "select", "select('string')", "select('odd')",
           "select('in', [1, 'a'])", "selectattr('name')", "selectattr('name', 'defined')",
           "selectattr('age', 'gt', 1)", "selectattr('role', 'equalto', 'user')", "slice(2)", "slice(2, 'x')", "sort",
           "sort(reverse=true)", "sort(case_sensitive=true)", "sort(attribute='name')", "string", "sum",
           "sum(attribute='age')", "sum(start=5)", "title", "tojson", "tojson(indent=2)", "tojson(ensure_ascii=true)",
           "tojson(sort_keys=true)", "tojson(separators=(',', ':'))", "tojson(indent='  ')", "trim", "trim('H! ')",
           "truncate(5)", "truncate(5, true)", "truncate(6, false, '..', 0)", "unique", "unique(attribute='name')",
           "upper", "urlencode", "wordcount", "attr('upper')", "attr('name')", "forceescape"]
TESTS = ["boolean", "callable", "defined", "divisibleby(2)", "divisibleby 3", "eq(1)", "equalto 'a'", "escaped", "even",
         "false", "filter", "float", "ge(1)", "gt(0)", "in([1, 2, 'a'])", "in 'abc'", "integer", "iterable", "le(3)",
         "lower", "lt(2)", "mapping", "ne(1)", "none", "number", "odd", "sameas(none)", "sequence", "string", "test",
         "true", "undefined", "upper", "not none", "not defined", "not string"]
METHODS = ["strip()", "strip('H! ')", "lstrip()", "rstrip()", "lstrip(' s')", "upper()", "lower()", "title()",
           "capitalize()", "swapcase()", "casefold()", "split()", "split(',')", "split(',', 1)", "split(none, 1)",
           "split(' ', maxsplit=1)", "rsplit(',', 1)", "rsplit(none, 1)", "rsplit()", "splitlines()",
           "splitlines(true)", "startswith('H')", "startswith(('x', 'a'))", "endswith('!')", "endswith('l', 0, 4)",
           "replace('l', 'L')", "replace('l', '', 1)", "replace('', '-')", "find('l')", "find('l', 4)", "rfind('l')",
           "index('l')", "rindex('l')", "count('l')", "count('')", "join(['a', 'b'])", "join('xyz')", "join(m)",
           "format(1, 2)", "partition(',')", "rpartition(',')", "zfill(12)", "center(20, '*')", "ljust(18)", "rjust(18)",
           "isdigit()", "isalpha()", "isspace()", "isupper()", "islower()", "istitle()", "isalnum()",
           "isidentifier()", "removeprefix('He')", "removesuffix('!')", "expandtabs(4)", "items()", "keys()",
           "values()", "get('a')", "get('zz')", "get('zz', 5)", "copy()", "append(1)", "pop()", "count(1)", "index(1)",
           "bit_length()", "is_integer()", "isprintable()", "isascii()", "isnumeric()"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
LITERALS = ["1", "0", "-2", "3.0", "1e3", "0.1", "'a'", "\"b'c\"", "'\\n\\x41\\u00e9'", "true", "False", "none", "[]",
            "[1, 'a', none]", "{}", "{'a': 1, 2: 'b'}", "(1, 2)", "(1,)", "()", "'%s-%d'", "'%5.2f|%-6s|'", "'{} {}'",
            "'{0:>5}|{1:05d}'", "'{:.2f}'", "range(3)", "range(5, 0, -2)", "dict(a=1)", "'%x'", "1_000", "0x1F", "10",
            "'x' 'y'", "namespace(a=1)", "12345678901", "2.0", "'a' if b", "'%(a)s'", "'%%'", "-0.0", "1e-7", "123456.789"]


class Maker:
    def __init__(self, rng):
        self.rng = rng

    def pick(self, items):
        return self.rng.choice(items)

    def atom(self):
        return self.pick(NAMES) if self.rng.random() < 0.6 else self.pick(LITERALS)

    def slice(self):
        part = lambda: self.pick(["", "", "1", "-1", "2", "-2", "0", "5", "i", "none"])
        text = part() + ":" + part()
        return text + ":" + self.pick(["", "2", "-1", "-2", "1"]) if self.rng.random() < 0.4 else text

    def primary(self, depth):
        text = self.atom() if depth <= 0 or self.rng.random() < 0.5 else "(" + self.expression(depth - 1) + ")"
        for _ in range(self.pick([0, 0, 1, 1, 2])):
            r = self.rng.random()
            if r < 0.3:
                text = self.paren(text) + "." + self.pick(METHODS)
            elif r < 0.45:
                text = self.paren(text) + "." + self.pick(["name", "role", "content", "a", "b", "items", "nested", "deep", "0", "age"])
            elif r < 0.6:
                text = self.paren(text) + "[" + self.pick(["0", "-1", "1", "'a'", "'items'", "i", "'nested'", "9", "'0'"]) + "]"
            elif r < 0.72:
                text = self.paren(text) + "[" + self.slice() + "]"
            elif r < 0.9:
                text = text + " | " + self.pick(FILTERS)
            else:
                text = text + " is " + self.pick(TESTS)
        return text

    def paren(self, text):
        return text if re.fullmatch(r"\w+", text) and not text[0].isdigit() else "(" + text + ")"

    def expression(self, depth=2):
        r = self.rng.random()
        if depth <= 0 or r < 0.45:
            return self.primary(depth)
        if r < 0.8:
            return f"{self.primary(depth - 1)} {self.pick(OPERATORS)} {self.expression(depth - 1)}"
        if r < 0.84:
            return f"not {self.expression(depth - 1)}"
        if r < 0.88:
            return f"-{self.primary(depth - 1)}"
        if r < 0.92:
            return f"{self.primary(depth - 1)} < {self.primary(depth - 1)} <= {self.primary(depth - 1)}"
        if r < 0.97:
            return f"{self.primary(depth - 1)} if {self.expression(depth - 1)} else {self.primary(depth - 1)}"
        return f"[{self.expression(depth - 1)}, {self.primary(depth - 1)}]"

    def tag(self, text):
        left = self.pick(["", "", "", "-", "+"])
        right = self.pick(["", "", "", "-", "+"])
        return "{%" + left + self.pick([" ", "  ", "\n"]) + text + " " + right + "%}"

    def show(self, text):
        return "{{" + self.pick(["", "", "-"]) + " " + text + " " + self.pick(["", "", "-"]) + "}}"

    def data(self):
        return self.pick(["", " ", "\n", "\n  ", "text", " x \n", "\t", "\n\n", "é ", "{# note #}", "{#- note -#}",
                          "  {# note #}\n", "{% raw %} {{ x }} {% endraw %}", "{%- raw -%}\n {% a %}\n{%- endraw -%} ",
                          "\u00a0", "{ }", "a{b}c%", "\r\n"])

    def body(self, depth):
        return "".join(self.data() + self.statement(depth) for _ in range(self.pick([1, 1, 2, 3]))) + self.data()

    def statement(self, depth):
        r = self.rng.random()
        if depth <= 0 or r < 0.3:
            return self.show(self.expression(1))
        if r < 0.42:
            name = self.pick(["v", "i", "s", "ns.a", "p, r", "e"])
            value = "1, 2" if "," in name else self.expression(1)
            return self.tag(f"set {name} = {value}") + self.show(self.pick(["v", "i", "s", "ns.a", "p", "v is defined"]))
        if r < 0.6:
            text = self.tag("if " + self.expression(1)) + self.body(depth - 1)
            if self.rng.random() < 0.3:
                text += self.tag("elif " + self.expression(1)) + self.body(depth - 1)
            if self.rng.random() < 0.5:
                text += self.tag("else") + self.body(depth - 1)
            return text + self.tag("endif")
        if r < 0.8:
            target, items = self.pick([("v", "l"), ("v", "m"), ("v", "x"), ("p, r", "d.items()"), ("v", "s"), ("v", "range(4)"),
                                       ("p, r", "d | dictsort"), ("v", "messages"), ("v", "k"), ("v", "x | selectattr('name')"),
                                       ("v", "missing"), ("v", "d"), ("v", "m | map('upper')"), ("p, r", "x"), ("v", "l | reverse")])
            text = self.tag(f"for {target} in {items}" + self.pick(["", "", "", " if v", " if loop is defined", " if ns.a < 3"]))
            text += self.show(self.pick(["loop.index", "loop.index0", "loop.first", "loop.last", "loop.length", "loop.revindex",
                                         "loop.previtem", "loop.nextitem", "loop.cycle('a', 'b')", "loop.changed(v)", "loop.depth",
                                         "v", "p", "r", "loop.revindex0", "loop.foo"]))
            text += self.body(depth - 1)
            if self.rng.random() < 0.2:
                text += self.tag("if loop.index > 1") + self.tag(self.pick(["break", "continue"])) + self.tag("endif")
            if self.rng.random() < 0.3:
                text += self.tag("set ns.a = ns.a + 1")
            if self.rng.random() < 0.3:
                text += self.tag("else") + self.body(depth - 1)
            return text + self.tag("endfor")
        if r < 0.88:
            signature = self.pick(["", "a", "a, v=1", "a=s, v=a", "v=l"])
            call = self.pick(["mac()", "mac(1)", "mac(1, 2)", "mac(v=3)", "mac(1, v='x')", "mac(1, 2, 3)", "mac(zz=1)", "mac(*l)", "mac(**d)"])
            inner = self.body(depth - 1) + self.pick(["", "{{ varargs }}", "{{ kwargs }}", "{{ caller is defined }}", "{{ a }}{{ v }}"])
            return self.tag(f"macro mac({signature})") + inner + self.tag("endmacro") + self.show(call)
        if r < 0.92:
            return self.tag("set v" + self.pick(["", " | upper", " | trim | length"])) + self.body(depth - 1) + self.tag("endset") + self.show("v")
        if r < 0.95:
            return self.tag("filter " + self.pick(["upper", "trim", "replace('a', 'b') | title", "indent(2)", "tojson"])) + self.body(depth - 1) + self.tag("endfilter")
        if r < 0.965:
            return self.tag("generation") + self.body(depth - 1) + self.tag("endgeneration")
        if r < 0.985:
            return (self.tag("macro box(a)") + "[{{ a }}|{{ caller(1) }}]" + self.tag("endmacro") +
                    self.tag("call" + self.pick(["", "(v)"]) + " box(2)") + self.body(depth - 1) + self.tag("endcall"))
        return self.tag("with v = " + self.expression(1)) + self.body(depth - 1) + self.tag("endwith")


def change(rng, text, others):
    """A published template with a piece changed."""
    pieces = re.findall(r"\{[%{#].*?[%}#]\}|[^{]+|\{", text, re.S)
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(len(pieces))
        r = rng.random()
        if r < 0.25:
            del pieces[at]
        elif r < 0.45:
            pieces[at] = pieces[at].replace("-%}", "%}") if rng.random() < 0.5 else pieces[at].replace("{%", "{%-", 1)
        elif r < 0.7:
            pieces[at] = re.sub(r"\b\d\b", lambda _: str(rng.randrange(4)), pieces[at])
            pieces[at] = pieces[at].replace("strip", rng.choice(["lstrip", "rstrip", "upper"])).replace("trim", "title")
        elif r < 0.85:
            pieces.insert(at, rng.choice(re.findall(r"\{\{.*?\}\}", others, re.S) or [" "]))
        else:
            words = re.findall(r"\w+|\W", pieces[at])
            words[rng.randrange(len(words))] = rng.choice(["not", "1", "'x'", "loop", "|", "."])
            pieces[at] = "".join(words)
        if not pieces:
            break
    return "".join(pieces)


def conversation(rng):
    texts = ["Hi", "  What?\n", "", "<think>a\n</think>\n\nb", "naïve 😀", "{{ x }}", "</s>[INST]", "1\u2028 2"]
    messages = [{"role": "system", "content": rng.choice(texts)}] if rng.random() < 0.5 else []
    for i in range(rng.randrange(1, 6)):
        message = {"role": rng.choice(["user", "assistant", "tool"]) if rng.random() < 0.2 else ["user", "assistant"][i % 2]}
        if rng.random() < 0.95:
            message["content"] = rng.choice(texts) if rng.random() < 0.9 else [{"type": "text", "text": rng.choice(texts)}]
        if message["role"] == "assistant" and rng.random() < 0.2:
            message["tool_calls"] = [{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": rng.choice([{"a": [1, None]}, "{}"])}}]
        if message["role"] == "assistant" and rng.random() < 0.2:
            message["reasoning_content"] = rng.choice(texts)
        messages.append(message)
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {
        "a": {"type": "array", "items": {"type": "string"}}}, "required": ["a"]}}}] if rng.random() < 0.4 else None
    return {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": rng.random() < 0.5,
            "bos_token": "<s>", "eos_token": "</s>", "enable_thinking": rng.random() < 0.5}


class Pinned(datetime.datetime):
    """The date that test_templates.c has."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 20, 15, 4, 5)


class TooLong(Exception):
    pass


def alarm(*_):
    raise TooLong


def expect(source, variables):
    """What transformers makes of it; None where that says nothing."""
    signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        template = chat_template_utils._cached_compile_jinja_template(source)
        blocks, spans = [], []
        with template.environment.activate_tracker(blocks, spans):
            for block in template.generate(**variables):
                blocks.append(block)
        text = "".join(blocks)
        text.encode()
        return {"rendered": text, "generation": spans} if spans else {"rendered": text}
    except (TooLong, RecursionError, MemoryError, UnicodeEncodeError):
        return None
    except Exception as error:  # noqa: BLE001: any failure of a template is a result
        return {"error": str(error), "error_type": type(error).__name__}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def make(rng, published, everything):
    maker = Maker(rng)
    if published and rng.random() < 0.7:
        return change(rng, rng.choice(published), everything), conversation(rng)
    if rng.random() < 0.55:
        return "{{ " + maker.expression(rng.choice([1, 2, 2, 3])) + " }}", VARIABLES
    return "{% set ns = namespace(a=1) %}" + maker.body(rng.choice([1, 2, 3])), VARIABLES


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--published", help="a folder of templates to change")
    parser.add_argument("--program", default="build/tests/golden/test_templates")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    warnings.simplefilter("ignore")
    chat_template_utils.datetime = Pinned
    published = [open(p, encoding="utf-8", newline="").read() for p in sorted(glob.glob(os.path.join(arguments.published, "*.jinja")))] if arguments.published else []
    everything = "".join(published)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8", newline="\n") as file:
        count = 0
        while count < arguments.count:
            source, variables = make(rng, published, everything)
            expected = expect(source, variables)
            if expected is not None:
                file.write(json.dumps({"case": f"seed {arguments.seed}, number {count}", "source": source,
                                       "variables": variables, **expected}, ensure_ascii=False) + "\n")
                count += 1
        file.flush()
        sys.exit(subprocess.run([arguments.program, "--cases", file.name]).returncode)


if __name__ == "__main__":
    main()
