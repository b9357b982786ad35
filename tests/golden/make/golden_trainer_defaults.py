#!/usr/bin/env python3
"""Writes trainer_defaults.json: the fields of TrainingArguments, SFTConfig and DPOConfig with their defaults,
as a command line would give them. Fields without a default, or whose default is None, are left out.

    python tests/golden/make/golden_trainer_defaults.py     (transformers and trl; from the top of the repository)
"""
import dataclasses
import json

from transformers import TrainingArguments
from trl import DPOConfig, SFTConfig


def word(value):
    value = getattr(value, "value", value)
    return str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else json.dumps(value)


def defaults(cls):
    out = {}
    for field in dataclasses.fields(cls):
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if value is dataclasses.MISSING or value is None or value in ("", [], {}) or dataclasses.is_dataclass(value):
            continue
        out[field.name] = word(value)
    return out


with open("tests/golden/trainer_defaults.json", "w") as file:
    classes = (TrainingArguments, SFTConfig, DPOConfig)
    json.dump({cls.__name__: defaults(cls) for cls in classes}, file, indent=1)
    file.write("\n")
