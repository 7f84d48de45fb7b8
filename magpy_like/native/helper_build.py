"""Building the helper in the background, and the line of progress for who has to wait for it."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait

from magpy_like.disk_cache import process_runner
from magpy_like.native.helper_loading import Helper

_QUIET = 1.0  # seconds of waiting without a line
_EXIT = 5.0  # seconds that the compilers have to end in
_LABEL = "magpy_like: compiling its native helper, once for this Python and torch"


class HelperBuild:
    """One build of all modules. It ends with the process: an exit does not wait for it."""

    def __init__(self, build: Callable[..., Helper], modules: int) -> None:
        """Starts it. ``build`` takes what :func:`compile_cpp_many` takes by keyword."""
        self._modules = modules
        self._finished = 0
        self._stop = threading.Event()
        self._result: Future[Helper] = Future()
        threading.Thread(target=self._run, args=(build,), name="magpy-helper", daemon=True).start()
        weakref.finalize(self, _end, os.getpid(), self._stop, self._result)  # or at the exit

    def _run(self, build: Callable[..., Helper]) -> None:
        try:
            modules = build(finished=self._count, stop=self._stop)
        except BaseException as error:
            self._result.set_exception(error)
        else:
            self._result.set_result(modules)

    def _count(self) -> None:
        self._finished += 1

    def wait(self) -> None:
        """Wait for the modules, with a line of progress on standard error.

        Raises:
            BaseException: what a signal's handler raises meanwhile.
        """
        if not self._is_done_within(_QUIET):
            self._wait_with_progress()

    def result(self) -> Helper:
        """The modules, once :meth:`wait` has returned.

        Raises:
            Exception: the failure of the build.
        """
        return self._result.result()

    def _wait_with_progress(self) -> None:
        import click  # few processes need it

        if sys.stderr is None:
            while not self._is_done_within(_QUIET):
                pass
            return
        with click.progressbar(length=self._modules, label=_LABEL, file=sys.stderr) as bar:
            while not self._is_done_within(process_runner.ATTENTION):
                bar.update(self._finished - bar.pos)

    def _is_done_within(self, seconds: float) -> bool:
        process_runner.attend()
        return not wait([self._result], seconds).not_done


def _end(process: int, stop: threading.Event, result: Future[Helper]) -> None:
    """End the compilers of this process; a forked one has none."""
    if process == os.getpid():
        stop.set()
        wait([result], _EXIT)
