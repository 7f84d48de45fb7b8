"""Runs of other programs, each with a time limit, in a process group of its own.

When a run ends, so does all that it started: a compiler driver that is killed alone leaves the
compiler proper behind. Output goes to memory, not to pipes, which a process left behind would keep
open.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

_KEPT_OUTPUT = 1 << 20  # bytes of each stream
ATTENTION = 0.1  # seconds between two calls of :func:`attend`
_FOREVER = 1e6  # seconds: the system's calls take no infinite time
_DEATH_TIMEOUT = 5.0  # seconds; a killed process that waits for a dead file server never ends


@dataclass(frozen=True)
class Finished:
    """A run that has ended: exit status, standard output and standard error."""

    status: int
    output: str
    errors: str


class Stopped(Exception):
    """A run was stopped: another thread has abandoned the work."""


_while_waiting: list[Callable[[], None]] = []


def call_while_waiting(function: Callable[[], None]) -> None:
    """Have ``function`` called ten times a second while a thread waits for a program.

    What it raises ends the program and the wait.
    """
    _while_waiting.append(function)


def attend() -> None:
    """Call the functions of :func:`call_while_waiting`."""
    for function in _while_waiting:
        function()


class TimedOut(Exception):
    """A run was stopped at its time limit; has ``command`` and ``seconds``."""

    def __init__(self, command: Sequence[str], seconds: float) -> None:
        self.command, self.seconds = tuple(command), seconds
        super().__init__(f"`{shlex.join(command)}` did not end within {seconds:g} s")


def run(
    command: Sequence[str],
    *,
    seconds: float,
    folder: str | None = None,
    environment: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
) -> Finished:
    """Run a program without input, for at most ``seconds``.

    Raises:
        OSError: the program cannot be started.
        TimedOut: it did not end in time.
        Stopped: ``stop`` was set.
    """
    with _memory() as output, _memory() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, cwd=folder,
            env=None if environment is None else {**os.environ, **environment}, process_group=0,
        )  # fmt: skip
        try:
            has_ended = _wait(process, min(seconds, _FOREVER), stop)
        finally:  # on KeyboardInterrupt too
            _kill_group(process)
        if not has_ended:
            raise TimedOut(command, seconds)
        return Finished(process.returncode, _text(output), _text(errors))


def _memory() -> IO[bytes]:
    if hasattr(os, "memfd_create"):  # absent from builds of Python for old C libraries
        return open(os.memfd_create("magpy-output"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read(_KEPT_OUTPUT).decode(errors="replace")


def _wait(process: subprocess.Popen[bytes], seconds: float, stop: threading.Event | None) -> bool:
    """Wait until the program ends, without collecting its status; False at the time limit."""
    end = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        poll: select.poll | None = None
        with contextlib.suppress(OSError):  # an old kernel, or a sandbox
            descriptor = os.pidfd_open(process.pid)
            stack.callback(os.close, descriptor)
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
        while (left := end - time.monotonic()) > 0:
            if _ends_within(process, min(left, ATTENTION), poll):
                return True
            attend()
            if stop is not None and stop.is_set():
                raise Stopped
        return False


def _ends_within(
    process: subprocess.Popen[bytes], seconds: float, poll: select.poll | None
) -> bool:
    if poll is not None:  # unlike ``wait`` with a limit, returns at the end of the program
        return bool(poll.poll(seconds * 1000))
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # Before the status is collected, so that the number still names this group.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_DEATH_TIMEOUT)
