"""Autograd: gradient mode, saved-tensor hooks, the running backward pass, version counters."""

from __future__ import annotations

import operator
import types
from collections.abc import Iterator
from typing import Any

import torch

__all__ = [
    "current_backward_node",
    "current_backward_pass",
    "custom_function_calls",
    "custom_function_of",
    "gradient_hooks",
    "increment_version",
    "is_node_needed",
    "make_nonleaf",
    "next_node_number",
    "registered_functions",
    "saved_tensor_hooks",
    "set_grad_enabled",
    "set_saved_tensor_hooks_tracing",
    "set_version",
]

set_grad_enabled = torch._C._set_grad_enabled
"""``(enabled)``: the function that ``torch.no_grad`` and its relatives call, and an operator of
captured graphs. ``torch.set_grad_enabled`` is a class."""

saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks
"""``(ignore_tracing)``: the innermost pair of hooks on saved tensors, or None."""
set_saved_tensor_hooks_tracing = torch._C._autograd._saved_tensors_hooks_set_tracing
"""``(tracing)``: while true, hooks on saved tensors are not called in this thread. Returns the
previous value."""

_apply_natively = torch._C._FunctionBase.__dict__["apply"]
custom_function_calls = (
    getattr(torch.autograd.Function.apply, "__func__", _apply_natively),
    _apply_natively,
)
"""``torch.autograd.Function.apply``, which is native from torch 2.14 on, and the native method that
it calls before."""


def custom_function_of(node: object) -> type | None:
    """The custom function that has made an autograd node; None if another operator has."""
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return None
    function: type = type(node)._forward_cls
    return function


def registered_functions(function: type) -> Iterator[Any]:
    """The functions that ``torch.library.register_autograd`` has received, if torch made a custom
    function from them."""
    waiting: list[Any] = [function.backward]  # type: ignore[attr-defined]
    while waiting:
        value = waiting.pop()
        if hasattr(value, "_setup_context_fn"):
            yield from filter(None, (value._backward_fn, value._setup_context_fn))
        elif isinstance(value, types.FunctionType) and value.__module__.startswith("torch."):
            waiting += [cell.cell_contents for cell in value.__closure__ or ()]


next_node_number = torch.autograd._get_sequence_nr
"""Sequence number of the next autograd node of this thread."""

current_backward_pass = torch._C._current_graph_task_id
"""Number of the backward pass that this thread runs; -1 outside of one."""
current_backward_node = torch._C._current_autograd_node
"""Autograd node that this thread runs, or None."""
is_node_needed = torch._C._will_engine_execute_node
"""``(node)``: True if the running backward pass reaches the node. Raises RuntimeError for a leaf
whose gradient ``torch.autograd.grad`` returns."""

gradient_hooks = operator.attrgetter("_backward_hooks")
"""``(tensor)``: the hooks that ``Tensor.register_hook`` has added, by number; None if it never
has."""

make_nonleaf = torch._C._functions.DelayedError("an example input has no backward pass", 1)
"""``(tensor)``: a tensor of the same memory that is no leaf of autograd's graph, and no view. The
gradient mode has to be enabled."""

increment_version = torch._C._increment_version
"""``(tensors)``: count a write to each."""
set_version = torch._C._autograd._unsafe_set_version_counter
"""``(tensors, versions)``: set the count of writes."""
