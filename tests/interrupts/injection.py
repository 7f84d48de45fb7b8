"""Interruptions at a chosen point of a call, and the state of the process afterwards.

``points(case)`` lists the points of a call at which CPython would interrupt it;
``interrupt(case, point)`` does so at one, in a process that runs nothing else, and returns what is
wrong afterwards.
"""

from __future__ import annotations

import functools
import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import magpy_like as magpy
from magpy_like.active_run import active
from magpy_like.monitor.event_handlers import EventHandlers
from magpy_like.native import interrupts_address
from magpy_like.native.helper_loading import build
from magpy_like.torch_interop.tracing_lock import TRACING_LOCK
from tests.compare import assert_same
from tests.interrupts.points import Point, numbered


@dataclass(frozen=True)
class Case:
    """A program; ``make`` returns a new one, and a function that makes the arguments of a call."""

    make: Callable[[], tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]]
    backend: str = "eager"
    trains: bool = False


class Alarm(TimeoutError):
    """The exception of the handler of SIGALRM. As most such classes, it is an ``Exception``."""


def _ring(number: int, frame: Any) -> None:
    raise Alarm("now")


class Sent(Exception):
    """What another thread sends. As most such classes, it is an ``Exception``."""


SIGNALS = {"Ctrl-C": (signal.SIGINT, KeyboardInterrupt), "alarm": (signal.SIGALRM, Alarm)}
"""By name, a signal and the exception that its handler raises."""
KINDS = {**{name: expected for name, (_, expected) in SIGNALS.items()}, "sent": Sent}
"""By name, the exceptions of all interruptions: of signals, and of another thread."""
CALLS = ("first", "later")
"""The calls that are interrupted: one that is monitored and compiled, and one that has a record."""


@functools.cache
def injector() -> Any:
    """The native injector: see ``injector.cpp``."""
    source = (Path(__file__).parent / "injector.cpp").read_text()
    module = build("injector", source)
    module.use_interrupts(interrupts_address())
    return module


@contextmanager
def _armed(point: Point | None, interruption: Any) -> Iterator[None]:
    """Interrupt the body at a point, or keep its points.

    Entering a traced function ends the count on Python 3.11; the monitor's callbacks resume it.
    """
    patched = {name: getattr(EventHandlers, name) for name in ("on_frame", "on_instruction")}
    for name, method in patched.items():
        setattr(EventHandlers, name, _resuming(method))
    try:
        if point is None:
            injector().record()
        else:
            injector().arm((*point.place, point.occurrence), interruption)
        yield
    finally:
        injector().disarm()
        for name, method in patched.items():
            setattr(EventHandlers, name, method)


def _resuming(method: Callable[..., Any]) -> Callable[..., Any]:
    def resuming(*args: Any) -> Any:
        injector().resume()
        return method(*args)

    return resuming


def process_state() -> dict[str, Any]:
    """All that is set while a program is recorded or a graph is compiled."""
    return {
        "trace function": sys.gettrace(),
        "active run": getattr(active, "run", None),
        "is_compiling": torch.compiler.is_compiling(),
        "garbage collection": gc.isenabled(),
        "collection callbacks": len(gc.callbacks),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch keys": str(torch._C._dispatch_tls_local_include_set()),
        "excluded keys": str(torch._C._dispatch_tls_local_exclude_set()),
        "gradient mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "tracing lock": TRACING_LOCK._depth,
        "tracing context": torch._guards.TracingContext.try_get(),
        "functorch": torch._C._functorch.peek_interpreter_stack(),
        "Module.__call__": torch.nn.Module.__call__,
        "Module.__getattr__": torch.nn.Module.__getattr__,
        "handlers": [signal.getsignal(number) for number, _ in SIGNALS.values()],
    }


def _call(case: Case, program: Callable[..., Any], arguments: Callable[[], Any]) -> Any:
    args = arguments()
    result = program(*args)
    if case.trains:
        result.sum().backward()
    gradients = [a.grad for a in args if isinstance(a, torch.Tensor)]
    return result, args, gradients


def _compiled(case: Case, call: str) -> tuple[Any, Any, Any]:
    """A new program, its compiled form before this call, and what makes arguments."""
    program, arguments = case.make()
    fast = magpy.compile(program, backend=case.backend)
    if call != "first":
        _call(case, fast, arguments)
        _call(case, fast, arguments)
    return program, fast, arguments


def points(case: Case, call: str = "first") -> list[Point]:
    """The points of a call, with its backward pass."""
    _, fast, arguments = _compiled(case, call)
    with _armed(None, None):
        _call(case, fast, arguments)
        return numbered(injector().disarm())


@dataclass(frozen=True)
class Outcome:
    """What followed an interruption at one point.

    Attributes:
        fired: the call reached the point.
        wrong: state left behind, a lost exception, a wrong later result; [] if all is well.
        ignored: CPython has ignored the exception, as it does in destructors and callbacks of weak
            references (``sys.unraisablehook``).
    """

    fired: bool
    wrong: list[str]
    ignored: bool = False


def interrupt(case: Case, point: Point, kind: str, call: str = "first") -> Outcome:
    """Interrupt a call at a point, then call three times and compare with eager."""
    expected: Any = KINDS[kind]
    program, fast, arguments = _compiled(case, call)
    eager, _ = case.make()
    fired, wrong, ignored, before = [], [], [], process_state()

    def note_ignored(unraisable: Any) -> None:
        ignored.append(unraisable.exc_type)

    def raise_signal() -> None:
        fired.append(point)
        signal.raise_signal(SIGNALS[kind][0])

    # A shell has processes in the background ignore Ctrl-C.
    interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)
    handler = signal.signal(signal.SIGALRM, _ring)
    hook, sys.unraisablehook = sys.unraisablehook, note_ignored
    before["handlers"] = [signal.getsignal(number) for number, _ in SIGNALS.values()]
    try:
        try:
            with _armed(point, raise_signal if kind in SIGNALS else expected):
                _call(case, fast, arguments)
                if kind not in SIGNALS and injector().has_fired():
                    fired.append(point)
        except expected:
            fired = [point]
        except BaseException as error:
            wrong.append(f"{type(error).__name__} instead of {expected.__name__}: {error}")
        else:
            if fired and expected not in ignored:
                wrong.append("the exception is lost")
        after = process_state()
        wrong += [f"{key} left behind" for key in before if before[key] != after[key]]
        if fired and not wrong:
            wrong += _compare_later_calls(case, program, eager, fast, arguments)
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGALRM, handler)
        signal.signal(signal.SIGINT, interrupts)
    return Outcome(bool(fired), wrong, expected in ignored)


def _compare_later_calls(
    case: Case, program: Any, eager: Any, fast: Any, arguments: Callable[[], Any]
) -> Iterator[str]:
    if isinstance(program, torch.nn.Module):  # as far as the interrupted call has changed it
        eager.load_state_dict(program.state_dict())
        eager.__dict__.update(
            {k: v for k, v in vars(program).items() if type(v) in (int, float, str)}
        )
    before = magpy.cache_info(fast)
    try:
        for _ in range(3):
            assert_same(_call(case, fast, arguments), _call(case, eager, arguments))
    except BaseException as error:
        yield f"a later call is wrong: {type(error).__name__}: {error}"
    else:
        now = magpy.cache_info(fast)
        if now.hits + now.uncompiled == before.hits + before.uncompiled:
            yield "later calls run natively"
