"""Threads that compile while exceptions are sent to them: `python -m tests.interrupts.stress SEED`.

Each thread compiles and calls new programs, until the time is up; one exception is sent at a random
moment of a call. Prints the calls that returned and those that the exception ended. Exits with 1 if
a call raised anything else, returned a wrong result, or did not end.
"""

from __future__ import annotations

import ctypes
import faulthandler
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import click
import torch
from torch import Tensor

import magpy_like as magpy

THREADS = 3
END = 60.0
"""Seconds after the last exception until a call counts as one that does not end."""


class Sent(Exception):
    """What is sent. As most such classes, it is an ``Exception``."""


def program(x: Tensor, n: int) -> Tensor:
    """Isolated runs of branches and iterations, on fake tensors."""
    y = x * 2
    y = (y + 1) @ y if y.sum() > 100 else y - x.sum()
    for i in range(n):
        y = y * 0.5 + i
        if y.max() > 100:
            break
    return y


@dataclass
class Caller:
    """A thread's calls; ``may_receive`` is set while an exception may be sent to it."""

    ends_at: float
    returned: int = 0
    interrupted: int = 0
    wrong: list[str] = field(default_factory=list)
    may_receive: bool = False
    ident: int = 0

    def run(self) -> None:
        self.ident = threading.get_ident()
        expected = program(torch.ones(3, 3), 5)
        while time.monotonic() < self.ends_at:
            try:
                self._call(expected)
            except Sent:
                self.interrupted += 1
            except BaseException as error:
                self.wrong.append(f"{type(error).__name__}: {error}")

    def _call(self, expected: Tensor) -> None:
        self.may_receive = True
        try:
            fast = magpy.compile(_copy(program), backend="eager")
            result = fast(torch.ones(3, 3), 5)
        finally:
            self.may_receive = False
        if not torch.equal(result, expected):
            self.wrong.append(f"{result} instead of {expected}")
        self.returned += 1

    def send(self) -> None:
        """Send an exception, once a call."""
        if self.may_receive:
            self.may_receive = False
            ident = ctypes.c_ulong(self.ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Sent))


def _copy(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return type(function)(function.__code__, function.__globals__)  # type: ignore[call-arg, attr-defined]


@click.command()
@click.argument("seed", type=int)
@click.option("--seconds", default=4.0, show_default=True)
@click.option("--cold", is_flag=True, help="The threads' first calls load the modules.")
def main(seed: int, seconds: float, cold: bool) -> None:
    faulthandler.dump_traceback_later(seconds + END, exit=True)
    if not cold:
        magpy.compile(program, backend="eager")(torch.ones(3, 3), 5)
    rng = random.Random(seed)
    ends_at = time.monotonic() + seconds
    callers = [Caller(ends_at) for _ in range(THREADS)]
    threads = [threading.Thread(target=caller.run) for caller in callers]
    for thread in threads:
        thread.start()
    while time.monotonic() < ends_at:
        time.sleep(rng.random() * 0.03)
        rng.choice(callers).send()
    for thread in threads:
        thread.join()
    wrong = [text for caller in callers for text in caller.wrong]
    print(sum(c.returned for c in callers), sum(c.interrupted for c in callers), *wrong[:5])
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
