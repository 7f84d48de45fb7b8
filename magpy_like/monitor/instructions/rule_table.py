"""The table of rules: which rule handles each instruction of the running Python version."""

from __future__ import annotations

import functools
import importlib
import opcode
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from magpy_like.annotation.annotation_files import annotations_dir
from magpy_like.monitor.instructions.step import Step, Token

if TYPE_CHECKING:
    from magpy_like.monitor.context import Context

    Rule = Callable[[Context, Step], Token]


@dataclass(frozen=True)
class Rules:
    """The table of ``opcodes.yaml`` for the running interpreter."""

    rules: dict[int, Rule]
    filter: bytes
    """By opcode, the case of ``WHEN`` in which the instruction is reported; 0 if it has no rule."""


WHEN = {"always": 1, "test": 2, "pair": 3, "root": 4, "iterators": 5, "numbers": 6, "objects": 7}


@functools.cache
def load_rules() -> Rules:
    """Load the table, once, from ``annotations/opcodes.yaml``."""
    with open(annotations_dir() / "opcodes.yaml") as file:
        table = yaml.safe_load(file)
    rules: dict[int, Rule] = {}
    interest = bytearray(256)
    for name, entry in table.items():
        if opcode.opmap.get(name, 256) < 256:  # pseudo-instructions of the compiler are above
            number = opcode.opmap[name]
            module, rule = entry["rule"].split(".")
            rules[number] = getattr(importlib.import_module(f"{__package__}.{module}"), rule)
            interest[number] = WHEN[entry.get("when", "always")]
    return Rules(rules, bytes(interest))
