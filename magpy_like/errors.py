"""Errors and the warning of this package: all errors derive from MagpyError."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from magpy_like.split_reasons import SplitCause


class MagpyError(Exception):
    """Base class of every error raised by this package."""


class ArgumentError(MagpyError, TypeError, ValueError):
    """An argument of a public function is none that the function takes.

    It is a TypeError and a ValueError too, for callers that expect Python's own.

    Attributes:
        function: the name of the function.
        argument: the name of the argument, or of the option.
        given: what the argument was.
    """

    def __init__(self, function: str, argument: str, given: object, fault: str) -> None:
        super().__init__(f"{function}: {argument}={_shown(given)}: {fault}")
        self.function, self.argument, self.given = function, argument, given


class DimensionError(ArgumentError, IndexError):
    """A tensor has no dimension of this number."""


def known_names(given: object, names: Iterable[str]) -> str:
    """The names that exist, in words, and the closest of them to the one that was given."""
    listed = list(names)
    return f"{', '.join(map(repr, listed))}{closest_name(given, listed)}"


def closest_name(given: object, names: Iterable[str]) -> str:
    """The closest name to the one that was given, as a question in brackets, or ``""``."""
    closest = difflib.get_close_matches(str(given), list(names), 1)
    return f" (did you mean {closest[0]!r}?)" if closest else ""


_SHOWN = 80
"""Characters of a value that a message shows."""


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # of a class of the program's
        text = f"a {type(value).__qualname__}"
    return shortened(text, _SHOWN)


def shortened(text: str, limit: int = 200) -> str:
    """A text of at most so many characters, with an ellipsis for the others."""
    return text if len(text) <= limit else f"{text[:limit]}…"


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


class RecompileError(MagpyError, RuntimeError):
    """No record matches a call, under ``torch.compiler.set_stance("fail_on_recompile")``.

    Attributes:
        function: the name of the compiled function.
        reasons: for each record, the condition that failed; [] if there is none yet.
    """

    def __init__(self, function: str, reasons: list[str]) -> None:
        why = "; ".join(reasons) or "there is no record yet"
        super().__init__(
            f"{function} would be recorded anew, which the stance 'fail_on_recompile' forbids: "
            f"{why}"
        )
        self.function, self.reasons = function, reasons


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
