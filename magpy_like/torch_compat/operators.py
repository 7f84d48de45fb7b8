"""Operators: overloads, packets, schemas, kernels of the dispatcher."""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.associative_scan import associative_scan

__all__ = [
    "HigherOrderOperator",
    "NN_FUNCTIONS",
    "OpNamespace",
    "OpOverload",
    "OpOverloadPacket",
    "OperatorBase",
    "Ops",
    "TensorBase",
    "associative_scan",
    "check_condition",
    "find_packet",
    "foreach_add_",
    "foreach_copy_",
    "has_dispatcher_kernel",
    "make_dual",
    "is_left_aligned",
    "make_subclass",
    "operator_tags",
    "schemas_of_operator",
    "standard_gamma",
    "unpack_dual",
]

OperatorBase = torch._ops.OperatorBase
"""Base class of overloads and higher-order operators."""
OpOverload = torch._ops.OpOverload
"""One overload, such as ``aten.add.Tensor``: the targets of nodes after tracing."""
OpOverloadPacket = torch._ops.OpOverloadPacket
"""All overloads of a name, such as ``aten.add``: a program may call it."""
HigherOrderOperator = torch._ops.HigherOrderOperator
"""Operators that take graphs, such as ``cond`` and ``while_loop``."""
OpNamespace = torch._ops._OpNamespace
"""Class of ``torch.ops.aten``: its attributes are loaded on first access."""
Ops = torch._ops._Ops
"""Class of ``torch.ops``: likewise."""

TensorBase = torch._C.TensorBase
"""Base class of ``torch.Tensor`` in C++; its methods are the operators' methods."""
is_left_aligned = torch._nested_tensor_from_mask_left_aligned
make_subclass = TensorBase.__dict__["_make_subclass"].__func__
"""Function with which ``nn.Parameter`` makes itself from a tensor."""
NN_FUNCTIONS = torch._C._nn
"""Module of the native functions under ``torch.nn.functional``."""

foreach_add_ = torch._foreach_add_
"""Adds to each tensor of a list; optimizers count their steps with it."""
foreach_copy_ = torch._foreach_copy_
"""Copies each tensor of a list, in one call."""
standard_gamma = torch._standard_gamma
"""Draws numbers of a gamma distribution; ``torch.distributions`` calls it."""
make_dual = torch._VF._make_dual
"""Native function under ``forward_ad.make_dual``."""
unpack_dual = torch._VF._unpack_dual
"""Native function under ``forward_ad.unpack_dual``."""

schemas_of_operator = torch._C._jit_get_schemas_for_operator
"""Schemas of all overloads of an operator's name, such as ``aten::add``."""
has_dispatcher_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
"""``(name, key)``: True if an operator has a kernel of its own for a dispatch key. Raises
RuntimeError for an operator of TorchScript alone."""
check_condition = torch._check
"""``(condition)``: raises RuntimeError; a symbolic condition is assumed from there on."""


def find_packet(name: str) -> Any:
    """The ATen operator of a name; None if there is none: ``__eq__`` is the namespace's method."""
    found = getattr(torch.ops.aten, name, None)
    return found if isinstance(found, OpOverloadPacket) else None


def operator_tags(operation: Any) -> set[Any]:
    """The tags of an operator, of all its overloads if ``operation`` is no single one: a function,
    or the name of a method."""
    if isinstance(operation, OpOverload):
        return set(operation.tags)
    packet = find_packet(str(getattr(operation, "__name__", operation)))
    overloads = packet.overloads() if packet is not None else ()
    return {tag for overload in overloads for tag in getattr(packet, overload).tags}
