"""The package's own table of decompositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
OWN: dict[Any, Function] = {}


def means(*operators: Any) -> Callable[[Function], Function]:
    """Register what operators (overloads) mean in simpler ones."""

    def register(function: Function) -> Function:
        OWN.update(dict.fromkeys(operators, function))
        return function

    return register
