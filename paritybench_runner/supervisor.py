"""Supervisor of the corpus files: one isolated process per file, with limits of time and memory."""

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

MAX_TIMEOUTS = 3  # time-outs of one file before the rest of it is abandoned
_POLL_SECONDS = 0.2
# Extra time for a compiler's step, in multiples of the eager step's duration. The step runs the
# program in eager mode, too, and again under other rounding where values differ: some fifty calls,
# each three times as slow, where the eager step has seven.
_EAGER_FACTOR = 20.0
_MAX_STDERR_LINES = 6

# One thread per file: results do not depend on the number of cores, and files share them well. Set
# by the environment: after `torch.set_num_threads`, each thread of a forked process sets the number
# again on a pool without threads (fork copies none), which aborted some processes.
# malloc fills uninitialised memory with a fixed pattern, so that reading it makes no difference
# between two runs, and returns the memory of a freed large tensor to the system: a file of large
# programs would otherwise keep, between two runs, most of the memory that one needs.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "GLIBC_TUNABLES": "glibc.malloc.perturb=85:glibc.malloc.tcache_count=0"
    ":glibc.malloc.mmap_threshold=4194304",
    # `torch.cuda.is_available` starts the driver by default, and a process forked after that cannot
    # use the GPU.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
# Tells `paritybench_runner.preload` the compilers to warm up; an import has no arguments.
_WARM_UP_VARIABLE = "PARITYBENCH_WARM"
# Hides the GPU from programs in a run on the CPU.
_WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}

FileResult = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a file's process.

    Attributes:
        seconds: for each step: importing the file, a test in eager mode, a test in one compiler.
            The latter also runs the program in eager mode and may take longer accordingly.
        memory: bytes of private memory of the process, or None. On the CPU also of its address
            space, so that allocations fail; on a GPU also of device memory.
    """

    seconds: float
    memory: int | None


class Stopped(Exception):
    """The run was stopped while this file was running."""


class _MemoryLimitExceeded(Exception):
    """The file's process exceeded its memory limit."""


class Supervisor:
    """Runs files, `jobs` at a time; as a context manager, ends all their processes.

    Args:
        limits: limits of each file's process.
        jobs: number of files at once.
        compilers: compilers to warm up before files' processes are forked.
        device: "cpu" or "cuda".
        backend: backend of the compilers.
    """

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
        """Yields the result of each file when it is finished."""
        futures = [self._threads.submit(self.run_one, job) for job in jobs]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()

    def run_one(self, job: Job) -> FileResult:
        """Returns one file's result: its tests, or the error of its import."""
        start = time.perf_counter()
        progress = _FileProgress(job)
        while progress.unfinished:
            self._attempt(job, progress)
        return {**progress.result(), "seconds": round(time.perf_counter() - start, 3)}

    def _attempt(self, job: Job, progress: "_FileProgress") -> None:
        with tempfile.TemporaryDirectory(prefix="paritybench-") as folder:
            receiver, sender = self._context.Pipe(duplex=False)
            arguments = (job, progress.known_results(), sender, folder, self.limits.memory)
            process = self._context.Process(target=main, args=arguments)
            process.start()
            sender.close()
            try:
                for event in self._events(receiver, process.pid):
                    if event.kind == "restart":
                        break
                    progress.apply(event)
                else:
                    if progress.unfinished:
                        process.join(_POLL_SECONDS * 10)
                        progress.process_died(
                            process.exitcode, _stderr_excerpt(Path(folder, "stderr"))
                        )
            except TimeoutError as limit:
                progress.timed_out(limit.args[0])
            except _MemoryLimitExceeded as reason:
                progress.step_crashed(str(reason))
            finally:
                _kill_group(process)
                receiver.close()

    def _events(self, receiver: Connection, process: int | None) -> Iterator[Event]:
        step, began, eager_seconds, limit = "import", time.monotonic(), 0.0, self.limits.seconds
        while True:
            if self._stop.is_set():
                raise Stopped
            self._check_memory(process)
            if receiver.poll(_POLL_SECONDS):
                try:
                    event = receiver.recv()
                except (EOFError, OSError):
                    return
                yield event
                if event.kind == "end":
                    return
                now = time.monotonic()
                if step == EAGER:
                    eager_seconds = now - began
                step, began = event.step if event.kind == "begin" else "", now
                slack = 0 if step in ("import", EAGER) else _EAGER_FACTOR * eager_seconds
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
    """Results of a file after one or more attempts.

    Attributes:
        unfinished: True until the last step has a result.
    """

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
            # It ran in an earlier attempt. A result that is not repeatable is no reference.
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
    """Returns the bytes of anonymous memory of a process; 0 if it has ended."""
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
    """Kills a file's process and all processes that it started."""
    if process.pid is not None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()  # it does not lead a group yet, or has ended
    process.join()
    process.close()
