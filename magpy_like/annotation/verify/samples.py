"""Sample inputs of operations.

Four sources, from the most to the least specific: the samples written for an operation in
``annotations/samples/``; PyTorch's own OpInfo database; the schema of an ATen operator with values
drawn by argument type; and values drawn from a pool, the receiver by the type that owns the
method. Inputs that an operation does not accept are discarded.
"""

from __future__ import annotations

import builtins
import collections
import functools
import inspect
import itertools
import random
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import yaml

from magpy_like.annotation.annotation_files import annotations_dir
from magpy_like.annotation.lookup import resolve
from magpy_like.annotation.schema import ValueRead
from magpy_like.annotation.verify.snapshot import Cell, Marker, copied
from magpy_like.torch_compat.operators import TensorBase, schemas_of_operator

Inputs = tuple[tuple[Any, ...], dict[str, Any]]

ATTEMPTS = 500
SAMPLES = 12
SAMPLES_OF_A_KIND = 3
OPINFO_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """Inputs that an operation accepts, created anew at every call."""

    make: Callable[[], Inputs]


def call(operation: Any, write: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Perform an operation; properties and class methods are called through their descriptor."""
    if write:
        return operation.__set__(*args)
    if isinstance(operation, types.GetSetDescriptorType | types.MemberDescriptorType | property):
        return operation.__get__(args[0], type(args[0]))
    if isinstance(operation, types.ClassMethodDescriptorType):
        return operation.__get__(None, args[0])(*args[1:], **kwargs)
    return operation(*args, **kwargs)


class Samples:
    """Finds samples of operations, and caches sources that are costly to read."""

    def __init__(self) -> None:
        self.scope = _scope()
        written = _read_samples()
        self.written: dict[str, list[str]] = written.get("operations", {})
        self.receivers: dict[str, list[str]] = written.get("receivers", {})
        self.instances: dict[str, list[str]] = written.get("instances", {})
        self.unspecified: dict[str, str] = written.get("unspecified", {})

    def prepare(self) -> None:
        """Read the costly sources now, before processes are forked."""
        _opinfo()

    def of(
        self, name: str, operation: Any, write: bool, reads: Callable[[int], ValueRead]
    ) -> list[Sample]:
        """Samples of one operation, at most SAMPLES of them."""
        candidates = itertools.chain(
            self._written(name + ("=" if write else "")),
            _opinfo_samples(operation) if not write else (),
            _schema_samples(name) if not write else (),
        )
        accepted = list(_accepted(operation, write, candidates, SAMPLES))
        if not accepted:
            drawn = self._drawn(operation, write, reads)
            accepted = list(_accepted(operation, write, drawn, SAMPLES))
        return accepted

    def _written(self, name: str) -> Iterator[Sample]:
        for text in self.written.get(name, ()):
            yield Sample(functools.partial(_evaluate, text, self.scope))

    def _drawn(
        self, operation: Any, write: bool, reads: Callable[[int], ValueRead]
    ) -> Iterator[Sample]:
        first: list[Callable[[], Any]] | None = None
        owner = getattr(operation, "__objclass__", None)
        if owner is not None:
            first = self._receivers(owner)
            if isinstance(operation, types.ClassMethodDescriptorType):
                first = [lambda: owner]
        pool = _POOL
        if isinstance(owner, type) and issubclass(owner, TensorBase):
            pool = _TENSOR_POOL
        chance = random.Random(0)
        low, high = _arity(operation, write)
        for attempt in range(ATTEMPTS):
            count = low + attempt % (high - low + 1)
            chosen: list[Callable[[], Any]] = []
            for position in range(count):
                if position == 0 and first is not None:
                    if not first:
                        return
                    chosen.append(first[attempt // (high - low + 1) % len(first)])
                elif reads(position) is ValueRead.NONE and chance.random() < 0.7:
                    chosen.append(Marker)
                else:
                    chosen.append(chance.choice(pool))
            yield Sample(functools.partial(_made, tuple(chosen)))

    def _receivers(self, owner: type) -> list[Callable[[], Any]]:
        name = f"{owner.__module__}.{owner.__qualname__}"
        if name in self.receivers:
            return [
                functools.partial(_evaluate_one, text, self.scope) for text in self.receivers[name]
            ]
        if owner is object:
            return [Cell, lambda: Cell(a=Marker(), key=[1])]
        return [make for make in (*_POOL, *_RECEIVERS, *_TENSOR_POOL) if isinstance(make(), owner)]


def _made(chosen: tuple[Callable[[], Any], ...]) -> Inputs:
    return tuple(make() for make in chosen), {}


def _evaluate(text: str, scope: dict[str, Any]) -> Inputs:
    """The arguments in ``args``, the text between the parentheses of a call."""
    return eval(f"_inputs({text})", scope)


def _evaluate_one(text: str, scope: dict[str, Any]) -> Any:
    return eval(text, scope)


def _scope() -> dict[str, Any]:
    import contextvars
    import datetime
    import enum
    import io
    import operator
    import re
    import struct
    import weakref

    import numpy

    modules = (
        builtins, collections, contextvars, datetime, enum, functools, inspect, io, itertools,
        numpy, operator, random, re, struct, torch, types, weakref,
    )  # fmt: skip
    scope: dict[str, Any] = {module.__name__: module for module in modules}
    scope.update(
        np=numpy,
        Marker=Marker,
        Cell=Cell,
        _inputs=lambda *args, **kwargs: (args, kwargs),
        tensor=lambda *shape: _tensor(*shape),
    )
    return scope


def _read_samples() -> dict[str, Any]:
    result: dict[str, Any] = {}
    for path in sorted((annotations_dir() / "samples").glob("*.yaml")):
        for section, entries in (yaml.safe_load(path.read_text("utf-8")) or {}).items():
            result.setdefault(section, {}).update(entries)
    return result


def _accepted(
    operation: Any, write: bool, candidates: Iterator[Sample], limit: int
) -> Iterator[Sample]:
    """Candidates that do not raise, a few for each combination of input types."""
    seen: collections.Counter[Any] = collections.Counter()
    refused: list[Sample] = []
    for candidate in candidates:
        try:
            args, kwargs = candidate.make()
            kinds = (*map(_kind, args), *((key, _kind(value)) for key, value in kwargs.items()))
            if seen[kinds] == SAMPLES_OF_A_KIND:
                continue
            if call(operation, write, args, kwargs) is NotImplemented:
                refused.append(candidate)
                continue
        except Exception:
            continue
        seen[kinds] += 1
        yield candidate
        if seen.total() == limit:
            return
    if not seen:  # for example a comparison with its own type only
        yield from refused[:limit]


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (type(value), value.dtype, value.dim())
    if isinstance(value, list | tuple) and value:
        return (type(value), type(value[0]))
    return type(value)


def _arity(operation: Any, write: bool) -> tuple[int, int]:
    if write:
        return 2, 2
    if isinstance(operation, types.GetSetDescriptorType | types.MemberDescriptorType | property):
        return 1, 1
    own = int(getattr(operation, "__objclass__", None) is not None)
    try:
        parameters = inspect.signature(operation).parameters.values()
    except (ValueError, TypeError):
        return own, 3
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    more = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    low = max(own, len(required))
    return low, max(low, min(4, len(positional) + 2 * more))


def _tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Distinct values without zeros, the same at every call."""
    count = 1
    for size in shape:
        count *= size
    values = torch.arange(1, count + 1, dtype=torch.float64)
    if dtype.is_floating_point or dtype.is_complex:
        values = values / (count + 1)
    elif dtype is torch.bool:
        values = values % 2
    else:
        values = values % 3
    return values.to(dtype).reshape(shape)


def _opinfo_samples(operation: Any) -> Iterator[Sample]:
    try:
        entries = _opinfo().get(id(operation), ())
    except TypeError:
        return
    for kind, info in entries:
        supported = info.supported_dtypes("cpu")
        for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64):
            if dtype not in supported:
                continue
            try:
                inputs = list(itertools.islice(info.sample_inputs("cpu", dtype), OPINFO_SAMPLES))
            except Exception:
                continue
            for sample in inputs:
                given = ((sample.input, *sample.args), dict(sample.kwargs))
                yield Sample(functools.partial(copied, given))
            if dtype is torch.float32 and kind != "inplace":
                break


