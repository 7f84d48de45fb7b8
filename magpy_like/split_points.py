"""Split points: the exceptions that end a recording, and the positions in the program."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

from magpy_like.split_reasons import SplitCause, SplitReason

AUTOGRAD = "runs or changes the autograd graph"


class Split(Exception):
    """The program has a behaviour that cannot be part of a record.

    Attributes:
        cause: the reason, the detail and the subject; ``str()`` of the exception is the detail.
    """

    def __init__(self, reason: SplitReason, detail: str, subject: str = "") -> None:
        super().__init__(detail)
        self.cause = SplitCause(reason, detail, subject)


class UnguardableRead(Split):
    """The program has read a value that a guard cannot check in advance, and changed nothing.

    So the program can still be cut before the instruction that read it.
    """


class EffectInsideOperator(Split):
    """The Python code of an operator has an external effect, which a second run would repeat."""


class SpeculationRefused(Split):
    """A later effect could not be rolled back after a misspeculation."""


class BranchRefused(Split):
    """A later effect does not allow the operator that a branch has become."""


class BranchNotMergeable(Split):
    """No operator expresses the branch; the detail states the reason."""

    def __init__(self, detail: str) -> None:
        super().__init__(SplitReason.BRANCH_NOT_MERGEABLE, detail)


class LoopNotMergeable(Split):
    """No operator expresses the loop; the detail states the reason."""

    def __init__(self, detail: str) -> None:
        super().__init__(SplitReason.LOOP_NOT_MERGEABLE, detail)


def unknown_value_split(value: Any, reason: SplitReason, detail: str, subject: str = "") -> Split:
    """The split for an operation on a value of unknown behaviour.

    The nodes of an autograd graph are instances of classes that torch creates, one per operator:
    an operation on one has the reason ``AUTOGRAD_GRAPH`` for all of them.
    """
    if issubclass(type(value), torch.autograd.graph.Node):
        return Split(SplitReason.AUTOGRAD_GRAPH, AUTOGRAD)
    return Split(reason, detail, subject)


SourcePosition = tuple[Any, ...]
"""The position of an expression in the source: file, function, first and last line and column.

One condition of a loop has one position, although the bytecode contains it twice, and so does the
bytecode of every continuation.
"""


def source_position(frame: FrameType) -> SourcePosition:
    """The source position of the current instruction of a frame."""
    code = frame.f_code
    position = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
    return code.co_filename, code.co_qualname, *position


@dataclass(frozen=True)
class SplitPoint:
    """The position and the cause of a split.

    Attributes:
        lineno: the line in the file, from 1; 0 if there is no source.
        reason: the category of the split.
        detail: the specifics: function, type or name.
        subject: the name that the remedy of the reason mentions, or ``""``.
    """

    function: str
    filename: str
    lineno: int
    reason: SplitReason
    detail: str
    subject: str = ""

    @classmethod
    def at(cls, frame: FrameType, cause: SplitCause) -> SplitPoint:
        """The split point at the current line of a frame."""
        code = frame.f_code
        return cls(code.co_qualname, code.co_filename, frame.f_lineno or 0, *cause)

    @classmethod
    def of(cls, name: str, code: CodeType | None, cause: SplitCause) -> SplitPoint:
        """The split point for a function as a whole."""
        if code is None:
            return cls(name, "?", 0, *cause)
        return cls(name, code.co_filename, code.co_firstlineno, *cause)

    @property
    def cause(self) -> SplitCause:
        return SplitCause(self.reason, self.detail, self.subject)

    @property
    def where(self) -> str:
        """File, line and function."""
        return f"{self.filename}:{self.lineno} in {self.function}"

    def __str__(self) -> str:
        return f"{self.where}: {self.detail}"


def source_location(frame: FrameType) -> str:
    """File, line and function of the current instruction of a frame, for logs."""
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno or 0} in {code.co_qualname}"
