"""Interruptions: exceptions of signal handlers, which are for the program (Ctrl-C, an alarm).

CPython runs a handler between any two instructions of the main thread. During own work (the
monitor's callbacks, synthesis, compilation) handlers wait: tracing with torch does not survive an
exception at an arbitrary instruction. They run where the program continues, or, in work that takes
long, at :func:`check_interruption`.
"""

from __future__ import annotations

import signal
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from magpy_like.disk_cache import process_runner
from magpy_like.native import check_interrupts, own_work

T = TypeVar("T")


class Interruption(BaseException):
    """Carries an exception of a signal handler out of own work.

    It is no ``Exception``, so that no attempt to compile counts it as its failure.

    Attributes:
        error: the exception, which the program receives.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def check_interruption() -> None:
    """Run the handlers of signals that have arrived; to be called where own work may be abandoned.

    Raises:
        Interruption: a handler has raised an exception.
    """
    try:
        check_interrupts()
    except BaseException as error:
        raise Interruption(error) from None


def call_uninterrupted(function: Callable[..., T], *args: Any) -> T:
    """Call a function as own work: handlers of signals run afterwards, in the caller.

    Raises:
        BaseException: what the function raises; for an :class:`Interruption`, the exception that
            it carries.
    """
    try:
        with own_work:
            return function(*args)
    except Interruption as interruption:
        raise interruption.error from None


def is_interruption(error: BaseException) -> bool:
    """True if a handler of a signal has raised the exception, or it is no ``Exception``."""
    if not isinstance(error, Exception):
        return True
    codes = handler_codes()
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def handler_codes() -> frozenset[types.CodeType]:
    """The code of the handlers in Python that signals have now."""
    return frozenset(_codes_of_handlers())


def _codes_of_handlers() -> Iterator[types.CodeType]:
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if not callable(handler):
            continue
        for function in (handler, type(handler).__call__):
            code = getattr(getattr(function, "__func__", function), "__code__", None)
            if type(code) is types.CodeType:
                yield code


process_runner.call_while_waiting(check_interruption)  # for compilers of C++
