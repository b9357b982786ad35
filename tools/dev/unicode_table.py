#!/usr/bin/env python3
"""Writes engine/text/unicode_table.inc from the files of the Unicode Character Database.

    tools/dev/unicode_table.py UCD > engine/text/unicode_table.inc

UCD is the folder of a version's data files, as in https://www.unicode.org/Public/17.0.0/ucd/ or the package
unicode-data of a distribution: DerivedAge.txt, Scripts.txt, extracted/DerivedGeneralCategory.txt.
"""
import math
import re
import sys

CODE_POINTS = 0x110000
MOVED = {0x1171E: 16}  # category changed in this version: counts as a new character
VERSIONS = (9, 14)  # of the normalization forms, and of the oldest PCRE2; what came before or between is not told apart


def rows(path):
    """Yields (first, last, value) of a data file."""
    for line in open(path, encoding="utf-8"):
        found = re.match(r"([0-9A-F]+)(?:\.\.([0-9A-F]+))?\s*;\s*([^#\s]+)", line)
        if found:
            first = int(found[1], 16)
            yield first, int(found[2] or found[1], 16), found[3]


def column(path, missing, read=str):
    values = [missing] * CODE_POINTS
    for first, last, value in rows(path):
        values[first : last + 1] = [read(value)] * (last - first + 1)
    return values


def since(version):
    """The first major version that is certain to have a character of this version: 15.1 counts as 16."""
    return min((told for told in VERSIONS if told >= float(version)), default=math.ceil(float(version)))


def runs(values):
    """Yields (first, last, value) of equal neighbours."""
    first = 0
    for cp in range(1, CODE_POINTS + 1):
        if cp == CODE_POINTS or values[cp] != values[first]:
            yield first, cp - 1, values[first]
            first = cp


def lines(entries, per_line):
    entries = list(entries)
    for at in range(0, len(entries), per_line):
        print("    " + ", ".join(entries[at : at + per_line]) + ",")


def main(ucd):
    version = re.search(r"DerivedAge-(\d+)\.", open(f"{ucd}/DerivedAge.txt", encoding="utf-8").readline())[1]
    category = column(f"{ucd}/extracted/DerivedGeneralCategory.txt", "Cn")
    age = column(f"{ucd}/DerivedAge.txt", 0, since)
    for cp, changed in MOVED.items():
        age[cp] = changed
    script = column(f"{ucd}/Scripts.txt", "Unknown")
    names = sorted(set(category))
    print("/* Made by tools/dev/unicode_table.py of Unicode %s.0; do not edit. */" % version)
    print(f"enum {{ UNICODE_NEWEST = {version} }};")
    print('static const char category_names[][3] = {')
    lines((f'"{name}"' for name in names), 15)
    print("};")
    print("/* Runs of characters that agree, each up to the next: first << 11 | category << 6 | first major version. */")
    print("static const uint32_t runs[] = {")
    both = [(names.index(c), a) for c, a in zip(category, age)]
    lines((f"0x{first << 11 | c << 6 | a:08x}" for first, _, (c, a) in runs(both)), 9)
    print("};")
    scripts = sorted(set(script) - {"Unknown"})
    print("static const char *const script_names[] = {")
    lines((f'"{name}"' for name in scripts), 4)
    print("};")
    print(f"/* Scripts of characters newer than Unicode {VERSIONS[-1]}, by index. */")
    print("static const struct {\n    uint32_t first, last;\n    uint8_t script;\n} new_scripts[] = {")
    fresh = [(s, a) if a > VERSIONS[-1] else None for s, a in zip(script, age)]
    lines((f"{{0x{first:x}, 0x{last:x}, {scripts.index(at[0])}}}" for first, last, at in runs(fresh) if at), 5)
    print("};")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
