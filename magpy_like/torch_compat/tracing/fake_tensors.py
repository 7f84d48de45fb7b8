"""Fake tensors: tensors with metadata and without data."""

from __future__ import annotations

from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._subclasses import meta_utils
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    disable_fake_tensor_cache,
    unset_fake_temporarily,
)

__all__ = [
    "ATTRIBUTES_IN_PYTHON",
    "FAKE_ATTRIBUTES",
    "FAKE_TENSOR_LOGGER",
    "META_KERNELS_MODULE",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "UnsupportedOperatorException",
    "detect_fake_mode",
    "disable_fake_tensor_cache",
    "enable_python_dispatcher",
    "forget_described",
    "meta_utils",
    "unset_fake_temporarily",
]

# `meta_utils.MetaTensorDescriber` numbers the real tensors that a mode makes fake tensors of.
# `detect_fake_mode(inputs)` returns the mode of fake tensors among the inputs or on the stack.
# Under `enable_python_dispatcher`, operators with Python decompositions keep symbolic sizes.
# The exceptions name an operator whose result or result's size depends on data, or that has no
# kernel for tensors without data.


def forget_described(describer: Any) -> None:
    """Drop the weak references to the real tensors that a describer has numbered.

    If it meets one of them again, it takes it for another tensor in the same memory.
    """
    describer.lookup_tensor.data.clear()


FAKE_TENSOR_LOGGER = "torch._subclasses.fake_tensor"
"""Logger that reports each operator that raises on fake tensors."""
META_KERNELS_MODULE = "torch._subclasses.fake_impls"
"""Module of the operators' special implementations on fake tensors."""
ATTRIBUTES_IN_PYTHON = frozenset(
    found.fget.__code__
    for found in vars(FakeTensor).values()
    if isinstance(found, property) and found.fget is not None
)
"""Code of attributes that native code computes for other tensors: `device`; `layout` since 2.14."""

_OWN_NAMES = {*dir(FakeTensor), *FakeTensor.__annotations__}.difference(dir(torch.Tensor))
_MEMOS = {
    f"_{name}{end}"
    for name in _OWN_NAMES
    if name.endswith("_memo")
    for end in ("", "_vc", "_epoch")
}
FAKE_ATTRIBUTES = frozenset(
    {*_OWN_NAMES, *_MEMOS, "__class__", "__dict__", "__doc__", "__module__"}
)
"""Names of attributes of fake tensors that other tensors lack, or have with other values."""
