"""The table of this folder's programs, and helpers to write them."""

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
    """A factory of a program, changes of its state, and the inputs of its calls."""

    make: Callable[[], Program]
    changes: tuple[Callable[[Program], Any], ...]
    inputs: Sequence[Inputs]
    backward: bool


CASES: dict[str, Case] = {}


def case(
    *changes: Callable[[Program], Any], inputs: Sequence[Inputs] = CALLS, backward: bool = False
) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    """Registers the factory of a program; ``changes`` take the program, whose state is ``.s``."""

    def enter(make: Callable[[], Program]) -> Callable[[], Program]:
        CASES[make.__name__] = Case(make, changes, inputs, backward)
        return make

    return enter


class State(types.SimpleNamespace):
    """The state of a program."""


def put(name: str, value: Any) -> Callable[[Program], None]:
    """A change that sets one attribute of the state."""
    return lambda program: setattr(program.s, name, value)


def with_globals(function: types.FunctionType, names: dict[str, Any]) -> types.FunctionType:
    """A copy of the function with additional globals."""
    return types.FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
