"""The operator that is running: its inputs, and the effects of its own Python code.

The body of an operator is not recorded; the operator itself is the node on the graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class RunningOperator:
    """The outermost operator that is running, if any."""

    def __init__(self) -> None:
        self.depth = 0
        """Number of operators that are running, one inside another."""
        self.inputs: dict[int, torch.Tensor] = {}
        """The operator's tensor arguments, by id."""
        self.callees: list[Any] = []
        """The modules, classes and code of functions that the operator calls."""
        self.is_dynamic = False
        """Whether the operator does something dynamic: running it twice has effects."""
        self.as_is: str | None = None
        """The reason why a backend must not compile the operator, if any."""
        self.differentiates = False
        """Whether its own Python code calls ``torch.autograd.grad``."""

    def begin(self, inputs: Iterable[torch.Tensor]) -> None:
        """An operator of the graph begins, inside no other one, with these tensor arguments."""
        self.enter()
        self.inputs = {id(tensor): tensor for tensor in inputs}
        self.as_is, self.is_dynamic, self.differentiates = None, False, False

    def enter(self) -> None:
        """An operator begins, perhaps inside another one."""
        self.depth += 1

    def leave(self) -> None:
        """Leave the innermost operator, which has returned or raised."""
        self.depth -= 1

    def keep_as_is(self, reason: str) -> None:
        """Keep the operator on the graph as a whole and uncompiled: it does something dynamic."""
        self.as_is = reason
        self.is_dynamic = True
