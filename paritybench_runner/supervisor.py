"""Runs corpus files in processes of their own, and keeps what they do from mattering elsewhere."""

import concurrent.futures
import dataclasses
import multiprocessing
import multiprocessing.context
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from paritybench_runner.worker import EAGER, Event, Job, main

# After so many time-outs the rest of a file is given up.
MAX_TIMEOUTS = 3
_POLL_SECONDS = 0.2
# How much longer than its limit a compiler's step may take, in multiples of what eager mode's took:
# it runs the program in eager mode, too, and again under other rounding where values differ: some
# fifty calls, each three times as slow, where eager mode's own step has seven.
_EAGER_FACTOR = 20.0
_MAX_STDERR_LINES = 6

# One thread per file: results do not depend on the number of cores, and files share them well. The
# environment says so: after `torch.set_num_threads`, each thread of a forked process sets the
# number again, on a pool whose threads did not come along, which aborted some.
# Memory that a program reads without having written it holds the same each time: it is no
# difference between two runs. What a large tensor lay in goes back when it is let go: a file of
# large programs would otherwise keep, between two runs, most of what one needs.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "GLIBC_TUNABLES": "glibc.malloc.perturb=85:glibc.malloc.tcache_count=0"
    ":glibc.malloc.mmap_threshold=4194304",
    # The usual way to ask whether there is a GPU starts the driver, and a process forked after that
    # cannot use it.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
# What `paritybench_runner.preload` warms up: importing that module does it, so it cannot be asked.
_WARM_UP_VARIABLE = "PARITYBENCH_WARM"
# Programs that ask for a GPU do not get one when the CPU is what is looked at.
_WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}

FileResult = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a file may use.

    Attributes:
        seconds: for each step: importing the file, a test in eager mode, a test in one compiler;
            that runs the program in eager mode as well, and may take longer by what that takes.
        memory: bytes of memory that the file's process has to itself, or None. Also of its address
            space on the CPU, where that refuses an allocation; of device memory on a GPU.
    """

    seconds: float
    memory: int | None


class Stopped(Exception):
    """The run was told to stop while this file was running."""


class _MemoryLimitExceeded(Exception):
    """The file's process took more memory than it may."""


class Supervisor:
    """Runs files, `jobs` at a time; as a context manager, leaves no process behind."""

    def __init__(
        self,
        limits: Limits,
        jobs: int = 1,
        compilers: tuple[str, ...] = (),
        device: str = "cpu",
        backend: str = "eager",
    ) -> None:
        self.limits = limits
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["paritybench_runner.preload"])
        environment = _ENVIRONMENT | {
            _WARM_UP_VARIABLE: f"{','.join(compilers)}:{backend}:{device}"
        }
        if device == "cpu":
            environment |= _WITHOUT_GPU
        with mock.patch.dict(os.environ, environment):
            resource_tracker.ensure_running()
            forkserver.ensure_running()
        self._stop = threading.Event()
        self._threads = concurrent.futures.ThreadPoolExecutor(jobs)

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def run(self, jobs: list[Job]) -> Iterator[FileResult]:
        """Yields the result of each file as it is finished."""
        futures = [self._threads.submit(self.run_one, job) for job in jobs]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()

    def run_one(self, job: Job) -> FileResult:
        """One file's result: its tests, or why it could not be imported."""
        start = time.perf_counter()
        record = _FileProgress(job)
        while record.unfinished:
            self._attempt(job, record)
        return {**record.result(), "seconds": round(time.perf_counter() - start, 3)}

    def _attempt(self, job: Job, record: "_FileProgress") -> None:
        with tempfile.TemporaryDirectory(prefix="paritybench-") as folder:
            channel, theirs = self._context.Pipe(duplex=False)
            arguments = (job, record.known_results(), theirs, folder, self.limits.memory)
            process = self._context.Process(target=main, args=arguments)
            process.start()
            theirs.close()
            try:
                for event in self._events(channel, process.pid):
                    if event.kind == "again":
                        break
                    record.apply(event)
                else:
                    if record.unfinished:
                        process.join(_POLL_SECONDS * 10)
                        record.process_died(
                            process.exitcode, _stderr_excerpt(Path(folder, "stderr"))
                        )
            except TimeoutError as limit:
                record.timed_out(limit.args[0])
            except _MemoryLimitExceeded as reason:
                record.step_crashed(str(reason))
            finally:
                _kill_group(process)
                channel.close()

    def _events(self, channel: Connection, process: int | None) -> Iterator[Event]:
        step, began, in_eager, limit = "import", time.monotonic(), 0.0, self.limits.seconds
        while True:
            if self._stop.is_set():
                raise Stopped
            self._check_memory(process)
            if channel.poll(_POLL_SECONDS):
                try:
                    event = channel.recv()
                except (EOFError, OSError):
                    return
                yield event
                if event.kind == "end":
                    return
                now = time.monotonic()
                if step == EAGER:
                    in_eager = now - began
                step, began = event.step if event.kind == "begin" else "", now
                slack = 0 if step in ("import", EAGER) else _EAGER_FACTOR * in_eager
                limit = self.limits.seconds + slack
            elif time.monotonic() > began + limit:
                raise TimeoutError(limit)

    def _check_memory(self, process: int | None) -> None:
        limit, used = self.limits.memory, _private_memory(process)
        if limit is not None and used > limit:
            raise _MemoryLimitExceeded(
                f"used {used / 2**30:.1f} GiB of the {limit / 2**30:g} it may use"
            )


