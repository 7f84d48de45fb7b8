"""Dynamic programs: a tensor's value decides Python's control flow or reaches native code.

An eager run decides, independently of any compiler: every read of a tensor's value is recorded,
whether the program does it (`if x.sum() > 0`, `x.tolist()`) or a library on its behalf. An operator
that reads a scalar to compute a tensor (`x[i]`) does not count; one that reads the shape of its
result (`torch.arange(n)`) does.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from magpy_like.torch_compat.dispatch import TorchDispatchMode

aten = torch.ops.aten

# Methods that return a tensor's memory or text to the caller without running an operator.
MEMORY_READERS = frozenset(
    (
        *("tolist", "numpy", "__array__", "__dlpack__", "__reduce_ex__", "__repr__", "__format__"),
        *("data_ptr", "storage", "untyped_storage"),
    )
)
# Operators whose result is a Python value computed from tensors' values.
VALUE_OPERATORS = frozenset(
    {
        aten._local_scalar_dense.default,
        aten.equal.default,
        aten.is_nonzero.default,
        aten.allclose.default,
    }
)
# Functions that create tensors with a shape given by a value they read.
SHAPED_BY_VALUE = frozenset(
    (
        *("arange", "range", "linspace", "logspace", "full", "zeros", "ones", "empty", "eye"),
        *("rand", "randn", "randint", "randperm"),
    )
)
_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.abspath(__file__)


class ValueReads:
    """Reads of tensor values by a program.

    Attributes:
        sites: file, line and operation of each read within `watch()`.
    """

    def __init__(self) -> None:
        self.sites: list[str] = []

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Records the reads in its block."""
        with _FunctionMode(self), _DispatchMode(self):
            yield


class _FunctionMode(TorchFunctionMode):
    """Records memory reads; drops reads inside a native function that returns only tensors."""

    def __init__(self, reads: ValueReads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        before = len(self.reads.sites)
        result = func(*args, **(kwargs or {}))
        if name in MEMORY_READERS:
            self.reads.sites.append(_find_read_site(name))
        elif not hasattr(func, "__code__") and name not in SHAPED_BY_VALUE:
            if name == "__setitem__" or _contains_only_tensors(result):
                del self.reads.sites[before:]
        return result


class _DispatchMode(TorchDispatchMode):
    """Records operators whose result is a Python value."""

    def __init__(self, reads: ValueReads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in VALUE_OPERATORS:
            self.reads.sites.append(_find_read_site(func.overloadpacket.__name__))
        return func(*args, **(kwargs or {}))


def _contains_only_tensors(result: Any) -> bool:
    if isinstance(result, tuple | list):
        return bool(result) and all(map(_contains_only_tensors, result))
    return isinstance(result, torch.Tensor)


def _find_read_site(operation: str) -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_TORCH) or frame.f_code.co_filename == _HERE
    ):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {operation}"
