"""Which rule each instruction of the running Python is told to, as ``opcodes.yaml`` has it."""

from __future__ import annotations

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
    """By opcode: in which of the cases of ``WHEN`` the rule is told, and 0 where there is none."""


WHEN = {"always": 1, "test": 2, "pair": 3, "root": 4, "iterators": 5, "numbers": 6, "objects": 7}


def load_rules() -> Rules:
    """Read which rule each instruction of this Python version is told to."""
    with open(annotations_dir() / "opcodes.yaml") as file:
        table = yaml.safe_load(file)
    rules: dict[int, Rule] = {}
    interest = bytearray(256)
    for name, entry in table.items():
        if opcode.opmap.get(name, 256) < 256:  # pseudo-instructions of the compiler are above
            number = opcode.opmap[name]
            room, rule = entry["rule"].split(".")
            rules[number] = getattr(importlib.import_module(f"{__package__}.{room}"), rule)
            interest[number] = WHEN[entry.get("when", "always")]
    return Rules(rules, bytes(interest))
