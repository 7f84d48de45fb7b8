"""The package's own table of decompositions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from magpy_like.torch_compat.decompositions import get_decompositions

Decomposition = Callable[..., Any]
OWN_DECOMPOSITIONS: dict[Any, Decomposition] = {}


def register_decomposition(*operators: Any) -> Callable[[Decomposition], Decomposition]:
    """Register what operators (overloads) mean in simpler ones."""

    def register(function: Decomposition) -> Decomposition:
        OWN_DECOMPOSITIONS.update(dict.fromkeys(operators, function))
        return function

    return register


@functools.cache
def torch_decomposition(operator: Any) -> Decomposition:
    """Torch's own decomposition of an operator (an overload), which it looks for among all."""
    return get_decompositions([operator])[operator]
