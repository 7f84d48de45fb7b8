"""The own table of decompositions, and torch's decompositions by operator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from magpy_like.torch_compat.decompositions import get_decompositions

Decomposition = Callable[..., Any]
OWN_DECOMPOSITIONS: dict[Any, Decomposition] = {}


def register_decomposition(*operators: Any) -> Callable[[Decomposition], Decomposition]:
    """A decorator that registers a function as the decomposition of operators (overloads)."""

    def register(function: Decomposition) -> Decomposition:
        OWN_DECOMPOSITIONS.update(dict.fromkeys(operators, function))
        return function

    return register


@functools.cache
def torch_decomposition(operator: Any) -> Decomposition:
    """Torch's decomposition of an operator (an overload); cached, because torch searches all."""
    return get_decompositions([operator])[operator]
