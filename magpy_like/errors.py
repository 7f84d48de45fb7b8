"""Errors and the warning of this package: all errors derive from MagpyError."""

from __future__ import annotations

from magpy_like.split_reasons import SplitCause


class MagpyError(Exception):
    """Base class of every error raised by this package."""


class AnnotationError(MagpyError):
    """An operation annotation (MagPy, section 5.2) cannot be used as written.

    Attributes:
        message: the fault.
        file, line: where the annotation is written; ``line`` is None for a mapping passed from
            Python.
        key: the faulty entry.
    """

    def __init__(self, message: str, *, file: str, line: int | None, key: str) -> None:
        location = file if line is None else f"{file}:{line}"
        super().__init__(f"{location}: {key}: {message}")
        self.message = message
        self.file = file
        self.line = line
        self.key = key


class FullGraphError(MagpyError):
    """The program splits, although ``fullgraph=True`` requires one operator graph.

    Attributes:
        function, filename, lineno: where the program splits first.
        reason: the category of the split.
        detail: the specifics in English.
    """

    def __init__(self, function: str, filename: str, lineno: int, cause: SplitCause) -> None:
        remedy = f". To remove the split: {cause.remedy}" if cause.remedy else ""
        super().__init__(
            f"fullgraph=True, but the program splits in {function} at {filename}:{lineno}: "
            f"{cause.detail} ({cause.reason.title}){remedy}"
        )
        self.function = function
        self.filename = filename
        self.lineno = lineno
        self.reason = cause.reason
        self.detail = cause.detail


class DynamicDimensionError(MagpyError):
    """A dimension was marked as dynamic, but the program specializes its size.

    Attributes:
        dimension: the dimension and its tensor, in words.
        size: the only size that the record serves.
        reason: where the program relies on the size.
    """

    def __init__(self, dimension: str, size: int, reason: str) -> None:
        super().__init__(
            f"{dimension} is marked as dynamic, but the program relies on its size being {size}: "
            f"{reason}. Remove the mark, or what depends on the size"
        )
        self.dimension, self.size, self.reason = dimension, size, reason


class CompileError(MagpyError):
    """An operator graph could not be compiled by the chosen backend."""


class NativeHelperError(MagpyError):
    """The native helper, without which nothing is monitored, cannot be used; has the remedy."""


class MagpyWarning(UserWarning):
    """A program, graph or operator is not compiled: its results are right, but slower."""
