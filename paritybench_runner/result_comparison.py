"""Whether two runs of one program left the same things behind.

Two object graphs are the same when a one-to-one map between their objects keeps types, structure,
values and sharing: what is one object (or one storage) on one side is one on the other. Comparing
`(result, arguments, module)` as one graph therefore also finds a result that should have been an
argument itself, a list that was replaced instead of appended to, a buffer that was not updated.
"""

import collections
import math
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import numpy
import torch

from paritybench_runner.rounding import is_within_rounding

# (rtol, atol) as in torch.testing, for values that are near 1 as a whole.
TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}

_PLAIN = (bool, int, str, bytes, type(None), type(...), range, slice)
_BY_EQUALITY = (
    *(torch.device, torch.dtype, torch.layout, torch.memory_format, numpy.dtype),
    types.CodeType,
)
_OPAQUE = (mock.Base, types.GeneratorType)

# By path, how far each element of a tensor of the expected side is seen to move under other
# rounding, after one repetition after another.
Spread = Callable[[str], Iterable[torch.Tensor]]


def _ordered_items(mapping: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """In the order that iterating gives; an OrderedDict keeps one of its own."""
    if isinstance(mapping, collections.OrderedDict):
        return collections.OrderedDict.items(mapping)
    return dict.items(mapping)


class _Differs(Exception):
    pass


def find_difference(
    expected: Any, actual: Any, name: str = "result", spread: Spread | None = None
) -> str | None:
    """The first difference between two object graphs in words, or None when there is none.

    Args:
        expected: what the eager run left behind; any objects, cycles included.
        actual: what the compiled run left behind.
        name: what to call the root.
        spread: excuses values that miss `TOLERANCES` by what other rounding may do to them
            (`paritybench_runner.rounding`).
    """
    try:
        _Comparison(spread).compare(name, expected, actual)
    except _Differs as found:
        return str(found)
    return None


def collect_tensors(root: Any, name: str = "result") -> dict[str, torch.Tensor]:
    """The tensors in an object graph by the path that `find_difference` would call them by."""
    walk = _Comparison(None)
    walk.compare(name, root, root, shared=False)
    return walk.tensors


class _Comparison:
    def __init__(self, spread: Spread | None) -> None:
        self.spread = spread
        self.tensors: dict[str, torch.Tensor] = {}
        self._actual_of: dict[tuple[str, int], tuple[str, int]] = {}
        self._expected_of: dict[tuple[str, int], tuple[str, int]] = {}
        self._alive: list[Any] = []  # keeps ids from being used again

    def compare(self, path: str, expected: Any, actual: Any, shared: bool = True) -> None:
        """Raises `_Differs` unless both are the same at `path`."""
        if shared and expected is actual:
            return
        if not _same_type(type(expected), type(actual)):
            raise _Differs(f"{path}: {_type_name(actual)} instead of {_type_name(expected)}")
        if isinstance(expected, _OPAQUE):
            return
        if isinstance(expected, type):
            if not _same_type(expected, actual):
                raise _Differs(f"{path}: {_short_repr(actual)} instead of {_short_repr(expected)}")
        elif isinstance(expected, types.ModuleType):
            if expected.__name__ != actual.__name__:
                raise _Differs(f"{path}: {_short_repr(actual)} instead of {_short_repr(expected)}")
        elif isinstance(expected, float | complex):
            self._numbers(path, numpy.asarray(expected), numpy.asarray(actual))
        elif isinstance(expected, (*_PLAIN, *_BY_EQUALITY)):
            if expected != actual:
                raise _Differs(f"{path}: {_short_repr(actual)} instead of {_short_repr(expected)}")
        # A tuple's identity says nothing; another known pair has been compared, or is being.
        elif isinstance(expected, tuple) or self._pair_objects(path, expected, actual):
            self._contents(path, expected, actual, shared)

    def _pair_objects(self, path: str, expected: Any, actual: Any) -> bool:
        self._alive += (expected, actual)
        return self._pair(path, ("object", id(expected)), ("object", id(actual)))

    def _pair(self, path: str, one: tuple[str, int], other: tuple[str, int]) -> bool:
        """Pairs two identities and says whether they are new; raises when one has another pair."""
        known, known_back = self._actual_of.get(one), self._expected_of.get(other)
        if known is None and known_back is None:
            self._actual_of[one], self._expected_of[other] = other, one
            return True
        if known != other or known_back != one:
            raise _Differs(f"{path}: shared with other objects than in eager mode")
        return False

    def _contents(self, path: str, expected: Any, actual: Any, shared: bool) -> None:
        if isinstance(expected, torch.Tensor):
            self._tensor(path, expected, actual, shared)
        elif isinstance(expected, numpy.ndarray | numpy.generic):
            self._array(path, expected, actual, shared)
        elif isinstance(expected, torch.Generator):
            if not torch.equal(expected.get_state(), actual.get_state()):
                raise _Differs(f"{path}: generators are in different states")
        elif isinstance(expected, types.FunctionType):
            self._function(path, expected, actual, shared)
        elif isinstance(expected, types.MethodType):
            self.compare(f"{path}.__func__", expected.__func__, actual.__func__, shared)
            self.compare(f"{path}.__self__", expected.__self__, actual.__self__, shared)
        else:
            self._items(path, expected, actual, shared)
            self._attributes(path, expected, actual, shared)
            one, other = _native_state(expected), _native_state(actual)
            self.compare(f"{path}.__reduce__()", one, other, shared)

    def _items(self, path: str, expected: Any, actual: Any, shared: bool) -> None:
        if isinstance(expected, list | tuple | collections.deque | dict | set | frozenset):
            if len(expected) != len(actual):
                raise _Differs(f"{path}: {len(actual)} items instead of {len(expected)}")
        if isinstance(expected, list | tuple | collections.deque):
            for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
                self.compare(f"{path}[{index}]", one, other, shared)
        elif isinstance(expected, dict):
            # The base class's view: a subclass may answer items() with something else.
            pairs = zip(_ordered_items(expected), _ordered_items(actual), strict=True)
            for (key, value), (other_key, other_value) in pairs:
                self.compare(f"a key of {path}", key, other_key, shared)
                self.compare(f"{path}[{_short_repr(key)}]", value, other_value, shared)
        elif isinstance(expected, set | frozenset):
            plain = all(isinstance(item, _PLAIN) for item in expected | actual)
            if plain and expected != actual:
                raise _Differs(f"{path}: {_short_repr(actual)} instead of {_short_repr(expected)}")

    def _attributes(self, path: str, expected: Any, actual: Any, shared: bool) -> None:
        ones, others = dict(_iterate_attributes(expected)), dict(_iterate_attributes(actual))
        for name in ones.keys() | others.keys():
            if name not in ones or name not in others:
                state = "missing" if name in ones else "unexpected"
                raise _Differs(f"{path}.{name}: {state}")
        for name, value in ones.items():
            where, other = f"{path}.{name}", others[name]
            if isinstance(expected, torch.nn.Module):
                if name in _MODULE_TABLES:
                    where = path
                elif "_hooks" in name and isinstance(value, dict) and isinstance(other, dict):
                    # Keyed by a number that says how many hooks the process had before.
                    value, other = tuple(value.values()), tuple(other.values())
            self.compare(where, value, other, shared)

    def _function(self, path: str, expected: Any, actual: Any, shared: bool) -> None:
        if expected.__code__ != actual.__code__:
            raise _Differs(f"{path}: another function, {_short_repr(actual)}")
        for name in ("__defaults__", "__kwdefaults__", "__dict__"):
            self.compare(f"{path}.{name}", getattr(expected, name), getattr(actual, name), shared)
        cells = zip(expected.__closure__ or (), actual.__closure__ or (), strict=True)
        for name, (one, other) in zip(expected.__code__.co_freevars, cells, strict=True):
            self.compare(
                f"{path}.<cell {name}>", _cell_contents(one), _cell_contents(other), shared
            )

    def _tensor(
        self, path: str, expected: torch.Tensor, actual: torch.Tensor, shared: bool
    ) -> None:
        self.tensors[path] = expected
        for name in _TENSOR_PROPERTIES:
            one, other = (
                value() if callable(value) else value
                for value in (getattr(expected, name), getattr(actual, name))
            )
            if one != other:
                raise _Differs(f"{path}: {name} {other} instead of {one}")
        if _significant_strides(expected) != _significant_strides(actual):
            strides = f"{actual.stride()} instead of {expected.stride()}"
            raise _Differs(f"{path}: strides {strides} ({tuple(expected.shape)})")
        self._values(path, expected, actual)
        if expected.layout == torch.strided and expected.device.type != "meta":
            one, other = expected.untyped_storage(), actual.untyped_storage()
            if one.nbytes() and other.nbytes():
                self._pair(path, ("storage", one._cdata), ("storage", other._cdata))
        if expected.is_leaf and actual.is_leaf:
            self.compare(f"{path}.grad", expected.grad, actual.grad, shared)

    def _values(self, path: str, expected: torch.Tensor, actual: torch.Tensor) -> None:
        if expected.device.type == "meta" or expected is actual:
            return
        one, other = _dense(expected), _dense(actual)
        if torch.equal(one, other):
            return
        if one.dtype not in TOLERANCES:
            raise _Differs(f"{path}: {int((one != other).sum())} of {one.numel()} values differ")
        if self._is_close(path, one, other, TOLERANCES[one.dtype]):
            return
        gap = (one - other).abs()
        finite = gap[gap.isfinite()]
        worst = float(finite.max()) if finite.numel() else math.inf
        raise _Differs(f"{path}: values differ by up to {worst:.3g} ({tuple(one.shape)})")

    def _array(self, path: str, expected: Any, actual: Any, shared: bool) -> None:
        if expected.shape != actual.shape or expected.dtype != actual.dtype:
            raise _Differs(
                f"{path}: {actual.dtype}{actual.shape} instead of {expected.dtype}{expected.shape}"
            )
        if expected.dtype.kind in "fc":
            self._numbers(path, expected, actual)
        elif expected.dtype.kind == "O":
            self.compare(path, expected.tolist(), actual.tolist(), shared)
        elif not (expected == actual).all():
            raise _Differs(f"{path}: values differ")

    def _numbers(self, path: str, expected: Any, actual: Any) -> None:
        """Numbers outside of tensors, which as a rule come from some in single precision."""
        precise = "complex128" if expected.dtype.kind == "c" else "float64"
        one, other = (torch.from_numpy(x.astype(precise)) for x in (expected, actual))
        self.tensors[path] = one
        if not self._is_close(path, one, other, TOLERANCES[torch.float32]):
            few = f"{actual} instead of {expected}" if one.dim() == 0 else "values differ"
            raise _Differs(f"{path}: {few}")

    def _is_close(
        self, path: str, one: torch.Tensor, other: torch.Tensor, tolerance: tuple[float, float]
    ) -> bool:
        rtol, atol = tolerance
        # What is small as a whole, such as a gradient behind a small factor, is no less exact.
        atol *= min(1.0, _rms(one))
        if torch.allclose(other, one, rtol=rtol, atol=atol, equal_nan=True):
            return True
        gap = (one - other).abs()
        rounding = atol + rtol * one.abs()
        return any(
            spread.shape == gap.shape and is_within_rounding(gap, spread, rounding)
            for spread in (() if self.spread is None else self.spread(path))
        )


# What a tensor is, besides its values and its memory.
_TENSOR_PROPERTIES = (
    *("shape", "dtype", "device", "layout", "requires_grad", "is_leaf"),
    *("is_inference", "is_conj", "is_neg"),
)
# Parts of a module that `module.name` reaches directly.
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


def _same_type(one: type, other: type) -> bool:
    # A class that a function makes at every call is another one each time.
    return one is other or (
        (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)
        and "<locals>" in one.__qualname__
    )


def _iterate_attributes(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        yield from vars(value).items()
    except TypeError:
        pass
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and isinstance(
                cls.__dict__.get(name), types.MemberDescriptorType
            ):
                try:
                    yield name, cls.__dict__[name].__get__(value)
                except AttributeError:
                    pass  # a slot nobody has filled


def _cell_contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return ...


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def _rms(tensor: torch.Tensor) -> float:
    finite = tensor[tensor.isfinite()].abs().double()
    return float(finite.square().mean().sqrt()) if len(finite) else 0.0


def _significant_strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Those that say where values are; a dimension of one value may have any."""
    if tensor.layout != torch.strided or not tensor.numel():
        return None
    return tuple(
        stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    )


def _native_state(value: Any) -> Any:
    """What objects of native classes hold besides attributes, as far as pickle asks for it.

    A partial function's arguments, where an iterator stands, which built-in function it is.
    """
    reduce = type(value).__reduce__
    if reduce is object.__reduce__ or isinstance(reduce, types.FunctionType):
        return None
    if isinstance(value, set | frozenset):  # their order may be another one
        return None
    try:
        return value.__reduce__()
    except Exception:  # it cannot be pickled: native code says so with any exception
        return None


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _short_repr(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # a repr that fails must not end the comparison
        text = f"a {_type_name(value)}"
    return text if len(text) <= 60 else f"{text[:57]}..."
