#!/usr/bin/env python3
"""Small templates, one construct each, and what transformers renders of them.

    pip install transformers jinja2
    python3 tests/golden/make/golden_templates.py        # writes tests/golden/templates/cases.jsonl again, the same bytes

The first line of the file has the variables that the cases read. After the hand-written ones come random cases of
fuzz_templates.py, a few from each seed, which reach what no one thought of.
"""
import json
import os
import random
import sys
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import fuzz_templates  # noqa: E402

RANDOM_CASES = 400
# What the interpreter refuses, and so a golden case may not contain.
REFUSED = ("object at 0x", "<generator", "<built-in", "<bound")

CASES = {
    "whitespace": [
        "a\n{% if true %}\nb\n{% endif %}\nc\n", "a  {% if true %} b {% endif %}  c", "a \n  {%- if true -%}  \n b{% endif %}",
        "  {% if true %}x{% endif %}\n  {%+ if true %}y{% endif +%}\nz", "{{ 1 }}\n{{- 2 -}}\n {{ 3 }}\n\n", "\n\n{# c #}\n x {#- d -#} y",
        "{% raw %}{{ x }}{% endraw %}", "a {%- raw -%} {% b %} {%- endraw -%} c", "a\r\nb\rc", "{% raw %}\n a {% endraw %}\n b",
        "\u00a0\u2003{%- if true %}x{% endif -%}\u3000y", "{{ '}}' }}{{ '%}' }}{{ {'a': {'b': 1}} }}", "{%if true%}a{%else%}b{%endif%}",
        "x\n    {#- a\n b #}\n    y", "{{ 'a\nb' }}", "{% set x = 1 %}   \n  {% set y = 2 %}\n{{ x + y }}", "{ {a} %} #} }}",
    ],
    "literals": [
        "{{ 1 }} {{ 1_000 }} {{ 0x1f }} {{ 0b11 }} {{ 0o17 }} {{ 1.5 }} {{ 1e3 }} {{ 2.5e-3 }} {{ 1e16 }} {{ 1e22 }} {{ 0.1 }} {{ 100.0 }}",
        r"{{ 'a\tb\n\\\'\"' }}|{{ '\x41\u00e9\U0001F600\101' }}|{{ '\q' }}|{{ 'a\
b' }}|{{ '\é' }}", "{{ 'a' 'b' \"c\" }}", "{{ [1, 'a', none, true, 1.0, (1,), (), {}] }}", "{{ {'a': 1, 2: [3], none: none} }}",
        "{{ (1, 2) }} {{ () }} {{ (1) }} {{ 1, 2 }}", "{{ 'it\\'s' }} {{ ['it\\'s', 'a\"b', '\"\\''] }}", "{{ ['\\n\\x07\\u200b é\\u2028😀'] }}",
        "{{ true }} {{ True }} {{ none }} {{ None }} {{ false }}", "{{ -1 }} {{ +1 }} {{ --1 }} {{ -1 | abs }}", "{{ 1.0 }} {{ -0.0 }} {{ 1e-5 }} {{ 0.0001 }}",
        "{{ l[0].x }}{{ 1.real is defined }}", "{{ 9223372036854775807 }}", "{{ [undefined_thing] }}", "{{ {1: 'a', 1.0: 'b', true: 'c'} }}",
    ],
    "operators": [
        "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}", "{{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}",
        "{{ 1 + 2 * 3 - 4 / 2 }} {{ (1 + 2) * 3 }}", "{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ missing }}", "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }}",
        "{{ 'a' in 'abc' }} {{ 'z' not in 'abc' }} {{ 1 in [1] }} {{ 'a' in d }} {{ 5 in range(9) }} {{ 'x' in d.values() }}", "{{ not 1 in [2] }} {{ not true and false }} {{ true or false and false }}",
        "{{ 1 and 2 }} {{ 0 or 'x' }} {{ '' or none }} {{ [] and 1 }}", "{{ 'a' if true else 'b' }} {{ 'a' if false }} {{ 1 if false else 2 if false else 3 }}",
        "{{ [1] + [2] }} {{ (1,) + (2,) }} {{ 'ab' * 3 }} {{ 2 * [0] }}", "{{ [1, 2] < [1, 3] }} {{ 'a' < 'b' }} {{ (1, 'a') == (1, 'a') }} {{ {'a': 1} == {'a': 1.0} }}",
        "{{ 1 ~ 2 + 3 }}", "{{ '%s=%d %5.2f|%-4s|%04d %x %%' % ('a', 3, 1.5, 'b', 7, 255) }}", "{{ '%s' % 1 }} {{ '%(a)s' % {'a': 2} }} {{ '%r' % 'x' }}",
        "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ 'a' + l }}", "{{ none + 1 }}", "{{ 1 / 0 }}", "{{ 1 < 'a' }}", "{{ 1 in 5 }}", "{{ 5 in 'abc' }}", "{{ missing + 1 }}", "{{ -'a' }}",
        "{{ [] == () }} {{ missing == missing2 }} {{ none == false }}", "{{ l and 'yes' }}{{ 'no' if not k }}",
    ],
    "attributes": [
        "{{ d.a }} {{ d['b'] }} {{ d.zz }} {{ d['zz'] }} {{ l.0 }} {{ l[-1] }} {{ l[9] }} {{ s[0] }} {{ s[-1] }} {{ s[99] }}", "{{ y.items }}", "{{ y['items'] }} {{ y['keys'] }}",
        "{{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ s[2:5] }} {{ s[::-2] }} {{ (1, 2, 3)[1:] }} {{ l[5:] }} {{ l[none:2] }} {{ s[-3:] }} {{ w[1:4] }}", "{{ y.nested.deep[0].er }}",
        "{{ missing.a }}", "{{ d.zz.a }}", "{{ none.a }}", "{{ none.a.b }}", "{{ l.append(1) }}", "{{ l.append }}", "{{ l.append is defined }}", "{{ d.update({}) }}", "{{ s.__class__ }}", "{{ s.__class__.x }}",
        "{{ l['a'] }}{{ s['upper'] is callable }}", "{{ s.nope() }}", "{{ 5() }}", "{{ l[1:2:0] }}", "{{ d[[1]] }}", "{{ messages[0].content }}|{{ messages[1]['content'] | trim }}",
        "{{ i.x }} {{ f.x }} {{ l['0'] }}", "{{ y['0'] }} {{ y.0 }}",
    ],
    "if": ["{% if 0 %}a{% elif none %}b{% elif 's' %}c{% else %}d{% endif %}", "{% if missing %}a{% else %}b{% endif %}", "{% if l | select %}a{% endif %}{% if k %}b{% endif %}",
           "{% if true %}{% set v = 1 %}{% endif %}{{ v }}", "{% if false %}{{ x | from_json }}{% endif %}ok", "{% if true %}{{ x | from_json }}{% endif %}", "{{ x | from_json }}"],
    "for": [
        "{% for v in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }},{% endfor %}",
        "{% for v in l %}{{ loop.previtem }}<{{ v }}>{{ loop.nextitem }} {% endfor %}", "{% for v in k %}x{% else %}none{% endfor %}", "{% for v in l if v > 1 %}{{ v }}{{ loop.length }}{{ loop.last }}{% endfor %}",
        "{% for a, b in d.items() %}{{ a }}={{ b }};{% endfor %}", "{% for a in d %}{{ a }}{% endfor %}{% for c in 'añ😀' %}[{{ c }}]{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
        "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for v in none %}{% endfor %}", "{% for v in 5 %}{% endfor %}", "{% for v in missing %}x{% else %}y{% endfor %}",
        "{% set v = 0 %}{% for i in l %}{% set v = v + i %}{{ v }} {% endfor %}{{ v }}", "{% set ns = namespace(t=0) %}{% for i in l %}{% set ns.t = ns.t + i %}{% endfor %}{{ ns.t }}",
        "{% for v in range(9) %}{% if v == 2 %}{% continue %}{% endif %}{% if v == 5 %}{% break %}{% endif %}{{ v }}{% endfor %}", "{% for v in l %}{% break %}{% else %}x{% endfor %}y",
        "{% for v in l %}{% for u in m %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}", "{% for v in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(v > 1) }} {% endfor %}",
        "{% for v in [[1, [2]], [3]] recursive %}{{ v if v is number }}{% if v is iterable %}({{ loop(v) }}){% endif %}{{ loop.depth0 }}{% endfor %}", "{% for v in m | reverse %}{{ v }}{{ loop.length }}{% endfor %}",
        "{% for v in x | selectattr('age') %}{{ v.name }}{{ loop.last }}{% endfor %}", "{% for v in l %}{% endfor %}{{ v }}", "{% for m in m %}{{ m }}{% endfor %}{{ m }}",
        "{% set g = l | map('string') %}{{ g | join }}|{{ g | join }}", "{% break %}", "{% for v in l %}{% set loop = 1 %}{% endfor %}", "{% set loop = 1 %}{{ loop }}", "{% for v in l %}{{ loop.nope }}{{ loop.index0 is even }}{% endfor %}", "{% for v in [1, 1, 2] %}{{ loop.changed(v) }}{% endfor %}",
    ],
    "set": ["{% set v = 1, 2 %}{{ v }}{% set a, b = v %}{{ a }}{{ b }}", "{% set v %} x {{ i }} {% endset %}[{{ v }}]", "{% set v | upper | trim %} x {% endset %}[{{ v }}]", "{% set ns = namespace(a=1, **{'b': 2}) %}{% set ns.c %}z{% endset %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.d }}{{ ns }}",
            "{% set d.a = 1 %}", "{% set 1 = 2 %}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a ~ ns['b'] }}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% set messages = messages[1:] %}{{ messages | length }}",
            "{% for v in l %}{{ i }}{% endfor %}{% set i = 5 %}{{ i }}", "{% for v in l %}{{ i }}{% endfor %}{% if true %}{% set i = 5 %}{% endif %}{{ i }}", "{{ i }}{% for v in l %}{{ i }}{% endfor %}{% set i = 5 %}",
            "{% macro f() %}[{{ i }}]{% endmacro %}{{ f() }}{% set i = 5 %}{{ f() }}", "{% for v in l %}{% for u in l %}{{ s }}{% endfor %}{% set s = v %}{{ s }}{% endfor %}{{ s }}", "{% for v in l %}{% for u in l %}{{ s }}{% endfor %}{% set s = v %}{% endfor %}", "{% for v in l %}{{ f is defined }}{% endfor %}{% macro f() %}{% endmacro %}", "{% for v in l %}{{ e }}{% set e = 1 %}{% endfor %}{{ i if false }}{% set i = i %}", "{% with a = 1, b = i %}{{ a }}{{ b }}{% set a = 2 %}{{ a }}{% endwith %}{{ a }}", "{% set v = missing %}{{ v is defined }}"],
    "macro": [
        "{% macro f(a, b=2, c='x' ~ b) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(a=1, c=5) }}{{ f() }}", "{% macro f(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, z=4) }}",
        "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=1) }}", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
        "{% macro f() %}{{ x1 }}{% endmacro %}{% set x1 = 5 %}{{ f() }}", "{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}body {{ i }}{% endcall %}", "{% macro f(a) %}[{{ caller(a, 2) }}]{% endmacro %}{% call(p, q=9) f(1) %}{{ p }}{{ q }}{% endcall %}",
        "{% macro f() %}[{{ caller }}]{% endmacro %}{{ f() }}", "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}", "{{ f is defined }}{% macro f() %}{% endmacro %}{{ f is callable }}", "{% macro f(a=l) %}{% for v in a %}{{ v }}{% endfor %}{% endmacro %}{{ f() | length }}{{ f(m) }}",
        "{% macro f(a) %}{% set i = a %}{{ i }}{% endmacro %}{{ f(99) }}{{ i }}", "{% macro f(*l) %}{% endmacro %}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(*[1]) }}{{ f(**{'a': 2}) }}", "{% for v in l %}{% macro f() %}{{ v }}{{ loop.index }}{% endmacro %}{{ f() }}{% endfor %}",
    ],
    "blocks": ["{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | indent(2) %}a\na{% endfilter %}", "x{% generation %}a{{ s }}{% endgeneration %}y", "{% for v in l %}{% generation %}{{ v }}{% set z = 5 %}{% endgeneration %}{{ z }}{% endfor %}",
               "{% do 1 %}", "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% nope %}", "{% if true %}", "{% endif %}", "{{ 1", "{% if true", "{{ 1 }", "{# x", "{% raw %}", "{{ }}", "{{ 1 2 }}", "{{ a b }}", "{{ (1 }}", "{{ ) }}", "{{ 'a }}", "{{ 1 is 2 }}", "{{ 1 | }}", "{{ 1 $ 2 }}",
               "{% for v in l if %}{% endfor %}", "{{ x is nope }}", "{{ f(a=1, 2) }}", "{{ range(3, step=1) }}", "{% set x %}", "{% for x in l %}{% else %}{% endif %}", "{% print i, 'a' %}", "{{ a.b.c is defined }}", "{{ a is defined and a.b is defined }}"],
    "filters": ["{{ " + subject + " | " + name + " }}" for name, subjects in {
        "tojson": ["d", "messages", "q", "l", "f", "h", "none", "missing", "x", "(1, 2)", "{1: 2, true: 3, none: 4, 1.5: 5}", "range(2)"], "tojson(indent=2)": ["messages", "[]", "{}", "l"], "tojson(indent='--')": ["d"], "tojson(ensure_ascii=true)": ["q", "w"],
        "tojson(sort_keys=true)": ["d", "y"], "tojson(separators=(',', ':'))": ["x"], "tojson(indent=0)": ["d"], "length": ["s", "w", "l", "d", "none", "5", "missing"], "trim": ["t", "none", "'\u2003\u00a0x\u0085'"], "trim('ab')": ["'abxba'"],
        "default('z')": ["missing", "none", "d.q"], "default('z', true)": ["none", "''", "s"], "join(', ')": ["l", "m", "d", "'abc'", "missing", "none"], "join(',', 'name')": ["x"], "map('upper') | list": ["m"], "map(attribute='name') | list": ["x"], "map(attribute='age', default=9) | list": ["x"],
        "map('nope') | list": ["m", "k"], "select('odd') | list": ["l"], "reject('odd') | list": ["l"], "select | list": ["[0, 1, '', none]", "none"], "selectattr('name', 'equalto', 'ann') | list": ["x"], "selectattr('name') | map(attribute='age') | list": ["x"], "rejectattr('name', 'defined') | list": ["x"],
        "first": ["l", "k", "d", "s", "none"], "last": ["l", "k", "s", "d"], "sort": ["l", "m", "[2, 'a']"], "sort(reverse=true)": ["m"], "sort(true, true)": ["m"], "sort(attribute='age,name')": ["x[:2]"], "unique | list": ["[1, 2, 1, 'a', 'A']"], "reverse | list": ["l", "d"], "reverse": ["s"],
        "items | list": ["d", "missing", "l"], "dictsort": ["d", "{'b': 1, 'A': 2}"], "dictsort(by='value', reverse=true)": ["{'b': 1, 'A': 2}"], "int": ["'12'", "'1.9'", "'x'", "2.7", "none", "' 8 '", "'0x1f'"], "int(0, 16)": ["'0x1f'", "'ff'"], "float": ["'1.5'", "'x'", "3"],
        "round": ["2.5", "3.5", "-2.5", "7", "1.25"], "round(2)": ["1.005", "2.675"], "round(1, 'ceil')": ["1.21"], "round(1, 'floor')": ["1.29"], "abs": ["-3", "-1.5"], "string": ["5", "none", "l"], "upper": ["w", "5"], "lower": ["w"], "title": ["'hello wORLD-foo (bar)'"], "capitalize": ["'hELLO wORLD'", "w"],
        "replace('l', 'L')": ["s", "5"], "replace('', '-')": ["'añ'"], "indent": ["'a\\n\\nb'"], "indent(2, true, true)": ["'a\\n\\nb'"], "e": ["html", "5"], "safe": ["html"], "escape | upper": ["html"], "batch(2) | list": ["l"], "batch(2, 'x') | list": ["l"], "slice(2) | list": ["l"],
        "sum": ["l", "k"], "sum(attribute='age')": ["x[:2]"], "min": ["l", "m", "k"], "max": ["l", "m"], "groupby('name')": ["x[:3]"], "list": ["s", "d", "l"], "wordcount": ["s"], "truncate(8)": ["'a long text here'"], "center(11)": ["'abc'"], "format(1, 'x')": ["'%d-%s'"], "urlencode": ["'a b/c?é'"], "attr('x')": ["d"],
        "filesizeformat": ["1", "999", "123456", "1e9"], "count": ["l"]}.items() for subject in subjects],
    "tests": ["{{ " + " ~ ' ' ~ ".join(f"({v} is {t})" for v in ("missing", "none", "true", "0", "1.5", "'a'", "l", "d", "(1,)", "range(2)", "d.items()", "raise_exception", "l | map('upper')")) + " }}"
              for t in ("defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false", "callable", "escaped", "sameas(none)")] + [
        "{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 1 is in [1] }} {{ 2 is not in [1] }} {{ 2 is gt 1 }} {{ 2 is eq(2) }} {{ 'upper' is filter }} {{ 'odd' is test }}",
        "{{ 'a' is odd }}", "{{ missing is odd }}", "{{ x is not defined or x is string }}", "{{ not x is defined }}", "{{ 1 is string is none }}", "{{ 1 is divisibleby 0 }}"],
    "methods": ["{{ " + text + " }}" for text in (
        "s.upper() ~ s.lower() ~ s.title() ~ s.swapcase() ~ w.casefold()", "t.strip() ~ '|' ~ t.lstrip() ~ '|' ~ t.rstrip()", "'xxaxx'.strip('x')", "u.split(',')", "u.split(',', 2)", "'  a  b '.split()", "'  a  b '.split(none, 1)", "'a,b,c'.rsplit(',', 1)",
        "' a b '.rsplit(none, 1)", "'a\\nb\\r\\nc\\x0b'.splitlines()", "'a\\nb'.splitlines(true)", "'a\\nb'.splitlines(0)", "'a\\nb'.splitlines('x')", "'a\\nb'.splitlines(none)", "s.startswith('He') ~ s.endswith(('x', '!')) ~ s.startswith('l', 2)", "s.replace('l', 'L') ~ s.replace('l', 'L', 1)", "s.find('l') ~ s.find('z') ~ s.rfind('l') ~ s.index('o')", "s.index('zz')",
        "s.count('l') ~ s.count('')", "'-'.join(['a', 'b']) ~ ''.join('xyz')", "'-'.join([1])", "'{} {1}'.format(1, 2)", "'{} {}|{a}|{b[0]}|{:>4}'.format(1, 'x', 'y', a=2, b=[3])", "'{:.2f} {:05d} {:,} {:x} {:^7}|{:<4}|{!r}'.format(1.5, 42, 1234567, 255, 'mid', 'l', 'q')", "'{'.format()",
        "s.partition(',') ~ s.rpartition('zz')", "'7'.zfill(3) ~ '-7'.zfill(4) ~ 'a'.center(4, '*') ~ 'a'.ljust(3) ~ 'a'.rjust(3)", "'ab1'.isalnum() ~ 'ab'.isalpha() ~ '12'.isdigit() ~ ' '.isspace() ~ 'A'.isupper() ~ ''.isdigit()", "'abc'.removeprefix('a').removesuffix('c')",
        "d.items() ~ d.keys() ~ d.values()", "d.get('a') ~ d.get('zz') ~ d.get('zz', 3)", "d.items() | list", "d.copy() ~ l.copy()", "l.index(1) ~ l.count(3)", "l.index(99)", "'a b'.split(sep=' ')", "'a'.strip(chars='a')", "''.split(',') ~ ''.split()", "'a'.encode()", "'ÄÖ'.lower() ~ 'straße'.upper() ~ 'ΑΣ'.lower()")],
    "functions": ["{{ range(3) | list }} {{ range(2, 8, 3) | list }} {{ range(3, 0, -1) | list }} {{ range(2) }}", "{{ range(200000) }}", "{{ dict(a=1, **{'b': 2}) }} {{ dict([('x', 1)]) }}", "{{ raise_exception('No: ' ~ s) }}", "{% if true %}{{ raise_exception('ä\\n\"q\"') }}{% endif %}", "{{ strftime_now('%d %b %Y %H:%M:%S %A %j %% %y') }}",
                  "{{ strftime_now('%Y-%m-%d') }}{{ strftime_now is defined }}{{ raise_exception is defined }}{{ nope is defined }}", "{% set j = joiner('; ') %}{{ j() }}a{{ j() }}b{{ j() }}c", "{% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}"],
    "scopes": ["{% for v in l %}{% macro f(a) %}{{ v }}{{ a }}{% endmacro %}{% for u in m %}{{ f(u) }}{% endfor %}{% endfor %}", "{% set ns = namespace(f=none) %}{% macro g(x) %}{% set y = x %}{% macro h() %}{{ y }}{% endmacro %}{% set ns.f = h %}{% endmacro %}{{ g(1) }}{% for v in l %}{{ v }}{% endfor %}{{ ns.f() }}{{ g(2) }}{{ ns.f() }}",
               "{% set ns = namespace(k=none) %}{% for v in l %}{% for u in m if u != 'b' ~ v %}{% if loop.first %}{% set ns.k = loop %}{% break %}{% endif %}{% endfor %}{% for w in m %}{{ w }}{% endfor %}{{ ns.k.nextitem }}{% endfor %}", "{% set ns = namespace(k=none) %}{% for v in l %}{% set ns.k = loop %}{% endfor %}{{ ns.k.index }}{{ ns.k.previtem }}{{ ns.k.last }}",
               "{% for v in l %}{% with a = v %}{% for u in [1, 2] %}{{ a }}{{ u }}{% set a = 9 %}{{ a }}{% endfor %}{{ a }}{% endwith %}{% endfor %}", "{% for v in l %}{% if v == 1 %}{% set q = 'q' %}{% endif %}[{{ q }}]{% endfor %}", "{% macro f(a, b) %}{% set c = a %}{{ c }}{{ b is defined }}{{ d1 is defined }}{% set d1 = 1 %}{% endmacro %}{{ f(1) }}{{ f(2, 3) }}{{ f(4) }}",
               "{% macro f(n) %}{% set k = n %}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{{ k }}{{ n }}{% endmacro %}{{ f(4) }}{{ f(2) }}", "{% for v in l if v > 1 %}{% for u in l if u < v %}{{ u }}{{ v }}{{ loop.last }},{% endfor %}{% endfor %}", "{% for v in l %}{% for v in m %}{{ v }}{% endfor %}{{ v }}{% endfor %}{{ v }}",
               "{% for v in l %}{% generation %}{% for u in m %}{% set z = u %}{{ z }}{% endfor %}{{ v }}{% endgeneration %}{% endfor %}", "{% for v in l %}{{ 'y' if loop }}{{ loop and loop.index }}{% endfor %}", "{% for v in x | selectattr('age') if v.age > 1 %}{{ not loop }}{{ v.name }}{% endfor %}",
               "{% set ns = namespace(f=none) %}{% for v in l %}{% macro f(a) %}{{ a }}{{ i }}{% endmacro %}{% set ns.f = f %}{% endfor %}{{ ns.f(1) }}", "{% macro g() %}{% for u in m %}{{ u }}{{ caller(u) }}{% endfor %}{% endmacro %}{% for v in l %}{% call(p) g() %}{{ p }}{{ v }}{% endcall %}{% endfor %}"],
    "parts": ["{% set r = l[1:] %}{{ r }}{{ r[1:] }}{{ l[:2] + [9] }}{{ l }}{{ (l[:2] + [9])[1:] + r }}{{ l[1:1] }}{{ (1, 2, 3)[1:] + (4,) }}", "{{ l[1:] | sort }}{{ l[0:] | reverse | list }}{{ l[1:] | batch(2, 0) | list }}{{ l[:2] | sum }}{{ [l[:1], l[1:]] | sum(start=[]) }}{{ l[:1] * 3 }}{{ l }}", "{{ l[:] is sameas l }}{{ l[:] == l }}{{ l[1:].index(2) }}{{ messages[1:][0].role }}{{ x[:2] | map(attribute='name') | join }}"],
    "self": ["[{{ self.GREETING }}|{{ self['x'] }}|{{ self }}|{{ self | string | length }}]", "{{ self is defined }} {{ self is callable }} {{ self is iterable }} {{ self is sequence }} {{ self is mapping }} {{ self is string }} {{ self is sameas self }} {{ self == self }} {{ 'y' if self }}",
             "{% for v in l %}{{ self.x }}{{ v }}{% endfor %}{% macro f() %}<{{ self.y }}>{% endmacro %}{{ f() }}{{ self.a | default('d') }}{{ self.__class__ }}", "{{ self.x.y }}", "{{ self() }}", "{{ self.x() }}", "{{ self | length }}", "{{ self | list }}", "{{ self | tojson }}", "{{ 'a' in self }}", "{{ self + 'a' }}", "{{ self < self }}",
             "{% set self = 5 %}{{ self }}", "{% if false %}{% set self = 5 %}{% endif %}[{{ self }}]", "{{ self.x }}{% set self = 5 %}{{ self }}", "{% macro f(self) %}{{ self }}{% endmacro %}{{ f(3) }}", "{% with self = 2 %}{{ self }}{% endwith %}[{{ self }}]"],
}
# Python prints these with an address, or in another way that is refused here.
SKIPPED = {"{{ l.append }}", "{% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}", "{{ y.items }}", "{{ l[0].x }}{{ 1.real is defined }}", "{{ 'a'.encode() }}"}


def main():
    warnings.simplefilter("ignore")
    fuzz_templates.chat_template_utils.datetime = fuzz_templates.Pinned
    lines = [{"variables": fuzz_templates.VARIABLES}]
    for group, sources in CASES.items():
        for source in sources:
            expected = fuzz_templates.expect(source, fuzz_templates.VARIABLES)
            if source not in SKIPPED and not any(word in expected.get("rendered", "") for word in REFUSED):
                lines.append({"case": group, "source": source, **expected})
    rng = random.Random(7)
    while len([line for line in lines if line.get("case") == "random"]) < RANDOM_CASES:
        source, variables = fuzz_templates.make(rng, [], "")
        expected = fuzz_templates.expect(source, variables)
        text = (expected or {}).get("rendered", "")
        if expected and len(text) < 600 and not any(word in text for word in REFUSED) and "[" not in source:
            lines.append({"case": "random", "source": source, **expected})
    path = os.path.join(HERE, "..", "templates", "cases.jsonl")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    print(f"{len(lines) - 1} cases")


if __name__ == "__main__":
    main()