class _FileProgress:
    """What is known of a file after one or more attempts."""

    def __init__(self, job: Job) -> None:
        self.unfinished = True
        self._job = job
        self._import_error: str | None = None
        self._tests: dict[int, dict[str, Any]] = {}
        self._current: tuple[int, str] = (-1, "import")
        self._timeouts = 0

    def known_results(self) -> dict[tuple[int, str], dict[str, Any]]:
        steps = (EAGER, *self._job.compilers)
        return {
            (index, step): test[step]
            for index, test in self._tests.items()
            for step in steps
            if step in test
        }

    def apply(self, event: Event) -> None:
        if event.kind == "begin":
            self._current = (event.index, event.step)
        elif event.kind == "end":
            self.unfinished = False
        elif event.index >= 0:
            self._tests[event.index][event.step] = event.result
        elif "error" in event.result:
            self._import_error = event.result["error"]
        else:
            for index, module in event.result["tests"]:
                self._tests.setdefault(index, {"index": index, "module": module})

    def timed_out(self, seconds: float) -> None:
        self._timeouts += 1
        self._record_failure("timeout", f"no result after {seconds:g} s")
        if self._timeouts == MAX_TIMEOUTS:
            self._give_up(f"not run: {MAX_TIMEOUTS} steps of this file timed out before")

    def process_died(self, exit_code: int | None, stderr: str) -> None:
        self.step_crashed(f"{_cause_of_death(exit_code)}; {stderr}".rstrip("; "))

    def step_crashed(self, cause: str) -> None:
        self._record_failure("crashed", cause)

    def _record_failure(self, kind: str, error: str) -> None:
        index, step = self._current
        if index < 0:
            self._import_error = error
            self.unfinished = False
            return
        test = self._tests[index]
        if step == EAGER and EAGER in test:
            # It ran before; what cannot be repeated cannot be compared with either.
            test[EAGER] = {"class": kind, "error": f"in another attempt: {error}"}
        else:
            test[step] = {"class": kind, "error": error}

    def _give_up(self, error: str) -> None:
        for test in self._tests.values():
            if test.setdefault(EAGER, {"class": "timeout", "error": error})["class"] == "ok":
                for compiler in self._job.compilers:
                    test.setdefault(compiler, {"class": "timeout", "error": error})
        self.unfinished = False

    def result(self) -> FileResult:
        tests = [self._tests[index] for index in sorted(self._tests)]
        result: FileResult = {"file": Path(self._job.path).name, "tests": tests}
        if self._import_error is not None:
            result["import_error"] = self._import_error
        return result


def _cause_of_death(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"the process exited with {exit_code}"


def _private_memory(process: int | None) -> int:
    """Bytes of memory that a process shares with no file; 0 when it is gone."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    sizes = [line.split() for line in status.splitlines() if line.startswith("RssAnon:")]
    return sum(int(size) for _, size, _ in sizes) * 1024


def _stderr_excerpt(stderr: Path) -> str:
    if not stderr.is_file():
        return ""
    lines = stderr.read_text(errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in lines[:_MAX_STDERR_LINES])[:500]


def _kill_group(process: multiprocessing.context.ForkServerProcess) -> None:
    """Ends a file's process and everything it started."""
    if process.pid is not None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()  # it had not become the head of a group yet, or is gone
    process.join()
    process.close()
