"""The arguments of the public functions: what each of them takes, checked at the call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from magpy_like.errors import ArgumentError


class Kind(NamedTuple):
    """The values that an argument takes: in words, and as a predicate."""

    words: str
    admits: Callable[[Any], bool]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


SWITCH = Kind("True or False", lambda value: isinstance(value, bool))
CALLABLE = Kind("a module or another callable", callable)
POSITIVE = Kind("a positive int", lambda value: _is_int(value) and value > 0)

ARGUMENTS: Mapping[str, Mapping[str, Kind]] = {
    "compile": {
        "model": CALLABLE,
        "fullgraph": SWITCH,
        "dynamic": Kind(
            "True, False or None", lambda value: value is None or isinstance(value, bool)
        ),
        "backend": Kind(
            "the name of a backend or a callable",
            lambda value: isinstance(value, str) or callable(value),
        ),
        "options": Kind(
            "a dictionary from names to values, or None",
            lambda value: (
                value is None
                or (isinstance(value, Mapping) and all(isinstance(name, str) for name in value))
            ),
        ),
        "disable": SWITCH,
    },
    "explain": {"target": CALLABLE},
    "load_annotations": {
        "path": Kind("the path of a file", lambda value: isinstance(value, str | os.PathLike))
    },
    "disable": {"fn": CALLABLE},
    "mark_dynamic": {
        "tensor": Kind("a tensor", lambda value: isinstance(value, torch.Tensor)),
        "dim": Kind("an int; mark several dimensions by several calls", _is_int),
    },
}
"""Function -> argument -> what it takes. ``mode`` and each option are in ``compile_modes``, as they
depend on the backend; names of backends are in ``records.backend_names``."""


def check(function: str, **given: Any) -> None:
    """Check arguments of a public function.

    Raises:
        ArgumentError: one of them is none that the function takes.
    """
    for argument, value in given.items():
        kind = ARGUMENTS[function][argument]
        if not kind.admits(value):
            raise ArgumentError(function, argument, value, f"takes {kind.words}")
