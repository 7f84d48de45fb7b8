"""Structural comparison of the results of two runs of one program.

Equality defines correctness in this project: equal type, structure, aliasing, dtype, observable
strides, and values within the tolerances of torch's own tests, with NaN equal to NaN.
"""

import array
import collections
import dataclasses
import enum
import functools
import io
import math
import sys
import types
from typing import Any

import numpy as np
import torch

from magpy_like.native.instance_checks import is_instance

_BY_EQUALITY = (type(None), bool, int, str, bytes, range, type(...), type(NotImplemented), slice)
_BY_IDENTITY = (type, types.ModuleType, types.CodeType, torch.dtype)
_IMMUTABLE = (tuple, frozenset, *_BY_EQUALITY, float, complex, torch.device, torch.dtype)
_ITERATORS = tuple(
    type(it)
    for it in (
        iter([]),
        iter(()),
        iter({}),
        iter({}.values()),
        iter({}.items()),
        iter(range(0)),
        iter(""),
        reversed([]),
        enumerate([]),
        zip(),
        map(len, []),
        filter(None, []),
    )
)
_CLASS_ATTRIBUTE_TYPES = (int, float, str, list, dict, set, tuple, torch.Tensor)
_MISSING = object()
_FUNCTION_STATE = (
    "__code__", "__defaults__", "__kwdefaults__", "__dict__", "__annotations__", "__doc__",
    "__name__", "__qualname__", "__module__",
)  # fmt: skip


def assert_same(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    what: str = "result",
) -> None:
    """Fails with the path of the first difference between `actual` and `expected`.

    To compare how results alias arguments as well, pass tuples that hold both:
    `assert_same((out, args), (eager_out, eager_args))`.

    Args:
        actual: the results of the compiled run; any object graph, with or without cycles.
        expected: the results of the eager run on separate inputs.
        rtol, atol: tolerances for floating point values; by default `torch.testing`'s for the
            dtype, and float32's for Python floats, which may originate from a float32 tensor.
        what: the name of the root in messages.

    Raises:
        AssertionError: the objects differ.
    """
    _Comparison(rtol, atol).same(actual, expected, what)


