"""Comparison of everything that two runs of a program leave behind.

Two object graphs are equal if a one-to-one map between their objects preserves types, structure,
values and aliasing: one object (or storage) in one graph corresponds to one in the other. Comparing
`(result, arguments, module)` as one graph therefore also detects a result that should be an
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

# (rtol, atol) as in torch.testing, for tensors of root mean square 1 or more.
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

# From the path of an expected tensor to the spreads of its elements under other rounding, one after
# each further repetition of the run.
Spread = Callable[[str], Iterable[torch.Tensor]]


def _ordered_items(mapping: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """Returns the items in iteration order; an OrderedDict has its own order."""
    if isinstance(mapping, collections.OrderedDict):
        return collections.OrderedDict.items(mapping)
    return dict.items(mapping)


class _Differs(Exception):
    pass


def find_difference(
    expected: Any, actual: Any, name: str = "result", spread: Spread | None = None
) -> str | None:
    """Returns a description of the first difference between two object graphs, None if equal.

    Args:
        expected: result of the eager run; any objects, cycles included.
        actual: result of the compiled run.
        name: name of the root in paths.
        spread: accepts values outside `TOLERANCES` within the effect of other rounding
            (`paritybench_runner.rounding`).
    """
    try:
        _Comparison(spread).compare(name, expected, actual)
    except _Differs as found:
        return str(found)
    return None


def collect_tensors(root: Any, name: str = "result") -> dict[str, torch.Tensor]:
    """Returns the tensors in an object graph by path, as in `find_difference`."""
    walk = _Comparison(None)
    walk.compare(name, root, root, shared=False)
    return walk.tensors


class _Comparison:
    """One comparison of two object graphs.

    Attributes:
        spread: as in `find_difference`.
        tensors: expected tensors seen so far, by path.
    """

    def __init__(self, spread: Spread | None) -> None:
        self.spread = spread
        self.tensors: dict[str, torch.Tensor] = {}
        self._actual_of: dict[tuple[str, int], tuple[str, int]] = {}
        self._expected_of: dict[tuple[str, int], tuple[str, int]] = {}
        self._alive: list[Any] = []  # keeps the objects alive, so that their ids stay unique

    def compare(self, path: str, expected: Any, actual: Any, shared: bool = True) -> None:
        """Compares two objects at a path; `shared`: aliasing as well.

        Raises:
            _Differs: they differ.
        """
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
            self._compare_numbers(path, numpy.asarray(expected), numpy.asarray(actual))
        elif isinstance(expected, (*_PLAIN, *_BY_EQUALITY)):
            if expected != actual:
                raise _Differs(f"{path}: {_short_repr(actual)} instead of {_short_repr(expected)}")
        # The identity of a tuple is irrelevant; any other known pair is compared already.
        elif isinstance(expected, tuple) or self._pair_objects(path, expected, actual):
            self._compare_contents(path, expected, actual, shared)

    def _pair_objects(self, path: str, expected: Any, actual: Any) -> bool:
        self._alive += (expected, actual)
        return self._pair(path, ("object", id(expected)), ("object", id(actual)))

    def _pair(self, path: str, expected: tuple[str, int], actual: tuple[str, int]) -> bool:
        """Pairs two identities; returns True if both are new.

        Raises:
            _Differs: one of them is paired with another identity.
        """
        known_actual, known_expected = self._actual_of.get(expected), self._expected_of.get(actual)
        if known_actual is None and known_expected is None:
            self._actual_of[expected], self._expected_of[actual] = actual, expected
            return True
        if known_actual != actual or known_expected != expected:
            raise _Differs(f"{path}: shared with other objects than in eager mode")
        return False

    def _compare_contents(self, path: str, expected: Any, actual: Any, shared: bool) -> None:
        if isinstance(expected, torch.Tensor):
            self._compare_tensors(path, expected, actual, shared)
        elif isinstance(expected, numpy.ndarray | numpy.generic):
            self._compare_arrays(path, expected, actual, shared)
        elif isinstance(expected, torch.Generator):
            if not torch.equal(expected.get_state(), actual.get_state()):
                raise _Differs(f"{path}: generators are in different states")
        elif isinstance(expected, types.FunctionType):
            self._compare_functions(path, expected, actual, shared)
        elif isinstance(expected, types.MethodType):
            self.compare(f"{path}.__func__", expected.__func__, actual.__func__, shared)
            self.compare(f"{path}.__self__", expected.__self__, actual.__self__, shared)
        else:
            self._compare_items(path, expected, actual, shared)
            self._compare_attributes(path, expected, actual, shared)
            one, other = _native_state(expected), _native_state(actual)
            self.compare(f"{path}.__reduce__()", one, other, shared)

    def _compare_items(self, path: str, expected: Any, actual: Any, shared: bool) -> None:
        if isinstance(expected, list | tuple | collections.deque | dict | set | frozenset):
            if len(expected) != len(actual):
                raise _Differs(f"{path}: {len(actual)} items instead of {len(expected)}")
        if isinstance(expected, list | tuple | collections.deque):
            for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
                self.compare(f"{path}[{index}]", one, other, shared)
        elif isinstance(expected, dict):
            # Items of the base class: a subclass may override items().
            pairs = zip(_ordered_items(expected), _ordered_items(actual), strict=True)
            for (key, value), (other_key, other_value) in pairs:
                self.compare(f"a key of {path}", key, other_key, shared)
                self.compare(f"{path}[{_short_repr(key)}]", value, other_value, shared)
        elif isinstance(expected, set | frozenset):
            plain = all(isinstance(item, _PLAIN) for item in expected | actual)
            if plain and expected != actual:
                raise _Differs(f"{path}: {_short_repr(actual)} instead of {_short_repr(expected)}")

    def _compare_attributes(self, path: str, expected: Any, actual: Any, shared: bool) -> None:
        expected_values = dict(_iterate_attributes(expected))
        actual_values = dict(_iterate_attributes(actual))
        for name in expected_values.keys() | actual_values.keys():
            if name not in expected_values or name not in actual_values:
                state = "missing" if name in expected_values else "unexpected"
                raise _Differs(f"{path}.{name}: {state}")
        for name, value in expected_values.items():
            value_path, other = f"{path}.{name}", actual_values[name]
            if isinstance(expected, torch.nn.Module):
                if name in _MODULE_TABLES:
                    value_path = path
                elif "_hooks" in name and isinstance(value, dict) and isinstance(other, dict):
                    # The key of a hook is the number of hooks registered in the process before.
                    value, other = tuple(value.values()), tuple(other.values())
            self.compare(value_path, value, other, shared)

    def _compare_functions(self, path: str, expected: Any, actual: Any, shared: bool) -> None:
        if expected.__code__ != actual.__code__:
            raise _Differs(f"{path}: another function, {_short_repr(actual)}")
        for name in ("__defaults__", "__kwdefaults__", "__dict__"):
            self.compare(f"{path}.{name}", getattr(expected, name), getattr(actual, name), shared)
        cells = zip(expected.__closure__ or (), actual.__closure__ or (), strict=True)
        for name, (one, other) in zip(expected.__code__.co_freevars, cells, strict=True):
            self.compare(
                f"{path}.<cell {name}>", _cell_contents(one), _cell_contents(other), shared
            )

    def _compare_tensors(
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
        self._compare_values(path, expected, actual)
        if expected.layout == torch.strided and expected.device.type != "meta":
            one, other = expected.untyped_storage(), actual.untyped_storage()
            if one.nbytes() and other.nbytes():
                self._pair(path, ("storage", one._cdata), ("storage", other._cdata))
        if expected.is_leaf and actual.is_leaf:
            self.compare(f"{path}.grad", expected.grad, actual.grad, shared)

    def _compare_values(self, path: str, expected: torch.Tensor, actual: torch.Tensor) -> None:
        if expected.device.type == "meta" or expected is actual:
            return
        expected, actual = _dense(expected), _dense(actual)
        if torch.equal(expected, actual):
            return
        if expected.dtype not in TOLERANCES:
            count = int((expected != actual).sum())
            raise _Differs(f"{path}: {count} of {expected.numel()} values differ")
        if self._is_close(path, expected, actual, TOLERANCES[expected.dtype]):
            return
        gap = (expected - actual).abs()
        finite = gap[gap.isfinite()]
        worst = float(finite.max()) if finite.numel() else math.inf
        raise _Differs(f"{path}: values differ by up to {worst:.3g} ({tuple(expected.shape)})")

    def _compare_arrays(self, path: str, expected: Any, actual: Any, shared: bool) -> None:
        if expected.shape != actual.shape or expected.dtype != actual.dtype:
            raise _Differs(
                f"{path}: {actual.dtype}{actual.shape} instead of {expected.dtype}{expected.shape}"
            )
        if expected.dtype.kind in "fc":
            self._compare_numbers(path, expected, actual)
        elif expected.dtype.kind == "O":
            self.compare(path, expected.tolist(), actual.tolist(), shared)
        elif not (expected == actual).all():
            raise _Differs(f"{path}: values differ")

    def _compare_numbers(self, path: str, expected: Any, actual: Any) -> None:
        """Compares numbers outside tensors, which usually come from single-precision tensors."""
        precise = "complex128" if expected.dtype.kind == "c" else "float64"
        numbers, others = (torch.from_numpy(x.astype(precise)) for x in (expected, actual))
        self.tensors[path] = numbers
        if not self._is_close(path, numbers, others, TOLERANCES[torch.float32]):
            is_scalar = numbers.dim() == 0
            found = f"{actual} instead of {expected}" if is_scalar else "values differ"
            raise _Differs(f"{path}: {found}")

    def _is_close(
        self,
        path: str,
        expected: torch.Tensor,
        actual: torch.Tensor,
        tolerance: tuple[float, float],
    ) -> bool:
        rtol, atol = tolerance
        # A tensor of small values, such as a gradient scaled by a small factor, is no less exact.
        atol *= min(1.0, _rms(expected))
        if torch.allclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True):
            return True
        gap = (expected - actual).abs()
        rounding = atol + rtol * expected.abs()
        return any(
            spread.shape == gap.shape and is_within_rounding(gap, spread, rounding)
            for spread in (() if self.spread is None else self.spread(path))
        )


# Properties of a tensor besides its values and its memory.
_TENSOR_PROPERTIES = (
    *("shape", "dtype", "device", "layout", "requires_grad", "is_leaf"),
    *("is_inference", "is_conj", "is_neg"),
)
# Tables of a module whose entries are attributes of the module.
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


def _same_type(one: type, other: type) -> bool:
    # A function that defines a class creates a new one at each call.
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
                    pass  # an empty slot


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
    """Returns the strides that locate values; the stride of a dimension of size 1 is arbitrary."""
    if tensor.layout != torch.strided or not tensor.numel():
        return None
    return tuple(
        stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    )


def _native_state(value: Any) -> Any:
    """Returns the state of a native object besides attributes, as far as pickle reads it.

    Examples: arguments of a partial function, position of an iterator, name of a built-in function.
    """
    reduce = type(value).__reduce__
    if reduce is object.__reduce__ or isinstance(reduce, types.FunctionType):
        return None
    if isinstance(value, set | frozenset):  # their order may differ
        return None
    try:
        return value.__reduce__()
    except Exception:  # no pickle support: native code raises any exception
        return None


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _short_repr(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # a failing repr must not end the comparison
        text = f"a {_type_name(value)}"
    return text if len(text) <= 60 else f"{text[:57]}..."
