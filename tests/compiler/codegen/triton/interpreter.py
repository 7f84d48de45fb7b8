"""Triton kernels on the CPU: the printed source in Triton's own interpreter.

The interpreter lacks the CUDA mathematical library, reduces element by element, and rounds to
bfloat16 unlike any GPU. This module supplies all three, by PyTorch's functions and by combining
halves. The subject of the tests is the printed source, operator by operator, as the Triton compiler
receives it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib.util
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

from magpy_like.compiler.codegen.triton import triton_prelude
from magpy_like.compiler.runtime import triton_launch
from magpy_like.compiler.runtime.triton_launch import TritonSource


def _fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return (a.double() * b.double() + c.double()).to(a.dtype)


UNUSUAL = {"nearbyint": torch.round, "pow": torch.pow, "fma": _fma}
CONVERSIONS = {
    f"{source}2{name}_rz": (target, dtype)
    for source in ("float", "double")
    for name, target, dtype in (("int", tl.int32, torch.int32), ("ll", tl.int64, torch.int64))
}


def _function(name: str) -> Any:
    target, dtype = CONVERSIONS.get(name, (None, None))
    operator = UNUSUAL.get(name) or getattr(torch, name, lambda a: a.to(dtype))

    def call(*args: Any) -> Any:
        arrays = np.broadcast_arrays(*(a.handle.data for a in args))
        result = operator(*(torch.from_numpy(np.array(a)) for a in arrays)).numpy()
        first = (
            next(a for a in args if a.handle.data.shape == arrays[0].shape)
            if any(a.handle.data.shape == arrays[0].shape for a in args)
            else args[0]
        )
        scalar = target or args[0].dtype
        kind = (
            tl.block_type(scalar, list(result.shape))
            if first.type.is_block() or (result.ndim > 1)
            else scalar
        )
        return tl.core.tensor(interpreter.TensorHandle(result, scalar), kind)

    return call


class _Libdevice(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _function(name)


LIBDEVICE = _Libdevice("libdevice")


def _reduce_by_halves(self: Any, values: tuple[Any, ...]) -> list[Any]:
    """Reduces by combining the two halves of the axis until one element is left."""
    parts = [v.handle.data for v in values]
    dtypes = [v.dtype for v in values]
    axis = self.axis
    while parts[0].shape[axis] > 1:
        middle = parts[0].shape[axis] // 2
        low = [self.to_tensor(np.take(p, range(middle), axis), t) for p, t in zip(parts, dtypes)]
        high = [
            self.to_tensor(np.take(p, range(middle, 2 * middle), axis), t)
            for p, t in zip(parts, dtypes)
        ]
        combined = self.combine_fn(*low, *high)
        combined = combined if isinstance(combined, tuple) else (combined,)
        parts = [c.handle.data for c in combined]
    if not self.keep_dims:
        parts = [np.squeeze(p, axis) for p in parts]
    return [self.to_tensor(p, t) for p, t in zip(parts, dtypes)]


def _convert(data: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
    """Converts between float32 and bfloat16 (as bits); rounds to nearest. Triton's truncates."""
    assert {source, target} == {tl.float32, tl.bfloat16}, (source, target)
    if source == tl.bfloat16:
        return data.astype(np.uint32) << 16
    rounded = torch.from_numpy(np.array(data)).to(torch.bfloat16)
    return rounded.view(torch.int16).numpy().view(np.uint16)


_atomic = type(interpreter.interpreter_builder).create_atomic_rmw


def _accumulate(self: Any, operation: Any, pointers: Any, values: Any, *rest: Any) -> Any:
    """Makes broadcast values contiguous first: Triton's function reads beyond them."""
    contiguous = interpreter.TensorHandle(np.ascontiguousarray(values.data), values.dtype)
    return _atomic(self, operation, pointers, contiguous, *rest)


def _splat(self: Any, kind: Any, value: Any) -> Any:
    """Keeps the dtype: Triton's function turns the boolean of a float comparison into floats."""
    array = np.full(kind.shape, value.data.flat[0], value.data.dtype)
    return interpreter.TensorHandle(array, value.dtype.scalar)


_patch_tensor = interpreter._patch_lang_tensor


def _patch_tensor_with_index(tensor: Any, scope: Any) -> None:
    """Scalars are arrays of one element, which NumPy 2.5 does not convert to integers implicitly;
    Triton before 3.7 relies on that."""
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


@contextlib.contextmanager
def _interpreted() -> Iterator[None]:
    builder = interpreter.interpreter_builder
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "jit", interpreter.InterpretedFunction)
        patch.setattr(interpreter.ReduceOps, "generic_reduce", _reduce_by_halves)
        patch.setattr(interpreter, "_convert_float", _convert)
        patch.setattr(interpreter, "_patch_lang_tensor", _patch_tensor_with_index)
        patch.setattr(type(builder), "create_atomic_rmw", _accumulate)
        patch.setattr(type(builder), "create_splat", _splat)
        # The options that compile_kernel sets.
        options = dataclasses.replace(builder.options, debug=True, sanitize_overflow=False)
        patch.setattr(builder, "options", options)
        yield


def _prelude() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("interpreted_prelude", triton_prelude.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.libdevice = LIBDEVICE
    return module


def _pointer(address: int, dtype: torch.dtype) -> torch.Tensor:
    memory = (ctypes.c_char * dtype.itemsize).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)


class Interpreted:
    """The counterpart of ``triton_launch.Loaded`` on the CPU. A failed check raises IndexError."""

    prelude: types.ModuleType | None = None

    def __init__(self, source: TritonSource) -> None:
        self.source = source

    def __call__(self, *args: int) -> None:
        source = self.source
        count = len(source.pointers)
        addresses, sizes = args[:count], args[count:]

        def value(expression: str) -> Any:
            return source.function_of_sizes(expression)(*sizes)

        room = [torch.empty(value(n), dtype=dtype, device="cpu") for dtype, n in source.workspace]
        pointers = [_pointer(a, t) for a, t in zip(addresses, source.pointers)]
        with _interpreted():
            if Interpreted.prelude is None:
                Interpreted.prelude = _prelude()
            names = {"triton": triton, "tl": tl, "libdevice": LIBDEVICE}
            names["prelude"] = Interpreted.prelude
            functions = triton_launch.define(source, bool(value(source.wide)), names)
            try:
                for function, (_, grid) in zip(functions, source.stages):
                    programs = (value(grid),)
                    if programs[0]:
                        function.run(*pointers, *room, *sizes, grid=programs, warmup=False)
            except InterpreterError as error:
                if "AssertionError" in str(error):
                    raise IndexError("index out of range") from error
                raise


def load_many(sources: Sequence[Any]) -> list[Interpreted]:
    return [Interpreted(source) for source, _, _ in sources]
