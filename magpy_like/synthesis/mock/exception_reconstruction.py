"""Reconstruction of exceptions: native state, cause and context, and traceback."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from magpy_like.native.instance_checks import is_instance
from magpy_like.refgraph.plain_values import HEAP_TYPE
from magpy_like.splitting.tracebacks import (
    prepend_frames,
    set_context_from_caller,
    traceback_entries,
)
from magpy_like.synthesis.mock.instance_layout import native_layout

if TYPE_CHECKING:
    from magpy_like.synthesis.mock.reconstruction import Reconstruction


_COMPARED_BY_VALUE = (str, int, tuple)


class Exceptions:
    """Emits the state of exceptions that are created already."""

    def __init__(self, values: Reconstruction) -> None:
        self._values, self._rec, self._source = values, values.rec, values.source

    def restore_state(self, error: BaseException, name: str) -> None:
        """Emit native state, cause, context and traceback of the exception called ``name``."""
        cls = type(error)
        alike = native_layout(cls).__new__(cls, *native_arguments(error))
        if is_instance(error, BaseExceptionGroup):
            self._source.emit(f"{name}.args = {self._values.value(error.args)}")
        for slot in _native_slots(cls):
            found, default = getattr(error, slot), getattr(alike, slot)
            is_equal = is_instance(found, _COMPARED_BY_VALUE) and found == default
            if found is not default and not is_equal:
                self._source.emit(f"{name}.{slot} = {self._values.value(found)}")
        links = {"__cause__": error.__cause__, "__suppress_context__": error.__suppress_context__}
        context = error.__context__
        if context is not None and context is not self._rec.state.handled_outside:
            links["__context__"] = context
        elif error.__traceback__ is not None:  # it was raised while its caller handled another one
            self._source.emit(f"{self._source.constant(set_context_from_caller)}({name})")
        for link, found in links.items():
            if found:
                self._source.emit(f"{name}.{link} = {self._values.value(found)}")
        self._source.lines += self.traceback_lines(error, name, None)

    def traceback_lines(
        self, error: BaseException, name: str, until: types.TracebackType | None
    ) -> list[str]:
        """Lines that add the frames of a traceback up to ``until`` to an exception."""
        passed = traceback_entries(error.__traceback__, until)
        if not passed:
            return []
        frames = self._source.constant(passed, "frames")
        return [f"{self._source.constant(prepend_frames)}({name}, {frames})"]


def native_arguments(error: BaseException) -> tuple[Any, ...]:
    """Arguments of a native exception class's ``__new__``.

    An exception group validates the list passed to it, which the mock may fill only later.
    """
    if is_instance(error, BaseExceptionGroup):
        return error.message, error.exceptions
    return error.args


def _native_slots(cls: type) -> list[str]:
    """Slots of native exception classes besides the arguments, such as a missing name."""
    native = [b for b in cls.__mro__ if not b.__flags__ & HEAP_TYPE and b is not BaseException]
    kinds = types.MemberDescriptorType
    return [name for b in native for name, d in b.__dict__.items() if is_instance(d, kinds)]