@functools.cache
def _opinfo() -> dict[int, list[tuple[str, Any]]]:
    """OpInfo entries by operation: functions, methods, in-place methods."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from magpy_like.torch_compat.operator_samples import op_db

    table: dict[int, list[tuple[str, Any]]] = {}
    for info in op_db:
        variants = (
            ("function", info.op),
            ("method", info.method_variant),
            ("inplace", info.inplace_variant),
        )
        for kind, variant in variants:
            if variant is not None:
                table.setdefault(id(resolve(variant)[0]), []).append((kind, info))
    return table


def _schema_samples(name: str) -> Iterator[Sample]:
    owner, _, member = name.rpartition(".")
    if not owner.startswith("torch."):
        return
    chance = random.Random(0)
    for schema in schemas_of_operator(f"aten::{member}"):
        if schema.overload_name.endswith("out"):
            continue
        required = [argument for argument in schema.arguments if not argument.has_default_value()]
        types_ = [str(argument.type) for argument in required]
        makers = [_BY_SCHEMA_TYPE.get(text) for text in types_]
        if None in makers:
            continue
        for _ in range(40):
            positional: list[Callable[[], Any]] = []
            keywords: dict[str, Callable[[], Any]] = {}
            for argument, choices in zip(required, makers, strict=True):
                choice = chance.choice(choices)  # type: ignore[arg-type]
                if argument.kwarg_only:
                    keywords[argument.name] = choice
                else:
                    positional.append(choice)
            yield Sample(functools.partial(_made_from_schema, tuple(positional), keywords))


def _made_from_schema(
    positional: tuple[Callable[[], Any], ...], keywords: Mapping[str, Callable[[], Any]]
) -> Inputs:
    return tuple(make() for make in positional), {k: make() for k, make in keywords.items()}


def _constants(*values: Any) -> list[Callable[[], Any]]:
    return [functools.partial(copied, value) for value in values]


def _tensors(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Callable[[], Any]]:
    return [functools.partial(_tensor, *shape, dtype=dtype) for shape in shapes]


_FLOATS = _tensors(torch.float32, (3, 3), (3, 3), (3,), (2, 3, 4, 4), (2, 3), ())
_OTHER_TENSORS = [*_tensors(torch.int64, (3,), (3, 3)), *_tensors(torch.bool, (3, 3))]
_BY_SCHEMA_TYPE: dict[str, list[Callable[[], Any]]] = {
    "Tensor": [*_FLOATS, *_OTHER_TENSORS],
    "Optional[Tensor]": [*_FLOATS, lambda: None],
    "int": _constants(1, 0, 2),
    "Optional[int]": _constants(None, 1),
    "float": _constants(0.5, 1.0),
    "Optional[float]": _constants(None, 0.5),
    "bool": _constants(False, True),
    "Optional[bool]": _constants(None, True),
    "number": _constants(2, 0.5),
    "Optional[number]": _constants(None, 0.5),
    "str": _constants("mean", "reflect", "ij"),
    "List[int]": _constants([1], [0], [0, 1], [3, 3], [2, 2], [1, 2, 3]),
    "Optional[List[int]]": _constants(None, [1]),
    "List[float]": _constants([0.5], [0.5, 0.5]),
    "List[Tensor]": _constants([_tensor(3, 3), _tensor(3, 3)], [_tensor(3)]),
    "List[Optional[Tensor]]": _constants([torch.tensor([0, 2])]),
    "Device": _constants(torch.device("cpu")),
}


def _always(*_: Any) -> bool:
    return True


_POOL: list[Callable[[], Any]] = [
    *_constants(0, 1, 2, 3, -1, True, False, None, 1.5, -0.25, 2 + 1j),
    *_constants("a", "key", "b c", "{} {}", "", b"ab", b"c", "1", "utf-8", "__class__"),
    *_constants([3, 1, 2], ["b", "a"], [], [[1], [2]], (1, 2), ("a",), (), {1, 2}, {"a"}),
    *_constants(frozenset((1, 3)), range(3), slice(0, 2), [("a", 1)]),
    *_constants({"a": 1, "key": 2}, {}, {1: [1], 2: [2]}),
    lambda: [Marker(), Marker(), Marker()],
    lambda: (Marker(), Marker()),
    lambda: {"a": Marker(), "key": Marker()},
    lambda: {1: Marker(), 2: Marker()},
    lambda: Cell(a=Marker(), key=[1]),
    lambda: Cell,
    lambda: int,
    lambda: str,
    lambda: list,
    lambda: (int, str),
    lambda: len,
    lambda: _always,
    lambda: iter([1, 2, 3]),
    Marker,
]
_TENSOR_POOL: list[Callable[[], Any]] = [
    *_FLOATS,
    *_OTHER_TENSORS,
    *_constants(0, 1, 2, -1, 0.5, True, (0, 1), (3, 3), (0,), None, torch.float64),
]
_RECEIVERS: list[Callable[[], Any]] = [
    lambda: bytearray(b"ab"),
    lambda: types.MappingProxyType({"a": Marker(), "key": Marker()}),
    lambda: {"a": 1, "key": Marker()}.keys(),
    lambda: {"a": Marker(), "key": Marker()}.values(),
    lambda: {"a": Marker()}.items(),
    lambda: memoryview(b"abc"),
    lambda: ValueError("a", 1),
    lambda: types.SimpleNamespace(a=1, key=[2]),
]
