"""The package's own table of decompositions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from magpy_like.torch_compat.decompositions import get_decompositions

Function = Callable[..., Any]
OWN: dict[Any, Function] = {}


def means(*operators: Any) -> Callable[[Function], Function]:
    """Register what operators (overloads) mean in simpler ones."""

    def register(function: Function) -> Function:
        OWN.update(dict.fromkeys(operators, function))
        return function

    return register


@functools.cache
def torchs(operator: Any) -> Function:
    """Torch's own decomposition of an operator (an overload), which it looks for among all."""
    return get_decompositions([operator])[operator]