class _Comparison:
    def __init__(self, rtol: float | None, atol: float | None) -> None:
        self.tolerance = {} if rtol is None and atol is None else {"rtol": rtol, "atol": atol}
        self.partner: dict[int, Any] = {}  # id of an expected object -> its actual object
        self.partner_back: dict[int, Any] = {}
        self.storage: dict[int, tuple[int, int, str]] = {}
        self.storage_back: dict[int, str] = {}
        self.alive: list[Any] = []  # ids are only unique among living objects

    def same(self, a: Any, e: Any, path: str) -> None:
        if type(a) is not type(e) and not _have_same_factory(type(a), type(e)):
            _differ(path, f"type {type(a).__qualname__}", type(e).__qualname__)
        if not is_instance(e, _IMMUTABLE):
            if self._paired(a, e, path):
                return
        if is_instance(e, torch.Tensor):
            self._tensor(a, e, path)
        elif is_instance(e, np.ndarray):
            self._array(a, e, path)
        elif is_instance(e, (float, complex)):
            self._number(a, e, path)
        elif is_instance(e, enum.Enum):
            self.same(a.name, e.name, f"{path}.name")
        elif is_instance(e, type) and _have_same_factory(a, e):
            self._class(a, e, path)
        elif is_instance(e, _BY_IDENTITY):
            if a is not e:
                _differ(path, repr(a), repr(e))
        elif is_instance(e, _BY_EQUALITY):
            if a != e:
                _differ(path, repr(a), repr(e))
        else:
            self._structure(a, e, path)

    def _paired(self, a: Any, e: Any, path: str) -> bool:
        """Records that `a` corresponds to `e`; True if that was recorded before.

        One object on two access paths in one run must be one object in the other run.
        """
        self.alive += (a, e)
        if id(e) in self.partner or id(a) in self.partner_back:
            if self.partner.get(id(e)) is not a or self.partner_back.get(id(a)) is not e:
                shared = "expected" if id(e) in self.partner else "actual"
                raise AssertionError(f"{path}: is another path's object in the {shared} run only")
            return True
        self.partner[id(e)] = a
        self.partner_back[id(a)] = e
        return False

    def _class(self, a: type, e: type, path: str) -> None:
        """Compares the attributes that a program may set on two classes of one factory."""
        left, right = (
            {k: v for k, v in vars(cls).items() if is_instance(v, _CLASS_ATTRIBUTE_TYPES)}
            for cls in (a, e)
        )
        names = [{k for k in own if not k.startswith("_")} for own in (left, right)]
        if names[0] != names[1]:
            _differ(path, f"attributes {names[0]}", names[1])
        for name in names[1]:
            self.same(left[name], right[name], f"{path}.{name}")

    def _structure(self, a: Any, e: Any, path: str) -> None:
        if is_instance(e, dict):
            self._keys(list(a), list(e), path)
            for ka, ke in zip(a, e):
                self.same(dict.__getitem__(a, ka), dict.__getitem__(e, ke), f"{path}[{ke!r}]")
        elif is_instance(e, (list, tuple, collections.deque)):
            if len(a) != len(e):
                _differ(path, f"length {len(a)}", len(e))
            for i, (x, y) in enumerate(zip(a, e)):
                self.same(x, y, f"{path}[{i}]")
            if is_instance(e, collections.deque):
                self.same(a.maxlen, e.maxlen, f"{path}.maxlen")
        elif is_instance(e, (set, frozenset)):
            self._set(a, e, path)
        elif is_instance(e, types.FunctionType):
            self._function(a, e, path)
            return
        elif is_instance(e, types.MethodType):
            self.same(a.__func__, e.__func__, f"{path}.__func__")
            self.same(a.__self__, e.__self__, f"{path}.__self__")
            return
        elif is_instance(e, types.BuiltinFunctionType):
            self.same(a.__name__, e.__name__, f"{path}.__name__")
            self.same(a.__self__, e.__self__, f"{path}.__self__")
            return
        elif is_instance(e, functools.partial):
            for name in ("func", "args", "keywords"):
                self.same(getattr(a, name), getattr(e, name), f"{path}.{name}")
        elif is_instance(e, types.GeneratorType):
            self._generator(a, e, path)
            return
        elif is_instance(e, types.CellType):
            self.same(_cell(a), _cell(e), f"{path}.cell_contents")
            return
        elif is_instance(e, _ITERATORS):
            # Their __reduce__ returns the remaining elements without consuming them.
            reduced_a, reduced_e = a.__reduce__(), e.__reduce__()
            self.alive += (reduced_a, reduced_e)
            self.same(reduced_a, reduced_e, f"{path}<iterator>")
            return
        elif is_instance(e, (bytearray, array.array)):
            if a != e:
                _differ(path, repr(a), repr(e))
        elif is_instance(e, (io.StringIO, io.BytesIO)):
            self.same((a.getvalue(), a.tell()), (e.getvalue(), e.tell()), f"{path}.getvalue()")
        elif is_instance(e, BaseException):
            self.same(a.args, e.args, f"{path}.args")
        self._state(a, e, path)

    def _keys(self, a: list[Any], e: list[Any], path: str) -> None:
        if len(a) != len(e):
            _differ(path, f"keys {a}", e)
        for x, y in zip(a, e):
            self.same(x, y, f"{path}<key {y!r}>")

    def _set(self, a: Any, e: Any, path: str) -> None:
        for kind in (bool, int, float):
            if sum(type(x) is kind for x in a) != sum(type(x) is kind for x in e):
                _differ(path, f"elements {a}", e)
        left = [x for x in a if x not in e]
        missing = [x for x in e if x not in a]
        if len(left) != len(missing):
            _differ(path, f"{len(a)} elements", len(e))
        # Elements that compare by identity cannot be paired by value, except for a single one.
        if len(missing) == 1:
            self.same(left[0], missing[0], f"{path}<element>")
        elif missing:
            _differ(path, f"elements {left}", missing)

    def _function(self, a: Any, e: Any, path: str) -> None:
        for name in _FUNCTION_STATE:
            x, y = getattr(a, name), getattr(e, name)
            self.alive += (x, y)
            self.same(x, y, f"{path}.{name}")
        for name, x, y in zip(
            e.__code__.co_freevars, a.__closure__ or (), e.__closure__ or (), strict=True
        ):
            self.same(x, y, f"{path}.<closure {name}>")

    def _generator(self, a: Any, e: Any, path: str) -> None:
        self.same(a.gi_code, e.gi_code, f"{path}.gi_code")
        if (a.gi_frame is None) != (e.gi_frame is None):
            _differ(path, "finished" if a.gi_frame is None else "suspended", "the other")
        if e.gi_frame is not None:
            self.same(a.gi_frame.f_lasti, e.gi_frame.f_lasti, f"{path}.gi_frame.f_lasti")
            locals_a, locals_e = dict(a.gi_frame.f_locals), dict(e.gi_frame.f_locals)
            self.alive += (locals_a, locals_e)
            self.same(locals_a, locals_e, f"{path}.gi_frame.f_locals")

    def _state(self, a: Any, e: Any, path: str) -> None:
        """Instance attributes, in `__dict__` and in slots."""
        names: dict[str, None] = {}
        for cls in type(e).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            names.update(dict.fromkeys([slots] if is_instance(slots, str) else slots))
        if dataclasses.is_dataclass(type(e)):
            names.update(dict.fromkeys(f.name for f in dataclasses.fields(type(e))))
        names.pop("__dict__", None)
        names.pop("__weakref__", None)
        for name in names:
            held_a, held_e = _get_attribute(a, name, _MISSING), _get_attribute(e, name, _MISSING)
            if (held_a is _MISSING) != (held_e is _MISSING):
                there = "absent" if held_a is _MISSING else "present"
                _differ(f"{path}.{name}", there, "the other")
            if held_e is not _MISSING:
                self.same(held_a, held_e, f"{path}.{name}")
        own_a, own_e = _get_attribute(a, "__dict__", {}), _get_attribute(e, "__dict__", {})
        if own_a or own_e:
            self._keys(sorted(own_a, key=str), sorted(own_e, key=str), f"{path}.__dict__")
            for name in own_e:
                self.same(own_a[name], own_e[name], f"{path}.{name}")

    def _number(self, a: Any, e: Any, path: str) -> None:
        if is_instance(e, complex):
            self._number(a.real, e.real, f"{path}.real")
            self._number(a.imag, e.imag, f"{path}.imag")
            return
        rtol = self.tolerance.get("rtol", 1.3e-6) or 0.0
        atol = self.tolerance.get("atol", 1e-5) or 0.0
        if math.isnan(a) and math.isnan(e):
            return
        if not math.isclose(a, e, rel_tol=rtol, abs_tol=atol):
            _differ(path, repr(a), repr(e))

    def _array(self, a: Any, e: Any, path: str) -> None:
        for name in ("dtype", "shape", "strides"):
            if getattr(a, name) != getattr(e, name):
                _differ(path, f"{name} {getattr(a, name)}", getattr(e, name))
        if e.dtype == object:
            self.same(a.tolist(), e.tolist(), path)
        elif e.dtype.kind in "fc":
            rtol = self.tolerance.get("rtol", 1.3e-6) or 0.0
            np.testing.assert_allclose(
                a, e, rtol=rtol, atol=self.tolerance.get("atol", 1e-5) or 0.0, err_msg=path
            )
        else:
            np.testing.assert_array_equal(a, e, err_msg=path)

    def _tensor(self, a: torch.Tensor, e: torch.Tensor, path: str) -> None:
        for name in ("shape", "dtype", "device", "layout", "requires_grad", "is_leaf"):
            actual, expected = _attribute(a, name), _attribute(e, name)
            if actual != expected:
                _differ(path, f"{name} {actual}", expected)
        if e.layout is torch.strided:
            if _strides(a) != _strides(e):
                _differ(path, f"strides {a.stride()}", f"{e.stride()} (shape {tuple(e.shape)})")
            self._same_storage(a, e, path)
        if not e.is_meta:
            torch.testing.assert_close(
                a.detach(),
                e.detach(),
                equal_nan=True,
                msg=lambda text: f"{path}: {text}",
                **self.tolerance,
            )
        attributes_a, attributes_e = _attributes(a), _attributes(e)
        if attributes_a or attributes_e:
            self.alive += (attributes_a, attributes_e)
            self.same(attributes_a, attributes_e, f"{path}.__dict__")

    def _same_storage(self, a: torch.Tensor, e: torch.Tensor, path: str) -> None:
        """Tensors that share memory in one run must share it in the other."""
        if e.numel() == 0 or e.is_meta:
            return
        key_a, key_e = a.untyped_storage()._cdata, e.untyped_storage()._cdata
        if key_e in self.storage:
            partner, shift, first = self.storage[key_e]
            if partner != key_a:
                raise AssertionError(f"{path}: shares no memory with {first}, as eager's does")
            if a.storage_offset() * a.element_size() - e.storage_offset() * e.element_size() != (
                shift
            ):
                raise AssertionError(f"{path}: another part of the memory it shares with {first}")
        elif key_a in self.storage_back:
            first = self.storage_back[key_a]
            raise AssertionError(f"{path}: shares memory with {first}, and eager's does not")
        else:
            shift = a.storage_offset() * a.element_size() - e.storage_offset() * e.element_size()
            self.storage[key_e] = (key_a, shift, path)
            self.storage_back[key_a] = path


