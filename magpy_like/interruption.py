"""Interruptions: exceptions that are for the program and come from outside it.

They are those of signal handlers (Ctrl-C, an alarm), and those that another thread sends with
``PyThreadState_SetAsyncExc``, as time-outs and notebooks do. CPython runs a handler between any two
instructions of the main thread, and raises what was sent between any two of a thread. During own
work (the monitor's callbacks, synthesis, compilation) both wait: tracing with torch does not
survive an exception at an arbitrary instruction. They come where the program continues, or, in work
that takes long, at :func:`check_interruption`.
"""

from __future__ import annotations

import signal
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from magpy_like.disk_cache import process_runner
from magpy_like.native import check_interrupts, is_at_own_work, is_sent, own_work

T = TypeVar("T")


class Interruption(BaseException):
    """Carries an exception from outside out of own work.

    It is no ``Exception``, so that no attempt to compile counts it as its failure.

    Attributes:
        error: the exception, which the program receives.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def check_interruption() -> None:
    """Let interruptions that wait come; to be called where own work may be abandoned.

    Raises:
        Interruption: a signal's handler has raised an exception, or another thread has sent one.
    """
    try:
        check_interrupts()
    except BaseException as error:
        raise Interruption(error) from None


def call_uninterrupted(function: Callable[..., T], *args: Any) -> T:
    """Call a function as own work: interruptions come afterwards, in the caller.

    Raises:
        BaseException: what the function raises; for an :class:`Interruption`, the exception that
            it carries.
    """
    try:
        with own_work:
            return function(*args)
    except Interruption as interruption:
        _raise_in_program(interruption)
        raise


def begin_own_work() -> None:
    """Defer interruptions on this thread until :func:`end_own_work`; they nest."""
    own_work.__enter__()


def end_own_work(error: BaseException | None) -> None:
    """Let interruptions come if no other own work has begun before.

    Args:
        error: what the own work has raised.

    Raises:
        BaseException: an interruption that has waited, or that ``error`` carries.
    """
    own_work.__exit__()
    if isinstance(error, Interruption):
        _raise_in_program(error)


def _raise_in_program(interruption: Interruption) -> None:
    """Raise the exception that an interruption carries, unless own work continues."""
    if not is_at_own_work():
        raise interruption.error from None


def is_interruption(error: BaseException) -> bool:
    """True if a signal's handler raised it, another thread sent it, or it is no ``Exception``."""
    if not isinstance(error, Exception) or is_sent(error):
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
