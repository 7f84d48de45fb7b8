"""Reconstruction of functions, cells, methods, descriptors and partial functions."""

from __future__ import annotations

import functools
import sys
import types
from typing import TYPE_CHECKING, Any

from magpy_like.native import instance_dict
from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import bind
from magpy_like.split_points import Split
from magpy_like.split_reasons import SplitReason

if TYPE_CHECKING:
    from magpy_like.synthesis.mock.reconstruction import Reconstruction


_DESCRIPTOR_PARTS = {
    property: ("fget", "fset", "fdel", "__doc__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}
DESCRIPTORS = tuple(_DESCRIPTOR_PARTS)
"""Descriptors that functions are wrapped in."""
_REFERENCES_TO_OWN = 3
"""Of a dictionary that a function alone holds: the function's, a local variable's, and the one that
counts."""


class Functions:
    """Emits functions and the objects made of them."""

    def __init__(self, values: Reconstruction) -> None:
        self._values, self._rec, self._source = values, values.rec, values.source
        self._empty_cells: list[types.CellType] = []

    def make_function(self, function: types.FunctionType) -> str:
        if not self._rec.variables.is_new_object(function):
            return self._values.remember(
                function, self._source.constant(function, function.__name__)
            )
        make = self._source.constant(types.FunctionType, "FunctionType")
        code = self._source.constant(function.__code__, "code")
        names = self._source.constant(function.__globals__, "module_globals")
        cells = [self._values.value(cell) for cell in function.__closure__ or ()]
        closure = f"({', '.join(cells)},)" if cells else "None"
        defaults = self._values.value(function.__defaults__)
        name = self._values.bind(
            function, f"{make}({code}, {names}, {function.__name__!r}, {defaults}, {closure})", "f"
        )
        if function.__kwdefaults__:
            self._source.emit(
                f"{name}.__kwdefaults__ = {self._values.value(function.__kwdefaults__)}"
            )
        if function.__dict__:
            self._source.emit(
                f"{name}.__dict__.update({self._values.containers.dict_text(function.__dict__)})"
            )
        annotations = function.__annotations__
        if annotations or sys.getrefcount(annotations) > _REFERENCES_TO_OWN:
            self._source.emit(f"{name}.__annotations__ = {self._values.value(annotations)}")
        for slot in ("__qualname__", "__doc__", "__module__"):
            self._source.emit(f"{name}.{slot} = {self._values.value(getattr(function, slot))}")
        for cell in function.__closure__ or ():
            self._fill(cell)
        return name

    def make_cell(self, cell: types.CellType) -> str:
        make = self._source.constant(types.CellType, "CellType")
        self._empty_cells.append(cell)
        return self._values.bind(cell, f"{make}()", "cell")

    def fill_cells(self) -> None:
        """Fill the cells of no new function, such as those of an active frame."""
        while self._empty_cells:
            self._fill(self._empty_cells.pop())

    def _fill(self, cell: types.CellType) -> None:
        """Fill a cell once the functions that share it exist: its contents may refer to them."""
        if self._rec.variables.node(cell) is not None or id(cell) in self._values.unfinished:
            return
        self._values.unfinished.add(id(cell))
        try:
            contents = cell.cell_contents
        except ValueError:
            return
        self._source.emit(
            f"{self._values.value(cell)}.cell_contents = {self._values.value(contents)}"
        )

    def make_method(self, method: types.MethodType) -> str:
        make = self._source.constant(types.MethodType, "MethodType")
        return self._values.bind(
            method,
            f"{make}({self._values.value(method.__func__)}, {self._values.value(method.__self__)})",
        )

    def make_builtin_method(self, method: Any) -> str:
        """Bind the native class's own method: a subclass may override the name in Python."""
        receiver, name = method.__self__, method.__name__
        for base in type(receiver).__mro__:
            found = base.__dict__.get(name)
            if is_instance(found, types.MethodDescriptorType) and bind(found, receiver) == method:
                names = self._source.constant(bind, "bind"), self._source.constant(found, name)
                return self._values.bind(
                    method, f"{names[0]}({names[1]}, {self._values.value(receiver)})"
                )
        raise Split(
            SplitReason.CUSTOM_CLASS_STATE,
            f"leaves the method {name} of a {type(receiver).__qualname__}",
        )

    def make_partial(self, partial: functools.partial[Any]) -> str:
        make = self._source.constant(type(partial), type(partial).__name__)
        args = ", ".join(
            [self._values.value(partial.func)]
            + [self._values.value(a) for a in partial.args]
            + [f"**{self._values.containers.dict_text(partial.keywords)}"]
        )
        name = self._values.bind(partial, f"{make}({args})")
        if partial.__dict__:
            self._source.emit(
                f"{name}.__dict__.update({self._values.containers.dict_text(partial.__dict__)})"
            )
        return name

    def make_descriptor(self, value: Any) -> str:
        """A property, static method or class method.

        Raises:
            Split: it has attributes of its own.
        """
        make = self._source.constant(type(value), type(value).__name__)
        parts = [getattr(value, name) for name in _DESCRIPTOR_PARTS.get(type(value), ())]
        if not parts or instance_dict(type(value)(*parts)) != instance_dict(value):
            raise Split(
                SplitReason.CUSTOM_CLASS_STATE,
                f"leaves a {type(value).__qualname__} with attributes in its instance dictionary",
            )
        return self._values.bind(value, f"{make}({', '.join(map(self._values.value, parts))})")
