"""The trace of a compilation: every stage as a file for people.

``options={"trace": directory}`` or ``MAGPY_TRACE=directory`` makes one sub-directory per compiled
graph. Each stage (PyTorch 2, section 4) writes there under its number, so that a directory
listing is the compiler's flow. ``MAGPY_LOGS=fusion,output_code`` logs two of the stages.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from magpy_like import logs

# In the order of the flow; file names begin with the number.
STAGES = (
    "fx",
    "aten_forward",
    "aten_backward",
    "passes",
    "ir",
    "schedule",
    "kernels",
    "launcher",
    "timings",
)
_TOPIC = {"schedule": "fusion", "kernels": "output_code", "launcher": "output_code"}


class Trace:
    """The trace of one compilation, in ``directory``; None writes no files.

    ``seconds`` maps the name of each timed step to wall-clock seconds, with files or without.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.seconds: dict[str, float] = {}
        self._depth: dict[str, int] = {}
        self._open: list[str] = []

    def is_watched(self) -> bool:
        """True if a stage is written or logged: then all of them must run, cached or not."""
        topics = {logs.topic(name) for name in _TOPIC.values()}
        return self.directory is not None or any(topic.isEnabledFor(10) for topic in topics)

    def write(self, stage: str, name: str, text: str | Callable[[], str]) -> None:
        """Write ``text`` as file ``name`` of ``stage``, one of ``STAGES``.

        ``text`` may be a function, called only if the stage is written or logged. Two texts of one
        name are both kept. A directory that cannot be written costs a warning.
        """
        number = STAGES.index(stage)
        logger = logs.topic(_TOPIC[stage]) if stage in _TOPIC else None
        is_logged = logger is not None and logger.isEnabledFor(10)
        if self.directory is None and not is_logged:
            return
        content = text if isinstance(text, str) else text()
        if is_logged and logger is not None:
            logger.debug("%s\n%s", name, content)
        if self.directory is not None:
            self._store(f"{number}_{stage}", name, content)

    def _store(self, prefix: str, name: str, content: str) -> None:
        assert self.directory is not None
        path = Path(name)
        try:
            for repeat in itertools.count():
                suffix = f"_{repeat}" if repeat else ""
                target = self.directory / f"{prefix}_{path.stem}{suffix}{path.suffix or '.txt'}"
                with contextlib.suppress(FileExistsError):
                    with open(target, "x") as out:
                        out.write(content)
                    return
        except OSError as error:
            self._stop_writing(error)

    def _stop_writing(self, error: OSError) -> None:
        message = f"magpy: the trace in {self.directory} stops: {error.strerror}"
        warnings.warn(message, stacklevel=3)
        self.directory = None

    @contextlib.contextmanager
    def timing(self, step: str) -> Iterator[None]:
        """Add the wall-clock time of the block to ``seconds[step]``; blocks may nest."""
        self._depth.setdefault(step, len(self._open))
        self.seconds.setdefault(step, 0.0)
        self._open.append(step)
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] += time.perf_counter() - begin
            self._open.pop()
            if not self._open and self.directory is not None:
                self._write_timings(self.directory)

    def _write_timings(self, directory: Path) -> None:
        # One file, rewritten after each step: a compilation that fails leaves its timings so far.
        try:
            target = directory / f"{STAGES.index('timings')}_timings.txt"
            target.write_text(self.timings())
        except OSError as error:
            self._stop_writing(error)

    def timings(self) -> str:
        """The steps as a table of milliseconds, inner steps indented under outer ones."""
        rows = [("  " * self._depth[step] + step, 1e3 * s) for step, s in self.seconds.items()]
        width = max((len(label) for label, _ in rows), default=0)
        return "".join(f"{label:<{width}}  {ms:10.2f} ms\n" for label, ms in rows)


def open_trace(options: Mapping[str, Any] | None = None) -> Trace:
    """A Trace in a new sub-directory of ``options["trace"]``, else of ``MAGPY_TRACE``.

    Many processes may trace into one directory: each creates the next of ``graph_000``,
    ``graph_001``, … that does not exist. A directory that cannot be created costs a warning.
    """
    parent = (options or {}).get("trace") or os.environ.get("MAGPY_TRACE")
    if not parent:
        return Trace(None)
    root = Path(parent).expanduser()
    try:
        root.mkdir(parents=True, exist_ok=True)
        for number in itertools.count():
            with contextlib.suppress(FileExistsError):
                directory = root / f"graph_{number:03}"
                directory.mkdir()
                return Trace(directory)
    except OSError as error:
        message = f"magpy: no trace is written: cannot create {root}: {error.strerror}"
        warnings.warn(message, stacklevel=2)
    return Trace(None)