def _get_attribute(value: Any, name: str, default: Any) -> Any:
    """An attribute by the default rules, without running code of the object's class."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return default


def _have_same_factory(a: type, e: type) -> bool:
    """True if two classes were created by two calls of one function, or by two executions of one
    module that is not imported, and so correspond."""
    named = [(cls.__module__, cls.__qualname__, len(cls.__mro__)) for cls in (a, e)]
    # The qualified name of a named tuple does not include the function.
    is_local = "<locals>" in e.__qualname__ or issubclass(e, tuple)
    is_local |= e.__module__ not in sys.modules
    return a is not e and named[0] == named[1] and is_local


def _attribute(tensor: torch.Tensor, name: str) -> Any:
    """An attribute, or the error that a view raises whose base was written to otherwise."""
    try:
        return getattr(tensor, name)
    except RuntimeError as error:
        return f"raises {error}"


def _strides(t: torch.Tensor) -> list[int]:
    """The strides that matter: a dimension of size 1 may have any stride."""
    if t.numel() == 0:
        return []
    return [stride for size, stride in zip(t.shape, t.stride()) if size > 1]


def _attributes(t: torch.Tensor) -> dict[str, Any]:
    """The attributes that a program set on a tensor, without hints for compilers."""
    return {k: v for k, v in sorted(vars(t).items()) if not k.startswith("_dynamo_")}


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # still empty
        return NotImplemented


def _differ(path: str, actual: Any, expected: Any) -> None:
    raise AssertionError(f"{path}: {actual}, expected {expected}")
