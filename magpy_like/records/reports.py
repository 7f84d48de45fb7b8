"""Reports to the user of calls that are not faster: warnings with line, reason and remedy.

A function is reported once for each :class:`Kind`. A report is noted where its cause is found,
which may be in the middle of a run, and becomes a warning later: a filter may make it an
exception.
"""

from __future__ import annotations

import enum
import pathlib
import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from magpy_like.errors import MagpyWarning
from magpy_like.native.instance_checks import is_instance
from magpy_like.split_points import SplitPoint


class Kind(enum.Enum):
    """What is reported of a function, as the verb of a sentence."""

    NATIVE = "runs eagerly from now on"
    THIS_CALL = "ran natively in a call"
    NO_HITS = "has never found a record that matches a call"
    FAILING = "keeps raising in its compiled form, and such calls run natively"
    UNCOMPILED = "runs operator by operator"
    TORCH_COMPILE = "overlaps with torch.compile"
    STANCE = "does not follow the stance"


class Location(NamedTuple):
    """A position in the program."""

    filename: str
    lineno: int
    function: str

    @classmethod
    def of_split(cls, point: SplitPoint) -> Location:
        return cls(point.filename, point.lineno, point.function)

    def __str__(self) -> str:
        inside = f" in {self.function}" if self.function else ""
        return f"{self.filename}:{self.lineno}{inside}"


class Reports:
    """The reports of one compiled function and its continuations."""

    def __init__(self, name: Callable[[], str], target: Any) -> None:
        """``name`` returns the name of the function ``target``, for people."""
        self._name, self._target = name, target
        self._lock = threading.Lock()
        self._told: set[Kind] = set()
        self._waiting: list[tuple[str, Location]] = []

    def note(
        self, kind: Kind, reason: str, remedy: str = "", location: Location | None = None
    ) -> None:
        """Note a report; ``location`` is by default where the function is defined."""
        with self._lock:
            if kind in self._told:
                return
            self._told.add(kind)
        where = location or self._definition()
        text = f"magpy_like: {self._name()} {kind.value}: {reason} ({where})"
        with self._lock:
            self._waiting.append((f"{text}. To mend it: {remedy}" if remedy else text, where))

    def note_split(self, kind: Kind, point: SplitPoint) -> None:
        """Note a report whose cause is a split that no segment ends at."""
        if _is_instance_of("torch.distributed.fsdp", "FSDPModule", self._target):
            self.note(kind, *_FULLY_SHARDED)
            return
        is_in_ddp = point.filename.startswith(_NOT_THE_USERS) and self._is_of_ddp()
        remedy = _INSIDE_OF_DDP if is_in_ddp else point.cause.remedy
        self.note(kind, point.detail, remedy, Location.of_split(point))

    def note_misses(self, kind: Kind, reason: str, remedy: str) -> None:
        """Note a report whose cause is that no record matches."""
        self.note(kind, reason, _INSIDE_OF_DDP if self._is_of_ddp() else remedy)

    def _is_of_ddp(self) -> bool:
        return _is_instance_of(
            "torch.nn.parallel.distributed", "DistributedDataParallel", self._target
        )

    def note_torch_compile_around(self) -> None:
        """Note that code which torch.compile has compiled calls the function."""
        if Kind.TORCH_COMPILE in self._told or not _is_in_torch_compile():
            return
        self.note(
            Kind.TORCH_COMPILE,
            "torch.compile breaks its graph where it is called, and the call runs by records",
            "compile only one of them",
            calling_location(),
        )

    def emit(self) -> None:
        """Warn of what has been noted. A filter of the program may raise the warning."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                text, where = self._waiting.pop(0)
            warnings.warn_explicit(text, MagpyWarning, where.filename, where.lineno)

    def _definition(self) -> Location:
        code = code_of(self._target)
        if code is None or code.co_filename.startswith((*_NOT_THE_USERS, *_GENERATED)):
            return calling_location()
        return Location(code.co_filename, code.co_firstlineno, code.co_qualname)


_FULLY_SHARDED = (
    "hooks of torch.distributed.fsdp.fully_shard gather and free its parameters at each call, in "
    "native code",
    "compile what runs between the hooks: module.forward = magpy_like.compile(module.forward)",
)
_INSIDE_OF_DDP = (
    "compile the module inside: DistributedDataParallel(magpy_like.compile(module)); the wrapper's "
    "own code is for the exchange between processes"
)

_mro_of = type.__dict__["__mro__"].__get__


def _is_instance_of(module: str, name: str, target: Any) -> bool:
    """True for an instance of a class of a module of torch, which may not be imported yet.

    ``fully_shard`` gives a module such a class. No code of a metaclass runs.
    """
    found = getattr(sys.modules.get(module), name, None)
    return found is not None and any(cls is found for cls in _mro_of(type(target)))


_NOT_THE_USERS = (str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(torch.__file__).parent))
"""Folders of code that no user has written."""


def calling_location() -> Location:
    """The innermost line of the program on this thread's stack: its call of a compiled object.

    In generated code only if no other has called it: a library, or torch, has generated it."""
    frame: types.FrameType | None = sys._getframe()
    generated = None
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_NOT_THE_USERS):
            location = Location(code.co_filename, frame.f_lineno or 0, code.co_qualname)
            if not code.co_filename.startswith(_GENERATED):
                return location
            generated = generated or location
        frame = frame.f_back
    return generated or Location("?", 0, "")


_GENERATED = ("<string>", "<eval_with_key>", "<frozen ")
"""Names of files that generated code has; that of notebooks and consoles has others."""


def _is_in_torch_compile() -> bool:
    """True if a function that torch.compile has returned is on this thread's stack."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile_wrapper" and code.co_filename.endswith(_OF_DYNAMO):
            return True
        frame = frame.f_back
    return False


_OF_DYNAMO = "torch/_dynamo/eval_frame.py"


def code_of(target: Any) -> types.CodeType | None:
    """The code of a function, a method or a module's ``forward``; None for anything else."""
    if is_instance(target, torch.nn.Module):
        target = type(target).forward
    target = getattr(target, "__func__", target)
    return getattr(target, "__code__", None)
