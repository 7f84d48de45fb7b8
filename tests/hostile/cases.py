"""The table that the programs of this folder are entered into, and what they are written with."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.programs import Inputs, one

Program = Callable[..., Any]
CALLS: tuple[Inputs, ...] = (
    one(1.0, -2.0, 3.0), one(2.0, 3.0, -4.0), one(1.0, -2.0, 3.0), one(5.0, 3.0, -4.0),
)  # fmt: skip


class Case(NamedTuple):
    """A maker of a program, alterations of what it finds, and the inputs of its calls."""

    make: Callable[[], Program]
    changes: tuple[Callable[[Program], Any], ...]
    inputs: Sequence[Inputs]
    backward: bool


CASES: dict[str, Case] = {}


def case(
    *changes: Callable[[Program], Any], inputs: Sequence[Inputs] = CALLS, backward: bool = False
) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    """Enters the maker of a program; ``changes`` take the program, whose state is ``.s``."""

    def enter(make: Callable[[], Program]) -> Callable[[], Program]:
        CASES[make.__name__] = Case(make, changes, inputs, backward)
        return make

    return enter


class Bag(types.SimpleNamespace):
    """State of a program."""


def put(name: str, value: Any) -> Callable[[Program], None]:
    """A change of one attribute of the state."""
    return lambda program: setattr(program.s, name, value)


def own_globals(function: types.FunctionType, names: dict[str, Any]) -> types.FunctionType:
    """The function with global names of its own."""
    return types.FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
